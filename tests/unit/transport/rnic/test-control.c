/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Control threads: what runs where and in which order, how many may wait, coroutines and
 * the thread itself as those who wait, and a lane that does not come back.
 */
#include "transport/rnic/control.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "base/coro.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool shut;        /* jobs of gate() wait */
static unsigned at_gate; /* so many do */
static char order[4096]; /* letters of those that ran */
static pthread_t main_thread;

struct task {
    struct rnic_control *control;
    enum rnic_lane lane;
    uint64_t vm;
    void (*fn)(void *arg);
    char *arg; /* of g_malloc() */
    int err;   /* 1: it has not ended */
};

/* ---- jobs ---- */

static void letter(void *arg)
{
    rnic_control_assert();
    g_assert_false(pthread_equal(pthread_self(), main_thread));
    pthread_mutex_lock(&lock);
    g_assert_cmpuint(strlen(order), <, sizeof(order) - 1);
    strcat(order, arg);
    pthread_mutex_unlock(&lock);
}

static void gate(void *arg)
{
    pthread_mutex_lock(&lock);
    at_gate++;
    pthread_cond_broadcast(&changed);
    while (shut) {
        pthread_cond_wait(&changed, &lock);
    }
    at_gate--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void set_gate(bool is_shut)
{
    pthread_mutex_lock(&lock);
    shut = is_shut;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void wait_for_gate(unsigned n)
{
    pthread_mutex_lock(&lock);
    while (at_gate != n) {
        pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- coroutines ---- */

static void run_task(void *opaque)
{
    struct task *t = opaque;

    t->err = rnic_control_run(t->control, t->lane, t->vm, t->fn, t->arg);
    if (t->err != -EINPROGRESS) {
        g_free(t->arg);
    }
}

static void start(struct task *t, struct rnic_control *c, enum rnic_lane lane,
                  uint64_t vm, void (*fn)(void *arg), const char *arg)
{
    *t = (struct task){c, lane, vm, fn, g_strdup(arg), 1};
    coro_run(run_task, t);
}

static void finish(struct task *t)
{
    while (t->err == 1) {
        g_main_context_iteration(NULL, TRUE);
    }
}

static struct rnic_control *begin(void)
{
    g_autoptr(GError) err = NULL;
    struct rnic_control *c = rnic_control_new(&err);

    g_assert_no_error(err);
    main_thread = pthread_self();
    order[0] = 0;
    return c;
}

/* ---- tests ---- */

static void test_waits(void)
{
    struct rnic_control *c = begin();
    char a[] = "a";
    struct task t;

    /* Outside of coroutines. */
    g_assert_cmpint(rnic_control_run(c, RNIC_BREAK, 0, letter, a), ==, 0);
    g_assert_cmpstr(order, ==, "a");
    /* In one: the caller of coro_run() goes on. */
    set_gate(true);
    start(&t, c, RNIC_MAKE, 7, gate, "");
    wait_for_gate(1);
    g_assert_cmpint(t.err, ==, 1);
    set_gate(false);
    finish(&t);
    g_assert_cmpint(t.err, ==, 0);
    rnic_control_free(c);
}

/* One VM's many do not hold up another's one. */
static void test_turns(void)
{
    struct rnic_control *c = begin();
    struct task blocker, a[6], b[2], n[1];

    set_gate(true);
    start(&blocker, c, RNIC_REGISTER, 9, gate, "");
    wait_for_gate(1);
    for (unsigned i = 0; i < G_N_ELEMENTS(a); i++) {
        start(&a[i], c, RNIC_REGISTER, 1, letter, "a");
    }
    for (unsigned i = 0; i < G_N_ELEMENTS(b); i++) {
        start(&b[i], c, RNIC_REGISTER, 2, letter, "b");
    }
    start(&n[0], c, RNIC_REGISTER, 0, letter, "n");
    set_gate(false);
    finish(&blocker);
    for (unsigned i = 0; i < G_N_ELEMENTS(a); i++) {
        finish(&a[i]);
        g_assert_cmpint(a[i].err, ==, 0);
    }
    g_assert_cmpstr(order, ==, "abnabaaaa");
    rnic_control_free(c);
}

/* Breaking does not wait for what registers and makes. */
static void test_lanes(void)
{
    struct rnic_control *c = begin();
    struct task reg, make;
    char x[] = "x";

    set_gate(true);
    start(&reg, c, RNIC_REGISTER, 1, gate, "");
    start(&make, c, RNIC_MAKE, 1, gate, "");
    wait_for_gate(2);
    g_assert_cmpint(rnic_control_run(c, RNIC_BREAK, 1, letter, x), ==, 0);
    g_assert_cmpstr(order, ==, "x");
    set_gate(false);
    finish(&reg);
    finish(&make);
    rnic_control_free(c);
}

static void test_bound(void)
{
    struct rnic_control *c = begin();
    struct task first, more[RNIC_CONTROL_WAITING], over, other;

    set_gate(true);
    start(&first, c, RNIC_REGISTER, 1, gate, "");
    wait_for_gate(1);
    for (unsigned i = 0; i < G_N_ELEMENTS(more); i++) {
        start(&more[i], c, RNIC_REGISTER, 1, letter, ".");
        g_assert_cmpint(more[i].err, ==, 1);
    }
    start(&over, c, RNIC_REGISTER, 1, letter, "!");
    g_assert_cmpint(over.err, ==, -EBUSY);
    /* It is nobody else's, and on no other lane. */
    start(&other, c, RNIC_REGISTER, 2, letter, ".");
    g_assert_cmpint(other.err, ==, 1);
    start(&over, c, RNIC_MAKE, 1, letter, "m");
    finish(&over);
    g_assert_cmpint(over.err, ==, 0);
    set_gate(false);
    for (unsigned i = 0; i < G_N_ELEMENTS(more); i++) {
        finish(&more[i]);
        g_assert_cmpint(more[i].err, ==, 0);
    }
    finish(&other);
    finish(&first);
    g_assert_cmpuint(strlen(order), ==, RNIC_CONTROL_WAITING + 2);
    g_assert_null(strchr(order, '!'));
    rnic_control_free(c);
}

/* The one that stands is lost, those behind it are told, and the end does not wait. */
static void test_given_up(void)
{
    struct rnic_control *c = begin();
    struct task stands, behind, late;

    set_gate(true);
    start(&stands, c, RNIC_MAKE, 0, gate, "lost");
    wait_for_gate(1);
    start(&behind, c, RNIC_MAKE, 3, letter, "!");
    rnic_control_give_up(c);
    finish(&stands);
    finish(&behind);
    g_assert_cmpint(stands.err, ==, -EINPROGRESS);
    g_assert_cmpint(behind.err, ==, -ENODEV);
    start(&late, c, RNIC_BREAK, 3, letter, "!");
    g_assert_cmpint(late.err, ==, -ENODEV);
    rnic_control_free(c);
    g_assert_cmpstr(order, ==, "");
    /* It comes back after all, and has only its own. */
    set_gate(false);
    wait_for_gate(0);
}

struct flood {
    struct rnic_control *control;
    enum rnic_lane lane;
    uint64_t vm;
    unsigned ran;
    bool ended;
};

static void count(void *arg)
{
    ++*(unsigned *)arg;
}

static void run_flood(void *opaque)
{
    struct flood *f = opaque;
    unsigned *n = g_new0(unsigned, 1);

    for (unsigned i = 0; i < 200; i++) {
        int err = rnic_control_run(f->control, f->lane, f->vm, count, n);

        g_assert_cmpint(err, ==, 0);
        f->ran++;
    }
    g_assert_cmpuint(*n, ==, f->ran);
    g_free(n);
    f->ended = true;
}

/* Many at once: each waits for its own. */
static void test_many(void)
{
    struct rnic_control *c = begin();
    struct flood f[48];
    bool all = false;

    for (unsigned i = 0; i < G_N_ELEMENTS(f); i++) {
        f[i] = (struct flood){c, i % RNIC_LANES, i % 5, 0, false};
        coro_run(run_flood, &f[i]);
    }
    while (!all) {
        g_main_context_iteration(NULL, TRUE);
        all = true;
        for (unsigned i = 0; i < G_N_ELEMENTS(f); i++) {
            all &= f[i].ended;
        }
    }
    rnic_control_free(c);
}

static void test_assert(void)
{
    if (g_test_subprocess()) {
        rnic_control_assert();
        return;
    }
    g_test_trap_subprocess(NULL, 0, 0);
    g_test_trap_assert_failed();
}

int main(int argc, char **argv)
{
    int ret;

    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/rnic-control/waits", test_waits);
    g_test_add_func("/rnic-control/turns", test_turns);
    g_test_add_func("/rnic-control/lanes", test_lanes);
    g_test_add_func("/rnic-control/bound", test_bound);
    g_test_add_func("/rnic-control/given-up", test_given_up);
    g_test_add_func("/rnic-control/many", test_many);
    g_test_add_func("/rnic-control/assert", test_assert);
    ret = g_test_run();
    coro_fini();
    return ret;
}
