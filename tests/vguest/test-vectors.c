/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Several completion vectors (ext.h, ADD_VECTOR): a CQ's notifications come by its own
 * vector's ring and interrupt, once for each time it is armed; what is wrong with one
 * vector (masked, ring full, index scribbled on) is nothing to the others.
 */
#include <errno.h>
#include <sys/eventfd.h>

#include "vgtest.h"

#define NVEC 4u

/* VM 0 with NVEC vectors, and for each a CQ and a QP that is connected to VM 1. */
struct fix {
    struct vgt_pair p;
    int fd[NVEC]; /* 0: the stock vector's */
    struct vg_buf *ring[NVEC];
    uint64_t pdir[NVEC];
    struct vg_cq *cq[NVEC];
    struct vg_qp *qp[NVEC], *peer[NVEC];
    uint64_t ops;
};

/* A CQ's creation on its own, for vectors that may not exist. */
static int try_cq(struct fix *f, uint32_t vector)
{
    struct pvrdma_cmd_create_cq req = {
        .ctx_handle = f->p.s[0].g->uctx,
        .cqe = 64,
        .nchunks = 2,
        .pdir_dma = f->pdir[1], /* any two pages */
        .reserved = vector << PVRDMA_EXT_CQ_VECTOR_SHIFT,
    };
    struct pvrdma_resp_create_cq resp;
    int err = vg_create_cq(f->p.s[0].g, &req, &resp);

    if (!err) {
        vg_destroy(f->p.s[0].g, PVRDMA_CMD_DESTROY_CQ, resp.cq_handle);
    }
    return err;
}

static void fix_open(struct fix *f, enum vg_db_mode db)
{
    struct vgt_opts o = {.guest = {{.db = db}, {.db = db}}};
    struct vguest *g;

    memset(f, 0, sizeof(*f));
    vgt_pair_open(&f->p, 0, 1, &o);
    g = f->p.s[0].g;
    g_assert_cmphex(vg_reg_read(g, PVRDMA_EXT_REG_FEATURES) & PVRDMA_EXT_FEAT_VECTORS, !=,
                    0);
    f->fd[0] = g->irq[PVRDMA_VEC_CQ];
    f->ring[0] = g->cqn_ring;
    for (unsigned i = 1; i < NVEC; i++) {
        f->fd[i] = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        f->ring[i] = vg_buf_new(g, 0, VG_RING_PAGES * PVRDMA_PAGE_SIZE, VG_SCATTERED);
        f->pdir[i] = vg_pdir_new(g, f->ring[i]->page, VG_RING_PAGES);
        g_assert_cmpint(vg_add_vector(g, i, f->pdir[i], VG_RING_PAGES), ==, 0);
    }
    g_assert_cmpint(
        vg_set_irqs(g, VG_IRQ_EVENTFDS, PVRDMA_NUM_VEC, NVEC - 1, f->fd + 1, NVEC - 1),
        ==, 0);
    for (unsigned i = 0; i < NVEC; i++) {
        f->cq[i] = vg_cq_new_vector(f->p.s[0].pd, 16, i);
        f->qp[i] = vg_qp_new(f->p.s[0].pd, f->cq[i], f->cq[i], NULL);
        f->peer[i] = vg_qp_new(f->p.s[1].pd, f->p.s[1].scq, f->p.s[1].rcq, NULL);
        vg_qp_connect(f->qp[i], f->peer[i], NULL);
    }
}

static void fix_close(struct fix *f)
{
    for (unsigned i = 0; i < NVEC; i++) {
        vg_qp_free(f->qp[i]);
        vg_qp_free(f->peer[i]);
        vg_cq_free(f->cq[i]);
    }
    /* The rings stay the device's until it is reset: their pages with them. */
    for (unsigned i = 1; i < NVEC; i++) {
        close(f->fd[i]);
    }
    vg_reset(f->p.s[0].g);
    f->p.s[0].g->up = false;
    for (unsigned i = 1; i < NVEC; i++) {
        vg_pdir_free(f->p.s[0].g, f->pdir[i], VG_RING_PAGES);
        vg_buf_free(f->ring[i]);
    }
    vgt_pair_close(&f->p);
    vg_daemon_check(vgt_daemon);
}

