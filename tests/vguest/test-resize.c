/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: a CQ gets another ring (MOVE_CQ).  No completion is lost, doubled or out
 * of order, whatever the workers of both sides are writing meanwhile; no event is lost;
 * the old memory is left alone (vg_cq_resize() looks).
 */
#include "vgtest.h"

#include <sched.h>

#define DEPTH 64u
#define FAR   0x80000u

static void resize_open(struct vgt_pair *p, unsigned a, unsigned b, uint32_t cqe)
{
    struct vgt_opts o = {.cqe = cqe};

    for (unsigned i = 0; i < 2; i++) {
        o.guest[i].db = VG_DB_EXT;
    }
    vgt_pair_open(p, a, b, &o);
}

static void write_to(struct vgt_pair *p, uint64_t wr_id)
{
    vgt_send(&p->s[0], wr_id, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p->s[1], FAR);
}

/* ---- what was there and what comes ---- */

static void test_unread(void)
{
    static const uint32_t sizes[] = {64, 16, 256, 16, 32};
    struct vgt_pair p;
    struct pvrdma_cqe c;
    uint64_t posted = 0, polled = 0;

    resize_open(&p, 0, 1, 16);
    for (unsigned i = 0; i < G_N_ELEMENTS(sizes); i++) {
        /* Some at the end of the ring, some of them still to come. */
        for (unsigned k = 0; k < 12; k++) {
            write_to(&p, posted++);
        }
        if (i & 1) {
            write_to(&p, posted++);
            vgt_expect(p.s[0].scq, polled++, PVRDMA_WC_SUCCESS);
        }
        g_assert_cmpint(vg_cq_resize(p.s[0].scq, sizes[i]), ==, 0);
        g_assert_cmpuint(p.s[0].scq->n, ==, sizes[i]);
        write_to(&p, posted++);
        while (polled < posted) {
            vgt_expect(p.s[0].scq, polled++, PVRDMA_WC_SUCCESS);
        }
    }
    /* Twice at once: what is left of two rings. */
    write_to(&p, posted++);
    g_assert_cmpint(vg_cq_resize(p.s[0].scq, 32), ==, 0);
    write_to(&p, posted++);
    g_assert_cmpint(vg_cq_resize(p.s[0].scq, 16), ==, 0);
    write_to(&p, posted++);
    while (polled < posted) {
        vgt_expect(p.s[0].scq, polled++, PVRDMA_WC_SUCCESS);
    }
    g_assert_cmpint(vg_cq_poll(p.s[0].scq, &c, 1), ==, 0);
    vgt_pair_close(&p);
}

/* The new size holds: so many unread completions are no overrun, one more is. */
static void test_overrun(void)
{
    struct vgt_pair p;

    resize_open(&p, 0, 1, 128);
    g_assert_cmpint(vg_cq_resize(p.s[0].scq, 16), ==, 0);
    for (unsigned k = 0; k < 16; k++) {
        write_to(&p, k);
    }
    for (unsigned k = 0; k < 16; k++) {
        vgt_expect(p.s[0].scq, k, PVRDMA_WC_SUCCESS);
    }
    for (unsigned k = 0; k < 17; k++) {
        write_to(&p, k);
    }
    vgt_expect_event(p.s[0].g, PVRDMA_EVENT_CQ_ERR, p.s[0].scq->handle);
    g_assert_cmpint(vg_cq_resize(p.s[0].scq, 256), !=, 0); /* it stays broken */
    vgt_pair_close(&p);
}

/* ---- refusals ---- */

static void refused(struct vguest *g, struct pvrdma_ext_cmd_move_cq req)
{
    g_assert_cmpint(vg_move_cq(g, &req), !=, 0);
}

