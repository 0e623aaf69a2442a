/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What pair.c, far.c, end.c, cm.c and vm.c share.
 *
 *   struct rnic_pair    two VMs, this one of them; pair.c
 *   struct rnic_end     our end of one channel of a pair, from the first step of its
 *                       making until all of it is taken apart; end.c
 *   struct rnic_cm      a NIC that is up: its listener and events; cm.c
 *   struct rnic_vm      a VM: all completion queues that its turns look at; vm.c
 *   struct rnic_share   what a VM has of a NIC; vm.c
 *
 * Main thread, but for what says otherwise.
 */
#ifndef PVRDMAD_RNIC_PAIR_INTERNAL_H
#define PVRDMAD_RNIC_PAIR_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/coro.h"
#include "transport/link/peer.h"
#include "transport/rnic/cq.h"
#include "transport/rnic/fair.h"
#include "transport/rnic/nic.h"
#include "transport/rnic/pair.h"

/* Pairs of a VM whose channels are being made. */
#define RNIC_VM_MAKING 32u
/* Those that one peer may have begun, and are being made. */
#define RNIC_PEER_MAKING 64u
/* Ends of a pair: the one that counts, and those that are taken apart. */
#define RNIC_PAIR_ENDS 2u
/* Pairs of a VM. */
#define RNIC_VM_PAIRS 4096u
/* Completion queues of a VM on a NIC: for 8, 16, 32, 64, 64 ... channels. */
#define RNIC_VM_CQS 8u
/* Bytes of registered memory beyond what channels begin with, of a VM on a NIC. */
#define RNIC_VM_GROWTH (48u << 20)
/* NICs that are tried one after the other. */
#define RNIC_TRIES 4u

/* ---- jobs on lanes (cm.c) ---- */

#define RNIC_PRIVATE_LEN 24u

/* What a job has and finds: it may outlive who waits for it, see control.h. */
struct rnic_job {
    struct ibv_context *ctx;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_comp_channel *channel;
    struct rdma_event_channel *events;
    struct rdma_cm_id *id;
    struct rdma_cm_event *event;
    pthread_mutex_t *qps;      /* of the rnic_cm */
    struct ibv_context **held; /* a list of one context of the connection manager */
    char device[CONFIG_MAX_DEVICE + 1];
    void *context; /* of the id that is made */
    struct sockaddr_storage src, dst;
    uint8_t private_data[RNIC_PRIVATE_LEN];
    struct rnic_block *block;
    enum rnic_side side;
    unsigned n;
    uint32_t size;
    uint16_t port;
    uint8_t tos; /* 0: as it is */
    int err;     /* out: an errno */
};

/* Who waits for a job. */
struct rnic_wait {
    gint64 since; /* us */
    TAILQ_ENTRY(rnic_wait) link;
};

/*
 * A NIC that is up, or was.  Everything that was made on it is taken apart before the
 * NIC is closed.
 */
struct rnic_cm {
    struct rnic_nic *nic;
    struct rnic_control *control;
    char *name, *fabric;
    char **networks; /* NULL: all */
    struct pvrdma_gid address;
    struct ibv_context *ctx; /* the connection manager's */
    struct rdma_event_channel *events;
    struct rdma_cm_id *listener;
    /*
     * Protects QPs of ids: rdma_get_cm_event() works with those of its events on one
     * lane, while another destroys them.  Taken on lanes alone, and left behind with a
     * lane that is.
     */
    pthread_mutex_t *qps;
    uint16_t port;
    guint watch;
    bool pumping;           /* events are being taken */
    GQueue strangers;       /* of struct rdma_cm_id: they are to be refused */
    bool open;              /* channels may be made */
    bool over;              /* none any more */
    bool lost;              /* so have the control threads: nothing can be taken apart */
    struct coro *coro;      /* its own, that waits */
    struct coro *giver;     /* who waits until it is gone */
    unsigned n_taken_apart; /* jobs on lane RNIC_BREAK that are done */
    TAILQ_HEAD(, rnic_wait) waits; /* who has waited longest comes first */
    struct rnic_fair fair;
    unsigned n_ends;
    LIST_HEAD(, rnic_end) ends;
    LIST_HEAD(, rnic_end) expected; /* those that wait for a request of their peer's */
    LIST_HEAD(, rnic_share) shares;
    TAILQ_ENTRY(rnic_cm) link;
};
TAILQ_HEAD(rnic_cms, rnic_cm);
extern struct rnic_cms rnic_cms;

void rnic_cm_start(void);
/* A coroutine of its own for @fn(@opaque), whoever asks for it; it begins later. */
void rnic_cm_begin(void (*fn)(void *opaque), void *opaque);
/* Something it may wait for has happened. */
void rnic_cm_kick(struct rnic_cm *cm);
/*
 * Run @fn(@j) on a lane and wait.  0: it has run well; else an errno.  False of *mine:
 * @j is the lane's.  On lane BREAK it is tried until there is room.  In a coroutine.
 */
