/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Addresses of other hosts.
 *
 * What a peer claims is remembered with its route until the peer withdraws it or is
 * gone.  What stands still there is waited for until its hold ends, gone or not; but then
 * it is anybody's who claims it.  A claim names its owner, a VM: the same owner with a
 * higher generation has moved, and is followed to the peer that says so if it stands
 * still where it was (moves.c).  Another owner's is refused, unless the peer itself has
 * it now in place of the former: whoever came first keeps an address until that is
 * withdrawn.  So it is between hosts and VMs of this one, too.  What was refused is asked
 * for again when the holder lets go.
 *
 * What nobody is known to have is asked for by the engine, when somebody has something
 * for it.  So is what a host had to which there is no link; when that has been away for
 * long, for whoever waits for it, again and again.  While the answer is not there, and
 * for a second after it was "nobody", the entry says so and is in the workers' index: an
 * address costs one question in that time, however many datagrams are sent there.  Such
 * entries are bounded, those of a VM besides: the fewer places there are left the fewer
 * it may have (share()), so that guests that try addresses, however many, leave some to
 * others.  Whoever waits for an address (waiting.c) for which there is no place goes on
 * waiting, and it is asked for when there is one.
 *
 * A link that is lost may be back in a moment, as if nothing had been: its daemon was
 * replaced.  After a restart of this one it is so with all of them, and nothing is known.
 * Until then nobody is believed not to have an address (directory_expect()), and whoever
 * is back is asked for all of them.
 *
 * Workers cannot ask.  They leave what they want in a list of fixed size under a lock,
 * and wake the main thread; a worker whose wish finds no place looks again later.
 *
 * Threads: the main thread, but for directory_want() and directory_expects().
 */
#include "directory/entry.h"

#include <errno.h>
#include <glib.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/fdwatch.h"
#include "base/log.h"
#include "objects/vm.h"

#define ASK_NS    2000000000u /* longer nobody waits for an answer */
#define ABSENT_NS 1000000000u /* as long "nobody" is believed */
#define SWEEP_MS  100u

#define MAX_WANTS 256u
#define VM_WANTS  16u

struct remote_box {
    struct remote remote; /* first */
    struct dead dead;
};

/* A peer that has claimed something. */
struct claimant {
    struct peer *peer;
    GHashTable *owners; /* of struct owned, which is its own key */
    TAILQ_HEAD(, entry) entries;
    unsigned n;
    bool linked;
    bool away; /* for too long: what is left of it is held, and free to be claimed */
};

/* Whose addresses they are. */
struct owned {
    uint64_t owner[2];
    const char *network; /* interned */
    unsigned n;
};

TAILQ_HEAD(asking, entry);

struct want {
    uint32_t vm;
    const char *network; /* interned */
    struct pvrdma_gid gid;
};

static const struct directory_engine *engine;
static _Atomic bool reachable;
static _Atomic uint64_t expecting; /* ns: until then links may come back; 0: not */
static GHashTable *claimants;      /* of struct claimant, by peer */
static struct asking asked = TAILQ_HEAD_INITIALIZER(asked);
static struct asking absent = TAILQ_HEAD_INITIALIZER(absent);
static unsigned n_asked;                  /* in both */
static unsigned vm_asked[CONFIG_MAX_VMS]; /* of them */
static guint sweep_timer;
static struct directory_stats stats;

static pthread_mutex_t want_lock = PTHREAD_MUTEX_INITIALIZER; /* protects these two */
static struct want wants[MAX_WANTS];
static unsigned n_wants;
static int want_fd = -1; /* changes while no worker runs */
static guint want_watch;

static struct remote *remote_of(const struct entry *e)
{
    return atomic_load(&e->route.remote);
}

/* Who has it, so that nobody need be asked?  Whoever has no link may not have it now. */
static bool is_known(const struct entry *e)
{
    return atomic_load(&e->route.vm) || e->left_until || remote_is_linked(e);
}

bool directory_expects(void)
{
    uint64_t until = atomic_load_explicit(&expecting, memory_order_relaxed);

    return until && now_ns() < until;
}

