// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * What a faulty device does: written into the memory that it shares with the
 * driver, beside the real device, which goes on.
 *
 * fault=fatal   an event says that the device failed; the device lives and has
 *               memory, which the driver must take away
 * fault=refuse  the device refuses to end an object
 * fault=refuse_user
 *               the same, of a program's queue pair, when the program ends
 * fault=cqe     completions name queue pairs that do not complete there, or WRs that
 *               are not outstanding, of a queue pair's own queue and a shared one
 * fault=qpn     a queue pair gets a number that is none
 * fault=caps    the device says that it has more than anything can have
 */
#include <linux/interrupt.h>
#include <linux/kthread.h>
#include <linux/string.h>

#include "pvrdma.h"
#include "loop.h"

#define SLOTS \
	((u32)((PVRDMA_EVENT_RING_PAGES - 1) * PVRDMA_PAGE_SIZE / \
	       sizeof(struct pvrdma_eqe)))

/*
 * An event in the slot before the one that comes next, which the driver is made
 * to read again; a real event has it look.
 */
static int fault_fatal(struct loop *loop)
{
	struct pvrdma_dev *dev = to_pvdev(loop->dev);
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_SQD,
		.en_sqd_async_notify = 1,
	};
	int irq = pci_irq_vector(dev->pdev, PVRDMA_VEC_ASYNC);
	struct pvrdma_eqe *eqe;
	u32 slot, index = 0;

	disable_irq(irq);
	while (pvrdma_idx_next(index, SLOTS) != dev->async.head)
		index++;
	slot = pvrdma_idx_slot(index, SLOTS);
	eqe = pvrdma_dir_ptr(&dev->async.pages,
			     PVRDMA_PAGE_SIZE + slot * sizeof(*eqe));
	eqe->type = PVRDMA_EVENT_DEVICE_FATAL;
	eqe->info = PVRDMA_PORT;
	dev->async.head = index;
	enable_irq(irq);
	return ib_modify_qp(loop->qp[1], &attr,
			    IB_QP_STATE | IB_QP_EN_SQD_ASYNC_NOTIFY);
}

static int fault_refuse(struct loop *loop)
{
	struct ib_pd *pd = ib_alloc_pd(loop->dev, 0);

	if (IS_ERR(pd))
		return PTR_ERR(pd);
	to_pvpd(pd)->handle ^= 0x5a5a;
	ib_dealloc_pd(pd);
	return 0;
}

/* Known to the driver by another handle than to the device. */
static int fault_refuse_user(struct loop *loop)
{
	struct pvrdma_dev *dev = to_pvdev(loop->dev);
	struct pvrdma_ref *ref;
	unsigned long handle;
	struct pvrdma_qp *qp;
	int ret = -ENOENT;

	mutex_lock(&dev->table.lock);
	xa_for_each(&dev->table.qps, handle, ref) {
		qp = container_of(ref, struct pvrdma_qp, ref);
		if (!qp->sq_umem)
			continue;
		xa_erase_irq(&dev->table.qps, handle);
		qp->handle ^= 0x5a5a;
		ret = xa_insert_irq(&dev->table.qps, qp->handle, ref,
				    GFP_KERNEL);
		break;
	}
	mutex_unlock(&dev->table.lock);
	return ret;
}

/* Poll @ibcq, where the device seems to have put this; how many come? */
static int forge(struct ib_cq *ibcq, u32 qp, u32 opcode, u64 wr_id)
{
	struct pvrdma_cq *cq = to_pvcq(ibcq);
	struct pvrdma_cqe *cqe;
	struct ib_wc wc;
	u32 slot = pvrdma_idx_slot(cq->head, ibcq->cqe);

	cqe = pvrdma_dir_ptr(&cq->dir, PVRDMA_PAGE_SIZE + slot * sizeof(*cqe));
	memset(cqe, 0, sizeof(*cqe));
	cqe->qp = qp;
	cqe->opcode = opcode;
	cqe->wr_id = wr_id;
	/* The entry comes before its index. */
	smp_store_release(cq->words.prod,
			  pvrdma_idx_next(cq->head, ibcq->cqe));
	return ib_poll_cq(ibcq, 1, &wc);
}

/*
 * Of a queue pair of its own: it sends to @a and receives from @b, CQs of which
 * the device knows that they are empty.  One receive is outstanding.
 */
