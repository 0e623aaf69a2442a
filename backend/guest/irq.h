/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * MSI-X vectors of one VM as eventfds of its VMM.
 *
 * Any thread may raise; the main thread assigns.  A raise with no eventfd
 * assigned or while masked is remembered and delivered on assignment/unmask.
 * A replaced eventfd is closed once no thread can be writing to it.  A client can
 * make its eventfd block (clear O_NONBLOCK, fill the counter): the main thread does
 * not wait for it, a worker's raise that does not return is broken off by the
 * watchdog and faults the VM.
 */
#ifndef PVRDMAD_IRQ_H
#define PVRDMAD_IRQ_H

#include <glib.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/state_stream.h"
#include "pvrdma/abi.h"
#include "pvrdma/ext.h"

struct guest;

/* MSI-X vectors: the stock ones, then one for each further completion vector. */
#define IRQ_VECTORS (PVRDMA_VEC_CQ + PVRDMA_EXT_MAX_VECTORS)

struct irq_vector {
    _Atomic int fd; /* -1: none */
    _Atomic bool masked;
    _Atomic bool pending;
    _Atomic uint64_t raised; /* statistics */
};

struct guest_irq {
    struct guest *guest;
    struct irq_vector vec[IRQ_VECTORS];
    _Atomic bool enabled; /* bus master on: interrupts may leave */
};

void irq_init(struct guest_irq *irq, struct guest *guest);
void irq_fini(struct guest_irq *irq);

/* Any thread; never blocks for long, never fails visibly. */
void irq_raise(struct guest_irq *irq, unsigned vec);

/*
 * Assign @fd, an eventfd (taken over on success; -1 de-assigns).  Returns 0, or
 * EINVAL: no such vector, or not a descriptor.  Main thread.
 */
int irq_assign(struct guest_irq *irq, unsigned vec, int fd);
void irq_mask(struct guest_irq *irq, unsigned vec, bool masked);
void irq_enable(struct guest_irq *irq, bool on);

/* Drop latched interrupts: the device was reset.  Main thread. */
void irq_forget_pending(struct guest_irq *irq);

/*
 * What is latched; loaded, it stays latched until irq_flush(), or until its vector is
 * assigned or unmasked.  Whether interrupts may leave at all is the device's.  Main
 * thread.
 */
void irq_save(struct guest_irq *irq, struct state_out *s);
void irq_load(struct guest_irq *irq, bool enabled, struct state_in *s);
void irq_flush(struct guest_irq *irq);

/* Is @fd an eventfd (asked from /proc, the descriptor is not touched)? */
bool irq_is_eventfd(int fd);

/* --- signalling (irq_signal.c) --- */

/* Main thread; part of irq_watchdog_start() and _stop(). */
void irq_signal_start(void);
void irq_signal_stop(void);

/*
 * Count @fd, a client's eventfd, up by one, unless it is full; false if that cannot
 * be done in time.  @may_block: by a thread that the watchdog watches; else the main
 * thread's.
 */
bool irq_signal(int fd, bool may_block);

/* --- watchdog (irq_watchdog.c) --- */

/* Threads that may raise interrupts, at most. */
#define IRQ_MAX_THREADS 65u

/*
 * Start the watchdog; the calling thread may raise from now on.  Before other
 * threads do.  False with errp.
 */
bool irq_watchdog_start(GError **errp);
void irq_watchdog_stop(void);
/* The calling thread is the @index-th that raises; 0 is the main thread. */
void irq_thread_register(unsigned index);
bool irq_in_main_thread(void);

/*
 * irq.c brackets the use of a guest's eventfds, so that the watchdog can break off
 * a write if the client made it block (it fails with EINTR and the guest is
 * faulted), and so that a replaced eventfd is closed in time: drain returns when no
 * other thread is left between enter and leave for this guest that entered before
 * the call.  In a coroutine the main loop may turn meanwhile.
 */
void irq_enter(struct guest *guest);
void irq_leave(void);
void irq_drain(struct guest *guest);

#endif /* PVRDMAD_IRQ_H */
