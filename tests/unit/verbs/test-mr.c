/* SPDX-License-Identifier: GPL-2.0-or-later */
/* mr.c: registration checks, keys, accounting. */
#include <errno.h>

#include "base/coro.h"
#include "testdev.h"
#include "verbs/verbs.h"

#define RW (PVRDMA_ACCESS_LOCAL_WRITE | PVRDMA_ACCESS_REMOTE_WRITE)

static struct testdev *td;
static uint32_t pd, uctx_pd;

static void setup(void)
{
    td = testdev_new("mr");
    testdev_up(td);
    pd = testdev_pd(td, 0);
    uctx_pd = testdev_pd(td, testdev_uctx(td, 1));
}

static void teardown(void)
{
    testdev_free(td);
}

/* Two pages from the middle of the first. */
static struct pvrdma_cmd_create_mr good(void)
{
    return (struct pvrdma_cmd_create_mr){
        .start = 0x7f0000000800,
        .length = 4096,
        .pdir_dma = testdev_new_pdir(td, 2, NULL),
        .pd_handle = uctx_pd,
        .access_flags = RW,
        .nchunks = 2,
    };
}

static uint32_t create(struct pvrdma_cmd_create_mr *req)
{
    return testdev_command(td, PVRDMA_CMD_CREATE_MR, req, sizeof(*req));
}

static const struct pvrdma_resp_create_mr *resp(void)
{
    return testdev_ptr(td, td->resp);
}

static void test_create(void)
{
    struct pvrdma_cmd_create_mr req;
    uint64_t first;
    struct mr *mr;

    setup();
    req = good();
    req.pdir_dma = testdev_new_pdir(td, 2, &first);
    req.access_flags |= 1u << 20; /* a hint: relaxed ordering */
    g_assert_cmpuint(create(&req), ==, 0);
    g_assert_cmpuint(testdev_irqs(td, PVRDMA_VEC_CMD), ==, 1);

    mr = objects_mr_by_key(&td->vm.objects, resp()->lkey);
    g_assert_nonnull(mr);
    g_assert_cmpuint(resp()->rkey, ==, resp()->lkey);
    g_assert_cmpuint(resp()->rkey, !=, 0);
    g_assert_cmpuint(mr->handle, ==, resp()->mr_handle);
    g_assert_cmpuint(mr->offset, ==, 0x800);
    g_assert_cmpuint(mr->npages, ==, 2);
    g_assert_cmpuint(mr->page[0], ==, first);
    g_assert_cmpuint(mr->page[1], ==, first + 4096);
    g_assert_cmpuint(mr->access, ==, RW);
    g_assert_cmpuint(testdev_stats(td).pages, ==, 2);

    /* Another key, even of the same index, finds nothing. */
    g_assert_null(objects_mr_by_key(&td->vm.objects, resp()->lkey ^ 0x80));
    g_assert_null(objects_mr_by_key(&td->vm.objects, 0));
    g_assert_null(objects_mr_by_key(&td->vm.objects, UINT32_MAX));

    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_PD, uctx_pd), !=, 0);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_MR, mr->handle), ==, 0);
    g_assert_null(objects_mr_by_key(&td->vm.objects, resp()->lkey));
    g_assert_cmpuint(testdev_stats(td).pages, ==, 0);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_PD, uctx_pd), ==, 0);
    teardown();
}

