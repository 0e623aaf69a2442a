/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Grace periods: over when every registered thread has passed or is offline; waiting
 * for one in a coroutine leaves the main loop to others.
 *
 * Most tests play the registered thread themselves, so that nothing is left to
 * chance; the last ones use real threads.
 */
#include "base/grace.h"

#include "base/coro.h"

static unsigned ticks;

static gboolean on_tick(gpointer opaque)
{
    ticks++;
    return G_SOURCE_CONTINUE;
}

static void turn(void)
{
    for (unsigned i = 0; i < 50; i++) {
        g_main_context_iteration(NULL, FALSE);
    }
}

static void run_wait(void *ended)
{
    grace_wait();
    *(unsigned *)ended += 1;
}

static void test_period(void)
{
    struct grace_thread a = {0}, b = {0};
    uint64_t p;

    g_assert_true(grace_is_over(grace_begin())); /* nobody is registered */
    grace_register(&a);
    grace_register(&b);
    p = grace_begin();
    g_assert_false(grace_is_over(p));
    grace_pass(&a);
    g_assert_false(grace_is_over(p));
    grace_pass(&a); /* again: counts once */
    g_assert_false(grace_is_over(p));
    grace_pass(&b);
    g_assert_true(grace_is_over(p));

    /* What is offline is waited for no more; one that comes back is. */
    grace_offline(&a);
    p = grace_begin();
    grace_pass(&b);
    g_assert_true(grace_is_over(p));
    grace_online(&a);
    p = grace_begin();
    grace_pass(&b);
    g_assert_false(grace_is_over(p));
    grace_pass(&a);
    g_assert_true(grace_is_over(p));

    /* Passing a newer period passes the older ones. */
    p = grace_begin();
    grace_begin();
    grace_pass(&a);
    grace_pass(&b);
    g_assert_true(grace_is_over(p));
    grace_unregister(&a);
    p = grace_begin();
    g_assert_false(grace_is_over(p));
    grace_unregister(&b);
    g_assert_true(grace_is_over(p));
}

/* It does not pass: the loop turns, the coroutine waits.  It passes: that ends. */
static void test_parked(void)
{
    struct grace_thread t = {0};
    guint source = g_idle_add_full(G_PRIORITY_DEFAULT, on_tick, NULL, NULL);
    uint64_t parked = grace_parked();
    unsigned ended = 0;

    grace_register(&t);
    g_assert_false(coro_run(run_wait, &ended));
    g_assert_cmpuint(grace_parked(), ==, parked + 1);
    ticks = 0;
    turn();
    g_assert_cmpuint(ticks, >=, 20);
    g_assert_cmpuint(ended, ==, 0);
    grace_pass(&t);
    turn();
    g_assert_cmpuint(ended, ==, 1);

    /* Going offline does as well. */
    g_assert_false(coro_run(run_wait, &ended));
    turn();
    g_assert_cmpuint(ended, ==, 1);
    grace_offline(&t);
    turn();
    g_assert_cmpuint(ended, ==, 2);

    /* While it is offline nobody waits. */
    g_assert_true(coro_run(run_wait, &ended));
    g_assert_cmpuint(ended, ==, 3);
    grace_online(&t);
    grace_unregister(&t);
    g_source_remove(source);
}

static void test_many(void)
{
    struct grace_thread a = {0}, b = {0};
    unsigned ended = 0;

    grace_register(&a);
    grace_register(&b);
    for (unsigned i = 0; i < 100; i++) {
        g_assert_false(coro_run(run_wait, &ended));
    }
    grace_pass(&a);
    turn();
    g_assert_cmpuint(ended, ==, 0);
    /* Those that come now have to wait for the first one again. */
    for (unsigned i = 0; i < 100; i++) {
        g_assert_false(coro_run(run_wait, &ended));
    }
    grace_pass(&b);
    turn();
    g_assert_cmpuint(ended, ==, 100);
    grace_pass(&a);
    turn();
    g_assert_cmpuint(ended, ==, 200);
    grace_unregister(&a);
    grace_unregister(&b);
}

