/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What is in a SEND on a channel: a header, then frames, each with a header of its own.
 * docs/rnic.md, "The channel on the wire", has the layout and the rules.
 *
 * Pure functions on bytes, which may be anything and anywhere.
 */
#ifndef PVRDMAD_RNIC_FRAMES_H
#define PVRDMAD_RNIC_FRAMES_H

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define RNIC_VERSION     1u
#define RNIC_SEND_HEADER 8u
#define RNIC_FRAME       8u

/* A receive's size, a power of two. */
#define RNIC_SIZE_MIN 4096u
#define RNIC_SIZE_MAX 65536u
#define RNIC_SIZES    5u

enum rnic_send_flag {
    RNIC_SEND_CONTROL = 1,  /* it takes the receive that is kept for that */
    RNIC_SEND_BACK = 2,     /* the peer may do so again */
    RNIC_SEND_PROBE = 4,    /* anything is to be sent in return, soon */
    RNIC_SEND_ANSWER = 8,   /* this is it */
    RNIC_SEND_STARVED = 16, /* more or larger receives would have been of use */
    RNIC_SEND_FLAGS = 31,
};

struct rnic_send_head {
    uint8_t flags;
    uint16_t credits; /* receives that were posted and not told of before */
    uint32_t size;    /* of each; 0: there are none */
};

enum rnic_kind {
    RNIC_DATA,   /* of a flow; all others are the channel's, with index 0 */
    RNIC_OPEN,   /* the sender's index, and bytes */
    RNIC_OPENED, /* the receiver's index, the sender's (0: refused), and bytes */
    RNIC_CLOSE,  /* the receiver's index: the sender sends no more to it */
    RNIC_KINDS,
};

struct rnic_frame {
    uint32_t index; /* by which the receiver knows the flow; 0: the channel itself */
    uint16_t len;
    uint8_t kind;
};

/* Which of RNIC_SIZES it is; RNIC_SIZES: none. */
static inline unsigned rnic_size_class(uint32_t size)
{
    for (unsigned i = 0; i < RNIC_SIZES; i++) {
        if (size == RNIC_SIZE_MIN << i) {
            return i;
        }
    }
    return RNIC_SIZES;
}

static inline void rnic_put_send(uint8_t *p, const struct rnic_send_head *h)
{
    uint16_t credits = GUINT16_TO_BE(h->credits);
    uint32_t size = GUINT32_TO_BE(h->size);

    p[0] = RNIC_VERSION;
    p[1] = h->flags;
    memcpy(p + 2, &credits, sizeof(credits));
    memcpy(p + 4, &size, sizeof(size));
}

/* NULL, or what is wrong with it. */
static inline const char *rnic_get_send(const uint8_t *p, size_t len,
                                        struct rnic_send_head *h)
{
    if (len < RNIC_SEND_HEADER) {
        return "a SEND without its header";
    }
    if (p[0] != RNIC_VERSION) {
        return "a SEND of another version";
    }
    h->flags = p[1];
    memcpy(&h->credits, p + 2, sizeof(h->credits));
    memcpy(&h->size, p + 4, sizeof(h->size));
    h->credits = GUINT16_FROM_BE(h->credits);
    h->size = GUINT32_FROM_BE(h->size);
    if (h->flags & ~RNIC_SEND_FLAGS) {
        return "a SEND with unknown flags";
    }
    if (h->credits ? rnic_size_class(h->size) == RNIC_SIZES : h->size != 0) {
        return "receives of an impossible size";
    }
    return NULL;
}

static inline void rnic_put_frame(uint8_t *p, const struct rnic_frame *f)
{
    uint32_t index = GUINT32_TO_BE(f->index);
    uint16_t len = GUINT16_TO_BE(f->len);

    memcpy(p, &index, sizeof(index));
    memcpy(p + 4, &len, sizeof(len));
    p[6] = f->kind;
    p[7] = 0;
}

/* One that is at @p, all of it; NULL, or what is wrong with it. */
static inline const char *rnic_get_frame(const uint8_t *p, size_t len,
                                         struct rnic_frame *f)
{
    if (len < RNIC_FRAME) {
        return "a frame without its header";
    }
    memcpy(&f->index, p, sizeof(f->index));
    memcpy(&f->len, p + 4, sizeof(f->len));
    f->index = GUINT32_FROM_BE(f->index);
    f->len = GUINT16_FROM_BE(f->len);
    f->kind = p[6];
    if (f->len > len - RNIC_FRAME) {
        return "a frame that is longer than its SEND";
    }
    if (f->kind >= RNIC_KINDS || (f->kind == RNIC_DATA) != (f->index != 0) || p[7]) {
        return "a frame of an unknown kind";
    }
    if (f->kind == RNIC_DATA && !f->len) {
        return "an empty frame";
    }
    return NULL;
}

#endif /* PVRDMAD_RNIC_FRAMES_H */
