/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: pausing a VM through pvrdmactl.  Its peers are held: their work
 * neither fails nor counts retries, however long it takes, and after resume
 * every message arrives exactly once.  How often they look meanwhile is counted.  And
 * the pause that begins when a guest takes bus mastering away, and outlasts that.
 */
#include "vgtest.h"

/* Connection that would give up after 3 * 1 ms of silence. */
static const struct vg_conn impatient = {.timeout = 8, .retry_cnt = 2, .rnr_retry = 7};

static void test_held(void)
{
    struct vgt_opts o = {.conn = impatient};
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, &o);
    for (unsigned i = 0; i < 3; i++) {
        vgt_vm(vgt_daemon, "pause", 1);
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
        vgt_vm(vgt_daemon, "resume", 1);
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
        unsigned vm = g_rand_int(r) & 1 ? 0 : 1;

        vgt_vm(vgt_daemon, "pause", vm);
        g_usleep(g_rand_int(r) % 20000);
        vgt_vm(vgt_daemon, "resume", vm);
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
    vgt_vm(vgt_daemon, "pause", 1);
    vgt_send(&p.s[0], 1, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 100, &p.s[1], 0);
    g_assert_cmpuint(vg_qp_state(p.s[1].qp), ==, PVRDMA_QPS_RTS);
    vg_disconnect(p.s[1].g);
    /* Nobody to be held for any more: the normal rules apply again. */
    g_assert_true(vg_cq_wait(p.s[0].scq, &c, VGT_WAIT_MS));
    g_assert_cmpuint(c.status, ==, PVRDMA_WC_RETRY_EXC_ERR);
    vgt_pair_close(&p);
    /* And the next life of the VM runs. */
    vgt_pair_open(&p, 0, 1, &o);
    vgt_complete(&p.s[0], 2, PVRDMA_WR_RDMA_WRITE, 0, 100, &p.s[1], 0);
    vgt_pair_close(&p);
}

/* ---- who waits looks seldom, and when there is something to see ---- */

#define WAITERS 64u

/* From one look to the next when nothing changes, at last; requester.c. */
#define LOOK_MS 64

struct waiters {
    struct vgt_pair p;
    struct vg_qp *qp[2][WAITERS];
};

static int64_t looks(void)
{
    return vgt_counter("vm0", "datapath", "hold_looks");
}

static int64_t ms_since(int64_t ns)
{
    return (vg_now_ns() - ns) / 1000000;
}

static void waiters_open(struct waiters *w)
{
    struct vg_qp_opts q = {.send_wr = 2, .recv_wr = 2, .send_sge = 1, .recv_sge = 1};
    struct vg_wr wr = {.opcode = PVRDMA_WR_RDMA_WRITE, .flags = VGT_SIG, .nsge = 1};
    struct vgt_opts o = {.conn = impatient};
    struct pvrdma_sge sge;

    vgt_pair_open(&w->p, 0, 1, &o);
    for (unsigned i = 0; i < WAITERS; i++) {
        for (unsigned j = 0; j < 2; j++) {
            struct vgt_side *s = &w->p.s[j];

            w->qp[j][i] = vg_qp_new(s->pd, s->scq, s->rcq, &q);
        }
        vg_qp_connect(w->qp[0][i], w->qp[1][i], &impatient);
    }
    vgt_vm(vgt_daemon, "pause", 1);
    sge = vg_sge(w->p.s[0].mr, 0, 8);
    wr.sge = &sge;
    wr.remote_addr = w->p.s[1].mr->buf->va;
    wr.rkey = w->p.s[1].mr->rkey;
    for (unsigned i = 0; i < WAITERS; i++) {
        g_assert_cmpuint(vg_post_send(w->qp[0][i], &wr, 1), ==, 1);
    }
    vgt_await_counter("vm0", "datapath", "hold_looks", WAITERS);
}

static void waiters_close(struct waiters *w)
{
    struct pvrdma_cqe c;

    vgt_vm(vgt_daemon, "resume", 1);
    for (unsigned i = 0; i < WAITERS; i++) {
        g_assert_true(vg_cq_wait(w->p.s[0].scq, &c, VGT_WAIT_MS));
        g_assert_cmpuint(c.status, ==, PVRDMA_WC_SUCCESS);
    }
    for (unsigned i = 0; i < WAITERS; i++) {
        vg_qp_free(w->qp[0][i]);
        vg_qp_free(w->qp[1][i]);
    }
    vgt_pair_close(&w->p);
}

/* Another VM stands still and goes on. */
static void blink(struct vguest *g)
{
    g_assert_cmpint(vg_bus_master(g, false), ==, 0);
    g_assert_cmpint(vg_bus_master(g, true), ==, 0);
    g_assert_cmpint(vg_query_port(g, 1, NULL), ==, 0);
}

/* As long as nothing changes, they look ever less often. */
static void test_seldom(void)
{
    int64_t t = vg_now_ns(), n;
    struct waiters w;

    waiters_open(&w);
    while (ms_since(t) < 1000) {
        g_usleep(50000);
    }
    n = looks();
    g_assert_cmpint(n, <=, WAITERS * (8 + ms_since(t) / LOOK_MS));
    waiters_close(&w);
}

