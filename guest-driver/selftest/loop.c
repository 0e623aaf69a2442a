// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Test of the verbs for kernel users: two RC queue pairs of one adapter send
 * to each other.
 *
 * Loading it runs the test on every pvrdma adapter and logs one line per
 * adapter: "pvrdma_kloop: NAME: N messages, N errors".  Each round posts a
 * batch of receives, then a list of sends of different lengths, waits for all
 * completions and compares the data.  Then keys.c has its turn, which says
 * "keys of N pages: 0", and late.c.  At the end the queue pairs are drained,
 * which only ends if the device flushes what is posted in the error state.
 * Completions come through ib_core's CQ pool code: by work queue in one run,
 * by softirq in the other.  With threads=N so many runs are made at a time, on
 * different processors.  With srq=1 both receive from a shared queue; its limit event
 * must come once, and each QP's last-WQE event before it is destroyed.  With uc=1 the
 * queue pairs are unreliable ones, and keys.c has no turn.
 *
 * With hold=1 it leaves receives, and sends that no receive is there for, until
 * the adapter goes.  If that is because the adapter's device died, all of them
 * must end as flushed, and so must what is posted then: "pvrdma_kloop: NAME: N
 * flushed, RESULT, N stray events".  Stray ones are of CQs that nothing completes
 * on.  With srq=1 nothing is flushed, but the last-WQE events must come.  With
 * fault=NAME it does what a faulty device does, see fault.c, with or without
 * holding them then: "pvrdma_kloop: NAME: FAULT, RESULT".
 *
 * Completion handlers only count and wake.
 */
#include <linux/cpumask.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/workqueue.h>
#include <rdma/ib_cache.h>

#include "loop.h"

#define ROUNDS	    50
#define PORT	    1
#define WAIT	    (30 * HZ)
#define HOLD_WAIT   (300 * HZ)
#define MAX_THREADS 64

static bool hold;
module_param(hold, bool, 0);
static uint threads = 1;
module_param(threads, uint, 0);
static bool srq;
module_param(srq, bool, 0);
static bool uc;
module_param(uc, bool, 0);
static char *fault;
module_param(fault, charp, 0);

static void loop_count(struct slot *slot, const struct ib_wc *wc)
{
	if (wc->status == IB_WC_WR_FLUSH_ERR) {
		atomic_inc(&slot->loop->flushed);
		/* Draining flushes, and nobody waits then. */
		if (!hold)
			return;
	} else if (wc->status) {
		pr_err("pvrdma_kloop: status %s\n",
		       ib_wc_status_msg(wc->status));
		atomic_inc(&slot->loop->errors);
	}
	if (atomic_dec_and_test(&slot->loop->left))
		complete(&slot->loop->done);
}

static void send_done(struct ib_cq *cq, struct ib_wc *wc)
{
	loop_count(container_of(wc->wr_cqe, struct slot, cqe), wc);
}

static void recv_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct slot *slot = container_of(wc->wr_cqe, struct slot, cqe);

	slot->got = wc->byte_len;
	slot->with_imm = wc->wc_flags & IB_WC_WITH_IMM;
	slot->imm = slot->with_imm ? be32_to_cpu(wc->ex.imm_data) : 0;
	loop_count(slot, wc);
}

static int slot_init(struct loop *loop, struct slot *slot,
		     void (*done)(struct ib_cq *cq, struct ib_wc *wc))
{
	slot->loop = loop;
	slot->cqe.done = done;
	slot->data = kzalloc(SIZE, GFP_KERNEL);
	if (!slot->data)
		return -ENOMEM;
	slot->dma = ib_dma_map_single(loop->dev, slot->data, SIZE,
				      DMA_BIDIRECTIONAL);
	if (ib_dma_mapping_error(loop->dev, slot->dma)) {
		kfree(slot->data);
		slot->data = NULL;
		return -ENOMEM;
	}
	return 0;
}

static void slot_free(struct slot *slot)
{
	if (!slot->data)
		return;
	ib_dma_unmap_single(slot->loop->dev, slot->dma, SIZE,
			    DMA_BIDIRECTIONAL);
	kfree(slot->data);
}

