/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Two virtual guests whose messages go over an RDMA NIC: each operation and size, shared
 * receive queues, a receiver that is not ready, what is refused.
 *
 *   nic-guests DIR0 DIR1
 *
 * Somebody else has started the daemons (tests/l1): that of DIR0 has VM vm0 with address
 * 10.0.0.1 of network "lan", that of DIR1 vm1 with 10.0.0.2; sockets are DIR/VM.sock and
 * DIR/control.  Both may be one.  First messages may go another way; what is tested
 * begins when all go over the NIC, and has to end so.
 */
#include <stdlib.h>

#include "numbered.h"

#define LIMIT_S 900 /* of all: the host may be emulated on a slow machine */
#define LEN     (2u << 20)
#define FAR     (1u << 20) /* where responses, and messages of vm1, are */

static struct vg_daemon host[2];

static struct vgt_opts opts_of(gconstpointer style)
{
    struct vgt_opts o = vgt_opts_of(style);

    o.daemon[0] = &host[0];
    o.daemon[1] = &host[1];
    o.mr_len = LEN;
    return o;
}

/* All queue pairs of @g that are connected go over the NIC. */
static bool all_by_nic(const struct vguest *g)
{
    g_autoptr(JsonNode) list = vg_ctl_json(g->d, "qp list vm%u", g->index);
    JsonArray *rows = json_object_get_array_member(json_node_get_object(list), "qps");
    unsigned n = 0;

    for (guint i = 0; i < json_array_get_length(rows); i++) {
        JsonObject *row = json_array_get_object_element(rows, i);

        if (strcmp(json_object_get_string_member(row, "state"), "RTS") == 0) {
            n++;
            if (strcmp(json_object_get_string_member(row, "transport"), "rnic") != 0) {
                return false;
            }
        }
    }
    return n > 0;
}

/* ---- one message at a time ---- */

static void send_one(struct vgt_pair *p, uint64_t id)
{
    vgt_recv(&p->s[1], id, FAR, 8);
    vgt_send(&p->s[0], id, PVRDMA_WR_SEND, VGT_SIG, 0, 8, NULL, 0);
    vgt_expect(p->s[1].rcq, id, PVRDMA_WC_SUCCESS);
    vgt_expect(p->s[0].scq, id, PVRDMA_WC_SUCCESS);
}

static void until_by_nic(struct vgt_pair *p)
{
    int64_t end = vg_now_ns() + VGT_WAIT_MS * 1000000ll;

    do {
        g_assert_cmpint(vg_now_ns(), <, end);
        send_one(p, 1);
    } while (!all_by_nic(p->s[0].g));
}

static void open_pair(struct vgt_pair *p, gconstpointer style)
{
    struct vgt_opts o = opts_of(style);

    vgt_pair_open(p, 0, 1, &o);
    until_by_nic(p);
}

static void close_pair(struct vgt_pair *p)
{
    send_one(p, 2);
    g_assert_true(all_by_nic(p->s[0].g));
    vgt_pair_close(p);
}

static bool is_received(uint32_t opcode)
{
    return opcode == PVRDMA_WR_SEND || opcode == PVRDMA_WR_SEND_WITH_IMM ||
           opcode == PVRDMA_WR_RDMA_WRITE_WITH_IMM;
}

