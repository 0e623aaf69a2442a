/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Queue pairs: creation, modification, query, destruction.
 *
 * Creation.  The guest gives one page list: a header page (ring state), the
 * send WQEs, the receive WQEs.  How many pages of each there must be follows
 * from the capacities alone; the guest's 16-bit counts are compared with that,
 * never used (CVE-2018-20125).
 *
 * Modification runs under the VM's token (no send queue moves) and qp->lock (no
 * receive queue moves), checks everything on the daemon's copy of the request,
 * and only then stores; a refused request changes nothing.
 *
 * Main thread.
 */
#include "verbs/verbs_internal.h"

#include <errno.h>

#include "transport/transports.h"

#define AH_FLAG_GRH  1u
#define MIG_MIGRATED 0u

/* Rights that incoming requests may use. */
#define QP_ACCESS_MASK \
    (PVRDMA_ACCESS_LOCAL_WRITE | PVRDMA_ACCESS_REMOTE | PVRDMA_ACCESS_MW_BIND)

/* ---- creation ---- */

int wq_layout(struct wq *wq, uint32_t wr, uint32_t sge, uint32_t hdr, uint32_t max_inline,
              uint32_t *npages)
{
    uint32_t size = hdr + MAX(sge * (uint32_t)sizeof(struct pvrdma_sge), max_inline);

    if (!is_power_of_2(wr) || wr > VERBS_MAX_QP_WR || sge == 0 || sge > VERBS_MAX_SGE) {
        return EINVAL;
    }
    wq->wqe_shift = 32 - __builtin_clz(size - 1);
    wq->nwqe = wr;
    wq->max_sge = sge;
    *npages = ((wr << wq->wqe_shift) + PVRDMA_PAGE_SIZE - 1) / PVRDMA_PAGE_SIZE;
    return 0;
}

/* *npages: of the whole ring. */
static int qp_layout(struct qp *qp, const struct pvrdma_cmd_create_qp *req,
                     uint32_t *npages)
{
    uint32_t send, recv = 0;

    if (wq_layout(&qp->sq, req->max_send_wr, req->max_send_sge,
                  sizeof(struct pvrdma_sq_wqe_hdr), req->max_inline_data, &send) ||
        (!req->is_srq && wq_layout(&qp->own_rq.wq, req->max_recv_wr, req->max_recv_sge,
                                   sizeof(struct pvrdma_rq_wqe_hdr), 0, &recv))) {
        return EINVAL;
    }
    qp->sq.first_page = 1;
    qp->own_rq.wq.first_page = 1 + send;
    *npages = 1 + send + recv;
    return 0;
}

/* PD, CQs and SRQ; a program's QP uses those of its own context only. */
static int qp_parents(struct qp *qp, struct objects *v,
                      const struct pvrdma_cmd_create_qp *req)
{
    struct srq *srq = req->is_srq ? id_table_get(&v->srq, req->srq_handle) : NULL;

    qp->pd = id_table_get(&v->pd, req->pd_handle);
    qp->scq = id_table_get(&v->cq, req->send_cq_handle);
    qp->rcq = id_table_get(&v->cq, req->recv_cq_handle);
    if (!qp->pd || !qp->scq || !qp->rcq || (req->is_srq && !srq)) {
        return ENOENT;
    }
    if (srq && srq->pd->uctx != qp->pd->uctx) {
        return EPERM;
    }
    if (qp->pd->uctx &&
        (qp->scq->uctx != qp->pd->uctx || qp->rcq->uctx != qp->pd->uctx)) {
        return EPERM;
    }
    qp->own_rq = (struct rq){.lock = &qp->lock,
                             .vm = qp->vm,
                             .pd = qp->pd,
                             .mem = &qp->mem,
                             .max_wait = RQ_WAITERS,
                             .wait = qp->own_wait};
    qp->rq = srq ? &srq->rq : &qp->own_rq;
    return 0;
}

