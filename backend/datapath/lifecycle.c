/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Life of QPs and CQs as the data path sees it: created, modified, destroyed.
 *
 * Threads: the main thread with the VM's token held (and qp->lock for state
 * changes), except qp_set_error, which the VM's worker calls, too.
 */
#include <sys/random.h>

#include "base/coro.h"
#include "engine.h"

/* Handles looked at in one go with the token. */
#define WALK_STEP 256u

/*
 * No two are alike in the daemon's life: what was admitted by a QP is not taken for
 * admitted by another one with its number.
 */
static uint64_t new_epoch(void)
{
    static _Atomic uint64_t last;

    return atomic_fetch_add(&last, 1) + 1;
}

void datapath_qp_known(struct qp *qp, uint32_t uar_page)
{
    struct pvrdma_db_region *db = qp->vm->guest.db.shared;

    qp->req.slice = DATAPATH_SLICE;
    qp->req.retry_seq = UINT64_MAX;
    qp->resp.epoch = new_epoch();
    __atomic_store_n(&db->qp_owner[qp->handle], (uint16_t)uar_page, __ATOMIC_RELEASE);
}

void datapath_qp_created(struct qp *qp, uint32_t uar_page)
{
    if (qp->mem.ext) { /* whatever the guest left there */
        ring_store(qp->vm, ring_no_notify_gpa(&qp->mem, false), 0);
        ring_store(qp->vm, ring_no_notify_gpa(&qp->mem, true), 0);
    }
    datapath_qp_known(qp, uar_page);
}

void datapath_cq_created(struct cq *cq, uint32_t uar_page)
{
    struct pvrdma_db_region *db = cq->vm->guest.db.shared;

    __atomic_store_n(&db->arm[cq->handle], PVRDMA_DB_ARM_NONE, __ATOMIC_RELEASE);
    __atomic_store_n(&db->cq_owner[cq->handle], (uint16_t)uar_page, __ATOMIC_RELEASE);
}

void datapath_cq_destroyed(struct cq *cq)
{
    struct pvrdma_db_region *db = cq->vm->guest.db.shared;

    hold_forget(cq);
    __atomic_store_n(&db->cq_owner[cq->handle], PVRDMA_DB_NO_OWNER, __ATOMIC_RELEASE);
    __atomic_store_n(&db->arm[cq->handle], PVRDMA_DB_ARM_NONE, __ATOMIC_RELEASE);
}

void datapath_srq_created(struct srq *srq, uint32_t uar_page)
{
    struct pvrdma_db_region *db = srq->vm->guest.db.shared;

    if (srq->mem.ext) {
        ring_store(srq->vm, ring_no_notify_gpa(&srq->mem, true), 0);
    }
    __atomic_store_n(&db->srq_owner[srq->handle], (uint16_t)uar_page, __ATOMIC_RELEASE);
}

void datapath_srq_destroyed(struct srq *srq)
{
    struct pvrdma_db_region *db = srq->vm->guest.db.shared;

    __atomic_store_n(&db->srq_owner[srq->handle], PVRDMA_DB_NO_OWNER, __ATOMIC_RELEASE);
}

/* The connection ends: nothing of it leads to or from a peer any more. */
static void qp_disconnect(struct qp *qp)
{
    if (qp->req.conn) {
        qp->req.transport->unbind(qp);
    }
    route_put(qp->req.route);
    qp->req.route = NULL;
    qp->req.peer = NULL;
    qp->req.peer_gen = 0;
    atomic_store(&qp->req.bound, false);
}

/* RESET: as freshly created, the guest zeroes its ring state too. */
static void qp_clear(struct qp *qp)
{
    sched_dequeue(qp);
    sched_unwait(qp);
    qp_disconnect(qp);
    memset(&qp->req.op, 0, sizeof(qp->req.op));
    window_clear(qp);
    qp->req.psn = 0;
    qp->req.seq = 0;
    qp->req.retry_seq = UINT64_MAX;
    qp->req.sqd_notified = false;
    atomic_store(&qp->req.incarnation, 0);
    atomic_store(&qp->req.compare, 0);
    qp->sq.cons = qp->sq.next = 0;
    if (!qp->rq->srq) {
        rq_clear(qp->rq);
    }
    /* One that was claimed from an SRQ is spent, as what was posted here is. */
    memset(&qp->resp.recv, 0, sizeof(qp->resp.recv));
    qp->resp.carrying = false;
    qp->resp.last_wqe = LAST_WQE_NONE;
    qp->resp.psn = 0;
    qp->resp.seq = 0;
    qp->resp.incarnation = 0;
    qp->resp.n_atomic = 0;
    qp->resp.inv_period = 0;
    atomic_store(&qp->resp.failed_status, 0);
    qp->resp.failed_seq = 0;
    qp->resp.comm_est = false;
    qp->resp.epoch = new_epoch();
}

