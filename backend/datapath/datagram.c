/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Datagrams: what a UD QP or the GSI QP (number 1) sends and receives.
 *
 * A send WQE names its destination by an address handle, which the guest wrote into
 * it.  What is copied from there is checked against what the daemon knows: it must be
 * of the QP's protection domain and port, and its source a GID that the VM holds now.
 * So no datagram bears somebody else's address, nor another QP number than its
 * sender's.
 *
 * A datagram is complete when it was taken, and never sent again; one that finds no
 * receiver is dropped and counted.  There is one exception: a management datagram (GSI)
 * to an address that nobody holds, or whose holder has no GSI QP (its driver is still
 * loading, or gone), fails, so that a connection manager hears at once that there is
 * nobody, and not after a minute of retries.  While other hosts are asked who has an
 * address the QP waits, as if its receiver stood still; one that takes too long is lost
 * if a host may be back that has it.
 *
 * The receiver finds what came before the bytes as RoCE v2 leaves it in the 40 bytes of
 * the GRH: the IPv6 header, or the IPv4 header in the last 20 of them.  Which of them it
 * is the completion tells, to programs in its service level (tell_network()).
 *
 * One that is too long for the next receive is dropped, and the receive stays (InfiniBand
 * spec 9.9.3, class D): if it failed, any sender could put any UD QP out of action.
 *
 * Threads: the worker of the sender's VM with that VM's token; the receiver's qp->lock
 * is taken for the length of one message, which is a packet at most.
 */
#include "engine.h"

#define GSI_QPN 1u
/* So long a datagram waits for an answer who has its address. */
#define ASKED_NS 3000000000u
/* In a WR's Q_Key: the QP's own is meant (InfiniBand spec 10.2.5). */
#define QKEY_OWN     0x80000000u
#define FLOW_MASK    0xfffffu
#define TCLASS_SHIFT 20

/* In front of and behind the bytes of a RoCE v2 packet. */
#define UDP_SIZE       8u
#define BTH_SIZE       12u
#define DETH_SIZE      8u
#define IMM_SIZE       4u
#define ICRC_SIZE      4u
#define IPV4_SIZE      20u
#define IPPROTO_UDP_NR 17u
#define IPV4_DF        0x40u

/* ---- the sending side ---- */

void datagram_describe(const struct qp *qp, const struct pvrdma_sq_wqe_hdr *h,
                       struct send_op *op)
{
    const struct pvrdma_av *av = &h->wr.ud.av;
    struct datagram *d = &op->dg;
    const struct gid_entry *source;

    d->usable = d->silent = false;
    d->asked = 0;
    if (av->port_pd != (qp->pd->handle | 1u << 24) ||
        av->gid_index >= VERBS_GID_TBL_LEN) {
        return;
    }
    source = &qp->vm->objects.gid[av->gid_index];
    d->usable = source->bound;
    d->silent = source->waiting || atomic_load(&qp->vm->objects.link_down);
    d->path.sgid = source->gid;
    memcpy(d->path.dgid.raw, av->dgid, sizeof(d->path.dgid.raw));
    d->path.sqpn = qp->type == PVRDMA_QPT_GSI ? GSI_QPN : qp->qpn;
    d->path.dqpn = h->wr.ud.remote_qpn & QPN_MASK;
    d->qkey = h->wr.ud.remote_qkey & QKEY_OWN ? qp->attr.qkey : h->wr.ud.remote_qkey;
    d->flow_label = av->sl_tclass_flowlabel & FLOW_MASK;
    d->traffic_class = (uint8_t)(av->sl_tclass_flowlabel >> TCLASS_SHIFT);
    d->hop_limit = av->hop_limit;
}

/* Its address was asked for: is it worth while to wait for the answer? */
SELDOM static bool may_wait(struct datagram *d)
{
    uint64_t now = now_ns();

    d->asked = d->asked ? d->asked : now;
    return now - d->asked < ASKED_NS;
}

