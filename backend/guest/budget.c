/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Budgets of address space, mappings and objects' memory.
 *
 * A process has 128 TiB of addresses and vm.max_map_count mappings.  A VMM can ask
 * for terabytes of a sparse file at no cost to itself, and once either runs out,
 * malloc() and thread creation fail for everybody.  So both are counted: per guest
 * against its own limits, in all against the daemon's.
 *
 * Half of the daemon's budget is reserved, in equal shares for BUDGET_SHARES guests;
 * what a guest has beyond its share comes out of the other half.  However much
 * others take, a guest always gets its share.
 *
 * What is out of use is pending until the reaper has unmapped it, and counts until
 * then.  A guest may have pending what it ever had in use at a time, and some more,
 * but no more than its own limits: a VM that restarts is served at once, one that
 * comes and goes faster than its memory is unmapped is not.
 *
 * Objects cost a guest nothing either: it registers the same pages over and over, and the
 * list of each region is the daemon's memory.  A guest has limits of its own (max-qp,
 * max-mr-pages and others); of what all may have, half is reserved likewise.
 *
 * Threads: the main thread takes, the reaper gives back; one lock for everything.
 */
#include "guest/budget.h"

#include <glib.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "config/config.h"
#include "guest/sigbus.h"

/* May be pending in any case. */
#define PENDING_SLACK (UINT64_C(4) << 30)

/* Pending ones that are no offence, even if max-files is small. */
#define SPARE_MAPPINGS 16u

/* A guest's share of the mappings, if there are enough. */
#define SHARE_MAPPINGS 8u

struct budget {
    unsigned refs;
    uint64_t bytes, mappings, pending;
    uint64_t peak; /* most that was in use at a time */
    uint64_t max_bytes, max_mappings;
    uint64_t objects, objects_refused;
};

/* One kind of thing that all guests share. */
struct pool {
    uint64_t max;
    uint64_t share; /* each guest's own */
    uint64_t used;
    uint64_t beyond; /* of used: what is beyond the shares */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pool pool_bytes, pool_mappings, pool_objects;
static uint64_t all_objects_refused;
static uint64_t all_pending;
static bool trusted;

static uint64_t max_map_count(void)
{
    FILE *f = fopen("/proc/sys/vm/max_map_count", "re");
    unsigned long long n = 65530; /* the kernel's default */

    if (f) {
        if (fscanf(f, "%llu", &n) != 1) {
            n = 65530;
        }
        fclose(f);
    }
    return n;
}

/* The other half of the mappings is for covers (sigbus.c) and the daemon itself. */
static void pools_init(uint64_t max_bytes)
{
    pool_bytes.max = max_bytes;
    pool_bytes.share = max_bytes / 2 / BUDGET_SHARES;
    pool_mappings.max = MIN(SIGBUS_MAX_GUARDS, max_map_count() / 2);
    pool_mappings.share = MIN(SHARE_MAPPINGS, pool_mappings.max / 2 / BUDGET_SHARES);
}

static void objects_init(uint64_t max_bytes)
{
    if (!max_bytes) {
        max_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) / BUDGET_OBJECTS_PART *
                    (uint64_t)sysconf(_SC_PAGESIZE);
        max_bytes = MIN(max_bytes, CONFIG_MAX_OBJECTS);
    }
    pool_objects.max = max_bytes;
    pool_objects.share = max_bytes / 2 / BUDGET_SHARES;
}

void budget_set_objects(uint64_t max_bytes)
{
    pthread_mutex_lock(&lock);
    objects_init(max_bytes);
    pthread_mutex_unlock(&lock);
}

void budget_set_daemon(uint64_t max_bytes)
{
    pthread_mutex_lock(&lock);
    pools_init(max_bytes);
    pthread_mutex_unlock(&lock);
}

static uint64_t beyond(const struct pool *p, uint64_t n)
{
    return n > p->share ? n - p->share : 0;
}

/* What one that has @had needs from the common half for @more. */
static uint64_t common_part(const struct pool *p, uint64_t had, uint64_t more)
{
    return beyond(p, had + more) - beyond(p, had);
}

static bool pool_has(const struct pool *p, uint64_t had, uint64_t more)
{
    uint64_t common = p->max - p->share * BUDGET_SHARES;

    return common_part(p, had, more) <= common - MIN(common, p->beyond);
}

static void pool_take(struct pool *p, uint64_t had, uint64_t more)
{
    p->used += more;
    p->beyond += common_part(p, had, more);
}

static void pool_give(struct pool *p, uint64_t had, uint64_t less)
{
    p->used -= less;
    p->beyond -= common_part(p, had - less, less);
}

struct budget *budget_new(void)
{
    struct budget *b = g_new0(struct budget, 1);

    b->refs = 1;
    b->max_bytes = BUDGET_GUEST_BYTES;
    b->max_mappings = BUDGET_GUEST_FILES;
    pthread_mutex_lock(&lock);
    if (pool_bytes.max == 0) {
        pools_init(BUDGET_DAEMON_BYTES);
    }
    if (pool_objects.max == 0) {
        objects_init(0);
    }
    pthread_mutex_unlock(&lock);
    return b;
}

struct budget *budget_ref(struct budget *b)
{
    pthread_mutex_lock(&lock);
    b->refs++;
    pthread_mutex_unlock(&lock);
    return b;
}

