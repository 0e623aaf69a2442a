/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What the files of link/ share. */
#ifndef PVRDMAD_LINK_INTERNAL_H
#define PVRDMAD_LINK_INTERNAL_H

#include <pthread.h>
#include <sys/queue.h>

#include "base/log.h"
#include "transport/link/auth.h"
#include "transport/link/peer.h"
#include "transport/link/places.h"
#include "transport/link/stream.h"

/* From a connection's first moment until it is known what it is, and again until its
 * link is up. */
#define PEER_DECIDE_MS 5000
/* So long the kernel of a host that is called may take to answer, or some round trips. */
#define PEER_SILENT_MS 500
/* Connections from outside that are not up yet: all, and those of one address. */
#define PEER_MAX_UNDECIDED 512u
#define PEER_MAX_PER_HOST  64u
/* But those that have not begun of a host with a link: it may have many iWARP ones. */
#define PEER_MAX_OF_LINK 1024u

/* ---- this host (peer.c) ---- */

struct peers_self {
    char *name;           /* NULL: not started */
    uint8_t instance[16]; /* random: tells a daemon from its successor */
    uint32_t timeout_ms;
    const struct peer_ops *ops;
    const struct peer_claim_ops *claim_ops;
    void (*datagram)(struct peer *from, const struct peer_datagram *datagram);
    const struct peer_channel_ops *channel_ops;
    /* About connections of which it is not known whose they are. */
    struct log_subject strangers_log;
    uint64_t strangers, turned_away;
};
extern struct peers_self peers_self;

/* Has any peer the address @from?  Else nothing that comes from there is listened to. */
bool peers_know(const struct sockaddr_storage *from);
/* One that has a link, too; or NULL. */
struct peer *peers_linked(const struct sockaddr_storage *from);
void peers_random(void *out, size_t len);

/* ---- what waits to be sent (queue.c) ---- */

enum { QUEUE_CONTROL, QUEUE_MAD, QUEUE_DATA, QUEUE_KINDS };

/* What one account has of a kind that waits; there is none without. */
struct peer_flow {
    TAILQ_ENTRY(peer_flow) link;
    void *key; /* see queue.c */
    struct peer_out *first, **last;
    uint64_t bytes;
};

struct peer_queue {
    /*
     * Protects all of this.  A leaf: nothing else is taken under it.
     */
    pthread_mutex_t lock;
    struct peer_flow control;
    TAILQ_HEAD(, peer_flow) ready; /* of datagrams, who is served next first */
    GHashTable *flows;             /* the same, by key */
    uint64_t bytes[QUEUE_KINDS];
    uint64_t max_data;
    bool open;        /* the link is up */
    uint64_t dropped; /* did not fit, or was left when the link broke */
};

void queue_init(struct peer_queue *q);
void queue_fini(struct peer_queue *q);
void queue_open(struct peer_queue *q, uint64_t max_data);
/* What is in it is dropped. */
void queue_close(struct peer_queue *q);
/* The next message, which still counts; NULL: none. */
struct peer_out *queue_pop(struct peer_queue *q);
/* A popped one was sent, or is dropped with the link. */
void queue_done(struct peer_queue *q, struct peer_out *out, bool sent);
uint64_t queue_bytes(struct peer_queue *q, uint64_t *dropped);

void queues_start(void);
void queues_stop(void);
bool peer_send_control(struct peer *peer, const struct peer_msg *m);

/* ---- a connection (link.c) ---- */

enum link_state { LINK_CONNECTING, LINK_HELLO, LINK_AUTH, LINK_UP };

struct peer_link;

/* NULL: *err is a negative errno. */
struct peer_link *link_connect(struct peer *peer, int *err);
/* A connection that begins with PEER_MAGIC.  Until it is up it has a place in @places. */
void link_accept(int fd, const struct sockaddr_storage *from, struct peer_places *places);
/* @tell: enum peer_close, for the other side; 0: nothing. */
void link_close(struct peer_link *l, unsigned tell, const char *why);
/* Something waits in the peer's queue. */
void link_kick(struct peer_link *l);
/* Those from outside that are not up. */
void links_close_early(void);

enum peer_role link_role(const struct peer_link *l);
enum link_state link_state(const struct peer_link *l);
/* It is up, and what was written is not heard, as of the last look. */
bool link_is_silent(const struct peer_link *l);
const struct peer_hello *link_hello(const struct peer_link *l); /* the other's */
unsigned link_version(const struct peer_link *l);
void link_bytes(const struct peer_link *l, uint64_t *sent, uint64_t *received);

/* ---- connections from outside (listen.c) ---- */

void listen_start(const struct daemon_config *cfg);
void listen_stop(void);
/* To bind() to, for a connection to @to. */
void listen_own(const struct sockaddr_storage *to, struct sockaddr_storage *own);
unsigned listen_undecided(void);
bool listen_report(unsigned i, char text[CONFIG_ADDRESS_STRLEN], const char **error);

/* ---- a peer (peer.c) ---- */

struct peer {
    char *name;
    struct peer_config *cfg;
    bool gone;     /* no group has it any more */
    bool ended;    /* it has said so */
    bool replaced; /* its link ends now, for another one to the same daemon */
    struct sockaddr_storage own;

    struct peer_link *link;   /* that is up */
    struct peer_link *trying; /* that we began, and is not up yet */
    guint retry;              /* timer until the next attempt */
    unsigned patience_ms;     /* until a call that nobody answers is over, at first */
    gint64 called;            /* us: the last one's beginning, or the link's end since */
    gint64 away;              /* us: when it was lost, or silent first */
    uint8_t instance[16];     /* of the daemon at the other end of @link */
    gint64 since;             /* us: in this state */
    gint64 links_paid;        /* us: see peer_may_link() */

    /* For other threads: */
    _Atomic bool up;
    _Atomic bool kicked;
    struct peer_queue queue;

    uint64_t rtt_us;
    uint64_t echo; /* the stamp of a PING that is to be answered; 0: none */
    uint64_t sent_bytes, received_bytes; /* of links that have ended */
    uint64_t sent_messages, received_messages;
    uint64_t refused, links, failures, silences;
    char *last_error;
    struct log_subject log;
};

/* Who calls by that HELLO; NULL: nobody that is known. */
struct peer *peer_of_hello(const struct peer_hello *h,
                           const struct sockaddr_storage *from);
/*
 * Another one that comes up?  All that it has claimed is gone over with each, so whoever
 * links again and again would have the main thread.
 */
bool peer_may_link(const struct peer *peer);
/* @l has proved to be @peer's.  False: there is one already, which is to be kept. */
bool peer_take_link(struct peer *peer, struct peer_link *l);
/* It is up: everybody is told. */
void peer_link_up(struct peer *peer, struct peer_link *l);
/* Its link is silent from now on; and is so no more. */
void peer_link_silent(struct peer *peer);
void peer_link_heard(struct peer *peer);
/* Until a call that is made now, and that nobody answers, is over. */
unsigned peer_patience_ms(const struct peer *peer);
/* @l has ended, whatever it was.  @crossed: for another, which is nobody's fault. */
void peer_link_gone(struct peer *peer, struct peer_link *l, const char *why,
                    bool crossed);
/* All peers, gone ones too. */
GPtrArray *peers_all(void);

#endif /* PVRDMAD_LINK_INTERNAL_H */
