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
    return req->nchunks >= *npages ? 0 : EINVAL;
}

int verbs_create_srq(struct vm *vm, const struct pvrdma_cmd_create_srq *req,
                     struct pvrdma_resp_handle *resp)
{
    struct objects *v = &vm->objects;
    struct pd *pd = id_table_get(&v->pd, req->pd_handle);
    struct srq *srq;
    uint32_t npages;
    int err;

    if (!pd) {
        return ENOENT;
    }
    srq = g_try_new0(struct srq, 1);
    if (!srq) {
        return ENOMEM;
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
    err = srq_layout(srq, req, &npages);
    err = err ? err : verbs_ring_init(vm, &srq->mem, req->pdir_dma, npages);
    if (err) {
        goto err_srq;
    }
    srq->handle = id_table_reserve(&v->srq);
    if (!srq->handle) {
        err = ENOSPC;
        goto err_ring;
    }
    pthread_mutex_init(&srq->lock, NULL);
    pd->refs++;
    id_table_publish(&v->srq, srq->handle, srq);
    datapath_srq_created(srq, uctx_uar_page(pd->uctx));
    resp->handle = srq->handle;
    return 0;

err_ring:
    verbs_ring_fini(vm, &srq->mem);
err_srq:
    g_free(srq);
    return err;
}

int verbs_modify_srq(struct vm *vm, const struct pvrdma_cmd_modify_srq *req)
{
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

int verbs_query_srq(struct vm *vm, uint32_t handle, struct pvrdma_resp_query_srq *resp)
{
    struct srq *srq = id_table_get(&vm->objects.srq, handle);

    if (!srq) {
        return ENOENT;
    }
    resp->attrs = (struct pvrdma_srq_attr){
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

int verbs_destroy_srq(struct vm *vm, uint32_t handle)
{
    struct srq *srq = id_table_get(&vm->objects.srq, handle);

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
