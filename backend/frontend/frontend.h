/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The vfio-user server: one listening socket per declared VM, at most one
 * connection each.  Main thread only.
 */
#ifndef PVRDMAD_FRONTEND_H
#define PVRDMAD_FRONTEND_H

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#include "handover/handover.h"

struct vm;
struct vfu_listener;
struct vfu_conn;
struct discard;

/*
 * Listen on vm->cfg->socket (unlinking a stale socket, mode 0660).  Accepting a
 * client and its VERSION calls vm_attach(); EOF, a protocol violation or a
 * fault calls vm_detach().  Returns NULL with errp.
 */
struct vfu_listener *frontend_listen(struct vm *vm, GError **errp);
void frontend_unlisten(struct vfu_listener *l);

/*
 * Drop the VM's connection, if any (vm_detach included).  In a coroutine, which does
 * not hold vm->ops, it is gone on return; else that may take until later.
 */
void frontend_disconnect(struct vm *vm, const char *why);

/*
 * Serve an already connected vfio-user client of @vm on @fd (taken over).
 * False if the VM has a connection; @fd is closed then.  For tests and for
 * sockets that were accepted elsewhere.
 */
bool frontend_adopt(struct vm *vm, int fd);

/* @fn is called whenever a VM has lost its connection.  It may not free the VM. */
void frontend_on_left(void (*fn)(void));

/* ---- a daemon that takes this one's place (restart_conn.c) ---- */

/*
 * Nothing of the VM's client is read any more, and no other one taken / they are again,
 * from the main loop.  A message in work goes on to its end: with vm->ops, of a
 * connection that is not being closed, none is.
 */
void frontend_freeze(struct vm *vm);
void frontend_thaw(struct vm *vm);
/* That of the listener is sockfile.h's. */
void frontend_listener_hand_over(const struct vfu_listener *l, struct handover_out *h);

/* Is the VM's connection one that stays? */
bool frontend_connected(const struct vm *vm);
/*
 * The VM's connection, if it stays, and what its VMM shares with us, which can be handed
 * over (guest/restart.h); all frozen.
 */
void frontend_hand_over(struct vm *vm, struct handover_out *h);
/*
 * The same, to a VM without a connection, which is frozen then and attached, its data
 * path paused, if it was.  *memfd is the former doorbell region, or -1.  False: @s has
 * failed; the connection, if there is one by now, is to be ended.
 */
bool frontend_take_over(struct vm *vm, struct handover_in *h, struct state_in *s,
                        int *memfd);

/* How many descriptors of the VM are still to be closed; NULL: none.  fd_reaper.c */
unsigned discard_waiting(const struct discard *d);

/* The VM goes: forget what of its descriptors is still being closed. */
void discard_forget(struct discard **d);

/*
 * What waits to be closed, for another program that takes this one's place: from
 * discard_stop() on none of it is, until discard_go_on(), with frontend_closing_go_on()
 * of each VM.  That of VMs that were removed is apart.  Taken over by NULL: the VM is
 * lost.
 */
void discard_stop(void);
void discard_go_on(void);
/* Is memory being freed?  After discard_stop() none begins to be. */
bool discard_is_freeing(void);
void frontend_closing_go_on(struct vm *vm);
void frontend_closing_hand_over(struct vm *vm, struct handover_out *h);
void frontend_closing_take_over(struct vm *vm, struct handover_in *h, struct state_in *s);
void discard_forgotten_hand_over(struct handover_out *h);
void discard_forgotten_take_over(struct handover_in *h, struct state_in *s);

/* The same of clients of the VM that were not served, and that they go.  refuse.c */
unsigned refusals_closing(const struct vm *vm);
void refusals_forget(struct vm *vm);

/* ---- migration.c ---- */

struct migration;

/* What became of the last migration of a VM, and where it is in one now. */
struct migration_status {
    const char *state; /* "running", "stop", "stop-copy", "resuming", "error" */
    enum { MIGRATION_NONE, MIGRATION_SAVED, MIGRATION_LOADED } kind; /* the last stream */
    uint64_t bytes; /* of it; 0: of one that is still coming nobody knows */
    uint64_t done;  /* so much of it has been read or has come */
    /* How long its parts took; 0: not yet, or not here. */
    uint64_t quiesce_us, save_us, load_us, resume_us;
    /*
     * For how long the VM has stood still: since it was to stop here, or its state began
     * to come, until it ran here again, was heard to run elsewhere, or left.
     */
    uint64_t still_us;
    char error[192]; /* why it failed; "": it did not */
};

void migration_get_status(const struct vm *vm, struct migration_status *st);

/* The VM goes. */
void migration_forget(struct migration **m);

#endif /* PVRDMAD_FRONTEND_H */
