/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Unit test of datapath/complete.c: one CQ in the batches of two workers.  Who flushes
 * publishes what both pushed, and neither needs the other's turn.  LAST_WQE_REACHED
 * comes behind what either has pushed.  The main thread waits for no worker that has the
 * CQ: neither at a doorbell nor in commands, which leave the main loop to others.
 */
#include "base/coro.h"
#include "qpfix.h"

static struct worker *worker[2];
static struct qpfix f;
static struct cq *cq;

static void push(void *arg)
{
    struct pvrdma_cqe cqe = {.wr_id = GPOINTER_TO_UINT(arg)};

    comp_push(cq, &cqe, false);
}

static void flush(void *arg)
{
    comp_flush(worker_self());
}

static uint32_t visible(void)
{
    return atomic_load(qpfix_word(&f, &cq->mem, true, false));
}

static uint64_t wr_id(uint32_t idx)
{
    const struct pvrdma_cqe *e = testdev_ptr(
        f.td, ring_slot_gpa(&cq->mem, 1, (uint64_t)idx * sizeof(struct pvrdma_cqe)));

    return e->wr_id;
}

/*
 * In each round the first worker pushes and does not flush, as one that lost its
 * processor; the second one's completions, and its own ones, must come through.
 */
static void test_two_workers(void)
{
    uint32_t n = 0;

    for (unsigned round = 0; round < 20; round++) {
        struct worker *stuck = worker[round & 1], *other = worker[!(round & 1)];

        qpfix_on_worker(stuck, push, GUINT_TO_POINTER(n));
        g_assert_cmpuint(visible(), ==, n);
        qpfix_on_worker(other, push, GUINT_TO_POINTER(n + 1));
        g_assert_cmpuint(visible(), ==, n);
        qpfix_on_worker(other, flush, NULL);
        n += 2;
        g_assert_cmpuint(visible(), ==, n);
        g_assert_cmpuint(wr_id(n - 2), ==, n - 2);
        g_assert_cmpuint(wr_id(n - 1), ==, n - 1);
        /* Again, while it is in the stuck one's batch still. */
        qpfix_on_worker(other, push, GUINT_TO_POINTER(n));
        qpfix_on_worker(other, flush, NULL);
        g_assert_cmpuint(visible(), ==, ++n);
        g_assert_cmpuint(wr_id(n - 1), ==, n - 1);
        qpfix_on_worker(stuck, flush, NULL);
        g_assert_cmpuint(visible(), ==, n);
        g_assert_cmpuint(cq->batched, ==, 0);
    }
    g_assert_cmpuint(n, <=, 64);
}

/* The one that published first need not be the one that is to notify. */
static void test_notify(void)
{
    struct pvrdma_db_region *db = f.td->vm.guest.db.shared;

    atomic_store(qpfix_word(&f, &cq->mem, true, true), visible());
    testdev_irqs(f.td, PVRDMA_VEC_CQ);
    __atomic_store_n(&db->arm[cq->handle], PVRDMA_DB_ARM_ANY, __ATOMIC_SEQ_CST);
    qpfix_on_worker(worker[0], push, NULL);
    qpfix_on_worker(worker[1], push, NULL);
    qpfix_on_worker(worker[1], flush, NULL);
    g_assert_cmpuint(testdev_irqs(f.td, PVRDMA_VEC_CQ), ==, 1);
    /* Nothing new in it: the next one's flush takes no arm word. */
    __atomic_store_n(&db->arm[cq->handle], PVRDMA_DB_ARM_ANY, __ATOMIC_SEQ_CST);
    qpfix_on_worker(worker[0], flush, NULL);
    g_assert_cmpuint(testdev_irqs(f.td, PVRDMA_VEC_CQ), ==, 0);
    g_assert_cmpuint(__atomic_load_n(&db->arm[cq->handle], __ATOMIC_SEQ_CST), ==,
                     PVRDMA_DB_ARM_ANY);
}

