/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vfio-user client of the pvrdma device: the connection and its messages.
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
#include <sys/un.h>
#include "qemu/cutils.h"
#include "qemu/iov.h"
#include "qemu/main-loop.h"
#include "qemu/sockets.h"
#include "qobject/qdict.h"
#include "qobject/qjson.h"
#include "qobject/qnum.h"
#include "pvrdma-client.h"
#include "trace.h"

/* Longest VERSION reply we take; a sensible one has about 150 bytes. */
#define VERSION_MAX 4096

/* What our own proposal says; see the specification, section "Version". */
#define VERSION_JSON                                                       \
    "{\"capabilities\":{\"max_msg_fds\":16,\"max_data_xfer_size\":1048576," \
    "\"max_dma_maps\":65535,\"pgsizes\":4096,\"write_multiple\":false}}"

/* Defaults of the specification for members the daemon leaves out. */
#define DEFAULT_MSG_FDS 1
#define DEFAULT_PGSIZES 4096

/* A wait longer than this was not the daemon's fault. */
#define WAIT_PIECE_MS 250

/* Pauses between attempts to connect. */
#define RETRY_MIN_MS 10
#define RETRY_MAX_MS 500

/* Parts of one message: header and what the caller adds. */
#define MAX_IOV 4

typedef struct Pending {
    uint16_t id;
    uint16_t command;
} Pending;

struct PVRDMAClient {
    int fd;                 /* -1: the daemon's end is closed */
    char *name;             /* of the device */
    char *path;             /* of the socket, or what else it is called */
    char *reason;           /* why the connection was lost, or NULL */
    guint watch;            /* GSource of the hang-up watch, or 0 */
    PVRDMALostFn *lost_fn;
    void *lost_opaque;
    unsigned transactions;  /* pvrdma_client_begin() without _end() */
    int64_t patience_us;    /* what is left of the time for waiting */
    uint16_t next_id;
    size_t max_fds;
    uint32_t max_data;
    /* Requests that were sent and not collected, oldest at @head. */
    Pending pending[PVRDMA_CLIENT_PIPELINE];
    size_t head;
    size_t count;
};

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

/*
 * VERSION
 */

/* Get an optional integer member; false if it is there and is no integer. */
static bool get_capability(const QDict *caps, const char *name, uint64_t *val)
{
    QObject *obj = caps ? qdict_get(caps, name) : NULL;
    QNum *num;

    if (!obj) {
        return true;
    }
    num = qobject_to(QNum, obj);
    return num && qnum_get_try_uint(num, val);
}

static bool parse_capabilities(PVRDMAClient *c, const char *json, Error **errp)
{
    QObject *obj = qobject_from_json(json, NULL);
    QDict *top = qobject_to(QDict, obj);
    QObject *member = top ? qdict_get(top, "capabilities") : NULL;
    QDict *caps = qobject_to(QDict, member);
    bool ok;
    uint64_t fds = DEFAULT_MSG_FDS, xfer = VFIO_USER_MAX_DATA;
    uint64_t pgsizes = DEFAULT_PGSIZES;

    ok = top && (!member || caps) &&
         get_capability(caps, "max_msg_fds", &fds) &&
         get_capability(caps, "max_data_xfer_size", &xfer) &&
         get_capability(caps, "pgsizes", &pgsizes);
    qobject_unref(obj);
    if (!ok) {
        error_setg(errp, "pvrdma '%s': %s: malformed vfio-user capabilities",
                   c->name, c->path);
        return false;
    }
    if (fds < 1 || xfer < 8 || !(pgsizes & 4096)) {
        error_setg(errp, "pvrdma '%s': %s: unusable vfio-user capabilities: %"
                   PRIu64 " descriptors and %" PRIu64 " bytes per message, "
                   "page sizes 0x%" PRIx64, c->name, c->path, fds, xfer,
                   pgsizes);
        return false;
    }
    c->max_fds = MIN(fds, VFIO_USER_MAX_FDS);
    c->max_data = MIN(xfer, VFIO_USER_MAX_DATA);
    return true;
}

static bool negotiate(PVRDMAClient *c, Error **errp)
{
    struct vfio_user_version version = {
        .major = VFIO_USER_MAJOR,
        .minor = VFIO_USER_MINOR,
    };
    char json[] = VERSION_JSON;
    struct iovec iov[] = {
        { &version, sizeof(version) },
        { json, sizeof(json) },
    };
    g_autofree char *buf = g_malloc(VERSION_MAX);
    PVRDMAReply reply = { .data = buf, .max = VERSION_MAX };
    const char *text = buf + sizeof(version);
    int ret;

    ret = pvrdma_client_request(c, VFIO_USER_VERSION, iov, ARRAY_SIZE(iov),
                                NULL, 0, &reply);
    if (ret < 0) {
        pvrdma_client_error(c, ret, errp,
                            "no agreement on the vfio-user protocol");
        error_append_hint(errp, "Is this pvrdmad's socket for this VM, and "
                          "does no other QEMU use it?\n");
        return false;
    }
    if (reply.len < sizeof(version)) {
        error_setg(errp, "pvrdma '%s': %s: short vfio-user version reply",
                   c->name, c->path);
        return false;
    }
    memcpy(&version, buf, sizeof(version));
    if (version.major != VFIO_USER_MAJOR || version.minor > VFIO_USER_MINOR) {
        error_setg(errp, "pvrdma '%s': %s: wrong protocol version: the server "
                   "speaks vfio-user %u.%u, this QEMU %u.%u", c->name, c->path,
                   version.major, version.minor, VFIO_USER_MAJOR,
                   VFIO_USER_MINOR);
        error_append_hint(errp, "Update QEMU or pvrdmad so that both are of "
                          "one release.\n");
        return false;
    }
    if (reply.len == sizeof(version)) {
        return parse_capabilities(c, "{}", errp);
    }
    if (buf[reply.len - 1] != '\0') {
        error_setg(errp, "pvrdma '%s': %s: malformed vfio-user version reply",
                   c->name, c->path);
        return false;
    }
    return parse_capabilities(c, text, errp);
}

