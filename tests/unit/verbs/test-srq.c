/* SPDX-License-Identifier: GPL-2.0-or-later */
/* srq.c: sizes, pages, owners, references, doorbells, the limit. */
#include "testdev.h"

#include <errno.h>

static struct testdev *td;
static uint32_t uctx, pd, kpd, cq;

static void setup(void)
{
    td = testdev_new("srq");
    testdev_up(td);
    uctx = testdev_uctx(td, 5);
    pd = testdev_pd(td, uctx);
    kpd = testdev_pd(td, 0);
    cq = testdev_cq(td, uctx, 64);
}

/* Right in everything: 64 WQEs of 32 bytes. */
static struct pvrdma_cmd_create_srq good(void)
{
    return (struct pvrdma_cmd_create_srq){.pdir_dma = testdev_new_pdir(td, 2, NULL),
                                          .pd_handle = pd,
                                          .nchunks = 2,
                                          .attrs = {.max_wr = 64, .max_sge = 1}};
}

static uint32_t create(struct pvrdma_cmd_create_srq *req)
{
    return testdev_command(td, PVRDMA_CMD_CREATE_SRQ, req, sizeof(*req));
}

static uint32_t made(void)
{
    const struct pvrdma_resp_handle *resp = testdev_ptr(td, td->resp);

    return resp->handle;
}

static uint32_t make(uint32_t in_pd)
{
    struct pvrdma_cmd_create_srq req = good();

    req.pd_handle = in_pd;
    g_assert_cmpuint(create(&req), ==, 0);
    return made();
}

static void test_create(void)
{
    static const uint32_t sizes[][3] = {/* WRs, SGEs, pages */
                                        {1, 1, 2},
                                        {128, 1, 2},
                                        {256, 1, 3},
                                        {64, 16, 9},
                                        {16384, 3, 257}};
    uint64_t before;

    setup();
    before = testdev_stats(td).pages;
    for (unsigned i = 0; i < G_N_ELEMENTS(sizes); i++) {
        struct pvrdma_cmd_create_srq req = good();
        struct srq *srq;

        req.attrs = (struct pvrdma_srq_attr){sizes[i][0], sizes[i][1], 7, 0};
        req.pdir_dma = testdev_new_pdir(td, 2 * sizes[i][2], NULL);
        req.nchunks = sizes[i][2] - 1;
        g_assert_cmpuint(create(&req), ==, EINVAL);
        /* Stock libraries bring too many; what is not used is not charged. */
        req.nchunks = 2 * sizes[i][2];
        g_assert_cmpuint(create(&req), ==, 0);
        srq = id_table_get(&td->vm.objects.srq, made());
        g_assert_cmpuint(srq->mem.npages, ==, sizes[i][2]);
        g_assert_cmpuint(testdev_stats(td).pages, ==, before + sizes[i][2]);
        /* No limit until one is set. */
        g_assert_cmpuint(atomic_load(&srq->limit), ==, 0);
        g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_SRQ, made()), ==, 0);
        g_assert_cmpuint(testdev_stats(td).pages, ==, before);
    }
    testdev_free(td);
}

static void test_refused(void)
{
    static const struct pvrdma_srq_attr bad[] = {
        {.max_wr = 0, .max_sge = 1},         {.max_wr = 63, .max_sge = 1},
        {.max_wr = 32768, .max_sge = 1},     {.max_wr = UINT32_MAX, .max_sge = 1},
        {.max_wr = 1u << 31, .max_sge = 1},  {.max_wr = 64, .max_sge = 0},
        {.max_wr = 64, .max_sge = 17},       {.max_wr = 64, .max_sge = UINT32_MAX},
        {.max_wr = 64, .max_sge = 1u << 28},
    };
    struct objects_stats before;
    struct pvrdma_cmd_create_srq req;

    setup();
    before = testdev_stats(td);
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++) {
        req = good();
        req.attrs = bad[i];
        g_assert_cmpuint(create(&req), ==, EINVAL);
    }
    for (unsigned type = 1; type < 256; type++) {
        req.attrs = good().attrs;
        req.srq_type = (uint8_t)type;
        g_assert_cmpuint(create(&req), ==, ENOTSUP);
    }
    req = good();
    req.reserved[0] = 2;
    g_assert_cmpuint(create(&req), ==, ENOTSUP);
    req = good();
    req.pd_handle = 99;
    g_assert_cmpuint(create(&req), ==, ENOENT);
    req = good();
    req.nchunks = 0;
    g_assert_cmpuint(create(&req), ==, EINVAL);
    req = good();
    req.pdir_dma = 0x1000;
    g_assert_cmpuint(create(&req), !=, 0);
    g_assert_cmpuint(testdev_stats(td).srq, ==, before.srq);
    g_assert_cmpuint(testdev_stats(td).pages, ==, before.pages);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_PD, pd), ==, 0);
    testdev_free(td);
}

