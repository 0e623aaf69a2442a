/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The engine `static`: who is asked and when nobody has an address, who is told what
 * this host has and in which order, and what becomes of it when links come and go.
 */
#include <errno.h>
#include <glib.h>

#include "../heap.h"
#include "proof.h"
#include "staticfix.h"

/* Of docs/hosts.md: of an address that a peer is to be told of and has no room for. */
#define LATE_BYTES 70u

static const char *blue;

/* What was told last: that it is held, for @ns from a moment ago. */
static void assert_held(uint64_t ns)
{
    g_assert_cmpuint(staticfix_last_hold, >, ns > 60000000000 ? ns - 60000000000 : 0);
    g_assert_cmpuint(staticfix_last_hold, <=, ns);
}

static struct route *wanted(unsigned n)
{
    struct pvrdma_gid gid = staticfix_gid(n);
    struct route *r = route_get("blue", &gid);

    route_ask(r, NULL);
    return r;
}

static struct peer *peer_of(const struct route *r)
{
    const struct remote *remote = atomic_load(&r->remote);

    return remote ? remote->peer : NULL;
}

/* ---- asking ---- */

static void test_ask(void)
{
    struct route *r;

    staticfix_begin(3);
    r = wanted(2);
    staticfix_expect_asks(3, 2);
    staticfix_unclaimed(0, 2);
    staticfix_unclaimed(0, 2); /* which is no second one's */
    staticfix_unclaimed(1, 3); /* nor is that */
    staticfix_unclaimed(1, 2);
    g_assert_cmpuint(r->asked, ==, ROUTE_ASKED);
    staticfix_claimed(2, 2, 5);
    g_assert_true(peer_of(r) == STATICFIX_PEER(2));
    staticfix_unclaimed(2, 2);
    g_assert_null(peer_of(r));
    staticfix_expect_asks(3, 2); /* who has it now? */
    staticfix_unclaimed(2, 2);
    staticfix_unclaimed(1, 2);
    g_assert_cmpuint(r->asked, ==, ROUTE_ASKED);
    staticfix_unclaimed(0, 2);
    g_assert_cmpuint(r->asked, ==, ROUTE_ABSENT);
    staticfix_expect("");
    route_put(r);
    staticfix_end();
}

/* Links that come and go while an answer is waited for. */
static void test_ask_links(void)
{
    struct route *r;

    staticfix_begin(0);
    r = wanted(2);
    g_assert_cmpuint(r->asked, ==, ROUTE_ABSENT); /* there is nobody */
    staticfix_up(0);
    staticfix_expect("0?2"); /* now there is */
    staticfix_full[1] = true;
    staticfix_up(1); /* asks only what was not found */
    staticfix_expect("");
    staticfix_unclaimed(0, 2);
    g_assert_cmpuint(r->asked, ==, ROUTE_ABSENT);
    staticfix_full[1] = false;
    staticfix_up(2);
    staticfix_expect_asks(3, 2);
    staticfix_unclaimed(1, 2);
    static_peer_down(STATICFIX_PEER(0));
    g_assert_cmpuint(r->asked, ==, ROUTE_ASKED);
    staticfix_unclaimed(0, 2); /* by a link that is gone */
    static_peer_gone(STATICFIX_PEER(2));
    g_assert_cmpuint(r->asked, ==, ROUTE_ABSENT);
    staticfix_expect("");
    route_put(r);
    staticfix_end();
}

/* There is no room for a question: it comes later, and is waited for. */
static void test_ask_late(void)
{
    struct route *r;

    staticfix_begin(2);
    staticfix_full[1] = true;
    r = wanted(2);
    staticfix_expect("0?2");
    staticfix_unclaimed(0, 2);
    g_assert_cmpuint(r->asked, ==, ROUTE_ASKED);
    turn(50);
    staticfix_expect("");
    staticfix_full[1] = false;
    turn(50);
    staticfix_expect("1?2");
    turn(50);
    staticfix_expect(""); /* once */
    staticfix_claimed(1, 2, 5);
    g_assert_true(peer_of(r) == STATICFIX_PEER(1));
    /* What is in use is asked for by a new link, as soon as it takes something. */
    static_peer_down(STATICFIX_PEER(1));
    staticfix_full[1] = true;
    staticfix_up(1);
    staticfix_expect("");
    staticfix_full[1] = false;
    turn(50);
    staticfix_expect("1?2");
    /* A link that is lost is not asked later. */
    staticfix_full[1] = true;
    static_peer_down(STATICFIX_PEER(1));
    staticfix_up(1);
    static_peer_down(STATICFIX_PEER(1));
    staticfix_full[1] = false;
    turn(50);
    staticfix_expect("");
    route_put(r);
    staticfix_end();
}

