/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Unit test of datapath/keys.c: what has to wait for a grace period.  The test plays a
 * registered thread that does not pass, so nothing is left to chance.
 */
#include "qpfix.h"

#define PAGES 4u
#define VA    0x7f0000000000ull

static struct qpfix f;
static struct grace_thread slow; /* may use still what it has found */
static struct mr *mr;            /* as it is made: idle */

static void setup(void)
{
    struct pvrdma_cmd_create_mr req = {.flags = PVRDMA_MR_FLAG_FRMR, .nchunks = PAGES};
    const struct pvrdma_resp_create_mr *resp;

    qpfix_open(&f, "keys");
    req.pd_handle = f.pd;
    g_assert_cmpuint(testdev_command(f.td, PVRDMA_CMD_CREATE_MR, &req, sizeof(req)), ==,
                     0);
    resp = testdev_ptr(f.td, f.td->resp);
    mr = id_table_get(&f.td->vm.objects.mr, resp->mr_handle);
    g_assert_nonnull(mr);
    g_assert_true(mr == mr->fast->idle);
    grace_online(&slow);
    grace_pass(&slow);
}

static void teardown(void)
{
    grace_offline(&slow);
    testdev_free(f.td);
}

/* The key of the MR's index with the low byte @n steps behind the first one's. */
static uint32_t key(unsigned n)
{
    uint32_t first = mr->handle << 8 | f.td->vm.objects.mr.gen[mr->handle];

    return (first & ~255u) | ((first + n) & 255);
}

static struct send_op fast_reg(uint32_t rkey)
{
    return (struct send_op){
        .m = {.opcode = PVRDMA_WR_FAST_REG},
        .reg = {.iova_start = VA,
                .pl_pdir_dma = testdev_new_pdir(f.td, PAGES, NULL),
                .page_shift = PVRDMA_PAGE_SHIFT,
                .page_list_len = PAGES,
                .length = PAGES * PVRDMA_PAGE_SIZE,
                .access_flags = PVRDMA_ACCESS_LOCAL_WRITE | PVRDMA_ACCESS_REMOTE_WRITE,
                .rkey = rkey}};
}

static struct send_op local_inv(uint32_t rkey)
{
    return (struct send_op){.m = {.opcode = PVRDMA_WR_LOCAL_INV, .imm = rkey}};
}

/* As the VM's worker runs it; what it comes to. */
static enum outcome_what run(struct qp *qp, struct send_op *op)
{
    struct outcome o;

    vm_token_take(&f.td->vm);
    o = keys_run(qp, op);
    vm_token_release(&f.td->vm);
    return (enum outcome_what)o.what;
}

/* The device's own worker has to pass, too: soon, as it has nothing to do. */
static void run_to_end(struct qp *qp, struct send_op *op)
{
    enum outcome_what what;

    while ((what = run(qp, op)) == OUT_GRACE) {
        g_usleep(100);
    }
    g_assert_cmpint(what, ==, OUT_DONE);
}

static const struct mr *in_table(void)
{
    return id_table_get(&f.td->vm.objects.mr, mr->handle);
}

/*
 * Another QP registers while the key's invalidation is not over: until then workers may
 * read the page list that it would overwrite.
 */
static void test_grace(void)
{
    struct qp *a, *b;
    struct send_op reg, inv, next;

    setup();
    a = qpfix_qp(&f);
    b = qpfix_qp(&f);
    reg = fast_reg(key(1));
    g_assert_cmpint(run(a, &reg), ==, OUT_DONE);
    g_assert_true(in_table() == mr->fast->valid);
    inv = local_inv(key(1));
    g_assert_cmpint(run(a, &inv), ==, OUT_GRACE);
    g_assert_true(in_table() == mr);

    next = fast_reg(key(2));
    for (unsigned i = 0; i < 3; i++) {
        g_assert_cmpint(run(b, &next), ==, OUT_GRACE);
        g_assert_cmpint(run(a, &inv), ==, OUT_GRACE);
        g_assert_true(in_table() == mr);
        g_assert_cmpuint(mr->fast->valid->lkey, ==, key(1));
    }
    grace_pass(&slow);
    run_to_end(b, &next);
    g_assert_cmpuint(mr->fast->valid->lkey, ==, key(2));
    g_assert_true(in_table() == mr->fast->valid);
    /* The one that waits has its own period, and takes away nobody else's key. */
    run_to_end(a, &inv);
    g_assert_true(in_table() == mr->fast->valid);
    teardown();
}

/* The key has just been taken out of the table, and when it is free is not noted yet. */
static void test_just_taken(void)
{
    struct send_op reg;
    struct qp *qp;

    setup();
    qp = qpfix_qp(&f);
    grace_offline(&slow);
    atomic_store(&mr->fast->free_at, FAST_MR_IN_USE);
    g_usleep(20000); /* the worker sleeps, so that any period is over */
    reg = fast_reg(key(1));
    g_assert_cmpint(run(qp, &reg), ==, OUT_GRACE);
    g_assert_true(in_table() == mr);
    atomic_store(&mr->fast->free_at, grace_begin());
    run_to_end(qp, &reg);
    g_assert_true(in_table() == mr->fast->valid);
    g_assert_cmpuint(atomic_load(&mr->fast->free_at), ==, FAST_MR_IN_USE);
    testdev_free(f.td);
}

