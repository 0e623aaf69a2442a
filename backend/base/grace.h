/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Grace periods: when is a pointer that was unpublished no longer in use?
 *
 * Threads that follow shared pointers without a lock (workers) are registered.
 * Each says at its quiescent points that it holds none (grace_pass), or for longer
 * that it will not touch any (grace_offline).  A period that was begun after the
 * unpublishing is over when every registered thread has done so.
 *
 * A pass costs two loads while nobody waits.
 */
#ifndef PVRDMAD_BASE_GRACE_H
#define PVRDMAD_BASE_GRACE_H

#include <glib.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct grace_thread {
    _Atomic uint64_t seen; /* the newest period it has passed */
    _Atomic bool offline;
};

/* The number of the newest period; only for grace_pass(). */
extern _Atomic uint64_t grace_newest;

/* Before the thread runs / after it has ended.  Main thread. */
void grace_register(struct grace_thread *t);
void grace_unregister(struct grace_thread *t);

/* The registered thread itself: at a quiescent point. */
void grace_pass_slow(struct grace_thread *t);
/* Does anybody wait for it to pass? */
static inline bool grace_due(const struct grace_thread *t)
{
    return atomic_load_explicit(&grace_newest, memory_order_relaxed) !=
           atomic_load_explicit(&t->seen, memory_order_relaxed);
}
static inline void grace_pass(struct grace_thread *t)
{
    if (grace_due(t)) {
        grace_pass_slow(t);
    }
}

/* From here on it uses nothing / it begins anew.  Both are full barriers. */
void grace_offline(struct grace_thread *t);
void grace_online(struct grace_thread *t);

/*
 * Begin a period; all that was unpublished before is out of use once it is over.
 * Any thread.
 */
uint64_t grace_begin(void);
bool grace_is_over(uint64_t period);
/* Does the period wait for @t? */
bool grace_waits_for(const struct grace_thread *t, uint64_t period);

/*
 * Begin a period and return when it is over.  In a coroutine the main loop goes on
 * meanwhile, else the caller blocks.  Main thread; it may hold VM tokens only if it
 * is in no coroutine.
 */
void grace_wait(void);

/* For tests: how many waits did not end at once but let the main loop go on. */
uint64_t grace_parked(void);

/* Make grace_wait() of coroutines work / undo it.  Main thread. */
bool grace_start(GError **errp);
void grace_stop(void);

#endif /* PVRDMAD_BASE_GRACE_H */
