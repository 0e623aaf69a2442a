/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: the operations that work.  Two virtual guests (or one with
 * itself) exchange every kind of message, around every size limit.
 */
#include "vgtest.h"

#include <unistd.h>

#define MIB   (1024u * 1024)
#define SLICE 65536u

static void test_queries(void)
{
    struct vguest *g = vguest_new(vgt_daemon, 0, NULL);
    const struct pvrdma_caps *c = &g->dsr->caps;
    struct pvrdma_port_attr port;
    uint16_t pkey = 0;

    /* What the stock driver and provider need; pvrdma-abi: caps. */
    g_assert_cmpuint(c->max_qp, >=, 2);
    g_assert_cmpuint(c->max_qp, <=, 65535);
    g_assert_cmpuint(c->max_uar, >=, 2);
    g_assert_cmpuint(c->max_uar & (c->max_uar - 1), ==, 0);
    g_assert_cmpuint(c->max_sge, >=, 1);
    g_assert_cmpuint(c->max_sge_rd, >=, 1);
    g_assert_cmpuint(c->max_cqe, >=, 2);
    g_assert_cmpuint(c->phys_port_cnt, ==, 1);
    g_assert_cmpuint(c->gid_tbl_len, >=, 1);
    g_assert_cmpuint(c->max_pkeys, >=, 1);
    g_assert_cmpuint(c->max_srq, >=, 2);
    g_assert_cmpuint(c->atomic_ops, ==, PVRDMA_ATOMIC_OP_CAS | PVRDMA_ATOMIC_OP_FAA);
    g_assert_cmpuint(c->node_guid, !=, 0);

    g_assert_cmpint(vg_query_port(g, 1, &port), ==, 0);
    g_assert_cmpuint(port.state, ==, PVRDMA_PORT_ACTIVE);
    g_assert_cmpuint(port.phys_state, ==, PVRDMA_PHYS_LINK_UP);
    g_assert_cmpuint(port.max_msg_sz, ==, 0x80000000u);
    g_assert_cmpuint(port.gid_tbl_len, ==, c->gid_tbl_len);
    g_assert_cmpuint(port.pkey_tbl_len, >=, 1);
    g_assert_cmpint(vg_query_port(g, 0, NULL), >, 0);
    g_assert_cmpint(vg_query_port(g, 2, NULL), >, 0);

    g_assert_cmpint(vg_query_pkey(g, 0, &pkey), ==, 0);
    g_assert_cmpuint(pkey, ==, 0xffff);
    g_assert_cmpint(vg_query_pkey(g, 255, &pkey), >, 0);

    /* ACTIVATE again is harmless; the netdev's "up" is UNQUIESCE. */
    vg_reg_write(g, PVRDMA_REG_CTL, PVRDMA_CTL_UNQUIESCE);
    g_assert_cmpuint(vg_reg_read(g, PVRDMA_REG_ERR), ==, 0);
    vguest_free(g);
}

/* The first milestone. */
static void test_send(const void *data)
{
    enum vg_db_mode db = GPOINTER_TO_UINT(data);
    struct vgt_opts o = {.guest = {{.db = db}, {.db = db}}};
    struct vgt_pair p;
    struct pvrdma_cqe c;

    vgt_pair_open(&p, 0, 1, &o);
    vgt_fill(VG_MR_HOST(p.s[0].mr, 100), 5000, 1);
    vgt_recv(&p.s[1], 11, 333, 6000);
    vgt_send(&p.s[0], 22, PVRDMA_WR_SEND, VGT_SIG, 100, 5000, NULL, 0);
    c = vgt_expect(p.s[1].rcq, 11, PVRDMA_WC_SUCCESS);
    g_assert_cmpuint(c.opcode, ==, PVRDMA_WC_RECV);
    g_assert_cmpuint(c.byte_len, ==, 5000);
    g_assert_cmpuint(c.qp, ==, p.s[1].qp->handle);
    g_assert_cmpuint(c.wc_flags & PVRDMA_WC_FLAG_IMM, ==, 0);
    vgt_check(VG_MR_HOST(p.s[1].mr, 333), 5000, 1);
    g_assert_cmpuint(*VG_MR_HOST(p.s[1].mr, 5333), ==, 0);
    c = vgt_expect(p.s[0].scq, 22, PVRDMA_WC_SUCCESS);
    g_assert_cmpuint(c.opcode, ==, PVRDMA_WC_SEND);
    g_assert_cmpuint(c.qp, ==, p.s[0].qp->handle);
    vgt_pair_close(&p);
    vgt_assert_no_objects("vm0");
    vgt_assert_no_objects("vm1");
}

/* ---- each operation, what both sides see ---- */

static void check_with_imm(struct vgt_pair *p)
{
    struct pvrdma_cqe c;

    vgt_fill(VG_MR_HOST(p->s[0].mr, 0), 700, 2);
    vgt_recv(&p->s[1], 1, 0, 1000);
    vgt_send(&p->s[0], 2, PVRDMA_WR_SEND_WITH_IMM, VGT_SIG, 0, 700, NULL, 0);
    c = vgt_expect(p->s[1].rcq, 1, PVRDMA_WC_SUCCESS);
    g_assert_cmpuint(c.opcode, ==, PVRDMA_WC_RECV);
    g_assert_cmpuint(c.byte_len, ==, 700);
    g_assert_cmpuint(c.wc_flags & PVRDMA_WC_FLAG_IMM, ==, PVRDMA_WC_FLAG_IMM);
    g_assert_cmpuint(c.imm_data, ==, 0x01020306);
    vgt_check(VG_MR_HOST(p->s[1].mr, 0), 700, 2);
    vgt_expect(p->s[0].scq, 2, PVRDMA_WC_SUCCESS);
}

