/* SPDX-License-Identifier: GPL-2.0-or-later */
/* See testdev.h. */
#include "testdev.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "directory/directory.h"
#include "pvrdma/vfio_user.h"

void testdev_start(void)
{
    GError *err = NULL;

    log_set_level(LOG_LVL_ERROR);
    guest_mem_init_process();
    directory_init();
    datapath_start(1, 50, &err);
    g_assert_no_error(err);
}

void testdev_stop(void)
{
    datapath_stop();
}

void testdev_init(int *argc, char ***argv)
{
    g_test_init(argc, argv, NULL);
    testdev_start();
}

int testdev_run(void)
{
    int ret = g_test_run();

    testdev_stop();
    return ret;
}

static struct vm_config *make_config(const char *name, va_list ap)
{
    struct daemon_config *daemon = config_new();
    GError *err = NULL;
    struct vm_config *cfg = config_vm_new(daemon, name, &err);
    const char *key;

    g_assert_no_error(err);
    while ((key = va_arg(ap, const char *))) {
        config_vm_set(cfg, key, va_arg(ap, const char *), &err);
        g_assert_no_error(err);
    }
    config_free(daemon);
    return cfg;
}

static struct testdev *make(const char *name, va_list ap)
{
    struct testdev *td = g_new0(struct testdev, 1);
    GError *err = NULL;

    td->vm.cfg = make_config(name, ap);
    td->vm.guest.log.name = td->vm.cfg->name;
    vm_attach(&td->vm, &err);
    g_assert_no_error(err);

    td->ram_fd = memfd_create("ram", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    g_assert_cmpint(ftruncate(td->ram_fd, TESTDEV_RAM_SIZE), ==, 0);
    g_assert_cmpint(fcntl(td->ram_fd, F_ADD_SEALS, F_SEAL_SHRINK), ==, 0);
    td->ram =
        mmap(NULL, TESTDEV_RAM_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, td->ram_fd, 0);
    g_assert_true(td->ram != MAP_FAILED);
    td->next = TESTDEV_GPA;
    g_assert_cmpint(guest_mem_map(&td->vm.guest.mem, td->ram_fd, 0, TESTDEV_GPA,
                                  TESTDEV_RAM_SIZE,
                                  VFIO_USER_DMA_READ_FLAG | VFIO_USER_DMA_WRITE_FLAG),
                    ==, 0);
    for (unsigned i = 0; i < PVRDMA_NUM_VEC; i++) {
        td->irq[i] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        g_assert_cmpint(irq_assign(&td->vm.guest.irq, i, dup(td->irq[i])), ==, 0);
    }
    return td;
}

struct testdev *testdev_new_with(const char *name, ...)
{
    struct testdev *td;
    va_list ap;

