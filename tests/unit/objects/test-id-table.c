/* SPDX-License-Identifier: GPL-2.0-or-later */
/* id_table.c: indices, generations, exhaustion. */
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

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/verbs/id_table/reserve", test_reserve);
    g_test_add_func("/verbs/id_table/bounds", test_bounds);
    g_test_add_func("/verbs/id_table/generation", test_generation);
    return g_test_run();
}