/*
 * How many of @all places one VM may have when so many are taken: @most, or an eighth of
 * what is left.  As many VMs as there may be have some of each other's.
 */
static unsigned share(unsigned all, unsigned taken, unsigned most)
{
    return MIN(most, (all - taken) / 8);
}

/* ---- asking ---- */

static struct asking *list_of(const struct entry *e)
{
    return atomic_load(&e->route.asked) == ROUTE_ASKED ? &asked : &absent;
}

static gboolean sweep(gpointer unused);

static void set_asked(struct entry *e, enum route_asked what, uint64_t ns)
{
    atomic_store(&e->route.asked, what);
    e->asked_until = MAX(now_ns() + ns, atomic_load(&expecting));
    TAILQ_INSERT_TAIL(list_of(e), e, asking);
    if (!sweep_timer) {
        sweep_timer = g_timeout_add(SWEEP_MS, sweep, NULL);
    }
}

/* Those that @asker has under way; NULL: they are not counted. */
static unsigned *count_of(uint32_t asker)
{
    static unsigned of_waits;

    return asker == ASKER_NONE    ? NULL
           : asker == ASKER_WAITS ? &of_waits
                                  : &vm_asked[asker];
}

void remote_not_asked(struct entry *e)
{
    uint8_t was = atomic_load(&e->route.asked);

    e->ask_later = false;
    if (was == ROUTE_NOT_ASKED) {
        return;
    }
    TAILQ_REMOVE(list_of(e), e, asking);
    atomic_store(&e->route.asked, ROUTE_NOT_ASKED);
    n_asked--;
    if (count_of(e->asker)) {
        (*count_of(e->asker))--;
    }
    if (was == ROUTE_ASKED) {
        engine->give_up(e->network, &e->gid);
    }
}

/* While links are to come back that is not known: it goes on being asked for. */
static void nobody_has(struct entry *e)
{
    if (atomic_load(&e->route.asked) != ROUTE_ASKED) {
        return;
    }
    TAILQ_REMOVE(&asked, e, asking);
    if (directory_expects()) {
        set_asked(e, ROUTE_ASKED, ASK_NS);
        return;
    }
    set_asked(e, ROUTE_ABSENT, ABSENT_NS);
    entry_tell(e);
    entry_settle(e);
}

/* Whose time is over.  An entry with references is asked for when somebody does so. */
static gboolean sweep(gpointer unused)
{
    uint64_t now = now_ns();
    struct entry *e;

    while ((e = TAILQ_FIRST(&asked)) && e->asked_until <= now) {
        engine->give_up(e->network, &e->gid);
        nobody_has(e);
    }
    while ((e = TAILQ_FIRST(&absent)) && e->asked_until <= now) {
        remote_not_asked(e);
        entry_settle(e);
    }
    if (TAILQ_EMPTY(&asked) && TAILQ_EMPTY(&absent)) {
        sweep_timer = 0;
        return G_SOURCE_REMOVE;
    }
    return G_SOURCE_CONTINUE;
}

/* False: not now.  @most: how many @asker may have under way. */
static bool ask_with(struct entry *e, uint32_t asker, unsigned most)
{
    unsigned *count = count_of(asker);

    e->ask_later = false;
    if (!engine || is_known(e) || atomic_load(&e->route.asked) != ROUTE_NOT_ASKED) {
        return true;
    }
    if (n_asked >= DIRECTORY_MAX_ASKED || (count && *count >= most)) {
        stats.too_many++;
        e->ask_later = e->waiting != NULL;
        return false;
    }
    n_asked++;
    e->asker = asker;
    if (count) {
        (*count)++;
    }
    set_asked(e, ROUTE_ASKED, ASK_NS);
    entry_index(e);
    stats.asks++;
    if (!engine->ask(e->network, &e->gid)) {
        nobody_has(e);
    }
    return true;
}

static bool ask(struct entry *e, uint32_t asker)
{
    return ask_with(e, asker, share(DIRECTORY_MAX_ASKED, n_asked, DIRECTORY_VM_ASKED));
}

