/* SPDX-License-Identifier: GPL-2.0-or-later */
/* qp.c: layout, parents, numbers, modify and query. */
#include <errno.h>

#include "testdev.h"

static struct testdev *td;
static uint32_t pd, cq;
static const struct pvrdma_gid gid = {
    .raw = {[10] = 0xff, [11] = 0xff, 10, 0, 0, 1},
};

static void bind_gid(uint32_t index)
{
    struct pvrdma_cmd_create_bind req = {
        .mtu = 1024,
        .vlan = 0xfff,
        .index = index,
        .gid = gid,
        .gid_type = PVRDMA_GID_TYPE_ROCE_V2,
    };

    testdev_do(td, PVRDMA_CMD_CREATE_BIND, &req, sizeof(req));
}

static void setup(void)
{
    td = testdev_new("qp");
    testdev_up(td);
    pd = testdev_pd(td, 0);
    cq = testdev_cq(td, 0, 64);
    bind_gid(3);
}

static uint32_t create(struct pvrdma_cmd_create_qp *req)
{
    return testdev_command(td, PVRDMA_CMD_CREATE_QP, req, sizeof(*req));
}

static const struct pvrdma_resp_create_qp *resp(void)
{
    return testdev_ptr(td, td->resp);
}

static void test_create(void)
{
    struct pvrdma_cmd_create_qp req;
    struct qp *qp;

    setup();
    testdev_qp_req(td, &req, pd, cq);
    req.sq_sig_all = 1;
    g_assert_cmpuint(create(&req), ==, 0);
    qp = id_table_get(&td->vm.objects.qp, resp()->qp_handle);
    g_assert_nonnull(qp);
    g_assert_cmpuint(resp()->qp_handle, !=, 0);
    g_assert_cmpuint(resp()->qpn, !=, resp()->qp_handle);
    g_assert_cmpuint(resp()->qpn, <, 1u << 24);
    g_assert_cmpuint(resp()->max_send_wr, ==, 64);
    g_assert_cmpuint(resp()->max_recv_wr, ==, 64);
    g_assert_cmpuint(resp()->max_inline_data, ==, 0);
    g_assert_true(qp->sq_sig_all);
    g_assert_cmpuint(qp->sq.wqe_shift, ==, 7);
    g_assert_cmpuint(qp->rq->wq.wqe_shift, ==, 5);
    g_assert_cmpuint(qp->sq.first_page, ==, 1);
    g_assert_cmpuint(qp->rq->wq.first_page, ==, 3);
    g_assert_cmpuint(atomic_load(&qp->state), ==, PVRDMA_QPS_RESET);

    g_assert_true(objects_qp_by_qpn(&td->vm.objects, resp()->qpn) == qp);
    g_assert_null(objects_qp_by_qpn(&td->vm.objects, resp()->qp_handle));
    g_assert_null(objects_qp_by_qpn(&td->vm.objects, 0));
    g_assert_null(objects_qp_by_qpn(&td->vm.objects, 1));
    g_assert_null(objects_qp_by_qpn(&td->vm.objects, UINT32_MAX));
    g_assert_cmpuint(td->vm.guest.db.shared->qp_owner[qp->handle], ==, 0);

    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_QP, resp()->qp_handle), ==, 0);
    g_assert_null(objects_qp_by_qpn(&td->vm.objects, resp()->qpn));
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_QP, resp()->qp_handle), !=, 0);
    g_assert_cmpuint(testdev_stats(td).pages, ==, 2); /* the CQ's */
    testdev_free(td);
}

