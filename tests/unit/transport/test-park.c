/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * tcp/park.c: which streams there are, how many there may be and for how long, what ends
 * one, and what it costs.  tcp/announce.c: how many are made in vain.
 */
#include <glib.h>
#include <malloc.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/tcp/ctl.h"
#include "transport/tcp/park.h"
#include "transport/tcp/setup.h"

/* "connections that are made in advance", docs/hosts.md. */
#define BYTES_EACH 700u

/* Never followed. */
static char peers[2], vms[2];
static struct peer *const peer_a = (struct peer *)&peers[0];
static struct peer *const peer_b = (struct peer *)&peers[1];
static const struct framing framing = {.crc = true, .ird = 16, .ord = 16};

static struct pvrdma_gid gid_of(unsigned i)
{
    return (struct pvrdma_gid){{0xfe, 0x80, [14] = (uint8_t)(i >> 8), [15] = (uint8_t)i}};
}

static struct park *new_park(struct peer *peer, unsigned i, bool ours, const void *vm)
{
    struct pvrdma_gid gid = gid_of(i);
    static uint64_t n;
    uint64_t token[2] = {1, ++n};

    return park_new(peer, g_intern_string("lan"), &gid, ours, vm, token);
}

/* With a connection whose other end is *fd. */
static struct parked *new_parked(struct park *park, uint32_t number, int *fd,
                                 enum parked_state state)
{
    struct parked *p = parked_new(park, number);
    int both[2];

    g_assert_nonnull(p);
    g_assert_cmpint(
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, both), ==, 0);
    parked_is(p, both[0], &framing, state);
    *fd = both[1];
    return p;
}

static void turn(void)
{
    for (unsigned i = 0; i < 100; i++) {
        g_main_context_iteration(NULL, FALSE);
    }
}

/* The other end has gone. */
static void is_closed(int fd)
{
    uint8_t byte;

    g_assert_cmpint(recv(fd, &byte, 1, 0), ==, 0);
    close(fd);
}

static void begin(void)
{
    park_open();
}

static void end(void)
{
    g_assert_cmpuint(park_host(peer_a)->n, ==, 0);
    g_assert_cmpuint(park_host(peer_b)->n, ==, 0);
    park_close();
}

static uint32_t taken(struct parked *p)
{
    uint32_t number;

    g_assert_nonnull(p);
    g_assert_cmpint(p->state, ==, PARK_TAKING);
    number = p->number;
    parked_free(p);
    return number;
}

/* By number, whatever the order in which they came. */
static void test_order(void)
{
    static const uint32_t order[] = {3, 0, 9, 1, 5, 2, 4};
    int fd[G_N_ELEMENTS(order)];
    struct park *park;

    begin();
    park = new_park(peer_a, 1, true, NULL);
    for (unsigned i = 0; i < G_N_ELEMENTS(order); i++) {
        new_parked(park, order[i], &fd[i], PARK_IDLE);
    }
    g_assert_null(parked_new(park, 5));
    g_assert_null(parked_new(park, 9));
    g_assert_null(parked_new(park, 0));
    g_assert_nonnull(parked_new(park, 7)); /* which is being made: nobody takes it */
    g_assert_cmpuint(taken(park_take(park, false)), ==, 0);
    g_assert_cmpuint(taken(park_take(park, true)), ==, 9);
    g_assert_cmpuint(taken(park_take(park, true)), ==, 5);
    g_assert_cmpuint(taken(park_take_number(park, 2)), ==, 2);
    g_assert_null(park_take_number(park, 2));
    g_assert_null(park_take_number(park, 0));
    g_assert_null(park_take_number(park, 7));
    g_assert_null(park_take_number(park, 8));
    g_assert_null(park_take_number(park, UINT32_MAX));
    g_assert_cmpuint(taken(park_take_number(park, 4)), ==, 4);
    g_assert_cmpuint(taken(park_take(park, false)), ==, 1);
    g_assert_cmpuint(taken(park_take(park, false)), ==, 3);
    g_assert_null(park_take(park, false));
    g_assert_null(park_take(park, true));
    for (unsigned i = 0; i < G_N_ELEMENTS(order); i++) {
        is_closed(fd[i]);
    }
    g_assert_cmpuint(park_host(peer_a)->n, ==, 1);
    park_drop(park);
    end();
}

