/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The memory of doorbells: the region shared with the VMM (pvrdma/doorbell.h has
 * its layout and protocol), one like it that only the daemon writes (its counters are
 * the main thread's), and the eventfd by which the VMM wakes the worker.  Who reads
 * them is datapath/.
 */
#ifndef PVRDMAD_GUEST_DOORBELLS_H
#define PVRDMAD_GUEST_DOORBELLS_H

#include <glib.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "pvrdma/doorbell.h"

struct guest;

struct guest_doorbells {
    struct pvrdma_db_region *own;    /* anonymous memory */
    struct pvrdma_db_region *shared; /* memfd; the VMM scribbles on it */
    struct guest *guest;             /* who has the fault if a page of that is gone */
    int guard;                       /* SIGBUS table slot of it; -1: none */
    int memfd;
    int eventfd;          /* the VMM writes it; one per VM */
    _Atomic uint64_t bad; /* doorbells that came as messages, and were wrong */
};

/*
 * Main thread.  @bell is an eventfd that the VMM has already, taken over, or -1.  False
 * with errp, and nothing to undo, but @bell is closed.
 */
bool doorbells_init(struct guest_doorbells *db, struct guest *guest, int bell,
                    GError **errp);
/*
 * The VMM has the region of another daemon, @memfd, taken over if true is returned.  It
 * takes the place of the one that was made; whose the handles are goes with them.  The
 * guest runs, its data path does not.
 */
bool doorbells_adopt(struct guest_doorbells *db, int memfd);
void doorbells_fini(struct guest_doorbells *db);

/*
 * Forget every bit, owner and armed CQ; no handle below @max_qp, @max_cq or @max_srq
 * has an owner any more.  Main thread; its loop may turn meanwhile.
 */
void doorbells_reset(struct guest_doorbells *db, uint32_t max_qp, uint32_t max_cq,
                     uint32_t max_srq);

/* Set a handle's bit.  Any thread; the caller wakes the worker. */
static inline void doorbell_set(struct pvrdma_db_map *map, uint32_t handle)
{
    uint32_t w = handle / 64;

    __atomic_fetch_or(&map->words[w], 1ull << (handle % 64), __ATOMIC_SEQ_CST);
    __atomic_fetch_or(&map->summary[w / 64], 1ull << (w % 64), __ATOMIC_SEQ_CST);
}

#endif /* PVRDMAD_GUEST_DOORBELLS_H */
