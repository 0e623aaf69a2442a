/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vfio-user client of the pvrdma device: typed calls.
 *
 * Each function is one command of the protocol (SET_IRQS: as few as the
 * daemon's limit of descriptors allows), with all checks of the answer that do
 * not depend on the device.  They fail if the daemon refuses, or if the
 * connection is or was lost (see pvrdma_client_lost()).  The BQL must be held.
 */
#ifndef HW_RDMA_PVRDMA_CALLS_H
#define HW_RDMA_PVRDMA_CALLS_H

#include "pvrdma-client.h"

/**
 * struct PVRDMARegion - what the daemon says of one region
 * @flags: VFIO_REGION_INFO_FLAG_*
 * @size: bytes; 0: no such region
 * @offset: where the region begins in the file behind @fd
 * @type: type and @subtype of a device-specific region, or 0
 * @sparse: only parts of it may be mapped
 * @fd: to be closed by the caller; -1 unless @flags has MMAP
 */
typedef struct PVRDMARegion {
    uint32_t flags;
    uint64_t size;
    uint64_t offset;
    uint32_t type;
    uint32_t subtype;
    bool sparse;
    int fd;
} PVRDMARegion;

bool pvrdma_call_device_info(PVRDMAClient *c, struct vfio_user_device_info *out,
                             Error **errp);
bool pvrdma_call_region_info(PVRDMAClient *c, uint32_t index,
                             PVRDMARegion *region, Error **errp);
/* Number of interrupts behind @index, or -1 with @errp set. */
int64_t pvrdma_call_irq_count(PVRDMAClient *c, uint32_t index, Error **errp);
/* The one ioeventfd that stands for all of @region, or -1 with @errp set. */
int pvrdma_call_io_fd(PVRDMAClient *c, uint32_t region, Error **errp);

/* Read or write @count (at most 8) bytes of a region. */
bool pvrdma_call_region_read(PVRDMAClient *c, uint32_t region, uint64_t offset,
                             void *data, uint32_t count, Error **errp);
bool pvrdma_call_region_write(PVRDMAClient *c, uint32_t region, uint64_t offset,
                              const void *data, uint32_t count, Error **errp);
/* The same without waiting until it is done; a refusal shows nowhere. */
void pvrdma_call_region_post(PVRDMAClient *c, uint32_t region, uint64_t offset,
                             const void *data, uint32_t count);

bool pvrdma_call_reset(PVRDMAClient *c, Error **errp);

/* Hand over the eventfds of MSI-X vectors 0 to @nfds - 1. */
bool pvrdma_call_set_irqs(PVRDMAClient *c, const int *fds, size_t nfds,
                          Error **errp);
/* Take them all back. */
bool pvrdma_call_disable_irqs(PVRDMAClient *c, Error **errp);

/*
 * pvrdma-calls-migration.c.  These return 0, the daemon's errno (negative) if
 * it refuses, and -EIO if the connection is or was lost.
 */

/* Has the daemon the feature of @which, with the methods named there? */
int pvrdma_call_probe(PVRDMAClient *c, uint32_t which);
/* What it can do of migration, VFIO_USER_MIGRATION_*. */
int pvrdma_call_migration(PVRDMAClient *c, uint64_t *flags);
/* How long its state would be by now; 0 if that cannot be had. */
int pvrdma_call_data_size(PVRDMAClient *c, uint64_t *size);
/* The device's state, VFIO_USER_MIG_*; ERROR if that cannot be had. */
int pvrdma_call_get_state(PVRDMAClient *c, uint32_t *state);
/* Change it; done on return. */
int pvrdma_call_set_state(PVRDMAClient *c, uint32_t state);
/* RESUMING: what comes was saved. */
int pvrdma_call_put_back(PVRDMAClient *c);

/* Log what is written to these ranges of guest memory; every store from now. */
int pvrdma_call_log_start(PVRDMAClient *c, uint64_t page_size,
                          const struct vfio_user_log_range *ranges,
                          uint32_t n);
/*
 * The same, of a log that is shared (pvrdma/dirty.h): the descriptor of the
 * file with its bits in *@fd, to be closed by the caller.
 */
int pvrdma_call_log_share(PVRDMAClient *c, uint64_t page_size,
                          const struct vfio_user_log_range *ranges,
                          uint32_t n, int *fd);
int pvrdma_call_log_stop(PVRDMAClient *c);
/* Fetch and clear it: a bit for each page of [@addr, @addr + @size). */
int pvrdma_call_log_report(PVRDMAClient *c, uint64_t addr, uint64_t size,
                           uint64_t page_size, uint64_t *bits);

/*
 * The next bytes of the device's state, up to @max.  Returns how many: fewer
 * are the end.
 */
ssize_t pvrdma_call_state_read(PVRDMAClient *c, void *data, uint32_t max);
/* Hand over the next bytes of the state that the device is to have. */
int pvrdma_call_state_write(PVRDMAClient *c, const void *data, uint32_t size);

#endif
