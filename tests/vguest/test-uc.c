/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: unreliable connections (UC).  What arrives; what is lost, where it is
 * counted, and that neither side hears of it otherwise; what fails on which side and
 * how it goes on from there; messages that are broken off in the middle.
 *
 * With VGUEST_PATH=tcp a message is complete for its sender when it is on its way; what
 * becomes of it comes later, and may be counted on the other side.
 */
#include "vgtest.h"

#include <sched.h>
#include <string.h>

#define FAR    0x80000u /* offset of what is received */
#define GIB    (1u << 30)
#define BIG_VA 0x7e0000000000ull
#define REAL   256u /* pages behind the gigabyte */

static void uc_options(struct vgt_opts *o, enum vgt_style style)
{
    *o = (struct vgt_opts){.qp = {.type = PVRDMA_QPT_UC}};
    for (unsigned i = 0; i < 2; i++) {
        o->guest[i].db = style == VGT_EXTENDED ? VG_DB_EXT : VG_DB_SHARED;
        /* Room for the page list of a gigabyte in one piece. */
        o->guest[i].high_size = GIB;
    }
}

static void uc_open(struct vgt_pair *p, unsigned a, unsigned b, enum vgt_style style)
{
    struct vgt_opts o;

    uc_options(&o, style);
    vgt_pair_open(p, a, b, &o);
}

static bool is_tcp(void)
{
    return vgt_by_streams();
}

/* Of a message that takes long, however it goes. */
static uint32_t huge(void)
{
    return is_tcp() ? GIB / 8 : GIB;
}

static int64_t dropped(unsigned vm, const char *why)
{
    g_autofree char *name = g_strdup_printf("vm%u", vm);

    return vgt_counter(name, "uc_dropped", why);
}

/* Lost for @why; of those for nobody, whoever has counted them. */
static int64_t lost(unsigned vm, const char *why)
{
    bool either = is_tcp() && strcmp(why, "to_nobody") == 0;

    return dropped(vm, why) + (either ? dropped(1 - vm, why) : 0);
}

/* Exactly @n are, or will be. */
static void expect_lost(unsigned vm, const char *why, int64_t n)
{
    int64_t until = vg_now_ns() + VGT_WAIT_MS * 1000000ll;

    while (is_tcp() && lost(vm, why) < n && vg_now_ns() < until) {
        g_usleep(1000);
    }
    g_assert_cmpint(lost(vm, why), ==, n);
}

/* The bytes of message @seed are there, or come. */
static void expect_data(const void *at, uint32_t len, uint64_t seed)
{
    int64_t until = vg_now_ns() + VGT_WAIT_MS * 1000000ll;

    while (is_tcp() && !vgt_matches(at, len, seed) && vg_now_ns() < until) {
        g_usleep(100);
    }
    vgt_check(at, len, seed);
}

/* Message of @opcode to FAR, at @to's side. */
static void put(struct vgt_side *from, const struct vgt_side *to, uint64_t wr_id,
                uint32_t opcode, uint32_t len)
{
    bool write =
        opcode == PVRDMA_WR_RDMA_WRITE || opcode == PVRDMA_WR_RDMA_WRITE_WITH_IMM;

    vgt_fill(VG_MR_HOST(from->mr, 0), len, wr_id);
    memset(VG_MR_HOST(to->mr, FAR), 0xee, len + 8);
    vgt_send(from, wr_id, opcode, VGT_SIG, 0, len, write ? to : NULL, FAR);
}

/* It arrives, in receive 500 if it takes one. */
static void passes(struct vgt_side *from, struct vgt_side *to, uint64_t wr_id,
                   uint32_t opcode, uint32_t len)
{
    bool imm =
        opcode == PVRDMA_WR_SEND_WITH_IMM || opcode == PVRDMA_WR_RDMA_WRITE_WITH_IMM;
    bool write =
        opcode == PVRDMA_WR_RDMA_WRITE || opcode == PVRDMA_WR_RDMA_WRITE_WITH_IMM;
    struct pvrdma_cqe c;

    if (opcode != PVRDMA_WR_RDMA_WRITE) {
        vgt_recv(to, 500, FAR, write ? 0 : len);
    }
    put(from, to, wr_id, opcode, len);
    c = vgt_expect(from->scq, wr_id, PVRDMA_WC_SUCCESS);
    g_assert_cmpuint(c.opcode, ==, write ? PVRDMA_WC_RDMA_WRITE : PVRDMA_WC_SEND);
    if (opcode != PVRDMA_WR_RDMA_WRITE) {
        c = vgt_expect(to->rcq, 500, PVRDMA_WC_SUCCESS);
        g_assert_cmpuint(c.opcode, ==,
                         write ? PVRDMA_WC_RECV_RDMA_WITH_IMM : PVRDMA_WC_RECV);
        g_assert_cmpuint(c.byte_len, ==, len);
        g_assert_cmpuint(c.src_qp, ==, from->qp->qpn);
        g_assert_cmpuint(c.qp, ==, to->qp->handle);
        g_assert_cmpuint(c.wc_flags, ==, imm ? PVRDMA_WC_FLAG_IMM : 0);
        g_assert_cmpuint(c.imm_data, ==, imm ? 0x01020304 + (uint32_t)wr_id : 0);
    }
    expect_data(VG_MR_HOST(to->mr, FAR), len, wr_id);
    g_assert_cmpuint(*VG_MR_HOST(to->mr, FAR + len), ==, 0xee);
}

