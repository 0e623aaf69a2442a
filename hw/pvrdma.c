/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The pvrdma device in QEMU: an RDMA adapter whose inside is another process.
 *
 * Registers, commands, queues and the data path are in pvrdmad, which serves
 * all VMs of a host.  QEMU is only the way there, a vfio-user client:
 *
 *   what                      where it goes
 *   config space, MSI-X       local (pvrdma.c); PCI_COMMAND is forwarded
 *   BAR1, registers           REGION_READ and REGION_WRITE; the vCPU waits for
 *                             the answer, because the guest's driver relies on
 *                             the effect being complete (it reads or frees
 *                             memory right after some writes)
 *   BAR2, doorbells           bits in shared memory (pvrdma-doorbell.c), or
 *                             messages without reply if the daemon has none
 *   guest memory              descriptors, mapped by the daemon (pvrdma-mem.c)
 *   interrupts                eventfds (pvrdma-irq.c)
 *   reset, also by function   DEVICE_RESET
 *   stop, migration           device states (pvrdma-migrate.c), and a log of
 *                             what the daemon writes (pvrdma-dirty.c)
 *   loss of the daemon        pvrdma-lost.c
 *   the next one              pvrdma-reconnect.c, pvrdma-attach.c
 *
 * The messages themselves are in pvrdma-calls.c, pvrdma-client.c and
 * pvrdma-connect.c.
 *
 * Everything runs under the BQL.  A daemon that does not answer costs at most
 * the client's timeout, once (at hot-plug for connecting, for negotiating and
 * for setting up each); after that the connection is lost.  The guest sees a
 * failed adapter then, but not before the daemon is known to be gone: the VM is
 * stopped until then.  From another daemon it gets a new adapter, so to speak:
 * when it resets the one that failed.
 *
 * The guest's driver takes function 0 of the same slot as the network interface
 * the adapter belongs to, so the device must be another function of that slot.
 * Only if the daemon names the interface by its hardware address, which our own
 * guest driver looks at, any place will do.
 */
#include "qemu/osdep.h"
#include <linux/vfio.h>
#include "qemu/error-report.h"
#include "qemu/main-loop.h"
#include "qemu/module.h"
#include "qemu/units.h"
#include "hw/pci/msix.h"
#include "hw/pci/pci_bus.h"
#include "hw/pci/pcie.h"
#include "qapi/clone-visitor.h"
#include "qapi/qapi-visit-pvrdma.h"
#include "qapi/qapi-visit-sockets.h"
#include "qapi/visitor.h"
#include "qapi/visitor-impl.h"
#include "system/system.h"
#include "pvrdma-calls.h"
#include "pvrdma-compat.h"
#include "pvrdma-nap.h"
#include "pvrdma.h"
#include "pvrdma/ext.h"
#include "trace.h"

#define EXPRESS_CAP_OFFSET 0x80

/*
 * What a guest sees of the device is part of a VM's saved state: these never
 * change, whatever later daemons offer.
 */
#define REGS_SIZE_DEFAULT (4 * KiB)
#define UAR_SIZE_DEFAULT  (2 * MiB)
/* Those of a stock driver and seven further completion vectors. */
#define VECTORS_DEFAULT   10

#define SOCKET_DIR "/run/pvrdma"

/*
 * The daemon refused something that it should not have: tell the admin.  That
 * the connection is lost was told already.
 */
static void warn_refused(PVRDMADevice *s, Error *err)
{
    if (pvrdma_client_lost(s->client)) {
        error_free(err);
    } else if (err) {
        warn_report_err(err);
    }
}

/*
 * BAR1
 */

static uint64_t pvrdma_regs_read(void *opaque, hwaddr addr, unsigned int size)
{
    PVRDMADevice *s = opaque;
    uint32_t value = UINT32_MAX;
    uint8_t buf[4];

    if (s->lost) {
        value = pvrdma_lost_read(s, addr);
    } else if (pvrdma_call_region_read(s->client, PVRDMA_BAR_REG, addr, buf,
                                       size, NULL)) {
        value = ldl_le_p(buf);
    }
    trace_pvrdma_regs_read(s->name, addr, value);
    return value;
}

/* Remember where the shared region is: pvrdma-lost.c needs it. */
static void track_dsr(PVRDMADevice *s, hwaddr addr, uint32_t value)
{
    switch (addr) {
    case PVRDMA_REG_DSRLOW:
        s->dsr_low = value;
        break;
    case PVRDMA_REG_DSRHIGH:
        s->dsr = (uint64_t)value << 32 | s->dsr_low;
        s->dsr_valid = !s->lost;
        break;
    case PVRDMA_REG_CTL:
        if (value == PVRDMA_CTL_RESET) {
            s->dsr_valid = false;
        }
        break;
    }
}

