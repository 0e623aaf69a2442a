/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The services: what a queue pair of each type can do. */
#include "objects/objects.h"

#define OP(name) (1u << PVRDMA_WR_##name)

/*
 * Opcodes from 7 on mean other things to the stock library than to the kernel driver, so
 * only programs' extended QPs, which that library does not make, have any of them.
 */
static const struct service rc = {
    .name = "RC",
    .connected = true,
    .acknowledged = true,
    .ops = OP(RDMA_WRITE) | OP(RDMA_WRITE_WITH_IMM) | OP(SEND) | OP(SEND_WITH_IMM) |
           OP(RDMA_READ) | OP(ATOMIC_CMP_AND_SWP) | OP(ATOMIC_FETCH_AND_ADD),
    .kernel_ops = OP(SEND_WITH_INV) | OP(LOCAL_INV) | OP(FAST_REG),
    .ext_ops = OP(SEND_WITH_INV) | OP(LOCAL_INV) | OP(BIND_MW),
    .send_error = PVRDMA_QPS_ERR,
    .max_length = VERBS_MAX_MSG_SZ,
};

/* What cannot be sent stops the send queue alone; what cannot be received is lost. */
static const struct service uc = {
    .name = "UC",
    .connected = true,
    .ops = OP(RDMA_WRITE) | OP(RDMA_WRITE_WITH_IMM) | OP(SEND) | OP(SEND_WITH_IMM),
    .send_error = PVRDMA_QPS_SQE,
    .max_length = VERBS_MAX_MSG_SZ,
};

/* A datagram that fails stops the send queue alone (InfiniBand spec 10.3.1). */
static const struct service ud = {
    .name = "UD",
    .ops = OP(SEND) | OP(SEND_WITH_IMM),
    .send_error = PVRDMA_QPS_SQE,
    .max_length = VERBS_MAX_UD_SZ,
};

/* UD, but QP number 1, and the kernel's. */
static const struct service gsi = {
    .name = "GSI",
    .ops = OP(SEND) | OP(SEND_WITH_IMM),
    .send_error = PVRDMA_QPS_SQE,
    .max_length = VERBS_MAX_UD_SZ,
};

const struct service *qp_service(enum pvrdma_qp_type type)
{
    switch (type) {
    case PVRDMA_QPT_RC:
        return &rc;
    case PVRDMA_QPT_UC:
        return &uc;
    case PVRDMA_QPT_UD:
        return &ud;
    case PVRDMA_QPT_GSI:
        return &gsi;
    default:
        return NULL;
    }
}
