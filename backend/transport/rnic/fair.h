/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Whose SENDs go next on a NIC that VMs share, and how fast each VM may send.  fair.c
 *
 * Threads: what a VM does is under its token, and VMs of several workers share a NIC.
 */
#ifndef PVRDMAD_RNIC_FAIR_H
#define PVRDMAD_RNIC_FAIR_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/deadlines.h"

struct rnic_fair_vm;
struct rnic_nic_usage;
struct vm;

/* A VM may be ahead of those that wait by so many of its bytes. */
#define RNIC_SLICE 262144u
/* ... and a channel has as many while others of its VM wait. */
#define RNIC_SENDER_BYTES 65536u
/* Who is to go next, and has not come by then, is not waited for; and who waits looks as
 * often, whoever wakes it. */
#define RNIC_FAIR_LATE_NS 1000000u
/* A period is as long as the port takes for so many times all that may be on its way, for
 * each VM that waits ... */
#define RNIC_FAIR_PERIOD 2u
/* ... but for so long at least; and that long if the port's speed is not known. */
#define RNIC_FAIR_LEAST_NS   250000u
#define RNIC_FAIR_UNKNOWN_NS 10000000u
/* A VM of which something was written off is slow for so many periods of one VM. */
#define RNIC_FAIR_SLOW 32u
/* Of a rate limit: what may go at once, at least, or of so much time. */
#define RNIC_BURST_BYTES 262144u
#define RNIC_BURST_NS    1000000u

/* What may be on its way on a NIC, at most: by default what its port sends in 100 us,
 * within bounds. */
#define RNIC_FAIR_BYTES     1048576u
#define RNIC_FAIR_MAX_BYTES 16777216u

/* A NIC's. */
struct rnic_fair {
    /* Bytes, and above them work requests: as many as may be on their way, and are. */
    _Atomic uint64_t most, used;
    _Atomic uint32_t n_waiting; /* in the heap */
    uint64_t least;             /* constant: ns, of a period */
    _Atomic unsigned period; /* where in rnic_fair_vm.flying things go; under the lock */
    /*
     * Protects what follows, what rnic_fair_vm says, and that a VM that is woken is
     * there. Held for some comparisons, and to wake one VM; nothing is waited for
     * meanwhile.
     */
    pthread_mutex_t lock;
    struct deadlines waiting; /* by their time, which is bytes by shares */
    uint64_t now;             /* where those are that wait */
    uint64_t aged;            /* ns, when this period began */
    uint32_t n_slow;          /* VMs */
    LIST_HEAD(, rnic_fair_vm) vms;
};

/* A limit of a VM's, over all NICs.  Under the token. */
struct rnic_rate {
    uint64_t rate;  /* bytes/s; 0: there is none */
    int64_t burst;  /* 10^-9 bytes */
    int64_t level;  /* likewise: what may go now; below 0: too much has gone */
    uint64_t since; /* ns, when that was so */
};

/* Somebody of a VM who sends: a channel.  Under the token. */
struct rnic_sender {
    bool queued;       /* it waits for its turn */
    bool charged;      /* what was taken for it, in its VM's time */
    uint32_t reserved; /* bytes that were, for a SEND that is not posted */
    uint32_t left;     /* bytes, before it is the next one's turn */
    TAILQ_ENTRY(rnic_sender) link;
};

