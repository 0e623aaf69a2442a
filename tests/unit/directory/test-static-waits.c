/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The engine `static` and VMs that wait for an address: who has it, and what other hosts
 * hear of that.
 */
#include <glib.h>

#include "staticfix.h"

static unsigned grants;

static void granted(struct vm *who, unsigned index)
{
    g_assert_cmpuint(index, ==, 3);
    grants++;
}

/*
 * No host hears that nobody has an address that somebody here waits for.  One whose name
 * comes first and that asks itself has it, if it claims it in a while.
 */
static void test_waits(void)
{
    static struct vm_config other_cfg = {.name = (char *)"b", .network = (char *)"blue"};
    static struct vm other = {
        .cfg = &other_cfg, .id = 2, .identity = {.owner = {7, 9}, .generation = 1}};
    struct pvrdma_gid one = staticfix_gid(1), two = staticfix_gid(2);

    staticfix_begin(1);
    staticfix_bind(1);
    staticfix_asked(0, 1);
    staticfix_expect("0+1 0+1"); /* all, and the answer */
    directory_wait(&other, 3, &one, 0, granted);
    staticfix_unbind(1);
    staticfix_expect("0-1");
    staticfix_asked(0, 1);
    staticfix_expect("0+1 0+1");
    g_assert_cmpuint(grants, ==, 1);
    directory_unbind(&other, &one);
    staticfix_expect("0-1");

    directory_set_host("zeta");
    staticfix_claimed(0, 2, 5);
    directory_wait(&other, 3, &two, 0, granted);
    staticfix_unclaimed(0, 2);
    staticfix_expect("0?2");
    staticfix_asked(0, 2);
    staticfix_expect("0-2");
    staticfix_unclaimed(0, 2);
    turn(30);
    g_assert_cmpuint(grants, ==, 1);
    staticfix_claimed(0, 2, 6);
    turn(600);
    g_assert_cmpuint(grants, ==, 1);
    staticfix_unclaimed(0, 2);
    staticfix_expect("0?2");
    staticfix_unclaimed(0, 2);
    turn(5);
    g_assert_cmpuint(grants, ==, 2);
    staticfix_expect("0+2");
    directory_unbind(&other, &two);
    staticfix_expect("0-2");
    staticfix_end();
}

/*
 * As many questions as there may be are under way: who waits is not told "nobody", also
 * if the host that had it has gone, but asks when there is place.
 */
static void test_waits_full(gconstpointer how)
{
    bool away = GPOINTER_TO_UINT(how);
    struct route *r[DIRECTORY_MAX_ASKED];
    struct pvrdma_gid two = staticfix_gid(2), first = staticfix_gid(3);
    struct claim c = {{5, 0}, 1};
    unsigned was = grants;

    staticfix_begin(2);
    static_claimed(STATICFIX_PEER(0), "blue", &two, &c, away ? 60000000000 : 0);
    directory_wait(&staticfix_vm, 3, &two, 0, granted);
    for (unsigned i = 0; i < DIRECTORY_MAX_ASKED; i++) {
        struct pvrdma_gid gid = first;

        gid.raw[8] = (uint8_t)(i >> 8);
        gid.raw[9] = (uint8_t)i;
        r[i] = route_get("blue", &gid);
        route_ask(r[i], NULL);
    }
    g_string_truncate(staticfix_sent, 0);
    static_unclaimed(STATICFIX_PEER(0), "blue", &first);
    if (away) {
        static_peer_down(STATICFIX_PEER(0));
        static_peer_away(STATICFIX_PEER(0));
    } else {
        staticfix_unclaimed(0, 2);
    }
    turn(50);
    staticfix_expect("");
    g_assert_cmpuint(grants, ==, was);
    static_unclaimed(STATICFIX_PEER(1), "blue", &first);
    while (!staticfix_sent->len) {
        turn(1); /* that nobody has that one is believed for a second */
    }
    g_assert_cmpuint(r[0]->asked, ==, ROUTE_NOT_ASKED);
    if (away) {
        staticfix_expect("1?2");
    } else {
        staticfix_expect_asks(2, 2);
    }
    g_assert_cmpuint(grants, ==, was);
    staticfix_claimed(1, 2, 6);
    turn(50);
    g_assert_cmpuint(grants, ==, was);
    staticfix_unclaimed(1, 2);
    g_string_truncate(staticfix_sent, 0);
    staticfix_unclaimed(0, 2);
    staticfix_unclaimed(1, 2);
    turn(5);
    g_assert_cmpuint(grants, ==, was + 1);
    directory_unbind(&staticfix_vm, &two);
    for (unsigned i = 0; i < DIRECTORY_MAX_ASKED; i++) {
        route_put(r[i]);
    }
    g_string_truncate(staticfix_sent, 0);
    staticfix_end();
}

int main(int argc, char **argv)
{
    staticfix_init(&argc, &argv);
    g_test_add_func("/static-waits/order", test_waits);
    g_test_add_data_func("/static-waits/full", NULL, test_waits_full);
    g_test_add_data_func("/static-waits/full-away", GUINT_TO_POINTER(1), test_waits_full);
    return g_test_run();
}
