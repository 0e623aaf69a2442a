/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The requester's and the responder's state of a queue pair, and what passes
 * between them.
 *
 * Requester: the send WQE being carried and what the retry rules need.  Responder:
 * what the next incoming message may be and which receive WQE it fills.  All cursors
 * are positions in a message, so that a message can be carried in slices, stopped at
 * any slice border, and started again from its beginning.
 *
 * A message is described by a struct msg, whatever transport brings it; the
 * responder knows nothing of the requester but that.  What became of a step, on
 * either side, is a struct outcome.
 */
#ifndef PVRDMAD_QP_STATE_H
#define PVRDMAD_QP_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/queue.h>

#include "base/deadlines.h"
#include "pvrdma/abi.h"
#include "pvrdma/ext.h"

#define QP_MAX_SGE 16u /* == VERBS_MAX_SGE */

/* Numbers of packets and of queue pairs are 24 bits wide. */
#define PSN_MASK 0xffffffu
#define QPN_MASK 0xffffffu

struct qp;
struct conn;
struct pd;
struct ring_mem;
struct route;
struct srq;
struct transport_ops;
struct vm;
struct watched;

static inline bool gid_equal(const struct pvrdma_gid *a, const struct pvrdma_gid *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

/* One direction of a QP. */
struct wq {
    uint32_t first_page; /* of the WQEs in ring_mem */
    uint32_t nwqe;       /* power of two */
    uint32_t wqe_shift;  /* log2 of the WQE size in bytes */
    uint32_t max_sge;
    uint32_t cons; /* own consumer index, 0..2*nwqe-1 */
    uint32_t next; /* the WQE to fetch next; from cons on they are in progress */
    uint32_t prod; /* the guest's producer index, as last read and checked */
};

/*
 * A QP of this host, for somebody who waits for something of another QP: numbers, so
 * that nothing dangles when it goes.
 */
struct ticket {
    uint32_t vm;          /* struct vm's id */
    uint32_t qp;          /* handle */
    uint64_t incarnation; /* of its connection; 0: no ticket */
    /* It is the responder's own: its transport tells the peer, which is elsewhere. */
    bool far;
};

/*
 * Senders that wait for a receive WQE of a QP's own queue, or of an SRQ, at most; more
 * wait for their timers.
 */
#define RQ_WAITERS  8u
#define SRQ_WAITERS 64u

/* A queue of receive WQEs: a QP's own, or an SRQ's. */
struct rq {
    pthread_mutex_t *lock; /* protects all below; a private one borrows its QP's */
    struct vm *vm;
    struct pd *pd;   /* of the keys in its WQEs */
    struct srq *srq; /* whose it is; NULL: a QP's own */
    const struct ring_mem *mem;
    struct wq wq;
    /* The guest was told that receives need no notification (ext.h). */
    _Atomic bool no_notify;
    bool must_notify; /* its QP is in ERR: what is posted has to be flushed */
    _Atomic unsigned n_wait;
    unsigned max_wait;
    struct ticket *wait; /* [max_wait]; an SRQ's in the order they came */
};

/* Where a connection goes, from the requester's side. */
struct conn_path {
    struct pvrdma_gid sgid, dgid;
    uint32_t sqpn, dqpn;
};

/*
 * A message, as it arrives at a responder.  Sequence numbers count the messages of
 * one connection from 0; a connection is told from an earlier one of the same QPs by
 * its incarnation, a random number made at RTR.
 */
struct msg {
    uint64_t seq;
    uint64_t incarnation;         /* of the requester's connection */
    const struct conn_path *path; /* of the requester */
    uint32_t psn, npsn;           /* first packet sequence number, how many */
    uint32_t opcode;              /* enum pvrdma_wr_opcode */
    uint32_t flags;               /* PVRDMA_SEND_* */
    uint32_t imm;                 /* BE; or the key to invalidate */
    uint32_t rkey;
    uint64_t addr;
    uint64_t length; /* bytes in all */
    uint64_t compare_add, swap;
    struct ticket ticket; /* whom to wake when a receive is posted */
    bool unreliable;      /* of a connection without acknowledgements (UC) */
};

/*
 * What the headers of a datagram say besides its struct msg: the addresses of both
 * sides, path, and how it is to travel.
 */
struct datagram {
    struct conn_path path;
    uint32_t qkey;
    uint32_t flow_label; /* 20 bits */
    uint8_t traffic_class, hop_limit;
    uint64_t asked; /* ns: since when it waits for an answer who has dgid; 0: not */
    bool usable;    /* the address handle is one of this QP's, from a GID of its VM */
    bool silent;    /* ... which waits for its address, or has no link: it goes nowhere */
};

enum outcome_what {
    OUT_DONE,      /* the message is complete and acknowledged */
    OUT_MORE,      /* a slice is carried, the message goes on */
    OUT_PENDING,   /* it is on its way, the answer comes later */
    OUT_STALLED,   /* no room on the way: requester_go() says when there is */
    OUT_DUPLICATE, /* it was executed before: acknowledge it again */
    OUT_EARLY,     /* one before it has not come: not even answered */
    OUT_RNR,       /* no receive WQE; status: the responder's timer code */
    OUT_SILENT,    /* no answer: no peer, or it ignores us */
    OUT_ASKED,     /* of a datagram: it is not known yet who has its address */
    OUT_DROPPED,   /* UC: not executed; the responder has counted it */
    OUT_HELD,      /* the peer stands still: wait without counting */
    OUT_GRACE,     /* a key is being taken away, other workers may use it still */
    OUT_FAIL,      /* status: what the requester completes with */
};

/*
 * What became of a message, or of one step of it.  Eight bytes, zero for what happens
 * most: it is passed by value with every message.
 */
struct outcome {
    uint8_t what;        /* enum outcome_what */
    uint8_t status;      /* enum pvrdma_wc_status, or an RNR timer code */
    uint8_t recv_status; /* of the receive WQE in use; SUCCESS: it is left alone */
    uint8_t event;       /* async event of the responder; 0: none (never CQ_ERR) */
    uint8_t remote;      /* OUT_FAIL: the responder's QP fails as well */
    uint8_t comm_est;    /* first message in RTR: tell the responder's guest */
    uint8_t unused[2];
};

#define OUTCOME(w) ((struct outcome){.what = (w)})

/* A position in a scatter/gather list. */
struct sg_cursor {
    uint32_t sge;    /* index */
    uint32_t offset; /* in that SGE */
};

/*
 * What a message was admitted under.  It stands while resp.epoch is @epoch and
 * resp.admissions is @number: then no other way has brought the same message since.
 */
struct admission {
    uint64_t epoch, number;
};

/* The send WQE being carried: our copy, checked once. */
struct send_op {
    struct msg m;
    bool active;
    bool admitted;  /* the responder took the message */
    bool begun;     /* it has heard of it, whichever way, and maybe said: no receive */
    bool repeated;  /* a READ that it had executed before */
    bool is_inline; /* the message is in data[], not in memory */
    struct admission admission; /* by the responder */
    uint32_t nsge;
    uint64_t wr_id;
    uint64_t done; /* bytes carried */
    struct sg_cursor cur;
    struct pvrdma_sge sge[QP_MAX_SGE];
    union {
        uint8_t data[PVRDMA_EXT_MAX_INLINE];
        struct pvrdma_fast_reg reg; /* of a FAST_REG */
        struct pvrdma_bind_mw bind; /* of a BIND_MW */
    };
    /* Of what waits for grace periods, set by requester.c for these alone: */
    uint64_t period;    /* of one that has taken a key; 0: not yet */
    unsigned looks;     /* whether it is over */
    struct datagram dg; /* of a QP that is not connected */
};

static inline bool msg_is_send(const struct msg *m)
{
    return m->opcode == PVRDMA_WR_SEND || m->opcode == PVRDMA_WR_SEND_WITH_IMM ||
           m->opcode == PVRDMA_WR_SEND_WITH_INV;
}

/* The receiver's key m->imm dies with it. */
static inline bool msg_invalidates(const struct msg *m)
{
    return m->opcode == PVRDMA_WR_SEND_WITH_INV;
}

/* LOCAL_INV, FAST_REG, BIND_MW: no message, nothing goes to the peer. */
static inline bool msg_is_local(const struct msg *m)
{
    return m->opcode >= PVRDMA_WR_LOCAL_INV;
}

static inline bool msg_is_atomic(const struct msg *m)
{
    return m->opcode == PVRDMA_WR_ATOMIC_CMP_AND_SWP ||
           m->opcode == PVRDMA_WR_ATOMIC_FETCH_AND_ADD;
}

/* READ and atomics: the requester's memory is stored to. */
static inline bool msg_returns(const struct msg *m)
{
    return m->opcode == PVRDMA_WR_RDMA_READ || msg_is_atomic(m);
}

/*
 * Messages of a QP that are started and not complete, at most; a power of two.  For
 * transports that answer later: `copy` has one message in progress and none here.
 */
#define QP_WINDOW 64u

enum sent_state {
    SENT_AGAIN,  /* to be started again */
    SENT_OUT,    /* on its way */
    SENT_DONE,   /* acknowledged, but one before it is not */
    SENT_FAILED, /* likewise, with an error */
};

/*
 * A message in flight: what its completion needs.  Its WQE is in the guest's ring
 * still, to be fetched and checked anew should it have to be sent again.
 */
struct sent {
    uint64_t wr_id;
    uint32_t npsn;
    uint32_t length; /* bytes */
    uint8_t opcode;  /* enum pvrdma_wc_opcode */
    uint8_t state;   /* enum sent_state */
    uint8_t status;  /* enum pvrdma_wc_status of a failed one */
    bool signaled;
    bool returns; /* READ or atomic */
};

/* What a QP type can do (InfiniBand spec table 38 and 10.2.2.3). */
struct service {
    const char *name;
    bool connected;      /* messages go to the QP of its path */
    bool acknowledged;   /* and come back to the requester: done, or why not */
    uint32_t ops;        /* bit per enum pvrdma_wr_opcode */
    uint32_t kernel_ops; /* besides, for QPs of the guest kernel */
    uint32_t ext_ops;    /* besides, for extended QPs */
    uint32_t send_error; /* state after a failed send request */
    uint32_t max_length; /* of a message, bytes */
};

const struct service *qp_service(enum pvrdma_qp_type type);

/* Async event LAST_WQE_REACHED of a QP with an SRQ, once for each time in ERR. */
enum last_wqe {
    LAST_WQE_NONE, /* not in ERR, or no SRQ */
    LAST_WQE_DUE,  /* once what was claimed is flushed */
    LAST_WQE_TOLD,
};

enum qp_wait {
    QP_WAIT_NONE,
    QP_WAIT_RNR,     /* peer's RNR timer */
    QP_WAIT_TIMEOUT, /* transport timer: peer unreachable */
    QP_WAIT_HOLD,    /* peer is paused: neither retry nor timeout counts */
    QP_WAIT_GRACE,   /* a key that was taken away may be in use still */
};

/* To see whether its count is its peer's, and to have that see, too (transport.h). */
#define QP_COMPARE      1u
#define QP_COMPARE_BOTH 2u

struct qp_requester {
    struct send_op op;
    uint32_t slice; /* bytes that are moved at once at most, see requester.c */
    uint32_t psn;   /* of the next message, 24 bits */
    uint64_t seq;   /* of the next message */
    /* Completed, and carried, since the QP was created; written with the token alone. */
    _Atomic uint64_t tx_msgs, tx_bytes;
    /*
     * The window, by sequence number modulo QP_WINDOW: in_flight messages before seq
     * wait for their answers, the first of them at sq.cons; then `replay` messages
     * from seq on were started before, too.  NULL: the transport needs none.
     */
    struct sent *sent;
    uint16_t in_flight, replay;
    uint16_t returning; /* of those in flight and unanswered: READs and atomics */
    bool stopped;       /* one in flight has failed: nothing is started any more */
    uint64_t retry_seq; /* the message that the next three are about */
    uint64_t rnr_until; /* ns: an RNR answer before then costs no retry */
    uint8_t retries_left, rnr_left;
    enum qp_wait wait;
    struct deadline timer; /* in the VM's timers while it waits */
    bool queued;           /* in the VM's run queue */
    TAILQ_ENTRY(qp) run;
    TAILQ_ENTRY(qp) held; /* in the VM's list of QP_WAIT_HOLD, the oldest first */
    uint32_t held_round;  /* the list's, when it began to wait */
    uint8_t held_looks;   /* in vain, at message held_seq, since anything changed */
    uint64_t held_seq;
    struct watched *watched; /* its place, see datapath/sq_polling.c; token */
    bool sqd_notified;
    _Atomic bool wake;       /* the RNR wait is over: look again now */
    _Atomic uint8_t compare; /* any worker's: QP_COMPARE, at the next look; 0: not */

    /* The connection, since RTR; set under token and qp->lock. */
    /* We hold path.sgid; the main thread looks without the token. */
    _Atomic bool bound;
    _Atomic uint64_t incarnation; /* random; 0: none */
    struct conn_path path;        /* sgid, dgid, QPNs */

    const struct transport_ops *transport;
    struct conn *conn; /* of a transport with sockets, see there; the token */
    /* Where the peer is (directory/), counted; set and cleared with the token. */
    struct route *route;
    /* Found by that route when its generation was peer_gen; the VM's worker. */
    struct qp *peer;
    uint64_t peer_gen;
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

/* The result of an atomic, for a requester that asks again. */
struct atomic_result {
    uint64_t seq;
    uint64_t old;
};

struct qp_responder {
    struct recv_op recv;
    bool carrying; /* a slice of a SEND or WRITE is being stored, without the lock */
    enum last_wqe last_wqe;
    uint32_t psn; /* expected, 24 bits */
    uint64_t seq; /* expected: so many messages were taken */
    /* Of all that came since the QP was created; READs and atomics are not counted. */
    _Atomic uint64_t rx_msgs, rx_bytes;
    uint64_t incarnation; /* of the requester's connection; 0: none has come yet */
    uint64_t epoch;       /* changes when an admitted message becomes void; unique */
    uint64_t admissions;  /* how many there were; see struct admission */
    bool comm_est;        /* first packet in RTR was reported */
    /* The last ones; of a requester's READs and atomics 16 are unanswered at most. */
    struct atomic_result atomic[16]; /* VERBS_MAX_RD_ATOM */
    uint64_t n_atomic;               /* how many there were; the next goes to % 16 */
    /*
     * The message that is expected has invalidated inv_key, and is finished when that
     * grace period is over; 0: it has not.
     */
    uint64_t inv_period;
    uint32_t inv_key;
    /*
     * The queue pair failed for message failed_seq of this connection, whose requester
     * may not have heard of it: enum pvrdma_wc_status, 0: it did not.  The main thread
     * looks at it without the lock.
     */
    _Atomic uint8_t failed_status;
    uint64_t failed_seq;
};

/* What seldom happens to a QP, since it was created; of any worker. */
struct qp_counters {
    _Atomic uint64_t errors;    /* WRs that failed, and messages that it failed for */
    _Atomic uint64_t rnr_waits; /* requester: no receive at the peer */
    _Atomic uint64_t retries;   /* requester: no answer */
    _Atomic uint64_t rnr_naks;  /* responder: it had no receive */
    _Atomic uint64_t duplicates;
    _Atomic uint64_t dropped; /* of UC and datagrams: came, and could not be taken */
};

#endif /* PVRDMAD_QP_STATE_H */
