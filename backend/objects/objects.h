/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The verbs objects of one VM and their ID tables.
 *
 * Tables are fixed-size arrays of atomic pointers, sized from the VM's
 * configured caps.  The main thread creates and destroys; workers look up.
 * Handle 0 is never given out.  Numbers a peer can name (keys, QPNs) carry a
 * generation, so that one of a dead object does not reach its successor:
 *
 *   key = index << 8 | generation   (index 1..max_mr-1, generation 1..255)
 *   qpn = generation << 16 | handle (24 bits, generation 1..255)
 */
#ifndef PVRDMAD_OBJECTS_H
#define PVRDMAD_OBJECTS_H

#include <errno.h>
#include <glib.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/deadlines.h"
#include "base/state_stream.h"
#include "pvrdma/abi.h"
#include "pvrdma/ext.h"

struct cq;
struct ext_ctx;
struct qp;
struct vm;

/* Caps that do not depend on the VM's configuration. */
#define VERBS_MAX_UAR     512u /* the size of BAR2 is this times 4096 */
#define VERBS_MAX_SGE     16u
#define VERBS_MAX_QP_WR   16384u
#define VERBS_MAX_CQE     262144u
#define VERBS_MAX_RD_ATOM 16u
#define VERBS_GID_TBL_LEN 64u
#define VERBS_MAX_MSG_SZ  0x80000000u  /* 2 GiB */
#define VERBS_MAX_UD_SZ   4096u        /* the port's MTU: a datagram is one packet */
#define VERBS_MAX_MR_SIZE (1ull << 30) /* one page directory; ext.h: deep ones */
#define VERBS_PKEY        0xffffu

/* So many levels of words with 64 bits are enough for any table. */
#define ID_TABLE_LEVELS 4u
#define ID_TABLE_MAX    (1u << 24)

struct id_table {
    _Atomic(void *) *slot; /* [size]; slot 0 is never used */
    /*
     * Bits of what is not to be had: at the first level the indices, at each other one
     * the words of that below it, in one mapping; what is behind the end counts as taken.
     */
    uint64_t *taken[ID_TABLE_LEVELS];
    unsigned levels;
    uint8_t *gen; /* [size]; 1..255, advanced on each allocation */
    uint32_t size;
    uint32_t next; /* where the next search begins */
    uint32_t used;
    _Atomic uint32_t end; /* indices from here on were never used */
};

/* 2 <= @size <= ID_TABLE_MAX.  Memory is zero pages until used. */
bool id_table_init(struct id_table *t, uint32_t size);
void id_table_fini(struct id_table *t);
/*
 * Reserve the next free index (round robin) without publishing; 0 = full.  The
 * caller publishes or releases it before anything else is reserved.
 */
uint32_t id_table_reserve(struct id_table *t);
void id_table_publish(struct id_table *t, uint32_t index, void *object);
/* Another object in place of @old, if that is still there. */
bool id_table_replace(struct id_table *t, uint32_t index, void *old, void *object);
/* Unpublish; the index becomes free. */
void id_table_release(struct id_table *t, uint32_t index);
/*
 * Reserve a given index, with the generation that it has had since id_table_load().
 * False: there is no such, it was never used, or it is in use.
 */
bool id_table_place(struct id_table *t, uint32_t index);

/* What numbers there were, free ones too; of an empty table when it is loaded. */
void id_table_save(const struct id_table *t, struct state_out *s);
void id_table_load(struct id_table *t, struct state_in *s);

static inline void *id_table_get(const struct id_table *t, uint32_t index)
{
    if (index == 0 || index >= t->size) {
        return NULL;
    }
    return atomic_load_explicit(&t->slot[index], memory_order_acquire);
}

/* All objects have indices below it. */
static inline uint32_t id_table_end(const struct id_table *t)
{
    return atomic_load_explicit(&t->end, memory_order_relaxed);
}

/* Pages of a QP's or CQ's rings in guest memory. */
struct ring_mem {
    bool ext; /* header page as in ext.h (struct pvrdma_ext_ring) */
    uint32_t npages;
    uint64_t *page;
    size_t own; /* bytes that were charged with its pages, of the object it is of */
    struct ext_ctx *ctx; /* of extension memory: the data path's */
};

struct uctx {
    uint32_t handle;
    uint32_t uar_page;   /* 1..VERBS_MAX_UAR-1 */
    uint32_t refs;       /* PDs and CQs made with it */
    struct ring_mem ext; /* extension memory; npages 0: none */
};

struct pd {
    uint32_t handle;
    struct uctx *uctx; /* NULL: the guest kernel's */
    uint32_t refs;     /* MRs and QPs */
};

