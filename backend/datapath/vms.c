/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * VMs and their workers: who serves whom, the token, pausing, waking.
 *
 * Main thread, except for datapath_wake() and datapath_ring().
 */
#include <sched.h>
#include <stdlib.h>

#include "base/coro.h"
#include "engine.h"

/* How long a coroutine tries to get a lock before it lets the main loop go on. */
#define LOCK_SPIN_NS 200000u
/* How long the main thread tries to get a token outside of one. */
#define TRY_SPIN_NS 100000u

static uint64_t (*named_workers)(void);

void datapath_set_named(uint64_t (*named)(void))
{
    named_workers = named;
}

unsigned datapath_vm_worker(const struct vm *vm)
{
    return vm->dp.worker->index;
}

static struct worker *choose_worker(const struct vm *vm)
{
    uint64_t named = named_workers ? named_workers() : 0;
    struct worker *w;

    if (vm->cfg->workers) {
        return worker_least_loaded(vm->cfg->workers);
    }
    w = worker_least_loaded(~named);
    return w ? w : worker_least_loaded(named);
}

/* The worker that retries events may not look at the VM now. */
static void events_pending(struct guest *g)
{
    datapath_wake(vm_of_guest(g));
}

static void fini(struct vm_datapath *dp)
{
    deadlines_fini(&dp->timers);
    deadlines_fini(&dp->holds);
    pthread_mutex_destroy(&dp->hold_lock);
    pthread_mutex_destroy(&dp->token);
}

int datapath_vm_init(struct vm *vm)
{
    struct vm_datapath *dp = &vm->dp;
    struct worker *w = choose_worker(vm);
    int err;

    memset(dp, 0, sizeof(*dp));
    TAILQ_INIT(&dp->run);
    TAILQ_INIT(&dp->held);
    pthread_mutex_init(&dp->token, NULL);
    dp->clock_base = dp->stopped_at = now_ns();
    atomic_init(&dp->next_timer, UINT64_MAX);
    atomic_init(&dp->next_hold, UINT64_MAX);
    pthread_mutex_init(&dp->hold_lock, NULL);
    vm->guest.events.on_pending = events_pending;
    /* One place per QP handle, and CQ handle. */
    err = !deadlines_init(&dp->timers, vm->cfg->max_qp) ||
                  !deadlines_init(&dp->holds, vm->cfg->max_cq)
              ? ENOMEM
          : !w ? EINVAL
               : worker_add_vm(w, vm);
    if (err) {
        fini(dp);
    }
    return err;
}

void datapath_vm_fini(struct vm *vm)
{
    worker_remove_vm(vm);
    inbox_take(&vm->dp); /* nobody finds the VM to post to any more */
    while (vm->dp.arrived) {
        struct note *n = vm->dp.arrived;

        vm->dp.arrived = n->next;
        n->run(n, NULL);
    }
    if (vm->dp.net) {
        vm->dp.net->ops->fini(vm->dp.net);
    }
    fini(&vm->dp);
}

/*
 * Try for @ns to take a lock that a worker holds for some microseconds, or as long as the
 * kernel takes to bring a page of guest memory.  False: it is rather the latter.
 */
static bool try_lock_for(pthread_mutex_t *lock, uint64_t ns)
{
    uint64_t end = 0;

    while (pthread_mutex_trylock(lock) != 0) {
        uint64_t now = now_ns();

        end = end ? end : now + ns;
        if (now >= end) {
            return false;
        }
        sched_yield();
    }
    return true;
}

/* Of a coroutine; who is in none waits. */
static bool lock_soon(pthread_mutex_t *lock)
{
    if (coro_self()) {
        return try_lock_for(lock, LOCK_SPIN_NS);
    }
    pthread_mutex_lock(lock);
    return true;
}

void vm_token_ask(struct vm *vm)
{
    atomic_fetch_add(&vm->dp.token_waiters, 1);
}

void vm_token_take(struct vm *vm)
{
    vm_token_ask(vm);
    while (!lock_soon(&vm->dp.token)) {
        grace_wait(); /* a worker that has passed has let go, and sees us wait */
    }
}

bool vm_token_try_again(struct vm *vm)
{
    return pthread_mutex_trylock(&vm->dp.token) == 0;
}

bool vm_token_try(struct vm *vm)
{
    vm_token_ask(vm);
    return try_lock_for(&vm->dp.token, TRY_SPIN_NS);
}

void vm_token_give_up(struct vm *vm)
{
    atomic_fetch_sub(&vm->dp.token_waiters, 1);
    datapath_wake(vm);
}

void vm_qp_lock(struct qp *qp)
{
    while (!lock_soon(&qp->lock)) {
        vm_token_release(qp->vm);
        grace_wait();
        vm_token_take(qp->vm);
    }
}

void vm_cq_lock(struct cq *cq, bool token)
{
    while (!lock_soon(&cq->lock)) {
        if (token) {
            vm_token_release(cq->vm);
        }
        grace_wait();
        if (token) {
            vm_token_take(cq->vm);
        }
    }
}

void vm_token_release(struct vm *vm)
{
    pthread_mutex_unlock(&vm->dp.token);
    atomic_fetch_sub(&vm->dp.token_waiters, 1);
    datapath_wake(vm);
}

void vm_token_return(struct vm *vm)
{
    pthread_mutex_unlock(&vm->dp.token);
    atomic_fetch_sub(&vm->dp.token_waiters, 1);
    if (atomic_load(&vm->dp.unseen)) {
        atomic_store(&vm->dp.unseen, false);
        datapath_wake(vm);
    }
}

