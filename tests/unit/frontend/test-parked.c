/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Messages that wait: a registered thread that does not pass (the test itself) keeps
 * grace periods from ending, so every DESTROY, DMA_UNMAP, reset, attach and detach
 * stands still as long as the test wants.  What happens to its VM meanwhile, and
 * what does not happen to the others.
 */
#include "client.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/grace.h"
#include "control/control.h"
#include "control/registry.h"
#include "control/restart/internal.h"
#include "control/restart/restart.h"
#include "device/device.h"
#include "frontend/conn.h"
#include "frontend/frontend.h"
#include "frontend/migration.h"
#include "guest/budget.h"
#include "guest/reaper.h"

#define RAM_GPA   0x100000ull
#define RAM_PAGES 32u

#define WAIT_US (10 * G_USEC_PER_SEC)
#define WAIT(condition)                                       \
    do {                                                      \
        gint64 end_ = g_get_monotonic_time() + WAIT_US;       \
                                                              \
        while (pump(), !(condition)) {                        \
            g_assert_cmpint(g_get_monotonic_time(), <, end_); \
            g_usleep(100);                                    \
        }                                                     \
    } while (0)

/* The thread that does not pass. */
static struct grace_thread stuck;

static const struct daemon_config *cfg;

struct guest_ram {
    int fd;
    uint8_t *ram;
};

struct two {
    struct fixture a;
    struct fixture b; /* its vm and client only */
    struct guest_ram ram_a, ram_b;
};

static uint64_t gpa(unsigned page)
{
    return RAM_GPA + page * PG;
}

static void reg_write(int fd, uint64_t reg, uint32_t v)
{
    g_assert_cmpint(client_write(fd, VFIO_USER_REGION_BAR1, reg, &v, sizeof(v)), ==, 0);
}

static uint32_t reg_read(int fd, uint64_t reg)
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
    struct vfio_user_dma_map m = {sizeof(m), 3, 0, RAM_GPA, RAM_PAGES * PG};
    g_autofree struct reply *r = g_new(struct reply, 1);
    uint16_t command = 6;
    struct pvrdma_dsr *dsr;

    g->fd = sealed_memfd(RAM_PAGES * PG);
    g->ram = mmap(NULL, RAM_PAGES * PG, PROT_READ | PROT_WRITE, MAP_SHARED, g->fd, 0);
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
    g_assert_cmpuint(reg_read(fd, PVRDMA_REG_ERR), ==, 0);
    reg_write(fd, PVRDMA_REG_CTL, PVRDMA_CTL_ACTIVATE);
    g_assert_cmpuint(reg_read(fd, PVRDMA_REG_ERR), ==, 0);
}

static void put_command(struct guest_ram *g, uint32_t opcode, void *req, size_t size)
{
    ((struct pvrdma_req_hdr *)req)->cmd = opcode;
    memcpy(g->ram + PG, req, size);
}

/* Returns ERR. */
static uint32_t command(int fd, struct guest_ram *g, uint32_t opcode, void *req,
                        size_t size)
{
    put_command(g, opcode, req, size);
    reg_write(fd, PVRDMA_REG_REQUEST, 0);
    return reg_read(fd, PVRDMA_REG_ERR);
}

