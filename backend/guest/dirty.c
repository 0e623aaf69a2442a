/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The dirty log.
 *
 * A bit per page of the guest-physical ranges that were asked for, whatever the DMA map
 * says: a page that was stored to and then left the map is still to be copied.  The
 * bits are zero pages until used.
 *
 * A store comes first, then its mark, then anything that tells of it.  The mark is an
 * atomic OR in any case, though the bit may be set already: to look first and leave it
 * would be a load that the processor may do before the store is visible, and then
 * the collector takes the old bit with the old content.  So whoever takes a bit
 * reads content with that store in it, or finds the bit set again later.
 *
 * While there is no log, guest_mark_dirty() costs a load and a branch.
 *
 * The log goes along to a daemon that takes this one's place: those pages of its bits
 * that marks may be in, which a bit of their own tells, as the rest may be gigabytes.
 *
 * Threads: any marks; the main thread begins, collects and ends.  A store that a worker
 * did before it saw the log is over when a grace period is.
 */
#include "guest/dirty.h"

#include <errno.h>
#include <sys/mman.h>

#include "grace.h"
#include "guest/mem.h"
#include "handover.h"
#include "pvrdma/abi.h"

#define PAGE_MASK (PVRDMA_PAGE_SIZE - 1)

/* Bytes of bits for so many bytes of guest memory. */
static size_t bits_size(uint64_t size)
{
    return ((size >> PVRDMA_PAGE_SHIFT) + 63) / 64 * 8;
}

/* So many words they are, and so many chunks of them. */
static uint64_t words_of(const struct dirty_range *r)
{
    return bits_size(r->at.size) / 8;
}

static uint64_t chunks_of(const struct dirty_range *r)
{
    return (words_of(r) + DIRTY_CHUNK - 1) / DIRTY_CHUNK;
}

static bool span_valid(const struct dirty_span *s)
{
    return s->size != 0 && s->size <= DIRTY_MAX_BYTES &&
           ((s->gpa | s->size) & PAGE_MASK) == 0 && s->size - 1 <= UINT64_MAX - s->gpa;
}

static bool spans_valid(const struct dirty_span *span, unsigned n)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < n; i++) {
        if (!span_valid(&span[i])) {
            return false;
        }
        for (unsigned k = 0; k < i; k++) {
            if (span[i].gpa - span[k].gpa < span[k].size ||
                span[k].gpa - span[i].gpa < span[i].size) {
                return false;
            }
        }
        sum += span[i].size;
    }
    return n != 0 && n <= DIRTY_MAX_RANGES && sum <= DIRTY_MAX_BYTES;
}

void dirty_free(struct dirty_log *log)
{
    for (unsigned i = 0; log && i < log->n; i++) {
        munmap((void *)log->range[i].bits, bits_size(log->range[i].at.size));
        g_free((void *)log->range[i].used);
    }
    g_free(log);
}

static struct dirty_log *dirty_new(const struct dirty_span *span, unsigned n)
{
    struct dirty_log *log = g_new0(struct dirty_log, 1);

