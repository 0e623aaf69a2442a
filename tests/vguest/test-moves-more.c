/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: what else goes along when a guest moves between two hosts, away from its
 * peer and back: messages to a shared receive queue, unreliable ones and datagrams,
 * windows and registered keys, requests that wait, a queue that drains, armed queues,
 * events.
 *
 * Each guest is in the VM of its number, on either host.  Each test runs with the one end
 * moving, then the other; but where queues are armed it is always their owner.
 */
#include "hosts.h"
#include "keys.h"
#include "migrate.h"
#include "numbered.h"

#include <string.h>

#define FAR (512u << 10) /* where side 1 receives */

static struct vg_daemon *host[2];

/* To the other host. */
static void roam(struct vguest *g)
{
    static unsigned n;

    vg_move(g, host[g->d == host[0]], g->index,
            n++ % 3 == 2 ? VG_MOVE_LEAVE_FIRST : VG_MOVE_PLAIN);
}

static void go_home(struct vguest *g)
{
    if (g->d != host[0]) {
        roam(g);
    }
}

static void close_pair(struct vgt_pair *p)
{
    go_home(p->s[0].g);
    go_home(p->s[1].g);
    vgt_pair_close(p);
}

/* ---- numbered messages -------------------------------------------------------- */

/* @shared: all receive from one queue. */
static void numbered(gconstpointer style, enum pvrdma_qp_type type, bool shared)
{
    struct vgt_opts o = vgt_opts_of(style);

    for (unsigned mover = 0; mover < 2; mover++) {
        unsigned moves = MAX(vgt_rounds(10), 4);
        struct numbered n;

        numbered_open(&n, 0, 1, type, shared, &o);
        for (unsigned i = 0; i < moves; i++) {
            numbered_run(&n, n.arrived + 100);
            roam(n.p.s[mover].g);
        }
        numbered_run(&n, n.arrived + 100);
        numbered_end(&n);
        go_home(n.p.s[mover].g);
        numbered_close(&n);
    }
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

/* ---- keys that come and go ------------------------------------------------------ */

static void roam_one(void *g)
{
    roam(g);
}

static void keys(gconstpointer style, bool fast)
{
    struct vgt_opts o = vgt_opts_of(style);

    o.kernel = fast;
    for (unsigned mover = 0; mover < 2; mover++) {
        struct key k = {.fast = fast};
        struct vgt_pair p;

        vgt_pair_open(&p, 0, 1, &o);
        key_open(&k, &p.s[1]);
        for (unsigned i = 0; i < MAX(vgt_rounds(24), 6); i++) {
            key_round(&p, &k, roam_one, p.s[mover].g, i % 3, i / 3 % 2);
        }
        key_dead(&p, &k); /* there as well */
        go_home(p.s[mover].g);
        key_close(&k, &p.s[1]);
        close_pair(&p);
    }
}

static void test_windows(void)
{
    keys(GUINT_TO_POINTER(VGT_EXTENDED), false);
}

static void test_fast_reg(gconstpointer style)
{
    keys(style, true);
}

/* ---- requests that wait ----------------------------------------------------------- */

/*
 * A READ, a SEND of what that brings behind a fence, for which there is no receive, and
 * another: they wait through some moves.
 */
static void test_waiting(gconstpointer style)
{
    const uint32_t len = 300000;

    for (unsigned mover = 0; mover < 2; mover++) {
        struct vgt_pair p;

        vgt_pair_of(&p, style);
        for (unsigned i = 1; i <= MAX(vgt_rounds(10), 2); i++) {
            vgt_fill(VG_MR_HOST(p.s[1].mr, 0), len, i);
            memset(VG_MR_HOST(p.s[0].mr, 0), 0xee, len);
            vgt_send(&p.s[0], 1, PVRDMA_WR_RDMA_READ, VGT_SIG, 0, len, &p.s[1], 0);
            vgt_send(&p.s[0], 2, PVRDMA_WR_SEND, VGT_SIG | PVRDMA_SEND_FENCE, 0, len,
                     NULL, 0);
            vgt_send(&p.s[0], 3, PVRDMA_WR_SEND, VGT_SIG, 8, 8, NULL, 0);
            roam(p.s[mover].g);
            vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS);
            vgt_expect_none(p.s[0].scq, 20); /* it is told that there is no receive */
            roam(p.s[mover].g);
            vgt_expect_none(p.s[0].scq, 20);
            memset(VG_MR_HOST(p.s[1].mr, FAR), 0xee, len);
            vgt_recv(&p.s[1], 4, FAR, len);
            roam(p.s[mover].g);
            vgt_recv(&p.s[1], 5, FAR + len, 8);
            vgt_expect(p.s[0].scq, 2, PVRDMA_WC_SUCCESS);
            vgt_expect(p.s[0].scq, 3, PVRDMA_WC_SUCCESS);
            g_assert_cmpuint(vgt_expect(p.s[1].rcq, 4, PVRDMA_WC_SUCCESS).byte_len, ==,
                             len);
            vgt_expect(p.s[1].rcq, 5, PVRDMA_WC_SUCCESS);
            vgt_check(VG_MR_HOST(p.s[1].mr, FAR), len, i);
        }
        close_pair(&p);
    }
}

