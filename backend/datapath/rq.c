/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Receive queues, and who waits for them.
 *
 * A sender that finds no receive WQE leaves a ticket: numbers, so that neither side
 * has to know when the other goes.  A ticket that nobody answers to any more is
 * thrown away when it is its turn.
 *
 * The guest of an extended QP need not ring for receives while nobody waits
 * (no_notify, ext.h): whoever comes reads the producer index himself.
 *
 * Threads: any worker, with rq->lock.
 */
#include "engine.h"
#include "pvrdma/ext.h"

int rq_claim(struct rq *rq, struct recv_op *recv)
{
    struct wq *wq = &rq->wq;
    struct pvrdma_rq_wqe_hdr h;
    const uint8_t *wqe;
    int32_t n = wq_pending(rq->vm, rq->mem, wq, true);

    if (n <= 0) {
        return n < 0 ? EINVAL : EAGAIN;
    }
    wqe = guest_ptr(&rq->vm->guest.mem,
                    wq_slot_gpa(rq->mem, wq, pvrdma_idx_slot(wq->next, wq->nwqe)),
                    1ull << wq->wqe_shift, false);
    if (!wqe) {
        return EINVAL;
    }
    memcpy(&h, wqe, sizeof(h));
    recv->wr_id = h.wr_id;
    recv->nsge = 0;
    recv->capacity = 0;
    recv->cur = (struct sg_cursor){0, 0};
    recv->active = true;
    wq->next = pvrdma_idx_next(wq->next, wq->nwqe);
    wq_release(rq->vm, rq->mem, wq, wq->next, true);
    if (h.num_sge > wq->max_sge || h.num_sge > QP_MAX_SGE) {
        return EINVAL;
    }
    recv->nsge = h.num_sge;
    memcpy(recv->sge, wqe + sizeof(h), recv->nsge * sizeof(recv->sge[0]));
    recv->capacity = sg_length(recv->sge, recv->nsge);
    return 0;
}

/* Tell the guest whether it need not ring for receives. */
static void tell(struct rq *rq, bool no_notify)
{
    if (rq->mem->ext && atomic_load(&rq->no_notify) != no_notify &&
        ring_store(rq->vm, ring_no_notify_gpa(rq->mem, true), no_notify)) {
        atomic_store(&rq->no_notify, no_notify);
    }
}

void rq_want_notify(struct rq *rq)
{
    tell(rq, false);
    full_barrier(); /* the caller looks at the producer index next */
}

void rq_clear(struct rq *rq)
{
    rq->wq.cons = rq->wq.next = rq->wq.prod = 0;
    rq->must_notify = false;
    atomic_store(&rq->n_wait, 0);
}

static bool ticket_equal(const struct ticket *a, const struct ticket *b)
{
    return a->incarnation == b->incarnation && a->qp == b->qp && a->vm == b->vm;
}

static void wait_add(struct rq *rq, const struct ticket *t)
{
    unsigned n = atomic_load(&rq->n_wait);

    for (unsigned i = 0; i < n; i++) {
        if (ticket_equal(&rq->wait[i], t)) {
            return;
        }
    }
    if (n < RQ_WAITERS) {
        rq->wait[n] = *t;
        atomic_store(&rq->n_wait, n + 1);
    }
}

static void wait_remove(struct rq *rq, const struct ticket *t)
{
    unsigned n = atomic_load(&rq->n_wait);

    for (unsigned i = 0; i < n; i++) {
        if (ticket_equal(&rq->wait[i], t)) {
            rq->wait[i] = rq->wait[n - 1];
            atomic_store(&rq->n_wait, n - 1);
            return;
        }
    }
}

/*
 * The ticket is left before the ring is read once more, so that a WQE posted
 * meanwhile is either seen now or finds the ticket (rq_posted).
 */
int rq_claim_or_wait(struct rq *rq, struct recv_op *recv, const struct ticket *t)
{
    int err = rq_claim(rq, recv);

    if (err == EAGAIN) {
        wait_add(rq, t);
        rq_want_notify(rq);
        err = rq_claim(rq, recv);
    }
    if (err != EAGAIN && atomic_load(&rq->n_wait)) {
        wait_remove(rq, t); /* it need not be woken any more */
    }
    return err;
}

struct qp *ticket_qp(const struct ticket *t)
{
    struct vm *vm = vm_by_id(t->vm);
    struct qp *qp = vm ? id_table_get(&vm->objects.qp, t->qp) : NULL;

    return qp && atomic_load(&qp->req.incarnation) == t->incarnation ? qp : NULL;
}

static void ticket_wake(const struct ticket *t)
{
    struct qp *qp = ticket_qp(t);

    if (qp) {
        atomic_store(&qp->req.wake, true);
        datapath_ring(qp->vm, t->qp);
    }
}

void rq_posted(struct rq *rq)
{
    struct ticket woken[RQ_WAITERS];
    unsigned n;

    if (!atomic_load(&rq->n_wait) && (!rq->mem->ext || atomic_load(&rq->no_notify))) {
        return;
    }
    pthread_mutex_lock(rq->lock);
    n = atomic_load(&rq->n_wait);
    if (!n) {
        /* Nobody waits: whoever comes finds what is posted. */
        tell(rq, !rq->must_notify);
    } else if (wq_pending(rq->vm, rq->mem, &rq->wq, true) == 0) {
        n = 0; /* a doorbell without a WQE must not cost the sender a retry */
    } else {
        memcpy(woken, rq->wait, n * sizeof(woken[0]));
        atomic_store(&rq->n_wait, 0);
    }
    pthread_mutex_unlock(rq->lock);
    for (unsigned i = 0; i < n; i++) {
        ticket_wake(&woken[i]);
    }
}
