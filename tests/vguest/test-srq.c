/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: shared receive queues.
 *
 * VM 0 receives: its queue pairs share one SRQ, their peers are in VMs 1 and 2, which
 * two workers serve.  Each receive has a slot of its own in VM 0's memory and its slot's
 * number as wr_id, so that one that is used twice, or lost, shows.
 *
 * Every test runs three times: with stock queues, with extended ones, and with a stock
 * SRQ in a context that is extended otherwise.
 */
#include "vgtest.h"

#include <errno.h>

#define MIB   (1u << 20)
#define LANES 32u

enum layout { STOCK, EXTENDED, MIXED };

/* One connection: @tx of VM 1 or 2 sends, @rx of VM 0 receives. */
struct lane {
    struct vgt_side *from;
    struct vg_qp *tx, *rx;
    unsigned sent, got;
    unsigned on_way; /* posted and not completed at the sender */
};

struct world {
    enum layout layout;
    struct vguest *g; /* VM 0 */
    struct vg_pd *pd;
    struct vg_cq *cq;  /* its receives complete here */
    struct vg_cq *scq; /* not used, but each QP has one */
    struct vg_mr *mr;
    struct vg_srq *srq;
    struct vgt_side from[2]; /* qp: not used */
    unsigned n;
    struct lane lane[LANES];
    struct vg_conn conn;
};

static struct vgt_opts side_opts(enum layout layout)
{
    enum vg_db_mode db = layout == STOCK ? VG_DB_SHARED : VG_DB_EXT;

    return (struct vgt_opts){.guest = {{.db = db}, {.db = db}},
                             .cqe = 1024,
                             .mr_len = 4 * MIB,
                             .unconnected = true};
}

static void lane_open(struct world *w, struct lane *l, struct vgt_side *from)
{
    struct vg_qp_opts rx = {.srq = w->srq}, tx = {.sq_sig_all = true};

    *l = (struct lane){.from = from};
    l->tx = vg_qp_new(from->pd, from->scq, from->rcq, &tx);
    l->rx = vg_qp_new(w->pd, w->scq, w->cq, &rx);
    vg_qp_connect(l->tx, l->rx, &w->conn);
}

/* @n connections; the SRQ takes @wr receives of 2 SGEs. */
static void world_open(struct world *w, enum layout layout, unsigned n, uint32_t wr,
                       uint64_t mr_len, const struct vg_conn *conn)
{
    struct vgt_opts o = side_opts(layout);

    memset(w, 0, sizeof(*w));
    w->layout = layout;
    w->n = n;
    if (conn) {
        w->conn = *conn;
    }
    w->g = vguest_new(vgt_daemon, 0, &o.guest[0]);
    w->pd = vg_pd_new(w->g);
    w->cq = vg_cq_new(w->pd, 1024);
    w->scq = vg_cq_new(w->pd, 64);
    w->mr = vg_mr_alloc(w->pd, 0x7f0000000000ull, mr_len, VG_ACCESS_ALL);
    w->srq = vg_srq_new(w->pd, wr, 2, layout == MIXED);
    for (unsigned i = 0; i < 2; i++) {
        vgt_side_open(&w->from[i], 1 + i, &o, 0);
    }
    for (unsigned i = 0; i < n; i++) {
        lane_open(w, &w->lane[i], &w->from[i % 2]);
    }
}

static void world_close(struct world *w)
{
    for (unsigned i = 0; i < w->n; i++) {
        vg_qp_free(w->lane[i].tx);
        if (w->lane[i].rx) {
            vg_qp_free(w->lane[i].rx);
        }
    }
    for (unsigned i = 0; i < 2; i++) {
        vgt_side_close(&w->from[i]);
    }
    vg_srq_free(w->srq);
    vg_mr_free(w->mr);
    vg_cq_free(w->cq);
    vg_cq_free(w->scq);
    vg_pd_free(w->pd);
    vgt_assert_no_objects("vm0");
    vguest_free(w->g);
}

/* A receive of @len bytes at @off, in two pieces. */
static void post(struct world *w, uint64_t wr_id, uint64_t off, uint32_t len)
{
    struct pvrdma_sge sge[2] = {vg_sge(w->mr, off, len / 3),
                                vg_sge(w->mr, off + len / 3, len - len / 3)};
    struct vg_wr wr = {.wr_id = wr_id, .nsge = 2, .sge = sge};

    g_assert_cmpuint(vg_post_srq(w->srq, &wr, 1), ==, 1);
}

