/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Watched send queues: extended QPs whose producer index the worker looks at each
 * turn, so that their owners need no doorbell (no_notify in ext.h).
 *
 * A doorbell is two words that pass from the guest's processor to the worker's and
 * back; the index has to pass anyway.  So a queue that was posted to is watched
 * from then on, and its guest told so, until the worker sleeps or another queue
 * needs the place.  Taking it back is one half of the usual protocol: clear
 * no_notify, full barrier, look at the index once more; the guest stores the index,
 * full barrier, loads no_notify.
 *
 * There are few places, as each costs every turn something, and a queue keeps its
 * place for WATCH_KEEP_NS after its last post: with many active queues the places
 * do not change hands all the time, and the doorbells of all others are still
 * found by their bits.
 *
 * A post shows as an index other than the last one seen.  That alone would miss one
 * that went around the ring while its queue was being served, so whoever finds the
 * queue empty says so (watch_drained).
 *
 * Threads: the VM's worker; what changes `qp` does so with the token.  The main
 * thread, with the token, only removes QPs that are destroyed.
 */
#include "engine.h"

#define WATCH_KEEP_NS 1000000u

static const _Atomic uint32_t *find_prod(struct qp *qp)
{
    return guest_ptr(&qp->vm->guest.mem, ring_word_gpa(&qp->mem, false, false), 4, true);
}

/* Find the words of all places again if the DMA map changed. */
static void locate(struct vm *vm)
{
    struct vm_watch *watch = &vm->dp.watch;
    uint64_t generation = guest_mem_generation(&vm->guest.mem);

    if (watch->generation == generation) {
        return;
    }
    watch->generation = generation;
    for (unsigned i = 0; i < DATAPATH_WATCHED; i++) {
        struct watched *e = &watch->place[i];
        struct qp *qp = atomic_load(&e->qp);

        e->prod = qp ? find_prod(qp) : NULL;
    }
}

/* The producer index if it is another than the last one seen there. */
static bool changed(const struct watched *e, uint32_t *prod)
{
    if (!atomic_load_explicit(&e->qp, memory_order_relaxed) || !e->prod) {
        return false;
    }
    *prod = atomic_load_explicit(e->prod, memory_order_acquire);
    return *prod != e->seen;
}

static void tell(struct watched *e, bool no_notify)
{
    struct qp *qp = atomic_load(&e->qp);

    if (qp && e->told != no_notify &&
        ring_store(qp->vm, ring_no_notify_gpa(&qp->mem, false), no_notify)) {
        e->told = no_notify;
    }
}

bool watch_pending(struct vm *vm)
{
    uint32_t prod;

    locate(vm);
    for (unsigned i = 0; i < vm->dp.watch.n; i++) {
        if (changed(&vm->dp.watch.place[i], &prod)) {
            return true;
        }
    }
    return false;
}

bool watch_scan(struct vm *vm, uint64_t now)
{
    bool any = false;
    uint32_t prod;

    locate(vm);
    for (unsigned i = 0; i < vm->dp.watch.n; i++) {
        struct watched *e = &vm->dp.watch.place[i];
        struct qp *qp = atomic_load(&e->qp);

        if (qp && qp->req.queued) {
            e->used = now; /* and looked at when it is served */
        } else if (qp && changed(e, &prod)) {
            e->seen = prod;
            e->used = now;
            sched_look(qp);
            any = true;
        }
    }
    return any;
}

void watch_stop_telling(struct vm *vm)
{
    for (unsigned i = 0; i < vm->dp.watch.n; i++) {
        tell(&vm->dp.watch.place[i], false);
    }
}

/* Make @e free: its QP goes back to doorbells. */
static bool evict(struct watched *e)
{
    struct qp *qp = atomic_load(&e->qp);
    uint32_t prod;

    tell(e, false);
    if (e->told || !e->prod) {
        return false; /* its memory is not there: the guest cannot be told */
    }
    full_barrier();
    if (changed(e, &prod)) {
        sched_look(qp);
    }
    watch_remove(qp);
    return true;
}

void watch_add(struct qp *qp, uint64_t now)
{
    struct vm_watch *watch = &qp->vm->dp.watch;
    struct watched *e = qp->req.watched;

    if (!qp->mem.ext) {
        return;
    }
    locate(qp->vm);
    if (!e) {
        if (sq_pending(qp) <= 0) {
            return; /* not the guest rang, or in vain */
        }
        e = &watch->place[watch->next++ % DATAPATH_WATCHED];
        if (atomic_load(&e->qp) && (now - e->used < WATCH_KEEP_NS || !evict(e))) {
            return;
        }
        e->prod = find_prod(qp);
        e->seen = qp->sq.next;
        e->told = false;
        atomic_store(&e->qp, qp);
        qp->req.watched = e;
        watch->n = MAX(watch->n, (unsigned)(e - watch->place) + 1);
    }
    e->used = now;
    tell(e, true);
}

void watch_drained(struct qp *qp)
{
    if (qp->req.watched) {
        qp->req.watched->seen = qp->sq.next;
    }
}

void watch_remove(struct qp *qp)
{
    if (qp->req.watched) {
        atomic_store(&qp->req.watched->qp, NULL);
        qp->req.watched = NULL;
    }
}
