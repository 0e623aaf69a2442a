// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Contexts of programs, and protection domains.
 *
 * Each context has a doorbell page of BAR2, which the program maps.  A program
 * whose provider asks for extensions also gets extension memory: pages of the
 * kernel that program and device share, layout in pvrdma/ext.h.  They are the
 * device's until the context is destroyed there, or it was reset.  A mapping that
 * outlives the context keeps the pages, and the program in them the word that the
 * device is gone: ib_core replaces doorbell pages, but not these.
 */
#include <linux/dma-mapping.h>
#include <linux/mm.h>

#include "cmd.h"
#include "pvrdma.h"
#include "uabi.h"

#define CONTEXT_FEATURES                                         \
	(PVRDMA_EXT_FEAT_DOORBELL | PVRDMA_EXT_FEAT_RING |       \
	 PVRDMA_EXT_FEAT_INLINE | PVRDMA_EXT_FEAT_MEMWIN)

static u64 uar_pfn(const struct pvrdma_dev *dev, u32 index)
{
	return (pci_resource_start(dev->pdev, PVRDMA_BAR_UAR) >>
		PVRDMA_PAGE_SHIFT) + index;
}

static void ext_free(struct pvrdma_dev *dev, struct pvrdma_ucontext *ctx)
{
	u32 i;

	for (i = 0; i < PVRDMA_EXT_PAGES && ctx->ext_page[i]; i++) {
		dma_unmap_page(&dev->pdev->dev, ctx->ext_dma[i],
			       PVRDMA_PAGE_SIZE, DMA_BIDIRECTIONAL);
		__free_page(ctx->ext_page[i]);
		ctx->ext_page[i] = NULL;
	}
	pvrdma_pagedir_free(dev, &ctx->ext_dir);
	ctx->ext_features = 0;
}

static int ext_alloc(struct pvrdma_dev *dev, struct pvrdma_ucontext *ctx)
{
	struct page *page;
	dma_addr_t addr;
	u32 i;
	int ret;

	ret = pvrdma_pagedir_alloc(dev, &ctx->ext_dir, PVRDMA_EXT_PAGES, false);
	if (ret)
		return ret;
	for (i = 0; i < PVRDMA_EXT_PAGES; i++) {
		page = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
		if (!page)
			goto err;
		addr = dma_map_page(&dev->pdev->dev, page, 0, PVRDMA_PAGE_SIZE,
				    DMA_BIDIRECTIONAL);
		if (dma_mapping_error(&dev->pdev->dev, addr)) {
			__free_page(page);
			goto err;
		}
		ctx->ext_page[i] = page;
		ctx->ext_dma[i] = addr;
		pvrdma_pagedir_set(&ctx->ext_dir, i, addr);
	}
	return 0;
err:
	ext_free(dev, ctx);
	return -ENOMEM;
}

/* Tell the program, which may poll: the device does nothing of it any more. */
static void ext_gone(struct pvrdma_ucontext *ctx)
{
	struct pvrdma_ext_head *head = page_address(ctx->ext_page[0]);

	/* What the device completed is there before this. */
	smp_store_release(&head->gone, 1);
}

static void ext_enter(struct pvrdma_dev *dev, struct pvrdma_ucontext *ctx)
{
	mutex_lock(&dev->contexts.lock);
	list_add(&ctx->entry, &dev->contexts.list);
	/* The others may have been told already. */
	if (pvrdma_quiet(dev))
		ext_gone(ctx);
	mutex_unlock(&dev->contexts.lock);
}

static void ext_leave(struct pvrdma_dev *dev, struct pvrdma_ucontext *ctx)
{
	mutex_lock(&dev->contexts.lock);
	list_del(&ctx->entry);
	ext_gone(ctx);
	mutex_unlock(&dev->contexts.lock);
}

/**
 * pvrdma_contexts_gone() - tell programs that a dead device does nothing any more
 * @dev: device, quiet
 */
void pvrdma_contexts_gone(struct pvrdma_dev *dev)
{
	struct pvrdma_ucontext *ctx;

	mutex_lock(&dev->contexts.lock);
	list_for_each_entry(ctx, &dev->contexts.list, entry)
		ext_gone(ctx);
	mutex_unlock(&dev->contexts.lock);
}