static void send_lane(struct lane *l, uint64_t wr_id, uint64_t off, uint32_t len)
{
    struct pvrdma_sge sge = vg_sge(l->from->mr, off, len);
    struct vg_wr wr = vg_wr_of(wr_id, PVRDMA_WR_SEND, VGT_SIG, &sge);

    g_assert_cmpuint(vg_post_send(l->tx, &wr, 1), ==, 1);
}

/* One message through @l, into the receive that is @wr_id. */
static void one(struct world *w, struct lane *l, uint64_t wr_id)
{
    struct pvrdma_cqe cqe;

    send_lane(l, 77, 0, 64);
    cqe = vgt_expect(w->cq, wr_id, PVRDMA_WC_SUCCESS);
    g_assert_cmpuint(cqe.qp, ==, l->rx->handle);
    g_assert_cmpuint(cqe.byte_len, ==, 64);
    vgt_expect(l->from->scq, 77, PVRDMA_WC_SUCCESS);
}

static bool event_comes(struct world *w, uint32_t type, uint32_t info, int ms)
{
    return vg_event_wait(w->g, type, info, ms);
}

#define expect_event(w, type, info) g_assert_true(event_comes(w, type, info, VGT_WAIT_MS))

/* Have the VM's worker been around: nothing more comes of what was before. */
#define QUIET_MS VGT_QUIET_MS(50)

/* ---- checksummed traffic -------------------------------------------------- */

/* Few receives for many senders: all of them wait now and then. */
#define SLOTS    24u
#define SLOT_LEN (128u << 10)
#define DEPTH    4u

static uint32_t message_len(unsigned lane, unsigned k)
{
    uint32_t h = (lane * 7919u + k) * 2654435761u >> 8;

    return h % 16 == 0 ? 65536 + h % 65536 : h % 3 ? h % 200 : h % 9000;
}

static uint64_t message_seed(unsigned lane, unsigned k)
{
    return (uint64_t)lane << 32 | (k + 1);
}

static void take_sends(struct world *w)
{
    for (unsigned s = 0; s < 2; s++) {
        struct pvrdma_cqe cqe[32];
        int n = vg_cq_poll(w->from[s].scq, cqe, 32);

        for (int i = 0; i < n; i++) {
            g_assert_cmpuint(cqe[i].status, ==, PVRDMA_WC_SUCCESS);
            g_assert_cmpuint(cqe[i].wr_id, <, w->n);
            w->lane[cqe[i].wr_id].on_way--;
        }
    }
}

static void feed(struct world *w, unsigned i, unsigned total)
{
    struct lane *l = &w->lane[i];

    /* A slot of the sender's is free again once the receiver has checked it. */
    while (l->sent < total && l->sent < l->got + DEPTH && l->on_way < DEPTH) {
        uint64_t off = (i / 2 * DEPTH + l->sent % DEPTH) * SLOT_LEN;
        uint32_t len = message_len(i, l->sent);

        vgt_fill(VG_MR_HOST(l->from->mr, off), len, message_seed(i, l->sent));
        send_lane(l, i, off, len);
        l->sent++;
        l->on_way++;
    }
}

static unsigned lane_of(const struct world *w, uint32_t handle)
{
    for (unsigned i = 0; i < w->n; i++) {
        if (w->lane[i].rx->handle == handle) {
            return i;
        }
    }
    g_error("a completion of QP %u, which is not there", handle);
}

static void test_traffic(gconstpointer data)
{
    struct vgt_opts o = side_opts((enum layout)GPOINTER_TO_INT(data));
    unsigned total = MAX(vgt_rounds(150), 20), left;
    bool posted[SLOTS];
    struct world w;

    world_open(&w, (enum layout)GPOINTER_TO_INT(data), 0, 32, SLOTS * SLOT_LEN, NULL);
    for (unsigned i = 0; i < 2; i++) { /* with memory for all lanes */
        vgt_side_close(&w.from[i]);
        o.mr_len = LANES / 2 * DEPTH * SLOT_LEN;
        vgt_side_open(&w.from[i], 1 + i, &o, 0);
    }
    w.n = LANES;
    for (unsigned i = 0; i < w.n; i++) {
        lane_open(&w, &w.lane[i], &w.from[i % 2]);
    }
    for (unsigned s = 0; s < SLOTS; s++) {
        post(&w, s, s * SLOT_LEN, SLOT_LEN);
        posted[s] = true;
    }
    for (left = w.n * total; left;) {
        int64_t end = vg_now_ns() + VGT_WAIT_MS * 1000000ll;
        struct pvrdma_cqe cqe;

        do { /* the senders may hear later than the receiver */
            g_assert_cmpint(vg_now_ns(), <, end);
            take_sends(&w);
            for (unsigned i = 0; i < w.n; i++) {
                feed(&w, i, total);
            }
        } while (!vg_cq_wait(w.cq, &cqe, 1));
        do {
            unsigned i = lane_of(&w, (uint32_t)cqe.qp), k = w.lane[i].got++;

            g_assert_cmpuint(cqe.status, ==, PVRDMA_WC_SUCCESS);
            g_assert_cmpuint(cqe.wr_id, <, SLOTS);
            g_assert_true(posted[cqe.wr_id]);
            g_assert_cmpuint(cqe.byte_len, ==, message_len(i, k));
            vgt_check(VG_MR_HOST(w.mr, cqe.wr_id * SLOT_LEN), cqe.byte_len,
                      message_seed(i, k));
            post(&w, cqe.wr_id, cqe.wr_id * SLOT_LEN, SLOT_LEN);
            left--;
        } while (vg_cq_poll(w.cq, &cqe, 1) == 1);
    }
    for (unsigned i = 0; i < w.n; i++) {
        g_assert_cmpuint(w.lane[i].got, ==, total);
    }
    vgt_expect_none(w.cq, QUIET_MS);
    world_close(&w);
}

