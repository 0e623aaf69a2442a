/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Transport "tcp", frames in.
 *
 * A frame is looked at when it is all there and its sum is right, and its payload goes
 * from the receive buffer to its place in guest memory.
 *
 * Not so the middle segments of large messages: those go straight from the socket to
 * guest memory, and are summed there.  What is not known to be right yet must do no harm,
 * so only a frame goes so whose header and length are just what follows the frame before;
 * what is wrong in it are then bytes that come once more.  A guest that writes there
 * meanwhile spoils the sum, which costs its own connection the stream; from then on it
 * gets everything by way of the buffer, where nobody can.
 *
 * Reading does not stop for want of receives: what cannot be taken is dropped, the peer
 * is told, and goes on from there (RNR, RESTART).  It stops for the short time in which a
 * message waits for the grace period of a key that it took away; input that is here
 * already is kept meanwhile.
 *
 * A message is admitted by its first segment, which of a SEND or WRITE of several says
 * no more than its own length: the rights to the rest are checked as it comes.  A READ
 * counts as executed when it is admitted, and is answered later (tx.c), so what is
 * written behind it may be read by it: RC lets it, but for a fence, which the requester
 * keeps.
 *
 * Nothing is told of a message of UC.  One that cannot be taken, or not to its end, is
 * counted, and its segments are skipped.
 *
 * What is said about the queue pair's messages decides about the queue pair.  What makes
 * no sense as frames, or by what came before, costs the stream: the peer gets a Terminate
 * and may come again.
 *
 * Threads: the VM's worker in its turns.
 */
#include <string.h>
#include <sys/socket.h>

#include "transport/tcp/conn.h"
#include "transport/tcp/ctl.h"

/* SENDs up to this many bytes are placed while the queue pair's lock is held. */
#define SHORT_MESSAGE 4096u

/* A segment that came, and all of its frame. */
struct segment {
    struct rdmap_segment h;
    const uint8_t *ulpdu;
    uint32_t ulpdu_len;
};

static void refuse(struct conn *c, const struct segment *seg, enum iwarp_error error)
{
    tx_terminate(c, error, seg->ulpdu, seg->ulpdu_len, seg->ulpdu_len);
}

/* ---- what is told ------------------------------------------------------------ */

/* SEND or WRITE @seq is done. */
static void acknowledge(struct conn *c, uint64_t seq)
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

/* The message that is arriving cannot go on; those behind it are no use. */
static void drop_from_here(struct stream *s)
{
    s->in.active = false;
    s->has_imm = false;
    s->dropping = true;
}

static void not_ready(struct conn *c, uint64_t seq, uint8_t code)
{
    struct stream *s = c->s;

    s->rnr = seq;
    s->rnr_code = code;
    s->rnr_due = true;
    drop_from_here(s);
    conn_work(c);
}

/* UC: the message that is arriving is lost, with those of its segments that come yet. */
static void lose(struct stream *s)
{
    s->in.skip = true;
    s->rx_seq += !s->in.active;
}

/* What was admitted does not stand any more: the queue pair was reset, or failed. */
static void is_void(struct conn *c)
{
    if (c->reliable) {
        conn_break(c, "a message that was admitted is void");
        return;
    }
    responder_drop(c->qp, UC_NO_PEER);
    lose(c->s);
}

/* The queue pair fails for message @seq. */
static void failed(struct conn *c, uint64_t seq, struct outcome o)
{
    if (!c->reliable) {
        lose(c->s); /* it is counted, or the guest has heard of it */
        return;
    }
    if (!o.remote) {
        conn_break(c, "a message that was admitted is void");
        return;
    }
    conn_failed(c, seq, o);
    drop_from_here(c->s);
}

/* ---- messages ---------------------------------------------------------------- */

static struct msg message(const struct conn *c, uint32_t opcode, bool solicited)
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
static void measure(const struct conn *c, struct msg *m, uint64_t length)
{
    m->length = length;
    m->npsn = psn_count(length, c->peer_mtu);
}

/* qp->lock is held: what the engine thinks of it. */
static struct outcome admit_locked(struct conn *c, struct msg *m, uint64_t *epoch)
{
    struct qp *qp = c->qp;

