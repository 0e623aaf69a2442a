/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The directory: where an address is.  A wire address is (network, GID, QPN); there
 * is no default: what is not here cannot be reached.
 *
 * This room uses objects/ and what is below.
 */
#ifndef PVRDMAD_DIRECTORY_H
#define PVRDMAD_DIRECTORY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "pvrdma/abi.h"

struct vm;

/*
 * Where (network, GID) is.  There is one route per address for as long as somebody
 * holds the address or refers to the route.
 *
 * What was found by a route, a peer's QP say, may be kept with the generation that
 * the route had before the look-up, and used, within one grace period, as long as it
 * still has it.  The generation changes with everything that may end that: a bind, a
 * hold, a move, the end of any QP of its owner.
 */
struct route {
    _Atomic uint64_t gen;
    _Atomic(struct vm *) vm; /* the VM of this host that holds the address, or NULL */
    /* Until then (ns, CLOCK_MONOTONIC) its owner stands still; 0: it does not. */
    _Atomic uint64_t held_until;
};

#define ROUTE_HELD_FOREVER UINT64_MAX

void directory_init(void);
void directory_fini(void);

/*
 * Claim a GID for a VM of this host; 0, or EADDRINUSE if another one of the network
 * holds it.  A VM may claim the same GID several times.  Main thread, like all below.
 */
int directory_bind(struct vm *vm, const struct pvrdma_gid *gid);
/* Release one claim; of somebody else's: nothing. */
void directory_unbind(struct vm *vm, const struct pvrdma_gid *gid);

/*
 * The route to an address that somebody holds, or NULL.  Any worker, until its
 * quiescent point; it waits for nobody.  @network is the interned name
 * (g_intern_string), so that to compare it is to compare pointers.
 */
const struct route *route_find(const char *network, const struct pvrdma_gid *gid);

/* The route to an address, whether anybody holds it or not; counted. */
struct route *route_get(const char *network, const struct pvrdma_gid *gid);
void route_put(struct route *route);

/* Something of @vm ended or changed: what was found by its routes is void. */
void directory_bump(struct vm *vm);

/* Its routes are held, at most until @until (ns), or up again (0). */
void directory_hold(struct vm *vm, uint64_t until);

/* GIDs held by anybody; for status and leak checks. */
unsigned directory_count(void);

/* Routes there are; for leak checks. */
unsigned directory_routes(void);

#endif /* PVRDMAD_DIRECTORY_H */