static void check_write(struct vgt_pair *p)
{
    struct pvrdma_cqe c;

    vgt_fill(VG_MR_HOST(p->s[0].mr, 8), 9000, 3);
    vgt_send(&p->s[0], 3, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 8, 9000, &p->s[1], 4001);
    c = vgt_expect(p->s[0].scq, 3, PVRDMA_WC_SUCCESS);
    g_assert_cmpuint(c.opcode, ==, PVRDMA_WC_RDMA_WRITE);
    vgt_check(VG_MR_HOST(p->s[1].mr, 4001), 9000, 3);

    /* With immediate: takes a receive WQE, none of its memory. */
    vgt_fill(VG_MR_HOST(p->s[0].mr, 8), 9000, 4);
    memset(VG_MR_HOST(p->s[1].mr, 50000), 0x55, 64);
    vgt_recv(&p->s[1], 33, 50000, 64);
    vgt_send(&p->s[0], 4, PVRDMA_WR_RDMA_WRITE_WITH_IMM, VGT_SIG, 8, 9000, &p->s[1],
             4001);
    c = vgt_expect(p->s[1].rcq, 33, PVRDMA_WC_SUCCESS);
    g_assert_cmpuint(c.opcode, ==, PVRDMA_WC_RECV_RDMA_WITH_IMM);
    g_assert_cmpuint(c.byte_len, ==, 9000);
    g_assert_cmpuint(c.imm_data, ==, 0x01020308);
    g_assert_cmpuint(c.wc_flags & PVRDMA_WC_FLAG_IMM, ==, PVRDMA_WC_FLAG_IMM);
    vgt_check(VG_MR_HOST(p->s[1].mr, 4001), 9000, 4);
    for (unsigned i = 0; i < 64; i++) {
        g_assert_cmpuint(*VG_MR_HOST(p->s[1].mr, 50000 + i), ==, 0x55);
    }
    c = vgt_expect(p->s[0].scq, 4, PVRDMA_WC_SUCCESS);
    g_assert_cmpuint(c.opcode, ==, PVRDMA_WC_RDMA_WRITE);
}

static void check_read(struct vgt_pair *p)
{
    struct pvrdma_cqe c;

    vgt_fill(VG_MR_HOST(p->s[1].mr, 77), 12345, 5);
    vgt_send(&p->s[0], 5, PVRDMA_WR_RDMA_READ, VGT_SIG, 3, 12345, &p->s[1], 77);
    c = vgt_expect(p->s[0].scq, 5, PVRDMA_WC_SUCCESS);
    g_assert_cmpuint(c.opcode, ==, PVRDMA_WC_RDMA_READ);
    g_assert_cmpuint(c.byte_len, ==, 12345);
    vgt_check(VG_MR_HOST(p->s[0].mr, 3), 12345, 5);
}

static uint64_t atomic_op(struct vgt_pair *p, uint32_t opcode, uint64_t a, uint64_t swap)
{
    struct pvrdma_sge sge = vg_sge(p->s[0].mr, 4092, 8); /* page border */
    struct vg_wr wr = {.wr_id = 6,
                       .opcode = opcode,
                       .flags = VGT_SIG,
                       .remote_addr = p->s[1].mr->buf->va + 1600,
                       .rkey = p->s[1].mr->rkey,
                       .compare_add = a,
                       .swap = swap,
                       .nsge = 1,
                       .sge = &sge};
    struct pvrdma_cqe c;
    uint64_t old;

    g_assert_cmpuint(vg_post_send(p->s[0].qp, &wr, 1), ==, 1);
    c = vgt_expect(p->s[0].scq, 6, PVRDMA_WC_SUCCESS);
    g_assert_cmpuint(c.opcode, ==,
                     opcode == PVRDMA_WR_ATOMIC_CMP_AND_SWP ? PVRDMA_WC_COMP_SWAP
                                                            : PVRDMA_WC_FETCH_ADD);
    g_assert_cmpuint(c.byte_len, ==, 8);
    memcpy(&old, VG_MR_HOST(p->s[0].mr, 4092), 8);
    return old;
}

static void check_atomics(struct vgt_pair *p)
{
    uint64_t *target = (uint64_t *)VG_MR_HOST(p->s[1].mr, 1600);

    *target = 1000;
    g_assert_cmpuint(atomic_op(p, PVRDMA_WR_ATOMIC_FETCH_AND_ADD, 7, 0), ==, 1000);
    g_assert_cmpuint(*target, ==, 1007);
    g_assert_cmpuint(atomic_op(p, PVRDMA_WR_ATOMIC_FETCH_AND_ADD, -8ull, 0), ==, 1007);
    g_assert_cmpuint(*target, ==, 999);
    g_assert_cmpuint(atomic_op(p, PVRDMA_WR_ATOMIC_CMP_AND_SWP, 5, 6), ==, 999);
    g_assert_cmpuint(*target, ==, 999);
    g_assert_cmpuint(
        atomic_op(p, PVRDMA_WR_ATOMIC_CMP_AND_SWP, 999, 0x1122334455667788ull), ==, 999);
    g_assert_cmpuint(*target, ==, 0x1122334455667788ull);
}

