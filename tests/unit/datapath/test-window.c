/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Unit test of datapath/window.c: a transport that only takes messages and answers
 * when the test says so.  Completions in order, fences and limits, going back,
 * errors, flush; and answers that nobody asked for.
 */
#include <inttypes.h>

#include "qpfix.h"
#include "transport/transports.h"

#define RING    256u
#define GARBAGE 0x7fffu
/* For what must not happen: long after a timer of 10 us. */
#define ABSENT_US 20000

static struct qpfix f;
static struct qp *qp;
static struct cq *cq;
static uint32_t n_posted, n_reaped;

/* What start() was called with; the test looks only while nothing is started. */
static uint64_t started[1024];
static _Atomic unsigned n_started;
static _Atomic bool down, room, stalled;
static _Atomic bool alone;    /* but the first message all are held */
static _Atomic uint64_t from; /* where the last one went on */

static struct outcome take(struct qp *q, struct send_op *op)
{
    unsigned n = atomic_load(&n_started);

    if (atomic_load(&down)) {
        return OUTCOME(OUT_SILENT);
    }
    if (atomic_load(&alone) && op->m.seq > 0) {
        return OUTCOME(OUT_HELD);
    }
    if (op->m.flags & PVRDMA_SEND_SOLICITED && !atomic_load(&room)) {
        op->done = 1; /* the first slice; as if it were longer */
        atomic_store(&stalled, true);
        return OUTCOME(OUT_STALLED);
    }
    g_assert_cmpuint(n, <, G_N_ELEMENTS(started));
    started[n] = op->m.seq;
    atomic_store(&from, op->done);
    atomic_store(&n_started, n + 1);
    return OUTCOME(OUT_PENDING);
}

static const struct transport_ops transport = {
    .name = "test", .pipelined = true, .start = take};

/* ---- calls in a turn of the VM ---- */

struct call {
    struct note note; /* first */
    void (*fn)(void *arg);
    void *arg;
    _Atomic bool done;
};

static void run_call(struct note *n, struct vm *vm)
{
    struct call *c = (struct call *)(void *)n;

    c->fn(c->arg);
    atomic_store(&c->done, true);
}

static void in_turn(void (*fn)(void *), void *arg)
{
    struct call c = {.note.run = run_call, .fn = fn, .arg = arg};

    vm_post(&f.td->vm, &c.note);
    while (!atomic_load(&c.done)) {
        g_usleep(50);
    }
}

struct answer {
    uint64_t seq;
    struct outcome o;
};

static void do_answer(void *arg)
{
    const struct answer *a = arg;

    requester_answered(qp, a->seq, a->o);
}

static void answer(uint64_t seq, struct outcome o)
{
    struct answer a = {seq, o};

    in_turn(do_answer, &a);
}

static void done(uint64_t seq)
{
    answer(seq, OUTCOME(OUT_DONE));
}

static void do_lost(void *arg)
{
    requester_lost(qp);
}

static void do_resume(void *arg)
{
    requester_resume(qp, *(const uint64_t *)arg);
}

/* ---- the guest ---- */

static void post(uint32_t opcode, uint32_t flags)
{
    struct pvrdma_sq_wqe_hdr *h =
        testdev_ptr(f.td, wq_slot_gpa(&qp->mem, &qp->sq, n_posted % RING));

    *h = (struct pvrdma_sq_wqe_hdr){.wr_id = 100 + n_posted,
                                    .opcode = opcode,
                                    .send_flags = PVRDMA_SEND_SIGNALED | flags};
    n_posted++;
    atomic_store(qpfix_word(&f, &qp->mem, false, false), n_posted % (2 * RING));
    datapath_ring(&f.td->vm, qp->handle);
}

static void post_each(unsigned n, uint32_t opcode)
{
    for (unsigned i = 0; i < n; i++) {
        post(opcode, 0);
    }
}

static void nothing(void *arg)
{
}

/* Everything that can be started is. */
static void settle(void)
{
    for (unsigned i = 0; i < 6; i++) {
        in_turn(nothing, NULL);
    }
}

static void expect_started(const char *expected)
{
    g_autoptr(GString) s = g_string_new(NULL);

    settle();
    for (unsigned i = 0; i < atomic_load(&n_started); i++) {
        g_string_append_printf(s, "%s%" PRIu64, i ? " " : "", started[i]);
    }
    g_assert_cmpstr(s->str, ==, expected);
}