/*
 * Something goes on: they are woken, and look anew, so far more often than they would
 * have by themselves.
 */
static void test_woken(void)
{
    struct vguest *other = vguest_new(vgt_daemon, 2, NULL);
    struct waiters w;
    bool woken = false;

    waiters_open(&w);
    for (int64_t end = vg_now_ns() + VGT_WAIT_MS * 1000000ll;
         !woken && vg_now_ns() < end;) {
        int64_t n, t;

        g_usleep(2 * LOOK_MS * 1000);
        t = vg_now_ns();
        n = looks();
        for (unsigned i = 0; i < 8; i++) {
            blink(other);
            g_usleep(LOOK_MS * 1000 / 16);
        }
        n = looks() - n;
        woken = n > WAITERS * (2 + ms_since(t) / LOOK_MS);
    }
    g_assert_true(woken);
    waiters_close(&w);
    vguest_free(other);
}

/* However often: once a millisecond, and by their timers as often. */
static void test_blinking(void)
{
    struct vguest *other = vguest_new(vgt_daemon, 2, NULL);
    struct waiters w;

    waiters_open(&w);
    for (unsigned tries = 0; tries < 20; tries++) {
        int64_t t = vg_now_ns(), n = looks();

        for (unsigned i = 0; i < 200; i++) {
            blink(other);
        }
        n = looks() - n;
        g_assert_cmpint(n, <=, WAITERS * (10 + 2 * ms_since(t)));
    }
    waiters_close(&w);
    vguest_free(other);
}

/*
 * A kernel was started by another (kexec): its driver turns bus mastering on before it
 * says anything else, and the memory that peers write to is not the former one's now.
 */
static void test_bus_master(gconstpointer data)
{
    bool another = GPOINTER_TO_INT(data);
    struct vgt_opts o = {.conn = impatient};
    struct vgt_pair p;
    struct vguest *g;

    vgt_pair_open(&p, 0, 1, &o);
    g = p.s[1].g;
    memset(VG_MR_HOST(p.s[1].mr, 0), 0x5a, 100000);
    for (unsigned i = 0; i < 2; i++) { /* off and on again, once more */
        g_assert_cmpint(vg_bus_master(g, false), ==, 0);
        if (i == 0) {
            vgt_fill(VG_MR_HOST(p.s[0].mr, 0), 100000, 7);
            vgt_send(&p.s[0], 1, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 100000, &p.s[1], 0);
            vgt_send(&p.s[1], 2, PVRDMA_WR_SEND, VGT_SIG, 0, 100, NULL, 0);
            vgt_recv(&p.s[0], 3, 200000, 100);
        }
        g_assert_cmpint(vg_bus_master(g, true), ==, 0);
        vg_doorbell(g, p.s[1].pd->uar_page, PVRDMA_UAR_QP,
                    p.s[1].qp->handle | PVRDMA_UAR_QP_SEND);
        vgt_expect_none(p.s[0].scq, 150);
        vgt_expect_none(p.s[0].rcq, 0);
        vgt_expect_none(p.s[1].scq, 0);
    }
    for (unsigned i = 0; i < 100000; i++) {
        g_assert_cmphex(((uint8_t *)VG_MR_HOST(p.s[1].mr, 0))[i], ==, 0x5a);
    }
    if (another) {
        g_assert_cmpint(vg_write_dsr(g, g->dsr_gpa), ==, 0);
        vgt_expect(p.s[0].scq, 1, PVRDMA_WC_RETRY_EXC_ERR);
        g_assert_cmphex(*(uint8_t *)VG_MR_HOST(p.s[1].mr, 0), ==, 0x5a);
        vg_disconnect(g); /* who closes it has its objects no more */
    } else {
        g_assert_cmpint(vg_query_port(g, 1, NULL), ==, 0);
        vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS);
        vgt_expect(p.s[0].rcq, 3, PVRDMA_WC_SUCCESS);
        vgt_expect(p.s[1].scq, 2, PVRDMA_WC_SUCCESS);
        vgt_check(VG_MR_HOST(p.s[1].mr, 0), 100000, 7);
    }
    vgt_pair_close(&p);
}

int main(int argc, char **argv)
{
    vgt_start(&argc, &argv, 120, 3);
    g_test_add_func("/pause/held", test_held);
    g_test_add_func("/pause/exactly-once", test_exactly_once);
    g_test_add_func("/pause/leaves", test_paused_leaves);
    g_test_add_func("/pause/seldom", test_seldom);
    g_test_add_func("/pause/woken", test_woken);
    g_test_add_func("/pause/blinking", test_blinking);
    g_test_add_data_func("/pause/bus-master/same-kernel", GINT_TO_POINTER(false),
                         test_bus_master);
    g_test_add_data_func("/pause/bus-master/another-kernel", GINT_TO_POINTER(true),
                         test_bus_master);
    return vgt_run();
}
