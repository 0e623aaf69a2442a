/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Grace periods, after the quiescent-state scheme of user-space RCU.
 *
 * Order.  Who waits unpublishes, then raises grace_newest (sequentially
 * consistent).  A thread that sees the new number sees what was unpublished before
 * it, and stores it in `seen` (release) only after its last use of anything older.
 * A thread that is offline touches nothing; coming back it stores that, full
 * barrier, and only then loads pointers, while the waiter loads `offline` after a
 * full barrier: one of the two sees the other's store.
 *
 * Coroutines wait in a list in order of their periods.  While it is not empty
 * (`parked`), each thread that passes or goes offline writes an eventfd of the main
 * loop; both sides store first and then look, so none is forgotten.
 */
#include "grace.h"

#include <errno.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "coro.h"
#include "fdwatch.h"

/* How long a coroutine tries before it lets the main loop go on, in us. */
#define SPIN_US 30

_Atomic uint64_t grace_newest = 1;

/* Main thread; workers find their own entry. */
#define MAX_THREADS 64
static struct grace_thread *threads[MAX_THREADS]; /* does not change under traffic */
static unsigned n_threads;

struct waiter {
    uint64_t period;
    struct coro *coro;
};
static GQueue waiting = G_QUEUE_INIT; /* of struct waiter; main thread */
static _Atomic bool parked;           /* it is not empty */
static uint64_t n_parked;
static int fd = -1;
static guint source;

void grace_register(struct grace_thread *t)
{
    g_assert(n_threads < MAX_THREADS);
    atomic_store(&t->seen, atomic_load(&grace_newest));
    atomic_store(&t->offline, false);
    threads[n_threads++] = t;
}

void grace_unregister(struct grace_thread *t)
{
    for (unsigned i = 0; i < n_threads; i++) {
        if (threads[i] == t) {
            threads[i] = threads[--n_threads];
            return;
        }
    }
}

static void tell_main(void)
{
    uint64_t one = 1;

    if (atomic_load(&parked) && write(fd, &one, sizeof(one)) < 0) {
        return; /* the counter is full: it is told */
    }
}

void grace_pass_slow(struct grace_thread *t)
{
    atomic_store(&t->seen, atomic_load(&grace_newest));
    tell_main();
}

void grace_offline(struct grace_thread *t)
{
    atomic_store(&t->offline, true);
    tell_main();
}

void grace_online(struct grace_thread *t)
{
    atomic_store(&t->offline, false);
    atomic_thread_fence(memory_order_seq_cst);
}

uint64_t grace_begin(void)
{
    return atomic_fetch_add(&grace_newest, 1) + 1;
}

bool grace_waits_for(const struct grace_thread *t, uint64_t period)
{
    return atomic_load(&t->seen) < period && !atomic_load(&t->offline);
}

bool grace_is_over(uint64_t period)
{
    atomic_thread_fence(memory_order_seq_cst);
    for (unsigned i = 0; i < n_threads; i++) {
        if (grace_waits_for(threads[i], period)) {
            return false;
        }
    }
    return true;
}

static void wake_waiters(void)
{
    struct waiter *w;
    bool first = true;

    while ((w = g_queue_peek_head(&waiting)) && grace_is_over(w->period)) {
        g_queue_pop_head(&waiting);
        if (first) {
            coro_wake(w->coro);
        } else {
            coro_wake_later(w->coro); /* many may have piled up */
        }
        first = false;
    }
    if (g_queue_is_empty(&waiting)) {
        atomic_store(&parked, false);
    }
}

static gboolean on_passed(gint passed_fd, GIOCondition cond, gpointer opaque)
{
    uint64_t n;

    if (read(passed_fd, &n, sizeof(n)) >= 0) {
        wake_waiters();
    }
    return G_SOURCE_CONTINUE;
}

static void park(uint64_t period)
{
    struct waiter w = {period, coro_self()};

    n_parked++;
    g_queue_push_tail(&waiting, &w);
    atomic_store(&parked, true);
    if (grace_is_over(period)) { /* by one that did not see us yet */
        g_queue_remove(&waiting, &w);
        if (g_queue_is_empty(&waiting)) {
            atomic_store(&parked, false);
        }
        return;
    }
    coro_yield();
}

void grace_wait(void)
{
    uint64_t period = grace_begin();
    gint64 end = g_get_monotonic_time() + SPIN_US;
    bool may_park = coro_self() && source;

    for (unsigned spin = 0; !grace_is_over(period); spin++) {
        if (may_park && g_get_monotonic_time() >= end) {
            park(period);
            return;
        }
        if (spin < 200) {
            sched_yield();
        } else {
            usleep(20);
        }
    }
}

uint64_t grace_parked(void)
{
    return n_parked;
}

bool grace_start(GError **errp)
{
    fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0) {
        g_set_error(errp, G_FILE_ERROR, g_file_error_from_errno(errno), "eventfd: %s",
                    g_strerror(errno));
        return false;
    }
    source = fdwatch_add(fd, G_IO_IN, on_passed, NULL);
    return true;
}

void grace_stop(void)
{
    if (fd >= 0) {
        fdwatch_remove(source);
        close(fd);
        source = 0;
        fd = -1;
    }
}
