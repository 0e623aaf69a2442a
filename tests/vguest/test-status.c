/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: the table status x trigger x test.
 *
 *  status         trigger                                       test
 *  SUCCESS        (test-basic; RNR wait, then a receive WQE)     rnr/wait
 *  LOC_LEN        message over 2 GiB                             loc-len
 *                 at the receiver: message longer than its WQE   recv-short
 *  LOC_QP_OP      SGE count, opcode, INLINE                      loc-qp-op
 *  LOC_PROT       lkey unknown/stale/other PD, range, rights     loc-prot
 *                 at the receiver: its SGE is bad                recv-prot
 *  WR_FLUSH       everything queued behind or after an error     flush
 *  REM_INV_REQ    operation not enabled, misaligned atomic, no
 *                 rd_atomic resources, message too long          rem-inv-req
 *  REM_ACCESS     rkey unknown/stale/other PD, range, rights     rem-access
 *  REM_OP         the receiver's WQE is bad                      recv-prot
 *  RETRY_EXC      nobody there, or it ignores us                 retry-exc
 *  RNR_RETRY_EXC  no receive WQE within the tries                rnr/exceeded
 *
 * Each checks the completion, both QPs' states and the async events, with stock
 * and with extended guests, by copy and by streams (VGUEST_PATH=tcp or rnic).
 * State machine, events, arming and overruns: test-state.c.
 */
#include "vgtest.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#define ACCESS_EVENT PVRDMA_EVENT_QP_ACCESS_ERR
#define REQ_EVENT    PVRDMA_EVENT_QP_REQ_ERR
#define NO_EVENT     0xffffffffu

static bool over_tcp;
static struct vgt_pair p;
static struct vgt_opts pair_opts; /* how both guests ring doorbells */

static void open_pair(void)
{
    vgt_pair_open(&p, 0, 1, &pair_opts);
}

static void post_one(const struct vg_wr *wr)
{
    g_assert_cmpuint(vg_post_send(p.s[0].qp, wr, 1), ==, 1);
}

/* At once, or over TCP as soon as what went wrong is known there. */
static void expect_state(struct vg_qp *qp, enum pvrdma_qp_state want)
{
    int64_t until = vg_now_ns() + VGT_WAIT_MS * 1000000ll;

    while (vg_qp_state(qp) != want) {
        g_assert_true(over_tcp);
        g_assert_cmpint(vg_now_ns(), <, until);
        g_usleep(500);
    }
}

/*
 * The WR just posted fails with @status; the requester is in ERR, the
 * responder in @peer_state and, if so, has said why.
 */
static void expect_failure(uint64_t wr_id, enum pvrdma_wc_status status,
                           enum pvrdma_qp_state peer_state, uint32_t event)
{
    struct pvrdma_cqe c = vgt_expect(p.s[0].scq, wr_id, status);

    g_assert_cmpuint(c.qp, ==, p.s[0].qp->handle);
    g_assert_cmpuint(vg_qp_state(p.s[0].qp), ==, PVRDMA_QPS_ERR);
    expect_state(p.s[1].qp, peer_state);
    if (event != NO_EVENT) {
        vgt_expect_event(p.s[1].g, event, p.s[1].qp->handle);
    }
}

static struct vg_wr basic_wr(uint64_t wr_id, uint32_t opcode,
                             const struct pvrdma_sge *sge)
{
    struct vg_wr wr = {.wr_id = wr_id,
                       .opcode = opcode,
                       .nsge = 1,
                       .sge = sge,
                       .remote_addr = p.s[1].mr->buf->va,
                       .rkey = p.s[1].mr->rkey};

    return wr; /* not signalled: errors complete all the same */
}

static void test_loc_len(void)
{
    const uint64_t gib = 1ull << 30;
    struct pvrdma_sge sge[3];
    struct vg_wr wr;
    struct vg_mr *mr;

    open_pair();
    mr = vg_mr_new(p.s[0].pd, vg_buf_new_alias(p.s[0].g, 0x7e0000000000ull, gib, 16),
                   VG_ACCESS_ALL);
    vgt_recv(&p.s[1], 1, 0, 100);
    sge[0] = sge[1] = vg_sge(mr, 0, gib);
    sge[2] = vg_sge(mr, 0, 1);
    wr = basic_wr(5, PVRDMA_WR_SEND, sge);
    wr.nsge = 3;
    post_one(&wr);
    expect_failure(5, PVRDMA_WC_LOC_LEN_ERR, PVRDMA_QPS_RTS, NO_EVENT);
    vgt_expect_none(p.s[1].rcq, 10);
    vg_mr_free(mr);
    vgt_pair_close(&p);
}

