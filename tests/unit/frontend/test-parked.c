/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Messages that wait: a registered thread that does not pass (the test itself) keeps
 * grace periods from ending, so every DESTROY, DMA_UNMAP, reset, attach and detach
 * stands still as long as the test wants.  What happens to its VM meanwhile, and
 * what does not happen to the others.
 */
#include "two.h"

#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "control/control.h"
#include "control/registry.h"
#include "frontend/conn.h"
#include "frontend/frontend.h"

static const struct daemon_config *cfg;

static void setup(struct two *t, gconstpointer arg)
{
    two_setup(t, arg);
    cfg = t->a.cfg;
}

/* ---- the tests ---- */

/* Nothing is read, others are served, and the answers come in order. */
static void test_order(struct two *t, gconstpointer arg)
{
    uint16_t destroy = two_park_destroy(t), info, reset, info2;
    uint64_t spent = t->a.vm->command_ns;
    int unread = 0;

    info = two_send_info(t->a.cl);
    reset = client_send(t->a.cl, VFIO_USER_DEVICE_RESET, 0, NULL, 0, NULL, 0);
    info2 = two_send_info(t->a.cl);
    client_silent(t->a.cl);
    g_assert_cmpint(ioctl(t->a.vm->conn->fd, FIONREAD, &unread), ==, 0);
    g_assert_cmpint(unread, ==, 16 + 16 + 16 + 16 + 16);
    for (unsigned i = 0; i < 10; i++) {
        two_check_b_answers(t);
    }
    client_silent(t->a.cl);

    grace_pass(&two_stuck);
    two_expect_reply(t->a.cl, destroy, 0);
    g_assert_cmpuint(t->a.vm->objects.mr.used, ==, 0);
    two_expect_reply(t->a.cl, info, 0);
    /* The reset behind it waits for a period of its own. */
    TWO_WAIT(t->a.vm->conn->parked);
    client_silent(t->a.cl);
    g_assert_true(t->a.vm->ops.held);
    two_check_b_answers(t);
    grace_offline(&two_stuck);
    two_expect_reply(t->a.cl, reset, 0);
    two_expect_reply(t->a.cl, info2, 0);
    g_assert_false(t->a.vm->ops.held);
    g_assert_cmpuint(t->a.vm->objects.pd.used, ==, 0);
    g_assert_cmpuint(t->a.vm->command_ns, >, spent);
}

/* What needs a grace period is parked for every VM, each on its own. */
static void test_both(struct two *t, gconstpointer arg)
{
    uint16_t a = two_park_destroy(t), b;

    b = client_send(t->b.cl, VFIO_USER_DEVICE_RESET, 0, NULL, 0, NULL, 0);
    TWO_WAIT(t->b.vm->conn->parked);
    client_silent(t->a.cl);
    client_silent(t->b.cl);
    grace_offline(&two_stuck);
    two_expect_reply(t->b.cl, b, 0);
    two_expect_reply(t->a.cl, a, 0);
}

/*
 * The client goes while its command is parked: it closes, with messages that nobody
 * read, or ends its half.
 */
enum leave { LEAVE, LEAVE_UNREAD, LEAVE_HALF };