static void test_places(void)
{
    struct pvrdma_gid gid = gid_of(1);
    const char *lan = g_intern_string("lan"), *wan = g_intern_string("wan");
    struct park *park, *theirs;
    uint64_t token[2];
    int fd[2];

    begin();
    park = new_park(peer_a, 1, true, NULL);
    theirs = new_park(peer_a, 1, false, NULL);
    memcpy(token, park->token, sizeof(token));
    g_assert_true(park_find(token) == park);
    g_assert_true(park_of(peer_a, lan, &gid, true) == park);
    g_assert_true(park_of(peer_a, lan, &gid, false) == theirs);
    g_assert_null(park_of(peer_b, lan, &gid, true));
    g_assert_null(park_of(peer_a, wan, &gid, true));
    /* Nobody gets another's token; of one address there is one, the last. */
    g_assert_null(park_new(peer_b, lan, &gid, false, NULL, token));
    new_parked(park, 0, &fd[0], PARK_IDLE);
    new_parked(theirs, 0, &fd[1], PARK_IDLE);
    park = new_park(peer_a, 1, true, NULL);
    is_closed(fd[0]);
    g_assert_null(park_find(token));
    g_assert_true(park_of(peer_a, lan, &gid, true) == park);
    g_assert_cmpuint(park_host(peer_a)->n, ==, 1);
    park_drop(park);
    park_drop(theirs);
    is_closed(fd[1]);
    end();
}

/* What comes, and what does not. */
static void test_bytes(void)
{
    struct framing sender = framing;
    struct park *park;
    int fd[5];

    begin();
    park = new_park(peer_a, 1, true, NULL);
    new_parked(park, 0, &fd[0], PARK_IDLE);
    new_parked(park, 1, &fd[1], PARK_IDLE);
    new_parked(park, 2, &fd[2], PARK_FIRST);
    new_parked(park, 3, &fd[3], PARK_FIRST);
    new_parked(park, 4, &fd[4], PARK_FIRST);
    g_assert_cmpint(write(fd[0], "x", 1), ==, 1);
    g_assert_true(tx_first_frame(fd[2], &sender));
    g_assert_true(tx_first_frame(fd[3], &sender));
    g_assert_true(tx_first_frame(fd[3], &sender));
    g_assert_cmpint(write(fd[4],
                          "\0\x0e"
                          "123456789012345678",
                          20),
                    ==, 20);
    turn();
    g_assert_cmpuint(park_host(peer_a)->n, ==, 2); /* 1 and 2 */
    close(fd[0]);
    close(fd[3]);
    close(fd[4]);
    /* It is not taken before its first frame is there, which may be just now. */
    new_parked(park, 5, &fd[0], PARK_FIRST);
    g_assert_null(park_take_number(park, 5));
    g_assert_true(tx_first_frame(fd[0], &sender));
    g_assert_cmpuint(taken(park_take_number(park, 5)), ==, 5);
    is_closed(fd[0]);
    /* Nor if something else came, which ends it at once. */
    new_parked(park, 5, &fd[0], PARK_FIRST);
    g_assert_cmpint(write(fd[0], "x", 1), ==, 1);
    g_assert_null(park_take_number(park, 5));
    is_closed(fd[0]);
    g_assert_cmpuint(park_host(peer_a)->n, ==, 2);
    /* An end. */
    close(fd[1]);
    turn();
    g_assert_cmpuint(park_host(peer_a)->n, ==, 1);
    g_assert_cmpuint(taken(park_take(park, false)), ==, 2);
    close(fd[2]);
    park_drop(park);
    /* One that is theirs goes with its last stream. */
    park = new_park(peer_a, 1, false, NULL);
    new_parked(park, 0, &fd[0], PARK_IDLE);
    close(fd[0]);
    turn();
    g_assert_cmpuint(park_host(peer_a)->n_parks, ==, 0);
    end();
}