/* Make the context with extensions. */
static int uc_create_ext(struct pvrdma_dev *dev, struct pvrdma_ucontext *ctx,
			 u32 features)
{
	struct pvrdma_ext_cmd_uc req = {
		.pfn = uar_pfn(dev, ctx->uar_index),
		.features = features,
		.npages = PVRDMA_EXT_PAGES,
	};
	struct pvrdma_ext_resp_uc resp;
	int ret;

	ret = ext_alloc(dev, ctx);
	if (ret)
		return ret;
	req.pdir_dma = ctx->ext_dir.dir_dma;
	ret = pvrdma_cmd_create_uc_ext(dev, &req, &resp);
	if (ret) {
		ext_free(dev, ctx);
		return ret;
	}
	ctx->handle = resp.ctx_handle;
	ctx->ext_features = resp.features & features;
	ext_enter(dev, ctx);
	return 0;
}

static int uc_create_stock(struct pvrdma_dev *dev, struct pvrdma_ucontext *ctx)
{
	struct pvrdma_cmd_create_uc req = {
		.pfn = uar_pfn(dev, ctx->uar_index),
	};
	struct pvrdma_resp_handle resp;
	int ret;

	ret = pvrdma_cmd_create_uc(dev, &req, &resp);
	if (!ret)
		ctx->handle = resp.handle;
	return ret;
}

/**
 * pvrdma_alloc_ucontext() - verb
 * @ibctx: to be made
 * @udata: may ask for extensions (struct pvrdma_ext_ucontext_req)
 *
 * Return: 0 or a negative errno.  Extensions that the device has not, or
 * refuses, are no error: the answer says what was granted.
 */
int pvrdma_alloc_ucontext(struct ib_ucontext *ibctx, struct ib_udata *udata)
{
	struct pvrdma_dev *dev = to_pvdev(ibctx->device);
	struct pvrdma_ucontext *ctx = to_pvctx(ibctx);
	struct pvrdma_ext_ucontext_resp resp = {};
	struct pvrdma_ext_ucontext_req req;
	u32 features = 0;
	int index, ret;

	ret = pvrdma_uabi_read(&dev->ibdev, udata, &req, 0, sizeof(req));
	if (ret)
		return ret;
	if (req.magic != PVRDMA_EXT_MAGIC && (req.magic || req.features))
		return pvrdma_refuse(&dev->ibdev, -EOPNOTSUPP, "magic %#x",
				     req.magic);
	if (req.magic)
		features = req.features & dev->ext.features & CONTEXT_FEATURES;

	/* Page 0 is the kernel's. */
	index = ida_alloc_range(&dev->uars, 1, dev->caps.max_uar - 1,
				GFP_KERNEL);
	if (index == -ENOSPC)
		return pvrdma_refuse(&dev->ibdev, -ENOMEM,
				     "no doorbell page is left of %u",
				     dev->caps.max_uar - 1);
	if (index < 0)
		return index;
	ctx->uar_index = index;

	if (!features || uc_create_ext(dev, ctx, features)) {
		ret = uc_create_stock(dev, ctx);
		if (ret)
			goto err_uar;
	}

	resp.qp_tab_size = dev->caps.max_qp;
	if (ctx->ext_features) {
		resp.magic = PVRDMA_EXT_MAGIC;
		resp.features = ctx->ext_features;
		if (ctx->ext_features & PVRDMA_EXT_FEAT_INLINE)
			resp.max_inline = dev->ext.max_inline;
	}
	ret = ib_copy_to_udata(udata, &resp, min(sizeof(resp), udata->outlen));
	if (ret) {
		pvrdma_dealloc_ucontext(ibctx);
		return ret;
	}
	return 0;
err_uar:
	ida_free(&dev->uars, index);
	return ret;
}

/**
 * pvrdma_dealloc_ucontext() - verb
 * @ibctx: without objects
 */
void pvrdma_dealloc_ucontext(struct ib_ucontext *ibctx)
{
	struct pvrdma_dev *dev = to_pvdev(ibctx->device);
	struct pvrdma_ucontext *ctx = to_pvctx(ibctx);

	pvrdma_cmd_destroy(dev, PVRDMA_CMD_DESTROY_UC, ctx->handle);
	if (ctx->ext_page[0])
		ext_leave(dev, ctx);
	ext_free(dev, ctx);
	ida_free(&dev->uars, ctx->uar_index);
}

