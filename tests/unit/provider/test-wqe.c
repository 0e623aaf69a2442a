/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Unit test of guest-provider/wqe.h: each operation's WQE byte for byte, in a
 * slot full of old bytes; sizes, limits, inline data; completion numbering.
 */
#include <glib.h>

#include "wqe.h"

#define SLOT 1024

static union {
    struct pvrdma_sq_wqe_hdr hdr;
    struct pvrdma_rq_wqe_hdr recv;
    uint8_t byte[SLOT];
} slot;

static const struct pv_wqe_limits limits = {.max_sge = 4, .max_inline = 128};
static struct ibv_sge sges[8];

static struct ibv_send_wr wr_of(enum ibv_wr_opcode opcode, unsigned flags, int num_sge)
{
    struct ibv_send_wr wr = {
        .wr_id = 0x1122334455667788,
        .sg_list = sges,
        .num_sge = num_sge,
        .opcode = opcode,
        .send_flags = flags,
    };

    memset(&slot, 0xee, sizeof(slot));
    for (unsigned i = 0; i < G_N_ELEMENTS(sges); i++) {
        sges[i] = (struct ibv_sge){0x1000 + i, 10 + i, 0x500 + i};
    }
    return wr;
}

static int build(const struct ibv_send_wr *wr)
{
    return pv_wqe_send(&slot.hdr, &limits, false, wr);
}

static uint32_t u32_at(unsigned off)
{
    uint32_t v;

    memcpy(&v, &slot.byte[off], 4);
    return v;
}

static uint64_t u64_at(unsigned off)
{
    uint64_t v;

    memcpy(&v, &slot.byte[off], 8);
    return v;
}

static void expect_head(uint32_t opcode, uint32_t flags, uint32_t imm, uint32_t nsge)
{
    g_assert_cmphex(u64_at(0), ==, 0x1122334455667788);
    g_assert_cmpuint(u32_at(8), ==, nsge);
    g_assert_cmpuint(u32_at(12), ==, 0);
    g_assert_cmpuint(u32_at(16), ==, opcode);
    g_assert_cmpuint(u32_at(20), ==, flags);
    g_assert_cmphex(u32_at(24), ==, imm);
    g_assert_cmpuint(u32_at(28), ==, 0);
}

static void expect_zero(unsigned from, unsigned to)
{
    for (unsigned i = from; i < to; i++) {
        g_assert_cmpuint(slot.byte[i], ==, 0);
    }
}

static void expect_sges(unsigned off, unsigned n)
{
    g_assert_cmpint(memcmp(&slot.byte[off], sges, n * 16), ==, 0);
    g_assert_cmpuint(slot.byte[off + n * 16], ==, 0xee);
}

static void test_send(void)
{
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND, IBV_SEND_SIGNALED, 1);

    wr.imm_data = 0xdeadbeef; /* must not get through */
    wr.wr.rdma.remote_addr = ~0ull;
    g_assert_cmpint(build(&wr), ==, 0);
    expect_head(2, 2, 0, 1);
    expect_zero(32, 80);
    expect_sges(80, 1);

    wr = wr_of(IBV_WR_SEND_WITH_IMM, IBV_SEND_SOLICITED | IBV_SEND_FENCE, 4);
    wr.imm_data = 0x01020304;
    g_assert_cmpint(build(&wr), ==, 0);
    expect_head(3, 1 | 4, 0x01020304, 4);
    expect_zero(32, 80);
    expect_sges(80, 4);
}

static void test_rdma(void)
{
    static const enum ibv_wr_opcode ops[] = {
        IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ};

    for (unsigned i = 0; i < G_N_ELEMENTS(ops); i++) {
        struct ibv_send_wr wr = wr_of(ops[i], 0, 2);
        bool imm = ops[i] == IBV_WR_RDMA_WRITE_WITH_IMM;

        wr.imm_data = 0x99;
        wr.wr.rdma.remote_addr = 0xabcdef0123456789;
        wr.wr.rdma.rkey = 0x77;
        g_assert_cmpint(build(&wr), ==, 0);
        expect_head(ops[i], 0, imm ? 0x99 : 0, 2);
        g_assert_cmphex(u64_at(32), ==, 0xabcdef0123456789);
        g_assert_cmphex(u32_at(40), ==, 0x77);
        expect_zero(44, 80);
        expect_sges(80, 2);
    }
}