/* How the two guests are made. */
struct shape {
    unsigned vm[2];
    enum vg_db_mode db[2];
};

static const struct shape two_vms = {{0, 1}, {VG_DB_SHARED, VG_DB_SHARED}};
static const struct shape one_vm = {{0, 0}, {VG_DB_SHARED, VG_DB_SHARED}};
static const struct shape extended = {{0, 1}, {VG_DB_EXT, VG_DB_EXT}};
static const struct shape mixed = {{0, 1}, {VG_DB_EXT, VG_DB_SHARED}};
static const struct shape one_extended = {{0, 0}, {VG_DB_EXT, VG_DB_EXT}};

static void test_ops(const void *data)
{
    const struct shape *s = data;
    struct vgt_opts o = {.guest = {{.db = s->db[0]}, {.db = s->db[1]}}};
    struct vgt_pair p;

    vgt_pair_open(&p, s->vm[0], s->vm[1], &o);
    check_with_imm(&p);
    check_write(&p);
    check_read(&p);
    check_atomics(&p);
    vgt_pair_close(&p);
}

/* ---- extensions ---- */

static void inline_op(struct vgt_pair *p, uint32_t opcode, uint32_t len,
                      enum pvrdma_wc_status status)
{
    static uint64_t id = 1000;
    uint8_t data[512];
    struct vg_wr wr = {.wr_id = ++id,
                       .opcode = opcode,
                       .flags = PVRDMA_SEND_INLINE | VGT_SIG,
                       .inline_data = data,
                       .inline_len = len,
                       .remote_addr = p->s[1].mr->buf->va + 77,
                       .rkey = p->s[1].mr->rkey};

    vgt_fill(data, sizeof(data), id);
    if (opcode == PVRDMA_WR_SEND) {
        vgt_recv(&p->s[1], id, 77, 500);
    }
    g_assert_cmpuint(vg_post_send(p->s[0].qp, &wr, 1), ==, 1);
    vgt_expect(p->s[0].scq, id, status);
    if (status == PVRDMA_WC_SUCCESS) {
        if (opcode == PVRDMA_WR_SEND) {
            struct pvrdma_cqe c = vgt_expect(p->s[1].rcq, id, status);

            g_assert_cmpuint(c.byte_len, ==, len);
        }
        vgt_check(VG_MR_HOST(p->s[1].mr, 77), len, id);
    }
}

static void test_inline(void)
{
    struct vgt_opts o = {.guest = {{.db = VG_DB_EXT}, {.db = VG_DB_EXT}},
                         .qp.max_inline = PVRDMA_EXT_MAX_INLINE};
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, &o);
    for (uint32_t len = 0; len <= PVRDMA_EXT_MAX_INLINE; len++) {
        inline_op(&p, PVRDMA_WR_SEND, len, PVRDMA_WC_SUCCESS);
        inline_op(&p, PVRDMA_WR_RDMA_WRITE, len, PVRDMA_WC_SUCCESS);
    }
    for (uint32_t i = 0; i < 4; i++) {
        static const uint32_t bad[] = {PVRDMA_EXT_MAX_INLINE + 1, 0x7fffffff, 0x80000000u,
                                       0xffffffff};

        inline_op(&p, PVRDMA_WR_RDMA_WRITE, bad[i], PVRDMA_WC_LOC_QP_OP_ERR);
        vgt_pair_reconnect(&p, NULL);
    }
    /* Nothing to take from for a READ. */
    inline_op(&p, PVRDMA_WR_RDMA_READ, 8, PVRDMA_WC_LOC_QP_OP_ERR);
    vgt_pair_close(&p);

    /* Less granted than a WQE could hold. */
    o.qp.max_inline = 17;
    vgt_pair_open(&p, 0, 1, &o);
    inline_op(&p, PVRDMA_WR_SEND, 17, PVRDMA_WC_SUCCESS);
    inline_op(&p, PVRDMA_WR_RDMA_WRITE, 18, PVRDMA_WC_LOC_QP_OP_ERR);
    vgt_pair_close(&p);
}

/* An old program beside a new one, in one context, on one CQ. */
static void test_stock_qp(void)
{
    struct vgt_opts o = {.guest = {{.db = VG_DB_EXT}, {.db = VG_DB_SHARED}},
                         .qp.stock = true};
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, &o);
    for (unsigned i = 0; i < 50; i++) {
        check_with_imm(&p);
        check_write(&p);
        check_read(&p);
    }
    vgt_pair_close(&p);
}

/* ---- completions asked for or not ---- */

