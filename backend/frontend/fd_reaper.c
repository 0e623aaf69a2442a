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
 * A thread that cannot be started is tried again each second.  Clients that are not
 * served (refuse.c) have threads of their own, and cannot use up those of VMs.
 *
 * execve() would close what waits here, on the main thread: so it goes along when another
 * program takes this one's place, and is closed there.  Nobody takes any out meanwhile
 * (`stopped`).  A close() that is under way is broken off: what it waits for is a signal,
 * too, but in some file systems in user space (docs/limits.md).  Not so one that frees
 * memory: that is waited for before (discard_is_freeing()).
 *
 * Threads: the main thread puts in, the VM's closer takes out; `lock` protects the
 * queue.  struct discard is counted, and outlives the VM while a close() hangs.
 */
#include <fcntl.h>
#include <glib.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"
#include "frontend/conn.h"
#include "frontend/frontend.h"
#include "guest/irq.h"

/* Descriptors of one VM that may wait before no more are taken from it. */
#define MAX_WAITING 64

/* Closers of all VMs, those that were removed included, and of clients not served. */
unsigned discard_max_closers[2] = {1024, 256};

#define CLOSER_STACK (256u << 10)
#define RETRY_MS     1000

/* Of the former daemon's; it may have had more of one VM than MAX_WAITING. */
#define MAX_TAKEN (1u << 20)

struct discard {
    pthread_mutex_t lock;
    GQueue fds;               /* GINT_TO_POINTER; not closed yet */
    bool running;             /* there is a closer */
    _Atomic unsigned waiting; /* of fds, and what is being closed */
    _Atomic unsigned refs;
    bool refused; /* of clients that are not served */
    guint retry;  /* main thread */
};

/* Of VMs, and of clients not served. */
static _Atomic unsigned closers[2];

/* Those of VMs that were removed, as long as anything is in them; main thread. */
static GPtrArray *forgotten;

/* With a queue's lock: nothing is taken out of it any more. */
static _Atomic bool stopped;

/* Closers with memory, or that do not know yet.  Raised before `stopped` is looked at. */
static _Atomic unsigned freeing;

/* Not GLib's counted boxes: the thread sanitizer cannot see into those. */
static void discard_unref(struct discard *d)
{
    if (atomic_fetch_sub(&d->refs, 1) == 1) {
        pthread_mutex_destroy(&d->lock);
        g_free(d);
    }
}

/* Takes over a reference. */
static void remember(struct discard *d)
{
    if (!forgotten) {
        forgotten = g_ptr_array_new();
    }
    for (guint i = forgotten->len; i > 0; i--) {
        struct discard *old = forgotten->pdata[i - 1];

        if (discard_waiting(old) == 0) {
            g_ptr_array_remove_index_fast(forgotten, i - 1);
            discard_unref(old);
        }
    }
    g_ptr_array_add(forgotten, d);
}

