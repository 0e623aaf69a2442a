/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Channels: one host RC QP joins two VMs and carries what their queue pairs send each
 * other, as pieces of byte streams (flows).  channel.c says how.
 *
 * Threads: under the VM's token, all of it, and so are the calls of struct
 * rnic_channel_ops; but rnic_block_new() and rnic_block_free().
 */
#ifndef PVRDMAD_RNIC_CHANNEL_H
#define PVRDMAD_RNIC_CHANNEL_H

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "base/deadlines.h"
#include "transport/rnic/frames.h"
#include "transport/rnic/verbs.h"

struct log_subject;
struct rnic_channel;
struct rnic_cq;
struct rnic_flow;

/* A block has so many buffers at most, and each queue of the host QP two blocks. */
#define RNIC_BLOCK_BUFFERS 64u
#define RNIC_POSTED        (2 * RNIC_BLOCK_BUFFERS)
/* What a channel begins with. */
#define RNIC_FIRST_BUFFERS 8u
/* Flows of one channel. */
#define RNIC_FLOWS 65536u
/* What rnic_flow_begin(), _accept() and _refuse() may tell the peer, at most. */
#define RNIC_OPEN_MAX 1024u
/* OPENs that are not answered, at most: a peer with more lies, own ones wait. */
#define RNIC_OPENS 256u

struct rnic_buffer {
    struct rnic_block *block;
    uint8_t *data;
    uint32_t len; /* a SEND's */
};

/* Registered memory: buffers of one size. */
struct rnic_block {
    struct ibv_mr *mr;
    void *memory;
    struct rnic_block *stuck; /* the next one that cannot be freed */
    unsigned n;
    uint32_t size;
    /* The channel's. */
    unsigned posted; /* of its buffers */
    TAILQ_ENTRY(rnic_block) link;
    struct rnic_buffer buffer[RNIC_BLOCK_BUFFERS];
};

enum rnic_side { RNIC_TX, RNIC_RX };

/* For receives (@side RNIC_RX) or SENDs; NULL: an errno says why.  Both block. */
struct rnic_block *rnic_block_new(struct ibv_pd *pd, enum rnic_side side, unsigned n,
                                  uint32_t size);
/* What the NIC does not let go of is not freed, but logged. */
void rnic_block_free(struct rnic_block *b);

/*
 * What a channel asks of its owner.  None of these frees the channel.  They may close
 * flows; one that is closed in a call for it is not begun again in that call.
 *
 * Nothing is posted while completions are taken, which is when take(), open(), opened()
 * and closed() are called: meanwhile rnic_flow_send() takes nothing, and OPEN, OPENED and
 * CLOSE wait.  (But for those that rnic_flow_go_on() calls.)
 */
struct rnic_channel_ops {
    /*
     * Bytes of the peer's for @f, all of which are taken.  False: no more of them until
     * rnic_flow_go_on().
     */
    bool (*take)(struct rnic_flow *f, const uint8_t *bytes, size_t len);
    /* @f, which wanted that, may send; it has to ask again for the next time. */
    void (*writable)(struct rnic_flow *f);
    /* Too much came for @f while it took nothing; no bytes come for it any more. */
    void (*overrun)(struct rnic_flow *f);
    /*
     * The peer opens a flow: rnic_flow_accept() or rnic_flow_refuse(), now or later.
     * False: it makes no sense.
     */
    bool (*open)(struct rnic_channel *ch, uint32_t peer_index, const uint8_t *bytes,
                 size_t len);
    /*
     * What became of rnic_flow_begin(); not @accepted: @f is to be closed.  False: the
     * peer makes no sense.
     */
    bool (*opened)(struct rnic_flow *f, bool accepted, const uint8_t *bytes, size_t len);
    /* The peer has closed its end: nothing comes for @f any more, it is to be closed. */
    void (*closed)(struct rnic_flow *f);
    /* A block is wanted: rnic_channel_grow() says what became of that, later. */
    void (*grow)(struct rnic_channel *ch, enum rnic_side side, unsigned n, uint32_t size);
    /* Nothing uses @b any more. */
    void (*spare)(struct rnic_channel *ch, struct rnic_block *b);
    /*
     * It breaks: put the host QP to ERR, on lane BREAK, and then call
     * rnic_channel_in_err(); nothing is waited for here.
     */
    void (*to_err)(struct rnic_channel *ch);
    /*
     * It is broken: nothing comes any more.  @all: all that the peer's SENDs brought was
     * given to take(), but for flows that were closed or overrun, and nothing else can
     * have come.
     */
    void (*broken)(struct rnic_channel *ch, bool all);
};

/*
 * A channel's phases, in their order.
 *
 *   RNIC_MADE      receives are posted, nothing is sent
 *   RNIC_UP        both directions
 *   RNIC_BREAKING  what came is taken, nothing is sent; ends when the host QP is in ERR
 *                  and all receives are back, or after a second
 *   RNIC_BROKEN    @broken was called
 */
enum rnic_phase { RNIC_MADE, RNIC_UP, RNIC_BREAKING, RNIC_BROKEN };