    /* Of a connection that is known, the number stands for it. */
    m->psn = qp->resp.incarnation == m->incarnation ? qp->resp.psn : c->peer_psn;
    return responder_admit_locked(qp, m, epoch);
}

/* Neither taken nor a duplicate. */
static void turned_down(struct conn *c, const struct msg *m, struct outcome o)
{
    switch (o.what) {
    case OUT_RNR:
        not_ready(c, m->seq, o.status);
        break;
    case OUT_FAIL:
        failed(c, m->seq, o);
        break;
    case OUT_DROPPED:
        lose(c->s);
        break;
    default: /* it does not talk to us */
        if (!c->reliable) {
            is_void(c);
            break;
        }
        conn_break(c, "the queue pair takes no message");
        break;
    }
}

/* ---- SEND and WRITE ------------------------------------------------------------- */

/* Payload of this size comes in segments that are worth a call of their own. */
#define STRAIGHT_MIN FPDU_PARTS_MIN
/* Of a message that has had so much their headers are read alone. */
#define LARGE 98304u

static struct sg_list place_of(struct qp *qp, const struct msg *m, uint64_t done,
                               struct pvrdma_sge *sge, uint32_t len)
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

static struct sg_list place_of_recv(struct qp *qp, const struct recv_op *recv)
{
    return (struct sg_list){.vm = qp->vm,
                            .pd = qp->rq->pd,
                            .write = true,
                            .access = PVRDMA_ACCESS_LOCAL_WRITE,
                            .nsge = recv->nsge,
                            .sge = recv->sge,
                            .cur = recv->cur};
}

/* It is all in place and the responder has finished it. */
static void finished(struct conn *c)
{
    struct stream *s = c->s;

    s->in.active = false;
    s->waiting = false;
    s->rx_seq++;
    comp_received(c->vm, s->in.m.length);
    acknowledge(c, s->in.m.seq);
}

/*
 * All bytes of a SEND with invalidate are there, or it is asked again: take the key away,
 * and finish it when nobody uses that any more.
 */
static void invalidate(struct conn *c, const struct sg_cursor *cur)
{
    struct stream *s = c->s;
    struct outcome o = responder_invalidate(c->qp, &s->in.m, s->in.epoch);

    if (o.what == OUT_DONE) {
        if (responder_finish(c->qp, &s->in.m, s->in.epoch)) {
            finished(c);
        } else {
            conn_break(c, "a message that was admitted is void");
        }
        return;
    }
    responder_end_slice(c->qp, s->in.epoch, cur);
    s->waiting = o.what == OUT_GRACE;
    if (s->waiting) {
        conn_work(c);
    } else if (o.what == OUT_FAIL) {
        responder_settle(c->qp, s->in.epoch, o);
        failed(c, s->in.m.seq, o);
    } else {
        conn_break(c, "a message that was admitted is void");
    }
}

/* The next bytes of a message that is admitted; qp->lock not held. */
static void take_bytes(struct conn *c, const uint8_t *data, uint32_t len, bool last)
{
    struct stream *s = c->s;
    struct tcp_arrival *in = &s->in;
    struct qp *qp = c->qp;
    bool send = msg_is_send(&in->m);
    struct sg_list to;
    struct pvrdma_sge sge;
    struct recv_op recv;
    enum sg_result r;

    in->active = !last;
    if (send && len > in->capacity - in->done && !c->reliable) {
        responder_drop(qp, UC_TOO_LONG);
        lose(c->s);
        return;
    }
    if (send && len > in->capacity - in->done) {
        responder_settle(qp, in->epoch, responder_too_long());
        failed(c, in->m.seq, responder_too_long());
        return;
    }
    if (!responder_begin_slice(qp, &in->m, in->epoch, &recv)) {
        is_void(c);
        return;
    }
    to = send ? place_of_recv(qp, &recv) : place_of(qp, &in->m, in->done, &sge, len);
    r = len ? sg_fill(&to, data, len) : SG_OK;
    in->done += len;
    if (last) {
        measure(c, &in->m, in->done);
    }
    if (send && (r != SG_OK || !last)) {
        responder_end_slice(qp, in->epoch, &to.cur);
    }
    if (r != SG_OK) {
        struct outcome o = responder_outcome(&in->m, r, false);

        responder_settle(qp, in->epoch, o);
        failed(c, in->m.seq, o);
    } else if (last && msg_invalidates(&in->m)) {
        invalidate(c, &to.cur);
    } else if (last && responder_finish(qp, &in->m, in->epoch)) {
        finished(c);
    } else if (last) {
        is_void(c);
    }
}

