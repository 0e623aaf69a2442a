/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: datagrams that do not arrive.  What is dropped and counted, what fails
 * and how it goes on from there; and that nobody sends from an address that is not his.
 */
#include "ud.h"

#include <string.h>

#define VERBS_GIDS 64u /* entries of the GID table */

/* ---- what is dropped ---- */

static void test_qkey(gconstpointer data)
{
    struct pvrdma_qp_attr a = {.qkey = 0x22222222};
    struct pvrdma_port_attr port;
    struct vgt_pair p;
    uint32_t before;

    ud_open(&p, 0, 1, GPOINTER_TO_UINT(data));
    g_assert_cmpint(vg_query_port(p.s[1].g, 1, &port), ==, 0);
    before = port.qkey_viol_cntr;
    vgt_recv(&p.s[1], 7, FAR, 4096);
    UD_LOST(&p.s[0], &p.s[1], 1, "qkey_violations", .qkey = QKEY + 1);
    /* With the highest bit it is the sender's own, whatever else it says. */
    ud_send(&p.s[0], &p.s[1], (struct dg){.len = 8, .wr_id = 1, .qkey = 0x80000000u});
    vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS);
    vgt_expect(p.s[1].rcq, 7, PVRDMA_WC_SUCCESS);
    vg_qp_modify(p.s[0].qp, PVRDMA_QP_QKEY, &a);
    vgt_recv(&p.s[1], 8, FAR, 4096);
    UD_LOST(&p.s[0], &p.s[1], 1, "qkey_violations", .qkey = 0x80000000u | QKEY);
    g_assert_cmpint(vg_query_port(p.s[1].g, 1, &port), ==, 0);
    g_assert_cmpuint(port.qkey_viol_cntr - before, ==, 2);
    vgt_pair_close(&p);
}

static void test_no_receive(gconstpointer data)
{
    struct vgt_pair p;

    ud_open(&p, 0, 1, GPOINTER_TO_UINT(data));
    for (unsigned i = 0; i < 3; i++) {
        UD_LOST(&p.s[0], &p.s[1], 1, "no_receive");
        ud_passes(&p.s[0], &p.s[1], (struct dg){.len = 100, .wr_id = i});
    }
    vgt_pair_close(&p);
}

/* The receive is not used up; it serves the next that it has room for. */
static void test_small_buffer(gconstpointer data)
{
    struct vgt_pair p;

    ud_open(&p, 0, 1, GPOINTER_TO_UINT(data));
    vgt_recv(&p.s[1], 7, FAR, GRH + 16);
    UD_LOST(&p.s[0], &p.s[1], 1, "too_long", .len = 17);
    UD_LOST(&p.s[0], &p.s[1], 1, "too_long", .len = 4096);
    g_assert_cmpuint(vg_qp_state(p.s[1].qp), ==, PVRDMA_QPS_RTS);
    vgt_fill(VG_MR_HOST(p.s[0].mr, 0), 16, 5);
    ud_send(&p.s[0], &p.s[1], (struct dg){.len = 16, .wr_id = 1});
    vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS);
    g_assert_cmpuint(vgt_expect(p.s[1].rcq, 7, PVRDMA_WC_SUCCESS).byte_len, ==, GRH + 16);
    vgt_check(VG_MR_HOST(p.s[1].mr, FAR + GRH), 16, 5);
    /* Not even room for the header. */
    vgt_recv(&p.s[1], 8, FAR, GRH - 1);
    UD_LOST(&p.s[0], &p.s[1], 1, "too_long");
    vg_qp_to_state(p.s[1].qp, PVRDMA_QPS_ERR);
    vgt_expect(p.s[1].rcq, 8, PVRDMA_WC_WR_FLUSH_ERR);
    vgt_pair_close(&p);
}

