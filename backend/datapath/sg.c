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
 * Where a page is gone zeros are copied (guest/sigbus.c).  So the last byte of each run,
 * for which programs poll, is stored when it is known that there were none, and who
 * called hears of it.
 *
 * Threads: any worker; results live until its next quiescent point.
 */
#include "engine.h"

/* Of the page that comes next; more costs more than it brings. */
#define PREFETCH_BYTES 512u

uint64_t sg_length(const struct pvrdma_sge *sge, uint32_t nsge)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < nsge; i++) {
        sum += sge[i].length;
    }
    return sum;
}

uint32_t sg_reach(const struct pvrdma_sge *sge, uint32_t nsge, uint64_t length)
{
    uint32_t n = 0;

    while (length && n < nsge) {
        length -= MIN(length, sge[n].length);
        n++;
    }
    return n;
}

/* What is bound by @mw, if it is a key for peers that came to the right queue pair. */
SELDOM static struct mr *window_base(const struct sg_list *l, const struct mr *mw)
{
    if (!l->at || (mw->window == PVRDMA_EXT_MW_TYPE_2B && mw->qpn != l->at->qpn)) {
        return NULL;
    }
    return mw->base;
}

/* The MR behind @sge if it, or a window of it, grants the list's access to all of that.
 */
static struct mr *sge_mr(const struct sg_list *l, const struct pvrdma_sge *sge)
{
    struct mr *mr = objects_mr_by_key(&l->vm->objects, sge->lkey);
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
    return G_UNLIKELY(mr->window) ? window_base(l, mr) : mr;
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

/*
 * A walk along a list, for one call: no quiescent point comes within it, so the
 * map, the region and the MR it found stay what they are.
 */
struct sg_walk {
    struct sg_list *l;
    const struct guest_map *map;
    const struct guest_region *r; /* the last one */
    const struct mr *mr;          /* of the SGE at the cursor; NULL: look it up */
    /* What is left of the run at the cursor: contiguous memory. */
    uint8_t *hva;
    uint64_t gpa, len;
};

static struct sg_walk walk_start(struct sg_list *l)
{
    return (struct sg_walk){
        .l = l, .map = atomic_load_explicit(&l->vm->guest.mem.map, memory_order_acquire)};
}

/* Host address of @gpa; NULL if the list must not touch it. */
static uint8_t *walk_ptr(struct sg_walk *w, uint64_t gpa)
{
    const struct guest_region *r = w->r;

    if (!r || gpa - r->gpa >= r->size) {
        r = guest_map_find(w->map, gpa);
        if (!r || !r->hva || (w->l->write && !r->writable)) {
            return NULL;
        }
        w->r = r;
    }
    return r->hva + (gpa - r->gpa);
}

/*
 * The page that follows in the MR lies elsewhere: have its address translated
 * and its first lines on their way while this run is copied.
 */
static void walk_prefetch(struct sg_walk *w, uint64_t gpa)
{
    const uint8_t *p = walk_ptr(w, gpa);

    for (unsigned i = 0; p && i < PREFETCH_BYTES; i += 64) {
        __builtin_prefetch(p + i);
    }
}

/* The run at guest address @addr of w->mr: at most @want bytes (> 0). */
static bool walk_mr(struct sg_walk *w, uint64_t addr, uint64_t want)
{
    const struct mr *mr = w->mr;
    uint64_t off, page, next = 0;
    bool more = false;

    if (mr->dma) {
        w->gpa = addr;
        w->len = want;
    } else {
        off = addr - mr->start + mr->offset;
        page = off >> PVRDMA_PAGE_SHIFT;
        off &= PVRDMA_PAGE_SIZE - 1;
        w->gpa = mr->page[page] + off;
        w->len = PVRDMA_PAGE_SIZE - off;
        while (w->len < want && mr->page[page + 1] == mr->page[page] + PVRDMA_PAGE_SIZE) {
            w->len += PVRDMA_PAGE_SIZE;
            page++;
        }
        more = w->len < want;
        next = more ? mr->page[page + 1] : 0;
        w->len = MIN(w->len, want);
    }
    w->hva = walk_ptr(w, w->gpa);
    if (!w->hva) {
        return false;
    }
    w->len = MIN(w->len, w->r->size - (w->gpa - w->r->gpa));
    if (more) {
        walk_prefetch(w, next);
    }
    return true;
}

/* Make w->len > 0; at most @want bytes (> 0) matter.  The cursor does not move. */
static enum sg_result walk_run(struct sg_walk *w, uint64_t want)
{
    struct sg_list *l = w->l;
    const struct pvrdma_sge *sge;

