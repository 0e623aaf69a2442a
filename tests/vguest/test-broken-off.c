/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: messages that are broken off in the middle.  The peer fails,
 * leaves and comes back as somebody else, or fails while a slice is copied.
 */
#include "vgtest.h"

#define GIB    (1u << 30)
#define BIG_VA 0x7e0000000000ull
#define REAL   256u /* pages behind the gigabyte */
#define WRITES 60u  /* of a gigabyte each: seconds */
#define MIB    (1u << 20)

/* Gives up a millisecond or two after the peer fell silent. */
static const struct vg_conn impatient = {.timeout = 8, .retry_cnt = 1, .rnr_retry = 7};

static struct vg_mr *big_mr(struct vgt_side *s)
{
    return vg_mr_new(s->pd, vg_buf_new_alias(s->g, BIG_VA, GIB, REAL), VG_ACCESS_ALL);
}

/*
 * Start to write gigabytes to the peer, more than it can take in before the test
 * goes on, and wait until they are under way.
 */
static void start_big(struct vgt_pair *p, const struct vg_mr *local, uint32_t rkey)
{
    struct pvrdma_sge sge = {BIG_VA, GIB, local->lkey};
    struct vg_wr wr = vg_wr_at(1, PVRDMA_WR_RDMA_WRITE, VGT_SIG, &sge, BIG_VA, rkey);
    int64_t before = vgt_counter("vm0", "datapath", "tx_bytes");

    for (unsigned i = 0; i < WRITES; i++) {
        g_assert_cmpuint(vg_queue_send(p->s[0].qp, &wr, 1), ==, 1);
    }
    vg_ring_send(p->s[0].qp);
    while (vgt_counter("vm0", "datapath", "tx_bytes") == before) {
    }
}

/*
 * The WRITE that was under way ends so, all after it are flushed.  @key_gone: so may its
 * peer's key; what is on its way by TCP already may find that out.
 */
static void expect_broken_off(struct vgt_side *s, bool key_gone)
{
    struct pvrdma_cqe cqe;
    unsigned n = 0;

    do {
        g_assert_true(vg_cq_wait(s->scq, &cqe, VGT_WAIT_MS));
        g_assert_cmpuint(++n, <=, WRITES);
    } while (cqe.status == PVRDMA_WC_SUCCESS);
    if (!key_gone || !g_getenv("VGUEST_PATH") || cqe.status != PVRDMA_WC_REM_ACCESS_ERR) {
        g_assert_cmpuint(cqe.status, ==, PVRDMA_WC_RETRY_EXC_ERR);
    }
    for (; n < WRITES; n++) {
        vgt_expect(s->scq, 1, PVRDMA_WC_WR_FLUSH_ERR);
    }
}

/* The peer fails: what the VM has sent is neither taken back nor sent for free. */
static void test_accounts(void)
{
    struct vgt_opts o = {.conn = impatient, .mr_len = PVRDMA_PAGE_SIZE};
    struct vgt_pair p;
    struct vg_mr *mr[2];
    int64_t under_way, after;

    vgt_pair_open(&p, 0, 1, &o);
    mr[0] = big_mr(&p.s[0]);
    mr[1] = big_mr(&p.s[1]);
    start_big(&p, mr[0], mr[1]->rkey);
    under_way = vgt_counter("vm0", "datapath", "tx_bytes");
    vg_qp_to_state(p.s[1].qp, PVRDMA_QPS_ERR);
    expect_broken_off(&p.s[0], false);
    after = vgt_counter("vm0", "datapath", "tx_bytes");
    g_assert_cmpint(after, >=, under_way);
    g_assert_cmpint(after, <, 2ll * WRITES * GIB);
    vg_mr_free(mr[0]);
    vg_mr_free(mr[1]);
    vgt_pair_close(&p);
}

/*
 * While the sender stands still its peer leaves and comes back, with the same
 * numbers and keys, but connected to nobody: nothing may arrive there.
 */
