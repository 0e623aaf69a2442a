/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Proofs that both ends of a link have the same secret; see auth.c. */
#ifndef PVRDMAD_LINK_AUTH_H
#define PVRDMAD_LINK_AUTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/link/msg.h"

enum peer_role { PEER_INITIATOR, PEER_RESPONDER };

/* A HELLO as it went over the wire, with its header. */
struct peer_hello_bytes {
    uint8_t bytes[PEER_MSG_HEADER + PEER_MSG_MAX_EARLY];
    size_t len;
};

/* What @role sends as AUTH; @hello: of both, by role. */
void peer_auth_proof(const uint8_t *secret, size_t secret_len, enum peer_role role,
                     const struct peer_hello_bytes hello[2],
                     uint8_t proof[PEER_PROOF_LEN]);

/* In the same time whatever they are. */
bool peer_auth_same(const uint8_t a[PEER_PROOF_LEN], const uint8_t b[PEER_PROOF_LEN]);

#endif /* PVRDMAD_LINK_AUTH_H */
