/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The directory of this host.
 *
 * One hash table from (network, GID) to an entry: the route, who holds it, how often
 * it is claimed and referred to.  The entries of one VM are in a list, so that the end
 * of a QP costs as many steps as its VM has addresses.
 *
 * The entries that are held, here or on another host, or asked for are also in an index
 * for the workers, which send each datagram to another address if they like: chains
 * from fixed places, followed without a lock.  Nothing else is there, so a guest makes a
 * chain longer by no more than the addresses it may have and may ask for, whatever its
 * QPs are connected to; and the hash begins with a random number.  An entry is freed a
 * grace period after it was taken out.
 *
 * Names of networks are interned: a VM's configuration goes away with the VM, and a
 * daemon sees few of them, all from its administrator.
 *
 * Threads: the table is the main thread's.  Workers follow the index and read the
 * fields of a route that they refer to or found there; no lock is needed.
 */
#include "directory/entry.h"

#include <errno.h>
#include <glib.h>
#include <string.h>
#include <sys/random.h>

#include "base/grace.h"
#include "base/log.h"
#include "objects/vm.h"

/* Places of the index; a power of two. */
#define INDEX_SIZE 4096u

static GHashTable *table;                       /* set of struct entry */
static LIST_HEAD(, entry) held[CONFIG_MAX_VMS]; /* by the holder's id */
static unsigned n_held;
static _Atomic(struct entry *) places[INDEX_SIZE];
static uint64_t seed[2]; /* of the hash; does not change once there is an entry */
/* Those that wait for the end of dying_period, and those that died since it began. */
STAILQ_HEAD(dead_list, dead);
static struct dead_list dying = STAILQ_HEAD_INITIALIZER(dying),
                        dead_since = STAILQ_HEAD_INITIALIZER(dead_since);
static uint64_t dying_period;
static void (*watcher)(struct route *route);
static void (*listener)(void);
static uint64_t max_hold = DIRECTORY_MAX_HOLD_NS;

uint64_t directory_hash(const char *network, const struct pvrdma_gid *gid)
{
    uint64_t w[2];
    unsigned __int128 m;

    memcpy(w, gid->raw, sizeof(w));
    m = (unsigned __int128)(w[0] ^ seed[0] ^ (uintptr_t)network) * (w[1] ^ seed[1]);
    return (uint64_t)m ^ (uint64_t)(m >> 64);
}

static guint entry_hash(gconstpointer key)
{
    const struct entry *e = key;

    return (guint)directory_hash(e->network, &e->gid);
}

static gboolean entry_equal(gconstpointer x, gconstpointer y)
{
    const struct entry *a = x, *b = y;

    return gid_equal(&a->gid, &b->gid) && a->network == b->network;
}

/*
 * Free the dead, but those that a worker may still be at.  However many there are, one
 * grace period at a time runs for them: others' turns end early for each.
 */
static void free_dead(void)
{
    struct dead *d;

    while (STAILQ_EMPTY(&dying) || grace_is_over(dying_period)) {
        while ((d = STAILQ_FIRST(&dying))) {
            STAILQ_REMOVE_HEAD(&dying, next);
            g_free(d->what);
        }
        if (STAILQ_EMPTY(&dead_since)) {
            return;
        }
        STAILQ_CONCAT(&dying, &dead_since);
        dying_period = grace_begin();
    }
}

/* What is left of the dead is freed with later ones. */
void directory_bury(struct dead *d, void *what)
{
    d->what = what;
    STAILQ_INSERT_TAIL(&dead_since, d, next);
    free_dead();
}

/* No table leads to it any more. */
static void entry_dies(gpointer p)
{
    struct entry *e = p;

    directory_bury(&e->dead, e);
}

void directory_init(void)
{
    if (!table) {
        while (getrandom(seed, sizeof(seed), 0) != sizeof(seed)) {
        }
        table = g_hash_table_new_full(entry_hash, entry_equal, entry_dies, NULL);
    }
}

void directory_fini(void)
{
    waiting_fini();
    remote_fini();
    moves_fini();
    past_fini();
    watcher = NULL;
    listener = NULL;
    max_hold = DIRECTORY_MAX_HOLD_NS;
    for (unsigned i = 0; i < INDEX_SIZE; i++) {
        atomic_store(&places[i], NULL);
    }
    g_clear_pointer(&table, g_hash_table_destroy);
    free_dead();
}

/* ---- the index ---- */

