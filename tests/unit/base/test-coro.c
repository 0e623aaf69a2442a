/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Coroutines: order of waiting and waking, mutexes, turns of the main loop, nesting,
 * stacks that are used again.
 */
#include "base/coro.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include "base/fdwatch.h"

static GString *trace; /* what happened, a letter each */

static void note(char what)
{
    g_string_append_c(trace, what);
}

static void turn(void)
{
    for (unsigned i = 0; i < 100 && g_main_context_iteration(NULL, FALSE); i++) {
    }
}

static void expect(const char *what)
{
    g_assert_cmpstr(trace->str, ==, what);
    g_string_truncate(trace, 0);
}

/* ---- run, yield, wake ---- */

struct one {
    char name;
    unsigned yields;
    struct coro *self;
    bool ended;
};

static void run_one(void *opaque)
{
    struct one *o = opaque;

    o->self = coro_self();
    g_assert_nonnull(o->self);
    for (unsigned i = 0; i < o->yields; i++) {
        note(o->name);
        coro_yield();
    }
    note(g_ascii_toupper(o->name));
    o->ended = true;
}

static void test_yield(void)
{
    struct one a = {'a', 2}, b = {'b', 1}, c = {'c', 0};

    g_assert_null(coro_self());
    g_assert_false(coro_run(run_one, &a));
    g_assert_false(coro_run(run_one, &b));
    g_assert_true(coro_run(run_one, &c));
    g_assert_null(coro_self());
    expect("abC");
    g_assert_true(a.self != b.self);

    coro_wake(a.self); /* at once: nobody runs */
    expect("a");
    coro_wake(b.self);
    expect("B");
    turn(); /* nobody else is woken by a turn of the loop */
    expect("");
    coro_wake(a.self);
    expect("A");
    g_assert_true(a.ended && b.ended);
}

static void run_waker(void *opaque)
{
    struct one *o = opaque;

    note('w');
    coro_wake(o[0].self);
    coro_wake(o[1].self);
    note('W');
}

/* One that is woken by a coroutine goes on after that one, in order of waking. */
static void test_wake_by_coro(void)
{
    struct one o[2] = {{'a', 1}, {'b', 1}};

    coro_run(run_one, &o[0]);
    coro_run(run_one, &o[1]);
    g_assert_true(coro_run(run_waker, o));
    expect("abwW");
    turn();
    expect("AB");
}

static void run_nested(void *opaque)
{
    struct one *inner = opaque;

    note('<');
    g_assert_true(coro_run(run_one, inner)); /* a call: it waits with us */
    g_assert_true(inner->self == coro_self());
    note('>');
}

static void test_nested(void)
{
    struct one inner = {'i', 1};

    g_assert_false(coro_run(run_nested, &inner));
    expect("<i");
    coro_wake(inner.self);
    expect("I>");
}

/* Begun behind those whose turn it is; in order. */
static void test_later(void)
{
    struct one a = {'a', 0}, b = {'b', 0}, c = {'c', 0};

    g_assert_false(coro_run_later(run_one, &a));
    g_assert_false(coro_run_later(run_one, &b));
    g_assert_true(coro_run(run_one, &c));
    expect("C");
    turn();
    expect("AB");
}

/* More at a time than stacks are kept, deep in them, many times over. */
static unsigned deep(unsigned n)
{
    volatile char buf[2048];

    for (unsigned i = 0; i < sizeof(buf); i++) {
        buf[i] = (char)n;
    }
    if (n == 0) {
        coro_yield();
        return 0;
    }
    return deep(n - 1) + (unsigned)(buf[n % sizeof(buf)] == (char)n);
}

static void run_deep(void *opaque)
{
    struct one *o = opaque;

    o->self = coro_self();
    g_assert_cmpuint(deep(50), ==, 50);
    o->ended = true;
}

static void test_many(void)
{
    for (unsigned round = 0; round < 20; round++) {
        struct one o[64] = {{0}};

        for (unsigned i = 0; i < G_N_ELEMENTS(o); i++) {
            g_assert_false(coro_run(run_deep, &o[i]));
        }
        for (unsigned i = 0; i < G_N_ELEMENTS(o); i++) {
            coro_wake(o[(i * 7 + round) % G_N_ELEMENTS(o)].self);
        }
        for (unsigned i = 0; i < G_N_ELEMENTS(o); i++) {
            g_assert_true(o[i].ended);
        }
    }
}

/* ---- mutex ---- */

struct locker {
    struct coro_mutex *m;
    char name;
    unsigned breaths; /* turns of the loop that it holds the mutex for */
    bool in;
};

static unsigned n_in;

static gboolean on_go_on(gpointer c)
{
    coro_wake(c);
    return G_SOURCE_REMOVE;
}

static void run_locker(void *opaque)
{
    struct locker *l = opaque;

    coro_lock(l->m);
    g_assert_cmpuint(++n_in, ==, 1);
    note(l->name);
    for (unsigned i = 0; i < l->breaths; i++) {
        g_idle_add(on_go_on, coro_self());
        coro_yield();
        g_assert_cmpuint(n_in, ==, 1);
    }
    note(g_ascii_toupper(l->name));
    n_in--;
    coro_unlock(l->m);
}

