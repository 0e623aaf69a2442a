/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Our end of a channel: made, kept, taken apart.
 *
 * An end begins with the pair's decision which NICs are to be used.  Who connects tells
 * the other by the link, with a token; who is told makes what it needs, remembers the
 * token for some seconds, and answers with its listener's port; the request of the
 * connection manager has to show the token, once.  Then
 *
 *   END_MAKING   the steps of make(), in a coroutine
 *   END_UP       the channel works; what it asks for is done by coroutines that end
 *   (going)      `why` is set, whatever it is doing: it breaks the channel, waits until
 *                that is broken, and takes all apart
 *
 * One coroutine at a time is at work for an end, run(), which begins when it is kicked.
 * What the channel asks for under the VM's token, on the worker, is put down under a
 * lock, and an eventfd tells the main loop.
 *
 * No channel waits without bound for its VM to take turns: the channel of one that is
 * paused is dropped at once; one that takes none for another reason, after END_WAIT_MS;
 * one that has gone has closed all flows, and nobody is told.  What that has sent last,
 * such as the ACK of a message that its peer waits for, has RNIC_LINGER_MS to arrive.
 * A VM's token is waited for, however: a worker that stands in a page fault keeps the
 * NIC from being closed.
 *
 * Threads: the main thread; the calls of struct rnic_channel_ops under the token.
 */
#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/fdwatch.h"
#include "base/log.h"
#include "objects/vm.h"
#include "transport/rnic/pair_internal.h"

/* What the private data of a request begin with: "prvc", and a version. */
#define MAGIC   0x70727663u
#define VERSION 1u

#define ACK_TIMEOUT 14 /* 4.096 us << 14: 67 ms */
#define RETRIES     6  /* 7 is for ever on some NICs */
#define RNR_RETRIES 3  /* none is expected */
#define RESOLVE_MS  2000
/* A channel that breaks is broken within a second of a look. */
#define END_WAIT_MS 1500u

static struct {
    /* Protects what the channels ask for, of all ends, and this list. */
    pthread_mutex_t lock;
    TAILQ_HEAD(, rnic_end) ends;
    int fd;
    guint watch;
} asks = {.lock = PTHREAD_MUTEX_INITIALIZER,
          .ends = TAILQ_HEAD_INITIALIZER(asks.ends),
          .fd = -1};

static const struct rnic_pair_ops *ops;

/* ---- what the channel asks for: under the token ---- */

/* With the lock. */
static void ask(struct rnic_end *e)
{
    uint64_t one = 1;

    if (!e->asks) {
        e->asks = true;
        TAILQ_INSERT_TAIL(&asks.ends, e, asking);
        if (write(asks.fd, &one, sizeof(one)) < 0) {
            return; /* the counter is full: it is told */
        }
    }
}

static struct rnic_end *end_of(const struct rnic_channel *ch)
{
    return rnic_channel_owner(ch);
}

/* The pair has this channel.  What comes shows that the host QP is connected, even if
 * the connection manager's word is not here yet. */
static void set_up(struct rnic_end *e)
{
    struct rnic_pair *p = e->pair;

    if (rnic_channel_phase(e->ch) == RNIC_MADE) {
        rnic_channel_up(e->ch);
        if (!p->ch || end_of(p->ch)->order < e->order) {
            p->ch = e->ch;
        }
    }
}

static bool end_take(struct rnic_flow *f, const uint8_t *bytes, size_t len)
{
    struct rnic_end *e = end_of(f->channel);

    atomic_store_explicit(&e->heard, e->place->cq.now, memory_order_relaxed);
    return ops->take(f, bytes, len);
}

static void end_writable(struct rnic_flow *f)
{
    ops->writable(f);
}

static void end_overrun(struct rnic_flow *f)
{
    ops->overrun(f);
}

static bool end_open(struct rnic_channel *ch, uint32_t peer_index, const uint8_t *bytes,
                     size_t len)
{
    struct rnic_end *e = end_of(ch);

    set_up(e);
    if (rnic_channel_phase(ch) != RNIC_UP) {
        return true; /* it breaks: nobody waits for an answer */
    }
    if (e->pair->ch != ch) { /* there is another that the peer has made since */
        rnic_flow_refuse(ch, peer_index, NULL, 0);
        return true;
    }
    return ops->open(e->pair, peer_index, bytes, len);
}