struct outcome datagram_send(struct qp *qp)
{
    struct vm_datapath *dp = &qp->vm->dp;
    struct send_op *op = &qp->req.op;
    struct worker *w = worker_self();
    struct outcome o = OUTCOME(OUT_HELD);

    if (G_LIKELY(!op->dg.silent)) {
        o = qp->req.transport->datagram(qp, op);
    }
    comp_make_room(w); /* each may be for another CQ */
    switch (o.what) {
    case OUT_FAIL:
        return o;
    case OUT_ASKED:
        if (may_wait(&op->dg)) {
            return OUTCOME(OUT_HELD);
        }
        /* fall through */
    case OUT_SILENT:
        atomic_fetch_add_explicit(&dp->datagrams_dropped[DATAGRAM_NO_ADDRESS], 1,
                                  memory_order_relaxed);
        if (qp->type == PVRDMA_QPT_GSI && !(o.what == OUT_ASKED && directory_expects())) {
            return (struct outcome){.what = OUT_FAIL, .status = PVRDMA_WC_RETRY_EXC_ERR};
        }
        break;
    case OUT_HELD:
        atomic_fetch_add_explicit(
            &dp->datagrams_dropped[op->dg.silent ? DATAGRAM_NO_ADDRESS : DATAGRAM_HELD],
            1, memory_order_relaxed);
        break;
    default:
        break;
    }
    op->done = op->m.length;
    count(&dp->datagrams_sent, 1);
    return OUTCOME(OUT_DONE);
}

/* ---- headers ---- */

static bool is_ipv4(const struct pvrdma_gid *gid)
{
    static const uint8_t prefix[12] = {[10] = 0xff, [11] = 0xff};

    return memcmp(gid->raw, prefix, sizeof(prefix)) == 0;
}

