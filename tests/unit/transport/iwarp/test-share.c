/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Unit tests: what each VM may have of what is everybody's. */
#include "transport/iwarp/share.h"

#include <glib.h>

#define PART 4u
#define ALL  (4 * PART * SHARE_PARTS)

static uint32_t take_all(struct share *s)
{
    uint32_t n = 0;

    while (share_take(s)) {
        n++;
    }
    g_assert_cmpuint(s->n, >=, n);
    return n;
}

static void give_all(struct share *s)
{
    while (s->n) {
        share_give(s);
    }
}

/* One alone has half of what is common, and leaves the other half. */
static void test_alone(void)
{
    struct share_pool pool = {.max = ALL};
    struct share a = {.pool = &pool}, b = {.pool = &pool};

    g_assert_cmpuint(take_all(&a), ==, PART + ALL * 3 / 8);
    g_assert_cmpuint(take_all(&b), ==, PART + ALL * 3 / 16);
    give_all(&a);
    g_assert_cmpuint(take_all(&b), ==, ALL * 3 / 16);
    give_all(&b);
    g_assert_cmpuint(pool.beyond, ==, 0);
}

/* Step by step they have the same. */
static void test_together(void)
{
    struct share_pool pool = {.max = ALL};
    struct share s[3] = {{.pool = &pool}, {.pool = &pool}, {.pool = &pool}};
    bool any;

    do {
        any = false;
        for (unsigned i = 0; i < 3; i++) {
            any |= share_take(&s[i]);
        }
    } while (any);
    for (unsigned i = 0; i < 3; i++) {
        g_assert_cmpuint(s[i].n, >=, PART + ALL * 3 / 16 - 1);
        g_assert_cmpuint(s[i].n, <=, PART + ALL * 3 / 16);
    }
}

/* Whatever the others have taken, each has its part; and there is no more than there is.
 */
static void test_part(void)
{
    static struct share s[SHARE_PARTS];
    struct share_pool pool = {.max = ALL + 3};
    uint64_t sum = 0;

    for (unsigned round = 0; round < 2; round++) {
        for (unsigned i = 0; i < SHARE_PARTS; i++) {
            s[i].pool = &pool;
            take_all(&s[i]);
            g_assert_cmpuint(s[i].n, >=, PART);
        }
        sum = 0;
        for (unsigned i = 0; i < SHARE_PARTS; i++) {
            sum += s[i].n;
        }
        g_assert_cmpuint(sum, <=, pool.max);
        give_all(&s[0]);
    }
}

/* Where there are less than a part for each. */
static void test_few(void)
{
    struct share_pool pool = {.max = 1}, none = {.max = 0};
    struct share a = {.pool = &pool}, b = {.pool = &pool}, c = {.pool = &none};

    g_assert_cmpuint(take_all(&a), ==, 1);
    g_assert_cmpuint(take_all(&b), ==, 0);
    g_assert_cmpuint(take_all(&c), ==, 0);
    give_all(&a);
    g_assert_cmpuint(take_all(&b), ==, 1);
}

static void test_host(void)
{
    g_assert_cmpuint(share_of_descriptors(), >, 0);
    g_assert_cmpuint(share_of_ports(), >, 0);
    g_assert_cmpuint(share_of_ports(), <=, 65536);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/share/alone", test_alone);
    g_test_add_func("/share/together", test_together);
    g_test_add_func("/share/part", test_part);
    g_test_add_func("/share/few", test_few);
    g_test_add_func("/share/host", test_host);
    return g_test_run();
}
