/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * struct vm: one virtual machine as the daemon knows it.
 *
 * Threads.  The main thread (GLib main loop) does everything slow: sockets,
 * commands, attach and detach, the admin socket.  Worker threads move data.
 * A VM belongs to one worker; only that worker runs its send queues.
 *
 * Locking rules, for the whole daemon:
 *  - The token of a VM (vm_token_*) is held by its worker while it serves the
 *    VM's send queues, and by the main thread while it changes objects that the
 *    worker uses.  The worker only ever tries to take it, so it never sleeps
 *    there.  The token comes before every lock below.
 *  - qp->lock (receive queue, responder state, state changes), then cq->lock,
 *    then event_ring->lock.  Never two of a kind, never across a slice's copy
 *    (but a message of up to 4 KiB is copied under the receiver's qp->lock).
 *  - directory_lock is taken before nothing else: leaf lock.
 *  - Objects, MRs and memory maps are found through atomic pointers by any
 *    worker and freed by the main thread after datapath_quiesce().
 */
#ifndef PVRDMAD_VM_H
#define PVRDMAD_VM_H

#include <glib.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "config.h"
#include "datapath/datapath.h"
#include "device/device.h"
#include "frontend/guest_mem.h"
#include "frontend/irq.h"
#include "log.h"
#include "verbs/verbs.h"

struct vfu_conn;
struct vfu_listener;
struct discard;

struct vm {
    struct vm_config *cfg;         /* declared properties; never changes */
    struct vfu_listener *listener; /* the VM's socket; main thread */
    struct vfu_conn *conn;         /* attached VMM or NULL; main thread */
    struct discard *discard;       /* descriptors being closed; main thread */
    struct log_limit log;          /* log.c */
    uint64_t attaches, faults;     /* statistics; main thread */
    unsigned pauses;               /* vm_pause() calls not yet undone; main */
    bool admin_paused;             /* one of them is the administrator's */

    /* Below: valid while attached (between vm_attach and vm_detach). */
    bool attached;         /* main thread */
    struct guest_mem mem;  /* the VMM's DMA map */
    struct vm_irq irq;     /* MSI-X eventfds */
    struct device dev;     /* registers, DSR, event rings */
    struct verbs verbs;    /* object tables */
    struct vm_datapath dp; /* scheduling state; see datapath.h */

    /*
     * Set (by any thread, the SIGBUS handler included) when this VM must be
     * detached; the main thread does so at its next check.
     */
    _Atomic(const char *) fault;
};

/*
 * Make the VM's data path and device state for a new VMM connection.
 * Main thread.  Returns false and sets errp when resources are missing.
 */
bool vm_attach(struct vm *vm, GError **errp);

/*
 * Undo vm_attach: after return no worker touches anything of the VM, peers'
 * connections to it are cut, all objects, maps and descriptors are gone.
 */
void vm_detach(struct vm *vm);

/* Ask the main thread to detach the VM; @why is a string literal.  Any thread,
 * signal-safe. */
void vm_fault(struct vm *vm, const char *why);

/*
 * Stop the VM's data path at a slice border / let it go on.  Main thread.
 * Calls are counted, since there is more than one reason to stop a VM; both do
 * nothing while the VM is detached.
 */
void vm_pause(struct vm *vm);
void vm_resume(struct vm *vm);

/*
 * Once per process, before the first vm_add(): make the main loop act on
 * vm_fault().  vm_stop_process() undoes it after the last vm_remove().
 */
bool vm_init_process(GError **errp);
void vm_stop_process(void);

/*
 * Registry of declared VMs; main thread.  vm_add() starts to listen and takes
 * over @cfg in any case, also when it fails (name or socket in use, too many
 * VMs, no socket).  vm_remove() disconnects and forgets.
 */
struct vm *vm_add(struct vm_config *cfg, GError **errp);
void vm_remove(struct vm *vm);
struct vm *vm_find(const char *name);
GList *vm_all(void); /* of struct vm, in order of declaration; not to be freed */

#endif /* PVRDMAD_VM_H */
