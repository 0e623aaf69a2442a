/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The inside of transport "tcp": a queue pair's connection.  conn.c says how it hangs
 * together.
 */
#ifndef PVRDMAD_IWARP_CONN_H
#define PVRDMAD_IWARP_CONN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "datapath/engine.h"
#include "transport/iwarp/stream.h"
#include "transport/iwarp/wire/private_data.h"
#include "transport/link/peer.h"

/* By which a connection that is made is known; see bind.c. */
struct setup_token {
    uint64_t token[2];
    uint64_t until; /* ns; 0: there is none */
    struct conn *conn;
};

/* Where a peer's address is: a VM of this host or another host, and who that is there. */
struct location {
    const void *holder; /* struct vm or struct peer, an identity only; NULL: unknown */
    struct claim claim;
};

/*
 * A connection's phases.  conn_phase_set() has the same table.
 *
 *   phase           next
 *   CONN_DOWN       CONN_TRYING: start() asks for a stream
 *                   CONN_UP: there is one, which the peer has asked for
 *   CONN_TRYING     CONN_UP: there is one
 *                   CONN_DOWN: not within try_until, refused, or none is wanted now
 *   CONN_UP         CONN_ENDING: its stream breaks, or closes
 *                   CONN_DOWN: ... and is closed, for another one that begins
 *   CONN_ENDING     CONN_DOWN: it is closed
 *                   CONN_REPLACING: start() asks for another one
 *   CONN_REPLACING  CONN_TRYING, CONN_ENDING: as CONN_ENDING and CONN_TRYING to CONN_DOWN
 *
 * @try_failed excludes none of them: what a stream's end says is told by start() later,
 * be another one asked for or not.
 */
enum conn_phase {
    CONN_DOWN,      /* no stream, and none is asked for */
    CONN_TRYING,    /* no stream; one was asked for */
    CONN_UP,        /* a stream with stream_is_up() */
    CONN_ENDING,    /* another stream, none behind it is asked for */
    CONN_REPLACING, /* ... one is */
};

/* What a connected queue pair has of this room, from RTR to RESET. */
struct conn {
    /* Under the VM's token; first what each message touches. */
    struct qp *qp;
    struct stream *s; /* NULL: there is none */
    struct tcp_vm *net;
    struct vm *vm;
    TAILQ_ENTRY(conn) work;   /* in net->work */
    TAILQ_ENTRY(conn) unread; /* in net->unread */
    uint64_t progress;        /* ns, when the peer answered or took something last */
    bool has_work;
    bool is_unread;
    _Atomic enum conn_phase phase; /* by conn_phase_set(); any thread looks */
    bool stalled;                  /* requester_go() is owed */
    bool ready_owed;               /* CTL_READY is, by the next stream */
    bool expecting;                /* in net->expecting: the sweep looks at it */
    bool no_direct; /* nothing is received straight into the guest's memory */
    /* Constant. */
    bool initiator; /* of the two, we make the TCP connection */
    bool is_self;   /* a queue pair that is its own peer */
    bool reliable;  /* RC: what it sends is answered; else UC */

    /* The peer; set when the first stream comes. */
    uint64_t peer_incarnation;
    uint64_t peer_seq; /* where a connection that nothing came of begins */
    uint32_t peer_psn;
    uint8_t peer_mtu;

    struct ticket ticket; /* constant */
    TAILQ_ENTRY(conn) expect;
    TAILQ_ENTRY(conn) link; /* in net->conns */

    /* To get a stream; under the token. */
    bool try_failed;       /* the last try was, and start() has not said so */
    unsigned failed_tries; /* UC: tries for the message that waits */
    uint64_t try_until;    /* ns; in CONN_TRYING and CONN_REPLACING */
    uint64_t next_ask;     /* ns; not before */
    /* ns, since when streams have brought nothing, or when that was a try; 0: they do. */
    uint64_t useless_since;
    uint64_t useless_at;   /* ns, the last one's end */
    uint64_t useless_wait; /* ns from there until another one is asked for */

    /* The peer's queue pair has failed, for our message; under the token. */
    uint8_t peer_failed_status;
    uint64_t peer_failed_seq; /* it has executed all before that */

