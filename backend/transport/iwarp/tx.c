/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Transport "tcp", frames out: requests, what they are answered by, and what our daemons
 * tell each other (control_stags.h).
 *
 * Frames are made in a buffer of the worker, payload copied there once and summed there:
 * a guest that changes its memory meanwhile sends the one or the other, with a right sum.
 * The buffer holds one stream's frames, as many as it gathers in a turn or fit; what the
 * carrier does not take of them is kept as the stream's backlog, and while there is one
 * no message is begun and no READ answered.  So the backlog is bounded by what one slice
 * and the buffer make.
 *
 * The messages of a direction are counted alike on both sides: each SEND, WRITE, READ
 * and atomic is one, whatever frames it takes.  Before one that is not the next by that
 * count a RESTART tells which it is.
 *
 * A message that is given up in the middle (the responder was not ready for one before)
 * gets its last segment, of no bytes: the stream stays what DDP allows.  On an unreliable
 * connection it is the sender who may give up (its peer is paused, its key has gone), and
 * DROP tells of it.
 *
 * No more READs and atomics are on their way than the peer takes, by what MPA's startup
 * frames said; the next one waits for an answer.
 *
 * Threads: the VM's worker in its turns, but tx_first_frame(), tx_begin(),
 * tx_only_frame() and tx_last_ack().
 */
#include "transport/iwarp/tx.h"

#include <string.h>

#include "transport/iwarp/wire/bytes.h"
#include "transport/iwarp/wire/control_stags.h"

/* What is worth a look at the clock. */
#define MUCH 16384

/* Large messages between two looks at how long segments may be. */
#define MULPDU_EVERY 64u

/* How long an ACK waits, without what telling it takes, of which no more is counted. */
#define ACK_WAIT_NS 10000u
#define ACK_MOST_NS 100000u

/* Of a READ that is answered, per look at the clock. */
#define ANSWER_SLICE 65536u

/* ---- the carrier --------------------------------------------------------- */

/* What it did not take: to be sent when it takes more. */
static void tx_keep(struct conn *c, const uint8_t *data, size_t len)
{
    struct stream *s = c->s;

    if (!s->backlog) {
        s->backlog_at = s->backlog_len = s->backlog_size = 0;
    }
    if (s->backlog_len + len > s->backlog_size) {
        s->backlog_size = MAX(2 * s->backlog_size, s->backlog_len + len);
        s->backlog = g_realloc(s->backlog, s->backlog_size);
    }
    memcpy(s->backlog + s->backlog_len, data, len);
    s->backlog_len += len;
    s->carrier->watch(c, true);
}

void tx_flush(struct tcp_scratch *x)
{
    struct conn *c = x->out;
    struct stream *s = c ? c->s : NULL;
    size_t len = x->out_len;
    ssize_t n = 0;

    x->out = NULL;
    x->out_len = 0;
    if (!s || stream_is_over(s) || s->send_failed || !len) {
        return;
    }
    if (!s->backlog) {
        n = s->carrier->send(c, x->out_buf, len);
    }
    if (n < 0) {
        /* What the peer has told before may lie here: reading it ends it. */
        s->send_failed = true;
        return;
    }
    if (n > MUCH || (n && !c->reliable)) { /* else an answer tells */
        c->progress = now_ns(); /* it would take no more after a while if nobody read */
    }
    if ((size_t)n < len) {
        tx_keep(c, x->out_buf + n, len - (size_t)n);
    }
}

/* True: there is no backlog any more. */
static bool tx_send_backlog(struct conn *c)
{
    struct stream *s = c->s;
    ssize_t n;

    if (s->backlog) {
        n = s->carrier->send(c, s->backlog + s->backlog_at,
                             s->backlog_len - s->backlog_at);
        if (n < 0) {
            s->send_failed = true;
            g_clear_pointer(&s->backlog, g_free);
            return true;
        }
        s->backlog_at += (size_t)n;
        c->progress = n ? now_ns() : c->progress; /* somebody reads */
        if (s->backlog_at < s->backlog_len) {
            return false;
        }
        g_clear_pointer(&s->backlog, g_free);
    }
    return true;
}

void tx_writable(struct conn *c)
{
    if (!tx_send_backlog(c)) {
        return;
    }
    c->s->carrier->watch(c, false);
    conn_work(c); /* what could not be told, jobs, the end */
    conn_go(c);
}

/* ---- frames ----------------------------------------------------------------- */

