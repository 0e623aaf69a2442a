/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * softnic: RC queue pairs: posting, states, requester and responder.
 *
 * A message goes in packets of SOFT_MTU.  The responder counts them, and answers messages
 * in order; a requester has SOFT_WINDOW packets on their way.  A SEND that finds no
 * receive stays where it is (parked) until the requester, told so, tries again.
 */
#include "internal.h"
#include "entries.h"

#define NS_PER_US 1000ll

static bool is_read(const struct softsend *s)
{
    return s->wr.opcode == IBV_WR_RDMA_READ;
}

static bool has_imm(enum ibv_wr_opcode op)
{
    return op == IBV_WR_SEND_WITH_IMM || op == IBV_WR_RDMA_WRITE_WITH_IMM;
}

static bool is_write(enum ibv_wr_opcode op)
{
    return op == IBV_WR_RDMA_WRITE || op == IBV_WR_RDMA_WRITE_WITH_IMM;
}

static struct softsend *sq_at(struct softqp *qp, uint32_t n)
{
    return &qp->sq[n % qp->init.cap.max_send_wr];
}

static struct softrecv *rq_at(struct softqp *qp, uint32_t n)
{
    return &qp->rq[n % qp->init.cap.max_recv_wr];
}

/* ---- objects ---- */

struct softqp *soft_qp_new(struct softid *id, struct softpd *pd,
                           struct ibv_qp_init_attr *init)
{
    struct softqp *qp = g_new0(struct softqp, 1);

    qp->ctx = pd->ctx;
    qp->pd = pd;
    qp->id = id;
    qp->scq = (struct softcq *)init->send_cq;
    qp->rcq = (struct softcq *)init->recv_cq;
    qp->init = *init;
    qp->ibv.context = &pd->ctx->ibv;
    qp->ibv.qp_context = init->qp_context;
    qp->ibv.pd = &pd->ibv;
    qp->ibv.send_cq = init->send_cq;
    qp->ibv.recv_cq = init->recv_cq;
    qp->ibv.qp_num = soft.next_qpn++ & 0xffffff;
    qp->ibv.qp_type = IBV_QPT_RC;
    qp->state = qp->ibv.state = IBV_QPS_INIT;
    qp->sq = g_new0(struct softsend, MAX(init->cap.max_send_wr, 1));
    qp->rq = g_new0(struct softrecv, MAX(init->cap.max_recv_wr, 1));
    pd->users++;
    qp->scq->users++;
    qp->rcq->users++;
    soft.objects++;
    g_ptr_array_add(soft.qps, qp);
    return qp;
}

void soft_qp_free(struct softqp *qp)
{
    struct wire *w = qp->wire;

    for (uint32_t n = qp->done; n != qp->posted; n++) {
        g_free(sq_at(qp, n)->inline_data);
    }
    if (w) {
        w->qp = NULL;
        soft_kick(w); /* what arrives is dropped */
    }
    soft_cq_forget(qp->scq, qp);
    soft_cq_forget(qp->rcq, qp);
    soft_async_forget(qp->ctx, qp);
    g_ptr_array_remove_fast(soft.qps, qp);
    while (qp->async_got) {
        pthread_cond_wait(&soft.acked, &soft.lock);
    }
    qp->pd->users--;
    qp->scq->users--;
    qp->rcq->users--;
    soft.objects--;
    g_free(qp->sq);
    g_free(qp->rq);
    g_free(qp);
}

/* ---- completions and the state ERR ---- */

static void send_done(struct softqp *qp, enum ibv_wc_status status)
{
    static const enum ibv_wc_opcode ops[] = {
        [IBV_WR_SEND] = IBV_WC_SEND,
        [IBV_WR_SEND_WITH_IMM] = IBV_WC_SEND,
        [IBV_WR_RDMA_WRITE] = IBV_WC_RDMA_WRITE,
        [IBV_WR_RDMA_WRITE_WITH_IMM] = IBV_WC_RDMA_WRITE,
        [IBV_WR_RDMA_READ] = IBV_WC_RDMA_READ,
    };
    struct softsend *s = sq_at(qp, qp->done++);
    struct ibv_wc wc = {
        .wr_id = s->wr.wr_id, .status = status, .opcode = ops[s->wr.opcode]};

    g_clear_pointer(&s->inline_data, g_free);
    if (is_read(s)) {
        wc.byte_len = (uint32_t)s->length;
    }
    if (status != IBV_WC_SUCCESS || qp->init.sq_sig_all ||
        (s->wr.send_flags & IBV_SEND_SIGNALED)) {
        soft_complete(qp, false, wc, false, qp->done);
        if (status == IBV_WC_WR_FLUSH_ERR && qp->ctx->dev->flush2) {
            soft_complete(qp, false, wc, false, qp->done);
        }
    }
}

