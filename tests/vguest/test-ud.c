/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: datagrams.  UD queue pairs and the GSI QP: what arrives, with which
 * headers, what is dropped and counted, what fails and how it goes on from there; and
 * that nobody sends from an address that is not his.
 *
 * VM 3 is in a network of its own.
 */
#include "vgtest.h"

#include <string.h>

#define QKEY     0x11111111u
#define GSI_QKEY 0x80010000u
#define GRH      PVRDMA_GRH_SIZE
#define FAR      0x10000u /* offset of receive buffers */

enum style { STOCK, EXTENDED };

static const struct pvrdma_gid link_local[2] = {
    {.raw = {0xfe, 0x80, [8] = 0x52, 0x54, 0, 0xff, 0xfe, 0, 0, 1}},
    {.raw = {0xfe, 0x80, [8] = 0x52, 0x54, 0, 0xff, 0xfe, 0, 0, 2}},
};

/* A datagram to be sent; what is zero is as it should be. */
struct dg {
    uint32_t opcode, flags, len, qpn, qkey;
    struct pvrdma_av *av;
    const struct pvrdma_gid *to;
    uint64_t wr_id;
    bool no_signal;
};

static void ud_options(struct vgt_opts *o, enum style style)
{
    *o = (struct vgt_opts){.qp = {.type = PVRDMA_QPT_UD}, .unconnected = true};
    for (unsigned i = 0; i < 2; i++) {
        o->guest[i].db = style == EXTENDED ? VG_DB_EXT : VG_DB_SHARED;
    }
}

static void ud_open(struct vgt_pair *p, unsigned a, unsigned b, enum style style)
{
    struct vgt_opts o;

    ud_options(&o, style);
    vgt_pair_open(p, a, b, &o);
    for (unsigned i = 0; i < 2; i++) {
        g_assert_cmpint(vg_ud_to_rts(p->s[i].qp, QKEY), ==, 0);
    }
}

/* To @far's QP, from offset 0. */
static void ud_send(struct vgt_side *s, const struct vgt_side *far, struct dg d)
{
    struct pvrdma_sge sge = vg_sge(s->mr, 0, d.len);
    struct pvrdma_av av = d.av ? *d.av : vg_av(s->pd, 0, d.to ? d.to : &far->g->gid);
    struct vg_wr wr = {
        .wr_id = d.wr_id,
        .opcode = d.opcode ? d.opcode : PVRDMA_WR_SEND,
        .flags = d.flags | (d.no_signal ? 0 : VGT_SIG),
        .imm = 0x01020304,
        .nsge = d.len ? 1 : 0,
        .sge = &sge,
        .av = &av,
        .remote_qpn = d.qpn ? d.qpn : far->qp->qpn,
        .remote_qkey = d.qkey ? d.qkey : QKEY,
    };

    g_assert_cmpuint(vg_post_send(s->qp, &wr, 1), ==, 1);
}

static int64_t dropped(unsigned vm, const char *why)
{
    g_autofree char *name = g_strdup_printf("vm%u", vm);

    return vgt_counter(name, "datagrams", why);
}

/* From SQE back to RTS, as the MAD layer does it. */
static void recover(struct vg_qp *qp)
{
    struct pvrdma_qp_attr a = {.qp_state = PVRDMA_QPS_RTS,
                               .cur_qp_state = PVRDMA_QPS_SQE};

    g_assert_cmpuint(vg_qp_state(qp), ==, PVRDMA_QPS_SQE);
    g_assert_cmpint(
        vg_modify_qp(qp->g, qp->handle, PVRDMA_QP_STATE | PVRDMA_QP_CUR_STATE, &a), ==,
        0);
    g_assert_cmpuint(vg_qp_state(qp), ==, PVRDMA_QPS_RTS);
}

/* A datagram that arrives, with @len bytes, at FAR; returns its completion. */
static struct pvrdma_cqe passes(struct vgt_side *from, struct vgt_side *to, struct dg d)
{
    struct pvrdma_cqe c;

