/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The inside of a channel; channel.c says how it hangs together. */
#ifndef PVRDMAD_RNIC_CHANNEL_INTERNAL_H
#define PVRDMAD_RNIC_CHANNEL_INTERNAL_H

#include "transport/rnic/channel.h"
#include "transport/rnic/cq.h"
#include "transport/rnic/fair.h"

/* Posted and not completed, at most; the last one may go beyond by itself. */
#define RNIC_POSTED_BYTES (1u << 20)
/* Of a flow, while others want to send. */
#define RNIC_QUANTUM 65536u
/* For flows that take nothing, together, before credits are withheld. */
#define RNIC_KEPT 524288u
/* That is borne for so long. */
#define RNIC_KEPT_NS 100000000u
/* Silence: until the peer is asked, and from there on until it counts as gone. */
#define RNIC_SILENCE_NS 500000000u
/* Receives that are not back by then do not come back. */
#define RNIC_BREAK_NS 1000000000u
/* ... nor by then, behind one that came back unused. */
#define RNIC_FLUSH_NS 100000000u
/* OPENs of ours that wait to be sent. */
#define RNIC_OPENS_WAIT 4096u
/* Before a block is asked for again. */
#define RNIC_GROW_NS 1000000000u

/* Work requests in the order of their posting, which is that of their completions. */
struct rnic_ring {
    struct rnic_buffer *b[RNIC_POSTED];
    uint32_t first, next; /* numbers: of the oldest, and of the next */
};

static inline uint32_t rnic_ring_used(const struct rnic_ring *r)
{
    return r->next - r->first;
}

/* Frames and credits out; channel_tx.c. */
struct rnic_tx {
    struct rnic_ring ring;
    struct rnic_block *block; /* the largest */
    struct rnic_buffer *free[RNIC_BLOCK_BUFFERS];
    unsigned n_free;
    struct rnic_buffer *open; /* that is being filled; NULL: none */
    uint32_t fill, cap;       /* bytes of it; as many as the peer's receive takes */
    uint32_t bytes;           /* posted */
    /* The peer's receives that it has told of, by their size: they are used in that
     * order, as sizes grow. */
    uint32_t left[RNIC_SIZES], n_left;
    unsigned low, high; /* the sizes of the next one and of the last one */
    bool control_used;  /* the one that is kept for control is not told of again */
    bool starved;       /* something had to wait */
    bool grows;         /* a block was asked for */
    uint64_t grow_at;   /* ns, not before */
};

/* Frames and credits in; channel_rx.c. */
struct rnic_rx {
    struct rnic_ring ring;
    struct rnic_block *block; /* the largest: no other's buffers are posted again */
    struct rnic_block *next;  /* to be posted when all credits are told */
    struct rnic_buffer *idle[RNIC_BLOCK_BUFFERS]; /* to be posted again */
    unsigned n_idle;
    uint32_t told; /* receives that the peer may use, by what it was told */
    uint32_t owed; /* ... that are posted besides, all of one size */
    uint32_t used; /* by the peer's frames since it was told last, or new */
    bool back;     /* the peer may use the one for control again */
    bool answer;   /* it wants to hear something */
    size_t kept;   /* bytes, of all flows */
    uint64_t
        withheld; /* ns, since when credits are, as too much is kept; 0: they are not */
    bool grows;   /* a block was asked for */
    uint64_t grow_at; /* ns, not before */
    bool flushed;     /* a receive came back unused: nothing is behind it */
    bool lost;        /* receives did not come back in order */
    bool liar;        /* what the peer sends is not looked at any more */
};

/* OPEN, OPENED or CLOSE, that waits to be sent. */
struct rnic_message {
    TAILQ_ENTRY(rnic_message) link;
    enum rnic_kind kind;
    uint32_t index; /* OPEN: ours */
    uint32_t len;
    uint8_t bytes[];
};
TAILQ_HEAD(rnic_messages, rnic_message);

/* What an index of ours stands for; channel_flow.c. */
struct channel_place {
    struct rnic_flow *flow;    /* NULL: it is free, or the flow is closed */
    struct rnic_message *open; /* ours, that waits */
    uint32_t peer_index;       /* 0: not known: it is not open, or refused */
    uint32_t next;             /* in the list of free ones; 0: none */
    bool asked;                /* OPENED has not come */
    bool closed, peer_closed;  /* by us; by the peer */
};

struct rnic_channel {
    struct rnic_cq *cq;
    struct ibv_qp *qp;
    const struct rnic_channel_ops *ops;
    void *owner;
    struct log_subject *log;
    const char *name;
    uint32_t max_size;
    enum rnic_phase phase;
    struct rnic_tx tx;
    struct rnic_rx rx;
    struct rnic_fair_vm *fair; /* the VM's part of the NIC; NULL: it has it alone */
    struct rnic_sender sender; /* there */

    struct channel_place *place; /* by index, from 1 */
    uint32_t n_places, first_free, last_free;
    uint8_t peer_uses[RNIC_FLOWS / 8]; /* a bit for each index of the peer's */
    struct rnic_messages messages;     /* OPENED, CLOSE */
    struct rnic_messages opens;        /* sent behind all of these */
    unsigned n_opens;
    unsigned asked, peer_asked; /* OPENs sent and not answered; received, likewise */
    TAILQ_HEAD(, rnic_flow) wanting, keeping;
    TAILQ_HEAD(, rnic_block) blocks;

