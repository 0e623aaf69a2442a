/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The engine's inside: what transports and the files of datapath/ share.
 * Everything here runs on workers unless said otherwise.
 */
#ifndef PVRDMAD_ENGINE_H
#define PVRDMAD_ENGINE_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "datapath/datapath.h"
#include "datapath/transport.h"
#include "directory/directory.h"
#include "grace.h"

#define PSN_MASK 0xffffffu

/* Messages of one QP served before the next QP's turn. */
#define ENGINE_BATCH 16u
/* What a message costs besides its bytes, for fairness. */
#define ENGINE_MSG_COST 1024u

/*
 * CQs that got completions since the last flush.  One service turn of a QP
 * touches at most its own two CQs and its peer's receive CQ.
 */
#define COMP_BATCH_MAX 64u
struct comp_batch {
    unsigned n;
    struct cq *cq[COMP_BATCH_MAX];
};

/* The VMs of one worker: immutable, replaced by the main thread. */
struct vm_list {
    unsigned n;
    struct vm *vm[];
};

struct worker {
    unsigned index;
    pthread_t thread;
    _Atomic bool stop;
    struct grace_thread grace;
    _Atomic bool sleeping; /* wants wakefd */
    int epfd, wakefd;
    _Atomic(struct vm_list *) vms;
    struct comp_batch batch;
    /* Received since the last comp_flush(), all by one VM. */
    struct vm *rx_vm;
    uint64_t rx_msgs, rx_bytes;
};

static inline uint64_t now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static inline void full_barrier(void)
{
    atomic_thread_fence(memory_order_seq_cst);
}

/* --- sg.c: scatter/gather over MRs ------------------------------------- */

enum sg_side { SG_LOCAL, SG_REMOTE };

struct sg_list {
    struct vm *vm;
    struct pd *pd;
    uint32_t access; /* PVRDMA_ACCESS_* that every MR must grant; 0: none */
    bool write;      /* the engine stores to it */
    uint32_t nsge;
    const struct pvrdma_sge *sge;
    struct sg_cursor cur;
    const uint8_t *raw; /* not NULL: the bytes are here (inline data) */
};

/* Sum of lengths; at most QP_MAX_SGE * 4 GiB, so it cannot overflow. */
uint64_t sg_length(const struct pvrdma_sge *sge, uint32_t nsge);

/* Are all keys valid for this list (PD, access, bounds)? */
bool sg_check(const struct sg_list *l);

enum sg_result { SG_OK, SG_SRC_KEY, SG_SRC_MEM, SG_DST_KEY, SG_DST_MEM };

/*
 * Copy @n bytes from @src to @dst at their cursors, which advance.  Keys are
 * looked up again, so an MR that went away is noticed at the next slice.
 * _KEY: no such right; _MEM: the pages are not in the DMA map.
 */
enum sg_result sg_copy(struct sg_list *dst, struct sg_list *src, uint64_t n);

/* Fill @l from @n bytes at @data (atomics' results). */
enum sg_result sg_fill(struct sg_list *l, const void *data, uint64_t n);

/*
 * Host address of one naturally aligned 8-byte word under a remote key, and its
 * guest-physical address; NULL with *why = SG_DST_KEY or SG_DST_MEM.
 */
uint64_t *sg_word(const struct sg_list *l, uint64_t *gpa, enum sg_result *why);

/* --- ring.c: queues in guest memory ------------------------------------- */

/* Guest-physical address of a ring index: @rx half, @cons or producer. */
uint64_t ring_word_gpa(const struct ring_mem *mem, bool rx, bool cons);

/* Guest-physical address of an extended QP's no_notify word (ext.h). */
uint64_t ring_no_notify_gpa(const struct ring_mem *mem, bool rx);

/* Store @value in a word of guest memory that only the device writes. */
bool ring_store(struct vm *vm, uint64_t gpa, uint32_t value);

/* Guest-physical address @off bytes behind the start of page @first of a queue. */
static inline uint64_t ring_slot_gpa(const struct ring_mem *mem, uint32_t first,
                                     uint64_t off)
{
    return mem->page[first + (off >> PVRDMA_PAGE_SHIFT)] + (off & (PVRDMA_PAGE_SIZE - 1));
}

/* Guest-physical address of WQE @slot. */
uint64_t wq_slot_gpa(const struct ring_mem *mem, const struct wq *wq, uint32_t slot);

/*
 * Number of WQEs the guest is known to have posted beyond wq->cons; only if that
 * is none its index is read again.  -1 if it is invalid or the page is gone.
 * @rx: receive side of the ring state.
 */
int32_t wq_pending(struct qp *qp, struct wq *wq, bool rx);

/* Advance wq->cons and tell the guest. */
void wq_consume(struct qp *qp, struct wq *wq, bool rx);

/* --- complete.c ---------------------------------------------------------- */

/*
 * Put a completion into @cq (cqe->qp etc. filled in by the caller); published
 * by the worker's next comp_flush().  A full CQ fails, see cq_fail there.
 */
void comp_push(struct cq *cq, const struct pvrdma_cqe *cqe, bool solicited);

/* Count a message that @vm received; part of the next comp_flush(). */
void comp_received(struct vm *vm, uint64_t bytes);

/* Publish all of this worker's completions and raise interrupts, once each. */
void comp_flush(struct worker *w);

/* --- requester.c --------------------------------------------------------- */

/*
 * Serve one QP for at most @budget bytes.  Returns what it cost; *more: it has
 * work left.
 */
uint64_t requester_run(struct qp *qp, uint64_t budget, bool *more);

