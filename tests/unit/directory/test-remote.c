/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the directory remembers of other hosts: whose claim is taken, what is asked for
 * and how often, what a worker sees, and what bounds it all.  The engine is the test's.
 */
#include <errno.h>
#include <glib.h>

#include "../heap.h"
#include "base/grace.h"
#include "directory/directory.h"
#include "turn.h"
#include "vm/attach.h"

/* Bytes, of docs/hosts.md: of an address that was claimed, and that was asked for. */
#define CLAIM_BYTES 430u
#define OWNER_BYTES 100u /* and of each owner besides */
#define ASKED_BYTES 320u

static struct vm_config cfg[2] = {
    {.name = (char *)"a", .network = (char *)"blue"},
    {.name = (char *)"b", .network = (char *)"blue"},
};
static struct vm vm[2] = {
    {.cfg = &cfg[0], .id = 1, .identity = {.owner = {7, 8}, .generation = 3}},
    {.cfg = &cfg[1], .id = 2, .identity = {.owner = {9, 9}, .generation = 1}},
};
static const char *blue, *red;

/* Peers are addresses and nothing else here. */
static char peers[2];
#define PEER(i) ((struct peer *)(void *)&peers[i])

static struct pvrdma_gid make_gid(unsigned n)
{
    struct pvrdma_gid gid = {
        .raw = {0xfe, 0x80, [13] = n >> 16 & 255, [14] = n >> 8 & 255, [15] = n & 255}};

    return gid;
}

/* ---- the engine, and who watches ---- */

static unsigned asks, give_ups, changes;
static struct pvrdma_gid last_asked;
static bool can_ask;
static struct route *changed_route;

static bool engine_ask(const char *network, const struct pvrdma_gid *gid)
{
    g_assert_true(network == blue || network == red);
    asks++;
    last_asked = *gid;
    return can_ask;
}

static unsigned calls;

static void engine_call(const char *network, const struct pvrdma_gid *gid)
{
    calls++;
}

static void engine_give_up(const char *network, const struct pvrdma_gid *gid)
{
    give_ups++;
}

static unsigned bounds, unbounds, holds;
static uint64_t last_hold;

static void engine_bound(const struct vm *v, const char *network,
                         const struct pvrdma_gid *gid)
{
    struct claim claim;
    uint64_t until;

    g_assert_true(directory_local(network, gid, &claim, &until));
    g_assert_cmpuint(claim.owner[0], ==, v->identity.owner[0]);
    g_assert_cmpuint(claim.generation, ==, v->identity.generation);
    bounds++;
}

static void engine_unbound(const char *network, const struct pvrdma_gid *gid)
{
    struct claim claim;
    uint64_t until;

    g_assert_false(directory_local(network, gid, &claim, &until));
    unbounds++;
}

static void engine_held(const char *network, const struct pvrdma_gid *gid, uint64_t until)
{
    holds++;
    last_hold = until;
}

static const struct directory_engine engine = {
    .name = "test",
    .ask = engine_ask,
    .call = engine_call,
    .give_up = engine_give_up,
    .bound = engine_bound,
    .unbound = engine_unbound,
    .held = engine_held,
};

static void watcher(struct route *route)
{
    changes++;
    changed_route = route;
}

static void begin(void)
{
    directory_init();
    g_assert_cmpint(directory_set_engine(&engine), ==, 0);
    directory_set_watcher(watcher);
    asks = give_ups = changes = bounds = unbounds = holds = 0;
    can_ask = true;
}

static void end(void)
{
    g_assert_cmpuint(directory_count(), ==, 0);
    g_assert_cmpuint(directory_routes(), ==, 0);
    directory_fini();
}

static struct directory_stats stats(void)
{
    struct directory_stats st;

    directory_get_stats(&st);
    return st;
}

static struct remote *remote_of(const struct route *r)
{
    return atomic_load(&r->remote);
}

/* ---- claims ---- */