static void test_loc_qp_op(void)
{
    /* A program's QP has none of them; an extended one has the first three. */
    static const uint32_t opcodes[] = {PVRDMA_WR_SEND_WITH_INV,
                                       PVRDMA_WR_LOCAL_INV,
                                       PVRDMA_WR_BIND_MW,
                                       PVRDMA_WR_FAST_REG,
                                       PVRDMA_WR_LSO,
                                       PVRDMA_WR_RDMA_READ_WITH_INV,
                                       12,
                                       13,
                                       15,
                                       16,
                                       17,
                                       255,
                                       0x80000002u,
                                       0xffffffffu};
    unsigned known = pair_opts.guest[0].db == VG_DB_EXT ? 3 : 0;
    struct pvrdma_sge sge[4];
    struct vg_wr wr;

    open_pair();
    for (unsigned i = 0; i < 4; i++) {
        sge[i] = vg_sge(p.s[0].mr, 0, 8);
    }
    for (unsigned i = known; i < G_N_ELEMENTS(opcodes); i++) {
        wr = basic_wr(i, opcodes[i], sge);
        post_one(&wr);
        expect_failure(i, PVRDMA_WC_LOC_QP_OP_ERR, PVRDMA_QPS_RTS, NO_EVENT);
        vgt_pair_reconnect(&p, NULL);
    }
    for (uint32_t n = 5; n; n = n < 17 ? n + 12 : n < 0x80000000u ? n * 2 : 0) {
        wr = basic_wr(n, PVRDMA_WR_RDMA_WRITE, sge);
        wr.nsge = n;
        post_one(&wr);
        expect_failure(n, PVRDMA_WC_LOC_QP_OP_ERR, PVRDMA_QPS_RTS, NO_EVENT);
        vgt_pair_reconnect(&p, NULL);
    }
    wr = basic_wr(77, PVRDMA_WR_SEND, sge);
    wr.flags = PVRDMA_SEND_INLINE;
    post_one(&wr);
    expect_failure(77, PVRDMA_WC_LOC_QP_OP_ERR, PVRDMA_QPS_RTS, NO_EVENT);
    vgt_pair_close(&p);
}

/* Bad SGEs of a requester, one by one, all LOC_PROT. */
static void test_loc_prot(void)
{
    struct vg_pd *other;
    struct vg_mr *foreign, *readonly, *gone;
    struct pvrdma_sge bad[8];
    uint32_t opcode[8];
    unsigned n = 0;

    open_pair();
    other = vg_pd_new(p.s[0].g);
    foreign = vg_mr_alloc(other, 0x600000000000ull, 8192, VG_ACCESS_ALL);
    readonly = vg_mr_alloc(p.s[0].pd, 0x610000000000ull, 8192, 0);
    gone = vg_mr_alloc(p.s[0].pd, 0x620000000000ull, 8192, VG_ACCESS_ALL);

    bad[n] = vg_sge(p.s[0].mr, 0, 8);
    bad[n].lkey ^= 0x55500; /* never given out */
    opcode[n++] = PVRDMA_WR_SEND;
    bad[n] = vg_sge(p.s[0].mr, 0, 8);
    bad[n].lkey ^= 1; /* wrong generation */
    opcode[n++] = PVRDMA_WR_RDMA_WRITE;
    bad[n] = vg_sge(p.s[0].mr, (1 << 20) - 7, 8); /* one byte over */
    opcode[n++] = PVRDMA_WR_SEND;
    bad[n] = vg_sge(p.s[0].mr, 0, 8);
    bad[n].addr--; /* one byte before */
    opcode[n++] = PVRDMA_WR_RDMA_WRITE;
    bad[n] = vg_sge(p.s[0].mr, 0, 0x7fffffff);
    bad[n].addr = -8ull; /* wraps */
    opcode[n++] = PVRDMA_WR_RDMA_WRITE;
    bad[n] = vg_sge(foreign, 0, 8);
    opcode[n++] = PVRDMA_WR_SEND;
    bad[n] = vg_sge(readonly, 0, 8); /* a READ writes here */
    opcode[n++] = PVRDMA_WR_RDMA_READ;
    bad[n] = vg_sge(gone, 0, 8);
    opcode[n++] = PVRDMA_WR_SEND;
    vg_mr_free(gone);

    for (unsigned i = 0; i < n; i++) {
        struct vg_wr wr = basic_wr(i, opcode[i], &bad[i]);

        vgt_recv(&p.s[1], 1, 0, 4096);
        post_one(&wr);
        expect_failure(i, PVRDMA_WC_LOC_PROT_ERR, PVRDMA_QPS_RTS, NO_EVENT);
        vgt_expect_none(p.s[1].rcq, 0);
        vgt_pair_reconnect(&p, NULL);
    }
    vg_mr_free(foreign);
    vg_mr_free(readonly);
    vg_pd_free(other);
    vgt_pair_close(&p);
}

