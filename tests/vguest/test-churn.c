/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: what one VM makes and destroys all day is none of another VM's business.
 *
 * Messages of many slices and short ones go from VM 0 to VM 1 and back, while VM 1, or
 * one that has nothing to do with them, churns one kind of object after the other:
 * connections, queues, registrations, addresses, memory, programs, whole VMs.  What is
 * judged is a count and no time: of each byte of each message one copy is made, and
 * nothing is tried again.
 */
#include "vgtest.h"

#define MIB (1u << 20)
/* Milliseconds of copying, and as little as a sanitizer can bear. */
#define LARGE (VGT_PLAIN_BUILD ? 256 * MIB : 16 * MIB)
#define SMALL 64u
#define VA    0x7000000000ull
#define PAGES 64u

/* Of each kind, so often while a large message is on its way, at least. */
#define ROUNDS 40u
/* A message that takes longer than that is waited for without more of it. */
#define MOST 400u

struct churn {
    struct vgt_side side;  /* whose objects they are: VM 1's */
    struct vgt_side other; /* VM 2's, which VM 1 is connected to now and then */
    struct vg_mr *fast;
    struct vg_qp *own; /* for requests about keys */
};

static struct churn churn;

/* ---- one of each kind ---- */

static void one_qp(uint8_t type)
{
    struct vgt_side *s = &churn.side;
    struct vg_qp *qp = vg_qp_new(s->pd, s->scq, s->rcq,
                                 &(struct vg_qp_opts){.type = type, .contig = true});

    vg_qp_free(qp);
}

static void rc_qp(void)
{
    one_qp(0);
}

static void ud_qp(void)
{
    one_qp(PVRDMA_QPT_UD);
}

/* A connection, with a message that has to wait and goes down with it. */
static void connection(void)
{
    struct vgt_side *s[2] = {&churn.side, &churn.other};
    struct vg_qp *qp[2];
    struct pvrdma_cqe cqe;

    for (unsigned i = 0; i < 2; i++) {
        qp[i] = vg_qp_new(s[i]->pd, s[i]->scq, s[i]->rcq,
                          &(struct vg_qp_opts){.contig = true});
    }
    vg_qp_connect(qp[0], qp[1], NULL);
    for (unsigned i = 0; i < 2; i++) {
        struct pvrdma_sge sge = vg_sge(s[i]->mr, 0, SMALL);
        struct vg_wr wr = vg_wr_of(0, PVRDMA_WR_SEND, 0, &sge);

        g_assert_cmpuint(vg_post_send(qp[i], &wr, 1), ==, 1);
    }
    vg_qp_to_state(qp[0], PVRDMA_QPS_ERR);
    vg_qp_to_reset(qp[1]);
    for (unsigned i = 0; i < 2; i++) {
        vg_qp_free(qp[i]);
        while (vg_cq_poll(s[i]->scq, &cqe, 1) == 1) {
        }
    }
}

static void queues(void)
{
    struct vgt_side *s = &churn.side;
    struct vg_srq *srq = vg_srq_new(s->pd, 16, 1, true);
    struct vg_cq *cq = vg_cq_new(s->pd, 16);
    struct vg_qp *qp = vg_qp_new(s->pd, cq, cq, &(struct vg_qp_opts){.srq = srq});

    vg_qp_free(qp);
    vg_cq_free(cq);
    vg_srq_free(srq);
}

static void registration(void)
{
    struct vgt_side *s = &churn.side;
    struct vg_mr *mr = vg_mr_alloc(s->pd, 0x7e0000000000ull, MIB, VG_ACCESS_ALL);
    struct vg_mw mw;

    g_assert_cmpint(vg_create_mw(s->g, s->pd->handle, PVRDMA_EXT_MW_TYPE_1, &mw), ==, 0);
    g_assert_cmpint(vg_destroy(s->g, (enum pvrdma_cmd)PVRDMA_CMD_DESTROY_MW, mw.handle),
                    ==, 0);
    vg_mr_free(mr);
}

static void key(void)
{
    struct vg_wr wr[2] = {
        vg_wr_fast_reg(churn.fast, 1, VG_ACCESS_ALL),
        {.wr_id = 2, .opcode = PVRDMA_WR_LOCAL_INV, .flags = VGT_SIG},
    };

    wr[1].imm = churn.fast->rkey;
    g_assert_cmpuint(vg_post_send(churn.own, wr, 2), ==, 2);
    vgt_expect(churn.own->scq, 1, PVRDMA_WC_SUCCESS);
    vgt_expect(churn.own->scq, 2, PVRDMA_WC_SUCCESS);
}

