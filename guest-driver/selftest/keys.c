// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Fast registration as kernel protocols use it: one side registers scattered
 * pages, as many as the adapter takes at once, the other writes to them, and
 * what ends the key is the other's SEND or an own LOCAL_INV.  Then the key is of
 * no use: that the queue pairs end in the error state is part of the test.
 */
#include <linux/scatterlist.h>
#include <linux/slab.h>

#include "loop.h"

#define OFFSET 100
#define ROUNDS 20
#define WAIT   (30 * HZ)

struct wait {
	struct ib_cqe cqe;
	struct completion done;
	struct ib_wc wc;
};

struct keys {
	struct loop *loop;
	struct ib_mr *mr;
	struct scatterlist *sg;
	u32 npages;
	int mapped;
	struct wait reg, inv, send, recv;
};

static void keys_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct wait *wait = container_of(wc->wr_cqe, struct wait, cqe);

	wait->wc = *wc;
	complete(&wait->done);
}

static struct ib_cqe *expect(struct wait *wait)
{
	wait->cqe.done = keys_done;
	init_completion(&wait->done);
	return &wait->cqe;
}

static int wait_for(struct wait *wait, enum ib_wc_status status, int opcode)
{
	if (!wait_for_completion_timeout(&wait->done, WAIT))
		return -ETIMEDOUT;
	if (wait->wc.status == status && (status || wait->wc.opcode == opcode))
		return 0;
	pr_err("pvrdma_kloop: keys: opcode %d ended with %s\n", opcode,
	       ib_wc_status_msg(wait->wc.status));
	return -EIO;
}

static int keys_alloc(struct keys *k)
{
	struct page *page;
	u32 i;

	k->npages = k->loop->dev->attrs.max_fast_reg_page_list_len;
	k->sg = kcalloc(k->npages, sizeof(*k->sg), GFP_KERNEL);
	if (!k->sg)
		return -ENOMEM;
	sg_init_table(k->sg, k->npages);
	for (i = 0; i < k->npages; i++) {
		page = alloc_page(GFP_KERNEL | __GFP_ZERO);
		if (!page)
			return -ENOMEM;
		sg_set_page(&k->sg[i], page, PAGE_SIZE, 0);
	}
	k->mapped = ib_dma_map_sg(k->loop->dev, k->sg, k->npages,
				  DMA_BIDIRECTIONAL);
	if (k->mapped != k->npages)
		return -EIO;
	k->mr = ib_alloc_mr(k->loop->pd, IB_MR_TYPE_MEM_REG, k->npages);
	return PTR_ERR_OR_ZERO(k->mr);
}

static void keys_free(struct keys *k)
{
	u32 i;

	if (!IS_ERR_OR_NULL(k->mr))
		ib_dereg_mr(k->mr);
	if (k->mapped)
		ib_dma_unmap_sg(k->loop->dev, k->sg, k->npages,
				DMA_BIDIRECTIONAL);
	for (i = 0; k->sg && i < k->npages && sg_page(&k->sg[i]); i++)
		__free_page(sg_page(&k->sg[i]));
	kfree(k->sg);
}

static int keys_register(struct keys *k)
{
	unsigned int offset = OFFSET;
	struct ib_reg_wr wr = {
		.wr = {
			.opcode = IB_WR_REG_MR,
			.send_flags = IB_SEND_SIGNALED,
		},
		.mr = k->mr,
		.access = IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE,
	};
	int ret;

	ret = ib_map_mr_sg(k->mr, k->sg, k->npages, &offset, PAGE_SIZE);
	if (ret != k->npages)
		return ret < 0 ? ret : -EIO;
	if (k->mr->length != (u64)k->npages * PAGE_SIZE - OFFSET)
		return -EIO;
	ib_update_fast_reg_key(k->mr, ib_inc_rkey(k->mr->rkey));
	wr.key = k->mr->rkey;
	wr.wr.wr_cqe = expect(&k->reg);
	ret = ib_post_send(k->loop->qp[1], &wr.wr, NULL);
	return ret ? ret : wait_for(&k->reg, IB_WC_SUCCESS, IB_WC_REG_MR);
}

