/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * PCI configuration space of the device, as the VMM sees it.  Main thread.
 */
#ifndef PVRDMAD_PCI_CONFIG_H
#define PVRDMAD_PCI_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#define PCI_CONFIG_SIZE 256u

struct pci_config {
    uint8_t data[PCI_CONFIG_SIZE];
    uint8_t mask[PCI_CONFIG_SIZE]; /* bits the guest may change */
};

void pci_config_init(struct pci_config *pci);

/* [offset, offset + count) lies within the space. */
void pci_config_read(const struct pci_config *pci, uint32_t offset, uint32_t count,
                     uint8_t *data);
/* True: a function-level reset is asked for. */
bool pci_config_write(struct pci_config *pci, uint32_t offset, uint32_t count,
                      const uint8_t *data);

bool pci_config_bus_master(const struct pci_config *pci);
void pci_config_set_bus_master(struct pci_config *pci, bool on);

#endif /* PVRDMAD_PCI_CONFIG_H */
