/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Test client; see client.h.  The client's socket is non-blocking, too: when it
 * would block, the server's main loop runs.
 */
#include "client.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "control/registry.h"
#include "datapath/datapath.h"
#include "frontend/frontend.h"

#define TIMEOUT_US (10 * G_USEC_PER_SEC)

const char stock_json[] =
    "{\"capabilities\":{\"max_msg_fds\":16,\"max_data_xfer_size\":1048576,"
    "\"max_dma_maps\":65535,\"pgsizes\":4096,\"migration\":{\"pgsize\":4096,"
    "\"max_bitmap_size\":268435456},\"write_multiple\":true}}";

void pump(void)
{
    for (int i = 0; i < 100000 && g_main_context_iteration(NULL, FALSE); i++) {
    }
}

unsigned count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned n = 0;

    while (readdir(dir)) {
        n++;
    }
    closedir(dir);
    return n;
}

void expect_fds(unsigned n)
{
    gint64 end = g_get_monotonic_time() + TIMEOUT_US;

    while (count_fds() != n) {
        g_assert_cmpint(g_get_monotonic_time(), <, end);
        g_usleep(1000);
    }
}

void fixture_setup(struct fixture *f, gconstpointer arg)
{
    GError *err = NULL;
    struct vm_config *vc;
    struct vfio_user_region_info bar1 = {.argsz = 32, .index = 1};

    f->dir = g_dir_make_tmp("pvrdma-test-XXXXXX", &err);
    g_assert_no_error(err);
    f->cfg = config_new();
    g_assert_true(config_set(f->cfg, "socket-dir", f->dir, false, &err));
    vc = config_vm_new(f->cfg, "test", &err);
    g_assert_no_error(err);
    g_assert_true(config_vm_set(vc, "addresses", "10.0.0.1", &err));
    guest_mem_init_process();
    g_assert_true(registry_start(&err));
    g_assert_true(datapath_start(1, 0, &err));
    f->vm = registry_add(vc, &err);
    g_assert_no_error(err);
    f->cl = -1;
    /* Some things are made once and stay: use them before counting. */
    client_attach(f);
    client_do(f->cl, VFIO_USER_DEVICE_GET_REGION_INFO, &bar1, sizeof(bar1));
    client_close(f);
    f->open_fds = count_fds();
}

void fixture_teardown(struct fixture *f, gconstpointer arg)
{
    if (f->cl >= 0) {
        client_close(f);
    }
    g_assert_null(f->vm->conn);
    g_assert_false(f->vm->attached);
    expect_fds(f->open_fds);
    registry_remove(f->vm);
    datapath_stop();
    registry_stop();
    config_free(f->cfg);
    g_assert_cmpint(g_rmdir(f->dir), ==, 0);
    g_free(f->dir);
}

int client_connect(struct fixture *f)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    g_strlcpy(addr.sun_path, f->vm->cfg->socket, sizeof(addr.sun_path));
    g_assert_cmpint(connect(fd, (struct sockaddr *)&addr, sizeof(addr)), ==, 0);
    pump();
    return fd;
}

uint32_t version_body(uint8_t *out, uint16_t major, uint16_t minor, const char *json)
{
    struct vfio_user_version v = {major, minor};
    uint32_t len = sizeof(v);

    memcpy(out, &v, sizeof(v));
    if (json) {
        memcpy(out + len, json, strlen(json) + 1);
        len += (uint32_t)strlen(json) + 1;
    }
    return len;
}

void client_attach(struct fixture *f)
{
    uint8_t body[512];
    uint32_t len = version_body(body, 0, 0, stock_json);

    f->cl = client_connect(f);
    g_assert_cmpint(client_do(f->cl, VFIO_USER_VERSION, body, len), ==, 0);
    g_assert_true(f->vm->attached);
}

void client_close(struct fixture *f)
{
    gint64 end = g_get_monotonic_time() + TIMEOUT_US;

    close(f->cl);
    f->cl = -1;
    while (pump(), f->vm->conn || discard_waiting(f->vm->discard)) {
        /* Detaching may wait for a worker, and another thread closes the socket. */
        g_assert_cmpint(g_get_monotonic_time(), <, end);
        g_usleep(100);
    }
}