static void recv_done(struct softqp *qp, struct softrecv *r, struct ibv_wc wc,
                      bool solicited, uint32_t upto)
{
    wc.wr_id = r->wr_id;
    wc.src_qp = qp->id->words.qpn;
    soft_complete(qp, true, wc, solicited && !qp->ctx->dev->siw, upto);
    if (wc.status == IBV_WC_WR_FLUSH_ERR && qp->ctx->dev->flush2) {
        soft_complete(qp, true, wc, solicited, upto);
    }
}

/* All that is posted comes back, in order. */
static void qp_flush(struct softqp *qp)
{
    const struct ibv_wc wc = {.status = IBV_WC_WR_FLUSH_ERR};

    qp->flush = false;
    while (qp->done != (qp->ctx->dev->siw ? qp->sflush : qp->posted)) {
        send_done(qp, IBV_WC_WR_FLUSH_ERR);
    }
    qp->sent = qp->done;
    if (qp->recv) {
        recv_done(qp, qp->recv, wc, false, qp->rtaken);
        qp->recv = NULL;
    }
    while (qp->rtaken != (qp->ctx->dev->lateflush ? qp->rposted : qp->rflush)) {
        struct softrecv *r = rq_at(qp, qp->rtaken++);

        recv_done(qp, r, wc, false, qp->rtaken);
    }
}

static void qp_enter_error(struct softqp *qp)
{
    qp->state = IBV_QPS_ERR;
    qp->rflush = qp->rposted;
    qp->sflush = qp->posted;
    qp->read.busy = qp->parked = false;
    qp->retry_at = qp->resend_at = 0;
    soft_kick(qp->wire);
}

/* Later, by the thread. */
static void qp_flush_soon(struct softqp *qp)
{
    qp->flush = true;
    soft_timer(0);
}

void soft_qp_state(struct softqp *qp, enum ibv_qp_state state)
{
    qp->ibv.state = state;
    if (state == IBV_QPS_ERR && qp->state != IBV_QPS_ERR) {
        qp_enter_error(qp);
        qp_flush_soon(qp);
    } else if (qp->state != IBV_QPS_ERR) {
        qp->state = state;
        soft_kick(qp->wire);
    }
}

/* The oldest message that is not completed has this status, if there is one. */
void soft_qp_fail(struct softqp *qp, enum ibv_wc_status status)
{
    if (qp->state == IBV_QPS_ERR) {
        return;
    }
    qp_enter_error(qp);
    if (qp->done != qp->posted) {
        send_done(qp, status);
    }
    qp_flush(qp);
}

/* iWARP: the connection is ended by either side, without a reason. */
static void qp_terminate(struct softqp *qp)
{
    struct wire *w = qp->wire;

    soft_qp_fail(qp, IBV_WC_WR_FLUSH_ERR);
    soft_cm_terminated(w);
}

static int64_t retry_time(struct softqp *qp)
{
    int64_t one = qp->timeout ? 4096ll << MIN(qp->timeout, 31u) : SOFT_MAX_RETRY_NS;

    return MIN(one * (qp->retry_cnt + 1), SOFT_MAX_RETRY_NS);
}

/* Requests without an answer end by RETRY_EXC, once their time is over; with 7 retries
 * it never is, as on rxe. */
void soft_qp_stalled(struct softqp *qp)
{
    struct softdev *dev = qp->ctx->dev;

    if (qp->state == IBV_QPS_RTS && qp->retry_cnt != 7 && qp->done != qp->posted &&
        !dev->iwarp && !dev->fatal && (qp->dropped || soft_stalled(qp->wire))) {
        if (!qp->retry_at) {
            qp->retry_at = soft_now() + retry_time(qp);
            soft_timer(qp->retry_at);
        }
    } else {
        qp->retry_at = 0;
    }
}

