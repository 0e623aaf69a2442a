/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Eventfds that are shared with the daemon: never wait, whatever it does.
 *
 * O_NONBLOCK belongs to the open file, so the daemon can clear it at any time,
 * and it can fill or drain the counter.  The main loop and the vCPUs must not
 * block for that.  There is a read that never waits, but no such write:
 * eventfds refuse one with RWF_NOWAIT, up to Linux 6.18 at least, and a look
 * before the write leaves a gap.  So the kernel does it: at the end of an
 * asynchronous I/O request it signals an eventfd (IOCB_FLAG_RESFD), and that
 * never waits: where write() would, the reader has plenty to read anyway.  The
 * request reads nothing from an empty file of our own and is over when
 * io_submit() returns.
 *
 * A signal costs one system call, and two more in REAP.  That is 0.3 us, 40 ns
 * more than poll() and write(); to wake the daemon's worker takes microseconds.
 *
 * Threads: setup under the BQL, the rest from any after it.  This file needs
 * nothing of QEMU, see pvrdma-doorbell.c.
 */
#include "qemu/osdep.h"
#include <linux/aio_abi.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include "pvrdma-eventfd.h"

/* So many requests that are over are forgotten at once. */
#define REAP 64

/* Others may take the room that one has made, again and again. */
#define TRIES 16

/* Of the process, for all adapters, until it ends; 0 and -1: none. */
static aio_context_t aio;
static pid_t aio_pid;
static int empty_fd = -1;

bool pvrdma_eventfd_setup(void)
{
    if (aio && aio_pid == getpid()) {
        return true;
    }
    /* That of a parent is not ours. */
    aio = 0;
    aio_pid = getpid();
    if (empty_fd < 0) {
        empty_fd = memfd_create("pvrdma-empty", MFD_CLOEXEC);
    }
    return empty_fd >= 0 && syscall(SYS_io_setup, 1, &aio) == 0;
}

/* Apart from the rest, for QEMU's compiler options clear such arrays. */
static void forget(void)
{
    struct io_event over[REAP];

    syscall(SYS_io_getevents, aio, 0L, (long)REAP, over, NULL);
}

bool pvrdma_eventfd_signal(int fd)
{
    struct iocb cb = {
        .aio_lio_opcode = IOCB_CMD_PREAD,
        .aio_fildes = empty_fd,
        .aio_flags = IOCB_FLAG_RESFD,
        .aio_resfd = fd,
    };
    struct iocb *list = &cb;

    for (unsigned i = 0; i < TRIES; i++) {
        if (syscall(SYS_io_submit, aio, 1L, &list) == 1) {
            return true;
        }
        if (errno != EAGAIN) {
            return false;
        }
        /* No room for another. */
        forget();
    }
    return false;
}

bool pvrdma_eventfd_take(int fd)
{
    struct pollfd p = { .fd = fd, .events = POLLIN };
    uint64_t count;
    struct iovec iov = { &count, sizeof(count) };

    return poll(&p, 1, 0) == 1 &&
           preadv2(fd, &iov, 1, -1, RWF_NOWAIT) == sizeof(count);
}
