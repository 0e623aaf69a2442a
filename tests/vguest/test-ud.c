/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: datagrams.  UD queue pairs and the GSI QP: what arrives, with which
 * headers, what is dropped and counted, what fails and how it goes on from there; and
 * that nobody sends from an address that is not his.
 *
 * VM 3 is in a network of its own.
 */
#include "vgtest.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#define QKEY       0x11111111u
#define GSI_QKEY   0x80010000u
#define GRH        PVRDMA_GRH_SIZE
#define FAR        0x10000u /* offset of receive buffers */
#define VERBS_GIDS 64u      /* entries of the GID table */

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

/* ---- what is dropped ---- */

/* A datagram that completes at its sender and arrives nowhere. */
static void lost(struct vgt_side *from, struct vgt_side *to, struct dg d)
{
    ud_send(from, to, d);
    vgt_expect(from->scq, d.wr_id, PVRDMA_WC_SUCCESS);
    vgt_expect_none(to->rcq, 20);
}

#define LOST(from, to, vm, why, ...)                             \
    do {                                                         \
        int64_t before_ = dropped(vm, why);                      \
                                                                 \
        lost(from, to, (struct dg){.wr_id = 90, ##__VA_ARGS__}); \
        g_assert_cmpint(dropped(vm, why) - before_, ==, 1);      \
    } while (0)

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
    LOST(&p.s[0], &p.s[1], 1, "qkey_violations", .qkey = QKEY + 1);
    /* With the highest bit it is the sender's own, whatever else it says. */
    ud_send(&p.s[0], &p.s[1], (struct dg){.len = 8, .wr_id = 1, .qkey = 0x80000000u});
    vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS);
    vgt_expect(p.s[1].rcq, 7, PVRDMA_WC_SUCCESS);
    g_assert_cmpint(vg_modify_qp(p.s[0].g, p.s[0].qp->handle, PVRDMA_QP_QKEY, &a), ==, 0);
    vgt_recv(&p.s[1], 8, FAR, 4096);
    LOST(&p.s[0], &p.s[1], 1, "qkey_violations", .qkey = 0x80000000u | QKEY);
    g_assert_cmpint(vg_query_port(p.s[1].g, 1, &port), ==, 0);
    g_assert_cmpuint(port.qkey_viol_cntr - before, ==, 2);
    vgt_pair_close(&p);
}

static void test_no_receive(gconstpointer data)
{
    struct vgt_pair p;

    ud_open(&p, 0, 1, GPOINTER_TO_UINT(data));
    for (unsigned i = 0; i < 3; i++) {
        LOST(&p.s[0], &p.s[1], 1, "no_receive");
        passes(&p.s[0], &p.s[1], (struct dg){.len = 100, .wr_id = i});
    }
    vgt_pair_close(&p);
}

/* The receive is not used up; it serves the next that it has room for. */
static void test_small_buffer(gconstpointer data)
{
    struct vgt_pair p;

    ud_open(&p, 0, 1, GPOINTER_TO_UINT(data));
    vgt_recv(&p.s[1], 7, FAR, GRH + 16);
    LOST(&p.s[0], &p.s[1], 1, "too_long", .len = 17);
    LOST(&p.s[0], &p.s[1], 1, "too_long", .len = 4096);
    g_assert_cmpuint(vg_qp_state(p.s[1].qp), ==, PVRDMA_QPS_RTS);
    vgt_fill(VG_MR_HOST(p.s[0].mr, 0), 16, 5);
    ud_send(&p.s[0], &p.s[1], (struct dg){.len = 16, .wr_id = 1});
    vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS);
    g_assert_cmpuint(vgt_expect(p.s[1].rcq, 7, PVRDMA_WC_SUCCESS).byte_len, ==, GRH + 16);
    vgt_check(VG_MR_HOST(p.s[1].mr, FAR + GRH), 16, 5);
    /* Not even room for the header. */
    vgt_recv(&p.s[1], 8, FAR, GRH - 1);
    LOST(&p.s[0], &p.s[1], 1, "too_long");
    g_assert_cmpint(vg_qp_to_state(p.s[1].qp, PVRDMA_QPS_ERR), ==, 0);
    vgt_expect(p.s[1].rcq, 8, PVRDMA_WC_WR_FLUSH_ERR);
    vgt_pair_close(&p);
}