/* A turn may end early, and a timer may have to be over. */
static void await_number(unsigned n)
{
    gint64 end = g_get_monotonic_time() + 10 * G_USEC_PER_SEC;

    while (atomic_load(&n_started) < n && g_get_monotonic_time() < end) {
        g_usleep(1000);
    }
    settle();
}

static void await_started(const char *expected)
{
    unsigned n = 1;

    for (const char *c = expected; *c; c++) {
        n += *c == ' ';
    }
    await_number(n);
    expect_started(expected);
}

/* The next completion, of the request posted as number @n. */
static void expect_cqe(uint32_t n, uint32_t status)
{
    const struct pvrdma_cqe *cqe =
        testdev_ptr(f.td, ring_slot_gpa(&cq->mem, 1, (uint64_t)n_reaped * sizeof(*cqe)));
    gint64 end = g_get_monotonic_time() + 10 * G_USEC_PER_SEC;

    while (atomic_load(qpfix_word(&f, &cq->mem, true, false)) == n_reaped) {
        g_assert_cmpint(g_get_monotonic_time(), <, end);
        g_usleep(50);
    }
    g_assert_cmpuint(cqe->wr_id, ==, 100 + n);
    g_assert_cmpuint(cqe->status, ==, status);
    n_reaped++;
    /* The slot is the guest's from then on, and not before. */
    g_assert_cmpuint(atomic_load(qpfix_word(&f, &qp->mem, false, true)), >, n);
}

/* Those of the requests from @first to the one before @end. */
static void expect_cqes(uint32_t first, uint32_t end, uint32_t status)
{
    for (uint32_t n = first; n < end; n++) {
        expect_cqe(n, status);
    }
}

static void expect_no_cqe(void)
{
    settle();
    g_assert_cmpuint(atomic_load(qpfix_word(&f, &cq->mem, true, false)), ==, n_reaped);
}

static void setup(uint8_t rnr_retry)
{
    const struct pvrdma_resp_create_qp *resp;
    struct pvrdma_cmd_create_qp req;

    qpfix_open(&f, "window");
    cq = id_table_get(&f.td->vm.objects.cq, f.cq);
    testdev_qp_req(f.td, &req, f.pd, f.cq);
    req.max_send_wr = RING; /* of 128 bytes */
    req.send_chunks = RING * 128 / PVRDMA_PAGE_SIZE;
    req.total_chunks = req.send_chunks + 2;
    req.pdir_dma = testdev_new_pdir(f.td, req.total_chunks, NULL);
    transport_local = &transport;
    testdev_do(f.td, PVRDMA_CMD_CREATE_QP, &req, sizeof(req));
    resp = testdev_ptr(f.td, f.td->resp);
    qp = id_table_get(&f.td->vm.objects.qp, resp->qp_handle);
    g_assert_cmpuint(qp->sq.nwqe, ==, RING);
    qpfix_to_rtr(&f, qp, &qpfix_peer_gid, 0x010001, 0);
    qpfix_to_rts(&f, qp, rnr_retry); /* max_rd_atomic 4 */
    n_posted = n_reaped = 0;
    atomic_store(&n_started, 0);
    atomic_store(&down, false);
    atomic_store(&alone, false);
    atomic_store(&room, true);
}

static void teardown(void)
{
    testdev_free(f.td);
}

/* ---- tests ---- */

static void test_order(void)
{
    setup(7);
    post_each(3, PVRDMA_WR_RDMA_WRITE);
    expect_started("0 1 2");
    expect_no_cqe();
    g_assert_cmpuint(atomic_load(qpfix_word(&f, &qp->mem, false, true)), ==, 0);
    done(1); /* and so 0 */
    expect_cqe(0, PVRDMA_WC_SUCCESS);
    expect_cqe(1, PVRDMA_WC_SUCCESS);
    expect_no_cqe();
    done(2);
    expect_cqe(2, PVRDMA_WC_SUCCESS);
    g_assert_cmpuint(qp->req.psn, ==, 3);
    g_assert_cmpuint(atomic_load(&f.td->vm.dp.tx_msgs), ==, 3);
    teardown();
}

