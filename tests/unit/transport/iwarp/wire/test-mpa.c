/* SPDX-License-Identifier: GPL-2.0-or-later */
/* mpa.c: startup frames byte by byte, and every combination of two sides' wishes. */
#include <glib.h>
#include <string.h>

#include "transport/iwarp/wire/mpa.h"

static uint8_t wire[MPA_MAX_STARTUP];

/* As RFC 5044 7.1.1 and RFC 6581 6 have them. */
static void test_bytes(void)
{
    static const struct {
        struct mpa_frame frame;
        const char *bytes;
        size_t len;
    } known[] = {
        {{.kind = MPA_REQUEST, .revision = 1, .crc = true},
         "MPA ID Req Frame\x40\x01\0\0",
         20},
        {{.kind = MPA_REQUEST,
          .revision = 1,
          .markers = true,
          .reject = true,
          .data = (const uint8_t *)"abc",
          .data_len = 3},
         "MPA ID Req Frame\x80\x01\0\x03"
         "abc",
         23},
        {{.kind = MPA_REPLY, .revision = 1, .crc = true, .reject = true},
         "MPA ID Rep Frame\x60\x01\0\0",
         20},
        {{.kind = MPA_REQUEST,
          .revision = 2,
          .crc = true,
          .enhanced = true,
          .p2p = true,
          .rtr = MPA_RTR_WRITE | MPA_RTR_READ,
          .ird = 0x1234,
          .ord = 16,
          .data = (const uint8_t *)"x",
          .data_len = 1},
         "MPA ID Req Frame\x50\x02\0\x05\x92\x34\xc0\x10x",
         25},
        {{.kind = MPA_REPLY,
          .revision = 2,
          .enhanced = true,
          .p2p = true,
          .rtr = MPA_RTR_SEND,
          .ird = MPA_DEPTH_BY_ULP,
          .ord = 1},
         "MPA ID Rep Frame\x10\x02\0\x04\xff\xff\0\x01",
         24},
        /* Without A there is no B, C and D. */
        {{.kind = MPA_REPLY,
          .revision = 2,
          .enhanced = true,
          .rtr = 7,
          .ird = 5,
          .ord = 6},
         "MPA ID Rep Frame\x10\x02\0\x04\0\x05\0\x06",
         24},
    };

    for (unsigned i = 0; i < G_N_ELEMENTS(known); i++) {
        g_assert_cmpuint(mpa_put(&known[i].frame, wire), ==, known[i].len);
        g_assert_cmpmem(wire, known[i].len, known[i].bytes, known[i].len);
    }
}

static void same_frame(const struct mpa_frame *a, const struct mpa_frame *b)
{
    g_assert_cmpuint(a->kind, ==, b->kind);
    g_assert_cmpuint(a->revision, ==, b->revision);
    g_assert_cmpuint(a->markers, ==, b->markers);
    g_assert_cmpuint(a->crc, ==, b->crc);
    g_assert_cmpuint(a->reject, ==, b->reject);
    g_assert_cmpuint(a->enhanced, ==, b->enhanced);
    g_assert_cmpuint(a->p2p, ==, b->p2p);
    g_assert_cmpuint(a->rtr, ==, b->rtr);
    g_assert_cmpuint(a->ird, ==, b->ird);
    g_assert_cmpuint(a->ord, ==, b->ord);
    g_assert_cmpmem(a->data, a->data_len, b->data, b->data_len);
}

/* Parse what is in wire[], whole and each beginning of it. */
static enum iwarp_error get_all(enum mpa_kind kind, size_t len, struct mpa_frame *f)
{
    size_t size;

    for (size_t n = 0; n <= len; n++) {
        /* So that AddressSanitizer sees what reads too far. */
        g_autofree uint8_t *part = g_memdup2(wire, n);
        enum iwarp_error e = mpa_get(kind, part, n, f, &size);

        g_assert_cmpint(e, ==, IWARP_OK);
        g_assert_cmpuint(size, ==, n < MPA_HEADER ? MPA_HEADER : len);
    }
    return mpa_get(kind, wire, len + 1, f, &size);
}

