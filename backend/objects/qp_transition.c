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

struct transition {
    uint8_t cur, next;
    uint32_t required, optional;
};

#define RC_PATH_CHANGES                                                      \
    (PVRDMA_QP_ALT_PATH | PVRDMA_QP_ACCESS_FLAGS | PVRDMA_QP_MIN_RNR_TIMER | \
     PVRDMA_QP_PATH_MIG_STATE)

static const struct transition rc_transitions[] = {
    {PVRDMA_QPS_RESET, PVRDMA_QPS_INIT,
     PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_PORT | PVRDMA_QP_ACCESS_FLAGS, 0},
    {PVRDMA_QPS_INIT, PVRDMA_QPS_INIT, 0,
     PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_PORT | PVRDMA_QP_ACCESS_FLAGS},
    {PVRDMA_QPS_INIT, PVRDMA_QPS_RTR,
     PVRDMA_QP_AV | PVRDMA_QP_PATH_MTU | PVRDMA_QP_DEST_QPN | PVRDMA_QP_RQ_PSN |
         PVRDMA_QP_MAX_DEST_RD_ATOMIC | PVRDMA_QP_MIN_RNR_TIMER,
     PVRDMA_QP_ALT_PATH | PVRDMA_QP_ACCESS_FLAGS | PVRDMA_QP_PKEY_INDEX},
    {PVRDMA_QPS_RTR, PVRDMA_QPS_RTS,
     PVRDMA_QP_TIMEOUT | PVRDMA_QP_RETRY_CNT | PVRDMA_QP_RNR_RETRY | PVRDMA_QP_SQ_PSN |
         PVRDMA_QP_MAX_RD_ATOMIC,
     PVRDMA_QP_CUR_STATE | RC_PATH_CHANGES},
    {PVRDMA_QPS_RTS, PVRDMA_QPS_RTS, 0, PVRDMA_QP_CUR_STATE | RC_PATH_CHANGES},
    {PVRDMA_QPS_RTS, PVRDMA_QPS_SQD, 0, PVRDMA_QP_EN_SQD_ASYNC},
    {PVRDMA_QPS_SQD, PVRDMA_QPS_RTS, 0, PVRDMA_QP_CUR_STATE | RC_PATH_CHANGES},
    {PVRDMA_QPS_SQD, PVRDMA_QPS_SQD, 0,
     PVRDMA_QP_PORT | PVRDMA_QP_AV | PVRDMA_QP_TIMEOUT | PVRDMA_QP_RETRY_CNT |
         PVRDMA_QP_RNR_RETRY | PVRDMA_QP_MAX_RD_ATOMIC | PVRDMA_QP_MAX_DEST_RD_ATOMIC |
         PVRDMA_QP_PKEY_INDEX | RC_PATH_CHANGES},
};

/* Nobody answers: no timers, no tries, nothing that returns. */
#define UC_PATH_CHANGES \
    (PVRDMA_QP_ALT_PATH | PVRDMA_QP_ACCESS_FLAGS | PVRDMA_QP_PATH_MIG_STATE)

static const struct transition uc_transitions[] = {
    {PVRDMA_QPS_RESET, PVRDMA_QPS_INIT,
     PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_PORT | PVRDMA_QP_ACCESS_FLAGS, 0},
    {PVRDMA_QPS_INIT, PVRDMA_QPS_INIT, 0,
     PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_PORT | PVRDMA_QP_ACCESS_FLAGS},
    {PVRDMA_QPS_INIT, PVRDMA_QPS_RTR,
     PVRDMA_QP_AV | PVRDMA_QP_PATH_MTU | PVRDMA_QP_DEST_QPN | PVRDMA_QP_RQ_PSN,
     PVRDMA_QP_ALT_PATH | PVRDMA_QP_ACCESS_FLAGS | PVRDMA_QP_PKEY_INDEX},
    {PVRDMA_QPS_RTR, PVRDMA_QPS_RTS, PVRDMA_QP_SQ_PSN,
     PVRDMA_QP_CUR_STATE | UC_PATH_CHANGES},
    {PVRDMA_QPS_RTS, PVRDMA_QPS_RTS, 0, PVRDMA_QP_CUR_STATE | UC_PATH_CHANGES},
    {PVRDMA_QPS_RTS, PVRDMA_QPS_SQD, 0, PVRDMA_QP_EN_SQD_ASYNC},
    {PVRDMA_QPS_SQD, PVRDMA_QPS_RTS, 0, PVRDMA_QP_CUR_STATE | UC_PATH_CHANGES},
    {PVRDMA_QPS_SQD, PVRDMA_QPS_SQD, 0,
     PVRDMA_QP_AV | PVRDMA_QP_PKEY_INDEX | UC_PATH_CHANGES},
    {PVRDMA_QPS_SQE, PVRDMA_QPS_RTS, 0, PVRDMA_QP_CUR_STATE | PVRDMA_QP_ACCESS_FLAGS},
};

