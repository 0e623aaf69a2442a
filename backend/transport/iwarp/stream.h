/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A TCP connection in full operation, both directions; conn.c makes and ends them. */
#ifndef PVRDMAD_IWARP_STREAM_H
#define PVRDMAD_IWARP_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "datapath/engine.h"
#include "transport/iwarp/wire/ddp.h"
#include "transport/iwarp/wire/fpdu.h"
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
 * A segment's end, which is stored when all of it was found right: programs poll a
 * message's last byte.  Two cache lines, so that the one before the last is stored by us,
 * too.
 */
#define DIRECT_HELD 128u

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

/*
 * A stream's phases, in their order.  stream_phase_set() has the same table.
 *
 *   phase            next
 *   STREAM_STARTING  STREAM_OPEN: the initiator's first frame has come
 *   STREAM_OPEN      STREAM_CLOSING: the last frame is staged, a NAK or a Terminate
 *   STREAM_CLOSING   STREAM_SHUT: the socket has taken all
 *   STREAM_CLOSING, STREAM_SHUT   STREAM_CLOSED: conn_break()
 *   STREAM_STARTING, STREAM_OPEN  STREAM_BROKEN: conn_break()
 *
 * An initiator's begins in STREAM_OPEN.  The last two exist until the turn's end, which
 * closes the socket.  Whatever the phase, send() may have failed (@send_failed: what came
 * before is read), and the peer may have closed its side (@peer_shut).
 */
enum stream_phase {
    STREAM_STARTING, /* a responder's, which sends nothing yet */
    STREAM_OPEN,     /* both directions */
    STREAM_CLOSING,  /* nothing is begun any more, and input is discarded */
    STREAM_SHUT,     /* ... and FIN is sent, or close() resets as soon as all is acked */
    STREAM_CLOSED,   /* no use any more, after the last frame */
    STREAM_BROKEN,   /* no use any more, without one: another one is wanted */
};

/*
 * A TCP connection in full operation, both directions; under the VM's token.  Its flags
 * depend neither on the phases nor on each other: each is a fact by itself.
 */
struct stream {
    int fd;
    enum stream_phase phase; /* by stream_phase_set() */
    uint32_t mulpdu;         /* of messages from now on; see conn_mulpdu() */
    unsigned n_large;        /* messages of more, to look at it again */
    struct framing framing;
    bool resets;      /* constant: close(fd) does, as this host has made it; linger.c */
    bool peer_ahead;  /* constant: the peer knows of more that we executed than we do */
    bool is_new;      /* the engine has not been told of it */
    bool writable;    /* epoll is asked for that, too */
    bool has_room;    /* epoll has told EPOLLOUT: tx_writable() is to be called */
    bool peer_shut;   /* ... EPOLLRDHUP: there is an end behind the input */
    bool send_failed; /* nothing can be sent any more; what has come is read */

    /* ---- what we send ---- */
    uint8_t *backlog; /* frames that the socket did not take; NULL: none */
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
    int unsent;    /* bytes in the socket that the peer has not, when asked last */
    uint32_t psn;  /* what the peer was told that messages begin with */
    /* Control messages that are to be sent. */
    bool ack_due, rnr_due, nak_due, ready_due;
    uint64_t ack, rnr, nak; /* messages' numbers */
    bool ping_pong;         /* an answer follows soon: the ACK goes with it */
    uint64_t ack_at;        /* ns, when it became due, or was sent */
    uint8_t rnr_code, nak_status;

    /* ---- what comes ---- */
    struct fpdu_rx rx; /* its room: FPDU_MAX_SIZE, from when it is needed */
    bool direct;       /* a frame comes in parts, its payload straight to its place */
    bool in_response;  /* to a READ: more of it comes next, likely */
    struct ddp_header segment; /* the last one of in.m that came */
    uint32_t segment_len;      /* of its payload */
    uint32_t usual;            /* that of segments behind first ones; 0: not known */
    uint32_t first;            /* of the first one of this message; 0: not so short */
    uint8_t *saved;            /* input that is to be looked at first; NULL: none */
    size_t saved_len;
    struct ddp_queue q[RDMAP_QNS];
    enum rx_phase rx_phase; /* by rx_phase_set() */
    uint64_t rx_seq;        /* of the message that comes next */
    struct rdmap_imm imm;   /* in RX_IMM */
    bool imm_solicited;
    struct tcp_inbound in;

    /* ---- what not every frame touches: with many streams each cache line counts ---- */
    struct tcp_asked asked[TCP_DEPTH];
    struct tcp_job job[TCP_DEPTH];
    uint8_t held[DIRECT_HELD];
    uint32_t n_held;
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