/*
 * Connection
 */

static void connect_hint(Error **errp, int err, const char *path,
                         const char *vm_name)
{
    g_autofree char *dir = g_path_get_dirname(path);
    g_autofree char *base = g_path_get_basename(path);

    if (!vm_name && g_str_has_suffix(base, ".sock")) {
        base[strlen(base) - strlen(".sock")] = '\0';
        vm_name = base;
    }
    if (err == ENOENT && g_file_test(dir, G_FILE_TEST_IS_DIR)) {
        error_append_hint(errp, "The VM is not declared: run 'pvrdmactl vm "
                          "add %s', or add a [vm %s] section to pvrdmad's key "
                          "file.\nIf pvrdmad is not running, start it first: "
                          "'systemctl start pvrdmad' or 'pvrdmad'.\n",
                          vm_name ?: "NAME", vm_name ?: "NAME");
    } else if (err == ENOENT || err == ECONNREFUSED) {
        error_append_hint(errp, "pvrdmad is not running: start it with "
                          "'systemctl start pvrdmad' or 'pvrdmad'.\n");
    } else if (err == EACCES || err == EPERM) {
        error_append_hint(errp, "QEMU's user must be allowed to write to the "
                          "socket and to search its folder.\n");
    } else if (err == EAGAIN) {
        error_append_hint(errp, "pvrdmad runs, but does not accept "
                          "connections.\n");
    }
}

/* Connect before @deadline; returns an errno. */
static int connect_socket(int fd, const struct sockaddr_un *addr,
                          int64_t deadline)
{
    /* EAGAIN of a UNIX socket: the listener's queue is full; no event tells. */
    while (connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) < 0) {
        if ((errno != EAGAIN && errno != EINTR) ||
            g_get_monotonic_time() > deadline) {
            return errno;
        }
        g_usleep(RETRY_MIN_MS * 1000);
    }
    return 0;
}

/* A connection of our own. */
static bool open_path(PVRDMAClient *c, const char *vm_name, int64_t deadline,
                      Error **errp)
{
    struct sockaddr_un addr = { .sun_family = AF_UNIX };
    int err;

    if (strlen(c->path) >= sizeof(addr.sun_path)) {
        error_setg(errp, "pvrdma '%s': socket path '%s' is longer than %zu "
                   "bytes", c->name, c->path, sizeof(addr.sun_path) - 1);
        return false;
    }
    pstrcpy(addr.sun_path, sizeof(addr.sun_path), c->path);
    c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    err = c->fd < 0 ? errno : connect_socket(c->fd, &addr, deadline);
    if (err) {
        error_setg_errno(errp, err, "pvrdma '%s': cannot connect to pvrdmad "
                         "at '%s'", c->name, c->path);
        connect_hint(errp, err, c->path, vm_name);
        return false;
    }
    return true;
}

static bool open_socket(PVRDMAClient *c, SocketAddress *addr,
                        const char *vm_name, int64_t deadline, Error **errp)
{
    switch (addr->type) {
    case SOCKET_ADDRESS_TYPE_UNIX:
        c->path = g_strdup(addr->u.q_unix.path);
        if (addr->u.q_unix.abstract) {
            error_setg(errp, "pvrdma '%s': pvrdmad has no abstract sockets",
                       c->name);
            return false;
        }
        return open_path(c, vm_name, deadline, errp);
    case SOCKET_ADDRESS_TYPE_FD:
        c->path = g_strdup_printf("descriptor %s", addr->u.fd.str);
        c->fd = socket_connect(addr, errp);
        if (c->fd < 0) {
            return false;
        }
        /* A program that QEMU starts must not keep the connection. */
        qemu_set_cloexec(c->fd);
        return true;
    default:
        c->path = g_strdup(SocketAddressType_str(addr->type));
        error_setg(errp, "pvrdma '%s': pvrdmad has no sockets of type '%s'",
                   c->name, c->path);
        return false;
    }
}

/*
 * A daemon that still has the VM's last QEMU closes the connection of the next
 * one.  That one may be about to end, or not to have been noticed: try again.
 */
PVRDMAClient *pvrdma_client_connect(SocketAddress *addr, const char *name,
                                    const char *vm_name, Error **errp)
{
    int64_t deadline = g_get_monotonic_time() + PVRDMA_CLIENT_TIMEOUT_MS * 1000;
    unsigned pause_ms = RETRY_MIN_MS;

    while (true) {
        PVRDMAClient *c = g_new0(PVRDMAClient, 1);
        Error *err = NULL;
        bool again;

        c->fd = -1;
        c->name = g_strdup(name);
        if (open_socket(c, addr, vm_name, deadline, &err) &&
            negotiate(c, &err)) {
            return c;
        }
        again = pvrdma_client_lost(c) && c->fd < 0 &&
                addr->type == SOCKET_ADDRESS_TYPE_UNIX &&
                g_get_monotonic_time() + pause_ms * 1000 < deadline;
        pvrdma_client_free(c);
        if (!again) {
            error_propagate(errp, err);
            return NULL;
        }
        error_free(err);
        trace_pvrdma_client_retry(name, pause_ms);
        g_usleep(pause_ms * 1000);
        pause_ms = MIN(2 * pause_ms, RETRY_MAX_MS);
    }
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
