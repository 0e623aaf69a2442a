/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Saved states of VMs that are of the past: what was connected to such a VM has gone on
 * without it, or has given up.
 *
 * A state is known by its owner and the guest's clock in it, which stands still while the
 * VM does.  So copies of it are the same; two VMs that were put back from one state are
 * not, as soon as they have run, and nothing that is saved of either is taken for what
 * the other left behind (generations would say the same of both).  A state is of the past
 * once a VM has run on from it here, whether it is the one that was saved or was begun
 * from it, or once the VM has left and was waited for in vain (moves.c).  Who is begun
 * from it later does not know that by itself: the VMM is another then.
 *
 * Only so many are known, the latest, and of those of one VM of this host so few that
 * nobody pushes out all that others have.  A daemon knows none of those from before it
 * began.
 *
 * Main thread.
 */
#include "directory/entry.h"

#include <glib.h>

#include "objects/vm.h"

#define PAST_MAX   1024u
#define PAST_OF_VM 32u

struct past {
    uint64_t owner[2], clock;
    uint64_t serial; /* of the VM that it was */
    TAILQ_ENTRY(past) link;
};

static GHashTable *table; /* set of struct past; NULL: there was none yet */
static TAILQ_HEAD(, past) pasts = TAILQ_HEAD_INITIALIZER(pasts); /* in order of time */

static guint past_hash(gconstpointer key)
{
    const struct past *p = key;

    return (guint)(p->owner[0] ^ p->clock ^ (p->clock >> 32));
}

static gboolean past_equal(gconstpointer x, gconstpointer y)
{
    const struct past *a = x, *b = y;

    return a->owner[0] == b->owner[0] && a->owner[1] == b->owner[1] &&
           a->clock == b->clock;
}

static struct past *find(const uint64_t owner[2], uint64_t clock)
{
    struct past key = {.owner = {owner[0], owner[1]}, .clock = clock};

    return table ? g_hash_table_lookup(table, &key) : NULL;
}

static void forget(struct past *p)
{
    g_hash_table_remove(table, p);
    TAILQ_REMOVE(&pasts, p, link);
    g_free(p);
}

/* There is room for one more of @serial. */
static void make_room(uint64_t serial)
{
    struct past *p, *first = NULL;
    unsigned n = 0;

    TAILQ_FOREACH(p, &pasts, link)
    {
        if (p->serial == serial) {
            first = first ? first : p;
            n++;
        }
    }
    if (n >= PAST_OF_VM) {
        forget(first);
    } else if (g_hash_table_size(table) >= PAST_MAX) {
        forget(TAILQ_FIRST(&pasts));
    }
}

void past_add(const uint64_t owner[2], uint64_t clock, uint64_t serial)
{
    struct past *p = find(owner, clock);

    if (p) { /* that VM had several addresses, or it is said again */
        TAILQ_REMOVE(&pasts, p, link);
        TAILQ_INSERT_TAIL(&pasts, p, link);
        return;
    }
    if (!table) {
        table = g_hash_table_new(past_hash, past_equal);
    }
    make_room(serial);
    p = g_new0(struct past, 1);
    *p = (struct past){{owner[0], owner[1]}, clock, serial};
    TAILQ_INSERT_TAIL(&pasts, p, link);
    g_hash_table_add(table, p);
}

void past_fini(void)
{
    while (!TAILQ_EMPTY(&pasts)) {
        forget(TAILQ_FIRST(&pasts));
    }
    g_clear_pointer(&table, g_hash_table_destroy);
}

void directory_ran_on(const struct vm *vm, uint64_t clock)
{
    past_add(vm->identity.owner, clock, vm->serial);
}

bool directory_is_past(const struct vm *vm, uint64_t clock)
{
    return find(vm->identity.owner, clock) != NULL;
}