    for (unsigned i = 0; i < n; i++) {
        struct dirty_range *r = &log->range[i];
        void *p = mmap(NULL, bits_size(span[i].size), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

        if (p == MAP_FAILED) {
            dirty_free(log);
            return NULL;
        }
        *r = (struct dirty_range){.at = span[i], .bits = p};
        r->used = g_malloc0((chunks_of(r) + 63) / 64 * 8);
        log->n++;
    }
    return log;
}

int guest_dirty_start(struct guest_mem *mem, const struct dirty_span *span, unsigned n)
{
    struct dirty_log *log;

    if (atomic_load(&mem->dirty)) {
        return EBUSY;
    }
    if (!spans_valid(span, n)) {
        return EINVAL;
    }
    log = dirty_new(span, n);
    if (!log) {
        return ENOMEM;
    }
    atomic_store(&mem->dirty, log);
    grace_wait();
    return 0;
}

void guest_dirty_stop(struct guest_mem *mem)
{
    struct dirty_log *log = atomic_exchange(&mem->dirty, NULL);

    if (log) {
        grace_wait();
        dirty_free(log);
    }
}

/* The part of [first, last] that is in @r, as numbers of pages there.  False: none. */
static bool clip(const struct dirty_range *r, uint64_t *first, uint64_t *last)
{
    uint64_t end = r->at.gpa + (r->at.size - 1);

    if (*first > end || *last < r->at.gpa) {
        return false;
    }
    *first = (MAX(*first, r->at.gpa) - r->at.gpa) >> PVRDMA_PAGE_SHIFT;
    *last = (MIN(*last, end) - r->at.gpa) >> PVRDMA_PAGE_SHIFT;
    return true;
}

/* Bits of word @w for the pages from @first to @last. */
static uint64_t word_mask(uint64_t w, uint64_t first, uint64_t last)
{
    uint64_t mask = UINT64_MAX;

    if (w == first / 64) {
        mask &= UINT64_MAX << (first % 64);
    }
    if (w == last / 64) {
        mask &= UINT64_MAX >> (63 - last % 64);
    }
    return mask;
}

/* There are marks in the words from @first to @last. */
static void note_used(struct dirty_range *r, uint64_t first, uint64_t last)
{
    for (uint64_t c = first / DIRTY_CHUNK; c <= last / DIRTY_CHUNK; c++) {
        uint64_t bit = UINT64_C(1) << c % 64;

        if (!(atomic_load_explicit(&r->used[c / 64], memory_order_relaxed) & bit)) {
            atomic_fetch_or(&r->used[c / 64], bit);
        }
    }
}

void dirty_mark(struct dirty_log *log, uint64_t gpa, uint64_t len)
{
    if (len == 0) {
        return;
    }
    for (unsigned i = 0; i < log->n; i++) {
        uint64_t first = gpa, last = gpa + (len - 1);

        if (clip(&log->range[i], &first, &last)) {
            for (uint64_t w = first / 64; w <= last / 64; w++) {
                atomic_fetch_or(&log->range[i].bits[w], word_mask(w, first, last));
            }
            note_used(&log->range[i], first / 64, last / 64);
        }
    }
}

static void take_word(struct dirty_range *r, uint64_t w, uint64_t mask,
                      void (*page)(void *opaque, uint64_t gpa), void *opaque)
{
    uint64_t bits = 0;

    if (atomic_load_explicit(&r->bits[w], memory_order_relaxed) & mask) {
        bits = atomic_fetch_and(&r->bits[w], ~mask) & mask;
    }
    for (; bits; bits &= bits - 1) {
        uint64_t i = w * 64 + (unsigned)__builtin_ctzll(bits);

        page(opaque, r->at.gpa + (i << PVRDMA_PAGE_SHIFT));
    }
}

int guest_dirty_collect(struct guest_mem *mem, uint64_t gpa, uint64_t size,
                        void (*page)(void *opaque, uint64_t gpa), void *opaque)
{
    struct dirty_log *log = atomic_load(&mem->dirty);
    struct dirty_span want = {gpa, size};

    if (!span_valid(&want)) {
        return EINVAL;
    }
    for (unsigned i = 0; log && i < log->n; i++) {
        struct dirty_range *r = &log->range[i];
        uint64_t first = gpa, last = gpa + (size - 1);

        if (gpa - r->at.gpa < r->at.size && size <= r->at.size - (gpa - r->at.gpa) &&
            clip(r, &first, &last)) {
            for (uint64_t w = first / 64; w <= last / 64; w++) {
                take_word(r, w, word_mask(w, first, last), page, opaque);
            }
            return 0;
        }
    }
    return ENOENT;
}

/* ---- from one daemon to the next ---- */

static bool is_used(const struct dirty_range *r, uint64_t chunk)
{
    return atomic_load(&r->used[chunk / 64]) >> chunk % 64 & 1;
}

static uint64_t words_in(const struct dirty_range *r, uint64_t chunk)
{
    return MIN(words_of(r) - chunk * DIRTY_CHUNK, DIRTY_CHUNK);
}

static void range_hand_over(const struct dirty_range *r, struct state_out *s)
{
    uint32_t n = 0;

    for (uint64_t c = 0; c < chunks_of(r); c++) {
        n += is_used(r, c);
    }
    state_put_u32(s, n);
    for (uint64_t c = 0; c < chunks_of(r); c++) {
        if (is_used(r, c) && !s->cut) {
            state_put_u32(s, (uint32_t)c);
            for (uint64_t i = 0; i < words_in(r, c); i++) {
                state_put_u64(s, atomic_load(&r->bits[c * DIRTY_CHUNK + i]));
            }
        }
    }
}

void dirty_hand_over(const struct guest_mem *mem, struct handover_out *h)
{
    const struct dirty_log *log = atomic_load(&mem->dirty);
    unsigned n = log ? log->n : 0;

    state_put_u32(&h->s, n);
    for (unsigned i = 0; i < n; i++) {
        state_put_u64(&h->s, log->range[i].at.gpa);
        state_put_u64(&h->s, log->range[i].at.size);
    }
    for (unsigned i = 0; i < n; i++) {
        range_hand_over(&log->range[i], &h->s);
    }
}

/* The bits behind the last page are nobody's. */
static uint64_t pages_mask(const struct dirty_range *r, uint64_t w)
{
    uint64_t pages = r->at.size >> PVRDMA_PAGE_SHIFT;

    return word_mask(w, 0, pages - 1);
}

static void range_adopt(struct dirty_range *r, struct state_in *s)
{
    uint32_t n = state_get_count(s, (uint32_t)chunks_of(r), sizeof(uint32_t));

    for (uint32_t k = 0; k < n && !state_failed(s); k++) {
        uint64_t c = state_get_u32(s);

        if (c >= chunks_of(r)) {
            state_fail(s, "marks of pages that the log does not have");
            return;
        }
        for (uint64_t i = 0; i < words_in(r, c); i++) {
            uint64_t w = c * DIRTY_CHUNK + i;

            atomic_store(&r->bits[w], state_get_u64(s) & pages_mask(r, w));
        }
        note_used(r, c * DIRTY_CHUNK, c * DIRTY_CHUNK);
    }
}

void dirty_adopt(struct guest_mem *mem, struct state_in *s)
{
    uint32_t n = state_get_count(s, DIRTY_MAX_RANGES, 16);
    struct dirty_span span[DIRTY_MAX_RANGES];
    struct dirty_log *log;
    int err;

    for (uint32_t i = 0; i < n; i++) {
        span[i].gpa = state_get_u64(s);
        span[i].size = state_get_u64(s);
    }
    if (n == 0 || state_failed(s)) {
        return;
    }
    err = guest_dirty_start(mem, span, n);
    if (err) {
        state_fail(s, "its dirty log cannot be kept: %s", g_strerror(err));
        return;
    }
    log = atomic_load(&mem->dirty);
    for (uint32_t i = 0; i < n; i++) {
        range_adopt(&log->range[i], s);
    }
}