/* An IPv4 address of the paired interface. */
static int find_gid(struct ib_device *dev, union ib_gid *gid)
{
	struct ib_port_attr attr;
	int i, ret;

	ret = ib_query_port(dev, PORT, &attr);
	if (ret)
		return ret;
	for (i = 0; i < attr.gid_tbl_len; i++)
		if (!rdma_query_gid(dev, PORT, i, gid) &&
		    ipv6_addr_v4mapped((struct in6_addr *)gid->raw))
			return i;
	return -ENOENT;
}

static int qp_connect(struct loop *loop, struct ib_qp *qp, u32 to, int index,
		      union ib_gid *gid)
{
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_INIT,
		.port_num = PORT,
		.qp_access_flags = IB_ACCESS_REMOTE_WRITE,
	};
	int rtr = IB_QP_STATE | IB_QP_AV | IB_QP_PATH_MTU | IB_QP_DEST_QPN |
		  IB_QP_RQ_PSN;
	int rts = IB_QP_STATE | IB_QP_SQ_PSN;
	int ret;

	if (!uc) {
		rtr |= IB_QP_MAX_DEST_RD_ATOMIC | IB_QP_MIN_RNR_TIMER;
		rts |= IB_QP_TIMEOUT | IB_QP_RETRY_CNT | IB_QP_RNR_RETRY |
		       IB_QP_MAX_QP_RD_ATOMIC;
	}
	ret = ib_modify_qp(qp, &attr, IB_QP_STATE | IB_QP_PKEY_INDEX |
				      IB_QP_PORT | IB_QP_ACCESS_FLAGS);
	if (ret)
		return ret;
	memset(&attr, 0, sizeof(attr));
	attr.qp_state = IB_QPS_RTR;
	attr.path_mtu = IB_MTU_1024;
	attr.dest_qp_num = to;
	attr.min_rnr_timer = 12;
	attr.ah_attr.type = rdma_ah_find_type(loop->dev, PORT);
	rdma_ah_set_port_num(&attr.ah_attr, PORT);
	rdma_ah_set_grh(&attr.ah_attr, gid, 0, index, 64, 0);
	ret = ib_modify_qp(qp, &attr, rtr);
	if (ret)
		return ret;
	memset(&attr, 0, sizeof(attr));
	attr.qp_state = IB_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	return ib_modify_qp(qp, &attr, rts);
}

static int post_receives(struct loop *loop, struct ib_qp *qp)
{
	struct ib_recv_wr wr = { .num_sge = 1 };
	struct ib_sge sge = {
		.length = SIZE,
		.lkey = loop->pd->local_dma_lkey,
	};
	int i, ret;

	for (i = 0; i < BATCH; i++) {
		memset(loop->recv[i].data, 0, SIZE);
		sge.addr = loop->recv[i].dma;
		wr.wr_cqe = &loop->recv[i].cqe;
		wr.sg_list = &sge;
		ret = srq ? ib_post_srq_recv(loop->srq, &wr, NULL) :
			    ib_post_recv(qp, &wr, NULL);
		if (ret)
			return ret;
	}
	return 0;
}

static u32 length_of(u32 round, u32 i)
{
	return (round * 977 + i * 131) % SIZE + 1;
}

static int post_sends(struct loop *loop, struct ib_qp *qp, u32 round)
{
	struct ib_send_wr *wr;
	struct ib_sge *sge;
	int i, ret;

	wr = kcalloc(BATCH, sizeof(*wr), GFP_KERNEL);
	sge = kcalloc(BATCH, sizeof(*sge), GFP_KERNEL);
	if (!wr || !sge) {
		ret = -ENOMEM;
		goto out;
	}
	for (i = 0; i < BATCH; i++) {
		memset(loop->send[i].data, (round + i) & 0xff, SIZE);
		sge[i].addr = loop->send[i].dma;
		sge[i].length = length_of(round, i);
		sge[i].lkey = loop->pd->local_dma_lkey;
		wr[i].wr_cqe = &loop->send[i].cqe;
		wr[i].sg_list = &sge[i];
		wr[i].num_sge = 1;
		wr[i].send_flags = IB_SEND_SIGNALED;
		wr[i].opcode = i & 1 ? IB_WR_SEND_WITH_IMM : IB_WR_SEND;
		wr[i].ex.imm_data = cpu_to_be32(round * BATCH + i);
		wr[i].next = i < BATCH - 1 ? &wr[i + 1] : NULL;
	}
	ret = ib_post_send(qp, wr, NULL);
out:
	kfree(sge);
	kfree(wr);
	return ret;
}

