/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The responder: the receiving side of a QP, as any transport sees it.
 *
 * A message is admitted once (state, peer, sequence number, rights, receive
 * WQE), carried in slices, and finished.  Between these steps no lock is held;
 * resp.epoch tells whether what was admitted still stands: it changes with
 * every reset and error.  The expected PSN advances only when a message is
 * finished, so a message that is broken off and admitted again starts anew and
 * arrives exactly once.
 *
 * Which error goes to which side follows InfiniBand spec 9.9.3, table 61.
 *
 * Threads: the worker of the requester's VM, so several workers may be here for
 * QPs of one VM; qp->lock protects what is shared.  A QP's own VM may be the
 * requester's too (also the very same QP).
 */
#include "engine.h"

uint32_t psn_count(uint64_t length, uint32_t mtu)
{
    unsigned shift = 7 + (mtu >= 1 && mtu <= 5 ? mtu : 3); /* 1 = 256 bytes */

    return length ? (uint32_t)((length + (1u << shift) - 1) >> shift) : 1;
}

/*
 * Take the next receive WQE into resp.recv.  Copies it once.  0: taken;
 * EAGAIN: none posted; EINVAL: unusable (index, SGE count, memory).
 */
static int claim_recv(struct qp *qp)
{
    struct recv_op *recv = &qp->resp.recv;
    struct pvrdma_rq_wqe_hdr h;
    const uint8_t *wqe;
    int32_t n = wq_pending(qp, &qp->rq, true);

    if (n <= 0) {
        return n < 0 ? EINVAL : EAGAIN;
    }
    wqe = guest_ptr(
        &qp->vm->guest.mem,
        wq_slot_gpa(&qp->mem, &qp->rq, pvrdma_idx_slot(qp->rq.cons, qp->rq.nwqe)),
        1ull << qp->rq.wqe_shift, false);
    if (!wqe) {
        return EINVAL;
    }
    memcpy(&h, wqe, sizeof(h));
    recv->wr_id = h.wr_id;
    recv->nsge = 0;
    recv->capacity = 0;
    recv->cur = (struct sg_cursor){0, 0};
    recv->active = true;
    wq_consume(qp, &qp->rq, true);
    if (h.num_sge > qp->rq.max_sge || h.num_sge > QP_MAX_SGE) {
        return EINVAL;
    }
    recv->nsge = h.num_sge;
    memcpy(recv->sge, wqe + sizeof(h), recv->nsge * sizeof(recv->sge[0]));
    recv->capacity = sg_length(recv->sge, recv->nsge);
    return 0;
}

/* Tell the guest whether it need not ring for receives.  qp->lock held. */
static void tell(struct qp *qp, bool no_notify)
{
    if (qp->mem.ext && atomic_load(&qp->resp.no_notify) != no_notify &&
        ring_store(qp->vm, ring_no_notify_gpa(&qp->mem, true), no_notify)) {
        atomic_store(&qp->resp.no_notify, no_notify);
    }
}

void responder_want_notify_locked(struct qp *qp)
{
    tell(qp, false);
    full_barrier(); /* the caller looks at the producer index next */
}

/*
 * A receive WQE for this message.  When there is none the waiter flag is raised
 * before the ring is read once more, so that a WQE posted meanwhile is either
 * seen now or finds the flag (responder_recv_posted).
 */
static int claim_or_wait(struct qp *qp, struct qp *from)
{
    struct qp *waiter = from;
    int err;

    if (qp->resp.recv.active) {
        /* Left from a message that was broken off. */
        qp->resp.recv.cur = (struct sg_cursor){0, 0};
        return 0;
    }
    err = claim_recv(qp);
    if (err == EAGAIN) {
        atomic_store(&qp->resp.rnr_waiter, from);
        responder_want_notify_locked(qp);
        err = claim_recv(qp);
    }
    if (err != EAGAIN && atomic_load(&qp->resp.rnr_waiter) == from) {
        /* It need not be woken any more. */
        atomic_compare_exchange_strong(&qp->resp.rnr_waiter, &waiter, NULL);
    }
    return err;
}

static bool op_takes_recv(const struct send_op *op)
{
    return op_is_send(op) || op->opcode == PVRDMA_WR_RDMA_WRITE_WITH_IMM;
}