/* The receive WQE is bad: LOC_PROT there, REM_OP here. */
static void test_recv_prot(void)
{
    struct vg_mr *readonly;

    open_pair();
    readonly = vg_mr_alloc(p.s[1].pd, 0x610000000000ull, 8192, 0);
    for (unsigned i = 0; i < 3; i++) {
        struct pvrdma_sge sge = vg_sge(p.s[1].mr, 0, 4096);
        struct vg_wr rwr = {.wr_id = 50 + i, .nsge = 1, .sge = &sge};
        struct pvrdma_sge ssge = vg_sge(p.s[0].mr, 0, 100);
        struct vg_wr wr = basic_wr(i, PVRDMA_WR_SEND, &ssge);

        if (i == 0) {
            sge.lkey ^= 0x7700;
        } else if (i == 1) {
            sge.addr += 1 << 20;
        } else {
            sge = vg_sge(readonly, 0, 4096);
        }
        g_assert_cmpuint(vg_post_recv(p.s[1].qp, &rwr, 1), ==, 1);
        post_one(&wr);
        expect_failure(i, PVRDMA_WC_REM_OP_ERR, PVRDMA_QPS_ERR, NO_EVENT);
        vgt_expect(p.s[1].rcq, 50 + i, PVRDMA_WC_LOC_PROT_ERR);
        vgt_pair_reconnect(&p, NULL);
    }
    vg_mr_free(readonly);
    vgt_pair_close(&p);
}

/* What a message does not come to may be anything: libfabric's tests receive empty ones
 * to no memory at all. */
static void test_recv_unused(void)
{
    open_pair();
    for (uint32_t len = 0; len <= 100; len += 100) {
        struct pvrdma_sge sge[2] = {vg_sge(p.s[1].mr, 0, 100), {0, 1024, 0}};
        struct vg_wr rwr = {.wr_id = 50, .nsge = 2, .sge = sge};
        struct pvrdma_sge ssge = vg_sge(p.s[0].mr, 0, len);
        struct vg_wr wr = basic_wr(len, PVRDMA_WR_SEND, &ssge);

        if (!len) {
            sge[0] = sge[1];
        }
        g_assert_cmpuint(vg_post_recv(p.s[1].qp, &rwr, 1), ==, 1);
        wr.flags = PVRDMA_SEND_SIGNALED;
        post_one(&wr);
        vgt_expect(p.s[0].scq, len, PVRDMA_WC_SUCCESS);
        vgt_expect(p.s[1].rcq, 50, PVRDMA_WC_SUCCESS);
    }
    /* One byte more. */
    struct pvrdma_sge sge[2] = {vg_sge(p.s[1].mr, 0, 100), {0, 1024, 0}};
    struct vg_wr rwr = {.wr_id = 51, .nsge = 2, .sge = sge};
    struct pvrdma_sge ssge = vg_sge(p.s[0].mr, 0, 101);
    struct vg_wr wr = basic_wr(101, PVRDMA_WR_SEND, &ssge);

    g_assert_cmpuint(vg_post_recv(p.s[1].qp, &rwr, 1), ==, 1);
    post_one(&wr);
    expect_failure(101, PVRDMA_WC_REM_OP_ERR, PVRDMA_QPS_ERR, NO_EVENT);
    vgt_expect(p.s[1].rcq, 51, PVRDMA_WC_LOC_PROT_ERR);
    vgt_pair_close(&p);
}

