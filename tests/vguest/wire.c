/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vfio-user messages of a virtual guest, client side.
 *
 * vg_request() is one command and its reply; calls are serialised by msg_lock,
 * so that replies come in order.  vg_raw_*() let hostile tests send any bytes.
 */
#include "vguest.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

/* Longest message we accept from the daemon; a sane one is far below. */
#define MAX_REPLY (VFIO_USER_MAX_DATA + 4096u)

int64_t vg_now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return ts.tv_sec * 1000000000ll + ts.tv_nsec;
}

static int clock_times = 1, clock_part = 1;

__attribute__((constructor)) static void look_at_clock(void)
{
    const char *factor = g_getenv("PVRDMA_CLOCK");

    if (factor) {
        sscanf(factor, "%d/%d", &clock_times, &clock_part);
    }
}

int vg_patience(int n)
{
    return n * clock_times / clock_part;
}

static int send_iov(int sock, struct iovec *iov, size_t niov, const int *fds,
                    unsigned nfds)
{
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(64 * sizeof(int))];
    } ctl;
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = niov};

    if (nfds) {
        struct cmsghdr *c;

        g_assert_cmpuint(nfds, <=, 64);
        memset(&ctl, 0, sizeof(ctl));
        msg.msg_control = ctl.buf;
        msg.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
        c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(nfds * sizeof(int));
        memcpy(CMSG_DATA(c), fds, nfds * sizeof(int));
    }
    while (msg.msg_iovlen) {
        ssize_t n = sendmsg(sock, &msg, MSG_NOSIGNAL);

        if (n < 0) {
            if (errno == EINTR) {
                continue;
            }
            return -errno;
        }
        msg.msg_control = NULL;
        msg.msg_controllen = 0;
        while (msg.msg_iovlen && (size_t)n >= msg.msg_iov->iov_len) {
            n -= msg.msg_iov->iov_len;
            msg.msg_iov++;
            msg.msg_iovlen--;
        }
        if (msg.msg_iovlen) {
            msg.msg_iov->iov_base = (char *)msg.msg_iov->iov_base + n;
            msg.msg_iov->iov_len -= n;
        }
    }
    return 0;
}

int vg_raw_send(int sock, const void *data, size_t len, const int *fds, unsigned nfds)
{
    struct iovec iov = {.iov_base = (void *)data, .iov_len = len};

    return send_iov(sock, &iov, 1, fds, nfds);
}

static int wait_readable(int sock, int64_t deadline_ns)
{
    for (;;) {
        struct pollfd p = {.fd = sock, .events = POLLIN};
        int64_t left = deadline_ns - vg_now_ns();
        int r;

        if (left <= 0) {
            return -ETIMEDOUT;
        }
        r = poll(&p, 1, left / 1000000 + 1);
        if (r > 0) {
            return 0;
        }
        if (r < 0 && errno != EINTR) {
            return -errno;
        }
    }
}

static void take_fds(struct msghdr *msg, struct vg_reply *r)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
        unsigned n;

        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        g_assert_cmpuint(r->nfds + n, <=, VFIO_USER_MAX_FDS);
        memcpy(r->fds + r->nfds, CMSG_DATA(c), n * sizeof(int));
        r->nfds += n;
    }
}

static int recv_exact(int sock, void *buf, size_t len, struct vg_reply *r,
                      int64_t deadline_ns)
{
    size_t got = 0;

    while (got < len) {
        char ctl[CMSG_SPACE(VFIO_USER_MAX_FDS * sizeof(int))];
        struct iovec iov = {.iov_base = (char *)buf + got, .iov_len = len - got};
        struct msghdr msg = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = ctl,
                             .msg_controllen = sizeof(ctl)};
        int err = wait_readable(sock, deadline_ns);
        ssize_t n;

        if (err) {
            return err;
        }
        n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return errno == ECONNRESET ? -EPIPE : -errno;
        }
        if (n == 0) {
            return -EPIPE;
        }
        take_fds(&msg, r);
        got += n;
    }
    return 0;
}