void discard_forget(struct discard **d)
{
    if (*d) {
        remember(*d);
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

bool discard_is_freeing(void)
{
    return atomic_load(&freeing) > 0;
}

/* False: there is none left, and the closer is not running any more.  Raises `freeing`.
 */
static bool next_fd(struct discard *d, int *fd)
{
    bool some;

    atomic_fetch_add(&freeing, 1);
    pthread_mutex_lock(&d->lock);
    some = !atomic_load(&stopped) && !g_queue_is_empty(&d->fds);
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
    bool refused = d->refused;
    int fd;

    while (next_fd(d, &fd)) {
        bool memory = fcntl(fd, F_GET_SEALS) >= 0; /* asks no file system */

        if (!memory) {
            atomic_fetch_sub(&freeing, 1);
        }
        close(fd);
        if (memory) {
            atomic_fetch_sub(&freeing, 1);
        }
        atomic_fetch_sub(&d->waiting, 1);
    }
    atomic_fetch_sub(&freeing, 1);
    discard_unref(d);
    atomic_fetch_sub(&closers[refused], 1);
    return NULL;
}

/* Start a closer, with a reference of its own. */
static bool start_closer(struct discard *d)
{
    pthread_attr_t attr;
    pthread_t thread;
    bool ok;

    if (atomic_fetch_add(&closers[d->refused], 1) >= discard_max_closers[d->refused]) {
        atomic_fetch_sub(&closers[d->refused], 1);
        return false;
    }
    atomic_fetch_add(&d->refs, 1);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, CLOSER_STACK);
    ok = thread_create(&thread, &attr, closer, d) == 0;
    pthread_attr_destroy(&attr);
    if (!ok) {
        atomic_fetch_sub(&closers[d->refused], 1);
        discard_unref(d);
    }
    return ok;
}

/* See that the queue is worked on; false: not yet. */
static bool discard_work(struct discard *d)
{
    bool start;

    pthread_mutex_lock(&d->lock);
    start = !atomic_load(&stopped) && !d->running && !g_queue_is_empty(&d->fds);
    d->running |= start;
    pthread_mutex_unlock(&d->lock);
    if (!start || start_closer(d)) {
        return true;
    }
    d->running = false; /* nobody else is there to look at it */
    return false;
}

static gboolean on_discard_retry(gpointer opaque)
{
    struct discard *d = opaque;

    if (!discard_work(d)) {
        return G_SOURCE_CONTINUE;
    }
    d->retry = 0;
    discard_unref(d);
    return G_SOURCE_REMOVE;
}

static struct discard *discard_new(bool refused)
{
    struct discard *d = g_new0(struct discard, 1);

    pthread_mutex_init(&d->lock, NULL);
    g_queue_init(&d->fds);
    atomic_store(&d->refs, 1);
    d->refused = refused;
    return d;
}

static void see_to(struct discard *d)
{
    if (!discard_work(d) && !d->retry) {
        log_msg(LOG_LVL_WARN, "no thread to close a descriptor; it will be tried again");
        atomic_fetch_add(&d->refs, 1);
        d->retry = g_timeout_add(RETRY_MS, on_discard_retry, d);
    }
}

static void discard_put(struct discard **pd, bool refused, int fd)
{
    struct discard *d;

    if (irq_is_eventfd(fd)) { /* without asking a file system */
        close(fd);
        return;
    }
    if (!*pd) {
        *pd = discard_new(refused);
    }
    d = *pd;
    atomic_fetch_add(&d->waiting, 1);
    pthread_mutex_lock(&d->lock);
    g_queue_push_tail(&d->fds, GINT_TO_POINTER(fd));
    pthread_mutex_unlock(&d->lock);
    see_to(d);
}

void discard_fd(struct discard **d, int fd)
{
    discard_put(d, false, fd);
}

void discard_refused_fd(struct discard **d, int fd)
{
    discard_put(d, true, fd);
}

/* ---- another program takes this one's place ---- */

void discard_stop(void)
{
    atomic_store(&stopped, true);
}

void discard_go_on(void)
{
    atomic_store(&stopped, false);
    for (guint i = 0; forgotten && i < forgotten->len; i++) {
        see_to(forgotten->pdata[i]);
    }
}

void discard_see_to(struct discard *d)
{
    if (d) {
        see_to(d);
    }
}

void discard_hand_over(struct discard *d, struct handover_out *h)
{
    if (!d) {
        state_put_u32(&h->s, 0);
        return;
    }
    pthread_mutex_lock(&d->lock);
    state_put_u32(&h->s, g_queue_get_length(&d->fds));
    for (GList *l = d->fds.head; l; l = l->next) {
        handover_put_fd(h, GPOINTER_TO_INT(l->data));
    }
    pthread_mutex_unlock(&d->lock);
}

void discard_take_over(struct discard **d, bool refused, struct handover_in *h,
                       struct state_in *s)
{
    uint32_t n = state_get_count(s, MAX_TAKEN, sizeof(uint32_t));

    for (uint32_t i = 0; i < n && !state_failed(s); i++) {
        int fd = handover_get_fd(h, s);

        if (fd >= 0) {
            discard_put(d, refused, fd);
        }
    }
}

void discard_forgotten_hand_over(struct handover_out *h)
{
    guint n = forgotten ? forgotten->len : 0;

    state_put_u32(&h->s, n);
    for (guint i = 0; i < n; i++) {
        struct discard *d = forgotten->pdata[i];

        state_put_u8(&h->s, d->refused);
        discard_hand_over(d, h);
    }
}

void discard_forgotten_take_over(struct handover_in *h, struct state_in *s)
{
    uint32_t n = state_get_count(s, MAX_TAKEN, sizeof(uint32_t));

    for (uint32_t i = 0; i < n && !state_failed(s); i++) {
        bool refused = state_get_bool(s);
        struct discard *d = NULL;

        discard_take_over(&d, refused, h, s);
        discard_forget(&d);
    }
}
