/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Survival of page faults in what a VMM can take away: guest memory, its dirty log and
 * the doorbell region.  Private to mem.c, dirty.c, doorbells.c and tests.
 */
#ifndef PVRDMAD_SIGBUS_H
#define PVRDMAD_SIGBUS_H

#include <stdbool.h>
#include <stddef.h>

struct guest;

/* Most file mappings of all VMs together. */
#define SIGBUS_MAX_GUARDS 32768u

/* ... and each VM's dirty log, doorbell region, and one that is about to replace that. */
#define SIGBUS_SLOTS (SIGBUS_MAX_GUARDS + 3 * 1024u)

/* Pages of a guard that are covered one by one; then the rest is, in one piece. */
#define SIGBUS_MAX_COVERS 64u

/* Install the handler; further calls do nothing. */
void sigbus_init(void);

/*
 * Guard [start, start + len): a fault there is answered with anonymous memory,
 * @page bytes at a time (a power of two that divides start and len), and with
 * guest_fault(@guest).  Main thread.  Returns a slot number or -1 (table full).
 */
int sigbus_guard(void *start, size_t len, size_t page, struct guest *guest);

/*
 * End a guard.  No thread touches the range any more, and it is still mapped, so that
 * nobody else's memory can lie there.  Main thread.
 */
void sigbus_unguard(int slot);

#endif /* PVRDMAD_SIGBUS_H */
