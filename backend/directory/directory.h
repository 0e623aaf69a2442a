/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The directory: who holds a GID.  A wire address is (network, GID, QPN); there
 * is no default: what is not here cannot be reached.
 *
 * directory_lock (a leaf lock) protects the table, every gid_entry's changes,
 * and the lists of QPs that point to a peer (qp_state.h).
 */
#ifndef PVRDMAD_DIRECTORY_H
#define PVRDMAD_DIRECTORY_H

#include <stdbool.h>

#include "pvrdma/abi.h"

struct vm;

void directory_init(void);
void directory_fini(void);
void directory_lock(void);
void directory_unlock(void);

/* Claim a GID; 0, or EADDRINUSE if another VM of the network holds it.
 * Takes the lock itself, like directory_unbind. */
int directory_bind(struct vm *vm, const struct pvrdma_gid *gid);
/* Release one claim (a VM may hold the same GID in several table slots). */
void directory_unbind(struct vm *vm, const struct pvrdma_gid *gid);

/* The holder, or NULL.  The caller holds the lock while it uses the result. */
struct vm *directory_find(const char *network, const struct pvrdma_gid *gid);

/* GIDs held by anybody; for status and leak checks.  Takes the lock. */
unsigned directory_count(void);

#endif /* PVRDMAD_DIRECTORY_H */
