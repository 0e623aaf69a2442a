/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The send window: messages of a QP that are started and wait for their answers,
 * for transports that answer later.
 *
 *        sq.cons                    sq.next
 *   ring    |  in_flight  |  replay    |  posted, not fetched   (without replay)
 *   seq     ^ oldest      ^ req.seq
 *
 * The guest's ring is the window; here is only what a completion needs.  Completions
 * are made in order, so an answer waits for those before it.  An answer of the
 * responder acknowledges all before but READs and atomics, which have their own.
 *
 * Going back.  When the connection is lost, or the responder is not ready for a
 * message, everything from there on is to be started again ("replay"): the WQEs are
 * fetched and checked anew, with the sequence numbers they had, and the responder
 * tells by these what it has executed already.  What it is known to have executed is
 * not sent again, but for READs and atomics whose answers were lost.
 *
 * That holds if both sides are of one time.  If a VM is put back to a state that it had
 * once (a snapshot, a file that is loaded twice), its numbers stand for other messages
 * than its peer took by them: requester_agrees() says so, and the connection ends, before
 * a message is taken for one that was executed.
 *
 * Errors.  A message that fails, for whatever reason, completes after all before it;
 * nothing is started behind it.
 *
 * Fences: a message with the fence flag waits for the READs and atomics before it; of
 * those, max_rd_atomic are in flight at most (InfiniBand spec 9.7.3.1, 10.8.3.3).
 *
 * Threads: the VM's worker with the token held.
 */
#include "engine.h"

static uint64_t oldest(const struct qp *qp)
{
    return qp->req.seq - qp->req.in_flight;
}

static uint32_t ring_index(const struct qp *qp, uint32_t messages)
{
    return (qp->sq.cons + messages) & (2 * qp->sq.nwqe - 1);
}

/* The message of req.seq is in flight. */
static void advance(struct qp_requester *req, const struct sent *s)
{
    req->psn = (req->psn + s->npsn) & PSN_MASK;
    req->seq++;
    req->in_flight++;
    req->replay -= req->replay > 0;
}

/* What was acknowledged already need not be started again. */
void window_pass_over(struct qp *qp)
{
    struct qp_requester *req = &qp->req;

    while (req->replay && window_at(qp, req->seq)->state == SENT_DONE) {
        advance(req, window_at(qp, req->seq));
        qp->sq.next = pvrdma_idx_next(qp->sq.next, qp->sq.nwqe);
    }
}

void window_put(struct qp *qp, enum sent_state state, uint32_t status)
{
    struct qp_requester *req = &qp->req;
    struct sent *s = window_at(qp, req->seq);

    requester_describe(qp, &req->op, s);
    s->state = (uint8_t)state;
    s->status = (uint8_t)status;
    req->op.active = false;
    advance(req, s);
    req->returning += state == SENT_OUT && s->returns;
    req->stopped |= state == SENT_FAILED;
    window_pass_over(qp);
}

/* Whatever became of it, it is not waited for any more. */
static void settle(struct qp *qp, struct sent *s, enum sent_state state, uint32_t status)
{
    qp->req.returning -= s->state == SENT_OUT && s->returns;
    s->state = (uint8_t)state;
    s->status = (uint8_t)status;
    qp->req.stopped |= state == SENT_FAILED;
}

void window_retire(struct qp *qp)
{
    struct qp_requester *req = &qp->req;
    uint64_t first = oldest(qp), bytes = 0;
    uint32_t n = 0, status = PVRDMA_WC_SUCCESS, begin = qp->sq.cons;

    while (n < req->in_flight && status == PVRDMA_WC_SUCCESS) {
        const struct sent *s = window_at(qp, first + n);

        if (s->state != SENT_DONE && s->state != SENT_FAILED) {
            break;
        }
        status = s->state == SENT_FAILED ? s->status : PVRDMA_WC_SUCCESS;
        n++;
    }
    if (!n) {
        return;
    }
    req->in_flight = (uint16_t)(req->in_flight - n);
    wq_release(qp->vm, &qp->mem, &qp->sq, ring_index(qp, n), false);
    for (uint32_t i = 0, idx = begin; i < n; i++) {
        const struct sent *s = window_at(qp, first + i);

        bytes += s->returns ? s->length : 0;
        idx = pvrdma_idx_next(idx, qp->sq.nwqe);
        requester_complete(qp, s, idx, i + 1 < n ? PVRDMA_WC_SUCCESS : status);
    }
    count_sent(qp, n - (status != PVRDMA_WC_SUCCESS), bytes);
    if (status != PVRDMA_WC_SUCCESS) {
        requester_failed(qp, status);
    }
}

bool window_must_wait(const struct qp *qp, const struct msg *m)
{
    const struct qp_requester *req = &qp->req;

    return req->stopped ||
           (req->returning &&
            ((m->flags & PVRDMA_SEND_FENCE) ||
             (msg_returns(m) && req->returning >= qp->attr.max_rd_atomic)));
}

/* Start anew from @seq on, which is in flight or the next. */
static void go_back(struct qp *qp, uint64_t seq)
{
    struct qp_requester *req = &qp->req;

    if (req->op.active && msg_is_local(&req->op.m) && !req->in_flight && !req->replay) {
        return; /* no message: it goes on, and knows what it has begun */
    }
    if (req->op.active && req->op.begun && !req->replay) { /* as if sent */
        requester_describe(qp, &req->op, window_at(qp, req->seq));
        window_at(qp, req->seq)->state = SENT_AGAIN;
        req->replay = 1;
    }
    while (req->seq > seq) {
        struct sent *s = window_at(qp, --req->seq);

        req->in_flight--;
        req->replay++;
        req->psn = (req->psn - s->npsn) & PSN_MASK;
        if (s->state != SENT_DONE) {
            settle(qp, s, SENT_AGAIN, PVRDMA_WC_SUCCESS);
        }
    }
    /* One that has failed may have been among these, or be before them. */
    req->stopped = false;
    for (uint64_t i = oldest(qp); i < seq; i++) {
        req->stopped |= window_at(qp, i)->state == SENT_FAILED;
    }
    req->op.active = false;
    qp->sq.next = ring_index(qp, req->in_flight);
}

