/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests of the engine as a whole: what one VM can make long does not hold up
 * another's work; nothing is stored in the memory of a VM that must not run; routes
 * lead to whom they were made for; the GSI QP recovers from a bad request; a send
 * slot belongs to the device until its message is over; idle VMs are parked.
 */
#include "vgtest.h"

#include <unistd.h>

#define MIB (1ull << 20)

/* Connection that gives up after about 3 ms of silence. */
static const struct vg_conn impatient = {.timeout = 8, .retry_cnt = 2, .rnr_retry = 7};

/* Limits of a VM of which there are many: next to nothing. */
#define SMALL_VM "max-qp=64\nmax-cq=64\nmax-mr=64\nmax-pd=64\nmax-mr-pages=4096"

static void start(const struct vg_daemon_opts *o)
{
    vgt_daemon = vg_daemon_start(o);
}

static void stop(void)
{
    vg_daemon_stop(vgt_daemon);
    vgt_daemon = NULL;
}

static void wait_state(struct vg_qp *qp, enum pvrdma_qp_state want)
{
    vgt_await(vg_qp_state(qp) == want);
}

/* One WRITE there and its completion, in milliseconds. */
static double ping_ms(struct vgt_side *s, const struct vgt_side *peer)
{
    int64_t t = vg_now_ns();

    vgt_complete(s, 1, PVRDMA_WR_RDMA_WRITE, 0, 8, peer, 0);
    return (vg_now_ns() - t) / 1e6;
}

/* ---- many timers at once ---- */

/*
 * Thousands of QPs wait for peers that do not exist, and while bus mastering is off
 * all their timers expire.  The other VMs do not notice when it comes on again.
 */
static void test_timers(void)
{
    enum { N = 3000 };
    const struct vg_opts big = {.low_size = 192 * MIB};
    const struct vgt_opts o = {.guest = {big}, .cqe = 4096}; /* all may fail */
    const struct vg_qp_opts small = {
        .send_wr = 2, .recv_wr = 2, .send_sge = 1, .recv_sge = 1, .contig = true};
    const struct vg_conn c = {.timeout = 13, .retry_cnt = 7};
    const struct pvrdma_gid nowhere = vg_gid(99);
    struct vg_qp **qp = g_new(struct vg_qp *, N);
    GArray *ms = g_array_new(FALSE, FALSE, sizeof(double));
    struct vgt_side bad;
    struct vgt_pair p;
    double p99;

    start(&(struct vg_daemon_opts){.n_vms = 3, .poll_us = -1});
    vgt_side_open(&bad, 0, &o, 0);
    vgt_pair_open(&p, 1, 2, NULL);
    for (unsigned i = 0; i < N; i++) {
        qp[i] = vg_qp_new(bad.pd, bad.scq, bad.rcq, &small);
        vg_qp_reset_to_rts(qp[i], &nowhere, 0x010001, 0, 0, &c);
    }
    for (unsigned i = 0; i < N; i++) {
        struct pvrdma_sge sge = vg_sge(bad.mr, 0, 8);
        struct vg_wr wr = vg_wr_of(0, PVRDMA_WR_RDMA_WRITE, 0, &sge);

        g_assert_cmpuint(vg_post_send(qp[i], &wr, 1), ==, 1);
    }
    for (unsigned round = 0; round < 6; round++) {
        int64_t end;

        g_assert_cmpint(vg_bus_master(bad.g, false), ==, 0);
        g_usleep(40000); /* 33 ms: all have expired */
        g_assert_cmpint(vg_bus_master(bad.g, true), ==, 0);
        g_assert_cmpint(vg_query_port(bad.g, 1, NULL), ==, 0); /* it goes on */
        end = vg_now_ns() + 30000000;
        do {
            double one = ping_ms(&p.s[0], &p.s[1]);

            g_array_append_val(ms, one);
        } while (vg_now_ns() < end);
    }
    p99 = vgt_percentile(ms, 99);
    g_test_message("%u pings among %d expiring timers: median %.3f ms, 99 %% %.3f ms, "
                   "longest %.3f ms; %" PRId64 " retries",
                   ms->len, N, vgt_percentile(ms, 50), p99, vgt_percentile(ms, 100),
                   vgt_counter("vm0", "datapath", "retries"));
    vgt_assert_shorter(p99, 100);
    /* On a busy machine the worker may not have come to all of them in that time. */
    vgt_await(vgt_counter("vm0", "datapath", "retries") > N);
    g_array_unref(ms);
    vgt_pair_close(&p);
    for (unsigned i = 0; i < N; i++) {
        vg_qp_free(qp[i]);
    }
    g_free(qp);
    vgt_side_close(&bad);
    stop();
}

