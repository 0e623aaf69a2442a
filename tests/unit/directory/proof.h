/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The proof of a place of a VM, made here from the words of docs/peer-protocol.md. */
#ifndef TESTS_PROOF_H
#define TESTS_PROOF_H

#include <glib.h>
#include <stdint.h>
#include <string.h>

#include "directory/directory.h"

/* @c is @host's, of a VM with @key. */
static inline void proof_make(struct claim *c, const uint8_t key[32], const char *host)
{
    GHmac *h = g_hmac_new(G_CHECKSUM_SHA256, key, 32);
    const char *words = "pvrdma place of a VM";
    uint64_t numbers[] = {GUINT64_TO_LE(c->owner[0]), GUINT64_TO_LE(c->owner[1]),
                          GUINT64_TO_LE(c->generation)};
    uint8_t digest[32];
    gsize len = sizeof(digest);

    g_hmac_update(h, (const guchar *)words, (gssize)strlen(words));
    g_hmac_update(h, (const guchar *)numbers, sizeof(numbers));
    g_hmac_update(h, (const guchar *)host, (gssize)strlen(host));
    g_hmac_get_digest(h, digest, &len);
    g_hmac_unref(h);
    memcpy(c->proof, digest, sizeof(c->proof));
    c->host = host;
}

#endif /* TESTS_PROOF_H */
