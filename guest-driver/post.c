// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Posting of work requests by kernel users; programs post by themselves.
 *
 * A WQE is written whole, then the producer index is published, then the
 * device is rung if that is needed (kctx.c), once for a list.  The index that
 * the device publishes for what it consumed only serves to know what is free.
 *
 * The device is told the WQE's index in place of the user's wr_id, and names
 * it in the completion.  So what is outstanding is known here, and what the
 * user gets back is what the user gave.  A QP of a dead device is like one in
 * the error state: what is posted is flushed, see cqueue.c.
 */
#include "pvrdma.h"

static void *wq_slot(const struct pvrdma_pagedir *dir, struct pvrdma_wq *wq)
{
	return pvrdma_dir_ptr(dir,
			      (wq->first_page << PVRDMA_PAGE_SHIFT) +
				      pvrdma_idx_slot(wq->prod, wq->nwqe) *
					      wq->wqe_size);
}

/* Posted and not known to be done. */
static u32 wq_used(const struct pvrdma_wq *wq)
{
	return (wq->prod - wq->cons) & (2 * wq->nwqe - 1);
}

static bool wq_full(const struct pvrdma_wq *wq, bool dead)
{
	u32 head = READ_ONCE(*wq->words.cons);

	if (wq_used(wq) >= wq->nwqe)
		return true;
	return !dead && (!pvrdma_idx_valid(head, wq->nwqe) ||
			 wq->prod == (head ^ wq->nwqe));
}

/**
 * pvrdma_wq_complete() - account for a completion
 * @wq: queue
 * @wr_id: what the device says; gets the user's
 *
 * A queue is worked on in order, so WRs before it that made no completion are
 * done, too.
 *
 * Return: false if the device named none that is outstanding.
 */
bool pvrdma_wq_complete(struct pvrdma_wq *wq, u64 *wr_id)
{
	unsigned long flags;
	u32 index = *wr_id;
	bool ret = false;

	spin_lock_irqsave(&wq->lock, flags);
	if (*wr_id < 2 * wq->nwqe &&
	    ((index - wq->cons) & (2 * wq->nwqe - 1)) < wq_used(wq)) {
		*wr_id = wq->wr_id[pvrdma_idx_slot(index, wq->nwqe)];
		wq->cons = pvrdma_idx_next(index, wq->nwqe);
		ret = true;
	}
	spin_unlock_irqrestore(&wq->lock, flags);
	return ret;
}

/**
 * pvrdma_wq_pending() - is a WR outstanding?
 * @wq: queue
 *
 * Return: true if one is.
 */
bool pvrdma_wq_pending(struct pvrdma_wq *wq)
{
	unsigned long flags;
	bool ret;

	spin_lock_irqsave(&wq->lock, flags);
	ret = wq_used(wq);
	spin_unlock_irqrestore(&wq->lock, flags);
	return ret;
}

/**
 * pvrdma_wq_flush() - take the oldest WR of a dead device's queue
 * @wq: queue
 * @wr_id: gets the user's
 *
 * Return: false if none is outstanding.
 */
bool pvrdma_wq_flush(struct pvrdma_wq *wq, u64 *wr_id)
{
	unsigned long flags;
	bool ret;

	spin_lock_irqsave(&wq->lock, flags);
	ret = wq_used(wq);
	if (ret) {
		*wr_id = wq->wr_id[pvrdma_idx_slot(wq->cons, wq->nwqe)];
		wq->cons = pvrdma_idx_next(wq->cons, wq->nwqe);
	}
	spin_unlock_irqrestore(&wq->lock, flags);
	return ret;
}

/**
 * pvrdma_wq_reset() - empty a queue
 * @wq: queue of a QP in the RESET state
 */
void pvrdma_wq_reset(struct pvrdma_wq *wq)
{
	unsigned long flags;

	spin_lock_irqsave(&wq->lock, flags);
	wq->prod = 0;
	wq->cons = 0;
	WRITE_ONCE(*wq->words.prod, 0);
	WRITE_ONCE(*wq->words.cons, 0);
	spin_unlock_irqrestore(&wq->lock, flags);
}

