/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Scheduling of VMs and of one VM's queue pairs: the run queue, timers, and
 * turns.
 *
 * The currency is time.  A VM is charged all that its turn takes, from the look at
 * its doorbells to the interrupts of its completions, divided by its shares; among
 * the VMs with work the one that was charged least is served next (worker.c).  A
 * turn ends after SLICE_NS, which is checked between messages and slices of them, so
 * what a message costs is paid by who sends it, whatever makes it dear.
 *
 * Each loop over what a guest can make long goes on from where the last turn
 * stopped: doorbells, expired timers, the queue pairs of a failed CQ.
 *
 * Threads: the VM's worker with the token, or the main thread with the token
 * (dequeue, unwait).
 */
#include "base/fdwatch.h"
#include "engine.h"

/*
 * A VM with work in its run queue is scanned for doorbells only this often.  A
 * guest that streams sets the bit of the same QP again for each request, and to
 * take each of these bits costs two transfers of a cache line between processors.
 */
#define SCAN_NS 4000

/*
 * Who waits for peers that stand still looks again this often at most, whatever changes:
 * some guest can have its own device stand still and go on all the time.
 */
#define HELD_NS 1000000u

/* A turn, if somebody else may want the next one, and if not. */
#define SLICE_NS       10000u
#define SLICE_ALONE_NS 40000u

/* Expired timers, and handles looked at because a CQ failed, per turn. */
#define TURN_TIMERS  64u
#define TURN_HANDLES 256u

/* A look at all doorbells follows on so many at the watched queues alone. */
#define QUICK_LOOKS 3u

/* Notifications and events that found the guest's ring full are tried again so often. */
#define DEFERRED_NS 1000000u

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

/* ---- timers ----------------------------------------------------------------- */

static void note_next_timer(struct vm_datapath *dp)
{
    atomic_store_explicit(&dp->next_timer, deadlines_next(&dp->timers),
                          memory_order_relaxed);
}

static void count_held(struct vm_datapath *dp, uint32_t by)
{
    atomic_store_explicit(&dp->n_held,
                          atomic_load_explicit(&dp->n_held, memory_order_relaxed) + by,
                          memory_order_relaxed);
}

static void held_add(struct qp *qp)
{
    struct vm_datapath *dp = &qp->vm->dp;

    qp->req.held_round = dp->held_round;
    TAILQ_INSERT_TAIL(&dp->held, qp, req.held);
    count_held(dp, 1);
}

static void wait_is_over(struct qp *qp)
{
    struct vm_datapath *dp = &qp->vm->dp;

    if (qp->req.wait == QP_WAIT_HOLD) {
        TAILQ_REMOVE(&dp->held, qp, req.held);
        count_held(dp, (uint32_t)-1);
    }
    qp->req.wait = QP_WAIT_NONE;
    deadline_remove(&dp->timers, &qp->req.timer);
}

void sched_wait(struct qp *qp, enum qp_wait why, uint64_t when)
{
    struct vm_datapath *dp = &qp->vm->dp;

    wait_is_over(qp);
    sched_dequeue(qp); /* an answer may come when it was to run anyway */
    qp->req.wait = why;
    if (why == QP_WAIT_HOLD) {
        held_add(qp);
    }
    /* One place per handle: the heap cannot be full. */
    deadline_add(&dp->timers, &qp->req.timer, when);
    note_next_timer(dp);
}

void sched_unwait(struct qp *qp)
{
    wait_is_over(qp);
    note_next_timer(&qp->vm->dp);
}

static void run_timers(struct vm_datapath *dp, uint64_t now)
{
    for (unsigned n = 0; n < TURN_TIMERS && deadlines_next(&dp->timers) <= now; n++) {
        struct qp *qp = qp_of_timer(deadlines_first(&dp->timers));

        sched_unwait(qp);
        sched_enqueue(qp);
    }
}

/* ---- peers that stand still -------------------------------------------------- */

/*
 * What is waited for is the directory's affair, whose changes are counted.  A turn that
 * finds the count changed begins a new round: whoever has waited since a former one looks
 * at its peer again, TURN_TIMERS a turn.  The count is read before they look, so nothing
 * that changes behind that is missed.
 */

static _Atomic uint64_t changes;

static void wake_those_who_wait(void)
{
    full_barrier();
    for (uint32_t i = 0; i < CONFIG_MAX_VMS; i++) {
        struct vm *vm = vm_by_id(i);

        if (vm && atomic_load(&vm->dp.n_held)) {
            datapath_wake(vm);
        }
    }
}

