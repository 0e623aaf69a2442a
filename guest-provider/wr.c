/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The ibv_wr_* calls of ibv_create_qp_ex.
 *
 * wr_start takes the send queue's lock and remembers where the batch begins;
 * each operation takes a slot and writes its header, and the setters that follow
 * fill in that slot; wr_complete publishes all of them with one notification.
 * Nothing is visible to the device before that, so undoing a batch is putting
 * the index back.  The first error of a batch is kept and makes wr_complete
 * undo and return it.
 *
 * They work in stock mode too: it is only another way to write the same WQEs.
 */
#include "pvrdma.h"

#define PV_RC_OPS                                                             \
	(IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |     \
	 IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |                 \
	 IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |       \
	 IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD)
#define PV_UC_OPS                                                             \
	(IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |     \
	 IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM)
#define PV_KEY_OPS                                                            \
	(IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV |                  \
	 IBV_QP_EX_WITH_SEND_WITH_INV)
#define PV_UD_OPS (IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM)

static struct pv_qp *qp_of_ex(struct ibv_qp_ex *qp)
{
	return container_of(qp, struct pv_qp, vqp.qp_ex);
}

static void pv_wr_fail(struct pv_qp *qp, int err)
{
	if (!qp->wr_err)
		qp->wr_err = err;
}

static void pv_wr_start(struct ibv_qp_ex *ibqp)
{
	struct pv_qp *qp = qp_of_ex(ibqp);

	pv_lock(&qp->sq.lock);
	qp->wr_first = qp->sq.ring.tail;
	qp->wr_cur = NULL;
	qp->wr_err = unlikely(ibqp->qp_base.state < IBV_QPS_RTS) ? EINVAL : 0;
}

static void pv_wr_abort(struct ibv_qp_ex *ibqp)
{
	struct pv_qp *qp = qp_of_ex(ibqp);

	qp->sq.ring.tail = qp->wr_first;
	qp->wr_cur = NULL;
	pv_unlock(&qp->sq.lock);
}

static int pv_wr_complete(struct ibv_qp_ex *ibqp)
{
	struct pv_qp *qp = qp_of_ex(ibqp);
	int err = qp->wr_err;

	if (unlikely(err)) {
		pv_err_datapath(to_pv_ctx(ibqp->qp_base.context),
				"batch on QP %u refused: %s",
				ibqp->qp_base.qp_num, strerror(err));
		pv_wr_abort(ibqp);
		return err;
	}
	if (qp->sq.ring.tail != qp->wr_first)
		pv_wq_submit(&qp->sq);
	qp->wr_cur = NULL;
	pv_unlock(&qp->sq.lock);
	return 0;
}

/*
 * Take a slot and start its WQE.  NULL after an error: the callers and the
 * setters then do nothing.
 */
static struct pvrdma_sq_wqe_hdr *pv_wr_begin(struct ibv_qp_ex *ibqp,
					     uint32_t opcode)
{
	struct pv_qp *qp = qp_of_ex(ibqp);

	qp->wr_cur = NULL;
	if (unlikely(qp->wr_err))
		return NULL;
	if (unlikely(!pv_ring_has_space(&qp->sq.ring))) {
		pv_wr_fail(qp, ENOMEM);
		return NULL;
	}
	qp->wr_cur = pv_wq_slot(&qp->sq);
	pv_wqe_begin(qp->wr_cur, ibqp->wr_id, opcode, ibqp->wr_flags);
	pv_wq_advance(&qp->sq);
	return qp->wr_cur;
}

/* ---- operations ------------------------------------------------------------------- */

static void pv_wr_send(struct ibv_qp_ex *ibqp)
{
	pv_wr_begin(ibqp, PVRDMA_WR_SEND);
}

static void pv_wr_send_imm(struct ibv_qp_ex *ibqp, __be32 imm_data)
{
	struct pvrdma_sq_wqe_hdr *hdr =
		pv_wr_begin(ibqp, PVRDMA_WR_SEND_WITH_IMM);

	if (hdr)
		hdr->imm_data = imm_data;
}

