/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The watchdog of interrupts.
 *
 * A client may make its interrupt eventfd block.  Each thread that raises says so
 * in a slot of its own; a thread sees that the same write has not ended for two
 * ticks and interrupts it with a signal.  It is parked while nobody raises.
 */
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/coro.h"
#include "base/thread.h"
#include "guest/guest.h"

#define TICK_MS         50
#define IDLE_TICKS      40
#define WATCHDOG_SIGNAL SIGUSR1

struct irq_slot {
    pthread_t thread;
    _Atomic(struct guest *) guest; /* whose eventfd is in use */
    _Atomic uint64_t seq;          /* goes up before guest is set */
};
static struct irq_slot irq_slots[IRQ_MAX_THREADS];
static _Thread_local struct irq_slot *my_slot;
static pthread_t watchdog;
static bool running;
static sem_t watchdog_sem;
static _Atomic bool watchdog_parked, watchdog_stop;

/*
 * One round of waiting for another thread, the @spin-th.  Who is stuck in a write may be
 * for two ticks: a coroutine lets the main loop go on with other VMs meanwhile.
 */
static void relax(unsigned spin)
{
    if (spin < 200) {
        sched_yield();
    } else if (coro_self()) {
        coro_sleep(1);
    } else {
        usleep(20);
    }
}

void irq_thread_register(unsigned index)
{
    my_slot = &irq_slots[index];
    my_slot->thread = pthread_self();
}

bool irq_in_main_thread(void)
{
    return my_slot == &irq_slots[0];
}

void irq_enter(struct guest *guest)
{
    if (!my_slot) {
        return; /* a test's thread */
    }
    atomic_fetch_add(&my_slot->seq, 1);
    atomic_store(&my_slot->guest, guest);
    if (atomic_load(&watchdog_parked) && atomic_exchange(&watchdog_parked, false)) {
        sem_post(&watchdog_sem);
    }
}

void irq_leave(void)
{
    if (my_slot) {
        atomic_store(&my_slot->guest, NULL);
    }
}

void irq_drain(struct guest *guest)
{
    for (unsigned i = 0; i < IRQ_MAX_THREADS; i++) {
        struct irq_slot *s = &irq_slots[i];
        uint64_t seen = atomic_load(&s->seq);

        for (unsigned spin = 0;
             atomic_load(&s->guest) == guest && atomic_load(&s->seq) == seen; spin++) {
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

    for (unsigned i = 0; i < IRQ_MAX_THREADS; i++) {
        struct irq_slot *s = &irq_slots[i];
        uint64_t seq = atomic_load(&s->seq);
        bool same = seq == last_seq[i];

        active |= !same || atomic_load(&s->guest);
        last_seq[i] = seq;
        if (!same || !atomic_load(&s->guest)) {
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
        } else if (++idle > IDLE_TICKS) {
            atomic_store(&watchdog_parked, true);
            if (!watchdog_tick(last_seq, stuck) && !atomic_load(&watchdog_stop)) {
                while (sem_wait(&watchdog_sem) != 0) {
                }
            }
            atomic_store(&watchdog_parked, false);
            idle = 0;
        }
        usleep(TICK_MS * 1000);
    }
    return NULL;
}

bool irq_watchdog_start(GError **errp)
{
    struct sigaction sa = {.sa_handler = on_watchdog_signal};

    irq_thread_register(0);
    irq_signal_start();
    sigaction(WATCHDOG_SIGNAL, &sa, NULL); /* no SA_RESTART: that is the point */
    sem_init(&watchdog_sem, 0, 0);
    atomic_store(&watchdog_stop, false);
    running = thread_create(&watchdog, NULL, watchdog_main, NULL) == 0;
    if (!running) {
        g_set_error(errp, G_FILE_ERROR, G_FILE_ERROR_FAILED, "cannot start a thread");
        irq_signal_stop();
    }
    return running;
}

void irq_watchdog_stop(void)
{
    if (running) {
        atomic_store(&watchdog_stop, true);
        sem_post(&watchdog_sem);
        pthread_join(watchdog, NULL);
        irq_signal_stop();
        running = false;
    }
}