static const uint32_t opcodes[] = {
    PVRDMA_WR_SEND,
    PVRDMA_WR_SEND_WITH_IMM,
    PVRDMA_WR_RDMA_WRITE,
    PVRDMA_WR_RDMA_WRITE_WITH_IMM,
};

/* The sender's completion is a success, the receiver sees nothing. */
static void is_lost(struct vgt_side *from, struct vgt_side *to, uint64_t wr_id,
                    uint32_t opcode, uint32_t len)
{
    put(from, to, wr_id, opcode, len);
    vgt_expect(from->scq, wr_id, PVRDMA_WC_SUCCESS);
    vgt_expect_none(to->rcq, 20);
    for (uint32_t i = 0; i < len; i++) {
        g_assert_cmpuint(*VG_MR_HOST(to->mr, FAR + i), ==, 0xee);
    }
    g_assert_cmpuint(vg_qp_state(from->qp), ==, PVRDMA_QPS_RTS);
}

#define LOST(from, to, vm, why, ...)       \
    do {                                   \
        int64_t before_ = lost(vm, why);   \
                                           \
        is_lost(from, to, __VA_ARGS__);    \
        expect_lost(vm, why, before_ + 1); \
    } while (0)

/* ---- what arrives ---- */

static void exchange(struct vgt_side *from, struct vgt_side *to)
{
    static const uint32_t lengths[] = {0, 1, 8, 255, 1024, 4096, 4097, 65536, 300001};
    uint64_t id = 1;

    for (unsigned i = 0; i < G_N_ELEMENTS(lengths); i++) {
        for (unsigned k = 0; k < G_N_ELEMENTS(opcodes); k++) {
            passes(from, to, id++, opcodes[k], lengths[i]);
        }
    }
}

static void test_exchange(gconstpointer data)
{
    struct vgt_pair p;

    uc_open(&p, 0, 1, GPOINTER_TO_UINT(data));
    exchange(&p.s[0], &p.s[1]);
    exchange(&p.s[1], &p.s[0]);
    vgt_pair_close(&p);
}

static void test_loopback(gconstpointer data)
{
    struct vgt_pair p;

    uc_open(&p, 0, 0, GPOINTER_TO_UINT(data));
    exchange(&p.s[0], &p.s[1]);
    vgt_pair_close(&p);
}

/* ---- what is lost ---- */

static void test_no_receive(gconstpointer data)
{
    struct vgt_pair p;
    struct vgt_side *a = &p.s[0], *b = &p.s[1];

    uc_open(&p, 0, 1, GPOINTER_TO_UINT(data));
    /* Also as the first message of the connection. */
    LOST(a, b, 1, "no_receive", 1, PVRDMA_WR_SEND, 64);
    passes(a, b, 2, PVRDMA_WR_SEND, 64);
    LOST(a, b, 1, "no_receive", 3, PVRDMA_WR_SEND_WITH_IMM, 300001);
    put(a, b, 4, PVRDMA_WR_RDMA_WRITE_WITH_IMM, 64);
    vgt_expect(a->scq, 4, PVRDMA_WC_SUCCESS);
    vgt_expect_none(b->rcq, 20);
    passes(a, b, 5, PVRDMA_WR_RDMA_WRITE, 64); /* needs none */
    passes(a, b, 6, PVRDMA_WR_SEND, 300001);
    expect_lost(1, "no_receive", 3); /* since the VM is there */
    g_assert_cmpint(vgt_counter("vm0", "datapath", "rnr_waits"), ==, 0);
    g_assert_cmpint(vgt_counter("vm0", "datapath", "errors"), ==, 0);
    g_assert_cmpint(vgt_counter("vm1", "datapath", "errors"), ==, 0);
    vgt_pair_close(&p);
}

/* The receive that is too small stays for what fits. */
static void test_too_long(gconstpointer data)
{
    struct vgt_pair p;
    struct vgt_side *a = &p.s[0], *b = &p.s[1];
    struct pvrdma_cqe c;

    uc_open(&p, 0, 1, GPOINTER_TO_UINT(data));
    vgt_recv(b, 500, FAR, 64);
    LOST(a, b, 1, "too_long", 1, PVRDMA_WR_SEND, 65);
    LOST(a, b, 1, "too_long", 2, PVRDMA_WR_SEND, 300001);
    put(a, b, 3, PVRDMA_WR_SEND, 64);
    vgt_expect(a->scq, 3, PVRDMA_WC_SUCCESS);
    c = vgt_expect(b->rcq, 500, PVRDMA_WC_SUCCESS);
    g_assert_cmpuint(c.byte_len, ==, 64);
    vgt_check(VG_MR_HOST(b->mr, FAR), 64, 3);
    vgt_pair_close(&p);
}

