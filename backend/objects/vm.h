/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * struct vm: one virtual machine as the daemon knows it.  Data only; vm/attach.c brings
 * its parts together and apart.
 *
 * Threads.  The main thread (GLib main loop) does everything slow: sockets,
 * commands, attach and detach, the admin socket.  Worker threads move data.
 * A VM belongs to one worker; only that worker runs its send queues.
 *
 * Of the main thread, several coroutines (coro.h) may be under way at a time.  What
 * changes a VM as a whole or its objects - a message that may wait, attach, detach,
 * an administrator's pause, removal - holds `ops` from its beginning to its end, so
 * that a wait in the middle shows to the VM's next command as nothing.  Who only
 * looks, without waiting, needs it not.
 *
 * Locking rules, for the whole daemon:
 *  - vm->ops of one VM, never of two; it is the one that is held across waits.
 *  - The token of a VM (vm_token_*) is held by its worker while it serves the
 *    VM's send queues, and by the main thread while it changes objects that the
 *    worker uses.  The worker only ever tries to take it, so it never sleeps
 *    there.  The token comes before every lock below, and the main thread never
 *    lets its loop turn (coro.h) while it holds one.
 *  - qp->lock (receive queue, responder state, state changes), then srq->lock, then
 *    cq->lock, then event_ring->lock or dp->hold_lock.  Never two of a kind, never across
 *    a slice's copy (but a message of up to 4 KiB is copied under the receiver's
 *    qp->lock).
 *  - Objects, MRs and memory maps are found through atomic pointers by any
 *    worker and freed by the main thread after grace_wait().
 */
#ifndef PVRDMAD_VM_H
#define PVRDMAD_VM_H

#include <glib.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/coro.h"
#include "base/log.h"
#include "config/config.h"
#include "guest/guest.h"
#include "objects/objects.h"
#include "objects/vm_datapath.h"

struct device;
struct discard;
struct migration;
struct refusals;
struct vfu_conn;
struct vfu_listener;

/* Which VM it is on all hosts, and which of its places this is. */
struct vm_identity {
    uint64_t owner[2];   /* random: whose addresses they are, on whichever host */
    uint64_t generation; /* how often it has changed its host, from 1 */
    uint8_t key[32];     /* random: who has its state knows it; zero: nobody yet */
    uint8_t proof[16];   /* of its place, by the key (directory/duplicates.c) ... */
    uint64_t proved;     /* ... of this generation; 0: not made yet */
};

struct vm {
    struct vm_config *cfg;         /* declared properties; of a VM with a VMM they hold */
    struct vm_config *next_cfg;    /* for the time after this VMM, or NULL; main thread */
    bool retiring;                 /* then it goes: the key file has it no more */
    uint32_t id;                   /* while attached: its place in vm_by_id() */
    struct vfu_listener *listener; /* the VM's socket; main thread */
    struct vfu_conn *conn;         /* attached VMM or NULL; main thread */
    struct discard *discard;       /* descriptors being closed; main thread */
    struct refusals *refusals;     /* clients not served, or NULL; main thread */
    struct migration *migration;   /* the last one, or NULL; main thread */
    uint64_t serial;               /* ascending in order of declaration */
    uint64_t attaches, faults;     /* statistics; main thread */
    uint64_t command_ns;           /* main thread's time for its messages */
    unsigned pauses;               /* datapath_pause() calls not yet undone; main */
    bool admin_paused;             /* one of them is the administrator's */
    bool gone;                     /* being removed: nobody begins anything with it */

    /* What changes the VM as a whole or its objects, see above; main thread. */
    struct coro_mutex ops;

    struct guest guest; /* log and fault always; the rest while attached */

    /* Below: valid while attached (between vm_attach and vm_detach). */
    bool attached; /* main thread */
    struct vm_identity identity;
    bool moved;             /* it runs elsewhere: not here again; main thread */
    bool gave_way;          /* it ran, and so it does elsewhere; main thread */
    gint64 moved_at;        /* since then, g_get_monotonic_time() */
    struct device *dev;     /* registers, DSR, command channel */
    struct objects objects; /* object tables */
    struct vm_datapath dp;  /* scheduling state */
};

#define log_vm(level, vm, ...) log_guest(level, &(vm)->guest, __VA_ARGS__)

static inline struct vm *vm_of_guest(struct guest *g)
{
    return (struct vm *)(void *)((char *)g - offsetof(struct vm, guest));
}

/*
 * Attached VMs by number.  vm_enter() gives @vm one, false: there is none left; after
 * vm_leave() and a grace period no worker knows the VM by its number.  Main thread.
 */
bool vm_enter(struct vm *vm);
void vm_leave(struct vm *vm);
/* Any worker, until its quiescent point.  NULL: nobody has that number. */
struct vm *vm_by_id(uint32_t id);

/* A declared VM; takes over @cfg.  Main thread. */
struct vm *vm_new(struct vm_config *cfg);
void vm_free(struct vm *vm);

#endif /* PVRDMAD_VM_H */
