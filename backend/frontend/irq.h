/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * MSI-X vectors of one VM as eventfds of its VMM.
 *
 * Any thread may raise; the main thread assigns.  A raise with no eventfd
 * assigned or while masked is remembered and delivered on assignment/unmask.
 * A replaced eventfd is closed once no thread can be writing to it.  A client can
 * make its eventfd block (clear O_NONBLOCK, fill the counter): a raise that
 * does not return is broken off by datapath's watchdog and faults the VM.
 */
#ifndef PVRDMAD_IRQ_H
#define PVRDMAD_IRQ_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "pvrdma/abi.h"

struct vm;

struct irq_vector {
    _Atomic int fd; /* -1: none */
    _Atomic bool masked;
    _Atomic bool pending;
    _Atomic uint64_t raised; /* statistics */
};

struct vm_irq {
    struct vm *vm;
    struct irq_vector vec[PVRDMA_NUM_VEC];
    _Atomic bool enabled; /* bus master on: interrupts may leave */
};

void irq_init(struct vm_irq *irq, struct vm *vm);
void irq_fini(struct vm_irq *irq);

/* Any thread; never blocks for long, never fails visibly. */
void irq_raise(struct vm_irq *irq, unsigned vec);

/*
 * Assign @fd, an eventfd (taken over on success; -1 de-assigns).  Returns 0, or
 * EINVAL: no such vector, or not a descriptor.  Main thread.
 */
int irq_assign(struct vm_irq *irq, unsigned vec, int fd);
void irq_mask(struct vm_irq *irq, unsigned vec, bool masked);
void irq_enable(struct vm_irq *irq, bool on);

#endif /* PVRDMAD_IRQ_H */
