/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * DDP (RFC 5041): a segment's header is the first 14 (tagged) or 18 (untagged) bytes of
 * a ULPDU, of which RDMAP has the second byte and, untagged, the four after it.
 *
 * A message is cut into segments that follow each other, offsets rising, the last one
 * marked; a message without payload is one segment.  TCP keeps them in order, and no
 * implementation that we know interleaves messages of one kind, so the receiver takes
 * an untagged queue's segments in that order only.
 *
 * Invariants: pure functions; nothing is read behind the length that was given.
 *
 * Sources: RFC 5041 4 (headers), 5 (order and numbers), 7 and 8 (errors).
 */
#include <glib.h>

#include "transport/iwarp/wire/bytes.h"
#include "transport/iwarp/wire/ddp.h"

#define DDP_T       0x80u
#define DDP_L       0x40u
#define DDP_DV_MASK 0x03u
#define DDP_DV      1u

size_t ddp_put(const struct ddp_header *h, uint8_t out[DDP_MAX_LEN])
{
    out[0] = (h->tagged ? DDP_T : 0) | (h->last ? DDP_L : 0) | DDP_DV;
    out[1] = h->ulp;
    put_be32(out + 2, h->stag);
    if (h->tagged) {
        put_be64(out + 6, h->to);
        return DDP_TAGGED_LEN;
    }
    put_be32(out + 6, h->qn);
    put_be32(out + 10, h->msn);
    put_be32(out + 14, h->mo);
    return DDP_UNTAGGED_LEN;
}

/* Reserved bits are not looked at (RFC 5041 4.1). */
enum iwarp_error ddp_get(const uint8_t *in, size_t len, struct ddp_header *h)
{
    /* No code tells of a segment that is too short to be one. */
    if (len < 1 || len < ddp_len(in[0] & DDP_T)) {
        return RDMAP_STREAM_CATASTROPHIC;
    }
    *h = (struct ddp_header){
        .tagged = in[0] & DDP_T,
        .last = in[0] & DDP_L,
        .ulp = in[1],
        .stag = get_be32(in + 2),
    };
    if ((in[0] & DDP_DV_MASK) != DDP_DV) {
        return h->tagged ? DDP_TAGGED_BAD_VERSION : DDP_UNTAGGED_BAD_VERSION;
    }
    if (h->tagged) {
        h->to = get_be64(in + 6);
    } else {
        h->qn = get_be32(in + 6);
        h->msn = get_be32(in + 10);
        h->mo = get_be32(in + 14);
    }
    return IWARP_OK;
}

/*
 * Is @next the segment of the same message behind @prev, with @prev_len bytes of payload?
 * Of a right @prev's place follows @next's, so a @next of which only that is known harms
 * nothing else.
 */
bool ddp_continues(const struct ddp_header *prev, uint32_t prev_len,
                   const struct ddp_header *next)
{
    if (prev->last || prev->tagged != next->tagged || prev->ulp != next->ulp ||
        prev->stag != next->stag) {
        return false;
    }
    if (prev->tagged) {
        return next->to - prev->to == prev_len && next->to >= prev->to;
    }
    return prev->qn == next->qn && prev->msn == next->msn && next->mo >= prev->mo &&
           next->mo - prev->mo == prev_len;
}

/*
 * A segment of @len bytes of payload came in this queue, whose message may have @room
 * bytes in all.  What is not the one that comes next is refused, and changes nothing.
 */
enum iwarp_error ddp_queue_take(struct ddp_queue *q, const struct ddp_header *h,
                                uint32_t len, uint32_t room)
{
    if (h->msn != q->msn) {
        return DDP_UNTAGGED_BAD_MSN;
    }
    if (h->mo != q->mo) {
        return DDP_UNTAGGED_BAD_MO;
    }
    if (h->mo > room || len > room - h->mo) {
        return DDP_UNTAGGED_TOO_LONG;
    }
    if (h->last) {
        q->msn++;
        q->mo = 0;
    } else {
        q->mo += len;
    }
    return IWARP_OK;
}
