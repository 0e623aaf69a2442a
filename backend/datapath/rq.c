/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Receive queues, and who waits for them.
 *
 * A sender that finds no receive WQE leaves a ticket: numbers, so that neither side
 * has to know when the other goes.  A ticket that nobody answers to any more is
 * thrown away when it is its turn.
 *
 * The guest of an extended QP or SRQ need not ring for receives while nobody waits
 * (no_notify, ext.h): whoever comes reads the producer index himself.
 *
 * A shared receive queue differs in this: whoever claims takes its lock, on top of his
 * QP's; of those that wait as many are woken as there are receives, the first to come
 * first; and what it has to tell the guest - few receives left, a broken ring - is
 * left with it for its VM's worker, with a bit in the daemon's own doorbell map, since
 * no event may be raised with a QP's lock held.
 *
 * Threads: any worker, with rq->lock.
 */
#include "engine.h"
#include "pvrdma/ext.h"

/* @least: bytes it must have room for; one that has not stays where it is. */
static int take(struct rq *rq, struct recv_op *recv, uint64_t least)
{
    struct wq *wq = &rq->wq;
    struct pvrdma_rq_wqe_hdr h;
    const uint8_t *wqe;
    int32_t n = wq_pending(rq->vm, rq->mem, wq, true);
    bool usable;

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
    usable = h.num_sge <= wq->max_sge && h.num_sge <= QP_MAX_SGE;
    recv->nsge = usable ? h.num_sge : 0;
    memcpy(recv->sge, wqe + sizeof(h), recv->nsge * sizeof(recv->sge[0]));
    recv->capacity = sg_length(recv->sge, recv->nsge);
    if (G_UNLIKELY(!guest_believed(&rq->vm->guest))) {
        return EAGAIN;
    }
    if (usable && recv->capacity < least) {
        return EMSGSIZE;
    }
    recv->wr_id = h.wr_id;
    recv->cur = (struct sg_cursor){0, 0};
    recv->active = true;
    wq->next = pvrdma_idx_next(wq->next, wq->nwqe);
    wq_release(rq->vm, rq->mem, wq, wq->next, true);
    return usable ? 0 : EINVAL;
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
    return a->incarnation == b->incarnation && a->qp == b->qp && a->vm == b->vm &&
           a->far == b->far;
}

static void wait_add(struct rq *rq, const struct ticket *t)
{
    unsigned n = atomic_load(&rq->n_wait);

    for (unsigned i = 0; i < n; i++) {
        if (ticket_equal(&rq->wait[i], t)) {
            return;
        }
    }
    if (n < rq->max_wait) {
        rq->wait[n] = *t;
        atomic_store(&rq->n_wait, n + 1);
    }
}

static void wait_remove(struct rq *rq, const struct ticket *t)
{
    unsigned n = atomic_load(&rq->n_wait);

    for (unsigned i = 0; i < n; i++) {
        if (ticket_equal(&rq->wait[i], t)) {
            memmove(&rq->wait[i], &rq->wait[i + 1], (n - i - 1) * sizeof(rq->wait[0]));
            atomic_store(&rq->n_wait, n - 1);
            return;
        }
    }
}

/*
 * The ticket is left before the ring is read once more, so that a WQE posted
 * meanwhile is either seen now or finds the ticket (rq_posted).
 */
static int take_or_wait(struct rq *rq, struct recv_op *recv, const struct ticket *t)
{
    int err = take(rq, recv, 0);

    if (err == EAGAIN) {
        wait_add(rq, t);
        rq_want_notify(rq);
        err = take(rq, recv, 0);
    }
    if (err != EAGAIN && atomic_load(&rq->n_wait)) {
        wait_remove(rq, t); /* it need not be woken any more */
    }
    return err;
}

/* Have the worker of its VM tell the guest.  srq->lock held. */
static void leave_word(struct srq *srq, uint32_t what)
{
    atomic_fetch_or(&srq->tell, what);
    doorbell_set(&srq->vm->guest.db.own->srq, srq->handle);
    datapath_wake(srq->vm);
}

/* Are there fewer receives than the guest wants to hear of?  srq->lock held. */
static void check_limit(struct srq *srq)
{
    uint32_t limit = atomic_load_explicit(&srq->limit, memory_order_relaxed);
    struct wq *wq = &srq->rq.wq;
    int32_t n;

    if (!limit || ((wq->prod - wq->next) & (2 * wq->nwqe - 1)) >= limit) {
        return;
    }
    /* So it was when the index was read last; a broken ring is told otherwise. */
    n = wq_reread(srq->vm, &srq->mem, wq, true);
    if (n >= 0 && n < (int32_t)limit &&
        atomic_compare_exchange_strong(&srq->limit, &limit, 0)) {
        leave_word(srq, SRQ_TELL_LIMIT);
    }
}

