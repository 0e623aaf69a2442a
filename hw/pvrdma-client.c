/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vfio-user client of the pvrdma device: the messages of a connection, and its
 * end.  pvrdma-connect.c has its beginning.
 *
 * One connection to the daemon's socket serves one device.  Commands go from
 * here to the daemon only: guest memory is handed over as file descriptors, so
 * the daemon never has to ask for anything, and a command from it is treated as
 * a protocol violation.
 *
 * Threads: everything runs under the BQL, mostly in a vCPU thread that handles
 * a register access.  The guest waits there, and so does the monitor; hence all
 * waits of one transaction (a register access, a change of the memory map, ...)
 * together take at most PVRDMA_CLIENT_TIMEOUT_MS, and after that, or after any
 * violation of the protocol, the connection is lost for good.  Only waiting
 * counts, and only in small pieces, so that it is no fault of the daemon's if
 * QEMU itself was frozen; what has arrived is always taken.  As nothing is ever
 * received after a missed deadline, there are no late replies to sort out.
 * Replies come in the order of the requests and must carry the id and the
 * command of the oldest one.
 *
 * A daemon that does not answer may still run, and write to guest memory.  Only
 * the end of the connection from its side proves that it does not: it has died,
 * or it has closed the socket, which it does after all else.  So when we give
 * up, our sending side is shut down, which makes a daemon that lives let go of
 * the VM, and the socket stays open until the daemon's end is closed.
 *
 * The daemon is not trusted: no length or count of it is used before it is
 * checked against what the caller has room for.
 *
 * Received descriptors: only the header of a message is read with a control
 * buffer; descriptors that arrive with a body are dropped by the kernel.  We do
 * not use QIOChannelSocket, because it clears O_NONBLOCK of every descriptor it
 * receives, and that flag is shared with the daemon.
 *
 * Specification: docs/interop/vfio-user.rst of QEMU >= 10.1.
 */
#include "qemu/osdep.h"
#include <poll.h>
#include <sys/socket.h>
#include "qemu/iov.h"
#include "qemu/main-loop.h"
#include "pvrdma-client-int.h"
#include "trace.h"

/* A wait longer than this was not the daemon's fault. */
#define WAIT_PIECE_MS 250

/* Parts of one message: header and what the caller adds. */
#define MAX_IOV 4

static void close_fds(const int *fds, size_t nfds)
{
    while (nfds > 0) {
        close(fds[--nfds]);
    }
}

static void client_close(PVRDMAClient *c)
{
    if (c->watch) {
        g_source_remove(c->watch);
        c->watch = 0;
    }
    if (c->fd >= 0) {
        close(c->fd);
        c->fd = -1;
    }
}

static void client_report(PVRDMAClient *c)
{
    if (c->lost_fn) {
        c->lost_fn(c->lost_opaque, c->reason, c->fd < 0);
    }
}

void pvrdma_client_fail(PVRDMAClient *c, const char *fmt, ...)
{
    va_list ap;

    if (c->reason) {
        return;
    }
    va_start(ap, fmt);
    c->reason = g_strdup_vprintf(fmt, ap);
    va_end(ap);
    trace_pvrdma_client_fail(c->name, c->reason);
    shutdown(c->fd, SHUT_WR);
    client_report(c);
}

void pvrdma_client_abandon(PVRDMAClient *c, const char *reason)
{
    c->lost_fn = NULL;
    if (!c->reason) {
        c->reason = g_strdup(reason);
    }
    trace_pvrdma_client_fail(c->name, c->reason);
    client_close(c);
}

/* The daemon's end is closed. */
static void client_gone(PVRDMAClient *c)
{
    trace_pvrdma_client_gone(c->name);
    client_close(c);
    if (!c->reason) {
        c->reason = g_strdup("pvrdmad closed the connection");
    }
    client_report(c);
}

bool pvrdma_client_lost(const PVRDMAClient *c)
{
    return c->reason;
}

bool pvrdma_client_turned_away(const PVRDMAClient *c)
{
    return c->busy || (c->reason && c->fd < 0);
}

const char *pvrdma_client_reason(const PVRDMAClient *c)
{
    return c->reason;
}