static uint32_t make_pd(int fd, struct guest_ram *g)
{
    struct pvrdma_cmd_create_pd req = {.ctx_handle = 0};

    g_assert_cmpuint(command(fd, g, PVRDMA_CMD_CREATE_PD, &req, sizeof(req)), ==, 0);
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

    g_assert_cmpuint(command(fd, g, PVRDMA_CMD_CREATE_MR, &req, sizeof(req)), ==, 0);
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
static uint16_t park_destroy(struct two *t)
{
    uint32_t mr = make_mr(t->a.cl, &t->ram_a);
    uint16_t id;

    grace_online(&stuck);
    id = send_destroy(t, mr);
    WAIT(t->a.vm->conn->parked);
    client_silent(t->a.cl);
    return id;
}

static void expect_reply(int fd, uint16_t id, int err)
{
    g_autofree struct reply *r = g_new0(struct reply, 1);

    client_recv(fd, r);
    g_assert_cmpuint(r->hdr.id, ==, id);
    g_assert_cmpuint(r->hdr.error, ==, err);
}

static uint16_t send_info(int fd)
{
    struct vfio_user_device_info info = {.argsz = sizeof(info)};

    return client_send(fd, VFIO_USER_DEVICE_GET_INFO, 0, &info, sizeof(info), NULL, 0);
}

/* Everything that does not need a grace period. */
static void check_b_answers(struct two *t)
{
    struct pvrdma_cmd_handle req = {.handle = make_pd(t->b.cl, &t->ram_b)};

    g_assert_cmpuint(reg_read(t->b.cl, PVRDMA_REG_VERSION), ==, PVRDMA_VERSION);
    g_assert_cmpuint(
        command(t->b.cl, &t->ram_b, PVRDMA_CMD_DESTROY_PD, &req, sizeof(req)), ==, 0);
}

/* An orderly end, not a reset. */
static void expect_eof(int fd)
{
    gint64 end = g_get_monotonic_time() + WAIT_US;
    char byte;
    ssize_t n;

    do {
        pump();
        g_assert_cmpint(g_get_monotonic_time(), <, end);
        n = recv(fd, &byte, 1, MSG_DONTWAIT);
    } while (n < 0 && errno == EAGAIN);
    g_assert_cmpint(n, ==, 0);
}

static void add_vm(struct fixture *f, const char *name)
{
    GError *err = NULL;
    struct vm_config *vc = config_vm_new(f->cfg, name, &err);

    g_assert_no_error(err);
    f->vm = registry_add(vc, &err);
    g_assert_no_error(err);
}

static void free_ram(struct guest_ram *g)
{
    munmap(g->ram, RAM_PAGES * PG);
    close(g->fd);
}

static void setup(struct two *t, gconstpointer arg)
{
    GError *err = NULL;

    g_assert_true(grace_start(&err));
    fixture_setup(&t->a, arg);
    cfg = t->a.cfg;
    t->b = t->a;
    add_vm(&t->b, "other");
    client_attach(&t->a);
    client_attach(&t->b);
    bring_up(t->a.cl, &t->ram_a);
    bring_up(t->b.cl, &t->ram_b);
    grace_register(&stuck);
    grace_offline(&stuck);
}

static void teardown(struct two *t, gconstpointer arg)
{
    grace_offline(&stuck);
    if (t->a.cl >= 0) {
        close(t->a.cl);
        t->a.cl = -1;
    }
    if (t->b.cl >= 0) {
        close(t->b.cl);
    }
    WAIT(!t->b.vm->conn && !t->a.vm->conn);
    registry_remove(t->b.vm);
    free_ram(&t->ram_a);
    free_ram(&t->ram_b);
    grace_unregister(&stuck);
    fixture_teardown(&t->a, arg);
    grace_stop();
}

/* ---- the tests ---- */

/* Nothing is read, others are served, and the answers come in order. */
static void test_order(struct two *t, gconstpointer arg)
{
    uint16_t destroy = park_destroy(t), info, reset, info2;
    uint64_t spent = t->a.vm->command_ns;
    int unread = 0;

    info = send_info(t->a.cl);
    reset = client_send(t->a.cl, VFIO_USER_DEVICE_RESET, 0, NULL, 0, NULL, 0);
    info2 = send_info(t->a.cl);
    client_silent(t->a.cl);
    g_assert_cmpint(ioctl(t->a.vm->conn->fd, FIONREAD, &unread), ==, 0);
    g_assert_cmpint(unread, ==, 16 + 16 + 16 + 16 + 16);
    for (unsigned i = 0; i < 10; i++) {
        check_b_answers(t);
    }
    client_silent(t->a.cl);

    grace_pass(&stuck);
    expect_reply(t->a.cl, destroy, 0);
    g_assert_cmpuint(t->a.vm->objects.mr.used, ==, 0);
    expect_reply(t->a.cl, info, 0);
    /* The reset behind it waits for a period of its own. */
    WAIT(t->a.vm->conn->parked);
    client_silent(t->a.cl);
    g_assert_true(t->a.vm->ops.held);
    check_b_answers(t);
    grace_offline(&stuck);
    expect_reply(t->a.cl, reset, 0);
    expect_reply(t->a.cl, info2, 0);
    g_assert_false(t->a.vm->ops.held);
    g_assert_cmpuint(t->a.vm->objects.pd.used, ==, 0);
    g_assert_cmpuint(t->a.vm->command_ns, >, spent);
}

/* What needs a grace period is parked for every VM, each on its own. */
static void test_both(struct two *t, gconstpointer arg)
{
    uint16_t a = park_destroy(t), b;

    b = client_send(t->b.cl, VFIO_USER_DEVICE_RESET, 0, NULL, 0, NULL, 0);
    WAIT(t->b.vm->conn->parked);
    client_silent(t->a.cl);
    client_silent(t->b.cl);
    grace_offline(&stuck);
    expect_reply(t->b.cl, b, 0);
    expect_reply(t->a.cl, a, 0);
}

/*
 * The client goes while its command is parked: it closes, with messages that nobody
 * read, or ends its half.
 */
enum leave { LEAVE, LEAVE_UNREAD, LEAVE_HALF };

static void test_eof(struct two *t, gconstpointer arg)
{
    enum leave how = GPOINTER_TO_INT(arg);
    uint16_t destroy = park_destroy(t);
    int half = -1;

    if (how == LEAVE_UNREAD) {
        send_info(t->a.cl);
        client_send(t->a.cl, VFIO_USER_DEVICE_RESET, 0, NULL, 0, NULL, 0);
    }
    if (how == LEAVE_HALF) {
        half = t->a.cl;
        shutdown(half, SHUT_WR);
    } else {
        close(t->a.cl);
    }
    t->a.cl = -1;
    WAIT(t->a.vm->conn->why); /* seen */
    g_assert_true(t->a.vm->conn->eof);
    g_assert_true(t->a.vm->attached);
    g_assert_cmpuint(t->a.vm->objects.pd.used, ==, 1);
    check_b_answers(t);
    grace_offline(&stuck);
    WAIT(!t->a.vm->conn);
    g_assert_false(t->a.vm->attached);
    check_b_answers(t);
    if (half >= 0) {
        expect_reply(half, destroy, 0);
        expect_eof(half);
        close(half);
    }
    client_attach(&t->a);
}

/* ... and another one comes: it is served when the first one is gone. */
static void test_reconnect(struct two *t, gconstpointer arg)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    uint8_t body[512];
    uint32_t len = version_body(body, 0, 0, stock_json);
    uint16_t id;

    park_destroy(t);
    close(t->a.cl);
    t->a.cl = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    g_strlcpy(addr.sun_path, t->a.vm->cfg->socket, sizeof(addr.sun_path));
    g_assert_cmpint(connect(t->a.cl, (struct sockaddr *)&addr, sizeof(addr)), ==, 0);
    id = client_send(t->a.cl, VFIO_USER_VERSION, 0, body, len, NULL, 0);
    client_silent(t->a.cl);
    check_b_answers(t);
    grace_offline(&stuck);
    expect_reply(t->a.cl, id, 0);
    g_assert_true(t->a.vm->attached);
    g_assert_cmpuint(t->a.vm->objects.pd.used, ==, 0);
}