/* CVE-2021-3582: a length that the pages behind it do not cover. */
static void test_cve_2021_3582(void)
{
    static const struct {
        uint64_t start, length;
        uint32_t nchunks;
    } bad[] = {
        {0, 0, 0},
        {0, 0, 1},
        {0x1000, 0, 0},
        {0x1000, 0, 1},
        {0x1000, 4096, 0},
        {0x1000, 4096, 2},
        {0x1000, 4097, 1},
        {0x1fff, 2, 1},
        {0x1800, 4096, 1},
        {0x1000, UINT64_MAX, 2},
        {0x1000, UINT64_MAX - 0xfff, 1},
        {0x1000, 1ull << 32 | 4096, 1},
        {UINT64_MAX, 2, 1},
        {UINT64_MAX - 0xfff, 4097, 2},
        {0x1000, (1ull << 30) + 1, 262145},
        {0x1001, 1ull << 30, 262145},
        {0x1000, 4096, UINT32_MAX},
    };

    setup();
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++) {
        struct pvrdma_cmd_create_mr req = good();

        req.start = bad[i].start;
        req.length = bad[i].length;
        req.nchunks = bad[i].nchunks;
        g_assert_cmpuint(create(&req), !=, 0);
        g_assert_cmpuint(testdev_irqs(td, PVRDMA_VEC_CMD), ==, 0);
    }
    g_assert_cmpuint(testdev_stats(td).mr, ==, 0);
    g_assert_cmpuint(testdev_stats(td).pages, ==, 0);
    teardown();
}

/* A deep directory: the same rules, other bounds. */
static void test_deep(void)
{
    const uint64_t most = (uint64_t)PVRDMA_EXT_MR_MAX_PAGES * 4096;
    struct pvrdma_cmd_create_mr req;
    uint64_t top, first;
    struct mr *mr;

    setup();
    req = good();
    top = testdev_pages(td, 1);
    *(uint64_t *)testdev_ptr(td, top) = testdev_new_pdir(td, 2, &first);
    req.pdir_dma = top;
    req.flags = PVRDMA_EXT_MR_DEEP;
    g_assert_cmpuint(create(&req), ==, 0);
    mr = objects_mr_by_key(&td->vm.objects, resp()->lkey);
    g_assert_cmpuint(mr->npages, ==, 2);
    g_assert_cmpuint(mr->page[1], ==, first + 4096);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_MR, mr->handle), ==, 0);

    req.nchunks = 3;
    g_assert_cmpuint(create(&req), !=, 0);
    req.start = 0x1000;
    req.length = most + 1;
    req.nchunks = PVRDMA_EXT_MR_MAX_PAGES + 1;
    g_assert_cmpuint(create(&req), !=, 0);
    req.length = UINT64_MAX;
    g_assert_cmpuint(create(&req), !=, 0);
    req.length = most; /* over max-mr-pages */
    req.nchunks = PVRDMA_EXT_MR_MAX_PAGES;
    g_assert_cmpuint(create(&req), !=, 0);
    req.length = 1ull << 32; /* more than the directories there are */
    req.nchunks = 1u << 20;
    g_assert_cmpuint(create(&req), !=, 0);
    g_assert_cmpuint(testdev_stats(td).pages, ==, 0);
    g_assert_cmpuint(testdev_stats(td).mr, ==, 0);
    teardown();
}

/* The last bytes of the address space are an address range like any other. */
static void test_top(void)
{
    struct pvrdma_cmd_create_mr req;

    setup();
    req = good();
    req.start = UINT64_MAX - 0xfff;
    req.length = 4096;
    req.nchunks = 1;
    g_assert_cmpuint(create(&req), ==, 0);
    teardown();
}

static void test_access(void)
{
    static const struct {
        uint32_t access;
        bool ok;
    } cases[] = {
        {0, true},
        {PVRDMA_ACCESS_LOCAL_WRITE, true},
        {PVRDMA_ACCESS_REMOTE_READ, true},
        {0xf, true},
        {PVRDMA_ACCESS_REMOTE_WRITE, false},
        {PVRDMA_ACCESS_REMOTE_ATOMIC, false},
        {RW | PVRDMA_ACCESS_ON_DEMAND, false},
        {RW | PVRDMA_ACCESS_ZERO_BASED, true},
        {RW | PVRDMA_ACCESS_MW_BIND, true},
        {PVRDMA_ACCESS_REMOTE_WRITE | PVRDMA_ACCESS_MW_BIND, false},
        {RW | 1u << 12, false},
        {RW | 1u << 31, false},
        {RW | PVRDMA_ACCESS_OPTIONAL, true},
        {RW | PVRDMA_ACCESS_HUGETLB, true},
    };

    setup();
    for (unsigned i = 0; i < G_N_ELEMENTS(cases); i++) {
        struct pvrdma_cmd_create_mr req = good();

        req.access_flags = cases[i].access;
        g_assert_true((create(&req) == 0) == cases[i].ok);
    }
    teardown();
}

