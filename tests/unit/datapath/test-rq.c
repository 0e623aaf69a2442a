/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Unit test of datapath/rq.c: tickets of senders that wait for a receive WQE.  More
 * than there are places for, twice the same, and of VMs, QPs and connections that are
 * gone; and which QPs are woken.
 */
#include "qpfix.h"

static struct qpfix f;
static struct qp *qp; /* receives */

static void setup(void)
{
    qpfix_open(&f, "rq");
    qp = qpfix_qp(&f);
}

static int claim(const struct ticket *t)
{
    struct recv_op recv;
    int err;

    pthread_mutex_lock(&qp->lock);
    err = rq_claim_or_wait(qp->rq, &recv, t);
    pthread_mutex_unlock(&qp->lock);
    return err;
}

/* The guest posts a receive WQE without SGEs; nobody rings. */
static void post(uint64_t wr_id)
{
    _Atomic uint32_t *prod = qpfix_word(&f, &qp->mem, true, false);
    const struct wq *wq = &qp->rq->wq;
    uint32_t idx = atomic_load(prod);
    struct pvrdma_rq_wqe_hdr *h =
        testdev_ptr(f.td, wq_slot_gpa(&qp->mem, wq, pvrdma_idx_slot(idx, wq->nwqe)));

    *h = (struct pvrdma_rq_wqe_hdr){.wr_id = wr_id};
    atomic_store(prod, pvrdma_idx_next(idx, wq->nwqe));
}

static unsigned waiting(void)
{
    return atomic_load(&qp->rq->n_wait);
}

/* A sender of this very VM that waits: all that its ticket needs. */
static struct ticket sender(struct qp *s, uint64_t incarnation)
{
    atomic_store(&s->req.incarnation, incarnation);
    atomic_store(&s->req.wake, false);
    return (struct ticket){f.td->vm.id, s->handle, incarnation};
}

static void test_many(void)
{
    setup();
    for (uint32_t i = 0; i < 4 * RQ_WAITERS; i++) {
        struct ticket t = {f.td->vm.id, qp->handle, 1000 + i};

        for (unsigned again = 0; again < 3; again++) {
            g_assert_cmpint(claim(&t), ==, EAGAIN);
            g_assert_cmpuint(waiting(), ==, MIN(i + 1, RQ_WAITERS));
        }
    }
    /* Who gets a WQE waits no longer; one without a place takes nobody else's. */
    post(1);
    g_assert_cmpint(claim(&(struct ticket){f.td->vm.id, qp->handle, 1003}), ==, 0);
    g_assert_cmpuint(waiting(), ==, RQ_WAITERS - 1);
    post(2);
    g_assert_cmpint(claim(&(struct ticket){f.td->vm.id, qp->handle, 999}), ==, 0);
    g_assert_cmpuint(waiting(), ==, RQ_WAITERS - 1);
    for (unsigned i = 0; i < RQ_WAITERS - 1; i++) {
        g_assert_cmpuint(qp->rq->wait[i].incarnation, !=, 1003);
    }
    rq_clear(qp->rq);
    g_assert_cmpuint(waiting(), ==, 0);
    testdev_free(f.td);
}

static void test_wake(void)
{
    struct qp *s[3];
    struct ticket t[3], old;

    setup();
    for (unsigned i = 0; i < 3; i++) {
        s[i] = qpfix_qp(&f);
        t[i] = sender(s[i], 100 + i);
    }
    old = (struct ticket){f.td->vm.id, s[2]->handle, 55}; /* an earlier connection */
    g_assert_cmpint(claim(&t[0]), ==, EAGAIN);
    g_assert_cmpint(claim(&t[1]), ==, EAGAIN);
    g_assert_cmpint(claim(&old), ==, EAGAIN);

    /* A doorbell without a WQE wakes nobody. */
    rq_posted(qp->rq);
    g_assert_cmpuint(waiting(), ==, 3);
    g_assert_false(atomic_load(&s[0]->req.wake));

    post(1);
    rq_posted(qp->rq);
    g_assert_cmpuint(waiting(), ==, 0);
    g_assert_true(atomic_load(&s[0]->req.wake));
    g_assert_true(atomic_load(&s[1]->req.wake));
    g_assert_false(atomic_load(&s[2]->req.wake));
    testdev_free(f.td);
}

/* Numbers that lead nowhere, or to somebody else by now. */
static void test_stale(void)
{
    struct testdev *gone = testdev_new("gone");
    uint32_t gone_id = gone->vm.id;
    struct qp *live, *dead;
    struct ticket stale[RQ_WAITERS - 1], t;

    setup();
    dead = qpfix_qp(&f);
    live = qpfix_qp(&f);
    stale[0] = (struct ticket){gone_id, 1, 7};
    stale[1] = (struct ticket){UINT32_MAX, 1, 7};
    stale[2] = (struct ticket){CONFIG_MAX_VMS, 1, 7};
    stale[3] = (struct ticket){f.td->vm.id, UINT32_MAX, 7};
    stale[4] = (struct ticket){f.td->vm.id, 0, 7};
    stale[5] = sender(dead, 8);
    stale[6] = (struct ticket){f.td->vm.id, live->handle, 9};
    t = sender(live, 10);
    for (unsigned i = 0; i < G_N_ELEMENTS(stale); i++) {
        g_assert_cmpint(claim(&stale[i]), ==, EAGAIN);
    }
    g_assert_cmpint(claim(&t), ==, EAGAIN);
    g_assert_cmpuint(waiting(), ==, RQ_WAITERS);

    testdev_free(gone);
    g_assert_null(vm_by_id(gone_id));
    g_assert_cmpuint(testdev_handle(f.td, PVRDMA_CMD_DESTROY_QP, dead->handle), ==, 0);
    post(1);
    rq_posted(qp->rq);
    g_assert_cmpuint(waiting(), ==, 0);
    g_assert_true(atomic_load(&live->req.wake));
    testdev_free(f.td);
}

int main(int argc, char **argv)
{
    int ret;

    g_test_init(&argc, &argv, NULL);
    testdev_start();
    g_test_add_func("/rq/many", test_many);
    g_test_add_func("/rq/wake", test_wake);
    g_test_add_func("/rq/stale", test_stale);
    ret = g_test_run();
    testdev_stop();
    return ret;
}