/* An acknowledgement of later messages says nothing of what a READ returns. */
static void test_returning(void)
{
    setup(7);
    post(PVRDMA_WR_RDMA_WRITE, 0);
    post(PVRDMA_WR_RDMA_READ, 0);
    post(PVRDMA_WR_RDMA_WRITE, 0);
    expect_started("0 1 2");
    done(2);
    expect_cqe(0, PVRDMA_WC_SUCCESS);
    expect_no_cqe();
    done(1);
    expect_cqe(1, PVRDMA_WC_SUCCESS);
    expect_cqe(2, PVRDMA_WC_SUCCESS);
    teardown();
}

static void test_fence(void)
{
    setup(7);
    post(PVRDMA_WR_RDMA_READ, 0);
    post(PVRDMA_WR_RDMA_WRITE, 0);
    post(PVRDMA_WR_RDMA_WRITE, PVRDMA_SEND_FENCE);
    post(PVRDMA_WR_RDMA_WRITE, 0);
    expect_started("0 1");
    done(1); /* not what the fence is about */
    expect_started("0 1");
    done(0);
    expect_started("0 1 2 3");
    done(3);
    expect_cqes(0, 4, PVRDMA_WC_SUCCESS);
    teardown();
}

static void test_limits(void)
{
    setup(7);
    post_each(6, PVRDMA_WR_RDMA_READ);
    expect_started("0 1 2 3");
    done(1);
    expect_started("0 1 2 3 4");
    done(0);
    done(2);
    expect_started("0 1 2 3 4 5"); /* that is all there is */
    done(3);
    done(4);
    done(5);
    expect_cqes(0, 6, PVRDMA_WC_SUCCESS);
    teardown();
}

static void test_full(void)
{
    setup(7);
    for (unsigned i = 0; i < QP_WINDOW + 10; i++) {
        post(PVRDMA_WR_RDMA_WRITE, i % 8 ? 0 : PVRDMA_SEND_SOLICITED);
    }
    await_number(QP_WINDOW);
    g_assert_cmpuint(atomic_load(&n_started), ==, QP_WINDOW);
    done(9);
    await_number(QP_WINDOW + 10);
    g_assert_cmpuint(atomic_load(&n_started), ==, QP_WINDOW + 10);
    done(QP_WINDOW - 1);
    for (unsigned i = 0; i < 60; i++) { /* the CQ has 64 */
        expect_cqe(i, PVRDMA_WC_SUCCESS);
    }
    teardown();
}

static void test_rnr(void)
{
    struct outcome rnr = {.what = OUT_RNR, .status = 1 /* 10 us */};

    setup(2);
    post_each(3, PVRDMA_WR_RDMA_WRITE);
    expect_started("0 1 2");
    answer(1, rnr); /* so 0 was taken */
    expect_cqe(0, PVRDMA_WC_SUCCESS);
    await_started("0 1 2 1 2");
    answer(1, rnr);
    await_started("0 1 2 1 2 1 2");
    answer(1, rnr); /* the third time, and two retries */
    expect_cqe(1, PVRDMA_WC_RNR_RETRY_EXC_ERR);
    expect_cqe(2, PVRDMA_WC_WR_FLUSH_ERR);
    g_assert_cmpuint(atomic_load(&f.td->vm.dp.rnr_waits), ==, 2);
    teardown();
}

/* Each message has its own tries. */
static void test_rnr_each(void)
{
    static const char *const again[] = {"0 1 2 0 1 2", "0 1 2 0 1 2 1 2",
                                        "0 1 2 0 1 2 1 2 2"};
    struct outcome rnr = {.what = OUT_RNR, .status = 1};

    setup(1);
    post_each(3, PVRDMA_WR_RDMA_WRITE);
    expect_started("0 1 2");
    for (unsigned i = 0; i < 3; i++) {
        answer(i, rnr);
        await_started(again[i]);
    }
    done(2);
    expect_cqes(0, 3, PVRDMA_WC_SUCCESS);
    teardown();
}

