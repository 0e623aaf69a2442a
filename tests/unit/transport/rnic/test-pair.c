/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Pairs over softnic: channels between VMs of one daemon are made, work, break and are
 * made again, whatever goes and whichever call fails; and nothing of them is left.
 */
#include <sys/stat.h>

#include "pairfix.h"

/* ---- they are made ---- */

static void one_nic(void)
{
    softnic_do("add p0 10.3.0.1");
    fix_group("n0", "p0", "10.3.0.1", NULL);
    fix_nics();
}

/* Of one network, and their channel, which is up. */
static struct rnic_pair *two_vms(struct fixvm **a, struct fixvm **b)
{
    struct rnic_pair *p;

    *a = fix_vm("net", 1);
    *b = fix_vm("net", 2);
    p = fix_want(*a, *b);
    fix_expect(p, RNIC_PAIR_UP);
    return p;
}

static void two_nics(void)
{
    softnic_do("add p0 10.3.0.1");
    softnic_do("add p1 10.3.0.2");
    fix_group("n0", "p0", "10.3.0.1", NULL);
    fix_group("n1", "p1", "10.3.0.2", NULL);
    fix_nics();
}

static void test_up(void)
{
    struct fixvm *a, *b;
    struct rnic_pair *p, *q;

    fix_start();
    one_nic();
    a = fix_vm("net", 1);
    b = fix_vm("net", 2);
    g_assert_false(rnic_vm_is_used(a->rv));
    p = fix_want(a, b);
    g_assert_cmpint(rnic_pair_state(p), ==, RNIC_PAIR_MAKING);
    fix_expect(p, RNIC_PAIR_UP);
    g_assert_cmpuint(a->changes, ==, 1);
    g_assert_true(rnic_vm_is_used(a->rv));
    fix_lock(a);
    g_assert_cmpstr(rnic_pair_nic(p), ==, "n0");
    g_assert_true(rnic_pair_of(rnic_pair_channel(p)) == p);
    fix_unlock(a);
    fix_traffic(a, p, b);
    /* The other side's is the same. */
    q = fix_want(b, a);
    fix_expect(q, RNIC_PAIR_UP);
    fix_traffic(b, q, a);
    g_assert_cmpuint(fix_ends(), ==, 2);
    fix_vm_free(a);
    fix_vm_free(b);
    fix_stop();
    softnic_do("remove p0");
}

/* A VM that is connected with itself has both ends. */
static void test_self(void)
{
    struct fixvm *a;
    struct rnic_pair *p;

    fix_start();
    softnic_do("add p0 10.3.0.1 iwarp");
    fix_group("n0", "p0", "10.3.0.1", NULL);
    fix_nics();
    a = fix_vm("net", 1);
    p = fix_want(a, a);
    fix_expect(p, RNIC_PAIR_UP);
    fix_traffic(a, p, a);
    fix_lock(a);
    g_assert_true(a->last != p && rnic_pair_vm(a->last) == a->rv);
    fix_unlock(a);
    g_assert_true(fix_want(a, a) == p);
    g_assert_cmpuint(fix_ends(), ==, 2);
    /* It is gone with both. */
    rnic_pair_break(p, "the test wants it");
    UNTIL(fix_broken_of(a) == 2 && !fix_ends());
    g_assert_cmpint(rnic_pair_state(p), ==, RNIC_PAIR_NONE);
    g_assert_true(fix_want(a, a) == p);
    fix_expect(p, RNIC_PAIR_UP);
    fix_traffic(a, p, a);
    fix_vm_free(a);
    fix_stop();
    softnic_do("remove p0");
}

/* Without a NIC, or one of its network, there is none. */
static void test_networks(void)
{
    struct fixvm *a, *b;
    struct rnic_pair *p;

    fix_start();
    a = fix_vm("net", 1);
    b = fix_vm("net", 2);
    p = fix_want(a, b);
    g_assert_cmpint(rnic_pair_state(p), ==, RNIC_PAIR_NONE);
    softnic_do("add p0 10.3.0.1");
    softnic_do("add p1 10.3.0.2");
    fix_group("n0", "p0", "10.3.0.1", "other");
    fix_group("n1", "p1", "10.3.0.2", "another;net");
    a->changes = 0;
    fix_nics();
    UNTIL(a->changes > 0); /* it may be asked for again */
    fix_want(a, b);
    fix_expect(p, RNIC_PAIR_UP);
    fix_lock(a);
    g_assert_cmpstr(rnic_pair_nic(p), ==, "n1");
    fix_unlock(a);
    fix_traffic(a, p, b);
    fix_vm_free(a);
    fix_vm_free(b);
    fix_stop();
    softnic_do("remove p0");
    softnic_do("remove p1");
}

/* ---- NICs ---- */

static char *nic_name(struct fixvm *v, const struct rnic_pair *p)
{
    char *name;

    fix_lock(v);
    name = g_strdup(rnic_pair_nic(p));
    fix_unlock(v);
    return name;
}

