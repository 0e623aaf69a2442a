/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: completion queues.  Arming and notifications, in all the ways a guest
 * arms; overruns of the queue and of the ring of notifications.
 */
#include "vgtest.h"

/* ---- completion events ---- */

static void send_once(struct vgt_pair *p, uint64_t id, uint32_t flags)
{
    vgt_recv(&p->s[1], id, 0, 8);
    vgt_send(&p->s[0], id, PVRDMA_WR_SEND, VGT_SIG | flags, 0, 8, NULL, 0);
    vgt_expect(p->s[1].rcq, id, PVRDMA_WC_SUCCESS);
    vgt_expect(p->s[0].scq, id, PVRDMA_WC_SUCCESS);
}

/*
 * Armed when it returns.  An arm that is posted is carried out some time later, and
 * nothing orders it before what the other VM sends meanwhile; nor before what we post,
 * if the worker is amid our queue and needs no doorbell.  The completion can have been
 * polled by then, and the arm rightly waits for the next.
 */
static void arm_now(struct vg_cq *cq, bool solicited_only)
{
    vg_cq_arm(cq, solicited_only);
    if (cq->g->opts.db == VG_DB_POSTED) {
        /* A reply comes after all that was posted before it. */
        g_assert_cmpuint(vg_reg_read(cq->g, PVRDMA_REG_VERSION), ==, PVRDMA_VERSION);
    }
}

static void test_arm(const void *data)
{
    enum vg_db_mode db = GPOINTER_TO_UINT(data);
    struct vgt_opts o = {.guest = {{.db = db}, {.db = db}}};
    struct vgt_pair p;
    struct vg_cq *scq, *rcq;

    vgt_pair_open(&p, 0, 1, &o);
    scq = p.s[0].scq;
    rcq = p.s[1].rcq;
    /* Not armed: silence. */
    vgt_write_once(&p, 1);
    g_assert_false(vg_cqn_wait(p.s[0].g, scq->handle, 50));
    for (unsigned i = 0; i < 200; i++) {
        arm_now(scq, false);
        vgt_write_once(&p, i);
        g_assert_true(vg_cqn_wait(p.s[0].g, scq->handle, VGT_WAIT_MS));
    }
    /* One shot. */
    vgt_write_once(&p, 2);
    g_assert_false(vg_cqn_wait(p.s[0].g, scq->handle, 50));

    /* Solicited only. */
    for (unsigned i = 0; i < 10; i++) {
        arm_now(rcq, true);
        send_once(&p, 3, 0);
        g_assert_false(vg_cqn_wait(p.s[1].g, rcq->handle, 10));
        send_once(&p, 4, PVRDMA_SEND_SOLICITED);
        g_assert_true(vg_cqn_wait(p.s[1].g, rcq->handle, VGT_WAIT_MS));
    }
    /* ARM_SOLICITED does not weaken an ARM. */
    arm_now(rcq, false);
    arm_now(rcq, true);
    send_once(&p, 5, 0);
    g_assert_true(vg_cqn_wait(p.s[1].g, rcq->handle, VGT_WAIT_MS));
    /* WRITE with immediate, solicited. */
    arm_now(rcq, true);
    vgt_recv(&p.s[1], 6, 0, 8);
    vgt_send(&p.s[0], 7, PVRDMA_WR_RDMA_WRITE_WITH_IMM, VGT_SIG | PVRDMA_SEND_SOLICITED,
             0, 8, &p.s[1], 0);
    g_assert_true(vg_cqn_wait(p.s[1].g, rcq->handle, VGT_WAIT_MS));
    vgt_expect(rcq, 6, PVRDMA_WC_SUCCESS);
    vgt_expect(scq, 7, PVRDMA_WC_SUCCESS);
    /* Errors count as solicited. */
    arm_now(scq, true);
    vgt_send(&p.s[0], 8, PVRDMA_WR_LSO, 0, 0, 8, NULL, 0);
    g_assert_true(vg_cqn_wait(p.s[0].g, scq->handle, VGT_WAIT_MS));
    vgt_pair_close(&p);
}

/* A waiting program: arm, look once more, sleep on the interrupt, arm again.  It must
 * never sleep through a completion, whatever the moment. */
