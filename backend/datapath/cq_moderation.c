/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Moderation: a CQ's events are held back until there were enough completions or the
 * first of them is old enough.
 *
 * A hold begins when completions are published that would take the arm word.  They leave
 * it in place, so that the guest is armed as long as it has not been told; whoever ends
 * the hold takes it.  That is who publishes the completion that is one too many, the
 * VM's worker when the time has come, a change of the moderation, or an event that
 * comes for another reason.
 *
 * All kinds of completions are held, solicited ones and errors too: what a guest asks
 * for is how often it is interrupted.
 *
 * Completions come by any worker, but only the VM's own looks at its timers, with the
 * token, so as with those of QPs nothing happens to a paused VM.  It may be parked: who
 * begins a hold stores next_hold, full barrier, and then looks whether to wake it, and
 * parking does it the other way round (worker.c).
 *
 * Threads: any worker and the main thread.  cq->lock protects the CQ's hold; under it
 * dp->hold_lock, which is held for a step in a heap, protects dp->holds.
 */
#include "engine.h"
#include "pvrdma/ext.h"

/* Each may write to an eventfd. */
#define TURN_HOLDS 16u

static struct cq *cq_of_timer(struct deadline *d)
{
    return (struct cq *)(void *)((char *)d - offsetof(struct cq, hold.timer));
}

static void note_next(struct vm_datapath *dp)
{
    atomic_store(&dp->next_hold, deadlines_next(&dp->holds));
}

void hold_begin_locked(struct cq *cq, uint64_t when)
{
    struct vm_datapath *dp = &cq->vm->dp;

    cq->hold.held = true;
    pthread_mutex_lock(&dp->hold_lock);
    /* One place per CQ handle: the heap cannot be full. */
    deadline_add(&dp->holds, &cq->hold.timer, when);
    note_next(dp);
    pthread_mutex_unlock(&dp->hold_lock);
}

bool hold_end_locked(struct cq *cq, bool *sol)
{
    struct vm_datapath *dp = &cq->vm->dp;

    if (!cq->hold.held) {
        return false;
    }
    cq->hold.held = false;
    *sol = cq->hold.sol;
    pthread_mutex_lock(&dp->hold_lock);
    deadline_remove(&dp->holds, &cq->hold.timer);
    note_next(dp);
    pthread_mutex_unlock(&dp->hold_lock);
    return true;
}

bool hold_published_unlock(struct cq *cq, uint32_t n, bool sol)
{
    struct cq_hold *h = &cq->hold;
    bool now, begun = false, fire = false;

    if (!h->held && !comp_arm_wants(cq, sol)) {
        pthread_mutex_unlock(&cq->lock);
        return false;
    }
    if (h->held) {
        n = n < UINT32_MAX - h->n ? h->n + n : UINT32_MAX;
        sol = sol || h->sol;
    }
    now = !h->on || (h->count && n >= h->count);
    if (now) {
        bool held_sol;

        hold_end_locked(cq, &held_sol);
        /* Under the lock, so that nobody begins a hold for what is told now. */
        fire = comp_arm_take(cq, sol);
    } else {
        begun = !h->held;
        if (begun) {
            hold_begin_locked(cq, now_ns() + h->ns);
        }
        h->n = n;
        h->sol = sol;
    }
    pthread_mutex_unlock(&cq->lock);

    if (begun) {
        datapath_wake(cq->vm);
    }
    return fire;
}

void hold_run(struct vm *vm, uint64_t now)
{
    struct vm_datapath *dp = &vm->dp;

    for (unsigned i = 0; i < TURN_HOLDS; i++) {
        struct deadline *d;
        bool due, sol = false;
        struct cq *cq;

        pthread_mutex_lock(&dp->hold_lock);
        d = deadlines_next(&dp->holds) <= now ? deadlines_first(&dp->holds) : NULL;
        if (d) {
            deadline_remove(&dp->holds, d);
            note_next(dp);
        }
        pthread_mutex_unlock(&dp->hold_lock);
        if (!d) {
            break;
        }
        /* It may be destroyed, but is there until our quiescent point. */
        cq = cq_of_timer(d);
        pthread_mutex_lock(&cq->lock);
        /* That hold may be over, and another have begun. */
        due = cq->hold.held && cq->hold.timer.when <= now && hold_end_locked(cq, &sol);
        pthread_mutex_unlock(&cq->lock);
        if (due && comp_arm_take(cq, sol)) {
            comp_fire(cq);
        }
    }
}

void datapath_cq_moderate(struct cq *cq, uint32_t count, uint32_t period_us)
{
    bool held, sol = false;

    vm_cq_lock(cq, false);
    cq->hold.on = count > 1 || (count == 0 && period_us);
    cq->hold.count = count;
    cq->hold.ns = (uint64_t)(period_us ? period_us : PVRDMA_EXT_MODERATE_MAX) * 1000;
    held = hold_end_locked(cq, &sol);
    pthread_mutex_unlock(&cq->lock);
    if (held && comp_arm_take(cq, sol)) {
        comp_fire(cq);
    }
}

void hold_forget(struct cq *cq)
{
    bool sol;

    vm_cq_lock(cq, true);
    cq->hold.on = false; /* whoever still publishes begins none */
    hold_end_locked(cq, &sol);
    pthread_mutex_unlock(&cq->lock);
}
