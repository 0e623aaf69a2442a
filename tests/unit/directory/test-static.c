/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The engine `static`: who is asked and when nobody has an address, who is told what
 * this host has and in which order, and what becomes of it when links come and go.
 * Messages are lines in a string: "0?2" asks peer 0 for address 2, "0+2" claims it
 * there, "0-2" says that it is not here, "0=2" that it stands still or not any more,
 * "0>2" that another host goes on with it.
 */
#include <errno.h>
#include <glib.h>

#include "../heap.h"
#include "directory/static.h"
#include "proof.h"
#include "vm/attach.h"

/* Of docs/hosts.md: of an address that a peer is to be told of and has no room for. */
#define LATE_BYTES 70u

static struct vm_config cfg = {.name = (char *)"a", .network = (char *)"blue"};
static struct vm vm = {.cfg = &cfg, .id = 1, .owner = {7, 8}, .generation = 1};
static const char *blue;

static char peers[3];
#define PEER(i) ((struct peer *)(void *)&peers[i])

static struct pvrdma_gid make_gid(unsigned n)
{
    struct pvrdma_gid gid = {.raw = {0xfe, 0x80, [15] = n}};

    return gid;
}

/* ---- what is sent ---- */

static GString *sent;
static bool full[3]; /* its link takes nothing */
static uint64_t last_hold;

static bool say(struct peer *peer, char what, const char *network,
                const struct pvrdma_gid *gid)
{
    unsigned i = (unsigned)((char *)peer - peers);

    if (full[i]) {
        return false;
    }
    g_string_append_printf(sent, "%u%c%u%s ", i, what, gid->raw[15],
                           g_str_equal(network, "blue") ? "" : network);
    return true;
}

static bool send_ask(struct peer *peer, const char *network, const struct pvrdma_gid *gid)
{
    return say(peer, '?', network, gid);
}

static bool send_claim(struct peer *peer, const char *network,
                       const struct pvrdma_gid *gid, const struct claim *claim,
                       uint64_t hold_ns)
{
    g_assert_cmpuint(claim->owner[0], ==, 7);
    g_assert_true(claim->owner[1] == 8 || claim->owner[1] == 9);
    g_assert_cmpuint(claim->generation, ==, vm.generation);
    last_hold = hold_ns;
    return say(peer, '+', network, gid);
}

static bool send_unclaim(struct peer *peer, const char *network,
                         const struct pvrdma_gid *gid)
{
    return say(peer, '-', network, gid);
}

/* What was told last: that it is held, for @ns from a moment ago. */
static void assert_held(uint64_t ns)
{
    g_assert_cmpuint(last_hold, >, ns > 60000000000 ? ns - 60000000000 : 0);
    g_assert_cmpuint(last_hold, <=, ns);
}

static bool send_hold(struct peer *peer, const char *network,
                      const struct pvrdma_gid *gid, uint64_t hold_ns)
{
    last_hold = hold_ns;
    return say(peer, '=', network, gid);
}

static bool send_rival(struct peer *peer, const char *network,
                       const struct pvrdma_gid *gid, const struct claim *claim)
{
    return say(peer, '>', network, gid);
}

static unsigned resets;

static void reset(struct peer *peer)
{
    resets++;
    static_peer_down(peer);
}

static const struct static_ops ops = {send_ask,  send_claim, send_unclaim,
                                      send_hold, send_rival, reset};

/* The messages since the last time, without the last blank. */
static void expect(const char *want)
{
    if (sent->len) {
        g_string_truncate(sent, sent->len - 1);
    }
    g_assert_cmpstr(sent->str, ==, want);
    g_string_truncate(sent, 0);
}

static void up(unsigned i)
{
    static_peer_up(PEER(i), "host");
}

static void begin(unsigned n_up)
{
    directory_init();
    g_string_truncate(sent, 0);
    memset(full, 0, sizeof(full));
    g_assert_cmpint(static_start(&ops), ==, 0);
    for (unsigned i = 0; i < n_up; i++) {
        up(i);
    }
    expect("");
}