    vgt_fill(VG_MR_HOST(from->mr, 0), d.len, d.wr_id + 1);
    memset(VG_MR_HOST(to->mr, FAR), 0xee, GRH + d.len + 8);
    vgt_recv(to, 500, FAR, GRH + d.len);
    ud_send(from, to, d);
    vgt_expect(from->scq, d.wr_id, PVRDMA_WC_SUCCESS);
    c = vgt_expect(to->rcq, 500, PVRDMA_WC_SUCCESS);
    g_assert_cmpuint(c.opcode, ==, PVRDMA_WC_RECV);
    g_assert_cmpuint(c.byte_len, ==, GRH + d.len);
    g_assert_cmpuint(c.qp, ==, to->qp->handle);
    g_assert_cmpuint(c.port_num, ==, 1);
    g_assert_cmpuint(c.pkey_index, ==, 0);
    g_assert_cmpuint(c.slid, ==, 0);
    g_assert_cmpuint(c.sl, ==, 0);
    vgt_check(VG_MR_HOST(to->mr, FAR + GRH), d.len, d.wr_id + 1);
    g_assert_cmpuint(*VG_MR_HOST(to->mr, FAR + GRH + d.len), ==, 0xee);
    return c;
}

/* ---- what arrives ---- */

static uint32_t be16(const uint8_t *p)
{
    return (uint32_t)p[0] << 8 | p[1];
}