/* @len bytes, and not one more, from vm0 to vm1; of a READ, the other way. */
static void transfer(struct vgt_pair *p, uint32_t opcode, uint32_t len, uint64_t id)
{
    bool read = opcode == PVRDMA_WR_RDMA_READ,
         send = opcode == PVRDMA_WR_SEND || opcode == PVRDMA_WR_SEND_WITH_IMM;
    struct vgt_side *from = &p->s[read], *to = &p->s[!read];
    uint32_t src = read ? FAR + 3 : 1, dst = read ? 1 : FAR + 3;
    uint8_t *end = VG_MR_HOST(to->mr, dst + len);

    vgt_fill(VG_MR_HOST(from->mr, src), len, id);
    *end = 0x5a;
    if (is_received(opcode)) {
        vgt_recv(&p->s[1], id, FAR + 3, len + 1);
    }
    vgt_send(&p->s[0], id, opcode, VGT_SIG, 1, len, send ? NULL : &p->s[1], FAR + 3);
    if (is_received(opcode)) {
        struct pvrdma_cqe c = vgt_expect(p->s[1].rcq, id, PVRDMA_WC_SUCCESS);

        g_assert_cmpuint(c.byte_len, ==, len);
        if (opcode != PVRDMA_WR_SEND) {
            g_assert_cmpuint(c.imm_data, ==, 0x01020304 + (uint32_t)id);
        }
    }
    vgt_expect(p->s[0].scq, id, PVRDMA_WC_SUCCESS);
    vgt_check(VG_MR_HOST(to->mr, dst), len, id);
    g_assert_cmpuint(*end, ==, 0x5a);
}

static void add_and_swap(struct vgt_pair *p, uint64_t id)
{
    struct pvrdma_sge sge = vg_sge(p->s[0].mr, 8, 8);
    struct vg_wr wr =
        vg_wr_to(id, PVRDMA_WR_ATOMIC_FETCH_AND_ADD, VGT_SIG, &sge, p->s[1].mr, FAR);
    uint64_t *value = (uint64_t *)(void *)VG_MR_HOST(p->s[1].mr, FAR),
             *was = (uint64_t *)(void *)VG_MR_HOST(p->s[0].mr, 8);

    *value = id;
    wr.compare_add = 5;
    g_assert_cmpuint(vg_post_send(p->s[0].qp, &wr, 1), ==, 1);
    vgt_expect(p->s[0].scq, id, PVRDMA_WC_SUCCESS);
    g_assert_cmpuint(*was, ==, id);
    g_assert_cmpuint(*value, ==, id + 5);

    wr.opcode = PVRDMA_WR_ATOMIC_CMP_AND_SWP;
    wr.compare_add = id + 5;
    wr.swap = 7;
    g_assert_cmpuint(vg_post_send(p->s[0].qp, &wr, 1), ==, 1);
    vgt_expect(p->s[0].scq, id, PVRDMA_WC_SUCCESS);
    g_assert_cmpuint(*was, ==, id + 5);
    g_assert_cmpuint(*value, ==, 7);
}

static void test_sizes(gconstpointer style)
{
    /* About the borders of frames (docs/rnic.md), of receives, of turns. */
    static const uint32_t sizes[] = {0,    1,     8,     4000,  4095,   4096,   4097,
                                     8200, 16384, 65528, 65536, 100001, 262145, 1000000};
    static const uint32_t ops[] = {PVRDMA_WR_SEND, PVRDMA_WR_SEND_WITH_IMM,
                                   PVRDMA_WR_RDMA_WRITE, PVRDMA_WR_RDMA_WRITE_WITH_IMM,
                                   PVRDMA_WR_RDMA_READ};
    struct vgt_pair p;
    uint64_t id = 100;

    open_pair(&p, style);
    for (unsigned i = 0; i < G_N_ELEMENTS(sizes); i++) {
        for (unsigned k = 0; k < G_N_ELEMENTS(ops); k++) {
            transfer(&p, ops[k], sizes[i], id++);
        }
        add_and_swap(&p, id++);
    }
    close_pair(&p);
}

/* ---- many ---- */

static void test_mixed(gconstpointer style)
{
    struct vgt_opts o = opts_of(style);
    int64_t end = vg_now_ns() + VGT_WAIT_MS * 1000000ll;
    struct vgt_traffic t;

    vgt_traffic_open(&t, 0, 1, 4, 8, 20000, &o);
    do {
        g_assert_cmpint(vg_now_ns(), <, end);
        vgt_traffic_run(&t, 10);
    } while (!all_by_nic(t.s[0].g) || !all_by_nic(t.s[1].g));
    vgt_traffic_run(&t, 100);
    g_assert_true(all_by_nic(t.s[0].g) && all_by_nic(t.s[1].g));
    vgt_traffic_close(&t);
}

