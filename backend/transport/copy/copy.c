/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Transport "copy": the peer is a QP of a VM on this host, so a message is one
 * memory copy from guest RAM to guest RAM.
 *
 * req.peer caches the peer QP.  It is looked up in the directory at the first
 * message after RTR and cut by whoever ends the connection: this QP
 * (disconnect) or the peer (datapath_qp_destroyed).  Both lists and pointers
 * change under directory_lock; the worker reads the pointer without it and may
 * use the QP until its next quiescent point.
 *
 * Threads: the worker of the requester's VM; (dis)connect on the main thread.
 */
#include "datapath/engine.h"
#include "transport/transports.h"

/* Messages up to this many bytes are copied while the peer's lock is held. */
#define SHORT_MESSAGE 4096u

static void copy_connect(struct qp *qp)
{
    (void)qp; /* the peer may not exist yet: looked up when needed */
}

static void copy_disconnect(struct qp *qp)
{
    struct qp *peer, *waiter = qp;

    directory_lock();
    peer = atomic_load(&qp->req.peer);
    if (peer) {
        LIST_REMOVE(qp, req.ref);
        atomic_compare_exchange_strong(&peer->resp.rnr_waiter, &waiter, NULL);
        atomic_store(&qp->req.peer, NULL);
    }
    directory_unlock();
}

/* Find the peer and enter ourselves with it. */
static struct qp *find_peer(struct qp *qp)
{
    struct qp *peer = NULL;
    struct vm *vm;

    directory_lock();
    vm = directory_find(qp->vm->cfg->network, &qp->attr.ah_attr.dgid);
    if (vm) {
        peer = objects_qp_by_qpn(&vm->objects, qp->attr.dest_qp_num);
    }
    if (peer) {
        LIST_INSERT_HEAD(&peer->resp.refs, qp, req.ref);
        atomic_store(&qp->req.peer, peer);
    }
    directory_unlock();
    return peer;
}

/* What went wrong while bytes were moved, and on whose side. */
struct blame {
    bool failed;
    bool remote;
    bool key; /* no right to the memory; else the memory is not there */
};

static struct blame blame_sg(enum sg_result r, bool src_is_remote)
{
    bool src = r == SG_SRC_KEY || r == SG_SRC_MEM;

    return (struct blame){
        .failed = r != SG_OK,
        .remote = src == src_is_remote,
        .key = r == SG_SRC_KEY || r == SG_DST_KEY,
    };
}

/*
 * The message cannot go on: who is to blame decides who hears what.  Returns
 * the requester's status.  The peer's lock is not held.
 */
static uint32_t broken_off(struct qp *peer, const struct send_op *op,
                           const struct blame *b)
{
    if (!b->remote) {
        /* The responder just never sees the rest of the message. */
        return PVRDMA_WC_LOC_PROT_ERR;
    }
    if (op_is_send(op)) {
        responder_fail(peer, op->epoch, PVRDMA_WC_LOC_PROT_ERR, PVRDMA_EVENT_QP_FATAL);
        return PVRDMA_WC_REM_OP_ERR;
    }
    responder_fail(peer, op->epoch, PVRDMA_WC_SUCCESS,
                   b->key ? PVRDMA_EVENT_QP_ACCESS_ERR : PVRDMA_EVENT_QP_FATAL);
    return b->key ? PVRDMA_WC_REM_ACCESS_ERR : PVRDMA_WC_REM_OP_ERR;
}

/* Move the next @n bytes; a SEND goes to @recv, whose cursor advances. */
static struct blame move_bytes(struct qp *qp, struct qp *peer, struct recv_op *recv,
                               uint64_t n)
{
    struct send_op *op = &qp->req.op;
    struct pvrdma_sge rsge = {op->remote_addr, (uint32_t)op->length, op->rkey};
    struct sg_list local = {.vm = qp->vm,
                            .pd = qp->pd,
                            .nsge = op->nsge,
                            .sge = op->sge,
                            .cur = op->cur,
                            .raw = op->is_inline ? op->data : NULL};
    struct sg_list remote = {.vm = peer->vm,
                             .pd = peer->pd,
                             .nsge = 1,
                             .sge = &rsge,
                             .cur = {0, (uint32_t)op->done}};
    bool read = op->opcode == PVRDMA_WR_RDMA_READ;
    enum sg_result r;

    if (read) {
        local.access = PVRDMA_ACCESS_LOCAL_WRITE;
        local.write = true;
        remote.access = PVRDMA_ACCESS_REMOTE_READ;
        r = sg_copy(&local, &remote, n);
    } else if (op_is_send(op)) {
        remote.nsge = recv->nsge;
        remote.sge = recv->sge;
        remote.cur = recv->cur;
        remote.access = PVRDMA_ACCESS_LOCAL_WRITE;
        remote.write = true;
        r = sg_copy(&remote, &local, n);
        recv->cur = remote.cur;
    } else {
        remote.access = PVRDMA_ACCESS_REMOTE_WRITE;
        remote.write = true;
        r = sg_copy(&remote, &local, n);
    }
    op->cur = local.cur;
    op->done += n;
    return blame_sg(r, read);
}

