/* SPDX-License-Identifier: GPL-2.0-or-later */
/* link/queue.c: what may wait, in what order it goes, and who pays for it. */
#include <glib.h>
#include <pthread.h>
#include <string.h>

#include "transport/link/internal.h"

#define MAX_DATA 100000u

static struct peer peer; /* without a link */

static void begin(void)
{
    memset(&peer, 0, sizeof(peer));
    queue_init(&peer.queue);
    queue_open(&peer.queue, MAX_DATA);
}

static struct peer_out *datagram_to(uint32_t qpn, uint32_t len)
{
    struct peer_msg m = {.type = PEER_MSG_DATAGRAM,
                         .datagram = {.network = "lan", .dqpn = qpn, .len = len}};
    struct peer_out *out = peer_out_new(&m);

    memset(out->bytes + out->len - len, 0x5a, len); /* the room that was left */
    return out;
}

static bool send_datagram(struct peer_account *account, uint32_t len)
{
    return peer_send_datagram(&peer, account, datagram_to(2, len));
}

static bool send_mad(struct peer_account *account)
{
    return peer_send_datagram(&peer, account, datagram_to(1, 256));
}

static bool send_ping(uint64_t stamp)
{
    struct peer_msg m = {.type = PEER_MSG_PING, .stamp = stamp};

    return peer_send_control(&peer, &m);
}

static uint64_t queued(uint64_t *dropped)
{
    return queue_bytes(&peer.queue, dropped);
}

static void test_order(void)
{
    struct peer_account *a = peer_account_new(MAX_DATA);
    struct peer_msg m;
    uint64_t dropped;
    size_t size;

    begin();
    g_assert_true(send_datagram(a, 100));
    g_assert_true(send_datagram(a, 200));
    g_assert_true(send_ping(1));
    g_assert_true(send_ping(2));
    /* What is no datagram goes first. */
    for (unsigned i = 0; i < 4; i++) {
        struct peer_out *out = queue_pop(&peer.queue);

        g_assert_cmpint(peer_msg_get(out->bytes, out->len, PEER_MSG_MAX_BODY, &m, &size),
                        ==, PEER_MSG_OK);
        g_assert_cmpuint(size, ==, out->len);
        if (i < 2) {
            g_assert_cmpuint(m.stamp, ==, i + 1);
        } else {
            g_assert_cmpuint(m.datagram.len, ==, (i - 1) * 100);
        }
        /* It counts until it is gone. */
        g_assert_cmpuint(queued(&dropped), >, 0);
        queue_done(&peer.queue, out, true);
    }
    g_assert_cmpuint(queued(&dropped), ==, 0);
    g_assert_cmpuint(dropped, ==, 0);
    g_assert_cmpuint(atomic_load(&a->queued), ==, 0);
    g_assert_cmpuint(atomic_load(&a->refs), ==, 1);
    queue_fini(&peer.queue);
    peer_account_unref(a);
}

static void test_bounds(void)
{
    struct peer_account *small = peer_account_new(5000), *big = peer_account_new(1 << 20);
    unsigned n = 0, pings = 0;
    uint64_t dropped;

    begin();
    /* One VM's. */
    while (send_datagram(small, 1000)) {
        n++;
    }
    g_assert_cmpuint(n, ==, 4);
    g_assert_cmpuint(atomic_load(&small->queued), <=, 5000);
    /* The peer's: another VM has more to send than may wait, and leaves as much free. */
    while (send_datagram(big, 1000)) {
        n++;
    }
    g_assert_cmpuint(queued(&dropped), <=, MAX_DATA / 2 + 5000);
    g_assert_cmpuint(n, >, MAX_DATA / 2 / 1200);
    g_assert_cmpuint(dropped, ==, 2);
    /* It takes nothing from what is not datagrams; that has a bound of its own. */
    while (send_ping(0)) {
        pings++;
    }
    g_assert_cmpuint(pings, >, PEER_MAX_CONTROL / 100);
    g_assert_cmpuint(queued(&dropped), <=, MAX_DATA + PEER_MAX_CONTROL);
    g_assert_cmpuint(dropped, ==, 3);

    /* The link breaks: all of it is dropped, nothing new is taken. */
    queue_close(&peer.queue);
    g_assert_cmpuint(queued(&dropped), ==, 0);
    g_assert_cmpuint(dropped, ==, 3 + n + pings);
    g_assert_cmpuint(atomic_load(&small->queued), ==, 0);
    g_assert_cmpuint(atomic_load(&big->queued), ==, 0);
    g_assert_false(send_datagram(small, 0));
    g_assert_false(send_ping(0));
    g_assert_cmpuint(atomic_load(&small->queued), ==, 0);
    queue_open(&peer.queue, MAX_DATA);
    g_assert_true(send_datagram(small, 0));
    queue_fini(&peer.queue);
    peer_account_unref(small);
    peer_account_unref(big);
}

