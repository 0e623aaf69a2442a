/* SPDX-License-Identifier: GPL-2.0-or-later */
/* device.c: registers, DSR, activation, reset, bus mastering. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <unistd.h>

#include "testdev.h"

static struct testdev *td;

static uint32_t query_pkey(void)
{
    struct pvrdma_cmd_query_pkey req = {.port_num = 1};

    return testdev_command(td, PVRDMA_CMD_QUERY_PKEY, &req, sizeof(req));
}

/* CVE-2018-20191: every offset of BAR1 can be read, at any time. */
static void test_cve_2018_20191(void)
{
    td = testdev_new("device");
    for (uint64_t off = 0; off < PVRDMA_BAR_REG_SIZE; off += 4) {
        uint32_t v = testdev_read(td, off);

        if (off > PVRDMA_REG_MACH &&
            (off < PVRDMA_EXT_WINDOW ||
             off >= PVRDMA_EXT_WINDOW + PVRDMA_EXT_WINDOW_SIZE)) {
            g_assert_cmphex(v, ==, UINT32_MAX);
        }
    }
    g_assert_cmpuint(testdev_read(td, PVRDMA_REG_VERSION), ==, 20);
    g_assert_cmphex(testdev_read(td, UINT64_MAX), ==, UINT32_MAX);
    g_assert_cmphex(testdev_read(td, 1), ==, UINT32_MAX);
    /* And written, without effect where nothing is. */
    for (uint64_t off = PVRDMA_REG_MACH + 4; off < 0x2000; off += 4) {
        testdev_write(td, off, 0xffffffff);
    }
    testdev_write(td, PVRDMA_REG_VERSION, 17);
    testdev_write(td, PVRDMA_REG_ERR, 17);
    g_assert_cmpuint(testdev_read(td, PVRDMA_REG_VERSION), ==, 20);
    g_assert_cmpuint(testdev_read(td, PVRDMA_REG_ERR), ==, 0);
    testdev_write(td, PVRDMA_REG_IMR, 0x1234);
    g_assert_cmphex(testdev_read(td, PVRDMA_REG_IMR), ==, 0x1234);
    testdev_free(td);
}

/* The order of the driver's probe and remove. */
static void test_probe(void)
{
    const struct pvrdma_dsr *dsr;

    td = testdev_new("device");
    device_set_bus_master(td->vm.dev, true);
    testdev_fill_dsr(td);
    dsr = testdev_ptr(td, td->dsr);
    g_assert_cmpuint(dsr->caps.max_qp, ==, 0);
    g_assert_cmpuint(testdev_set_dsr(td), ==, 0);
    g_assert_cmpuint(dsr->caps.max_qp, ==, td->vm.cfg->max_qp);
    testdev_write(td, PVRDMA_REG_IMR, 0);

    /* No command before ACTIVATE. */
    g_assert_cmpuint(query_pkey(), !=, 0);
    testdev_write(td, PVRDMA_REG_CTL, PVRDMA_CTL_ACTIVATE);
    g_assert_cmpuint(testdev_read(td, PVRDMA_REG_ERR), ==, 0);
    g_assert_cmpuint(query_pkey(), ==, 0);
    testdev_write(td, PVRDMA_REG_CTL, PVRDMA_CTL_UNQUIESCE);
    g_assert_cmpuint(testdev_read(td, PVRDMA_REG_ERR), ==, 0);
    testdev_write(td, PVRDMA_REG_CTL, 3);
    g_assert_cmpuint(testdev_read(td, PVRDMA_REG_ERR), !=, 0);

    testdev_write(td, PVRDMA_REG_IMR, 0xffffffff);
    testdev_write(td, PVRDMA_REG_CTL, PVRDMA_CTL_RESET);
    g_assert_cmpuint(testdev_read(td, PVRDMA_REG_ERR), ==, 0);
    testdev_free(td);
}

