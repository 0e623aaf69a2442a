/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Doorbells of the pvrdma device: BAR2 writes become bits in shared memory.
 */
#ifndef HW_RDMA_PVRDMA_DOORBELL_H
#define HW_RDMA_PVRDMA_DOORBELL_H

#include "pvrdma/doorbell.h"

struct Error;
struct PVRDMAClient;

/**
 * struct PVRDMADoorbell - the daemon's doorbell region
 * @region: mapped memory of the daemon; NULL: send messages instead
 * @eventfd: wakes the daemon's worker
 */
typedef struct PVRDMADoorbell {
    struct pvrdma_db_region *region;
    int eventfd;
} PVRDMADoorbell;

/* pvrdma-doorbell-region.c */

/**
 * pvrdma_doorbell_open: map the doorbell region, if the daemon has one
 * @num_regions: as the daemon says
 *
 * Returns: false with @errp set if there is one but it cannot be used.
 */
bool pvrdma_doorbell_open(PVRDMADoorbell *db, struct PVRDMAClient *c,
                          uint32_t num_regions, struct Error **errp);
void pvrdma_doorbell_close(PVRDMADoorbell *db);

/* pvrdma-doorbell.c */

/**
 * pvrdma_doorbell_ring: what a 32-bit write to BAR2 does
 * @offset: in BAR2
 *
 * Only to be called if @db has a region.
 *
 * Returns: false if the daemon may not have noticed: tell it by a message.
 */
bool pvrdma_doorbell_ring(PVRDMADoorbell *db, uint64_t offset, uint32_t value);

/* Does this write only announce a poll of a CQ?  Nobody has to know. */
bool pvrdma_doorbell_is_poll(uint64_t offset, uint32_t value);

#endif
