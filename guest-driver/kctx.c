// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The kernel's own context: doorbell page 0, and on a device that has it
 * extension memory (pvrdma/ext.h), so that kernel users post without leaving
 * the guest, as programs do.
 *
 * What is posted is seen because each side stores before it looks: here the
 * producer's index, then the no-notify word, then the bits, then the kick word;
 * the device clears or sets those words, then looks at index and bits again.
 * The device is another processor also where this machine has but one, for
 * which the kernel takes "lock" out of its atomic operations and barriers: so
 * it must be the sync_ and virt_ kind here.
 *
 * Without extension memory all kernel objects have the stock layout, and each
 * post is a doorbell.  The memory is the device's until it is reset.
 */
#include <linux/bitops.h>
#include <asm/sync_bitops.h>

#include "cmd.h"
#include "pvrdma.h"

#define KCTX_FEATURES (PVRDMA_EXT_FEAT_DOORBELL | PVRDMA_EXT_FEAT_RING)

/**
 * pvrdma_kctx_start() - ask for extension memory
 * @dev: active device
 *
 * If there is none, the kernel's objects are stock ones.
 */
void pvrdma_kctx_start(struct pvrdma_dev *dev)
{
	struct pvrdma_ext_cmd_uc req = {
		.pfn = pci_resource_start(dev->pdev, PVRDMA_BAR_UAR) >>
		       PVRDMA_PAGE_SHIFT,
		.features = KCTX_FEATURES,
		.npages = PVRDMA_EXT_PAGES,
	};
	struct pvrdma_ext_resp_uc resp;
	int ret;

	if ((dev->ext.features & KCTX_FEATURES) != KCTX_FEATURES)
		return;
	ret = pvrdma_pagedir_alloc(dev, &dev->kctx.mem, PVRDMA_EXT_PAGES, true);
	if (!ret) {
		req.pdir_dma = dev->kctx.mem.dir_dma;
		ret = pvrdma_cmd_create_uc_ext(dev, &req, &resp);
	}
	if (!ret && (resp.features & KCTX_FEATURES) == KCTX_FEATURES)
		dev->kctx.flags = PVRDMA_EXT_OBJ_RING;
	else
		dev_warn(&dev->pdev->dev,
			 "kernel users post by doorbells: %d\n", ret);
}

/**
 * pvrdma_kctx_free() - give the memory back
 * @dev: device that was reset
 */
void pvrdma_kctx_free(struct pvrdma_dev *dev)
{
	pvrdma_pagedir_free(dev, &dev->kctx.mem);
}

/**
 * pvrdma_words_init() - find the words of a ring
 * @words: get their addresses
 * @dir: the object's pages
 * @ext: it has the extended layout
 * @tx: the first of its two rings, else the second
 */
void pvrdma_words_init(struct pvrdma_words *words,
		       const struct pvrdma_pagedir *dir, bool ext, bool tx)
{
	struct pvrdma_ext_ring *lines = dir->page[0];
	struct pvrdma_ring_state *state = dir->page[0];
	struct pvrdma_ring *ring = tx ? &state->tx : &state->rx;

	if (!ext) {
		words->prod = &ring->prod_tail;
		words->cons = &ring->cons_head;
		words->no_notify = NULL;
	} else if (tx) {
		words->prod = &lines->tx_prod_tail.value;
		words->cons = &lines->tx_cons_head.value;
		words->no_notify = &lines->tx_no_notify.value;
	} else {
		words->prod = &lines->rx_prod_tail.value;
		words->cons = &lines->rx_cons_head.value;
		words->no_notify = &lines->rx_no_notify.value;
	}
}

static void map_set(struct pvrdma_dev *dev, u32 map, u32 handle)
{
	struct pvrdma_pagedir *mem = &dev->kctx.mem;
	u32 word = handle / 64;

	sync_set_bit(handle % 64,
		     pvrdma_dir_ptr(mem, map + offsetof(struct pvrdma_ext_map, words) +
					 word * sizeof(u64)));
	sync_set_bit(word % 64,
		     pvrdma_dir_ptr(mem, map + word / 64 * sizeof(u64)));
}

/* The device will look at the queue by itself. */
static bool will_look(const struct pvrdma_words *words)
{
	/* The index is stored before the word is read. */
	virt_mb();
	return READ_ONCE(*words->no_notify);
}

/**
 * pvrdma_ring_qp() - let the device know that something was posted
 * @dev: device
 * @qp: kernel QP
 * @send: to its send queue, else the receive queue
 */
void pvrdma_ring_qp(struct pvrdma_dev *dev, struct pvrdma_qp *qp, bool send)
{
	const struct pvrdma_words *words = send ? &qp->sq.words : &qp->rq.words;
	const struct pvrdma_ext_head *head;

	if (words->no_notify) {
		if (will_look(words))
			return;
		map_set(dev, send ? offsetof(struct pvrdma_ext_mem, send) :
				    offsetof(struct pvrdma_ext_mem, recv),
			qp->handle);
		/* The bits are stored before the word is read. */
		virt_mb();
		head = pvrdma_dir_ptr(&dev->kctx.mem, 0);
		if (!READ_ONCE(head->kick))
			return;
	}
	writel(qp->handle | (send ? PVRDMA_UAR_QP_SEND : PVRDMA_UAR_QP_RECV),
	       dev->uar + PVRDMA_UAR_QP);
}

/**
 * pvrdma_ring_srq() - the same for an SRQ
 * @dev: device
 * @srq: kernel SRQ
 */
void pvrdma_ring_srq(struct pvrdma_dev *dev, struct pvrdma_srq *srq)
{
	if (srq->rq.words.no_notify && will_look(&srq->rq.words))
		return;
	writel(srq->handle | PVRDMA_UAR_SRQ_RECV, dev->uar + PVRDMA_UAR_SRQ);
}

/**
 * pvrdma_arm_cq() - ask for an event
 * @dev: device
 * @cq: CQ of the kernel or a program, which polls after this
 * @solicited: only for solicited completions and errors
 */
void pvrdma_arm_cq(struct pvrdma_dev *dev, struct pvrdma_cq *cq, bool solicited)
{
	u32 *arm = cq->arm;

	if (!arm) {
		writel(cq->handle | (solicited ? PVRDMA_UAR_CQ_ARM_SOL :
						 PVRDMA_UAR_CQ_ARM),
		       dev->uar + PVRDMA_UAR_CQ);
		return;
	}
	/* It must not weaken an earlier "any". */
	if (solicited)
		sync_cmpxchg(arm, PVRDMA_EXT_ARM_NONE, PVRDMA_EXT_ARM_SOLICITED);
	else
		WRITE_ONCE(*arm, PVRDMA_EXT_ARM_ANY);
	/* It is armed before the ring is looked at. */
	virt_mb();
}
