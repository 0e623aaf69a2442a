// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Shared receive queues.
 *
 * Pages: a header page, whose second pair of words is the ring state, then the
 * WQEs.  A program brings one buffer of both, and posts by itself; it may ask
 * for the extended layout (pvrdma/ext.h).  The kernel's pages are allocated
 * here.
 *
 * The WRs of an SRQ complete on many QPs and in any order, and one whose QP was
 * reset or destroyed while a message was filling it does not complete at all; for
 * its user it is outstanding for as long as there is the SRQ.  So other than a QP's
 * own queue (post.c) a kernel user's SRQ has a table of what is outstanding, apart
 * from the ring: the device is told the place in it in place of the user's wr_id,
 * and names it in the completion.  As many as the SRQ has slots may be outstanding.
 * Nothing is flushed when the device dies; who made an SRQ takes back what it posted
 * when it has destroyed it.
 */
#include <linux/mm.h>

#include "cmd.h"
#include "pvrdma.h"
#include "uabi.h"

/* As the next of a free place: there is none.  As that of one in use: it is. */
#define SRQ_NONE U32_MAX
#define SRQ_USED (U32_MAX - 1)

static int srq_table(struct pvrdma_srq *srq, u32 n)
{
	u32 i;

	srq->wr = kvcalloc(n, sizeof(*srq->wr), GFP_KERNEL);
	if (!srq->wr)
		return -ENOMEM;
	for (i = 0; i < n; i++)
		srq->wr[i].next = i + 1 < n ? i + 1 : SRQ_NONE;
	return 0;
}

/**
 * pvrdma_srq_complete() - account for a completion
 * @srq: a kernel user's
 * @wr_id: what the device says; gets the user's
 *
 * Any context.
 *
 * Return: false if the device named none that is outstanding.
 */
bool pvrdma_srq_complete(struct pvrdma_srq *srq, u64 *wr_id)
{
	struct pvrdma_srq_wr *wr;
	unsigned long flags;
	bool ret = false;

	spin_lock_irqsave(&srq->rq.lock, flags);
	if (*wr_id < srq->rq.nwqe && srq->wr[*wr_id].next == SRQ_USED) {
		wr = &srq->wr[*wr_id];
		wr->next = srq->free;
		srq->free = *wr_id;
		*wr_id = wr->wr_id;
		ret = true;
	}
	spin_unlock_irqrestore(&srq->rq.lock, flags);
	return ret;
}

static int srq_pages_kernel(struct pvrdma_dev *dev, struct pvrdma_srq *srq,
			    struct ib_srq_attr *attr)
{
	struct pvrdma_wq *rq = &srq->rq;
	int ret;

	spin_lock_init(&rq->lock);
	attr->max_sge = max(attr->max_sge, 1u);
	pvrdma_wq_init(rq, attr->max_wr, attr->max_sge,
		       pvrdma_rq_wqe_size(attr->max_sge));
	/* A WQE must not cross pages here. */
	if (rq->wqe_size > PVRDMA_PAGE_SIZE)
		return pvrdma_refuse(&dev->ibdev, -EINVAL, "WQEs of %u bytes",
				     rq->wqe_size);
	attr->max_wr = rq->nwqe;
	rq->first_page = 1;
	ret = srq_table(srq, rq->nwqe);
	if (ret)
		return ret;
	ret = pvrdma_pagedir_alloc(dev, &srq->dir,
				   1 + (u64)pvrdma_wq_pages(rq), true);
	if (!ret)
		pvrdma_words_init(&rq->words, &srq->dir, dev->kctx.flags, false);
	return ret;
}

static int srq_pages_user(struct pvrdma_dev *dev, struct pvrdma_srq *srq,
			  const struct pvrdma_uverbs_srq *ucmd)
{
	const struct pvrdma_user_buf buf = {
		.addr = ucmd->buf_addr,
		.size = ucmd->buf_size,
		.least = PVRDMA_PAGE_SIZE + 1,
		.umem = &srq->umem,
	};

	return pvrdma_pin_rings(dev, &srq->dir, &buf, 1);
}

static void srq_pages_free(struct pvrdma_dev *dev, struct pvrdma_srq *srq)
{
	pvrdma_pagedir_free(dev, &srq->dir);
	kvfree(srq->wr);
	ib_umem_release(srq->umem);
}

