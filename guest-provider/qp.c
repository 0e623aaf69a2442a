/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The life of queue pairs.
 *
 * Memory: one buffer of a header page and the send WQEs, one of the receive
 * WQEs (none with an SRQ).  In the header page lie the four ring words: at
 * offset 0 in a stock QP, a cache line each in an extended one.
 *
 * A QP handle may be given out again as soon as the kernel has destroyed its
 * QP, while entries of the old one still lie in the CQs: the call that destroys it
 * may wait long for the program to acknowledge its events, and sweeps only then.
 * No lock can be held for so long.  So a destroyer makes known that it is at work
 * (`dying`), and who gets a handle for which one is cleans its own CQs of it
 * before it enters its QP in the table.  Entries in other CQs are dropped by polls,
 * or by the destroyer, which leaves a CQ alone that a new QP of the handle uses.
 */
#include "pvrdma.h"

/* ---- memory -------------------------------------------------------------------- */

static int pv_qp_size_send(struct pv_qp *qp, struct pv_context *ctx,
			   const struct ibv_qp_cap *cap)
{
	struct pv_wq *sq = &qp->sq;
	uint32_t inline_max = ctx->ext ? cap->max_inline_data : 0;
	uint32_t size, room;

	if (cap->max_send_wr > PV_MAX_SLOTS ||
	    cap->max_send_sge > PV_MAX_SGE ||
	    inline_max > ctx->max_inline) {
		pv_err(ctx,
		       "%u send requests of %u SGEs and %u inline bytes: at most %u, %u and %u",
		       cap->max_send_wr, cap->max_send_sge, inline_max,
		       PV_MAX_SLOTS, PV_MAX_SGE, ctx->max_inline);
		return EINVAL;
	}
	sq->lim.max_sge = cap->max_send_sge ? cap->max_send_sge : 1;
	sq->ring.n = pv_roundup_pow2(cap->max_send_wr ? cap->max_send_wr : 1);
	size = pv_sq_wqe_size(sq->lim.max_sge, inline_max);
	sq->wqe_shift = __builtin_ctz(size);
	/* What rounding up left over is there anyway: use it. */
	room = size - sizeof(struct pvrdma_sq_wqe_hdr);
	sq->lim.max_inline = room < ctx->max_inline ? room : ctx->max_inline;
	sq->lim.keys = ctx->memwin && qp->type == IBV_QPT_RC;
	return 0;
}

static int pv_qp_size_recv(struct pv_qp *qp, struct pv_context *ctx,
			   const struct ibv_qp_cap *cap)
{
	struct pv_wq *rq = &qp->rq;

	if (cap->max_recv_wr > PV_MAX_SLOTS ||
	    cap->max_recv_sge > PV_MAX_SGE) {
		pv_err(ctx, "%u receive requests of %u SGEs: at most %u and %u",
		       cap->max_recv_wr, cap->max_recv_sge, PV_MAX_SLOTS,
		       PV_MAX_SGE);
		return EINVAL;
	}
	rq->lim.max_sge = cap->max_recv_sge ? cap->max_recv_sge : 1;
	rq->ring.n = pv_roundup_pow2(cap->max_recv_wr ? cap->max_recv_wr : 1);
	rq->wqe_shift = __builtin_ctz(pv_rq_wqe_size(rq->lim.max_sge));
	return 0;
}

static void pv_qp_point_rings(struct pv_qp *qp, bool ext)
{
	if (ext) {
		struct pvrdma_ext_ring *h = qp->sbuf.addr;

		qp->sq.ring.prod = &h->tx_prod_tail.value;
		qp->sq.ring.cons = &qp->sq_polled;
		qp->sq_taken = &h->tx_cons_head.value;
		qp->rq.ring.prod = &h->rx_prod_tail.value;
		qp->rq.ring.cons = &h->rx_cons_head.value;
	} else {
		struct pvrdma_ring_state *h = qp->sbuf.addr;

		qp->sq.ring.prod = &h->tx.prod_tail;
		qp->sq.ring.cons = &h->tx.cons_head;
		qp->rq.ring.prod = &h->rx.prod_tail;
		qp->rq.ring.cons = &h->rx.cons_head;
	}
}

