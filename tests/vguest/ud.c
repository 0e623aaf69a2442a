/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Datagrams of virtual guests; see ud.h. */
#include "ud.h"

#include <string.h>

const struct pvrdma_gid ud_link_local[2] = {
    {.raw = {0xfe, 0x80, [8] = 0x52, 0x54, 0, 0xff, 0xfe, 0, 0, 1}},
    {.raw = {0xfe, 0x80, [8] = 0x52, 0x54, 0, 0xff, 0xfe, 0, 0, 2}},
};

void ud_options(struct vgt_opts *o, enum vgt_style style)
{
    *o = (struct vgt_opts){.qp = {.type = PVRDMA_QPT_UD}, .unconnected = true};
    for (unsigned i = 0; i < 2; i++) {
        o->guest[i].db = style == VGT_EXTENDED ? VG_DB_EXT : VG_DB_SHARED;
    }
}

void ud_open(struct vgt_pair *p, unsigned a, unsigned b, enum vgt_style style)
{
    struct vgt_opts o;

    ud_options(&o, style);
    vgt_pair_open(p, a, b, &o);
    for (unsigned i = 0; i < 2; i++) {
        vg_ud_to_rts(p->s[i].qp, QKEY);
    }
}

void ud_send(struct vgt_side *s, const struct vgt_side *far, struct dg d)
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

int64_t ud_dropped(unsigned vm, const char *why)
{
    g_autofree char *name = g_strdup_printf("vm%u", vm);

    return vgt_counter(name, "datagrams", why);
}

void ud_recover(struct vg_qp *qp)
{
    struct pvrdma_qp_attr a = {.qp_state = PVRDMA_QPS_RTS,
                               .cur_qp_state = PVRDMA_QPS_SQE};

    g_assert_cmpuint(vg_qp_state(qp), ==, PVRDMA_QPS_SQE);
    vg_qp_modify(qp, PVRDMA_QP_STATE | PVRDMA_QP_CUR_STATE, &a);
    g_assert_cmpuint(vg_qp_state(qp), ==, PVRDMA_QPS_RTS);
}

struct pvrdma_cqe ud_passes(struct vgt_side *from, struct vgt_side *to, struct dg d)
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
    vgt_check(VG_MR_HOST(to->mr, FAR + GRH), d.len, d.wr_id + 1);
    g_assert_cmpuint(*VG_MR_HOST(to->mr, FAR + GRH + d.len), ==, 0xee);
    return c;
}

static uint32_t be16(const uint8_t *p)
{
    return (uint32_t)p[0] << 8 | p[1];
}

bool ud_checksum_ok(const uint8_t *ip)
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

void ud_lost(struct vgt_side *from, struct vgt_side *to, struct dg d)
{
    ud_send(from, to, d);
    vgt_expect(from->scq, d.wr_id, PVRDMA_WC_SUCCESS);
    vgt_expect_none(to->rcq, 20);
}

void ud_srq_post(struct vg_srq *srq, struct vg_mr *mr, uint64_t wr_id, uint32_t len)
{
    struct pvrdma_sge sge = vg_sge(mr, FAR, len);
    struct vg_wr wr = {.wr_id = wr_id, .nsge = 1, .sge = &sge};

    g_assert_cmpuint(vg_post_srq(srq, &wr, 1), ==, 1);
}

void ud_srq_passes(struct vgt_side *from, struct vgt_side *to, struct vg_qp *qp,
                   uint32_t len, uint64_t wr_id)
{
    struct pvrdma_cqe c;

    ud_send(from, to, (struct dg){.len = len, .wr_id = 1, .qpn = qp->qpn});
    vgt_expect(from->scq, 1, PVRDMA_WC_SUCCESS);
    c = vgt_expect(to->rcq, wr_id, PVRDMA_WC_SUCCESS);
    g_assert_cmpuint(c.qp, ==, qp->handle);
    g_assert_cmpuint(c.byte_len, ==, GRH + len);
}

void ud_daemon_start(void)
{
    static const char *const keys[4] = {"addresses=any", "addresses=any", "",
                                        "network=other\naddresses=any"};
    struct vg_daemon_opts o = {.n_vms = 4, .poll_us = -1, .workers = 2, .keys = keys};

    vgt_daemon = vg_daemon_start(&o);
}

/* ---- what arrives ---- */

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
    g_assert_true(ud_checksum_ok(ip));
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

void ud_exchange(struct vgt_side *from, struct vgt_side *to,
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
            c = ud_passes(from, to, d);
            g_assert_cmpuint(c.src_qp, ==, from->qp->qpn);
            g_assert_cmpuint(c.wc_flags, ==, flags | (imm ? PVRDMA_WC_FLAG_IMM : 0));
            g_assert_cmpuint(c.imm_data, ==, imm ? 0x01020304 : 0);
            g_assert_cmpuint(c.network_hdr_type, ==,
                             v6 ? PVRDMA_NETWORK_IPV6 : PVRDMA_NETWORK_IPV4);
            /* The numbers of mlx5's manual: UDP, and IPv6 or IPv4. */
            g_assert_cmpuint(c.sl, ==, v6 ? 0x9 : 0xa);
            (v6 ? check_ipv6 : check_ipv4)(VG_MR_HOST(to->mr, FAR),
                                           v6 ? from6 : &from->g->gid,
                                           v6 ? to6 : &to->g->gid, udp);
        }
    }
}

void ud_gsi_open(struct vgt_side *s, unsigned vm)
{
    const struct vg_qp_opts o = {.type = PVRDMA_QPT_GSI};

    s->g = vguest_new(vgt_daemon, vm, NULL);
    s->pd = vg_pd_new_kernel(s->g);
    s->scq = vg_cq_new(s->pd, 64);
    s->rcq = vg_cq_new(s->pd, 64);
    s->qp = vg_qp_new(s->pd, s->scq, s->rcq, &o);
    s->mr = vg_mr_alloc(s->pd, 0x7f1200000000ull, 1 << 20, VG_ACCESS_ALL);
    vg_ud_to_rts(s->qp, GSI_QKEY);
}