bool remote_is_asked(struct entry *e)
{
    if (e->ask_later && n_asked < DIRECTORY_MAX_ASKED) {
        ask_with(e, ASKER_WAITS, DIRECTORY_MAX_ASKED / 2); /* the rest is the senders' */
    }
    return e->ask_later || atomic_load(&e->route.asked) == ROUTE_ASKED;
}

void route_ask(struct route *route, const struct vm *vm)
{
    ask((struct entry *)(void *)route, vm ? vm->id : ASKER_NONE);
}

void directory_look(const char *network, const struct pvrdma_gid *gid)
{
    const struct entry *e = entry_find(network, gid);

    /* Of what is known of a peer, how long it is held may be out of date. */
    if (engine && !(e && (atomic_load(&e->route.vm) || e->left_until))) {
        engine->call(g_intern_string(network), gid);
    }
}

void directory_absent(const char *network, const struct pvrdma_gid *gid)
{
    struct entry *e = entry_find(network, gid);

    if (e) {
        nobody_has(e);
    }
}

/* For all in @list for which somebody wants to know. */
static void ask_again(struct asking *list)
{
    struct asking again = TAILQ_HEAD_INITIALIZER(again);
    struct entry *e;

    TAILQ_CONCAT(&again, list, asking);
    while ((e = TAILQ_FIRST(&again))) {
        uint32_t asker = e->asker;

        TAILQ_REMOVE(&again, e, asking);
        TAILQ_INSERT_TAIL(list, e, asking);
        remote_not_asked(e);
        if (e->refs) {
            ask_with(e, asker, DIRECTORY_MAX_ASKED); /* in the place that it had */
        }
        entry_settle(e);
    }
}

/* Of those whose hosts have been away for long, for which somebody waits. */
static void ask_for_held(void)
{
    GHashTableIter i;
    gpointer p;

    if (!claimants) {
        return;
    }
    g_hash_table_iter_init(&i, claimants);
    while (g_hash_table_iter_next(&i, NULL, &p)) {
        const struct claimant *c = p;
        struct entry *e;

        if (!c->away) {
            continue;
        }
        TAILQ_FOREACH(e, &c->entries, of_peer)
        {
            if (e->refs && !ask(e, ASKER_NONE)) {
                return;
            }
        }
    }
}

void directory_ask_again(void)
{
    ask_again(&absent);
    ask_for_held();
    if (directory_expects()) { /* whoever is back was not among those that were asked */
        ask_again(&asked);
    }
}

void directory_expect(uint64_t ns)
{
    uint64_t now = now_ns();
    struct entry *e;

    atomic_store(&expecting, ns ? now + ns : 0);
    if (!ns) { /* what was asked for has no longer than ever; in order, as it was */
        TAILQ_FOREACH(e, &asked, asking)
        {
            e->asked_until = MIN(e->asked_until, now + ASK_NS);
        }
    }
}

/* ---- what workers want ---- */

/* Place for one more of @vm's; false: it has all it may have, or it is there already. */
static bool may_want(const struct want *w)
{
    unsigned n = 0;

    for (unsigned i = 0; i < n_wants; i++) {
        if (wants[i].vm == w->vm) {
            if (wants[i].network == w->network && gid_equal(&wants[i].gid, &w->gid)) {
                return false;
            }
            n++;
        }
    }
    return n < share(MAX_WANTS, n_wants, VM_WANTS);
}

bool directory_want(const struct vm *vm, const struct route *route, const char *network,
                    const struct pvrdma_gid *gid)
{
    struct want w = {vm->id, network, *gid};
    uint64_t one = 1;
    bool wake = false;

    if (!atomic_load_explicit(&reachable, memory_order_relaxed) && !directory_expects()) {
        return false;
    }
    switch (route ? atomic_load(&route->asked) : ROUTE_NOT_ASKED) {
    case ROUTE_ASKED:
        return true;
    case ROUTE_ABSENT:
        return false;
    default:
        break;
    }
    pthread_mutex_lock(&want_lock);
    if (may_want(&w)) {
        wake = n_wants == 0;
        wants[n_wants++] = w;
    }
    pthread_mutex_unlock(&want_lock);
    if (wake && write(want_fd, &one, sizeof(one)) < 0) {
        log_msg(LOG_LVL_ERROR, "directory: eventfd: %s", g_strerror(errno));
    }
    return true;
}