/* ---- moves ---- */

static void moved_claim(unsigned peer, unsigned n, uint64_t generation, uint64_t hold_ns)
{
    struct pvrdma_gid gid = staticfix_gid(n);
    struct claim c = {{7, 8}, generation};

    if (directory_has_key(&staticfix_vm)) {
        proof_make(&c, staticfix_vm.identity.key, "elsewhere");
    }
    static_claimed(STATICFIX_PEER(peer), "blue", &gid, &c, hold_ns);
}

/* Who claims what runs here is told that it does, and followed when it stands still. */
static void test_runs(void)
{
    staticfix_begin(3);
    staticfix_vm.identity.generation = 3;
    staticfix_vm.identity.key[0] = 1;
    staticfix_bind(1);
    staticfix_expect_all(3, '+',
                         1); /* it has had another place: all hear that it is here */
    staticfix_asked(1, 1);
    staticfix_expect("1+1");
    moved_claim(0, 1, 4, 0);
    staticfix_expect("0+1");
    g_assert_cmpuint(staticfix_last_hold, ==, 0);
    moved_claim(0, 1, 3, 0); /* old: there is nothing to say */
    staticfix_claimed(0, 1, 5);
    staticfix_expect("");
    atomic_store(&staticfix_vm.dp.paused, true);
    directory_hold(&staticfix_vm, DIRECTORY_MAX_HOLD_NS);
    staticfix_expect_all(3, '=', 1);
    moved_claim(0, 1, 4, 0);
    staticfix_expect_all(3, '-', 1); /* to ask who has it */
    staticfix_unbind(1);
    staticfix_expect("");
    atomic_store(&staticfix_vm.dp.paused, false);
    staticfix_vm.moved = false;
    staticfix_vm.identity.key[0] = 0;
    staticfix_vm.identity.generation = 1;
    staticfix_end();
}

/* Of what has left, this host says what it did before, until time is up. */
static void test_left(void)
{
    staticfix_begin(1);
    staticfix_bind(1);
    staticfix_asked(0, 1);
    staticfix_expect("0+1 0+1");
    directory_left(&staticfix_vm, 0, 1000000000);
    staticfix_expect("0=1");
    g_assert_cmpuint(staticfix_last_hold, >, 0);
    g_assert_cmpuint(staticfix_last_hold, <=, 1000000000);
    staticfix_up(1);
    staticfix_asked(1, 1);
    staticfix_expect("1+1 1+1");
    g_assert_cmpuint(staticfix_last_hold, <=, 1000000000);
    turn(1200);
    g_assert_cmpuint(staticfix_sent->len, ==, 8);
    g_assert_nonnull(strstr(staticfix_sent->str, "0-1 "));
    g_assert_nonnull(strstr(staticfix_sent->str, "1-1 "));
    g_string_truncate(staticfix_sent, 0);
    staticfix_end();
}

/* An address that is about to be claimed here: who has it says so. */
static void test_look(void)
{
    struct pvrdma_gid gid = staticfix_gid(2);
    const struct route *r;

    staticfix_begin(2);
    directory_look("blue", &gid);
    staticfix_expect_asks(2, 2);
    staticfix_unclaimed(0, 2);
    g_assert_cmpuint(directory_routes(), ==, 0);
    moved_claim(1, 2, 2, 60000000000);
    r = route_find(g_intern_string("blue"), &gid);
    g_assert_true(r && peer_of(r) == STATICFIX_PEER(1));
    directory_look("blue", &gid); /* it is known, but does it stand still yet? */
    staticfix_expect_asks(2, 2);
    staticfix_vm.identity.generation = 3; /* it has moved here */
    staticfix_bind(2);
    g_assert_false(directory_unclaim(STATICFIX_PEER(1), "blue", &gid));
    g_string_truncate(staticfix_sent, 0);
    staticfix_unbind(2);
    staticfix_vm.identity.generation = 1;
    staticfix_end();
}

