/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The inside of transport "tcp": a queue pair's connection, and what the room's files
 * call of each other.  conn.c says how it hangs together.
 */
#ifndef PVRDMAD_IWARP_CONN_H
#define PVRDMAD_IWARP_CONN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/socket.h>

#include "datapath/engine.h"
#include "transport/iwarp/share.h"
#include "transport/iwarp/wire/ddp.h"
#include "transport/iwarp/wire/fpdu.h"
#include "transport/iwarp/wire/mpa.h"
#include "transport/iwarp/wire/private_data.h"
#include "transport/iwarp/wire/rdmap.h"
#include "transport/link/peer.h"

/* READs and atomics that a side may have open: what we offer as MPA's IRD and ORD. */
#define TCP_DEPTH 16u /* VERBS_MAX_RD_ATOM */

/* A READ or atomic that is not answered yet. */
struct tcp_asked {
    uint64_t seq;
    uint64_t length, done; /* bytes */
    uint32_t id;           /* the sink STag, or the atomic's identifier */
    bool atomic;
};

/* One that we have to answer; it was executed, as far as sequence numbers go. */
struct tcp_job {
    struct msg m;
    uint64_t epoch;
    uint64_t done; /* bytes */
    uint64_t sink_to;
    uint32_t sink_stag; /* or the atomic's identifier */
    uint64_t value;     /* the atomic's result */
};

/*
 * A segment's end, which is stored when all of it was found right: programs poll a
 * message's last byte.  Two cache lines, so that the one before the last is stored by us,
 * too.
 */
#define STRAIGHT_HELD 128u

/* The message that is arriving. */
struct tcp_arrival {
    bool active;   /* its last segment has not come */
    bool skip;     /* it was executed before; UC: it is lost */
    bool admitted; /* under epoch; else its segments are of no use */
    uint64_t epoch;
    uint64_t done;     /* bytes that are in place */
    uint64_t capacity; /* of the receive, for a SEND */
    struct msg m;
};

/* What both sides have agreed on: how we frame, and how much may be asked at a time. */
struct framing {
    bool crc;
    bool markers;
    uint16_t ird, ord; /* READs and atomics that we answer, and ours; TCP_DEPTH at most */
    uint64_t pos;      /* with markers: bytes that were framed since the startup frames */
};

/* A TCP connection in full operation, both directions; under the VM's token. */
struct stream {
    int fd;
    bool fresh;       /* the engine has not been told of it */
    bool behind;      /* the peer knows of more that we executed than we do */
    bool writable;    /* epoll is asked for that, too */
    uint32_t mulpdu;  /* of messages from now on; see conn_mulpdu() */
    unsigned n_large; /* messages of more, to look at it again */
    struct framing framing;
    bool may_send; /* the responder: the initiator's first frame has come */
    bool broken;   /* to be closed at the turn's end */
    bool closing;  /* nothing is taken any more; ended when all is sent, and read */
    bool shut;     /* all is sent */
    bool resets;   /* close(fd) does: this host has made it, see linger.c */
    bool ended;    /* by the peer: behind what it has sent */
    bool drains;   /* the socket takes more of what waits: not seen to yet */
    bool mute;     /* nothing can be sent any more; what has come is read */

    /* ---- what we send ---- */
    uint8_t *backlog; /* frames that the socket did not take; NULL: none */
    size_t backlog_len, backlog_at, backlog_size;
    uint64_t seq;           /* of the next message */
    bool restart;           /* it has to be told */
    bool open;              /* a message has begun, and its last segment was not sent */
    struct ddp_header next; /* of that segment, if there is none else */
    uint32_t msn[RDMAP_QNS];
    unsigned asked_first, n_asked; /* in asked[] */
    unsigned job_first, n_jobs;    /* in job[] */
    uint32_t next_id;
    bool sent, answered; /* messages, at all */
    int unsent;          /* bytes in the socket that the peer has not, when asked last */
    uint32_t psn;        /* what the peer was told that they begin with */
    bool ack_due, rnr_due, nak_due, ready_due;
    uint64_t ack, rnr, nak; /* messages' numbers */
    bool ping_pong;         /* an answer follows soon: the ACK goes with it */
    uint64_t ack_at;        /* ns, when it became due, or was sent */
    uint8_t rnr_code, nak_status;

    /* ---- what comes ---- */
    struct fpdu_rx rx; /* its room: FPDU_MAX_SIZE, from when it is needed */
    bool straight;     /* a frame comes in parts, its payload straight to its place */
    bool answers;      /* a READ's is in the middle: more of it comes next, likely */
    struct ddp_header segment; /* the last one of in.m that came */
    uint32_t segment_len;      /* of its payload */
    uint32_t usual;            /* that of segments behind first ones; 0: not known */
    uint32_t first;            /* of the first one of this message; 0: not so short */
    uint8_t *saved;            /* input that is to be looked at first; NULL: none */
    size_t saved_len;
    struct ddp_queue q[RDMAP_QNS];
    uint64_t rx_seq; /* of the message that comes next */
    bool dropping;   /* ... but what comes is to be dropped until RESTART */
    bool giving_up;  /* UC: the next segment ends the message, which is lost */
    bool waiting;    /* for a grace period: in.m has taken a key away */
    bool has_imm;    /* for the message behind it */
    struct rdmap_imm imm;
    bool imm_solicited;
    struct tcp_arrival in;