/* 0 or an errno; what was allocated pv_qp_free() frees. */
static int pv_qp_memory(struct pv_qp *qp, struct pv_context *ctx,
			const struct ibv_qp_cap *cap, bool srq)
{
	int ret = pv_qp_size_send(qp, ctx, cap);

	if (!ret && !srq)
		ret = pv_qp_size_recv(qp, ctx, cap);
	if (ret)
		return ret;
	ret = pv_buf_alloc(&qp->sbuf, PVRDMA_PAGE_SIZE +
				      ((size_t)qp->sq.ring.n
				       << qp->sq.wqe_shift));
	if (ret)
		return ret;
	qp->sq.slots = (char *)qp->sbuf.addr + PVRDMA_PAGE_SIZE;
	if (!srq) {
		ret = pv_buf_alloc(&qp->rbuf, (size_t)qp->rq.ring.n
						      << qp->rq.wqe_shift);
		if (ret)
			return ret;
		qp->rq.slots = qp->rbuf.addr;
	}
	pv_qp_point_rings(qp, ctx->ext);
	if (srq || !ctx->ext)
		return 0;
	qp->rq.gone = &ctx->ext->head.gone;
	qp->rq.ids = calloc(qp->rq.ring.n, sizeof(*qp->rq.ids));
	return qp->rq.ids ? 0 : ENOMEM;
}

static void pv_qp_free(struct pv_qp *qp)
{
	pv_lock_destroy(&qp->sq.lock);
	pv_lock_destroy(&qp->rq.lock);
	free(qp->rq.ids);
	pv_buf_free(&qp->rbuf);
	pv_buf_free(&qp->sbuf);
	free(qp);
}

/* What the program is told it got. */
static void pv_qp_report_cap(const struct pv_qp *qp, struct ibv_qp_cap *cap)
{
	cap->max_send_wr = qp->sq.ring.n;
	cap->max_send_sge = qp->sq.lim.max_sge;
	cap->max_recv_wr = qp->rq.slots ? qp->rq.ring.n : 0;
	cap->max_recv_sge = qp->rq.slots ? qp->rq.lim.max_sge : 0;
	cap->max_inline_data = qp->sq.lim.max_inline;
}

/* ---- the kernel's part ------------------------------------------------------- */

#if IBVERBS_PABI_VERSION == 34
/*
 * struct verbs_qp ends with comp_mask behind struct ibv_qp_ex, which has grown
 * by wr_flush between releases of rdma-core with the same provider ABI number:
 * libibverbs 44 looks for comp_mask where wr_flush is in the headers of 56.
 * libibverbs clears comp_mask, as it knows it, when it creates a QP; so marking
 * both places before the call shows which one it uses.
 */
_Static_assert(offsetof(struct verbs_qp, comp_mask) ==
	       offsetof(struct ibv_qp_ex, wr_flush) + sizeof(void *),
	       "ABI 34 has these two layouts");

static void pv_comp_mask_mark(struct pv_qp *qp)
{
	qp->vqp.comp_mask = ~0u;
	memset(&qp->vqp.qp_ex.wr_flush, 0xff, sizeof(qp->vqp.qp_ex.wr_flush));
}

static uint32_t *pv_comp_mask(struct pv_qp *qp)
{
	uint32_t *found = qp->vqp.comp_mask ?
				  (uint32_t *)&qp->vqp.qp_ex.wr_flush :
				  &qp->vqp.comp_mask;

	qp->vqp.qp_ex.wr_flush = NULL;
	qp->vqp.comp_mask = 0;
	return found;
}
#else
/* The number has changed with the layout since. */
static void pv_comp_mask_mark(struct pv_qp *qp)
{
}

static uint32_t *pv_comp_mask(struct pv_qp *qp)
{
	return &qp->vqp.comp_mask;
}
#endif

