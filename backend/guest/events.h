/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Device-to-guest rings: async events and CQ notifications.  events.c has the
 * theory.
 */
#ifndef PVRDMAD_GUEST_EVENTS_H
#define PVRDMAD_GUEST_EVENTS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/state_stream.h"
#include "pvrdma/abi.h"
#include "pvrdma/ext.h"

struct guest;

/* Largest ring we take from DSR: the driver uses 4 pages (header included). */
#define EVENT_RING_MAX_PAGES 64u

/*
 * One ring.  lock protects all fields.  Positions are the device's own; the
 * guest's words are only read to see how far it has consumed.
 */
struct event_ring {
    pthread_mutex_t lock;
    bool active;                         /* between ACTIVATE and reset */
    bool held;                           /* bus master is off: no DMA for now */
    uint32_t npages;                     /* header page included */
    uint64_t page[EVENT_RING_MAX_PAGES]; /* guest-physical */
    uint32_t n;                          /* the ABI's n, not a power of two */
    uint32_t slots;                      /* slots really in use: guard against overrun */
    uint32_t elem;                       /* bytes */
    uint32_t prod;
    uint64_t pushed, dropped;
};

/*
 * A completion vector: its ring, and the CQs whose notification found that full, which
 * the worker retries: one bit per CQ handle; the ring's lock protects it.  NULL: the
 * guest has not given a ring to this vector.
 */
struct event_cq {
    struct event_ring ring;
    uint64_t *deferred;
};

struct guest_events {
    struct event_ring async;
    struct event_cq cqn[PVRDMA_EXT_MAX_VECTORS]; /* 0: always there */
    uint32_t max_cq, max_qp, max_srq;            /* handles are below them */
    /* A bit per vector that has deferred ones; changed under the ring's lock. */
    _Atomic uint32_t deferred_any;
    unsigned retry_first; /* where event_cq_retry() begins; its callers' token */
    _Atomic bool paused;  /* the data path stands still; no lock: who has one may wait */

    /*
     * Async events of CQs, QPs and SRQs that found the ring full; retried likewise.  A
     * byte per CQ handle, then one per QP handle and one per SRQ handle, with a bit per
     * type of event; async.lock protects it.
     */
    uint8_t *pending;
    uint32_t n_pending;     /* bits */
    uint32_t first_pending; /* no byte before it has one */
    _Atomic bool pending_any;
    /* If not NULL: called when there are some that were none; no lock is held. */
    void (*on_pending)(struct guest *g);
};

/* Is there anything to be retried? */
static inline bool event_deferred(const struct guest_events *ev)
{
    return atomic_load(&ev->deferred_any) || atomic_load(&ev->pending_any);
}

/* Main thread. */
void event_init(struct guest_events *ev, uint32_t max_cq, uint32_t max_qp,
                uint32_t max_srq);
void event_fini(struct guest_events *ev);

/*
 * Take over a ring's pages (page-aligned, checked) and go back to its start;
 * 2 <= npages <= EVENT_RING_MAX_PAGES, elem: 4 or 8 bytes.  It stays inactive.
 */
void event_ring_setup(struct event_ring *ring, uint32_t npages, const uint64_t *page,
                      uint32_t elem);

/*
 * All rings: let pushes reach the guest (@active), or hold them (@held).  An inactive
 * guest has no further vectors: it gives their rings anew.
 */
void event_set_active(struct guest_events *ev, bool active, bool held);

/*
 * Notifications and events are deferred while the VM's data path stands still: all of
 * them, a grace period after this.  It does not wait.
 */
void event_set_paused(struct guest_events *ev, bool paused);

/*
 * Async event (ring, then vector 1).  One of a CQ, QP or SRQ comes later if the ring is
 * full, and once if it was raised again until then.  Any thread; no lock held but
 * qp/srq/cq's.
 */
void event_async(struct guest *g, enum pvrdma_event_type type, uint32_t info);

/*
 * A ring for completion vector @vector of an active guest; as event_ring_setup().  Main
 * thread.  0, EINVAL (no such vector), EBUSY (it has one) or ENOMEM.
 */
int event_vector_add(struct guest_events *ev, uint32_t vector, uint32_t npages,
                     const uint64_t *page);
/* Has completion vector @vector a ring?  Main thread. */
bool event_vector_exists(const struct guest_events *ev, uint32_t vector);

/*
 * CQ notification: into the ring of @vector; the caller raises PVRDMA_VEC_CQ + @vector
 * afterwards (once per batch).  Any thread.
 */
void event_cq_notify(struct guest *g, uint32_t cq_handle, uint32_t vector);

/*
 * Retry deferred notifications; the VM's worker.  A bit per completion vector that is
 * to be raised.
 */
uint32_t event_cq_retry(struct guest *g);

/* Retry async events; the VM's worker.  True: raise the vector. */
bool event_async_retry(struct guest *g);

/* The CQ, QP or SRQ is gone: nothing of it comes later any more.  Main thread. */
void event_cq_forget(struct guest *g, uint32_t cq_handle, uint32_t vector);
void event_qp_forget(struct guest *g, uint32_t qp_handle);
void event_srq_forget(struct guest *g, uint32_t srq_handle);

/* ---- the state stream (save_events.c); main thread, the data path stands still ---- */

/* The rings, which are there if the guest has given them (@given). */
void event_save(struct guest_events *ev, bool given, struct state_out *s);
/* The rest as event_set_active(), which was called for a guest that is not active. */
void event_load(struct guest_events *ev, bool given, bool active, bool held,
                struct state_in *s);

/* What an event is about. */
enum event_object { EVENT_OF_CQ, EVENT_OF_QP, EVENT_OF_SRQ };

/* Can these bits wait of such an object, and at least one? */
bool event_bits_valid(enum event_object what, uint8_t bits);
void event_set_pending(struct guest_events *ev, uint32_t place, uint8_t bits);

/*
 * What waits to be told, after all that it can be about: @exists says if the guest has
 * such an object, and that it is a CQ of that vector unless @vector is -1.
 */
void event_waiting_save(struct guest_events *ev, struct state_out *s);
void event_waiting_load(struct guest_events *ev,
                        bool (*exists)(void *opaque, enum event_object what,
                                       uint32_t handle, int vector),
                        void *opaque, struct state_in *s);

#endif /* PVRDMAD_GUEST_EVENTS_H */
