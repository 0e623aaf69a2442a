/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Unit test of datapath/requester.c's retry rules, with a transport that always
 * answers "receiver not ready".  Being woken before the timer is over costs no retry;
 * the slot of a WQE stays the daemon's until it is completed.
 */
#include "qpfix.h"

#define RNR_CODE 29u /* 245.76 ms */
#define RNR_NS   245760000ull

static struct qpfix f;
static struct qp *qp;
static _Atomic unsigned calls;
static _Atomic uint64_t first_call;

static struct outcome never_ready(struct qp *q, struct send_op *op)
{
    if (atomic_fetch_add(&calls, 1) == 0) {
        atomic_store(&first_call, now_ns());
    }
    return (struct outcome){.what = OUT_RNR, .status = RNR_CODE};
}

static const struct transport_ops transport = {.name = "test", .start = never_ready};

static bool failed(void)
{
    return atomic_load(&qp->state) == PVRDMA_QPS_ERR;
}

/* As ticket_wake() does. */
static void wake(void)
{
    atomic_store(&qp->req.wake, true);
    datapath_ring(&f.td->vm, qp->handle);
}

static void test_rnr_wake(void)
{
    _Atomic uint32_t *tail, *prod, *cons;
    struct pvrdma_sq_wqe_hdr *h;
    const struct pvrdma_cqe *cqe;
    struct cq *cq;
    uint64_t end;
    unsigned last;

    qpfix_open(&f, "requester");
    qp = qpfix_qp(&f);
    cq = qp->scq;
    qp->req.transport = &transport;
    qpfix_to_rtr(&f, qp, &qpfix_peer_gid, 0x010001, 0);
    qpfix_to_rts(&f, qp, 1);
    h = testdev_ptr(f.td, wq_slot_gpa(&qp->mem, &qp->sq, 0));
    *h = (struct pvrdma_sq_wqe_hdr){.wr_id = 42, .opcode = PVRDMA_WR_SEND};
    prod = qpfix_word(&f, &qp->mem, false, false);
    cons = qpfix_word(&f, &qp->mem, false, true);
    tail = qpfix_word(&f, &cq->mem, true, false);
    atomic_store(prod, 1);
    datapath_ring(&f.td->vm, qp->handle);

    end = now_ns() + 20000000000ull;
    while (atomic_load(cons) == 0 && now_ns() < end) {
        unsigned before = atomic_load(&calls);

        if (before && before < 200) {
            wake();
        }
        for (unsigned i = 0; i < 20 && atomic_load(&calls) == before; i++) {
            g_usleep(100);
        }
    }
    /* Its slot became the guest's with its completion: it is not tried again. */
    last = atomic_load(&calls);
    while (!failed() && now_ns() < end) {
        g_usleep(100);
    }
    g_assert_true(failed());
    g_assert_cmpuint(atomic_load(&calls), ==, last);
    g_test_message("%u tries in %.1f ms", atomic_load(&calls),
                   (double)(now_ns() - atomic_load(&first_call)) / 1e6);
    g_assert_cmpuint(now_ns() - atomic_load(&first_call), >=, RNR_NS);
    g_assert_cmpuint(atomic_load(&f.td->vm.dp.rnr_waits), ==, 1);
    while (atomic_load(tail) == 0) {
        g_usleep(100);
    }
    g_assert_cmpuint(atomic_load(cons), ==, 1);
    cqe = testdev_ptr(f.td, ring_slot_gpa(&cq->mem, 1, 0));
    g_assert_cmpuint(cqe->wr_id, ==, 42);
    g_assert_cmpuint(cqe->status, ==, PVRDMA_WC_RNR_RETRY_EXC_ERR);
    testdev_free(f.td);
}

int main(int argc, char **argv)
{
    testdev_init(&argc, &argv);
    g_test_add_func("/requester/rnr-wake", test_rnr_wake);
    return testdev_run();
}
