/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Transport "tcp", messages in: what the peer asks of our queue pair.  rx.c hands their
 * segments here, in the stream's order; what the engine says decides.
 *
 * A message is admitted by its first segment, which of a SEND or WRITE of several says
 * no more than its own length: the rights to the rest are checked as it comes.  A READ
 * counts as executed when it is admitted, and is answered later (tx.c), so what is
 * written behind it may be read by it: RC lets it, but for a fence, which the requester
 * keeps.
 *
 * Reading does not stop for want of receives: what cannot be taken is dropped, the peer
 * is told, and goes on from there (RNR, RESTART).
 *
 * Nothing is told of a message of UC.  One that cannot be taken, or not to its end, is
 * counted, and its segments are skipped.
 *
 * What is said about the queue pair's messages decides about the queue pair.  What makes
 * no sense by what came before costs the stream: the peer gets a Terminate and may come
 * again.
 *
 * Threads: the VM's worker in its turns.
 */
#include "transport/iwarp/rx.h"

#include <string.h>

/* SENDs up to this many bytes are placed while the queue pair's lock is held. */
#define SHORT_MESSAGE 4096u

/* ---- what is told ------------------------------------------------------------ */

/* SEND or WRITE @seq is done. */
static void inbound_acknowledge(struct conn *c, uint64_t seq)
{
    struct stream *s = c->s;

    if (!c->reliable) {
        return;
    }
    if (s->ping_pong && !s->ack_due) {
        s->ack_at = now_ns();
    }
    s->ack = seq;
    s->ack_due = true;
    conn_work(c);
}

static void inbound_not_ready(struct conn *c, uint64_t seq, uint8_t code)
{
    struct stream *s = c->s;

    s->rnr = seq;
    s->rnr_code = code;
    s->rnr_due = true;
    rx_phase_set(s, RX_DISCARD);
    conn_work(c);
}

/* UC: the message that is arriving is lost, with those of its segments that come yet. */
static void inbound_lose(struct stream *s)
{
    if (s->rx_phase == RX_MESSAGE) {
        rx_phase_set(s, RX_SKIP);
    } else {
        s->rx_seq++; /* it has come to its end */
    }
}

/* What was admitted does not stand any more: the queue pair was reset, or failed. */
static void inbound_cancelled(struct conn *c)
{
    if (c->reliable) {
        conn_break(c, "an accepted message was cancelled");
        return;
    }
    responder_drop(c->qp, UC_NO_PEER);
    inbound_lose(c->s);
}

/* The queue pair fails for message @seq. */
static void inbound_failed(struct conn *c, uint64_t seq, struct outcome o)
{
    if (!c->reliable) {
        inbound_lose(c->s); /* it is counted, or the guest has heard of it */
        return;
    }
    if (!o.remote) {
        conn_break(c, "an accepted message was cancelled");
        return;
    }
    conn_failed(c, seq, o);
    rx_phase_set(c->s, RX_DISCARD);
}

/* ---- messages ---------------------------------------------------------------- */

static struct msg inbound_message(const struct conn *c, uint32_t opcode, bool solicited)
{
    struct msg m = {
        .seq = c->s->rx_seq,
        .incarnation = c->peer_incarnation,
        .path = &c->peer_path,
        .opcode = opcode,
        .flags = solicited ? PVRDMA_SEND_SOLICITED : 0,
        .ticket = c->ticket,
        .unreliable = !c->reliable,
    };

    return m;
}

/* The length of @m is known now. */
static void inbound_measure(const struct conn *c, struct msg *m, uint64_t length)
{
    m->length = length;
    m->npsn = psn_count(length, c->peer_mtu);
}

/* qp->lock is held: what the engine thinks of it. */
static struct outcome inbound_admit_locked(struct conn *c, struct msg *m,
                                           struct admission *a)
{
    struct qp *qp = c->qp;

