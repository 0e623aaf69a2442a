/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the data path keeps of a QP, for the state stream; save_queues.c has the rest, and
 * what holds for all.
 *
 * Requester.  Messages that were started are saved as if their connection had been lost
 * (window.c): they are to be started again, from the oldest on, which is in the guest's
 * ring still.  The one in progress is the last of them; its bytes begin anew.  That is
 * worked out on the way: the QP here keeps what it has in flight.  A request about keys
 * is no message, and may have taken one already: it is saved whole, and is done once.
 *
 * Responder.  A message that was admitted and is not finished comes again, so of its
 * receive there is only what the WQE said, which may be overwritten.
 *
 * Connection.  Sequence numbers and incarnations stay what they are: so both sides find
 * out what has arrived.  What a transport has of it is made anew.
 *
 * Main thread; the QP's token and lock are held.
 */
#include "engine.h"

/* The longest transport timer; no other is longer. */
#define MAX_WAIT_NS (4096ull << 31)

/* ---- requester -------------------------------------------------------------- */

/* Is a request about keys under way?  With messages before it, it has not begun. */
static bool has_local(const struct qp *qp)
{
    const struct qp_requester *req = &qp->req;

    return req->op.active && msg_is_local(&req->op.m) && !req->in_flight && !req->replay;
}

/* `state`: is it done? */
RECORD(sent_record, struct sent, FIELD(wr_id), FIELD_MAX(npsn, PSN_MASK), FIELD(length),
       FIELD_MAX(opcode, PVRDMA_WC_RECV - 1), FIELD_MAX(state, 1), FIELD(signaled),
       FIELD(returns))

static void sent_save(const struct sent *sent, struct state_out *s)
{
    struct sent copy = *sent;

    copy.state = sent->state == SENT_DONE;
    state_put_record(s, sent_record, &copy);
}

static void window_save(const struct qp *qp, struct state_out *s)
{
    const struct qp_requester *req = &qp->req;
    uint64_t first = req->seq - req->in_flight;
    uint32_t n = (uint32_t)req->in_flight + req->replay, psn = req->psn;
    bool more = req->op.active && !msg_is_local(&req->op.m) && !req->replay;
    struct sent last;

    for (uint64_t i = first; i < req->seq; i++) {
        psn -= window_at(qp, i)->npsn;
    }
    state_put_u32(s, psn & PSN_MASK);
    state_put_u64(s, first);
    state_put_u32(s, n + more);
    for (uint32_t i = 0; i < n; i++) {
        sent_save(window_at(qp, first + i), s);
    }
    if (more) {
        requester_describe(qp, &req->op, &last);
        sent_save(&last, s);
    }
}

static void sent_load(struct sent *sent, struct state_in *s)
{
    *sent = (struct sent){0};
    state_get_record(s, sent_record, sent);
    sent->state = sent->state ? SENT_DONE : SENT_AGAIN;
}

static void window_load(struct qp *qp, struct state_in *s)
{
    struct qp_requester *req = &qp->req;
    uint32_t n;

    req->psn = state_get_u32(s) & PSN_MASK;
    req->seq = state_get_u64(s);
    n = state_get_count(s, MIN(QP_WINDOW, qp->sq.nwqe), RECORD_WIDTH(sent_record));
    if (n && !req->sent) { /* the transport has no use for one, but this has */
        req->sent = g_try_new0(struct sent, QP_WINDOW);
    }
    if (req->seq > UINT64_MAX / 2 || (n && !req->sent)) {
        state_fail(s, "%u messages in flight are not possible", n);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        sent_load(window_at(qp, req->seq + i), s);
    }
    if (!state_failed(s)) {
        req->replay = (uint16_t)n;
    }
}

RECORD(local_record, struct send_op, FIELD(m.opcode), FIELD(m.flags), FIELD(wr_id))
RECORD(fast_reg_record, struct send_op, FIELD(reg.iova_start), FIELD(reg.pl_pdir_dma),
       FIELD(reg.page_shift), FIELD(reg.page_list_len), FIELD(reg.length),
       FIELD(reg.access_flags), FIELD(reg.rkey))
