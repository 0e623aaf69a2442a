/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The device's states in a migration, and its state as a stream (migration.c): what the
 * parts of frontend/ share.  Main thread.
 */
#ifndef PVRDMAD_MIGRATION_H
#define PVRDMAD_MIGRATION_H

#include "base/state_stream.h"
#include "frontend/conn.h"
#include "frontend/feature.h"

/* MIG_DEVICE_STATE; setting it needs vm->ops, and may wait. */
int migration_get_state(struct vfu_conn *c, const struct vfu_feature *f,
                        struct vfu_reply *r);
int migration_set_state(struct vfu_conn *c, const struct vfu_feature *f,
                        struct vfu_reply *r);

/* MIG_DATA_SIZE: how long the stream would be by now. */
int migration_get_size(struct vfu_conn *c, const struct vfu_feature *f,
                       struct vfu_reply *r);

/* What comes was saved (PVRDMA_FEATURE_PUT_BACK). */
int migration_put_back(struct vfu_conn *c, const struct vfu_feature *f,
                       struct vfu_reply *r);

/* MIG_DATA_READ, MIG_DATA_WRITE. */
int migration_read(struct vfu_conn *c, const struct vfu_msg *m, struct vfu_reply *r);
int migration_write(struct vfu_conn *c, const struct vfu_msg *m, struct vfu_reply *r);

/*
 * A VM's part in a migration goes to another daemon, whatever that is; there, its device
 * is loaded already and its data path paused by whoever calls this.
 */
void migration_hand_over(struct vm *vm, struct state_out *s);
void migration_take_over(struct vm *vm, struct state_in *s);
/* Of which so much is a stream that is being read or has come. */
uint64_t migration_stream_bytes(const struct vm *vm);
/*
 * That stream is given up, for @why: what came, and the device is in ERROR; what was
 * saved, and it is in STOP: unless all of it was read the client's migration fails.
 * vm->ops is the caller's, or nobody's.
 */
void migration_give_up(struct vm *vm, const char *why);
/* The streams of all VMs, together, in bytes. */
extern uint64_t migration_max_streams;
/* After so long without anything of it that is done, in us. */
extern gint64 migration_stalls_us;
/* How long a target that is to run waits for its addresses, in us. */
extern gint64 migration_claim_us;
/* Are the addresses that @vm was loaded with its own: neither a target's, nor moved on?
 */
bool migration_owns(const struct vm *vm);

/* Does the VM stand still for a migration?  Then the guest's registers are closed. */
bool migration_stopped(const struct vm *vm);
/* The device was reset: it is RUNNING again.  With vm->ops, like the next. */
void migration_reset(struct vm *vm);
/* The guest has activated the device: it runs on, and begins anew.  RUNNING. */
void migration_activated(struct vm *vm);
/* The VMM leaves; before vm_detach(). */
void migration_leave(struct vm *vm);

#endif /* PVRDMAD_MIGRATION_H */
