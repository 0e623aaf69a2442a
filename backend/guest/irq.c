/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * MSI-X vectors as eventfds of the VMM.
 *
 * Delivery is a write to the client's descriptor, which the client can make block
 * (irq_signal.c): not the main thread, but a worker.  So it is announced to the
 * watchdog, which breaks a write that lasts by a signal; the VM is faulted for it.
 *
 * A raise that cannot leave (bus master off, masked, no eventfd) is latched in
 * `pending`.  Raisers and the main thread may miss each other only if neither
 * sees the other's store; both sides therefore store first (sequentially
 * consistent), then look, and an exchange of `pending` lets one of them deliver.
 *
 * Replacing a descriptor: publish the new one, wait for the threads that are
 * amid a raise of this VM (not for whole turns of the workers: a client that
 * swaps without pause must not slow other VMs), close the old.  Nobody ever
 * writes to a number that may have been reused.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "guest/guest.h"

/* Deliver now if possible; false if it is not.  Within irq_enter(). */
static bool deliver(struct guest_irq *irq, struct irq_vector *v)
{
    int fd = atomic_load(&v->fd);

    if (fd < 0 || !atomic_load(&irq->enabled) || atomic_load(&v->masked)) {
        return false;
    }
    if (guest_faulted(irq->guest)) {
        return true; /* one eventfd that blocks is enough: it has up to 34 */
    }
    if (!irq_signal(fd, !irq_in_main_thread())) {
        guest_fault(irq->guest, "its eventfd blocks or fails");
    }
    return true;
}

/* Deliver what was latched.  Within irq_enter(). */
static void deliver_pending(struct guest_irq *irq, struct irq_vector *v)
{
    if (atomic_load(&v->pending) && atomic_exchange(&v->pending, false) &&
        !deliver(irq, v)) {
        atomic_store(&v->pending, true);
    }
}

static void flush(struct guest_irq *irq, struct irq_vector *v)
{
    irq_enter(irq->guest);
    deliver_pending(irq, v);
    irq_leave();
}

void irq_init(struct guest_irq *irq, struct guest *guest)
{
    irq->guest = guest;
    atomic_store(&irq->enabled, false);
    for (unsigned i = 0; i < IRQ_VECTORS; i++) {
        atomic_store(&irq->vec[i].fd, -1);
        atomic_store(&irq->vec[i].masked, false);
        atomic_store(&irq->vec[i].pending, false);
        atomic_store(&irq->vec[i].raised, 0);
    }
}

void irq_fini(struct guest_irq *irq)
{
    int fds[IRQ_VECTORS];

    atomic_store(&irq->enabled, false);
    for (unsigned i = 0; i < IRQ_VECTORS; i++) {
        fds[i] = atomic_exchange(&irq->vec[i].fd, -1);
    }
    irq_drain(irq->guest);
    for (unsigned i = 0; i < IRQ_VECTORS; i++) {
        if (fds[i] >= 0) {
            close(fds[i]);
        }
    }
}

void irq_raise(struct guest_irq *irq, unsigned vec)
{
    struct irq_vector *v;

    if (vec >= IRQ_VECTORS) {
        return;
    }
    v = &irq->vec[vec];
    atomic_fetch_add_explicit(&v->raised, 1, memory_order_relaxed);
    irq_enter(irq->guest);
    if (!deliver(irq, v)) {
        atomic_store(&v->pending, true);
        deliver_pending(irq, v);
    }
    irq_leave();
}

bool irq_is_eventfd(int fd)
{
    static const char want[] = "anon_inode:[eventfd]"; /* no file's path: no '/' */
    char path[40], got[sizeof(want)];
    ssize_t n;

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    n = readlink(path, got, sizeof(got));
    return n == sizeof(want) - 1 && memcmp(got, want, sizeof(want) - 1) == 0;
}

int irq_assign(struct guest_irq *irq, unsigned vec, int fd)
{
    struct irq_vector *v;
    int old, mode;

    if (vec >= IRQ_VECTORS) {
        return EINVAL;
    }
    v = &irq->vec[vec];
    if (fd >= 0) {
        mode = fcntl(fd, F_GETFL);
        if (mode < 0 ||
            (!(mode & O_NONBLOCK) && fcntl(fd, F_SETFL, mode | O_NONBLOCK) < 0)) {
            return EINVAL;
        }
    }
    old = atomic_exchange(&v->fd, fd);
    if (old >= 0) {
        irq_drain(irq->guest);
        close(old);
    }
    flush(irq, v);
    return 0;
}

void irq_mask(struct guest_irq *irq, unsigned vec, bool masked)
{
    if (vec >= IRQ_VECTORS) {
        return;
    }
    atomic_store(&irq->vec[vec].masked, masked);
    flush(irq, &irq->vec[vec]);
}

void irq_enable(struct guest_irq *irq, bool on)
{
    atomic_store(&irq->enabled, on);
    if (on) {
        irq_flush(irq);
    }
}

void irq_flush(struct guest_irq *irq)
{
    for (unsigned i = 0; i < IRQ_VECTORS; i++) {
        flush(irq, &irq->vec[i]);
    }
}

void irq_forget_pending(struct guest_irq *irq)
{
    for (unsigned i = 0; i < IRQ_VECTORS; i++) {
        atomic_store(&irq->vec[i].pending, false);
    }
}

void irq_save(struct guest_irq *irq, struct state_out *s)
{
    uint64_t pending = 0;

    for (unsigned i = 0; i < IRQ_VECTORS; i++) {
        pending |= (uint64_t)atomic_load(&irq->vec[i].pending) << i;
    }
    state_put_u64(s, pending);
}

void irq_load(struct guest_irq *irq, bool enabled, struct state_in *s)
{
    uint64_t pending = state_get_u64(s);

    if (pending >> IRQ_VECTORS) {
        state_fail(s, "pending interrupts that the device does not have");
        return;
    }
    atomic_store(&irq->enabled, enabled);
    for (unsigned i = 0; i < IRQ_VECTORS; i++) {
        atomic_store(&irq->vec[i].pending, (pending >> i & 1) != 0);
    }
}