/* ---- waiting ------------------------------------------------------------------ */

/* Timer 31 is 491 ms: who is not woken comes too late. */
static const struct vg_conn slow_rnr = {.min_rnr_timer = 31, .rnr_retry = 7};

static void test_wake(gconstpointer data)
{
    struct world w;
    int64_t began, ns;
    unsigned in_order = 0;

    world_open(&w, (enum layout)GPOINTER_TO_INT(data), 12, 32, MIB, &slow_rnr);
    for (unsigned i = 0; i < w.n; i++) {
        send_lane(&w.lane[i], i, 0, 64);
        g_usleep(3000); /* they come to wait one after the other */
    }
    vgt_expect_none(w.cq, 5);
    began = vg_now_ns();
    for (unsigned i = 0; i < w.n; i++) {
        struct pvrdma_cqe cqe;

        post(&w, i, i * 64, 64);
        cqe = vgt_expect(w.cq, i, PVRDMA_WC_SUCCESS);
        in_order += cqe.qp == w.lane[i].rx->handle;
    }
    ns = vg_now_ns() - began;
    g_test_message("%u waiters had their receives in %.1f ms, %u in turn", w.n, ns / 1e6,
                   in_order);
    /* Before the first timer: each was woken.  Their order is the unit test's. */
    vgt_assert_shorter(ns / 1e6, 491 / 2.0);
    for (unsigned i = 0; i < w.n; i++) {
        struct pvrdma_cqe cqe;

        g_assert_true(vg_cq_wait(w.lane[i].from->scq, &cqe, VGT_WAIT_MS));
        g_assert_cmpuint(cqe.status, ==, PVRDMA_WC_SUCCESS);
    }
    world_close(&w);
}

/* ---- limit -------------------------------------------------------------------- */

static void test_limit(gconstpointer data)
{
    struct pvrdma_srq_attr a;
    struct world w;
    unsigned next = 0;

    world_open(&w, (enum layout)GPOINTER_TO_INT(data), 2, 16, MIB, NULL);
    for (unsigned i = 0; i < 10; i++) {
        post(&w, i, i * 64, 64);
    }
    g_assert_cmpint(vg_modify_srq(w.g, w.srq->handle, PVRDMA_SRQ_LIMIT, 17), !=, 0);
    g_assert_cmpint(vg_modify_srq(w.g, w.srq->handle, PVRDMA_SRQ_MAX_WR, 0), !=, 0);
    g_assert_cmpint(vg_modify_srq(w.g, 999, PVRDMA_SRQ_LIMIT, 1), !=, 0);
    for (unsigned round = 0; round < 2; round++) {
        uint32_t limit = round ? 5 : 8;

        g_assert_cmpint(vg_modify_srq(w.g, w.srq->handle, PVRDMA_SRQ_LIMIT, limit), ==,
                        0);
        g_assert_cmpint(vg_query_srq(w.g, w.srq->handle, &a), ==, 0);
        g_assert_cmpuint(a.srq_limit, ==, limit);
        g_assert_cmpuint(a.max_wr, ==, 16);
        g_assert_cmpuint(a.max_sge, ==, 2);
        while (10 - next > limit) { /* as many as the limit are not below it */
            one(&w, &w.lane[next % 2], next);
            next++;
        }
        g_assert_false(
            event_comes(&w, PVRDMA_EVENT_SRQ_LIMIT_REACHED, w.srq->handle, QUIET_MS));
        one(&w, &w.lane[next % 2], next);
        next++;
        expect_event(&w, PVRDMA_EVENT_SRQ_LIMIT_REACHED, w.srq->handle);
        g_assert_cmpint(vg_query_srq(w.g, w.srq->handle, &a), ==, 0);
        g_assert_cmpuint(a.srq_limit, ==, 0);
        one(&w, &w.lane[next % 2], next);
        next++;
        g_assert_false(
            event_comes(&w, PVRDMA_EVENT_SRQ_LIMIT_REACHED, w.srq->handle, QUIET_MS));
    }
    /* What was posted since the index was read last counts. */
    g_assert_cmpint(vg_modify_srq(w.g, w.srq->handle, PVRDMA_SRQ_LIMIT, 5), ==, 0);
    for (unsigned i = 10; i < 16; i++) {
        post(&w, i, i * 64, 64);
    }
    one(&w, &w.lane[0], next++);
    g_assert_false(
        event_comes(&w, PVRDMA_EVENT_SRQ_LIMIT_REACHED, w.srq->handle, QUIET_MS));
    world_close(&w);
}

