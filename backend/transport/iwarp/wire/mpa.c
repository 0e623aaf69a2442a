/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * MPA's start (RFC 5044 7.1, RFC 6581): the Request and Reply frames, and what each
 * side concludes from its own wishes and the other's frame.
 *
 * Invariants: pure functions; a parsed frame's @data lies in the input; nothing is
 * read behind the length that was given.  We never ask for markers, and send
 * them if the peer asks.  The sum (CRC) is used as soon as one side wants it.
 *
 * Sources: RFC 5044 7.1.1 (frames), 7.1.2 (rules), RFC 6581 6 (enhanced block), 9
 * (IRD and ORD, peer-to-peer).
 */
#include <glib.h>

#include "transport/iwarp/wire/bytes.h"
#include "transport/iwarp/wire/mpa.h"

#define KEY_LEN     16u
#define REVISION_AT 17u

#define MPA_M 0x80u
#define MPA_C 0x40u
#define MPA_R 0x20u
#define MPA_S 0x10u

#define IRD_A      0x8000u /* peer to peer */
#define IRD_B      0x4000u /* made ready by a Send */
#define ORD_C      0x8000u /* by an RDMA Write */
#define ORD_D      0x4000u /* by an RDMA Read */
#define DEPTH_MASK 0x3fffu

static const char *const keys[] = {
    [MPA_REQUEST] = "MPA ID Req Frame",
    [MPA_REPLY] = "MPA ID Rep Frame",
};

static uint16_t depth_word(uint16_t depth, bool high, bool low)
{
    return MIN(depth, DEPTH_MASK) | (high ? 0x8000u : 0) | (low ? 0x4000u : 0);
}

/* Returns the frame's length; 0: its private data are too long. */
size_t mpa_put(const struct mpa_frame *f, uint8_t out[MPA_MAX_STARTUP])
{
    size_t block = f->enhanced ? MPA_ENHANCED : 0;
    uint8_t *p = out + MPA_HEADER;

    if (f->data_len > MPA_MAX_PD - block) {
        return 0;
    }
    memcpy(out, keys[f->kind], KEY_LEN);
    out[16] = (f->markers ? MPA_M : 0) | (f->crc ? MPA_C : 0) |
              (f->kind == MPA_REPLY && f->reject ? MPA_R : 0) | (block ? MPA_S : 0);
    out[REVISION_AT] = f->revision;
    put_be16(out + 18, (uint16_t)(block + f->data_len));
    if (block) {
        unsigned rtr = f->p2p ? f->rtr : 0;

        put_be16(p, depth_word(f->ird, f->p2p, rtr & MPA_RTR_SEND));
        put_be16(p + 2, depth_word(f->ord, rtr & MPA_RTR_WRITE, rtr & MPA_RTR_READ));
        p += MPA_ENHANCED;
    }
    if (f->data_len) {
        memcpy(p, f->data, f->data_len);
    }
    return MPA_HEADER + block + f->data_len;
}

/*
 * Parse the frame that @in begins with.  @size is how long it is, as far as can be
 * told by now: @f is filled only if that is not more than @len.  What can be no such
 * frame is refused by its first wrong byte.  That includes the other kind: both sides
 * asked, which RFC 5044 does not know.
 */
enum iwarp_error mpa_get(enum mpa_kind kind, const uint8_t *in, size_t len,
                         struct mpa_frame *f, size_t *size)
{
    uint16_t pd, ird, ord;
    bool enhanced;

    *size = MPA_HEADER;
    if (len && memcmp(in, keys[kind], MIN(len, KEY_LEN)) != 0) {
        return MPA_BAD_STARTUP;
    }
    if (len > REVISION_AT && (in[REVISION_AT] < 1 || in[REVISION_AT] > 2)) {
        return MPA_BAD_STARTUP;
    }
    if (len < MPA_HEADER) {
        return IWARP_OK;
    }
    pd = get_be16(in + 18);
    /* S is a reserved bit of revision 1, which is not looked at. */
    enhanced = in[REVISION_AT] == 2 && (in[16] & MPA_S);
    if (pd > MPA_MAX_PD || (enhanced && pd < MPA_ENHANCED)) {
        return MPA_BAD_STARTUP;
    }
    *size = MPA_HEADER + pd;
    if (len < *size) {
        return IWARP_OK;
    }
    *f = (struct mpa_frame){
        .kind = kind,
        .revision = in[REVISION_AT],
        .markers = in[16] & MPA_M,
        .crc = in[16] & MPA_C,
        .reject = kind == MPA_REPLY && (in[16] & MPA_R),
        .enhanced = enhanced,
        .data = in + MPA_HEADER,
        .data_len = pd,
    };
    if (enhanced) {
        ird = get_be16(in + MPA_HEADER);
        ord = get_be16(in + MPA_HEADER + 2);
        f->p2p = ird & IRD_A;
        if (f->p2p) {
            f->rtr = (ird & IRD_B ? MPA_RTR_SEND : 0) |
                     (ord & ORD_C ? MPA_RTR_WRITE : 0) | (ord & ORD_D ? MPA_RTR_READ : 0);
        }
        f->ird = ird & DEPTH_MASK;
        f->ord = ord & DEPTH_MASK;
        f->data += MPA_ENHANCED;
        f->data_len -= MPA_ENHANCED;
    }
    return IWARP_OK;
}