/* Message longer than the receive WQE: LOC_LEN there, REM_INV_REQ here. */
static void test_recv_short(void)
{
    open_pair();
    for (unsigned i = 0; i < 3; i++) {
        static const uint32_t len[][2] = {{100, 99}, {1, 0}, {200000, 199999}};

        memset(VG_MR_HOST(p.s[1].mr, len[i][1]), 0x77, 8);
        vgt_recv(&p.s[1], 40 + i, 0, len[i][1]);
        vgt_send(&p.s[0], i, PVRDMA_WR_SEND, 0, 0, len[i][0], NULL, 0);
        expect_failure(i, PVRDMA_WC_REM_INV_REQ_ERR, PVRDMA_QPS_ERR, NO_EVENT);
        vgt_expect(p.s[1].rcq, 40 + i, PVRDMA_WC_LOC_LEN_ERR);
        g_assert_cmpuint(*VG_MR_HOST(p.s[1].mr, len[i][1]), ==, 0x77);
        vgt_pair_reconnect(&p, NULL);
    }
    vgt_pair_close(&p);
}

/* Requests that a sound responder refuses before looking at memory. */
static void test_rem_inv_req(void)
{
    static const struct {
        uint32_t opcode, access, misalign;
        bool no_rd_atomic;
    } row[] = {
        {PVRDMA_WR_RDMA_WRITE, VG_ACCESS_ALL & ~PVRDMA_ACCESS_REMOTE_WRITE, 0, false},
        {PVRDMA_WR_RDMA_READ, VG_ACCESS_ALL & ~PVRDMA_ACCESS_REMOTE_READ, 0, false},
        {PVRDMA_WR_ATOMIC_FETCH_AND_ADD, VG_ACCESS_ALL & ~PVRDMA_ACCESS_REMOTE_ATOMIC, 0,
         false},
        {PVRDMA_WR_ATOMIC_CMP_AND_SWP, VG_ACCESS_ALL, 1, false},
        {PVRDMA_WR_ATOMIC_FETCH_AND_ADD, VG_ACCESS_ALL, 4, false},
        {PVRDMA_WR_RDMA_READ, VG_ACCESS_ALL, 0, true},
        {PVRDMA_WR_ATOMIC_CMP_AND_SWP, VG_ACCESS_ALL, 0, true},
    };

    open_pair();
    for (unsigned i = 0; i < G_N_ELEMENTS(row); i++) {
        struct vg_conn c = {.access = row[i].access,
                            .zero_counts = true,
                            .retry_cnt = 7,
                            .rnr_retry = 7,
                            .max_rd_atomic = 16,
                            .max_dest_rd_atomic = row[i].no_rd_atomic ? 0 : 16};
        struct pvrdma_sge sge = vg_sge(p.s[0].mr, 0, 8);
        struct vg_wr wr = basic_wr(i, row[i].opcode, &sge);

        vgt_pair_reconnect(&p, &c);
        memset(VG_MR_HOST(p.s[1].mr, 0), 0x11, 16);
        wr.remote_addr += row[i].misalign;
        post_one(&wr);
        if (row[i].misalign && over_tcp) { /* no frame can say that: it is not sent */
            expect_failure(i, PVRDMA_WC_REM_INV_REQ_ERR, PVRDMA_QPS_RTS, NO_EVENT);
        } else {
            expect_failure(i, PVRDMA_WC_REM_INV_REQ_ERR, PVRDMA_QPS_ERR, REQ_EVENT);
        }
        for (unsigned j = 0; j < 16; j++) {
            g_assert_cmpuint(*VG_MR_HOST(p.s[1].mr, j), ==, 0x11);
        }
    }
    vgt_pair_close(&p);
}

