/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Transport "copy": the peer is a QP of a VM on this host, so a message is one
 * memory copy from guest RAM to guest RAM.
 *
 * The peer QP is found by the connection's route and kept with the route's
 * generation, which is compared before every use: whatever may end the peer changes
 * it first, and waits for a grace period before it frees anything.  It changes often,
 * with every queue pair that the peer's VM destroys; so a message goes on where it is
 * unless the peer has another epoch (responder.c), or is another queue pair.
 *
 * A datagram's peer is looked up each time, in the directory's index.  What is for
 * nobody here goes on to link/datagrams.c.
 *
 * Threads: the worker of the requester's VM.
 */
#include "datapath/engine.h"
#include "transport/link/datagrams.h"
#include "transport/transports.h"

/* Messages up to this many bytes are copied while the peer's lock is held. */
#define SHORT_MESSAGE 4096u

/* The peer QP, or NULL: there is none now. */
static struct qp *find_peer(struct qp *qp)
{
    struct qp_requester *req = &qp->req;
    uint64_t gen = atomic_load_explicit(&req->route->gen, memory_order_acquire);
    struct qp *peer;
    struct vm *vm;

    if (gen != req->peer_gen) {
        vm = atomic_load_explicit(&req->route->vm, memory_order_acquire);
        peer = vm ? objects_qp_by_qpn(&vm->objects, req->path.dqpn) : NULL;
        if (peer != req->peer) { /* should it be at the same place, its epoch tells */
            req->op.admitted = req->op.repeated = false;
        }
        req->peer = peer;
        req->peer_gen = gen;
    }
    return req->peer;
}

static struct outcome moved(const struct msg *m, enum sg_result r, bool src_is_remote)
{
    return r == SG_OK ? OUTCOME(OUT_DONE) : responder_outcome(m, r, src_is_remote);
}