static bool end_opened(struct rnic_flow *f, bool accepted, const uint8_t *bytes,
                       size_t len)
{
    return ops->opened(f, accepted, bytes, len);
}

static void end_closed(struct rnic_flow *f)
{
    ops->closed(f);
}

static void end_grow(struct rnic_channel *ch, enum rnic_side side, unsigned n,
                     uint32_t size)
{
    struct rnic_end *e = end_of(ch);

    pthread_mutex_lock(&asks.lock);
    e->grow_n[side] = n;
    e->grow_size[side] = size;
    ask(e);
    pthread_mutex_unlock(&asks.lock);
}

static void end_spare(struct rnic_channel *ch, struct rnic_block *b)
{
    struct rnic_end *e = end_of(ch);

    pthread_mutex_lock(&asks.lock);
    TAILQ_INSERT_TAIL(&e->spare, b, link);
    ask(e);
    pthread_mutex_unlock(&asks.lock);
}

static void end_to_err(struct rnic_channel *ch)
{
    struct rnic_end *e = end_of(ch);

    pthread_mutex_lock(&asks.lock);
    e->to_err = true;
    ask(e);
    pthread_mutex_unlock(&asks.lock);
}

static void end_broken(struct rnic_channel *ch, bool all)
{
    struct rnic_end *e = end_of(ch);

    if (e->pair->ch == ch) {
        e->pair->ch = NULL;
    }
    if (e->rv->vm) {
        ops->broken(e->pair, ch, all);
    }
    pthread_mutex_lock(&asks.lock);
    e->broken = true;
    ask(e);
    pthread_mutex_unlock(&asks.lock);
}

static const struct rnic_channel_ops channel_ops = {
    end_take,   end_writable, end_overrun, end_open,   end_opened,
    end_closed, end_grow,     end_spare,   end_to_err, end_broken,
};

/* ---- jobs ---- */

static void fail(struct rnic_job *j, int result)
{
    j->err = !result ? 0 : result != -1 ? ABS(result) : errno ? errno : EIO;
}

static void resolve_address(void *arg)
{
    struct rnic_job *j = arg;

    rnic_control_assert();
    errno = 0;
    fail(j, rnic_verbs->cm_create_id(j->events, &j->id, j->context, RDMA_PS_TCP));
    if (j->err) {
        return;
    }
    fail(j, rnic_verbs->cm_resolve_addr(j->id, (struct sockaddr *)&j->src,
                                        (struct sockaddr *)&j->dst, RESOLVE_MS));
    if (j->err) {
        rnic_verbs->cm_destroy_id(j->id);
        j->id = NULL;
    }
}

/* Before the host QP is ready.  Not all NICs have both. */
static void set_options(struct rnic_job *j)
{
    uint8_t timeout = ACK_TIMEOUT;

    rnic_verbs->cm_set_option(j->id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout,
                              sizeof(timeout));
    if (j->tos) {
        rnic_verbs->cm_set_option(j->id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &j->tos,
                                  sizeof(j->tos));
    }
}

static void resolve_route(void *arg)
{
    struct rnic_job *j = arg;

    rnic_control_assert();
    set_options(j);
    errno = 0;
    fail(j, rnic_verbs->cm_resolve_route(j->id, RESOLVE_MS));
}

static void make_qp(void *arg)
{
    struct rnic_job *j = arg;
    struct ibv_qp_init_attr init = {
        .send_cq = j->cq,
        .recv_cq = j->cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = RNIC_POSTED,
                .max_recv_wr = RNIC_POSTED,
                .max_send_sge = 1,
                .max_recv_sge = 1},
    };

    rnic_control_assert();
    errno = 0;
    if (j->id->verbs != j->ctx) {
        j->err = EXDEV; /* the address has moved to another device */
    } else {
        fail(j, rnic_verbs->cm_create_qp(j->id, j->pd, &init));
    }
}

static void make_block(void *arg)
{
    struct rnic_job *j = arg;

    rnic_control_assert();
    errno = 0;
    j->block = rnic_block_new(j->pd, j->side, j->n, j->size);
    j->err = j->block ? 0 : errno ? errno : ENOMEM;
}

static void free_block(void *arg)
{
    struct rnic_job *j = arg;

    rnic_control_assert();
    rnic_block_free(j->block);
}

