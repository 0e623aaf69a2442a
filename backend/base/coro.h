/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Coroutines of the main thread: work that has to wait, or takes long, without the
 * main loop waiting with it.
 *
 * Code that runs in a coroutine reads as if it blocked.  Where it waits (grace_wait,
 * coro_lock, coro_sleep, coro_breathe) the main loop goes on with everybody else's work,
 * so whatever such code relies on across a wait it has to own: no lock of a thread, no VM
 * token is held there.
 *
 * Outside a coroutine the same calls block or do nothing, so a unit test calls the
 * same functions without a main loop.
 *
 * Main thread only.
 */
#ifndef PVRDMAD_BASE_CORO_H
#define PVRDMAD_BASE_CORO_H

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

struct coro;

/*
 * Run @fn(@opaque) until its end or its first wait.  True: it has ended.  Within a
 * coroutine: @fn is simply called.  False may also mean that it has not begun, for
 * want of memory; it will when another coroutine ends.
 */
bool coro_run(void (*fn)(void *opaque), void *opaque);

/* The same, but it begins behind those that are waiting for their turn. */
bool coro_run_later(void (*fn)(void *opaque), void *opaque);

/* The coroutine that runs now; NULL: none. */
struct coro *coro_self(void);

/* Back to the main loop until coro_wake().  Within a coroutine only. */
void coro_yield(void);

/* Go on with @c, at once or when the coroutine that runs now waits. */
void coro_wake(struct coro *c);
/* Go on with @c behind those that are waiting for their turn. */
void coro_wake_later(struct coro *c);

/* Wait for @ms milliseconds.  Within a coroutine only. */
void coro_sleep(unsigned ms);

/*
 * Called often in long work, each few microseconds: lets the main loop turn if this
 * coroutine has run for a millisecond, or if others have something to do.  All that
 * breathe get as long together as the rest had in its turn (10 us to a millisecond),
 * one after the other, so that their number does not hold up the rest.
 */
void coro_breathe(void);

/* How long the coroutine that runs now has been running in all, in ns; 0: none. */
uint64_t coro_ran_ns(void);

/*
 * What only one coroutine may do at a time, in the order of asking.  Zeroed: free.
 * Outside a coroutine it must be free.
 */
struct coro_mutex {
    bool held;
    GQueue waiting; /* of struct coro */
};

void coro_lock(struct coro_mutex *m);
void coro_unlock(struct coro_mutex *m);

/* Give back what is kept for the next coroutine; none is left.  At exit. */
void coro_fini(void);

#endif /* PVRDMAD_BASE_CORO_H */