    /* Constant. */
    const char *network;        /* interned */
    struct route *route;        /* its queue pair's */
    struct conn_path path;      /* ours */
    struct conn_path peer_path; /* the peer's: the same, turned round */
    uint64_t incarnation;

    /* The main thread's, see bind.c. */
    bool asks;               /* in bind.c's list; under its lock */
    _Atomic bool is_joining; /* a channel, or an answer by one, is waited for; likewise */
    STAILQ_ENTRY(conn) ask_link;
    struct setup_token asked, awaited;
    uint64_t ask_again; /* ns: not before, what was asked is under way */
    uint64_t up_at;     /* ns; of the initiator's stream: a BIND may have crossed it */
    struct rnic_pair *joins; /* whose channel is being made: that is waited for */
    TAILQ_ENTRY(conn) join_link;
    struct setup *setup;   /* under way, or NULL */
    struct setup *arrived; /* the peer's: its Request is to be answered */
    struct {
        uint8_t status;
        uint64_t seq;
    } heard;                   /* for DEFERRED_FAILURE */
    _Atomic unsigned deferred; /* of enum deferred_work; any thread looks if it is 0 */
    TAILQ_ENTRY(conn) deferred_link; /* in net->deferred, if any */
    struct peer *peer; /* whom the last stream led to; NULL: nobody, or this daemon */
    bool has_share;    /* it counts in net->streams */
    struct port_share *ports; /* ... and there, if it makes the TCP connection */
    struct location location; /* where all of the above belongs to, and the stream */
    TAILQ_ENTRY(conn) all;
    TAILQ_ENTRY(conn) same; /* those with the same route */
};

TAILQ_HEAD(conn_list, conn);

extern bool tcp_forced; /* for peers on this host, too */

/* Was a stream asked for that is not there?  Any thread. */
static inline bool conn_is_trying(const struct conn *c)
{
    enum conn_phase phase = atomic_load(&c->phase);

    return phase == CONN_TRYING || phase == CONN_REPLACING;
}

/* It is not any more: another one may be asked for. */
void conn_try_over(struct conn *c);
/* The only one that changes @c->s->phase. */
void stream_phase_set(struct conn *c, enum stream_phase to);
/* What it had to wait for first is over: from now on it has all of its time. */
void conn_try_anew(struct conn *c);
/* The stream is of no use any more; it is closed at the turn's end. */
void conn_break(struct conn *c, const char *why);
/*
 * The responder has failed for message @seq: what it has to answer before is answered,
 * then that is told.
 */
void conn_failed(struct conn *c, uint64_t seq, struct outcome o);
/* There is nothing more to be sent; when that is gone, and the peer has seen it. */
void conn_finish(struct conn *c);
/*
 * The peer is somewhere else: what belongs to its former place is of no use, and what
 * failed there counts no more.  Token held; main thread.
 */
void conn_moved(struct conn *c);
/* It can be reached again: who waited for that goes on now.  Likewise. */
void conn_reachable(struct conn *c, bool anew);
/* Its host is heard again: if TCP would be slow to go on, its stream ends.  Likewise. */
void conn_break_silent(struct conn *c);
/* There is a channel to its peer: the next stream is to be on that.  Likewise. */
void conn_leave_socket(struct conn *c);
/* It is of no use, and closed, now.  Token held; either thread. */
void conn_down(struct conn *c);
/* It has a stream, @s, with its carrier; for that, see socket_up() and flow_up(). */
void conn_up(struct conn *c, struct stream *s, const struct framing *framing, bool ready,
             const struct hello *own, const struct hello *peer);
/* Is there something that waits for a stream, or is to be told by it? */
bool conn_waits(const struct conn *c);
/* The peer's queue pair has failed, for that message of ours. */
void conn_peer_failed(struct conn *c, uint8_t status, uint64_t seq);
/* Where we stand, for the peer.  qp->lock is held, too. */
void conn_hello(struct conn *c, struct hello *h);
/* There is room, for a start() that found none. */
void conn_go(struct conn *c);

#endif /* PVRDMAD_IWARP_CONN_H */
