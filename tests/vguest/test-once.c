/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: each message arrives exactly once, in order, whatever the path does
 * meanwhile.  Over `copy` that is soon said; the tests are made for
 * connections that get lost (tests/reset), which have to show that they did.
 *
 * Atomics count for themselves: one that is executed twice, or not, or out of turn,
 * returns something else.
 */
#include "vgtest.h"

#define DEPTH   16u
#define OPS     10000u
#define SIZE    150000u /* of a SEND, at most: three slices */
#define COUNTER 0u      /* offsets in the MRs */
#define RESULTS 4096u
#define DATA    8192u

static int64_t replays_before, tries_before, all_replays;
static uint64_t repeated; /* atomics that were answered from what was saved of them */

static void open_pair(struct vgt_pair *p)
{
    struct vgt_opts o = {.mr_len = DATA + 2 * DEPTH * SIZE};

    o.qp.send_wr = o.qp.recv_wr = 2 * DEPTH;
    vgt_pair_open(p, 0, 1, &o);
    replays_before = vgt_counter("vm0", "datapath", "replays");
    tries_before = vgt_counter("vm0", "datapath", "retries");
}

/* What side 1 was sent again although it had it, as its queue pair counts that. */
static uint64_t duplicates(const struct vgt_pair *p)
{
    struct pvrdma_ext_resp_qp_counters c;

    g_assert_cmpint(vg_query_qp_counters(p->s[0].g, p->s[0].qp->handle, &c), ==, 0);
    g_assert_cmpuint(c.counter[PVRDMA_EXT_QPCNT_DUPLICATES], ==, 0);
    g_assert_cmpint(vg_query_qp_counters(p->s[1].g, p->s[1].qp->handle, &c), ==, 0);
    return c.counter[PVRDMA_EXT_QPCNT_DUPLICATES];
}

static void close_pair(struct vgt_pair *p)
{
    if (!vgt_resets()) {
        g_assert_cmpuint(duplicates(p), ==, 0);
    } else {
        int64_t replays = vgt_counter("vm0", "datapath", "replays") - replays_before;

        g_test_message("%" PRId64 " messages were started again, %" PRId64
                       " tries in vain",
                       replays, vgt_counter("vm0", "datapath", "retries") - tries_before);
        all_replays += replays;
    }
    vgt_pair_close(p);
}

static uint64_t word(const struct vgt_side *s, uint64_t off)
{
    return *(volatile uint64_t *)(void *)VG_MR_HOST(s->mr, off);
}

static void post_atomic(struct vgt_pair *p, uint64_t k, uint32_t opcode)
{
    struct pvrdma_sge sge = vg_sge(p->s[0].mr, RESULTS + k % DEPTH * 8, 8);
    struct vg_wr wr = vg_wr_to(k, opcode, VGT_SIG, &sge, p->s[1].mr, COUNTER);

    if (opcode == PVRDMA_WR_ATOMIC_FETCH_AND_ADD) {
        wr.compare_add = 1;
    } else {
        wr.compare_add = k;
        wr.swap = k + 1;
    }
    g_assert_cmpuint(vg_post_send(p->s[0].qp, &wr, 1), ==, 1);
}

static void run_atomics(uint32_t opcode)
{
    struct vgt_pair p;
    uint64_t posted = 0;

    open_pair(&p);
    for (uint64_t k = 0; k < OPS; k++) {
        while (posted < OPS && posted < k + DEPTH) {
            post_atomic(&p, posted++, opcode);
        }
        vgt_expect(p.s[0].scq, k, PVRDMA_WC_SUCCESS);
        g_assert_cmpuint(word(&p.s[0], RESULTS + k % DEPTH * 8), ==, k);
    }
    g_assert_cmpuint(word(&p.s[1], COUNTER), ==, OPS);
    repeated += duplicates(&p);
    close_pair(&p);
}

static void test_add(void)
{
    run_atomics(PVRDMA_WR_ATOMIC_FETCH_AND_ADD);
}

static void test_swap(void)
{
    run_atomics(PVRDMA_WR_ATOMIC_CMP_AND_SWP);
}

static uint32_t send_length(uint64_t k)
{
    return (uint32_t)(k % 3 ? k * 7919 % 300 : k * 7919 % SIZE);
}

static void post_numbered(struct vgt_pair *p, uint64_t k)
{
    uint64_t off = DATA + k % DEPTH * SIZE;
    struct pvrdma_sge sge = vg_sge(p->s[0].mr, off, send_length(k));
    struct vg_wr wr = {.wr_id = k,
                       .opcode = PVRDMA_WR_SEND_WITH_IMM,
                       .flags = VGT_SIG,
                       .imm = (uint32_t)k,
                       .nsge = 1,
                       .sge = &sge};

    vgt_fill(VG_MR_HOST(p->s[0].mr, off), send_length(k), k);
    g_assert_cmpuint(vg_post_send(p->s[0].qp, &wr, 1), ==, 1);
}