/* WQE sizes and pages as driver and provider compute them. */
static void test_layout(void)
{
    static const struct {
        uint32_t swr, rwr, ssge, rsge;
        uint16_t send, recv;
        uint32_t sshift, rshift;
    } good[] = {
        {1, 1, 1, 1, 1, 1, 7, 5},         {32, 128, 1, 1, 1, 1, 7, 5},
        {64, 256, 3, 3, 2, 4, 7, 6},      {64, 64, 4, 4, 4, 2, 8, 7},
        {64, 64, 11, 7, 4, 2, 8, 7},      {64, 64, 12, 8, 8, 4, 9, 8},
        {512, 512, 16, 16, 64, 64, 9, 9},
    };

    setup();
    for (unsigned i = 0; i < G_N_ELEMENTS(good); i++) {
        uint32_t total = 1 + good[i].send + good[i].recv;
        struct pvrdma_cmd_create_qp req;
        struct qp *qp;

        testdev_qp_req(td, &req, pd, cq);
        req.pdir_dma = testdev_new_pdir(td, total, NULL);
        req.max_send_wr = good[i].swr;
        req.max_recv_wr = good[i].rwr;
        req.max_send_sge = good[i].ssge;
        req.max_recv_sge = good[i].rsge;
        req.send_chunks = good[i].send;
        req.total_chunks = total;
        g_assert_cmpuint(create(&req), ==, 0);
        qp = id_table_get(&td->vm.objects.qp, resp()->qp_handle);
        g_assert_cmpuint(qp->sq.wqe_shift, ==, good[i].sshift);
        g_assert_cmpuint(qp->rq->wq.wqe_shift, ==, good[i].rshift);
        g_assert_cmpuint(qp->rq->wq.first_page, ==, 1 + good[i].send);

        /* One page off, in either count or both, is refused. */
        req.total_chunks = total - 1;
        g_assert_cmpuint(create(&req), !=, 0);
        req.total_chunks = total + 1;
        g_assert_cmpuint(create(&req), !=, 0);
        req.total_chunks = total;
        req.send_chunks++;
        g_assert_cmpuint(create(&req), !=, 0);
        req.send_chunks -= 2;
        g_assert_cmpuint(create(&req), !=, 0);
    }
    testdev_free(td);
}

/* CVE-2018-20125 for QPs: capacities that the pages do not hold. */
static void test_cve_2018_20125(void)
{
    static const uint32_t bad[][4] = {
        {0, 64, 1, 1},
        {64, 0, 1, 1},
        {64, 64, 0, 1},
        {64, 64, 1, 0},
        {63, 64, 1, 1},
        {64, 65, 1, 1},
        {64, 64, 17, 1},
        {64, 64, 1, 17},
        {32768, 64, 1, 1},
        {64, 1u << 31, 1, 1},
        {1u << 31, 1u << 31, 1, 1},
        {64, 64, 0x0fffffff, 1},
        {64, 64, UINT32_MAX, 1},
        {1u << 25, 1u << 27, 1, 1}, /* pages that wrap to 0 in 32 bits */
        {128, 64, 1, 1},
        {64, 256, 1, 1},
    };

    setup();
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++) {
        struct pvrdma_cmd_create_qp req;

        testdev_qp_req(td, &req, pd, cq);
        req.max_send_wr = bad[i][0];
        req.max_recv_wr = bad[i][1];
        req.max_send_sge = bad[i][2];
        req.max_recv_sge = bad[i][3];
        g_assert_cmpuint(create(&req), !=, 0);
    }
    g_assert_cmpuint(testdev_stats(td).qp, ==, 0);
    g_assert_cmpuint(testdev_stats(td).pages, ==, 2);
    testdev_free(td);
}

