// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Memory regions: a program's memory, pinned and described to the device, the
 * kernel's one region over all of memory, and its regions for fast
 * registration, whose pages and keys work requests give and take (post.c).
 *
 * A region begins at the address that the program names for it (iova), which
 * lies at the same place in its page as the memory does; so the pages are the
 * same whether or not it is the memory's own address.  A zero-based one begins
 * at 0, wherever it lies in its page: its iova says only where.
 */
#include <linux/slab.h>

#include "cmd.h"
#include "pvrdma.h"
#include "uabi.h"

/* Not told to the device: all pages are 4 KiB for it. */
#define MR_HINTS (IB_ACCESS_HUGETLB | IB_ACCESS_OPTIONAL)
/* Remaining capabilities are unknown to the device. */
#define MR_ACCESS                                                       \
	(IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE |               \
	 IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_ATOMIC | MR_HINTS)
#define MR_ACCESS_MEMWIN (IB_ACCESS_MW_BIND | IB_ZERO_BASED)

static struct pvrdma_mr *mr_new(struct ib_pd *ibpd)
{
	struct pvrdma_mr *mr = kzalloc(sizeof(*mr), GFP_KERNEL);

	if (mr)
		mr->ibmr.device = ibpd->device;
	return mr;
}

static void mr_free(struct pvrdma_mr *mr)
{
	pvrdma_pagedir_free(to_pvdev(mr->ibmr.device), &mr->dir);
	ib_umem_release(mr->umem);
	kfree(mr);
}

/* Create a region in the device; if that fails it is freed here. */
static struct ib_mr *mr_create(struct pvrdma_mr *mr,
			       struct pvrdma_cmd_create_mr *req)
{
	struct pvrdma_dev *dev = to_pvdev(mr->ibmr.device);
	struct pvrdma_resp_create_mr resp;
	int ret = pvrdma_cmd_create_mr(dev, req, &resp);

	if (ret) {
		mr_free(mr);
		return ERR_PTR(ret);
	}
	mr->handle = resp.mr_handle;
	mr->ibmr.lkey = resp.lkey;
	mr->ibmr.rkey = resp.rkey;
	return &mr->ibmr;
}

/**
 * pvrdma_get_dma_mr() - verb: all memory, for the kernel
 * @ibpd: protection domain
 * @access: at most IB_ACCESS_LOCAL_WRITE
 *
 * Return: the region or an error pointer.
 */
struct ib_mr *pvrdma_get_dma_mr(struct ib_pd *ibpd, int access)
{
	struct pvrdma_cmd_create_mr req = {
		.pd_handle = to_pvpd(ibpd)->handle,
		.access_flags = access,
		.flags = PVRDMA_MR_FLAG_DMA,
	};
	struct pvrdma_mr *mr;

	/* A key to all memory must never be of use to others. */
	if (access & ~IB_ACCESS_LOCAL_WRITE)
		return ERR_PTR(pvrdma_refuse(ibpd->device, -EOPNOTSUPP,
					     "access %#x", access));
	mr = mr_new(ibpd);
	return mr ? mr_create(mr, &req) : ERR_PTR(-ENOMEM);
}

/**
 * pvrdma_max_mr_size() - how large a program's region can be
 * @dev: device
 *
 * Return: bytes.
 */
u64 pvrdma_max_mr_size(const struct pvrdma_dev *dev)
{
	/* This may also be less: what the VM may have. */
	if (dev->ext.max_mr_pages)
		return (u64)dev->ext.max_mr_pages << PVRDMA_PAGE_SHIFT;
	return min((u64)PVRDMA_PDIR_MAX_PAGES << PVRDMA_PAGE_SHIFT,
		   dev->caps.max_mr_size);
}

static int mr_check(struct ib_device *ibdev, u64 start, u64 length, u64 iova,
		    int access)
{
	int known = MR_ACCESS;

	if (to_pvdev(ibdev)->ext.features & PVRDMA_EXT_FEAT_MEMWIN)
		known |= MR_ACCESS_MEMWIN;
	if (access & ~known)
		return pvrdma_refuse(ibdev, -EOPNOTSUPP, "access %#x", access);
	if (!length || length > pvrdma_max_mr_size(to_pvdev(ibdev)) ||
	    (start ^ iova) & (PVRDMA_PAGE_SIZE - 1))
		return pvrdma_refuse(ibdev, -EINVAL, "%llu bytes at %#llx as %#llx",
				     length, start, iova);
	return 0;
}