/* @t: NULL if nobody waits. */
static int srq_claim(struct srq *srq, struct recv_op *recv, uint64_t least,
                     const struct ticket *t)
{
    uint32_t before;
    int err;

    pthread_mutex_lock(&srq->lock);
    before = srq->rq.wq.next;
    err = srq->error ? EINVAL
          : t        ? take_or_wait(&srq->rq, recv, t)
                     : take(&srq->rq, recv, least);
    if (err != EINVAL || srq->rq.wq.next != before) {
        check_limit(srq); /* a WQE that is wrong in itself is spent */
    } else if (!srq->error) {
        srq->error = true;
        log_vm(LOG_LVL_WARN, srq->vm, "SRQ %u: its ring is unusable", srq->handle);
        leave_word(srq, SRQ_TELL_ERROR);
    }
    pthread_mutex_unlock(&srq->lock);
    return err;
}

int rq_claim(struct rq *rq, struct recv_op *recv, uint64_t least)
{
    return rq->srq ? srq_claim(rq->srq, recv, least, NULL) : take(rq, recv, least);
}

int rq_claim_or_wait(struct rq *rq, struct recv_op *recv, const struct ticket *t)
{
    return rq->srq ? srq_claim(rq->srq, recv, 0, t) : take_or_wait(rq, recv, t);
}

/* The QP that @t was made for, or NULL.  Any worker, until its quiescent point. */
static struct qp *ticket_qp(const struct ticket *t)
{
    struct vm *vm = vm_by_id(t->vm);
    struct qp *qp = vm ? id_table_get(&vm->objects.qp, t->qp) : NULL;

    return qp && atomic_load(&qp->req.incarnation) == t->incarnation ? qp : NULL;
}

static void ticket_wake(const struct ticket *t)
{
    struct qp *qp = ticket_qp(t);

    if (qp && t->far) {
        qp->req.transport->receive_posted(qp);
    } else if (qp) {
        atomic_store(&qp->req.wake, true);
        datapath_ring(qp->vm, t->qp);
    }
}

/* Could @t make use of a receive now?  Who stands still has a timer. */
static bool ticket_waits(const struct ticket *t)
{
    struct qp *qp = ticket_qp(t);

    return qp && atomic_load(&qp->state) != PVRDMA_QPS_ERR && sched_may_run(qp->vm);
}

/*
 * Take the tickets of those that are to be woken: of an SRQ with @receives, no more
 * than can have one, and RQ_WAITERS at a time.  rq->lock held.
 */
static unsigned wait_take(struct rq *rq, int32_t receives, struct ticket *woken)
{
    unsigned n = atomic_load(&rq->n_wait), i, left;

    left = rq->srq && receives > 0 ? (unsigned)receives : n;
    for (i = 0; i < MIN(n, RQ_WAITERS) && left; i++) {
        woken[i] = rq->wait[i];
        left -= !rq->srq || ticket_waits(&woken[i]);
    }
    memmove(rq->wait, &rq->wait[i], (n - i) * sizeof(rq->wait[0]));
    atomic_store(&rq->n_wait, n - i);
    if (left && i < n) { /* the next look wakes more */
        doorbell_set(&rq->vm->guest.db.own->srq, rq->srq->handle);
        datapath_wake(rq->vm);
    }
    return i;
}

void rq_posted(struct rq *rq)
{
    struct ticket woken[RQ_WAITERS];
    int32_t receives;
    unsigned n;

    if (!atomic_load(&rq->n_wait) && (!rq->mem->ext || atomic_load(&rq->no_notify))) {
        return;
    }
    pthread_mutex_lock(rq->lock);
    n = atomic_load(&rq->n_wait);
    if (!n) {
        /* Nobody waits: whoever comes finds what is posted. */
        tell(rq, !rq->must_notify);
    } else {
        receives = wq_reread(rq->vm, rq->mem, &rq->wq, true);
        /* A doorbell without a WQE must not cost the sender a retry. */
        n = receives ? wait_take(rq, receives, woken) : 0;
    }
    pthread_mutex_unlock(rq->lock);
    for (unsigned i = 0; i < n; i++) {
        ticket_wake(&woken[i]);
    }
}

void srq_look(struct srq *srq)
{
    uint32_t what = 0;

    rq_posted(&srq->rq);
    if (atomic_load_explicit(&srq->tell, memory_order_relaxed)) {
        what = atomic_exchange(&srq->tell, 0);
    }
    if (what & SRQ_TELL_LIMIT) {
        event_async(&srq->vm->guest, PVRDMA_EVENT_SRQ_LIMIT_REACHED, srq->handle);
    }
    if (what & SRQ_TELL_ERROR) {
        event_async(&srq->vm->guest, PVRDMA_EVENT_SRQ_ERR, srq->handle);
    }
}
