// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Memory regions: a program's memory, pinned and described to the device, and
 * the kernel's one region over all of memory.
 *
 * A region begins at the address that the program names for it (iova), which
 * lies at the same place in its page as the memory does; so the pages are the
 * same whether or not it is the memory's own address.
 */
#include <linux/slab.h>

#include "cmd.h"
#include "pvrdma.h"
#include "uabi.h"

/* Remaining capabilities are unknown to the device. */
#define MR_ACCESS                                                       \
	(IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE |               \
	 IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_ATOMIC | IB_ACCESS_OPTIONAL)

static int mr_create(struct pvrdma_mr *mr, struct pvrdma_cmd_create_mr *req)
{
	struct pvrdma_dev *dev = to_pvdev(mr->ibmr.device);
	struct pvrdma_resp_create_mr resp;
	int ret;

	ret = pvrdma_cmd_create_mr(dev, req, &resp);
	if (ret)
		return ret;
	mr->handle = resp.mr_handle;
	mr->ibmr.lkey = resp.lkey;
	mr->ibmr.rkey = resp.rkey;
	return 0;
}

static struct pvrdma_mr *mr_new(struct ib_pd *ibpd)
{
	struct pvrdma_mr *mr = kzalloc(sizeof(*mr), GFP_KERNEL);

	if (mr)
		mr->ibmr.device = ibpd->device;
	return mr;
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
	int ret;

	/* A key to all memory must never be of use to others. */
	if (access & ~IB_ACCESS_LOCAL_WRITE)
		return ERR_PTR(pvrdma_refuse(ibpd->device, -EOPNOTSUPP,
					     "access %#x", access));
	mr = mr_new(ibpd);
	if (!mr)
		return ERR_PTR(-ENOMEM);
	ret = mr_create(mr, &req);
	if (ret) {
		kfree(mr);
		return ERR_PTR(ret);
	}
	return &mr->ibmr;
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
	struct pvrdma_dev *dev = to_pvdev(ibpd->device);
	struct pvrdma_cmd_create_mr req = {
		.start = iova,
		.length = length,
		.pd_handle = to_pvpd(ibpd)->handle,
		.access_flags = access & ~IB_ACCESS_OPTIONAL,
	};
	struct pvrdma_mr *mr;
	int ret;

	ret = pvrdma_uabi_none(ibpd->device, udata);
	if (ret)
		return ERR_PTR(ret);
	if (access & ~MR_ACCESS)
		return ERR_PTR(pvrdma_refuse(ibpd->device, -EOPNOTSUPP,
					     "access %#x", access));
	if (!length || length > dev->caps.max_mr_size ||
	    length > (u64)PVRDMA_PDIR_MAX_PAGES << PVRDMA_PAGE_SHIFT ||
	    (start ^ iova) & (PVRDMA_PAGE_SIZE - 1))
		return ERR_PTR(pvrdma_refuse(ibpd->device, -EINVAL,
					     "%llu bytes at %#llx as %#llx",
					     length, start, iova));
	mr = mr_new(ibpd);
	if (!mr)
		return ERR_PTR(-ENOMEM);
	mr->umem = pvrdma_umem_get(ibpd->device, start, length, access);
	if (IS_ERR(mr->umem)) {
		ret = PTR_ERR(mr->umem);
		goto err_free;
	}
	req.nchunks = ib_umem_num_dma_blocks(mr->umem, PVRDMA_PAGE_SIZE);
	ret = pvrdma_pagedir_alloc(dev, &mr->dir, req.nchunks, false);
	if (ret)
		goto err_umem;
	pvrdma_pagedir_add_umem(&mr->dir, 0, mr->umem);
	req.pdir_dma = mr->dir.dir_dma;
	ret = mr_create(mr, &req);
	if (ret)
		goto err_dir;
	return &mr->ibmr;
err_dir:
	pvrdma_pagedir_free(dev, &mr->dir);
err_umem:
	ib_umem_release(mr->umem);
err_free:
	kfree(mr);
	return ERR_PTR(ret);
}

/**
 * pvrdma_dereg_mr() - verb
 * @ibmr: region
 * @udata: a program's call, or NULL
 *
 * Return: 0.
 */
int pvrdma_dereg_mr(struct ib_mr *ibmr, struct ib_udata *udata)
{
	struct pvrdma_dev *dev = to_pvdev(ibmr->device);
	struct pvrdma_mr *mr = to_pvmr(ibmr);

	pvrdma_cmd_destroy(dev, PVRDMA_CMD_DESTROY_MR, mr->handle);
	pvrdma_pagedir_free(dev, &mr->dir);
	ib_umem_release(mr->umem);
	kfree(mr);
	return 0;
}