static void test_atomic(void)
{
    struct ibv_send_wr wr = wr_of(IBV_WR_ATOMIC_CMP_AND_SWP, IBV_SEND_SIGNALED, 1);

    wr.wr.atomic.remote_addr = 0x1234;
    wr.wr.atomic.compare_add = 5;
    wr.wr.atomic.swap = 6;
    wr.wr.atomic.rkey = 7;
    g_assert_cmpint(build(&wr), ==, 0);
    expect_head(5, 2, 0, 1);
    g_assert_cmphex(u64_at(32), ==, 0x1234);
    g_assert_cmphex(u64_at(40), ==, 5);
    g_assert_cmphex(u64_at(48), ==, 6);
    g_assert_cmphex(u32_at(56), ==, 7);
    expect_zero(60, 80);

    wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
    g_assert_cmpint(build(&wr), ==, 0);
    expect_head(6, 2, 0, 1);
    g_assert_cmphex(u64_at(40), ==, 5);
    g_assert_cmphex(u64_at(48), ==, 0);
}

static void test_refused(void)
{
    static const enum ibv_wr_opcode ops[] = {IBV_WR_LOCAL_INV, IBV_WR_BIND_MW,
                                             IBV_WR_SEND_WITH_INV, IBV_WR_TSO,
                                             (enum ibv_wr_opcode)99};
    struct ibv_send_wr wr;

    for (unsigned i = 0; i < G_N_ELEMENTS(ops); i++) {
        wr = wr_of(ops[i], 0, 1);
        g_assert_cmpint(build(&wr), ==, EINVAL);
    }
    wr = wr_of(IBV_WR_SEND, 0, 5);
    g_assert_cmpint(build(&wr), ==, EINVAL);
    wr.num_sge = -1;
    g_assert_cmpint(build(&wr), ==, EINVAL);
    wr = wr_of(IBV_WR_RDMA_READ, IBV_SEND_INLINE, 1);
    g_assert_cmpint(build(&wr), ==, EINVAL);
}

static void test_no_data(void)
{
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND, 0, 0);

    wr.sg_list = NULL;
    g_assert_cmpint(build(&wr), ==, 0);
    expect_head(2, 0, 0, 0);
    g_assert_cmpuint(slot.byte[80], ==, 0xee);
}

static void test_inline(void)
{
    static const struct pv_wqe_limits none = {.max_sge = 4, .max_inline = 0};
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND, IBV_SEND_INLINE | IBV_SEND_SIGNALED, 3);
    uint8_t data[200];

    for (unsigned i = 0; i < sizeof(data); i++) {
        data[i] = i;
    }
    sges[0] = (struct ibv_sge){(uintptr_t)data, 50, 0xbad};
    sges[1] = (struct ibv_sge){(uintptr_t)data + 50, 0, 0xbad};
    sges[2] = (struct ibv_sge){(uintptr_t)data + 50, 78, 0xbad};
    g_assert_cmpint(build(&wr), ==, 0);
    g_assert_cmpuint(u32_at(8), ==, 0);
    g_assert_cmpuint(u32_at(12), ==, 128);
    g_assert_cmpuint(u32_at(20), ==, 2 | 8);
    expect_zero(32, 80);
    g_assert_cmpint(memcmp(&slot.byte[80], data, 128), ==, 0);
    g_assert_cmpuint(slot.byte[208], ==, 0xee);

    sges[2].length = 79;
    g_assert_cmpint(build(&wr), ==, EINVAL);
    sges[2].length = 0xffffffff;
    g_assert_cmpint(build(&wr), ==, EINVAL);

    /* No inline data granted: only an empty message may carry the flag. */
    g_assert_cmpint(pv_wqe_send(&slot.hdr, &none, false, &wr), ==, EINVAL);
    wr.num_sge = 0;
    g_assert_cmpint(pv_wqe_send(&slot.hdr, &none, false, &wr), ==, 0);
    g_assert_cmpuint(u32_at(20), ==, 2);
}

