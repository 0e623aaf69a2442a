/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Memory regions and windows in the state stream.
 *
 * Page lists go by value: the guest has freed its own.  Keys are the table's index and
 * generation, but for those that work requests make, whose last byte is saved.  Who has
 * bound a window is saved when it has no key any more, too: its queue pair may invalidate
 * that key once again.  Windows come behind all else, since they refer to it.
 *
 * What is loaded has to be what a guest could have made: the checks are those of the
 * commands, and of the work requests in datapath/keys.c.  That its pages are in the DMA
 * map shows when they are used.
 *
 * Main thread; no work request runs, so no key changes meanwhile.
 */
#include "verbs/verbs_internal.h"

#include "base/coro.h"
#include "guest/pagelist.h"

#define PAGE_MASK (PVRDMA_PAGE_SIZE - 1ull)

enum mr_kind {
    MR_USER,     /* a list of pages */
    MR_DMA,      /* all of the guest's memory, for its kernel */
    MR_FAST,     /* for fast registration */
    MR_WINDOW_1, /* a window of type 1 */
    MR_WINDOW_2B,
};

/* ---- saving ---- */

static enum mr_kind kind_of(const struct mr *mr)
{
    if (mr->window) {
        return mr->window == PVRDMA_EXT_MW_TYPE_1 ? MR_WINDOW_1 : MR_WINDOW_2B;
    }
    return mr->fast ? MR_FAST : mr->dma ? MR_DMA : MR_USER;
}

RECORD(range_record, struct mr, FIELD(access), FIELD(start), FIELD(length))

static void pages_save(const struct mr *mr, struct state_out *s)
{
    state_put_u32(s, mr->npages);
    pagelist_save(mr->page, mr->npages, s);
}

/* @mr: what the table has. */
static void mr_save(const struct mr *mr, struct state_out *s)
{
    enum mr_kind kind = kind_of(mr);

    state_put_u32(s, mr->handle);
    state_put_u32(s, mr->pd->handle);
    state_put_u8(s, (uint8_t)kind);
    if (kind == MR_USER) {
        state_put_record(s, range_record, mr);
        state_put_u32(s, mr->offset);
        pages_save(mr, s);
    } else if (kind == MR_DMA) {
        state_put_u32(s, mr->access);
    } else {
        const struct fast_mr *fast = mr->fast;

        state_put_u32(s, mr->window ? fast->valid->qpn : fast->max_pages);
        state_put_u8(s, (uint8_t)fast->valid->lkey);
        state_put_u8(s, mr == fast->valid);
    }
    if (mr->fast && mr == mr->fast->valid) {
        state_put_record(s, range_record, mr);
        if (kind == MR_FAST) {
            pages_save(mr, s);
        } else {
            state_put_u32(s, mr->base->handle);
        }
    }
}

static void save_all(const struct id_table *t, bool windows, struct state_out *s)
{
    for (uint32_t i = 1; i < id_table_end(t); i++) {
        const struct mr *mr = id_table_get(t, i);

        if (mr && (mr->window != 0) == windows) {
            mr_save(mr, s);
        }
        if (i % 1024 == 0) {
            coro_breathe();
        }
    }
}

void mrs_save(struct vm *vm, struct state_out *s)
{
    const struct id_table *t = &vm->objects.mr;

    id_table_save(t, s);
    state_put_u32(s, t->used);
    save_all(t, false, s);
    save_all(t, true, s);
}

/* ---- loading ---- */

/* How many pages follow; not more than can be in the stream. */
static uint32_t npages_load(struct state_in *s, uint32_t max)
{
    return state_get_count(s, max, sizeof(uint64_t));
}