static void test_refused(void)
{
    struct vgt_opts o = {.guest = {{.db = VG_DB_EXT}}};
    struct vgt_side s;
    struct vg_buf *mem;
    struct vg_pd *kernel;
    struct vg_cq *stock;
    struct pvrdma_ext_cmd_move_cq ok, bad;

    vgt_side_open(&s, 0, &o, 0);
    mem = vg_buf_new(s.g, 0, 2 * PVRDMA_PAGE_SIZE, VG_SCATTERED);
    ok = (struct pvrdma_ext_cmd_move_cq){.pdir_dma =
                                             vg_pdir_new(s.g, mem->page, mem->npages),
                                         .cq_handle = s.scq->handle,
                                         .cqe = 64,
                                         .nchunks = 2};
#define BAD(field, value)  \
    do {                   \
        bad = ok;          \
        bad.field = value; \
        refused(s.g, bad); \
    } while (0)
    BAD(cq_handle, 0);
    BAD(cq_handle, s.rcq->handle + 1);
    BAD(cq_handle, UINT32_MAX);
    BAD(cqe, 0);
    BAD(cqe, 63);
    BAD(cqe, 128);
    BAD(cqe, 1u << 31);
    BAD(cqe, UINT32_MAX);
    BAD(nchunks, 1);
    BAD(nchunks, 3);
    BAD(nchunks, UINT32_MAX);
    BAD(pdir_dma, ~0ull << 12);
    BAD(pdir_dma, ok.pdir_dma + 8);
    BAD(reserved2, 1);
    /* One with a stock layout. */
    kernel = vg_pd_new_kernel(s.g);
    stock = vg_cq_new(kernel, 64);
    BAD(cq_handle, stock->handle);
    vg_cq_free(stock);
    vg_pd_free(kernel);
    /* None of these has changed it. */
    g_assert_cmpint(vg_cq_resize(s.scq, 64), ==, 0);
    vg_pdir_free(s.g, ok.pdir_dma, mem->npages);
    vg_buf_free(mem);
    vgt_side_close(&s);
}

/* Pages are accounted for: as many resizes as one likes. */
static void test_pages(void)
{
    struct vgt_opts o = {.guest = {{.db = VG_DB_EXT}}};
    struct vgt_side s;
    int64_t before;

    vgt_side_open(&s, 0, &o, 0);
    g_assert_cmpint(vg_cq_resize(s.scq, 64), ==, 0);
    before = vgt_counter("vm0", "objects", "pages");
    for (unsigned i = 0; i < 100; i++) {
        g_assert_cmpint(vg_cq_resize(s.scq, i & 1 ? 64 : 1024), ==, 0);
    }
    g_assert_cmpint(vgt_counter("vm0", "objects", "pages"), ==, before);
    vgt_side_close(&s);
}

/* ---- events ---- */

/* Armed before, completed after; both kinds of arm. */
static void test_armed(void)
{
    struct vgt_pair p;
    struct vg_cq *cq;
    uint32_t handle;

    resize_open(&p, 0, 1, 64);
    cq = p.s[1].rcq;
    for (unsigned i = 0; i < 4; i++) {
        bool solicited = i & 1;

        while (vg_cqn_poll(p.s[1].g, &handle)) {
        }
        vgt_recv(&p.s[1], 500, FAR, 64);
        vg_cq_arm(cq, solicited);
        g_assert_cmpint(vg_cq_resize(cq, i & 2 ? 16 : 256), ==, 0);
        g_assert_false(vg_cqn_wait(p.s[1].g, cq->handle, 20));
        vgt_send(&p.s[0], 1, PVRDMA_WR_SEND,
                 VGT_SIG | (solicited ? PVRDMA_SEND_SOLICITED : 0), 0, 64, NULL, 0);
        vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS);
        g_assert_true(vg_cqn_wait(p.s[1].g, cq->handle, VGT_WAIT_MS));
        vgt_expect(cq, 500, PVRDMA_WC_SUCCESS);
        g_assert_cmpuint(*cq->arm, ==, PVRDMA_EXT_ARM_NONE);
    }
    vgt_pair_close(&p);
}

/*
 * Armed while a completion is unread: a worker may have published it and not yet come to
 * the arm word, so the move tells of it.
 */
static void test_armed_unread(void)
{
    struct vgt_pair p;
    struct vg_cq *cq;

    resize_open(&p, 0, 1, 64);
    cq = p.s[0].scq;
    for (unsigned i = 0; i < 2; i++) {
        write_to(&p, 1);
        write_to(&p, 2);
        vgt_expect(cq, 1, PVRDMA_WC_SUCCESS);
        while (*cq->prod_tail == *cq->cons_head) {
            sched_yield();
        }
        g_usleep(20000);
        vg_cq_arm(cq, i);
        g_assert_cmpint(vg_cq_resize(cq, 32), ==, 0);
        /* It is no solicited one. */
        g_assert_true(vg_cqn_wait(p.s[0].g, cq->handle, i ? 20 : 2000) == !i);
        g_assert_cmpuint(*cq->arm, ==,
                         i ? PVRDMA_EXT_ARM_SOLICITED : PVRDMA_EXT_ARM_NONE);
        vgt_expect(cq, 2, PVRDMA_WC_SUCCESS);
    }
    vgt_pair_close(&p);
}

