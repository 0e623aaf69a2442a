/* SPDX-License-Identifier: GPL-2.0-or-later */
/* verbs.c: caps, port, contexts, PDs, reset of everything. */
#include "pvrdma/ext.h"
#include "testdev.h"

static struct testdev *td;

static void setup(void)
{
    td = testdev_new("verbs");
    testdev_up(td);
}

/* What the Linux driver insists on, and what our handles rely on. */
static void test_caps(void)
{
    const struct pvrdma_caps *caps;
    struct pvrdma_caps other;
    uint8_t guid[8];
    struct testdev *td2;

    setup();
    caps = &((struct pvrdma_dsr *)testdev_ptr(td, td->dsr))->caps;
    g_assert_cmpuint(caps->mode, ==, 0);
    g_assert_cmpuint(caps->gid_types, ==, PVRDMA_GID_TYPE_ROCE_V2);
    g_assert_cmpuint(caps->phys_port_cnt, ==, 1);
    g_assert_cmpuint(caps->max_pkeys, ==, 1);
    g_assert_cmpuint(caps->max_uar & (caps->max_uar - 1), ==, 0);
    g_assert_cmpuint(caps->max_uar, ==, VERBS_MAX_UAR);
    g_assert_cmpuint(caps->max_qp, <=, 65535);
    g_assert_cmpuint(caps->max_qp, ==, td->vm.objects.qp.size);
    g_assert_cmpuint(caps->max_cq, ==, td->vm.objects.cq.size);
    g_assert_cmpuint(caps->max_srq, ==, td->vm.objects.srq.size);
    g_assert_cmpuint(caps->max_srq_wr, ==, VERBS_MAX_QP_WR);
    g_assert_cmpuint(caps->max_srq_sge, ==, VERBS_MAX_SGE);
    g_assert_cmpuint(caps->bmme_flags, ==, 7); /* all or nothing, for the stock driver */
    g_assert_cmpuint(caps->max_fast_reg_page_list_len, ==, 128); /* it refuses more */
    g_assert_cmpuint(caps->max_sge_rd, <=, caps->max_sge);       /* nvmet asks for it */
    g_assert_cmpuint(caps->gid_tbl_len, ==, VERBS_GID_TBL_LEN);
    g_assert_cmpuint(caps->max_mr_size, ==, 1ull << 30);
    memcpy(guid, &caps->node_guid, 8);
    g_assert_cmpuint(guid[0] & 3, ==, 2); /* local, not a group */

    /* The same VM has the same GUID, another name or network another. */
    verbs_fill_caps(&td->vm.objects, &other);
    g_assert_cmpuint(other.node_guid, ==, caps->node_guid);
    td2 = testdev_new_with("verbs", "addresses", "any", "network", "n2", NULL);
    verbs_fill_caps(&td2->vm.objects, &other);
    g_assert_cmpuint(other.node_guid, !=, caps->node_guid);
    testdev_free(td2);
    testdev_free(td);
}

static void test_port(void)
{
    struct pvrdma_cmd_query_port port = {.port_num = 1};
    struct pvrdma_cmd_query_pkey pkey = {.port_num = 1};
    const struct pvrdma_resp_query_port *rp;
    const struct pvrdma_resp_query_pkey *rk;

    setup();
    rp = testdev_ptr(td, td->resp);
    rk = testdev_ptr(td, td->resp);
    testdev_do(td, PVRDMA_CMD_QUERY_PORT, &port, sizeof(port));
    g_assert_cmpuint(rp->attrs.state, ==, PVRDMA_PORT_ACTIVE);
    g_assert_cmpuint(rp->attrs.phys_state, ==, 5);
    g_assert_cmpuint(rp->attrs.active_mtu, ==, 5);
    g_assert_cmpuint(rp->attrs.gid_tbl_len, ==, 64);
    g_assert_cmpuint(rp->attrs.pkey_tbl_len, ==, 1);
    g_assert_cmpuint(rp->attrs.max_msg_sz, ==, 1u << 31);
    port.port_num = 0;
    g_assert_cmpuint(testdev_command(td, PVRDMA_CMD_QUERY_PORT, &port, sizeof(port)), !=,
                     0);
    port.port_num = 2;
    g_assert_cmpuint(testdev_command(td, PVRDMA_CMD_QUERY_PORT, &port, sizeof(port)), !=,
                     0);

    testdev_do(td, PVRDMA_CMD_QUERY_PKEY, &pkey, sizeof(pkey));
    g_assert_cmpuint(rk->pkey, ==, 0xffff);
    pkey.index = 1;
    g_assert_cmpuint(testdev_command(td, PVRDMA_CMD_QUERY_PKEY, &pkey, sizeof(pkey)), !=,
                     0);
    testdev_free(td);
}