static void test_errors(void)
{
    struct outcome fail = {.what = OUT_FAIL, .status = PVRDMA_WC_REM_ACCESS_ERR};

    setup(7);
    post(PVRDMA_WR_RDMA_WRITE, 0);
    post(GARBAGE, 0); /* an error of ours, found while 0 is on its way */
    post(PVRDMA_WR_RDMA_WRITE, 0);
    expect_started("0");
    expect_no_cqe();
    done(0);
    expect_cqe(0, PVRDMA_WC_SUCCESS);
    expect_cqe(1, PVRDMA_WC_LOC_QP_OP_ERR);
    expect_cqe(2, PVRDMA_WC_WR_FLUSH_ERR);
    teardown();

    setup(7);
    post(PVRDMA_WR_RDMA_READ, 0);
    post(PVRDMA_WR_RDMA_WRITE, 0);
    post(PVRDMA_WR_RDMA_WRITE, 0);
    expect_started("0 1 2");
    answer(1, fail); /* of theirs; it waits for the READ */
    expect_no_cqe();
    post(PVRDMA_WR_RDMA_WRITE, 0);
    expect_started("0 1 2"); /* nothing is started behind it */
    done(0);
    expect_cqe(0, PVRDMA_WC_SUCCESS);
    expect_cqe(1, PVRDMA_WC_REM_ACCESS_ERR);
    expect_cqe(2, PVRDMA_WC_WR_FLUSH_ERR);
    expect_cqe(3, PVRDMA_WC_WR_FLUSH_ERR);
    done(2); /* too late */
    expect_no_cqe();
    teardown();
}

static void test_lost(void)
{
    uint64_t got = 3;

    setup(7);
    post(PVRDMA_WR_RDMA_WRITE, 0);
    post(PVRDMA_WR_RDMA_READ, 0);
    for (unsigned i = 2; i < 5; i++) {
        post(PVRDMA_WR_RDMA_WRITE, 0);
    }
    expect_started("0 1 2 3 4");
    atomic_store(&down, true);
    in_turn(do_lost, NULL);
    done(4); /* of the lost connection: ignored */
    expect_no_cqe();
    expect_started("0 1 2 3 4");
    g_assert_cmpuint(qp->req.wait, ==, QP_WAIT_TIMEOUT);
    atomic_store(&down, false);
    in_turn(do_resume, &got);
    /* The READ was executed, but nothing has come back. */
    expect_started("0 1 2 3 4 1 3 4");
    expect_cqe(0, PVRDMA_WC_SUCCESS);
    expect_no_cqe();
    done(1);
    expect_cqe(1, PVRDMA_WC_SUCCESS);
    expect_cqe(2, PVRDMA_WC_SUCCESS);
    done(4);
    expect_cqe(3, PVRDMA_WC_SUCCESS);
    expect_cqe(4, PVRDMA_WC_SUCCESS);
    g_assert_cmpuint(qp->req.psn, ==, 5);

    /* Lost again with nothing on its way, and when all that was has arrived. */
    in_turn(do_lost, NULL);
    got = 5;
    in_turn(do_resume, &got);
    post(PVRDMA_WR_RDMA_WRITE, 0);
    expect_started("0 1 2 3 4 1 3 4 5");
    in_turn(do_lost, NULL);
    got = 6;
    in_turn(do_resume, &got);
    expect_cqe(5, PVRDMA_WC_SUCCESS);
    teardown();
}

/*
 * The peer expects a message before those that it has acknowledged, or one that was never
 * started: nothing completes by that.
 */
static void test_strayed(void)
{
    static const uint64_t got[] = {0, 4, UINT64_MAX};

    for (unsigned i = 0; i < G_N_ELEMENTS(got); i++) {
        uint64_t expected = got[i];

        setup(7);
        post_each(3, PVRDMA_WR_RDMA_WRITE);
        expect_started("0 1 2");
        done(0);
        expect_cqe(0, PVRDMA_WC_SUCCESS);
        atomic_store(&down, true);
        in_turn(do_lost, NULL);
        post(PVRDMA_WR_RDMA_WRITE, 0); /* never started */
        settle();
        in_turn(do_resume, &expected);
        expect_cqes(1, 4, PVRDMA_WC_WR_FLUSH_ERR);
        g_assert_cmpuint(atomic_load(&qp->state), ==, PVRDMA_QPS_ERR);
        teardown();
    }
}

/* Nobody comes back: the tries are those of the oldest. */
static void test_never(void)
{
    setup(7);
    post_each(3, PVRDMA_WR_RDMA_WRITE);
    expect_started("0 1 2");
    vm_token_take(&f.td->vm);
    qp->attr.timeout = 1; /* 8 us */
    vm_token_release(&f.td->vm);
    atomic_store(&down, true);
    in_turn(do_lost, NULL);
    expect_cqe(0, PVRDMA_WC_RETRY_EXC_ERR);
    expect_cqe(1, PVRDMA_WC_WR_FLUSH_ERR);
    expect_cqe(2, PVRDMA_WC_WR_FLUSH_ERR);
    g_assert_cmpuint(atomic_load(&f.td->vm.dp.retries), ==, 8);
    teardown();
}