static void test_signaling(void)
{
    struct vgt_opts o = {.qp.send_wr = 8};
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, &o);
    /* Through the ring several times, one CQE in four. */
    for (uint64_t i = 0; i < 64; i++) {
        bool sig = i % 4 == 3;

        vgt_send(&p.s[0], i, PVRDMA_WR_RDMA_WRITE, sig ? VGT_SIG : 0, 0, 100, &p.s[1], 0);
        if (sig) {
            vgt_expect(p.s[0].scq, i, PVRDMA_WC_SUCCESS);
        }
    }
    vgt_expect_none(p.s[0].scq, VGT_QUIET_MS(20));
    vgt_pair_close(&p);

    o.qp.sq_sig_all = true;
    vgt_pair_open(&p, 0, 1, &o);
    for (uint64_t i = 0; i < 20; i++) {
        vgt_send(&p.s[0], i, PVRDMA_WR_RDMA_WRITE, 0, 0, 100, &p.s[1], 0);
        vgt_expect(p.s[0].scq, i, PVRDMA_WC_SUCCESS);
    }
    vgt_pair_close(&p);
}

/* A list of WRs with one doorbell, in order, each marked. */
static void test_list(void)
{
    struct vgt_opts o = {.qp = {.send_wr = 32, .recv_wr = 32}};
    struct vgt_pair p;
    struct pvrdma_sge ssge[32], rsge[32];
    struct vg_wr swr[32], rwr[32];

    vgt_pair_open(&p, 0, 1, &o);
    for (unsigned round = 0; round < 10; round++) {
        for (unsigned i = 0; i < 32; i++) {
            vgt_fill(VG_MR_HOST(p.s[0].mr, i * 2000), 100 + i, round * 32 + i);
            ssge[i] = vg_sge(p.s[0].mr, i * 2000, 100 + i);
            rsge[i] = vg_sge(p.s[1].mr, i * 2000, 2000);
            swr[i] = vg_wr_of(i, PVRDMA_WR_SEND, VGT_SIG, &ssge[i]);
            rwr[i] = (struct vg_wr){.wr_id = i, .nsge = 1, .sge = &rsge[i]};
        }
        g_assert_cmpuint(vg_post_recv(p.s[1].qp, rwr, 32), ==, 32);
        g_assert_cmpuint(vg_post_send(p.s[0].qp, swr, 32), ==, 32);
        for (unsigned i = 0; i < 32; i++) {
            struct pvrdma_cqe c = vgt_expect(p.s[1].rcq, i, PVRDMA_WC_SUCCESS);

            g_assert_cmpuint(c.byte_len, ==, 100 + i);
            vgt_check(VG_MR_HOST(p.s[1].mr, i * 2000), 100 + i, round * 32 + i);
            vgt_expect(p.s[0].scq, i, PVRDMA_WC_SUCCESS);
        }
    }
    vgt_pair_close(&p);
}

/* READ into a buffer, then a fenced WRITE of that buffer to elsewhere. */
static void test_fence(void)
{
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, NULL);
    for (unsigned i = 0; i < 200; i++) {
        struct pvrdma_sge sge = vg_sge(p.s[0].mr, 0, 70000);
        struct vg_wr wr[2] = {{.wr_id = 1,
                               .opcode = PVRDMA_WR_RDMA_READ,
                               .remote_addr = p.s[1].mr->buf->va,
                               .rkey = p.s[1].mr->rkey,
                               .nsge = 1,
                               .sge = &sge},
                              {.wr_id = 2,
                               .opcode = PVRDMA_WR_RDMA_WRITE,
                               .flags = PVRDMA_SEND_FENCE | VGT_SIG,
                               .remote_addr = p.s[1].mr->buf->va + 500000,
                               .rkey = p.s[1].mr->rkey,
                               .nsge = 1,
                               .sge = &sge}};

        vgt_fill(VG_MR_HOST(p.s[1].mr, 0), 70000, i);
        g_assert_cmpuint(vg_post_send(p.s[0].qp, wr, 2), ==, 2);
        vgt_expect(p.s[0].scq, 2, PVRDMA_WC_SUCCESS);
        vgt_check(VG_MR_HOST(p.s[1].mr, 500000), 70000, i);
    }
    vgt_pair_close(&p);
}

/* ---- sizes ---- */

static void one_size(struct vgt_pair *p, uint32_t opcode, uint32_t len, uint32_t src,
                     uint32_t dst)
{
    static uint64_t seed = 100;
    bool recv = opcode == PVRDMA_WR_SEND;
    bool read = opcode == PVRDMA_WR_RDMA_READ;
    struct vgt_side *from = &p->s[read ? 1 : 0], *to = &p->s[read ? 0 : 1];
    uint8_t *end = VG_MR_HOST(to->mr, dst + len);

    seed++;
    vgt_fill(VG_MR_HOST(from->mr, src), len, seed);
    end[0] = 0x5a;
    if (recv) {
        vgt_recv(&p->s[1], seed, dst, len + 1);
    }
    vgt_send(&p->s[0], seed, opcode, VGT_SIG, read ? dst : src, len,
             recv ? NULL : &p->s[1], read ? src : dst);
    if (recv) {
        struct pvrdma_cqe c = vgt_expect(p->s[1].rcq, seed, PVRDMA_WC_SUCCESS);

        g_assert_cmpuint(c.byte_len, ==, len);
    }
    vgt_expect(p->s[0].scq, seed, PVRDMA_WC_SUCCESS);
    vgt_check(VG_MR_HOST(to->mr, dst), len, seed);
    g_assert_cmpuint(end[0], ==, 0x5a);
}

