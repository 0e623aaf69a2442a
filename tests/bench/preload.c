/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * LD_PRELOADed into a daemon that runs under valgrind:
 *
 * - Its clocks go slower by the factor in SLOW_CLOCK, as the daemon does.  What it does
 *   for so many microseconds at a time then holds as many messages as without.
 * - epoll_pwait2() by way of epoll_pwait(): valgrind 3.19 does not know the former, and
 *   the worker would not sleep.
 */
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NS 1000000000ll

static int64_t factor = 1;
static int64_t start[16]; /* by clock */

static int64_t real_ns(clockid_t clock)
{
    struct timespec ts = {0, 0};

    syscall(SYS_clock_gettime, clock, &ts);
    return ts.tv_sec * NS + ts.tv_nsec;
}

__attribute__((constructor)) static void init(void)
{
    const char *text = getenv("SLOW_CLOCK");

    for (clockid_t i = 0; i < 16; i++) {
        start[i] = real_ns(i);
    }
    factor = text && atoi(text) > 0 ? atoi(text) : 1;
}

int clock_gettime(clockid_t clock, struct timespec *ts)
{
    int64_t ns;

    if (clock < 0 || clock >= 16) {
        return syscall(SYS_clock_gettime, clock, ts);
    }
    ns = start[clock] + (real_ns(clock) - start[clock]) / factor;
    ts->tv_sec = ns / NS;
    ts->tv_nsec = ns % NS;
    return 0;
}

int epoll_pwait2(int fd, struct epoll_event *ev, int n, const struct timespec *timeout,
                 const sigset_t *mask)
{
    int64_t ms = -1;

    if (timeout) {
        ms = (timeout->tv_sec * NS + timeout->tv_nsec + 999999) / 1000000 * factor;
        ms = ms > INT_MAX ? INT_MAX : ms;
    }
    return epoll_pwait(fd, ev, n, (int)ms, mask);
}
