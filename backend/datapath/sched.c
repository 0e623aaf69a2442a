/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Scheduling of one VM's queue pairs: the run queue, the timer heap, and
 * deficit round robin.
 *
 * Each turn a VM with work earns one slice of bytes; what its QPs carry is
 * taken off, so a VM that moves megabytes and one that moves eight bytes get
 * turns alike.
 *
 * Threads: the VM's worker with the token, or the main thread with the token
 * (dequeue, unwait).
 */
#include "engine.h"

/* A look that found nothing still costs something. */
#define LOOK_COST 64

/*
 * A VM with work in its run queue is scanned for doorbells only this often.  A
 * guest that streams sets the bit of the same QP again for each request, and to
 * take each of these bits costs two transfers of a cache line between processors.
 */
#define SCAN_NS 4000

/* Quanta in a row for a VM that has the worker to itself. */
#define TURN_QUANTA 4u

/*
 * What a quantum may take, a cold copy of a slice and more.  Pages that are not
 * there take longer, microseconds each, and the guest decides how many there are.
 */
#define QUANTUM_NS 20000u

/* ---- run queue --------------------------------------------------------- */

void sched_enqueue(struct qp *qp)
{
    struct vm_datapath *dp = &qp->vm->dp;

    if (!qp->req.queued) {
        qp->req.queued = true;
        TAILQ_INSERT_TAIL(&dp->run, qp, req.run);
    }
}

static struct qp *run_pop(struct vm_datapath *dp)
{
    struct qp *qp = TAILQ_FIRST(&dp->run);

    TAILQ_REMOVE(&dp->run, qp, req.run);
    qp->req.queued = false;
    return qp;
}

void sched_dequeue(struct qp *qp)
{
    if (qp->req.queued) {
        TAILQ_REMOVE(&qp->vm->dp.run, qp, req.run);
        qp->req.queued = false;
    }
}

/* ---- timer heap: [1..ntimer], smallest wait_until first ------------------ */

static void heap_put(struct vm_datapath *dp, uint32_t i, struct qp *qp)
{
    dp->timer[i] = qp;
    qp->req.heap_pos = i;
}

static void heap_up(struct vm_datapath *dp, uint32_t i)
{
    struct qp *qp = dp->timer[i];

    while (i > 1 && dp->timer[i / 2]->req.wait_until > qp->req.wait_until) {
        heap_put(dp, i, dp->timer[i / 2]);
        i /= 2;
    }
    heap_put(dp, i, qp);
}

static void heap_down(struct vm_datapath *dp, uint32_t i)
{
    struct qp *qp = dp->timer[i];

    for (uint32_t c; (c = 2 * i) <= dp->ntimer; i = c) {
        if (c < dp->ntimer &&
            dp->timer[c + 1]->req.wait_until < dp->timer[c]->req.wait_until) {
            c++;
        }
        if (dp->timer[c]->req.wait_until >= qp->req.wait_until) {
            break;
        }
        heap_put(dp, i, dp->timer[c]);
    }
    heap_put(dp, i, qp);
}

static void heap_note_next(struct vm_datapath *dp)
{
    atomic_store_explicit(&dp->next_timer,
                          dp->ntimer ? dp->timer[1]->req.wait_until : UINT64_MAX,
                          memory_order_relaxed);
}

void sched_wait(struct qp *qp, enum qp_wait why, uint64_t when)
{
    struct vm_datapath *dp = &qp->vm->dp;

    sched_unwait(qp);
    qp->req.wait = why;
    qp->req.wait_until = when;
    /* One place per handle: the heap cannot be full. */
    dp->timer[++dp->ntimer] = qp;
    heap_up(dp, dp->ntimer);
    heap_note_next(dp);
}

