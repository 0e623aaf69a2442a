/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Writing to a client's eventfd.
 *
 * The descriptor is the client's as much as ours: it may clear O_NONBLOCK and fill
 * the counter at any time, so a write() can block whatever was checked before.  (A
 * write with RWF_NOWAIT is not to be had: eventfds refuse it, up to Linux 6.18 at
 * least.)
 *
 * A worker writes all the same, since that is fastest, and the watchdog frees it.
 * The main thread, whose time is everybody's, lets the kernel do it: the end of an
 * asynchronous I/O request signals an eventfd (IOCB_FLAG_RESFD, io_submit(2)), and
 * that never waits.  The request reads nothing from an empty file and is over when
 * io_submit() returns; it costs a microsecond.  Where the kernel has no AIO left to
 * give, the main thread writes too, after setting O_NONBLOCK again.
 *
 * Threads: start and stop, and signals without @may_block, on the main thread.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "guest/guest.h"

static aio_context_t aio; /* 0: none */
static int empty_fd = -1;

void irq_signal_start(void)
{
    empty_fd = memfd_create("pvrdma-empty", MFD_CLOEXEC);
    if (empty_fd < 0 || syscall(SYS_io_setup, 1, &aio) < 0) {
        log_msg(LOG_LVL_WARN, "io_setup: %s; a VMM can delay interrupts of commands",
                g_strerror(errno));
        aio = 0;
    }
}

void irq_signal_stop(void)
{
    if (aio) {
        syscall(SYS_io_destroy, aio);
        aio = 0;
    }
    if (empty_fd >= 0) {
        close(empty_fd);
        empty_fd = -1;
    }
}

static bool signal_by_aio(int fd)
{
    char nothing;
    struct iocb cb = {
        .aio_lio_opcode = IOCB_CMD_PREAD,
        .aio_fildes = (uint32_t)empty_fd,
        .aio_buf = (uintptr_t)&nothing,
        .aio_flags = IOCB_FLAG_RESFD,
        .aio_resfd = (uint32_t)fd,
    };
    struct iocb *list = &cb;
    struct io_event done;

    if (syscall(SYS_io_submit, aio, 1, &list) != 1) {
        return false;
    }
    syscall(SYS_io_getevents, aio, 0, 1, &done, NULL);
    return true;
}

bool irq_signal(int fd, bool may_block)
{
    struct pollfd pfd = {.fd = fd, .events = POLLOUT};
    int n = poll(&pfd, 1, 0);
    uint64_t one = 1;

    if (n == 0 || (n > 0 && !(pfd.revents & POLLOUT))) {
        return true; /* counter full: the interrupt is pending already */
    }
    if (!may_block) {
        if (aio && signal_by_aio(fd)) {
            return true;
        }
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    }
    return write(fd, &one, sizeof(one)) == sizeof(one) || errno == EAGAIN;
}
