/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: what a guest should not do, one kind per test.  Each is an error of that
 * VM, or of the peer that it is connected to, and is counted there, as `pvrdmactl
 * counters` shows it; VMs 2 and 3 exchange checksummed traffic all the while, in a thread
 * of their own, and nothing is counted for them.
 *
 * VMs 0 and 1 are the bad one and its peer, VM 4 is a peer of another worker.
 */
#include "vgtest.h"

#include <errno.h>
#include <string.h>

#define FAR      0x80000u /* offset of what is received */
#define QKEY     0x11111111u
#define GSI_QKEY 0x80010000u
#define NOWHERE  (1ull << 50)
#define VA       0x7f6600000000ull
#define RIGHTS   (VG_ACCESS_ALL | PVRDMA_ACCESS_MW_BIND)

/* ---- counters ---- */

/* "GROUP.NAME" or "GROUP.SUBGROUP.NAME" of VM @vm. */
static int64_t count_in(JsonNode *all, unsigned vm, const char *path)
{
    g_autofree char *name = g_strdup_printf("vm%u", vm);
    g_auto(GStrv) part = g_strsplit(path, ".", 0);
    JsonObject *o = vg_status_vm(all, name);
    unsigned i = 0;

    for (; part[i + 1]; i++) {
        o = json_object_get_object_member(o, part[i]);
        g_assert_nonnull(o);
    }
    g_assert_true(json_object_has_member(o, part[i]));
    return json_object_get_int_member(o, part[i]);
}

static int64_t count_of(unsigned vm, const char *path)
{
    JsonNode *all = vg_daemon_counters(vgt_daemon);
    int64_t n = count_in(all, vm, path);

    json_node_unref(all);
    return n;
}

struct tally {
    unsigned vm;
    const char *path;
    int64_t before;
};

static struct tally tally(unsigned vm, const char *path)
{
    return (struct tally){vm, path, count_of(vm, path)};
}

#define WRS      "datapath.errors"
#define COMMANDS "device.failed_commands"
#define EVENTS   "device.async_events.pushed"

/* @n more are counted, soon: a worker counts after it told the other side. */
static void counted(const struct tally *t, int64_t n)
{
    int64_t end = vg_now_ns() + VGT_WAIT_MS * 1000000ll;

    while (count_of(t->vm, t->path) < t->before + n) {
        g_assert_cmpint(vg_now_ns(), <, end);
        g_usleep(1000);
    }
    g_assert_cmpint(count_of(t->vm, t->path), ==, t->before + n);
}

/* ---- the traffic of others ---- */

static struct vgt_traffic clean;
static gint clean_rounds, clean_stop;

static gpointer clean_thread(gpointer unused)
{
    while (!g_atomic_int_get(&clean_stop)) {
        vgt_traffic_run(&clean, 2);
        g_atomic_int_inc(&clean_rounds);
        g_usleep(200);
    }
    return NULL;
}

/* All that would show if they had noticed something. */
static int64_t noticed(void)
{
    static const char *const path[] = {WRS, COMMANDS, EVENTS, "device.bad_doorbells",
                                       "device.async_events.dropped"};
    JsonNode *all = vg_daemon_counters(vgt_daemon);
    int64_t n = 0;

    for (unsigned i = 0; i < 2 * G_N_ELEMENTS(path); i++) {
        n += count_in(all, 2 + i % 2, path[i / 2]);
    }
    json_node_unref(all);
    return n;
}

/* ---- one bad thing at a time ---- */

static void post(struct vgt_side *s, struct vg_wr wr)
{
    wr.flags |= VGT_SIG;
    g_assert_cmpuint(vg_post_send(s->qp, &wr, 1), ==, 1);
}

/* 64 bytes from side 0's MR to @va of its peer, under these keys. */
static struct vg_wr write_wr(struct vgt_pair *p, struct pvrdma_sge *sge, uint32_t rkey)
{
    *sge = vg_sge(p->s[0].mr, 0, 64);
    return (struct vg_wr){.wr_id = 1,
                          .opcode = PVRDMA_WR_RDMA_WRITE,
                          .nsge = 1,
                          .sge = sge,
                          .rkey = rkey,
                          .remote_addr = p->s[1].mr->buf->va + FAR};
}

/* Side 0's WR fails with @status, and the pair begins anew. */
static void fails(struct vgt_pair *p, struct vg_wr wr, enum pvrdma_wc_status status)
{
    post(&p->s[0], wr);
    vgt_expect(p->s[0].scq, wr.wr_id, status);
    g_assert_cmpuint(vg_qp_state(p->s[0].qp), ==, PVRDMA_QPS_ERR);
    vgt_pair_reconnect(p, NULL);
}

/* Local keys: another PD's, another VM's, nobody's. */
static void bad_lkey(void)
{
    struct tally own, peer;
    struct vgt_pair p;
    struct vg_pd *pd;
    struct vg_mr *mr;
    uint32_t key[4];

    vgt_pair_open(&p, 0, 1, NULL);
    pd = vg_pd_new(p.s[0].g);
    mr = vg_mr_alloc(pd, p.s[0].mr->buf->va, 1 << 20, VG_ACCESS_ALL);
    key[0] = mr->lkey;
    key[1] = p.s[1].mr->lkey ^ 0x5500; /* none of VM 0's, whatever its number */
    key[2] = 0;
    key[3] = UINT32_MAX;
    own = tally(0, WRS);
    peer = tally(1, WRS);
    for (unsigned i = 0; i < G_N_ELEMENTS(key); i++) {
        struct pvrdma_sge sge;
        struct vg_wr wr = write_wr(&p, &sge, p.s[1].mr->rkey);

        sge.lkey = key[i];
        fails(&p, wr, PVRDMA_WC_LOC_PROT_ERR);
    }
    counted(&own, G_N_ELEMENTS(key));
    counted(&peer, 0);
    vgt_write_once(&p, 1);
    vg_mr_free(mr);
    vg_pd_free(pd);
    vgt_pair_close(&p);
}

