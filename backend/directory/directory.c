/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The directory of this host: which VM holds which GID of which network.
 *
 * One hash table from (network, GID) to the VM and the number of its claims.
 * Keys own a copy of the network's name, because a VM's configuration goes
 * away with the VM.  The main thread claims and releases; any thread looks up
 * while it holds directory_lock, a leaf lock.
 */
#include "directory/directory.h"

#include <errno.h>
#include <glib.h>
#include <pthread.h>
#include <string.h>

#include "objects/vm.h"

struct wire_addr {
    const char *network;
    struct pvrdma_gid gid;
};

struct holder {
    struct wire_addr addr; /* key of the table; network is owned */
    struct vm *vm;
    unsigned claims;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static GHashTable *table; /* struct wire_addr * -> struct holder * */

static guint addr_hash(gconstpointer key)
{
    const struct wire_addr *a = key;
    guint h = g_str_hash(a->network);

    for (unsigned i = 0; i < sizeof(a->gid.raw); i++) {
        h = h * 33 + a->gid.raw[i];
    }
    return h;
}

static gboolean addr_equal(gconstpointer x, gconstpointer y)
{
    const struct wire_addr *a = x, *b = y;

    return memcmp(&a->gid, &b->gid, sizeof(a->gid)) == 0 &&
           strcmp(a->network, b->network) == 0;
}

static void holder_free(gpointer p)
{
    struct holder *h = p;

    g_free((char *)h->addr.network);
    g_free(h);
}

void directory_init(void)
{
    pthread_mutex_lock(&lock);
    if (!table) {
        table = g_hash_table_new_full(addr_hash, addr_equal, NULL, holder_free);
    }
    pthread_mutex_unlock(&lock);
}

void directory_lock(void)
{
    pthread_mutex_lock(&lock);
}

void directory_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

static struct holder *find_holder(const char *network, const struct pvrdma_gid *gid)
{
    struct wire_addr key = {.network = network, .gid = *gid};

    return table ? g_hash_table_lookup(table, &key) : NULL;
}

int directory_bind(struct vm *vm, const struct pvrdma_gid *gid)
{
    struct holder *h;
    int err = 0;

    directory_init();
    pthread_mutex_lock(&lock);
    h = find_holder(vm->cfg->network, gid);
    if (!h) {
        h = g_new0(struct holder, 1);
        h->addr.network = g_strdup(vm->cfg->network);
        h->addr.gid = *gid;
        h->vm = vm;
        g_hash_table_insert(table, &h->addr, h);
    }
    if (h->vm == vm) {
        h->claims++;
    } else {
        err = EADDRINUSE;
    }
    pthread_mutex_unlock(&lock);
    return err;
}

void directory_unbind(struct vm *vm, const struct pvrdma_gid *gid)
{
    struct holder *h;

    pthread_mutex_lock(&lock);
    h = find_holder(vm->cfg->network, gid);
    if (h && h->vm == vm && --h->claims == 0) {
        g_hash_table_remove(table, &h->addr);
    }
    pthread_mutex_unlock(&lock);
}

struct vm *directory_find(const char *network, const struct pvrdma_gid *gid)
{
    struct holder *h = find_holder(network, gid);

    return h ? h->vm : NULL;
}

unsigned directory_count(void)
{
    unsigned n;

    pthread_mutex_lock(&lock);
    n = table ? g_hash_table_size(table) : 0;
    pthread_mutex_unlock(&lock);
    return n;
}

void directory_fini(void)
{
    pthread_mutex_lock(&lock);
    g_clear_pointer(&table, g_hash_table_destroy);
    pthread_mutex_unlock(&lock);
}
