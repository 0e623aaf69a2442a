/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: the QP state machine, send queue drain, who need not be notified, GIDs,
 * the GSI QP.
 */
#include "vgtest.h"

#include <unistd.h>

/*
 * RC transitions: what must and what may come along with STATE (InfiniBand
 * specification 11.2.5.2; the same table as the guest kernel's).
 */
static const struct transition {
    enum pvrdma_qp_state from, to;
    uint32_t must, may;
} legal[] = {
    {PVRDMA_QPS_RESET, PVRDMA_QPS_INIT,
     PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_PORT | PVRDMA_QP_ACCESS_FLAGS, 0},
    {PVRDMA_QPS_INIT, PVRDMA_QPS_INIT, 0,
     PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_PORT | PVRDMA_QP_ACCESS_FLAGS},
    {PVRDMA_QPS_INIT, PVRDMA_QPS_RTR,
     PVRDMA_QP_AV | PVRDMA_QP_PATH_MTU | PVRDMA_QP_DEST_QPN | PVRDMA_QP_RQ_PSN |
         PVRDMA_QP_MAX_DEST_RD_ATOMIC | PVRDMA_QP_MIN_RNR_TIMER,
     PVRDMA_QP_ACCESS_FLAGS | PVRDMA_QP_PKEY_INDEX},
    {PVRDMA_QPS_RTR, PVRDMA_QPS_RTS,
     PVRDMA_QP_TIMEOUT | PVRDMA_QP_RETRY_CNT | PVRDMA_QP_RNR_RETRY | PVRDMA_QP_SQ_PSN |
         PVRDMA_QP_MAX_RD_ATOMIC,
     PVRDMA_QP_CUR_STATE | PVRDMA_QP_ACCESS_FLAGS | PVRDMA_QP_MIN_RNR_TIMER},
    {PVRDMA_QPS_RTS, PVRDMA_QPS_RTS, 0,
     PVRDMA_QP_CUR_STATE | PVRDMA_QP_ACCESS_FLAGS | PVRDMA_QP_MIN_RNR_TIMER},
    {PVRDMA_QPS_RTS, PVRDMA_QPS_SQD, 0, PVRDMA_QP_EN_SQD_ASYNC},
    {PVRDMA_QPS_SQD, PVRDMA_QPS_RTS, 0,
     PVRDMA_QP_CUR_STATE | PVRDMA_QP_ACCESS_FLAGS | PVRDMA_QP_MIN_RNR_TIMER},
    {PVRDMA_QPS_SQD, PVRDMA_QPS_SQD, 0,
     PVRDMA_QP_TIMEOUT | PVRDMA_QP_RETRY_CNT | PVRDMA_QP_RNR_RETRY |
         PVRDMA_QP_MAX_RD_ATOMIC | PVRDMA_QP_MAX_DEST_RD_ATOMIC | PVRDMA_QP_ACCESS_FLAGS |
         PVRDMA_QP_MIN_RNR_TIMER | PVRDMA_QP_PKEY_INDEX},
    {PVRDMA_QPS_INIT, PVRDMA_QPS_RESET, 0, 0},
    {PVRDMA_QPS_RTR, PVRDMA_QPS_RESET, 0, 0},
    {PVRDMA_QPS_RTS, PVRDMA_QPS_RESET, 0, 0},
    {PVRDMA_QPS_SQD, PVRDMA_QPS_RESET, 0, 0},
    {PVRDMA_QPS_ERR, PVRDMA_QPS_RESET, 0, 0},
    {PVRDMA_QPS_INIT, PVRDMA_QPS_ERR, 0, 0},
    {PVRDMA_QPS_RTR, PVRDMA_QPS_ERR, 0, 0},
    {PVRDMA_QPS_RTS, PVRDMA_QPS_ERR, 0, 0},
    {PVRDMA_QPS_SQD, PVRDMA_QPS_ERR, 0, 0},
    {PVRDMA_QPS_ERR, PVRDMA_QPS_ERR, 0, 0},
};