static void test_junk(void)
{
    static const uint8_t what[] = {OUT_DONE,   OUT_MORE, OUT_PENDING, OUT_STALLED,
                                   OUT_SILENT, OUT_RNR,  OUT_HELD,    OUT_FAIL};

    setup(7);
    post(PVRDMA_WR_RDMA_WRITE, 0);
    expect_started("0");
    for (unsigned i = 0; i < G_N_ELEMENTS(what); i++) {
        answer(1, OUTCOME(what[i]));
        answer(QP_WINDOW, OUTCOME(what[i]));
        answer(UINT64_MAX, OUTCOME(what[i]));
    }
    expect_no_cqe();
    done(0);
    done(0);
    expect_cqe(0, PVRDMA_WC_SUCCESS);
    expect_no_cqe();
    post(PVRDMA_WR_RDMA_WRITE, 0);
    expect_started("0 1");
    answer(1, OUTCOME(OUT_FAIL)); /* with a status that is none */
    expect_cqe(1, PVRDMA_WC_GENERAL_ERR);
    teardown();
}

static void post_halfway(void)
{
    atomic_store(&stalled, false);
    post(PVRDMA_WR_SEND, PVRDMA_SEND_SOLICITED);
    while (!atomic_load(&stalled)) {
        g_usleep(50);
    }
}

/* The answer may come while the message is still being started. */
static void test_halfway(void)
{
    struct outcome rnr = {.what = OUT_RNR, .status = 1};

    setup(7);
    post(PVRDMA_WR_RDMA_WRITE, 0);
    expect_started("0");
    atomic_store(&room, false);
    post_halfway();
    atomic_store(&room, true);
    answer(1, rnr);
    expect_cqe(0, PVRDMA_WC_SUCCESS);
    await_started("0 1"); /* from its beginning */
    done(1);
    expect_cqe(1, PVRDMA_WC_SUCCESS);
    expect_no_cqe();
    expect_started("0 1");

    atomic_store(&room, false);
    post_halfway();
    answer(2, (struct outcome){.what = OUT_FAIL, .status = PVRDMA_WC_REM_OP_ERR});
    expect_cqe(2, PVRDMA_WC_REM_OP_ERR);
    teardown();
}

/* That nobody was there for 2 does not say that 0 and 1 have arrived. */
static void test_silent(void)
{
    setup(7);
    post_each(3, PVRDMA_WR_RDMA_WRITE);
    expect_started("0 1 2");
    answer(2, OUTCOME(OUT_HELD));
    expect_no_cqe();
    await_started("0 1 2 0 1 2");
    answer(1, OUTCOME(OUT_SILENT));
    expect_no_cqe();
    await_started("0 1 2 0 1 2 0 1 2");
    done(2);
    expect_cqes(0, 3, PVRDMA_WC_SUCCESS);
    expect_no_cqe();
    expect_started("0 1 2 0 1 2 0 1 2");
    teardown();
}

/* One behind it that is held, at each try, leaves the first the tries that it has. */
static void test_held_behind(void)
{
    unsigned tries;

    setup(7);
    tries = qp->attr.retry_cnt + 1u;
    atomic_store(&alone, true);
    post_each(3, PVRDMA_WR_RDMA_WRITE);
    for (unsigned n = 1; n <= tries + 1; n++) {
        while (atomic_load(&n_started) < n) {
            g_usleep(100);
        }
        expect_no_cqe();
        answer(0, OUTCOME(OUT_SILENT));
    }
    expect_cqe(0, PVRDMA_WC_RETRY_EXC_ERR);
    expect_cqe(1, PVRDMA_WC_WR_FLUSH_ERR);
    expect_cqe(2, PVRDMA_WC_WR_FLUSH_ERR);
    teardown();
}

static void to_state(uint32_t state)
{
    qpfix_modify(&f, qp, 0, (struct pvrdma_qp_attr){.qp_state = state});
}