/* ---- the end of a QP ------------------------------------------------------------ */

static void test_last_wqe(gconstpointer data)
{
    struct world w;

    world_open(&w, (enum layout)GPOINTER_TO_INT(data), 2, 16, MIB, NULL);
    for (unsigned i = 0; i < 8; i++) {
        post(&w, i, i * 64, 64);
    }
    one(&w, &w.lane[0], 0);
    for (unsigned round = 0; round < 2; round++) {
        struct lane *l = &w.lane[0];

        vg_qp_to_state(l->rx, PVRDMA_QPS_ERR);
        expect_event(&w, PVRDMA_EVENT_QP_LAST_WQE_REACHED, l->rx->handle);
        /* Once, and nothing of the SRQ was flushed. */
        vg_qp_to_state(l->rx, PVRDMA_QPS_ERR);
        g_assert_false(
            event_comes(&w, PVRDMA_EVENT_QP_LAST_WQE_REACHED, l->rx->handle, QUIET_MS));
        vgt_expect_none(w.cq, 5);
        one(&w, &w.lane[1], 1 + 2 * round);
        vg_qp_to_reset(l->rx);
        vg_qp_to_reset(l->tx);
        vg_qp_connect(l->tx, l->rx, NULL);
        one(&w, l, 2 + 2 * round);
    }
    world_close(&w);
}

static const struct vg_conn impatient = {.timeout = 8, .retry_cnt = 1, .rnr_retry = 7};

static void reconnect(struct world *w, struct lane *l)
{
    struct pvrdma_cqe cqe;

    vg_qp_to_reset(l->tx);
    while (vg_cq_poll(l->from->scq, &cqe, 1) == 1) {
    }
    if (l->rx) {
        vg_qp_to_reset(l->rx);
    } else {
        struct vg_qp_opts rx = {.srq = w->srq};

        l->rx = vg_qp_new(w->pd, w->scq, w->cq, &rx);
    }
    vg_qp_connect(l->tx, l->rx, &impatient);
}

enum end { END_ERR, END_RESET, END_DESTROY, N_ENDS };

static void end_qp(struct world *w, struct lane *l, enum end how)
{
    switch (how) {
    case END_ERR:
        vg_qp_to_state(l->rx, PVRDMA_QPS_ERR);
        expect_event(w, PVRDMA_EVENT_QP_LAST_WQE_REACHED, l->rx->handle);
        break;
    case END_RESET:
        vg_qp_to_reset(l->rx);
        break;
    default:
        vg_qp_free(l->rx);
        l->rx = NULL;
        break;
    }
}

/*
 * A message of 1 MiB is on its way when its receiver fails, is reset or goes.  Then its
 * memory is the guest's, its receive is spent - completed or flushed before
 * LAST_WQE_REACHED, or silently - and the next message of another QP gets the next one.
 */