static void test_round_trip(void)
{
    uint8_t data[MPA_MAX_PD];
    struct mpa_frame back;

    for (unsigned i = 0; i < sizeof(data); i++) {
        data[i] = i * 7;
    }
    for (unsigned bits = 0; bits < 512; bits++) {
        bool enhanced = bits & 16, p2p = enhanced && bits & 32;
        struct mpa_frame f = {
            .kind = bits & 1,
            .revision = enhanced ? 2 : 1 + (bits >> 8 & 1),
            .markers = bits & 2,
            .crc = bits & 4,
            .reject = (bits & 1) && (bits & 8),
            .enhanced = enhanced,
            .p2p = p2p,
            .rtr = p2p ? bits >> 6 & 7 : 0,
            .ird = enhanced ? bits : 0,
            .ord = enhanced ? 0x3fff - bits : 0,
            .data = data,
            .data_len = bits % 3 * 250,
        };
        size_t len = mpa_put(&f, wire);

        g_assert_cmpuint(len, ==, 20 + (enhanced ? 4 : 0) + f.data_len);
        g_assert_cmpint(get_all(f.kind, len, &back), ==, IWARP_OK);
        same_frame(&back, &f);
    }
    /* The most, and one more. */
    for (unsigned enhanced = 0; enhanced < 2; enhanced++) {
        struct mpa_frame f = {.kind = MPA_REPLY,
                              .revision = 2,
                              .enhanced = enhanced,
                              .data = data,
                              .data_len = enhanced ? 508 : 512};

        g_assert_cmpuint(mpa_put(&f, wire), ==, 532);
        g_assert_cmpint(get_all(MPA_REPLY, 532, &back), ==, IWARP_OK);
        g_assert_cmpuint(back.data_len, ==, f.data_len);
        f.data_len++;
        g_assert_cmpuint(mpa_put(&f, wire), ==, 0);
    }
}

static void refused(const char *bytes, size_t len)
{
    struct mpa_frame f;
    size_t size;

    g_assert_cmpint(mpa_get(MPA_REQUEST, (const uint8_t *)bytes, len, &f, &size), ==,
                    MPA_BAD_STARTUP);
}

static void test_bad(void)
{
    struct mpa_frame f;
    size_t size;

    refused("G", 1);
    refused("MPA ID Rep", 10); /* known by its tenth byte */
    refused("MPA ID Rep Frame\x40\x01\0\0", 20);
    refused("MPA ID Req Frame\x40\0", 18);
    refused("MPA ID Req Frame\x40\x03", 18);
    refused("MPA ID Req Frame\x40\0\0\0", 20);
    refused("MPA ID Req Frame\x40\x03\0\0", 20);
    refused("MPA ID Req Frame\x40\x01\x02\x01", 20);
    refused("MPA ID Req Frame\x50\x02\xff\xff", 20);
    refused("MPA ID Req Frame\x50\x02\0\0", 20);
    refused("MPA ID Req Frame\x50\x02\0\x03"
            "abc",
            23);
    /* Reserved bits, S of revision 1 among them, R of a Request: not looked at. */
    g_assert_cmpint(mpa_get(MPA_REQUEST,
                            (const uint8_t *)"MPA ID Req Frame\x7f\x01\0\x04"
                                             "abcd",
                            24, &f, &size),
                    ==, IWARP_OK);
    g_assert_false(f.enhanced || f.reject || f.markers);
    g_assert_true(f.crc);
    g_assert_cmpmem(f.data, f.data_len, "abcd", 4);
}

/* ---- both sides' conclusions ---- */

static bool fits(unsigned rtr, unsigned depth)
{
    return rtr & (MPA_RTR_WRITE | MPA_RTR_SEND) || (rtr & MPA_RTR_READ && depth);
}