/* A WRITE without the right, in the key or the QP, harms nobody. */
static void test_access(gconstpointer data)
{
    struct vgt_opts o;
    struct vgt_pair p;
    struct vgt_side *a = &p.s[0], *b = &p.s[1];
    uint32_t good;

    uc_options(&o, GPOINTER_TO_UINT(data));
    vgt_pair_open(&p, 0, 1, &o);
    good = b->mr->rkey;
    for (unsigned i = 0; i < 2; i++) {
        uint32_t len = i ? 300001 : 64;

        b->mr->rkey = good ^ 1;
        LOST(a, b, 1, "access_denied", 1, PVRDMA_WR_RDMA_WRITE, len);
        vgt_recv(b, 500, FAR, 0);
        LOST(a, b, 1, "access_denied", 2, PVRDMA_WR_RDMA_WRITE_WITH_IMM, len);
        b->mr->rkey = good;
        put(a, b, 3, PVRDMA_WR_RDMA_WRITE_WITH_IMM, len); /* takes that receive */
        vgt_expect(a->scq, 3, PVRDMA_WC_SUCCESS);
        vgt_expect(b->rcq, 500, PVRDMA_WC_SUCCESS);
        vgt_check(VG_MR_HOST(b->mr, FAR), len, 3);
    }
    g_assert_cmpuint(vg_qp_state(b->qp), ==, PVRDMA_QPS_RTS);
    vgt_pair_close(&p);

    o.conn.access = PVRDMA_ACCESS_LOCAL_WRITE;
    vgt_pair_open(&p, 0, 1, &o);
    LOST(a, b, 1, "access_denied", 1, PVRDMA_WR_RDMA_WRITE, 64);
    passes(a, b, 2, PVRDMA_WR_SEND, 64);
    vgt_pair_close(&p);
}

/* Whoever is not there, or not ready, gets nothing, and is found when he is. */
static void test_nobody(gconstpointer data)
{
    struct vgt_opts o;
    struct vgt_pair p;
    struct vgt_side *a = &p.s[0], *b = &p.s[1];
    const uint32_t psn = 77; /* nobody's */

    uc_options(&o, GPOINTER_TO_UINT(data));
    o.unconnected = true;
    vgt_pair_open(&p, 0, 1, &o);
    vg_qp_reset_to_rts(a->qp, &b->g->gid, b->qp->qpn, psn, psn, NULL);
    LOST(a, b, 0, "to_nobody", 1, PVRDMA_WR_SEND, 64);
    vg_qp_to_init(b->qp, NULL);
    LOST(a, b, 0, "to_nobody", 2, PVRDMA_WR_SEND, 64);
    /* Connected to somebody else. */
    vg_qp_to_rtr(b->qp, &a->g->gid, a->qp->qpn + 1, psn, NULL);
    LOST(a, b, 0, "to_nobody", 3, PVRDMA_WR_SEND, 64);
    vg_qp_to_reset(b->qp);
    vg_qp_to_init(b->qp, NULL);
    /* The numbers of packets that it expects are not those that come now. */
    vg_qp_to_rtr(b->qp, &a->g->gid, a->qp->qpn, psn, NULL);
    passes(a, b, 4, PVRDMA_WR_SEND, 64);
    vgt_expect_event(b->g, PVRDMA_EVENT_COMM_EST, b->qp->handle);
    vg_qp_to_rts(b->qp, psn, NULL);
    passes(b, a, 5, PVRDMA_WR_SEND, 64);

    vgt_vm(vgt_daemon, "pause", 1);
    put(a, b, 6, PVRDMA_WR_SEND, 64);
    vgt_expect(a->scq, 6, PVRDMA_WC_SUCCESS);
    vgt_vm(vgt_daemon, "resume", 1);
    g_assert_cmpint(dropped(0, "to_paused"), ==, 1);
    passes(a, b, 7, PVRDMA_WR_SEND, 64);

    vg_qp_to_state(b->qp, PVRDMA_QPS_ERR);
    LOST(a, b, 0, "to_nobody", 8, PVRDMA_WR_SEND, 64);
    vgt_pair_close(&p);
}

/* A requester that begins anew is heard; one that is not connected here is not. */
static void test_begins_anew(gconstpointer data)
{
    struct vgt_pair p;
    struct vgt_side *a = &p.s[0], *b = &p.s[1];

    uc_open(&p, 0, 1, GPOINTER_TO_UINT(data));
    for (unsigned i = 0; i < 3; i++) {
        passes(a, b, 1, PVRDMA_WR_SEND, 64);
        passes(a, b, 2, PVRDMA_WR_RDMA_WRITE_WITH_IMM, 9000);
        passes(b, a, 3, PVRDMA_WR_SEND, 64);
        vg_qp_to_reset(a->qp);
        vg_qp_reset_to_rts(a->qp, &b->g->gid, b->qp->qpn, i, i, NULL);
    }
    vgt_pair_close(&p);
}

/* ---- services do not mix ---- */

static void connect_to(struct vg_qp *qp, struct vg_qp *peer)
{
    const struct vg_conn impatient = {.timeout = 8, .retry_cnt = 1, .rnr_retry = 7};

    vg_qp_reset_to_rts(qp, &peer->g->gid, peer->qpn, peer->qpn & 0xffffff,
                       qp->qpn & 0xffffff, &impatient);
}