/* Make it in the device and enter it in the table. */
static int srq_create(struct pvrdma_dev *dev, struct pvrdma_srq *srq,
		      const struct ib_srq_attr *attr, u32 flags)
{
	struct pvrdma_cmd_create_srq req = {
		.pdir_dma = srq->dir.dir_dma,
		.pd_handle = to_pvpd(srq->ibsrq.pd)->handle,
		.nchunks = srq->dir.npages,
		.attrs = {
			.max_wr = attr->max_wr,
			.max_sge = attr->max_sge,
		},
		.srq_type = PVRDMA_SRQT_BASIC,
		.reserved = { flags },
	};
	struct pvrdma_resp_handle resp;
	int ret;

	mutex_lock(&dev->table.lock);
	ret = pvrdma_cmd_create_srq(dev, &req, &resp);
	if (ret)
		goto out;
	srq->handle = resp.handle;
	ret = pvrdma_table_add(&dev->table.srqs, srq->handle,
			       dev->caps.max_srq, &srq->ref);
	if (ret)
		pvrdma_cmd_destroy(dev, PVRDMA_CMD_DESTROY_SRQ, srq->handle);
out:
	mutex_unlock(&dev->table.lock);
	return ret;
}

static void srq_destroy(struct pvrdma_dev *dev, struct pvrdma_srq *srq)
{
	mutex_lock(&dev->table.lock);
	pvrdma_cmd_destroy(dev, PVRDMA_CMD_DESTROY_SRQ, srq->handle);
	xa_erase_irq(&dev->table.srqs, srq->handle);
	mutex_unlock(&dev->table.lock);
	pvrdma_ref_end(&srq->ref);
	srq_pages_free(dev, srq);
}

static int srq_check(struct pvrdma_dev *dev, const struct ib_srq_init_attr *init)
{
	const struct pvrdma_caps *caps = &dev->caps;

	if (!caps->max_srq || init->srq_type != IB_SRQT_BASIC)
		return pvrdma_refuse(&dev->ibdev, -EOPNOTSUPP, "type %d",
				     init->srq_type);
	if (init->attr.max_wr > caps->max_srq_wr ||
	    init->attr.max_sge > caps->max_srq_sge)
		return pvrdma_refuse(&dev->ibdev, -EINVAL,
				     "%u WRs of %u SGEs, at most %u of %u",
				     init->attr.max_wr, init->attr.max_sge,
				     caps->max_srq_wr, caps->max_srq_sge);
	return 0;
}

static int srq_request(struct ib_device *ibdev, struct ib_udata *udata,
		       struct pvrdma_uverbs_srq *ucmd)
{
	struct pvrdma_ucontext *ctx = pvrdma_udata_ctx(udata);
	int ret = pvrdma_uabi_read(ibdev, udata, ucmd, PVRDMA_UABI_SRQ_STOCK,
				   sizeof(*ucmd));

	if (ret)
		return ret;
	if (ucmd->ext.flags & ~PVRDMA_EXT_OBJ_RING || ucmd->ext.max_inline ||
	    (ucmd->ext.flags && !(ctx->ext_features & PVRDMA_EXT_FEAT_RING)))
		return pvrdma_refuse(ibdev, -EOPNOTSUPP,
				     "extension %#x was not granted",
				     ucmd->ext.flags);
	return 0;
}

/**
 * pvrdma_create_srq() - verb
 * @ibsrq: to be made
 * @init: type and capacities; a kernel user gets those that there are
 * @udata: a program's call (struct pvrdma_uverbs_srq), or NULL
 *
 * Return: 0 or a negative errno.
 */
int pvrdma_create_srq(struct ib_srq *ibsrq, struct ib_srq_init_attr *init,
		      struct ib_udata *udata)
{
	struct pvrdma_dev *dev = to_pvdev(ibsrq->device);
	struct pvrdma_srq *srq = to_pvsrq(ibsrq);
	struct pvrdma_uverbs_srq_resp out = {};
	struct pvrdma_uverbs_srq ucmd = {};
	int ret;

	ret = srq_check(dev, init);
	if (!ret && udata)
		ret = srq_request(&dev->ibdev, udata, &ucmd);
	if (ret)
		return ret;
	pvrdma_ref_init(&srq->ref);
	if (!udata)
		ucmd.ext.flags = dev->kctx.flags;
	if (udata)
		ret = srq_pages_user(dev, srq, &ucmd);
	else
		ret = srq_pages_kernel(dev, srq, &init->attr);
	if (!ret)
		ret = srq_create(dev, srq, &init->attr, ucmd.ext.flags);
	if (ret) {
		srq_pages_free(dev, srq);
		return ret;
	}
	out.srqn = srq->handle;
	if (udata)
		ret = ib_copy_to_udata(udata, &out,
				       min(sizeof(out), udata->outlen));
	if (ret)
		srq_destroy(dev, srq);
	return ret;
}

