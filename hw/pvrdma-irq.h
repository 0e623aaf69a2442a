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

/**
 * struct PVRDMAVector - one MSI-X vector
 * @dev: the device
 * @notifier: eventfd that the daemon writes
 * @virq: KVM's route, or -1
 * @irqfd: KVM takes the eventfd (the vector is in use and not masked)
 */
typedef struct PVRDMAVector {
    PCIDevice *dev;
    EventNotifier notifier;
    int virq;
    bool irqfd;
} PVRDMAVector;

/**
 * struct PVRDMAIrq - all vectors; under the BQL
 * @nvectors: how many of @vectors have a notifier
 * @on: MSI-X is enabled, and the daemon has the eventfds
 * @kvm: the vectors go through KVM and not through the main loop
 */
typedef struct PVRDMAIrq {
    PVRDMAVector vectors[PVRDMA_NUM_VEC];
    int nvectors;
    bool on;
    bool kvm;
} PVRDMAIrq;

bool pvrdma_irq_init(PVRDMAIrq *irq, PCIDevice *dev, Error **errp);
void pvrdma_irq_cleanup(PVRDMAIrq *irq);

/*
 * Follow the state of MSI-X: @enable as the guest has it now.  Tells the
 * daemon unless @client is lost.  Returns what the daemon said.
 */
int pvrdma_irq_set_enabled(PVRDMAIrq *irq, PVRDMAClient *client, bool enable);

/* Raise a vector as the daemon would. */
void pvrdma_irq_raise(PVRDMAIrq *irq, int vector);

#endif
