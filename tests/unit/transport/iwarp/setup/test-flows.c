/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * iwarp/flow.c and setup/handshake.c: streams over flows of channels, with peers that say
 * what they like in OPEN and OPENED, and when.
 *
 * The channel is the test: it keeps what it is asked, and says in a turn of the VM what a
 * case wants said.  Both ends are queue pairs of one VM, which is connected with itself.
 */
#include <glib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "testdev.h"
#include "transport/iwarp/iwarp.h"
#include "transport/iwarp/setup/bind.h"
#include "transport/iwarp/wire/control_stags.h"
#include "transport/iwarp/wire/mpa.h"
#include "transport/transports.h"

#define PATIENCE_S 30
#define ROOM       4080u
#define BYTES      1024u

struct rnic_vm {
    struct vm *vm;
    int fd;
};

struct rnic_pair {
    struct rnic_vm *rv;
    uint64_t owner[2];
    struct rnic_channel *ch;
};

struct message {
    size_t len;
    uint8_t bytes[BYTES];
};

/* ---- the channel --------------------------------------------------------------- */

static const struct rnic_pair_ops *ops;
static struct rnic_vm rnic;
/* The end that connects, the other one, and one with another VM. */
static struct rnic_pair active, passive, strange;
static enum rnic_pair_state state;
static uint8_t channel_memory, other_channel_memory;
#define CHANNEL ((struct rnic_channel *)(void *)&channel_memory)
#define OTHER   ((struct rnic_channel *)(void *)&other_channel_memory)

/* What was done, under the VM's token; what is looked at when all is still. */
static struct rnic_flow *begun, *taken;
static struct message request, reply, sent; /* the last ones */
static unsigned n_begun, n_accepted, n_refused, n_closed;
static unsigned n_wanted;
static unsigned flushed; /* n_closed when it was told last that a turn ends */
static bool is_full;     /* nothing can be begun */
static size_t room;      /* what is taken at a time */
static bool silent;      /* nothing comes by it */
static bool held_up;     /* others go first */
static bool refused;     /* likewise: nothing is taken, but of a VM that goes */
static _Atomic uint64_t due;
static _Atomic int64_t ahead; /* ns, of the clock */

int __real_clock_gettime(clockid_t id, struct timespec *ts);
int __wrap_clock_gettime(clockid_t id, struct timespec *ts);
bool __wrap_rnic_channel_is_silent(const struct rnic_channel *ch, uint64_t now);
void __wrap_rnic_pair_set_ops(const struct rnic_pair_ops *o);
struct rnic_vm *__wrap_rnic_vm_new(struct vm *vm);
void __wrap_rnic_vm_free(struct rnic_vm *rv);
struct vm *__wrap_rnic_vm_of(const struct rnic_vm *rv);
int __wrap_rnic_vm_fd(const struct rnic_vm *rv);
bool __wrap_rnic_vm_is_used(const struct rnic_vm *rv);
bool __wrap_rnic_vm_peek(struct rnic_vm *rv);
bool __wrap_rnic_vm_look(struct rnic_vm *rv, uint64_t now);
void __wrap_rnic_vm_flush(struct rnic_vm *rv);
void __wrap_rnic_vm_last(struct rnic_vm *rv);
uint64_t __wrap_rnic_vm_due(const struct rnic_vm *rv);
bool __wrap_rnic_vm_arm(struct rnic_vm *rv, uint64_t now);
void __wrap_rnic_vm_woken(struct rnic_vm *rv);
struct rnic_pair *__wrap_rnic_pair_want(struct rnic_vm *rv, struct peer *peer,
                                        const uint64_t owner[2], const char *network);
void __wrap_rnic_pair_hold(struct rnic_pair *p);
void __wrap_rnic_pair_let_go(struct rnic_pair *p);
enum rnic_pair_state __wrap_rnic_pair_state(const struct rnic_pair *p);
struct rnic_vm *__wrap_rnic_pair_vm(const struct rnic_pair *p);
struct peer *__wrap_rnic_pair_peer(const struct rnic_pair *p);
const uint64_t *__wrap_rnic_pair_owner(const struct rnic_pair *p);
struct rnic_channel *__wrap_rnic_pair_channel(const struct rnic_pair *p);
const char *__wrap_rnic_pair_nic(const struct rnic_pair *p);
uint32_t __wrap_rnic_channel_room(const struct rnic_channel *ch);
bool __wrap_rnic_flow_begin(struct rnic_channel *ch, struct rnic_flow *f,
                            const uint8_t *bytes, size_t len);
bool __wrap_rnic_flow_accept(struct rnic_channel *ch, struct rnic_flow *f,
                             uint32_t peer_index, const uint8_t *bytes, size_t len);
void __wrap_rnic_flow_refuse(struct rnic_channel *ch, uint32_t peer_index,
                             const uint8_t *bytes, size_t len);
void __wrap_rnic_flow_close(struct rnic_flow *f);
ssize_t __wrap_rnic_flow_send(struct rnic_flow *f, const uint8_t *bytes, size_t len);
void __wrap_rnic_flow_want(struct rnic_flow *f, bool wants);
void __wrap_rnic_flow_go_on(struct rnic_flow *f);
bool __wrap_rnic_flow_is_held_up(const struct rnic_flow *f);

