// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Page directories: how memory is described to the device.
 *
 * Two levels of 4096-byte pages with 512 DMA addresses each: a directory of
 * tables, tables of pages.  More than that describes (1 GiB) takes a third
 * above: a page of directories (PVRDMA_EXT_MR_DEEP).  The memory is a program's
 * (ib_umem), or pages allocated here.
 */
#include <linux/dma-mapping.h>
#include <linux/slab.h>

#include "pvrdma.h"

static u64 *pagedir_alloc_page(struct pvrdma_dev *dev, dma_addr_t *addr)
{
	cond_resched(); /* of a large directory there are thousands */
	return dma_alloc_coherent(&dev->pdev->dev, PVRDMA_PAGE_SIZE, addr,
				  GFP_KERNEL);
}

/* The directories, and the page above them if there are several. */
static int pagedir_alloc_dirs(struct pvrdma_dev *dev, struct pvrdma_pagedir *dir)
{
	u32 i;

	dir->ndirs = DIV_ROUND_UP(dir->ntables, PVRDMA_PDIR_ENTRIES);
	dir->dir = kcalloc(dir->ndirs, sizeof(*dir->dir), GFP_KERNEL);
	dir->dir_addr = kcalloc(dir->ndirs, sizeof(*dir->dir_addr), GFP_KERNEL);
	if (!dir->dir || !dir->dir_addr)
		return -ENOMEM;
	if (dir->ndirs > 1) {
		dir->top = pagedir_alloc_page(dev, &dir->dir_dma);
		if (!dir->top)
			return -ENOMEM;
	}
	for (i = 0; i < dir->ndirs; i++) {
		dir->dir[i] = pagedir_alloc_page(dev, &dir->dir_addr[i]);
		if (!dir->dir[i])
			return -ENOMEM;
		if (dir->top)
			dir->top[i] = dir->dir_addr[i];
		else
			dir->dir_dma = dir->dir_addr[i];
	}
	return 0;
}

static u64 *pagedir_table_entry(const struct pvrdma_pagedir *dir, u32 table)
{
	return &dir->dir[table / PVRDMA_PDIR_ENTRIES]
			[table % PVRDMA_PDIR_ENTRIES];
}

/**
 * pvrdma_pagedir_alloc_large() - make a directory, a deep one if it has to be
 * @dev: device, which takes deep ones
 * @dir: to be filled in; any content
 * @npages: pages to describe
 *
 * Return: 0, -EINVAL if @npages is 0 or more than the device can take, or -ENOMEM.
 */
int pvrdma_pagedir_alloc_large(struct pvrdma_dev *dev,
			       struct pvrdma_pagedir *dir, u64 npages)
{
	u32 i;

	memset(dir, 0, sizeof(*dir));
	if (!npages || npages > PVRDMA_EXT_MR_MAX_PAGES)
		return pvrdma_refuse(&dev->ibdev, -EINVAL, "%llu pages", npages);
	dir->npages = npages;
	dir->ntables = DIV_ROUND_UP(npages, PVRDMA_PDIR_ENTRIES);
	dir->table = kvcalloc(dir->ntables, sizeof(*dir->table), GFP_KERNEL);
	dir->table_addr = kvcalloc(dir->ntables, sizeof(*dir->table_addr),
				   GFP_KERNEL);
	if (!dir->table || !dir->table_addr || pagedir_alloc_dirs(dev, dir))
		goto err;
	for (i = 0; i < dir->ntables; i++) {
		dir->table[i] = pagedir_alloc_page(dev, &dir->table_addr[i]);
		if (!dir->table[i])
			goto err;
		*pagedir_table_entry(dir, i) = dir->table_addr[i];
	}
	return 0;
err:
	pvrdma_pagedir_free(dev, dir);
	return -ENOMEM;
}

