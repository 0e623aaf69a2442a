/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Tables from handles to objects.
 *
 * A table is one mapping of zero pages, so a large table of a VM that uses few
 * objects costs little, and its size never changes: workers index it without a
 * lock.  Only the main thread reserves, publishes and releases; workers replace one
 * state of an MR by another (datapath/keys.c).
 *
 * Indices are handed out round robin, not lowest first, so that a dead object's
 * index comes back as late as possible; gen[] tells the occupants of one index
 * apart for those who keep a number longer (keys, QPNs).  Both outlive the objects, and
 * go where they go: else a dead one's number would be its successor's there.
 *
 * The next free one is found by a tree of bits, in as many steps as that has levels,
 * however full the table is: a guest decides that.
 */
#include "objects/objects.h"

#include <sys/mman.h>

#include "base/coro.h"

/* Generations that are read in one go. */
#define LOAD_STEP 65536u

static void *zero_pages(size_t size)
{
    void *p =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

/* ---- what is taken ---- */

/* Words for @n bits. */
static uint32_t words_for(uint32_t n)
{
    return (n + 63) / 64;
}

/* Words of all levels. */
static size_t tree_words(uint32_t size)
{
    size_t sum = 0;

    do {
        size = words_for(size);
        sum += size;
    } while (size > 1);
    return sum;
}

static void take(struct id_table *t, uint32_t i)
{
    for (unsigned l = 0; l < t->levels; l++) {
        uint64_t *word = &t->taken[l][i / 64];

        *word |= 1ull << i % 64;
        if (*word != UINT64_MAX) {
            break;
        }
        i /= 64;
    }
}

static void give(struct id_table *t, uint32_t i)
{
    for (unsigned l = 0; l < t->levels; l++) {
        uint64_t *word = &t->taken[l][i / 64], was = *word;

        *word &= ~(1ull << i % 64);
        if (was != UINT64_MAX) {
            break;
        }
        i /= 64;
    }
}

static void tree_init(struct id_table *t, uint64_t *words)
{
    uint32_t n = t->size;

    do {
        uint32_t have = words_for(n);

        t->taken[t->levels++] = words;
        if (n % 64) {
            words[have - 1] = UINT64_MAX << n % 64;
        }
        words += have;
        n = have;
    } while (n > 1);
    take(t, 0);
}

/* The first free one from @i on; 0: none. */
static uint32_t find_free(const struct id_table *t, uint32_t i)
{
    uint32_t words = words_for(t->size);
    unsigned l = 0;
    uint64_t bits;

    /* Up, until there is one behind what was looked at, and down to it. */
    for (;; l++) {
        if (l == t->levels || i / 64 >= words) {
            return 0;
        }
        bits = ~t->taken[l][i / 64] & UINT64_MAX << i % 64;
        if (bits) {
            break;
        }
        i = i / 64 + 1;
        words = words_for(words);
    }
    for (;; l--) {
        i = (i & ~63u) + (uint32_t)__builtin_ctzll(bits);
        if (l == 0) {
            return i;
        }
        bits = ~t->taken[l - 1][i];
        i *= 64;
    }
}

/* ---- the table ---- */

bool id_table_init(struct id_table *t, uint32_t size)
{
    uint64_t *words;

    memset(t, 0, sizeof(*t));
    t->slot = zero_pages(size * sizeof(t->slot[0]));
    t->gen = zero_pages(size);
    words = zero_pages(tree_words(size) * sizeof(words[0]));
    t->size = size;
    t->next = 1;
    if (words) {
        tree_init(t, words);
    }
    if (!t->slot || !t->gen || !words) {
        id_table_fini(t);
        return false;
    }
    return true;
}

void id_table_fini(struct id_table *t)
{
    if (t->slot) {
        munmap((void *)t->slot, t->size * sizeof(t->slot[0]));
    }
    if (t->gen) {
        munmap(t->gen, t->size);
    }
    if (t->levels) {
        munmap(t->taken[0], tree_words(t->size) * sizeof(t->taken[0][0]));
    }
    memset(t, 0, sizeof(*t));
}

uint32_t id_table_reserve(struct id_table *t)
{
    uint32_t i = find_free(t, t->next);

    i = i ? i : find_free(t, 1);
    if (!i) {
        return 0;
    }
    take(t, i);
    t->next = i + 1 < t->size ? i + 1 : 1;
    t->gen[i] = t->gen[i] % 255 + 1;
    if (i >= id_table_end(t)) {
        atomic_store_explicit(&t->end, i + 1, memory_order_relaxed);
    }
    t->used++;
    return i;
}

void id_table_publish(struct id_table *t, uint32_t index, void *object)
{
    atomic_store_explicit(&t->slot[index], object, memory_order_release);
}

bool id_table_replace(struct id_table *t, uint32_t index, void *old, void *object)
{
    return atomic_compare_exchange_strong(&t->slot[index], &old, object);
}

void id_table_release(struct id_table *t, uint32_t index)
{
    atomic_store_explicit(&t->slot[index], NULL, memory_order_release);
    give(t, index);
    t->used--;
}

bool id_table_place(struct id_table *t, uint32_t index)
{
    if (index == 0 || index >= id_table_end(t) || t->gen[index] == 0 ||
        id_table_get(t, index)) {
        return false;
    }
    take(t, index);
    t->used++;
    return true;
}

void id_table_save(const struct id_table *t, struct state_out *s)
{
    uint32_t end = MAX(id_table_end(t), 1);

    state_put_u32(s, t->next);
    state_put_u32(s, end - 1);
    state_put_bytes(s, t->gen + 1, end - 1);
}

void id_table_load(struct id_table *t, struct state_in *s)
{
    uint32_t next = state_get_u32(s), had = id_table_end(t);
    uint32_t end = 1 + state_get_count(s, t->size - 1, 1);

    if (state_failed(s) || next == 0 || next >= t->size) {
        state_fail(s, "its next number would be %u", next);
        return;
    }
    t->next = next;
    for (uint32_t i = 1, n; i < end; i += n) {
        n = MIN(end - i, LOAD_STEP);
        state_get_bytes(s, t->gen + i, n);
        coro_breathe();
    }
    if (had > end) { /* of what was here before */
        memset(t->gen + end, 0, had - end);
    }
    atomic_store_explicit(&t->end, end > 1 ? end : 0, memory_order_relaxed);
}