static void test_mixed(gconstpointer data)
{
    struct vgt_opts o;
    struct vgt_side uc, rc;

    uc_options(&o, GPOINTER_TO_UINT(data));
    vgt_side_open(&uc, 0, &o, 0);
    o.qp.type = PVRDMA_QPT_RC;
    vgt_side_open(&rc, 1, &o, 1);
    connect_to(uc.qp, rc.qp);
    connect_to(rc.qp, uc.qp);
    vgt_recv(&uc, 500, FAR, 64);
    vgt_recv(&rc, 500, FAR, 64);
    LOST(&uc, &rc, 0, "to_nobody", 1, PVRDMA_WR_SEND, 64);
    LOST(&uc, &rc, 0, "to_nobody", 2, PVRDMA_WR_RDMA_WRITE, 64);
    put(&rc, &uc, 3, PVRDMA_WR_RDMA_WRITE, 64);
    vgt_expect(rc.scq, 3, PVRDMA_WC_RETRY_EXC_ERR);
    g_assert_cmpuint(*VG_MR_HOST(uc.mr, FAR), ==, 0xee);
    vgt_expect_none(uc.rcq, 20);
    g_assert_cmpuint(vg_qp_state(uc.qp), ==, PVRDMA_QPS_RTS);
    vgt_side_close(&uc);
    vgt_side_close(&rc);
}

/* ---- what fails ---- */

/* From SQE back to RTS. */
static void recover(struct vg_qp *qp)
{
    struct pvrdma_qp_attr a = {.qp_state = PVRDMA_QPS_RTS,
                               .cur_qp_state = PVRDMA_QPS_SQE};

    g_assert_cmpuint(vg_qp_state(qp), ==, PVRDMA_QPS_SQE);
    vg_qp_modify(qp, PVRDMA_QP_STATE | PVRDMA_QP_CUR_STATE, &a);
}

/* What UC cannot do, or the sender's key: its queue stops, what comes arrives. */
static void test_send_fails(gconstpointer data)
{
    static const uint32_t bad[] = {
        PVRDMA_WR_RDMA_READ,     PVRDMA_WR_ATOMIC_CMP_AND_SWP,
        PVRDMA_WR_SEND_WITH_INV, PVRDMA_WR_ATOMIC_FETCH_AND_ADD,
        PVRDMA_WR_SEND,
    };
    struct vgt_pair p;
    struct vgt_side *a = &p.s[0], *b = &p.s[1];

    uc_open(&p, 0, 1, GPOINTER_TO_UINT(data));
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++) {
        bool key = bad[i] == PVRDMA_WR_SEND;
        uint32_t good = a->mr->lkey;

        a->mr->lkey ^= key;
        vgt_send(a, 1, bad[i], VGT_SIG, 0, 8, b, FAR);
        a->mr->lkey = good;
        vgt_expect(a->scq, 1, key ? PVRDMA_WC_LOC_PROT_ERR : PVRDMA_WC_LOC_QP_OP_ERR);
        vgt_send(a, 2, PVRDMA_WR_SEND, VGT_SIG, 0, 8, NULL, 0);
        vgt_expect(a->scq, 2, PVRDMA_WC_WR_FLUSH_ERR);
        passes(b, a, 3, PVRDMA_WR_SEND, 64);
        passes(b, a, 4, PVRDMA_WR_RDMA_WRITE, 9000);
        recover(a->qp);
        passes(a, b, 5, PVRDMA_WR_SEND, 64);
    }
    vgt_pair_close(&p);
}

/* A receive that cannot be used is its owner's mistake, and nobody else's business. */
static void test_bad_receive(gconstpointer data)
{
    struct vgt_pair p;
    struct vgt_side *a = &p.s[0], *b = &p.s[1];
    uint32_t good;

    uc_open(&p, 0, 1, GPOINTER_TO_UINT(data));
    for (unsigned i = 0; i < 2; i++) {
        good = b->mr->lkey;
        b->mr->lkey ^= 1;
        vgt_recv(b, 500, FAR, 300001);
        b->mr->lkey = good;
        vgt_recv(b, 501, FAR, 64);
        put(a, b, 1, PVRDMA_WR_SEND, i ? 300001 : 64);
        vgt_expect(a->scq, 1, PVRDMA_WC_SUCCESS);
        vgt_expect(b->rcq, 500, PVRDMA_WC_LOC_PROT_ERR);
        vgt_expect(b->rcq, 501, PVRDMA_WC_WR_FLUSH_ERR);
        g_assert_cmpuint(vg_qp_state(b->qp), ==, PVRDMA_QPS_ERR);
        g_assert_cmpuint(vg_qp_state(a->qp), ==, PVRDMA_QPS_RTS);
        vgt_pair_reconnect(&p, NULL);
        passes(a, b, 2, PVRDMA_WR_SEND, 64);
    }
    vgt_pair_close(&p);
}