static void post(struct fix *f, unsigned i)
{
    g_assert_true(vgt_post_write(&f->p, f->qp[i], f->ops++));
}

/* Arm, one operation, its completion. */
static void one(struct fix *f, unsigned i)
{
    vg_cq_arm(f->cq[i], false);
    post(f, i);
    vgt_expect(f->cq[i], f->ops - 1, PVRDMA_WC_SUCCESS);
}

/* Interrupts of a vector, within @ms; 0: none. */
static uint64_t fired(struct fix *f, unsigned i, int ms)
{
    for (int64_t end = vg_now_ns() + ms * 1000000ll;; g_usleep(200)) {
        uint64_t n;

        if (read(f->fd[i], &n, sizeof(n)) == sizeof(n)) {
            return n;
        }
        if (vg_now_ns() >= end) {
            return 0;
        }
    }
}

/* The vector's next notification, which must name its CQ. */
static void told(struct fix *f, unsigned i)
{
    int64_t end = vg_now_ns() + VGT_WAIT_MS * 1000000ll;
    uint32_t handle;

    while (!vg_cqn_take(f->ring[i], &handle)) {
        g_assert_cmpint(vg_now_ns(), <, end);
        g_usleep(100);
    }
    g_assert_cmpuint(handle, ==, f->cq[i]->handle);
}

static void not_told(struct fix *f, unsigned i)
{
    uint32_t handle;

    g_assert_false(vg_cqn_take(f->ring[i], &handle));
}

/* One arm, one notification, by the CQ's own vector and no other. */
static void test_own(const void *data)
{
    struct fix f;

    fix_open(&f, GPOINTER_TO_UINT(data));
    for (unsigned i = 0; i < NVEC; i++) {
        one(&f, i);
        told(&f, i);
        g_assert_cmpuint(fired(&f, i, VGT_WAIT_MS), ==, 1);
        for (unsigned k = 0; k < NVEC; k++) {
            g_assert_cmpuint(fired(&f, k, 5), ==, 0);
            not_told(&f, k);
        }
    }
    fix_close(&f);
}

/* All at once, so that one flush has several vectors of one VM to raise. */
static void test_together(void)
{
    unsigned rounds = vgt_rounds(3000);
    struct fix f;

    fix_open(&f, VG_DB_EXT);
    for (unsigned r = 0; r < rounds; r++) {
        uint64_t first = f.ops;

        for (unsigned i = 0; i < NVEC; i++) {
            vg_cq_arm(f.cq[i], false);
        }
        for (unsigned i = 0; i < NVEC; i++) {
            post(&f, i);
        }
        for (unsigned i = 0; i < NVEC; i++) {
            /* As a driver sleeps: the interrupt, then the ring, then the CQ. */
            g_assert_cmpuint(fired(&f, i, VGT_WAIT_MS), ==, 1);
            told(&f, i);
            not_told(&f, i);
            vgt_expect(f.cq[i], first + i, PVRDMA_WC_SUCCESS);
        }
    }
    fix_close(&f);
}

/* A masked vector's interrupt waits, the others' come. */
static void test_masked(void)
{
    struct fix f;

    fix_open(&f, VG_DB_EXT);
    for (unsigned round = 0; round < 20; round++) {
        unsigned m = 1 + round % (NVEC - 1);

        g_assert_cmpint(vg_set_irqs(f.p.s[0].g,
                                    VFIO_USER_IRQ_DATA_NONE | VFIO_USER_IRQ_ACTION_MASK,
                                    PVRDMA_VEC_CQ + m, 1, NULL, 0),
                        ==, 0);
        for (unsigned i = 0; i < NVEC; i++) {
            one(&f, i);
            told(&f, i);
        }
        one(&f, m);
        told(&f, m);
        for (unsigned i = 0; i < NVEC; i++) {
            g_assert_cmpuint(fired(&f, i, i == m ? 5 : VGT_WAIT_MS), ==, i != m);
        }
        g_assert_cmpint(vg_set_irqs(f.p.s[0].g,
                                    VFIO_USER_IRQ_DATA_NONE | VFIO_USER_IRQ_ACTION_UNMASK,
                                    PVRDMA_VEC_CQ + m, 1, NULL, 0),
                        ==, 0);
        g_assert_cmpuint(fired(&f, m, VGT_WAIT_MS), ==, 1);
    }
    fix_close(&f);
}

