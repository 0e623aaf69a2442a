/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * User contexts and protection domains in the state stream, and what all objects with
 * rings have in common there.
 *
 * Each kind begins with its table, so that numbers of dead objects do not come back,
 * and how many there are.  References are handles, to what was loaded before; counts
 * of references are made anew.
 *
 * Main thread.
 */
#include "verbs/verbs_internal.h"

#include "base/coro.h"
#include "guest/pagelist.h"

void verbs_ring_save(const struct ring_mem *mem, struct state_out *s)
{
    state_put_u32(s, mem->npages);
    pagelist_save(mem->page, mem->npages, s);
}

bool verbs_ring_load(struct vm *vm, struct ring_mem *mem, size_t own, uint32_t n,
                     struct state_in *s)
{
    uint32_t npages = state_get_count(s, PVRDMA_PDIR_MAX_PAGES, sizeof(mem->page[0]));
    int err = 0;

    if (npages != n || n == 0) {
        state_fail(s, "a ring of %u pages has %u", n, npages);
    } else if ((err = verbs_pages_charge(vm, n, own)) != 0) {
        state_fail(s, "it has more pages than %s",
                   err == ENOMEM ? "the daemon's max-objects has room for"
                                 : "max-mr-pages");
    }
    if (state_failed(s)) {
        return false;
    }
    mem->own = own;
    mem->npages = n;
    mem->page = pagelist_alloc(n * sizeof(mem->page[0]));
    if (mem->page) {
        pagelist_load(mem->page, n, s);
    } else {
        state_fail(s, "there is no memory for it");
    }
    if (state_failed(s)) {
        verbs_ring_fini(vm, mem);
        return false;
    }
    return true;
}

uint32_t verbs_place(struct id_table *t, struct state_in *s)
{
    uint32_t handle = state_get_u32(s);

    if (state_failed(s) || !id_table_place(t, handle)) {
        state_fail(s, "invalid handle %u", handle);
        return 0;
    }
    return handle;
}

void verbs_objects_save(const struct id_table *t,
                        void (*save)(void *object, struct state_out *s),
                        struct state_out *s)
{
    state_put_u32(s, t->used);
    for (uint32_t i = 1; i < id_table_end(t); i++) {
        void *object = id_table_get(t, i);

        if (object) {
            save(object, s);
            coro_breathe();
        }
    }
}

void verbs_objects_load(struct vm *vm, const struct id_table *t, uint32_t least,
                        void (*load)(struct vm *vm, struct state_in *s),
                        struct state_in *s)
{
    uint32_t n = state_get_count(s, t->size - 1, least);

    for (uint32_t i = 0; i < n && !state_failed(s); i++) {
        load(vm, s);
        coro_breathe();
    }
}

/* ---- contexts ---- */

static void uctx_save(void *object, struct state_out *s)
{
    const struct uctx *uctx = object;

    state_put_u32(s, uctx->handle);
    state_put_u32(s, uctx->uar_page);
    state_put_u8(s, uctx->ext.npages != 0);
    if (uctx->ext.npages) {
        verbs_ring_save(&uctx->ext, s);
    }
}

void contexts_save(struct vm *vm, struct state_out *s)
{
    struct objects *v = &vm->objects;

    id_table_save(&v->uctx, s);
    state_put_u8(s, v->kernel_ext.npages != 0);
    if (v->kernel_ext.npages) {
        verbs_ring_save(&v->kernel_ext, s);
    }
    verbs_objects_save(&v->uctx, uctx_save, s);
}

static void uctx_load(struct vm *vm, struct state_in *s)
{
    struct objects *v = &vm->objects;
    uint32_t handle = verbs_place(&v->uctx, s), page = state_get_u32(s);
    struct uctx *uctx;

    if (!handle) {
        return;
    }
    uctx = g_new0(struct uctx, 1);
    if (page == 0 || page >= VERBS_MAX_UAR || v->uar_used[page]) {
        state_fail(s, "context %u has UAR page %u", handle, page);
    } else if (state_get_bool(s)) {
        verbs_ring_load(vm, &uctx->ext, sizeof(*uctx), PVRDMA_EXT_PAGES, s);
    }
    if (state_failed(s)) {
        id_table_release(&v->uctx, handle);
        g_free(uctx);
        return;
    }
    uctx->handle = handle;
    uctx->uar_page = page;
    v->uar_used[page] = 1;
    id_table_publish(&v->uctx, handle, uctx);
}

void contexts_load(struct vm *vm, struct state_in *s)
{
    struct objects *v = &vm->objects;

    id_table_load(&v->uctx, s);
    if (state_get_bool(s)) {
        verbs_ring_load(vm, &v->kernel_ext, 0, PVRDMA_EXT_PAGES, s);
    }
    verbs_objects_load(vm, &v->uctx, 9, uctx_load, s);
    if (!state_failed(s)) {
        datapath_ext_load(vm);
    }
}

/* ---- protection domains ---- */

static void pd_save(void *object, struct state_out *s)
{
    const struct pd *pd = object;

    state_put_u32(s, pd->handle);
    state_put_u32(s, pd->uctx ? pd->uctx->handle : 0);
}

void pds_save(struct vm *vm, struct state_out *s)
{
    id_table_save(&vm->objects.pd, s);
    verbs_objects_save(&vm->objects.pd, pd_save, s);
}

static void pd_load(struct vm *vm, struct state_in *s)
{
    struct objects *v = &vm->objects;
    uint32_t handle = verbs_place(&v->pd, s), ctx = state_get_u32(s);
    struct uctx *uctx = id_table_get(&v->uctx, ctx);
    struct pd *pd;

    if (!handle) {
        return;
    }
    if (state_failed(s) || (ctx && !uctx)) {
        state_fail(s, "PD %u is of context %u", handle, ctx);
        id_table_release(&v->pd, handle);
        return;
    }
    pd = g_new0(struct pd, 1);
    pd->handle = handle;
    pd->uctx = uctx;
    if (uctx) {
        uctx->refs++;
    }
    id_table_publish(&v->pd, handle, pd);
}

void pds_load(struct vm *vm, struct state_in *s)
{
    id_table_load(&vm->objects.pd, s);
    verbs_objects_load(vm, &vm->objects.pd, 8, pd_load, s);
}
