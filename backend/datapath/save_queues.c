/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the data path keeps of CQs and SRQs, for the state stream (base/state_stream.h),
 * and the first look at all that was loaded.  save_qp.c has the QPs, vms.c the VM itself.
 *
 * The data path stands still, and a grace period has passed since: what workers had
 * pushed is published, no slice is under way, and every period that a request or a
 * receive waited for is over.
 *
 * Clocks.  What is saved of a timer is the time that was left of it when the data path
 * was stopped, so a VM can be saved at any time later, and twice alike; on load it counts
 * from then on.  A time that was over is 0.
 *
 * Not saved: who waits for a receive (their timers bring them again), doorbells that
 * were not looked at, and whether the guest was told that it need not notify.  Instead
 * everything is looked at once, by notes that are run when the VM runs: until then
 * nothing of the guest's memory is touched, which may come later than this.
 *
 * Main thread, with vm->ops.
 */
#include "engine.h"
#include "pvrdma/ext.h"

/* Objects, or so many more empty handles, that one note looks at. */
#define LOOK_OBJECTS 16u
#define LOOK_HANDLES 1024u

uint64_t time_left(const struct vm *vm, uint64_t when)
{
    return when > vm->dp.stopped_at ? when - vm->dp.stopped_at : 0;
}

uint64_t time_of(const struct vm *vm, uint64_t left)
{
    return vm->dp.stopped_at + left;
}

/* ---- CQs -------------------------------------------------------------------- */

/* The arm word of a CQ whose guest does not have it in its memory, as it was meant. */
static uint32_t arm_of(const struct cq *cq)
{
    uint32_t arm = PVRDMA_DB_ARM_NONE;

    if (!cq->mem.ext) {
        arm =
            __atomic_load_n(&cq->vm->guest.db.shared->arm[cq->handle], __ATOMIC_SEQ_CST);
    }
    return arm == PVRDMA_DB_ARM_NONE || arm == PVRDMA_DB_ARM_SOLICITED
               ? arm
               : PVRDMA_DB_ARM_ANY;
}

RECORD(cq_record, struct cq, FIELD(prod), FIELD(published), FIELD(cons), FIELD(last_sol),
       FIELD(error), FIELD(error_reported))

void datapath_cq_save(struct cq *cq, struct state_out *s)
{
    const struct cq_hold *h = &cq->hold;

    vm_cq_lock(cq, false);
    g_assert(!cq->staged); /* workers have flushed since the data path was stopped */
    state_put_record(s, cq_record, cq);
    state_put_u32(s, arm_of(cq));
    state_put_u8(s, h->on);
    state_put_u32(s, h->on ? h->count : 0);
    state_put_u64(s, h->on ? h->ns : 0);
    state_put_u8(s, h->held);
    state_put_u8(s, h->held && h->sol);
    state_put_u32(s, h->held ? h->n : 0);
    state_put_u64(s, h->held ? time_left(cq->vm, h->timer.when) : 0);
    pthread_mutex_unlock(&cq->lock);
}

uint32_t index_load(struct state_in *s, uint32_t n)
{
    uint32_t index = state_get_u32(s);

    if (index >= 2 * n) {
        state_fail(s, "index %u in a ring of %u entries", index, n);
        return 0;
    }
    return index;
}

/* cq->lock held. */
static void hold_load(struct cq *cq, struct state_in *s)
{
    struct cq_hold *h = &cq->hold;
    uint64_t left;
    bool held;

    h->on = state_get_bool(s);
    h->count = state_get_u32(s);
    h->ns = state_get_u64(s);
    held = state_get_bool(s);
    h->sol = state_get_bool(s);
    h->n = state_get_u32(s);
    left = state_get_u64(s);
    if (h->count > PVRDMA_EXT_MODERATE_MAX || h->ns > PVRDMA_EXT_MODERATE_MAX * 1000ull ||
        left > h->ns || (held && !h->on)) {
        state_fail(s, "CQ %u: invalid event moderation", cq->handle);
    }
    if (held && !state_failed(s)) {
        hold_begin_locked(cq, time_of(cq->vm, left));
    }
}

void datapath_cq_load(struct cq *cq, uint32_t uar_page, struct state_in *s)
{
    struct pvrdma_db_region *db = cq->vm->guest.db.shared;
    uint32_t mask = 2 * cq->ncqe - 1, arm;

    datapath_cq_created(cq, uar_page);
    vm_cq_lock(cq, false);
    state_get_record(s, cq_record, cq);
    arm = state_get_u32(s);
    if (MAX(cq->prod, cq->published) > mask || MAX(cq->cons, cq->last_sol) > mask ||
        ((cq->prod - cq->cons) & mask) > cq->ncqe ||
        ((cq->published - cq->cons) & mask) > ((cq->prod - cq->cons) & mask) ||
        arm > PVRDMA_DB_ARM_SOLICITED || (cq->mem.ext && arm) ||
        (cq->error_reported && !cq->error)) {
        state_fail(s, "CQ %u: invalid indices or flags", cq->handle);
    }
    hold_load(cq, s);
    pthread_mutex_unlock(&cq->lock);

    if (state_failed(s)) {
        return;
    }
    if (cq->error) {
        atomic_store(&cq->vm->dp.cq_error, true); /* its QPs' walk may be half done */
    }
    if (arm) {
        __atomic_store_n(&db->arm[cq->handle], arm, __ATOMIC_SEQ_CST);
    }
}