    /* ---- what not every frame touches: with many streams each cache line counts ---- */
    struct tcp_asked asked[TCP_DEPTH];
    struct tcp_job job[TCP_DEPTH];
    uint8_t held[STRAIGHT_HELD];
    uint32_t n_held;
};

/* By which a connection that is made is known; see bind.c. */
struct setup_token {
    uint64_t token[2];
    uint64_t until; /* ns; 0: there is none */
    struct conn *conn;
};

/* Where a peer's address is: a VM of this host or another host, and who that is there. */
struct place {
    const void *who; /* struct vm or struct peer, never followed; NULL: nowhere */
    struct claim claim;
};

/* What a connection is owed by the main thread, with the VM's token: deferred.c. */
enum owed {
    OWED_FOLLOW = 1 << 0,    /* conn_follow() */
    OWED_GONE = 1 << 1,      /* its host is no longer a peer */
    OWED_REACHABLE = 1 << 2, /* conn_reachable() */
    OWED_ANEW = 1 << 3,      /* ... at another place */
    OWED_FAILURE = 1 << 4,   /* the peer's queue pair has failed: @heard */
    OWED_NOT_NOW = 1 << 5,   /* there is no try */
    OWED_IN_VAIN = 1 << 6,   /* it was in vain */
    OWED_HELLO = 1 << 7,     /* the Request is to be sent: @setup */
    OWED_STREAM = 1 << 8,    /* the Reply has come: @setup */
    OWED_REQUEST = 1 << 9,   /* a Request has come: @arrived */
    OWED_SILENT = 1 << 10,   /* conn_leave_silent() */
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
    _Atomic bool is_up; /* the stream is there, and not about to go; any thread looks */
    bool stalled;       /* requester_go() is owed */
    bool ready_owed;    /* CTL_READY is, by the next stream */
    bool expecting;     /* in net->expecting: the sweep looks at it */
    bool by_copy;       /* nothing is received straight into the guest's memory */
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
    /* Until try_until, or an answer; the main thread looks without the token. */
    _Atomic bool trying;
    bool refused;       /* the last try was in vain, and start() has not said so */
    unsigned in_vain;   /* UC: tries for the message that waits */
    uint64_t try_until; /* ns */
    uint64_t next_ask;  /* ns; not before */
    /* ns, since when streams brought nothing, or when that was a try; 0: they do. */
    uint64_t vain_since;
    uint64_t vain_at;   /* ns, the last one's end */
    uint64_t vain_wait; /* ns from there until another one is asked for */

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
    bool asks; /* in bind.c's list; under its lock */
    STAILQ_ENTRY(conn) ask_link;
    struct setup_token asked, awaited;
    uint64_t ask_again;    /* ns: not before, what was asked is under way */
    uint64_t up_at;        /* ns; of the initiator's stream: a BIND may have crossed it */
    struct setup *setup;   /* under way, or NULL */
    struct setup *arrived; /* the peer's: its Request is to be answered */
    struct {
        uint8_t status;
        uint64_t seq;
    } heard;               /* for OWED_FAILURE */
    _Atomic unsigned owed; /* of enum owed; any thread looks whether there is any */
    TAILQ_ENTRY(conn) owe; /* in net->owed, if any */
    struct peer *peer;     /* whom the last stream led to; NULL: nobody, or this daemon */
    bool has_place;        /* it counts in net->streams */
    struct port_share *ports; /* ... and there, if it makes the TCP connection */
    struct place place;       /* where all of the above belongs to, and the stream */
    TAILQ_ENTRY(conn) all;
    TAILQ_ENTRY(conn) same; /* those with the same route */
};

TAILQ_HEAD(conn_list, conn);

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
    /* The main thread's, see bind.c. */
    struct share streams;
    LIST_HEAD(, port_share) ports;
    bool is_full; /* that it has its share was said */
    /* The main thread's, see linger.c. */
    unsigned n_ending;
    /* The main thread's, see deferred.c. */
    struct conn_list owed;
    bool owing;          /* in deferred.c's list */
    bool asked;          /* for the token, which is not had */
    uint64_t rest_until; /* ns; until then it is the worker's */
    TAILQ_ENTRY(tcp_vm) owing_link;
};

/* What a worker has one of. */
struct tcp_scratch {
    struct conn *out; /* whose frames are in out_buf; NULL: nobody's */
    size_t out_len;
    uint8_t out_buf[2 * FPDU_MAX_SIZE + 4096];
    uint8_t in_buf[128u << 10];
};

/* ---- conn.c ---- */

extern bool tcp_forced; /* for peers on this host, too */

