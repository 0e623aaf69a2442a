/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The directory's engine `static`.
 *
 * An address that is wanted is asked for at all peers with a link.  Each answers that
 * it has it (CLAIM) or not (UNCLAIM); when all have, or are gone, and none has it, it is
 * absent.
 *
 * A peer that has asked about or claimed anything in a network that is known here is
 * told what VMs of this host hold in it, once per link, and from then on what changes.
 * It is told before its claim is taken, and a link keeps the order of its messages: so
 * the first datagram that goes to a peer finds its source known there, and a peer
 * believes no source that was not claimed.  So is, unasked, every peer with a new link
 * if a VM here has had another place, and every peer with a link when such a VM claims:
 * another place of it may be there, and not have heard of this one.  Of networks in which
 * no VM of this host has ever been nothing is said and nothing remembered.
 *
 * Two peers that claim one address for the same VM may have no link to each other.  The
 * one that does not go on (duplicates.c) is told the other's claim.
 *
 * A link that comes up begins anew: what the peer had claimed is forgotten, as it is
 * asked for again when it is needed, but for what somebody refers to; that is asked for
 * at once and stays meanwhile.
 *
 * What cannot be put on a link, since too much waits for it, is late: the address is
 * remembered, and what is true of it then is told when there is room.  A link for which
 * that becomes too much begins anew.
 *
 * Main thread.
 */
#include "directory/static.h"

#include <glib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "config/config.h"
#include "objects/qp_state.h"
#include "objects/vm.h"

#define LATE_MS  20u
#define LATE_MAX DIRECTORY_MAX_CLAIMS

struct address {
    const char *network; /* interned */
    struct pvrdma_gid gid;
};

/* A peer that has, or had, a link. */
struct member {
    struct peer *peer;
    bool up;
    GHashTable *told; /* set of networks (interned) */
    /* Sets of struct address, there was no room: to be told of, to be asked for. */
    GHashTable *late, *late_asks;
    struct log_subject log;
};

/* Who has not answered yet. */
struct question {
    struct address address; /* first */
    GPtrArray *waiting;     /* of struct member */
};

static const struct static_ops *ops;
static GHashTable *members;   /* of struct member, by peer */
static GHashTable *questions; /* set of struct question */
static unsigned n_up;
static guint late_timer;

static guint address_hash(gconstpointer p)
{
    const struct address *a = p;

    return (guint)directory_hash(a->network, &a->gid);
}

static gboolean address_equal(gconstpointer x, gconstpointer y)
{
    const struct address *a = x, *b = y;

    return a->network == b->network && gid_equal(&a->gid, &b->gid);
}

/* ---- questions ---- */

static void question_free(gpointer p)
{
    struct question *q = p;

    g_ptr_array_unref(q->waiting);
    g_free(q);
}

static struct question *question_of(const char *network, const struct pvrdma_gid *gid)
{
    struct address key = {network, *gid};

    return g_hash_table_lookup(questions, &key);
}

/* @m has said no, or will not answer.  @q is gone if it was the last. */
static void answered(struct question *q, struct member *m)
{
    struct address a = q->address;

    if (g_ptr_array_remove_fast(q->waiting, m) && q->waiting->len == 0) {
        g_hash_table_remove(questions, q);
        directory_absent(a.network, &a.gid);
    }
}

static gboolean tell_late(gpointer unused);

/* For what is in @set, and has no room on a link now. */
static void is_late(const struct member *m, GHashTable *set, const char *network,
                    const struct pvrdma_gid *gid)
{
    struct address a = {network, *gid};

    if (m->up && g_hash_table_size(set) <= LATE_MAX) {
        g_hash_table_add(set, g_memdup2(&a, sizeof(a)));
        late_timer = late_timer ? late_timer : g_timeout_add(LATE_MS, tell_late, NULL);
    }
}

static void ask_one(struct member *m, const char *network, const struct pvrdma_gid *gid)
{
    if (!ops->ask(m->peer, network, gid)) {
        is_late(m, m->late_asks, network, gid);
    }
}

/* It may have been asked while others were: to be among those that are waited for. */
static bool engine_ask(const char *network, const struct pvrdma_gid *gid)
{
    struct question *q = g_new0(struct question, 1);
    GHashTableIter i;
    gpointer m;

    *q = (struct question){{network, *gid}, g_ptr_array_new()};
    g_hash_table_iter_init(&i, members);
    while (g_hash_table_iter_next(&i, NULL, &m)) {
        struct member *member = m;

        if (member->up) {
            ask_one(member, network, gid);
            g_ptr_array_add(q->waiting, member);
        }
    }
    if (q->waiting->len == 0) {
        question_free(q);
        return false;
    }
    g_hash_table_add(questions, q);
    return true;
}