static _Atomic(struct entry *) *place_of(const char *network,
                                         const struct pvrdma_gid *gid)
{
    return &places[directory_hash(network, gid) & (INDEX_SIZE - 1)];
}

/*
 * A worker may be at @e in its chain from the last time: it goes on from the head then,
 * and misses nothing.
 */
static void index_add(struct entry *e)
{
    _Atomic(struct entry *) *place = place_of(e->network, &e->gid);

    atomic_store_explicit(&e->next, atomic_load(place), memory_order_release);
    atomic_store_explicit(place, e, memory_order_release);
}

static void index_remove(struct entry *e)
{
    _Atomic(struct entry *) *p = place_of(e->network, &e->gid);

    while (atomic_load(p) != e) {
        p = &atomic_load(p)->next;
    }
    /* Its own link stays, for who is at it. */
    atomic_store_explicit(p, atomic_load(&e->next), memory_order_release);
}

const struct route *route_find(const char *network, const struct pvrdma_gid *gid)
{
    struct entry *e = atomic_load_explicit(place_of(network, gid), memory_order_acquire);

    while (e && (e->network != network || !gid_equal(&e->gid, gid))) {
        e = atomic_load_explicit(&e->next, memory_order_acquire);
    }
    return e ? &e->route : NULL;
}

/* ---- the table ---- */

void entry_index(struct entry *e)
{
    bool want = e->claims || e->left_until || atomic_load(&e->route.remote) ||
                atomic_load(&e->route.asked) != ROUTE_NOT_ASKED;

    if (want != e->indexed) {
        (want ? index_add : index_remove)(e);
        e->indexed = want;
    }
}

struct entry *entry_find(const char *network, const struct pvrdma_gid *gid)
{
    struct entry key = {.network = g_intern_string(network), .gid = *gid};

    directory_init();
    return g_hash_table_lookup(table, &key);
}

struct entry *entry_find_or_make(const char *network, const struct pvrdma_gid *gid)
{
    struct entry *e = entry_find(network, gid);

    if (!e) {
        e = g_new0(struct entry, 1);
        e->network = g_intern_string(network);
        e->gid = *gid;
        atomic_store(&e->route.gen, 1);
        g_hash_table_add(table, e);
    }
    return e;
}

void entry_settle(struct entry *e)
{
    entry_index(e);
    if (!e->claims && !e->refs && !e->indexed) {
        g_hash_table_remove(table, e);
    }
}

void entry_bump(struct entry *e)
{
    atomic_fetch_add(&e->route.gen, 1);
}

void directory_set_watcher(void (*changed)(struct route *route))
{
    watcher = changed;
}

void directory_set_listener(void (*fn)(void))
{
    listener = fn;
}

void entry_tell(struct entry *e)
{
    if (listener && !atomic_load(&e->route.held_until)) {
        listener();
    }
    if (watcher && e->refs) {
        e->refs++; /* it may put its own */
        watcher(&e->route);
        e->refs--;
    }
    waiting_look(e);
}

void directory_set_max_hold(uint64_t ns)
{
    max_hold = MIN(ns, DIRECTORY_MAX_HOLD_NS);
}

uint64_t entry_hold_until(uint64_t ns)
{
    return now_ns() + MIN(ns, max_hold);
}

/* The same VM is at two places. */
static void say_in_use(struct vm *vm, const struct pvrdma_gid *gid,
                       const struct claim *own, const struct claim *now)
{
    char text[CONFIG_GID_STRLEN];

    if (own->owner[0] == now->owner[0] && own->owner[1] == now->owner[1]) {
        config_format_gid(gid, text);
        log_vm(LOG_LVL_WARN, vm, "%s is not available: %s", text,
               own->generation > now->generation ? "this VM still runs elsewhere"
                                                 : "this VM has since moved elsewhere");
    }
}

struct claim directory_claim_of(const struct vm *vm)
{
    const struct vm_identity *id = &vm->identity;

    return (struct claim){{id->owner[0], id->owner[1]}, id->generation};
}

bool entry_may_bind(const struct entry *e, struct vm *vm)
{
    struct claim own = directory_claim_of(vm), now;

    return atomic_load(&e->route.vm) == vm || !moves_claim(e, &now) ||
           moves_judge(e, NULL, &own) == CLAIM_TAKEN || moves_is_former(e, vm);
}

static bool may_bind(struct vm *vm, const struct pvrdma_gid *gid)
{
    const struct entry *e = entry_find(vm->cfg->network, gid);
    struct claim own = directory_claim_of(vm), now;

    if (!e || entry_may_bind(e, vm)) {
        return true;
    }
    moves_claim(e, &now);
    say_in_use(vm, gid, &own, &now);
    return false;
}