static void test_claims(void)
{
    struct pvrdma_gid one = make_gid(1);
    struct claim c = {{1, 2}, 5}, other = {{1, 3}, 9};
    const struct route *seen;
    struct route *r;
    uint64_t gen;

    begin();
    r = route_get("blue", &one);
    gen = r->gen;
    g_assert_null(route_find(blue, &one));
#define CHANGED(what)                         \
    do {                                      \
        unsigned before = changes;            \
        what;                                 \
        g_assert_cmpuint(r->gen, >, gen);     \
        g_assert_cmpuint(changes, >, before); \
        g_assert_true(changed_route == r);    \
        gen = r->gen;                         \
    } while (0)
#define UNCHANGED(what)                        \
    do {                                       \
        unsigned before = changes;             \
        what;                                  \
        g_assert_cmpuint(r->gen, ==, gen);     \
        g_assert_cmpuint(changes, ==, before); \
    } while (0)
    CHANGED(
        g_assert_cmpint(directory_claim(PEER(0), blue, &one, &c, 0), ==, CLAIM_TAKEN));
    g_assert_true(remote_of(r)->peer == PEER(0));
    g_assert_cmpuint(remote_of(r)->claim.owner[1], ==, 2);
    g_assert_cmpuint(remote_of(r)->claim.generation, ==, 5);
    seen = route_find(blue, &one);
    g_assert_true(seen == r);
    g_assert_null(route_find(red, &one));
    g_assert_cmpuint(stats().remote, ==, 1);

    /* The same again, and an older one, which was under way while the VM moved. */
    UNCHANGED(
        g_assert_cmpint(directory_claim(PEER(0), blue, &one, &c, 0), ==, CLAIM_TAKEN));
    UNCHANGED(
        g_assert_cmpint(directory_claim(PEER(1), blue, &one, &c, 0), ==, CLAIM_OLD));
    c.generation = 4;
    UNCHANGED(
        g_assert_cmpint(directory_claim(PEER(1), blue, &one, &c, 0), ==, CLAIM_OLD));
    /* Another owner: whoever came first keeps it. */
    UNCHANGED(g_assert_cmpint(directory_claim(PEER(1), blue, &one, &other, 0), ==,
                              CLAIM_OTHER));
    UNCHANGED(g_assert_false(directory_unclaim(PEER(1), blue, &one)));
    UNCHANGED(directory_hold_remote(PEER(1), blue, &one, 1000));
    g_assert_cmpuint(stats().refused, ==, 1);
    /* It has moved: a higher generation is followed. */
    c.generation = 6;
    CHANGED(
        g_assert_cmpint(directory_claim(PEER(1), blue, &one, &c, 0), ==, CLAIM_TAKEN));
    g_assert_true(remote_of(r)->peer == PEER(1));
    g_assert_cmpuint(stats().remote, ==, 1);
    /* What the former place says now counts no more. */
    UNCHANGED(g_assert_false(directory_unclaim(PEER(0), blue, &one)));
    /* A peer's own claim may be another VM's now. */
    CHANGED(g_assert_cmpint(directory_claim(PEER(1), blue, &one, &other, 0), ==,
                            CLAIM_TAKEN));
    g_assert_cmpuint(remote_of(r)->claim.owner[1], ==, 3);
    /* Who refers to it wants to know who has it now. */
    asks = 0;
    CHANGED(g_assert_true(directory_unclaim(PEER(1), blue, &one)));
    g_assert_null(remote_of(r));
    g_assert_cmpuint(asks, ==, 1);
    g_assert_cmpuint(r->asked, ==, ROUTE_ASKED);
    g_assert_cmpuint(stats().remote, ==, 0);
    route_put(r); /* the question is still there */
    g_assert_cmpuint(directory_routes(), ==, 1);
    directory_set_engine(NULL);
    end();
}

static void test_local(void)
{
    struct pvrdma_gid one = make_gid(1), two = make_gid(2);
    struct claim c = {{1, 2}, 5};

    begin();
    g_assert_cmpint(directory_bind(&vm[0], &one), ==, 0);
    g_assert_cmpint(directory_claim(PEER(0), blue, &one, &c, 0), ==, CLAIM_LOCAL);
    g_assert_cmpint(directory_claim(PEER(0), red, &one, &c, 0), ==, CLAIM_TAKEN);
    g_assert_cmpint(directory_claim(PEER(0), blue, &two, &c, 0), ==, CLAIM_TAKEN);
    g_assert_cmpint(directory_bind(&vm[0], &two), ==, EADDRINUSE);
    g_assert_cmpuint(directory_count(), ==, 1);
    g_assert_true(directory_unclaim(PEER(0), blue, &two));
    g_assert_cmpint(directory_bind(&vm[0], &two), ==, 0);
    g_assert_cmpint(directory_bind(&vm[0], &two), ==, 0); /* counted, not told again */
    g_assert_cmpuint(bounds, ==, 2);
    directory_hold(&vm[0], DIRECTORY_MAX_HOLD_NS);
    g_assert_cmpuint(holds, ==, 2);
    g_assert_cmpuint(last_hold, >, (uint64_t)g_get_monotonic_time() * 1000);
    directory_hold(&vm[0], 0);
    g_assert_cmpuint(last_hold, ==, 0);
    directory_unbind(&vm[0], &one);
    directory_unbind(&vm[0], &two);
    g_assert_cmpuint(unbounds, ==, 1);
    directory_unbind(&vm[0], &two);
    g_assert_cmpuint(unbounds, ==, 2);
    g_assert_cmpuint(asks, ==, 1); /* for the one that was refused to PEER(0) */
    g_assert_true(directory_unclaim(PEER(0), red, &one));
    directory_set_engine(NULL);
    end();
}