/* Who has it says so; nobody else need answer. */
static void engine_call(const char *network, const struct pvrdma_gid *gid)
{
    GHashTableIter i;
    gpointer p;

    g_hash_table_iter_init(&i, members);
    while (g_hash_table_iter_next(&i, NULL, &p)) {
        struct member *m = p;

        if (m->up) {
            ask_one(m, network, gid);
        }
    }
}

static void engine_give_up(const char *network, const struct pvrdma_gid *gid)
{
    struct address key = {network, *gid};

    g_hash_table_remove(questions, &key);
}

/* ---- telling ---- */

/* None would mean that its owner runs: that stands still, however long it does. */
static uint64_t hold_left(uint64_t until)
{
    struct timespec ts;
    uint64_t now;

    if (until == 0) {
        return 0;
    }
    clock_gettime(CLOCK_MONOTONIC, &ts);
    now = (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
    return until > now ? until - now : 1;
}

/* What is true of @a now; false: no room for it. */
static bool tell_state(struct member *m, const struct address *a)
{
    struct claim claim;
    uint64_t until;

    if (!directory_local(a->network, &a->gid, &claim, &until)) {
        return ops->unclaim(m->peer, a->network, &a->gid);
    }
    return ops->claim(m->peer, a->network, &a->gid, &claim, hold_left(until));
}

static bool ask_now(struct member *m, const struct address *a)
{
    return ops->ask(m->peer, a->network, &a->gid);
}

static gboolean tell_late(gpointer unused)
{
    GHashTableIter i, k;
    bool more = false;
    gpointer p, a;

    g_hash_table_iter_init(&i, members);
    while (g_hash_table_iter_next(&i, NULL, &p)) {
        struct member *m = p;

        g_hash_table_iter_init(&k, m->late);
        while (g_hash_table_iter_next(&k, &a, NULL) && tell_state(m, a)) {
            g_hash_table_iter_remove(&k);
        }
        g_hash_table_iter_init(&k, m->late_asks);
        while (g_hash_table_iter_next(&k, &p, NULL) && ask_now(m, p)) {
            g_hash_table_iter_remove(&k);
        }
        if (g_hash_table_size(m->late) > LATE_MAX) {
            ops->reset(m->peer);
            return G_SOURCE_CONTINUE; /* nothing that was looked at holds */
        }
        more |= g_hash_table_size(m->late) > 0 || g_hash_table_size(m->late_asks) > 0;
    }
    if (!more) {
        late_timer = 0;
    }
    return more ? G_SOURCE_CONTINUE : G_SOURCE_REMOVE;
}

struct telling {
    struct member *m;
    const char *network;
};

static void tell_one(const struct pvrdma_gid *gid, const struct claim *claim,
                     uint64_t held_until, void *opaque)
{
    struct telling *t = opaque;

    if (!ops->claim(t->m->peer, t->network, gid, claim, hold_left(held_until))) {
        is_late(t->m, t->m->late, t->network, gid);
    }
}

/* All that this host has in @network, if @m does not know. */
static bool tell(struct member *m, const char *network)
{
    struct telling t = {m, network};
    bool news = g_hash_table_add(m->told, (gpointer)(uintptr_t)network);

    if (news) {
        directory_each_local(network, tell_one, &t);
    }
    return news;
}

/* Those who know @network's claims, or @all, hear what has become of one. */
static void tell_change(const char *network, const struct pvrdma_gid *gid, bool all)
{
    struct address a = {network, *gid};
    GHashTableIter i;
    gpointer p;

    g_hash_table_iter_init(&i, members);
    while (g_hash_table_iter_next(&i, NULL, &p)) {
        struct member *m = p;

        if (all && m->up && tell(m, network)) {
            continue;
        }
        if (g_hash_table_contains(m->told, network) && !tell_state(m, &a)) {
            is_late(m, m->late, network, gid);
        }
    }
}

static void engine_bound(const struct vm *vm, const char *network,
                         const struct pvrdma_gid *gid)
{
    tell_change(network, gid, vm->identity.generation > 1);
}

static void engine_unbound(const char *network, const struct pvrdma_gid *gid)
{
    tell_change(network, gid, false);
}

static void engine_held(const char *network, const struct pvrdma_gid *gid, uint64_t until)
{
    GHashTableIter i;
    gpointer p;

    g_hash_table_iter_init(&i, members);
    while (g_hash_table_iter_next(&i, NULL, &p)) {
        struct member *m = p;

        if (g_hash_table_contains(m->told, network) &&
            !ops->hold(m->peer, network, gid, hold_left(until))) {
            is_late(m, m->late, network, gid);
        }
    }
}

static const char *engine_peer_name(struct peer *peer)
{
    const struct member *m = g_hash_table_lookup(members, peer);

    return m ? m->log.name : NULL;
}

static const struct directory_engine engine = {
    .name = "static",
    .ask = engine_ask,
    .call = engine_call,
    .give_up = engine_give_up,
    .bound = engine_bound,
    .unbound = engine_unbound,
    .held = engine_held,
    .peer_name = engine_peer_name,
};

/* ---- peers ---- */

static void member_free(gpointer p)
{
    struct member *m = p;

    log_flush(&m->log);
    g_hash_table_destroy(m->told);
    g_hash_table_destroy(m->late);
    g_hash_table_destroy(m->late_asks);
    g_free(m);
}

static struct member *member_of(struct peer *peer)
{
    return members ? g_hash_table_lookup(members, peer) : NULL;
}

static void ask_again(const char *network, const struct pvrdma_gid *gid, void *opaque)
{
    struct member *m = opaque;

    tell(m, network);
    ask_one(m, network, gid);
}

static void tell_moved(const char *network, void *opaque)
{
    tell(opaque, network);
}

bool static_owes(struct peer *peer)
{
    const struct member *m = member_of(peer);

    return m && g_hash_table_size(m->late) > 0;
}

void static_peer_up(struct peer *peer, const char *name)
{
    struct member *m = member_of(peer);

    if (!members) {
        return;
    }
    if (!m) {
        m = g_new0(struct member, 1);
        m->peer = peer;
        m->told = g_hash_table_new(NULL, NULL);
        m->late = g_hash_table_new_full(address_hash, address_equal, g_free, NULL);
        m->late_asks = g_hash_table_new_full(address_hash, address_equal, g_free, NULL);
        m->log = (struct log_subject){.name = name, .kind = "peer"};
        g_hash_table_insert(members, peer, m);
    }
    if (m->up) {
        static_peer_down(peer);
    }
    m->up = true;
    directory_linked(peer, true);
    directory_set_reachable(++n_up > 0);
    directory_forget(peer, true, ask_again, m);
    directory_ask_again();
    directory_each_moved(tell_moved, m);
}

void static_peer_down(struct peer *peer)
{
    struct member *m = member_of(peer);
    g_autoptr(GArray) all = NULL;
    GHashTableIter i;
    gpointer q;

    if (!m || !m->up) {
        return;
    }
    m->up = false;
    directory_linked(peer, false);
    g_hash_table_remove_all(m->told);
    g_hash_table_remove_all(m->late);
    g_hash_table_remove_all(m->late_asks);
    directory_set_reachable(--n_up > 0);
    /* What is told of one may end another: by address, not by pointer. */
    all = g_array_sized_new(FALSE, FALSE, sizeof(struct address),
                            g_hash_table_size(questions));
    g_hash_table_iter_init(&i, questions);
    while (g_hash_table_iter_next(&i, &q, NULL)) {
        g_array_append_val(all, ((struct question *)q)->address);
    }
    for (guint k = 0; k < all->len; k++) {
        q = g_hash_table_lookup(questions, &g_array_index(all, struct address, k));
        if (q) {
            answered(q, m);
        }
    }
}

static void is_no_member(struct peer *peer)
{
    static_peer_down(peer);
    if (member_of(peer)) {
        g_hash_table_remove(members, peer);
    }
}

void static_peer_gone(struct peer *peer)
{
    is_no_member(peer);
    directory_forget(peer, false, NULL, NULL);
}

uint64_t static_peer_away(struct peer *peer)
{
    is_no_member(peer);
    return directory_abandon(peer);
}

/* ---- what comes from peers ---- */

/* @peer, if it has a link and speaks of a network that is known here. */
static struct member *speaker(struct peer *peer, const char *network, const char **known)
{
    struct member *m = member_of(peer);

    *known = directory_network(network);
    return m && m->up && *known ? m : NULL;
}

void static_asked(struct peer *peer, const char *network, const struct pvrdma_gid *gid)
{
    struct member *m = member_of(peer);
    const char *known = directory_network(network);
    struct address a = {known, *gid};

    if (!m || !m->up) {
        return;
    }
    if (!known) {
        ops->unclaim(peer, network, gid);
        return;
    }
    directory_settle(known, gid);
    tell(m, known);
    if (!tell_state(m, &a)) {
        is_late(m, m->late, known, gid);
    }
    if (directory_host_is_before(m->log.name)) {
        directory_leave(known, gid);
    }
}

static void say_refused(struct member *m, const char *network,
                        const struct pvrdma_gid *gid, enum claim_result why)
{
    char text[CONFIG_GID_STRLEN];

    config_format_gid(gid, text);
    /* When both ends move the word of a former place may come last. */
    log_about(why == CLAIM_OLD ? LOG_LVL_INFO : LOG_LVL_WARN, &m->log,
              "claims %s of network %s: refused, %s", text, network,
              why == CLAIM_LOCAL   ? "a VM of this host has it"
              : why == CLAIM_OTHER ? "another owner has it"
              : why == CLAIM_RUNS  ? "its owner runs where it was"
              : why == CLAIM_OLD   ? "its owner has moved"
                                   : "it has claimed too many");
}

/*
 * A claim of @m's was refused, and @claim's owner has the address.  If that is at another
 * peer one of the two does not go on, and hears of it.
 */
static void tell_rivals(struct member *m, const struct address *a,
                        const struct claim *claim)
{
    struct claim now;
    struct peer *holder = directory_holder(a->network, &a->gid, &now);
    bool heard;

    if (!holder || holder == m->peer || !claim_is_rival(claim, &now)) {
        return;
    }
    heard = claim_comes_first(claim, &now)
                ? ops->rival(holder, a->network, &a->gid, claim)
                : ops->rival(m->peer, a->network, &a->gid, &now);
    if (!heard) { /* when it claims once more, to be said again */
        is_late(m, m->late_asks, a->network, &a->gid);
    }
}

/*
 * The address was taken from @holder, another peer, which stood still, for @claim.  It
 * may go on and not know of that.
 */
static void tell_former(struct peer *holder, const struct claim *was,
                        const struct address *a, const struct claim *claim)
{
    if (claim_is_rival(claim, was) && claim_comes_first(claim, was) &&
        !ops->rival(holder, a->network, &a->gid, claim)) {
        struct member *m = member_of(holder);

        is_late(m, m->late_asks, a->network, &a->gid);
    }
}

void static_claimed(struct peer *peer, const char *network, const struct pvrdma_gid *gid,
                    const struct claim *claim, uint64_t hold_ns)
{
    const char *known;
    struct member *m = speaker(peer, network, &known);
    enum claim_result result;
    struct question *q;
    struct address a = {known, *gid};
    struct claim own, was;
    struct peer *holder;
    uint64_t until;

    if (!m) {
        return;
    }
    tell(m, known);
    holder = directory_holder(known, gid, &was);
    result = directory_claim(peer, known, gid, claim, hold_ns);
    if (result == CLAIM_TAKEN) { /* which gives the question up */
        if (holder && holder != peer) {
            tell_former(holder, &was, &a, claim);
        }
        return;
    }
    say_refused(m, known, gid, result);
    if ((result == CLAIM_RUNS || directory_rival(known, gid, claim) == RIVAL_SECOND) &&
        directory_local(known, gid, &own, &until) && !tell_state(m, &a)) {
        is_late(m, m->late, known, gid);
    }
    if (result == CLAIM_RUNS || result == CLAIM_OLD) {
        tell_rivals(m, &a, claim);
    }
    q = question_of(known, gid);
    if (q) {
        answered(q, m);
    }
}

void static_rival(struct peer *peer, const char *network, const struct pvrdma_gid *gid,
                  const struct claim *claim)
{
    const char *known;

    if (speaker(peer, network, &known)) {
        directory_rival(known, gid, claim);
    }
}

void static_unclaimed(struct peer *peer, const char *network,
                      const struct pvrdma_gid *gid)
{
    const char *known;
    struct member *m = speaker(peer, network, &known);
    struct question *q;

    if (!m) {
        return;
    }
    /* If that has it asked for, this is no answer: the question is after it. */
    q = question_of(known, gid);
    if (!directory_unclaim(peer, known, gid) && q) {
        answered(q, m);
    }
}

void static_held(struct peer *peer, const char *network, const struct pvrdma_gid *gid,
                 uint64_t hold_ns)
{
    const char *known;

    if (speaker(peer, network, &known)) {
        directory_hold_remote(peer, known, gid, hold_ns);
    }
}

/* ---- start and stop ---- */

int static_start(const struct static_ops *which)
{
    int err = directory_set_engine(&engine);

    if (!err) {
        ops = which;
        members = g_hash_table_new_full(NULL, NULL, NULL, member_free);
        questions =
            g_hash_table_new_full(address_hash, address_equal, question_free, NULL);
        n_up = 0;
    }
    return err;
}

void static_stop(void)
{
    GHashTableIter i;
    gpointer m;

    if (!members) {
        return;
    }
    g_hash_table_iter_init(&i, members);
    while (g_hash_table_iter_next(&i, NULL, &m)) {
        ((struct member *)m)->up = false; /* nobody is told or asked any more */
    }
    n_up = 0;
    if (late_timer) {
        g_source_remove(late_timer);
        late_timer = 0;
    }
    directory_set_engine(NULL);
    g_clear_pointer(&members, g_hash_table_destroy);
    g_clear_pointer(&questions, g_hash_table_destroy);
}
