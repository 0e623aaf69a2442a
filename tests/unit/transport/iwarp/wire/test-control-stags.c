/* SPDX-License-Identifier: GPL-2.0-or-later */
/* control_stags.c: the bytes of each kind, the way back, and what is none of ours. */
#include <glib.h>
#include <string.h>

#include "transport/iwarp/wire/control_stags.h"

static void test_bytes(void)
{
    static const struct {
        struct ctl c;
        const char *bytes;
    } known[] = {
        {{CTL_ACK, 0x01020304050607, 0}, "\xc1\x40\0\0\0\x10\0\1\2\3\4\5\6\7"},
        {{CTL_RNR, 5, 31}, "\xc1\x40\0\0\0\x11\x1f\0\0\0\0\0\0\5"},
        {{CTL_NAK, CTL_SEQ_MAX, PVRDMA_WC_REM_ACCESS_ERR},
         "\xc1\x40\0\0\0\x12\x0a\xff\xff\xff\xff\xff\xff\xff"},
        {{CTL_RESTART, 0, 0}, "\xc1\x40\0\0\0\x13\0\0\0\0\0\0\0\0"},
        {{CTL_READY, 7, 0}, "\xc1\x40\0\0\0\x14\0\0\0\0\0\0\0\7"},
        {{CTL_PSN, 0xffffff, 0}, "\xc1\x40\0\0\0\x15\0\0\0\0\0\xff\xff\xff"},
        {{CTL_DROP, 9, 0}, "\xc1\x40\0\0\0\x16\0\0\0\0\0\0\0\x09"},
    };

    for (unsigned i = 0; i < G_N_ELEMENTS(known); i++) {
        struct rdmap_segment s, back;
        uint8_t out[RDMAP_MAX_HEAD];
        struct ctl c;

        ctl_begin(&known[i].c, &s);
        g_assert_cmpmem(out, rdmap_put(&s, out), known[i].bytes, 14);
        g_assert_cmpint(rdmap_get(out, 14, 14, RDMAP_STANDARD, &back), ==, IWARP_OK);
        g_assert_true(ctl_is(&back));
        g_assert_cmpint(ctl_get(&back, &c), ==, IWARP_OK);
        g_assert_cmpuint(c.kind, ==, known[i].c.kind);
        g_assert_cmpuint(c.seq, ==, known[i].c.seq);
        g_assert_cmpuint(c.arg, ==, known[i].c.arg);
    }
}

static enum iwarp_error get(uint32_t stag, uint8_t arg, uint32_t ulpdu_len, bool last)
{
    struct rdmap_segment s, back;
    uint8_t out[RDMAP_MAX_HEAD];
    struct ctl c;

    rdmap_begin(&s, RDMAP_WRITE);
    s.ddp.stag = stag;
    s.ddp.to = (uint64_t)arg << 56 | 1;
    s.ddp.last = last;
    rdmap_put(&s, out);
    g_assert_cmpint(rdmap_get(out, 14, ulpdu_len, RDMAP_STANDARD, &back), ==, IWARP_OK);
    g_assert_true(ctl_is(&back) == (stag != CTL_STAG_RTR && stag < CTL_FIRST_KEY));
    return ctl_get(&back, &c);
}

static void test_refused(void)
{
    for (uint32_t stag = 0; stag < 0x110; stag++) {
        g_assert_cmpint(get(stag, stag == 0x12 ? PVRDMA_WC_REM_OP_ERR : 0, 14, true), ==,
                        stag >= 0x10 && stag < 0x17 ? IWARP_OK : DDP_TAGGED_BAD_STAG);
    }
    g_assert_cmpint(get(0x10, 0, 15, true), ==, DDP_TAGGED_BAD_BOUNDS);
    g_assert_cmpint(get(0x10, 0, 14, false), ==, DDP_TAGGED_BAD_BOUNDS);
    g_assert_cmpint(get(0x10, 1, 14, true), ==, RDMAP_STREAM_CATASTROPHIC);
    g_assert_cmpint(get(0x11, 32, 14, true), ==, RDMAP_STREAM_CATASTROPHIC);
    g_assert_cmpint(get(0x12, PVRDMA_WC_SUCCESS, 14, true), ==,
                    RDMAP_STREAM_CATASTROPHIC);
    g_assert_cmpint(get(0x12, PVRDMA_WC_WR_FLUSH_ERR, 14, true), ==,
                    RDMAP_STREAM_CATASTROPHIC);
    g_assert_cmpint(get(0x13, 1, 14, true), ==, RDMAP_STREAM_CATASTROPHIC);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/ctl/bytes", test_bytes);
    g_test_add_func("/ctl/refused", test_refused);
    return g_test_run();
}
