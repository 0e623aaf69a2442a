/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The directory: claims, networks, routes and their generations, and a worker that
 * follows routes while addresses come and go.
 */
#include <errno.h>
#include <glib.h>
#include <time.h>

#include "base/grace.h"
#include "directory/directory.h"
#include "vm/attach.h"

static struct vm_config blue_cfg = {.name = (char *)"a", .network = (char *)"blue"};
static struct vm_config blue2_cfg = {.name = (char *)"b", .network = (char *)"blue"};
static struct vm_config red_cfg = {.name = (char *)"c", .network = (char *)"red"};
static struct vm blue = {.cfg = &blue_cfg, .id = 1}, blue2 = {.cfg = &blue2_cfg, .id = 2},
                 red = {.cfg = &red_cfg, .id = 3};

static struct vm *find(const char *network, const struct pvrdma_gid *gid)
{
    struct route *route = route_get(network, gid);
    struct vm *vm = atomic_load(&route->vm);

    /* The workers' way leads to the same, and only to what is held. */
    g_assert_true(route_find(g_intern_string(network), gid) == (vm ? route : NULL));
    route_put(route);
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

/* The generation changes with everything that may void what was found. */
static void test_generation(void)
{
    struct pvrdma_gid one = make_gid(1);
    struct route *r;
    uint64_t gen;

    directory_init();
    r = route_get("blue", &one);
    g_assert_true(route_get("blue", &one) == r);
    route_put(r);
    gen = atomic_load(&r->gen);
    g_assert_cmpuint(gen, !=, 0); /* what a QP without a peer has */
#define CHANGES(what)                     \
    do {                                  \
        what;                             \
        g_assert_cmpuint(r->gen, >, gen); \
        gen = atomic_load(&r->gen);       \
    } while (0)
    CHANGES(directory_bind(&blue, &one));
    directory_bind(&blue, &one); /* the second claim changes nothing */
    g_assert_cmpuint(r->gen, ==, gen);
    CHANGES(directory_bump(&blue));
    directory_bump(&blue2); /* somebody else's */
    g_assert_cmpuint(r->gen, ==, gen);
    CHANGES(directory_hold(&blue, DIRECTORY_MAX_HOLD_NS));
    g_assert_cmpuint(r->held_until, >, (uint64_t)g_get_monotonic_time() * 1000);
    CHANGES(directory_hold(&blue, 0));
    g_assert_cmpuint(r->held_until, ==, 0);
    directory_unbind(&blue, &one);
    g_assert_cmpuint(r->gen, ==, gen);
    directory_hold(&blue, DIRECTORY_MAX_HOLD_NS);
    gen = atomic_load(&r->gen);
    CHANGES(directory_unbind(&blue, &one));
    g_assert_cmpuint(r->held_until, ==, 0);
    g_assert_null(atomic_load(&r->vm));
    /* It moves to another VM; one that stands still is held from the start. */
    atomic_store(&blue2.dp.paused, true);
    CHANGES(directory_bind(&blue2, &one));
    g_assert_cmpuint(r->held_until, >, (uint64_t)g_get_monotonic_time() * 1000);
    atomic_store(&blue2.dp.paused, false);
    CHANGES(directory_unbind(&blue2, &one));
#undef CHANGES
    g_assert_cmpuint(directory_routes(), ==, 1);
    route_put(r);
    g_assert_cmpuint(directory_routes(), ==, 0);
    directory_fini();
}

static _Atomic bool stop;
static struct route *routes[64];

static gpointer looker(gpointer opaque)
{
    uint64_t found = 0;

    while (!atomic_load(&stop)) {
        for (unsigned i = 0; i < 64; i++) {
            uint64_t gen = atomic_load(&routes[i]->gen);
            struct vm *vm = atomic_load(&routes[i]->vm);

            if (vm && gen == atomic_load(&routes[i]->gen)) {
                g_assert_true(vm == (i & 1 ? &blue2 : &blue));
                found++;
            }
        }
    }
    return GSIZE_TO_POINTER(found);
}

static void test_threads(void)
{
    GThread *t;

    directory_init();
    for (unsigned i = 0; i < 64; i++) {
        struct pvrdma_gid gid = make_gid(i);

        routes[i] = route_get("blue", &gid);
    }
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
    for (unsigned i = 0; i < 64; i++) {
        route_put(routes[i]);
    }
    g_assert_cmpuint(directory_count(), ==, 0);
    g_assert_cmpuint(directory_routes(), ==, 0);
    directory_fini();
}

/*
 * Workers look addresses up while others come, go and are freed: one that is held all
 * the time is found each time.
 */
#define STAYING  8u
#define CHANGING 20000u /* more than there are places: chains */

static gpointer finder(gpointer opaque)
{
    struct grace_thread *grace = opaque;
    const char *network = g_intern_string("blue");
    uint64_t found = 0;

    for (unsigned n = 0; !atomic_load(&stop); n++) {
        struct pvrdma_gid gid = make_gid(n % STAYING);
        const struct route *r = route_find(network, &gid);

        g_assert_nonnull(r);
        g_assert_true(atomic_load(&r->vm) == &blue);
        gid = make_gid(STAYING + n % CHANGING);
        r = route_find(network, &gid);
        if (r) {
            struct vm *vm = atomic_load(&r->vm); /* NULL: it is going */

            g_assert_true(!vm || vm == &blue2);
            found++;
        }
        grace_pass(grace);
    }
    return GSIZE_TO_POINTER(found);
}

static uint64_t cpu_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* With all of them in one chain it would take seconds. */
static void find_all(void)
{
    const char *network = g_intern_string("blue");
    uint64_t t = cpu_ns();

    for (unsigned i = 0; i < CHANGING; i++) {
        struct pvrdma_gid gid = make_gid(STAYING + i);

        g_assert_nonnull(route_find(network, &gid));
    }
    t = cpu_ns() - t;
    g_test_message("%u addresses found in %.1f ms", CHANGING, t / 1e6);
    g_assert_cmpuint(t, <, 200000000);
}

static void test_index(void)
{
    struct grace_thread grace[2] = {0};
    GThread *t[2];

    directory_init();
    for (unsigned i = 0; i < STAYING; i++) {
        struct pvrdma_gid gid = make_gid(i);

        g_assert_cmpint(directory_bind(&blue, &gid), ==, 0);
    }
    atomic_store(&stop, false);
    for (unsigned i = 0; i < 2; i++) {
        grace_register(&grace[i]);
        t[i] = g_thread_new("finder", finder, &grace[i]);
    }
    for (unsigned round = 0; round < 4; round++) {
        for (unsigned i = 0; i < CHANGING; i++) {
            struct pvrdma_gid gid = make_gid(STAYING + i);

            g_assert_cmpint(directory_bind(&blue2, &gid), ==, 0);
        }
        find_all();
        /* In another order, so that heads, middles and ends of chains go. */
        for (unsigned i = 0; i < CHANGING; i++) {
            struct pvrdma_gid gid = make_gid(STAYING + i * 7919u % CHANGING);

            directory_unbind(&blue2, &gid);
        }
    }
    atomic_store(&stop, true);
    for (unsigned i = 0; i < 2; i++) {
        g_test_message("%zu hits", GPOINTER_TO_SIZE(g_thread_join(t[i])));
        grace_unregister(&grace[i]);
    }
    for (unsigned i = 0; i < STAYING; i++) {
        struct pvrdma_gid gid = make_gid(i);

        directory_unbind(&blue, &gid);
    }
    g_assert_cmpuint(directory_routes(), ==, 0);
    directory_fini();
}

#define CHAINED 60000u

/* Addresses that differ everywhere: so do their places in two networks, mostly. */
static struct pvrdma_gid spread_gid(unsigned n)
{
    uint64_t w[2] = {n * 0x9e3779b97f4a7c15ull, ~n * 0xbf58476d1ce4e5b9ull};
    struct pvrdma_gid gid;

