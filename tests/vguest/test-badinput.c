/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: requests and datagrams that a guest should not post: under keys and from
 * addresses that are not its own, to whom it may not reach (see badinput.h).
 */
#include "badinput.h"

#include <string.h>

#define QKEY     0x11111111u
#define GSI_QKEY 0x80010000u
#define RIGHTS   (VG_ACCESS_ALL | PVRDMA_ACCESS_MW_BIND)

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
        vgt_expect_event(p.s[1].g, PVRDMA_EVENT_QP_ACCESS_ERR, p.s[1].qp->handle);
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
            struct vg_wr wr = vg_wr_at(0, PVRDMA_WR_RDMA_WRITE, 0, &sge, VA, mr->rkey);

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

            post(&p[i].s[0], vg_wr_at(1, PVRDMA_WR_RDMA_WRITE, 0, &sge, VA, mr->rkey));
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
        vg_ud_to_rts(p.s[i].qp, QKEY);
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
        vg_qp_modify(p.s[0].qp, PVRDMA_QP_STATE, &a);
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
        vg_ud_to_rts(p.s[i].qp, GSI_QKEY);
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
        struct vg_wr wr = vg_wr_datagram(i, 0, &sge, &av, 1, GSI_QKEY);
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
            vg_qp_modify(p.s[0].qp, PVRDMA_QP_STATE, &a);
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

int main(int argc, char **argv)
{
    static const struct bad bads[] = {
        {"lkey", bad_lkey},
        {"rkey", bad_rkey},
        {"invalidated-key", invalidated},
        {"spoofed-gid", spoofed_gid},
        {"mad", bad_mad},
        {"windows", bad_windows},
        {"foreign-invalidate", foreign_inv},
        {"uc", bad_uc},
    };

    return bad_main(&argc, &argv, bads, G_N_ELEMENTS(bads));
}