size_t pvrdma_client_max_fds(const PVRDMAClient *c)
{
    return c->max_fds;
}

uint32_t pvrdma_client_max_data(const PVRDMAClient *c)
{
    return c->max_data;
}

void pvrdma_client_error(const PVRDMAClient *c, int ret, Error **errp,
                         const char *what)
{
    if (pvrdma_client_lost(c)) {
        error_setg(errp, "pvrdma '%s': %s: %s: %s", c->name, c->path, what,
                   c->reason);
    } else {
        error_setg(errp, "pvrdma '%s': %s: %s: pvrdmad refuses: %s", c->name,
                   c->path, what, strerror(-ret));
    }
}

void pvrdma_client_begin(PVRDMAClient *c)
{
    if (c->transactions++ == 0) {
        c->patience_us = PVRDMA_CLIENT_TIMEOUT_MS * 1000LL;
    }
}

void pvrdma_client_end(PVRDMAClient *c)
{
    g_assert(c->transactions > 0);
    c->transactions--;
}

/* Wait for @events; false if there is no time left: the client has failed. */
static bool client_wait(PVRDMAClient *c, short events)
{
    struct pollfd p = { .fd = c->fd, .events = events };

    while (true) {
        int64_t begin = g_get_monotonic_time();
        int64_t piece = MIN(c->patience_us, WAIT_PIECE_MS * 1000LL);
        int ret = poll(&p, 1, DIV_ROUND_UP(piece, 1000));

        if (ret > 0) {
            c->patience_us -= MIN(g_get_monotonic_time() - begin, piece);
            return true;
        }
        if (ret < 0 && errno != EINTR) {
            pvrdma_client_fail(c, "poll: %s", strerror(errno));
            return false;
        }
        /* That was a last look, without a wait. */
        if (ret == 0 && piece == 0) {
            pvrdma_client_fail(c, "no answer from pvrdmad within %d ms",
                               PVRDMA_CLIENT_TIMEOUT_MS);
            return false;
        }
        c->patience_us -= MIN(g_get_monotonic_time() - begin, piece);
    }
}

/* After a failed send or receive: wait if that helps, else fail. */
static bool client_retry(PVRDMAClient *c, const char *what, short events)
{
    if (errno == EINTR) {
        return true;
    }
    if (errno == EAGAIN) {
        return client_wait(c, events);
    }
    if (errno == EPIPE || errno == ECONNRESET) {
        client_gone(c);
    } else {
        pvrdma_client_fail(c, "%s: %s", what, strerror(errno));
    }
    return false;
}

/* Send all of @iov (which is consumed); descriptors go with the first byte. */
static bool client_sendv(PVRDMAClient *c, struct iovec *iov, size_t niov,
                         const int *fds, size_t nfds)
{
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof(int) * VFIO_USER_MAX_FDS)];
    } control;
    struct msghdr msg = { 0 };
    size_t left = iov_size(iov, niov);
    unsigned int cnt = niov;

    g_assert(nfds <= VFIO_USER_MAX_FDS);
    if (nfds) {
        struct cmsghdr *cmsg;

        memset(&control, 0, sizeof(control));
        msg.msg_control = control.buf;
        msg.msg_controllen = CMSG_SPACE(sizeof(int) * nfds);
        cmsg = CMSG_FIRSTHDR(&msg);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(sizeof(int) * nfds);
        memcpy(CMSG_DATA(cmsg), fds, sizeof(int) * nfds);
    }
    while (left) {
        ssize_t n;

        msg.msg_iov = iov;
        msg.msg_iovlen = cnt;
        n = sendmsg(c->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0) {
            if (!client_retry(c, "send", POLLOUT)) {
                return false;
            }
            continue;
        }
        left -= n;
        iov_discard_front(&iov, &cnt, n);
        msg.msg_control = NULL;
        msg.msg_controllen = 0;
    }
    return true;
}

