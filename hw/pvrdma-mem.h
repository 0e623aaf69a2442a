/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Guest memory of the pvrdma device: what the daemon may reach.
 */
#ifndef HW_RDMA_PVRDMA_MEM_H
#define HW_RDMA_PVRDMA_MEM_H

#include "hw/pci/pci_device.h"
#include "pvrdma-client.h"

/**
 * struct PVRDMAPart - guest memory of one backend at one place
 * @mr: the backend's, and where in it
 * @addr: guest-physical
 */
typedef struct PVRDMAPart {
    MemoryRegion *mr;
    uint64_t offset;
    uint64_t addr;
    uint64_t size;
} PVRDMAPart;

/* PCs have memory below 4 GiB, and above it: a range of the log for each. */
#define PVRDMA_LOG_RANGES 2

/**
 * struct PVRDMALog - the daemon's log, if its bits are shared
 * @bits: a bit per page from @addr on, atomic; NULL: they are not
 */
typedef struct PVRDMALog {
    uint64_t *bits;
    uint64_t addr;
    uint64_t size;
} PVRDMALog;

/**
 * struct PVRDMAMem - keeps the daemon's DMA map in step with guest memory
 * @name: how messages call the device
 * @client: where the map goes; from one daemon to the next a lost one
 * @listener: registered between pvrdma_mem_start() and pvrdma_mem_stop()
 * @devices: registered while @watching: CPUs and memory that are plugged later
 * @ops: changes of the memory transaction under way, in their order
 * @maps: what the daemon has accepted: guest addresses and sizes (uint64_t)
 * @reported: names of memory whose problems were told, and when
 * @error: first problem; only used until pvrdma_mem_start() returns
 * @can_log: the daemon can tell what it writes
 * @logging: and does; see pvrdma-dirty.c
 * @share_log: its log is to be shared, if the daemon can do that
 * @log: and what is
 * @starting: problems go to @error and not to the log
 * @stopping: the connection is about to end, which unmaps everything
 * @watching: between pvrdma_mem_watch() and pvrdma_mem_unwatch()
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
    bool can_log;
    bool logging;
    bool share_log;
    PVRDMALog log[PVRDMA_LOG_RANGES];
    bool starting;
    bool stopping;
    bool watching;
} PVRDMAMem;

/* Do the device's addresses pass through a vIOMMU?  Not to be supported. */
bool pvrdma_mem_check_iommu(PCIDevice *dev, Error **errp);

/**
 * pvrdma_mem_start: give the daemon all guest memory, now and in future
 * @name: must outlive @mem
 * @can_log: the daemon has the DMA_LOGGING features
 *
 * Returns: false, with @errp set and nothing registered, if the guest's memory
 * cannot be shared or the daemon does not take it.
 */
bool pvrdma_mem_start(PVRDMAMem *mem, PVRDMAClient *client, PCIDevice *dev,
                      const char *name, bool can_log, Error **errp);

/*
 * Stop following guest memory.  The daemon keeps its maps until the connection
 * ends: reset the device first, and close the connection right after.
 */
void pvrdma_mem_stop(PVRDMAMem *mem);

/*
 * Object to what is plugged that no daemon could reach: for the device's life,
 * with or without a daemon, after the first pvrdma_mem_start().
 */
void pvrdma_mem_watch(PVRDMAMem *mem);
/* The end of it; also if it never began. */
void pvrdma_mem_unwatch(PVRDMAMem *mem);

/* pvrdma-dirty.c: the log of what the daemon writes. */

bool pvrdma_dirty_start(PVRDMAMem *mem, Error **errp);
void pvrdma_dirty_stop(PVRDMAMem *mem);
/* Let go of the daemon's log, if it is shared. */
void pvrdma_dirty_unmap(PVRDMAMem *mem);
/* Tell QEMU what was written to @part since the last time. */
void pvrdma_dirty_sync(PVRDMAMem *mem, const PVRDMAPart *part);
/* Nobody knows: all of it. */
void pvrdma_dirty_all(PVRDMAMem *mem, const PVRDMAPart *part);
/* The connection is lost, and with it the log: a migration must fail. */
void pvrdma_dirty_lost(PVRDMAMem *mem);

#endif