struct mr {
    uint32_t handle;
    uint32_t lkey, rkey; /* equal; a DMA MR's has no remote rights */
    struct pd *pd;
    bool dma;        /* addresses are guest-physical, no page list */
    uint32_t access; /* PVRDMA_ACCESS_* */
    uint64_t start;  /* guest-virtual address of byte 0 */
    uint64_t length;
    struct fast_mr *fast;     /* NULL: its key lives as long as it does */
    uint8_t window;           /* PVRDMA_EXT_MW_*; 0: no window */
    uint32_t qpn;             /* of a window, who bound it last; of type 2B is his */
    struct mr *base;          /* of a bound window: what it is bound to */
    _Atomic uint32_t windows; /* bound to it; a worker with the token alone adds */
    struct mr *next_dead;     /* between unpublishing and freeing; main thread */
    uint32_t offset;          /* of start in page[0] */
    uint32_t npages;
    uint64_t page[]; /* guest-physical, page-aligned */
};

/*
 * An MR or window whose key is made and taken away by work requests (datapath/keys.c).
 * The key table has `valid` or, while there is no key, `idle`, which matches none.
 */
struct fast_mr {
    struct mr *idle;
    struct mr *valid;         /* lkey: the last key there was */
    uint32_t max_pages;       /* its room */
    _Atomic uint64_t free_at; /* after this grace period `valid` may be changed */
};
#define FAST_MR_IN_USE UINT64_MAX

/* Moderation of a CQ's events, see datapath/cq_moderation.c. */
struct cq_hold {
    bool on;
    bool held;      /* an event is held back */
    bool sol;       /* a solicited or error completion is among what it is of */
    uint32_t count; /* it is of so many at most; 0: of any number */
    uint64_t ns;    /* it is held no longer */
    uint32_t n;     /* it is of so many */
    struct deadline timer;
};

/* Completions that are written to a CQ's ring together. */
#define CQ_STAGE 16u

struct cq {
    struct vm *vm;
    uint32_t handle;
    struct uctx *uctx;    /* NULL: kernel */
    uint32_t vector;      /* completion vector */
    bool stamps;          /* its CQEs have time stamps */
    uint32_t ncqe;        /* power of two; with the lock */
    struct ring_mem mem;  /* npages, page: with the lock */
    uint32_t refs;        /* QPs; main thread */
    struct cq *next_dead; /* like mr's */
    /* The header page, for those without the lock; changes in datapath_cq_move(). */
    _Atomic uint64_t header;

    bool error_reported;  /* CQ_ERR was raised; token */
    _Atomic bool looking; /* a note to look for what an arm missed is on its way */

    pthread_mutex_t lock; /* protects all below */
    uint32_t prod;        /* next index to write */
    uint32_t published;   /* prod_tail as the guest sees it */
    uint32_t cons;        /* last valid cons_head read */
    bool error;           /* overrun or bad index: no more completions */
    uint32_t last_sol;    /* index behind the last solicited or error CQE */
    bool new_sol;         /* there was one since `published` */
    uint64_t batched;     /* bit per worker: it is in that one's batch */
    struct cq_hold hold;
    /* The last ones before prod, not yet in the ring; else not before published. */
    struct pvrdma_cqe stage[CQ_STAGE];
    uint32_t staged;
};

#include "objects/qp_state.h"

struct qp {
    struct vm *vm;
    uint32_t handle, qpn;
    enum pvrdma_qp_type type;
    const struct service *service;
    uint32_t ops; /* bit per enum pvrdma_wr_opcode */
    struct pd *pd;
    struct cq *scq, *rcq;
    bool sq_sig_all;
    uint32_t max_inline; /* bytes; extended QPs only */
    struct ring_mem mem; /* page 0 holds the ring state */
    struct wq sq;        /* the VM's worker, under the token */
    struct rq own_rq;    /* without WQEs if it has an SRQ */
    struct ticket own_wait[RQ_WAITERS];
    struct rq *rq;        /* where it receives: own_rq, or an SRQ's */
    struct qp *next_dead; /* like mr's */

    /*
     * Protects rq, responder state, state and attr.  The worker may read state
     * and attr under the token alone: they change under both, except that a
     * responder error sets state to ERR under lock only.
     */
    pthread_mutex_t lock;
    _Atomic uint32_t state;     /* enum pvrdma_qp_state */
    struct pvrdma_qp_attr attr; /* what MODIFY_QP set and QUERY_QP returns */

    struct qp_requester req;  /* under the token */
    struct qp_responder resp; /* under lock */
    struct qp_counters seldom;
};

/* What the VM's worker has to tell the guest of an SRQ. */
#define SRQ_TELL_LIMIT 1u
#define SRQ_TELL_ERROR 2u

