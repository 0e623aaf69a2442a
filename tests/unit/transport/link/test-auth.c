/* SPDX-License-Identifier: GPL-2.0-or-later */
/* link/auth.c: proofs as another implementation of HMAC-SHA256 makes them. */
#include <glib.h>
#include <string.h>

#include "transport/link/auth.h"

static const uint8_t secret[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

static void hellos(struct peer_hello_bytes h[2])
{
    memset(h, 0, 2 * sizeof(h[0]));
    h[0].len = 11;
    memcpy(h[0].bytes, "\0\1\0\0\0\0\0\3abc", 11);
    h[1].len = 10;
    memcpy(h[1].bytes, "\0\1\0\0\0\0\0\2de", 10);
}

static void proof_is(enum peer_role role, const char *hex)
{
    struct peer_hello_bytes h[2];
    uint8_t proof[PEER_PROOF_LEN];
    char text[2 * PEER_PROOF_LEN + 1];

    hellos(h);
    peer_auth_proof(secret, sizeof(secret), role, h, proof);
    for (unsigned i = 0; i < PEER_PROOF_LEN; i++) {
        g_snprintf(text + 2 * i, 3, "%02x", proof[i]);
    }
    g_assert_cmpstr(text, ==, hex);
}

/* Made by Python's hmac module. */
static void test_vectors(void)
{
    proof_is(PEER_INITIATOR,
             "73337c8478972801cbd7a7d0e209459e5d4429be75eaf377c01d78372a1103b7");
    proof_is(PEER_RESPONDER,
             "d87beca2932edeaf9f311638d67fe770f4058acfbef782a867d7207cefd0b4ad");
}

/* Whatever differs, the proof does. */
static void test_differs(void)
{
    struct peer_hello_bytes h[2];
    uint8_t key[16], good[PEER_PROOF_LEN], other[PEER_PROOF_LEN];

    hellos(h);
    peer_auth_proof(secret, sizeof(secret), PEER_INITIATOR, h, good);
    peer_auth_proof(secret, sizeof(secret), PEER_INITIATOR, h, other);
    g_assert_true(peer_auth_same(good, other));
    for (unsigned i = 0; i < 2; i++) {
        for (unsigned k = 0; k < h[i].len; k++) {
            h[i].bytes[k] ^= 0x10;
            peer_auth_proof(secret, sizeof(secret), PEER_INITIATOR, h, other);
            g_assert_false(peer_auth_same(good, other));
            h[i].bytes[k] ^= 0x10;
        }
    }
    for (unsigned i = 0; i < sizeof(key); i++) {
        memcpy(key, secret, sizeof(key));
        key[i] ^= 1;
        peer_auth_proof(key, sizeof(key), PEER_INITIATOR, h, other);
        g_assert_false(peer_auth_same(good, other));
    }
    peer_auth_proof(secret, sizeof(secret), PEER_RESPONDER, h, other);
    g_assert_false(peer_auth_same(good, other));
}

static void test_same(void)
{
    uint8_t a[PEER_PROOF_LEN] = {0}, b[PEER_PROOF_LEN] = {0};

    g_assert_true(peer_auth_same(a, b));
    for (unsigned i = 0; i < 8 * PEER_PROOF_LEN; i++) {
        b[i / 8] ^= 1 << i % 8;
        g_assert_false(peer_auth_same(a, b));
        b[i / 8] ^= 1 << i % 8;
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/peer/auth/vectors", test_vectors);
    g_test_add_func("/peer/auth/differs", test_differs);
    g_test_add_func("/peer/auth/same", test_same);
    return g_test_run();
}