/**
 * pvrdma_pagedir_alloc() - make a directory that is not deep
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
	int ret;
	u32 i;

	memset(dir, 0, sizeof(*dir));
	if (npages > PVRDMA_PDIR_MAX_PAGES)
		return pvrdma_refuse(&dev->ibdev, -EINVAL, "%llu pages", npages);
	ret = pvrdma_pagedir_alloc_large(dev, dir, npages);
	if (ret || !with_pages)
		return ret;
	dir->page = kvcalloc(dir->npages, sizeof(*dir->page), GFP_KERNEL);
	dir->page_addr = kvcalloc(dir->npages, sizeof(*dir->page_addr),
				  GFP_KERNEL);
	if (!dir->page || !dir->page_addr)
		goto err;
	for (i = 0; i < dir->npages; i++) {
		dir->page[i] = dma_alloc_coherent(d, PVRDMA_PAGE_SIZE,
						  &dir->page_addr[i], GFP_KERNEL);
		if (!dir->page[i])
			goto err;
		pvrdma_pagedir_set(dir, i, dir->page_addr[i]);
	}
	return 0;
err:
	pvrdma_pagedir_free(dev, dir);
	return -ENOMEM;
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

	rdma_umem_for_each_dma_block(umem, &it, PVRDMA_PAGE_SIZE) {
		pvrdma_pagedir_set(dir, first++,
				   rdma_block_iter_dma_address(&it));
		if (first % PVRDMA_PDIR_ENTRIES == 0)
			cond_resched();
	}
}

/**
 * pvrdma_pin_rings() - pin a program's buffers and describe them, one behind the other
 * @dev: device
 * @dir: to be filled in; any content
 * @buf: the buffers
 * @n: how many
 *
 * Return: 0 or a negative errno; then nothing is pinned, and each umem is NULL.
 */
int pvrdma_pin_rings(struct pvrdma_dev *dev, struct pvrdma_pagedir *dir,
		     const struct pvrdma_user_buf *buf, int n)
{
	struct ib_umem *umem;
	u32 npages = 0;
	int i, ret;

	for (i = 0; i < n; i++) {
		*buf[i].umem = NULL;
		ret = -EINVAL;
		if (buf[i].size < buf[i].least ||
		    buf[i].addr & (PVRDMA_PAGE_SIZE - 1)) {
			pvrdma_refuse(&dev->ibdev, ret,
				      "buffer %#llx of %u bytes, need %llu in whole pages",
				      buf[i].addr, buf[i].size, buf[i].least);
			goto err;
		}
		umem = pvrdma_umem_get(&dev->ibdev, buf[i].addr, buf[i].size,
				       IB_ACCESS_LOCAL_WRITE);
		ret = PTR_ERR_OR_ZERO(umem);
		if (ret)
			goto err;
		*buf[i].umem = umem;
		npages += ib_umem_num_dma_blocks(umem, PVRDMA_PAGE_SIZE);
	}
	ret = pvrdma_pagedir_alloc(dev, dir, npages, false);
	if (ret)
		goto err;
	for (i = 0, npages = 0; i < n; i++) {
		pvrdma_pagedir_add_umem(dir, npages, *buf[i].umem);
		npages += ib_umem_num_dma_blocks(*buf[i].umem, PVRDMA_PAGE_SIZE);
	}
	return 0;
err:
	while (i--) {
		ib_umem_release(*buf[i].umem);
		*buf[i].umem = NULL;
	}
	return ret;
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
				  dir->page_addr[i]);
	kvfree(dir->page);
	kvfree(dir->page_addr);
	for (i = 0; dir->table && i < dir->ntables && dir->table[i]; i++) {
		dma_free_coherent(d, PVRDMA_PAGE_SIZE, dir->table[i],
				  dir->table_addr[i]);
		cond_resched();
	}
	kvfree(dir->table);
	kvfree(dir->table_addr);
	for (i = 0; dir->dir && i < dir->ndirs && dir->dir[i]; i++)
		dma_free_coherent(d, PVRDMA_PAGE_SIZE, dir->dir[i],
				  dir->dir_addr[i]);
	kfree(dir->dir);
	kfree(dir->dir_addr);
	if (dir->top)
		dma_free_coherent(d, PVRDMA_PAGE_SIZE, dir->top, dir->dir_dma);
	memset(dir, 0, sizeof(*dir));
}