/**
 * pvrdma_modify_srq() - verb
 * @ibsrq: SRQ
 * @attr: new attributes
 * @mask: which of them; the size is not changed
 * @udata: a program's call, or NULL
 *
 * Return: 0 or a negative errno.
 */
int pvrdma_modify_srq(struct ib_srq *ibsrq, struct ib_srq_attr *attr,
		      enum ib_srq_attr_mask mask, struct ib_udata *udata)
{
	struct pvrdma_dev *dev = to_pvdev(ibsrq->device);
	struct pvrdma_cmd_modify_srq req = {
		.srq_handle = to_pvsrq(ibsrq)->handle,
		.attr_mask = PVRDMA_SRQ_LIMIT,
		.attrs = { .srq_limit = attr->srq_limit },
	};
	int ret = pvrdma_uabi_none(ibsrq->device, udata);

	if (ret)
		return ret;
	if (mask & ~IB_SRQ_LIMIT)
		return pvrdma_refuse(&dev->ibdev, -EOPNOTSUPP, "mask %#x", mask);
	return mask ? pvrdma_cmd_modify_srq(dev, &req) : 0;
}

/**
 * pvrdma_query_srq() - verb
 * @ibsrq: SRQ
 * @attr: gets the attributes
 *
 * Return: 0 or a negative errno.
 */
int pvrdma_query_srq(struct ib_srq *ibsrq, struct ib_srq_attr *attr)
{
	struct pvrdma_dev *dev = to_pvdev(ibsrq->device);
	struct pvrdma_cmd_handle req = { .handle = to_pvsrq(ibsrq)->handle };
	struct pvrdma_resp_query_srq resp;
	int ret;

	ret = pvrdma_cmd_query_srq(dev, &req, &resp);
	if (ret)
		return ret;
	attr->max_wr = resp.attrs.max_wr;
	attr->max_sge = resp.attrs.max_sge;
	attr->srq_limit = resp.attrs.srq_limit;
	return 0;
}

/**
 * pvrdma_destroy_srq() - verb
 * @ibsrq: SRQ without QPs
 * @udata: a program's call, or NULL
 *
 * Return: 0.
 */
int pvrdma_destroy_srq(struct ib_srq *ibsrq, struct ib_udata *udata)
{
	srq_destroy(to_pvdev(ibsrq->device), to_pvsrq(ibsrq));
	return 0;
}

static int srq_post_one(struct pvrdma_srq *srq, const struct ib_recv_wr *wr)
{
	struct pvrdma_wq *rq = &srq->rq;
	u32 head = READ_ONCE(*rq->words.cons);
	u32 place = srq->free;

	if (wr->num_sge < 0 || wr->num_sge > rq->max_sge)
		return -EINVAL;
	if (!pvrdma_idx_valid(head, rq->nwqe) ||
	    rq->prod == (head ^ rq->nwqe) || place == SRQ_NONE)
		return -ENOMEM;
	srq->free = srq->wr[place].next;
	srq->wr[place].wr_id = wr->wr_id;
	srq->wr[place].next = SRQ_USED;
	pvrdma_put_recv(&srq->dir, rq, wr, place);
	rq->prod = pvrdma_idx_next(rq->prod, rq->nwqe);
	/* The index shows what was written before it. */
	smp_store_release(rq->words.prod, rq->prod);
	return 0;
}

/**
 * pvrdma_post_srq_recv() - verb, kernel SRQs
 * @ibsrq: SRQ
 * @wr: list of requests
 * @bad: the one that failed
 *
 * Return: 0, -ENOMEM if the queue is full, or -EINVAL.
 */
int pvrdma_post_srq_recv(struct ib_srq *ibsrq, const struct ib_recv_wr *wr,
			 const struct ib_recv_wr **bad)
{
	struct pvrdma_dev *dev = to_pvdev(ibsrq->device);
	struct pvrdma_srq *srq = to_pvsrq(ibsrq);
	bool posted = false;
	unsigned long flags;
	int ret = 0;

	if (srq->umem) {
		*bad = wr;
		return pvrdma_refuse(&dev->ibdev, -EINVAL, "a program's SRQ");
	}
	spin_lock_irqsave(&srq->rq.lock, flags);
	for (; wr; wr = wr->next) {
		ret = srq_post_one(srq, wr);
		if (ret) {
			*bad = pvrdma_refuse(&dev->ibdev, wr, "%d SGEs: %d",
					     wr->num_sge, ret);
			break;
		}
		posted = true;
	}
	if (posted && !pvrdma_dead(dev))
		pvrdma_ring_srq(dev, srq);
	spin_unlock_irqrestore(&srq->rq.lock, flags);
	return ret;
}
