/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Closing descriptors that a client sent.
 *
 * close() may call the file system, and one in user space (FUSE) may be the
 * client's own and never answer.  What is neither shared memory nor an eventfd is
 * closed by a thread of its own, so that only that thread waits.  A VM with too
 * many such threads is served no more (discard_full) until some come to an end.
 *
 * Threads: the main thread; one per descriptor that waits.
 */
#include <fcntl.h>
#include <glib.h>
#include <stdatomic.h>
#include <unistd.h>

#include "frontend/conn.h"
#include "frontend/frontend.h"
#include "guest/irq.h"

/* Descriptors of one VM that may wait before no more are taken from it. */
#define MAX_WAITING 64

struct discard {
    _Atomic unsigned waiting;
    _Atomic unsigned refs;
};

/* Not GLib's counted boxes: the thread sanitizer cannot see into those. */
static void unref(struct discard *d)
{
    if (atomic_fetch_sub(&d->refs, 1) == 1) {
        g_free(d);
    }
}

struct job {
    struct discard *d; /* with a reference */
    int fd;
};

void discard_forget(struct discard **d)
{
    if (*d) {
        unref(*d);
        *d = NULL;
    }
}

bool discard_full(const struct discard *d)
{
    return d && atomic_load(&d->waiting) >= MAX_WAITING;
}

static gpointer close_thread(gpointer opaque)
{
    struct job *job = opaque;

    close(job->fd);
    atomic_fetch_sub(&job->d->waiting, 1);
    unref(job->d);
    g_free(job);
    return NULL;
}

void discard_fd(struct discard **d, int fd)
{
    struct job *job;
    GThread *thread;

    /* Neither test asks the file system. */
    if (fcntl(fd, F_GET_SEALS) >= 0 || irq_is_eventfd(fd)) {
        close(fd);
        return;
    }
    if (!*d) {
        *d = g_new0(struct discard, 1);
        atomic_store(&(*d)->refs, 1);
    }
    job = g_new(struct job, 1);
    job->d = *d;
    atomic_fetch_add(&job->d->refs, 1);
    job->fd = fd;
    atomic_fetch_add(&job->d->waiting, 1);
    thread = g_thread_try_new("discard", close_thread, job, NULL);
    if (thread) {
        g_thread_unref(thread);
    }
    /* Else it stays open and counts: better than to wait here. */
}
