/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The requester: takes WQEs from a send queue in order, checks them, has the
 * transport carry them, and completes them.
 *
 * The guest's send ring is the record of what is posted: a WQE stays in it, and the
 * consumer index behind it, until it is acknowledged, and then the index moves before
 * the completion is made.  One message of a QP is in progress at a time (req.op), so
 * order and fences hold by construction: a READ or atomic has its result in place
 * before the next WQE is fetched.
 *
 * Retry rules (InfiniBand spec 9.7.6.1.3, 9.7.5.2.8): a peer that does not
 * answer costs one transport timeout (4.096 us * 2^timeout) per try, retry_cnt
 * + 1 in all; timeout 0 never gives up.  "Receiver not ready" costs one RNR
 * timer of the responder's choice, at most rnr_retry times, 7 meaning for ever; a try
 * before that timer, because a receive was posted, costs none.  Waiting QPs sit in
 * the VM's timer heap; a peer that is paused stops the clock.
 *
 * Threads: the VM's worker with the token held.
 */
#include "engine.h"

/* timeout 0 and a paused peer: how often to look again. */
#define POLL_INFINITE_NS 100000000u
#define POLL_HOLD_NS     1000000u

/* WQEs flushed per turn of a QP in ERR. */
#define FLUSH_BATCH 64u

/* What a slice may take: a cold copy of DATAPATH_SLICE, and more. */
#define SLICE_MAX_NS 12000u

enum fetch { FETCH_NONE, FETCH_OK, FETCH_BAD };

static uint32_t wc_opcode(uint32_t wr)
{
    switch (wr) {
    case PVRDMA_WR_RDMA_WRITE:
    case PVRDMA_WR_RDMA_WRITE_WITH_IMM:
        return PVRDMA_WC_RDMA_WRITE;
    case PVRDMA_WR_RDMA_READ:
        return PVRDMA_WC_RDMA_READ;
    case PVRDMA_WR_ATOMIC_CMP_AND_SWP:
        return PVRDMA_WC_COMP_SWAP;
    case PVRDMA_WR_ATOMIC_FETCH_AND_ADD:
        return PVRDMA_WC_FETCH_ADD;
    default:
        return PVRDMA_WC_SEND;
    }
}

/* READ and atomics: the requester's memory is stored to. */
static bool returns_data(const struct msg *m)
{
    return m->opcode == PVRDMA_WR_RDMA_READ || msg_is_atomic(m);
}

static void complete(struct qp *qp, uint32_t status)
{
    struct send_op *op = &qp->req.op;
    struct pvrdma_cqe cqe;

    op->active = false;
    wq_release(qp->vm, &qp->mem, &qp->sq, false);
    if (status == PVRDMA_WC_SUCCESS && !qp->sq_sig_all &&
        !(op->m.flags & PVRDMA_SEND_SIGNALED)) {
        return;
    }
    memset(&cqe, 0, sizeof(cqe));
    cqe.wr_id = op->wr_id;
    cqe.qp = qp->handle;
    cqe.opcode = wc_opcode(op->m.opcode);
    cqe.status = status;
    cqe.port_num = 1;
    if (status == PVRDMA_WC_SUCCESS && returns_data(&op->m)) {
        cqe.byte_len = (uint32_t)op->m.length;
    }
    comp_push(qp->scq, &cqe, false);
}

/* Copy the next WQE into req.op.  Only what fits our own limits is read. */
static enum fetch fetch(struct qp *qp)
{
    struct send_op *op = &qp->req.op;
    struct msg *m = &op->m;
    struct pvrdma_sq_wqe_hdr h;
    const uint8_t *wqe;
    int32_t pending = sq_pending(qp);