static uint32_t create_qp(uint32_t in_pd, uint32_t in_cq, uint32_t srq, uint8_t type)
{
    struct pvrdma_cmd_create_qp req;

    testdev_qp_req(td, &req, in_pd, in_cq);
    req.max_recv_wr = req.max_recv_sge = 0;
    req.total_chunks = 3;
    req.is_srq = 1;
    req.srq_handle = srq;
    req.qp_type = type;
    return testdev_command(td, PVRDMA_CMD_CREATE_QP, &req, sizeof(req));
}

static void test_references(void)
{
    const struct pvrdma_resp_create_qp *resp;
    uint32_t srq, ksrq, qp, pd2, kcq;
    struct pvrdma_cmd_create_qp req;

    setup();
    resp = testdev_ptr(td, td->resp);
    srq = make(pd);
    ksrq = make(kpd);
    kcq = testdev_cq(td, 0, 64);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_PD, pd), ==, EBUSY);

    g_assert_cmpuint(create_qp(pd, cq, 0, PVRDMA_QPT_RC), ==, ENOENT);
    g_assert_cmpuint(create_qp(pd, cq, 99, PVRDMA_QPT_RC), ==, ENOENT);
    g_assert_cmpuint(create_qp(pd, cq, ksrq, PVRDMA_QPT_RC), ==, EPERM);
    g_assert_cmpuint(create_qp(kpd, kcq, srq, PVRDMA_QPT_RC), ==, EPERM);
    g_assert_cmpuint(create_qp(kpd, kcq, ksrq, PVRDMA_QPT_GSI), !=, 0);
    /* Receive pages have no place in it. */
    testdev_qp_req(td, &req, pd, cq);
    req.is_srq = 1;
    req.srq_handle = srq;
    g_assert_cmpuint(testdev_command(td, PVRDMA_CMD_CREATE_QP, &req, sizeof(req)), ==,
                     EINVAL);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_SRQ, ksrq), ==, 0);

    /* Another PD of the same context will do. */
    pd2 = testdev_pd(td, uctx);
    g_assert_cmpuint(create_qp(pd2, cq, srq, PVRDMA_QPT_RC), ==, 0);
    g_assert_cmpuint(resp->max_recv_wr, ==, 0);
    g_assert_cmpuint(resp->max_recv_sge, ==, 0);
    qp = resp->qp_handle;
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_SRQ, srq), ==, EBUSY);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_QP, qp), ==, 0);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_SRQ, srq), ==, 0);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_SRQ, srq), ==, ENOENT);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_PD, pd), ==, 0);

    /* A reset takes all of them, in the right order. */
    srq = make(pd2);
    g_assert_cmpuint(create_qp(pd2, cq, srq, PVRDMA_QPT_RC), ==, 0);
    testdev_write(td, PVRDMA_REG_CTL, PVRDMA_CTL_RESET);
    g_assert_cmpuint(testdev_stats(td).srq, ==, 0);
    g_assert_cmpuint(testdev_stats(td).pages, ==, 0);
    testdev_free(td);
}

static bool rung(uint32_t srq)
{
    uint64_t bit = 1ull << (srq % 64);

    return __atomic_fetch_and(&td->vm.guest.db.own->srq.words[srq / 64], ~bit,
                              __ATOMIC_RELAXED) &
           bit;
}

static bool ring(uint32_t page, uint32_t value)
{
    uint64_t bad = atomic_load(&td->vm.guest.db.bad);

    device_doorbell(td->vm.dev, (uint64_t)page * PVRDMA_PAGE_SIZE + PVRDMA_UAR_SRQ, value,
                    true);
    return atomic_load(&td->vm.guest.db.bad) == bad;
}

