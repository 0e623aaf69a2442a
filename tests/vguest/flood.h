/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A flood: queue pairs of one VM towards another (or itself) whose send rings are
 * always full.  The requests are written into the rings once; filling a ring again
 * is one store of its producer index.  So it costs the guest's thread next to
 * nothing, and the daemon's own cost of the requests is what counts.
 */
#ifndef FLOOD_H
#define FLOOD_H

#include "vgtest.h"

/* What the requests look like. */
struct flood_shape {
    uint32_t opcode;
    uint32_t len; /* bytes of a message, or of each of its pieces (nsge > 1) */
    unsigned nsge;
    bool inline_data; /* len <= 64, in the request itself */
    unsigned qps, depth;
    uint64_t span; /* of the buffers on either side; 0: 1 MiB */
    /* Each request, and each piece of it, at a random place of the span, and the
     * span's pages in random order; else all at its beginning. */
    bool random;
    struct vg_conn conn;
    bool nowhere; /* the receiving side's queue pairs stay in RESET */
};

/* WRITEs of 8 bytes and of 64 KiB; rings that last for milliseconds, so that the guest's
 * thread may sleep meanwhile. */
extern const struct flood_shape flood_8, flood_64k;

struct flood {
    struct flood_shape shape;
    struct vgt_side s[2]; /* qp: a plain one, not used by the flood */
    struct vg_qp **tx, **rx;
};

/* Attach VMs @a and @b (the same: both sides in it) and make everything ready. */
void flood_open(struct flood *f, unsigned a, unsigned b, const struct flood_shape *shape);
void flood_close(struct flood *f);

/* Make all rings full; returns how many of them had run empty. */
unsigned flood_fill(struct flood *f);

/* An integer member of VM @vm's counters, or of its member "datapath"; -1: there is none.
 */
int64_t flood_counter(JsonObject *vm, const char *name);
#endif /* FLOOD_H */