static void test_flush(void)
{
    setup(7);
    post(PVRDMA_WR_RDMA_READ, 0);
    post(PVRDMA_WR_RDMA_WRITE, 0);
    post(PVRDMA_WR_RDMA_WRITE, PVRDMA_SEND_FENCE); /* fetched, and waits */
    post(PVRDMA_WR_RDMA_WRITE, 0);
    expect_started("0 1");
    to_state(PVRDMA_QPS_ERR);
    expect_cqes(0, 4, PVRDMA_WC_WR_FLUSH_ERR);
    done(0);
    expect_no_cqe();
    teardown();

    /* In the middle of going back. */
    setup(7);
    post_each(4, PVRDMA_WR_RDMA_WRITE);
    expect_started("0 1 2 3");
    atomic_store(&down, true);
    in_turn(do_lost, NULL);
    settle();
    to_state(PVRDMA_QPS_ERR);
    expect_cqes(0, 4, PVRDMA_WC_WR_FLUSH_ERR);
    post(PVRDMA_WR_RDMA_WRITE, 0);
    expect_cqe(4, PVRDMA_WC_WR_FLUSH_ERR);
    teardown();
}

static void test_reset(void)
{
    setup(7);
    post_each(3, PVRDMA_WR_RDMA_READ);
    expect_started("0 1 2");
    to_state(PVRDMA_QPS_RESET);
    atomic_store(qpfix_word(&f, &qp->mem, false, false), 0);
    atomic_store(qpfix_word(&f, &qp->mem, false, true), 0);
    done(2);
    expect_no_cqe();
    qpfix_to_rtr(&f, qp, &qpfix_peer_gid, 0x010001, 0);
    qpfix_to_rts(&f, qp, 7);
    n_posted = 0;
    atomic_store(&n_started, 0);
    post(PVRDMA_WR_RDMA_WRITE, PVRDMA_SEND_FENCE);
    expect_started("0");
    done(0);
    expect_cqe(0, PVRDMA_WC_SUCCESS);
    teardown();
}

static void test_drain(void)
{
    setup(7);
    post(PVRDMA_WR_RDMA_WRITE, 0);
    post(PVRDMA_WR_RDMA_WRITE, 0);
    expect_started("0 1");
    to_state(PVRDMA_QPS_SQD);
    post(PVRDMA_WR_RDMA_WRITE, 0);
    expect_started("0 1");
    g_assert_true(qp->attr.sq_draining);
    /* Begun before SQD, so it is sent again in SQD; the rest is not. */
    in_turn(do_lost, NULL);
    expect_started("0 1 0 1");
    done(0);
    settle();
    g_assert_true(qp->attr.sq_draining);
    done(1);
    settle();
    g_assert_false(qp->attr.sq_draining);
    expect_cqe(0, PVRDMA_WC_SUCCESS);
    expect_cqe(1, PVRDMA_WC_SUCCESS);
    expect_started("0 1 0 1");
    teardown();
}

/* One that has begun is finished in SQD, also if its first bytes were lost. */
static void test_drain_halfway(void)
{
    setup(7);
    post(PVRDMA_WR_RDMA_WRITE, 0);
    expect_started("0");
    atomic_store(&room, false);
    post_halfway();
    to_state(PVRDMA_QPS_SQD);
    post(PVRDMA_WR_RDMA_WRITE, 0);
    settle();
    atomic_store(&room, true);
    in_turn(do_lost, NULL);
    expect_started("0 0 1");
    g_assert_cmpuint(atomic_load(&from), ==, 0);
    done(0);
    settle();
    g_assert_true(qp->attr.sq_draining);
    done(1);
    expect_cqe(0, PVRDMA_WC_SUCCESS);
    expect_cqe(1, PVRDMA_WC_SUCCESS);
    settle();
    g_assert_false(qp->attr.sq_draining);
    expect_started("0 0 1");
    g_assert_cmpuint(qp->req.psn, ==, 2);
    teardown();
}

struct reopened {
    uint64_t seq;
    bool ok;
};

static void do_reopen(void *arg)
{
    static struct send_op op;
    struct reopened *r = arg;

    r->ok = requester_reopen(qp, r->seq, &op);
}

static bool reopen(uint64_t seq)
{
    struct reopened r = {.seq = seq};

    in_turn(do_reopen, &r);
    return r.ok;
}

