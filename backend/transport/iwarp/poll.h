/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What transport "tcp" has of a VM and of a worker, and what a VM's turns are asked for;
 * see poll.c. */
#ifndef PVRDMAD_IWARP_POLL_H
#define PVRDMAD_IWARP_POLL_H

#include "transport/iwarp/conn.h"
#include "transport/iwarp/share.h"

/* What a VM has of the ports towards one peer, see bind.c. */
struct port_share {
    struct share share; /* first */
    LIST_ENTRY(port_share) link;
};

/* A VM that has or had such connections. */
struct tcp_vm {
    struct vm_net net; /* first */
    struct vm *vm;
    struct source source; /* of epfd; wakes the worker */
    int epfd;             /* of the streams' sockets */
    struct conn_list conns;
    struct conn_list expecting; /* those whose peers are to do something */
    unsigned n_expecting, sweep_left;
    struct conn_list work;   /* something to send, to look at or to close */
    struct conn_list unread; /* in their sockets there may be something, or an end */
    uint64_t sweep;          /* ns, when silent peers are looked for; UINT64_MAX: not */
    /* What it has of channels; NULL: nothing.  Made once; any thread looks. */
    _Atomic(struct rnic_vm *) rnic;
    struct flow_list flows;   /* on channels; see flow.c */
    struct flow_list leaving; /* ... of queue pairs that have gone, the oldest first */
    unsigned n_leaving;
    struct flow_queue dropped;  /* of them: to be freed; under flow.c's news_lock */
    _Atomic bool flows_dropped; /* there are some */
    uint64_t now;               /* ns, of the turn */
    /* ns: when the first of @n_told ACKs, which go without messages, was staged in this
     * turn; what one takes. */
    uint64_t told_at, ack_ns;
    unsigned n_told;
    /* The main thread's, see bind.c. */
    struct share streams;
    LIST_HEAD(, port_share) ports;
    bool is_full; /* that it has its share was said */
    /* The main thread's, see linger.c. */
    unsigned n_lingering;
    /* The main thread's, see deferred.c. */
    struct conn_list deferred;
    bool is_deferring;   /* in deferred.c's list */
    bool asked;          /* for the token, which is not had */
    uint64_t rest_until; /* ns; until then it is the worker's */
    TAILQ_ENTRY(tcp_vm) deferred_link;
};

/* What a worker has one of. */
struct tcp_scratch {
    struct conn *out; /* whose frames are in out_buf; NULL: nobody's */
    size_t out_len;
    uint8_t out_buf[2 * FPDU_MAX_SIZE + 4096];
    uint8_t in_buf[128u << 10];
};

static inline struct rnic_vm *tcp_vm_rnic(const struct tcp_vm *net)
{
    return atomic_load_explicit(&net->rnic, memory_order_acquire);
}

struct tcp_scratch *tcp_scratch(void);
/* What the transport keeps for @vm, made when it is first asked for; NULL: it cannot. */
struct tcp_vm *tcp_vm_get(struct vm *vm);
/* It has something for the turn's end. */
void conn_work(struct conn *c);
/* It has nothing for it any more. */
void conn_no_work(struct conn *c);
/* The peer is to do something: somebody has to see if it does. */
void conn_expect(struct conn *c);
void conn_expect_nothing(struct conn *c);
/* How long a peer may take for an answer, before that is a try; ns, 0: for ever. */
uint64_t conn_patience(const struct qp *qp);

#endif /* PVRDMAD_IWARP_POLL_H */