/* ---- a CQ with many QPs fails ---- */

/*
 * All of its QPs end in ERR, those that one turn does not come to, too, and others do
 * not.  Each has its event; the guest's ring for these holds 512.
 */
static void test_failed_cq(void)
{
    enum { N = 480 };
    const struct vg_qp_opts small = {.send_wr = 8, .recv_wr = 2, .contig = true};
    struct vg_qp **qp = g_new(struct vg_qp *, N);
    struct vg_cq *cq;
    struct vgt_pair p;

    start(NULL);
    vgt_pair_open(&p, 0, 1, &(struct vgt_opts){.guest[0].low_size = 128 * MIB});
    cq = vg_cq_new(p.s[0].pd, 2);
    for (unsigned i = 0; i < N; i++) {
        qp[i] = vg_qp_new(p.s[0].pd, cq, cq, &small);
        vg_qp_to_init(qp[i], NULL);
    }
    /* The one of the pair stands for all that have nothing to do with it. */
    vg_qp_connect(qp[0], qp[N - 1], NULL);
    for (unsigned i = 0; i < 4; i++) {
        struct pvrdma_sge sge = vg_sge(p.s[0].mr, 0, 8);
        struct vg_wr wr = vg_wr_to(0, PVRDMA_WR_RDMA_WRITE, VGT_SIG, &sge, p.s[0].mr, 64);

        g_assert_cmpuint(vg_post_send(qp[0], &wr, 1), ==, 1);
    }
    vgt_expect_event(p.s[0].g, PVRDMA_EVENT_CQ_ERR, cq->handle);
    for (unsigned i = 0; i < N; i++) {
        wait_state(qp[i], PVRDMA_QPS_ERR);
        vgt_expect_event(p.s[0].g, PVRDMA_EVENT_QP_FATAL, qp[i]->handle);
    }
    g_assert_cmpuint(vg_qp_state(p.s[0].qp), ==, PVRDMA_QPS_RTS);
    ping_ms(&p.s[0], &p.s[1]);
    for (unsigned i = 0; i < N; i++) {
        vg_qp_free(qp[i]);
    }
    g_free(qp);
    vg_cq_free(cq);
    vgt_pair_close(&p);
    stop();
}

/* ---- two workers and one CQ ---- */

/*
 * The CQ of VM 0 gets its own worker's send completions and, from the other VM's
 * worker, receive completions, both for long.  Whichever side stops, the other's come.
 */
static void test_shared_cq(void)
{
    struct vgt_opts o = {.unconnected = true, .qp = {.recv_wr = 64}};
    unsigned sent = 0, received = 0;
    struct vg_qp *qp;
    struct vgt_pair p;

    start(&(struct vg_daemon_opts){.n_vms = 2, .poll_us = -1, .workers = 2});
    vgt_pair_open(&p, 0, 1, &o);
    qp = vg_qp_new(p.s[0].pd, p.s[0].scq, p.s[0].scq, &o.qp);
    vg_qp_connect(qp, p.s[1].qp, NULL);
    for (unsigned round = 0; round < 3000; round++) {
        /* Only sends, only receives, both. */
        bool send = round % 3 != 1, recv = round % 3 != 0;
        struct pvrdma_sge sge = vg_sge(p.s[0].mr, 0, 64);
        struct vg_wr wr =
            vg_wr_to(1000 + round, PVRDMA_WR_RDMA_WRITE, VGT_SIG, &sge, p.s[1].mr, 0);
        struct pvrdma_cqe c;

        if (recv) {
            g_assert_cmpuint(vg_post_recv(qp, &wr, 1), ==, 1);
            vgt_send(&p.s[1], 2, PVRDMA_WR_SEND, VGT_SIG, 0, 64, NULL, 0);
        }
        if (send) {
            g_assert_cmpuint(vg_post_send(qp, &wr, 1), ==, 1);
        }
        for (unsigned k = 0; k < (unsigned)send + recv; k++) {
            g_assert_true(vg_cq_wait(p.s[0].scq, &c, VGT_WAIT_MS));
            g_assert_cmpuint(c.status, ==, PVRDMA_WC_SUCCESS);
            g_assert_cmpuint(c.wr_id, ==, 1000 + round);
            sent += c.opcode == PVRDMA_WC_RDMA_WRITE;
            received += c.opcode == PVRDMA_WC_RECV;
        }
        if (recv) {
            vgt_expect(p.s[1].scq, 2, PVRDMA_WC_SUCCESS);
        }
    }
    g_assert_cmpuint(sent, ==, 2000);
    g_assert_cmpuint(received, ==, 2000);
    vg_qp_free(qp);
    vgt_pair_close(&p);
    stop();
}