static void test_reopen(void)
{
    struct pvrdma_sq_wqe_hdr *h;

    setup(7);
    post(PVRDMA_WR_RDMA_WRITE, 0);
    post(PVRDMA_WR_RDMA_READ, 0);
    expect_started("0 1");
    g_assert_false(reopen(0));
    g_assert_true(reopen(1));
    g_assert_false(reopen(2));
    g_assert_false(reopen(UINT64_MAX));
    h = testdev_ptr(f.td, wq_slot_gpa(&qp->mem, &qp->sq, 1));
    h->opcode = PVRDMA_WR_RDMA_WRITE; /* not what it was */
    g_assert_false(reopen(1));
    h->opcode = GARBAGE;
    g_assert_false(reopen(1));
    h->opcode = PVRDMA_WR_RDMA_READ;
    g_assert_true(reopen(1));
    done(1);
    g_assert_false(reopen(1));
    teardown();
}

/* Two answers in one turn, of which the second says to wait: so it does. */
static void do_done_then_rnr(void *arg)
{
    requester_answered(qp, 0, OUTCOME(OUT_DONE));
    requester_answered(qp, 1, (struct outcome){.what = OUT_RNR, .status = 31});
}

static void test_waiting(void)
{
    setup(7);
    post_each(3, PVRDMA_WR_RDMA_WRITE);
    expect_started("0 1 2");
    in_turn(do_done_then_rnr, NULL); /* 491 ms */
    expect_cqe(0, PVRDMA_WC_SUCCESS);
    expect_started("0 1 2");
    await_started("0 1 2 1 2");
    done(2);
    expect_cqe(1, PVRDMA_WC_SUCCESS);
    expect_cqe(2, PVRDMA_WC_SUCCESS);
    post(PVRDMA_WR_RDMA_WRITE, 0);
    expect_started("0 1 2 1 2 3"); /* no timer is left that it would wait for */
    teardown();
}

/* One has failed and waits for a READ; what comes behind it is not sent again. */
static void test_stopped(void)
{
    setup(7);
    post(PVRDMA_WR_RDMA_READ, 0);
    post(PVRDMA_WR_RDMA_READ, 0);
    post(PVRDMA_WR_SEND, 0);
    expect_started("0 1 2");
    answer(1, (struct outcome){.what = OUT_FAIL, .status = PVRDMA_WC_LOC_PROT_ERR});
    answer(2, (struct outcome){.what = OUT_RNR, .status = 1});
    g_usleep(ABSENT_US);
    post(PVRDMA_WR_RDMA_WRITE, 0);
    expect_started("0 1 2");
    done(0);
    expect_cqe(0, PVRDMA_WC_SUCCESS);
    expect_cqe(1, PVRDMA_WC_LOC_PROT_ERR);
    expect_cqe(2, PVRDMA_WC_WR_FLUSH_ERR);
    expect_cqe(3, PVRDMA_WC_WR_FLUSH_ERR);
    teardown();
}

/* An answer to what was never sent: all is flushed nevertheless. */
static void test_unsent(void)
{
    setup(7);
    post(PVRDMA_WR_RDMA_WRITE, 0);
    post(GARBAGE, 0);
    post(PVRDMA_WR_RDMA_WRITE, 0);
    expect_started("0");
    done(1);
    expect_cqe(0, PVRDMA_WC_SUCCESS);
    expect_cqe(1, PVRDMA_WC_LOC_QP_OP_ERR);
    expect_cqe(2, PVRDMA_WC_WR_FLUSH_ERR);
    teardown();
}

static void do_fail_then_go(void *arg)
{
    requester_answered(
        qp, 0, (struct outcome){.what = OUT_FAIL, .status = PVRDMA_WC_LOC_PROT_ERR});
    requester_go(qp);
}

static void do_fail_then_resume(void *arg)
{
    requester_answered(
        qp, 0, (struct outcome){.what = OUT_FAIL, .status = PVRDMA_WC_LOC_PROT_ERR});
    requester_resume(qp, 2);
}

/* What comes before the flush, in the same turn, completes nothing behind an error. */
static void test_behind_error(void)
{
    setup(7);
    post(PVRDMA_WR_RDMA_READ, 0);
    post(PVRDMA_WR_RDMA_WRITE, 0);
    expect_started("0 1");
    done(1);
    in_turn(do_fail_then_go, NULL);
    expect_cqe(0, PVRDMA_WC_LOC_PROT_ERR);
    expect_cqe(1, PVRDMA_WC_WR_FLUSH_ERR);
    teardown();

    setup(7);
    post(PVRDMA_WR_RDMA_READ, 0);
    post(PVRDMA_WR_RDMA_WRITE, 0);
    expect_started("0 1");
    in_turn(do_fail_then_resume, NULL);
    expect_cqe(0, PVRDMA_WC_LOC_PROT_ERR);
    expect_cqe(1, PVRDMA_WC_WR_FLUSH_ERR);
    teardown();
}