static void run_wait_twice(void *ended)
{
    grace_wait();
    grace_wait();
    *(unsigned *)ended += 1;
}

/* One that is woken and waits anew is not forgotten. */
static void test_again(void)
{
    struct grace_thread t = {0};
    unsigned ended = 0;

    grace_register(&t);
    for (unsigned i = 0; i < 5; i++) {
        g_assert_false(coro_run(run_wait_twice, &ended));
    }
    grace_pass(&t);
    turn();
    g_assert_cmpuint(ended, ==, 0);
    grace_pass(&t);
    turn();
    g_assert_cmpuint(ended, ==, 5);
    grace_unregister(&t);
}

/* ---- threads ---- */

struct reader {
    struct grace_thread grace;
    GThread *thread;
    unsigned index;
    _Atomic bool stop;
};

static _Atomic(int *) shared; /* never NULL; freed after a grace period */

static gpointer reader_main(gpointer opaque)
{
    struct reader *r = opaque;

    for (unsigned i = 0; !atomic_load(&r->stop); i++) {
        int *p;

        grace_pass(&r->grace);
        p = atomic_load(&shared);
        g_assert_cmpint(*p, ==, 42);
        if (i % 64 == r->index) {
            g_usleep(200); /* with the pointer in hand */
            g_assert_cmpint(*p, ==, 42);
        }
        if (i % 200 == 100 + r->index) {
            grace_offline(&r->grace);
            g_usleep(500);
            grace_online(&r->grace);
        }
    }
    grace_offline(&r->grace);
    return NULL;
}

static void run_replace(void *n)
{
    for (unsigned i = 0; i < 50; i++) {
        int *old, *fresh = g_new(int, 1);

        *fresh = 42;
        old = atomic_exchange(&shared, fresh);
        grace_wait();
        *old = -1; /* a reader would see it, also without a sanitizer */
        g_free(old);
    }
    *(unsigned *)n -= 1;
}

static void replace_all(bool coroutines)
{
    struct reader r[4] = {{{0}}};
    unsigned left = 8;

    shared = g_new(int, 1);
    *shared = 42;
    for (unsigned i = 0; i < G_N_ELEMENTS(r); i++) {
        r[i].index = i;
        grace_register(&r[i].grace);
        r[i].thread = g_thread_new("reader", reader_main, &r[i]);
    }
    if (coroutines) {
        for (unsigned i = left; i > 0; i--) {
            coro_run(run_replace, &left);
        }
        while (left > 0) {
            g_main_context_iteration(NULL, TRUE);
        }
    } else {
        run_replace(&left);
    }
    for (unsigned i = 0; i < G_N_ELEMENTS(r); i++) {
        atomic_store(&r[i].stop, true);
        g_thread_join(r[i].thread);
        grace_unregister(&r[i].grace);
    }
    g_free(shared);
}

static void test_threads_blocking(void)
{
    replace_all(false);
}

static void test_threads_coroutines(void)
{
    uint64_t parked = grace_parked();

    replace_all(true);
    g_assert_cmpuint(grace_parked(), >, parked);
}

int main(int argc, char **argv)
{
    GError *err = NULL;
    int rc;

    g_test_init(&argc, &argv, NULL);
    g_assert_true(grace_start(&err));
    g_test_add_func("/grace/period", test_period);
    g_test_add_func("/grace/parked", test_parked);
    g_test_add_func("/grace/many", test_many);
    g_test_add_func("/grace/again", test_again);
    g_test_add_func("/grace/threads/blocking", test_threads_blocking);
    g_test_add_func("/grace/threads/coroutines", test_threads_coroutines);
    rc = g_test_run();
    grace_stop();
    coro_fini();
    return rc;
}