/* The queue stands still when it is empty, and says so if it was asked to this time. */
static void test_drained(gconstpointer data)
{
    struct pvrdma_qp_attr attr = {.qp_state = PVRDMA_QPS_SQD, .en_sqd_async_notify = 1};
    struct vgt_pair p;
    struct vgt_side *a = &p.s[0], *b = &p.s[1];

    uc_open(&p, 0, 1, GPOINTER_TO_UINT(data));
    vg_qp_modify(a->qp, PVRDMA_QP_STATE | PVRDMA_QP_EN_SQD_ASYNC, &attr);
    vgt_expect_event(a->g, PVRDMA_EVENT_SQ_DRAINED, a->qp->handle);
    vgt_recv(b, 500, FAR, 64);
    put(a, b, 1, PVRDMA_WR_SEND, 64);
    vgt_expect_none(a->scq, 20);
    passes(b, a, 2, PVRDMA_WR_SEND, 64);
    vg_qp_to_state(a->qp, PVRDMA_QPS_RTS);
    vgt_expect(a->scq, 1, PVRDMA_WC_SUCCESS);
    vgt_expect(b->rcq, 500, PVRDMA_WC_SUCCESS);

    vg_qp_to_state(a->qp, PVRDMA_QPS_SQD);
    do {
        g_assert_cmpint(vg_query_qp(a->g, a->qp->handle, &attr), ==, 0);
    } while (attr.sq_draining);
    g_assert_false(
        vg_event_wait(a->g, PVRDMA_EVENT_SQ_DRAINED, a->qp->handle, VGT_QUIET_MS(20)));
    vgt_pair_close(&p);
}

/* ---- what is broken off ---- */

static struct vg_mr *big_mr(struct vgt_side *s)
{
    return vg_mr_new(s->pd, vg_buf_new_alias(s->g, BIG_VA, GIB, REAL), VG_ACCESS_ALL);
}

/* Is QP @handle of VM 1 connected to its peer by TCP? */
static bool is_up(uint32_t handle)
{
    g_autoptr(JsonNode) list = vg_ctl_json(vgt_daemon, "qp list vm1");
    JsonObject *row = vg_qp_row(list, handle);

    return !strcmp(json_object_get_string_member(row, "connection"), "up");
}

/* The QP of @s, of VM 1, has noticed that its peer's has gone. */
static void wait_down(const struct vgt_side *s)
{
    vgt_await(!is_up(s->qp->handle));
}

/* A pair with one on each side. */
static void open_big(struct vgt_pair *p, struct vg_mr *mr[2])
{
    uc_open(p, 0, 1, VGT_EXTENDED);
    for (unsigned i = 0; i < 2; i++) {
        mr[i] = big_mr(&p->s[i]);
    }
}

/* A receive at the begin of the gigabyte. */
static void recv_big(struct vgt_side *s, const struct vg_mr *local, uint64_t wr_id,
                     uint32_t len)
{
    struct pvrdma_sge sge = {BIG_VA, len, local->lkey};
    struct vg_wr wr = {.wr_id = wr_id, .nsge = 1, .sge = &sge};

    g_assert_cmpuint(vg_post_recv(s->qp, &wr, 1), ==, 1);
}

/* @n messages of @len, with one doorbell. */
static void post_big(struct vgt_side *s, const struct vg_mr *local, uint32_t opcode,
                     uint32_t rkey, uint32_t len, unsigned n)
{
    struct pvrdma_sge sge = {BIG_VA, len, local->lkey};
    struct vg_wr wr = vg_wr_at(0, opcode, VGT_SIG, &sge, BIG_VA, rkey);

    for (; wr.wr_id < n; wr.wr_id++) {
        g_assert_cmpuint(vg_queue_send(s->qp, &wr, 1), ==, 1);
    }
    vg_ring_send(s->qp);
}

/* The same, until the first is under way. */
static void start_big(struct vgt_side *s, const struct vg_mr *local, uint32_t opcode,
                      uint32_t rkey, uint32_t len, unsigned n)
{
    int64_t before = vgt_counter("vm0", "datapath", "tx_bytes");

    post_big(s, local, opcode, rkey, len, n);
    while (vgt_counter("vm0", "datapath", "tx_bytes") == before) {
    }
}

/*
 * The receive @wr_id of @to was left by a message that was broken off: what is longer
 * than it is lost, what is not goes there from its first byte.
 */
static void left_receive_serves(struct vgt_side *from, const struct vg_mr *src,
                                struct vgt_side *to, const struct vg_mr *dst,
                                uint64_t wr_id, uint32_t len)
{
    int64_t before = dropped(1, "too_long");
    struct pvrdma_cqe c;

    post_big(from, src, PVRDMA_WR_SEND, 0, len + 1, 1);
    vgt_expect(from->scq, 0, PVRDMA_WC_SUCCESS);
    expect_lost(1, "too_long", before + 1);
    vgt_expect_none(to->rcq, 20);
    g_assert_cmpuint(vg_qp_state(to->qp), ==, PVRDMA_QPS_RTS);
    memset(VG_MR_HOST(dst, 0), 0xee, 72);
    put(from, to, 1, PVRDMA_WR_SEND, 64);
    vgt_expect(from->scq, 1, PVRDMA_WC_SUCCESS);
    c = vgt_expect(to->rcq, wr_id, PVRDMA_WC_SUCCESS);
    g_assert_cmpuint(c.byte_len, ==, 64);
    vgt_check(VG_MR_HOST(dst, 0), 64, 1);
    g_assert_cmpuint(*VG_MR_HOST(dst, 64), ==, 0xee);
}