/* Nor does what a responder would not answer: one before it has not come. */
static void test_early(void)
{
    setup(7);
    post(PVRDMA_WR_RDMA_WRITE, 0);
    post(PVRDMA_WR_RDMA_WRITE, 0);
    expect_started("0 1");
    answer(1, OUTCOME(OUT_EARLY));
    expect_no_cqe();
    teardown();
}

/* Another path in SQD, with the first bytes of a message gone the old way. */
static void test_new_path(void)
{
    struct pvrdma_ah_attr ah = {
        .dgid = qpfix_gid, .hop_limit = 64, .ah_flags = 1, .port_num = 1};

    setup(7);
    atomic_store(&room, false);
    post_halfway();
    to_state(PVRDMA_QPS_SQD);
    settle();
    atomic_store(&room, true);
    qpfix_modify(&f, qp, PVRDMA_QP_AV,
                 (struct pvrdma_qp_attr){.qp_state = PVRDMA_QPS_SQD, .ah_attr = ah});
    expect_started("0");
    g_assert_cmpuint(atomic_load(&from), ==, 0);
    done(0);
    expect_cqe(0, PVRDMA_WC_SUCCESS);
    teardown();
}

/* What the old path cost in tries and timers is not held against the new one. */
static void test_new_path_tries(void)
{
    struct outcome rnr = {.what = OUT_RNR, .status = 1};
    struct outcome long_rnr = {.what = OUT_RNR, .status = 31}; /* 491 ms */
    struct pvrdma_ah_attr ah = {
        .dgid = qpfix_gid, .hop_limit = 64, .ah_flags = 1, .port_num = 1};

    setup(2);
    post(PVRDMA_WR_SEND, 0);
    expect_started("0");
    answer(0, rnr);
    await_started("0 0");
    answer(0, long_rnr); /* the last try */
    post(PVRDMA_WR_SEND, 0);
    to_state(PVRDMA_QPS_SQD);
    expect_started("0 0");
    qpfix_modify(&f, qp, PVRDMA_QP_AV,
                 (struct pvrdma_qp_attr){.qp_state = PVRDMA_QPS_SQD, .ah_attr = ah});
    expect_started("0 0 0");
    answer(0, rnr);
    expect_no_cqe();
    await_started("0 0 0 0");
    done(0);
    expect_cqe(0, PVRDMA_WC_SUCCESS);
    expect_no_cqe();
    expect_started("0 0 0 0");
    teardown();
}

int main(int argc, char **argv)
{
    testdev_init(&argc, &argv);
    g_test_add_func("/window/order", test_order);
    g_test_add_func("/window/returning", test_returning);
    g_test_add_func("/window/fence", test_fence);
    g_test_add_func("/window/limits", test_limits);
    g_test_add_func("/window/full", test_full);
    g_test_add_func("/window/rnr", test_rnr);
    g_test_add_func("/window/rnr-each", test_rnr_each);
    g_test_add_func("/window/errors", test_errors);
    g_test_add_func("/window/lost", test_lost);
    g_test_add_func("/window/strayed", test_strayed);
    g_test_add_func("/window/never", test_never);
    g_test_add_func("/window/junk", test_junk);
    g_test_add_func("/window/halfway", test_halfway);
    g_test_add_func("/window/silent", test_silent);
    g_test_add_func("/window/held-behind", test_held_behind);
    g_test_add_func("/window/waiting", test_waiting);
    g_test_add_func("/window/stopped", test_stopped);
    g_test_add_func("/window/unsent", test_unsent);
    g_test_add_func("/window/behind-error", test_behind_error);
    g_test_add_func("/window/early", test_early);
    g_test_add_func("/window/new-path", test_new_path);
    g_test_add_func("/window/new-path-tries", test_new_path_tries);
    g_test_add_func("/window/flush", test_flush);
    g_test_add_func("/window/reset", test_reset);
    g_test_add_func("/window/drain", test_drain);
    g_test_add_func("/window/drain-halfway", test_drain_halfway);
    g_test_add_func("/window/reopen", test_reopen);
    return testdev_run();
}