/* More than the caps say, with pages that do hold it. */
static void test_beyond_caps(void)
{
    struct pvrdma_cmd_create_qp req;

    setup();
    testdev_qp_req(td, &req, pd, cq);
    req.max_send_wr = req.max_recv_wr = 1;
    req.send_chunks = 1;
    req.total_chunks = 3;
    g_assert_cmpuint(create(&req), ==, 0);
    req.max_send_sge = 17;
    g_assert_cmpuint(create(&req), !=, 0);
    req.max_send_sge = 1;
    req.max_recv_sge = 17;
    g_assert_cmpuint(create(&req), !=, 0);
    req.max_recv_sge = 1;

    req.pdir_dma = testdev_new_pdir(td, 1026, NULL);
    req.max_send_wr = 16384;
    req.send_chunks = 512;
    req.total_chunks = 514;
    g_assert_cmpuint(create(&req), ==, 0);
    req.max_send_wr = 32768;
    req.send_chunks = 1024;
    req.total_chunks = 1026;
    g_assert_cmpuint(create(&req), !=, 0);
    testdev_free(td);
}

/* CVE-2018-20126: a refused CREATE_QP gives everything back. */
static void test_cve_2018_20126(void)
{
    struct pvrdma_cmd_create_qp req;
    uint64_t page[4];

    setup();
    testdev_qp_req(td, &req, pd, cq);
    req.pdir_dma = 0xdead000;
    g_assert_cmpuint(create(&req), !=, 0);

    for (unsigned i = 0; i < 4; i++) {
        page[i] = testdev_pages(td, 1);
    }
    page[3] = 0xdead000;
    req.pdir_dma = testdev_pdir(td, page, 4);
    g_assert_cmpuint(create(&req), !=, 0);

    testdev_qp_req(td, &req, pd, cq);
    req.recv_cq_handle = 99;
    g_assert_cmpuint(create(&req), !=, 0);
    testdev_qp_req(td, &req, 99, cq);
    g_assert_cmpuint(create(&req), !=, 0);
    testdev_qp_req(td, &req, pd, 0);
    g_assert_cmpuint(create(&req), !=, 0);

    g_assert_cmpuint(testdev_stats(td).pages, ==, 2);
    g_assert_cmpuint(testdev_stats(td).qp, ==, 0);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_CQ, cq), ==, 0);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_PD, pd), ==, 0);
    testdev_free(td);
}

static void test_types(void)
{
    struct pvrdma_cmd_create_qp req;
    uint32_t first;

    setup();
    testdev_qp_req(td, &req, pd, cq);
    for (unsigned type = 0; type < 256; type++) {
        req.qp_type = type;
        if (type != PVRDMA_QPT_GSI && type != PVRDMA_QPT_RC && type != PVRDMA_QPT_UC &&
            type != PVRDMA_QPT_UD) {
            g_assert_cmpuint(create(&req), !=, 0);
        }
    }
    req.qp_type = PVRDMA_QPT_RC;
    req.is_srq = 1;
    g_assert_cmpuint(create(&req), !=, 0);
    req.is_srq = 0;
    req.max_inline_data = 64;
    g_assert_cmpuint(create(&req), !=, 0);
    req.max_inline_data = 0;

    /* One GSI QP; it answers to number 1. */
    req.qp_type = PVRDMA_QPT_GSI;
    g_assert_cmpuint(create(&req), ==, 0);
    first = resp()->qp_handle;
    g_assert_cmpuint(objects_qp_by_qpn(&td->vm.objects, 1)->handle, ==, first);
    g_assert_cmpuint(create(&req), !=, 0);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_QP, first), ==, 0);
    g_assert_null(objects_qp_by_qpn(&td->vm.objects, 1));
    g_assert_cmpuint(create(&req), ==, 0);

    /* Not for programs. */
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_QP, resp()->qp_handle), ==, 0);
    {
        uint32_t uctx = testdev_uctx(td, 1);

        req.pd_handle = testdev_pd(td, uctx);
        req.send_cq_handle = req.recv_cq_handle = testdev_cq(td, uctx, 64);
        g_assert_cmpuint(create(&req), !=, 0);
        req.qp_type = PVRDMA_QPT_RC;
        g_assert_cmpuint(create(&req), ==, 0);
        g_assert_cmpuint(td->vm.guest.db.shared->qp_owner[resp()->qp_handle], ==, 1);
    }
    testdev_free(td);
}

