// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Queue pairs: creation, states, destruction.
 *
 * Pages in the order that the device expects: header with both rings' indices,
 * send WQEs, receive WQEs.  A program brings two buffers, header and send
 * WQEs, and receive WQEs; the kernel's pages are allocated here.
 *
 * @mutex orders modifications; a QP is in the new state when the device has
 * said so.
 */
#include <rdma/ib_cache.h>

#include "cmd.h"
#include "pvrdma.h"
#include "uabi.h"

static u32 sq_wqe_size(const struct ib_qp_cap *cap)
{
	return roundup_pow_of_two(sizeof(struct pvrdma_sq_wqe_hdr) +
				  cap->max_send_sge *
					  sizeof(struct pvrdma_sge));
}

/**
 * pvrdma_rq_wqe_size() - how large receive WQEs are
 * @max_sge: SGEs of one
 *
 * Return: bytes.
 */
u32 pvrdma_rq_wqe_size(u32 max_sge)
{
	return roundup_pow_of_two(sizeof(struct pvrdma_rq_wqe_hdr) +
				  max_sge * sizeof(struct pvrdma_sge));
}

/**
 * pvrdma_wq_pages() - how many pages a queue has
 * @wq: queue
 *
 * Return: pages.
 */
u32 pvrdma_wq_pages(const struct pvrdma_wq *wq)
{
	return DIV_ROUND_UP((u64)wq->nwqe * wq->wqe_size, PVRDMA_PAGE_SIZE);
}

static int qp_check(struct pvrdma_dev *dev, const struct pvrdma_ucontext *ctx,
		    const struct ib_qp_init_attr *init)
{
	const struct pvrdma_caps *caps = &dev->caps;
	const struct ib_qp_cap *cap = &init->cap;

	if (init->create_flags)
		return pvrdma_refuse(&dev->ibdev, -EOPNOTSUPP, "flags %#x",
				     init->create_flags);
	if (init->srq && init->qp_type == IB_QPT_GSI)
		return pvrdma_refuse(&dev->ibdev, -EINVAL, "an SRQ");
	switch (init->qp_type) {
	case IB_QPT_GSI:
		if (init->port_num != PVRDMA_PORT)
			return pvrdma_refuse(&dev->ibdev, -EINVAL, "port %u",
					     init->port_num);
		break;
	case IB_QPT_RC:
	case IB_QPT_UD:
		break;
	case IB_QPT_UC:
		if (!(dev->ext.features & PVRDMA_EXT_FEAT_UC))
			return pvrdma_refuse(&dev->ibdev, -EOPNOTSUPP,
					     "the device does not support UC");
		/* The stock library writes no addresses into their WQEs. */
		if (ctx && !ctx->ext_features)
			return pvrdma_refuse(&dev->ibdev, -EOPNOTSUPP,
					     "the library does not support UC");
		break;
	default:
		return pvrdma_refuse(&dev->ibdev, -EOPNOTSUPP, "type %d",
				     init->qp_type);
	}
	if (cap->max_send_wr > caps->max_qp_wr ||
	    cap->max_recv_wr > caps->max_qp_wr ||
	    cap->max_send_sge > caps->max_sge ||
	    cap->max_recv_sge > caps->max_sge)
		return pvrdma_refuse(&dev->ibdev, -EINVAL,
				     "%u and %u WRs of %u and %u SGEs, at most %u of %u",
				     cap->max_send_wr, cap->max_recv_wr,
				     cap->max_send_sge, cap->max_recv_sge,
				     caps->max_qp_wr, caps->max_sge);
	return 0;
}

/**
 * pvrdma_wq_init() - set the size of a queue
 * @wq: queue
 * @nwqe: WQEs at least
 * @max_sge: SGEs of one
 * @wqe_size: bytes of one
 */
void pvrdma_wq_init(struct pvrdma_wq *wq, u32 nwqe, u32 max_sge, u32 wqe_size)
{
	wq->nwqe = roundup_pow_of_two(max(nwqe, 1u));
	wq->max_sge = max_sge;
	wq->wqe_size = wqe_size;
}