static void test_rem_access(void)
{
    static const uint32_t ops[] = {PVRDMA_WR_RDMA_WRITE, PVRDMA_WR_RDMA_READ,
                                   PVRDMA_WR_ATOMIC_FETCH_AND_ADD,
                                   PVRDMA_WR_RDMA_WRITE_WITH_IMM};
    struct vg_pd *other, *kernel;
    struct vg_mr *foreign, *weak, *gone, *dma;

    open_pair();
    other = vg_pd_new(p.s[1].g);
    kernel = vg_pd_new_kernel(p.s[1].g);
    foreign = vg_mr_alloc(other, p.s[1].mr->buf->va, 8192, VG_ACCESS_ALL);
    weak = vg_mr_alloc(p.s[1].pd, p.s[1].mr->buf->va, 8192, PVRDMA_ACCESS_LOCAL_WRITE);
    gone = vg_mr_alloc(p.s[1].pd, p.s[1].mr->buf->va, 8192, VG_ACCESS_ALL);
    dma = vg_mr_new_dma(kernel);
    for (unsigned op = 0; op < G_N_ELEMENTS(ops); op++) {
        for (unsigned i = 0; i < 8; i++) {
            struct pvrdma_sge sge = vg_sge(p.s[0].mr, 0, 8);
            struct vg_wr wr = basic_wr(i, ops[op], &sge);
            uint32_t keys[] = {wr.rkey,    wr.rkey,   foreign->rkey,      weak->rkey,
                               gone->rkey, dma->rkey, wr.rkey ^ 0x123400, 0};

            wr.rkey = keys[i];
            if (i == 0) {
                wr.remote_addr += (1 << 20);
            } else if (i == 1) {
                wr.remote_addr = -8ull;
            } else if (i == 4 && op == 0) {
                vg_mr_free(gone); /* stale from here on */
                gone = vg_mr_alloc(p.s[1].pd, p.s[1].mr->buf->va, 8192, VG_ACCESS_ALL);
            } else if (i == 4) {
                continue;
            } else if (i == 5) {
                wr.remote_addr = 0x1000;
            }
            vgt_recv(&p.s[1], 9, 4096, 100);
            post_one(&wr);
            expect_failure(i, PVRDMA_WC_REM_ACCESS_ERR, PVRDMA_QPS_ERR, ACCESS_EVENT);
            vgt_expect(p.s[1].rcq, 9, PVRDMA_WC_WR_FLUSH_ERR);
            vgt_pair_reconnect(&p, NULL);
        }
    }
    vg_mr_free(foreign);
    vg_mr_free(weak);
    vg_mr_free(gone);
    vg_mr_free(dma);
    vg_pd_free(other);
    vg_pd_free(kernel);
    vgt_pair_close(&p);
}

/* ---- nobody answers ---- */

/* Connect with side 1 in a shape that ignores us, and send. */
static void unanswered(unsigned how)
{
    struct vg_conn c = {.timeout = 10, .retry_cnt = 2}; /* 3 x 4.2 ms */
    struct vgt_side *a = &p.s[0], *b = &p.s[1];
    struct pvrdma_gid nobody = vg_gid(77);
    int64_t start;
    double ms;

    vg_qp_to_reset(a->qp);
    vg_qp_to_reset(b->qp);
    vg_qp_reset_to_rts(a->qp, how == 0 ? &nobody : &b->g->gid,
                       how == 1 ? b->qp->qpn ^ 0x7ff : b->qp->qpn, 0, 1000, &c);
    if (how >= 3) { /* 2: it stays in RESET */
        vg_qp_to_init(b->qp, &c);
    }
    if (how >= 4) { /* 4: wrong PSN; 5: connected to somebody else; 6: ERR */
        vg_qp_to_rtr(b->qp, &a->g->gid, a->qp->qpn ^ (how == 5 ? 0x700 : 0),
                     how == 4 ? 1001 : 1000, &c);
    }
    if (how >= 6) {
        vg_qp_to_state(b->qp, PVRDMA_QPS_ERR);
    }
    start = vg_now_ns();
    vgt_send(a, how, PVRDMA_WR_RDMA_WRITE, 0, 0, 8, b, 0);
    vgt_expect(a->scq, how, PVRDMA_WC_RETRY_EXC_ERR);
    ms = (vg_now_ns() - start) / 1e6;
    g_assert_cmpuint(vg_qp_state(a->qp), ==, PVRDMA_QPS_ERR);
    /* 4.096 us * 2^10 * (2 + 1) = 12.6 ms; the upper bound is a hang. */
    g_assert_cmpfloat(ms, >=, 12.0);
}

static void test_retry_exc(void)
{
    open_pair();
    for (unsigned how = 0; how < 7; how++) {
        unanswered(how);
    }
    vgt_pair_close(&p);
}

