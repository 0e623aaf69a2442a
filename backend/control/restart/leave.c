/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The daemon ends, and the service manager keeps what the next one needs: systemd's store
 * of descriptors (FileDescriptorStoreMax=).
 *
 * It gets one descriptor, the end of a pair of sockets, and is waited for: if that is
 * closed then, it keeps nothing, and the daemon ends as ever.  Else the program that is
 * installed is asked, everything is made to stand still as for a restart (exec.c), the
 * state and all descriptors go into the socket (handover/socket.c), and the process ends
 * without letting anything go: VMMs do not notice, as their connections stay open.  The
 * next daemon takes it from there (adopt.c).  If none comes the manager closes the
 * socket, which ends the connections.
 *
 * While a daemon runs nothing is kept.  One that is killed has left nothing, or not all,
 * which is as good: what a dead daemon's workers were doing nobody knows.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/coro.h"
#include "base/log.h"
#include "control/restart/internal.h"
#include "control/restart/restart.h"
#include "handover/manager.h"
#include "transport/rnic/nic.h"

/* How long the manager may take to be sent it, and to look at it. */
#define BARRIER_US (5 * G_USEC_PER_SEC)

#define DRAIN_MS 500u

/* Is the other end closed? */
static bool hung_up(int fd)
{
    struct pollfd p = {.fd = fd, .events = 0};

    return poll(&p, 1, 0) == 1 && (p.revents & (POLLHUP | POLLERR));
}

/* As soon as there is room for it.  0 or an errno. */
static int tell_manager(const char *state, int fd, gint64 end)
{
    int err;

    while ((err = manager_send_fd(state, fd)) == EAGAIN && !restart_stopping() &&
           g_get_monotonic_time() < end) {
        coro_sleep(1);
    }
    return err;
}

/*
 * Wait until it has read all that it was sent: it closes what comes with this.  0 or an
 * errno.
 */
static int wait_for_manager(gint64 end)
{
    int fd[2], err;

    if (pipe2(fd, O_CLOEXEC) < 0) {
        return errno;
    }
    err = tell_manager("BARRIER=1", fd[1], end);
    close(fd[1]);
    while (!err && !hung_up(fd[0])) {
        if (g_get_monotonic_time() >= end) {
            err = ETIMEDOUT;
        } else {
            coro_sleep(1);
        }
    }
    close(fd[0]);
    return err;
}

static void take_back(void)
{
    manager_notify("FDSTOREREMOVE=1\nFDNAME=" RESTART_KEPT_NAME, false);
}

/* With room for as many descriptors as the kernel allows: it takes less for the most. */
static bool make_pair(int pair[2])
{
    int most = INT_MAX / 2;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0) {
        log_msg(LOG_LVL_ERROR, "socketpair: %s", g_strerror(errno));
        return false;
    }
    if (setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &most, sizeof(most)) < 0) {
        log_msg(LOG_LVL_WARN, "SO_SNDBUF: %s", g_strerror(errno));
    }
    return true;
}

/* Our end of the pair whose other end it keeps, or -1. */
static int offer(void)
{
    gint64 end = g_get_monotonic_time() + BARRIER_US;
    int pair[2], err;

    if (!make_pair(pair)) {
        return -1;
    }
    /* FDPOLL=0: it stays though our end will be closed. */
    err = tell_manager("FDSTORE=1\nFDPOLL=0\nFDNAME=" RESTART_KEPT_NAME, pair[0], end);
    close(pair[0]);
    err = err ? err : wait_for_manager(end);
    if (err) {
        log_msg(LOG_LVL_ERROR,
                "no VM is handed over to the next daemon: the service manager cannot be "
                "reached: %s",
                g_strerror(err));
        take_back();
    } else if (!hung_up(pair[1])) {
        return pair[1];
    }
    close(pair[1]);
    return -1;
}

/* Returns if it fails. */
static void leave_frozen(GPtrArray *frozen, int sock, gint64 since, GError **errp)
{
    struct handover_out h;
    int memfd = restart_save(frozen, &h, since, -1, errp);

    while (memfd < 0 && restart_leave_faulted_out(frozen)) {
        g_clear_error(errp);
        handover_out_clear(&h);
        memfd = restart_save(frozen, &h, since, -1, errp);
    }
    if (memfd >= 0 && restart_stopping()) {
        g_set_error(errp, PVRDMA_ERROR, 0, "it must stop at once");
    } else if (memfd >= 0) {
        manager_notify("STOPPING=1", false);
        log_msg(LOG_LVL_INFO, "stopping: %u VM(s) are handed over to the next daemon",
                frozen->len);
        log_drain(DRAIN_MS);
        if (handover_send(&h, memfd, sock, errp)) {
            _exit(EXIT_SUCCESS);
        }
    }
    if (memfd >= 0) {
        close(memfd);
    }
    handover_out_clear(&h);
}

/*
 * A NIC that does not close keeps this process from ending, so the next daemon would not
 * be started, and the VMs would stand still: then they are not handed over.  NICs stay
 * closed, as this daemon ends in any case.
 */
static void leave(int sock, GError **errp)
{
    g_autoptr(GPtrArray) frozen = g_ptr_array_new();
    gint64 since;
    bool paused;

    if (!rnic_nics_suspend(restart_stopping, errp)) {
        return;
    }
    paused = restart_freeze_all(frozen, false, &since, errp);
    if (paused) {
        leave_frozen(frozen, sock, since, errp);
    }
    restart_thaw_all(frozen, paused);
}

void restart_leave(void)
{
    g_autoptr(GError) err = NULL;
    int sock;

    if (!manager_there() || !restart_begin_leaving()) {
        return;
    }
    sock = offer();
    if (sock >= 0) {
        if (restart_check_program(&err)) {
            leave(sock, &err);
        }
        log_msg(LOG_LVL_ERROR, "no VM is handed over to the next daemon: %s",
                err->message);
        take_back();
        close(sock);
    }
    restart_end_leaving();
}