void sched_unwait(struct qp *qp)
{
    struct vm_datapath *dp = &qp->vm->dp;
    uint32_t i = qp->req.heap_pos;
    struct qp *last;

    if (!i) {
        return;
    }
    qp->req.heap_pos = 0;
    qp->req.wait = QP_WAIT_NONE;
    last = dp->timer[dp->ntimer--];
    if (last != qp) {
        heap_put(dp, i, last);
        heap_up(dp, i);
        heap_down(dp, last->req.heap_pos);
    }
    heap_note_next(dp);
}

static void run_timers(struct vm_datapath *dp, uint64_t now)
{
    while (dp->ntimer && dp->timer[1]->req.wait_until <= now) {
        struct qp *qp = dp->timer[1];

        sched_unwait(qp);
        sched_enqueue(qp);
    }
}

/* ---- doorbells ----------------------------------------------------------- */

void sched_look(struct qp *qp)
{
    if (qp->req.wait != QP_WAIT_NONE) {
        if (atomic_load(&qp->state) != PVRDMA_QPS_ERR &&
            !atomic_exchange(&qp->req.wake, false)) {
            return;
        }
        sched_unwait(qp);
    }
    sched_enqueue(qp);
}

static void send_bit(struct vm *vm, uint32_t handle)
{
    struct qp *qp = id_table_get(&vm->objects.qp, handle);

    if (qp) {
        sched_look(qp);
        watch_add(qp, vm->dp.scanned);
    }
}

static void recv_bit(struct vm *vm, uint32_t handle)
{
    struct qp *qp = id_table_get(&vm->objects.qp, handle);

    if (!qp) {
        return;
    }
    responder_recv_posted(qp);
    if (atomic_load_explicit(&qp->state, memory_order_acquire) == PVRDMA_QPS_ERR) {
        sched_look(qp);
    }
}

/* ---- failed CQs ------------------------------------------------------------ */

static bool cq_failed(struct cq *cq)
{
    bool error;

    pthread_mutex_lock(&cq->lock);
    error = cq->error;
    pthread_mutex_unlock(&cq->lock);
    return error;
}

static void report_failed_cqs(struct vm *vm)
{
    for (uint32_t i = 1; i < vm->objects.cq.size; i++) {
        struct cq *cq = id_table_get(&vm->objects.cq, i);

        if (cq && !cq->error_reported && cq_failed(cq)) {
            cq->error_reported = true;
            event_async(&vm->guest, PVRDMA_EVENT_CQ_ERR, cq->handle);
        }
    }
}

static void fail_qps_of_failed_cqs(struct vm *vm)
{
    for (uint32_t i = 1; i < vm->objects.qp.size; i++) {
        struct qp *qp = id_table_get(&vm->objects.qp, i);
        uint32_t state;

        if (!qp || (!cq_failed(qp->scq) && !cq_failed(qp->rcq))) {
            continue;
        }
        state = atomic_load(&qp->state);
        if (state != PVRDMA_QPS_RESET && state != PVRDMA_QPS_ERR) {
            qp_set_error(qp, PVRDMA_EVENT_QP_FATAL);
            sched_look(qp);
        }
    }
}

/* ---- one turn -------------------------------------------------------------- */

/* Does anybody else wait for this worker's turn to end? */
static bool others_wait(const struct worker *w, const struct vm *vm)
{
    const struct vm_list *l = atomic_load(&w->vms);

    if (atomic_load_explicit(&vm->dp.token_waiters, memory_order_relaxed)) {
        return true;
    }
    for (unsigned i = 0; i < l->n; i++) {
        if (l->vm[i] != vm && sched_vm_pending(l->vm[i])) {
            return true;
        }
    }
    return false;
}