/* The port of a GSI QP is given with its creation; the rest is the same for both. */
#define DATAGRAM_TRANSITIONS                                                        \
    {PVRDMA_QPS_INIT, PVRDMA_QPS_RTR, 0, PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_QKEY},    \
        {PVRDMA_QPS_RTR, PVRDMA_QPS_RTS, PVRDMA_QP_SQ_PSN,                          \
         PVRDMA_QP_CUR_STATE | PVRDMA_QP_QKEY},                                     \
        {PVRDMA_QPS_RTS, PVRDMA_QPS_RTS, 0, PVRDMA_QP_CUR_STATE | PVRDMA_QP_QKEY},  \
        {PVRDMA_QPS_RTS, PVRDMA_QPS_SQD, 0, PVRDMA_QP_EN_SQD_ASYNC},                \
        {PVRDMA_QPS_SQD, PVRDMA_QPS_RTS, 0, PVRDMA_QP_CUR_STATE | PVRDMA_QP_QKEY},  \
        {PVRDMA_QPS_SQD, PVRDMA_QPS_SQD, 0, PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_QKEY}, \
    {                                                                               \
        PVRDMA_QPS_SQE, PVRDMA_QPS_RTS, 0, PVRDMA_QP_CUR_STATE | PVRDMA_QP_QKEY     \
    }

static const struct transition ud_transitions[] = {
    {PVRDMA_QPS_RESET, PVRDMA_QPS_INIT,
     PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_PORT | PVRDMA_QP_QKEY, 0},
    {PVRDMA_QPS_INIT, PVRDMA_QPS_INIT, 0,
     PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_PORT | PVRDMA_QP_QKEY},
    DATAGRAM_TRANSITIONS,
};

static const struct transition gsi_transitions[] = {
    {PVRDMA_QPS_RESET, PVRDMA_QPS_INIT, PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_QKEY, 0},
    {PVRDMA_QPS_INIT, PVRDMA_QPS_INIT, 0, PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_QKEY},
    DATAGRAM_TRANSITIONS,
};

static const struct transition *find(const struct transition *table, unsigned n,
                                     enum pvrdma_qp_state cur, enum pvrdma_qp_state next)
{
    for (unsigned i = 0; i < n; i++) {
        if (table[i].cur == cur && table[i].next == next) {
            return &table[i];
        }
    }
    return NULL;
}

int qp_transition_check(enum pvrdma_qp_type type, enum pvrdma_qp_state cur,
                        enum pvrdma_qp_state next, uint32_t attr_mask)
{
    static const struct transition to_reset_or_err = {0};
    const struct transition *t;

    if (cur > PVRDMA_QPS_ERR || next > PVRDMA_QPS_ERR) {
        return EINVAL;
    }
    if (next == PVRDMA_QPS_RESET || next == PVRDMA_QPS_ERR) {
        t = &to_reset_or_err;
    } else if (type == PVRDMA_QPT_RC) {
        t = find(rc_transitions, G_N_ELEMENTS(rc_transitions), cur, next);
    } else if (type == PVRDMA_QPT_UC) {
        t = find(uc_transitions, G_N_ELEMENTS(uc_transitions), cur, next);
    } else if (type == PVRDMA_QPT_UD) {
        t = find(ud_transitions, G_N_ELEMENTS(ud_transitions), cur, next);
    } else if (type == PVRDMA_QPT_GSI) {
        t = find(gsi_transitions, G_N_ELEMENTS(gsi_transitions), cur, next);
    } else {
        t = NULL;
    }
    if (!t || (t->required & ~attr_mask) ||
        (attr_mask & ~(t->required | t->optional | PVRDMA_QP_STATE))) {
        return EINVAL;
    }
    return 0;
}