/* Pairs take the NIC with fewer channels, and the other one if that goes. */
static void test_two(void)
{
    struct fixvm *v[5];
    struct rnic_pair *p[4];
    unsigned on_first = 0;

    fix_start();
    two_nics();
    for (unsigned i = 0; i < 5; i++) {
        v[i] = fix_vm("net", 10 + i);
    }
    for (unsigned i = 0; i < 4; i++) {
        g_autofree char *name = NULL;

        p[i] = fix_want(v[i], v[4]);
        fix_expect(p[i], RNIC_PAIR_UP);
        name = nic_name(v[i], p[i]);
        on_first += strcmp(name, "n0") == 0;
    }
    g_assert_cmpuint(on_first, ==, 2);
    softnic_do("down p0");
    UNTIL(fix_nics_open() == 1 && fix_ends() == 4);
    for (unsigned i = 0; i < 4; i++) {
        g_autofree char *name = NULL;

        g_assert_true(fix_want(v[i], v[4]) == p[i]);
        fix_expect(p[i], RNIC_PAIR_UP);
        name = nic_name(v[i], p[i]);
        g_assert_cmpstr(name, ==, "n1");
        fix_traffic(v[i], p[i], v[4]);
    }
    softnic_do("up p0");
    UNTIL(fix_nics_open() == 2);
    for (unsigned i = 0; i < 5; i++) {
        fix_vm_free(v[i]);
    }
    fix_stop();
    softnic_do("remove p0");
    softnic_do("remove p1");
}

/* How a NIC goes. */
static const char *const losses[] = {"down", "fatal", "unplug", "remove"};

/* With flows in use, and VMs that run, are paused, or take no turns. */
static void test_loss(gconstpointer which)
{
    unsigned n = GPOINTER_TO_UINT(which);

    for (unsigned standing = 0; standing < 3; standing++) {
        struct stat before, after;
        struct fixvm *a, *b;
        struct rnic_pair *p;
        int fd;

        fix_start();
        one_nic();
        fd = TAILQ_FIRST(&rnic_cms)->ctx->cmd_fd;
        g_assert_cmpint(fstat(fd, &before), ==, 0);
        p = two_vms(&a, &b);
        g_assert_nonnull(fix_begin(a, p, 1u << 20, 1u << 20));
        UNTIL(fix_used(b));
        if (standing == 1) {
            fix_pause(a, true);
        } else if (standing == 2) {
            atomic_store(&b->standing, true);
        }
        softnic_do("%s p0", losses[n]);
        fix_expect(p, RNIC_PAIR_NONE);
        UNTIL(!fix_ends() && TAILQ_EMPTY(&rnic_cms));
        g_assert_cmpuint(fix_broken_of(a), ==, 1);
        g_assert_cmpuint(fix_used(a) + fix_used(b), ==, 0);
        g_assert_false(rnic_vm_is_used(a->rv));
        UNTIL(softnic_count("objects", NULL) == 0);
        if (n == 1) { /* it is there: what the library has opened stays as it is */
            g_assert_cmpint(fstat(fd, &after), ==, 0);
            g_assert_cmpuint(after.st_ino, ==, before.st_ino);
        }
        if (n > 0) { /* nor does anything keep the device */
            UNTIL(n == 1 || softnic_count("contexts", "p0") <= 0);
            softnic_do("add p0 10.3.0.1");
        } else {
            softnic_do("up p0");
        }
        fix_pause(a, false);
        atomic_store(&b->standing, false);
        UNTIL(fix_nics_open() == 1);
        UNTIL(fix_want(a, b) == p && rnic_pair_state(p) != RNIC_PAIR_NONE);
        fix_expect(p, RNIC_PAIR_UP);
        fix_traffic(a, p, b);
        fix_vm_free(a);
        fix_vm_free(b);
        fix_stop();
        softnic_do("remove p0");
    }
}

/* It fails in the middle of a look at it, and is gone then. */
static void test_gone_in_look(void)
{
    struct fixvm *a, *b;
    struct rnic_pair *p;
    int64_t calls;

    fix_start();
    one_nic();
    p = two_vms(&a, &b);
    calls = softnic_count("calls", "query_port");
    softnic_do("delay query_port 1 1000000000");
    UNTIL(softnic_count("calls", "query_port") > calls);
    softnic_do("unplug p0;clear");
    fix_expect(p, RNIC_PAIR_NONE);
    UNTIL(!fix_ends() && TAILQ_EMPTY(&rnic_cms));
    UNTIL(softnic_count("contexts", "p0") <= 0);
    fix_vm_free(a);
    fix_vm_free(b);
    fix_stop();
}

