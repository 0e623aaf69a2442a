/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Memory for lists of guest pages.
 *
 * free() keeps what is freed until it lies at the end of the heap, and gives all of
 * that back to the kernel at once then: for the lists of 32 GiB of guest memory that
 * took 2.9 ms, in which no VM was served.  So a list's pages are given back before it
 * is freed, some at a time.
 *
 * But to get them again costs more than to read the list.  The last few lists are kept
 * as they are, for a VM that registers and deregisters much memory over and over; not
 * those of more than 1 GiB, which would be much to keep for nobody.
 */
#include "guest/pagelist.h"

#include <glib.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "base/coro.h"
#include "pvrdma/abi.h"

/* Shorter ones are nothing special; longer ones are multiples of it. */
#define UNIT (64u << 10)

#define MAX_KEPT 4

/* Addresses that are saved or loaded in one go. */
#define STATE_STEP 512u

/* A list of 1 GiB in pages, and what is before it. */
#define MAX_KEPT_SIZE (PVRDMA_PDIR_MAX_PAGES * sizeof(uint64_t) + UNIT)

struct block {
    void *p;
    size_t size;
};
static struct block kept[MAX_KEPT]; /* the oldest first */
static unsigned n_kept;

static size_t round_up(size_t size)
{
    return (size + UNIT - 1) / UNIT * UNIT;
}

static struct block take(unsigned i)
{
    struct block b = kept[i];

    n_kept--;
    memmove(&kept[i], &kept[i + 1], (n_kept - i) * sizeof(b));
    return b;
}

void *pagelist_alloc(size_t size)
{
    if (size < UNIT) {
        return g_try_malloc(size);
    }
    size = round_up(size);
    for (unsigned i = 0; i < n_kept; i++) {
        if (kept[i].size == size) {
            return take(i).p;
        }
    }
    return g_try_malloc(size);
}

void pagelist_give_back(void *p, size_t size)
{
    const uintptr_t mask = ~(uintptr_t)(PVRDMA_PAGE_SIZE - 1);
    uintptr_t begin = ((uintptr_t)p + PVRDMA_PAGE_SIZE - 1) & mask;
    uintptr_t end = ((uintptr_t)p + size) & mask;

    while (begin < end) {
        size_t len = MIN(end - begin, UNIT);

        if (madvise((void *)begin, len, MADV_DONTNEED) < 0) {
            return; /* it is locked: free() has to do */
        }
        begin += len;
        coro_breathe();
    }
}

void pagelist_free(void *p, size_t size)
{
    struct block old = {p, round_up(size)};

    if (!p || size < UNIT) {
        g_free(p);
        return;
    }
    if (old.size <= MAX_KEPT_SIZE) {
        struct block last = old;

        old = n_kept == MAX_KEPT ? take(0) : (struct block){0};
        kept[n_kept++] = last;
    }
    if (old.p) {
        pagelist_give_back(old.p, old.size);
        g_free(old.p);
    }
}

void pagelist_save(const uint64_t *page, uint32_t n, struct state_out *s)
{
    uint64_t le[STATE_STEP];

    for (uint32_t i = 0, m; i < n; i += m) {
        m = MIN(n - i, STATE_STEP);
        for (uint32_t k = 0; k < m; k++) {
            le[k] = GUINT64_TO_LE(page[i + k]);
        }
        state_put_bytes(s, le, m * sizeof(le[0]));
        coro_breathe();
    }
}

void pagelist_load(uint64_t *page, uint32_t n, struct state_in *s)
{
    uint64_t any = 0;

    for (uint32_t i = 0, m; i < n; i += m) {
        m = MIN(n - i, STATE_STEP);
        state_get_bytes(s, page + i, m * sizeof(page[0]));
        for (uint32_t k = 0; k < m; k++) {
            page[i + k] = GUINT64_FROM_LE(page[i + k]);
            any |= page[i + k];
        }
        coro_breathe();
    }
    if (any % PVRDMA_PAGE_SIZE) {
        state_fail(s, "a page address is not aligned");
    }
}
