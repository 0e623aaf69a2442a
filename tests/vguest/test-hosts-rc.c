/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: connections between VMs of different hosts, as they work when
 * nothing goes wrong but what a peer's queue pair answers: each operation, both ways, and
 * one VM's connections to its own host and to two others at the same time.  Those of UC,
 * too; what is lost of these is test-uc.c's.
 *
 * VM n has the address 10.0.0.(n + 1) on whichever host it is: each host declares all.
 */
#include "hosts.h"

#include <string.h>

#define MIB (1u << 20)

static struct vg_daemon *host[3];
static unsigned n_hosts;

static void begin(unsigned n)
{
    struct host_opts o = {.n_vms = 5, .daemon_keys = "peer-timeout=30\nworkers=2"};

    n_hosts = n;
    hosts_start(host, n, &o);
    vgt_daemon = host[0];
}

static void end(void)
{
    hosts_stop(host, n_hosts);
    vgt_daemon = NULL;
}

/* Side 0 is VM 0 of host 0, side 1 is VM 1 of host 1. */
static struct vgt_opts between(enum vgt_style style)
{
    enum vg_db_mode db = style == VGT_STOCK ? VG_DB_SHARED : VG_DB_EXT;

    return (struct vgt_opts){.guest = {{.db = db}, {.db = db}},
                             .daemon = {host[0], host[1]}};
}

static void wait_state(struct vg_qp *qp, enum pvrdma_qp_state want)
{
    vgt_await(vg_qp_state(qp) == want);
}

/* ---- operations ---- */

/* SENDs, with immediate too, WRITEs with immediate, READs and atomics, checksummed. */
static void test_traffic(gconstpointer style)
{
    struct vgt_traffic t;
    struct vgt_opts o;

    begin(2);
    o = between((enum vgt_style)GPOINTER_TO_UINT(style));
    vgt_traffic_open(&t, 0, 1, 4, 16, 90000, &o);
    vgt_traffic_run(&t, vgt_rounds(1000));
    vgt_traffic_close(&t);
    end();
}

/* Around what a segment, a slice and the sender's buffer hold; from @a to @b. */
static void sizes(struct vgt_side *a, struct vgt_side *b)
{
    static const uint32_t len[] = {0,      1,      2,      3,      4,       7,
                                   1447,   1448,   4095,   4096,   4097,    65400,
                                   65460,  65470,  65483,  65535,  65536,   65537,
                                   131072, 131073, 135168, 262144, 1000003, 2 * MIB};
    struct pvrdma_cqe c;

    for (unsigned i = 0; i < G_N_ELEMENTS(len); i++) {
        uint32_t n = len[i];
        uint64_t at = i % 9;

        vgt_fill(VG_MR_HOST(a->mr, at), n, i);
        vgt_recv(b, i, 5, 2 * MIB + 8);
        vgt_send(a, i, PVRDMA_WR_SEND, VGT_SIG, at, n, NULL, 0);
        c = vgt_expect(b->rcq, i, PVRDMA_WC_SUCCESS);
        g_assert_cmpuint(c.byte_len, ==, n);
        vgt_check(VG_MR_HOST(b->mr, 5), n, i);
        vgt_expect(a->scq, i, PVRDMA_WC_SUCCESS);

        vgt_fill(VG_MR_HOST(a->mr, at), n, 100 + i);
        vgt_complete(a, i, PVRDMA_WR_RDMA_WRITE, at, n, b, 3);
        vgt_check(VG_MR_HOST(b->mr, 3), n, 100 + i);
        g_assert_true(n == 0 || !vgt_matches(VG_MR_HOST(b->mr, 4), n, 100 + i));

        vgt_fill(VG_MR_HOST(b->mr, 1), n, 200 + i);
        vgt_send(a, i, PVRDMA_WR_RDMA_READ, VGT_SIG, at, n, b, 1);
        c = vgt_expect(a->scq, i, PVRDMA_WC_SUCCESS);
        g_assert_cmpuint(c.byte_len, ==, n);
        vgt_check(VG_MR_HOST(a->mr, at), n, 200 + i);
    }
}

static void test_sizes(gconstpointer style)
{
    struct vgt_opts o;
    struct vgt_pair p;

    begin(2);
    o = between((enum vgt_style)GPOINTER_TO_UINT(style));
    o.mr_len = 3 * MIB;
    vgt_pair_open(&p, 0, 1, &o);
    sizes(&p.s[0], &p.s[1]);
    sizes(&p.s[1], &p.s[0]);
    vgt_pair_close(&p);
    end();
}