RECORD(bind_mw_record, struct send_op, FIELD(bind.addr), FIELD(bind.length),
       FIELD(bind.lkey), FIELD(bind.access_flags), FIELD(bind.rkey))
RECORD(local_inv_record, struct send_op, FIELD(m.imm))

/* What its opcode takes. */
static const struct record_field *operands_record(const struct send_op *op)
{
    return op->m.opcode == PVRDMA_WR_FAST_REG  ? fast_reg_record(op)
           : op->m.opcode == PVRDMA_WR_BIND_MW ? bind_mw_record(op)
                                               : local_inv_record(op);
}

static void local_save(const struct send_op *op, struct state_out *s)
{
    state_put_record(s, local_record, op);
    state_put_u8(s, op->period != 0);
    state_put_record(s, operands_record, op);
}

/* What is read there is as a guest writes it: keys_run() checks it. */
static void local_load(struct qp *qp, struct state_in *s)
{
    struct send_op *op = &qp->req.op;

    state_get_record(s, local_record, op);
    op->period = state_get_bool(s) ? grace_begin() : 0;
    state_get_record(s, operands_record, op);
    if (op->m.opcode >= 32 || !(qp->ops & (1u << op->m.opcode)) ||
        !msg_is_local(&op->m) || qp->req.replay) {
        state_fail(s, "QP %u: invalid request in progress", qp->handle);
        return;
    }
    op->active = true;
}

RECORD(retry_record, struct qp_requester, FIELD(retry_seq), FIELD_MAX(retries_left, 8),
       FIELD_MAX(rnr_left, 7))
RECORD(requester_record, struct qp_requester, FIELD(sqd_notified), FIELD(tx_msgs),
       FIELD(tx_bytes))

static void requester_save(const struct qp *qp, struct state_out *s)
{
    const struct qp_requester *req = &qp->req;
    bool waits = req->wait == QP_WAIT_RNR || req->wait == QP_WAIT_TIMEOUT;

    state_put_u32(s, qp->sq.cons);
    window_save(qp, s);
    state_put_u8(s, has_local(qp));
    if (has_local(qp)) {
        local_save(&req->op, s);
    }
    state_put_record(s, retry_record, req);
    state_put_u64(s, time_left(qp->vm, req->rnr_until));
    /* Who waits for something else looks for it anew. */
    state_put_u8(s, waits ? (uint8_t)req->wait : QP_WAIT_NONE);
    state_put_u64(s, waits ? time_left(qp->vm, req->timer.when) : 0);
    state_put_record(s, requester_record, req);
}

static void waits_load(struct qp *qp, struct state_in *s)
{
    struct qp_requester *req = &qp->req;
    uint64_t rnr, left;
    uint8_t wait;

    state_get_record(s, retry_record, req);
    rnr = state_get_u64(s);
    wait = state_get_u8(s);
    left = state_get_u64(s);
    if (wait > QP_WAIT_TIMEOUT || left > MAX_WAIT_NS || rnr > MAX_WAIT_NS) {
        state_fail(s, "QP %u: invalid timers", qp->handle);
    }
    if (state_failed(s)) {
        return;
    }
    req->rnr_until = rnr ? time_of(qp->vm, rnr) : 0;
    if (wait != QP_WAIT_NONE) {
        sched_wait(qp, wait, time_of(qp->vm, left));
    }
}

static void requester_load(struct qp *qp, struct state_in *s)
{
    struct qp_requester *req = &qp->req;

    qp->sq.cons = index_load(s, qp->sq.nwqe);
    window_load(qp, s);
    if (state_get_bool(s)) {
        local_load(qp, s);
    }
    qp->sq.next =
        req->op.active ? pvrdma_idx_next(qp->sq.cons, qp->sq.nwqe) : qp->sq.cons;
    window_pass_over(qp);
    /*
     * So many are posted, whatever the guest's index says; it is read when these are
     * through.  An answer may take next there before.
     */
    qp->sq.prod =
        (qp->sq.cons + (uint32_t)req->in_flight + req->replay + req->op.active) &
        (2 * qp->sq.nwqe - 1);
    waits_load(qp, s);
    state_get_record(s, requester_record, req);
}