/* Attaching waits for nobody. */
static void test_attach(struct two *t, gconstpointer arg)
{
    client_close(&t->a);
    grace_online(&stuck);
    client_attach(&t->a);
    check_b_answers(t);
    /* The client goes at once. */
    close(t->a.cl);
    t->a.cl = -1;
    WAIT(t->a.vm->conn->ending);
    check_b_answers(t);
    g_assert_true(t->a.vm->attached);
    grace_offline(&stuck);
    WAIT(!t->a.vm->conn);
    g_assert_false(t->a.vm->attached);
}

static void expect_answer(const char *request, const char *part)
{
    g_autofree char *text = control_handle(cfg, request, strlen(request));

    g_assert_nonnull(strstr(text, part));
}

struct admin {
    const char *request;
    char *answer;
};

static void run_admin(void *opaque)
{
    struct admin *a = opaque;

    a->answer = control_handle(cfg, a->request, strlen(a->request));
}

/* An administrator removes the VM: that waits, the name stays taken meanwhile. */
static void test_remove(struct two *t, gconstpointer arg)
{
    uint16_t destroy = park_destroy(t), info = send_info(t->a.cl);
    g_autofree char *socket = g_strdup(t->a.vm->cfg->socket);
    struct admin rm = {"{\"cmd\":\"vm-remove\",\"name\":\"test\"}"};
    struct admin pause = {"{\"cmd\":\"vm-pause\",\"name\":\"test\"}"};
    struct vm_config *vc;
    GError *err = NULL;

    /* Behind the command, before the removal. */
    g_assert_false(coro_run(run_admin, &pause));
    g_assert_false(coro_run(run_admin, &rm));
    g_assert_true(registry_find("test") == t->a.vm);
    g_assert_false(g_file_test(socket, G_FILE_TEST_EXISTS));
    expect_answer(rm.request, "being removed");
    expect_answer(pause.request, "being removed");
    expect_answer("{\"cmd\":\"status\"}", "\"ok\":true");
    expect_answer("{\"cmd\":\"counters\"}", "command_ns");
    vc = config_vm_new(t->a.cfg, "test", &err);
    g_assert_no_error(err);
    g_assert_null(registry_add(vc, &err));
    g_assert_nonnull(strstr(err->message, "exists"));
    g_clear_error(&err);
    check_b_answers(t);
    client_silent(t->a.cl);
    g_assert_null(pause.answer);
    g_assert_null(rm.answer);

    grace_offline(&stuck);
    expect_reply(t->a.cl, destroy, 0);
    expect_reply(t->a.cl, info, ENODEV); /* came too late */
    expect_eof(t->a.cl);
    WAIT(!registry_find("test"));
    WAIT(rm.answer);
    g_assert_nonnull(strstr(rm.answer, "\"ok\":true"));
    /* Its place was behind the end of the connection, which came first. */
    g_assert_nonnull(pause.answer);
    g_free(rm.answer);
    g_free(pause.answer);
    check_b_answers(t);

    /* And the name is free again. */
    add_vm(&t->a, "test");
    close(t->a.cl);
    client_attach(&t->a);
}

static void run_remove(void *vm)
{
    registry_remove(vm);
}

/* Removed when its message has not even begun: others have their turn before it. */
static void test_remove_early(struct two *t, gconstpointer arg)
{
    uint16_t reset;

    t->a.vm->conn->later_until = G_MAXINT64;
    reset = client_send(t->a.cl, VFIO_USER_DEVICE_RESET, 0, NULL, 0, NULL, 0);
    while (!t->a.vm->conn->parked) {
        g_main_context_iteration(NULL, TRUE);
    }
    g_assert_false(t->a.vm->ops.held);
    g_assert_false(coro_run(run_remove, t->a.vm));
    g_assert_nonnull(registry_find("test"));
    expect_reply(t->a.cl, reset, ENODEV);
    expect_eof(t->a.cl);
    WAIT(!registry_find("test"));
    add_vm(&t->a, "test");
}

