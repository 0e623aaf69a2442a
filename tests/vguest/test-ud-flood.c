/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: datagrams by the thousand.  Many receivers at once; and floods, under
 * which receivers, addresses and VMs come and go, and which keep nobody from his own.
 */
#include "ud.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>

/* ---- many ---- */

#define MANY_TX 6u
#define MANY_RX 96u

/* In one turn, to more CQs than a worker's batch has room for. */
static void test_many_receivers(void)
{
    struct vgt_pair p;
    struct vg_qp *tx[MANY_TX], *rx[MANY_RX];
    struct vg_cq *cq[MANY_RX];
    struct vg_qp_opts o = {.type = PVRDMA_QPT_UD, .contig = true};
    struct pvrdma_sge from, into;
    struct vg_wr recv = {.nsge = 1, .sge = &into};
    struct pvrdma_av av;

    ud_open(&p, 0, 1, VGT_EXTENDED);
    from = vg_sge(p.s[0].mr, 0, 64);
    into = vg_sge(p.s[1].mr, FAR, 4096);
    av = vg_av(p.s[0].pd, 0, &p.s[1].g->gid);
    for (unsigned i = 0; i < MANY_RX; i++) {
        cq[i] = vg_cq_new(p.s[1].pd, 16);
        rx[i] = vg_qp_new(p.s[1].pd, p.s[1].scq, cq[i], &o);
        vg_ud_to_rts(rx[i], QKEY);
    }
    for (unsigned i = 0; i < MANY_TX; i++) {
        tx[i] = vg_qp_new(p.s[0].pd, p.s[0].scq, p.s[0].rcq, &o);
        vg_ud_to_rts(tx[i], QKEY);
    }
    for (unsigned round = 0; round < vgt_rounds(50); round++) {
        for (unsigned i = 0; i < MANY_RX; i++) {
            recv.wr_id = i;
            g_assert_cmpuint(vg_post_recv(rx[i], &recv, 1), ==, 1);
        }
        for (unsigned i = 0; i < MANY_RX; i++) {
            struct vg_wr wr = vg_wr_datagram(i, VGT_SIG, &from, &av, rx[i]->qpn, QKEY);

            g_assert_cmpuint(vg_queue_send(tx[i % MANY_TX], &wr, 1), ==, 1);
        }
        for (unsigned i = 0; i < MANY_TX; i++) {
            vg_ring_send(tx[i]);
        }
        for (unsigned i = 0; i < MANY_RX; i++) {
            vgt_expect(cq[i], i, PVRDMA_WC_SUCCESS);
        }
        for (unsigned i = 0; i < MANY_RX; i++) {
            struct pvrdma_cqe c;

            g_assert_true(vg_cq_wait(p.s[0].scq, &c, VGT_WAIT_MS));
            g_assert_cmpuint(c.status, ==, PVRDMA_WC_SUCCESS);
        }
    }
    for (unsigned i = 0; i < MANY_TX; i++) {
        vg_qp_free(tx[i]);
    }
    for (unsigned i = 0; i < MANY_RX; i++) {
        vg_qp_free(rx[i]);
        vg_cq_free(cq[i]);
    }
    vgt_pair_close(&p);
}

/* ---- floods ---- */

struct flooder {
    struct vgt_side *s;
    struct pvrdma_av av;
    _Atomic uint32_t qpn;
    _Atomic bool stop;
    uint64_t sent;
};

/* Each is signalled, as in SQE each completes, and the CQ has room for so many. */
#define FLOOD_DEPTH 64u

static gpointer flood(gpointer opaque)
{
    struct flooder *f = opaque;
    struct pvrdma_sge sge = vg_sge(f->s->mr, 0, 1024);
    struct pvrdma_cqe c[FLOOD_DEPTH];
    unsigned on_way = 0;

    while (!atomic_load(&f->stop) || on_way) {
        struct vg_wr wr =
            vg_wr_datagram(0, VGT_SIG, &sge, &f->av, atomic_load(&f->qpn), QKEY);
        int n;

        if (on_way < FLOOD_DEPTH && !atomic_load(&f->stop)) {
            g_assert_cmpuint(vg_post_send(f->s->qp, &wr, 1), ==, 1);
            f->sent++;
            on_way++;
        }
        n = vg_cq_poll(f->s->scq, c, FLOOD_DEPTH);
        g_assert_cmpint(n, >=, 0);
        on_way -= (unsigned)n;
        if (!n && on_way == FLOOD_DEPTH) {
            sched_yield();
        }
    }
    return NULL;
}

