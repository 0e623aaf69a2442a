/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The data path: worker threads that find doorbells, fetch and check WQEs,
 * order them, carry them through a transport and complete them.
 *
 * This header is what the rest of the daemon calls (main thread); what
 * transports call is in engine.h.
 */
#ifndef PVRDMAD_DATAPATH_H
#define PVRDMAD_DATAPATH_H

#include <glib.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "pvrdma/doorbell.h"

struct vm;
struct qp;
struct cq;
struct worker;
struct ext_list;
struct ring_mem;

/* Bytes moved between two looks at everything else: at most, and at least. */
#define DATAPATH_SLICE     65536u
#define DATAPATH_SLICE_MIN 1024u

/* Doorbell maps: the daemon's own and the VMM's, send and receive each. */
#define DATAPATH_REGION_MAPS 4u

/* Send queues whose producer index the worker polls, see watch.c. */
#define DATAPATH_WATCHED 16u

struct watched {
    _Atomic(struct qp *) qp; /* NULL: free */
    /* All else is the worker's. */
    const _Atomic uint32_t *prod; /* NULL: not mapped */
    uint32_t seen;                /* the last value of *prod */
    bool told;                    /* the guest: it need not notify */
    uint64_t used;                /* ns, when *prod last changed */
};

struct vm_watch {
    struct watched place[DATAPATH_WATCHED];
    unsigned n;    /* places that were ever used */
    unsigned next; /* where the next QP is put */
    uint64_t generation;
};

struct vm_datapath {
    struct worker *worker;

    /* The token: the right to run the VM's send queues; see vm.h. */
    pthread_mutex_t token;
    _Atomic unsigned token_waiters;
    _Atomic bool paused;

    /* Under the token. */
    TAILQ_HEAD(, qp) run;  /* QPs with work */
    _Atomic bool has_work; /* what the worker last saw of run */
    struct qp **timer;     /* heap by req.wait_until, [1..ntimer] */
    uint32_t ntimer;
    int64_t deficit;                /* bytes, deficit round robin */
    uint32_t slice;                 /* bytes of this VM's, see sched.c */
    _Atomic(struct ext_list *) ext; /* contexts' own doorbell maps */
    unsigned scan_map;              /* where the next doorbell scan begins */
    unsigned scan_pos[DATAPATH_REGION_MAPS];
    uint64_t scanned; /* ns, when the last one was */
    struct vm_watch watch;
    _Atomic bool cq_error;       /* a CQ failed: its QPs must go to ERR */
    _Atomic uint64_t next_timer; /* ns; UINT64_MAX: none */

    /* Statistics; written by one worker at a time. */
    _Atomic uint64_t tx_msgs, tx_bytes, rx_msgs, rx_bytes, errors, rnr_waits, retries,
        interrupts;
};

/* Start / stop the threads.  poll_us: how long a worker spins when idle. */
bool datapath_start(unsigned workers, unsigned poll_us, GError **errp);
void datapath_stop(void);

/* Give the VM to the least loaded worker / take it away (waits). */
int datapath_vm_init(struct vm *vm);
void datapath_vm_fini(struct vm *vm);

/*
 * Return when every worker has passed a quiescent point since the call: no
 * pointer that was unpublished before it is in use any more.  Main thread; it
 * may hold VM tokens.
 */
void datapath_quiesce(void);

void vm_token_take(struct vm *vm);
void vm_token_release(struct vm *vm);

/* Object life, called by verbs/ on the main thread. */

/* A new QP or CQ was published: set owner words, clear stale doorbells. */
void datapath_qp_created(struct qp *qp, uint32_t uar_page);
void datapath_cq_created(struct cq *cq, uint32_t uar_page);

/*
 * A context brought or takes away its extension memory (ext.h): @mem has
 * PVRDMA_EXT_PAGES pages and stays valid until removed.  Waits for quiescence.
 */
void datapath_ext_add(struct vm *vm, const struct ring_mem *mem);
void datapath_ext_remove(struct vm *vm, const struct ring_mem *mem);
void datapath_ext_clear(struct vm *vm); /* all of them */

/*
 * The QP's state or attributes changed (token and qp->lock are held by the
 * caller): reset clears rings and cursors, RTR initialises the responder and
 * binds the transport, RTS the requester, ERR flushes.
 */
void datapath_qp_modified(struct qp *qp, uint32_t old_state, uint32_t attr_mask);

/*
 * The QP leaves: token held.  Cuts peers' pointers to it, takes it off queues.
 * The caller unpublishes it before and quiesces and frees after.
 */
void datapath_qp_destroyed(struct qp *qp);
void datapath_cq_destroyed(struct cq *cq);

/* A GID was unbound: connections that use it lose their path. Token held. */
void datapath_gid_unbound(struct vm *vm, unsigned index);

/* Make the VM's worker look at this QP's send and receive queues.  Any
 * thread. */
void datapath_ring(struct vm *vm, uint32_t qp_handle);
/* Wake the worker of the VM if it sleeps.  Any thread. */
void datapath_wake(struct vm *vm);

/*
 * A request for a completion event that came as a message (D6, "forwarded
 * ARM"): stores the arm word, then fires at once if a completion that counts
 * lies beyond the guest's cons_head.  Main thread.
 */
void datapath_cq_arm(struct vm *vm, uint32_t cq_handle, bool solicited);

/*
 * irq.c brackets the use of a VM's eventfds, so that the watchdog thread can
 * break off a write if the client made it block (it fails with EINTR and the VM
 * is faulted), and so that a replaced eventfd is closed in time: drain returns
 * when no other thread is left between enter and leave for this VM that entered
 * before the call.  Workers and the main thread only.
 */
void datapath_irq_enter(struct vm *vm);
void datapath_irq_leave(void);
void datapath_irq_drain(struct vm *vm);

#endif /* PVRDMAD_DATAPATH_H */