/* A program's QP may not complete into somebody else's CQ. */
static void test_foreign_cq(void)
{
    struct pvrdma_cmd_create_qp req;
    uint32_t u1, u2, cq1, cq2, upd;

    setup();
    u1 = testdev_uctx(td, 1);
    u2 = testdev_uctx(td, 2);
    cq1 = testdev_cq(td, u1, 64);
    cq2 = testdev_cq(td, u2, 64);
    upd = testdev_pd(td, u1);
    testdev_qp_req(td, &req, upd, cq1);
    req.recv_cq_handle = cq2;
    g_assert_cmpuint(create(&req), !=, 0);
    req.recv_cq_handle = cq; /* the kernel's */
    g_assert_cmpuint(create(&req), !=, 0);
    req.recv_cq_handle = cq1;
    g_assert_cmpuint(create(&req), ==, 0);
    testdev_free(td);
}

static void test_handles(void)
{
    struct pvrdma_cmd_create_qp req;

    td = testdev_new_with("qp", "addresses", "any", "max-qp", "4", NULL);
    testdev_up(td);
    pd = testdev_pd(td, 0);
    cq = testdev_cq(td, 0, 64);
    testdev_qp_req(td, &req, pd, cq);
    for (unsigned i = 1; i < 4; i++) {
        g_assert_cmpuint(create(&req), ==, 0);
        g_assert_cmpuint(resp()->qp_handle, ==, i);
    }
    g_assert_cmpuint(create(&req), !=, 0);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_QP, 2), ==, 0);
    g_assert_cmpuint(create(&req), ==, 0);
    g_assert_cmpuint(resp()->qp_handle, ==, 2);
    g_assert_cmpuint(resp()->qpn, ==, 2u << 16 | 2); /* second generation */
    g_assert_nonnull(objects_qp_by_qpn(&td->vm.objects, 2u << 16 | 2));
    g_assert_null(objects_qp_by_qpn(&td->vm.objects, 1u << 16 | 2));
    g_assert_null(objects_qp_by_qpn(&td->vm.objects, 1u << 24 | 2u << 16 | 2));
    g_assert_null(objects_qp_by_qpn(&td->vm.objects, 2));
    testdev_free(td);
}

/* ---- modify ---- */

#define INIT_MASK \
    (PVRDMA_QP_STATE | PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_PORT | PVRDMA_QP_ACCESS_FLAGS)
#define RTR_MASK                                                                \
    (PVRDMA_QP_STATE | PVRDMA_QP_AV | PVRDMA_QP_PATH_MTU | PVRDMA_QP_DEST_QPN | \
     PVRDMA_QP_RQ_PSN | PVRDMA_QP_MAX_DEST_RD_ATOMIC | PVRDMA_QP_MIN_RNR_TIMER)
#define RTS_MASK                                                                       \
    (PVRDMA_QP_STATE | PVRDMA_QP_TIMEOUT | PVRDMA_QP_RETRY_CNT | PVRDMA_QP_RNR_RETRY | \
     PVRDMA_QP_SQ_PSN | PVRDMA_QP_MAX_RD_ATOMIC)

static struct pvrdma_cmd_modify_qp modify_req(uint32_t qp, uint32_t mask, uint32_t state)
{
    return (struct pvrdma_cmd_modify_qp){
        .qp_handle = qp,
        .attr_mask = mask,
        .attrs =
            {
                .qp_state = state,
                .port_num = 1,
                .qp_access_flags = 0xf,
                .path_mtu = PVRDMA_MTU_1024,
                .dest_qp_num = 0x123456,
                .rq_psn = 0xabcdef,
                .sq_psn = 0xfedcba,
                .max_rd_atomic = 16,
                .max_dest_rd_atomic = 16,
                .min_rnr_timer = 12,
                .timeout = 14,
                .retry_cnt = 7,
                .rnr_retry = 7,
                .ah_attr = {.ah_flags = 1,
                            .port_num = 1,
                            .sgid_index = 3,
                            .dgid = {.raw = {[15] = 9}},
                            .sl = 2},
            },
    };
}

