/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: what is posted in a row and ends differently, on any path; made for those
 * that have many messages on their way (path=tcp, tests/reset).
 */
#include "vgtest.h"

#define NO_KEY 0xdead00u

/* Of @len bytes, to the peer's memory by @rkey; without the doorbell. */
static void queue_write(struct vgt_pair *p, uint64_t wr_id, uint32_t len, uint32_t rkey)
{
    struct pvrdma_sge sge = vg_sge(p->s[0].mr, 0, len);
    struct vg_wr wr =
        vg_wr_at(wr_id, PVRDMA_WR_RDMA_WRITE, VGT_SIG, &sge, p->s[1].mr->buf->va, rkey);

    g_assert_cmpuint(vg_queue_send(p->s[0].qp, &wr, 1), ==, 1);
}

/*
 * Both queue pairs are connected in RTR for a while before they get their first PSN, as
 * programs with a connection manager do.
 */
static void test_late_rts(void)
{
    const struct vg_conn conn = {.timeout = 18, .retry_cnt = 7};
    struct vgt_opts o = {.unconnected = true};
    int64_t retries;
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, &o);
    retries = vgt_counter("vm0", "datapath", "retries");
    for (unsigned i = 0; i < 2; i++) {
        vg_qp_to_init(p.s[i].qp, NULL);
    }
    for (unsigned i = 0; i < 2; i++) {
        vg_qp_to_rtr(p.s[i].qp, &p.s[!i].g->gid, p.s[!i].qp->qpn, 1000 + !i, NULL);
    }
    g_usleep(100000);
    for (unsigned i = 0; i < 2; i++) {
        vg_qp_to_rts(p.s[i].qp, 1000 + i, &conn);
    }
    for (unsigned i = 0; i < 2; i++) {
        vgt_complete(&p.s[i], 1, PVRDMA_WR_RDMA_WRITE, 0, 8, &p.s[!i], 0);
    }
    if (!g_getenv("PVRDMAD")) { /* a daemon that loses nothing */
        g_assert_cmpint(vgt_counter("vm0", "datapath", "retries"), ==, retries);
    }
    vgt_pair_close(&p);
}

/*
 * The peer expects another PSN, and takes nothing of what is posted: the first of it uses
 * up the tries, however often all of it is sent again.
 */
static void test_wrong_psn(void)
{
    enum { COUNT = 32, LENGTH = 1 << 20 };
    const struct vg_conn conn = {.timeout = 14, .retry_cnt = 1};
    struct vgt_opts o = {.unconnected = true, .mr_len = LENGTH};
    struct vgt_pair p;
    int64_t retries;

    vgt_pair_open(&p, 0, 1, &o);
    retries = vgt_counter("vm0", "datapath", "retries");
    for (unsigned i = 0; i < 2; i++) {
        vg_qp_reset_to_rts(p.s[i].qp, &p.s[!i].g->gid, p.s[!i].qp->qpn, 1000, 1001,
                           &conn);
    }
    for (unsigned i = 0; i < COUNT; i++) {
        queue_write(&p, i, LENGTH, p.s[1].mr->rkey);
    }
    vg_ring_send(p.s[0].qp);
    for (unsigned i = 0; i < COUNT; i++) {
        vgt_expect(p.s[0].scq, i,
                   i == 0 ? PVRDMA_WC_RETRY_EXC_ERR : PVRDMA_WC_WR_FLUSH_ERR);
    }
    g_assert_cmpint(vgt_counter("vm0", "datapath", "retries"), ==,
                    retries + conn.retry_cnt + 1);
    vgt_pair_close(&p);
}