static void test_dma(void)
{
    struct pvrdma_cmd_create_mr req;

    setup();
    req = (struct pvrdma_cmd_create_mr){
        .pd_handle = pd,
        .access_flags = PVRDMA_ACCESS_LOCAL_WRITE,
        .flags = PVRDMA_MR_FLAG_DMA,
    };
    g_assert_cmpuint(create(&req), ==, 0);
    g_assert_true(objects_mr_by_key(&td->vm.objects, resp()->lkey)->dma);

    /* All of guest RAM: never for a program, never for a peer. */
    req.pd_handle = uctx_pd;
    g_assert_cmpuint(create(&req), !=, 0);
    req.pd_handle = pd;
    req.access_flags = RW;
    g_assert_cmpuint(create(&req), !=, 0);
    req.access_flags = PVRDMA_ACCESS_LOCAL_WRITE;
    req.length = 4096;
    g_assert_cmpuint(create(&req), !=, 0);
    req.length = 0;
    req.flags = PVRDMA_MR_FLAG_FRMR;
    g_assert_cmpuint(create(&req), !=, 0);
    req.flags = PVRDMA_MR_FLAG_DMA | PVRDMA_MR_FLAG_FRMR;
    g_assert_cmpuint(create(&req), !=, 0);
    req.flags = 1u << 31;
    g_assert_cmpuint(create(&req), !=, 0);
    req.flags = PVRDMA_MR_FLAG_DMA | PVRDMA_EXT_MR_DEEP;
    g_assert_cmpuint(create(&req), !=, 0);
    req.flags = PVRDMA_MR_FLAG_FRMR | PVRDMA_EXT_MR_DEEP;
    g_assert_cmpuint(create(&req), !=, 0);
    teardown();
}

/* CVE-2018-20126: an error path must give back what it took. */
static void test_bad_pages(void)
{
    struct pvrdma_cmd_create_mr req;
    uint64_t page[2];

    setup();
    req = good();
    req.pdir_dma = 0x1000; /* not in the DMA map */
    g_assert_cmpuint(create(&req), !=, 0);
    req.pdir_dma = testdev_new_pdir(td, 2, NULL) + 8;
    g_assert_cmpuint(create(&req), !=, 0);

    page[0] = testdev_pages(td, 1);
    page[1] = TESTDEV_GPA + TESTDEV_RAM_SIZE;
    req.pdir_dma = testdev_pdir(td, page, 2);
    g_assert_cmpuint(create(&req), !=, 0);
    page[1] = page[0] + 1;
    req.pdir_dma = testdev_pdir(td, page, 2);
    g_assert_cmpuint(create(&req), !=, 0);

    req = good();
    req.pd_handle = 999;
    g_assert_cmpuint(create(&req), !=, 0);
    req.pd_handle = 0;
    g_assert_cmpuint(create(&req), !=, 0);

    g_assert_cmpuint(testdev_stats(td).pages, ==, 0);
    g_assert_cmpuint(testdev_stats(td).mr, ==, 0);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_PD, uctx_pd), ==, 0);
    teardown();
}

