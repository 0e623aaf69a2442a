/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: the time in CQs.  Time stamps are of the device's clock, within what the
 * guest sees of it before it posts and after it has polled, and never go backwards in a
 * CQ; only CQs that were made with them have any.
 */
#include "vgtest.h"

#define FAR 0x80000u

static void stamps_open(struct vgt_pair *p, unsigned b, uint32_t flags)
{
    struct vgt_opts o = {.guest = {{.db = VG_DB_EXT}, {.db = VG_DB_EXT}},
                         .cq_flags = flags};

    vgt_pair_open(p, 0, b, &o);
}

static uint64_t stamp_of(const struct pvrdma_cqe *c)
{
    uint64_t v = 0;

    for (unsigned i = 0; i < 6; i++) {
        v |= (uint64_t)c->reserved[i] << (8 * i);
    }
    g_assert_cmphex(v, ==, pvrdma_ext_stamp(c->reserved));
    return v;
}

/* ---- the clock ---- */

static void test_clock(void)
{
    struct vgt_opts o = {.guest = {{.db = VG_DB_EXT}}};
    int64_t attached = vg_now_ns(), before, between, after;
    struct vgt_side s;
    uint64_t a, b;

    vgt_side_open(&s, 0, &o, 0);
    g_assert_cmphex(vg_reg_read(s.g, PVRDMA_EXT_REG_FEATURES) & PVRDMA_EXT_FEAT_CQ_TIME,
                    !=, 0);
    before = vg_now_ns();
    a = vg_query_clock(s.g);
    between = vg_now_ns();
    g_usleep(50000);
    b = vg_query_clock(s.g);
    after = vg_now_ns();
    /* Nanoseconds, read within the call. */
    g_assert_cmpuint(b - a, >=, 50000000);
    g_assert_cmpuint(b - a, <=, after - before);
    g_assert_cmpuint(a, >, 0);
    /* This VM's: it tells nothing of the host's. */
    g_assert_cmpuint(a, <=, between - attached);
    vgt_side_close(&s);
}

/* ---- stamps ---- */

/* Within the two readings of side @s's clock; the CQ's last one is in *last. */
static void check(struct vgt_side *s, const struct pvrdma_cqe *c, uint64_t from,
                  uint64_t *last)
{
    uint64_t at = stamp_of(c), to = vg_query_clock(s->g);

    g_assert_cmpuint(at, >=, from);
    g_assert_cmpuint(at, <=, to);
    g_assert_cmpuint(at, >=, *last);
    *last = at;
}

/* SENDs one way: stamps of sender and receiver, each of its own VM's clock. */
static void test_stamps(gconstpointer data)
{
    uint64_t last[2] = {0}, from[2];
    struct vgt_pair p;

    stamps_open(&p, GPOINTER_TO_UINT(data), PVRDMA_EXT_CQ_STAMPS);
    for (unsigned i = 0; i < 50; i++) {
        struct pvrdma_cqe c;

        if (i == 25) {
            g_assert_cmpint(vg_cq_resize(p.s[0].scq, 16), ==, 0);
            g_assert_cmpint(vg_cq_resize(p.s[1].rcq, 512), ==, 0);
        }
        from[0] = vg_query_clock(p.s[0].g);
        from[1] = vg_query_clock(p.s[1].g);
        vgt_recv(&p.s[1], i, FAR, 64);
        vgt_send(&p.s[0], i, PVRDMA_WR_SEND, VGT_SIG, 0, 64, NULL, 0);
        c = vgt_expect(p.s[0].scq, i, PVRDMA_WC_SUCCESS);
        check(&p.s[0], &c, from[0], &last[0]);
        c = vgt_expect(p.s[1].rcq, i, PVRDMA_WC_SUCCESS);
        check(&p.s[1], &c, from[1], &last[1]);
    }
    vgt_pair_close(&p);
}