static int pv_kernel_create(struct pv_qp *qp, struct pv_context *ctx,
			    struct ibv_qp_init_attr_ex *attr,
			    uint32_t **comp_mask)
{
	struct pv_cmd_create_qp cmd = {};
	struct pv_cmd_create_qp_resp resp = {};
	int ret;

	cmd.drv_payload.sbuf_addr = (uintptr_t)qp->sbuf.addr;
	cmd.drv_payload.sbuf_size = qp->sbuf.length;
	cmd.drv_payload.rbuf_addr = (uintptr_t)qp->rbuf.addr;
	cmd.drv_payload.rbuf_size = qp->rbuf.length;
	cmd.drv_payload.ext.flags = ctx->ext ? PVRDMA_EXT_OBJ_RING : 0;
	cmd.drv_payload.ext.max_inline = qp->sq.lim.max_inline;
	pv_comp_mask_mark(qp);
	ret = ibv_cmd_create_qp_ex(&ctx->vctx.context, &qp->vqp, attr,
				   &cmd.ibv_cmd,
				   pv_obj_cmd_size(ctx, sizeof(cmd)),
				   &resp.ibv_resp, sizeof(resp));
	if (ret) {
		pv_debug(ctx, "kernel refuses a QP of %u sends, %u receives: %s",
			 attr->cap.max_send_wr, attr->cap.max_recv_wr,
			 strerror(ret));
		return ret;
	}
	*comp_mask = pv_comp_mask(qp);
	qp->vqp.xrcd = NULL;
	/* Older devices have one number for both. */
	qp->handle = resp.drv_payload.qp_handle ? resp.drv_payload.qp_handle :
						  qp->vqp.qp.qp_num;
	if (qp->handle >= PV_QP_TABLE) {
		pv_err(ctx, "device gives a QP the impossible handle %u",
		       qp->handle);
		ibv_cmd_destroy_qp(&qp->vqp.qp);
		return EIO;
	}
	return 0;
}

static void pv_qp_set_doorbells(struct pv_qp *qp, struct pv_context *ctx)
{
	const struct pvrdma_ext_ring *h = qp->sbuf.addr;

	qp->sq.db = &ctx->uar[PVRDMA_UAR_QP / 4];
	qp->sq.db_value = qp->handle | PVRDMA_UAR_QP_SEND;
	qp->rq.db = qp->sq.db;
	qp->rq.db_value = qp->handle | PVRDMA_UAR_QP_RECV;
	if (!ctx->ext)
		return;
	pv_bell_init(&qp->sq.bell, &ctx->ext->head, &ctx->ext->send,
		     &h->tx_no_notify, qp->handle);
	pv_bell_init(&qp->rq.bell, &ctx->ext->head, &ctx->ext->recv,
		     &h->rx_no_notify, qp->handle);
}

/* ---- the table of handles --------------------------------------------------- */

/*
 * In this order: who sees the new QP or its number sees none of the former one's CQs any
 * more, with which a completion of that one would count for this.
 */
static void pv_entry_set(struct pv_qp_entry *e, struct pv_qp *qp, uint32_t qpn,
			 struct pv_cq *send_cq, struct pv_cq *recv_cq)
{
	__atomic_store_n(&e->send_cq, NULL, __ATOMIC_RELEASE);
	__atomic_store_n(&e->recv_cq, NULL, __ATOMIC_RELEASE);
	__atomic_store_n(&e->qp, qp, __ATOMIC_RELEASE);
	__atomic_store_n(&e->qpn, qpn, __ATOMIC_RELEASE);
	__atomic_store_n(&e->send_cq, send_cq, __ATOMIC_RELEASE);
	__atomic_store_n(&e->recv_cq, recv_cq, __ATOMIC_RELEASE);
}

static void pv_qp_sweep(struct pv_qp *qp, bool unless_used)
{
	struct ibv_qp *ibqp = &qp->vqp.qp;

	pv_cq_clean(to_pv_cq(ibqp->recv_cq), qp->handle, unless_used);
	if (ibqp->send_cq != ibqp->recv_cq)
		pv_cq_clean(to_pv_cq(ibqp->send_cq), qp->handle, unless_used);
}

/* The kernel made the QP; from now on polls find its completions. */
static void pv_qp_enter(struct pv_qp *qp, struct pv_context *ctx)
{
	struct pv_qp_entry *e = &ctx->qp_tbl[qp->handle];
	struct ibv_qp *ibqp = &qp->vqp.qp;
	bool dying;

	pthread_mutex_lock(&ctx->qp_lock);
	dying = e->dying;
	pthread_mutex_unlock(&ctx->qp_lock);
	if (dying)
		pv_qp_sweep(qp, false);
	pthread_mutex_lock(&ctx->qp_lock);
	pv_entry_set(e, qp, ibqp->qp_num, to_pv_cq(ibqp->send_cq),
		     to_pv_cq(ibqp->recv_cq));
	if (ctx->qp_top <= qp->handle)
		ctx->qp_top = qp->handle + 1;
	pthread_mutex_unlock(&ctx->qp_lock);
}