/* Pause and resume queue behind a command; a status does not. */
static void test_pause(struct two *t, gconstpointer arg)
{
    uint16_t destroy = park_destroy(t);
    struct admin list = {"{\"cmd\":\"qp-list\",\"name\":\"test\"}"};
    struct admin pause = {"{\"cmd\":\"vm-pause\",\"name\":\"test\"}"};
    struct admin resume = {"{\"cmd\":\"vm-resume\",\"name\":\"test\"}"};

    g_assert_false(coro_run(run_admin, &list));
    g_assert_false(coro_run(run_admin, &pause));
    g_assert_false(coro_run(run_admin, &resume));
    expect_answer("{\"cmd\":\"status\"}", "\"admin_paused\":false");
    grace_pass(&stuck);
    expect_reply(t->a.cl, destroy, 0);
    WAIT(atomic_load(&t->a.vm->dp.paused)); /* that waits for a period, too */
    g_assert_nonnull(list.answer);
    g_assert_null(pause.answer);
    g_assert_null(resume.answer);
    /* Looking is free meanwhile; what changes the VM queues up. */
    g_assert_cmpuint(reg_read(t->a.cl, PVRDMA_REG_VERSION), ==, PVRDMA_VERSION);
    send_info(t->a.cl);
    client_send(t->a.cl, VFIO_USER_DEVICE_RESET, 0, NULL, 0, NULL, 0);
    WAIT(t->a.vm->conn->parked);
    grace_offline(&stuck);
    WAIT(resume.answer && !t->a.vm->conn->parked);
    g_assert_nonnull(strstr(pause.answer, "\"ok\":true"));
    g_assert_nonnull(strstr(resume.answer, "\"ok\":true"));
    g_assert_false(atomic_load(&t->a.vm->dp.paused));
    g_free(list.answer);
    g_free(pause.answer);
    g_free(resume.answer);
}

static gboolean on_let_go(gpointer opaque)
{
    grace_offline(&stuck);
    return G_SOURCE_REMOVE;
}

static int admin_connect(void)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    g_strlcpy(addr.sun_path, cfg->control_socket, sizeof(addr.sun_path));
    g_assert_cmpint(connect(fd, (struct sockaddr *)&addr, sizeof(addr)), ==, 0);
    return fd;
}

static void admin_send(int fd, const char *text)
{
    g_assert_cmpint(send(fd, text, strlen(text), MSG_NOSIGNAL), ==, strlen(text));
}

/* How many answers are there; -1: the connection has ended. */
static int admin_answers(int fd)
{
    char buf[65536];
    int lines = 0;
    ssize_t n;

    pump();
    n = recv(fd, buf, sizeof(buf), MSG_DONTWAIT);
    if (n == 0) {
        return -1;
    }
    for (ssize_t i = 0; i < n; i++) {
        lines += buf[i] == '\n';
    }
    return lines;
}

/* Over the admin socket: one request at a time for a client, others go on. */
static void test_admin_socket(struct two *t, gconstpointer arg)
{
    uint16_t destroy = park_destroy(t);
    GError *err = NULL;
    int s[3];

    config_complete(t->a.cfg);
    g_assert_true(control_listen(cfg, &err));
    for (unsigned i = 0; i < 3; i++) {
        s[i] = admin_connect();
    }
    pump();
    admin_send(s[0], "{\"cmd\":\"vm-pause\",\"name\":\"test\"}\n"
                     "{\"cmd\":\"vm-list\"}\n");
    g_assert_cmpint(admin_answers(s[0]), ==, 0);
    admin_send(s[1], "{\"cmd\":\"vm-resume\",\"name\":\"test\"}\n");
    g_assert_cmpint(admin_answers(s[1]), ==, 0);
    close(s[1]); /* it does not wait for the answer */
    for (unsigned i = 0; i < 5; i++) {
        admin_send(s[2], "{\"cmd\":\"status\"}\n");
        g_assert_cmpint(admin_answers(s[2]), ==, 1);
    }
    g_assert_cmpint(admin_answers(s[0]), ==, 0);
    grace_offline(&stuck);
    expect_reply(t->a.cl, destroy, 0);
    WAIT(!t->a.vm->ops.held);
    g_assert_cmpint(admin_answers(s[0]), ==, 2);
    g_assert_false(t->a.vm->admin_paused);

    /* The socket is closed while a request waits. */
    grace_online(&stuck);
    admin_send(s[0], "{\"cmd\":\"vm-pause\",\"name\":\"test\"}\n");
    WAIT(t->a.vm->ops.held);
    g_timeout_add(20, on_let_go, NULL);
    control_close();
    g_assert_true(t->a.vm->admin_paused);
    g_assert_cmpint(admin_answers(s[2]), ==, -1);
    close(s[0]);
    close(s[2]);
}

