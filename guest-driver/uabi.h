/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What a provider sends and gets behind the core's structures, uverbs ABI
 * version 3 of RDMA_DRIVER_VMW_PVRDMA.  Our provider appends the extension
 * parts of pvrdma/ext.h; the stock provider leaves them out, and then they
 * read as zero here.
 */
#ifndef PVRDMA_UABI_H
#define PVRDMA_UABI_H

#include <linux/types.h>

#include "pvrdma.h"

struct pvrdma_uabi_pd_resp {
	__u32 pdn;
	__u32 reserved;
};

struct pvrdma_uabi_cq {
	__aligned_u64 buf_addr;
	__u32 buf_size;
	__u32 reserved;
	struct pvrdma_ext_obj_req ext;
};

struct pvrdma_uabi_cq_resp {
	__u32 cqn;
	__u32 reserved;
};

struct pvrdma_uabi_qp {
	__aligned_u64 rbuf_addr;
	__aligned_u64 sbuf_addr;
	__u32 rbuf_size;
	__u32 sbuf_size;
	__aligned_u64 qp_addr;
	struct pvrdma_ext_obj_req ext;
};

struct pvrdma_uabi_qp_resp {
	__u32 qpn;
	__u32 qp_handle;
};

/* Sizes of the stock requests. */
#define PVRDMA_UABI_CQ_STOCK offsetof(struct pvrdma_uabi_cq, ext)
#define PVRDMA_UABI_QP_STOCK offsetof(struct pvrdma_uabi_qp, ext)

/* The calling program's context, NULL if the kernel calls. */
static inline struct pvrdma_ucontext *pvrdma_udata_ctx(struct ib_udata *udata)
{
	return rdma_udata_to_drv_context(udata, struct pvrdma_ucontext, ibctx);
}

/**
 * pvrdma_uabi_read() - copy a request that has a stock and an extended length
 * @udata: the call's data
 * @req: gets the request, zeroed behind what was sent
 * @stock: bytes that must be there
 * @size: bytes of @req
 *
 * Return: 0, -EINVAL if too short, or -EFAULT.
 */
static inline int pvrdma_uabi_read(struct ib_udata *udata, void *req,
				   size_t stock, size_t size)
{
	memset(req, 0, size);
	if (udata->inlen < stock)
		return -EINVAL;
	return ib_copy_from_udata(req, udata, min(size, udata->inlen));
}

#endif /* PVRDMA_UABI_H */