static void end(void)
{
    static_stop();
    g_assert_cmpuint(directory_routes(), ==, 0);
    directory_fini();
}

static struct route *wanted(unsigned n)
{
    struct pvrdma_gid gid = make_gid(n);
    struct route *r = route_get("blue", &gid);

    route_ask(r, NULL);
    return r;
}

static void asked(unsigned peer, unsigned n)
{
    struct pvrdma_gid gid = make_gid(n);

    static_asked(PEER(peer), "blue", &gid);
}

static void claimed(unsigned peer, unsigned n, uint64_t owner)
{
    struct pvrdma_gid gid = make_gid(n);
    struct claim c = {{owner, 0}, 1};

    static_claimed(PEER(peer), "blue", &gid, &c, 0);
}

static void unclaimed(unsigned peer, unsigned n)
{
    struct pvrdma_gid gid = make_gid(n);

    static_unclaimed(PEER(peer), "blue", &gid);
}

static void bind_gid(unsigned n)
{
    struct pvrdma_gid gid = make_gid(n);

    g_assert_cmpint(directory_bind(&vm, &gid), ==, 0);
}

static void unbind(unsigned n)
{
    struct pvrdma_gid gid = make_gid(n);

    directory_unbind(&vm, &gid);
}

static struct peer *peer_of(const struct route *r)
{
    const struct remote *remote = atomic_load(&r->remote);

    return remote ? remote->peer : NULL;
}

/* ---- asking ---- */

/* The order of the peers is the hash table's. */
static void expect_all(unsigned n, char what, unsigned gid)
{
    for (unsigned i = 0; i < n; i++) {
        g_autofree char *message = g_strdup_printf("%u%c%u", i, what, gid);

        g_assert_nonnull(strstr(sent->str, message));
    }
    g_assert_cmpuint(sent->len, ==, 4 * n);
    g_string_truncate(sent, 0);
}

static void expect_asks(unsigned n, unsigned gid)
{
    expect_all(n, '?', gid);
}

static void turn(unsigned ms)
{
    gint64 until = g_get_monotonic_time() + ms * 1000;

    do {
        while (g_main_context_iteration(NULL, FALSE)) {
        }
        g_usleep(500);
    } while (g_get_monotonic_time() < until);
    while (g_main_context_iteration(NULL, FALSE)) {
    }
}

static void test_ask(void)
{
    struct route *r;

    begin(3);
    r = wanted(2);
    expect_asks(3, 2);
    unclaimed(0, 2);
    unclaimed(0, 2); /* which is no second one's */
    unclaimed(1, 3); /* nor is that */
    unclaimed(1, 2);
    g_assert_cmpuint(r->asked, ==, ROUTE_ASKED);
    claimed(2, 2, 5);
    g_assert_true(peer_of(r) == PEER(2));
    unclaimed(2, 2);
    g_assert_null(peer_of(r));
    expect_asks(3, 2); /* who has it now? */
    unclaimed(2, 2);
    unclaimed(1, 2);
    g_assert_cmpuint(r->asked, ==, ROUTE_ASKED);
    unclaimed(0, 2);
    g_assert_cmpuint(r->asked, ==, ROUTE_ABSENT);
    expect("");
    route_put(r);
    end();
}

/* Links that come and go while an answer is waited for. */
static void test_ask_links(void)
{
    struct route *r;

    begin(0);
    r = wanted(2);
    g_assert_cmpuint(r->asked, ==, ROUTE_ABSENT); /* there is nobody */
    up(0);
    expect("0?2"); /* now there is */
    full[1] = true;
    up(1); /* asks only what was not found */
    expect("");
    unclaimed(0, 2);
    g_assert_cmpuint(r->asked, ==, ROUTE_ABSENT);
    full[1] = false;
    up(2);
    expect_asks(3, 2);
    unclaimed(1, 2);
    static_peer_down(PEER(0));
    g_assert_cmpuint(r->asked, ==, ROUTE_ASKED);
    unclaimed(0, 2); /* by a link that is gone */
    static_peer_gone(PEER(2));
    g_assert_cmpuint(r->asked, ==, ROUTE_ABSENT);
    expect("");
    route_put(r);
    end();
}