/* ---- SRQs ------------------------------------------------------------------- */

void datapath_srq_save(struct srq *srq, struct state_out *s)
{
    pthread_mutex_lock(&srq->lock);
    state_put_u32(s, srq->rq.wq.cons);
    state_put_u32(s, atomic_load(&srq->limit));
    state_put_u8(s, (uint8_t)atomic_load(&srq->tell));
    state_put_u8(s, srq->error);
    pthread_mutex_unlock(&srq->lock);
}

void datapath_srq_load(struct srq *srq, uint32_t uar_page, struct state_in *s)
{
    struct pvrdma_db_region *db = srq->vm->guest.db.shared;
    struct wq *wq = &srq->rq.wq;
    uint32_t limit, tell;

    pthread_mutex_lock(&srq->lock);
    wq->cons = wq->next = wq->prod = index_load(s, wq->nwqe);
    limit = state_get_u32(s);
    tell = state_get_u8(s);
    srq->error = state_get_bool(s);
    pthread_mutex_unlock(&srq->lock);
    if (limit > wq->nwqe || (tell & ~(SRQ_TELL_LIMIT | SRQ_TELL_ERROR))) {
        state_fail(s, "SRQ %u: invalid indices or limit", srq->handle);
    }
    if (state_failed(s)) {
        return;
    }
    atomic_store(&srq->limit, limit);
    atomic_store(&srq->tell, tell);
    __atomic_store_n(&db->srq_owner[srq->handle], (uint16_t)uar_page, __ATOMIC_RELEASE);
}

/* ---- the first look --------------------------------------------------------- */

static void look_at_srq(struct srq *srq)
{
    if (srq->mem.ext) {
        ring_store(srq->vm, ring_no_notify_gpa(&srq->mem, true), 0);
        full_barrier();
    }
    srq_look(srq);
}

static void look_at_qp(struct qp *qp)
{
    if (qp->mem.ext) {
        ring_store(qp->vm, ring_no_notify_gpa(&qp->mem, false), 0);
        ring_store(qp->vm, ring_no_notify_gpa(&qp->mem, true), 0);
        full_barrier();
    }
    if (!qp->rq->srq) {
        rq_posted(qp->rq);
    }
    requester_go(qp);
    atomic_store(&qp->req.compare, QP_COMPARE_BOTH);
    qp_compare(qp);
}

/* The @pos-th handle, SRQs first, CQs last.  NULL: there is no object. */
static void *look_at(struct vm *vm, uint32_t pos, bool *end)
{
    const struct objects *v = &vm->objects;
    uint32_t n_srq = id_table_end(&v->srq), n_qp = id_table_end(&v->qp);
    void *object = NULL;

    if (pos < n_srq) {
        object = id_table_get(&v->srq, pos);
        if (object) {
            look_at_srq(object);
        }
    } else if (pos - n_srq < n_qp) {
        object = id_table_get(&v->qp, pos - n_srq);
        if (object) {
            look_at_qp(object);
        }
    } else if (pos - n_srq - n_qp < id_table_end(&v->cq)) {
        object = id_table_get(&v->cq, pos - n_srq - n_qp);
        if (object) {
            comp_look(object);
        }
    } else {
        *end = true;
    }
    return object;
}

static void first_look(struct note *n, struct vm *vm)
{
    bool end = !vm;

    for (unsigned looks = 0, objects = 0;
         !end && looks < LOOK_HANDLES && objects < LOOK_OBJECTS; looks++) {
        objects += look_at(vm, vm->dp.first_look_pos++, &end) != NULL;
        comp_make_room(worker_self());
    }
    if (!end) {
        vm_post(vm, n);
        return;
    }
    if (vm) {
        vm->dp.first_look = false;
    }
    g_free(n);
}

void datapath_loaded(struct vm *vm)
{
    struct vm_datapath *dp = &vm->dp;
    struct note *n = NULL;

    vm_token_take(vm);
    dp->first_look_pos = 0;
    if (!dp->first_look) { /* it may have been loaded before, and not have run */
        dp->first_look = true;
        n = g_new0(struct note, 1);
        n->run = first_look;
    }
    vm_token_release(vm);
    if (n) {
        vm_post(vm, n);
    }
}
