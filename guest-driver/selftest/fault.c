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
 * fault=cqe     completions name queue pairs that do not complete there
 */
#include <linux/interrupt.h>
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
	struct pvrdma_qp *qp;
	unsigned long handle;
	int ret = -ENOENT;

	mutex_lock(&dev->table.lock);
	xa_for_each(&dev->table.qps, handle, qp) {
		if (!qp->sq_umem)
			continue;
		xa_erase_irq(&dev->table.qps, handle);
		qp->handle ^= 0x5a5a;
		ret = xa_insert_irq(&dev->table.qps, qp->handle, qp,
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
out:
	while (i--)
		ib_free_cq(cq[i]);
	return ret;
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
	return -EINVAL;
}
