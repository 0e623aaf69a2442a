/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Transport "tcp", segments in: what they say.  Messages of the peer's are inbound.c's;
 * what our own READs and atomics return, and what our daemons tell each other, is taken
 * here.
 *
 * What makes no sense as segments costs the stream: the peer gets a Terminate and may
 * come again.
 *
 * Threads: the VM's worker in its turns.
 */
#include "transport/iwarp/rx.h"

#include "transport/iwarp/wire/control_stags.h"

/* ---- what our own READs and atomics return ------------------------------------------
 */

/* @len bytes of what @a returns are at @data. */
static struct outcome rx_store(struct conn *c, const struct tcp_asked *a,
                               const void *data, uint32_t len)
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

static void rx_answered(struct conn *c, uint64_t seq, struct outcome o)
{
    c->progress = now_ns();
    c->s->answered = true;
    requester_answered(c->qp, seq, o);
}

static void rx_response(struct conn *c, const struct segment *seg)
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
        rx_refuse(c, seg, atomic ? RDMAP_STREAM_CATASTROPHIC : DDP_TAGGED_BAD_STAG);
        return;
    }
    if (!atomic) {
        s->first = 0; /* another is more likely next than a message like the last one */
        s->in_response = !last;
    }
    o = rx_store(c, a, atomic ? (const void *)&word : seg->ulpdu + seg->h.head_len, len);
    a->done += len;
    c->progress = now_ns();
    seq = a->seq;
    if (last) {
        s->asked_first = (s->asked_first + 1) % TCP_DEPTH;
        s->n_asked--;
    }
    if (last || o.what == OUT_FAIL) {
        rx_answered(c, seq, o);
    }
    if (last) {
        conn_go(c); /* there is room for another */
    }
}

/* ---- segments ---------------------------------------------------------------------- */

/* Could that be done, as far as we know? */
static bool rx_may_be_done(const struct stream *s, uint64_t seq)
{
    for (unsigned i = 0; i < s->n_asked; i++) {
        if (s->asked[(s->asked_first + i) % TCP_DEPTH].seq == seq) {
            return false; /* what it returns has not come */
        }
    }
    return seq < s->seq;
}

/* Is it something to be told to such a queue pair? */
static bool rx_is_of_service(const struct conn *c, enum ctl_kind kind)
{
    return kind == CTL_RESTART || kind == CTL_PSN || c->reliable == (kind != CTL_DROP);
}

static void rx_ctl(struct conn *c, const struct segment *seg)
{
    struct stream *s = c->s;
    struct ctl ctl;
    enum iwarp_error error = ctl_get(&seg->h, &ctl);

    if (!error && !rx_is_of_service(c, ctl.kind)) {
        error = RDMAP_STREAM_CATASTROPHIC;
    }
    /* What was not sent cannot be answered. */
    if (!error && ctl.kind <= CTL_NAK && ctl.seq >= s->seq + (s->in_message ? 1 : 0)) {
        error = RDMAP_STREAM_CATASTROPHIC;
    }
    if (!error && ctl.kind == CTL_ACK && !rx_may_be_done(s, ctl.seq)) {
        error = RDMAP_STREAM_CATASTROPHIC;
    }
    if (!error && ctl.kind == CTL_RESTART && ctl.seq > CTL_SEQ_START_MAX) {
        error = RDMAP_STREAM_CATASTROPHIC;
    }
    if (error) {
        rx_refuse(c, seg, error);
        return;
    }
    switch (ctl.kind) {
    case CTL_ACK:
        rx_answered(c, ctl.seq, OUTCOME(OUT_DONE));
        break;
    case CTL_RNR:
        s->restart_due = true;
        rx_answered(c, ctl.seq, (struct outcome){.what = OUT_RNR, .status = ctl.arg});
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
        rx_answered(c, ctl.seq, (struct outcome){.what = OUT_FAIL, .status = ctl.arg});
        break;
    case CTL_DROP:
        rx_phase_set(s, RX_ABANDONED);
        break;
    default:
        rx_phase_set(s, RX_IDLE); /* its end may have been discarded */
        s->rx_seq = ctl.seq;
        break;
    }
}

static void rx_terminate(struct conn *c, const struct rdmap_terminate *t)
{
    log_vm(LOG_LVL_WARN, c->vm, "QP %u: the peer ends the connection: error %u/%u/%02x",
           c->ticket.qp, t->layer, t->etype, t->code);
    conn_break(c, "Terminate");
}

static bool rx_is_first_frame(const struct rdmap_segment *h)
{
    return h->opcode == RDMAP_WRITE && h->ddp.stag == CTL_STAG_RTR && !h->payload_len &&
           h->ddp.last;
}

void rx_segment(struct conn *c, const uint8_t *ulpdu, uint32_t len)
{
    struct segment seg;
    struct stream *s = c->s;
    enum iwarp_error error = rdmap_get(ulpdu, len, len, RDMAP_EXTENDED, &seg.h);

    seg.ulpdu = ulpdu;
    seg.ulpdu_len = len;
    if (!error && !seg.h.ddp.tagged) {
        error = ddp_queue_take(&s->q[seg.h.ddp.qn], &seg.h.ddp, seg.h.payload_len,
                               UINT32_MAX);
    }
    if (error) {
        rx_refuse(c, &seg, error);
        return;
    }
    if (s->phase == STREAM_STARTING &&
        seg.h.opcode != RDMAP_TERMINATE) { /* the initiator is ready */
        if (!rx_is_first_frame(&seg.h)) {
            conn_break(c, "the first frame is not the one that was negotiated");
            return;
        }
        stream_phase_set(c, STREAM_OPEN);
        conn_work(c);
        conn_go(c);
        return;
    }
    switch (seg.h.opcode) {
    case RDMAP_READ_RESPONSE:
    case RDMAP_ATOMIC_RESPONSE:
        rx_response(c, &seg);
        break;
    case RDMAP_TERMINATE:
        rx_terminate(c, &seg.h.terminate);
        break;
    default:
        if (ctl_is(&seg.h) && !seg.h.payload_len) {
            rx_ctl(c, &seg);
        } else {
            inbound_segment(c, &seg);
        }
        break;
    }
}

void rx_resume(struct conn *c, struct turn *t)
{
    struct stream *s = c->s;

    inbound_resume(c);
    if (s->rx_phase != RX_GRACE && !stream_is_over(s)) {
        s->carrier->resume(c, t);
    }
}
