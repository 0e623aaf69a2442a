/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The one interface behind which paths differ.  A transport moves the bytes of
 * messages and reports what happened; WQE fetch, checks, ordering, retry
 * rules, completions and flush belong to datapath/.
 *
 * All functions run on the worker of the requester's VM with its token held,
 * unless said otherwise.
 */
#ifndef PVRDMAD_TRANSPORT_H
#define PVRDMAD_TRANSPORT_H

#include "objects/qp_state.h"

/* Where a queue pair's messages go, for people. */
struct transport_path {
    const char *name;       /* of the transport that carries them */
    const char *connection; /* up, wanted or down; NULL: there is no such thing */
    char nic[64];           /* of this host that carries them; "": none */
};

struct transport_ops {
    const char *name;
    /* It answers later: its QPs need a window. */
    bool pipelined;
    /* It carries unreliable connections, too; what those outcomes are: uc.c. */
    bool unreliable;

    /*
     * Carry @op onwards by at most req.slice bytes; sets op->done.  What is the
     * responder's of the outcome is settled already.
     *
     * OUT_PENDING: the message is on its way, and nothing of @op is needed any more
     * (what a READ or an atomic returns goes where requester_reopen() says).  Its
     * answer comes by requester_answered(); if the connection is lost,
     * requester_lost() and later requester_resume() (engine.h).  One of them must come:
     * the engine has no timer for what is on its way.
     */
    struct outcome (*start)(struct qp *qp, struct send_op *op);

    /*
     * Carry datagram @op->m, @op->dg, all of it.  OUT_DONE: it is gone, whatever becomes
     * of it; OUT_SILENT: nobody holds its address, or a MAD finds no GSI QP there;
     * OUT_ASKED: others are being asked who does, try again in a while;
     * OUT_HELD: who does stands still; OUT_FAIL: the sender's memory failed.  NULL: its
     * QPs are connected ones.
     */
    struct outcome (*datagram)(struct qp *qp, struct send_op *op);

    /*
     * @qp has got a peer (req.path, req.route) / has none any more: what leads to it is
     * to be made ready, and undone.  Main thread with the token held, and qp->lock for
     * bind().  NULL: there is nothing to do.
     */
    void (*bind)(struct qp *qp);
    void (*unbind)(struct qp *qp);

    /*
     * Does @qp, which is connected, count as its peer on this host does?  If not both go
     * to ERR (requester_strayed()).  @both: the peer is to look, too.  NULL: that is
     * found when they connect.
     */
    void (*compare)(struct qp *qp, bool both);

    /* What the peer of @qp waits for (ticket, far) was posted. */
    void (*receive_posted)(struct qp *qp);

    /* Main thread with the token held.  NULL: its name says all. */
    void (*describe)(const struct qp *qp, struct transport_path *path);
};

#endif /* PVRDMAD_TRANSPORT_H */
