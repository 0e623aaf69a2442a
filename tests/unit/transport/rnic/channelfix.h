/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Two ends of a channel, on softnic, for tests: each is what a VM of a daemon would have
 * of it.  Flows carry a pattern that is checked where it is taken.  Time is what a test
 * says it is.
 */
#ifndef CHANNELFIX_H
#define CHANNELFIX_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <glib.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>

#include "base/log.h"
#include "softnic.h"
#include "transport/rnic/channel_internal.h"

/* Where a sanitizer makes all slow. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOWER 16u
#else
#define SLOWER 1u
#endif

#define MS      1000000ull
#define PATTERN 65521u
#define PIECE   65536u
#define V       rnic_verbs
/* What one look takes. */
#define FIX_LOOK 65536u
/* Of one completion queue. */
#define FIX_CHANNELS 4u

/* A flow of an end, and what is known of it. */
struct fixflow {
    struct rnic_flow f;
    unsigned number;               /* both ends' have the same */
    uint64_t to_send, sent, taken; /* bytes */
    bool stops, lost;              /* it takes nothing; it was overrun */
    bool opened, refused, ended;   /* by the peer */
};

struct fixend {
    struct rdma_cm_id *id;
    struct ibv_pd *pd;
    struct ibv_comp_channel *events;
    struct ibv_cq *ibv;
    struct rnic_cq own, *cq; /* another's, if it is shared */
    struct rnic_channel *ch;
    struct fixflow *flow;
    unsigned n_flows;
    GPtrArray *more; /* flows that were opened by frames */
    struct log_subject log;
    uint64_t now;
    bool to_err, broken, all;
    bool is_a;
    unsigned echoes; /* for a test's own: which flow it answers on */
    bool grows[2], no_growth;
    unsigned grow_n[2], grow_asked, spared;
    uint32_t grow_size[2];
};

struct fixpair {
    struct fixend a, b;
};

/* How a pair is made. */
struct fixopts {
    const char *nic[2];        /* addresses; NULL: one that is like RoCE */
    unsigned n;                /* buffers; 0: RNIC_FIRST_BUFFERS */
    uint32_t size, max_size;   /* of them; 0: RNIC_SIZE_MIN, RNIC_SIZE_MAX */
    bool raw_b;                /* B has no channel, but two plain buffers */
    struct fixpair *with;      /* whose completion queues it has; closed before that; not
                                * raw_b's */
    struct rnic_fair_vm *fair; /* A's part of its NIC; NULL: it has it alone */
};

static const char *const fix_roce[2] = {"10.0.0.1", "10.0.0.2"};
static const char *const fix_iwarp[2] = {"10.0.1.1", "10.0.1.2"};

static inline void fix_nics(void)
{
    softnic_do("add roce0 10.0.0.1");
    softnic_do("add roce1 10.0.0.2");
    softnic_do("add iwarp0 10.0.1.1 iwarp early noimm negative flush2");
    softnic_do("add iwarp1 10.0.1.2 iwarp early noimm negative flush2");
}

/* ---- what flows carry ---- */

static inline const uint8_t *fix_pattern(unsigned number, uint64_t at)
{
    static uint8_t bytes[PATTERN + PIECE];

    if (!bytes[1]) {
        for (unsigned i = 0; i < sizeof(bytes); i++) {
            unsigned k = i % PATTERN;

            bytes[i] = (uint8_t)(k * 37 + (k >> 8) * 11 + 1);
        }
    }
    return bytes + (at + number * 997ull) % PATTERN;
}

static inline bool fix_take(struct rnic_flow *f, const uint8_t *bytes, size_t len)
{
    struct fixflow *x = (struct fixflow *)(void *)f;

    g_assert_false(x->lost);
    g_assert_cmpuint(len, >, 0);
    g_assert_cmpuint(len, <=, PIECE);
    g_assert_cmpint(memcmp(bytes, fix_pattern(x->number, x->taken), len), ==, 0);
    x->taken += len;
    return !x->stops;
}

static inline void fix_push(struct fixflow *x)
{
    while (x->sent < x->to_send && !x->f.wants) {
        size_t n = MIN(PIECE, x->to_send - x->sent);
        ssize_t done = rnic_flow_send(&x->f, fix_pattern(x->number, x->sent), n);

        if (done < 0) {
            return;
        }
        x->sent += (uint64_t)done;
        if ((size_t)done < n) {
            rnic_flow_want(&x->f, true);
        }
    }
}

/* ---- an owner ---- */

