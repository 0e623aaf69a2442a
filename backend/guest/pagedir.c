/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Page directories: how a guest names the pages of rings and memory regions.
 * One directory page of 512 table addresses, each table 512 page addresses.  A deep one
 * has a page of up to 512 directories above that.
 *
 * Each table is copied once, straight into the caller's array, and the copy is
 * checked.  The caller allocates: the bound on n bounds that and the walk
 * (CVE-2023-1544: a page count beyond one table; CVE-2021-3607).
 *
 * A list may have 262,144 pages, a deep one 512 times as many, so these functions let
 * others have their turn.
 */
#include "guest/pagedir.h"

#include <errno.h>

#include "base/coro.h"
#include "pvrdma/abi.h"
#include "pvrdma/ext.h"

/* Pages that are checked in one go. */
#define CHECK_STEP 512u

static bool page_aligned(uint64_t addr)
{
    return (addr & (PVRDMA_PAGE_SIZE - 1)) == 0;
}

/* The first @n addresses of one table. */
static int read_table(struct guest_mem *mem, uint64_t table, uint32_t n, uint64_t *pages)
{
    if (!page_aligned(table)) {
        return EINVAL;
    }
    if (!guest_read(mem, table, pages, n * sizeof(pages[0]))) {
        return EFAULT;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (!page_aligned(pages[i])) {
            return EINVAL;
        }
    }
    return 0;
}

int pagedir_read(struct guest_mem *mem, uint64_t pdir_dma, uint32_t n, uint64_t *pages)
{
    uint64_t table[PVRDMA_PDIR_ENTRIES];
    uint32_t tables;

    if (n == 0 || n > PVRDMA_PDIR_MAX_PAGES || !page_aligned(pdir_dma)) {
        return EINVAL;
    }
    tables = (n + PVRDMA_PDIR_ENTRIES - 1) / PVRDMA_PDIR_ENTRIES;
    if (!guest_read(mem, pdir_dma, table, tables * sizeof(table[0]))) {
        return EFAULT;
    }
    for (uint32_t t = 0; t < tables; t++) {
        uint32_t first = t * PVRDMA_PDIR_ENTRIES;
        uint32_t count = MIN(n - first, PVRDMA_PDIR_ENTRIES);
        int err = read_table(mem, table[t], count, pages + first);

        if (err) {
            return err;
        }
        coro_breathe();
    }
    return 0;
}

int pagedir_read_deep(struct guest_mem *mem, uint64_t top_dma, uint32_t n,
                      uint64_t *pages)
{
    uint64_t dir[PVRDMA_PDIR_ENTRIES];
    uint32_t dirs;

    if (n == 0 || n > PVRDMA_EXT_MR_MAX_PAGES || !page_aligned(top_dma)) {
        return EINVAL;
    }
    dirs = (n + PVRDMA_PDIR_MAX_PAGES - 1) / PVRDMA_PDIR_MAX_PAGES;
    if (!guest_read(mem, top_dma, dir, dirs * sizeof(dir[0]))) {
        return EFAULT;
    }
    for (uint32_t d = 0; d < dirs; d++) {
        uint32_t first = d * PVRDMA_PDIR_MAX_PAGES;
        int err = pagedir_read(mem, dir[d], MIN(n - first, PVRDMA_PDIR_MAX_PAGES),
                               pages + first);

        if (err) {
            return err;
        }
    }
    return 0;
}

static bool page_ok(const struct guest_region *r, uint64_t page, bool write)
{
    return r->hva && page - r->gpa < r->size && (!write || r->writable) &&
           r->size - (page - r->gpa) >= PVRDMA_PAGE_SIZE;
}

/*
 * The last region that begins at or before @gpa, or the first of all.  For lists that
 * hop between thousands of regions: no branches, and nothing but the beginnings.
 */
static unsigned starts_find(const uint64_t *start, unsigned n, uint64_t gpa)
{
    unsigned base = 0;

    while (n > 1) {
        unsigned half = n / 2;

        base += start[base + half] <= gpa ? half : 0;
        n -= half;
    }
    return base;
}

/* @start: NULL, or the beginnings of @map's regions. */
static const struct guest_region *find(const struct guest_map *map, const uint64_t *start,
                                       uint64_t gpa)
{
    return start ? &map->region[starts_find(start, map->n, gpa)]
                 : guest_map_find(map, gpa);
}

static int check_some(const struct guest_map *map, const uint64_t *start,
                      const uint64_t *page, uint32_t n, bool write)
{
    const struct guest_region *r = NULL;

    for (uint32_t i = 0; i < n; i++) {
        if (!r || !page_ok(r, page[i], write)) {
            r = find(map, start, page[i]);
            if (!r || !page_ok(r, page[i], write)) {
                return EFAULT;
            }
        }
    }
    return 0;
}

int pagedir_read_short(struct guest_mem *mem, uint64_t pdir_dma, uint32_t n,
                       uint64_t *pages)
{
    uint64_t table;
    int err;

    if (n == 0 || n > PVRDMA_PDIR_ENTRIES || !page_aligned(pdir_dma)) {
        return EINVAL;
    }
    if (!guest_read(mem, pdir_dma, &table, sizeof(table))) {
        return EFAULT;
    }
    err = read_table(mem, table, n, pages);
    return err ? err
               : check_some(atomic_load_explicit(&mem->map, memory_order_acquire), NULL,
                            pages, n, false);
}

static uint64_t *copy_starts(const struct guest_map *map)
{
    uint64_t *start = g_try_new(uint64_t, map->n);

    for (unsigned i = 0; start && i < map->n; i++) {
        start[i] = map->region[i].gpa;
    }
    return start;
}

int pagedir_check(struct guest_mem *mem, const uint64_t *page, uint32_t n, bool write)
{
    g_autofree uint64_t *start = NULL;
    uint64_t generation = 0;

    for (uint32_t first = 0; first < n; first += CHECK_STEP) {
        const struct guest_map *map =
            atomic_load_explicit(&mem->map, memory_order_acquire);

        if (map->n == 0) {
            return EFAULT;
        }
        if (n >= map->n && generation != map->generation) {
            g_free(start);
            start = copy_starts(map); /* NULL: it goes without */
            generation = map->generation;
        }
        if (check_some(map, start, page + first, MIN(n - first, CHECK_STEP), write)) {
            return EFAULT;
        }
        coro_breathe();
    }
    return 0;
}