static struct fdwatch_later wake_later = {.fn = wake_those_who_wait};

static void addresses_changed(void)
{
    atomic_fetch_add(&changes, 1);
    fdwatch_later(&wake_later);
}

void sched_listen(bool yes)
{
    directory_set_listener(yes ? addresses_changed : NULL);
    if (!yes) {
        fdwatch_not_later(&wake_later);
    }
}

/* Is a new round to begin?  Not before held_at. */
static bool held_pending(const struct vm_datapath *dp)
{
    return atomic_load_explicit(&dp->n_held, memory_order_relaxed) &&
           atomic_load_explicit(&changes, memory_order_acquire) != dp->held_seen;
}

static void run_held(struct vm_datapath *dp, uint64_t now)
{
    struct qp *qp;
    unsigned n = 0;

    if (!atomic_load_explicit(&dp->n_held, memory_order_relaxed)) {
        dp->held_seen = atomic_load_explicit(&changes, memory_order_acquire);
        dp->held_due = false;
        return;
    }
    if (held_pending(dp) && now >= dp->held_at) {
        dp->held_seen = atomic_load_explicit(&changes, memory_order_acquire);
        dp->held_at = now + HELD_NS;
        dp->held_round++;
    }
    while ((qp = TAILQ_FIRST(&dp->held)) && qp->req.held_round != dp->held_round &&
           n++ < TURN_TIMERS) {
        qp->req.held_looks = 0;
        sched_unwait(qp);
        sched_enqueue(qp);
    }
    dp->held_due = qp && qp->req.held_round != dp->held_round;
}

/* ---- doorbells ----------------------------------------------------------- */

