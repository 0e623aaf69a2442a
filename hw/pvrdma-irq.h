/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Interrupts of the pvrdma device: eventfds become MSI-X messages.
 */
#ifndef HW_RDMA_PVRDMA_IRQ_H
#define HW_RDMA_PVRDMA_IRQ_H

#include "hw/pci/pci_device.h"
#include "qemu/event_notifier.h"
#include "pvrdma-calls.h"
#include "pvrdma/abi.h"

typedef struct PVRDMAIrq PVRDMAIrq;

/**
 * struct PVRDMAVector - one MSI-X vector
 * @irq: what it is part of
 * @notifier: eventfd that the daemon writes
 * @virq: KVM's route, or -1
 * @irqfd: KVM takes the eventfd (the vector is in use and not masked)
 */
typedef struct PVRDMAVector {
    PVRDMAIrq *irq;
    EventNotifier notifier;
    int virq;
    bool irqfd;
} PVRDMAVector;

/**
 * struct PVRDMAIrq - all vectors; under the BQL
 * @dev: the device
 * @name: and how messages call it
 * @nvectors: how many @vectors have a notifier
 * @on: MSI-X is enabled, and the daemon has the eventfds
 * @kvm: the vectors go through KVM and not through the main loop
 * @paused: they go nowhere, for the VM is stopped
 */
struct PVRDMAIrq {
    PCIDevice *dev;
    const char *name;
    PVRDMAVector *vectors;
    unsigned nvectors;
    bool on;
    bool kvm;
    bool paused;
};

/*
 * Make @count vectors; @name must outlive them.  MSI-X of @dev must have as
 * many.
 */
bool pvrdma_irq_init(PVRDMAIrq *irq, PCIDevice *dev, const char *name,
                     unsigned count, Error **errp);
void pvrdma_irq_cleanup(PVRDMAIrq *irq);

/* What QEMU's MSI-X code calls has only the device; pvrdma.c knows the rest. */
PVRDMAIrq *pvrdma_irq_of(PCIDevice *dev);

/*
 * Follow the state of MSI-X: @enable as the guest has it now, and tell the
 * daemon.  It is done in any case; false: the daemon has not done its part.
 */
bool pvrdma_irq_set_enabled(PVRDMAIrq *irq, PVRDMAClient *client, bool enable,
                            Error **errp);

/* The same to a daemon that knows nothing yet, without a change. */
bool pvrdma_irq_repeat(PVRDMAIrq *irq, PVRDMAClient *client, Error **errp);

/*
 * The VM is stopped, and the daemon signals nothing any more: what it has
 * signalled becomes MSI-X messages and pending bits, and stays that.
 */
void pvrdma_irq_pause(PVRDMAIrq *irq);
/* The end of it; also if it never began. */
void pvrdma_irq_resume(PVRDMAIrq *irq);

/*
 * What the daemon has said so far reaches the guest before it goes on.  Without
 * KVM it waits for the main loop else.
 */
void pvrdma_irq_deliver(PVRDMAIrq *irq, unsigned vector);

/* Raise a vector; nothing if MSI-X is off. */
void pvrdma_irq_raise(PVRDMAIrq *irq, unsigned vector);

#endif
