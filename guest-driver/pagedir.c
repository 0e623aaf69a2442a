// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Page directories: how memory is described to the device.
 *
 * Two levels of 4096-byte pages with 512 DMA addresses each: a directory of
 * tables, tables of pages.  The memory is a program's (ib_umem), or pages
 * allocated here.
 */
#include <linux/dma-mapping.h>
#include <linux/slab.h>
#include <rdma/iter.h>

#include "pvrdma.h"

/**
 * pvrdma_pagedir_alloc() - make a directory
 * @dev: device
 * @dir: to be filled in; any content
 * @npages: pages to describe
 * @with_pages: allocate zeroed pages too
 *
 * Return: 0, -EINVAL if @npages is 0 or more than a directory can describe
 * (1 GiB), or -ENOMEM.
 */
int pvrdma_pagedir_alloc(struct pvrdma_dev *dev, struct pvrdma_pagedir *dir,
			 u64 npages, bool with_pages)
{
	struct device *d = &dev->pdev->dev;
	dma_addr_t addr;
	u32 i;

	memset(dir, 0, sizeof(*dir));
	if (!npages || npages > PVRDMA_PDIR_MAX_PAGES)
		return -EINVAL;
	dir->npages = npages;
	dir->ntables = DIV_ROUND_UP(npages, PVRDMA_PDIR_ENTRIES);
	dir->dir = dma_alloc_coherent(d, PVRDMA_PAGE_SIZE, &dir->dir_dma,
				      GFP_KERNEL);
	dir->table = kvcalloc(dir->ntables, sizeof(*dir->table), GFP_KERNEL);
	if (!dir->dir || !dir->table)
		goto err;
	for (i = 0; i < dir->ntables; i++) {
		dir->table[i] = dma_alloc_coherent(d, PVRDMA_PAGE_SIZE, &addr,
						   GFP_KERNEL);
		if (!dir->table[i])
			goto err;
		dir->dir[i] = addr;
	}
	if (!with_pages)
		return 0;
	dir->page = kvcalloc(dir->npages, sizeof(*dir->page), GFP_KERNEL);
	if (!dir->page)
		goto err;
	for (i = 0; i < dir->npages; i++) {
		dir->page[i] = dma_alloc_coherent(d, PVRDMA_PAGE_SIZE, &addr,
						  GFP_KERNEL);
		if (!dir->page[i])
			goto err;
		pvrdma_pagedir_set(dir, i, addr);
	}
	return 0;
err:
	pvrdma_pagedir_free(dev, dir);
	return -ENOMEM;
}

static u64 pagedir_get(const struct pvrdma_pagedir *dir, u32 index)
{
	return dir->table[index / PVRDMA_PDIR_ENTRIES]
			 [index % PVRDMA_PDIR_ENTRIES];
}

/**
 * pvrdma_pagedir_set() - enter a page
 * @dir: directory
 * @index: which page, less than npages
 * @addr: its DMA address
 */
void pvrdma_pagedir_set(struct pvrdma_pagedir *dir, u32 index, dma_addr_t addr)
{
	if (WARN_ON_ONCE(index >= dir->npages))
		return;
	dir->table[index / PVRDMA_PDIR_ENTRIES]
		  [index % PVRDMA_PDIR_ENTRIES] = addr;
}

/**
 * pvrdma_pagedir_add_umem() - enter a program's pages
 * @dir: directory
 * @first: index of the first
 * @umem: pinned memory
 */
void pvrdma_pagedir_add_umem(struct pvrdma_pagedir *dir, u32 first,
			     struct ib_umem *umem)
{
	struct ib_block_iter it;

	rdma_umem_for_each_dma_block(umem, &it, PVRDMA_PAGE_SIZE)
		pvrdma_pagedir_set(dir, first++,
				   rdma_block_iter_dma_address(&it));
}

/**
 * pvrdma_pagedir_free() - free a directory, and the pages allocated with it
 * @dev: device, which must not use it any more
 * @dir: directory, also one that is all zero
 */
void pvrdma_pagedir_free(struct pvrdma_dev *dev, struct pvrdma_pagedir *dir)
{
	struct device *d = &dev->pdev->dev;
	u32 i;

	for (i = 0; dir->page && i < dir->npages && dir->page[i]; i++)
		dma_free_coherent(d, PVRDMA_PAGE_SIZE, dir->page[i],
				  pagedir_get(dir, i));
	kvfree(dir->page);
	for (i = 0; dir->table && i < dir->ntables && dir->table[i]; i++)
		dma_free_coherent(d, PVRDMA_PAGE_SIZE, dir->table[i],
				  dir->dir[i]);
	kvfree(dir->table);
	if (dir->dir)
		dma_free_coherent(d, PVRDMA_PAGE_SIZE, dir->dir, dir->dir_dma);
	memset(dir, 0, sizeof(*dir));
}