/* Around the kernel's call that destroys the QP; @gone: it did. */
static void pv_qp_leave_begin(struct pv_qp *qp, struct pv_context *ctx)
{
	pthread_mutex_lock(&ctx->qp_lock);
	ctx->qp_tbl[qp->handle].dying++;
	pthread_mutex_unlock(&ctx->qp_lock);
}

static void pv_qp_leave_end(struct pv_qp *qp, struct pv_context *ctx, bool gone)
{
	struct pv_qp_entry *e = &ctx->qp_tbl[qp->handle];

	if (gone) {
		pthread_mutex_lock(&ctx->qp_lock);
		if (e->qp == qp)
			pv_entry_set(e, NULL, 0, NULL, NULL);
		pthread_mutex_unlock(&ctx->qp_lock);
		pv_qp_sweep(qp, true);
	}
	pthread_mutex_lock(&ctx->qp_lock);
	e->dying--;
	pthread_mutex_unlock(&ctx->qp_lock);
}

/* ---- create, destroy --------------------------------------------------------- */

/*
 * @attr: its capacities are replaced by the ones granted.  @comp_mask: where
 * libibverbs will look for this QP's.  NULL with errno set if it failed.
 */
static struct pv_qp *pv_qp_make(struct pv_context *ctx,
				struct ibv_qp_init_attr_ex *attr,
				uint32_t **comp_mask)
{
	struct pv_qp *qp;
	bool locked;
	int ret;

	if (attr->qp_type != IBV_QPT_RC && attr->qp_type != IBV_QPT_UC &&
	    attr->qp_type != IBV_QPT_UD) {
		pv_err(ctx, "QPs of type %d are not supported", attr->qp_type);
		errno = EOPNOTSUPP;
		return NULL;
	}
	qp = calloc(1, sizeof(*qp));
	if (!qp)
		return NULL;
	qp->type = attr->qp_type;
	qp->ud = qp->type == IBV_QPT_UD;
	locked = !to_pv_pd(attr->pd)->td;
	pv_lock_init(&qp->sq.lock, locked);
	pv_lock_init(&qp->rq.lock, locked);
	ret = pv_qp_memory(qp, ctx, &attr->cap, attr->srq);
	if (ret)
		goto err;
	pv_qp_report_cap(qp, &attr->cap);

	ret = pv_kernel_create(qp, ctx, attr, comp_mask);
	if (ret)
		goto err;
	pv_qp_enter(qp, ctx);
	pv_qp_set_doorbells(qp, ctx);
	/* The kernel's answer may have other numbers; ours are what holds. */
	pv_qp_report_cap(qp, &attr->cap);
	return qp;

err:
	pv_qp_free(qp);
	errno = ret;
	return NULL;
}

struct ibv_qp *pv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct ibv_qp_init_attr_ex attr_ex = {
		.qp_context = attr->qp_context,
		.send_cq = attr->send_cq,
		.recv_cq = attr->recv_cq,
		.srq = attr->srq,
		.cap = attr->cap,
		.qp_type = attr->qp_type,
		.sq_sig_all = attr->sq_sig_all,
		.comp_mask = IBV_QP_INIT_ATTR_PD,
		.pd = pd,
	};
	uint32_t *comp_mask;
	struct pv_qp *qp;

	qp = pv_qp_make(to_pv_ctx(pd->context), &attr_ex, &comp_mask);
	if (!qp)
		return NULL;
	attr->cap = attr_ex.cap;
	return &qp->vqp.qp;
}

struct ibv_qp *pv_create_qp_ex(struct ibv_context *context,
			       struct ibv_qp_init_attr_ex *attr)
{
	const uint32_t masks = IBV_QP_INIT_ATTR_PD |
			       IBV_QP_INIT_ATTR_CREATE_FLAGS |
			       IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	struct ibv_qp_init_attr_ex attr_ex = *attr;
	struct pv_context *ctx = to_pv_ctx(context);
	uint32_t *comp_mask;
	struct pv_qp *qp;

