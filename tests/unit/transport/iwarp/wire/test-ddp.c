/* SPDX-License-Identifier: GPL-2.0-or-later */
/* ddp.c: headers, messages cut into segments and back, order in a queue. */
#include <glib.h>
#include <string.h>

#include "transport/iwarp/wire/ddp.h"

static void same(const struct ddp_header *a, const struct ddp_header *b)
{
    g_assert_cmpuint(a->tagged, ==, b->tagged);
    g_assert_cmpuint(a->last, ==, b->last);
    g_assert_cmphex(a->ulp, ==, b->ulp);
    g_assert_cmphex(a->stag, ==, b->stag);
    g_assert_cmphex(a->to, ==, b->to);
    g_assert_cmphex(a->qn, ==, b->qn);
    g_assert_cmphex(a->msn, ==, b->msn);
    g_assert_cmphex(a->mo, ==, b->mo);
}

static void test_bytes(void)
{
    static const struct {
        struct ddp_header h;
        const char *bytes;
        size_t len;
    } known[] = {
        {{.tagged = true,
          .last = true,
          .ulp = 0x40,
          .stag = 0x01020304,
          .to = 0x1122334455667788},
         "\xc1\x40\1\2\3\4\x11\x22\x33\x44\x55\x66\x77\x88",
         14},
        {{.tagged = true, .ulp = 0x42, .stag = 1, .to = 2},
         "\x81\x42\0\0\0\1\0\0\0\0\0\0\0\2",
         14},
        {{.last = true,
          .ulp = 0x44,
          .stag = 0xaabbccdd,
          .qn = 1,
          .msn = 0x01020304,
          .mo = 0x05060708},
         "\x41\x44\xaa\xbb\xcc\xdd\0\0\0\1\1\2\3\4\5\6\7\x08",
         18},
        {{.ulp = 0x43, .msn = 7}, "\x01\x43\0\0\0\0\0\0\0\0\0\0\0\7\0\0\0\0", 18},
    };
    uint8_t out[DDP_MAX_LEN];
    struct ddp_header back;

    for (unsigned i = 0; i < G_N_ELEMENTS(known); i++) {
        g_assert_cmpuint(ddp_put(&known[i].h, out), ==, known[i].len);
        g_assert_cmpmem(out, known[i].len, known[i].bytes, known[i].len);
        g_assert_cmpint(ddp_get(out, known[i].len, &back), ==, IWARP_OK);
        same(&back, &known[i].h);
        /* Reserved bits are not looked at. */
        out[0] |= 0x3c;
        g_assert_cmpint(ddp_get(out, known[i].len, &back), ==, IWARP_OK);
        same(&back, &known[i].h);
        for (size_t n = 0; n < known[i].len; n++) {
            g_autofree uint8_t *part = g_memdup2(out, n);

            g_assert_cmpint(ddp_get(part, n, &back), ==, RDMAP_STREAM_CATASTROPHIC);
        }
        for (unsigned dv = 0; dv < 4; dv++) {
            out[0] = (out[0] & ~3u) | dv;
            g_assert_cmpint(ddp_get(out, known[i].len, &back), ==,
                            dv == 1             ? IWARP_OK
                            : known[i].h.tagged ? DDP_TAGGED_BAD_VERSION
                                                : DDP_UNTAGGED_BAD_VERSION);
        }
    }
}

/* Cut a message, put its segments where they say, and it is the same again. */
static void cut(bool tagged, uint32_t len)
{
    const struct ddp_header first = {.tagged = tagged,
                                     .ulp = tagged ? 0x40 : 0x43,
                                     .stag = 9,
                                     .to = tagged ? UINT64_MAX - len : 0,
                                     .msn = tagged ? 0 : 5};
    g_autofree uint8_t *in = g_malloc(len + 1), *out = g_malloc0(len + 1);
    struct ddp_queue q = {.msn = 5};
    struct ddp_header h = first, prev = {0}, got;
    uint32_t prev_n = 0, at = 0, segments = 0;
    uint8_t bytes[DDP_MAX_LEN];

    for (uint32_t i = 0; i < len; i++) {
        in[i] = (uint8_t)g_test_rand_int();
    }
    for (; !segments || at < len; segments++) {
        uint32_t mulpdu = (uint32_t)g_test_rand_int_range(128, 2000);
        uint32_t n = ddp_cut(&h, len - at, true, mulpdu), room = ddp_room(tagged, mulpdu);

        g_assert_cmpuint(n, <=, room);
        g_assert_true(n || !len);
        g_assert_cmpuint((len - at - n) % room, ==, 0); /* all behind it are full */
        g_assert_true(h.last == (n == len - at));
        ddp_put(&h, bytes);
        g_assert_cmpint(ddp_get(bytes, ddp_len(tagged), &got), ==, IWARP_OK);
        same(&got, &h);
        if (segments) {
            g_assert_true(ddp_continues(&prev, prev_n, &got));
        }
        if (!tagged) {
            g_assert_cmpint(ddp_queue_take(&q, &got, n, len), ==, IWARP_OK);
        }
        memcpy(out + (tagged ? got.to - first.to : got.mo), in + at, n);
        ddp_advance(&h, n);
        at += n;
        prev = got;
        prev_n = n;
    }
    g_assert_true(prev.last);
    g_assert_cmpuint(at, ==, len);
    g_assert_cmpmem(in, len, out, len);
    g_assert_cmpuint(q.msn, ==, tagged ? 5 : 6);
    g_assert_cmpuint(q.mo, ==, 0);
    if (len == 0) {
        g_assert_cmpuint(segments, ==, 1);
    }
}