static void test_sizes(void)
{
    static const uint32_t sizes[] = {0,
                                     1,
                                     2,
                                     7,
                                     8,
                                     9,
                                     63,
                                     64,
                                     65,
                                     255,
                                     1023,
                                     1024,
                                     1025,
                                     4095,
                                     4096,
                                     4097,
                                     8191,
                                     8192,
                                     8193,
                                     SLICE - 1,
                                     SLICE,
                                     SLICE + 1,
                                     2 * SLICE - 1,
                                     2 * SLICE,
                                     2 * SLICE + 1,
                                     1000000};
    static const uint32_t offs[][2] = {{0, 0}, {1, 0}, {0, 1}, {4095, 1}, {17, 4090}};
    static const uint32_t ops[] = {PVRDMA_WR_SEND, PVRDMA_WR_RDMA_WRITE,
                                   PVRDMA_WR_RDMA_READ};
    struct vgt_opts o = {.mr_len = 2 * MIB};
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, &o);
    for (unsigned i = 0; i < G_N_ELEMENTS(sizes); i++) {
        for (unsigned j = 0; j < G_N_ELEMENTS(offs); j++) {
            for (unsigned k = 0; k < G_N_ELEMENTS(ops); k++) {
                one_size(&p, ops[k], sizes[i], offs[j][0], offs[j][1]);
            }
        }
    }
    vgt_pair_close(&p);
}

/* 16 pieces into 16 other pieces, of random lengths and places. */
static void test_many_sge(void)
{
    struct vgt_opts o = {.qp = {.send_sge = 16, .recv_sge = 16}};
    struct vgt_pair p;
    GRand *r = g_rand_new_with_seed(5);

    vgt_pair_open(&p, 0, 1, &o);
    for (unsigned round = 0; round < 200; round++) {
        struct pvrdma_sge ssge[16], rsge[16];
        struct vg_wr wr = {.wr_id = round,
                           .opcode = PVRDMA_WR_SEND,
                           .flags = VGT_SIG,
                           .nsge = 16,
                           .sge = ssge};
        struct vg_wr rwr = {.wr_id = round, .nsge = 16, .sge = rsge};
        uint32_t total = 0, left;
        uint8_t *in, *out;

        for (unsigned i = 0; i < 16; i++) {
            uint32_t len = g_rand_int(r) % (round & 1 ? 9000 : 100);

            ssge[i] = vg_sge(p.s[0].mr, i * 20000 + g_rand_int(r) % 5000, len);
            total += len;
        }
        left = total;
        for (unsigned i = 0; i < 16; i++) {
            uint32_t any = g_rand_int(r) % 9000;
            uint32_t len = i == 15 ? left : MIN(left, any);

            rsge[i] = vg_sge(p.s[1].mr, i * 20000 + g_rand_int(r) % 5000, len);
            left -= len;
        }
        in = g_malloc(total + 1);
        out = g_malloc(total + 1);
        vgt_fill(in, total, round);
        for (unsigned i = 0, at = 0; i < 16; at += ssge[i++].length) {
            memcpy(p.s[0].mr->buf->host + (ssge[i].addr - p.s[0].mr->buf->va), in + at,
                   ssge[i].length);
        }
        g_assert_cmpuint(vg_post_recv(p.s[1].qp, &rwr, 1), ==, 1);
        g_assert_cmpuint(vg_post_send(p.s[0].qp, &wr, 1), ==, 1);
        vgt_expect(p.s[1].rcq, round, PVRDMA_WC_SUCCESS);
        vgt_expect(p.s[0].scq, round, PVRDMA_WC_SUCCESS);
        for (unsigned i = 0, at = 0; i < 16; at += rsge[i++].length) {
            memcpy(out + at, p.s[1].mr->buf->host + (rsge[i].addr - p.s[1].mr->buf->va),
                   rsge[i].length);
        }
        g_assert_cmpmem(out, total, in, total);
        g_free(in);
        g_free(out);
    }
    g_rand_free(r);
    vgt_pair_close(&p);
}

/*
 * 2 GiB in one message: several SGEs over an MR of 1 GiB whose pages repeat
 * every 64 pages; the receiver's do too, so equal offsets must hold equal data.
 */