int vg_raw_recv(int sock, struct vg_reply *r, int timeout_ms)
{
    int64_t deadline = vg_now_ns() + timeout_ms * 1000000ll;
    int err;

    memset(r, 0, sizeof(*r));
    err = recv_exact(sock, &r->hdr, sizeof(r->hdr), r, deadline);
    if (err) {
        vg_reply_clear(r);
        return err;
    }
    g_assert_cmpuint(r->hdr.size, >=, sizeof(r->hdr));
    g_assert_cmpuint(r->hdr.size, <=, MAX_REPLY);
    r->len = r->hdr.size - sizeof(r->hdr);
    r->data = g_malloc(r->len + 1);
    err = recv_exact(sock, r->data, r->len, r, deadline);
    if (err) {
        vg_reply_clear(r);
    }
    return err;
}

void vg_reply_clear(struct vg_reply *r)
{
    for (unsigned i = 0; i < r->nfds; i++) {
        if (r->fds[i] >= 0) {
            close(r->fds[i]);
        }
    }
    r->nfds = 0;
    g_free(r->data);
    r->data = NULL;
    r->len = 0;
}

int vg_request(struct vguest *g, uint16_t command, uint32_t flags, const void *data,
               size_t len, const int *fds, unsigned nfds, struct vg_reply *reply)
{
    struct vfio_user_hdr hdr = {
        .command = command, .flags = flags, .size = sizeof(hdr) + len};
    struct iovec iov[2] = {{&hdr, sizeof(hdr)}, {(void *)data, len}};
    struct vg_reply own;
    struct vg_reply *r = reply ? reply : &own;
    int err;

    memset(r, 0, sizeof(*r));
    g_mutex_lock(&g->msg_lock);
    hdr.id = g->next_id++;
    if (g->sock < 0) {
        err = -EPIPE;
    } else {
        err = send_iov(g->sock, iov, len ? 2 : 1, fds, nfds);
    }
    if (!err && !(flags & VFIO_USER_NO_REPLY)) {
        err = vg_raw_recv(g->sock, r, 10000);
    }
    g_mutex_unlock(&g->msg_lock);
    if (err || (flags & VFIO_USER_NO_REPLY)) {
        return err;
    }
    g_assert_cmpuint(r->hdr.id, ==, hdr.id);
    g_assert_cmpuint(r->hdr.command, ==, command);
    g_assert_cmpuint(r->hdr.flags & VFIO_USER_TYPE_MASK, ==, VFIO_USER_TYPE_REPLY);
    if (r->hdr.flags & VFIO_USER_ERROR) {
        err = r->hdr.error;
        g_assert_cmpint(err, >, 0);
        g_assert_cmpuint(r->len, ==, 0);
    }
    if (r == &own || err) {
        vg_reply_clear(r);
    }
    return err;
}