/* The TCP connection is of no use any more; it is closed at the turn's end. */
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
 * was in vain there counts no more.  Token held; main thread.
 */
void conn_follow(struct conn *c);
/* It can be reached again: who waited for that goes on now.  Likewise. */
void conn_reachable(struct conn *c, bool anew);
/* Its host is heard again: if TCP would be slow to go on, its stream ends.  Likewise. */
void conn_leave_silent(struct conn *c);
/* It is of no use, and closed, now.  Token held; either thread. */
void conn_down(struct conn *c);
/*
 * Both startup frames are exchanged: @fd is a stream now, and if @ready so is the
 * initiator's first frame, or it is ours to send.  False: it was closed.  The worker is
 * to be woken if conn_waits(); else its next turn is early enough.  qp->lock is held,
 * too.
 */
bool conn_up(struct conn *c, int fd, const struct framing *framing, bool ready,
             const struct hello *own, const struct hello *peer);
/* Is there something that waits for a stream, or is to be told by it? */
bool conn_waits(const struct conn *c);
/* The peer's queue pair has failed, for that message of ours. */
void conn_peer_failed(struct conn *c, uint8_t status, uint64_t seq);
/* Where we stand, for the peer.  qp->lock is held, too. */
void conn_hello(struct conn *c, struct hello *h);
/* The longest ULPDU as the TCP connection is now; its segments grow with its window. */
uint32_t conn_mulpdu(int fd, bool markers);
/* There is room, for a start() that found none. */
void conn_go(struct conn *c);
/* Ask epoll for what @s->fd is to be watched for. */
void conn_watch(struct conn *c, bool writable);

/* ---- poll.c ---- */

struct tcp_scratch *tcp_scratch(void);
/* What the transport keeps for @vm, made when it is first asked for; NULL: no sockets. */
struct tcp_vm *tcp_vm_get(struct vm *vm);
/* It has something for the turn's end. */
void conn_work(struct conn *c);
/* There is nothing to read for it, nor to be done at the turn's end. */
void conn_no_work(struct conn *c);
/* The peer is to do something: somebody has to see if it does. */
void conn_expect(struct conn *c);
void conn_expect_nothing(struct conn *c);
/* How long a peer may take for an answer, before that is a try; ns, 0: for ever. */
uint64_t conn_patience(const struct qp *qp);

/* ---- tx.c ---- */

/* transport_ops.start(), with a stream. */
struct outcome tx_start(struct conn *c, struct qp *qp, struct send_op *op);
/* Answer READs and atomics. */
void tx_jobs(struct conn *c, struct turn *t);
/* What is to be told of the messages that came; an ACK may wait for TX_ACK_WAIT_NS. */
void tx_tell(struct conn *c);
#define TX_ACK_WAIT_NS 10000u
/* Hand what is staged to the socket. */
void tx_flush(struct tcp_scratch *x);
/* The socket takes more. */
void tx_writable(struct conn *c);
/* The one Terminate: the stream ends with it. */
void tx_terminate(struct conn *c, enum iwarp_error error, const uint8_t *head,
                  size_t have, uint32_t ulpdu_len);
/* The initiator's first frame, of a socket that is not a stream yet. */
bool tx_first_frame(int fd, struct framing *framing);
/* Its only one: there will be no stream. */
void tx_only_frame(int fd, struct framing *framing, enum iwarp_error why);
/* Tell what is due before the queue pair goes.  Main thread. */
void tx_last_words(struct conn *c);

/* ---- direct_receive.c ---- */

/* Of a frame that began: is its payload received straight to its place? */
fpdu_parts_fn goes_straight;

/* ---- rx.c ---- */

/* Read from the socket, and do what it says.  False: there is no more until it tells. */
bool rx_run(struct conn *c, struct turn *t);
/* Go on with a message that waited for a grace period. */
void rx_resume(struct conn *c, struct turn *t);

/* ---- bind.c ---- */

/* A stream is wanted.  Any thread with the token. */
void setup_ask(struct conn *c);
/*
 * Is that still to be looked at, behind others, or something owed, or is a stream that is
 * there being taken?  Then no time of a try runs.  Any thread with the token.
 */
bool setup_waits(struct conn *c);
/* Its queue pair is there, and goes.  Main thread. */
void setup_know(struct conn *c);
void setup_forget(struct conn *c);
/* A VM's shares; it has no connection when they end.  Main thread. */
void setup_begin_shares(struct tcp_vm *net);
void setup_end_shares(struct tcp_vm *net);

/* ---- deferred.c ---- */

/* @c is owed that, of enum owed, and has it later, when there is the token.  Main
 * thread. */
void conn_owe(struct conn *c, unsigned what);
/* That is of no use any more. */
void conn_owe_no_more(struct conn *c, unsigned what);
/* @net goes, and has no connection any more. */
void owed_vm_gone(struct tcp_vm *net);
void owed_close(void);

#endif /* PVRDMAD_IWARP_CONN_H */