/* Until the host of peer_a has @n. */
static void wait_n(unsigned n)
{
    gint64 until = g_get_monotonic_time() + 20 * G_USEC_PER_SEC;

    while (park_host(peer_a)->n != n && g_get_monotonic_time() < until) {
        g_main_context_iteration(NULL, TRUE);
    }
    g_assert_cmpuint(park_host(peer_a)->n, ==, n);
}

static void test_ends(void)
{
    struct park *park[3];
    struct parked *first;
    int fd[3];

    begin();
    park[0] = new_park(peer_a, 1, true, &vms[0]);
    park[1] = new_park(peer_b, 1, true, &vms[0]);
    park[2] = new_park(peer_a, 2, true, &vms[1]);
    for (unsigned i = 0; i < 3; i++) {
        new_parked(park[i], 0, &fd[i], PARK_IDLE);
        g_assert_cmpuint(park[i]->until, ==, 0);
    }
    park_begin_to_end(park[0]); /* not while it does not run */
    g_assert_cmpuint(park[0]->until, ==, 0);
    /* The one VM runs: what is left has a time; the other does not, nor will it. */
    park_leave_vm(&vms[0]);
    g_assert_cmpuint(park[0]->until, >, 0);
    g_assert_cmpuint(park[0]->until, <=, now_ns() + PARK_LEFT_NS);
    g_assert_cmpuint(park[2]->until, ==, 0);
    park_drop_vm(&vms[0]); /* which has no more */
    g_assert_cmpuint(park_host(peer_a)->n, ==, 2);
    park_drop_vm(&vms[1]);
    is_closed(fd[2]);
    g_assert_cmpuint(park_host(peer_a)->n, ==, 1);
    park_drop_peer(peer_b);
    is_closed(fd[1]);
    g_assert_cmpuint(park_host(peer_a)->n, ==, 1);
    /* Time is up: of one whose first frame does not come, and of all. */
    first = new_parked(park[0], 1, &fd[1], PARK_FIRST);
    g_assert_cmpuint(first->until, >, now_ns());
    g_assert_cmpuint(first->until, <=, now_ns() + SETUP_FRAMES_NS);
    first->until = now_ns();
    wait_n(1);
    is_closed(fd[1]);
    park[0]->until = now_ns();
    wait_n(0);
    is_closed(fd[0]);
    /* What others have announced has one from the beginning. */
    park[0] = new_park(peer_a, 1, false, NULL);
    g_assert_cmpuint(park[0]->until, >, now_ns() + PARK_LIFE_NS / 2);
    g_assert_cmpuint(park[0]->until, <=, now_ns() + PARK_LIFE_NS);
    park_begin_to_end(park[0]);
    g_assert_cmpuint(park[0]->until, <=, now_ns() + PARK_LEFT_NS);
    park_drop(park[0]);
    end();
}

static void test_limits(void)
{
    struct park *park[PARK_MAX / PARK_MAX_OF_PEER + 1];
    struct peer *peer[G_N_ELEMENTS(park)];
    static char many[G_N_ELEMENTS(park)];
    struct rlimit was, few;
    unsigned n = 0;

    g_assert_cmpint(getrlimit(RLIMIT_NOFILE, &was), ==, 0);
    few = was;
    few.rlim_cur = MIN(was.rlim_max, 4 * PARK_MAX + 4);
    g_assert_cmpint(setrlimit(RLIMIT_NOFILE, &few), ==, 0);
    begin();
    for (unsigned i = 0; i < G_N_ELEMENTS(park); i++) {
        peer[i] = (struct peer *)&many[i];
        park[i] = new_park(peer[i], 1, false, NULL);
        while (parked_new(park[i], park_host(peer[i])->n)) {
            n++;
        }
        g_assert_cmpuint(park_host(peer[i])->n, <=, PARK_MAX_OF_PEER);
    }
    g_assert_cmpuint(park_host(peer[0])->n, ==, MIN(PARK_MAX_OF_PEER, few.rlim_cur / 4));
    g_assert_cmpuint(n, ==, MIN(PARK_MAX, few.rlim_cur / 4));
    for (unsigned i = 0; i < G_N_ELEMENTS(park); i++) {
        park_drop(park[i]);
    }
    /* Addresses, too. */
    for (n = 0; n < 2 * PARK_MAX_OF_PEER && new_park(peer_a, n, false, NULL); n++) {
    }
    g_assert_cmpuint(n, ==, PARK_MAX_OF_PEER);
    g_assert_nonnull(new_park(peer_a, 1, false, NULL)); /* one that is there */
    g_assert_nonnull(new_park(peer_b, 1, false, NULL));
    end();
    /* A quarter of the descriptors, if those are few. */
    few.rlim_cur = 40;
    g_assert_cmpint(setrlimit(RLIMIT_NOFILE, &few), ==, 0);
    begin();
    park[0] = new_park(peer_a, 1, false, NULL);
    for (n = 0; parked_new(park[0], n); n++) {
    }
    g_assert_cmpuint(n, ==, 10);
    park_drop(park[0]);
    end();
    g_assert_cmpint(setrlimit(RLIMIT_NOFILE, &was), ==, 0);
}

