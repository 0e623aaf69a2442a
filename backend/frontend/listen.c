/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Listening sockets, one per declared VM: the socket is the VM's identity.
 *
 * A socket file left over by a dead daemon is replaced, one that somebody
 * answers on is not, and nothing but a socket is ever unlinked.
 */
#include <errno.h>
#include <gio/gio.h>
#include <glib-unix.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "frontend/conn.h"
#include "frontend/frontend.h"
#include "vm.h"

#define SOCKET_MODE 0660

/* Connections taken per wake-up, and the pause when descriptors run out. */
#define ACCEPT_BATCH    8
#define ACCEPT_PAUSE_MS 500

/* The pause after a fault: doubled from one to the next, until the VM has behaved
 * for a while after a pause. */
#define FAULT_PAUSE_MIN_MS 500u
#define FAULT_PAUSE_MAX_MS 60000u
#define FAULT_CALM_US      (60 * G_USEC_PER_SEC)

struct vfu_listener {
    struct vm *vm;
    int fd;
    guint source, timer;
    guint fault_pause_ms; /* the last one; 0: none */
    gint64 fault_over;    /* when it is over, monotonic us */
    char *path;
    dev_t dev; /* of the socket file, to unlink no other's */
    ino_t ino;
};

static gboolean on_client(gint fd, GIOCondition cond, gpointer opaque);

static gboolean on_pause_over(gpointer opaque)
{
    struct vfu_listener *l = opaque;

    l->timer = 0;
    l->source = g_unix_fd_add(l->fd, G_IO_IN, on_client, l);
    return G_SOURCE_REMOVE;
}

static void pause_for(struct vfu_listener *l, guint ms)
{
    if (l->source) {
        g_source_remove(l->source);
        l->source = 0;
    }
    if (!l->timer) {
        l->timer = g_timeout_add(ms, on_pause_over, l);
    }
}

void frontend_hold_off(struct vfu_listener *l)
{
    gint64 now = g_get_monotonic_time();

    if (!l->fault_pause_ms || now - l->fault_over > FAULT_CALM_US) {
        l->fault_pause_ms = FAULT_PAUSE_MIN_MS;
    } else {
        l->fault_pause_ms = MIN(2 * l->fault_pause_ms, FAULT_PAUSE_MAX_MS);
    }
    l->fault_over = now + (gint64)l->fault_pause_ms * 1000;
    pause_for(l, l->fault_pause_ms);
}

void frontend_conn_gone(struct vfu_listener *l, bool faulted)
{
    if (faulted) {
        frontend_hold_off(l);
    } else if (!l->source && !l->timer) {
        l->source = g_unix_fd_add(l->fd, G_IO_IN, on_client, l);
    }
}

static gboolean on_client(gint fd, GIOCondition cond, gpointer opaque)
{
    struct vfu_listener *l = opaque;

    for (int i = 0; i < ACCEPT_BATCH; i++) {
        enum conn_state state = conn_look(l->vm);
        int client;

        if (!l->source) {
            return G_SOURCE_REMOVE; /* that ended with a fault: hold off */
        }
        if (state == CONN_LEAVING) {
            l->source = 0; /* until it is gone; clients wait in the queue */
            return G_SOURCE_REMOVE;
        }
        if (discard_full(l->vm->discard)) { /* refusing would add to them */
            log_vm(LOG_LVL_WARN, l->vm,
                   "takes no VMM: descriptors of the last one cannot be closed");
            pause_for(l, ACCEPT_PAUSE_MS);
            return G_SOURCE_REMOVE;
        }
        client = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (client >= 0) {
            frontend_adopt(l->vm, client);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
            log_vm(LOG_LVL_ERROR, l->vm, "cannot accept a VMM: %s", g_strerror(errno));
            pause_for(l, ACCEPT_PAUSE_MS);
            return G_SOURCE_REMOVE;
        }
        break;
    }
    return G_SOURCE_CONTINUE;
}

/* Make way for a socket at @addr; 0 or an errno. */
static int clear_path(const struct sockaddr_un *addr)
{
    struct stat st;
    int fd, err;

    if (lstat(addr->sun_path, &st) < 0) {
        return errno == ENOENT ? 0 : errno;
    }
    if (!S_ISSOCK(st.st_mode)) {
        return EEXIST;
    }
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return errno;
    }
    err = connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) < 0 ? errno : 0;
    close(fd);
    if (err != ECONNREFUSED) {
        return EADDRINUSE;
    }
    return unlink(addr->sun_path) < 0 ? errno : 0;
}

/* A listening socket at @path, or a negative errno. */
static int open_socket(const char *path)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd, err;

    if (strlen(path) >= sizeof(addr.sun_path)) {
        return -ENAMETOOLONG;
    }
    memcpy(addr.sun_path, path, strlen(path));
    err = clear_path(&addr);
    if (err) {
        return -err;
    }
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return -errno;
    }
    /*
     * The file gets the socket's mode less umask when it is made: never more
     * than wanted.  chmod() adds what umask took.
     */
    if (fchmod(fd, SOCKET_MODE) < 0 ||
        bind(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 ||
        chmod(path, SOCKET_MODE) < 0 || listen(fd, ACCEPT_BATCH) < 0) {
        err = errno;
        close(fd);
        return -err;
    }
    return fd;
}

struct vfu_listener *frontend_listen(struct vm *vm, GError **errp)
{
    const char *path = vm->cfg->socket;
    struct vfu_listener *l;
    struct stat st;
    int fd = open_socket(path);

    if (fd < 0 || lstat(path, &st) < 0) {
        int err = fd < 0 ? -fd : errno;

        if (fd >= 0) {
            close(fd);
        }
        g_set_error(errp, G_IO_ERROR, g_io_error_from_errno(err),
                    "cannot listen on %s: %s", path, g_strerror(err));
        return NULL;
    }
    l = g_new0(struct vfu_listener, 1);
    l->vm = vm;
    l->fd = fd;
    l->path = g_strdup(path);
    l->dev = st.st_dev;
    l->ino = st.st_ino;
    l->source = g_unix_fd_add(fd, G_IO_IN, on_client, l);
    return l;
}

void frontend_unlisten(struct vfu_listener *l)
{
    struct stat st;

    if (!l) {
        return;
    }
    if (l->source) {
        g_source_remove(l->source);
    }
    if (l->timer) {
        g_source_remove(l->timer);
    }
    close(l->fd);
    if (lstat(l->path, &st) == 0 && st.st_dev == l->dev && st.st_ino == l->ino) {
        unlink(l->path);
    }
    g_free(l->path);
    g_free(l);
}