/* ---- no stores where none may be ---- */

static void bell(struct vguest *g)
{
    uint64_t one = 1;

    g_assert_cmpint(write(g->db_eventfd, &one, sizeof(one)), ==, sizeof(one));
}

/*
 * The VM's worker polls on for a while, so that it stops looking, and would set its
 * kick words, when the VM must not run any more.
 */
static void unchanged(struct vgt_pair *p, bool pause, bool doorbells)
{
    struct vguest *g = p->s[0].g;
    uint8_t *before = g_malloc(g->ram_size);
    int64_t retries = vgt_counter("vm1", "datapath", "retries");

    ping_ms(&p->s[0], &p->s[1]);
    ping_ms(&p->s[1], &p->s[0]);
    if (pause) {
        vgt_vm(vgt_daemon, "pause", 0);
    } else {
        g_assert_cmpint(vg_bus_master(g, false), ==, 0);
    }
    if (g->ext->head.kick) {
        g_test_message("it was parked before: this says little");
    }
    if (doorbells) {
        vgt_recv(&p->s[0], 3, 4096, 4096);
        vgt_send(&p->s[0], 2, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 5000, &p->s[1], 0);
        vgt_send(&p->s[1], 4, PVRDMA_WR_SEND, VGT_SIG, 0, 4096, NULL, 0);
    }
    memcpy(before, g->ram, g->ram_size);
    for (unsigned i = 0; i < 30; i++) {
        g_usleep(10000);
        if (doorbells && i % 3 == 0) {
            vg_doorbell_shared(g->db, g->db_eventfd, p->s[0].pd->uar_page, PVRDMA_UAR_QP,
                               p->s[0].qp->handle | PVRDMA_UAR_QP_SEND |
                                   PVRDMA_UAR_QP_RECV);
            bell(g);
        }
    }
    for (uint64_t i = 0; i < g->ram_size; i += 8) {
        if (memcmp(before + i, g->ram + i, 8)) {
            g_error("byte %#" PRIx64 " of guest memory changed (kick word: %#tx)", i,
                    (uint8_t *)&g->ext->head.kick - g->ext_buf->host);
        }
    }
    g_assert_cmpint(vgt_counter("vm1", "datapath", "retries"), ==, retries);
    if (pause) {
        vgt_vm(vgt_daemon, "resume", 0);
    } else {
        g_assert_cmpint(vg_bus_master(g, true), ==, 0);
        g_assert_cmpint(vg_query_port(g, 1, NULL), ==, 0); /* it goes on */
    }
    if (doorbells) {
        vgt_expect(p->s[0].scq, 2, PVRDMA_WC_SUCCESS);
        vgt_expect(p->s[0].rcq, 3, PVRDMA_WC_SUCCESS);
        vgt_expect(p->s[1].scq, 4, PVRDMA_WC_SUCCESS);
    }
    g_free(before);
}