static unsigned n_each;

static void each(const struct pvrdma_gid *gid, const struct claim *claim, uint64_t held,
                 void *opaque)
{
    g_assert_true(opaque == &n_each);
    g_assert_cmpuint(claim->owner[0], ==, gid->raw[15] == 3 ? 9 : 7);
    n_each += gid->raw[15];
}

static void test_each(void)
{
    struct pvrdma_gid gid[3] = {make_gid(1), make_gid(2), make_gid(3)};

    begin();
    for (unsigned i = 0; i < 3; i++) {
        g_assert_cmpint(directory_bind(&vm[i == 2], &gid[i]), ==, 0);
    }
    n_each = 0;
    directory_each_local(blue, each, &n_each);
    g_assert_cmpuint(n_each, ==, 6);
    directory_each_local(red, each, &n_each);
    g_assert_cmpuint(n_each, ==, 6);
    for (unsigned i = 0; i < 3; i++) {
        directory_unbind(&vm[i == 2], &gid[i]);
    }
    end();
}

static void test_hold(void)
{
    struct pvrdma_gid one = make_gid(1);
    struct claim c = {{1, 2}, 5};
    struct route *r;
    uint64_t now = (uint64_t)g_get_monotonic_time() * 1000;

    begin();
    r = route_get("blue", &one);
    directory_hold_remote(PEER(0), blue, &one, 1000000000); /* it has no such thing */
    g_assert_cmpuint(r->held_until, ==, 0);
    directory_claim(PEER(0), blue, &one, &c, 5000000000);
    g_assert_cmpuint(r->held_until, >=, now + 5000000000);
    g_assert_cmpuint(r->held_until, <, now + 60000000000);
    directory_hold_remote(PEER(0), blue, &one, 9 * DIRECTORY_MAX_HOLD_NS); /* bounded */
    g_assert_cmpuint(r->held_until, <, now + DIRECTORY_MAX_HOLD_NS + 60000000000);
    directory_set_max_hold(1000000000); /* ... by what this host may wait */
    directory_hold_remote(PEER(0), blue, &one, 120000000000);
    g_assert_cmpuint(r->held_until, <, now + 61000000000);
    directory_set_max_hold(UINT64_MAX);
    directory_hold_remote(PEER(0), blue, &one, 0);
    g_assert_cmpuint(r->held_until, ==, 0);
    directory_claim(PEER(0), blue, &one, &c, 1000000000); /* the claim says it, too */
    g_assert_cmpuint(r->held_until, >, 0);
    directory_forget(PEER(0), false, NULL, NULL);
    g_assert_cmpuint(r->held_until, ==, 0);
    directory_set_engine(NULL);
    route_put(r);
    end();
}

static unsigned n_left;

static void left(const char *network, const struct pvrdma_gid *gid, void *opaque)
{
    g_assert_true(network == blue);
    n_left += gid->raw[15];
}

static void test_forget(void)
{
    struct claim c = {{1, 2}, 5};
    struct pvrdma_gid gid = make_gid(3);
    struct route *r;

    begin();
    for (unsigned i = 1; i <= 9; i++) {
        struct pvrdma_gid g = make_gid(i);

        directory_claim(PEER(i & 1), blue, &g, &c, 0);
    }
    g_assert_cmpuint(stats().remote, ==, 9);
    r = route_get("blue", &gid);
    directory_forget(PEER(1), true, left, NULL);
    g_assert_cmpuint(n_left, ==, 3);
    g_assert_cmpuint(stats().remote, ==, 5);
    g_assert_true(remote_of(r)->peer == PEER(1));
    directory_forget(PEER(1), false, NULL, NULL);
    g_assert_cmpuint(stats().remote, ==, 4);
    g_assert_null(remote_of(r));
    g_assert_cmpuint(asks, ==, 1);
    directory_set_engine(NULL); /* and with it the rest */
    route_put(r);
    end();
}

