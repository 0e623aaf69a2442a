/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Places for connections of which nobody knows whose they are.
 *
 * All that is known is the address from which they come, and every program of that host
 * may have made them, and each guest behind its address.  So there are so many for each
 * host and for all, and when there is one too many it is not the new one that goes: a
 * daemon is through in some round trips, and who only keeps places loses them.  Of a host
 * that has too many its oldest goes; if all have, the oldest of the host that has most,
 * so who has few keeps them.
 *
 * Connections that come from no host (AF_UNSPEC: this daemon's own) are one, which may
 * have what there is.
 *
 * Costs what there are hosts, whatever they do; only peers' addresses come to this.
 * Threads: the main thread.
 */
#include "transport/link/places.h"

#include <glib.h>

#include "config/config.h"

struct place_host {
    struct sockaddr_storage from;
    unsigned n;
    TAILQ_HEAD(place_list, peer_place) places;
    TAILQ_ENTRY(place_host) link;
};

static bool is_same(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    return (a->ss_family == AF_UNSPEC && b->ss_family == AF_UNSPEC) ||
           config_same_host(a, b);
}

static struct place_host *find(const struct peer_places *ps,
                               const struct sockaddr_storage *from)
{
    struct place_host *h;

    TAILQ_FOREACH(h, &ps->hosts, link)
    {
        if (is_same(&h->from, from)) {
            return h;
        }
    }
    return NULL;
}

void peer_place_take(struct peer_places *ps, struct peer_place *p,
                     const struct sockaddr_storage *from,
                     void (*lose)(struct peer_place *p))
{
    struct place_host *h = find(ps, from);

    if (!h) {
        h = g_new0(struct place_host, 1);
        h->from = *from;
        TAILQ_INIT(&h->places);
        TAILQ_INSERT_TAIL(&ps->hosts, h, link);
    }
    p->of = ps;
    p->host = h;
    p->lose = lose;
    TAILQ_INSERT_TAIL(&h->places, p, link);
    h->n++;
    ps->n++;
}

const struct sockaddr_storage *peer_place_from(const struct peer_place *p)
{
    return &p->host->from;
}

void peer_place_leave(struct peer_place *p)
{
    struct peer_places *ps = p->of;
    struct place_host *h = p->host;

    if (!ps) {
        return;
    }
    p->of = NULL;
    TAILQ_REMOVE(&h->places, p, link);
    ps->n--;
    if (--h->n == 0) {
        TAILQ_REMOVE(&ps->hosts, h, link);
        g_free(h);
    }
}

void peer_places_bound(struct peer_places *ps, const struct sockaddr_storage *from)
{
    struct place_host *h = find(ps, from), *most;
    struct peer_place *p;

    if (!h || from->ss_family == AF_UNSPEC || h->n <= ps->max_of_host) {
        if (ps->n <= ps->max) {
            return;
        }
        most = TAILQ_FIRST(&ps->hosts);
        TAILQ_FOREACH(h, &ps->hosts, link)
        {
            most = h->n > most->n ? h : most;
        }
        h = most;
    }
    p = TAILQ_FIRST(&h->places);
    p->lose(p);
}