void soft_qp_timer(struct softqp *qp, int64_t now)
{
    if (qp->flush) {
        qp_flush(qp);
    }
    if (qp->retry_at && qp->retry_at <= now) {
        soft_qp_fail(qp, IBV_WC_RETRY_EXC_ERR);
    }
    if (qp->resend_at && qp->resend_at <= now) {
        qp->resend_at = 0;
        soft_send_plain(qp->wire, PKT_RETRY);
        soft_kick(qp->wire);
    }
    if (qp->retry_at) {
        soft_timer(qp->retry_at);
    }
    if (qp->resend_at) {
        soft_timer(qp->resend_at);
    }
}

/* ---- posting ---- */

static int post_one(struct softqp *qp, struct ibv_send_wr *wr)
{
    struct softdev *dev = qp->ctx->dev;
    struct softsend *s;
    uint64_t length = 0;

    if (dev->fatal && !dev->silent) {
        return EIO;
    }
    if (qp->state < IBV_QPS_RTS || wr->num_sge < 0 ||
        (uint32_t)wr->num_sge > qp->init.cap.max_send_sge ||
        (!is_write(wr->opcode) && wr->opcode != IBV_WR_SEND &&
         wr->opcode != IBV_WR_SEND_WITH_IMM && wr->opcode != IBV_WR_RDMA_READ) ||
        (dev->noimm && has_imm(wr->opcode))) {
        return EINVAL;
    }
    for (int i = 0; i < wr->num_sge; i++) {
        length += wr->sg_list[i].length;
    }
    if ((wr->send_flags & IBV_SEND_INLINE) &&
        (length > qp->init.cap.max_inline_data || wr->opcode == IBV_WR_RDMA_READ)) {
        return EINVAL;
    }
    if (qp->posted - qp->room >= qp->init.cap.max_send_wr) {
        return ENOMEM;
    }
    s = sq_at(qp, qp->posted);
    s->wr = *wr;
    s->wr.next = NULL;
    s->wr.sg_list = NULL;
    s->length = length;
    s->finished = false;
    for (int i = 0; i < wr->num_sge; i++) {
        s->sge[i] = wr->sg_list[i];
    }
    if ((wr->send_flags & IBV_SEND_INLINE) && length) {
        uint8_t *to = s->inline_data = g_malloc(length);

        for (int i = 0; i < wr->num_sge; i++) {
            memcpy(to, (void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
            to += wr->sg_list[i].length;
        }
    }
    qp->posted++;
    return 0;
}

int soft_post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    struct softqp *qp = (struct softqp *)ibv;
    int err = soft_enter("post_send");

    for (; wr; wr = err ? wr : wr->next) {
        if (err || (err = post_one(qp, wr))) {
            *bad = wr;
            break;
        }
    }
    if (qp->state == IBV_QPS_ERR) {
        qp_flush_soon(qp);
    } else {
        soft_kick(qp->wire);
    }
    err = qp->ctx->dev->negative ? -err : err;
    soft_leave();
    return err;
}

int soft_post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct softqp *qp = (struct softqp *)ibv;
    struct softdev *dev = qp->ctx->dev;
    int err = soft_enter("post_recv");

    for (; wr; wr = wr->next) {
        struct softrecv *r;

        if (!err && dev->fatal && !dev->silent) {
            err = EIO;
        } else if (!err && (wr->num_sge < 0 ||
                            (uint32_t)wr->num_sge > qp->init.cap.max_recv_sge)) {
            err = EINVAL;
        } else if (!err && qp->rposted - qp->rroom >= qp->init.cap.max_recv_wr) {
            err = ENOMEM;
        }
        if (err) {
            *bad = wr;
            break;
        }
        r = rq_at(qp, qp->rposted++);
        r->wr_id = wr->wr_id;
        r->num_sge = wr->num_sge;
        for (int i = 0; i < wr->num_sge; i++) {
            r->sge[i] = wr->sg_list[i];
        }
    }
    if (qp->state == IBV_QPS_ERR) {
        qp_flush_soon(qp);
    }
    err = dev->negative ? -err : err;
    soft_leave();
    return err;
}

/* ---- scatter and gather ---- */

/* Between @data and bytes from @offset on of a list; false: a key is not good for them.
 */