/* Remote keys: of another PD there, of its own, of another VM, of one that is gone. */
static void bad_rkey(void)
{
    struct tally own, peer, told;
    struct vgt_pair p;
    struct vg_pd *pd;
    struct vg_mr *mr;
    uint32_t key[4];

    vgt_pair_open(&p, 0, 1, NULL);
    pd = vg_pd_new(p.s[1].g);
    mr = vg_mr_alloc(p.s[1].pd, p.s[1].mr->buf->va, 1 << 20, VG_ACCESS_ALL);
    key[0] = mr->rkey;
    vg_mr_free(mr);
    mr = vg_mr_alloc(pd, p.s[1].mr->buf->va, 1 << 20, VG_ACCESS_ALL);
    key[1] = mr->rkey;
    key[2] = p.s[1].mr->rkey ^ 0x80; /* another generation */
    key[3] = p.s[1].mr->rkey + 0x5500;
    memset(VG_MR_HOST(p.s[1].mr, FAR), 0xee, 64);
    own = tally(0, WRS);
    peer = tally(1, WRS);
    told = tally(1, EVENTS);
    for (unsigned i = 0; i < G_N_ELEMENTS(key); i++) {
        struct pvrdma_sge sge;

        fails(&p, write_wr(&p, &sge, key[i]), PVRDMA_WC_REM_ACCESS_ERR);
        g_assert_true(vg_event_wait(p.s[1].g, PVRDMA_EVENT_QP_ACCESS_ERR,
                                    p.s[1].qp->handle, VGT_WAIT_MS));
    }
    counted(&own, G_N_ELEMENTS(key));
    counted(&peer, G_N_ELEMENTS(key));
    g_assert_cmpint(count_of(1, EVENTS), >=, told.before + (int)G_N_ELEMENTS(key));
    for (unsigned i = 0; i < 64; i++) {
        g_assert_cmphex(*VG_MR_HOST(p.s[1].mr, FAR + i), ==, 0xee);
    }
    vgt_write_once(&p, 1);
    vg_mr_free(mr);
    vg_pd_free(pd);
    vgt_pair_close(&p);
}

/*
 * A key is invalidated while peers of both workers WRITE by it: nothing is stored after
 * the end was told, each of them fails, and each failure is counted on both sides.
 */
static void invalidated(void)
{
    enum { LEN = 65536 };
    struct vgt_opts o = {.kernel = true};
    struct tally own, near, far;
    struct vgt_pair p[2];
    struct vgt_side s;
    struct vg_mr *mr;
    unsigned n = vgt_rounds(40);

    vgt_side_open(&s, 0, &o, 0);
    for (unsigned i = 0; i < 2; i++) {
        p[i].s[1] = s;
        vgt_side_open(&p[i].s[0], i ? 4 : 1, &o, 0);
        p[i].s[1].qp = vg_qp_new(s.pd, s.scq, s.rcq, NULL);
    }
    g_assert_cmpuint(vgt_worker_of(1), !=, vgt_worker_of(4));
    vg_qp_connect(s.qp, s.qp, NULL);
    mr = vg_mr_new_fast(s.pd, vg_buf_new(s.g, VA, LEN, VG_SCATTERED), 16);
    own = tally(0, WRS);
    near = tally(1, WRS);
    far = tally(4, WRS);
    for (unsigned round = 0; round < n; round++) {
        post(&s, vg_wr_fast_reg(mr, 70, VG_ACCESS_ALL));
        vgt_expect(s.scq, 70, PVRDMA_WC_SUCCESS);
        for (unsigned i = 0; i < 2; i++) {
            struct pvrdma_sge sge = vg_sge(p[i].s[0].mr, 0, LEN);
            struct vg_wr wr = {.opcode = PVRDMA_WR_RDMA_WRITE,
                               .remote_addr = VA,
                               .rkey = mr->rkey,
                               .nsge = 1,
                               .sge = &sge};

            vgt_pair_reconnect(&p[i], NULL);
            memset(p[i].s[0].mr->buf->host, 1 + i, LEN);
            for (unsigned k = 0; k < 40; k++) {
                g_assert_cmpuint(vg_queue_send(p[i].s[0].qp, &wr, 1), ==, 1);
            }
            vg_ring_send(p[i].s[0].qp);
        }
        g_usleep(round % 7 * 20);
        post(&s,
             (struct vg_wr){.wr_id = 71, .opcode = PVRDMA_WR_LOCAL_INV, .imm = mr->rkey});
        vgt_expect(s.scq, 71, PVRDMA_WC_SUCCESS);
        memset(mr->buf->host, 0x5c, LEN);
        for (unsigned i = 0; i < 2; i++) { /* one more, if all of them came through */
            struct pvrdma_sge sge = vg_sge(p[i].s[0].mr, 0, LEN);
            struct pvrdma_cqe c;

            post(&p[i].s[0], (struct vg_wr){.wr_id = 1,
                                            .opcode = PVRDMA_WR_RDMA_WRITE,
                                            .remote_addr = VA,
                                            .rkey = mr->rkey,
                                            .nsge = 1,
                                            .sge = &sge});
            g_assert_true(vg_cq_wait(p[i].s[0].scq, &c, VGT_WAIT_MS));
            g_assert_cmpuint(c.status, ==, PVRDMA_WC_REM_ACCESS_ERR);
        }
        for (uint32_t i = 0; i < LEN; i++) {
            g_assert_cmphex(mr->buf->host[i], ==, 0x5c);
        }
    }
    counted(&own, 2 * n);
    counted(&near, n);
    counted(&far, n);
    vg_mr_free(mr);
    for (unsigned i = 0; i < 2; i++) {
        vg_qp_free(p[i].s[1].qp);
        vgt_side_close(&p[i].s[0]);
    }
    vgt_side_close(&s);
}

