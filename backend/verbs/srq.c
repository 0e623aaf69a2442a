/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Shared receive queues: creation, the limit, query, destruction.  Who takes receives
 * from one is the data path's (rq.c).
 *
 * The memory is a header page and the WQEs.  Stock libraries bring more pages than
 * that; which are used follows from the capacities alone.
 *
 * The commands without a response, MODIFY_SRQ and DESTROY_SRQ, are done when these
 * functions return.  A worker may hold an SRQ's lock while the kernel brings a page of
 * the guest's, so no command takes it.
 *
 * Main thread.
 */
#include "verbs/verbs_internal.h"

#include <errno.h>

static int srq_layout(struct srq *srq, const struct pvrdma_cmd_create_srq *req,
                      uint32_t *npages)
{
    struct wq *wq = &srq->rq.wq;

    if (req->srq_type != PVRDMA_SRQT_BASIC || (req->reserved[0] & ~PVRDMA_EXT_OBJ_RING)) {
        return ENOTSUP;
    }
    if (wq_layout(wq, req->attrs.max_wr, req->attrs.max_sge,
                  sizeof(struct pvrdma_rq_wqe_hdr), 0, npages)) {
        return EINVAL;
    }
    wq->first_page = 1;
    *npages += 1;
    return 0;
}

/* As @req says, but its ring, which is of *npages, and its handle; NULL with *err. */
static struct srq *srq_new(struct vm *vm, struct pd *pd,
                           const struct pvrdma_cmd_create_srq *req, uint32_t *npages,
                           int *err)
{
    struct srq *srq = g_try_new0(struct srq, 1);

    if (!srq) {
        *err = ENOMEM;
        return NULL;
    }
    srq->vm = vm;
    srq->pd = pd;
    srq->mem.ext = req->reserved[0] & PVRDMA_EXT_OBJ_RING;
    srq->rq = (struct rq){.lock = &srq->lock,
                          .vm = vm,
                          .pd = pd,
                          .srq = srq,
                          .mem = &srq->mem,
                          .max_wait = SRQ_WAITERS,
                          .wait = srq->wait};
    *err = srq_layout(srq, req, npages);
    if (*err) {
        g_free(srq);
        return NULL;
    }
    return srq;
}

/* It has its ring and its handle. */
static void srq_publish(struct srq *srq)
{
    pthread_mutex_init(&srq->lock, NULL);
    srq->pd->refs++;
    id_table_publish(&srq->vm->objects.srq, srq->handle, srq);
}

int verbs_create_srq(struct vm *vm, const union verbs_req *cmd, union verbs_resp *resp)
{
    const struct pvrdma_cmd_create_srq *req = &cmd->abi.create_srq;
    struct objects *v = &vm->objects;
    struct pd *pd = id_table_get(&v->pd, req->pd_handle);
    struct srq *srq;
    uint32_t npages;
    int err;

    if (!pd) {
        return ENOENT;
    }
    srq = srq_new(vm, pd, req, &npages, &err);
    if (!srq) {
        return err;
    }
    err = req->nchunks < npages
              ? EINVAL
              : verbs_ring_init(vm, &srq->mem, sizeof(*srq), req->pdir_dma, npages);
    if (err) {
        goto err_srq;
    }
    srq->handle = id_table_reserve(&v->srq);
    if (!srq->handle) {
        err = ENOSPC;
        goto err_ring;
    }
    srq_publish(srq);
    datapath_srq_created(srq, uctx_uar_page(pd->uctx));
    resp->abi.handle.handle = srq->handle;
    return 0;

err_ring:
    verbs_ring_fini(vm, &srq->mem);
err_srq:
    g_free(srq);
    return err;
}

int verbs_modify_srq(struct vm *vm, const union verbs_req *cmd, union verbs_resp *resp)
{
    const struct pvrdma_cmd_modify_srq *req = &cmd->abi.modify_srq;
    struct srq *srq = id_table_get(&vm->objects.srq, req->srq_handle);

    if (!srq) {
        return ENOENT;
    }
    if (req->attr_mask & ~PVRDMA_SRQ_LIMIT) {
        return ENOTSUP; /* nor is it resized */
    }
    if (req->attr_mask & PVRDMA_SRQ_LIMIT) {
        if (req->attrs.srq_limit > srq->rq.wq.nwqe) {
            return EINVAL;
        }
        atomic_store(&srq->limit, req->attrs.srq_limit);
    }
    return 0;
}

