/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Extensions (ext.h) on the command channel: contexts, objects, counters. */
#include "pvrdma/ext.h"
#include "testdev.h"

static struct testdev *td;
static uint32_t pd, cq;

static void setup(void)
{
    td = testdev_new("ext");
    testdev_up(td);
    pd = testdev_pd(td, 0);
    cq = testdev_cq(td, 0, 64);
}

static struct pvrdma_ext_cmd_uc uc_req(uint32_t page)
{
    return (struct pvrdma_ext_cmd_uc){
        .pfn = TESTDEV_UAR_PFN + page,
        .pdir_dma = testdev_new_pdir(td, PVRDMA_EXT_PAGES, NULL),
        .features = PVRDMA_EXT_CONTEXT_FEATURES,
        .npages = PVRDMA_EXT_PAGES,
    };
}

static uint32_t create_uc(struct pvrdma_ext_cmd_uc *req)
{
    return testdev_command(td, PVRDMA_CMD_CREATE_UC_EXT, req, sizeof(*req));
}

static void test_window(void)
{
    td = testdev_new("ext");
    g_assert_cmphex(testdev_read(td, PVRDMA_EXT_REG_MAGIC), ==, PVRDMA_EXT_MAGIC);
    g_assert_cmpuint(testdev_read(td, PVRDMA_EXT_REG_LENGTH), ==, PVRDMA_EXT_WINDOW_SIZE);
    g_assert_cmpuint(testdev_read(td, PVRDMA_EXT_REG_VERSION), ==, PVRDMA_EXT_VERSION);
    g_assert_cmpuint(testdev_read(td, PVRDMA_EXT_REG_INLINE), ==, PVRDMA_EXT_MAX_INLINE);
    testdev_free(td);
}

static void test_context(void)
{
    const struct pvrdma_ext_resp_uc *resp;
    struct pvrdma_ext_cmd_uc req;
    uint64_t pages;
    uint32_t uctx;

    setup();
    pages = testdev_stats(td).pages;
    resp = testdev_ptr(td, td->resp);
    req = uc_req(3);
    req.features |= 1u << 31; /* what we do not know is not granted */
    g_assert_cmpuint(create_uc(&req), ==, 0);
    g_assert_cmphex(resp->features, ==, PVRDMA_EXT_CONTEXT_FEATURES);
    g_assert_cmphex(resp->ack, ==, 0x80000000 + PVRDMA_CMD_CREATE_UC_EXT);
    uctx = resp->ctx_handle;
    g_assert_cmpuint(uctx, !=, 0);
    g_assert_cmpuint(testdev_stats(td).pages, ==, pages + PVRDMA_EXT_PAGES);

    /* Who gives its UAR page to another has it no more; so, too, for a stock context. */
    req = uc_req(3);
    g_assert_cmpuint(create_uc(&req), ==, 0);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_UC, uctx), !=, 0);
    g_assert_cmpuint(testdev_stats(td).uctx, ==, 1);
    g_assert_cmpuint(testdev_stats(td).pages, ==, pages + PVRDMA_EXT_PAGES);
    uctx = testdev_uctx(td, 3);
    g_assert_cmpuint(testdev_stats(td).uctx, ==, 1);
    g_assert_cmpuint(testdev_stats(td).pages, ==, pages);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_UC, uctx), ==, 0);
    testdev_free(td);
}

static void test_kernel(void)
{
    const struct pvrdma_ext_resp_uc *resp;
    struct pvrdma_ext_cmd_uc req;
    uint64_t pages;

    setup();
    pages = testdev_stats(td).pages;
    resp = testdev_ptr(td, td->resp);
    req = uc_req(0);
    g_assert_cmpuint(create_uc(&req), ==, 0);
    g_assert_cmpuint(resp->ctx_handle, ==, 0);
    g_assert_cmpuint(create_uc(&req), !=, 0);
    g_assert_cmpuint(testdev_stats(td).pages, ==, pages + PVRDMA_EXT_PAGES);
    testdev_write(td, PVRDMA_REG_CTL, PVRDMA_CTL_RESET);
    g_assert_cmpuint(testdev_stats(td).pages, ==, 0);
    testdev_up(td);
    req = uc_req(0);
    g_assert_cmpuint(create_uc(&req), ==, 0);
    testdev_free(td);
}

static void test_bad_context(void)
{
    struct pvrdma_ext_cmd_uc req;
    uint64_t page[PVRDMA_EXT_PAGES], pages;

    setup();
    pages = testdev_stats(td).pages;
    for (uint32_t uar = 0; uar < 2; uar++) {
        req = uc_req(uar);
        req.npages = PVRDMA_EXT_PAGES - 1;
        g_assert_cmpuint(create_uc(&req), !=, 0);
        req = uc_req(uar);
        req.npages = UINT32_MAX;
        g_assert_cmpuint(create_uc(&req), !=, 0);
        req = uc_req(uar);
        req.features = PVRDMA_EXT_FEAT_RING; /* no doorbells asked for */
        g_assert_cmpuint(create_uc(&req), !=, 0);
        req = uc_req(uar);
        req.pdir_dma = 0x1000;
        g_assert_cmpuint(create_uc(&req), !=, 0);

        for (unsigned i = 0; i < PVRDMA_EXT_PAGES; i++) {
            page[i] = i < 6 ? testdev_pages(td, 1) : 0x1000;
        }
        req.pdir_dma = testdev_pdir(td, page, PVRDMA_EXT_PAGES);
        g_assert_cmpuint(create_uc(&req), !=, 0);
    }
    req = uc_req(512);
    g_assert_cmpuint(create_uc(&req), !=, 0);
    g_assert_cmpuint(testdev_stats(td).uctx, ==, 0);
    g_assert_cmpuint(testdev_stats(td).pages, ==, pages);
    /* The pages that failed are free again. */
    req = uc_req(1);
    g_assert_cmpuint(create_uc(&req), ==, 0);
    testdev_free(td);
}