void sched_look(struct qp *qp)
{
    if (qp->req.wait != QP_WAIT_NONE) {
        /* A wake-up may be for an earlier wait: it ends no other kind. */
        bool wake = atomic_exchange(&qp->req.wake, false) && qp->req.wait == QP_WAIT_RNR;

        if (atomic_load(&qp->state) != PVRDMA_QPS_ERR && !wake) {
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
        if (G_UNLIKELY(atomic_load_explicit(&qp->req.compare, memory_order_relaxed))) {
            qp_compare(qp);
        }
        sched_look(qp);
        watch_add(qp, vm->dp.scanned);
        doorbells_context_rang(qp);
    }
}

static void recv_bit(struct vm *vm, uint32_t handle)
{
    struct qp *qp = id_table_get(&vm->objects.qp, handle);

    if (!qp) {
        return;
    }
    rq_posted(qp->rq);
    doorbells_context_rang(qp);
    if (atomic_load_explicit(&qp->state, memory_order_acquire) == PVRDMA_QPS_ERR) {
        sched_look(qp);
    }
}

static void srq_bit(struct vm *vm, uint32_t handle)
{
    struct srq *srq = id_table_get(&vm->objects.srq, handle);

    if (srq) {
        srq_look(srq);
    }
}

static const struct doorbell_calls doorbell_calls = {send_bit, recv_bit, srq_bit};

/* ---- failed CQs ------------------------------------------------------------ */

static bool cq_failed(struct cq *cq)
{
    bool error;

    pthread_mutex_lock(&cq->lock);
    error = cq->error;
    pthread_mutex_unlock(&cq->lock);
    return error;
}

static void report_failed(struct cq *cq)
{
    if (cq && !cq->error_reported && cq_failed(cq)) {
        cq->error_reported = true;
        event_async(&cq->vm->guest, PVRDMA_EVENT_CQ_ERR, cq->handle);
    }
}

/* Only of a failure that is reported: a later one gets a walk of its own. */
static void fail_if_cq_failed(struct qp *qp)
{
    uint32_t state;

    if (!qp || (!qp->scq->error_reported && !qp->rcq->error_reported)) {
        return;
    }
    state = atomic_load(&qp->state);
    if (state != PVRDMA_QPS_RESET && state != PVRDMA_QPS_ERR) {
        qp_set_error(qp, PVRDMA_EVENT_QP_FATAL);
        sched_look(qp);
    }
}

/*
 * All handles in use are looked at, TURN_HANDLES a turn, from the first one anew if it is
 * @wanted meanwhile.  *pos: how far it has come, 0: it is over; @look: false behind the
 * last one.
 */
static void sweep(struct vm *vm, _Atomic bool *wanted, uint32_t *pos,
                  bool (*look)(struct vm *vm, uint32_t i), struct turn *t)
{
    if (atomic_load_explicit(wanted, memory_order_relaxed)) {
        atomic_store(wanted, false);
        *pos = 1;
    }
    for (unsigned n = 0; *pos && n < TURN_HANDLES; n++) {
        if (!look(vm, (*pos)++)) {
            *pos = 0;
        }
        if (n % 32 == 31 && turn_spent(t, TURN_UNITS)) {
            break;
        }
    }
}

/* A CQ failed: report it, then move its QPs to ERR, which report that. */
static bool look_for_failed(struct vm *vm, uint32_t i)
{
    const struct id_table *qps = &vm->objects.qp, *cqs = &vm->objects.cq;
    uint32_t n_qp = id_table_end(qps), n_cq = id_table_end(cqs);

    if (i < n_cq) {
        report_failed(id_table_get(cqs, i));
    } else if (i - n_cq < n_qp) {
        fail_if_cq_failed(id_table_get(qps, i - n_cq));
    } else {
        return false;
    }
    return true;
}

/* Those that are connected may have got their own address, or lost the link. */
static bool look_at_address(struct vm *vm, uint32_t i)
{
    const struct id_table *qps = &vm->objects.qp;
    struct qp *qp = i < id_table_end(qps) ? id_table_get(qps, i) : NULL;

    if (qp) {
        qp_look_at_address(qp);
    }
    return i < id_table_end(qps);
}

/* ---- turns ----------------------------------------------------------------- */

bool sched_may_run(const struct vm *vm)
{
    return !atomic_load(&vm->dp.paused) && !guest_faulted(&vm->guest);
}

/* Has its transport something to do? */
static bool net_pending(const struct vm_datapath *dp, uint64_t now)
{
    struct vm_net *net = atomic_load_explicit(&dp->net, memory_order_acquire);

    return net && (atomic_load_explicit(&net->ready, memory_order_relaxed) ||
                   now >= atomic_load_explicit(&net->due, memory_order_relaxed) ||
                   (atomic_load_explicit(&net->polled, memory_order_relaxed) &&
                    net->ops->look(net)));
}

bool sched_arm(struct vm *vm, uint64_t now)
{
    struct vm_net *net = atomic_load_explicit(&vm->dp.net, memory_order_acquire);

    return !net || !atomic_load_explicit(&net->polled, memory_order_relaxed) ||
           net->ops->arm(net, now);
}

bool sched_pending(struct vm *vm, uint64_t now, bool all)
{
    struct vm_datapath *dp = &vm->dp;

    if (!sched_may_run(vm)) {
        return false;
    }
    if (atomic_load_explicit(&dp->token_waiters, memory_order_relaxed)) {
        if (!all) {
            return false;
        }
        atomic_store(&dp->unseen, true); /* then: vm_token_return() wakes, or it is 0 */
        if (atomic_load(&dp->token_waiters)) {
            return false;
        }
    }
    if (dp->has_work || dp->cq_error_pos || dp->addresses_pos || watch_pending(vm) ||
        atomic_load(&dp->cq_error) || atomic_load(&dp->addresses_changed) ||
        now >= atomic_load(&dp->next_timer) || now >= atomic_load(&dp->next_hold) ||
        (held_pending(dp) && now >= dp->held_at) ||
        atomic_load_explicit(&dp->inbox, memory_order_relaxed) || net_pending(dp, now)) {
        return true;
    }
    if (!all && dp->watch.n && dp->looks++ < QUICK_LOOKS) {
        return false;
    }
    if (doorbells_pending(vm, all)) {
        dp->looks = QUICK_LOOKS; /* the next look has to see it too */
        return true;
    }
    dp->looks = 0;
    return event_deferred(&vm->guest.events) && now >= dp->retry_at;
}

uint64_t sched_deadline(const struct vm *vm, uint64_t now)
{
    const struct vm_datapath *dp = &vm->dp;
    uint64_t t = MIN(atomic_load(&dp->next_timer), atomic_load(&dp->next_hold));
    struct vm_net *net = atomic_load(&dp->net);

    if (!sched_may_run(vm)) {
        return UINT64_MAX;
    }
    t = held_pending(dp) ? MIN(t, dp->held_at) : t;
    t = net ? MIN(t, atomic_load(&net->due)) : t;
    return event_deferred(&vm->guest.events) ? MIN(t, now + DEFERRED_NS) : t;
}

static void retry_deferred(struct vm *vm, uint64_t now)
{
    if (event_deferred(&vm->guest.events) && now >= vm->dp.retry_at) {
        vm->dp.retry_at = now + DEFERRED_NS;
        if (event_async_retry(&vm->guest)) {
            irq_raise(&vm->guest.irq, PVRDMA_VEC_ASYNC);
        }
        for (uint32_t v = event_cq_retry(&vm->guest); v; v &= v - 1) {
            irq_raise(&vm->guest.irq, PVRDMA_VEC_CQ + (unsigned)__builtin_ctz(v));
        }
    }
}

/* What arrived.  Until it is served, nothing more is taken. */
static void run_arrived(struct worker *w, struct vm *vm, struct turn *t)
{
    struct vm_datapath *dp = &vm->dp;

    if (!dp->arrived) {
        inbox_take(dp);
    }
    while (dp->arrived) {
        struct note *n = dp->arrived;

        dp->arrived = n->next;
        n->run(n, vm);
        comp_make_room(w);
        if (turn_spent(t, TURN_UNITS)) {
            break;
        }
    }
}

static void run_qps(struct worker *w, struct vm *vm, struct turn *t)
{
    struct vm_datapath *dp = &vm->dp;

    while (!TAILQ_EMPTY(&dp->run)) {
        struct qp *qp = run_pop(dp);

        if (requester_run(qp, t)) {
            sched_enqueue(qp);
        }
        comp_make_room(w);
        if (turn_spent(t, 1) ||
            atomic_load_explicit(&dp->token_waiters, memory_order_relaxed)) {
            break;
        }
    }
}

/* However long a turn was: a VM whose pages are slow to come pays for the worker's wait,
 * and with a bound it would not. */
static void charge(struct vm *vm, uint64_t ns)
{
    struct vm_datapath *dp = &vm->dp;

    dp->vtime += ns * VM_SHARES_DEFAULT / vm->cfg->shares;
    count(&dp->worker_ns, ns);
}

uint64_t sched_serve(struct worker *w, struct vm *vm, uint64_t now)
{
    struct vm_datapath *dp = &vm->dp;
    struct vm_net *net;
    struct turn t = {.now = now,
                     .end = now + (w->n_active > 1 ? SLICE_NS : SLICE_ALONE_NS),
                     .grace = &w->grace};

    if (pthread_mutex_trylock(&dp->token) != 0) {
        return now_ns();
    }
    if (!sched_may_run(vm)) { /* paused meanwhile */
        pthread_mutex_unlock(&dp->token);
        return now_ns();
    }
    net = atomic_load_explicit(&dp->net,
                               memory_order_acquire); /* it comes under the token */
    if (TAILQ_EMPTY(&dp->run) || now - dp->scanned >= SCAN_NS) {
        dp->scanned = now;
        doorbells_scan(vm, &t, &doorbell_calls);
    }
    watch_scan(vm, now);
    run_timers(dp, now);
    run_held(dp, now);
    if (now >= atomic_load_explicit(&dp->next_hold, memory_order_relaxed)) {
        hold_run(vm, now);
    }
    if (dp->cq_error_pos || atomic_load_explicit(&dp->cq_error, memory_order_relaxed)) {
        sweep(vm, &dp->cq_error, &dp->cq_error_pos, look_for_failed, &t);
    }
    if (dp->addresses_pos ||
        atomic_load_explicit(&dp->addresses_changed, memory_order_relaxed)) {
        sweep(vm, &dp->addresses_changed, &dp->addresses_pos, look_at_address, &t);
    }
    if (dp->arrived || atomic_load_explicit(&dp->inbox, memory_order_relaxed)) {
        run_arrived(w, vm, &t);
    }
    if (net) {
        net->ops->take(net, &t);
    }
    run_qps(w, vm, &t);
    if (net) {
        /* What has arrived is the guest's before its ACK goes: a call takes 2 us. */
        comp_flush(w);
        net->ops->flush(net);
    }
    retry_deferred(vm, now);
    dp->has_work = dp->arrived || dp->held_due || !TAILQ_EMPTY(&dp->run);
    pthread_mutex_unlock(&dp->token);
    comp_flush(w);
    /* Timed only now: what was completed is the guest's already. */
    t.now = now_ns();
    charge(vm, t.now - now);
    return t.now;
}