/* Move the next @n bytes; a SEND goes to @recv, whose cursor advances. */
static struct outcome move_bytes(struct qp *qp, struct qp *peer, struct recv_op *recv,
                                 uint64_t n)
{
    struct send_op *op = &qp->req.op;
    struct pvrdma_sge rsge = {op->m.addr, (uint32_t)op->m.length, op->m.rkey};
    bool read = op->m.opcode == PVRDMA_WR_RDMA_READ;
    struct sg_list local = sg_of_op(qp, op, read);
    struct sg_list remote = {.vm = peer->vm,
                             .pd = peer->pd,
                             .at = peer,
                             .nsge = 1,
                             .sge = &rsge,
                             .cur = {0, (uint32_t)op->done}};
    enum sg_result r;

    if (read) {
        remote.access = PVRDMA_ACCESS_REMOTE_READ;
        r = sg_copy(&local, &remote, n);
    } else if (msg_is_send(&op->m)) {
        remote.nsge = recv->nsge;
        remote.sge = recv->sge;
        remote.cur = recv->cur;
        remote.pd = peer->rq->pd;
        remote.at = NULL;
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
    return moved(&op->m, r, read);
}

/* The result of an atomic. */
static struct outcome return_word(struct qp *qp, uint64_t old)
{
    struct send_op *op = &qp->req.op;
    struct sg_list local = sg_of_op(qp, op, true);

    op->done = op->m.length;
    return moved(&op->m, sg_fill(&local, &old, 8), true);
}

static struct outcome do_atomic(struct qp *qp, struct qp *peer)
{
    uint64_t old;
    struct outcome o = responder_atomic_locked(peer, &qp->req.op.m, &old);

    return o.what == OUT_DONE ? return_word(qp, old) : o;
}

NO_ARRAY_ON_STACK
static struct outcome carry_bytes(struct qp *qp, struct qp *peer, struct recv_op *recv,
                                  uint64_t n)
{
    if (msg_is_atomic(&qp->req.op.m)) {
        return do_atomic(qp, peer);
    }
    return n ? move_bytes(qp, peer, recv, n) : OUTCOME(OUT_DONE);
}

/* It was executed, but what it returns got lost.  OUT_MORE: a READ, to be sliced. */
static struct outcome repeat(struct qp *qp, struct qp *peer)
{
    uint64_t old = 0;

    if (msg_is_atomic(&qp->req.op.m)) {
        responder_saved_atomic_locked(peer, qp->req.op.m.seq, &old); /* was admitted */
        return return_word(qp, old);
    }
    qp->req.op.repeated = true;
    return OUTCOME(OUT_MORE);
}

/* A short SEND with invalidate, when its bytes are there. */
SELDOM static struct outcome invalidate(struct qp *peer, struct send_op *op)
{
    struct outcome o = responder_invalidate_locked(peer, &op->m);

    op->admitted = o.what == OUT_GRACE; /* finished as if it were sliced */
    return o;
}

/*
 * Is what @peer expects a message of another number than that of req.op, and not one that
 * was executed already, with an answer that was lost?  peer->lock is held.
 */
SELDOM static bool has_strayed(const struct qp *qp, const struct qp *peer)
{
    const struct msg *m = &qp->req.op.m;

    return !m->unreliable && peer->resp.incarnation == m->incarnation &&
           !requester_agrees(qp, peer->resp.seq);
}

/*
 * The two count otherwise: neither goes on.  @peer may have come so far already.
 * peer->lock is held, and is not after this.
 */
SELDOM static void part_unlock(struct qp *qp, struct qp *peer)
{
    bool goes_on = qp_is_connected(peer);

    if (goes_on) {
        qp_enter_error_locked(peer);
    }
    pthread_mutex_unlock(&peer->lock);
    if (goes_on) {
        event_async(&peer->vm->guest, PVRDMA_EVENT_QP_FATAL, peer->handle);
        datapath_ring(peer->vm, peer->handle); /* its worker flushes */
    }
    requester_strayed(qp);
}

/*
 * Admit the message; one that is short enough is carried and finished at once,
 * under the same hold of the lock.  OUT_MORE: admitted, to be sliced; a SEND
 * then goes to @recv.
 */
static struct outcome begin(struct qp *qp, struct qp *peer, struct recv_op *recv)
{
    struct send_op *op = &qp->req.op;
    struct outcome admitted, o;

    op->done = 0;
    op->cur = (struct sg_cursor){0, 0};
    pthread_mutex_lock(&peer->lock);
    if (G_UNLIKELY(peer->resp.seq != op->m.seq) && has_strayed(qp, peer)) {
        part_unlock(qp, peer);
        return OUTCOME(OUT_STALLED); /* its worker flushes */
    }
    o = admitted = responder_admit_locked(peer, &op->m, &op->admission);
    if (o.what == OUT_DONE && op->m.length <= SHORT_MESSAGE) {
        o = carry_bytes(qp, peer, &peer->resp.recv, op->m.length);
        if (msg_invalidates(&op->m) && o.what == OUT_DONE) {
            o = invalidate(peer, op);
        }
        /* An atomic whose result found no place here was executed all the same. */
        if (o.what == OUT_DONE ||
            (o.what == OUT_FAIL && msg_is_atomic(&op->m) && !o.remote)) {
            responder_finish_locked(peer, &op->m);
        }
    } else if (o.what == OUT_DONE) {
        op->admitted = true;
        responder_begin_slice_locked(peer, &op->m, recv);
        o.what = OUT_MORE;
    } else if (o.what == OUT_DUPLICATE && msg_returns(&op->m)) {
        o = repeat(qp, peer);
    }
    pthread_mutex_unlock(&peer->lock);

    if (admitted.what == OUT_FAIL || admitted.comm_est) {
        responder_tell(peer, admitted);
    }
    if (admitted.what == OUT_DONE && o.what == OUT_FAIL) {
        responder_settle(peer, op->m.seq, op->admission.epoch, o);
    }
    return o;
}

/* Carry one slice of an admitted message, a SEND's to @recv. */
static struct outcome slice(struct qp *qp, struct qp *peer, struct recv_op *recv)
{
    struct send_op *op = &qp->req.op;
    uint64_t n = MIN(op->m.length - op->done, qp->req.slice);
    struct outcome o = carry_bytes(qp, peer, recv, n);
    bool more = op->done < op->m.length;

    if (msg_invalidates(&op->m) && o.what == OUT_DONE && !more) {
        o = responder_invalidate(peer, &op->m, op->admission);
    }
    if (!msg_returns(&op->m) && (o.what != OUT_DONE || more)) {
        responder_end_slice(peer, &op->m, op->admission, &recv->cur);
    }
    if (o.what == OUT_FAIL) {
        responder_settle(peer, op->m.seq, op->admission.epoch, o);
        return o;
    }
    if (o.what ==
        OUT_SILENT) { /* what was admitted does not stand any more, or a fault */
        op->admitted = op->repeated = false;
        return o;
    }
    if (more) {
        return OUTCOME(OUT_MORE);
    }
    if (op->repeated || o.what == OUT_GRACE) {
        return o;
    }
    if (!responder_finish(peer, &op->m, op->admission)) {
        op->admitted = false;
        return OUTCOME(OUT_SILENT);
    }
    return o;
}

/* Its peer stands still: its own clock does, too, but no longer than until @until. */
static struct outcome not_now(const struct qp *qp, uint64_t until)
{
    bool waits = !qp->service->acknowledged || now_ns() < until;

    return OUTCOME(waits ? OUT_HELD : OUT_SILENT);
}

static struct outcome copy_start(struct qp *qp, struct send_op *op)
{
    struct qp *peer;
    struct recv_op recv;
    struct outcome o;
    uint64_t still;

    if (!atomic_load(&qp->req.bound) || !qp->req.route) {
        return OUTCOME(OUT_SILENT);
    }
    still = route_still_until(qp->req.route); /* first: see directory_unbind() */
    peer = find_peer(qp);
    if (G_UNLIKELY(still)) {
        return not_now(qp, still);
    }
    if (!peer || guest_faulted(&peer->vm->guest)) {
        return OUTCOME(OUT_SILENT);
    }
    if (op->repeated ? !responder_repeats(peer, op->admission.epoch)
                     : op->admitted &&
                           !responder_begin_slice(peer, &op->m, op->admission, &recv)) {
        /* Reset or failed meanwhile, or its former connection has brought it, too. */
        op->admitted = op->repeated = false;
        if (!qp->service->acknowledged) {
            return OUTCOME(OUT_SILENT);
        }
    }
    if (!op->admitted && !op->repeated) {
        o = begin(qp, peer, &recv);
        if (o.what != OUT_MORE) {
            goto out;
        }
    }
    o = slice(qp, peer, &recv);
out:
    if (o.what == OUT_DONE && !msg_returns(&op->m)) {
        comp_received(peer->vm, op->m.length);
    }
    return o;
}

static struct outcome copy_datagram(struct qp *qp, struct send_op *op)
{
    const struct route *route = route_find(qp->vm->objects.network, &op->dg.path.dgid);
    bool still = route && route_still_until(route); /* first: see directory_unbind() */
    struct vm *vm = route ? atomic_load_explicit(&route->vm, memory_order_acquire) : NULL;
    struct sg_list local = sg_of_op(qp, op, false);

    if (!vm) {
        return ud_carry(qp, op, route);
    }
    if (guest_faulted(&vm->guest)) {
        return OUTCOME(OUT_SILENT);
    }
    if (still) {
        return OUTCOME(OUT_HELD);
    }
    return datagram_deliver(vm, &op->m, &op->dg, &local);
}

/* Is @peer connected to @qp?  peer->lock is held. */
static bool is_connected_to(const struct qp *peer, const struct qp *qp)
{
    const struct conn_path *to = &peer->req.path;

    return qp_is_connected(peer) && to->dqpn == qp->qpn &&
           gid_equal(&to->dgid, &qp->req.path.sgid);
}

/*
 * Does @peer expect a message that @qp, which heard last of connection @heard, cannot
 * send next?  Of UC any may be lost.  A peer that has heard nothing was put back if it
 * has told something, and not both took another path, by which PSNs go on.  peer->lock is
 * held.
 */
static bool counts_otherwise(const struct qp *qp, const struct qp *peer, uint64_t heard)
{
    const struct qp_requester *req = &qp->req;
    const struct msg *m = &req->op.m; /* its connection, if it is none, too */

    if (m->unreliable) {
        return peer->resp.incarnation == m->incarnation && peer->resp.seq > req->seq;
    }
    return has_strayed(qp, peer) ||
           (!peer->resp.incarnation && req->seq > 0 && !req->in_flight &&
            heard == atomic_load(&peer->req.incarnation) && peer->resp.psn != req->psn);
}

/*
 * If the peer's VM stands still, that is done when it runs: it has us look again.  All is
 * asked by a mark at the queue pair, so nothing is lost and nothing piles up.
 */
static void copy_compare(struct qp *qp, bool both)
{
    const struct qp_requester *req = &qp->req;
    struct qp *peer;
    uint64_t heard;
    bool still;

    if (!atomic_load(&req->bound) || !req->route) {
        return;
    }
    still = route_still_until(req->route); /* first: see directory_unbind() */
    peer = find_peer(qp);
    if (!peer || guest_faulted(&peer->vm->guest)) {
        return;
    }
    pthread_mutex_lock(&qp->lock);
    heard = qp->resp.incarnation;
    pthread_mutex_unlock(&qp->lock);
    pthread_mutex_lock(&peer->lock);
    if (!is_connected_to(peer, qp)) {
        both = still = false;
    } else if (!still && counts_otherwise(qp, peer, heard)) {
        part_unlock(qp, peer);
        return;
    }
    pthread_mutex_unlock(&peer->lock);
    if (both || still) {
        atomic_fetch_or(&peer->req.compare, still ? QP_COMPARE_BOTH : QP_COMPARE);
        datapath_ring(peer->vm, peer->handle);
    }
}

const struct transport_ops transport_copy = {
    .name = "copy",
    .start = copy_start,
    .datagram = copy_datagram,
    .compare = copy_compare,
};

const struct transport_ops *transport_local = &transport_copy;
