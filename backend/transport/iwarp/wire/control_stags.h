/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What our daemons tell each other within an iWARP stream; see control_stags.c. */
#ifndef PVRDMAD_IWARP_WIRE_CONTROL_STAGS_H
#define PVRDMAD_IWARP_WIRE_CONTROL_STAGS_H

#include <stdbool.h>
#include <stdint.h>

#include "transport/iwarp/wire/rdmap.h"

/* Keys of memory begin here; below are the reserved STags. */
#define CTL_FIRST_KEY 0x100u

#define CTL_STAG_RTR \
    1u /* of the first frame, as siw sends it; not 0, see docs/iwarp.md */

enum ctl_kind {
    CTL_ACK,     /* all messages up to this one are done */
    CTL_RNR,     /* this one found no receive, and was dropped with those behind it */
    CTL_NAK,     /* this one failed, and those behind it were dropped */
    CTL_RESTART, /* the next message that comes is this one */
    CTL_READY,   /* a receive was posted: this one may be sent again before its time */
    CTL_PSN,  /* seq is the PSN of the next message, which was not known at the start */
    CTL_DROP, /* UC: the message that has begun is given up; its last segment follows */
    CTL_KINDS
};

#define CTL_SEQ_MAX ((1ull << 56) - 1)
/* Where a peer may have us count from: whoever goes on from there never passes the end.
 */
#define CTL_SEQ_START_MAX (CTL_SEQ_MAX / 2)

struct ctl {
    enum ctl_kind kind;
    uint64_t seq; /* of a message, from its sender's count */
    uint8_t arg;  /* RNR: the timer's code, 0 to 31; NAK: enum pvrdma_wc_status */
};

void ctl_begin(const struct ctl *c, struct rdmap_segment *s);
bool ctl_is(const struct rdmap_segment *s);
enum iwarp_error ctl_get(const struct rdmap_segment *s, struct ctl *c);

#endif /* PVRDMAD_IWARP_WIRE_CONTROL_STAGS_H */
