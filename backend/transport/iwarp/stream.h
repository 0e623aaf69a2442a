/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A connection in full operation, both directions: its messages, and what carries them.
 * conn.c makes and ends them.
 */
#ifndef PVRDMAD_IWARP_STREAM_H
#define PVRDMAD_IWARP_STREAM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "datapath/engine.h"
#include "transport/iwarp/flow.h"
#include "transport/iwarp/socket.h"
#include "transport/iwarp/wire/ddp.h"
#include "transport/iwarp/wire/rdmap.h"

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
 * What the next segment of the peer's messages is, on a stream.  Control messages, and
 * what our READs and atomics return, come in any phase but RX_GRACE, and change nothing
 * but as below.  rx_phase_set() has the same table.
 *
 *   phase         next
 *   RX_IDLE       RX_IMM: immediate data
 *                 RX_MESSAGE: the first segment of several
 *                 RX_GRACE, RX_DISCARD: as from RX_MESSAGE, for one segment
 *   RX_IMM        RX_IDLE: the SEND or WRITE that it belongs to begins
 *   RX_MESSAGE    RX_IDLE: its last segment
 *                 RX_GRACE: ... and a key that it takes away is in use yet
 *                 RX_SKIP: it was executed before; UC: it is lost
 *                 RX_DISCARD: no receive (RNR), or the queue pair has failed (NAK)
 *   RX_SKIP       RX_IDLE: its last segment
 *   RX_GRACE      RX_IDLE: the grace period is over, all is done
 *                 RX_DISCARD: ... and the queue pair has failed
 *   RX_ABANDONED  RX_IDLE: the last segment of what was abandoned
 *   any but RX_GRACE: RX_IDLE by RESTART; UC: RX_ABANDONED by DROP
 *
 * RX_DISCARD is of RC alone, RX_ABANDONED of UC.
 */
enum rx_phase {
    RX_IDLE,      /* the first of a message, or a request */
    RX_IMM,       /* the first of the message that @imm belongs to */
    RX_MESSAGE,   /* one behind the first of in.m, which is admitted under in.admission */
    RX_SKIP,      /* likewise, but nothing is done with it; counted at its end */
    RX_DISCARD,   /* to be discarded, until a RESTART says which message is next */
    RX_ABANDONED, /* to be discarded, up to the last one of the message; not counted */
    RX_GRACE, /* not looked at: in.m has all its bytes, and waits for a grace period */
};

/* The message that is arriving, in RX_MESSAGE, RX_SKIP and RX_GRACE. */
struct tcp_inbound {
    struct admission admission;
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

struct conn;
struct turn;

/*
 * What carries a stream's frames: a TCP socket (socket.c), or a flow of a channel
 * (flow.c).  It is called per flush, turn and end, never per frame, with the token.  What
 * comes it hands to rx_segment() in order; but in RX_GRACE it keeps it, or leaves it
 * where it is, up to resume(), and drops it if not stream_is_up().  It says by
 * conn.progress that the peer speaks, and by conn_break() that it is of no use any more.
 */
struct carrier {
    /* How many of these bytes, which are frames, it takes now; -1: none from now on. */
    ssize_t (*send)(struct conn *c, const uint8_t *frames, size_t len);
    /* Call tx_writable() when it takes more, which may be so already; or do not. */
    void (*watch)(struct conn *c, bool writable);
    /* The longest ULPDU from now on. */
    uint32_t (*mulpdu)(const struct conn *c);
    /* RX_GRACE is over: what it has kept is taken, too. */
    void (*resume)(struct conn *c, struct turn *t);
    /* Has the peer taken some of what it was sent since that was asked last?  Or is its
     * silence no sign yet? */
    bool (*has_drained)(struct conn *c, uint64_t now);
    /* Is it known that the peer does not get what it is sent? */
    bool (*is_silent)(const struct conn *c);
    /* There is nothing more to be sent. */
    void (*shut)(struct conn *c);
    /* Behind that: has the peer all?  False, too, if it is the peer that ends it. */
    bool (*is_delivered)(const struct conn *c);
    /* Before the stream is freed; what belongs to it is, too. */
    void (*close)(struct conn *c);
};

/*
 * A stream's phases, in their order.  stream_phase_set() has the same table.
 *
 *   phase            next
 *   STREAM_STARTING  STREAM_OPEN: the initiator's first frame has come
 *   STREAM_OPEN      STREAM_CLOSING: the last frame is staged, a NAK or a Terminate
 *   STREAM_CLOSING   STREAM_SHUT: the carrier has taken all
 *   STREAM_CLOSING, STREAM_SHUT   STREAM_CLOSED: conn_break()
 *   STREAM_STARTING, STREAM_OPEN  STREAM_BROKEN: conn_break()
 *
 * An initiator's begins in STREAM_OPEN.  The last two exist until the turn's end, which
 * closes the carrier.  Whatever the phase, that may send no more (@send_failed: what came
 * before is read), and the peer may have closed its side.
 */
enum stream_phase {
    STREAM_STARTING, /* a responder's, which sends nothing yet */
    STREAM_OPEN,     /* both directions */
    STREAM_CLOSING,  /* nothing is begun any more, and input is discarded */
    STREAM_SHUT,     /* ... and the carrier, which has all, was told so */
    STREAM_CLOSED,   /* no use any more, after the last frame */
    STREAM_BROKEN,   /* no use any more, without one: another one is wanted */
};

/*
 * A connection in full operation, both directions; under the VM's token.  Its flags
 * depend neither on the phases nor on each other: each is a fact by itself.
 */
struct stream {
    const struct carrier *carrier;
    enum stream_phase phase; /* by stream_phase_set() */
    uint32_t mulpdu;         /* of messages from now on; carrier->mulpdu() */
    unsigned n_large;        /* messages of more, to look at it again */
    struct framing framing;
    bool peer_ahead;  /* constant: the peer knows of more that we executed than we do */
    bool is_new;      /* the engine has not been told of it */
    bool send_failed; /* nothing can be sent any more; what has come is read */