static void test_broken_off(gconstpointer data)
{
    unsigned want = vgt_rounds(20), caught[N_ENDS] = {0}, ended[N_ENDS] = {0};
    GRand *r = g_rand_new_with_seed(9);
    uint64_t id = 0;
    struct world w;

    world_open(&w, (enum layout)GPOINTER_TO_INT(data), 2, 16, 2 * MIB, &impatient);
    memset(VG_MR_HOST(w.from[0].mr, 0), 0x11, MIB);
    for (unsigned round = 0; round < 3 * want; round++) {
        struct lane *l = &w.lane[0];
        uint8_t *host = VG_MR_HOST(w.mr, 0);
        uint32_t head = __atomic_load_n(w.srq->rq.cons_head, __ATOMIC_ACQUIRE);
        enum end how = (enum end)(round % N_ENDS);
        struct pvrdma_cqe cqe;
        bool claimed;
        int n;

        post(&w, ++id, 0, MIB);
        send_lane(l, 2, 0, MIB);
        g_usleep(g_rand_int(r) % 80);
        end_qp(&w, l, how);
        n = vg_cq_poll(w.cq, &cqe, 1);
        memset(host, 0x5a, MIB);
        g_usleep(100);
        for (size_t i = 0; i < MIB; i++) {
            g_assert_cmphex(host[i], ==, 0x5a);
        }
        claimed = __atomic_load_n(w.srq->rq.cons_head, __ATOMIC_ACQUIRE) != head;
        ended[how]++;
        if (n) {
            g_assert_cmpuint(cqe.wr_id, ==, id);
            g_assert_true(claimed);
            if (cqe.status != PVRDMA_WC_SUCCESS) {
                g_assert_cmpuint(how, ==, END_ERR);
                g_assert_cmpuint(cqe.status, ==, PVRDMA_WC_WR_FLUSH_ERR);
                caught[how]++;
            }
        } else if (claimed) {
            /* The guest need not hear of it if it has no QP any more. */
            g_assert_cmpuint(how, !=, END_ERR);
            caught[how]++;
        }
        if (!claimed) { /* it is still there, for anybody */
            one(&w, &w.lane[1], id);
        }
        post(&w, ++id, MIB, 64);
        one(&w, &w.lane[1], id);
        reconnect(&w, l);
        g_assert_cmpint(vg_cq_poll(w.cq, &cqe, 1), ==, 0);
    }
    g_test_message(
        "in the middle: %u of %u that failed, %u of %u reset, %u of %u destroyed",
        caught[END_ERR], ended[END_ERR], caught[END_RESET], ended[END_RESET],
        caught[END_DESTROY], ended[END_DESTROY]);
    g_rand_free(r);
    world_close(&w);
}

/* QPs come and go, by reset, failure and destruction, under traffic of both VMs. */
static void test_churn(gconstpointer data)
{
    unsigned rounds = MAX(vgt_rounds(200), 40), completed = 0;
    GRand *r = g_rand_new_with_seed(4);
    struct pvrdma_cqe cqe;
    struct world w;

    world_open(&w, (enum layout)GPOINTER_TO_INT(data), 8, 64, MIB, &impatient);
    for (unsigned i = 0; i < 64; i++) {
        post(&w, i, i * 8192, 8192);
    }
    for (unsigned round = 0; round < rounds; round++) {
        struct lane *l = &w.lane[round % w.n];
        uint32_t tail, head;

        for (unsigned i = 0; i < w.n; i++) {
            for (unsigned k = 0; k < 4; k++) {
                if (*w.lane[i].tx->sq.prod_tail == *w.lane[i].tx->sq.cons_head) {
                    send_lane(&w.lane[i], i, 0, 1 + g_rand_int(r) % 8192);
                }
            }
        }
        end_qp(&w, l, (enum end)(g_rand_int(r) % N_ENDS));
        while (vg_cq_poll(w.cq, &cqe, 1) == 1) {
            completed += cqe.status == PVRDMA_WC_SUCCESS;
        }
        reconnect(&w, l);
        for (unsigned s = 0; s < 2; s++) {
            while (vg_cq_poll(w.from[s].scq, &cqe, 1) == 1) {
            }
        }
        tail = *w.srq->rq.prod_tail;
        head = __atomic_load_n(w.srq->rq.cons_head, __ATOMIC_ACQUIRE);
        for (; ((tail - head) & 127) < 48; tail++) {
            post(&w, 0, tail % 64 * 8192, 8192);
        }
    }
    g_test_message("%u messages arrived in %u rounds", completed, rounds);
    g_assert_cmpuint(completed, >, rounds / 4);
    g_rand_free(r);
    world_close(&w);
}

/* ---- what a guest gets wrong ---------------------------------------------------- */