	if (!check_comp_mask(attr->comp_mask, masks) ||
	    ((attr->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) &&
	     attr->create_flags)) {
		pv_err(ctx, "QP attributes %#x or creation flags are not known",
		       attr->comp_mask);
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (!(attr->comp_mask & IBV_QP_INIT_ATTR_PD)) {
		pv_err(ctx, "a QP needs a protection domain");
		errno = EINVAL;
		return NULL;
	}
	attr_ex.comp_mask = IBV_QP_INIT_ATTR_PD;
	qp = pv_qp_make(ctx, &attr_ex, &comp_mask);
	if (!qp)
		return NULL;
	if (attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) {
		int ret = pv_wr_setup(qp, attr->send_ops_flags);

		if (ret) {
			pv_destroy_qp(&qp->vqp.qp);
			errno = ret;
			return NULL;
		}
		*comp_mask |= VERBS_QP_EX;
	}
	attr->cap = attr_ex.cap;
	return &qp->vqp.qp;
}

int pv_destroy_qp(struct ibv_qp *ibqp)
{
	struct pv_context *ctx = to_pv_ctx(ibqp->context);
	struct pv_qp *qp = to_pv_qp(ibqp);
	int ret;

	pv_qp_leave_begin(qp, ctx);
	ret = ibv_cmd_destroy_qp(ibqp);
	pv_qp_leave_end(qp, ctx, !ret);
	if (ret) {
		pv_debug(ctx, "kernel does not destroy QP %u: %s", ibqp->qp_num,
			 strerror(ret));
		return ret;
	}
	pv_qp_free(qp);
	return 0;
}

/* ---- modify, query ------------------------------------------------------------------- */

/*
 * The device forgot its ring positions and everything in flight; so do we.  A poll may
 * be flushing meanwhile: nothing is outstanding from the first step on.
 */
static void pv_qp_to_reset(struct pv_qp *qp)
{
	pv_qp_sweep(qp, false);
	pv_lock(&qp->sq.lock);
	__atomic_store_n(&qp->sq_polled, PV_DONE_ALL, __ATOMIC_SEQ_CST);
	pv_ring_reset(&qp->sq.ring);
	if (qp->sq_taken)
		__atomic_store_n(qp->sq_taken, 0, __ATOMIC_RELEASE);
	pv_unlock(&qp->sq.lock);
	pv_lock(&qp->rq.lock);
	__atomic_store_n(&qp->rq.done, PV_DONE_ALL, __ATOMIC_SEQ_CST);
	if (qp->rq.slots)
		pv_ring_reset(&qp->rq.ring);
	__atomic_store_n(&qp->rq.done, 0, __ATOMIC_SEQ_CST);
	pv_unlock(&qp->rq.lock);
}

int pv_modify_qp(struct ibv_qp *ibqp, struct ibv_qp_attr *attr, int attr_mask)
{
	struct ibv_modify_qp cmd;
	int ret;

	ret = ibv_cmd_modify_qp(ibqp, attr, attr_mask, &cmd, sizeof(cmd));
	if (ret)
		pv_debug(to_pv_ctx(ibqp->context),
			 "kernel does not change QP %u, attributes %#x: %s",
			 ibqp->qp_num, attr_mask, strerror(ret));
	if (!ret && (attr_mask & IBV_QP_STATE) &&
	    attr->qp_state == IBV_QPS_RESET)
		pv_qp_to_reset(to_pv_qp(ibqp));
	return ret;
}

int pv_query_qp(struct ibv_qp *ibqp, struct ibv_qp_attr *attr, int attr_mask,
		struct ibv_qp_init_attr *init_attr)
{
	struct ibv_query_qp cmd;
	int ret;

	ret = ibv_cmd_query_qp(ibqp, attr, attr_mask, init_attr, &cmd,
			       sizeof(cmd));
	if (ret)
		return ret;
	pv_qp_report_cap(to_pv_qp(ibqp), &init_attr->cap);
	attr->cap = init_attr->cap;
	return 0;
}