static void join(void *arg)
{
    struct rnic_job *j = arg;
    struct rdma_conn_param param = {.private_data = j->private_data,
                                    .private_data_len =
                                        j->n ? sizeof(j->private_data) : 0,
                                    .responder_resources = 1,
                                    .initiator_depth = 1,
                                    .retry_count = RETRIES,
                                    .rnr_retry_count = RNR_RETRIES};

    rnic_control_assert();
    if (!j->n) {
        set_options(j);
    }
    errno = 0;
    fail(j, j->n ? rnic_verbs->cm_connect(j->id, &param)
                 : rnic_verbs->cm_accept(j->id, &param));
}

/* The connection manager leaves the peer every right. */
static void take_rights(void *arg)
{
    struct rnic_job *j = arg;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .qp_access_flags = 0};
    bool iwarp = j->ctx->device->transport_type == IBV_TRANSPORT_IWARP;

    rnic_control_assert();
    errno = 0;
    fail(j, rnic_verbs->modify_qp(j->id->qp, &attr, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS));
    j->err = iwarp ? 0 : j->err; /* some cannot; nothing of ours is for the peer there */
}

/* The peer learns of it, too.  An error: nothing shows that it is in state ERR. */
static void break_qp(void *arg)
{
    struct rnic_job *j = arg;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

    rnic_control_assert();
    errno = 0;
    fail(j, rnic_verbs->modify_qp(j->id->qp, &attr, IBV_QP_STATE));
    rnic_verbs->cm_disconnect(j->id);
}

static void free_id(void *arg)
{
    struct rnic_job *j = arg;

    rnic_control_assert();
    if (j->n) {
        pthread_mutex_lock(j->qps);
        rnic_verbs->cm_destroy_qp(j->id);
        pthread_mutex_unlock(j->qps);
    }
    rnic_verbs->cm_destroy_id(j->id);
}

/* ---- waiting ---- */

static void run(void *opaque);

void rnic_end_kick(struct rnic_end *e)
{
    struct coro *c = e->waiter;

    e->kicked = true;
    if (c) {
        e->waiter = NULL;
        coro_wake_later(c);
    } else if (!e->running) {
        e->running = true;
        rnic_cm_begin(run, e);
    }
}

static gboolean on_time(gpointer opaque)
{
    struct rnic_end *e = opaque;

    e->timer = 0;
    rnic_end_kick(e);
    return G_SOURCE_REMOVE;
}

/* Until it is kicked.  @until: us.  False: that time has come. */
static bool nap(struct rnic_end *e, gint64 until)
{
    gint64 left = until - g_get_monotonic_time();

    if (left <= 0) {
        return false;
    }
    if (!e->kicked) {
        e->timer = g_timeout_add((guint)(left / 1000 + 1), on_time, e);
        e->waiter = coro_self();
        coro_yield();
        g_clear_handle_id(&e->timer, g_source_remove);
    }
    e->kicked = false;
    return true;
}

/* A job; an errno.  @j is to be freed if it is 0. */
static int work(struct rnic_end *e, enum rnic_lane lane, void (*fn)(void *arg),
                struct rnic_job *j)
{
    bool mine;
    int err = rnic_cm_run(e->cm, lane, e->rv->serial, fn, j, &mine);

    if (err && mine) {
        g_free(j);
    }
    return err;
}

static struct rnic_job *job(const struct rnic_end *e)
{
    struct rnic_job *j = g_new0(struct rnic_job, 1);

    j->ctx = e->cm->ctx;
    j->events = e->cm->events;
    j->qps = e->cm->qps;
    j->id = e->id;
    j->tos = e->rv->tos;
    return j;
}

/* The same, for one that finds nothing. */
static int simple(struct rnic_end *e, enum rnic_lane lane, void (*fn)(void *arg),
                  unsigned n)
{
    struct rnic_job *j = job(e);
    int err;

    j->n = n;
    err = work(e, lane, fn, j);
    if (!err) {
        g_free(j);
    }
    return err;
}

/* ---- making ---- */

static bool fails(struct rnic_end *e, const char *why)
{
    if (!e->why) {
        e->why = why;
        e->failed = true;
    }
    return false;
}

/* False: it is to go. */
static bool goes_on(struct rnic_end *e)
{
    if (!e->why && (!e->rv->vm || e->cm->over)) {
        e->why = "its NIC or VM goes";
    }
    if (!e->why && g_get_monotonic_time() >= e->deadline) {
        fails(e, "it takes too long");
    }
    return !e->why;
}

static bool event_came(const struct rnic_end *e, enum rdma_cm_event_type type)
{
    return e->seen & 1u << type;
}