/* --- responder.c: what transports call for the receiving side ------------- */

enum admit_result {
    ADMIT_OK,
    ADMIT_RNR,         /* status: timer code */
    ADMIT_UNREACHABLE, /* wrong state, peer or PSN: silence */
    ADMIT_ERROR,       /* status: what the requester completes with */
};

/* What came of an admission; see responder_admit_tell(). */
struct admission {
    uint32_t status;      /* for the requester; ADMIT_RNR: timer code */
    uint32_t recv_status; /* of the receive WQE that failed */
    int event;            /* async event of the responder; < 0: none */
    bool comm_est;
};

/*
 * A message of @from's requester arrives at @qp: check state, peer, sequence
 * and rights, claim a receive WQE if it takes one.  qp->lock is held; once it
 * is dropped the caller passes @a to responder_admit_tell().
 */
enum admit_result responder_admit_locked(struct qp *qp, struct qp *from,
                                         struct send_op *op, struct admission *a);
void responder_admit_tell(struct qp *qp, const struct admission *a);

/*
 * Is the message that was admitted in @op still wanted?  Copies the receive
 * WQE's list to @recv (SENDs).  False: admit it again.  _locked: qp->lock is held
 * since the admission, so it is.
 */
void responder_begin_slice_locked(struct qp *qp, const struct send_op *op,
                                  struct recv_op *recv);
bool responder_begin_slice(struct qp *qp, const struct send_op *op, struct recv_op *recv);

/* A slice of a SEND is over and the message is not finished: store its cursor. */
void responder_end_slice(struct qp *qp, const struct send_op *op,
                         const struct sg_cursor *cur);

/*
 * The message is complete: sequence numbers, receive completion.  False: what
 * was admitted is void.  _locked: qp->lock is held since the admission.
 */
void responder_finish_locked(struct qp *qp, const struct qp *from,
                             const struct send_op *op);
bool responder_finish(struct qp *qp, const struct qp *from, const struct send_op *op);

/*
 * The message fails at the responder: receive completion with @recv_status (if
 * a WQE was claimed), async @event, QP to ERR.
 */
void responder_fail(struct qp *qp, uint32_t epoch, uint32_t recv_status,
                    enum pvrdma_event_type event);

/*
 * Flush up to @max receive WQEs; returns how many.  One that a slice is being
 * copied to stays until that is over, and the QP is rung then.  qp->lock not held.
 */
unsigned responder_flush(struct qp *qp, unsigned max);

/* A receive WQE was posted (doorbell): end the RNR wait of whoever waits. */
void responder_recv_posted(struct qp *qp);

/* From here on posted receives have to be noticed.  qp->lock held. */
void responder_want_notify_locked(struct qp *qp);

/* Sequence numbers a message of @length bytes takes at @mtu (1..5). */
uint32_t psn_count(uint64_t length, uint32_t mtu);

/* --- state.c -------------------------------------------------------------- */

/*
 * What going to ERR means for the QP itself: what was admitted is void, and all that
 * is posted has to be flushed.  qp->lock held.
 */
void qp_enter_error_locked(struct qp *qp);

/* To ERR with an async event (none: event < 0).  Takes qp->lock. */
void qp_set_error(struct qp *qp, int event);

/* --- doorbells.c ---------------------------------------------------------- */

/* Call @send / @recv for handles with a bit set; true if there were any. */
bool doorbells_scan(struct vm *vm, void (*send)(struct vm *, uint32_t),
                    void (*recv)(struct vm *, uint32_t));
bool doorbells_pending(struct vm *vm);
/* Set or clear every kick word of the VM. */
void doorbells_set_kick(struct vm *vm, uint32_t kick);

/* --- watch.c -------------------------------------------------------------- */

/* @qp was posted to: watch its send queue if there is a place.  Token held. */
void watch_add(struct qp *qp, uint64_t now);
/* Nothing was posted beyond sq.cons when it was looked at last.  Token held. */
void watch_drained(struct qp *qp);
/* @qp is destroyed.  Token held. */
void watch_remove(struct qp *qp);
/* sched_look() at every watched queue that was posted to; true: some.  Token held. */
bool watch_scan(struct vm *vm, uint64_t now);
/* Was any posted to since?  The VM's worker. */
bool watch_pending(struct vm *vm);
/* Before sleeping: from here on posts come with doorbells.  Full barrier after it. */
void watch_stop_telling(struct vm *vm);

/* --- sched.c -------------------------------------------------------------- */

/*
 * Serve the VM once: doorbells, timers, a turn.  @now: ns, at the end too if there
 * was a turn.  True: it had work.
 */
bool sched_vm(struct worker *w, struct vm *vm, uint64_t *now);
/* Anything to do for it now?  (Before sleeping.) */
bool sched_vm_pending(struct vm *vm);
/* Somebody asked to look at this QP.  Token held. */
void sched_look(struct qp *qp);
void sched_enqueue(struct qp *qp);
void sched_dequeue(struct qp *qp);
/* Look at @qp again at @when (ns). */
void sched_wait(struct qp *qp, enum qp_wait why, uint64_t when);
void sched_unwait(struct qp *qp);

/* --- worker.c -------------------------------------------------------------- */

/* The calling thread's worker; NULL on the main thread. */
struct worker *worker_self(void);

/* Have it look around if it sleeps.  Begins with a full barrier.  Any thread. */
void worker_wake(struct worker *w);

/* The worker with the fewest VMs; NULL: none was started.  Main thread. */
struct worker *worker_least_loaded(void);

#endif /* PVRDMAD_ENGINE_H */