static uint64_t random_incarnation(void)
{
    uint64_t r = 0;

    while (getrandom(&r, sizeof(r), 0) != sizeof(r) || !r) {
    }
    return r;
}

void qp_take_path(struct qp *qp, const struct conn_path *path)
{
    struct qp_requester *req = &qp->req;

    req->path = *path;
    req->route = route_get(qp->vm->cfg->network, &path->dgid);
    req->op.m.path = &req->path;
    req->op.m.unreliable = !qp->service->acknowledged;
    req->op.m.incarnation = atomic_load(&req->incarnation);
    req->op.m.ticket = (struct ticket){qp->vm->id, qp->handle, req->op.m.incarnation};
    if (req->transport->bind) {
        req->transport->bind(qp);
    }
}

/*
 * To RTR, or another path in SQD.  What goes to or comes from other addresses than
 * before is another connection.
 */
static void qp_connect(struct qp *qp)
{
    const struct pvrdma_ah_attr *ah = &qp->attr.ah_attr;
    struct qp_requester *req = &qp->req;
    const struct gid_entry *gid;
    struct conn_path path;
    bool usable;

    if (!qp->service->connected || ah->sgid_index >= VERBS_GID_TBL_LEN) {
        return;
    }
    gid = &qp->vm->objects.gid[ah->sgid_index];
    path = (struct conn_path){gid->gid, ah->dgid, qp->qpn, qp->attr.dest_qp_num};
    if (req->in_flight) { /* whatever carries them goes, the path may be the same */
        requester_lost(qp);
    }
    if (!atomic_load(&req->incarnation) || memcmp(&path, &req->path, sizeof(path))) {
        atomic_store(&req->incarnation, random_incarnation());
        qp->resp.incarnation = 0;
        qp->resp.epoch = new_epoch();
    }
    qp_disconnect(qp);
    sched_unwait(qp); /* that was about the old path, and so were the tries */
    req->retry_seq = UINT64_MAX;
    usable = gid_is_held(gid) && !atomic_load(&qp->vm->objects.link_down);
    atomic_store(&req->bound, usable);
    /* What has begun begins anew: its first bytes went the old way. */
    req->op.admitted = req->op.repeated = false;
    req->op.done = 0;
    req->op.cur = (struct sg_cursor){0, 0};
    qp_take_path(qp, &path);
}

void datapath_qp_modified(struct qp *qp, uint32_t old_state, uint32_t attr_mask)
{
    uint32_t state = atomic_load(&qp->state);

    if (state == PVRDMA_QPS_RESET) {
        qp_clear(qp);
        return;
    }
    if (old_state == PVRDMA_QPS_RESET) {
        /* Until now the guest may not have reset its indices: forget what we read. */
        qp->sq.prod = qp->sq.next;
        qp->own_rq.wq.prod = qp->own_rq.wq.next;
        /* The walk that follows a CQ's failure passed it over, or was before it. */
        if (qp->scq->error_reported || qp->rcq->error_reported) {
            atomic_store(&qp->vm->dp.cq_error, true);
        }
    }
    if (attr_mask & PVRDMA_QP_RQ_PSN) {
        qp->resp.psn = qp->attr.rq_psn & PSN_MASK;
    }
    if (attr_mask & PVRDMA_QP_SQ_PSN) {
        qp->req.psn = qp->attr.sq_psn & PSN_MASK;
    }
    if (state == PVRDMA_QPS_RTR && old_state != PVRDMA_QPS_RTR) {
        qp->resp.epoch = new_epoch();
    }
    if (attr_mask & PVRDMA_QP_AV) { /* to RTR, or another path in SQD */
        qp_connect(qp);
    }
    if (state == PVRDMA_QPS_SQD && old_state != PVRDMA_QPS_SQD) {
        qp->req.sqd_notified = false;
        qp->attr.sq_draining = 1;
        if (!(attr_mask & PVRDMA_QP_EN_SQD_ASYNC)) { /* it is asked for each time */
            qp->attr.en_sqd_async_notify = 0;
        }
    }
    if (state == PVRDMA_QPS_ERR && old_state != PVRDMA_QPS_ERR) {
        qp_enter_error_locked(qp);
    }
    if (state != PVRDMA_QPS_RTR) { /* which sends nothing, and fails nothing */
        datapath_ring(qp->vm, qp->handle);
    }
}