static bool copy_sges(struct softqp *qp, const struct ibv_sge *sge, int n,
                      uint64_t offset, uint8_t *data, uint32_t len, bool scatter)
{
    for (int i = 0; i < n && len; i++) {
        uint32_t part;
        uint8_t *mem;

        if (offset >= sge[i].length) {
            offset -= sge[i].length;
            continue;
        }
        part = (uint32_t)MIN((uint64_t)len, sge[i].length - offset);
        mem = soft_lookup(soft.lkeys, qp->pd, sge[i].lkey, sge[i].addr + offset, part,
                          scatter ? IBV_ACCESS_LOCAL_WRITE : 0);
        if (!mem) {
            return false;
        }
        if (scatter) {
            memcpy(mem, data, part);
        } else {
            memcpy(data, mem, part);
        }
        data += part;
        len -= part;
        offset = 0;
    }
    return true;
}

/* ---- requester ---- */

/* Completions in order, as far as messages are finished. */
static void retire(struct softqp *qp)
{
    while (qp->done != qp->sent && sq_at(qp, qp->done)->finished) {
        qp->rnr_left = qp->rnr_retry;
        send_done(qp, IBV_WC_SUCCESS);
    }
}

/* A message that has a fault of its own fails when all before it are completed. */
static bool fail_own(struct softqp *qp)
{
    if (qp->done != qp->sent) {
        return false;
    }
    soft_qp_fail(qp, qp->failure);
    return true;
}

/* One packet of the next message. */
bool soft_request(struct wire *w)
{
    struct softqp *qp = w->qp;
    struct softdev *dev = w->dev;
    struct softsend *s;
    struct packet *p;
    uint32_t len;

    if (!qp || qp->state != IBV_QPS_RTS || !soft.hold || soft_stalled(w) ||
        qp->resend_at) {
        return false;
    }
    if (qp->failing) {
        return fail_own(qp);
    }
    if (qp->sent == qp->posted || qp->packets - qp->answered >= SOFT_WINDOW) {
        return false;
    }
    s = sq_at(qp, qp->sent);
    if (((s->wr.send_flags & IBV_SEND_FENCE) && qp->reads) ||
        (is_read(s) && qp->ord && qp->reads >= qp->ord)) {
        return false;
    }
    if (s->length > dev->maxmsg || (is_read(s) && !qp->ord)) {
        qp->failing = true;
        qp->failure = is_read(s) ? IBV_WC_LOC_QP_OP_ERR : IBV_WC_LOC_LEN_ERR;
        return fail_own(qp);
    }
    len = is_read(s) ? 0 : (uint32_t)MIN(SOFT_MTU, s->length - qp->offset);
    p = soft_packet(is_read(s)               ? PKT_READ
                    : is_write(s->wr.opcode) ? PKT_WRITE
                                             : PKT_SEND,
                    len);
    if (s->inline_data) {
        memcpy(p->data, s->inline_data + qp->offset, len);
    } else if (!copy_sges(qp, s->sge, s->wr.num_sge, qp->offset, p->data, len, false)) {
        g_free(p);
        qp->failing = true;
        qp->failure = IBV_WC_LOC_PROT_ERR;
        return fail_own(qp);
    }
    p->h.msn = qp->sent;
    p->h.total = s->length;
    p->h.addr = s->wr.wr.rdma.remote_addr + qp->offset;
    p->h.rkey = s->wr.wr.rdma.rkey;
    p->h.flags = qp->offset ? 0 : PKT_FIRST;
    qp->offset += len;
    if (is_read(s) || qp->offset == s->length) {
        p->h.flags |= PKT_LAST;
        p->h.flags |= has_imm(s->wr.opcode) ? PKT_IMM : 0;
        p->h.flags |= s->wr.send_flags & IBV_SEND_SOLICITED ? PKT_SOLICITED : 0;
        p->h.imm = s->wr.imm_data;
        p->h.reads = (uint8_t)(qp->reads += is_read(s));
        qp->sent++;
        qp->offset = 0;
        s->finished = dev->early && !is_read(s);
    }
    qp->packets++;
    soft_send(w, p);
    retire(qp);
    return true;
}