static void pvrdma_regs_write(void *opaque, hwaddr addr, uint64_t value,
                              unsigned int size)
{
    PVRDMADevice *s = opaque;
    uint8_t buf[4];

    trace_pvrdma_regs_write(s->name, addr, value);
    track_dsr(s, addr, value);
    if (pvrdma_reconnect_begins(s, addr, value)) {
        pvrdma_reconnect_use(s);
    }
    if (s->lost) {
        pvrdma_lost_write(s, addr);
        return;
    }
    stl_le_p(buf, value);
    pvrdma_call_region_write(s->client, PVRDMA_BAR_REG, addr, buf, size, NULL);
    if (addr == PVRDMA_REG_REQUEST) {
        /*
         * The daemon has answered the command.  A signal must find the
         * in-tree driver with its answer, since it gives a command up that it
         * waits for.
         */
        pvrdma_irq_deliver(&s->irq, PVRDMA_VEC_CMD);
    }
}

static const MemoryRegionOps pvrdma_regs_ops = {
    .read = pvrdma_regs_read,
    .write = pvrdma_regs_write,
    .endianness = DEVICE_LITTLE_ENDIAN,
    .valid = {
        .min_access_size = 4,
        .max_access_size = 4,
    },
};

/*
 * BAR2
 */

static uint64_t pvrdma_uar_read(void *opaque, hwaddr addr, unsigned int size)
{
    PVRDMADevice *s = opaque;

    if (s->lost) {
        pvrdma_lost_barrier(s);
        return UINT32_MAX;
    }
    return 0;
}

static void pvrdma_uar_write(void *opaque, hwaddr addr, uint64_t value,
                             unsigned int size)
{
    PVRDMADevice *s = opaque;
    uint8_t buf[4];

    if (s->lost) {
        return;
    }
    if (pvrdma_doorbell_is_poll(addr, value)) {
        pvrdma_nap_polled(value & PVRDMA_EXT_UAR_CQ_IDLE);
    } else {
        pvrdma_nap_worked();
    }
    if (s->doorbell.region ? pvrdma_doorbell_ring(&s->doorbell, addr, value)
                           : pvrdma_doorbell_is_poll(addr, value)) {
        return;
    }
    stl_le_p(buf, value);
    pvrdma_call_region_post(s->client, PVRDMA_BAR_UAR, addr, buf, size);
}

static const MemoryRegionOps pvrdma_uar_ops = {
    .read = pvrdma_uar_read,
    .write = pvrdma_uar_write,
    .endianness = DEVICE_LITTLE_ENDIAN,
    .valid = {
        .min_access_size = 4,
        .max_access_size = 4,
    },
};

/*
 * Config space and reset
 */

/* The daemon must know whether bus mastering is on: without it, no DMA. */
static void send_command(PVRDMADevice *s, uint16_t command, Error **errp)
{
    uint8_t buf[2];

    if (command == s->command) {
        return;
    }
    s->command = command;
    trace_pvrdma_command(s->name, command);
    if (s->lost && !s->fresh) {
        pvrdma_lost_barrier(s);
        return;
    }
    stw_le_p(buf, command);
    pvrdma_call_region_write(s->client, VFIO_PCI_CONFIG_REGION_INDEX,
                             PCI_COMMAND, buf, sizeof(buf), errp);
}

static void forward_command(PVRDMADevice *s, uint16_t command)
{
    Error *err = NULL;

    send_command(s, command, &err);
    warn_refused(s, err);
}

static void set_interrupts(PVRDMADevice *s, bool enable)
{
    Error *err = NULL;

    pvrdma_irq_set_enabled(&s->irq, s->client, enable, &err);
    warn_refused(s, err);
}

bool pvrdma_repeat_config(PVRDMADevice *s, Error **errp)
{
    ERRP_GUARD();

    /* As every daemon begins. */
    s->command = 0;
    send_command(s, pci_get_word(PCI_DEVICE(s)->config + PCI_COMMAND), errp);
    return !*errp && pvrdma_irq_repeat(&s->irq, s->client, errp);
}

bool pvrdma_follow_config(PVRDMADevice *s, Error **errp)
{
    ERRP_GUARD();
    PCIDevice *dev = PCI_DEVICE(s);

    send_command(s, pci_get_word(dev->config + PCI_COMMAND), errp);
    return !*errp && pvrdma_irq_set_enabled(&s->irq, s->client,
                                            msix_enabled(dev), errp);
}