    if (pending < 0) {
        return FETCH_BAD;
    }
    if (pending == 0) {
        watch_drained(qp);
        return FETCH_NONE;
    }
    wqe = guest_ptr(
        &qp->vm->guest.mem,
        wq_slot_gpa(&qp->mem, &qp->sq, pvrdma_idx_slot(qp->sq.next, qp->sq.nwqe)),
        1ull << qp->sq.wqe_shift, false);
    if (!wqe) {
        return FETCH_BAD;
    }
    memcpy(&h, wqe, sizeof(h));
    op->wr_id = h.wr_id;
    op->nsge = h.num_sge;
    m->opcode = h.opcode;
    m->flags = h.send_flags;
    m->imm = h.imm_data;
    m->length = 0;
    m->addr = h.wr.rdma.remote_addr; /* same place in atomics */
    m->rkey = h.wr.rdma.rkey;
    if (msg_is_atomic(m)) {
        m->rkey = h.wr.atomic.rkey;
        m->compare_add = h.wr.atomic.compare_add;
        m->swap = h.wr.atomic.swap;
    }
    op->is_inline = (m->flags & PVRDMA_SEND_INLINE) && qp->max_inline &&
                    h.total_len <= qp->max_inline;
    if (op->is_inline) {
        op->nsge = 0;
        m->length = h.total_len;
        memcpy(op->data, wqe + sizeof(h), h.total_len);
    } else if (op->nsge <= qp->sq.max_sge && op->nsge <= QP_MAX_SGE) {
        memcpy(op->sge, wqe + sizeof(h), op->nsge * sizeof(op->sge[0]));
    }
    op->active = true;
    op->admitted = false;
    op->done = 0;
    op->cur = (struct sg_cursor){0, 0};
    qp->req.retries_left = (uint8_t)(qp->attr.retry_cnt + 1);
    qp->req.rnr_left = qp->attr.rnr_retry;
    qp->req.rnr_until = 0;
    qp->sq.next = pvrdma_idx_next(qp->sq.next, qp->sq.nwqe);
    return FETCH_OK;
}

/*
 * Check our copy of the WQE.  Local errors come before anything is moved.  The
 * library writes raw verbs opcodes from 7 on, with other meanings than the
 * kernel driver's, and posts inline data as plain addresses; neither is offered
 * to it.
 */
static uint32_t check(struct qp *qp)
{
    struct send_op *op = &qp->req.op;
    struct msg *m = &op->m;
    struct sg_list l = {.vm = qp->vm, .pd = qp->pd, .sge = op->sge};
    bool returns = returns_data(m);

    if (m->opcode >= 32 || !(qp->service->ops & (1u << m->opcode)) ||
        op->nsge > qp->sq.max_sge || op->nsge > QP_MAX_SGE ||
        ((m->flags & PVRDMA_SEND_INLINE) && (!op->is_inline || returns)) ||
        (returns && qp->attr.max_rd_atomic == 0)) {
        return PVRDMA_WC_LOC_QP_OP_ERR;
    }
    if (op->is_inline) {
        return PVRDMA_WC_SUCCESS;
    }
    m->length = sg_length(op->sge, op->nsge);
    if (m->length > VERBS_MAX_MSG_SZ || (msg_is_atomic(m) && m->length != 8)) {
        return PVRDMA_WC_LOC_LEN_ERR;
    }
    l.nsge = op->nsge;
    if (returns) {
        l.access = PVRDMA_ACCESS_LOCAL_WRITE;
    }
    return sg_check(&l) ? PVRDMA_WC_SUCCESS : PVRDMA_WC_LOC_PROT_ERR;
}

/* What the responder has to know of it besides. */
static void describe(struct qp *qp)
{
    struct msg *m = &qp->req.op.m;

    m->seq = qp->req.seq;
    m->psn = qp->req.psn;
    m->npsn = qp->service->connected ? psn_count(m->length, qp->attr.path_mtu) : 0;
}

/*
 * Complete with an error; the rest of the queue is flushed.  A datagram's failure
 * stops the send queue alone.
 */
static void fail(struct qp *qp, uint32_t status)
{
    atomic_fetch_add_explicit(&qp->vm->dp.errors, 1, memory_order_relaxed);
    log_vm(LOG_LVL_DEBUG, qp->vm, "QP %u: WR completes with status %u", qp->handle,
           status);
    complete(qp, status);
    if (qp->service->send_error == PVRDMA_QPS_SQE) {
        qp_set_send_error(qp);
    } else {
        qp_set_error(qp, -1);
    }
}

