/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Two places of one state: who goes on, who gives way and to whom, what a third host
 * makes of it, and that nobody gives way to a host that only says so.
 *
 * This is host "beta", or a third one that two others have links with.  Messages are
 * lines in a string, as in test-static.c.
 */
#include <errno.h>
#include <glib.h>
#include <string.h>

#include "base/state_stream.h"
#include "directory/static.h"
#include "proof.h"
#include "vm/attach.h"

static struct vm_config cfg = {.name = (char *)"a", .network = (char *)"blue"};
static struct vm vm;
static const uint8_t key[32] = "the key of the VM, in its state";

/* Their names; [1] comes before this host's, [2] behind it. */
static const char *const names[] = {"zeta", "alpha", "gamma"};
static char peers[3];
#define PEER(i) ((struct peer *)(void *)&peers[i])

static const struct pvrdma_gid gid = {.raw = {0xfe, 0x80, [15] = 1}};

/* ---- what is sent, and to whom ---- */

static GString *sent;
static bool full; /* no link takes the claim of a rival */

static void say(const struct peer *peer, const char *what)
{
    g_string_append_printf(sent, "%u%s ", (unsigned)((const char *)peer - peers), what);
}

static bool send_ask(struct peer *peer, const char *network, const struct pvrdma_gid *g)
{
    say(peer, "?");
    return true;
}

static bool send_claim(struct peer *peer, const char *network, const struct pvrdma_gid *g,
                       const struct claim *claim, uint64_t hold_ns)
{
    say(peer, claim_is_proved(claim) ? "++" : "+");
    return true;
}

static bool send_unclaim(struct peer *peer, const char *network,
                         const struct pvrdma_gid *g)
{
    say(peer, "-");
    return true;
}

static bool send_hold(struct peer *peer, const char *network, const struct pvrdma_gid *g,
                      uint64_t hold_ns)
{
    say(peer, "=");
    return true;
}

static bool send_rival(struct peer *peer, const char *network, const struct pvrdma_gid *g,
                       const struct claim *claim)
{
    g_autofree char *text = g_strdup_printf(">%s", claim->host);

    if (!full) {
        say(peer, text);
    }
    return !full;
}

static void reset(struct peer *peer)
{
    g_assert_not_reached();
}

static const struct static_ops ops = {send_ask,  send_claim, send_unclaim,
                                      send_hold, send_rival, reset};

/* The messages since the last time, in any order. */
static void expect(const char *want)
{
    g_auto(GStrv) is = g_strsplit(g_strchomp(sent->str), " ", -1);
    g_auto(GStrv) be = g_strsplit(want, " ", -1);

    g_assert_cmpuint(g_strv_length(is), ==, g_strv_length(be));
    for (unsigned i = 0; be[i]; i++) {
        if (!g_strv_contains((const char *const *)is, be[i])) {
            g_error("sent '%s', not '%s'", sent->str, want);
        }
    }
    g_string_truncate(sent, 0);
}

static void forget_sent(void)
{
    g_string_truncate(sent, 0);
}

static void turn(unsigned ms)
{
    gint64 until = g_get_monotonic_time() + ms * 1000;

    while (g_get_monotonic_time() < until) {
        while (g_main_context_iteration(NULL, FALSE)) {
        }
        g_usleep(500);
    }
    while (g_main_context_iteration(NULL, FALSE)) { /* this may have slept meanwhile */
    }
}

/* ---- who has moved ---- */

static unsigned moves;

static void has_moved(struct vm *v)
{
    moves++;
}

/* The VM runs here, begun from a state; of generation 0: it is not here. */
static void begin(uint64_t generation)
{
    directory_init();
    directory_set_moved(has_moved);
    g_assert_cmpint(static_start(&ops), ==, 0);
    directory_set_host("beta");
    full = false;
    moves = 0;
    vm = (struct vm){.cfg = &cfg,
                     .id = 1,
                     .serial = 1,
                     .identity = {.owner = {7, 8}, .generation = generation}};
    memcpy(vm.identity.key, key, sizeof(key));
    for (unsigned i = 0; i < 3; i++) {
        static_peer_up(PEER(i), names[i]);
    }
    g_intern_static_string("blue"); /* a VM is, or was, in it */
    forget_sent();
    if (generation) {
        g_assert_cmpint(directory_bind(&vm, &gid), ==, 0);
        expect(generation > 1 ? "0++ 1++ 2++" : "");
    }
}

