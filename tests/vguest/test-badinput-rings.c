/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: what a guest should not do to its rings: indices and doorbells that are
 * none or another's, CQs that overrun, objects that go while a peer writes to them (see
 * badinput.h).
 */
#include "badinput.h"

/* More than the queue holds, and indices that are none. */
static void past_the_ring(void)
{
    static const uint32_t bad[] = {100, 128, 0x80000000u, UINT32_MAX}; /* 64 WQEs */

    for (unsigned ext = 0; ext < 2; ext++) {
        struct vgt_opts o = {.guest[0].db = ext ? VG_DB_EXT : VG_DB_SHARED};
        struct vgt_pair p;

        vgt_pair_open(&p, 0, 1, &o);
        for (unsigned i = 0; i < 2 * G_N_ELEMENTS(bad); i++) {
            struct tally t = tally(0, EVENTS), peer = tally(1, EVENTS);
            struct vg_qp *qp = p.s[0].qp;

            if (i % 2) { /* the receive queue is looked at when something comes */
                *qp->rq.prod_tail = bad[i / 2];
                vgt_send(&p.s[1], 1, PVRDMA_WR_SEND, 0, 0, 8, NULL, 0);
                vgt_expect(p.s[1].scq, 1, PVRDMA_WC_REM_OP_ERR);
            } else {
                *qp->sq.prod_tail = bad[i / 2];
                vg_ring_send(qp);
            }
            vgt_expect_event(p.s[0].g, PVRDMA_EVENT_QP_FATAL, qp->handle);
            counted(&t, 1);
            counted(&peer, 0);
            vgt_pair_reconnect(&p, NULL);
        }
        vgt_pair_close(&p);
    }
}

/* Doorbells for what is not the page's: another context's, nobody's. */
static void foreign_doorbells(void)
{
    struct vgt_opts o = {.guest = {{.db = VG_DB_REPLY}, {.db = VG_DB_REPLY}}};
    struct vgt_pair p;
    struct vguest *g;
    struct tally t;
    uint32_t other;

    vgt_pair_open(&p, 0, 1, &o);
    g = p.s[0].g;
    g_assert_cmpint(vg_create_uc(g, VG_UAR_PFN + 7, &other), ==, 0);
    t = tally(0, "device.bad_doorbells");
    for (unsigned i = 0; i < 100; i++) {
        vg_doorbell(g, 7, PVRDMA_UAR_QP, p.s[0].qp->handle | PVRDMA_UAR_QP_SEND);
        vg_doorbell(g, 7, PVRDMA_UAR_CQ, p.s[0].scq->handle | PVRDMA_UAR_CQ_ARM);
        vg_doorbell(g, g->uar_page, PVRDMA_UAR_QP, 999 | PVRDMA_UAR_QP_SEND);
    }
    counted(&t, 300);
    g_assert_cmpint(vg_destroy(g, PVRDMA_CMD_DESTROY_UC, other), ==, 0);
    vgt_write_once(&p, 1);
    vgt_pair_close(&p);
}

/* ---- CQs ---- */

static void overrun(void)
{
    struct vgt_opts o = {.cqe = 4, .qp = {.send_wr = 16}};
    struct tally t, peer;
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, &o);
    t = tally(0, EVENTS);
    peer = tally(1, EVENTS);
    for (unsigned i = 0; i < 12; i++) {
        vgt_send(&p.s[0], i, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p.s[1], 0);
    }
    vgt_expect_event(p.s[0].g, PVRDMA_EVENT_CQ_ERR, p.s[0].scq->handle);
    counted(&t, 2); /* and QP_FATAL */
    counted(&peer, 0);
    vgt_pair_close(&p);
}

struct resizer {
    struct vg_cq *cq;
    gint refused;
    unsigned done;
};

static gpointer resize_thread(gpointer data)
{
    struct resizer *r = data;
    int err;

    while ((err = vg_cq_resize(r->cq, 16u << r->done % 3)) == 0) {
        r->done++;
    }
    g_assert_cmpint(err, >, 0);
    g_atomic_int_set(&r->refused, 1);
    return NULL;
}