static void put16(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

/* Bytes of UDP and what it carries. */
static uint32_t udp_length(const struct msg *m)
{
    return UDP_SIZE + BTH_SIZE + DETH_SIZE +
           (m->opcode == PVRDMA_WR_SEND_WITH_IMM ? IMM_SIZE : 0) +
           (((uint32_t)m->length + 3) & ~3u) + ICRC_SIZE;
}

static void make_ipv4(uint8_t *ip, const struct msg *m, const struct datagram *d)
{
    uint32_t sum = 0;

    memset(ip, 0, IPV4_SIZE);
    ip[0] = 0x45; /* version, header length in words */
    ip[1] = d->traffic_class;
    put16(ip + 2, IPV4_SIZE + udp_length(m));
    ip[6] = IPV4_DF;
    ip[8] = d->hop_limit;
    ip[9] = IPPROTO_UDP_NR;
    memcpy(ip + 12, d->path.sgid.raw + 12, 4);
    memcpy(ip + 16, d->path.dgid.raw + 12, 4);
    for (unsigned i = 0; i < IPV4_SIZE; i += 2) {
        sum += (uint32_t)ip[i] << 8 | ip[i + 1];
    }
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    put16(ip + 10, ~sum & 0xffff);
}

static void make_ipv6(uint8_t *ip, const struct msg *m, const struct datagram *d)
{
    ip[0] = (uint8_t)(0x60 | d->traffic_class >> 4);
    ip[1] = (uint8_t)(d->traffic_class << 4 | d->flow_label >> 16);
    put16(ip + 2, d->flow_label & 0xffff);
    put16(ip + 4, udp_length(m));
    ip[6] = IPPROTO_UDP_NR;
    ip[7] = d->hop_limit;
    memcpy(ip + 8, d->path.sgid.raw, 16);
    memcpy(ip + 24, d->path.dgid.raw, 16);
}

/* Is it IPv4's? */
static bool make_grh(uint8_t *grh, const struct msg *m, const struct datagram *d)
{
    if (is_ipv4(&d->path.sgid) && is_ipv4(&d->path.dgid)) {
        memset(grh, 0, PVRDMA_GRH_SIZE - IPV4_SIZE);
        make_ipv4(grh + PVRDMA_GRH_SIZE - IPV4_SIZE, m, d);
        return true;
    }
    make_ipv6(grh, m, d);
    return false;
}

/*
 * Verbs have no network_hdr_type for programs, and some (UCX) ask the service level where
 * the destination's address is.  The kernel's connection manager has the other field, and
 * would take this one for a level to answer with.
 */
static void tell_network(struct pvrdma_cqe *cqe, const struct qp *qp, bool ipv4)
{
    cqe->network_hdr_type = ipv4 ? PVRDMA_NETWORK_IPV4 : PVRDMA_NETWORK_IPV6;
    if (qp->type != PVRDMA_QPT_GSI) {
        cqe->sl = PVRDMA_WC_SL_UDP | (ipv4 ? PVRDMA_WC_SL_IPV4 : PVRDMA_WC_SL_IPV6);
    }
}

/* ---- the receiving side ---- */

static void drop(struct vm *vm, enum datagram_drop why)
{
    atomic_fetch_add_explicit(&vm->dp.datagrams_dropped[why], 1, memory_order_relaxed);
}

/* The GSI QP has one number on the wire, which is not the one of its handle. */
static bool is_for(const struct qp *qp, const struct datagram *d)
{
    return !qp->service->connected &&
           (qp->type == PVRDMA_QPT_GSI) == (d->path.dqpn == GSI_QPN);
}

static bool may_receive(const struct qp *qp)
{
    uint32_t state = atomic_load_explicit(&qp->state, memory_order_relaxed);

    return state == PVRDMA_QPS_RTR || state == PVRDMA_QPS_RTS ||
           state == PVRDMA_QPS_SQD || state == PVRDMA_QPS_SQE;
}

/* A receive that cannot be used: the guest's mistake. */
static struct outcome bad_receive(uint8_t status, uint8_t event)
{
    return (struct outcome){
        .what = OUT_FAIL, .remote = true, .recv_status = status, .event = event};
}

/* OUT_SILENT: dropped, status says why. */
static struct outcome dropped(enum datagram_drop why)
{
    return (struct outcome){.what = OUT_SILENT, .status = (uint8_t)why};
}

/* A receive for @m and what goes before it; one left by a datagram that failed. */
static struct outcome claim(struct qp *qp, const struct msg *m, struct sg_list *dst)
{
    struct recv_op *recv = &qp->resp.recv;
    uint64_t length = m->length + PVRDMA_GRH_SIZE;
    int err = recv->active ? (recv->capacity < length ? EMSGSIZE : 0)
                           : rq_claim(qp->rq, recv, length);

    switch (err) {
    case 0:
        break;
    case EAGAIN:
        return dropped(DATAGRAM_NO_RECEIVE);
    case EMSGSIZE:
        return dropped(DATAGRAM_TOO_LONG);
    default:
        return bad_receive(PVRDMA_WC_LOC_QP_OP_ERR, PVRDMA_EVENT_QP_FATAL);
    }
    *dst = (struct sg_list){.vm = qp->vm,
                            .pd = qp->rq->pd,
                            .access = PVRDMA_ACCESS_LOCAL_WRITE,
                            .write = true,
                            .nsge = sg_reach(recv->sge, recv->nsge, length),
                            .sge = recv->sge};
    return sg_check(dst) ? OUTCOME(OUT_DONE) : bad_receive(PVRDMA_WC_LOC_PROT_ERR, 0);
}

static struct outcome take(struct qp *qp, const struct msg *m, const struct datagram *d,
                           struct sg_list *src)
{
    struct pvrdma_cqe cqe = {
        .opcode = PVRDMA_WC_RECV,
        .byte_len = (uint32_t)m->length + PVRDMA_GRH_SIZE,
        .src_qp = d->path.sqpn,
        .wc_flags = PVRDMA_WC_FLAG_GRH | PVRDMA_WC_FLAG_NETWORK_HDR_TYPE,
    };
    uint8_t grh[PVRDMA_GRH_SIZE];
    struct sg_list dst;
    struct outcome o = claim(qp, m, &dst);
    enum sg_result r;

    if (o.what != OUT_DONE) {
        return o;
    }
    tell_network(&cqe, qp, make_grh(grh, m, d));
    r = sg_fill(&dst, grh, sizeof(grh));
    r = r == SG_OK ? sg_copy(&dst, src, m->length) : r;
    if (r == SG_FAULT && guest_faulted(&qp->vm->guest)) {
        return dropped(DATAGRAM_NOT_READY);
    }
    if (r == SG_SRC_KEY || r == SG_SRC_MEM || r == SG_FAULT) {
        /* The receive serves the next. */
        return (struct outcome){.what = OUT_FAIL, .status = PVRDMA_WC_LOC_PROT_ERR};
    }
    if (r != SG_OK) {
        return bad_receive(PVRDMA_WC_LOC_PROT_ERR, PVRDMA_EVENT_QP_FATAL);
    }
    if (m->opcode == PVRDMA_WR_SEND_WITH_IMM) {
        cqe.imm_data = m->imm;
        cqe.wc_flags |= PVRDMA_WC_FLAG_IMM;
    }
    qp->resp.seq++;
    count_received_locked(qp, m->length);
    responder_recv_complete(qp, &cqe, m->flags & PVRDMA_SEND_SOLICITED);
    return OUTCOME(OUT_DONE);
}

/*
 * A receive of an SRQ is claimed for a message that can be had in any case: senders that
 * fail would keep it from the other QPs.
 */
static struct outcome take_shared(struct qp *qp, const struct msg *m,
                                  const struct datagram *d, struct sg_list *src)
{
    uint8_t bytes[VERBS_MAX_UD_SZ];
    struct sg_list copied = {.vm = src->vm, .raw = bytes};

    if (sg_fetch(src, bytes, m->length) != SG_OK) {
        return (struct outcome){.what = OUT_FAIL, .status = PVRDMA_WC_LOC_PROT_ERR};
    }
    return take(qp, m, d, &copied);
}

struct outcome datagram_deliver(struct vm *vm, const struct msg *m,
                                const struct datagram *d, struct sg_list *src)
{
    struct qp *qp = objects_qp_by_qpn(&vm->objects, d->path.dqpn);
    struct outcome o;

    if (G_UNLIKELY(atomic_load_explicit(&vm->objects.link_down, memory_order_relaxed))) {
        drop(vm, DATAGRAM_NOT_READY); /* lost on the wire: no MAD fails at once */
        return OUTCOME(OUT_DONE);
    }

    if (!qp || !is_for(qp, d)) {
        if (d->path.sqpn == GSI_QPN && d->path.dqpn == GSI_QPN) {
            return OUTCOME(OUT_SILENT);
        }
        drop(vm, DATAGRAM_NO_QP);
        return OUTCOME(OUT_DONE);
    }
    pthread_mutex_lock(&qp->lock);
    if (!may_receive(qp)) {
        o = dropped(DATAGRAM_NOT_READY);
    } else if (qp->attr.qkey != d->qkey) {
        o = dropped(DATAGRAM_QKEY);
    } else {
        o = qp->rq->srq ? take_shared(qp, m, d, src) : take(qp, m, d, src);
    }
    if (o.what == OUT_FAIL && o.remote) {
        responder_settle_locked(qp, o);
    }
    pthread_mutex_unlock(&qp->lock);

    if (o.what == OUT_DONE) {
        comp_received(vm, m->length);
        worker_self()->rx_datagrams++;
    } else if (o.what == OUT_SILENT) {
        drop(vm, (enum datagram_drop)o.status);
        count_one(&qp->seldom.dropped);
    } else if (o.remote) {
        drop(vm, DATAGRAM_BAD_RECEIVE);
        count_one(&qp->seldom.dropped);
        responder_tell(qp, o);
    } else {
        return o;
    }
    return OUTCOME(OUT_DONE);
}