/* A driver is told that it may say that the link is down; that is no command. */
static void test_link(void)
{
    td = testdev_new("device");
    g_assert_cmphex(testdev_read(td, PVRDMA_EXT_REG_FEATURES) & PVRDMA_EXT_FEAT_LINK, !=,
                    0);
    testdev_write(td, PVRDMA_REG_CTL, PVRDMA_EXT_CTL_LINK_DOWN);
    g_assert_cmpuint(testdev_read(td, PVRDMA_REG_ERR), ==, ENODEV);
    testdev_up(td);
    testdev_write(td, PVRDMA_REG_CTL, PVRDMA_EXT_CTL_LINK_DOWN);
    g_assert_cmpuint(testdev_read(td, PVRDMA_REG_ERR), ==, 0);
    g_assert_true(atomic_load(&td->vm.objects.link_down));
    testdev_write(td, PVRDMA_REG_CTL, PVRDMA_EXT_CTL_LINK_DOWN + 1);
    g_assert_cmpuint(testdev_read(td, PVRDMA_REG_ERR), ==, EINVAL);
    g_assert_true(atomic_load(&td->vm.objects.link_down));
    g_assert_cmpuint(query_pkey(), ==, 0);
    testdev_write(td, PVRDMA_REG_CTL, PVRDMA_CTL_UNQUIESCE);
    g_assert_cmpuint(testdev_read(td, PVRDMA_REG_ERR), ==, 0);
    g_assert_false(atomic_load(&td->vm.objects.link_down));
    testdev_free(td);
}

/* CVE-2022-1050: commands after teardown, and a DSR that is replaced. */
static void test_cve_2022_1050(void)
{
    uint32_t old_cmd_word;
    uint64_t old_cmd, old_resp;

    td = testdev_new("device");
    testdev_up(td);
    g_assert_cmpuint(query_pkey(), ==, 0);
    testdev_write(td, PVRDMA_REG_CTL, PVRDMA_CTL_RESET);
    testdev_irqs(td, PVRDMA_VEC_CMD);
    g_assert_cmpuint(query_pkey(), !=, 0);
    g_assert_cmpuint(testdev_irqs(td, PVRDMA_VEC_CMD), ==, 0);
    testdev_write(td, PVRDMA_REG_CTL, PVRDMA_CTL_ACTIVATE);
    g_assert_cmpuint(testdev_read(td, PVRDMA_REG_ERR), !=, 0);
    testdev_write(td, PVRDMA_REG_CTL, PVRDMA_CTL_UNQUIESCE);
    g_assert_cmpuint(testdev_read(td, PVRDMA_REG_ERR), !=, 0);

    /* Replace the DSR of an active device: the old one is taken down. */
    testdev_up(td);
    testdev_qp(td, testdev_pd(td, 0), testdev_cq(td, 0, 64));
    old_cmd = td->cmd;
    old_resp = td->resp;
    old_cmd_word = *(uint32_t *)testdev_ptr(td, old_resp);
    testdev_fill_dsr(td);
    g_assert_cmpuint(testdev_set_dsr(td), ==, 0);
    g_assert_cmpuint(testdev_stats(td).qp, ==, 0);
    g_assert_cmpuint(testdev_stats(td).pages, ==, 0);
    g_assert_cmpuint(query_pkey(), !=, 0); /* not active yet */
    testdev_write(td, PVRDMA_REG_CTL, PVRDMA_CTL_ACTIVATE);
    memset(testdev_ptr(td, old_cmd), 0xff, 4096);
    g_assert_cmpuint(query_pkey(), ==, 0);
    g_assert_cmpuint(*(uint32_t *)testdev_ptr(td, old_resp), ==, old_cmd_word);

    /* A bad new one leaves the device down, not on the old. */
    testdev_fill_dsr(td);
    ((struct pvrdma_dsr *)testdev_ptr(td, td->dsr))->cmd_slot_dma = 0;
    g_assert_cmpuint(testdev_set_dsr(td), !=, 0);
    g_assert_cmpuint(query_pkey(), !=, 0);
    testdev_free(td);
}