static void srq_post(struct vg_srq *srq, struct vg_mr *mr, uint64_t wr_id, uint32_t len)
{
    struct pvrdma_sge sge = vg_sge(mr, FAR, len);
    struct vg_wr wr = {.wr_id = wr_id, .nsge = 1, .sge = &sge};

    g_assert_cmpuint(vg_post_srq(srq, &wr, 1), ==, 1);
}

static void srq_passes(struct vgt_side *from, struct vgt_side *to, struct vg_qp *qp,
                       uint32_t len, uint64_t wr_id)
{
    struct pvrdma_cqe c;

    ud_send(from, to, (struct dg){.len = len, .wr_id = 1, .qpn = qp->qpn});
    vgt_expect(from->scq, 1, PVRDMA_WC_SUCCESS);
    c = vgt_expect(to->rcq, wr_id, PVRDMA_WC_SUCCESS);
    g_assert_cmpuint(c.qp, ==, qp->handle);
    g_assert_cmpuint(c.byte_len, ==, GRH + len);
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
        g_assert_cmpint(vg_ud_to_rts(qp[i], QKEY), ==, 0);
    }
    LOST(&p.s[0], &p.s[1], 1, "no_receive", .qpn = qp[0]->qpn);
    srq_post(o.srq, p.s[1].mr, 20, GRH + 16);
    srq_post(o.srq, p.s[1].mr, 21, GRH + 17);
    /* Nobody takes a receive that is not used from the other QPs. */
    LOST(&p.s[0], &p.s[1], 1, "too_long", .qpn = qp[0]->qpn, .len = 17);
    LOST(&p.s[0], &p.s[1], 1, "too_long", .qpn = qp[1]->qpn, .len = 17);
    srq_passes(&p.s[0], &p.s[1], qp[1], 16, 20);
    srq_passes(&p.s[0], &p.s[1], qp[0], 17, 21);
    LOST(&p.s[0], &p.s[1], 1, "no_receive", .qpn = qp[1]->qpn);
    srq_post(o.srq, p.s[1].mr, 23, GRH + 16);
    LOST(&p.s[0], &p.s[1], 1, "too_long", .qpn = qp[0]->qpn, .len = 17);
    g_assert_cmpint(vg_qp_to_state(qp[0], PVRDMA_QPS_ERR), ==, 0);
    g_assert_true(vg_event_wait(p.s[1].g, PVRDMA_EVENT_QP_LAST_WQE_REACHED, qp[0]->handle,
                                VGT_WAIT_MS));
    srq_passes(&p.s[0], &p.s[1], qp[1], 8, 23);
    vg_qp_free(qp[0]);
    vg_qp_free(qp[1]);
    vg_srq_free(o.srq);
    vgt_pair_close(&p);
}