/* Let the two talk, over the wire's bytes, and check what they conclude. */
static void talk(const struct mpa_config *ini, const struct mpa_config *res, bool markers)
{
    struct mpa_frame req, reply, got;
    struct mpa_agreed a, b;
    enum iwarp_error e;
    bool p2p = ini->enhanced && ini->p2p;
    unsigned common = ini->rtr & res->rtr;
    unsigned responder_ird = MIN(res->max_ird, ini->ord);
    size_t len;

    mpa_request(ini, &req);
    g_assert_false(req.markers);
    req.markers = markers; /* as others do */
    len = mpa_put(&req, wire);
    g_assert_cmpint(get_all(MPA_REQUEST, len, &got), ==, IWARP_OK);
    same_frame(&got, &req);

    mpa_accept(res, &got, &reply, &b);
    g_assert_false(reply.markers || reply.reject);
    g_assert_cmpuint(reply.revision, ==, req.revision);
    g_assert_cmpuint(b.send_markers, ==, markers);
    len = mpa_put(&reply, wire);
    g_assert_cmpint(get_all(MPA_REPLY, len, &got), ==, IWARP_OK);

    e = mpa_conclude(ini, &got, &a);
    if (p2p && !fits(common, MIN(ini->ord, responder_ird))) {
        g_assert_cmpint(e, ==, MPA_NO_RTR);
        g_assert_cmpuint(b.rtr, ==, MPA_RTR_NONE);
        return;
    }
    g_assert_cmpint(e, ==, IWARP_OK);
    g_assert_false(a.rejected || b.rejected || a.send_markers);
    g_assert_cmpuint(a.enhanced, ==, ini->enhanced);
    g_assert_cmpuint(b.enhanced, ==, ini->enhanced);
    g_assert_cmpuint(a.crc, ==, ini->crc || res->crc);
    g_assert_cmpuint(b.crc, ==, a.crc);
    g_assert_cmpuint(a.p2p, ==, p2p);
    g_assert_cmpuint(b.p2p, ==, p2p);
    if (p2p) {
        g_assert_cmpuint(a.rtr, ==, b.rtr);
        g_assert_true(a.rtr == MPA_RTR_SEND || a.rtr == MPA_RTR_WRITE ||
                      a.rtr == MPA_RTR_READ);
        g_assert_cmpuint(a.rtr & common, ==, a.rtr);
    }
    if (ini->enhanced) {
        /* Nobody asks more of the other than that one serves. */
        g_assert_cmpuint(a.ord, ==, MIN(ini->ord, res->max_ird));
        g_assert_cmpuint(a.ord, <=, b.ird);
        g_assert_cmpuint(b.ord, ==, MIN(res->ord, ini->ird));
        g_assert_cmpuint(b.ord, <=, a.ird);
    } else {
        g_assert_cmpuint(a.ord, ==, ini->ord);
        g_assert_cmpuint(b.ird, ==, res->ird);
    }

    reply.reject = true;
    reply.data = (const uint8_t *)"no";
    reply.data_len = 2;
    len = mpa_put(&reply, wire);
    g_assert_cmpint(get_all(MPA_REPLY, len, &got), ==, IWARP_OK);
    g_assert_cmpint(mpa_conclude(ini, &got, &a), ==, IWARP_OK);
    g_assert_true(a.rejected);
    g_assert_cmpmem(got.data, got.data_len, "no", 2);
}

static void test_combinations(void)
{
    static const uint16_t depth[] = {0, 1, 16, 0x3ffe};

    for (unsigned bits = 0; bits < 1u << 11; bits++) {
        for (unsigned d = 0; d < 256; d++) {
            struct mpa_config ini = {
                .enhanced = bits & 1,
                .p2p = bits & 2,
                .crc = bits & 4,
                .rtr = bits >> 5 & 7,
                .ird = depth[d & 3],
                .max_ird = depth[d & 3],
                .ord = depth[d >> 2 & 3],
            };
            struct mpa_config res = {
                .crc = bits & 8,
                .rtr = bits >> 8 & 7,
                .ird = depth[d >> 4 & 3],
                .max_ird = depth[d >> 4 & 3],
                .ord = depth[d >> 6 & 3],
            };

            /* All combinations of the bits once, those of the depths 64 times. */
            if (d % 32 == bits % 32) {
                talk(&ini, &res, bits & 16);
            }
        }
    }
}

