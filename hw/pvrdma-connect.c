/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vfio-user client of the pvrdma device: connecting, and the agreement on the
 * protocol.
 *
 * When a device is made, the caller waits: pvrdma_client_connect().  A device
 * that has lost its daemon looks for another while its guest runs, so that must
 * not take time: connecting to a UNIX socket never waits if it is told not to,
 * VERSION fits into an empty socket, and the main loop tells when there is
 * something to be read (pvrdma_client_start() and pvrdma_client_agree()).  A
 * daemon that does not answer VERSION holds up nobody.
 *
 * All under the BQL.
 *
 * Specification: docs/interop/vfio-user.rst of QEMU >= 10.1.
 */
#include "qemu/osdep.h"
#include <sys/socket.h>
#include <sys/un.h>
#include "qemu/cutils.h"
#include "qemu/main-loop.h"
#include "qemu/sockets.h"
#include "qobject/qdict.h"
#include "qobject/qjson.h"
#include "qobject/qnum.h"
#include "pvrdma-client-int.h"
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

/* Pauses between attempts to connect. */
#define RETRY_MIN_MS 10
#define RETRY_MAX_MS 500

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

static void no_agreement(PVRDMAClient *c, int ret, Error **errp)
{
    if (!pvrdma_client_lost(c) && ret == -EPERM) {
        error_setg(errp, "pvrdma '%s': %s: pvrdmad does not accept this "
                   "QEMU's user %u for the VM", c->name, c->path, geteuid());
        error_append_hint(errp, "Add that user to the VM's uid=, or run QEMU "
                          "as a user that is listed there.\n");
        return;
    }
    if (!pvrdma_client_lost(c) && ret == -EBUSY) {
        c->busy = true;
        error_setg(errp, "pvrdma '%s': %s: another QEMU is connected as this "
                   "VM", c->name, c->path);
        error_append_hint(errp, "'pvrdmactl vm list' shows the VMs; one socket "
                          "serves one QEMU.\n");
        return;
    }
    pvrdma_client_error(c, ret, errp, "no agreement on the vfio-user protocol");
    error_append_hint(errp, "Is this pvrdmad's socket for this VM, and does no "
                      "other QEMU use it?\n");
}

static bool send_version(PVRDMAClient *c, Error **errp)
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

    if (pvrdma_client_send(c, VFIO_USER_VERSION, iov, ARRAY_SIZE(iov), NULL,
                           0) < 0) {
        no_agreement(c, -EIO, errp);
        return false;
    }
    return true;
}

/* Wait for the answer, and look at it. */
static bool take_version(PVRDMAClient *c, Error **errp)
{
    struct vfio_user_version version;
    g_autofree char *buf = g_malloc(VERSION_MAX);
    PVRDMAReply reply = { .data = buf, .max = VERSION_MAX };
    const char *text = buf + sizeof(version);
    int ret;

    pvrdma_client_begin(c);
    ret = pvrdma_client_collect(c, &reply);
    pvrdma_client_end(c);
    if (ret < 0) {
        no_agreement(c, ret, errp);
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
                          "add %s addresses=ADDRESS', or add a [vm %s] "
                          "section to pvrdmad's key file.\nIf pvrdmad is "
                          "not running, start it first: "
                          "'systemctl start pvrdmad' or 'pvrdmad'.\n",
                          vm_name ?: "NAME", vm_name ?: "NAME");
    } else if (g_file_test(path, G_FILE_TEST_IS_DIR)) {
        error_append_hint(errp, "'%s' is a folder; property 'socket' is the "
                          "path of the VM's socket in it.\n", path);
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

static PVRDMAClient *new_client(const char *name)
{
    PVRDMAClient *c = g_new0(PVRDMAClient, 1);

    c->fd = -1;
    c->name = g_strdup(name);
    return c;
}

/*
 * A daemon that still has the VM's last QEMU refuses the next one.  The former
 * may be about to end, or not to have been noticed: try again.
 */
PVRDMAClient *pvrdma_client_connect(SocketAddress *addr, const char *name,
                                    const char *vm_name, Error **errp)
{
    int64_t deadline = g_get_monotonic_time() + PVRDMA_CLIENT_TIMEOUT_MS * 1000;
    unsigned pause_ms = RETRY_MIN_MS;

    while (true) {
        PVRDMAClient *c = new_client(name);
        Error *err = NULL;
        bool again;

        if (open_socket(c, addr, vm_name, deadline, &err) &&
            send_version(c, &err) && take_version(c, &err)) {
            return c;
        }
        again = pvrdma_client_turned_away(c) &&
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

/*
 * The same in two steps, neither of which waits for the daemon.
 */

static gboolean client_answer(gint fd, GIOCondition cond, gpointer opaque)
{
    PVRDMAClient *c = opaque;

    c->watch = 0;
    c->answer_fn(c->answer_opaque);
    return G_SOURCE_REMOVE;
}

PVRDMAClient *pvrdma_client_start(SocketAddress *addr, const char *name,
                                  PVRDMAAnswerFn *fn, void *opaque,
                                  Error **errp)
{
    PVRDMAClient *c = new_client(name);

    g_assert(addr->type == SOCKET_ADDRESS_TYPE_UNIX);
    if (!open_socket(c, addr, NULL, 0, errp) || !send_version(c, errp)) {
        pvrdma_client_free(c);
        return NULL;
    }
    c->answer_fn = fn;
    c->answer_opaque = opaque;
    c->watch = g_unix_fd_add(c->fd, G_IO_IN | G_IO_HUP | G_IO_ERR,
                             client_answer, c);
    return c;
}

bool pvrdma_client_agree(PVRDMAClient *c, Error **errp)
{
    return take_version(c, errp);
}