static void test_eof(struct two *t, gconstpointer arg)
{
    enum leave how = GPOINTER_TO_INT(arg);
    uint16_t destroy = two_park_destroy(t);
    int half = -1;

    if (how == LEAVE_UNREAD) {
        two_send_info(t->a.cl);
        client_send(t->a.cl, VFIO_USER_DEVICE_RESET, 0, NULL, 0, NULL, 0);
    }
    if (how == LEAVE_HALF) {
        half = t->a.cl;
        shutdown(half, SHUT_WR);
    } else {
        close(t->a.cl);
    }
    t->a.cl = -1;
    TWO_WAIT(t->a.vm->conn->why); /* seen */
    g_assert_true(t->a.vm->conn->eof);
    g_assert_true(t->a.vm->attached);
    g_assert_cmpuint(t->a.vm->objects.pd.used, ==, 1);
    two_check_b_answers(t);
    grace_offline(&two_stuck);
    TWO_WAIT(!t->a.vm->conn);
    g_assert_false(t->a.vm->attached);
    two_check_b_answers(t);
    if (half >= 0) {
        two_expect_reply(half, destroy, 0);
        two_expect_eof(half);
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

    two_park_destroy(t);
    close(t->a.cl);
    t->a.cl = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    g_strlcpy(addr.sun_path, t->a.vm->cfg->socket, sizeof(addr.sun_path));
    g_assert_cmpint(connect(t->a.cl, (struct sockaddr *)&addr, sizeof(addr)), ==, 0);
    id = client_send(t->a.cl, VFIO_USER_VERSION, 0, body, len, NULL, 0);
    client_silent(t->a.cl);
    two_check_b_answers(t);
    grace_offline(&two_stuck);
    two_expect_reply(t->a.cl, id, 0);
    g_assert_true(t->a.vm->attached);
    g_assert_cmpuint(t->a.vm->objects.pd.used, ==, 0);
}

/* Attaching waits for nobody. */
static void test_attach(struct two *t, gconstpointer arg)
{
    client_close(&t->a);
    grace_online(&two_stuck);
    client_attach(&t->a);
    two_check_b_answers(t);
    /* The client goes at once. */
    close(t->a.cl);
    t->a.cl = -1;
    TWO_WAIT(t->a.vm->conn->ending);
    two_check_b_answers(t);
    g_assert_true(t->a.vm->attached);
    grace_offline(&two_stuck);
    TWO_WAIT(!t->a.vm->conn);
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
    uint16_t destroy = two_park_destroy(t), info = two_send_info(t->a.cl);
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
    two_check_b_answers(t);
    client_silent(t->a.cl);
    g_assert_null(pause.answer);
    g_assert_null(rm.answer);

    grace_offline(&two_stuck);
    two_expect_reply(t->a.cl, destroy, 0);
    two_expect_reply(t->a.cl, info, ENODEV); /* came too late */
    two_expect_eof(t->a.cl);
    TWO_WAIT(!registry_find("test"));
    TWO_WAIT(rm.answer);
    g_assert_nonnull(strstr(rm.answer, "\"ok\":true"));
    /* Its place was behind the end of the connection, which came first. */
    g_assert_nonnull(pause.answer);
    g_free(rm.answer);
    g_free(pause.answer);
    two_check_b_answers(t);

    /* And the name is free again. */
    two_add_vm(&t->a, "test");
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
    two_expect_reply(t->a.cl, reset, ENODEV);
    two_expect_eof(t->a.cl);
    TWO_WAIT(!registry_find("test"));
    two_add_vm(&t->a, "test");
}

/* Pause and resume queue behind a command; a status does not. */
static void test_pause(struct two *t, gconstpointer arg)
{
    uint16_t destroy = two_park_destroy(t);
    struct admin list = {"{\"cmd\":\"qp-list\",\"name\":\"test\"}"};
    struct admin pause = {"{\"cmd\":\"vm-pause\",\"name\":\"test\"}"};
    struct admin resume = {"{\"cmd\":\"vm-resume\",\"name\":\"test\"}"};

    g_assert_false(coro_run(run_admin, &list));
    g_assert_false(coro_run(run_admin, &pause));
    g_assert_false(coro_run(run_admin, &resume));
    expect_answer("{\"cmd\":\"status\"}", "\"admin_paused\":false");
    grace_pass(&two_stuck);
    two_expect_reply(t->a.cl, destroy, 0);
    TWO_WAIT(atomic_load(&t->a.vm->dp.paused)); /* that waits for a period, too */
    g_assert_nonnull(list.answer);
    g_assert_null(pause.answer);
    g_assert_null(resume.answer);
    /* Looking is free meanwhile; what changes the VM queues up. */
    g_assert_cmpuint(two_reg_read(t->a.cl, PVRDMA_REG_VERSION), ==, PVRDMA_VERSION);
    two_send_info(t->a.cl);
    client_send(t->a.cl, VFIO_USER_DEVICE_RESET, 0, NULL, 0, NULL, 0);
    TWO_WAIT(t->a.vm->conn->parked);
    grace_offline(&two_stuck);
    TWO_WAIT(resume.answer && !t->a.vm->conn->parked);
    g_assert_nonnull(strstr(pause.answer, "\"ok\":true"));
    g_assert_nonnull(strstr(resume.answer, "\"ok\":true"));
    g_assert_false(atomic_load(&t->a.vm->dp.paused));
    g_free(list.answer);
    g_free(pause.answer);
    g_free(resume.answer);
}

static gboolean on_let_go(gpointer opaque)
{
    grace_offline(&two_stuck);
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
    uint16_t destroy = two_park_destroy(t);
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
    grace_offline(&two_stuck);
    two_expect_reply(t->a.cl, destroy, 0);
    TWO_WAIT(!t->a.vm->ops.held);
    g_assert_cmpint(admin_answers(s[0]), ==, 2);
    g_assert_false(t->a.vm->admin_paused);

    /* The socket is closed while a request waits. */
    grace_online(&two_stuck);
    admin_send(s[0], "{\"cmd\":\"vm-pause\",\"name\":\"test\"}\n");
    TWO_WAIT(t->a.vm->ops.held);
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
    uint16_t destroy = two_park_destroy(t);
    uint64_t faults = t->a.vm->faults;

    guest_fault(&t->a.vm->guest, "the test says so");
    TWO_WAIT(t->a.vm->conn->why);
    g_assert_true(t->a.vm->attached);
    /* A fault of another VM makes the handler look at this one again. */
    guest_fault(&t->b.vm->guest, "the test says so");
    TWO_WAIT(t->b.vm->conn->ending);
    g_assert_true(t->a.vm->attached);
    grace_offline(&two_stuck);
    two_expect_reply(t->a.cl, destroy, 0);
    two_expect_eof(t->a.cl);
    two_expect_eof(t->b.cl);
    g_assert_cmpuint(t->a.vm->faults, ==, faults + 1);
    g_assert_null(atomic_load(&t->a.vm->guest.fault));
    close(t->a.cl);
    client_attach(&t->a); /* after the hold-off */
}

/* What the client sent and nobody read is answered, and the end is no reset. */
static void test_drain(struct two *t, gconstpointer arg)
{
    struct vfio_user_hdr half = {77, VFIO_USER_DEVICE_RESET, 32, 0, 0};
    uint16_t destroy = two_park_destroy(t), id[3];
    int fd = sealed_memfd(PG);
    unsigned fds;

    id[0] = two_send_info(t->a.cl);
    id[1] = client_send(t->a.cl, VFIO_USER_DEVICE_RESET, 0, NULL, 0, &fd, 1);
    client_post(t->a.cl, VFIO_USER_REGION_BAR2, 0, "1234", 4);
    id[2] = two_send_info(t->a.cl);
    client_raw(t->a.cl, &half, sizeof(half), &fd, 1);
    fds = count_fds();
    frontend_disconnect(t->a.vm, "the test says so");
    client_silent(t->a.cl);
    grace_offline(&two_stuck);
    two_expect_reply(t->a.cl, destroy, 0);
    for (unsigned i = 0; i < 3; i++) {
        two_expect_reply(t->a.cl, id[i], ENODEV);
    }
    two_expect_eof(t->a.cl);
    TWO_WAIT(count_fds() < fds); /* another thread closes the socket */
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
    two_expect_reply(fd, id, EBUSY);
    two_expect_eof(fd);
    close(fd);
    two_check_b_answers(t);
    g_assert_cmpint(client_do(t->a.cl, VFIO_USER_DEVICE_RESET, NULL, 0), ==, 0);
}

/* The daemon ends while commands are parked. */
static void test_remove_all(struct two *t, gconstpointer arg)
{
    uint16_t destroy = two_park_destroy(t), reset;

    reset = client_send(t->b.cl, VFIO_USER_DEVICE_RESET, 0, NULL, 0, NULL, 0);
    TWO_WAIT(t->b.vm->conn->parked);
    g_timeout_add(50, on_let_go, NULL);
    registry_remove_all("the test ends");
    g_assert_null(registry_all());
    two_expect_reply(t->a.cl, destroy, 0);
    two_expect_reply(t->b.cl, reset, 0);
    two_expect_eof(t->a.cl);
    two_expect_eof(t->b.cl);
    close(t->a.cl);
    t->a.cl = -1;

    two_add_vm(&t->a, "test");
    two_add_vm(&t->b, "other");
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
#define ADD(path, arg, name)                                                  \
    g_test_add("/frontend/parked/" path, struct two, arg, setup, test_##name, \
               two_teardown)
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
    ADD("remove-all", NULL, remove_all);
    return g_test_run();
}