/* A fault while the command is parked; faults again; then somebody comes. */
static void test_fault(struct two *t, gconstpointer arg)
{
    uint16_t destroy = park_destroy(t);
    uint64_t faults = t->a.vm->faults;

    guest_fault(&t->a.vm->guest, "the test says so");
    WAIT(t->a.vm->conn->why);
    g_assert_true(t->a.vm->attached);
    /* A fault of another VM makes the handler look at this one again. */
    guest_fault(&t->b.vm->guest, "the test says so");
    WAIT(t->b.vm->conn->ending);
    g_assert_true(t->a.vm->attached);
    grace_offline(&stuck);
    expect_reply(t->a.cl, destroy, 0);
    expect_eof(t->a.cl);
    expect_eof(t->b.cl);
    g_assert_cmpuint(t->a.vm->faults, ==, faults + 1);
    g_assert_null(atomic_load(&t->a.vm->guest.fault));
    close(t->a.cl);
    client_attach(&t->a); /* after the hold-off */
}

/* What the client sent and nobody read is answered, and the end is no reset. */
static void test_drain(struct two *t, gconstpointer arg)
{
    struct vfio_user_hdr half = {77, VFIO_USER_DEVICE_RESET, 32, 0, 0};
    uint16_t destroy = park_destroy(t), id[3];
    int fd = sealed_memfd(PG);
    unsigned fds;

    id[0] = send_info(t->a.cl);
    id[1] = client_send(t->a.cl, VFIO_USER_DEVICE_RESET, 0, NULL, 0, &fd, 1);
    client_post(t->a.cl, VFIO_USER_REGION_BAR2, 0, "1234", 4);
    id[2] = send_info(t->a.cl);
    client_raw(t->a.cl, &half, sizeof(half), &fd, 1);
    fds = count_fds();
    frontend_disconnect(t->a.vm, "the test says so");
    client_silent(t->a.cl);
    grace_offline(&stuck);
    expect_reply(t->a.cl, destroy, 0);
    for (unsigned i = 0; i < 3; i++) {
        expect_reply(t->a.cl, id[i], ENODEV);
    }
    expect_eof(t->a.cl);
    WAIT(count_fds() < fds); /* another thread closes the socket */
    close(fd);
}

/* A second client has sent its VERSION by the time it is refused; no reset. */
static void test_refused(struct two *t, gconstpointer arg)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    uint8_t body[512];
    uint32_t len = version_body(body, 0, 0, stock_json);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    uint16_t id;

    g_strlcpy(addr.sun_path, t->a.vm->cfg->socket, sizeof(addr.sun_path));
    g_assert_cmpint(connect(fd, (struct sockaddr *)&addr, sizeof(addr)), ==, 0);
    id = client_send(fd, VFIO_USER_VERSION, 0, body, len, NULL, 0);
    expect_reply(fd, id, EBUSY);
    expect_eof(fd);
    close(fd);
    check_b_answers(t);
    g_assert_cmpint(client_do(t->a.cl, VFIO_USER_DEVICE_RESET, NULL, 0), ==, 0);
}

/* ---- all stand still, for another daemon ---- */

/* This one takes long to close, as much memory does. */
static _Atomic int slow_fd = -1;
static _Atomic bool slow_closing;

int __wrap_close(int fd);
int __real_close(int fd);

int __wrap_close(int fd)
{
    while (fd >= 0 && fd == atomic_load(&slow_fd)) {
        atomic_store(&slow_closing, true);
        g_usleep(1000);
    }
    return __real_close(fd);
}

struct freeze {
    GPtrArray *frozen;
    gint64 since;
    GError *err;
    bool ok, done, all;
};

static void run_freeze(void *opaque)
{
    struct freeze *f = opaque;

    f->ok = restart_freeze_all(f->frozen, f->all, &f->since, &f->err);
    f->done = true;
}

/* Until all stand still, as soon as nothing of the last test is being closed any more. */
static void begin_freeze(struct two *t, struct freeze *f)
{
    coro_run(run_freeze, f);
    WAIT(t->b.vm->conn->frozen);
}

static void run_thaw(void *opaque)
{
    struct freeze *f = opaque;

    restart_thaw_all(f->frozen, true);
    f->done = true;
}

/* A command that takes long holds up nobody but its VM. */
static void test_freeze(struct two *t, gconstpointer arg)
{
    uint16_t destroy = park_destroy(t), info = send_info(t->a.cl), reset;
    struct freeze f = {.frozen = g_ptr_array_new(), .all = true};

    begin_freeze(t, &f);
    reset = send_info(t->b.cl);
    client_silent(t->b.cl);
    /* In vain: the others go on, and what is late is waited for. */
    expect_reply(t->b.cl, reset, 0);
    check_b_answers(t);
    g_assert_false(f.done);
    grace_pass(&stuck);
    expect_reply(t->a.cl, destroy, 0);
    WAIT((grace_pass(&stuck), f.done));
    g_assert_true(f.ok);
    g_assert_no_error(f.err);
    g_assert_cmpuint(f.frozen->len, ==, 2);

    /* What came meanwhile waits, and nobody waits for it. */
    reset = client_send(t->a.cl, VFIO_USER_DEVICE_RESET, 0, NULL, 0, NULL, 0);
    client_silent(t->a.cl);
    f.done = false;
    coro_run(run_thaw, &f);
    g_assert_true(f.done);
    expect_reply(t->a.cl, info, 0);
    check_b_answers(t);
    client_silent(t->a.cl);
    grace_offline(&stuck);
    expect_reply(t->a.cl, reset, 0);
    g_ptr_array_unref(f.frozen);
}