/* Nothing keeps a device that is removed while its NIC is down, and not used for that. */
static void test_removed(void)
{
    struct fixvm *a, *b;
    struct rnic_pair *p;

    fix_start();
    one_nic();
    p = two_vms(&a, &b);
    for (unsigned i = 0; i < 3; i++) {
        fix_expect(p, RNIC_PAIR_UP);
        softnic_do("down p0");
        UNTIL(!fix_ends() && TAILQ_EMPTY(&rnic_cms));
        softnic_do("remove p0");
        UNTIL(softnic_count("contexts", "p0") <= 0);
        softnic_do("add p0 10.3.0.1");
        UNTIL(fix_nics_open() == 1);
        UNTIL(fix_want(a, b) == p && rnic_pair_state(p) != RNIC_PAIR_NONE);
    }
    fix_expect(p, RNIC_PAIR_UP);
    fix_vm_free(a);
    fix_vm_free(b);
    fix_stop();
    softnic_do("remove p0");
}

/* The daemon is replaced: all channels go before the NICs are closed, and come back. */
static bool suspended;

static bool not_at_once(void)
{
    return false;
}

static void suspend(void *unused)
{
    g_autoptr(GError) err = NULL;

    g_assert_true(rnic_nics_suspend(not_at_once, &err));
    suspended = true;
}

/* While channels become fewer that may take longer than else. */
static void test_suspend_slowly(void)
{
    struct fixvm *v[11];

    fix_start();
    one_nic();
    for (unsigned i = 0; i < 11; i++) {
        v[i] = fix_vm("net", 1 + i);
        if (i) {
            fix_expect(fix_want(v[0], v[i]), RNIC_PAIR_UP);
        }
    }
    rnic_close_ms = 6000;
    softnic_do("delay cm_destroy_id 0 450000"); /* 9 s */
    suspended = false;
    coro_run(suspend, NULL);
    UNTIL(suspended);
    softnic_do("clear");
    rnic_close_ms = 60000;
    rnic_nics_resume();
    UNTIL(fix_nics_open() == 1);
    for (unsigned i = 0; i < 11; i++) {
        fix_vm_free(v[i]);
    }
    fix_stop();
    softnic_do("remove p0");
}

static void test_suspend(void)
{
    struct fixvm *a, *b;
    struct rnic_pair *p;

    fix_start();
    two_nics();
    p = two_vms(&a, &b);
    g_assert_nonnull(fix_begin(a, p, 1u << 20, 1u << 20));
    suspended = false;
    coro_run(suspend, NULL);
    UNTIL(suspended);
    g_assert_cmpint(rnic_pair_state(p), ==, RNIC_PAIR_NONE);
    g_assert_cmpint(softnic_count("objects", NULL), ==, 0);
    g_assert_cmpint(rnic_pair_state(fix_want(a, b)), ==, RNIC_PAIR_NONE);
    rnic_nics_resume();
    UNTIL(fix_nics_open() == 2);
    fix_want(a, b);
    fix_expect(p, RNIC_PAIR_UP);
    fix_vm_free(a);
    fix_vm_free(b);
    fix_stop();
    softnic_do("remove p0");
    softnic_do("remove p1");
}

/* ---- calls fail ---- */

static const char *const entries[] = {
    "alloc_pd",      "reg_mr",         "create_comp_channel", "create_cq",
    "modify_qp",     "post_recv",      "post_send",           "poll_cq",
    "req_notify_cq", "cm_create_id",   "cm_resolve_addr",     "cm_resolve_route",
    "cm_set_option", "cm_create_qp",   "cm_connect",          "cm_accept",
    "cm_get_event",  "cm_bind_addr",   "cm_listen",           "cm_create_event_channel",
    "cm_disconnect", "cm_get_devices", "cm_reject",
};

/* Each call that making a channel takes, in turn; then it is made, and works. */
static void test_faults(void)
{
    for (unsigned i = 0; i < G_N_ELEMENTS(entries); i++) {
        for (unsigned n = 1; n <= 4; n++) {
            struct fixvm *a, *b;
            struct rnic_pair *p;

            fix_start();
            rnic_pair_rest_ms = 1;
            softnic_do("add p0 10.3.0.1");
            fix_group("n0", "p0", "10.3.0.1", NULL);
            a = fix_vm("net", 1);
            b = fix_vm("net", 2);
            softnic_do("fail %s %u EIO", entries[i], n);
            fix_nics();
            p = fix_want(a, b);
            UNTIL(rnic_pair_state(p) != RNIC_PAIR_MAKING);
            if (rnic_pair_state(p) == RNIC_PAIR_UP) {
                fix_begin(a, p, 100, 100);
            }
            fix_let_turn(2);
            softnic_do("clear");
            UNTIL(fix_want(a, b) == p && rnic_pair_state(p) == RNIC_PAIR_UP);
            fix_let_turn(2);
            while (rnic_pair_state(p) != RNIC_PAIR_UP) { /* it was about to break */
                fix_want(a, b);
                fix_iterate(INT64_MAX, "");
            }
            fix_vm_free(a);
            fix_vm_free(b);
            fix_stop();
            softnic_do("remove p0");
        }
    }
}

/* ---- VMs go ---- */

