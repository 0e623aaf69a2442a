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

#include "base/grace.h"
#include "base/state_stream.h"
#include "datapath/datapath.h"
#include "datapath/transport.h"
#include "directory/directory.h"

/*
 * For functions of every message's way that have no array, only single words and
 * structures which others fill member by member: a stack protector, which
 * -fstack-protector-strong gives them for those others' sake, guards nothing there
 * and costs 5 instructions each.
 */
#if defined(__has_attribute)
#if __has_attribute(no_stack_protector)
#define NO_ARRAY_ON_STACK __attribute__((no_stack_protector))
#endif
#endif
#ifndef NO_ARRAY_ON_STACK
#define NO_ARRAY_ON_STACK
#endif

/* For what few messages need: kept out of every message's way, registers and all. */
#define SELDOM __attribute__((noinline, cold))

/* Messages of one QP served before the next QP's turn. */
#define ENGINE_BATCH 16u

/*
 * CQs that got completions since the last flush.  One service turn of a connected QP
 * touches at most its own two CQs and its peer's receive CQ, which is what
 * comp_make_room() leaves room for; each datagram may be for another CQ.
 */
#define COMP_BATCH_MAX  64u
#define COMP_BATCH_ROOM 8u
struct comp_batch {
    unsigned n;
    struct cq *cq[COMP_BATCH_MAX];
};

/* Sources of one worker, its VMs among them: a power of 64. */
#define WORKER_MAX_SOURCES 4096u

struct worker {
    unsigned index;
    pthread_t thread;
    _Atomic pid_t tid; /* 0: it has not begun */
    struct grace_thread grace;
    int epfd, wakefd;

    /* Written by any thread. */
    _Atomic bool stop;
    _Atomic uint64_t poked_any; /* summary of poked */
    _Atomic uint64_t poked[WORKER_MAX_SOURCES / 64];
    /* Sources by slot; the main thread's. */
    _Atomic(struct source *) slot[WORKER_MAX_SOURCES];
    _Atomic unsigned n_sources;

    _Atomic bool sleeping; /* wants wakefd */

    /* All below is the worker's. */
    TAILQ_HEAD(, vm) active;
    unsigned n_active;
    struct deadlines parked; /* VMs that wait for a timer */
    uint64_t polled;         /* ns, when sources were asked last */
    uint64_t vtime;          /* of the VM served last */
    void *scratch;           /* a transport's, by malloc(); freed with the worker */
    _Atomic unsigned n_nets; /* VMs with sockets; the main thread's */
    struct comp_batch batch;
    /* Received since the last comp_flush(), all by one VM. */
    struct vm *rx_vm;
    uint64_t rx_msgs, rx_bytes, rx_datagrams; /* the last are among the first */
};

/*
 * One turn of a VM on its worker.  Work is counted in units of what may take a
 * microsecond when nothing of it is in a cache; after TURN_UNITS of them the clock
 * is read.
 */
struct turn {
    uint64_t now;                     /* ns, as read last */
    uint64_t end;                     /* not to begin more work after that */
    const struct grace_thread *grace; /* ... or when it is due: a command waits */
    unsigned units;
};
#define TURN_UNITS 8u

static inline uint64_t now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Counters that one thread alone writes. */
static inline void count(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_store_explicit(counter,
                          atomic_load_explicit(counter, memory_order_relaxed) + n,
                          memory_order_relaxed);
}

