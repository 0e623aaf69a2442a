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
#include "pvrdma-compat.h"
#include "pvrdma-eventfd.h"
#include "pvrdma-irq.h"
#include "trace.h"

static unsigned vector_index(const PVRDMAVector *v)
{
    return v - v->irq->vectors;
}

static bool take_event(PVRDMAVector *v)
{
    return pvrdma_eventfd_take(event_notifier_get_fd(&v->notifier));
}

static void vector_event(EventNotifier *n)
{
    PVRDMAVector *v = container_of(n, PVRDMAVector, notifier);

    if (take_event(v) && msix_enabled(v->irq->dev)) {
        trace_pvrdma_irq_event(v->irq->name, vector_index(v));
        msix_notify(v->irq->dev, vector_index(v));
    }
}

/* Always succeeds: the MSI-X code of QEMU asserts that. */
static int vector_use(PCIDevice *dev, unsigned int index, MSIMessage msg)
{
    PVRDMAIrq *irq = pvrdma_irq_of(dev);
    PVRDMAVector *v = &irq->vectors[index];

    if (kvm_irqchip_update_msi_route(kvm_state, v->virq, msg, dev) >= 0) {
        kvm_irqchip_commit_routes(kvm_state);
        v->irqfd = kvm_irqchip_add_irqfd_notifier_gsi(kvm_state, &v->notifier,
                                                      NULL, v->virq) >= 0;
    }
    trace_pvrdma_irq_use(irq->name, index, v->irqfd);
    if (!v->irqfd) {
        warn_report_once("pvrdma '%s': no irqfd for an interrupt, it will be "
                         "slow", irq->name);
        event_notifier_set_handler(&v->notifier, vector_event);
    }
    return 0;
}

static void vector_stop(PVRDMAVector *v)
{
    trace_pvrdma_irq_release(v->irq->name, vector_index(v));
    if (v->irqfd) {
        kvm_irqchip_remove_irqfd_notifier_gsi(kvm_state, &v->notifier,
                                              v->virq);
        v->irqfd = false;
    } else {
        event_notifier_set_handler(&v->notifier, NULL);
    }
}

static void vector_release(PCIDevice *dev, unsigned int index)
{
    vector_stop(&pvrdma_irq_of(dev)->vectors[index]);
}

static void vector_poll(PCIDevice *dev, unsigned int start, unsigned int end)
{
    PVRDMAIrq *irq = pvrdma_irq_of(dev);
    unsigned i;

    for (i = start; i < MIN(end, irq->nvectors); i++) {
        if (msix_is_masked(dev, i) && take_event(&irq->vectors[i])) {
            msix_set_pending(dev, i);
        }
    }
}

static void kvm_stop(PVRDMAIrq *irq)
{
    unsigned i;

    if (irq->dev->msix_vector_use_notifier) {
        msix_unset_vector_notifiers(irq->dev);
    }
    for (i = 0; i < irq->nvectors; i++) {
        PVRDMAVector *v = &irq->vectors[i];

        /* Not called by the above once MSI-X is disabled. */
        vector_stop(v);
        if (v->virq >= 0) {
            kvm_irqchip_release_virq(kvm_state, v->virq);
            v->virq = -1;
        }
    }
}

/* False: some route or irqfd cannot be had, and nothing is left behind. */
static bool kvm_start(PVRDMAIrq *irq)
{
    PVRDMARouteChange change;
    int virq = 0;
    unsigned i;

    if (!kvm_msi_via_irqfd_enabled()) {
        return false;
    }
    change = pvrdma_begin_route_changes();
    for (i = 0; i < irq->nvectors && virq >= 0; i++) {
        virq = kvm_irqchip_add_msi_route(&change, i, irq->dev);
        irq->vectors[i].virq = virq >= 0 ? virq : -1;
    }
    pvrdma_commit_route_changes(&change);
    if (virq < 0) {
        warn_report_once("pvrdma '%s': no KVM routes for interrupts, they "
                         "will be slow", irq->name);
        kvm_stop(irq);
        return false;
    }
    msix_set_vector_notifiers(irq->dev, vector_use, vector_release,
                              vector_poll);
    return true;
}

static void set_handlers(PVRDMAIrq *irq, EventNotifierHandler *handler)
{
    unsigned i;

    for (i = 0; i < irq->nvectors; i++) {
        event_notifier_set_handler(&irq->vectors[i].notifier, handler);
    }
}