/* Of what has had another place each new link is told, unasked; of nothing else. */
static void test_new_link(void)
{
    staticfix_begin(1);
    staticfix_bind(1);
    staticfix_up(1);
    staticfix_expect("");
    staticfix_vm.identity.generation = 2;
    staticfix_up(1);
    staticfix_expect("1+1");
    staticfix_asked(1, 1); /* all there is was told */
    staticfix_expect("1+1");
    staticfix_up(0);
    staticfix_expect("0+1");
    g_string_truncate(staticfix_sent, 0);
    staticfix_unbind(1);
    g_string_truncate(staticfix_sent, 0);
    staticfix_up(1);
    staticfix_expect("");
    staticfix_vm.identity.generation = 1;
    staticfix_end();
}

/* A hold that comes behind the claim from the new place: that is asked for again. */
static void test_late_hold(void)
{
    struct pvrdma_gid gid = staticfix_gid(2);
    struct route *r;

    staticfix_begin(3);
    r = wanted(2);
    staticfix_expect_asks(3, 2);
    moved_claim(0, 2, 3, 0);
    moved_claim(1, 2, 4, 0);
    g_assert_true(peer_of(r) == STATICFIX_PEER(0));
    staticfix_expect("");
    static_held(STATICFIX_PEER(0), "blue", &gid, 60000000000);
    staticfix_expect_asks(3, 2);
    moved_claim(0, 2, 3, 60000000000);
    moved_claim(1, 2, 4, 0);
    staticfix_unclaimed(2, 2);
    g_assert_true(peer_of(r) == STATICFIX_PEER(1));
    staticfix_expect("");
    static_peer_gone(STATICFIX_PEER(1));
    g_assert_nonnull(strstr(staticfix_sent->str, "0?2 "));
    g_assert_nonnull(strstr(staticfix_sent->str, "2?2 "));
    g_assert_cmpuint(staticfix_sent->len, ==, 8);
    g_string_truncate(staticfix_sent, 0);
    route_put(r);
    staticfix_end();
}

/* ---- telling ---- */

static void test_tell(void)
{
    staticfix_begin(2);
    staticfix_bind(1);
    staticfix_expect(""); /* nobody has asked */
    staticfix_asked(0, 9);
    staticfix_expect("0+1 0-9");
    staticfix_asked(0, 1);
    staticfix_expect("0+1");
    staticfix_bind(2);
    staticfix_expect("0+2");
    directory_hold(&staticfix_vm, DIRECTORY_MAX_HOLD_NS);
    assert_held(DIRECTORY_MAX_HOLD_NS);
    staticfix_expect("0=2 0=1");
    staticfix_asked(0, 1); /* the claim says it, too */
    assert_held(DIRECTORY_MAX_HOLD_NS);
    directory_hold(&staticfix_vm, 0);
    g_assert_cmpuint(staticfix_last_hold, ==, 0);
    staticfix_expect("0+1 0=2 0=1");
    /* Waited for no longer, it still does not run: that is not what others hear. */
    directory_set_max_hold(1000000);
    directory_hold(&staticfix_vm, DIRECTORY_MAX_HOLD_NS);
    assert_held(1000000);
    turn(5);
    staticfix_asked(0, 1);
    g_assert_cmpuint(staticfix_last_hold, ==, 1);
    directory_hold(&staticfix_vm, 0);
    directory_set_max_hold(DIRECTORY_MAX_HOLD_NS);
    staticfix_expect("0=2 0=1 0+1 0=2 0=1");
    /* A claim is an interest as well, and is taken after ours are told. */
    staticfix_claimed(1, 7, 5);
    staticfix_expect("1+2 1+1");
    staticfix_unbind(1);
    g_assert_nonnull(strstr(staticfix_sent->str, "0-1"));
    g_assert_nonnull(strstr(staticfix_sent->str, "1-1"));
    g_string_truncate(staticfix_sent, 0);
    static_peer_down(STATICFIX_PEER(0));
    staticfix_unbind(2);
    staticfix_expect("1-2");
    staticfix_end();
}