static void pv_wr_rdma(struct ibv_qp_ex *ibqp, uint32_t opcode, uint32_t rkey,
		       uint64_t remote_addr, uint32_t imm_data)
{
	struct pvrdma_sq_wqe_hdr *hdr = pv_wr_begin(ibqp, opcode);

	if (!hdr)
		return;
	hdr->imm_data = imm_data;
	pv_wqe_rdma(hdr, remote_addr, rkey);
}

static void pv_wr_rdma_write(struct ibv_qp_ex *ibqp, uint32_t rkey,
			     uint64_t remote_addr)
{
	pv_wr_rdma(ibqp, PVRDMA_WR_RDMA_WRITE, rkey, remote_addr, 0);
}

static void pv_wr_rdma_write_imm(struct ibv_qp_ex *ibqp, uint32_t rkey,
				 uint64_t remote_addr, __be32 imm_data)
{
	pv_wr_rdma(ibqp, PVRDMA_WR_RDMA_WRITE_WITH_IMM, rkey, remote_addr,
		   imm_data);
}

static void pv_wr_rdma_read(struct ibv_qp_ex *ibqp, uint32_t rkey,
			    uint64_t remote_addr)
{
	pv_wr_rdma(ibqp, PVRDMA_WR_RDMA_READ, rkey, remote_addr, 0);
}

static void pv_wr_atomic_cmp_swp(struct ibv_qp_ex *ibqp, uint32_t rkey,
				 uint64_t remote_addr, uint64_t compare,
				 uint64_t swap)
{
	struct pvrdma_sq_wqe_hdr *hdr =
		pv_wr_begin(ibqp, PVRDMA_WR_ATOMIC_CMP_AND_SWP);

	if (hdr)
		pv_wqe_atomic(hdr, remote_addr, rkey, compare, swap);
}

static void pv_wr_atomic_fetch_add(struct ibv_qp_ex *ibqp, uint32_t rkey,
				   uint64_t remote_addr, uint64_t add)
{
	struct pvrdma_sq_wqe_hdr *hdr =
		pv_wr_begin(ibqp, PVRDMA_WR_ATOMIC_FETCH_AND_ADD);

	if (hdr)
		pv_wqe_atomic(hdr, remote_addr, rkey, add, 0);
}

static void pv_wr_send_inv(struct ibv_qp_ex *ibqp, uint32_t invalidate_rkey)
{
	struct pvrdma_sq_wqe_hdr *hdr =
		pv_wr_begin(ibqp, PVRDMA_WR_SEND_WITH_INV);

	if (hdr)
		hdr->imm_data = invalidate_rkey;
}

static void pv_wr_local_inv(struct ibv_qp_ex *ibqp, uint32_t invalidate_rkey)
{
	struct pvrdma_sq_wqe_hdr *hdr = pv_wr_begin(ibqp, PVRDMA_WR_LOCAL_INV);

	if (hdr)
		hdr->imm_data = invalidate_rkey;
}

static void pv_wr_bind_mw(struct ibv_qp_ex *ibqp, struct ibv_mw *mw,
			  uint32_t rkey,
			  const struct ibv_mw_bind_info *bind_info)
{
	struct pvrdma_sq_wqe_hdr *hdr = pv_wr_begin(ibqp, PVRDMA_WR_BIND_MW);

	if (hdr)
		pv_wqe_bind_mw(hdr, rkey, bind_info);
}

/* ---- setters ----------------------------------------------------------------------- */

static void pv_wr_set_ud_addr(struct ibv_qp_ex *ibqp, struct ibv_ah *ah,
			      uint32_t remote_qpn, uint32_t remote_qkey)
{
	struct pv_qp *qp = qp_of_ex(ibqp);

	if (qp->wr_cur)
		pv_wqe_ud(qp->wr_cur, ah, remote_qpn, remote_qkey);
}

static void pv_wr_set_sge_list(struct ibv_qp_ex *ibqp, size_t num_sge,
			       const struct ibv_sge *sge)
{
	struct pv_qp *qp = qp_of_ex(ibqp);

	if (qp->wr_cur &&
	    pv_wqe_sges(qp->wr_cur, &qp->sq.lim, sge, num_sge))
		pv_wr_fail(qp, EINVAL);
}