static void end(void)
{
    if (vm.identity.generation) {
        directory_unbind(&vm, &gid);
    }
    static_stop();
    g_assert_cmpuint(directory_count(), ==, 0);
    g_assert_cmpuint(directory_routes(), ==, 0);
    directory_fini();
}

static bool runs_here(void)
{
    const struct route *r = route_find(g_intern_string("blue"), &gid);

    return r && atomic_load(&r->vm) == &vm;
}

static struct peer *place(void)
{
    const struct route *r = route_find(g_intern_string("blue"), &gid);
    const struct remote *remote = r ? atomic_load(&r->remote) : NULL;

    return remote ? remote->peer : NULL;
}

/* ---- claims ---- */

static struct claim claim_of(const char *host, uint64_t generation)
{
    struct claim c = {{7, 8}, generation};

    proof_make(&c, key, host);
    return c;
}

static void claims(unsigned peer, const struct claim *c)
{
    static_claimed(PEER(peer), "blue", &gid, c, 0);
}

static void claims_proved(unsigned peer, uint64_t generation)
{
    struct claim c = claim_of(names[peer], generation);

    claims(peer, &c);
}

/* @peer passes on what a host that has no link here has claimed. */
static void passes_on(unsigned peer, const char *host, uint64_t generation)
{
    struct claim c = claim_of(host, generation);

    static_rival(PEER(peer), "blue", &gid, &c);
}

/* ---- with a link to the other place ---- */

static void assert_gave_way(struct peer *to)
{
    g_assert_false(runs_here());
    g_assert_true(place() == to);
    g_assert_false(directory_may_run(&vm));
    g_assert_cmpuint(moves, ==, 1);
    expect("0- 1- 2-"); /* who does not know the other asks */
}

static void assert_goes_on(void)
{
    g_assert_true(runs_here());
    g_assert_true(directory_may_run(&vm));
    g_assert_cmpuint(moves, ==, 0);
}

static void test_generation(void)
{
    begin(4);
    claims_proved(2, 3);
    assert_goes_on();
    expect("2++"); /* which has to hear of it */
    claims_proved(2, 5);
    assert_gave_way(PEER(2));
    end();
}

static void test_tie(void)
{
    begin(4);
    claims_proved(2, 4); /* "gamma" comes behind "beta" */
    assert_goes_on();
    expect("2++");
    claims_proved(1, 4);
    assert_gave_way(PEER(1));
    end();
}

/* Who stands still gives way no less: it will be told to run. */
static void test_paused(void)
{
    begin(4);
    atomic_store(&vm.dp.paused, true);
    directory_hold(&vm, DIRECTORY_MAX_HOLD_NS);
    forget_sent();
    claims_proved(2, 4);
    assert_goes_on();
    expect("2++");
    claims_proved(1, 4);
    assert_gave_way(PEER(1));
    end();
}

/* Standing still is no proof: who says it follows has to show that it has the state. */
static void test_unproved(void)
{
    struct claim bare = {{7, 8}, 9}, wrong = claim_of("beta", 9);

    wrong.proof[CLAIM_PROOF_LEN - 1] ^= 1;
    begin(4);
    atomic_store(&vm.dp.paused, true);
    directory_hold(&vm, DIRECTORY_MAX_HOLD_NS);
    claims(1, &bare);
    assert_goes_on();
    claims(1, &wrong);
    assert_goes_on();
    forget_sent();
    claims_proved(1, 9);
    assert_gave_way(PEER(1));
    end();
    /* One whose state was never saved is nowhere else. */
    begin(4);
    memset(vm.identity.key, 0, sizeof(vm.identity.key));
    atomic_store(&vm.dp.paused, true);
    directory_hold(&vm, DIRECTORY_MAX_HOLD_NS);
    claims(1, &bare);
    claims_proved(1, 9);
    assert_goes_on();
    end();
}