static int qp_pages_kernel(struct pvrdma_dev *dev, struct pvrdma_qp *qp,
			   bool srq, u32 *send_pages)
{
	struct ib_qp_cap *cap = &qp->cap;
	int ret;

	/* Here and not in pvrdma_wq_init(): each place makes a lock class of its own. */
	spin_lock_init(&qp->sq.lock);
	spin_lock_init(&qp->rq.lock);
	cap->max_send_sge = max(cap->max_send_sge, 1u);
	pvrdma_wq_init(&qp->sq, cap->max_send_wr, cap->max_send_sge,
		       sq_wqe_size(cap));
	if (!srq) {
		cap->max_recv_sge = max(cap->max_recv_sge, 1u);
		pvrdma_wq_init(&qp->rq, cap->max_recv_wr, cap->max_recv_sge,
			       pvrdma_rq_wqe_size(cap->max_recv_sge));
	}
	/* A WQE must not cross pages here. */
	if (qp->sq.wqe_size > PVRDMA_PAGE_SIZE ||
	    qp->rq.wqe_size > PVRDMA_PAGE_SIZE)
		return pvrdma_refuse(&dev->ibdev, -EINVAL,
				     "WQEs of %u and %u bytes",
				     qp->sq.wqe_size, qp->rq.wqe_size);
	cap->max_send_wr = qp->sq.nwqe;
	cap->max_recv_wr = qp->rq.nwqe;
	*send_pages = pvrdma_wq_pages(&qp->sq);
	qp->sq.first_page = 1;
	qp->rq.first_page = 1 + *send_pages;
	qp->sq.wr_id = kvcalloc(qp->sq.nwqe, sizeof(u64), GFP_KERNEL);
	if (!srq)
		qp->rq.wr_id = kvcalloc(qp->rq.nwqe, sizeof(u64), GFP_KERNEL);
	if (!qp->sq.wr_id || (!srq && !qp->rq.wr_id))
		return -ENOMEM;
	ret = pvrdma_pagedir_alloc(dev, &qp->dir,
				   (u64)qp->rq.first_page +
					   pvrdma_wq_pages(&qp->rq),
				   true);
	if (ret)
		return ret;
	pvrdma_words_init(&qp->sq.words, &qp->dir, dev->kctx.flags, true);
	pvrdma_words_init(&qp->rq.words, &qp->dir, dev->kctx.flags, false);
	return 0;
}

static int qp_pages_user(struct pvrdma_dev *dev, struct pvrdma_qp *qp,
			 const struct pvrdma_uverbs_qp *ucmd, bool srq,
			 u32 *send_pages)
{
	const struct pvrdma_user_buf buf[] = {
		{
			.addr = ucmd->sbuf_addr,
			.size = ucmd->sbuf_size,
			.least = PVRDMA_PAGE_SIZE,
			.umem = &qp->sq_umem,
		},
		{
			.addr = ucmd->rbuf_addr,
			.size = ucmd->rbuf_size,
			.least = 1,
			.umem = &qp->rq_umem,
		},
	};
	int ret;

	if (srq && ucmd->rbuf_size)
		return pvrdma_refuse(&dev->ibdev, -EINVAL,
				     "an SRQ, and a receive queue of %u bytes",
				     ucmd->rbuf_size);
	ret = pvrdma_pin_rings(dev, &qp->dir, buf, srq ? 1 : 2);
	if (!ret)
		*send_pages = ib_umem_num_dma_blocks(qp->sq_umem,
						     PVRDMA_PAGE_SIZE) - 1;
	return ret;
}

static void qp_pages_free(struct pvrdma_dev *dev, struct pvrdma_qp *qp)
{
	pvrdma_pagedir_free(dev, &qp->dir);
	kvfree(qp->rq.wr_id);
	kvfree(qp->sq.wr_id);
	ib_umem_release(qp->rq_umem);
	ib_umem_release(qp->sq_umem);
}

