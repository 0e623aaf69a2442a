/* SPDX-License-Identifier: GPL-2.0-or-later */
/* command.c: the protocol of the command slot. */
#include "testdev.h"

static struct testdev *td;

static void setup(void)
{
    td = testdev_new("command");
    testdev_up(td);
}

static void test_response(void)
{
    struct pvrdma_cmd_query_pkey req = {
        .hdr = {.response = 0xfeedfacecafebeef},
        .port_num = 1,
    };
    struct pvrdma_resp_query_pkey *resp;
    uint8_t *after;

    setup();
    resp = testdev_ptr(td, td->resp);
    memset(resp, 0xaa, 4096);
    after = (uint8_t *)(resp + 1);
    testdev_do(td, PVRDMA_CMD_QUERY_PKEY, &req, sizeof(req));
    g_assert_cmphex(resp->hdr.response, ==, 0xfeedfacecafebeef);
    g_assert_cmphex(resp->hdr.ack, ==, 0x80000001);
    g_assert_cmpuint(resp->hdr.err, ==, 0);
    g_assert_cmpuint(resp->hdr.reserved[0], ==, 0);
    g_assert_cmphex(resp->pkey, ==, 0xffff);
    g_assert_cmpuint(resp->reserved[5], ==, 0);
    g_assert_cmphex(*after, ==, 0xaa); /* not a byte more */
    g_assert_cmpuint(testdev_irqs(td, PVRDMA_VEC_CMD), ==, 1);
    testdev_free(td);
}

/* Failure: ERR says so, the response slot and vector 0 stay untouched. */
static void test_failure(void)
{
    struct pvrdma_cmd_query_pkey req = {.port_num = 3};
    uint8_t *resp;

    setup();
    resp = testdev_ptr(td, td->resp);
    memset(resp, 0xaa, 4096);
    g_assert_cmpuint(testdev_command(td, PVRDMA_CMD_QUERY_PKEY, &req, sizeof(req)), !=,
                     0);
    for (unsigned i = 0; i < 4096; i++) {
        g_assert_cmphex(resp[i], ==, 0xaa);
    }
    g_assert_cmpuint(testdev_irqs(td, PVRDMA_VEC_CMD), ==, 0);
    g_assert_cmpuint(td->vm.dev->failed_commands, ==, 1);
    testdev_free(td);
}

/* Commands that nobody waits for raise nothing and write nothing. */
static void test_silent(void)
{
    uint32_t pd;
    uint8_t *resp;

    setup();
    pd = testdev_pd(td, 0);
    resp = testdev_ptr(td, td->resp);
    memset(resp, 0xaa, 4096);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_PD, pd), ==, 0);
    g_assert_cmphex(resp[0], ==, 0xaa);
    g_assert_cmpuint(testdev_irqs(td, PVRDMA_VEC_CMD), ==, 0);
    testdev_free(td);
}

static void test_unknown(void)
{
    static const uint32_t bad[] = {
        PVRDMA_CMD_RESIZE_CQ,
        PVRDMA_CMD_CREATE_SRQ,
        PVRDMA_CMD_MODIFY_SRQ,
        PVRDMA_CMD_QUERY_SRQ,
        PVRDMA_CMD_DESTROY_SRQ,
        PVRDMA_CMD_MAX,
        0x7fffffff,
        0x80000000,
        UINT32_MAX,
    };
    union pvrdma_cmd_req req = {0};

    setup();
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_assert_cmpuint(testdev_command(td, bad[i], &req, sizeof(req)), !=, 0);
    }
    g_assert_cmpuint(testdev_irqs(td, PVRDMA_VEC_CMD), ==, 0);
    testdev_free(td);
}

/*
 * CVE-2018-20126 / 2021-3608 at this level: every command with every request of
 * all zeroes and all ones, on a device with and without objects, fails or works
 * and leaves no object behind that was not asked for.
 */
static void test_patterns(void)
{
    setup();
    for (unsigned round = 0; round < 2; round++) {
        for (unsigned byte = 0; byte < 256; byte += 51) {
            for (uint32_t op = 0; op < 32; op++) {
                union pvrdma_cmd_req req;
                uint32_t err;

                memset(&req, byte, sizeof(req));
                err = testdev_command(td, op, &req, sizeof(req));
                if (op != PVRDMA_CMD_MODIFY_QP && (byte || op != PVRDMA_CMD_CREATE_PD)) {
                    g_assert_cmpuint(err, !=, 0);
                }
            }
        }
        testdev_qp(td, testdev_pd(td, 0), testdev_cq(td, 0, 64));
    }
    g_assert_cmpuint(testdev_stats(td).qp, ==, 2);
    g_assert_cmpuint(testdev_stats(td).cq, ==, 2);
    g_assert_cmpuint(testdev_stats(td).mr, ==, 0);
    g_assert_cmpuint(testdev_stats(td).uctx, ==, 0);
    g_assert_cmpuint(testdev_stats(td).gid, ==, 0);
    testdev_free(td);
}

