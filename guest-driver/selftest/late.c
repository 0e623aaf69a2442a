// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * A CQ that outlives its queue pairs, as those of ib_core's pool do: the event
 * that was asked for comes late, when the completion that it tells of was polled
 * already and its queue pair is gone.  The next queue pair's completion must be
 * told of all the same: by that event or, as it is here, by another one.
 *
 * And a queue pair with an SRQ that goes to RESET before the event of its last
 * receive comes: that of its next life comes as well.
 *
 * Events are late because their interrupts are held back meanwhile.
 */
#include <linux/delay.h>
#include <linux/interrupt.h>
#include <linux/pci.h>

#include "pvrdma.h"
#include "loop.h"

#define WAIT	(10 * HZ)
#define LATE_MS 100

static void late_event(struct ib_cq *cq, void *context)
{
	complete(context);
}

/* A queue pair whose only receive is flushed. */
static struct ib_qp *flushed_qp(struct loop *loop, struct ib_cq *cq)
{
	struct ib_qp_init_attr init = {
		.cap = {
			.max_send_wr = 1,
			.max_recv_wr = 1,
			.max_send_sge = 1,
			.max_recv_sge = 1,
		},
		.qp_type = IB_QPT_RC,
		.send_cq = cq,
		.recv_cq = cq,
	};
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_INIT,
		.port_num = PVRDMA_PORT,
	};
	struct ib_recv_wr wr = {};
	struct ib_qp *qp = ib_create_qp(loop->pd, &init);
	int ret;

	if (IS_ERR(qp))
		return qp;
	ret = ib_modify_qp(qp, &attr, IB_QP_STATE | IB_QP_PKEY_INDEX |
				      IB_QP_PORT | IB_QP_ACCESS_FLAGS);
	if (!ret)
		ret = ib_post_recv(qp, &wr, NULL);
	attr.qp_state = IB_QPS_ERR;
	if (!ret)
		ret = ib_modify_qp(qp, &attr, IB_QP_STATE);
	if (!ret)
		return qp;
	ib_destroy_qp(qp);
	return ERR_PTR(ret);
}

static int poll_one(struct ib_cq *cq)
{
	unsigned long end = jiffies + WAIT;
	struct ib_wc wc;

	while (!ib_poll_cq(cq, 1, &wc)) {
		if (time_after(jiffies, end))
			return -ETIMEDOUT;
		usleep_range(1000, 2000);
	}
	return wc.status == IB_WC_WR_FLUSH_ERR ? 0 : -EPROTO;
}

/* Poll a queue pair's completion and end it, both before its event comes. */
static int end_before_event(struct loop *loop, struct ib_cq *cq)
{
	int irq = pci_irq_vector(to_pci_dev(loop->dev->dev.parent),
				 PVRDMA_VEC_CQ);
	struct ib_qp *qp;
	int ret;

	disable_irq(irq);
	qp = flushed_qp(loop, cq);
	ret = PTR_ERR_OR_ZERO(qp);
	if (!ret) {
		ret = poll_one(cq);
		ib_destroy_qp(qp);
	}
	enable_irq(irq);
	msleep(LATE_MS);
	return ret;
}

static int run(struct loop *loop)
{
	const struct ib_cq_init_attr attr = { .cqe = 16 };
	struct completion told;
	struct ib_cq *cq;
	struct ib_qp *qp;
	int ret;

	init_completion(&told);
	cq = ib_create_cq(loop->dev, late_event, NULL, &told, &attr);
	if (IS_ERR(cq))
		return PTR_ERR(cq);
	ret = ib_req_notify_cq(cq, IB_CQ_NEXT_COMP);
	if (!ret)
		ret = end_before_event(loop, cq);
	/* Who was told of the first one asks again. */
	if (!ret && try_wait_for_completion(&told))
		ret = ib_req_notify_cq(cq, IB_CQ_NEXT_COMP);
	if (ret)
		goto out;
	qp = flushed_qp(loop, cq);
	ret = PTR_ERR_OR_ZERO(qp);
	if (ret)
		goto out;
	if (!wait_for_completion_timeout(&told, WAIT))
		ret = -ENODATA;
	if (!ret)
		ret = poll_one(cq);
	ib_destroy_qp(qp);
out:
	ib_destroy_cq(cq);
	return ret;
}

static void last_wqe_event(struct ib_event *event, void *context)
{
	if (event->event == IB_EVENT_QP_LAST_WQE_REACHED)
		complete(context);
}

static int to_state(struct ib_qp *qp, enum ib_qp_state state)
{
	struct ib_qp_attr attr = {
		.qp_state = state,
		.port_num = PVRDMA_PORT,
	};

	return ib_modify_qp(qp, &attr,
			    state != IB_QPS_INIT ? IB_QP_STATE :
			    IB_QP_STATE | IB_QP_PKEY_INDEX | IB_QP_PORT |
			    IB_QP_ACCESS_FLAGS);
}

/* What a former life was told late, if it was, is not this one's. */
static int run_last_wqe(struct loop *loop)
{
	int irq = pci_irq_vector(to_pci_dev(loop->dev->dev.parent),
				 PVRDMA_VEC_ASYNC);
	struct completion told;
	struct ib_qp_init_attr init = {
		.cap = {
			.max_send_wr = 1,
			.max_send_sge = 1,
		},
		.qp_type = IB_QPT_RC,
		.send_cq = loop->cq,
		.recv_cq = loop->cq,
		.srq = loop->srq,
		.event_handler = last_wqe_event,
		.qp_context = &told,
	};
	struct ib_qp *qp;
	int ret;

	init_completion(&told);
	qp = ib_create_qp(loop->pd, &init);
	if (IS_ERR(qp))
		return PTR_ERR(qp);
	disable_irq(irq);
	ret = to_state(qp, IB_QPS_INIT);
	if (!ret)
		ret = to_state(qp, IB_QPS_ERR);
	msleep(LATE_MS); /* it is on its way now, unless the host is busy */
	if (!ret)
		ret = to_state(qp, IB_QPS_RESET);
	enable_irq(irq);
	if (!ret)
		wait_for_completion_timeout(&told, WAIT);
	if (!ret)
		ret = to_state(qp, IB_QPS_INIT);
	if (!ret)
		ret = to_state(qp, IB_QPS_ERR);
	if (!ret && !wait_for_completion_timeout(&told, WAIT))
		ret = -ENODATA;
	ib_destroy_qp(qp);
	return ret;
}

/**
 * late_run() - an event that comes after its queue pair's end
 * @loop: adapter, protection domain, and an SRQ or none
 *
 * Return: 0, -ENODATA if the second completion, or last receive, is not told
 * of, or another negative errno.
 */
int late_run(struct loop *loop)
{
	/* All have one vector, which each holds off. */
	static DEFINE_MUTEX(one);
	int ret;

	mutex_lock(&one);
	ret = run(loop);
	if (!ret && loop->srq)
		ret = run_last_wqe(loop);
	mutex_unlock(&one);
	return ret;
}