static u8 qp_type_to_wire(enum ib_qp_type type)
{
	switch (type) {
	case IB_QPT_GSI:
		return PVRDMA_QPT_GSI;
	case IB_QPT_UC:
		return PVRDMA_QPT_UC;
	case IB_QPT_UD:
		return PVRDMA_QPT_UD;
	default:
		return PVRDMA_QPT_RC;
	}
}

/* Let a kernel QP's CQs know it; a program's CQs are its provider's business. */
static int qp_attach(struct pvrdma_qp *qp)
{
	struct pvrdma_cq *send_cq = to_pvcq(qp->ibqp.send_cq);
	struct pvrdma_cq *recv_cq = to_pvcq(qp->ibqp.recv_cq);
	int ret;

	if (qp->sq_umem)
		return 0;
	ret = pvrdma_cq_attach(send_cq, qp);
	if (ret || recv_cq == send_cq)
		return ret;
	ret = pvrdma_cq_attach(recv_cq, qp);
	if (ret)
		pvrdma_cq_detach(send_cq, qp);
	return ret;
}

static void qp_detach(struct pvrdma_qp *qp)
{
	if (qp->sq_umem)
		return;
	pvrdma_cq_detach(to_pvcq(qp->ibqp.send_cq), qp);
	if (qp->ibqp.recv_cq != qp->ibqp.send_cq)
		pvrdma_cq_detach(to_pvcq(qp->ibqp.recv_cq), qp);
}

/*
 * A completion handler that saw a QP on its CQ, from where it was taken since, is
 * done with that CQ when this returns.
 */
static void qp_sync_handlers(struct pvrdma_qp *qp)
{
	if (qp->sq_umem)
		return;
	pvrdma_event_sync_cq(to_pvcq(qp->ibqp.send_cq));
	pvrdma_event_sync_cq(to_pvcq(qp->ibqp.recv_cq));
}

/* Make it in the device and enter it in the tables. */
static int qp_create(struct pvrdma_dev *dev, struct pvrdma_qp *qp,
		     const struct ib_qp_init_attr *init, u32 send_pages,
		     const struct pvrdma_ext_obj_req *ext)
{
	struct pvrdma_cmd_create_qp req = {
		.pdir_dma = qp->dir.dir_dma,
		.pd_handle = to_pvpd(qp->ibqp.pd)->handle,
		.send_cq_handle = to_pvcq(init->send_cq)->handle,
		.recv_cq_handle = to_pvcq(init->recv_cq)->handle,
		.srq_handle = init->srq ? to_pvsrq(init->srq)->handle : 0,
		.is_srq = !!init->srq,
		.max_send_wr = qp->cap.max_send_wr,
		.max_recv_wr = qp->cap.max_recv_wr,
		.max_send_sge = qp->cap.max_send_sge,
		.max_recv_sge = qp->cap.max_recv_sge,
		.max_inline_data = ext->flags ? ext->max_inline : 0,
		.access_flags = PVRDMA_ACCESS_LOCAL_WRITE,
		.total_chunks = qp->dir.npages,
		.send_chunks = send_pages,
		.sq_sig_all = qp->sq_sig_all,
		.qp_type = qp_type_to_wire(init->qp_type),
		.reserved = { ext->flags },
	};
	struct pvrdma_resp_create_qp resp;
	int ret;

	/* The counts on the wire are 16 bits wide. */
	if (qp->dir.npages > U16_MAX)
		return pvrdma_refuse(&dev->ibdev, -EINVAL,
				     "%u pages of WQEs, at most %u",
				     qp->dir.npages, U16_MAX);
	mutex_lock(&dev->table.lock);
	ret = pvrdma_cmd_create_qp(dev, &req, &resp);
	if (ret)
		goto out;
	qp->handle = resp.qp_handle;
	qp->ibqp.qp_num = init->qp_type == IB_QPT_GSI ? 1 : resp.qpn;
	qp->cap.max_inline_data = ext->flags ? resp.max_inline_data : 0;
	ret = resp.qpn > PVRDMA_MAX_QPN ? -EIO : qp_attach(qp);
	if (!ret) {
		ret = pvrdma_table_add(&dev->table.qps, qp->handle,
				       min_t(u32, dev->caps.max_qp,
					     U16_MAX + 1), &qp->ref);
		if (ret)
			qp_detach(qp);
	}
	if (ret)
		pvrdma_cmd_destroy(dev, PVRDMA_CMD_DESTROY_QP, qp->handle);
out:
	mutex_unlock(&dev->table.lock);
	if (ret)
		qp_sync_handlers(qp);
	return ret;
}

