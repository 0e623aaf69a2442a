/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A way around three hosts, by which two guests come through every kind of move: away
 * from the peer (copy to tcp), to where it is (tcp to copy), between two other hosts (tcp
 * to tcp), from one VM of a daemon to another, and both at once.
 *
 * Each host declares four VMs, with any address or those of both guests.  Guest 0 is in
 * VM 0 or 2 of a host, guest 1 in VM 1 or 3, so that each finds a place wherever the
 * other is.
 */
#ifndef ROUTE_H
#define ROUTE_H

#include "migrate.h"

#define ROUTE_HOSTS 3u
#define ROUTE_STEPS 12u /* of the whole way, which ends where it began */

enum route_kind {
    ROUTE_AWAY,
    ROUTE_TOGETHER,
    ROUTE_ELSEWHERE,
    ROUTE_WITHIN_COPY,
    ROUTE_WITHIN_TCP,
    ROUTE_BOTH,
    ROUTE_N_KINDS
};
extern const char *const route_kind_name[ROUTE_N_KINDS];

struct route {
    struct vg_daemon *const *host;
    /* Where the two guests are: VMs 0 and 1 of host 0 at first. */
    struct route_at {
        unsigned host, vm;
    } at[2];
    unsigned moves; /* so far */
};
#define ROUTE_BEGIN(hosts)                        \
    {                                             \
        .host = (hosts), .at = { {0, 0}, {0, 1} } \
    }

/* The next one. */
enum route_kind route_move(struct route *r, struct vguest *const g[2]);
/* @done moves of each kind: fails if there was none of one. */
void route_assert_all(const unsigned done[ROUTE_N_KINDS]);

#endif /* ROUTE_H */