/* Take the descriptors out of a control buffer; false if there are too many. */
static bool take_fds(struct msghdr *msg, int *fds, size_t max, size_t *nfds)
{
    struct cmsghdr *cmsg;
    bool ok = !(msg->msg_flags & MSG_CTRUNC);

    for (cmsg = CMSG_FIRSTHDR(msg); cmsg; cmsg = CMSG_NXTHDR(msg, cmsg)) {
        size_t i, n;

        if (cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        n = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (i = 0; i < n; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(cmsg) + i * sizeof(int), sizeof(fd));
            if (*nfds < max) {
                fds[(*nfds)++] = fd;
            } else {
                close(fd);
                ok = false;
            }
        }
    }
    return ok;
}

/*
 * Receive exactly @len bytes.  @fds NULL: descriptors that come along are
 * dropped.  On failure the caller still owns the @nfds descriptors so far.
 */
static bool client_recv(PVRDMAClient *c, void *buf, size_t len, int *fds,
                        size_t *nfds)
{
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof(int) * VFIO_USER_MAX_FDS)];
    } control;
    size_t done = 0;

    while (done < len) {
        struct iovec iov = { (char *)buf + done, len - done };
        struct msghdr msg = {
            .msg_iov = &iov,
            .msg_iovlen = 1,
            .msg_control = fds ? control.buf : NULL,
            .msg_controllen = fds ? sizeof(control.buf) : 0,
        };
        ssize_t n = recvmsg(c->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

        if (n < 0) {
            if (!client_retry(c, "receive", POLLIN)) {
                return false;
            }
            continue;
        }
        if (fds && !take_fds(&msg, fds, VFIO_USER_MAX_FDS, nfds)) {
            pvrdma_client_fail(c, "pvrdmad sent too many file descriptors");
            return false;
        }
        if (n == 0) {
            client_gone(c);
            return false;
        }
        done += n;
    }
    return true;
}

static bool send_message(PVRDMAClient *c, uint16_t id, uint16_t command,
                         uint32_t flags, const struct iovec *payload,
                         size_t niov, const int *fds, size_t nfds)
{
    struct vfio_user_hdr hdr = {
        .id = id,
        .command = command,
        .size = sizeof(hdr) + iov_size(payload, niov),
        .flags = VFIO_USER_TYPE_COMMAND | flags,
    };
    struct iovec iov[MAX_IOV] = { { &hdr, sizeof(hdr) } };
    bool ok;
    size_t i;

    g_assert(bql_locked() && niov < MAX_IOV);
    if (pvrdma_client_lost(c)) {
        return false;
    }
    for (i = 0; i < niov; i++) {
        iov[i + 1] = payload[i];
    }
    pvrdma_client_begin(c);
    ok = client_sendv(c, iov, niov + 1, fds, nfds);
    pvrdma_client_end(c);
    return ok;
}

int pvrdma_client_send(PVRDMAClient *c, uint16_t command,
                       const struct iovec *iov, size_t niov,
                       const int *fds, size_t nfds)
{
    Pending *p;

    g_assert(c->count < PVRDMA_CLIENT_PIPELINE);
    p = &c->pending[(c->head + c->count) % PVRDMA_CLIENT_PIPELINE];
    p->id = c->next_id++;
    p->command = command;
    trace_pvrdma_client_request(c->name, p->id, command, iov_size(iov, niov),
                                nfds);
    if (!send_message(c, p->id, command, 0, iov, niov, fds, nfds)) {
        return -EIO;
    }
    c->count++;
    return 0;
}

void pvrdma_client_post(PVRDMAClient *c, uint16_t command,
                        const struct iovec *iov, size_t niov)
{
    trace_pvrdma_client_post(c->name, command, iov_size(iov, niov));
    send_message(c, c->next_id++, command, VFIO_USER_NO_REPLY, iov, niov, NULL,
                 0);
}