/* One that does not end costs its VM the connection, and the others a second. */
static void test_freeze_hung(struct two *t, gconstpointer arg)
{
    uint16_t destroy = park_destroy(t);
    struct freeze f = {.frozen = g_ptr_array_new(), .all = true};

    coro_run(run_freeze, &f);
    WAIT(t->a.vm->conn->why);
    check_b_answers(t);
    grace_offline(&stuck);
    expect_reply(t->a.cl, destroy, 0);
    WAIT(f.done);
    g_assert_true(f.ok);
    g_assert_null(t->a.vm->conn);
    g_assert_nonnull(t->b.vm->conn);
    g_assert_cmpuint(f.frozen->len, ==, 2);
    restart_thaw_all(f.frozen, true);
    check_b_answers(t);
    g_ptr_array_unref(f.frozen);
}

/* Who leaves keeps the others whatever one does. */
static void test_freeze_leave(struct two *t, gconstpointer arg)
{
    struct freeze f = {.frozen = g_ptr_array_new()};

    t->a.vm->ops.held = true;
    coro_run(run_freeze, &f);
    WAIT(f.done);
    g_assert_true(f.ok);
    g_assert_no_error(f.err);
    g_assert_cmpuint(f.frozen->len, ==, 1);
    g_assert_true(f.frozen->pdata[0] == t->b.vm);
    restart_thaw_all(f.frozen, true); /* it leaves nothing in the end */
    check_b_answers(t);
    t->a.vm->ops.held = false;
    g_ptr_array_unref(f.frozen);
}

/* All stand still, and then go on as it is in vain. */
static void expect_attempt(struct two *t, struct freeze *f)
{
    uint16_t info = send_info(t->b.cl);

    client_silent(t->b.cl);
    expect_reply(t->b.cl, info, 0);
    check_b_answers(t);
    g_assert_false(f->done);
}

/*
 * A worker that stands in a page fault when nothing else is in work, with a VM's token:
 * the others go on until it is out of it.
 */
static void test_freeze_stuck(struct two *t, gconstpointer arg)
{
    struct freeze f = {.frozen = g_ptr_array_new(), .all = true};

    grace_online(&stuck);
    WAIT(pthread_mutex_trylock(&t->a.vm->dp.token) == 0); /* its worker may have it */
    begin_freeze(t, &f);
    expect_attempt(t, &f);
    WAIT((grace_pass(&stuck), f.done));
    g_assert_true(f.ok);
    g_assert_no_error(f.err);
    g_assert_cmpuint(f.frozen->len, ==, 2);
    restart_thaw_all(f.frozen, true);
    check_b_answers(t);
    pthread_mutex_unlock(&t->a.vm->dp.token);
    g_ptr_array_unref(f.frozen);
}

/* Who leaves waits for it for longer, at last: it can leave nobody out instead. */
static void test_freeze_leave_stuck(struct two *t, gconstpointer arg)
{
    struct freeze f = {.frozen = g_ptr_array_new()};
    gint64 end;

    grace_online(&stuck);
    begin_freeze(t, &f);
    expect_attempt(t, &f);
    grace_pass(&stuck); /* once */
    WAIT(atomic_load(&t->a.vm->dp.paused));
    end = g_get_monotonic_time() + 3 * G_USEC_PER_SEC / 2;
    while (g_get_monotonic_time() < end) {
        pump();
        g_usleep(1000);
        g_assert_true(atomic_load(&t->a.vm->dp.paused));
    }
    g_assert_false(f.done);
    WAIT((grace_pass(&stuck), f.done));
    g_assert_true(f.ok);
    g_assert_cmpuint(f.frozen->len, ==, 2);
    restart_thaw_all(f.frozen, true);
    check_b_answers(t);
    g_ptr_array_unref(f.frozen);
}

/* The daemon is to end at once while all stand still for a worker: all go on. */
static void test_freeze_leave_end(struct two *t, gconstpointer arg)
{
    char *argv[] = {NULL};
    struct freeze f = {.frozen = g_ptr_array_new()};

    grace_online(&stuck);
    begin_freeze(t, &f);
    g_assert_false(f.done);
    restart_stop();
    WAIT(f.done);
    g_assert_false(f.ok);
    g_assert_nonnull(f.err);
    g_assert_cmpuint(f.frozen->len, ==, 0);
    check_b_answers(t);
    g_assert_false(atomic_load(&t->a.vm->dp.paused));
    restart_init(argv);
    g_error_free(f.err);
    g_ptr_array_unref(f.frozen);
}

/*
 * Memory is being freed, by the reaper or (@arg) a closer: all run while that is waited
 * for, and stand still for a moment only if it takes too long.
 */