/* CAS and FAA: atomic for every worker and every vCPU, as IB_ATOMIC_HCA. */
static struct blame do_atomic(struct qp *qp, struct qp *peer)
{
    struct send_op *op = &qp->req.op;
    struct pvrdma_sge rsge = {op->remote_addr, 8, op->rkey};
    struct sg_list local = {.vm = qp->vm,
                            .pd = qp->pd,
                            .write = true,
                            .access = PVRDMA_ACCESS_LOCAL_WRITE,
                            .nsge = op->nsge,
                            .sge = op->sge};
    struct sg_list remote = {.vm = peer->vm,
                             .pd = peer->pd,
                             .write = true,
                             .access = PVRDMA_ACCESS_REMOTE_ATOMIC,
                             .nsge = 1,
                             .sge = &rsge};
    enum sg_result why = SG_OK;
    uint64_t gpa, old, *word = sg_word(&remote, &gpa, &why);

    if (!word) {
        return blame_sg(why, false);
    }
    if (op->opcode == PVRDMA_WR_ATOMIC_FETCH_AND_ADD) {
        old = __atomic_fetch_add(word, op->compare_add, __ATOMIC_SEQ_CST);
    } else {
        old = op->compare_add;
        __atomic_compare_exchange_n(word, &old, op->swap, false, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST);
    }
    guest_mark_dirty(&peer->vm->guest.mem, gpa, 8);
    op->done = op->length;
    return blame_sg(sg_fill(&local, &old, 8), true);
}

static struct blame carry_bytes(struct qp *qp, struct qp *peer, struct recv_op *recv,
                                uint64_t n)
{
    static const struct blame none;

    if (op_is_atomic(&qp->req.op)) {
        return do_atomic(qp, peer);
    }
    return n ? move_bytes(qp, peer, recv, n) : none;
}

static enum xfer_result as_result(enum admit_result r)
{
    switch (r) {
    case ADMIT_OK:
        return XFER_DONE;
    case ADMIT_RNR:
        return XFER_RNR;
    case ADMIT_ERROR:
        return XFER_ERROR;
    case ADMIT_UNREACHABLE:
        break;
    }
    return XFER_UNREACHABLE;
}

/*
 * Admit the message; one that is short enough is carried and finished at once,
 * under the same hold of the lock.  XFER_MORE: admitted, to be sliced; a SEND
 * then goes to @recv.
 */
static enum xfer_result begin(struct qp *qp, struct qp *peer, struct recv_op *recv,
                              uint32_t *status)
{
    struct send_op *op = &qp->req.op;
    struct blame b = {0};
    struct admission a;
    enum xfer_result r;

    op->done = 0;
    op->cur = (struct sg_cursor){0, 0};
    pthread_mutex_lock(&peer->lock);
    r = as_result(responder_admit_locked(peer, qp, op, &a));
    *status = a.status;
    if (r == XFER_DONE && op->length <= SHORT_MESSAGE) {
        b = carry_bytes(qp, peer, &peer->resp.recv, op->length);
        if (!b.failed) {
            responder_finish_locked(peer, qp, op);
        }
    } else if (r == XFER_DONE) {
        op->admitted = true;
        responder_begin_slice_locked(peer, op, recv);
        r = XFER_MORE;
    }
    pthread_mutex_unlock(&peer->lock);

    if (a.comm_est || r == XFER_ERROR) {
        responder_admit_tell(peer, &a);
    }
    if (b.failed) {
        *status = broken_off(peer, op, &b);
        r = XFER_ERROR;
    }
    return r;
}

/* Carry one slice of an admitted message, a SEND's to @recv. */
static enum xfer_result slice(struct qp *qp, struct qp *peer, struct recv_op *recv,
                              uint32_t *status)
{
    struct send_op *op = &qp->req.op;
    uint64_t n = MIN(op->length - op->done, qp->req.slice);
    struct blame b = carry_bytes(qp, peer, recv, n);

    if (op_is_send(op) && (b.failed || op->done < op->length)) {
        responder_end_slice(peer, op, &recv->cur);
    }
    if (b.failed) {
        *status = broken_off(peer, op, &b);
        return XFER_ERROR;
    }
    if (op->done < op->length) {
        return XFER_MORE;
    }
    if (!responder_finish(peer, qp, op)) {
        op->admitted = false;
        return XFER_UNREACHABLE;
    }
    return XFER_DONE;
}

static enum xfer_result copy_carry(struct qp *qp, uint32_t *status)
{
    struct send_op *op = &qp->req.op;
    struct qp *peer = atomic_load_explicit(&qp->req.peer, memory_order_acquire);
    struct recv_op recv;
    enum xfer_result r;

    if (!peer || !qp->req.sgid_valid) {
        op->admitted = false; /* if at all, by another peer than one found now */
        peer = qp->req.sgid_valid ? find_peer(qp) : NULL;
        if (!peer) {
            return XFER_UNREACHABLE;
        }
    }
    if (atomic_load(&peer->vm->dp.paused)) {
        return XFER_HOLD;
    }
    if (!op->admitted) {
        r = begin(qp, peer, &recv, status);
        if (r != XFER_MORE) {
            goto out;
        }
    } else if (!responder_begin_slice(peer, op, &recv)) {
        op->admitted = false; /* reset or failed meanwhile: start anew */
        return XFER_UNREACHABLE;
    }
    r = slice(qp, peer, &recv, status);
out:
    if (r == XFER_DONE && op->opcode <= PVRDMA_WR_SEND_WITH_IMM) {
        comp_received(peer->vm, op->length);
    }
    return r;
}

const struct transport_ops transport_copy = {
    .name = "copy",
    .connect = copy_connect,
    .disconnect = copy_disconnect,
    .carry = copy_carry,
};