/* What a VM has of a NIC. */
struct rnic_fair_vm {
    struct rnic_fair *fair; /* constant */
    struct rnic_rate *rate; /* constant */
    uint32_t shares;        /* constant */
    _Atomic bool told;      /* it may be its turn */
    _Atomic bool waits; /* it is in the heap; under the lock, read by its own thread */
    /* What of `used` is its own, of this period and the one before. */
    _Atomic uint64_t flying[2];
    _Atomic uint64_t slow_until; /* ns; under the lock */
    /* Under the token. */
    TAILQ_HEAD(, rnic_sender) queue;
    bool refused;    /* in this turn: there was no room, or it was others' turn */
    bool limited;    /* likewise: its rate is */
    bool freed;      /* likewise: something was */
    bool goes;       /* its last turn: nothing is refused */
    uint64_t looked; /* ns, last */
    uint64_t refund; /* bytes that were charged and not used */
    /* Under the lock. */
    struct vm *vm;        /* to be woken; NULL: it has gone */
    struct deadline time; /* its place in the heap; when: see there */
    uint64_t blocks;      /* ns, since when others wait for it, who could go; 0: none */
    LIST_ENTRY(rnic_fair_vm) link;
};

/* ---- a NIC: main thread ---- */

/* What may be on its way, at most, on a port of @mbit_s; 0: not known. */
void rnic_fair_init(struct rnic_fair *f, uint64_t bytes, uint32_t requests,
                    uint64_t mbit_s);
/* No VM has anything of it. */
void rnic_fair_fini(struct rnic_fair *f);
/* The bytes for a port of @mbit_s. */
uint64_t rnic_fair_default(uint64_t mbit_s);
/* The NIC goes: nobody waits for it any more. */
void rnic_fair_close(struct rnic_fair *f);
/* Any thread. */
void rnic_fair_usage(const struct rnic_fair *f, struct rnic_nic_usage *u);

/* ---- a VM: main thread ---- */

void rnic_rate_init(struct rnic_rate *r, uint64_t bytes_per_second);
/* @vm, with @shares, may send on @f.  NULL: it has gone already. */
void rnic_fair_enter(struct rnic_fair *f, struct rnic_fair_vm *v, struct vm *vm,
                     uint32_t shares, struct rnic_rate *rate);
/* It has gone: it is not woken any more, and what it has on its way does not count. */
void rnic_fair_gone(struct rnic_fair_vm *v);
/* It has no senders. */
void rnic_fair_leave(struct rnic_fair_vm *v);

/* ---- under the VM's token ---- */

/*
 * Is it worth a try?  False: @s waits for its turn, and so it does until it has taken
 * something or withdraws.
 */
bool rnic_fair_may(struct rnic_fair_vm *v, struct rnic_sender *s);
/* Take @bytes for a SEND of @s.  False: as above.  @now: ns, of this turn. */
bool rnic_fair_take(struct rnic_fair_vm *v, struct rnic_sender *s, uint32_t bytes,
                    uint64_t now);
/* It was posted with @len bytes; without having been taken, for one that may not wait. */
void rnic_fair_posted(struct rnic_fair_vm *v, struct rnic_sender *s, uint32_t len);
/* @n of these have completed. */
void rnic_fair_done(struct rnic_fair_vm *v, uint64_t bytes, uint32_t n);
/* @s does not want to send; what it has taken and not posted is given back. */
void rnic_fair_withdraw(struct rnic_fair_vm *v, struct rnic_sender *s);

/* Whose turn it is; NULL: nobody waits. */
static inline struct rnic_sender *rnic_fair_head(const struct rnic_fair_vm *v)
{
    return TAILQ_FIRST(&v->queue);
}

/* The VM goes, and has no other turn: what it takes from now on does not wait. */
void rnic_fair_last(struct rnic_fair_vm *v);
/* The VM looks: what was refused may be asked for again. */
void rnic_fair_look(struct rnic_fair_vm *v, uint64_t now);
/* Its turn ends: others may have what it leaves. */
void rnic_fair_settle(struct rnic_fair_vm *v);
/* ns, when to look though nobody wakes it; UINT64_MAX: never. */
uint64_t rnic_fair_due(const struct rnic_fair_vm *v);
/* Has somebody woken it?  Any thread. */
static inline bool rnic_fair_told(const struct rnic_fair_vm *v)
{
    return atomic_load_explicit(&v->told, memory_order_relaxed);
}

#endif /* PVRDMAD_RNIC_FAIR_H */
