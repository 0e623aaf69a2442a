/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: queue pairs that count other messages than their peers, since one of the
 * two was put back and nobody knows that, find out by themselves; others are left alone.
 *
 * VM 0 and VM 2 are places of the guest that is put back, VM 1 is its peer.
 */
#include "hosts.h"
#include "migrate.h"

#include <string.h>

#define STOP    VFIO_USER_MIG_STOP
#define RUNNING VFIO_USER_MIG_RUNNING

/* How put_back_anew() does it. */
struct anew {
    unsigned sender; /* whose messages the other one's count lacks */
    uint8_t type;    /* of the queue pairs; 0: RC */
    bool unheard;    /* no message had come to what was saved */
    bool busy;       /* the sender has one on its way when it is back, else both wait */
    bool stopped;    /* the peer's VM stands still then, and runs on later */
    bool rnr;        /* the peer has a SEND that waits for a receive all the time */
    bool rtr;        /* it was saved in RTR */
};

/*
 * A guest is put back by a VMM that was started anew, and a daemon that was: nobody there
 * knows that the guest ran on, but QPs that count otherwise than their peers.  On one
 * host both fail as soon as both VMs run, though neither sends anything. Between hosts
 * the one that was put back does, and its peer when it sends, at the latest. Nothing
 * completes that was not executed.
 */
static void put_back_anew(const struct vgt_opts *opts, const struct anew *a)
{
    g_autoptr(GByteArray) stream = NULL;
    bool tcp = vgt_by_streams();
    struct vgt_opts o = *opts;
    struct vgt_side *from, *to;
    g_autofree uint8_t *ram = NULL;
    struct pvrdma_cqe c;
    struct vgt_pair p;
    struct vg_qp was;
    struct vguest *g, *peer;

    o.qp.type = a->type;
    /* By copy nobody is to give up before both run; by TCP the peer is waited for. */
    o.conn.timeout = !tcp ? 20 : a->busy || a->rnr ? 18 : 16;
    o.unconnected = a->rtr;
    vgt_pair_open(&p, 0, 1, &o);
    g = p.s[0].g;
    peer = p.s[1].g;
    for (unsigned i = 0; i < 2 && a->rtr; i++) {
        struct vg_qp *qp = p.s[i].qp, *to_qp = p.s[1 - i].qp;

        vg_qp_to_init(qp, &o.conn);
        vg_qp_to_rtr(qp, &p.s[1 - i].g->gid, to_qp->qpn, 7, &o.conn);
        if (i) {
            vg_qp_to_rts(qp, 7, &o.conn);
        }
    }
    from = &p.s[a->sender];
    to = &p.s[1 - a->sender];
    for (unsigned i = a->rtr; i < (a->unheard ? 1 : 2); i++) {
        vgt_complete(&p.s[i], 1, PVRDMA_WR_RDMA_WRITE, 0, 8, &p.s[1 - i], 0);
    }
    for (unsigned i = a->rnr; i < 2; i++) {
        vgt_recv(&p.s[i], 8, 64, 8);
    }
    stream = vg_mig_save(g);
    ram = g_memdup2(g->ram, g->ram_size);
    was = *p.s[0].qp;
    vg_mig_enter(g, RUNNING);
    if (a->rtr) {
        vg_qp_to_rts(p.s[0].qp, 7, &o.conn);
    }
    for (unsigned i = 0; i < 3; i++) {
        vgt_complete(from, 2 + i, PVRDMA_WR_RDMA_WRITE, 0, 8, to, 0);
    }
    if (a->rnr) {
        vgt_send(&p.s[1], 12, PVRDMA_WR_SEND, VGT_SIG, 0, 8, NULL, 0);
    }
    vgt_restart(vgt_daemon); /* which knows no more what is of the past */
    vg_begin_vmm(g, vgt_daemon, 2);
    memcpy(g->ram, ram, g->ram_size);
    *p.s[0].qp = was;
    vg_mig_load(g, stream);
    memset(VG_MR_HOST(to->mr, 0), 0, 8);
    memset(VG_MR_HOST(from->mr, 0), 0x5a, 8);
    if (a->stopped) {
        vg_mig_enter(peer, STOP);
    }
    if (a->busy) {
        vgt_send(from, 10, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, to, 0);
    }
    vg_run_loaded(g);
    if (a->stopped) {
        vgt_expect_none(p.s[0].rcq, 50);
        g_assert_cmpuint(vg_qp_state(p.s[0].qp), ==, PVRDMA_QPS_RTS);
        vg_mig_enter(peer, RUNNING);
        vg_raise_all(peer);
    }
    for (unsigned i = 0; i < 2; i++) {
        struct vgt_side *s = &p.s[i];

        if (i == 1 && tcp) { /* it may have found that, too */
            vgt_send(s, 11, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p.s[0], 0);
            do {
                g_assert_true(vg_cq_wait(s->scq, &c, VGT_WAIT_MS));
                g_assert_cmpuint(c.status, !=, PVRDMA_WC_SUCCESS);
            } while (c.wr_id != 11);
        } else {
            vgt_expect_event(s->g, PVRDMA_EVENT_QP_FATAL, s->qp->handle);
            if (a->busy && s == from) {
                vgt_expect(s->scq, 10, PVRDMA_WC_WR_FLUSH_ERR);
            }
            if (a->rnr && i == 1) {
                vgt_expect(s->scq, 12, PVRDMA_WC_WR_FLUSH_ERR);
            }
        }
        if (i >= a->rnr) {
            vgt_expect(s->rcq, 8, PVRDMA_WC_WR_FLUSH_ERR);
        }
        g_assert_cmpuint(vg_qp_state(s->qp), ==, PVRDMA_QPS_ERR);
    }
    g_assert_cmpuint(*(uint8_t *)VG_MR_HOST(to->mr, 0), ==, 0);
    g_assert_cmpuint(*(uint8_t *)VG_MR_HOST(from->mr, 0), ==, 0x5a);
    vgt_pair_close(&p);
}

