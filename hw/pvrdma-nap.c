/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Naps of a vCPU that polls for nothing on a processor that others want.
 *
 * A guest that polls a completion queue never sleeps, so the host's
 * scheduler takes its processor away only at a timer tick: up to 4 ms later.
 * If what it waits for can only be sent by a guest that waits for the same
 * processor, each message takes a tick.  No priority helps: both are equals,
 * both look busy, and whoever used a whole tick owes that time to the other,
 * which therefore also keeps the processor for one, and so on for ever.
 *
 * So a vCPU that was preempted lately and polled for SPIN_NS in vain sleeps
 * for NAP_NS, as one halted in an idle guest would; if nobody uses the time,
 * it is back that much later.  A vCPU with a processor of its own is never
 * preempted, and never naps.
 *
 * The nap is a work item of the vCPU and not part of the register write: the
 * device and the big lock are free meanwhile.
 *
 * Threads: each vCPU for itself.
 */
#include "qemu/osdep.h"
#include <sys/prctl.h>
#include <sys/resource.h>
#include "qemu/main-loop.h"
#include "qemu/timer.h"
#include "hw/core/cpu.h"
#include "pvrdma-nap.h"

/* Polling in vain for so long... */
#define SPIN_NS 10000
/* ...costs a nap of so long... */
#define NAP_NS 30000
/* ...if the processor was lost within this time. */
#define SHARED_NS 200000000

/* Of this vCPU's thread. */
static __thread struct {
    bool known;          /* the fields below were set up */
    bool queued;         /* a nap is to come */
    int64_t since;       /* when polling in vain began; 0: it has not */
    int64_t shared_till; /* others want the processor until then */
    long lost;           /* involuntary switches at the last look */
} nap;

static long involuntary_switches(void)
{
    struct rusage ru;

    return getrusage(RUSAGE_THREAD, &ru) < 0 ? 0 : ru.ru_nivcsw;
}

static void do_nap(CPUState *cpu, run_on_cpu_data data)
{
    struct timespec ts = { .tv_nsec = NAP_NS };

    bql_unlock();
    nanosleep(&ts, NULL);
    bql_lock();
    nap.queued = false;
    nap.since = 0;
}

void pvrdma_nap_polled(bool idle)
{
    int64_t now = get_clock();
    long lost;

    if (!nap.known) {
        nap.known = true;
        nap.lost = involuntary_switches();
        /* Otherwise a sleep takes 50 us longer, to end with another's. */
        prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
    }
    if (!nap.since) {
        nap.since = now;
    }
    if ((now - nap.since < SPIN_NS && !idle) || nap.queued || !current_cpu) {
        return;
    }
    lost = involuntary_switches();
    if (lost != nap.lost) {
        nap.lost = lost;
        nap.shared_till = now + SHARED_NS;
    }
    if (now < nap.shared_till) {
        nap.queued = true;
        async_run_on_cpu(current_cpu, do_nap, RUN_ON_CPU_NULL);
    } else {
        nap.since = now;
    }
}

void pvrdma_nap_worked(void)
{
    nap.since = 0;
}