/* Those of UC, which are complete for their sender before they are there. */
static void test_unreliable(gconstpointer style)
{
    static const uint32_t len[] = {0, 1, 64, 4097, 65537, 1000003};
    struct vgt_opts o;
    struct vgt_pair p;

    begin(2);
    o = between((enum vgt_style)GPOINTER_TO_UINT(style));
    o.qp.type = PVRDMA_QPT_UC;
    o.mr_len = 3 * MIB;
    vgt_pair_open(&p, 0, 1, &o);
    for (unsigned i = 0; i < vgt_rounds(60); i++) {
        struct vgt_side *a = &p.s[i & 1], *b = &p.s[~i & 1];
        uint32_t n = len[i % G_N_ELEMENTS(len)];

        vgt_fill(VG_MR_HOST(a->mr, i % 9), n, i);
        vgt_recv(b, i, 5, 2 * MIB);
        vgt_complete(a, i, PVRDMA_WR_SEND_WITH_IMM, i % 9, n, NULL, 0);
        g_assert_cmpuint(vgt_expect(b->rcq, i, PVRDMA_WC_SUCCESS).byte_len, ==, n);
        vgt_check(VG_MR_HOST(b->mr, 5), n, i);

        vgt_fill(VG_MR_HOST(a->mr, 0), n, 100 + i);
        vgt_recv(b, i, 0, 0);
        vgt_send(a, i, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, n, b, 3);
        vgt_complete(a, i, PVRDMA_WR_RDMA_WRITE_WITH_IMM, 0, 0, b, 0);
        vgt_expect(a->scq, i, PVRDMA_WC_SUCCESS);
        vgt_expect(b->rcq, i, PVRDMA_WC_SUCCESS);
        vgt_check(VG_MR_HOST(b->mr, 3), n, 100 + i);
    }
    vgt_pair_close(&p);
    end();
}

/* What wakes a receiver that waits for solicited messages alone. */
static void solicited(struct vgt_side *a, struct vgt_side *b, uint32_t opcode)
{
    for (unsigned i = 0; i < 2; i++) {
        vg_cq_arm(b->rcq, true);
        vgt_recv(b, i, 0, 64);
        vgt_send(a, i, opcode, VGT_SIG | (i ? PVRDMA_SEND_SOLICITED : 0), 0, 8, b, 0);
        vgt_expect(a->scq, i, PVRDMA_WC_SUCCESS);
        vgt_expect(b->rcq, i, PVRDMA_WC_SUCCESS);
        g_assert_true(vg_cqn_wait(b->g, b->rcq->handle, i ? VGT_WAIT_MS : 50) == i);
    }
}

static void test_solicited(void)
{
    struct vgt_opts o;
    struct vgt_pair p;

    begin(2);
    o = between(VGT_STOCK);
    vgt_pair_open(&p, 0, 1, &o);
    for (unsigned i = 0; i < 2; i++) {
        solicited(&p.s[i], &p.s[1 - i], PVRDMA_WR_SEND);
        solicited(&p.s[i], &p.s[1 - i], PVRDMA_WR_SEND_WITH_IMM);
        solicited(&p.s[i], &p.s[1 - i], PVRDMA_WR_RDMA_WRITE_WITH_IMM);
    }
    vgt_pair_close(&p);
    end();
}

static void write_by(struct vgt_side *s, const struct vg_mr *mr,
                     enum pvrdma_wc_status status)
{
    struct pvrdma_sge sge = vg_sge(s->mr, 0, 8);
    struct vg_wr wr = vg_wr_to(9, PVRDMA_WR_RDMA_WRITE, VGT_SIG, &sge, mr, 0);

    g_assert_cmpuint(vg_post_send(s->qp, &wr, 1), ==, 1);
    vgt_expect(s->scq, 9, status);
}