int vg_connect(struct vguest *g)
{
    char *path = vg_daemon_socket(g->d, g->index);
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    g_assert_cmpint(fd, >=, 0);
    g_assert_cmpuint(strlen(path), <, sizeof(sa.sun_path));
    g_strlcpy(sa.sun_path, path, sizeof(sa.sun_path));
    g_free(path);
    if (connect(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0) {
        int err = -errno;

        close(fd);
        return err;
    }
    g->sock = fd;
    return 0;
}

void vg_disconnect(struct vguest *g)
{
    g_mutex_lock(&g->msg_lock);
    if (g->sock >= 0) {
        close(g->sock);
        g->sock = -1;
    }
    g_mutex_unlock(&g->msg_lock);
    g->up = false;
}

bool vg_wait_closed(struct vguest *g, int timeout_ms)
{
    int64_t deadline = vg_now_ns() + timeout_ms * 1000000ll;

    while (wait_readable(g->sock, deadline) == 0) {
        char buf[4096];
        ssize_t n = recv(g->sock, buf, sizeof(buf), 0);

        if (n == 0 || (n < 0 && errno != EINTR)) {
            return true;
        }
    }
    return false;
}

int vg_version(struct vguest *g)
{
    static const char json[] =
        "{\"capabilities\":{\"max_msg_fds\":16,\"max_data_xfer_size\":1048576,"
        "\"max_dma_maps\":65535,\"pgsizes\":4096,\"write_multiple\":true}}";
    uint8_t msg[sizeof(struct vfio_user_version) + sizeof(json)];
    struct vfio_user_version v = {VFIO_USER_MAJOR, VFIO_USER_MINOR};
    struct vg_reply r;
    int err;

    memcpy(msg, &v, sizeof(v));
    memcpy(msg + sizeof(v), json, sizeof(json));
    err = vg_request(g, VFIO_USER_VERSION, 0, msg, sizeof(msg), NULL, 0, &r);
    if (err) {
        return err;
    }
    /* A stock client cannot take a longer reply than its request. */
    g_assert_cmpuint(r.len, <=, sizeof(msg));
    g_assert_cmpuint(r.len, >=, sizeof(v));
    memcpy(&v, r.data, sizeof(v));
    g_assert_cmpuint(v.major, ==, VFIO_USER_MAJOR);
    g_assert_cmpuint(r.data[r.len - 1], ==, 0);
    vg_reply_clear(&r);
    return 0;
}

int vg_dma_map(struct vguest *g, int fd, uint64_t offset, uint64_t gpa, uint64_t size,
               uint32_t flags)
{
    struct vfio_user_dma_map m = {
        .argsz = sizeof(m), .flags = flags, .offset = offset, .addr = gpa, .size = size};

    return vg_request(g, VFIO_USER_DMA_MAP, 0, &m, sizeof(m), &fd, fd >= 0, NULL);
}

int vg_dma_unmap(struct vguest *g, uint64_t gpa, uint64_t size)
{
    struct vfio_user_dma_unmap m = {.argsz = sizeof(m), .addr = gpa, .size = size};

    return vg_request(g, VFIO_USER_DMA_UNMAP, 0, &m, sizeof(m), NULL, 0, NULL);
}

int vg_region_read(struct vguest *g, uint32_t region, uint64_t offset, void *data,
                   uint32_t count)
{
    struct vfio_user_region_rw rw = {offset, region, count};
    struct vg_reply r;
    int err = vg_request(g, VFIO_USER_REGION_READ, 0, &rw, sizeof(rw), NULL, 0, &r);

    if (err) {
        return err;
    }
    if (r.len != sizeof(rw) + count) {
        err = -EPROTO;
    } else {
        memcpy(data, r.data + sizeof(rw), count);
    }
    vg_reply_clear(&r);
    return err;
}

int vg_region_write(struct vguest *g, uint32_t region, uint64_t offset, const void *data,
                    uint32_t count, bool posted)
{
    struct vfio_user_region_rw rw = {offset, region, count};
    uint8_t small[sizeof(rw) + 64];
    uint8_t *msg = count <= 64 ? small : g_malloc(sizeof(rw) + count);
    int err;

    memcpy(msg, &rw, sizeof(rw));
    memcpy(msg + sizeof(rw), data, count);
    err = vg_request(g, VFIO_USER_REGION_WRITE, posted ? VFIO_USER_NO_REPLY : 0, msg,
                     sizeof(rw) + count, NULL, 0, NULL);
    if (msg != small) {
        g_free(msg);
    }
    return err;
}

int vg_set_irqs(struct vguest *g, uint32_t flags, uint32_t start, uint32_t count,
                const int *fds, unsigned nfds)
{
    struct vfio_user_irq_set s = {.argsz = sizeof(s),
                                  .flags = flags,
                                  .index = VFIO_USER_IRQ_MSIX,
                                  .start = start,
                                  .count = count};

    return vg_request(g, VFIO_USER_DEVICE_SET_IRQS, 0, &s, sizeof(s), fds, nfds, NULL);
}

int vg_reset(struct vguest *g)
{
    return vg_request(g, VFIO_USER_DEVICE_RESET, 0, NULL, 0, NULL, 0, NULL);
}

int vg_bus_master(struct vguest *g, bool on)
{
    uint16_t command = on ? 0x0006 : 0x0002; /* memory, bus master */

    return vg_region_write(g, VFIO_USER_REGION_CONFIG, 4, &command, sizeof(command),
                           false);
}