/* There is no room for a question: it comes later, and is waited for. */
static void test_ask_late(void)
{
    struct route *r;

    begin(2);
    full[1] = true;
    r = wanted(2);
    expect("0?2");
    unclaimed(0, 2);
    g_assert_cmpuint(r->asked, ==, ROUTE_ASKED);
    turn(50);
    expect("");
    full[1] = false;
    turn(50);
    expect("1?2");
    turn(50);
    expect(""); /* once */
    claimed(1, 2, 5);
    g_assert_true(peer_of(r) == PEER(1));
    /* What is in use is asked for by a new link, as soon as it takes something. */
    static_peer_down(PEER(1));
    full[1] = true;
    up(1);
    expect("");
    full[1] = false;
    turn(50);
    expect("1?2");
    /* A link that is lost is not asked later. */
    full[1] = true;
    static_peer_down(PEER(1));
    up(1);
    static_peer_down(PEER(1));
    full[1] = false;
    turn(50);
    expect("");
    route_put(r);
    end();
}

/* ---- moves ---- */

static void moved_claim(unsigned peer, unsigned n, uint64_t generation, uint64_t hold_ns)
{
    struct pvrdma_gid gid = make_gid(n);
    struct claim c = {{7, 8}, generation};

    if (directory_has_key(&vm)) {
        proof_make(&c, vm.key, "elsewhere");
    }
    static_claimed(PEER(peer), "blue", &gid, &c, hold_ns);
}

/* Who claims what runs here is told that it does, and followed when it stands still. */
static void test_runs(void)
{
    begin(3);
    vm.generation = 3;
    vm.key[0] = 1;
    bind_gid(1);
    expect_all(3, '+', 1); /* it has had another place: all hear that it is here */
    asked(1, 1);
    expect("1+1");
    moved_claim(0, 1, 4, 0);
    expect("0+1");
    g_assert_cmpuint(last_hold, ==, 0);
    moved_claim(0, 1, 3, 0); /* old: there is nothing to say */
    claimed(0, 1, 5);
    expect("");
    atomic_store(&vm.dp.paused, true);
    directory_hold(&vm, DIRECTORY_MAX_HOLD_NS);
    expect_all(3, '=', 1);
    moved_claim(0, 1, 4, 0);
    expect_all(3, '-', 1); /* to ask who has it */
    unbind(1);
    expect("");
    atomic_store(&vm.dp.paused, false);
    vm.moved = false;
    vm.key[0] = 0;
    vm.generation = 1;
    end();
}

/* Of what has left, this host says what it did before, until time is up. */
static void test_left(void)
{
    begin(1);
    bind_gid(1);
    asked(0, 1);
    expect("0+1 0+1");
    directory_left(&vm, 0, 1000000000);
    expect("0=1");
    g_assert_cmpuint(last_hold, >, 0);
    g_assert_cmpuint(last_hold, <=, 1000000000);
    up(1);
    asked(1, 1);
    expect("1+1 1+1");
    g_assert_cmpuint(last_hold, <=, 1000000000);
    turn(1200);
    g_assert_cmpuint(sent->len, ==, 8);
    g_assert_nonnull(strstr(sent->str, "0-1 "));
    g_assert_nonnull(strstr(sent->str, "1-1 "));
    g_string_truncate(sent, 0);
    end();
}

/* An address that is about to be claimed here: who has it says so. */
static void test_look(void)
{
    struct pvrdma_gid gid = make_gid(2);
    const struct route *r;

    begin(2);
    directory_look("blue", &gid);
    expect_asks(2, 2);
    unclaimed(0, 2);
    g_assert_cmpuint(directory_routes(), ==, 0);
    moved_claim(1, 2, 2, 60000000000);
    r = route_find(g_intern_string("blue"), &gid);
    g_assert_true(r && peer_of(r) == PEER(1));
    directory_look("blue", &gid); /* it is known, but does it stand still yet? */
    expect_asks(2, 2);
    vm.generation = 3; /* it has moved here */
    bind_gid(2);
    g_assert_false(directory_unclaim(PEER(1), "blue", &gid));
    g_string_truncate(sent, 0);
    unbind(2);
    vm.generation = 1;
    end();
}