/* Addresses that are another VM's, or nobody's, to receive at or to send from. */
static void spoofed_gid(void)
{
    struct vgt_opts o = {.qp = {.type = PVRDMA_QPT_UD}, .unconnected = true};
    struct pvrdma_gid held = vg_gid(2), free_one = vg_gid(77);
    struct tally commands, wrs, got;
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, &o);
    for (unsigned i = 0; i < 2; i++) {
        g_assert_cmpint(vg_ud_to_rts(p.s[i].qp, QKEY), ==, 0);
    }
    commands = tally(0, COMMANDS);
    g_assert_cmpint(vg_bind_gid(p.s[0].g, 1, &held), >, 0);
    g_assert_cmpint(vg_bind_gid(p.s[0].g, 1, &free_one), >, 0);
    g_assert_cmpint(vg_bind_gid(p.s[0].g, 1, &p.s[1].g->gid), >, 0);
    g_assert_cmpint(vg_unbind_gid(p.s[0].g, 0, &held), >, 0);
    counted(&commands, 4);

    wrs = tally(0, WRS);
    got = tally(1, "datagrams.received");
    for (unsigned index = 1; index < 4; index++) {
        struct pvrdma_av av = vg_av(p.s[0].pd, (uint8_t)index, &p.s[1].g->gid);
        struct pvrdma_qp_attr a = {.qp_state = PVRDMA_QPS_RTS};

        post(&p.s[0], (struct vg_wr){.wr_id = 1,
                                     .opcode = PVRDMA_WR_SEND,
                                     .av = &av,
                                     .remote_qpn = p.s[1].qp->qpn,
                                     .remote_qkey = QKEY});
        vgt_expect(p.s[0].scq, 1, PVRDMA_WC_LOC_QP_OP_ERR);
        g_assert_cmpint(vg_modify_qp(p.s[0].g, p.s[0].qp->handle, PVRDMA_QP_STATE, &a),
                        ==, 0);
    }
    counted(&wrs, 3);
    counted(&got, 0);
    vgt_pair_close(&p);
}

/* Management datagrams that are wrong in the one or the other field. */
static void bad_mad(void)
{
    struct vgt_opts o = {
        .qp = {.type = PVRDMA_QPT_GSI}, .unconnected = true, .kernel = true};
    static const enum {
        AH_PD,
        AH_PORT,
        AH_GID,
        TOO_LONG,
        OPCODE,
        NOBODY
    } how[] = {AH_PD, AH_PORT, AH_GID, TOO_LONG, OPCODE, NOBODY};
    struct pvrdma_gid nobody = vg_gid(77);
    struct tally wrs, lost, qkey, no_qp;
    struct vgt_pair p;
    struct vg_pd *pd;

    vgt_pair_open(&p, 0, 1, &o);
    for (unsigned i = 0; i < 2; i++) {
        g_assert_cmpint(vg_ud_to_rts(p.s[i].qp, GSI_QKEY), ==, 0);
    }
    pd = vg_pd_new_kernel(p.s[0].g);
    vgt_recv(&p.s[1], 500, FAR, 512);
    wrs = tally(0, WRS);
    lost = tally(0, "datagrams.to_nobody");
    qkey = tally(1, "datagrams.qkey_violations");
    no_qp = tally(1, "datagrams.no_qp");
    for (unsigned i = 0; i < G_N_ELEMENTS(how) + 2; i++) {
        struct pvrdma_qp_attr a = {.qp_state = PVRDMA_QPS_RTS};
        struct pvrdma_sge sge = vg_sge(p.s[0].mr, 0, i == TOO_LONG ? 4097 : 256);
        struct pvrdma_av av = vg_av(p.s[0].pd, 0, &p.s[1].g->gid);
        struct vg_wr wr = {.wr_id = i,
                           .opcode = PVRDMA_WR_SEND,
                           .nsge = 1,
                           .sge = &sge,
                           .av = &av,
                           .remote_qpn = 1,
                           .remote_qkey = GSI_QKEY};
        enum pvrdma_wc_status status = PVRDMA_WC_LOC_QP_OP_ERR;

        switch (i) {
        case AH_PD:
            av.port_pd = pd->handle | 1u << 24;
            break;
        case AH_PORT:
            av.port_pd += 1u << 24;
            break;
        case AH_GID:
            av.gid_index = 9;
            break;
        case TOO_LONG:
            status = PVRDMA_WC_LOC_LEN_ERR;
            break;
        case OPCODE:
            wr.opcode = PVRDMA_WR_RDMA_READ;
            break;
        case NOBODY:
            memcpy(av.dgid, nobody.raw, sizeof(av.dgid));
            status = PVRDMA_WC_RETRY_EXC_ERR;
            break;
        case NOBODY + 1: /* sent, and dropped there */
            wr.remote_qkey = QKEY;
            status = PVRDMA_WC_SUCCESS;
            break;
        default:
            wr.remote_qpn = p.s[1].qp->qpn;
            status = PVRDMA_WC_SUCCESS;
            break;
        }
        post(&p.s[0], wr);
        vgt_expect(p.s[0].scq, i, status);
        if (status != PVRDMA_WC_SUCCESS) {
            g_assert_cmpint(
                vg_modify_qp(p.s[0].g, p.s[0].qp->handle, PVRDMA_QP_STATE, &a), ==, 0);
        }
    }
    counted(&wrs, G_N_ELEMENTS(how));
    counted(&lost, 1);
    counted(&qkey, 1);
    counted(&no_qp, 1);
    vgt_expect_none(p.s[1].rcq, 5);
    vg_pd_free(pd);
    vgt_pair_close(&p);
}