/* Whoever they are, of two places that hear of each other one gives way. */
static void test_one_of_two(void)
{
    static const char *const both[] = {"beta", "gamma"};

    for (uint64_t a = 2; a < 6; a++) {
        for (uint64_t b = 2; b < 6; b++) {
            uint64_t generation[] = {a, b};
            unsigned gave_way = 0;

            for (unsigned i = 0; i < 2; i++) {
                struct claim c = claim_of(both[1 - i], generation[1 - i]);

                begin(generation[i]);
                directory_set_host(both[i]);
                vm.identity.proved = 0;
                claims(0, &c);
                gave_way += moves;
                forget_sent();
                end();
            }
            g_assert_cmpuint(gave_way, ==, 1);
        }
    }
}

/* It was let go on where it was: whoever has run from its state gives way. */
static void test_went_on(void)
{
    begin(1);
    directory_went_on(&vm);
    expect("0++ 1++ 2++");
    claims_proved(1, 2);
    assert_goes_on();
    expect("1++");
    end();

    begin(2); /* the other side of that */
    claims_proved(2, 3);
    assert_gave_way(PEER(2));
    end();
}

/* ---- who only says so ---- */

static void test_liar(void)
{
    struct claim c;

    for (uint64_t generation = 1; generation < 3; generation++) {
        begin(generation);
        /* Nothing, or not what is right. */
        c = (struct claim){{7, 8}, 99, names[1], {0}};
        claims(1, &c);
        c = claim_of(names[1], 99);
        c.proof[15] ^= 1;
        claims(1, &c);
        static_rival(PEER(1), "blue", &gid, &c);
        /* What somebody else has proved, or for another time, or another VM. */
        c = claim_of("gamma", 99);
        c.host = names[1];
        claims(1, &c);
        c = claim_of(names[1], 98);
        c.generation = 99;
        claims(1, &c);
        c = claim_of(names[1], 99);
        c.owner[0] = 9;
        claims(1, &c);
        /* What this host has said itself. */
        passes_on(1, "beta", generation);
        passes_on(1, "beta", 99);
        assert_goes_on();
        end();
    }

    /* Nobody has its state: there is nothing by which it could be known. */
    begin(1);
    memset(vm.identity.key, 0, sizeof(vm.identity.key));
    c = claim_of(names[1], 99);
    claims(1, &c);
    assert_goes_on();
    end();
}

/*
 * A VM that has never moved came from nowhere: nobody gets its place by claiming what it
 * binds later, as of its owner and of another time, and letting it have that.
 */
static void test_never_moved(void)
{
    static const struct pvrdma_gid later = {.raw = {0xfe, 0x80, [15] = 2}};
    struct claim c = {{7, 8}, 0, NULL, {0}};

    begin(1);
    static_claimed(PEER(1), "blue", &later, &c, 60000000000u);
    g_assert_cmpint(directory_bind(&vm, &later), ==, 0);
    static_claimed(PEER(1), "blue", &later, &c, 0);
    assert_goes_on();
    directory_unbind(&vm, &later);
    end();
}

/*
 * A proof is of a VM and its place, not of an address: said of another, of another VM's
 * or in another network it moves nobody, by whichever way it comes.
 */
static void test_replayed(void)
{
    static const struct pvrdma_gid other_gid = {.raw = {0xfe, 0x80, [15] = 2}};
    static const char *const networks[] = {"blue", "red", "blue", "no such network"};
    static struct vm_config red = {.name = (char *)"b", .network = (char *)"red"};
    static struct vm others[2];
    const struct pvrdma_gid *const gids[] = {&other_gid, &gid, &other_gid, &gid};
    struct claim c = claim_of(names[1], 99);

    begin(0);
    for (unsigned i = 0; i < 2; i++) { /* with its key, and yet it is not that one */
        others[i] = (struct vm){.cfg = i ? &red : &cfg,
                                .id = 2 + i,
                                .serial = 2 + i,
                                .identity = {.owner = {7, 9}, .generation = 2}};
        memcpy(others[i].identity.key, key, sizeof(key));
        g_assert_cmpint(directory_bind(&others[i], gids[i]), ==, 0);
    }
    for (unsigned i = 0; i < 4; i++) {
        static_rival(PEER(2), networks[i], gids[i], &c);
        static_claimed(PEER(1), networks[i], gids[i], &c, 0);
    }
    g_assert_cmpuint(moves, ==, 0);
    for (unsigned i = 0; i < 2; i++) {
        const struct route *r = route_find(g_intern_string(networks[i]), gids[i]);

        g_assert_true(r && atomic_load(&r->vm) == &others[i]);
        g_assert_true(directory_may_run(&others[i]));
        directory_unbind(&others[i], gids[i]);
    }
    end();
}

