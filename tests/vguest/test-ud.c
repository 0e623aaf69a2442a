/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: datagrams.  UD queue pairs and the GSI QP: what arrives, with which
 * headers and completions, and who may come and go meanwhile.
 */
#include "ud.h"

#include <string.h>

/* ---- what arrives ---- */

static void test_exchange(gconstpointer data)
{
    struct vgt_pair p;
    int64_t sent, got;

    ud_open(&p, 0, 1, GPOINTER_TO_UINT(data));
    for (unsigned i = 0; i < 2; i++) {
        g_assert_cmpint(vg_bind_gid(p.s[i].g, 1, &ud_link_local[i]), ==, 0);
    }
    sent = ud_dropped(0, "sent");
    got = ud_dropped(1, "received");
    ud_exchange(&p.s[0], &p.s[1], &ud_link_local[0], &ud_link_local[1]);
    g_assert_cmpint(ud_dropped(0, "sent") - sent, ==, 20);
    g_assert_cmpint(ud_dropped(1, "received") - got, ==, 20);
    ud_exchange(&p.s[1], &p.s[0], &ud_link_local[1], &ud_link_local[0]);
    vgt_pair_close(&p);
}

/* To another QP of the own VM, and to itself. */
static void test_loopback(gconstpointer data)
{
    struct vgt_pair p;

    ud_open(&p, 0, 0, GPOINTER_TO_UINT(data));
    g_assert_cmpint(vg_bind_gid(p.s[0].g, 1, &ud_link_local[0]), ==, 0);
    ud_exchange(&p.s[0], &p.s[1], &ud_link_local[0], &ud_link_local[0]);
    ud_exchange(&p.s[0], &p.s[0], &ud_link_local[0], &ud_link_local[0]);
    vgt_pair_close(&p);
}

/* The header is in several pieces, and so are the bytes. */
static void test_pieces(gconstpointer data)
{
    static const uint32_t piece[] = {1, 7, 31, 1, 0, 5, 100};
    struct vgt_pair p;
    struct vgt_opts o;
    struct pvrdma_sge sge[G_N_ELEMENTS(piece)];
    struct vg_wr wr = {.wr_id = 7, .nsge = G_N_ELEMENTS(piece), .sge = sge};
    uint8_t got[GRH + 64];
    uint32_t off = 0, n = 0;

    ud_options(&o, (enum vgt_style)GPOINTER_TO_UINT(data));
    o.qp.recv_sge = G_N_ELEMENTS(piece);
    vgt_pair_open(&p, 0, 1, &o);
    for (unsigned i = 0; i < 2; i++) {
        vg_ud_to_rts(p.s[i].qp, QKEY);
    }
    for (unsigned i = 0; i < G_N_ELEMENTS(piece); i++) {
        sge[i] = vg_sge(p.s[1].mr, FAR + off, piece[i]);
        off += 4096 + piece[i]; /* apart from each other */
    }
    g_assert_cmpuint(vg_post_recv(p.s[1].qp, &wr, 1), ==, 1);
    vgt_fill(VG_MR_HOST(p.s[0].mr, 0), 64, 3);
    ud_send(&p.s[0], &p.s[1], (struct dg){.len = 64, .wr_id = 1});
    vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS);
    g_assert_cmpuint(vgt_expect(p.s[1].rcq, 7, PVRDMA_WC_SUCCESS).byte_len, ==, GRH + 64);
    for (unsigned i = 0, at = 0; i < G_N_ELEMENTS(piece); i++) {
        uint32_t here = MIN(piece[i], (uint32_t)sizeof(got) - n);

        memcpy(got + n, VG_MR_HOST(p.s[1].mr, FAR + at), here);
        n += here;
        at += 4096 + piece[i];
    }
    g_assert_cmpuint(n, ==, sizeof(got));
    g_assert_cmphex(got[20], ==, 0x45);
    g_assert_true(ud_checksum_ok(got + 20));
    vgt_check(got + GRH, 64, 3);
    vgt_pair_close(&p);
}

