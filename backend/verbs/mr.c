/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Memory regions.
 *
 * A user MR is a list of guest-physical pages, copied once at registration;
 * byte 0 is the guest-virtual address `start`.  A DMA MR (guest kernel only)
 * has no list: addresses are guest-physical and the whole DMA map is in reach,
 * so it never grants remote rights.  One for fast registration has room for a list;
 * work requests fill it and make its keys (datapath/keys.c).
 *
 * The page list is only a list of numbers.  The DMA map may lose a page later,
 * so the data path looks every page up again when it copies; the check here
 * reports a mistake early.  Workers find an MR by key; it is freed after a
 * quiescence.
 */
#include "verbs/verbs_internal.h"

#include <errno.h>

#include "coro.h"
#include "guest/pagedir.h"
#include "guest/pagelist.h"

#define PAGE_MASK (PVRDMA_PAGE_SIZE - 1ull)

/*
 * How many pages the range needs; EINVAL if it is empty, too long, wraps, or
 * the guest says another number.  (CVE-2021-3582: lengths that did not match
 * the pages behind them.)
 */
static int user_mr_check(const struct pvrdma_cmd_create_mr *req)
{
    uint64_t offset = req->start & PAGE_MASK, max = PVRDMA_PDIR_MAX_PAGES;
    uint64_t npages;

    if (req->flags & PVRDMA_EXT_MR_DEEP) {
        max = PVRDMA_EXT_MR_MAX_PAGES;
    }
    if (req->length == 0 || req->length > max << PVRDMA_PAGE_SHIFT ||
        req->length - 1 > UINT64_MAX - req->start) {
        return EINVAL;
    }
    npages = (offset + req->length + PAGE_MASK) >> PVRDMA_PAGE_SHIFT;
    if (npages > max || npages != req->nchunks) {
        return EINVAL;
    }
    return 0;
}

/* A DMA MR reaches all of guest RAM: only the kernel's, only locally. */
static int dma_mr_check(const struct pvrdma_cmd_create_mr *req, const struct pd *pd,
                        uint32_t access)
{
    if (pd->uctx || (access & ~PVRDMA_ACCESS_LOCAL_WRITE)) {
        return EPERM;
    }
    if (req->start || req->length || req->nchunks) {
        return EINVAL;
    }
    return 0;
}

static size_t size_of(uint32_t npages)
{
    struct mr *mr;

    return sizeof(*mr) + (size_t)npages * sizeof(mr->page[0]);
}

static void release(struct vm *vm, struct mr *mr)
{
    verbs_pages_refund(vm, mr->npages);
    pagelist_free(mr, size_of(mr->npages));
}

/*
 * Lists of more than 1 GiB are read one after another: side by side they would all end
 * late.  Main thread.
 */
static struct coro_mutex large_list;

static int read_pages(struct vm *vm, const struct pvrdma_cmd_create_mr *req,
                      uint64_t *page)
{
    struct guest_mem *mem = &vm->guest.mem;
    uint32_t n = req->nchunks;
    bool large = n > PVRDMA_PDIR_MAX_PAGES;
    int err;

    if (large) {
        coro_lock(&large_list);
    }
    err = req->flags & PVRDMA_EXT_MR_DEEP ? pagedir_read_deep(mem, req->pdir_dma, n, page)
                                          : pagedir_read(mem, req->pdir_dma, n, page);
    err = err ? err : pagedir_check(mem, page, n, false);
    if (large) {
        coro_unlock(&large_list);
    }
    return err;
}

/* An MR with its page list, not published.  0 or an errno. */
static int mr_new(struct vm *vm, const struct pvrdma_cmd_create_mr *req, struct mr **out)
{
    uint32_t n = req->nchunks; /* checked: bounded, 0 for a DMA MR */
    struct mr *mr;
    int err = verbs_pages_charge(vm, n);

    if (err) {
        return err;
    }
    mr = pagelist_alloc(size_of(n));
    if (!mr) {
        verbs_pages_refund(vm, n);
        return ENOMEM;
    }
    memset(mr, 0, sizeof(*mr));
    mr->npages = n;
    err = n ? read_pages(vm, req, mr->page) : 0;
    if (err) {
        release(vm, mr);
        return err;
    }
    *out = mr;
    return 0;
}

static void fast_mr_free(struct vm *vm, struct fast_mr *fast)
{
    verbs_pages_refund(vm, fast->max_pages);
    pagelist_free(fast->valid, size_of(fast->max_pages));
    g_free(fast->idle);
    g_free(fast);
}