int __wrap_clock_gettime(clockid_t id, struct timespec *ts)
{
    int ret = __real_clock_gettime(id, ts);
    int64_t ns = ts->tv_nsec + atomic_load(&ahead);

    if (id == CLOCK_MONOTONIC) {
        ts->tv_sec += ns / 1000000000;
        ts->tv_nsec = ns % 1000000000;
    }
    return ret;
}

bool __wrap_rnic_channel_is_silent(const struct rnic_channel *ch, uint64_t now)
{
    g_assert_true(ch == CHANNEL);
    return silent;
}

bool __wrap_rnic_flow_is_held_up(const struct rnic_flow *f)
{
    return held_up;
}

void __wrap_rnic_pair_set_ops(const struct rnic_pair_ops *o)
{
    ops = o;
}

struct rnic_vm *__wrap_rnic_vm_new(struct vm *vm)
{
    rnic = (struct rnic_vm){vm, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    return &rnic;
}

void __wrap_rnic_vm_free(struct rnic_vm *rv)
{
    close(rv->fd);
}

struct vm *__wrap_rnic_vm_of(const struct rnic_vm *rv)
{
    return rv->vm;
}

int __wrap_rnic_vm_fd(const struct rnic_vm *rv)
{
    return rv->fd;
}

bool __wrap_rnic_vm_is_used(const struct rnic_vm *rv)
{
    return true;
}

bool __wrap_rnic_vm_peek(struct rnic_vm *rv)
{
    return false;
}

void __wrap_rnic_vm_flush(struct rnic_vm *rv)
{
    flushed = n_closed;
}

void __wrap_rnic_vm_last(struct rnic_vm *rv)
{
    refused = false;
}

uint64_t __wrap_rnic_vm_due(const struct rnic_vm *rv)
{
    return atomic_load(&due);
}

bool __wrap_rnic_vm_arm(struct rnic_vm *rv, uint64_t now)
{
    return true;
}

void __wrap_rnic_vm_woken(struct rnic_vm *rv)
{
}

struct rnic_pair *__wrap_rnic_pair_want(struct rnic_vm *rv, struct peer *peer,
                                        const uint64_t owner[2], const char *network)
{
    g_assert_true(rv == &rnic && !peer);
    n_wanted++;
    memcpy(active.owner, owner, sizeof(active.owner));
    memcpy(passive.owner, owner, sizeof(passive.owner));
    return &active;
}

/* Under the token, and by the main thread. */
static _Atomic int n_held;

void __wrap_rnic_pair_hold(struct rnic_pair *p)
{
    atomic_fetch_add(&n_held, 1);
}

void __wrap_rnic_pair_let_go(struct rnic_pair *p)
{
    g_assert_cmpint(atomic_fetch_sub(&n_held, 1), >, 0);
}

enum rnic_pair_state __wrap_rnic_pair_state(const struct rnic_pair *p)
{
    return state;
}

struct rnic_vm *__wrap_rnic_pair_vm(const struct rnic_pair *p)
{
    return p->rv;
}

struct peer *__wrap_rnic_pair_peer(const struct rnic_pair *p)
{
    return NULL;
}

const uint64_t *__wrap_rnic_pair_owner(const struct rnic_pair *p)
{
    return p->owner;
}

struct rnic_channel *__wrap_rnic_pair_channel(const struct rnic_pair *p)
{
    return p->ch;
}

const char *__wrap_rnic_pair_nic(const struct rnic_pair *p)
{
    return "nic0";
}

uint32_t __wrap_rnic_channel_room(const struct rnic_channel *ch)
{
    return ROOM;
}

static void keep(struct message *m, const uint8_t *bytes, size_t len)
{
    g_assert_cmpuint(len, <=, BYTES);
    m->len = len;
    if (len) {
        memcpy(m->bytes, bytes, len);
    }
}

bool __wrap_rnic_flow_begin(struct rnic_channel *ch, struct rnic_flow *f,
                            const uint8_t *bytes, size_t len)
{
    if (is_full) {
        return false;
    }
    *f = (struct rnic_flow){.channel = ch, .index = ++n_begun};
    begun = f;
    keep(&request, bytes, len);
    return true;
}

bool __wrap_rnic_flow_accept(struct rnic_channel *ch, struct rnic_flow *f,
                             uint32_t peer_index, const uint8_t *bytes, size_t len)
{
    g_assert_cmpuint(peer_index, ==, 7);
    *f = (struct rnic_flow){.channel = ch, .index = 1, .peer_index = 7};
    taken = f;
    keep(&reply, bytes, len);
    n_accepted++;
    return true;
}

void __wrap_rnic_flow_refuse(struct rnic_channel *ch, uint32_t peer_index,
                             const uint8_t *bytes, size_t len)
{
    g_assert_cmpuint(peer_index, ==, 7);
    n_refused++;
}

void __wrap_rnic_flow_close(struct rnic_flow *f)
{
    n_closed++;
}

ssize_t __wrap_rnic_flow_send(struct rnic_flow *f, const uint8_t *bytes, size_t len)
{
    if (f != begun) {
        return (ssize_t)len;
    }
    len = refused ? 0 : MIN(len, room);
    g_assert_cmpuint(len, <=, BYTES - sent.len);
    memcpy(sent.bytes + sent.len, bytes, len);
    sent.len += len;
    return (ssize_t)len;
}

void __wrap_rnic_flow_want(struct rnic_flow *f, bool wants)
{
    f->wants = wants;
}

void __wrap_rnic_flow_go_on(struct rnic_flow *f)
{
}

/* ---- what it says, in a turn ----------------------------------------------------- */

static struct say {
    enum { NOTHING, OPEN, OPENED, CLOSED, TAKE, OVERRUN, WRITABLE, BROKEN } what;
    struct rnic_pair *pair;
    struct rnic_flow *flow;
    bool accepted;
    struct message m;
    bool result;
} say;

static _Atomic bool is_to_be_said;

bool __wrap_rnic_vm_look(struct rnic_vm *rv, uint64_t now)
{
    atomic_store(&due, UINT64_MAX);
    if (!atomic_load(&is_to_be_said)) {
        return false;
    }
    switch (say.what) {
    case OPEN:
        say.result = ops->open(say.pair, 7, say.m.bytes, say.m.len);
        break;
    case OPENED:
        say.flow->peer_index = say.accepted ? 9 : 0;
        say.result = ops->opened(say.flow, say.accepted, say.m.bytes, say.m.len);
        break;
    case CLOSED:
        ops->closed(say.flow);
        break;
    case TAKE:
        say.result = ops->take(say.flow, say.m.bytes, say.m.len);
        break;
    case OVERRUN:
        ops->overrun(say.flow);
        break;
    case WRITABLE:
        g_assert_true(say.flow->wants);
        say.flow->wants = false; /* it tells once */
        ops->writable(say.flow);
        break;
    case BROKEN:
        active.ch = passive.ch = NULL;
        ops->broken(say.pair, CHANNEL, true);
        break;
    default:
        break;
    }
    atomic_store(&is_to_be_said, false);
    return false;
}

/* A turn of the loop, until that is so. */
#define REACH(what)                                                               \
    do {                                                                          \
        gint64 until_ = g_get_monotonic_time() + PATIENCE_S * G_TIME_SPAN_SECOND; \
        while (!(what)) {                                                         \
            g_main_context_iteration(NULL, FALSE);                                \
            if (g_get_monotonic_time() > until_) {                                \
                g_error("never: %s", #what);                                      \
            }                                                                     \
        }                                                                         \
    } while (0)

static bool said(void)
{
    struct vm_net *net = atomic_load(&rnic.vm->dp.net);

    atomic_store(&is_to_be_said, true);
    atomic_store(&net->ready, true);
    datapath_wake(rnic.vm);
    REACH(!atomic_load(&is_to_be_said));
    return say.result;
}

static bool say_open(struct rnic_pair *p, const struct message *m)
{
    say = (struct say){.what = OPEN, .pair = p, .m = *m};
    return said();
}

static bool say_opened(struct rnic_flow *f, bool accepted, const struct message *m)
{
    say = (struct say){.what = OPENED, .flow = f, .accepted = accepted, .m = *m};
    return said();
}

static void say_bytes(struct rnic_flow *f, const struct message *m)
{
    say = (struct say){.what = TAKE, .flow = f, .m = *m};
    said();
}

static void say_closed(struct rnic_flow *f)
{
    say = (struct say){.what = CLOSED, .flow = f};
    said();
}

static void say_writable(struct rnic_flow *f)
{
    say = (struct say){.what = WRITABLE, .flow = f};
    said();
}

static void say_overrun(struct rnic_flow *f)
{
    say = (struct say){.what = OVERRUN, .flow = f};
    said();
}

/* Time, in which the VM takes its turns. */
static void pass(unsigned ms)
{
    for (unsigned n = 0; n < ms; n += 50) {
        atomic_fetch_add(&ahead, 50000000);
        say = (struct say){.what = NOTHING};
        said();
    }
}

static void say_broken(void)
{
    say = (struct say){.what = BROKEN, .pair = &active};
    said();
}

/* A number that is changed under the token. */
static unsigned number(const unsigned *n)
{
    unsigned is;

    vm_token_take(rnic.vm);
    is = *n;
    vm_token_release(rnic.vm);
    return is;
}

/* ---- queue pairs ------------------------------------------------------------------ */

static struct testdev *td;
static struct pvrdma_gid gid = {.raw = {[10] = 0xff, [11] = 0xff, 10, 0, 0, 5}};
static uint32_t pd, cq;
static uint64_t rings[16]; /* of queue pairs, by handle */
static uint8_t retry_cnt, timeout;
static struct daemon_config *cfg;

static void command(uint32_t op, void *req, size_t size)
{
    testdev_do(td, op, req, size);
    testdev_irqs(td, PVRDMA_VEC_CMD);
}

static void begin(enum rnic_pair_state s)
{
    struct pvrdma_cmd_create_bind bind = {
        .mtu = 1024, .vlan = 0xfff, .gid_type = PVRDMA_GID_TYPE_ROCE_V2, .gid = gid};
    GError *err = NULL;

    log_set_level(LOG_LVL_ERROR);
    testdev_start();
    cfg = config_new();
    cfg->local_path = CONFIG_PATH_RNIC;
    cfg->nics = g_list_append(NULL, config_nic_new("nic", &err));
    tcp_open(true, &err);
    g_assert_no_error(err);
    tcp_use(cfg);
    state = s;
    active = passive = (struct rnic_pair){.rv = &rnic, .ch = CHANNEL};
    strange = (struct rnic_pair){.rv = &rnic, .ch = OTHER, .owner = {1, 2}};
    n_begun = n_accepted = n_refused = n_closed = 0;
    begun = taken = NULL;
    is_full = false;
    room = BYTES;
    silent = held_up = refused = false;
    atomic_store(&due, UINT64_MAX);
    retry_cnt = 1;
    timeout = 0;
    n_wanted = 0;
    sent.len = 0;
    td = testdev_new("vm");
    testdev_up(td);
    command(PVRDMA_CMD_CREATE_BIND, &bind, sizeof(bind));
    pd = testdev_pd(td, 0);
    cq = testdev_cq(td, 0, 16);
}

static void end(void)
{
    testdev_free(td);
    g_assert_cmpint(n_held, ==, 0);
    tcp_close();
    config_free(cfg);
    testdev_stop();
    transport_local = &transport_copy;
}

static struct qp *make(void)
{
    uint64_t first;
    struct pvrdma_cmd_create_qp req = {.pdir_dma = testdev_new_pdir(td, 7, &first),
                                       .pd_handle = pd,
                                       .send_cq_handle = cq,
                                       .recv_cq_handle = cq,
                                       .max_send_wr = 64,
                                       .max_recv_wr = 64,
                                       .max_send_sge = 4,
                                       .max_recv_sge = 4,
                                       .total_chunks = 7,
                                       .send_chunks = 4,
                                       .qp_type = PVRDMA_QPT_RC,
                                       .access_flags = PVRDMA_ACCESS_LOCAL_WRITE};
    const union pvrdma_cmd_resp *r;

    command(PVRDMA_CMD_CREATE_QP, &req, sizeof(req));
    r = testdev_ptr(td, td->resp);
    g_assert_cmpuint(r->create_qp.qp_handle, <, G_N_ELEMENTS(rings));
    rings[r->create_qp.qp_handle] = first;
    return id_table_get(&td->vm.objects.qp, r->create_qp.qp_handle);
}

static void modify(struct qp *qp, uint32_t mask, const struct pvrdma_qp_attr *a)
{
    struct pvrdma_cmd_modify_qp req = {
        .qp_handle = qp->handle, .attr_mask = PVRDMA_QP_STATE | mask, .attrs = *a};

    command(PVRDMA_CMD_MODIFY_QP, &req, sizeof(req));
}

static struct conn *connect_qp(struct qp *qp, uint32_t qpn)
{
    struct pvrdma_qp_attr a = {.qp_state = PVRDMA_QPS_INIT,
                               .port_num = 1,
                               .qp_access_flags = 0xf,
                               .path_mtu = PVRDMA_MTU_1024,
                               .dest_qp_num = qpn,
                               .max_rd_atomic = 4,
                               .max_dest_rd_atomic = 4,
                               .min_rnr_timer = 1,
                               .retry_cnt = retry_cnt,
                               .timeout = timeout,
                               .rnr_retry = 1,
                               .ah_attr = {.ah_flags = 1, .port_num = 1, .dgid = gid}};

    modify(qp, PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_PORT | PVRDMA_QP_ACCESS_FLAGS, &a);
    a.qp_state = PVRDMA_QPS_RTR;
    modify(qp,
           PVRDMA_QP_AV | PVRDMA_QP_PATH_MTU | PVRDMA_QP_DEST_QPN | PVRDMA_QP_RQ_PSN |
               PVRDMA_QP_MAX_DEST_RD_ATOMIC | PVRDMA_QP_MIN_RNR_TIMER,
           &a);
    a.qp_state = PVRDMA_QPS_RTS;
    modify(qp,
           PVRDMA_QP_SQ_PSN | PVRDMA_QP_TIMEOUT | PVRDMA_QP_RETRY_CNT |
               PVRDMA_QP_RNR_RETRY | PVRDMA_QP_MAX_RD_ATOMIC,
           &a);
    g_assert_nonnull(qp->req.conn);
    return qp->req.conn;
}

/* A message of no bytes, which the peer's other function takes. */
static void post_send(const struct conn *c)
{
    uint64_t first = rings[c->qp->handle];
    struct pvrdma_ring_state *st = testdev_ptr(td, first);
    struct pvrdma_sq_wqe_hdr h = {.wr_id = 1, .opcode = PVRDMA_WR_SEND};

    memcpy(testdev_ptr(td, first + 4096), &h, sizeof(h));
    __atomic_store_n(&st->tx.prod_tail, 1, __ATOMIC_RELEASE);
    datapath_ring(&td->vm, c->qp->handle);
}

static void post_recv(const struct conn *c)
{
    uint64_t first = rings[c->qp->handle];
    struct pvrdma_ring_state *st = testdev_ptr(td, first);
    struct pvrdma_rq_wqe_hdr h = {.wr_id = 2};

    memcpy(testdev_ptr(td, first + 5 * 4096), &h, sizeof(h));
    __atomic_store_n(&st->rx.prod_tail, 1, __ATOMIC_RELEASE);
    doorbell_set(&td->vm.guest.db.own->recv, c->qp->handle);
    datapath_wake(&td->vm);
}

static uint32_t state_of(const struct conn *c)
{
    return atomic_load(&c->qp->state);
}

/* Is the message on its way; has it arrived? */
static bool is_sent(const struct conn *c)
{
    bool is;

    vm_token_take(c->vm);
    is = c->qp->req.in_flight;
    vm_token_return(c->vm);
    return is;
}

static bool has_arrived(const struct conn *c)
{
    bool has;

    vm_token_take(c->vm);
    has = c->qp->req.seq - c->qp->req.in_flight == 1 && state_of(c) == PVRDMA_QPS_RTS;
    vm_token_return(c->vm);
    return has;
}

/* Two that are each other's. */
static void make_pair(struct conn **initiator, struct conn **responder)
{
    struct qp *a = make(), *b = make();
    struct conn *x = connect_qp(a, b->qpn), *y = connect_qp(b, a->qpn);

    *initiator = x->initiator ? x : y;
    *responder = x->initiator ? y : x;
}

static bool is_by_flow(const struct conn *c)
{
    bool is;

    vm_token_take(c->vm);
    is = c->s && flow_is_carrier(c->s) &&
         (&c->s->flow->end == begun || &c->s->flow->end == taken);
    vm_token_release(c->vm);
    return is;
}

static bool is_closing(const struct conn *c)
{
    bool is;

    vm_token_take(c->vm);
    is = c->s && stream_is_closing(c->s);
    vm_token_release(c->vm);
    return is;
}

static void reset_qp(struct conn *c)
{
    struct pvrdma_qp_attr a = {.qp_state = PVRDMA_QPS_RESET};

    modify(c->qp, 0, &a);
}

/* ---- all is well ------------------------------------------------------------------ */

static void go_up(struct conn *i, struct conn *r)
{
    unsigned n = number(&n_accepted);

    REACH(i->setup && number(&n_begun) && begun);
    sent.len = 0;
    g_assert_true(say_open(&passive, &request));
    REACH(number(&n_accepted) == n + 1);
    g_assert_true(say_opened(begun, true, &reply));
    REACH(i->phase == CONN_UP && r->phase == CONN_UP);
    say_bytes(taken, &sent);
    g_assert_cmpint(r->s->phase, ==, STREAM_OPEN);
}

static void test_up(void)
{
    struct transport_path path;
    struct conn *i, *r;

    begin(RNIC_PAIR_UP);
    make_pair(&i, &r);
    go_up(i, r);
    g_assert_true(is_by_flow(i) && is_by_flow(r));
    g_assert_false(i->s->framing.crc || i->s->framing.markers || r->s->framing.crc);
    g_assert_cmpuint(fpdu_size(i->s->mulpdu), <=, ROOM);
    transport_tcp.describe(i->qp, &path);
    g_assert_cmpstr(path.name, ==, "rnic");
    g_assert_cmpstr(path.nic, ==, "nic0");
    g_assert_cmpstr(path.connection, ==, "up");
    /* What makes no sense costs the stream. */
    memset(say.m.bytes, 0xff, sizeof(say.m.bytes));
    say.m.len = 64;
    say_bytes(taken, &(struct message){.len = 64, .bytes = {0, 32, 0xff, 0xff}});
    REACH(number(&n_closed) >= 1);
    end();
}

/* What the channel does not take waits until it does. */
static void test_backlog(void)
{
    struct conn *i, *r;

    begin(RNIC_PAIR_UP);
    make_pair(&i, &r);
    REACH(i->setup && number(&n_begun));
    room = 0;
    g_assert_true(say_open(&passive, &request));
    REACH(number(&n_accepted) == 1);
    g_assert_true(say_opened(begun, true, &reply));
    REACH(i->phase == CONN_UP);
    g_assert_cmpuint(sent.len, ==, 0);
    room = 8;
    while (begun->wants) {
        say_writable(begun);
    }
    g_assert_cmpuint(sent.len, >, room);
    g_assert_null(i->s->backlog);
    say_bytes(taken, &sent);
    g_assert_cmpint(r->s->phase, ==, STREAM_OPEN);
    end();
}

static bool has_stream(const struct conn *c)
{
    bool has;

    vm_token_take(c->vm);
    has = c->s;
    vm_token_return(c->vm);
    return has;
}

/* One end closes; and a channel breaks. */
static void test_ends(void)
{
    struct conn *i, *r;

    begin(RNIC_PAIR_UP);
    make_pair(&i, &r);
    go_up(i, r);
    say_closed(begun);
    REACH(number(&n_closed) == 1);
    setup_ask(i);
    REACH(i->setup && number(&n_begun) == 2);
    go_up(i, r);
    say_broken();
    g_assert_cmpuint(number(&n_closed), ==, 4); /* both, and the responder's former one */
    REACH(!has_stream(i) && !has_stream(r));
    /* There is nothing to send. */
    number(&n_closed);
    g_assert_false(i->asks || i->setup || i->asked.until);
    end();
}

static enum stream_phase stream_phase(const struct conn *c)
{
    enum stream_phase phase;

    vm_token_take(c->vm);
    phase = c->s->phase;
    vm_token_return(c->vm);
    return phase;
}

/* A frame comes in pieces; and too much came while a message waited. */
static void test_pieces(void)
{
    struct message piece = {0};
    struct conn *i, *r;

    begin(RNIC_PAIR_UP);
    make_pair(&i, &r);
    REACH(i->setup && number(&n_begun) && begun);
    g_assert_true(say_open(&passive, &request));
    REACH(number(&n_accepted) == 1);
    g_assert_true(say_opened(begun, true, &reply));
    REACH(i->phase == CONN_UP && r->phase == CONN_UP);
    for (size_t at = 0; at < sent.len; at++) {
        g_assert_cmpint(stream_phase(r), ==, STREAM_STARTING);
        piece.len = 1;
        piece.bytes[0] = sent.bytes[at];
        say_bytes(taken, &piece);
    }
    g_assert_cmpint(stream_phase(r), ==, STREAM_OPEN);
    say_overrun(taken);
    REACH(!has_stream(r));
    end();
}

/* The main thread has something for a turn's end. */
static void test_due(void)
{
    struct conn *i, *r;

    begin(RNIC_PAIR_UP);
    make_pair(&i, &r);
    go_up(i, r);
    vm_token_take(rnic.vm);
    atomic_store(&due, 0);
    vm_token_release(rnic.vm);
    REACH(atomic_load(&due) == UINT64_MAX);
    end();
}

/* ---- no try is lost ------------------------------------------------------------------
 */

/* A message that fails if one is. */
static void begin_strict(enum rnic_pair_state s, struct conn **i, struct conn **r)
{
    begin(s);
    retry_cnt = 0;
    timeout = 14;
    make_pair(i, r);
}

static void arrives_by_tcp(const struct conn *i, const struct conn *r)
{
    post_recv(r);
    REACH(has_arrived(i));
    g_assert_cmpuint(i->qp->seldom.retries, ==, 0);
    g_assert_false(is_by_flow(i));
}

static void test_silent(void)
{
    struct conn *i, *r;

    /* Others are heard: it is the peer's queue pair that does not answer. */
    begin_strict(RNIC_PAIR_UP, &i, &r);
    go_up(i, r);
    post_send(i);
    REACH(is_sent(i));
    pass(1000);
    REACH(state_of(i) == PVRDMA_QPS_ERR);
    end();

    /* Others go first: the peer cannot answer what has not gone. */
    begin_strict(RNIC_PAIR_UP, &i, &r);
    go_up(i, r);
    held_up = true;
    post_send(i);
    REACH(is_sent(i));
    pass(2000);
    g_assert_true(is_by_flow(i) && is_sent(i));
    held_up = false;
    pass(1000);
    REACH(state_of(i) == PVRDMA_QPS_ERR);
    end();

    begin_strict(RNIC_PAIR_UP, &i, &r);
    go_up(i, r);
    silent = true;
    post_send(i);
    REACH(is_sent(i));
    pass(2000);
    g_assert_true(is_by_flow(i) && is_sent(i));
    state = RNIC_PAIR_NONE;
    say_broken();
    arrives_by_tcp(i, r);
    end();
}

/* While it is asked; and while nobody answers, or it is being made. */
static void test_asked(void)
{
    struct conn *i, *r;

    begin_strict(RNIC_PAIR_UP, &i, &r);
    REACH(i->setup && number(&n_begun));
    post_send(i);
    REACH(conn_is_trying(i));
    pass(1000);
    state = RNIC_PAIR_NONE;
    say_broken();
    arrives_by_tcp(i, r);
    end();

    begin_strict(RNIC_PAIR_MAKING, &i, &r);
    REACH(i->joins);
    post_send(i);
    REACH(conn_is_trying(i));
    pass(1000);
    state = RNIC_PAIR_NONE;
    ops->changed(&active);
    arrives_by_tcp(i, r);
    end();
}

/* The peer, or the channel, takes none: what was agreed on holds for TCP as well. */
static void test_not_taken(void)
{
    struct conn *i, *r;

    begin_strict(RNIC_PAIR_UP, &i, &r);
    REACH(i->setup && number(&n_begun));
    post_send(i);
    REACH(conn_is_trying(i));
    g_assert_true(say_opened(begun, false, &(struct message){0}));
    arrives_by_tcp(i, r);
    g_assert_cmpuint(n_wanted, ==, 1);
    end();

    for (unsigned full = 0; full < 2; full++) {
        begin(RNIC_PAIR_UP);
        is_full = full;
        active.ch =
            full ? CHANNEL : NULL; /* it breaks, and who asks for pairs does not know */
        make_pair(&i, &r);
        post_send(i);
        arrives_by_tcp(i, r);
        g_assert_cmpuint(n_wanted, ==, 1);
        end();
    }
}

/*
 * A queue pair goes while the channel has no room: what it has said, its last ACK too,
 * goes out when there is some.
 */
static void leave(struct conn *i)
{
    unsigned closed = number(&n_closed);

    vm_token_take(rnic.vm);
    room = sent.len = 0;
    i->s->ack = 5;
    i->s->ack_due = true;
    vm_token_return(rnic.vm);
    reset_qp(i);
    g_assert_cmpuint(number(&n_closed), ==, closed);
    g_assert_true(begun->wants);
}

static void make_up(struct conn **i, struct conn **r)
{
    begun = NULL;
    room = BYTES;
    make_pair(i, r);
    go_up(*i, *r);
}

static void test_leaves(void)
{
    struct fpdu_input in;
    struct fpdu_part part;
    struct fpdu_rx rx;
    uint8_t frames[FPDU_MAX_SIZE];
    struct rdmap_segment seg;
    struct conn *i, *r;
    struct ctl ctl;

    begin(RNIC_PAIR_UP);
    make_up(&i, &r);
    leave(i);
    room = 8;
    while (number(&n_closed) == 0) {
        say_writable(begun);
    }
    fpdu_rx_init(&rx, frames, sizeof(frames), false, rdmap_head_len);
    in = (struct fpdu_input){sent.bytes, sent.len};
    g_assert_false(fpdu_rx_next(&rx, &in, &part));
    g_assert_cmpint(part.kind, ==, FPDU_WHOLE);
    g_assert_false(rdmap_get(part.data, part.len, part.ulpdu_len, ~0u, &seg));
    g_assert_false(ctl_get(&seg, &ctl));
    g_assert_cmpint(ctl.kind, ==, CTL_ACK);
    g_assert_cmpuint(ctl.seq, ==, 5);
    g_assert_cmpuint(in.left, ==, 0);
    end();

    /* The peer reads it no more; bytes of its own are of no use before that. */
    begin(RNIC_PAIR_UP);
    make_up(&i, &r);
    leave(i);
    say_bytes(begun, &(struct message){.len = 8});
    g_assert_cmpuint(number(&n_closed), ==, 0);
    say_closed(begun);
    g_assert_cmpuint(number(&n_closed), ==, 1);
    end();

    /* The channel breaks; the VM goes. */
    begin(RNIC_PAIR_UP);
    make_up(&i, &r);
    leave(i);
    say_broken();
    g_assert_cmpuint(number(&n_closed), ==, 2);
    end();
    begin(RNIC_PAIR_UP);
    make_up(&i, &r);
    leave(i);
    room = BYTES;
    refused = true;
    end();
    g_assert_cmpuint(n_closed, ==, 2);
    g_assert_cmpuint(flushed, ==, 2);
    g_assert_cmpuint(sent.len, >, 0);
}

/* What waits for its VM's turn is not given up, however long that takes. */
static void test_held_up(void)
{
    struct conn *i, *r;

    begin(RNIC_PAIR_UP);
    make_up(&i, &r);
    held_up = true;
    room = 0;
    say_bytes(begun, &(struct message){.len = 64}); /* no frame: it says so */
    REACH(is_closing(i));
    pass(3000);
    g_assert_cmpuint(number(&n_closed), ==, 0);
    held_up = false; /* but the channel is full */
    pass(3000);
    g_assert_cmpuint(number(&n_closed), ==, 1);
    end();
}

/* ---- the peer as initiator ----------------------------------------------------------
 */

static void is_refused(const struct message *m, struct rnic_pair *p)
{
    unsigned refused = number(&n_refused), accepted = number(&n_accepted);

    g_assert_true(say_open(p, m));
    REACH(number(&n_refused) == refused + 1);
    g_assert_cmpuint(number(&n_accepted), ==, accepted);
}

static void test_opens(void)
{
    struct message m = {.len = 0};
    struct conn *i, *r;

    begin(RNIC_PAIR_UP);
    make_pair(&i, &r);
    REACH(i->setup && number(&n_begun));

    g_assert_false(say_open(&passive, &m)); /* of no bytes; of too many */
    m.len = MPA_MAX_STARTUP + 1;
    g_assert_false(say_open(&passive, &m));
    m.len = 1;
    is_refused(&m, &passive);
    m.len = MPA_MAX_STARTUP;
    is_refused(&m, &passive);
    m = request;
    m.len--;
    is_refused(&m, &passive);
    m.len += 2;
    is_refused(&m, &passive);
    /* A token that nobody awaits; and one that is shown by another VM. */
    for (unsigned at = MPA_HEADER; at < request.len; at++) {
        m = request;
        m.bytes[at] ^= 0x10;
        if (at < MPA_HEADER + MPA_ENHANCED) {
            continue;
        }
        is_refused(&m, &passive);
        break;
    }
    m = request;
    is_refused(&m, &strange);
    /* The right one, but once. */
    go_up(i, r);
    is_refused(&request, &passive);
    g_assert_true(is_by_flow(i) && is_by_flow(r));
    end();
}

/* The queue pair goes while it is asked, and after that. */
static void test_gone(void)
{
    struct message m;
    struct conn *i, *r;

    begin(RNIC_PAIR_UP);
    make_pair(&i, &r);
    REACH(i->setup && number(&n_begun));
    m = request;
    say = (struct say){.what = OPEN, .pair = &passive, .m = m};
    vm_token_take(rnic.vm); /* so that the Request waits for it */
    say.result = ops->open(&passive, 7, m.bytes, m.len);
    REACH(r->arrived);
    vm_token_release(rnic.vm);
    reset_qp(r);
    REACH(number(&n_refused) == 1);
    is_refused(&m, &passive);
    reset_qp(i);
    REACH(number(&n_closed) >= 1);
    end();
}

/* ---- the peer as responder -----------------------------------------------------------
 */

static void fails(struct conn *i, bool accepted, const struct message *m)
{
    unsigned closed = number(&n_closed), n = number(&n_begun);

    g_assert_nonnull(i->setup);
    g_assert_true(say_opened(begun, accepted, m));
    REACH(number(&n_closed) == closed + 1 && !i->setup);
    g_assert_true(i->phase != CONN_UP);
    setup_ask(i);
    REACH(i->setup && number(&n_begun) == n + 1);
}

static void test_openeds(void)
{
    struct message m = {.len = 0}, right;
    struct conn *i, *r;

    begin(RNIC_PAIR_UP);
    make_pair(&i, &r);
    REACH(i->setup && number(&n_begun));
    fails(i, true, &m);
    m.len = 1;
    fails(i, false, &m);
    fails(i, true, &m);
    m.len = MPA_MAX_STARTUP;
    fails(i, true, &m);
    g_assert_true(say_open(&passive, &request));
    REACH(number(&n_accepted) == 1);
    right = reply;
    /* Of another connection; refused, though it says otherwise; cut off. */
    m = right;
    m.bytes[m.len - 1] ^= 1;
    m.len--;
    fails(i, true, &m);
    fails(i, true, &right);
    fails(i, false, &right);
    m.len = MPA_MAX_STARTUP + 1;
    g_assert_false(say_opened(begun, true, &m));
    end();
}

/* It sends before it may. */
static void test_astray(void)
{
    struct conn *i, *r;

    begin(RNIC_PAIR_UP);
    make_pair(&i, &r);
    REACH(i->setup && number(&n_begun));
    g_assert_true(say_open(&passive, &request));
    REACH(number(&n_accepted) == 1);
    vm_token_take(rnic.vm); /* so that there is no stream yet */
    begun->peer_index = 9;
    g_assert_true(ops->opened(begun, true, reply.bytes, reply.len));
    g_assert_true(ops->take(begun, sent.bytes, 8));
    vm_token_release(rnic.vm);
    REACH(number(&n_closed) >= 1);
    end();
}

/* ---- channels come and go
 * --------------------------------------------------------------- */

/* One that breaks while it is asked is no failed try: TCP is next. */
static void test_lost(void)
{
    struct conn *i, *r;

    begin(RNIC_PAIR_UP);
    make_pair(&i, &r);
    REACH(i->setup && number(&n_begun));
    state = RNIC_PAIR_NONE;
    say_broken();
    g_assert_cmpuint(number(&n_closed), ==, 1);
    REACH(i->phase == CONN_UP && r->phase == CONN_UP);
    g_assert_false(is_by_flow(i));
    end();
}

/* One that comes up while a stream by TCP is made: whoever has none yet is not told. */
static void test_meanwhile(void)
{
    struct conn *i, *r;

    begin(RNIC_PAIR_NONE);
    make_pair(&i, &r);
    REACH(i->setup);
    state = RNIC_PAIR_UP;
    ops->changed(&active);
    go_up(i, r);
    g_assert_true(is_by_flow(i) && is_by_flow(r));
    end();
}

/* One that is being made is waited for. */
static void test_waits(void)
{
    struct conn *i, *r;
    unsigned wanted;

    begin(RNIC_PAIR_MAKING);
    make_pair(&i, &r);
    REACH(i->joins);
    g_assert_true(setup_waits(i));
    ops->changed(&strange);
    ops->changed(&active); /* it is being made anew */
    g_assert_true(i->joins == &active && !i->setup);
    state = RNIC_PAIR_UP;
    ops->changed(&active);
    g_assert_false(i->joins || !i->setup);
    go_up(i, r);
    end();

    /* It has come to nothing. */
    begin(RNIC_PAIR_MAKING);
    make_pair(&i, &r);
    REACH(i->joins);
    state = RNIC_PAIR_NONE;
    ops->changed(&active);
    REACH(i->phase == CONN_UP && r->phase == CONN_UP);
    g_assert_false(is_by_flow(i));
    /* It is wanted again, and takes over what goes by TCP when it is there. */
    wanted = n_wanted;
    ops->changed(&strange);
    g_assert_cmpuint(n_wanted, ==, wanted);
    ops->changed(&active);
    g_assert_cmpuint(n_wanted, ==, wanted + 1);
    state = RNIC_PAIR_UP;
    ops->changed(&active);
    go_up(i, r);
    end();

    /* Nobody waits any more. */
    begin(RNIC_PAIR_MAKING);
    make_pair(&i, &r);
    REACH(i->joins);
    reset_qp(i);
    ops->changed(&active);
    end();
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/flows/up", test_up);
    g_test_add_func("/flows/backlog", test_backlog);
    g_test_add_func("/flows/ends", test_ends);
    g_test_add_func("/flows/pieces", test_pieces);
    g_test_add_func("/flows/due", test_due);
    g_test_add_func("/flows/silent", test_silent);
    g_test_add_func("/flows/asked", test_asked);
    g_test_add_func("/flows/not-taken", test_not_taken);
    g_test_add_func("/flows/leaves", test_leaves);
    g_test_add_func("/flows/held-up", test_held_up);
    g_test_add_func("/flows/opens", test_opens);
    g_test_add_func("/flows/gone", test_gone);
    g_test_add_func("/flows/openeds", test_openeds);
    g_test_add_func("/flows/astray", test_astray);
    g_test_add_func("/flows/lost", test_lost);
    g_test_add_func("/flows/meanwhile", test_meanwhile);
    g_test_add_func("/flows/waits", test_waits);
    return g_test_run();
}