/* After each number of turns of the main loop, either VM, or both. */
static void test_vm_goes(void)
{
    for (unsigned n = 0; n < 60; n++) {
        struct fixvm *v[2];
        struct rnic_pair *p;

        fix_start();
        rnic_token_ms = 100; /* who waits for the other one's request */
        one_nic();
        v[0] = fix_vm("net", 1);
        v[1] = fix_vm("net", 2);
        p = fix_want(v[n % 2], v[!(n % 2)]);
        for (unsigned i = 0; i < n / 2 && rnic_pair_state(p) != RNIC_PAIR_UP; i++) {
            g_main_context_iteration(NULL, TRUE);
        }
        fix_vm_free(v[n / 2 % 2]);
        fix_let_turn(1 + n % 3);
        if (n % 3) {
            fix_vm_free(v[!(n / 2 % 2)]);
            UNTIL(!fix_ends());
        } else {
            UNTIL(!fix_ends());
            fix_vm_free(v[!(n / 2 % 2)]);
        }
        fix_stop();
        softnic_do("remove p0");
    }
}

/* It goes while verbs stand in the kernel, and again while all is taken apart. */
static void test_vm_goes_slowly(void)
{
    static const char *const slow[] = {"alloc_pd",      "create_cq", "reg_mr",
                                       "cm_connect",    "cm_accept", "cm_get_event",
                                       "cm_destroy_qp", "dereg_mr",  "modify_qp"};

    for (unsigned i = 0; i < G_N_ELEMENTS(slow); i++) {
        struct fixvm *a, *b;
        int64_t calls;

        fix_start();
        rnic_token_ms = 400;
        one_nic();
        a = fix_vm("net", 1);
        b = fix_vm("net", 2);
        calls = softnic_count("calls", slow[i]);
        softnic_do("delay %s 0 30000", slow[i]);
        fix_expect(fix_want(a, b), RNIC_PAIR_MAKING);
        if (i < 6) {
            UNTIL(softnic_count("calls", slow[i]) > calls);
        } else {
            UNTIL(rnic_pair_state(fix_want(a, b)) == RNIC_PAIR_UP);
        }
        fix_vm_free(a);
        fix_let_turn(1);
        fix_vm_free(b);
        fix_stop();
        softnic_do("remove p0");
    }
}

/* What it has posted last arrives though it has gone, and its host QP stays that long. */
static void test_last_words(void)
{
    struct fixvm *a, *b;
    struct rnic_pair *p;
    struct fixflow *x;
    bool opened;

    fix_start();
    one_nic();
    p = two_vms(&a, &b);
    x = fix_begin(a, p, 0, 0);
    do {
        fix_let_turn(1);
        fix_lock(a);
        opened = x->opened;
        fix_unlock(a);
    } while (!opened);
    softnic_do("hold 0");
    fix_lock(a);
    x->to_send = 500;
    fix_push(x);
    rnic_vm_flush(a->rv);
    fix_unlock(a);
    rnic_linger_ms = 20000; /* until the peer ends it */
    fix_vm_free(a);
    fix_let_turn(30);
    softnic_do("hold -1");
    UNTIL(fix_all_taken(b) == 500);
    rnic_linger_ms = 0;
    fix_vm_free(b);
    UNTIL(!fix_ends());
    fix_stop();
    softnic_do("remove p0");
}

/* ---- time ---- */

/* Nobody waits longer than that, though the channel comes up later. */
static void test_patience(void)
{
    struct fixvm *a, *b;
    struct rnic_pair *p;

    fix_start();
    one_nic();
    rnic_make_ms = 20;
    a = fix_vm("net", 1);
    b = fix_vm("net", 2);
    softnic_do("delay cm_connect 1 60000000");
    p = fix_want(a, b);
    UNTIL(a->changes == 1);
    g_assert_cmpint(rnic_pair_state(p), ==, RNIC_PAIR_NONE);
    g_assert_cmpint(rnic_pair_state(fix_want(a, b)), ==, RNIC_PAIR_NONE);
    softnic_do("clear");
    fix_expect(p, RNIC_PAIR_UP);
    g_assert_cmpuint(a->changes, ==, 2);
    fix_traffic(a, p, b);
    fix_vm_free(a);
    fix_vm_free(b);
    fix_stop();
    softnic_do("remove p0");
}

/* It fails when nobody waits any more: that it may be made anew is told then, too. */
static void test_late_failure(void)
{
    int64_t calls = softnic_count("calls", "cm_resolve_route");
    struct fixvm *a, *b;
    struct rnic_pair *p;

    fix_start();
    one_nic();
    rnic_make_ms = 20;
    a = fix_vm("net", 1);
    b = fix_vm("net", 2);
    softnic_do("delay cm_resolve_route 1 60000000");
    softnic_do("fail cm_resolve_route 1 EIO");
    p = fix_want(a, b);
    UNTIL(a->changes == 1 && softnic_count("calls", "cm_resolve_route") > calls);
    g_assert_cmpint(rnic_pair_state(p), ==, RNIC_PAIR_NONE);
    g_assert_true(p->making);
    softnic_do("clear");
    UNTIL(a->changes == 2);
    g_assert_false(p->making);
    rnic_make_ms = 20000;
    fix_want(a, b);
    fix_expect(p, RNIC_PAIR_UP);
    fix_vm_free(a);
    fix_vm_free(b);
    fix_stop();
    softnic_do("remove p0");
}