/* Room for a frame with a ULPDU of @len bytes; where that begins. */
static uint8_t *frame_begin(struct conn *c, size_t len)
{
    struct tcp_scratch *x = tcp_scratch();

    if (x->out != c || FPDU_LENGTH + len + FPDU_MAX_TAIL + FPDU_MARKS_SIZE >
                           sizeof(x->out_buf) - x->out_len) {
        tx_flush(x);
        x->out = c;
    }
    return x->out_buf + x->out_len + FPDU_LENGTH;
}

/*
 * Markers, pad and sum in the frame that has its length field and @len bytes of ULPDU;
 * its size.  Few peers want them: that it takes a copy does not matter.
 */
SELDOM static size_t frame_mark(uint8_t *frame, uint32_t len, struct framing *f)
{
    g_autofree uint8_t *copy = g_memdup2(frame, FPDU_LENGTH + len);
    struct iovec in = {copy, FPDU_LENGTH + len}, out[FPDU_MARKED_IOV(1)];
    struct fpdu_marks marks;
    unsigned n = fpdu_mark(f->pos, &in, 1, f->crc, &marks, out, G_N_ELEMENTS(out));
    size_t at = 0;

    g_assert(n); /* fpdu_mulpdu() knows of markers */
    for (unsigned i = 0; i < n; i++) {
        memcpy(frame + at, out[i].iov_base, out[i].iov_len);
        at += out[i].iov_len;
    }
    f->pos += at;
    return at;
}

/*
 * What makes a frame of the ULPDU of @len bytes at @ulpdu, around it; the frame's size.
 * With markers it grows by FPDU_MARKS_SIZE at most.
 */
static size_t frame_close(uint8_t *ulpdu, uint32_t len, struct framing *f)
{
    uint8_t *frame = ulpdu - FPDU_LENGTH;
    uint32_t crc;

    put_be16(frame, (uint16_t)len);
    if (G_UNLIKELY(f->markers)) {
        return frame_mark(frame, len, f);
    }
    crc = f->crc ? crc32c_add(CRC32C_INIT, frame, FPDU_LENGTH + len) : 0;
    return FPDU_LENGTH + len + fpdu_tail(len, f->crc, crc, ulpdu + len);
}

/* The frame that was begun has @len bytes. */
static void frame_end(struct conn *c, uint8_t *ulpdu, size_t len)
{
    tcp_scratch()->out_len += frame_close(ulpdu, (uint32_t)len, &c->s->framing);
}

/* A frame of headers alone. */
static void tx_put_head(struct conn *c, const struct rdmap_segment *seg)
{
    uint8_t *ulpdu = frame_begin(c, RDMAP_MAX_HEAD);

    frame_end(c, ulpdu, rdmap_put(seg, ulpdu));
}

static void tx_put_ctl(struct conn *c, enum ctl_kind kind, uint64_t seq, uint8_t arg)
{
    struct ctl ctl = {kind, seq, arg};
    struct rdmap_segment seg;

    ctl_begin(&ctl, &seg);
    tx_put_head(c, &seg);
}

/* An untagged message of one segment. */
static void tx_put_untagged(struct conn *c, struct rdmap_segment *seg)
{
    seg->ddp.msn = c->s->msn[seg->ddp.qn]++;
    tx_put_head(c, seg);
}

/* End a message that is given up. */
static void tx_close_message(struct conn *c)
{
    struct stream *s = c->s;
    uint8_t *ulpdu = frame_begin(c, RDMAP_MAX_HEAD);

    s->next.last = true;
    if (s->next.tagged) { /* no bytes, as above */
        s->next.stag = CTL_FIRST_KEY;
    }
    frame_end(c, ulpdu, ddp_put(&s->next, ulpdu));
    if (!s->next.tagged) {
        s->msn[s->next.qn]++;
    }
    s->in_message = false;
}

/*
 * How much of @left bytes to send now, of @slice at most: whole segments, one at least.
 */
static uint64_t whole_segments(const struct stream *s, bool tagged, uint64_t left,
                               uint64_t slice)
{
    uint32_t most = ddp_room(tagged, s->mulpdu);
    uint32_t next = ddp_next(left, most);

    return slice > next ? MIN(left, next + (slice - next) / most * most) : next;
}

/*
 * Payload of a message whose next segment has the header @h, @n bytes from @src, @last:
 * there is no more.  @h is what follows then.  Not SG_OK: nothing of the segment that
 * failed is sent.
 */
