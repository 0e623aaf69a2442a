/* SPDX-License-Identifier: GPL-2.0-or-later */
/* id_table.c: indices, generations, exhaustion. */
#include <time.h>

#include "objects/objects.h"

static void test_reserve(void)
{
    struct id_table t;
    int objects[3];

    g_assert_true(id_table_init(&t, 4));
    for (uint32_t i = 1; i <= 3; i++) {
        g_assert_cmpuint(id_table_reserve(&t), ==, i);
        g_assert_null(id_table_get(&t, i));
        id_table_publish(&t, i, &objects[i - 1]);
        g_assert_true(id_table_get(&t, i) == &objects[i - 1]);
    }
    g_assert_cmpuint(id_table_reserve(&t), ==, 0);
    g_assert_cmpuint(t.used, ==, 3);

    id_table_release(&t, 2);
    g_assert_null(id_table_get(&t, 2));
    g_assert_cmpuint(id_table_reserve(&t), ==, 2);
    id_table_fini(&t);
}

static void test_bounds(void)
{
    struct id_table t;

    g_assert_true(id_table_init(&t, 2));
    g_assert_null(id_table_get(&t, 0));
    g_assert_null(id_table_get(&t, 2));
    g_assert_null(id_table_get(&t, UINT32_MAX));
    id_table_fini(&t);
    /* A table that was never made has no objects and no room. */
    g_assert_null(id_table_get(&t, 1));
    g_assert_cmpuint(id_table_reserve(&t), ==, 0);
}

/* An index comes back late and with another generation, never 0. */
static void test_generation(void)
{
    struct id_table t;
    int object;

    g_assert_true(id_table_init(&t, 3));
    for (unsigned round = 0; round < 600; round++) {
        uint32_t i = id_table_reserve(&t);

        g_assert_cmpuint(i, ==, 1 + round % 2);
        g_assert_cmpuint(t.gen[i], ==, round / 2 % 255 + 1);
        id_table_publish(&t, i, &object);
        id_table_release(&t, i);
    }
    g_assert_cmpuint(t.used, ==, 0);
    id_table_fini(&t);
}

/* As a plain search finds them, whatever the table's size is. */
static void test_model(void)
{
    static const uint32_t sizes[] = {2, 63, 64, 65, 128, 4095, 4096, 4097, 300000};
    static int object;

    for (unsigned k = 0; k < G_N_ELEMENTS(sizes); k++) {
        g_autoptr(GRand) r = g_rand_new_with_seed(k);
        g_autofree bool *used = g_new0(bool, sizes[k]);
        uint32_t size = sizes[k], next = 1, n = 0, most = size - 1;
        struct id_table t;

        g_assert_true(id_table_init(&t, size));
        for (unsigned step = 0; step < 3 * MIN(size, 5000); step++) {
            uint32_t i = next, drop = (uint32_t)g_rand_int_range(r, 0, (gint32)size);

            while (n < most && used[i]) {
                i = i + 1 < size ? i + 1 : 1;
            }
            g_assert_cmpuint(id_table_reserve(&t), ==, n < most ? i : 0);
            if (n < most) {
                id_table_publish(&t, i, &object);
                used[i] = true;
                next = i + 1 < size ? i + 1 : 1;
                n++;
            }
            if (used[drop] && step % 2) {
                id_table_release(&t, drop);
                used[drop] = false;
                n--;
            }
        }
        id_table_fini(&t);
    }
}

static double spent_us(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
}

/* What a reservation costs in a table of which one place is free; us. */
static double cost_when_full(uint32_t size)
{
    static int object;
    struct id_table t;
    double begin;
    uint32_t i;

    g_assert_true(id_table_init(&t, size));
    while ((i = id_table_reserve(&t))) {
        id_table_publish(&t, i, &object);
    }
    id_table_release(&t, 1);
    begin = spent_us();
    for (unsigned k = 0; k < 200; k++) {
        i = id_table_reserve(&t);
        g_assert_cmpuint(i, ==, 1);
        id_table_publish(&t, i, &object);
        id_table_release(&t, i);
    }
    begin = spent_us() - begin;
    id_table_fini(&t);
    return begin / 200;
}

/* By a search it would be 10,000 times as much. */
static void test_full(void)
{
    double small = cost_when_full(64), large = cost_when_full(1 << 20);

    g_test_message("%.3f us in a table of 64, %.3f us in one of 1,048,576", small, large);
    g_assert_cmpfloat(large, <, 100 * small + 10);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/verbs/id_table/reserve", test_reserve);
    g_test_add_func("/verbs/id_table/bounds", test_bounds);
    g_test_add_func("/verbs/id_table/generation", test_generation);
    g_test_add_func("/verbs/id_table/model", test_model);
    g_test_add_func("/verbs/id_table/full", test_full);
    return g_test_run();
}