static void test_no_stores(void)
{
    const struct vg_opts ext = {
        .db = VG_DB_EXT, .low_size = 8 * MIB, .high_size = 4 * MIB};
    const struct vgt_opts o = {.guest = {ext, ext}, .conn = impatient, .mr_len = 65536};
    struct vgt_pair p;

    start(&(struct vg_daemon_opts){.n_vms = 2, .poll_us = 150000});
    vgt_pair_open(&p, 0, 1, &o);
    for (unsigned i = 0; i < 4; i++) {
        unchanged(&p, i & 1, i & 2);
    }
    vgt_pair_close(&p);
    stop();
}

/* ---- receiver not ready, and whose the slot is ---- */

/* Doorbells for receives that are not there cost the sender no retry. */
static void test_rnr_doorbells(void)
{
    const struct vg_conn c = {.rnr_retry = 1, .min_rnr_timer = 31}; /* 492 ms */
    struct vgt_pair p;
    int64_t began, waits;
    uint32_t cons;

    start(NULL);
    vgt_pair_open(&p, 0, 1, &(struct vgt_opts){.conn = c});
    /* So that the queue was used: posted, consumed, empty. */
    vgt_recv(&p.s[1], 5, 0, 64);
    vgt_send(&p.s[0], 1, PVRDMA_WR_SEND, VGT_SIG, 0, 64, NULL, 0);
    vgt_expect(p.s[1].rcq, 5, PVRDMA_WC_SUCCESS);
    vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS);
    began = vg_now_ns();
    vgt_send(&p.s[0], 2, PVRDMA_WR_SEND, VGT_SIG, 0, 64, NULL, 0);
    vgt_await_counter("vm0", "datapath", "rnr_waits", 1);
    for (unsigned i = 0; i < 100; i++) {
        vg_ring_recv(p.s[1].qp);
        vg_ring_send(p.s[0].qp);
        g_usleep(500);
        cons = __atomic_load_n(p.s[0].qp->sq.cons_head, __ATOMIC_ACQUIRE);
        /* In the ring still: the slot is not the guest's yet. */
        if (vg_now_ns() - began < 400000000) {
            g_assert_cmpuint(cons, ==, 1);
        }
    }
    waits = vgt_counter("vm0", "datapath", "rnr_waits");
    if (vg_now_ns() - began < 200000000) {
        g_assert_cmpint(waits, ==, 1);
        g_assert_cmpuint(vg_qp_state(p.s[0].qp), ==, PVRDMA_QPS_RTS);
        vgt_recv(&p.s[1], 6, 0, 64);
        vgt_expect(p.s[0].scq, 2, PVRDMA_WC_SUCCESS);
        vgt_expect(p.s[1].rcq, 6, PVRDMA_WC_SUCCESS);
        g_assert_cmpuint(__atomic_load_n(p.s[0].qp->sq.cons_head, __ATOMIC_ACQUIRE), ==,
                         2);
    } else {
        g_test_message("this machine is too slow to say anything");
    }
    vgt_pair_close(&p);
    stop();
}

/* Who sees a completion sees the slot given back: a ring of one never overflows. */
static void test_slot_before_cqe(void)
{
    struct vgt_opts o = {.qp = {.send_wr = 1, .recv_wr = 1}};
    struct vgt_pair p;

    start(NULL);
    vgt_pair_open(&p, 0, 1, &o);
    for (uint32_t i = 0; i < 2000; i++) {
        vgt_complete(&p.s[0], i, PVRDMA_WR_RDMA_WRITE, 0, 64 * (i % 3), &p.s[1], 0);
        g_assert_cmpuint(__atomic_load_n(p.s[0].qp->sq.cons_head, __ATOMIC_ACQUIRE), ==,
                         (i + 1) % 2);
    }
    vgt_pair_close(&p);
    stop();
}

/* ---- the GSI QP ---- */

static int gsi_modify(struct vg_qp *qp, enum pvrdma_qp_state state, uint32_t mask)
{
    struct pvrdma_qp_attr a = {.qp_state = state, .qkey = 0x80010000};

    return vg_modify_qp(qp->g, qp->handle, PVRDMA_QP_STATE | mask, &a);
}