/* timeout 0 means: wait for ever. */
static void test_retry_never(void)
{
    struct vgt_side *a, *b;
    struct pvrdma_qp_attr attr = {.qp_state = PVRDMA_QPS_RTS,
                                  .timeout = 0,
                                  .retry_cnt = 1,
                                  .rnr_retry = 7,
                                  .max_rd_atomic = 1};
    struct vgt_opts o = pair_opts;

    o.unconnected = true;
    vgt_pair_open(&p, 0, 1, &o);
    a = &p.s[0];
    b = &p.s[1];
    vg_qp_to_init(a->qp, NULL);
    vg_qp_to_rtr(a->qp, &b->g->gid, b->qp->qpn, 0, NULL);
    vg_qp_modify(a->qp,
                 PVRDMA_QP_STATE | PVRDMA_QP_TIMEOUT | PVRDMA_QP_RETRY_CNT |
                     PVRDMA_QP_RNR_RETRY | PVRDMA_QP_SQ_PSN | PVRDMA_QP_MAX_RD_ATOMIC,
                 &attr);
    vgt_send(a, 1, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, b, 0);
    vgt_expect_none(a->scq, 300);
    /* The peer appears, and the message gets through. */
    vg_qp_to_init(b->qp, NULL);
    vg_qp_to_rtr(b->qp, &a->g->gid, a->qp->qpn, 0, NULL);
    vgt_expect(a->scq, 1, PVRDMA_WC_SUCCESS);
    vgt_pair_close(&p);
}

/* ---- receiver not ready ---- */

static void test_rnr_exceeded(void)
{
    struct vg_conn c = {.zero_counts = true,
                        .retry_cnt = 7,
                        .rnr_retry = 2,
                        .max_rd_atomic = 1,
                        .max_dest_rd_atomic = 1,
                        .min_rnr_timer = 20}; /* 10.24 ms */
    int64_t start;

    open_pair();
    vgt_pair_reconnect(&p, &c);
    start = vg_now_ns();
    vgt_send(&p.s[0], 1, PVRDMA_WR_SEND, 0, 0, 100, NULL, 0);
    expect_failure(1, PVRDMA_WC_RNR_RETRY_EXC_ERR, PVRDMA_QPS_RTS, NO_EVENT);
    g_assert_cmpfloat((vg_now_ns() - start) / 1e6, >=, 20.0);

    c.rnr_retry = 0; /* not even one */
    vgt_pair_reconnect(&p, &c);
    vgt_send(&p.s[0], 2, PVRDMA_WR_RDMA_WRITE_WITH_IMM, 0, 0, 100, &p.s[1], 0);
    expect_failure(2, PVRDMA_WC_RNR_RETRY_EXC_ERR, PVRDMA_QPS_RTS, NO_EVENT);
    vgt_pair_close(&p);
}

/* rnr_retry 7: for ever; a receive doorbell ends the wait early. */
static void test_rnr_wait(void)
{
    struct pvrdma_qp_attr attr = {.qp_state = PVRDMA_QPS_RTS,
                                  .min_rnr_timer = 0}; /* 655 ms */
    int64_t start;

    open_pair();
    vg_qp_modify(p.s[1].qp, PVRDMA_QP_MIN_RNR_TIMER | PVRDMA_QP_STATE, &attr);
    for (unsigned i = 0; i < 3; i++) {
        vgt_fill(VG_MR_HOST(p.s[0].mr, 0), 3000, i);
        vgt_send(&p.s[0], i, PVRDMA_WR_SEND, VGT_SIG, 0, 3000, NULL, 0);
        vgt_expect_none(p.s[0].scq, 30);
        start = vg_now_ns();
        vgt_recv(&p.s[1], i, 0, 3000);
        vgt_expect(p.s[1].rcq, i, PVRDMA_WC_SUCCESS);
        vgt_expect(p.s[0].scq, i, PVRDMA_WC_SUCCESS);
        vgt_check(VG_MR_HOST(p.s[1].mr, 0), 3000, i);
        vgt_assert_shorter((double)(vg_now_ns() - start) / 1e6, 550.0);
    }
    vgt_pair_close(&p);
}

/* ---- flush ---- */