/* A key that was made by a work request is taken away by the other host's SEND. */
static void test_invalidate(void)
{
    struct pvrdma_cqe c;
    struct vgt_opts o;
    struct vgt_pair p;
    struct vg_mr *mr;
    struct vg_wr wr;

    begin(2);
    o = between(VGT_EXTENDED);
    o.kernel = true;
    vgt_pair_open(&p, 0, 1, &o);
    mr = vg_mr_new_fast(p.s[1].pd,
                        vg_buf_new(p.s[1].g, 0x660000000000ull, 8192, VG_SCATTERED), 2);
    for (unsigned i = 0; i < 20; i++) {
        wr = vg_wr_fast_reg(mr, 70, VG_ACCESS_ALL);
        g_assert_cmpuint(vg_post_send(p.s[1].qp, &wr, 1), ==, 1);
        vgt_expect(p.s[1].scq, 70, PVRDMA_WC_SUCCESS);
        write_by(&p.s[0], mr, PVRDMA_WC_SUCCESS);
        vgt_recv(&p.s[1], 71, 0, 64);
        wr = (struct vg_wr){.wr_id = 72,
                            .opcode = PVRDMA_WR_SEND_WITH_INV,
                            .flags = VGT_SIG | (i & 1 ? PVRDMA_SEND_SOLICITED : 0),
                            .imm = mr->rkey};
        g_assert_cmpuint(vg_post_send(p.s[0].qp, &wr, 1), ==, 1);
        vgt_expect(p.s[0].scq, 72, PVRDMA_WC_SUCCESS);
        c = vgt_expect(p.s[1].rcq, 71, PVRDMA_WC_SUCCESS);
        g_assert_cmpuint(c.wc_flags & PVRDMA_WC_FLAG_INV, !=, 0);
    }
    write_by(&p.s[0], mr, PVRDMA_WC_REM_ACCESS_ERR);
    vg_mr_free(mr);
    vgt_pair_close(&p);
    end();
}

/* ---- several connections ---- */

/* One counter for all, and a stamp of each connection's own. */
struct lane {
    struct vgt_side *peer;
    struct vg_qp *qp;
    struct vg_cq *cq; /* its completions at VM 0 */
    uint64_t k;
};

/* Send message @k, and have its like sent back; then count it there. */
static void ping(struct vgt_side *hub, struct lane *l)
{
    struct vgt_side near = *hub;
    uint64_t k = l->k++, at = 4096 + k % 8 * 1024, got;
    uint32_t len = (uint32_t)(k * 37 % 1000);

    near.qp = l->qp;
    vgt_fill(VG_MR_HOST(hub->mr, at), len, k);
    vgt_recv(l->peer, k, at, 1024);
    vgt_send(&near, k, PVRDMA_WR_SEND, VGT_SIG, at, len, NULL, 0);
    vgt_count(&near, k, 8, l->peer);
    vgt_expect(l->peer->rcq, k, PVRDMA_WC_SUCCESS);
    vgt_check(VG_MR_HOST(l->peer->mr, at), len, k);
    vgt_recv(&near, k, at, 1024);
    vgt_complete(l->peer, k, PVRDMA_WR_SEND, at, len, NULL, 0);
    vgt_expect(l->cq, k, PVRDMA_WC_SUCCESS); /* the SEND */
    vgt_expect(l->cq, k, PVRDMA_WC_SUCCESS); /* the addition */
    vgt_expect(hub->rcq, k, PVRDMA_WC_SUCCESS);
    vgt_check(VG_MR_HOST(hub->mr, at), len, k);
    memcpy(&got, VG_MR_HOST(hub->mr, 8), 8);
    g_assert_cmpuint(got, ==, k);
}

/* Do all of them, with VGUEST_PATH rnic, go by channels? */
static bool all_by_channels(const struct lane *lane, unsigned n)
{
    for (unsigned i = 0; i < n && !g_strcmp0(g_getenv("VGUEST_PATH"), "rnic"); i++) {
        if (!host_qp_by(lane[i].qp, "rnic")) {
            return false;
        }
    }
    return true;
}

/* `pvrdmactl qp list` of host 0: where the @n QPs of VM 0 are connected to. */
static void check_paths(const struct lane *lane, unsigned n)
{
    g_autoptr(JsonNode) list = vg_ctl_json(host[0], "qp list vm0");

    for (unsigned i = 0; i < n; i++) {
        g_autofree char *name = i ? g_strdup_printf("host%u", i) : g_strdup("-");
        JsonObject *row = vg_qp_row(list, lane[i].qp->handle);

        if (!vgt_by_streams()) { /* else a channel may have broken */
            g_assert_cmpstr(json_object_get_string_member(row, "transport"), ==,
                            i ? "tcp" : "copy");
        }
        g_assert_cmpstr(json_object_get_string_member(row, "host"), ==, name);
        g_assert_cmpstr(json_object_get_string_member(row, "connection"), ==,
                        i || vgt_by_streams() ? "up" : "-");
        g_assert_cmpint(json_object_get_int_member(row, "in_flight_bytes"), ==, 0);
    }
}