/* Nothing but READs and atomics from the oldest message to before @seq is needed. */
static void acknowledge(struct qp *qp, uint64_t seq)
{
    for (uint64_t i = oldest(qp); i < seq; i++) {
        struct sent *s = window_at(qp, i);

        if (!s->returns && s->state != SENT_FAILED) {
            settle(qp, s, SENT_DONE, PVRDMA_WC_SUCCESS);
        }
    }
}

static bool is_running(const struct qp *qp)
{
    uint32_t state = atomic_load_explicit(&qp->state, memory_order_acquire);

    return state == PVRDMA_QPS_RTS || state == PVRDMA_QPS_SQD;
}

/* Is a message answered like that only after those before it were executed? */
static bool tells_of_earlier(struct outcome o)
{
    return o.what == OUT_DONE || o.what == OUT_DUPLICATE || o.what == OUT_RNR ||
           o.what == OUT_FAIL || o.what == OUT_GRACE;
}

void requester_answered(struct qp *qp, uint64_t seq, struct outcome o)
{
    struct sent *s;
    uint32_t status = o.status;

    if (!is_running(qp)) {
        return;
    }
    if (seq == qp->req.seq && qp->req.op.active && qp->req.op.done) {
        window_put(qp, SENT_OUT, PVRDMA_WC_SUCCESS); /* answered by its first bytes */
    }
    if (seq - oldest(qp) >= qp->req.in_flight) {
        return;
    }
    if (!tells_of_earlier(o)) {
        seq = oldest(qp);
    }
    acknowledge(qp, seq);
    window_retire(qp);
    s = window_at(qp, seq);
    if (s->state != SENT_OUT || !is_running(qp)) {
        sched_look(qp); /* room, or a failure: the rest is to be flushed */
        return;
    }
    switch (o.what) {
    case OUT_DONE:
    case OUT_DUPLICATE:
        settle(qp, s, SENT_DONE, PVRDMA_WC_SUCCESS);
        break;
    case OUT_FAIL:
        settle(qp, s, SENT_FAILED, status ? status : PVRDMA_WC_GENERAL_ERR);
        break;
    default:
        status = requester_wait(qp, seq, o);
        if (status != PVRDMA_WC_SUCCESS) {
            settle(qp, s, SENT_FAILED, status);
        } else {
            count(&qp->vm->dp.replays, qp->req.seq - seq);
            go_back(qp, seq);
        }
        break;
    }
    window_retire(qp);
    sched_look(qp);
}

void requester_lost(struct qp *qp)
{
    if (!qp->service->acknowledged) { /* nothing waits; the next is carried or lost */
        sched_look(qp);
        return;
    }
    count(&qp->vm->dp.replays, qp->req.in_flight);
    go_back(qp, oldest(qp));
    sched_look(qp);
}

bool requester_agrees(const struct qp *qp, uint64_t got)
{
    return got - oldest(qp) <= (uint64_t)qp->req.in_flight + qp->req.replay;
}

void requester_strayed(struct qp *qp)
{
    log_vm(LOG_LVL_WARN, qp->vm,
           "QP %u: its peer's message number disagrees with its own: one of the two was "
           "restored from an older state",
           qp->handle);
    qp_set_error(qp, PVRDMA_EVENT_QP_FATAL);
    sched_look(qp);
}

void requester_resume(struct qp *qp, uint64_t got)
{
    if (!is_running(qp)) { /* nothing completes behind a failure but as flushed */
        if (qp->service->acknowledged && qp_is_connected(qp) &&
            !requester_agrees(qp, got)) { /* what is in RTR has sent nothing */
            requester_strayed(qp);
        }
        return;
    }
    if (!qp->service->acknowledged) {
        sched_unwait(qp);
        sched_look(qp);
        return;
    }
    go_back(qp, oldest(qp)); /* req.op may have begun one that need not be */
    if (!requester_agrees(qp, got)) {
        requester_strayed(qp);
        return;
    }
    acknowledge(qp, got);
    window_pass_over(qp);
    if (qp->req.wait != QP_WAIT_RNR || qp->req.retry_seq < got) {
        sched_unwait(qp);
    }
    requester_go(qp);
}

void requester_go(struct qp *qp)
{
    if (is_running(qp)) {
        window_retire(qp);
    }
    sched_look(qp);
}

void window_flush(struct qp *qp)
{
    struct qp_requester *req = &qp->req;
    uint64_t first = oldest(qp);
    uint32_t n = (uint32_t)req->in_flight + req->replay, begin = qp->sq.cons;

    if (req->replay) {
        req->op.active = false; /* it is among them */
    }
    wq_release(qp->vm, &qp->mem, &qp->sq, ring_index(qp, n), false);
    window_clear(qp);
    req->seq = first + n;
    qp->sq.next = ring_index(qp, req->op.active ? 1 : 0);
    for (uint32_t i = 0, idx = begin; i < n; i++) {
        idx = pvrdma_idx_next(idx, qp->sq.nwqe);
        requester_complete(qp, window_at(qp, first + i), idx, PVRDMA_WC_WR_FLUSH_ERR);
    }
}

void window_clear(struct qp *qp)
{
    qp->req.in_flight = qp->req.replay = qp->req.returning = 0;
    qp->req.stopped = false;
}
