/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Control threads of a NIC.
 *
 * A job is put into its VM's queue of the lane; the queues that are not empty take turns,
 * so a VM that registers a thousand regions delays another one's first by one.  The
 * queues are bounded: a guest cannot pile up work that its daemon still has to do when it
 * is gone.
 *
 * Who waits is a struct waiter on its own stack.  The lane's thread fills it in and, for
 * a coroutine, puts it into `done`, which the main loop learns by an eventfd.
 *
 * A call of verbs may stand in the kernel for ever, when a device goes away.  Its thread
 * cannot be ended: pthread_join(), execve() and the end of the process wait for it, if it
 * is not to be interrupted.  So the NIC is given up: who waits is told, and the thread is
 * detached, with a reference of the struct and with the job that it runs.  Until it comes
 * back it keeps the process's descriptors (docs/limits.md).
 *
 * The threads have the class and the priority of the main thread; signals are left to
 * that one (thread.h).  They do not survive execve(): nic.c closes all NICs before.
 *
 * Threads: `lock` protects all of struct rnic_control but what is the main thread's.
 */
#include "transport/rnic/control.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/coro.h"
#include "base/fdwatch.h"
#include "base/thread.h"

struct waiter {
    struct coro *coro; /* NULL: the main thread itself waits */
    bool over;
    int err;
};

struct job {
    void (*fn)(void *arg);
    void *arg;
    struct waiter *waiter; /* NULL: it was given up */
};

/* What a VM has waiting on a lane: something. */
struct turn {
    uint64_t vm;
    GQueue jobs; /* of struct job */
};

struct lane {
    struct rnic_control *control;
    pthread_t thread;
    pthread_cond_t more;
    GQueue turns; /* of struct turn */
    struct job *running;
    bool started; /* main thread */
};

struct rnic_control {
    pthread_mutex_t lock;
    pthread_cond_t finished; /* for who waits outside of coroutines */
    struct lane lanes[RNIC_LANES];
    GQueue done; /* of struct waiter, of coroutines */
    bool stop, given_up;
    _Atomic unsigned refs; /* the main thread's, and one of each thread */
    int fd;                /* tells the main loop of `done` */
    guint source;          /* main thread */
};

static _Thread_local bool is_control;

void rnic_control_assert(void)
{
    g_assert(is_control);
}

static void unref(struct rnic_control *c)
{
    if (atomic_fetch_sub(&c->refs, 1) == 1) {
        for (unsigned i = 0; i < RNIC_LANES; i++) {
            pthread_cond_destroy(&c->lanes[i].more);
        }
        pthread_cond_destroy(&c->finished);
        pthread_mutex_destroy(&c->lock);
        g_free(c);
    }
}

/* ---- the queue of a lane; with the lock ---- */

static struct turn *find_turn(struct lane *lane, uint64_t vm)
{
    for (GList *l = lane->turns.head; l; l = l->next) {
        struct turn *t = l->data;

        if (t->vm == vm) {
            return t;
        }
    }
    return NULL;
}

static bool put(struct lane *lane, uint64_t vm, struct job *job)
{
    struct turn *t = find_turn(lane, vm);

    if (t && g_queue_get_length(&t->jobs) >= RNIC_CONTROL_WAITING) {
        return false;
    }
    if (!t) {
        t = g_new0(struct turn, 1);
        t->vm = vm;
        g_queue_push_tail(&lane->turns, t);
    }
    g_queue_push_tail(&t->jobs, job);
    pthread_cond_signal(&lane->more);
    return true;
}

/* The next job, NULL: there is none. */
static struct job *take(struct lane *lane)
{
    struct turn *t = g_queue_pop_head(&lane->turns);
    struct job *job = t ? g_queue_pop_head(&t->jobs) : NULL;

    if (t && g_queue_is_empty(&t->jobs)) {
        g_free(t);
    } else if (t) {
        g_queue_push_tail(&lane->turns, t);
    }
    return job;
}

/* It does not wait any more. */
static void answer(struct rnic_control *c, struct waiter *w, int err)
{
    uint64_t one = 1;

    w->err = err;
    w->over = true;
    if (!w->coro) {
        pthread_cond_signal(&c->finished);
        return;
    }
    g_queue_push_tail(&c->done, w);
    if (write(c->fd, &one, sizeof(one)) < 0) {
        return; /* the counter is full: it is told */
    }
}

/* ---- the threads ---- */

