/* SPDX-License-Identifier: GPL-2.0-or-later */
/* gid.c: claims, the VM's allowed addresses, two VMs and one address. */
#include "directory/directory.h"
#include "testdev.h"

/* The IPv4-mapped GID of 10.0.0.@n. */
static struct pvrdma_gid ipv4(uint8_t n)
{
    return (struct pvrdma_gid){
        .raw = {[10] = 0xff, [11] = 0xff, 10, 0, 0, n},
    };
}

static uint32_t bind_raw(struct testdev *td, uint32_t index, struct pvrdma_gid gid,
                         uint8_t type, uint32_t vlan)
{
    struct pvrdma_cmd_create_bind req = {
        .mtu = 1024,
        .vlan = vlan,
        .index = index,
        .gid = gid,
        .gid_type = type,
    };
    uint32_t err = testdev_command(td, PVRDMA_CMD_CREATE_BIND, &req, sizeof(req));

    /* No response: a late interrupt would confuse the next command. */
    g_assert_cmpuint(testdev_irqs(td, PVRDMA_VEC_CMD), ==, 0);
    return err;
}

static uint32_t bind_gid(struct testdev *td, uint32_t index, struct pvrdma_gid gid)
{
    return bind_raw(td, index, gid, PVRDMA_GID_TYPE_ROCE_V2, 0xfff);
}

static uint32_t unbind(struct testdev *td, uint32_t index, struct pvrdma_gid gid)
{
    struct pvrdma_cmd_destroy_bind req = {.index = index, .gid = gid};

    return testdev_command(td, PVRDMA_CMD_DESTROY_BIND, &req, sizeof(req));
}

static struct vm *holder(struct testdev *td, struct pvrdma_gid gid)
{
    struct route *route;
    struct vm *vm;

    route = route_get(td->vm.cfg->network, &gid);
    vm = atomic_load(&route->vm);
    route_put(route);
    return vm;
}

static void test_bind(void)
{
    struct testdev *td = testdev_new("gid");

    testdev_up(td);
    g_assert_cmpuint(bind_gid(td, 0, ipv4(1)), ==, 0);
    g_assert_true(holder(td, ipv4(1)) == &td->vm);
    g_assert_cmpuint(bind_gid(td, 63, ipv4(2)), ==, 0);
    g_assert_cmpuint(testdev_stats(td).gid, ==, 2);

    /* Again is fine, over another is not. */
    g_assert_cmpuint(bind_gid(td, 0, ipv4(1)), ==, 0);
    g_assert_cmpuint(bind_gid(td, 0, ipv4(3)), !=, 0);
    g_assert_true(holder(td, ipv4(1)) == &td->vm);
    g_assert_null(holder(td, ipv4(3)));

    /* Two slots may hold the same GID; the claim lasts for both. */
    g_assert_cmpuint(bind_gid(td, 5, ipv4(1)), ==, 0);
    g_assert_cmpuint(unbind(td, 5, ipv4(2)), !=, 0);
    g_assert_cmpuint(unbind(td, 5, ipv4(1)), ==, 0);
    g_assert_cmpuint(unbind(td, 5, ipv4(1)), !=, 0);
    g_assert_true(holder(td, ipv4(1)) == &td->vm);
    g_assert_cmpuint(unbind(td, 0, ipv4(1)), ==, 0);
    g_assert_null(holder(td, ipv4(1)));
    testdev_free(td);
    /* Detach gives the rest back. */
    g_assert_cmpuint(directory_count(), ==, 0);
}

static void test_bad(void)
{
    struct testdev *td = testdev_new("gid");
    struct pvrdma_gid zero = {0}, mcast = {.raw = {0xff, 0x0e, [15] = 1}};

    testdev_up(td);
    g_assert_cmpuint(bind_gid(td, 64, ipv4(1)), !=, 0);
    g_assert_cmpuint(bind_gid(td, UINT32_MAX, ipv4(1)), !=, 0);
    g_assert_cmpuint(bind_gid(td, 0, zero), !=, 0);
    g_assert_cmpuint(bind_gid(td, 0, mcast), !=, 0);
    g_assert_cmpuint(bind_raw(td, 0, ipv4(1), PVRDMA_GID_TYPE_ROCE_V1, 0xfff), !=, 0);
    g_assert_cmpuint(bind_raw(td, 0, ipv4(1), 3, 0xfff), !=, 0);
    g_assert_cmpuint(bind_raw(td, 0, ipv4(1), 0, 0xfff), !=, 0);
    g_assert_cmpuint(bind_raw(td, 0, ipv4(1), 2, 5), !=, 0);
    g_assert_cmpuint(unbind(td, 64, ipv4(1)), !=, 0);
    g_assert_cmpuint(unbind(td, UINT32_MAX, ipv4(1)), !=, 0);
    g_assert_cmpuint(unbind(td, 0, zero), !=, 0);
    g_assert_cmpuint(testdev_stats(td).gid, ==, 0);
    g_assert_cmpuint(directory_count(), ==, 0);
    testdev_free(td);
}

/* Only what the VM was declared with. */
static void test_allowed(void)
{
    struct testdev *td =
        testdev_new_with("gid", "addresses", "10.0.0.1;52:54:00:12:34:56", NULL);
    struct pvrdma_gid ll = {.raw = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x50, 0x54, 0, 0xff,
                                    0xfe, 0x12, 0x34, 0x56}};

    testdev_up(td);
    g_assert_cmpuint(bind_gid(td, 0, ipv4(2)), !=, 0);
    g_assert_null(holder(td, ipv4(2)));
    g_assert_cmpuint(bind_gid(td, 0, ipv4(1)), ==, 0);
    g_assert_cmpuint(bind_gid(td, 1, ll), ==, 0);
    ll.raw[15]++;
    g_assert_cmpuint(bind_gid(td, 2, ll), !=, 0);
    testdev_free(td);
}