static void wq_publish(struct pvrdma_wq *wq, u64 wr_id)
{
	wq->wr_id[pvrdma_idx_slot(wq->prod, wq->nwqe)] = wr_id;
	wq->prod = pvrdma_idx_next(wq->prod, wq->nwqe);
	/* The index shows what was written before it. */
	smp_store_release(wq->words.prod, wq->prod);
}

static void put_sges(struct pvrdma_sge *to, const struct ib_sge *from, int n)
{
	int i;

	for (i = 0; i < n; i++) {
		to[i].addr = from[i].addr;
		to[i].length = from[i].length;
		to[i].lkey = from[i].lkey;
	}
}

/* The pages are in the region's directory since it was mapped. */
static int put_reg(struct pvrdma_sq_wqe_hdr *wqe, const struct ib_reg_wr *wr)
{
	const struct pvrdma_mr *mr = to_pvmr(wr->mr);

	if (!mr->npages || wr->mr->length > U32_MAX)
		return -EINVAL;
	wqe->wr.fast_reg.iova_start = wr->mr->iova;
	wqe->wr.fast_reg.pl_pdir_dma = mr->dir.dir_dma;
	wqe->wr.fast_reg.page_shift = PVRDMA_PAGE_SHIFT;
	wqe->wr.fast_reg.page_list_len = mr->npages;
	wqe->wr.fast_reg.length = wr->mr->length;
	wqe->wr.fast_reg.access_flags = wr->access & ~IB_ACCESS_OPTIONAL;
	wqe->wr.fast_reg.rkey = wr->key;
	return 0;
}

static int put_rdma(struct pvrdma_sq_wqe_hdr *wqe, const struct ib_send_wr *wr)
{
	switch (wr->opcode) {
	case IB_WR_SEND:
	case IB_WR_SEND_WITH_IMM:
		return 0;
	case IB_WR_SEND_WITH_INV:
	case IB_WR_LOCAL_INV:
		wqe->imm_data = wr->ex.invalidate_rkey;
		return 0;
	case IB_WR_REG_MR:
		return put_reg(wqe, reg_wr(wr));
	case IB_WR_RDMA_WRITE:
	case IB_WR_RDMA_WRITE_WITH_IMM:
	case IB_WR_RDMA_READ:
		wqe->wr.rdma.remote_addr = rdma_wr(wr)->remote_addr;
		wqe->wr.rdma.rkey = rdma_wr(wr)->rkey;
		return 0;
	case IB_WR_ATOMIC_CMP_AND_SWP:
		wqe->wr.atomic.swap = atomic_wr(wr)->swap;
		fallthrough;
	case IB_WR_ATOMIC_FETCH_AND_ADD:
		wqe->wr.atomic.remote_addr = atomic_wr(wr)->remote_addr;
		wqe->wr.atomic.rkey = atomic_wr(wr)->rkey;
		wqe->wr.atomic.compare_add = atomic_wr(wr)->compare_add;
		return 0;
	default:
		return -EINVAL;
	}
}

static int put_ud(const struct pvrdma_qp *qp, struct pvrdma_sq_wqe_hdr *wqe,
		  const struct ib_send_wr *wr)
{
	u32 qkey = ud_wr(wr)->remote_qkey;

	if (wr->opcode != IB_WR_SEND && wr->opcode != IB_WR_SEND_WITH_IMM)
		return -EINVAL;
	if (!ud_wr(wr)->ah)
		return -EINVAL;
	wqe->wr.ud.remote_qpn = ud_wr(wr)->remote_qpn;
	/* A set top bit asks for the QP's own. */
	wqe->wr.ud.remote_qkey = qkey & 0x80000000 ? qp->qkey : qkey;
	wqe->wr.ud.av = to_pvah(ud_wr(wr)->ah)->av;
	return 0;
}

