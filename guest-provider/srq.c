/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Shared receive queues: a header page, then the WQEs.  In the header page lies the
 * ring state: the second pair of words at offset 0 in stock mode, a cache line each
 * in an extended one, with a word that tells when the doorbell need not be rung.
 *
 * A completion does not give a slot back, the device does when it reads the WQE.  So
 * taking entries of a dead QP off a CQ has nothing to return here.
 */
#include "pvrdma.h"

static void pv_srq_point_ring(struct pv_srq *srq, bool ext)
{
	struct pv_ring *ring = &srq->rq.ring;

	if (ext) {
		struct pvrdma_ext_ring *h = srq->buf.addr;

		ring->prod = &h->rx_prod_tail.value;
		ring->cons = &h->rx_cons_head.value;
		srq->rq.bell.no_notify = &h->rx_no_notify.value;
	} else {
		struct pvrdma_ring_state *h = srq->buf.addr;

		ring->prod = &h->rx.prod_tail;
		ring->cons = &h->rx.cons_head;
	}
}

static int pv_srq_prepare(struct pv_srq *srq, struct pv_context *ctx,
			  struct ibv_srq_attr *attr, bool locked)
{
	struct pv_wq *rq = &srq->rq;
	uint32_t size;
	int ret;

	if (attr->max_wr > PV_MAX_SLOTS || attr->max_sge > PV_MAX_SGE) {
		pv_err(ctx, "an SRQ of %u requests of %u SGEs: at most %u and %u",
		       attr->max_wr, attr->max_sge, PV_MAX_SLOTS, PV_MAX_SGE);
		return EINVAL;
	}
	rq->lim.max_sge = attr->max_sge ? attr->max_sge : 1;
	rq->ring.n = pv_roundup_pow2(attr->max_wr ? attr->max_wr : 1);
	size = pv_rq_wqe_size(rq->lim.max_sge);
	rq->wqe_shift = __builtin_ctz(size);
	ret = pv_buf_alloc(&srq->buf,
			   PVRDMA_PAGE_SIZE + (size_t)rq->ring.n * size);
	if (ret)
		return ret;
	pv_srq_point_ring(srq, ctx->ext);
	rq->slots = (char *)srq->buf.addr + PVRDMA_PAGE_SIZE;
	rq->db = &ctx->uar[PVRDMA_UAR_SRQ / 4];
	pv_lock_init(&rq->lock, locked);
	return 0;
}

struct ibv_srq *pv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	struct pv_context *ctx = to_pv_ctx(pd->context);
	struct pv_cmd_create_srq cmd = {};
	struct pv_cmd_create_srq_resp resp = {};
	struct pv_srq *srq = calloc(1, sizeof(*srq));
	int ret;

	if (!srq)
		return NULL;
	ret = pv_srq_prepare(srq, ctx, &attr->attr, !to_pv_pd(pd)->td);
	if (ret)
		goto err;
	attr->attr.max_wr = srq->rq.ring.n;
	attr->attr.max_sge = srq->rq.lim.max_sge;
	cmd.drv_payload.buf_addr = (uintptr_t)srq->buf.addr;
	cmd.drv_payload.buf_size = srq->buf.length;
	cmd.drv_payload.ext.flags = ctx->ext ? PVRDMA_EXT_OBJ_RING : 0;
	ret = ibv_cmd_create_srq(pd, &srq->vsrq.srq, attr, &cmd.ibv_cmd,
				 pv_obj_cmd_size(ctx, sizeof(cmd)),
				 &resp.ibv_resp, sizeof(resp));
	if (ret) {
		pv_debug(ctx, "kernel refuses an SRQ of %u requests: %s",
			 srq->rq.ring.n, strerror(ret));
		pv_lock_destroy(&srq->rq.lock);
		pv_buf_free(&srq->buf);
		goto err;
	}
	srq->srqn = resp.drv_payload.srqn;
	srq->rq.db_value = srq->srqn | PVRDMA_UAR_SRQ_RECV;
	return &srq->vsrq.srq;

err:
	free(srq);
	errno = ret;
	return NULL;
}

int pv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask)
{
	struct ibv_modify_srq cmd;
	int ret = ibv_cmd_modify_srq(srq, attr, mask, &cmd, sizeof(cmd));

	if (ret)
		pv_debug(to_pv_ctx(srq->context),
			 "kernel does not change SRQ %u, attributes %#x: %s",
			 to_pv_srq(srq)->srqn, mask, strerror(ret));
	return ret;
}

int pv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr)
{
	struct ibv_query_srq cmd;

	return ibv_cmd_query_srq(srq, attr, &cmd, sizeof(cmd));
}

int pv_destroy_srq(struct ibv_srq *ibsrq)
{
	struct pv_srq *srq = to_pv_srq(ibsrq);
	int ret = ibv_cmd_destroy_srq(ibsrq);

	if (ret) {
		pv_debug(to_pv_ctx(ibsrq->context),
			 "kernel does not destroy SRQ %u: %s", srq->srqn,
			 strerror(ret));
		return ret;
	}
	pv_lock_destroy(&srq->rq.lock);
	pv_buf_free(&srq->buf);
	free(srq);
	return 0;
}