static bool user_ok(const struct mr *mr, uint32_t npages)
{
    bool zero = mr->access & PVRDMA_ACCESS_ZERO_BASED;
    struct pvrdma_cmd_create_mr like = {.start = zero ? mr->offset : mr->start,
                                        .length = mr->length,
                                        .flags = PVRDMA_EXT_MR_DEEP,
                                        .nchunks = npages};
    uint32_t access = mr->access;

    return mr_check_access(&access) == 0 && access == mr->access &&
           mr_check_user(&like) == 0 && mr->offset == (like.start & PAGE_MASK) &&
           (!zero || mr->start == 0);
}

static struct mr *user_load(struct vm *vm, struct state_in *s)
{
    struct mr head = {0}, *mr;
    uint32_t npages;
    int err;

    state_get_record(s, range_record, &head);
    head.offset = state_get_u32(s);
    npages = npages_load(s, PVRDMA_EXT_MR_MAX_PAGES);
    if (state_failed(s) || !user_ok(&head, npages)) {
        state_fail(s, "invalid region");
        return NULL;
    }
    mr = mr_alloc(vm, npages, &err);
    if (!mr) {
        state_fail(s, "%u pages: %s", npages, g_strerror(err));
        return NULL;
    }
    mr->access = head.access;
    mr->start = head.start;
    mr->length = head.length;
    mr->offset = head.offset;
    pagelist_load(mr->page, npages, s);
    return mr;
}

static struct mr *dma_load(struct vm *vm, const struct pd *pd, struct state_in *s)
{
    static const struct pvrdma_cmd_create_mr empty;
    uint32_t access = state_get_u32(s);
    struct mr *mr;
    int err;

    if (state_failed(s) || mr_check_dma(&empty, pd, access) != 0) {
        state_fail(s, "invalid DMA MR");
        return NULL;
    }
    mr = mr_alloc(vm, 0, &err);
    if (!mr) {
        state_fail(s, "%s", g_strerror(err));
        return NULL;
    }
    mr->dma = true;
    mr->access = access;
    return mr;
}

/* What has its own key, which is the table's. */
static void plain_load(struct vm *vm, uint32_t handle, struct pd *pd, enum mr_kind kind,
                       struct state_in *s)
{
    struct id_table *t = &vm->objects.mr;
    struct mr *mr = kind == MR_DMA ? dma_load(vm, pd, s) : user_load(vm, s);

    if (mr && state_failed(s)) {
        mr_release(vm, mr);
        mr = NULL;
    }
    if (!mr) {
        id_table_release(t, handle);
        return;
    }
    mr->handle = handle;
    mr->lkey = mr->rkey = handle << 8 | t->gen[handle];
    mr->pd = pd;
    pd->refs++;
    id_table_publish(t, handle, mr);
}

/* The list of an MR that was registered by a work request. */
static void fast_pages_load(struct fast_mr *fast, struct state_in *s)
{
    struct mr *mr = fast->valid;
    uint32_t access;
    uint64_t need;

    state_get_record(s, range_record, mr);
    mr->offset = mr->start & PAGE_MASK;
    mr->npages = npages_load(s, fast->max_pages);
    pagelist_load(mr->page, mr->npages, s);
    access = mr->access;
    if (state_failed(s) || mr->length == 0 ||
        mr->length > (uint64_t)mr->npages << PVRDMA_PAGE_SHIFT ||
        mr->length - 1 > UINT64_MAX - mr->start || mr_access_check(&access) != 0 ||
        access != mr->access) {
        state_fail(s, "invalid region");
        return;
    }
    need = (mr->offset + mr->length + PAGE_MASK) >> PVRDMA_PAGE_SHIFT;
    if (need != mr->npages) {
        state_fail(s, "wrong number of pages");
    }
}