static void test_segments(void)
{
    for (unsigned i = 0; i < 300; i++) {
        uint32_t len = i < 3 ? i : (uint32_t)g_test_rand_int_range(0, 20000);

        cut(false, len);
        cut(true, len);
    }
}

static void test_continues(void)
{
    struct ddp_header a = {.tagged = true, .ulp = 0x40, .stag = 9, .to = 100};
    struct ddp_header b = {.tagged = true, .ulp = 0x40, .stag = 9, .to = 110};
    struct ddp_header c;

    g_assert_true(ddp_continues(&a, 10, &b));
    g_assert_false(ddp_continues(&a, 11, &b));
    c = b, c.stag = 8;
    g_assert_false(ddp_continues(&a, 10, &c));
    c = b, c.ulp = 0x42;
    g_assert_false(ddp_continues(&a, 10, &c));
    c = b, c.tagged = false;
    g_assert_false(ddp_continues(&a, 10, &c));
    c = a, c.last = true;
    g_assert_false(ddp_continues(&c, 10, &b));
    /* Around the end. */
    a.to = UINT64_MAX - 4;
    b.to = 5;
    g_assert_false(ddp_continues(&a, 10, &b));

    a = (struct ddp_header){.ulp = 0x43, .msn = 3, .mo = 0};
    b = (struct ddp_header){.ulp = 0x43, .msn = 3, .mo = 64};
    g_assert_true(ddp_continues(&a, 64, &b));
    g_assert_false(ddp_continues(&a, 63, &b));
    c = b, c.msn = 4;
    g_assert_false(ddp_continues(&a, 64, &c));
    c = b, c.qn = 1;
    g_assert_false(ddp_continues(&a, 64, &c));
    a.mo = UINT32_MAX - 9;
    b.mo = 0;
    g_assert_false(ddp_continues(&a, 10, &b));
}

static void test_queue(void)
{
    struct ddp_queue q = DDP_QUEUE_INIT;
    struct ddp_header h = {.msn = 1};

    g_assert_cmpint(ddp_queue_take(&q, &h, 100, 200), ==, IWARP_OK);
    /* Again, a hole, another message: refused, and nothing changes. */
    g_assert_cmpint(ddp_queue_take(&q, &h, 100, 200), ==, DDP_UNTAGGED_BAD_MO);
    h.mo = 101;
    g_assert_cmpint(ddp_queue_take(&q, &h, 1, 200), ==, DDP_UNTAGGED_BAD_MO);
    h.msn = 2;
    h.mo = 0;
    g_assert_cmpint(ddp_queue_take(&q, &h, 1, 200), ==, DDP_UNTAGGED_BAD_MSN);
    h.msn = 1;
    h.mo = 100;
    g_assert_cmpint(ddp_queue_take(&q, &h, 101, 200), ==, DDP_UNTAGGED_TOO_LONG);
    g_assert_cmpint(ddp_queue_take(&q, &h, UINT32_MAX, 200), ==, DDP_UNTAGGED_TOO_LONG);
    g_assert_cmpint(ddp_queue_take(&q, &h, 1, 99), ==, DDP_UNTAGGED_TOO_LONG);
    h.last = true;
    g_assert_cmpint(ddp_queue_take(&q, &h, 100, 200), ==, IWARP_OK);
    g_assert_cmpuint(q.msn, ==, 2);
    /* The number wraps to 0. */
    q.msn = h.msn = UINT32_MAX;
    h.mo = 0;
    g_assert_cmpint(ddp_queue_take(&q, &h, 0, 0), ==, IWARP_OK);
    g_assert_cmpuint(q.msn, ==, 0);
    /* Nothing is longer than 2^32 - 1. */
    q = (struct ddp_queue){.msn = 0, .mo = UINT32_MAX - 1};
    h = (struct ddp_header){.msn = 0, .mo = UINT32_MAX - 1};
    g_assert_cmpint(ddp_queue_take(&q, &h, 2, UINT32_MAX), ==, DDP_UNTAGGED_TOO_LONG);
    g_assert_cmpint(ddp_queue_take(&q, &h, 1, UINT32_MAX), ==, IWARP_OK);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/ddp/bytes", test_bytes);
    g_test_add_func("/ddp/segments", test_segments);
    g_test_add_func("/ddp/continues", test_continues);
    g_test_add_func("/ddp/queue", test_queue);
    return g_test_run();
}
