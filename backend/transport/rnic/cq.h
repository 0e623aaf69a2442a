/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A completion queue of the host NIC, for some channels of one VM: what is polled is
 * given to the channel that posted it.
 *
 * A completion names its channel by a place in a table and that place's generation, and
 * within the channel by a number, as they come in order.  One that fits nothing was seen
 * before, or belongs to a channel that has gone: it is counted and dropped.
 *
 * Threads: under the VM's token, but for what says otherwise.
 */
#ifndef PVRDMAD_RNIC_CQ_H
#define PVRDMAD_RNIC_CQ_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/deadlines.h"
#include "transport/rnic/verbs.h"

struct rnic_channel;
struct rnic_fair_vm;
TAILQ_HEAD(rnic_channel_list, rnic_channel);

/* Channels of one completion queue, at most, and the CQEs that each may need. */
#define RNIC_CQ_CHANNELS    256u
#define RNIC_CQ_PER_CHANNEL 256u
/* Polled at a time. */
#define RNIC_CQ_BATCH 16u
/* What a completion costs a look, beside its bytes. */
#define RNIC_CQ_COST 512u
/* A look that leaves something may be so late for what has its time. */
#define RNIC_CQ_LATE_NS 100000000u
/* Nobody has looked, though there was reason to: silence is not the peer's. */
#define RNIC_CQ_AWAY_NS 250000000u

struct rnic_cq {
    struct ibv_cq *cq;
    struct ibv_comp_channel *events; /* whose fd is in the VM's epoll set */
    uint64_t now;                    /* ns, at the last look */
    uint64_t ripe;                   /* ns, up to which deadlines are over */
    struct ibv_wc wc[RNIC_CQ_BATCH]; /* polled, and not taken yet: */
    unsigned wc_first, wc_next;
    bool taking; /* nothing is posted: receives are not posted again yet */
    bool idle;   /* nothing was there: nobody needs to look before a deadline */
    struct rnic_channel *channel[RNIC_CQ_CHANNELS];
    uint32_t generation[RNIC_CQ_CHANNELS];
    unsigned next;                    /* where a free place is looked for first */
    atomic_bool dead;                 /* it cannot be polled: the NIC has gone */
    struct rnic_channel_list touched; /* those with something for the turn's end */
    struct deadlines deadlines;       /* of channels that wait for something */
    struct rnic_fair_vm *fair;        /* of the VM, before channels; NULL: no bound */
    uint64_t strays;                  /* statistics: completions that fit nothing */
};

/* False: no memory.  Both are made and destroyed by the caller, on a control thread. */
bool rnic_cq_init(struct rnic_cq *cq, struct ibv_cq *ibv,
                  struct ibv_comp_channel *events);
/* It has no channels. */
void rnic_cq_fini(struct rnic_cq *cq);

/*
 * Take what has come, about @most bytes of it, a completion counting as RNIC_CQ_COST in
 * addition; and look whose time has come.  True: there may be more.  @now:
 * CLOCK_MONOTONIC, ns.
 */
bool rnic_cq_look(struct rnic_cq *cq, uint64_t now, size_t most);
/* Is there anything for the next look to take?  Nothing is taken. */
bool rnic_cq_peek(struct rnic_cq *cq);
/* What was staged, or is to be told, goes out: at a turn's end. */
void rnic_cq_flush(struct rnic_cq *cq);
/* When to look though nothing comes: ns; UINT64_MAX: never. */
uint64_t rnic_cq_due(const struct rnic_cq *cq);
/*
 * Before the VM is parked: have @events told of what comes from now on.  False: something
 * came before, look again.
 */
bool rnic_cq_arm(struct rnic_cq *cq, uint64_t now);
/* The fd of @events is ready, or may be. */
void rnic_cq_woken(struct rnic_cq *cq);

/* Nothing comes of it any more, and it takes no channel.  Any thread. */
static inline bool rnic_cq_is_dead(const struct rnic_cq *cq)
{
    return cq->dead;
}

/* ---- for channels ---- */

/* A place for @ch; false: there is none, or it is dead. */
bool rnic_cq_enter(struct rnic_cq *cq, struct rnic_channel *ch);
void rnic_cq_leave(struct rnic_cq *cq, struct rnic_channel *ch);
/* What to post a work request with. */
uint64_t rnic_cq_wr_id(const struct rnic_channel *ch, bool is_send, uint32_t seq);

#endif /* PVRDMAD_RNIC_CQ_H */
