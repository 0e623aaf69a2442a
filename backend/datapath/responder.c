/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The responder: the receiving side of a QP, as any transport sees it.
 *
 * A message is admitted once (state, requester, sequence number, rights, receive
 * WQE), carried in slices, and finished.  Between these steps no lock is held;
 * resp.epoch tells whether what was admitted still stands: it changes with
 * every reset and error.  The expected sequence number advances only when a message
 * is finished: one that is broken off and admitted again starts anew, one that comes
 * again after it was finished is a duplicate, and one that comes too early is
 * ignored.  So each arrives exactly once.
 *
 * The first message since RTR binds the requester: it must come from the address and
 * QP that this one is connected to, with the expected packet sequence number.  From
 * then on the incarnation of its connection stands for all that.
 *
 * Of an unreliable connection (UC) each message is taken as the next, whatever was lost
 * before it, and so is the first of a requester that began anew.  What cannot be taken
 * is dropped and counted; the receive of one that was broken off serves the next.
 *
 * Which error goes to which side follows InfiniBand spec 9.9.3, table 61.
 *
 * Threads: the worker of the requester's VM, so several workers may be here for
 * QPs of one VM; qp->lock protects what is shared.  A QP's own VM may be the
 * requester's too (also the very same QP).
 */
#include "engine.h"

static bool takes_recv(const struct msg *m)
{
    return msg_is_send(m) || m->opcode == PVRDMA_WR_RDMA_WRITE_WITH_IMM;
}

