/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Proofs that both ends of a link have the same secret, which is not sent.
 *
 * Each sends the HMAC-SHA256 (RFC 2104) by the secret over a word for its role and both
 * HELLOs, byte by byte, with the random numbers in them.  So a proof is good for this
 * connection and this direction only, and whatever the HELLOs say (names, versions,
 * features) nobody has changed on the way.  The initiator shows its proof first.
 *
 * What follows on the link is neither secret nor protected: that is for TLS to do.
 * Pure functions.
 */
#include "transport/link/auth.h"

#include <glib.h>

void peer_auth_proof(const uint8_t *secret, size_t secret_len, enum peer_role role,
                     const struct peer_hello_bytes hello[2],
                     uint8_t proof[PEER_PROOF_LEN])
{
    static const char *const words[] = {
        [PEER_INITIATOR] = "pvrdma link initiator",
        [PEER_RESPONDER] = "pvrdma link responder",
    };
    GHmac *h = g_hmac_new(G_CHECKSUM_SHA256, secret, secret_len);
    gsize len = PEER_PROOF_LEN;

    g_hmac_update(h, (const guchar *)words[role], -1);
    for (unsigned i = 0; i < 2; i++) { /* their headers say where one ends */
        g_hmac_update(h, hello[i].bytes, (gssize)hello[i].len);
    }
    g_hmac_get_digest(h, proof, &len);
    g_hmac_unref(h);
}

bool peer_auth_same(const uint8_t a[PEER_PROOF_LEN], const uint8_t b[PEER_PROOF_LEN])
{
    volatile uint8_t differ = 0;

    for (unsigned i = 0; i < PEER_PROOF_LEN; i++) {
        differ |= a[i] ^ b[i];
    }
    return !differ;
}