/* VM 0 of host 0, with VM 1 beside it and VMs 2 and 3 of hosts 1 and 2. */
static void test_three_hosts(gconstpointer style)
{
    enum vg_db_mode db = GPOINTER_TO_UINT(style) == VGT_STOCK ? VG_DB_SHARED : VG_DB_EXT;
    struct vgt_opts o = {.guest = {{.db = db}, {.db = db}}};
    const struct vg_qp_opts plain = {0};
    struct vgt_side hub, peer[3];
    struct lane lane[3];

    begin(3);
    vgt_side_open(&hub, 0, &o, 0);
    for (unsigned i = 0; i < 3; i++) {
        vgt_daemon = host[i];
        vgt_side_open(&peer[i], i + 1, &o, 1);
        lane[i] = (struct lane){.peer = &peer[i], .cq = vg_cq_new(hub.pd, 64)};
        lane[i].qp = vg_qp_new(hub.pd, lane[i].cq, hub.rcq, &plain);
        vg_qp_connect(lane[i].qp, peer[i].qp, NULL);
    }
    for (unsigned k = 0; k < vgt_rounds(300); k++) {
        ping(&hub, &lane[k % 3]);
    }
    for (int64_t until = vg_now_ns() + VGT_WAIT_MS * 1000000ll;
         !all_by_channels(lane, 3);) {
        g_assert_cmpint(vg_now_ns(), <, until);
        for (unsigned i = 0; i < 3; i++) {
            ping(&hub, &lane[i]);
        }
    }
    check_paths(lane, 3);
    for (unsigned i = 0; i < 3; i++) {
        vg_qp_free(lane[i].qp);
        vg_cq_free(lane[i].cq);
        vgt_side_close(&peer[i]);
    }
    vgt_side_close(&hub);
    end();
}

/* Receives of three queue pairs in one place: two from another host, one from here. */
static void test_srq(gconstpointer style)
{
    enum vg_db_mode db = GPOINTER_TO_UINT(style) == VGT_STOCK ? VG_DB_SHARED : VG_DB_EXT;
    struct vgt_opts o = {.guest = {{.db = db}, {.db = db}}, .unconnected = true};
    unsigned n = vgt_rounds(300), sent[3] = {0}, got[3] = {0};
    struct vgt_side hub, from[3];
    struct vg_qp *rx[3];
    struct vg_srq *srq;

    begin(2);
    vgt_side_open(&hub, 0, &o, 0);
    srq = vg_srq_new(hub.pd, 32, 1, false);
    for (unsigned i = 0; i < 3; i++) {
        vgt_daemon = host[i != 0];
        vgt_side_open(&from[i], i + 1, &o, 1);
        rx[i] = vg_qp_new(hub.pd, hub.scq, hub.rcq, &(struct vg_qp_opts){.srq = srq});
        vg_qp_connect(from[i].qp, rx[i], NULL);
    }
    for (unsigned k = 0; k < 3 * n; k++) {
        /* One receive at a time: the others find none. */
        struct pvrdma_sge sge = vg_sge(hub.mr, k % 16 * 4096, 4096);
        struct vg_wr wr = {.wr_id = k, .nsge = 1, .sge = &sge};
        struct pvrdma_cqe c;
        unsigned i;

        for (i = 0; i < 3; i++) {
            if (sent[i] < n && sent[i] < got[i] + 4) {
                vgt_fill(VG_MR_HOST(from[i].mr, sent[i] % 4 * 4096), 3000,
                         sent[i] * 4 + i);
                vgt_send(&from[i], sent[i], PVRDMA_WR_SEND, VGT_SIG, sent[i] % 4 * 4096,
                         3000, NULL, 0);
                sent[i]++;
            }
        }
        g_assert_cmpuint(vg_post_srq(srq, &wr, 1), ==, 1);
        c = vgt_expect(hub.rcq, k, PVRDMA_WC_SUCCESS);
        for (i = 0; i < 2 && c.qp != rx[i]->handle; i++) {
        }
        g_assert_cmpuint(c.qp, ==, rx[i]->handle);
        vgt_check(VG_MR_HOST(hub.mr, k % 16 * 4096), 3000, got[i] * 4 + i);
        vgt_expect(from[i].scq, got[i]++, PVRDMA_WC_SUCCESS);
    }
    for (unsigned i = 0; i < 3; i++) {
        g_assert_cmpuint(got[i], ==, n);
        vg_qp_free(rx[i]);
        vgt_side_close(&from[i]);
    }
    vg_srq_free(srq);
    vgt_side_close(&hub);
    end();
}