static GThread *flood_start(struct flooder *f, struct vgt_side *s,
                            const struct vgt_side *far)
{
    f->s = s;
    f->av = vg_av(s->pd, 0, &far->g->gid);
    atomic_store(&f->qpn, far->qp->qpn);
    return g_thread_new("flood", flood, f);
}

/*
 * Receivers are made, filled, reset and destroyed while datagrams rain on them from
 * another worker; what they were given is theirs, and nothing comes afterwards.
 */
static void test_destroy_under_flood(gconstpointer data)
{
    struct flooder f = {0};
    struct vgt_pair p;
    GThread *thread;
    uint64_t got = 0;

    ud_open(&p, 0, 1, GPOINTER_TO_UINT(data));
    thread = flood_start(&f, &p.s[0], &p.s[1]);
    for (unsigned i = 0; i < vgt_rounds(300); i++) {
        struct vg_cq *cq = vg_cq_new(p.s[1].pd, 64);
        struct vg_qp *qp = vg_qp_new(p.s[1].pd, cq, cq, &p.s[1].qp->opts);
        struct pvrdma_sge sge = vg_sge(p.s[1].mr, FAR, 4096);
        struct vg_wr wr = {.wr_id = i, .nsge = 1, .sge = &sge};
        struct pvrdma_cqe c;

        atomic_store(&f.qpn, qp->qpn);
        for (unsigned k = 0; k < 32; k++) {
            g_assert_cmpuint(vg_queue_recv(qp, &wr, 1), ==, 1);
        }
        vg_ud_to_rts(qp, QKEY);
        vg_ring_recv(qp);
        if (i % 3 == 0) {
            vgt_expect(cq, i, PVRDMA_WC_SUCCESS);
            got++;
        }
        if (i % 2) {
            vg_qp_to_reset(qp);
            /* After the answer nothing is written any more. */
            memset(VG_MR_HOST(p.s[1].mr, FAR), 0x77, 4096);
            while (vg_cq_poll(cq, &c, 1) == 1) {
                got++;
            }
            for (unsigned k = 0; k < 4096; k++) {
                g_assert_cmpuint(*VG_MR_HOST(p.s[1].mr, FAR + k), ==, 0x77);
            }
            vgt_expect_none(cq, 0);
        }
        vg_qp_free(qp);
        vg_cq_free(cq);
    }
    atomic_store(&f.stop, true);
    g_thread_join(thread);
    g_test_message("%" PRIu64 " sent, %" PRIu64 " seen", f.sent, got);
    vgt_pair_close(&p);
}

/* Once a GID is unbound nothing comes from it any more, whatever is posted. */
static void test_unbind_under_flood(gconstpointer data)
{
    struct flooder f = {0};
    struct vgt_pair p;
    struct pvrdma_gid mine = vg_gid(0);
    struct pvrdma_cqe c;
    GThread *thread;

    ud_open(&p, 0, 1, GPOINTER_TO_UINT(data));
    thread = flood_start(&f, &p.s[0], &p.s[1]);
    for (unsigned i = 0; i < vgt_rounds(100); i++) {
        for (unsigned k = 0; k < 8; k++) {
            vgt_recv(&p.s[1], i, FAR, 4096);
        }
        vgt_expect(p.s[1].rcq, i, PVRDMA_WC_SUCCESS);
        g_assert_cmpint(vg_unbind_gid(p.s[0].g, 0, &mine), ==, 0);
        while (vg_cq_poll(p.s[1].rcq, &c, 1) == 1) {
            g_assert_cmpuint(c.wr_id, ==, i);
        }
        vgt_recv(&p.s[1], 5000 + i, FAR, 4096);
        vgt_expect_none(p.s[1].rcq, 2);
        /* The first one after that failed, and the rest is flushed. */
        while (vg_qp_state(p.s[0].qp) != PVRDMA_QPS_SQE) {
            g_usleep(100);
        }
        g_assert_cmpint(vg_bind_gid(p.s[0].g, 0, &mine), ==, 0);
        ud_recover(p.s[0].qp);
        do { /* those left from before */
            g_assert_true(vg_cq_wait(p.s[1].rcq, &c, VGT_WAIT_MS));
        } while (c.wr_id != 5000 + i);
    }
    atomic_store(&f.stop, true);
    g_thread_join(thread);
    vgt_pair_close(&p);
}

