/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The monotonic clock of a unit test, which does not go on while the machine stands
 * still: between two readings as much passes as the test says, at most.  For one file of
 * a program that is linked with -Wl,--wrap=clock_gettime.  GLib's timers are not its.
 *
 * Any thread reads it.
 */
#ifndef STILLCLOCK_H
#define STILLCLOCK_H

#include <glib.h>
#include <pthread.h>
#include <stdint.h>
#include <time.h>

#define STILLCLOCK_S 1000000000ull

static pthread_mutex_t stillclock_lock = PTHREAD_MUTEX_INITIALIZER; /* of all three */
static uint64_t stillclock_now, stillclock_read; /* ns; and the kernel's at the time */
static uint64_t stillclock_step;                 /* ns, at most; 0: it stands still */

int __wrap_clock_gettime(clockid_t clock, struct timespec *ts);
int __real_clock_gettime(clockid_t clock, struct timespec *ts);

int __wrap_clock_gettime(clockid_t clock, struct timespec *ts)
{
    int err = __real_clock_gettime(clock, ts);
    uint64_t now;

    if (err || clock != CLOCK_MONOTONIC) {
        return err;
    }
    now = (uint64_t)ts->tv_sec * STILLCLOCK_S + (uint64_t)ts->tv_nsec;
    pthread_mutex_lock(&stillclock_lock);
    if (!stillclock_now) {
        stillclock_now = stillclock_read = now;
    }
    if (now > stillclock_read) { /* another thread may have read it since */
        stillclock_now += MIN(now - stillclock_read, stillclock_step);
        stillclock_read = now;
    }
    ts->tv_sec = (time_t)(stillclock_now / STILLCLOCK_S);
    ts->tv_nsec = (long)(stillclock_now % STILLCLOCK_S);
    pthread_mutex_unlock(&stillclock_lock);
    return 0;
}

/* From now on that much passes between two readings, at most. */
static inline void stillclock_begin(uint64_t step_ns)
{
    pthread_mutex_lock(&stillclock_lock);
    stillclock_step = step_ns;
    pthread_mutex_unlock(&stillclock_lock);
}

static inline void stillclock_pass(uint64_t ns)
{
    pthread_mutex_lock(&stillclock_lock);
    stillclock_now += ns;
    pthread_mutex_unlock(&stillclock_lock);
}

#endif /* STILLCLOCK_H */
