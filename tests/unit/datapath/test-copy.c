/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Unit test of transport/copy: messages that come again, since what they return was
 * lost on the way by another transport.  Atomics are executed once, whatever becomes of
 * their results; a READ is carried once more for as long as the responder answers.  What
 * is new to the requester and not to the responder is no such message.
 */
#include "pvrdma/ext.h"
#include "qpfix.h"
#include "transport/transports.h"

#define PAGES  32u
#define LENGTH (PAGES * PVRDMA_PAGE_SIZE) /* two slices */
#define START  0x7f0000000000u

static struct qpfix f;
static struct qp *qp, *peer;
static uint32_t key[2]; /* of the requester's memory, of the responder's */
static void *mem[2];

static void create_mr(unsigned i)
{
    const struct pvrdma_resp_create_mr *resp = testdev_ptr(f.td, f.td->resp);
    uint64_t first;
    struct pvrdma_cmd_create_mr req = {
        .start = START,
        .length = LENGTH,
        .pdir_dma = testdev_new_pdir(f.td, PAGES, &first),
        .pd_handle = f.pd,
        .access_flags = PVRDMA_ACCESS_LOCAL_WRITE | PVRDMA_ACCESS_REMOTE_READ |
                        PVRDMA_ACCESS_REMOTE_ATOMIC,
        .nchunks = PAGES,
    };

    testdev_do(f.td, PVRDMA_CMD_CREATE_MR, &req, sizeof(req));
    key[i] = resp->lkey;
    mem[i] = testdev_ptr(f.td, first);
}

static void setup(void)
{
    qpfix_open(&f, "copy");
    create_mr(0);
    create_mr(1);
    memset(mem[1], 0x55, LENGTH);
    qp = qpfix_qp(&f);
    peer = qpfix_qp(&f);
    qpfix_to_rtr(&f, qp, &qpfix_gid, peer->qpn, 0);
    qpfix_to_rtr(&f, peer, &qpfix_gid, qp->qpn, 0);
    qpfix_to_rts(&f, qp, 7);
    qpfix_to_rts(&f, peer, 7);
    vm_token_take(&f.td->vm);
    pthread_mutex_lock(&peer->lock);
    peer->attr.qp_access_flags |= PVRDMA_ACCESS_REMOTE_READ | PVRDMA_ACCESS_REMOTE_ATOMIC;
    pthread_mutex_unlock(&peer->lock);
    vm_token_release(&f.td->vm);
}

struct call {
    uint32_t opcode, length, lkey; /* no length: go on with the message */
    bool is_new;                   /* it was never started before */
    struct outcome o;
};

/* Message 0 of the connection.  Nothing is active: the worker takes it for no WQE's. */
static void make(const struct call *c)
{
    struct send_op *op = &qp->req.op;

    op->admitted = op->repeated = op->is_inline = false;
    op->done = 0;
    op->cur = (struct sg_cursor){0, 0};
    op->nsge = 1;
    op->sge[0] = (struct pvrdma_sge){START, c->length, c->lkey};
    op->m.seq = 0;
    op->m.psn = 0;
    op->m.npsn = 1;
    op->m.opcode = c->opcode;
    op->m.rkey = key[1];
    op->m.addr = START;
    op->m.length = c->length;
    op->m.compare_add = 1;
}

static void do_start(void *arg)
{
    struct call *c = arg;

    if (c->length) {
        make(c);
    }
    qp->req.replay = !c->is_new; /* not for longer: there is no WQE to be fetched */
    c->o = transport_copy.start(qp, &qp->req.op);
    qp->req.replay = 0;
}

static struct outcome start(uint32_t opcode, uint32_t length, uint32_t lkey)
{
    struct call c = {opcode, length, lkey, .o = OUTCOME(OUT_DONE)};

    qpfix_on_worker(f.td->vm.dp.worker, do_start, &c);
    return c.o;
}

static int start_new(uint32_t opcode)
{
    struct call c = {opcode, 8, key[0], true, OUTCOME(OUT_DONE)};

    qpfix_on_worker(f.td->vm.dp.worker, do_start, &c);
    return c.o.what;
}

static int go_on(void)
{
    return start(0, 0, 0).what;
}

/* Of the responder: what came again after it was executed. */
static uint64_t duplicates(void)
{
    struct pvrdma_cmd_handle req = {.handle = peer->handle};
    const struct pvrdma_ext_resp_qp_counters *resp = testdev_ptr(f.td, f.td->resp);

    testdev_do(f.td, PVRDMA_CMD_QUERY_QP_COUNTERS, &req, sizeof(req));
    return resp->counter[PVRDMA_EXT_QPCNT_DUPLICATES];
}