    if (w->len) {
        return SG_OK;
    }
    if (l->raw) {
        /* The caller never asks for more than the message has. */
        w->hva = (uint8_t *)(uintptr_t)l->raw + l->cur.offset;
        w->len = want;
        return SG_OK;
    }
    while (l->cur.sge < l->nsge && l->cur.offset >= l->sge[l->cur.sge].length) {
        l->cur.sge++;
        l->cur.offset = 0;
        w->mr = NULL;
    }
    if (l->cur.sge >= l->nsge) {
        return SG_SRC_KEY; /* list shorter than the message: checked before */
    }
    sge = &l->sge[l->cur.sge];
    if (!w->mr) {
        w->mr = sge_mr(l, sge);
    }
    if (!w->mr) {
        return SG_SRC_KEY;
    }
    want = MIN(want, sge->length - l->cur.offset);
    return walk_mr(w, sge->addr + l->cur.offset, want) ? SG_OK : SG_SRC_MEM;
}

static void walk_advance(struct sg_walk *w, uint64_t n)
{
    w->l->cur.offset += (uint32_t)n;
    w->hva += n;
    w->gpa += n;
    w->len -= n;
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

/* The compiler does not move stores across. */
static inline void barrier(void)
{
    __asm__ volatile("" ::: "memory");
}

#ifdef GUEST_COPY_BY_HAND
/* memmove() that is not instrumented. */
static void move_bytes(volatile uint8_t *dst, const volatile uint8_t *src, uint64_t n)
{
    if ((uintptr_t)dst - (uintptr_t)src < n) {
        dst += n - 1;
        src += n - 1;
        __asm__ volatile("std; rep movsb; cld"
                         : "+D"(dst), "+S"(src), "+c"(n)
                         :
                         : "memory", "cc");
    } else {
        __asm__ volatile("rep movsb" : "+D"(dst), "+S"(src), "+c"(n) : : "memory");
    }
}

/*
 * Guests may race with themselves in their own memory as on any RDMA device;
 * the thread sanitizer must not blame the daemon for it.
 */
__attribute__((no_sanitize("thread"))) static bool guest_copy(volatile uint8_t *dst,
                                                              const volatile uint8_t *src,
                                                              uint64_t n,
                                                              const struct guest *from)
{
    uint8_t last = src[n - 1];

    move_bytes(dst, src, n - 1);
    if (!guest_believed(from)) {
        return false;
    }
    dst[n - 1] = last;
    return true;
}
#else
/*
 * Many programs wait for a WRITE by polling its last byte, though the specification
 * leaves the order of bytes open.  So that byte is stored after all others, by a store
 * of its own: of one that crosses a cache line the second half may be seen first.
 * x86 keeps the order of stores, of the string instructions too towards what follows
 * them.  False: the bytes are not @from's, and the last one is not stored.
 */
static inline bool guest_copy(uint8_t *dst, const uint8_t *src, uint64_t n,
                              const struct guest *from)
{
    uint8_t last;

    if (n == sizeof(uint64_t) && ((uintptr_t)dst & 7) == 0) {
        uint64_t word;

        memcpy(&word, src, sizeof(word));
        if (G_UNLIKELY(!guest_believed(from))) { /* all of it is its last byte */
            return false;
        }
        *(volatile uint64_t *)(void *)dst = word;
        return true;
    }
    last = src[n - 1];
    memmove(dst, src, n - 1);                /* a guest may send a buffer onto itself */
    if (G_UNLIKELY(!guest_believed(from))) { /* nobody sees the last one */
        return false;
    }
    barrier();
    *(volatile uint8_t *)(dst + n - 1) = last;
    return true;
}
#endif

NO_ARRAY_ON_STACK
enum sg_result sg_copy(struct sg_list *dst, struct sg_list *src, uint64_t n)
{
    struct sg_walk s = walk_start(src), d = walk_start(dst);

    while (n) {
        enum sg_result r = walk_run(&s, n);
        uint64_t len;
        bool whole;

        if (r != SG_OK) {
            return r;
        }
        r = walk_run(&d, n);
        if (r != SG_OK) {
            return as_dst(r);
        }
        len = MIN(s.len, d.len);
        whole = guest_copy(d.hva, s.hva, len, &src->vm->guest);
        if (!dst->raw) { /* if it is not whole some of it was stored, too */
            guest_mark_dirty(&dst->vm->guest.mem, d.gpa, len);
        }
        if (!whole) {
            return SG_FAULT;
        }
        walk_advance(&s, len);
        walk_advance(&d, len);
        n -= len;
    }
    /* Nor is it good where it went if that is nobody's memory any more. */
    return guest_believed(&dst->vm->guest) ? SG_OK : SG_FAULT;
}

enum sg_result sg_fill(struct sg_list *l, const void *data, uint64_t n)
{
    struct sg_list src = {.vm = l->vm, .raw = data};

    return sg_copy(l, &src, n);
}

enum sg_result sg_fetch(struct sg_list *l, void *data, uint64_t n)
{
    struct sg_list dst = {.vm = l->vm, .raw = data};

    return sg_copy(&dst, l, n);
}

unsigned sg_pieces(const struct sg_list *l, uint64_t n, struct sg_piece *piece,
                   unsigned max)
{
    struct sg_list tmp = *l;
    struct sg_walk w = walk_start(&tmp);
    unsigned count = 0;

    while (n && count < max && walk_run(&w, n) == SG_OK) {
        piece[count++] = (struct sg_piece){w.hva, w.gpa, w.len};
        n -= w.len;
        walk_advance(&w, w.len);
    }
    return count;
}

void sg_stored(struct sg_list *l, const struct sg_piece *piece, uint64_t n)
{
    struct guest_mem *mem = &l->vm->guest.mem;

    for (uint64_t left = n; left; piece++) {
        uint64_t len = MIN(left, piece->len);

        guest_mark_dirty(mem, piece->gpa, len);
        left -= len;
    }
    while (n) {
        uint32_t room = l->sge[l->cur.sge].length - l->cur.offset;

        if (n < room) {
            l->cur.offset += (uint32_t)n;
            break;
        }
        n -= room;
        l->cur.sge++;
        l->cur.offset = 0;
    }
}

uint64_t *sg_word(const struct sg_list *l, uint64_t *gpa, enum sg_result *why)
{
    struct sg_list tmp = *l;
    struct sg_walk w = walk_start(&tmp);
    enum sg_result r = walk_run(&w, 8);

    if (r != SG_OK) {
        *why = as_dst(r);
        return NULL;
    }
    /* The guest address is aligned, but its pages could be mapped oddly. */
    if (w.len < 8 || ((uintptr_t)w.hva & 7)) {
        *why = SG_DST_MEM;
        return NULL;
    }
    *gpa = w.gpa;
    return (uint64_t *)(void *)w.hva;
}