static void pv_wr_set_sge(struct ibv_qp_ex *ibqp, uint32_t lkey, uint64_t addr,
			  uint32_t length)
{
	struct ibv_sge sge = {
		.addr = addr,
		.length = length,
		.lkey = lkey,
	};

	pv_wr_set_sge_list(ibqp, 1, &sge);
}

static bool pv_may_inline(const struct pvrdma_sq_wqe_hdr *hdr)
{
	return hdr->opcode <= PVRDMA_WR_SEND_WITH_IMM ||
	       hdr->opcode == PVRDMA_WR_SEND_WITH_INV;
}

static void pv_wr_set_inline_data_list(struct ibv_qp_ex *ibqp, size_t num_buf,
				       const struct ibv_data_buf *buf)
{
	struct pv_qp *qp = qp_of_ex(ibqp);
	int err = 0;

	if (!qp->wr_cur)
		return;
	if (!pv_may_inline(qp->wr_cur))
		err = EINVAL;
	for (size_t i = 0; i < num_buf && !err; i++)
		err = pv_wqe_inline(qp->wr_cur, &qp->sq.lim, buf[i].addr,
				    buf[i].length);
	if (err)
		pv_wr_fail(qp, err);
}

static void pv_wr_set_inline_data(struct ibv_qp_ex *ibqp, void *addr,
				  size_t length)
{
	struct ibv_data_buf buf = { .addr = addr, .length = length };

	pv_wr_set_inline_data_list(ibqp, 1, &buf);
}

static uint64_t pv_wr_ops(const struct pv_qp *qp)
{
	switch (qp->type) {
	case IBV_QPT_UC:
		return PV_UC_OPS;
	case IBV_QPT_UD:
		return PV_UD_OPS;
	default:
		return PV_RC_OPS;
	}
}

/*
 * Install the calls that @ops (IBV_QP_EX_WITH_*) asks for; EOPNOTSUPP if one of
 * them is not there for this type of QP.
 */
int pv_wr_setup(struct pv_qp *qp, uint64_t ops)
{
	struct ibv_qp_ex *ex = &qp->vqp.qp_ex;

	uint64_t known = pv_wr_ops(qp);

	if (qp->sq.lim.keys)
		known |= PV_KEY_OPS;
	if (!check_comp_mask(ops, known)) {
		pv_err(to_pv_ctx(qp->vqp.qp.context),
		       "not all of the operations %#llx are supported",
		       (unsigned long long)ops);
		return EOPNOTSUPP;
	}
	ex->wr_start = pv_wr_start;
	ex->wr_complete = pv_wr_complete;
	ex->wr_abort = pv_wr_abort;
	ex->wr_set_sge = pv_wr_set_sge;
	ex->wr_set_sge_list = pv_wr_set_sge_list;
	ex->wr_set_inline_data = pv_wr_set_inline_data;
	ex->wr_set_inline_data_list = pv_wr_set_inline_data_list;
	if (qp->ud)
		ex->wr_set_ud_addr = pv_wr_set_ud_addr;
	if (ops & IBV_QP_EX_WITH_BIND_MW)
		ex->wr_bind_mw = pv_wr_bind_mw;
	if (ops & IBV_QP_EX_WITH_LOCAL_INV)
		ex->wr_local_inv = pv_wr_local_inv;
	if (ops & IBV_QP_EX_WITH_SEND_WITH_INV)
		ex->wr_send_inv = pv_wr_send_inv;
	if (ops & IBV_QP_EX_WITH_SEND)
		ex->wr_send = pv_wr_send;
	if (ops & IBV_QP_EX_WITH_SEND_WITH_IMM)
		ex->wr_send_imm = pv_wr_send_imm;
	if (ops & IBV_QP_EX_WITH_RDMA_WRITE)
		ex->wr_rdma_write = pv_wr_rdma_write;
	if (ops & IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM)
		ex->wr_rdma_write_imm = pv_wr_rdma_write_imm;
	if (ops & IBV_QP_EX_WITH_RDMA_READ)
		ex->wr_rdma_read = pv_wr_rdma_read;
	if (ops & IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP)
		ex->wr_atomic_cmp_swp = pv_wr_atomic_cmp_swp;
	if (ops & IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD)
		ex->wr_atomic_fetch_add = pv_wr_atomic_fetch_add;
	return 0;
}