/* What was taken away already: whoever comes second waits as long as the first. */
static void test_twice(void)
{
    struct send_op reg, inv, again;
    struct qp *a, *b;

    setup();
    a = qpfix_qp(&f);
    b = qpfix_qp(&f);
    reg = fast_reg(key(1));
    g_assert_cmpint(run(a, &reg), ==, OUT_DONE);
    inv = again = local_inv(key(1));
    g_assert_cmpint(run(a, &inv), ==, OUT_GRACE);
    g_assert_cmpint(run(b, &again), ==, OUT_GRACE);
    grace_pass(&slow);
    run_to_end(a, &inv);
    run_to_end(b, &again);
    teardown();
}

static uint32_t completions(void)
{
    const struct cq *cq = id_table_get(&f.td->vm.objects.cq, f.cq);

    return atomic_load(qpfix_word(&f, &cq->mem, true, false));
}

static void post_local_inv(struct qp *qp, uint32_t rkey)
{
    struct pvrdma_sq_wqe_hdr *h = testdev_ptr(f.td, wq_slot_gpa(&qp->mem, &qp->sq, 0));

    *h = (struct pvrdma_sq_wqe_hdr){
        .opcode = PVRDMA_WR_LOCAL_INV, .wr_id = 9, .imm_data = rkey};
    atomic_store(qpfix_word(&f, &qp->mem, false, false), 1);
    datapath_ring(&f.td->vm, qp->handle);
}

/*
 * The QP fails while its LOCAL_INV waits: also a flushed one says that the memory is the
 * guest's alone.
 */
static void test_flush(void)
{
    const struct cq *cq;
    const struct pvrdma_cqe *cqe;
    struct send_op reg;
    struct qp *qp;

    setup();
    cq = id_table_get(&f.td->vm.objects.cq, f.cq);
    qp = qpfix_qp(&f);
    qpfix_to_rtr(&f, qp, &qpfix_gid, qp->qpn, 0);
    qpfix_to_rts(&f, qp, 7);
    reg = fast_reg(key(1));
    g_assert_cmpint(run(qp, &reg), ==, OUT_DONE);
    post_local_inv(qp, key(1));
    while (in_table() != mr) {
        g_usleep(100);
    }
    qpfix_modify(&f, qp, 0, (struct pvrdma_qp_attr){.qp_state = PVRDMA_QPS_ERR});
    g_usleep(50000);
    g_assert_cmpuint(completions(), ==, 0);
    grace_pass(&slow);
    while (completions() == 0) {
        g_usleep(100);
    }
    cqe = testdev_ptr(f.td, ring_slot_gpa(&cq->mem, 1, 0));
    g_assert_cmpuint(cqe->wr_id, ==, 9);
    g_assert_cmpuint(cqe->status, ==, PVRDMA_WC_WR_FLUSH_ERR);
    teardown();
}

/* The next MR with that index has a key that the last one never had last. */
static void test_generation(void)
{
    struct id_table *t;
    struct send_op reg;
    uint32_t handle, last;
    struct pvrdma_cmd_create_mr req = {.flags = PVRDMA_MR_FLAG_FRMR, .nchunks = PAGES};
    const struct pvrdma_resp_create_mr *resp;

    setup();
    grace_offline(&slow);
    t = &f.td->vm.objects.mr;
    handle = mr->handle;
    last = key(1); /* what the index has next, if nobody looks at what was registered */
    reg = fast_reg(last);
    run_to_end(qpfix_qp(&f), &reg);
    g_assert_cmpuint(in_table()->lkey, ==, last);
    g_assert_cmpuint(testdev_handle(f.td, PVRDMA_CMD_DESTROY_MR, handle), ==, 0);
    t->next = handle; /* not after all others */
    req.pd_handle = f.pd;
    g_assert_cmpuint(testdev_command(f.td, PVRDMA_CMD_CREATE_MR, &req, sizeof(req)), ==,
                     0);
    resp = testdev_ptr(f.td, f.td->resp);
    g_assert_cmpuint(resp->mr_handle, ==, handle);
    g_assert_cmpuint(resp->rkey >> 8, ==, handle);
    g_assert_cmpuint(resp->rkey, !=, last);
    testdev_free(f.td);
}

int main(int argc, char **argv)
{
    int ret;

    g_test_init(&argc, &argv, NULL);
    grace_register(&slow); /* before there are workers, who look at the list */
    grace_offline(&slow);
    testdev_start();
    g_test_add_func("/keys/grace", test_grace);
    g_test_add_func("/keys/just-taken", test_just_taken);
    g_test_add_func("/keys/twice", test_twice);
    g_test_add_func("/keys/flush", test_flush);
    g_test_add_func("/keys/generation", test_generation);
    ret = g_test_run();
    testdev_stop();
    grace_unregister(&slow);
    return ret;
}