static int qp_type_check(struct qp *qp, const struct objects *v)
{
    qp->service = qp_service(qp->type);
    if (!qp->service) {
        return ENOTSUP;
    }
    qp->req.transport = qp->service->acknowledged ||
                                (qp->service->connected && transport_local->unreliable)
                            ? transport_local
                            : &transport_copy;
    qp->ops = qp->service->ops;
    if (!qp->pd->uctx) {
        qp->ops |= qp->service->kernel_ops;
    }
    if (qp->mem.ext) {
        qp->ops |= qp->service->ext_ops;
    }
    if (qp->type != PVRDMA_QPT_GSI) {
        return 0;
    }
    if (qp->rq->srq) {
        return EINVAL;
    }
    if (qp->pd->uctx) {
        return EPERM;
    }
    return atomic_load_explicit(&v->gsi, memory_order_relaxed) ? EBUSY : 0;
}

int qp_new(struct vm *vm, const struct pvrdma_cmd_create_qp *req, uint32_t *npages,
           struct qp **out)
{
    bool ext = req->reserved[0] & PVRDMA_EXT_OBJ_RING;
    struct qp *qp;
    int err;

    if ((req->reserved[0] & ~PVRDMA_EXT_OBJ_RING) ||
        req->max_inline_data > (ext ? PVRDMA_EXT_MAX_INLINE : 0)) {
        return ENOTSUP;
    }
    qp = g_try_new0(struct qp, 1);
    if (!qp) {
        return ENOMEM;
    }
    qp->vm = vm;
    qp->type = req->qp_type;
    qp->sq_sig_all = req->sq_sig_all;
    qp->mem.ext = ext;
    qp->max_inline = req->max_inline_data;
    err = qp_parents(qp, &vm->objects, req);
    err = err ? err : qp_type_check(qp, &vm->objects);
    err = err ? err : qp_layout(qp, req, npages);
    /* What is not acknowledged needs no window: it is done when it is gone. */
    if (!err && qp->req.transport->pipelined && qp->service->acknowledged) {
        qp->req.sent = g_try_new0(struct sent, QP_WINDOW);
        err = qp->req.sent ? 0 : ENOMEM;
    }
    if (err) {
        g_free(qp);
        return err;
    }
    *out = qp;
    return 0;
}

void qp_publish(struct qp *qp, uint32_t handle)
{
    struct objects *v = &qp->vm->objects;

    qp->handle = handle;
    qp->qpn = (uint32_t)v->qp.gen[handle] << 16 | handle;
    qp->pd->refs++;
    qp->scq->refs++;
    qp->rcq->refs++;
    if (qp->rq->srq) {
        qp->rq->srq->refs++;
    }
    pthread_mutex_init(&qp->lock, NULL);
    id_table_publish(&v->qp, qp->handle, qp);
    if (qp->type == PVRDMA_QPT_GSI) {
        atomic_store_explicit(&v->gsi, qp, memory_order_release);
    }
}

static void qp_fill_cap(const struct qp *qp, struct pvrdma_qp_cap *cap)
{
    *cap = (struct pvrdma_qp_cap){
        .max_send_wr = qp->sq.nwqe,
        .max_recv_wr = qp->own_rq.wq.nwqe,
        .max_send_sge = qp->sq.max_sge,
        .max_recv_sge = qp->own_rq.wq.max_sge,
        .max_inline_data = qp->max_inline,
    };
}

