// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Completion queues.
 *
 * Header page, then entries; a ring that the device fills and the user of the
 * CQ reads.  A program's ring is its provider's business.  The kernel's is read
 * here: an entry is copied once, then looked at; one that names no QP of this
 * CQ, or no WR of it that is outstanding, is skipped, which is also how entries
 * of a destroyed QP are dropped.
 *
 * A dead device completes nothing, but users wait for their WRs before they
 * let go of a QP.  So once the device uses no memory any more and the ring is
 * empty, polling finds the outstanding ones as flushed, and port.work calls the
 * users who wait for that.
 *
 * The handler of a kernel CQ is only called while a QP of it exists.  ib_core
 * stops the handler's work before it has the CQ destroyed, and what is called in
 * between would begin it again on a CQ that is freed; likewise before the CQ is
 * all set up.  In both times there is no QP.
 */
#include "cmd.h"
#include "pvrdma.h"
#include "uabi.h"

/* No QP has this handle. */
#define CQE_DROPPED U64_MAX

static u32 cq_size(const struct pvrdma_cq *cq)
{
	return cq->ibcq.cqe;
}

static struct pvrdma_cqe *cq_entry(const struct pvrdma_cq *cq, u32 index)
{
	u32 slot = pvrdma_idx_slot(index, cq_size(cq));

	return pvrdma_dir_ptr(&cq->dir, PVRDMA_PAGE_SIZE +
					slot * sizeof(struct pvrdma_cqe));
}

/* Is there an entry at @index?  An index from the device that is none: no. */
static bool cq_has(const struct pvrdma_cq *cq, u32 index)
{
	u32 tail = READ_ONCE(*cq->words.prod);

	if (!pvrdma_idx_valid(tail, cq_size(cq)) || tail == index)
		return false;
	/* The entry is read after the index. */
	dma_rmb();
	return true;
}

static u64 cq_bytes(u32 entries)
{
	return entries * sizeof(struct pvrdma_cqe) + PVRDMA_PAGE_SIZE;
}

static int cq_pages(struct pvrdma_dev *dev, struct pvrdma_cq *cq,
		    const struct pvrdma_uverbs_cq *ucmd, u32 entries, bool user)
{
	const struct pvrdma_user_buf buf = {
		.addr = ucmd->buf_addr,
		.size = ucmd->buf_size,
		.least = cq_bytes(entries),
		.umem = &cq->umem,
	};
	struct pvrdma_ext_ring *lines;
	int ret;

	if (user)
		return pvrdma_pin_rings(dev, &cq->dir, &buf, 1);
	ret = pvrdma_pagedir_alloc(dev, &cq->dir,
				   DIV_ROUND_UP(cq_bytes(entries),
						PVRDMA_PAGE_SIZE),
				   true);
	if (ret)
		return ret;
	pvrdma_words_init(&cq->words, &cq->dir, dev->kctx.flags, false);
	lines = cq->dir.page[0];
	if (dev->kctx.flags)
		cq->arm = &lines->arm.value;
	return 0;
}

static void cq_pages_free(struct pvrdma_dev *dev, struct pvrdma_cq *cq)
{
	pvrdma_pagedir_free(dev, &cq->dir);
	ib_umem_release(cq->umem);
}

/* Make it in the device and enter it in the table. */
static int cq_create(struct pvrdma_dev *dev, struct pvrdma_cq *cq, u32 ctx,
		     u32 flags)
{
	struct pvrdma_cmd_create_cq req = {
		.pdir_dma = cq->dir.dir_dma,
		.ctx_handle = ctx,
		.cqe = cq_size(cq),
		.nchunks = cq->dir.npages,
		.reserved = flags |
			    cq->vector << PVRDMA_EXT_CQ_VECTOR_SHIFT,
	};
	struct pvrdma_resp_create_cq resp;
	int ret;

	mutex_lock(&dev->table.lock);
	ret = pvrdma_cmd_create_cq(dev, &req, &resp);
	if (ret)
		goto out;
	cq->handle = resp.cq_handle;
	/* Another size would make ring arithmetic disagree. */
	ret = resp.cqe == req.cqe ? 0 : -EIO;
	if (!ret)
		ret = pvrdma_table_add(&dev->table.cqs, cq->handle,
				       dev->caps.max_cq, &cq->ref);
	if (ret)
		pvrdma_cmd_destroy(dev, PVRDMA_CMD_DESTROY_CQ, cq->handle);
out:
	mutex_unlock(&dev->table.lock);
	return ret;
}

