/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Worker threads: loop, sleep and wake, quiescence, the eventfd watchdog.
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
 * Quiescence.  Each turn of the loop is a quiescent point (`passed`); a sleeping
 * worker is offline and uses nothing.  datapath_quiesce() waits until every
 * worker has passed a point or is offline.
 *
 * Watchdog.  A client may make its interrupt eventfd block.  A thread sees that
 * the same write has not ended for two ticks and interrupts it with a signal.
 * It is parked while nobody raises interrupts.
 */
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine.h"
#include "log.h"

#define WATCHDOG_TICK_MS    50
#define WATCHDOG_IDLE_TICKS 40
#define WATCHDOG_SIGNAL     SIGUSR1
#define DEFERRED_POLL_NS    1000000u

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

/* One per thread that raises interrupts: the main thread, then the workers. */
struct irq_slot {
    pthread_t thread;
    _Atomic(struct vm *) vm; /* whose eventfd is in use */
    _Atomic uint64_t seq;    /* goes up before vm is set */
};
static struct irq_slot irq_slots[CONFIG_MAX_WORKERS + 1];
static _Thread_local struct irq_slot *my_slot;
static pthread_t watchdog;
static sem_t watchdog_sem;
static _Atomic bool watchdog_parked, watchdog_stop;

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

        if (atomic_load(&vm->dp.paused) || atomic_load(&vm->fault)) {
            continue;
        }
        next = MIN(next, t);
        if (atomic_load(&vm->dev.cqn_deferred_any)) {
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
    atomic_store(&w->offline, true);
    n = epoll_pwait2(w->epfd, ev, G_N_ELEMENTS(ev), timeout, NULL);
    atomic_store(&w->offline, false);
    full_barrier();

    for (int i = 0; i < n; i++) {
        if (!ev[i].data.ptr && read(w->wakefd, &junk, sizeof(junk)) < 0) {
            continue; /* ours alone and non-blocking: spurious */
        }
    }
    atomic_store(&w->sleeping, false);
    set_kick(atomic_load(&w->vms), 0);
}

static void worker_wake(struct worker *w)
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
    my_slot = &irq_slots[1 + w->index];
    my_slot->thread = pthread_self();
    while (!atomic_load_explicit(&w->stop, memory_order_relaxed)) {
        struct vm_list *l;
        uint64_t now;
        bool busy = false;

        atomic_fetch_add(&w->passed, 1); /* quiescent point */
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
    atomic_store(&w->offline, true);
    return NULL;
}

/* ---- quiescence ------------------------------------------------------------ */

/* One round of waiting for another thread, the @spin-th. */
static void relax(unsigned spin)
{
    if (spin < 200) {
        sched_yield();
    } else {
        usleep(20);
    }
}

void datapath_quiesce(void)
{
    full_barrier();
    for (unsigned i = 0; i < n_workers; i++) {
        struct worker *w = &workers[i];
        uint64_t seen = atomic_load(&w->passed);

        for (unsigned spin = 0;
             !atomic_load(&w->offline) && atomic_load(&w->passed) == seen; spin++) {
            relax(spin);
        }
    }
    full_barrier();
}

/* ---- watchdog ---------------------------------------------------------------- */

void datapath_irq_enter(struct vm *vm)
{
    if (!my_slot) {
        return; /* a test's thread */
    }
    atomic_fetch_add(&my_slot->seq, 1);
    atomic_store(&my_slot->vm, vm);
    if (atomic_load(&watchdog_parked) && atomic_exchange(&watchdog_parked, false)) {
        sem_post(&watchdog_sem);
    }
}

void datapath_irq_leave(void)
{
    if (my_slot) {
        atomic_store(&my_slot->vm, NULL);
    }
}

void datapath_irq_drain(struct vm *vm)
{
    for (unsigned i = 0; i <= n_workers; i++) {
        struct irq_slot *s = &irq_slots[i];
        uint64_t seen = atomic_load(&s->seq);

        for (unsigned spin = 0; atomic_load(&s->vm) == vm && atomic_load(&s->seq) == seen;
             spin++) {
            relax(spin);
        }
    }
}

static void on_watchdog_signal(int sig)
{
    (void)sig; /* its only work is to end a write with EINTR */
}

/* One look at all slots; true if anybody raised since the last. */
static bool watchdog_tick(uint64_t *last_seq, unsigned *stuck)
{
    bool active = false;

    for (unsigned i = 0; i <= n_workers; i++) {
        struct irq_slot *s = &irq_slots[i];
        uint64_t seq = atomic_load(&s->seq);
        bool same = seq == last_seq[i];

        active |= !same || atomic_load(&s->vm);
        last_seq[i] = seq;
        if (!same || !atomic_load(&s->vm)) {
            stuck[i] = 0;
        } else if (++stuck[i] >= 2) {
            pthread_kill(s->thread, WATCHDOG_SIGNAL);
        }
    }
    return active;
}

static void *watchdog_main(void *arg)
{
    uint64_t last_seq[G_N_ELEMENTS(irq_slots)] = {0};
    unsigned stuck[G_N_ELEMENTS(irq_slots)] = {0}, idle = 0;

    (void)arg;
    while (!atomic_load(&watchdog_stop)) {
        if (watchdog_tick(last_seq, stuck)) {
            idle = 0;
        } else if (++idle > WATCHDOG_IDLE_TICKS) {
            atomic_store(&watchdog_parked, true);
            if (!watchdog_tick(last_seq, stuck) && !atomic_load(&watchdog_stop)) {
                while (sem_wait(&watchdog_sem) != 0) {
                }
            }
            atomic_store(&watchdog_parked, false);
            idle = 0;
        }
        usleep(WATCHDOG_TICK_MS * 1000);
    }
    return NULL;
}