/* One of several: the Write needs nothing at the other side, the Read a slot there. */
static enum mpa_rtr choose_rtr(unsigned rtr, unsigned depth)
{
    if (rtr & MPA_RTR_WRITE) {
        return MPA_RTR_WRITE;
    }
    if ((rtr & MPA_RTR_READ) && depth) {
        return MPA_RTR_READ;
    }
    return rtr & MPA_RTR_SEND ? MPA_RTR_SEND : MPA_RTR_NONE;
}

static uint16_t at_most(uint16_t own, uint16_t peers)
{
    return peers == MPA_DEPTH_BY_ULP ? own : MIN(own, peers);
}

/* The initiator's frame; whoever has private data adds them. */
void mpa_request(const struct mpa_config *own, struct mpa_frame *req)
{
    *req = (struct mpa_frame){
        .kind = MPA_REQUEST,
        .revision = own->enhanced ? 2 : 1,
        .crc = own->crc,
        .enhanced = own->enhanced,
    };
    if (own->enhanced) {
        req->p2p = own->p2p;
        req->rtr = own->p2p ? own->rtr : 0;
        req->ird = own->ird;
        req->ord = own->ord;
    }
}

/*
 * The responder's answer to @req, which fits its form, and what then holds.  Nothing
 * needs a refusal: an initiator that wants more than we give takes less, or ends.  An
 * upper protocol that does not want it sets @reply's @reject.
 */
void mpa_accept(const struct mpa_config *own, const struct mpa_frame *req,
                struct mpa_frame *reply, struct mpa_agreed *agreed)
{
    *agreed = (struct mpa_agreed){
        .enhanced = req->enhanced,
        .crc = own->crc || req->crc,
        .send_markers = req->markers,
        .ird = own->ird,
        .ord = own->ord,
    };
    *reply = (struct mpa_frame){
        .kind = MPA_REPLY,
        .revision = req->revision,
        .crc = agreed->crc,
        .enhanced = req->enhanced,
    };
    if (!req->enhanced) {
        return;
    }
    if (req->ord != MPA_DEPTH_BY_ULP) {
        agreed->ird = MIN(own->max_ird, req->ord);
    }
    agreed->ord = at_most(own->ord, req->ird);
    /* Who agrees by other means gets told so, too. */
    reply->ird = req->ord == MPA_DEPTH_BY_ULP ? MPA_DEPTH_BY_ULP : agreed->ird;
    reply->ord = req->ird == MPA_DEPTH_BY_ULP ? MPA_DEPTH_BY_ULP : agreed->ord;
    if (req->p2p) {
        agreed->p2p = reply->p2p = true;
        agreed->rtr = choose_rtr(req->rtr & own->rtr, agreed->ird);
        /* None: it hears what we would have taken, and ends with MPA_NO_RTR. */
        reply->rtr = agreed->rtr ? agreed->rtr : own->rtr;
    }
}

/*
 * What holds for the initiator, after its mpa_request() by the same @own was answered
 * by @reply.  An error other than MPA_BAD_STARTUP, which ends the connection at once,
 * is told to the peer in a Terminate.
 */
enum iwarp_error mpa_conclude(const struct mpa_config *own, const struct mpa_frame *reply,
                              struct mpa_agreed *agreed)
{
    *agreed = (struct mpa_agreed){.rejected = reply->reject};
    if (reply->reject) {
        return IWARP_OK;
    }
    if (reply->enhanced != own->enhanced) {
        return MPA_BAD_STARTUP;
    }
    agreed->enhanced = own->enhanced;
    agreed->crc = own->crc || reply->crc;
    agreed->send_markers = reply->markers;
    agreed->ird = own->ird;
    agreed->ord = own->ord;
    if (!own->enhanced) {
        return IWARP_OK;
    }
    if (own->ird != MPA_DEPTH_BY_ULP && reply->ord != MPA_DEPTH_BY_ULP) {
        if (reply->ord > own->max_ird) {
            return MPA_SMALL_IRD;
        }
        agreed->ird = MAX(own->ird, reply->ord);
    }
    if (own->ord != MPA_DEPTH_BY_ULP) {
        agreed->ord = at_most(own->ord, reply->ird);
    }
    /* Not echoed: no frame is owed, but the peer waits for our first one as ever. */
    agreed->p2p = own->p2p && reply->p2p;
    if (agreed->p2p) {
        agreed->rtr = choose_rtr(own->rtr & reply->rtr, agreed->ord);
        if (!agreed->rtr) {
            return MPA_NO_RTR;
        }
    }
    return IWARP_OK;
}