void budget_unref(struct budget *b)
{
    bool last;

    if (!b) {
        return;
    }
    pthread_mutex_lock(&lock);
    last = --b->refs == 0;
    if (last) { /* what could not be unmapped stays counted in the pools */
        all_pending -= b->pending;
    }
    pthread_mutex_unlock(&lock);
    if (last) {
        g_free(b);
    }
}

void budget_set(struct budget *b, uint64_t max_bytes, uint64_t max_mappings)
{
    pthread_mutex_lock(&lock);
    b->max_bytes = max_bytes;
    b->max_mappings = max_mappings;
    pthread_mutex_unlock(&lock);
}

/* The lock is held. */
static bool piled_up(const struct budget *b)
{
    return b->pending > PENDING_SLACK && b->pending - PENDING_SLACK > b->peak;
}

static const char *why_not(const struct budget *b, uint64_t bytes)
{
    if (bytes > b->max_bytes || b->bytes - b->pending > b->max_bytes - bytes) {
        return "more than its max-memory would be mapped";
    }
    /* As much again may be pending: a VM restarts, a mapping is replaced. */
    if (b->bytes > 2 * b->max_bytes - bytes) {
        return "more than its max-memory is still being unmapped";
    }
    if (b->mappings >= 2 * b->max_mappings + SPARE_MAPPINGS) {
        return "it has more mappings than its max-files permits, used or being unmapped";
    }
    if (piled_up(b)) {
        return "too much of its former memory is still being unmapped";
    }
    if (!pool_has(&pool_bytes, b->bytes, bytes)) {
        return "all VMs together have mapped as much as the daemon's max-mapped";
    }
    if (!pool_has(&pool_mappings, b->mappings, 1)) {
        return "all VMs together have as many mappings as vm.max_map_count permits";
    }
    return NULL;
}

const char *budget_take(struct budget *b, uint64_t bytes)
{
    const char *why;

    pthread_mutex_lock(&lock);
    why = trusted ? NULL : why_not(b, bytes);
    if (!why) {
        pool_take(&pool_bytes, b->bytes, bytes);
        pool_take(&pool_mappings, b->mappings, 1);
        b->bytes += bytes;
        b->mappings++;
        b->peak = MAX(b->peak, b->bytes - b->pending);
    }
    pthread_mutex_unlock(&lock);
    return why;
}

void budget_retire(struct budget *b, uint64_t bytes)
{
    pthread_mutex_lock(&lock);
    b->pending += bytes;
    all_pending += bytes;
    pthread_mutex_unlock(&lock);
}

void budget_unretire(struct budget *b, uint64_t bytes)
{
    pthread_mutex_lock(&lock);
    b->pending -= bytes;
    all_pending -= bytes;
    pthread_mutex_unlock(&lock);
}

void budget_give(struct budget *b, uint64_t bytes, unsigned mappings)
{
    pthread_mutex_lock(&lock);
    pool_give(&pool_bytes, b->bytes, bytes);
    pool_give(&pool_mappings, b->mappings, mappings);
    b->bytes -= bytes;
    b->mappings -= mappings;
    b->pending -= bytes;
    all_pending -= bytes;
    pthread_mutex_unlock(&lock);
}

bool budget_take_objects(struct budget *b, uint64_t bytes)
{
    bool ok;

    pthread_mutex_lock(&lock);
    ok = trusted || pool_has(&pool_objects, b->objects, bytes);
    if (ok) {
        pool_take(&pool_objects, b->objects, bytes);
        b->objects += bytes;
    } else {
        b->objects_refused++;
        all_objects_refused++;
    }
    pthread_mutex_unlock(&lock);
    return ok;
}

void budget_give_objects(struct budget *b, uint64_t bytes)
{
    pthread_mutex_lock(&lock);
    pool_give(&pool_objects, b->objects, bytes);
    b->objects -= bytes;
    pthread_mutex_unlock(&lock);
}

void budget_trust(bool yes)
{
    pthread_mutex_lock(&lock);
    trusted = yes;
    pthread_mutex_unlock(&lock);
}

void budget_get_objects(struct budget *b, struct budget_objects *st)
{
    *st = (struct budget_objects){0};
    if (b) {
        pthread_mutex_lock(&lock);
        st->bytes = b->objects;
        st->refused = b->objects_refused;
        pthread_mutex_unlock(&lock);
    }
}

void budget_get_daemon_objects(struct budget_objects *st)
{
    pthread_mutex_lock(&lock);
    st->bytes = pool_objects.used;
    st->refused = all_objects_refused;
    st->max_bytes = pool_objects.max;
    pthread_mutex_unlock(&lock);
}

bool budget_piled_up(struct budget *b)
{
    bool res;

    if (!b) {
        return false;
    }
    pthread_mutex_lock(&lock);
    res = piled_up(b);
    pthread_mutex_unlock(&lock);
    return res;
}

void budget_get(struct budget *b, struct budget_stats *st)
{
    *st = (struct budget_stats){0};
    if (b) {
        pthread_mutex_lock(&lock);
        st->bytes = b->bytes;
        st->mappings = b->mappings;
        st->pending = b->pending;
        st->max_bytes = b->max_bytes;
        st->max_mappings = b->max_mappings;
        pthread_mutex_unlock(&lock);
    }
}

void budget_get_daemon(struct budget_stats *st)
{
    pthread_mutex_lock(&lock);
    st->bytes = pool_bytes.used;
    st->mappings = pool_mappings.used;
    st->pending = all_pending;
    st->max_bytes = pool_bytes.max;
    st->max_mappings = pool_mappings.max;
    pthread_mutex_unlock(&lock);
}