/* The receiver's own mistake is its own affair. */
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
                                   PVRDMA_PAGE_SIZE,
                                   VFIO_USER_DMA_READ_FLAG | VFIO_USER_DMA_WRITE_FLAG),
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
        g_assert_cmpint(vg_ud_to_rts(to, QKEY), ==, 0);
        next = to;
        if (o.srq) { /* then it is anybody's */
            next = vg_qp_new(p.s[1].pd, p.s[1].scq, p.s[1].rcq, &o);
            g_assert_cmpint(vg_ud_to_rts(next, QKEY), ==, 0);
        }
        sge.lkey = map_apart(s);
        for (unsigned k = i & 2 ? 0 : 1; k < 2; k++) {
            g_assert_cmpint(
                vg_dma_unmap(s->g, GONE_GPA + k * PVRDMA_PAGE_SIZE, PVRDMA_PAGE_SIZE), ==,
                0);
        }
        if (o.srq) {
            srq_post(o.srq, p.s[1].mr, 20, GRH + 200);
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
        recover(s->qp);
        vgt_expect_none(p.s[1].rcq, 5);
        LOST(s, &p.s[1], 1, "too_long", .qpn = to->qpn, .len = 201);
        srq_passes(s, &p.s[1], next, 200, 20);
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

    ud_options(&o, (enum style)GPOINTER_TO_UINT(data));
    o.qp.recv_sge = G_N_ELEMENTS(piece);
    vgt_pair_open(&p, 0, 1, &o);
    for (unsigned i = 0; i < 2; i++) {
        g_assert_cmpint(vg_ud_to_rts(p.s[i].qp, QKEY), ==, 0);
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
    g_assert_true(checksum_ok(got + 20));
    vgt_check(got + GRH, 64, 3);
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
    g_assert_true(
        vg_event_wait(p.s[1].g, PVRDMA_EVENT_QP_FATAL, p.s[1].qp->handle, VGT_WAIT_MS));
    g_assert_cmpint(dropped(1, "bad_receive"), ==, 1);
    vgt_pair_close(&p);
}

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
    g_assert_cmpint(dropped(1, "bad_receive"), ==, 1);
    for (unsigned i = 0; i < GRH; i++) {
        g_assert_cmphex(*VG_MR_HOST(p.s[1].mr, FAR + i), ==, 0xee);
    }
    LOST(&p.s[0], &p.s[1], 1, "qp_not_ready");
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
    LOST(&p.s[0], &p.s[1], 1, "no_qp", .qpn = 0xffffff);
    LOST(&p.s[0], &p.s[1], 1, "no_qp", .qpn = 1);
    LOST(&p.s[0], &p.s[1], 1, "no_qp", .qpn = p.s[1].qp->qpn ^ 0x10000);
    /* One for connections. */
    qp = vg_qp_new(p.s[1].pd, p.s[1].scq, p.s[1].rcq, &rc);
    vg_qp_connect(qp, qp, NULL);
    LOST(&p.s[0], &p.s[1], 1, "no_qp", .qpn = qp->qpn);
    qpn = qp->qpn;
    vg_qp_free(qp);
    LOST(&p.s[0], &p.s[1], 1, "no_qp", .qpn = qpn);
    /* And one that does not receive yet, or any more. */
    qp = vg_qp_new(p.s[1].pd, p.s[1].scq, p.s[1].rcq, &p.s[1].qp->opts);
    LOST(&p.s[0], &p.s[1], 1, "qp_not_ready", .qpn = qp->qpn);
    g_assert_cmpint(vg_ud_to_rts(qp, QKEY), ==, 0);
    LOST(&p.s[0], &p.s[1], 1, "no_receive", .qpn = qp->qpn);
    g_assert_cmpint(vg_qp_to_state(qp, PVRDMA_QPS_ERR), ==, 0);
    LOST(&p.s[0], &p.s[1], 1, "qp_not_ready", .qpn = qp->qpn);
    g_assert_cmpint(vg_qp_to_reset(qp), ==, 0);
    LOST(&p.s[0], &p.s[1], 1, "qp_not_ready", .qpn = qp->qpn);
    vg_qp_free(qp);
    /* That of the others is there still; a number has 24 bits. */
    qpn = p.s[1].qp->qpn | 0xab000000u;
    ud_send(&p.s[0], &p.s[1], (struct dg){.len = 8, .wr_id = 1, .qpn = qpn});
    vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS);
    vgt_expect(p.s[1].rcq, 7, PVRDMA_WC_SUCCESS);
    vgt_pair_close(&p);
}

static void ctl(const char *what, const char *vm)
{
    g_assert_cmpint(vg_ctl(vgt_daemon, NULL, "vm %s %s", what, vm), ==, 0);
}

