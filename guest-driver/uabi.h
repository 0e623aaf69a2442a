/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The calls of programs: what pvrdma/uverbs.h says that they bring. */
#ifndef PVRDMA_UABI_H
#define PVRDMA_UABI_H

#include "pvrdma.h"
#include "pvrdma/uverbs.h"

/* Sizes of the stock requests. */
#define PVRDMA_UABI_CQ_STOCK offsetof(struct pvrdma_uverbs_cq, ext)
#define PVRDMA_UABI_QP_STOCK offsetof(struct pvrdma_uverbs_qp, ext)
#define PVRDMA_UABI_SRQ_STOCK offsetof(struct pvrdma_uverbs_srq, ext)

/* The calling program's context, NULL if the kernel calls. */
static inline struct pvrdma_ucontext *pvrdma_udata_ctx(struct ib_udata *udata)
{
	return rdma_udata_to_drv_context(udata, struct pvrdma_ucontext, ibctx);
}

/**
 * pvrdma_uabi_read() - copy a request that has a stock and an extended length
 * @ibdev: device
 * @udata: the call's data
 * @req: gets the request, zeroed behind what was sent
 * @stock: bytes that must be there
 * @size: bytes of @req
 *
 * A later program may send more: what it asks for there cannot be done unless
 * it is zero.
 *
 * Return: 0, -EINVAL if too short, -EOPNOTSUPP, or -EFAULT.
 */
static inline int pvrdma_uabi_read(struct ib_device *ibdev,
				   struct ib_udata *udata, void *req,
				   size_t stock, size_t size)
{
	memset(req, 0, size);
	if (udata->inlen < stock)
		return pvrdma_refuse(ibdev, -EINVAL, "%zu bytes, need %zu",
				     udata->inlen, stock);
	if (udata->inlen > size &&
	    !ib_is_udata_cleared(udata, size, udata->inlen - size))
		return pvrdma_refuse(ibdev, -EOPNOTSUPP,
				     "unknown request behind %zu bytes", size);
	return ib_copy_from_udata(req, udata, min(size, udata->inlen));
}

/**
 * pvrdma_uabi_none() - check a call that this driver wants nothing for
 * @ibdev: device
 * @udata: the call's data, or NULL
 *
 * Return: 0, or -EOPNOTSUPP if a later program asks for something.
 */
static inline int pvrdma_uabi_none(struct ib_device *ibdev,
				   struct ib_udata *udata)
{
	if (!udata || !udata->inlen ||
	    ib_is_udata_cleared(udata, 0, udata->inlen))
		return 0;
	return pvrdma_refuse(ibdev, -EOPNOTSUPP, "unknown request");
}

#endif /* PVRDMA_UABI_H */