/* List the pages of @mr's memory. */
static int mr_list_pages(struct pvrdma_dev *dev, struct pvrdma_mr *mr)
{
	u64 npages = ib_umem_num_dma_blocks(mr->umem, PVRDMA_PAGE_SIZE);
	int ret;

	if (dev->ext.max_mr_pages)
		ret = pvrdma_pagedir_alloc_large(dev, &mr->dir, npages);
	else
		ret = pvrdma_pagedir_alloc(dev, &mr->dir, npages, false);
	if (!ret)
		pvrdma_pagedir_add_umem(&mr->dir, 0, mr->umem);
	return ret;
}

/* @umem becomes the region's or is released; it may be an error pointer. */
static struct ib_mr *mr_of_umem(struct ib_pd *ibpd, struct ib_umem *umem,
				u64 length, u64 iova, int access)
{
	struct pvrdma_dev *dev = to_pvdev(ibpd->device);
	struct pvrdma_cmd_create_mr req = {
		.start = iova,
		.length = length,
		.pd_handle = to_pvpd(ibpd)->handle,
		.access_flags = access & ~MR_HINTS,
	};
	struct pvrdma_mr *mr;
	int ret;

	if (IS_ERR(umem))
		return ERR_CAST(umem);
	mr = mr_new(ibpd);
	if (!mr) {
		ib_umem_release(umem);
		return ERR_PTR(-ENOMEM);
	}
	mr->umem = umem;
	mr->access = access;
	ret = mr_list_pages(dev, mr);
	if (ret) {
		mr_free(mr);
		return ERR_PTR(ret);
	}
	req.nchunks = mr->dir.npages;
	req.pdir_dma = mr->dir.dir_dma;
	if (mr->dir.top)
		req.flags = PVRDMA_EXT_MR_DEEP;
	return mr_create(mr, &req);
}

/**
 * pvrdma_reg_mr() - verb: a program's memory
 * @ibpd: protection domain
 * @start: the memory's address
 * @length: bytes, at most what the device allows
 * @iova: the address it has in work requests
 * @access: IB_ACCESS_*
 * @udata: a program's call
 *
 * Return: the region or an error pointer; -EINVAL if it is too large.
 */
struct ib_mr *pvrdma_reg_mr(struct ib_pd *ibpd, u64 start, u64 length, u64 iova,
			    int access, struct ib_udata *udata)
{
	int ret = pvrdma_uabi_none(ibpd->device, udata);

	if (!ret)
		ret = mr_check(ibpd->device, start, length, iova, access);
	if (ret)
		return ERR_PTR(ret);
	return mr_of_umem(ibpd,
			  pvrdma_umem_get(ibpd->device, start, length, access),
			  length, iova, access);
}

/**
 * pvrdma_reg_dmabuf_mr() - verb: memory of a DMA buffer
 * @ibpd: protection domain
 * @offset: of the region in the buffer
 * @length: bytes, at most what the device allows
 * @iova: the address it has in work requests
 * @fd: the buffer
 * @access: IB_ACCESS_*
 * @udata: a program's call
 *
 * The buffer stays pinned as long as the region lives.  It has to be the guest's
 * RAM: of other memory the device knows nothing and refuses it.
 *
 * Return: the region or an error pointer.
 */
struct ib_mr *pvrdma_reg_dmabuf_mr(struct ib_pd *ibpd, u64 offset, u64 length,
				   u64 iova, int fd, int access,
				   struct ib_udata *udata)
{
	struct ib_umem_dmabuf *buf;
	int ret = pvrdma_uabi_none(ibpd->device, udata);

	if (!ret)
		ret = mr_check(ibpd->device, offset, length, iova, access);
	if (ret)
		return ERR_PTR(ret);
	buf = ib_umem_dmabuf_get_pinned(ibpd->device, offset, length, fd, access);
	if (IS_ERR(buf))
		return ERR_PTR(pvrdma_refuse(ibpd->device, PTR_ERR(buf),
					     "%llu bytes at %#llx of a DMA buffer",
					     length, offset));
	buf->umem.iova = iova; /* by which its pages are counted */
	return mr_of_umem(ibpd, &buf->umem, length, iova, access);
}