static void test_limits(void)
{
    struct pvrdma_cmd_create_mr req;

    td = testdev_new_with("mr", "addresses", "any", "max-mr", "3", "max-mr-pages", "1027",
                          NULL);
    testdev_up(td);
    uctx_pd = testdev_pd(td, 0);
    req = good();
    g_assert_cmpuint(create(&req), ==, 0);

    /* 2 of 1027 pages are used: 1025 fit, 1026 do not. */
    req.start = 0x10000;
    req.length = 1026 * 4096;
    req.nchunks = 1026;
    req.pdir_dma = testdev_new_pdir(td, 1026, NULL);
    g_assert_cmpuint(create(&req), !=, 0);
    req.length = 1025 * 4096;
    req.nchunks = 1025;
    g_assert_cmpuint(create(&req), ==, 0);
    g_assert_cmpuint(testdev_stats(td).pages, ==, 1027);

    /* Page by page over three tables, in order. */
    {
        const struct mr *mr = objects_mr_by_key(&td->vm.objects, resp()->lkey);

        for (uint32_t i = 1; i < mr->npages; i++) {
            g_assert_cmpuint(mr->page[i], ==, mr->page[0] + i * 4096ull);
        }
    }
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_MR, resp()->mr_handle), ==, 0);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_MR, resp()->mr_handle), !=, 0);

    /* Table of 3: indices 1 and 2. */
    req = good();
    g_assert_cmpuint(create(&req), ==, 0);
    g_assert_cmpuint(create(&req), !=, 0);
    g_assert_cmpuint(testdev_stats(td).pages, ==, 4);
    teardown();
}

/* Windows and MRs share their handles, and windows take no pages. */
static void test_windows(void)
{
    struct pvrdma_ext_cmd_create_mw req;
    struct pvrdma_cmd_create_mr mr;
    uint32_t handle[3], key = 0;

    td = testdev_new_with("mr", "addresses", "any", "max-mr", "4", NULL);
    testdev_up(td);
    uctx_pd = testdev_pd(td, testdev_uctx(td, 1));
    g_assert_cmpuint(td->vm.objects.vm->cfg->max_mr, ==, 4);
    mr = good();
    for (unsigned i = 0; i < 3; i++) {
        req = (struct pvrdma_ext_cmd_create_mw){.pd_handle = uctx_pd, .type = 1 + i % 2};
        testdev_do(td, PVRDMA_CMD_CREATE_MW, &req, sizeof(req));
        g_assert_cmpuint(resp()->lkey, ==, 0);
        g_assert_cmpuint(resp()->rkey, !=, key);
        g_assert_null(objects_mr_by_key(&td->vm.objects, resp()->rkey));
        handle[i] = resp()->mr_handle;
        key = resp()->rkey;
    }
    g_assert_cmpuint(testdev_stats(td).pages, ==, 0);
    g_assert_cmpuint(testdev_command(td, PVRDMA_CMD_CREATE_MW, &req, sizeof(req)), ==,
                     ENOSPC);
    g_assert_cmpuint(create(&mr), ==, ENOSPC);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_MR, handle[0]), !=, 0);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_PD, uctx_pd), !=, 0);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_MW, handle[0]), ==, 0);
    g_assert_cmpuint(create(&mr), ==, 0);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_MW, resp()->mr_handle), !=, 0);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_MW, handle[0]), !=, 0);
    teardown(); /* with what is left */
}

/* A key of a dead MR does not reach the next one at its index. */
static void test_generation(void)
{
    struct pvrdma_cmd_create_mr req;
    uint32_t key;

    td = testdev_new_with("mr", "addresses", "any", "max-mr", "2", NULL);
    testdev_up(td);
    uctx_pd = testdev_pd(td, 0);
    req = good();
    g_assert_cmpuint(create(&req), ==, 0);
    key = resp()->rkey;
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_MR, resp()->mr_handle), ==, 0);
    g_assert_cmpuint(create(&req), ==, 0);
    g_assert_cmpuint(resp()->mr_handle, ==, key >> 8);
    g_assert_cmpuint(resp()->rkey, !=, key);
    g_assert_null(objects_mr_by_key(&td->vm.objects, key));
    teardown();
}