static void test_bad_index(gconstpointer data)
{
    static const uint32_t bad[] = {1000, 32, UINT32_MAX, 20};
    struct world w;

    for (unsigned b = 0; b < G_N_ELEMENTS(bad); b++) {
        struct vg_srq *broken;
        struct lane l;

        world_open(&w, (enum layout)GPOINTER_TO_INT(data), 1, 16, MIB, &impatient);
        for (unsigned i = 0; i < 8; i++) {
            post(&w, i, i * 64, 64);
        }
        broken = w.srq;
        w.srq = vg_srq_new(w.pd, 16, 2, w.layout == MIXED);
        lane_open(&w, &l, &w.from[1]);
        post(&w, 100, 0, 64);
        post(&w, 101, 0, 64);
        one(&w, &l, 100);

        /* Further than the ring is long: 20 behind a consumer at 0. */
        __atomic_store_n(broken->rq.prod_tail, bad[b], __ATOMIC_RELEASE);
        send_lane(&w.lane[0], 1, 0, 64);
        vgt_expect(w.from[0].scq, 1, PVRDMA_WC_REM_OP_ERR);
        expect_event(&w, PVRDMA_EVENT_SRQ_ERR, broken->handle);
        expect_event(&w, PVRDMA_EVENT_QP_FATAL, w.lane[0].rx->handle);
        expect_event(&w, PVRDMA_EVENT_QP_LAST_WQE_REACHED, w.lane[0].rx->handle);
        g_assert_cmpuint(vg_qp_state(w.lane[0].rx), ==, PVRDMA_QPS_ERR);
        vgt_expect_none(w.cq, 5);

        /* It stays broken, and is told of once; the other one goes on. */
        __atomic_store_n(broken->rq.prod_tail, 8, __ATOMIC_RELEASE);
        reconnect(&w, &w.lane[0]);
        vg_qp_to_reset(w.lane[0].tx);
        vg_qp_free(w.lane[0].rx);
        w.lane[0].rx = vg_qp_new(w.pd, w.scq, w.cq, &(struct vg_qp_opts){.srq = broken});
        vg_qp_connect(w.lane[0].tx, w.lane[0].rx, &impatient);
        send_lane(&w.lane[0], 2, 0, 64);
        vgt_expect(w.from[0].scq, 2, PVRDMA_WC_REM_OP_ERR);
        g_assert_false(event_comes(&w, PVRDMA_EVENT_SRQ_ERR, broken->handle, QUIET_MS));
        one(&w, &l, 101);

        vg_qp_free(l.tx);
        vg_qp_free(l.rx);
        vg_srq_free(w.srq);
        w.srq = broken;
        world_close(&w);
    }
}

/* One WQE is wrong, or its keys are: that costs its QP, not the SRQ. */
static void test_bad_wqe(gconstpointer data)
{
    struct pvrdma_sge sge[3];
    struct vg_wr wr = {.wr_id = 50, .nsge = 3, .sge = sge};
    struct vg_pd *other;
    struct vg_mr *theirs;
    struct vg_qp *qp;
    struct world w;

    world_open(&w, (enum layout)GPOINTER_TO_INT(data), 2, 16, MIB, &impatient);
    for (unsigned i = 0; i < 3; i++) {
        sge[i] = vg_sge(w.mr, 0, 64);
    }
    g_assert_cmpuint(vg_post_srq(w.srq, &wr, 1), ==, 1); /* of 2 SGEs at most */
    post(&w, 51, 0, 64);
    send_lane(&w.lane[0], 1, 0, 64);
    vgt_expect(w.from[0].scq, 1, PVRDMA_WC_REM_OP_ERR);
    vgt_expect(w.cq, 50, PVRDMA_WC_LOC_QP_OP_ERR);
    expect_event(&w, PVRDMA_EVENT_QP_LAST_WQE_REACHED, w.lane[0].rx->handle);
    one(&w, &w.lane[1], 51);
    g_assert_false(event_comes(&w, PVRDMA_EVENT_SRQ_ERR, w.srq->handle, QUIET_MS));

    /* Too long for it. */
    reconnect(&w, &w.lane[0]);
    post(&w, 52, 0, 63);
    post(&w, 53, 0, 64);
    send_lane(&w.lane[0], 2, 0, 64);
    vgt_expect(w.from[0].scq, 2, PVRDMA_WC_REM_INV_REQ_ERR);
    vgt_expect(w.cq, 52, PVRDMA_WC_LOC_LEN_ERR);
    one(&w, &w.lane[1], 53);

    /* Keys are of the SRQ's PD, whatever the QP's is. */
    other = vg_pd_new(w.g);
    theirs = vg_mr_alloc(other, 0x10000, 8192, VG_ACCESS_ALL);
    qp = w.lane[0].rx;
    w.lane[0].rx = vg_qp_new(other, w.scq, w.cq, &(struct vg_qp_opts){.srq = w.srq});
    reconnect(&w, &w.lane[0]);
    post(&w, 54, 0, 64);
    one(&w, &w.lane[0], 54);
    sge[0] = vg_sge(theirs, 0, 64);
    wr = (struct vg_wr){.wr_id = 55, .nsge = 1, .sge = sge};
    g_assert_cmpuint(vg_post_srq(w.srq, &wr, 1), ==, 1);
    send_lane(&w.lane[0], 3, 0, 64);
    vgt_expect(w.from[0].scq, 3, PVRDMA_WC_REM_OP_ERR);
    vgt_expect(w.cq, 55, PVRDMA_WC_LOC_PROT_ERR);
    vg_qp_free(w.lane[0].rx);
    w.lane[0].rx = qp;
    vg_mr_free(theirs);
    vg_pd_free(other);
    world_close(&w);
}