/* To QP 1 of the guest that @gid names. */
static void gsi_post(struct vg_qp *qp, uint64_t id, struct pvrdma_sge sge,
                     const struct pvrdma_gid *gid)
{
    struct pvrdma_av av = vg_av(qp->pd, 0, gid);
    struct vg_wr wr = vg_wr_datagram(id, VGT_SIG, &sge, &av, 1, 0x80010000);

    g_assert_cmpuint(vg_queue_send(qp, &wr, 1), ==, 1);
}

/* As ib_core's MAD layer brings QP 1 up, and back from SQE. */
static void test_gsi_sqe(void)
{
    const struct vg_qp_opts o = {.type = PVRDMA_QPT_GSI,
                                 .send_wr = 16,
                                 .recv_wr = 16,
                                 .send_sge = 2,
                                 .recv_sge = 1};
    struct pvrdma_sge good, bad, into;
    struct vguest *g, *far; /* whose QP 1 is not ready: what goes to it is lost */
    struct vg_pd *pd, *far_pd;
    struct vg_cq *scq, *rcq, *far_cq;
    struct vg_mr *dma;
    struct vg_qp *qp, *far_qp;
    uint64_t gpa;

    start(NULL);
    g = vguest_new(vgt_daemon, 0, NULL);
    far = vguest_new(vgt_daemon, 1, NULL);
    far_pd = vg_pd_new_kernel(far);
    far_cq = vg_cq_new(far_pd, 64);
    far_qp = vg_qp_new(far_pd, far_cq, far_cq, &o);
    pd = vg_pd_new_kernel(g);
    scq = vg_cq_new(pd, 64);
    rcq = vg_cq_new(pd, 64);
    dma = vg_mr_new_dma(pd);
    gpa = vg_alloc_pages(g, 2);
    good = bad = vg_sge(dma, gpa, 256);
    bad.lkey += 0x100;
    into = vg_sge(dma, gpa + 4096, 296);
    qp = vg_qp_new(pd, scq, rcq, &o);
    g_assert_cmpint(
        gsi_modify(qp, PVRDMA_QPS_INIT, PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_QKEY), ==, 0);
    g_assert_cmpint(gsi_modify(qp, PVRDMA_QPS_RTR, 0), ==, 0);
    g_assert_cmpint(gsi_modify(qp, PVRDMA_QPS_RTS, PVRDMA_QP_SQ_PSN), ==, 0);
    for (unsigned i = 0; i < 4; i++) {
        struct vg_wr rwr = {.wr_id = 70 + i, .nsge = 1, .sge = &into};

        g_assert_cmpuint(vg_post_recv(qp, &rwr, 1), ==, 1);
    }
    for (unsigned round = 0; round < 3; round++) {
        gsi_post(qp, 1, good, &far->gid);
        gsi_post(qp, 2, bad, &far->gid);
        gsi_post(qp, 3, good, &far->gid);
        gsi_post(qp, 4, good, &far->gid);
        vg_ring_send(qp);
        vgt_expect(scq, 1, PVRDMA_WC_SUCCESS);
        vgt_expect(scq, 2, PVRDMA_WC_LOC_PROT_ERR);
        vgt_expect(scq, 3, PVRDMA_WC_WR_FLUSH_ERR);
        vgt_expect(scq, 4, PVRDMA_WC_WR_FLUSH_ERR);
        g_assert_cmpuint(vg_qp_state(qp), ==, PVRDMA_QPS_SQE);
        /* Posted in SQE: flushed as well. */
        gsi_post(qp, 5, good, &far->gid);
        vg_ring_send(qp);
        vgt_expect(scq, 5, PVRDMA_WC_WR_FLUSH_ERR);
        vgt_expect_none(rcq, VGT_QUIET_MS(20)); /* the receives stay */
        g_assert_cmpint(gsi_modify(qp, PVRDMA_QPS_RTS, 0), ==, 0);
        g_assert_cmpuint(vg_qp_state(qp), ==, PVRDMA_QPS_RTS);
        gsi_post(qp, 6, good, &far->gid);
        vg_ring_send(qp);
        vgt_expect(scq, 6, PVRDMA_WC_SUCCESS);
    }
    vg_qp_to_state(qp, PVRDMA_QPS_ERR);
    for (unsigned i = 0; i < 4; i++) {
        vgt_expect(rcq, 70 + i, PVRDMA_WC_WR_FLUSH_ERR);
    }
    vg_qp_free(qp);
    vg_free_pages(g, gpa, 2);
    vg_mr_free(dma);
    vg_cq_free(scq);
    vg_cq_free(rcq);
    vg_pd_free(pd);
    vg_qp_free(far_qp);
    vg_cq_free(far_cq);
    vg_pd_free(far_pd);
    vguest_free(far);
    vguest_free(g);
    stop();
}

