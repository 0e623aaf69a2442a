/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Page directories: how a guest names the pages of rings and memory regions.
 * One directory page of 512 table addresses, each table 512 page addresses.
 *
 * Each table is copied once, straight into the caller's array, and the copy is
 * checked.  The caller allocates: the bound on n bounds that and the walk
 * (CVE-2023-1544: a page count beyond one table; CVE-2021-3607).
 */
#include "guest/pagedir.h"

#include <errno.h>

#include "pvrdma/abi.h"

static bool page_aligned(uint64_t addr)
{
    return (addr & (PVRDMA_PAGE_SIZE - 1)) == 0;
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

        if (!page_aligned(table[t])) {
            return EINVAL;
        }
        if (!guest_read(mem, table[t], pages + first, count * sizeof(pages[0]))) {
            return EFAULT;
        }
        for (uint32_t i = first; i < first + count; i++) {
            if (!page_aligned(pages[i])) {
                return EINVAL;
            }
        }
    }
    return 0;
}
