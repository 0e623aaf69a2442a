/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Closing descriptors that a client sent.
 *
 * close() may take long: a memfd whose last reference this is frees its memory then.
 * And it may never end: it calls the file system, and one in user space (FUSE) may be
 * the client's own.  So whatever is no eventfd is closed by a thread, one per VM, that
 * is there as long as it has something to close: a descriptor that does not let go
 * holds up those of the same VM only.  A VM with too many that wait is served no more
 * (discard_full) until some are closed.
 *
 * A thread that cannot be started is tried again each second.
 *
 * Threads: the main thread puts in, the VM's closer takes out; `lock` protects the
 * queue.  struct discard is counted, and outlives the VM while a close() hangs.
 */
#include <glib.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "frontend/conn.h"
#include "frontend/frontend.h"
#include "guest/irq.h"
#include "log.h"
#include "thread.h"

/* Descriptors of one VM that may wait before no more are taken from it. */
#define MAX_WAITING 64

/* Closers of all VMs, those that were removed included. */
#define MAX_CLOSERS  1024
#define CLOSER_STACK (256u << 10)
#define RETRY_MS     1000

struct discard {
    pthread_mutex_t lock;
    GQueue fds;               /* GINT_TO_POINTER; not closed yet */
    bool running;             /* there is a closer */
    _Atomic unsigned waiting; /* of fds, and what is being closed */
    _Atomic unsigned refs;
    guint retry; /* main thread */
};

static _Atomic unsigned closers;

/* Not GLib's counted boxes: the thread sanitizer cannot see into those. */
static void unref(struct discard *d)
{
    if (atomic_fetch_sub(&d->refs, 1) == 1) {
        pthread_mutex_destroy(&d->lock);
        g_free(d);
    }
}

void discard_forget(struct discard **d)
{
    if (*d) {
        unref(*d);
        *d = NULL;
    }
}

unsigned discard_waiting(const struct discard *d)
{
    return d ? atomic_load(&d->waiting) : 0;
}

bool discard_full(const struct discard *d)
{
    return discard_waiting(d) >= MAX_WAITING;
}

/* False: there is none left, and the closer is not running any more. */
static bool next_fd(struct discard *d, int *fd)
{
    bool some;

    pthread_mutex_lock(&d->lock);
    some = !g_queue_is_empty(&d->fds);
    if (some) {
        *fd = GPOINTER_TO_INT(g_queue_pop_head(&d->fds));
    }
    d->running = some;
    pthread_mutex_unlock(&d->lock);
    return some;
}

static void *closer(void *opaque)
{
    struct discard *d = opaque;
    int fd;

    while (next_fd(d, &fd)) {
        close(fd);
        atomic_fetch_sub(&d->waiting, 1);
    }
    unref(d);
    atomic_fetch_sub(&closers, 1);
    return NULL;
}

/* Start a closer, with a reference of its own. */
static bool start_closer(struct discard *d)
{
    pthread_attr_t attr;
    pthread_t thread;
    bool ok;

    if (atomic_fetch_add(&closers, 1) >= MAX_CLOSERS) {
        atomic_fetch_sub(&closers, 1);
        return false;
    }
    atomic_fetch_add(&d->refs, 1);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, CLOSER_STACK);
    ok = thread_create(&thread, &attr, closer, d) == 0;
    pthread_attr_destroy(&attr);
    if (!ok) {
        atomic_fetch_sub(&closers, 1);
        unref(d);
    }
    return ok;
}

/* See that the queue is worked on; false: not yet. */
static bool work(struct discard *d)
{
    bool start;

    pthread_mutex_lock(&d->lock);
    start = !d->running && !g_queue_is_empty(&d->fds);
    d->running |= start;
    pthread_mutex_unlock(&d->lock);
    if (!start || start_closer(d)) {
        return true;
    }
    d->running = false; /* nobody else is there to look at it */
    return false;
}

static gboolean on_retry(gpointer opaque)
{
    struct discard *d = opaque;

    if (!work(d)) {
        return G_SOURCE_CONTINUE;
    }
    d->retry = 0;
    unref(d);
    return G_SOURCE_REMOVE;
}

static struct discard *discard_new(void)
{
    struct discard *d = g_new0(struct discard, 1);

    pthread_mutex_init(&d->lock, NULL);
    g_queue_init(&d->fds);
    atomic_store(&d->refs, 1);
    return d;
}

void discard_fd(struct discard **pd, int fd)
{
    struct discard *d;

    if (irq_is_eventfd(fd)) { /* without asking a file system */
        close(fd);
        return;
    }
    if (!*pd) {
        *pd = discard_new();
    }
    d = *pd;
    atomic_fetch_add(&d->waiting, 1);
    pthread_mutex_lock(&d->lock);
    g_queue_push_tail(&d->fds, GINT_TO_POINTER(fd));
    pthread_mutex_unlock(&d->lock);
    if (!work(d) && !d->retry) {
        log_msg(LOG_LVL_WARN, "no thread to close a descriptor; it will be tried again");
        atomic_fetch_add(&d->refs, 1);
        d->retry = g_timeout_add(RETRY_MS, on_retry, d);
    }
}