static void test_bounds(void)
{
    struct claim c = {{1, 2}, 5};
    size_t before;

    begin();
    before = heap_used();
    for (unsigned i = 0; i < DIRECTORY_MAX_CLAIMS; i++) {
        struct pvrdma_gid g = make_gid(i);

        g_assert_cmpint(directory_claim(PEER(0), blue, &g, &c, 0), ==, CLAIM_TAKEN);
    }
    heap_assert_each("claims", before, DIRECTORY_MAX_CLAIMS, CLAIM_BYTES);
    for (unsigned i = 0; i < 2; i++) {
        struct pvrdma_gid g = make_gid(DIRECTORY_MAX_CLAIMS);

        /* Another peer has its own. */
        g_assert_cmpint(directory_claim(PEER(i), blue, &g, &c, 0), ==,
                        i ? CLAIM_TAKEN : CLAIM_TOO_MANY);
    }
    g_assert_cmpuint(stats().too_many, ==, 1);
    g_assert_cmpuint(directory_routes(), ==, DIRECTORY_MAX_CLAIMS + 1);
    directory_forget(PEER(0), false, NULL, NULL);
    directory_forget(PEER(1), false, NULL, NULL);
    end();
}

/* ---- asking ---- */

static void test_ask(void)
{
    struct pvrdma_gid one = make_gid(1);
    struct claim c = {{1, 2}, 5};
    struct route *r;

    begin();
    r = route_get("blue", &one);
    g_assert_cmpuint(asks, ==, 0);
    route_ask(r, NULL);
    g_assert_cmpuint(asks, ==, 1);
    g_assert_true(gid_equal(&last_asked, &one));
    g_assert_cmpuint(r->asked, ==, ROUTE_ASKED);
    route_ask(r, NULL);
    g_assert_cmpuint(asks, ==, 1);
    g_assert_cmpuint(changes, ==, 0);
    directory_absent(blue, &one);
    g_assert_cmpuint(r->asked, ==, ROUTE_ABSENT);
    g_assert_cmpuint(changes, ==, 1);
    route_ask(r, NULL); /* it was a moment ago */
    g_assert_cmpuint(asks, ==, 1);
    directory_ask_again(); /* somebody else can be asked */
    g_assert_cmpuint(asks, ==, 2);
    directory_linked(PEER(0), true);
    directory_claim(PEER(0), blue, &one, &c, 0);
    g_assert_cmpuint(give_ups, ==, 1);
    g_assert_cmpuint(r->asked, ==, ROUTE_NOT_ASKED);
    route_ask(r, NULL); /* it is known */
    g_assert_cmpuint(asks, ==, 2);
    directory_absent(blue, &one); /* an answer that comes late */
    g_assert_cmpuint(r->asked, ==, ROUTE_NOT_ASKED);
    directory_unclaim(PEER(0), blue, &one);
    g_assert_cmpuint(asks, ==, 3);
    /* Somebody of this host takes it. */
    g_assert_cmpint(directory_bind(&vm[0], &one), ==, 0);
    g_assert_cmpuint(r->asked, ==, ROUTE_NOT_ASKED);
    g_assert_cmpuint(give_ups, ==, 2);
    directory_unbind(&vm[0], &one);
    /* Nobody can be asked. */
    can_ask = false;
    route_ask(r, NULL);
    g_assert_cmpuint(asks, ==, 4);
    g_assert_cmpuint(r->asked, ==, ROUTE_ABSENT);
    route_put(r);
    g_assert_cmpuint(directory_routes(), ==, 1);
    turn(1300); /* and is forgotten after a second */
    g_assert_cmpuint(stats().asked, ==, 0);
    end();
}

/* Until @r is not what it is; us. */
static gint64 wait_asked(const struct route *r)
{
    gint64 begun = g_get_monotonic_time();
    uint8_t was = r->asked;

    while (r->asked == was) {
        if (!g_main_context_iteration(NULL, FALSE)) {
            g_usleep(500);
        }
        g_assert_cmpint(g_get_monotonic_time() - begun, <, 60 * G_USEC_PER_SEC);
    }
    return g_get_monotonic_time() - begun;
}