/*
 * The requester ends in the middle of a SEND, or the message after.  The receives that
 * are completed are whole ones, and the one of the broken message serves the next.
 */
static void test_sender_breaks_off(void)
{
    const unsigned n = 16;
    const uint32_t len = huge() / 2;
    struct vgt_pair p;
    struct vgt_side *a = &p.s[0], *b = &p.s[1];
    struct pvrdma_cqe c;
    struct vg_mr *mr[2];
    unsigned whole = 0;

    open_big(&p, mr);
    for (unsigned i = 0; i <= n; i++) {
        recv_big(b, mr[1], 100 + i, len);
    }
    start_big(a, mr[0], PVRDMA_WR_SEND, 0, len, n);
    vg_qp_to_reset(a->qp);
    while (vg_cq_poll(a->scq, &c, 1) == 1) {
        g_assert_cmpuint(c.status, ==, PVRDMA_WC_SUCCESS);
    }
    wait_down(b);
    while (vg_cq_poll(b->rcq, &c, 1) == 1) {
        g_assert_cmpuint(c.wr_id, ==, 100 + whole);
        g_assert_cmpuint(c.status, ==, PVRDMA_WC_SUCCESS);
        g_assert_cmpuint(c.byte_len, ==, len);
        whole++;
    }
    g_assert_cmpuint(whole, <, n);
    connect_to(a->qp, b->qp);
    left_receive_serves(a, mr[0], b, mr[1], 100 + whole, len);
    vg_mr_free(mr[0]);
    vg_mr_free(mr[1]);
    vgt_pair_close(&p);
}

/*
 * The receiver is paused in the middle of a SEND: that and what follows is lost, each
 * counted once as sent to a paused one, and its receive serves the next.
 */
static void test_receiver_paused(void)
{
    const unsigned n = 8;
    const uint32_t len = huge() - 1;
    unsigned broken = 0;
    struct vgt_pair p;
    struct vgt_side *a = &p.s[0], *b = &p.s[1];
    struct vg_mr *mr[2];

    open_big(&p, mr);
    for (unsigned round = 0; broken < 3; round++) {
        int64_t lost = -dropped(0, "to_paused");

        g_assert_cmpuint(round, <, 20);
        for (unsigned i = 0; i < n; i++) {
            recv_big(b, mr[1], 100 + i, len);
        }
        start_big(a, mr[0], PVRDMA_WR_SEND, 0, len, n);
        vgt_vm(vgt_daemon, "pause", 1);
        for (unsigned i = 0; i < n; i++) {
            vgt_expect(a->scq, i, PVRDMA_WC_SUCCESS);
        }
        vgt_vm(vgt_daemon, "resume", 1);
        lost += dropped(0, "to_paused");
        g_assert_cmpint(lost, <=, n);
        for (unsigned i = 0; i < n - lost; i++) {
            g_assert_cmpuint(vgt_expect(b->rcq, 100 + i, PVRDMA_WC_SUCCESS).byte_len, ==,
                             len);
        }
        vgt_expect_none(b->rcq, 20);
        g_assert_cmpuint(vg_qp_state(a->qp), ==, PVRDMA_QPS_RTS);
        g_assert_cmpuint(vg_qp_state(b->qp), ==, PVRDMA_QPS_RTS);
        if (lost) { /* it was fast enough */
            left_receive_serves(a, mr[0], b, mr[1], 100 + n - lost, len);
            broken++;
        }
        vgt_pair_reconnect(&p, NULL);
    }
    vg_mr_free(mr[0]);
    vg_mr_free(mr[1]);
    vgt_pair_close(&p);
}

/* The key goes in the middle of a WRITE: it and what follows is lost, nothing fails. */
static void test_key_goes(void)
{
    const unsigned n = 20;
    struct vgt_pair p;
    struct vgt_side *a = &p.s[0], *b = &p.s[1];
    struct vg_mr *mr[2];
    int64_t before;

    open_big(&p, mr);
    before = dropped(1, "access_denied");
    start_big(a, mr[0], PVRDMA_WR_RDMA_WRITE, mr[1]->rkey, huge(), n);
    vg_mr_free(mr[1]);
    for (unsigned i = 0; i < n; i++) {
        vgt_expect(a->scq, i, PVRDMA_WC_SUCCESS);
    }
    passes(a, b, 100, PVRDMA_WR_SEND, 64); /* and those before are through */
    passes(b, a, 101, PVRDMA_WR_SEND, 64);
    g_assert_cmpint(dropped(1, "access_denied"), >, before);
    g_assert_cmpint(dropped(1, "access_denied"), <=, before + n);
    g_assert_cmpuint(vg_qp_state(b->qp), ==, PVRDMA_QPS_RTS);
    vg_mr_free(mr[0]);
    vgt_pair_close(&p);
}

