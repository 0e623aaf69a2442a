/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The PVRDMA device of one VM: BAR1 registers, the device shared region, the
 * command channel, event rings and doorbells.
 *
 * Register accesses and commands run on the main thread.  Event rings are
 * pushed to by any thread under event_ring->lock.  Doorbells arrive from the
 * VMM through the shared region (doorbell.h) or, from VMMs that do not know it,
 * as messages on the main thread.
 */
#ifndef PVRDMAD_DEVICE_H
#define PVRDMAD_DEVICE_H

#include <glib.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "pvrdma/abi.h"
#include "pvrdma/doorbell.h"

struct vm;

/* Number of UAR pages; the size of BAR2 is this times 4096. */
#define DEVICE_MAX_UAR 512u

/* Largest ring we take from DSR: the driver uses 4 pages (header included). */
#define DEVICE_RING_MAX_PAGES 64u

/*
 * A device-to-guest ring (async events, CQ notifications).  lock protects all
 * fields.  Positions are the device's own; the guest's words are only read to
 * see how far it has consumed.
 */
struct event_ring {
    pthread_mutex_t lock;
    bool active;                          /* between ACTIVATE and reset */
    bool held;                            /* bus master is off: no DMA for now */
    uint32_t npages;                      /* header page included */
    uint64_t page[DEVICE_RING_MAX_PAGES]; /* guest-physical */
    uint32_t n;                           /* the ABI's n, not a power of two */
    uint32_t slots;                       /* slots really in use: guard against overrun */
    uint32_t elem;                        /* bytes */
    uint32_t prod;
    uint64_t pushed, dropped;
};

struct device {
    struct vm *vm;

    /* Registers; main thread. */
    uint32_t dsr_low, dsr_high;
    uint32_t err, icr, imr;
    bool bus_master;
    bool dsr_valid;        /* caps were written */
    bool active;           /* CTL=ACTIVATE was accepted */
    bool stopped;          /* vm_pause() because bus master went off */
    struct pvrdma_dsr dsr; /* our copy of what the guest wrote */
    uint64_t cmd_slot, resp_slot;
    uint64_t commands, failed_commands; /* statistics */

    struct event_ring async;
    struct event_ring cqn;

    /*
     * CQs whose notification found the ring full; retried by the worker.
     * One bit per CQ handle; cqn.lock protects it.
     */
    uint64_t *cqn_deferred;
    _Atomic bool cqn_deferred_any;

    /* Doorbells: [0] written by the daemon itself, [1] shared with the VMM. */
    struct pvrdma_db_region *db_private; /* anonymous memory */
    struct pvrdma_db_region *db_shared;  /* memfd */
    int db_memfd;
    int db_eventfd; /* the VMM writes it; one per VM */
    _Atomic uint64_t bad_doorbells;
};

int device_init(struct device *dev, struct vm *vm, GError **errp);
void device_fini(struct device *dev);

/* BAR1, 32-bit aligned accesses (others: all-ones / ignored). */
uint32_t device_reg_read(struct device *dev, uint64_t offset);
void device_reg_write(struct device *dev, uint64_t offset, uint32_t value);

/* PCI_COMMAND bit 2.  Off: no DMA and no interrupts until it is on again. */
void device_set_bus_master(struct device *dev, bool on);

/*
 * DEVICE_RESET and CTL=RESET: destroys every object and drops every use of
 * guest memory before it returns.  DMA maps and eventfds stay.
 */
void device_reset(struct device *dev);

/* A doorbell that came as a message (VMM without the shared region). */
void device_doorbell(struct device *dev, uint64_t bar2_offset, uint32_t value);

/* Command channel: run the command in the slot.  Returns the ERR value. */
uint32_t command_execute(struct device *dev);

/* Initialise and free the rings and the doorbell region; device.c. */
void event_init(struct device *dev);
void event_fini(struct device *dev);
/*
 * Take over a ring's pages (page-aligned, checked) and go back to its start;
 * 2 <= npages <= DEVICE_RING_MAX_PAGES, elem: 4 or 8 bytes.  It stays inactive.
 */
void event_ring_setup(struct event_ring *ring, uint32_t npages, const uint64_t *page,
                      uint32_t elem);
/* All rings: let pushes reach the guest (@active), or hold them (@held). */
void event_set_active(struct device *dev, bool active);
void event_set_held(struct device *dev, bool held);
bool doorbell_init(struct device *dev, GError **errp);
void doorbell_fini(struct device *dev);
/* Forget every bit and armed CQ; no handle has an owner any more. */
void doorbell_reset(struct device *dev);

/*
 * Page directory walk: read @n page addresses behind @pdir_dma into @pages.
 * Returns 0, or an errno: EINVAL (n is 0 or over PVRDMA_PDIR_MAX_PAGES, an
 * address that is not page-aligned), EFAULT (a table is not in the DMA map).
 */
int pagedir_read(struct vm *vm, uint64_t pdir_dma, uint32_t n, uint64_t *pages);

/* Async event (ring, then vector 1).  Any thread; no lock held but qp/cq's. */
void event_async(struct vm *vm, enum pvrdma_event_type type, uint32_t info);

/*
 * CQ notification: into the ring; the caller raises PVRDMA_VEC_CQ afterwards
 * (once per batch).  Any thread.
 */
void event_cq_notify(struct vm *vm, uint32_t cq_handle);

/* Retry deferred notifications; the VM's worker.  True: raise the vector. */
bool event_cq_retry(struct vm *vm);

/* The CQ is gone: no deferred notification of it any more.  Main thread. */
void event_cq_forget(struct vm *vm, uint32_t cq_handle);

#endif /* PVRDMAD_DEVICE_H */