/* ---- responder -------------------------------------------------------------- */

RECORD(sge_record, struct pvrdma_sge, FIELD(addr), FIELD(length), FIELD(lkey))

static void recv_save(const struct recv_op *recv, struct state_out *s)
{
    state_put_u8(s, recv->active);
    if (!recv->active) {
        return;
    }
    state_put_u64(s, recv->wr_id);
    state_put_u32(s, recv->nsge);
    for (uint32_t i = 0; i < recv->nsge; i++) {
        state_put_record(s, sge_record, &recv->sge[i]);
    }
}

static void recv_load(struct recv_op *recv, struct state_in *s)
{
    recv->active = state_get_bool(s);
    if (!recv->active) {
        return;
    }
    recv->wr_id = state_get_u64(s);
    recv->nsge = state_get_count(s, QP_MAX_SGE, RECORD_WIDTH(sge_record));
    for (uint32_t i = 0; i < recv->nsge; i++) {
        state_get_record(s, sge_record, &recv->sge[i]);
    }
    recv->capacity = sg_length(recv->sge, recv->nsge);
}

RECORD(atomic_record, struct atomic_result, FIELD(seq), FIELD(old))

static void atomics_save(const struct qp_responder *resp, struct state_out *s)
{
    uint64_t n = MIN(resp->n_atomic, G_N_ELEMENTS(resp->atomic));

    state_put_u64(s, resp->n_atomic);
    for (uint64_t i = 0; i < n; i++) {
        state_put_record(s, atomic_record, &resp->atomic[i]);
    }
}

static void atomics_load(struct qp_responder *resp, struct state_in *s)
{
    uint64_t n;

    resp->n_atomic = state_get_u64(s);
    n = MIN(resp->n_atomic, G_N_ELEMENTS(resp->atomic));
    for (uint64_t i = 0; i < n; i++) {
        state_get_record(s, atomic_record, &resp->atomic[i]);
    }
}

RECORD(expected_record, struct qp_responder, FIELD(psn), FIELD(seq), FIELD(incarnation),
       FIELD(comm_est), FIELD_U8(last_wqe, LAST_WQE_TOLD))
RECORD(received_record, struct qp_responder, FIELD(rx_msgs), FIELD(rx_bytes))

static void responder_save(const struct qp *qp, struct state_out *s)
{
    const struct qp_responder *resp = &qp->resp;

    state_put_u32(s, qp->own_rq.wq.cons);
    state_put_record(s, expected_record, resp);
    recv_save(&resp->recv, s);
    atomics_save(resp, s);
    state_put_u8(s, resp->inv_period != 0);
    state_put_u32(s, resp->inv_period ? resp->inv_key : 0);
    state_put_record(s, received_record, resp);
}

static void responder_load(struct qp *qp, struct state_in *s)
{
    struct qp_responder *resp = &qp->resp;
    struct wq *wq = &qp->own_rq.wq;

    if (wq->nwqe) {
        wq->cons = wq->next = wq->prod = index_load(s, wq->nwqe);
    } else if (state_get_u32(s)) {
        state_fail(s, "QP %u: an index of a receive queue that it does not have",
                   qp->handle);
    }
    qp->own_rq.must_notify = !qp->rq->srq && atomic_load(&qp->state) == PVRDMA_QPS_ERR;
    state_get_record(s, expected_record, resp);
    resp->psn &= PSN_MASK;
    if (resp->last_wqe && !qp->rq->srq) {
        state_fail(s, "QP %u: invalid state of LAST_WQE_REACHED", qp->handle);
        resp->last_wqe = LAST_WQE_NONE;
    }
    recv_load(&resp->recv, s);
    atomics_load(resp, s);
    resp->inv_period = state_get_bool(s) ? grace_begin() : 0;
    resp->inv_key = state_get_u32(s);
    state_get_record(s, received_record, resp);
}

