/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The directory: claims, networks, and look-ups while another thread changes
 * the table.
 */
#include <errno.h>
#include <glib.h>

#include "directory/directory.h"
#include "vm.h"

static struct vm_config blue_cfg = {.name = (char *)"a", .network = (char *)"blue"};
static struct vm_config blue2_cfg = {.name = (char *)"b", .network = (char *)"blue"};
static struct vm_config red_cfg = {.name = (char *)"c", .network = (char *)"red"};
static struct vm blue = {.cfg = &blue_cfg}, blue2 = {.cfg = &blue2_cfg},
                 red = {.cfg = &red_cfg};

static struct vm *find(const char *network, const struct pvrdma_gid *gid)
{
    struct vm *vm;

    directory_lock();
    vm = directory_find(network, gid);
    directory_unlock();
    return vm;
}

static struct pvrdma_gid make_gid(unsigned n)
{
    struct pvrdma_gid gid = {.raw = {0xfe, 0x80, [14] = n >> 8, [15] = n & 255}};

    return gid;
}

static void test_claims(void)
{
    struct pvrdma_gid one = make_gid(1), two = make_gid(2);

    directory_init();
    g_assert_null(find("blue", &one));
    g_assert_cmpint(directory_bind(&blue, &one), ==, 0);
    g_assert_true(find("blue", &one) == &blue);
    g_assert_null(find("red", &one));
    g_assert_null(find("blue", &two));

    /* Another VM of the network must not have it; one of another may. */
    g_assert_cmpint(directory_bind(&blue2, &one), ==, EADDRINUSE);
    g_assert_cmpint(directory_bind(&red, &one), ==, 0);
    g_assert_true(find("red", &one) == &red);
    g_assert_true(find("blue", &one) == &blue);
    g_assert_cmpuint(directory_count(), ==, 2);

    /* Claims are counted. */
    g_assert_cmpint(directory_bind(&blue, &one), ==, 0);
    directory_unbind(&blue, &one);
    g_assert_true(find("blue", &one) == &blue);
    directory_unbind(&blue, &one);
    g_assert_null(find("blue", &one));

    /* Nobody can release what another holds. */
    g_assert_cmpint(directory_bind(&blue2, &one), ==, 0);
    directory_unbind(&blue, &one);
    g_assert_true(find("blue", &one) == &blue2);
    directory_unbind(&blue2, &one);
    directory_unbind(&blue2, &one);
    directory_unbind(&red, &one);
    g_assert_cmpuint(directory_count(), ==, 0);
    directory_fini();
}

static _Atomic bool stop;

static gpointer looker(gpointer opaque)
{
    uint64_t found = 0;

    while (!atomic_load(&stop)) {
        for (unsigned i = 0; i < 64; i++) {
            struct pvrdma_gid gid = make_gid(i);
            struct vm *vm;

            directory_lock();
            vm = directory_find("blue", &gid);
            if (vm) {
                g_assert_true(vm == (i & 1 ? &blue2 : &blue));
                found++;
            }
            directory_unlock();
        }
    }
    return GSIZE_TO_POINTER(found);
}

static void test_threads(void)
{
    GThread *t;

    directory_init();
    atomic_store(&stop, false);
    t = g_thread_new("looker", looker, NULL);
    for (unsigned round = 0; round < 500; round++) {
        for (unsigned i = 0; i < 64; i++) {
            struct pvrdma_gid gid = make_gid(i);

            g_assert_cmpint(directory_bind(i & 1 ? &blue2 : &blue, &gid), ==, 0);
        }
        for (unsigned i = 0; i < 64; i++) {
            struct pvrdma_gid gid = make_gid(i);

            directory_unbind(i & 1 ? &blue2 : &blue, &gid);
        }
    }
    atomic_store(&stop, true);
    g_test_message("%zu hits", GPOINTER_TO_SIZE(g_thread_join(t)));
    g_assert_cmpuint(directory_count(), ==, 0);
    directory_fini();
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/directory/claims", test_claims);
    g_test_add_func("/directory/threads", test_threads);
    return g_test_run();
}