int verbs_create_qp(struct vm *vm, const union verbs_req *cmd, union verbs_resp *out)
{
    const struct pvrdma_cmd_create_qp *req = &cmd->abi.create_qp;
    struct pvrdma_resp_create_qp *resp = &out->abi.create_qp;
    uint32_t npages, handle;
    struct qp *qp;
    int err = qp_new(vm, req, &npages, &qp);

    if (err) {
        return err;
    }
    if (req->send_chunks != qp->own_rq.wq.first_page - 1 || req->total_chunks != npages) {
        err = EINVAL;
        goto err_qp;
    }
    err = verbs_ring_init(vm, &qp->mem, QP_BYTES, req->pdir_dma, npages);
    if (err) {
        goto err_qp;
    }
    handle = id_table_reserve(&vm->objects.qp);
    if (!handle) {
        err = ENOSPC;
        goto err_ring;
    }
    qp_publish(qp, handle);
    datapath_qp_created(qp, uctx_uar_page(qp->pd->uctx));

    resp->qpn = qp->qpn;
    resp->qp_handle = qp->handle;
    resp->max_send_wr = qp->sq.nwqe;
    resp->max_recv_wr = qp->own_rq.wq.nwqe;
    resp->max_send_sge = qp->sq.max_sge;
    resp->max_recv_sge = qp->own_rq.wq.max_sge;
    resp->max_inline_data = qp->max_inline;
    return 0;

err_ring:
    verbs_ring_fini(vm, &qp->mem);
err_qp:
    g_free(qp->req.sent);
    g_free(qp);
    return err;
}

/* ---- destruction ---- */

void qp_unpublish(struct vm *vm, struct qp *qp)
{
    struct objects *v = &vm->objects;

    /* First, so that nobody holds the lock for the length of a copy any more. */
    vm_qp_lock(qp);
    atomic_store_explicit(&qp->state, PVRDMA_QPS_RESET, memory_order_release);
    pthread_mutex_unlock(&qp->lock);
    id_table_release(&v->qp, qp->handle);
    if (qp->type == PVRDMA_QPT_GSI) {
        atomic_store_explicit(&v->gsi, NULL, memory_order_release);
    }
    datapath_qp_destroyed(qp);
}

void qp_free(struct vm *vm, struct qp *qp)
{
    /* After the workers let go of it, as for CQs. */
    event_qp_forget(&vm->guest, qp->handle);
    if (qp->rq->srq) {
        qp->rq->srq->refs--;
    }
    qp->rcq->refs--;
    qp->scq->refs--;
    qp->pd->refs--;
    verbs_ring_fini(vm, &qp->mem);
    pthread_mutex_destroy(&qp->lock);
    g_free(qp->req.sent);
    g_free(qp);
}

int verbs_query_qp_counters(struct vm *vm, const union verbs_req *req,
                            union verbs_resp *resp)
{
    const struct qp *qp = id_table_get(&vm->objects.qp, req->abi.handle.handle);
    uint64_t *counter = resp->qp_counters.counter;

    if (!qp) {
        return ENOENT;
    }
    counter[PVRDMA_EXT_CNT_TX_MSGS] = atomic_load(&qp->req.tx_msgs);
    counter[PVRDMA_EXT_CNT_TX_BYTES] = atomic_load(&qp->req.tx_bytes);
    counter[PVRDMA_EXT_CNT_RX_MSGS] = atomic_load(&qp->resp.rx_msgs);
    counter[PVRDMA_EXT_CNT_RX_BYTES] = atomic_load(&qp->resp.rx_bytes);
    counter[PVRDMA_EXT_CNT_ERRORS] = atomic_load(&qp->seldom.errors);
    counter[PVRDMA_EXT_CNT_RNR_WAITS] = atomic_load(&qp->seldom.rnr_waits);
    counter[PVRDMA_EXT_CNT_RETRIES] = atomic_load(&qp->seldom.retries);
    counter[PVRDMA_EXT_QPCNT_RNR_NAKS] = atomic_load(&qp->seldom.rnr_naks);
    counter[PVRDMA_EXT_QPCNT_DUPLICATES] = atomic_load(&qp->seldom.duplicates);
    counter[PVRDMA_EXT_QPCNT_DROPPED] = atomic_load(&qp->seldom.dropped);
    return 0;
}