static bool drained(struct vgt_side *s, int ms)
{
    return vg_event_wait(s->g, PVRDMA_EVENT_SQ_DRAINED, s->qp->handle, ms);
}

/*
 * A message of which the peer has a part is in progress, wherever that goes in the middle
 * of it: the queue drains behind it.
 */
static void test_half(gconstpointer style)
{
    const struct pvrdma_qp_attr sqd = {.qp_state = PVRDMA_QPS_SQD,
                                       .en_sqd_async_notify = 1};
    const uint32_t len = 24u << 20, piece = 4096;

    for (unsigned i = 1; i <= MAX(vgt_rounds(6), 2); i++) {
        struct vgt_opts o = vgt_opts_of(style);
        struct pvrdma_cqe c;
        struct vg_place from;
        struct vgt_pair p;
        uint8_t *to;
        bool begun;

        o.mr_len = len;
        vgt_pair_open(&p, 0, 1, &o);
        to = VG_MR_HOST(p.s[1].mr, 0);
        vgt_fill(VG_MR_HOST(p.s[0].mr, 0), len, i);
        vgt_send(&p.s[0], 1, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, len, &p.s[1], 0);
        for (unsigned t = 0; t < 1000 && !vgt_matches(to, piece, i); t++) {
        }
        vg_qp_modify(p.s[0].qp, PVRDMA_QP_STATE | PVRDMA_QP_EN_SQD_ASYNC, &sqd);
        from = vg_move_begin(p.s[1].g, host[1], 1);
        begun = vgt_matches(to, piece, i);
        vg_move_end(p.s[1].g, &from, VG_MOVE_PLAIN);
        g_assert_true(drained(&p.s[0], VGT_WAIT_MS));
        if (begun) {
            g_assert_cmpint(vg_cq_poll(p.s[0].scq, &c, 1), ==, 1);
            g_assert_cmpuint(c.status, ==, PVRDMA_WC_SUCCESS);
        } else {
            vg_qp_to_state(p.s[0].qp, PVRDMA_QPS_RTS);
            vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS);
        }
        vgt_check(to, len, i);
        close_pair(&p);
    }
}

/* A queue that drains does so at the next place; what was posted meanwhile waits. */
static void test_draining(gconstpointer style)
{
    for (unsigned mover = 0; mover < 2; mover++) {
        struct pvrdma_qp_attr sqd = {.qp_state = PVRDMA_QPS_SQD,
                                     .en_sqd_async_notify = 1};
        struct vgt_side *s;
        struct vgt_pair p;

        vgt_pair_of(&p, style);
        s = &p.s[0];
        for (unsigned i = 0; i < MAX(vgt_rounds(10), 2); i++) {
            int64_t before = vgt_counter("vm0", "datapath", "rnr_waits");
            struct vguest *g = p.s[mover].g;

            vgt_send(s, 1, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, FAR, &p.s[1], FAR);
            vgt_send(s, 2, PVRDMA_WR_SEND, VGT_SIG, 0, 8, NULL, 0); /* no receive yet */
            vgt_expect(s->scq, 1, PVRDMA_WC_SUCCESS);
            vgt_await_counter("vm0", "datapath", "rnr_waits", before + 1);
            vg_qp_modify(s->qp, PVRDMA_QP_STATE | PVRDMA_QP_EN_SQD_ASYNC, &sqd);
            vgt_send(s, 3, PVRDMA_WR_SEND, VGT_SIG, 0, 8, NULL, 0);
            roam(g);
            g_assert_cmpuint(vg_qp_state(s->qp), ==, PVRDMA_QPS_SQD);
            g_assert_false(drained(s, 20));
            vgt_recv(&p.s[1], 4, 0, 8);
            vgt_recv(&p.s[1], 5, 0, 8);
            vgt_expect(s->scq, 2, PVRDMA_WC_SUCCESS);
            g_assert_true(drained(s, VGT_WAIT_MS));
            roam(g);
            vgt_expect_none(s->scq, 20);
            g_assert_false(drained(s, 0)); /* once */
            vg_qp_to_state(s->qp, PVRDMA_QPS_RTS);
            vgt_expect(s->scq, 3, PVRDMA_WC_SUCCESS);
            vgt_expect(p.s[1].rcq, 4, PVRDMA_WC_SUCCESS);
            vgt_expect(p.s[1].rcq, 5, PVRDMA_WC_SUCCESS);
        }
        close_pair(&p);
    }
}