/* Requests about keys: opcodes of the ABI, not of verbs, and only where they are there.
 */
static void test_keys(void)
{
    static const struct pv_wqe_limits keys = {
        .max_sge = 4, .max_inline = 128, .keys = true};
    struct ibv_mr mr = {.lkey = 0x1234};
    struct ibv_send_wr wr = wr_of(IBV_WR_LOCAL_INV, IBV_SEND_FENCE, 0);

    wr.invalidate_rkey = 0x4455;
    g_assert_cmpint(build(&wr), ==, EINVAL);
    g_assert_cmpint(pv_wqe_send(&slot.hdr, &keys, true, &wr), ==, EINVAL);
    g_assert_cmpint(pv_wqe_send(&slot.hdr, &keys, false, &wr), ==, 0);
    expect_head(10, 1, 0x4455, 0);
    expect_zero(32, 80);
    wr.send_flags = IBV_SEND_INLINE;
    g_assert_cmpint(pv_wqe_send(&slot.hdr, &keys, false, &wr), ==, EINVAL);

    wr = wr_of(IBV_WR_SEND_WITH_INV, IBV_SEND_SIGNALED, 2);
    wr.invalidate_rkey = 0x4456;
    g_assert_cmpint(build(&wr), ==, EINVAL);
    g_assert_cmpint(pv_wqe_send(&slot.hdr, &keys, false, &wr), ==, 0);
    expect_head(8, 2, 0x4456, 2);
    expect_sges(80, 2);

    wr = wr_of(IBV_WR_BIND_MW, IBV_SEND_SIGNALED, 0);
    wr.bind_mw.rkey = 0x901;
    wr.bind_mw.bind_info = (struct ibv_mw_bind_info){
        .mr = &mr, .addr = 0xabcdef, .length = 1ull << 33, .mw_access_flags = 6};
    g_assert_cmpint(build(&wr), ==, EINVAL);
    g_assert_cmpint(pv_wqe_send(&slot.hdr, &keys, false, &wr), ==, 0);
    expect_head(14, 2, 0, 0);
    g_assert_cmphex(u64_at(32), ==, 0xabcdef);
    g_assert_cmphex(u64_at(40), ==, 1ull << 33);
    g_assert_cmphex(u32_at(48), ==, 0x1234);
    g_assert_cmphex(u32_at(52), ==, 6);
    g_assert_cmphex(u32_at(56), ==, 0x901);
    expect_zero(60, 80);
    wr.bind_mw.bind_info.mr = NULL;
    g_assert_cmpint(pv_wqe_send(&slot.hdr, &keys, false, &wr), ==, 0);
    g_assert_cmphex(u32_at(48), ==, 0);
}

static void test_ud(void)
{
    struct ibv_send_wr wr = wr_of(IBV_WR_SEND, 0, 1);
    struct pv_ah ah;

    memset(&ah, 0, sizeof(ah));
    memset(&ah.av, 0x5a, sizeof(ah.av));
    wr.wr.ud.ah = &ah.ibv_ah;
    wr.wr.ud.remote_qpn = 11;
    wr.wr.ud.remote_qkey = 22;
    g_assert_cmpint(pv_wqe_send(&slot.hdr, &limits, true, &wr), ==, 0);
    g_assert_cmpuint(u32_at(32), ==, 11);
    g_assert_cmpuint(u32_at(36), ==, 22);
    for (unsigned i = 40; i < 80; i++) {
        g_assert_cmpuint(slot.byte[i], ==, 0x5a);
    }
    wr.opcode = IBV_WR_RDMA_WRITE;
    g_assert_cmpint(pv_wqe_send(&slot.hdr, &limits, true, &wr), ==, EINVAL);
}