    /* Of a connection that is known, the number stands for it. */
    m->psn = qp->resp.incarnation == m->incarnation ? qp->resp.psn : c->peer_psn;
    return responder_admit_locked(qp, m, a);
}

/* Neither taken nor a duplicate. */
static void inbound_refused(struct conn *c, const struct msg *m, struct outcome o)
{
    switch (o.what) {
    case OUT_RNR:
        inbound_not_ready(c, m->seq, o.status);
        break;
    case OUT_FAIL:
        inbound_failed(c, m->seq, o);
        break;
    case OUT_DROPPED:
        inbound_lose(c->s);
        break;
    default: /* it does not talk to us */
        if (!c->reliable) {
            inbound_cancelled(c);
            break;
        }
        conn_break(c, "the queue pair accepts no message");
        break;
    }
}

/* ---- SEND and WRITE ------------------------------------------------------------- */

static struct sg_list inbound_write_place(struct qp *qp, const struct msg *m,
                                          uint64_t done, struct pvrdma_sge *sge,
                                          uint32_t len)
{
    *sge = (struct pvrdma_sge){m->addr + done, len, m->rkey};
    return (struct sg_list){.vm = qp->vm,
                            .at = qp,
                            .pd = qp->pd,
                            .write = true,
                            .access = PVRDMA_ACCESS_REMOTE_WRITE,
                            .nsge = 1,
                            .sge = sge};
}

static struct sg_list inbound_recv_place(struct qp *qp, const struct recv_op *recv)
{
    return (struct sg_list){.vm = qp->vm,
                            .pd = qp->rq->pd,
                            .write = true,
                            .access = PVRDMA_ACCESS_LOCAL_WRITE,
                            .nsge = recv->nsge,
                            .sge = recv->sge,
                            .cur = recv->cur};
}

struct sg_list inbound_place(struct conn *c, const struct recv_op *recv, uint32_t len,
                             struct pvrdma_sge *sge)
{
    const struct tcp_inbound *in = &c->s->in;

    return msg_is_send(&in->m) ? inbound_recv_place(c->qp, recv)
                               : inbound_write_place(c->qp, &in->m, in->done, sge, len);
}

/* It is all in place and the responder has finished it. */
static void inbound_finished(struct conn *c)
{
    struct stream *s = c->s;

    s->rx_seq++;
    comp_received(c->vm, s->in.m.length);
    inbound_acknowledge(c, s->in.m.seq);
}

/*
 * All bytes of a SEND with invalidate are there, or it is asked again: take the key away,
 * and finish it when nobody uses that any more.
 */
static void inbound_invalidate(struct conn *c, const struct sg_cursor *cur)
{
    struct stream *s = c->s;
    struct outcome o = responder_invalidate(c->qp, &s->in.m, s->in.admission);

    if (o.what != OUT_DONE) {
        responder_end_slice(c->qp, &s->in.m, s->in.admission, cur);
    }
    if (o.what == OUT_GRACE) {
        rx_phase_set(s, RX_GRACE);
        conn_work(c);
        return;
    }
    rx_phase_set(s, RX_IDLE);
    if (o.what == OUT_DONE && responder_finish(c->qp, &s->in.m, s->in.admission)) {
        inbound_finished(c);
    } else if (o.what == OUT_FAIL) {
        responder_settle(c->qp, s->in.m.seq, s->in.admission.epoch, o);
        inbound_failed(c, s->in.m.seq, o);
    } else {
        conn_break(c, "an accepted message was cancelled");
    }
}