static void qp_destroy(struct pvrdma_dev *dev, struct pvrdma_qp *qp)
{
	mutex_lock(&dev->table.lock);
	pvrdma_cmd_destroy(dev, PVRDMA_CMD_DESTROY_QP, qp->handle);
	qp_detach(qp);
	xa_erase_irq(&dev->table.qps, qp->handle);
	mutex_unlock(&dev->table.lock);
	pvrdma_counter_forget_qp(dev, qp);
	pvrdma_ref_end(&qp->ref);
	qp_sync_handlers(qp);
	qp_pages_free(dev, qp);
}

static int qp_request(struct ib_device *ibdev, struct ib_udata *udata,
		      struct pvrdma_ucontext *ctx,
		      struct pvrdma_uverbs_qp *ucmd)
{
	int ret = pvrdma_uabi_read(ibdev, udata, ucmd, PVRDMA_UABI_QP_STOCK,
				   sizeof(*ucmd));

	if (ret)
		return ret;
	if (udata->outlen < sizeof(struct pvrdma_uverbs_qp_resp))
		return pvrdma_refuse(ibdev, -EOPNOTSUPP,
				     "a provider without QP handles");
	if (ucmd->ext.flags & ~PVRDMA_EXT_OBJ_RING ||
	    (ucmd->ext.flags && !(ctx->ext_features & PVRDMA_EXT_FEAT_RING)))
		return pvrdma_refuse(ibdev, -EOPNOTSUPP,
				     "extension %#x was not granted",
				     ucmd->ext.flags);
	if (ucmd->ext.max_inline &&
	    (!ucmd->ext.flags ||
	     !(ctx->ext_features & PVRDMA_EXT_FEAT_INLINE)))
		return pvrdma_refuse(ibdev, -EOPNOTSUPP,
				     "inline data was not granted");
	return 0;
}

/**
 * pvrdma_create_qp() - verb
 * @ibqp: to be made
 * @init: type, capacities, CQs; gets the capacities that there are
 * @udata: a program's call (struct pvrdma_uverbs_qp), or NULL
 *
 * Return: 0 or a negative errno.
 */
int pvrdma_create_qp(struct ib_qp *ibqp, struct ib_qp_init_attr *init,
		     struct ib_udata *udata)
{
	struct pvrdma_ucontext *ctx = pvrdma_udata_ctx(udata);
	struct pvrdma_dev *dev = to_pvdev(ibqp->device);
	struct pvrdma_qp *qp = to_pvqp(ibqp);
	struct pvrdma_uverbs_qp_resp out = {};
	struct pvrdma_uverbs_qp ucmd = {};
	u32 send_pages = 0;
	int ret;

	ret = qp_check(dev, ctx, init);
	if (!ret && udata)
		ret = qp_request(&dev->ibdev, udata, ctx, &ucmd);
	if (ret)
		return ret;
	qp->state = IB_QPS_RESET;
	qp->port = init->port_num;
	qp->sq_sig_all = init->sq_sig_type == IB_SIGNAL_ALL_WR;
	qp->cap = init->cap;
	if (init->srq) {
		qp->cap.max_recv_wr = 0;
		qp->cap.max_recv_sge = 0;
	}
	mutex_init(&qp->mutex);
	pvrdma_ref_init(&qp->ref);