static void *lane_main(void *arg)
{
    struct lane *lane = arg;
    struct rnic_control *c = lane->control;

    is_control = true;
    pthread_mutex_lock(&c->lock);
    while (!c->stop) {
        struct job *job = take(lane);

        if (!job) {
            pthread_cond_wait(&lane->more, &c->lock);
            continue;
        }
        lane->running = job;
        pthread_mutex_unlock(&c->lock);
        job->fn(job->arg);
        pthread_mutex_lock(&c->lock);
        lane->running = NULL;
        if (job->waiter) {
            answer(c, job->waiter, 0);
        } else {
            g_free(job->arg);
        }
        g_free(job);
    }
    pthread_mutex_unlock(&c->lock);
    unref(c);
    return NULL;
}

/* ---- the main thread ---- */

static gboolean on_done(gint fd, GIOCondition cond, gpointer opaque)
{
    struct rnic_control *c = opaque;
    struct waiter *w;
    uint64_t n;

    if (read(fd, &n, sizeof(n)) < 0) {
        return G_SOURCE_CONTINUE;
    }
    pthread_mutex_lock(&c->lock);
    while ((w = g_queue_pop_head(&c->done))) {
        coro_wake_later(w->coro); /* later: it may free @c */
    }
    pthread_mutex_unlock(&c->lock);
    return G_SOURCE_CONTINUE;
}

struct rnic_control *rnic_control_new(GError **errp)
{
    static const char *const names[RNIC_LANES] = {"rnic-register", "rnic-make",
                                                  "rnic-break"};
    struct rnic_control *c = g_new0(struct rnic_control, 1);
    int err = 0;

    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->finished, NULL);
    c->refs = 1;
    c->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    err = c->fd < 0 ? errno : 0;
    for (unsigned i = 0; i < RNIC_LANES; i++) {
        struct lane *lane = &c->lanes[i];

        lane->control = c;
        pthread_cond_init(&lane->more, NULL);
        if (!err) {
            atomic_fetch_add(&c->refs, 1);
            err = thread_create(&lane->thread, NULL, lane_main, lane);
            lane->started = !err;
            atomic_fetch_sub(&c->refs, err ? 1 : 0);
        }
        if (lane->started) {
            pthread_setname_np(lane->thread, names[i]);
        }
    }
    if (err) {
        g_set_error(errp, G_FILE_ERROR, g_file_error_from_errno(err),
                    "cannot start a thread: %s", g_strerror(err));
        rnic_control_free(c);
        return NULL;
    }
    c->source = fdwatch_add(c->fd, G_IO_IN, on_done, c);
    return c;
}

int rnic_control_run(struct rnic_control *c, enum rnic_lane lane, uint64_t vm,
                     void (*fn)(void *arg), void *arg)
{
    struct waiter w = {.coro = coro_self()};
    struct job *job = g_new(struct job, 1);
    int err = 0;

    *job = (struct job){fn, arg, &w};
    pthread_mutex_lock(&c->lock);
    if (c->given_up) {
        err = -ENODEV;
    } else if (!put(&c->lanes[lane], vm, job)) {
        err = -EBUSY;
    }
    while (!err && !w.coro && !w.over) {
        pthread_cond_wait(&c->finished, &c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    if (err) {
        g_free(job);
        return err;
    }
    if (w.coro) {
        coro_yield();
    }
    return w.err;
}

void rnic_control_give_up(struct rnic_control *c)
{
    pthread_mutex_lock(&c->lock);
    c->given_up = true;
    for (unsigned i = 0; i < RNIC_LANES; i++) {
        struct lane *lane = &c->lanes[i];
        struct job *job;

        while ((job = take(lane))) {
            answer(c, job->waiter, -ENODEV);
            g_free(job);
        }
        if (lane->running && lane->running->waiter) {
            answer(c, lane->running->waiter, -EINPROGRESS);
            lane->running->waiter = NULL;
        }
    }
    pthread_mutex_unlock(&c->lock);
}

void rnic_control_free(struct rnic_control *c)
{
    bool stands[RNIC_LANES];

    if (c->source) {
        fdwatch_remove(c->source);
    }
    pthread_mutex_lock(&c->lock);
    c->stop = true;
    for (unsigned i = 0; i < RNIC_LANES; i++) {
        stands[i] = c->lanes[i].running != NULL;
        pthread_cond_signal(&c->lanes[i].more);
    }
    pthread_mutex_unlock(&c->lock);
    for (unsigned i = 0; i < RNIC_LANES; i++) {
        if (c->lanes[i].started && stands[i]) {
            pthread_detach(c->lanes[i].thread);
        } else if (c->lanes[i].started) {
            pthread_join(c->lanes[i].thread, NULL);
        }
    }
    if (c->fd >= 0) {
        close(c->fd);
    }
    unref(c);
}