/* A call stands in the kernel: others go on by the other NIC, and this pair, too. */
static void test_stands(void)
{
    struct fixvm *v[4];
    struct rnic_pair *p, *q;
    struct rnic_cm *n0;
    char *name;

    fix_start();
    two_nics();
    for (unsigned i = 0; i < 4; i++) {
        v[i] = fix_vm("net", 1 + i);
    }
    rnic_make_ms = 20;
    rnic_late_ms = 1500;
    softnic_do("delay cm_connect 1 120000000");
    p = fix_want(v[0], v[1]);
    n0 = p->end->cm;
    UNTIL(p->end->ch && v[0]->changes == 1); /* then it connects */
    p->end->deadline = g_get_monotonic_time();
    rnic_pairs_nics_changed(); /* for its timer */
    UNTIL(!p->making);
    rnic_make_ms = 20000;
    UNTIL(fix_want(v[0], v[1]) == p && rnic_pair_state(p) == RNIC_PAIR_UP);
    name = nic_name(v[0], p);
    g_assert_cmpstr(name, !=, n0->name);
    g_free(name);
    UNTIL(!rnic_cm_serves(n0, "net"));
    q = fix_want(v[2], v[3]);
    fix_expect(q, RNIC_PAIR_UP);
    name = nic_name(v[2], q);
    g_assert_cmpstr(name, !=, n0->name);
    g_free(name);
    g_assert_cmpuint(n0->n_ends, >, 0); /* it still stands */
    v[0]->changes = 0;
    rnic_pair_break(p, "the test wants it");
    softnic_do("clear");
    UNTIL(rnic_cm_serves(n0, "net"));
    g_assert_cmpuint(v[0]->changes, >, 0);
    for (unsigned i = 0; i < 4; i++) {
        fix_vm_free(v[i]);
    }
    fix_stop();
    softnic_do("remove p0");
    softnic_do("remove p1");
}

/* Who ends a channel has its reason: that is no failure, also if the connection manager
 * tells of it later than the flushed receives do. */
static void test_honest_end(void)
{
    struct fixvm *a, *b;

    fix_start();
    softnic_do("add p0 10.3.0.1 iwarp");
    fix_group("n0", "p0", "10.3.0.1", NULL);
    fix_nics();
    a = fix_vm("net", 1);
    b = fix_vm("net", 2);
    rnic_honest_ms = 20000;
    softnic_do("delay cm_get_event 0 10000");
    for (unsigned i = 0; i < 3; i++) {
        struct rnic_pair *p, *q = fix_want(b, a);

        UNTIL((p = fix_want(a, b)) && rnic_pair_state(p) == RNIC_PAIR_UP &&
              rnic_pair_state(q) == RNIC_PAIR_UP);
        g_assert_nonnull(fix_begin(a, p, 1, 1));
        rnic_pair_break(q, "the test wants it");
        fix_expect(p, RNIC_PAIR_NONE);
        UNTIL(!fix_ends());
        g_assert_cmpint(p->failed_at, ==, 0);
    }
    fix_vm_free(a);
    fix_vm_free(b);
    fix_stop();
    softnic_do("remove p0");
}

/* There is no memory for an event: it is taken later, and nothing is lost by it. */
static void test_no_memory(void)
{
    struct fixvm *v[3];
    struct rnic_pair *p, *q;

    fix_start();
    one_nic();
    for (unsigned i = 0; i < 3; i++) {
        v[i] = fix_vm("net", 1 + i);
    }
    p = fix_want(v[0], v[1]);
    fix_expect(p, RNIC_PAIR_UP);
    softnic_do("fail cm_get_event 1 ENOMEM");
    softnic_do("fail cm_get_event 2 EBUSY");
    q = fix_want(v[0], v[2]);
    fix_expect(q, RNIC_PAIR_UP);
    g_assert_cmpint(rnic_pair_state(p), ==, RNIC_PAIR_UP);
    fix_traffic(v[0], p, v[1]);
    for (unsigned i = 0; i < 3; i++) {
        fix_vm_free(v[i]);
    }
    fix_stop();
    softnic_do("remove p0");
}

/* Both ends fail: neither hears before that the other has ended it. */
static void fail_both(struct fixvm *a, struct rnic_pair *p, struct rnic_pair *q)
{
    g_assert_nonnull(fix_begin(a, p, 1, 1));
    softnic_do("delay cm_get_event 0 60000000");
    softnic_do("strike p0");
    fix_expect(p, RNIC_PAIR_NONE);
    fix_expect(q, RNIC_PAIR_NONE);
    softnic_do("clear");
    UNTIL(!fix_ends());
}

