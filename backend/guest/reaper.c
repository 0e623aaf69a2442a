/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The reaper.
 *
 * When a VMM has ended, the daemon's mapping is the last reference to the guest's
 * RAM, and unmapping it frees that memory: a quarter of a second per GiB of small
 * pages.  Neither the main thread, which answers every VM's commands, nor a worker
 * can be spared for so long.  So mappings that are out of use (their grace period
 * is over, their guard is gone) come here.
 *
 * They are unmapped piece by piece, since munmap() holds the lock of the address
 * space that page faults and thread creation need; the memory itself is freed after
 * the last piece, without that lock.  One piece of each mapping in turn, so that a
 * small VM does not wait for a large one's terabytes.
 *
 * The file's descriptor is closed behind the last piece: that may be the last reference,
 * and free the memory in its place.
 *
 * Each piece is given back to the guest's budget when it is unmapped, not before.
 * The guest may be gone meanwhile: its budget, which is counted, is all that is
 * known of it here.
 *
 * Threads: the main thread puts in, the reaper takes out; `lock` protects the queue.
 */
#include "guest/reaper.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"
#include "guest/budget.h"

struct job {
    uint8_t *base; /* what is left of the mapping */
    uint64_t len;
    uint64_t piece;
    struct budget *budget; /* with a reference */
    int fd;                /* of the file, to be closed behind it; or -1 */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static GQueue jobs = G_QUEUE_INIT; /* of struct job */
static bool stop, at_work;

static pthread_t thread;
static bool running; /* main thread */

static void job_free(struct job *j)
{
    if (j->fd >= 0) {
        close(j->fd);
    }
    budget_unref(j->budget);
    g_free(j);
}

/* Unmap up to @len bytes of it; true: that was the last. */
static bool unmap_some(struct job *j, uint64_t len)
{
    len = MIN(len, j->len);
    if (munmap(j->base, len) < 0) {
        /* A piece can be too much where the process has no mapping to spare. */
        len = j->len;
        if (munmap(j->base, len) < 0) {
            log_msg(LOG_LVL_ERROR, "munmap of %" PRIu64 " bytes of guest memory: %s", len,
                    g_strerror(errno));
            return true; /* it stays, and stays counted */
        }
    }
    j->base += len;
    j->len -= len;
    budget_give(j->budget, len, j->len == 0);
    return j->len == 0;
}

static void *reaper_main(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&lock);
    for (;;) {
        struct job *j;

        while (!stop && g_queue_is_empty(&jobs)) {
            pthread_cond_wait(&more, &lock);
        }
        if (stop) {
            break;
        }
        j = g_queue_pop_head(&jobs);
        at_work = true;
        pthread_mutex_unlock(&lock);
        if (unmap_some(j, j->piece)) {
            job_free(j);
            j = NULL;
        }
        pthread_mutex_lock(&lock);
        at_work = false;
        if (j) {
            g_queue_push_tail(&jobs, j);
        }
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

void reaper_unmap(void *base, uint64_t len, uint64_t page, struct budget *b, int fd)
{
    struct job *j = g_new(struct job, 1);

    *j = (struct job){base, len, MAX(page, REAPER_PIECE), budget_ref(b), fd};
    if (!running) {
        unmap_some(j, len);
        job_free(j);
        return;
    }
    pthread_mutex_lock(&lock);
    g_queue_push_tail(&jobs, j);
    pthread_cond_signal(&more);
    pthread_mutex_unlock(&lock);
}

bool reaper_is_idle(void)
{
    bool idle;

    pthread_mutex_lock(&lock);
    idle = !at_work && g_queue_is_empty(&jobs);
    pthread_mutex_unlock(&lock);
    return idle;
}

bool reaper_start(GError **errp)
{
    int err;

    stop = false;
    err = thread_create(&thread, NULL, reaper_main, NULL);
    if (err) {
        g_set_error(errp, G_FILE_ERROR, g_file_error_from_errno(err),
                    "cannot start a thread: %s", g_strerror(err));
        return false;
    }
    running = true;
    return true;
}

void reaper_stop(void)
{
    struct job *j;

    if (!running) {
        return;
    }
    pthread_mutex_lock(&lock);
    stop = true;
    pthread_cond_signal(&more);
    pthread_mutex_unlock(&lock);
    pthread_join(thread, NULL);
    running = false;
    while ((j = g_queue_pop_head(&jobs))) {
        job_free(j);
    }
}
