/* SPDX-License-Identifier: GPL-2.0-or-later */
/* private_data.c: its bytes, the way back, and what is none of ours or says what cannot
 * be. */
#include <glib.h>
#include <string.h>

#include "pvrdma/abi.h"
#include "transport/iwarp/wire/control_stags.h"
#include "transport/iwarp/wire/private_data.h"

static const struct hello full = {
    .incarnation = 0x0102030405060708,
    .seq = 0x1112131415161718 & CTL_SEQ_START_MAX,
    .psn = 0xabcdef,
    .mtu = PVRDMA_MTU_1024,
    .heard = 0x2122232425262728,
    .got = 0x3132333435363738 & CTL_SEQ_START_MAX,
    .failed_status = PVRDMA_WC_REM_ACCESS_ERR,
    .failed_seq = 0x4142434445464748,
    .unreliable = true,
};

static struct hello a_hello(void)
{
    struct hello h = full;

    memcpy(h.token, "0123456789abcdef", 16);
    return h;
}

static void test_bytes(void)
{
    static const uint8_t bytes[HELLO_SIZE] = "PVR1\x0a\3\1\0"
                                             "0123456789abcdef"
                                             "\1\2\3\4\5\6\7\x8"
                                             "\0\x12\x13\x14\x15\x16\x17\x18"
                                             "\x21\x22\x23\x24\x25\x26\x27\x28"
                                             "\0\x32\x33\x34\x35\x36\x37\x38"
                                             "\x41\x42\x43\x44\x45\x46\x47\x48"
                                             "\0\xab\xcd\xef";
    struct hello h = a_hello(), back;
    uint8_t out[HELLO_SIZE];

    hello_put(&h, out);
    g_assert_cmpmem(out, sizeof(out), bytes, sizeof(bytes));
    g_assert_true(hello_get(out, sizeof(out), &back));
    g_assert_cmpmem(back.token, 16, h.token, 16);
    g_assert_cmphex(back.incarnation, ==, h.incarnation);
    g_assert_cmphex(back.seq, ==, h.seq);
    g_assert_cmphex(back.psn, ==, h.psn);
    g_assert_cmpuint(back.mtu, ==, h.mtu);
    g_assert_cmphex(back.heard, ==, h.heard);
    g_assert_cmphex(back.got, ==, h.got);
    g_assert_cmpuint(back.failed_status, ==, h.failed_status);
    g_assert_cmphex(back.failed_seq, ==, h.failed_seq);
    g_assert_true(back.unreliable);
    h.unreliable = false;
    hello_put(&h, out);
    g_assert_true(hello_get(out, sizeof(out), &back));
    g_assert_false(back.unreliable);
}

/* What is reserved is not looked at. */
static void test_reserved(void)
{
    struct hello h = a_hello(), back;
    uint8_t out[HELLO_SIZE];

    hello_put(&h, out);
    out[6] |= 0xfe;
    out[7] = 0xff;
    memset(out + 68, 0xff, 8);
    g_assert_true(hello_get(out, sizeof(out), &back));
    g_assert_cmphex(back.psn, ==, h.psn);
}

static bool takes(struct hello h)
{
    uint8_t out[HELLO_SIZE];
    struct hello back;

    hello_put(&h, out);
    return hello_get(out, sizeof(out), &back);
}

#define WITH(field, value)             \
    ({                                 \
        struct hello with = a_hello(); \
                                       \
        with.field = (value);          \
        with;                          \
    })

static void test_limits(void)
{
    g_assert_true(takes(a_hello()));
    g_assert_false(takes(WITH(incarnation, 0)));
    for (unsigned status = 0; status < 256; status++) {
        g_assert_true(takes(WITH(failed_status, (uint8_t)status)) ==
                      (status == 0 || (status >= PVRDMA_WC_REM_INV_REQ_ERR &&
                                       status <= PVRDMA_WC_REM_OP_ERR)));
    }
    for (unsigned mtu = 0; mtu < 256; mtu++) {
        g_assert_true(takes(WITH(mtu, (uint8_t)mtu)) ==
                      (mtu >= PVRDMA_MTU_256 && mtu <= PVRDMA_MTU_4096));
    }
    g_assert_true(takes(WITH(psn, 0xffffff)));
    g_assert_false(takes(WITH(psn, 0x1000000)));
    /* Who counts on from there never gets to the end. */
    g_assert_true(takes(WITH(seq, CTL_SEQ_START_MAX)));
    g_assert_false(takes(WITH(seq, CTL_SEQ_START_MAX + 1)));
    g_assert_false(takes(WITH(seq, UINT64_MAX)));
    g_assert_true(takes(WITH(got, CTL_SEQ_START_MAX)));
    g_assert_false(takes(WITH(got, CTL_SEQ_START_MAX + 1)));
    g_assert_false(takes(WITH(got, UINT64_MAX)));
}

static void test_frame(void)
{
    uint8_t out[HELLO_SIZE + 1] = {0};
    struct hello h = a_hello(), back;

    hello_put(&h, out);
    for (size_t len = 0; len <= sizeof(out); len++) {
        uint8_t *part = g_memdup2(out, len); /* nothing behind it, for the sanitizer */

        g_assert_true(hello_get(part, len, &back) == (len == HELLO_SIZE));
        g_free(part);
    }
    for (unsigned bit = 0; bit < 32; bit++) {
        out[bit / 8] ^= (uint8_t)(1 << bit % 8);
        g_assert_false(hello_get(out, HELLO_SIZE, &back));
        out[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/hello/bytes", test_bytes);
    g_test_add_func("/hello/reserved", test_reserved);
    g_test_add_func("/hello/limits", test_limits);
    g_test_add_func("/hello/frame", test_frame);
    return g_test_run();
}
