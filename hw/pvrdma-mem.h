/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Guest memory of the pvrdma device: what the daemon may reach.
 */
#ifndef HW_RDMA_PVRDMA_MEM_H
#define HW_RDMA_PVRDMA_MEM_H

#include "hw/pci/pci_device.h"
#include "pvrdma-client.h"

/**
 * struct PVRDMAMem - keeps the daemon's DMA map in step with guest memory
 * @name: how messages call the device
 * @client: where the map goes
 * @listener: registered between pvrdma_mem_start() and pvrdma_mem_stop()
 * @devices: registered likewise: CPUs and memory that are plugged later
 * @ops: changes of the memory transaction under way, in their order
 * @maps: guest addresses (uint64_t) of what the daemon has accepted
 * @reported: names of memory whose problems were told, and when
 * @error: first problem; only used until pvrdma_mem_start() returns
 * @starting: problems go to @error and not to the log
 * @stopping: the connection is about to end, which unmaps everything
 *
 * All under the BQL.
 */
typedef struct PVRDMAMem {
    const char *name;
    PVRDMAClient *client;
    MemoryListener listener;
    DeviceListener devices;
    GArray *ops;
    GHashTable *maps;
    GHashTable *reported;
    Error *error;
    bool starting;
    bool stopping;
} PVRDMAMem;

/* Do the device's addresses pass through a vIOMMU?  Not to be supported. */
bool pvrdma_mem_check_iommu(PCIDevice *dev, Error **errp);

/**
 * pvrdma_mem_start: give the daemon all guest memory, now and in future
 * @name: must outlive @mem
 *
 * Returns: false, with @errp set and nothing registered, if the guest's memory
 * cannot be shared or the daemon does not take it.
 */
bool pvrdma_mem_start(PVRDMAMem *mem, PVRDMAClient *client, PCIDevice *dev,
                      const char *name, Error **errp);

/*
 * Stop following guest memory.  The daemon keeps its maps until the connection
 * ends: reset the device first, and close the connection right after.
 */
void pvrdma_mem_stop(PVRDMAMem *mem);

#endif