/* A shared receive queue. */
struct srq {
    struct vm *vm;
    uint32_t handle;
    struct pd *pd;
    struct ring_mem mem;
    uint32_t refs;         /* QPs; main thread */
    struct srq *next_dead; /* like mr's */
    /* Armed: told once there are fewer receives than that; 0: not armed. */
    _Atomic uint32_t limit;
    _Atomic uint32_t tell; /* SRQ_TELL_* */

    /* Protects the two below.  Taken after a QP's, never held while bytes are moved. */
    pthread_mutex_t lock;
    bool error; /* bad index, or ring memory that is not there: no receives any more */
    struct rq rq;
    struct ticket wait[SRQ_WAITERS]; /* rq.wait */
};

struct gid_entry {
    bool bound;
    _Atomic bool
        waiting;  /* ... but the VM does not have the address, as another has it */
    uint8_t type; /* PVRDMA_GID_TYPE_* */
    struct pvrdma_gid gid;
    struct waiter
        *waiter;     /* the directory's; main thread; NULL: it does not wait there */
    uint64_t waited; /* ns, until it was loaded; main thread */
};

struct objects {
    struct vm *vm;
    uint64_t uar_pfn; /* of BAR2 in the guest; device/ sets it with the DSR */
    struct id_table uctx, pd, mr, cq, qp, srq;
    /*
     * Written by the main thread with the VM's token; its worker reads it with that.  But
     * that one waits no more needs no token: nobody waits for another VM's worker.
     */
    struct gid_entry gid[VERBS_GID_TBL_LEN];
    _Atomic bool link_down;          /* the guest's interface is; main thread writes it */
    bool gids_unclaimed;             /* they were loaded, see gids_claim() */
    const char *network;             /* cfg->network, interned */
    _Atomic(struct qp *) gsi;        /* QP number 1 */
    uint64_t pages_used;             /* of cfg->max_mr_pages; main thread */
    uint8_t uar_used[VERBS_MAX_UAR]; /* main thread */
    struct ring_mem kernel_ext;      /* the guest kernel's extension memory */
};

/* Empty tables of the sizes in vm->cfg.  Main thread.  0 or ENOMEM. */
int objects_init(struct objects *v, struct vm *vm);
void objects_fini(struct objects *v);

/* Does the VM have the address, so that it may be used? */
static inline bool gid_is_held(const struct gid_entry *entry)
{
    return entry->bound && !entry->waiting;
}

/* Look-ups for the data path (any worker, until its quiescent point). */
static inline struct mr *objects_mr_by_key(const struct objects *v, uint32_t key)
{
    struct mr *mr = id_table_get(&v->mr, key >> 8);

    return mr && mr->lkey == key ? mr : NULL;
}

/*
 * Put `idle` in the place of @mr, which the table has; false: somebody else was faster.
 * Its users may not have passed a quiescent point yet.
 */
bool mr_take_key(struct objects *v, struct mr *mr);

/*
 * Rights that an MR's key can give.  On-demand paging: none.  Strips hints from *access.
 * 0, EINVAL or ENOTSUP.
 */
static inline int mr_access_check(uint32_t *access)
{
    uint32_t rights = *access & ~PVRDMA_ACCESS_HINTS;

    if (rights & ~(PVRDMA_ACCESS_LOCAL_WRITE | PVRDMA_ACCESS_REMOTE)) {
        return ENOTSUP;
    }
    /* InfiniBand spec 10.6.3.1: remote stores need the right to store. */
    if ((rights & (PVRDMA_ACCESS_REMOTE_WRITE | PVRDMA_ACCESS_REMOTE_ATOMIC)) &&
        !(rights & PVRDMA_ACCESS_LOCAL_WRITE)) {
        return EINVAL;
    }
    *access = rights;
    return 0;
}

/* @qpn may be 1 (the GSI QP). */
static inline struct qp *objects_qp_by_qpn(const struct objects *v, uint32_t qpn)
{
    struct qp *qp;

    if (qpn == 1) {
        return atomic_load_explicit(&v->gsi, memory_order_acquire);
    }
    qp = id_table_get(&v->qp, qpn & 0xffff);
    return qp && qp->qpn == qpn ? qp : NULL;
}

/*
 * The QP state machine (InfiniBand spec 10.3.1, 11.2.5.2): is @cur -> @next
 * allowed for @type with exactly these attributes?  0 or EINVAL.
 */
int qp_transition_check(enum pvrdma_qp_type type, enum pvrdma_qp_state cur,
                        enum pvrdma_qp_state next, uint32_t attr_mask);

/* Counts for status and leak checks. */
struct objects_stats {
    uint32_t uctx, pd, mr, cq, qp, srq, gid;
    uint64_t pages;
};
void objects_get_stats(const struct objects *v, struct objects_stats *st);

#endif /* PVRDMAD_OBJECTS_H */
