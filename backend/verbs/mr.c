/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Memory regions.
 *
 * A user MR is a list of guest-physical pages, copied once at registration;
 * byte 0 is the guest-virtual address `start`.  A DMA MR (guest kernel only)
 * has no list: addresses are guest-physical and the whole DMA map is in reach,
 * so it never grants remote rights.  One for fast registration has room for a list;
 * work requests fill it and make its keys (datapath/keys.c).  A memory window is one
 * that has no list, but an MR; that MR stays, and what it is, while it has windows.
 *
 * To change an MR (REREG_MR) is to put another with the same key in its place.
 *
 * The page list is only a list of numbers.  The DMA map may lose a page later,
 * so the data path looks every page up again when it copies; the check here
 * reports a mistake early.  Workers find an MR by key; it is freed after a
 * quiescence.
 */
#include "verbs/verbs_internal.h"

#include <errno.h>

#include "base/coro.h"
#include "guest/pagedir.h"
#include "guest/pagelist.h"

#define PAGE_MASK (PVRDMA_PAGE_SIZE - 1ull)

/* Of a list that are copied in one go. */
#define COPY_PAGES 65536u

/*
 * How many pages the range needs; EINVAL if it is empty, too long, wraps, or
 * the guest says another number.  (CVE-2021-3582: lengths that did not match
 * the pages behind them.)
 */
int mr_check_user(const struct pvrdma_cmd_create_mr *req)
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

/* Rights that an MR can have; hints are stripped.  0, EINVAL or ENOTSUP. */
int mr_check_access(uint32_t *access)
{
    uint32_t own = *access & (PVRDMA_ACCESS_MW_BIND | PVRDMA_ACCESS_ZERO_BASED);
    int err;

    *access &= ~own;
    err = mr_access_check(access);
    *access |= own;
    return err;
}