/* Receives are posted as they are used up, so now and then there is none. */
static void test_sends(void)
{
    struct vgt_pair p;
    uint64_t posted = 0, sent = 0;

    open_pair(&p);
    for (uint64_t k = 0; k < OPS; k++) {
        struct pvrdma_cqe cqe;

        if (k % DEPTH == 0) {
            for (uint64_t i = k; i < k + DEPTH && i < OPS; i++) {
                vgt_recv(&p.s[1], i, DATA + i % DEPTH * SIZE, SIZE);
            }
        }
        while (posted < OPS && posted < sent + DEPTH) {
            post_numbered(&p, posted++);
        }
        cqe = vgt_expect(p.s[1].rcq, k, PVRDMA_WC_SUCCESS);
        g_assert_cmpuint(cqe.imm_data, ==, (uint32_t)k);
        g_assert_cmpuint(cqe.byte_len, ==, send_length(k));
        vgt_check(VG_MR_HOST(p.s[1].mr, DATA + k % DEPTH * SIZE), send_length(k), k);
        while (sent < OPS && vg_cq_poll(p.s[0].scq, &cqe, 1) == 1) {
            g_assert_cmpuint(cqe.status, ==, PVRDMA_WC_SUCCESS);
            g_assert_cmpuint(cqe.wr_id, ==, sent);
            sent++;
        }
        if (posted == sent + DEPTH && k + 1 == posted) {
            vgt_expect(p.s[0].scq, sent++, PVRDMA_WC_SUCCESS);
        }
    }
    while (sent < OPS) {
        vgt_expect(p.s[0].scq, sent++, PVRDMA_WC_SUCCESS);
    }
    vgt_expect_none(p.s[1].rcq, 50);
    close_pair(&p);
}

static void post_op(struct vgt_pair *p, uint64_t k, uint32_t opcode, uint32_t flags,
                    uint64_t local, uint64_t remote)
{
    vgt_send(&p->s[0], k, opcode, VGT_SIG | flags, local, 8, &p->s[1], remote);
}

/*
 * A WRITE, a READ of what it wrote, and a SEND with a fence of what the READ brought:
 * all posted at once.
 */
static void test_fence(void)
{
    uint64_t in = DATA, back = DATA + 64, there = DATA + 128, got = DATA + 192;
    struct vgt_pair p;

    open_pair(&p);
    for (uint64_t k = 0; k < OPS / 3; k++) {
        uint64_t value = k * 0x100000001ull + 1;

        memcpy(VG_MR_HOST(p.s[0].mr, in), &value, 8);
        vgt_recv(&p.s[1], k, got, 64);
        post_op(&p, 3 * k, PVRDMA_WR_RDMA_WRITE, 0, in, there);
        post_op(&p, 3 * k + 1, PVRDMA_WR_RDMA_READ, 0, back, there);
        post_op(&p, 3 * k + 2, PVRDMA_WR_SEND, PVRDMA_SEND_FENCE, back, 0);
        vgt_expect(p.s[1].rcq, k, PVRDMA_WC_SUCCESS);
        g_assert_cmphex(word(&p.s[1], got), ==, value);
        for (uint64_t i = 0; i < 3; i++) {
            vgt_expect(p.s[0].scq, 3 * k + i, PVRDMA_WC_SUCCESS);
        }
    }
    close_pair(&p);
}

/* READs, atomics, SENDs and WRITEs of many QPs, both ways, on two workers. */
static void test_traffic(void)
{
    struct vgt_traffic t;

    vgt_traffic_open(&t, 0, 1, 4, DEPTH, 90000, NULL);
    vgt_traffic_run(&t, 2000);
    vgt_traffic_close(&t);
}

/* Behind the others: they saw connections break, and so often that results got lost. */
static void test_lost(void)
{
    g_test_message("%" PRIu64 " atomics were repeated", repeated);
    g_assert_cmpint(all_replays, >, 0);
    g_assert_cmpuint(repeated, >, 0);
}

int main(int argc, char **argv)
{
    vgt_start(&argc, &argv, 120, 2);
    g_test_add_func("/once/add", test_add);
    g_test_add_func("/once/swap", test_swap);
    g_test_add_func("/once/sends", test_sends);
    g_test_add_func("/once/fence", test_fence);
    g_test_add_func("/once/traffic", test_traffic);
    if (vgt_resets()) {
        g_test_add_func("/once/lost", test_lost);
    }
    return vgt_run();
}