/* A whole message at @at of what was registered. */
static int keys_write(struct keys *k, u32 at, u8 value, enum ib_wc_status status)
{
	struct slot *from = &k->loop->send[0];
	struct ib_sge sge = {
		.addr = from->dma,
		.length = SIZE,
		.lkey = k->loop->pd->local_dma_lkey,
	};
	struct ib_rdma_wr wr = {
		.wr = {
			.opcode = IB_WR_RDMA_WRITE,
			.send_flags = IB_SEND_SIGNALED,
			.sg_list = &sge,
			.num_sge = 1,
		},
		.remote_addr = k->mr->iova + at,
		.rkey = k->mr->rkey,
	};
	int ret;

	memset(from->data, value, SIZE);
	wr.wr.wr_cqe = expect(&k->send);
	ret = ib_post_send(k->loop->qp[0], &wr.wr, NULL);
	return ret ? ret : wait_for(&k->send, status, IB_WC_RDMA_WRITE);
}

/* Is @value at @at in the registered pages, as far as a message, and no more? */
static bool keys_compare(struct keys *k, u32 at, u8 value)
{
	u32 i, where;
	bool there;
	u8 *data;

	for (i = 0; i < SIZE + 2; i++) {
		where = OFFSET + at + i - 1;
		if (where >= k->npages * PAGE_SIZE)
			continue;
		data = page_address(sg_page(&k->sg[where / PAGE_SIZE]));
		there = data[where % PAGE_SIZE] == value;
		if (there != (i > 0 && i <= SIZE))
			return false;
	}
	return true;
}

static int keys_send_inv(struct keys *k)
{
	struct ib_send_wr send = {
		.opcode = IB_WR_SEND_WITH_INV,
		.send_flags = IB_SEND_SIGNALED,
		.ex.invalidate_rkey = k->mr->rkey,
	};
	struct ib_recv_wr recv = {};
	int ret;

	send.wr_cqe = expect(&k->send);
	recv.wr_cqe = expect(&k->recv);
	ret = ib_post_recv(k->loop->qp[1], &recv, NULL);
	if (!ret)
		ret = ib_post_send(k->loop->qp[0], &send, NULL);
	if (!ret)
		ret = wait_for(&k->send, IB_WC_SUCCESS, IB_WC_SEND);
	if (!ret)
		ret = wait_for(&k->recv, IB_WC_SUCCESS, IB_WC_RECV);
	if (ret)
		return ret;
	return k->recv.wc.wc_flags & IB_WC_WITH_INVALIDATE &&
	       k->recv.wc.ex.invalidate_rkey == k->mr->rkey ? 0 : -EBADMSG;
}

static int keys_local_inv(struct keys *k)
{
	struct ib_send_wr wr = {
		.opcode = IB_WR_LOCAL_INV,
		.send_flags = IB_SEND_SIGNALED,
		.ex.invalidate_rkey = k->mr->rkey,
	};
	int ret;

	wr.wr_cqe = expect(&k->inv);
	ret = ib_post_send(k->loop->qp[1], &wr, NULL);
	return ret ? ret : wait_for(&k->inv, IB_WC_SUCCESS, IB_WC_LOCAL_INV);
}

static int keys_rounds(struct keys *k)
{
	u32 i, at, room = k->npages * PAGE_SIZE - OFFSET - SIZE;
	int ret;

	for (i = 0; i < ROUNDS; i++) {
		at = i ? i * 7919 * 31 % room : room;
		ret = keys_register(k);
		if (!ret)
			ret = keys_write(k, at, i + 1, IB_WC_SUCCESS);
		if (!ret && !keys_compare(k, at, i + 1))
			ret = -EBADMSG;
		if (!ret)
			ret = i & 1 ? keys_send_inv(k) : keys_local_inv(k);
		if (ret)
			return ret;
	}
	return keys_write(k, 0, 0, IB_WC_REM_ACCESS_ERR);
}

/**
 * keys_run() - the test
 * @loop: connected queue pairs on which nothing is outstanding; they end in
 *	the error state
 *
 * Return: 0 or an errno.
 */
int keys_run(struct loop *loop)
{
	struct keys *k;
	int ret;

	if (!(loop->dev->attrs.device_cap_flags & IB_DEVICE_MEM_MGT_EXTENSIONS))
		return -EOPNOTSUPP;
	k = kzalloc(sizeof(*k), GFP_KERNEL);
	if (!k)
		return -ENOMEM;
	k->loop = loop;
	ret = keys_alloc(k);
	if (!ret)
		ret = keys_rounds(k);
	pr_info("pvrdma_kloop: %s: keys of %u pages: %d\n",
		dev_name(&loop->dev->dev), k->npages, ret);
	if (ret == -ETIMEDOUT)
		return ret; /* what is posted still uses all of it */
	keys_free(k);
	kfree(k);
	return ret;
}