static gboolean on_want(gint fd, GIOCondition cond, gpointer unused)
{
    struct want taken[MAX_WANTS];
    uint64_t n;

    if (read(fd, &n, sizeof(n)) != sizeof(n)) {
        return G_SOURCE_CONTINUE;
    }
    pthread_mutex_lock(&want_lock);
    n = n_wants;
    memcpy(taken, wants, n * sizeof(taken[0]));
    n_wants = 0;
    pthread_mutex_unlock(&want_lock);
    for (unsigned i = 0; i < n; i++) {
        struct entry *e = entry_find_or_make(taken[i].network, &taken[i].gid);

        ask(e, taken[i].vm);
        entry_settle(e);
    }
    return G_SOURCE_CONTINUE;
}

/* ---- this host's claims ---- */

void remote_bound(struct entry *e)
{
    if (engine) {
        engine->bound(atomic_load(&e->route.vm), e->network, &e->gid);
    }
}

void remote_unbound(struct entry *e)
{
    if (engine) {
        engine->unbound(e->network, &e->gid);
    }
}

void remote_held(struct entry *e)
{
    if (engine) {
        engine->held(e->network, &e->gid, atomic_load(&e->route.held_until));
    }
}

/* As other hosts hear it.  What was left has a claim like any, but cannot give way. */
static bool own_claim(const struct entry *e, struct claim *claim)
{
    struct vm *vm = atomic_load(&e->route.vm);

    if (remote_of(e) || !moves_claim(e, claim)) {
        return false;
    }
    if (vm) {
        rivals_prove(vm, claim);
    }
    return true;
}

bool directory_local(const char *network, const struct pvrdma_gid *gid,
                     struct claim *claim, uint64_t *held_until)
{
    const struct entry *e = entry_find(network, gid);

    if (!e || !own_claim(e, claim)) {
        return false;
    }
    *held_until = atomic_load(&e->route.held_until);
    return true;
}

struct each_local {
    const char *network;
    void (*fn)(const struct pvrdma_gid *gid, const struct claim *claim,
               uint64_t held_until, void *opaque);
    void *opaque;
};

static void each_local(struct entry *e, void *opaque)
{
    const struct each_local *each = opaque;
    struct claim claim;

    if (e->network == each->network && own_claim(e, &claim)) {
        each->fn(&e->gid, &claim, atomic_load(&e->route.held_until), each->opaque);
    }
}

void directory_each_local(const char *network,
                          void (*fn)(const struct pvrdma_gid *gid,
                                     const struct claim *claim, uint64_t held_until,
                                     void *opaque),
                          void *opaque)
{
    struct each_local each = {network, fn, opaque};

    directory_each_held(each_local, &each);
    moves_each_left(each_local, &each);
}

struct each_moved {
    void (*fn)(const char *network, void *opaque);
    void *opaque;
};

static void each_moved(struct entry *e, void *opaque)
{
    const struct each_moved *each = opaque;
    struct claim claim;

    if (moves_claim(e, &claim) && claim.generation > 1) {
        each->fn(e->network, each->opaque);
    }
}

void directory_each_moved(void (*fn)(const char *network, void *opaque), void *opaque)
{
    struct each_moved each = {fn, opaque};

    directory_each_held(each_moved, &each);
}

/* ---- other hosts' claims ---- */

const char *directory_network(const char *network)
{
    GQuark quark = g_quark_try_string(network);

    return quark ? g_quark_to_string(quark) : NULL;
}

static guint owned_hash(gconstpointer opaque)
{
    const struct owned *o = opaque;

    return (guint)(o->owner[0] ^ o->owner[1]) ^ g_direct_hash(o->network);
}