static enum sg_result tx_put_payload(struct conn *c, struct ddp_header *h,
                                     struct sg_list *src, uint64_t n, bool last)
{
    do {
        uint32_t len = ddp_cut(h, n, last, c->s->mulpdu);
        uint8_t *ulpdu = frame_begin(c, ddp_len(h->tagged) + len);
        enum sg_result r;
        size_t head;

        head = ddp_put(h, ulpdu);
        r = len ? sg_fetch(src, ulpdu + head, len) : SG_OK;
        if (r != SG_OK) {
            return r;
        }
        frame_end(c, ulpdu, head + len);
        n -= len;
        ddp_advance(h, len);
    } while (n);
    return SG_OK;
}

/* ---- requests ----------------------------------------------------------------- */

static bool tx_has_imm(const struct msg *m)
{
    return m->opcode == PVRDMA_WR_SEND_WITH_IMM ||
           m->opcode == PVRDMA_WR_RDMA_WRITE_WITH_IMM;
}

/* The header of the first segment of a SEND or WRITE. */
static void tx_begin_message(struct conn *c, const struct msg *m)
{
    bool solicited = m->flags & PVRDMA_SEND_SOLICITED;
    struct rdmap_segment seg;

    if (m->length >= c->s->mulpdu && c->s->n_large++ % MULPDU_EVERY == 0) {
        c->s->mulpdu = c->s->carrier->mulpdu(c);
    }
    if (tx_has_imm(m)) {
        rdmap_begin(&seg, solicited ? RDMAP_IMM_SE : RDMAP_IMM);
        seg.imm =
            (struct rdmap_imm){GUINT32_FROM_BE(m->imm),
                               msg_is_send(m) ? RDMAP_IMM_OF_SEND : RDMAP_IMM_OF_NEXT};
        tx_put_untagged(c, &seg);
    }
    if (!msg_is_send(m)) {
        rdmap_begin(&seg, RDMAP_WRITE);
        /* Of no bytes: nobody asks for the key, and ours must not look like a ctl. */
        seg.ddp.stag = m->length ? m->rkey : CTL_FIRST_KEY;
        seg.ddp.to = m->addr;
    } else if (msg_invalidates(m)) {
        rdmap_begin(&seg, solicited ? RDMAP_SEND_SE_INV : RDMAP_SEND_INV);
        seg.ddp.stag = m->imm;
        seg.ddp.msn = c->s->msn[RDMAP_QN_SEND];
    } else {
        rdmap_begin(&seg, solicited ? RDMAP_SEND_SE : RDMAP_SEND);
        seg.ddp.msn = c->s->msn[RDMAP_QN_SEND];
    }
    c->s->next = seg.ddp;
    c->s->in_message = true;
}

/* The next slice of a SEND or WRITE. */
static struct outcome tx_send_slice(struct conn *c, struct qp *qp, struct send_op *op)
{
    struct stream *s = c->s;
    struct sg_list local = sg_of_op(qp, op, false);
    enum sg_result r;
    uint64_t n;
    bool last;

    if (op->done == 0) {
        tx_begin_message(c, &op->m);
    }
    n = whole_segments(s, s->next.tagged, op->m.length - op->done, qp->req.slice);
    last = op->done + n == op->m.length;
    r = tx_put_payload(c, &s->next, &local, n, last);
    if (r == SG_FAULT) { /* of our guest, which is about to go */
        conn_break(c, "a fault of the guest's memory");
        return OUTCOME(OUT_STALLED);
    }
    if (r != SG_OK) {
        /* Its last segment never comes, nor anything behind it, so nobody gets it. */
        return (struct outcome){.what = OUT_FAIL, .status = PVRDMA_WC_LOC_PROT_ERR};
    }
    op->cur = local.cur;
    op->done += n;
    if (!last) {
        return OUTCOME(OUT_MORE);
    }
    if (!s->next.tagged) {
        s->msn[s->next.qn]++;
    }
    s->in_message = false;
    return OUTCOME(OUT_PENDING);
}

static struct tcp_asked *tx_ask(struct stream *s, const struct msg *m)
{
    struct tcp_asked *a = &s->asked[(s->asked_first + s->n_asked++) % TCP_DEPTH];

    s->next_id = MAX(s->next_id + 1, CTL_FIRST_KEY);
    *a = (struct tcp_asked){
        .seq = m->seq, .length = m->length, .id = s->next_id, .atomic = msg_is_atomic(m)};
    return a;
}