/* A DMA MR reaches all of guest RAM: only the kernel's, only locally. */
int mr_check_dma(const struct pvrdma_cmd_create_mr *req, const struct pd *pd,
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

static size_t mr_bytes(uint32_t npages)
{
    struct mr *mr;

    return sizeof(*mr) + (size_t)npages * sizeof(mr->page[0]);
}

void mr_release(struct vm *vm, struct mr *mr)
{
    verbs_pages_refund(vm, mr->npages, sizeof(*mr));
    pagelist_free(mr, mr_bytes(mr->npages));
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

    if (!(req->flags & PVRDMA_EXT_MR_DEEP)) {
        return verbs_pages_read(vm, req->pdir_dma, n, false, page);
    }
    if (large) {
        coro_lock(&large_list);
    }
    err = pagedir_read_deep(mem, req->pdir_dma, n, page);
    err = err ? err : pagedir_check(mem, page, n, false);
    if (large) {
        coro_unlock(&large_list);
    }
    return err;
}

struct mr *mr_alloc(struct vm *vm, uint32_t n, int *err)
{
    struct mr *mr;

    *err = verbs_pages_charge(vm, n, sizeof(*mr));
    if (*err) {
        return NULL;
    }
    mr = pagelist_alloc(mr_bytes(n));
    if (!mr) {
        verbs_pages_refund(vm, n, sizeof(*mr));
        *err = ENOMEM;
        return NULL;
    }
    memset(mr, 0, sizeof(*mr));
    mr->npages = n;
    return mr;
}

/* An MR with its page list, not published.  0 or an errno. */
static int mr_new(struct vm *vm, const struct pvrdma_cmd_create_mr *req, struct mr **out)
{
    uint32_t n = req->nchunks; /* checked: bounded, 0 for a DMA MR */
    int err;
    struct mr *mr = mr_alloc(vm, n, &err);

    if (!mr) {
        return err;
    }
    err = n ? read_pages(vm, req, mr->page) : 0;
    if (err) {
        mr_release(vm, mr);
        return err;
    }
    *out = mr;
    return 0;
}

/* Zero-based: byte 0 has the address 0, not @start. */
static void set_range(struct mr *mr, uint64_t start, uint64_t length)
{
    mr->start = mr->access & PVRDMA_ACCESS_ZERO_BASED ? 0 : start;
    mr->length = length;
    mr->offset = start & PAGE_MASK;
}

/* Of one without its pages. */
#define FAST_BYTES (sizeof(struct fast_mr) + 2 * sizeof(struct mr))

void fast_mr_free(struct vm *vm, struct fast_mr *fast)
{
    verbs_pages_refund(vm, fast->max_pages, FAST_BYTES);
    pagelist_free(fast->valid, mr_bytes(fast->max_pages));
    g_free(fast->idle);
    g_free(fast);
}

/* All that its work requests will need; @n pages.  0 or an errno. */
int fast_mr_new(struct vm *vm, uint32_t n, struct fast_mr **out)
{
    struct fast_mr *fast;
    int err = verbs_pages_charge(vm, n, FAST_BYTES);

    if (err) {
        return err;
    }
    fast = g_try_new0(struct fast_mr, 1);
    if (!fast) {
        verbs_pages_refund(vm, n, FAST_BYTES);
        return ENOMEM;
    }
    fast->max_pages = n;
    fast->idle = g_try_new0(struct mr, 1);
    fast->valid = pagelist_alloc(mr_bytes(n));
    if (!fast->idle || !fast->valid) {
        fast_mr_free(vm, fast);
        return ENOMEM;
    }
    memset(fast->valid, 0, mr_bytes(n));
    *out = fast;
    return 0;
}

void fast_mr_name(struct fast_mr *fast, uint32_t handle, struct pd *pd, uint8_t window)
{
    fast->idle->handle = fast->valid->handle = handle;
    fast->idle->pd = fast->valid->pd = pd;
    fast->idle->fast = fast->valid->fast = fast;
    fast->idle->window = fast->valid->window = window;
}

/*
 * What work requests give its key, and @npages or a base.  It begins without: what the
 * response says is where its keys begin.
 */
static int create_keyless(struct vm *vm, struct pd *pd, uint32_t npages, uint8_t window,
                          struct pvrdma_resp_create_mr *resp)
{
    struct objects *v = &vm->objects;
    struct fast_mr *fast;
    uint32_t handle;
    int err = fast_mr_new(vm, npages, &fast);

    if (err) {
        return err;
    }
    handle = id_table_reserve(&v->mr);
    if (!handle) {
        fast_mr_free(vm, fast);
        return ENOSPC;
    }
    fast_mr_name(fast, handle, pd, window);
    fast->valid->lkey = fast->valid->rkey = handle << 8 | v->mr.gen[handle];
    pd->refs++;
    resp->mr_handle = handle;
    resp->lkey = window ? 0 : fast->valid->lkey;
    resp->rkey = fast->valid->rkey;
    /* From here on it is the work requests', also of a guest that does not wait. */
    id_table_publish(&v->mr, handle, fast->idle);
    return 0;
}

/* For fast registration: an MR of the guest's kernel. */
static int create_fast_mr(struct vm *vm, struct pd *pd,
                          const struct pvrdma_cmd_create_mr *req,
                          struct pvrdma_resp_create_mr *resp)
{
    if (pd->uctx) {
        return EPERM;
    }
    if (req->nchunks == 0 || req->nchunks > PVRDMA_EXT_MAX_FAST_REG || req->start ||
        req->length || req->access_flags) {
        return EINVAL;
    }
    return create_keyless(vm, pd, req->nchunks, 0, resp);
}

int verbs_create_mw(struct vm *vm, const union verbs_req *cmd, union verbs_resp *resp)
{
    const struct pvrdma_ext_cmd_create_mw *req = &cmd->create_mw;
    struct pd *pd = id_table_get(&vm->objects.pd, req->pd_handle);

    if (!pd) {
        return ENOENT;
    }
    if (req->type != PVRDMA_EXT_MW_TYPE_1 && req->type != PVRDMA_EXT_MW_TYPE_2B) {
        return EINVAL;
    }
    return create_keyless(vm, pd, 0, (uint8_t)req->type, &resp->abi.create_mr);
}

int verbs_create_mr(struct vm *vm, const union verbs_req *cmd, union verbs_resp *out)
{
    const struct pvrdma_cmd_create_mr *req = &cmd->abi.create_mr;
    struct pvrdma_resp_create_mr *resp = &out->abi.create_mr;
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
    err = mr_check_access(&access);
    if (!err) {
        err = dma ? mr_check_dma(req, pd, access) : mr_check_user(req);
    }
    if (!err) {
        err = mr_new(vm, req, &mr);
    }
    if (err) {
        return err;
    }

    handle = id_table_reserve(&v->mr);
    if (!handle) {
        mr_release(vm, mr);
        return ENOSPC;
    }
    mr->handle = handle;
    mr->lkey = mr->rkey = handle << 8 | v->mr.gen[handle];
    mr->pd = pd;
    mr->dma = dma;
    mr->access = access;
    set_range(mr, req->start, req->length);
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
        if (mr != mr->fast->idle) {
            mr_take_key(&vm->objects, mr); /* or a peer does at the same time */
        }
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
        mr_release(vm, mr);
    }
}

static int mr_destroy(struct vm *vm, uint32_t handle, bool window)
{
    struct mr *mr = id_table_get(&vm->objects.mr, handle);

    if (!mr || (mr->window != 0) != window) {
        return ENOENT;
    }
    vm_token_take(vm); /* no work request puts it back, or binds a window to it */
    if (atomic_load(&mr->windows)) {
        vm_token_release(vm);
        return EBUSY;
    }
    mr_unpublish(vm, id_table_get(&vm->objects.mr, handle));
    vm_token_release(vm);
    grace_wait();
    mr_free(vm, mr);
    return 0;
}