void client_raw(int fd, const void *buf, size_t len, const int *fds, unsigned nfds)
{
    union {
        struct cmsghdr head;
        uint8_t space[CMSG_SPACE(sizeof(int) * 64)];
    } control = {0};
    struct iovec iov = {(void *)buf, len};
    struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};
    gint64 end = g_get_monotonic_time() + TIMEOUT_US;

    g_assert_cmpuint(nfds, <=, 64);
    if (nfds) {
        mh.msg_control = &control;
        mh.msg_controllen = CMSG_SPACE(sizeof(int) * nfds);
        control.head.cmsg_level = SOL_SOCKET;
        control.head.cmsg_type = SCM_RIGHTS;
        control.head.cmsg_len = CMSG_LEN(sizeof(int) * nfds);
        memcpy(CMSG_DATA(&control.head), fds, sizeof(int) * nfds);
    }
    while (iov.iov_len) {
        ssize_t n = sendmsg(fd, &mh, MSG_NOSIGNAL);

        if (n < 0 && errno == EAGAIN) {
            g_assert_cmpint(g_get_monotonic_time(), <, end);
            pump();
            continue;
        }
        if (n < 0) {
            g_assert_true(errno == EPIPE || errno == ECONNRESET);
            return; /* dropped; the test will see */
        }
        iov.iov_base = (uint8_t *)iov.iov_base + n;
        iov.iov_len -= (size_t)n;
        mh.msg_control = NULL;
        mh.msg_controllen = 0;
    }
}

uint16_t client_send(int fd, unsigned command, uint32_t flags, const void *body,
                     uint32_t len, const int *fds, unsigned nfds)
{
    static uint16_t id = 0xfff0; /* wraps in the tests */
    struct vfio_user_hdr hdr = {
        .id = ++id,
        .command = (uint16_t)command,
        .size = (uint32_t)sizeof(hdr) + len,
        .flags = flags,
    };
    g_autofree uint8_t *buf = g_malloc(hdr.size);

    memcpy(buf, &hdr, sizeof(hdr));
    if (len) {
        memcpy(buf + sizeof(hdr), body, len);
    }
    client_raw(fd, buf, hdr.size, fds, nfds);
    return id;
}

/* Receive exactly @len bytes; false at the end of the connection. */
static bool recv_exact(int fd, void *buf, size_t len, struct reply *r)
{
    gint64 end = g_get_monotonic_time() + TIMEOUT_US;
    uint8_t control[CMSG_SPACE(sizeof(int) * 16)];
    size_t got = 0;

    while (got < len) {
        struct iovec iov = {(uint8_t *)buf + got, len - got};
        struct msghdr mh = {
            .msg_iov = &iov,
            .msg_iovlen = 1,
            .msg_control = control,
            .msg_controllen = sizeof(control),
        };
        ssize_t n = recvmsg(fd, &mh, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

        if (n < 0 && errno == EAGAIN) {
            g_assert_cmpint(g_get_monotonic_time(), <, end);
            pump();
            continue;
        }
        if (n <= 0) {
            return false;
        }
        for (struct cmsghdr *cm = CMSG_FIRSTHDR(&mh); cm; cm = CMSG_NXTHDR(&mh, cm)) {
            size_t count = (cm->cmsg_len - CMSG_LEN(0)) / sizeof(int);

            /* Only with the first byte of a message. */
            g_assert_true(r && got == 0 && buf == &r->hdr);
            memcpy(r->fds, CMSG_DATA(cm), count * sizeof(int));
            r->nfds = (unsigned)count;
        }
        got += (size_t)n;
    }
    return true;
}

void client_recv(int fd, struct reply *r)
{
    r->nfds = 0;
    g_assert_true(recv_exact(fd, &r->hdr, sizeof(r->hdr), r));
    g_assert_cmpuint(r->hdr.size, >=, sizeof(r->hdr));
    r->len = r->hdr.size - (uint32_t)sizeof(r->hdr);
    g_assert_cmpuint(r->len, <=, sizeof(r->body));
    g_assert_true(recv_exact(fd, r->body, r->len, r));
}

void client_silent(int fd)
{
    char byte;

    pump();
    g_assert_cmpint(recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK), ==, -1);
    g_assert_cmpint(errno, ==, EAGAIN);
}

void client_dropped(struct fixture *f)
{
    char buf[4096];
    gint64 end = g_get_monotonic_time() + TIMEOUT_US;
    ssize_t n;

    do {
        pump();
        g_assert_cmpint(g_get_monotonic_time(), <, end);
        n = recv(f->cl, buf, sizeof(buf), MSG_DONTWAIT);
    } while (n > 0 || (n < 0 && errno == EAGAIN));
    close(f->cl);
    f->cl = -1;
    g_assert_null(f->vm->conn);
    g_assert_false(f->vm->attached);
}