/* Networks that nobody here is in: nothing is said, nothing is kept. */
static void test_network(void)
{
    struct pvrdma_gid gid = staticfix_gid(1);
    struct claim c = {{1, 1}, 1};

    staticfix_begin(1);
    staticfix_bind(1);
    static_asked(STATICFIX_PEER(0), "nobody", &gid);
    staticfix_expect("0-1nobody");
    static_claimed(STATICFIX_PEER(0), "nobody", &gid, &c, 0);
    static_held(STATICFIX_PEER(0), "nobody", &gid, 1);
    static_unclaimed(STATICFIX_PEER(0), "nobody", &gid);
    staticfix_expect("");
    g_assert_null(directory_network("nobody"));
    g_assert_cmpuint(directory_routes(), ==, 1);
    staticfix_unbind(1);
    staticfix_expect(""); /* it was told nothing of the other either */
    staticfix_end();
}

/* Let the timer run. */
/* What finds no room is told when there is some: what is true then. */
static void test_full(void)
{
    staticfix_begin(2);
    staticfix_bind(1);
    staticfix_asked(0, 1);
    staticfix_expect("0+1 0+1");
    staticfix_full[0] = true;
    staticfix_bind(2);
    staticfix_bind(3);
    staticfix_unbind(1);
    staticfix_unbind(3);
    staticfix_bind(3);
    directory_hold(&staticfix_vm, DIRECTORY_MAX_HOLD_NS);
    turn(50);
    staticfix_expect("");
    staticfix_unbind(3);
    staticfix_full[0] = false;
    turn(50);
    g_assert_cmpuint(staticfix_sent->len, ==, 12);
    g_assert_nonnull(strstr(staticfix_sent->str, "0-1 "));
    g_assert_nonnull(strstr(staticfix_sent->str, "0+2 "));
    g_assert_nonnull(strstr(staticfix_sent->str, "0-3 "));
    assert_held(DIRECTORY_MAX_HOLD_NS);
    g_string_truncate(staticfix_sent, 0);
    turn(50);
    staticfix_expect(""); /* once */

    /* All of a network, and an answer. */
    staticfix_full[1] = true;
    staticfix_bind(4);
    staticfix_expect("0+4");
    staticfix_asked(1, 9);
    staticfix_full[1] = false;
    turn(50);
    g_assert_cmpuint(staticfix_sent->len, ==, 12);
    g_assert_nonnull(strstr(staticfix_sent->str, "1+2 "));
    g_assert_nonnull(strstr(staticfix_sent->str, "1+4 "));
    g_assert_nonnull(strstr(staticfix_sent->str, "1-9 "));
    g_string_truncate(staticfix_sent, 0);

    /* What was late is not said on a new link. */
    staticfix_full[0] = true;
    staticfix_unbind(4);
    staticfix_expect("1-4");
    static_peer_down(STATICFIX_PEER(0));
    staticfix_full[0] = false;
    staticfix_up(0);
    turn(50);
    staticfix_expect("");
    directory_hold(&staticfix_vm, 0);
    staticfix_unbind(2);
    staticfix_expect("1=2 1-2");
    staticfix_end();
}

/* What the peer is to be told of is @n addresses more. */
static void bind_and_unbind(unsigned first, unsigned n)
{
    for (unsigned i = first; i < first + n; i++) {
        struct pvrdma_gid gid = {
            .raw = {0xfe, 0x80, [13] = i >> 16, [14] = i >> 8 & 255, [15] = i & 255}};

        g_assert_cmpint(directory_bind(&staticfix_vm, &gid), ==, 0);
        directory_unbind(&staticfix_vm, &gid);
    }
}