static void cq_destroy(struct pvrdma_dev *dev, struct pvrdma_cq *cq)
{
	mutex_lock(&dev->table.lock);
	pvrdma_cmd_destroy(dev, PVRDMA_CMD_DESTROY_CQ, cq->handle);
	xa_erase_irq(&dev->table.cqs, cq->handle);
	mutex_unlock(&dev->table.lock);
	pvrdma_ref_end(&cq->ref);
	xa_destroy(&cq->qps);
	cq_pages_free(dev, cq);
}

/**
 * pvrdma_create_cq_udata() - verb, in the form of 6.1
 * @ibcq: to be made
 * @attr: at least how many entries
 * @udata: a program's call (struct pvrdma_uverbs_cq), or NULL
 *
 * Return: 0 or a negative errno.
 */
int pvrdma_create_cq_udata(struct ib_cq *ibcq,
			   const struct ib_cq_init_attr *attr,
			   struct ib_udata *udata)
{
	struct pvrdma_ucontext *ctx = pvrdma_udata_ctx(udata);
	struct pvrdma_dev *dev = to_pvdev(ibcq->device);
	struct pvrdma_cq *cq = to_pvcq(ibcq);
	struct pvrdma_uverbs_cq_resp out = {};
	struct pvrdma_uverbs_cq ucmd = {};
	u32 flags = dev->kctx.flags, known = PVRDMA_EXT_OBJ_RING;
	int ret;

	if (dev->ext.features & PVRDMA_EXT_FEAT_CQ_TIME)
		known |= PVRDMA_EXT_CQ_STAMPS;

	if (attr->flags)
		return pvrdma_refuse(&dev->ibdev, -EOPNOTSUPP, "flags %#x",
				     attr->flags);
	if (!attr->cqe || attr->cqe > dev->caps.max_cqe)
		return pvrdma_refuse(&dev->ibdev, -EINVAL,
				     "%u entries, at most %u", attr->cqe,
				     dev->caps.max_cqe);
	if (attr->comp_vector >= dev->num_vectors)
		return pvrdma_refuse(&dev->ibdev, -EINVAL,
				     "completion vector %u of %u",
				     attr->comp_vector, dev->num_vectors);
	if (udata) {
		ret = pvrdma_uabi_read(&dev->ibdev, udata, &ucmd, PVRDMA_UABI_CQ_STOCK,
				       sizeof(ucmd));
		if (ret)
			return ret;
		flags = ucmd.ext.flags;
		if (flags & ~known || ucmd.ext.max_inline ||
		    (flags && (!(flags & PVRDMA_EXT_OBJ_RING) ||
			       !(ctx->ext_features & PVRDMA_EXT_FEAT_RING))))
			return pvrdma_refuse(&dev->ibdev, -EOPNOTSUPP,
					     "extension %#x was not granted",
					     flags);
	}
	cq->vector = attr->comp_vector;
	cq->ibcq.cqe = roundup_pow_of_two(attr->cqe);
	spin_lock_init(&cq->lock);
	xa_init_flags(&cq->qps, XA_FLAGS_LOCK_IRQ);
	pvrdma_ref_init(&cq->ref);
	ret = cq_pages(dev, cq, &ucmd, cq->ibcq.cqe, udata);
	if (ret)
		return ret;
	ret = cq_create(dev, cq, ctx ? ctx->handle : 0, flags);
	if (ret) {
		cq_pages_free(dev, cq);
		return ret;
	}
	out.cqn = cq->handle;
	if (udata)
		ret = ib_copy_to_udata(udata, &out,
				       min(sizeof(out), udata->outlen));
	if (ret)
		cq_destroy(dev, cq);
	return ret;
}

/**
 * pvrdma_resize_cq() - verb
 * @ibcq: a program's CQ with extended layout
 * @cqe: at least how many entries
 * @udata: the program's call (struct pvrdma_uverbs_resize_cq)
 *
 * The program has another ring ready and does not read the present one meanwhile;
 * afterwards it reads in the old memory, which is its own again, what is left there.
 *
 * Return: 0 or a negative errno.
 */