static void test_mutex(void)
{
    struct coro_mutex m = {0};
    struct locker l[] = {{&m, 'a', 2}, {&m, 'b', 0}, {&m, 'c', 1}, {&m, 'd', 0}};

    coro_lock(&m); /* outside a coroutine: free */
    coro_unlock(&m);
    for (unsigned i = 0; i < G_N_ELEMENTS(l); i++) {
        g_assert_false(coro_run(run_locker, &l[i]));
    }
    expect("a");
    turn();
    expect("AbBcCdD"); /* in order of asking */
    g_assert_false(m.held);

    /* One that comes while the mutex is being handed on does not overtake. */
    g_assert_false(coro_run(run_locker, &l[0]));
    g_assert_false(coro_run(run_locker, &l[1]));
    while (trace->str[trace->len - 1] != 'A') {
        g_main_context_iteration(NULL, FALSE);
    }
    g_assert_true(m.held);
    g_assert_false(coro_run(run_locker, &l[3]));
    turn();
    expect("aAbBdD");
    g_assert_false(m.held);
    g_assert_true(coro_run(run_locker, &l[1]));
    expect("bB");
}

/* ---- turns ---- */

static unsigned ticks;

static gboolean on_tick(gpointer opaque)
{
    ticks++;
    return G_SOURCE_CONTINUE;
}

struct worker {
    gint64 us; /* of work */
    bool ended;
    uint64_t ran_ns;
};

static void run_work(void *opaque)
{
    struct worker *w = opaque;

    while (coro_ran_ns() < (uint64_t)w->us * 1000) {
        coro_breathe();
    }
    w->ran_ns = coro_ran_ns();
    w->ended = true;
}

/* Long work lets the loop turn about once a millisecond, short work does not. */
static void test_breathe(void)
{
    struct worker w = {20000}, brief = {200};
    guint source = g_idle_add_full(G_PRIORITY_DEFAULT, on_tick, NULL, NULL);

    coro_breathe(); /* outside a coroutine: nothing */
    g_assert_cmpuint(coro_ran_ns(), ==, 0);
    ticks = 0;
    g_assert_false(coro_run(run_work, &w));
    while (!w.ended) {
        g_main_context_iteration(NULL, TRUE);
    }
    g_assert_cmpuint(ticks, >=, 3); /* 19, but for a busy machine */
    g_assert_cmpuint(ticks, <, 40);
    g_assert_cmpuint(w.ran_ns, >=, 20000000);

    for (unsigned i = 0; i < 10; i++) {
        if (coro_run(run_work, &brief)) {
            break; /* one without an interruption by others is enough */
        }
        while (!brief.ended) {
            g_main_context_iteration(NULL, TRUE);
        }
        g_assert_cmpuint(i, <, 9);
        brief.ended = false;
    }
    g_source_remove(source);
}

/* Many that work long hold up a turn of the loop for no longer than one does. */
static void test_breathe_together(void)
{
    struct worker w[50] = {{0}};
    guint source = g_idle_add_full(G_PRIORITY_DEFAULT, on_tick, NULL, NULL);
    unsigned left;

    for (unsigned i = 0; i < G_N_ELEMENTS(w); i++) {
        w[i].us = 3000;
        g_assert_false(coro_run_later(run_work, &w[i]));
    }
    ticks = 0;
    do {
        g_main_context_iteration(NULL, TRUE);
        left = 0;
        for (unsigned i = 0; i < G_N_ELEMENTS(w); i++) {
            left += !w[i].ended;
        }
    } while (left > 0);
    /* 150 ms of work: 150 turns; all of them in each turn would be 3 or 4. */
    g_assert_cmpuint(ticks, >=, 20);
    g_source_remove(source);
}

static gint64 others_us; /* that the others' descriptor takes in each turn */

static gboolean on_other(gint fd, GIOCondition cond, gpointer opaque)
{
    gint64 end = g_get_monotonic_time() + others_us;

    while (g_get_monotonic_time() < end) {
    }
    return on_tick(opaque); /* it stays ready */
}

/* Turns of others' descriptor during 20 ms of work. */
static unsigned turns_of_others(gint64 us)
{
    struct worker w = {20000};
    int fd = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
    guint watch = fdwatch_add(fd, G_IO_IN, on_other, NULL);

    others_us = us;
    ticks = 0;
    g_assert_false(coro_run(run_work, &w));
    while (!w.ended) {
        g_main_context_iteration(NULL, TRUE);
    }
    fdwatch_remove(watch);
    close(fd);
    return ticks;
}

/* Long work lets others go first soon, and has as much time as they. */
static void test_breathe_for_others(void)
{
    unsigned n = 0;

    for (unsigned i = 0; i < 10 && n < 100; i++) { /* other programs may disturb it */
        n = turns_of_others(0);
    }
    g_assert_cmpuint(n, >=, 100); /* some 1,000; 20 if it did not look */
    for (unsigned i = 0; i < 10 && n >= 100; i++) {
        n = turns_of_others(500);
    }
    g_assert_cmpuint(n, <, 100); /* some 40 */
}

int main(int argc, char **argv)
{
    int rc;

    g_test_init(&argc, &argv, NULL);
    trace = g_string_new(NULL);
    g_test_add_func("/coro/yield", test_yield);
    g_test_add_func("/coro/wake-by-coro", test_wake_by_coro);
    g_test_add_func("/coro/nested", test_nested);
    g_test_add_func("/coro/later", test_later);
    g_test_add_func("/coro/many", test_many);
    g_test_add_func("/coro/mutex", test_mutex);
    g_test_add_func("/coro/breathe", test_breathe);
    g_test_add_func("/coro/breathe-together", test_breathe_together);
    g_test_add_func("/coro/breathe-for-others", test_breathe_for_others);
    rc = g_test_run();
    coro_fini();
    g_string_free(trace, TRUE);
    return rc;
}