/* Too much is late: the link begins anew. */
static void test_too_late(void)
{
    size_t before;

    staticfix_begin(1);
    staticfix_asked(0, 9);
    staticfix_expect("0-9");
    staticfix_full[0] = true;
    before = heap_used();
    bind_and_unbind(0, DIRECTORY_MAX_CLAIMS);
    turn(200);
    g_assert_cmpuint(staticfix_resets, ==, 0);
    heap_assert_each("late", before, DIRECTORY_MAX_CLAIMS, LATE_BYTES);
    bind_and_unbind(DIRECTORY_MAX_CLAIMS, 10);
    g_assert_cmpuint(staticfix_resets, ==, 0);
    turn(200);
    g_assert_cmpuint(staticfix_resets, ==, 1);
    staticfix_full[0] = false;
    turn(50);
    staticfix_expect("");
    staticfix_end();
}

/* ---- links ---- */

static void test_again(void)
{
    struct route *r;

    staticfix_begin(1);
    staticfix_bind(1);
    r = wanted(2);
    staticfix_expect("0?2");
    staticfix_claimed(0, 2, 5);
    staticfix_claimed(0, 3, 5);
    staticfix_expect("0+1");
    static_peer_down(STATICFIX_PEER(0));
    g_assert_true(peer_of(r) == STATICFIX_PEER(0)); /* it may come back */
    staticfix_claimed(0, 4, 5);                     /* but says nothing now */
    staticfix_asked(0, 1);
    staticfix_expect("");
    g_assert_cmpuint(directory_routes(), ==, 3);
    staticfix_up(0);
    /* What is in use is asked for, ours is told before; the rest is forgotten. */
    staticfix_expect("0+1 0?2");
    g_assert_cmpuint(directory_routes(), ==, 2);
    g_assert_true(peer_of(r) == STATICFIX_PEER(0));
    staticfix_claimed(0, 2, 6); /* another VM's now */
    g_assert_cmpuint(atomic_load(&r->remote)->claim.owner[0], ==, 6);
    static_peer_down(STATICFIX_PEER(0));
    staticfix_up(0);
    staticfix_expect("0+1 0?2");
    staticfix_unclaimed(0, 2); /* gone while the link was down */
    g_assert_null(peer_of(r));
    staticfix_expect("0?2");
    staticfix_claimed(0, 2, 6);
    staticfix_up(0); /* a link in place of another, without a word */
    staticfix_expect("0+1 0?2");
    static_peer_gone(STATICFIX_PEER(0));
    g_assert_null(peer_of(r));
    g_assert_cmpuint(r->asked, ==, ROUTE_ABSENT);
    staticfix_unbind(1);
    staticfix_expect("");
    route_put(r);
    staticfix_end();
}

/*
 * For too long without a link: what stands still there is waited for, but anybody else
 * who has it is asked, and has it now.
 */
static void test_away(void)
{
    struct route *r;
    uint64_t left;

    staticfix_begin(2);
    r = wanted(2);
    staticfix_expect_asks(2, 2);
    moved_claim(0, 2, 3, 60000000000);
    moved_claim(0, 3, 3, 1); /* its time is over */
    moved_claim(0, 4, 3, 0); /* it runs */
    static_peer_down(STATICFIX_PEER(0));
    moved_claim(1, 2, 1, 0); /* of no use yet */
    staticfix_expect("");
    g_assert_true(peer_of(r) == STATICFIX_PEER(0));
    g_assert_cmpuint(directory_routes(), ==, 3);
    left = static_peer_away(STATICFIX_PEER(0));
    g_assert_cmpuint(left, >, 0);
    g_assert_cmpuint(left, <=, 60000000000);
    staticfix_expect("1?2");
    g_assert_cmpuint(directory_routes(), ==, 1);
    g_assert_true(peer_of(r) == STATICFIX_PEER(0));
    g_assert_cmpuint(r->held_until, >, 0);
    g_assert_cmpuint(static_peer_away(STATICFIX_PEER(0)), >, 0);
    staticfix_expect("1?2");
    staticfix_claimed(1, 2, 6);
    g_assert_true(peer_of(r) == STATICFIX_PEER(1));
    g_assert_cmpuint(r->held_until, ==, 0);
    g_assert_cmpuint(static_peer_away(STATICFIX_PEER(0)), ==, 0);
    staticfix_expect("");
    route_put(r);
    staticfix_end();
}

