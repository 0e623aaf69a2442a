/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The service manager's protocol, without its library: datagrams of text to the socket
 * that NOTIFY_SOCKET names, descriptors as their ancillary data, and in the other
 * direction descriptors from number 3 on, with names in LISTEN_FDNAMES.
 *
 * What it left is in the environment of the first process only: these variables are
 * removed, so that neither a program that is asked something nor a daemon that takes this
 * one's place by execve() believes that its descriptors are meant.
 */
#include "manager.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"

#define FIRST_FD 3

/* Of a manager; a number beyond it is a mistake. */
#define MAX_KEPT 4096u

/* ---- telling ---- */

/* Its address; false: there is none. */
static bool find(struct sockaddr_un *addr, socklen_t *len)
{
    const char *path = getenv("NOTIFY_SOCKET");

    *addr = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (!path || (path[0] != '/' && path[0] != '@') ||
        strlen(path) >= sizeof(addr->sun_path)) {
        return false;
    }
    memcpy(addr->sun_path, path, strlen(path));
    *len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
    if (path[0] == '@') {
        addr->sun_path[0] = 0;
    }
    return true;
}

bool manager_there(void)
{
    struct sockaddr_un addr;
    socklen_t len;

    return find(&addr, &len);
}

/* 0 or an errno. */
static int send_state(const char *state, int fd, int flags)
{
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec iov = {.iov_base = (void *)state, .iov_len = strlen(state)};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    struct sockaddr_un addr;
    int s, err;

    if (!find(&addr, &msg.msg_namelen)) {
        return ENOENT;
    }
    msg.msg_name = &addr;
    if (fd >= 0) {
        msg.msg_control = &control;
        msg.msg_controllen = sizeof(control);
        control.head.cmsg_level = SOL_SOCKET;
        control.head.cmsg_type = SCM_RIGHTS;
        control.head.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&control.head), &fd, sizeof(fd));
    }
    s = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (s < 0) {
        return errno;
    }
    err = sendmsg(s, &msg, MSG_NOSIGNAL | flags) < 0 ? errno : 0;
    close(s);
    return err;
}

void manager_notify(const char *state, bool wait)
{
    int err = manager_there() ? send_state(state, -1, wait ? 0 : MSG_DONTWAIT) : 0;

    if (err) {
        log_msg(LOG_LVL_WARN, "NOTIFY_SOCKET: %s", g_strerror(err));
    }
}

int manager_send_fd(const char *state, int fd)
{
    return send_state(state, fd, MSG_DONTWAIT);
}

guint64 manager_watchdog_us(void)
{
    const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    guint64 us, who;

    if (!usec || !g_ascii_string_to_unsigned(usec, 10, 1, UINT32_MAX, &us, NULL)) {
        return 0;
    }
    if (pid && (!g_ascii_string_to_unsigned(pid, 10, 1, INT32_MAX, &who, NULL) ||
                who != (guint64)getpid())) {
        return 0;
    }
    return us;
}

/* ---- what it has kept ---- */

bool *manager_find_names(const char *names, unsigned n, const char *name)
{
    bool *found = g_new0(bool, n + 1);
    size_t want = strlen(name);

    for (unsigned i = 0; i < n && names; i++) {
        const char *end = strchr(names, ':');
        size_t len = end ? (size_t)(end - names) : strlen(names);

        found[i] = len == want && memcmp(names, name, len) == 0;
        names = end ? end + 1 : NULL;
    }
    return found;
}

GArray *manager_kept(const char *name)
{
    GArray *kept = g_array_new(FALSE, FALSE, sizeof(int));
    const char *count = getenv("LISTEN_FDS"), *pid = getenv("LISTEN_PID");
    g_autofree bool *ours = NULL;
    guint64 n = 0, who = 0;

    if (count && pid && g_ascii_string_to_unsigned(pid, 10, 1, INT32_MAX, &who, NULL) &&
        who == (guint64)getpid() &&
        !g_ascii_string_to_unsigned(count, 10, 0, MAX_KEPT, &n, NULL)) {
        log_msg(LOG_LVL_WARN, "LISTEN_FDS=%s is not a number of descriptors", count);
        n = 0;
    }
    ours = manager_find_names(getenv("LISTEN_FDNAMES"), (unsigned)n, name);
    for (int i = 0; i < (int)n; i++) {
        int fd = FIRST_FD + i;

        if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0) {
            log_msg(LOG_LVL_WARN, "LISTEN_FDS=%s, but descriptor %d is missing", count,
                    fd);
            break;
        }
        if (ours[i]) {
            g_array_append_val(kept, fd);
        } else {
            log_msg(LOG_LVL_WARN, "unknown descriptor %d was closed", fd);
            close(fd);
        }
    }
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDNAMES");
    return kept;
}
