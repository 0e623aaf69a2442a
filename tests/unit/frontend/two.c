/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Two VMs and a thread that does not pass; see two.h. */
#include "two.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "control/registry.h"
#include "device/device.h"
#include "frontend/conn.h"

struct grace_thread two_stuck;

static uint64_t gpa(unsigned page)
{
    return TWO_RAM_GPA + page * PG;
}

static void reg_write(int fd, uint64_t reg, uint32_t v)
{
    g_assert_cmpint(client_write(fd, VFIO_USER_REGION_BAR1, reg, &v, sizeof(v)), ==, 0);
}

uint32_t two_reg_read(int fd, uint64_t reg)
{
    return client_read32(fd, VFIO_USER_REGION_BAR1, reg);
}

/* A directory in page @at, a table behind it, four pages behind that. */
static uint64_t make_ring(struct guest_ram *g, unsigned at)
{
    uint64_t *dir = (uint64_t *)(void *)(g->ram + at * PG);

    dir[0] = gpa(at + 1);
    for (unsigned i = 0; i < 4; i++) {
        dir[PVRDMA_PDIR_ENTRIES + i] = gpa(at + 2 + i);
    }
    return gpa(at);
}

/* Memory, bus mastering, DSR, ACTIVATE: ready for commands. */
static void bring_up(int fd, struct guest_ram *g)
{
    struct vfio_user_dma_map m = {sizeof(m), 3, 0, TWO_RAM_GPA, TWO_RAM_PAGES * PG};
    g_autofree struct reply *r = g_new(struct reply, 1);
    uint16_t command = 6;
    struct pvrdma_dsr *dsr;

    g->fd = sealed_memfd(TWO_RAM_PAGES * PG);
    g->ram = mmap(NULL, TWO_RAM_PAGES * PG, PROT_READ | PROT_WRITE, MAP_SHARED, g->fd, 0);
    g_assert_true(g->ram != MAP_FAILED);
    g_assert_cmpint(client_call(fd, VFIO_USER_DMA_MAP, &m, sizeof(m), &g->fd, 1, r), ==,
                    0);
    g_assert_cmpint(client_write(fd, VFIO_USER_REGION_CONFIG, 4, &command, 2), ==, 0);
    dsr = (void *)g->ram;
    *dsr = (struct pvrdma_dsr){
        .driver_version = 20,
        .cmd_slot_dma = gpa(1),
        .resp_slot_dma = gpa(2),
        .async_ring = {.num_pages = 4, .pdir_dma = make_ring(g, 3)},
        .cq_ring = {.num_pages = 4, .pdir_dma = make_ring(g, 9)},
        .uar_pfn = 0xfe000,
    };
    reg_write(fd, PVRDMA_REG_DSRLOW, (uint32_t)gpa(0));
    reg_write(fd, PVRDMA_REG_DSRHIGH, 0);
    g_assert_cmpuint(two_reg_read(fd, PVRDMA_REG_ERR), ==, 0);
    reg_write(fd, PVRDMA_REG_CTL, PVRDMA_CTL_ACTIVATE);
    g_assert_cmpuint(two_reg_read(fd, PVRDMA_REG_ERR), ==, 0);
}

static void put_command(struct guest_ram *g, uint32_t opcode, void *req, size_t size)
{
    ((struct pvrdma_req_hdr *)req)->cmd = opcode;
    memcpy(g->ram + PG, req, size);
}

/* Returns ERR. */
uint32_t two_command(int fd, struct guest_ram *g, uint32_t opcode, void *req, size_t size)
{
    put_command(g, opcode, req, size);
    reg_write(fd, PVRDMA_REG_REQUEST, 0);
    return two_reg_read(fd, PVRDMA_REG_ERR);
}

static uint32_t make_pd(int fd, struct guest_ram *g)
{
    struct pvrdma_cmd_create_pd req = {.ctx_handle = 0};

    g_assert_cmpuint(two_command(fd, g, PVRDMA_CMD_CREATE_PD, &req, sizeof(req)), ==, 0);
    return ((struct pvrdma_resp_handle *)(void *)(g->ram + 2 * PG))->handle;
}