/* The Internet checksum of a header with its own checksum in place is 0. */
static bool checksum_ok(const uint8_t *ip)
{
    uint32_t sum = 0;

    for (unsigned i = 0; i < 20; i += 2) {
        sum += be16(ip + i);
    }
    while (sum >> 16) {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    return sum == 0xffff;
}

/* UDP, BTH, DETH, immediate, padded bytes, ICRC. */
static uint32_t udp_bytes(uint32_t len, bool imm)
{
    return 8 + 12 + 8 + (imm ? 4 : 0) + (len + 3) / 4 * 4 + 4;
}

/* The handle that vg_av() makes: traffic class 0x5a, flow label 0xabcde, 63 hops. */
static void check_ipv4(const uint8_t *grh, const struct pvrdma_gid *from,
                       const struct pvrdma_gid *to, uint32_t udp)
{
    static const uint8_t zero[20];
    const uint8_t *ip = grh + 20;

    g_assert_cmpmem(grh, 20, zero, 20);
    g_assert_cmpuint(ip[0], ==, 0x45);
    g_assert_cmpuint(ip[1], ==, 0x5a);
    g_assert_cmpuint(be16(ip + 2), ==, 20 + udp);
    g_assert_cmpuint(be16(ip + 4), ==, 0);
    g_assert_cmpuint(be16(ip + 6), ==, 0x4000);
    g_assert_cmpuint(ip[8], ==, 63);
    g_assert_cmpuint(ip[9], ==, 17);
    g_assert_true(checksum_ok(ip));
    g_assert_cmpmem(ip + 12, 4, from->raw + 12, 4);
    g_assert_cmpmem(ip + 16, 4, to->raw + 12, 4);
}

static void check_ipv6(const uint8_t *grh, const struct pvrdma_gid *from,
                       const struct pvrdma_gid *to, uint32_t udp)
{
    static const uint8_t begin[4] = {0x65, 0xaa, 0xbc, 0xde};

    g_assert_cmpmem(grh, 4, begin, 4);
    g_assert_cmpuint(be16(grh + 4), ==, udp);
    g_assert_cmpuint(grh[6], ==, 17);
    g_assert_cmpuint(grh[7], ==, 63);
    g_assert_cmpmem(grh + 8, 16, from, 16);
    g_assert_cmpmem(grh + 24, 16, to, 16);
}

/* One direction, both kinds of addresses, many lengths. */
static void exchange(struct vgt_side *from, struct vgt_side *to,
                     const struct pvrdma_gid *from6, const struct pvrdma_gid *to6)
{
    static const uint32_t lengths[] = {0, 1, 7, 8, 64, 255, 256, 1023, 4095, 4096};
    const uint32_t flags = PVRDMA_WC_FLAG_GRH | PVRDMA_WC_FLAG_NETWORK_HDR_TYPE;
    struct pvrdma_av av6 = vg_av(from->pd, 1, to6);

    for (unsigned i = 0; i < G_N_ELEMENTS(lengths); i++) {
        struct dg d = {.len = lengths[i], .wr_id = 1 + i};
        bool imm = i & 1;
        uint32_t udp = udp_bytes(d.len, imm);
        struct pvrdma_cqe c;

        d.opcode = imm ? PVRDMA_WR_SEND_WITH_IMM : PVRDMA_WR_SEND;
        for (unsigned v6 = 0; v6 < 2; v6++) {
            d.av = v6 ? &av6 : NULL;
            c = passes(from, to, d);
            g_assert_cmpuint(c.src_qp, ==, from->qp->qpn);
            g_assert_cmpuint(c.wc_flags, ==, flags | (imm ? PVRDMA_WC_FLAG_IMM : 0));
            g_assert_cmpuint(c.imm_data, ==, imm ? 0x01020304 : 0);
            g_assert_cmpuint(c.network_hdr_type, ==,
                             v6 ? PVRDMA_NETWORK_IPV6 : PVRDMA_NETWORK_IPV4);
            (v6 ? check_ipv6 : check_ipv4)(VG_MR_HOST(to->mr, FAR),
                                           v6 ? from6 : &from->g->gid,
                                           v6 ? to6 : &to->g->gid, udp);
        }
    }
}

static void test_exchange(gconstpointer data)
{
    struct vgt_pair p;
    int64_t sent, got;

    ud_open(&p, 0, 1, GPOINTER_TO_UINT(data));
    for (unsigned i = 0; i < 2; i++) {
        g_assert_cmpint(vg_bind_gid(p.s[i].g, 1, &link_local[i]), ==, 0);
    }
    sent = dropped(0, "sent");
    got = dropped(1, "received");
    exchange(&p.s[0], &p.s[1], &link_local[0], &link_local[1]);
    g_assert_cmpint(dropped(0, "sent") - sent, ==, 20);
    g_assert_cmpint(dropped(1, "received") - got, ==, 20);
    exchange(&p.s[1], &p.s[0], &link_local[1], &link_local[0]);
    vgt_pair_close(&p);
}

/* To another QP of the own VM, and to itself. */
static void test_loopback(gconstpointer data)
{
    struct vgt_pair p;

    ud_open(&p, 0, 0, GPOINTER_TO_UINT(data));
    g_assert_cmpint(vg_bind_gid(p.s[0].g, 1, &link_local[0]), ==, 0);
    exchange(&p.s[0], &p.s[1], &link_local[0], &link_local[0]);
    exchange(&p.s[0], &p.s[0], &link_local[0], &link_local[0]);
    vgt_pair_close(&p);
}

/* ---- QP number 1 ---- */

/* As ib_core's MAD layer has it: in the kernel's domain. */
static void gsi_open(struct vgt_side *s, unsigned vm)
{
    const struct vg_qp_opts o = {.type = PVRDMA_QPT_GSI};

    s->g = vguest_new(vgt_daemon, vm, NULL);
    s->pd = vg_pd_new_kernel(s->g);
    s->scq = vg_cq_new(s->pd, 64);
    s->rcq = vg_cq_new(s->pd, 64);
    s->qp = vg_qp_new(s->pd, s->scq, s->rcq, &o);
    s->mr = vg_mr_alloc(s->pd, 0x7f1200000000ull, 1 << 20, VG_ACCESS_ALL);
    g_assert_cmpint(vg_ud_to_rts(s->qp, GSI_QKEY), ==, 0);
}

/* The bit says: the QP's own Q_Key, which is the same. */
#define MAD                                    \
    {                                          \
        .len = 256, .qpn = 1, .qkey = GSI_QKEY \
    }

static void test_gsi(void)
{
    struct vgt_side s[2];
    struct pvrdma_cqe c;
    struct dg d = MAD;
    int64_t no_qp;

    gsi_open(&s[0], 0);
    gsi_open(&s[1], 1);
    g_assert_cmpuint(s[1].qp->qpn, !=, 1);
    for (unsigned i = 0; i < 4; i++) {
        d.wr_id = i;
        c = passes(&s[i & 1], &s[1 - (i & 1)], d);
        g_assert_cmpuint(c.src_qp, ==, 1);
        g_assert_true(c.wc_flags & PVRDMA_WC_FLAG_GRH);
        g_assert_cmpuint(c.network_hdr_type, ==, PVRDMA_NETWORK_IPV4);
    }
    /* On the wire it has that number alone. */
    no_qp = dropped(1, "no_qp");
    d.qpn = s[1].qp->qpn;
    vgt_recv(&s[1], 500, FAR, GRH + 256);
    ud_send(&s[0], &s[1], d);
    vgt_expect(s[0].scq, 3, PVRDMA_WC_SUCCESS);
    vgt_expect_none(s[1].rcq, 20);
    g_assert_cmpint(dropped(1, "no_qp") - no_qp, ==, 1);
    vgt_side_close(&s[0]);
    vgt_side_close(&s[1]);
}

/* A MAD to an address that nobody holds fails; the QP goes on when it is told to. */
static void test_gsi_to_nobody(void)
{
    struct vgt_side s[2];
    struct pvrdma_gid nobody = vg_gid(77), other = vg_gid(2);
    struct dg d = MAD, lost = MAD;

    gsi_open(&s[0], 0);
    gsi_open(&s[1], 1);
    for (unsigned i = 0; i < 3; i++) {
        lost.to = i ? &other : &nobody; /* VM 2 is not there */
        lost.wr_id = 10;
        ud_send(&s[0], &s[1], lost);
        lost.wr_id = 11;
        ud_send(&s[0], &s[1], lost);
        vgt_expect(s[0].scq, 10, PVRDMA_WC_RETRY_EXC_ERR);
        vgt_expect(s[0].scq, 11, PVRDMA_WC_WR_FLUSH_ERR);
        /* What comes arrives in SQE, too. */
        d.wr_id = 20;
        passes(&s[1], &s[0], d);
        recover(s[0].qp);
        d.wr_id = 21;
        passes(&s[0], &s[1], d);
    }
    g_assert_cmpint(dropped(0, "to_nobody"), ==, 3); /* since the VM is there */
    vgt_side_close(&s[0]);
    vgt_side_close(&s[1]);
}

int main(int argc, char **argv)
{
    static const char *const keys[4] = {"addresses=any", "addresses=any", "",
                                        "network=other\naddresses=any"};
    struct vg_daemon_opts o = {.n_vms = 4, .poll_us = -1, .workers = 2, .keys = keys};
    static const struct {
        const char *name;
        void (*run)(gconstpointer);
    } both[] = {
        {"exchange", test_exchange},
        {"loopback", test_loopback},
    };

    vgt_init(&argc, &argv, 120);
    vgt_daemon = vg_daemon_start(&o);
    for (unsigned i = 0; i < 2 * G_N_ELEMENTS(both); i++) {
        g_autofree char *path =
            g_strdup_printf("/ud/%s/%s", both[i / 2].name, i & 1 ? "extended" : "stock");

        g_test_add_data_func(path, GUINT_TO_POINTER(i & 1 ? EXTENDED : STOCK),
                             both[i / 2].run);
    }
    g_test_add_func("/ud/gsi", test_gsi);
    g_test_add_func("/ud/gsi-to-nobody", test_gsi_to_nobody);
    return vgt_run();
}
