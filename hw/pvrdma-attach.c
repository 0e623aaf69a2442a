/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The pvrdma device and a daemon that it has connected to: do they fit?
 *
 * When the device is made, its properties say what the guest is going to see,
 * and when it has lost its daemon and found another, the guest has seen it: so
 * the same questions are asked either time.  The rest of what a daemon offers,
 * limits and extensions, the guest's driver reads anew after each reset.
 *
 * The daemon is not trusted: what it says is only compared.  Under the BQL.
 */
#include "qemu/osdep.h"
#include <linux/vfio.h>
#include "qemu/error-report.h"
#include "qemu/units.h"
#include "hw/pci/pci_bus.h"
#include "pvrdma-calls.h"
#include "pvrdma.h"
#include "pvrdma/ext.h"

/* What a daemon may reasonably offer. */
#define MAX_REGIONS   100
#define MAX_IRQS      50
#define REGS_SIZE_MAX (64 * KiB)
/* Page numbers must fit the 16-bit owner words of the doorbell region. */
#define UAR_SIZE_MAX  (128 * MiB)
#define VECTORS_MAX   64

/* A register of the daemon's, or 0. */
static uint32_t read_reg(PVRDMADevice *s, uint32_t addr)
{
    uint8_t buf[4];

    if (!pvrdma_call_region_read(s->client, PVRDMA_BAR_REG, addr, buf,
                                 sizeof(buf), NULL)) {
        return 0;
    }
    return ldl_le_p(buf);
}

static bool check_function(PVRDMADevice *s, Error **errp)
{
    PCIDevice *dev = PCI_DEVICE(s);
    int slot = PCI_SLOT(dev->devfn);
    PCIDevice *nic = pci_get_bus(dev)->devices[PCI_DEVFN(slot, 0)];

    if (read_reg(s, PVRDMA_EXT_REG_MAGIC) == PVRDMA_EXT_MAGIC &&
        read_reg(s, PVRDMA_EXT_REG_FEATURES) & PVRDMA_EXT_FEAT_MAC) {
        return true;
    }
    if (PCI_FUNC(dev->devfn) == 0) {
        error_setg(errp, "pvrdma '%s' cannot be function 0 of a slot", s->name);
        error_append_hint(errp, "The guest's driver looks for the network "
                          "interface of the adapter in function 0 of the same "
                          "slot, and it must be a vmxnet3:\n'-device vmxnet3,"
                          "netdev=...,addr=5.0,multifunction=on -device pvrdma,"
                          "addr=5.1'\nAny slot will do with the project's own "
                          "guest driver, if the VM's group in pvrdmad's key "
                          "file names the interface: 'mac=ADDRESS'.\n");
        return false;
    }
    /* Once is enough. */
    if (nic && !s->lost && !object_dynamic_cast(OBJECT(nic), "vmxnet3")) {
        warn_report("pvrdma '%s': function 0 of the slot is '%s'; Linux' "
                    "vmw_pvrdma driver wants a vmxnet3 there", s->name,
                    object_get_typename(OBJECT(nic)));
    }
    return true;
}

/*
 * Has the daemon this BAR, of @size bytes or more?  Of BAR2 no more: the guest
 * learns from the daemon how many pages it may use.
 */
static bool check_bar(PVRDMADevice *s, uint32_t index, uint64_t size,
                      uint64_t max, Error **errp)
{
    PVRDMARegion region;

    if (size < 4 * KiB || size > max || !is_power_of_2(size)) {
        error_setg(errp, "pvrdma '%s': BAR%u cannot have %" PRIu64 " bytes",
                   s->name, index, size);
        return false;
    }
    if (!pvrdma_call_region_info(s->client, index, &region, errp)) {
        return false;
    }
    if (region.fd >= 0) {
        close(region.fd);
    }
    if (region.size < size || region.size > max ||
        !is_power_of_2(region.size) ||
        (index == VFIO_USER_REGION_BAR2 && region.size != size)) {
        error_setg(errp, "pvrdma '%s': pvrdmad has a BAR%u of %" PRIu64
                   " bytes, the device one of %" PRIu64, s->name, index,
                   region.size, size);
        return false;
    }
    return true;
}

/* Is this our daemon, and does it fit what we are going to show the guest? */
static bool check_device(PVRDMADevice *s, struct vfio_user_device_info *info,
                         Error **errp)
{
    uint8_t id[4];
    int64_t vectors;

    if (!pvrdma_call_device_info(s->client, info, errp)) {
        return false;
    }
    if (!(info->flags & VFIO_DEVICE_FLAGS_PCI) ||
        !(info->flags & VFIO_DEVICE_FLAGS_RESET) ||
        info->num_regions <= VFIO_PCI_CONFIG_REGION_INDEX ||
        info->num_regions > MAX_REGIONS ||
        info->num_irqs <= VFIO_PCI_MSIX_IRQ_INDEX ||
        info->num_irqs > MAX_IRQS) {
        error_setg(errp, "pvrdma '%s': the vfio-user server is not pvrdmad: "
                   "flags 0x%x, %u regions, %u interrupts", s->name,
                   info->flags, info->num_regions, info->num_irqs);
        return false;
    }
    if (!pvrdma_call_region_read(s->client, VFIO_PCI_CONFIG_REGION_INDEX,
                                 PCI_VENDOR_ID, id, sizeof(id), errp)) {
        return false;
    }
    if (lduw_le_p(id) != PCI_VENDOR_ID_VMWARE ||
        lduw_le_p(id + 2) != PVRDMA_PCI_DEVICE) {
        error_setg(errp, "pvrdma '%s': the vfio-user server is not pvrdmad: "
                   "its device is %04x:%04x", s->name, lduw_le_p(id),
                   lduw_le_p(id + 2));
        return false;
    }
    if (s->vectors < PVRDMA_NUM_VEC || s->vectors > VECTORS_MAX) {
        error_setg(errp, "pvrdma '%s': 'vectors' must be %d to %d", s->name,
                   PVRDMA_NUM_VEC, VECTORS_MAX);
        return false;
    }
    vectors = pvrdma_call_irq_count(s->client, VFIO_PCI_MSIX_IRQ_INDEX, errp);
    if (vectors < 0) {
        return false;
    }
    if (vectors < s->vectors) {
        error_setg(errp, "pvrdma '%s': pvrdmad has %" PRIi64 " interrupt "
                   "vectors, %u are needed (property 'vectors')", s->name,
                   vectors, s->vectors);
        return false;
    }
    return true;
}

bool pvrdma_attach(PVRDMADevice *s, Error **errp)
{
    struct vfio_user_device_info info;

    pvrdma_doorbell_close(&s->doorbell);
    return check_device(s, &info, errp) && check_function(s, errp) &&
           check_bar(s, PVRDMA_BAR_REG, s->regs_size, REGS_SIZE_MAX, errp) &&
           check_bar(s, PVRDMA_BAR_UAR, s->uar_size, UAR_SIZE_MAX, errp) &&
           pvrdma_doorbell_open(&s->doorbell, s->client, info.num_regions,
                                errp);
}