/* A channel that fails twice rests; so do both sides. */
static void test_rest(void)
{
    struct fixvm *a, *b;
    struct rnic_pair *p, *q;

    fix_start();
    one_nic();
    a = fix_vm("net", 1);
    b = fix_vm("net", 2);
    for (unsigned i = 0; i < 2; i++) {
        p = fix_want(a, b);
        fix_expect(p, RNIC_PAIR_UP);
        q = fix_want(b, a);
        fix_expect(q, RNIC_PAIR_UP);
        fail_both(a, p, q);
    }
    g_assert_cmpint(rnic_pair_state(fix_want(a, b)), ==, RNIC_PAIR_NONE);
    g_assert_cmpint(rnic_pair_state(fix_want(b, a)), ==, RNIC_PAIR_NONE);
    g_assert_cmpuint(fix_ends(), ==, 0);
    /* The NIC's own events end that. */
    a->changes = 0;
    softnic_do("down p0");
    UNTIL(fix_nics_open() == 0);
    softnic_do("up p0");
    UNTIL(fix_nics_open() == 1);
    UNTIL(a->changes > 0);
    /* And so does time. */
    for (unsigned i = 0; i < 2; i++) {
        fix_want(a, b);
        fix_expect(p, RNIC_PAIR_UP);
        fix_want(b, a);
        fix_expect(q, RNIC_PAIR_UP);
        fail_both(a, p, q);
    }
    g_assert_cmpint(rnic_pair_state(fix_want(a, b)), ==, RNIC_PAIR_NONE);
    a->changes = 0;
    p->rest_until = q->rest_until = g_get_monotonic_time() + 20000;
    rnic_pair_break(p, "for its timer");
    UNTIL(a->changes > 0);
    UNTIL(fix_want(a, b) == p && rnic_pair_state(p) == RNIC_PAIR_UP);
    fix_vm_free(a);
    fix_vm_free(b);
    fix_stop();
    softnic_do("remove p0");
}

/* When a VM has as many channels as it may the one that was idle longest goes. */
static void test_idle(void)
{
    struct fixvm *v[5];
    struct rnic_pair *p[4];

    fix_start();
    one_nic();
    for (unsigned i = 0; i < 5; i++) {
        v[i] = fix_vm("net", 10 + i);
    }
    rnic_vm_channels = 3;
    for (unsigned i = 0; i < 3; i++) {
        p[i] = fix_want(v[4], v[i]);
        rnic_pair_hold(p[i]); /* else it goes with its channel */
        fix_expect(p[i], RNIC_PAIR_UP);
    }
    p[3] = fix_want(v[4], v[3]);
    UNTIL(rnic_pair_state(p[3]) != RNIC_PAIR_MAKING);
    fix_let_turn(5);
    g_assert_cmpint(rnic_pair_state(p[3]), ==, RNIC_PAIR_NONE);
    g_assert_cmpuint(fix_ends(), ==, 6);
    v[4]->changes = 0;
    UNTIL(v[4]->changes > 0); /* it may be asked for again, and is refused again */
    fix_want(v[4], v[3]);
    UNTIL(rnic_pair_state(p[3]) != RNIC_PAIR_MAKING);
    g_assert_cmpint(rnic_pair_state(p[3]), ==, RNIC_PAIR_NONE);
    rnic_idle_ms = 50;
    fix_let_turn(60);
    fix_traffic(v[4], p[0], v[0]);
    fix_traffic(v[4], p[2], v[2]);
    UNTIL(fix_want(v[4], v[3]) == p[3] && rnic_pair_state(p[3]) == RNIC_PAIR_UP);
    g_assert_cmpint(rnic_pair_state(p[1]), ==, RNIC_PAIR_NONE);
    g_assert_cmpint(rnic_pair_state(p[0]), ==, RNIC_PAIR_UP);
    g_assert_cmpint(rnic_pair_state(p[2]), ==, RNIC_PAIR_UP);
    for (unsigned i = 0; i < 5; i++) {
        if (i < 3) {
            rnic_pair_let_go(p[i]);
        }
        fix_vm_free(v[i]);
    }
    fix_stop();
    softnic_do("remove p0");
}

/*
 * Those who lose an idle one to another do not ask for it again: nobody misses it.  The
 * test's VMs want all that changed, as connections do that have nothing to send.
 */
static void test_carousel(void)
{
    struct fixvm *v[4];
    struct rnic_pair *p[3];

    fix_start();
    one_nic();
    for (unsigned i = 0; i < 4; i++) {
        v[i] = fix_vm("net", 10 + i);
    }
    v[3]->wants_all = true;
    rnic_vm_channels = 2;
    rnic_idle_ms = 20;
    for (unsigned i = 0; i < 2; i++) {
        p[i] = fix_want(v[3], v[i]);
        rnic_pair_hold(p[i]);
        fix_expect(p[i], RNIC_PAIR_UP);
    }
    fix_let_turn(40);
    UNTIL((p[2] = fix_want(v[3], v[2])) && rnic_pair_state(p[2]) == RNIC_PAIR_UP);
    UNTIL(fix_ends() == 4);
    v[3]->changes = 0;
    fix_let_turn(1300); /* who finds no room looks again after a second */
    g_assert_cmpuint(v[3]->changes, ==, 0);
    g_assert_cmpint(rnic_pair_state(p[2]), ==, RNIC_PAIR_UP);
    g_assert_true((rnic_pair_state(p[0]) == RNIC_PAIR_UP) !=
                  (rnic_pair_state(p[1]) == RNIC_PAIR_UP));
    rnic_pair_let_go(p[0]);
    rnic_pair_let_go(p[1]);
    for (unsigned i = 0; i < 4; i++) {
        fix_vm_free(v[i]);
    }
    fix_stop();
    softnic_do("remove p0");
}