int rnic_cm_run(struct rnic_cm *cm, enum rnic_lane lane, uint64_t vm,
                void (*fn)(void *arg), struct rnic_job *j, bool *mine);
/* None while a call has not come back from the kernel for rnic_late_ms. */
bool rnic_cm_serves(const struct rnic_cm *cm, const char *network);
struct rnic_cm *rnic_cm_find(const struct pvrdma_gid *address);
void rnic_cm_sockaddr(const struct pvrdma_gid *address, uint16_t port,
                      struct sockaddr_storage *out);

/* ---- VMs (vm.c) ---- */

/* A completion queue and the channels that have a place in it. */
struct rnic_place {
    struct rnic_cq cq; /* under the token, but for making and freeing */
    struct ibv_cq *ibv;
    struct ibv_comp_channel *events;
    unsigned most, used;
    TAILQ_ENTRY(rnic_place) of_vm; /* under the token */
};

struct rnic_share {
    struct rnic_vm *rv;
    struct rnic_cm *cm;
    struct rnic_fair_vm fair;
    struct ibv_pd *pd;
    struct rnic_place *place[RNIC_VM_CQS];
    unsigned n_places;
    unsigned n_ends;
    uint64_t grown;         /* bytes */
    struct coro_mutex lock; /* who adds to the above */
    bool going;
    LIST_ENTRY(rnic_share) of_cm, of_vm;
};

struct rnic_vm {
    struct vm *vm;       /* NULL: it has gone */
    const char *network; /* interned */
    uint64_t serial;
    int fd;
    unsigned refs; /* its own, and those of ends and shares */
    unsigned making;
    unsigned n_pairs;
    gint64 swept; /* us: when pairs of no use were looked for */
    _Atomic bool used;
    /* What its group said when it was made. */
    uint32_t weight;
    uint8_t tos;
    struct rnic_rate rate;           /* under the token */
    TAILQ_HEAD(, rnic_place) places; /* under the token */
    LIST_HEAD(, rnic_share) shares;
    LIST_HEAD(, rnic_pair) pairs;
    LIST_ENTRY(rnic_vm) link;
};
LIST_HEAD(rnic_vms, rnic_vm);
extern struct rnic_vms rnic_vms;

/* Whose addresses are the VM's, which has not gone: it may change when its state comes.
 */
const uint64_t *rnic_vm_owner(const struct rnic_vm *rv);
struct rnic_vm *rnic_vm_find(const uint64_t owner[2], const char *network);
void rnic_vm_unref(struct rnic_vm *rv);
/*
 * The VM's token, for a coroutine, which must not wait before rnic_vm_release().  Nobody
 * else is at the VM's channels if it has gone.
 */
void rnic_vm_take(struct rnic_vm *rv);
void rnic_vm_release(struct rnic_vm *rv);

/* What @rv has of @cm: nothing is made yet. */
struct rnic_share *rnic_share_get(struct rnic_vm *rv, struct rnic_cm *cm);
/* It goes, if it has no ends, and the VM or the NIC goes. */
void rnic_share_settle(struct rnic_share *sh);
/* A place in a completion queue, which is made if need be; NULL.  In a coroutine. */
struct rnic_place *rnic_share_place(struct rnic_share *sh);

/* ---- ends (end.c) ---- */

enum rnic_stage { END_MAKING, END_UP };

struct rnic_end {
    struct rnic_pair *pair; /* constant, and there as long as it */
    struct rnic_vm *rv;
    struct rnic_cm *cm;
    struct rnic_share *share;
    struct rnic_place *place;
    bool active;    /* we connect */
    uint64_t order; /* constant: the later it was begun the higher */
    bool of_peer;   /* and nobody here wanted it */
    uint64_t token[2];
    struct pvrdma_gid address; /* of the peer's NIC; any thread of ours knows no other */
    uint16_t port, receives;   /* what the peer says */
    uint32_t size;
    char name[96]; /* for the log */

    enum rnic_stage stage;
    const char *why; /* it is to go, for this reason; constant text */
    bool failed;     /* and that is a failure */
    bool later;      /* the peer has no room for it now */
    bool idle;       /* nobody misses it */
    bool running, kicked;
    struct coro *waiter;
    guint timer;
    gint64 deadline; /* us: of its making */

    struct rdma_cm_id *id;
    bool has_qp;
    struct rnic_block *tx, *rx; /* until there is @ch */
    struct rnic_channel *ch;    /* under the token */
    _Atomic uint64_t heard;     /* ns: something was taken */

    /* What has come: by the link, and of the connection manager. */
    bool answered, expected;
    bool counts; /* as one that is being made */
    uint8_t result;
    unsigned seen; /* events, a bit each */

