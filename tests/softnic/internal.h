/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the files of softnic share.
 *
 * One lock, soft.lock, protects all state; it is held while data are copied, so that a
 * deregistration that has returned is the end of all access.  Functions named soft_ are
 * called with it held unless they say otherwise.  Entries of the table take it by
 * soft_enter(), which has the faults that a test asked for.
 */
#ifndef SOFTNIC_INTERNAL_H
#define SOFTNIC_INTERNAL_H

#include <errno.h>
#include <glib.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "softnic.h"

#define SOFT_MTU       4096u
#define SOFT_MAX_SGE   32u
#define SOFT_ADDRESSES 4
#define SOFT_PRIVATE   256
/* Request packets of a QP that are on their way, and packets of one turn. */
#define SOFT_WINDOW 64u
#define SOFT_TURN   16u
/* Of a QP whose answers do not come, whatever its own times are. */
#define SOFT_MAX_RETRY_NS (200 * 1000000ll)

struct softdev {
    struct ibv_device ibv;
    in_addr_t address[SOFT_ADDRESSES];
    int listener[SOFT_ADDRESSES]; /* socket in the folder, or -1 */
    unsigned n_addresses;
    uint64_t guid;
    bool up, gone, fatal, silent;
    bool dead; /* the connection manager has seen that it is gone */
    bool siw, iwarp, noimm, early, negative, qpevents, flush2, lateflush;
    uint32_t sge, inline_data, ord, wr;
    uint64_t maxmsg;
    struct softctx *cma; /* the connection manager's context */
    unsigned cma_refs;
    unsigned refs; /* lists, contexts, and that it is there */
    /* faults that are to come, in packets or completions */
    uint64_t cut_at, lose_at;
    enum { CUT_BEFORE, CUT_AFTER, CUT_ANSWER } cut_how;
    int64_t rnr, packets, lost, overruns, tos;
};

/* Events wait in a queue, and the descriptor counts them. */
struct softqueue {
    int fd;
    GQueue q;
};

struct softctx {
    struct ibv_context ibv;
    struct softdev *dev;
    struct softqueue async; /* struct ibv_async_event * */
    unsigned users;         /* objects of it */
    int kernel;             /* at its end when ibv.cmd_fd is closed, or replaced */
};

struct softpd {
    struct ibv_pd ibv;
    struct softctx *ctx;
    unsigned users;
};

struct softmr {
    struct ibv_mr ibv;
    struct softpd *pd;
    int access;
    uint8_t *mem; /* of ibv.addr: there, or in a mapping of our own */
    void *pinned; /* that mapping, or NULL */
    size_t pinned_len;
};

struct softcqe {
    struct ibv_wc wc;
    struct softqp *qp; /* NULL: destroyed since */
    bool receive;
    uint32_t upto; /* of the queue, free when this is polled */
};

struct softchannel {
    struct ibv_comp_channel ibv;
    struct softctx *ctx;
    struct softqueue events; /* struct softcq * */
};

struct softcq {
    struct ibv_cq ibv;
    struct softctx *ctx;
    struct softchannel *channel;
    struct softcqe *ring;
    uint32_t size, first, n;
    enum { ARMED_NOT, ARMED_SOLICITED, ARMED_ANY } armed;
    bool dead;
    unsigned users;
    unsigned comp_got, async_got; /* events that were handed out */
};

struct softsend {
    struct ibv_send_wr wr; /* next, sg_list: not used */
    struct ibv_sge sge[SOFT_MAX_SGE];
    uint8_t *inline_data;
    uint64_t length;
    bool finished;
};

struct softrecv {
    uint64_t wr_id;
    int num_sge;
    struct ibv_sge sge[SOFT_MAX_SGE];
};

/* Positions in the queues count on and on. */
struct softqp {
    struct ibv_qp ibv;
    struct softctx *ctx;
    struct softpd *pd;
    struct softcq *scq, *rcq;
    struct softid *id;
    struct wire *wire; /* from connect() or accept() on */
    struct ibv_qp_init_attr init;
    enum ibv_qp_state state; /* the true one; ibv.state is what its user set */
    int access;
    bool flush;   /* in state ERR something is to come back */
    bool dropped; /* the peer has no QP that takes our requests */
    uint8_t ord, ird, rnr_retry, min_rnr_timer, timeout, retry_cnt;
    unsigned async_got;

