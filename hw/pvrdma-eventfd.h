/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Eventfds that are shared with the daemon.
 *
 * O_NONBLOCK belongs to the open file, so the daemon can clear it at any time,
 * and it can fill or drain the counter.  The main loop and the vCPUs must not
 * block for that: reads never wait, whatever the flag is, and before a write
 * there is a look.  That leaves a gap, as the kernel knows no write to an
 * eventfd that never waits: a daemon that clears the flag and fills the counter
 * just between look and write stops its VM and the monitor, until QEMU is
 * killed.
 */
#ifndef HW_RDMA_PVRDMA_EVENTFD_H
#define HW_RDMA_PVRDMA_EVENTFD_H

#include <poll.h>
#include <sys/uio.h>

/* Take what was counted; false if there is nothing. */
static inline bool pvrdma_eventfd_take(int fd)
{
    struct pollfd p = { .fd = fd, .events = POLLIN };
    uint64_t count;
    struct iovec iov = { &count, sizeof(count) };

    return poll(&p, 1, 0) == 1 &&
           preadv2(fd, &iov, 1, -1, RWF_NOWAIT) == sizeof(count);
}

/* Count one, unless that would wait: the reader has plenty to read then. */
static inline void pvrdma_eventfd_signal(int fd)
{
    struct pollfd p = { .fd = fd, .events = POLLOUT };
    uint64_t one = 1;
    ssize_t n;

    if (poll(&p, 1, 0) != 1 || !(p.revents & POLLOUT)) {
        return;
    }
    do {
        n = write(fd, &one, sizeof(one));
    } while (n < 0 && errno == EINTR);
}

#endif