static void test_doorbell(void)
{
    struct pvrdma_db_region *db;
    uint32_t srq, ksrq;

    setup();
    db = td->vm.guest.db.shared;
    srq = make(pd);
    ksrq = make(kpd);
    g_assert_cmpuint(db->srq_owner[srq], ==, 5);
    g_assert_cmpuint(db->srq_owner[ksrq], ==, 0);
    vm_token_take(&td->vm); /* the worker takes no bits */
    g_assert_true(ring(5, srq | PVRDMA_UAR_SRQ_RECV));
    g_assert_true(rung(srq));
    g_assert_true(ring(0, srq | PVRDMA_UAR_SRQ_RECV));
    g_assert_true(rung(srq));
    g_assert_true(ring(0, ksrq | PVRDMA_UAR_SRQ_RECV));
    g_assert_true(rung(ksrq));
    g_assert_true(ring(5, srq)); /* says nothing */
    g_assert_false(rung(srq));
    g_assert_false(ring(6, srq | PVRDMA_UAR_SRQ_RECV));
    g_assert_false(ring(5, ksrq | PVRDMA_UAR_SRQ_RECV));
    g_assert_false(ring(5, (ksrq + 1) | PVRDMA_UAR_SRQ_RECV));
    g_assert_false(ring(0, 0xffffff | PVRDMA_UAR_SRQ_RECV));
    g_assert_false(rung(srq) || rung(ksrq));
    vm_token_release(&td->vm);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_SRQ, srq), ==, 0);
    g_assert_cmpuint(db->srq_owner[srq], ==, PVRDMA_DB_NO_OWNER);
    g_assert_false(ring(5, srq | PVRDMA_UAR_SRQ_RECV));
    testdev_free(td);
}

static uint32_t modify(uint32_t srq, uint32_t mask, uint32_t limit)
{
    struct pvrdma_cmd_modify_srq req = {.srq_handle = srq,
                                        .attr_mask = mask,
                                        .attrs = {.max_wr = 128, .srq_limit = limit}};

    return testdev_command(td, PVRDMA_CMD_MODIFY_SRQ, &req, sizeof(req));
}

static void test_limit(void)
{
    const struct pvrdma_resp_query_srq *resp;
    uint32_t srq;

    setup();
    resp = testdev_ptr(td, td->resp);
    srq = make(pd);
    testdev_irqs(td, PVRDMA_VEC_CMD);
    g_assert_cmpuint(modify(srq, PVRDMA_SRQ_LIMIT, 64), ==, 0);
    g_assert_cmpuint(modify(srq, PVRDMA_SRQ_LIMIT, 65), ==, EINVAL);
    g_assert_cmpuint(modify(srq, PVRDMA_SRQ_LIMIT, UINT32_MAX), ==, EINVAL);
    g_assert_cmpuint(modify(srq, PVRDMA_SRQ_MAX_WR, 1), ==, ENOTSUP);
    g_assert_cmpuint(modify(srq, UINT32_MAX, 1), ==, ENOTSUP);
    g_assert_cmpuint(modify(srq, 0, 1), ==, 0);
    g_assert_cmpuint(modify(0, PVRDMA_SRQ_LIMIT, 1), ==, ENOENT);
    /* The driver does not wait for a response: none, and no interrupt. */
    g_assert_cmpuint(testdev_irqs(td, PVRDMA_VEC_CMD), ==, 0);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_QUERY_SRQ, srq), ==, 0);
    g_assert_cmpuint(resp->attrs.max_wr, ==, 64);
    g_assert_cmpuint(resp->attrs.max_sge, ==, 1);
    g_assert_cmpuint(resp->attrs.srq_limit, ==, 64);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_QUERY_SRQ, srq + 1), ==, ENOENT);
    testdev_free(td);
}

int main(int argc, char **argv)
{
    testdev_init(&argc, &argv);
    g_test_add_func("/srq/create", test_create);
    g_test_add_func("/srq/refused", test_refused);
    g_test_add_func("/srq/references", test_references);
    g_test_add_func("/srq/doorbell", test_doorbell);
    g_test_add_func("/srq/limit", test_limit);
    return testdev_run();
}