/* Pairs that implementations differ on, or that the driver never sends. */
static bool unsettled(unsigned from, unsigned to)
{
    return (from == PVRDMA_QPS_RESET &&
            (to == PVRDMA_QPS_RESET || to == PVRDMA_QPS_ERR)) ||
           to == PVRDMA_QPS_SQE;
}

static struct vgt_side s;

static struct pvrdma_qp_attr good_attr(enum pvrdma_qp_state to)
{
    struct pvrdma_qp_attr a = {
        .qp_state = to,
        .path_mtu = PVRDMA_MTU_1024,
        .dest_qp_num = s.qp->qpn,
        .qp_access_flags = VG_ACCESS_ALL,
        .max_rd_atomic = 1,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 1,
        .port_num = 1,
        .timeout = 14,
        .retry_cnt = 7,
        .rnr_retry = 7,
        .ah_attr = {.dgid = s.g->gid, .hop_limit = 64, .ah_flags = 1, .port_num = 1}};

    return a;
}

static int move(enum pvrdma_qp_state to, uint32_t mask)
{
    struct pvrdma_qp_attr a = good_attr(to);

    return vg_modify_qp(s.g, s.qp->handle, PVRDMA_QP_STATE | mask, &a);
}

/* From any state to RESET and on to @state. */
static void bring_to(enum pvrdma_qp_state state)
{
    if (vg_qp_state(s.qp) != PVRDMA_QPS_RESET) {
        vg_qp_to_reset(s.qp);
    }
    if (state == PVRDMA_QPS_RESET) {
        return;
    }
    g_assert_cmpint(move(PVRDMA_QPS_INIT, legal[0].must), ==, 0);
    if (state == PVRDMA_QPS_ERR) {
        g_assert_cmpint(move(PVRDMA_QPS_ERR, 0), ==, 0);
    }
    if (state == PVRDMA_QPS_INIT || state == PVRDMA_QPS_ERR) {
        return;
    }
    g_assert_cmpint(move(PVRDMA_QPS_RTR, legal[2].must), ==, 0);
    if (state == PVRDMA_QPS_RTR) {
        return;
    }
    g_assert_cmpint(move(PVRDMA_QPS_RTS, legal[3].must), ==, 0);
    if (state == PVRDMA_QPS_SQD) {
        g_assert_cmpint(move(PVRDMA_QPS_SQD, 0), ==, 0);
    }
}

static const struct transition *find(unsigned from, unsigned to)
{
    for (unsigned i = 0; i < G_N_ELEMENTS(legal); i++) {
        if (legal[i].from == from && legal[i].to == to) {
            return &legal[i];
        }
    }
    return NULL;
}

static void check_attributes(const struct transition *t)
{
    for (unsigned bit = 2; bit < 21; bit++) {
        uint32_t m = 1u << bit;
        bool ok;

        if (m == PVRDMA_QP_ALT_PATH || m == PVRDMA_QP_PATH_MIG_STATE ||
            m == PVRDMA_QP_AV || m == PVRDMA_QP_PORT || m == PVRDMA_QP_CAP) {
            continue; /* optional features: not fixed here */
        }
        if (t->must & m) {
            bring_to(t->from);
            g_assert_cmpint(move(t->to, t->must & ~m), >, 0);
            g_assert_cmpuint(vg_qp_state(s.qp), ==, t->from);
        } else {
            bring_to(t->from);
            ok = move(t->to, t->must | m) == 0;
            if (t->to == PVRDMA_QPS_RESET || t->to == PVRDMA_QPS_ERR) {
                continue; /* attributes are meaningless there */
            }
            if (ok != !!(t->may & m)) {
                g_error("%u -> %u with attribute bit %u: %s", t->from, t->to, bit,
                        ok ? "taken" : "refused");
            }
        }
    }
}