int pvrdma_resize_cq(struct ib_cq *ibcq, unsigned int cqe, struct ib_udata *udata)
{
	struct pvrdma_dev *dev = to_pvdev(ibcq->device);
	struct pvrdma_cq *cq = to_pvcq(ibcq);
	struct pvrdma_ext_cmd_move_cq req = {};
	struct pvrdma_uverbs_resize_cq ucmd;
	struct pvrdma_resp_create_cq resp;
	struct pvrdma_pagedir dir = {};
	struct ib_umem *umem = NULL;
	struct pvrdma_user_buf buf = { .umem = &umem };
	int ret;

	if (!(dev->ext.features & PVRDMA_EXT_FEAT_CQ_EX) || !udata || !cq->umem)
		return pvrdma_refuse(&dev->ibdev, -EOPNOTSUPP,
				     "device or kind of CQ");
	if (!cqe || cqe > dev->caps.max_cqe)
		return pvrdma_refuse(&dev->ibdev, -EINVAL,
				     "%u entries, at most %u", cqe,
				     dev->caps.max_cqe);
	ret = pvrdma_uabi_read(&dev->ibdev, udata, &ucmd, sizeof(ucmd),
			       sizeof(ucmd));
	if (ret)
		return ret;
	req.cq_handle = cq->handle;
	req.cqe = roundup_pow_of_two(cqe);
	buf.addr = ucmd.buf_addr;
	buf.size = ucmd.buf_size;
	buf.least = cq_bytes(req.cqe);
	ret = pvrdma_pin_rings(dev, &dir, &buf, 1);
	if (ret)
		return ret;
	req.pdir_dma = dir.dir_dma;
	req.nchunks = dir.npages;
	/* Of several resizes at once each leaves a ring to the one after. */
	mutex_lock(&dev->table.lock);
	ret = pvrdma_cmd_move_cq(dev, &req, &resp);
	if (!ret) {
		swap(cq->umem, umem);
		swap(cq->dir, dir);
		ibcq->cqe = req.cqe;
	}
	mutex_unlock(&dev->table.lock);
	pvrdma_pagedir_free(dev, &dir);
	ib_umem_release(umem);
	return ret;
}

static int pvrdma_modify_cq(struct ib_cq *ibcq, u16 count, u16 period)
{
	struct pvrdma_ext_cmd_moderate_cq req = {
		.cq_handle = to_pvcq(ibcq)->handle,
		.count = count,
		.period = period,
	};

	return pvrdma_cmd_moderate_cq(to_pvdev(ibcq->device), &req);
}

const struct ib_device_ops pvrdma_moderate_ops = {
	.modify_cq = pvrdma_modify_cq,
};

/**
 * pvrdma_destroy_cq() - verb
 * @ibcq: CQ without QPs
 * @udata: a program's call, or NULL
 *
 * Return: 0.
 */
int pvrdma_destroy_cq(struct ib_cq *ibcq, struct ib_udata *udata)
{
	cq_destroy(to_pvdev(ibcq->device), to_pvcq(ibcq));
	return 0;
}

static enum ib_wc_opcode wc_opcode(u32 opcode)
{
	switch (opcode) {
	case PVRDMA_WC_RDMA_WRITE:
		return IB_WC_RDMA_WRITE;
	case PVRDMA_WC_RDMA_READ:
		return IB_WC_RDMA_READ;
	case PVRDMA_WC_COMP_SWAP:
		return IB_WC_COMP_SWAP;
	case PVRDMA_WC_FETCH_ADD:
		return IB_WC_FETCH_ADD;
	case PVRDMA_WC_LOCAL_INV:
		return IB_WC_LOCAL_INV;
	case PVRDMA_WC_FAST_REG:
		return IB_WC_REG_MR;
	case PVRDMA_WC_RECV:
		return IB_WC_RECV;
	case PVRDMA_WC_RECV_RDMA_WITH_IMM:
		return IB_WC_RECV_RDMA_WITH_IMM;
	default:
		return IB_WC_SEND;
	}
}

/* Wire flags that mean the same in the verbs API; VLAN and MAC are not kept. */
static int wc_flags(u32 flags)
{
	int ret = 0;

	if (flags & PVRDMA_WC_FLAG_GRH)
		ret |= IB_WC_GRH;
	if (flags & PVRDMA_WC_FLAG_IMM)
		ret |= IB_WC_WITH_IMM;
	if (flags & PVRDMA_WC_FLAG_INV)
		ret |= IB_WC_WITH_INVALIDATE;
	if (flags & PVRDMA_WC_FLAG_NETWORK_HDR_TYPE)
		ret |= IB_WC_WITH_NETWORK_HDR_TYPE;
	return ret;
}

