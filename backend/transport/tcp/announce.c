/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Transport "tcp", connections that are made before a VM runs.
 *
 *   host where it may run soon                  host of a VM that is connected to it
 *   ANNOUNCE {address, token}  -- link -->      as many connections as it has queue
 *                                               pairs with that address
 *                  <-------  TCP connect, MPA Request {token, number}, MAKE_MAX at a time
 *   both park them (park.c); when the VM runs queue pairs take them (take.c)
 *
 * What is announced are the addresses that the VM is configured with: what its state will
 * have is not known yet.  A VM that may have any lists none.  Each peer gets a token
 * of its own for each address, and when its link comes up later, new ones.
 *
 * An ANNOUNCE proves nothing, and changes nothing but that there are connections to who
 * says it: an address is where it was until it is claimed.
 *
 * Threads: the main thread.
 */
#include "transport/tcp/setup.h"

#include "transport/tcp/tcp.h"

/* As many as a guest can have at a time. */
#define ANNOUNCE_MAX VERBS_GID_TBL_LEN
#define MAKE_MAX     16u

static GPtrArray *vms; /* that have announced theirs, and do not run yet */

/* ---- the host where it may run ---- */

static void announce_to(const struct vm *vm, struct peer *peer)
{
    const struct vm_config *cfg = vm->cfg;
    const char *network = vm->objects.network;

    if (!(peer_features(peer) & PEER_FEATURE_ADVANCE)) {
        return;
    }
    for (unsigned i = 0; i < MIN(cfg->n_addresses, ANNOUNCE_MAX); i++) {
        struct peer_announce a = {.gid = cfg->addresses[i]};
        struct park *park;

        g_strlcpy(a.network, network, sizeof(a.network));
        setup_random_token(a.token);
        park = park_new(peer, network, &a.gid, true, vm, a.token);
        if (!park || !peer_send_announce(peer, &a)) {
            if (park) {
                park_drop(park);
            }
            return;
        }
    }
}

void tcp_announce(const struct vm *vm)
{
    tcp_announce_over(vm);
    if (!vms) {
        return;
    }
    g_ptr_array_add(vms, (gpointer)vm);
    for (struct peer *p = peer_next(NULL); p; p = peer_next(p)) {
        announce_to(vm, p);
    }
}

void tcp_announce_runs(const struct vm *vm)
{
    if (vms && g_ptr_array_remove_fast(vms, (gpointer)vm)) {
        park_leave_vm(vm);
    }
}

void tcp_announce_over(const struct vm *vm)
{
    if (vms && g_ptr_array_remove_fast(vms, (gpointer)vm)) {
        park_drop_vm(vm);
    }
}

void announce_link_up(struct peer *peer)
{
    for (guint i = 0; i < vms->len; i++) {
        announce_to(vms->pdata[i], peer);
    }
}

/* ---- the other ---- */

bool announce_pay(struct park_host *h, uint64_t now)
{
    uint64_t paid = MAX(h->paid, now);

    if (paid - now >= (uint64_t)ANNOUNCE_VAIN_MAX * ANNOUNCE_VAIN_NS) {
        return false;
    }
    h->paid = paid + ANNOUNCE_VAIN_NS;
    return true;
}

void announce_taken(struct parked *p)
{
    p->host->taken++;
    if (p->made_here) {
        p->host->paid -= MIN(p->host->paid, ANNOUNCE_VAIN_NS);
    }
}

/* False: there are to be no more of @park. */
static bool make_one(struct park *park)
{
    struct peer *peer = park->host->peer;
    struct parked *p = park->made < park->wanted && announce_pay(park->host, now_ns())
                           ? parked_new(park, park->made)
                           : NULL;

    if (!p) {
        return false;
    }
    p->made_here = true;
    park->made++;
    if (!startup_park(p, peer_address(peer), peer_own_address(peer))) {
        parked_free(p);
        return false;
    }
    park->host->making++;
    return true;
}

void announce_make(struct park_host *h)
{
    struct park *park;

    while (h->making < MAKE_MAX && (park = TAILQ_FIRST(&h->to_make))) {
        if (!make_one(park)) {
            park_leave_queue(park);
            park_drop_empty(park);
        }
    }
}

void announce_made(struct parked *p, bool ok)
{
    struct park_host *h = p->host;
    struct park *park = p->park;

    h->making--;
    if (!ok) {
        park_leave_queue(park); /* nor would the next ones be */
        parked_free(p);
        park_drop_empty(park);
    }
    announce_make(h);
}

void announce_came(struct peer *from, const struct peer_announce *a)
{
    const char *network = directory_network(a->network);
    const struct route *route = network ? route_find(network, &a->gid) : NULL;
    unsigned n = route ? follow_count(route) : 0;
    struct park *park = network ? park_of(from, network, &a->gid, false) : NULL;

    if (park) {
        park_drop(park); /* what it was announced for is over */
    }
    park = n ? park_new(from, network, &a->gid, false, NULL, a->token) : NULL;
    if (park) {
        park->wanted = MIN(n, PARK_MAX_OF_PEER);
        park->queued = true;
        TAILQ_INSERT_TAIL(&park->host->to_make, park, make);
    }
    announce_make(park_host(from));
}

/* ---- reports, start and stop ---- */

void tcp_get_advance(const struct peer *peer, struct tcp_advance *a)
{
    const struct park_host *h = park_host_known(peer);

    *a = (struct tcp_advance){0};
    if (h) {
        *a = (struct tcp_advance){h->n - h->making - h->n_taking, h->taken, h->refused};
    }
}

void announce_open(void)
{
    vms = g_ptr_array_new();
}

void announce_close(void)
{
    g_clear_pointer(&vms, g_ptr_array_unref);
}