static void test_arm_no_loss(const void *data)
{
    enum vg_db_mode db = GPOINTER_TO_UINT(data);
    struct vgt_opts o = {.guest = {{.db = db}, {.db = db}}};
    struct vgt_pair p;
    GRand *r = g_rand_new_with_seed(9);

    vgt_pair_open(&p, 0, 1, &o);
    for (unsigned i = 0; i < 2000; i++) {
        struct pvrdma_cqe c;

        vgt_send(&p.s[0], i, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, g_rand_int(r) % 20000,
                 &p.s[1], 0);
        for (unsigned d = g_rand_int(r) % 2000; d > 0; d--) {
            __asm__ volatile("" ::: "memory");
        }
        vg_cq_arm(p.s[0].scq, false);
        while (vg_cq_poll(p.s[0].scq, &c, 1) == 0) {
            g_assert_cmpuint(vg_irq_wait(p.s[0].g, PVRDMA_VEC_CQ, VGT_WAIT_MS), >, 0);
            /*
             * As programs do after every event: it may be that of the completion
             * before.  The worker publishes, then looks at the arm word; if we read
             * and armed again in between, it took this arm for that one.
             */
            vg_cq_arm(p.s[0].scq, false);
        }
        g_assert_cmpuint(c.wr_id, ==, i);
        g_assert_cmpuint(c.status, ==, PVRDMA_WC_SUCCESS);
    }
    g_rand_free(r);
    vgt_pair_close(&p);
}

/*
 * A program of perftest's kind: it takes an event, arms, and only then polls.  What it
 * has not polled when it arms tells it nothing; as much as it is told it will find.
 * True of a VMM that waits for the daemon's answer, and of one that arms in memory.
 */
static void test_arm_unread(const void *data)
{
    enum vg_db_mode db = GPOINTER_TO_UINT(data);
    struct vgt_opts o = {.guest = {{.db = db}, {.db = db}}};
    struct pvrdma_cqe c;
    struct vgt_pair p;
    struct vg_cq *scq;

    vgt_pair_open(&p, 0, 1, &o);
    scq = p.s[0].scq;
    vg_cq_arm(scq, false);
    for (unsigned i = 0; i < 50; i++) {
        vgt_send(&p.s[0], i, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p.s[1], 0);
        g_assert_true(vg_cqn_wait(p.s[0].g, scq->handle, VGT_WAIT_MS));
        vg_cq_arm(scq, i % 2);
        vg_cq_arm(scq, false);
        g_assert_false(vg_cqn_wait(p.s[0].g, scq->handle, i < 3 ? 50 : 0));
        g_assert_cmpint(vg_cq_poll(scq, &c, 1), ==, 1);
        g_assert_cmpuint(c.wr_id, ==, i);
    }
    g_assert_false(vg_cqn_wait(p.s[0].g, scq->handle, 50));
    vgt_pair_close(&p);
}

/* ---- overruns ---- */

static void test_cq_overrun(void)
{
    struct vgt_opts o = {.cqe = 4, .qp = {.send_wr = 16}};
    struct vgt_pair p;
    struct pvrdma_cqe c;
    unsigned good = 0;

    vgt_pair_open(&p, 0, 1, &o);
    for (unsigned i = 0; i < 12; i++) {
        vgt_send(&p.s[0], i, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p.s[1], 0);
    }
    vgt_expect_event(p.s[0].g, PVRDMA_EVENT_CQ_ERR, p.s[0].scq->handle);
    g_assert_cmpuint(vg_qp_state(p.s[0].qp), ==, PVRDMA_QPS_ERR);
    /* What was complete before stays readable, nothing is overwritten. */
    while (vg_cq_poll(p.s[0].scq, &c, 1) == 1) {
        g_assert_cmpuint(c.status, ==, PVRDMA_WC_SUCCESS);
        g_assert_cmpuint(c.wr_id, ==, good);
        good++;
    }
    g_assert_cmpuint(good, <=, 4);
    g_assert_cmpuint(good, >=, 3);
    vgt_pair_close(&p);
}

/*
 * A QP that leaves RESET with a CQ that has failed already gets no completion from
 * it, ever: it goes to ERR as those did that were there at the failure.
 */