/* A message of one short segment: all under one hold of the lock. */
static struct outcome take_short_locked(struct conn *c, const uint8_t *data, uint32_t len)
{
    struct tcp_arrival *in = &c->s->in;
    struct qp *qp = c->qp;
    struct pvrdma_sge sge;
    struct sg_list to = msg_is_send(&in->m) ? place_of_recv(qp, &qp->resp.recv)
                                            : place_of(qp, &in->m, 0, &sge, len);
    enum sg_result r = len ? sg_fill(&to, data, len) : SG_OK;

    if (r != SG_OK) {
        return responder_outcome(&in->m, r, false);
    }
    responder_finish_locked(qp, &in->m);
    return OUTCOME(OUT_DONE);
}

/* The first segment of a SEND or WRITE. */
static void begin_message(struct conn *c, const uint8_t *data, uint32_t len, bool last)
{
    struct tcp_arrival *in = &c->s->in;
    struct qp *qp = c->qp;
    struct outcome o, admitted;
    bool is_short = last && len <= SHORT_MESSAGE && !msg_invalidates(&in->m);

    in->active = !last;
    in->skip = in->admitted = false;
    in->done = 0;
    measure(c, &in->m, len);
    pthread_mutex_lock(&qp->lock);
    o = admitted = admit_locked(c, &in->m, &in->epoch);
    in->capacity = qp->resp.recv.capacity;
    if (admitted.what == OUT_DONE && is_short) {
        o = take_short_locked(c, data, len);
    }
    pthread_mutex_unlock(&qp->lock);
    if (admitted.what == OUT_FAIL || admitted.comm_est) {
        responder_tell(qp, admitted);
    }
    if (admitted.what == OUT_DUPLICATE) {
        in->skip = true;
        if (last) {
            acknowledge(c, c->s->rx_seq++);
        }
    } else if (admitted.what != OUT_DONE) {
        turned_down(c, &in->m, admitted);
    } else if (!is_short) {
        in->admitted = true;
        take_bytes(c, data, len, last);
    } else if (o.what == OUT_DONE) {
        finished(c);
    } else {
        responder_settle(qp, in->epoch, o);
        failed(c, in->m.seq, o);
    }
}

static void next_segment(struct conn *c, const uint8_t *data, uint32_t len, bool last)
{
    struct tcp_arrival *in = &c->s->in;

    if (in->skip) {
        in->active = !last;
        if (last) {
            acknowledge(c, c->s->rx_seq++);
        }
        return;
    }
    take_bytes(c, data, len, last);
}

/* Immediate data that came before it. */
static void add_imm(struct stream *s, struct msg *m, uint32_t with)
{
    if (s->has_imm) {
        m->opcode = with;
        m->imm = GUINT32_TO_BE(s->imm.imm);
        m->flags |= s->imm_solicited ? PVRDMA_SEND_SOLICITED : 0;
        s->has_imm = false;
    }
}

/* Segment @h of the message that is arriving was taken; what comes behind it? */
static void expect_more(struct stream *s, const struct ddp_header *h, uint32_t len)
{
    s->segment = *h;
    s->segment_len =
        s->in.active && s->in.admitted && !s->in.skip && len >= STRAIGHT_MIN ? len : 0;
}