/* The slots leave the DMA map: no object is made that cannot be reported. */
static void test_unmapped(void)
{
    struct pvrdma_cmd_create_pd req = {0};
    uint64_t resp;

    td = testdev_new("command");
    /* The response slot in a region of its own. */
    device_set_bus_master(td->vm.dev, true);
    g_assert_cmpint(guest_mem_map(&td->vm.guest.mem, td->ram_fd, 0, 0x1000, 4096, 3), ==,
                    0);
    testdev_fill_dsr(td);
    resp = 0x1000;
    ((struct pvrdma_dsr *)testdev_ptr(td, td->dsr))->resp_slot_dma = resp;
    g_assert_cmpuint(testdev_set_dsr(td), ==, 0);
    testdev_write(td, PVRDMA_REG_CTL, PVRDMA_CTL_ACTIVATE);
    testdev_do(td, PVRDMA_CMD_CREATE_PD, &req, sizeof(req));
    g_assert_cmpint(guest_mem_unmap(&td->vm.guest.mem, 0x1000, 4096, false), ==, 0);
    g_assert_cmpuint(testdev_command(td, PVRDMA_CMD_CREATE_PD, &req, sizeof(req)), !=, 0);
    g_assert_cmpuint(testdev_stats(td).pd, ==, 1);

    g_assert_cmpint(guest_mem_unmap(&td->vm.guest.mem, 0, 0, true), ==, 0);
    testdev_write(td, PVRDMA_REG_REQUEST, 0);
    g_assert_cmpuint(testdev_read(td, PVRDMA_REG_ERR), !=, 0);
    testdev_free(td);
}

/* A guest that changes the slot while we look: the copy decides. */
static gpointer flipper(gpointer arg)
{
    struct pvrdma_cmd_create_cq *slot = testdev_ptr(td, td->cmd);
    _Atomic bool *stop = arg;

    while (!atomic_load(stop)) {
        for (volatile unsigned n = 0; n < 50; n++) {
            __atomic_store_n(&slot->cqe, 1u << 18, __ATOMIC_RELAXED);
        }
        for (volatile unsigned n = 0; n < 50; n++) {
            __atomic_store_n(&slot->cqe, 64, __ATOMIC_RELAXED);
        }
    }
    return NULL;
}

static void test_double_fetch(void)
{
    struct pvrdma_cmd_create_cq req = {
        .hdr.cmd = PVRDMA_CMD_CREATE_CQ, .cqe = 64, .nchunks = 2};
    const struct pvrdma_resp_create_cq *resp;
    int64_t end = g_get_monotonic_time() + 20 * G_TIME_SPAN_SECOND;
    unsigned small = 0, large = 0;
    _Atomic bool stop = false;
    GThread *thread;

#ifdef __SANITIZE_THREAD__
    g_test_skip("it is a data race, and meant to be one");
    return;
#endif
    setup();
    resp = testdev_ptr(td, td->resp);
    req.pdir_dma = testdev_new_pdir(td, 2, NULL);
    thread = g_thread_new("flipper", flipper, &stop);
    /* Both must have been there at times, or nobody flipped anything.  With one processor
     * he does so while this thread lets him. */
    for (unsigned i = 0; i < 2000 || small < 50 || large < 50; i++) {
        g_assert_cmpint(g_get_monotonic_time(), <, end);
        memcpy(testdev_ptr(td, td->cmd), &req, sizeof(req));
        for (volatile unsigned n = 0; n < i % 512; n++) {
        }
        if (i % 16 == 0) {
            g_thread_yield();
        }
        testdev_write(td, PVRDMA_REG_REQUEST, 0);
        if (testdev_read(td, PVRDMA_REG_ERR)) {
            large++;
        } else {
            const struct cq *cq = id_table_get(&td->vm.objects.cq, resp->cq_handle);

            g_assert_cmpuint(resp->cqe, ==, 64);
            g_assert_cmpuint(cq->ncqe, ==, 64);
            g_assert_cmpuint(cq->mem.npages, ==, 2);
            g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_CQ, resp->cq_handle),
                             ==, 0);
            small++;
        }
    }
    atomic_store(&stop, true);
    g_thread_join(thread);
    g_test_message("%u commands saw the small number, %u the large one", small, large);
    testdev_free(td);
}

int main(int argc, char **argv)
{
    testdev_init(&argc, &argv);
    g_test_add_func("/device/command/response", test_response);
    g_test_add_func("/device/command/failure", test_failure);
    g_test_add_func("/device/command/silent", test_silent);
    g_test_add_func("/device/command/unknown", test_unknown);
    g_test_add_func("/device/command/patterns", test_patterns);
    g_test_add_func("/device/command/unmapped", test_unmapped);
    g_test_add_func("/device/command/double-fetch", test_double_fetch);
    return testdev_run();
}