static void test_other_peer(void)
{
    struct vgt_opts o = {.conn = impatient, .mr_len = PVRDMA_PAGE_SIZE};
    struct vgt_opts lone = {.unconnected = true, .mr_len = PVRDMA_PAGE_SIZE};
    struct pvrdma_gid nobody = vg_gid(7);
    struct vgt_pair p;
    struct vg_mr *mr[2], *again;
    uint32_t qpn, rkey;

    vgt_pair_open(&p, 0, 1, &o);
    mr[0] = big_mr(&p.s[0]);
    mr[1] = big_mr(&p.s[1]);
    qpn = p.s[1].qp->qpn;
    rkey = mr[1]->rkey;
    start_big(&p, mr[0], rkey);
    vgt_vm(vgt_daemon, "pause", 0);
    vg_mr_free(mr[1]);
    vgt_side_close(&p.s[1]);

    vgt_side_open(&p.s[1], 1, &lone, 1);
    again = big_mr(&p.s[1]);
    g_assert_cmpuint(p.s[1].qp->qpn, ==, qpn);
    g_assert_cmpuint(again->rkey, ==, rkey);
    vg_qp_to_init(p.s[1].qp, &impatient);
    vg_qp_to_rtr(p.s[1].qp, &nobody, 99, 0, &impatient);
    vgt_fill(VG_MR_HOST(again, 0), REAL * PVRDMA_PAGE_SIZE, 5);
    vgt_fill(VG_MR_HOST(mr[0], 0), REAL * PVRDMA_PAGE_SIZE, 6);
    vgt_vm(vgt_daemon, "resume", 0);
    expect_broken_off(&p.s[0], true);
    vgt_check(VG_MR_HOST(again, 0), REAL * PVRDMA_PAGE_SIZE, 5);

    vg_mr_free(mr[0]);
    vg_mr_free(again);
    vgt_pair_close(&p);
}

/*
 * The receiver goes to ERR while slices arrive.  Once the receive is completed
 * as flushed its memory is the guest's again.
 */
static void test_flushed_memory(void)
{
    struct vgt_opts o = {.conn = impatient, .mr_len = MIB};
    GRand *r = g_rand_new_with_seed(3);
    unsigned want = vgt_rounds(30), flushed = 0, round;
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, &o);
    /* How many receives are caught in the middle, the machine decides. */
    for (round = 0; flushed < want; round++) {
        uint8_t *host = VG_MR_HOST(p.s[1].mr, 0);
        struct pvrdma_cqe cqe;

        vgt_recv(&p.s[1], 1, 0, MIB);
        vgt_send(&p.s[0], 2, PVRDMA_WR_SEND, VGT_SIG, 0, MIB, NULL, 0);
        g_usleep(g_rand_int(r) % 64);
        vg_qp_to_state(p.s[1].qp, PVRDMA_QPS_ERR);
        g_assert_true(vg_cq_wait(p.s[1].rcq, &cqe, VGT_WAIT_MS));
        g_assert_cmpuint(round, <, 200 * want);
        if (cqe.status == PVRDMA_WC_WR_FLUSH_ERR) {
            memset(host, 0x5a, MIB);
            g_usleep(100);
            for (size_t i = 0; i < MIB; i++) {
                g_assert_cmphex(host[i], ==, 0x5a);
            }
            flushed++;
        }
        vgt_pair_reconnect(&p, &impatient);
        memset(host, 0, MIB);
    }
    g_test_message("%u of %u receives were flushed", flushed, round);
    vgt_pair_close(&p);
    g_rand_free(r);
}

int main(int argc, char **argv)
{
    vgt_start(&argc, &argv, 120, 2);
    g_test_add_func("/broken-off/accounts", test_accounts);
    g_test_add_func("/broken-off/other-peer", test_other_peer);
    g_test_add_func("/broken-off/flushed-memory", test_flushed_memory);
    return vgt_run();
}
