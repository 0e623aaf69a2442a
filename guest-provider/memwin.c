/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Memory windows, in extended mode.  They are bound through send queues: of type 1 by
 * ibv_bind_mw(), which counts the window's key up, of type 2 by the program's own
 * requests, with a key of its choice.
 *
 * Threads: as for verbs in general; two that bind one window of type 1 at a time
 * do not know which key it has then, on any device.
 */
#include "pvrdma.h"

struct ibv_mw *pv_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct pv_context *ctx = to_pv_ctx(pd->context);
	struct ib_uverbs_alloc_mw_resp resp;
	struct ibv_alloc_mw cmd;
	struct ibv_mw *mw;
	int ret;

	if (!ctx->memwin) {
		pv_err(ctx, "memory windows need our driver and a device that has them");
		errno = EOPNOTSUPP;
		return NULL;
	}
	mw = calloc(1, sizeof(*mw));
	if (!mw)
		return NULL;
	ret = ibv_cmd_alloc_mw(pd, type, mw, &cmd, sizeof(cmd), &resp,
			       sizeof(resp));
	if (ret) {
		pv_debug(ctx, "kernel refuses a window of type %d: %s", type,
			 strerror(ret));
		free(mw);
		errno = ret;
		return NULL;
	}
	return mw;
}

int pv_dealloc_mw(struct ibv_mw *mw)
{
	int ret = ibv_cmd_dealloc_mw(mw);

	if (ret) {
		pv_debug(to_pv_ctx(mw->context), "kernel does not free window %#x: %s",
			 mw->rkey, strerror(ret));
		return ret;
	}
	free(mw);
	return 0;
}

int pv_bind_mw(struct ibv_qp *ibqp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
	struct ibv_send_wr *bad, wr = {
		.wr_id = bind->wr_id,
		.opcode = IBV_WR_BIND_MW,
		.send_flags = bind->send_flags,
		.bind_mw = {
			.mw = mw,
			.rkey = ibv_inc_rkey(mw->rkey),
			.bind_info = bind->bind_info,
		},
	};
	int ret;

	if (mw->type != IBV_MW_TYPE_1 ||
	    to_pv_pd(mw->pd)->pdn != to_pv_pd(ibqp->pd)->pdn) {
		pv_err(to_pv_ctx(ibqp->context),
		       "only windows of type 1 and of the QP's own PD can be bound");
		return EINVAL;
	}
	ret = pv_post_send(ibqp, &wr, &bad);
	if (!ret)
		mw->rkey = wr.bind_mw.rkey;
	return ret;
}
