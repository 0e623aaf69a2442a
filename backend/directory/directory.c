/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The directory of this host.
 *
 * One hash table from (network, GID) to an entry: the route, who holds it, how often
 * it is claimed and referred to.  Keys own a copy of the network's name, because a
 * VM's configuration goes away with the VM.  The entries of one VM are in a list, so
 * that the end of a QP costs as many steps as its VM has addresses.
 *
 * Threads: the table is the main thread's.  Workers read the fields of a route that
 * they refer to; no lock is needed.
 */
#include "directory/directory.h"

#include <errno.h>
#include <glib.h>
#include <string.h>
#include <sys/queue.h>

#include "objects/vm.h"

struct entry {
    struct route route; /* first */
    char *network;
    struct pvrdma_gid gid;
    unsigned claims; /* of route.vm */
    unsigned refs;   /* route_get() calls not undone */
    LIST_ENTRY(entry) of_vm;
};

static GHashTable *table;                       /* set of struct entry */
static LIST_HEAD(, entry) held[CONFIG_MAX_VMS]; /* by the holder's id */
static unsigned n_held;

static guint entry_hash(gconstpointer key)
{
    const struct entry *e = key;
    guint h = g_str_hash(e->network);

    for (unsigned i = 0; i < sizeof(e->gid.raw); i++) {
        h = h * 33 + e->gid.raw[i];
    }
    return h;
}

static gboolean entry_equal(gconstpointer x, gconstpointer y)
{
    const struct entry *a = x, *b = y;

    return gid_equal(&a->gid, &b->gid) && strcmp(a->network, b->network) == 0;
}

static void entry_free(gpointer p)
{
    struct entry *e = p;

    g_free(e->network);
    g_free(e);
}

void directory_init(void)
{
    if (!table) {
        table = g_hash_table_new_full(entry_hash, entry_equal, entry_free, NULL);
    }
}

void directory_fini(void)
{
    g_clear_pointer(&table, g_hash_table_destroy);
}

static struct entry *find(const char *network, const struct pvrdma_gid *gid)
{
    struct entry key = {.network = (char *)network, .gid = *gid};

    directory_init();
    return g_hash_table_lookup(table, &key);
}

static struct entry *find_or_make(const char *network, const struct pvrdma_gid *gid)
{
    struct entry *e = find(network, gid);

    if (!e) {
        e = g_new0(struct entry, 1);
        e->network = g_strdup(network);
        e->gid = *gid;
        atomic_store(&e->route.gen, 1);
        g_hash_table_add(table, e);
    }
    return e;
}

static void drop_if_unused(struct entry *e)
{
    if (!e->claims && !e->refs) {
        g_hash_table_remove(table, e);
    }
}

static void bump(struct entry *e)
{
    atomic_fetch_add(&e->route.gen, 1);
}

int directory_bind(struct vm *vm, const struct pvrdma_gid *gid)
{
    struct entry *e = find_or_make(vm->cfg->network, gid);
    struct vm *holder = atomic_load(&e->route.vm);

    if (holder && holder != vm) {
        return EADDRINUSE;
    }
    if (e->claims++ == 0) {
        atomic_store(&e->route.held_until,
                     atomic_load(&vm->dp.paused) ? ROUTE_HELD_FOREVER : 0);
        atomic_store(&e->route.vm, vm);
        bump(e);
        LIST_INSERT_HEAD(&held[vm->id], e, of_vm);
        n_held++;
    }
    return 0;
}

void directory_unbind(struct vm *vm, const struct pvrdma_gid *gid)
{
    struct entry *e = find(vm->cfg->network, gid);

    if (!e || atomic_load(&e->route.vm) != vm || --e->claims > 0) {
        return;
    }
    atomic_store(&e->route.vm, NULL);
    atomic_store(&e->route.held_until, 0);
    bump(e);
    LIST_REMOVE(e, of_vm);
    n_held--;
    drop_if_unused(e);
}

struct route *route_get(const char *network, const struct pvrdma_gid *gid)
{
    struct entry *e = find_or_make(network, gid);

    e->refs++;
    return &e->route;
}

void route_put(struct route *route)
{
    struct entry *e = (struct entry *)(void *)route;

    if (e) {
        e->refs--;
        drop_if_unused(e);
    }
}

void directory_bump(struct vm *vm)
{
    struct entry *e;

    LIST_FOREACH(e, &held[vm->id], of_vm)
    {
        bump(e);
    }
}

void directory_hold(struct vm *vm, uint64_t until)
{
    struct entry *e;

    LIST_FOREACH(e, &held[vm->id], of_vm)
    {
        atomic_store(&e->route.held_until, until);
        bump(e);
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