/* Two that share their receives.  One that was too small stays with who took it. */
static void test_srq(gconstpointer data)
{
    struct vgt_pair p;
    struct vg_qp_opts o = {.type = PVRDMA_QPT_UD};
    struct vg_qp *qp[2];

    ud_open(&p, 0, 1, GPOINTER_TO_UINT(data));
    o.srq = vg_srq_new(p.s[1].pd, 16, 2, false);
    for (unsigned i = 0; i < 2; i++) {
        qp[i] = vg_qp_new(p.s[1].pd, p.s[1].scq, p.s[1].rcq, &o);
        vg_ud_to_rts(qp[i], QKEY);
    }
    UD_LOST(&p.s[0], &p.s[1], 1, "no_receive", .qpn = qp[0]->qpn);
    ud_srq_post(o.srq, p.s[1].mr, 20, GRH + 16);
    ud_srq_post(o.srq, p.s[1].mr, 21, GRH + 17);
    /* Nobody takes a receive that is not used from the other QPs. */
    UD_LOST(&p.s[0], &p.s[1], 1, "too_long", .qpn = qp[0]->qpn, .len = 17);
    UD_LOST(&p.s[0], &p.s[1], 1, "too_long", .qpn = qp[1]->qpn, .len = 17);
    ud_srq_passes(&p.s[0], &p.s[1], qp[1], 16, 20);
    ud_srq_passes(&p.s[0], &p.s[1], qp[0], 17, 21);
    UD_LOST(&p.s[0], &p.s[1], 1, "no_receive", .qpn = qp[1]->qpn);
    ud_srq_post(o.srq, p.s[1].mr, 23, GRH + 16);
    UD_LOST(&p.s[0], &p.s[1], 1, "too_long", .qpn = qp[0]->qpn, .len = 17);
    vg_qp_to_state(qp[0], PVRDMA_QPS_ERR);
    vgt_expect_event(p.s[1].g, PVRDMA_EVENT_QP_LAST_WQE_REACHED, qp[0]->handle);
    ud_srq_passes(&p.s[0], &p.s[1], qp[1], 8, 23);
    vg_qp_free(qp[0]);
    vg_qp_free(qp[1]);
    vg_srq_free(o.srq);
    vgt_pair_close(&p);
}

static void test_inline(void)
{
    const char text[] = "forty-two bytes of no particular meaning.";
    struct vgt_opts o;
    struct vgt_pair p;
    struct pvrdma_av av;
    struct vg_wr wr = {.wr_id = 1,
                       .opcode = PVRDMA_WR_SEND,
                       .flags = VGT_SIG | PVRDMA_SEND_INLINE,
                       .inline_data = text,
                       .inline_len = sizeof(text),
                       .av = &av,
                       .remote_qkey = QKEY};

    ud_options(&o, VGT_EXTENDED);
    o.qp.max_inline = 64;
    vgt_pair_open(&p, 0, 1, &o);
    for (unsigned i = 0; i < 2; i++) {
        vg_ud_to_rts(p.s[i].qp, QKEY);
    }
    av = vg_av(p.s[0].pd, 0, &p.s[1].g->gid);
    wr.remote_qpn = p.s[1].qp->qpn;
    vgt_recv(&p.s[1], 2, FAR, 4096);
    g_assert_cmpuint(vg_post_send(p.s[0].qp, &wr, 1), ==, 1);
    vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS);
    g_assert_cmpuint(vgt_expect(p.s[1].rcq, 2, PVRDMA_WC_SUCCESS).byte_len, ==,
                     GRH + sizeof(text));
    g_assert_cmpmem(VG_MR_HOST(p.s[1].mr, FAR + GRH), sizeof(text), text, sizeof(text));
    /* From a GID that the VM does not hold. */
    av.gid_index = 3;
    g_assert_cmpuint(vg_post_send(p.s[0].qp, &wr, 1), ==, 1);
    vgt_expect(p.s[0].scq, 1, PVRDMA_WC_LOC_QP_OP_ERR);
    vgt_pair_close(&p);
}

/* ---- QP number 1 ---- */

