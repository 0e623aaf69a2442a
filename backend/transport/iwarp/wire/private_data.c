/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The private data of a connection between two of our daemons: which queue pairs it is
 * for (a token that was agreed on over an authenticated link, used once), and where each
 * side stands, so that after a break each message arrives exactly once.
 *
 *   0  magic "PVR1"       4  failed_status   5  mtu   6  flags   7  0
 *   8  token (16)        24  incarnation    32  seq   40  heard   48  got
 *  56  failed_seq        64  psn            68  0 (8)
 *
 * All big-endian.  What is 0 is not looked at: it is for later versions, which are told
 * from this one by the magic where that does not do.
 *
 * Invariants: pure functions.
 */
#include "transport/iwarp/wire/private_data.h"

#include <glib.h>
#include <string.h>

#include "pvrdma/abi.h"
#include "transport/iwarp/wire/bytes.h"
#include "transport/iwarp/wire/control_stags.h"

#define MAGIC 0x50565231u
/* Flags */
#define UNRELIABLE 1u

void hello_put(const struct hello *h, uint8_t out[HELLO_SIZE])
{
    memset(out, 0, HELLO_SIZE);
    put_be32(out, MAGIC);
    out[4] = h->failed_status;
    out[5] = h->mtu;
    out[6] = h->unreliable ? UNRELIABLE : 0;
    memcpy(out + 8, h->token, sizeof(h->token));
    put_be64(out + 24, h->incarnation);
    put_be64(out + 32, h->seq);
    put_be64(out + 40, h->heard);
    put_be64(out + 48, h->got);
    put_be64(out + 56, h->failed_seq);
    put_be32(out + 64, h->psn);
}

/* May a responder complete a message with it? */
static bool right_status(uint8_t status)
{
    return status == 0 || status == PVRDMA_WC_REM_INV_REQ_ERR ||
           status == PVRDMA_WC_REM_ACCESS_ERR || status == PVRDMA_WC_REM_OP_ERR;
}

/* False: that is not ours. */
bool hello_get(const uint8_t *in, size_t len, struct hello *h)
{
    if (len != HELLO_SIZE || get_be32(in) != MAGIC) {
        return false;
    }
    *h = (struct hello){
        .failed_status = in[4],
        .mtu = in[5],
        .unreliable = in[6] & UNRELIABLE,
        .incarnation = get_be64(in + 24),
        .seq = get_be64(in + 32),
        .heard = get_be64(in + 40),
        .got = get_be64(in + 48),
        .failed_seq = get_be64(in + 56),
        .psn = get_be32(in + 64),
    };
    memcpy(h->token, in + 8, sizeof(h->token));
    return h->incarnation && right_status(h->failed_status) &&
           h->seq <= CTL_SEQ_START_MAX && h->got <= CTL_SEQ_START_MAX &&
           h->psn <= 0xffffff && h->mtu >= PVRDMA_MTU_256 && h->mtu <= PVRDMA_MTU_4096;
}