/*
 * As long as that lasts those are asked again and again who were not asked before, or did
 * not have it yet: for who waits for it, and for who sends there.
 */
static void test_away_asks(void)
{
    struct pvrdma_gid gid = staticfix_gid(5);
    const struct route *sent_to;
    struct route *r;

    staticfix_begin(3);
    r = wanted(2);
    staticfix_expect_asks(3, 2);
    moved_claim(2, 2, 3, 60000000000);
    moved_claim(2, 5, 3, 60000000000);
    sent_to = route_find(blue, &gid);
    static_peer_down(STATICFIX_PEER(1));
    static_peer_down(STATICFIX_PEER(2));
    staticfix_expect("");
    g_assert_cmpuint(static_peer_away(STATICFIX_PEER(2)), >, 0);
    staticfix_expect("0?2");
    staticfix_unclaimed(0, 2);
    g_assert_cmpuint(r->asked, ==, ROUTE_ABSENT);
    g_assert_true(peer_of(r) == STATICFIX_PEER(2));
    g_assert_cmpuint(r->held_until, >, 0);
    staticfix_up(1);
    staticfix_expect_asks(2, 2);
    staticfix_unclaimed(0, 2);
    staticfix_unclaimed(1, 2);
    turn(1300);
    g_assert_cmpuint(r->asked, ==, ROUTE_NOT_ASKED);
    staticfix_up(1); /* as new */
    staticfix_expect_asks(2, 2);
    staticfix_unclaimed(0, 2);
    staticfix_unclaimed(1, 2);
    turn(1300);
    g_assert_cmpuint(static_peer_away(STATICFIX_PEER(2)), >, 0);
    staticfix_expect_asks(2, 2);

    g_assert_true(directory_want(&staticfix_vm, sent_to, blue, &gid));
    turn(10);
    staticfix_expect_asks(2, 5);
    g_assert_true(directory_want(&staticfix_vm, sent_to, blue, &gid));
    staticfix_unclaimed(0, 5);
    staticfix_unclaimed(1, 5);
    g_assert_false(directory_want(&staticfix_vm, sent_to, blue, &gid));
    turn(10);
    staticfix_expect("");
    g_assert_true(peer_of(sent_to) == STATICFIX_PEER(2));
    staticfix_claimed(1, 2, 6);
    staticfix_claimed(1, 5, 7);
    g_assert_true(peer_of(r) == STATICFIX_PEER(1));
    g_assert_true(peer_of(sent_to) == STATICFIX_PEER(1));
    g_assert_cmpuint(r->asked, ==, ROUTE_NOT_ASKED);
    g_assert_cmpuint(static_peer_away(STATICFIX_PEER(2)), ==, 0);
    staticfix_expect("");
    route_put(r);
    staticfix_end();
}

/* It was away for long, and is back with what it had: that is its own again. */
static void test_away_back(void)
{
    struct route *r;

    staticfix_begin(2);
    r = wanted(2);
    staticfix_expect_asks(2, 2);
    moved_claim(0, 2, 3, 60000000000);
    static_peer_down(STATICFIX_PEER(0));
    g_assert_cmpuint(static_peer_away(STATICFIX_PEER(0)), >, 0);
    staticfix_expect("1?2");
    g_assert_cmpuint(r->asked, ==, ROUTE_ASKED);
    staticfix_up(0);
    staticfix_expect("0?2");
    g_assert_cmpuint(r->asked, ==, ROUTE_NOT_ASKED);
    moved_claim(0, 2, 3, 0);
    g_assert_cmpuint(r->held_until, ==, 0);
    staticfix_claimed(1, 2, 6);
    g_assert_true(peer_of(r) == STATICFIX_PEER(0));
    staticfix_expect("");
    route_put(r);
    staticfix_end();
}