static void test_flush(void)
{
    struct pvrdma_sge bad, good;
    struct vg_wr wr[6];

    open_pair();
    /* One bad WR; those behind it and those posted later flush, in order,
     * signalled or not, and so do the receives. */
    for (unsigned i = 0; i < 5; i++) {
        vgt_recv(&p.s[0], 100 + i, 0, 100);
    }
    bad = vg_sge(p.s[0].mr, 0, 8);
    bad.lkey ^= 0x100000;
    good = vg_sge(p.s[0].mr, 0, 8);
    for (unsigned i = 0; i < 6; i++) {
        wr[i] = basic_wr(i, PVRDMA_WR_RDMA_WRITE, i == 2 ? &bad : &good);
        wr[i].flags = i == 4 ? VGT_SIG : 0;
    }
    g_assert_cmpuint(vg_post_send(p.s[0].qp, wr, 6), ==, 6);
    vgt_expect(p.s[0].scq, 2, PVRDMA_WC_LOC_PROT_ERR);
    for (unsigned i = 3; i < 6; i++) {
        vgt_expect(p.s[0].scq, i, PVRDMA_WC_WR_FLUSH_ERR);
    }
    for (unsigned i = 0; i < 5; i++) {
        vgt_expect(p.s[0].rcq, 100 + i, PVRDMA_WC_WR_FLUSH_ERR);
    }
    vgt_send(&p.s[0], 7, PVRDMA_WR_SEND, 0, 0, 8, NULL, 0);
    vgt_expect(p.s[0].scq, 7, PVRDMA_WC_WR_FLUSH_ERR);
    vgt_recv(&p.s[0], 8, 0, 8);
    vgt_expect(p.s[0].rcq, 8, PVRDMA_WC_WR_FLUSH_ERR);

    /* MODIFY to ERR, with WRs waiting for the peer's receive WQE. */
    vgt_pair_reconnect(&p, NULL);
    for (unsigned i = 0; i < 3; i++) {
        vgt_send(&p.s[0], i, PVRDMA_WR_SEND, 0, 0, 8, NULL, 0);
        vgt_recv(&p.s[0], 20 + i, 0, 8);
    }
    g_usleep(5000);
    vg_qp_to_state(p.s[0].qp, PVRDMA_QPS_ERR);
    for (unsigned i = 0; i < 3; i++) {
        vgt_expect(p.s[0].scq, i, PVRDMA_WC_WR_FLUSH_ERR);
        vgt_expect(p.s[0].rcq, 20 + i, PVRDMA_WC_WR_FLUSH_ERR);
    }
    /* INIT takes receives, ERR flushes them. */
    vg_qp_to_reset(p.s[0].qp);
    vg_qp_to_init(p.s[0].qp, NULL);
    vgt_recv(&p.s[0], 30, 0, 8);
    vgt_expect_none(p.s[0].rcq, 10);
    vg_qp_to_state(p.s[0].qp, PVRDMA_QPS_ERR);
    vgt_expect(p.s[0].rcq, 30, PVRDMA_WC_WR_FLUSH_ERR);
    /* RESET drops silently. */
    vgt_pair_reconnect(&p, NULL);
    vgt_recv(&p.s[0], 31, 0, 8);
    vg_qp_to_reset(p.s[0].qp);
    vgt_expect_none(p.s[0].rcq, 20);
    vgt_pair_close(&p);
}

/* ---- memory that may not be written ---- */

#define ROM_GPA 0x200000000ull

/* 64 KiB that the VMM maps for reading only (a ROM), registered with all rights. */
static uint32_t map_rom(struct vgt_side *s, int *fd, uint8_t **host)
{
    struct pvrdma_cmd_create_mr req = {.start = ROM_GPA,
                                       .length = 65536,
                                       .access_flags = VG_ACCESS_ALL,
                                       .pd_handle = s->pd->handle,
                                       .nchunks = 16};
    struct pvrdma_cmd_create_cq cq = {.cqe = 64, .nchunks = 2, .ctx_handle = s->g->uctx};
    struct pvrdma_resp_create_mr resp;
    struct pvrdma_resp_create_cq cq_resp;
    uint64_t page[16];

    *fd = memfd_create("rom", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    g_assert_cmpint(ftruncate(*fd, 65536), ==, 0);
    g_assert_cmpint(fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK), ==, 0);
    *host = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    g_assert_true((void *)*host != MAP_FAILED);
    vgt_fill(*host, 65536, 4);
    g_assert_cmpint(vg_dma_map(s->g, *fd, 0, ROM_GPA, 65536, VFIO_USER_DMA_READ_FLAG), ==,
                    0);
    for (unsigned i = 0; i < 16; i++) {
        page[i] = ROM_GPA + i * 4096;
    }
    req.pdir_dma = vg_pdir_new(s->g, page, 16);
    /* No ring can be there, since the device writes to rings. */
    cq.pdir_dma = req.pdir_dma;
    g_assert_cmpint(vg_create_cq(s->g, &cq, &cq_resp), >, 0);
    /* It may be read, and written by nobody: that is found at each operation. */
    g_assert_cmpint(vg_create_mr(s->g, &req, &resp), ==, 0);
    return resp.rkey;
}