static void test_anew(gconstpointer style)
{
    static const struct anew kinds[] = {
        {.sender = 0},
        {.sender = 1},
        {.sender = 0, .unheard = true},
        {.sender = 1, .unheard = true},
        {.sender = 0, .busy = true},
        {.sender = 1, .busy = true},
        {.sender = 0, .stopped = true},
        {.sender = 1, .stopped = true},
        {.sender = 0, .stopped = true, .rnr = true},
        {.sender = 1, .unheard = true, .busy = true},
        {.sender = 0, .rtr = true},
    };
    static const struct anew uc = {.sender = 0, .type = PVRDMA_QPT_UC};
    struct vgt_opts o = vgt_opts_of(style);

    for (unsigned i = 0; i < G_N_ELEMENTS(kinds); i++) {
        put_back_anew(&o, &kinds[i]);
    }
    if (!vgt_by_streams()) { /* there it goes on */
        put_back_anew(&o, &uc);
    }
}

/* In a daemon that has peers: there it is another transport's affair first. */
static void test_anew_peers(gconstpointer style)
{
    struct host_opts o = {.n_vms = 3};
    struct vg_daemon *former = vgt_daemon, *host[2];

    hosts_start(host, 2, &o);
    vgt_daemon = host[0];
    test_anew(style);
    hosts_stop(host, 2);
    vgt_daemon = former;
}

/* @qp is connected to the one of @to, whatever that is connected to. */
static void connect_anew(struct vg_qp *qp, const struct vgt_side *to, uint32_t rq_psn,
                         uint32_t sq_psn)
{
    vg_qp_to_reset(qp);
    vg_qp_reset_to_rts(qp, &to->g->gid, to->qp->qpn, rq_psn, sq_psn, NULL);
}

/*
 * A queue pair was connected anew, to one that has its former connection still.  Their
 * VMs move, or the daemon is replaced: that puts nobody back, and the new connection is
 * good.
 */
static void connect_beside_a_move(const struct vgt_opts *o, unsigned mover, bool heard)
{
    struct vg_qp *stale, *fresh;
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, o);
    stale = p.s[0].qp;
    fresh = p.s[1].qp;
    vgt_write_once(&p, 1);
    if (heard) {
        vgt_complete(&p.s[1], 1, PVRDMA_WR_RDMA_WRITE, 0, 8, &p.s[0], 0);
    }
    connect_anew(fresh, &p.s[0], 0x123456, 0x654321);
    if (mover < 2) {
        vg_move(p.s[mover].g, vgt_daemon, 2, VG_MOVE_PLAIN);
    } else {
        vgt_restart(vgt_daemon);
    }
    vgt_expect_none(p.s[0].rcq, 50);
    g_assert_cmpuint(vg_qp_state(stale), ==, PVRDMA_QPS_RTS);
    g_assert_cmpuint(vg_qp_state(fresh), ==, PVRDMA_QPS_RTS);
    connect_anew(stale, &p.s[1], 0x654321, 0x123456);
    vgt_write_once(&p, 9);
    vgt_pair_close(&p);
}

static void test_connected_anew(gconstpointer style)
{
    struct vgt_opts o = vgt_opts_of(style);

    for (unsigned i = 0; i < 6; i++) {
        connect_beside_a_move(&o, i / 2, i % 2);
    }
}
int main(int argc, char **argv)
{
    struct vg_daemon_opts o = {
        .n_vms = 3, .poll_us = -1, .workers = 2, .vm_keys = "addresses=any"};
    static const struct vgt_both tests[] = {
        {"anew", test_anew},
        {"anew-peers", test_anew_peers},
        {"connected-anew", test_connected_anew},
    };

    vgt_init(&argc, &argv, 600); /* by TCP it waits for 200 s */
    vgt_daemon = vg_daemon_start(&o);
    vgt_add_both("strayed", tests, G_N_ELEMENTS(tests));
    return vgt_run();
}