static void test_freeze_memory(struct two *t, gconstpointer arg)
{
    gint64 before = restart_memory_us;
    int behind = sealed_memfd(PG);
    GError *err = NULL;

    g_assert_true(reaper_start(&err));
    for (unsigned round = 0; round < 2; round++) {
        struct freeze f = {.frozen = g_ptr_array_new(), .all = true};
        struct budget *b = budget_new();
        int fd = sealed_memfd(PG);

        atomic_store(&slow_closing, false);
        atomic_store(&slow_fd, fd);
        if (arg) {
            discard_fd(&t->a.vm->discard, fd);
        } else {
            budget_set(b, PG, 1);
            g_assert_null(budget_take(b, PG));
            budget_retire(b, PG);
            reaper_unmap(mmap(NULL, PG, PROT_READ, MAP_SHARED, fd, 0), PG, PG, b, fd);
        }
        WAIT(atomic_load(&slow_closing));
        restart_memory_us = round ? 0 : before;
        if (round) {
            begin_freeze(t, &f);
            expect_attempt(t, &f);
        } else {
            coro_run(run_freeze, &f);
            check_b_answers(t);
        }
        g_assert_false(f.done);
        atomic_store(&slow_fd, -1);
        WAIT(f.done);
        g_assert_true(f.ok);
        if (round) { /* what is to be closed from now on waits */
            discard_fd(&t->a.vm->discard, behind);
            g_usleep(10000);
            g_assert_cmpint(fcntl(behind, F_GETFD), >=, 0);
        }
        restart_thaw_all(f.frozen, true);
        WAIT(discard_waiting(t->a.vm->discard) == 0);
        check_b_answers(t);
        budget_unref(b);
        g_ptr_array_unref(f.frozen);
    }
    restart_memory_us = before;
    reaper_stop();
}

static int feature(int fd, uint32_t flags, uint32_t state, bool wait, uint16_t *id)
{
    struct {
        struct vfio_user_device_feature head;
        struct vfio_user_mig_device_state data;
    } msg = {{sizeof(msg), VFIO_USER_FEATURE_MIG_DEVICE_STATE | flags}, {state, -1}};

    if (wait) {
        return client_do(fd, VFIO_USER_DEVICE_FEATURE, &msg, sizeof(msg));
    }
    *id = client_send(fd, VFIO_USER_DEVICE_FEATURE, 0, &msg, sizeof(msg), NULL, 0);
    return 0;
}

static void set_state(int fd, enum vfio_user_mig_state state)
{
    g_assert_cmpint(feature(fd, VFIO_USER_FEATURE_SET, state, true, NULL), ==, 0);
}

/* All of VM A's state, as @msg for another VM; A runs on. */
static uint32_t copy_state(struct two *t, uint8_t *msg)
{
    struct vfio_user_mig_data req = {UINT32_MAX, VFIO_USER_MAX_DATA};
    g_autofree struct reply *r = g_new0(struct reply, 1);

    set_state(t->a.cl, VFIO_USER_MIG_STOP_COPY);
    g_assert_cmpint(
        client_call(t->a.cl, VFIO_USER_MIG_DATA_READ, &req, sizeof(req), NULL, 0, r), ==,
        0);
    set_state(t->a.cl, VFIO_USER_MIG_RUNNING);
    memcpy(msg, r->body, r->len);
    return r->len;
}