static void test_transitions(void)
{
    static const uint32_t everything = ~(PVRDMA_QP_STATE | PVRDMA_QP_CUR_STATE);
    struct vgt_opts o = {0};

    vgt_side_open(&s, 0, &o, 0);
    for (unsigned from = 0; from <= PVRDMA_QPS_ERR; from++) {
        if (from == PVRDMA_QPS_SQE) {
            continue; /* an RC QP never gets there */
        }
        for (unsigned to = 0; to <= PVRDMA_QPS_ERR; to++) {
            const struct transition *t = find(from, to);

            if (unsettled(from, to)) {
                continue;
            }
            bring_to(from);
            if (t) {
                if (move(to, t->must)) {
                    g_error("%u -> %u refused", from, to);
                }
                g_assert_cmpuint(vg_qp_state(s.qp), ==, to);
                check_attributes(t);
                continue;
            }
            if (move(to, 0) == 0 || move(to, everything) == 0) {
                g_error("%u -> %u accepted", from, to);
            }
            g_assert_cmpuint(vg_qp_state(s.qp), ==, from);
        }
    }
    vgt_side_close(&s);
}

/* Attribute values out of range, in their own right transition. */
static void test_bad_attributes(void)
{
    struct vgt_opts o = {0};
    struct pvrdma_qp_attr a;

    vgt_side_open(&s, 0, &o, 0);
    for (unsigned i = 0; i < 9; i++) {
        const struct transition *t = &legal[i < 3 ? 0 : i < 6 ? 2 : 3];

        bring_to(t->from);
        a = good_attr(t->to);
        switch (i) {
        case 0:
            a.port_num = 2;
            break;
        case 1:
            a.pkey_index = 1;
            break;
        case 2:
            a.qp_state = 99;
            break;
        case 3:
            a.path_mtu = 0;
            break;
        case 4:
            a.path_mtu = 6;
            break;
        case 5:
            a.max_dest_rd_atomic = 255;
            break;
        case 6:
            a.timeout = 32;
            break;
        case 7:
            a.max_rd_atomic = 255;
            break;
        case 8:
            a.rnr_retry = 8;
            break;
        }
        if (vg_modify_qp(s.g, s.qp->handle, PVRDMA_QP_STATE | t->must, &a) == 0) {
            g_error("bad attribute %u accepted", i);
        }
        g_assert_cmpuint(vg_qp_state(s.qp), ==, t->from);
    }
    /* Unknown attribute bits, unknown QP. */
    bring_to(PVRDMA_QPS_RESET);
    a = good_attr(PVRDMA_QPS_INIT);
    g_assert_cmpint(
        vg_modify_qp(s.g, s.qp->handle, PVRDMA_QP_STATE | legal[0].must | 1u << 30, &a),
        >, 0);
    g_assert_cmpint(
        vg_modify_qp(s.g, s.qp->handle + 1, PVRDMA_QP_STATE | legal[0].must, &a), >, 0);
    vgt_side_close(&s);
}

static void test_query_qp(void)
{
    struct vgt_opts o = {0};
    struct pvrdma_qp_attr a;

    vgt_side_open(&s, 0, &o, 0);
    bring_to(PVRDMA_QPS_RTS);
    g_assert_cmpint(vg_query_qp(s.g, s.qp->handle, &a), ==, 0);
    g_assert_cmpuint(a.qp_state, ==, PVRDMA_QPS_RTS);
    g_assert_cmpuint(a.dest_qp_num, ==, s.qp->qpn);
    g_assert_cmpuint(a.timeout, ==, 14);
    g_assert_cmpuint(a.retry_cnt, ==, 7);
    g_assert_cmpuint(a.path_mtu, ==, PVRDMA_MTU_1024);
    g_assert_cmpuint(a.qp_access_flags, ==, VG_ACCESS_ALL);
    g_assert_cmpmem(&a.ah_attr.dgid, 16, &s.g->gid, 16);
    g_assert_cmpuint(a.cap.max_send_wr, >=, 64);
    g_assert_cmpuint(a.cap.max_recv_sge, >=, 4);
    vgt_side_close(&s);
}