static void take_write(struct conn *c, const struct segment *seg)
{
    struct stream *s = c->s;
    const struct ddp_header *h = &seg->h.ddp;
    const uint8_t *data = seg->ulpdu + seg->h.head_len;
    uint32_t len = seg->h.payload_len;

    if (s->in.active) {
        if (msg_is_send(&s->in.m) ||
            (len && (h->stag != s->in.m.rkey || h->to - s->in.m.addr != s->in.done) &&
             !s->in.skip)) {
            refuse(c, seg, DDP_TAGGED_BAD_BOUNDS);
            return;
        }
        next_segment(c, data, len, h->last);
        expect_more(s, h, len);
        return;
    }
    if (s->has_imm && s->imm.of != RDMAP_IMM_OF_NEXT) {
        refuse(c, seg, RDMAP_BAD_OPCODE);
        return;
    }
    s->in.m = message(c, PVRDMA_WR_RDMA_WRITE, false);
    add_imm(s, &s->in.m, PVRDMA_WR_RDMA_WRITE_WITH_IMM);
    s->in.m.rkey = h->stag;
    s->in.m.addr = h->to;
    begin_message(c, data, len, h->last);
    expect_more(s, h, len);
}

static void take_send(struct conn *c, const struct segment *seg)
{
    struct stream *s = c->s;
    const struct rdmap_op *op = &rdmap_ops[seg->h.opcode];
    const struct ddp_header *h = &seg->h.ddp;
    const uint8_t *data = seg->ulpdu + seg->h.head_len;
    uint32_t len = seg->h.payload_len;

    if (s->in.active) {
        if (!msg_is_send(&s->in.m)) {
            refuse(c, seg, RDMAP_BAD_OPCODE);
            return;
        }
        next_segment(c, data, len, h->last);
        expect_more(s, h, len);
        return;
    }
    if ((s->has_imm && (s->imm.of != RDMAP_IMM_OF_SEND || op->invalidates)) ||
        (op->invalidates && !c->reliable)) {
        refuse(c, seg, RDMAP_BAD_OPCODE);
        return;
    }
    s->in.m = message(c, op->invalidates ? PVRDMA_WR_SEND_WITH_INV : PVRDMA_WR_SEND,
                      op->solicited);
    add_imm(s, &s->in.m, PVRDMA_WR_SEND_WITH_IMM);
    if (op->invalidates) {
        s->in.m.imm = h->stag;
    }
    begin_message(c, data, len, h->last);
    expect_more(s, h, len);
}

/* ---- READs and atomics that are asked of us ---------------------------------------- */

static void take_request(struct conn *c, const struct segment *seg)
{
    struct stream *s = c->s;
    struct qp *qp = c->qp;
    struct tcp_job *j = &s->job[(s->job_first + s->n_jobs) % TCP_DEPTH];
    bool atomic = seg->h.opcode == RDMAP_ATOMIC_REQUEST, again;
    bool swap = atomic && seg->h.atomic.op == RDMAP_CMP_SWAP;
    struct outcome o, admitted;

    if (s->in.active || s->has_imm || s->n_jobs == TCP_DEPTH || !c->reliable ||
        (atomic && !rdmap_atomic_is_plain(&seg->h.atomic))) {
        refuse(c, seg, RDMAP_STREAM_CATASTROPHIC);
        return;
    }
    *j = (struct tcp_job){.m = message(c,
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
        measure(c, &j->m, 8);
    } else {
        j->sink_stag = seg->h.read.sink_stag;
        j->sink_to = seg->h.read.sink_to;
        j->m.rkey = seg->h.read.src_stag;
        j->m.addr = seg->h.read.src_to;
        measure(c, &j->m, seg->h.read.len);
    }
    pthread_mutex_lock(&qp->lock);
    o = admitted = admit_locked(c, &j->m, &j->epoch);
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
        turned_down(c, &j->m, admitted);
    } else if (!again && o.what != OUT_DONE) {
        responder_settle(qp, j->epoch, o);
        failed(c, j->m.seq, o);
    } else {
        s->rx_seq++;
        s->n_jobs++;
        conn_work(c);
    }
}

/* ---- what our own READs and atomics return ------------------------------------------
 */