void inbound_bytes(struct conn *c, const uint8_t *data, uint32_t len, bool last)
{
    struct stream *s = c->s;
    struct tcp_inbound *in = &s->in;
    struct qp *qp = c->qp;
    bool send = msg_is_send(&in->m);
    struct sg_list to;
    struct pvrdma_sge sge;
    struct recv_op recv;
    enum sg_result r;

    if (last) {
        rx_phase_set(s, RX_IDLE);
    }
    if (send && len > in->capacity - in->done && !c->reliable) {
        responder_drop(qp, UC_TOO_LONG);
        inbound_lose(c->s);
        return;
    }
    if (send && len > in->capacity - in->done) {
        responder_settle(qp, in->m.seq, in->admission.epoch, responder_too_long());
        inbound_failed(c, in->m.seq, responder_too_long());
        return;
    }
    if (!responder_begin_slice(qp, &in->m, in->admission, &recv)) {
        inbound_cancelled(c);
        return;
    }
    to = inbound_place(c, &recv, len, &sge);
    r = len ? sg_fill(&to, data, len) : SG_OK;
    in->done += len;
    if (last) {
        inbound_measure(c, &in->m, in->done);
    }
    if (r != SG_OK || !last) {
        responder_end_slice(qp, &in->m, in->admission, &to.cur);
    }
    if (r != SG_OK) {
        struct outcome o = responder_outcome(&in->m, r, false);

        responder_settle(qp, in->m.seq, in->admission.epoch, o);
        inbound_failed(c, in->m.seq, o);
    } else if (last && msg_invalidates(&in->m)) {
        inbound_invalidate(c, &to.cur);
    } else if (last && responder_finish(qp, &in->m, in->admission)) {
        inbound_finished(c);
    } else if (last) {
        inbound_cancelled(c);
    }
}

void inbound_resume(struct conn *c)
{
    struct stream *s = c->s;
    struct recv_op recv;

    if (responder_begin_slice(c->qp, &s->in.m, s->in.admission, &recv)) {
        inbound_invalidate(c, &recv.cur);
    } else {
        conn_break(c, "an accepted message was cancelled");
    }
}

/* A message of one short segment: all under one hold of the lock. */
static struct outcome inbound_short_locked(struct conn *c, const uint8_t *data,
                                           uint32_t len)
{
    struct tcp_inbound *in = &c->s->in;
    struct qp *qp = c->qp;
    struct pvrdma_sge sge;
    struct sg_list to = inbound_place(c, &qp->resp.recv, len, &sge);
    enum sg_result r = len ? sg_fill(&to, data, len) : SG_OK;

    if (r != SG_OK) {
        return responder_outcome(&in->m, r, false);
    }
    responder_finish_locked(qp, &in->m);
    return OUTCOME(OUT_DONE);
}

/* The first segment of a SEND or WRITE. */
static void inbound_begin(struct conn *c, const uint8_t *data, uint32_t len, bool last)
{
    struct tcp_inbound *in = &c->s->in;
    struct qp *qp = c->qp;
    struct outcome o, admitted;
    bool is_short = last && len <= SHORT_MESSAGE && !msg_invalidates(&in->m);

    if (!last) {
        rx_phase_set(c->s, RX_MESSAGE);
    }
    in->done = 0;
    inbound_measure(c, &in->m, len);
    pthread_mutex_lock(&qp->lock);
    o = admitted = inbound_admit_locked(c, &in->m, &in->admission);
    in->capacity = qp->resp.recv.capacity;
    if (admitted.what == OUT_DONE && is_short) {
        o = inbound_short_locked(c, data, len);
    }
    pthread_mutex_unlock(&qp->lock);
    if (admitted.what == OUT_FAIL || admitted.comm_est) {
        responder_tell(qp, admitted);
    }
    if (admitted.what == OUT_DUPLICATE && last) {
        inbound_acknowledge(c, c->s->rx_seq++);
    } else if (admitted.what == OUT_DUPLICATE) {
        rx_phase_set(c->s, RX_SKIP);
    } else if (admitted.what != OUT_DONE) {
        inbound_refused(c, &in->m, admitted);
    } else if (!is_short) {
        inbound_bytes(c, data, len, last);
    } else if (o.what == OUT_DONE) {
        inbound_finished(c);
    } else {
        responder_settle(qp, in->m.seq, in->admission.epoch, o);
        inbound_failed(c, in->m.seq, o);
    }
}

