/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The pvrdma device in QEMU: what its parts share.
 */
#ifndef HW_RDMA_PVRDMA_H
#define HW_RDMA_PVRDMA_H

#include "hw/pci/pci_device.h"
#include "migration/vmstate.h"
#include "qapi/qapi-types-pvrdma.h"
#include "system/runstate.h"
#include "pvrdma-client.h"
#include "pvrdma-doorbell.h"
#include "pvrdma-irq.h"
#include "pvrdma-mem.h"
#include "pvrdma-reconnect.h"
#include "pvrdma/abi.h"

#define TYPE_PVRDMA "pvrdma"
OBJECT_DECLARE_SIMPLE_TYPE(PVRDMADevice, PVRDMA)

/**
 * struct PVRDMADevice - one adapter; all under the BQL
 * @socket: property: the VM's socket, or NULL for the default
 * @vectors: property: MSI-X vectors
 * @regs_size: property: of BAR1
 * @uar_size: property: of BAR2
 * @flr: property: offer function-level reset, on an express bus
 * @reconnect: property: when the daemon is lost, look for another
 * @name: how messages call the device: its id, or its QOM path
 * @address: where the daemon is
 * @client: connection to the daemon, NULL before and after realize
 * @migration_blocker: set if the daemon cannot migrate the device
 * @able: it can
 * @state: the device's state (VFIO_USER_MIG_*), if @able
 * @loaded: it is that of another time or place, and has not run here
 * @ran_on: the device was not stopped when the VM was
 * @data_size: how long its state was when the daemon was asked last
 * @best_rate: bytes per second, the most that this migration has moved
 * @held_back: it waits until the state fits into its time
 * @told_held: the user has been told
 * @run_state: stops and starts the device with the VM, if @able
 * @command: PCI_COMMAND as the daemon knows it
 * @dsr_low: last write to DSRLOW
 * @dsr: guest-physical address of the device shared region
 * @dsr_valid: the guest has given one and has not reset the device since
 * @lost: the daemon is lost that the guest has used: the adapter has failed
 * @hold: and that daemon may not be gone: the VM must not run
 * @told: the guest has been told
 * @fresh: @client is a connection to another, which the guest uses when it has
 *         reset the adapter
 * @again: how that one is looked for
 * @lost_err: what the ERR register reads when @lost
 * @lost_bh: tells the guest that the daemon is gone
 * @vm_change: keeps the VM stopped while @hold
 * @machine_done: looks for what was made after this device
 */
struct PVRDMADevice {
    PCIDevice parent_obj;

    PVRDMASocket *socket;
    uint32_t vectors;
    uint32_t regs_size;
    uint32_t uar_size;
    bool flr;
    bool reconnect;

    char *name;
    SocketAddress *address;
    MemoryRegion regs;
    MemoryRegion uar;
    PVRDMAClient *client;
    PVRDMADoorbell doorbell;
    PVRDMAIrq irq;
    PVRDMAMem mem;
    Error *migration_blocker;
    bool able;
    uint32_t state;
    bool loaded;
    bool ran_on;
    uint64_t data_size;
    double best_rate;
    bool held_back;
    bool told_held;
    VMChangeStateEntry *run_state;
    uint16_t command;

    uint32_t dsr_low;
    uint64_t dsr;
    bool dsr_valid;
    bool lost;
    bool hold;
    bool told;
    bool fresh;
    PVRDMAReconnect again;
    uint32_t lost_err;
    QEMUBH *lost_bh;
    VMChangeStateEntry *vm_change;
    Notifier machine_done;
};

/* pvrdma.c */

/* Tell the daemon what config space says now, which changed by no write. */
bool pvrdma_follow_config(PVRDMADevice *s, Error **errp);
/* Tell another daemon all of it. */
bool pvrdma_repeat_config(PVRDMADevice *s, Error **errp);

/* pvrdma-attach.c: a daemon that has just been connected to. */

/*
 * Does the daemon fit the device as its properties say, and if it had others
 * before, as the guest knows it?  Then its doorbell region is mapped.
 */
bool pvrdma_attach(PVRDMADevice *s, Error **errp);

/* pvrdma-migrate.c: stopping, saving and loading the device. */

extern const VMStateDescription pvrdma_vmstate;

bool pvrdma_migrate_setup(PVRDMADevice *s, Error **errp);
/* Can another daemon do what the one could that the device was made with? */
bool pvrdma_migrate_fits(PVRDMADevice *s, Error **errp);
/* Undoes as much of it as was done. */
void pvrdma_migrate_cleanup(PVRDMADevice *s);
/* The daemon has reset the device. */
void pvrdma_migrate_reset(PVRDMADevice *s);

/* pvrdma-lost.c: the device without its daemon. */

/* Tell the monitor's clients how the connection is. */
void pvrdma_lost_tell(PVRDMADevice *s);

/* When the connection is lost. */
void pvrdma_lost_report(void *opaque, const char *reason, bool gone);

/* Be ready for the loss of the connection, from now on. */
void pvrdma_lost_watch(PVRDMADevice *s);
/* The end of it; also if it never began. */
void pvrdma_lost_unwatch(PVRDMADevice *s);

/* What BAR1 does when the connection is lost. */
uint32_t pvrdma_lost_read(PVRDMADevice *s, hwaddr addr);
void pvrdma_lost_write(PVRDMADevice *s, hwaddr addr);

/*
 * To be called when the guest does what would end all DMA of the device, and
 * the connection is lost.
 */
void pvrdma_lost_barrier(PVRDMADevice *s);

#endif