static gboolean owned_equal(gconstpointer a, gconstpointer b)
{
    const struct owned *x = a, *y = b;

    return x->owner[0] == y->owner[0] && x->owner[1] == y->owner[1] &&
           x->network == y->network;
}

/* @e, which has a claim of @c's, is one more of its owner's, or one less. */
static void count_owner(struct claimant *c, const struct entry *e, bool more)
{
    const struct claim *claim = &remote_of(e)->claim;
    struct owned key = {{claim->owner[0], claim->owner[1]}, e->network, 0};
    struct owned *o = g_hash_table_lookup(c->owners, &key);

    if (!o) {
        o = g_memdup2(&key, sizeof(key));
        g_hash_table_add(c->owners, o);
    }
    o->n += more ? 1u : -1u;
    if (!o->n) {
        g_hash_table_remove(c->owners, o);
    }
}

bool directory_has_owner(struct peer *peer, const char *network, const uint64_t owner[2])
{
    const struct claimant *c = claimants ? g_hash_table_lookup(claimants, peer) : NULL;
    struct owned key = {{owner[0], owner[1]}, network, 0};

    return c && g_hash_table_contains(c->owners, &key);
}

static struct claimant *claimant_of(struct peer *peer)
{
    struct claimant *c = claimants ? g_hash_table_lookup(claimants, peer) : NULL;

    if (!c) {
        c = g_new0(struct claimant, 1);
        c->peer = peer;
        TAILQ_INIT(&c->entries);
        c->owners = g_hash_table_new_full(owned_hash, owned_equal, g_free, NULL);
        claimants = claimants ? claimants : g_hash_table_new(NULL, NULL);
        g_hash_table_insert(claimants, peer, c);
    }
    return c;
}

/* It goes if nothing is to be remembered of it. */
static void claimant_settle(struct claimant *c)
{
    if (!c->linked && TAILQ_EMPTY(&c->entries)) {
        g_hash_table_remove(claimants, c->peer);
        g_hash_table_destroy(c->owners);
        g_free(c);
    }
}

/* @r may be NULL.  Workers see the change at once; what they had is freed later. */
static void set_remote(struct entry *e, struct claimant *c, struct remote *r)
{
    struct remote_box *old = (struct remote_box *)(void *)remote_of(e);

    if (e->from) {
        count_owner(e->from, e, false);
    }
    atomic_store(&e->route.remote, r);
    entry_bump(e);
    if (e->from) {
        TAILQ_REMOVE(&e->from->entries, e, of_peer);
        e->from->n--;
        stats.remote--;
    }
    e->from = c;
    if (c) {
        TAILQ_INSERT_HEAD(&c->entries, e, of_peer);
        c->n++;
        stats.remote++;
        count_owner(c, e, true);
    }
    if (old) {
        directory_bury(&old->dead, old);
    }
}

static void set_hold(struct entry *e, uint64_t hold_ns)
{
    uint64_t until = hold_ns ? entry_hold_until(hold_ns) : 0;

    atomic_store(&e->route.held_until, until);
    entry_bump(e);
}

/* May @claim of @c be taken in place of what is known? */
static enum claim_result judge(struct claimant *c, struct entry *e,
                               const struct claim *claim)
{
    enum claim_result result = CLAIM_TAKEN;

    if (e->from != c) {
        result = moves_judge(e, c->peer, claim);
    }
    if (result == CLAIM_TAKEN && e->from != c && c->n >= DIRECTORY_MAX_CLAIMS) {
        stats.too_many++;
        return CLAIM_TOO_MANY;
    }
    if (result != CLAIM_TAKEN && result != CLAIM_OLD) {
        stats.refused++;
        e->contested = true;
    }
    return result;
}

static bool same_proof(const struct claim *a, const struct claim *b)
{
    return memcmp(a->proof, b->proof, sizeof(a->proof)) == 0;
}