/* The wire counts from RoCE v1, ib_core from InfiniBand. */
static u8 wc_network(u8 type)
{
	switch (type) {
	case PVRDMA_NETWORK_IPV4:
		return RDMA_NETWORK_IPV4;
	case PVRDMA_NETWORK_IPV6:
		return RDMA_NETWORK_IPV6;
	default:
		return RDMA_NETWORK_ROCE_V1;
	}
}

static void cqe_to_wc(const struct pvrdma_cqe *cqe, struct ib_qp *ibqp,
		      struct ib_wc *wc)
{
	memset(wc, 0, sizeof(*wc));
	wc->wr_id = cqe->wr_id;
	wc->status = cqe->status <= IB_WC_GENERAL_ERR ? cqe->status :
							IB_WC_GENERAL_ERR;
	wc->opcode = wc_opcode(cqe->opcode);
	wc->vendor_err = cqe->vendor_err;
	wc->byte_len = cqe->byte_len;
	wc->qp = ibqp;
	if (cqe->wc_flags & PVRDMA_WC_FLAG_INV)
		wc->ex.invalidate_rkey = cqe->imm_data;
	else
		wc->ex.imm_data = (__force __be32)cqe->imm_data;
	if (!(cqe->src_qp & PVRDMA_EXT_CQE_SENT))
		wc->src_qp = cqe->src_qp;
	wc->wc_flags = wc_flags(cqe->wc_flags);
	wc->pkey_index = cqe->pkey_index;
	wc->slid = cqe->slid;
	wc->sl = cqe->sl;
	wc->dlid_path_bits = cqe->dlid_path_bits;
	wc->port_num = cqe->port_num;
	wc->network_hdr_type = wc_network(cqe->network_hdr_type);
}

/* The queue whose WR a completion names, if it completes here. */
static struct pvrdma_wq *cqe_wq(struct pvrdma_cq *cq,
				const struct pvrdma_cqe *cqe,
				struct pvrdma_qp **qp)
{
	/* A QP leaves the table under cq->lock, before its memory goes. */
	*qp = cqe->qp <= U32_MAX ? xa_load(&cq->qps, cqe->qp) : NULL;
	if (!*qp)
		return NULL;
	if (cqe->opcode & PVRDMA_WC_RECV)
		return (*qp)->ibqp.recv_cq == &cq->ibcq ? &(*qp)->rq : NULL;
	return (*qp)->ibqp.send_cq == &cq->ibcq ? &(*qp)->sq : NULL;
}

/* Does a completion name a WR that is outstanding?  If so, it gets the user's wr_id. */
static bool cqe_complete(struct pvrdma_cq *cq, struct pvrdma_cqe *cqe,
			 struct pvrdma_qp **qp)
{
	struct pvrdma_wq *wq = cqe_wq(cq, cqe, qp);

	if (!wq)
		return false;
	if (wq == &(*qp)->rq && (*qp)->ibqp.srq)
		return pvrdma_srq_complete(to_pvsrq((*qp)->ibqp.srq), &cqe->wr_id);
	return pvrdma_wq_complete(wq, &cqe->wr_id);
}

/* Take one completion of the ring; false if there is none. */
static bool cq_poll_ring(struct pvrdma_cq *cq, struct ib_wc *wc)
{
	struct pvrdma_qp *qp;
	struct pvrdma_cqe cqe;
	u32 i;

	/* The device could go on adding entries that are skipped. */
	for (i = 0; i < cq_size(cq) && cq_has(cq, cq->head); i++) {
		cqe = *cq_entry(cq, cq->head);
		cq->head = pvrdma_idx_next(cq->head, cq_size(cq));
		/* The entry is free after it was copied. */
		smp_store_release(cq->words.cons, cq->head);
		if (cqe_complete(cq, &cqe, &qp)) {
			cqe_to_wc(&cqe, &qp->ibqp, wc);
			return true;
		}
	}
	return false;
}

/* Flush at most @num WRs of one queue. */
static int cq_flush_wq(struct pvrdma_qp *qp, struct pvrdma_wq *wq,
		       enum ib_wc_opcode opcode, int num, struct ib_wc *wc)
{
	u64 wr_id;
	int n;