/* No more at a time than that, whoever asks. */
static void test_asked_bounds(void)
{
    struct claim c = {{1, 2}, 5};
    struct route *r[DIRECTORY_MAX_ASKED + 2];
    struct pvrdma_gid first = make_gid(0);
    size_t before;

    begin();
    before = heap_used();
    for (unsigned i = 0; i < DIRECTORY_MAX_ASKED; i++) {
        struct pvrdma_gid g = make_gid(i);

        r[i] = route_get("blue", &g);
        route_ask(r[i], NULL);
        g_assert_cmpuint(r[i]->asked, ==, ROUTE_ASKED);
    }
    heap_assert_each("asked for", before, DIRECTORY_MAX_ASKED, ASKED_BYTES);
    for (unsigned i = DIRECTORY_MAX_ASKED; i < G_N_ELEMENTS(r); i++) {
        struct pvrdma_gid g = make_gid(i);

        r[i] = route_get("blue", &g);
        route_ask(r[i], i & 1 ? &vm[0] : NULL);
        g_assert_cmpuint(r[i]->asked, ==, ROUTE_NOT_ASKED);
    }
    g_assert_cmpuint(asks, ==, DIRECTORY_MAX_ASKED);
    g_assert_cmpuint(stats().too_many, ==, 2);
    /* One has been found: there is room for another. */
    g_assert_cmpint(directory_claim(PEER(0), blue, &first, &c, 0), ==, CLAIM_TAKEN);
    for (unsigned i = DIRECTORY_MAX_ASKED; i < G_N_ELEMENTS(r); i++) {
        route_ask(r[i], NULL);
    }
    g_assert_cmpuint(asks, ==, DIRECTORY_MAX_ASKED + 1);
    g_assert_cmpuint(stats().too_many, ==, 3);
    directory_forget(PEER(0), false, NULL, NULL);
    directory_set_engine(NULL);
    for (unsigned i = 0; i < G_N_ELEMENTS(r); i++) {
        route_put(r[i]);
    }
    end();
}

/* Nobody answers. */
static void test_silence(void)
{
    struct pvrdma_gid one = make_gid(1);
    struct route *r;

    begin();
    r = route_get("blue", &one);
    route_ask(r, NULL);
    g_assert_cmpuint(r->asked, ==, ROUTE_ASKED);
    g_assert_cmpuint(give_ups, ==, 0);
    g_assert_cmpint(wait_asked(r), >, 1000000);
    g_assert_cmpuint(r->asked, ==, ROUTE_ABSENT);
    g_assert_cmpuint(give_ups, ==, 1);
    g_assert_cmpuint(changes, ==, 1);
    wait_asked(r);
    g_assert_cmpuint(r->asked, ==, ROUTE_NOT_ASKED);
    route_put(r);
    end();
}

static bool want(const struct vm *v, unsigned n)
{
    struct pvrdma_gid gid = make_gid(n);

    return directory_want(v, route_find(blue, &gid), blue, &gid);
}

static void test_want(void)
{
    struct pvrdma_gid one = make_gid(1);

    begin();
    g_assert_false(want(&vm[0], 1)); /* there is nobody to ask */
    directory_set_reachable(true);
    for (unsigned i = 0; i < 3; i++) {
        g_assert_true(want(&vm[0], 1));
    }
    g_assert_cmpuint(asks, ==, 0);
    turn(5);
    g_assert_cmpuint(asks, ==, 1);
    g_assert_true(want(&vm[0], 1));
    turn(5);
    g_assert_cmpuint(asks, ==, 1);
    directory_absent(blue, &one);
    g_assert_false(want(&vm[0], 1));
    turn(5);
    g_assert_cmpuint(asks, ==, 1);
    directory_set_engine(NULL);
    end();
}