static struct qp *shared_qp(void)
{
    struct pvrdma_cmd_create_srq srq = {.pd_handle = f.pd,
                                        .attrs = {.max_wr = 8, .max_sge = 1},
                                        .nchunks = 2,
                                        .pdir_dma = testdev_new_pdir(f.td, 2, NULL)};
    struct pvrdma_cmd_create_qp req;

    testdev_do(f.td, PVRDMA_CMD_CREATE_SRQ, &srq, sizeof(srq));
    testdev_qp_req(f.td, &req, f.pd, f.cq);
    req.max_recv_wr = req.max_recv_sge = 0;
    req.total_chunks = 3;
    req.is_srq = 1;
    req.srq_handle =
        ((const struct pvrdma_resp_handle *)testdev_ptr(f.td, f.td->resp))->handle;
    testdev_do(f.td, PVRDMA_CMD_CREATE_QP, &req, sizeof(req));
    return id_table_get(
        &f.td->vm.objects.qp,
        ((const struct pvrdma_resp_create_qp *)testdev_ptr(f.td, f.td->resp))->qp_handle);
}

static void flush_receives(void *arg)
{
    responder_flush(arg, 64);
}

/*
 * The last completion of a QP with an SRQ is one that the sender's worker has pushed and
 * not published.  Then the QP fails, and its own worker tells that no more come.
 */
static void test_last_wqe(void)
{
    uint32_t n = visible();
    struct qp *qp = shared_qp();

    g_assert_nonnull(qp);
    testdev_irqs(f.td, PVRDMA_VEC_ASYNC);
    qpfix_on_worker(worker[1], push, GUINT_TO_POINTER(77));
    g_assert_cmpuint(visible(), ==, n);
    pthread_mutex_lock(&qp->lock);
    qp_enter_error_locked(qp);
    pthread_mutex_unlock(&qp->lock);
    qpfix_on_worker(worker[0], flush_receives, qp);
    g_assert_cmpuint(testdev_irqs(f.td, PVRDMA_VEC_ASYNC), ==, 1);
    g_assert_cmpuint(visible(), ==, n + 1);
    g_assert_cmpuint(wr_id(n), ==, 77);
    qpfix_on_worker(worker[1], flush, NULL);
    g_assert_cmpuint(visible(), ==, n + 1);
}

/* ---- a worker that has a CQ for long ---- */

#define WAIT_MS 10000

/* The second worker takes the lock of @cq, as if it stood in a page fault. */
static struct {
    struct qpfix_call call;
    struct cq *cq;
    _Atomic bool has, let_go;
    bool in_vain; /* nobody told it to let go */
} holder;

static void hold(void *arg)
{
    pthread_mutex_lock(&holder.cq->lock);
    atomic_store(&holder.has, true);
    for (unsigned i = 0; i < WAIT_MS && !atomic_load(&holder.let_go); i++) {
        g_usleep(1000);
    }
    holder.in_vain = !atomic_load(&holder.let_go);
    pthread_mutex_unlock(&holder.cq->lock);
}

static void hold_begin(struct cq *held)
{
    memset(&holder, 0, sizeof(holder));
    holder.cq = held;
    holder.call =
        (struct qpfix_call){.source = {.fd = -1, .ready = qpfix_run_call}, .fn = hold};
    g_assert_true(worker_add_source(worker[1], &holder.call.source, 0));
    while (!atomic_load(&holder.has)) {
        g_usleep(100);
    }
}

static void hold_end(void)
{
    atomic_store(&holder.let_go, true);
    while (!atomic_load(&holder.call.done)) {
        g_usleep(100);
    }
    worker_remove_source(&holder.call.source);
    g_assert_false(holder.in_vain);
}

/* The note that is there has been run. */
static void looked(void)
{
    for (unsigned i = 0; atomic_load(&cq->looking); i++) {
        g_assert_cmpuint(i, <, WAIT_MS);
        g_usleep(1000);
    }
    qpfix_on_worker(worker[0], flush, NULL);
}

/*
 * The guest arms by doorbells that nobody answers.  With a completion that it has not
 * read there is one event, when the worker lets go; with none there is no event.
 */