/* A DMA MR: no page list. */
static uint32_t make_mr(int fd, struct guest_ram *g)
{
    struct pvrdma_cmd_create_mr req = {
        .pd_handle = make_pd(fd, g),
        .access_flags = PVRDMA_ACCESS_LOCAL_WRITE,
        .flags = PVRDMA_MR_FLAG_DMA,
    };

    g_assert_cmpuint(two_command(fd, g, PVRDMA_CMD_CREATE_MR, &req, sizeof(req)), ==, 0);
    return ((struct pvrdma_resp_create_mr *)(void *)(g->ram + 2 * PG))->mr_handle;
}

/* Send a DESTROY_MR and do not wait; the id of the message. */
static uint16_t send_destroy(struct two *t, uint32_t mr)
{
    struct pvrdma_cmd_handle req = {.handle = mr};
    struct {
        struct vfio_user_region_rw rw;
        uint32_t value;
    } body = {{PVRDMA_REG_REQUEST, VFIO_USER_REGION_BAR1, 4}, 0};

    put_command(&t->ram_a, PVRDMA_CMD_DESTROY_MR, &req, sizeof(req));
    return client_send(t->a.cl, VFIO_USER_REGION_WRITE, 0, &body, 20, NULL, 0);
}

/* VM A's command is parked from here on. */
uint16_t two_park_destroy(struct two *t)
{
    uint32_t mr = make_mr(t->a.cl, &t->ram_a);
    uint16_t id;

    grace_online(&two_stuck);
    id = send_destroy(t, mr);
    TWO_WAIT(t->a.vm->conn->parked);
    client_silent(t->a.cl);
    return id;
}

void two_expect_reply(int fd, uint16_t id, int err)
{
    g_autofree struct reply *r = g_new0(struct reply, 1);

    client_recv(fd, r);
    g_assert_cmpuint(r->hdr.id, ==, id);
    g_assert_cmpuint(r->hdr.error, ==, err);
}

uint16_t two_send_info(int fd)
{
    struct vfio_user_device_info info = {.argsz = sizeof(info)};

    return client_send(fd, VFIO_USER_DEVICE_GET_INFO, 0, &info, sizeof(info), NULL, 0);
}

/* Everything that does not need a grace period. */
void two_check_b_answers(struct two *t)
{
    struct pvrdma_cmd_handle req = {.handle = make_pd(t->b.cl, &t->ram_b)};

    g_assert_cmpuint(two_reg_read(t->b.cl, PVRDMA_REG_VERSION), ==, PVRDMA_VERSION);
    g_assert_cmpuint(
        two_command(t->b.cl, &t->ram_b, PVRDMA_CMD_DESTROY_PD, &req, sizeof(req)), ==, 0);
}

/* An orderly end, not a reset. */
void two_expect_eof(int fd)
{
    gint64 end = g_get_monotonic_time() + TWO_WAIT_US;
    char byte;
    ssize_t n;

    do {
        pump();
        g_assert_cmpint(g_get_monotonic_time(), <, end);
        n = recv(fd, &byte, 1, MSG_DONTWAIT);
    } while (n < 0 && errno == EAGAIN);
    g_assert_cmpint(n, ==, 0);
}

void two_add_vm(struct fixture *f, const char *name)
{
    GError *err = NULL;
    struct vm_config *vc = config_vm_new(f->cfg, name, &err);

    g_assert_no_error(err);
    f->vm = registry_add(vc, &err);
    g_assert_no_error(err);
}

static void free_ram(struct guest_ram *g)
{
    munmap(g->ram, TWO_RAM_PAGES * PG);
    close(g->fd);
}

void two_setup(struct two *t, gconstpointer arg)
{
    GError *err = NULL;

    g_assert_true(grace_start(&err));
    fixture_setup(&t->a, arg);
    t->b = t->a;
    two_add_vm(&t->b, "other");
    client_attach(&t->a);
    client_attach(&t->b);
    bring_up(t->a.cl, &t->ram_a);
    bring_up(t->b.cl, &t->ram_b);
    grace_register(&two_stuck);
    grace_offline(&two_stuck);
}

void two_teardown(struct two *t, gconstpointer arg)
{
    grace_offline(&two_stuck);
    if (t->a.cl >= 0) {
        close(t->a.cl);
        t->a.cl = -1;
    }
    if (t->b.cl >= 0) {
        close(t->b.cl);
    }
    TWO_WAIT(!t->b.vm->conn && !t->a.vm->conn);
    registry_remove(t->b.vm);
    free_ram(&t->ram_a);
    free_ram(&t->ram_b);
    grace_unregister(&two_stuck);
    fixture_teardown(&t->a, arg);
    grace_stop();
}