/* Whose is it?  @account's, of that many bytes. */
static void expect(struct peer_account *account, uint32_t len)
{
    struct peer_out *out = queue_pop(&peer.queue);
    struct peer_msg m;
    size_t size;

    g_assert_nonnull(out);
    g_assert_cmpint(peer_msg_get(out->bytes, out->len, PEER_MSG_MAX_BODY, &m, &size), ==,
                    PEER_MSG_OK);
    g_assert_true(out->account == account);
    g_assert_cmpuint(m.datagram.len, ==, len);
    queue_done(&peer.queue, out, true);
}

/* They are served in turn, each in its order; who floods finds himself behind nobody. */
static void test_turns(void)
{
    struct peer_account *a = peer_account_new(MAX_DATA), *b = peer_account_new(MAX_DATA);

    begin();
    for (uint32_t i = 0; i < 4; i++) {
        g_assert_true(send_datagram(a, 100 + i));
    }
    g_assert_true(send_datagram(b, 200));
    g_assert_true(send_datagram(b, 201));
    g_assert_true(send_mad(a));
    expect(a, 100);
    expect(b, 200);
    expect(a, 256); /* its management datagram is in another order */
    expect(a, 101);
    expect(b, 201);
    expect(a, 102);
    g_assert_true(send_datagram(b, 202));
    expect(a, 103);
    expect(b, 202);
    g_assert_null(queue_pop(&peer.queue));
    queue_fini(&peer.queue);
    peer_account_unref(a);
    peer_account_unref(b);
}

#define FLOODS 12u

static uint64_t flood(struct peer_account **of, unsigned n, bool mads)
{
    uint64_t all = 0;
    bool any;

    do {
        any = false;
        for (unsigned i = 0; i < n; i++) {
            bool ok = mads ? send_mad(of[i]) : send_datagram(of[i], 1000);

            any |= ok;
            all += ok;
        }
    } while (any);
    return all;
}

/*
 * However many flood, another one's burst fits, half as long as what each of them has; of
 * either kind, apart from the other.
 */
static void test_shares(void)
{
    struct peer_account *of[FLOODS], *other = peer_account_new(1 << 20);
    uint64_t dropped;

    begin();
    for (unsigned i = 0; i < FLOODS; i++) {
        of[i] = peer_account_new(1 << 20);
    }
    g_assert_cmpuint(flood(of, FLOODS, false), >, MAX_DATA / 2 / 1200);
    for (unsigned i = 0; i < MAX_DATA / (FLOODS + 1) / 2 / 1200; i++) {
        g_assert_true(send_datagram(other, 1000));
    }
    g_assert_true(send_mad(other));
    g_assert_true(send_mad(of[0]));
    g_assert_cmpuint(flood(of, FLOODS, true), >, PEER_MAX_MADS / 2 / 512);
    g_assert_cmpuint(queued(&dropped), <=, MAX_DATA + PEER_MAX_MADS);
    for (unsigned i = 0; i < 8; i++) {
        g_assert_true(send_mad(other));
    }
    g_assert_true(send_ping(1));
    queue_fini(&peer.queue);
    for (unsigned i = 0; i < FLOODS; i++) {
        g_assert_cmpuint(atomic_load(&of[i]->queued), ==, 0);
        g_assert_cmpuint(atomic_load(&of[i]->queued_mads), ==, 0);
        peer_account_unref(of[i]);
    }
    peer_account_unref(other);
}