/* A registration in a coroutine, as a VM's command. */
struct attempt {
    union verbs_req req;
    union verbs_resp resp;
    int err;
    unsigned ended; /* as which of all; 0: not yet */
};

static unsigned n_ended;

static void attempt(void *opaque)
{
    struct attempt *a = opaque;

    a->err = verbs_create_mr(&td->vm, &a->req, &a->resp);
    a->ended = ++n_ended;
}

/* Of @npages pages that are all the same one; @bad: the first of them is no memory. */
static struct attempt deep_list(uint32_t npages, bool bad)
{
    uint64_t page = testdev_pages(td, 4);

    for (unsigned level = 0; level < 3; level++) {
        uint64_t *entry = testdev_ptr(td, page + level * PVRDMA_PAGE_SIZE);

        for (unsigned i = 0; i < PVRDMA_PDIR_ENTRIES; i++) {
            entry[i] = page + (level + 1) * PVRDMA_PAGE_SIZE;
        }
    }
    if (bad) {
        *(uint64_t *)testdev_ptr(td, page) = 1ull << 50;
    }
    return (struct attempt){
        .req.abi.create_mr = {.start = 0x7f0000000000,
                              .length = (uint64_t)npages * PVRDMA_PAGE_SIZE,
                              .pdir_dma = page,
                              .pd_handle = uctx_pd,
                              .access_flags = RW,
                              .flags = PVRDMA_EXT_MR_DEEP,
                              .nchunks = npages}};
}

/*
 * Lists of more than 1 GiB are read one after another: the second is not even looked at
 * (it would fail at once) before the first is done.  A short one does not wait for them.
 */
static void test_large_lists(void)
{
    const uint32_t large = PVRDMA_PDIR_MAX_PAGES + 1;
    struct attempt first, second, third, small;

    td = testdev_new_with("mr", "addresses", "any", "max-mr-pages", "20000000", NULL);
    testdev_up(td);
    uctx_pd = testdev_pd(td, testdev_uctx(td, 1));
    n_ended = 0;
    first = deep_list(PVRDMA_EXT_MR_MAX_PAGES, false);
    second = deep_list(large, true);
    third = deep_list(large, false);
    small = deep_list(PVRDMA_PDIR_MAX_PAGES, true);
    g_assert_false(coro_run(attempt, &first)); /* after a millisecond */
    g_assert_false(coro_run(attempt, &second));
    g_assert_false(coro_run(attempt, &third));
    g_assert_true(coro_run(attempt, &small));
    while (n_ended < 4) {
        g_main_context_iteration(NULL, FALSE);
    }
    g_assert_cmpint(small.err, ==, EFAULT);
    g_assert_cmpuint(small.ended, ==, 1);
    g_assert_cmpint(first.err, ==, 0);
    g_assert_cmpuint(first.ended, ==, 2);
    g_assert_cmpint(second.err, ==, EFAULT);
    g_assert_cmpuint(second.ended, ==, 3);
    g_assert_cmpint(third.err, ==, 0);
    g_assert_cmpuint(third.ended, ==, 4);
    teardown();
}

int main(int argc, char **argv)
{
    testdev_init(&argc, &argv);
    g_test_add_func("/verbs/mr/create", test_create);
    g_test_add_func("/verbs/mr/cve-2021-3582", test_cve_2021_3582);
    g_test_add_func("/verbs/mr/deep", test_deep);
    g_test_add_func("/verbs/mr/large-lists", test_large_lists);
    g_test_add_func("/verbs/mr/top", test_top);
    g_test_add_func("/verbs/mr/access", test_access);
    g_test_add_func("/verbs/mr/dma", test_dma);
    g_test_add_func("/verbs/mr/bad-pages", test_bad_pages);
    g_test_add_func("/verbs/mr/limits", test_limits);
    g_test_add_func("/verbs/mr/windows", test_windows);
    g_test_add_func("/verbs/mr/generation", test_generation);
    return testdev_run();
}