static void compare(struct loop *loop, u32 round)
{
	struct slot *slot;
	u32 i, imm;

	for (i = 0; i < BATCH; i++) {
		slot = &loop->recv[i];
		imm = i & 1 ? round * BATCH + i : 0;
		if (slot->got != length_of(round, i) ||
		    slot->with_imm != (i & 1) || slot->imm != imm ||
		    memcmp(slot->data, loop->send[i].data, slot->got) ||
		    (slot->got < SIZE && slot->data[slot->got])) {
			pr_err("pvrdma_kloop: round %u, message %u is wrong\n",
			       round, i);
			atomic_inc(&loop->errors);
		}
	}
	loop->messages += BATCH;
}

static void srq_event(struct ib_event *event, void *context)
{
	struct loop *loop = context;

	if (event->event == IB_EVENT_SRQ_LIMIT_REACHED)
		atomic_inc(&loop->limits);
	else
		atomic_inc(&loop->errors);
	complete(&loop->limit);
}

static void qp_event(struct ib_event *event, void *context)
{
	struct loop *loop = context;

	if (event->event == IB_EVENT_QP_LAST_WQE_REACHED)
		complete(&loop->last_wqe);
}

/* Once the limit is armed, the first round's messages leave fewer receives. */
static int arm_limit(struct loop *loop)
{
	struct ib_srq_attr attr = { .srq_limit = BATCH / 2 };
	int ret;

	ret = ib_modify_srq(loop->srq, &attr, IB_SRQ_LIMIT);
	if (ret)
		return ret;
	ret = ib_query_srq(loop->srq, &attr);
	if (ret)
		return ret;
	return attr.srq_limit == BATCH / 2 && attr.max_wr >= BATCH ? 0 : -EIO;
}

static int loop_rounds(struct loop *loop)
{
	u32 round;
	int ret;

	ret = srq ? arm_limit(loop) : 0;
	if (ret)
		return ret;
	for (round = 0; round < ROUNDS; round++) {
		struct ib_qp *from = loop->qp[round & 1];
		struct ib_qp *to = loop->qp[!(round & 1)];

		atomic_set(&loop->left, 2 * BATCH);
		reinit_completion(&loop->done);
		ret = post_receives(loop, to);
		if (!ret)
			ret = post_sends(loop, from, round);
		if (ret)
			return ret;
		if (!wait_for_completion_timeout(&loop->done, WAIT))
			return -ETIMEDOUT;
		compare(loop, round);
	}
	if (srq && (!wait_for_completion_timeout(&loop->limit, WAIT) ||
		    atomic_read(&loop->limits) != 1))
		return -EPROTO;
	/* Something to flush; of an SRQ, something that is not. */
	return post_receives(loop, loop->qp[0]);
}

static struct ib_client loop_client;

