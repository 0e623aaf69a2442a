/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: the counters of each queue pair (QUERY_QP_COUNTERS).  What was sent and
 * received, refused and lost is counted at the QP it happened to and at no other, and
 * goes on over a reset.  What comes twice takes another path than this: see test-once.
 */
#include "vgtest.h"

#define QKEY 0x22222222u

struct counters {
    uint64_t n[PVRDMA_EXT_QPCNT_MAX];
};

static struct counters counters(const struct vg_qp *qp)
{
    struct pvrdma_ext_resp_qp_counters resp;
    struct counters c;

    g_assert_cmpint(vg_query_qp_counters(qp->g, qp->handle, &resp), ==, 0);
    memcpy(c.n, resp.counter, sizeof(c.n));
    return c;
}

/* Since @before these have changed, by so much, and no others. */
#define COUNTED(qp, before, ...)                                            \
    do {                                                                    \
        struct counters now_ = counters(qp), want_ = {__VA_ARGS__};         \
                                                                            \
        for (unsigned i_ = 0; i_ < PVRDMA_EXT_QPCNT_MAX; i_++) {            \
            g_assert_cmpuint(now_.n[i_], ==, (before).n[i_] + want_.n[i_]); \
        }                                                                   \
    } while (0)

static const struct counters zero;

static void message(struct vgt_pair *p, uint32_t opcode, uint32_t len)
{
    struct vgt_side *a = &p->s[0], *b = &p->s[1];
    bool receive = opcode == PVRDMA_WR_SEND || opcode == PVRDMA_WR_RDMA_WRITE_WITH_IMM;

    if (receive) {
        vgt_recv(b, 7, 0x8000, len);
    }
    vgt_complete(a, 8, opcode, 0, len, b, 0x8000);
    if (receive) {
        vgt_expect(b->rcq, 7, PVRDMA_WC_SUCCESS);
    }
}

static void test_traffic(void)
{
    struct vgt_pair p;
    struct counters a, b;
    struct vg_qp *idle;

    vgt_pair_open(&p, 0, 1, NULL);
    idle = vg_qp_new(p.s[0].pd, p.s[0].scq, p.s[0].rcq, NULL);
    COUNTED(p.s[0].qp, zero, .n = {0});
    message(&p, PVRDMA_WR_SEND, 8);
    message(&p, PVRDMA_WR_SEND, 300000); /* in slices */
    message(&p, PVRDMA_WR_RDMA_WRITE, 5);
    message(&p, PVRDMA_WR_RDMA_WRITE_WITH_IMM, 0);
    COUNTED(p.s[0].qp, zero,
            .n = {[PVRDMA_EXT_CNT_TX_MSGS] = 4, [PVRDMA_EXT_CNT_TX_BYTES] = 300013});
    COUNTED(p.s[1].qp, zero,
            .n = {[PVRDMA_EXT_CNT_RX_MSGS] = 4, [PVRDMA_EXT_CNT_RX_BYTES] = 300013});

    /* What returns is the requester's alone, as in the counters of the VM. */
    a = counters(p.s[0].qp);
    b = counters(p.s[1].qp);
    message(&p, PVRDMA_WR_RDMA_READ, 100000);
    message(&p, PVRDMA_WR_ATOMIC_FETCH_AND_ADD, 8);
    COUNTED(p.s[0].qp, a,
            .n = {[PVRDMA_EXT_CNT_TX_MSGS] = 2, [PVRDMA_EXT_CNT_TX_BYTES] = 100008});
    COUNTED(p.s[1].qp, b, .n = {0});

    /* They count what has happened since the QP was created. */
    a = counters(p.s[0].qp);
    b = counters(p.s[1].qp);
    vgt_pair_reconnect(&p, NULL);
    COUNTED(p.s[0].qp, a, .n = {0});
    COUNTED(p.s[1].qp, b, .n = {0});
    message(&p, PVRDMA_WR_SEND, 64);
    COUNTED(p.s[0].qp, a,
            .n = {[PVRDMA_EXT_CNT_TX_MSGS] = 1, [PVRDMA_EXT_CNT_TX_BYTES] = 64});
    COUNTED(p.s[1].qp, b,
            .n = {[PVRDMA_EXT_CNT_RX_MSGS] = 1, [PVRDMA_EXT_CNT_RX_BYTES] = 64});
    COUNTED(idle, zero, .n = {0});
    vg_qp_free(idle);
    vgt_pair_close(&p);
}