static int create_qp_with(struct vg_pd *pd, struct vg_cq *cq, uint32_t srq)
{
    uint64_t page[2] = {vg_alloc_page(pd->g), vg_alloc_page(pd->g)};
    struct pvrdma_cmd_create_qp req = {.pdir_dma = vg_pdir_new(pd->g, page, 2),
                                       .pd_handle = pd->handle,
                                       .send_cq_handle = cq->handle,
                                       .recv_cq_handle = cq->handle,
                                       .srq_handle = srq,
                                       .max_send_wr = 1,
                                       .max_send_sge = 1,
                                       .total_chunks = 2,
                                       .send_chunks = 1,
                                       .qp_type = PVRDMA_QPT_RC,
                                       .is_srq = 1};
    struct pvrdma_resp_create_qp resp;
    int err = vg_create_qp(pd->g, &req, &resp);

    if (!err) {
        g_assert_cmpuint(resp.max_recv_wr, ==, 0);
        g_assert_cmpint(vg_destroy(pd->g, PVRDMA_CMD_DESTROY_QP, resp.qp_handle), ==, 0);
    }
    vg_pdir_free(pd->g, req.pdir_dma, 2);
    vg_free_pages(pd->g, page[0], 1);
    vg_free_pages(pd->g, page[1], 1);
    return err;
}

/* Handles of nobody and of another context, doorbells of another page, references. */
static void test_foreign(gconstpointer data)
{
    struct pvrdma_cqe cqe;
    int64_t began;
    int came;
    struct vg_pd *kernel;
    struct vg_cq *kcq;
    struct world w;

    world_open(&w, (enum layout)GPOINTER_TO_INT(data), 1, 16, MIB, &slow_rnr);
    kernel = vg_pd_new_kernel(w.g);
    kcq = vg_cq_new(kernel, 16);
    g_assert_cmpint(create_qp_with(w.pd, w.cq, w.srq->handle), ==, 0);
    g_assert_cmpint(create_qp_with(w.pd, w.cq, 0), ==, ENOENT);
    g_assert_cmpint(create_qp_with(w.pd, w.cq, w.srq->handle + 1), ==, ENOENT);
    g_assert_cmpint(create_qp_with(w.pd, w.cq, UINT32_MAX), ==, ENOENT);
    g_assert_cmpint(create_qp_with(kernel, kcq, w.srq->handle), ==, EPERM);
    g_assert_cmpint(vg_destroy(w.g, PVRDMA_CMD_DESTROY_SRQ, w.srq->handle), ==, EBUSY);
    g_assert_cmpint(vg_destroy(w.g, PVRDMA_CMD_DESTROY_PD, w.pd->handle), ==, EBUSY);
    g_assert_cmpint(vg_destroy(w.g, PVRDMA_CMD_DESTROY_SRQ, UINT32_MAX), ==, ENOENT);

    /* Rung from a page that is not its context's, nobody is woken. */
    began = vg_now_ns();
    send_lane(&w.lane[0], 1, 0, 64);
    vgt_await_counter("vm1", "datapath", "rnr_waits", 1);
    g_assert_cmpuint(
        vg_queue_srq(w.srq,
                     &(struct vg_wr){.wr_id = 3,
                                     .nsge = 1,
                                     .sge = (struct pvrdma_sge[]){vg_sge(w.mr, 0, 64)}},
                     1),
        ==, 1);
    vg_doorbell(w.g, w.g->uar_page + 1, PVRDMA_UAR_SRQ,
                w.srq->handle | PVRDMA_UAR_SRQ_RECV);
    vg_doorbell(w.g, w.g->uar_page, PVRDMA_UAR_SRQ,
                (w.srq->handle + 1) | PVRDMA_UAR_SRQ_RECV);
    vg_doorbell(w.g, w.g->uar_page, PVRDMA_UAR_SRQ,
                PVRDMA_UAR_HANDLE_MASK | PVRDMA_UAR_SRQ_RECV);
    g_usleep(QUIET_MS * 1000);
    came = vg_cq_poll(w.cq, &cqe, 1);
    if (vg_now_ns() - began < 491000000) { /* else its timer may have brought it */
        g_assert_cmpint(came, ==, 0);
    }
    vg_ring_srq(w.srq);
    if (!came) {
        vgt_expect(w.cq, 3, PVRDMA_WC_SUCCESS);
    }
    vgt_expect(w.from[0].scq, 1, PVRDMA_WC_SUCCESS);
    vg_cq_free(kcq);
    vg_pd_free(kernel);
    world_close(&w);
}