/* Handles that are none, another's, or of a thing that is still in use. */
static void bad_handles(void)
{
    static const uint32_t none[] = {0, 77, UINT32_MAX};
    struct pvrdma_resp_create_mr mr_resp;
    struct pvrdma_resp_create_cq cq_resp;
    struct pvrdma_resp_create_qp qp_resp;
    struct pvrdma_qp_attr attr;
    struct tally t;
    struct vgt_pair p;
    struct vguest *g;
    unsigned n = 0;

    vgt_pair_open(&p, 0, 1, NULL);
    g = p.s[0].g;
    t = tally(0, COMMANDS);
    for (unsigned i = 0; i < G_N_ELEMENTS(none); i++) {
        struct pvrdma_cmd_create_mr mr = {.start = VA,
                                          .length = 4096,
                                          .pd_handle = none[i],
                                          .access_flags = VG_ACCESS_ALL,
                                          .nchunks = 1,
                                          .pdir_dma = p.s[0].mr->pdir};
        struct pvrdma_cmd_create_cq cq = {.ctx_handle = none[i] ? none[i] : 78,
                                          .cqe = 64,
                                          .nchunks = 2,
                                          .pdir_dma = p.s[0].mr->pdir};
        struct pvrdma_cmd_create_qp qp = {.pd_handle = none[i],
                                          .send_cq_handle = p.s[0].scq->handle,
                                          .recv_cq_handle = p.s[0].rcq->handle,
                                          .max_send_wr = 16,
                                          .max_recv_wr = 16,
                                          .max_send_sge = 1,
                                          .max_recv_sge = 1,
                                          .qp_type = PVRDMA_QPT_RC,
                                          .total_chunks = 3,
                                          .send_chunks = 1,
                                          .pdir_dma = p.s[0].mr->pdir};

        g_assert_cmpint(vg_create_mr(g, &mr, &mr_resp), >, 0);
        g_assert_cmpint(vg_create_cq(g, &cq, &cq_resp), >, 0);
        g_assert_cmpint(vg_create_qp(g, &qp, &qp_resp), >, 0);
        g_assert_cmpint(vg_query_qp(g, none[i], &attr), >, 0);
        g_assert_cmpint(vg_destroy(g, PVRDMA_CMD_DESTROY_QP, none[i]), >, 0);
        g_assert_cmpint(vg_destroy(g, PVRDMA_CMD_DESTROY_PD, none[i]), >, 0);
        n += 6;
    }
    /* In use: by traffic, too. */
    vgt_send(&p.s[0], 1, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 400000, &p.s[1], 0);
    g_assert_cmpint(vg_destroy(g, PVRDMA_CMD_DESTROY_CQ, p.s[0].scq->handle), ==, EBUSY);
    g_assert_cmpint(vg_destroy(g, PVRDMA_CMD_DESTROY_PD, p.s[0].pd->handle), ==, EBUSY);
    vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS);
    counted(&t, n + 2);
    vgt_pair_close(&p);
}

/* More than the queue holds, and indices that are none. */
static void past_the_ring(void)
{
    static const uint32_t bad[] = {100, 128, 0x80000000u, UINT32_MAX}; /* 64 WQEs */

    for (unsigned ext = 0; ext < 2; ext++) {
        struct vgt_opts o = {.guest[0].db = ext ? VG_DB_EXT : VG_DB_SHARED};
        struct vgt_pair p;

        vgt_pair_open(&p, 0, 1, &o);
        for (unsigned i = 0; i < 2 * G_N_ELEMENTS(bad); i++) {
            struct tally t = tally(0, EVENTS), peer = tally(1, EVENTS);
            struct vg_qp *qp = p.s[0].qp;

            if (i % 2) { /* the receive queue is looked at when something comes */
                *qp->rq.prod_tail = bad[i / 2];
                vgt_send(&p.s[1], 1, PVRDMA_WR_SEND, 0, 0, 8, NULL, 0);
                vgt_expect(p.s[1].scq, 1, PVRDMA_WC_REM_OP_ERR);
            } else {
                *qp->sq.prod_tail = bad[i / 2];
                vg_ring_send(qp);
            }
            g_assert_true(
                vg_event_wait(p.s[0].g, PVRDMA_EVENT_QP_FATAL, qp->handle, VGT_WAIT_MS));
            counted(&t, 1);
            counted(&peer, 0);
            vgt_pair_reconnect(&p, NULL);
        }
        vgt_pair_close(&p);
    }
}

/* Doorbells for what is not the page's: another context's, nobody's. */
static void foreign_doorbells(void)
{
    struct vgt_opts o = {.guest = {{.db = VG_DB_REPLY}, {.db = VG_DB_REPLY}}};
    struct vgt_pair p;
    struct vguest *g;
    struct tally t;
    uint32_t other;

    vgt_pair_open(&p, 0, 1, &o);
    g = p.s[0].g;
    g_assert_cmpint(vg_create_uc(g, VG_UAR_PFN + 7, &other), ==, 0);
    t = tally(0, "device.bad_doorbells");
    for (unsigned i = 0; i < 100; i++) {
        vg_doorbell(g, 7, PVRDMA_UAR_QP, p.s[0].qp->handle | PVRDMA_UAR_QP_SEND);
        vg_doorbell(g, 7, PVRDMA_UAR_CQ, p.s[0].scq->handle | PVRDMA_UAR_CQ_ARM);
        vg_doorbell(g, g->uar_page, PVRDMA_UAR_QP, 999 | PVRDMA_UAR_QP_SEND);
    }
    counted(&t, 300);
    g_assert_cmpint(vg_destroy(g, PVRDMA_CMD_DESTROY_UC, other), ==, 0);
    vgt_write_once(&p, 1);
    vgt_pair_close(&p);
}

/* ---- CQs ---- */

static void overrun(void)
{
    struct vgt_opts o = {.cqe = 4, .qp = {.send_wr = 16}};
    struct tally t, peer;
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, &o);
    t = tally(0, EVENTS);
    peer = tally(1, EVENTS);
    for (unsigned i = 0; i < 12; i++) {
        vgt_send(&p.s[0], i, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p.s[1], 0);
    }
    g_assert_true(
        vg_event_wait(p.s[0].g, PVRDMA_EVENT_CQ_ERR, p.s[0].scq->handle, VGT_WAIT_MS));
    counted(&t, 2); /* and QP_FATAL */
    counted(&peer, 0);
    vgt_pair_close(&p);
}

struct resizer {
    struct vg_cq *cq;
    gint refused;
    unsigned done;
};

static gpointer resize_thread(gpointer data)
{
    struct resizer *r = data;
    int err;

    while ((err = vg_cq_resize(r->cq, 16u << r->done % 3)) == 0) {
        r->done++;
    }
    g_assert_cmpint(err, >, 0);
    g_atomic_int_set(&r->refused, 1);
    return NULL;
}

/*
 * A CQ gets one ring after the other (which takes out what is in it) until more come than
 * the present one has room for.  It fails once; it gets no other ring then, as is
 * counted.
 */