static void test_gsi(void)
{
    struct vgt_side s[2];
    struct pvrdma_cqe c;
    struct dg d = UD_MAD;
    int64_t no_qp;

    ud_gsi_open(&s[0], 0);
    ud_gsi_open(&s[1], 1);
    g_assert_cmpuint(s[1].qp->qpn, !=, 1);
    for (unsigned i = 0; i < 4; i++) {
        d.wr_id = i;
        c = ud_passes(&s[i & 1], &s[1 - (i & 1)], d);
        g_assert_cmpuint(c.src_qp, ==, 1);
        g_assert_true(c.wc_flags & PVRDMA_WC_FLAG_GRH);
        g_assert_cmpuint(c.network_hdr_type, ==, PVRDMA_NETWORK_IPV4);
        g_assert_cmpuint(c.sl, ==, 0);
    }
    /* On the wire it has that number alone. */
    no_qp = ud_dropped(1, "no_qp");
    d.qpn = s[1].qp->qpn;
    vgt_recv(&s[1], 500, FAR, GRH + 256);
    ud_send(&s[0], &s[1], d);
    vgt_expect(s[0].scq, 3, PVRDMA_WC_SUCCESS);
    vgt_expect_none(s[1].rcq, 20);
    g_assert_cmpint(ud_dropped(1, "no_qp") - no_qp, ==, 1);
    vgt_side_close(&s[0]);
    vgt_side_close(&s[1]);
}

/*
 * A MAD to an address that nobody holds fails, or whose holder has no GSI QP; the QP goes
 * on when it is told to.
 */
static void test_gsi_to_nobody(void)
{
    struct vguest *bare = NULL;
    struct vgt_side s[2];
    struct pvrdma_gid nobody = vg_gid(77), other = vg_gid(2);
    struct dg d = UD_MAD, lost = UD_MAD;

    ud_gsi_open(&s[0], 0);
    ud_gsi_open(&s[1], 1);
    for (unsigned i = 0; i < 4; i++) {
        lost.to = i ? &other : &nobody; /* VM 2 is not there */
        if (i == 3) {
            bare = vguest_new(vgt_daemon, 2, NULL);
        }
        lost.wr_id = 10;
        ud_send(&s[0], &s[1], lost);
        lost.wr_id = 11;
        ud_send(&s[0], &s[1], lost);
        vgt_expect(s[0].scq, 10, PVRDMA_WC_RETRY_EXC_ERR);
        vgt_expect(s[0].scq, 11, PVRDMA_WC_WR_FLUSH_ERR);
        /* What comes arrives in SQE, too. */
        d.wr_id = 20;
        ud_passes(&s[1], &s[0], d);
        ud_recover(s[0].qp);
        d.wr_id = 21;
        ud_passes(&s[0], &s[1], d);
    }
    g_assert_cmpint(ud_dropped(0, "to_nobody"), ==, 4); /* since the VM is there */
    g_assert_cmpint(ud_dropped(2, "no_qp"), ==, 0);
    vguest_free(bare);
    vgt_side_close(&s[0]);
    vgt_side_close(&s[1]);
}

/* ---- receivers that come and go ---- */