/* The right that an operation needs in the QP and in the MR; 0: none. */
static uint32_t access_of(const struct msg *m)
{
    switch (m->opcode) {
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
static bool is_enabled(const struct qp *qp, const struct msg *m)
{
    uint32_t access = access_of(m);

    if ((qp->attr.qp_access_flags & access) != access) {
        return false;
    }
    if ((access & (PVRDMA_ACCESS_REMOTE_READ | PVRDMA_ACCESS_REMOTE_ATOMIC)) &&
        qp->attr.max_dest_rd_atomic == 0) {
        return false;
    }
    return !(access & PVRDMA_ACCESS_REMOTE_ATOMIC) || (m->addr & 7) == 0;
}

/* The remote range under its key; a message of no bytes needs no key. */
static bool rkey_ok(const struct qp *qp, const struct msg *m)
{
    struct pvrdma_sge sge = {m->addr, (uint32_t)m->length, m->rkey};
    struct sg_list l = {.vm = qp->vm,
                        .pd = qp->pd,
                        .at = qp,
                        .access = access_of(m),
                        .nsge = 1,
                        .sge = &sge};

    return !l.access || m->length == 0 || sg_check(&l);
}

/* The first message of a connection: is it from whom this QP is connected to? */
static bool bind_requester(struct qp *qp, const struct msg *m)
{
    const struct conn_path *p = m->path, *own = &qp->req.path;

    if (m->unreliable == qp->service->acknowledged || p->dqpn != qp->qpn ||
        p->sqpn != own->dqpn || (!m->unreliable && m->psn != qp->resp.psn) ||
        !gid_equal(&p->dgid, &own->sgid) || !gid_equal(&p->sgid, &own->dgid)) {
        return false;
    }
    qp->resp.incarnation = m->incarnation;
    qp->resp.seq = m->seq;
    qp->resp.n_atomic = 0; /* its numbers begin anew, too */
    qp->resp.inv_period = 0;
    return true;
}

/* May @m be looked at at all: is this QP connected to where it comes from? */
static bool is_from_peer(struct qp *qp, const struct msg *m)
{
    uint32_t state = atomic_load_explicit(&qp->state, memory_order_relaxed);

    if ((state != PVRDMA_QPS_RTR && state != PVRDMA_QPS_RTS && state != PVRDMA_QPS_SQD &&
         state != PVRDMA_QPS_SQE) ||
        !atomic_load(&qp->req.bound)) { /* only what is connected ever is */
        return false;
    }
    if (qp->resp.incarnation == m->incarnation) {
        return true;
    }
    return (!qp->resp.incarnation || !qp->service->acknowledged) && bind_requester(qp, m);
}

struct outcome responder_outcome(const struct msg *m, enum sg_result r,
                                 bool src_is_remote)
{
    bool src = r == SG_SRC_KEY || r == SG_SRC_MEM;
    bool key = r == SG_SRC_KEY || r == SG_DST_KEY;
    struct outcome o = OUTCOME(OUT_FAIL);

    if (r == SG_FAULT) { /* that VM is about to be disconnected */
        return OUTCOME(OUT_SILENT);
    }
    o.remote = src == src_is_remote;
    if (!o.remote) {
        o.status = PVRDMA_WC_LOC_PROT_ERR;
    } else if (msg_is_send(m)) {
        o.status = PVRDMA_WC_REM_OP_ERR;
        o.recv_status = PVRDMA_WC_LOC_PROT_ERR;
        o.event = PVRDMA_EVENT_QP_FATAL;
    } else {
        o.status = key ? PVRDMA_WC_REM_ACCESS_ERR : PVRDMA_WC_REM_OP_ERR;
        o.event = key ? PVRDMA_EVENT_QP_ACCESS_ERR : PVRDMA_EVENT_QP_FATAL;
    }
    return o;
}

/* For a requester that asks again; what it was told of a message may have been lost. */
static void keep_failure_locked(struct qp *qp, uint64_t seq, struct outcome o)
{
    if (qp->service->acknowledged && !qp->resp.failed_status) {
        qp->resp.failed_seq = seq;
        atomic_store(&qp->resp.failed_status, o.status);
    }
}

/*
 * This queue pair takes no message.  If it has failed for one of this requester's, who
 * has not heard of it, as one of the two was moved, or the connection broke: those before
 * it were executed.
 */
SELDOM static struct outcome tell_again(const struct qp *qp, const struct msg *m)
{
    const struct qp_responder *resp = &qp->resp;
    uint8_t status = atomic_load(&resp->failed_status);

    if (!status || !atomic_load(&qp->req.bound) || resp->incarnation != m->incarnation) {
        return OUTCOME(OUT_SILENT);
    }
    if (m->seq == resp->failed_seq) { /* not .remote: it is settled here */
        return (struct outcome){.what = OUT_FAIL, .status = status};
    }
    return OUTCOME(m->seq < resp->failed_seq && !msg_returns(m) ? OUT_DUPLICATE
                                                                : OUT_SILENT);
}

/* A failure on both sides. */
static struct outcome both_fail(uint8_t status, uint8_t recv_status, uint8_t event)
{
    return (struct outcome){.what = OUT_FAIL,
                            .status = status,
                            .recv_status = recv_status,
                            .event = event,
                            .remote = true};
}

/* Has the message that is expected, @m, taken its key away already? */
static bool has_invalidated(const struct qp *qp, const struct msg *m)
{
    return qp->resp.inv_period && qp->resp.inv_key == m->imm;
}

/*
 * The key is not one of this QP's PD that may be invalidated (InfiniBand spec 11.6.2:
 * "memory management operation error" for the receive).
 */
static struct outcome not_invalidated(void)
{
    return both_fail(PVRDMA_WC_REM_ACCESS_ERR, PVRDMA_WC_MW_BIND_ERR,
                     PVRDMA_EVENT_QP_ACCESS_ERR);
}

/* May @m, which has its receive WQE, invalidate what it names? */
SELDOM static struct outcome check_key(struct qp *qp, const struct msg *m)
{
    return has_invalidated(qp, m) || keys_may_invalidate(qp, m->imm) ? OUTCOME(OUT_DONE)
                                                                     : not_invalidated();
}

struct outcome responder_too_long(void)
{
    return both_fail(PVRDMA_WC_REM_INV_REQ_ERR, PVRDMA_WC_LOC_LEN_ERR,
                     PVRDMA_EVENT_QP_REQ_ERR);
}

/* Checks that need a receive WQE. */
static struct outcome check_recv(struct qp *qp, const struct msg *m)
{
    struct recv_op *recv = &qp->resp.recv;
    struct sg_list l = {.vm = qp->vm,
                        .pd = qp->rq->pd,
                        .access = PVRDMA_ACCESS_LOCAL_WRITE,
                        .sge = recv->sge};

    if (!msg_is_send(m)) {
        return OUTCOME(OUT_DONE);
    }
    if (m->length > recv->capacity) {
        return responder_too_long();
    }
    l.nsge = sg_reach(recv->sge, recv->nsge, m->length);
    if (!sg_check(&l)) {
        return both_fail(PVRDMA_WC_REM_OP_ERR, PVRDMA_WC_LOC_PROT_ERR, 0);
    }
    return msg_invalidates(m) ? check_key(qp, m) : OUTCOME(OUT_DONE);
}

SELDOM struct outcome responder_drop(struct qp *qp, enum uc_drop why)
{
    uc_count(qp->vm, why);
    count_one(&qp->seldom.dropped);
    return OUTCOME(OUT_DROPPED);
}

/* For UC: one that is too small stays, and there is nobody to be woken. */
static int claim_unreliable(struct qp *qp, const struct msg *m)
{
    struct recv_op *recv = &qp->resp.recv;
    uint64_t least = msg_is_send(m) ? m->length : 0;

    if (recv->active) {
        return recv->capacity < least ? EMSGSIZE : 0;
    }
    return rq_claim(qp->rq, recv, least);
}

/* A receive WQE for this message, one left from a message broken off first. */
static struct outcome claim(struct qp *qp, const struct msg *m)
{
    struct recv_op *recv = &qp->resp.recv;
    int err = 0;

    if (recv->active) {
        recv->cur = (struct sg_cursor){0, 0};
    }
    if (G_UNLIKELY(m->unreliable)) {
        err = claim_unreliable(qp, m);
    } else if (!recv->active) {
        err = rq_claim_or_wait(qp->rq, recv, &m->ticket);
    }
    if (err == EAGAIN && m->unreliable) {
        return responder_drop(qp, UC_NO_RECEIVE);
    }
    if (err == EAGAIN) {
        count_one(&qp->seldom.rnr_naks);
        return (struct outcome){.what = OUT_RNR, .status = qp->attr.min_rnr_timer};
    }
    if (err == EMSGSIZE) {
        return responder_drop(qp, UC_TOO_LONG);
    }
    if (err) {
        /* The queue itself is broken. */
        return both_fail(PVRDMA_WC_REM_OP_ERR, PVRDMA_WC_LOC_QP_OP_ERR,
                         PVRDMA_EVENT_QP_FATAL);
    }
    return check_recv(qp, m);
}

void responder_recv_complete(struct qp *qp, const struct pvrdma_cqe *proto,
                             bool solicited)
{
    struct pvrdma_cqe cqe = *proto;

    cqe.wr_id = qp->resp.recv.wr_id;
    cqe.qp = qp->handle;
    cqe.port_num = 1;
    qp->resp.recv.active = false;
    comp_push(qp->rcq, &cqe, solicited);
}

/* The one place where a failure is settled on this side.  qp->lock held. */
void responder_settle_locked(struct qp *qp, struct outcome o)
{
    if (o.recv_status != PVRDMA_WC_SUCCESS && qp->resp.recv.active) {
        struct pvrdma_cqe cqe = {.opcode = PVRDMA_WC_RECV, .status = o.recv_status};

        responder_recv_complete(qp, &cqe, false);
    }
    qp_enter_error_locked(qp);
}

void responder_tell(struct qp *qp, struct outcome o)
{
    if (o.comm_est) {
        event_async(&qp->vm->guest, PVRDMA_EVENT_COMM_EST, qp->handle);
    }
    if (o.what != OUT_FAIL || !o.remote) {
        return;
    }
    count_one(&qp->vm->dp.errors);
    count_one(&qp->seldom.errors);
    if (o.event) {
        event_async(&qp->vm->guest, (enum pvrdma_event_type)o.event, qp->handle);
    }
    datapath_ring(qp->vm, qp->handle); /* its worker flushes */
}

/*
 * Is the failure the message's alone?  One that is not acknowledged is lost then;
 * only a receive that cannot be used is this side's fault (InfiniBand spec 9.9.3,
 * classes D and E).
 */
static bool is_lost(const struct qp *qp, struct outcome o)
{
    return !qp->service->acknowledged && o.recv_status == PVRDMA_WC_SUCCESS;
}

void responder_settle(struct qp *qp, uint64_t seq, uint64_t epoch, struct outcome o)
{
    bool ours;

    if (o.what != OUT_FAIL || !o.remote) {
        return;
    }
    if (is_lost(qp, o)) {
        responder_drop(qp, UC_NO_ACCESS);
        return;
    }
    pthread_mutex_lock(&qp->lock);
    ours = qp->resp.epoch == epoch;
    if (ours) {
        keep_failure_locked(qp, seq, o);
        responder_settle_locked(qp, o);
    }
    pthread_mutex_unlock(&qp->lock);
    if (ours) {
        responder_tell(qp, o);
    }
}

struct outcome responder_atomic_locked(struct qp *qp, const struct msg *m, uint64_t *old)
{
    struct guest_mem *mem = &qp->vm->guest.mem;
    struct pvrdma_sge sge = {m->addr, 8, m->rkey};
    struct sg_list l = {.vm = qp->vm,
                        .pd = qp->pd,
                        .at = qp,
                        .write = true,
                        .access = PVRDMA_ACCESS_REMOTE_ATOMIC,
                        .nsge = 1,
                        .sge = &sge};
    enum sg_result why = SG_OK;
    uint64_t gpa, *word = sg_word(&l, &gpa, &why);

    if (!word) {
        return responder_outcome(m, why, false);
    }
    if (m->opcode == PVRDMA_WR_ATOMIC_FETCH_AND_ADD) {
        *old = guest_add64(mem, gpa, word, m->compare_add);
    } else {
        *old = guest_cas64(mem, gpa, word, m->compare_add, m->swap);
    }
    if (!guest_believed(&qp->vm->guest)) {
        return responder_outcome(m, SG_FAULT, false);
    }
    qp->resp.atomic[qp->resp.n_atomic++ % G_N_ELEMENTS(qp->resp.atomic)] =
        (struct atomic_result){m->seq, *old};
    return OUTCOME(OUT_DONE);
}

bool responder_saved_atomic_locked(const struct qp *qp, uint64_t seq, uint64_t *old)
{
    for (unsigned i = 0; i < MIN(qp->resp.n_atomic, G_N_ELEMENTS(qp->resp.atomic)); i++) {
        if (qp->resp.atomic[i].seq == seq) {
            *old = qp->resp.atomic[i].old;
            return true;
        }
    }
    return false;
}

/*
 * A message that was executed before, but the requester did not hear of it, is
 * acknowledged.  A READ needs its rights once more, an atomic its result: without,
 * there is nothing to answer.
 */
NO_ARRAY_ON_STACK
struct outcome responder_admit_locked(struct qp *qp, const struct msg *m,
                                      struct admission *a)
{
    struct outcome o = OUTCOME(OUT_DONE);
    bool comm_est = false;
    uint64_t old;

    *a = (struct admission){qp->resp.epoch, qp->resp.admissions + 1};
    if (!is_from_peer(qp, m)) {
        return tell_again(qp, m);
    }
    if (m->seq < qp->resp.seq && m->unreliable) {
        /* Its connection changed its way, and this is what still came by the other. */
        return responder_drop(qp, UC_NO_PEER);
    }
    if (qp->resp.carrying && m->unreliable) {
        return OUTCOME(OUT_SILENT); /* lost: a slice of one before it is stored yet */
    }
    if (m->seq != qp->resp.seq && m->unreliable) {
        qp->resp.seq = m->seq; /* those before are lost */
    } else if (m->seq != qp->resp.seq) {
        if (m->seq > qp->resp.seq) {
            return OUTCOME(OUT_EARLY);
        }
        count_one(&qp->seldom.duplicates);
        if (!msg_returns(m)) {
            return OUTCOME(OUT_DUPLICATE);
        }
        o.what = OUT_DUPLICATE;
    }
    if (!qp->resp.comm_est &&
        atomic_load_explicit(&qp->state, memory_order_relaxed) == PVRDMA_QPS_RTR) {
        qp->resp.comm_est = comm_est = true;
    }
    if (!is_enabled(qp, m)) {
        o = both_fail(PVRDMA_WC_REM_INV_REQ_ERR, PVRDMA_WC_SUCCESS,
                      PVRDMA_EVENT_QP_REQ_ERR);
    } else if (!rkey_ok(qp, m)) {
        o = both_fail(PVRDMA_WC_REM_ACCESS_ERR, PVRDMA_WC_SUCCESS,
                      PVRDMA_EVENT_QP_ACCESS_ERR);
    } else if (qp->resp.carrying && !msg_returns(m)) {
        o.what = OUT_HELD; /* a slice of it, by the way it came before, is stored yet */
    } else if (takes_recv(m)) {
        o = claim(qp, m);
    } else if (o.what == OUT_DUPLICATE && msg_is_atomic(m) &&
               !responder_saved_atomic_locked(qp, m->seq, &old)) {
        o = both_fail(PVRDMA_WC_REM_INV_REQ_ERR, PVRDMA_WC_SUCCESS,
                      PVRDMA_EVENT_QP_REQ_ERR);
    }
    if (o.what == OUT_FAIL && is_lost(qp, o)) {
        o = responder_drop(qp, UC_NO_ACCESS);
    } else if (o.what == OUT_FAIL) {
        keep_failure_locked(qp, m->seq, o);
        responder_settle_locked(qp, o);
        a->epoch = qp->resp.epoch;
    } else if (o.what == OUT_DONE) {
        qp->resp.admissions++;
    }
    o.comm_est = comm_est;
    return o;
}

/* Is it still what was admitted last?  Else another way has brought the same message. */
static bool is_current(const struct qp *qp, struct admission a)
{
    return qp->resp.epoch == a.epoch && qp->resp.admissions == a.number;
}

/* Does what was admitted stand, and is it not finished by another way? */
static bool stands(const struct qp *qp, const struct msg *m, struct admission a)
{
    return is_current(qp, a) && qp->resp.seq == m->seq;
}

void responder_begin_slice_locked(struct qp *qp, const struct msg *m,
                                  struct recv_op *recv)
{
    qp->resp.carrying |= !msg_returns(m);
    if (msg_is_send(m)) {
        recv->nsge = qp->resp.recv.nsge;
        recv->cur = qp->resp.recv.cur;
        memcpy(recv->sge, qp->resp.recv.sge, recv->nsge * sizeof(recv->sge[0]));
    }
}

bool responder_begin_slice(struct qp *qp, const struct msg *m, struct admission a,
                           struct recv_op *recv)
{
    bool ours;

    pthread_mutex_lock(&qp->lock);
    ours = stands(qp, m, a);
    if (ours) {
        responder_begin_slice_locked(qp, m, recv);
    }
    pthread_mutex_unlock(&qp->lock);
    return ours;
}

bool responder_repeats(struct qp *qp, uint64_t epoch)
{
    bool ours;

    pthread_mutex_lock(&qp->lock);
    ours = qp->resp.epoch == epoch;
    pthread_mutex_unlock(&qp->lock);
    return ours;
}

/* The slice is over, qp->lock held.  True: a flush waits for that. */
static bool carried(struct qp *qp)
{
    qp->resp.carrying = false;
    return atomic_load(&qp->state) == PVRDMA_QPS_ERR;
}

void responder_end_slice(struct qp *qp, const struct msg *m, struct admission a,
                         const struct sg_cursor *cur)
{
    bool failed;

    pthread_mutex_lock(&qp->lock);
    if (msg_is_send(m) && is_current(qp, a)) {
        qp->resp.recv.cur = *cur;
    }
    failed = carried(qp);
    pthread_mutex_unlock(&qp->lock);
    if (failed) {
        datapath_ring(qp->vm, qp->handle);
    }
}

struct outcome responder_invalidate_locked(struct qp *qp, const struct msg *m)
{
    struct qp_responder *resp = &qp->resp;

    if (!has_invalidated(qp, m)) {
        resp->inv_period = keys_invalidate(qp, m->imm);
        resp->inv_key = m->imm;
        if (!resp->inv_period) {
            return not_invalidated();
        }
    }
    return OUTCOME(grace_is_over(resp->inv_period) ? OUT_DONE : OUT_GRACE);
}

struct outcome responder_invalidate(struct qp *qp, const struct msg *m,
                                    struct admission a)
{
    struct outcome o = OUTCOME(OUT_SILENT);

    pthread_mutex_lock(&qp->lock);
    if (stands(qp, m, a)) {
        o = responder_invalidate_locked(qp, m);
    }
    pthread_mutex_unlock(&qp->lock);
    return o;
}

NO_ARRAY_ON_STACK
void responder_finish_locked(struct qp *qp, const struct msg *m)
{
    /* The requester's count: its path MTU is what packets would have. */
    qp->resp.psn = (m->psn + m->npsn) & PSN_MASK;
    qp->resp.seq++;
    if (!msg_returns(m)) {
        count_received_locked(qp, m->length);
    }
    if (takes_recv(m)) {
        struct pvrdma_cqe cqe = {
            .opcode = msg_is_send(m) ? PVRDMA_WC_RECV : PVRDMA_WC_RECV_RDMA_WITH_IMM,
            .status = PVRDMA_WC_SUCCESS,
            .byte_len = (uint32_t)m->length,
            .src_qp = m->path->sqpn,
            .sl = qp->attr.ah_attr.sl,
        };

        if (m->opcode != PVRDMA_WR_SEND) {
            cqe.imm_data = m->imm;
            cqe.wc_flags = msg_invalidates(m) ? PVRDMA_WC_FLAG_INV : PVRDMA_WC_FLAG_IMM;
        }
        qp->resp.inv_period = 0;
        responder_recv_complete(qp, &cqe, m->flags & PVRDMA_SEND_SOLICITED);
    }
}

bool responder_finish(struct qp *qp, const struct msg *m, struct admission a)
{
    bool ours, failed = false;

    pthread_mutex_lock(&qp->lock);
    ours = stands(qp, m, a);
    if (!msg_returns(m)) {
        failed = carried(qp);
    }
    if (ours) {
        responder_finish_locked(qp, m);
    }
    pthread_mutex_unlock(&qp->lock);
    if (failed) {
        datapath_ring(qp->vm, qp->handle);
    }
    return ours;
}

/* Is it time to tell that no receive of the SRQ completes on this QP any more? */
static bool take_last_wqe(struct qp *qp)
{
    if (qp->resp.last_wqe != LAST_WQE_DUE || qp->resp.carrying || qp->resp.recv.active ||
        atomic_load(&qp->state) != PVRDMA_QPS_ERR) {
        return false;
    }
    qp->resp.last_wqe = LAST_WQE_TOLD;
    return true;
}

unsigned responder_flush(struct qp *qp, unsigned max)
{
    bool last;
    struct pvrdma_cqe cqe = {.opcode = PVRDMA_WC_RECV, .status = PVRDMA_WC_WR_FLUSH_ERR};
    unsigned n = 0;

    pthread_mutex_lock(&qp->lock);
    /* Only what was posted before a reset that came meanwhile. */
    while (atomic_load(&qp->state) == PVRDMA_QPS_ERR && n < max) {
        uint32_t before = qp->own_rq.wq.cons;

        if (qp->resp.carrying) {
            break; /* once it is flushed the guest may use its memory again */
        }
        if (!qp->resp.recv.active) {
            /* What is in an SRQ is its other QPs'. */
            int err = qp->own_rq.wq.nwqe ? rq_claim(qp->rq, &qp->resp.recv, 0) : EAGAIN;

            if (err == EAGAIN || qp->own_rq.wq.cons == before) {
                break; /* empty, or the index is not usable */
            }
        }
        responder_recv_complete(qp, &cqe, false);
        n++;
    }
    last = take_last_wqe(qp);
    pthread_mutex_unlock(&qp->lock);
    if (last) {
        /* The guest finds all completions when it hears that there come no more. */
        comp_join(qp->rcq);
        comp_flush(worker_self());
        event_async(&qp->vm->guest, PVRDMA_EVENT_QP_LAST_WQE_REACHED, qp->handle);
    }
    return n;
}
