/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Interrupts of the pvrdma device: eventfds become MSI-X messages.
 *
 * Each vector has one eventfd for the life of the device.  The daemon gets them
 * when the guest enables MSI-X and must forget them when it disables it.
 *
 * With KVM's irqfds an interrupt does not pass through QEMU: while a vector is
 * enabled and not masked, its eventfd is bound to a KVM route for its message.
 * While it is masked the eventfd just counts; the PBA is brought up to date
 * when the guest reads it, and KVM fires a counted event when the eventfd is
 * bound again, so that none is lost and none comes twice.  Without KVM, or if a
 * route cannot be had, the main loop reads the eventfd and msix_notify() does
 * the rest.
 */
#include "qemu/osdep.h"
#include "qemu/error-report.h"
#include "qemu/main-loop.h"
#include "hw/pci/msi.h"
#include "hw/pci/msix.h"
#include "system/kvm.h"
#include "pvrdma-eventfd.h"
#include "pvrdma-irq.h"
#include "pvrdma.h"

static bool take_event(PVRDMAVector *v)
{
    return pvrdma_eventfd_take(event_notifier_get_fd(&v->notifier));
}

static void vector_event(EventNotifier *n)
{
    PVRDMAVector *v = container_of(n, PVRDMAVector, notifier);

    if (take_event(v) && msix_enabled(v->dev)) {
        msix_notify(v->dev, v - PVRDMA(v->dev)->irq.vectors);
    }
}

/* Always succeeds: the MSI-X code of QEMU asserts that. */
static int vector_use(PCIDevice *dev, unsigned int index, MSIMessage msg)
{
    PVRDMAVector *v = &PVRDMA(dev)->irq.vectors[index];

    if (kvm_irqchip_update_msi_route(kvm_state, v->virq, msg, dev) >= 0) {
        kvm_irqchip_commit_routes(kvm_state);
        v->irqfd = kvm_irqchip_add_irqfd_notifier_gsi(kvm_state, &v->notifier,
                                                      NULL, v->virq) >= 0;
    }
    if (!v->irqfd) {
        warn_report_once("pvrdma: no irqfd for an interrupt, it will be slow");
        event_notifier_set_handler(&v->notifier, vector_event);
    }
    return 0;
}

static void vector_release(PCIDevice *dev, unsigned int index)
{
    PVRDMAVector *v = &PVRDMA(dev)->irq.vectors[index];

    if (v->irqfd) {
        kvm_irqchip_remove_irqfd_notifier_gsi(kvm_state, &v->notifier,
                                              v->virq);
        v->irqfd = false;
    } else {
        event_notifier_set_handler(&v->notifier, NULL);
    }
}

static void vector_poll(PCIDevice *dev, unsigned int start, unsigned int end)
{
    PVRDMAIrq *irq = &PVRDMA(dev)->irq;
    unsigned int i;

    for (i = start; i < MIN(end, PVRDMA_NUM_VEC); i++) {
        if (msix_is_masked(dev, i) && take_event(&irq->vectors[i])) {
            msix_set_pending(dev, i);
        }
    }
}

static void kvm_stop(PVRDMAIrq *irq, PCIDevice *dev)
{
    int i;

    if (dev->msix_vector_use_notifier) {
        msix_unset_vector_notifiers(dev);
    }
    for (i = 0; i < PVRDMA_NUM_VEC; i++) {
        /* Not called by the above once MSI-X is disabled. */
        vector_release(dev, i);
        if (irq->vectors[i].virq >= 0) {
            kvm_irqchip_release_virq(kvm_state, irq->vectors[i].virq);
            irq->vectors[i].virq = -1;
        }
    }
}

/* False: some route or irqfd cannot be had, and nothing is left behind. */
static bool kvm_start(PVRDMAIrq *irq, PCIDevice *dev)
{
    KVMRouteChange change;
    int i, virq = 0;

    if (!kvm_msi_via_irqfd_enabled()) {
        return false;
    }
    change = kvm_irqchip_begin_route_changes(kvm_state);
    for (i = 0; i < PVRDMA_NUM_VEC && virq >= 0; i++) {
        virq = kvm_irqchip_add_msi_route(&change, i, dev);
        irq->vectors[i].virq = virq >= 0 ? virq : -1;
    }
    kvm_irqchip_commit_route_changes(&change);
    if (virq < 0) {
        warn_report_once("pvrdma: no KVM routes for interrupts, they will be "
                         "slow");
        kvm_stop(irq, dev);
        return false;
    }
    msix_set_vector_notifiers(dev, vector_use, vector_release, vector_poll);
    return true;
}

static void set_handlers(PVRDMAIrq *irq, EventNotifierHandler *handler)
{
    int i;

    for (i = 0; i < PVRDMA_NUM_VEC; i++) {
        event_notifier_set_handler(&irq->vectors[i].notifier, handler);
    }
}

int pvrdma_irq_set_enabled(PVRDMAIrq *irq, PVRDMAClient *client, bool enable)
{
    int fds[PVRDMA_NUM_VEC];
    PCIDevice *dev = irq->vectors[0].dev;
    int i, ret;

    if (enable == irq->on) {
        return 0;
    }
    irq->on = enable;
    if (!enable) {
        ret = pvrdma_call_disable_irqs(client);
        if (irq->kvm) {
            kvm_stop(irq, dev);
            irq->kvm = false;
        } else {
            set_handlers(irq, NULL);
        }
        return ret;
    }
    for (i = 0; i < PVRDMA_NUM_VEC; i++) {
        /* What the daemon said before the guest enabled MSI-X is void. */
        take_event(&irq->vectors[i]);
        fds[i] = event_notifier_get_fd(&irq->vectors[i].notifier);
    }
    irq->kvm = kvm_start(irq, dev);
    if (!irq->kvm) {
        set_handlers(irq, vector_event);
    }
    return pvrdma_call_set_irqs(client, fds, ARRAY_SIZE(fds));
}

void pvrdma_irq_raise(PVRDMAIrq *irq, int vector)
{
    if (irq->on) {
        pvrdma_eventfd_signal(event_notifier_get_fd(
                                  &irq->vectors[vector].notifier));
    }
}

bool pvrdma_irq_init(PVRDMAIrq *irq, PCIDevice *dev, Error **errp)
{
    int i, ret;

    for (i = 0; i < PVRDMA_NUM_VEC; i++) {
        PVRDMAVector *v = &irq->vectors[i];

        v->dev = dev;
        v->virq = -1;
        ret = event_notifier_init(&v->notifier, false);
        if (ret < 0) {
            error_setg_errno(errp, -ret, "cannot create an eventfd");
            return false;
        }
        irq->nvectors++;
    }
    return true;
}

void pvrdma_irq_cleanup(PVRDMAIrq *irq)
{
    while (irq->nvectors > 0) {
        event_notifier_cleanup(&irq->vectors[--irq->nvectors].notifier);
    }
}
