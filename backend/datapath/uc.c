/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Unreliable connections (UC): the requester's view of what became of a message.
 *
 * They are connected and carried as RC's, but nothing comes back: a message is complete
 * with success once it was sent, taken or not, and never sent again.  It waits while the
 * way there is being made (OUT_ASKED) or has no room (OUT_STALLED), and for nothing else.
 * One that is longer than a slice may be lost in its middle; then some of its bytes are
 * written, and its receive is not completed but serves the next message.  Which side
 * counts what is lost is said at enum uc_drop.
 *
 * What cannot be sent (the sender's own memory) fails and stops the send queue, as a
 * datagram does.
 *
 * Threads: the worker of the requester's VM with the token held.
 */
#include "engine.h"

struct outcome uc_send(struct qp *qp)
{
    struct send_op *op = &qp->req.op;
    struct outcome o = qp->req.transport->start(qp, op);

    switch (o.what) {
    case OUT_DONE:
    case OUT_MORE:
    case OUT_STALLED:
        return o;
    case OUT_ASKED:
        return OUTCOME(OUT_HELD); /* looks again soon */
    case OUT_FAIL:
        if (!o.remote) {
            return o;
        }
        break; /* the responder had something wrong with its receive, and knows */
    case OUT_DROPPED:
        break;
    case OUT_HELD:
        uc_count(qp->vm, UC_HELD);
        break;
    default:
        uc_count(qp->vm, UC_NO_PEER);
        break;
    }
    op->done = op->m.length;
    return OUTCOME(OUT_DONE);
}