void inbound_next(struct conn *c, const uint8_t *data, uint32_t len, bool last)
{
    struct stream *s = c->s;

    if (s->rx_phase == RX_MESSAGE) {
        inbound_bytes(c, data, len, last);
    } else if (last) {
        rx_phase_set(s, RX_IDLE);
        inbound_acknowledge(c, s->rx_seq++);
    }
}

/* Immediate data that came before it. */
static void inbound_add_imm(struct stream *s, struct msg *m, uint32_t with)
{
    if (s->rx_phase == RX_IMM) {
        m->opcode = with;
        m->imm = GUINT32_TO_BE(s->imm.imm);
        m->flags |= s->imm_solicited ? PVRDMA_SEND_SOLICITED : 0;
        rx_phase_set(s, RX_IDLE);
    }
}

static void inbound_write(struct conn *c, const struct segment *seg)
{
    struct stream *s = c->s;
    const struct ddp_header *h = &seg->h.ddp;
    const uint8_t *data = seg->ulpdu + seg->h.head_len;
    uint32_t len = seg->h.payload_len;

    if (rx_in_message(s)) {
        if (msg_is_send(&s->in.m) ||
            (len && (h->stag != s->in.m.rkey || h->to - s->in.m.addr != s->in.done) &&
             s->rx_phase == RX_MESSAGE)) {
            rx_refuse(c, seg, DDP_TAGGED_BAD_BOUNDS);
            return;
        }
        inbound_next(c, data, len, h->last);
        direct_expect(s, h, len, false);
        return;
    }
    if (s->rx_phase == RX_IMM && s->imm.of != RDMAP_IMM_OF_NEXT) {
        rx_refuse(c, seg, RDMAP_BAD_OPCODE);
        return;
    }
    s->in.m = inbound_message(c, PVRDMA_WR_RDMA_WRITE, false);
    inbound_add_imm(s, &s->in.m, PVRDMA_WR_RDMA_WRITE_WITH_IMM);
    s->in.m.rkey = h->stag;
    s->in.m.addr = h->to;
    inbound_begin(c, data, len, h->last);
    direct_expect(s, h, len, true);
}

static void inbound_send(struct conn *c, const struct segment *seg)
{
    struct stream *s = c->s;
    const struct rdmap_op *op = &rdmap_ops[seg->h.opcode];
    const struct ddp_header *h = &seg->h.ddp;
    const uint8_t *data = seg->ulpdu + seg->h.head_len;
    uint32_t len = seg->h.payload_len;

    if (rx_in_message(s)) {
        if (!msg_is_send(&s->in.m)) {
            rx_refuse(c, seg, RDMAP_BAD_OPCODE);
            return;
        }
        inbound_next(c, data, len, h->last);
        direct_expect(s, h, len, false);
        return;
    }
    if ((s->rx_phase == RX_IMM && (s->imm.of != RDMAP_IMM_OF_SEND || op->invalidates)) ||
        (op->invalidates && !c->reliable)) {
        rx_refuse(c, seg, RDMAP_BAD_OPCODE);
        return;
    }
    s->in.m = inbound_message(
        c, op->invalidates ? PVRDMA_WR_SEND_WITH_INV : PVRDMA_WR_SEND, op->solicited);
    inbound_add_imm(s, &s->in.m, PVRDMA_WR_SEND_WITH_IMM);
    if (op->invalidates) {
        s->in.m.imm = h->stag;
    }
    inbound_begin(c, data, len, h->last);
    direct_expect(s, h, len, true);
}

/* ---- READs and atomics that are asked of us ---------------------------------------- */