static void test_errors(void)
{
    struct vg_conn once = {.zero_counts = true,
                           .rnr_retry = 2,
                           .timeout = 8, /* 1 ms */
                           .retry_cnt = 3,
                           .min_rnr_timer = 1,
                           .max_rd_atomic = 1,
                           .max_dest_rd_atomic = 1};
    struct vgt_pair p;
    struct counters a, b;

    vgt_pair_open(&p, 0, 1, &(struct vgt_opts){.conn = once});

    /* No receive: two more tries, each refused. */
    vgt_send(&p.s[0], 1, PVRDMA_WR_SEND, VGT_SIG, 0, 8, NULL, 0);
    vgt_expect(p.s[0].scq, 1, PVRDMA_WC_RNR_RETRY_EXC_ERR);
    COUNTED(p.s[0].qp, zero,
            .n = {[PVRDMA_EXT_CNT_RNR_WAITS] = 2, [PVRDMA_EXT_CNT_ERRORS] = 1});
    COUNTED(p.s[1].qp, zero, .n = {[PVRDMA_EXT_QPCNT_RNR_NAKS] = 3});

    /* A key that there is not fails both. */
    vgt_pair_reconnect(&p, &once);
    a = counters(p.s[0].qp);
    b = counters(p.s[1].qp);
    p.s[1].mr->rkey ^= 1;
    vgt_send(&p.s[0], 2, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p.s[1], 0);
    p.s[1].mr->rkey ^= 1;
    vgt_expect(p.s[0].scq, 2, PVRDMA_WC_REM_ACCESS_ERR);
    COUNTED(p.s[0].qp, a, .n = {[PVRDMA_EXT_CNT_ERRORS] = 1});
    COUNTED(p.s[1].qp, b, .n = {[PVRDMA_EXT_CNT_ERRORS] = 1});

    /* Nobody answers: the peer is in ERR. */
    vgt_pair_reconnect(&p, &once);
    a = counters(p.s[0].qp);
    b = counters(p.s[1].qp);
    vg_qp_to_state(p.s[1].qp, PVRDMA_QPS_ERR);
    vgt_send(&p.s[0], 3, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p.s[1], 0);
    vgt_expect(p.s[0].scq, 3, PVRDMA_WC_RETRY_EXC_ERR);
    COUNTED(p.s[0].qp, a,
            .n = {[PVRDMA_EXT_CNT_RETRIES] = 4, [PVRDMA_EXT_CNT_ERRORS] = 1});
    COUNTED(p.s[1].qp, b, .n = {0});
    vgt_pair_close(&p);
}

/* Nobody hears of what is lost but the counter. */
static void test_unreliable(void)
{
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, &(struct vgt_opts){.qp.type = PVRDMA_QPT_UC});
    message(&p, PVRDMA_WR_SEND, 10);
    vgt_complete(&p.s[0], 1, PVRDMA_WR_SEND, 0, 8, NULL, 0);
    COUNTED(p.s[0].qp, zero,
            .n = {[PVRDMA_EXT_CNT_TX_MSGS] = 2, [PVRDMA_EXT_CNT_TX_BYTES] = 18});
    COUNTED(p.s[1].qp, zero,
            .n = {[PVRDMA_EXT_CNT_RX_MSGS] = 1,
                  [PVRDMA_EXT_CNT_RX_BYTES] = 10,
                  [PVRDMA_EXT_QPCNT_DROPPED] = 1});
    vgt_pair_close(&p);
}

static void datagram(struct vgt_pair *p)
{
    struct vgt_side *a = &p->s[0], *b = &p->s[1];
    struct pvrdma_sge sge = vg_sge(a->mr, 0, 100);
    struct pvrdma_av av = vg_av(a->pd, 0, &b->g->gid);
    struct vg_wr wr = vg_wr_datagram(3, VGT_SIG, &sge, &av, b->qp->qpn, QKEY);

    g_assert_cmpuint(vg_post_send(a->qp, &wr, 1), ==, 1);
    vgt_expect(a->scq, 3, PVRDMA_WC_SUCCESS);
}

static void test_datagrams(void)
{
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1,
                  &(struct vgt_opts){.qp.type = PVRDMA_QPT_UD, .unconnected = true});
    for (unsigned i = 0; i < 2; i++) {
        vg_ud_to_rts(p.s[i].qp, QKEY);
    }
    vgt_recv(&p.s[1], 4, 0x8000, 200);
    datagram(&p);
    vgt_expect(p.s[1].rcq, 4, PVRDMA_WC_SUCCESS);
    datagram(&p); /* no receive */
    COUNTED(p.s[0].qp, zero,
            .n = {[PVRDMA_EXT_CNT_TX_MSGS] = 2, [PVRDMA_EXT_CNT_TX_BYTES] = 200});
    COUNTED(p.s[1].qp, zero,
            .n = {[PVRDMA_EXT_CNT_RX_MSGS] = 1,
                  [PVRDMA_EXT_CNT_RX_BYTES] = 100,
                  [PVRDMA_EXT_QPCNT_DROPPED] = 1});
    vgt_pair_close(&p);
}

static void test_handles(void)
{
    struct vgt_pair p;
    struct vg_qp *qp;
    uint32_t handle;

    vgt_pair_open(&p, 0, 1, NULL);
    g_assert_cmphex(vg_reg_read(p.s[0].g, PVRDMA_EXT_REG_FEATURES) &
                        PVRDMA_EXT_FEAT_QP_COUNTERS,
                    !=, 0);
    g_assert_cmpint(vg_query_qp_counters(p.s[0].g, 0, NULL), ==, ENOENT);
    g_assert_cmpint(vg_query_qp_counters(p.s[0].g, UINT32_MAX, NULL), ==, ENOENT);
    qp = vg_qp_new(p.s[0].pd, p.s[0].scq, p.s[0].rcq, NULL);
    handle = qp->handle;
    g_assert_cmpint(vg_query_qp_counters(p.s[0].g, handle, NULL), ==, 0);
    vg_qp_free(qp);
    g_assert_cmpint(vg_query_qp_counters(p.s[0].g, handle, NULL), ==, ENOENT);
    vgt_pair_close(&p);
}

int main(int argc, char **argv)
{
    vgt_init(&argc, &argv, 100);
    vgt_daemon = vg_daemon_start(NULL);
    g_test_add_func("/counters/traffic", test_traffic);
    g_test_add_func("/counters/errors", test_errors);
    g_test_add_func("/counters/unreliable", test_unreliable);
    g_test_add_func("/counters/datagrams", test_datagrams);
    g_test_add_func("/counters/handles", test_handles);
    return vgt_run();
}