/* Of what has had another place each new link is told, unasked; of nothing else. */
static void test_new_link(void)
{
    begin(1);
    bind_gid(1);
    up(1);
    expect("");
    vm.generation = 2;
    up(1);
    expect("1+1");
    asked(1, 1); /* all there is was told */
    expect("1+1");
    up(0);
    expect("0+1");
    g_string_truncate(sent, 0);
    unbind(1);
    g_string_truncate(sent, 0);
    up(1);
    expect("");
    vm.generation = 1;
    end();
}

/* A hold that comes behind the claim from the new place: that is asked for again. */
static void test_late_hold(void)
{
    struct pvrdma_gid gid = make_gid(2);
    struct route *r;

    begin(3);
    r = wanted(2);
    expect_asks(3, 2);
    moved_claim(0, 2, 3, 0);
    moved_claim(1, 2, 4, 0);
    g_assert_true(peer_of(r) == PEER(0));
    expect("");
    static_held(PEER(0), "blue", &gid, 60000000000);
    expect_asks(3, 2);
    moved_claim(0, 2, 3, 60000000000);
    moved_claim(1, 2, 4, 0);
    unclaimed(2, 2);
    g_assert_true(peer_of(r) == PEER(1));
    expect("");
    static_peer_gone(PEER(1));
    g_assert_nonnull(strstr(sent->str, "0?2 "));
    g_assert_nonnull(strstr(sent->str, "2?2 "));
    g_assert_cmpuint(sent->len, ==, 8);
    g_string_truncate(sent, 0);
    route_put(r);
    end();
}

/* ---- telling ---- */

static void test_tell(void)
{
    begin(2);
    bind_gid(1);
    expect(""); /* nobody has asked */
    asked(0, 9);
    expect("0+1 0-9");
    asked(0, 1);
    expect("0+1");
    bind_gid(2);
    expect("0+2");
    directory_hold(&vm, DIRECTORY_MAX_HOLD_NS);
    assert_held(DIRECTORY_MAX_HOLD_NS);
    expect("0=2 0=1");
    asked(0, 1); /* the claim says it, too */
    assert_held(DIRECTORY_MAX_HOLD_NS);
    directory_hold(&vm, 0);
    g_assert_cmpuint(last_hold, ==, 0);
    expect("0+1 0=2 0=1");
    /* Waited for no longer, it still does not run: that is not what others hear. */
    directory_set_max_hold(1000000);
    directory_hold(&vm, DIRECTORY_MAX_HOLD_NS);
    assert_held(1000000);
    turn(5);
    asked(0, 1);
    g_assert_cmpuint(last_hold, ==, 1);
    directory_hold(&vm, 0);
    directory_set_max_hold(DIRECTORY_MAX_HOLD_NS);
    expect("0=2 0=1 0+1 0=2 0=1");
    /* A claim is an interest as well, and is taken after ours are told. */
    claimed(1, 7, 5);
    expect("1+2 1+1");
    unbind(1);
    g_assert_nonnull(strstr(sent->str, "0-1"));
    g_assert_nonnull(strstr(sent->str, "1-1"));
    g_string_truncate(sent, 0);
    static_peer_down(PEER(0));
    unbind(2);
    expect("1-2");
    end();
}

/* Networks that nobody here is in: nothing is said, nothing is kept. */
static void test_network(void)
{
    struct pvrdma_gid gid = make_gid(1);
    struct claim c = {{1, 1}, 1};

    begin(1);
    bind_gid(1);
    static_asked(PEER(0), "nobody", &gid);
    expect("0-1nobody");
    static_claimed(PEER(0), "nobody", &gid, &c, 0);
    static_held(PEER(0), "nobody", &gid, 1);
    static_unclaimed(PEER(0), "nobody", &gid);
    expect("");
    g_assert_null(directory_network("nobody"));
    g_assert_cmpuint(directory_routes(), ==, 1);
    unbind(1);
    expect(""); /* it was told nothing of the other either */
    end();
}