static void test_rom(void)
{
    struct pvrdma_sge sge, rom;
    struct vg_wr wr;
    struct pvrdma_cqe c;
    uint32_t key[2];
    uint8_t *host[2];
    int fd[2];

    open_pair();
    for (unsigned i = 0; i < 2; i++) {
        key[i] = map_rom(&p.s[i], &fd[i], &host[i]);
    }
    sge = vg_sge(p.s[0].mr, 0, 5000);
    rom = (struct pvrdma_sge){.addr = ROM_GPA, .length = 5000, .lkey = key[0]};
    wr = basic_wr(1, PVRDMA_WR_RDMA_WRITE, &sge);
    wr.remote_addr = ROM_GPA + 8;
    wr.rkey = key[1];
    for (unsigned i = 0; i < 2; i++) {
        wr.opcode = i ? PVRDMA_WR_ATOMIC_FETCH_AND_ADD : PVRDMA_WR_RDMA_WRITE;
        sge.length = i ? 8 : 5000;
        post_one(&wr);
        g_assert_true(vg_cq_wait(p.s[0].scq, &c, VGT_WAIT_MS));
        g_assert_true(c.status == PVRDMA_WC_REM_ACCESS_ERR ||
                      c.status == PVRDMA_WC_REM_OP_ERR);
        vgt_pair_reconnect(&p, NULL);
    }
    /* Reading from it is fine, reading into it is not. */
    wr = basic_wr(2, PVRDMA_WR_RDMA_WRITE, &rom);
    wr.flags = VGT_SIG;
    post_one(&wr);
    vgt_expect(p.s[0].scq, 2, PVRDMA_WC_SUCCESS);
    vgt_check(VG_MR_HOST(p.s[1].mr, 0), 5000, 4);
    wr.opcode = PVRDMA_WR_RDMA_READ;
    post_one(&wr);
    vgt_expect(p.s[0].scq, 2, PVRDMA_WC_LOC_PROT_ERR);
    for (unsigned i = 0; i < 2; i++) {
        vgt_check(host[i], 65536, 4);
        munmap(host[i], 65536);
        close(fd[i]);
    }
    /* Gone with the attachment, as its MR. */
    for (unsigned i = 0; i < 2; i++) {
        vg_reg_write(p.s[i].g, PVRDMA_REG_CTL, PVRDMA_CTL_RESET);
        p.s[i].g->up = false;
    }
    vgt_pair_close(&p);
}

static const struct status_test {
    const char *name;
    void (*run)(void);
} tests[] = {
    {"loc-len", test_loc_len},
    {"loc-qp-op", test_loc_qp_op},
    {"loc-prot", test_loc_prot},
    {"recv-prot", test_recv_prot},
    {"recv-unused", test_recv_unused},
    {"recv-short", test_recv_short},
    {"rem-inv-req", test_rem_inv_req},
    {"rem-access", test_rem_access},
    {"retry-exc", test_retry_exc},
    {"retry-never", test_retry_never},
    {"rnr/exceeded", test_rnr_exceeded},
    {"rnr/wait", test_rnr_wait},
    {"flush", test_flush},
    {"read-only-memory", test_rom},
};

static void run_stock(const void *data)
{
    memset(&pair_opts, 0, sizeof(pair_opts));
    ((const struct status_test *)data)->run();
}

static void run_extended(const void *data)
{
    memset(&pair_opts, 0, sizeof(pair_opts));
    pair_opts.guest[0].db = pair_opts.guest[1].db = VG_DB_EXT;
    ((const struct status_test *)data)->run();
}

int main(int argc, char **argv)
{
    vgt_init(&argc, &argv, 120);
    over_tcp = vgt_by_streams();
    vgt_daemon = vg_daemon_start(NULL);
    for (unsigned i = 0; i < G_N_ELEMENTS(tests); i++) {
        char *stock = g_strdup_printf("/status/stock/%s", tests[i].name);
        char *ext = g_strdup_printf("/status/extended/%s", tests[i].name);

        g_test_add_data_func(stock, &tests[i], run_stock);
        g_test_add_data_func(ext, &tests[i], run_extended);
        g_free(stock);
        g_free(ext);
    }
    return vgt_run();
}