int verbs_destroy_mr(struct vm *vm, const union verbs_req *req, union verbs_resp *resp)
{
    return mr_destroy(vm, req->abi.handle.handle, false);
}

int verbs_destroy_mw(struct vm *vm, const union verbs_req *req, union verbs_resp *resp)
{
    return mr_destroy(vm, req->abi.handle.handle, true);
}

/* ---- change ---- */

/* A new MR with the pages of @req, or with those of @old, which accounts for them. */
static int rereg_pages(struct vm *vm, const struct pvrdma_ext_cmd_rereg_mr *req,
                       struct mr *old, struct mr **out)
{
    struct pvrdma_cmd_create_mr create = {.start = req->start,
                                          .length = req->length,
                                          .pdir_dma = req->pdir_dma,
                                          .flags = req->mr_flags,
                                          .nchunks = req->nchunks};
    int err;

    if (req->flags & PVRDMA_EXT_REREG_TRANS) {
        if (req->mr_flags & ~PVRDMA_EXT_MR_DEEP) {
            return EINVAL;
        }
        err = mr_check_user(&create);
        return err ? err : mr_new(vm, &create, out);
    }
    *out = pagelist_alloc(mr_bytes(old->npages));
    if (!*out) {
        return ENOMEM;
    }
    memcpy(*out, old, sizeof(*old));
    (*out)->windows = 0;
    for (uint32_t i = 0, n; i < old->npages; i += n) {
        n = MIN(old->npages - i, COPY_PAGES);
        memcpy((*out)->page + i, old->page + i, n * sizeof(old->page[0]));
        coro_breathe();
    }
    return 0;
}

/* What the MR's PD and rights are to be; 0 or an errno. */
static int rereg_check(struct vm *vm, const struct pvrdma_ext_cmd_rereg_mr *req,
                       const struct mr *old, struct pd **pd, uint32_t *access)
{
    const uint32_t all =
        PVRDMA_EXT_REREG_TRANS | PVRDMA_EXT_REREG_PD | PVRDMA_EXT_REREG_ACCESS;

    if (!req->flags || (req->flags & ~all) || old->dma || old->fast) {
        return EINVAL;
    }
    *pd = old->pd;
    if (req->flags & PVRDMA_EXT_REREG_PD) {
        *pd = id_table_get(&vm->objects.pd, req->pd_handle);
        if (!*pd) {
            return ENOENT;
        }
        if ((*pd)->uctx != old->pd->uctx) {
            return EPERM;
        }
    }
    *access = old->access;
    if (req->flags & PVRDMA_EXT_REREG_ACCESS) {
        *access = req->access_flags;
        /* Without a range it is not known where it would begin otherwise. */
        if (!(req->flags & PVRDMA_EXT_REREG_TRANS) &&
            ((*access ^ old->access) & PVRDMA_ACCESS_ZERO_BASED)) {
            return EINVAL;
        }
    }
    return mr_check_access(access);
}

static void rereg_free(struct vm *vm, struct mr *mr, bool own_pages)
{
    if (own_pages) {
        mr_release(vm, mr);
    } else {
        pagelist_free(mr, mr_bytes(mr->npages));
    }
}

int verbs_rereg_mr(struct vm *vm, const union verbs_req *cmd, union verbs_resp *out)
{
    const struct pvrdma_ext_cmd_rereg_mr *req = &cmd->rereg_mr;
    struct pvrdma_resp_create_mr *resp = &out->abi.create_mr;
    struct mr *old = id_table_get(&vm->objects.mr, req->mr_handle), *mr;
    bool trans = req->flags & PVRDMA_EXT_REREG_TRANS, busy;
    uint32_t access;
    struct pd *pd;
    int err;

    if (!old) {
        return ENOENT;
    }
    err = rereg_check(vm, req, old, &pd, &access);
    err = err ? err : rereg_pages(vm, req, old, &mr);
    if (err) {
        return err;
    }
    mr->handle = old->handle;
    mr->lkey = mr->rkey = old->lkey;
    mr->pd = pd;
    mr->access = access;
    if (trans) {
        set_range(mr, req->start, req->length);
    }
    vm_token_take(vm); /* no window is bound to it meanwhile */
    busy = atomic_load(&old->windows) != 0;
    if (!busy) {
        id_table_publish(&vm->objects.mr, mr->handle, mr);
    }
    vm_token_release(vm);
    if (busy) {
        rereg_free(vm, mr, trans);
        return EBUSY;
    }
    pd->refs++;
    old->pd->refs--;
    grace_wait();
    rereg_free(vm, old, trans);
    resp->mr_handle = mr->handle;
    resp->lkey = resp->rkey = mr->lkey;
    return 0;
}
