/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Worker threads: the loop, sleep and wake, active and parked VMs.
 *
 * The loop.  A worker looks at its active VMs, serves the one with work that had
 * the least of its time (sched.c) for some microseconds, and looks again.  So a VM
 * that asks for little waits for one such turn at most, however many are busy.
 *
 * Parking.  A VM without work for poll_us is parked: its kick words are set, its
 * queues are told to notify (D6), and it leaves the list of active VMs, so that a
 * thousand idle VMs cost nothing.  A worker without active VMs sleeps in epoll.
 * Whoever has work for a VM sets a bit first, full barrier, then looks: the VMM at
 * the kick word (it writes the VM's eventfd, a source of the worker), a thread of
 * the daemon at `parked` (it pokes that source).  Parking stores these words, full
 * barrier, and then looks for work once more.  A parked VM with a timer is found
 * by a heap of deadlines.
 *
 * Sources.  Descriptors are asked for events every EPOLL_NS while there is work; any
 * thread may poke one.  The VM's eventfd is shared
 * with its VMM, so it is watched edge-triggered and never read: nothing the VMM does
 * to it can block a worker or eat a wake-up of another VM.
 *
 * Each turn of the loop is a quiescent point (grace.h); a sleeping worker is
 * offline.
 */
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/coro.h"
#include "base/thread.h"
#include "engine.h"

/* How often a busy worker asks for events: a call takes 0.4 us. */
#define EPOLL_NS 10000u

/*
 * ... and one that has nothing to do and VMs with sockets: what it waits for comes that
 * way.
 */
#define EPOLL_IDLE_NS 500u

/*
 * A turn without work takes well under a microsecond.  After one that took this
 * long the kernel is asked whether the processor was lost: somebody else wants it,
 * quite likely the guest whose next post is being waited for.  Then the worker
 * sleeps at once when idle, for as long as NO_POLL_NS: a wake-up gets the processor
 * back at once, a poller only when the other's time slice is over, milliseconds
 * later.  So it does while the kernel's account says that it has to wait for
 * processors.  A worker that was told to poll for longer than that is to poll
 * whatever it costs.
 */
#define PREEMPTED_NS 200000u
#define NO_POLL_NS   20000000u

/* Worker time that a VM may ask for later than it could have. */
#define SAVINGS_NS 100000u

static struct worker *workers;
static unsigned n_workers;
static uint64_t poll_ns;
static struct priority worker_priority;
static _Thread_local struct worker *self;

struct worker *worker_self(void)
{
    return self;
}

/* ---- sources ----------------------------------------------------- */

/* After the store that it is to see. */
static void wake_up(struct worker *w)
{
    uint64_t one = 1;

    full_barrier();
    if (atomic_load(&w->sleeping) && write(w->wakefd, &one, sizeof(one)) < 0) {
        return; /* counter full: it is awake already */
    }
}

void source_poke(struct source *s)
{
    struct worker *w = s->worker;

    atomic_fetch_or(&w->poked[s->slot / 64], 1ull << (s->slot % 64));
    atomic_fetch_or(&w->poked_any, 1ull << (s->slot / 64));
    wake_up(w);
}

/* A source that left meanwhile, while the worker slept even, has an empty slot. */
static void slot_ready(struct worker *w, unsigned slot)
{
    struct source *s = atomic_load_explicit(&w->slot[slot], memory_order_acquire);

    if (s) {
        s->ready(s);
    }
}

static void run_poked(struct worker *w)
{
    for (uint64_t any = atomic_exchange(&w->poked_any, 0); any; any &= any - 1) {
        unsigned i = (unsigned)__builtin_ctzll(any);

        for (uint64_t bits = atomic_exchange(&w->poked[i], 0); bits; bits &= bits - 1) {
            slot_ready(w, i * 64 + (unsigned)__builtin_ctzll(bits));
        }
    }
}

/* ---- active and parked ------------------------------------------------------ */

/*
 * A VM that did not want its time does not get it later, but for a moment's worth: one
 * that posts without a pause may be looked at just when its rings are empty.
 */
static void no_savings(const struct worker *w, struct vm_datapath *dp)
{
    if (w->vtime > SAVINGS_NS && dp->vtime < w->vtime - SAVINGS_NS) {
        dp->vtime = w->vtime - SAVINGS_NS;
    }
}

static void activate(struct worker *w, struct vm *vm)
{
    struct vm_datapath *dp = &vm->dp;

    if (!atomic_load_explicit(&dp->parked, memory_order_relaxed)) {
        return;
    }
    atomic_store(&dp->parked, false);
    deadline_remove(&w->parked, &dp->deadline);
    TAILQ_INSERT_TAIL(&w->active, vm, dp.link);
    w->n_active++;
    dp->idle_since = 0;
    dp->looks = UINT_MAX / 2; /* everywhere, at first */
    no_savings(w, dp);
}

static void deactivate(struct worker *w, struct vm *vm)
{
    TAILQ_REMOVE(&w->active, vm, dp.link);
    w->n_active--;
}

/*
 * Park it unless there is work.  The memory of a VM that must not run, a paused one,
 * is not touched: whoever lets it run again pokes it.
 */
static void park(struct worker *w, struct vm *vm, uint64_t now)
{
    struct vm_datapath *dp = &vm->dp;
    uint64_t deadline;

    if (pthread_mutex_trylock(&dp->token) != 0) {
        return;
    }
    if (sched_may_run(vm)) {
        if (!sched_arm(vm, now)) {
            pthread_mutex_unlock(&dp->token);
            return;
        }
        watch_stop_telling(vm);
        doorbells_set_kick(vm);
    }
    atomic_store(&dp->parked, true);
    pthread_mutex_unlock(&dp->token);
    deactivate(w, vm);
    full_barrier();
    deadline = sched_deadline(vm, now);
    if (atomic_load(&dp->leaving) || deadline <= now || sched_pending(vm, now, true)) {
        activate(w, vm);
    } else if (deadline != UINT64_MAX) {
        deadline_add(&w->parked, &dp->deadline, deadline);
    }
}

static struct vm *vm_of_deadline(struct deadline *d)
{
    return (struct vm *)(void *)((char *)d - offsetof(struct vm, dp.deadline));
}

static void run_deadlines(struct worker *w, uint64_t now)
{
    while (deadlines_next(&w->parked) <= now) {
        activate(w, vm_of_deadline(deadlines_first(&w->parked)));
    }
}

static void vm_rang(struct source *s)
{
    struct vm *vm = (struct vm *)(void *)((char *)s - offsetof(struct vm, dp.bell));

    if (atomic_load_explicit(&vm->dp.on_worker, memory_order_relaxed)) {
        activate(s->worker, vm);
    }
}

/* The main thread waits for this VM to be let go. */
static void let_go(struct worker *w, struct vm *vm)
{
    deactivate(w, vm);
    atomic_store(&vm->dp.on_worker, false);
}

/* ---- sleeping ------------------------------------------------------------ */

static void dispatch(struct worker *w, const struct epoll_event *ev, int n)
{
    uint64_t junk;

    for (int i = 0; i < n; i++) {
        if (ev[i].data.u32 < WORKER_MAX_SOURCES) {
            slot_ready(w, ev[i].data.u32);
        } else if (read(w->wakefd, &junk, sizeof(junk)) < 0) {
            continue; /* ours alone and non-blocking: spurious */
        }
    }
}

static void poll_sources(struct worker *w, uint64_t now)
{
    struct epoll_event ev[16];

    w->polled = now;
    dispatch(w, ev, epoll_wait(w->epfd, ev, G_N_ELEMENTS(ev), 0));
}

static void worker_sleep(struct worker *w, uint64_t now)
{
    struct epoll_event ev[16];
    struct timespec ts, *timeout = NULL;
    int n;

    atomic_store(&w->sleeping, true);
    full_barrier();
    if (atomic_load(&w->poked_any) || atomic_load(&w->stop) ||
        deadlines_next(&w->parked) <= now) {
        atomic_store(&w->sleeping, false);
        return;
    }
    if (w->parked.n) {
        uint64_t left = deadlines_next(&w->parked) - now;

        ts.tv_sec = (time_t)(left / 1000000000u);
        ts.tv_nsec = (long)(left % 1000000000u);
        timeout = &ts;
    }
    grace_offline(&w->grace);
    n = epoll_pwait2(w->epfd, ev, G_N_ELEMENTS(ev), timeout, NULL);
    grace_online(&w->grace);
    atomic_store(&w->sleeping, false);
    dispatch(w, ev, n);
}

/* ---- the loop ---------------------------------------------------------------- */

/*
 * Look at all active VMs.  Returns the one to serve next, or NULL: nobody has work.
 * Those that have been idle for @patience ns are parked.
 */
static struct vm *look_around(struct worker *w, uint64_t now, uint64_t patience)
{
    struct vm *vm, *next, *best = NULL;

    for (vm = TAILQ_FIRST(&w->active); vm; vm = next) {
        struct vm_datapath *dp = &vm->dp;

        next = TAILQ_NEXT(vm, dp.link);
        if (atomic_load_explicit(&dp->leaving, memory_order_relaxed)) {
            let_go(w, vm);
        } else if (sched_pending(vm, now, false)) {
            if (dp->idle_since) {
                no_savings(w, dp);
                dp->idle_since = 0;
            }
            if (!best || dp->vtime < best->dp.vtime) {
                best = vm;
            }
        } else if (!dp->idle_since) {
            dp->idle_since = now;
        } else if (now - dp->idle_since >= patience) {
            park(w, vm, now);
        }
    }
    return best;
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    uint64_t now, last_idle = UINT64_MAX, no_poll_until = 0;
    bool idle = false;
    struct cpu_loss loss = {0};
    struct cpu_share share = {0};

    self = w;
    if (!priority_apply(&worker_priority)) {
        g_autofree char *wanted = priority_text(&worker_priority);

        log_msg(LOG_LVL_WARN, "worker %u: no permission for worker-priority=%s: %s",
                w->index, wanted, g_strerror(errno));
    }
    now = now_ns();
    cpu_shared(&share, now);         /* opens what it needs once and for all */
    atomic_store(&w->tid, gettid()); /* worker_start() waits for that */
    irq_thread_register(1 + w->index);
    while (!atomic_load_explicit(&w->stop, memory_order_relaxed)) {
        struct vm *vm;

        grace_pass(&w->grace);
        if (atomic_load_explicit(&w->poked_any, memory_order_relaxed)) {
            run_poked(w);
        }
        if (now - w->polled >=
                (atomic_load_explicit(&w->n_nets, memory_order_relaxed) && idle
                     ? EPOLL_IDLE_NS
                     : EPOLL_NS) &&
            atomic_load_explicit(&w->n_sources, memory_order_relaxed) > w->n_active) {
            poll_sources(w, now);
        }
        run_deadlines(w, now);
        vm = look_around(w, now, now < no_poll_until ? 0 : poll_ns);
        idle = !vm;
        if (vm) {
            w->vtime = MAX(w->vtime, vm->dp.vtime);
            now = sched_serve(w, vm, now);
            last_idle = UINT64_MAX;
            continue;
        }
        if (!w->n_active) {
            worker_sleep(w, now);
            last_idle = UINT64_MAX;
        } else {
            __builtin_ia32_pause();
        }
        now = now_ns();
        if (poll_ns <= NO_POLL_NS &&
            ((now > last_idle && now - last_idle > PREEMPTED_NS && cpu_lost(&loss)) ||
             cpu_shared(&share, now))) {
            no_poll_until = now + NO_POLL_NS;
        }
        last_idle = now;
    }
    grace_offline(&w->grace);
    cpu_share_end(&share);
    return NULL;
}

/* ---- VMs and sources come and go; main thread --------------------------------- */

bool worker_add_source(struct worker *w, struct source *s, uint32_t events)
{
    struct epoll_event ev = {.events = events | EPOLLET};
    unsigned i = 0;

    while (i < WORKER_MAX_SOURCES && atomic_load(&w->slot[i])) {
        i++;
    }
    if (i == WORKER_MAX_SOURCES) {
        errno = ENOSPC;
        return false;
    }
    s->worker = w;
    s->slot = ev.data.u32 = i;
    if (s->fd >= 0 && epoll_ctl(w->epfd, EPOLL_CTL_ADD, s->fd, &ev) < 0) {
        return false;
    }
    atomic_store(&w->slot[i], s);
    atomic_fetch_add(&w->n_sources, 1);
    source_poke(s); /* what happened before */
    return true;
}

void worker_remove_source(struct source *s)
{
    struct worker *w = s->worker;

    if (s->fd >= 0) {
        epoll_ctl(w->epfd, EPOLL_CTL_DEL, s->fd, NULL);
    }
    atomic_store(&w->slot[s->slot], NULL);
    atomic_fetch_sub(&w->n_sources, 1);
    grace_wait();
}

int worker_add_vm(struct worker *w, struct vm *vm)
{
    struct vm_datapath *dp = &vm->dp;

    dp->worker = w;
    dp->bell = (struct source){.fd = vm->guest.db.eventfd, .ready = vm_rang};
    atomic_store(&dp->parked, true);
    atomic_store(&dp->on_worker, true);
    return worker_add_source(w, &dp->bell, EPOLLIN) ? 0 : errno;
}

void worker_remove_vm(struct vm *vm)
{
    struct vm_datapath *dp = &vm->dp;

    atomic_store(&dp->leaving, true);
    for (;;) {
        source_poke(&dp->bell);
        grace_wait();
        if (!atomic_load(&dp->on_worker)) {
            break;
        }
        sched_yield(); /* one that slept has to be awake first */
        coro_breathe();
    }
    worker_remove_source(&dp->bell);
}

/* ---- start and stop ------------------------------------------------------------ */

static bool worker_start(struct worker *w, unsigned index)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.u32 = WORKER_MAX_SOURCES};

    w->index = index;
    grace_register(&w->grace);
    TAILQ_INIT(&w->active);
    if (!deadlines_init(&w->parked, CONFIG_MAX_VMS)) {
        return false;
    }
    w->epfd = epoll_create1(EPOLL_CLOEXEC);
    w->wakefd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->epfd < 0 || w->wakefd < 0 ||
        epoll_ctl(w->epfd, EPOLL_CTL_ADD, w->wakefd, &ev) != 0 ||
        thread_create(&w->thread, NULL, worker_main, w) != 0) {
        return false;
    }
    while (!atomic_load(&w->tid)) {
        sched_yield();
    }
    return true;
}