static uint32_t create_qp(struct pvrdma_cmd_create_qp *req)
{
    return testdev_command(td, PVRDMA_CMD_CREATE_QP, req, sizeof(*req));
}

/* WQE sizes with inline data: the next power of two of 80 + the larger part. */
static void test_inline(void)
{
    static const struct {
        uint32_t sge, max_inline, shift;
        uint16_t pages;
    } cases[] = {
        {1, 0, 7, 2},   {1, 48, 7, 2},  {1, 49, 8, 4},   {4, 64, 8, 4},
        {4, 176, 8, 4}, {4, 177, 9, 8}, {16, 432, 9, 8},
    };
    const struct pvrdma_resp_create_qp *resp;
    struct pvrdma_cmd_create_qp req;

    setup();
    resp = testdev_ptr(td, td->resp);
    for (unsigned i = 0; i < G_N_ELEMENTS(cases); i++) {
        const struct qp *qp;

        testdev_qp_req(td, &req, pd, cq);
        req.reserved[0] = PVRDMA_EXT_OBJ_RING;
        req.max_send_sge = cases[i].sge;
        req.max_inline_data = cases[i].max_inline;
        req.send_chunks = cases[i].pages;
        req.total_chunks = cases[i].pages + 2;
        req.pdir_dma = testdev_new_pdir(td, req.total_chunks, NULL);
        g_assert_cmpuint(create_qp(&req), ==, 0);
        g_assert_cmpuint(resp->max_inline_data, ==, cases[i].max_inline);
        qp = id_table_get(&td->vm.objects.qp, resp->qp_handle);
        g_assert_cmpuint(qp->sq.wqe_shift, ==, cases[i].shift);
        g_assert_cmpuint(qp->max_inline, ==, cases[i].max_inline);
        g_assert_true(qp->mem.ext);

        /* Room for less than what is asked is refused. */
        req.send_chunks--;
        req.total_chunks--;
        g_assert_cmpuint(create_qp(&req), !=, 0);
    }
    testdev_free(td);
}

static void test_bad_objects(void)
{
    struct pvrdma_cmd_create_qp req;
    struct pvrdma_cmd_create_cq creq = {.cqe = 64, .nchunks = 2};

    setup();
    testdev_qp_req(td, &req, pd, cq);
    req.reserved[0] = PVRDMA_EXT_OBJ_RING;
    /* One byte beyond the limit, with the pages it would need. */
    req.max_inline_data = PVRDMA_EXT_MAX_INLINE + 1;
    req.send_chunks = 16;
    req.total_chunks = 18;
    req.pdir_dma = testdev_new_pdir(td, 18, NULL);
    g_assert_cmpuint(create_qp(&req), !=, 0);
    req.max_inline_data = UINT32_MAX;
    g_assert_cmpuint(create_qp(&req), !=, 0);

    /* Inline data needs the extended layout; unknown flags are refused. */
    testdev_qp_req(td, &req, pd, cq);
    req.max_inline_data = 16;
    g_assert_cmpuint(create_qp(&req), !=, 0);
    req.max_inline_data = 0;
    req.reserved[0] = 2;
    g_assert_cmpuint(create_qp(&req), !=, 0);

    creq.pdir_dma = testdev_new_pdir(td, 2, NULL);
    creq.reserved = 2;
    g_assert_cmpuint(testdev_command(td, PVRDMA_CMD_CREATE_CQ, &creq, sizeof(creq)), !=,
                     0);
    creq.reserved = PVRDMA_EXT_OBJ_RING;
    testdev_do(td, PVRDMA_CMD_CREATE_CQ, &creq, sizeof(creq));
    testdev_free(td);
}

static void test_counters(void)
{
    const struct pvrdma_ext_resp_counters *resp;
    struct pvrdma_cmd_handle req = {0};

    setup();
    resp = testdev_ptr(td, td->resp);
    memset(testdev_ptr(td, td->resp), 0xff, 4096);
    testdev_do(td, PVRDMA_CMD_QUERY_COUNTERS, &req, sizeof(req));
    for (unsigned i = 0; i < PVRDMA_EXT_CNT_MAX; i++) {
        g_assert_cmpuint(resp->counter[i], ==, 0);
    }
    atomic_store(&td->vm.dp.rx_bytes, 1ull << 40);
    testdev_do(td, PVRDMA_CMD_QUERY_COUNTERS, &req, sizeof(req));
    g_assert_cmpuint(resp->counter[PVRDMA_EXT_CNT_RX_BYTES], ==, 1ull << 40);
    testdev_free(td);
}

int main(int argc, char **argv)
{
    testdev_init(&argc, &argv);
    g_test_add_func("/verbs/ext/window", test_window);
    g_test_add_func("/verbs/ext/context", test_context);
    g_test_add_func("/verbs/ext/kernel", test_kernel);
    g_test_add_func("/verbs/ext/bad-context", test_bad_context);
    g_test_add_func("/verbs/ext/inline", test_inline);
    g_test_add_func("/verbs/ext/bad-objects", test_bad_objects);
    g_test_add_func("/verbs/ext/counters", test_counters);
    return testdev_run();
}