/* An armed queue tells of what comes at the next place, once; what it told is not lost.
 */
static void test_armed(gconstpointer style)
{
    struct vgt_pair p;
    struct vgt_side *s = &p.s[0];

    vgt_pair_of(&p, style);
    for (unsigned i = 0; i < MAX(vgt_rounds(20), 4); i++) {
        uint32_t handle;

        vgt_recv(s, 1, 0, 8);
        vg_cq_arm(s->rcq, i % 2);
        if (i % 4 < 2) {
            roam(s->g);
        }
        vgt_send(&p.s[1], 2, PVRDMA_WR_SEND, VGT_SIG | PVRDMA_SEND_SOLICITED, 0, 8, NULL,
                 0);
        vgt_expect(p.s[1].scq, 2, PVRDMA_WC_SUCCESS);
        if (i % 4 >= 2) { /* the notification is under way, or there */
            roam(s->g);
        }
        vgt_expect(s->rcq, 1, PVRDMA_WC_SUCCESS);
        g_assert_true(vg_cqn_wait(s->g, s->rcq->handle, VGT_WAIT_MS));
        g_assert_false(vg_cqn_poll(s->g, &handle));
    }
    close_pair(&p);
}

/* An event that nobody has read yet, and a queue pair that has failed, go along. */
static void test_events(gconstpointer style)
{
    for (unsigned mover = 0; mover < 2; mover++) {
        struct vgt_side *bad;
        struct vgt_pair p;

        vgt_pair_of(&p, style);
        bad = &p.s[1];
        vgt_recv(bad, 1, 0, 8);
        vgt_send(&p.s[0], 2, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, bad, 8 << 20);
        vgt_expect(p.s[0].scq, 2, PVRDMA_WC_REM_ACCESS_ERR);
        roam(p.s[mover].g);
        vgt_expect(bad->rcq, 1, PVRDMA_WC_WR_FLUSH_ERR);
        vgt_expect_event(bad->g, PVRDMA_EVENT_QP_ACCESS_ERR, bad->qp->handle);
        g_assert_false(
            vg_event_wait(bad->g, PVRDMA_EVENT_QP_ACCESS_ERR, bad->qp->handle, 20));
        for (unsigned i = 0; i < 2; i++) {
            g_assert_cmpuint(vg_qp_state(p.s[i].qp), ==, PVRDMA_QPS_ERR);
        }
        vgt_pair_reconnect(&p, NULL);
        vgt_write_once(&p, 3);
        close_pair(&p);
    }
}

int main(int argc, char **argv)
{
    struct host_opts o = {.n_vms = 2, .daemon_keys = "peer-timeout=30\nworkers=2"};
    static const struct vgt_both tests[] = {
        {"srq", test_srq},         {"uc", test_uc},
        {"ud", test_ud},           {"fast-reg", test_fast_reg},
        {"waiting", test_waiting}, {"draining", test_draining},
        {"half", test_half},       {"armed", test_armed},
        {"events", test_events},
    };

    vgt_init(&argc, &argv, 240);
    hosts_start(host, G_N_ELEMENTS(host), &o);
    vgt_add_both("moves-more", tests, G_N_ELEMENTS(tests));
    g_test_add_func("/moves-more/windows", test_windows);
    return hosts_run(host, G_N_ELEMENTS(host));
}