static void overrun_resized(void)
{
    struct vgt_opts o = {.cqe = 16, .qp = {.send_wr = 128}, .guest[0].db = VG_DB_EXT};
    unsigned done = 0;

    for (unsigned round = 0; round < vgt_rounds(30); round++) {
        struct tally commands, events, peer;
        struct resizer r = {0};
        struct pvrdma_sge sge;
        struct vgt_pair p;
        struct vg_wr wr;
        GThread *t;

        vgt_pair_open(&p, 0, 1, &o);
        wr = write_wr(&p, &sge, p.s[1].mr->rkey);
        wr.flags = VGT_SIG;
        commands = tally(0, COMMANDS);
        events = tally(0, EVENTS);
        peer = tally(1, EVENTS);
        r.cq = p.s[0].scq;
        t = g_thread_new("resize", resize_thread, &r);
        for (unsigned i = 0; !g_atomic_int_get(&r.refused); i++) {
            for (unsigned k = 0; k < 1 + i / 2 % 80; k++) {
                vg_queue_send(p.s[0].qp, &wr, 1); /* or not: the queue is full */
            }
            vg_ring_send(p.s[0].qp);
            g_usleep(200);
        }
        g_thread_join(t);
        g_assert_true(vg_event_wait(p.s[0].g, PVRDMA_EVENT_CQ_ERR, p.s[0].scq->handle,
                                    VGT_WAIT_MS));
        counted(&events, 2);
        counted(&peer, 0);
        counted(&commands, 1);
        done += r.done;
        vgt_pair_close(&p);
    }
    g_test_message("after %u resizes", done);
    g_assert_cmpuint(done, >, 0);
}

/* ---- windows, and ends of keys that are others' ---- */

static uint32_t window_new(struct vg_pd *pd, uint32_t type, uint32_t *handle)
{
    struct pvrdma_ext_cmd_create_mw req = {
        .cmd = PVRDMA_CMD_CREATE_MW, .pd_handle = pd->handle, .type = type};
    struct pvrdma_resp_create_mr resp;

    g_assert_cmpint(vg_command(pd->g, &req, sizeof(req), &resp, sizeof(resp)), ==, 0);
    *handle = resp.mr_handle;
    return resp.rkey;
}

static void window_free(struct vg_pd *pd, uint32_t handle)
{
    g_assert_cmpint(vg_destroy(pd->g, (enum pvrdma_cmd)PVRDMA_CMD_DESTROY_MW, handle), ==,
                    0);
}

static struct vg_wr bind_wr(const struct vg_mr *mr, uint32_t rkey)
{
    return (struct vg_wr){.wr_id = 80,
                          .opcode = PVRDMA_WR_BIND_MW,
                          .flags = VGT_SIG,
                          .bind = {.addr = mr->buf->va,
                                   .length = 4096,
                                   .lkey = mr->lkey,
                                   .access_flags = PVRDMA_ACCESS_REMOTE,
                                   .rkey = rkey}};
}

static const struct vgt_opts programs = {.guest = {{.db = VG_DB_EXT}, {.db = VG_DB_EXT}}};

/* VM 0 binds and uses what is another PD's, another VM's, or another queue pair's. */
static void bad_windows(void)
{
    struct tally own, peer;
    struct vgt_pair p;
    struct vg_pd *pd;
    struct vg_mr *mr, *other_mr;
    struct vg_qp *bound;
    struct pvrdma_sge sge;
    uint32_t handle[3], key[3];

    vgt_pair_open(&p, 0, 1, &programs);
    pd = vg_pd_new(p.s[0].g);
    mr = vg_mr_alloc(p.s[0].pd, VA, 8192, RIGHTS);
    other_mr = vg_mr_alloc(pd, VA, 8192, RIGHTS);
    key[0] = window_new(p.s[0].pd, PVRDMA_EXT_MW_TYPE_2B, &handle[0]);
    key[1] = window_new(pd, PVRDMA_EXT_MW_TYPE_2B, &handle[1]);
    key[2] = window_new(p.s[1].pd, PVRDMA_EXT_MW_TYPE_2B, &handle[2]);
    own = tally(0, WRS);
    peer = tally(1, WRS);
    fails(&p, bind_wr(other_mr, key[0]), PVRDMA_WC_MW_BIND_ERR);
    fails(&p, bind_wr(mr, key[1]), PVRDMA_WC_MW_BIND_ERR);
    fails(&p, bind_wr(mr, key[2] ^ 0x5500), PVRDMA_WC_MW_BIND_ERR);
    fails(&p, bind_wr(p.s[1].mr, key[0]), PVRDMA_WC_MW_BIND_ERR);
    counted(&own, 4);
    counted(&peer, 0);

    /* VM 1's window is for the queue pair that bound it, not for this one. */
    vg_mr_free(mr);
    mr = vg_mr_alloc(p.s[1].pd, VA, 8192, RIGHTS);
    key[2] = (key[2] & ~0xffu) | ((key[2] + 1) & 0xff);
    post(&p.s[1], bind_wr(mr, key[2]));
    vgt_expect(p.s[1].scq, 80, PVRDMA_WC_SUCCESS);
    bound = p.s[1].qp;
    p.s[1].qp = vg_qp_new(p.s[1].pd, p.s[1].scq, p.s[1].rcq, NULL);
    vgt_pair_reconnect(&p, NULL);
    for (unsigned i = 0; i < 2; i++) {
        struct vg_wr wr = write_wr(&p, &sge, key[2]);

        wr.remote_addr = VA;
        if (i) { /* nor ended */
            wr.opcode = PVRDMA_WR_SEND_WITH_INV;
            wr.imm = key[2];
            vgt_recv(&p.s[1], 9, 0, 64);
        }
        fails(&p, wr, PVRDMA_WC_REM_ACCESS_ERR);
    }
    counted(&own, 6);
    counted(&peer, 2);
    vg_qp_free(bound);
    window_free(p.s[0].pd, handle[0]);
    window_free(pd, handle[1]);
    window_free(p.s[1].pd, handle[2]);
    vg_mr_free(mr);
    vg_mr_free(other_mr);
    vg_pd_free(pd);
    vgt_pair_close(&p);
}

