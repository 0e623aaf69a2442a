/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Completions.
 *
 * comp_push() takes a CQE; comp_flush() writes those of all CQs that the worker
 * touched since, publishes their producer indices, then looks at their arm words and
 * raises one interrupt per VM and completion vector.  The order is what makes waiting
 * guests safe (D6):
 *
 *   write CQE, publish prod_tail (release), full barrier, exchange the arm word
 *
 * against the guest's "store arm, full barrier, poll again".  A guest whose arm comes
 * as a message that is answered (datapath_cq_arm) polls after the answer, so storing
 * the word is all there is to do.  One that does not wait for an answer may have polled
 * before the word was stored: such an arm looks itself for completions beyond
 * cons_head; the exchange decides who fires.
 *
 * A worker stopped before its exchange can find an arm that the guest set after it
 * polled the completion.  It takes it all the same: an arm that is older asks for an
 * interrupt whoever polled, and the two look alike.  The guest gets an interrupt with
 * nothing to read, and arms again before it sleeps, as after each.
 *
 * A CQ may be in the batches of several workers (cq->batched): whoever flushes first
 * publishes what all of them pushed, so that nobody's completions wait for another's
 * turn.  A batch is flushed before the worker's quiescent point, so its pointers stay
 * valid.
 *
 * A CQ that is given another ring (datapath_cq_move) changes under its lock: what was
 * pushed before is in the old one, published, what comes is in the new one.  Whoever
 * published in the old one and is about to take the arm word takes it in either: it is
 * moved, not copied, and the old page stays for a grace period.
 *
 * Threads: workers; datapath_cq_arm and datapath_cq_move on the main thread, which does
 * not wait for cq->lock but with the main loop turning.  cq->lock protects the CQ; it is
 * never held while an eventfd is written.
 */
#include "engine.h"
#include "pvrdma/ext.h"

static _Atomic uint32_t *cq_word(struct cq *cq, bool cons, bool write)
{
    /* The CQ's ring state is the rx half. */
    return guest_ptr(&cq->vm->guest.mem, ring_word_gpa(&cq->mem, true, cons), 4, write);
}

/* Distance from index @a forward to @b in a CQ of n entries. */
static uint32_t idx_dist(uint32_t a, uint32_t b, uint32_t n)
{
    return (b - a) & (2 * n - 1);
}

/*
 * Read the guest's consumer index.  False if it is not an index, or claims
 * entries that were never published.
 */
static bool cq_read_cons(struct cq *cq)
{
    _Atomic uint32_t *p = cq_word(cq, true, false);
    uint32_t cons;

    if (!p) {
        return false;
    }
    cons = atomic_load_explicit(p, memory_order_acquire);
    if (!pvrdma_idx_valid(cons, cq->ncqe) ||
        idx_dist(cq->cons, cons, cq->ncqe) >
            idx_dist(cq->cons, cq->published, cq->ncqe)) {
        return false;
    }
    cq->cons = cons;
    return true;
}

/*
 * The CQ overran or its ring is unusable: no completions any more.  The VM's
 * worker reports it (CQ_ERR) and moves its QPs to ERR, see sched.c.  cq->lock
 * held, so no event from here: its eventfd could block.
 */
static void cq_fail(struct cq *cq, const char *why)
{
    struct vm *vm = cq->vm;

    cq->error = true;
    log_vm(LOG_LVL_WARN, vm, "CQ %u: %s", cq->handle, why);
    atomic_store(&vm->dp.cq_error, true);
    datapath_wake(vm);
}

/*
 * Write what was staged to the ring.  Its lines are the guest's until then; with
 * nothing between the stores but stores they come at once and not one by one.
 */
static void write_staged(struct cq *cq)
{
    uint32_t idx = (cq->prod - cq->staged) & (2 * cq->ncqe - 1);

    for (unsigned i = 0; i < cq->staged; i++) {
        uint64_t off = (uint64_t)pvrdma_idx_slot(idx, cq->ncqe) * sizeof(cq->stage[0]);

        if (!guest_write(&cq->vm->guest.mem, ring_slot_gpa(&cq->mem, 1, off),
                         &cq->stage[i], sizeof(cq->stage[i]))) {
            cq->prod = idx; /* these are lost */
            cq_fail(cq, "ring memory is not mapped");
            break;
        }
        idx = pvrdma_idx_next(idx, cq->ncqe);
    }
    cq->staged = 0;
}