/* To whom is not there yet, stands still, or has gone. */
static void test_comes_and_goes(void)
{
    struct vgt_opts o;
    struct vgt_side s[2], stranger;
    struct pvrdma_gid mine = vg_gid(2);

    ud_options(&o, STOCK);
    vgt_side_open(&s[0], 0, &o, 0);
    g_assert_cmpint(vg_ud_to_rts(s[0].qp, QKEY), ==, 0);
    /* In a network of its own the address is another one. */
    vgt_side_open(&stranger, 3, &o, 1);
    g_assert_cmpint(vg_ud_to_rts(stranger.qp, QKEY), ==, 0);
    g_assert_cmpint(vg_bind_gid(stranger.g, 1, &mine), ==, 0);
    vgt_recv(&stranger, 7, FAR, 4096);
    for (unsigned i = 0; i < 3; i++) {
        LOST(&s[0], &stranger, 0, "to_nobody", .to = &mine);
        vgt_side_open(&s[1], 2, &o, 1);
        g_assert_cmpint(vg_ud_to_rts(s[1].qp, QKEY), ==, 0);
        passes(&s[0], &s[1], (struct dg){.len = 100, .wr_id = 1});

        ctl("pause", "vm2");
        vgt_recv(&s[1], 8, FAR, 4096);
        LOST(&s[0], &s[1], 0, "to_paused");
        ctl("resume", "vm2");
        ud_send(&s[0], &s[1], (struct dg){.len = 8, .wr_id = 2});
        vgt_expect(s[0].scq, 2, PVRDMA_WC_SUCCESS);
        vgt_expect(s[1].rcq, 8, PVRDMA_WC_SUCCESS);

        g_assert_cmpint(vg_unbind_gid(s[1].g, 0, &mine), ==, 0);
        LOST(&s[0], &s[1], 0, "to_nobody");
        g_assert_cmpint(vg_bind_gid(s[1].g, 0, &mine), ==, 0);
        passes(&s[0], &s[1], (struct dg){.len = 100, .wr_id = 3});
        vgt_side_close(&s[1]);
    }
    vgt_expect_none(stranger.rcq, 0);
    vgt_side_close(&stranger);
    vgt_side_close(&s[0]);
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
    recover(from->qp);
    passes(from, to, (struct dg){.len = 60, .wr_id = 32});
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
    g_assert_cmpint(vg_bind_gid(p.s[0].g, 1, &link_local[0]), ==, 0);
    passes(&p.s[0], &p.s[1], (struct dg){.len = 8, .av = &av});
    g_assert_cmpint(vg_unbind_gid(p.s[0].g, 1, &link_local[0]), ==, 0);
    fails(&p.s[0], &p.s[1], (struct dg){.len = 8, .av = &av}, bad);
    for (unsigned index = VERBS_GIDS; index < 256; index += 37) {
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
            recover(p.s[0].qp);
        }
    }
    passes(&p.s[0], &p.s[1], (struct dg){.len = 60, .wr_id = 2});
    vgt_pair_close(&p);
    g_rand_free(r);
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
        g_assert_cmpint(vg_ud_to_rts(p.s[i].qp, QKEY), ==, 0);
    }
    vgt_recv(&p.s[1], 1, FAR, 4096);
    ud_send(&p.s[0], &p.s[1], (struct dg){.len = 8, .wr_id = 5, .no_signal = true});
    vgt_expect(p.s[0].scq, 5, PVRDMA_WC_SUCCESS);
    vgt_expect(p.s[1].rcq, 1, PVRDMA_WC_SUCCESS);
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

    ud_options(&o, EXTENDED);
    o.qp.max_inline = 64;
    vgt_pair_open(&p, 0, 1, &o);
    for (unsigned i = 0; i < 2; i++) {
        g_assert_cmpint(vg_ud_to_rts(p.s[i].qp, QKEY), ==, 0);
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
    g_assert_cmpint(vg_ud_to_rts(p.s[0].qp, QKEY), ==, 0);
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
    g_assert_cmpint(vg_modify_qp(qp->g, qp->handle, init | PVRDMA_QP_PORT, &a), ==, 0);
    vgt_recv(&p.s[1], 1, FAR, 4096);
    LOST(&p.s[0], &p.s[1], 1, "qp_not_ready");
    a.qp_state = PVRDMA_QPS_RTR;
    g_assert_cmpint(vg_modify_qp(qp->g, qp->handle, PVRDMA_QP_STATE, &a), ==, 0);
    ud_send(&p.s[0], &p.s[1], (struct dg){.len = 8, .wr_id = 2});
    vgt_expect(p.s[0].scq, 2, PVRDMA_WC_SUCCESS);
    vgt_expect(p.s[1].rcq, 1, PVRDMA_WC_SUCCESS);
    g_assert_cmpint(vg_qp_to_reset(qp), ==, 0);
    g_assert_cmpint(vg_ud_to_rts(qp, QKEY), ==, 0);
    g_assert_cmpint(vg_query_qp(qp->g, qp->handle, &a), ==, 0);
    g_assert_cmpuint(a.qp_state, ==, PVRDMA_QPS_RTS);
    g_assert_cmpuint(a.qkey, ==, QKEY);
    g_assert_cmpuint(a.port_num, ==, 1);
    /* SQD: nothing is sent, but it receives. */
    g_assert_cmpint(vg_qp_to_state(qp, PVRDMA_QPS_SQD), ==, 0);
    vgt_recv(&p.s[0], 3, FAR, 4096);
    ud_send(&p.s[1], &p.s[0], (struct dg){.len = 8, .wr_id = 4});
    vgt_expect_none(p.s[1].scq, 20);
    passes(&p.s[0], &p.s[1], (struct dg){.len = 9, .wr_id = 5});
    g_assert_cmpint(vg_qp_to_state(qp, PVRDMA_QPS_RTS), ==, 0);
    vgt_expect(p.s[1].scq, 4, PVRDMA_WC_SUCCESS);
    vgt_expect(p.s[0].rcq, 3, PVRDMA_WC_SUCCESS);
    /* ERR: both queues are flushed. */
    vgt_recv(&p.s[1], 6, FAR, 4096);
    g_assert_cmpint(vg_qp_to_state(qp, PVRDMA_QPS_ERR), ==, 0);
    vgt_expect(p.s[1].rcq, 6, PVRDMA_WC_WR_FLUSH_ERR);
    ud_send(&p.s[1], &p.s[0], (struct dg){.len = 8, .wr_id = 7});
    vgt_expect(p.s[1].scq, 7, PVRDMA_WC_WR_FLUSH_ERR);
    vgt_recv(&p.s[1], 8, FAR, 4096);
    vgt_expect(p.s[1].rcq, 8, PVRDMA_WC_WR_FLUSH_ERR);
    vgt_pair_close(&p);
}

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

    ud_open(&p, 0, 1, EXTENDED);
    from = vg_sge(p.s[0].mr, 0, 64);
    into = vg_sge(p.s[1].mr, FAR, 4096);
    av = vg_av(p.s[0].pd, 0, &p.s[1].g->gid);
    for (unsigned i = 0; i < MANY_RX; i++) {
        cq[i] = vg_cq_new(p.s[1].pd, 16);
        rx[i] = vg_qp_new(p.s[1].pd, p.s[1].scq, cq[i], &o);
        g_assert_cmpint(vg_ud_to_rts(rx[i], QKEY), ==, 0);
    }
    for (unsigned i = 0; i < MANY_TX; i++) {
        tx[i] = vg_qp_new(p.s[0].pd, p.s[0].scq, p.s[0].rcq, &o);
        g_assert_cmpint(vg_ud_to_rts(tx[i], QKEY), ==, 0);
    }
    for (unsigned round = 0; round < vgt_rounds(50); round++) {
        for (unsigned i = 0; i < MANY_RX; i++) {
            recv.wr_id = i;
            g_assert_cmpuint(vg_post_recv(rx[i], &recv, 1), ==, 1);
        }
        for (unsigned i = 0; i < MANY_RX; i++) {
            struct vg_wr wr = {.wr_id = i,
                               .opcode = PVRDMA_WR_SEND,
                               .flags = VGT_SIG,
                               .nsge = 1,
                               .sge = &from,
                               .av = &av,
                               .remote_qpn = rx[i]->qpn,
                               .remote_qkey = QKEY};

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
        struct vg_wr wr = {.opcode = PVRDMA_WR_SEND,
                           .flags = VGT_SIG,
                           .nsge = 1,
                           .sge = &sge,
                           .av = &f->av,
                           .remote_qpn = atomic_load(&f->qpn),
                           .remote_qkey = QKEY};
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
        g_assert_cmpint(vg_ud_to_rts(qp, QKEY), ==, 0);
        vg_ring_recv(qp);
        if (i % 3 == 0) {
            vgt_expect(cq, i, PVRDMA_WC_SUCCESS);
            got++;
        }
        if (i % 2) {
            g_assert_cmpint(vg_qp_to_reset(qp), ==, 0);
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
        recover(p.s[0].qp);
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

    ud_options(&o, STOCK);
    vgt_side_open(&s[0], 0, &o, 0);
    g_assert_cmpint(vg_ud_to_rts(s[0].qp, QKEY), ==, 0);
    for (unsigned i = 0; i < vgt_rounds(20); i++) {
        vgt_side_open(&s[1], 1, &o, 1);
        g_assert_cmpint(vg_ud_to_rts(s[1].qp, QKEY), ==, 0);
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

    ud_options(&o, EXTENDED);
    vgt_side_open(&s[0], 0, &o, 0);
    vgt_side_open(&s[1], 1, &o, 1);
    for (unsigned i = 0; i < 2; i++) {
        g_assert_cmpint(vg_ud_to_rts(s[i].qp, QKEY), ==, 0);
    }
    vgt_pair_open(&p, 2, 2, NULL);
    g_assert_cmpuint(vgt_worker_of(2), ==, vgt_worker_of(0));
    thread = flood_start(&f, &s[0], &s[1]);
    for (unsigned i = 0; i < vgt_rounds(2000); i++) {
        int64_t t = vg_now_ns();
        double took;

        vgt_send(&p.s[0], i, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p.s[1], 0);
        vgt_expect(p.s[0].scq, i, PVRDMA_WC_SUCCESS);
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
    static const char *const keys[4] = {"addresses=any", "addresses=any", "",
                                        "network=other\naddresses=any"};
    struct vg_daemon_opts o = {.n_vms = 4, .poll_us = -1, .workers = 2, .keys = keys};
    static const struct {
        const char *name;
        void (*run)(gconstpointer);
    } both[] = {
        {"exchange", test_exchange},
        {"loopback", test_loopback},
        {"qkey", test_qkey},
        {"no-receive", test_no_receive},
        {"small-buffer", test_small_buffer},
        {"bad-receive", test_bad_receive},
        {"bad-list", test_bad_list},
        {"pieces", test_pieces},
        {"srq", test_srq},
        {"source-gone", test_source_gone},
        {"no-qp", test_no_qp},
        {"address-handle", test_address_handle},
        {"bad-request", test_bad_request},
        {"garbage", test_garbage},
        {"signals", test_signals},
        {"states", test_states},
        {"destroy-under-flood", test_destroy_under_flood},
        {"unbind-under-flood", test_unbind_under_flood},
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
    g_test_add_func("/ud/comes-and-goes", test_comes_and_goes);
    g_test_add_func("/ud/inline", test_inline);
    g_test_add_func("/ud/many-receivers", test_many_receivers);
    g_test_add_func("/ud/kill-under-flood", test_kill_under_flood);
    g_test_add_func("/ud/flood-starves-nobody", test_flood_starves_nobody);
    return vgt_run();
}
