/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Queue pairs in the state stream: what a guest asked for when it made one, and the
 * attributes it gave it since; save_qp.c of datapath/ has what became of its work.
 *
 * One that is loaded is made as by a command, by the same checks, with the number and the
 * pages it had.  Its attributes are checked as those of a MODIFY, but that one which was
 * never set is 0.
 *
 * Main thread.
 */
#include "base/coro.h"
#include "verbs/verbs_internal.h"

#define FLAG_EXT     1u
#define FLAG_SIG_ALL 2u
#define FLAG_SRQ     4u

/* What MODIFY can have set, but the state and the address, which are looked at here. */
#define CHECKED                                                                          \
    (PVRDMA_QP_ACCESS_FLAGS | PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_TIMEOUT |                 \
     PVRDMA_QP_RETRY_CNT | PVRDMA_QP_RNR_RETRY | PVRDMA_QP_MAX_RD_ATOMIC |               \
     PVRDMA_QP_MIN_RNR_TIMER | PVRDMA_QP_MAX_DEST_RD_ATOMIC | PVRDMA_QP_PATH_MIG_STATE | \
     PVRDMA_QP_DEST_QPN)

/* ---- attributes ---- */

static void ah_save(const struct pvrdma_ah_attr *ah, struct state_out *s)
{
    state_put_bytes(s, ah->dgid.raw, sizeof(ah->dgid.raw));
    state_put_u32(s, ah->flow_label);
    state_put_u8(s, ah->sgid_index);
    state_put_u8(s, ah->hop_limit);
    state_put_u8(s, ah->traffic_class);
    state_put_u16(s, ah->dlid);
    state_put_u16(s, ah->vlan_id);
    state_put_u8(s, ah->sl);
    state_put_u8(s, ah->src_path_bits);
    state_put_u8(s, ah->static_rate);
    state_put_u8(s, ah->ah_flags);
    state_put_u8(s, ah->port_num);
    state_put_bytes(s, ah->dmac, sizeof(ah->dmac));
}

static void ah_load(struct pvrdma_ah_attr *ah, struct state_in *s)
{
    state_get_bytes(s, ah->dgid.raw, sizeof(ah->dgid.raw));
    ah->flow_label = state_get_u32(s);
    ah->sgid_index = state_get_u8(s);
    ah->hop_limit = state_get_u8(s);
    ah->traffic_class = state_get_u8(s);
    ah->dlid = state_get_u16(s);
    ah->vlan_id = state_get_u16(s);
    ah->sl = state_get_u8(s);
    ah->src_path_bits = state_get_u8(s);
    ah->static_rate = state_get_u8(s);
    ah->ah_flags = state_get_u8(s);
    ah->port_num = state_get_u8(s);
    state_get_bytes(s, ah->dmac, sizeof(ah->dmac));
}

static void attr_save(const struct pvrdma_qp_attr *a, struct state_out *s)
{
    state_put_u32(s, a->path_mtu);
    state_put_u32(s, a->path_mig_state);
    state_put_u32(s, a->qkey);
    state_put_u32(s, a->rq_psn);
    state_put_u32(s, a->sq_psn);
    state_put_u32(s, a->dest_qp_num);
    state_put_u32(s, a->qp_access_flags);
    state_put_u16(s, a->pkey_index);
    state_put_u8(s, a->en_sqd_async_notify);
    state_put_u8(s, a->sq_draining);
    state_put_u8(s, a->max_rd_atomic);
    state_put_u8(s, a->max_dest_rd_atomic);
    state_put_u8(s, a->min_rnr_timer);
    state_put_u8(s, a->port_num);
    state_put_u8(s, a->timeout);
    state_put_u8(s, a->retry_cnt);
    state_put_u8(s, a->rnr_retry);
    ah_save(&a->ah_attr, s);
}

static void attr_load(const struct objects *v, struct pvrdma_qp_attr *a,
                      struct state_in *s)
{
    uint32_t mask = CHECKED;

    a->path_mtu = state_get_u32(s);
    a->path_mig_state = state_get_u32(s);
    a->qkey = state_get_u32(s);
    a->rq_psn = state_get_u32(s);
    a->sq_psn = state_get_u32(s);
    a->dest_qp_num = state_get_u32(s);
    a->qp_access_flags = state_get_u32(s);
    a->pkey_index = state_get_u16(s);
    a->en_sqd_async_notify = state_get_bool(s);
    a->sq_draining = state_get_bool(s);
    a->max_rd_atomic = state_get_u8(s);
    a->max_dest_rd_atomic = state_get_u8(s);
    a->min_rnr_timer = state_get_u8(s);
    a->port_num = state_get_u8(s);
    a->timeout = state_get_u8(s);
    a->retry_cnt = state_get_u8(s);
    a->rnr_retry = state_get_u8(s);
    ah_load(&a->ah_attr, s);
    mask |= a->port_num ? PVRDMA_QP_PORT : 0;
    mask |= a->path_mtu ? PVRDMA_QP_PATH_MTU : 0;
    /* The GID may have been taken from the table since. */
    if (qp_attr_check(v, mask, a) != 0 || a->ah_attr.sgid_index >= VERBS_GID_TBL_LEN ||
        (a->qp_access_flags & PVRDMA_ACCESS_OPTIONAL)) {
        state_fail(s, "invalid attributes");
    }
}

/* ---- saving ---- */