enum { SLOTS = 1024 };

/* Nobody reads it.  Each is waited for: of two in a row the device may make one. */
static void fill_ring(struct fix *f, unsigned i)
{
    for (unsigned r = 0; r < SLOTS; r++) {
        one(f, i);
        g_assert_cmpuint(fired(f, i, VGT_WAIT_MS), ==, 1);
    }
}

/* A vector whose ring nobody reads: what does not fit comes later, others go on. */
static void test_full(void)
{
    struct fix f;
    uint32_t handle;

    fix_open(&f, VG_DB_EXT);
    fill_ring(&f, 2);
    for (unsigned r = 0; r < 50; r++) {
        one(&f, 2);
    }
    while (fired(&f, 2, 20)) { /* it is told that there is something, though full */
    }
    for (unsigned r = 0; r < 20; r++) {
        one(&f, 1);
        told(&f, 1);
        g_assert_cmpuint(fired(&f, 1, VGT_WAIT_MS), ==, 1);
    }
    g_assert_cmpuint(fired(&f, 2, 5), ==, 0); /* nothing new was put in */
    for (unsigned r = 0; r < SLOTS; r++) {
        g_assert_true(vg_cqn_take(f.ring[2], &handle));
        g_assert_cmpuint(handle, ==, f.cq[2]->handle);
    }
    /* The fifty that were too many are one. */
    g_assert_cmpuint(fired(&f, 2, VGT_WAIT_MS), ==, 1);
    told(&f, 2);
    g_assert_cmpuint(fired(&f, 2, 20), ==, 0);
    not_told(&f, 2);
    /* Full again and its CQ destroyed: nothing of it comes later. */
    fill_ring(&f, 2);
    one(&f, 2);
    vg_qp_free(f.qp[2]);
    vg_cq_free(f.cq[2]);
    while (vg_cqn_take(f.ring[2], &handle)) {
    }
    g_usleep(20000);
    not_told(&f, 2);
    f.cq[2] = vg_cq_new_vector(f.p.s[0].pd, 16, 2);
    f.qp[2] = vg_qp_new(f.p.s[0].pd, f.cq[2], f.cq[2], NULL);
    fix_close(&f);
}

/* Rings that are none, vectors that are none. */
static void test_refused(void)
{
    static const uint32_t beyond[] = {PVRDMA_EXT_MAX_VECTORS, 65535, UINT32_MAX};
    struct vguest *g;
    struct fix f;

    fix_open(&f, VG_DB_EXT);
    g = f.p.s[0].g;
    for (unsigned i = 0; i < G_N_ELEMENTS(beyond); i++) {
        g_assert_cmpint(vg_add_vector(g, beyond[i], f.pdir[1], VG_RING_PAGES), ==,
                        EINVAL);
        g_assert_cmpint(try_cq(&f, beyond[i]), ==, EINVAL);
    }
    for (unsigned i = 0; i < NVEC; i++) {
        g_assert_cmpint(vg_add_vector(g, i, f.pdir[1], VG_RING_PAGES), ==, EBUSY);
        g_assert_cmpint(try_cq(&f, i), ==, 0);
    }
    for (unsigned i = NVEC; i < PVRDMA_EXT_MAX_VECTORS; i++) {
        g_assert_cmpint(try_cq(&f, i), ==, EINVAL);
    }
    g_assert_cmpint(vg_add_vector(g, NVEC, f.pdir[1], 0), ==, EINVAL);
    g_assert_cmpint(vg_add_vector(g, NVEC, f.pdir[1], 1), ==, EINVAL);
    g_assert_cmpint(vg_add_vector(g, NVEC, f.pdir[1], 65), ==, EINVAL);
    g_assert_cmpint(vg_add_vector(g, NVEC, f.pdir[1], UINT32_MAX), ==, EINVAL);
    g_assert_cmpint(vg_add_vector(g, NVEC, f.pdir[1] + 8, VG_RING_PAGES), !=, 0);
    g_assert_cmpint(vg_add_vector(g, NVEC, 1ull << 40, VG_RING_PAGES), !=, 0);
    g_assert_cmpint(try_cq(&f, NVEC), ==, EINVAL);
    /* As many as there can be. */
    for (unsigned i = NVEC; i < PVRDMA_EXT_MAX_VECTORS; i++) {
        g_assert_cmpint(vg_add_vector(g, i, f.pdir[1], VG_RING_PAGES), ==, 0);
        g_assert_cmpint(try_cq(&f, i), ==, 0);
    }
    fix_close(&f);
}

