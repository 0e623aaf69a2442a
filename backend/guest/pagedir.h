/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Page directories in guest memory; pagedir.c has the theory.  Main thread; in a
 * coroutine the main loop may turn meanwhile (coro_breathe).
 */
#ifndef PVRDMAD_GUEST_PAGEDIR_H
#define PVRDMAD_GUEST_PAGEDIR_H

#include <stdint.h>

#include "guest/mem.h"

/*
 * Read @n page addresses behind @pdir_dma into @pages.  Returns 0, or an errno:
 * EINVAL (n is 0 or over PVRDMA_PDIR_MAX_PAGES, an address that is not
 * page-aligned), EFAULT (a table is not in the DMA map).
 */
int pagedir_read(struct guest_mem *mem, uint64_t pdir_dma, uint32_t n, uint64_t *pages);

/* The same with a page of directories at @top_dma; n up to PVRDMA_EXT_MR_MAX_PAGES. */
int pagedir_read_deep(struct guest_mem *mem, uint64_t top_dma, uint32_t n,
                      uint64_t *pages);

/*
 * The same for one table (@n up to PVRDMA_PDIR_ENTRIES) and pages that lie in the DMA map
 * now.  Any thread.
 */
int pagedir_read_short(struct guest_mem *mem, uint64_t pdir_dma, uint32_t n,
                       uint64_t *pages);

/* Does each of these pages lie in the DMA map, writable if @write?  0 or EFAULT. */
int pagedir_check(struct guest_mem *mem, const uint64_t *page, uint32_t n, bool write);

#endif /* PVRDMAD_GUEST_PAGEDIR_H */
