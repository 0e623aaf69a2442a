/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Unit test of guest-provider/ring.h: index arithmetic against a model, wrong
 * indices from the device, removal of a QP's completions, doorbell bits, and a
 * race of the posting protocol against a sleeper.
 */
#include <glib.h>
#include <sched.h>

#include "ring.h"

static uint32_t prod, cons;

static struct pv_ring ring(uint32_t n, uint32_t start)
{
    prod = cons = start;
    return (struct pv_ring){&prod, &cons, n, start, start};
}

/* Producer against a consumer that is a plain count. */
static void test_producer(void)
{
    for (uint32_t n = 1; n <= 64; n *= 2) {
        struct pv_ring r = ring(n, 0);
        uint32_t in = 0;

        for (int i = 0; i < 20000; i++) {
            if (g_test_rand_bit()) {
                bool space = pv_ring_has_space(&r);

                g_assert_cmpint(space, ==, in < n);
                if (space) {
                    r.tail = pv_ring_next(&r, r.tail);
                    pv_ring_publish(&r);
                    in++;
                }
            } else if (in) {
                __atomic_store_n(&cons, pvrdma_idx_next(cons, n), __ATOMIC_RELEASE);
                in--;
            }
            g_assert_true(pvrdma_idx_valid(prod, n));
            g_assert_cmpuint((prod - cons) & (2 * n - 1), ==, in);
        }
    }
}

static void test_consumer(void)
{
    for (uint32_t n = 1; n <= 64; n *= 2) {
        struct pv_ring r = ring(n, 2 * n - 1);
        uint32_t in = 0;

        for (int i = 0; i < 20000; i++) {
            if (g_test_rand_bit() && in < n) {
                prod = pvrdma_idx_next(prod, n);
                in++;
            } else if (in) {
                g_assert_cmpint(pv_ring_fetch(&r), ==, in);
                r.head = pv_ring_next(&r, r.head);
                pv_ring_release(&r);
                in--;
            }
            g_assert_cmpint(pv_ring_fetch(&r), ==, in);
            g_assert_cmpuint(cons, ==, r.head);
        }
    }
}

static void test_wrong_indices(void)
{
    struct pv_ring r = ring(8, 0);

    prod = 16;
    g_assert_cmpint(pv_ring_fetch(&r), <, 0);
    prod = 0xffffffff;
    g_assert_cmpint(pv_ring_fetch(&r), <, 0);
    prod = 9; /* more than there are slots */
    g_assert_cmpint(pv_ring_fetch(&r), <, 0);
    g_assert_cmpuint(r.tail, ==, 0);
    prod = 8;
    g_assert_cmpint(pv_ring_fetch(&r), ==, 8);

    r = ring(8, 0);
    r.tail = 8; /* full */
    cons = 16;
    g_assert_false(pv_ring_has_space(&r));
    cons = 9; /* beyond what was posted */
    g_assert_false(pv_ring_has_space(&r));
    cons = 1;
    g_assert_true(pv_ring_has_space(&r));
    pv_ring_reset(&r);
    g_assert_cmpuint(prod | cons | r.tail | r.head, ==, 0);
}

/* Random rings of entries of three QPs; one QP is taken out. */
static void test_clean(void)
{
    for (int round = 0; round < 5000; round++) {
        uint32_t n = 1u << g_test_rand_int_range(0, 7);
        uint32_t used = g_test_rand_int_range(0, n + 1);
        struct pvrdma_cqe cqe[64] = {{0}};
        uint64_t expect[64];
        unsigned left = 0;
        struct pv_ring r = ring(n, g_test_rand_int_range(0, 2 * n));

        for (unsigned i = 0; i < used; i++) {
            struct pvrdma_cqe *e = &cqe[pvrdma_idx_slot(prod, n)];

            e->qp = g_test_rand_int_range(1, 4);
            e->wr_id = 1000 + i;
            if (e->qp != 2) {
                expect[left++] = e->wr_id;
            }
            prod = pvrdma_idx_next(prod, n);
        }
        g_assert_cmpint(pv_ring_fetch(&r), ==, used);
        g_assert_cmpint(pv_ring_clean(&r, cqe, 2), ==, used - left);
        g_assert_cmpint(pv_ring_fetch(&r), ==, left);
        for (unsigned i = 0; i < left; i++) {
            g_assert_cmpuint(cqe[pv_ring_slot(&r, r.head)].wr_id, ==, expect[i]);
            g_assert_cmpuint(cqe[pv_ring_slot(&r, r.head)].qp, !=, 2);
            r.head = pv_ring_next(&r, r.head);
        }
    }
}

static struct pvrdma_ext_mem ext;
static struct pvrdma_ext_ring header;

