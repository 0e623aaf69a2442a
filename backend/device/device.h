/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The PVRDMA device of one VM: BAR1 registers, the device shared region, the
 * command channel, and doorbells that come as messages.  Main thread.
 */
#ifndef PVRDMAD_DEVICE_H
#define PVRDMAD_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/state_stream.h"
#include "objects/vm.h"
#include "verbs/verbs.h"

struct device {
    struct vm *vm;

    /* Registers; main thread. */
    uint32_t dsr_low, dsr_high;
    uint32_t err, icr, imr;
    bool bus_master;
    bool dsr_valid;        /* caps were written */
    bool told_not_shared;  /* the log has it */
    bool active;           /* CTL=ACTIVATE was accepted */
    bool stopped;          /* datapath_pause() since bus master went off */
    struct pvrdma_dsr dsr; /* our copy of what the guest wrote */
    uint64_t cmd_slot, resp_slot;
    uint64_t commands, failed_commands; /* statistics */
};

/* The device of @vm, in reset.  Bus mastering is off. */
struct device *device_new(struct vm *vm);
void device_free(struct device *dev);

/* BAR1, 32-bit aligned accesses (others: all-ones / ignored). */
uint32_t device_reg_read(struct device *dev, uint64_t offset);
void device_reg_write(struct device *dev, uint64_t offset, uint32_t value);

/*
 * PCI_COMMAND bit 2.  Off: no DMA and no interrupts until it is on again; and of a device
 * that was active, the data path stands still until device_go_on() or a reset.
 */
void device_set_bus_master(struct device *dev, bool on);
/* The guest has shown that it knows the device: it gave a command. */
void device_go_on(struct device *dev);

/*
 * DEVICE_RESET and CTL=RESET: destroys every object and drops every use of
 * guest memory before it returns.  DMA maps and eventfds stay.
 */
void device_reset(struct device *dev);

/*
 * Registers and the DSR.  Loading is for a device in reset, with the data path paused;
 * what is in guest memory is not looked at, since that may come later.  A device whose
 * bus mastering went off while it was active pauses once more.
 */
void device_save(const struct device *dev, struct state_out *s);
void device_load(struct device *dev, struct state_in *s);
/* What the extension window tells the guest, which must not become less. */
void device_offers_save(const struct device *dev, struct state_out *s);
void device_offers_load(const struct device *dev, struct state_in *s);
/* "feature 0x1" and an end of line for each that a device may have. */
void device_offers_names(GString *text);

/*
 * A doorbell that came as a message (VMM without the shared region).  @posted: the
 * guest goes on without waiting for it.
 */
void device_doorbell(struct device *dev, uint64_t bar2_offset, uint32_t value,
                     bool posted);

/* The command ADD_VECTOR, which is about events, not about objects. */
verbs_command device_add_vector;

/* Command channel: run the command in the slot.  Returns the ERR value. */
uint32_t command_execute(struct device *dev);

#endif /* PVRDMAD_DEVICE_H */