static void tx_send_read(struct conn *c, const struct msg *m)
{
    struct rdmap_segment seg;

    rdmap_begin(&seg, RDMAP_READ_REQUEST);
    seg.read = (struct rdmap_read){.sink_stag = tx_ask(c->s, m)->id,
                                   .len = (uint32_t)m->length,
                                   .src_stag = m->rkey,
                                   .src_to = m->addr};
    tx_put_untagged(c, &seg);
}

static void tx_send_atomic(struct conn *c, const struct msg *m)
{
    bool swap = m->opcode == PVRDMA_WR_ATOMIC_CMP_AND_SWP;
    struct rdmap_segment seg;

    rdmap_begin(&seg, RDMAP_ATOMIC_REQUEST);
    rdmap_plain_atomic(&seg, swap ? RDMAP_CMP_SWAP : RDMAP_FETCH_ADD,
                       swap ? m->swap : m->compare_add, m->compare_add);
    seg.atomic.id = tx_ask(c->s, m)->id;
    seg.atomic.stag = m->rkey;
    seg.atomic.to = m->addr;
    tx_put_untagged(c, &seg);
}

/*
 * A message begins: have both sides count from the same number.  False: that is not
 * possible on this stream.
 */
static bool tx_number(struct stream *s, struct conn *c, const struct msg *m)
{
    if (s->in_message && !s->restart_due) {
        /* Given up here alone: it would be taken for whole. */
        if (c->reliable) {
            conn_break(c, "a message was given up");
            return false;
        }
        tx_put_ctl(c, CTL_DROP, s->seq, 0);
    }
    if (s->in_message) {
        tx_close_message(c);
    }
    /* The queue pair was connected before it was given its first one. */
    if (!s->sent && m->psn != s->psn) {
        tx_put_ctl(c, CTL_PSN, m->psn, 0);
    }
    if (s->seq == m->seq && !s->restart_due) {
        return true;
    }
    tx_put_ctl(c, CTL_RESTART, m->seq, 0);
    s->seq = m->seq;
    s->restart_due = false;
    /* Those were dropped, and are asked for anew. */
    while (s->n_asked &&
           s->asked[(s->asked_first + s->n_asked - 1) % TCP_DEPTH].seq >= m->seq) {
        s->n_asked--;
    }
    return true;
}

/* A message begins: what is to be told goes with it. */
static void tx_notify_with(struct conn *c)
{
    struct stream *s = c->s;

    if (s->ack_due) {
        tx_put_ctl(c, CTL_ACK, s->ack, 0);
        s->ack_due = false;
        s->ping_pong = true;
    } else if (s->ack_at && !s->ping_pong) {
        s->ping_pong = now_ns() < tx_ack_until(c);
        s->ack_at = 0;
    }
}

/* The peer takes no more READs and atomics now. */
static struct outcome tx_await_answer(struct conn *c)
{
    struct stream *s = c->s;

    if (s->framing.ord) {
        c->stalled = true;
        return OUTCOME(OUT_STALLED);
    }
    /* It never does: the queue pair wanted none when the stream was made. */
    s->sent = true; /* a failed try */
    tx_terminate(c, MPA_SMALL_IRD, NULL, 0, 0);
    return OUTCOME(OUT_HELD);
}

struct outcome tx_start(struct conn *c, struct qp *qp, struct send_op *op)
{
    struct stream *s = c->s;
    struct outcome o = OUTCOME(OUT_PENDING);

    if (s->backlog || s->phase != STREAM_OPEN) {
        c->stalled = true;
        return OUTCOME(OUT_STALLED);
    }
    if (op->done && !s->in_message) { /* its beginning went another way */
        if (!c->reliable) {
            return OUTCOME(OUT_SILENT);
        }
        op->done = 0;
        op->cur = (struct sg_cursor){0, 0};
    }
    if (op->done == 0) {
        tx_notify_with(c);
        if (!tx_number(s, c, &op->m)) {
            return OUTCOME(OUT_HELD);
        }
    }
    if (!msg_returns(&op->m)) {
        o = tx_send_slice(c, qp, op);
    } else if (s->n_asked >= s->framing.ord) {
        return tx_await_answer(c);
    } else if (msg_is_atomic(&op->m)) {
        if (op->m.addr % 8) { /* RDMAP's parsers refuse it, and so does a responder */
            return (struct outcome){.what = OUT_FAIL,
                                    .status = PVRDMA_WC_REM_INV_REQ_ERR};
        }
        tx_send_atomic(c, &op->m);
    } else {
        tx_send_read(c, &op->m);
    }
    s->sent = true;
    if (o.what == OUT_PENDING) {
        s->seq++;
        o.what = c->reliable ? OUT_PENDING : OUT_DONE;
    }
    return o;
}

