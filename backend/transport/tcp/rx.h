/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Between rx.c, which reads frames, and arrival.c, which takes the messages in them. */
#ifndef PVRDMAD_TCP_RX_H
#define PVRDMAD_TCP_RX_H

#include "transport/tcp/conn.h"

/* A segment that came, and all of its frame. */
struct segment {
    struct rdmap_segment h;
    const uint8_t *ulpdu;
    uint32_t ulpdu_len;
};

/* It makes no sense: the stream ends. */
static inline void rx_refuse(struct conn *c, const struct segment *seg,
                             enum iwarp_error error)
{
    tx_terminate(c, error, seg->ulpdu, seg->ulpdu_len, seg->ulpdu_len);
}

/* Take a segment of the peer's messages. */
void arrival_take(struct conn *c, const struct segment *seg);
/*
 * The next bytes of the SEND or WRITE that is arriving, which is admitted; qp->lock not
 * held.
 */
void arrival_bytes(struct conn *c, const uint8_t *data, uint32_t len, bool last);
/* Where the next @len bytes of it go.  @recv: a SEND's, by responder_begin_slice(). */
struct sg_list arrival_place(struct conn *c, const struct recv_op *recv, uint32_t len,
                             struct pvrdma_sge *sge);
/* Go on with the one that waited for a grace period. */
void arrival_resume(struct conn *c);
/* The message that is arriving cannot go on; those behind it are no use. */
void arrival_drop_rest(struct stream *s);

#endif /* PVRDMAD_TCP_RX_H */
