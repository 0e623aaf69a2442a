/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Completion queues: creation, another ring, destruction.  The ring itself is the data
 * path's: one header page, then `cqe` slots of 64 bytes.
 *
 * The guest takes the response's cqe as the ring size of its kernel and its
 * library, so it is exactly what was asked, or the command fails.
 */
#include "verbs/verbs_internal.h"

#include <errno.h>

/* Pages of a ring of @cqe entries; 0: there is no such ring. */
static uint32_t cq_pages(uint32_t cqe)
{
    uint32_t bytes = cqe * (uint32_t)sizeof(struct pvrdma_cqe);

    if (!is_power_of_2(cqe) || cqe > VERBS_MAX_CQE) {
        return 0;
    }
    return 1 + (bytes + PVRDMA_PAGE_SIZE - 1) / PVRDMA_PAGE_SIZE;
}

/*
 * The pages a ring of @ncqe needs must be the pages given, so that no slot lies
 * outside them (CVE-2018-20125).
 */
static int cq_ring_check(uint32_t cqe, uint32_t nchunks)
{
    return nchunks && nchunks == cq_pages(cqe) ? 0 : EINVAL;
}

static int cq_check(struct vm *vm, const struct pvrdma_cmd_create_cq *req)
{
    if (req->reserved &
        ~(PVRDMA_EXT_OBJ_RING | PVRDMA_EXT_CQ_STAMPS | PVRDMA_EXT_CQ_VECTOR_MASK)) {
        return EINVAL;
    }
    if (req->reserved & PVRDMA_EXT_CQ_STAMPS && !(req->reserved & PVRDMA_EXT_OBJ_RING)) {
        return EINVAL;
    }
    if (!event_vector_exists(&vm->guest.events,
                             req->reserved >> PVRDMA_EXT_CQ_VECTOR_SHIFT)) {
        return EINVAL;
    }
    return cq_ring_check(req->cqe, req->nchunks);
}

/* @cq, of @req, has its ring and its handle. */
static void verbs_cq_publish(struct vm *vm, struct cq *cq, struct uctx *uctx,
                             const struct pvrdma_cmd_create_cq *req)
{
    cq->vm = vm;
    cq->mem.ext = req->reserved & PVRDMA_EXT_OBJ_RING;
    cq->stamps = req->reserved & PVRDMA_EXT_CQ_STAMPS;
    cq->uctx = uctx;
    cq->vector = req->reserved >> PVRDMA_EXT_CQ_VECTOR_SHIFT;
    cq->ncqe = req->cqe;
    atomic_init(&cq->header, cq->mem.page[0]);
    pthread_mutex_init(&cq->lock, NULL);
    if (uctx) {
        uctx->refs++;
    }
    id_table_publish(&vm->objects.cq, cq->handle, cq);
}

int verbs_create_cq(struct vm *vm, const union verbs_req *cmd, union verbs_resp *resp)
{
    const struct pvrdma_cmd_create_cq *req = &cmd->abi.create_cq;
    struct objects *v = &vm->objects;
    struct uctx *uctx = id_table_get(&v->uctx, req->ctx_handle);
    struct cq *cq;
    int err;

    if (req->ctx_handle && !uctx) {
        return ENOENT;
    }
    err = cq_check(vm, req);
    if (err) {
        return err;
    }
    cq = g_try_new0(struct cq, 1);
    if (!cq) {
        return ENOMEM;
    }
    err = verbs_ring_init(vm, &cq->mem, sizeof(*cq), req->pdir_dma, req->nchunks);
    if (err) {
        goto err_cq;
    }
    cq->handle = id_table_reserve(&v->cq);
    if (!cq->handle) {
        err = ENOSPC;
        goto err_ring;
    }
    verbs_cq_publish(vm, cq, uctx, req);
    datapath_cq_created(cq, uctx_uar_page(uctx));

    resp->abi.create_cq.cq_handle = cq->handle;
    resp->abi.create_cq.cqe = cq->ncqe;
    return 0;

err_ring:
    verbs_ring_fini(vm, &cq->mem);
err_cq:
    g_free(cq);
    return err;
}

int verbs_move_cq(struct vm *vm, const union verbs_req *cmd, union verbs_resp *resp)
{
    const struct pvrdma_ext_cmd_move_cq *req = &cmd->move_cq;
    struct cq *cq = id_table_get(&vm->objects.cq, req->cq_handle);
    struct ring_mem mem = {0};
    int err;

    if (!cq) {
        return ENOENT;
    }
    /* A stock program's arming may come late, and then means what is in the old ring. */
    err =
        !cq->mem.ext || req->reserved2 ? ENOTSUP : cq_ring_check(req->cqe, req->nchunks);
    err = err ? err : verbs_ring_init(vm, &mem, sizeof(*cq), req->pdir_dma, req->nchunks);
    if (err) {
        return err;
    }
    if (!datapath_cq_move(cq, &mem, req->cqe)) {
        verbs_ring_fini(vm, &mem);
        return EIO;
    }
    resp->abi.create_cq.cq_handle = cq->handle;
    resp->abi.create_cq.cqe = req->cqe;
    grace_wait(); /* somebody may be at the old arm word */
    verbs_ring_fini(vm, &mem);
    return 0;
}