int client_call(int fd, unsigned command, const void *body, uint32_t len, const int *fds,
                unsigned nfds, struct reply *r)
{
    uint16_t id = client_send(fd, command, 0, body, len, fds, nfds);

    client_recv(fd, r);
    g_assert_cmpuint(r->hdr.id, ==, id);
    g_assert_cmpuint(r->hdr.command, ==, command);
    if (r->hdr.flags == (VFIO_USER_TYPE_REPLY | VFIO_USER_ERROR)) {
        g_assert_cmpuint(r->len, ==, 0);
        g_assert_cmpuint(r->nfds, ==, 0);
        g_assert_cmpuint(r->hdr.error, >, 0);
        g_assert_cmpuint(r->hdr.error, <, 4096);
        return (int)r->hdr.error;
    }
    g_assert_cmpuint(r->hdr.flags, ==, VFIO_USER_TYPE_REPLY);
    g_assert_cmpuint(r->hdr.error, ==, 0);
    return 0;
}

int client_do(int fd, unsigned command, const void *body, uint32_t len)
{
    g_autofree struct reply *r = g_new(struct reply, 1);
    int err = client_call(fd, command, body, len, NULL, 0, r);

    for (unsigned i = 0; i < r->nfds; i++) {
        close(r->fds[i]);
    }
    return err;
}

void client_refused(int fd, unsigned command, const void *body, uint32_t len)
{
    g_assert_cmpint(client_do(fd, command, body, len), ==, EINVAL);
}

void client_ask(int fd, unsigned command, const void *body, uint32_t len, struct reply *r)
{
    g_assert_cmpint(client_call(fd, command, body, len, NULL, 0, r), ==, 0);
}

int client_read(int fd, uint32_t region, uint64_t offset, void *data, uint32_t n)
{
    struct vfio_user_region_rw rw = {offset, region, n};
    g_autofree struct reply *r = g_new(struct reply, 1);
    int err = client_call(fd, VFIO_USER_REGION_READ, &rw, sizeof(rw), NULL, 0, r);

    if (!err) {
        g_assert_cmpuint(r->len, ==, sizeof(rw) + n);
        g_assert_cmpmem(r->body, sizeof(rw), &rw, sizeof(rw));
        memcpy(data, r->body + sizeof(rw), n);
    }
    return err;
}

static uint8_t *write_body(uint32_t region, uint64_t offset, const void *data, uint32_t n)
{
    struct vfio_user_region_rw rw = {offset, region, n};
    uint8_t *body = g_malloc(sizeof(rw) + n);

    memcpy(body, &rw, sizeof(rw));
    memcpy(body + sizeof(rw), data, n);
    return body;
}

int client_write(int fd, uint32_t region, uint64_t offset, const void *data, uint32_t n)
{
    g_autofree uint8_t *body = write_body(region, offset, data, n);
    g_autofree struct reply *r = g_new(struct reply, 1);
    uint32_t head = sizeof(struct vfio_user_region_rw);
    int err = client_call(fd, VFIO_USER_REGION_WRITE, body, head + n, NULL, 0, r);

    if (!err) {
        g_assert_cmpmem(r->body, r->len, body, head);
    }
    return err;
}

void client_post(int fd, uint32_t region, uint64_t offset, const void *data, uint32_t n)
{
    g_autofree uint8_t *body = write_body(region, offset, data, n);

    client_send(fd, VFIO_USER_REGION_WRITE, VFIO_USER_NO_REPLY, body,
                (uint32_t)sizeof(struct vfio_user_region_rw) + n, NULL, 0);
}

uint32_t client_read32(int fd, uint32_t region, uint64_t offset)
{
    uint32_t v = 0;

    g_assert_cmpint(client_read(fd, region, offset, &v, sizeof(v)), ==, 0);
    return GUINT32_FROM_LE(v);
}

int sealed_memfd(uint64_t size)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    g_assert_cmpint(ftruncate(fd, (off_t)size), ==, 0);
    g_assert_cmpint(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), ==,
                    0);
    return fd;
}

uint64_t eventfd_take(int fd)
{
    struct pollfd pfd = {.fd = fd, .events = POLLIN};
    uint64_t n = 0;

    if (poll(&pfd, 1, 0) == 1) {
        g_assert_cmpint(read(fd, &n, sizeof(n)), ==, sizeof(n));
    }
    return n;
}