static void test_huge(void)
{
    const uint32_t real = 64;
    const uint64_t gib = 1ull << 30;
    struct vgt_opts o = {.qp = {.send_wr = 2, .recv_wr = 2}};
    struct vgt_pair p;
    struct vg_mr *mr[2];
    struct pvrdma_sge ssge[3], rsge[4];
    struct vg_wr wr = {
        .wr_id = 1, .opcode = PVRDMA_WR_SEND, .flags = VGT_SIG, .nsge = 3, .sge = ssge};
    struct vg_wr rwr = {.wr_id = 2, .nsge = 4, .sge = rsge};
    struct pvrdma_cqe c;

    vgt_pair_open(&p, 0, 1, &o);
    for (unsigned i = 0; i < 2; i++) {
        mr[i] =
            vg_mr_new(p.s[i].pd, vg_buf_new_alias(p.s[i].g, 0x7e0000000000ull, gib, real),
                      VG_ACCESS_ALL);
    }
    vgt_fill(mr[0]->buf->host, real * PVRDMA_PAGE_SIZE, 77);
    /* All borders are multiples of 64 pages. */
    ssge[0] = vg_sge(mr[0], 0, gib / 2);
    ssge[1] = vg_sge(mr[0], gib / 4, gib / 2);
    ssge[2] = vg_sge(mr[0], 0, gib);
    rsge[0] = vg_sge(mr[1], 0, gib);
    rsge[1] = vg_sge(mr[1], 0, gib / 8);
    rsge[2] = vg_sge(mr[1], gib / 8, gib / 2);
    rsge[3] = vg_sge(mr[1], gib / 2, gib / 2);
    g_assert_cmpuint(vg_post_recv(p.s[1].qp, &rwr, 1), ==, 1);
    g_assert_cmpuint(vg_post_send(p.s[0].qp, &wr, 1), ==, 1);
    c = vgt_expect(p.s[1].rcq, 2, PVRDMA_WC_SUCCESS);
    g_assert_cmpuint(c.byte_len, ==, 0x80000000u);
    vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS);
    vgt_check(mr[1]->buf->host, real * PVRDMA_PAGE_SIZE, 77);

    /* 1 GiB WRITE and READ through one rkey. */
    vgt_fill(mr[0]->buf->host, real * PVRDMA_PAGE_SIZE, 78);
    wr.opcode = PVRDMA_WR_RDMA_WRITE;
    wr.remote_addr = mr[1]->buf->va;
    wr.rkey = mr[1]->rkey;
    wr.nsge = 1;
    wr.sge = &ssge[2];
    g_assert_cmpuint(vg_post_send(p.s[0].qp, &wr, 1), ==, 1);
    vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS);
    vgt_check(mr[1]->buf->host, real * PVRDMA_PAGE_SIZE, 78);
    vgt_fill(mr[1]->buf->host, real * PVRDMA_PAGE_SIZE, 79);
    wr.opcode = PVRDMA_WR_RDMA_READ;
    g_assert_cmpuint(vg_post_send(p.s[0].qp, &wr, 1), ==, 1);
    c = vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS);
    g_assert_cmpuint(c.byte_len, ==, gib);
    vgt_check(mr[0]->buf->host, real * PVRDMA_PAGE_SIZE, 79);
    vg_mr_free(mr[0]);
    vg_mr_free(mr[1]);
    vgt_pair_close(&p);
}

/* ---- shapes ---- */

static void test_bidirectional(const void *data)
{
    const struct shape *s = data;
    struct vgt_opts o = {.guest = {{.db = s->db[0]}, {.db = s->db[1]}}};
    struct vgt_traffic t;

    vgt_traffic_open(&t, s->vm[0], s->vm[1], 16, 8, 16384, &o);
    vgt_traffic_run(&t, 300);
    vgt_traffic_close(&t);
}

static void test_large_both_ways(void)
{
    struct vgt_traffic t;

    vgt_traffic_open(&t, 0, 1, 2, 4, 1 * MIB, NULL);
    vgt_traffic_run(&t, 60);
    vgt_traffic_close(&t);
}

/* One QP connected to its own number. */
static void test_loop_qp(void)
{
    struct vgt_side s;
    struct vgt_opts o = {0};

    vgt_side_open(&s, 0, &o, 0);
    vg_qp_connect(s.qp, s.qp, NULL);
    for (unsigned i = 0; i < 500; i++) {
        vgt_fill(VG_MR_HOST(s.mr, 0), 3000, i);
        vgt_recv(&s, 1, 500000, 3000);
        vgt_send(&s, 2, PVRDMA_WR_SEND, VGT_SIG, 0, 3000, NULL, 0);
        vgt_expect(s.rcq, 1, PVRDMA_WC_SUCCESS);
        vgt_expect(s.scq, 2, PVRDMA_WC_SUCCESS);
        vgt_check(VG_MR_HOST(s.mr, 500000), 3000, i);
        vgt_complete(&s, 3, PVRDMA_WR_RDMA_WRITE, 0, 3000, &s, 600001);
        vgt_check(VG_MR_HOST(s.mr, 600001), 3000, i);
    }
    vgt_side_close(&s);
}

/* Each CQ gets, per round, one send and one receive completion. */
static void cross_collect(struct vg_cq *cq, uint32_t sender, uint32_t receiver)
{
    bool sent = false, received = false;

    for (unsigned i = 0; i < 2; i++) {
        struct pvrdma_cqe c = vgt_expect(cq, 1, PVRDMA_WC_SUCCESS);

        if (c.opcode == PVRDMA_WC_SEND) {
            g_assert_false(sent);
            sent = true;
            g_assert_cmpuint(c.qp, ==, sender);
        } else {
            g_assert_false(received);
            received = true;
            g_assert_cmpuint(c.opcode, ==, PVRDMA_WC_RECV);
            g_assert_cmpuint(c.qp, ==, receiver);
        }
    }
}