/* MODIFY_QP answers in any case; the driver looks at hdr.err alone. */
static uint8_t modify(struct pvrdma_cmd_modify_qp *req)
{
    const struct pvrdma_resp_hdr *hdr = testdev_ptr(td, td->resp);

    memset(testdev_ptr(td, td->resp), 0xee, sizeof(*hdr));
    req->hdr.response = 0x1122334455667788;
    testdev_irqs(td, PVRDMA_VEC_CMD);
    testdev_do(td, PVRDMA_CMD_MODIFY_QP, req, sizeof(*req));
    g_assert_cmpuint(testdev_irqs(td, PVRDMA_VEC_CMD), ==, 1);
    g_assert_cmpuint(hdr->ack, ==, PVRDMA_CMD_RESP(PVRDMA_CMD_MODIFY_QP));
    g_assert_cmpuint(hdr->response, ==, 0x1122334455667788);
    return hdr->err;
}

static void query(uint32_t qp, struct pvrdma_qp_attr *attr)
{
    struct pvrdma_resp_query_qp *r = testdev_ptr(td, td->resp);

    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_QUERY_QP, qp), ==, 0);
    *attr = r->attrs;
}

static void to_rts(uint32_t qp)
{
    struct pvrdma_cmd_modify_qp req;

    req = modify_req(qp, INIT_MASK, PVRDMA_QPS_INIT);
    g_assert_cmpuint(modify(&req), ==, 0);
    req = modify_req(qp, RTR_MASK, PVRDMA_QPS_RTR);
    g_assert_cmpuint(modify(&req), ==, 0);
    req = modify_req(qp, RTS_MASK, PVRDMA_QPS_RTS);
    g_assert_cmpuint(modify(&req), ==, 0);
}

static void test_modify(void)
{
    struct pvrdma_cmd_modify_qp req;
    struct pvrdma_qp_attr a;
    uint32_t qp;

    setup();
    qp = testdev_qp(td, pd, cq);
    to_rts(qp);
    query(qp, &a);
    g_assert_cmpuint(a.qp_state, ==, PVRDMA_QPS_RTS);
    g_assert_cmpuint(a.cur_qp_state, ==, PVRDMA_QPS_RTS);
    g_assert_cmpuint(a.path_mtu, ==, PVRDMA_MTU_1024);
    g_assert_cmpuint(a.dest_qp_num, ==, 0x123456);
    g_assert_cmpuint(a.rq_psn, ==, 0xabcdef);
    g_assert_cmpuint(a.sq_psn, ==, 0xfedcba);
    g_assert_cmpuint(a.max_rd_atomic, ==, 16);
    g_assert_cmpuint(a.timeout, ==, 14);
    g_assert_cmpuint(a.cap.max_send_wr, ==, 64);
    g_assert_cmpuint(a.cap.max_recv_sge, ==, 1);
    g_assert_cmpuint(a.ah_attr.sl, ==, 2);
    g_assert_cmpuint(a.ah_attr.sgid_index, ==, 3);

    /* Attributes outside the mask stay. */
    req = modify_req(qp, PVRDMA_QP_MIN_RNR_TIMER, PVRDMA_QPS_ERR);
    req.attrs.min_rnr_timer = 5;
    req.attrs.timeout = 1;
    g_assert_cmpuint(modify(&req), ==, 0);
    query(qp, &a);
    g_assert_cmpuint(a.min_rnr_timer, ==, 5);
    g_assert_cmpuint(a.timeout, ==, 14);
    g_assert_cmpuint(a.qp_state, ==, PVRDMA_QPS_RTS);

    /* CUR_STATE must be the truth. */
    req = modify_req(qp, PVRDMA_QP_CUR_STATE, 0);
    req.attrs.cur_qp_state = PVRDMA_QPS_RTR;
    g_assert_cmpuint(modify(&req), !=, 0);
    req.attrs.cur_qp_state = PVRDMA_QPS_RTS;
    g_assert_cmpuint(modify(&req), ==, 0);

    req = modify_req(qp, PVRDMA_QP_STATE, PVRDMA_QPS_RESET);
    g_assert_cmpuint(modify(&req), ==, 0);
    query(qp, &a);
    g_assert_cmpuint(a.qp_state, ==, PVRDMA_QPS_RESET);
    g_assert_cmpuint(a.dest_qp_num, ==, 0);
    g_assert_cmpuint(a.rq_psn, ==, 0);
    g_assert_cmpuint(a.cap.max_send_wr, ==, 64);
    to_rts(qp);
    testdev_free(td);
}