/* What was executed before a message that fails is answered all the same. */
static void test_before_failure(gconstpointer opcode)
{
    for (unsigned round = 0; round < 20; round++) {
        struct vgt_pair p;
        struct pvrdma_sge sge;
        struct vg_wr wr[2];

        vgt_pair_open(&p, 0, 1, NULL);
        sge = vg_sge(p.s[0].mr, 0, 8);
        wr[0] = (struct vg_wr){.wr_id = 1,
                               .opcode = GPOINTER_TO_UINT(opcode),
                               .flags = VGT_SIG,
                               .remote_addr = p.s[1].mr->buf->va,
                               .rkey = p.s[1].mr->rkey,
                               .compare_add = 1,
                               .nsge = 1,
                               .sge = &sge};
        wr[1] = wr[0];
        wr[1].wr_id = 2;
        wr[1].opcode = PVRDMA_WR_RDMA_WRITE;
        wr[1].rkey = NO_KEY;
        g_assert_cmpuint(vg_post_send(p.s[0].qp, wr, 2), ==, 2);
        vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS);
        vgt_expect(p.s[0].scq, 2, PVRDMA_WC_REM_ACCESS_ERR);
        vgt_pair_close(&p);
    }
}

/* One of many large WRITEs is wrong: all before it succeed, all behind it are flushed. */
static void test_among_many(void)
{
    enum { COUNT = 40, BAD = 20, LENGTH = 1 << 17 };
    struct vgt_opts o = {.mr_len = LENGTH};

    o.qp.send_wr = 64;
    for (unsigned round = 0; round < 10; round++) {
        struct vgt_pair p;

        vgt_pair_open(&p, 0, 1, &o);
        for (unsigned i = 0; i < COUNT; i++) {
            queue_write(&p, i, LENGTH, i == BAD ? NO_KEY : p.s[1].mr->rkey);
        }
        vg_ring_send(p.s[0].qp);
        for (unsigned i = 0; i < COUNT; i++) {
            vgt_expect(p.s[0].scq, i,
                       i < BAD    ? PVRDMA_WC_SUCCESS
                       : i == BAD ? PVRDMA_WC_REM_ACCESS_ERR
                                  : PVRDMA_WC_WR_FLUSH_ERR);
        }
        vgt_pair_close(&p);
    }
}

/*
 * More queue pairs than a worker gathers completions for, each with a receive CQ of its
 * own, wait for the end of grace periods at the same time.
 */