static int cqe_checks(struct ib_qp *qp, struct ib_cq *a, struct ib_cq *b,
		      u32 other)
{
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_INIT,
		.port_num = PVRDMA_PORT,
	};
	struct ib_recv_wr wr = {};
	u32 handle = to_pvqp(qp)->handle;
	int ret;

	ret = ib_modify_qp(qp, &attr, IB_QP_STATE | IB_QP_PKEY_INDEX |
				      IB_QP_PORT | IB_QP_ACCESS_FLAGS);
	if (!ret)
		ret = ib_post_recv(qp, &wr, NULL);
	if (ret)
		return ret;
	/* Another CQ's QP, in either direction, with a WR that it has. */
	if (forge(a, other, PVRDMA_WC_SEND, 0) ||
	    forge(a, other, PVRDMA_WC_RECV, 0))
		return -EBADE;
	/* A QP of this CQ, but that direction completes on the other. */
	if (forge(a, handle, PVRDMA_WC_RECV, 0))
		return -EBADF;
	/* No QP, and a WR that is not outstanding. */
	if (forge(b, 0x5a5a5a, PVRDMA_WC_RECV, 0) ||
	    forge(b, handle, PVRDMA_WC_RECV, 1) ||
	    forge(b, handle, PVRDMA_WC_RECV, ~0ull))
		return -EBADR;
	/* The real one. */
	return forge(b, handle, PVRDMA_WC_RECV, 0) == 1 ? 0 : -EBADMSG;
}

/* Of one that receives from a shared queue of two WRs, named 7 and 8. */
static int srq_cqe_checks(struct ib_qp *qp, struct ib_srq *srq, struct ib_cq *cq)
{
	struct ib_recv_wr wr = { .wr_id = 7 };
	u32 handle = to_pvqp(qp)->handle;
	int ret;

	ret = ib_post_srq_recv(srq, &wr, NULL);
	wr.wr_id = 8;
	if (!ret)
		ret = ib_post_srq_recv(srq, &wr, NULL);
	if (ret)
		return ret;
	/* As many as there are slots. */
	if (ib_post_srq_recv(srq, &wr, NULL) != -ENOMEM)
		return -EXFULL;
	/* What the user named it, and more than there are. */
	if (forge(cq, handle, PVRDMA_WC_RECV, 7) ||
	    forge(cq, handle, PVRDMA_WC_RECV, 2) ||
	    forge(cq, handle, PVRDMA_WC_RECV, 1ull << 32) ||
	    forge(cq, handle, PVRDMA_WC_RECV, ~0ull))
		return -EBADR;
	/* Once each, in any order. */
	if (forge(cq, handle, PVRDMA_WC_RECV, 1) != 1 ||
	    forge(cq, handle, PVRDMA_WC_RECV, 1) ||
	    forge(cq, handle, PVRDMA_WC_RECV, 0) != 1 ||
	    forge(cq, handle, PVRDMA_WC_RECV, 0))
		return -EBADMSG;
	return 0;
}

static int fault_srq_cqe(struct loop *loop, struct ib_cq *cq,
			 struct ib_qp_init_attr *init)
{
	struct ib_srq_init_attr srq_init = {
		.attr = { .max_wr = 2, .max_sge = 1 },
		.srq_type = IB_SRQT_BASIC,
	};
	struct ib_srq *srq = ib_create_srq(loop->pd, &srq_init);
	struct ib_qp *qp;
	int ret;

	if (IS_ERR(srq))
		return PTR_ERR(srq);
	init->srq = srq;
	qp = ib_create_qp(loop->pd, init);
	ret = PTR_ERR_OR_ZERO(qp);
	if (!ret) {
		ret = srq_cqe_checks(qp, srq, cq);
		ib_destroy_qp(qp);
	}
	ib_destroy_srq(srq);
	return ret;
}

static int fault_cqe(struct loop *loop)
{
	struct ib_qp_init_attr init = {
		.cap = {
			.max_send_wr = 1,
			.max_recv_wr = 2,
			.max_send_sge = 1,
			.max_recv_sge = 1,
		},
		.qp_type = IB_QPT_RC,
	};
	struct ib_cq *cq[2];
	struct ib_qp *qp;
	int i, ret = 0;

	for (i = 0; i < 2; i++) {
		cq[i] = ib_alloc_cq(loop->dev, NULL, 16, 0, IB_POLL_DIRECT);
		if (IS_ERR(cq[i])) {
			ret = PTR_ERR(cq[i]);
			goto out;
		}
	}
	init.send_cq = cq[0];
	init.recv_cq = cq[1];
	qp = ib_create_qp(loop->pd, &init);
	if (IS_ERR(qp)) {
		ret = PTR_ERR(qp);
		goto out;
	}
	ret = cqe_checks(qp, cq[0], cq[1], to_pvqp(loop->qp[0])->handle);
	ib_destroy_qp(qp);
	if (!ret)
		ret = fault_srq_cqe(loop, cq[1], &init);
	/* The device can write there.  DMA debugging knows what is given back. */
	*to_pvcq(cq[0])->dir.dir[0] ^= 0xfff000;
	*to_pvcq(cq[0])->dir.table[0] ^= 0xfff000;
out:
	while (i--)
		ib_free_cq(cq[i]);
	return ret;
}

