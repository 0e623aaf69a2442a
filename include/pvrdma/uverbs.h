/* SPDX-License-Identifier: GPL-2.0-or-later OR BSD-2-Clause */
/*
 * What provider and kernel driver say to each other through uverbs, in the form
 * of the kernel's include/uapi/rdma: structures behind the core's own, uverbs ABI
 * version 3 of RDMA_DRIVER_VMW_PVRDMA.
 *
 * Our provider appends the extension parts (pvrdma_ext_*); the stock provider
 * leaves them out, and then they read as zero.  What a driver does not know
 * behind them must be zero, too.
 */
#ifndef PVRDMA_UVERBS_H
#define PVRDMA_UVERBS_H

#include <linux/types.h>

#include "pvrdma/ext.h"

#define PVRDMA_UVERBS_ABI 3

/* mmap offsets of the uverbs file, in pages. */
enum {
	PVRDMA_EXT_MMAP_UAR = 0, /* the context's UAR page, as stock */
	PVRDMA_EXT_MMAP_MEM = 1, /* extension memory, PVRDMA_EXT_PAGES pages */
};

/*
 * alloc_ucontext: the stock request is empty, the stock response the first 8
 * bytes.  No magic in the response: a stock driver, or nothing granted.
 */
struct pvrdma_ext_ucontext_req {
	__u32 magic; /* PVRDMA_EXT_MAGIC */
	__u32 features; /* PVRDMA_EXT_FEAT_*, wanted */
};

struct pvrdma_ext_ucontext_resp {
	__u32 qp_tab_size;
	__u32 reserved;
	__u32 magic; /* PVRDMA_EXT_MAGIC if something is granted */
	__u32 features; /* granted */
	__u32 max_inline;
	__u32 reserved2;
};

/* create_cq, create_qp and create_srq: zero for a stock object. */
struct pvrdma_ext_obj_req {
	__u32 flags; /* PVRDMA_EXT_OBJ_* */
	__u32 max_inline;
};

/* ex_query_device, if there is room for it: the device's clock. */
struct pvrdma_uverbs_clock {
	__aligned_u64 ns;
};

struct pvrdma_uverbs_pd_resp {
	__u32 pdn;
	__u32 reserved;
};

struct pvrdma_uverbs_cq {
	__aligned_u64 buf_addr;
	__u32 buf_size;
	__u32 reserved; /* not set by the stock provider */
	struct pvrdma_ext_obj_req ext;
};

struct pvrdma_uverbs_cq_resp {
	__u32 cqn;
	__u32 reserved;
};

/* resize_cq, of an extended CQ: the ring of the new size. */
struct pvrdma_uverbs_resize_cq {
	__aligned_u64 buf_addr;
	__u32 buf_size;
	__u32 reserved;
};

struct pvrdma_uverbs_srq {
	__aligned_u64 buf_addr;
	__u32 buf_size;
	__u32 reserved;
	struct pvrdma_ext_obj_req ext;
};

struct pvrdma_uverbs_srq_resp {
	__u32 srqn;
	__u32 reserved;
};

struct pvrdma_uverbs_qp {
	__aligned_u64 rbuf_addr;
	__aligned_u64 sbuf_addr;
	__u32 rbuf_size;
	__u32 sbuf_size;
	__aligned_u64 qp_addr; /* not used by any driver */
	struct pvrdma_ext_obj_req ext;
};

struct pvrdma_uverbs_qp_resp {
	__u32 qpn;
	__u32 qp_handle;
};

PVRDMA_EXT_ASSERT(sizeof(struct pvrdma_ext_ucontext_req) == 8, "alloc_ucontext");
PVRDMA_EXT_ASSERT(sizeof(struct pvrdma_ext_ucontext_resp) == 24, "alloc_ucontext resp");
PVRDMA_EXT_ASSERT(sizeof(struct pvrdma_uverbs_cq) == 16 + 8, "create_cq");
PVRDMA_EXT_ASSERT(sizeof(struct pvrdma_uverbs_srq) == 16 + 8, "create_srq");
PVRDMA_EXT_ASSERT(sizeof(struct pvrdma_uverbs_qp) == 32 + 8, "create_qp");

#endif /* PVRDMA_UVERBS_H */