	for (n = 0; n < num && pvrdma_wq_flush(wq, &wr_id); n++)
		wc[n] = (struct ib_wc){
			.wr_id = wr_id,
			.status = IB_WC_WR_FLUSH_ERR,
			.opcode = opcode,
			.qp = &qp->ibqp,
		};
	return n;
}

/* Flush at most @num WRs, if the device is dead. */
static int cq_flush(struct pvrdma_dev *dev, struct pvrdma_cq *cq, int num,
		    struct ib_wc *wc)
{
	unsigned long handle;
	struct pvrdma_qp *qp;
	int n = 0;

	if (!pvrdma_quiet(dev))
		return 0;
	xa_for_each(&cq->qps, handle, qp) {
		if (n == num)
			break;
		if (qp->ibqp.send_cq == &cq->ibcq)
			n += cq_flush_wq(qp, &qp->sq, IB_WC_SEND, num - n, wc + n);
		if (qp->ibqp.recv_cq == &cq->ibcq)
			n += cq_flush_wq(qp, &qp->rq, IB_WC_RECV, num - n, wc + n);
	}
	return n;
}

/* Is there something to flush? */
static bool cq_may_flush(struct pvrdma_dev *dev, struct pvrdma_cq *cq)
{
	unsigned long handle;
	struct pvrdma_qp *qp;

	if (!pvrdma_quiet(dev))
		return false;
	xa_for_each(&cq->qps, handle, qp)
		if ((qp->ibqp.send_cq == &cq->ibcq &&
		     pvrdma_wq_pending(&qp->sq)) ||
		    (qp->ibqp.recv_cq == &cq->ibcq &&
		     pvrdma_wq_pending(&qp->rq)))
			return true;
	return false;
}

/**
 * pvrdma_poll_cq() - verb, kernel CQs
 * @ibcq: CQ
 * @num: at most so many
 * @wc: get the completions
 *
 * Return: how many there were.
 */
int pvrdma_poll_cq(struct ib_cq *ibcq, int num, struct ib_wc *wc)
{
	struct pvrdma_dev *dev = to_pvdev(ibcq->device);
	struct pvrdma_cq *cq = to_pvcq(ibcq);
	unsigned long flags;
	int n = 0;

	if (cq->umem)
		return pvrdma_refuse(ibcq->device, -EINVAL, "a program's CQ");
	spin_lock_irqsave(&cq->lock, flags);
	while (n < num && cq_poll_ring(cq, &wc[n]))
		n++;
	n += cq_flush(dev, cq, num - n, wc + n);
	spin_unlock_irqrestore(&cq->lock, flags);
	return n;
}

/**
 * pvrdma_req_notify_cq() - verb, kernel CQs
 * @ibcq: CQ
 * @flags: which completions, and whether to tell of ones that are there
 *
 * Return: 1 if completions may be there already and that was asked for, or 0.
 */
int pvrdma_req_notify_cq(struct ib_cq *ibcq, enum ib_cq_notify_flags flags)
{
	struct pvrdma_dev *dev = to_pvdev(ibcq->device);
	struct pvrdma_cq *cq = to_pvcq(ibcq);
	unsigned long irq_flags;
	int ret = 0;

	spin_lock_irqsave(&cq->lock, irq_flags);
	WRITE_ONCE(cq->armed, true);
	pvrdma_arm_cq(dev, cq,
		      (flags & IB_CQ_SOLICITED_MASK) == IB_CQ_SOLICITED);
	if (flags & IB_CQ_REPORT_MISSED_EVENTS && !cq->umem)
		ret = cq_has(cq, cq->head) || cq_may_flush(dev, cq);
	spin_unlock_irqrestore(&cq->lock, irq_flags);
	return ret;
}

/**
 * pvrdma_cq_event() - call a CQ's handler
 * @cq: CQ; its table or a reference to a QP of it keeps it
 *
 * A kernel user's only if it asked for that, which who polls on his own never
 * does.
 */
void pvrdma_cq_event(struct pvrdma_cq *cq)
{
	struct ib_cq *ibcq = &cq->ibcq;

	if (!cq->umem && (xa_empty(&cq->qps) || !xchg(&cq->armed, false)))
		return;
	if (ibcq->comp_handler)
		ibcq->comp_handler(ibcq, ibcq->cq_context);
}