/* ---- VMs -------------------------------------------------------------------- */

static struct vm_list *list_without(const struct vm_list *old, const struct vm *vm,
                                    unsigned extra)
{
    struct vm_list *l = g_malloc0(sizeof(*l) + (old->n + extra) * sizeof(l->vm[0]));

    for (unsigned i = 0; i < old->n; i++) {
        if (old->vm[i] != vm) {
            l->vm[l->n++] = old->vm[i];
        }
    }
    return l;
}

static void list_publish(struct worker *w, struct vm_list *l)
{
    struct vm_list *old = atomic_exchange(&w->vms, l);

    worker_wake(w);
    datapath_quiesce();
    g_free(old);
}

static struct worker *least_loaded(void)
{
    struct worker *best = &workers[0];

    for (unsigned i = 1; i < n_workers; i++) {
        if (atomic_load(&workers[i].vms)->n < atomic_load(&best->vms)->n) {
            best = &workers[i];
        }
    }
    return best;
}

int datapath_vm_init(struct vm *vm)
{
    struct vm_datapath *dp = &vm->dp;
    struct epoll_event ev = {.events = EPOLLIN | EPOLLET, .data.ptr = vm};
    struct vm_list *l;

    memset(dp, 0, sizeof(*dp));
    TAILQ_INIT(&dp->run);
    dp->slice = DATAPATH_SLICE;
    pthread_mutex_init(&dp->token, NULL);
    atomic_init(&dp->next_timer, UINT64_MAX);
    /* Zero pages until used; 1-based, one place per QP handle. */
    dp->timer = calloc((size_t)vm->cfg->max_qp + 1, sizeof(dp->timer[0]));
    if (!dp->timer || !n_workers) {
        free(dp->timer);
        return dp->timer ? EINVAL : ENOMEM;
    }
    dp->worker = least_loaded();
    if (epoll_ctl(dp->worker->epfd, EPOLL_CTL_ADD, vm->dev.db_eventfd, &ev) < 0) {
        int err = errno;

        free(dp->timer);
        return err;
    }
    l = list_without(atomic_load(&dp->worker->vms), NULL, 1);
    l->vm[l->n++] = vm;
    list_publish(dp->worker, l);
    return 0;
}

void datapath_vm_fini(struct vm *vm)
{
    struct worker *w = vm->dp.worker;

    epoll_ctl(w->epfd, EPOLL_CTL_DEL, vm->dev.db_eventfd, NULL);
    list_publish(w, list_without(atomic_load(&w->vms), vm, 0));
    g_free(atomic_load(&vm->dp.ext));
    free(vm->dp.timer);
    pthread_mutex_destroy(&vm->dp.token);
}

void vm_token_take(struct vm *vm)
{
    atomic_fetch_add(&vm->dp.token_waiters, 1);
    pthread_mutex_lock(&vm->dp.token);
    atomic_fetch_sub(&vm->dp.token_waiters, 1);
}

void vm_token_release(struct vm *vm)
{
    pthread_mutex_unlock(&vm->dp.token);
    datapath_wake(vm);
}

void datapath_wake(struct vm *vm)
{
    worker_wake(vm->dp.worker);
}

void datapath_ring(struct vm *vm, uint32_t qp_handle)
{
    struct pvrdma_db_map *m = &vm->dev.db_private->send;
    unsigned w = qp_handle / 64;

    __atomic_fetch_or(&m->words[w], 1ull << (qp_handle % 64), __ATOMIC_SEQ_CST);
    __atomic_fetch_or(&m->summary[w / 64], 1ull << (w % 64), __ATOMIC_SEQ_CST);
    datapath_wake(vm);
}

/* ---- start and stop ------------------------------------------------------------ */

static bool worker_start(struct worker *w, unsigned index)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = NULL};

    w->index = index;
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
    close(w->epfd);
    close(w->wakefd);
    g_free(atomic_load(&w->vms));
}

bool datapath_start(unsigned count, unsigned poll_us, GError **errp)
{
    struct sigaction sa = {.sa_handler = on_watchdog_signal};

    my_slot = &irq_slots[0];
    my_slot->thread = pthread_self();
    poll_ns = (uint64_t)poll_us * 1000;
    sigaction(WATCHDOG_SIGNAL, &sa, NULL); /* no SA_RESTART: that is the point */
    workers = g_new0(struct worker, count);
    for (unsigned i = 0; i < count; i++) {
        if (!worker_start(&workers[i], i)) {
            g_set_error(errp, G_FILE_ERROR, g_file_error_from_errno(errno),
                        "cannot start worker %u: %s", i, g_strerror(errno));
            return false;
        }
        n_workers++;
    }
    sem_init(&watchdog_sem, 0, 0);
    atomic_store(&watchdog_stop, false);
    if (pthread_create(&watchdog, NULL, watchdog_main, NULL) != 0) {
        g_set_error(errp, G_FILE_ERROR, G_FILE_ERROR_FAILED, "cannot start a thread");
        return false;
    }
    return true;
}

void datapath_stop(void)
{
    if (!workers) {
        return;
    }
    atomic_store(&watchdog_stop, true);
    sem_post(&watchdog_sem);
    pthread_join(watchdog, NULL);
    for (unsigned i = 0; i < n_workers; i++) {
        worker_stop(&workers[i]);
    }
    g_free(workers);
    workers = NULL;
    n_workers = 0;
}
