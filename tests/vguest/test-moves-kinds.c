/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: whatever the type of a queue pair, all kinds of moves do (route.h):
 * reliable and unreliable connections, datagrams and those of the general services,
 * shared receive queues, windows and registered keys.
 */
#include "hosts.h"
#include "keys.h"
#include "numbered.h"
#include "route.h"

static struct vg_daemon *host[ROUTE_HOSTS];

/* Once around, or more often. */
static unsigned n_moves(void)
{
    return MAX(vgt_rounds(1), 1) * ROUTE_STEPS;
}

/* @shared: all receive from one queue. */
static void numbered(gconstpointer style, enum pvrdma_qp_type type, bool shared)
{
    struct route r = ROUTE_BEGIN(host);
    struct vgt_opts o = vgt_opts_of(style);
    unsigned done[ROUTE_N_KINDS] = {0};
    struct numbered n;

    numbered_open(&n, r.at[0].vm, r.at[1].vm, type, shared, &o);
    for (unsigned i = 0; i < n_moves(); i++) {
        numbered_run(&n, n.arrived + 50);
        done[route_move(&r, (struct vguest *[]){n.p.s[0].g, n.p.s[1].g})]++;
    }
    numbered_run(&n, n.arrived + 50);
    numbered_end(&n);
    g_test_message("%" PRIu64 " messages, %" PRIu64 " lost", n.arrived,
                   numbered_lost(&n));
    route_assert_all(done);
    numbered_close(&n);
}

static void test_rc(gconstpointer style)
{
    numbered(style, PVRDMA_QPT_RC, false);
}

static void test_srq(gconstpointer style)
{
    numbered(style, PVRDMA_QPT_RC, true);
}

static void test_uc(gconstpointer style)
{
    numbered(style, PVRDMA_QPT_UC, false);
}

static void test_ud(gconstpointer style)
{
    numbered(style, PVRDMA_QPT_UD, false);
}

static void test_ud_srq(gconstpointer style)
{
    numbered(style, PVRDMA_QPT_UD, true);
}

static void test_gsi(gconstpointer style)
{
    numbered(style, PVRDMA_QPT_GSI, false);
}

struct keys {
    struct route r;
    struct vgt_pair p;
    unsigned done[ROUTE_N_KINDS];
};

static void next_move(void *opaque)
{
    struct keys *k = opaque;

    k->done[route_move(&k->r, (struct vguest *[]){k->p.s[0].g, k->p.s[1].g})]++;
}

/* Each step of the way is once behind each of the three requests. */
static void keys(gconstpointer style, bool fast)
{
    struct vgt_opts o = vgt_opts_of(style);
    struct keys k = {.r = ROUTE_BEGIN(host)};
    struct key key = {.fast = fast};
    unsigned n = MAX(vgt_rounds(3), 3) * ROUTE_STEPS;

    o.kernel = fast;
    vgt_pair_open(&k.p, k.r.at[0].vm, k.r.at[1].vm, &o);
    key_open(&key, &k.p.s[1]);
    for (unsigned i = 0; i < n; i++) {
        key_round(&k.p, &key, next_move, &k, (i + i / ROUTE_STEPS) % 3, i / 3 % 2);
    }
    key_dead(&k.p, &key);
    route_assert_all(k.done);
    key_close(&key, &k.p.s[1]);
    vgt_pair_close(&k.p);
}

static void test_windows(void)
{
    keys(GUINT_TO_POINTER(VGT_EXTENDED), false);
}

static void test_fast_reg(gconstpointer style)
{
    keys(style, true);
}

int main(int argc, char **argv)
{
    struct host_opts o = {.n_vms = 4, .daemon_keys = "peer-timeout=30\nworkers=2"};
    static const struct vgt_both tests[] = {
        {"rc", test_rc},
        {"srq", test_srq},
        {"uc", test_uc},
        {"ud", test_ud},
        {"ud-srq", test_ud_srq},
        {"gsi", test_gsi},
        {"fast-reg", test_fast_reg},
    };

    vgt_init(&argc, &argv, 240);
    hosts_start(host, ROUTE_HOSTS, &o);
    vgt_add_both("moves-kinds", tests, G_N_ELEMENTS(tests));
    g_test_add_func("/moves-kinds/windows", test_windows);
    return hosts_run(host, ROUTE_HOSTS);
}