struct forger {
	struct pvrdma_dev *dev;
	bool done;
};

/* Wait for the response to a creation, which the driver is not told of, and change it. */
static int forge_qpn(void *arg)
{
	struct forger *f = arg;
	struct pvrdma_resp_create_qp *resp = f->dev->cmd.resp;

	while (!kthread_should_stop()) {
		if (READ_ONCE(resp->hdr.ack) ==
			    PVRDMA_CMD_RESP(PVRDMA_CMD_CREATE_QP) &&
		    READ_ONCE(resp->hdr.response) == f->dev->cmd.cookie) {
			WRITE_ONCE(resp->qpn, PVRDMA_MAX_QPN + 1);
			f->done = true;
			break;
		}
		usleep_range(100, 200);
	}
	while (!kthread_should_stop())
		usleep_range(100, 200);
	return 0;
}

/* What ib_create_qp() came to, or -EAGAIN: it was over before the response was changed. */
static int try_qpn(struct loop *loop, struct ib_qp_init_attr *init)
{
	struct forger f = { .dev = to_pvdev(loop->dev) };
	int irq = pci_irq_vector(f.dev->pdev, PVRDMA_VEC_CMD);
	struct task_struct *task;
	struct ib_qp *qp;
	int ret = 0;

	/* The driver looks all the same, but only after a while. */
	disable_irq(irq);
	memset(f.dev->cmd.resp, 0, sizeof(struct pvrdma_resp_hdr));
	task = kthread_run(forge_qpn, &f, "pvrdma_forger");
	if (IS_ERR(task)) {
		enable_irq(irq);
		return PTR_ERR(task);
	}
	qp = ib_create_qp(loop->pd, init);
	kthread_stop(task);
	enable_irq(irq);
	if (IS_ERR(qp))
		return PTR_ERR(qp);
	if (qp->qp_num <= PVRDMA_MAX_QPN)
		ret = -EAGAIN;
	ib_destroy_qp(qp);
	return ret;
}

static int fault_qpn(struct loop *loop)
{
	struct ib_qp_init_attr init = {
		.cap = { .max_send_wr = 1, .max_send_sge = 1 },
		.qp_type = IB_QPT_RC,
		.send_cq = loop->cq,
		.recv_cq = loop->cq,
	};
	int i, ret = -EAGAIN;

	for (i = 0; i < 100 && ret == -EAGAIN; i++)
		ret = try_qpn(loop, &init);
	/* No number is left of it, neither. */
	return ret == -EIO ? 0 : ret ? ret : -EBADE;
}

static int fault_caps(struct loop *loop)
{
	struct pvrdma_dev *dev = to_pvdev(loop->dev);
	struct pvrdma_caps caps = dev->caps;
	u32 *const bounded[] = {
		&caps.max_cq, &caps.max_cqe, &caps.max_qp_wr, &caps.max_sge,
		&caps.max_srq_wr, &caps.max_srq_sge, &caps.max_uar,
	};
	int i;

	if (pvrdma_caps_check(&caps, caps.max_uar))
		return -EBADE;
	for (i = 0; i < ARRAY_SIZE(bounded); i++) {
		u32 was = *bounded[i];

		*bounded[i] = 1u << 31;
		if (pvrdma_caps_check(&caps, was) != -EINVAL)
			return -EBADF - i;
		*bounded[i] = was;
	}
	caps.gid_tbl_len = 257;
	return pvrdma_caps_check(&caps, caps.max_uar) == -EINVAL ? 0 : -EBADR;
}

/**
 * fault_run() - do what a faulty device does
 * @loop: with receives and sends posted on its first queue pair
 * @what: see above
 *
 * Return: 0 or a negative errno.
 */
int fault_run(struct loop *loop, const char *what)
{
	if (sysfs_streq(what, "fatal"))
		return fault_fatal(loop);
	if (sysfs_streq(what, "refuse"))
		return fault_refuse(loop);
	if (sysfs_streq(what, "refuse_user"))
		return fault_refuse_user(loop);
	if (sysfs_streq(what, "cqe"))
		return fault_cqe(loop);
	if (sysfs_streq(what, "qpn"))
		return fault_qpn(loop);
	if (sysfs_streq(what, "caps"))
		return fault_caps(loop);
	return -EINVAL;
}