	if (!udata)
		ucmd.ext.flags = dev->kctx.flags;
	if (udata)
		ret = qp_pages_user(dev, qp, &ucmd, init->srq, &send_pages);
	else
		ret = qp_pages_kernel(dev, qp, init->srq, &send_pages);
	if (!ret)
		ret = qp_create(dev, qp, init, send_pages, &ucmd.ext);
	if (ret) {
		qp_pages_free(dev, qp);
		return ret;
	}
	init->cap = qp->cap;
	out.qpn = ibqp->qp_num;
	out.qp_handle = qp->handle;
	if (udata)
		ret = ib_copy_to_udata(udata, &out, sizeof(out));
	if (ret)
		qp_destroy(dev, qp);
	return ret;
}

/**
 * pvrdma_destroy_qp() - verb
 * @ibqp: QP
 * @udata: a program's call, or NULL
 *
 * Return: 0.
 */
int pvrdma_destroy_qp(struct ib_qp *ibqp, struct ib_udata *udata)
{
	qp_destroy(to_pvdev(ibqp->device), to_pvqp(ibqp));
	return 0;
}

static void ah_to_wire(const struct rdma_ah_attr *attr,
		       struct pvrdma_ah_attr *to)
{
	const struct ib_global_route *grh = rdma_ah_read_grh(attr);

	memcpy(to->dgid.raw, grh->dgid.raw, sizeof(to->dgid.raw));
	to->flow_label = grh->flow_label;
	to->sgid_index = grh->sgid_index;
	to->hop_limit = grh->hop_limit;
	to->traffic_class = grh->traffic_class;
	to->vlan_id = 0xfff;
	to->sl = rdma_ah_get_sl(attr);
	to->src_path_bits = rdma_ah_get_path_bits(attr);
	to->static_rate = rdma_ah_get_static_rate(attr);
	to->ah_flags = rdma_ah_get_ah_flags(attr) & IB_AH_GRH;
	to->port_num = rdma_ah_get_port_num(attr);
	memcpy(to->dmac, attr->roce.dmac, sizeof(to->dmac));
}

static void ah_from_wire(const struct pvrdma_ah_attr *from,
			 struct rdma_ah_attr *attr)
{
	union ib_gid dgid;

	memset(attr, 0, sizeof(*attr));
	attr->type = RDMA_AH_ATTR_TYPE_ROCE;
	memcpy(dgid.raw, from->dgid.raw, sizeof(dgid.raw));
	rdma_ah_set_grh(attr, &dgid, from->flow_label, from->sgid_index,
			from->hop_limit, from->traffic_class);
	rdma_ah_set_sl(attr, from->sl);
	rdma_ah_set_static_rate(attr, from->static_rate);
	rdma_ah_set_port_num(attr, from->port_num);
	memcpy(attr->roce.dmac, from->dmac, sizeof(from->dmac));
}

/*
 * Rights that mean nothing here, and which the core lets through: hints, and that
 * of FLUSH (IB_ACCESS_FLUSH_*, Linux 6.2), of which a peer has no requests.
 */
#define QP_ACCESS_VOID (IB_ACCESS_OPTIONAL | BIT(8) | BIT(9))

static void qp_attr_to_wire(const struct ib_qp_attr *attr, int mask,
			    struct pvrdma_qp_attr *to)
{
	to->qp_state = attr->qp_state;
	to->cur_qp_state = attr->cur_qp_state;
	to->path_mtu = attr->path_mtu;
	to->path_mig_state = attr->path_mig_state;
	to->qkey = attr->qkey;
	to->rq_psn = attr->rq_psn;
	to->sq_psn = attr->sq_psn;
	to->dest_qp_num = attr->dest_qp_num;
	to->qp_access_flags = attr->qp_access_flags & ~QP_ACCESS_VOID;
	to->pkey_index = attr->pkey_index;
	to->en_sqd_async_notify = attr->en_sqd_async_notify;
	to->sq_draining = attr->sq_draining;
	to->max_rd_atomic = attr->max_rd_atomic;
	to->max_dest_rd_atomic = attr->max_dest_rd_atomic;
	to->min_rnr_timer = attr->min_rnr_timer;
	to->port_num = attr->port_num;
	to->timeout = attr->timeout;
	to->retry_cnt = attr->retry_cnt;
	to->rnr_retry = attr->rnr_retry;
	if (mask & IB_QP_AV)
		ah_to_wire(&attr->ah_attr, &to->ah_attr);
}