static void create_save(const struct qp *qp, struct state_out *s)
{
    const struct srq *srq = qp->rq->srq;

    state_put_u8(s, (uint8_t)qp->type);
    state_put_u8(s,
                 (uint8_t)((qp->mem.ext ? FLAG_EXT : 0) |
                           (qp->sq_sig_all ? FLAG_SIG_ALL : 0) | (srq ? FLAG_SRQ : 0)));
    state_put_u32(s, qp->pd->handle);
    state_put_u32(s, qp->scq->handle);
    state_put_u32(s, qp->rcq->handle);
    state_put_u32(s, srq ? srq->handle : 0);
    state_put_u32(s, qp->sq.nwqe);
    state_put_u32(s, qp->sq.max_sge);
    state_put_u32(s, qp->max_inline);
    state_put_u32(s, qp->own_rq.wq.nwqe);
    state_put_u32(s, qp->own_rq.wq.max_sge);
    verbs_ring_save(&qp->mem, s);
}

static void qp_save(void *object, struct state_out *s)
{
    struct qp *qp = object;

    state_put_u32(s, qp->handle);
    create_save(qp, s);
    vm_token_take(qp->vm);
    vm_qp_lock(qp);
    state_put_u32(s, atomic_load(&qp->state));
    attr_save(&qp->attr, s);
    datapath_qp_save(qp, s);
    pthread_mutex_unlock(&qp->lock);
    vm_token_release(qp->vm);
}

void qps_save(struct vm *vm, struct state_out *s)
{
    id_table_save(&vm->objects.qp, s);
    verbs_objects_save(&vm->objects.qp, qp_save, s);
}

/* ---- loading ---- */

static struct qp *qp_read(struct vm *vm, struct state_in *s)
{
    struct pvrdma_cmd_create_qp req = {.qp_type = state_get_u8(s)};
    uint8_t flags = state_get_u8(s);
    struct qp *qp = NULL;
    uint32_t npages;
    int err;

    req.reserved[0] = flags & FLAG_EXT ? PVRDMA_EXT_OBJ_RING : 0;
    req.sq_sig_all = flags & FLAG_SIG_ALL ? 1 : 0;
    req.is_srq = flags & FLAG_SRQ ? 1 : 0;
    req.pd_handle = state_get_u32(s);
    req.send_cq_handle = state_get_u32(s);
    req.recv_cq_handle = state_get_u32(s);
    req.srq_handle = state_get_u32(s);
    req.max_send_wr = state_get_u32(s);
    req.max_send_sge = state_get_u32(s);
    req.max_inline_data = state_get_u32(s);
    req.max_recv_wr = state_get_u32(s);
    req.max_recv_sge = state_get_u32(s);
    if (state_failed(s)) {
        return NULL;
    }
    err = flags & ~(FLAG_EXT | FLAG_SIG_ALL | FLAG_SRQ) ? EINVAL
                                                        : qp_new(vm, &req, &npages, &qp);
    if (err) {
        state_fail(s, "invalid attributes: %s", g_strerror(err));
        return NULL;
    }
    if (!verbs_ring_load(vm, &qp->mem, QP_BYTES, npages, s)) {
        g_free(qp->req.sent);
        g_free(qp);
        return NULL;
    }
    return qp;
}

static void work_load(struct qp *qp, struct state_in *s)
{
    struct objects *v = &qp->vm->objects;
    uint32_t state;

    vm_token_take(qp->vm);
    vm_qp_lock(qp);
    state = state_get_u32(s);
    attr_load(v, &qp->attr, s);
    if (state > PVRDMA_QPS_ERR) {
        state_fail(s, "invalid QP state %u", state);
    }
    if (!state_failed(s)) {
        qp->attr.qp_state = state;
        atomic_store_explicit(&qp->state, state, memory_order_release);
    }
    datapath_qp_load(qp, uctx_uar_page(qp->pd->uctx), s);
    pthread_mutex_unlock(&qp->lock);
    vm_token_release(qp->vm);
}

static void qp_load(struct vm *vm, struct state_in *s)
{
    struct objects *v = &vm->objects;
    uint32_t handle = verbs_place(&v->qp, s);
    struct qp *qp = handle ? qp_read(vm, s) : NULL;

    if (qp) {
        qp_publish(qp, handle);
        work_load(qp, s);
    } else if (handle) {
        id_table_release(&v->qp, handle);
    }
}

void qps_load(struct vm *vm, struct state_in *s)
{
    id_table_load(&vm->objects.qp, s);
    verbs_objects_load(vm, &vm->objects.qp, 4, qp_load, s);
}

/* ---- what they failed for: a part of its own ---- */

static void failure_save(void *object, struct state_out *s)
{
    struct qp *qp = object;

    vm_token_take(qp->vm);
    vm_qp_lock(qp);
    datapath_failure_save(qp, s);
    pthread_mutex_unlock(&qp->lock);
    vm_token_release(qp->vm);
}

void qps_failed_save(struct vm *vm, struct state_out *s)
{
    const struct id_table *t = &vm->objects.qp;

    for (uint32_t i = 1; i < id_table_end(t); i++) {
        if (id_table_get(t, i)) {
            failure_save(id_table_get(t, i), s);
            coro_breathe();
        }
    }
}

void qps_failed_load(struct vm *vm, struct state_in *s)
{
    while (s->left && !state_failed(s)) { /* each once, so that they are not too many */
        uint32_t handle = state_get_u32(s);
        struct qp *qp = id_table_get(&vm->objects.qp, handle);

        if (qp) {
            vm_token_take(vm);
            vm_qp_lock(qp);
            datapath_failure_load(qp, s);
            pthread_mutex_unlock(&qp->lock);
            vm_token_release(vm);
        } else {
            state_fail(s, "there is no QP %u", handle);
        }
        coro_breathe();
    }
}
