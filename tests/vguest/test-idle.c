/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: what an idle VM costs the daemon.  No processor time without
 * traffic, at most 4 MiB of anonymous memory per attached VM, and nothing for
 * QPs that do nothing but exist.
 */
#include "vgtest.h"

#include <unistd.h>

#define IDLE_VMS 8

static void expect_no_cpu(const char *what)
{
    struct vg_usage a, b;

    vg_daemon_usage(vgt_daemon, &a);
    g_usleep(2000000);
    vg_daemon_usage(vgt_daemon, &b);
    g_test_message("%s: %ld clock ticks in 2 s", what, b.cpu_ticks - a.cpu_ticks);
    /* A tick is 10 ms; a polling worker would take 200 of them. */
    g_assert_cmpint(b.cpu_ticks - a.cpu_ticks, <, sysconf(_SC_CLK_TCK) / 10);
}

static void test_cpu(void)
{
    struct vgt_pair p;

    expect_no_cpu("nobody attached");
    vgt_pair_open(&p, 0, 1, NULL);
    vgt_complete(&p.s[0], 1, PVRDMA_WR_RDMA_WRITE, 0, 100, &p.s[1], 0);
    expect_no_cpu("two VMs attached after traffic");
    /* A sender that waits for a receive WQE, 655 ms at a time. */
    vgt_pair_reconnect(&p, &(struct vg_conn){.min_rnr_timer = 31});
    vgt_send(&p.s[0], 1, PVRDMA_WR_SEND, VGT_SIG, 0, 100, NULL, 0);
    expect_no_cpu("a QP in RNR wait");
    vgt_recv(&p.s[1], 2, 0, 100);
    vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS);
    vgt_pair_close(&p);
}

static void test_memory(void)
{
    struct vguest *g[IDLE_VMS];
    struct vg_usage a, b;
    long each;

    g[0] = vguest_new(vgt_daemon, 2, NULL); /* what the first one warms up */
    vguest_free(g[0]);
    vgt_usage_settled(&a);
    for (unsigned i = 0; i < IDLE_VMS; i++) {
        g[i] = vguest_new(vgt_daemon, 2 + i, NULL);
    }
    vg_daemon_usage(vgt_daemon, &b);
    each = (b.rss_anon_kib - a.rss_anon_kib) / IDLE_VMS;
    g_test_message("%ld KiB of RssAnon per idle VM", each);
    if (VGT_PLAIN_BUILD) {
        g_assert_cmpint(each, <=, 4096);
    }
    for (unsigned i = 0; i < IDLE_VMS; i++) {
        vguest_free(g[i]);
    }
    vgt_usage_returns(&a);
}

static double median_us(struct vgt_side *s, struct vgt_side *peer)
{
    GArray *l = g_array_new(FALSE, FALSE, sizeof(double));
    double m;

    for (unsigned i = 0; i < 2000; i++) {
        int64_t t = vg_now_ns();
        double us;

        vgt_complete(s, 1, PVRDMA_WR_RDMA_WRITE, 0, 8, peer, 0);
        us = (vg_now_ns() - t) / 1000.0;
        g_array_append_val(l, us);
    }
    m = vgt_percentile(l, 50);
    g_array_unref(l);
    return m;
}

/* 4,000 idle QPs do not slow an active one; reported, and bounded loosely. */
static void test_idle_qps(void)
{
    enum { N = 4000 };
    struct vg_opts big = {.low_size = 256 << 20};
    struct vgt_opts o = {.guest = {big, big}};
    struct vg_qp_opts small = {.send_wr = 2, .recv_wr = 2, .contig = true};
    struct vg_qp **qp = g_new(struct vg_qp *, N);
    struct vgt_pair p;
    double alone, among;

    vgt_pair_open(&p, 0, 1, &o);
    alone = median_us(&p.s[0], &p.s[1]);
    for (unsigned i = 0; i < N; i++) {
        qp[i] = vg_qp_new(p.s[0].pd, p.s[0].scq, p.s[0].rcq, &small);
        vg_qp_reset_to_rts(qp[i], &p.s[1].g->gid, p.s[1].qp->qpn, 0, 0, NULL);
    }
    among = median_us(&p.s[0], &p.s[1]);
    g_test_message("8-byte WRITE, median: %.2f us alone, %.2f us among %d idle "
                   "QPs (x %.2f)",
                   alone, among, N, among / alone);
    vgt_assert_shorter(among, 10 * alone + 100);
    if (VGT_PLAIN_BUILD) {
        expect_no_cpu("4000 idle QPs");
    }
    for (unsigned i = 0; i < N; i++) {
        vg_qp_free(qp[i]);
    }
    g_free(qp);
    vgt_pair_close(&p);
}

int main(int argc, char **argv)
{
    struct vg_daemon_opts o = {.n_vms = 2 + IDLE_VMS, .poll_us = -1};

    vgt_init(&argc, &argv, 120);
    vgt_daemon = vg_daemon_start(&o);
    g_test_add_func("/idle/cpu", test_cpu);
    g_test_add_func("/idle/memory", test_memory);
    g_test_add_func("/idle/qps", test_idle_qps);
    return vgt_run();
}