/* The sender's own key goes in the middle, while its queue drains: it stops, too. */
static void test_own_key_goes(void)
{
    struct vgt_pair p;
    struct vgt_side *a = &p.s[0], *b = &p.s[1];
    struct pvrdma_cqe c;
    struct vg_mr *mr[2];
    unsigned tries = 0;

    open_big(&p, mr);
    do { /* unless it was through already */
        g_assert_cmpuint(tries++, <, 100);
        if (vg_qp_state(a->qp) == PVRDMA_QPS_SQD) {
            vg_qp_to_state(a->qp, PVRDMA_QPS_RTS);
            mr[0] = big_mr(a);
        }
        start_big(a, mr[0], PVRDMA_WR_RDMA_WRITE, mr[1]->rkey, GIB, 1);
        vg_qp_to_state(a->qp, PVRDMA_QPS_SQD);
        vg_mr_free(mr[0]);
        g_assert_true(vg_cq_wait(a->scq, &c, VGT_WAIT_MS));
    } while (c.status == PVRDMA_WC_SUCCESS);
    g_assert_cmpuint(c.status, ==, PVRDMA_WC_LOC_PROT_ERR);
    vgt_send(a, 2, PVRDMA_WR_SEND, VGT_SIG, 0, 8, NULL, 0);
    vgt_expect(a->scq, 2, PVRDMA_WC_WR_FLUSH_ERR);
    recover(a->qp);
    g_assert_cmpuint(vg_qp_state(b->qp), ==, PVRDMA_QPS_RTS);
    passes(a, b, 3, PVRDMA_WR_SEND, 64);
    vg_mr_free(mr[1]);
    vgt_pair_close(&p);
}

/* The receiver fails in the middle of a SEND: it is flushed, and completes as nothing
 * else. */
static void test_receiver_fails(void)
{
    const unsigned n = 20;
    struct vgt_pair p;
    struct vgt_side *a = &p.s[0], *b = &p.s[1];
    struct pvrdma_cqe c;
    struct vg_mr *mr[2];
    unsigned whole = 0, flushed = 0;
    int64_t before;

    open_big(&p, mr);
    before = lost(0, "to_nobody");
    for (unsigned i = 0; i < n; i++) {
        recv_big(b, mr[1], i, huge());
    }
    start_big(a, mr[0], PVRDMA_WR_SEND, 0, huge(), n);
    vg_qp_to_state(b->qp, PVRDMA_QPS_ERR);
    for (unsigned i = 0; i < n; i++) {
        vgt_expect(a->scq, i, PVRDMA_WC_SUCCESS);
        g_assert_true(vg_cq_wait(b->rcq, &c, VGT_WAIT_MS));
        g_assert_cmpuint(c.wr_id, ==, i);
        if (c.status == PVRDMA_WC_SUCCESS) {
            g_assert_cmpuint(flushed, ==, 0);
            g_assert_cmpuint(c.byte_len, ==, huge());
            whole++;
        } else {
            g_assert_cmpuint(c.status, ==, PVRDMA_WC_WR_FLUSH_ERR);
            flushed++;
        }
    }
    g_assert_cmpuint(flushed, >, 0);
    expect_lost(0, "to_nobody", before + flushed);
    vg_mr_free(mr[0]);
    vg_mr_free(mr[1]);
    vgt_pair_close(&p);
}

/* ---- floods ---- */

/* Connections break now and then (tests/reset): what was on its way is lost. */
static bool is_reset(void)
{
    return g_getenv("PVRDMAD_RESET_US") != NULL;
}

#define DEPTH 16u
#define ROOM  0x10000u /* bytes per message at most; one area of DEPTH each way */

struct flood {
    uint64_t posted, sent, got, receives;
    uint32_t last;
};

static uint32_t flood_length(uint64_t k)
{
    return (uint32_t)(k * 2654435761u % (k & 1 ? 257 : ROOM + 1));
}

static void flood_post(struct vgt_side *s, struct flood *f, uint64_t n)
{
    while (f->posted < n && f->posted - f->sent < DEPTH) {
        uint64_t k = f->posted++, off = k % DEPTH * ROOM;
        struct pvrdma_sge sge = vg_sge(s->mr, off, flood_length(k));
        struct vg_wr wr = {.wr_id = k,
                           .opcode = PVRDMA_WR_SEND_WITH_IMM,
                           .flags = VGT_SIG,
                           .imm = (uint32_t)k,
                           .nsge = 1,
                           .sge = &sge};

        vgt_fill(VG_MR_HOST(s->mr, off), sge.length, k);
        g_assert_cmpuint(vg_post_send(s->qp, &wr, 1), ==, 1);
    }
}

/* Receives are short, so some are lost; those that complete are whole, and in order. */
static void flood_take(struct vgt_side *s, struct flood *f)
{
    struct pvrdma_cqe c;

    while (vg_cq_poll(s->rcq, &c, 1) == 1) {
        g_assert_cmpuint(c.status, ==, PVRDMA_WC_SUCCESS);
        g_assert_cmpuint(c.byte_len, ==, flood_length(c.imm_data));
        g_assert_true(f->got == 0 || c.imm_data > f->last);
        vgt_check(VG_MR_HOST(s->mr, (DEPTH + c.wr_id) * ROOM), c.byte_len, c.imm_data);
        f->last = c.imm_data;
        f->got++;
        f->receives--;
    }
    if (!f->receives) {
        for (unsigned i = 0; i < 2; i++, f->receives++) {
            vgt_recv(s, (f->got + i) % DEPTH, (DEPTH + (f->got + i) % DEPTH) * ROOM,
                     ROOM);
        }
    }
}