static u32 wqe_opcode(enum ib_wr_opcode opcode)
{
	switch (opcode) {
	case IB_WR_RDMA_WRITE:
		return PVRDMA_WR_RDMA_WRITE;
	case IB_WR_RDMA_WRITE_WITH_IMM:
		return PVRDMA_WR_RDMA_WRITE_WITH_IMM;
	case IB_WR_SEND_WITH_IMM:
		return PVRDMA_WR_SEND_WITH_IMM;
	case IB_WR_RDMA_READ:
		return PVRDMA_WR_RDMA_READ;
	case IB_WR_ATOMIC_CMP_AND_SWP:
		return PVRDMA_WR_ATOMIC_CMP_AND_SWP;
	case IB_WR_ATOMIC_FETCH_AND_ADD:
		return PVRDMA_WR_ATOMIC_FETCH_AND_ADD;
	case IB_WR_SEND_WITH_INV:
		return PVRDMA_WR_SEND_WITH_INV;
	case IB_WR_LOCAL_INV:
		return PVRDMA_WR_LOCAL_INV;
	case IB_WR_REG_MR:
		return PVRDMA_WR_FAST_REG;
	default:
		return PVRDMA_WR_SEND;
	}
}

static u32 wqe_flags(const struct pvrdma_qp *qp, int flags)
{
	u32 ret = 0;

	if (flags & IB_SEND_FENCE)
		ret |= PVRDMA_SEND_FENCE;
	if (flags & IB_SEND_SIGNALED || qp->sq_sig_all)
		ret |= PVRDMA_SEND_SIGNALED;
	if (flags & IB_SEND_SOLICITED)
		ret |= PVRDMA_SEND_SOLICITED;
	return ret;
}

static int send_one(struct pvrdma_qp *qp, const struct ib_send_wr *wr,
		    bool dead)
{
	struct pvrdma_sq_wqe_hdr *wqe;
	int ret;

	if (wq_full(&qp->sq, dead))
		return -ENOMEM;
	if (wr->num_sge < 0 || wr->num_sge > qp->sq.max_sge ||
	    wr->send_flags & IB_SEND_INLINE)
		return -EINVAL;
	wqe = wq_slot(&qp->dir, &qp->sq);
	memset(wqe, 0, sizeof(*wqe));
	/* Only a datagram's request has an address handle behind it. */
	if (qp->ibqp.qp_type == IB_QPT_UD || qp->ibqp.qp_type == IB_QPT_GSI)
		ret = put_ud(qp, wqe, wr);
	else
		ret = put_rdma(wqe, wr);
	if (ret)
		return ret;
	wqe->wr_id = qp->sq.prod;
	wqe->num_sge = wr->num_sge;
	wqe->opcode = wqe_opcode(wr->opcode);
	wqe->send_flags = wqe_flags(qp, wr->send_flags);
	if (wr->opcode == IB_WR_SEND_WITH_IMM ||
	    wr->opcode == IB_WR_RDMA_WRITE_WITH_IMM)
		wqe->imm_data = (__force u32)wr->ex.imm_data;
	put_sges((struct pvrdma_sge *)(wqe + 1), wr->sg_list, wr->num_sge);
	wq_publish(&qp->sq, wr->wr_id);
	return 0;
}

/**
 * pvrdma_post_send() - verb, kernel QPs
 * @ibqp: QP in RTS or beyond
 * @wr: list of requests
 * @bad: the one that failed
 *
 * Return: 0, -ENOMEM if the queue is full, or -EINVAL.
 */
