/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Which saved states are known to be of the past, and for how long. */
#include <glib.h>

#include "directory/directory.h"
#include "vm/attach.h"

#define SECOND 1000000000ull
/* As many as are known of one VM, and of all (restored.c). */
#define OF_VM 32u
#define ALL   1024u

static struct vm_config cfg = {.name = (char *)"a", .network = (char *)"blue"};
static char peers[1];
#define PEER ((struct peer *)(void *)&peers[0])

static const struct pvrdma_gid one = {.raw = {0xfe, 0x80, [15] = 1}},
                               two = {.raw = {0xfe, 0x80, [15] = 2}};

static struct vm vm_like(uint64_t owner, uint64_t serial)
{
    return (struct vm){.cfg = &cfg,
                       .id = (uint32_t)serial,
                       .serial = serial,
                       .identity = {.owner = {owner, 0}, .generation = 3}};
}

static bool is_past(uint64_t owner, uint64_t clock)
{
    struct vm vm = vm_like(owner, 99);

    return directory_is_past(&vm, clock);
}

static void ran_on(uint64_t owner, uint64_t clock, uint64_t serial)
{
    struct vm vm = vm_like(owner, serial);

    directory_ran_on(&vm, clock);
}

/* Until nothing is left. */
static void wait_none(void)
{
    gint64 end = g_get_monotonic_time() + 30 * G_USEC_PER_SEC;
    struct directory_stats st;

    do {
        g_assert_cmpint(g_get_monotonic_time(), <, end);
        g_main_context_iteration(NULL, FALSE);
        g_usleep(500);
        directory_get_stats(&st);
    } while (st.left > 0);
}

static void test_ran_on(void)
{
    struct vm other = vm_like(7, 1);

    directory_init();
    g_assert_false(is_past(7, 5));
    ran_on(7, 5, 1);
    g_assert_true(is_past(7, 5));
    g_assert_false(is_past(7, 6));
    g_assert_false(is_past(8, 5));
    other.identity.owner[1] = 1;
    g_assert_false(directory_is_past(&other, 5));
    directory_fini();
    directory_init();
    g_assert_false(is_past(7, 5));
    directory_fini();
}

/* One that was waited for in vain; and one that was not, since it came, or another. */
static void test_left(void)
{
    enum { NOBODY, HERE, PEERS, ANOTHER, NOT_KNOWN };

    for (unsigned who = NOBODY; who <= NOT_KNOWN; who++) {
        struct vm vm = vm_like(7, 1), next = vm_like(7, 2), new = vm_like(9, 1);
        struct claim claim = {{7, 0}, 4};
        bool vain = who == NOBODY || who == NOT_KNOWN;

        directory_init();
        directory_linked(PEER, true);
        g_assert_cmpint(directory_bind(&vm, &one), ==, 0);
        g_assert_cmpint(directory_bind(&vm, &two), ==, 0);
        directory_left(&vm, who == NOT_KNOWN ? 0 : 5, vain ? SECOND / 5 : 60 * SECOND);
        g_assert_false(is_past(7, 5));
        if (vain) {
            wait_none();
        } else if (who == HERE) {
            next.identity.generation = 4;
            g_assert_cmpint(directory_bind(&next, &one), ==, 0);
            g_assert_cmpint(directory_bind(&next, &two), ==, 0);
            directory_unbind(&next, &one);
            directory_unbind(&next, &two);
        } else if (who == PEERS) {
            g_assert_cmpint(directory_claim(PEER, "blue", &one, &claim, 0), ==,
                            CLAIM_TAKEN);
            g_assert_cmpint(directory_claim(PEER, "blue", &two, &claim, 0), ==,
                            CLAIM_TAKEN);
        } else {
            g_assert_cmpint(directory_bind(&new, &one), ==, 0);
            directory_unbind(&new, &one);
        }
        g_assert_cmpint(is_past(7, 5), ==, who == NOBODY || who == ANOTHER);
        g_assert_false(is_past(7, 0));
        directory_forget(PEER, false, NULL, NULL);
        directory_fini();
    }
}

/* The latest of each; and who says more than others pushes out its own. */
static void test_limits(void)
{
    directory_init();
    ran_on(5, 1, 5);
    ran_on(7, 1, 1);
    for (uint64_t i = 2; i <= ALL; i++) {
        ran_on(7, i, 1);
        ran_on(7, 1, 1); /* again and again */
    }
    g_assert_true(is_past(5, 1));
    g_assert_true(is_past(7, 1));
    for (uint64_t i = 2; i <= ALL; i++) {
        g_assert_cmpint(is_past(7, i), ==, i > ALL - OF_VM + 1);
    }
    for (uint64_t i = 1; i <= ALL; i++) {
        ran_on(8, i, 100 + i);
    }
    g_assert_false(is_past(5, 1));
    g_assert_false(is_past(7, 1));
    for (uint64_t i = 1; i <= ALL; i++) {
        g_assert_true(is_past(8, i));
    }
    directory_fini();
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/restored/ran-on", test_ran_on);
    g_test_add_func("/restored/left", test_left);
    g_test_add_func("/restored/limits", test_limits);
    return g_test_run();
}
