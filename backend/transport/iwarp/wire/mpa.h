/* SPDX-License-Identifier: GPL-2.0-or-later */
/* MPA's start: the two startup frames and what both sides agree on; see mpa.c. */
#ifndef PVRDMAD_IWARP_WIRE_MPA_H
#define PVRDMAD_IWARP_WIRE_MPA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/iwarp/wire/errors.h"

#define MPA_HEADER       20u /* key, flags, revision, length */
#define MPA_MAX_PD       512u
#define MPA_ENHANCED     4u /* of the private data, with revision 2 */
#define MPA_MAX_STARTUP  (MPA_HEADER + MPA_MAX_PD)
#define MPA_DEPTH_BY_ULP 0x3fffu /* "the upper protocol agrees on it by itself" */

enum mpa_kind { MPA_REQUEST, MPA_REPLY };

/* The frame by which a peer-to-peer initiator makes the stream ready. */
enum mpa_rtr {
    MPA_RTR_NONE = 0,
    MPA_RTR_SEND = 1,
    MPA_RTR_WRITE = 2,
    MPA_RTR_READ = 4,
};

/* A startup frame. */
struct mpa_frame {
    enum mpa_kind kind;
    uint8_t revision; /* 1 or 2 */
    bool markers;     /* the sender of this frame wants to receive them */
    bool crc;
    bool reject; /* a Reply's */
    bool enhanced;
    /* If enhanced. */
    bool p2p;
    uint8_t rtr; /* enum mpa_rtr, several */
    uint16_t ird, ord;
    /* The upper protocol's; of a parsed frame it points into the input. */
    const uint8_t *data;
    uint16_t data_len;
};

/* What this side can do and wants. */
struct mpa_config {
    bool enhanced; /* the initiator's: ask for revision 2 */
    bool crc;
    bool p2p;         /* the initiator's: be ready before the upper protocol sends */
    uint8_t rtr;      /* those we can send (initiator) or take (responder) */
    uint16_t ird;     /* offered */
    uint16_t max_ird; /* what it may be raised to; at least @ird */
    uint16_t ord;     /* wanted */
};

/* What both sides hold to. */
struct mpa_agreed {
    bool rejected; /* nothing else is set */
    bool enhanced;
    bool crc;
    bool send_markers; /* never the other way: we do not ask */
    bool p2p;
    enum mpa_rtr rtr;  /* with @p2p: the one that the initiator sends first */
    uint16_t ird, ord; /* this side's */
};

size_t mpa_put(const struct mpa_frame *f, uint8_t out[MPA_MAX_STARTUP]);
enum iwarp_error mpa_get(enum mpa_kind kind, const uint8_t *in, size_t len,
                         struct mpa_frame *f, size_t *size);

void mpa_request(const struct mpa_config *own, struct mpa_frame *req);
void mpa_accept(const struct mpa_config *own, const struct mpa_frame *req,
                struct mpa_frame *reply, struct mpa_agreed *agreed);
enum iwarp_error mpa_conclude(const struct mpa_config *own, const struct mpa_frame *reply,
                              struct mpa_agreed *agreed);

#endif /* PVRDMAD_IWARP_WIRE_MPA_H */