/* More than can be asked for at a time: each has its turn. */
static void test_away_many(void)
{
    enum { N = DIRECTORY_MAX_ASKED + 100 };
    struct directory_stats st;
    struct route *r[N];
    unsigned asked_for = 0;

    staticfix_begin(2);
    for (unsigned i = 0; i < N; i++) {
        struct pvrdma_gid gid = staticfix_gid(2);
        struct claim c = {{5, 0}, 1};

        gid.raw[8] = (uint8_t)(i >> 8);
        gid.raw[9] = (uint8_t)i;
        r[i] = route_get("blue", &gid);
        static_claimed(STATICFIX_PEER(0), "blue", &gid, &c, 60000000000);
    }
    static_peer_down(STATICFIX_PEER(0));
    g_assert_cmpuint(static_peer_away(STATICFIX_PEER(0)), >, 0);
    for (unsigned i = 0; i < N; i++) {
        asked_for += r[i]->asked == ROUTE_ASKED;
    }
    g_assert_cmpuint(asked_for, ==, DIRECTORY_MAX_ASKED);
    staticfix_up(2);                   /* asks for none of the others */
    for (unsigned i = 0; i < N; i++) { /* nobody has those */
        struct pvrdma_gid gid = staticfix_gid(2);

        gid.raw[8] = (uint8_t)(i >> 8);
        gid.raw[9] = (uint8_t)i;
        if (r[i]->asked == ROUTE_ASKED) {
            static_unclaimed(STATICFIX_PEER(1), "blue", &gid);
        }
    }
    turn(1300);
    g_assert_cmpuint(static_peer_away(STATICFIX_PEER(0)), >, 0);
    asked_for = 0;
    for (unsigned i = 0; i < N; i++) {
        /* The first that was heard of is the last to be asked for. */
        asked_for += i < 100 && r[i]->asked == ROUTE_ASKED;
        route_put(r[i]);
    }
    g_assert_cmpuint(asked_for, ==, 100);
    directory_get_stats(&st);
    g_assert_cmpuint(st.too_many, ==, 1); /* with the link that came */
    g_string_truncate(staticfix_sent, 0);
    staticfix_end();
}

/* Two hosts claim one address: the first keeps it, then the second is found. */
static void test_both(void)
{
    struct pvrdma_gid gid = staticfix_gid(2);
    struct route *r;

    staticfix_begin(2);
    r = wanted(2);
    staticfix_expect_asks(2, 2);
    staticfix_claimed(0, 2, 5);
    staticfix_claimed(1, 2, 6);
    g_assert_true(peer_of(r) == STATICFIX_PEER(0));
    g_assert_cmpint(directory_bind(&staticfix_vm, &gid), ==, EADDRINUSE);
    staticfix_unclaimed(0, 2);
    staticfix_expect_asks(2, 2);
    staticfix_unclaimed(0, 2);
    staticfix_claimed(1, 2, 6);
    g_assert_true(peer_of(r) == STATICFIX_PEER(1));
    route_put(r);
    staticfix_end();
}

int main(int argc, char **argv)
{
    staticfix_init(&argc, &argv);
    blue = g_intern_string("blue");
    g_test_add_func("/static/ask", test_ask);
    g_test_add_func("/static/away", test_away);
    g_test_add_func("/static/away-asks", test_away_asks);
    g_test_add_func("/static/away-back", test_away_back);
    g_test_add_func("/static/away-many", test_away_many);
    g_test_add_func("/static/ask-links", test_ask_links);
    g_test_add_func("/static/ask-late", test_ask_late);
    g_test_add_func("/static/runs", test_runs);
    g_test_add_func("/static/left", test_left);
    g_test_add_func("/static/late-hold", test_late_hold);
    g_test_add_func("/static/look", test_look);
    g_test_add_func("/static/new-link", test_new_link);
    g_test_add_func("/static/tell", test_tell);
    g_test_add_func("/static/network", test_network);
    g_test_add_func("/static/full", test_full);
    g_test_add_func("/static/too-late", test_too_late);
    g_test_add_func("/static/again", test_again);
    g_test_add_func("/static/both", test_both);
    return g_test_run();
}