    memcpy(gid.raw, w, sizeof(w));
    return gid;
}

/*
 * The same addresses in two networks, so many that some meet in a chain: whoever stands
 * in front of one in its chain is neither another's address nor another network's.
 */
static void test_chains(void)
{
    const char *network[2] = {g_intern_string("blue"), g_intern_string("red")};
    struct vm *vm[2] = {&blue, &red};

    directory_init();
    for (unsigned i = 0; i < CHAINED; i++) {
        struct pvrdma_gid gid = spread_gid(i);

        for (unsigned k = 0; k < 2; k++) {
            g_assert_cmpint(directory_bind(vm[k], &gid), ==, 0);
        }
    }
    for (unsigned i = 0; i < CHAINED + 1000; i++) {
        struct pvrdma_gid gid = spread_gid(i);

        for (unsigned k = 0; k < 2; k++) {
            const struct route *r = route_find(network[k], &gid);

            g_assert_true((r != NULL) == (i < CHAINED));
            g_assert_true(!r || atomic_load(&r->vm) == vm[k]);
            g_assert_true(!r || r == route_get(network[k], &gid));
            if (r) {
                route_put((struct route *)(uintptr_t)r);
            }
        }
    }
    for (unsigned i = 0; i < CHAINED; i++) {
        struct pvrdma_gid gid = spread_gid(i);

        for (unsigned k = 0; k < 2; k++) {
            directory_unbind(vm[k], &gid);
        }
    }
    g_assert_cmpuint(directory_routes(), ==, 0);
    directory_fini();
}

/* However much dies, workers are asked once, and again when they have answered. */
static void test_burials(void)
{
    struct grace_thread grace = {0};
    uint64_t before;

    directory_init();
    grace_register(&grace);
    before = atomic_load(&grace_newest);
    for (unsigned i = 0; i < 1000; i++) {
        struct pvrdma_gid gid = make_gid(i);

        g_assert_cmpint(directory_bind(&blue, &gid), ==, 0);
        directory_unbind(&blue, &gid);
    }
    g_assert_cmpuint(directory_routes(), ==, 0);
    g_assert_cmpuint(atomic_load(&grace_newest) - before, ==, 1);
    grace_pass(&grace);
    for (unsigned i = 0; i < 10; i++) {
        struct pvrdma_gid gid = make_gid(i);

        g_assert_cmpint(directory_bind(&blue, &gid), ==, 0);
        directory_unbind(&blue, &gid);
    }
    g_assert_cmpuint(atomic_load(&grace_newest) - before, ==, 2);
    grace_unregister(&grace);
    directory_fini(); /* frees them all: LeakSanitizer */
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/directory/claims", test_claims);
    g_test_add_func("/directory/threads", test_threads);
    g_test_add_func("/directory/generation", test_generation);
    g_test_add_func("/directory/index", test_index);
    g_test_add_func("/directory/chains", test_chains);
    g_test_add_func("/directory/burials", test_burials);
    return g_test_run();
}