/* SEND with invalidate of keys that are not the queue pair's to give away. */
static void foreign_inv(void)
{
    struct vgt_opts o = {.kernel = true};
    struct tally own, peer;
    struct vgt_pair p;
    struct vg_pd *pd;
    struct vg_mr *mr, *local;
    uint32_t key[5];

    vgt_pair_open(&p, 0, 1, &o);
    pd = vg_pd_new_kernel(p.s[1].g);
    mr = vg_mr_new_fast(pd, vg_buf_new(p.s[1].g, VA, 8192, VG_SCATTERED), 2);
    local = vg_mr_new_fast(p.s[1].pd, vg_buf_new(p.s[1].g, VA, 8192, VG_SCATTERED), 2);
    post(&p.s[1], vg_wr_fast_reg(local, 70, PVRDMA_ACCESS_LOCAL_WRITE));
    vgt_expect(p.s[1].scq, 70, PVRDMA_WC_SUCCESS);
    key[0] = p.s[1].mr->rkey; /* no fast registration */
    key[1] = mr->rkey;        /* of another PD */
    key[2] = 0;
    key[3] = p.s[0].mr->rkey ^ 0x5500;
    key[4] = local->rkey; /* it has no remote right: not the peer's to end */
    own = tally(0, WRS);
    peer = tally(1, WRS);
    for (unsigned i = 0; i < G_N_ELEMENTS(key); i++) {
        vgt_recv(&p.s[1], 9, 0, 64);
        post(&p.s[0], (struct vg_wr){
                          .wr_id = 5, .opcode = PVRDMA_WR_SEND_WITH_INV, .imm = key[i]});
        vgt_expect(p.s[0].scq, 5, PVRDMA_WC_REM_ACCESS_ERR);
        vgt_expect(p.s[1].rcq, 9, PVRDMA_WC_MW_BIND_ERR);
        vgt_pair_reconnect(&p, NULL);
    }
    counted(&own, G_N_ELEMENTS(key));
    counted(&peer, G_N_ELEMENTS(key));
    vgt_write_once(&p, 1); /* key[0] is as good as before */
    vg_mr_free(local);
    vg_mr_free(mr);
    vg_pd_free(pd);
    vgt_pair_close(&p);
}

/* ---- unreliable connections ---- */

static void bad_uc(void)
{
    struct vgt_opts o = programs;
    struct tally wrs, denied, none, peer;
    struct vgt_pair p;
    struct pvrdma_sge sge;
    struct vg_wr wr;

    o.qp.type = PVRDMA_QPT_UC;
    vgt_pair_open(&p, 0, 1, &o);
    wrs = tally(0, WRS);
    peer = tally(1, WRS);
    denied = tally(1, "uc_dropped.access_denied");
    none = tally(1, "uc_dropped.no_receive");
    for (unsigned i = 0; i < 3; i++) {
        wr = write_wr(&p, &sge, p.s[1].mr->rkey + 0x5500 * (i == 0));
        wr.remote_addr += i == 1 ? 1 << 20 : 0;
        wr.opcode = i == 2 ? PVRDMA_WR_SEND : wr.opcode;
        post(&p.s[0], wr);
        vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS); /* it cannot know */
    }
    counted(&denied, 2);
    counted(&none, 1);
    counted(&wrs, 0);
    for (unsigned i = 0; i < 4; i++) {
        static const uint32_t op[] = {PVRDMA_WR_RDMA_READ, PVRDMA_WR_ATOMIC_FETCH_AND_ADD,
                                      PVRDMA_WR_SEND_WITH_INV, PVRDMA_WR_SEND};

        wr = write_wr(&p, &sge, p.s[1].mr->rkey);
        wr.opcode = op[i];
        sge.lkey ^= op[i] == PVRDMA_WR_SEND ? 0x5500 : 0;
        post(&p.s[0], wr);
        vgt_expect(p.s[0].scq, 1,
                   op[i] == PVRDMA_WR_SEND ? PVRDMA_WC_LOC_PROT_ERR
                                           : PVRDMA_WC_LOC_QP_OP_ERR);
        g_assert_cmpuint(vg_qp_state(p.s[0].qp), ==, PVRDMA_QPS_SQE);
        g_assert_cmpuint(vg_qp_state(p.s[1].qp), ==, PVRDMA_QPS_RTS);
        vgt_pair_reconnect(&p, NULL);
    }
    counted(&wrs, 4);
    counted(&peer, 0);
    vgt_pair_close(&p);
}

/* ---- commands ---- */

/* As many as go, all of them wrong. */
static void command_flood(void)
{
    unsigned n = vgt_rounds(20000), bad = 0;
    struct tally t, ns;
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, NULL);
    t = tally(0, COMMANDS);
    ns = tally(0, "device.command_ns");
    for (unsigned i = 0; i < n; i++) {
        union pvrdma_cmd_req req = {.hdr.cmd = i % 50};
        union pvrdma_cmd_resp resp, *in_resp;

        memset((uint8_t *)&req + sizeof(req.hdr), 0xff, sizeof(req) - sizeof(req.hdr));
        in_resp = req.hdr.cmd == PVRDMA_CMD_MODIFY_QP ? &resp : NULL; /* its error is */
        bad += vg_command(p.s[0].g, &req, sizeof(req), in_resp, sizeof(resp)) != 0;
    }
    g_assert_cmpuint(bad, >, n / 10 * 9); /* all but a few contexts */
    counted(&t, bad);
    g_assert_cmpint(count_of(0, ns.path), >, ns.before);
    vgt_write_once(&p, 1);
    vgt_pair_close(&p);
}

static int add_vector(struct vguest *g, uint32_t vector, uint64_t pdir, uint32_t npages)
{
    struct pvrdma_ext_cmd_vector req = {.cmd = PVRDMA_CMD_ADD_VECTOR,
                                        .vector = vector,
                                        .pdir_dma = pdir,
                                        .npages = npages};

    return vg_command(g, &req, sizeof(req), NULL, 0);
}

/* Vectors over and over, with rings that are one page, nobody's, or each other. */
static void vector_flood(void)
{
    struct vguest *g = vguest_new(vgt_daemon, 0, &(struct vg_opts){.db = VG_DB_EXT});
    struct vg_buf *ring = vg_buf_new(g, 0, 4096, VG_CONTIG);
    uint64_t same[64], pdir;
    struct vg_usage before;
    struct tally t = tally(0, COMMANDS);
    int64_t bad = 0;

    for (unsigned i = 0; i < G_N_ELEMENTS(same); i++) {
        same[i] = ring->page[0];
    }
    pdir = vg_pdir_new(g, same, G_N_ELEMENTS(same));
    vgt_usage_settled(&before);
    for (unsigned round = 0; round < vgt_rounds(20); round++) {
        for (unsigned i = 0; i < 200; i++) {
            unsigned vector = i % (PVRDMA_EXT_MAX_VECTORS + 2);
            uint32_t npages = i % 3 ? 64 : 65;

            bad += add_vector(g, vector, pdir + (i % 5 ? 0 : NOWHERE), npages) != 0;
        }
        g_assert_cmpint(bad, >, 0);
        counted(&t, bad);
        g_assert_cmpint(vg_reset(g), ==, 0);
        g->up = false;
        g_assert_cmpint(vg_bring_up(g), ==, 0);
    }
    vgt_usage_returns(&before);
    vg_pdir_free(g, pdir, G_N_ELEMENTS(same));
    vg_buf_free(ring);
    vguest_free(g);
}