/* A list that is longer than its queue allows breaks the queue pair, loudly. */
static void test_bad_list(gconstpointer data)
{
    struct vgt_pair p;
    struct pvrdma_rq_wqe_hdr *h;

    ud_open(&p, 0, 1, GPOINTER_TO_UINT(data));
    vgt_recv(&p.s[1], 7, FAR, 4096);
    h = vg_wqe(p.s[1].qp, &p.s[1].qp->rq, 0);
    h->num_sge = 17;
    ud_send(&p.s[0], &p.s[1], (struct dg){.len = 8, .wr_id = 1});
    vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS);
    vgt_expect(p.s[1].rcq, 7, PVRDMA_WC_LOC_QP_OP_ERR);
    vgt_expect_event(p.s[1].g, PVRDMA_EVENT_QP_FATAL, p.s[1].qp->handle);
    g_assert_cmpint(ud_dropped(1, "bad_receive"), ==, 1);
    vgt_pair_close(&p);
}

/* The receiver's own mistake is its own affair. */
static void test_bad_receive(gconstpointer data)
{
    struct vgt_pair p;
    struct pvrdma_sge sge[2];
    struct vg_wr wr = {.wr_id = 7, .nsge = 2, .sge = sge};

    ud_open(&p, 0, 1, GPOINTER_TO_UINT(data));
    /* Room for the header, which nothing of is stored either. */
    memset(VG_MR_HOST(p.s[1].mr, FAR), 0xee, GRH);
    sge[0] = vg_sge(p.s[1].mr, FAR, GRH);
    sge[1] = vg_sge(p.s[1].mr, FAR + GRH, 4096);
    sge[1].lkey += 0x100;
    g_assert_cmpuint(vg_post_recv(p.s[1].qp, &wr, 1), ==, 1);
    vgt_recv(&p.s[1], 8, FAR, 4096);
    ud_send(&p.s[0], &p.s[1], (struct dg){.len = 8, .wr_id = 1});
    vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS);
    vgt_expect(p.s[1].rcq, 7, PVRDMA_WC_LOC_PROT_ERR);
    vgt_expect(p.s[1].rcq, 8, PVRDMA_WC_WR_FLUSH_ERR);
    g_assert_cmpuint(vg_qp_state(p.s[1].qp), ==, PVRDMA_QPS_ERR);
    g_assert_cmpint(ud_dropped(1, "bad_receive"), ==, 1);
    for (unsigned i = 0; i < GRH; i++) {
        g_assert_cmphex(*VG_MR_HOST(p.s[1].mr, FAR + i), ==, 0xee);
    }
    UD_LOST(&p.s[0], &p.s[1], 1, "qp_not_ready");
    vgt_pair_close(&p);
}

/* What the datagram does not come to is not looked at; with one byte more it is. */
static void test_unused(gconstpointer data)
{
    struct vgt_pair p;
    struct pvrdma_sge sge[2];
    struct vg_wr wr = {.wr_id = 7, .nsge = 2, .sge = sge};

    ud_open(&p, 0, 1, GPOINTER_TO_UINT(data));
    sge[0] = vg_sge(p.s[1].mr, FAR, GRH + 8);
    sge[1] = (struct pvrdma_sge){.length = 4096};
    g_assert_cmpuint(vg_post_recv(p.s[1].qp, &wr, 1), ==, 1);
    g_assert_cmpuint(vg_post_recv(p.s[1].qp, &wr, 1), ==, 1);
    ud_send(&p.s[0], &p.s[1], (struct dg){.len = 8, .wr_id = 1});
    vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS);
    vgt_expect(p.s[1].rcq, 7, PVRDMA_WC_SUCCESS);
    ud_send(&p.s[0], &p.s[1], (struct dg){.len = 9, .wr_id = 2});
    vgt_expect(p.s[0].scq, 2, PVRDMA_WC_SUCCESS);
    vgt_expect(p.s[1].rcq, 7, PVRDMA_WC_LOC_PROT_ERR);
    vgt_pair_close(&p);
}

