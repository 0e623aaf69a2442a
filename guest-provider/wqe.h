/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Building work queue elements: from verbs' work requests to the layout of
 * pvrdma/abi.h and ext.h.  Pure: writes the slot it is given and nothing else.
 *
 * A header is always written in full, so the device never sees bytes of an
 * earlier request, and memory checkers see none that are undefined.
 */
#ifndef PV_WQE_H
#define PV_WQE_H

#include <errno.h>
#include <string.h>

#include <infiniband/verbs.h>

#include "ring.h"

_Static_assert((int)IBV_WR_RDMA_WRITE == (int)PVRDMA_WR_RDMA_WRITE &&
	       (int)IBV_WR_RDMA_WRITE_WITH_IMM ==
		       (int)PVRDMA_WR_RDMA_WRITE_WITH_IMM &&
	       (int)IBV_WR_SEND == (int)PVRDMA_WR_SEND &&
	       (int)IBV_WR_SEND_WITH_IMM == (int)PVRDMA_WR_SEND_WITH_IMM &&
	       (int)IBV_WR_RDMA_READ == (int)PVRDMA_WR_RDMA_READ &&
	       (int)IBV_WR_ATOMIC_CMP_AND_SWP ==
		       (int)PVRDMA_WR_ATOMIC_CMP_AND_SWP &&
	       (int)IBV_WR_ATOMIC_FETCH_AND_ADD ==
		       (int)PVRDMA_WR_ATOMIC_FETCH_AND_ADD,
	       "the opcodes a user may post are numbered as in verbs");
_Static_assert((int)IBV_SEND_FENCE == (int)PVRDMA_SEND_FENCE &&
	       (int)IBV_SEND_SIGNALED == (int)PVRDMA_SEND_SIGNALED &&
	       (int)IBV_SEND_SOLICITED == (int)PVRDMA_SEND_SOLICITED &&
	       (int)IBV_SEND_INLINE == (int)PVRDMA_SEND_INLINE,
	       "send flags have the values of verbs");
_Static_assert(sizeof(struct ibv_sge) == sizeof(struct pvrdma_sge),
	       "SGEs are copied as they are");

struct pv_ah {
	struct ibv_ah ibv_ah;
	struct pvrdma_av av;
};

static inline struct pv_ah *to_pv_ah(struct ibv_ah *ah)
{
	return (struct pv_ah *)ah;
}

/* What may be put in a WQE of one queue. */
struct pv_wqe_limits {
	uint32_t max_sge;
	uint32_t max_inline; /* bytes; 0: no inline data */
	bool keys; /* requests that make keys and take them away */
};

static inline void *pv_wqe_payload(struct pvrdma_sq_wqe_hdr *hdr)
{
	return hdr + 1;
}

/*
 * Size of a send WQE in bytes.  The device works the same number out of the
 * same two values.
 */
static inline uint32_t pv_sq_wqe_size(uint32_t max_sge, uint32_t max_inline)
{
	uint32_t data = max_sge * (uint32_t)sizeof(struct pvrdma_sge);

	if (data < max_inline)
		data = max_inline;
	return pv_roundup_pow2(sizeof(struct pvrdma_sq_wqe_hdr) + data);
}

static inline uint32_t pv_rq_wqe_size(uint32_t max_sge)
{
	return pv_roundup_pow2(sizeof(struct pvrdma_rq_wqe_hdr) +
			       max_sge * sizeof(struct pvrdma_sge));
}

/* Start a send WQE: all of the header, no data. */
static inline void pv_wqe_begin(struct pvrdma_sq_wqe_hdr *hdr, uint64_t wr_id,
				uint32_t opcode, unsigned int flags)
{
	memset(hdr, 0, sizeof(*hdr));
	hdr->wr_id = wr_id;
	hdr->opcode = opcode;
	hdr->send_flags = flags & (PVRDMA_SEND_FENCE | PVRDMA_SEND_SIGNALED |
				   PVRDMA_SEND_SOLICITED);
}