/* Links are to come back: until all are there, or it takes too long, nobody has not. */
static void test_expect(void)
{
    struct pvrdma_gid one = make_gid(1), two = make_gid(2);
    struct claim c = {{1, 2}, 5};
    struct route *r, *s;

    begin();
    r = route_get("blue", &one);
    s = route_get("blue", &two);
    directory_expect(60000000000);
    can_ask = false; /* there is nobody yet */
    route_ask(r, NULL);
    route_ask(s, NULL);
    g_assert_cmpuint(asks, ==, 2);
    g_assert_cmpuint(r->asked, ==, ROUTE_ASKED);
    g_assert_true(want(&vm[0], 1));
    g_assert_true(want(&vm[0], 3)); /* nor is it known of others */
    turn(5);
    g_assert_cmpuint(asks, ==, 3);
    can_ask = true; /* one is back, and has one of them */
    directory_ask_again();
    g_assert_cmpuint(asks, ==, 5); /* what nobody refers to is not asked for */
    directory_claim(PEER(0), blue, &one, &c, 0);
    directory_absent(blue, &two);
    g_assert_cmpuint(r->asked, ==, ROUTE_NOT_ASKED);
    g_assert_cmpuint(s->asked, ==, ROUTE_ASKED);
    directory_ask_again(); /* and the last one */
    g_assert_cmpuint(asks, ==, 6);
    directory_expect(0);
    g_assert_false(want(&vm[0], 3));
    directory_absent(blue, &two);
    g_assert_cmpuint(s->asked, ==, ROUTE_ABSENT);
    directory_ask_again();
    g_assert_cmpuint(asks, ==, 7);
    directory_ask_again(); /* those that are being asked know of it */
    g_assert_cmpuint(asks, ==, 7);
    directory_set_engine(NULL);
    route_put(r);
    route_put(s);
    end();
}

/* ... but for so long only, which may be more than anybody else is waited for. */
static void test_expect_end(void)
{
    struct pvrdma_gid one = make_gid(1);
    struct route *r;

    begin();
    r = route_get("blue", &one);
    route_ask(r, NULL);
    directory_expect(4000000000); /* a link is lost meanwhile */
    g_assert_cmpint(wait_asked(r), >, 3000000);
    g_assert_false(directory_expects());
    g_assert_cmpuint(r->asked, ==, ROUTE_ABSENT);
    g_assert_cmpuint(give_ups, <=, 2); /* each when its time was over */
    g_assert_cmpuint(changes, ==, 1);
    /* All are back sooner: one that does not answer is waited for as ever. */
    directory_expect(60000000000);
    directory_ask_again();
    g_assert_cmpuint(r->asked, ==, ROUTE_ASKED);
    directory_expect(0);
    g_assert_cmpint(wait_asked(r), <, 30000000);
    g_assert_cmpuint(r->asked, ==, ROUTE_ABSENT);
    directory_set_engine(NULL);
    route_put(r);
    end();
}

/* One VM tries addresses; it fills neither the list nor the table of others. */
static void test_want_bounds(void)
{
    struct pvrdma_gid other = make_gid(5000);

    begin();
    directory_set_reachable(true);
    for (unsigned i = 0; i < 1000; i++) {
        g_assert_true(want(&vm[0], i)); /* it may come again */
    }
    g_assert_true(want(&vm[1], 5000));
    turn(5);
    g_assert_cmpuint(asks, ==, 17);
    g_assert_true(gid_equal(&last_asked, &other));
    for (unsigned i = 0; i < 100; i++) {
        for (unsigned k = 0; k < 16; k++) {
            want(&vm[0], i * 16 + k);
        }
        turn(1);
    }
    g_assert_cmpuint(asks, ==, DIRECTORY_VM_ASKED + 1);
    g_assert_cmpuint(directory_routes(), ==, DIRECTORY_VM_ASKED + 1);
    g_assert_cmpuint(stats().too_many, >, 100);
    want(&vm[1], 5001);
    turn(5);
    g_assert_cmpuint(asks, ==, DIRECTORY_VM_ASKED + 2);
    directory_set_engine(NULL);
    end();
}

/* Many VMs that ask for all they can get leave some to another, of either list. */
static void test_shares(void)
{
    enum { GREEDY = 64 };
    struct vm *many = g_new0(struct vm, GREEDY + 1);
    unsigned before, i;

    begin();
    directory_set_reachable(true);
    for (i = 0; i <= GREEDY; i++) {
        many[i].id = i;
    }
    for (i = 0; i < 200 * GREEDY; i++) { /* the list is full, with no turn between */
        want(&many[i % GREEDY], i);
    }
    want(&many[GREEDY], 50000);
    turn(5);
    before = asks;
    g_assert_cmpuint(last_asked.raw[14] << 8 | last_asked.raw[15], ==, 50000);
    for (i = 0; i < 200 * GREEDY; i++) {
        want(&many[i % GREEDY], i);
        if (i % 256 == 255) {
            turn(1);
        }
    }
    turn(5);
    g_assert_cmpuint(stats().too_many, >, 0);
    g_assert_cmpuint(asks, >, before);
    g_assert_cmpuint(stats().asked, <, DIRECTORY_MAX_ASKED);
    before = asks;
    for (i = 0; i < 8; i++) {
        want(&many[GREEDY], 50001 + i);
        turn(1);
    }
    g_assert_cmpuint(asks, ==, before + 8);
    directory_set_engine(NULL);
    end();
    g_free(many);
}