void datapath_qp_destroyed(struct qp *qp)
{
    struct pvrdma_db_region *db = qp->vm->guest.db.shared;

    __atomic_store_n(&db->qp_owner[qp->handle], PVRDMA_DB_NO_OWNER, __ATOMIC_RELEASE);
    sched_dequeue(qp);
    sched_unwait(qp);
    watch_remove(qp);
    qp_disconnect(qp);
    directory_bump(qp->vm); /* peers that know it look again, and find nothing */

    pthread_mutex_lock(&qp->lock);
    atomic_store(&qp->state, PVRDMA_QPS_RESET);
    qp->resp.epoch = new_epoch();
    pthread_mutex_unlock(&qp->lock);
}

/* Call @fn for each of the VM's QPs, with the token. */
static void for_each_qp(struct vm *vm, void (*fn)(struct qp *qp, unsigned arg),
                        unsigned arg)
{
    const struct id_table *t = &vm->objects.qp;

    for (uint32_t first = 1; first < id_table_end(t); first += WALK_STEP) {
        vm_token_take(vm);
        for (uint32_t i = first; i < id_table_end(t) && i - first < WALK_STEP; i++) {
            struct qp *qp = id_table_get(t, i);

            if (qp) {
                fn(qp, arg);
            }
        }
        vm_token_release(vm);
        coro_breathe();
    }
}

static void gid_lost(struct qp *qp, unsigned index)
{
    if (qp->service->connected && qp->attr.ah_attr.sgid_index == index) {
        vm_qp_lock(qp);
        atomic_store(&qp->req.bound, false);
        qp->resp.epoch = new_epoch(); /* what was admitted has to be anew, and is not */
        pthread_mutex_unlock(&qp->lock);
    }
}

void datapath_gid_unbound(struct vm *vm, unsigned index)
{
    for_each_qp(vm, gid_lost, index);
}

bool qp_has_address(const struct qp *qp)
{
    const struct gid_entry *gid = &qp->vm->objects.gid[qp->attr.ah_attr.sgid_index];

    return gid_is_held(gid) && gid_equal(&gid->gid, &qp->req.path.sgid);
}

void qp_look_at_address(struct qp *qp)
{
    struct qp_requester *req = &qp->req;
    bool usable;

    if (!qp_is_connected(qp) || qp->attr.ah_attr.sgid_index >= VERBS_GID_TBL_LEN) {
        return;
    }
    usable = qp_has_address(qp) && !atomic_load(&qp->vm->objects.link_down);
    if (usable != atomic_load(&req->bound)) {
        pthread_mutex_lock(&qp->lock);
        atomic_store(&req->bound, usable);
        if (!usable) {
            qp->resp.epoch = new_epoch(); /* as in gid_lost() */
        }
        pthread_mutex_unlock(&qp->lock);
    }
}

void datapath_addresses_changed(struct vm *vm)
{
    atomic_store(&vm->dp.addresses_changed, true);
    datapath_wake(vm);
}

static void connection_lost(struct qp *qp, unsigned unused)
{
    (void)unused;
    if (qp_is_connected(qp)) {
        qp_set_error(qp, PVRDMA_EVENT_QP_FATAL);
    }
}

void datapath_connections_lost(struct vm *vm)
{
    for_each_qp(vm, connection_lost, 0);
}

void qp_compare(struct qp *qp)
{
    bool both = atomic_exchange(&qp->req.compare, 0) & QP_COMPARE_BOTH;

    if (qp_is_connected(qp) && qp->req.transport->compare) {
        qp->req.transport->compare(qp, both);
    }
}

void qp_enter_error_locked(struct qp *qp)
{
    atomic_store_explicit(&qp->state, PVRDMA_QPS_ERR, memory_order_release);
    qp->attr.qp_state = PVRDMA_QPS_ERR;
    qp->resp.epoch = new_epoch();
    if (!qp->rq->srq) {
        qp->rq->must_notify = true;
        rq_want_notify(qp->rq);
    } else if (qp->resp.last_wqe == LAST_WQE_NONE) {
        qp->resp.last_wqe = LAST_WQE_DUE; /* by responder_flush() */
    }
}

void qp_set_send_error(struct qp *qp)
{
    uint32_t state;

    pthread_mutex_lock(&qp->lock);
    state = atomic_load(&qp->state);
    if (state == PVRDMA_QPS_RTS || state == PVRDMA_QPS_SQD) {
        atomic_store_explicit(&qp->state, PVRDMA_QPS_SQE, memory_order_release);
        qp->attr.qp_state = PVRDMA_QPS_SQE;
    }
    pthread_mutex_unlock(&qp->lock);
}

void qp_set_error(struct qp *qp, int event)
{
    bool was_error;

    pthread_mutex_lock(&qp->lock);
    was_error = atomic_load(&qp->state) == PVRDMA_QPS_ERR;
    qp_enter_error_locked(qp);
    pthread_mutex_unlock(&qp->lock);
    if (event >= 0 && !was_error) {
        event_async(&qp->vm->guest, (enum pvrdma_event_type)event, qp->handle);
    }
}