/* ---- page directories that lie ---- */

struct flip {
    uint64_t *word, good, bad;
    gint stop;
};

static gpointer flip_thread(gpointer data)
{
    struct flip *f = data;

    while (!g_atomic_int_get(&f->stop)) {
        __atomic_store_n(f->word, f->bad, __ATOMIC_RELAXED);
        __atomic_store_n(f->word, f->good, __ATOMIC_RELAXED);
    }
    return NULL;
}

/* MR of @n pages by a deep directory at @top; 0 or the error, which is counted. */
static int deep(struct vg_pd *pd, uint64_t top, uint32_t n,
                struct pvrdma_resp_create_mr *resp)
{
    struct pvrdma_cmd_create_mr req = {.start = VA,
                                       .length = n * 4096ull,
                                       .pd_handle = pd->handle,
                                       .access_flags = VG_ACCESS_ALL,
                                       .flags = PVRDMA_EXT_MR_DEEP,
                                       .nchunks = n,
                                       .pdir_dma = top};
    struct tally t = tally(0, COMMANDS);
    int err = vg_create_mr(pd->g, &req, resp);

    g_assert_cmpint(err, >=, 0);
    counted(&t, err != 0);
    return err;
}

/* One page at all three levels: it names itself. */
static void lying_loop(struct vg_pd *pd)
{
    struct pvrdma_resp_create_mr resp;
    uint64_t page = vg_alloc_page(pd->g), *entry = vg_ptr(pd->g, page);
    int64_t pages = count_of(0, "objects.pages");

    for (unsigned i = 0; i < 512; i++) {
        entry[i] = page;
    }
    /* All of its memory is one page, that the guest has: its own affair. */
    g_assert_cmpint(deep(pd, page, 3 * 262144, &resp), ==, 0);
    g_assert_cmpint(count_of(0, "objects.pages"), ==, pages + 3 * 262144);
    g_assert_cmpint(vg_destroy(pd->g, PVRDMA_CMD_DESTROY_MR, resp.mr_handle), ==, 0);
    /* Beyond the VM's limit, and beyond what can be. */
    g_assert_cmpint(deep(pd, page, 5 * 262144, &resp), ==, ENOSPC);
    g_assert_cmpint(deep(pd, page, 1u << 31, &resp), >, 0);
    entry[1] = NOWHERE;
    g_assert_cmpint(deep(pd, page, 262144, &resp), ==, EFAULT);
    g_assert_cmpint(count_of(0, "objects.pages"), ==, pages);
    vg_free_pages(pd->g, page, 1);
}

/* The levels share their pages and change while they are read: at which does not matter.
 */
static void lying_changes(struct vg_pd *pd)
{
    enum { N = 2 * 262144 };
    uint64_t top = vg_alloc_pages(pd->g, 4), page = top + 3 * 4096;
    int64_t pages = count_of(0, "objects.pages");
    unsigned failed = 0, done = 0, rounds = vgt_rounds(30);

    for (unsigned level = 0; level < 3; level++) {
        uint64_t *entry = vg_ptr(pd->g, top + level * 4096);

        for (unsigned i = 0; i < 512; i++) {
            entry[i] = top + (level + 1) * 4096;
        }
    }
    for (unsigned i = 0; i < rounds || !failed; i++) {
        uint64_t *table = vg_ptr(pd->g, top + i % 3 * 4096);
        struct flip f = {.word = &table[i % 3 ? 17 : 1],
                         .good = i % 3 == 2 ? page : top + (i % 3 + 1) * 4096};
        struct pvrdma_resp_create_mr resp;
        GThread *t;

        f.bad = f.good ^ (i & 1 ? NOWHERE : 8);
        t = g_thread_new("flip", flip_thread, &f);
        if (deep(pd, top, N, &resp) == 0) {
            g_assert_cmpint(vg_destroy(pd->g, PVRDMA_CMD_DESTROY_MR, resp.mr_handle), ==,
                            0);
            done++;
        } else {
            failed++;
        }
        g_atomic_int_set(&f.stop, 1);
        g_thread_join(t);
        g_assert_cmpint(count_of(0, "objects.pages"), ==, pages);
    }
    g_test_message("%u were refused, %u had it right", failed, done);
    vg_free_pages(pd->g, top, 4);
}

static void lying_directories(void)
{
    struct vguest *g = vguest_new(vgt_daemon, 0, NULL);
    struct vg_pd *pd = vg_pd_new(g);

    lying_loop(pd);
    lying_changes(pd);
    vg_pd_free(pd);
    vguest_free(g);
}

/*
 * What a driver finds behind a dma-buf is claimed like any other memory, by its pages:
 * a device's, such as our own BAR, half of them RAM, or RAM that goes later.
 */
