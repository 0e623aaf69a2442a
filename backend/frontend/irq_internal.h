/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What the vfio-user server needs of irq.c beyond irq.h. */
#ifndef PVRDMAD_IRQ_INTERNAL_H
#define PVRDMAD_IRQ_INTERNAL_H

#include <stdbool.h>

struct guest_irq;

/* Is @fd an eventfd (asked from /proc, the descriptor is not touched)? */
bool irq_is_eventfd(int fd);

/* Drop latched interrupts: the device was reset.  Main thread. */
void irq_forget_pending(struct guest_irq *irq);

#endif /* PVRDMAD_IRQ_INTERNAL_H */