enum claim_result directory_claim(struct peer *peer, const char *network,
                                  const struct pvrdma_gid *gid, const struct claim *claim,
                                  uint64_t hold_ns)
{
    struct entry *e = entry_find_or_make(network, gid);
    struct claimant *c = claimant_of(peer);
    enum claim_result result = judge(c, e, claim);
    const struct remote *r = remote_of(e);

    if (result == CLAIM_TAKEN && r && r->peer == peer && same_owner(&r->claim, claim) &&
        r->claim.generation == claim->generation && same_proof(&r->claim, claim)) {
        if (hold_ns || atomic_load(&e->route.held_until)) {
            set_hold(e, hold_ns);
            entry_tell(e);
        }
    } else if (result == CLAIM_TAKEN) {
        struct remote_box *box = g_new0(struct remote_box, 1);
        bool ours;

        box->remote = (struct remote){peer, *claim};
        remote_not_asked(e);
        ours = atomic_load(&e->route.vm) || e->left_until;
        if (e->from != c) {
            moves_release(e);
        }
        set_remote(e, c, &box->remote);
        set_hold(e, hold_ns); /* last: until then it is held if it was */
        if (ours) {
            remote_unbound(e); /* those who do not know the new place ask */
        }
        entry_tell(e);
    }
    entry_settle(e);
    claimant_settle(c);
    return result;
}

struct peer *directory_holder(const char *network, const struct pvrdma_gid *gid,
                              struct claim *claim)
{
    const struct entry *e = entry_find(network, gid);
    const struct remote *r = e ? remote_of(e) : NULL;

    if (!r || !remote_is_linked(e)) {
        return NULL;
    }
    *claim = r->claim;
    return r->peer;
}

void remote_not_contested(struct entry *e)
{
    if (e->contested && engine) {
        e->contested = false;
        if (is_known(e) || atomic_load(&e->route.asked) != ROUTE_NOT_ASKED) {
            engine->call(e->network, &e->gid);
        } else {
            ask(e, ASKER_NONE);
        }
    }
}

/* Nobody is known to have it any more: who refers to it wants to know who has. */
static void lose(struct entry *e)
{
    set_remote(e, NULL, NULL);
    atomic_store(&e->route.held_until, 0);
    if (e->refs) {
        e->contested = false;
        ask(e, ASKER_NONE);
    }
    remote_not_contested(e);
    entry_tell(e);
    entry_settle(e);
}

void remote_clear(struct entry *e)
{
    set_remote(e, NULL, NULL);
}

const char *remote_name(const struct entry *e)
{
    const struct remote *r = remote_of(e);

    return r && engine && engine->peer_name ? engine->peer_name(r->peer) : NULL;
}

bool remote_is_linked(const struct entry *e)
{
    return e->from && e->from->linked;
}

bool remote_is_free(const struct entry *e)
{
    return e->from && e->from->away;
}

static struct entry *claimed_by(const struct peer *peer, const char *network,
                                const struct pvrdma_gid *gid)
{
    struct entry *e = entry_find(network, gid);
    const struct remote *r = e ? remote_of(e) : NULL;

    return r && r->peer == peer ? e : NULL;
}

bool directory_unclaim(struct peer *peer, const char *network,
                       const struct pvrdma_gid *gid)
{
    struct entry *e = claimed_by(peer, network, gid);

    if (e) {
        lose(e);
    }
    return e != NULL;
}

void directory_hold_remote(struct peer *peer, const char *network,
                           const struct pvrdma_gid *gid, uint64_t hold_ns)
{
    struct entry *e = claimed_by(peer, network, gid);

    if (e) {
        set_hold(e, hold_ns);
        if (hold_ns) {
            remote_not_contested(e);
        }
        entry_tell(e);
    }
}

void directory_linked(struct peer *peer, bool linked)
{
    struct claimant *c = claimant_of(peer);
    struct entry *e;

    c->linked = linked;
    c->away = false;
    TAILQ_FOREACH(e, &c->entries, of_peer)
    {
        if (linked) {
            remote_not_asked(e); /* what it says now holds */
        } else {
            remote_not_contested(e);
        }
    }
    claimant_settle(c);
}