/* The right that an operation needs in the QP and in the MR; 0: none. */
static uint32_t op_access(const struct send_op *op)
{
    switch (op->opcode) {
    case PVRDMA_WR_RDMA_WRITE:
    case PVRDMA_WR_RDMA_WRITE_WITH_IMM:
        return PVRDMA_ACCESS_REMOTE_WRITE;
    case PVRDMA_WR_RDMA_READ:
        return PVRDMA_ACCESS_REMOTE_READ;
    case PVRDMA_WR_ATOMIC_CMP_AND_SWP:
    case PVRDMA_WR_ATOMIC_FETCH_AND_ADD:
        return PVRDMA_ACCESS_REMOTE_ATOMIC;
    default:
        return 0;
    }
}

/* QP-level rights: "invalid request" if the QP does not do this at all. */
static bool op_enabled(const struct qp *qp, const struct send_op *op)
{
    uint32_t access = op_access(op);

    if ((qp->attr.qp_access_flags & access) != access) {
        return false;
    }
    if ((access & (PVRDMA_ACCESS_REMOTE_READ | PVRDMA_ACCESS_REMOTE_ATOMIC)) &&
        qp->attr.max_dest_rd_atomic == 0) {
        return false;
    }
    return !(access & PVRDMA_ACCESS_REMOTE_ATOMIC) || (op->remote_addr & 7) == 0;
}

/* The remote range under its key; a message of no bytes needs no key. */
static bool rkey_ok(const struct qp *qp, const struct send_op *op)
{
    struct pvrdma_sge sge = {op->remote_addr, (uint32_t)op->length, op->rkey};
    struct sg_list l = {
        .vm = qp->vm, .pd = qp->pd, .access = op_access(op), .nsge = 1, .sge = &sge};

    return !l.access || op->length == 0 || sg_check(&l);
}

/* Is @from the peer this QP was connected to, and is this its next message? */
static bool is_expected(const struct qp *qp, const struct qp *from)
{
    uint32_t state = atomic_load_explicit(&qp->state, memory_order_relaxed);

    return (state == PVRDMA_QPS_RTR || state == PVRDMA_QPS_RTS ||
            state == PVRDMA_QPS_SQD) &&
           qp->type == PVRDMA_QPT_RC && qp->attr.dest_qp_num == from->qpn &&
           qp->req.sgid_valid &&
           !memcmp(&qp->req.sgid, &from->attr.ah_attr.dgid, sizeof(qp->req.sgid)) &&
           !memcmp(&qp->attr.ah_attr.dgid, &from->req.sgid, sizeof(qp->req.sgid)) &&
           qp->resp.psn == from->req.psn;
}

/*
 * Checks that need a receive WQE.  0, or the status for the requester with
 * *recv_status and *event for this side.
 */
static uint32_t check_recv(struct qp *qp, const struct send_op *op, uint32_t *recv_status,
                           int *event)
{
    struct recv_op *recv = &qp->resp.recv;
    struct sg_list l = {.vm = qp->vm,
                        .pd = qp->pd,
                        .access = PVRDMA_ACCESS_LOCAL_WRITE,
                        .nsge = recv->nsge,
                        .sge = recv->sge};

    if (!op_is_send(op)) {
        return 0;
    }
    if (op->length > recv->capacity) {
        *recv_status = PVRDMA_WC_LOC_LEN_ERR;
        *event = PVRDMA_EVENT_QP_REQ_ERR;
        return PVRDMA_WC_REM_INV_REQ_ERR;
    }
    if (!sg_check(&l)) {
        *recv_status = PVRDMA_WC_LOC_PROT_ERR;
        *event = -1;
        return PVRDMA_WC_REM_OP_ERR;
    }
    return 0;
}

static void recv_complete(struct qp *qp, const struct pvrdma_cqe *proto, bool solicited)
{
    struct pvrdma_cqe cqe = *proto;

    cqe.wr_id = qp->resp.recv.wr_id;
    cqe.qp = qp->handle;
    cqe.port_num = 1;
    qp->resp.recv.active = false;
    comp_push(qp->rcq, &cqe, solicited);
}