static void test_srq(gconstpointer style)
{
    struct vgt_opts o = opts_of(style);
    int64_t end = vg_now_ns() + VGT_WAIT_MS * 1000000ll;
    struct numbered n;

    numbered_open(&n, 0, 1, PVRDMA_QPT_RC, true, &o);
    do {
        g_assert_cmpint(vg_now_ns(), <, end);
        numbered_run(&n, n.arrived + 20);
    } while (!all_by_nic(n.p.s[0].g));
    numbered_run(&n, n.arrived + 400);
    numbered_end(&n);
    g_assert_true(all_by_nic(n.p.s[0].g));
    numbered_close(&n);
}

/* ---- what does not succeed at once, or at all ---- */

static void fails(struct vgt_pair *p, uint64_t id, enum pvrdma_wc_status status)
{
    struct vg_conn c = {.zero_counts = true,
                        .retry_cnt = 7,
                        .rnr_retry = 2,
                        .max_rd_atomic = 4,
                        .max_dest_rd_atomic = 4,
                        .min_rnr_timer = 20}; /* 10 ms */

    vgt_expect(p->s[0].scq, id, status);
    vgt_pair_reconnect(p, &c);
    until_by_nic(p);
}

static void test_failures(gconstpointer style)
{
    struct pvrdma_sge sge;
    struct vg_wr wr;
    struct vgt_pair p;

    open_pair(&p, style);
    /* rnr_retry is 7: it waits, for ever. */
    vgt_fill(VG_MR_HOST(p.s[0].mr, 0), 3000, 10);
    vgt_send(&p.s[0], 10, PVRDMA_WR_SEND, VGT_SIG, 0, 3000, NULL, 0);
    vgt_expect_none(p.s[0].scq, 50);
    vgt_recv(&p.s[1], 10, FAR, 3000);
    vgt_expect(p.s[1].rcq, 10, PVRDMA_WC_SUCCESS);
    vgt_expect(p.s[0].scq, 10, PVRDMA_WC_SUCCESS);
    vgt_check(VG_MR_HOST(p.s[1].mr, FAR), 3000, 10);

    /* A key that is none; then a message that is too long, which the other end hears of,
     * too; then a receiver that is not ready for long. */
    sge = vg_sge(p.s[0].mr, 0, 100);
    wr = vg_wr_to(11, PVRDMA_WR_RDMA_WRITE, 0, &sge, p.s[1].mr, 0);
    wr.rkey ^= 0x100000;
    g_assert_cmpuint(vg_post_send(p.s[0].qp, &wr, 1), ==, 1);
    fails(&p, 11, PVRDMA_WC_REM_ACCESS_ERR);

    vgt_recv(&p.s[1], 12, FAR, 99);
    vgt_send(&p.s[0], 12, PVRDMA_WR_SEND, 0, 0, 100, NULL, 0);
    vgt_expect(p.s[1].rcq, 12, PVRDMA_WC_LOC_LEN_ERR);
    fails(&p, 12, PVRDMA_WC_REM_INV_REQ_ERR);

    vgt_send(&p.s[0], 13, PVRDMA_WR_SEND, 0, 0, 100, NULL, 0);
    fails(&p, 13, PVRDMA_WC_RNR_RETRY_EXC_ERR);
    close_pair(&p);
}

int main(int argc, char **argv)
{
    static const struct vgt_both tests[] = {{"sizes", test_sizes},
                                            {"mixed", test_mixed},
                                            {"srq", test_srq},
                                            {"failures", test_failures}};

    vgt_init(&argc, &argv, LIMIT_S);
    if (argc != 3) {
        g_printerr("usage: nic-guests DIR0 DIR1\n");
        return 2;
    }
    for (unsigned i = 0; i < 2; i++) {
        host[i] = (struct vg_daemon){
            .n_vms = 2, .dir = argv[1 + i], .log = (char *)"/dev/null"};
        host[i].control = g_build_filename(argv[1 + i], "control", NULL);
    }
    vgt_add_both("nic-guests", tests, G_N_ELEMENTS(tests));
    return g_test_run();
}