static void finish(struct qp *qp)
{
    qp->req.psn = (qp->req.psn + qp->req.op.m.npsn) & PSN_MASK;
    qp->req.seq++;
    complete(qp, PVRDMA_WC_SUCCESS);
}

/* Timer code -> ns (InfiniBand spec table 45). */
static uint64_t rnr_ns(uint32_t code)
{
    static const uint32_t us10[32] = {
        65536, 1,    2,    3,    4,    6,     8,     12,    16,    24,    32,
        48,    64,   96,   128,  192,  256,   384,   512,   768,   1024,  1536,
        2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    };

    return (uint64_t)us10[code & 31] * 10000;
}

/* The peer does not answer.  True: the WR failed. */
static bool unreachable(struct qp *qp)
{
    if (qp->attr.timeout == 0) {
        sched_wait(qp, QP_WAIT_HOLD, now_ns() + POLL_INFINITE_NS);
        return false;
    }
    if (qp->req.retries_left == 0) {
        fail(qp, PVRDMA_WC_RETRY_EXC_ERR);
        return true;
    }
    qp->req.retries_left--;
    atomic_fetch_add_explicit(&qp->vm->dp.retries, 1, memory_order_relaxed);
    sched_wait(qp, QP_WAIT_TIMEOUT, now_ns() + (4096ull << qp->attr.timeout));
    return false;
}

static bool receiver_not_ready(struct qp *qp, uint32_t code)
{
    uint64_t now = now_ns();

    if (now < qp->req.rnr_until) {
        /* Woken before its time, for a receive that another message took. */
        sched_wait(qp, QP_WAIT_RNR, qp->req.rnr_until);
        return false;
    }
    if (qp->attr.rnr_retry != 7) {
        if (qp->req.rnr_left == 0) {
            fail(qp, PVRDMA_WC_RNR_RETRY_EXC_ERR);
            return true;
        }
        qp->req.rnr_left--;
    }
    atomic_fetch_add_explicit(&qp->vm->dp.rnr_waits, 1, memory_order_relaxed);
    qp->req.rnr_until = now + rnr_ns(code);
    sched_wait(qp, QP_WAIT_RNR, qp->req.rnr_until);
    return false;
}

/*
 * The GSI QP carries no datagrams yet: a datagram may be lost, so a valid one
 * is complete once it was taken.
 */
static struct outcome carry(struct qp *qp)
{
    /* A wake-up for an earlier wait, whose timer was faster. */
    if (atomic_load_explicit(&qp->req.wake, memory_order_relaxed)) {
        atomic_store_explicit(&qp->req.wake, false, memory_order_relaxed);
    }
    if (!qp->service->connected) {
        qp->req.op.done = qp->req.op.m.length;
        return OUTCOME(OUT_DONE);
    }
    return qp->req.transport->carry(qp, &qp->req.op);
}

/*
 * A QP whose slices take too long gets smaller ones at once, and back to the full
 * slice by and by: everybody else's latency is one of them.  Pages that are not
 * there take microseconds each, and the guests decide how many there are.
 */
static void adapt_slice(struct qp *qp, uint64_t ns)
{
    uint32_t *slice = &qp->req.slice;

    if (ns > SLICE_MAX_NS) {
        *slice =
            MAX((uint32_t)(*slice * (uint64_t)SLICE_MAX_NS / ns), DATAPATH_SLICE_MIN);
    } else {
        *slice = MIN(*slice + 4 * DATAPATH_SLICE_MIN, DATAPATH_SLICE);
    }
}

/*
 * Carry the message in progress, and settle on this side what became of it.  True: go
 * on with the next WQE; false: the QP waits, failed, or has carried a slice (*more).
 */