int verbs_query_srq(struct vm *vm, const union verbs_req *req, union verbs_resp *resp)
{
    struct srq *srq = id_table_get(&vm->objects.srq, req->abi.handle.handle);

    if (!srq) {
        return ENOENT;
    }
    resp->abi.query_srq.attrs = (struct pvrdma_srq_attr){
        .max_wr = srq->rq.wq.nwqe,
        .max_sge = srq->rq.wq.max_sge,
        .srq_limit = atomic_load(&srq->limit),
    };
    return 0;
}

void srq_unpublish(struct vm *vm, struct srq *srq)
{
    id_table_release(&vm->objects.srq, srq->handle);
    datapath_srq_destroyed(srq);
}

void srq_free(struct vm *vm, struct srq *srq)
{
    /* After the workers let go of it, as for CQs. */
    event_srq_forget(&vm->guest, srq->handle);
    srq->pd->refs--;
    verbs_ring_fini(vm, &srq->mem);
    pthread_mutex_destroy(&srq->lock);
    g_free(srq);
}

int verbs_destroy_srq(struct vm *vm, const union verbs_req *req, union verbs_resp *resp)
{
    struct srq *srq = id_table_get(&vm->objects.srq, req->abi.handle.handle);

    if (!srq) {
        return ENOENT;
    }
    if (srq->refs) {
        return EBUSY;
    }
    srq_unpublish(vm, srq);
    grace_wait();
    srq_free(vm, srq);
    return 0;
}

/* ---- the state stream ---- */

static void srq_save(void *object, struct state_out *s)
{
    struct srq *srq = object;

    state_put_u32(s, srq->handle);
    state_put_u32(s, srq->pd->handle);
    state_put_u8(s, srq->mem.ext ? PVRDMA_EXT_OBJ_RING : 0);
    state_put_u32(s, srq->rq.wq.nwqe);
    state_put_u32(s, srq->rq.wq.max_sge);
    verbs_ring_save(&srq->mem, s);
    datapath_srq_save(srq, s);
}

void srqs_save(struct vm *vm, struct state_out *s)
{
    id_table_save(&vm->objects.srq, s);
    verbs_objects_save(&vm->objects.srq, srq_save, s);
}

static struct srq *srq_read(struct vm *vm, struct state_in *s)
{
    struct pvrdma_cmd_create_srq req = {.srq_type = PVRDMA_SRQT_BASIC};
    struct pd *pd = id_table_get(&vm->objects.pd, state_get_u32(s));
    struct srq *srq = NULL;
    uint32_t npages;
    int err = ENOENT;

    req.reserved[0] = state_get_u8(s);
    req.attrs.max_wr = state_get_u32(s);
    req.attrs.max_sge = state_get_u32(s);
    if (pd && !state_failed(s)) {
        srq = srq_new(vm, pd, &req, &npages, &err);
    }
    if (!srq) {
        state_fail(s, "invalid attributes: %s", g_strerror(err));
    } else if (!verbs_ring_load(vm, &srq->mem, sizeof(*srq), npages, s)) {
        g_free(srq);
        return NULL;
    }
    return srq;
}

static void srq_load(struct vm *vm, struct state_in *s)
{
    struct objects *v = &vm->objects;
    uint32_t handle = verbs_place(&v->srq, s);
    struct srq *srq = handle ? srq_read(vm, s) : NULL;

    if (srq) {
        srq->handle = handle;
        srq_publish(srq);
        datapath_srq_load(srq, uctx_uar_page(srq->pd->uctx), s);
    } else if (handle) {
        id_table_release(&v->srq, handle);
    }
}

void srqs_load(struct vm *vm, struct state_in *s)
{
    id_table_load(&vm->objects.srq, s);
    verbs_objects_load(vm, &vm->objects.srq, 4, srq_load, s);
}