static void test_bell(void)
{
    static const uint32_t handles[] = {0, 1, 63, 64, 4095, 4096, 40000, 65535};

    for (unsigned i = 0; i < G_N_ELEMENTS(handles); i++) {
        uint32_t h = handles[i];
        struct pv_bell b = {0};

        memset(&ext, 0, sizeof(ext));
        pv_bell_init(&b, &ext.head, &ext.send, &header.tx_no_notify, h);
        ext.head.kick = 1;
        header.tx_no_notify.value = 1;
        g_assert_false(pv_bell_set(&b));
        g_assert_cmphex(ext.send.words[h / 64], ==, 0);
        ext.head.kick = 0;
        header.tx_no_notify.value = 0;
        g_assert_false(pv_bell_set(&b));
        g_assert_cmphex(ext.send.words[h / 64], ==, 1ull << (h % 64));
        g_assert_cmphex(ext.send.summary[h / 4096], ==, 1ull << (h / 64 % 64));
        /* Set again, and with only one of the two there. */
        ext.send.summary[h / 4096] = 0;
        ext.head.kick = 1;
        g_assert_true(pv_bell_set(&b));
        g_assert_cmphex(ext.send.summary[h / 4096], ==, 1ull << (h / 64 % 64));
        for (unsigned w = 0; w < 1024; w++) {
            g_assert_cmphex(ext.recv.words[w], ==, 0);
            g_assert_cmphex(ext.send.words[w], ==, w == h / 64 ? 1ull << (h % 64) : 0);
        }
    }
}

static void test_arm(void)
{
    uint32_t arm = PVRDMA_EXT_ARM_NONE;

    pv_arm(&arm, true);
    g_assert_cmpuint(arm, ==, PVRDMA_EXT_ARM_SOLICITED);
    pv_arm(&arm, false);
    g_assert_cmpuint(arm, ==, PVRDMA_EXT_ARM_ANY);
    pv_arm(&arm, true);
    g_assert_cmpuint(arm, ==, PVRDMA_EXT_ARM_ANY);
}

/*
 * A device that sleeps by the protocol of ext.h: set kick, full barrier, scan
 * again, wait for the doorbell.  Producers post on handles that share a summary
 * bit, mostly with one post outstanding, so that the device falls asleep all the
 * time; a lost wake-up leaves everybody waiting.  With one producer nobody else
 * can make up for it.
 */
#define RACE_POSTS 20000u

struct producer {
    struct pv_bell bell;
    uint32_t posted; /* "ring index" */
    uint32_t seen;   /* written by the device */
};

static struct producer producers[2];
static uint32_t doorbells;

static bool device_scan(void)
{
    uint64_t sum = __atomic_exchange_n(&ext.send.summary[0], 0, __ATOMIC_SEQ_CST);
    uint64_t bits;
    bool any = false;

    if (!sum) {
        return false;
    }
    bits = __atomic_exchange_n(&ext.send.words[0], 0, __ATOMIC_SEQ_CST);
    for (unsigned i = 0; i < 2; i++) {
        if (bits & (1ull << (i + 1))) {
            uint32_t posted = __atomic_load_n(&producers[i].posted, __ATOMIC_ACQUIRE);

            __atomic_store_n(&producers[i].seen, posted, __ATOMIC_RELEASE);
            any = true;
        }
    }
    return any;
}

static gpointer producer_main(gpointer data)
{
    struct producer *p = data;

    for (uint32_t i = 1; i <= RACE_POSTS; i++) {
        __atomic_store_n(&p->posted, i, __ATOMIC_RELEASE);
        if (pv_bell_set(&p->bell)) {
            __atomic_fetch_add(&doorbells, 1, __ATOMIC_SEQ_CST);
        }
        while (i - __atomic_load_n(&p->seen, __ATOMIC_ACQUIRE) > (i % 16 ? 0 : 3)) {
            sched_yield();
        }
    }
    return NULL;
}

static void device_sleep(void)
{
    uint32_t bells = __atomic_load_n(&doorbells, __ATOMIC_SEQ_CST);
    gint64 end;

    __atomic_exchange_n(&ext.head.kick, 1, __ATOMIC_SEQ_CST);
    if (!device_scan()) {
        end = g_get_monotonic_time() + 20 * G_USEC_PER_SEC;
        while (__atomic_load_n(&doorbells, __ATOMIC_SEQ_CST) == bells) {
            g_assert_cmpint(g_get_monotonic_time(), <, end);
            sched_yield();
        }
    }
    __atomic_store_n(&ext.head.kick, 0, __ATOMIC_SEQ_CST);
}

static void test_race(gconstpointer data)
{
    unsigned n = GPOINTER_TO_UINT(data), sleeps = 0;
    GThread *thread[2];

    memset(&ext, 0, sizeof(ext));
    memset(producers, 0, sizeof(producers));
    for (unsigned i = 0; i < n; i++) {
        pv_bell_init(&producers[i].bell, &ext.head, &ext.send, &header.tx_no_notify,
                     i + 1);
        thread[i] = g_thread_new("producer", producer_main, &producers[i]);
    }
    while (producers[0].seen != RACE_POSTS ||
           (n > 1 && producers[1].seen != RACE_POSTS)) {
        if (!device_scan()) {
            device_sleep();
            sleeps++;
        }
    }
    for (unsigned i = 0; i < n; i++) {
        g_thread_join(thread[i]);
    }
    g_test_message("%u sleeps", sleeps);
    g_assert_cmpuint(sleeps, >, 100);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/provider/ring/producer", test_producer);
    g_test_add_func("/provider/ring/consumer", test_consumer);
    g_test_add_func("/provider/ring/wrong-indices", test_wrong_indices);
    g_test_add_func("/provider/ring/clean", test_clean);
    g_test_add_func("/provider/bell/bits", test_bell);
    g_test_add_func("/provider/bell/arm", test_arm);
    g_test_add_data_func("/provider/bell/race-1", GUINT_TO_POINTER(1), test_race);
    g_test_add_data_func("/provider/bell/race-2", GUINT_TO_POINTER(2), test_race);
    return g_test_run();
}