/* What other implementations answer. */
static void test_others(void)
{
    struct mpa_config own = {.enhanced = true,
                             .crc = true,
                             .p2p = true,
                             .rtr = MPA_RTR_WRITE | MPA_RTR_READ,
                             .ird = 4,
                             .max_ird = 8,
                             .ord = 16};
    struct mpa_frame r = {.kind = MPA_REPLY,
                          .revision = 2,
                          .enhanced = true,
                          .p2p = true,
                          .rtr = MPA_RTR_READ,
                          .ird = 8,
                          .ord = 4};
    struct mpa_agreed a;

    g_assert_cmpint(mpa_conclude(&own, &r, &a), ==, IWARP_OK);
    g_assert_cmpuint(a.rtr, ==, MPA_RTR_READ);
    g_assert_cmpuint(a.ord, ==, 8);
    g_assert_cmpuint(a.ird, ==, 4);
    g_assert_true(a.crc);
    /* It needs more than was offered: some can be had. */
    r.ord = 8;
    g_assert_cmpint(mpa_conclude(&own, &r, &a), ==, IWARP_OK);
    g_assert_cmpuint(a.ird, ==, 8);
    r.ord = 9;
    g_assert_cmpint(mpa_conclude(&own, &r, &a), ==, MPA_SMALL_IRD);
    r.ord = 4;
    /* All that it takes is a Send. */
    r.rtr = MPA_RTR_SEND;
    g_assert_cmpint(mpa_conclude(&own, &r, &a), ==, MPA_NO_RTR);
    /* A Read without a slot for it. */
    r.rtr = MPA_RTR_READ;
    r.ird = 0;
    g_assert_cmpint(mpa_conclude(&own, &r, &a), ==, MPA_NO_RTR);
    /* A is not echoed. */
    r.p2p = false;
    g_assert_cmpint(mpa_conclude(&own, &r, &a), ==, IWARP_OK);
    g_assert_false(a.p2p);
    /* Depths are agreed on elsewhere. */
    r.ird = r.ord = MPA_DEPTH_BY_ULP;
    g_assert_cmpint(mpa_conclude(&own, &r, &a), ==, IWARP_OK);
    g_assert_cmpuint(a.ird, ==, 4);
    g_assert_cmpuint(a.ord, ==, 16);
    r.markers = true;
    g_assert_cmpint(mpa_conclude(&own, &r, &a), ==, IWARP_OK);
    g_assert_true(a.send_markers);
    r.enhanced = false;
    g_assert_cmpint(mpa_conclude(&own, &r, &a), ==, MPA_BAD_STARTUP);
    own.enhanced = false;
    g_assert_cmpint(mpa_conclude(&own, &r, &a), ==, IWARP_OK);
    r.enhanced = true;
    g_assert_cmpint(mpa_conclude(&own, &r, &a), ==, MPA_BAD_STARTUP);
}

static void test_depth_by_ulp(void)
{
    struct mpa_config own = {.crc = true, .ird = 4, .max_ird = 8, .ord = 16};
    struct mpa_frame q = {.kind = MPA_REQUEST,
                          .revision = 2,
                          .enhanced = true,
                          .ird = MPA_DEPTH_BY_ULP,
                          .ord = MPA_DEPTH_BY_ULP};
    struct mpa_frame r;
    struct mpa_agreed a;

    mpa_accept(&own, &q, &r, &a);
    g_assert_cmpuint(r.ird, ==, MPA_DEPTH_BY_ULP);
    g_assert_cmpuint(r.ord, ==, MPA_DEPTH_BY_ULP);
    g_assert_cmpuint(a.ird, ==, 4);
    g_assert_cmpuint(a.ord, ==, 16);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/mpa/bytes", test_bytes);
    g_test_add_func("/mpa/round-trip", test_round_trip);
    g_test_add_func("/mpa/bad", test_bad);
    g_test_add_func("/mpa/combinations", test_combinations);
    g_test_add_func("/mpa/others", test_others);
    g_test_add_func("/mpa/depth-by-ulp", test_depth_by_ulp);
    return g_test_run();
}