/* ---- SQD ---- */

static int to_sqd(struct vg_qp *qp, bool event)
{
    struct pvrdma_qp_attr a = {.qp_state = PVRDMA_QPS_SQD, .en_sqd_async_notify = event};

    return vg_modify_qp(qp->g, qp->handle, PVRDMA_QP_STATE | PVRDMA_QP_EN_SQD_ASYNC, &a);
}

static void test_sqd(void)
{
    struct vgt_pair p;
    struct vg_qp *qp;
    int64_t waits;

    vgt_pair_open(&p, 0, 1, NULL);
    waits = vgt_counter("vm0", "datapath", "rnr_waits");
    qp = p.s[0].qp;
    /* Nothing in flight: drained at once. */
    g_assert_cmpint(to_sqd(qp, true), ==, 0);
    vgt_expect_event(p.s[0].g, PVRDMA_EVENT_SQ_DRAINED, qp->handle);
    vg_qp_to_state(qp, PVRDMA_QPS_RTS);

    /* One in flight (the peer has no receive WQE), one posted afterwards.  There is a
     * stream already, which may take longer than is waited here. */
    vgt_write_once(&p, 0);
    vgt_send(&p.s[0], 1, PVRDMA_WR_SEND, VGT_SIG, 0, 8, NULL, 0);
    vgt_await_counter("vm0", "datapath", "rnr_waits", waits + 1); /* it has begun */
    vgt_expect_none(p.s[0].scq, 20);
    g_assert_cmpint(to_sqd(qp, true), ==, 0);
    g_assert_false(vg_event_wait(p.s[0].g, PVRDMA_EVENT_SQ_DRAINED, qp->handle, 50));
    vgt_send(&p.s[0], 2, PVRDMA_WR_SEND, VGT_SIG, 0, 8, NULL, 0);
    vgt_recv(&p.s[1], 3, 0, 8);
    vgt_recv(&p.s[1], 4, 0, 8);
    vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS);
    vgt_expect(p.s[1].rcq, 3, PVRDMA_WC_SUCCESS);
    vgt_expect_event(p.s[0].g, PVRDMA_EVENT_SQ_DRAINED, qp->handle);
    vgt_expect_none(p.s[0].scq, 50);
    /* The receive side goes on meanwhile. */
    vgt_recv(&p.s[0], 5, 0, 8);
    vgt_send(&p.s[1], 6, PVRDMA_WR_SEND, VGT_SIG, 0, 8, NULL, 0);
    vgt_expect(p.s[0].rcq, 5, PVRDMA_WC_SUCCESS);
    vgt_expect(p.s[1].scq, 6, PVRDMA_WC_SUCCESS);
    vg_qp_to_state(qp, PVRDMA_QPS_RTS);
    vgt_expect(p.s[0].scq, 2, PVRDMA_WC_SUCCESS);
    vgt_expect(p.s[1].rcq, 4, PVRDMA_WC_SUCCESS);
    vgt_pair_close(&p);
}