static void test_no_qp(gconstpointer data)
{
    struct vgt_pair p;
    struct vg_qp_opts rc = {0};
    struct vg_qp *qp;
    uint32_t qpn;

    ud_open(&p, 0, 1, GPOINTER_TO_UINT(data));
    vgt_recv(&p.s[1], 7, FAR, 4096);
    UD_LOST(&p.s[0], &p.s[1], 1, "no_qp", .qpn = 0xffffff);
    UD_LOST(&p.s[0], &p.s[1], 1, "no_qp", .qpn = 1);
    UD_LOST(&p.s[0], &p.s[1], 1, "no_qp", .qpn = p.s[1].qp->qpn ^ 0x10000);
    /* One for connections. */
    qp = vg_qp_new(p.s[1].pd, p.s[1].scq, p.s[1].rcq, &rc);
    vg_qp_connect(qp, qp, NULL);
    UD_LOST(&p.s[0], &p.s[1], 1, "no_qp", .qpn = qp->qpn);
    qpn = qp->qpn;
    vg_qp_free(qp);
    UD_LOST(&p.s[0], &p.s[1], 1, "no_qp", .qpn = qpn);
    /* And one that does not receive yet, or any more. */
    qp = vg_qp_new(p.s[1].pd, p.s[1].scq, p.s[1].rcq, &p.s[1].qp->opts);
    UD_LOST(&p.s[0], &p.s[1], 1, "qp_not_ready", .qpn = qp->qpn);
    vg_ud_to_rts(qp, QKEY);
    UD_LOST(&p.s[0], &p.s[1], 1, "no_receive", .qpn = qp->qpn);
    vg_qp_to_state(qp, PVRDMA_QPS_ERR);
    UD_LOST(&p.s[0], &p.s[1], 1, "qp_not_ready", .qpn = qp->qpn);
    vg_qp_to_reset(qp);
    UD_LOST(&p.s[0], &p.s[1], 1, "qp_not_ready", .qpn = qp->qpn);
    vg_qp_free(qp);
    /* That of the others is there still; a number has 24 bits. */
    qpn = p.s[1].qp->qpn | 0xab000000u;
    ud_send(&p.s[0], &p.s[1], (struct dg){.len = 8, .wr_id = 1, .qpn = qpn});
    vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS);
    vgt_expect(p.s[1].rcq, 7, PVRDMA_WC_SUCCESS);
    vgt_pair_close(&p);
}

/* ---- a source that has gone ---- */

#define GONE_GPA 0x300000000ull
#define GONE_VA  0x7f6600000000ull

/* An MR of two pages that are mapped by themselves; its key. */
static uint32_t map_apart(struct vgt_side *s)
{
    const uint64_t page[2] = {GONE_GPA, GONE_GPA + PVRDMA_PAGE_SIZE};
    struct pvrdma_cmd_create_mr req = {.start = GONE_VA,
                                       .length = 2 * PVRDMA_PAGE_SIZE,
                                       .pd_handle = s->pd->handle,
                                       .access_flags = PVRDMA_ACCESS_LOCAL_WRITE,
                                       .nchunks = 2};
    struct pvrdma_resp_create_mr resp;

    for (unsigned i = 0; i < 2; i++) {
        g_assert_cmpint(vg_dma_map(s->g, s->g->memfd, i * PVRDMA_PAGE_SIZE, page[i],
                                   PVRDMA_PAGE_SIZE, VG_DMA_RW),
                        ==, 0);
    }
    req.pdir_dma = vg_pdir_new(s->g, page, 2);
    g_assert_cmpint(vg_create_mr(s->g, &req, &resp), ==, 0);
    return resp.lkey;
}

/*
 * Its pages are taken out of the VM's memory, all or only the second: an error to the
 * sender, and the receive that it might have had serves the next datagram.
 */
