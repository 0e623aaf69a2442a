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

#include <stdint.h>

struct qp;

enum xfer_result {
    XFER_DONE,        /* the message is complete and delivered */
    XFER_MORE,        /* a slice is carried, the message goes on; call again */
    XFER_RNR,         /* receiver has no WQE; nothing was moved */
    XFER_UNREACHABLE, /* no peer, or it ignores us: transport timer */
    XFER_HOLD,        /* peer is paused: wait without counting */
    XFER_ERROR,       /* *status says which; the responder side is dealt with */
};

struct transport_ops {
    const char *name;

    /* The QP reached RTR (main thread, token and qp->lock held). */
    void (*connect)(struct qp *qp);

    /* The QP leaves RTR..SQD or dies (main thread or worker, token held). */
    void (*disconnect)(struct qp *qp);

    /*
     * Carry qp->req.op onwards by at most req.slice bytes; sets req.op.done.
     * @status: enum pvrdma_wc_status for XFER_ERROR; for XFER_RNR it is the
     * responder's RNR timer code (IB spec table 45).
     */
    enum xfer_result (*carry)(struct qp *qp, uint32_t *status);
};

#endif /* PVRDMAD_TRANSPORT_H */
