/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Transport "tcp", where connections' peers are: all that belongs to one connection, its
 * stream and what is under way to get one, belongs to one place (struct location in
 * conn.h).
 *
 * The directory says when an address has another place, or is held, or goes on.  Those
 * who send there are told one after the other, some in each turn of the main loop: what
 * they have of the former place is dropped, and they ask for a stream to the new one.
 * Whoever is about to use a place before its turn has come catches up by itself, so no
 * BIND, token or stream ever mixes two places.
 *
 * When a channel to a peer's VM has been made, reliable connections that go there by TCP
 * are made anew, too; what an unreliable one has on its way would be lost.
 *
 * A host whose link was silent, or lost, is looked at in the same way when it is heard
 * again: TCP may take seconds to see that, of each connection.
 *
 * Threads: the main thread.
 */
#include "transport/iwarp/setup/bind.h"

#include "base/fdwatch.h"

/* In one turn of the main loop, for those whose peers have moved, or are heard. */
#define CHANGES_US 1000

static struct conn_list conns = TAILQ_HEAD_INITIALIZER(conns); /* all there are */
static unsigned n_conns;
static GHashTable *heard;   /* of hosts; those who send there are told: */
static unsigned heard_left; /* so many of @conns, from the first, are to be looked at */

/* Those who send to one address. */
struct route_conns {
    struct conn_list conns;
    bool changed;      /* in changes: its place, or whether it is held */
    struct conn *next; /* then: who has not been told */
    STAILQ_ENTRY(route_conns) link;
};

static GHashTable *by_route; /* of struct route_conns */
static STAILQ_HEAD(, route_conns) changes = STAILQ_HEAD_INITIALIZER(changes);
static guint changes_idle;

static struct location moves_location_of(const struct route *route)
{
    const struct vm *vm = atomic_load(&route->vm);
    const struct remote *remote = atomic_load(&route->remote);

    if (vm) {
        return (struct location){vm, directory_claim_of(vm)};
    }
    return remote ? (struct location){remote->peer, remote->claim}
                  : (struct location){NULL};
}

static bool moves_same_location(const struct location *a, const struct location *b)
{
    return a->holder == b->holder && a->claim.owner[0] == b->claim.owner[0] &&
           a->claim.owner[1] == b->claim.owner[1] &&
           a->claim.generation == b->claim.generation;
}

/* Nothing that is under way leads to where the peer is now. */
static void moves_drop_setup(struct conn *c)
{
    setup_drop(c);
    handshake_cancel(c);
    c->peer = NULL;
    c->location = (struct location){NULL};
}

/* Is the peer still where all of @c belongs to? */
bool moves_is_current(const struct conn *c)
{
    struct location now = moves_location_of(c->route);

    return moves_same_location(&c->location, &now);
}

/* From now on all of it belongs to where the peer is now. */
void moves_catch_up(struct conn *c)
{
    if (c->location.holder && !moves_is_current(c)) {
        moves_drop_setup(c);
        conn_defer(c, DEFERRED_MOVED);
    }
    c->location = moves_location_of(c->route);
}

/*
 * Where @c's peer is has changed, maybe; or its host is heard again (@is_heard).  What
 * belongs to a place where it is not any more is dropped; when it can be reached, a
 * stream is asked for at once, by both sides, and who waited goes on.
 */
static void moves_update(struct conn *c, bool is_heard)
{
    bool anew = !moves_is_current(c), up;

    moves_catch_up(c);
    up = c->location.holder && !route_is_held(c->route);
    if (up) {
        conn_defer(c, DEFERRED_REACHABLE | (anew ? DEFERRED_ANEW : 0));
    }
    if (up && is_heard) {
        c->ask_again = 0; /* what was said by a former link is not answered */
        conn_defer(c, DEFERRED_SILENT);
    }
    if (up && !c->is_self && (tcp_forced || !atomic_load(&c->route->vm))) {
        setup_ask(c); /* which looks whether there is a stream */
    }
}

static struct conn *moves_next_moved(void)
{
    struct route_conns *f;

    while ((f = STAILQ_FIRST(&changes))) {
        struct conn *c = f->next;

        if (c) {
            f->next = TAILQ_NEXT(c, same);
            return c;
        }
        STAILQ_REMOVE_HEAD(&changes, link);
        f->changed = false;
    }
    return NULL;
}

/* The one whose turn it is goes to the end, so all have theirs, also if more is heard. */
static struct conn *moves_next_heard(void)
{
    struct conn *c = heard_left ? TAILQ_FIRST(&conns) : NULL;

    if (!c) {
        heard_left = 0;
        g_hash_table_remove_all(heard);
        return NULL;
    }
    heard_left--;
    TAILQ_REMOVE(&conns, c, all);
    TAILQ_INSERT_TAIL(&conns, c, all);
    return c;
}