static void batch_add(struct worker *w, struct cq *cq)
{
    uint64_t bit = 1ull << w->index;

    if (cq->batched & bit) {
        return;
    }
    cq->batched |= bit;
    w->batch.cq[w->batch.n++] = cq;
}

uint64_t datapath_clock(const struct vm *vm)
{
    return now_ns() - vm->dp.clock_base;
}

/*
 * The clock is read for each CQE, with the CQ's lock: stamps never go backwards in a CQ,
 * and one is no older than what it stamps.
 */
static SELDOM void stamp(const struct cq *cq, struct pvrdma_cqe *cqe)
{
    uint64_t now = datapath_clock(cq->vm);

    for (unsigned i = 0; i < sizeof(cqe->reserved); i++) {
        cqe->reserved[i] = (uint8_t)(now >> (8 * i));
    }
}

void comp_push(struct cq *cq, const struct pvrdma_cqe *cqe, bool solicited)
{
    struct worker *w = worker_self();

    pthread_mutex_lock(&cq->lock);
    if (cq->staged == CQ_STAGE) {
        write_staged(cq);
    }
    if (cq->error) {
        goto out;
    }
    if (idx_dist(cq->cons, cq->prod, cq->ncqe) >= cq->ncqe) {
        if (!cq_read_cons(cq)) {
            cq_fail(cq, "bad consumer index");
            goto out;
        }
        if (idx_dist(cq->cons, cq->prod, cq->ncqe) >= cq->ncqe) {
            cq_fail(cq, "overrun");
            goto out;
        }
    }
    cq->stage[cq->staged] = *cqe;
    if (cq->stamps) {
        stamp(cq, &cq->stage[cq->staged]);
    }
    cq->staged++;
    cq->prod = pvrdma_idx_next(cq->prod, cq->ncqe);
    if (solicited || cqe->status != PVRDMA_WC_SUCCESS) {
        cq->last_sol = cq->prod;
        cq->new_sol = true;
    }
    batch_add(w, cq);
out:
    pthread_mutex_unlock(&cq->lock);
}

void comp_join(struct cq *cq)
{
    pthread_mutex_lock(&cq->lock);
    batch_add(worker_self(), cq);
    pthread_mutex_unlock(&cq->lock);
}

static uint64_t arm_gpa(uint64_t header)
{
    return header + offsetof(struct pvrdma_ext_ring, arm);
}

/*
 * Where this CQ's arm word is: in its header page, or, for a CQ of a stock
 * program, in the region that the VMM's doorbell handler writes.
 */
static _Atomic uint32_t *arm_word(struct cq *cq)
{
    if (cq->mem.ext) {
        return guest_ptr(&cq->vm->guest.mem, arm_gpa(atomic_load(&cq->header)), 4, true);
    }
    return (_Atomic uint32_t *)&cq->vm->guest.db.shared->arm[cq->handle];
}

/* The words of its ring are in the same page. */
static void arm_dirty(struct cq *cq)
{
    if (cq->mem.ext) {
        guest_mark_dirty(&cq->vm->guest.mem, arm_gpa(atomic_load(&cq->header)), 4);
    }
}

/*
 * One firing: take the arm word if what arrived matches it.  @sol: a solicited
 * or error completion is among what arrived.  A guest that changes the word meanwhile,
 * twice, is armed, whatever it says then.
 */
bool comp_arm_take(struct cq *cq, bool sol)
{
    _Atomic uint32_t *arm = arm_word(cq);
    uint32_t v = arm ? atomic_load(arm) : PVRDMA_DB_ARM_NONE;

    for (unsigned tries = 0; v != PVRDMA_DB_ARM_NONE; tries++) {
        if (v == PVRDMA_DB_ARM_SOLICITED && !sol) {
            return false;
        }
        if (tries == 2) {
            atomic_store(arm, PVRDMA_DB_ARM_NONE);
        } else if (!atomic_compare_exchange_strong(arm, &v, PVRDMA_DB_ARM_NONE)) {
            continue;
        }
        arm_dirty(cq);
        return true;
    }
    return false;
}

bool comp_arm_wants(struct cq *cq, bool sol)
{
    const _Atomic uint32_t *arm = arm_word(cq);
    uint32_t v = arm ? atomic_load(arm) : PVRDMA_DB_ARM_NONE;

    return v != PVRDMA_DB_ARM_NONE && (v != PVRDMA_DB_ARM_SOLICITED || sol);
}