/* Let the timer run. */
/* What finds no room is told when there is some: what is true then. */
static void test_full(void)
{
    begin(2);
    bind_gid(1);
    asked(0, 1);
    expect("0+1 0+1");
    full[0] = true;
    bind_gid(2);
    bind_gid(3);
    unbind(1);
    unbind(3);
    bind_gid(3);
    directory_hold(&vm, DIRECTORY_MAX_HOLD_NS);
    turn(50);
    expect("");
    unbind(3);
    full[0] = false;
    turn(50);
    g_assert_cmpuint(sent->len, ==, 12);
    g_assert_nonnull(strstr(sent->str, "0-1 "));
    g_assert_nonnull(strstr(sent->str, "0+2 "));
    g_assert_nonnull(strstr(sent->str, "0-3 "));
    assert_held(DIRECTORY_MAX_HOLD_NS);
    g_string_truncate(sent, 0);
    turn(50);
    expect(""); /* once */

    /* All of a network, and an answer. */
    full[1] = true;
    bind_gid(4);
    expect("0+4");
    asked(1, 9);
    full[1] = false;
    turn(50);
    g_assert_cmpuint(sent->len, ==, 12);
    g_assert_nonnull(strstr(sent->str, "1+2 "));
    g_assert_nonnull(strstr(sent->str, "1+4 "));
    g_assert_nonnull(strstr(sent->str, "1-9 "));
    g_string_truncate(sent, 0);

    /* What was late is not said on a new link. */
    full[0] = true;
    unbind(4);
    expect("1-4");
    static_peer_down(PEER(0));
    full[0] = false;
    up(0);
    turn(50);
    expect("");
    directory_hold(&vm, 0);
    unbind(2);
    expect("1=2 1-2");
    end();
}

/* What the peer is to be told of is @n addresses more. */
static void bind_and_unbind(unsigned first, unsigned n)
{
    for (unsigned i = first; i < first + n; i++) {
        struct pvrdma_gid gid = {
            .raw = {0xfe, 0x80, [13] = i >> 16, [14] = i >> 8 & 255, [15] = i & 255}};

        g_assert_cmpint(directory_bind(&vm, &gid), ==, 0);
        directory_unbind(&vm, &gid);
    }
}

/* Too much is late: the link begins anew. */
static void test_too_late(void)
{
    size_t before;

    begin(1);
    asked(0, 9);
    expect("0-9");
    full[0] = true;
    before = heap_used();
    bind_and_unbind(0, DIRECTORY_MAX_CLAIMS);
    turn(200);
    g_assert_cmpuint(resets, ==, 0);
    heap_assert_each("late", before, DIRECTORY_MAX_CLAIMS, LATE_BYTES);
    bind_and_unbind(DIRECTORY_MAX_CLAIMS, 10);
    g_assert_cmpuint(resets, ==, 0);
    turn(200);
    g_assert_cmpuint(resets, ==, 1);
    full[0] = false;
    turn(50);
    expect("");
    end();
}

/* ---- links ---- */