static void test_recv(void)
{
    struct ibv_recv_wr wr = {.wr_id = 42, .sg_list = sges, .num_sge = 2};

    wr_of(IBV_WR_SEND, 0, 0); /* fills sges and the slot */
    g_assert_cmpint(pv_wqe_recv(&slot.recv, 2, &wr), ==, 0);
    g_assert_cmpuint(u64_at(0), ==, 42);
    g_assert_cmpuint(u32_at(8), ==, 2);
    g_assert_cmpuint(u32_at(12), ==, 0);
    expect_sges(16, 2);
    wr.num_sge = 3;
    g_assert_cmpint(pv_wqe_recv(&slot.recv, 2, &wr), ==, EINVAL);
    wr.num_sge = -1;
    g_assert_cmpint(pv_wqe_recv(&slot.recv, 2, &wr), ==, EINVAL);
}

static void test_sizes(void)
{
    g_assert_cmpuint(pv_sq_wqe_size(1, 0), ==, 128);
    g_assert_cmpuint(pv_sq_wqe_size(3, 0), ==, 128);
    g_assert_cmpuint(pv_sq_wqe_size(4, 0), ==, 256);
    g_assert_cmpuint(pv_sq_wqe_size(1, 48), ==, 128);
    g_assert_cmpuint(pv_sq_wqe_size(1, 49), ==, 256);
    g_assert_cmpuint(pv_sq_wqe_size(1, 432), ==, 512);
    g_assert_cmpuint(pv_rq_wqe_size(1), ==, 32);
    g_assert_cmpuint(pv_rq_wqe_size(3), ==, 64);
    g_assert_cmpuint(pv_rq_wqe_size(4), ==, 128);
    /* Growing the inline data into the rounding must not change the size. */
    for (uint32_t sge = 1; sge <= 32; sge++) {
        for (uint32_t want = 0; want <= 432; want++) {
            uint32_t size = pv_sq_wqe_size(sge, want);
            uint32_t grant = MIN(size - 80, 432);

            g_assert_cmpuint(grant, >=, want);
            g_assert_cmpuint(pv_sq_wqe_size(sge, grant), ==, size);
        }
    }
}

static void test_completions(void)
{
    g_assert_cmpint(pv_wc_opcode(0), ==, IBV_WC_SEND);
    g_assert_cmpint(pv_wc_opcode(4), ==, IBV_WC_FETCH_ADD);
    g_assert_cmpint(pv_wc_opcode(6), ==, IBV_WC_TSO);
    g_assert_cmpint(pv_wc_opcode(7), ==, IBV_WC_LOCAL_INV);
    g_assert_cmpint(pv_wc_opcode(128), ==, IBV_WC_RECV);
    g_assert_cmpint(pv_wc_opcode(129), ==, IBV_WC_RECV_RDMA_WITH_IMM);
    g_assert_cmpuint(pv_wc_flags(3), ==, IBV_WC_GRH | IBV_WC_WITH_IMM);
    g_assert_cmpuint(pv_wc_flags(4), ==, IBV_WC_WITH_INV);
    g_assert_cmpuint(pv_wc_flags(8), ==, IBV_WC_IP_CSUM_OK);
    g_assert_cmpuint(pv_wc_flags(0x70), ==, 0);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/provider/wqe/send", test_send);
    g_test_add_func("/provider/wqe/rdma", test_rdma);
    g_test_add_func("/provider/wqe/atomic", test_atomic);
    g_test_add_func("/provider/wqe/refused", test_refused);
    g_test_add_func("/provider/wqe/no-data", test_no_data);
    g_test_add_func("/provider/wqe/inline", test_inline);
    g_test_add_func("/provider/wqe/ud", test_ud);
    g_test_add_func("/provider/wqe/keys", test_keys);
    g_test_add_func("/provider/wqe/recv", test_recv);
    g_test_add_func("/provider/wqe/sizes", test_sizes);
    g_test_add_func("/provider/wqe/completions", test_completions);
    return g_test_run();
}
