/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What our daemons tell each other in the private data of MPA's startup frames. */
#ifndef PVRDMAD_IWARP_WIRE_PRIVATE_DATA_H
#define PVRDMAD_IWARP_WIRE_PRIVATE_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HELLO_SIZE 76u

struct hello {
    uint64_t token[2];    /* that both have agreed on, as it came */
    uint64_t incarnation; /* of the sender's connection; not 0 */
    uint64_t seq;         /* of the sender's oldest message that is not acknowledged */
    uint32_t psn;         /* of that message, 24 bits */
    uint8_t mtu;          /* enum pvrdma_mtu of its path: what its PSNs count in */
    /* Of the other's connection: which one it knows (0: none), what it expects of it. */
    uint64_t heard, got;
    /*
     * Message failed_seq of that connection failed, and the sender's queue pair with it:
     * there will be no stream.  enum pvrdma_wc_status, 0: it did not.
     */
    uint8_t failed_status;
    uint64_t failed_seq;
    bool unreliable; /* the sender's queue pair is one of UC */
};

void hello_put(const struct hello *h, uint8_t out[HELLO_SIZE]);
bool hello_get(const uint8_t *in, size_t len, struct hello *h);

#endif /* PVRDMAD_IWARP_WIRE_PRIVATE_DATA_H */
