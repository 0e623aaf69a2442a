/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: pausing a VM through pvrdmactl.  Its peers are held: their work
 * neither fails nor counts retries, however long it takes, and after resume
 * every message arrives exactly once.
 */
#include "vgtest.h"

static void ctl(const char *what, const char *vm)
{
    g_assert_cmpint(vg_ctl(vgt_daemon, NULL, "vm %s %s", what, vm), ==, 0);
}

/* Connection that would give up after 3 * 1 ms of silence. */
static const struct vg_conn impatient = {.timeout = 8, .retry_cnt = 2, .rnr_retry = 7};

static void test_held(void)
{
    struct vgt_opts o = {.conn = impatient};
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, &o);
    for (unsigned i = 0; i < 3; i++) {
        ctl("pause", "vm1");
        /* To the paused VM: held.  From it: not started. */
        vgt_fill(VG_MR_HOST(p.s[0].mr, 0), 100000, i);
        vgt_send(&p.s[0], 1, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 100000, &p.s[1], 0);
        vgt_recv(&p.s[1], 2, 200000, 100000);
        vgt_send(&p.s[0], 3, PVRDMA_WR_SEND, VGT_SIG, 0, 100000, NULL, 0);
        vgt_send(&p.s[1], 4, PVRDMA_WR_RDMA_READ, VGT_SIG, 400000, 50000, &p.s[0], 0);
        vgt_expect_none(p.s[0].scq, 150);
        vgt_expect_none(p.s[1].rcq, 0);
        vgt_expect_none(p.s[1].scq, 0);
        g_assert_cmpuint(vg_qp_state(p.s[0].qp), ==, PVRDMA_QPS_RTS);
        ctl("resume", "vm1");
        vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS);
        vgt_expect(p.s[0].scq, 3, PVRDMA_WC_SUCCESS);
        vgt_expect(p.s[1].rcq, 2, PVRDMA_WC_SUCCESS);
        vgt_expect(p.s[1].scq, 4, PVRDMA_WC_SUCCESS);
        vgt_check(VG_MR_HOST(p.s[1].mr, 0), 100000, i);
        vgt_check(VG_MR_HOST(p.s[1].mr, 200000), 100000, i);
        vgt_check(VG_MR_HOST(p.s[1].mr, 400000), 50000, i);
    }
    vgt_pair_close(&p);
}

static gint stop_pausing;

static gpointer pause_thread(gpointer data)
{
    GRand *r = g_rand_new_with_seed(6);

    while (!g_atomic_int_get(&stop_pausing)) {
        const char *vm = g_rand_int(r) & 1 ? "vm0" : "vm1";

        ctl("pause", vm);
        g_usleep(g_rand_int(r) % 20000);
        ctl("resume", vm);
        g_usleep(g_rand_int(r) % 10000);
    }
    g_rand_free(r);
    return NULL;
}

/* The traffic engine checks that each message comes once and in order; a
 * FETCH_ADD that ran twice would leave a wrong sum. */
static void test_exactly_once(void)
{
    struct vgt_opts o = {.conn = impatient};
    struct vgt_traffic t;
    GThread *thread;
    int64_t end;

    vgt_traffic_open(&t, 0, 1, 4, 4, 200000, &o);
    g_atomic_int_set(&stop_pausing, 0);
    thread = g_thread_new("pause", pause_thread, NULL);
    end = vg_now_ns() + 3000000000ll;
    while (vg_now_ns() < end) {
        vgt_traffic_run(&t, 20);
    }
    g_atomic_int_set(&stop_pausing, 1);
    g_thread_join(thread);
    vgt_traffic_run(&t, 50);
    g_test_message("%" PRIu64 " operations, %" PRIu64 " bytes through pauses", t.ops,
                   t.bytes);
    vgt_traffic_close(&t);
}

/* A paused VM can be asked, reset and can leave. */
static void test_paused_leaves(void)
{
    struct vgt_opts o = {.conn = impatient};
    struct vgt_pair p;
    struct pvrdma_cqe c;

    vgt_pair_open(&p, 0, 1, &o);
    ctl("pause", "vm1");
    vgt_send(&p.s[0], 1, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 100, &p.s[1], 0);
    g_assert_cmpuint(vg_qp_state(p.s[1].qp), ==, PVRDMA_QPS_RTS);
    vg_disconnect(p.s[1].g);
    /* Nobody to be held for any more: the normal rules apply again. */
    g_assert_true(vg_cq_wait(p.s[0].scq, &c, VGT_WAIT_MS));
    g_assert_cmpuint(c.status, ==, PVRDMA_WC_RETRY_EXC_ERR);
    vgt_pair_close(&p);
    /* And the next life of the VM runs. */
    vgt_pair_open(&p, 0, 1, &o);
    vgt_send(&p.s[0], 2, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 100, &p.s[1], 0);
    vgt_expect(p.s[0].scq, 2, PVRDMA_WC_SUCCESS);
    vgt_pair_close(&p);
}

int main(int argc, char **argv)
{
    struct vg_daemon_opts o = {.n_vms = 2, .poll_us = -1, .workers = 2};

    vgt_init(&argc, &argv, 120);
    vgt_daemon = vg_daemon_start(&o);
    g_test_add_func("/pause/held", test_held);
    g_test_add_func("/pause/exactly-once", test_exactly_once);
    g_test_add_func("/pause/leaves", test_paused_leaves);
    return vgt_run();
}