/* ---- answers ------------------------------------------------------------------ */

/* The next bytes of the READ that is to be answered first.  False: it is not to be. */
static bool tx_answer_read(struct conn *c, struct tcp_job *j)
{
    struct qp *qp = c->qp;
    struct pvrdma_sge sge = {j->m.addr, (uint32_t)j->m.length, j->m.rkey};
    struct sg_list src = {.vm = qp->vm,
                          .at = qp,
                          .pd = qp->pd,
                          .access = PVRDMA_ACCESS_REMOTE_READ,
                          .nsge = 1,
                          .sge = &sge,
                          .cur = {0, (uint32_t)j->done}};
    uint64_t n = whole_segments(c->s, true, j->m.length - j->done, ANSWER_SLICE);
    struct rdmap_segment seg;
    enum sg_result r;
    struct outcome o;

    if (!responder_repeats(qp, j->epoch)) {
        conn_break(c, "a READ was cancelled while it was answered");
        return false;
    }
    rdmap_begin(&seg, RDMAP_READ_RESPONSE);
    seg.ddp.stag = j->sink_stag;
    seg.ddp.to = j->sink_to + j->done;
    r = tx_put_payload(c, &seg.ddp, &src, n, j->done + n == j->m.length);
    if (r != SG_OK) {
        o = responder_outcome(&j->m, r, true);
        if (o.what == OUT_SILENT) {
            conn_break(c, "a fault of the guest's memory");
            return false;
        }
        responder_settle(qp, j->m.seq, j->epoch, o);
        conn_failed(c, j->m.seq, o);
        c->s->n_jobs = 0; /* those behind it are not answered */
        return false;
    }
    j->done += n;
    return true;
}

static void tx_answer_atomic(struct conn *c, const struct tcp_job *j)
{
    struct rdmap_segment seg;

    rdmap_begin(&seg, RDMAP_ATOMIC_RESPONSE);
    seg.result = (struct rdmap_atomic_result){j->sink_stag, j->value};
    tx_put_untagged(c, &seg);
}

void tx_jobs(struct conn *c, struct turn *t)
{
    struct stream *s = c->s;

    while (s->n_jobs && s->phase == STREAM_OPEN && !s->backlog) {
        struct tcp_job *j = &s->job[s->job_first];

        if (msg_is_atomic(&j->m)) {
            tx_answer_atomic(c, j);
        } else if (!tx_answer_read(c, j)) {
            break;
        }
        if (msg_is_atomic(&j->m) || j->done == j->m.length) {
            s->job_first = (s->job_first + 1) % TCP_DEPTH;
            s->n_jobs--;
        }
        if (turn_spent(t,
                       1 + (unsigned)(MIN(j->done, ANSWER_SLICE) >> PVRDMA_PAGE_SHIFT))) {
            break;
        }
    }
}

/*
 * A guest that answers what it receives sends soon after it: then the ACK goes in the
 * same call to the carrier, which is most of what a small message costs.  One that does
 * not is waited for in vain once; its ACKs go at once from then on, until it does again.
 * The longer that call takes, the longer it pays to wait: a NIC of the kernel's works
 * within it, on a slow machine for longer than a guest needs to answer.  No longer than
 * that: one that sends when it knows that the ACK has come would be waited for as well.
 */
uint64_t tx_ack_until(const struct conn *c)
{
    return c->s->ack_at + ACK_WAIT_NS + c->net->ack_ns;
}

void tx_told(struct tcp_vm *net)
{
    uint64_t took;

    if (net->n_told) {
        took = (now_ns() - net->told_at) / net->n_told;
        took = MIN(took, ACK_MOST_NS);
        net->ack_ns += (int64_t)(took - net->ack_ns) / 8;
        net->n_told = 0;
    }
}

static bool tx_ack_may_wait(struct conn *c)
{
    struct stream *s = c->s;
    uint64_t now = now_ns();

    if (s->ping_pong && !s->rnr_due && !s->nak_due && !s->ready_due &&
        now < tx_ack_until(c)) {
        return true;
    }
    s->ack_at = now;
    if (c->net->n_told) {
        c->net->n_told++;
    } else if (!tcp_scratch()->out) { /* else there are messages before it */
        c->net->n_told = 1;
        c->net->told_at = now;
    }
    return false;
}