static void inbound_request(struct conn *c, const struct segment *seg)
{
    struct stream *s = c->s;
    struct qp *qp = c->qp;
    struct tcp_job *j = &s->job[(s->job_first + s->n_jobs) % TCP_DEPTH];
    bool atomic = seg->h.opcode == RDMAP_ATOMIC_REQUEST, again;
    bool swap = atomic && seg->h.atomic.op == RDMAP_CMP_SWAP;
    struct outcome o, admitted;
    struct admission a;

    if (s->rx_phase != RX_IDLE || s->n_jobs >= s->framing.ird || !c->reliable ||
        (atomic && !rdmap_atomic_is_plain(&seg->h.atomic))) {
        rx_refuse(c, seg, RDMAP_STREAM_CATASTROPHIC);
        return;
    }
    *j = (struct tcp_job){.m = inbound_message(c,
                                               !atomic ? PVRDMA_WR_RDMA_READ
                                               : swap  ? PVRDMA_WR_ATOMIC_CMP_AND_SWP
                                                       : PVRDMA_WR_ATOMIC_FETCH_AND_ADD,
                                               false)};
    if (atomic) {
        j->sink_stag = seg->h.atomic.id;
        j->m.rkey = seg->h.atomic.stag;
        j->m.addr = seg->h.atomic.to;
        j->m.compare_add = swap ? seg->h.atomic.compare : seg->h.atomic.data;
        j->m.swap = seg->h.atomic.data;
        inbound_measure(c, &j->m, 8);
    } else {
        j->sink_stag = seg->h.read.sink_stag;
        j->sink_to = seg->h.read.sink_to;
        j->m.rkey = seg->h.read.src_stag;
        j->m.addr = seg->h.read.src_to;
        inbound_measure(c, &j->m, seg->h.read.len);
    }
    pthread_mutex_lock(&qp->lock);
    o = admitted = inbound_admit_locked(c, &j->m, &a);
    j->epoch = a.epoch;
    again = admitted.what == OUT_DUPLICATE;
    if (again && atomic) {
        responder_saved_atomic_locked(qp, j->m.seq, &j->value); /* was admitted */
    } else if (admitted.what == OUT_DONE && atomic) {
        o = responder_atomic_locked(qp, &j->m, &j->value);
    }
    if (admitted.what == OUT_DONE && o.what == OUT_DONE) {
        responder_finish_locked(qp, &j->m);
    }
    pthread_mutex_unlock(&qp->lock);
    if (admitted.what == OUT_FAIL || admitted.comm_est) {
        responder_tell(qp, admitted);
    }
    if (admitted.what != OUT_DONE && !again) {
        inbound_refused(c, &j->m, admitted);
    } else if (!again && o.what != OUT_DONE) {
        responder_settle(qp, j->m.seq, j->epoch, o);
        inbound_failed(c, j->m.seq, o);
    } else {
        s->rx_seq++;
        s->n_jobs++;
        conn_work(c);
    }
}

/* ---- whatever it is ---- */

void inbound_segment(struct conn *c, const struct segment *seg)
{
    struct stream *s = c->s;

    if (s->rx_phase == RX_DISCARD) {
        return;
    }
    if (s->rx_phase == RX_ABANDONED) { /* a RESTART is before the next message */
        if (seg->h.ddp.last) {
            rx_phase_set(s, RX_IDLE);
        }
        return;
    }
    switch (seg->h.opcode) {
    case RDMAP_WRITE:
        inbound_write(c, seg);
        break;
    case RDMAP_READ_REQUEST:
    case RDMAP_ATOMIC_REQUEST:
        inbound_request(c, seg);
        break;
    case RDMAP_IMM:
    case RDMAP_IMM_SE:
        if (s->rx_phase != RX_IDLE ||
            (seg->h.imm.of != RDMAP_IMM_OF_SEND && seg->h.imm.of != RDMAP_IMM_OF_NEXT)) {
            rx_refuse(c, seg, RDMAP_STREAM_CATASTROPHIC);
            break;
        }
        rx_phase_set(s, RX_IMM);
        s->imm = seg->h.imm;
        s->imm_solicited = seg->h.opcode == RDMAP_IMM_SE;
        break;
    default:
        inbound_send(c, seg);
        break;
    }
}