    uint64_t heard;       /* ns, when something came last */
    uint64_t since;       /* ns, of silence with something on its way; 0: nothing is */
    uint64_t probed;      /* ns, when it was asked to answer; 0: it was not */
    bool sent_since;      /* frames, since a PROBE was: its answer is not about them */
    uint64_t break_until; /* ns; 0: not set yet */
    uint64_t flush_until; /* ns; likewise, for receives */
    bool in_err;          /* the host QP is, by our doing */
    struct deadline deadline;

    /* The completion queue's. */
    unsigned slot;
    bool touched;
    TAILQ_ENTRY(rnic_channel) touch;
};

/* ---- channel.c ---- */

/* The blocks that the NIC did not let go of: not freed, never. */
extern _Atomic(struct rnic_block *) channel_stuck;

/* It is to be looked at at the end of a look, and of the turn. */
void channel_touch(struct rnic_channel *ch);
/* ... at @when, at the latest. */
void channel_due(struct rnic_channel *ch, uint64_t when);
/* It breaks by itself, or by the peer. */
void channel_fail(struct rnic_channel *ch, const char *why);
/* @b's block is not used any more, if so. */
void channel_retire(struct rnic_channel *ch, struct rnic_block *b);
/* Its time has come. */
void channel_tick(struct rnic_channel *ch);
/* Something is to come of the peer, or it is silent. */
void channel_expect(struct rnic_channel *ch);
/* Nobody has looked for a while: clocks begin anew. */
void channel_begin_anew(struct rnic_channel *ch);
/* At the end of a look; of a turn. */
void channel_looked(struct rnic_channel *ch);
void channel_flush(struct rnic_channel *ch);

/* ---- channel_flow.c ---- */

/* A free index for @f, which is open for the peer's @peer_index.  False: there is none.
 */
bool channel_take_place(struct rnic_channel *ch, struct rnic_flow *f,
                        uint32_t peer_index);
/* NULL: there is none with this index that the peer may send to. */
struct channel_place *channel_place(struct rnic_channel *ch, uint32_t index);
/* A frame of the channel itself.  NULL, or what is wrong with it. */
const char *channel_control(struct rnic_channel *ch, const struct rnic_frame *h,
                            const uint8_t *bytes);
/* What waits to be sent.  False: something still does, and goes before any DATA. */
bool channel_stage_messages(struct rnic_channel *ch);
/* All flows are closed. */
void channel_drop_places(struct rnic_channel *ch);

/* ---- channel_tx.c ---- */

/* How much of it is staged, all or nothing if @whole; -1: nothing. */
ssize_t channel_stage(struct rnic_channel *ch, const struct rnic_frame *f,
                      const uint8_t *bytes, size_t len, bool whole);
/* ... of a flow?  If others are to go first, it is asked again when it is its turn. */
bool channel_has_room(struct rnic_channel *ch);
/* Do credits and buffers allow another SEND for frames? */
bool channel_can_open(const struct rnic_channel *ch);
/* The one of the VM whose turn it is, if some wait. */
void channel_touch_next(struct rnic_fair_vm *v);
/* It does not want to send data, or cannot: others of the VM need not wait for it. */
void channel_stand_back(struct rnic_channel *ch);
/* It posts nothing any more, and what it has posted does not count. */
void channel_give_back(struct rnic_channel *ch);
/* For frames, of the peer's. */
bool channel_has_credit(const struct rnic_channel *ch);
/* Post what is staged, if there is something. */
void channel_post_staged(struct rnic_channel *ch);
/* Say something, if credits and buffers allow it.  False: they do not. */
bool channel_say(struct rnic_channel *ch, enum rnic_send_flag flags);
/* The peer has told of receives.  NULL, or what is wrong. */
const char *channel_credit(struct rnic_channel *ch, const struct rnic_send_head *h);
void channel_sent(struct rnic_channel *ch, uint32_t seq, enum ibv_wc_status status);
void channel_add_tx(struct rnic_channel *ch, struct rnic_block *b);

/* ---- channel_rx.c ---- */

/* False: it fails. */
bool channel_post_receives(struct rnic_channel *ch, struct rnic_buffer *const *b,
                           unsigned n);
void channel_arrived(struct rnic_channel *ch, uint32_t seq, const struct ibv_wc *wc);
/* Post again what was taken; behind a batch of completions. */
void channel_repost(struct rnic_channel *ch);
/* Post the new block, if it is its time: it is to be told of. */
bool channel_widen(struct rnic_channel *ch);
/* Is the peer to be told something, though nothing is sent? */
bool channel_owes(const struct rnic_channel *ch);
/* What is kept for @f is taken or dropped. */
void channel_forget(struct rnic_flow *f);
/* Too much is kept for too long: the flow with most of it is overrun. */
void channel_overrun(struct rnic_channel *ch);

#endif /* PVRDMAD_RNIC_CHANNEL_INTERNAL_H */
