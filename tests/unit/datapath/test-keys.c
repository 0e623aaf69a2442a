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
static struct mr *base;          /* what windows are bound to */

/* What the command @op with @req makes in the table. */
static struct mr *create(uint32_t op, void *req, size_t size)
{
    const struct pvrdma_resp_create_mr *resp = testdev_ptr(f.td, f.td->resp);
    struct mr *made;

    testdev_do(f.td, op, req, size);
    made = id_table_get(&f.td->vm.objects.mr, resp->mr_handle);
    g_assert_nonnull(made);
    return made;
}

static void setup(void)
{
    struct pvrdma_cmd_create_mr req = {.flags = PVRDMA_MR_FLAG_FRMR, .nchunks = PAGES};

    qpfix_open(&f, "keys");
    req.pd_handle = f.pd;
    mr = create(PVRDMA_CMD_CREATE_MR, &req, sizeof(req));
    g_assert_true(mr == mr->fast->idle);
    grace_online(&slow);
    grace_pass(&slow);
}

/* The same with a window of type 1 in place of the MR, and one to bind it to. */
static void setup_window(void)
{
    struct pvrdma_ext_cmd_create_mw req = {.type = PVRDMA_EXT_MW_TYPE_1};
    struct pvrdma_cmd_create_mr base_req = {.start = VA,
                                            .length = PAGES * PVRDMA_PAGE_SIZE,
                                            .access_flags = PVRDMA_ACCESS_LOCAL_WRITE |
                                                            PVRDMA_ACCESS_MW_BIND,
                                            .nchunks = PAGES};

    setup();
    req.pd_handle = base_req.pd_handle = f.pd;
    base_req.pdir_dma = testdev_new_pdir(f.td, PAGES, NULL);
    base = create(PVRDMA_CMD_CREATE_MR, &base_req, sizeof(base_req));
    mr = create(PVRDMA_CMD_CREATE_MW, &req, sizeof(req));
    g_assert_true(mr == mr->fast->idle);
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

static struct pvrdma_bind_mw binding(uint32_t rkey)
{
    return (struct pvrdma_bind_mw){.addr = VA,
                                   .length = PVRDMA_PAGE_SIZE,
                                   .lkey = base->lkey,
                                   .access_flags = PVRDMA_ACCESS_REMOTE_WRITE,
                                   .rkey = rkey};
}

static struct send_op bind_mw(uint32_t rkey)
{
    return (struct send_op){.m = {.opcode = PVRDMA_WR_BIND_MW}, .bind = binding(rkey)};
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

static void post(struct qp *qp, struct pvrdma_sq_wqe_hdr h)
{
    h.wr_id = 9;
    memcpy(testdev_ptr(f.td, wq_slot_gpa(&qp->mem, &qp->sq, 0)), &h, sizeof(h));
    atomic_store(qpfix_word(&f, &qp->mem, false, false), 1);
    datapath_ring(&f.td->vm, qp->handle);
}

/*
 * The QP fails while @h waits, which takes the key that the MR has: also a flushed one
 * says that the memory is the guest's alone.
 */
static void flush(struct qp *qp, struct pvrdma_sq_wqe_hdr h)
{
    const struct cq *cq = id_table_get(&f.td->vm.objects.cq, f.cq);
    const struct pvrdma_cqe *cqe;

    qpfix_to_rtr(&f, qp, &qpfix_gid, qp->qpn, 0);
    qpfix_to_rts(&f, qp, 7);
    g_assert_true(in_table() == mr->fast->valid);
    post(qp, h);
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

static void test_flush(void)
{
    struct send_op reg;
    struct qp *qp;

    setup();
    qp = qpfix_qp(&f);
    reg = fast_reg(key(1));
    g_assert_cmpint(run(qp, &reg), ==, OUT_DONE);
    flush(qp,
          (struct pvrdma_sq_wqe_hdr){.opcode = PVRDMA_WR_LOCAL_INV, .imm_data = key(1)});
}

static void test_flush_bind(void)
{
    struct send_op bound;
    struct qp *qp;

    setup_window();
    qp = qpfix_qp(&f);
    qp->ops |= 1u << PVRDMA_WR_BIND_MW; /* as an extended QP of a program has it */
    bound = bind_mw(key(1));
    g_assert_cmpint(run(qp, &bound), ==, OUT_DONE);
    flush(qp, (struct pvrdma_sq_wqe_hdr){.opcode = PVRDMA_WR_BIND_MW,
                                         .wr.bind_mw = binding(key(2))});
}

/*
 * A window is bound over what it is bound to.  Neither the new binding nor another queue
 * pair's is made before nobody can use the old one, and a failure is not told before.
 */
static void test_bind_over(void)
{
    enum outcome_what o;
    struct send_op first, over, other;
    struct qp *a, *b;

    setup_window();
    a = qpfix_qp(&f);
    b = qpfix_qp(&f);
    first = bind_mw(key(1));
    over = bind_mw(key(2));
    other = bind_mw(key(3));
    g_assert_cmpint(run(a, &first), ==, OUT_DONE);
    g_assert_true(in_table() == mr->fast->valid);
    g_assert_cmpuint(atomic_load(&base->windows), ==, 1);
    g_assert_cmpint(run(a, &over), ==, OUT_GRACE);
    g_assert_true(in_table() == mr);
    g_assert_cmpuint(atomic_load(&base->windows), ==, 0);
    for (unsigned i = 0; i < 3; i++) {
        g_assert_cmpint(run(b, &other), ==, OUT_GRACE);
        /* What it was to be bound to has no such right any more. */
        base->access ^= PVRDMA_ACCESS_MW_BIND;
        g_assert_cmpint(run(a, &over), ==, OUT_GRACE);
        base->access ^= PVRDMA_ACCESS_MW_BIND;
        g_assert_true(in_table() == mr);
        g_assert_cmpuint(mr->fast->valid->lkey, ==, key(1));
    }
    grace_pass(&slow);
    base->access ^= PVRDMA_ACCESS_MW_BIND;
    while ((o = run(a, &over)) == OUT_GRACE) {
        g_usleep(100);
    }
    g_assert_cmpint(o, ==, OUT_FAIL);
    base->access ^= PVRDMA_ACCESS_MW_BIND;
    run_to_end(b, &other);
    g_assert_true(in_table() == mr->fast->valid);
    g_assert_cmpuint(in_table()->lkey, ==, key(3));
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
    testdev_do(f.td, PVRDMA_CMD_CREATE_MR, &req, sizeof(req));
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
    g_test_add_func("/keys/flush-bind", test_flush_bind);
    g_test_add_func("/keys/bind-over", test_bind_over);
    g_test_add_func("/keys/generation", test_generation);
    ret = g_test_run();
    testdev_stop();
    grace_unregister(&slow);
    return ret;
}