/* One bad value each; the QP must be as before. */
static void test_bad_values(void)
{
    static const struct {
        uint32_t state, mask;
        size_t offset;
        unsigned size;
        uint32_t value;
    } bad[] = {
#define BAD(state, mask, field, value)                    \
    {state, mask, offsetof(struct pvrdma_qp_attr, field), \
     sizeof(((struct pvrdma_qp_attr *)0)->field), value}
        BAD(PVRDMA_QPS_INIT, INIT_MASK, port_num, 0),
        BAD(PVRDMA_QPS_INIT, INIT_MASK, port_num, 2),
        BAD(PVRDMA_QPS_INIT, INIT_MASK, pkey_index, 1),
        BAD(PVRDMA_QPS_INIT, INIT_MASK, qp_access_flags, 1u << 6),
        BAD(PVRDMA_QPS_INIT, INIT_MASK, qp_state, 7),
        BAD(PVRDMA_QPS_INIT, INIT_MASK, qp_state, UINT32_MAX),
        BAD(PVRDMA_QPS_INIT, INIT_MASK, qp_state, PVRDMA_QPS_RTS),
        BAD(PVRDMA_QPS_RTR, RTR_MASK, path_mtu, 0),
        BAD(PVRDMA_QPS_RTR, RTR_MASK, path_mtu, 6),
        BAD(PVRDMA_QPS_RTR, RTR_MASK, dest_qp_num, 1u << 24),
        BAD(PVRDMA_QPS_RTR, RTR_MASK, max_dest_rd_atomic, 17),
        BAD(PVRDMA_QPS_RTR, RTR_MASK, min_rnr_timer, 32),
        BAD(PVRDMA_QPS_RTR, RTR_MASK, ah_attr.ah_flags, 0),
        BAD(PVRDMA_QPS_RTR, RTR_MASK, ah_attr.port_num, 2),
        BAD(PVRDMA_QPS_RTR, RTR_MASK, ah_attr.sgid_index, 64),
        BAD(PVRDMA_QPS_RTR, RTR_MASK, ah_attr.sgid_index, 255),
        BAD(PVRDMA_QPS_RTR, RTR_MASK, ah_attr.sgid_index, 4), /* unbound */
        BAD(PVRDMA_QPS_RTR, RTR_MASK | PVRDMA_QP_ALT_PATH, alt_port_num, 1),
        BAD(PVRDMA_QPS_RTS, RTS_MASK, timeout, 32),
        BAD(PVRDMA_QPS_RTS, RTS_MASK, retry_cnt, 8),
        BAD(PVRDMA_QPS_RTS, RTS_MASK, rnr_retry, 8),
        BAD(PVRDMA_QPS_RTS, RTS_MASK, max_rd_atomic, 17),
        BAD(PVRDMA_QPS_RTS, RTS_MASK | PVRDMA_QP_PATH_MIG_STATE, path_mig_state, 1),
        BAD(PVRDMA_QPS_RTS, RTS_MASK | PVRDMA_QP_CUR_STATE, cur_qp_state, PVRDMA_QPS_RTS),
#undef BAD
    };
    struct pvrdma_cmd_modify_qp req;
    uint32_t qp;

    setup();
    qp = testdev_qp(td, pd, cq);
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++) {
        struct pvrdma_qp_attr before, after;

        query(qp, &before);
        if (i && bad[i].state != bad[i - 1].state) {
            req =
                modify_req(qp, bad[i - 1].state == PVRDMA_QPS_INIT ? INIT_MASK : RTR_MASK,
                           bad[i - 1].state);
            g_assert_cmpuint(modify(&req), ==, 0);
            query(qp, &before);
        }
        req = modify_req(qp, bad[i].mask, bad[i].state);
        memcpy((uint8_t *)&req.attrs + bad[i].offset, &bad[i].value, bad[i].size);
        g_assert_cmpuint(modify(&req), !=, 0);
        query(qp, &after);
        g_assert_cmpmem(&before, sizeof(before), &after, sizeof(after));
    }
    /* An unknown QP is an error too, and the driver hears of it. */
    req = modify_req(qp + 1, INIT_MASK, PVRDMA_QPS_INIT);
    g_assert_cmpuint(modify(&req), !=, 0);
    req = modify_req(UINT32_MAX, INIT_MASK, PVRDMA_QPS_INIT);
    g_assert_cmpuint(modify(&req), !=, 0);
    testdev_free(td);
}