/* qp->lock held. */
static void fail_locked(struct qp *qp, uint32_t recv_status)
{
    if (recv_status != PVRDMA_WC_SUCCESS && qp->resp.recv.active) {
        struct pvrdma_cqe cqe = {.opcode = PVRDMA_WC_RECV, .status = recv_status};

        recv_complete(qp, &cqe, false);
    }
    qp_enter_error_locked(qp);
}

/* After fail_locked, lock dropped: tell the guest, have its worker flush. */
static void fail_tell(struct qp *qp, int event)
{
    atomic_fetch_add_explicit(&qp->vm->dp.errors, 1, memory_order_relaxed);
    if (event >= 0) {
        event_async(&qp->vm->guest, (enum pvrdma_event_type)event, qp->handle);
    }
    datapath_ring(qp->vm, qp->handle);
}

void responder_fail(struct qp *qp, uint32_t epoch, uint32_t recv_status,
                    enum pvrdma_event_type event)
{
    bool ours;

    pthread_mutex_lock(&qp->lock);
    ours = qp->resp.epoch == epoch;
    if (ours) {
        fail_locked(qp, recv_status);
    }
    pthread_mutex_unlock(&qp->lock);
    if (ours) {
        fail_tell(qp, (int)event);
    }
}

enum admit_result responder_admit_locked(struct qp *qp, struct qp *from,
                                         struct send_op *op, struct admission *a)
{
    int err;

    *a = (struct admission){.status = PVRDMA_WC_SUCCESS, .event = -1};
    if (!is_expected(qp, from)) {
        return ADMIT_UNREACHABLE;
    }
    if (atomic_load_explicit(&qp->state, memory_order_relaxed) == PVRDMA_QPS_RTR &&
        !qp->resp.comm_est) {
        qp->resp.comm_est = a->comm_est = true;
    }
    if (!op_enabled(qp, op)) {
        a->status = PVRDMA_WC_REM_INV_REQ_ERR;
        a->event = PVRDMA_EVENT_QP_REQ_ERR;
    } else if (!rkey_ok(qp, op)) {
        a->status = PVRDMA_WC_REM_ACCESS_ERR;
        a->event = PVRDMA_EVENT_QP_ACCESS_ERR;
    } else if (op_takes_recv(op)) {
        err = claim_or_wait(qp, from);
        if (err == EAGAIN) {
            a->status = qp->attr.min_rnr_timer;
            return ADMIT_RNR;
        }
        if (err) {
            /* The queue itself is broken: there is no WQE to complete. */
            a->status = PVRDMA_WC_REM_OP_ERR;
            a->recv_status = PVRDMA_WC_LOC_QP_OP_ERR;
            a->event = PVRDMA_EVENT_QP_FATAL;
        } else {
            a->status = check_recv(qp, op, &a->recv_status, &a->event);
        }
    }
    if (a->status != PVRDMA_WC_SUCCESS) {
        fail_locked(qp, a->recv_status);
        return ADMIT_ERROR;
    }
    op->epoch = qp->resp.epoch;
    return ADMIT_OK;
}

void responder_admit_tell(struct qp *qp, const struct admission *a)
{
    if (a->comm_est) {
        event_async(&qp->vm->guest, PVRDMA_EVENT_COMM_EST, qp->handle);
    }
    if (a->recv_status != PVRDMA_WC_SUCCESS || a->event >= 0) {
        fail_tell(qp, a->event);
    }
}

void responder_begin_slice_locked(struct qp *qp, const struct send_op *op,
                                  struct recv_op *recv)
{
    if (op_is_send(op)) {
        qp->resp.carrying = true;
        recv->nsge = qp->resp.recv.nsge;
        recv->cur = qp->resp.recv.cur;
        memcpy(recv->sge, qp->resp.recv.sge, recv->nsge * sizeof(recv->sge[0]));
    }
}

bool responder_begin_slice(struct qp *qp, const struct send_op *op, struct recv_op *recv)
{
    bool ours;

    pthread_mutex_lock(&qp->lock);
    ours = qp->resp.epoch == op->epoch;
    if (ours) {
        responder_begin_slice_locked(qp, op, recv);
    }
    pthread_mutex_unlock(&qp->lock);
    return ours;
}