static gboolean moves_run(gpointer unused)
{
    gint64 until = g_get_monotonic_time() + CHANGES_US;
    struct conn *c;

    for (unsigned n = 1;; n++) {
        if ((c = moves_next_moved())) {
            moves_update(c, false);
        } else if (!(c = moves_next_heard())) {
            break;
        } else if (g_hash_table_contains(heard, moves_location_of(c->route).holder)) {
            moves_update(c, true);
        }
        if (n % 16 == 0 && g_get_monotonic_time() >= until) {
            return G_SOURCE_CONTINUE;
        }
    }
    changes_idle = 0;
    return G_SOURCE_REMOVE;
}

static void moves_run_soon(void)
{
    if (!changes_idle) {
        changes_idle = g_idle_add_full(G_PRIORITY_DEFAULT, moves_run, NULL, NULL);
    }
}

/* The directory's watcher: later, since its caller may hold a token. */
static void moves_location_changed(struct route *route)
{
    struct route_conns *f = g_hash_table_lookup(by_route, route);

    if (f) {
        f->next = TAILQ_FIRST(&f->conns);
        if (!f->changed) {
            f->changed = true;
            STAILQ_INSERT_TAIL(&changes, f, link);
        }
        moves_run_soon();
    }
}

void moves_peer_heard(struct peer *peer)
{
    g_hash_table_add(heard, peer);
    heard_left = n_conns;
    moves_run_soon();
}

bool moves_to_channel(const struct rnic_pair *p)
{
    bool up = rnic_pair_state(p) == RNIC_PAIR_UP, any = false;
    struct conn *c;

    TAILQ_FOREACH(c, &conns, all)
    {
        if (c->initiator && c->reliable && tcp_vm_rnic(c->net) == rnic_pair_vm(p) &&
            c->phase == CONN_UP && c->peer == rnic_pair_peer(p) &&
            memcmp(c->location.claim.owner, rnic_pair_owner(p),
                   sizeof(c->location.claim.owner)) == 0) {
            any = true;
            if (up) {
                conn_defer(c, DEFERRED_CHANNEL);
            }
        }
    }
    return any;
}

static void route_conns_add(struct conn *c)
{
    struct route_conns *f = g_hash_table_lookup(by_route, c->route);

    if (!f) {
        f = g_new0(struct route_conns, 1);
        TAILQ_INIT(&f->conns);
        g_hash_table_insert(by_route, c->route, f);
    }
    TAILQ_INSERT_TAIL(&f->conns, c, same);
}

static void route_conns_remove(struct conn *c)
{
    struct route_conns *f = g_hash_table_lookup(by_route, c->route);

    if (f->next == c) {
        f->next = TAILQ_NEXT(c, same);
    }
    TAILQ_REMOVE(&f->conns, c, same);
    if (TAILQ_EMPTY(&f->conns)) {
        if (f->changed) {
            STAILQ_REMOVE(&changes, f, route_conns, link);
        }
        g_hash_table_remove(by_route, c->route);
    }
}

static bool moves_is_gone(const struct peer *p)
{
    return p && peer_find(peer_name(p)) != p;
}

static void drop_former_peers(void)
{
    struct conn *c;

    TAILQ_FOREACH(c, &conns, all)
    {
        const struct remote *remote = atomic_load(&c->route->remote);

        if (moves_is_gone(c->peer) || (remote && moves_is_gone(remote->peer))) {
            /* A stream that begins, too. */
            setup_drop(c);
            handshake_cancel(c);
            c->peer = NULL;
            conn_defer(c, DEFERRED_GONE);
        }
    }
}

static struct fdwatch_later former_peers_later = {.fn = drop_former_peers};

/* A host that is no peer any more has no say in guests' memory. */
void moves_drop_former_peers(void)
{
    fdwatch_later(&former_peers_later);
}

void moves_add(struct conn *c)
{
    route_conns_add(c);
    TAILQ_INSERT_TAIL(&conns, c, all);
    n_conns++;
}

void moves_remove(struct conn *c)
{
    route_conns_remove(c);
    TAILQ_REMOVE(&conns, c, all);
    n_conns--;
    moves_drop_setup(c);
}

void moves_open(void)
{
    by_route = g_hash_table_new_full(NULL, NULL, NULL, g_free);
    heard = g_hash_table_new(NULL, NULL);
    directory_set_watcher(moves_location_changed);
}

void moves_close(void)
{
    directory_set_watcher(NULL);
    fdwatch_not_later(&former_peers_later);
    if (changes_idle) {
        g_source_remove(changes_idle);
        changes_idle = 0;
    }
    g_clear_pointer(&by_route, g_hash_table_destroy);
    g_clear_pointer(&heard, g_hash_table_destroy);
    heard_left = 0;
}