/* Two QPs whose send CQ is the other's receive CQ, in both guests. */
static void test_cross_cq(void)
{
    struct vgt_pair p;
    struct vg_qp *qp[2][2];

    vgt_pair_open(&p, 0, 1, NULL);
    for (unsigned i = 0; i < 2; i++) {
        qp[i][0] = vg_qp_new(p.s[i].pd, p.s[i].scq, p.s[i].rcq, NULL);
        qp[i][1] = vg_qp_new(p.s[i].pd, p.s[i].rcq, p.s[i].scq, NULL);
    }
    vg_qp_connect(qp[0][0], qp[1][0], NULL);
    vg_qp_connect(qp[0][1], qp[1][1], NULL);
    for (unsigned round = 0; round < 200; round++) {
        for (unsigned i = 0; i < 8; i++) {
            struct vgt_side *s = &p.s[i & 1];
            struct vg_qp *q = qp[i & 1][i >> 1 & 1];
            struct pvrdma_sge sge = vg_sge(s->mr, i < 4 ? 0 : 4096, 64);
            struct vg_wr wr = vg_wr_of(1, PVRDMA_WR_SEND, VGT_SIG, &sge);

            g_assert_cmpuint(i < 4 ? vg_post_recv(q, &wr, 1) : vg_post_send(q, &wr, 1),
                             ==, 1);
        }
        for (unsigned i = 0; i < 2; i++) {
            cross_collect(p.s[i].scq, qp[i][0]->handle, qp[i][1]->handle);
            cross_collect(p.s[i].rcq, qp[i][1]->handle, qp[i][0]->handle);
        }
    }
    for (unsigned i = 0; i < 2; i++) {
        vg_qp_free(qp[i][0]);
        vg_qp_free(qp[i][1]);
    }
    vgt_pair_close(&p);
}

static void test_many_qps(void)
{
    enum { N = 300 };
    struct vgt_opts o = {.cqe = N};
    struct vg_qp_opts small = {.send_wr = 2, .recv_wr = 2, .contig = true};
    struct vgt_pair p;
    struct vg_qp *qp[2][N];

    vgt_pair_open(&p, 0, 1, &o);
    for (unsigned i = 0; i < N; i++) {
        for (unsigned s = 0; s < 2; s++) {
            qp[s][i] = vg_qp_new(p.s[s].pd, p.s[s].scq, p.s[s].rcq, &small);
        }
        vg_qp_connect(qp[0][i], qp[1][i], NULL);
    }
    for (unsigned i = 0; i < N; i++) {
        struct pvrdma_sge sge = vg_sge(p.s[1].mr, i * 64, 64);
        struct vg_wr wr = {.wr_id = i, .nsge = 1, .sge = &sge};

        g_assert_cmpuint(vg_post_recv(qp[1][i], &wr, 1), ==, 1);
    }
    for (unsigned i = 0; i < N; i++) {
        struct pvrdma_sge sge = vg_sge(p.s[0].mr, i * 64, 64);
        struct vg_wr wr = vg_wr_of(i, PVRDMA_WR_SEND, VGT_SIG, &sge);

        vgt_fill(VG_MR_HOST(p.s[0].mr, i * 64), 64, i);
        g_assert_cmpuint(vg_post_send(qp[0][i], &wr, 1), ==, 1);
    }
    for (unsigned i = 0; i < N; i++) {
        struct pvrdma_cqe c;

        g_assert_true(vg_cq_wait(p.s[1].rcq, &c, VGT_WAIT_MS));
        g_assert_cmpuint(c.status, ==, PVRDMA_WC_SUCCESS);
        g_assert_cmpuint(c.qp, ==, qp[1][c.wr_id]->handle);
        vgt_check(VG_MR_HOST(p.s[1].mr, c.wr_id * 64), 64, c.wr_id);
        g_assert_true(vg_cq_wait(p.s[0].scq, &c, VGT_WAIT_MS));
        g_assert_cmpuint(c.status, ==, PVRDMA_WC_SUCCESS);
    }
    for (unsigned i = 0; i < N; i++) {
        vg_qp_free(qp[0][i]);
        vg_qp_free(qp[1][i]);
    }
    vgt_pair_close(&p);
}