static void quantum(struct worker *w, struct vm *vm)
{
    struct vm_datapath *dp = &vm->dp;

    dp->deficit += dp->slice;
    if (dp->deficit > 0 && atomic_load_explicit(&dp->cq_error, memory_order_relaxed)) {
        atomic_store(&dp->cq_error, false);
        report_failed_cqs(vm);
        fail_qps_of_failed_cqs(vm);
        dp->deficit -= (int64_t)LOOK_COST * (vm->objects.cq.size + vm->objects.qp.size);
    }
    while (!TAILQ_EMPTY(&dp->run) && dp->deficit > 0) {
        struct qp *qp = run_pop(dp);
        bool more;

        dp->deficit -= LOOK_COST;
        dp->deficit -= (int64_t)requester_run(qp, (uint64_t)MAX(dp->deficit, 1), &more);
        if (more) {
            sched_enqueue(qp);
        }
        if (w->batch.n > COMP_BATCH_MAX - 8) {
            comp_flush(w);
        }
    }
    if (TAILQ_EMPTY(&dp->run)) {
        dp->deficit = MIN(dp->deficit, 0); /* no savings, but debts stay */
    }
}

/*
 * A VM whose quanta take too long gets smaller ones at once, and back to the full
 * slice by and by: everybody else's latency is one quantum of it.
 */
static void adapt_slice(struct vm_datapath *dp, uint64_t quantum_ns)
{
    if (quantum_ns > QUANTUM_NS) {
        dp->slice = MAX((uint32_t)(dp->slice * (uint64_t)QUANTUM_NS / quantum_ns),
                        DATAPATH_SLICE_MIN);
    } else {
        dp->slice = MIN(dp->slice + 4 * DATAPATH_SLICE_MIN, DATAPATH_SLICE);
    }
}

/*
 * A turn is longer while nobody else has work: what comes with each is not free.
 * Returns the number of quanta.
 */
static unsigned serve(struct worker *w, struct vm *vm)
{
    unsigned n = 0;

    do {
        quantum(w, vm);
    } while (++n < TURN_QUANTA && !TAILQ_EMPTY(&vm->dp.run) && !others_wait(w, vm));
    return n;
}

bool sched_vm(struct worker *w, struct vm *vm, uint64_t *now)
{
    struct vm_datapath *dp = &vm->dp;
    uint64_t began = *now;
    unsigned quanta = 0;
    bool busy = false;

    if (atomic_load_explicit(&dp->paused, memory_order_relaxed) ||
        atomic_load_explicit(&vm->guest.fault, memory_order_relaxed)) {
        return false;
    }
    if (!sched_vm_pending(vm) && *now < atomic_load(&dp->next_timer) &&
        !atomic_load(&vm->guest.events.deferred_any)) {
        return false;
    }
    if (atomic_load_explicit(&dp->token_waiters, memory_order_relaxed) ||
        pthread_mutex_trylock(&dp->token) != 0) {
        return sched_vm_pending(vm);
    }
    if (TAILQ_EMPTY(&dp->run) || *now - dp->scanned >= SCAN_NS) {
        dp->scanned = *now;
        busy = doorbells_scan(vm, send_bit, recv_bit);
    }
    busy |= watch_scan(vm, *now);
    run_timers(dp, *now);
    if (!TAILQ_EMPTY(&dp->run) ||
        atomic_load_explicit(&dp->cq_error, memory_order_relaxed)) {
        quanta = serve(w, vm);
        busy = true;
    }
    if (atomic_load_explicit(&vm->guest.events.deferred_any, memory_order_relaxed) &&
        event_cq_retry(&vm->guest)) {
        irq_raise(&vm->guest.irq, PVRDMA_VEC_CQ);
    }
    atomic_store_explicit(&dp->has_work, !TAILQ_EMPTY(&dp->run), memory_order_relaxed);
    pthread_mutex_unlock(&dp->token);
    comp_flush(w);
    if (quanta) {
        /* Timed only now: what was completed is the guest's already. */
        *now = now_ns();
        adapt_slice(dp, (*now - began) / quanta);
    }
    return busy;
}

bool sched_vm_pending(struct vm *vm)
{
    struct vm_datapath *dp = &vm->dp;

    if (atomic_load(&dp->paused) || atomic_load(&vm->guest.fault)) {
        return false;
    }
    return atomic_load(&dp->has_work) || atomic_load(&dp->cq_error) ||
           watch_pending(vm) || doorbells_pending(vm);
}