static int qp_modify_check(struct pvrdma_dev *dev, struct pvrdma_qp *qp,
			   const struct ib_qp_attr *attr, int mask,
			   enum ib_qp_state next)
{
	enum ib_qp_state cur = mask & IB_QP_CUR_STATE ? attr->cur_qp_state :
							qp->state;

	if (mask & ~IB_QP_ATTR_STANDARD_BITS ||
	    mask & (IB_QP_ALT_PATH | IB_QP_PATH_MIG_STATE | IB_QP_CAP))
		return pvrdma_refuse(&dev->ibdev, -EOPNOTSUPP, "mask %#x", mask);
	if (!ib_modify_qp_is_ok(cur, next, qp->ibqp.qp_type, mask))
		return pvrdma_refuse(&dev->ibdev, -EINVAL,
				     "state %d to %d with mask %#x", cur, next,
				     mask);
	if (mask & IB_QP_PORT && attr->port_num != PVRDMA_PORT)
		return pvrdma_refuse(&dev->ibdev, -EINVAL, "port %u",
				     attr->port_num);
	if (mask & IB_QP_MIN_RNR_TIMER && attr->min_rnr_timer > 31)
		return pvrdma_refuse(&dev->ibdev, -EINVAL, "RNR timer %u",
				     attr->min_rnr_timer);
	if (mask & IB_QP_PKEY_INDEX && attr->pkey_index >= dev->caps.max_pkeys)
		return pvrdma_refuse(&dev->ibdev, -EINVAL, "P_Key index %u",
				     attr->pkey_index);
	return 0;
}

/* A reset QP starts with empty rings, at the device as here. */
static void qp_reset(struct pvrdma_qp *qp)
{
	WRITE_ONCE(qp->last_wqe, false);
	if (qp->sq_umem)
		return;
	pvrdma_cq_forget_qp(to_pvcq(qp->ibqp.send_cq), qp);
	if (qp->ibqp.recv_cq != qp->ibqp.send_cq)
		pvrdma_cq_forget_qp(to_pvcq(qp->ibqp.recv_cq), qp);
	pvrdma_wq_reset(&qp->sq);
	pvrdma_wq_reset(&qp->rq);
}

static int qp_modify(struct pvrdma_dev *dev, struct pvrdma_qp *qp,
		     const struct ib_qp_attr *attr, int mask)
{
	enum ib_qp_state next = mask & IB_QP_STATE ? attr->qp_state : qp->state;
	struct pvrdma_cmd_modify_qp req = {
		.qp_handle = qp->handle,
		.attr_mask = mask,
	};
	struct pvrdma_resp_hdr resp;
	int ret;

	ret = qp_modify_check(dev, qp, attr, mask, next);
	if (ret)
		return ret;
	/* The device does not know this way to say nothing. */
	if (qp->state == IB_QPS_RESET && next == IB_QPS_RESET)
		return 0;
	qp_attr_to_wire(attr, mask, &req.attrs);
	ret = pvrdma_cmd_modify_qp(dev, &req, &resp);
	if (ret && pvrdma_dead(dev) &&
	    (next == IB_QPS_ERR || next == IB_QPS_RESET)) {
		/* It may have died only now, and not be reset yet. */
		pvrdma_quiesce(dev);
		/* Nor this QP be known when the others' users were told. */
		pvrdma_port_changed(dev);
		ret = 0;
	}
	if (ret)
		return ret;
	if (mask & IB_QP_QKEY)
		qp->qkey = attr->qkey;
	WRITE_ONCE(qp->state, next);
	if (next == IB_QPS_RESET)
		qp_reset(qp);
	return 0;
}