/* Another address than the one that the messages go to. */
static void address(void)
{
    struct pvrdma_gid gid = {{0xfe, 0x80, [15] = 77}};

    g_assert_cmpint(vg_bind_gid(churn.side.g, 1, &gid), ==, 0);
    g_assert_cmpint(vg_unbind_gid(churn.side.g, 1, &gid), ==, 0);
}

/* Memory that is plugged and unplugged. */
static void memory(void)
{
    const uint64_t gpa = 0x8000000000ull;

    g_assert_cmpint(vg_dma_map(churn.side.g, churn.side.g->memfd, 0, gpa, MIB, 3), ==, 0);
    g_assert_cmpint(vg_dma_unmap(churn.side.g, gpa, MIB), ==, 0);
}

/* A program that starts, and ends without a word. */
static void program(void)
{
    struct vguest *g = churn.side.g;
    struct vg_pd pd = {.g = g, .uar_page = 9};
    struct vg_cq *cq;
    struct vg_qp *qp;

    g_assert_cmpint(vg_create_uc(g, VG_UAR_PFN + pd.uar_page, &pd.ctx), ==, 0);
    g_assert_cmpint(vg_create_pd(g, pd.ctx, &pd.handle), ==, 0);
    cq = vg_cq_new(&pd, 16);
    qp = vg_qp_new(&pd, cq, cq, NULL);
    g_assert_cmpint(vg_destroy(g, PVRDMA_CMD_DESTROY_UC, pd.ctx), ==, 0);
    g->up = false; /* our side of it alone */
    vg_qp_free(qp);
    vg_cq_free(cq);
    g->up = true;
}

/* The VM stands still for a moment, which is not the peer's time. */
static void standstill(void)
{
    vgt_vm(vgt_daemon, "pause", 1);
    vgt_vm(vgt_daemon, "resume", 1);
}

static void whole_vm(void)
{
    struct vguest *g = vguest_new(vgt_daemon, 3, NULL);

    vguest_free(g);
}

static const struct kind {
    const char *name;
    void (*one)(void);
    unsigned seldom; /* takes as long as so many others */
} kinds[] = {
    {"qp", rc_qp, 1},
    {"ud-qp", ud_qp, 1},
    {"connection", connection, 1},
    {"queues", queues, 1},
    {"registration", registration, 1},
    {"key", key, 1},
    {"address", address, 1},
    {"memory", memory, 1},
    {"program", program, 1},
    {"standstill", standstill, 10},
    {"vm", whole_vm, 10},
};

/* ---- the messages ---- */

static struct vgt_pair pair;
static struct vg_mr *large[2];
static struct vg_qp *small[2]; /* of a connection beside the large ones' */
static struct vg_cq *small_cq[2];

static struct totals {
    int64_t bytes, again;
} sent[2]; /* what there has to be, by VM */

static void open_messages(void)
{
    /* A peer on a busy machine is not silent for that long. */
    static const struct vg_conn patient = {.timeout = 21};
    struct vgt_opts o = {.mr_len = 4 * MIB, .conn = patient};

    vgt_pair_open(&pair, 0, 1, &o);
    for (unsigned i = 0; i < 2; i++) {
        struct vgt_side *s = &pair.s[i];

        large[i] = vg_mr_new(
            s->pd, vg_buf_new_alias(s->g, VA + ((uint64_t)i << 36), LARGE, PAGES),
            VG_ACCESS_ALL);
        small_cq[i] = vg_cq_new(s->pd, 64);
        small[i] = vg_qp_new(s->pd, small_cq[i], small_cq[i], NULL);
    }
    vg_qp_connect(small[0], small[1], &patient);
}

static void close_messages(void)
{
    for (unsigned i = 0; i < 2; i++) {
        vg_mr_free(large[i]);
        vg_qp_free(small[i]);
        vg_cq_free(small_cq[i]);
    }
    vgt_pair_close(&pair);
}

/* What the queue pairs of VM @vm have carried; and what was tried again. */
static struct totals totals_of(unsigned vm)
{
    static const unsigned tries[] = {PVRDMA_EXT_CNT_RETRIES, PVRDMA_EXT_CNT_RNR_WAITS,
                                     PVRDMA_EXT_QPCNT_RNR_NAKS,
                                     PVRDMA_EXT_QPCNT_DUPLICATES, PVRDMA_EXT_CNT_ERRORS};
    struct vg_qp *const qp[] = {pair.s[vm].qp, small[vm]};
    struct totals t = {0, 0};