static void test_armed_while_held(void)
{
    struct pvrdma_db_region *db = f.td->vm.guest.db.shared;

    for (unsigned unread = 0; unread < 2; unread++) {
        atomic_store(qpfix_word(&f, &cq->mem, true, true), visible());
        __atomic_store_n(&db->arm[cq->handle], PVRDMA_DB_ARM_NONE, __ATOMIC_SEQ_CST);
        for (unsigned i = 0; i < unread; i++) {
            qpfix_on_worker(worker[0], push, NULL);
            qpfix_on_worker(worker[0], flush, NULL);
        }
        testdev_irqs(f.td, PVRDMA_VEC_CQ);
        hold_begin(cq);
        for (unsigned i = 0; i < 3; i++) {
            datapath_cq_arm(&f.td->vm, cq->handle, false, true);
        }
        g_assert_cmpuint(testdev_irqs(f.td, PVRDMA_VEC_CQ), ==, 0);
        hold_end();
        looked();
        g_assert_cmpuint(testdev_irqs(f.td, PVRDMA_VEC_CQ), ==, unread);
        g_assert_cmpuint(__atomic_load_n(&db->arm[cq->handle], __ATOMIC_SEQ_CST), ==,
                         unread ? PVRDMA_DB_ARM_NONE : PVRDMA_DB_ARM_ANY);
    }
}

static void run_moderate(void *arg)
{
    datapath_cq_moderate(holder.cq, 0, 0);
    *(bool *)arg = true;
}

static void run_destroy(void *arg)
{
    const union verbs_req req = {.abi.handle.handle = holder.cq->handle};

    g_assert_cmpint(verbs_destroy_cq(&f.td->vm, &req, NULL), ==, 0);
    *(bool *)arg = true;
}

/* They end when the worker lets go; until then the loop turns, and the VM's token is
 * free. */
static void test_command_while_held(void)
{
    static void (*const command[])(void *) = {run_moderate, run_destroy};

    for (unsigned i = 0; i < G_N_ELEMENTS(command); i++) {
        uint32_t handle = testdev_cq(f.td, 0, 64);
        bool ended = false;

        hold_begin(id_table_get(&f.td->vm.objects.cq, handle));
        g_assert_false(coro_run(command[i], &ended));
        for (unsigned k = 0; k < 20; k++) {
            g_main_context_iteration(NULL, FALSE);
            vm_token_take(&f.td->vm);
            vm_token_release(&f.td->vm);
        }
        g_assert_false(ended);
        hold_end();
        for (unsigned k = 0; !ended; k++) {
            g_assert_cmpuint(k, <, WAIT_MS);
            g_main_context_iteration(NULL, FALSE);
            g_usleep(1000);
        }
        if (id_table_get(&f.td->vm.objects.cq, handle)) {
            g_assert_cmpuint(testdev_handle(f.td, PVRDMA_CMD_DESTROY_CQ, handle), ==, 0);
        }
    }
}

int main(int argc, char **argv)
{
    struct testdev *second;
    GError *err = NULL;
    int ret;

    g_test_init(&argc, &argv, NULL);
    log_set_level(LOG_LVL_ERROR);
    guest_mem_init_process();
    directory_init();
    grace_start(&err);
    g_assert_no_error(err);
    datapath_start(2, 50, &err);
    g_assert_no_error(err);
    /* The second VM is only there for its worker, the less loaded one. */
    qpfix_open(&f, "first");
    cq = id_table_get(&f.td->vm.objects.cq, f.cq);
    g_assert_nonnull(cq);
    second = testdev_new("second");
    worker[0] = f.td->vm.dp.worker;
    worker[1] = second->vm.dp.worker;
    g_assert_true(worker[0] != worker[1]);
    g_test_add_func("/complete/two-workers", test_two_workers);
    g_test_add_func("/complete/notify", test_notify);
    g_test_add_func("/complete/last-wqe", test_last_wqe);
    g_test_add_func("/complete/armed-while-held", test_armed_while_held);
    g_test_add_func("/complete/command-while-held", test_command_while_held);
    ret = g_test_run();
    coro_fini();
    testdev_free(second);
    testdev_free(f.td);
    testdev_stop();
    grace_stop();
    return ret;
}