    va_start(ap, name);
    td = make(name, ap);
    va_end(ap);
    return td;
}

struct testdev *testdev_new(const char *name)
{
    return testdev_new_with(name, "addresses", "any", NULL);
}

void testdev_free(struct testdev *td)
{
    vm_detach(&td->vm);
    config_vm_free(td->vm.cfg);
    munmap(td->ram, TESTDEV_RAM_SIZE);
    close(td->ram_fd);
    for (unsigned i = 0; i < PVRDMA_NUM_VEC; i++) {
        close(td->irq[i]);
    }
    g_free(td);
}

uint64_t testdev_pages(struct testdev *td, uint32_t n)
{
    uint64_t gpa = td->next;

    td->next += (uint64_t)n * PVRDMA_PAGE_SIZE;
    g_assert_cmpuint(td->next - TESTDEV_GPA, <=, TESTDEV_RAM_SIZE);
    return gpa;
}

void *testdev_ptr(struct testdev *td, uint64_t gpa)
{
    g_assert_cmpuint(gpa, >=, TESTDEV_GPA);
    g_assert_cmpuint(gpa - TESTDEV_GPA, <, TESTDEV_RAM_SIZE);
    return td->ram + (gpa - TESTDEV_GPA);
}

uint64_t testdev_pdir(struct testdev *td, const uint64_t *page, uint32_t n)
{
    uint32_t tables = (n + PVRDMA_PDIR_ENTRIES - 1) / PVRDMA_PDIR_ENTRIES;
    uint64_t dir = testdev_pages(td, 1 + tables);
    uint64_t *entry = testdev_ptr(td, dir);

    for (uint32_t t = 0; t < tables; t++) {
        entry[t] = dir + (1 + t) * PVRDMA_PAGE_SIZE;
    }
    for (uint32_t i = 0; i < n; i++) {
        /* The tables follow the directory without a gap. */
        entry[PVRDMA_PDIR_ENTRIES + i] = page[i];
    }
    return dir;
}

uint64_t testdev_new_pdir(struct testdev *td, uint32_t n, uint64_t *first)
{
    g_autofree uint64_t *page = g_new(uint64_t, n);
    uint64_t gpa = testdev_pages(td, n);

    for (uint32_t i = 0; i < n; i++) {
        page[i] = gpa + (uint64_t)i * PVRDMA_PAGE_SIZE;
    }
    if (first) {
        *first = gpa;
    }
    return testdev_pdir(td, page, n);
}

uint32_t testdev_read(struct testdev *td, uint64_t reg)
{
    return device_reg_read(td->vm.dev, reg);
}

void testdev_write(struct testdev *td, uint64_t reg, uint32_t value)
{
    device_reg_write(td->vm.dev, reg, value);
}

static uint64_t ring(struct testdev *td, uint64_t *page, uint32_t n)
{
    uint64_t first, dir = testdev_new_pdir(td, n, &first);

    for (uint32_t i = 0; i < n; i++) {
        page[i] = first + (uint64_t)i * PVRDMA_PAGE_SIZE;
    }
    return dir;
}

void testdev_fill_dsr(struct testdev *td)
{
    struct pvrdma_dsr *dsr;

    td->dsr = testdev_pages(td, 1);
    td->cmd = testdev_pages(td, 1);
    td->resp = testdev_pages(td, 1);
    dsr = testdev_ptr(td, td->dsr);
    *dsr = (struct pvrdma_dsr){
        .driver_version = 20,
        .cmd_slot_dma = td->cmd,
        .resp_slot_dma = td->resp,
        .async_ring = {.num_pages = 4, .pdir_dma = ring(td, td->async_ring, 4)},
        .cq_ring = {.num_pages = 4, .pdir_dma = ring(td, td->cqn_ring, 4)},
        .uar_pfn = TESTDEV_UAR_PFN,
    };
}

uint32_t testdev_set_dsr(struct testdev *td)
{
    testdev_write(td, PVRDMA_REG_DSRLOW, (uint32_t)td->dsr);
    testdev_write(td, PVRDMA_REG_DSRHIGH, td->dsr >> 32);
    return testdev_read(td, PVRDMA_REG_ERR);
}

void testdev_up(struct testdev *td)
{
    device_set_bus_master(td->vm.dev, true);
    testdev_fill_dsr(td);
    g_assert_cmpuint(testdev_set_dsr(td), ==, 0);
    testdev_write(td, PVRDMA_REG_IMR, 0);
    testdev_write(td, PVRDMA_REG_CTL, PVRDMA_CTL_ACTIVATE);
    g_assert_cmpuint(testdev_read(td, PVRDMA_REG_ERR), ==, 0);
}

uint32_t testdev_command(struct testdev *td, uint32_t opcode, void *req, size_t size)
{
    struct pvrdma_req_hdr *hdr = req;

    hdr->cmd = opcode;
    memcpy(testdev_ptr(td, td->cmd), req, size);
    testdev_write(td, PVRDMA_REG_REQUEST, 0);
    return testdev_read(td, PVRDMA_REG_ERR);
}

void testdev_do(struct testdev *td, uint32_t opcode, void *req, size_t size)
{
    g_assert_cmpuint(testdev_command(td, opcode, req, size), ==, 0);
}

uint64_t testdev_irqs(struct testdev *td, unsigned vec)
{
    uint64_t n;

    return read(td->irq[vec], &n, sizeof(n)) == sizeof(n) ? n : 0;
}

static uint32_t handle_of_resp(struct testdev *td)
{
    const struct pvrdma_resp_handle *resp = testdev_ptr(td, td->resp);

    testdev_irqs(td, PVRDMA_VEC_CMD);
    return resp->handle;
}

uint32_t testdev_uctx(struct testdev *td, uint32_t uar_page)
{
    struct pvrdma_cmd_create_uc req = {.pfn = TESTDEV_UAR_PFN + uar_page};

    testdev_do(td, PVRDMA_CMD_CREATE_UC, &req, sizeof(req));
    return handle_of_resp(td);
}

uint32_t testdev_pd(struct testdev *td, uint32_t uctx)
{
    struct pvrdma_cmd_create_pd req = {.ctx_handle = uctx};

    testdev_do(td, PVRDMA_CMD_CREATE_PD, &req, sizeof(req));
    return handle_of_resp(td);
}

uint32_t testdev_cq(struct testdev *td, uint32_t uctx, uint32_t cqe)
{
    uint32_t npages = 1 + (cqe * 64 + 4095) / 4096;
    struct pvrdma_cmd_create_cq req = {
        .pdir_dma = testdev_new_pdir(td, npages, NULL),
        .ctx_handle = uctx,
        .cqe = cqe,
        .nchunks = npages,
    };

    testdev_do(td, PVRDMA_CMD_CREATE_CQ, &req, sizeof(req));
    return handle_of_resp(td);
}

void testdev_qp_req(struct testdev *td, struct pvrdma_cmd_create_qp *req, uint32_t pd,
                    uint32_t cq)
{
    /* 64 * 128 bytes and 64 * 32 bytes: 2 pages and 1 page. */
    *req = (struct pvrdma_cmd_create_qp){
        .pdir_dma = testdev_new_pdir(td, 4, NULL),
        .pd_handle = pd,
        .send_cq_handle = cq,
        .recv_cq_handle = cq,
        .max_send_wr = 64,
        .max_recv_wr = 64,
        .max_send_sge = 1,
        .max_recv_sge = 1,
        .access_flags = PVRDMA_ACCESS_LOCAL_WRITE,
        .total_chunks = 4,
        .send_chunks = 2,
        .qp_type = PVRDMA_QPT_RC,
    };
}

uint32_t testdev_qp(struct testdev *td, uint32_t pd, uint32_t cq)
{
    const struct pvrdma_resp_create_qp *resp = testdev_ptr(td, td->resp);
    struct pvrdma_cmd_create_qp req;

    testdev_qp_req(td, &req, pd, cq);
    testdev_do(td, PVRDMA_CMD_CREATE_QP, &req, sizeof(req));
    testdev_irqs(td, PVRDMA_VEC_CMD);
    return resp->qp_handle;
}

uint32_t testdev_handle(struct testdev *td, uint32_t opcode, uint32_t handle)
{
    struct pvrdma_cmd_handle req = {.handle = handle};

    return testdev_command(td, opcode, &req, sizeof(req));
}

struct objects_stats testdev_stats(struct testdev *td)
{
    struct objects_stats st;

    objects_get_stats(&td->vm.objects, &st);
    return st;
}