static void claimed_device_memory(void)
{
    const uint64_t unplugged = 0x300000000ull, bar = VG_UAR_PFN << 12;
    const uint64_t claim[][2] = {{bar, bar + 4096}, {0, bar}, {bar, 0}, {0, unplugged}};
    struct vgt_pair p;
    struct pvrdma_resp_create_mr resp;
    struct pvrdma_cmd_create_mr req = {
        .start = VA, .length = 8192, .access_flags = VG_ACCESS_ALL, .nchunks = 2};
    struct tally commands, wrs, peer;
    struct pvrdma_sge sge;
    struct vg_wr wr;
    uint64_t pdir;

    vgt_pair_open(&p, 1, 0, NULL); /* VM 1 will write there */
    req.pd_handle = p.s[1].pd->handle;
    commands = tally(0, COMMANDS);
    for (unsigned i = 0; i < G_N_ELEMENTS(claim); i++) {
        pdir = vg_pdir_new(p.s[1].g, claim[i], 2);
        req.pdir_dma = pdir;
        g_assert_cmpint(vg_create_mr(p.s[1].g, &req, &resp), ==, EFAULT);
        vg_pdir_free(p.s[1].g, pdir, 2);
    }
    counted(&commands, G_N_ELEMENTS(claim));

    g_assert_cmpint(vg_dma_map(p.s[1].g, p.s[1].g->memfd, 0, unplugged, 4096, 3), ==, 0);
    pdir = vg_pdir_new(p.s[1].g, claim[3], 2);
    req.pdir_dma = pdir;
    g_assert_cmpint(vg_create_mr(p.s[1].g, &req, &resp), ==, 0);
    wr = write_wr(&p, &sge, resp.rkey);
    wr.remote_addr = VA + 4096;
    post(&p.s[0], wr);
    vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS);
    g_assert_cmpint(vg_dma_unmap(p.s[1].g, unplugged, 4096), ==, 0);
    wrs = tally(1, WRS);
    peer = tally(0, WRS);
    post(&p.s[0], wr);
    {
        struct pvrdma_cqe c;

        g_assert_true(vg_cq_wait(p.s[0].scq, &c, VGT_WAIT_MS));
        g_assert_cmpuint(c.status, !=, PVRDMA_WC_SUCCESS);
    }
    counted(&wrs, 1);
    counted(&peer, 1);
    g_assert_cmpint(vg_destroy(p.s[1].g, PVRDMA_CMD_DESTROY_MR, resp.mr_handle), ==, 0);
    vg_pdir_free(p.s[1].g, pdir, 2);
    vgt_pair_close(&p);
}

/* ---- objects destroyed under traffic ---- */

/* Queue pair or MR goes while the peer WRITEs: it alone hears of it, and is counted. */
static void destroyed(void)
{
    struct vgt_opts o = {.conn = {.timeout = 8, .retry_cnt = 1}};

    for (unsigned round = 0; round < vgt_rounds(40); round++) {
        struct vgt_pair p;
        struct tally peer, own;
        struct pvrdma_cqe c;
        unsigned n = 0;

        vgt_pair_open(&p, 1, 0, &o);
        peer = tally(1, WRS);
        own = tally(0, WRS);
        for (unsigned i = 0; i < 64; i++) {
            vgt_send(&p.s[0], i, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 400000, &p.s[1], 0);
        }
        if (round % 2) {
            vg_qp_free(p.s[1].qp);
        } else {
            vg_mr_free(p.s[1].mr);
        }
        do { /* all before are done, all after are flushed */
            g_assert_true(vg_cq_wait(p.s[0].scq, &c, VGT_WAIT_MS));
        } while (c.status == PVRDMA_WC_SUCCESS && ++n < 64);
        if (n < 64) {
            g_assert_cmpuint(c.status, ==,
                             round % 2 ? PVRDMA_WC_RETRY_EXC_ERR
                                       : PVRDMA_WC_REM_ACCESS_ERR);
        }
        counted(&peer, n < 64);
        counted(&own, n < 64 && round % 2 == 0);
        if (round % 2) {
            p.s[1].qp = vg_qp_new(p.s[1].pd, p.s[1].scq, p.s[1].rcq, NULL);
        } else {
            p.s[1].mr = vg_mr_alloc(p.s[1].pd, VA, 4096, VG_ACCESS_ALL);
        }
        vgt_pair_close(&p);
    }
}

/* ---- all of them ---- */

static const struct bad {
    const char *name;
    void (*run)(void);
} bads[] = {
    {"lkey", bad_lkey},
    {"rkey", bad_rkey},
    {"invalidated-key", invalidated},
    {"spoofed-gid", spoofed_gid},
    {"mad", bad_mad},
    {"handles", bad_handles},
    {"past-the-ring", past_the_ring},
    {"doorbells", foreign_doorbells},
    {"cq-overrun", overrun},
    {"cq-overrun-resized", overrun_resized},
    {"windows", bad_windows},
    {"foreign-invalidate", foreign_inv},
    {"uc", bad_uc},
    {"command-flood", command_flood},
    {"vector-flood", vector_flood},
    {"lying-directories", lying_directories},
    {"claimed-device-memory", claimed_device_memory},
    {"destroyed", destroyed},
};

static void test_bad(gconstpointer data)
{
    const struct bad *bad = data;
    int before = g_atomic_int_get(&clean_rounds);
    int64_t seen = noticed(), end;

    bad->run();
    end = vg_now_ns() + VGT_WAIT_MS * 1000000ll;
    while (g_atomic_int_get(&clean_rounds) - before < 20) {
        g_assert_cmpint(vg_now_ns(), <, end);
        g_usleep(1000);
    }
    g_test_message("%d rounds of the others' traffic",
                   g_atomic_int_get(&clean_rounds) - before);
    g_assert_cmpint(noticed(), ==, seen);
    vg_daemon_check(vgt_daemon);
    vgt_assert_no_objects("vm0");
    vgt_assert_no_objects("vm1");
}

int main(int argc, char **argv)
{
    static const char *const keys[] = {"worker=0", "worker=0", "worker=0", "worker=1",
                                       "worker=1"};
    struct vg_daemon_opts o = {.n_vms = 5,
                               .poll_us = -1,
                               .workers = 2,
                               .keys = keys,
                               .vm_keys = "max-mr-pages=1000000"};
    GThread *t;
    int ret;

    vgt_init(&argc, &argv, 110);
    vgt_daemon = vg_daemon_start(&o);
    vgt_traffic_open(&clean, 2, 3, 2, 2, 4096, NULL);
    t = g_thread_new("clean", clean_thread, NULL);
    for (unsigned i = 0; i < G_N_ELEMENTS(bads); i++) {
        g_autofree char *path = g_strdup_printf("/badinput/%s", bads[i].name);

        g_test_add_data_func(path, &bads[i], test_bad);
    }
    ret = g_test_run();
    g_atomic_int_set(&clean_stop, 1);
    g_thread_join(t);
    vgt_traffic_close(&clean);
    vg_daemon_stop(vgt_daemon);
    return ret;
}