/* Kernel objects: UAR page 0, and a DMA MR whose addresses are physical. */
static void test_kernel_objects(void)
{
    struct vgt_opts o = {0};
    struct vgt_pair p;
    struct vg_pd *pd;
    struct vg_cq *cq;
    struct vg_qp *qp, *peer;
    struct vg_mr *dma;
    uint64_t gpa;
    struct pvrdma_sge sge = {0};
    struct vg_wr wr = vg_wr_of(9, PVRDMA_WR_SEND, VGT_SIG, &sge);

    vgt_pair_open(&p, 0, 1, &o);
    pd = vg_pd_new_kernel(p.s[0].g);
    cq = vg_cq_new(pd, 16);
    dma = vg_mr_new_dma(pd);
    qp = vg_qp_new(pd, cq, cq, NULL);
    peer = vg_qp_new(p.s[1].pd, p.s[1].scq, p.s[1].rcq, NULL);
    vg_qp_connect(qp, peer, NULL);
    gpa = vg_alloc_pages(p.s[0].g, 3);
    vgt_fill(vg_ptr(p.s[0].g, gpa), 10000, 55);
    sge = vg_sge(p.s[1].mr, 1, 20000);
    g_assert_cmpuint(vg_post_recv(peer, &wr, 1), ==, 1);
    sge = vg_sge(dma, gpa, 10000);
    g_assert_cmpuint(vg_post_send(qp, &wr, 1), ==, 1);
    vgt_expect(p.s[1].rcq, 9, PVRDMA_WC_SUCCESS);
    vgt_expect(cq, 9, PVRDMA_WC_SUCCESS);
    vgt_check(VG_MR_HOST(p.s[1].mr, 1), 10000, 55);

    /* Its rkey, which reaches all of the guest's memory, opens nothing. */
    sge = vg_sge(p.s[1].mr, 0, 8);
    wr.opcode = PVRDMA_WR_RDMA_WRITE;
    wr.remote_addr = gpa;
    wr.rkey = dma->rkey;
    g_assert_cmpuint(vg_post_send(peer, &wr, 1), ==, 1);
    vgt_expect(p.s[1].scq, 9, PVRDMA_WC_REM_ACCESS_ERR);
    g_assert_cmpuint(vg_qp_state(qp), ==, PVRDMA_QPS_ERR);
    vgt_check(vg_ptr(p.s[0].g, gpa), 10000, 55);
    vg_free_pages(p.s[0].g, gpa, 3);
    vg_qp_free(qp);
    vg_qp_free(peer);
    vg_mr_free(dma);
    vg_cq_free(cq);
    vg_pd_free(pd);
    vgt_pair_close(&p);
}

/* Detach and attach again and again: nothing may stay. */
static void test_reattach(void)
{
    struct vg_usage before;
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, NULL); /* warm up */
    vgt_pair_close(&p);
    vgt_usage_settled(&before);
    for (unsigned i = 0; i < 20; i++) {
        vgt_pair_open(&p, 0, 1, NULL);
        vgt_recv(&p.s[1], 1, 0, 100);
        vgt_send(&p.s[0], 2, PVRDMA_WR_SEND, VGT_SIG, 0, 100, NULL, 0);
        vgt_expect(p.s[1].rcq, 1, PVRDMA_WC_SUCCESS);
        vgt_pair_close(&p);
    }
    vgt_usage_returns(&before);
}

/*
 * A VMM that ends and one that begins may be seen in one turn of the daemon: the new
 * one must not be taken for a second.
 */
static void test_replug(void)
{
    struct vguest *g = vguest_new(vgt_daemon, 0, NULL);

    for (unsigned i = 0; i < 200; i++) {
        vg_disconnect(g);
        g_assert_cmpint(vg_connect(g), ==, 0);
        g_assert_cmpint(vg_attach(g), ==, 0);
    }
    vguest_free(g);
}

int main(int argc, char **argv)
{
    vgt_init(&argc, &argv, 120);
    vgt_daemon = vg_daemon_start(NULL);
    g_test_add_data_func("/basic/send/shared", GUINT_TO_POINTER(VG_DB_SHARED), test_send);
    g_test_add_data_func("/basic/send/reply", GUINT_TO_POINTER(VG_DB_REPLY), test_send);
    g_test_add_data_func("/basic/send/posted", GUINT_TO_POINTER(VG_DB_POSTED), test_send);
    g_test_add_func("/basic/queries", test_queries);
    g_test_add_data_func("/basic/send/extended", GUINT_TO_POINTER(VG_DB_EXT), test_send);
    g_test_add_data_func("/basic/ops/pair", &two_vms, test_ops);
    g_test_add_data_func("/basic/ops/one-vm", &one_vm, test_ops);
    g_test_add_data_func("/basic/ops/extended", &extended, test_ops);
    g_test_add_data_func("/basic/ops/extended-and-stock", &mixed, test_ops);
    g_test_add_data_func("/basic/ops/one-vm-extended", &one_extended, test_ops);
    g_test_add_func("/basic/inline", test_inline);
    g_test_add_func("/basic/stock-qp-in-extended-context", test_stock_qp);
    g_test_add_func("/basic/signaling", test_signaling);
    g_test_add_func("/basic/list", test_list);
    g_test_add_func("/basic/fence", test_fence);
    g_test_add_func("/basic/sizes", test_sizes);
    g_test_add_func("/basic/many-sge", test_many_sge);
    g_test_add_func("/basic/huge", test_huge);
    g_test_add_data_func("/basic/both-ways/pair", &two_vms, test_bidirectional);
    g_test_add_data_func("/basic/both-ways/one-vm", &one_vm, test_bidirectional);
    g_test_add_data_func("/basic/both-ways/extended", &extended, test_bidirectional);
    g_test_add_data_func("/basic/both-ways/extended-and-stock", &mixed,
                         test_bidirectional);
    g_test_add_func("/basic/both-ways/large", test_large_both_ways);
    g_test_add_func("/basic/loop-qp", test_loop_qp);
    g_test_add_func("/basic/cross-cq", test_cross_cq);
    g_test_add_func("/basic/many-qps", test_many_qps);
    g_test_add_func("/basic/kernel-objects", test_kernel_objects);
    g_test_add_func("/basic/reattach", test_reattach);
    g_test_add_func("/basic/replug", test_replug);
    return vgt_run();
}