/* The slice is over, qp->lock held.  True: a flush waits for that. */
static bool carried(struct qp *qp)
{
    qp->resp.carrying = false;
    return atomic_load(&qp->state) == PVRDMA_QPS_ERR;
}

void responder_end_slice(struct qp *qp, const struct send_op *op,
                         const struct sg_cursor *cur)
{
    bool failed;

    pthread_mutex_lock(&qp->lock);
    if (qp->resp.epoch == op->epoch) {
        qp->resp.recv.cur = *cur;
    }
    failed = carried(qp);
    pthread_mutex_unlock(&qp->lock);
    if (failed) {
        datapath_ring(qp->vm, qp->handle);
    }
}

void responder_finish_locked(struct qp *qp, const struct qp *from,
                             const struct send_op *op)
{
    qp->resp.psn = (qp->resp.psn + psn_count(op->length, qp->attr.path_mtu)) & PSN_MASK;
    qp->resp.msn++;
    if (op_takes_recv(op)) {
        struct pvrdma_cqe cqe = {
            .opcode = op_is_send(op) ? PVRDMA_WC_RECV : PVRDMA_WC_RECV_RDMA_WITH_IMM,
            .status = PVRDMA_WC_SUCCESS,
            .byte_len = (uint32_t)op->length,
            .src_qp = from->qpn,
            .sl = qp->attr.ah_attr.sl,
        };

        if (op->opcode != PVRDMA_WR_SEND) {
            cqe.imm_data = op->imm;
            cqe.wc_flags = PVRDMA_WC_FLAG_IMM;
        }
        recv_complete(qp, &cqe, op->flags & PVRDMA_SEND_SOLICITED);
    }
}

bool responder_finish(struct qp *qp, const struct qp *from, const struct send_op *op)
{
    bool ours, failed = false;

    pthread_mutex_lock(&qp->lock);
    ours = qp->resp.epoch == op->epoch;
    if (op_is_send(op)) {
        failed = carried(qp);
    }
    if (ours) {
        responder_finish_locked(qp, from, op);
    }
    pthread_mutex_unlock(&qp->lock);
    if (failed) {
        datapath_ring(qp->vm, qp->handle);
    }
    return ours;
}

unsigned responder_flush(struct qp *qp, unsigned max)
{
    struct pvrdma_cqe cqe = {.opcode = PVRDMA_WC_RECV, .status = PVRDMA_WC_WR_FLUSH_ERR};
    unsigned n = 0;

    pthread_mutex_lock(&qp->lock);
    /* Only what was posted before a reset that came meanwhile. */
    while (atomic_load(&qp->state) == PVRDMA_QPS_ERR && n < max) {
        uint32_t before = qp->rq.cons;

        if (qp->resp.carrying) {
            break; /* once it is flushed the guest may use its memory again */
        }
        if (!qp->resp.recv.active) {
            int err = qp->rq.nwqe ? claim_recv(qp) : EAGAIN;

            if (err == EAGAIN || qp->rq.cons == before) {
                break; /* empty, or the index is not usable */
            }
        }
        recv_complete(qp, &cqe, false);
        n++;
    }
    pthread_mutex_unlock(&qp->lock);
    return n;
}

void responder_recv_posted(struct qp *qp)
{
    struct qp *waiter;
    bool posted = false;

    if (!atomic_load(&qp->resp.rnr_waiter) &&
        (!qp->mem.ext || atomic_load(&qp->resp.no_notify))) {
        return;
    }
    pthread_mutex_lock(&qp->lock);
    if (atomic_load(&qp->resp.rnr_waiter)) {
        /* A doorbell without a WQE must not cost the sender a retry. */
        posted = wq_pending(qp, &qp->rq, true) != 0;
    } else if (atomic_load(&qp->state) != PVRDMA_QPS_ERR) {
        /* Nobody waits: whoever comes finds what is posted. */
        tell(qp, true);
    }
    pthread_mutex_unlock(&qp->lock);
    if (!posted) {
        return;
    }
    directory_lock(); /* the waiter leaves under it */
    waiter = atomic_exchange(&qp->resp.rnr_waiter, NULL);
    if (waiter) {
        atomic_store(&waiter->req.wake, true);
        datapath_ring(waiter->vm, waiter->handle);
    }
    directory_unlock();
}
