/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Acknowledgement, RNR NAK, NAK, restart and the like between two of our daemons: each is
 * an RDMA Write of no bytes to a reserved STag, whose tagged offset carries an argument
 * (the high 8 bits) and a message's number (the low 56).  STag and TO of an empty tagged
 * message are not checked by anybody (RFC 5041 5.2.1, RFC 5040 5.1), so the stream stays
 * legal iWARP, takes no buffer and no read slot, and each frame is 14 bytes and framing.
 * The number does not wrap: at 10^9 messages a second it lasts for two years.
 *
 * Invariants: pure functions.  They are for a peer that is known to be one of ours; with
 * any other an empty Write is only that.
 */
#include <glib.h>

#include "transport/iwarp/wire/control_stags.h"

#define STAG_BASE   0x10u
#define ARG_SHIFT   56
#define TIMER_CODES 32u

/* The segment that tells @c. */
void ctl_begin(const struct ctl *c, struct rdmap_segment *s)
{
    g_assert(c->kind < CTL_KINDS && c->seq <= CTL_SEQ_MAX);
    rdmap_begin(s, RDMAP_WRITE);
    s->ddp.stag = STAG_BASE + c->kind;
    s->ddp.to = (uint64_t)c->arg << ARG_SHIFT | c->seq;
}

/* Is it for ctl_get(), and not memory's or the first frame? */
bool ctl_is(const struct rdmap_segment *s)
{
    return s->opcode == RDMAP_WRITE && s->ddp.stag < CTL_FIRST_KEY &&
           s->ddp.stag != CTL_STAG_RTR;
}

static bool right_arg(enum ctl_kind kind, uint8_t arg)
{
    switch (kind) {
    case CTL_RNR:
        return arg < TIMER_CODES;
    case CTL_NAK:
        return arg == PVRDMA_WC_REM_INV_REQ_ERR || arg == PVRDMA_WC_REM_ACCESS_ERR ||
               arg == PVRDMA_WC_REM_OP_ERR;
    default:
        return arg == 0;
    }
}

enum iwarp_error ctl_get(const struct rdmap_segment *s, struct ctl *c)
{
    if (s->ddp.stag < STAG_BASE || s->ddp.stag >= STAG_BASE + CTL_KINDS) {
        return DDP_TAGGED_BAD_STAG;
    }
    if (s->payload_len || !s->ddp.last) {
        return DDP_TAGGED_BAD_BOUNDS;
    }
    *c = (struct ctl){
        .kind = s->ddp.stag - STAG_BASE,
        .seq = s->ddp.to & CTL_SEQ_MAX,
        .arg = (uint8_t)(s->ddp.to >> ARG_SHIFT),
    };
    return right_arg(c->kind, c->arg) ? IWARP_OK : RDMAP_STREAM_CATASTROPHIC;
}
