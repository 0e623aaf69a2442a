/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Listening UNIX sockets and their files.
 *
 * The folder may belong to somebody who is not trusted, a tenant, who can replace any
 * name in it at any time by a link to something else.  So nothing here changes what
 * a name leads to: bind() makes the file or fails, with the mode that umask leaves,
 * and unlink() takes away a name of that folder.  The umask is the process's; that is
 * harmless because only the main thread makes files.
 */
#include "sockfile.h"

#include <errno.h>
#include <glib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

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
    /* Whatever else came back, there may be somebody: a full backlog, no permission. */
    if (err != ECONNREFUSED) {
        return EADDRINUSE;
    }
    return unlink(addr->sun_path) < 0 ? errno : 0;
}

static int bind_mode(int fd, const struct sockaddr_un *addr, mode_t mode)
{
    mode_t old = umask(~mode & 0777);
    int rc, err;

    /* The socket's own mode too: a folder's default ACL would put the umask aside. */
    rc = fchmod(fd, mode);
    if (rc == 0) {
        rc = bind(fd, (const struct sockaddr *)addr, sizeof(*addr));
    }
    err = errno;
    umask(old);
    errno = err;
    return rc;
}

/* ---- from the daemon whose place this one takes ---- */

struct left {
    struct sockfile file;
    int fd;
};
static GList *left; /* of struct left */

void sockfile_hand_over(const struct sockfile *f, int fd, struct handover_out *h)
{
    state_put_text(&h->s, f->path);
    state_put_u64(&h->s, f->dev);
    state_put_u64(&h->s, f->ino);
    handover_put_fd(h, fd);
}

void sockfile_take_over(struct handover_in *h, struct state_in *s)
{
    struct left *l = g_new0(struct left, 1);

    l->file.path = state_get_text(s);
    l->file.dev = state_get_u64(s);
    l->file.ino = state_get_u64(s);
    l->fd = handover_get_fd(h, s);
    if (l->fd < 0) {
        g_free(l->file.path);
        g_free(l);
        return;
    }
    left = g_list_prepend(left, l);
}

/* The one for @path, or -1. */
static int take_left(struct sockfile *f, const char *path)
{
    for (GList *i = left; i; i = i->next) {
        struct left *l = i->data;
        struct stat st;
        int fd = l->fd;

        if (strcmp(l->file.path, path) != 0 || lstat(path, &st) < 0 ||
            st.st_dev != l->file.dev || st.st_ino != l->file.ino) {
            continue;
        }
        *f = l->file;
        g_free(l);
        left = g_list_delete_link(left, i);
        return fd;
    }
    return -1;
}

void sockfile_drop_rest(void)
{
    while (left) {
        struct left *l = left->data;

        close(l->fd);
        sockfile_remove(&l->file);
        g_free(l);
        left = g_list_delete_link(left, left);
    }
}

int sockfile_listen(struct sockfile *f, const char *path, mode_t mode, int backlog)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    struct stat st;
    int fd = take_left(f, path), err;

    if (fd >= 0) {
        return fd;
    }
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
    if (bind_mode(fd, &addr, mode) < 0 || listen(fd, backlog) < 0 ||
        lstat(path, &st) < 0) {
        err = errno;
        close(fd);
        return -err;
    }
    f->path = g_strdup(path);
    f->dev = st.st_dev;
    f->ino = st.st_ino;
    return fd;
}

void sockfile_remove(struct sockfile *f)
{
    struct stat st;

    if (lstat(f->path, &st) == 0 && st.st_dev == f->dev && st.st_ino == f->ino) {
        unlink(f->path);
    }
    g_clear_pointer(&f->path, g_free);
}
