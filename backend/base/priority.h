/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The scheduling class of worker threads, and how they find out that they lost
 * their processor.
 *
 * Nothing here knows the data path; any thread may use it for itself.
 */
#ifndef PVRDMAD_BASE_PRIORITY_H
#define PVRDMAD_BASE_PRIORITY_H

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum priority_class {
    PRIORITY_AUTO,   /* a short slice, where the kernel knows such */
    PRIORITY_NORMAL, /* as started */
    PRIORITY_NICE,
    PRIORITY_FIFO,
    PRIORITY_RR,
};

struct priority {
    enum priority_class class;
    int level; /* nice: -20..19; real-time: 1..99 */
};

/* "auto", "normal", "nice:N", "fifo:N" or "rr:N". */
bool priority_parse(const char *text, struct priority *p);

/* What priority_parse() reads. */
char *priority_text(const struct priority *p);

/*
 * Give it to the calling thread.  False, with errno set, if the process may not;
 * the thread then is as it was.
 */
bool priority_apply(const struct priority *p);

/* What thread @tid of this process has now: "normal, slice 0.1 ms", "fifo 1", ... */
char *priority_granted(pid_t tid);

/* What the kernel counted for a thread of this process since it began. */
struct cpu_usage {
    uint64_t ran_ns;
    uint64_t waited_ns; /* ready to run, and had no processor */
    uint64_t lost;      /* times that its processor was taken away */
};

bool cpu_usage_read(pid_t tid, struct cpu_usage *u);

/*
 * Did the calling thread lose its processor since the last call?  Costs a system
 * call, so it is asked only where time went that nothing else explains.
 */
struct cpu_loss {
    long switches; /* involuntary ones, at the last look */
};

bool cpu_lost(struct cpu_loss *l);

/*
 * Does the calling thread have to wait for processors?  Looked at every few ms: true
 * if in the last such time it waited for more than an eighth of what it ran.  @now:
 * ns.  Begin with a struct of zeros, end with cpu_share_end().
 */
struct cpu_share {
    int fd; /* of its schedstat, plus 1; 0: not opened, -1: there is none */
    bool shared;
    uint64_t looked, ran_ns, waited_ns;
};

bool cpu_shared(struct cpu_share *s, uint64_t now);
void cpu_share_end(struct cpu_share *s);

#endif /* PVRDMAD_BASE_PRIORITY_H */