void datapath_wake(struct vm *vm)
{
    full_barrier();
    if (atomic_load(&vm->dp.parked)) {
        source_poke(&vm->dp.bell);
    }
}

void vm_post(struct vm *vm, struct note *n)
{
    n->next = atomic_load_explicit(&vm->dp.inbox, memory_order_relaxed);
    while (!atomic_compare_exchange_weak(&vm->dp.inbox, &n->next, n)) {
    }
    datapath_wake(vm);
}

void inbox_take(struct vm_datapath *dp)
{
    struct note *list = atomic_exchange(&dp->inbox, NULL), *first = NULL, **end;

    while (list) { /* oldest first */
        struct note *n = list;

        list = n->next;
        n->next = first;
        first = n;
    }
    for (end = &dp->arrived; *end; end = &(*end)->next) {
    }
    *end = first;
}

void datapath_ring(struct vm *vm, uint32_t qp_handle)
{
    doorbell_set(&vm->guest.db.own->send, qp_handle);
    datapath_wake(vm);
}

/* Is this its first pause? */
static bool stops(const struct vm *vm)
{
    return vm->attached && vm->pauses == 1;
}

void datapath_pause_begin(struct vm *vm, uint64_t ns)
{
    if (!vm->attached || vm->pauses++ > 0) {
        return;
    }
    atomic_store(&vm->dp.paused, true);
    directory_hold(vm, ns);
    event_set_paused(&vm->guest.events, true);
}

void datapath_pause_end(struct vm *vm, uint64_t ns)
{
    if (stops(vm)) {
        vm->dp.stopped_at = now_ns();
        directory_hold(vm, ns); /* anew */
    }
}

void datapath_pause(struct vm *vm)
{
    datapath_pause_begin(vm, DIRECTORY_MAX_HOLD_NS);
    if (stops(vm)) {
        grace_wait(); /* its worker may be in its turn, peers' in a slice into it */
        vm->dp.stopped_at = now_ns();
    }
}

void datapath_resume(struct vm *vm)
{
    if (!vm->attached || vm->pauses == 0 || --vm->pauses > 0) {
        return;
    }
    if (!directory_may_run(vm)) {
        return; /* nor does anything find it: it stands still as long as it is here */
    }
    event_set_paused(&vm->guest.events, false);
    atomic_store(&vm->dp.paused, false);
    directory_hold(vm, 0);
    source_poke(&vm->dp.bell); /* it may be about to park a VM that may not run */
}

bool datapath_in_turn(struct vm *vm, uint64_t since)
{
    if (!vm->attached || !grace_waits_for(&vm->dp.worker->grace, since)) {
        return false;
    }
    if (pthread_mutex_trylock(&vm->dp.token) != 0) {
        return true;
    }
    pthread_mutex_unlock(&vm->dp.token);
    return false;
}

uint64_t datapath_stopped_clock(const struct vm *vm)
{
    return vm->dp.stopped_at - vm->dp.clock_base;
}

/* ---- the state stream ---- */

/* A daemon may know more statistics or fewer: new ones come last. */
#define MAX_COUNTERS (11u + DATAGRAM_DROPS + UC_DROPS)

static unsigned counters(struct vm *vm, _Atomic uint64_t *list[MAX_COUNTERS])
{
    struct vm_datapath *dp = &vm->dp;
    _Atomic uint64_t *first[] = {
        &dp->tx_msgs,
        &dp->tx_bytes,
        &dp->rx_msgs,
        &dp->rx_bytes,
        &dp->errors,
        &dp->rnr_waits,
        &dp->retries,
        &dp->replays,
        &dp->interrupts,
        &dp->datagrams_sent,
        &dp->datagrams_received,
    };
    unsigned n = 0;

    for (unsigned i = 0; i < G_N_ELEMENTS(first); i++) {
        list[n++] = first[i];
    }
    for (unsigned i = 0; i < DATAGRAM_DROPS; i++) {
        list[n++] = &dp->datagrams_dropped[i];
    }
    for (unsigned i = 0; i < UC_DROPS; i++) {
        list[n++] = &dp->uc_dropped[i];
    }
    return n;
}

void datapath_save(struct vm *vm, struct state_out *s)
{
    _Atomic uint64_t *list[MAX_COUNTERS];
    unsigned n = counters(vm, list);

    state_put_u64(s, datapath_stopped_clock(vm));
    state_put_u32(s, n);
    for (unsigned i = 0; i < n; i++) {
        state_put_u64(s, atomic_load(list[i]));
    }
}

void datapath_load(struct vm *vm, struct state_in *s)
{
    uint64_t clock = state_get_u64(s);
    uint32_t have = state_get_count(s, 4096, sizeof(uint64_t));

    if (clock > INT64_MAX) {
        state_fail(s, "invalid clock");
    }
    for (uint32_t i = 0; i < have; i++) {
        state_get_u64(s);
    }
    vm->dp.stopped_at = now_ns();
}

void datapath_go_on(struct vm *vm, struct state_in s)
{
    _Atomic uint64_t *list[MAX_COUNTERS];
    unsigned n = counters(vm, list);
    uint64_t clock = state_get_u64(&s);
    uint32_t have = state_get_u32(&s);

    for (uint32_t i = 0; i < MIN(n, have); i++) {
        atomic_store(list[i], state_get_u64(&s));
    }
    vm->dp.clock_base = vm->dp.stopped_at - clock;
}
