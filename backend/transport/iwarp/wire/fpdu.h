/* SPDX-License-Identifier: GPL-2.0-or-later */
/* MPA's frames in full operation, to send and to receive; see fpdu.c. */
#ifndef PVRDMAD_IWARP_WIRE_FPDU_H
#define PVRDMAD_IWARP_WIRE_FPDU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "transport/iwarp/wire/crc32c.h"
#include "transport/iwarp/wire/errors.h"

#define FPDU_LENGTH     2u /* the field before the ULPDU */
#define FPDU_MAX_ULPDU  65535u
#define FPDU_MIN_MULPDU 128u
#define FPDU_MAX_TAIL   7u /* pad and sum */
#define FPDU_MAX_SIZE   65544u

/* With markers less, so that the distance in them has room. */
#define FPDU_MAX_MARKED   64000u
#define FPDU_MARKER       4u
#define FPDU_MARKER_EVERY 512u
#define FPDU_MAX_MARKERS  128u
#define FPDU_MARKS_SIZE   (FPDU_MAX_MARKERS * FPDU_MARKER) /* of one frame, at most */

/* ---- to send ---- */

/* Pad bytes behind a ULPDU of @len bytes. */
static inline uint32_t fpdu_pad(uint32_t len)
{
    return -(FPDU_LENGTH + len) & 3;
}

/* All of an FPDU, markers aside. */
static inline uint32_t fpdu_size(uint32_t len)
{
    return FPDU_LENGTH + len + fpdu_pad(len) + CRC32C_SIZE;
}

uint32_t fpdu_mulpdu(uint32_t emss, bool markers);
size_t fpdu_tail(uint32_t ulpdu_len, bool crc_on, uint32_t crc,
                 uint8_t tail[FPDU_MAX_TAIL]);

/* Room for what fpdu_mark() adds; it must live as long as the iovec it made. */
struct fpdu_marks {
    uint8_t marker[FPDU_MAX_MARKERS][FPDU_MARKER];
    uint8_t tail[FPDU_MAX_TAIL];
};

/* Elements that fpdu_mark() makes at most of @n: each marker cuts one in two. */
#define FPDU_MARKED_IOV(n) ((n) + 2 * FPDU_MAX_MARKERS + 2)

unsigned fpdu_mark(uint64_t pos, const struct iovec *in, unsigned n, bool crc_on,
                   struct fpdu_marks *marks, struct iovec *out, unsigned max);

/* ---- to receive ---- */

/* More than any header of a ULPDU has. */
#define FPDU_MAX_HEAD 72u
/* The least room for fpdu_rx_init(). */
#define FPDU_RX_ROOM (FPDU_LENGTH + FPDU_MAX_HEAD)

/* How long the header is of a ULPDU that begins with these two bytes. */
typedef unsigned fpdu_head_fn(const uint8_t first[2]);

/*
 * Is the ULPDU of @ulpdu_len bytes with this header of @len to come in parts, though
 * there is room for it?
 */
typedef bool fpdu_parts_fn(void *arg, const uint8_t *head, uint32_t len,
                           uint32_t ulpdu_len);

/* That is asked of those from here on. */
#define FPDU_PARTS_MIN 8192u

enum fpdu_kind {
    FPDU_NONE,  /* all input was taken; there must come more */
    FPDU_WHOLE, /* a ULPDU, its sum is right */
    FPDU_HEAD,  /* the header of a long one; its sum is not known yet */
    FPDU_SPAN,  /* the next bytes behind it */
    FPDU_END,   /* there are no more of them, and the sum is right */
};

struct fpdu_part {
    enum fpdu_kind kind;
    /* Until the next call, and as long as the input is there. */
    const uint8_t *data;
    uint32_t len;
    uint32_t ulpdu_len; /* of WHOLE and HEAD */
};

/* Bytes that came and are not taken yet. */
struct fpdu_input {
    const uint8_t *at;
    size_t left;
};

struct fpdu_rx {
    bool crc_on;
    fpdu_head_fn *head_len;
    fpdu_parts_fn *in_parts; /* NULL: only what there is no room for */
    void *parts_arg;
    uint8_t *room;
    size_t size;

    enum { FPDU_GATHER, FPDU_PAYLOAD, FPDU_TAIL } state;
    size_t have;        /* GATHER: bytes in @room; TAIL: bytes in @tail */
    uint32_t ulpdu_len; /* of the long one */
    uint32_t left;      /* PAYLOAD: bytes to come */
    uint32_t crc;       /* over what was taken of the long one */
    uint8_t tail[FPDU_MAX_TAIL];
    enum iwarp_error error;
};

void fpdu_rx_init(struct fpdu_rx *rx, uint8_t *room, size_t size, bool crc_on,
                  fpdu_head_fn *head_len);
enum iwarp_error fpdu_rx_next(struct fpdu_rx *rx, struct fpdu_input *in,
                              struct fpdu_part *part);
bool fpdu_rx_placed(struct fpdu_rx *rx, uint32_t n, uint32_t crc);

/*
 * How many bytes end the header that comes next, which has @head, or, when that was
 * looked at, its frame: who reads no more than that can have the payload in parts.
 */
size_t fpdu_rx_rest(const struct fpdu_rx *rx, uint32_t head);

/*
 * Does fpdu_rx_next() need the room for @in, and so fpdu_rx.room?  Not for an FPDU that
 * is there as a whole, nor for payload.
 */
bool fpdu_rx_gathers(const struct fpdu_rx *rx, const struct fpdu_input *in);

/* Payload of the long one that comes next in the stream. */
static inline uint32_t fpdu_rx_wants(const struct fpdu_rx *rx)
{
    return rx->state == FPDU_PAYLOAD && !rx->error ? rx->left : 0;
}

#endif /* PVRDMAD_IWARP_WIRE_FPDU_H */