/* @len bytes of what @a returns are at @data. */
static struct outcome store(struct conn *c, const struct tcp_asked *a, const void *data,
                            uint32_t len)
{
    struct send_op op;
    struct sg_list local;
    uint64_t skip = a->done;

    /* The guest may have changed its request; and it may not wait for it any more. */
    if (!requester_reopen(c->qp, a->seq, &op) || a->done + len > op.m.length) {
        return (struct outcome){.what = OUT_FAIL, .status = PVRDMA_WC_LOC_PROT_ERR};
    }
    op.cur = (struct sg_cursor){0, 0};
    local = sg_of_op(c->qp, &op, true);
    while (local.cur.sge < op.nsge && skip >= op.sge[local.cur.sge].length) {
        skip -= op.sge[local.cur.sge++].length;
    }
    local.cur.offset = (uint32_t)skip;
    if (len && sg_fill(&local, data, len) != SG_OK) {
        return (struct outcome){.what = OUT_FAIL, .status = PVRDMA_WC_LOC_PROT_ERR};
    }
    return OUTCOME(OUT_DONE);
}

static void answered(struct conn *c, uint64_t seq, struct outcome o)
{
    c->progress = now_ns();
    c->s->answered = true;
    requester_answered(c->qp, seq, o);
}

static void take_response(struct conn *c, const struct segment *seg)
{
    struct stream *s = c->s;
    struct tcp_asked *a = &s->asked[s->asked_first];
    bool atomic = seg->h.opcode == RDMAP_ATOMIC_RESPONSE;
    uint32_t len = atomic ? 8 : seg->h.payload_len;
    bool last = atomic || seg->h.ddp.last;
    uint64_t word = atomic ? seg->h.result.value : 0;
    struct outcome o;
    uint64_t seq;

    if (!s->n_asked || a->atomic != atomic ||
        a->id != (atomic ? seg->h.result.id : seg->h.ddp.stag) ||
        (!atomic && seg->h.ddp.to != a->done) || len > a->length - a->done ||
        (last && len != a->length - a->done)) {
        refuse(c, seg, atomic ? RDMAP_STREAM_CATASTROPHIC : DDP_TAGGED_BAD_STAG);
        return;
    }
    o = store(c, a, atomic ? (const void *)&word : seg->ulpdu + seg->h.head_len, len);
    a->done += len;
    c->progress = now_ns();
    seq = a->seq;
    if (last) {
        s->asked_first = (s->asked_first + 1) % TCP_DEPTH;
        s->n_asked--;
    }
    if (last || o.what == OUT_FAIL) {
        answered(c, seq, o);
    }
}

/* ---- frames ------------------------------------------------------------------------ */

/* Could that be done, as far as we know? */
static bool may_be_done(const struct stream *s, uint64_t seq)
{
    for (unsigned i = 0; i < s->n_asked; i++) {
        if (s->asked[(s->asked_first + i) % TCP_DEPTH].seq == seq) {
            return false; /* what it returns has not come */
        }
    }
    return seq < s->seq;
}

/* Is it something to be told to such a queue pair? */
static bool is_of_service(const struct conn *c, enum ctl_kind kind)
{
    return kind == CTL_RESTART || kind == CTL_PSN || c->reliable == (kind != CTL_DROP);
}

static void take_ctl(struct conn *c, const struct segment *seg)
{
    struct stream *s = c->s;
    struct ctl ctl;
    enum iwarp_error error = ctl_get(&seg->h, &ctl);

    if (!error && !is_of_service(c, ctl.kind)) {
        error = RDMAP_STREAM_CATASTROPHIC;
    }
    /* What was not sent cannot be answered. */
    if (!error && ctl.kind <= CTL_NAK && ctl.seq >= s->seq + (s->open ? 1 : 0)) {
        error = RDMAP_STREAM_CATASTROPHIC;
    }
    if (!error && ctl.kind == CTL_ACK && !may_be_done(s, ctl.seq)) {
        error = RDMAP_STREAM_CATASTROPHIC;
    }
    if (!error && ctl.kind == CTL_RESTART && ctl.seq > CTL_SEQ_START_MAX) {
        error = RDMAP_STREAM_CATASTROPHIC;
    }
    if (error) {
        refuse(c, seg, error);
        return;
    }
    switch (ctl.kind) {
    case CTL_ACK:
        answered(c, ctl.seq, OUTCOME(OUT_DONE));
        break;
    case CTL_RNR:
        s->restart = true;
        answered(c, ctl.seq, (struct outcome){.what = OUT_RNR, .status = ctl.arg});
        break;
    case CTL_READY:
        if (c->qp->req.retry_seq == ctl.seq) {
            atomic_store(&c->qp->req.wake, true);
            sched_look(c->qp);
        }
        break;
    case CTL_PSN:
        c->peer_psn = ctl.seq & PSN_MASK;
        break;
    case CTL_NAK:
        c->peer_failed_status = ctl.arg;
        c->peer_failed_seq = ctl.seq;
        answered(c, ctl.seq, (struct outcome){.what = OUT_FAIL, .status = ctl.arg});
        break;
    case CTL_DROP:
        s->giving_up = true;
        break;
    default:
        drop_from_here(s);
        s->dropping = false;
        s->rx_seq = ctl.seq;
        break;
    }
}

