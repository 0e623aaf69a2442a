/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the data path keeps in each QP: requester and responder state.
 * Included by verbs/verbs.h only.
 *
 * Everything the guest can observe is here as plain values (cursor, sequence
 * numbers, counters), so that it can be written down and restored.
 */
#ifndef PVRDMAD_QP_STATE_H
#define PVRDMAD_QP_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "pvrdma/abi.h"
#include "pvrdma/ext.h"

#define QP_MAX_SGE 16u /* == VERBS_MAX_SGE */

struct qp;
struct transport_ops;
struct watched;

/* A position in a scatter/gather list. */
struct sg_cursor {
    uint32_t sge;    /* index */
    uint32_t offset; /* in that SGE */
};

/* The send WQE being carried: our copy, checked once. */
struct send_op {
    bool active;
    bool admitted;   /* the responder took the message */
    uint32_t epoch;  /* of the responder that admitted it */
    uint32_t opcode; /* enum pvrdma_wr_opcode */
    uint32_t flags;  /* PVRDMA_SEND_* */
    uint32_t imm;    /* BE */
    uint32_t rkey;
    uint32_t nsge;
    uint64_t wr_id;
    uint64_t remote_addr;
    uint64_t compare_add, swap;
    uint64_t length; /* bytes in all */
    uint64_t done;   /* bytes carried */
    struct sg_cursor cur;
    struct pvrdma_sge sge[QP_MAX_SGE];
    bool is_inline; /* the message is in data[], not in memory */
    uint8_t data[PVRDMA_EXT_MAX_INLINE];
};

static inline bool op_is_send(const struct send_op *op)
{
    return op->opcode == PVRDMA_WR_SEND || op->opcode == PVRDMA_WR_SEND_WITH_IMM;
}

static inline bool op_is_atomic(const struct send_op *op)
{
    return op->opcode == PVRDMA_WR_ATOMIC_CMP_AND_SWP ||
           op->opcode == PVRDMA_WR_ATOMIC_FETCH_AND_ADD;
}

enum qp_wait {
    QP_WAIT_NONE,
    QP_WAIT_RNR,     /* peer's RNR timer */
    QP_WAIT_TIMEOUT, /* transport timer: peer unreachable */
    QP_WAIT_HOLD,    /* peer is paused: neither retry nor timeout counts */
};

struct qp_requester {
    struct send_op op;
    uint32_t slice; /* bytes that are moved at once at most, see requester.c */
    uint32_t psn;   /* of the next message, 24 bits */
    uint64_t msn;   /* messages completed */
    uint8_t retries_left, rnr_left;
    enum qp_wait wait;
    uint64_t wait_until; /* ns, CLOCK_MONOTONIC */
    uint32_t heap_pos;   /* in the VM's timer heap; 0 = not there */
    bool queued;         /* in the VM's run queue */
    TAILQ_ENTRY(qp) run;
    struct watched *watched; /* its place, see watch.c; token */
    bool sqd_notified;
    _Atomic bool wake;      /* the RNR wait is over: look again now */
    bool sgid_valid;        /* set under token and qp->lock, like sgid */
    struct pvrdma_gid sgid; /* our address since RTR */

    const struct transport_ops *transport;
    _Atomic(struct qp *) peer; /* copy transport; see copy.c */
    LIST_ENTRY(qp) ref;        /* in peer's resp.refs; directory_lock */
};

/* The receive WQE that an incoming message is filling. */
struct recv_op {
    bool active;
    uint64_t wr_id;
    uint32_t nsge;
    uint64_t capacity; /* bytes its SGEs hold */
    struct sg_cursor cur;
    struct pvrdma_sge sge[QP_MAX_SGE];
};

struct qp_responder {
    struct recv_op recv;
    bool carrying;  /* a slice is being copied to recv, without the lock */
    uint32_t psn;   /* expected, 24 bits */
    uint64_t msn;   /* messages taken */
    uint32_t epoch; /* changes when an admitted message becomes void */
    bool comm_est;  /* first packet in RTR was reported */
    /* The guest was told that receives need no notification (ext.h). */
    _Atomic bool no_notify;
    /* The requester that waits for a receive WQE; it is in refs. */
    _Atomic(struct qp *) rnr_waiter;
    LIST_HEAD(, qp) refs; /* QPs whose req.peer is this one; directory_lock */
};

#endif /* PVRDMAD_QP_STATE_H */
