/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Scheduling classes: their names, what is refused, and what a thread of this
 * process may really have.  No test here measures a time.
 */
#include <errno.h>
#include <glib.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "base/priority.h"

static void test_parse(void)
{
    static const char *const good[] = {"auto",    "normal",  "nice:-20",
                                       "nice:0",  "nice:19", "fifo:1",
                                       "fifo:99", "rr:1",    "rr:99"};
    static const char *const bad[] = {"",       "Auto",     "auto:1",  "normal:0", "nice",
                                      "nice:",  "nice:-21", "nice:20", "nice:1x",  "fifo",
                                      "fifo:0", "fifo:100", "fifo:-1", "rr:0",     "rr 1",
                                      "idle",   "fifo:1 ",  "nicer:1"};
    struct priority p = {PRIORITY_RR, 7};

    for (unsigned i = 0; i < G_N_ELEMENTS(good); i++) {
        g_autofree char *text = NULL;

        g_assert_true(priority_parse(good[i], &p));
        text = priority_text(&p);
        g_assert_cmpstr(text, ==, good[i]);
    }
    g_assert_cmpint(p.class, ==, PRIORITY_RR);
    g_assert_cmpint(p.level, ==, 99);
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_test_message("%s", bad[i]);
        g_assert_false(priority_parse(bad[i], &p));
        g_assert_cmpint(p.class, ==, PRIORITY_RR);
        g_assert_cmpint(p.level, ==, 99);
    }
}

/* Each class in a thread of its own: it does not come off again. */
static void *apply(void *arg)
{
    struct priority p;
    bool ok;

    g_assert_true(priority_parse(arg, &p));
    ok = priority_apply(&p);
    g_assert_true(ok || errno == EPERM || errno == EINVAL);
    return ok ? priority_granted(gettid()) : NULL;
}

static char *granted(const char *name)
{
    GThread *t = g_thread_new("apply", apply, (void *)name);

    return g_thread_join(t);
}

static void test_apply(void)
{
    g_autofree char *normal = granted("normal"), *automatic = granted("auto");
    g_autofree char *nice = granted("nice:19"), *fifo = granted("fifo:1");

    /* Whoever may run at all may have these three. */
    g_assert_nonnull(normal);
    g_assert_nonnull(automatic);
    g_assert_nonnull(nice);
    if (sched_getscheduler(0) == SCHED_OTHER) {
        g_assert_true(g_str_has_prefix(nice, "nice 19"));
    }
    if (fifo) { /* a privilege */
        g_assert_cmpstr(fifo, ==, "fifo 1");
    }
}

static void test_usage(void)
{
    struct cpu_usage u;
    struct cpu_loss loss = {0};
    struct cpu_share share = {0};

    g_assert_true(cpu_usage_read(gettid(), &u));
    g_assert_false(cpu_usage_read(-1, &u));
    g_assert_cmpuint(u.lost, ==, 0);
    /* Whatever it says, it can be asked again. */
    cpu_lost(&loss);
    cpu_lost(&loss);
    g_assert_cmpint(loss.switches, >=, 0);
    for (uint64_t now = 1; now < 20; now++) {
        bool shared = cpu_shared(&share, now * 1000000000u);

        g_assert_true(cpu_shared(&share, now * 1000000000u + 1) == shared);
    }
    cpu_share_end(&share);
    g_assert_cmpint(share.fd, ==, 0);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/priority/parse", test_parse);
    g_test_add_func("/priority/apply", test_apply);
    g_test_add_func("/priority/usage", test_usage);
    return g_test_run();
}
