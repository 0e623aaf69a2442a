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

/* ---- shared ---- */

static struct srq *srq;

static void setup_shared(bool ext)
{
    struct pvrdma_cmd_create_srq req = {.attrs = {.max_wr = 8, .max_sge = 1},
                                        .nchunks = 2,
                                        .reserved = {ext ? PVRDMA_EXT_OBJ_RING : 0}};
    const struct pvrdma_resp_handle *resp;

    qpfix_open(&f, "srq");
    req.pd_handle = f.pd;
    req.pdir_dma = testdev_new_pdir(f.td, 2, NULL);
    testdev_do(f.td, PVRDMA_CMD_CREATE_SRQ, &req, sizeof(req));
    resp = testdev_ptr(f.td, f.td->resp);
    srq = id_table_get(&f.td->vm.objects.srq, resp->handle);
    g_assert_nonnull(srq);
    vm_token_take(&f.td->vm); /* so its worker takes nothing of what is left for it */
}

static void close_shared(void)
{
    vm_token_release(&f.td->vm);
    testdev_free(f.td);
}

static void post_shared(unsigned n)
{
    _Atomic uint32_t *prod = qpfix_word(&f, &srq->mem, true, false);

    while (n--) {
        atomic_store(prod, pvrdma_idx_next(atomic_load(prod), 8));
    }
}

static int claim_shared(const struct ticket *t)
{
    struct recv_op recv;

    return rq_claim_or_wait(&srq->rq, &recv, t);
}

static bool woken(struct qp *s)
{
    return atomic_exchange(&s->req.wake, false);
}

/* Will the SRQ be looked at again?  Takes the bit. */
static bool doorbell_is_set(void)
{
    struct pvrdma_db_map *map = &f.td->vm.guest.db.own->srq;

    return __atomic_exchange_n(&map->words[srq->handle / 64], 0, __ATOMIC_SEQ_CST) != 0;
}

static unsigned waiting_shared(void)
{
    return atomic_load(&srq->rq.n_wait);
}

/* As many as there are receives, the first to come first, and none that is gone. */
static void test_shared_fair(void)
{
    struct qp *s[6];
    struct ticket t[6];

    setup_shared(false);
    for (unsigned i = 0; i < 6; i++) {
        s[i] = qpfix_qp(&f);
        t[i] = sender(s[i], 100 + i);
        g_assert_cmpint(claim_shared(&t[i]), ==, EAGAIN);
    }
    rq_posted(&srq->rq); /* nothing is there */
    g_assert_cmpuint(waiting_shared(), ==, 6);
    post_shared(1);
    rq_posted(&srq->rq);
    g_assert_true(woken(s[0]));
    g_assert_false(woken(s[1]));
    g_assert_cmpuint(waiting_shared(), ==, 5);
    g_assert_cmpint(claim_shared(&t[0]), ==, 0);

    /* One that found nothing again is the last. */
    g_assert_cmpint(claim_shared(&t[0]), ==, EAGAIN);
    /* The second has failed and the third is not there any more. */
    atomic_store(&s[1]->state, PVRDMA_QPS_ERR);
    atomic_store(&s[2]->req.incarnation, 7);
    post_shared(2);
    rq_posted(&srq->rq);
    g_assert_true(woken(s[3]));
    g_assert_true(woken(s[4]));
    g_assert_false(woken(s[5]));
    g_assert_false(woken(s[0]));
    g_assert_cmpuint(waiting_shared(), ==, 2);
    /* Who comes by himself waits no longer, and the others stay in their order. */
    g_assert_cmpint(claim_shared(&t[5]), ==, 0);
    g_assert_cmpuint(waiting_shared(), ==, 1);
    g_assert_cmpint(claim_shared(&t[3]), ==, 0);
    post_shared(1);
    rq_posted(&srq->rq);
    g_assert_true(woken(s[0]));
    close_shared();
}

static void test_shared_many(void)
{
    setup_shared(false);
    for (uint32_t i = 0; i < 2 * SRQ_WAITERS; i++) {
        struct ticket t = {f.td->vm.id, 1, 1000 + i};

        g_assert_cmpint(claim_shared(&t), ==, EAGAIN);
        g_assert_cmpuint(waiting_shared(), ==, MIN(i + 1, SRQ_WAITERS));
    }
    post_shared(3);
    /* Nobody answers to any of these; some at a time, and it is looked at again. */
    for (unsigned n = SRQ_WAITERS; n; n -= RQ_WAITERS) {
        g_assert_cmpuint(waiting_shared(), ==, n);
        rq_posted(&srq->rq);
        g_assert_cmpint(doorbell_is_set(), ==, n > RQ_WAITERS);
    }
    g_assert_cmpuint(waiting_shared(), ==, 0);
    close_shared();
}