static void read_data(struct softqp *qp, struct packet *p)
{
    struct softsend *s = sq_at(qp, p->h.msn);

    if (!copy_sges(qp, s->sge, s->wr.num_sge, p->h.addr, p->data, p->h.len, true)) {
        soft_qp_fail(qp, IBV_WC_LOC_PROT_ERR);
        return;
    }
    if (p->h.flags & PKT_LAST) {
        s->finished = true;
        qp->reads--;
        retire(qp);
    }
}

/* An answer to a request, or the like. */
void soft_answer(struct wire *w, struct packet *p)
{
    struct softqp *qp = w->qp;
    struct softdev *dev = w->dev;

    if (!qp || qp->state != IBV_QPS_RTS) {
        g_free(p);
        return;
    }
    if (dev->cut_at && dev->cut_how == CUT_ANSWER && !--dev->cut_at) {
        do { /* with all behind it */
            g_free(p);
        } while ((p = soft_pop(&w->answers)));
        soft_cut(w);
        return;
    }
    if (p->h.kind <= PKT_NAK) {
        qp->answered = p->h.packets;
    }
    switch (p->h.kind) {
    case PKT_DATA:
        read_data(qp, p);
        break;
    case PKT_ACK:
        for (uint32_t n = qp->done; p->h.flags && (int32_t)(p->h.msn - n) >= 0; n++) {
            sq_at(qp, n)->finished = true;
        }
        retire(qp);
        break;
    case PKT_NAK:
        if (dev->iwarp) {
            qp_terminate(qp);
        } else {
            soft_qp_fail(qp, p->h.status);
        }
        break;
    case PKT_RNR:
        if (qp->rnr_retry != 7 && !qp->rnr_left--) {
            soft_qp_fail(qp, IBV_WC_RNR_RETRY_EXC_ERR);
            break;
        }
        qp->resend_at = soft_now() + (int64_t)p->h.total;
        soft_timer(qp->resend_at);
        break;
    case PKT_DROPPED:
        qp->dropped = true;
        break;
    }
    g_free(p);
}

/* ---- responder ---- */

static void answer(struct softqp *qp, enum packet_kind kind, uint32_t msn, uint8_t flags)
{
    struct packet *p = soft_packet(kind, 0);

    p->h.msn = msn;
    p->h.flags = flags;
    p->h.packets = qp->acked = qp->taken;
    soft_send(qp->wire, p);
}

/* The message is refused with this status for the requester, and the QP is in error. */
static void refuse(struct softqp *qp, enum ibv_wc_status status,
                   enum ibv_event_type event)
{
    struct packet *p = soft_packet(PKT_NAK, 0);

    p->h.status = status;
    p->h.packets = qp->taken;
    soft_send(qp->wire, p);
    if (qp->ctx->dev->qpevents) {
        soft_async_qp(qp, event);
    }
    if (qp->ctx->dev->iwarp) {
        qp_terminate(qp);
    } else {
        soft_qp_fail(qp, IBV_WC_WR_FLUSH_ERR);
    }
}

/* The receive of the message that arrives has a fault of its own. */
static void refuse_receive(struct softqp *qp, enum ibv_wc_status here,
                           enum ibv_wc_status there)
{
    recv_done(qp, qp->recv, (struct ibv_wc){.status = here}, true, qp->rtaken);
    qp->recv = NULL;
    refuse(qp, there, IBV_EVENT_QP_REQ_ERR);
}

/* As coded in min_rnr_timer (0: the longest): ns. */
static uint64_t rnr_time(uint8_t code)
{
    static const uint32_t tens_of_us[32] = {
        65536, 1,    2,    3,    4,    6,     8,     12,    16,    24,    32,
        48,    64,   96,   128,  192,  256,   384,   512,   768,   1024,  1536,
        2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    };

    return tens_of_us[code & 31] * 10ull * NS_PER_US;
}

/* Takes a receive; false: there is none, and the packet stays. */
static bool take_receive(struct softqp *qp, struct packet *p)
{
    struct packet *rnr;

    if (qp->rtaken != qp->rposted) {
        qp->recv = rq_at(qp, qp->rtaken++);
        qp->roffset = 0;
        return true;
    }
    qp->ctx->dev->rnr++;
    if (qp->ctx->dev->iwarp) {
        refuse(qp, IBV_WC_RNR_RETRY_EXC_ERR, IBV_EVENT_QP_REQ_ERR);
        return false;
    }
    qp->parked = true;
    rnr = soft_packet(PKT_RNR, 0);
    rnr->h.msn = p->h.msn;
    rnr->h.total = rnr_time(qp->min_rnr_timer);
    soft_send(qp->wire, rnr);
    return false;
}