/* The requester's memory is not there: executed it is all the same. */
static void test_atomic_once(void)
{
    uint64_t *word, *old;
    struct outcome o;

    setup();
    word = mem[1];
    old = mem[0];
    *word = 7;
    o = start(PVRDMA_WR_ATOMIC_FETCH_AND_ADD, 8, 0);
    g_assert_cmpint(o.what, ==, OUT_FAIL);
    g_assert_cmpint(o.status, ==, PVRDMA_WC_LOC_PROT_ERR);
    g_assert_cmpuint(*word, ==, 8);
    g_assert_cmpuint(duplicates(), ==, 0);

    g_assert_cmpint(start(PVRDMA_WR_ATOMIC_FETCH_AND_ADD, 8, key[0]).what, ==, OUT_DONE);
    g_assert_cmpuint(*word, ==, 8);
    g_assert_cmpuint(*old, ==, 7);
    g_assert_cmpuint(duplicates(), ==, 1);
    testdev_free(f.td);
}

/* The guest has made a READ of an atomic since. */
static void test_read_for_atomic(void)
{
    uint8_t *got;

    setup();
    got = mem[0];
    g_assert_cmpint(start(PVRDMA_WR_ATOMIC_FETCH_AND_ADD, 8, key[0]).what, ==, OUT_DONE);
    g_assert_cmpint(start(PVRDMA_WR_RDMA_READ, 64, key[0]).what, ==, OUT_DONE);
    g_assert_cmpuint(got[0], ==, 0x56);
    g_assert_cmpuint(got[63], ==, 0x55);
    g_assert_cmpuint(duplicates(), ==, 1);
    testdev_free(f.td);
}

static void test_read_again(void)
{
    uint8_t *got;

    setup();
    got = mem[0];
    g_assert_cmpint(start(PVRDMA_WR_RDMA_READ, 8, key[0]).what, ==, OUT_DONE);
    g_assert_cmpint(start(PVRDMA_WR_RDMA_READ, LENGTH, key[0]).what, ==, OUT_MORE);
    g_assert_cmpint(go_on(), ==, OUT_DONE);
    g_assert_cmpuint(got[LENGTH - 1], ==, 0x55);

    /* The responder's QP fails between two slices: it answers no more. */
    memset(got, 0, LENGTH);
    g_assert_cmpint(start(PVRDMA_WR_RDMA_READ, LENGTH, key[0]).what, ==, OUT_MORE);
    qpfix_modify(&f, peer, 0, (struct pvrdma_qp_attr){.qp_state = PVRDMA_QPS_ERR});
    g_assert_cmpint(go_on(), ==, OUT_SILENT);
    g_assert_cmpint(go_on(), ==, OUT_SILENT);
    g_assert_cmpuint(got[LENGTH - 1], ==, 0);
    testdev_free(f.td);
}

/* The requester was put back, and begins to count anew: neither goes on. */
static void test_strayed(void)
{
    uint64_t *word, *old;

    setup();
    word = mem[1];
    old = mem[0];
    *word = 7;
    g_assert_cmpint(start_new(PVRDMA_WR_ATOMIC_FETCH_AND_ADD), ==, OUT_DONE);
    *old = 1;
    g_assert_cmpint(start_new(PVRDMA_WR_ATOMIC_FETCH_AND_ADD), ==, OUT_STALLED);
    g_assert_cmpuint(*word, ==, 8);
    g_assert_cmpuint(*old, ==, 1);
    g_assert_cmpuint(duplicates(), ==, 0);
    g_assert_cmpuint(atomic_load(&qp->state), ==, PVRDMA_QPS_ERR);
    g_assert_cmpuint(atomic_load(&peer->state), ==, PVRDMA_QPS_ERR);
    testdev_free(f.td);
}

static void do_compare(void *arg)
{
    uint16_t *replay = arg;

    qp->req.replay = *replay;
    transport_copy.compare(qp, false);
    qp->req.replay = 0;
}

/* The requester's state then; @replay messages are to be started again. */
static uint32_t compared(uint16_t replay)
{
    qpfix_on_worker(f.td->vm.dp.worker, do_compare, &replay);
    return atomic_load(&qp->state);
}

/* ... or sends nothing: they see it nonetheless. */
static void test_compare(void)
{
    setup();
    g_assert_cmpuint(compared(0), ==, PVRDMA_QPS_RTS);
    g_assert_cmpint(start_new(PVRDMA_WR_ATOMIC_FETCH_AND_ADD), ==, OUT_DONE);
    g_assert_cmpuint(compared(1), ==, PVRDMA_QPS_RTS); /* its answer was lost */
    qp->req.seq = 1;                                   /* as it does when it completes */
    g_assert_cmpuint(compared(0), ==, PVRDMA_QPS_RTS);
    qp->req.seq = 0;
    g_assert_cmpuint(compared(0), ==, PVRDMA_QPS_ERR);
    g_assert_cmpuint(atomic_load(&peer->state), ==, PVRDMA_QPS_ERR);
    testdev_free(f.td);
}

