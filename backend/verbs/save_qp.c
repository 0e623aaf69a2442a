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

RECORD(attr_record, struct pvrdma_qp_attr, FIELD(path_mtu), FIELD(path_mig_state),
       FIELD(qkey), FIELD(rq_psn), FIELD(sq_psn), FIELD(dest_qp_num),
       FIELD(qp_access_flags), FIELD(pkey_index), FIELD_MAX(en_sqd_async_notify, 1),
       FIELD_MAX(sq_draining, 1), FIELD(max_rd_atomic), FIELD(max_dest_rd_atomic),
       FIELD(min_rnr_timer), FIELD(port_num), FIELD(timeout), FIELD(retry_cnt),
       FIELD(rnr_retry), FIELD(ah_attr.dgid.raw), FIELD(ah_attr.flow_label),
       FIELD(ah_attr.sgid_index), FIELD(ah_attr.hop_limit), FIELD(ah_attr.traffic_class),
       FIELD(ah_attr.dlid), FIELD(ah_attr.vlan_id), FIELD(ah_attr.sl),
       FIELD(ah_attr.src_path_bits), FIELD(ah_attr.static_rate), FIELD(ah_attr.ah_flags),
       FIELD(ah_attr.port_num), FIELD(ah_attr.dmac))

static void attr_load(const struct objects *v, struct pvrdma_qp_attr *a,
                      struct state_in *s)
{
    uint32_t mask = CHECKED;

    state_get_record(s, attr_record, a);
    mask |= a->port_num ? PVRDMA_QP_PORT : 0;
    mask |= a->path_mtu ? PVRDMA_QP_PATH_MTU : 0;
    /* The GID may have been taken from the table since. */
    if (qp_attr_check(v, mask, a) != 0 || a->ah_attr.sgid_index >= VERBS_GID_TBL_LEN ||
        (a->qp_access_flags & PVRDMA_ACCESS_OPTIONAL)) {
        state_fail(s, "invalid attributes");
    }
}

/* ---- saving ---- */

RECORD(create_record, struct pvrdma_cmd_create_qp, FIELD(pd_handle),
       FIELD(send_cq_handle), FIELD(recv_cq_handle), FIELD(srq_handle),
       FIELD(max_send_wr), FIELD(max_send_sge), FIELD(max_inline_data),
       FIELD(max_recv_wr), FIELD(max_recv_sge))

static void create_save(const struct qp *qp, struct state_out *s)
{
    const struct srq *srq = qp->rq->srq;
    const struct pvrdma_cmd_create_qp req = {
        .pd_handle = qp->pd->handle,
        .send_cq_handle = qp->scq->handle,
        .recv_cq_handle = qp->rcq->handle,
        .srq_handle = srq ? srq->handle : 0,
        .max_send_wr = qp->sq.nwqe,
        .max_send_sge = qp->sq.max_sge,
        .max_inline_data = qp->max_inline,
        .max_recv_wr = qp->own_rq.wq.nwqe,
        .max_recv_sge = qp->own_rq.wq.max_sge,
    };

    state_put_u8(s, (uint8_t)qp->type);
    state_put_u8(s,
                 (uint8_t)((qp->mem.ext ? FLAG_EXT : 0) |
                           (qp->sq_sig_all ? FLAG_SIG_ALL : 0) | (srq ? FLAG_SRQ : 0)));
    state_put_record(s, create_record, &req);
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
    state_put_record(s, attr_record, &qp->attr);
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
    state_get_record(s, create_record, &req);
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