static bool await(struct rnic_end *e, enum rdma_cm_event_type type)
{
    while (goes_on(e) && !event_came(e, type)) {
        nap(e, e->deadline);
    }
    return goes_on(e);
}

void rnic_end_event(struct rnic_end *e, enum rdma_cm_event_type type)
{
    e->seen |= 1u << type;
    switch (type) {
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
    case RDMA_CM_EVENT_CONNECT_ERROR:
    case RDMA_CM_EVENT_UNREACHABLE:
    case RDMA_CM_EVENT_REJECTED:
        rnic_end_go(e, "it cannot be connected", true);
        break;
    case RDMA_CM_EVENT_DISCONNECTED: /* it counts there, if it has failed */
        e->later = e->stage == END_UP && !e->why;
        rnic_end_go(e, "the peer has ended it", true);
        break;
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
        rnic_end_go(e, "its NIC goes", false);
        break;
    default:
        rnic_end_kick(e);
        break;
    }
}

static struct rnic_block *new_block(struct rnic_end *e, enum rnic_side side, unsigned n,
                                    uint32_t size)
{
    struct rnic_job *j = job(e);
    struct rnic_block *b;

    j->pd = e->share->pd;
    j->side = side;
    j->n = n;
    j->size = size;
    if (work(e, RNIC_REGISTER, make_block, j)) {
        return NULL;
    }
    b = j->block;
    g_free(j);
    return b;
}

/* On the lane that has room for whatever is to be taken apart. */
static void drop_block(struct rnic_end *e, struct rnic_block *b)
{
    struct rnic_job *j = job(e);

    j->block = b;
    if (!work(e, RNIC_BREAK, free_block, j)) {
        g_free(j);
    }
}

/* Bytes that count in the VM's share. */
static uint64_t growth_of(unsigned n, uint32_t size)
{
    uint64_t first = (uint64_t)RNIC_FIRST_BUFFERS * RNIC_SIZE_MIN;
    uint64_t all = (uint64_t)n * size;

    return all > first ? all : 0;
}

/* A place in a completion queue, and blocks. */
static bool prepare(struct rnic_end *e)
{
    e->place = rnic_share_place(e->share);
    if (!e->place) {
        return fails(e, "no completion queue can be made");
    }
    e->rx = new_block(e, RNIC_RX, RNIC_FIRST_BUFFERS, RNIC_SIZE_MIN);
    e->tx = e->rx ? new_block(e, RNIC_TX, RNIC_FIRST_BUFFERS, RNIC_SIZE_MIN) : NULL;
    if (!e->tx) {
        return fails(e, "no memory can be registered");
    }
    return goes_on(e);
}

/* The host QP of `id`, and the channel, whose receives are posted. */
static bool make_channel(struct rnic_end *e)
{
    struct rnic_job *j = job(e);
    struct rnic_channel_config config = {.cq = &e->place->cq,
                                         .ops = &channel_ops,
                                         .owner = e,
                                         .name = e->name,
                                         .tx = e->tx,
                                         .rx = e->rx,
                                         .peer_receives = e->receives,
                                         .peer_size = e->size,
                                         .max_size = RNIC_SIZE_MAX};

    j->pd = e->share->pd;
    j->cq = e->place->ibv;
    if (work(e, RNIC_MAKE, make_qp, j)) {
        return fails(e, "no host QP can be made");
    }
    g_free(j);
    e->has_qp = true;
    rnic_vm_take(e->rv);
    if (e->rv->vm) {
        config.log = &e->rv->vm->guest.log;
        config.qp = e->id->qp;
        e->ch = rnic_channel_new(&config);
        if (e->ch) {
            e->rx = e->tx = NULL;
        }
    }
    rnic_vm_release(e->rv);
    return e->ch ? goes_on(e) : fails(e, "no receives can be posted");
}

static bool finish(struct rnic_end *e)
{
    if (!await(e, RDMA_CM_EVENT_ESTABLISHED)) {
        return false;
    }
    if (simple(e, RNIC_MAKE, take_rights, 0)) {
        return fails(e, "rights cannot be taken off");
    }
    rnic_vm_take(e->rv);
    if (e->rv->vm) {
        set_up(e);
    }
    rnic_vm_release(e->rv);
    return goes_on(e);
}