static void received(struct softqp *qp, struct packet *p, enum ibv_wc_opcode op)
{
    struct softrecv *r = qp->recv;
    struct ibv_wc wc = {.opcode = op, .byte_len = (uint32_t)p->h.total};

    if (p->h.flags & PKT_IMM) {
        wc.wc_flags = IBV_WC_WITH_IMM;
        wc.imm_data = p->h.imm;
    }
    qp->recv = NULL;
    recv_done(qp, r, wc, p->h.flags & PKT_SOLICITED, qp->rtaken);
}

/* The three requests: false, if the packet was not taken. */
static bool take_send(struct softqp *qp, struct packet *p)
{
    if (p->h.flags & PKT_FIRST) {
        uint64_t room = 0;

        if (!take_receive(qp, p)) {
            return false;
        }
        for (int i = 0; i < qp->recv->num_sge; i++) {
            room += qp->recv->sge[i].length;
        }
        if (room < p->h.total) {
            refuse_receive(qp, IBV_WC_LOC_LEN_ERR, IBV_WC_REM_INV_REQ_ERR);
            return false;
        }
    }
    if (!copy_sges(qp, qp->recv->sge, qp->recv->num_sge, qp->roffset, p->data, p->h.len,
                   true)) {
        refuse_receive(qp, IBV_WC_LOC_PROT_ERR, IBV_WC_REM_OP_ERR);
        return false;
    }
    qp->roffset += p->h.len;
    if (p->h.flags & PKT_LAST) {
        received(qp, p, IBV_WC_RECV);
    }
    return true;
}

