/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Guest RAM of a virtual guest: one sealed memfd, seen by the device at gpa 0
 * and, for its second part, above 4 GiB; a page allocator that scatters on
 * purpose; buffers over scattered pages that the test sees as one piece; page
 * directories.
 *
 * ram_lock protects page_used, next_page and rand.
 */
#include "vguest.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

static uint64_t page_to_gpa(struct vguest *g, uint64_t page)
{
    uint64_t off = page * PVRDMA_PAGE_SIZE;

    return off < g->opts.low_size ? off : off - g->opts.low_size + VG_HIGH_GPA;
}

static uint64_t gpa_to_off(struct vguest *g, uint64_t gpa)
{
    uint64_t off = gpa;

    if (gpa >= VG_HIGH_GPA) {
        off = gpa - VG_HIGH_GPA + g->opts.low_size;
    } else {
        g_assert_cmpuint(gpa, <, g->opts.low_size);
    }
    g_assert_cmpuint(off, <, g->ram_size);
    return off;
}

void *vg_ptr(struct vguest *g, uint64_t gpa)
{
    return g->ram + gpa_to_off(g, gpa);
}

/* Find a run of @n free pages, from @start on, within one region. */
static bool find_run(struct vguest *g, uint64_t start, uint32_t n, uint64_t *first)
{
    uint64_t low_pages = g->opts.low_size / PVRDMA_PAGE_SIZE;
    uint64_t run = 0;

    for (uint64_t i = 0; i < g->n_pages; i++) {
        uint64_t p = (start + i) % g->n_pages;

        if (p == 0 || p == low_pages) {
            run = 0;
        }
        run = g->page_used[p] ? 0 : run + 1;
        if (run == n) {
            *first = p - n + 1;
            return true;
        }
    }
    return false;
}

static uint64_t alloc_run(struct vguest *g, uint32_t n, bool random)
{
    uint64_t start, first = 0;
    bool ok;

    g_mutex_lock(&g->ram_lock);
    start = random ? g_rand_int(g->rand) % g->n_pages : g->next_page;
    ok = find_run(g, start, n, &first);
    if (ok) {
        memset(g->page_used + first, 1, n);
        g->next_page = (first + n) % g->n_pages;
    }
    g_mutex_unlock(&g->ram_lock);
    if (!ok) {
        g_error("vguest: out of guest RAM (%u pages wanted)", n);
    }
    memset(g->ram + first * PVRDMA_PAGE_SIZE, 0, (size_t)n * PVRDMA_PAGE_SIZE);
    return page_to_gpa(g, first);
}

uint64_t vg_alloc_page(struct vguest *g)
{
    return alloc_run(g, 1, true);
}

uint64_t vg_alloc_pages(struct vguest *g, uint32_t n)
{
    return alloc_run(g, n, false);
}

void vg_free_pages(struct vguest *g, uint64_t gpa, uint32_t n)
{
    uint64_t first = gpa_to_off(g, gpa) / PVRDMA_PAGE_SIZE;

    g_mutex_lock(&g->ram_lock);
    for (uint32_t i = 0; i < n; i++) {
        g_assert_true(g->page_used[first + i]);
        g->page_used[first + i] = 0;
    }
    g_mutex_unlock(&g->ram_lock);
}

static struct vg_buf *buf_common(struct vguest *g, uint64_t va, uint64_t len)
{
    struct vg_buf *b = g_new0(struct vg_buf, 1);
    uint64_t off = va & (PVRDMA_PAGE_SIZE - 1);

    b->g = g;
    b->va = va;
    b->len = len;
    b->npages = (off + len + PVRDMA_PAGE_SIZE - 1) / PVRDMA_PAGE_SIZE;
    if (b->npages == 0) {
        b->npages = 1;
    }
    b->page = g_new(uint64_t, b->npages);
    return b;
}

