/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The pvrdma device looks for another daemon.
 */
#ifndef HW_RDMA_PVRDMA_RECONNECT_H
#define HW_RDMA_PVRDMA_RECONNECT_H

#include "exec/hwaddr.h"
#include "qemu/timer.h"
#include "pvrdma-client.h"

typedef struct PVRDMADevice PVRDMADevice;

/**
 * struct PVRDMAReconnect - the search; under the BQL
 * @timer: the next attempt, or the end of one that is under way
 * @next: that one's connection: VERSION is not answered yet; or NULL
 * @pause_ms: until the next attempt
 * @since_ms: when the last daemon was found that fits
 * @refusal: what was said of the last daemon that did not fit, or NULL
 */
typedef struct PVRDMAReconnect {
    QEMUTimer *timer;
    PVRDMAClient *next;
    unsigned pause_ms;
    int64_t since_ms;
    char *refusal;
} PVRDMAReconnect;

/* Will there be a search when the daemon is lost? */
bool pvrdma_reconnect_wanted(const PVRDMADevice *s);

/* Search, for nothing can go on with the daemon there was. */
void pvrdma_reconnect_start(PVRDMADevice *s);

/* End it; also if there is none. */
void pvrdma_reconnect_end(PVRDMADevice *s);

/*
 * Is this register write the first of the guest's for another daemon, which is
 * there?
 */
bool pvrdma_reconnect_begins(const PVRDMADevice *s, hwaddr addr,
                             uint32_t value);

/* The device, which is in reset, has not failed any more. */
void pvrdma_reconnect_use(PVRDMADevice *s);

#endif
