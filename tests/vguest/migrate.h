/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Migration of a virtual guest: the messages a VMM sends for it, and moves.
 *
 * A guest moves from one connection to another, of the same daemon or another, with its
 * RAM, which both map, and its eventfds.  While it moves nobody may use it: its
 * processors stand still.  Its objects (struct vg_qp, ...) stay valid.
 */
#ifndef MIGRATE_H
#define MIGRATE_H

#include "vgtest.h"

/* MIG_DEVICE_STATE: 0, a positive errno of the daemon's, or a negative one. */
int vg_mig_set(struct vguest *g, enum vfio_user_mig_state state);
void vg_mig_enter(struct vguest *g, enum vfio_user_mig_state state); /* it succeeds */
enum vfio_user_mig_state vg_mig_get(struct vguest *g);
/* In RESUMING: what comes is a snapshot. */
int vg_mig_put_back(struct vguest *g);

/* In STOP_COPY: the whole stream, in pieces of @piece bytes. */
GByteArray *vg_mig_read(struct vguest *g, uint32_t piece);
/* Where section @tag of a stream begins, of so many bytes. */
const uint8_t *vg_mig_section(const GByteArray *stream, const char *tag, uint64_t want);
/* In RESUMING: 0 or the errno of the piece that was refused. */
int vg_mig_write(struct vguest *g, const void *data, uint32_t len, uint32_t piece);

/* It stands still, in STOP_COPY; what it is. */
GByteArray *vg_mig_save(struct vguest *g);
/* It stands still, in STOP, and is that. */
void vg_mig_load(struct vguest *g, const GByteArray *stream);

/* Where a guest is: what is not in its RAM. */
struct vg_place {
    struct vg_daemon *d;
    unsigned vm;
    int sock, db_eventfd;
    struct pvrdma_db_region *db;
};

/*
 * A second place for @g, attached: VM @vm of @d, another than it is.  The guest is still
 * where it was.
 */
struct vg_place vg_place_open(struct vguest *g, struct vg_daemon *d, unsigned vm);
/* @g is at @place, and @place is where it was. */
void vg_place_swap(struct vguest *g, struct vg_place *place);
/* The VMM there is gone. */
void vg_place_close(struct vg_place *place);
/* RUNNING is asked for there, and answered within @timeout_ms: 0, or an errno. */
void vg_place_tell_to_run(const struct vg_place *place);
int vg_place_hear(const struct vg_place *place, int timeout_ms);

/* @g is at VM @vm of @d, with a VMM that was started anew; the former one has gone. */
void vg_begin_vmm(struct vguest *g, struct vg_daemon *d, unsigned vm);
/* What was loaded runs, once the daemon has seen that its former VMM has gone. */
void vg_run_loaded(struct vguest *g);

/* As a VMM does when its guest goes on elsewhere: all vectors once. */
void vg_raise_all(struct vguest *g);

enum vg_move {
    VG_MOVE_PLAIN,       /* the source leaves when the target runs */
    VG_MOVE_LEAVE_FIRST, /* ... before it does */
};

/* The whole of it: @g runs at VM @vm of @d on return. */
void vg_move(struct vguest *g, struct vg_daemon *d, unsigned vm, enum vg_move how);
/*
 * Its parts: VM @vm of @d is RESUMING, and @g runs where it is; @g stands still there,
 * with its state, and @place is where it was; it runs.
 */
struct vg_place vg_place_resuming(struct vguest *g, struct vg_daemon *d, unsigned vm);
void vg_move_state(struct vguest *g, struct vg_place *place);
/* The first two; returns where it was. */
struct vg_place vg_move_begin(struct vguest *g, struct vg_daemon *d, unsigned vm);
void vg_move_end(struct vguest *g, struct vg_place *from, enum vg_move how);

#endif /* MIGRATE_H */
