/* SPDX-License-Identifier: GPL-2.0-or-later */
/* How many connections may be there of which nobody knows whose they are; see places.c.
 */
#ifndef PVRDMAD_LINK_PLACES_H
#define PVRDMAD_LINK_PLACES_H

#include <sys/queue.h>
#include <sys/socket.h>

struct peer_places;
struct place_host;

struct peer_place {
    struct peer_places *of; /* NULL: it has none, and the rest says nothing */
    struct place_host *host;
    void (*lose)(struct peer_place *p);
    TAILQ_ENTRY(peer_place) link; /* of its host's; the oldest first */
};

struct peer_places {
    const unsigned max, max_of_host;
    unsigned n;
    TAILQ_HEAD(place_hosts, place_host) hosts; /* those that have any */
};

#define PEER_PLACES_INIT(name, all, of_host)          \
    {                                                 \
        .max = (all), .max_of_host = (of_host),       \
        .hosts = TAILQ_HEAD_INITIALIZER((name).hosts) \
    }

/*
 * @p, which has none, is @from's newest.  @lose ends it for want of a place: it does
 * peer_place_leave(), and frees it maybe.
 */
void peer_place_take(struct peer_places *ps, struct peer_place *p,
                     const struct sockaddr_storage *from,
                     void (*lose)(struct peer_place *p));
/* Whose @p, which it has, is. */
const struct sockaddr_storage *peer_place_from(const struct peer_place *p);
/* Nothing, if it has none. */
void peer_place_leave(struct peer_place *p);
/* One more was taken by @from: if that is too many, one is lost, and not that one. */
void peer_places_bound(struct peer_places *ps, const struct sockaddr_storage *from);

#endif /* PVRDMAD_LINK_PLACES_H */