static void heard_of_peer(uint64_t incarnation)
{
    pthread_mutex_lock(&qp->lock);
    qp->resp.incarnation = incarnation;
    pthread_mutex_unlock(&qp->lock);
}

/* The responder was put back to when nothing had come, or it is a new one. */
static void test_compare_unheard(void)
{
    setup();
    qp->req.seq = qp->req.psn = 5;
    g_assert_cmpuint(compared(0), ==, PVRDMA_QPS_RTS);
    heard_of_peer(atomic_load(&peer->req.incarnation) + 1);
    g_assert_cmpuint(compared(0), ==, PVRDMA_QPS_RTS);
    heard_of_peer(atomic_load(&peer->req.incarnation));
    qp->req.psn = 0; /* both took another path */
    g_assert_cmpuint(compared(0), ==, PVRDMA_QPS_RTS);
    qp->req.psn = 5;
    qp->req.seq = 0;
    g_assert_cmpuint(compared(0), ==, PVRDMA_QPS_RTS);
    qp->req.seq = 5;
    g_assert_cmpuint(compared(0), ==, PVRDMA_QPS_ERR);
    g_assert_cmpuint(atomic_load(&peer->state), ==, PVRDMA_QPS_ERR);
    testdev_free(f.td);
}

/* Its peer is connected to another now: that one is not concerned. */
static void test_compare_foreign(void)
{
    setup();
    g_assert_cmpint(start_new(PVRDMA_WR_ATOMIC_FETCH_AND_ADD), ==, OUT_DONE);
    pthread_mutex_lock(&peer->lock);
    peer->req.path.dqpn++;
    pthread_mutex_unlock(&peer->lock);
    g_assert_cmpuint(compared(0), ==, PVRDMA_QPS_RTS);
    pthread_mutex_lock(&peer->lock);
    peer->req.path.dqpn--;
    peer->req.path.dgid.raw[15]++;
    pthread_mutex_unlock(&peer->lock);
    g_assert_cmpuint(compared(0), ==, PVRDMA_QPS_RTS);
    pthread_mutex_lock(&peer->lock);
    peer->req.path.dgid.raw[15]--;
    pthread_mutex_unlock(&peer->lock);
    qpfix_modify(&f, peer, 0, (struct pvrdma_qp_attr){.qp_state = PVRDMA_QPS_ERR});
    g_assert_cmpuint(compared(0), ==, PVRDMA_QPS_RTS);
    testdev_free(f.td);
}

/* The requester did not hear what the responder failed for: it has been moved. */
static void test_failed_before(void)
{
    struct outcome o;

    setup();
    key[1]++;
    o = start(PVRDMA_WR_RDMA_WRITE, 8, key[0]);
    g_assert_cmpint(o.what, ==, OUT_FAIL);
    g_assert_true(o.remote);
    g_assert_cmpuint(atomic_load(&peer->state), ==, PVRDMA_QPS_ERR);
    /* It is told again, of this message alone, and nothing is settled twice. */
    for (unsigned i = 0; i < 2; i++) {
        o = start(PVRDMA_WR_RDMA_WRITE, 8, key[0]);
        g_assert_cmpint(o.what, ==, OUT_FAIL);
        g_assert_cmpint(o.status, ==, PVRDMA_WC_REM_ACCESS_ERR);
        g_assert_false(o.remote);
    }
    pthread_mutex_lock(&peer->lock);
    peer->resp.seq = peer->resp.failed_seq = 1; /* as if it had been the second */
    pthread_mutex_unlock(&peer->lock);
    g_assert_cmpint(start(PVRDMA_WR_RDMA_WRITE, 8, key[0]).what, ==, OUT_DUPLICATE);
    g_assert_cmpint(start(PVRDMA_WR_RDMA_READ, 8, key[0]).what, ==, OUT_SILENT);
    qpfix_modify(&f, peer, 0, (struct pvrdma_qp_attr){.qp_state = PVRDMA_QPS_RESET});
    g_assert_cmpint(start(PVRDMA_WR_RDMA_WRITE, 8, key[0]).what, ==, OUT_SILENT);
    testdev_free(f.td);
}

int main(int argc, char **argv)
{
    testdev_init(&argc, &argv);
    g_test_add_func("/copy/atomic-once", test_atomic_once);
    g_test_add_func("/copy/read-for-atomic", test_read_for_atomic);
    g_test_add_func("/copy/read-again", test_read_again);
    g_test_add_func("/copy/strayed", test_strayed);
    g_test_add_func("/copy/compare", test_compare);
    g_test_add_func("/copy/compare-unheard", test_compare_unheard);
    g_test_add_func("/copy/compare-foreign", test_compare_foreign);
    g_test_add_func("/copy/failed-before", test_failed_before);
    return testdev_run();
}