/* ---- VMs that wait ---- */

static unsigned grants;

static void granted(struct vm *who, unsigned index)
{
    grants++;
}

/*
 * They ask for half of what may be asked for at most; others, and the rest of them, when
 * there is place.
 */
static void test_waiting_share(void)
{
    enum { N = DIRECTORY_MAX_ASKED / 2 + 100 };
    struct waiter *w[N];
    struct claim c = {{1, 2}, 5};
    struct pvrdma_gid first = make_gid(0), other = make_gid(50000);
    struct route *r = route_get("blue", &other);

    begin();
    for (unsigned i = 0; i < N; i++) {
        struct pvrdma_gid gid = make_gid(i);

        w[i] = directory_wait(&vm[0], i, &gid, 0, granted);
    }
    turn(50);
    g_assert_cmpuint(asks, ==, DIRECTORY_MAX_ASKED / 2);
    route_ask(r, &vm[1]);
    g_assert_cmpuint(asks, ==, DIRECTORY_MAX_ASKED / 2 + 1);
    g_assert_cmpint(directory_claim(PEER(0), blue, &first, &c, 0), ==, CLAIM_TAKEN);
    while (asks < DIRECTORY_MAX_ASKED / 2 + 2) {
        turn(1);
    }
    g_assert_cmpuint(grants, ==, 0);
    for (unsigned i = 0; i < N; i++) {
        directory_wait_over(w[i]);
    }
    route_put(r);
    directory_forget(PEER(0), false, NULL, NULL);
    directory_set_engine(NULL);
    end();
}

/* However many become free at once, the main loop is not held up. */
static void test_waiting_turns(void)
{
    enum { N = 500 };
    unsigned turns = 0;

    begin();
    grants = 0;
    for (unsigned i = 0; i < N; i++) {
        struct pvrdma_gid gid = make_gid(i);

        directory_wait(&vm[0], i, &gid, 0, granted);
    }
    turn(5);
    g_assert_cmpuint(grants, ==, 0);
    for (unsigned i = 0; i < N; i++) {
        struct pvrdma_gid gid = make_gid(i);

        directory_absent(blue, &gid);
    }
    while (grants < N) {
        unsigned was = grants;

        g_main_context_iteration(NULL, TRUE);
        g_assert_cmpuint(grants - was, <=, 64);
        turns++;
    }
    g_assert_cmpuint(turns, >=, N / 64);
    for (unsigned i = 0; i < N; i++) {
        struct pvrdma_gid gid = make_gid(i);

        directory_unbind(&vm[0], &gid);
    }
    directory_set_engine(NULL);
    end();
}

/* ---- threads ---- */

/*
 * A worker follows a claim while it moves, goes and comes: what it holds stays what it
 * is until it has passed.  With AddressSanitizer, that it is not freed before.
 */
static _Atomic bool stop;

struct follower {
    struct grace_thread grace;
    _Atomic uint64_t found;
};

static gpointer follow(gpointer opaque)
{
    struct follower *f = opaque;

    while (!atomic_load(&stop)) {
        for (unsigned i = 0; i < 64; i++) {
            struct pvrdma_gid gid = make_gid(i);
            const struct route *r = route_find(blue, &gid);
            const struct remote *remote = r ? remote_of(r) : NULL;

            if (remote) {
                /* Each claim says by its owner which peer's it is. */
                g_assert_true(remote->peer == PEER(remote->claim.owner[0] & 1));
                g_assert_cmpuint(remote->claim.owner[1], ==, i);
                atomic_fetch_add(&f->found, 1);
            }
        }
        grace_pass(&f->grace);
    }
    return NULL;
}