static void take_terminate(struct conn *c, const struct rdmap_terminate *t)
{
    log_vm(LOG_LVL_WARN, c->vm, "QP %u: the peer ends the connection: error %u/%u/%02x",
           c->ticket.qp, t->layer, t->etype, t->code);
    conn_break(c, "Terminate");
}

/* Whose messages they are. */
static void take_message(struct conn *c, const struct segment *seg)
{
    struct stream *s = c->s;

    if (s->dropping) {
        return;
    }
    if (s->giving_up) { /* a RESTART is before the next message */
        s->giving_up = !seg->h.ddp.last;
        s->in.active = s->has_imm = false;
        return;
    }
    switch (seg->h.opcode) {
    case RDMAP_WRITE:
        take_write(c, seg);
        break;
    case RDMAP_READ_REQUEST:
    case RDMAP_ATOMIC_REQUEST:
        take_request(c, seg);
        break;
    case RDMAP_IMM:
    case RDMAP_IMM_SE:
        if (s->in.active || s->has_imm ||
            (seg->h.imm.of != RDMAP_IMM_OF_SEND && seg->h.imm.of != RDMAP_IMM_OF_NEXT)) {
            refuse(c, seg, RDMAP_STREAM_CATASTROPHIC);
            break;
        }
        s->has_imm = true;
        s->imm = seg->h.imm;
        s->imm_solicited = seg->h.opcode == RDMAP_IMM_SE;
        break;
    default:
        take_send(c, seg);
        break;
    }
}

static bool is_first_frame(const struct rdmap_segment *h)
{
    return h->opcode == RDMAP_WRITE && h->ddp.stag == CTL_STAG_RTR && !h->payload_len &&
           h->ddp.last;
}

static void take_frame(struct conn *c, const uint8_t *ulpdu, uint32_t len)
{
    struct segment seg = {.ulpdu = ulpdu, .ulpdu_len = len};
    struct stream *s = c->s;
    enum iwarp_error error = rdmap_get(ulpdu, len, len, RDMAP_EXTENDED, &seg.h);

    if (!error && !seg.h.ddp.tagged) {
        error = ddp_queue_take(&s->q[seg.h.ddp.qn], &seg.h.ddp, seg.h.payload_len,
                               UINT32_MAX);
    }
    if (error) {
        refuse(c, &seg, error);
        return;
    }
    if (!s->may_send) { /* the initiator is ready */
        if (!is_first_frame(&seg.h)) {
            conn_break(c, "not the frame that was agreed on");
            return;
        }
        s->may_send = true;
        conn_work(c);
        conn_go(c);
        return;
    }
    switch (seg.h.opcode) {
    case RDMAP_READ_RESPONSE:
    case RDMAP_ATOMIC_RESPONSE:
        take_response(c, &seg);
        break;
    case RDMAP_TERMINATE:
        take_terminate(c, &seg.h.terminate);
        break;
    default:
        if (ctl_is(&seg.h) && !seg.h.payload_len) {
            take_ctl(c, &seg);
        } else {
            take_message(c, &seg);
        }
        break;
    }
}

/* ---- straight to guest memory --------------------------------------------------------
 */

/* Is that what follows in the message that is arriving, and not its end? */
static bool follows(const struct stream *s, const struct ddp_header *h)
{
    return s->in.active && !s->in.skip && s->segment_len && !s->dropping && !h->last &&
           ddp_continues(&s->segment, s->segment_len, h);
}