/* Of many at a time, and of flushed ones, each has its own; the clock moves meanwhile. */
static void test_many(void)
{
    uint64_t last = 0, first = 0;
    unsigned distinct = 0;
    struct vgt_pair p;

    stamps_open(&p, 1, PVRDMA_EXT_CQ_STAMPS);
    for (unsigned i = 0; i < 100; i++) {
        struct pvrdma_cqe c;

        for (unsigned k = 0; k < 32; k++) {
            vgt_send(&p.s[0], k, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 64, &p.s[1], FAR);
        }
        for (unsigned k = 0; k < 32; k++) {
            uint64_t at;

            c = vgt_expect(p.s[0].scq, k, PVRDMA_WC_SUCCESS);
            at = stamp_of(&c);
            g_assert_cmpuint(at, >=, last);
            distinct += at != last;
            first = first ? first : at;
            last = at;
        }
    }
    g_assert_cmpuint(last, >, first);
    g_assert_cmpuint(distinct, >, 3200 / 2);
    vgt_recv(&p.s[0], 7, 0, 64);
    g_assert_cmpint(vg_qp_to_state(p.s[0].qp, PVRDMA_QPS_ERR), ==, 0);
    {
        struct pvrdma_cqe c = vgt_expect(p.s[0].rcq, 7, PVRDMA_WC_WR_FLUSH_ERR);

        g_assert_cmpuint(stamp_of(&c), >, last);
    }
    vgt_pair_close(&p);
}

/* A CQ without: its bytes stay 0, for it and for who shares a QP with one that has. */
static void test_none(void)
{
    struct vgt_pair p;
    struct pvrdma_cqe c;

    stamps_open(&p, 1, 0);
    vgt_send(&p.s[0], 1, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 64, &p.s[1], FAR);
    c = vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS);
    g_assert_cmpuint(stamp_of(&c), ==, 0);
    vgt_pair_close(&p);
}

static void test_refused(void)
{
    struct vgt_opts o = {.guest = {{.db = VG_DB_EXT}}};
    struct pvrdma_cmd_create_cq req = {.cqe = 64, .nchunks = 2};
    struct pvrdma_resp_create_cq resp;
    struct vg_buf *mem;
    struct vgt_side s;

    vgt_side_open(&s, 0, &o, 0);
    mem = vg_buf_new(s.g, 0, 2 * PVRDMA_PAGE_SIZE, VG_SCATTERED);
    req.pdir_dma = vg_pdir_new(s.g, mem->page, mem->npages);
    req.ctx_handle = s.pd->ctx;
    /* Stamps are for extended CQs; what is not known is not there. */
    req.reserved = PVRDMA_EXT_CQ_STAMPS;
    g_assert_cmpint(vg_create_cq(s.g, &req, &resp), ==, EINVAL);
    for (unsigned bit = 2; bit < 16; bit++) {
        req.reserved = PVRDMA_EXT_OBJ_RING | PVRDMA_EXT_CQ_STAMPS | 1u << bit;
        g_assert_cmpint(vg_create_cq(s.g, &req, &resp), ==, EINVAL);
    }
    req.reserved = PVRDMA_EXT_OBJ_RING | PVRDMA_EXT_CQ_STAMPS;
    g_assert_cmpint(vg_create_cq(s.g, &req, &resp), ==, 0);
    g_assert_cmpint(vg_destroy(s.g, PVRDMA_CMD_DESTROY_CQ, resp.cq_handle), ==, 0);
    vg_pdir_free(s.g, req.pdir_dma, mem->npages);
    vg_buf_free(mem);
    vgt_side_close(&s);
}

int main(int argc, char **argv)
{
    struct vg_daemon_opts o = {.n_vms = 2, .poll_us = -1, .workers = 2};

    vgt_init(&argc, &argv, 100);
    vgt_daemon = vg_daemon_start(&o);
    g_test_add_func("/cqtime/clock", test_clock);
    g_test_add_data_func("/cqtime/stamps", GUINT_TO_POINTER(1), test_stamps);
    g_test_add_data_func("/cqtime/stamps-one-vm", GUINT_TO_POINTER(0), test_stamps);
    g_test_add_func("/cqtime/many", test_many);
    g_test_add_func("/cqtime/none", test_none);
    g_test_add_func("/cqtime/refused", test_refused);
    return vgt_run();
}