/* ---- a hostile VM ------------------------------------------------------------------ */

static gint stop;

/*
 * VM 0 with VMs 1 and 2 for peers does all it can to its SRQ: rings it without end, posts
 * one receive for dozens that wait, and has impossible indices in between.
 */
static gpointer hostile(gpointer data)
{
    struct world *w = data;
    GRand *r = g_rand_new_with_seed(1);
    struct pvrdma_cqe cqe;
    struct pvrdma_sge sge;

    while (!g_atomic_int_get(&stop)) {
        struct lane *l = &w->lane[g_rand_int(r) % w->n];

        for (unsigned i = 0; i < 200; i++) {
            vg_doorbell(w->g, w->g->uar_page, PVRDMA_UAR_SRQ,
                        (g_rand_int(r) % 8) | PVRDMA_UAR_SRQ_RECV);
        }
        for (unsigned i = 0; i < w->n; i++) {
            struct vg_wq *sq = &w->lane[i].tx->sq;

            if (*sq->prod_tail == __atomic_load_n(sq->cons_head, __ATOMIC_ACQUIRE)) {
                send_lane(&w->lane[i], i, 0, 32);
            }
        }
        sge = vg_sge(w->mr, 0, 64);
        vg_post_srq(w->srq, &(struct vg_wr){.nsge = 1, .sge = &sge},
                    1); /* or it is full */
        if (g_rand_int(r) % 64 == 0) {
            struct vg_srq *srq = w->srq;

            __atomic_store_n(srq->rq.prod_tail, g_rand_int(r), __ATOMIC_RELEASE);
            g_usleep(200);
            w->srq = vg_srq_new(w->pd, 16, 2, w->layout == MIXED);
            for (unsigned i = 0; i < w->n; i++) {
                vg_qp_free(w->lane[i].rx);
                w->lane[i].rx = NULL;
                reconnect(w, &w->lane[i]);
            }
            vg_srq_free(srq);
        } else if (g_rand_int(r) % 16 == 0) {
            g_assert_cmpint(
                vg_modify_srq(w->g, w->srq->handle, PVRDMA_SRQ_LIMIT, g_rand_int(r) % 17),
                ==, 0);
            end_qp(w, l, END_RESET);
            reconnect(w, l);
        }
        while (vg_cq_poll(w->cq, &cqe, 1) == 1) {
        }
        for (unsigned s = 0; s < 2; s++) {
            while (vg_cq_poll(w->from[s].scq, &cqe, 1) == 1) {
            }
        }
    }
    g_rand_free(r);
    return NULL;
}

static void test_hostile(gconstpointer data)
{
    struct vgt_traffic t;
    GThread *thread;
    struct world w;

    world_open(&w, (enum layout)GPOINTER_TO_INT(data), LANES, 16, MIB, &impatient);
    vgt_traffic_open(&t, 3, 4, 4, 8, 8192, NULL);
    g_atomic_int_set(&stop, 0);
    thread = g_thread_new("hostile", hostile, &w);
    vgt_traffic_run(&t, vgt_rounds(500));
    g_atomic_int_set(&stop, 1);
    g_thread_join(thread);
    vgt_traffic_close(&t);
    world_close(&w);
}

static void add(const char *name, void (*fn)(gconstpointer))
{
    static const char *const layout[] = {"stock", "extended", "mixed"};

    for (int i = 0; i < 3; i++) {
        g_autofree char *path = g_strdup_printf("/srq/%s/%s", name, layout[i]);

        g_test_add_data_func(path, GINT_TO_POINTER(i), fn);
    }
}

int main(int argc, char **argv)
{
    vgt_start(&argc, &argv, 170, 5);
    add("traffic", test_traffic);
    add("wake", test_wake);
    add("limit", test_limit);
    add("last-wqe", test_last_wqe);
    add("broken-off", test_broken_off);
    add("churn", test_churn);
    add("bad-index", test_bad_index);
    add("bad-wqe", test_bad_wqe);
    add("foreign", test_foreign);
    add("hostile", test_hostile);
    return vgt_run();
}