static void put_token(uint8_t data[RNIC_PRIVATE_LEN], const uint64_t token[2])
{
    uint32_t head[2] = {GUINT32_TO_BE(MAGIC), GUINT32_TO_BE(VERSION)};
    uint64_t t[2] = {GUINT64_TO_BE(token[0]), GUINT64_TO_BE(token[1])};

    memcpy(data, head, sizeof(head));
    memcpy(data + sizeof(head), t, sizeof(t));
}

/* InfiniBand and RoCE pad them. */
bool rnic_end_token(const void *data, size_t len, uint64_t token[2])
{
    uint32_t head[2];
    uint64_t t[2];

    if (!data || len < RNIC_PRIVATE_LEN) {
        return false;
    }
    memcpy(head, data, sizeof(head));
    memcpy(t, (const uint8_t *)data + sizeof(head), sizeof(t));
    token[0] = GUINT64_FROM_BE(t[0]);
    token[1] = GUINT64_FROM_BE(t[1]);
    return GUINT32_FROM_BE(head[0]) == MAGIC && GUINT32_FROM_BE(head[1]) == VERSION;
}

static bool connect_it(struct rnic_end *e, unsigned n)
{
    struct rnic_job *j = job(e);

    put_token(j->private_data, e->token);
    j->n = n;
    if (work(e, RNIC_MAKE, join, j)) {
        return fails(e, n ? "it cannot be connected" : "it cannot be accepted");
    }
    g_free(j);
    return goes_on(e);
}

/* The peer's word that it is ready. */
static bool agree(struct rnic_end *e)
{
    struct peer_channel c = {.from_nic = e->cm->address,
                             .to_nic = e->address,
                             .receives = RNIC_FIRST_BUFFERS,
                             .size = RNIC_SIZE_MIN};

    if (!rnic_pair_ask(e->pair, &c)) {
        e->later = true;
        return fails(e, "the link is down");
    }
    e->token[0] = c.token[0];
    e->token[1] = c.token[1];
    while (goes_on(e) && !e->answered) {
        nap(e, e->deadline);
    }
    if (!goes_on(e)) {
        return false;
    }
    if (e->result != PEER_CHANNEL_OK) {
        e->later = e->result == PEER_CHANNEL_NOT_NOW;
        return fails(e, e->later ? "the peer has no room for it" : "the peer refuses it");
    }
    return true;
}

static bool resolve(struct rnic_end *e)
{
    struct rnic_job *j = job(e);

    rnic_cm_sockaddr(&e->cm->address, 0, &j->src);
    rnic_cm_sockaddr(&e->address, e->port, &j->dst);
    j->context = e;
    if (work(e, RNIC_MAKE, resolve_address, j)) {
        return fails(e, "the peer's NIC is not found");
    }
    e->id = j->id;
    g_free(j);
    if (!await(e, RDMA_CM_EVENT_ADDR_RESOLVED)) {
        return false;
    }
    if (simple(e, RNIC_MAKE, resolve_route, 0)) {
        return fails(e, "there is no way to the peer's NIC");
    }
    return await(e, RDMA_CM_EVENT_ROUTE_RESOLVED);
}

struct rnic_end *rnic_end_expected(struct rnic_cm *cm, const uint64_t token[2],
                                   struct rdma_cm_id *id)
{
    struct rnic_end *e;

    LIST_FOREACH(e, &cm->expected, is_expected)
    {
        if (e->token[0] == token[0] && e->token[1] == token[1]) {
            LIST_REMOVE(e, is_expected); /* once */
            e->expected = false;
            e->id = id;
            id->context = e;
            rnic_end_kick(e);
            return e;
        }
    }
    return NULL;
}

/* Wait for the request of the one who connects. */
static bool expect(struct rnic_end *e)
{
    LIST_INSERT_HEAD(&e->cm->expected, e, is_expected);
    e->expected = true;
    rnic_pair_answer(e->pair->peer, e->token, PEER_CHANNEL_OK, e->cm->port);
    while (goes_on(e) && !e->id) {
        nap(e, e->deadline);
    }
    if (e->expected) {
        LIST_REMOVE(e, is_expected);
        e->expected = false;
    }
    return goes_on(e);
}

static bool make(struct rnic_end *e)
{
    if (!goes_on(e)) {
        return false;
    }
    if (e->active) {
        return agree(e) && resolve(e) && prepare(e) && make_channel(e) &&
               connect_it(e, 1) && finish(e);
    }
    if (!prepare(e)) {
        rnic_pair_answer(e->pair->peer, e->token, PEER_CHANNEL_NOT_NOW, 0);
        return false;
    }
    return expect(e) && make_channel(e) && connect_it(e, 0) && finish(e);
}