/* Show pages [0, n) of @b to the test as one piece. */
static void buf_map_host(struct vg_buf *b, uint32_t n)
{
    uint64_t off = b->va & (PVRDMA_PAGE_SIZE - 1);
    struct vguest *g = b->g;

    b->map_len = (size_t)n * PVRDMA_PAGE_SIZE;
    b->map = mmap(NULL, b->map_len, PROT_NONE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    g_assert_true(b->map != MAP_FAILED);
    for (uint32_t i = 0; i < n; i++) {
        void *p = mmap((uint8_t *)b->map + (size_t)i * PVRDMA_PAGE_SIZE, PVRDMA_PAGE_SIZE,
                       PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, g->memfd,
                       gpa_to_off(g, b->page[i]));

        g_assert_true(p != MAP_FAILED);
    }
    b->host = (uint8_t *)b->map + off;
}

struct vg_buf *vg_buf_new(struct vguest *g, uint64_t va, uint64_t len,
                          enum vg_layout layout)
{
    struct vg_buf *b = buf_common(g, va, len);

    b->owned = b->npages;
    if (layout == VG_CONTIG) {
        uint64_t gpa = vg_alloc_pages(g, b->npages);

        for (uint32_t i = 0; i < b->npages; i++) {
            b->page[i] = gpa + (uint64_t)i * PVRDMA_PAGE_SIZE;
        }
        b->host = (uint8_t *)vg_ptr(g, gpa) + (va & (PVRDMA_PAGE_SIZE - 1));
        return b;
    }
    for (uint32_t i = 0; i < b->npages; i++) {
        b->page[i] = vg_alloc_page(g);
    }
    buf_map_host(b, b->npages);
    return b;
}

struct vg_buf *vg_buf_new_alias(struct vguest *g, uint64_t va, uint64_t len,
                                uint32_t real)
{
    struct vg_buf *b = buf_common(g, va, len);

    g_assert_cmpuint(real, <=, b->npages);
    b->owned = real;
    for (uint32_t i = 0; i < real; i++) {
        b->page[i] = vg_alloc_page(g);
    }
    for (uint32_t i = real; i < b->npages; i++) {
        b->page[i] = b->page[i % real];
    }
    buf_map_host(b, real);
    return b;
}

void vg_buf_free(struct vg_buf *b)
{
    if (!b) {
        return;
    }
    if (b->map) {
        munmap(b->map, b->map_len);
    }
    for (uint32_t i = 0; i < b->owned; i++) {
        vg_free_pages(b->g, b->page[i], 1);
    }
    g_free(b->page);
    g_free(b);
}

static uint32_t n_tables(uint32_t n)
{
    return (n + PVRDMA_PDIR_ENTRIES - 1) / PVRDMA_PDIR_ENTRIES;
}

uint64_t vg_pdir_new(struct vguest *g, const uint64_t *pages, uint32_t n)
{
    uint64_t dir = vg_alloc_pages(g, 1 + n_tables(n));
    uint64_t *entry = vg_ptr(g, dir);

    g_assert_cmpuint(n, <=, PVRDMA_PDIR_MAX_PAGES);
    for (uint32_t t = 0; t < n_tables(n); t++) {
        uint32_t count = MIN(PVRDMA_PDIR_ENTRIES, n - t * PVRDMA_PDIR_ENTRIES);

        entry[t] = dir + (1 + t) * PVRDMA_PAGE_SIZE;
        memcpy(vg_ptr(g, entry[t]), pages + t * PVRDMA_PDIR_ENTRIES,
               count * sizeof(*pages));
    }
    return dir;
}

void vg_pdir_free(struct vguest *g, uint64_t pdir, uint32_t n)
{
    vg_free_pages(g, pdir, 1 + n_tables(n));
}

uint64_t vg_pdir_new_deep(struct vguest *g, const uint64_t *pages, uint32_t n)
{
    uint64_t top = vg_alloc_page(g);
    uint64_t *entry = vg_ptr(g, top);

    g_assert_cmpuint(n, <=, PVRDMA_EXT_MR_MAX_PAGES);
    for (uint32_t first = 0; first < n; first += PVRDMA_PDIR_MAX_PAGES) {
        *entry++ = vg_pdir_new(g, pages + first, MIN(n - first, PVRDMA_PDIR_MAX_PAGES));
    }
    return top;
}

void vg_pdir_free_deep(struct vguest *g, uint64_t top, uint32_t n)
{
    const uint64_t *entry = vg_ptr(g, top);

    for (uint32_t first = 0; first < n; first += PVRDMA_PDIR_MAX_PAGES) {
        vg_pdir_free(g, *entry++, MIN(n - first, PVRDMA_PDIR_MAX_PAGES));
    }
    vg_free_pages(g, top, 1);
}