/* What nobody takes is soon not made any more; what somebody takes does not count. */
static void test_in_vain(void)
{
    struct park *park;
    struct park_host *h;
    struct parked *p;
    uint64_t now = 5;
    unsigned n;
    int fd;

    begin();
    h = park_host(peer_a);
    for (n = 0; n <= ANNOUNCE_VAIN_MAX && announce_pay(h, now); n++) {
    }
    g_assert_cmpuint(n, ==, ANNOUNCE_VAIN_MAX);
    g_assert_false(announce_pay(h, now));
    now += ANNOUNCE_VAIN_NS;
    g_assert_true(announce_pay(h, now));
    g_assert_false(announce_pay(h, now));
    g_assert_true(announce_pay(park_host(peer_b), now));
    park = new_park(peer_a, 1, false, NULL);
    for (unsigned i = 0; i < 2; i++) {
        p = new_parked(park, i, &fd, PARK_IDLE);
        p->made_here = i;
        announce_taken(p);
        g_assert_cmpint(announce_pay(h, now), ==, i);
        parked_free(p);
        is_closed(fd);
    }
    /* After a long time it is as in the beginning. */
    now += 10ull * ANNOUNCE_VAIN_MAX * ANNOUNCE_VAIN_NS;
    for (n = 0; n <= ANNOUNCE_VAIN_MAX && announce_pay(h, now); n++) {
    }
    g_assert_cmpuint(n, ==, ANNOUNCE_VAIN_MAX);
    /* None is begun: what was announced is over. */
    h->paid = UINT64_MAX;
    park->wanted = 1;
    park->queued = true;
    TAILQ_INSERT_TAIL(&h->to_make, park, make);
    announce_make(h);
    g_assert_cmpuint(h->n_parks, ==, 0);
    g_assert_cmpuint(h->making, ==, 0);
    end();
}

/* Of one stream each, which is the most that a peer can make of it. */
static void test_memory(void)
{
    enum { N = 200 };
    static int fd[N];
    size_t before, grown;

    begin();
    park_host(peer_a);
    before = mallinfo2().uordblks;
    for (unsigned i = 0; i < N; i++) {
        new_parked(new_park(peer_a, i, false, NULL), 0, &fd[i], PARK_IDLE);
    }
    grown = mallinfo2().uordblks - before;
    g_test_message("%zu bytes each", grown / N);
#ifdef __OPTIMIZE__
    g_assert_cmpuint(grown / N, <, BYTES_EACH);
#endif
    park_drop_peer(peer_a);
    for (unsigned i = 0; i < N; i++) {
        is_closed(fd[i]);
    }
    end();
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    directory_init();
    g_test_add_func("/park/order", test_order);
    g_test_add_func("/park/places", test_places);
    g_test_add_func("/park/bytes", test_bytes);
    g_test_add_func("/park/ends", test_ends);
    g_test_add_func("/park/limits", test_limits);
    g_test_add_func("/park/in-vain", test_in_vain);
    g_test_add_func("/park/memory", test_memory);
    return g_test_run();
}