/* ---- what the channel asks for, on the main thread ---- */

static void free_spare(struct rnic_end *e)
{
    struct rnic_block *b;

    for (;;) {
        pthread_mutex_lock(&asks.lock);
        b = TAILQ_FIRST(&e->spare);
        if (b) {
            TAILQ_REMOVE(&e->spare, b, link);
        }
        pthread_mutex_unlock(&asks.lock);
        if (!b) {
            return;
        }
        e->share->grown -= growth_of(b->n, b->size);
        drop_block(e, b);
    }
}

static void put_to_err(struct rnic_end *e)
{
    if (simple(e, RNIC_BREAK, break_qp, 0)) {
        return;
    }
    rnic_vm_take(e->rv);
    rnic_channel_in_err(e->ch);
    rnic_vm_release(e->rv);
}

/*
 * It has failed; or the peer has ended it, which on iWARP flushes receives before the
 * connection manager has told of it.
 */
static void await_end(struct rnic_end *e)
{
    gint64 until = g_get_monotonic_time() + (gint64)rnic_honest_ms * 1000;

    if (e->cm->ctx->device->transport_type == IBV_TRANSPORT_IWARP) {
        while (!e->why && nap(e, until)) {
        }
    }
}

static void grow(struct rnic_end *e, enum rnic_side side, unsigned n, uint32_t size)
{
    uint64_t bytes = growth_of(n, size);
    struct rnic_block *b = NULL;

    if (!e->why && e->share->grown + bytes <= RNIC_VM_GROWTH) {
        e->share->grown += bytes;
        b = new_block(e, side, n, size);
        e->share->grown -= b ? 0 : bytes;
    }
    rnic_vm_take(e->rv);
    rnic_channel_grow(e->ch, side, b);
    rnic_vm_release(e->rv);
}

static bool is_broken(struct rnic_end *e)
{
    bool broken;

    pthread_mutex_lock(&asks.lock);
    broken = e->broken;
    pthread_mutex_unlock(&asks.lock);
    return broken;
}

static void serve(struct rnic_end *e)
{
    unsigned n[2];
    uint32_t size[2];
    bool to_err;

    pthread_mutex_lock(&asks.lock);
    to_err = e->to_err;
    memcpy(n, e->grow_n, sizeof(n));
    memcpy(size, e->grow_size, sizeof(size));
    e->to_err = false;
    memset(e->grow_n, 0, sizeof(n));
    pthread_mutex_unlock(&asks.lock);
    if (to_err) {
        await_end(e);
        fails(e, "it has failed");
        rnic_pair_end_goes(e);
        put_to_err(e);
    }
    for (unsigned side = 0; side < 2; side++) {
        if (n[side]) {
            grow(e, side, n[side], size[side]);
        }
    }
    free_spare(e);
}

static gboolean on_asks(gint fd, GIOCondition cond, gpointer unused)
{
    struct rnic_end *e;
    uint64_t n;

    if (read(fd, &n, sizeof(n)) < 0) {
        return G_SOURCE_CONTINUE;
    }
    pthread_mutex_lock(&asks.lock);
    while ((e = TAILQ_FIRST(&asks.ends))) {
        TAILQ_REMOVE(&asks.ends, e, asking);
        e->asks = false;
        rnic_end_kick(e); /* which only notes it */
    }
    pthread_mutex_unlock(&asks.lock);
    return G_SOURCE_CONTINUE;
}

/* ---- its end ---- */

/* The VM has gone: what it has posted goes on, if the host QP does.  Nobody polls. */
static void linger(struct rnic_end *e)
{
    gint64 until = g_get_monotonic_time() + (gint64)rnic_linger_ms * 1000;

    while (rnic_channel_awaits(e->ch) && !event_came(e, RDMA_CM_EVENT_DISCONNECTED) &&
           !e->cm->over && g_get_monotonic_time() < until) {
        nap(e, MIN(until, g_get_monotonic_time() + 10000));
    }
}