int pvrdma_post_send(struct ib_qp *ibqp, const struct ib_send_wr *wr,
		     const struct ib_send_wr **bad)
{
	struct pvrdma_dev *dev = to_pvdev(ibqp->device);
	struct pvrdma_qp *qp = to_pvqp(ibqp);
	bool posted = false, dead;
	unsigned long flags;
	int ret = 0;

	if (qp->sq_umem || READ_ONCE(qp->state) < IB_QPS_RTS) {
		*bad = wr;
		return pvrdma_refuse(ibqp->device, -EINVAL,
				     "QP %u cannot send yet", ibqp->qp_num);
	}
	spin_lock_irqsave(&qp->sq.lock, flags);
	/* Under the lock: else who flushes could be done before this is in. */
	dead = pvrdma_dead(dev);
	for (; wr; wr = wr->next) {
		ret = send_one(qp, wr, dead);
		if (ret) {
			*bad = pvrdma_refuse(ibqp->device, wr,
					     "opcode %d of %d SGEs on QP %u: %d",
					     wr->opcode, wr->num_sge,
					     ibqp->qp_num, ret);
			break;
		}
		posted = true;
	}
	if (posted && dead)
		pvrdma_port_changed(dev);
	else if (posted)
		pvrdma_ring_qp(dev, qp, true);
	spin_unlock_irqrestore(&qp->sq.lock, flags);
	return ret;
}

/**
 * pvrdma_put_recv() - write a receive WQE
 * @dir: pages of the queue
 * @wq: queue with room at its producer index, which stays
 * @wr: request with no more SGEs than @wq takes
 * @wr_id: what the device is to name it
 */
void pvrdma_put_recv(const struct pvrdma_pagedir *dir, struct pvrdma_wq *wq,
		     const struct ib_recv_wr *wr, u64 wr_id)
{
	struct pvrdma_rq_wqe_hdr *wqe = wq_slot(dir, wq);

	wqe->wr_id = wr_id;
	wqe->num_sge = wr->num_sge;
	wqe->total_len = 0;
	put_sges((struct pvrdma_sge *)(wqe + 1), wr->sg_list, wr->num_sge);
}

static int recv_one(struct pvrdma_qp *qp, const struct ib_recv_wr *wr,
		    bool dead)
{
	if (wr->num_sge < 0 || wr->num_sge > qp->rq.max_sge)
		return -EINVAL;
	if (wq_full(&qp->rq, dead))
		return -ENOMEM;
	pvrdma_put_recv(&qp->dir, &qp->rq, wr, qp->rq.prod);
	wq_publish(&qp->rq, wr->wr_id);
	return 0;
}

/**
 * pvrdma_post_recv() - verb, kernel QPs
 * @ibqp: QP beyond RESET
 * @wr: list of requests
 * @bad: the one that failed
 *
 * Return: 0, -ENOMEM if the queue is full, or -EINVAL.
 */
int pvrdma_post_recv(struct ib_qp *ibqp, const struct ib_recv_wr *wr,
		     const struct ib_recv_wr **bad)
{
	struct pvrdma_dev *dev = to_pvdev(ibqp->device);
	struct pvrdma_qp *qp = to_pvqp(ibqp);
	bool posted = false, dead;
	unsigned long flags;
	int ret = 0;

	if (qp->sq_umem || ibqp->srq || READ_ONCE(qp->state) == IB_QPS_RESET) {
		*bad = wr;
		return pvrdma_refuse(ibqp->device, -EINVAL,
				     "QP %u has no receive queue now",
				     ibqp->qp_num);
	}
	spin_lock_irqsave(&qp->rq.lock, flags);
	dead = pvrdma_dead(dev);
	for (; wr; wr = wr->next) {
		ret = recv_one(qp, wr, dead);
		if (ret) {
			*bad = pvrdma_refuse(ibqp->device, wr,
					     "%d SGEs on QP %u: %d", wr->num_sge,
					     ibqp->qp_num, ret);
			break;
		}
		posted = true;
	}
	if (posted && dead)
		pvrdma_port_changed(dev);
	else if (posted)
		pvrdma_ring_qp(dev, qp, false);
	spin_unlock_irqrestore(&qp->rq.lock, flags);
	return ret;
}
