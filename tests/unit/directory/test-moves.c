/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Addresses that go elsewhere with their VM: who may take one from whom, what is held
 * for those who have left, and what those who watch a route see meanwhile.  The engine
 * is the test's.
 */
#include <errno.h>
#include <glib.h>

#include "base/state_stream.h"
#include "directory/directory.h"
#include "proof.h"
#include "turn.h"
#include "vm/attach.h"

#define SECOND 1000000000ull

static struct vm_config cfg = {.name = (char *)"a", .network = (char *)"blue"};
/* [0] and [1] are the same VM before and after a move; [2] is another. */
static struct vm vm[3];
static const char *blue;

static char peers[3];
#define PEER(i) ((struct peer *)(void *)&peers[i])

static const struct pvrdma_gid one = {.raw = {0xfe, 0x80, [15] = 1}},
                               two = {.raw = {0xfe, 0x80, [15] = 2}};
static struct route *route;

/* ---- the engine, and who watches ---- */

static GString *said; /* +: bound, -: unbound, =: held, ?: asked, !: called */
static unsigned changes, moves;
static struct vm *moved;

static bool engine_ask(const char *network, const struct pvrdma_gid *gid)
{
    g_string_append_c(said, '?');
    return true;
}

static void engine_call(const char *network, const struct pvrdma_gid *gid)
{
    g_string_append_c(said, '!');
}

static void engine_give_up(const char *network, const struct pvrdma_gid *gid)
{
}

static void engine_bound(const struct vm *v, const char *network,
                         const struct pvrdma_gid *gid)
{
    g_string_append_c(said, '+');
}

static void engine_unbound(const char *network, const struct pvrdma_gid *gid)
{
    struct claim claim;
    uint64_t until;

    g_assert_false(directory_local(network, gid, &claim, &until));
    g_string_append_c(said, '-');
}