/* ---- path MTUs that differ ---- */

static void to_rtr_mtu(struct vg_qp *qp, const struct vg_qp *peer, uint32_t mtu)
{
    struct pvrdma_qp_attr a = {
        .qp_state = PVRDMA_QPS_RTR,
        .path_mtu = mtu,
        .dest_qp_num = peer->qpn,
        .rq_psn = 0xffff00 + peer->handle, /* it wraps on the way */
        .max_dest_rd_atomic = 16,
        .min_rnr_timer = 1,
        .ah_attr = {.dgid = peer->g->gid, .hop_limit = 64, .ah_flags = 1, .port_num = 1}};

    vg_qp_modify(qp,
                 PVRDMA_QP_STATE | PVRDMA_QP_AV | PVRDMA_QP_PATH_MTU |
                     PVRDMA_QP_DEST_QPN | PVRDMA_QP_RQ_PSN |
                     PVRDMA_QP_MAX_DEST_RD_ATOMIC | PVRDMA_QP_MIN_RNR_TIMER,
                 &a);
}

/* Both sides count what the sender counts. */
static void same_psn(struct vg_qp *from, struct vg_qp *to)
{
    struct pvrdma_qp_attr a, b;

    g_assert_cmpint(vg_query_qp(from->g, from->handle, &a), ==, 0);
    g_assert_cmpint(vg_query_qp(to->g, to->handle, &b), ==, 0);
    g_assert_cmpuint(a.sq_psn, ==, b.rq_psn);
}

static void test_mtu(void)
{
    static const uint32_t mtu[2] = {PVRDMA_MTU_256, PVRDMA_MTU_4096};
    static const uint32_t length[] = {0, 1, 256, 257, 1024, 4096, 4097, 20000, 65536};
    struct vgt_pair p;

    start(NULL);
    vgt_pair_open(&p, 0, 1, &(struct vgt_opts){.unconnected = true});
    for (unsigned i = 0; i < 2; i++) {
        vg_qp_to_init(p.s[i].qp, NULL);
        to_rtr_mtu(p.s[i].qp, p.s[!i].qp, mtu[i]);
    }
    for (unsigned i = 0; i < 2; i++) {
        vg_qp_to_rts(p.s[i].qp, 0xffff00 + p.s[i].qp->handle, NULL);
    }
    for (unsigned k = 0; k < 400; k++) {
        struct vgt_side *s = &p.s[k & 1], *r = &p.s[!(k & 1)];
        uint32_t len = length[k / 2 % G_N_ELEMENTS(length)];

        vgt_fill(VG_MR_HOST(s->mr, 0), len, k);
        switch (k / 2 % 3) {
        case 0:
            vgt_recv(r, k, 100000, 65536);
            vgt_send(s, k, PVRDMA_WR_SEND, VGT_SIG, 0, len, NULL, 0);
            vgt_expect(r->rcq, k, PVRDMA_WC_SUCCESS);
            break;
        case 1:
            vgt_send(s, k, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, len, r, 100000);
            break;
        default:
            vgt_fill(VG_MR_HOST(r->mr, 100000), len, k);
            vgt_send(s, k, PVRDMA_WR_RDMA_READ, VGT_SIG, 0, len, r, 100000);
            break;
        }
        vgt_expect(s->scq, k, PVRDMA_WC_SUCCESS);
        vgt_check(VG_MR_HOST(r->mr, 100000), len, k);
        vgt_check(VG_MR_HOST(s->mr, 0), len, k);
        same_psn(s->qp, r->qp);
    }
    vgt_pair_close(&p);
    stop();
}

/* ---- routes ---- */