    for (unsigned i = 0; i < G_N_ELEMENTS(qp); i++) {
        struct pvrdma_ext_resp_qp_counters c;

        g_assert_cmpint(vg_query_qp_counters(qp[i]->g, qp[i]->handle, &c), ==, 0);
        t.bytes += (int64_t)c.counter[PVRDMA_EXT_CNT_TX_BYTES];
        for (unsigned k = 0; k < G_N_ELEMENTS(tries); k++) {
            t.again += (int64_t)c.counter[tries[k]];
        }
    }
    return t;
}

/* One large message, of VM @from. */
static void post_large(unsigned from, uint32_t opcode)
{
    struct pvrdma_sge sge = vg_sge(large[from], 0, LARGE);
    struct pvrdma_sge rsge = vg_sge(large[!from], 0, LARGE);
    struct vg_wr recv = {.wr_id = 2, .nsge = 1, .sge = &rsge};
    struct vg_wr wr = vg_wr_to(1, opcode, VGT_SIG, &sge, large[!from], 0);

    if (opcode == PVRDMA_WR_SEND) {
        g_assert_cmpuint(vg_post_recv(pair.s[!from].qp, &recv, 1), ==, 1);
    }
    g_assert_cmpuint(vg_post_send(pair.s[from].qp, &wr, 1), ==, 1);
    sent[from].bytes += LARGE;
}

/* ... which is through: each byte of it, as it was when it was sent. */
static void check_large(unsigned from, uint32_t opcode, const struct pvrdma_cqe *cqe,
                        uint64_t seed)
{
    unsigned to = opcode == PVRDMA_WR_RDMA_READ ? from : !from;

    g_assert_cmpuint(cqe->wr_id, ==, 1);
    g_assert_cmpuint(cqe->status, ==, PVRDMA_WC_SUCCESS);
    if (opcode == PVRDMA_WR_SEND) {
        g_assert_cmpuint(vgt_expect(pair.s[!from].rcq, 2, PVRDMA_WC_SUCCESS).byte_len, ==,
                         LARGE);
    }
    vgt_check(VG_MR_HOST(large[to], 0), PAGES * PVRDMA_PAGE_SIZE, seed);
}

/* A short one each way. */
static void small_ones(uint64_t n)
{
    for (unsigned from = 0; from < 2; from++) {
        struct vgt_side *s = &pair.s[from], *o = &pair.s[!from];
        struct pvrdma_sge sge = vg_sge(s->mr, 0, SMALL), rsge = vg_sge(o->mr, MIB, SMALL);
        struct vg_wr recv = {.wr_id = n, .nsge = 1, .sge = &rsge};
        struct vg_wr wr = vg_wr_of(n, PVRDMA_WR_SEND, VGT_SIG, &sge);

        vgt_fill(VG_MR_HOST(s->mr, 0), SMALL, n);
        g_assert_cmpuint(vg_post_recv(small[!from], &recv, 1), ==, 1);
        g_assert_cmpuint(vg_post_send(small[from], &wr, 1), ==, 1);
        vgt_expect(small_cq[from], n, PVRDMA_WC_SUCCESS);
        vgt_expect(small_cq[!from], n, PVRDMA_WC_SUCCESS);
        vgt_check(VG_MR_HOST(o->mr, MIB), SMALL, n);
        sent[from].bytes += SMALL;
    }
}

static void open_churn(void)
{
    struct vgt_opts kernel = {.kernel = true};
    struct vgt_side *s = &churn.side;
    struct vg_pd *pd;
    struct vg_cq *cq;

    /* VM 1's other half: it has the same VM as the messages' receiver. */
    s->g = pair.s[1].g;
    s->pd = vg_pd_new(s->g);
    s->scq = vg_cq_new(s->pd, 64);
    s->rcq = vg_cq_new(s->pd, 64);
    s->mr = vg_mr_alloc(s->pd, 0x7d0000000000ull, MIB, VG_ACCESS_ALL);
    pd = vg_pd_new_kernel(s->g);
    cq = vg_cq_new(pd, 64);
    churn.own = vg_qp_new(pd, cq, cq, NULL);
    vg_qp_connect(churn.own, churn.own, NULL);
    churn.fast = vg_mr_new_fast(
        pd, vg_buf_new(s->g, 0x7c0000000000ull, 16 * PVRDMA_PAGE_SIZE, VG_SCATTERED), 16);
    vgt_side_open(&churn.other, 2, &kernel, 0);
}

