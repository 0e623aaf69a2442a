/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * RC QPs of programs that run in guests, from RESET to RTS by verbs calls alone.
 * Functions return 0 or an errno.
 */
#ifndef TESTS_VM_RCQP_H
#define TESTS_VM_RCQP_H

#include <infiniband/verbs.h>

static inline int rcqp_modify(struct ibv_qp *qp, enum ibv_qp_state state,
                              struct ibv_qp_attr attr, int mask)
{
    attr.qp_state = state;
    return ibv_modify_qp(qp, &attr, mask | IBV_QP_STATE);
}

static inline int rcqp_to_init(struct ibv_qp *qp, unsigned access)
{
    return rcqp_modify(qp, IBV_QPS_INIT,
                       (struct ibv_qp_attr){.port_num = 1, .qp_access_flags = access},
                       IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

/* From INIT to RTS, connected to QP @peer of @gid; its own GID is at @gid_index. */
static inline int rcqp_connect(struct ibv_qp *qp, uint32_t peer, const union ibv_gid *gid,
                               int gid_index)
{
    int err = rcqp_modify(
        qp, IBV_QPS_RTR,
        (struct ibv_qp_attr){.path_mtu = IBV_MTU_1024,
                             .dest_qp_num = peer,
                             .max_dest_rd_atomic = 1,
                             .min_rnr_timer = 1,
                             .ah_attr = {.is_global = 1,
                                         .port_num = 1,
                                         .grh = {.dgid = *gid,
                                                 .sgid_index = (uint8_t)gid_index,
                                                 .hop_limit = 1}}},
        IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);

    return err ? err
               : rcqp_modify(qp, IBV_QPS_RTS,
                             (struct ibv_qp_attr){.timeout = 18, /* wires fail */
                                                  .retry_cnt = 7,
                                                  .rnr_retry = 7,
                                                  .max_rd_atomic = 1},
                             IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                 IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

#endif /* TESTS_VM_RCQP_H */