/* The peer QP is destroyed and another one has its handle: nothing reaches that. */
static void test_remade_peer(void)
{
    static const char *const keys[2] = {"", "max-qp=2"}; /* one handle */
    const struct vg_daemon_opts d = {.n_vms = 2, .poll_us = -1, .keys = keys};
    struct vgt_pair p;
    struct vgt_side *a = &p.s[0], *b = &p.s[1];

    start(&d);
    vgt_pair_open(&p, 0, 1, &(struct vgt_opts){.conn = impatient});
    for (unsigned round = 0; round < 10; round++) {
        uint32_t handle = b->qp->handle, qpn = b->qp->qpn;
        uint64_t id = 10 * round;

        ping_ms(a, b);
        vg_qp_free(b->qp);
        b->qp = vg_qp_new(b->pd, b->scq, b->rcq, NULL);
        g_assert_cmpuint(b->qp->handle, ==, handle);
        g_assert_cmpuint(b->qp->qpn, !=, qpn);
        /* It would take the very next message of the old connection. */
        vg_qp_to_init(b->qp, NULL);
        vg_qp_to_rtr(b->qp, &a->g->gid, a->qp->qpn, (a->qp->qpn + 1) & 0xffffff, NULL);
        vgt_recv(b, id, 0, 64);
        vgt_send(a, id + 1, PVRDMA_WR_SEND, VGT_SIG, 0, 64, NULL, 0);
        vgt_expect(a->scq, id + 1, PVRDMA_WC_RETRY_EXC_ERR);
        vgt_expect_none(b->rcq, 0);
        vgt_pair_reconnect(&p, &impatient);
    }
    vgt_pair_close(&p);
    stop();
}

/* The GID of one VM goes to another one that has a QP of the same number. */
static void test_moved_gid(void)
{
    static const char *const keys[3] = {"", "", "addresses=any"};
    const struct vg_daemon_opts d = {.n_vms = 3, .poll_us = -1, .keys = keys};
    const struct vgt_opts o = {.conn = impatient, .unconnected = true};
    struct vgt_side a, b, c;
    struct pvrdma_gid gid;
    uint32_t psn;

    start(&d);
    vgt_side_open(&a, 0, &o, 0);
    vgt_side_open(&b, 1, &o, 1);
    vgt_side_open(&c, 2, &o, 1);
    gid = b.g->gid;
    g_assert_cmpuint(b.qp->qpn, ==, c.qp->qpn);
    vg_qp_connect(a.qp, b.qp, &impatient);
    psn = a.qp->qpn & 0xffffff;
    ping_ms(&a, &b);
    g_assert_cmpint(vg_bind_gid(c.g, 0, &gid), >, 0); /* it is taken */
    vgt_recv(&b, 1, 0, 64);

    g_assert_cmpint(vg_unbind_gid(b.g, 0, &gid), ==, 0);
    g_assert_cmpint(vg_unbind_gid(c.g, 0, &c.g->gid), ==, 0);
    g_assert_cmpint(vg_bind_gid(c.g, 0, &gid), ==, 0);
    c.g->gid = gid;
    /* Of that address and number, and from A, but it expects another beginning. */
    vg_qp_to_init(c.qp, NULL);
    vg_qp_to_rtr(c.qp, &a.g->gid, a.qp->qpn, psn, NULL);
    vgt_recv(&c, 2, 0, 64);
    vgt_send(&a, 3, PVRDMA_WR_SEND, VGT_SIG, 0, 64, NULL, 0);
    vgt_expect(a.scq, 3, PVRDMA_WC_RETRY_EXC_ERR);
    vgt_expect_none(b.rcq, 0);
    vgt_expect_none(c.rcq, 0);

    /* A new connection goes where the address is now. */
    vg_qp_to_reset(a.qp);
    vg_qp_to_reset(c.qp);
    vg_qp_connect(a.qp, c.qp, &impatient);
    vgt_recv(&c, 4, 0, 64);
    vgt_complete(&a, 5, PVRDMA_WR_SEND, 0, 64, NULL, 0);
    vgt_expect(c.rcq, 4, PVRDMA_WC_SUCCESS);
    vgt_expect_none(b.rcq, 0);
    vgt_side_close(&a);
    vgt_side_close(&b);
    vgt_side_close(&c);
    stop();
}