    /* requester */
    struct softsend *sq;
    uint32_t posted, sent, done, room; /* room: begins here, as polled */
    uint64_t offset;                   /* in message sent */
    uint32_t reads;                    /* on their way */
    uint32_t packets, answered;        /* request packets */
    uint32_t sflush;                   /* as rflush, for NICs that do so */
    bool failing;                      /* message sent has a fault of its own */
    enum ibv_wc_status failure;
    uint8_t rnr_left;
    int64_t retry_at;  /* RETRY_EXC then; 0: no */
    int64_t resend_at; /* after RNR */

    /* responder */
    struct softrecv *rq;
    uint32_t rposted, rtaken, rroom;
    uint32_t rflush;       /* those before it come back when the state is ERR */
    struct softrecv *recv; /* of the message that arrives */
    uint64_t roffset;
    uint32_t taken, acked; /* request packets, and as the peer knows */
    bool parked;           /* no receive: until the peer tries again */
    struct {
        bool busy;
        uint64_t at, total, offset;
        uint32_t rkey, msn;
    } read;
};

enum packet_kind {
    /* requests */
    PKT_SEND,
    PKT_WRITE,
    PKT_READ,
    /* answers and the rest */
    PKT_DATA,
    PKT_ACK,
    PKT_NAK,
    PKT_RNR,
    PKT_RETRY,
    PKT_DROPPED,
    PKT_DOWN,
    PKT_UP,
    PKT_CUT,
    PKT_REQ,
    PKT_REP,
    PKT_RTU,
    PKT_REJ,
    PKT_DREQ,
    PKT_DREP,
    PKT_LOST, /* there is no other end any more */
    PKT_KINDS
};

#define PKT_FIRST     1
#define PKT_LAST      2
#define PKT_IMM       4
#define PKT_SOLICITED 8

struct packet_head {
    uint32_t len; /* bytes behind it */
    uint8_t kind, flags, status, reads;
    uint32_t msn; /* the requester's position; what is answered */
    uint32_t packets;
    __be32 imm;
    uint32_t rkey;
    uint64_t addr, total;
};

struct packet {
    struct packet *next;
    struct packet_head h;
    uint8_t data[];
};

/* What PKT_REQ and PKT_REP say; the private data follow. */
struct cm_words {
    in_addr_t src, dst;
    uint16_t sport, dport;
    uint32_t qpn;
    uint8_t responder_resources, initiator_depth, retry, rnr_retry, private_len;
    uint8_t private_data[SOFT_PRIVATE];
};

struct packets {
    struct packet *first, **end;
    unsigned n;
};

/* One end of a connection. */
struct wire {
    struct softdev *dev;
    struct softid *id; /* NULL: a request that was not taken yet */
    struct softqp *qp;
    struct wire *peer; /* in this process */
    int fd;            /* or elsewhere, or -1 */
    GByteArray *out, *in;
    bool queued, dead, peer_down, watched_out;
    bool mute; /* what is sent is lost */
    bool lost; /* its user knows that the other end is gone */
    struct packets requests, answers;
};

struct softid {
    struct rdma_cm_id ibv;
    struct softctx *ctx;
    struct softdev *dev; /* of the way to the peer */
    enum {
        ID_IDLE,
        ID_BOUND,
        ID_ADDR,
        ID_ROUTE,
        ID_LISTENS,
        ID_CONNECTS,
        ID_REQUESTED,
        ID_ACCEPTED,
        ID_CONNECTED,
        ID_LEAVES, /* this side disconnects */
        ID_LEFT,   /* the peer has */
        ID_ENDED
    } state;
    struct wire *wire;
    struct rdma_conn_param param;
    struct cm_words words; /* of the peer */
    uint8_t timeout, tos;
    unsigned got;    /* events that were handed out */
    int64_t expires; /* of CM: UNREACHABLE, or DISCONNECTED without an answer */
};

struct softcmchannel {
    struct rdma_event_channel ibv;
    struct softqueue events; /* struct softcmevent * */
};

struct softcmevent {
    struct rdma_cm_event ibv;
    struct softid *owner; /* which counts it until it is acknowledged */
    struct wire *wire;    /* of a request */
    struct cm_words words;
    uint8_t data[SOFT_PRIVATE];
};