static void test_again(void)
{
    struct route *r;

    begin(1);
    bind_gid(1);
    r = wanted(2);
    expect("0?2");
    claimed(0, 2, 5);
    claimed(0, 3, 5);
    expect("0+1");
    static_peer_down(PEER(0));
    g_assert_true(peer_of(r) == PEER(0)); /* it may come back */
    claimed(0, 4, 5);                     /* but says nothing now */
    asked(0, 1);
    expect("");
    g_assert_cmpuint(directory_routes(), ==, 3);
    up(0);
    /* What is in use is asked for, ours is told before; the rest is forgotten. */
    expect("0+1 0?2");
    g_assert_cmpuint(directory_routes(), ==, 2);
    g_assert_true(peer_of(r) == PEER(0));
    claimed(0, 2, 6); /* another VM's now */
    g_assert_cmpuint(atomic_load(&r->remote)->claim.owner[0], ==, 6);
    static_peer_down(PEER(0));
    up(0);
    expect("0+1 0?2");
    unclaimed(0, 2); /* gone while the link was down */
    g_assert_null(peer_of(r));
    expect("0?2");
    claimed(0, 2, 6);
    up(0); /* a link in place of another, without a word */
    expect("0+1 0?2");
    static_peer_gone(PEER(0));
    g_assert_null(peer_of(r));
    g_assert_cmpuint(r->asked, ==, ROUTE_ABSENT);
    unbind(1);
    expect("");
    route_put(r);
    end();
}

/*
 * For too long without a link: what stands still there is waited for, but anybody else
 * who has it is asked, and has it now.
 */
static void test_away(void)
{
    struct route *r;
    uint64_t left;

    begin(2);
    r = wanted(2);
    expect_asks(2, 2);
    moved_claim(0, 2, 3, 60000000000);
    moved_claim(0, 3, 3, 1); /* its time is over */
    moved_claim(0, 4, 3, 0); /* it runs */
    static_peer_down(PEER(0));
    moved_claim(1, 2, 1, 0); /* of no use yet */
    expect("");
    g_assert_true(peer_of(r) == PEER(0));
    g_assert_cmpuint(directory_routes(), ==, 3);
    left = static_peer_away(PEER(0));
    g_assert_cmpuint(left, >, 0);
    g_assert_cmpuint(left, <=, 60000000000);
    expect("1?2");
    g_assert_cmpuint(directory_routes(), ==, 1);
    g_assert_true(peer_of(r) == PEER(0));
    g_assert_cmpuint(r->held_until, >, 0);
    g_assert_cmpuint(static_peer_away(PEER(0)), >, 0);
    expect("1?2");
    claimed(1, 2, 6);
    g_assert_true(peer_of(r) == PEER(1));
    g_assert_cmpuint(r->held_until, ==, 0);
    g_assert_cmpuint(static_peer_away(PEER(0)), ==, 0);
    expect("");
    route_put(r);
    end();
}

/*
 * As long as that lasts those are asked again and again who were not asked before, or did
 * not have it yet: for who waits for it, and for who sends there.
 */
static void test_away_asks(void)
{
    struct pvrdma_gid gid = make_gid(5);
    const struct route *sent_to;
    struct route *r;

    begin(3);
    r = wanted(2);
    expect_asks(3, 2);
    moved_claim(2, 2, 3, 60000000000);
    moved_claim(2, 5, 3, 60000000000);
    sent_to = route_find(blue, &gid);
    static_peer_down(PEER(1));
    static_peer_down(PEER(2));
    expect("");
    g_assert_cmpuint(static_peer_away(PEER(2)), >, 0);
    expect("0?2");
    unclaimed(0, 2);
    g_assert_cmpuint(r->asked, ==, ROUTE_ABSENT);
    g_assert_true(peer_of(r) == PEER(2));
    g_assert_cmpuint(r->held_until, >, 0);
    up(1);
    expect_asks(2, 2);
    unclaimed(0, 2);
    unclaimed(1, 2);
    turn(1300);
    g_assert_cmpuint(r->asked, ==, ROUTE_NOT_ASKED);
    up(1); /* as new */
    expect_asks(2, 2);
    unclaimed(0, 2);
    unclaimed(1, 2);
    turn(1300);
    g_assert_cmpuint(static_peer_away(PEER(2)), >, 0);
    expect_asks(2, 2);

    g_assert_true(directory_want(&vm, sent_to, blue, &gid));
    turn(10);
    expect_asks(2, 5);
    g_assert_true(directory_want(&vm, sent_to, blue, &gid));
    unclaimed(0, 5);
    unclaimed(1, 5);
    g_assert_false(directory_want(&vm, sent_to, blue, &gid));
    turn(10);
    expect("");
    g_assert_true(peer_of(sent_to) == PEER(2));
    claimed(1, 2, 6);
    claimed(1, 5, 7);
    g_assert_true(peer_of(r) == PEER(1));
    g_assert_true(peer_of(sent_to) == PEER(1));
    g_assert_cmpuint(r->asked, ==, ROUTE_NOT_ASKED);
    g_assert_cmpuint(static_peer_away(PEER(2)), ==, 0);
    expect("");
    route_put(r);
    end();
}