static void engine_held(const char *network, const struct pvrdma_gid *gid, uint64_t until)
{
    g_string_append_c(said, '=');
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

static void watcher(struct route *r)
{
    g_assert_true(r == route);
    changes++;
}

static void has_moved(struct vm *v)
{
    moves++;
    moved = v;
}

static void expect(const char *want)
{
    g_assert_cmpstr(said->str, ==, want);
    g_string_truncate(said, 0);
}

static void begin(void)
{
    for (unsigned i = 0; i < 3; i++) {
        vm[i] = (struct vm){.cfg = &cfg, .id = i + 1, .serial = i + 1};
        vm[i].identity.owner[0] = i == 2 ? 9 : 7;
        vm[i].identity.generation = i == 1 ? 4 : 3;
        vm[i].identity.key[0] = 1;
    }
    directory_init();
    g_assert_cmpint(directory_set_engine(&engine), ==, 0);
    directory_set_watcher(watcher);
    directory_set_moved(has_moved);
    g_string_truncate(said, 0);
    changes = moves = 0;
    moved = NULL;
    route = route_get("blue", &one);
    for (unsigned i = 0; i < 3; i++) {
        directory_linked(PEER(i), true);
    }
}

static void end(void)
{
    directory_set_engine(NULL);
    route_put(route);
    g_assert_cmpuint(directory_count(), ==, 0);
    g_assert_cmpuint(directory_routes(), ==, 0);
    directory_fini();
}

static enum claim_result claim(unsigned peer, uint64_t owner, uint64_t generation,
                               uint64_t hold_ns)
{
    struct claim c = {{owner, 0}, generation};

    proof_make(&c, vm[0].identity.key, "elsewhere");
    return directory_claim(PEER(peer), blue, &one, &c, hold_ns);
}

static void stand_still(struct vm *v, bool yes)
{
    atomic_store(&v->dp.paused, yes);
    directory_hold(v, yes ? DIRECTORY_MAX_HOLD_NS : 0);
}

static struct peer *place(void)
{
    const struct remote *r = atomic_load(&route->remote);

    return r ? r->peer : NULL;
}

static bool is_held(void)
{
    return atomic_load(&route->held_until) > (uint64_t)g_get_monotonic_time() * 1000;
}

static unsigned left(void)
{
    struct directory_stats st;

    directory_get_stats(&st);
    return st.left;
}

/* ---- from VM to VM of one host ---- */

static void test_within(void)
{
    uint64_t gen;

    begin();
    g_assert_cmpint(directory_bind(&vm[0], &one), ==, 0);
    g_assert_cmpint(directory_bind(&vm[0], &one), ==, 0); /* twice */
    expect("+");
    g_assert_cmpint(directory_bind(&vm[1], &one), ==, EADDRINUSE); /* it runs */
    g_assert_cmpint(directory_bind(&vm[2], &one), ==, EADDRINUSE);
    stand_still(&vm[0], true);
    expect("=");
    g_assert_cmpint(directory_bind(&vm[2], &one), ==, EADDRINUSE); /* another's */
    vm[1].identity.generation = 3;
    g_assert_cmpint(directory_bind(&vm[1], &one), ==, EADDRINUSE); /* not moved */
    g_assert_true(directory_may_run(&vm[0]));
    g_assert_true(atomic_load(&route->vm) == &vm[0]);
    vm[1].identity.generation = 4;
    gen = route->gen;
    changes = 0;
    atomic_store(&vm[1].dp.paused, true);
    g_assert_cmpint(directory_bind(&vm[1], &one), ==, 0);
    expect("+");
    g_assert_cmpuint(changes, ==, 1);
    g_assert_cmpuint(route->gen, >, gen);
    g_assert_true(is_held());
    stand_still(&vm[1], false);
    g_assert_false(is_held());
    g_assert_true(atomic_load(&route->vm) == &vm[1]);
    g_assert_false(directory_may_run(&vm[0]));
    g_assert_true(directory_may_run(&vm[1]));
    g_assert_true(moved == &vm[0] && moves == 1);
    g_assert_cmpuint(directory_count(), ==, 1);
    /* What the former one does with it counts no more. */
    g_string_truncate(said, 0);
    stand_still(&vm[0], false);
    directory_unbind(&vm[0], &one);
    directory_left(&vm[0], 0, SECOND);
    expect("");
    g_assert_true(atomic_load(&route->vm) == &vm[1]);
    g_assert_cmpint(directory_bind(&vm[0], &one), ==, EADDRINUSE);
    directory_unbind(&vm[1], &one);
    expect("-");
    end();
}

/* Its state was handed over, but then it went on: whoever has that state is too late. */
static void test_went_on(void)
{
    begin();
    g_assert_cmpint(directory_bind(&vm[0], &one), ==, 0);
    expect("+");
    directory_went_on(&vm[0]);
    expect("+"); /* other hosts hear of it */
    stand_still(&vm[0], true);
    g_assert_cmpint(directory_bind(&vm[1], &one), ==, EADDRINUSE);
    g_assert_true(directory_may_run(&vm[0]));
    vm[1].identity.generation = vm[0].identity.generation + 1;
    g_assert_cmpint(directory_bind(&vm[1], &one), ==, 0);
    directory_unbind(&vm[1], &one);
    g_string_truncate(said, 0);
    end();
}

/* The second address is another VM's: the first one stays where it is, and that runs. */
static void test_all_or_none(void)
{
    const struct pvrdma_gid both[] = {one, two};

    begin();
    g_assert_cmpint(directory_bind(&vm[0], &one), ==, 0);
    g_assert_cmpint(directory_bind(&vm[2], &two), ==, 0);
    stand_still(&vm[0], true);
    g_string_truncate(said, 0);
    changes = 0;
    g_assert_cmpint(directory_bind_all(&vm[1], both, 2), ==, EADDRINUSE);
    expect("");
    g_assert_cmpuint(changes, ==, 0);
    g_assert_cmpuint(moves, ==, 0);
    g_assert_true(directory_may_run(&vm[0]));
    g_assert_true(atomic_load(&route->vm) == &vm[0]);
    directory_unbind(&vm[2], &two);
    expect("-");
    g_assert_cmpint(directory_bind_all(&vm[1], both, 2), ==, 0);
    expect("++");
    g_assert_false(directory_may_run(&vm[0]));
    directory_unbind(&vm[1], &one);
    directory_unbind(&vm[1], &two);
    end();

    /* The same, and the first one is at a peer, where its owner stands still. */
    begin();
    g_assert_cmpint(claim(0, 7, 3, 60 * SECOND), ==, CLAIM_TAKEN);
    g_assert_cmpint(directory_bind(&vm[2], &two), ==, 0);
    g_string_truncate(said, 0);
    g_assert_cmpint(directory_bind_all(&vm[1], both, 2), ==, EADDRINUSE);
    expect("");
    g_assert_true(place() == PEER(0));
    directory_unbind(&vm[2], &two);
    end();
}

/* ---- to and from other hosts ---- */

static void test_to_peer(void)
{
    begin();
    g_assert_cmpint(directory_bind(&vm[0], &one), ==, 0);
    g_assert_cmpint(directory_bind(&vm[0], &two), ==, 0);
    expect("++");
    /* A host that repeats the claim of a VM that runs. */
    g_assert_cmpint(claim(0, 7, 99, 0), ==, CLAIM_RUNS);
    g_assert_cmpint(claim(0, 7, 3, 0), ==, CLAIM_OLD);
    g_assert_cmpint(claim(0, 9, 99, 0), ==, CLAIM_LOCAL);
    g_assert_true(atomic_load(&route->vm) == &vm[0]);
    stand_still(&vm[0], true);
    expect("==");
    g_assert_cmpint(claim(0, 9, 99, 0), ==, CLAIM_LOCAL);
    g_assert_cmpint(claim(0, 7, 3, 0), ==, CLAIM_OLD);
    g_assert_cmpuint(moves, ==, 0);
    g_assert_cmpint(claim(0, 7, 4, 0), ==, CLAIM_TAKEN);
    expect("-"); /* those who do not know the new place ask */
    g_assert_true(!atomic_load(&route->vm) && place() == PEER(0));
    g_assert_false(is_held());
    g_assert_true(moved == &vm[0] && moves == 1);
    g_assert_false(directory_may_run(&vm[0]));
    g_assert_cmpuint(directory_count(), ==, 1); /* its other address */
    directory_unbind(&vm[0], &one);
    directory_unbind(&vm[0], &two);
    expect("-");
    g_assert_true(place() == PEER(0));
    end();
}

static void test_from_peer(void)
{
    begin();
    g_assert_cmpint(claim(0, 7, 3, 0), ==, CLAIM_TAKEN);
    g_assert_cmpint(directory_bind(&vm[1], &one), ==, EADDRINUSE); /* it runs there */
    directory_hold_remote(PEER(0), blue, &one, 60 * SECOND);
    g_assert_cmpint(directory_bind(&vm[0], &one), ==, EADDRINUSE); /* has not moved */
    g_assert_cmpint(directory_bind(&vm[2], &one), ==, EADDRINUSE);
    g_assert_true(place() == PEER(0));
    g_assert_cmpint(directory_bind(&vm[1], &one), ==, 0);
    expect("+");
    g_assert_true(!place() && atomic_load(&route->vm) == &vm[1]);
    g_assert_false(is_held());
    /* What is said there now is old. */
    g_assert_false(directory_unclaim(PEER(0), blue, &one));
    directory_hold_remote(PEER(0), blue, &one, 0);
    g_assert_cmpint(claim(0, 7, 3, SECOND), ==, CLAIM_OLD);
    g_assert_cmpint(claim(1, 7, 3, 0), ==, CLAIM_OLD); /* from there it did not come */
    g_assert_cmpint(claim(0, 9, 3, 0), ==, CLAIM_LOCAL);
    g_assert_cmpint(claim(0, 7, 3, 0), ==, CLAIM_OLD);
    g_assert_cmpuint(moves, ==, 0);
    directory_unbind(&vm[1], &one);
    end();

    /* It stands still until its host says that it runs, whoever waits for it. */
    begin();
    g_assert_cmpint(claim(0, 7, 3, SECOND / 20), ==, CLAIM_TAKEN);
    turn(60);
    g_assert_false(is_held());
    g_assert_cmpint(directory_bind(&vm[1], &one), ==, 0);
    directory_unbind(&vm[1], &one);
    end();

    /* A host without a link cannot say that its VM runs. */
    begin();
    g_assert_cmpint(claim(0, 7, 3, SECOND / 20), ==, CLAIM_TAKEN);
    directory_hold_remote(PEER(0), blue, &one, 0);
    g_assert_cmpint(directory_bind(&vm[1], &one), ==, EADDRINUSE);
    directory_linked(PEER(0), false);
    g_assert_cmpint(directory_bind(&vm[2], &one), ==, EADDRINUSE);
    g_assert_cmpint(directory_bind(&vm[1], &one), ==, 0);
    directory_unbind(&vm[1], &one);
    end();
}

/* Between two other hosts, whose words may come in any order. */
static void test_between(void)
{
    begin();
    g_assert_cmpint(claim(0, 7, 3, 0), ==, CLAIM_TAKEN);
    g_assert_cmpint(claim(1, 7, 4, 0), ==, CLAIM_RUNS);
    g_assert_true(place() == PEER(0));
    expect("");
    directory_hold_remote(PEER(0), blue, &one, 60 * SECOND);
    expect("!"); /* the other is asked to claim it again */
    g_assert_cmpint(claim(1, 7, 4, 0), ==, CLAIM_TAKEN);
    g_assert_true(place() == PEER(1));
    g_assert_false(is_held());
    directory_hold_remote(PEER(1), blue, &one, 60 * SECOND);
    expect(""); /* once */
    /* And back, while it holds; then on, as its link is lost. */
    g_assert_cmpint(claim(0, 7, 4, 0), ==, CLAIM_OLD);
    g_assert_cmpint(claim(0, 7, 5, 0), ==, CLAIM_TAKEN);
    g_assert_cmpint(claim(2, 7, 6, 0), ==, CLAIM_RUNS);
    directory_linked(PEER(0), false);
    expect("?"); /* whoever else has it */
    g_assert_cmpint(claim(2, 7, 6, 0), ==, CLAIM_TAKEN);
    g_assert_true(place() == PEER(2));
    /* Another owner's is asked for when it is free, though nobody may want it. */
    g_assert_cmpint(claim(1, 9, 1, 0), ==, CLAIM_OTHER);
    route_put(route);
    g_assert_true(directory_unclaim(PEER(2), blue, &one));
    expect("?");
    route = route_get("blue", &one);
    g_assert_cmpint(claim(1, 9, 1, 0), ==, CLAIM_TAKEN);
    end();
}

/* Refused as a VM of this host has it, and asked for when that lets go. */
static void test_let_go(void)
{
    begin();
    g_assert_cmpint(directory_bind(&vm[0], &one), ==, 0);
    g_assert_cmpint(claim(0, 9, 1, 0), ==, CLAIM_LOCAL);
    expect("+");
    directory_unbind(&vm[0], &one);
    expect("-?");
    g_assert_cmpint(claim(0, 9, 1, 0), ==, CLAIM_TAKEN);
    end();
}

/* ---- those who have left ---- */

static void test_left(void)
{
    struct claim c;
    uint64_t until;

    begin();
    g_assert_cmpint(directory_bind(&vm[0], &one), ==, 0);
    stand_still(&vm[0], true);
    expect("+=");
    changes = 0;
    directory_left(&vm[0], 0, 60 * SECOND);
    expect("=");
    g_assert_cmpuint(changes, ==, 1);
    g_assert_cmpuint(left(), ==, 1);
    g_assert_cmpuint(directory_count(), ==, 0);
    g_assert_true(!atomic_load(&route->vm) && !place() && is_held());
    g_assert_true(route_find(blue, &one) == route);
    /* This host speaks for it still. */
    g_assert_true(directory_local(blue, &one, &c, &until));
    g_assert_cmpuint(c.owner[0], ==, 7);
    g_assert_cmpuint(c.generation, ==, 3);
    g_assert_cmpuint(until, ==, atomic_load(&route->held_until));
    directory_unbind(&vm[0], &one); /* has no effect any more */
    /* It is its owner's, and of nobody who was there before. */
    g_assert_cmpint(directory_bind(&vm[2], &one), ==, EADDRINUSE);
    g_assert_cmpint(directory_bind(&vm[0], &one), ==, EADDRINUSE);
    g_assert_cmpint(claim(0, 9, 9, 0), ==, CLAIM_OTHER);
    g_assert_cmpint(claim(0, 7, 3, 0), ==, CLAIM_OLD);
    g_assert_cmpuint(left(), ==, 1);
    g_assert_cmpint(claim(0, 7, 4, SECOND), ==, CLAIM_TAKEN);
    expect("-");
    g_assert_cmpuint(left(), ==, 0);
    g_assert_true(place() == PEER(0) && is_held());
    g_assert_cmpuint(moves, ==, 0);
    end();

    /* The same by a VM of this host: a snapshot that is gone on with. */
    begin();
    g_assert_cmpint(directory_bind(&vm[0], &one), ==, 0);
    directory_left(&vm[0], 0, 60 * SECOND);
    g_assert_cmpint(directory_bind(&vm[1], &one), ==, 0);
    g_assert_false(is_held());
    g_assert_cmpuint(left(), ==, 0);
    directory_unbind(&vm[1], &one);
    end();
}

/* Another guest begins in the VM that was left: it waits for nobody. */
static void test_left_and_begun_anew(void)
{
    begin();
    g_assert_cmpint(directory_bind(&vm[0], &one), ==, 0);
    g_assert_cmpint(directory_bind(&vm[0], &two), ==, 0);
    directory_left(&vm[0], 0, 60 * SECOND);
    expect("++==");
    vm[0].identity.owner[0] = 8;
    vm[0].identity.generation = 1;
    changes = 0;
    g_assert_cmpint(directory_bind(&vm[0], &one), ==, 0);
    expect("--+");
    g_assert_cmpuint(changes, ==, 2); /* nobody has it; then the new one */
    g_assert_true(atomic_load(&route->vm) == &vm[0]);
    g_assert_false(is_held());
    g_assert_cmpuint(left(), ==, 0);
    g_assert_cmpint(directory_bind(&vm[1], &one), ==, EADDRINUSE);
    directory_unbind(&vm[0], &one);
    end();
}

/* Nobody comes: it is free, and those who wait learn it. */
static void test_left_for_good(void)
{
    begin();
    g_assert_cmpint(directory_bind(&vm[0], &one), ==, 0);
    g_assert_cmpint(directory_bind(&vm[0], &two), ==, 0);
    directory_left(&vm[0], 0, SECOND / 10);
    expect("++==");
    changes = 0;
    g_assert_cmpint(claim(0, 9, 1, 0), ==, CLAIM_OTHER);
    turn(300);
    expect("--?"); /* one of them was wanted by another */
    g_assert_cmpuint(changes, ==, 1);
    g_assert_cmpuint(left(), ==, 0);
    g_assert_false(is_held());
    g_assert_cmpint(directory_bind(&vm[2], &one), ==, 0);
    directory_unbind(&vm[2], &one);
    end();
}

/* A VM that comes, goes and leaves addresses each time holds those of the last alone. */
static void test_left_again(void)
{
    begin();
    for (unsigned i = 0; i < 10; i++) {
        struct pvrdma_gid gid = {.raw = {0xfd, [15] = i}};

        g_assert_cmpint(directory_bind(&vm[0], &gid), ==, 0);
        directory_left(&vm[0], 0, 60 * SECOND);
        g_assert_cmpuint(left(), ==, 1);
        vm[0].identity.owner[0]++;
    }
    g_assert_cmpint(directory_bind(&vm[2], &two), ==, 0);
    directory_left(&vm[2], 0, 60 * SECOND);
    g_assert_cmpuint(left(), ==, 2);
    directory_left(&vm[0], 0, 60 * SECOND); /* and with nothing, of nothing */
    g_assert_cmpuint(left(), ==, 1);
    directory_set_engine(NULL);
    route_put(route);
    g_assert_cmpuint(directory_routes(), ==, 1);
    directory_fini(); /* with one that is waited for */
}

/* What was left waits on at the next daemon, for as long as it had. */
static void test_left_handed_over(void)
{
    g_autoptr(GByteArray) bytes = g_byte_array_new();
    struct state_out out;
    guint from;

    begin();
    g_assert_cmpint(directory_bind(&vm[0], &one), ==, 0);
    g_assert_cmpint(directory_bind(&vm[0], &two), ==, 0);
    directory_left(&vm[0], 0, 60 * SECOND);
    state_out_begin(&out, bytes);
    from = bytes->len;
    directory_left_hand_over(&vm[0], &out);
    g_assert_cmpuint(left(), ==, 2); /* all is as it was */
    directory_set_engine(NULL);
    route_put(route);
    directory_fini();

    /* Cut off anywhere or damaged it is refused, or waits for somebody else. */
    for (guint i = from; i < bytes->len * 8; i++) {
        char error[STATE_ERROR_MAX] = "";
        struct state_in s = {bytes->data + from,
                             i < bytes->len ? i - from : bytes->len - from, error};

        begin();
        if (i >= bytes->len) {
            bytes->data[MAX(i / 8, from)] ^= 1u << i % 8;
        }
        directory_left_take_over(&vm[0], &s);
        g_assert_true(i >= bytes->len || state_failed(&s));
        g_assert_cmpuint(left(), <=, 2);
        if (i >= bytes->len) {
            bytes->data[MAX(i / 8, from)] ^= 1u << i % 8;
        }
        directory_set_engine(NULL);
        route_put(route);
        directory_fini();
    }

    begin();
    {
        char error[STATE_ERROR_MAX] = "";
        struct state_in s = {bytes->data + from, bytes->len - from, error};

        directory_left_take_over(&vm[0], &s);
        state_all_read(&s);
        g_assert_cmpstr(error, ==, "");
    }
    g_assert_cmpuint(left(), ==, 2);
    g_assert_true(is_held());
    g_assert_cmpint(directory_bind(&vm[2], &one), ==, EADDRINUSE);
    g_assert_cmpint(directory_bind(&vm[1], &one), ==, 0); /* its owner, a move later */
    directory_unbind(&vm[1], &one);
    /* The same VM of the configuration: forgets. */
    directory_left(&vm[0], 0, 60 * SECOND);
    g_assert_cmpuint(left(), ==, 0);
    end();
}

int main(int argc, char **argv)
{
    int rc;

    g_test_init(&argc, &argv, NULL);
    blue = g_intern_string("blue");
    said = g_string_new(NULL);
    g_test_add_func("/moves/within", test_within);
    g_test_add_func("/moves/went-on", test_went_on);
    g_test_add_func("/moves/all-or-none", test_all_or_none);
    g_test_add_func("/moves/to-peer", test_to_peer);
    g_test_add_func("/moves/from-peer", test_from_peer);
    g_test_add_func("/moves/between", test_between);
    g_test_add_func("/moves/let-go", test_let_go);
    g_test_add_func("/moves/left", test_left);
    g_test_add_func("/moves/left-and-begun-anew", test_left_and_begun_anew);
    g_test_add_func("/moves/left-for-good", test_left_for_good);
    g_test_add_func("/moves/left-again", test_left_again);
    g_test_add_func("/moves/left-handed-over", test_left_handed_over);
    rc = g_test_run();
    g_string_free(said, TRUE);
    return rc;
}