/**
 * pvrdma_disassociate_ucontext() - verb: the device goes, the program stays
 * @ibctx: context whose device is being removed
 *
 * ib_core replaces the doorbell page by memory that nobody looks at and destroys the
 * objects, the context last, when the program is told; nothing is left to do.  That
 * this exists lets it do so.
 */
void pvrdma_disassociate_ucontext(struct ib_ucontext *ibctx)
{
}

static int mmap_ext(struct pvrdma_ucontext *ctx, struct vm_area_struct *vma)
{
	unsigned long num = PVRDMA_EXT_PAGES;

	if (!ctx->ext_features)
		return pvrdma_refuse(ctx->ibctx.device, -EINVAL,
				     "no extension memory was granted");
	if (vma_pages(vma) != num || !(vma->vm_flags & VM_SHARED))
		return pvrdma_refuse(ctx->ibctx.device, -EINVAL,
				     "extension memory: %lu pages, flags %#lx",
				     vma_pages(vma), vma->vm_flags);
	return vm_insert_pages(vma, vma->vm_start, ctx->ext_page, &num);
}

/**
 * pvrdma_mmap() - verb: map the doorbell page or the extension memory
 * @ibctx: context
 * @vma: offset PVRDMA_EXT_MMAP_*, exactly the size of what is there
 *
 * Return: 0 or a negative errno.
 */
int pvrdma_mmap(struct ib_ucontext *ibctx, struct vm_area_struct *vma)
{
	struct pvrdma_dev *dev = to_pvdev(ibctx->device);
	struct pvrdma_ucontext *ctx = to_pvctx(ibctx);

	switch (vma->vm_pgoff) {
	case PVRDMA_EXT_MMAP_UAR:
		return rdma_user_mmap_io(ibctx, vma,
					 uar_pfn(dev, ctx->uar_index),
					 PVRDMA_PAGE_SIZE,
					 pgprot_noncached(vma->vm_page_prot),
					 NULL);
	case PVRDMA_EXT_MMAP_MEM:
		return mmap_ext(ctx, vma);
	default:
		return pvrdma_refuse(&dev->ibdev, -EINVAL, "offset %#lx",
				     vma->vm_pgoff);
	}
}

/**
 * pvrdma_alloc_pd() - verb
 * @ibpd: to be made
 * @udata: a program's call, or NULL
 *
 * Return: 0 or a negative errno.
 */
int pvrdma_alloc_pd(struct ib_pd *ibpd, struct ib_udata *udata)
{
	struct pvrdma_ucontext *ctx = pvrdma_udata_ctx(udata);
	struct pvrdma_dev *dev = to_pvdev(ibpd->device);
	struct pvrdma_pd *pd = to_pvpd(ibpd);
	struct pvrdma_cmd_create_pd req = {
		.ctx_handle = ctx ? ctx->handle : 0,
	};
	struct pvrdma_uverbs_pd_resp out = {};
	struct pvrdma_resp_handle resp;
	int ret;

	ret = pvrdma_uabi_none(&dev->ibdev, udata);
	if (ret)
		return ret;
	ret = pvrdma_cmd_create_pd(dev, &req, &resp);
	if (ret)
		return ret;
	pd->handle = resp.handle;
	out.pdn = resp.handle;
	if (udata) {
		ret = ib_copy_to_udata(udata, &out,
				       min(sizeof(out), udata->outlen));
		if (ret)
			pvrdma_cmd_destroy(dev, PVRDMA_CMD_DESTROY_PD,
					   pd->handle);
	}
	return ret;
}

/**
 * pvrdma_dealloc_pd() - verb
 * @ibpd: without objects
 * @udata: a program's call, or NULL
 *
 * Return: 0.
 */
int pvrdma_dealloc_pd(struct ib_pd *ibpd, struct ib_udata *udata)
{
	pvrdma_cmd_destroy(to_pvdev(ibpd->device), PVRDMA_CMD_DESTROY_PD,
			   to_pvpd(ibpd)->handle);
	return 0;
}