static void worker_stop(struct worker *w)
{
    atomic_store(&w->stop, true);
    wake_up(w);
    pthread_join(w->thread, NULL);
    grace_unregister(&w->grace);
    close(w->epfd);
    close(w->wakefd);
    deadlines_fini(&w->parked);
    free(w->scratch);
}

void datapath_set_priority(const struct priority *p)
{
    worker_priority = *p;
}

bool datapath_worker_usage(unsigned i, pid_t *tid, char **granted, struct cpu_usage *u)
{
    *tid = i < n_workers ? atomic_load(&workers[i].tid) : 0;
    if (!*tid) {
        return false;
    }
    *granted = priority_granted(*tid);
    cpu_usage_read(*tid, u);
    return true;
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
    sched_listen(true);
    return true;
}

void datapath_stop(void)
{
    sched_listen(false);
    irq_watchdog_stop();
    for (unsigned i = 0; i < n_workers; i++) {
        worker_stop(&workers[i]);
    }
    g_clear_pointer(&workers, g_free);
    n_workers = 0;
}

struct worker *worker_least_loaded(uint64_t among)
{
    struct worker *best = NULL;

    for (unsigned i = 0; i < n_workers; i++) {
        if (among >> i & 1 && (!best || atomic_load(&workers[i].n_sources) <
                                            atomic_load(&best->n_sources))) {
            best = &workers[i];
        }
    }
    return best;
}