static inline struct fixend *fix_of(struct rnic_channel *ch)
{
    return rnic_channel_owner(ch);
}

static inline void fix_writable(struct rnic_flow *f)
{
    fix_push((struct fixflow *)(void *)f);
}

static inline void fix_overrun(struct rnic_flow *f)
{
    ((struct fixflow *)(void *)f)->lost = true;
}

/* What OPEN and OPENED carry: the flow's number, and some of its pattern. */
static inline size_t fix_content(uint8_t *bytes, unsigned number)
{
    size_t len = number * 31 % (RNIC_OPEN_MAX - sizeof(number));

    memcpy(bytes, &number, sizeof(number));
    memcpy(bytes + sizeof(number), fix_pattern(number, 0), len);
    return sizeof(number) + len;
}

static inline unsigned fix_number(const uint8_t *bytes, size_t len)
{
    uint8_t right[RNIC_OPEN_MAX];
    unsigned number;

    g_assert_cmpuint(len, >=, sizeof(number));
    memcpy(&number, bytes, sizeof(number));
    g_assert_cmpuint(len, ==, fix_content(right, number));
    g_assert_cmpint(memcmp(bytes, right, len), ==, 0);
    return number;
}

static inline bool fix_opens(struct rnic_channel *ch, uint32_t peer_index,
                             const uint8_t *bytes, size_t len)
{
    struct fixflow *x = g_new0(struct fixflow, 1);

    g_ptr_array_add(fix_of(ch)->more, x);
    g_assert_true(rnic_flow_accept(ch, &x->f, peer_index, bytes, len));
    x->number = fix_number(bytes, len);
    x->opened = true;
    return true;
}

static inline bool fix_opened(struct rnic_flow *f, bool accepted, const uint8_t *bytes,
                              size_t len)
{
    struct fixflow *x = (struct fixflow *)(void *)f;

    g_assert_false(x->opened || x->refused);
    g_assert_cmpuint(fix_number(bytes, len), ==, x->number);
    g_assert_cmpint(f->peer_index != 0, ==, accepted);
    x->opened = accepted;
    x->refused = !accepted;
    return true;
}

static inline void fix_closed(struct rnic_flow *f)
{
    struct fixflow *x = (struct fixflow *)(void *)f;

    g_assert_false(x->ended);
    x->ended = true;
}

static inline struct fixflow *fix_begin(struct fixend *e, unsigned number)
{
    struct fixflow *x = g_new0(struct fixflow, 1);
    uint8_t bytes[RNIC_OPEN_MAX];

    x->number = number;
    if (!rnic_flow_begin(e->ch, &x->f, bytes, fix_content(bytes, number))) {
        g_free(x);
        return NULL;
    }
    g_ptr_array_add(e->more, x);
    return x;
}

static inline void fix_flow_close(struct fixflow *x)
{
    struct fixend *e = fix_of(x->f.channel);

    rnic_flow_close(&x->f);
    g_ptr_array_remove_fast(e->more, x);
}

/* The flow of this number that came or went by frames. */
static inline struct fixflow *fix_find(const struct fixend *e, unsigned number)
{
    for (unsigned i = 0; i < e->more->len; i++) {
        struct fixflow *x = e->more->pdata[i];

        if (x->number == number) {
            return x;
        }
    }
    return NULL;
}

static inline void fix_grow(struct rnic_channel *ch, enum rnic_side side, unsigned n,
                            uint32_t size)
{
    struct fixend *e = fix_of(ch);

    g_assert_false(e->grows[side]);
    e->grows[side] = true;
    e->grow_n[side] = n;
    e->grow_size[side] = size;
    e->grow_asked++;
}

static inline void fix_spare(struct rnic_channel *ch, struct rnic_block *b)
{
    fix_of(ch)->spared++;
    rnic_block_free(b);
}

static inline void fix_err(struct rnic_channel *ch)
{
    fix_of(ch)->to_err = true;
}

static inline void fix_broken(struct rnic_channel *ch, bool all)
{
    g_assert_false(fix_of(ch)->broken);
    fix_of(ch)->broken = true;
    fix_of(ch)->all = all;
}

static const struct rnic_channel_ops fix_ops = {
    fix_take,   fix_writable, fix_overrun, fix_opens, fix_opened,
    fix_closed, fix_grow,     fix_spare,   fix_err,   fix_broken};