/* Publish what was pushed; true if the guest is to be notified. */
static bool cq_publish(struct worker *w, struct cq *cq)
{
    _Atomic uint32_t *tail;
    bool sol, moderated, ok = false;
    uint32_t n;

    pthread_mutex_lock(&cq->lock);
    cq->batched &= ~(1ull << w->index);
    sol = cq->new_sol;
    cq->new_sol = false;
    write_staged(cq);
    /* Another worker may have published ours with its own. */
    n = idx_dist(cq->published, cq->prod, cq->ncqe);
    tail = n ? cq_word(cq, false, true) : NULL;
    if (tail) { /* what came before an overrun is the guest's */
        atomic_store_explicit(tail, cq->prod, memory_order_release);
        guest_mark_dirty(&cq->vm->guest.mem, ring_word_gpa(&cq->mem, true, false), 4);
        cq->published = cq->prod;
        ok = true;
    }
    moderated = cq->hold.on;
    pthread_mutex_unlock(&cq->lock);

    full_barrier();
    if (moderated) {
        if (!ok) {
            return false;
        }
        pthread_mutex_lock(&cq->lock);
        return hold_published_unlock(cq, n, sol);
    }
    return ok && comp_arm_take(cq, sol);
}

static void flush_received(struct worker *w)
{
    if (w->rx_vm) {
        struct vm_datapath *dp = &w->rx_vm->dp;

        atomic_fetch_add_explicit(&dp->rx_msgs, w->rx_msgs, memory_order_relaxed);
        atomic_fetch_add_explicit(&dp->rx_bytes, w->rx_bytes, memory_order_relaxed);
        if (w->rx_datagrams) {
            atomic_fetch_add_explicit(&dp->datagrams_received, w->rx_datagrams,
                                      memory_order_relaxed);
        }
        w->rx_vm = NULL;
        w->rx_msgs = w->rx_bytes = w->rx_datagrams = 0;
    }
}

/* Into the guest's ring, or later: its worker may not look at it now. */
static void notify_guest(struct vm *vm, const struct cq *cq)
{
    event_cq_notify(&vm->guest, cq->handle, cq->vector);
    if (atomic_load(&vm->guest.events.deferred_any)) {
        datapath_wake(vm);
    }
}

void comp_received(struct vm *vm, uint64_t bytes)
{
    struct worker *w = worker_self();

    if (w->rx_vm != vm) {
        flush_received(w);
        w->rx_vm = vm;
    }
    w->rx_msgs++;
    w->rx_bytes += bytes;
}

void comp_flush(struct worker *w)
{
    struct {
        struct vm *vm;
        uint32_t vector;
    } notify[COMP_BATCH_MAX];
    unsigned n = 0;

    flush_received(w);
    for (unsigned i = 0; i < w->batch.n; i++) {
        struct cq *cq = w->batch.cq[i];
        struct vm *vm = cq->vm;
        unsigned k;

        if (!cq_publish(w, cq)) {
            continue;
        }
        notify_guest(vm, cq);
        for (k = 0; k < n && (notify[k].vm != vm || notify[k].vector != cq->vector);
             k++) {
        }
        if (k == n) {
            notify[n].vm = vm;
            notify[n++].vector = cq->vector;
        }
    }
    w->batch.n = 0;
    for (unsigned i = 0; i < n; i++) {
        struct vm *vm = notify[i].vm;

        atomic_fetch_add_explicit(&vm->dp.interrupts, 1, memory_order_relaxed);
        irq_raise(&vm->guest.irq, PVRDMA_VEC_CQ + notify[i].vector);
    }
}

void comp_fire(struct cq *cq)
{
    struct vm *vm = cq->vm;

    notify_guest(vm, cq);
    atomic_fetch_add_explicit(&vm->dp.interrupts, 1, memory_order_relaxed);
    irq_raise(&vm->guest.irq, PVRDMA_VEC_CQ + cq->vector);
}

/* How many completions beyond cons, a solicited one among them?  cq->lock held. */
static uint32_t unread(const struct cq *cq, bool *sol)
{
    uint32_t left = idx_dist(cq->cons, cq->published, cq->ncqe);
    /* Nothing if cons ran up to published. */
    bool beyond = left != 0 && left <= cq->ncqe;

    *sol = beyond && idx_dist(cq->cons, cq->last_sol, cq->ncqe) - 1 < left;
    return beyond ? left : 0;
}

/* Take the ring that @mem has, in exchange for the CQ's.  cq->lock held. */
static void move_ring(struct cq *cq, struct ring_mem *mem, uint32_t ncqe)
{
    struct ring_mem old = cq->mem;

    cq->mem.npages = mem->npages;
    cq->mem.page = mem->page;
    mem->npages = old.npages;
    mem->page = old.page;
    atomic_store(&cq->header, cq->mem.page[0]);
    cq->ncqe = ncqe;
    cq->prod = cq->published = cq->cons = cq->last_sol = 0;
}

