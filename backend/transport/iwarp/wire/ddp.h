/* SPDX-License-Identifier: GPL-2.0-or-later */
/* DDP: headers of segments, and messages as segments; see ddp.c. */
#ifndef PVRDMAD_IWARP_WIRE_DDP_H
#define PVRDMAD_IWARP_WIRE_DDP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/iwarp/wire/errors.h"

#define DDP_TAGGED_LEN   14u
#define DDP_UNTAGGED_LEN 18u
#define DDP_MAX_LEN      DDP_UNTAGGED_LEN

struct ddp_header {
    bool tagged;
    bool last;
    uint8_t ulp;   /* RDMAP's control byte */
    uint32_t stag; /* untagged: the one to invalidate, or 0; DDP itself does not look */
    uint64_t to;   /* tagged */
    /* Untagged. */
    uint32_t qn, msn, mo;
};

static inline uint32_t ddp_len(bool tagged)
{
    return tagged ? DDP_TAGGED_LEN : DDP_UNTAGGED_LEN;
}

size_t ddp_put(const struct ddp_header *h, uint8_t out[DDP_MAX_LEN]);
enum iwarp_error ddp_get(const uint8_t *in, size_t len, struct ddp_header *h);
bool ddp_continues(const struct ddp_header *prev, uint32_t prev_len,
                   const struct ddp_header *next);

/* Payload that a ULPDU of @mulpdu bytes, more than DDP_MAX_LEN, has room for. */
static inline uint32_t ddp_room(bool tagged, uint32_t mulpdu)
{
    return mulpdu - ddp_len(tagged);
}

/*
 * The payload of the segment with which a message's last @left bytes begin.  What is over
 * is the first one's: by its length and that of the others, which are all alike, the
 * receiver knows where payload goes before it is there, up to the message's end.
 */
static inline uint32_t ddp_next(uint64_t left, uint32_t room)
{
    return left ? (uint32_t)((left - 1) % room) + 1 : 0;
}

/*
 * The next segment of a message that is being sent, whose header is @h, with @left bytes
 * to go; @ends: no more than these.  Its payload's length; ddp_advance() by that follows.
 */
static inline uint32_t ddp_cut(struct ddp_header *h, uint64_t left, bool ends,
                               uint32_t mulpdu)
{
    uint32_t len = ddp_next(left, ddp_room(h->tagged, mulpdu));

    h->last = ends && len == left;
    return len;
}

static inline void ddp_advance(struct ddp_header *h, uint32_t len)
{
    if (h->tagged) {
        h->to += len;
    } else {
        h->mo += len;
    }
}

/* What comes next in one queue of untagged messages, in one direction. */
struct ddp_queue {
    uint32_t msn, mo;
};

#define DDP_QUEUE_INIT \
    (struct ddp_queue) \
    {                  \
        .msn = 1       \
    }

enum iwarp_error ddp_queue_take(struct ddp_queue *q, const struct ddp_header *h,
                                uint32_t len, uint32_t room);

#endif /* PVRDMAD_IWARP_WIRE_DDP_H */