/* Its requester may not have heard of it; it is told wherever the two meet again. */
void datapath_failure_save(struct qp *qp, struct state_out *s)
{
    const struct qp_responder *resp = &qp->resp;
    uint8_t status = atomic_load(&resp->failed_status);

    if (status) {
        state_put_u32(s, qp->handle);
        state_put_u8(s, status);
        state_put_u64(s, resp->failed_seq);
    }
}

/* One that is admitted is the next, or one that comes again. */
void datapath_failure_load(struct qp *qp, struct state_in *s)
{
    struct qp_responder *resp = &qp->resp;
    uint8_t status = state_get_u8(s);
    uint64_t seq = state_get_u64(s);
    bool right = status == PVRDMA_WC_REM_INV_REQ_ERR ||
                 status == PVRDMA_WC_REM_ACCESS_ERR || status == PVRDMA_WC_REM_OP_ERR;

    if (!right || !qp->service->acknowledged || !resp->incarnation || seq > resp->seq ||
        atomic_load(&qp->state) != PVRDMA_QPS_ERR || atomic_load(&resp->failed_status)) {
        state_fail(s, "QP %u: invalid failed request", qp->handle);
        return;
    }
    resp->failed_seq = seq;
    atomic_store(&resp->failed_status, status);
}

/* ---- the connection, and all of it ------------------------------------------- */

static void path_save(const struct qp *qp, struct state_out *s)
{
    uint64_t incarnation = atomic_load(&qp->req.incarnation);

    state_put_u64(s, incarnation);
    if (incarnation) { /* of the path, what the attributes do not say */
        state_put_bytes(s, qp->req.path.sgid.raw, sizeof(qp->req.path.sgid.raw));
        /* As it would be if nothing but the link is down. */
        state_put_u8(s,
                     atomic_load(&qp->req.bound) ||
                         (atomic_load(&qp->vm->objects.link_down) && qp_has_address(qp)));
    }
}

static void path_load(struct qp *qp, struct state_in *s)
{
    const struct pvrdma_ah_attr *ah = &qp->attr.ah_attr;
    uint64_t incarnation = state_get_u64(s);
    uint32_t state = atomic_load(&qp->state);
    const struct gid_entry *gid;
    struct pvrdma_gid sgid;
    bool bound;

    if (!incarnation) {
        return;
    }
    state_get_bytes(s, sgid.raw, sizeof(sgid.raw));
    bound = state_get_bool(s);
    if (!qp->service->connected || state == PVRDMA_QPS_RESET ||
        state == PVRDMA_QPS_INIT || ah->sgid_index >= VERBS_GID_TBL_LEN) {
        state_fail(s, "QP %u: it cannot be connected", qp->handle);
        return;
    }
    gid = &qp->vm->objects.gid[ah->sgid_index];
    if (bound && (!gid_is_held(gid) || !gid_equal(&gid->gid, &sgid))) {
        state_fail(s, "QP %u: its address is not the VM's", qp->handle);
    }
    if (state_failed(s)) {
        return;
    }
    atomic_store(&qp->req.incarnation, incarnation);
    atomic_store(&qp->req.bound, bound && !atomic_load(&qp->vm->objects.link_down));
    qp_take_path(qp, &(struct conn_path){sgid, ah->dgid, qp->qpn, qp->attr.dest_qp_num});
}

RECORD(seldom_record, struct qp_counters, FIELD(errors), FIELD(rnr_waits), FIELD(retries),
       FIELD(rnr_naks), FIELD(duplicates), FIELD(dropped))

void datapath_qp_save(struct qp *qp, struct state_out *s)
{
    path_save(qp, s);
    requester_save(qp, s);
    responder_save(qp, s);
    state_put_record(s, seldom_record, &qp->seldom);
}

void datapath_qp_load(struct qp *qp, uint32_t uar_page, struct state_in *s)
{
    datapath_qp_known(qp, uar_page);
    path_load(qp, s);
    requester_load(qp, s);
    responder_load(qp, s);
    state_get_record(s, seldom_record, &qp->seldom);
}