/* Nor is anything told to one that proves nothing, again and again. */
static void test_no_echo(void)
{
    struct claim c = {{7, 8}, 4, names[2], {0}};

    begin(4);
    forget_sent();
    claims(2, &c);
    memset(c.proof, 3, sizeof(c.proof));
    claims(2, &c);
    expect("");
    assert_goes_on();
    end();
}

/* ---- by way of a third host ---- */

static void test_passed_on(void)
{
    begin(4);
    passes_on(0, "gamma", 4);
    passes_on(0, "alpha", 3);
    assert_goes_on();
    passes_on(0, "alpha", 4);
    assert_gave_way(NULL);
    end();

    begin(4);
    passes_on(0, "gamma", 5);
    assert_gave_way(NULL);
    end();
}

/*
 * Nobody passes on what was passed on, whether it can be of use or not: no word of one
 * host goes round among others.
 */
static void test_passed_on_once(void)
{
    begin(4);
    for (unsigned i = 0; i < 3; i++) {
        passes_on(i, "delta", 3); /* who comes behind */
        passes_on(i, "beta", 4);
    }
    turn(60);
    expect("");
    assert_goes_on();
    end();

    begin(0); /* a third one, which knows a place that comes first, or behind */
    claims_proved(1, 4);
    forget_sent();
    for (unsigned i = 0; i < 3; i++) {
        passes_on(i, "delta", 3);
        passes_on(i, "delta", 5);
    }
    turn(60);
    expect("");
    g_assert_true(place() == PEER(1));
    end();
}

/* This one is the third: the one that does not go on is told, in either order. */
static void test_third(void)
{
    for (unsigned first = 1; first < 3; first++) {
        unsigned second = 3 - first;

        begin(0);
        claims_proved(first, 4);
        g_assert_true(place() == PEER(first));
        forget_sent();
        claims_proved(second, 4);
        g_assert_true(place() == PEER(first)); /* until that lets go */
        expect("2>alpha");
        if (first == 2) {
            static_unclaimed(PEER(2), "blue", &gid);
            g_assert_null(place());
            claims_proved(1, 4);
            g_assert_true(place() == PEER(1));
        }
        forget_sent();
        end();
    }

    /* By generation. */
    begin(0);
    claims_proved(1, 4);
    forget_sent();
    claims_proved(2, 5);
    expect("1>gamma");
    claims_proved(2, 3);
    expect("2>alpha");
    /* Of others' claims, and of those without a proof, nothing is passed on. */
    claims(2, &(struct claim){{9, 9}, 5, names[2], {1}});
    claims(2, &(struct claim){{7, 8}, 5, NULL, {0}});
    expect("");
    /* It cannot be reached: it may not run any more. */
    static_peer_down(PEER(1));
    expect("0? 2?"); /* the one of generation 5 may have it now */
    claims_proved(2, 4);
    expect("");
    end();
}

/*
 * The one that this third host knew stood still, so that the other has the address; it
 * may be told to run, and is told of that.
 */
static void test_third_still(void)
{
    struct claim first = claim_of(names[2], 4);

    for (unsigned proved = 0; proved < 2; proved++) {
        begin(0);
        if (!proved) {
            memset(first.proof, 0, sizeof(first.proof));
        }
        static_claimed(PEER(2), "blue", &gid, &first, 60000000000u);
        forget_sent();
        claims_proved(1, 5);
        g_assert_true(place() == PEER(1));
        expect(proved ? "2>alpha" : "");
        claims_proved(1, 5); /* and that once */
        expect("");
        end();
        first = claim_of(names[2], 4);
    }

    /* Another owner's, which that one had before, is not its rival. */
    begin(0);
    first.owner[0] = 9;
    static_claimed(PEER(1), "blue", &gid, &first, 60000000000u);
    forget_sent();
    claims_proved(1, 5);
    expect("");
    end();

    /* No room: it is asked to claim once more, and hears of it then. */
    begin(0);
    first = claim_of(names[2], 4);
    static_claimed(PEER(2), "blue", &gid, &first, 60000000000u);
    full = true;
    forget_sent();
    claims_proved(1, 5);
    expect("");
    turn(60);
    expect("2?");
    full = false;
    claims_proved(2, 4);
    expect("2>alpha");
    g_assert_true(place() == PEER(1));
    end();
}