/* The receiving VM dies and comes back, again and again. */
static void test_kill_under_flood(void)
{
    struct flooder f = {0};
    struct vgt_opts o;
    struct vgt_side s[2];
    GThread *thread = NULL;

    ud_options(&o, VGT_STOCK);
    vgt_side_open(&s[0], 0, &o, 0);
    vg_ud_to_rts(s[0].qp, QKEY);
    for (unsigned i = 0; i < vgt_rounds(20); i++) {
        vgt_side_open(&s[1], 1, &o, 1);
        vg_ud_to_rts(s[1].qp, QKEY);
        if (!thread) {
            thread = flood_start(&f, &s[0], &s[1]);
        }
        atomic_store(&f.qpn, s[1].qp->qpn);
        for (unsigned k = 0; k < 60; k++) {
            vgt_recv(&s[1], k, FAR, 4096);
        }
        vgt_expect(s[1].rcq, 0, PVRDMA_WC_SUCCESS);
        if (i % 2) {
            vg_disconnect(s[1].g);
        }
        vgt_side_close(&s[1]);
    }
    atomic_store(&f.stop, true);
    g_thread_join(thread);
    vgt_side_close(&s[0]);
}

/* Two VMs of one worker: who floods QP 1 of another does not keep the third from its
 * own affairs, nor the flooded one. */
static void test_flood_starves_nobody(void)
{
    struct flooder f = {0};
    struct vgt_opts o;
    struct vgt_side s[2];
    struct vgt_pair p;
    GThread *thread;
    GArray *ms = g_array_new(FALSE, FALSE, sizeof(double));
    double slow;

    ud_options(&o, VGT_EXTENDED);
    vgt_side_open(&s[0], 0, &o, 0);
    vgt_side_open(&s[1], 1, &o, 1);
    for (unsigned i = 0; i < 2; i++) {
        vg_ud_to_rts(s[i].qp, QKEY);
    }
    vgt_pair_open(&p, 2, 2, NULL);
    g_assert_cmpuint(vgt_worker_of(2), ==, vgt_worker_of(0));
    thread = flood_start(&f, &s[0], &s[1]);
    for (unsigned i = 0; i < vgt_rounds(2000); i++) {
        int64_t t = vg_now_ns();
        double took;

        vgt_write_once(&p, i);
        took = (vg_now_ns() - t) / 1e6;
        g_array_append_val(ms, took);
    }
    for (unsigned i = 0; i < vgt_rounds(200); i++) {
        vgt_recv(&s[1], i, FAR, 4096);
        vgt_expect(s[1].rcq, i, PVRDMA_WC_SUCCESS);
    }
    atomic_store(&f.stop, true);
    g_thread_join(thread);
    slow = vgt_percentile(ms, 95);
    g_array_unref(ms);
    g_test_message("%" PRIu64 " datagrams; 95%% of the WRITEs took less than %.2f ms",
                   f.sent, slow);
    vgt_assert_shorter(slow, 50);
    vgt_pair_close(&p);
    vgt_side_close(&s[0]);
    vgt_side_close(&s[1]);
}

int main(int argc, char **argv)
{
    static const struct vgt_both both[] = {
        {"destroy-under-flood", test_destroy_under_flood},
        {"unbind-under-flood", test_unbind_under_flood},
    };

    vgt_init(&argc, &argv, 300);
    ud_daemon_start();
    vgt_add_both("ud", both, G_N_ELEMENTS(both));
    g_test_add_func("/ud/many-receivers", test_many_receivers);
    g_test_add_func("/ud/kill-under-flood", test_kill_under_flood);
    g_test_add_func("/ud/flood-starves-nobody", test_flood_starves_nobody);
    return vgt_run();
}
