/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Deadlines: who of many is to be looked at first, and when.  A binary heap of nodes
 * that are part of what they stand for, so that nothing is allocated.
 *
 * Threads: the caller's affair.
 */
#ifndef PVRDMAD_BASE_DEADLINES_H
#define PVRDMAD_BASE_DEADLINES_H

#include <stdbool.h>
#include <stdint.h>

struct deadline {
    uint64_t when; /* ns, CLOCK_MONOTONIC */
    uint32_t pos;  /* in the heap; 0: in none */
};

struct deadlines {
    struct deadline **heap; /* [1..n], the earliest first */
    uint32_t n;
};

/* Place for @max of them; zero pages until used.  False: no memory. */
bool deadlines_init(struct deadlines *h, uint32_t max);
void deadlines_fini(struct deadlines *h);

/* @d, which is in none, is due at @when. */
void deadline_add(struct deadlines *h, struct deadline *d, uint64_t when);
/* No more; nothing happens if it is in no heap. */
void deadline_remove(struct deadlines *h, struct deadline *d);

/* The earliest; NULL: there is none. */
static inline struct deadline *deadlines_first(const struct deadlines *h)
{
    return h->n ? h->heap[1] : 0;
}

/* When that is; UINT64_MAX: never. */
static inline uint64_t deadlines_next(const struct deadlines *h)
{
    return h->n ? h->heap[1]->when : UINT64_MAX;
}

#endif /* PVRDMAD_BASE_DEADLINES_H */