bool datapath_cq_move(struct cq *cq, struct ring_mem *mem, uint32_t ncqe)
{
    struct guest_mem *gm = &cq->vm->guest.mem;
    bool beyond = false, sol = false, held_sol, ok = false;
    _Atomic uint32_t *tail, *arm, *new_arm;

    vm_cq_lock(cq, false);
    write_staged(cq);
    tail = cq_word(cq, false, true);
    arm = arm_word(cq);
    new_arm = guest_ptr(gm, arm_gpa(mem->page[0]), 4, true);
    if (!cq->error && tail && arm && new_arm && cq_read_cons(cq)) {
        atomic_store_explicit(tail, cq->prod, memory_order_release);
        cq->published = cq->prod;
        beyond = unread(cq, &sol);
        cq->new_sol = false;
        if (hold_end_locked(cq, &held_sol)) {
            beyond = true;
            sol = sol || held_sol;
        }
        atomic_store(new_arm, atomic_exchange(arm, PVRDMA_DB_ARM_NONE));
        arm_dirty(cq); /* the old ring's tail, too */
        move_ring(cq, mem, ncqe);
        arm_dirty(cq); /* the new one's arm word */
        ok = true;
    }
    pthread_mutex_unlock(&cq->lock);

    full_barrier();
    /* For a worker who has published, and found the old arm word taken away. */
    if (beyond && comp_arm_take(cq, sol)) {
        comp_fire(cq);
    }
    return ok;
}

/*
 * The guest has armed and may not poll any more: fire for what it has not read.
 * cq->lock is held, and is not after this.
 */
static void arm_late_unlock(struct cq *cq)
{
    bool sol = false, fire = false;
    uint32_t left = 0;

    if (!cq->error && cq_read_cons(cq)) {
        left = unread(cq, &sol);
    }
    if (cq->hold.held) {
        left = 0; /* these are counted, and the hold's end tells */
    }
    if (left && cq->hold.on) {
        fire = hold_published_unlock(cq, left, sol);
    } else {
        pthread_mutex_unlock(&cq->lock);
        fire = left && comp_arm_take(cq, sol);
    }
    if (fire) {
        comp_fire(cq);
    }
}

void comp_look(struct cq *cq)
{
    pthread_mutex_lock(&cq->lock);
    arm_late_unlock(cq);
}

struct look {
    struct note note; /* first */
    uint32_t cq;
};

static void run_look(struct note *n, struct vm *vm)
{
    struct look *l = (struct look *)(void *)n;
    /* The next with that handle, if that one is gone: it is looked at for nothing. */
    struct cq *cq = vm ? id_table_get(&vm->objects.cq, l->cq) : NULL;

    if (cq) {
        /* First, so that an arm which relied on this note is seen. */
        atomic_exchange(&cq->looking, false);
        comp_look(cq);
    }
    g_free(l);
}

/*
 * arm_late_unlock(), by the VM's worker if another has the CQ: that one may stand in a
 * page fault of the guest's making.  There is one note for each CQ at most.
 */
static void look_late(struct cq *cq)
{
    struct look *l;

    if (pthread_mutex_trylock(&cq->lock) == 0) {
        arm_late_unlock(cq);
    } else if (!atomic_exchange(&cq->looking, true)) {
        l = g_new(struct look, 1);
        *l = (struct look){.note.run = run_look, .cq = cq->handle};
        vm_post(cq->vm, &l->note);
    }
}

void datapath_cq_arm(struct vm *vm, uint32_t cq_handle, bool solicited, bool posted)
{
    struct cq *cq = id_table_get(&vm->objects.cq, cq_handle);
    _Atomic uint32_t *arm;
    uint32_t none = PVRDMA_DB_ARM_NONE;

    if (!cq) {
        return;
    }
    if (cq->mem.ext && !sched_may_run(vm)) {
        return; /* its arm word is in the guest's memory, where it can arm it itself */
    }
    arm = arm_word(cq);
    if (!arm) {
        return;
    }
    if (solicited) {
        atomic_compare_exchange_strong(arm, &none, PVRDMA_DB_ARM_SOLICITED);
    } else {
        atomic_store(arm, PVRDMA_DB_ARM_ANY);
    }
    arm_dirty(cq);
    full_barrier();
    if (posted) {
        look_late(cq);
    }
}