bool rx_goes_straight(void *arg, const uint8_t *head, uint32_t len, uint32_t ulpdu_len)
{
    struct conn *c = arg;
    struct stream *s = c->s;
    struct ddp_header h;

    return !c->by_copy && ulpdu_len == len + s->segment_len &&
           ddp_get(head, len, &h) == IWARP_OK && len == ddp_len(h.tagged) &&
           follows(s, &h);
}

/* Its header has come. */
static void begin_straight(struct conn *c, const struct fpdu_part *part)
{
    struct segment seg = {.ulpdu = part->data, .ulpdu_len = part->len};
    struct stream *s = c->s;
    enum iwarp_error error = ddp_get(part->data, part->len, &s->segment);

    if (!error && !s->segment.tagged) {
        error =
            ddp_queue_take(&s->q[s->segment.qn], &s->segment, s->segment_len, UINT32_MAX);
    }
    if (error) {
        refuse(c, &seg, error);
    }
    s->straight = true;
}

/* The next bytes of its payload, which came by way of the buffer. */
static void take_span(struct conn *c, const struct fpdu_part *part)
{
    struct stream *s = c->s;

    /* It has not failed with those before. */
    if (s->in.active && !s->in.skip && !s->dropping) {
        take_bytes(c, part->data, part->len, false);
    }
}

/* What a frame's payload is made of at most, with one page each. */
#define PIECES (FPDU_MAX_SIZE / PVRDMA_PAGE_SIZE + 2)

/*
 * Bytes from the socket: the next @wants of payload to their place, and behind these what
 * ends their frame and the header of the next to the buffer.  Returns what came, of which
 * the place gets what it wants; 0: not this way.
 */
static ssize_t receive_straight(struct conn *c, uint32_t wants, size_t *asked)
{
    struct stream *s = c->s;
    struct tcp_arrival *in = &s->in;
    struct qp *qp = c->qp;
    bool send = msg_is_send(&in->m);
    uint8_t *after = tcp_scratch()->in_buf;
    struct sg_piece piece[PIECES];
    struct iovec iov[PIECES + 1];
    struct msghdr msg = {.msg_iov = iov};
    uint32_t crc = s->rx.crc, got, left;
    struct pvrdma_sge sge;
    struct recv_op recv;
    struct sg_list to;
    unsigned n = 0;
    ssize_t r = 0;

    if ((send && wants > in->capacity - in->done) ||
        !responder_begin_slice(qp, &in->m, in->epoch, &recv)) {
        return 0;
    }
    to = send ? place_of_recv(qp, &recv) : place_of(qp, &in->m, in->done, &sge, wants);
    n = sg_pieces(&to, wants, piece, PIECES);
    *asked = 0;
    for (unsigned i = 0; i < n; i++) {
        iov[i] = (struct iovec){piece[i].hva, piece[i].len};
        *asked += piece[i].len;
    }
    if (*asked == wants) {
        iov[n] = (struct iovec){after, fpdu_pad(s->rx.ulpdu_len) + CRC32C_SIZE +
                                           FPDU_LENGTH + ddp_len(s->segment.tagged)};
        *asked += iov[n].iov_len;
        msg.msg_iovlen = 1;
    }
    msg.msg_iovlen += n;
    if (n) {
        r = recvmsg(s->fd, &msg, MSG_DONTWAIT);
    }
    got = r > 0 ? (uint32_t)MIN((size_t)r, wants) : 0;
    left = got;
    for (unsigned i = 0; left; i++) {
        uint32_t len = (uint32_t)MIN(left, piece[i].len);

        crc = s->rx.crc_on ? crc32c_add(crc, piece[i].hva, len) : 0;
        left -= len;
    }
    sg_stored(&to, piece, got);
    fpdu_rx_placed(&s->rx, got, crc);
    in->done += got;
    if (send) {
        responder_end_slice(qp, in->epoch, &to.cur);
    }
    if (n && r < 0 && errno == EFAULT) {
        c->by_copy = true; /* touching it will tell what is wrong with it */
        return 0;
    }
    return n ? r : 0;
}

/* Input that is not looked at before the message that waits is finished. */
static void save(struct stream *s, const struct fpdu_input *in)
{
    uint8_t *old = s->saved;

    s->saved = in->left ? g_memdup2(in->at, in->left) : NULL;
    s->saved_len = in->left;
    g_free(old);
}