/* Wherever it was, it is here now. */
void entry_bind_one(struct entry *e, struct vm *vm)
{
    bool paused = atomic_load(&vm->dp.paused);
    uint64_t until = paused ? entry_hold_until(max_hold) : 0;
    struct claim was;

    e->refs++; /* it stays, whatever it was */
    if (moves_is_former(e, vm)) {
        moves_forget(vm);
    }
    e->refs--;
    if (atomic_load(&e->route.vm) != vm && moves_claim(e, &was)) {
        moves_release(e);
    }
    if (e->claims++ == 0) {
        remote_not_asked(e);
        /* Who waits goes on waiting until the VM is there, and if that is paused. */
        if (paused) {
            atomic_store(&e->route.held_until, until);
        }
        atomic_store(&e->route.vm, vm);
        atomic_store(&e->route.held_until, until);
        entry_bump(e);
        LIST_INSERT_HEAD(&held[vm->id], e, of_vm);
        entry_index(e);
        n_held++;
        remote_bound(e);
        entry_tell(e);
    }
}

/*
 * Whoever an address is taken from does not run any more, so that none is taken before
 * all may be.  In between nothing waits, and nothing but time passes.
 */
int directory_bind_all(struct vm *vm, const struct pvrdma_gid *gid, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        if (!may_bind(vm, &gid[i])) {
            return EADDRINUSE;
        }
    }
    for (unsigned i = 0; i < n; i++) {
        entry_bind_one(entry_find_or_make(vm->cfg->network, &gid[i]), vm);
    }
    return 0;
}

int directory_bind(struct vm *vm, const struct pvrdma_gid *gid)
{
    return directory_bind_all(vm, gid, 1);
}

void directory_unbind(struct vm *vm, const struct pvrdma_gid *gid)
{
    struct entry *e = entry_find(vm->cfg->network, gid);

    if (!e || atomic_load(&e->route.vm) != vm || --e->claims > 0) {
        return;
    }
    entry_take_from_vm(e, vm);
    /* Last: who sees it not held any more must not find the VM, which stands still. */
    atomic_store(&e->route.held_until, 0);
    remote_unbound(e);
    remote_not_contested(e);
    entry_tell(e);
    entry_settle(e);
}

void entry_take_from_vm(struct entry *e, struct vm *vm)
{
    atomic_store(&e->route.vm, NULL);
    entry_bump(e);
    e->claims = 0;
    LIST_REMOVE(e, of_vm);
    n_held--;
}

void directory_went_on(struct vm *vm)
{
    struct entry *e;

    vm->identity.generation += 2; /* who was begun from its state has one more */
    LIST_FOREACH(e, &held[vm->id], of_vm)
    {
        remote_bound(e);
    }
}

void directory_left(struct vm *vm, uint64_t clock, uint64_t ns)
{
    struct entry *e;

    moves_forget(vm);
    while ((e = LIST_FIRST(&held[vm->id]))) {
        entry_take_from_vm(e, vm);
        moves_leave(e, vm, clock, ns);
    }
}

struct route *route_get(const char *network, const struct pvrdma_gid *gid)
{
    struct entry *e = entry_find_or_make(network, gid);

    e->refs++;
    return &e->route;
}

void route_put(struct route *route)
{
    struct entry *e = (struct entry *)(void *)route;

    if (e) {
        e->refs--;
        entry_settle(e);
    }
}

void directory_bump(struct vm *vm)
{
    struct entry *e;

    LIST_FOREACH(e, &held[vm->id], of_vm)
    {
        entry_bump(e);
    }
}

void directory_hold(struct vm *vm, uint64_t ns)
{
    uint64_t until = ns ? entry_hold_until(ns) : 0;
    struct entry *e;

    LIST_FOREACH(e, &held[vm->id], of_vm)
    {
        atomic_store(&e->route.held_until, until);
        entry_bump(e);
        remote_held(e);
        entry_tell(e);
    }
}

void directory_each_held(void (*fn)(struct entry *e, void *opaque), void *opaque)
{
    struct entry *e;

    for (unsigned i = 0; i < CONFIG_MAX_VMS; i++) {
        LIST_FOREACH(e, &held[i], of_vm)
        {
            fn(e, opaque);
        }
    }
}

unsigned directory_count(void)
{
    return n_held;
}

unsigned directory_routes(void)
{
    return table ? g_hash_table_size(table) : 0;
}
