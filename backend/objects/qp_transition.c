/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The QP state machine: which transitions exist, which attributes each needs
 * and which it permits (InfiniBand Architecture Specification vol. 1, 10.3.1
 * and 11.2.5.2, tables for Modify Queue Pair; RC, UC, UD and, like it, the GSI
 * QP).
 *
 * Pure logic on numbers; whether a value is sensible is checked in qp.c.
 * Any state may go to RESET and to ERR, with no attribute but the state.
 */
#include <errno.h>

#include "objects/objects.h"

#define RC  (1u << PVRDMA_QPT_RC)
#define UC  (1u << PVRDMA_QPT_UC)
#define UD  (1u << PVRDMA_QPT_UD)
#define GSI (1u << PVRDMA_QPT_GSI)

#define UC_PATH_CHANGES \
    (PVRDMA_QP_ALT_PATH | PVRDMA_QP_ACCESS_FLAGS | PVRDMA_QP_PATH_MIG_STATE)
#define RC_PATH_CHANGES (UC_PATH_CHANGES | PVRDMA_QP_MIN_RNR_TIMER)

#define STEP(cur, next) (PVRDMA_QPS_##cur << 4 | PVRDMA_QPS_##next)

static const struct transition {
    uint8_t types, step;
    uint32_t required, optional;
} transitions[] = {
    {RC | UC, STEP(RESET, INIT),
     PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_PORT | PVRDMA_QP_ACCESS_FLAGS, 0},
    {RC | UC, STEP(INIT, INIT), 0,
     PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_PORT | PVRDMA_QP_ACCESS_FLAGS},
    {RC, STEP(INIT, RTR),
     PVRDMA_QP_AV | PVRDMA_QP_PATH_MTU | PVRDMA_QP_DEST_QPN | PVRDMA_QP_RQ_PSN |
         PVRDMA_QP_MAX_DEST_RD_ATOMIC | PVRDMA_QP_MIN_RNR_TIMER,
     PVRDMA_QP_ALT_PATH | PVRDMA_QP_ACCESS_FLAGS | PVRDMA_QP_PKEY_INDEX},
    {RC, STEP(RTR, RTS),
     PVRDMA_QP_TIMEOUT | PVRDMA_QP_RETRY_CNT | PVRDMA_QP_RNR_RETRY | PVRDMA_QP_SQ_PSN |
         PVRDMA_QP_MAX_RD_ATOMIC,
     PVRDMA_QP_CUR_STATE | RC_PATH_CHANGES},
    {RC, STEP(RTS, RTS), 0, PVRDMA_QP_CUR_STATE | RC_PATH_CHANGES},
    {RC | UC | UD | GSI, STEP(RTS, SQD), 0, PVRDMA_QP_EN_SQD_ASYNC},
    {RC, STEP(SQD, RTS), 0, PVRDMA_QP_CUR_STATE | RC_PATH_CHANGES},
    {RC, STEP(SQD, SQD), 0,
     PVRDMA_QP_PORT | PVRDMA_QP_AV | PVRDMA_QP_TIMEOUT | PVRDMA_QP_RETRY_CNT |
         PVRDMA_QP_RNR_RETRY | PVRDMA_QP_MAX_RD_ATOMIC | PVRDMA_QP_MAX_DEST_RD_ATOMIC |
         PVRDMA_QP_PKEY_INDEX | RC_PATH_CHANGES},

    /* Nobody answers: no timers, no tries, nothing that returns. */
    {UC, STEP(INIT, RTR),
     PVRDMA_QP_AV | PVRDMA_QP_PATH_MTU | PVRDMA_QP_DEST_QPN | PVRDMA_QP_RQ_PSN,
     PVRDMA_QP_ALT_PATH | PVRDMA_QP_ACCESS_FLAGS | PVRDMA_QP_PKEY_INDEX},
    {UC, STEP(RTR, RTS), PVRDMA_QP_SQ_PSN, PVRDMA_QP_CUR_STATE | UC_PATH_CHANGES},
    {UC, STEP(RTS, RTS), 0, PVRDMA_QP_CUR_STATE | UC_PATH_CHANGES},
    {UC, STEP(SQD, RTS), 0, PVRDMA_QP_CUR_STATE | UC_PATH_CHANGES},
    {UC, STEP(SQD, SQD), 0, PVRDMA_QP_AV | PVRDMA_QP_PKEY_INDEX | UC_PATH_CHANGES},
    {UC, STEP(SQE, RTS), 0, PVRDMA_QP_CUR_STATE | PVRDMA_QP_ACCESS_FLAGS},

    /* The port of a GSI QP is given with its creation. */
    {UD, STEP(RESET, INIT), PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_PORT | PVRDMA_QP_QKEY, 0},
    {GSI, STEP(RESET, INIT), PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_QKEY, 0},
    {UD, STEP(INIT, INIT), 0, PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_PORT | PVRDMA_QP_QKEY},
    {GSI, STEP(INIT, INIT), 0, PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_QKEY},
    {UD | GSI, STEP(INIT, RTR), 0, PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_QKEY},
    {UD | GSI, STEP(RTR, RTS), PVRDMA_QP_SQ_PSN, PVRDMA_QP_CUR_STATE | PVRDMA_QP_QKEY},
    {UD | GSI, STEP(RTS, RTS), 0, PVRDMA_QP_CUR_STATE | PVRDMA_QP_QKEY},
    {UD | GSI, STEP(SQD, RTS), 0, PVRDMA_QP_CUR_STATE | PVRDMA_QP_QKEY},
    {UD | GSI, STEP(SQD, SQD), 0, PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_QKEY},
    {UD | GSI, STEP(SQE, RTS), 0, PVRDMA_QP_CUR_STATE | PVRDMA_QP_QKEY},
};

static const struct transition *transition_find(enum pvrdma_qp_type type,
                                                enum pvrdma_qp_state cur,
                                                enum pvrdma_qp_state next)
{
    static const struct transition to_reset_or_err = {0};
    unsigned step = cur << 4 | next;

    if (next == PVRDMA_QPS_RESET || next == PVRDMA_QPS_ERR) {
        return &to_reset_or_err;
    }
    for (unsigned i = 0; type <= PVRDMA_QPT_UD && i < G_N_ELEMENTS(transitions); i++) {
        const struct transition *t = &transitions[i];

        if (t->step == step && (t->types >> type & 1)) {
            return t;
        }
    }
    return NULL;
}

int qp_transition_check(enum pvrdma_qp_type type, enum pvrdma_qp_state cur,
                        enum pvrdma_qp_state next, uint32_t attr_mask)
{
    const struct transition *t = NULL;

    if (cur <= PVRDMA_QPS_ERR && next <= PVRDMA_QPS_ERR) {
        t = transition_find(type, cur, next);
    }
    if (!t || (t->required & ~attr_mask) ||
        (attr_mask & ~(t->required | t->optional | PVRDMA_QP_STATE))) {
        return EINVAL;
    }
    return 0;
}
