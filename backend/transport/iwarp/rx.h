/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Between the carrier, rx.c, which takes segments, inbound.c, which takes the messages in
 * them, and direct_receive.c, by which payload goes from the socket to its place.
 */
#ifndef PVRDMAD_IWARP_RX_H
#define PVRDMAD_IWARP_RX_H

#include "transport/iwarp/tx.h"

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

/* The only one that changes it; see enum rx_phase. */
static inline void rx_phase_set(struct stream *s, enum rx_phase to)
{
#define FROM(p) (1u << RX_##p)
#define READING (FROM(IDLE) | FROM(IMM) | FROM(MESSAGE) | FROM(SKIP) | FROM(ABANDONED))
    static const uint8_t from[] = {
        [RX_IDLE] = READING | FROM(DISCARD) | FROM(GRACE),
        [RX_IMM] = FROM(IDLE),
        [RX_MESSAGE] = FROM(IDLE),
        [RX_SKIP] = FROM(MESSAGE),
        [RX_DISCARD] = FROM(IDLE) | FROM(MESSAGE),
        [RX_ABANDONED] = READING,
        [RX_GRACE] = FROM(IDLE) | FROM(GRACE),
    };
#undef READING
#undef FROM

    g_assert(from[to] >> s->rx_phase & 1);
    s->rx_phase = to;
}

/* Is a SEND or WRITE arriving whose last segment has not come? */
static inline bool rx_in_message(const struct stream *s)
{
    return s->rx_phase == RX_MESSAGE || s->rx_phase == RX_SKIP;
}

/* ---- for carriers ---- */

/*
 * A frame that came in pieces is collected; most streams never see one.  False: no
 * memory.
 */
static inline bool rx_have_room(struct fpdu_rx *rx, const struct fpdu_input *in)
{
    if (!rx->room && fpdu_rx_gathers(rx, in)) {
        rx->room = g_try_malloc(FPDU_MAX_SIZE);
        return rx->room;
    }
    return true;
}

/* Input that is not looked at before the message that waits is finished; it may lie in
 * what was saved before. */
static inline void rx_save(uint8_t **saved, size_t *saved_len,
                           const struct fpdu_input *in)
{
    uint8_t *old = *saved;

    *saved = in->left ? g_memdup2(in->at, in->left) : NULL;
    *saved_len = in->left;
    g_free(old);
}

/* ---- rx.c ---- */

/* The next ULPDU that the carrier brings, which is right as far as that can tell. */
void rx_segment(struct conn *c, const uint8_t *ulpdu, uint32_t len);
/* Go on with a message that waited for a grace period. */
void rx_resume(struct conn *c, struct turn *t);

/* ---- inbound.c ---- */

/* Take a segment of the peer's messages. */
void inbound_segment(struct conn *c, const struct segment *seg);
/* The next bytes of the SEND or WRITE that is arriving; qp->lock not held. */
void inbound_bytes(struct conn *c, const uint8_t *data, uint32_t len, bool last);
/* Likewise all of a segment behind the first; in RX_SKIP, too. */
void inbound_next(struct conn *c, const uint8_t *data, uint32_t len, bool last);
/* Where the next @len bytes of it go.  @recv: a SEND's, by responder_begin_slice(). */
struct sg_list inbound_place(struct conn *c, const struct recv_op *recv, uint32_t len,
                             struct pvrdma_sge *sge);
/* Go on with the one that waited for a grace period. */
void inbound_resume(struct conn *c);

/* ---- direct_receive.c ---- */

/* Of a frame that began: is its payload received straight to its place? */
fpdu_parts_fn direct_in_parts;
/*
 * A segment of a SEND or WRITE with @len bytes of payload was taken by way of the buffer:
 * what is likely to come behind it?  @first of its message.
 */
void direct_expect(struct stream *s, const struct ddp_header *h, uint32_t len,
                   bool first);
/* Parts of a frame of which direct_in_parts(): its header, ... */
void direct_begin(struct conn *c, const struct fpdu_part *part);
/* ... bytes of it that came by way of the buffer all the same, ... */
void direct_span(struct conn *c, const struct fpdu_part *part);
/* ... and its end: it was right. */
void direct_end(struct conn *c);
/*
 * Read from the socket, what is wanted now to its place and what is behind that to the
 * buffer.  Returns what came, or -1; 0: not this way.  *@asked: how much that could have
 * been; *@taken: what of it went to its place.
 */
ssize_t direct_receive(struct conn *c, size_t *asked, size_t *taken);
/* No more than this is worth reading to the buffer now. */
size_t direct_limit(const struct conn *c);

#endif /* PVRDMAD_IWARP_RX_H */
