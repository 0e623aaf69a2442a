/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * crc32c.c: known sums, and the same sum however the bytes are cut.
 */
#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "transport/iwarp/wire/crc32c.h"

/* One bit at a time. */
static uint32_t model(const uint8_t *p, size_t n)
{
    uint32_t crc = 0xffffffffu;

    while (n--) {
        crc ^= *p++;
        for (unsigned i = 0; i < 8; i++) {
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
        }
    }
    return crc;
}

static void check(const void *data, size_t n, const uint8_t expected[4])
{
    uint8_t out[4];
    uint32_t crc = crc32c_add(CRC32C_INIT, data, n);

    crc32c_put(crc, out);
    g_assert_cmpmem(out, 4, expected, 4);
    g_assert_true(crc32c_is(crc, expected));
    out[3] ^= 0x80;
    g_assert_false(crc32c_is(crc, out));
}

/* RFC 3720 B.4, and the check value of the polynomial. */
static void test_known(void)
{
    uint8_t up[32], down[32], zero[32] = {0}, ones[32];

    for (unsigned i = 0; i < 32; i++) {
        up[i] = i;
        down[i] = 31 - i;
        ones[i] = 0xff;
    }
    check(zero, 32, (const uint8_t[]){0xaa, 0x36, 0x91, 0x8a});
    check(ones, 32, (const uint8_t[]){0x43, 0xab, 0xa8, 0x62});
    check(up, 32, (const uint8_t[]){0x4e, 0x79, 0xdd, 0x46});
    check(down, 32, (const uint8_t[]){0x5c, 0xdb, 0x3f, 0x11});
    check("123456789", 9, (const uint8_t[]){0x83, 0x92, 0x06, 0xe3});
    check("", 0, (const uint8_t[]){0, 0, 0, 0});
}

static void test_pieces(void)
{
    enum { SIZE = 20000 };
    g_autofree uint8_t *data = g_malloc(SIZE);

    for (unsigned i = 0; i < SIZE; i++) {
        data[i] = (uint8_t)g_test_rand_int();
    }
    for (unsigned round = 0; round < 200; round++) {
        size_t from = (size_t)g_test_rand_int_range(0, 64);
        size_t n = (size_t)g_test_rand_int_range(0, SIZE - 64);
        size_t a = n ? (size_t)g_test_rand_int() % n : 0;
        size_t b = n ? a + (size_t)g_test_rand_int() % (n - a) : 0;
        struct iovec iov[] = {
            {data + from, a},
            {NULL, 0},
            {data + from + a, b - a},
            {data + from + b, n - b},
        };
        uint32_t right = model(data + from, n), crc = CRC32C_INIT;

        g_assert_cmphex(crc32c_add(CRC32C_INIT, data + from, n), ==, right);
        for (unsigned i = 0; i < G_N_ELEMENTS(iov); i++) {
            crc = crc32c_add(crc, iov[i].iov_base, iov[i].iov_len);
        }
        g_assert_cmphex(crc, ==, right);
    }
}

/*
 * Upper halves of vector registers that stay in use make all code after it slow.  The
 * processor tells which it thinks are: of AVX (bit 2) and of AVX-512 (bit 6).
 */
static void test_registers(void)
{
#ifdef __x86_64__
    const uint32_t upper = 1u << 2 | 1u << 6;
    static uint8_t data[4096];
    unsigned a = 0, b, c, d;
    uint32_t used;

    if (!__builtin_cpu_supports("avx") || !__get_cpuid_count(0xd, 1, &a, &b, &c, &d) ||
        !(a & 4)) {
        g_test_skip("the processor does not tell");
        return;
    }
    __asm__ volatile("vpcmpeqd %%xmm0, %%xmm0, %%xmm0\n\t"
                     "vinsertf128 $1, %%xmm0, %%ymm0, %%ymm0\n\t"
                     "xgetbv\n\t"
                     "vzeroupper"
                     : "=a"(used), "=d"(d)
                     : "c"(1)
                     : "xmm0");
    g_assert_cmphex(used & 1u << 2, !=, 0);
    for (size_t n = 1; n <= sizeof(data); n *= 2) {
        crc32c_add(CRC32C_INIT, data, n);
        __asm__ volatile("xgetbv" : "=a"(used), "=d"(d) : "c"(1));
        g_assert_cmphex(used & upper, ==, 0);
    }
#else
    g_test_skip("of x86 only");
#endif
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/crc32c/known", test_known);
    g_test_add_func("/crc32c/pieces", test_pieces);
    g_test_add_func("/crc32c/registers", test_registers);
    return g_test_run();
}