int verbs_destroy_qp(struct vm *vm, const union verbs_req *req, union verbs_resp *resp)
{
    struct qp *qp = id_table_get(&vm->objects.qp, req->abi.handle.handle);

    if (!qp) {
        return ENOENT;
    }
    vm_token_take(vm);
    qp_unpublish(vm, qp);
    vm_token_release(vm);

    grace_wait();
    qp_free(vm, qp);
    return 0;
}

/* ---- modification ---- */

/* The address of the peer: RoCE, so a GRH, from a GID that we hold. */
static int av_check(const struct objects *v, const struct pvrdma_ah_attr *av)
{
    if (av->port_num != 1 || !(av->ah_flags & AH_FLAG_GRH) ||
        av->sgid_index >= VERBS_GID_TBL_LEN || !v->gid[av->sgid_index].bound) {
        return EINVAL;
    }
    return 0;
}

static bool rights_ok(uint32_t access)
{
    return !(access & ~(QP_ACCESS_MASK | PVRDMA_ACCESS_OPTIONAL));
}

static bool mtu_ok(uint32_t mtu)
{
    return mtu >= PVRDMA_MTU_256 && mtu <= PVRDMA_MTU_4096;
}

/*
 * The attributes that a guest can set: the bit, the field, when the value that @a has is
 * refused, and what is stored of it.
 */
#define QP_ATTRS(ATTR)                                                          \
    ATTR(EN_SQD_ASYNC, en_sqd_async_notify, false, a->en_sqd_async_notify != 0) \
    ATTR(ACCESS_FLAGS, qp_access_flags, !rights_ok(a->qp_access_flags),         \
         a->qp_access_flags & QP_ACCESS_MASK)                                   \
    ATTR(PKEY_INDEX, pkey_index, a->pkey_index != 0, a->pkey_index)             \
    ATTR(PORT, port_num, a->port_num != 1, a->port_num)                         \
    ATTR(QKEY, qkey, false, a->qkey)                                            \
    ATTR(AV, ah_attr, av_check(v, &a->ah_attr), a->ah_attr)                     \
    ATTR(PATH_MTU, path_mtu, !mtu_ok(a->path_mtu), a->path_mtu)                 \
    ATTR(TIMEOUT, timeout, a->timeout > 31, a->timeout)                         \
    ATTR(RETRY_CNT, retry_cnt, a->retry_cnt > 7, a->retry_cnt)                  \
    ATTR(RNR_RETRY, rnr_retry, a->rnr_retry > 7, a->rnr_retry)                  \
    ATTR(RQ_PSN, rq_psn, false, PSN_MASK & a->rq_psn)                           \
    ATTR(MAX_RD_ATOMIC, max_rd_atomic, a->max_rd_atomic > VERBS_MAX_RD_ATOM,    \
         a->max_rd_atomic)                                                      \
    ATTR(MIN_RNR_TIMER, min_rnr_timer, a->min_rnr_timer > 31, a->min_rnr_timer) \
    ATTR(SQ_PSN, sq_psn, false, PSN_MASK & a->sq_psn)                           \
    ATTR(MAX_DEST_RD_ATOMIC, max_dest_rd_atomic,                                \
         a->max_dest_rd_atomic > VERBS_MAX_RD_ATOM, a->max_dest_rd_atomic)      \
    ATTR(PATH_MIG_STATE, path_mig_state, a->path_mig_state != MIG_MIGRATED,     \
         a->path_mig_state)                                                     \
    ATTR(DEST_QPN, dest_qp_num, a->dest_qp_num > QPN_MASK, a->dest_qp_num)

int qp_attr_check(const struct objects *v, uint32_t mask, const struct pvrdma_qp_attr *a)
{
#define REFUSED(bit, field, refused, value) ((mask & PVRDMA_QP_##bit) && (refused)) ||
    return QP_ATTRS(REFUSED)(mask & PVRDMA_QP_ALT_PATH) /* no path migration */
               ? EINVAL
               : 0;
#undef REFUSED
}