/* Must the memory be pinned anew to be written by @access? */
static bool mr_needs_write(const struct pvrdma_mr *mr, int access)
{
	return ib_access_writable(access) && !mr->umem->writable;
}

/**
 * pvrdma_rereg_mr() - verb: change a region
 * @ibmr: region; it keeps its keys
 * @flags: what of the following is new, IB_MR_REREG_*
 * @start: the memory's address
 * @length: bytes
 * @iova: the address it has in work requests
 * @access: IB_ACCESS_*
 * @ibpd: protection domain
 * @udata: the program's call
 *
 * The device changes all of it at once, or nothing.
 *
 * Return: NULL, or an error pointer; -EBUSY if windows are bound to it.
 */
struct ib_mr *pvrdma_rereg_mr(struct ib_mr *ibmr, int flags, u64 start,
			      u64 length, u64 iova, int access,
			      struct ib_pd *ibpd, struct ib_udata *udata)
{
	struct pvrdma_dev *dev = to_pvdev(ibmr->device);
	struct pvrdma_mr *mr = to_pvmr(ibmr);
	struct pvrdma_mr pinned = {};
	struct pvrdma_ext_cmd_rereg_mr req = { .mr_handle = mr->handle };
	struct pvrdma_resp_create_mr resp;
	int ret;

	ret = pvrdma_uabi_none(ibmr->device, udata);
	if (!ret && flags & ~IB_MR_REREG_SUPPORTED)
		ret = pvrdma_refuse(ibmr->device, -EOPNOTSUPP, "flags %#x",
				    flags);
	/* The core takes the PD away that it has already. */
	if (!ret && !flags)
		return NULL;
	if (!(flags & IB_MR_REREG_ACCESS))
		access = mr->access;
	if (!(flags & IB_MR_REREG_TRANS)) {
		start = mr->umem->address;
		length = mr->umem->length;
		iova = start;
		if (mr_needs_write(mr, access)) {
			iova = ibmr->iova;
			flags |= IB_MR_REREG_TRANS;
			if (!ret && mr->umem->is_dmabuf)
				ret = pvrdma_refuse(ibmr->device, -EOPNOTSUPP,
						    "a DMA buffer as writable");
		}
	}
	if (!ret)
		ret = mr_check(ibmr->device, start, length, iova, access);
	if (ret)
		return ERR_PTR(ret);
	req.flags = flags;
	req.access_flags = access & ~MR_HINTS;
	if (flags & IB_MR_REREG_PD)
		req.pd_handle = to_pvpd(ibpd)->handle;
	if (flags & IB_MR_REREG_TRANS) {
		pinned.umem = pvrdma_umem_get(ibmr->device, start, length,
					      access);
		if (IS_ERR(pinned.umem))
			return ERR_CAST(pinned.umem);
		ret = mr_list_pages(dev, &pinned);
		if (ret)
			goto out;
		req.start = iova;
		req.length = length;
		req.nchunks = pinned.dir.npages;
		req.pdir_dma = pinned.dir.dir_dma;
		if (pinned.dir.top)
			req.mr_flags = PVRDMA_EXT_MR_DEEP;
	}
	ret = pvrdma_cmd_rereg_mr(dev, &req, &resp);
	if (ret)
		goto out;
	mr->access = access;
	if (flags & IB_MR_REREG_TRANS) {
		swap(pinned.umem, mr->umem);
		swap(pinned.dir, mr->dir);
	}
out:
	/* The memory that the device does not use any more: the new one, or the old. */
	pvrdma_pagedir_free(dev, &pinned.dir);
	ib_umem_release(pinned.umem);
	return ret ? ERR_PTR(ret) : NULL;
}

/**
 * pvrdma_fast_reg_max() - how many pages a fast registration can have
 * @dev: device
 *
 * Return: pages; 0 if the device lacks anything that kernel users take for
 * granted then.
 */