struct rnic_channel_config {
    struct rnic_cq *cq;
    struct ibv_qp *qp; /* depths RNIC_POSTED, IBV_QPS_INIT at least */
    const struct rnic_channel_ops *ops;
    void *owner;
    struct log_subject *log;    /* of the peer's daemon or VM */
    const char *name;           /* for the log; constant */
    struct rnic_block *tx, *rx; /* the channel's from now on, until spare() */
    unsigned peer_receives;     /* what the peer has posted, two at least ... */
    uint32_t peer_size;         /* ... of that size */
    uint32_t max_size;          /* of buffers */
};

/*
 * NULL: what the peer says it has posted makes no sense, no place in @cq, no memory, or
 * receives cannot be posted: the blocks are still the caller's, and the host QP is of no
 * use.
 */
struct rnic_channel *rnic_channel_new(const struct rnic_channel_config *config);
/* The host QP is connected, and we may send. */
void rnic_channel_up(struct rnic_channel *ch);
/* The host QP is destroyed, flows are closed; blocks go by spare(). */
void rnic_channel_free(struct rnic_channel *ch);
void *rnic_channel_owner(const struct rnic_channel *ch);
enum rnic_phase rnic_channel_phase(const struct rnic_channel *ch);

/*
 * It is of no use any more.  What the peer has sent is taken, in order, by looks at the
 * completion queue; broken() comes within a second of the first one.
 */
void rnic_channel_break(struct rnic_channel *ch, const char *why);
/* The host QP is in ERR, by to_err(). */
void rnic_channel_in_err(struct rnic_channel *ch);
/*
 * It is broken now, and what has come is not taken: broken() is called here, unless it
 * was before, and not with all.  For who cannot wait for looks; not within a call of the
 * channel's.
 */
void rnic_channel_drop(struct rnic_channel *ch);
/* What became of grow(); NULL: not now. */
void rnic_channel_grow(struct rnic_channel *ch, enum rnic_side side,
                       struct rnic_block *b);
/* Is it up, and something on its way of which it is not known that it has arrived? */
bool rnic_channel_awaits(const struct rnic_channel *ch);
/*
 * May it be about to break, as nothing has come for a quarter of a second with frames on
 * their way; or does it break?  Who waits for an answer by it waits for that first.
 */
bool rnic_channel_is_silent(const struct rnic_channel *ch, uint64_t now);
/* The most that one frame carries now; it does not shrink. */
uint32_t rnic_channel_room(const struct rnic_channel *ch);
/* ns, when the peer was heard last; 0: never. */
uint64_t rnic_channel_heard(const struct rnic_channel *ch);

/* A queue pair's part of a channel. */
struct rnic_flow {
    struct rnic_channel *channel; /* constant */
    uint32_t index;               /* constant: the peer's frames have it */
    uint32_t peer_index;          /* the peer's for ours; 0: it has not opened it */
    bool wants;                   /* to send, in channel->wanting */
    bool waits;                   /* takes nothing */
    bool deaf;                    /* what comes is dropped */
    bool ends;                    /* closed() follows what is kept */
    uint32_t allowance;           /* bytes that it may send before others that want to */
    GByteArray *kept;             /* what came meanwhile */
    size_t kept_at;
    TAILQ_ENTRY(rnic_flow) want;
    TAILQ_ENTRY(rnic_flow) keep;
};

/*
 * Open @f; opened() will tell.  The peer's open() has @bytes, RNIC_OPEN_MAX at most.
 * False: there is no index, too many wait to be opened, or the channel breaks; there is
 * nothing to close.
 */
bool rnic_flow_begin(struct rnic_channel *ch, struct rnic_flow *f, const uint8_t *bytes,
                     size_t len);
/*
 * Answer the OPEN of @peer_index; the peer's opened() has @bytes.  @f may be sent on at
 * once.  False: there is no index, and it is to be refused; or the channel breaks.
 */
bool rnic_flow_accept(struct rnic_channel *ch, struct rnic_flow *f, uint32_t peer_index,
                      const uint8_t *bytes, size_t len);
void rnic_flow_refuse(struct rnic_channel *ch, uint32_t peer_index, const uint8_t *bytes,
                      size_t len);
/*
 * In any phase.  @f is the caller's again; what comes for it is dropped.  What was sent
 * on it goes out, and behind that the peer's closed().
 */
void rnic_flow_close(struct rnic_flow *f);
/*
 * How many of the bytes were taken; -1: the channel breaks.  @f was opened, by either
 * side.
 */
ssize_t rnic_flow_send(struct rnic_flow *f, const uint8_t *bytes, size_t len);
/* Call writable() when it may send more, once; or do not.  @f was opened. */
void rnic_flow_want(struct rnic_flow *f, bool wants);
/* It wants to send, and has to wait for its VM's turn at the NIC. */
bool rnic_flow_is_held_up(const struct rnic_flow *f);
/* It takes what comes again; first what came meanwhile. */
void rnic_flow_go_on(struct rnic_flow *f);

#endif /* PVRDMAD_RNIC_CHANNEL_H */