struct bad_dsr {
    const char *what;
    size_t offset;
    unsigned size;
    uint64_t value;
};

#define BAD(field, value)                                  \
    {                                                      \
#field, offsetof(struct pvrdma_dsr, field),        \
            sizeof(((struct pvrdma_dsr *)0)->field), value \
    }

/* CVE-2021-3607 and CVE-2023-1544 (ring page counts), and other bad DSRs. */
static void test_cve_2021_3607(void)
{
    static const struct bad_dsr bad[] = {
        BAD(async_ring.num_pages, 0),
        BAD(async_ring.num_pages, 1),
        BAD(async_ring.num_pages, EVENT_RING_MAX_PAGES + 1),
        BAD(async_ring.num_pages, 513),
        BAD(async_ring.num_pages, UINT32_MAX),
        BAD(cq_ring.num_pages, 0),
        BAD(cq_ring.num_pages, 1),
        BAD(cq_ring.num_pages, EVENT_RING_MAX_PAGES + 1),
        BAD(cq_ring.num_pages, UINT32_MAX),
        BAD(async_ring.num_pages, 5), /* the fifth page is address 0 */
        BAD(cq_ring.num_pages, 5),
        BAD(async_ring.pdir_dma, 0),
        BAD(async_ring.pdir_dma, TESTDEV_GPA + 1),
        BAD(cq_ring.pdir_dma, UINT64_MAX),
        BAD(cmd_slot_dma, 0),
        BAD(cmd_slot_dma, TESTDEV_GPA + 8),
        BAD(cmd_slot_dma, TESTDEV_GPA + TESTDEV_RAM_SIZE),
        BAD(resp_slot_dma, 0),
        BAD(resp_slot_dma, TESTDEV_GPA + 8),
        BAD(resp_slot_dma, UINT64_MAX & ~4095ull),
        BAD(uar_pfn, UINT64_MAX),
        BAD(uar_pfn, (UINT64_MAX >> 12) - 510),
    };

    td = testdev_new("device");
    device_set_bus_master(td->vm.dev, true);
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_test_message("%s = 0x%" PRIx64, bad[i].what, bad[i].value);
        testdev_fill_dsr(td);
        memcpy((uint8_t *)testdev_ptr(td, td->dsr) + bad[i].offset, &bad[i].value,
               bad[i].size);
        g_assert_cmpuint(testdev_set_dsr(td), !=, 0);
        g_assert_false(td->vm.dev->dsr_valid);
        testdev_write(td, PVRDMA_REG_CTL, PVRDMA_CTL_ACTIVATE);
        g_assert_cmpuint(testdev_read(td, PVRDMA_REG_ERR), !=, 0);
    }
    testdev_free(td);
}

/* DSR addresses that lead nowhere. */
static void test_dsr_address(void)
{
    static const uint64_t bad[] = {
        0,
        4096,
        TESTDEV_GPA + 4,
        TESTDEV_GPA + TESTDEV_RAM_SIZE,
        TESTDEV_GPA + TESTDEV_RAM_SIZE - 272,
        UINT64_MAX,
        UINT64_MAX - 7,
        UINT64_MAX - 4095,
    };

    td = testdev_new("device");
    device_set_bus_master(td->vm.dev, true);
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++) {
        td->dsr = bad[i];
        g_assert_cmpuint(testdev_set_dsr(td), !=, 0);
    }
    testdev_free(td);
}