/* The memory, if the peer may do this to these bytes; else the request is refused. */
static uint8_t *allowed(struct softqp *qp, uint32_t rkey, uint64_t addr, uint64_t len,
                        int access)
{
    static uint8_t nothing;
    uint8_t *mem;

    if (!len) {
        return &nothing;
    }
    if (qp->ctx->dev->siw && access == IBV_ACCESS_REMOTE_READ) {
        access = 0;
    }
    if (!(qp->access & access) && !qp->ctx->dev->siw) {
        refuse(qp, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR);
        return NULL;
    }
    mem = soft_lookup(soft.rkeys, qp->pd, rkey, addr, len, access);
    if (!mem) {
        refuse(qp, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
    }
    return mem;
}

static bool take_write(struct softqp *qp, struct packet *p)
{
    uint64_t checked = p->h.flags & PKT_FIRST ? p->h.total : p->h.len;
    uint8_t *mem = allowed(qp, p->h.rkey, p->h.addr, checked, IBV_ACCESS_REMOTE_WRITE);

    if (!mem || ((p->h.flags & PKT_IMM) && !take_receive(qp, p))) {
        return false;
    }
    memcpy(mem, p->data, p->h.len);
    if (p->h.flags & PKT_IMM) {
        received(qp, p, IBV_WC_RECV_RDMA_WITH_IMM);
    }
    return true;
}

static bool take_read(struct softqp *qp, struct packet *p)
{
    if (p->h.reads > qp->ird) {
        refuse(qp, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
        return false;
    }
    if (!allowed(qp, p->h.rkey, p->h.addr, p->h.total, IBV_ACCESS_REMOTE_READ)) {
        return false;
    }
    qp->read.busy = true;
    qp->read.at = p->h.addr;
    qp->read.total = p->h.total;
    qp->read.offset = 0;
    qp->read.rkey = p->h.rkey;
    qp->read.msn = p->h.msn;
    return true;
}

/* One packet of what a READ asked for. */
static bool give_data(struct softqp *qp)
{
    uint32_t len = (uint32_t)MIN(SOFT_MTU, qp->read.total - qp->read.offset);
    struct packet *p;
    uint8_t *mem;

    if (soft_wire_full(qp->wire) ||
        !(mem = allowed(qp, qp->read.rkey, qp->read.at + qp->read.offset, len,
                        IBV_ACCESS_REMOTE_READ))) {
        return false;
    }
    p = soft_packet(PKT_DATA, len);
    memcpy(p->data, mem, len);
    p->h.addr = qp->read.offset;
    p->h.msn = qp->read.msn;
    p->h.packets = qp->acked = qp->taken;
    qp->read.offset += len;
    if (qp->read.offset == qp->read.total) {
        qp->read.busy = false;
        p->h.flags = PKT_LAST;
    }
    soft_send(qp->wire, p);
    return true;
}

/* One step of the responder. */
bool soft_respond(struct wire *w)
{
    struct softqp *qp = w->qp;
    struct softdev *dev = w->dev;
    struct packet *p = w->requests.first;
    bool cut = false, taken;

    if (!soft.hold || soft_stalled(w) || (qp && qp->state < IBV_QPS_RTR)) {
        return false;
    }
    if (!qp || qp->state == IBV_QPS_ERR) {
        if (!p) {
            return false;
        }
        while ((p = soft_pop(&w->requests))) {
            g_free(p);
        }
        soft_send_plain(w, PKT_DROPPED);
        return true;
    }
    if (qp->read.busy) {
        return give_data(qp);
    }
    if (!p || qp->parked) {
        return false;
    }
    if (!p->h.status) { /* not one that was parked */
        p->h.status = 1;
        dev->packets++;
        soft.hold -= soft.hold > 0;
        cut = dev->cut_at && dev->cut_how != CUT_ANSWER && !--dev->cut_at;
    }
    if (cut && dev->cut_how == CUT_BEFORE) {
        soft_cut(w);
        return false;
    }
    w->mute = cut;
    taken = p->h.kind == PKT_SEND    ? take_send(qp, p)
            : p->h.kind == PKT_WRITE ? take_write(qp, p)
                                     : take_read(qp, p);
    if (taken && w->qp) {
        qp->taken++;
        if (p->h.kind != PKT_READ &&
            ((p->h.flags & PKT_LAST) || qp->taken - qp->acked >= SOFT_WINDOW / 4)) {
            answer(qp, PKT_ACK, p->h.msn, p->h.flags & PKT_LAST);
        }
        g_free(soft_pop(&w->requests));
    }
    w->mute = false;
    if (cut) {
        soft_cut(w);
        return false;
    }
    return taken;
}

/* ---- modify and query ---- */

int soft_modify_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask)
{
    struct softqp *qp = (struct softqp *)ibv;
    const int can = IBV_QP_STATE | IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS |
                    IBV_QP_MIN_RNR_TIMER | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE;
    enum ibv_qp_state to = mask & IBV_QP_STATE ? attr->qp_state : qp->state;
    int err = soft_enter("modify_qp");

    if (!err && qp->ctx->dev->fatal) {
        err = EIO;
    }
    if (!err && to == IBV_QPS_ERR) {
        soft_qp_state(qp, IBV_QPS_ERR);
    } else if (!err && (to != qp->state || (to != IBV_QPS_INIT && to != IBV_QPS_RTS) ||
                        (mask & ~can))) {
        err = EINVAL;
    } else if (!err) {
        qp->access = mask & IBV_QP_ACCESS_FLAGS ? (int)attr->qp_access_flags : qp->access;
        qp->min_rnr_timer =
            mask & IBV_QP_MIN_RNR_TIMER ? attr->min_rnr_timer : qp->min_rnr_timer;
    }
    soft_leave();
    return err;
}

int soft_query_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask,
                  struct ibv_qp_init_attr *init)
{
    struct softqp *qp = (struct softqp *)ibv;
    int err = soft_enter("query_qp");

    if (!err && qp->ctx->dev->fatal) {
        err = EIO;
    }
    if (!err) {
        memset(attr, 0, sizeof(*attr));
        attr->qp_state = attr->cur_qp_state = qp->state;
        attr->path_mtu = IBV_MTU_4096;
        attr->dest_qp_num = qp->id->words.qpn;
        attr->qp_access_flags = qp->access;
        attr->cap = qp->init.cap;
        attr->max_rd_atomic = qp->ord;
        attr->max_dest_rd_atomic = qp->ird;
        attr->min_rnr_timer = qp->min_rnr_timer;
        attr->port_num = 1;
        attr->timeout = qp->timeout;
        attr->retry_cnt = qp->retry_cnt;
        attr->rnr_retry = qp->rnr_retry;
        *init = qp->init;
    }
    soft_leave();
    return err;
}