static int loop_objects(struct loop *loop, enum ib_poll_context context)
{
	struct ib_qp_init_attr init = {
		.cap = {
			.max_send_wr = BATCH + 1,
			.max_recv_wr = BATCH + 1,
			.max_send_sge = 1,
			.max_recv_sge = 1,
		},
		.qp_type = uc ? IB_QPT_UC : IB_QPT_RC,
		.sq_sig_type = IB_SIGNAL_REQ_WR,
	};
	struct ib_srq_init_attr srq_init = {
		.event_handler = srq_event,
		.srq_context = loop,
		.attr = { .max_wr = BATCH, .max_sge = 1 },
		.srq_type = IB_SRQT_BASIC,
	};
	union ib_gid gid;
	int i, index, ret;

	index = find_gid(loop->dev, &gid);
	if (index < 0)
		return index;
	for (i = 0; i < BATCH; i++) {
		ret = slot_init(loop, &loop->send[i], send_done);
		if (!ret)
			ret = slot_init(loop, &loop->recv[i], recv_done);
		if (ret)
			return ret;
	}
	loop->pd = ib_alloc_pd(loop->dev, 0);
	if (IS_ERR(loop->pd))
		return PTR_ERR(loop->pd);
	loop->cq = ib_alloc_cq(loop->dev, NULL, 8 * BATCH, 0, context);
	if (IS_ERR(loop->cq))
		return PTR_ERR(loop->cq);
	if (srq) {
		loop->srq = ib_create_srq(loop->pd, &srq_init);
		if (IS_ERR(loop->srq))
			return PTR_ERR(loop->srq);
		init.srq = loop->srq;
		init.event_handler = qp_event;
		init.qp_context = loop;
	}
	init.send_cq = loop->cq;
	init.recv_cq = loop->cq;
	for (i = 0; i < 2; i++) {
		loop->qp[i] = ib_create_qp(loop->pd, &init);
		if (IS_ERR(loop->qp[i]))
			return PTR_ERR(loop->qp[i]);
	}
	ret = qp_connect(loop, loop->qp[0], loop->qp[1]->qp_num, index, &gid);
	if (!ret)
		ret = qp_connect(loop, loop->qp[1], loop->qp[0]->qp_num, index,
				 &gid);
	return ret;
}

static void loop_free(struct loop *loop)
{
	int i;

	for (i = 0; i < 2; i++) {
		if (IS_ERR_OR_NULL(loop->qp[i]))
			continue;
		ib_drain_qp(loop->qp[i]);
		if (srq &&
		    !wait_for_completion_timeout(&loop->last_wqe, WAIT)) {
			pr_err("pvrdma_kloop: no last WQE\n");
			atomic_inc(&loop->errors);
		}
		ib_destroy_qp(loop->qp[i]);
	}
	if (!IS_ERR_OR_NULL(loop->srq))
		ib_destroy_srq(loop->srq);
	if (!IS_ERR_OR_NULL(loop->cq))
		ib_free_cq(loop->cq);
	for (i = 0; i < IDLE && loop->idle[i]; i++)
		ib_destroy_cq(loop->idle[i]);
	if (!IS_ERR_OR_NULL(loop->pd))
		ib_dealloc_pd(loop->pd);
	for (i = 0; i < BATCH; i++) {
		slot_free(&loop->send[i]);
		slot_free(&loop->recv[i]);
	}
}

static void stray_event(struct ib_cq *cq, void *context)
{
	struct loop *loop = context;

	atomic_inc(&loop->strays);
}

static int idle_cqs(struct loop *loop)
{
	const struct ib_cq_init_attr attr = { .cqe = 1 };
	struct ib_cq *cq;
	int i;

	for (i = 0; i < IDLE; i++) {
		cq = ib_create_cq(loop->dev, stray_event, NULL, loop, &attr);
		if (IS_ERR(cq))
			return PTR_ERR(cq);
		loop->idle[i] = cq;
	}
	return ib_req_notify_cq(loop->idle[0], IB_CQ_NEXT_COMP);
}

static int loop_hold(struct ib_device *dev)
{
	struct loop *loop = kvzalloc(sizeof(*loop), GFP_KERNEL);
	int ret;

	if (!loop)
		return -ENOMEM;
	loop->dev = dev;
	init_completion(&loop->done);
	init_completion(&loop->limit);
	init_completion(&loop->last_wqe);
	atomic_set(&loop->left, 2 * BATCH);
	ret = loop_objects(loop, IB_POLL_SOFTIRQ);
	if (!ret)
		ret = post_receives(loop, loop->qp[0]);
	if (!ret)
		ret = post_sends(loop, loop->qp[0], 0);
	if (!ret)
		ret = idle_cqs(loop);
	if (!ret && fault) {
		ret = fault_run(loop, fault);
		pr_info("pvrdma_kloop: %s: %s, %d\n", dev_name(&dev->dev),
			fault, ret);
	}
	if (ret || !hold) {
		loop_free(loop);
		kvfree(loop);
		return ret ? ret : -EOPNOTSUPP;
	}
	ib_set_client_data(dev, &loop_client, loop);
	return 0;
}