/* A VM whose state is another's has other addresses: the peer knows it by these. */
static void test_another_owner(void)
{
    struct fixvm *a, *b;
    struct rnic_pair *p;

    fix_start();
    one_nic();
    a = fix_vm("net", 10);
    b = fix_vm("net", 20);
    p = fix_want(b, a);
    fix_expect(p, RNIC_PAIR_UP);
    g_assert_true(fix_want(b, a) == p);
    g_assert_cmpint(rnic_pair_state(p), ==, RNIC_PAIR_UP);
    fix_set_owner(b, 21);
    g_assert_true(fix_want(b, a) == p);
    g_assert_cmpint(rnic_pair_state(p), ==, RNIC_PAIR_MAKING);
    fix_expect(p, RNIC_PAIR_UP);
    fix_traffic(b, p, a);
    fix_vm_free(a);
    fix_vm_free(b);
    fix_stop();
    softnic_do("remove p0");
}

/* ---- NICs are shared ---- */

/* Where a sanitizer makes all slow. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOWER 16u
#else
#define SLOWER 1u
#endif

/* Whoever pauses or goes meanwhile, the others go on, and at the end nothing counts. */
static void test_shared(void)
{
    const uint64_t each = (2u << 20) / SLOWER;
    struct rnic_nic_usage u;
    struct rnic_pair *p[4];
    struct fixflow *x[4];
    struct fixvm *v[5];
    struct nic_config *nic;

    fix_start();
    softnic_do("add p0 10.3.0.1");
    fix_group("n0", "p0", "10.3.0.1", NULL);
    nic = fix_cfg->nics->data;
    g_assert_true(config_nic_set(nic, "max-in-flight", "64K", NULL));
    g_assert_true(config_nic_set(nic, "max-requests", "16", NULL));
    fix_nics();
    for (unsigned i = 0; i < 5; i++) {
        v[i] = fix_vm("net", 10 + i);
    }
    for (unsigned i = 0; i < 4; i++) {
        p[i] = fix_want(v[i], v[4]);
        fix_expect(p[i], RNIC_PAIR_UP);
    }
    for (unsigned i = 0; i < 4; i++) {
        g_assert_nonnull((x[i] = fix_begin(v[i], p[i], each, each)));
    }
    UNTIL(fix_taken(v[2], x[2]) > each / 8 && fix_taken(v[3], x[3]) > each / 8);
    fix_pause(v[2], true);
    fix_vm_free(v[3]);
    UNTIL(fix_taken(v[0], x[0]) == each && fix_taken(v[1], x[1]) == each);
    fix_pause(v[2], false);
    /* Of the one that has gone it need not have taken anything. */
    UNTIL(fix_taken(v[2], x[2]) == each && fix_all_taken(v[4]) >= 3 * each);
    rnic_nic_usage(rnic_nic_next(NULL), &u);
    g_assert_cmpuint(u.max_bytes, ==, 65536);
    g_assert_cmpuint(u.max_requests, ==, 16);
    UNTIL((rnic_nic_usage(rnic_nic_next(NULL), &u), !u.bytes && !u.requests) &&
          !u.waiting);
    for (unsigned i = 0; i < 5; i++) {
        if (i != 3) {
            fix_vm_free(v[i]);
        }
    }
    fix_stop();
    softnic_do("remove p0");
}

/* Both sides set what is to hold for the host QP: the timeout, and the DSCP if any. */
static void test_options(void)
{
    int64_t before;

    fix_start();
    one_nic();
    for (unsigned i = 0; i < 2; i++) {
        struct fixvm *a, *b;
        struct rnic_pair *p;

        fix_dscp = i ? 46 : 0;
        a = fix_vm("net", 1);
        b = fix_vm("net", 2);
        fix_dscp = 0;
        before = softnic_count("calls", "cm_set_option");
        p = fix_want(a, b);
        fix_expect(p, RNIC_PAIR_UP);
        fix_traffic(a, p, b);
        g_assert_cmpint(softnic_count("calls", "cm_set_option") - before, ==, i ? 4 : 2);
        g_assert_cmpint(softnic_count("tos", "p0"), ==, i ? 46 << 2 : 0);
        fix_vm_free(a);
        fix_vm_free(b);
    }
    fix_stop();
    softnic_do("remove p0");
}