/* Check a reply's header against the request; false: the client has failed. */
static bool check_header(PVRDMAClient *c, const struct vfio_user_hdr *hdr,
                         const Pending *p, const PVRDMAReply *reply)
{
    size_t max = reply ? reply->max : 0;

    if ((hdr->flags & VFIO_USER_TYPE_MASK) != VFIO_USER_TYPE_REPLY) {
        pvrdma_client_fail(c, "pvrdmad sent a command instead of a reply");
        return false;
    }
    if (hdr->id != p->id || hdr->command != p->command) {
        pvrdma_client_fail(c, "pvrdmad answered command %u with a reply to %u",
                           p->command, hdr->command);
        return false;
    }
    if (hdr->size < sizeof(*hdr)) {
        pvrdma_client_fail(c, "pvrdmad sent a message of %u bytes", hdr->size);
        return false;
    }
    if (hdr->flags & VFIO_USER_ERROR) {
        /* Errno 0 would read as success, sizes beyond the header as data. */
        if (hdr->size != sizeof(*hdr) || hdr->error == 0 ||
            hdr->error > 4095) {
            pvrdma_client_fail(c, "pvrdmad sent a malformed error reply");
            return false;
        }
    } else if (hdr->size - sizeof(*hdr) > max) {
        pvrdma_client_fail(c, "pvrdmad sent an oversized reply to command %u",
                           p->command);
        return false;
    }
    return true;
}

/* Receive one reply; @fds gets what came with it, also on failure. */
static int receive_reply(PVRDMAClient *c, const Pending *p, PVRDMAReply *reply,
                         int *fds, size_t *nfds)
{
    struct vfio_user_hdr hdr;

    if (!client_recv(c, &hdr, sizeof(hdr), fds, nfds) ||
        !check_header(c, &hdr, p, reply)) {
        return -EIO;
    }
    if (*nfds > (reply && !(hdr.flags & VFIO_USER_ERROR) ?
                 reply->max_fds : 0)) {
        pvrdma_client_fail(c, "pvrdmad sent unexpected file descriptors");
        return -EIO;
    }
    if (hdr.flags & VFIO_USER_ERROR) {
        return -(int)hdr.error;
    }
    if (!reply) {
        return 0;
    }
    if (!client_recv(c, reply->data, hdr.size - sizeof(hdr), NULL, NULL)) {
        return -EIO;
    }
    reply->len = hdr.size - sizeof(hdr);
    return 0;
}

int pvrdma_client_collect(PVRDMAClient *c, PVRDMAReply *reply)
{
    int fds[VFIO_USER_MAX_FDS];
    size_t nfds = 0;
    Pending p;
    int ret;

    g_assert(bql_locked() && c->count > 0);
    p = c->pending[c->head];
    c->head = (c->head + 1) % PVRDMA_CLIENT_PIPELINE;
    c->count--;
    if (pvrdma_client_lost(c)) {
        return -EIO;
    }
    pvrdma_client_begin(c);
    ret = receive_reply(c, &p, reply, fds, &nfds);
    pvrdma_client_end(c);
    trace_pvrdma_client_reply(c->name, p.id, p.command, ret);
    if (ret < 0) {
        close_fds(fds, nfds);
    } else if (reply) {
        memcpy(reply->fds, fds, nfds * sizeof(int));
        reply->nfds = nfds;
    }
    return ret;
}

int pvrdma_client_request(PVRDMAClient *c, uint16_t command,
                          const struct iovec *iov, size_t niov,
                          const int *fds, size_t nfds, PVRDMAReply *reply)
{
    int ret;

    g_assert(c->count == 0);
    pvrdma_client_begin(c);
    ret = pvrdma_client_send(c, command, iov, niov, fds, nfds);
    if (ret == 0) {
        ret = pvrdma_client_collect(c, reply);
    }
    pvrdma_client_end(c);
    return ret;
}

void pvrdma_client_free(PVRDMAClient *c)
{
    if (c) {
        client_close(c);
        g_free(c->reason);
        g_free(c->name);
        g_free(c->path);
        g_free(c);
    }
}

/*
 * Only hang-ups wake the main loop: replies are read by whoever waits for them,
 * and what a daemon sends unasked is found by the next request.
 */
static gboolean client_hangup(gint fd, GIOCondition cond, gpointer opaque)
{
    PVRDMAClient *c = opaque;

    c->watch = 0;
    client_gone(c);
    return G_SOURCE_REMOVE;
}

void pvrdma_client_watch(PVRDMAClient *c, PVRDMALostFn *fn, void *opaque)
{
    c->lost_fn = fn;
    c->lost_opaque = opaque;
    if (!pvrdma_client_lost(c)) {
        c->watch = g_unix_fd_add(c->fd, G_IO_HUP | G_IO_ERR, client_hangup, c);
    }
}