/* To whom is not there yet, stands still, or has gone. */
static void test_comes_and_goes(void)
{
    struct vgt_opts o;
    struct vgt_side s[2], stranger;
    struct pvrdma_gid mine = vg_gid(2);

    ud_options(&o, VGT_STOCK);
    vgt_side_open(&s[0], 0, &o, 0);
    vg_ud_to_rts(s[0].qp, QKEY);
    /* In a network of its own the address is another one. */
    vgt_side_open(&stranger, 3, &o, 1);
    vg_ud_to_rts(stranger.qp, QKEY);
    g_assert_cmpint(vg_bind_gid(stranger.g, 1, &mine), ==, 0);
    vgt_recv(&stranger, 7, FAR, 4096);
    for (unsigned i = 0; i < 3; i++) {
        UD_LOST(&s[0], &stranger, 0, "to_nobody", .to = &mine);
        vgt_side_open(&s[1], 2, &o, 1);
        vg_ud_to_rts(s[1].qp, QKEY);
        ud_passes(&s[0], &s[1], (struct dg){.len = 100, .wr_id = 1});

        vgt_vm(vgt_daemon, "pause", 2);
        vgt_recv(&s[1], 8, FAR, 4096);
        UD_LOST(&s[0], &s[1], 0, "to_paused");
        vgt_vm(vgt_daemon, "resume", 2);
        ud_send(&s[0], &s[1], (struct dg){.len = 8, .wr_id = 2});
        vgt_expect(s[0].scq, 2, PVRDMA_WC_SUCCESS);
        vgt_expect(s[1].rcq, 8, PVRDMA_WC_SUCCESS);

        g_assert_cmpint(vg_unbind_gid(s[1].g, 0, &mine), ==, 0);
        UD_LOST(&s[0], &s[1], 0, "to_nobody");
        g_assert_cmpint(vg_bind_gid(s[1].g, 0, &mine), ==, 0);
        ud_passes(&s[0], &s[1], (struct dg){.len = 100, .wr_id = 3});
        vgt_side_close(&s[1]);
    }
    vgt_expect_none(stranger.rcq, 0);
    vgt_side_close(&stranger);
    vgt_side_close(&s[0]);
}

/* ---- completions and states ---- */

static void test_signals(gconstpointer data)
{
    struct vgt_opts o;
    struct vgt_pair p;
    uint32_t cq;

    ud_open(&p, 0, 1, GPOINTER_TO_UINT(data));
    vgt_recv(&p.s[1], 1, FAR, 4096);
    ud_send(&p.s[0], &p.s[1], (struct dg){.len = 8, .no_signal = true});
    vgt_expect(p.s[1].rcq, 1, PVRDMA_WC_SUCCESS);
    vgt_expect_none(p.s[0].scq, 20);
    /* Solicited. */
    while (vg_cqn_poll(p.s[1].g, &cq)) {
    }
    vg_cq_arm(p.s[1].rcq, true);
    vgt_recv(&p.s[1], 1, FAR, 4096);
    vgt_recv(&p.s[1], 2, FAR, 4096);
    ud_send(&p.s[0], &p.s[1], (struct dg){.len = 8, .wr_id = 3});
    vgt_expect(p.s[1].rcq, 1, PVRDMA_WC_SUCCESS);
    g_assert_false(vg_cqn_wait(p.s[1].g, p.s[1].rcq->handle, 50));
    ud_send(&p.s[0], &p.s[1],
            (struct dg){.len = 8, .wr_id = 4, .flags = PVRDMA_SEND_SOLICITED});
    g_assert_true(vg_cqn_wait(p.s[1].g, p.s[1].rcq->handle, VGT_WAIT_MS));
    vgt_expect(p.s[1].rcq, 2, PVRDMA_WC_SUCCESS);
    vgt_pair_close(&p);

    ud_options(&o, GPOINTER_TO_UINT(data));
    o.qp.sq_sig_all = true;
    vgt_pair_open(&p, 0, 1, &o);
    for (unsigned i = 0; i < 2; i++) {
        vg_ud_to_rts(p.s[i].qp, QKEY);
    }
    vgt_recv(&p.s[1], 1, FAR, 4096);
    ud_send(&p.s[0], &p.s[1], (struct dg){.len = 8, .wr_id = 5, .no_signal = true});
    vgt_expect(p.s[0].scq, 5, PVRDMA_WC_SUCCESS);
    vgt_expect(p.s[1].rcq, 1, PVRDMA_WC_SUCCESS);
    vgt_pair_close(&p);
}