/* True: all of @in was taken. */
static bool take_input(struct conn *c, struct fpdu_input *in, struct turn *t)
{
    struct stream *s = c->s;
    struct fpdu_part part;

    for (;;) {
        enum iwarp_error error = fpdu_rx_next(&s->rx, in, &part);

        if (error) {
            c->by_copy |= s->straight; /* perhaps it was the guest */
            tx_terminate(c, error, NULL, 0, 0);
            return false;
        }
        switch (part.kind) {
        case FPDU_NONE:
            return true;
        case FPDU_HEAD:
            begin_straight(c, &part);
            break;
        case FPDU_SPAN:
            take_span(c, &part);
            break;
        case FPDU_END:
            s->straight = false;
            break;
        default:
            take_frame(c, part.data, part.len);
            break;
        }
        comp_make_room(worker_self());
        turn_spent(t, 1 + (part.len >> PVRDMA_PAGE_SHIFT));
        if (s->broken || s->closing) {
            return false;
        }
        if (s->waiting) {
            return false;
        }
    }
}

static void input(struct conn *c, struct fpdu_input *in, struct turn *t)
{
    struct stream *s = c->s;

    if (!take_input(c, in, t) && s->waiting && !s->broken && !s->closing) {
        save(s, in);
    } else {
        g_clear_pointer(&s->saved, g_free);
    }
}

void rx_resume(struct conn *c, struct turn *t)
{
    struct stream *s = c->s;
    struct recv_op recv;
    struct fpdu_input in;

    if (!responder_begin_slice(c->qp, &s->in.m, s->in.epoch, &recv)) {
        conn_break(c, "a message that was admitted is void");
        return;
    }
    invalidate(c, &recv.cur);
    if (s->waiting || s->broken) {
        return;
    }
    in = (struct fpdu_input){s->saved, s->saved ? s->saved_len : 0};
    if (in.left) {
        input(c, &in, t);
    }
}

/*
 * Read once.  *@asked: how much that could have been; *@taken: what of it went straight
 * to its place.
 */
static ssize_t read_some(struct conn *c, size_t *asked, size_t *taken)
{
    struct tcp_scratch *x = tcp_scratch();
    struct stream *s = c->s;
    uint32_t wants = s->closing ? 0 : fpdu_rx_wants(&s->rx);
    ssize_t n;

    *taken = 0;
    if (wants && s->in.active && !s->in.skip && !s->dropping && !c->by_copy) {
        n = receive_straight(c, wants, asked);
        if (n) {
            *taken = n > 0 ? MIN((size_t)n, wants) : 0;
            return n;
        }
    }
    *asked = sizeof(x->in_buf);
    if (!wants && s->in.active && s->segment_len && s->in.done >= LARGE && !s->closing &&
        !c->by_copy) {
        *asked = MIN(*asked, fpdu_rx_rest(&s->rx, ddp_len(s->segment.tagged)));
    }
    n = recv(s->fd, x->in_buf, *asked, MSG_DONTWAIT);
    if (n == 0) {
        conn_break(c, "the peer has closed it");
    }
    return n;
}

bool rx_run(struct conn *c, struct turn *t)
{
    struct tcp_scratch *x = tcp_scratch();
    struct stream *s = c->s;
    size_t asked, taken;
    struct fpdu_input in;
    ssize_t n;

    do {
        if (s->waiting || s->broken) {
            return s->waiting;
        }
        n = read_some(c, &asked, &taken);
        if (n < 0 && errno != EAGAIN && errno != EINTR) {
            conn_break(c, g_strerror(errno));
        }
        if (n <= 0) {
            return false;
        }
        if (!s->closing) {
            c->progress = t->now; /* it is there, and speaks */
            in = (struct fpdu_input){x->in_buf, (size_t)n - taken};
            input(c, &in, t);
        }
        /* In the middle of a large message: little was asked for. */
    } while ((size_t)n == asked && asked < sizeof(x->in_buf) &&
             !turn_spent(t, 1 + (unsigned)(taken >> PVRDMA_PAGE_SHIFT)));
    return (size_t)n == asked;
}