PVRDMAIrq *pvrdma_irq_of(PCIDevice *dev)
{
    return &PVRDMA(dev)->irq;
}

static void pvrdma_write_config(PCIDevice *dev, uint32_t addr, uint32_t value,
                                int len)
{
    PVRDMADevice *s = PVRDMA(dev);

    pvrdma_client_begin(s->client);
    pci_default_write_config(dev, addr, value, len);
    if (dev->exp.exp_cap) {
        pcie_cap_flr_write_config(dev, addr, value, len);
    }
    forward_command(s, pci_get_word(dev->config + PCI_COMMAND));
    set_interrupts(s, msix_enabled(dev));
    pvrdma_client_end(s->client);
}

static void pvrdma_reset_hold(Object *obj, ResetType type)
{
    PVRDMADevice *s = PVRDMA(obj);
    Error *err = NULL;

    trace_pvrdma_reset(s->name);
    s->dsr_valid = false;
    s->lost_err = UINT32_MAX;
    pvrdma_client_begin(s->client);
    set_interrupts(s, false);
    forward_command(s, 0);
    if (pvrdma_call_reset(s->client, &err)) {
        pvrdma_migrate_reset(s);
        if (s->fresh) {
            pvrdma_reconnect_use(s);
        }
    }
    warn_refused(s, err);
    pvrdma_client_end(s->client);
}

/*
 * Realize
 */

static SocketAddress *path_address(char *path)
{
    SocketAddress *addr = g_new0(SocketAddress, 1);

    addr->type = SOCKET_ADDRESS_TYPE_UNIX;
    addr->u.q_unix.path = path;
    return addr;
}

/* The daemon's end of this VM: the property, or a path made of -name. */
static SocketAddress *socket_address(PVRDMADevice *s, Error **errp)
{
    const char *name = qemu_get_vm_name();

    if (s->socket && s->socket->type == QTYPE_QSTRING) {
        return path_address(g_strdup(s->socket->u.path));
    }
    if (s->socket) {
        return QAPI_CLONE(SocketAddress, &s->socket->u.address);
    }
    if (!name || !*name) {
        error_setg(errp, "pvrdma '%s' does not know which VM this is", s->name);
        error_append_hint(errp, "Give the VM's name as pvrdmad knows it, "
                          "'-name NAME', or its socket, '-device pvrdma,"
                          "socket=PATH'.\n");
        return NULL;
    }
    if (strchr(name, '/')) {
        error_setg(errp, "pvrdma '%s': the VM's name '%s' has a slash in it",
                   s->name, name);
        return NULL;
    }
    return path_address(g_strdup_printf(SOCKET_DIR "/%s.sock", name));
}

static bool init_bars(PVRDMADevice *s, Error **errp)
{
    PCIDevice *dev = PCI_DEVICE(s);
    uint32_t i;

    if (msix_init_exclusive_bar(dev, s->vectors, PVRDMA_BAR_MSIX, errp) < 0) {
        return false;
    }
    for (i = 0; i < s->vectors; i++) {
        msix_vector_use(dev, i);
    }
    memory_region_init_io(&s->regs, OBJECT(s), &pvrdma_regs_ops, s,
                          "pvrdma-regs", s->regs_size);
    pci_register_bar(dev, PVRDMA_BAR_REG, PCI_BASE_ADDRESS_SPACE_MEMORY,
                     &s->regs);
    memory_region_init_io(&s->uar, OBJECT(s), &pvrdma_uar_ops, s, "pvrdma-uar",
                          s->uar_size);
    pci_register_bar(dev, PVRDMA_BAR_UAR, PCI_BASE_ADDRESS_SPACE_MEMORY,
                     &s->uar);
    if (pci_bus_is_express(pci_get_bus(dev)) && pci_is_express(dev)) {
        if (pcie_endpoint_cap_init(dev, EXPRESS_CAP_OFFSET) < 0) {
            error_setg(errp, "pvrdma '%s': no room for the PCI express "
                       "capability", s->name);
            return false;
        }
        if (s->flr) {
            pcie_cap_flr_init(dev);
        }
    }
    return true;
}

/* At realize it was not known yet if a vIOMMU would follow. */
static void pvrdma_machine_done(Notifier *notifier, void *data)
{
    PVRDMADevice *s = container_of(notifier, PVRDMADevice, machine_done);
    Error *err = NULL;

    if (!pvrdma_mem_check_iommu(PCI_DEVICE(s), &err)) {
        error_report_err(err);
        exit(1);
    }
}

