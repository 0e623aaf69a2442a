/* SPDX-License-Identifier: GPL-2.0-or-later */
/* pagelist.c: the last few long lists are used again, for the same size alone. */
#include <glib.h>
#include <stdint.h>
#include <string.h>

#include "guest/pagelist.h"

#define KIB 1024u

static void *filled(size_t size)
{
    uint8_t *p = pagelist_alloc(size);

    g_assert_nonnull(p);
    memset(p, 0x5a, size);
    return p;
}

static void test_again(void)
{
    uint8_t *p = filled(2048 * KIB), *q;

    pagelist_free(p, 2048 * KIB);
    q = pagelist_alloc(1024 * KIB); /* not half of it */
    g_assert_true(q != p);
    g_assert_true(pagelist_alloc(2048 * KIB) == p);
    g_assert_cmpuint(p[2048 * KIB - 1], ==, 0x5a);
    pagelist_free(p, 2048 * KIB);
    pagelist_free(q, 1024 * KIB);
}

/* The fifth drives out the oldest. */
static void test_oldest(void)
{
    void *p[5];

    for (unsigned i = 0; i < 5; i++) {
        p[i] = filled(512 * KIB);
    }
    for (unsigned i = 0; i < 5; i++) {
        pagelist_free(p[i], 512 * KIB);
    }
    for (unsigned i = 1; i < 5; i++) {
        g_assert_true(filled(512 * KIB) == p[i]);
    }
    for (unsigned i = 1; i < 5; i++) {
        pagelist_free(p[i], 512 * KIB);
    }
}

/* Those of more than 1 GiB are not kept, and drive none out. */
static void test_large(void)
{
    void *p[4], *large;

    for (unsigned i = 0; i < 4; i++) {
        p[i] = filled(512 * KIB);
    }
    for (unsigned i = 0; i < 4; i++) {
        pagelist_free(p[i], 512 * KIB);
    }
    for (unsigned i = 0; i < 8; i++) {
        large = filled(64 * 1024 * KIB);
        memcpy((uint8_t *)large + 32 * 1024 * KIB, "mark", 5);
        pagelist_free(large, 64 * 1024 * KIB);
        large = pagelist_alloc(64 * 1024 * KIB);
        g_assert_nonnull(large);
        g_assert_cmpint(memcmp((uint8_t *)large + 32 * 1024 * KIB, "mark", 5), !=, 0);
        pagelist_free(large, 64 * 1024 * KIB);
    }
    for (unsigned i = 0; i < 4; i++) {
        g_assert_true(filled(512 * KIB) == p[i]);
    }
    for (unsigned i = 0; i < 4; i++) {
        pagelist_free(p[i], 512 * KIB);
    }
}

/* Any memory: what is there is lost, but at the ends, which others may share. */
static void test_give_back(void)
{
    const size_t size = 4096 * KIB + 100;
    g_autofree uint8_t *p = g_malloc(size);

    memset(p, 0x5a, size);
    pagelist_give_back(p, size);
    for (size_t i = 4 * KIB; i < size - 4 * KIB; i += KIB) {
        g_assert_cmpuint(p[i], ==, 0);
    }
    p[0] = p[size / 2] = p[size - 1] = 1;
    pagelist_give_back(p, 0);
    pagelist_give_back(p, 100);
    g_assert_cmpuint(p[0] + p[size / 2] + p[size - 1], ==, 3);
}

/* All sizes, more than are kept, in another order. */
static void test_many(void)
{
    enum { N = 64 };
    void *p[N];

    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < N; i++) {
            p[i] = filled((i + 1) * 33000);
        }
        for (unsigned i = 0; i < N; i++) {
            unsigned k = i * 37 % N;

            pagelist_free(p[k], (k + 1) * 33000);
        }
    }
    pagelist_free(NULL, 8);
    pagelist_free(NULL, 2048 * KIB);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/pagelist/again", test_again);
    g_test_add_func("/pagelist/oldest", test_oldest);
    g_test_add_func("/pagelist/large", test_large);
    g_test_add_func("/pagelist/many", test_many);
    g_test_add_func("/pagelist/give-back", test_give_back);
    return g_test_run();
}