/* SQD allows for another path: messages go to the new peer, not the old one. */
static void test_sqd_new_path(void)
{
    struct vgt_opts unconnected = {.unconnected = true};
    struct vgt_pair p;
    struct vgt_side third;
    struct vg_conn c = {0};
    struct pvrdma_qp_attr a = {
        .ah_attr = {.hop_limit = 64, .ah_flags = 1, .port_num = 1, .dgid = vg_gid(2)}};

    vgt_pair_open(&p, 0, 1, NULL);
    vgt_side_open(&third, 2, &unconnected, 1);
    /* The number stays, so it must be the new peer's too. */
    g_assert_cmpuint(third.qp->qpn, ==, p.s[1].qp->qpn);
    vgt_write_once(&p, 1);
    g_assert_cmpint(to_sqd(p.s[0].qp, false), ==, 0);
    g_assert_cmpint(vg_query_qp(p.s[0].g, p.s[0].qp->handle, &a), ==, 0);
    vg_qp_to_init(third.qp, &c);
    vg_qp_to_rtr(third.qp, &p.s[0].g->gid, p.s[0].qp->qpn, a.sq_psn, &c);
    a.ah_attr.dgid = vg_gid(2);
    vg_qp_modify(p.s[0].qp, PVRDMA_QP_AV, &a);
    vg_qp_to_state(p.s[0].qp, PVRDMA_QPS_RTS);

    g_assert_cmpuint(third.mr->rkey, ==, p.s[1].mr->rkey);
    vgt_fill(VG_MR_HOST(p.s[0].mr, 0), 8, 4);
    memset(VG_MR_HOST(p.s[1].mr, 0), 0, 8);
    vgt_write_once(&p, 2);
    vgt_check(VG_MR_HOST(third.mr, 0), 8, 4);
    g_assert_cmpuint(*VG_MR_HOST(p.s[1].mr, 0), ==, 0);
    vgt_side_close(&third);
    vgt_pair_close(&p);
}

/* ---- no_notify ---- */

static struct pvrdma_ext_ring *ring_of(const struct vgt_side *s)
{
    return (struct pvrdma_ext_ring *)(void *)s->qp->mem->host;
}

static void wait_word(const uint32_t *word, uint32_t value)
{
    int64_t end = vg_now_ns() + VGT_WAIT_MS * 1000000ll;

    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) != value) {
        g_assert_cmpint(vg_now_ns(), <, end);
        g_usleep(10);
    }
}

/* The device's word on who has to notify follows what it is doing. */
static void test_no_notify(void)
{
    struct vg_opts g = {.db = VG_DB_EXT};
    struct vgt_opts o = {.guest = {g, g}};
    int64_t end = vg_now_ns() + VGT_WAIT_MS * 1000000ll;
    uint32_t *tx, *rx;
    bool watched = false;
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, &o);
    tx = &ring_of(&p.s[0])->tx_no_notify.value;
    rx = &ring_of(&p.s[1])->rx_no_notify.value;
    g_assert_cmpuint(*tx, ==, 0);
    g_assert_cmpuint(*rx, ==, 0);

    /*
     * Sends: watched while the worker polls, not while it sleeps, which on a busy machine
     * it does before this thread comes to see its word.
     */
    do {
        g_assert_cmpint(vg_now_ns(), <, end);
        for (unsigned i = 0; i < 16; i++) {
            vgt_send(&p.s[0], 1, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p.s[1], 0);
        }
        for (unsigned i = 0; i < 16; i++) {
            watched |= __atomic_load_n(tx, __ATOMIC_ACQUIRE) != 0;
            vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS);
        }
    } while (!watched);
    wait_word(tx, 0);
    g_assert_cmpuint(*rx, ==, 0);

    /* Receives: of interest only while a message waits for one. */
    vgt_recv(&p.s[1], 2, 0, 8);
    wait_word(rx, 1);
    vgt_send(&p.s[0], 3, PVRDMA_WR_SEND, VGT_SIG, 0, 8, NULL, 0);
    vgt_expect(p.s[1].rcq, 2, PVRDMA_WC_SUCCESS);
    g_assert_cmpuint(*rx, ==, 1);
    vgt_send(&p.s[0], 4, PVRDMA_WR_SEND, VGT_SIG, 0, 8, NULL, 0);
    wait_word(rx, 0);
    vgt_recv(&p.s[1], 5, 0, 8);
    vgt_expect(p.s[1].rcq, 5, PVRDMA_WC_SUCCESS);
    vgt_recv(&p.s[1], 6, 0, 8);
    wait_word(rx, 1);
    /* In ERR whatever is posted has to be flushed. */
    vg_qp_to_state(p.s[1].qp, PVRDMA_QPS_ERR);
    vgt_expect(p.s[1].rcq, 6, PVRDMA_WC_WR_FLUSH_ERR);
    g_assert_cmpuint(*rx, ==, 0);
    vgt_recv(&p.s[1], 7, 0, 8);
    vgt_expect(p.s[1].rcq, 7, PVRDMA_WC_WR_FLUSH_ERR);
    vgt_pair_close(&p);
}

