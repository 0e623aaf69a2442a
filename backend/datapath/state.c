/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Life of QPs and CQs as the data path sees it: created, modified, destroyed.
 *
 * Threads: the main thread with the VM's token held (and qp->lock for state
 * changes), except qp_set_error, which the VM's worker calls.
 */
#include "engine.h"

void datapath_qp_created(struct qp *qp, uint32_t uar_page)
{
    struct pvrdma_db_region *db = qp->vm->guest.db.shared;

    qp->req.slice = DATAPATH_SLICE;
    if (qp->mem.ext) { /* whatever the guest left there */
        ring_store(qp->vm, ring_no_notify_gpa(&qp->mem, false), 0);
        ring_store(qp->vm, ring_no_notify_gpa(&qp->mem, true), 0);
    }
    __atomic_store_n(&db->qp_owner[qp->handle], (uint16_t)uar_page, __ATOMIC_RELEASE);
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

    __atomic_store_n(&db->cq_owner[cq->handle], PVRDMA_DB_NO_OWNER, __ATOMIC_RELEASE);
    __atomic_store_n(&db->arm[cq->handle], PVRDMA_DB_ARM_NONE, __ATOMIC_RELEASE);
}

/* RESET: as freshly created, the guest zeroes its ring state too. */
static void qp_clear(struct qp *qp)
{
    sched_dequeue(qp);
    sched_unwait(qp);
    qp->req.transport->disconnect(qp);
    memset(&qp->req.op, 0, sizeof(qp->req.op));
    qp->req.psn = 0;
    qp->req.msn = 0;
    qp->req.sqd_notified = false;
    qp->req.sgid_valid = false;
    qp->sq.cons = 0;
    qp->rq.cons = 0;
    memset(&qp->resp.recv, 0, sizeof(qp->resp.recv));
    qp->resp.carrying = false;
    qp->resp.psn = 0;
    qp->resp.msn = 0;
    qp->resp.comm_est = false;
    qp->resp.epoch++;
}

static void qp_connect(struct qp *qp)
{
    const struct gid_entry *gid;

    if (qp->type != PVRDMA_QPT_RC || qp->attr.ah_attr.sgid_index >= VERBS_GID_TBL_LEN) {
        return;
    }
    gid = &qp->vm->objects.gid[qp->attr.ah_attr.sgid_index];
    qp->req.sgid = gid->gid;
    qp->req.sgid_valid = gid->bound;
    qp->req.transport->connect(qp);
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
        qp->sq.prod = qp->sq.cons;
        qp->rq.prod = qp->rq.cons;
    }
    if (attr_mask & PVRDMA_QP_RQ_PSN) {
        qp->resp.psn = qp->attr.rq_psn & PSN_MASK;
    }
    if (attr_mask & PVRDMA_QP_SQ_PSN) {
        qp->req.psn = qp->attr.sq_psn & PSN_MASK;
    }
    if (state == PVRDMA_QPS_RTR && old_state != PVRDMA_QPS_RTR) {
        qp->resp.epoch++;
    }
    if (attr_mask & PVRDMA_QP_AV) { /* to RTR, or another path in SQD */
        qp->req.transport->disconnect(qp);
        qp_connect(qp);
    }
    if (state == PVRDMA_QPS_SQD && old_state != PVRDMA_QPS_SQD) {
        qp->req.sqd_notified = false;
        qp->attr.sq_draining = 1;
    }
    if (state == PVRDMA_QPS_ERR && old_state != PVRDMA_QPS_ERR) {
        qp_enter_error_locked(qp);
    }
    datapath_ring(qp->vm, qp->handle);
}

void datapath_qp_destroyed(struct qp *qp)
{
    struct pvrdma_db_region *db = qp->vm->guest.db.shared;

    __atomic_store_n(&db->qp_owner[qp->handle], PVRDMA_DB_NO_OWNER, __ATOMIC_RELEASE);
    sched_dequeue(qp);
    sched_unwait(qp);
    watch_remove(qp);
    qp->req.transport->disconnect(qp);

    pthread_mutex_lock(&qp->lock);
    atomic_store(&qp->state, PVRDMA_QPS_RESET);
    qp->resp.epoch++;
    pthread_mutex_unlock(&qp->lock);

    directory_lock();
    while (!LIST_EMPTY(&qp->resp.refs)) {
        struct qp *ref = LIST_FIRST(&qp->resp.refs);

        LIST_REMOVE(ref, req.ref);
        atomic_store(&ref->req.peer, NULL);
    }
    directory_unlock();
}

void datapath_gid_unbound(struct vm *vm, unsigned index)
{
    for (uint32_t i = 1; i < vm->objects.qp.size; i++) {
        struct qp *qp = id_table_get(&vm->objects.qp, i);

        if (!qp || qp->type != PVRDMA_QPT_RC || qp->attr.ah_attr.sgid_index != index) {
            continue;
        }
        pthread_mutex_lock(&qp->lock);
        qp->req.sgid_valid = false;
        pthread_mutex_unlock(&qp->lock);
        qp->req.transport->disconnect(qp);
    }
}

void qp_enter_error_locked(struct qp *qp)
{
    atomic_store_explicit(&qp->state, PVRDMA_QPS_ERR, memory_order_release);
    qp->attr.qp_state = PVRDMA_QPS_ERR;
    qp->resp.epoch++;
    responder_want_notify_locked(qp);
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