/* What a control thread would do. */
static inline void fix_control_thread(struct fixend *e)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

    if (e->to_err) {
        e->to_err = false;
        V->modify_qp(e->id->qp, &attr, IBV_QP_STATE);
        rnic_channel_in_err(e->ch);
    }
    for (unsigned side = 0; side < 2; side++) {
        if (e->grows[side]) {
            e->grows[side] = false;
            rnic_channel_grow(e->ch, side,
                              e->no_growth ? NULL
                                           : rnic_block_new(e->pd, side, e->grow_n[side],
                                                            e->grow_size[side]));
        }
    }
}

/* One turn of its VM. */
static inline void fix_turn(struct fixend *e)
{
    while (rnic_cq_look(e->cq, e->now, FIX_LOOK)) {
    }
    for (unsigned i = 0; i < e->n_flows; i++) {
        fix_push(&e->flow[i]);
    }
    for (unsigned i = 0; i < e->more->len; i++) {
        struct fixflow *x = e->more->pdata[i];

        if (x->opened) {
            fix_push(x);
        }
    }
    fix_control_thread(e);
    rnic_cq_flush(e->cq);
}

/* Both are parked meanwhile. */
static inline void fix_pass(struct fixpair *p, uint64_t ns)
{
    rnic_cq_arm(p->a.cq, p->a.now);
    rnic_cq_arm(p->b.cq, p->b.now);
    p->a.now += ns;
    p->b.now += ns;
}

/* Until nothing moves any more. */
static inline void fix_settle(struct fixpair *p)
{
    for (unsigned i = 0; i < 6; i++) {
        softnic_settle();
        fix_turn(&p->a);
        if (p->b.ch) {
            fix_turn(&p->b);
        }
    }
    softnic_settle();
}

static inline bool fix_end_done(const struct fixend *from, const struct fixend *to)
{
    for (unsigned i = 0; i < from->n_flows; i++) {
        if (to->flow[i].taken < from->flow[i].to_send) {
            return false;
        }
    }
    return true;
}

static inline bool fix_done(const struct fixpair *p)
{
    return fix_end_done(&p->a, &p->b) && fix_end_done(&p->b, &p->a);
}

static inline uint64_t fix_taken(const struct fixpair *p)
{
    uint64_t n = 0;

    for (unsigned i = 0; i < p->a.n_flows; i++) {
        n += p->a.flow[i].taken + p->b.flow[i].taken;
    }
    return n;
}

/* Until all has come; if nothing does any more, both are stuck. */
static inline void fix_run(struct fixpair *p)
{
    uint64_t was = 0;

    for (unsigned idle = 0; !fix_done(p); idle++) {
        fix_turn(&p->a);
        fix_turn(&p->b);
        g_assert_false(p->a.broken || p->b.broken);
        if (idle > 100) {
            softnic_settle();
        }
        g_assert_cmpuint(idle, <, 200);
        idle = fix_taken(p) == was ? idle : 0;
        was = fix_taken(p);
    }
}

/* ---- making them ---- */

static inline void fix_event(struct rdma_event_channel *events,
                             enum rdma_cm_event_type type, struct rdma_cm_id **id)
{
    struct pollfd p = {.fd = events->fd, .events = POLLIN};
    struct rdma_cm_event *e;

    do {
        g_assert_cmpint(poll(&p, 1, 60000), ==, 1);
    } while (V->cm_get_event(events, &e) != 0);
    g_assert_cmpint(e->event, ==, type);
    if (id) {
        *id = e->id;
    }
    V->cm_ack_event(e);
}

static inline struct sockaddr_in fix_address(const char *address, uint16_t port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};

    inet_pton(AF_INET, address, &a.sin_addr);
    return a;
}