/* A doorbell that is found before the guest has reset its indices. */
static void test_reset_stale(void)
{
    struct vg_opts g = {.db = VG_DB_EXT};
    struct vgt_opts o = {.guest = {g, g}};
    struct pvrdma_cqe c;
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, &o);
    vg_qp_to_state(p.s[0].qp, PVRDMA_QPS_RESET);
    *p.s[0].qp->sq.prod_tail = 6;
    *p.s[0].qp->rq.prod_tail = 6;
    vg_ring_send(p.s[0].qp);
    vg_ring_recv(p.s[0].qp);
    g_usleep(20000);
    *p.s[0].qp->sq.prod_tail = 0;
    *p.s[0].qp->rq.prod_tail = 0;
    vg_qp_to_reset(p.s[1].qp);
    vg_qp_connect(p.s[0].qp, p.s[1].qp, NULL);
    vgt_write_once(&p, 9);
    g_assert_cmpint(vg_cq_poll(p.s[0].scq, &c, 1), ==, 0);
    vgt_pair_close(&p);
}

/* First message in RTR: COMM_EST at the receiver. */
static void test_comm_est(void)
{
    struct vgt_opts o = {.unconnected = true};
    struct vgt_pair p;
    struct vgt_side *a = &p.s[0], *b = &p.s[1];

    vgt_pair_open(&p, 0, 1, &o);
    vg_qp_to_init(b->qp, NULL);
    vg_qp_to_rtr(b->qp, &a->g->gid, a->qp->qpn, 0, NULL);
    vg_qp_reset_to_rts(a->qp, &b->g->gid, b->qp->qpn, 0, 0, NULL);
    vgt_recv(b, 1, 0, 8);
    vgt_send(a, 2, PVRDMA_WR_SEND, VGT_SIG, 0, 8, NULL, 0);
    vgt_expect(b->rcq, 1, PVRDMA_WC_SUCCESS);
    vgt_expect_event(b->g, PVRDMA_EVENT_COMM_EST, b->qp->handle);
    vgt_pair_close(&p);
}

/* More than 512 async events of one kind while nobody reads: one of the rest comes. */
static void test_async_overrun(void)
{
    struct vgt_pair p;
    struct pvrdma_ring *ring;
    struct pvrdma_eqe ev;
    unsigned n = 0;

    vgt_pair_open(&p, 0, 1, NULL);
    ring = &((struct pvrdma_ring_state *)p.s[0].g->async_ring->host)->rx;
    for (unsigned i = 0; i < 600; i++) {
        uint32_t tail = ring->prod_tail;

        g_assert_cmpint(to_sqd(p.s[0].qp, true), ==, 0);
        /* Let the worker say so, if it still can. */
        for (unsigned k = 0; k < (i < 500 ? 100000 : 20); k++) {
            if (__atomic_load_n(&ring->prod_tail, __ATOMIC_ACQUIRE) != tail) {
                break;
            }
            g_usleep(50);
        }
        vg_qp_to_state(p.s[0].qp, PVRDMA_QPS_RTS);
    }
    while (vg_event_poll(p.s[0].g, &ev)) {
        g_assert_true(ev.type == PVRDMA_EVENT_SQ_DRAINED ||
                      ev.type == PVRDMA_EVENT_COMM_EST ||
                      ev.type == PVRDMA_EVENT_PORT_ACTIVE);
        n++;
    }
    g_assert_cmpuint(n, <=, 513);
    g_assert_cmpuint(n, >=, 500);
    /* And it goes on working. */
    g_assert_cmpint(to_sqd(p.s[0].qp, true), ==, 0);
    vgt_expect_event(p.s[0].g, PVRDMA_EVENT_SQ_DRAINED, p.s[0].qp->handle);
    vgt_pair_close(&p);
}