/* ---- what is refused ---- */

/* @status comes for a request that is wrong; what is behind it is flushed. */
static void refused(unsigned from, struct vg_wr wr, uint32_t len,
                    enum pvrdma_wc_status status, enum pvrdma_qp_state there)
{
    const struct vg_conn c = {.rnr_retry = 2, .timeout = 14, .retry_cnt = 2};
    struct vgt_opts o = between(VGT_EXTENDED);
    struct vgt_side *a, *b;
    struct pvrdma_sge sge;
    struct vgt_pair p;

    o.conn = c;
    vgt_pair_open(&p, 0, 1, &o);
    a = &p.s[from];
    b = &p.s[1 - from];
    vgt_recv(b, 5, 0, 64);
    vgt_complete(a, 1, PVRDMA_WR_SEND, 0, 8, NULL, 0);
    vgt_expect(b->rcq, 5, PVRDMA_WC_SUCCESS);
    if (status != PVRDMA_WC_RNR_RETRY_EXC_ERR) {
        vgt_recv(b, 6, 0, 64);
    }
    sge = vg_sge(a->mr, 0, len);
    wr.wr_id = 2;
    wr.flags = VGT_SIG;
    wr.nsge = 1;
    wr.sge = &sge;
    wr.remote_addr += b->mr->buf->va;
    wr.rkey ^= b->mr->rkey;
    g_assert_cmpuint(vg_post_send(a->qp, &wr, 1), ==, 1);
    vgt_send(a, 3, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, b, 0);
    vgt_expect(a->scq, 2, status);
    vgt_expect(a->scq, 3, PVRDMA_WC_WR_FLUSH_ERR);
    wait_state(a->qp, PVRDMA_QPS_ERR);
    wait_state(b->qp, there);
    vgt_pair_close(&p);
}

static void test_refused(void)
{
    begin(2);
    for (unsigned i = 0; i < 2; i++) {
        refused(i, (struct vg_wr){.opcode = PVRDMA_WR_RDMA_WRITE, .rkey = 0x100}, 8,
                PVRDMA_WC_REM_ACCESS_ERR, PVRDMA_QPS_ERR);
        refused(i, (struct vg_wr){.opcode = PVRDMA_WR_RDMA_READ, .remote_addr = MIB - 4},
                8, PVRDMA_WC_REM_ACCESS_ERR, PVRDMA_QPS_ERR);
        refused(i,
                (struct vg_wr){.opcode = PVRDMA_WR_ATOMIC_FETCH_AND_ADD, .rkey = 0x100},
                8, PVRDMA_WC_REM_ACCESS_ERR, PVRDMA_QPS_ERR);
        refused(i, (struct vg_wr){.opcode = PVRDMA_WR_SEND}, 65,
                PVRDMA_WC_REM_INV_REQ_ERR, PVRDMA_QPS_ERR);
        refused(i, (struct vg_wr){.opcode = PVRDMA_WR_SEND}, 200000,
                PVRDMA_WC_REM_INV_REQ_ERR, PVRDMA_QPS_ERR);
        refused(i, (struct vg_wr){.opcode = PVRDMA_WR_SEND}, 8,
                PVRDMA_WC_RNR_RETRY_EXC_ERR, PVRDMA_QPS_RTS);
    }
    end();
}

