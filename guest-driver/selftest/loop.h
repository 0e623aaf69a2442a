/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The parts of the module pvrdma_kloop: loop.c, keys.c, late.c and fault.c. */
#ifndef LOOP_H
#define LOOP_H

#include <linux/atomic.h>
#include <linux/completion.h>
#include <rdma/ib_verbs.h>

#define BATCH 32
#define IDLE  2
#define SIZE  4096

struct slot {
	struct ib_cqe cqe;
	struct loop *loop;
	u8 *data;
	u64 dma;
	u32 got;
	u32 imm;
	bool with_imm;
};

/**
 * struct loop - two connected queue pairs of one adapter
 * @dev: adapter
 * @pd: protection domain
 * @cq: of both queue pairs
 * @idle: CQs that nothing completes on; one is armed
 * @srq: where both receive, or NULL
 * @limit: @srq had an event
 * @last_wqe: a queue pair had that event
 * @limits: how often @srq fell below its limit
 * @qp: queue pairs
 * @send: what is sent
 * @recv: where it goes
 * @left: completions until @done
 * @errors: what went wrong
 * @flushed: completions that ended as flushed
 * @strays: events of @idle
 * @done: @left is 0
 * @messages: compared
 */
struct loop {
	struct ib_device *dev;
	struct ib_pd *pd;
	struct ib_cq *cq;
	struct ib_cq *idle[IDLE];
	struct ib_srq *srq;
	struct completion limit;
	struct completion last_wqe;
	atomic_t limits;
	struct ib_qp *qp[2];
	struct slot send[BATCH];
	struct slot recv[BATCH];
	atomic_t left;
	atomic_t errors;
	atomic_t flushed;
	atomic_t strays;
	struct completion done;
	u32 messages;
};

int keys_run(struct loop *loop);
int late_run(struct loop *loop);
int fault_run(struct loop *loop, const char *what);

#endif /* LOOP_H */