struct soft {
    pthread_mutex_t lock;
    pthread_cond_t acked;
    GPtrArray *devs, *ctxs, *wires, *qps, *ids;
    GHashTable *lkeys, *rkeys;
    uint32_t next_key, key_mask, next_qpn;
    uint16_t next_port;
    GQueue ready;     /* wires with something to do */
    int64_t hold;     /* packets, or -1 */
    int64_t timer_at; /* the first of all, or INT64_MAX */
    int64_t objects;
    char *dir;   /* of several processes, or NULL */
    char *sysfs; /* where devices have their folders */
    unsigned n_devs;
    bool asleep, started;
    int wake; /* eventfd */
    int epoll;
};
extern struct soft soft;

/* ---- faults.c ---- */
struct soft_entry {
    const char *name;
    _Atomic int64_t calls;
    struct soft_entry *next;
};
int soft_enter_at(struct soft_entry *e);
/* Takes the lock.  0, or the errno with which the entry is to fail. */
#define soft_enter(entry)                                    \
    ({                                                       \
        static struct soft_entry entry_ = {.name = (entry)}; \
        soft_enter_at(&entry_);                              \
    })
void soft_leave(void);
void soft_bug(const char *what) __attribute__((noreturn));

/* ---- device.c ---- */
void soft_queue_init(struct softqueue *q);
void soft_queue_put(struct softqueue *q, void *item);
/* Leaves the entry, which @err tells to fail, and takes the lock again while it returns
 * an item; NULL: errno. */
void *soft_queue_get(struct softqueue *q, int err);
void soft_queue_remove(struct softqueue *q, void *item);
void soft_queue_less(struct softqueue *q);
void soft_async(struct softdev *dev, enum ibv_event_type type);
void soft_async_qp(struct softqp *qp, enum ibv_event_type type);
void soft_async_cq(struct softcq *cq);
void soft_async_forget(struct softctx *ctx, const void *element);
struct softdev *soft_find(const char *name);
struct softdev *soft_find_address(in_addr_t a);
struct softctx *soft_cma(struct softdev *dev);
void soft_cma_put(struct softctx *ctx);
void soft_dev_put(struct softdev *dev);
unsigned soft_contexts(struct softdev *dev);
/* Is there a region with all these rights for these bytes?  Its memory, or NULL. */
uint8_t *soft_lookup(GHashTable *keys, struct softpd *pd, uint32_t key, uint64_t addr,
                     uint64_t len, int access);

/* ---- cq.c ---- */
void soft_complete(struct softqp *qp, bool receive, struct ibv_wc wc, bool solicited,
                   uint32_t upto);
void soft_cq_forget(struct softcq *cq, struct softqp *qp);

/* ---- qp.c ---- */
struct softqp *soft_qp_new(struct softid *id, struct softpd *pd,
                           struct ibv_qp_init_attr *init);
void soft_qp_free(struct softqp *qp);
void soft_qp_state(struct softqp *qp, enum ibv_qp_state state);
void soft_qp_fail(struct softqp *qp, enum ibv_wc_status status);
void soft_qp_stalled(struct softqp *qp);
void soft_answer(struct wire *w, struct packet *p); /* frees it */
/* One step: whether there was one. */
bool soft_request(struct wire *w);
bool soft_respond(struct wire *w);
void soft_qp_timer(struct softqp *qp, int64_t now);

/* ---- cm.c ---- */
void soft_cm_packet(struct wire *w, struct packet *p);
void soft_cm_stalled(struct softid *id);
void soft_cm_terminated(struct wire *w);
void soft_cm_removed(struct softdev *dev);
void soft_cm_timer(struct softid *id, int64_t now);

/* ---- wire.c ---- */
int64_t soft_now(void);
/* soft_qp_timer() and soft_cm_timer() then, which call it again if that was not theirs.
 */
void soft_timer(int64_t at);
void soft_start(void);
void soft_kick(struct wire *w);
void soft_wake(void);
bool soft_run(unsigned turns);
struct wire *soft_wire_new(struct softdev *dev);
struct wire *soft_wire_connect(struct softdev *dev, in_addr_t to);
void soft_wire_free(struct wire *w);
struct packet *soft_packet(enum packet_kind kind, uint32_t len);
void soft_send(struct wire *w, struct packet *p);
void soft_send_plain(struct wire *w, enum packet_kind kind);
void soft_cut(struct wire *w);
bool soft_stalled(struct wire *w);
bool soft_wire_full(struct wire *w);
void soft_listen(struct softdev *dev);
void soft_unlisten(struct softdev *dev);
struct packet *soft_pop(struct packets *q);

#endif /* SOFTNIC_INTERNAL_H */