/* A peer that is not there, and one that is not ready. */
static void test_nobody(void)
{
    const struct vg_conn c = {.timeout = 14, .retry_cnt = 2};
    struct vgt_opts o;
    struct vgt_pair p;

    begin(2);
    o = between(VGT_EXTENDED);
    o.unconnected = true;
    vgt_pair_open(&p, 0, 1, &o);
    for (unsigned i = 0; i < 2; i++) {
        struct vgt_side *a = &p.s[i], *b = &p.s[1 - i];

        for (unsigned there = 0; there < 2; there++) {
            vg_qp_reset_to_rts(a->qp, &b->g->gid, b->qp->qpn ^ (there ? 0 : 64), 0, 0,
                               &c);
            vgt_send(a, 1, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, b, 0);
            vgt_expect(a->scq, 1, PVRDMA_WC_RETRY_EXC_ERR);
            vg_qp_to_reset(a->qp);
        }
    }
    /* And it is as good as new. */
    vg_qp_connect(p.s[0].qp, p.s[1].qp, &c);
    vgt_write_once(&p, 4);
    vgt_pair_close(&p);
    end();
}

/* Receives that come late: nothing is lost, and none is used twice. */
static void test_rnr(gconstpointer style)
{
    const uint64_t n = vgt_rounds(400);
    struct vgt_opts o;
    struct vgt_pair p;

    begin(2);
    o = between((enum vgt_style)GPOINTER_TO_UINT(style));
    o.conn.min_rnr_timer = 31; /* 492 ms: it is told when there is one */
    vgt_pair_open(&p, 0, 1, &o);
    for (uint64_t k = 0; k < n; k++) {
        struct vgt_side *a = &p.s[k % 2], *b = &p.s[1 - k % 2];

        for (uint64_t i = 0; i < 3; i++) {
            vgt_fill(VG_MR_HOST(a->mr, i * 100000), 70000, k * 3 + i);
            vgt_send(a, k * 3 + i, PVRDMA_WR_SEND, VGT_SIG, i * 100000, 70000, NULL, 0);
        }
        if (k == 0) {
            vgt_await_counter("vm0", "datapath", "rnr_waits", 1);
        }
        for (uint64_t i = 0; i < 3; i++) {
            vgt_recv(b, k * 3 + i, 400000, 70000);
            vgt_expect(b->rcq, k * 3 + i, PVRDMA_WC_SUCCESS);
            vgt_check(VG_MR_HOST(b->mr, 400000), 70000, k * 3 + i);
            vgt_expect(a->scq, k * 3 + i, PVRDMA_WC_SUCCESS);
        }
    }
    vgt_pair_close(&p);
    end();
}

/* READs and atomics with a fence behind them. */
static void test_fence(void)
{
    struct vgt_opts o;
    struct vgt_pair p;

    begin(2);
    o = between(VGT_EXTENDED);
    vgt_pair_open(&p, 0, 1, &o);
    for (uint64_t k = 0; k < vgt_rounds(1000); k++) {
        struct vgt_side *a = &p.s[k % 2], *b = &p.s[1 - k % 2];
        uint64_t value = k * 0x100000001ull + 1;

        memcpy(VG_MR_HOST(a->mr, 0), &value, 8);
        vgt_recv(b, k, 192, 64);
        vgt_send(a, 1, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, b, 128);
        vgt_send(a, 2, PVRDMA_WR_RDMA_READ, VGT_SIG, 64, 8, b, 128);
        vgt_send(a, 3, PVRDMA_WR_SEND, VGT_SIG | PVRDMA_SEND_FENCE, 64, 8, NULL, 0);
        vgt_expect(b->rcq, k, PVRDMA_WC_SUCCESS);
        g_assert_cmpmem(VG_MR_HOST(b->mr, 192), 8, &value, 8);
        for (uint64_t i = 1; i <= 3; i++) {
            vgt_expect(a->scq, i, PVRDMA_WC_SUCCESS);
        }
    }
    vgt_pair_close(&p);
    end();
}

int main(int argc, char **argv)
{
    static const struct vgt_both both[] = {
        {"traffic", test_traffic}, {"sizes", test_sizes},
        {"srq", test_srq},         {"three-hosts", test_three_hosts},
        {"rnr", test_rnr},         {"unreliable", test_unreliable},
    };

    vgt_init(&argc, &argv, 240);
    vgt_add_both("/hosts-rc", both, G_N_ELEMENTS(both));
    g_test_add_func("/hosts-rc/solicited", test_solicited);
    g_test_add_func("/hosts-rc/invalidate", test_invalidate);
    g_test_add_func("/hosts-rc/fence", test_fence);
    g_test_add_func("/hosts-rc/refused", test_refused);
    g_test_add_func("/hosts-rc/nobody", test_nobody);
    return vgt_run();
}