static uint32_t told(void)
{
    return atomic_exchange(&srq->tell, 0);
}

static void test_shared_limit(void)
{
    struct ticket t = {0, 1, 1};

    setup_shared(false);
    post_shared(5);
    g_assert_cmpint(claim_shared(&t), ==, 0); /* so 4 are known of */
    atomic_store(&srq->limit, 4);
    post_shared(1);
    g_assert_cmpint(claim_shared(&t), ==, 0); /* 3 that are known of, 4 that are there */
    g_assert_cmpuint(told(), ==, 0);
    g_assert_cmpint(claim_shared(&t), ==, 0);
    g_assert_cmpuint(told(), ==, SRQ_TELL_LIMIT);
    g_assert_cmpuint(atomic_load(&srq->limit), ==, 0);
    g_assert_cmpint(claim_shared(&t), ==, 0);
    g_assert_cmpuint(told(), ==, 0);
    atomic_store(&srq->limit, 1);
    g_assert_cmpint(claim_shared(&t), ==, 0);
    g_assert_cmpuint(told(), ==, 0);
    g_assert_cmpint(claim_shared(&t), ==, 0);
    g_assert_cmpuint(told(), ==, SRQ_TELL_LIMIT);
    /* None at all is fewer, too. */
    atomic_store(&srq->limit, 1);
    g_assert_cmpint(claim_shared(&t), ==, EAGAIN);
    g_assert_cmpuint(told(), ==, SRQ_TELL_LIMIT);
    g_assert_cmpint(claim_shared(&t), ==, EAGAIN);
    g_assert_cmpuint(told(), ==, 0);
    close_shared();
}

/* A bad index is told once and for all, and nobody is left waiting. */
static void test_shared_broken(void)
{
    struct pvrdma_rq_wqe_hdr *h;
    struct ticket t, other;
    struct qp *s;

    setup_shared(false);
    s = qpfix_qp(&f);
    t = sender(s, 5);
    other = (struct ticket){f.td->vm.id, 77, 1};
    /* A WQE that is wrong in itself does not break the queue. */
    h = testdev_ptr(f.td, wq_slot_gpa(&srq->mem, &srq->rq.wq, 0));
    h->num_sge = 2;
    post_shared(1);
    g_assert_cmpint(claim_shared(&other), ==, EINVAL);
    g_assert_cmpuint(told(), ==, 0);
    g_assert_cmpint(claim_shared(&t), ==, EAGAIN);
    atomic_store(qpfix_word(&f, &srq->mem, true, false), 16);
    g_assert_cmpint(claim_shared(&other), ==, EINVAL);
    g_assert_cmpuint(told(), ==, SRQ_TELL_ERROR);
    rq_posted(&srq->rq);
    g_assert_true(woken(s));
    atomic_store(qpfix_word(&f, &srq->mem, true, false), 3);
    g_assert_cmpint(claim_shared(&t), ==, EINVAL);
    g_assert_cmpuint(told(), ==, 0);
    close_shared();
}

/* An extended one need not ring while nobody waits. */
static void test_shared_notify(void)
{
    _Atomic uint32_t *word;
    struct ticket t;
    struct qp *s;

    setup_shared(true);
    s = qpfix_qp(&f);
    t = sender(s, 5);
    word = testdev_ptr(f.td, ring_no_notify_gpa(&srq->mem, true));
    g_assert_cmpuint(atomic_load(word), ==, 0);
    post_shared(1);
    rq_posted(&srq->rq);
    g_assert_cmpuint(atomic_load(word), ==, 1);
    g_assert_cmpint(claim_shared(&t), ==, 0);
    g_assert_cmpuint(atomic_load(word), ==, 1);
    g_assert_cmpint(claim_shared(&t), ==, EAGAIN);
    g_assert_cmpuint(atomic_load(word), ==, 0);
    post_shared(1);
    rq_posted(&srq->rq);
    g_assert_true(woken(s));
    g_assert_cmpuint(atomic_load(word), ==, 0);
    rq_posted(&srq->rq);
    g_assert_cmpuint(atomic_load(word), ==, 1);
    close_shared();
}

int main(int argc, char **argv)
{
    testdev_init(&argc, &argv);
    g_test_add_func("/srq/fair", test_shared_fair);
    g_test_add_func("/srq/many", test_shared_many);
    g_test_add_func("/srq/limit", test_shared_limit);
    g_test_add_func("/srq/broken", test_shared_broken);
    g_test_add_func("/srq/notify", test_shared_notify);
    g_test_add_func("/rq/many", test_many);
    g_test_add_func("/rq/wake", test_wake);
    g_test_add_func("/rq/stale", test_stale);
    return testdev_run();
}