/* ---- what was left, and goes from one daemon to the next ---- */

/* So that what nobody writes to a variable of the next function is not nothing. */
static void __attribute__((noinline)) dirty_the_stack(void)
{
    volatile uint8_t bytes[16384];

    for (unsigned i = 0; i < sizeof(bytes); i++) {
        bytes[i] = 0x5a;
    }
}

/* It is said as it was before, and without a proof: it cannot give way. */
static void test_left(void)
{
    GByteArray *bytes = g_byte_array_new();
    char error[STATE_ERROR_MAX];
    struct state_out out;
    struct state_in in;
    struct claim c;
    uint64_t until;

    begin(4);
    directory_left(&vm, 0, 60000000000u);
    state_out_begin(&out, bytes);
    directory_left_hand_over(&vm, &out);
    static_stop();
    directory_fini();

    begin(0);
    vm.identity.generation = 4;
    state_in_begin(&in, bytes->data, bytes->len, error);
    g_assert_false(state_failed(&in));
    dirty_the_stack();
    directory_left_take_over(&vm, &in);
    g_assert_false(state_failed(&in));
    g_assert_true(directory_local(g_intern_string("blue"), &gid, &c, &until));
    g_assert_null(c.host);
    g_assert_false(claim_is_proved(&c));
    g_assert_cmpuint(c.generation, ==, 4);
    static_asked(PEER(0), "blue", &gid);
    expect("0+ 0+");     /* all that is here, and what was asked for */
    claims_proved(2, 4); /* no better: that cannot be the one it waits for */
    g_assert_null(place());
    expect("2+");
    passes_on(0, "alpha", 5);
    g_assert_null(place());
    claims_proved(2, 5);
    g_assert_true(place() == PEER(2));
    g_assert_cmpuint(moves, ==, 0);
    vm.identity.generation = 0;
    end();
    g_byte_array_unref(bytes);
}

/* What has no room is said when there is: who claimed is asked to do so again. */
static void test_late(void)
{
    begin(0);
    claims_proved(1, 4);
    full = true;
    forget_sent();
    claims_proved(2, 4);
    expect("");
    turn(60);
    expect("2?");
    full = false;
    claims_proved(2, 4);
    expect("2>alpha");
    turn(60);
    expect("");
    end();
}

int main(int argc, char **argv)
{
    int ret;

    g_test_init(&argc, &argv, NULL);
    log_set_level(LOG_LVL_ERROR);
    sent = g_string_new(NULL);
    g_test_add_func("/duplicates/generation", test_generation);
    g_test_add_func("/duplicates/tie", test_tie);
    g_test_add_func("/duplicates/paused", test_paused);
    g_test_add_func("/duplicates/unproved", test_unproved);
    g_test_add_func("/duplicates/one-of-two", test_one_of_two);
    g_test_add_func("/duplicates/went-on", test_went_on);
    g_test_add_func("/duplicates/liar", test_liar);
    g_test_add_func("/duplicates/never-moved", test_never_moved);
    g_test_add_func("/duplicates/replayed", test_replayed);
    g_test_add_func("/duplicates/no-echo", test_no_echo);
    g_test_add_func("/duplicates/passed-on", test_passed_on);
    g_test_add_func("/duplicates/passed-on-once", test_passed_on_once);
    g_test_add_func("/duplicates/third", test_third);
    g_test_add_func("/duplicates/third-still", test_third_still);
    g_test_add_func("/duplicates/left", test_left);
    g_test_add_func("/duplicates/late", test_late);
    ret = g_test_run();
    g_string_free(sent, TRUE);
    return ret;
}
