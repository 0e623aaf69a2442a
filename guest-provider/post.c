/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * ibv_post_send, ibv_post_recv and their SRQ cousin.
 *
 * The WQEs of a list are written one after the other and handed over together:
 * one producer index, one notification.  Where a request cannot be taken, those
 * before it go out and *bad_wr names it.
 *
 * Threads: under the queue's lock.
 */
#include "pvrdma.h"

int pv_post_send(struct ibv_qp *ibqp, struct ibv_send_wr *wr,
		 struct ibv_send_wr **bad_wr)
{
	struct pv_qp *qp = to_pv_qp(ibqp);
	struct pv_wq *sq = &qp->sq;
	uint32_t first;
	int ret = 0;

	/* The rest of the state machine is the device's. */
	if (unlikely(ibqp->state < IBV_QPS_RTS)) {
		pv_err_datapath(to_pv_ctx(ibqp->context),
				"QP %u cannot send yet", ibqp->qp_num);
		*bad_wr = wr;
		return EINVAL;
	}
	pv_lock(&sq->lock);
	for (first = sq->ring.tail; wr; wr = wr->next) {
		if (unlikely(!pv_ring_has_space(&sq->ring)))
			ret = ENOMEM;
		else
			ret = pv_wqe_send(pv_wq_slot(sq), &sq->lim, qp->ud, wr);
		if (unlikely(ret)) {
			pv_err_datapath(to_pv_ctx(ibqp->context),
					"send %llu on QP %u refused: %s",
					(unsigned long long)wr->wr_id,
					ibqp->qp_num, strerror(ret));
			*bad_wr = wr;
			break;
		}
		pv_wq_advance(sq);
	}
	if (sq->ring.tail != first)
		pv_wq_submit(sq);
	pv_unlock(&sq->lock);
	return ret;
}

/* Post receives to a QP's own or a shared queue. */
int pv_wq_recv(struct pv_wq *wq, struct ibv_recv_wr *wr,
	       struct ibv_recv_wr **bad_wr)
{
	uint32_t first;
	int ret = 0;

	pv_lock(&wq->lock);
	for (first = wq->ring.tail; wr; wr = wr->next) {
		struct pvrdma_rq_wqe_hdr *wqe = pv_wq_slot(wq);

		if (unlikely(!pv_wq_has_space(wq)))
			ret = ENOMEM;
		else
			ret = pv_wqe_recv(wqe, wq->lim.max_sge, wr);
		if (unlikely(ret)) {
			*bad_wr = wr;
			break;
		}
		wqe->wr_id = pv_wq_name(wq, wr->wr_id);
		pv_wq_advance(wq);
	}
	if (wq->ring.tail != first)
		pv_wq_submit(wq);
	pv_unlock(&wq->lock);
	return ret;
}

int pv_post_recv(struct ibv_qp *ibqp, struct ibv_recv_wr *wr,
		 struct ibv_recv_wr **bad_wr)
{
	struct pv_qp *qp = to_pv_qp(ibqp);
	int ret;

	if (unlikely(!qp->rq.slots || ibqp->state == IBV_QPS_RESET)) {
		pv_err_datapath(to_pv_ctx(ibqp->context),
				"QP %u has no receive queue now", ibqp->qp_num);
		*bad_wr = wr;
		return EINVAL;
	}
	ret = pv_wq_recv(&qp->rq, wr, bad_wr);
	if (unlikely(ret))
		pv_err_datapath(to_pv_ctx(ibqp->context),
				"receive %llu on QP %u refused: %s",
				(unsigned long long)(*bad_wr)->wr_id,
				ibqp->qp_num, strerror(ret));
	return ret;
}

int pv_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr,
		     struct ibv_recv_wr **bad_wr)
{
	int ret = pv_wq_recv(&to_pv_srq(srq)->rq, wr, bad_wr);

	if (unlikely(ret))
		pv_err_datapath(to_pv_ctx(srq->context),
				"receive %llu on SRQ %u refused: %s",
				(unsigned long long)(*bad_wr)->wr_id,
				to_pv_srq(srq)->srqn, strerror(ret));
	return ret;
}