static void qp_attr_store(struct pvrdma_qp_attr *dst, uint32_t mask,
                          const struct pvrdma_qp_attr *a)
{
#define STORE(bit, field, refused, value) \
    if (mask & PVRDMA_QP_##bit) {         \
        dst->field = (value);             \
    }
    QP_ATTRS(STORE)
#undef STORE
}

/* Token and qp->lock are held. */
static int qp_modify(struct qp *qp, uint32_t mask, const struct pvrdma_qp_attr *attr)
{
    uint32_t cur = atomic_load_explicit(&qp->state, memory_order_acquire);
    uint32_t next = mask & PVRDMA_QP_STATE ? attr->qp_state : cur;
    int err;

    if ((mask & PVRDMA_QP_CUR_STATE) && attr->cur_qp_state != cur) {
        return EINVAL;
    }
    err = qp_transition_check(qp->type, cur, next, mask);
    err = err ? err : qp_attr_check(&qp->vm->objects, mask, attr);
    if (err) {
        return err;
    }
    if (next == PVRDMA_QPS_RESET) {
        memset(&qp->attr, 0, sizeof(qp->attr));
    }
    qp_attr_store(&qp->attr, mask, attr);
    qp->attr.qp_state = next;
    atomic_store_explicit(&qp->state, next, memory_order_release);
    datapath_qp_modified(qp, cur, mask);
    return 0;
}

int verbs_modify_qp(struct vm *vm, const union verbs_req *cmd, union verbs_resp *resp)
{
    const struct pvrdma_cmd_modify_qp *req = &cmd->abi.modify_qp;
    struct qp *qp = id_table_get(&vm->objects.qp, req->qp_handle);
    bool reset, path;
    int err;

    if (!qp) {
        return ENOENT;
    }
    vm_token_take(vm);
    vm_qp_lock(qp);
    path = (req->attr_mask & PVRDMA_QP_AV) &&
           atomic_load_explicit(&qp->state, memory_order_relaxed) == PVRDMA_QPS_SQD;
    reset = (req->attr_mask & PVRDMA_QP_STATE) && req->attrs.qp_state == PVRDMA_QPS_RESET;
    err = qp_modify(qp, req->attr_mask, &req->attrs);
    pthread_mutex_unlock(&qp->lock);
    if (atomic_load_explicit(&qp->state, memory_order_relaxed) == PVRDMA_QPS_RTR) {
        vm_token_return(vm);
    } else {
        vm_token_release(vm);
    }

    if (!err && (reset || path)) {
        /*
         * The guest now takes its CQEs off the CQs and clears the ring state, or
         * takes messages from elsewhere: no worker may be left that began before.
         */
        grace_wait();
    }
    return err;
}

int verbs_query_qp(struct vm *vm, const union verbs_req *req, union verbs_resp *resp)
{
    struct qp *qp = id_table_get(&vm->objects.qp, req->abi.handle.handle);
    struct pvrdma_qp_attr *a = &resp->abi.query_qp.attrs;
    uint32_t state;

    if (!qp) {
        return ENOENT;
    }
    /* Everything is returned; attr_mask only says what the caller needs. */
    vm_token_take(vm);
    vm_qp_lock(qp);
    state = atomic_load_explicit(&qp->state, memory_order_acquire);
    *a = qp->attr;
    if (state != PVRDMA_QPS_RESET) {
        a->sq_psn = qp->req.psn & PSN_MASK;
        a->rq_psn = qp->resp.psn & PSN_MASK;
    }
    a->sq_draining = state == PVRDMA_QPS_SQD && qp->attr.sq_draining;
    pthread_mutex_unlock(&qp->lock);
    vm_token_release(vm);

    a->qp_state = state;
    a->cur_qp_state = state;
    qp_fill_cap(qp, &a->cap);
    return 0;
}
