/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The requester: takes WQEs from a send queue in order, checks them, has the
 * transport carry them, and completes them.
 *
 * The guest's send ring is the record of what is posted: a WQE stays in it, and the
 * consumer index behind it, until it is acknowledged, and then the index moves before
 * the completion is made.  One message of a QP is being started at a time (req.op).
 * With a transport that finishes it there and then, that is all there is, and order
 * and fences hold by construction: a READ or atomic has its result in place before
 * the next WQE is fetched.  What is started and waits for an answer is in the window
 * (window.c).
 *
 * Retry rules (InfiniBand spec 9.7.6.1.3, 9.7.5.2.8): a peer that does not
 * answer costs one transport timeout (4.096 us * 2^timeout) per try, retry_cnt
 * + 1 in all; timeout 0 never gives up.  "Receiver not ready" costs one RNR
 * timer of the responder's choice, at most rnr_retry times, 7 meaning for ever; a try
 * before that timer, because a receive was posted, costs none.  Waiting QPs sit in
 * the VM's timer heap; a peer that is paused stops the clock, for hold-timeout at most,
 * and who waits for it is woken when it goes on.
 *
 * Threads: the VM's worker with the token held.
 */
#include "engine.h"

/* timeout 0: how often to look again. */
#define POLL_INFINITE_NS 100000000u

/*
 * A peer that stands still: the directory tells when that is over (sched.c).  Some of
 * what is waited for it does not know, or only the clock; that is looked at now and then,
 * at first after HOLD_LOOK_NS, and each time as late again.
 */
#define HOLD_LOOK_NS   1000000u
#define HOLD_MAX_SHIFT 6u

/* WQEs flushed per turn of a QP in ERR. */
#define FLUSH_BATCH 64u

/* How soon to look whether a grace period is over; at most as often doubled. */
#define GRACE_LOOK_NS   1000u
#define GRACE_MAX_SHIFT 6u

/* Pages of a fast registration that are one unit of work (struct turn). */
#define UNIT_PAGES 64u

/* What a slice may take: a cold copy of DATAPATH_SLICE, and more. */
#define SLICE_MAX_NS 12000u

enum fetch { FETCH_NONE, FETCH_OK, FETCH_BAD };

/* Is anything in the window? */
static inline bool has_window(const struct qp *qp)
{
    return qp->req.in_flight | qp->req.replay;
}

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
    case PVRDMA_WR_LOCAL_INV:
        return PVRDMA_WC_LOCAL_INV;
    case PVRDMA_WR_FAST_REG:
        return PVRDMA_WC_FAST_REG;
    case PVRDMA_WR_BIND_MW:
        return PVRDMA_WC_BIND_MW;
    default:
        return PVRDMA_WC_SEND;
    }
}

void requester_describe(const struct qp *qp, const struct send_op *op, struct sent *s)
{
    *s = (struct sent){
        .wr_id = op->wr_id,
        .npsn = op->m.npsn,
        .length = (uint32_t)op->m.length,
        .opcode = (uint8_t)wc_opcode(op->m.opcode),
        .signaled = qp->sq_sig_all || (op->m.flags & PVRDMA_SEND_SIGNALED),
        .returns = msg_returns(&op->m),
    };
}

void requester_complete(struct qp *qp, const struct sent *s, uint32_t idx,
                        uint32_t status)
{
    struct pvrdma_cqe cqe;

    if (status == PVRDMA_WC_SUCCESS && !s->signaled) {
        return;
    }
    memset(&cqe, 0, sizeof(cqe));
    cqe.wr_id = s->wr_id;
    cqe.qp = qp->handle;
    cqe.opcode = s->opcode;
    cqe.status = status;
    cqe.port_num = 1;
    if (qp->mem.ext) {
        cqe.src_qp = PVRDMA_EXT_CQE_SENT | idx;
    }
    if (status == PVRDMA_WC_SUCCESS && s->returns) {
        cqe.byte_len = s->length;
    }
    comp_push(qp->scq, &cqe, false);
}