static void bind_address(struct two *t)
{
    struct pvrdma_cmd_create_bind req = {
        .mtu = 1024,
        .vlan = 0xfff,
        .gid = {{[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 1}},
        .gid_type = ((struct pvrdma_dsr *)(void *)t->ram_a.ram)->caps.gid_types,
    };

    g_assert_cmpuint(
        command(t->a.cl, &t->ram_a, PVRDMA_CMD_CREATE_BIND, &req, sizeof(req)), ==, 0);
}

/*
 * A target waits for its addresses: nobody waits for that, it goes on behind, for as long
 * as it would have without.
 */
static void test_freeze_claim(struct two *t, gconstpointer arg)
{
    struct vfio_user_dma_map map = {sizeof(map), 3, 0, RAM_GPA, RAM_PAGES * PG};
    struct freeze f = {.frozen = g_ptr_array_new(), .all = true};
    g_autofree uint8_t *state = g_malloc(VFIO_USER_MAX_DATA + 64);
    g_autofree struct reply *r = g_new0(struct reply, 1);
    gint64 before = migration_claim_us;
    struct fixture c = t->a;
    uint32_t len;
    uint16_t id;

    bind_address(t);
    len = copy_state(t, state);
    add_vm(&c, "third");
    g_assert_true(config_vm_set(c.vm->cfg, "addresses", "10.0.0.1", NULL));
    client_attach(&c);
    g_assert_cmpint(
        client_call(c.cl, VFIO_USER_DMA_MAP, &map, sizeof(map), &t->ram_a.fd, 1, r), ==,
        0);
    set_state(c.cl, VFIO_USER_MIG_RESUMING);
    g_assert_cmpint(client_do(c.cl, VFIO_USER_MIG_DATA_WRITE, state, len), ==, 0);
    set_state(c.cl, VFIO_USER_MIG_STOP);
    migration_claim_us = 1000ll * G_USEC_PER_SEC;
    feature(c.cl, VFIO_USER_FEATURE_SET, VFIO_USER_MIG_RUNNING, false, &id);
    WAIT(c.vm->conn->parked);

    migration_claim_us = 0; /* of claims that begin from now on */
    coro_run(run_freeze, &f);
    WAIT(f.done);
    g_assert_true(f.ok);
    g_assert_cmpuint(f.frozen->len, ==, 3);
    g_assert_true(c.vm->conn && !c.vm->conn->why);
    client_silent(c.cl);
    restart_thaw_all(f.frozen, true);
    WAIT(c.vm->conn->parked);
    client_silent(c.cl);
    close(t->a.cl);
    t->a.cl = -1;
    expect_reply(c.cl, id, 0); /* the addresses are to be had */
    migration_claim_us = before;
    close(c.cl);
    WAIT(!c.vm->conn);
    registry_remove(c.vm);
    g_ptr_array_unref(f.frozen);
}

/* Of two that are late one goes on as soon as it is at rest. */
static void test_freeze_two(struct two *t, gconstpointer arg)
{
    uint16_t destroy = park_destroy(t), info;
    struct freeze f = {.frozen = g_ptr_array_new(), .all = true};

    t->b.vm->ops.held = true;
    coro_run(run_freeze, &f);
    grace_offline(&stuck);
    expect_reply(t->a.cl, destroy, 0);
    info = send_info(t->a.cl);
    expect_reply(t->a.cl, info, 0);
    g_assert_false(f.done);
    g_assert_null(t->b.vm->conn->why);
    t->b.vm->ops.held = false;
    WAIT(f.done);
    g_assert_true(f.ok);
    g_assert_cmpuint(f.frozen->len, ==, 2);
    restart_thaw_all(f.frozen, true);
    check_b_answers(t);
    g_ptr_array_unref(f.frozen);
}

/* One with a fault is let go, and the others stand still without it. */
static void test_freeze_fault(struct two *t, gconstpointer arg)
{
    struct freeze f = {.frozen = g_ptr_array_new(), .all = true};

    guest_fault(&t->a.vm->guest, "the test says so");
    coro_run(run_freeze, &f);
    WAIT(f.done);
    g_assert_true(f.ok);
    g_assert_null(t->a.vm->conn);
    g_assert_cmpuint(f.frozen->len, ==, 2);
    restart_thaw_all(f.frozen, true);
    expect_eof(t->a.cl);
    check_b_answers(t);
    g_ptr_array_unref(f.frozen);
}

/* The daemon ends while commands are parked. */
static void test_remove_all(struct two *t, gconstpointer arg)
{
    uint16_t destroy = park_destroy(t), reset;

    reset = client_send(t->b.cl, VFIO_USER_DEVICE_RESET, 0, NULL, 0, NULL, 0);
    WAIT(t->b.vm->conn->parked);
    g_timeout_add(50, on_let_go, NULL);
    registry_remove_all("the test ends");
    g_assert_null(registry_all());
    expect_reply(t->a.cl, destroy, 0);
    expect_reply(t->b.cl, reset, 0);
    expect_eof(t->a.cl);
    expect_eof(t->b.cl);
    close(t->a.cl);
    t->a.cl = -1;

    add_vm(&t->a, "test");
    add_vm(&t->b, "other");
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
#define ADD(path, arg, name) \
    g_test_add("/frontend/parked/" path, struct two, arg, setup, test_##name, teardown)
    ADD("order", NULL, order);
    ADD("both", NULL, both);
    ADD("eof", GINT_TO_POINTER(LEAVE), eof);
    ADD("eof-unread", GINT_TO_POINTER(LEAVE_UNREAD), eof);
    ADD("eof-half", GINT_TO_POINTER(LEAVE_HALF), eof);
    ADD("reconnect", NULL, reconnect);
    ADD("attach", NULL, attach);
    ADD("remove", NULL, remove);
    ADD("remove-early", NULL, remove_early);
    ADD("pause", NULL, pause);
    ADD("admin-socket", NULL, admin_socket);
    ADD("fault", NULL, fault);
    ADD("drain", NULL, drain);
    ADD("refused", NULL, refused);
    ADD("freeze", NULL, freeze);
    ADD("freeze-hung", NULL, freeze_hung);
    ADD("freeze-leave", NULL, freeze_leave);
    ADD("freeze-stuck", NULL, freeze_stuck);
    ADD("freeze-leave-stuck", NULL, freeze_leave_stuck);
    ADD("freeze-leave-end", NULL, freeze_leave_end);
    ADD("freeze-memory", NULL, freeze_memory);
    ADD("freeze-closing", GINT_TO_POINTER(1), freeze_memory);
    ADD("freeze-claim", NULL, freeze_claim);
    ADD("freeze-two", NULL, freeze_two);
    ADD("freeze-fault", NULL, freeze_fault);
    ADD("remove-all", NULL, remove_all);
    return g_test_run();
}