void directory_forget(struct peer *peer, bool unused_only,
                      void (*left)(const char *network, const struct pvrdma_gid *gid,
                                   void *opaque),
                      void *opaque)
{
    struct claimant *c = claimants ? g_hash_table_lookup(claimants, peer) : NULL;
    struct entry *e, *next;

    for (e = c ? TAILQ_FIRST(&c->entries) : NULL; e; e = next) {
        next = TAILQ_NEXT(e, of_peer);
        if (!unused_only || !e->refs) {
            lose(e);
        } else if (left) {
            left(e->network, &e->gid, opaque);
        }
    }
    if (c) {
        claimant_settle(c);
    }
}

/*
 * Whoever else has it may say so now.  There may be more than can be asked for at a time:
 * what was is the last the next time.
 */
static void look_elsewhere(struct claimant *c, struct entry *e)
{
    e->contested |= e->refs > 0;
    if (atomic_load(&e->route.asked) == ROUTE_NOT_ASKED &&
        n_asked >= DIRECTORY_MAX_ASKED) {
        e->ask_later = e->waiting != NULL; /* it is anybody's, but somebody may have it */
        return;
    }
    remote_not_contested(e);
    if (atomic_load(&e->route.asked) != ROUTE_NOT_ASKED) {
        TAILQ_REMOVE(&c->entries, e, of_peer);
        TAILQ_INSERT_TAIL(&c->entries, e, of_peer);
    }
}

uint64_t directory_abandon(struct peer *peer)
{
    struct claimant *c = claimants ? g_hash_table_lookup(claimants, peer) : NULL;
    struct entry *e, *next;
    uint64_t now = now_ns(), first = UINT64_MAX;
    unsigned n = c ? c->n : 0;

    if (!c) {
        return 0;
    }
    c->away = true;
    for (e = TAILQ_FIRST(&c->entries); e && n > 0; e = next, n--) {
        uint64_t until = atomic_load(&e->route.held_until);

        next = TAILQ_NEXT(e, of_peer);
        if (until <= now) {
            lose(e);
            continue;
        }
        first = MIN(first, until);
        look_elsewhere(c, e);
        waiting_look(e);
    }
    claimant_settle(c);
    return first == UINT64_MAX ? 0 : first - now;
}

/* ---- start and stop ---- */

void directory_set_reachable(bool yes)
{
    atomic_store(&reachable, yes);
}

static void clear_asked(void)
{
    struct entry *e;

    while ((e = TAILQ_FIRST(&asked)) || (e = TAILQ_FIRST(&absent))) {
        remote_not_asked(e);
        entry_settle(e);
    }
    if (sweep_timer) {
        g_source_remove(sweep_timer);
        sweep_timer = 0;
    }
}

static void clear_claims(void)
{
    g_autoptr(GList) all = claimants ? g_hash_table_get_keys(claimants) : NULL;

    for (GList *l = all; l; l = l->next) {
        directory_forget(l->data, false, NULL, NULL);
        if (g_hash_table_contains(claimants, l->data)) {
            directory_linked(l->data, false);
        }
    }
    g_clear_pointer(&claimants, g_hash_table_destroy);
}

int directory_set_engine(const struct directory_engine *which)
{
    atomic_store(&reachable, false);
    atomic_store(&expecting, 0);
    if (engine) {
        clear_claims(); /* may ask */
        clear_asked();
    }
    engine = which;
    stats = (struct directory_stats){.engine = which ? which->name : NULL};
    if (which && want_fd < 0) {
        want_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        if (want_fd < 0) {
            engine = NULL;
            return errno;
        }
        want_watch = fdwatch_add(want_fd, G_IO_IN, on_want, NULL);
    } else if (!which && want_fd >= 0) {
        fdwatch_remove(want_watch);
        close(want_fd);
        want_fd = -1;
        n_wants = 0;
    }
    return 0;
}

void remote_fini(void)
{
    directory_set_host(NULL);
    directory_set_engine(NULL);
}

void directory_get_stats(struct directory_stats *st)
{
    *st = stats;
    st->local = directory_count();
    st->left = moves_left();
    st->waiting = waiting_count();
    st->asked = n_asked;
}