static uint32_t create_uc(uint64_t pfn)
{
    struct pvrdma_cmd_create_uc req = {.pfn = pfn};

    return testdev_command(td, PVRDMA_CMD_CREATE_UC, &req, sizeof(req));
}

/* Each context has a UAR page of BAR2 of its own. */
static void test_uctx(void)
{
    uint32_t uctx, pd;

    setup();
    g_assert_cmpuint(create_uc(TESTDEV_UAR_PFN), !=, 0); /* the kernel's */
    g_assert_cmpuint(create_uc(TESTDEV_UAR_PFN - 1), !=, 0);
    g_assert_cmpuint(create_uc(TESTDEV_UAR_PFN + 512), !=, 0);
    g_assert_cmpuint(create_uc(0), !=, 0);
    g_assert_cmpuint(create_uc(UINT64_MAX), !=, 0);
    g_assert_cmpuint(create_uc(1ull << 32 | (TESTDEV_UAR_PFN + 1)), !=, 0);

    uctx = testdev_uctx(td, 511);
    g_assert_cmpuint(uctx, !=, 0);
    pd = testdev_pd(td, uctx);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_PD, pd), ==, 0);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_UC, uctx), ==, 0);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_UC, uctx), !=, 0);
    testdev_uctx(td, 511);
    testdev_free(td);
}

/* All that a context can have; the PD. */
static uint32_t fill_uctx(uint32_t uctx)
{
    uint32_t pd = testdev_pd(td, uctx), cq = testdev_cq(td, uctx, 64);
    struct pvrdma_cmd_create_srq srq = {
        .pd_handle = pd,
        .nchunks = 2,
        .attrs = {.max_wr = 16, .max_sge = 2},
    };
    struct pvrdma_cmd_create_mr mr = {
        .pd_handle = pd,
        .start = 0x10000,
        .length = PVRDMA_PAGE_SIZE,
        .access_flags = 1,
        .nchunks = 1,
    };
    struct pvrdma_ext_cmd_create_mw mw = {.pd_handle = pd, .type = PVRDMA_EXT_MW_TYPE_2B};
    const struct pvrdma_resp_handle *made = testdev_ptr(td, td->resp);
    struct pvrdma_cmd_create_qp qp;
    uint64_t page[2] = {testdev_pages(td, 1), testdev_pages(td, 1)};

    mr.pdir_dma = srq.pdir_dma = testdev_pdir(td, page, 2);
    testdev_qp(td, pd, cq);
    testdev_qp(td, pd, cq);
    testdev_do(td, PVRDMA_CMD_CREATE_SRQ, &srq, sizeof(srq));
    testdev_qp_req(td, &qp, pd, cq);
    qp.max_recv_wr = qp.max_recv_sge = 0;
    qp.total_chunks = 3;
    qp.is_srq = 1;
    qp.srq_handle = made->handle;
    testdev_do(td, PVRDMA_CMD_CREATE_QP, &qp, sizeof(qp));
    testdev_do(td, PVRDMA_CMD_CREATE_MR, &mr, sizeof(mr));
    testdev_do(td, PVRDMA_CMD_CREATE_MW, &mw, sizeof(mw));
    return pd;
}

/* As many objects as @then, and @uctx contexts more. */
static void check_stats(const struct objects_stats *then, uint32_t uctx)
{
    struct objects_stats now = testdev_stats(td);

    g_assert_cmpuint(now.uctx, ==, then->uctx + uctx);
    g_assert_cmpuint(now.pd, ==, then->pd);
    g_assert_cmpuint(now.mr, ==, then->mr);
    g_assert_cmpuint(now.cq, ==, then->cq);
    g_assert_cmpuint(now.qp, ==, then->qp);
    g_assert_cmpuint(now.srq, ==, then->srq);
    g_assert_cmpuint(now.pages, ==, then->pages);
}

static uint32_t stock_uctx(uint32_t page)
{
    return testdev_uctx(td, page);
}

/* With all extensions, which have pages of their own. */
static uint32_t ext_uctx(uint32_t page)
{
    const struct pvrdma_ext_resp_uc *made = testdev_ptr(td, td->resp);
    struct pvrdma_ext_cmd_uc req = {
        .pfn = TESTDEV_UAR_PFN + page,
        .pdir_dma = testdev_new_pdir(td, PVRDMA_EXT_PAGES, NULL),
        .features = PVRDMA_EXT_CONTEXT_FEATURES,
        .npages = PVRDMA_EXT_PAGES,
    };

    testdev_do(td, PVRDMA_CMD_CREATE_UC_EXT, &req, sizeof(req));
    return made->ctx_handle;
}