static void test_source_gone(gconstpointer data)
{
    for (unsigned i = 0; i < 4; i++) {
        struct vgt_pair p;
        struct vgt_side *s = &p.s[0];
        struct vg_qp_opts o = {.type = PVRDMA_QPT_UD};
        struct pvrdma_sge sge = {.addr = GONE_VA + 4000, .length = 200};
        struct pvrdma_av av;
        struct vg_wr wr = {
            .wr_id = 3, .opcode = PVRDMA_WR_SEND, .flags = VGT_SIG, .nsge = 1};
        struct vg_qp *to, *next;

        ud_open(&p, 0, 1, GPOINTER_TO_UINT(data));
        o.srq = i & 1 ? vg_srq_new(p.s[1].pd, 16, 2, false) : NULL;
        to = vg_qp_new(p.s[1].pd, p.s[1].scq, p.s[1].rcq, &o);
        vg_ud_to_rts(to, QKEY);
        next = to;
        if (o.srq) { /* then it is anybody's */
            next = vg_qp_new(p.s[1].pd, p.s[1].scq, p.s[1].rcq, &o);
            vg_ud_to_rts(next, QKEY);
        }
        sge.lkey = map_apart(s);
        for (unsigned k = i & 2 ? 0 : 1; k < 2; k++) {
            g_assert_cmpint(
                vg_dma_unmap(s->g, GONE_GPA + k * PVRDMA_PAGE_SIZE, PVRDMA_PAGE_SIZE), ==,
                0);
        }
        if (o.srq) {
            ud_srq_post(o.srq, p.s[1].mr, 20, GRH + 200);
        } else {
            struct pvrdma_sge room = vg_sge(p.s[1].mr, FAR, GRH + 200);
            struct vg_wr recv = {.wr_id = 20, .nsge = 1, .sge = &room};

            g_assert_cmpuint(vg_post_recv(to, &recv, 1), ==, 1);
        }
        av = vg_av(s->pd, 0, &p.s[1].g->gid);
        wr.sge = &sge;
        wr.av = &av;
        wr.remote_qpn = to->qpn;
        wr.remote_qkey = QKEY;
        g_assert_cmpuint(vg_post_send(s->qp, &wr, 1), ==, 1);
        vgt_expect(s->scq, 3, PVRDMA_WC_LOC_PROT_ERR);
        ud_recover(s->qp);
        vgt_expect_none(p.s[1].rcq, 5);
        UD_LOST(s, &p.s[1], 1, "too_long", .qpn = to->qpn, .len = 201);
        ud_srq_passes(s, &p.s[1], next, 200, 20);
        vg_qp_free(to);
        if (o.srq) {
            vg_qp_free(next);
            vg_srq_free(o.srq);
        }
        if (!(i & 2)) {
            g_assert_cmpint(vg_dma_unmap(s->g, GONE_GPA, PVRDMA_PAGE_SIZE), ==, 0);
        }
        vg_reg_write(s->g, PVRDMA_REG_CTL, PVRDMA_CTL_RESET); /* the MR, too */
        s->g->up = false;
        vgt_pair_close(&p);
    }
}

/* ---- what fails ---- */

/* The QP stops with @status, flushes what is behind, and goes on when told to. */
static void fails(struct vgt_side *from, struct vgt_side *to, struct dg d,
                  enum pvrdma_wc_status status)
{
    d.wr_id = 30;
    ud_send(from, to, d);
    ud_send(from, to, (struct dg){.len = 8, .wr_id = 31});
    vgt_expect(from->scq, 30, status);
    vgt_expect(from->scq, 31, PVRDMA_WC_WR_FLUSH_ERR);
    vgt_expect_none(to->rcq, 0);
    ud_recover(from->qp);
    ud_passes(from, to, (struct dg){.len = 60, .wr_id = 32});
}

static void test_address_handle(gconstpointer data)
{
    const enum pvrdma_wc_status bad = PVRDMA_WC_LOC_QP_OP_ERR;
    struct pvrdma_gid gid;
    struct pvrdma_av av;
    struct vg_pd *other;
    struct vgt_pair p;

    ud_open(&p, 0, 1, GPOINTER_TO_UINT(data));
    gid = p.s[1].g->gid;
    other = vg_pd_new(p.s[0].g);
    av = vg_av(other, 0, &gid);
    fails(&p.s[0], &p.s[1], (struct dg){.len = 8, .av = &av}, bad);
    for (unsigned port = 0; port < 4; port++) {
        av = vg_av(p.s[0].pd, 0, &gid);
        av.port_pd = p.s[0].pd->handle | port << 24;
        if (port != 1) {
            fails(&p.s[0], &p.s[1], (struct dg){.len = 8, .av = &av}, bad);
        }
    }
    /* From a GID that this VM does not hold; one that it held. */
    av = vg_av(p.s[0].pd, 1, &gid);
    fails(&p.s[0], &p.s[1], (struct dg){.len = 8, .av = &av}, bad);
    g_assert_cmpint(vg_bind_gid(p.s[0].g, 1, &ud_link_local[0]), ==, 0);
    ud_passes(&p.s[0], &p.s[1], (struct dg){.len = 8, .av = &av});
    g_assert_cmpint(vg_unbind_gid(p.s[0].g, 1, &ud_link_local[0]), ==, 0);
    fails(&p.s[0], &p.s[1], (struct dg){.len = 8, .av = &av}, bad);
    for (unsigned index = VERBS_GIDS; index < 256; index++) {
        av.gid_index = (uint8_t)index;
        fails(&p.s[0], &p.s[1], (struct dg){.len = 8, .av = &av}, bad);
    }
    vg_pd_free(other);
    vgt_pair_close(&p);
}