/* It was away for long, and is back with what it had: that is its own again. */
static void test_away_back(void)
{
    struct route *r;

    begin(2);
    r = wanted(2);
    expect_asks(2, 2);
    moved_claim(0, 2, 3, 60000000000);
    static_peer_down(PEER(0));
    g_assert_cmpuint(static_peer_away(PEER(0)), >, 0);
    expect("1?2");
    g_assert_cmpuint(r->asked, ==, ROUTE_ASKED);
    up(0);
    expect("0?2");
    g_assert_cmpuint(r->asked, ==, ROUTE_NOT_ASKED);
    moved_claim(0, 2, 3, 0);
    g_assert_cmpuint(r->held_until, ==, 0);
    claimed(1, 2, 6);
    g_assert_true(peer_of(r) == PEER(0));
    expect("");
    route_put(r);
    end();
}

/* More than can be asked for at a time: each has its turn. */
static void test_away_many(void)
{
    enum { N = DIRECTORY_MAX_ASKED + 100 };
    struct directory_stats st;
    struct route *r[N];
    unsigned asked_for = 0;

    begin(2);
    for (unsigned i = 0; i < N; i++) {
        struct pvrdma_gid gid = make_gid(2);
        struct claim c = {{5, 0}, 1};

        gid.raw[8] = (uint8_t)(i >> 8);
        gid.raw[9] = (uint8_t)i;
        r[i] = route_get("blue", &gid);
        static_claimed(PEER(0), "blue", &gid, &c, 60000000000);
    }
    static_peer_down(PEER(0));
    g_assert_cmpuint(static_peer_away(PEER(0)), >, 0);
    for (unsigned i = 0; i < N; i++) {
        asked_for += r[i]->asked == ROUTE_ASKED;
    }
    g_assert_cmpuint(asked_for, ==, DIRECTORY_MAX_ASKED);
    up(2);                             /* asks for none of the others */
    for (unsigned i = 0; i < N; i++) { /* nobody has those */
        struct pvrdma_gid gid = make_gid(2);

        gid.raw[8] = (uint8_t)(i >> 8);
        gid.raw[9] = (uint8_t)i;
        if (r[i]->asked == ROUTE_ASKED) {
            static_unclaimed(PEER(1), "blue", &gid);
        }
    }
    turn(1300);
    g_assert_cmpuint(static_peer_away(PEER(0)), >, 0);
    asked_for = 0;
    for (unsigned i = 0; i < N; i++) {
        /* The first that was heard of is the last to be asked for. */
        asked_for += i < 100 && r[i]->asked == ROUTE_ASKED;
        route_put(r[i]);
    }
    g_assert_cmpuint(asked_for, ==, 100);
    directory_get_stats(&st);
    g_assert_cmpuint(st.too_many, ==, 1); /* with the link that came */
    g_string_truncate(sent, 0);
    end();
}

/* Two hosts claim one address: the first keeps it, then the second is found. */
static void test_both(void)
{
    struct pvrdma_gid gid = make_gid(2);
    struct route *r;

    begin(2);
    r = wanted(2);
    expect_asks(2, 2);
    claimed(0, 2, 5);
    claimed(1, 2, 6);
    g_assert_true(peer_of(r) == PEER(0));
    g_assert_cmpint(directory_bind(&vm, &gid), ==, EADDRINUSE);
    unclaimed(0, 2);
    expect_asks(2, 2);
    unclaimed(0, 2);
    claimed(1, 2, 6);
    g_assert_true(peer_of(r) == PEER(1));
    route_put(r);
    end();
}