/* As ib_core's MAD layer brings QP 1 up. */
static void test_gsi(void)
{
    struct pvrdma_cmd_create_qp create_req;
    struct pvrdma_cmd_modify_qp req;
    struct pvrdma_qp_attr a;
    uint32_t qp;

    setup();
    testdev_qp_req(td, &create_req, pd, cq);
    create_req.qp_type = PVRDMA_QPT_GSI;
    g_assert_cmpuint(create(&create_req), ==, 0);
    qp = resp()->qp_handle;

    req = modify_req(qp, PVRDMA_QP_STATE | PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_QKEY,
                     PVRDMA_QPS_INIT);
    req.attrs.qkey = 0x80010000;
    g_assert_cmpuint(modify(&req), ==, 0);
    req = modify_req(qp, PVRDMA_QP_STATE, PVRDMA_QPS_RTR);
    g_assert_cmpuint(modify(&req), ==, 0);
    req = modify_req(qp, PVRDMA_QP_STATE | PVRDMA_QP_SQ_PSN, PVRDMA_QPS_RTS);
    g_assert_cmpuint(modify(&req), ==, 0);
    query(qp, &a);
    g_assert_cmpuint(a.qkey, ==, 0x80010000);
    g_assert_cmpuint(a.qp_state, ==, PVRDMA_QPS_RTS);
    req = modify_req(qp, PVRDMA_QP_STATE, PVRDMA_QPS_ERR);
    g_assert_cmpuint(modify(&req), ==, 0);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_QP, qp), ==, 0);
    testdev_free(td);
}

int main(int argc, char **argv)
{
    testdev_init(&argc, &argv);
    g_test_add_func("/verbs/qp/create", test_create);
    g_test_add_func("/verbs/qp/layout", test_layout);
    g_test_add_func("/verbs/qp/cve-2018-20125", test_cve_2018_20125);
    g_test_add_func("/verbs/qp/beyond-caps", test_beyond_caps);
    g_test_add_func("/verbs/qp/cve-2018-20126", test_cve_2018_20126);
    g_test_add_func("/verbs/qp/types", test_types);
    g_test_add_func("/verbs/qp/foreign-cq", test_foreign_cq);
    g_test_add_func("/verbs/qp/handles", test_handles);
    g_test_add_func("/verbs/qp/modify", test_modify);
    g_test_add_func("/verbs/qp/bad-values", test_bad_values);
    g_test_add_func("/verbs/qp/gsi", test_gsi);
    return testdev_run();
}