/* Whether the buffers of channels are for the NIC alone. */
static bool all_local;

static struct ibv_mr *reg_local(struct ibv_pd *pd, void *addr, size_t length, int access)
{
    all_local = all_local && !(access & ~IBV_ACCESS_LOCAL_WRITE);
    return softnic_verbs.reg_mr(pd, addr, length, access);
}

/* A peer can only send: it has no right to an end's host QP, nor to its memory. */
static void test_rights(void)
{
    struct rnic_verbs spy = softnic_verbs;
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr;
    struct rnic_cm *cm;
    struct rnic_end *e;
    struct fixvm *a, *b;
    unsigned n = 0;

    spy.reg_mr = reg_local;
    rnic_verbs = &spy;
    all_local = true;
    fix_start();
    one_nic();
    a = fix_vm("net", 1);
    b = fix_vm("net", 2);
    fix_expect(fix_want(a, b), RNIC_PAIR_UP);
    fix_expect(fix_want(b, a), RNIC_PAIR_UP);
    fix_traffic(a, fix_want(a, b), b);
    TAILQ_FOREACH(cm, &rnic_cms, link)
    {
        LIST_FOREACH(e, &cm->ends, of_cm)
        {
            g_assert_cmpint(
                rnic_verbs->query_qp(e->id->qp, &attr, IBV_QP_ACCESS_FLAGS, &init), ==,
                0);
            g_assert_cmpint(attr.qp_access_flags, ==, 0);
            n++;
        }
    }
    g_assert_cmpuint(n, ==, 2);
    g_assert_true(all_local);
    fix_vm_free(a);
    fix_vm_free(b);
    fix_stop();
    softnic_do("remove p0");
    rnic_verbs = &softnic_verbs;
}

/* What the key file says of a VM's share of NICs is what it has of them. */
static void test_configured(void)
{
    struct rnic_fair_vm *fair;
    struct fixvm *a, *b;

    fix_start();
    one_nic();
    fix_shares = 300;
    fix_rate = 5000000;
    a = fix_vm("net", 1);
    fix_shares = VM_SHARES_DEFAULT;
    fix_rate = 0;
    b = fix_vm("net", 2);
    fix_expect(fix_want(a, b), RNIC_PAIR_UP);
    fair = &LIST_FIRST(&a->rv->shares)->fair;
    g_assert_cmpuint(fair->shares, ==, 300);
    g_assert_cmpuint(fair->rate->rate, ==, 5000000);
    fair = &LIST_FIRST(&b->rv->shares)->fair;
    g_assert_cmpuint(fair->shares, ==, VM_SHARES_DEFAULT);
    g_assert_cmpuint(fair->rate->rate, ==, 0);
    fix_vm_free(a);
    fix_vm_free(b);
    fix_stop();
    softnic_do("remove p0");
}

int main(int argc, char **argv)
{
    int ret;

    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/rnic-pair/up", test_up);
    g_test_add_func("/rnic-pair/self", test_self);
    g_test_add_func("/rnic-pair/networks", test_networks);
    g_test_add_func("/rnic-pair/two-nics", test_two);
    for (unsigned i = 0; i < G_N_ELEMENTS(losses); i++) {
        g_autofree char *path = g_strdup_printf("/rnic-pair/loss/%s", losses[i]);

        g_test_add_data_func(path, GUINT_TO_POINTER(i), test_loss);
    }
    g_test_add_func("/rnic-pair/removed", test_removed);
    g_test_add_func("/rnic-pair/gone-in-look", test_gone_in_look);
    g_test_add_func("/rnic-pair/suspend", test_suspend);
    g_test_add_func("/rnic-pair/suspend-slowly", test_suspend_slowly);
    g_test_add_func("/rnic-pair/faults", test_faults);
    g_test_add_func("/rnic-pair/vm-goes", test_vm_goes);
    g_test_add_func("/rnic-pair/vm-goes-slowly", test_vm_goes_slowly);
    g_test_add_func("/rnic-pair/last-words", test_last_words);
    g_test_add_func("/rnic-pair/patience", test_patience);
    g_test_add_func("/rnic-pair/late-failure", test_late_failure);
    g_test_add_func("/rnic-pair/stands", test_stands);
    g_test_add_func("/rnic-pair/honest-end", test_honest_end);
    g_test_add_func("/rnic-pair/no-memory", test_no_memory);
    g_test_add_func("/rnic-pair/rest", test_rest);
    g_test_add_func("/rnic-pair/idle", test_idle);
    g_test_add_func("/rnic-pair/carousel", test_carousel);
    g_test_add_func("/rnic-pair/another-owner", test_another_owner);
    g_test_add_func("/rnic-pair/shared", test_shared);
    g_test_add_func("/rnic-pair/options", test_options);
    g_test_add_func("/rnic-pair/rights", test_rights);
    g_test_add_func("/rnic-pair/configured", test_configured);
    ret = g_test_run();
    coro_fini();
    return ret;
}