/*
 * A CQ gets one ring after the other (which takes out what is in it) until more come than
 * the present one has room for.  It fails once; it gets no other ring then, as is
 * counted.
 */
static void overrun_resized(void)
{
    struct vgt_opts o = {.cqe = 16, .qp = {.send_wr = 128}, .guest[0].db = VG_DB_EXT};
    unsigned done = 0;

    for (unsigned round = 0; round < vgt_rounds(30); round++) {
        struct tally commands, events, peer;
        struct resizer r = {0};
        struct pvrdma_sge sge;
        struct vgt_pair p;
        struct vg_wr wr;
        GThread *t;

        vgt_pair_open(&p, 0, 1, &o);
        wr = write_wr(&p, &sge, p.s[1].mr->rkey);
        wr.flags = VGT_SIG;
        commands = tally(0, COMMANDS);
        events = tally(0, EVENTS);
        peer = tally(1, EVENTS);
        r.cq = p.s[0].scq;
        t = g_thread_new("resize", resize_thread, &r);
        for (unsigned i = 0; !g_atomic_int_get(&r.refused); i++) {
            for (unsigned k = 0; k < 1 + i / 2 % 80; k++) {
                vg_queue_send(p.s[0].qp, &wr, 1); /* or not: the queue is full */
            }
            vg_ring_send(p.s[0].qp);
            g_usleep(200);
        }
        g_thread_join(t);
        vgt_expect_event(p.s[0].g, PVRDMA_EVENT_CQ_ERR, p.s[0].scq->handle);
        counted(&events, 2);
        counted(&peer, 0);
        counted(&commands, 1);
        done += r.done;
        vgt_pair_close(&p);
    }
    g_test_message("after %u resizes", done);
    g_assert_cmpuint(done, >, 0);
}

/* ---- objects destroyed under traffic ---- */

/* Queue pair or MR goes while the peer WRITEs: it alone hears of it, and is counted. */
static void destroyed(void)
{
    struct vgt_opts o = {.conn = {.timeout = 8, .retry_cnt = 1}};

    for (unsigned round = 0; round < vgt_rounds(40); round++) {
        struct vgt_pair p;
        struct tally peer, own;
        struct pvrdma_cqe c;
        unsigned n = 0;

        vgt_pair_open(&p, 1, 0, &o);
        peer = tally(1, WRS);
        own = tally(0, WRS);
        for (unsigned i = 0; i < 64; i++) {
            vgt_send(&p.s[0], i, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 400000, &p.s[1], 0);
        }
        if (round % 2) {
            vg_qp_free(p.s[1].qp);
        } else {
            vg_mr_free(p.s[1].mr);
        }
        do { /* all before are done, all after are flushed */
            g_assert_true(vg_cq_wait(p.s[0].scq, &c, VGT_WAIT_MS));
        } while (c.status == PVRDMA_WC_SUCCESS && ++n < 64);
        if (n < 64) {
            g_assert_cmpuint(c.status, ==,
                             round % 2 ? PVRDMA_WC_RETRY_EXC_ERR
                                       : PVRDMA_WC_REM_ACCESS_ERR);
        }
        counted(&peer, n < 64);
        counted(&own, n < 64 && round % 2 == 0);
        if (round % 2) {
            p.s[1].qp = vg_qp_new(p.s[1].pd, p.s[1].scq, p.s[1].rcq, NULL);
        } else {
            p.s[1].mr = vg_mr_alloc(p.s[1].pd, VA, 4096, VG_ACCESS_ALL);
        }
        vgt_pair_close(&p);
    }
}

int main(int argc, char **argv)
{
    static const struct bad bads[] = {
        {"past-the-ring", past_the_ring}, {"doorbells", foreign_doorbells},
        {"cq-overrun", overrun},          {"cq-overrun-resized", overrun_resized},
        {"destroyed", destroyed},
    };

    return bad_main(&argc, &argv, bads, G_N_ELEMENTS(bads));
}