/* All that its work requests will need; @n pages.  0 or an errno. */
static int fast_mr_new(struct vm *vm, uint32_t n, struct fast_mr **out)
{
    struct fast_mr *fast;
    int err = verbs_pages_charge(vm, n);

    if (err) {
        return err;
    }
    fast = g_try_new0(struct fast_mr, 1);
    if (!fast) {
        verbs_pages_refund(vm, n);
        return ENOMEM;
    }
    fast->max_pages = n;
    fast->idle = g_try_new0(struct mr, 1);
    fast->valid = pagelist_alloc(size_of(n));
    if (!fast->idle || !fast->valid) {
        fast_mr_free(vm, fast);
        return ENOMEM;
    }
    memset(fast->valid, 0, size_of(n));
    *out = fast;
    return 0;
}

/*
 * An MR that work requests of the guest's kernel give its pages and key.  It begins
 * without: what the response says is where its keys begin.
 */
static int create_fast_mr(struct vm *vm, struct pd *pd,
                          const struct pvrdma_cmd_create_mr *req,
                          struct pvrdma_resp_create_mr *resp)
{
    struct objects *v = &vm->objects;
    struct fast_mr *fast;
    uint32_t handle;
    int err;

    if (pd->uctx) {
        return EPERM;
    }
    if (req->nchunks == 0 || req->nchunks > PVRDMA_EXT_MAX_FAST_REG || req->start ||
        req->length || req->access_flags) {
        return EINVAL;
    }
    err = fast_mr_new(vm, req->nchunks, &fast);
    if (err) {
        return err;
    }
    handle = id_table_reserve(&v->mr);
    if (!handle) {
        fast_mr_free(vm, fast);
        return ENOSPC;
    }
    fast->idle->handle = fast->valid->handle = handle;
    fast->idle->pd = fast->valid->pd = pd;
    fast->idle->fast = fast->valid->fast = fast;
    fast->valid->lkey = fast->valid->rkey = handle << 8 | v->mr.gen[handle];
    pd->refs++;
    resp->mr_handle = handle;
    resp->lkey = resp->rkey = fast->valid->lkey;
    /* From here on it is the work requests', also of a guest that does not wait. */
    id_table_publish(&v->mr, handle, fast->idle);
    return 0;
}

int verbs_create_mr(struct vm *vm, const struct pvrdma_cmd_create_mr *req,
                    struct pvrdma_resp_create_mr *resp)
{
    struct objects *v = &vm->objects;
    struct pd *pd = id_table_get(&v->pd, req->pd_handle);
    bool dma = req->flags == PVRDMA_MR_FLAG_DMA;
    uint32_t access = req->access_flags, handle;
    struct mr *mr;
    int err;

    if (!pd) {
        return ENOENT;
    }
    if (req->flags == PVRDMA_MR_FLAG_FRMR) {
        return create_fast_mr(vm, pd, req, resp);
    }
    if (!dma && req->flags & ~PVRDMA_EXT_MR_DEEP) {
        return ENOTSUP;
    }
    err = mr_access_check(&access);
    if (!err) {
        err = dma ? dma_mr_check(req, pd, access) : user_mr_check(req);
    }
    if (!err) {
        err = mr_new(vm, req, &mr);
    }
    if (err) {
        return err;
    }

    handle = id_table_reserve(&v->mr);
    if (!handle) {
        release(vm, mr);
        return ENOSPC;
    }
    mr->handle = handle;
    mr->lkey = mr->rkey = handle << 8 | v->mr.gen[handle];
    mr->pd = pd;
    mr->dma = dma;
    mr->access = access;
    mr->start = req->start;
    mr->length = req->length;
    mr->offset = req->start & PAGE_MASK;
    pd->refs++;
    id_table_publish(&v->mr, handle, mr);

    resp->mr_handle = handle;
    resp->lkey = mr->lkey;
    resp->rkey = mr->rkey;
    return 0;
}

void mr_unpublish(struct vm *vm, struct mr *mr)
{
    struct id_table *t = &vm->objects.mr;

    if (mr->fast) { /* its next occupant must not have the last key */
        t->gen[mr->handle] = (uint8_t)mr->fast->valid->lkey;
    }
    id_table_release(t, mr->handle);
}

void mr_free(struct vm *vm, struct mr *mr)
{
    mr->pd->refs--;
    if (mr->fast) {
        fast_mr_free(vm, mr->fast);
    } else {
        release(vm, mr);
    }
}

int verbs_destroy_mr(struct vm *vm, uint32_t handle)
{
    struct mr *mr = id_table_get(&vm->objects.mr, handle);

    if (!mr) {
        return ENOENT;
    }
    vm_token_take(vm); /* no work request puts it back */
    mr_unpublish(vm, mr);
    vm_token_release(vm);
    grace_wait();
    mr_free(vm, mr);
    return 0;
}
