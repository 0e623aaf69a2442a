/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Configuration space: a table of bytes and a table of which bits can be
 * written.  Type 0 header, three memory BARs, two capabilities: MSI-X, and Advanced
 * Features for a function-level reset.
 *
 * Stock QEMU reads the space once at start and most of it live later, and sends
 * every guest write here before it applies its own emulation.  It wants BAR
 * type bits right at any time, the ROM BAR zero whatever is written, no
 * interrupt pin, and PCI_COMMAND as it was written; sizing of BARs works here
 * as on hardware, for VMMs that emulate less.
 *
 * Offsets and bits: PCI Local Bus Specification 3.0, chapter 6, and its ECN "Advanced
 * Capabilities for Conventional PCI".
 */
#include <linux/pci_regs.h>
#include <string.h>

#include "device/device.h"
#include "frontend/pci_config.h"
#include "pvrdma/abi.h"

#define MSIX_CAP 0x40u
#define AF_CAP   0x50u
#define AF_SIZE  6u

#define CLASS_NETWORK_OTHER 0x0280u

static void set16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static void set32(uint8_t *p, uint32_t v)
{
    set16(p, (uint16_t)v);
    set16(p + 2, (uint16_t)(v >> 16));
}

/* A 32-bit memory BAR: the low bits stay 0, which also states its type. */
static void add_bar(struct pci_config *pci, unsigned index, uint32_t size)
{
    set32(pci->mask + PCI_BASE_ADDRESS_0 + 4 * index, ~(size - 1));
}

void pci_config_init(struct pci_config *pci)
{
    uint8_t *d = pci->data;

    memset(pci, 0, sizeof(*pci));
    set16(d + PCI_VENDOR_ID, PVRDMA_PCI_VENDOR);
    set16(d + PCI_DEVICE_ID, PVRDMA_PCI_DEVICE);
    set16(d + PCI_STATUS, PCI_STATUS_CAP_LIST);
    set16(d + PCI_CLASS_DEVICE, CLASS_NETWORK_OTHER);
    set16(d + PCI_SUBSYSTEM_VENDOR_ID, PVRDMA_PCI_SUBSYSTEM_VENDOR);
    set16(d + PCI_SUBSYSTEM_ID, PVRDMA_PCI_SUBSYSTEM);
    d[PCI_CAPABILITY_LIST] = MSIX_CAP;

    set16(pci->mask + PCI_COMMAND, PCI_COMMAND_IO | PCI_COMMAND_MEMORY |
                                       PCI_COMMAND_MASTER | PCI_COMMAND_PARITY |
                                       PCI_COMMAND_SERR | PCI_COMMAND_INTX_DISABLE);
    pci->mask[PCI_CACHE_LINE_SIZE] = 0xff;
    pci->mask[PCI_LATENCY_TIMER] = 0xff;
    pci->mask[PCI_INTERRUPT_LINE] = 0xff;
    add_bar(pci, PVRDMA_BAR_MSIX, PVRDMA_BAR_MSIX_SIZE);
    add_bar(pci, PVRDMA_BAR_REG, PVRDMA_BAR_REG_SIZE);
    add_bar(pci, PVRDMA_BAR_UAR, VERBS_MAX_UAR * PVRDMA_PAGE_SIZE);

    d[MSIX_CAP] = PCI_CAP_ID_MSIX;
    d[MSIX_CAP + PCI_CAP_LIST_NEXT] = AF_CAP;
    set16(d + MSIX_CAP + PCI_MSIX_FLAGS, IRQ_VECTORS - 1);
    set16(pci->mask + MSIX_CAP + PCI_MSIX_FLAGS,
          PCI_MSIX_FLAGS_ENABLE | PCI_MSIX_FLAGS_MASKALL);
    set32(d + MSIX_CAP + PCI_MSIX_TABLE, PVRDMA_BAR_MSIX);
    set32(d + MSIX_CAP + PCI_MSIX_PBA, PVRDMA_BAR_MSIX_PBA | PVRDMA_BAR_MSIX);

    /* No transactions are ever pending: a reset is over when it is answered. */
    d[AF_CAP] = PCI_CAP_ID_AF;
    d[AF_CAP + PCI_AF_LENGTH] = AF_SIZE;
    d[AF_CAP + PCI_AF_CAP] = PCI_AF_CAP_TP | PCI_AF_CAP_FLR;
}

void pci_config_read(const struct pci_config *pci, uint32_t offset, uint32_t count,
                     uint8_t *data)
{
    memcpy(data, pci->data + offset, count);
}

bool pci_config_write(struct pci_config *pci, uint32_t offset, uint32_t count,
                      const uint8_t *data)
{
    uint32_t ctrl = AF_CAP + PCI_AF_CTRL - offset; /* in @data; beyond: before it */

    for (uint32_t i = 0; i < count; i++) {
        uint8_t *d = &pci->data[offset + i];
        uint8_t mask = pci->mask[offset + i];

        *d = (uint8_t)((*d & ~mask) | (data[i] & mask));
    }
    return ctrl < count && data[ctrl] & PCI_AF_CTRL_FLR;
}

bool pci_config_bus_master(const struct pci_config *pci)
{
    return pci->data[PCI_COMMAND] & PCI_COMMAND_MASTER;
}

void pci_config_set_bus_master(struct pci_config *pci, bool on)
{
    uint8_t *command = &pci->data[PCI_COMMAND];

    *command =
        (uint8_t)(on ? *command | PCI_COMMAND_MASTER : *command & ~PCI_COMMAND_MASTER);
}
