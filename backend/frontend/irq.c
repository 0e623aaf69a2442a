/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * MSI-X vectors as eventfds of the VMM.
 *
 * Delivery is one poll() and one write().  The descriptor is the client's: it
 * may fill the counter and clear O_NONBLOCK at any time, even between the two
 * calls, so the write can block.  It is announced to the data path's watchdog,
 * which breaks a write that lasts by a signal; the VM is faulted for it.
 *
 * A raise that cannot leave (bus master off, masked, no eventfd) is latched in
 * `pending`.  Raisers and the main thread may miss each other only if neither
 * sees the other's store; both sides therefore store first (sequentially
 * consistent), then look, and an exchange of `pending` lets one of them deliver.
 *
 * Replacing a descriptor: publish the new one, wait for the workers, close the
 * old.  No worker ever writes to a number that may have been reused.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "frontend/irq.h"
#include "frontend/irq_internal.h"
#include "log.h"
#include "vm.h"

/* Write to the client's eventfd; false if that cannot be done in time. */
static bool signal_fd(struct vm *vm, int fd)
{
    struct pollfd pfd = {.fd = fd, .events = POLLOUT};
    uint64_t one = 1;
    ssize_t n;
    int err;

    if (poll(&pfd, 1, 0) == 0) {
        return true; /* counter full: the interrupt is pending already */
    }
    datapath_irq_enter(vm);
    n = write(fd, &one, sizeof(one));
    err = errno;
    datapath_irq_leave();
    return n == sizeof(one) || (n < 0 && err == EAGAIN);
}

static bool deliverable(struct vm_irq *irq, struct irq_vector *v)
{
    return atomic_load(&irq->enabled) && !atomic_load(&v->masked) &&
           atomic_load(&v->fd) >= 0;
}

/* Deliver what was latched, if it can leave now. */
static void flush(struct vm_irq *irq, struct irq_vector *v)
{
    int fd;

    if (!atomic_load(&v->pending) || !deliverable(irq, v) ||
        !atomic_exchange(&v->pending, false)) {
        return;
    }
    fd = atomic_load(&v->fd);
    if (fd < 0) {
        atomic_store(&v->pending, true);
    } else if (!signal_fd(irq->vm, fd)) {
        vm_fault(irq->vm, "its eventfd blocks or fails");
    }
}

void irq_init(struct vm_irq *irq, struct vm *vm)
{
    irq->vm = vm;
    atomic_store(&irq->enabled, false);
    for (unsigned i = 0; i < PVRDMA_NUM_VEC; i++) {
        atomic_store(&irq->vec[i].fd, -1);
        atomic_store(&irq->vec[i].masked, false);
        atomic_store(&irq->vec[i].pending, false);
        atomic_store(&irq->vec[i].raised, 0);
    }
}

void irq_fini(struct vm_irq *irq)
{
    int fds[PVRDMA_NUM_VEC];

    atomic_store(&irq->enabled, false);
    for (unsigned i = 0; i < PVRDMA_NUM_VEC; i++) {
        fds[i] = atomic_exchange(&irq->vec[i].fd, -1);
    }
    datapath_quiesce();
    for (unsigned i = 0; i < PVRDMA_NUM_VEC; i++) {
        if (fds[i] >= 0) {
            close(fds[i]);
        }
    }
}

void irq_raise(struct vm_irq *irq, unsigned vec)
{
    struct irq_vector *v;
    int fd;

    if (vec >= PVRDMA_NUM_VEC) {
        return;
    }
    v = &irq->vec[vec];
    atomic_fetch_add_explicit(&v->raised, 1, memory_order_relaxed);
    fd = atomic_load(&v->fd);
    if (fd >= 0 && deliverable(irq, v)) {
        if (!signal_fd(irq->vm, fd)) {
            vm_fault(irq->vm, "its eventfd blocks or fails");
        }
        return;
    }
    atomic_store(&v->pending, true);
    flush(irq, v);
}

bool irq_is_eventfd(int fd)
{
    char path[40], text[1024];
    bool found = false;
    ssize_t n;
    int info;

    snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
    info = open(path, O_RDONLY | O_CLOEXEC);
    if (info < 0) {
        return false;
    }
    n = read(info, text, sizeof(text) - 1);
    if (n > 0) {
        text[n] = '\0';
        found = strstr(text, "\neventfd-count:") != NULL;
    }
    close(info);
    return found;
}

int irq_assign(struct vm_irq *irq, unsigned vec, int fd)
{
    struct irq_vector *v;
    int old, mode;

    if (vec >= PVRDMA_NUM_VEC) {
        return EINVAL;
    }
    v = &irq->vec[vec];
    if (fd >= 0) {
        mode = fcntl(fd, F_GETFL);
        if (mode < 0 || !irq_is_eventfd(fd)) {
            return EINVAL;
        }
        if (!(mode & O_NONBLOCK) && fcntl(fd, F_SETFL, mode | O_NONBLOCK) < 0) {
            return EINVAL;
        }
    }
    old = atomic_exchange(&v->fd, fd);
    if (old >= 0) {
        datapath_quiesce();
        close(old);
    }
    flush(irq, v);
    return 0;
}

void irq_mask(struct vm_irq *irq, unsigned vec, bool masked)
{
    if (vec >= PVRDMA_NUM_VEC) {
        return;
    }
    atomic_store(&irq->vec[vec].masked, masked);
    flush(irq, &irq->vec[vec]);
}

void irq_enable(struct vm_irq *irq, bool on)
{
    atomic_store(&irq->enabled, on);
    for (unsigned i = 0; on && i < PVRDMA_NUM_VEC; i++) {
        flush(irq, &irq->vec[i]);
    }
}

void irq_forget_pending(struct vm_irq *irq)
{
    for (unsigned i = 0; i < PVRDMA_NUM_VEC; i++) {
        atomic_store(&irq->vec[i].pending, false);
    }
}