/* Until the channel is broken, and its flows are closed. */
static void break_channel(struct rnic_end *e)
{
    gint64 until = g_get_monotonic_time() + END_WAIT_MS * 1000;

    if (!e->rv->vm) {
        linger(e);
    }

    rnic_vm_take(e->rv);
    if (e->rv->vm) {
        rnic_channel_break(e->ch, e->why);
    }
    rnic_vm_release(e->rv); /* which has the worker look */
    while (e->rv->vm && !is_broken(e) && !e->rv->vm->pauses && !e->cm->lost) {
        serve(e);
        if (!nap(e, MIN(until, g_get_monotonic_time() + 10000)) &&
            g_get_monotonic_time() >= until) {
            break;
        }
    }
    serve(e);
    rnic_vm_take(e->rv);
    if (e->rv->vm) {
        rnic_channel_drop(e->ch);
    }
    rnic_vm_release(e->rv);
}

static void forget_channel(struct rnic_end *e)
{
    rnic_vm_take(e->rv);
    if (e->pair->ch == e->ch) {
        e->pair->ch = NULL;
    }
    rnic_channel_free(e->ch);
    rnic_vm_release(e->rv);
    e->ch = NULL;
}

static void end_free(struct rnic_end *e)
{
    struct rnic_cm *cm = e->cm;
    struct rnic_vm *rv = e->rv;

    pthread_mutex_lock(&asks.lock);
    if (e->asks) {
        TAILQ_REMOVE(&asks.ends, e, asking);
    }
    pthread_mutex_unlock(&asks.lock);
    g_clear_handle_id(&e->timer, g_source_remove);
    if (e->place) {
        e->place->used--;
    }
    LIST_REMOVE(e, of_cm);
    cm->n_ends--;
    e->share->n_ends--;
    rnic_share_settle(e->share);
    rnic_pair_end_gone(e);
    g_free(e);
    rnic_vm_unref(rv);
    rnic_cm_kick(cm);
}

static void take_apart(struct rnic_end *e)
{
    struct rnic_block *first[] = {e->rx, e->tx};

    if (e->ch) {
        break_channel(e);
    }
    if (e->id) {
        e->id->context = NULL; /* if it cannot be destroyed its events are nobody's */
        simple(e, RNIC_BREAK, free_id, e->has_qp);
    }
    if (e->ch) {
        forget_channel(e);
    }
    free_spare(e);
    for (unsigned i = 0; i < G_N_ELEMENTS(first); i++) {
        if (first[i]) {
            drop_block(e, first[i]);
        }
    }
    end_free(e);
}

/* ---- all of it ---- */

static void run(void *opaque)
{
    struct rnic_end *e = opaque;

    do {
        e->kicked = false;
        if (e->stage == END_MAKING && make(e)) {
            e->stage = END_UP;
            rnic_pair_end_up(e);
        }
        if (e->stage == END_UP && !e->why) {
            serve(e);
        }
        if (e->why) {
            rnic_pair_end_goes(e);
            take_apart(e);
            return;
        }
    } while (e->kicked);
    e->running = false;
}

void rnic_end_go(struct rnic_end *e, const char *why, bool failed)
{
    if (!e->why) {
        e->why = why;
        e->failed = failed;
        rnic_end_kick(e);
    }
}

struct rnic_end *rnic_end_new(struct rnic_pair *p, struct rnic_cm *cm, bool active)
{
    static uint64_t orders;
    struct rnic_end *e = g_new0(struct rnic_end, 1);

    e->pair = p;
    e->rv = p->rv;
    e->rv->refs++;
    e->cm = cm;
    e->active = active;
    e->order = ++orders;
    e->share = rnic_share_get(e->rv, cm);
    e->share->n_ends++;
    TAILQ_INIT(&e->spare);
    LIST_INSERT_HEAD(&cm->ends, e, of_cm);
    cm->n_ends++;
    e->deadline = g_get_monotonic_time() + (gint64)rnic_token_ms * 1000;
    g_snprintf(e->name, sizeof(e->name), "by %s with %s", cm->name,
               p->peer ? peer_name(p->peer) : "this host");
    return e;
}

void rnic_ends_set_ops(const struct rnic_pair_ops *to)
{
    ops = to;
}

bool rnic_ends_start(void)
{
    asks.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (asks.fd < 0) {
        return false;
    }
    asks.watch = fdwatch_add(asks.fd, G_IO_IN, on_asks, NULL);
    return true;
}

void rnic_ends_stop(void)
{
    if (asks.fd >= 0) {
        fdwatch_remove(asks.watch);
        close(asks.fd);
        asks.fd = -1;
    }
}