/* The message in req.op is through, and none before it is in flight. */
NO_ARRAY_ON_STACK
static void complete(struct qp *qp, uint32_t status)
{
    struct send_op *op = &qp->req.op;
    struct sent s;

    op->active = false;
    wq_release(qp->vm, &qp->mem, &qp->sq, qp->sq.next, false);
    if (status == PVRDMA_WC_SUCCESS && !qp->sq_sig_all &&
        !(op->m.flags & PVRDMA_SEND_SIGNALED)) {
        return;
    }
    requester_describe(qp, op, &s);
    requester_complete(qp, &s, qp->sq.next, status);
}

/* What is not in every WQE: of those that take keys away or make them. */
SELDOM static void read_key_op(struct send_op *op, const struct pvrdma_sq_wqe_hdr *h)
{
    op->period = 0;
    op->looks = 0;
    if (h->opcode == PVRDMA_WR_FAST_REG) {
        op->reg = h->wr.fast_reg;
    } else if (h->opcode == PVRDMA_WR_BIND_MW) {
        op->bind = h->wr.bind_mw;
    }
}

/*
 * Copy the WQE at @idx into @op.  Only what fits our own limits is read.  False: it is
 * not in the DMA map, or not to be believed.
 */
static bool read_wqe(struct qp *qp, uint32_t idx, struct send_op *op)
{
    struct msg *m = &op->m;
    struct pvrdma_sq_wqe_hdr h;
    const uint8_t *wqe =
        guest_ptr(&qp->vm->guest.mem,
                  wq_slot_gpa(&qp->mem, &qp->sq, pvrdma_idx_slot(idx, qp->sq.nwqe)),
                  1ull << qp->sq.wqe_shift, false);

    if (!wqe) {
        return false;
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
    if (!qp->service->connected) {
        datagram_describe(qp, &h, op);
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
    if (G_UNLIKELY(m->opcode >= PVRDMA_WR_SEND_WITH_INV)) {
        read_key_op(op, &h);
    }
    if (G_UNLIKELY(!guest_believed(&qp->vm->guest))) {
        return false;
    }
    op->active = true;
    op->admitted = op->repeated = op->begun = false;
    op->done = 0;
    op->cur = (struct sg_cursor){0, 0};
    return true;
}

/* The next WQE into req.op. */
static enum fetch fetch(struct qp *qp)
{
    int32_t pending = sq_pending(qp);

    if (pending < 0) {
        return FETCH_BAD;
    }
    if (pending == 0) {
        watch_drained(qp);
        return FETCH_NONE;
    }
    if (!read_wqe(qp, qp->sq.next, &qp->req.op)) {
        return guest_faulted(&qp->vm->guest) ? FETCH_NONE : FETCH_BAD;
    }
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
    bool returns = msg_returns(m);

    if (m->opcode >= 32 || !(qp->ops & (1u << m->opcode)) || op->nsge > qp->sq.max_sge ||
        op->nsge > QP_MAX_SGE ||
        ((m->flags & PVRDMA_SEND_INLINE) &&
         (!op->is_inline || returns || msg_is_local(m))) ||
        (returns && qp->attr.max_rd_atomic == 0) ||
        (!qp->service->connected && !op->dg.usable)) {
        return PVRDMA_WC_LOC_QP_OP_ERR;
    }
    if (op->is_inline) {
        return PVRDMA_WC_SUCCESS;
    }
    if (msg_is_local(m)) {
        op->nsge = 0; /* it has none */
        return PVRDMA_WC_SUCCESS;
    }
    m->length = sg_length(op->sge, op->nsge);
    if (m->length > qp->service->max_length || (msg_is_atomic(m) && m->length != 8)) {
        return PVRDMA_WC_LOC_LEN_ERR;
    }
    l.nsge = op->nsge;
    if (returns) {
        l.access = PVRDMA_ACCESS_LOCAL_WRITE;
    }
    return sg_check(&l) ? PVRDMA_WC_SUCCESS : PVRDMA_WC_LOC_PROT_ERR;
}

/* What the responder has to know of it besides. */
static void number(struct qp *qp)
{
    struct msg *m = &qp->req.op.m;

    m->seq = qp->req.seq;
    m->psn = qp->req.psn;
    m->npsn = qp->service->connected ? psn_count(m->length, qp->attr.path_mtu) : 0;
}

bool requester_reopen(struct qp *qp, uint64_t seq, struct send_op *op)
{
    struct qp_requester *req = &qp->req;
    uint64_t oldest = req->seq - req->in_flight;

    if (seq - oldest >= req->in_flight || window_at(qp, seq)->state != SENT_OUT ||
        !window_at(qp, seq)->returns ||
        !read_wqe(qp, (qp->sq.cons + (uint32_t)(seq - oldest)) & (2 * qp->sq.nwqe - 1),
                  op)) {
        return false;
    }
    /* The guest may have changed it.  Keys and rights are checked as it is stored to. */
    if (!msg_returns(&op->m) || op->is_inline || op->nsge > qp->sq.max_sge ||
        op->nsge > QP_MAX_SGE) {
        return false;
    }
    op->m.length = sg_length(op->sge, op->nsge);
    return op->m.length <= VERBS_MAX_MSG_SZ;
}

void requester_failed(struct qp *qp, uint32_t status)
{
    count_one(&qp->vm->dp.errors);
    count_one(&qp->seldom.errors);
    log_vm(LOG_LVL_DEBUG, qp->vm, "QP %u: WR completes with status %u", qp->handle,
           status);
    if (qp->service->send_error == PVRDMA_QPS_SQE) {
        qp_set_send_error(qp);
    } else {
        qp_set_error(qp, -1);
    }
}

/*
 * Complete with an error, once all before is complete; the rest of the queue is
 * flushed.
 */
static void fail(struct qp *qp, uint32_t status)
{
    if (has_window(qp)) {
        window_put(qp, SENT_FAILED, status);
        window_retire(qp);
        return;
    }
    complete(qp, status);
    requester_failed(qp, status);
}

/* How many messages are complete by that and not counted yet. */
static unsigned finish(struct qp *qp)
{
    if (has_window(qp)) { /* begun with another transport, which broke */
        window_put(qp, SENT_DONE, PVRDMA_WC_SUCCESS);
        window_retire(qp);
        return 0;
    }
    qp->req.psn = (qp->req.psn + qp->req.op.m.npsn) & PSN_MASK;
    qp->req.seq++;
    complete(qp, PVRDMA_WC_SUCCESS);
    return 1;
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

/* The peer does not answer. */
static uint32_t unreachable(struct qp *qp)
{
    if (qp->attr.timeout == 0) {
        sched_wait(qp, QP_WAIT_HOLD, now_ns() + POLL_INFINITE_NS);
        return PVRDMA_WC_SUCCESS;
    }
    if (qp->req.retries_left == 0) {
        return PVRDMA_WC_RETRY_EXC_ERR;
    }
    qp->req.retries_left--;
    count_one(&qp->vm->dp.retries);
    count_one(&qp->seldom.retries);
    sched_wait(qp, QP_WAIT_TIMEOUT, now_ns() + (4096ull << qp->attr.timeout));
    return PVRDMA_WC_SUCCESS;
}

static uint32_t receiver_not_ready(struct qp *qp, uint32_t code)
{
    uint64_t now = now_ns();

    if (now < qp->req.rnr_until) {
        /* Woken before its time, for a receive that another message took. */
        sched_wait(qp, QP_WAIT_RNR, qp->req.rnr_until);
        return PVRDMA_WC_SUCCESS;
    }
    if (qp->attr.rnr_retry != 7) {
        if (qp->req.rnr_left == 0) {
            return PVRDMA_WC_RNR_RETRY_EXC_ERR;
        }
        qp->req.rnr_left--;
    }
    count_one(&qp->vm->dp.rnr_waits);
    count_one(&qp->seldom.rnr_waits);
    qp->req.rnr_until = now + rnr_ns(code);
    sched_wait(qp, QP_WAIT_RNR, qp->req.rnr_until);
    return PVRDMA_WC_SUCCESS;
}

/*
 * Look whether the grace period is over: soon, since it seldom takes longer than
 * everybody's turn, but ever less often if a worker has lost its processor.
 */
SELDOM static void wait_for_grace(struct qp *qp)
{
    unsigned shift = MIN(qp->req.op.looks++, GRACE_MAX_SHIFT);

    sched_wait(qp, QP_WAIT_GRACE, now_ns() + ((uint64_t)GRACE_LOOK_NS << shift));
}

void requester_tries_left(const struct qp *qp, uint32_t *retries, uint32_t *rnr)
{
    bool fresh = qp->req.retry_seq != qp->req.seq;

    *retries = fresh ? qp->attr.retry_cnt + 1u : qp->req.retries_left;
    *rnr = fresh ? qp->attr.rnr_retry : qp->req.rnr_left;
}

static void wait_for_held(struct qp *qp, uint64_t seq)
{
    struct qp_requester *req = &qp->req;

    if (req->held_seq != seq) {
        req->held_seq = seq;
        req->held_looks = 0;
    }
    count_one(&qp->vm->dp.hold_looks);
    sched_wait(qp, QP_WAIT_HOLD,
               now_ns() +
                   ((uint64_t)HOLD_LOOK_NS << MIN(req->held_looks, HOLD_MAX_SHIFT)));
    req->held_looks += req->held_looks < HOLD_MAX_SHIFT;
}

uint32_t requester_wait(struct qp *qp, uint64_t seq, struct outcome o)
{
    struct qp_requester *req = &qp->req;

    /*
     * Neither is a try, nor do they give anybody new ones: a message that waits for a
     * broken connection is not the one whose tries those before it used up.
     */
    if (o.what == OUT_HELD) {
        wait_for_held(qp, seq);
        return PVRDMA_WC_SUCCESS;
    }
    if (o.what == OUT_GRACE) {
        wait_for_grace(qp);
        return PVRDMA_WC_SUCCESS;
    }
    if (req->retry_seq != seq) {
        req->retry_seq = seq;
        req->retries_left = (uint8_t)(qp->attr.retry_cnt + 1);
        req->rnr_left = qp->attr.rnr_retry;
        req->rnr_until = 0;
    }
    return o.what == OUT_RNR ? receiver_not_ready(qp, o.status) : unreachable(qp);
}

static struct outcome carry(struct qp *qp)
{
    /* A wake-up for an earlier wait, whose timer was faster. */
    if (atomic_load_explicit(&qp->req.wake, memory_order_relaxed)) {
        atomic_store_explicit(&qp->req.wake, false, memory_order_relaxed);
    }
    if (G_LIKELY(qp->service->acknowledged)) {
        return qp->req.transport->start(qp, &qp->req.op);
    }
    return qp->service->connected ? uc_send(qp) : datagram_send(qp);
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

/* What a turn of a QP has come to. */
struct progress {
    bool more;     /* there is more to do at once */
    uint64_t msgs; /* completed */
};

/*
 * LOCAL_INV, FAST_REG and BIND_MW are barriers in their queue: they run when all before
 * is acknowledged - else a message that has to be sent again would find its key dead -
 * and what follows begins when they are complete.  They are no messages: the sequence
 * does not count them.
 */
SELDOM static bool run_local(struct qp *qp, struct turn *t, struct progress *p)
{
    struct send_op *op = &qp->req.op;
    struct outcome o;

    if (has_window(qp)) {
        return false; /* an answer brings it here again */
    }
    o = keys_run(qp, op);
    if (op->m.opcode == PVRDMA_WR_FAST_REG) {
        turn_spent(t, MIN(op->reg.page_list_len, PVRDMA_EXT_MAX_FAST_REG) / UNIT_PAGES);
    }
    if (o.what == OUT_GRACE) {
        wait_for_grace(qp);
        return false;
    }
    if (o.what == OUT_FAIL) {
        fail(qp, o.status);
        p->more = true;
        return false;
    }
    complete(qp, PVRDMA_WC_SUCCESS);
    return true;
}

/*
 * Carry the message in progress, and settle on this side what became of it.  True: go
 * on with the next WQE; false: the QP waits, failed, or has carried a slice.
 */
static bool run_op(struct qp *qp, struct turn *t, struct progress *p)
{
    uint64_t began = t->now;
    struct outcome o;
    uint32_t status;

    if (G_UNLIKELY(msg_is_local(&qp->req.op.m))) {
        return run_local(qp, t, p);
    }
    if (qp->req.in_flight && window_must_wait(qp, &qp->req.op.m)) {
        return false; /* an answer brings it here again */
    }
    o = carry(qp);
    if (o.what != OUT_DONE) {
        qp->req.op.begun |= qp->req.op.done || o.what == OUT_RNR || o.what == OUT_GRACE;
    }
    switch (o.what) {
    case OUT_DONE:
    case OUT_DUPLICATE: /* nothing comes back: it need not be carried again */
        p->msgs += finish(qp);
        return true;
    case OUT_PENDING:
        window_put(qp, SENT_OUT, PVRDMA_WC_SUCCESS);
        return true;
    case OUT_STALLED:
        return false;
    case OUT_MORE:
        turn_spent(t, TURN_UNITS);
        adapt_slice(qp, t->now - began);
        p->more = true;
        return false;
    case OUT_FAIL:
        status = o.status ? o.status : PVRDMA_WC_GENERAL_ERR;
        break;
    default:
        status = requester_wait(qp, qp->req.seq, o);
        break;
    }
    if (status != PVRDMA_WC_SUCCESS) {
        fail(qp, status);
        p->more = true;
    }
    return false;
}

/* A LOCAL_INV, or a bind over another, whose key others may use still. */
static bool is_taking_key(const struct send_op *op)
{
    return (op->m.opcode == PVRDMA_WR_LOCAL_INV || op->m.opcode == PVRDMA_WR_BIND_MW) &&
           op->period && !grace_is_over(op->period);
}

/*
 * A QP in ERR: everything posted completes as flushed; in SQE, the sends.  True:
 * there is more.
 */
static bool flush(struct qp *qp, bool receives)
{
    unsigned n = 0, received;

    if (has_window(qp)) {
        window_flush(qp);
    }
    if (qp->req.op.active && is_taking_key(&qp->req.op)) {
        wait_for_grace(qp); /* whatever its completion says, the memory is free then */
        return false;
    }
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
            comp_flush(worker_self()); /* the completions come before */
            event_async(&qp->vm->guest, PVRDMA_EVENT_SQ_DRAINED, qp->handle);
        }
    }
}

/* Next WQE into req.op, checked.  False: none, not now, or the QP just failed. */
static bool next_op(struct qp *qp, bool *more)
{
    uint32_t status;

    if (has_window(qp) && !window_has_room(qp)) {
        return false;
    }
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
    number(qp);
    return true;
}

static unsigned units_of(const struct send_op *op, uint64_t moved)
{
    return 1 + op->nsge / 2 + (unsigned)(moved >> PVRDMA_PAGE_SHIFT);
}

bool requester_run(struct qp *qp, struct turn *t)
{
    struct send_op *op = &qp->req.op;
    struct progress p = {0};
    uint64_t bytes = 0;
    bool go = true;

    for (unsigned i = 0; go && i < ENGINE_BATCH; i++) {
        uint32_t state = atomic_load_explicit(&qp->state, memory_order_acquire);
        uint64_t before, moved;

        if (state == PVRDMA_QPS_ERR || state == PVRDMA_QPS_SQE) {
            p.more = flush(qp, state == PVRDMA_QPS_ERR);
            turn_spent(t, TURN_UNITS);
            break;
        }
        if (state == PVRDMA_QPS_SQD && !op->active && !qp->req.replay) {
            if (!qp->req.in_flight) {
                drained(qp);
            }
            break;
        }
        if (state != PVRDMA_QPS_RTS && state != PVRDMA_QPS_SQD) {
            break;
        }
        if (!op->active && !next_op(qp, &p.more)) {
            break;
        }
        before = op->done;
        go = run_op(qp, t, &p);
        /* A message that was admitted anew began from 0 again. */
        moved = op->done >= before ? op->done - before : op->done;
        bytes += moved;
        if (turn_spent(t, units_of(op, moved)) || (go && i + 1 == ENGINE_BATCH)) {
            p.more |= go;
            break;
        }
    }
    if (p.msgs || bytes) {
        count_sent(qp, p.msgs, bytes);
    }
    return p.more;
}