    /* What the channel asks for, under asks.lock of end.c. */
    bool asks, to_err, broken;
    unsigned grow_n[2];
    uint32_t grow_size[2];
    TAILQ_HEAD(, rnic_block) spare;
    TAILQ_ENTRY(rnic_end) asking;

    LIST_ENTRY(rnic_end) of_cm, is_expected, of_pair;
};

bool rnic_ends_start(void);
void rnic_ends_stop(void);
/* The channel's calls go there. */
void rnic_ends_set_ops(const struct rnic_pair_ops *ops);
/* It begins when it is kicked; its pair is told what becomes of it. */
struct rnic_end *rnic_end_new(struct rnic_pair *p, struct rnic_cm *cm, bool active);
/* It is to go.  @failed: for a reason that counts. */
void rnic_end_go(struct rnic_end *e, const char *why, bool failed);
void rnic_end_kick(struct rnic_end *e);
/* Of the connection manager. */
void rnic_end_event(struct rnic_end *e, enum rdma_cm_event_type type);
/* A request with @token: it is @id's from now on.  NULL: nobody's. */
struct rnic_end *rnic_end_expected(struct rnic_cm *cm, const uint64_t token[2],
                                   struct rdma_cm_id *id);
/* What the private data of a request hold; false: they make no sense. */
bool rnic_end_token(const void *data, size_t len, uint64_t token[2]);

/* ---- pairs (pair.c) ---- */

struct rnic_pair {
    struct rnic_vm *rv;
    struct peer *peer;
    uint64_t owner[2];
    uint64_t own[2];        /* our VM's, when `end` was begun: the peer knows no other */
    bool hidden;            /* the other end of a VM that is connected with itself */
    bool wanted;            /* by somebody here */
    _Atomic unsigned holds; /* any thread */
    bool making, up;
    struct rnic_end *end; /* the newest; NULL: there is none, or it is to go */
    unsigned n_ends;
    enum rnic_pair_state told;
    unsigned tries; /* of this time */
    struct {
        struct pvrdma_gid ours, theirs;
    } tried[RNIC_TRIES];
    gint64 patience;   /* us: until then others wait */
    gint64 failed_at;  /* us: last; 0: never */
    gint64 rest_until; /* us: and nobody makes one */
    gint64 not_before; /* us: nor do we ask */
    unsigned n_full;   /* how often there was no room, one after the other */
    guint timer;
    struct pvrdma_gid avoid; /* our NIC that has failed last */

    /* What is asked of the peer: WANT, or an end's CHANNEL. */
    bool asking, wants;
    uint64_t token[2];
    LIST_ENTRY(rnic_pair) is_asking;

    struct rnic_channel *ch; /* under the token; NULL: there is none that is up */
    LIST_ENTRY(rnic_pair) of_vm;
    LIST_HEAD(, rnic_end) ends;
};

/* @e is up; is to go, as e->why says (more than once); and has gone. */
void rnic_pair_end_up(struct rnic_end *e);
void rnic_pair_end_goes(struct rnic_end *e);
void rnic_pair_end_gone(struct rnic_end *e);
/* Our own NICs are others. */
void rnic_pairs_nics_changed(void);
void rnic_pairs_of_vm_gone(struct rnic_vm *rv);
/* Ask the peer of @p by what @c says. */
bool rnic_pair_ask(struct rnic_pair *p, struct peer_channel *c);
void rnic_pair_asked(struct rnic_pair *p); /* no more */
void rnic_pair_answer(struct peer *to, const uint64_t token[2],
                      enum peer_channel_result result, uint16_t port);

/* ---- the other side (far.c) ---- */

void rnic_far_start(void);
void rnic_far_stop(void);
/* The NICs of @peer (NULL: our own) that are up: how many, and the @i-th one. */
unsigned rnic_far_nics(struct peer *peer);
const struct peer_nic *rnic_far_nic(struct peer *peer, unsigned i);
/* To @peer, or this daemon itself if that is NULL. */
bool rnic_far_send_channel(struct peer *peer, const struct peer_channel *c);
void rnic_far_send_answer(struct peer *peer, const struct peer_channel_answer *a);
void rnic_far_own_changed(void);
/* Those that peer has begun and are being made. */
unsigned *rnic_far_making(struct peer *peer);

/* pair.c, for far.c. */
void rnic_pair_channel_came(struct peer *from, const struct peer_channel *c);
void rnic_pair_answer_came(struct peer *from, const struct peer_channel_answer *a);
/* @peer has other NICs; is another daemon than before, or has gone; has no link. */
void rnic_pairs_peer_nics(struct peer *peer);
void rnic_pairs_peer_ended(struct peer *peer, const char *why);
void rnic_pairs_link_down(struct peer *peer);

#endif /* PVRDMAD_RNIC_PAIR_INTERNAL_H */
