/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The device's states in a migration, and its state as a stream (migration.c): what the
 * parts of frontend/ share.  Main thread.
 */
#ifndef PVRDMAD_MIGRATION_H
#define PVRDMAD_MIGRATION_H

#include "frontend/conn.h"
#include "frontend/feature.h"

/* MIG_DEVICE_STATE; setting it needs vm->ops, and may wait. */
int migration_get_state(struct vfu_conn *c, const struct vfu_feature *f,
                        struct vfu_reply *r);
int migration_set_state(struct vfu_conn *c, const struct vfu_feature *f,
                        struct vfu_reply *r);

/* MIG_DATA_READ, MIG_DATA_WRITE. */
int migration_read(struct vfu_conn *c, const struct vfu_msg *m, struct vfu_reply *r);
int migration_write(struct vfu_conn *c, const struct vfu_msg *m, struct vfu_reply *r);

/* Does the VM stand still for a migration?  Then the guest's registers are closed. */
bool migration_stopped(const struct vm *vm);
/* The device was reset: it is RUNNING again.  With vm->ops, like the next. */
void migration_reset(struct vm *vm);
/* The VMM leaves; before vm_detach(). */
void migration_leave(struct vm *vm);

#endif /* PVRDMAD_MIGRATION_H */