static int64_t dropped(void)
{
    JsonNode *node = vg_daemon_counters(vgt_daemon);
    JsonObject *o = json_object_get_object_member(vg_status_vm(node, "vm0"), "device");
    int64_t n;

    o = json_object_get_object_member(o, "cq_notifications");
    n = json_object_get_int_member(o, "dropped");
    json_node_unref(node);
    return n;
}

/* A ring whose index the guest scribbled on is nothing to the others. */
static void test_spoilt(void)
{
    struct fix f;
    int64_t before;

    fix_open(&f, VG_DB_EXT);
    before = dropped();
    ((struct pvrdma_ring_state *)f.ring[1]->host)->rx.cons_head = 0x80000001u;
    for (unsigned i = 0; i < 10; i++) {
        one(&f, 1);
        one(&f, 3);
        told(&f, 3);
    }
    g_assert_cmpint(dropped(), ==, before + 10);
    ((struct pvrdma_ring_state *)f.ring[1]->host)->rx.cons_head = 0;
    one(&f, 1);
    told(&f, 1);
    fix_close(&f);
}

/* A reset takes the vectors; they can be given anew. */
static void test_reset(void)
{
    struct fix f;
    struct vguest *g;

    for (unsigned round = 0; round < 5; round++) {
        fix_open(&f, VG_DB_EXT);
        g = f.p.s[0].g;
        /* Some wait for room, which no worker may touch after the reset. */
        for (unsigned r = 0; r < 1100; r++) {
            one(&f, 3);
        }
        g_assert_cmpint(vg_reset(g), ==, 0);
        g->up = false;
        g_assert_cmpint(vg_bring_up(g), ==, 0);
        for (unsigned i = 1; i < NVEC; i++) {
            g_assert_cmpint(try_cq(&f, i), ==, EINVAL);
            memset(f.ring[i]->host, 0, f.ring[i]->len);
            g_assert_cmpint(vg_add_vector(g, i, f.pdir[i], VG_RING_PAGES), ==, 0);
            g_assert_cmpint(try_cq(&f, i), ==, 0);
        }
        g->up = false; /* its objects went with the reset */
        fix_close(&f);
    }
}

int main(int argc, char **argv)
{
    vgt_start(&argc, &argv, 100, 2);
    g_test_add_data_func("/vectors/own/ext", GUINT_TO_POINTER(VG_DB_EXT), test_own);
    g_test_add_data_func("/vectors/own/shared", GUINT_TO_POINTER(VG_DB_SHARED), test_own);
    g_test_add_data_func("/vectors/own/posted", GUINT_TO_POINTER(VG_DB_POSTED), test_own);
    g_test_add_func("/vectors/together", test_together);
    g_test_add_func("/vectors/masked", test_masked);
    g_test_add_func("/vectors/full", test_full);
    g_test_add_func("/vectors/refused", test_refused);
    g_test_add_func("/vectors/spoilt", test_spoilt);
    g_test_add_func("/vectors/reset", test_reset);
    return vgt_run();
}