static inline void pv_wqe_rdma(struct pvrdma_sq_wqe_hdr *hdr, uint64_t addr,
			       uint32_t rkey)
{
	hdr->wr.rdma.remote_addr = addr;
	hdr->wr.rdma.rkey = rkey;
}

static inline void pv_wqe_atomic(struct pvrdma_sq_wqe_hdr *hdr, uint64_t addr,
				 uint32_t rkey, uint64_t compare_add,
				 uint64_t swap)
{
	hdr->wr.atomic.remote_addr = addr;
	hdr->wr.atomic.compare_add = compare_add;
	hdr->wr.atomic.swap = swap;
	hdr->wr.atomic.rkey = rkey;
}

/* @rkey: the window's new key. */
static inline void pv_wqe_bind_mw(struct pvrdma_sq_wqe_hdr *hdr, uint32_t rkey,
				  const struct ibv_mw_bind_info *info)
{
	hdr->wr.bind_mw.addr = info->addr;
	hdr->wr.bind_mw.length = info->length;
	hdr->wr.bind_mw.lkey = info->mr ? info->mr->lkey : 0;
	hdr->wr.bind_mw.access_flags = info->mw_access_flags;
	hdr->wr.bind_mw.rkey = rkey;
}

static inline void pv_wqe_ud(struct pvrdma_sq_wqe_hdr *hdr, struct ibv_ah *ah,
			     uint32_t qpn, uint32_t qkey)
{
	hdr->wr.ud.remote_qpn = qpn;
	hdr->wr.ud.remote_qkey = qkey;
	hdr->wr.ud.av = to_pv_ah(ah)->av;
}

/* A loop: there is nearly always one, and then a call costs more. */
static inline void pv_copy_sges(void *to, const struct ibv_sge *sge, size_t n)
{
	struct ibv_sge *out = to;

	for (size_t i = 0; i < n; i++)
		out[i] = sge[i];
}

/* 0, or EINVAL if there are too many. */
static inline int pv_wqe_sges(struct pvrdma_sq_wqe_hdr *hdr,
			      const struct pv_wqe_limits *lim,
			      const struct ibv_sge *sge, size_t n)
{
	if (n > lim->max_sge)
		return EINVAL;
	pv_copy_sges(pv_wqe_payload(hdr), sge, n);
	hdr->num_sge = n;
	return 0;
}

/*
 * Append inline data.  Nothing but a length of 0 is possible where the queue
 * has no inline data; such a request goes out as one without SGEs.
 */
static inline int pv_wqe_inline(struct pvrdma_sq_wqe_hdr *hdr,
				const struct pv_wqe_limits *lim,
				const void *data, size_t len)
{
	if (len > lim->max_inline - hdr->total_len)
		return EINVAL;
	if (!lim->max_inline)
		return 0;
	if (len)
		memcpy((char *)pv_wqe_payload(hdr) + hdr->total_len, data, len);
	hdr->total_len += len;
	hdr->send_flags |= PVRDMA_SEND_INLINE;
	return 0;
}

static inline int pv_wqe_inline_sges(struct pvrdma_sq_wqe_hdr *hdr,
				     const struct pv_wqe_limits *lim,
				     const struct ibv_sge *sge, int n)
{
	int ret = 0;

	for (int i = 0; i < n && !ret; i++)
		ret = pv_wqe_inline(hdr, lim, (void *)(uintptr_t)sge[i].addr,
				    sge[i].length);
	return ret;
}

/* The ABI's number of an opcode that verbs number otherwise. */
static inline uint32_t pv_wqe_opcode(enum ibv_wr_opcode opcode)
{
	switch (opcode) {
	case IBV_WR_SEND_WITH_INV:
		return PVRDMA_WR_SEND_WITH_INV;
	case IBV_WR_LOCAL_INV:
		return PVRDMA_WR_LOCAL_INV;
	case IBV_WR_BIND_MW:
		return PVRDMA_WR_BIND_MW;
	default:
		return opcode;
	}
}