/* ---- idle VMs ---- */

#define IDLE     200u
#define WITH_QPS 10u

static unsigned parked(struct vguest **g, unsigned n)
{
    unsigned k = 0;

    for (unsigned i = 0; i < n; i++) {
        k += __atomic_load_n(&g[i]->db->kick, __ATOMIC_ACQUIRE);
    }
    return k;
}

static void test_idle_vms(void)
{
    const struct vg_daemon_opts d = {
        .n_vms = 2 + IDLE, .poll_us = -1, .vm_keys = SMALL_VM};
    const struct vg_opts tiny = {.low_size = 4 * MIB, .high_size = 2 * MIB};
    const struct vgt_opts o = {.guest = {tiny, tiny}, .mr_len = 65536, .cqe = 16};
    struct vgt_pair idle[WITH_QPS], p;
    struct vguest *g[IDLE];
    GArray *busy = g_array_new(FALSE, FALSE, sizeof(double));
    GArray *woken = g_array_new(FALSE, FALSE, sizeof(double));
    int64_t end;

    start(&d);
    vgt_pair_open(&p, 0, 1, &o);
    for (unsigned i = 0; i < IDLE; i++) {
        if (i < WITH_QPS) {
            vgt_pair_open(&idle[i], 2 + i, 2 + i, &o);
            g[i] = idle[i].s[0].g;
        } else {
            g[i] = vguest_new(vgt_daemon, 2 + i, &tiny);
        }
    }
    end = vg_now_ns() + VGT_WAIT_MS * 1000000ll;
    while (parked(g, IDLE) < IDLE) {
        ping_ms(&p.s[0], &p.s[1]);
        g_assert_cmpint(vg_now_ns(), <, end);
    }
    for (unsigned round = 0; round < 10; round++) {
        for (unsigned i = 0; i < WITH_QPS; i++) {
            double ms = ping_ms(&idle[i].s[0], &idle[i].s[1]);

            g_array_append_val(woken, ms);
        }
        for (unsigned i = 0; i < 200; i++) {
            double ms = ping_ms(&p.s[0], &p.s[1]);

            g_array_append_val(busy, ms);
        }
    }
    g_test_message("busy VM: median %.3f ms, 99 %% %.3f ms; a parked one: median %.3f "
                   "ms, longest %.3f ms",
                   vgt_percentile(busy, 50), vgt_percentile(busy, 99),
                   vgt_percentile(woken, 50), vgt_percentile(woken, 100));
    vgt_assert_shorter(vgt_percentile(woken, 90), 100);
    vgt_assert_shorter(vgt_percentile(busy, 90), 100);
    while (parked(g, IDLE) < IDLE) {
        g_usleep(1000);
        g_assert_cmpint(vg_now_ns(), <, end);
    }
    for (unsigned i = 0; i < IDLE; i++) {
        if (i < WITH_QPS) {
            vgt_pair_close(&idle[i]);
        } else {
            vguest_free(g[i]);
        }
    }
    vgt_pair_close(&p);
    g_array_unref(busy);
    g_array_unref(woken);
    stop();
}

int main(int argc, char **argv)
{
    vgt_init(&argc, &argv, 110);
    g_test_add_func("/engine/timers", test_timers);
    g_test_add_func("/engine/failed-cq", test_failed_cq);
    g_test_add_func("/engine/shared-cq", test_shared_cq);
    g_test_add_func("/engine/no-stores", test_no_stores);
    g_test_add_func("/engine/rnr-doorbells", test_rnr_doorbells);
    g_test_add_func("/engine/slot-before-cqe", test_slot_before_cqe);
    g_test_add_func("/engine/gsi-sqe", test_gsi_sqe);
    g_test_add_func("/engine/mtu", test_mtu);
    g_test_add_func("/engine/remade-peer", test_remade_peer);
    g_test_add_func("/engine/moved-gid", test_moved_gid);
    g_test_add_func("/engine/idle-vms", test_idle_vms);
    return vgt_run();
}