static void test_threads(void)
{
    struct follower f[2] = {0};
    GThread *t[2];

    begin();
    atomic_store(&stop, false);
    for (unsigned i = 0; i < 2; i++) {
        grace_register(&f[i].grace);
        t[i] = g_thread_new("follower", follow, &f[i]);
    }
    /* On a busy machine a thread may not have begun by then. */
    for (unsigned round = 0;
         round < 1000 || !atomic_load(&f[0].found) || !atomic_load(&f[1].found);
         round++) {
        for (unsigned i = 0; i < 64; i++) {
            struct pvrdma_gid gid = make_gid(i);
            unsigned peer = g_random_int_range(0, 2);
            struct claim c = {{peer, i}, round};

            if (directory_claim(PEER(peer), blue, &gid, &c, 0) == CLAIM_OTHER) {
                g_assert_true(directory_unclaim(PEER(!peer), blue, &gid));
            }
        }
    }
    atomic_store(&stop, true);
    for (unsigned i = 0; i < 2; i++) {
        g_thread_join(t[i]);
        grace_unregister(&f[i].grace);
    }
    directory_forget(PEER(0), false, NULL, NULL);
    directory_forget(PEER(1), false, NULL, NULL);
    directory_set_engine(NULL);
    end();
}

/* Whose addresses a peer has, whatever became of others. */
static void test_owners(void)
{
    const uint64_t second[2] = {1, 3}, first[2] = {1, 2}, third[2] = {2, 2};
    struct claim c = {{1, 2}, 5};
    struct pvrdma_gid gid[3] = {make_gid(1), make_gid(2), make_gid(3)};
    size_t before;

    begin();
    g_assert_false(directory_has_owner(PEER(0), blue, first));
    for (unsigned i = 0; i < 2; i++) {
        g_assert_cmpint(directory_claim(PEER(0), blue, &gid[i], &c, 0), ==, CLAIM_TAKEN);
    }
    g_assert_true(directory_has_owner(PEER(0), blue, first));
    g_assert_false(directory_has_owner(PEER(0), red, first));
    g_assert_false(directory_has_owner(PEER(1), blue, first));
    g_assert_false(directory_has_owner(PEER(0), blue, second));
    g_assert_false(directory_has_owner(PEER(0), blue, third));
    /* One of its addresses has another owner there, and one is given up. */
    c.owner[1] = 3;
    g_assert_cmpint(directory_claim(PEER(0), blue, &gid[0], &c, 0), ==, CLAIM_TAKEN);
    g_assert_true(directory_has_owner(PEER(0), blue, first));
    g_assert_true(directory_has_owner(PEER(0), blue, second));
    g_assert_true(directory_unclaim(PEER(0), blue, &gid[1]));
    g_assert_false(directory_has_owner(PEER(0), blue, first));
    g_assert_true(directory_has_owner(PEER(0), blue, second));
    directory_forget(PEER(0), false, NULL, NULL);
    g_assert_false(directory_has_owner(PEER(0), blue, second));
    before = heap_used();
    for (unsigned i = 0; i < DIRECTORY_MAX_CLAIMS; i++) {
        struct pvrdma_gid g = make_gid(i);

        c.owner[1] = i;
        g_assert_cmpint(directory_claim(PEER(0), blue, &g, &c, 0), ==, CLAIM_TAKEN);
    }
    heap_assert_each("claims of as many owners", before, DIRECTORY_MAX_CLAIMS,
                     CLAIM_BYTES + OWNER_BYTES);
    directory_forget(PEER(0), false, NULL, NULL);
    end();
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    blue = g_intern_string("blue");
    red = g_intern_string("red");
    g_assert_true(directory_network("blue") == blue);
    g_assert_null(directory_network("no VM was ever in it"));
    g_test_add_func("/remote/claims", test_claims);
    g_test_add_func("/remote/owners", test_owners);
    g_test_add_func("/remote/local", test_local);
    g_test_add_func("/remote/each", test_each);
    g_test_add_func("/remote/hold", test_hold);
    g_test_add_func("/remote/forget", test_forget);
    g_test_add_func("/remote/bounds", test_bounds);
    g_test_add_func("/remote/ask", test_ask);
    g_test_add_func("/remote/asked-bounds", test_asked_bounds);
    g_test_add_func("/remote/silence", test_silence);
    g_test_add_func("/remote/want", test_want);
    g_test_add_func("/remote/expect", test_expect);
    g_test_add_func("/remote/expect-end", test_expect_end);
    g_test_add_func("/remote/want-bounds", test_want_bounds);
    g_test_add_func("/remote/shares", test_shares);
    g_test_add_func("/remote/waiting-share", test_waiting_share);
    g_test_add_func("/remote/waiting-turns", test_waiting_turns);
    g_test_add_func("/remote/threads", test_threads);
    return g_test_run();
}