static void test_bus_master(void)
{
    const struct pvrdma_dsr *dsr;

    td = testdev_new("device");
    testdev_fill_dsr(td);
    dsr = testdev_ptr(td, td->dsr);
    g_assert_cmpuint(testdev_set_dsr(td), !=, 0);
    g_assert_cmpuint(dsr->caps.max_qp, ==, 0); /* nothing was written */

    device_set_bus_master(td->vm.dev, true);
    g_assert_cmpuint(testdev_set_dsr(td), ==, 0);
    testdev_write(td, PVRDMA_REG_CTL, PVRDMA_CTL_ACTIVATE);
    g_assert_cmpuint(query_pkey(), ==, 0);
    g_assert_cmpuint(testdev_irqs(td, PVRDMA_VEC_CMD), ==, 1);

    device_set_bus_master(td->vm.dev, false);
    g_assert_true(atomic_load(&td->vm.dp.paused));
    g_assert_cmpuint(query_pkey(), !=, 0);
    g_assert_cmpuint(testdev_irqs(td, PVRDMA_VEC_CMD), ==, 0);
    /* It goes on when the guest shows by a command that it is the same one. */
    device_set_bus_master(td->vm.dev, true);
    g_assert_true(atomic_load(&td->vm.dp.paused));
    g_assert_cmpuint(query_pkey(), ==, 0);
    g_assert_false(atomic_load(&td->vm.dp.paused));

    /* Reset while it is off: the next guest does not start paused. */
    device_set_bus_master(td->vm.dev, false);
    testdev_write(td, PVRDMA_REG_CTL, PVRDMA_CTL_RESET);
    g_assert_false(atomic_load(&td->vm.dp.paused));
    device_set_bus_master(td->vm.dev, true);
    testdev_up(td);
    g_assert_cmpuint(query_pkey(), ==, 0);
    testdev_free(td);
}

/* DEVICE_RESET at any moment; afterwards the device is as new. */
static void test_reset(void)
{
    td = testdev_new("device");
    device_reset(td->vm.dev);
    testdev_up(td);
    testdev_qp(td, testdev_pd(td, 0), testdev_cq(td, 0, 64));
    testdev_write(td, PVRDMA_REG_MACL, 5);
    device_reset(td->vm.dev);
    device_reset(td->vm.dev);
    g_assert_cmpuint(testdev_stats(td).qp, ==, 0);
    for (uint64_t reg = 4; reg <= PVRDMA_REG_MACH; reg += 4) {
        g_assert_cmpuint(testdev_read(td, reg), ==, 0);
    }
    g_assert_cmpuint(query_pkey(), !=, 0);
    testdev_up(td);
    g_assert_cmpuint(query_pkey(), ==, 0);
    testdev_free(td);
}

static unsigned count_fds(void)
{
    unsigned n = 0;

    for (int fd = 0; fd < 1024; fd++) {
        n += fcntl(fd, F_GETFD) >= 0;
    }
    return n;
}

/* CVE-2018-20123 (leaks): attach, use, detach, and be as before. */
static void test_cve_2018_20123(void)
{
    unsigned fds;

    td = testdev_new("device");
    testdev_up(td);
    testdev_free(td);
    fds = count_fds();
    for (unsigned i = 0; i < 50; i++) {
        td = testdev_new("device");
        testdev_up(td);
        testdev_qp(td, testdev_pd(td, 0), testdev_cq(td, 0, 64));
        testdev_free(td);
    }
    g_assert_cmpuint(count_fds(), ==, fds);
}

int main(int argc, char **argv)
{
    testdev_init(&argc, &argv);
    g_test_add_func("/device/cve-2018-20191", test_cve_2018_20191);
    g_test_add_func("/device/probe", test_probe);
    g_test_add_func("/device/link", test_link);
    g_test_add_func("/device/cve-2022-1050", test_cve_2022_1050);
    g_test_add_func("/device/cve-2021-3607", test_cve_2021_3607);
    g_test_add_func("/device/dsr-address", test_dsr_address);
    g_test_add_func("/device/bus-master", test_bus_master);
    g_test_add_func("/device/reset", test_reset);
    g_test_add_func("/device/cve-2018-20123", test_cve_2018_20123);
    return testdev_run();
}