u32 pvrdma_fast_reg_max(const struct pvrdma_dev *dev)
{
	u8 all = PVRDMA_BMME_LOCAL_INV | PVRDMA_BMME_REMOTE_INV |
		 PVRDMA_BMME_FAST_REG;

	if ((dev->caps.bmme_flags & all) != all)
		return 0;
	if (dev->ext.features & PVRDMA_EXT_FEAT_FAST_REG)
		return PVRDMA_EXT_MAX_FAST_REG;
	return min(dev->caps.max_fast_reg_page_list_len,
		   PVRDMA_MAX_FAST_REG_PAGES);
}

/**
 * pvrdma_alloc_mr() - verb: a region for fast registration
 * @ibpd: protection domain
 * @type: IB_MR_TYPE_MEM_REG
 * @max_num_sg: pages at most
 *
 * Return: the region or an error pointer.
 */
struct ib_mr *pvrdma_alloc_mr(struct ib_pd *ibpd, enum ib_mr_type type,
			      u32 max_num_sg)
{
	struct pvrdma_dev *dev = to_pvdev(ibpd->device);
	struct pvrdma_cmd_create_mr req = {
		.pd_handle = to_pvpd(ibpd)->handle,
		.flags = PVRDMA_MR_FLAG_FRMR,
		.nchunks = max_num_sg,
	};
	struct pvrdma_mr *mr;
	int ret;

	if (type != IB_MR_TYPE_MEM_REG)
		return ERR_PTR(pvrdma_refuse(ibpd->device, -EOPNOTSUPP,
					     "type %d", type));
	if (!max_num_sg || max_num_sg > pvrdma_fast_reg_max(dev))
		return ERR_PTR(pvrdma_refuse(ibpd->device, -EINVAL, "%u pages",
					     max_num_sg));
	mr = mr_new(ibpd);
	if (!mr)
		return ERR_PTR(-ENOMEM);
	ret = pvrdma_pagedir_alloc(dev, &mr->dir, max_num_sg, false);
	if (ret) {
		mr_free(mr);
		return ERR_PTR(ret);
	}
	return mr_create(mr, &req);
}

static int mr_add_page(struct ib_mr *ibmr, u64 addr)
{
	struct pvrdma_mr *mr = to_pvmr(ibmr);

	if (mr->npages == mr->dir.npages)
		return -ENOMEM;
	pvrdma_pagedir_set(&mr->dir, mr->npages++, addr);
	return 0;
}

/**
 * pvrdma_map_mr_sg() - verb: the pages that the next registration is to have
 * @ibmr: region of pvrdma_alloc_mr(), without a key
 * @sg: the memory, mapped for DMA
 * @nents: entries
 * @offset: where in the first one it begins, or NULL
 *
 * Return: how many entries, maybe in part, it could take, or -EINVAL.
 */
int pvrdma_map_mr_sg(struct ib_mr *ibmr, struct scatterlist *sg, int nents,
		     unsigned int *offset)
{
	to_pvmr(ibmr)->npages = 0;
	if (ibmr->page_size != PVRDMA_PAGE_SIZE)
		return pvrdma_refuse(ibmr->device, -EINVAL, "pages of %u bytes",
				     ibmr->page_size);
	return ib_sg_to_pages(ibmr, sg, nents, offset, mr_add_page);
}

/**
 * pvrdma_dereg_mr() - verb
 * @ibmr: region
 * @udata: a program's call, or NULL
 *
 * Return: 0, or -EBUSY if windows of a program are bound to it.
 */
int pvrdma_dereg_mr(struct ib_mr *ibmr, struct ib_udata *udata)
{
	struct pvrdma_dev *dev = to_pvdev(ibmr->device);
	struct pvrdma_mr *mr = to_pvmr(ibmr);

	if (mr->access & IB_ACCESS_MW_BIND) {
		int ret = pvrdma_cmd_destroy_idle(dev, PVRDMA_CMD_DESTROY_MR,
						  mr->handle);

		if (ret)
			return pvrdma_refuse(ibmr->device, ret,
					     "windows are bound to region %#x",
					     ibmr->lkey);
	} else {
		pvrdma_cmd_destroy(dev, PVRDMA_CMD_DESTROY_MR, mr->handle);
	}
	mr_free(mr);
	return 0;
}