/* ---- addresses ---- */

static void test_gid(void)
{
    struct vgt_opts o = {.conn = {.timeout = 8, .retry_cnt = 1}};
    struct pvrdma_gid mine, other = vg_gid(1), nobody = vg_gid(99);
    struct vguest *g;
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, &o);
    g = p.s[0].g;
    mine = g->gid;
    /* A GID is the guest's claim; only configured ones are believed. */
    g_assert_cmpint(vg_bind_gid(g, 1, &other), >, 0);
    g_assert_cmpint(vg_bind_gid(g, 1, &nobody), >, 0);
    g_assert_cmpint(vg_bind_gid(g, g->dsr->caps.gid_tbl_len, &mine), >, 0);
    g_assert_cmpint(vg_bind_gid(g, 0xffffffff, &mine), >, 0);
    g_assert_cmpint(vg_unbind_gid(g, 1, &mine), >, 0);
    g_assert_cmpint(vg_unbind_gid(g, 0xffffffff, &mine), >, 0);
    /* In two slots it stays until both are gone. */
    g_assert_cmpint(vg_bind_gid(g, g->dsr->caps.gid_tbl_len - 1, &mine), ==, 0);
    g_assert_cmpint(vg_unbind_gid(g, g->dsr->caps.gid_tbl_len - 1, &mine), ==, 0);
    vgt_complete(&p.s[1], 1, PVRDMA_WR_RDMA_WRITE, 0, 8, &p.s[0], 0);
    /* Without it the VM cannot be reached, nor reach anybody. */
    g_assert_cmpint(vg_unbind_gid(g, 0, &mine), ==, 0);
    vgt_send(&p.s[1], 2, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p.s[0], 0);
    vgt_expect(p.s[1].scq, 2, PVRDMA_WC_RETRY_EXC_ERR);
    vgt_send(&p.s[0], 3, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p.s[1], 0);
    vgt_expect(p.s[0].scq, 3, PVRDMA_WC_RETRY_EXC_ERR);
    g_assert_cmpint(vg_bind_gid(g, 0, &mine), ==, 0);
    vgt_pair_reconnect(&p, &o.conn);
    vgt_complete(&p.s[1], 4, PVRDMA_WR_RDMA_WRITE, 0, 8, &p.s[0], 0);
    vgt_pair_close(&p);
}

/* ---- the GSI QP, as the guest kernel's MAD layer uses it ---- */

static int gsi_modify(struct vg_qp *qp, enum pvrdma_qp_state state, uint32_t mask)
{
    struct pvrdma_qp_attr a = {.qp_state = state, .qkey = 0x80010000};

    return vg_modify_qp(qp->g, qp->handle, PVRDMA_QP_STATE | mask, &a);
}

static void gsi_send(struct vg_qp *qp, struct vg_mr *dma, uint64_t gpa, uint64_t id)
{
    struct pvrdma_sge sge = vg_sge(dma, gpa, 256);
    struct pvrdma_av av = vg_av(qp->pd, 0, &qp->g->gid);
    struct vg_wr wr = vg_wr_datagram(id, VGT_SIG, &sge, &av, 1, 0x80010000);

    g_assert_cmpuint(vg_post_send(qp, &wr, 1), ==, 1);
}

