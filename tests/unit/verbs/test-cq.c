/* SPDX-License-Identifier: GPL-2.0-or-later */
/* cq.c: ring sizes, owners, references. */
#include "testdev.h"

static struct testdev *td;

static void setup(void)
{
    td = testdev_new("cq");
    testdev_up(td);
}

static uint32_t create(uint32_t uctx, uint32_t cqe, uint32_t nchunks)
{
    struct pvrdma_cmd_create_cq req = {
        .pdir_dma = testdev_new_pdir(td, MIN(MAX(nchunks, 1), 600), NULL),
        .ctx_handle = uctx,
        .cqe = cqe,
        .nchunks = nchunks,
    };

    return testdev_command(td, PVRDMA_CMD_CREATE_CQ, &req, sizeof(req));
}

static void test_create(void)
{
    const struct pvrdma_resp_create_cq *resp;
    static const uint32_t sizes[][2] = {
        {1, 2}, {2, 2}, {64, 2}, {128, 3}, {1024, 17}, {32768, 513},
    };

    setup();
    resp = testdev_ptr(td, td->resp);
    for (unsigned i = 0; i < G_N_ELEMENTS(sizes); i++) {
        struct cq *cq;

        g_assert_cmpuint(create(0, sizes[i][0], sizes[i][1]), ==, 0);
        g_assert_cmpuint(resp->cqe, ==, sizes[i][0]);
        g_assert_cmpuint(resp->cq_handle, ==, i + 1);
        cq = id_table_get(&td->vm.objects.cq, resp->cq_handle);
        g_assert_cmpuint(cq->mem.npages, ==, sizes[i][1]);
    }
    g_assert_cmpuint(testdev_stats(td).pages, ==, 2 + 2 + 2 + 3 + 17 + 513);
    for (unsigned i = 0; i < G_N_ELEMENTS(sizes); i++) {
        g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_CQ, i + 1), ==, 0);
    }
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_CQ, 1), !=, 0);
    g_assert_cmpuint(testdev_stats(td).pages, ==, 0);
    testdev_free(td);
}

/* CVE-2018-20125: the page count decides where the ring ends; recompute it. */
static void test_cve_2018_20125(void)
{
    static const uint32_t bad[][2] = {
        {0, 1},        {0, 0},          {3, 2},           {63, 2},       {64, 1},
        {64, 0},       {64, 3},         {128, 2},         {1u << 19, 2}, {1u << 26, 1},
        {1u << 31, 1}, {UINT32_MAX, 2}, {64, UINT32_MAX}, {64, 262145},
    };

    setup();
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_assert_cmpuint(create(0, bad[i][0], bad[i][1]), !=, 0);
    }
    g_assert_cmpuint(testdev_stats(td).cq, ==, 0);
    g_assert_cmpuint(testdev_stats(td).pages, ==, 0);
    testdev_free(td);
}

static void test_context(void)
{
    uint32_t uctx, cq;

    setup();
    uctx = testdev_uctx(td, 7);
    g_assert_cmpuint(create(uctx + 1, 64, 2), !=, 0);
    cq = testdev_cq(td, uctx, 64);
    /* The doorbell page that may ring it. */
    g_assert_cmpuint(td->vm.guest.db.shared->cq_owner[cq], ==, 7);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_CQ, cq), ==, 0);
    g_assert_cmpuint(td->vm.guest.db.shared->cq_owner[cq], ==, PVRDMA_DB_NO_OWNER);
    /* It goes with its context, too. */
    cq = testdev_cq(td, uctx, 64);
    g_assert_cmpuint(td->vm.guest.db.shared->cq_owner[cq], ==, 7);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_UC, uctx), ==, 0);
    g_assert_cmpuint(td->vm.guest.db.shared->cq_owner[cq], ==, PVRDMA_DB_NO_OWNER);
    g_assert_cmpuint(testdev_stats(td).pages, ==, 0);
    testdev_free(td);
}

static void test_in_use(void)
{
    uint32_t pd, cq, qp;

    setup();
    pd = testdev_pd(td, 0);
    cq = testdev_cq(td, 0, 64);
    qp = testdev_qp(td, pd, cq);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_CQ, cq), !=, 0);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_QP, qp), ==, 0);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_CQ, cq), ==, 0);
    testdev_free(td);
}

int main(int argc, char **argv)
{
    testdev_init(&argc, &argv);
    g_test_add_func("/verbs/cq/create", test_create);
    g_test_add_func("/verbs/cq/cve-2018-20125", test_cve_2018_20125);
    g_test_add_func("/verbs/cq/context", test_context);
    g_test_add_func("/verbs/cq/in-use", test_in_use);
    return testdev_run();
}