static void test_many_cqs(void)
{
    enum { COUNT = 120, ROUNDS = 20 };
    struct vgt_opts o = {.kernel = true, .mr_len = 65536, .unconnected = true};
    static struct vg_qp *qp[2][COUNT];
    static struct vg_cq *rcq[COUNT];
    static struct vg_mr *mr[COUNT];
    struct vg_cq *scq[2], *unused;
    struct vgt_side s[2];

    for (unsigned i = 0; i < 2; i++) {
        vgt_side_open(&s[i], i, &o, i);
        scq[i] = vg_cq_new(s[i].pd, 1024);
    }
    unused = vg_cq_new(s[0].pd, 1024);
    for (unsigned i = 0; i < COUNT; i++) {
        struct vg_buf *buf =
            vg_buf_new(s[1].g, 0x7f5500000000ull + i * 65536, 4096, VG_SCATTERED);

        rcq[i] = vg_cq_new(s[1].pd, 16);
        qp[0][i] = vg_qp_new(s[0].pd, scq[0], unused, NULL);
        qp[1][i] = vg_qp_new(s[1].pd, scq[1], rcq[i], NULL);
        vg_qp_connect(qp[0][i], qp[1][i], NULL);
        mr[i] = vg_mr_new_fast(s[1].pd, buf, 4);
    }
    for (unsigned r = 0; r < ROUNDS; r++) {
        struct pvrdma_cqe cqe;

        for (unsigned i = 0; i < COUNT; i++) {
            struct vg_wr reg = vg_wr_fast_reg(mr[i], 70, VG_ACCESS_ALL);
            struct pvrdma_sge sge = vg_sge(s[1].mr, 0, 8);
            struct vg_wr recv = {.wr_id = 3, .nsge = 1, .sge = &sge};

            g_assert_cmpuint(vg_post_send(qp[1][i], &reg, 1), ==, 1);
            g_assert_cmpuint(vg_post_recv(qp[1][i], &recv, 1), ==, 1);
        }
        for (unsigned i = 0; i < COUNT; i++) {
            g_assert_true(vg_cq_wait(scq[1], &cqe, VGT_WAIT_MS));
            g_assert_cmpuint(cqe.status, ==, PVRDMA_WC_SUCCESS);
        }
        for (unsigned i = 0; i < COUNT; i++) {
            struct vg_wr wr = {.wr_id = i,
                               .opcode = PVRDMA_WR_SEND_WITH_INV,
                               .flags = VGT_SIG,
                               .imm = mr[i]->rkey};

            g_assert_cmpuint(vg_queue_send(qp[0][i], &wr, 1), ==, 1);
        }
        for (unsigned i = 0; i < COUNT; i++) {
            vg_ring_send(qp[0][i]);
        }
        for (unsigned i = 0; i < COUNT; i++) {
            g_assert_true(vg_cq_wait(scq[0], &cqe, VGT_WAIT_MS));
            g_assert_cmpuint(cqe.status, ==, PVRDMA_WC_SUCCESS);
            vgt_expect(rcq[i], 3, PVRDMA_WC_SUCCESS);
        }
    }
    for (unsigned i = 0; i < COUNT; i++) {
        vg_qp_free(qp[0][i]);
        vg_qp_free(qp[1][i]);
        vg_cq_free(rcq[i]);
        vg_mr_free(mr[i]);
    }
    vg_cq_free(unused);
    for (unsigned i = 0; i < 2; i++) {
        vg_cq_free(scq[i]);
        vgt_side_close(&s[i]);
    }
}

/*
 * What is posted together is sent together: once it was, at least, for a worker whose
 * turn ends early sends what it has.
 */
static void test_batched(void)
{
    enum { COUNT = 64, ROUNDS = 20 };
    struct vgt_opts o = {.qp.send_wr = COUNT};
    int64_t least = INT64_MAX;
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, &o);
    vgt_write_once(&p, 1);
    for (unsigned r = 0; r < ROUNDS; r++) {
        int64_t sends = vgt_counter("vm0", "tcp", "sends");

        for (unsigned i = 0; i < COUNT; i++) {
            queue_write(&p, i, 8, p.s[1].mr->rkey);
        }
        vg_ring_send(p.s[0].qp);
        for (unsigned i = 0; i < COUNT; i++) {
            vgt_expect(p.s[0].scq, i, PVRDMA_WC_SUCCESS);
        }
        sends = vgt_counter("vm0", "tcp", "sends") - sends;
        g_assert_cmpint(sends, >=, 1);
        least = MIN(least, sends);
    }
    g_test_message("%" G_GINT64_FORMAT " sends of %d messages", least, COUNT);
    g_assert_cmpint(least, <, COUNT / 4);
    vgt_pair_close(&p);
}

int main(int argc, char **argv)
{
    vgt_start(&argc, &argv, 120, 2);
    g_test_add_func("/pipelined/late-rts", test_late_rts);
    g_test_add_func("/pipelined/wrong-psn", test_wrong_psn);
    g_test_add_data_func("/pipelined/before-failure/read",
                         GUINT_TO_POINTER(PVRDMA_WR_RDMA_READ), test_before_failure);
    g_test_add_data_func("/pipelined/before-failure/atomic",
                         GUINT_TO_POINTER(PVRDMA_WR_ATOMIC_FETCH_AND_ADD),
                         test_before_failure);
    g_test_add_func("/pipelined/among-many", test_among_many);
    g_test_add_func("/pipelined/many-cqs", test_many_cqs);
    if (vgt_tcp_undisturbed()) {
        g_test_add_func("/pipelined/batched", test_batched);
    }
    return vgt_run();
}