/*
 * Translate one work request.  @ud: the QP is a UD one.
 *
 * Returns 0, or EINVAL for a request the queue can never take; the slot may
 * then have been written, but is not published.
 */
static inline int pv_wqe_send(struct pvrdma_sq_wqe_hdr *hdr,
			      const struct pv_wqe_limits *lim, bool ud,
			      const struct ibv_send_wr *wr)
{
	pv_wqe_begin(hdr, wr->wr_id, pv_wqe_opcode(wr->opcode),
		     wr->send_flags);
	switch (wr->opcode) {
	case IBV_WR_SEND_WITH_IMM:
		hdr->imm_data = wr->imm_data;
		break;
	case IBV_WR_SEND:
		break;
	case IBV_WR_SEND_WITH_INV:
		if (ud || !lim->keys)
			return EINVAL;
		hdr->imm_data = wr->invalidate_rkey;
		break;
	case IBV_WR_LOCAL_INV:
	case IBV_WR_BIND_MW:
		if (ud || !lim->keys || (wr->send_flags & IBV_SEND_INLINE))
			return EINVAL;
		if (wr->opcode == IBV_WR_LOCAL_INV)
			hdr->imm_data = wr->invalidate_rkey;
		else
			pv_wqe_bind_mw(hdr, wr->bind_mw.rkey,
				       &wr->bind_mw.bind_info);
		return 0;
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		hdr->imm_data = wr->imm_data;
		/* fall through */
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_READ:
		if (ud)
			return EINVAL;
		pv_wqe_rdma(hdr, wr->wr.rdma.remote_addr, wr->wr.rdma.rkey);
		break;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		if (ud)
			return EINVAL;
		pv_wqe_atomic(hdr, wr->wr.atomic.remote_addr,
			      wr->wr.atomic.rkey, wr->wr.atomic.compare_add,
			      wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP ?
				      wr->wr.atomic.swap : 0);
		break;
	default:
		return EINVAL;
	}
	if (ud)
		pv_wqe_ud(hdr, wr->wr.ud.ah, wr->wr.ud.remote_qpn,
			  wr->wr.ud.remote_qkey);
	if (wr->num_sge < 0)
		return EINVAL;
	if (wr->send_flags & IBV_SEND_INLINE) {
		/* Only what goes out may be given by value. */
		if (wr->opcode == IBV_WR_RDMA_READ ||
		    wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
		    wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
			return EINVAL;
		return pv_wqe_inline_sges(hdr, lim, wr->sg_list, wr->num_sge);
	}
	return pv_wqe_sges(hdr, lim, wr->sg_list, wr->num_sge);
}

/* Translate one receive request; 0 or EINVAL. */
static inline int pv_wqe_recv(struct pvrdma_rq_wqe_hdr *hdr, uint32_t max_sge,
			      const struct ibv_recv_wr *wr)
{
	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > max_sge)
		return EINVAL;
	hdr->wr_id = wr->wr_id;
	hdr->num_sge = wr->num_sge;
	hdr->total_len = 0;
	pv_copy_sges(hdr + 1, wr->sg_list, wr->num_sge);
	return 0;
}

/*
 * Completions: opcodes and flags of the ABI that verbs number otherwise.
 * Status values are the same.
 */
static inline enum ibv_wc_opcode pv_wc_opcode(uint32_t opcode)
{
	switch (opcode) {
	case 6: /* large send */
		return IBV_WC_TSO;
	case 7:
		return IBV_WC_LOCAL_INV;
	default:
		return (enum ibv_wc_opcode)opcode;
	}
}

static inline unsigned int pv_wc_flags(uint32_t flags)
{
	unsigned int out = flags & (PVRDMA_WC_FLAG_GRH | PVRDMA_WC_FLAG_IMM);

	if (flags & (1u << 2))
		out |= IBV_WC_WITH_INV;
	if (flags & (1u << 3))
		out |= IBV_WC_IP_CSUM_OK;
	return out;
}

#endif /* PV_WQE_H */
