/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The one interface behind which paths differ.  A transport moves the bytes of
 * one message and reports what happened; WQE fetch, checks, ordering, retry
 * rules, completions and flush belong to datapath/.
 *
 * All functions run on the worker of the requester's VM with its token held,
 * unless said otherwise.
 */
#ifndef PVRDMAD_TRANSPORT_H
#define PVRDMAD_TRANSPORT_H

#include "objects/qp_state.h"

struct transport_ops {
    const char *name;

    /*
     * Carry @op onwards by at most req.slice bytes; sets op->done.  What is the
     * responder's of the outcome is settled already.
     */
    struct outcome (*carry)(struct qp *qp, struct send_op *op);
};

#endif /* PVRDMAD_TRANSPORT_H */