static bool run_op(struct qp *qp, struct turn *t, bool *more)
{
    uint64_t began = t->now;
    struct outcome o = carry(qp);

    switch (o.what) {
    case OUT_DONE:
        finish(qp);
        return true;
    case OUT_MORE:
        turn_spent(t, TURN_UNITS);
        adapt_slice(qp, t->now - began);
        *more = true;
        return false;
    case OUT_RNR:
        *more = receiver_not_ready(qp, o.status);
        return false;
    case OUT_HELD:
        sched_wait(qp, QP_WAIT_HOLD, now_ns() + POLL_HOLD_NS);
        return false;
    case OUT_DUPLICATE:
        if (!returns_data(&qp->req.op.m)) {
            finish(qp);
            return true;
        }
        *more = unreachable(qp);
        return false;
    case OUT_FAIL:
        fail(qp, o.status);
        *more = true;
        return false;
    default:
        *more = unreachable(qp);
        return false;
    }
}

/*
 * A QP in ERR: everything posted completes as flushed; in SQE, the sends.  True:
 * there is more.
 */
static bool flush(struct qp *qp, bool receives)
{
    unsigned n = 0, received;

    if (qp->req.op.active) {
        complete(qp, PVRDMA_WC_WR_FLUSH_ERR);
        n++;
    }
    while (n < FLUSH_BATCH && fetch(qp) == FETCH_OK) {
        complete(qp, PVRDMA_WC_WR_FLUSH_ERR);
        n++;
    }
    received = receives ? responder_flush(qp, FLUSH_BATCH) : 0;
    return n == FLUSH_BATCH || received == FLUSH_BATCH;
}

/* SQD: a message in progress is finished, then the queue stands still. */
static void drained(struct qp *qp)
{
    if (!qp->req.sqd_notified) {
        qp->req.sqd_notified = true;
        pthread_mutex_lock(&qp->lock);
        qp->attr.sq_draining = 0;
        pthread_mutex_unlock(&qp->lock);
        if (qp->attr.en_sqd_async_notify) {
            event_async(&qp->vm->guest, PVRDMA_EVENT_SQ_DRAINED, qp->handle);
        }
    }
}

/* Next WQE into req.op, checked.  False: none, or the QP just failed. */
static bool next_op(struct qp *qp, bool *more)
{
    uint32_t status;

    switch (fetch(qp)) {
    case FETCH_NONE:
        return false;
    case FETCH_BAD:
        log_vm(LOG_LVL_WARN, qp->vm, "QP %u: bad send queue index", qp->handle);
        qp_set_error(qp, PVRDMA_EVENT_QP_FATAL);
        *more = true;
        return false;
    case FETCH_OK:
        break;
    }
    status = check(qp);
    if (status != PVRDMA_WC_SUCCESS) {
        fail(qp, status);
        *more = true;
        return false;
    }
    describe(qp);
    return true;
}

static unsigned units_of(const struct send_op *op, uint64_t moved)
{
    return 1 + op->nsge / 2 + (unsigned)(moved >> PVRDMA_PAGE_SHIFT);
}

bool requester_run(struct qp *qp, struct turn *t)
{
    struct send_op *op = &qp->req.op;
    struct vm_datapath *dp = &qp->vm->dp;
    uint64_t msgs = 0, bytes = 0;
    bool go = true, more = false;

    for (unsigned i = 0; go && i < ENGINE_BATCH; i++) {
        uint32_t state = atomic_load_explicit(&qp->state, memory_order_acquire);
        uint64_t before, moved;

        if (state == PVRDMA_QPS_ERR || state == PVRDMA_QPS_SQE) {
            more = flush(qp, state == PVRDMA_QPS_ERR);
            turn_spent(t, TURN_UNITS);
            break;
        }
        if (state == PVRDMA_QPS_SQD && !op->active) {
            drained(qp);
            break;
        }
        if (state != PVRDMA_QPS_RTS && state != PVRDMA_QPS_SQD) {
            break;
        }
        if (!op->active && !next_op(qp, &more)) {
            break;
        }
        before = op->done;
        go = run_op(qp, t, &more);
        /* A message that was admitted anew began from 0 again. */
        moved = op->done >= before ? op->done - before : op->done;
        bytes += moved;
        msgs += go;
        if (turn_spent(t, units_of(op, moved)) || (go && i + 1 == ENGINE_BATCH)) {
            more |= go;
            break;
        }
    }
    if (msgs || bytes) {
        count(&dp->tx_msgs, msgs);
        count(&dp->tx_bytes, bytes);
    }
    return more;
}