/* Where nothing is left each has one all the same; of all peers a VM has so much. */
static void test_last(void)
{
    struct peer_account *of[64];
    unsigned mads = 0;

    begin();
    queue_open(&peer.queue, 1000);
    for (unsigned i = 0; i < G_N_ELEMENTS(of); i++) {
        of[i] = peer_account_new(1 << 20);
        g_assert_true(send_datagram(of[i], 1000));
        g_assert_false(send_datagram(of[i], 1000));
        g_assert_true(send_mad(of[i]));
    }
    while (send_mad(of[0])) {
        mads++;
    }
    g_assert_cmpuint(atomic_load(&of[0]->queued_mads), <=, PEER_MAX_MADS_OF);
    queue_fini(&peer.queue);
    for (unsigned i = 0; i < G_N_ELEMENTS(of); i++) {
        peer_account_unref(of[i]);
    }
}

/* A VM goes while its datagrams wait. */
static void test_account_outlives(void)
{
    struct peer_account *a = peer_account_new(MAX_DATA);

    begin();
    g_assert_true(send_datagram(a, 10));
    g_assert_true(send_datagram(a, 10));
    peer_account_unref(a); /* the VM's own */
    g_assert_cmpuint(atomic_load(&a->refs), ==, 2);
    queue_fini(&peer.queue); /* AddressSanitizer says if it was too early, or never */
}

#define THREADS 3
#define ROUNDS  20000

static void *sender(void *opaque)
{
    uintptr_t sent = 0;

    for (unsigned i = 0; i < ROUNDS; i++) {
        sent += send_datagram(opaque, i % 50);
    }
    return (void *)sent;
}

static void test_threads(void)
{
    struct peer_account *a = peer_account_new(MAX_DATA / 2);
    uintptr_t sent = 0, taken = 0;
    pthread_t thread[THREADS];
    uint64_t dropped;
    bool ended = false;

    begin();
    for (unsigned i = 0; i < THREADS; i++) {
        g_assert_cmpint(pthread_create(&thread[i], NULL, sender, a), ==, 0);
    }
    for (unsigned joined = 0;;) {
        struct peer_out *out = queue_pop(&peer.queue);

        if (out) {
            queue_done(&peer.queue, out, true);
            taken++;
        } else if (ended) {
            break;
        } else if (joined < THREADS) {
            void *n;

            if (pthread_tryjoin_np(thread[joined], &n) == 0) {
                sent += (uintptr_t)n;
                joined++;
            }
            ended = joined == THREADS;
        }
        g_assert_cmpuint(atomic_load(&a->queued), <=, MAX_DATA / 2);
    }
    g_assert_cmpuint(taken, ==, sent);
    g_assert_cmpuint(queued(&dropped), ==, 0);
    g_assert_cmpuint(dropped, ==, THREADS * ROUNDS - sent);
    g_assert_cmpuint(atomic_load(&a->queued), ==, 0);
    queue_fini(&peer.queue);
    peer_account_unref(a);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/peer/queue/order", test_order);
    g_test_add_func("/peer/queue/bounds", test_bounds);
    g_test_add_func("/peer/queue/turns", test_turns);
    g_test_add_func("/peer/queue/shares", test_shares);
    g_test_add_func("/peer/queue/last", test_last);
    g_test_add_func("/peer/queue/account-outlives", test_account_outlives);
    g_test_add_func("/peer/queue/threads", test_threads);
    return g_test_run();
}