/* Tell who waits for an event that a queue will be flushed. */
static void cq_kick_wq(struct pvrdma_wq *wq, struct pvrdma_cq *cq)
{
	if (pvrdma_wq_pending(wq))
		pvrdma_cq_event(cq);
}

/**
 * pvrdma_cq_kick_all() - have the users of kernel CQs poll a dead device's
 * @dev: device, quiet
 *
 * As the device would: only who has WRs outstanding and asked for an event.  Of a QP
 * with an SRQ its user is told that it takes no more receives from there, for which
 * who drains it waits.
 * The reference to the QP keeps its CQ from being destroyed meanwhile.
 */
void pvrdma_cq_kick_all(struct pvrdma_dev *dev)
{
	struct pvrdma_ref *ref;
	unsigned long handle;
	struct pvrdma_qp *qp;

	xa_for_each(&dev->table.qps, handle, ref) {
		ref = pvrdma_ref_get(&dev->table.qps, handle);
		if (!ref)
			continue;
		qp = container_of(ref, struct pvrdma_qp, ref);
		if (!qp->sq_umem) {
			cq_kick_wq(&qp->sq, to_pvcq(qp->ibqp.send_cq));
			cq_kick_wq(&qp->rq, to_pvcq(qp->ibqp.recv_cq));
			/* Once until the QP is reset, by the device or here. */
			if (qp->ibqp.srq && !xchg(&qp->last_wqe, true))
				pvrdma_qp_event(ref, IB_EVENT_QP_LAST_WQE_REACHED);
		}
		pvrdma_ref_put(ref);
	}
}

/**
 * pvrdma_cq_attach() - a kernel QP will complete here
 * @cq: kernel CQ
 * @qp: QP with its handle
 *
 * The event that the user waits for may have come while no QP was there, and is
 * lost then (see pvrdma_cq_event()): the device is asked for another one.
 *
 * Return: 0 or a negative errno.
 */
int pvrdma_cq_attach(struct pvrdma_cq *cq, struct pvrdma_qp *qp)
{
	struct pvrdma_dev *dev = to_pvdev(cq->ibcq.device);
	int ret = xa_insert_irq(&cq->qps, qp->handle, qp, GFP_KERNEL);

	if (!ret && READ_ONCE(cq->armed))
		pvrdma_arm_cq(dev, cq, false);
	return ret;
}

/*
 * Drop a QP's entries, with what of its SRQ they end; cq->lock is held.  As in drivers
 * of hardware the walk is in one piece: once per QP, over what was not polled.
 */
static void cq_drop(struct pvrdma_cq *cq, const struct pvrdma_qp *qp)
{
	bool shared = qp->ibqp.srq && qp->ibqp.recv_cq == &cq->ibcq;
	struct pvrdma_cqe *cqe;
	u64 wr_id;
	u32 i, n;

	for (i = cq->head, n = 0; n < cq_size(cq) && cq_has(cq, i);
	     i = pvrdma_idx_next(i, cq_size(cq)), n++) {
		cqe = cq_entry(cq, i);
		if (cqe->qp != qp->handle)
			continue;
		cqe->qp = CQE_DROPPED;
		wr_id = READ_ONCE(cqe->wr_id);
		if (shared && READ_ONCE(cqe->opcode) & PVRDMA_WC_RECV)
			pvrdma_srq_complete(to_pvsrq(qp->ibqp.srq), &wr_id);
	}
}

/**
 * pvrdma_cq_detach() - a kernel QP is gone
 * @cq: of pvrdma_cq_attach()
 * @qp: QP that the device does not know any more
 */
void pvrdma_cq_detach(struct pvrdma_cq *cq, struct pvrdma_qp *qp)
{
	unsigned long flags;

	spin_lock_irqsave(&cq->lock, flags);
	cq_drop(cq, qp);
	xa_erase(&cq->qps, qp->handle);
	spin_unlock_irqrestore(&cq->lock, flags);
}

/**
 * pvrdma_cq_forget_qp() - drop the completions of a QP that is reset
 * @cq: kernel CQ
 * @qp: the QP
 *
 * The device adds none for it any more.  The entries stay in the ring, so that
 * the device sees its index move in order, but name no QP.
 */
void pvrdma_cq_forget_qp(struct pvrdma_cq *cq, const struct pvrdma_qp *qp)
{
	unsigned long flags;

	spin_lock_irqsave(&cq->lock, flags);
	cq_drop(cq, qp);
	spin_unlock_irqrestore(&cq->lock, flags);
}