/*
 * Who sleeps until an event comes is woken, though the ring moves just when the
 * completion is written.
 */
static void test_armed_race(void)
{
    const unsigned n = vgt_rounds(2000);
    struct vgt_pair p;
    struct vg_cq *cq;
    struct pvrdma_cqe c;

    resize_open(&p, 0, 1, 64);
    cq = p.s[0].scq;
    for (unsigned i = 0; i < n; i++) {
        vg_cq_arm(cq, false);
        write_to(&p, i);
        for (unsigned spin = 0; spin < i % 50 * 20; spin++) {
            __asm__ volatile("" ::: "memory");
        }
        g_assert_cmpint(vg_cq_resize(cq, i & 1 ? 16 : 64), ==, 0);
        g_assert_true(vg_cqn_wait(p.s[0].g, cq->handle, VGT_WAIT_MS));
        while (vg_cq_poll(cq, &c, 1) == 0) {
            sched_yield();
        }
        g_assert_cmpuint(c.wr_id, ==, i);
    }
    vgt_pair_close(&p);
}

/* ---- the race ---- */

struct lane {
    uint64_t posted, sent, receives, got;
};

static void pump(struct vgt_side *s, struct vgt_side *to, struct lane *l,
                 struct lane *far)
{
    struct pvrdma_cqe c;

    while (l->receives - l->got < DEPTH) {
        vgt_recv(s, l->receives++, FAR, 64);
    }
    while (l->posted - l->sent < DEPTH && l->posted < far->receives) {
        vgt_send(s, l->posted++, PVRDMA_WR_SEND_WITH_IMM, VGT_SIG, 0, 16, NULL, 0);
    }
    while (vg_cq_poll(s->scq, &c, 1) == 1) {
        g_assert_cmpuint(c.status, ==, PVRDMA_WC_SUCCESS);
        g_assert_cmpuint(c.wr_id, ==, l->sent++);
    }
    while (vg_cq_poll(s->rcq, &c, 1) == 1) {
        g_assert_cmpuint(c.status, ==, PVRDMA_WC_SUCCESS);
        g_assert_cmpuint(c.wr_id, ==, l->got);
        g_assert_cmpuint(c.imm_data, ==, 0x01020304 + (uint32_t)l->got++);
    }
}

/* Two VMs send to each other while their four CQs change, one after the other. */
static void test_race(gconstpointer data)
{
    const unsigned n = vgt_rounds(3000);
    unsigned peer = GPOINTER_TO_UINT(data);
    struct lane l[2] = {{0}};
    struct vgt_pair p;
    unsigned resizes = 0;

    resize_open(&p, 0, peer, 2 * DEPTH);
    while (resizes < n) {
        for (unsigned i = 0; i < 2; i++) {
            struct vgt_side *s = &p.s[i];

            pump(s, &p.s[1 - i], &l[i], &l[1 - i]);
            g_assert_cmpint(
                vg_cq_resize(resizes & 2 ? s->scq : s->rcq, DEPTH << resizes % 3), ==, 0);
            resizes++;
        }
    }
    g_assert_cmpuint(l[0].got, >, n / 4);
    g_assert_cmpuint(l[1].got, >, n / 4);
    vgt_pair_close(&p);
}

int main(int argc, char **argv)
{
    vgt_start(&argc, &argv, 100, 2);
    g_test_add_func("/resize/unread", test_unread);
    g_test_add_func("/resize/overrun", test_overrun);
    g_test_add_func("/resize/refused", test_refused);
    g_test_add_func("/resize/pages", test_pages);
    g_test_add_func("/resize/armed", test_armed);
    g_test_add_func("/resize/armed-unread", test_armed_unread);
    g_test_add_func("/resize/armed-race", test_armed_race);
    g_test_add_data_func("/resize/race", GUINT_TO_POINTER(1), test_race);
    g_test_add_data_func("/resize/race-one-vm", GUINT_TO_POINTER(0), test_race);
    return vgt_run();
}