static void test_gsi(void)
{
    struct vguest *g = vguest_new(vgt_daemon, 0, NULL);
    struct vg_qp_opts o = {.type = PVRDMA_QPT_GSI,
                           .send_wr = 128,
                           .recv_wr = 512,
                           .send_sge = 2,
                           .recv_sge = 1};
    struct vg_pd *pd = vg_pd_new_kernel(g), *user = vg_pd_new(g);
    struct vg_cq *cq = vg_cq_new(pd, 1024), *ucq = vg_cq_new(user, 16);
    struct vg_mr *dma = vg_mr_new_dma(pd);
    uint64_t gpa = vg_alloc_pages(g, 2);
    struct pvrdma_sge sge = vg_sge(dma, gpa + 4096, 296);
    struct vg_wr rwr = {.wr_id = 7, .nsge = 1, .sge = &sge};
    struct pvrdma_cmd_create_qp req = {.max_send_wr = 1,
                                       .max_recv_wr = 1,
                                       .max_send_sge = 1,
                                       .max_recv_sge = 1,
                                       .total_chunks = 3,
                                       .send_chunks = 1,
                                       .qp_type = PVRDMA_QPT_GSI};
    struct pvrdma_resp_create_qp resp;
    struct vg_buf *mem = vg_buf_new(g, 0, 3 * 4096, VG_SCATTERED);
    struct vg_qp *qp;

    /* Not for a program; and one for a port. */
    req.pdir_dma = vg_pdir_new(g, mem->page, 3);
    req.pd_handle = user->handle;
    req.send_cq_handle = req.recv_cq_handle = ucq->handle;
    g_assert_cmpint(vg_create_qp(g, &req, &resp), >, 0);
    qp = vg_qp_new(pd, cq, cq, &o);
    req.pd_handle = pd->handle;
    req.send_cq_handle = req.recv_cq_handle = cq->handle;
    g_assert_cmpint(vg_create_qp(g, &req, &resp), >, 0);

    g_assert_cmpint(gsi_modify(qp, PVRDMA_QPS_INIT,
                               PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_QKEY | PVRDMA_QP_PORT),
                    >, 0);
    g_assert_cmpint(
        gsi_modify(qp, PVRDMA_QPS_INIT, PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_QKEY), ==, 0);
    g_assert_cmpint(gsi_modify(qp, PVRDMA_QPS_RTR, 0), ==, 0);
    g_assert_cmpint(gsi_modify(qp, PVRDMA_QPS_RTS, PVRDMA_QP_SQ_PSN), ==, 0);
    for (unsigned i = 0; i < 512; i++) {
        g_assert_cmpuint(vg_post_recv(qp, &rwr, 1), ==, 1);
    }
    /* To itself. */
    for (unsigned i = 10; i < 20; i++) {
        gsi_send(qp, dma, gpa, i);
        g_assert_cmpuint(vgt_expect(cq, 7, PVRDMA_WC_SUCCESS).byte_len, ==, 296);
        vgt_expect(cq, i, PVRDMA_WC_SUCCESS);
    }
    vg_qp_to_state(qp, PVRDMA_QPS_ERR);
    for (unsigned i = 10; i < 512; i++) {
        vgt_expect(cq, 7, PVRDMA_WC_WR_FLUSH_ERR);
    }
    vg_qp_free(qp);
    vg_pdir_free(g, req.pdir_dma, 3);
    vg_buf_free(mem);
    vg_free_pages(g, gpa, 2);
    vg_mr_free(dma);
    vg_cq_free(cq);
    vg_cq_free(ucq);
    vg_pd_free(pd);
    vg_pd_free(user);
    vguest_free(g);
}

int main(int argc, char **argv)
{
    struct vg_daemon_opts o = {.n_vms = 3, .poll_us = -1};

    vgt_init(&argc, &argv, 120);
    vgt_daemon = vg_daemon_start(&o);
    g_test_add_func("/state/transitions", test_transitions);
    g_test_add_func("/state/bad-attributes", test_bad_attributes);
    g_test_add_func("/state/query-qp", test_query_qp);
    g_test_add_func("/state/sqd", test_sqd);
    g_test_add_func("/state/sqd-new-path", test_sqd_new_path);
    g_test_add_func("/state/comm-est", test_comm_est);
    g_test_add_func("/state/async-overrun", test_async_overrun);
    g_test_add_func("/state/gid", test_gid);
    g_test_add_func("/state/gsi", test_gsi);
    g_test_add_func("/state/no-notify", test_no_notify);
    g_test_add_func("/state/reset-stale-index", test_reset_stale);
    return vgt_run();
}