/*
 * A driver that was interrupted does not know what was made for it, and what
 * that refers to it cannot destroy.  The context ends all the same, and takes
 * just its own along; the page is free for the next one, also if nobody
 * destroyed the context.
 */
static void test_left_behind(gconstpointer ext)
{
    uint32_t (*context)(uint32_t page) = ext ? ext_uctx : stock_uctx;
    uint32_t kept, left, pd, kernel;
    struct objects_stats before, st;

    setup();
    kernel = testdev_pd(td, 0);
    testdev_qp(td, kernel, testdev_cq(td, 0, 64));
    kept = context(7);
    fill_uctx(kept);
    before = testdev_stats(td);

    left = context(8);
    pd = fill_uctx(left);
    st = testdev_stats(td);
    g_assert_cmpuint(st.qp, ==, 7);
    g_assert_cmpuint(st.mr, ==, 4);
    g_assert_cmpuint(st.srq, ==, 2);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_PD, pd), !=, 0);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_UC, left), ==, 0);
    check_stats(&before, 0);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_PD, pd), !=, 0);

    /* With a CQ goes whoever uses it. */
    left = context(8);
    testdev_qp(td, kernel, testdev_cq(td, left, 64));
    g_assert_cmpuint(testdev_stats(td).qp, ==, before.qp + 1);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_UC, left), ==, 0);
    check_stats(&before, 0);

    left = context(8);
    fill_uctx(left);
    g_assert_cmpuint(create_uc(TESTDEV_UAR_PFN + 8), ==, 0);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_UC, left), !=, 0);
    check_stats(&before, 1);

    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_UC, kept), ==, 0);
    st = testdev_stats(td);
    g_assert_cmpuint(st.qp, ==, 1);
    g_assert_cmpuint(st.pd, ==, 1);
    testdev_free(td);
}

static void test_pd(void)
{
    struct pvrdma_cmd_create_pd req = {.ctx_handle = 12};
    uint32_t pd;

    td = testdev_new_with("verbs", "addresses", "any", "max-pd", "3", NULL);
    testdev_up(td);
    g_assert_cmpuint(testdev_command(td, PVRDMA_CMD_CREATE_PD, &req, sizeof(req)), !=, 0);
    pd = testdev_pd(td, 0);
    testdev_pd(td, 0);
    req.ctx_handle = 0;
    g_assert_cmpuint(testdev_command(td, PVRDMA_CMD_CREATE_PD, &req, sizeof(req)), !=, 0);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_PD, 0), !=, 0);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_PD, 3), !=, 0);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_PD, UINT32_MAX), !=, 0);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_PD, pd), ==, 0);
    testdev_free(td);
}

/* Reset with objects that hang on each other; twice over the same tables. */
static void test_reset(void)
{
    setup();
    for (unsigned round = 0; round < 2; round++) {
        uint32_t uctx = testdev_uctx(td, 3), pd = testdev_pd(td, uctx);
        uint32_t cq = testdev_cq(td, uctx, 64), kpd = testdev_pd(td, 0);
        struct pvrdma_cmd_create_mr mr = {
            .pd_handle = kpd,
            .access_flags = 1,
            .flags = PVRDMA_MR_FLAG_DMA,
        };
        struct objects_stats st;

        for (unsigned i = 0; i < 5; i++) {
            testdev_qp(td, pd, cq);
        }
        testdev_do(td, PVRDMA_CMD_CREATE_MR, &mr, sizeof(mr));
        st = testdev_stats(td);
        g_assert_cmpuint(st.qp, ==, 5);
        g_assert_cmpuint(st.pages, ==, 5 * 4 + 2);

        testdev_write(td, PVRDMA_REG_CTL, PVRDMA_CTL_RESET);
        st = testdev_stats(td);
        g_assert_cmpuint(st.uctx + st.pd + st.mr + st.cq + st.qp + st.gid, ==, 0);
        g_assert_cmpuint(st.pages, ==, 0);
        testdev_up(td);
    }
    testdev_free(td);
}

int main(int argc, char **argv)
{
    testdev_init(&argc, &argv);
    g_test_add_func("/verbs/caps", test_caps);
    g_test_add_func("/verbs/port", test_port);
    g_test_add_func("/verbs/uctx", test_uctx);
    g_test_add_data_func("/verbs/left-behind/stock", NULL, test_left_behind);
    g_test_add_data_func("/verbs/left-behind/extended", "", test_left_behind);
    g_test_add_func("/verbs/pd", test_pd);
    g_test_add_func("/verbs/reset", test_reset);
    return testdev_run();
}