int verbs_moderate_cq(struct vm *vm, const union verbs_req *cmd, union verbs_resp *resp)
{
    const struct pvrdma_ext_cmd_moderate_cq *req = &cmd->moderate_cq;
    struct cq *cq = id_table_get(&vm->objects.cq, req->cq_handle);

    if (!cq) {
        return ENOENT;
    }
    datapath_cq_moderate(cq, req->count, req->period);
    return 0;
}

void cq_unpublish(struct vm *vm, struct cq *cq)
{
    id_table_release(&vm->objects.cq, cq->handle);
    datapath_cq_destroyed(cq);
}

void cq_free(struct vm *vm, struct cq *cq)
{
    /* After the workers let go of it: nobody can defer one any more. */
    event_cq_forget(&vm->guest, cq->handle, cq->vector);
    if (cq->uctx) {
        cq->uctx->refs--;
    }
    verbs_ring_fini(vm, &cq->mem);
    pthread_mutex_destroy(&cq->lock);
    g_free(cq);
}

int verbs_destroy_cq(struct vm *vm, const union verbs_req *req, union verbs_resp *resp)
{
    struct cq *cq = id_table_get(&vm->objects.cq, req->abi.handle.handle);

    if (!cq) {
        return ENOENT;
    }
    if (cq->refs) {
        return EBUSY;
    }
    vm_token_take(vm);
    cq_unpublish(vm, cq);
    vm_token_release(vm);

    grace_wait();
    cq_free(vm, cq);
    return 0;
}

/* ---- the state stream ---- */

static void cq_save(void *object, struct state_out *s)
{
    struct cq *cq = object;

    state_put_u32(s, cq->handle);
    state_put_u32(s, cq->uctx ? cq->uctx->handle : 0);
    state_put_u32(s, (cq->mem.ext ? PVRDMA_EXT_OBJ_RING : 0) |
                         (cq->stamps ? PVRDMA_EXT_CQ_STAMPS : 0) |
                         cq->vector << PVRDMA_EXT_CQ_VECTOR_SHIFT);
    state_put_u32(s, cq->ncqe);
    verbs_ring_save(&cq->mem, s);
    datapath_cq_save(cq, s);
}

void cqs_save(struct vm *vm, struct state_out *s)
{
    id_table_save(&vm->objects.cq, s);
    verbs_objects_save(&vm->objects.cq, cq_save, s);
}

/* What the stream has instead of a command's page directory. */
static struct cq *cq_read(struct vm *vm, struct pvrdma_cmd_create_cq *req,
                          struct state_in *s)
{
    struct cq *cq;

    req->ctx_handle = state_get_u32(s);
    req->reserved = state_get_u32(s);
    req->cqe = state_get_u32(s);
    req->nchunks = cq_pages(req->cqe);
    if ((req->ctx_handle && !id_table_get(&vm->objects.uctx, req->ctx_handle)) ||
        cq_check(vm, req) != 0) {
        state_fail(s, "invalid attributes");
    }
    cq = state_failed(s) ? NULL : g_new0(struct cq, 1);
    if (cq && !verbs_ring_load(vm, &cq->mem, sizeof(*cq), req->nchunks, s)) {
        g_free(cq);
        return NULL;
    }
    return cq;
}

static void cq_load(struct vm *vm, struct state_in *s)
{
    struct objects *v = &vm->objects;
    struct pvrdma_cmd_create_cq req = {0};
    uint32_t handle = verbs_place(&v->cq, s);
    struct cq *cq = handle ? cq_read(vm, &req, s) : NULL;
    struct uctx *uctx;

    if (cq) {
        uctx = id_table_get(&v->uctx, req.ctx_handle);
        cq->handle = handle;
        verbs_cq_publish(vm, cq, uctx, &req);
        datapath_cq_load(cq, uctx_uar_page(uctx), s);
    } else if (handle) {
        id_table_release(&v->cq, handle);
    }
}

void cqs_load(struct vm *vm, struct state_in *s)
{
    id_table_load(&vm->objects.cq, s);
    verbs_objects_load(vm, &vm->objects.cq, 4, cq_load, s);
}