void tx_notify(struct conn *c)
{
    struct stream *s = c->s;

    if (s->phase != STREAM_OPEN || s->backlog) {
        return;
    }
    if (s->ack_due && !tx_ack_may_wait(c)) {
        tx_put_ctl(c, CTL_ACK, s->ack, 0);
        s->ack_due = s->ping_pong = false;
    }
    if (s->rnr_due) {
        tx_put_ctl(c, CTL_RNR, s->rnr, s->rnr_code);
        s->rnr_due = false;
    }
    if (s->ready_due) {
        tx_put_ctl(c, CTL_READY, s->rx_phase == RX_DISCARD ? s->rnr : s->rx_seq, 0);
        s->ready_due = false;
    }
    if (s->nak_due && !s->n_jobs) { /* what was executed before is answered first */
        tx_put_ctl(c, CTL_NAK, s->nak, s->nak_status);
        s->nak_due = false;
        conn_finish(c); /* the queue pair has failed: there is no more to say */
    }
}

void tx_terminate(struct conn *c, enum iwarp_error error, const uint8_t *head,
                  size_t have, uint32_t ulpdu_len)
{
    struct stream *s = c->s;
    uint8_t *ulpdu;

    log_vm(LOG_LVL_WARN, c->vm, "QP %u: malformed data from the peer: error %u/%u/%02x",
           c->ticket.qp, iwarp_error_layer(error), iwarp_error_type(error),
           iwarp_error_code(error));
    conn_work(c);
    if (s->phase != STREAM_OPEN) {
        conn_break(c, "an error in its frames");
        return;
    }
    ulpdu = frame_begin(c, RDMAP_MAX_TERMINATE);
    frame_end(c, ulpdu, rdmap_put_terminate(error, head, have, ulpdu_len, ulpdu));
    conn_finish(c);
}

/* ---- out of turn ------------------------------------------------------------------- */

/* A frame of headers alone, outside of the staging buffer. */
static size_t tx_head_alone(const struct rdmap_segment *seg, struct framing *f,
                            uint8_t frame[TX_ALONE])
{
    size_t len = rdmap_put(seg, frame + FPDU_LENGTH);

    return frame_close(frame + FPDU_LENGTH, (uint32_t)len, f);
}

size_t tx_first_frame(struct framing *framing, uint8_t frame[TX_ALONE])
{
    struct rdmap_segment seg;

    rdmap_begin(&seg, RDMAP_WRITE);
    seg.ddp.stag = CTL_STAG_RTR;
    return tx_head_alone(&seg, framing, frame);
}

size_t tx_only_frame(struct framing *framing, enum iwarp_error why,
                     uint8_t frame[TX_ALONE])
{
    size_t len = rdmap_put_terminate(why, NULL, 0, 0, frame + FPDU_LENGTH);

    return frame_close(frame + FPDU_LENGTH, (uint32_t)len, framing);
}

void tx_begin(struct conn *c)
{
    struct stream *s = c->s;
    uint8_t frame[TX_ALONE];
    size_t len = tx_first_frame(&s->framing, frame);
    ssize_t n = s->carrier->send(c, frame, len);

    if (n < 0) {
        s->send_failed = true;
    } else if ((size_t)n < len) {
        tx_keep(c, frame + n, len - (size_t)n);
    }
}

/*
 * A message may be complete for this guest, and the peer not know it yet.  What is not
 * taken now is in the backlog, for the carrier's close().
 */
void tx_last_ack(struct conn *c)
{
    struct ctl ctl = {CTL_ACK, c->s->ack, 0};
    struct stream *s = c->s;
    struct rdmap_segment seg;
    uint8_t frame[TX_ALONE];
    ssize_t n = 0;
    size_t len;
    bool all;

    if (stream_is_over(s) || s->phase == STREAM_STARTING) {
        return;
    }
    all = tx_send_backlog(c);
    if (!s->ack_due || s->send_failed) {
        return;
    }
    ctl_begin(&ctl, &seg);
    len = tx_head_alone(&seg, &s->framing, frame);
    if (all) {
        n = s->carrier->send(c, frame, len);
    }
    if (n >= 0 && (size_t)n < len) {
        tx_keep(c, frame + n, len - (size_t)n);
    }
}