/* ---- who waits ---- */

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
        .cfg = &other_cfg, .id = 2, .owner = {7, 9}, .generation = 1};
    struct pvrdma_gid one = make_gid(1), two = make_gid(2);

    begin(1);
    bind_gid(1);
    asked(0, 1);
    expect("0+1 0+1"); /* all, and the answer */
    directory_wait(&other, 3, &one, 0, granted);
    unbind(1);
    expect("0-1");
    asked(0, 1);
    expect("0+1 0+1");
    g_assert_cmpuint(grants, ==, 1);
    directory_unbind(&other, &one);
    expect("0-1");

    directory_set_host("zeta");
    claimed(0, 2, 5);
    directory_wait(&other, 3, &two, 0, granted);
    unclaimed(0, 2);
    expect("0?2");
    asked(0, 2);
    expect("0-2");
    unclaimed(0, 2);
    turn(30);
    g_assert_cmpuint(grants, ==, 1);
    claimed(0, 2, 6);
    turn(600);
    g_assert_cmpuint(grants, ==, 1);
    unclaimed(0, 2);
    expect("0?2");
    unclaimed(0, 2);
    turn(5);
    g_assert_cmpuint(grants, ==, 2);
    expect("0+2");
    directory_unbind(&other, &two);
    expect("0-2");
    end();
}

/*
 * As many questions as there may be are under way: who waits is not told "nobody", also
 * if the host that had it has gone, but asks when there is place.
 */
static void test_waits_full(gconstpointer how)
{
    bool away = GPOINTER_TO_UINT(how);
    struct route *r[DIRECTORY_MAX_ASKED];
    struct pvrdma_gid two = make_gid(2), first = make_gid(3);
    struct claim c = {{5, 0}, 1};
    unsigned was = grants;

    begin(2);
    static_claimed(PEER(0), "blue", &two, &c, away ? 60000000000 : 0);
    directory_wait(&vm, 3, &two, 0, granted);
    for (unsigned i = 0; i < DIRECTORY_MAX_ASKED; i++) {
        struct pvrdma_gid gid = first;

        gid.raw[8] = (uint8_t)(i >> 8);
        gid.raw[9] = (uint8_t)i;
        r[i] = route_get("blue", &gid);
        route_ask(r[i], NULL);
    }
    g_string_truncate(sent, 0);
    static_unclaimed(PEER(0), "blue", &first);
    if (away) {
        static_peer_down(PEER(0));
        static_peer_away(PEER(0));
    } else {
        unclaimed(0, 2);
    }
    turn(50);
    expect("");
    g_assert_cmpuint(grants, ==, was);
    static_unclaimed(PEER(1), "blue", &first);
    while (!sent->len) {
        turn(1); /* that nobody has that one is believed for a second */
    }
    g_assert_cmpuint(r[0]->asked, ==, ROUTE_NOT_ASKED);
    if (away) {
        expect("1?2");
    } else {
        expect_asks(2, 2);
    }
    g_assert_cmpuint(grants, ==, was);
    claimed(1, 2, 6);
    turn(50);
    g_assert_cmpuint(grants, ==, was);
    unclaimed(1, 2);
    g_string_truncate(sent, 0);
    unclaimed(0, 2);
    unclaimed(1, 2);
    turn(5);
    g_assert_cmpuint(grants, ==, was + 1);
    directory_unbind(&vm, &two);
    for (unsigned i = 0; i < DIRECTORY_MAX_ASKED; i++) {
        route_put(r[i]);
    }
    g_string_truncate(sent, 0);
    end();
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    blue = g_intern_string("blue");
    sent = g_string_new(NULL);
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
    g_test_add_func("/static/waits", test_waits);
    g_test_add_data_func("/static/waits-full", NULL, test_waits_full);
    g_test_add_data_func("/static/waits-full-away", GUINT_TO_POINTER(1), test_waits_full);
    return g_test_run();
}