static void test_states(gconstpointer data)
{
    struct pvrdma_qp_attr a = {.qp_state = PVRDMA_QPS_INIT, .qkey = QKEY, .port_num = 1};
    const uint32_t init = PVRDMA_QP_STATE | PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_QKEY;
    struct vgt_opts o;
    struct vgt_pair p;
    struct vg_qp *qp;

    ud_options(&o, GPOINTER_TO_UINT(data));
    vgt_pair_open(&p, 0, 1, &o);
    qp = p.s[1].qp;
    vg_ud_to_rts(p.s[0].qp, QKEY);
    /* Attributes: the port is needed, rights are not for datagrams. */
    g_assert_cmpint(vg_modify_qp(qp->g, qp->handle, init, &a), >, 0);
    g_assert_cmpint(vg_modify_qp(qp->g, qp->handle,
                                 init | PVRDMA_QP_PORT | PVRDMA_QP_ACCESS_FLAGS, &a),
                    >, 0);
    a.port_num = 2;
    g_assert_cmpint(vg_modify_qp(qp->g, qp->handle, init | PVRDMA_QP_PORT, &a), >, 0);
    a.port_num = 1;
    a.pkey_index = 1;
    g_assert_cmpint(vg_modify_qp(qp->g, qp->handle, init | PVRDMA_QP_PORT, &a), >, 0);
    a.pkey_index = 0;
    vg_qp_modify(qp, init | PVRDMA_QP_PORT, &a);
    vgt_recv(&p.s[1], 1, FAR, 4096);
    UD_LOST(&p.s[0], &p.s[1], 1, "qp_not_ready");
    a.qp_state = PVRDMA_QPS_RTR;
    vg_qp_modify(qp, PVRDMA_QP_STATE, &a);
    ud_send(&p.s[0], &p.s[1], (struct dg){.len = 8, .wr_id = 2});
    vgt_expect(p.s[0].scq, 2, PVRDMA_WC_SUCCESS);
    vgt_expect(p.s[1].rcq, 1, PVRDMA_WC_SUCCESS);
    vg_qp_to_reset(qp);
    vg_ud_to_rts(qp, QKEY);
    g_assert_cmpint(vg_query_qp(qp->g, qp->handle, &a), ==, 0);
    g_assert_cmpuint(a.qp_state, ==, PVRDMA_QPS_RTS);
    g_assert_cmpuint(a.qkey, ==, QKEY);
    g_assert_cmpuint(a.port_num, ==, 1);
    /* SQD: nothing is sent, but it receives. */
    vg_qp_to_state(qp, PVRDMA_QPS_SQD);
    vgt_recv(&p.s[0], 3, FAR, 4096);
    ud_send(&p.s[1], &p.s[0], (struct dg){.len = 8, .wr_id = 4});
    vgt_expect_none(p.s[1].scq, 20);
    ud_passes(&p.s[0], &p.s[1], (struct dg){.len = 9, .wr_id = 5});
    vg_qp_to_state(qp, PVRDMA_QPS_RTS);
    vgt_expect(p.s[1].scq, 4, PVRDMA_WC_SUCCESS);
    vgt_expect(p.s[0].rcq, 3, PVRDMA_WC_SUCCESS);
    /* ERR: both queues are flushed. */
    vgt_recv(&p.s[1], 6, FAR, 4096);
    vg_qp_to_state(qp, PVRDMA_QPS_ERR);
    vgt_expect(p.s[1].rcq, 6, PVRDMA_WC_WR_FLUSH_ERR);
    ud_send(&p.s[1], &p.s[0], (struct dg){.len = 8, .wr_id = 7});
    vgt_expect(p.s[1].scq, 7, PVRDMA_WC_WR_FLUSH_ERR);
    vgt_recv(&p.s[1], 8, FAR, 4096);
    vgt_expect(p.s[1].rcq, 8, PVRDMA_WC_WR_FLUSH_ERR);
    vgt_pair_close(&p);
}

int main(int argc, char **argv)
{
    static const struct vgt_both both[] = {
        {"exchange", test_exchange}, {"loopback", test_loopback}, {"pieces", test_pieces},
        {"srq", test_srq},           {"signals", test_signals},   {"states", test_states},
    };

    vgt_init(&argc, &argv, 110);
    ud_daemon_start();
    vgt_add_both("ud", both, G_N_ELEMENTS(both));
    g_test_add_func("/ud/gsi", test_gsi);
    g_test_add_func("/ud/gsi-to-nobody", test_gsi_to_nobody);
    g_test_add_func("/ud/comes-and-goes", test_comes_and_goes);
    g_test_add_func("/ud/inline", test_inline);
    return vgt_run();
}