static void test_bad_request(gconstpointer data)
{
    struct vgt_pair p;

    ud_open(&p, 0, 1, GPOINTER_TO_UINT(data));
    fails(&p.s[0], &p.s[1], (struct dg){.len = 4097}, PVRDMA_WC_LOC_LEN_ERR);
    fails(&p.s[0], &p.s[1], (struct dg){.len = 1 << 20}, PVRDMA_WC_LOC_LEN_ERR);
    for (uint32_t op = 1; op < 40; op++) {
        if (op != PVRDMA_WR_SEND && op != PVRDMA_WR_SEND_WITH_IMM) {
            fails(&p.s[0], &p.s[1], (struct dg){.len = 8, .opcode = op},
                  PVRDMA_WC_LOC_QP_OP_ERR);
        }
    }
    fails(&p.s[0], &p.s[1], (struct dg){.len = 8, .flags = PVRDMA_SEND_INLINE},
          PVRDMA_WC_LOC_QP_OP_ERR);
    vgt_pair_close(&p);
}

/* Whatever stands in the union, it is an error of the sender's or a lost datagram. */
static void test_garbage(gconstpointer data)
{
    GRand *r = g_rand_new_with_seed(17);
    struct vgt_pair p;

    ud_open(&p, 0, 1, GPOINTER_TO_UINT(data));
    for (unsigned i = 0; i < vgt_rounds(2000); i++) {
        struct pvrdma_av av = vg_av(p.s[0].pd, 0, &p.s[1].g->gid);
        struct pvrdma_cqe c;
        struct dg d = {.len = 8, .wr_id = 1, .av = &av};

        for (unsigned k = g_rand_int(r) % 3 ? 1 : sizeof(av); k > 0; k--) {
            ((uint8_t *)&av)[g_rand_int(r) % sizeof(av)] = (uint8_t)g_rand_int(r);
        }
        d.qpn = g_rand_int(r) & 1 ? g_rand_int(r) : 0;
        d.qkey = g_rand_int(r) & 1 ? g_rand_int(r) : 0;
        ud_send(&p.s[0], &p.s[1], d);
        g_assert_true(vg_cq_wait(p.s[0].scq, &c, VGT_WAIT_MS));
        if (c.status != PVRDMA_WC_SUCCESS) {
            g_assert_cmpuint(c.status, ==, PVRDMA_WC_LOC_QP_OP_ERR);
            ud_recover(p.s[0].qp);
        }
    }
    ud_passes(&p.s[0], &p.s[1], (struct dg){.len = 60, .wr_id = 2});
    vgt_pair_close(&p);
    g_rand_free(r);
}

int main(int argc, char **argv)
{
    static const struct vgt_both both[] = {
        {"qkey", test_qkey},
        {"no-receive", test_no_receive},
        {"small-buffer", test_small_buffer},
        {"bad-receive", test_bad_receive},
        {"bad-list", test_bad_list},
        {"unused", test_unused},
        {"source-gone", test_source_gone},
        {"no-qp", test_no_qp},
        {"address-handle", test_address_handle},
        {"bad-request", test_bad_request},
        {"garbage", test_garbage},
    };

    vgt_init(&argc, &argv, 110);
    ud_daemon_start();
    vgt_add_both("ud", both, G_N_ELEMENTS(both));
    return vgt_run();
}