    /* ---- what we send ---- */
    uint8_t *backlog; /* frames that the carrier did not take; NULL: none */
    size_t backlog_len, backlog_at, backlog_size;
    uint64_t seq;     /* of the next message */
    bool restart_due; /* it has to be told: the peer discards what it does not expect */
    bool in_message;  /* one has begun, and its last segment was not sent */
    struct ddp_header next; /* of that segment, if there is none else */
    uint32_t msn[RDMAP_QNS];
    unsigned asked_first, n_asked; /* in asked[] */
    unsigned job_first, n_jobs;    /* in job[] */
    uint32_t next_id;
    bool sent;     /* a message, at all */
    bool answered; /* the peer has answered one, or its end is no failed try anyway */
    uint32_t psn;  /* what the peer was told that messages begin with */
    /* Control messages that are to be sent. */
    bool ack_due, rnr_due, nak_due, ready_due;
    uint64_t ack, rnr, nak; /* messages' numbers */
    bool ping_pong;         /* an answer follows soon: the ACK goes with it */
    uint64_t ack_at;        /* ns, when it became due, or was sent */
    uint8_t rnr_code, nak_status;

    /* ---- what comes ---- */
    bool in_response;          /* to a READ: more of it comes next, likely */
    struct ddp_header segment; /* the last one of in.m that came */
    uint32_t segment_len;      /* of its payload */
    uint32_t usual;            /* that of segments behind first ones; 0: not known */
    uint32_t first;            /* of the first one of this message; 0: not so short */
    struct ddp_queue q[RDMAP_QNS];
    enum rx_phase rx_phase; /* by rx_phase_set() */
    uint64_t rx_seq;        /* of the message that comes next */
    struct rdmap_imm imm;   /* in RX_IMM */
    bool imm_solicited;
    struct tcp_inbound in;

    /* ---- its carrier's ---- */
    union {
        struct socket socket;
        struct flow *flow;
    };

    /* ---- what not every frame touches: with many streams each cache line counts ---- */
    struct tcp_asked asked[TCP_DEPTH];
    struct tcp_job job[TCP_DEPTH];
};

/* Are messages taken and sent, as far as its phase goes? */
static inline bool stream_is_up(const struct stream *s)
{
    return s->phase <= STREAM_OPEN;
}

/* Its last frame is staged, or was sent. */
static inline bool stream_is_closing(const struct stream *s)
{
    return s->phase >= STREAM_CLOSING && s->phase <= STREAM_CLOSED;
}

/* Is it to be closed at the turn's end? */
static inline bool stream_is_over(const struct stream *s)
{
    return s->phase >= STREAM_CLOSED;
}

#endif /* PVRDMAD_IWARP_STREAM_H */
