/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Worker threads: start and stop, loop, sleep and wake.
 *
 * Sleep (D6).  A worker that found nothing for poll_us sets `sleeping` and the
 * kick words of its VMs, takes no_notify back from their queues, full barrier,
 * scans once more, and sleeps in epoll.
 * Whoever has work for it sets the bit first, full barrier, then looks at the
 * kick word (VMM: writes the VM's eventfd) or at `sleeping` (daemon: writes
 * wakefd).  The VM's eventfd is shared with its VMM, so it is watched edge-
 * triggered and never read: nothing the VMM does to it can block a worker or
 * eat a wake-up of another VM.
 *
 * Each turn of the loop is a quiescent point (grace.h); a sleeping worker is
 * offline.
 */
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "engine.h"

#define DEFERRED_POLL_NS 1000000u

/*
 * A turn without work takes well under a microsecond.  One that took this long
 * lost its processor: somebody else wants it, quite likely the guest whose next
 * post is being waited for.  Then the worker sleeps at once when idle, for as
 * long as NO_POLL_NS: a wake-up gets the processor back at once, a poller only
 * when the other's time slice is over, milliseconds later.  A worker that was told
 * to poll for longer than that is to poll whatever it costs.
 */
#define PREEMPTED_NS 200000u
#define NO_POLL_NS   20000000u

static struct worker *workers;
static unsigned n_workers;
static uint64_t poll_ns;
static _Thread_local struct worker *self;

struct worker *worker_self(void)
{
    return self;
}

/* ---- sleeping ------------------------------------------------------------ */

static void set_kick(struct vm_list *l, uint32_t v)
{
    for (unsigned i = 0; i < l->n; i++) {
        if (v) {
            watch_stop_telling(l->vm[i]);
        }
        doorbells_set_kick(l->vm[i], v);
    }
}

/* When the next timer of any VM expires; UINT64_MAX: none. */
static uint64_t next_deadline(const struct vm_list *l, uint64_t now)
{
    uint64_t next = UINT64_MAX;

    for (unsigned i = 0; i < l->n; i++) {
        struct vm *vm = l->vm[i];
        uint64_t t = atomic_load_explicit(&vm->dp.next_timer, memory_order_relaxed);

        if (atomic_load(&vm->dp.paused) || atomic_load(&vm->guest.fault)) {
            continue;
        }
        next = MIN(next, t);
        if (atomic_load(&vm->guest.events.deferred_any)) {
            next = MIN(next, now + DEFERRED_POLL_NS);
        }
    }
    return next;
}

static bool any_pending(const struct vm_list *l)
{
    for (unsigned i = 0; i < l->n; i++) {
        if (sched_vm_pending(l->vm[i])) {
            return true;
        }
    }
    return false;
}

static void worker_sleep(struct worker *w)
{
    struct vm_list *l = atomic_load(&w->vms);
    struct epoll_event ev[16];
    struct timespec ts, *timeout = NULL;
    uint64_t now = now_ns(), next, junk;
    int n;

    atomic_store(&w->sleeping, true);
    set_kick(l, 1);
    full_barrier();
    next = next_deadline(l, now);
    if (any_pending(l) || next <= now || atomic_load(&w->stop)) {
        set_kick(l, 0);
        atomic_store(&w->sleeping, false);
        return;
    }
    if (next != UINT64_MAX) {
        next -= now;
        ts.tv_sec = (time_t)(next / 1000000000u);
        ts.tv_nsec = (long)(next % 1000000000u);
        timeout = &ts;
    }
    grace_offline(&w->grace);
    n = epoll_pwait2(w->epfd, ev, G_N_ELEMENTS(ev), timeout, NULL);
    grace_online(&w->grace);

    for (int i = 0; i < n; i++) {
        if (!ev[i].data.ptr && read(w->wakefd, &junk, sizeof(junk)) < 0) {
            continue; /* ours alone and non-blocking: spurious */
        }
    }
    atomic_store(&w->sleeping, false);
    set_kick(atomic_load(&w->vms), 0);
}

void worker_wake(struct worker *w)
{
    uint64_t one = 1;

    full_barrier();
    if (atomic_load(&w->sleeping) && write(w->wakefd, &one, sizeof(one)) < 0) {
        return; /* counter full: it is awake already */
    }
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    uint64_t idle_since = 0, last_idle = UINT64_MAX, no_poll_until = 0;

    self = w;
    irq_thread_register(1 + w->index);
    while (!atomic_load_explicit(&w->stop, memory_order_relaxed)) {
        struct vm_list *l;
        uint64_t now;
        bool busy = false;

        grace_pass(&w->grace);
        l = atomic_load(&w->vms);
        now = now_ns();
        if (poll_ns <= NO_POLL_NS && now > last_idle && now - last_idle > PREEMPTED_NS) {
            no_poll_until = now + NO_POLL_NS;
        }
        for (unsigned i = 0; i < l->n; i++) {
            busy |= sched_vm(w, l->vm[i], &now);
        }
        last_idle = UINT64_MAX;
        if (busy) {
            idle_since = 0;
        } else if (!idle_since) {
            idle_since = last_idle = now;
        } else if (now - idle_since >= poll_ns || now < no_poll_until) {
            worker_sleep(w);
            idle_since = 0;
        } else {
            last_idle = now;
            __builtin_ia32_pause();
        }
    }
    grace_offline(&w->grace);
    return NULL;
}

/* ---- start and stop ------------------------------------------------------------ */

static bool worker_start(struct worker *w, unsigned index)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = NULL};

    w->index = index;
    grace_register(&w->grace);
    atomic_store(&w->vms, g_malloc0(sizeof(struct vm_list)));
    w->epfd = epoll_create1(EPOLL_CLOEXEC);
    w->wakefd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return w->epfd >= 0 && w->wakefd >= 0 &&
           epoll_ctl(w->epfd, EPOLL_CTL_ADD, w->wakefd, &ev) == 0 &&
           pthread_create(&w->thread, NULL, worker_main, w) == 0;
}

static void worker_stop(struct worker *w)
{
    atomic_store(&w->stop, true);
    worker_wake(w);
    pthread_join(w->thread, NULL);
    grace_unregister(&w->grace);
    close(w->epfd);
    close(w->wakefd);
    g_free(atomic_load(&w->vms));
}

bool datapath_start(unsigned count, unsigned poll_us, GError **errp)
{
    poll_ns = (uint64_t)poll_us * 1000;
    if (!irq_watchdog_start(errp)) {
        return false;
    }
    workers = g_new0(struct worker, count);
    for (unsigned i = 0; i < count; i++) {
        if (!worker_start(&workers[i], i)) {
            g_set_error(errp, G_FILE_ERROR, g_file_error_from_errno(errno),
                        "cannot start worker %u: %s", i, g_strerror(errno));
            return false;
        }
        n_workers++;
    }
    return true;
}

void datapath_stop(void)
{
    irq_watchdog_stop();
    for (unsigned i = 0; i < n_workers; i++) {
        worker_stop(&workers[i]);
    }
    g_clear_pointer(&workers, g_free);
    n_workers = 0;
}

struct worker *worker_least_loaded(void)
{
    struct worker *best = n_workers ? &workers[0] : NULL;

    for (unsigned i = 1; i < n_workers; i++) {
        if (atomic_load(&workers[i].vms)->n < atomic_load(&best->vms)->n) {
            best = &workers[i];
        }
    }
    return best;
}