static void test_qp_of_failed_cq(void)
{
    struct vgt_opts o = {.cqe = 4, .qp = {.send_wr = 16}};
    struct vgt_pair p;
    struct vg_qp *later;
    struct vguest *g;

    vgt_pair_open(&p, 0, 1, &o);
    g = p.s[0].g;
    later = vg_qp_new(p.s[0].pd, p.s[0].scq, p.s[0].rcq, &o.qp);
    for (unsigned i = 0; i < 12; i++) {
        vgt_send(&p.s[0], i, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p.s[1], 0);
    }
    vgt_expect_event(g, PVRDMA_EVENT_CQ_ERR, p.s[0].scq->handle);
    vgt_expect_event(g, PVRDMA_EVENT_QP_FATAL, p.s[0].qp->handle);

    for (unsigned i = 0; i < 2; i++) {
        if (i) {
            later = vg_qp_new(p.s[0].pd, p.s[0].scq, p.s[0].rcq, &o.qp);
        }
        g_assert_cmpuint(vg_qp_state(later), ==, PVRDMA_QPS_RESET);
        vg_qp_to_init(later, NULL);
        vgt_expect_event(g, PVRDMA_EVENT_QP_FATAL, later->handle);
        g_assert_cmpuint(vg_qp_state(later), ==, PVRDMA_QPS_ERR);
        vg_qp_free(later);
    }
    vgt_pair_close(&p);
}

/* The guest writes rubbish over the CQ's consumer index. */
static void test_cq_bad_index(void)
{
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, NULL);
    *p.s[0].scq->cons_head = 0xdeadbeef;
    vgt_send(&p.s[0], 1, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p.s[1], 0);
    /* Whether it still fits is the device's affair, but not for long. */
    for (unsigned i = 0; i < 600; i++) {
        if (!vgt_post_write(&p, p.s[0].qp, i)) {
            g_usleep(500);
        }
    }
    vgt_expect_event(p.s[0].g, PVRDMA_EVENT_CQ_ERR, p.s[0].scq->handle);
    *p.s[0].scq->cons_head = 0;
    vgt_pair_close(&p);
    vg_daemon_check(vgt_daemon);
}

/*
 * The notification ring holds 1024 at most.  More come while nobody reads: the
 * ring must not be overrun, and every CQ that was left out must be told later.
 */
static void test_cqn_overrun(void)
{
    enum { NCQ = 4, ROUNDS = 330 };
    struct vgt_pair p;
    struct vg_cq *cq[NCQ];
    struct vg_qp *qp[NCQ], *peer[NCQ];
    unsigned told[NCQ] = {0}, total;
    struct pvrdma_ring *ring;
    uint32_t handle;

    vgt_pair_open(&p, 0, 1, NULL);
    for (unsigned i = 0; i < NCQ; i++) {
        cq[i] = vg_cq_new(p.s[0].pd, 16);
        qp[i] = vg_qp_new(p.s[0].pd, cq[i], cq[i], NULL);
        peer[i] = vg_qp_new(p.s[1].pd, p.s[1].scq, p.s[1].rcq, NULL);
        vg_qp_connect(qp[i], peer[i], NULL);
    }
    for (unsigned r = 0; r < ROUNDS; r++) {
        for (unsigned i = 0; i < NCQ; i++) {
            vg_cq_arm(cq[i], false);
            g_assert_true(vgt_post_write(&p, qp[i], r));
            vgt_expect(cq[i], r, PVRDMA_WC_SUCCESS);
        }
    }
    ring = &((struct pvrdma_ring_state *)p.s[0].g->cqn_ring->host)->rx;
    total = (ring->prod_tail - ring->cons_head) & 2047;
    g_assert_cmpuint(total, <=, 1024);
    g_assert_cmpuint(total, >=, 1000);
    while (total--) {
        g_assert_true(vg_cqn_poll(p.s[0].g, &handle));
    }
    /* The deferred ones, one of each CQ at least. */
    for (unsigned i = 0; i < NCQ; i++) {
        int64_t deadline = vg_now_ns() + VGT_WAIT_MS * 1000000ll;

        while (!told[i]) {
            g_assert_cmpint(vg_now_ns(), <, deadline);
            while (vg_cqn_poll(p.s[0].g, &handle)) {
                for (unsigned k = 0; k < NCQ; k++) {
                    told[k] += handle == cq[k]->handle;
                }
            }
            g_usleep(1000);
        }
    }
    for (unsigned i = 0; i < NCQ; i++) {
        vg_qp_free(qp[i]);
        vg_qp_free(peer[i]);
        vg_cq_free(cq[i]);
    }
    vgt_pair_close(&p);
}

/*
 * A CQ fails that has more QPs than the event ring takes: the guest hears of the CQ
 * first, as that is the cause, and then of every QP.
 */