static inline void fix_end_open(struct fixend *e, const struct fixopts *o, bool raw,
                                struct fixend *with)
{
    unsigned n = o->n ? o->n : RNIC_FIRST_BUFFERS;
    uint32_t size = o->size ? o->size : RNIC_SIZE_MIN;
    struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC,
                                    .cap = {.max_send_wr = RNIC_POSTED,
                                            .max_recv_wr = RNIC_POSTED,
                                            .max_send_sge = 1,
                                            .max_recv_sge = 1}};
    struct rnic_channel_config config = {.ops = &fix_ops,
                                         .owner = e,
                                         .log = &e->log,
                                         .name = "of a test",
                                         .peer_receives = n,
                                         .peer_size = size,
                                         .max_size =
                                             o->max_size ? o->max_size : RNIC_SIZE_MAX};

    e->log.name = "vm";
    e->now = with ? with->now : 1000 * MS;
    e->more = g_ptr_array_new_with_free_func(g_free);
    g_assert_nonnull((e->pd = V->alloc_pd(e->id->verbs)));
    if (with) {
        e->cq = with->cq;
        e->ibv = with->ibv;
    } else {
        e->cq = &e->own;
        g_assert_nonnull((e->events = V->create_comp_channel(e->id->verbs)));
        g_assert_nonnull(
            (e->ibv = V->create_cq(e->id->verbs, FIX_CHANNELS * RNIC_CQ_PER_CHANNEL, NULL,
                                   e->events, 0)));
        g_assert_cmpint(fcntl(e->events->fd, F_SETFL, O_NONBLOCK), ==, 0);
        g_assert_true(rnic_cq_init(e->cq, e->ibv, e->events));
    }
    config.cq = e->cq;
    e->cq->fair = e->is_a ? o->fair : NULL;
    init.send_cq = init.recv_cq = e->ibv;
    g_assert_cmpint(V->cm_create_qp(e->id, e->pd, &init), ==, 0);
    if (!raw) {
        config.qp = e->id->qp;
        config.tx = rnic_block_new(e->pd, RNIC_TX, n, size);
        config.rx = rnic_block_new(e->pd, RNIC_RX, n, size);
        g_assert_nonnull((e->ch = rnic_channel_new(&config)));
    }
}

/* Open without a frame: the peer has the same. */
static inline void fix_flows(struct fixend *e, unsigned n)
{
    e->flow = g_new0(struct fixflow, n);
    e->n_flows = n;
    for (unsigned i = 0; i < n; i++) {
        g_assert_true(channel_take_place(e->ch, &e->flow[i].f, i + 1));
        g_assert_cmpuint(e->flow[i].f.index, ==, i + 1);
        e->flow[i].number = i;
    }
}

static inline void fix_open(struct fixpair *p, const struct fixopts *o, unsigned flows)
{
    static struct rdma_event_channel *events[2];
    static uint16_t port = 7000;
    const char *from = o->nic[0] ? o->nic[0] : fix_roce[0];
    const char *to = o->nic[1] ? o->nic[1] : fix_roce[1];
    struct sockaddr_in src = fix_address(from, 0), dst = fix_address(to, ++port);
    struct rdma_conn_param param = {.retry_count = 7};
    struct rdma_cm_id *listener;

    *p = (struct fixpair){.a.is_a = true};
    for (unsigned i = 0; i < 2 && !events[i]; i++) {
        g_assert_nonnull((events[i] = V->cm_create_event_channel()));
        g_assert_cmpint(fcntl(events[i]->fd, F_SETFL, O_NONBLOCK), ==, 0);
    }
    g_assert_cmpint(V->cm_create_id(events[1], &listener, NULL, RDMA_PS_TCP), ==, 0);
    g_assert_cmpint(V->cm_bind_addr(listener, (struct sockaddr *)&dst), ==, 0);
    g_assert_cmpint(V->cm_listen(listener, 1), ==, 0);
    g_assert_cmpint(V->cm_create_id(events[0], &p->a.id, NULL, RDMA_PS_TCP), ==, 0);
    g_assert_cmpint(V->cm_resolve_addr(p->a.id, (struct sockaddr *)&src,
                                       (struct sockaddr *)&dst, 10000),
                    ==, 0);
    fix_event(events[0], RDMA_CM_EVENT_ADDR_RESOLVED, NULL);
    g_assert_cmpint(V->cm_resolve_route(p->a.id, 10000), ==, 0);
    fix_event(events[0], RDMA_CM_EVENT_ROUTE_RESOLVED, NULL);
    fix_end_open(&p->a, o, false, o->with ? &o->with->a : NULL);
    g_assert_cmpint(V->cm_connect(p->a.id, &param), ==, 0);
    fix_event(events[1], RDMA_CM_EVENT_CONNECT_REQUEST, &p->b.id);
    fix_end_open(&p->b, o, o->raw_b, o->with && !o->raw_b ? &o->with->b : NULL);
    g_assert_cmpint(V->cm_accept(p->b.id, &param), ==, 0);
    fix_event(events[0], RDMA_CM_EVENT_ESTABLISHED, NULL);
    fix_event(events[1], RDMA_CM_EVENT_ESTABLISHED, NULL);
    g_assert_cmpint(V->cm_destroy_id(listener), ==, 0);
    fix_flows(&p->a, flows);
    rnic_channel_up(p->a.ch);
    if (!o->raw_b) {
        fix_flows(&p->b, flows);
        rnic_channel_up(p->b.ch);
    }
}