/* Undoes as much of realize as was done. */
static void pvrdma_cleanup(PVRDMADevice *s)
{
    PCIDevice *dev = PCI_DEVICE(s);

    /* A vCPU may already wait for the BQL with an access to a BAR. */
    s->lost = true;
    s->lost_err = UINT32_MAX;
    s->dsr_valid = false;
    if (s->machine_done.notify) {
        qemu_remove_machine_init_done_notifier(&s->machine_done);
        s->machine_done.notify = NULL;
    }
    pvrdma_reconnect_end(s);
    pvrdma_migrate_cleanup(s);
    pvrdma_mem_unwatch(&s->mem);
    pvrdma_mem_stop(&s->mem);
    pvrdma_lost_unwatch(s);
    pvrdma_client_free(s->client);
    s->client = NULL;
    s->fresh = false;
    qapi_free_SocketAddress(s->address);
    s->address = NULL;
    pvrdma_doorbell_close(&s->doorbell);
    pvrdma_irq_cleanup(&s->irq);
    if (msix_present(dev)) {
        msix_uninit_exclusive_bar(dev);
    }
    g_free(s->name);
    s->name = NULL;
}

static bool pvrdma_setup(PVRDMADevice *s, Error **errp)
{
    s->name = qdev_get_human_name(DEVICE(s));
    s->doorbell.eventfd = -1;
    s->address = socket_address(s, errp);
    if (!s->address) {
        return false;
    }
    s->client = pvrdma_client_connect(s->address, s->name, s->socket ? NULL :
                                      qemu_get_vm_name(), errp);
    if (!s->client) {
        return false;
    }
    pvrdma_client_begin(s->client);
    if (!pvrdma_attach(s, errp) || !pvrdma_migrate_setup(s, errp) ||
        !init_bars(s, errp) ||
        !pvrdma_irq_init(&s->irq, PCI_DEVICE(s), s->name, s->vectors, errp) ||
        !pvrdma_mem_start(&s->mem, s->client, PCI_DEVICE(s), s->name, s->able,
                          errp)) {
        return false;
    }
    pvrdma_client_end(s->client);
    pvrdma_mem_watch(&s->mem);
    pvrdma_lost_watch(s);
    /* At once if the machine is running. */
    s->machine_done.notify = pvrdma_machine_done;
    qemu_add_machine_init_done_notifier(&s->machine_done);
    pvrdma_lost_tell(s);
    return true;
}

static void pvrdma_realize(PCIDevice *dev, Error **errp)
{
    PVRDMADevice *s = PVRDMA(dev);

    if (!pvrdma_setup(s, errp)) {
        pvrdma_cleanup(s);
    }
}

static void pvrdma_exit(PCIDevice *dev)
{
    PVRDMADevice *s = PVRDMA(dev);

    pvrdma_client_begin(s->client);
    /* Ends all DMA before the daemon's maps of guest memory go. */
    pvrdma_irq_set_enabled(&s->irq, s->client, false, NULL);
    forward_command(s, 0);
    pvrdma_call_reset(s->client, NULL);
    pvrdma_client_end(s->client);
    pvrdma_cleanup(s);
}

static void pvrdma_finalize(Object *obj)
{
    qapi_free_PVRDMASocket(PVRDMA(obj)->socket);
}

static void get_socket(Object *obj, Visitor *v, const char *name, void *opaque,
                       Error **errp)
{
    PVRDMADevice *s = PVRDMA(obj);
    char nothing[] = "";
    PVRDMASocket none = { .type = QTYPE_QSTRING, .u.path = nothing };
    PVRDMASocket *value = s->socket ?: &none;

    visit_type_PVRDMASocket(v, name, &value, errp);
}

static void set_socket(Object *obj, Visitor *v, const char *name, void *opaque,
                       Error **errp)
{
    PVRDMADevice *s = PVRDMA(obj);
    PVRDMASocket *value = NULL;
    char *path;

    if (DEVICE(obj)->realized) {
        error_setg(errp, "'%s' can only be set before the device is realized",
                   name);
        return;
    }
    if (v->start_alternate) {
        if (!visit_type_PVRDMASocket(v, name, &value, errp)) {
            return;
        }
    } else {
        /* -global has text only. */
        if (!visit_type_str(v, name, &path, errp)) {
            return;
        }
        value = g_new0(PVRDMASocket, 1);
        value->type = QTYPE_QSTRING;
        value->u.path = path;
    }
    qapi_free_PVRDMASocket(s->socket);
    s->socket = value;
}