struct run {
	struct work_struct work;
	struct ib_device *dev;
};

static void loop_run(struct work_struct *work)
{
	static const enum ib_poll_context context[] = { IB_POLL_WORKQUEUE,
							IB_POLL_SOFTIRQ };
	struct ib_device *dev = container_of(work, struct run, work)->dev;
	struct loop *loop;
	int i, ret;

	for (i = 0; i < ARRAY_SIZE(context); i++) {
		loop = kvzalloc(sizeof(*loop), GFP_KERNEL);
		if (!loop)
			return;
		loop->dev = dev;
		init_completion(&loop->done);
		init_completion(&loop->limit);
		init_completion(&loop->last_wqe);
		ret = loop_objects(loop, context[i]);
		if (!ret)
			ret = loop_rounds(loop);
		/* keys.c posts receives of its own, and LOCAL_INV. */
		if (!ret && !srq && !uc)
			ret = keys_run(loop);
		if (!ret)
			ret = late_run(loop);
		if (ret) {
			pr_err("pvrdma_kloop: %d\n", ret);
			atomic_inc(&loop->errors);
		}
		loop_free(loop);
		pr_info("pvrdma_kloop: %s: %u messages, %d errors\n",
			dev_name(&dev->dev), loop->messages,
			atomic_read(&loop->errors));
		kvfree(loop);
	}
}

static int loop_add(struct ib_device *dev)
{
	uint i, cpu = cpumask_first(cpu_online_mask);
	struct run *runs;

	if (dev->ops.driver_id != RDMA_DRIVER_VMW_PVRDMA)
		return -EOPNOTSUPP;
	if (hold || fault)
		return loop_hold(dev);
	threads = clamp(threads, 1u, (uint)MAX_THREADS);
	runs = kcalloc(threads, sizeof(*runs), GFP_KERNEL);
	if (!runs)
		return -ENOMEM;
	for (i = 0; i < threads; i++) {
		INIT_WORK(&runs[i].work, loop_run);
		runs[i].dev = dev;
		queue_work_on(cpu, system_long_wq, &runs[i].work);
		cpu = cpumask_next(cpu, cpu_online_mask);
		if (cpu >= nr_cpu_ids)
			cpu = cpumask_first(cpu_online_mask);
	}
	for (i = 0; i < threads; i++)
		flush_work(&runs[i].work);
	kfree(runs);
	return -EOPNOTSUPP;
}

static void loop_remove(struct ib_device *dev, void *data)
{
	struct loop *loop = data;
	int ret = 0;

	/* Long, so that a test sees that somebody waits for this; an SRQ is not flushed. */
	if (!srq && wait_for_completion_timeout(&loop->done, HOLD_WAIT)) {
		atomic_set(&loop->left, BATCH);
		reinit_completion(&loop->done);
		ret = post_receives(loop, loop->qp[0]);
		if (!ret && !wait_for_completion_timeout(&loop->done, WAIT))
			ret = -ETIMEDOUT;
	}
	pr_info("pvrdma_kloop: %s: %d flushed, %d, %d stray events\n",
		dev_name(&dev->dev), atomic_read(&loop->flushed), ret,
		atomic_read(&loop->strays));
	loop_free(loop);
	kvfree(loop);
}

static struct ib_client loop_client = {
	.name = "pvrdma_kloop",
	.add = loop_add,
	.remove = loop_remove,
};

static int __init loop_init(void)
{
	return ib_register_client(&loop_client);
}

static void __exit loop_exit(void)
{
	ib_unregister_client(&loop_client);
}

module_init(loop_init);
module_exit(loop_exit);
MODULE_DESCRIPTION("Test of kernel verbs on pvrdma");
MODULE_LICENSE("Dual BSD/GPL");