static void test_cq_of_many(void)
{
    enum { NQP = 600 };
    struct vgt_opts o = {.cqe = 4, .qp = {.send_wr = 16}};
    struct vg_qp_opts small = {
        .send_wr = 1, .recv_wr = 1, .send_sge = 1, .recv_sge = 1, .contig = true};
    g_autoptr(GHashTable) left = g_hash_table_new(NULL, NULL);
    struct pvrdma_ring *ring;
    struct vg_qp *qp[NQP];
    struct vgt_pair p;
    struct pvrdma_eqe ev;
    int64_t end;

    vgt_pair_open(&p, 0, 1, &o);
    ring = &((struct pvrdma_ring_state *)p.s[0].g->async_ring->host)->rx;
    for (unsigned i = 0; i < NQP; i++) {
        struct vg_cq *other = i % 2 ? p.s[0].rcq : p.s[0].scq;

        qp[i] = vg_qp_new(p.s[0].pd, p.s[0].scq, other, &small);
        vg_qp_to_init(qp[i], NULL);
        g_hash_table_add(left, GUINT_TO_POINTER(qp[i]->handle));
    }
    g_hash_table_add(left, GUINT_TO_POINTER(p.s[0].qp->handle));
    while (vg_event_poll(p.s[0].g, &ev)) {
    }
    for (unsigned i = 0; i < 12; i++) {
        vgt_send(&p.s[0], i, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p.s[1], 0);
    }
    end = vg_now_ns() + VGT_WAIT_MS * 1000000ll;
    vgt_await(((__atomic_load_n(&ring->prod_tail, __ATOMIC_ACQUIRE) - ring->cons_head) &
               1023) == 512);
    g_usleep(20000); /* and the rest */

    g_assert_true(vg_event_poll(p.s[0].g, &ev));
    g_assert_cmpuint(ev.type, ==, PVRDMA_EVENT_CQ_ERR);
    g_assert_cmpuint(ev.info, ==, p.s[0].scq->handle);
    while (g_hash_table_size(left)) {
        if (vg_event_poll(p.s[0].g, &ev)) {
            g_assert_cmpuint(ev.type, ==, PVRDMA_EVENT_QP_FATAL);
            g_assert_true(g_hash_table_remove(left, GUINT_TO_POINTER(ev.info)));
        } else {
            g_assert_cmpint(vg_now_ns(), <, end);
            g_usleep(1000);
        }
    }
    for (unsigned i = 0; i < NQP; i++) {
        vg_qp_free(qp[i]);
    }
    g_assert_false(vg_event_poll(p.s[0].g, &ev));
    vgt_pair_close(&p);
}

int main(int argc, char **argv)
{
    vgt_init(&argc, &argv, 120);
    vgt_daemon = vg_daemon_start(&(struct vg_daemon_opts){.n_vms = 3, .poll_us = -1});
    g_test_add_data_func("/cq/arm/shared", GUINT_TO_POINTER(VG_DB_SHARED), test_arm);
    g_test_add_data_func("/cq/arm/posted", GUINT_TO_POINTER(VG_DB_POSTED), test_arm);
    g_test_add_data_func("/cq/arm/reply", GUINT_TO_POINTER(VG_DB_REPLY), test_arm);
    g_test_add_data_func("/cq/arm/extended", GUINT_TO_POINTER(VG_DB_EXT), test_arm);
    g_test_add_data_func("/cq/arm/unread/shared", GUINT_TO_POINTER(VG_DB_SHARED),
                         test_arm_unread);
    g_test_add_data_func("/cq/arm/unread/reply", GUINT_TO_POINTER(VG_DB_REPLY),
                         test_arm_unread);
    g_test_add_data_func("/cq/arm/unread/extended", GUINT_TO_POINTER(VG_DB_EXT),
                         test_arm_unread);
    g_test_add_data_func("/cq/arm/no-loss/extended", GUINT_TO_POINTER(VG_DB_EXT),
                         test_arm_no_loss);
    g_test_add_data_func("/cq/arm/no-loss/shared", GUINT_TO_POINTER(VG_DB_SHARED),
                         test_arm_no_loss);
    g_test_add_data_func("/cq/arm/no-loss/posted", GUINT_TO_POINTER(VG_DB_POSTED),
                         test_arm_no_loss);
    g_test_add_data_func("/cq/arm/no-loss/reply", GUINT_TO_POINTER(VG_DB_REPLY),
                         test_arm_no_loss);
    g_test_add_func("/cq/overrun", test_cq_overrun);
    g_test_add_func("/cq/overrun/later-qp", test_qp_of_failed_cq);
    g_test_add_func("/cq/bad-index", test_cq_bad_index);
    g_test_add_func("/cq/notification-overrun", test_cqn_overrun);
    g_test_add_func("/cq/of-many", test_cq_of_many);
    return vgt_run();
}
