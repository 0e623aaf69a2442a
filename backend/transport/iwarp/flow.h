/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The flow of a channel that carries a stream's frames; see flow.c. */
#ifndef PVRDMAD_IWARP_FLOW_H
#define PVRDMAD_IWARP_FLOW_H

#include "config/config.h"
#include "transport/iwarp/wire/fpdu.h"
#include "transport/rnic/pair.h"

struct conn;
struct framing;
struct hello;
struct setup;
struct stream;
struct tcp_vm;
struct turn;

/* What the main thread is told of one that it has not made a stream of. */
enum flow_news {
    FLOW_ASKED = 1 << 0,    /* the peer's OPEN has come */
    FLOW_ACCEPTED = 1 << 1, /* ours was answered */
    FLOW_REFUSED = 1 << 2,  /* likewise */
    FLOW_BROKEN = 1 << 3,   /* its channel has broken */
};

/*
 * One is of use to a setup, until it is the stream's.  The main thread may drop it, while
 * it is a setup's; who has the token frees it.
 */
struct flow {
    struct rnic_flow end; /* first */
    /* Constant. */
    struct tcp_vm *net;
    struct rnic_pair *pair;
    /* Under the token. */
    TAILQ_ENTRY(flow) link;       /* in net->flows; with @last in net->leaving */
    struct rnic_channel *channel; /* NULL: it has broken */
    uint32_t asked;    /* the peer's index: its OPEN is not answered; 0: none is */
    struct conn *conn; /* whose stream it carries; NULL: not yet */
    bool astray;       /* bytes came before it carried one */
    bool peer_closed;  /* nothing comes any more */
    uint64_t bytes;    /* that came */
    struct fpdu_rx rx; /* its room: FPDU_MAX_SIZE, while it holds something */
    uint8_t *saved;    /* input that is to be looked at first; NULL: none */
    size_t saved_len;
    /* Its queue pair has gone: what goes out before it is closed.  NULL: it has not. */
    uint8_t *last;
    size_t last_at, last_len;
    /* Under flow.c's news_lock. */
    STAILQ_ENTRY(flow) news_link; /* in its list, if there are any; in net->dropped */
    unsigned news;                /* of enum flow_news */
    uint8_t *said;                /* what came with it; NULL: nothing */
    size_t said_len;
    bool dropped; /* nobody is told anything any more */
    /* The main thread's. */
    struct setup *setup;
};

TAILQ_HEAD(flow_list, flow);
STAILQ_HEAD(flow_queue, flow);

/*
 * Ask the peer for one, with @bytes.  NULL: the channel is not up any more, or the peer
 * has too many to answer.  Main thread with the token.
 */
struct flow *flow_begin(struct tcp_vm *net, struct rnic_pair *p, const uint8_t *bytes,
                        size_t len);
/* Answer the peer, which has asked.  False: it cannot be; @f is to be dropped.  Likewise.
 */
bool flow_accept(struct flow *f, const uint8_t *bytes, size_t len);
void flow_refuse(struct flow *f, const uint8_t *bytes, size_t len);
/*
 * Both startup frames are exchanged: @f carries @c's stream now, and @ready: the
 * initiator's first frame is ours to send, and is sent.  False: it was dropped.  The
 * worker is to be woken if conn_waits().  Main thread; token and qp->lock held.
 */
bool flow_up(struct conn *c, struct flow *f, const struct framing *framing, bool ready,
             const struct hello *own, const struct hello *peer);
/* It is of no use; it is closed, or the peer refused, in one of the VM's turns.  Main
 * thread. */
void flow_drop(struct flow *f);

/* A stream of @net's is by TCP.  For the log.  Token held. */
void flow_not_used(const struct tcp_vm *net);
bool flow_is_carrier(const struct stream *s);
/* Is it other VMs' turn, or has this one sent what it may?  Then the peer is not waited
 * for.  Token held. */
bool flow_is_held_up(const struct conn *c);
/* The name of the NIC that carries @c's stream; NULL: it is no channel.  Token held. */
const char *flow_nic(const struct conn *c);

/* ---- those of a VM ---- */

/* What the VM has of channels, if there are any; made when it is first asked for.  Main
 * thread. */
struct rnic_vm *flows_channels(struct tcp_vm *net);
/* What comes by channels.  In the VM's turns. */
void flows_run(struct tcp_vm *net, struct turn *t);
/* The turn ends. */
void flows_flush(struct tcp_vm *net);
/* The VM goes; it has no connection any more.  Main thread. */
void flows_fini(struct tcp_vm *net);

/* ---- the daemon ---- */

bool flows_open(GError **errp);
/* From now on VMs have channels, if @cfg has NICs. */
void flows_use(const struct daemon_config *cfg);
void flows_close(void);

#endif /* PVRDMAD_IWARP_FLOW_H */
