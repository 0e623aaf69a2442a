/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A clock of another speed, LD_PRELOADed into test programs and, as these hand on their
 * environment, into the daemons that they start: what waits for a timeout of
 * seconds needs a fraction of them.  tests/vguest/meson.build says which programs run so.
 *
 * PVRDMA_CLOCK=N, or N/M: monotonic clocks go N/M times as fast as they are, and whoever
 * sleeps or waits for so long sleeps M/N of it.  Slower (1/2) is for builds in which all
 * else takes longer.
 *
 * - There is no origin: a time is the kernel's, multiplied.  So all processes that have
 *   the same factor agree, whenever they began, also one that was put in another's
 *   place by execve().
 * - Nobody wakes up before what he waits for by this clock: waits are rounded up.
 * - What is not here keeps the kernel's time: CLOCK_REALTIME, processor time, alarm()
 * (the programs' watchdogs), timeouts of sockets and those of TCP itself.
 * - Only what the daemon, GLib and the tests wait by is here; test-waits.py looks for
 * more.
 * - A call goes on to the next library that has it, which is the sanitizer's where there
 *   is one: ThreadSanitizer learns by poll() what happened before what.
 */
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#define NS        1000000000ll
#define NS_PER_MS 1000000ll
#define NS_PER_US 1000ll

/* Of N and M; that times fit in 64 bits. */
#define MOST 100000

typedef int gettime_fn(clockid_t, struct timespec *);
typedef int ppoll_fn(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *);
typedef int poll_fn(struct pollfd *, nfds_t, int);
typedef int epoll_fn(int, struct epoll_event *, int, const struct timespec *,
                     const sigset_t *);
typedef int nanosleep_fn(const struct timespec *, struct timespec *);

static struct {
    gettime_fn *gettime;
    poll_fn *poll;
    ppoll_fn *ppoll;
    epoll_fn *epoll_pwait2;
    nanosleep_fn *nanosleep;
} next;
static int64_t times = 1, part = 1;

static void *find(const char *name)
{
    void *fn = dlsym(RTLD_NEXT, name);

    if (!fn) {
        fprintf(stderr, "clock: no %s\n", name);
        abort();
    }
    return fn;
}

/* Before main(); and by the first call, as another library's constructor may make it. */
__attribute__((constructor)) static void init(void)
{
    const char *text = getenv("PVRDMA_CLOCK");
    long long n = 1, m = 1;
    char more;

    if (next.nanosleep) {
        return;
    }
    if (text && ((sscanf(text, "%lld%c", &n, &more) != 1 &&
                  sscanf(text, "%lld/%lld%c", &n, &m, &more) != 2) ||
                 n < 1 || n > MOST || m < 1 || m > MOST)) {
        fprintf(stderr, "clock: PVRDMA_CLOCK=%s is neither N nor N/M\n", text);
        abort();
    }
    times = n;
    part = m;
    next.gettime = (gettime_fn *)find("clock_gettime");
    next.poll = (poll_fn *)find("poll");
    next.ppoll = (ppoll_fn *)find("ppoll");
    next.epoll_pwait2 = (epoll_fn *)find("epoll_pwait2");
    next.nanosleep = (nanosleep_fn *)find("nanosleep");
}

/* Seconds apart from what is less, or years times the factor would not fit. */
static struct timespec multiplied(const struct timespec *t, int64_t by, int64_t of,
                                  int64_t round)
{
    int64_t s = (int64_t)t->tv_sec * by;
    int64_t ns = ((s % of) * NS + t->tv_nsec * by + round) / of;

    return (struct timespec){s / of + ns / NS, ns % NS};
}

/* What the kernel has to wait for so long. */
static struct timespec real(const struct timespec *t)
{
    return multiplied(t, part, times, times - 1);
}

static struct timespec real_ns(int64_t ns)
{
    return real(&(struct timespec){ns / NS, ns % NS});
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
    int ret;

    init();
    ret = next.gettime(clock, t);
    if (ret == 0 && (clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_RAW ||
                     clock == CLOCK_MONOTONIC_COARSE || clock == CLOCK_BOOTTIME)) {
        *t = multiplied(t, times, part, 0);
    }
    return ret;
}

int poll(struct pollfd *fds, nfds_t n, int ms)
{
    struct timespec t;

    init();
    if (ms <= 0) {
        return next.poll(fds, n, ms);
    }
    t = real_ns(ms * NS_PER_MS);
    return next.ppoll(fds, n, &t, NULL);
}

/* poll() in a build with _FORTIFY_SOURCE. */
int __poll_chk(struct pollfd *fds, nfds_t n, int ms, size_t size);
int __poll_chk(struct pollfd *fds, nfds_t n, int ms, size_t size)
{
    if (n > size / sizeof(*fds)) {
        abort();
    }
    return poll(fds, n, ms);
}

int epoll_pwait2(int fd, struct epoll_event *events, int n,
                 const struct timespec *timeout, const sigset_t *mask)
{
    struct timespec t;

    init();
    if (timeout) {
        t = real(timeout);
    }
    return next.epoll_pwait2(fd, events, n, timeout ? &t : NULL, mask);
}

/* A signal leaves the rest of it, by this clock again. */
int nanosleep(const struct timespec *duration, struct timespec *rest)
{
    struct timespec t;
    int ret;

    init();
    t = real(duration);
    ret = next.nanosleep(&t, rest);
    if (ret < 0 && rest) {
        *rest = multiplied(rest, times, part, 0);
    }
    return ret;
}

int usleep(useconds_t us)
{
    struct timespec t;

    init();
    t = real_ns(us * NS_PER_US);
    return next.nanosleep(&t, NULL);
}