static void close_churn(void)
{
    struct vgt_side *s = &churn.side;
    struct vg_pd *pd = churn.own->pd;
    struct vg_cq *cq = churn.own->scq;

    vgt_side_close(&churn.other);
    vg_qp_free(churn.own);
    vg_mr_free(churn.fast);
    vg_cq_free(cq);
    vg_pd_free(pd);
    vg_mr_free(s->mr);
    vg_cq_free(s->scq);
    vg_cq_free(s->rcq);
    vg_pd_free(s->pd);
}

static void test_kind(gconstpointer data)
{
    static const uint32_t ops[] = {PVRDMA_WR_RDMA_WRITE, PVRDMA_WR_SEND,
                                   PVRDMA_WR_RDMA_READ};
    const struct kind *kind = data;
    unsigned rounds = MAX(vgt_rounds(ROUNDS) / kind->seldom, 3), done = 0, n_large = 0;
    struct pvrdma_cqe cqe;

    open_messages();
    open_churn();
    for (unsigned i = 0; i < 2; i++) {
        sent[i] = totals_of(i);
    }
    while (done < rounds || n_large % (2 * G_N_ELEMENTS(ops))) {
        unsigned from = n_large % 2, during = 0;
        uint32_t op = ops[n_large / 2 % G_N_ELEMENTS(ops)];

        n_large++;
        vgt_fill(VG_MR_HOST(large[op == PVRDMA_WR_RDMA_READ ? !from : from], 0),
                 PAGES * PVRDMA_PAGE_SIZE, n_large);
        post_large(from, op);
        while (during < MOST / kind->seldom &&
               vg_cq_poll(pair.s[from].scq, &cqe, 1) == 0) {
            kind->one();
            small_ones(during++);
        }
        done += during;
        if (during == MOST / kind->seldom) {
            g_assert_true(vg_cq_wait(pair.s[from].scq, &cqe, VGT_WAIT_MS));
        }
        check_large(from, op, &cqe, n_large);
    }
    for (unsigned i = 0; i < 2; i++) {
        struct totals now = totals_of(i);

        g_test_message("VM %u: %u rounds, %u large messages, %.3f copies of each byte", i,
                       done, n_large, (double)now.bytes / (double)sent[i].bytes);
        if (!vgt_resets()) {
            g_assert_cmpint(now.bytes, ==, sent[i].bytes);
            g_assert_cmpint(now.again, ==, sent[i].again);
        }
    }
    close_churn();
    close_messages();
}

/*
 * A receiver whose address is taken and given back in the middle of a message, which its
 * sender does not see: it stands still.  The queue pair had lost it, so nothing more is
 * taken of that one: it begins anew.
 */
static void test_address_lost(void)
{
    enum { QUEUED = 8 };
    struct vguest *receiver;
    int64_t moved;

    open_messages();
    receiver = pair.s[1].g;
    for (unsigned i = 0; i < QUEUED; i++) {
        post_large(0, PVRDMA_WR_RDMA_WRITE);
    }
    vgt_await_counter("vm0", "datapath", "tx_bytes", 1);
    vgt_vm(vgt_daemon, "pause", 0);
    moved = totals_of(0).bytes;
    if (moved % LARGE) {
        g_assert_cmpint(vg_unbind_gid(receiver, 0, &receiver->gid), ==, 0);
        g_assert_cmpint(vg_bind_gid(receiver, 0, &receiver->gid), ==, 0);
    } else {
        g_test_skip("none was in the middle when their sender stood still");
    }
    vgt_vm(vgt_daemon, "resume", 0);
    for (unsigned i = 0; i < QUEUED; i++) {
        vgt_expect(pair.s[0].scq, 1, PVRDMA_WC_SUCCESS);
    }
    g_assert_cmpint(totals_of(0).bytes, >=, QUEUED * (int64_t)LARGE + moved % LARGE);
    close_messages();
}

int main(int argc, char **argv)
{
    /* Two workers: VM 0's copies while VM 1's has its own to do. */
    struct vg_daemon_opts o = {
        .n_vms = 4, .poll_us = -1, .workers = 2, .vm_keys = "addresses=any"};

    vgt_init(&argc, &argv, 180);
    vgt_daemon = vg_daemon_start(&o);
    for (unsigned i = 0; i < G_N_ELEMENTS(kinds); i++) {
        g_autofree char *path = g_strdup_printf("/churn/%s", kinds[i].name);

        g_test_add_data_func(path, &kinds[i], test_kind);
    }
    g_test_add_func("/churn/address-lost", test_address_lost);
    return vgt_run();
}