/* What a window is bound to; as a work request has checked it. */
static void binding_load(struct objects *v, struct mr *mw, struct state_in *s)
{
    struct mr *base;
    uint32_t handle;
    uint64_t off;

    state_get_record(s, range_record, mw);
    handle = state_get_u32(s);
    base = id_table_get(&v->mr, handle);
    if (state_failed(s) || !base || base->pd != mw->pd || base->dma || base->fast ||
        !(base->access & PVRDMA_ACCESS_MW_BIND) || (mw->access & ~PVRDMA_ACCESS_REMOTE) ||
        (mw->access & (PVRDMA_ACCESS_REMOTE_WRITE | PVRDMA_ACCESS_REMOTE_ATOMIC) &&
         !(base->access & PVRDMA_ACCESS_LOCAL_WRITE))) {
        state_fail(s, "windows cannot be bound to MR %u", handle);
        return;
    }
    off = mw->start - base->start;
    if (mw->start < base->start || mw->length == 0 || off > base->length ||
        mw->length > base->length - off) {
        state_fail(s, "a window is not within MR %u", handle);
        return;
    }
    mw->base = base;
}

/* Its key; and what it stands for, if it is valid.  The table has it then. */
static void key_load(struct objects *v, struct fast_mr *fast, struct state_in *s)
{
    struct mr *mr = fast->valid;
    uint32_t handle = mr->handle;

    mr->lkey = mr->rkey = handle << 8 | state_get_u8(s);
    if (!state_get_bool(s)) {
        if (!state_failed(s)) {
            id_table_publish(&v->mr, handle, fast->idle);
        }
        return;
    }
    if (mr->window) {
        binding_load(v, mr, s);
    } else {
        fast_pages_load(fast, s);
    }
    if (state_failed(s)) {
        return;
    }
    if (mr->base) {
        atomic_fetch_add(&mr->base->windows, 1);
    }
    atomic_store(&fast->free_at, FAST_MR_IN_USE);
    id_table_publish(&v->mr, handle, mr);
}

static void fast_load(struct vm *vm, uint32_t handle, struct pd *pd, enum mr_kind kind,
                      struct state_in *s)
{
    struct objects *v = &vm->objects;
    uint32_t first = state_get_u32(s);
    struct fast_mr *fast = NULL;
    uint8_t window = kind == MR_WINDOW_1    ? PVRDMA_EXT_MW_TYPE_1
                     : kind == MR_WINDOW_2B ? PVRDMA_EXT_MW_TYPE_2B
                                            : 0;
    uint32_t room = window ? 0 : first;
    int err;

    if (!window && (room == 0 || room > PVRDMA_EXT_MAX_FAST_REG || pd->uctx != NULL)) {
        state_fail(s, "invalid room for %u pages", room);
    }
    err = state_failed(s) ? EINVAL : fast_mr_new(vm, room, &fast);
    if (err) {
        state_fail(s, "%u pages: %s", room, g_strerror(err));
        id_table_release(&v->mr, handle);
        return;
    }
    fast_mr_name(fast, handle, pd, window);
    fast->valid->qpn = window ? first : 0;
    key_load(v, fast, s);
    if (state_failed(s)) {
        fast_mr_free(vm, fast);
        id_table_release(&v->mr, handle);
        return;
    }
    pd->refs++;
}

static void mr_load(struct vm *vm, struct state_in *s)
{
    struct objects *v = &vm->objects;
    uint32_t handle = verbs_place(&v->mr, s), pd_handle = state_get_u32(s);
    struct pd *pd = id_table_get(&v->pd, pd_handle);
    uint8_t kind = state_get_u8(s);

    if (!handle) {
        return;
    }
    if (state_failed(s) || !pd || kind > MR_WINDOW_2B) {
        state_fail(s, "MR %u is of PD %u, and of kind %u", handle, pd_handle, kind);
        id_table_release(&v->mr, handle);
    } else if (kind == MR_USER || kind == MR_DMA) {
        plain_load(vm, handle, pd, (enum mr_kind)kind, s);
    } else {
        fast_load(vm, handle, pd, (enum mr_kind)kind, s);
    }
}

void mrs_load(struct vm *vm, struct state_in *s)
{
    id_table_load(&vm->objects.mr, s);
    verbs_objects_load(vm, &vm->objects.mr, 13, mr_load, s);
}