static void irq_connect(PVRDMAIrq *irq)
{
    irq->kvm = kvm_start(irq);
    if (!irq->kvm) {
        set_handlers(irq, vector_event);
    }
}

static void irq_disconnect(PVRDMAIrq *irq)
{
    if (irq->kvm) {
        kvm_stop(irq);
        irq->kvm = false;
    } else {
        set_handlers(irq, NULL);
    }
}

static bool irq_disable(PVRDMAIrq *irq, PVRDMAClient *client, Error **errp)
{
    bool ok = pvrdma_call_disable_irqs(client, errp);

    trace_pvrdma_irq_enable(irq->name, false, irq->kvm);
    irq_disconnect(irq);
    return ok;
}

static bool hand_over(PVRDMAIrq *irq, PVRDMAClient *client, Error **errp)
{
    g_autofree int *fds = g_new(int, irq->nvectors);
    unsigned i;

    for (i = 0; i < irq->nvectors; i++) {
        fds[i] = event_notifier_get_fd(&irq->vectors[i].notifier);
    }
    return pvrdma_call_set_irqs(client, fds, irq->nvectors, errp);
}

static bool irq_enable(PVRDMAIrq *irq, PVRDMAClient *client, Error **errp)
{
    unsigned i;

    for (i = 0; i < irq->nvectors; i++) {
        /* What the daemon said before the guest enabled MSI-X is void. */
        take_event(&irq->vectors[i]);
    }
    if (!irq->paused) {
        irq_connect(irq);
    }
    trace_pvrdma_irq_enable(irq->name, true, irq->kvm);
    return hand_over(irq, client, errp);
}

bool pvrdma_irq_repeat(PVRDMAIrq *irq, PVRDMAClient *client, Error **errp)
{
    return !irq->on || hand_over(irq, client, errp);
}

bool pvrdma_irq_set_enabled(PVRDMAIrq *irq, PVRDMAClient *client, bool enable,
                            Error **errp)
{
    if (enable == irq->on) {
        return true;
    }
    irq->on = enable;
    return enable ? irq_enable(irq, client, errp)
                  : irq_disable(irq, client, errp);
}

void pvrdma_irq_pause(PVRDMAIrq *irq)
{
    unsigned i;

    if (irq->paused) {
        return;
    }
    irq->paused = true;
    if (!irq->on) {
        return;
    }
    /* KVM has delivered all that it took when this returns. */
    irq_disconnect(irq);
    for (i = 0; i < irq->nvectors; i++) {
        vector_event(&irq->vectors[i].notifier);
    }
}

void pvrdma_irq_resume(PVRDMAIrq *irq)
{
    if (irq->paused) {
        irq->paused = false;
        if (irq->on) {
            irq_connect(irq);
        }
    }
}

void pvrdma_irq_deliver(PVRDMAIrq *irq, unsigned vector)
{
    if (irq->on && !irq->kvm && !irq->paused) {
        vector_event(&irq->vectors[vector].notifier);
    }
}

void pvrdma_irq_raise(PVRDMAIrq *irq, unsigned vector)
{
    if (irq->on) {
        msix_notify(irq->dev, vector);
    }
}

bool pvrdma_irq_init(PVRDMAIrq *irq, PCIDevice *dev, const char *name,
                     unsigned count, Error **errp)
{
    *irq = (PVRDMAIrq) {
        .dev = dev,
        .name = name,
        .vectors = g_new0(PVRDMAVector, count),
    };
    while (irq->nvectors < count) {
        PVRDMAVector *v = &irq->vectors[irq->nvectors];
        int ret = event_notifier_init(&v->notifier, false);

        if (ret < 0) {
            error_setg_errno(errp, -ret, "pvrdma '%s': cannot create an "
                             "eventfd", name);
            return false;
        }
        v->irq = irq;
        v->virq = -1;
        irq->nvectors++;
    }
    return true;
}

void pvrdma_irq_cleanup(PVRDMAIrq *irq)
{
    while (irq->nvectors > 0) {
        event_notifier_cleanup(&irq->vectors[--irq->nvectors].notifier);
    }
    g_free(irq->vectors);
    irq->vectors = NULL;
}
