/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A guest, as far as the daemon may touch it: its memory, its interrupts, its
 * event rings, the doorbell region it shares with its VMM.  Nothing here knows
 * what a VM or a verbs object is.
 *
 * This room uses grace periods and the log, nothing else of the daemon.
 */
#ifndef PVRDMAD_GUEST_H
#define PVRDMAD_GUEST_H

#include <glib.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/log.h"
#include "guest/doorbells.h"
#include "guest/events.h"
#include "guest/irq.h"
#include "guest/mem.h"

struct guest {
    struct log_subject log; /* its name, and how much was said about it */
    struct guest_mem mem;   /* the VMM's DMA map */
    struct guest_irq irq;   /* MSI-X eventfds */
    struct guest_events events;
    struct guest_doorbells db;

    /*
     * Why this guest must be let go: set once, by any thread, the SIGBUS handler
     * included; the main thread clears it when that is done.
     */
    _Atomic(const char *) fault;
};

/*
 * The guest cannot be served any more; @why is a string literal.  The main loop
 * hears of it (guest_on_fault).  Any thread, signal-safe.
 */
void guest_fault(struct guest *g, const char *why);

/*
 * Has it a fault?  Its memory may be zeros then, so what is carried for it is to end
 * soon (see guest_believed()).  Any thread.
 */
static inline bool guest_faulted(const struct guest *g)
{
    return atomic_load_explicit(&g->fault, memory_order_acquire) != NULL;
}

/*
 * Is what was read in its memory before this call what the guest has there, and was it
 * not zeros in the place of a page that is gone?  Whoever passes bytes on, or acts on a
 * number, asks first.  Any thread.
 */
static inline bool guest_believed(const struct guest *g)
{
    atomic_thread_fence(memory_order_acquire);
    return !guest_faulted(g);
}

/*
 * Have @handler called by the main loop when any guest was given a fault since the
 * last call; it has to look at each guest's.  Once, before threads start; false
 * with errp.  guest_fault_stop() undoes it.
 */
bool guest_on_fault(void (*handler)(void), GError **errp);
void guest_fault_stop(void);

#define log_guest(level, g, ...) log_about(level, &(g)->log, __VA_ARGS__)

#endif /* PVRDMAD_GUEST_H */
