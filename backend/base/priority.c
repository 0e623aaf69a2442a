/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Scheduling classes by name, and the kernel's account of a thread.
 *
 * Threads: priority_apply() and cpu_lost() are for the calling thread, all else
 * is for any.
 */
#include "priority.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * A thread with a shorter slice than the one that runs may take its processor
 * when it is woken, although that one's slice is not over (Linux 6.12 and newer;
 * others ignore it).  That is the least that can be asked for.
 */
#define SHORT_SLICE_NS 100000u

/* Between two looks at the account of the calling thread, each about 1 us. */
#define LOOK_NS 5000000u
/* A wait shorter than this in that time is nobody's loss. */
#define WAITED_NS 50000u

/* struct sched_attr of linux/sched/types.h; newer C libraries have it too. */
struct attr {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

static const struct {
    const char *name;
    int min, max;
} classes[] = {
    [PRIORITY_AUTO] = {"auto", 0, 0},    [PRIORITY_NORMAL] = {"normal", 0, 0},
    [PRIORITY_NICE] = {"nice", -20, 19}, [PRIORITY_FIFO] = {"fifo", 1, 99},
    [PRIORITY_RR] = {"rr", 1, 99},
};

bool priority_parse(const char *text, struct priority *p)
{
    for (unsigned c = 0; c < G_N_ELEMENTS(classes); c++) {
        size_t n = strlen(classes[c].name);
        gint64 level = 0;

        if (strncmp(text, classes[c].name, n) != 0) {
            continue;
        }
        if (classes[c].max == 0 ? text[n] != '\0'
                                : text[n] != ':' || !g_ascii_string_to_signed(
                                                        text + n + 1, 10, classes[c].min,
                                                        classes[c].max, &level, NULL)) {
            return false;
        }
        p->class = c;
        p->level = level;
        return true;
    }
    return false;
}

char *priority_text(const struct priority *p)
{
    return classes[p->class].max == 0
               ? g_strdup(classes[p->class].name)
               : g_strdup_printf("%s:%d", classes[p->class].name, p->level);
}

static bool set_attr(struct attr *a)
{
    a->size = sizeof(*a);
    return syscall(SYS_sched_setattr, 0, a, 0) == 0;
}

bool priority_apply(const struct priority *p)
{
    struct attr a = {.policy = SCHED_OTHER};

    switch (p->class) {
    case PRIORITY_NORMAL:
        return true;
    case PRIORITY_AUTO:
        errno = 0;
        a.nice = getpriority(PRIO_PROCESS, 0);
        a.runtime = SHORT_SLICE_NS;
        return sched_getscheduler(0) != SCHED_OTHER || set_attr(&a);
    case PRIORITY_NICE:
        a.nice = p->level;
        a.runtime = SHORT_SLICE_NS;
        return set_attr(&a);
    case PRIORITY_FIFO:
    case PRIORITY_RR:
        a.policy = p->class == PRIORITY_FIFO ? SCHED_FIFO : SCHED_RR;
        a.priority = p->level;
        return set_attr(&a);
    }
    errno = EINVAL;
    return false;
}

char *priority_granted(pid_t tid)
{
    struct attr a = {0};

    if (syscall(SYS_sched_getattr, tid, &a, sizeof(a), 0) < 0) {
        return g_strdup("unknown");
    }
    switch (a.policy) {
    case SCHED_FIFO:
        return g_strdup_printf("fifo %u", a.priority);
    case SCHED_RR:
        return g_strdup_printf("rr %u", a.priority);
    case SCHED_OTHER:
        /* An old kernel says 0, one that knows slices the one in force. */
        return a.runtime
                   ? g_strdup_printf("nice %d, slice %.1f ms", a.nice, a.runtime / 1e6)
                   : g_strdup_printf("nice %d", a.nice);
    default:
        return g_strdup_printf("policy %u", a.policy);
    }
}

bool cpu_usage_read(pid_t tid, struct cpu_usage *u)
{
    g_autofree char *sched = g_strdup_printf("/proc/self/task/%d/schedstat", tid);
    g_autofree char *status = g_strdup_printf("/proc/self/task/%d/status", tid);
    g_autofree char *text = NULL;
    unsigned long long ran = 0, waited = 0, lost = 0;
    const char *line;

    memset(u, 0, sizeof(*u));
    /* Not every kernel has the first. */
    if (g_file_get_contents(sched, &text, NULL, NULL)) {
        sscanf(text, "%llu %llu", &ran, &waited);
        g_clear_pointer(&text, g_free);
    }
    if (!g_file_get_contents(status, &text, NULL, NULL)) {
        return false;
    }
    line = strstr(text, "\nnonvoluntary_ctxt_switches:");
    if (line) {
        sscanf(strchr(line, ':') + 1, "%llu", &lost);
    }
    *u = (struct cpu_usage){ran, waited, lost};
    return true;
}

bool cpu_lost(struct cpu_loss *l)
{
    struct rusage ru;
    bool lost;

    if (getrusage(RUSAGE_THREAD, &ru) < 0) {
        return false;
    }
    lost = ru.ru_nivcsw != l->switches;
    l->switches = ru.ru_nivcsw;
    return lost;
}

bool cpu_shared(struct cpu_share *s, uint64_t now)
{
    unsigned long long ran, waited;
    char text[80];
    ssize_t n;

    if (now - s->looked < LOOK_NS || s->fd < 0) {
        return s->shared;
    }
    s->looked = now;
    if (!s->fd) {
        s->fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC) + 1;
    }
    n = s->fd > 0 ? pread(s->fd - 1, text, sizeof(text) - 1, 0) : -1;
    text[MAX(n, 0)] = '\0';
    if (n <= 0 || sscanf(text, "%llu %llu", &ran, &waited) != 2) {
        cpu_share_end(s);
        s->fd = -1;
        return false;
    }
    s->shared = waited - s->waited_ns > MAX((ran - s->ran_ns) / 8, WAITED_NS);
    s->ran_ns = ran;
    s->waited_ns = waited;
    return s->shared;
}

void cpu_share_end(struct cpu_share *s)
{
    if (s->fd > 0) {
        close(s->fd - 1);
    }
    *s = (struct cpu_share){0};
}