/**
 * pvrdma_modify_qp() - verb
 * @ibqp: QP
 * @attr: new attributes
 * @mask: which of them
 * @udata: a program's call, or NULL
 *
 * Return: 0 or a negative errno.
 */
int pvrdma_modify_qp(struct ib_qp *ibqp, struct ib_qp_attr *attr, int mask,
		     struct ib_udata *udata)
{
	struct pvrdma_qp *qp = to_pvqp(ibqp);
	int ret;

	ret = pvrdma_uabi_none(ibqp->device, udata);
	if (ret)
		return ret;
	mutex_lock(&qp->mutex);
	ret = qp_modify(to_pvdev(ibqp->device), qp, attr, mask);
	mutex_unlock(&qp->mutex);
	return ret;
}

static void qp_attr_from_wire(const struct pvrdma_qp_attr *from,
			      struct ib_qp_attr *attr)
{
	attr->qp_state = from->qp_state;
	attr->cur_qp_state = from->qp_state;
	attr->path_mtu = from->path_mtu;
	attr->path_mig_state = from->path_mig_state;
	attr->qkey = from->qkey;
	attr->rq_psn = from->rq_psn;
	attr->sq_psn = from->sq_psn;
	attr->dest_qp_num = from->dest_qp_num;
	attr->qp_access_flags = from->qp_access_flags;
	attr->pkey_index = from->pkey_index;
	attr->en_sqd_async_notify = from->en_sqd_async_notify;
	attr->sq_draining = from->sq_draining;
	attr->max_rd_atomic = from->max_rd_atomic;
	attr->max_dest_rd_atomic = from->max_dest_rd_atomic;
	attr->min_rnr_timer = from->min_rnr_timer;
	attr->port_num = from->port_num;
	attr->timeout = from->timeout;
	attr->retry_cnt = from->retry_cnt;
	attr->rnr_retry = from->rnr_retry;
	ah_from_wire(&from->ah_attr, &attr->ah_attr);
}

static int qp_query(struct pvrdma_dev *dev, struct pvrdma_qp *qp,
		    struct ib_qp_attr *attr, int mask)
{
	struct pvrdma_cmd_handle req = { .handle = qp->handle, .arg = mask };
	struct pvrdma_resp_query_qp resp;
	int ret;

	if (qp->state == IB_QPS_RESET) {
		attr->qp_state = IB_QPS_RESET;
		attr->cur_qp_state = IB_QPS_RESET;
		return 0;
	}
	ret = pvrdma_cmd_query_qp(dev, &req, &resp);
	if (ret)
		return ret;
	if (resp.attrs.qp_state > IB_QPS_ERR)
		return -EIO;
	qp_attr_from_wire(&resp.attrs, attr);
	WRITE_ONCE(qp->state, attr->qp_state);
	return 0;
}

/**
 * pvrdma_query_qp() - verb
 * @ibqp: QP
 * @attr: gets the attributes
 * @mask: which are wanted
 * @init: gets what it was made with
 *
 * Return: 0 or a negative errno.
 */
int pvrdma_query_qp(struct ib_qp *ibqp, struct ib_qp_attr *attr, int mask,
		    struct ib_qp_init_attr *init)
{
	struct pvrdma_qp *qp = to_pvqp(ibqp);
	int ret;

	memset(attr, 0, sizeof(*attr));
	mutex_lock(&qp->mutex);
	ret = qp_query(to_pvdev(ibqp->device), qp, attr, mask);
	mutex_unlock(&qp->mutex);
	if (ret)
		return ret;
	attr->cap = qp->cap;
	init->event_handler = ibqp->event_handler;
	init->qp_context = ibqp->qp_context;
	init->send_cq = ibqp->send_cq;
	init->recv_cq = ibqp->recv_cq;
	init->srq = ibqp->srq;
	init->cap = qp->cap;
	init->sq_sig_type = qp->sq_sig_all ? IB_SIGNAL_ALL_WR :
					     IB_SIGNAL_REQ_WR;
	init->qp_type = ibqp->qp_type;
	init->port_num = qp->port;
	return 0;
}