/* What is due in the main loop. */
static void turn(void)
{
    while (g_main_context_iteration(NULL, FALSE)) {
    }
}

/*
 * An address goes to those who wait for it, in their order, and to nobody between; who
 * does not wait any more gets none.
 */
static void test_waiting(void)
{
    struct testdev *td[4];

    for (unsigned i = 0; i < G_N_ELEMENTS(td); i++) {
        g_autofree char *name = g_strdup_printf("w%u", i);

        td[i] = testdev_new(name);
        testdev_up(td[i]);
        g_assert_cmpuint(bind_gid(td[i], 3, ipv4(1)), ==, 0);
        g_assert_cmpuint(bind_gid(td[i], 3, ipv4(1)), ==, 0); /* once more is once */
        g_assert_cmpuint(bind_gid(td[i], 3, ipv4(2)), !=, 0);
        g_assert_cmpuint(testdev_stats(td[i]).gid, ==, 1);
    }
    g_assert_cmpuint(directory_count(), ==, 1);
    turn();
    g_assert_true(holder(td[0], ipv4(1)) == &td[0]->vm);

    g_assert_cmpuint(unbind(td[1], 3, ipv4(1)), ==, 0); /* it waits no more */
    g_assert_cmpuint(unbind(td[1], 3, ipv4(1)), !=, 0);
    g_assert_true(holder(td[0], ipv4(1)) == &td[0]->vm);
    g_assert_cmpuint(unbind(td[0], 3, ipv4(1)), ==, 0);
    /* Free, but those who wait are before. */
    g_assert_null(holder(td[0], ipv4(1)));
    g_assert_cmpuint(bind_gid(td[0], 4, ipv4(1)), ==, 0);
    g_assert_true(td[0]->vm.objects.gid[4].waiting);
    turn();
    g_assert_true(holder(td[0], ipv4(1)) == &td[2]->vm);
    g_assert_true(td[3]->vm.objects.gid[3].waiting);
    testdev_free(td[2]);
    turn();
    g_assert_true(holder(td[0], ipv4(1)) == &td[3]->vm);
    testdev_free(td[3]);
    turn();
    g_assert_true(holder(td[0], ipv4(1)) == &td[0]->vm);
    testdev_free(td[0]);
    testdev_free(td[1]);
    turn();
    g_assert_cmpuint(directory_count(), ==, 0);
    g_assert_cmpuint(directory_routes(), ==, 0);
}

/* It waits with both of its entries, and has both. */
static void test_waits_twice(void)
{
    struct testdev *a = testdev_new("a"), *b = testdev_new("b");

    testdev_up(a);
    testdev_up(b);
    g_assert_cmpuint(bind_gid(a, 0, ipv4(1)), ==, 0);
    g_assert_cmpuint(bind_gid(b, 0, ipv4(1)), ==, 0);
    g_assert_cmpuint(bind_gid(b, 63, ipv4(1)), ==, 0);
    g_assert_cmpuint(bind_gid(a, 7, ipv4(1)), ==,
                     0); /* it has it, and waits for nobody */
    g_assert_cmpuint(unbind(a, 0, ipv4(1)), ==, 0);
    turn();
    g_assert_true(holder(a, ipv4(1)) == &a->vm);
    g_assert_cmpuint(unbind(a, 7, ipv4(1)), ==, 0);
    turn();
    g_assert_true(holder(b, ipv4(1)) == &b->vm);
    g_assert_cmpuint(unbind(b, 0, ipv4(1)), ==, 0);
    g_assert_true(holder(b, ipv4(1)) == &b->vm);
    g_assert_cmpuint(unbind(b, 63, ipv4(1)), ==, 0);
    g_assert_null(holder(b, ipv4(1)));
    testdev_free(a);
    testdev_free(b);
    g_assert_cmpuint(directory_routes(), ==, 0);
}

/* One holder in a network; other networks do not matter. */
static void test_two_vms(void)
{
    struct testdev *a = testdev_new("a"), *b = testdev_new("b");
    struct testdev *c =
        testdev_new_with("c", "addresses", "any", "network", "blue", NULL);

    testdev_up(a);
    testdev_up(b);
    testdev_up(c);
    g_assert_cmpuint(bind_gid(a, 0, ipv4(1)), ==, 0);
    g_assert_cmpuint(bind_gid(b, 0, ipv4(1)), ==, 0); /* it waits */
    g_assert_cmpuint(bind_gid(c, 0, ipv4(1)), ==, 0);
    turn();
    g_assert_true(holder(a, ipv4(1)) == &a->vm);
    g_assert_true(holder(c, ipv4(1)) == &c->vm);
    g_assert_true(b->vm.objects.gid[0].waiting);

    /* A reset gives the claim up. */
    testdev_write(a, PVRDMA_REG_CTL, PVRDMA_CTL_RESET);
    turn();
    g_assert_true(holder(b, ipv4(1)) == &b->vm);
    g_assert_false(b->vm.objects.gid[0].waiting);
    testdev_free(a);
    testdev_free(b);
    testdev_free(c);
    g_assert_cmpuint(directory_count(), ==, 0);
}

int main(int argc, char **argv)
{
    testdev_init(&argc, &argv);
    g_test_add_func("/verbs/gid/bind", test_bind);
    g_test_add_func("/verbs/gid/bad", test_bad);
    g_test_add_func("/verbs/gid/allowed", test_allowed);
    g_test_add_func("/verbs/gid/two-vms", test_two_vms);
    g_test_add_func("/verbs/gid/waiting", test_waiting);
    g_test_add_func("/verbs/gid/waits-twice", test_waits_twice);
    return testdev_run();
}
