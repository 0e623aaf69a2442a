/* SPDX-License-Identifier: GPL-2.0-or-later OR BSD-2-Clause */
/*
 * What a provider sends and gets behind the core's structures, uverbs ABI
 * version 3 of RDMA_DRIVER_VMW_PVRDMA.  Our provider appends the extension
 * parts of ext.h, where those of contexts are, too; the stock provider leaves
 * them out, and then they read as zero.
 */
#ifndef PVRDMA_UVERBS_H
#define PVRDMA_UVERBS_H

#include "pvrdma/ext.h"

#define PVRDMA_UVERBS_ABI 3

struct pvrdma_uverbs_pd_resp {
    uint32_t pdn;
    uint32_t reserved;
};

struct pvrdma_uverbs_cq {
    uint64_t buf_addr;
    uint32_t buf_size;
    uint32_t reserved;
    struct pvrdma_ext_obj_req ext;
};

struct pvrdma_uverbs_cq_resp {
    uint32_t cqn;
    uint32_t reserved;
};

struct pvrdma_uverbs_srq {
    uint64_t buf_addr;
    uint32_t buf_size;
    uint32_t reserved;
};

struct pvrdma_uverbs_srq_resp {
    uint32_t srqn;
    uint32_t reserved;
};

struct pvrdma_uverbs_qp {
    uint64_t rbuf_addr;
    uint64_t sbuf_addr;
    uint32_t rbuf_size;
    uint32_t sbuf_size;
    uint64_t qp_addr; /* not used by any driver */
    struct pvrdma_ext_obj_req ext;
};

struct pvrdma_uverbs_qp_resp {
    uint32_t qpn;
    uint32_t qp_handle;
};

PVRDMA_EXT_ASSERT(sizeof(struct pvrdma_uverbs_cq) == 16 + 8, "create_cq");
PVRDMA_EXT_ASSERT(sizeof(struct pvrdma_uverbs_srq) == 16, "create_srq");
PVRDMA_EXT_ASSERT(sizeof(struct pvrdma_uverbs_qp) == 32 + 8, "create_qp");

#endif /* PVRDMA_UVERBS_H */
