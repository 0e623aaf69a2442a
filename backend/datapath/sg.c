/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Scatter/gather lists over memory regions, and the one copy.
 *
 * A list is walked by a cursor that survives between slices; keys, bounds and
 * rights are checked again whenever the walk enters an SGE or a new slice, so
 * nothing here trusts what an earlier slice saw.  Pages that follow each other
 * in guest-physical memory are joined, so that a copy is as few memcpy calls as
 * the memory allows.
 *
 * Threads: any worker; results live until its next quiescent point.
 */
#include "engine.h"

/* Contiguous memory at the cursor. */
struct sg_run {
    uint8_t *hva;
    uint64_t gpa;
    uint64_t len;
};

uint64_t sg_length(const struct pvrdma_sge *sge, uint32_t nsge)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < nsge; i++) {
        sum += sge[i].length;
    }
    return sum;
}

/* The MR behind @sge if it grants the list's access to all of the SGE. */
static struct mr *sge_mr(const struct sg_list *l, const struct pvrdma_sge *sge)
{
    struct mr *mr = verbs_mr_by_key(&l->vm->verbs, sge->lkey);
    uint64_t off;

    if (!mr || mr->pd != l->pd || (mr->access & l->access) != l->access) {
        return NULL;
    }
    if (mr->dma) {
        return mr;
    }
    if (sge->addr < mr->start) {
        return NULL;
    }
    off = sge->addr - mr->start;
    if (off > mr->length || sge->length > mr->length - off) {
        return NULL;
    }
    return mr;
}

bool sg_check(const struct sg_list *l)
{
    for (uint32_t i = 0; i < l->nsge; i++) {
        if (l->sge[i].length && !sge_mr(l, &l->sge[i])) {
            return false;
        }
    }
    return true;
}

/* Memory of @mr at guest address @addr: at most @want bytes, contiguous. */
static bool mr_run(struct vm *vm, const struct mr *mr, uint64_t addr, uint64_t want,
                   bool write, struct sg_run *run)
{
    const struct guest_map *map =
        atomic_load_explicit(&vm->mem.map, memory_order_acquire);
    const struct guest_region *r;
    uint64_t off, page, limit;

    if (mr->dma) {
        run->gpa = addr;
        run->len = want;
    } else {
        off = addr - mr->start + mr->offset;
        page = off >> PVRDMA_PAGE_SHIFT;
        off &= PVRDMA_PAGE_SIZE - 1;
        run->gpa = mr->page[page] + off;
        run->len = PVRDMA_PAGE_SIZE - off;
        while (run->len < want &&
               mr->page[page + 1] == mr->page[page] + PVRDMA_PAGE_SIZE) {
            run->len += PVRDMA_PAGE_SIZE;
            page++;
        }
        run->len = MIN(run->len, want);
    }

    r = guest_map_find(map, run->gpa);
    if (!r || !r->hva || (write && !r->writable)) {
        return false;
    }
    limit = r->size - (run->gpa - r->gpa);
    run->len = MIN(run->len, limit);
    run->hva = r->hva + (run->gpa - r->gpa);
    return true;
}

/* The next run of at most @want bytes (> 0).  The cursor does not move. */
static enum sg_result sg_next(struct sg_list *l, uint64_t want, struct sg_run *run)
{
    const struct pvrdma_sge *sge;
    struct mr *mr;

    if (l->raw) {
        /* The caller never asks for more than the message has. */
        run->hva = (uint8_t *)(uintptr_t)l->raw + l->cur.offset;
        run->len = want;
        run->gpa = 0;
        return SG_OK;
    }
    while (l->cur.sge < l->nsge && l->cur.offset >= l->sge[l->cur.sge].length) {
        l->cur.sge++;
        l->cur.offset = 0;
    }
    if (l->cur.sge >= l->nsge) {
        return SG_SRC_KEY; /* list shorter than the message: checked before */
    }
    sge = &l->sge[l->cur.sge];
    mr = sge_mr(l, sge);
    if (!mr) {
        return SG_SRC_KEY;
    }
    want = MIN(want, sge->length - l->cur.offset);
    if (!mr_run(l->vm, mr, sge->addr + l->cur.offset, want, l->write, run)) {
        return SG_SRC_MEM;
    }
    return SG_OK;
}

static enum sg_result as_dst(enum sg_result r)
{
    return r == SG_SRC_KEY ? SG_DST_KEY : SG_DST_MEM;
}

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define GUEST_COPY_BY_HAND
#endif
#elif defined(__SANITIZE_THREAD__)
#define GUEST_COPY_BY_HAND
#endif

#ifdef GUEST_COPY_BY_HAND
/*
 * Guests may race with themselves in their own memory as on any RDMA device;
 * the thread sanitizer must not blame the daemon for it.
 */
__attribute__((no_sanitize("thread"))) static void
guest_copy(volatile uint8_t *dst, const volatile uint8_t *src, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        dst[i] = src[i];
    }
}
#else
static inline void guest_copy(uint8_t *dst, const uint8_t *src, uint64_t n)
{
    memmove(dst, src, n); /* a guest may send a buffer onto itself */
}
#endif

enum sg_result sg_copy(struct sg_list *dst, struct sg_list *src, uint64_t n)
{
    while (n) {
        struct sg_run s, d;
        enum sg_result r;
        uint64_t len;

        r = sg_next(src, n, &s);
        if (r != SG_OK) {
            return r;
        }
        r = sg_next(dst, s.len, &d);
        if (r != SG_OK) {
            return as_dst(r);
        }
        len = d.len;
        guest_copy(d.hva, s.hva, len);
        guest_mark_dirty(&dst->vm->mem, d.gpa, len);
        src->cur.offset += (uint32_t)len;
        dst->cur.offset += (uint32_t)len;
        n -= len;
    }
    return SG_OK;
}

enum sg_result sg_fill(struct sg_list *l, const void *data, uint64_t n)
{
    const uint8_t *p = data;

    while (n) {
        struct sg_run d;
        enum sg_result r = sg_next(l, n, &d);

        if (r != SG_OK) {
            return as_dst(r);
        }
        guest_copy(d.hva, (uint8_t *)(uintptr_t)p, d.len);
        guest_mark_dirty(&l->vm->mem, d.gpa, d.len);
        l->cur.offset += (uint32_t)d.len;
        p += d.len;
        n -= d.len;
    }
    return SG_OK;
}

uint64_t *sg_word(const struct sg_list *l, uint64_t *gpa, enum sg_result *why)
{
    struct sg_list tmp = *l;
    struct sg_run run;
    enum sg_result r = sg_next(&tmp, 8, &run);

    if (r != SG_OK) {
        *why = as_dst(r);
        return NULL;
    }
    /* The guest address is aligned, but its pages could be mapped oddly. */
    if (run.len < 8 || ((uintptr_t)run.hva & 7)) {
        *why = SG_DST_MEM;
        return NULL;
    }
    *gpa = run.gpa;
    return (uint64_t *)(void *)run.hva;
}