static bool get_connected(Object *obj, Error **errp)
{
    PVRDMADevice *s = PVRDMA(obj);

    return s->client && !pvrdma_client_lost(s->client);
}

static bool get_failed(Object *obj, Error **errp)
{
    return PVRDMA(obj)->lost;
}

static const Property pvrdma_properties[] = {
    DEFINE_PROP_UINT32("vectors", PVRDMADevice, vectors, VECTORS_DEFAULT),
    DEFINE_PROP_SIZE32("regs-size", PVRDMADevice, regs_size,
                       REGS_SIZE_DEFAULT),
    DEFINE_PROP_SIZE32("uar-size", PVRDMADevice, uar_size, UAR_SIZE_DEFAULT),
    /* Either kind of bus will do; on one of PCI express it decides. */
    DEFINE_PROP_BIT("express", PVRDMADevice, parent_obj.cap_present,
                    __builtin_ctz(QEMU_PCI_CAP_EXPRESS), true),
    DEFINE_PROP_BOOL("flr", PVRDMADevice, flr, true),
    DEFINE_PROP_BOOL("reconnect", PVRDMADevice, reconnect, true),
    /* Not: the log of writes comes by messages, as if memory were short. */
    DEFINE_PROP_BOOL("x-shared-log", PVRDMADevice, mem.share_log, true),
};

static void pvrdma_class_init(ObjectClass *klass, PVRDMAClassData *data)
{
    DeviceClass *dc = DEVICE_CLASS(klass);
    PCIDeviceClass *k = PCI_DEVICE_CLASS(klass);
    ResettableClass *rc = RESETTABLE_CLASS(klass);

    k->realize = pvrdma_realize;
    k->exit = pvrdma_exit;
    k->config_write = pvrdma_write_config;
    k->vendor_id = PCI_VENDOR_ID_VMWARE;
    k->device_id = PVRDMA_PCI_DEVICE;
    /* What QEMU would give it, too, and always has. */
    k->subsystem_vendor_id = PVRDMA_PCI_SUBSYSTEM_VENDOR;
    k->subsystem_id = PVRDMA_PCI_SUBSYSTEM;
    k->class_id = PCI_CLASS_NETWORK_OTHER;
    rc->phases.hold = pvrdma_reset_hold;
    dc->desc = "RDMA adapter, served by pvrdmad";
    dc->vmsd = &pvrdma_vmstate;
    device_class_set_props(dc, pvrdma_properties);
    object_class_property_add(klass, "socket", "PVRDMASocket", get_socket,
                              set_socket, NULL, NULL);
    object_class_property_set_description(klass, "socket",
        "pvrdmad's socket for the VM: a path, or a SocketAddress");
    object_class_property_set_description(klass, "vectors",
        "MSI-X vectors; the same on both sides of a migration");
    object_class_property_set_description(klass, "regs-size",
        "size of BAR1; must be pvrdmad's");
    object_class_property_set_description(klass, "uar-size",
        "size of BAR2; must be pvrdmad's");
    object_class_property_set_description(klass, "flr",
        "function level reset by the guest (on a PCI Express bus)");
    object_class_property_set_description(klass, "express",
        "PCI Express capability (on a PCI Express bus)");
    object_class_property_set_description(klass, "reconnect",
        "connect again after pvrdmad is lost");
    object_class_property_add_bool(klass, "connected", get_connected, NULL);
    object_class_property_set_description(klass, "connected",
        "whether pvrdmad serves the device");
    object_class_property_add_bool(klass, "failed", get_failed, NULL);
    object_class_property_set_description(klass, "failed",
        "whether the guest sees a failed adapter, which it must reset");
    set_bit(DEVICE_CATEGORY_NETWORK, dc->categories);
}

static const TypeInfo pvrdma_info = {
    .name = TYPE_PVRDMA,
    .parent = TYPE_PCI_DEVICE,
    .instance_size = sizeof(PVRDMADevice),
    .instance_finalize = pvrdma_finalize,
    .class_init = pvrdma_class_init,
    .interfaces = (InterfaceInfo[]) {
        { INTERFACE_CONVENTIONAL_PCI_DEVICE },
        { INTERFACE_PCIE_DEVICE },
        { }
    },
};

static void pvrdma_register_types(void)
{
    type_register_static(&pvrdma_info);
}

type_init(pvrdma_register_types)