/* Both break, if they have not, and are gone. */
static inline void fix_break(struct fixend *e)
{
    if (!e->ch) {
        return;
    }
    rnic_channel_break(e->ch, "the test is over");
    for (unsigned i = 0; i < 10 && !e->broken; i++) {
        fix_turn(e);
        softnic_settle();
        e->now += i >= 2 ? 200 * MS : 0;
    }
    g_assert_true(e->broken);
    for (unsigned i = 0; i < e->n_flows; i++) {
        rnic_flow_close(&e->flow[i].f);
    }
    while (e->more->len) {
        fix_flow_close(e->more->pdata[0]);
    }
    g_clear_pointer(&e->flow, g_free);
    e->n_flows = 0;
}

static inline void fix_end_close(struct fixend *e)
{
    V->cm_destroy_qp(e->id);
    if (e->ch) {
        rnic_channel_free(e->ch);
    }
    g_ptr_array_unref(e->more);
    if (e->cq == &e->own) {
        rnic_cq_woken(e->cq);
        g_assert_cmpint(V->destroy_cq(e->ibv), ==, 0);
        g_assert_cmpint(V->destroy_comp_channel(e->events), ==, 0);
        rnic_cq_fini(e->cq);
    }
    g_assert_cmpint(V->dealloc_pd(e->pd), ==, 0);
}

static inline void fix_drop_id(struct fixend *e)
{
    struct rdma_event_channel *events = e->id->channel;
    struct rdma_cm_event *event;

    V->cm_disconnect(e->id);
    softnic_settle();
    while (V->cm_get_event(events, &event) == 0) {
        V->cm_ack_event(event);
    }
    g_assert_cmpint(V->cm_destroy_id(e->id), ==, 0);
}

static inline void fix_close(struct fixpair *p)
{
    softnic_do("clear");
    fix_break(&p->a);
    fix_break(&p->b);
    fix_end_close(&p->a);
    fix_end_close(&p->b);
    fix_drop_id(&p->a);
    fix_drop_id(&p->b);
}

static inline int64_t rnrs(void)
{
    return softnic_count("rnr", "roce0") + softnic_count("rnr", "roce1") +
           softnic_count("rnr", "iwarp0") + softnic_count("rnr", "iwarp1");
}

/* ---- a peer that lies ---- */

struct liar {
    struct fixpair p;
    struct ibv_mr *mr;
    uint8_t *bytes; /* what it sends; behind that, what it receives */
};

#define LIE_ROOM 65536u

static inline void liar_open_with(struct liar *l, struct fixpair *with)
{
    struct fixopts o = {.raw_b = true, .with = with};
    struct ibv_recv_wr wr = {.num_sge = 1}, *bad;
    struct ibv_sge sge;

    fix_open(&l->p, &o, 2);
    l->bytes = g_malloc0(2 * LIE_ROOM);
    l->mr = V->reg_mr(l->p.b.pd, l->bytes, 2 * LIE_ROOM, IBV_ACCESS_LOCAL_WRITE);
    for (unsigned i = 0; i < RNIC_FIRST_BUFFERS; i++) {
        sge = (struct ibv_sge){(uintptr_t)l->bytes + LIE_ROOM + i * RNIC_SIZE_MIN,
                               RNIC_SIZE_MIN, l->mr->lkey};
        wr.sg_list = &sge;
        g_assert_cmpint(V->post_recv(l->p.b.id->qp, &wr, &bad), ==, 0);
    }
}

static inline void liar_open(struct liar *l)
{
    liar_open_with(l, NULL);
}

static inline void liar_close(struct liar *l)
{
    fix_break(&l->p.a);
    V->dereg_mr(l->mr);
    fix_close(&l->p);
    g_free(l->bytes);
}

/* It arrives, but nobody has looked. */
static inline void liar_sends(struct liar *l, uint32_t len, unsigned flags)
{
    struct ibv_sge sge = {(uintptr_t)l->bytes, len, l->mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED | flags},
                       *bad;
    struct ibv_wc wc[4];

    g_assert_cmpint(V->post_send(l->p.b.id->qp, &wr, &bad), ==, 0);
    softnic_settle();
    while (V->poll_cq(l->p.b.ibv, 4, wc) > 0) {
    }
}

static inline void liar_says(struct liar *l, uint32_t len, unsigned flags)
{
    liar_sends(l, len, flags);
    fix_turn(&l->p.a);
}

static inline void put_send(uint8_t *p, uint8_t flags, uint16_t credits, uint32_t size)
{
    rnic_put_send(p, &(struct rnic_send_head){flags, credits, size});
}

#endif /* CHANNELFIX_H */