static void test_flood(gconstpointer data)
{
    const uint64_t n = vgt_rounds(20000);
    struct flood f[2] = {{0}};
    struct vgt_opts o;
    struct vgt_pair p;
    struct pvrdma_cqe c;
    int64_t until, left;

    uc_options(&o, GPOINTER_TO_UINT(data));
    o.mr_len = 2 * DEPTH * ROOM;
    vgt_pair_open(&p, 0, 1, &o);
    while (f[0].sent < n || f[1].sent < n) {
        for (unsigned i = 0; i < 2; i++) {
            flood_post(&p.s[i], &f[i], n);
            flood_take(&p.s[i], &f[i]);
            while (vg_cq_poll(p.s[i].scq, &c, 1) == 1) {
                g_assert_cmpuint(c.status, ==, PVRDMA_WC_SUCCESS);
                g_assert_cmpuint(c.wr_id, ==, f[i].sent++);
            }
        }
        sched_yield();
    }
    until = vg_now_ns() + VGT_WAIT_MS * 1000000ll;
    do {
        flood_take(&p.s[0], &f[0]);
        flood_take(&p.s[1], &f[1]);
        /* While the connection was made some may have been for nobody. */
        left = 2 * (int64_t)n - (int64_t)(f[0].got + f[1].got) -
               dropped(0, "no_receive") - dropped(1, "no_receive") - lost(0, "to_nobody");
    } while (left && is_tcp() && !is_reset() && vg_now_ns() < until);
    if (!is_reset()) {
        g_assert_cmpint(left, ==, 0);
    }
    for (unsigned i = 0; i < 2; i++) {
        g_assert_cmpuint(f[i].got, >, 0);
        if (!is_tcp()) {
            g_assert_cmpint((int64_t)(n - f[i].got), ==, dropped(i, "no_receive"));
        }
    }
    vgt_pair_close(&p);
}

/* ---- shared receive queues ---- */

static void test_srq(gconstpointer data)
{
    struct vgt_opts o;
    struct vgt_side a, b;
    struct vg_srq *srq;
    struct pvrdma_sge sge;
    struct vg_wr wr = {.wr_id = 500, .nsge = 1, .sge = &sge};
    bool stock = GPOINTER_TO_UINT(data) == VGT_STOCK;

    uc_options(&o, GPOINTER_TO_UINT(data));
    vgt_side_open(&a, 0, &o, 0);
    vgt_side_open(&b, 1, &o, 1);
    vg_qp_free(b.qp);
    srq = vg_srq_new(b.pd, 64, 4, stock);
    o.qp.srq = srq;
    b.qp = vg_qp_new(b.pd, b.scq, b.rcq, &o.qp);
    vg_qp_connect(a.qp, b.qp, NULL);
    LOST(&a, &b, 1, "no_receive", 1, PVRDMA_WR_SEND, 64);
    sge = vg_sge(b.mr, FAR, 64);
    g_assert_cmpuint(vg_post_srq(srq, &wr, 1), ==, 1);
    LOST(&a, &b, 1, "too_long", 2, PVRDMA_WR_SEND, 65);
    put(&a, &b, 3, PVRDMA_WR_SEND, 64);
    vgt_expect(a.scq, 3, PVRDMA_WC_SUCCESS);
    vgt_expect(b.rcq, 500, PVRDMA_WC_SUCCESS);
    vgt_check(VG_MR_HOST(b.mr, FAR), 64, 3);
    vg_qp_free(b.qp);
    o.qp.srq = NULL;
    vg_srq_free(srq);
    b.qp = vg_qp_new(b.pd, b.scq, b.rcq, &o.qp);
    vgt_side_close(&a);
    vgt_side_close(&b);
}

int main(int argc, char **argv)
{
    static const struct vgt_both both[] = {
        {"exchange", test_exchange},
        {"loopback", test_loopback},
        {"no-receive", test_no_receive},
        {"too-long", test_too_long},
        {"access", test_access},
        {"nobody", test_nobody},
        {"begins-anew", test_begins_anew},
        {"mixed", test_mixed},
        {"send-fails", test_send_fails},
        {"bad-receive", test_bad_receive},
        {"drained", test_drained},
        {"srq", test_srq},
        {"flood", test_flood},
    };

    vgt_start(&argc, &argv, 240, 2);
    vgt_add_both("uc", both, G_N_ELEMENTS(both));
    g_test_add_func("/uc/sender-breaks-off", test_sender_breaks_off);
    g_test_add_func("/uc/receiver-paused", test_receiver_paused);
    g_test_add_func("/uc/key-goes", test_key_goes);
    g_test_add_func("/uc/own-key-goes", test_own_key_goes);
    g_test_add_func("/uc/receiver-fails", test_receiver_fails);
    return vgt_run();
}