/* Those of any thread, of what happens seldom. */
static inline void count_one(_Atomic uint64_t *counter)
{
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

/* Messages of @qp that are complete, bytes that were carried; its worker, with the token.
 */
static inline void count_sent(struct qp *qp, uint64_t msgs, uint64_t bytes)
{
    count(&qp->vm->dp.tx_msgs, msgs);
    count(&qp->vm->dp.tx_bytes, bytes);
    count(&qp->req.tx_msgs, msgs);
    count(&qp->req.tx_bytes, bytes);
}

/* A message of so many bytes is there; comp_received() is for the VM.  qp->lock held. */
static inline void count_received_locked(struct qp *qp, uint64_t bytes)
{
    count(&qp->resp.rx_msgs, 1);
    count(&qp->resp.rx_bytes, bytes);
}

/* 0: its owner runs.  Else nothing may reach that, and until then it is waited for. */
static inline uint64_t route_still_until(const struct route *route)
{
    return atomic_load_explicit(&route->held_until, memory_order_acquire);
}

static inline bool route_is_held(const struct route *route)
{
    uint64_t until = route_still_until(route);

    return until && now_ns() < until;
}

static inline void full_barrier(void)
{
    atomic_thread_fence(memory_order_seq_cst);
}

/* --- sg.c: scatter/gather over MRs ------------------------------------- */

struct sg_list {
    struct vm *vm;
    struct pd *pd;
    const struct qp *at; /* where a peer's key came to; NULL: they are its owner's */
    uint32_t access;     /* PVRDMA_ACCESS_* that every MR must grant; 0: none */
    bool write;          /* the engine stores to it */
    uint32_t nsge;
    const struct pvrdma_sge *sge;
    struct sg_cursor cur;
    const uint8_t *raw; /* not NULL: the bytes are here, not in guest memory */
};

/* The requester's memory of @op, from where it has come; @store: it is stored to. */
static inline struct sg_list sg_of_op(const struct qp *qp, const struct send_op *op,
                                      bool store)
{
    return (struct sg_list){.vm = qp->vm,
                            .pd = qp->pd,
                            .access = store ? PVRDMA_ACCESS_LOCAL_WRITE : 0,
                            .write = store,
                            .nsge = op->nsge,
                            .sge = op->sge,
                            .cur = op->cur,
                            .raw = op->is_inline ? op->data : NULL};
}

/* Sum of lengths; at most QP_MAX_SGE * 4 GiB, so it cannot overflow. */
uint64_t sg_length(const struct pvrdma_sge *sge, uint32_t nsge);

/*
 * How many of these SGEs the first @length bytes lie in.  What a message does not come to
 * is not looked at, as with other devices: a receive for an empty one may name anything.
 */
uint32_t sg_reach(const struct pvrdma_sge *sge, uint32_t nsge, uint64_t length);

/* Are all keys valid for this list (PD, access, bounds)? */
bool sg_check(const struct sg_list *l);

enum sg_result { SG_OK, SG_SRC_KEY, SG_SRC_MEM, SG_DST_KEY, SG_DST_MEM, SG_FAULT };

/*
 * Copy @n bytes from @src to @dst at their cursors, which advance.  Keys are
 * looked up again, so an MR that went away is noticed at the next slice.
 * _KEY: no such right; _MEM: the pages are not in the DMA map.  SG_FAULT: one of the two
 * VMs has a fault, so what was copied may be zeros: it is to be as if nothing had come.
 */
enum sg_result sg_copy(struct sg_list *dst, struct sg_list *src, uint64_t n);

/* Fill @l from its cursor on from @n bytes at @data / the other way; it advances. */
enum sg_result sg_fill(struct sg_list *l, const void *data, uint64_t n);
enum sg_result sg_fetch(struct sg_list *l, void *data, uint64_t n);

/* A piece of guest memory that is to be stored to. */
struct sg_piece {
    uint8_t *hva;
    uint64_t gpa, len;
};

/*
 * Where the next bytes of @l go, for who has the kernel store them: up to @max pieces of
 * at most @n (> 0) bytes in all.  Returns how many pieces, the first ones if something is
 * wrong with a later one; they hold until the turn's end.  The cursor stays.
 */
unsigned sg_pieces(const struct sg_list *l, uint64_t n, struct sg_piece *piece,
                   unsigned max);
/* The first @n bytes of @piece were stored: the cursor moves, the dirty log hears of it.
 */
void sg_stored(struct sg_list *l, const struct sg_piece *piece, uint64_t n);

/*
 * Host address of one naturally aligned 8-byte word under a remote key, and its
 * guest-physical address; NULL with *why = SG_DST_KEY or SG_DST_MEM.
 */
uint64_t *sg_word(const struct sg_list *l, uint64_t *gpa, enum sg_result *why);

/* --- ring.c: queues in guest memory ------------------------------------- */

/* Guest-physical address of a ring index: @rx half, @cons or producer. */
static inline uint64_t ring_word_gpa(const struct ring_mem *mem, bool rx, bool cons)
{
    unsigned word = (rx ? 2 : 0) + (cons ? 1 : 0);

    return mem->page[0] + (mem->ext ? offsetof(struct pvrdma_ext_ring, tx_prod_tail) +
                                          word * sizeof(struct pvrdma_ext_line)
                                    : word * sizeof(uint32_t));
}

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
static inline uint64_t wq_slot_gpa(const struct ring_mem *mem, const struct wq *wq,
                                   uint32_t slot)
{
    return ring_slot_gpa(mem, wq->first_page, (uint64_t)slot << wq->wqe_shift);
}

/*
 * Number of WQEs the guest is known to have posted beyond wq->next; only if that is
 * none its index is read again.  -1 if it is invalid or the page is gone.  @rx: the
 * receive half of the ring state in @mem.
 */
int32_t wq_pending(struct vm *vm, const struct ring_mem *mem, struct wq *wq, bool rx);
/* The same, and the index is read again in any case. */
int32_t wq_reread(struct vm *vm, const struct ring_mem *mem, struct wq *wq, bool rx);

/* The WQEs up to index @cons are done with: advance wq->cons and tell the guest. */
void wq_release(struct vm *vm, const struct ring_mem *mem, struct wq *wq, uint32_t cons,
                bool rx);

static inline int32_t sq_pending(struct qp *qp)
{
    uint32_t known = (qp->sq.prod - qp->sq.next) & (2 * qp->sq.nwqe - 1);

    return known ? (int32_t)known : wq_pending(qp->vm, &qp->mem, &qp->sq, false);
}

/* --- complete.c ---------------------------------------------------------- */

/*
 * Put a completion into @cq (cqe->qp etc. filled in by the caller); published
 * by the worker's next comp_flush().  A full CQ fails, see cq_fail there.
 */
void comp_push(struct cq *cq, const struct pvrdma_cqe *cqe, bool solicited);

/* The next comp_flush() of this worker publishes what others pushed to @cq, too. */
void comp_join(struct cq *cq);

/* Count a message that @vm received; part of the next comp_flush(). */
void comp_received(struct vm *vm, uint64_t bytes);

/* Publish all of this worker's completions and raise interrupts, once each. */
void comp_flush(struct worker *w);

/*
 * Would what has been published, @sol: solicited or error ones among it, take the arm
 * word?  And: take it, true if it did so.
 */
bool comp_arm_wants(struct cq *cq, bool sol);
bool comp_arm_take(struct cq *cq, bool sol);
/* The notification and interrupt for an arm word that was taken.  No lock held. */
void comp_fire(struct cq *cq);
/* Fire if the guest waits for what is beyond its consumer index.  No lock held. */
void comp_look(struct cq *cq);

/* --- cq_moderation.c ------------------------------------------------------- */

/*
 * @n completions of a moderated CQ were published, before a full barrier.  True: notify
 * the guest, the arm word is taken.  cq->lock is held, and is not after this.
 */
bool hold_published_unlock(struct cq *cq, uint32_t n, bool sol);
/* One is held back from now on until @when (ns); none is yet.  cq->lock held. */
void hold_begin_locked(struct cq *cq, uint64_t when);
/* If an event is held back it is not any more, *sol: comp_arm_take()'s.  cq->lock held.
 */
bool hold_end_locked(struct cq *cq, bool *sol);
/* Tell of those that are due at @now.  The VM's worker with the token. */
void hold_run(struct vm *vm, uint64_t now);
/* The CQ is destroyed.  Main thread, token held. */
void hold_forget(struct cq *cq);

static inline void comp_make_room(struct worker *w)
{
    if (w->batch.n > COMP_BATCH_MAX - COMP_BATCH_ROOM) {
        comp_flush(w);
    }
}

/* --- requester.c --------------------------------------------------------- */

/*
 * Serve one QP until the turn is over, at most ENGINE_BATCH messages.  True: it has
 * work left.
 */
bool requester_run(struct qp *qp, struct turn *t);

/* What the completion of @op will need. */
void requester_describe(const struct qp *qp, const struct send_op *op, struct sent *s);

/*
 * The completion of a send request, if it is to have one; it has left the ring.  @idx:
 * the index behind its WQE.
 */
void requester_complete(struct qp *qp, const struct sent *s, uint32_t idx,
                        uint32_t status);

/* One was completed with @status, an error: to ERR, or SQE (datagrams). */
void requester_failed(struct qp *qp, uint32_t status);

/*
 * Message @seq is not taken: @o says why.  Sets the timer after which the QP runs
 * again, and returns SUCCESS; or what it fails with if all tries are used up.
 */
uint32_t requester_wait(struct qp *qp, uint64_t seq, struct outcome o);

/*
 * For a transport that has what READ or atomic @seq returns: fetch and check its WQE
 * once more, so that op->sge says where it goes.  False: that is not to be had, or not
 * waited for any more; then nothing may be stored.
 */
bool requester_reopen(struct qp *qp, uint64_t seq, struct send_op *op);

/* --- keys.c: fast registration, windows, invalidation ------------------------ */

/*
 * LOCAL_INV, FAST_REG or BIND_MW.  OUT_DONE; OUT_FAIL; OUT_GRACE: to be called again,
 * soon.  The VM's worker with the token held.
 */
struct outcome keys_run(struct qp *qp, struct send_op *op);

/* May a SEND that arrives at @qp invalidate @key? */
bool keys_may_invalidate(const struct qp *qp, uint32_t key);
/* Do so.  Returns the grace period after which nobody uses it; 0: it may not. */
uint64_t keys_invalidate(const struct qp *qp, uint32_t key);

/* --- lifecycle.c ---------------------------------------------------------- */

/* Is it of a connection that goes on?  Of a service that has such. */
static inline bool qp_is_connected(const struct qp *qp)
{
    uint32_t state = atomic_load(&qp->state);

    return qp->service->connected && state >= PVRDMA_QPS_RTR && state < PVRDMA_QPS_ERR;
}

/*
 * Was @qp, or its peer on this host, put back to what it once was?  It was loaded, or is
 * asked to look (req.compare).
 */
void qp_compare(struct qp *qp);
/* It works if its VM has the address that it is connected from, and a link. */
void qp_look_at_address(struct qp *qp);
/* Has its VM the address that it is connected from?  Of one that is connected. */
bool qp_has_address(const struct qp *qp);

/* --- window.c: messages in flight ----------------------------------------- */

static inline struct sent *window_at(const struct qp *qp, uint64_t seq)
{
    return &qp->req.sent[seq % QP_WINDOW];
}

/* req.op becomes the last message in flight. */
void window_put(struct qp *qp, enum sent_state state, uint32_t status);
/* Complete what is settled, in order. */
void window_retire(struct qp *qp);
/* May the next WQE be fetched? */
static inline bool window_has_room(const struct qp *qp)
{
    return !qp->req.stopped && qp->req.in_flight < QP_WINDOW;
}
/* Must @m, the next to be started, wait for those in flight? */
bool window_must_wait(const struct qp *qp, const struct msg *m);
/* What is to be started again, but was acknowledged already, is in flight at once. */
void window_pass_over(struct qp *qp);
/* In ERR: all of it completes as flushed. */
void window_flush(struct qp *qp);
/* In RESET: it is forgotten. */
void window_clear(struct qp *qp);

/*
 * What transports report.  The QP is of the connection they mean; numbers
 * that it does not expect are ignored.
 *
 * The responder's answer to message @seq, whose results are in place; for FAIL,
 * @o.status is an enum pvrdma_wc_status.
 */
void requester_answered(struct qp *qp, uint64_t seq, struct outcome o);
/* Nothing that was started and not answered will be; start() says what to do next. */
void requester_lost(struct qp *qp);
/*
 * After that the connection is there again; the responder expects message @got.  If it
 * cannot do so, that is as requester_strayed().
 */
void requester_resume(struct qp *qp, uint64_t got);
/*
 * Can the responder of this connection expect message @got?  Not one before those that
 * it has acknowledged, nor one behind the next that is numbered anew.
 */
bool requester_agrees(const struct qp *qp, uint64_t got);
/*
 * The two sides count differently, since one of them was put back to what it once was:
 * the QP goes to ERR, with an event.  Token held.
 */
void requester_strayed(struct qp *qp);
/* Room after OUT_STALLED. */
void requester_go(struct qp *qp);

/* --- responder.c: what transports call for the receiving side ------------- */

/*
 * A message arrives at @qp: check state, requester, sequence and rights, claim a
 * receive WQE if it takes one.  OUT_DONE: it is admitted under *@a, and whoever brought
 * the same message before does not go on with it.  OUT_DUPLICATE: a READ is to be carried
 * once more, without being admitted, an atomic's result is saved.  OUT_HELD: in a moment.
 * qp->lock is held; once it is dropped the caller passes what it got to responder_tell().
 */
struct outcome responder_admit_locked(struct qp *qp, const struct msg *m,
                                      struct admission *a);

/*
 * Is the message that was admitted under @a still wanted?  Copies the receive WQE's list
 * to @recv (SENDs).  False: admit it again.  Else, but for READs, the slice is over with
 * responder_end_slice() or responder_finish().  _locked: qp->lock is held since the
 * admission, so it is.
 */
void responder_begin_slice_locked(struct qp *qp, const struct msg *m,
                                  struct recv_op *recv);
bool responder_begin_slice(struct qp *qp, const struct msg *m, struct admission a,
                           struct recv_op *recv);

/*
 * A SEND that was admitted by its first bytes has more of them than its receive can hold:
 * what comes of it, for responder_settle().
 */
struct outcome responder_too_long(void);

/* Is a READ that comes again, a duplicate when admitted under @epoch, answered still? */
bool responder_repeats(struct qp *qp, uint64_t epoch);

/* A slice of a SEND or WRITE is over and the message is not finished.  @cur: a SEND's. */
void responder_end_slice(struct qp *qp, const struct msg *m, struct admission a,
                         const struct sg_cursor *cur);

/*
 * The bytes of @m, a SEND with invalidate (msg_invalidates), are all there: take the key
 * away.  OUT_DONE: it may be finished now; OUT_GRACE: ask again soon.  _locked:
 * qp->lock is held since the admission.
 */
struct outcome responder_invalidate_locked(struct qp *qp, const struct msg *m);
struct outcome responder_invalidate(struct qp *qp, const struct msg *m,
                                    struct admission a);

/*
 * The message is complete: sequence numbers, receive completion.  False: what
 * was admitted is void.  _locked: qp->lock is held since the admission.
 */
void responder_finish_locked(struct qp *qp, const struct msg *m);
bool responder_finish(struct qp *qp, const struct msg *m, struct admission a);

/*
 * Settle a failure that is the responder's (@o.remote), of message @seq, admitted under
 * @epoch: receive completion, QP to ERR, event.  qp->lock not held.
 */
void responder_settle(struct qp *qp, uint64_t seq, uint64_t epoch, struct outcome o);

/*
 * What went wrong while the bytes of @m were moved (not SG_OK), and who hears what of
 * it (InfiniBand spec table 61).  If it is on the requester's side the responder just
 * never sees the rest.  A fault nobody hears of.
 */
struct outcome responder_outcome(const struct msg *m, enum sg_result r,
                                 bool src_is_remote);

/*
 * CAS and FAA, admitted: atomic for every worker and every vCPU, as IB_ATOMIC_HCA.
 * What was there before is in *old, and saved: the second finds it again.  qp->lock is
 * held since the admission.  OUT_SILENT: the word is not to be believed.
 */
struct outcome responder_atomic_locked(struct qp *qp, const struct msg *m, uint64_t *old);
bool responder_saved_atomic_locked(const struct qp *qp, uint64_t seq, uint64_t *old);

/* A message of UC that came to @qp is lost. */
struct outcome responder_drop(struct qp *qp, enum uc_drop why);

/* What an admission has to tell the guest, after qp->lock was dropped. */
void responder_tell(struct qp *qp, struct outcome o);

/*
 * Flush up to @max receive WQEs; returns how many.  One that a slice is being
 * copied to stays until that is over, and the QP is rung then.  Of a QP with an SRQ it
 * is only what its message had claimed, and then LAST_WQE_REACHED is told.  qp->lock
 * not held.
 */
unsigned responder_flush(struct qp *qp, unsigned max);

/* Packet sequence numbers a message of @length bytes takes at @mtu (1..5). */
static inline uint32_t psn_count(uint64_t length, uint32_t mtu)
{
    unsigned shift = 7 + (mtu >= 1 && mtu <= 5 ? mtu : 3); /* 1 = 256 bytes */

    return length <= 256 ? 1 : (uint32_t)((length + (1u << shift) - 1) >> shift);
}

/*
 * For datagram.c: the receive in resp.recv completes with @proto; a failure that is
 * the responder's is settled.  qp->lock is held.
 */
void responder_recv_complete(struct qp *qp, const struct pvrdma_cqe *proto,
                             bool solicited);
void responder_settle_locked(struct qp *qp, struct outcome o);

/* --- datagram.c: messages of QPs that are not connected ----------------------- */

/* What @h says of its datagram, into @op->dg. */
void datagram_describe(const struct qp *qp, const struct pvrdma_sq_wqe_hdr *h,
                       struct send_op *op);

/* Carry req.op, which was checked: OUT_DONE or OUT_FAIL; OUT_HELD: not now. */
struct outcome datagram_send(struct qp *qp);

/*
 * What transports call for the receiving side: datagram @m, @d, whose bytes are at @src,
 * has come to @vm.  OUT_FAIL: @src failed; OUT_SILENT: it is a MAD, and there is no GSI
 * QP; else OUT_DONE, whatever became of it.  Any worker that has comp_make_room().
 */
struct outcome datagram_deliver(struct vm *vm, const struct msg *m,
                                const struct datagram *d, struct sg_list *src);

/* --- uc.c: messages of connections without acknowledgements ------------------- */

/*
 * Carry req.op onwards: OUT_DONE, OUT_MORE; OUT_HELD or OUT_STALLED: not now; OUT_FAIL if
 * it cannot be sent.
 */
struct outcome uc_send(struct qp *qp);

/* A message from or to @vm is lost. */
static inline void uc_count(struct vm *vm, enum uc_drop why)
{
    atomic_fetch_add_explicit(&vm->dp.uc_dropped[why], 1, memory_order_relaxed);
}

/* --- rq.c: receive queues --------------------------------------------------- */

/*
 * A QP's lock is held for all of these but where it says otherwise; an SRQ's own is
 * taken inside.
 *
 * Take the next receive WQE into @recv; the keys of its list are rq->pd's.  0: taken;
 * EAGAIN: none posted; EMSGSIZE: it has no room for @least bytes, and stays in the
 * queue; EINVAL: unusable (index, SGE count, memory).
 */
int rq_claim(struct rq *rq, struct recv_op *recv, uint64_t least);

/* The same of any size; if there is none @t is woken when one is posted. */
int rq_claim_or_wait(struct rq *rq, struct recv_op *recv, const struct ticket *t);

/* A receive WQE was posted (doorbell): wake whoever waits.  No lock held. */
void rq_posted(struct rq *rq);

/* A doorbell of an SRQ, or something to tell the guest of it.  No lock held. */
void srq_look(struct srq *srq);

/* A QP's own queue: from here on posted receives have to be noticed. */
void rq_want_notify(struct rq *rq);

/* A QP's own queue: nothing is known of it any more, nobody waits; it is reset. */
void rq_clear(struct rq *rq);

/* --- lifecycle.c ---------------------------------------------------------- */

/* A QP that is new here has its handle: what doorbells and peers need.  Main thread. */
void datapath_qp_known(struct qp *qp, uint32_t uar_page);

/*
 * Its connection goes by @path: bound and incarnation are set, nothing of req.op has been
 * carried.  Main thread, with the token and qp->lock.
 */
void qp_take_path(struct qp *qp, const struct conn_path *path);

/*
 * What going to ERR means for the QP itself: what was admitted is void, and all that
 * is posted has to be flushed.  qp->lock held.
 */
void qp_enter_error_locked(struct qp *qp);

/* A failed send of a datagram: to SQE.  Takes qp->lock. */
void qp_set_send_error(struct qp *qp);

/* To ERR with an async event (none: event < 0).  Takes qp->lock. */
void qp_set_error(struct qp *qp, int event);

/* --- save_queues.c -------------------------------------------------------- */

/* What was left of a timer when the VM's data path was stopped, and the way back; ns. */
uint64_t time_left(const struct vm *vm, uint64_t when);
uint64_t time_of(const struct vm *vm, uint64_t left);
/* An index of a ring with @n entries. */
uint32_t index_load(struct state_in *s, uint32_t n);

/* --- doorbells.c ---------------------------------------------------------- */

/* What to do with the handles that have a bit in each kind of map. */
struct doorbell_calls {
    void (*send)(struct vm *, uint32_t qp);
    void (*recv)(struct vm *, uint32_t qp);
    void (*srq)(struct vm *, uint32_t srq);
};

/*
 * Call @calls for handles with a bit set, some at a time; true if there were any.
 * Kick words that are still set are cleared.  Token held.
 */
bool doorbells_scan(struct vm *vm, struct turn *t, const struct doorbell_calls *calls);
/* Is there a bit?  @all: in any map; else some contexts are left for the next look. */
bool doorbells_pending(struct vm *vm, bool all);
/* Set the kick words of the VM and its contexts.  Token held. */
void doorbells_set_kick(struct vm *vm);
/* A doorbell of @qp came another way than by its context's map.  Token held. */
void doorbells_context_rang(struct qp *qp);

/* --- sq_polling.c --------------------------------------------------------- */

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

/* --- vms.c ---------------------------------------------------------------- */

/* What was posted to the VM goes behind what has arrived.  Token held. */
void inbox_take(struct vm_datapath *dp);

/* --- sched.c -------------------------------------------------------------- */

/* The turn has done @units of work.  True: it is over. */
static inline bool turn_spent(struct turn *t, unsigned units)
{
    t->units += units;
    if (t->units >= TURN_UNITS) {
        t->units = 0;
        t->now = now_ns();
        if (t->grace && grace_due(t->grace)) {
            t->end = t->now;
        }
    }
    return t->now >= t->end;
}

/*
 * Serve the VM, which has work, for some microseconds: doorbells, timers, QPs.
 * Returns the time then (ns), as @now is the time of the call.
 */
uint64_t sched_serve(struct worker *w, struct vm *vm, uint64_t now);
/* Is it neither paused nor at fault? */
bool sched_may_run(const struct vm *vm);
/*
 * Anything to do for it now?  @all: look everywhere, as before it is parked.  Not while
 * somebody waits for the token, who wakes it then.
 */
bool sched_pending(struct vm *vm, uint64_t now, bool all);
/*
 * It is about to be parked, with its token: its transport tells from now on.  False:
 * something came before that.
 */
bool sched_arm(struct vm *vm, uint64_t now);
/* When there will be, without anybody's doing; UINT64_MAX: never.  ns */
uint64_t sched_deadline(const struct vm *vm, uint64_t now);
/* Hear what changes in the directory, or no more.  Main thread. */
void sched_listen(bool yes);
/* Somebody asked to look at this QP.  Token held. */
void sched_look(struct qp *qp);
void sched_enqueue(struct qp *qp);
void sched_dequeue(struct qp *qp);
/* Look at @qp again at @when (ns), and not before. */
void sched_wait(struct qp *qp, enum qp_wait why, uint64_t when);
void sched_unwait(struct qp *qp);
/* Whose timer it is. */
static inline struct qp *qp_of_timer(struct deadline *d)
{
    return (struct qp *)(void *)((char *)d - offsetof(struct qp, req.timer));
}

/* --- worker.c -------------------------------------------------------------- */

/* The calling thread's worker; NULL on the main thread. */
struct worker *worker_self(void);

/* Have its worker call @s->ready soon.  Any thread; begins with a full barrier. */
void source_poke(struct source *s);

/*
 * Have @w look at a source for @events of epoll(7) / no more: on return it is not in
 * use.  Main thread.  False: errno.
 */
bool worker_add_source(struct worker *w, struct source *s, uint32_t events);
void worker_remove_source(struct source *s);

/* Give a VM to @w / take it away again.  Main thread.  0 or an errno. */
int worker_add_vm(struct worker *w, struct vm *vm);
void worker_remove_vm(struct vm *vm);

/*
 * The one with the fewest VMs of the workers whose bits are set in @among; NULL: none of
 * them was started.  Main thread.
 */
struct worker *worker_least_loaded(uint64_t among);

#endif /* PVRDMAD_ENGINE_H */
