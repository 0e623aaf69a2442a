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
 * A shared log's bits are in a memfd of which the client has a descriptor
 * (pvrdma/dirty.h). It is made here for one log, and sealed; where the host has no page
 * for it, the guard of guest memory (sigbus.h) has the guest's VMM let go.  A client that
 * clears bits, sets them, or frees their pages by a hole gets a wrong log or makes one
 * mark in a while take a page fault, as it can by its own memory.
 * The next daemon is given the file and not the bits.
 *
 * Threads: any marks; the main thread begins, collects and ends.  A store that a worker
 * did before it saw the log is over when a grace period is.
 */
#include "guest/dirty.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/grace.h"
#include "guest/mem.h"
#include "guest/sigbus.h"
#include "handover/handover.h"
#include "pvrdma/abi.h"
#include "pvrdma/dirty.h"

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
    if (!log) {
        return;
    }
    for (unsigned i = 0; i < log->n; i++) {
        g_free((void *)log->range[i].used);
    }
    sigbus_unguard(log->guard);
    munmap(log->bits, log->size);
    if (log->fd >= 0) {
        close(log->fd);
    }
    g_free(log);
}

static uint64_t file_size(const struct dirty_span *span, unsigned n)
{
    uint64_t size = 0;

    for (unsigned i = 0; i < n; i++) {
        size += pvrdma_dirty_bytes(span[i].size);
    }
    return size;
}

/* The bits of @n spans, one behind the other.  @fd as of new_log(). */
static bool map_bits(struct guest_mem *mem, struct dirty_log *log, int fd)
{
    int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;

    log->bits = mmap(NULL, log->size, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (log->bits == MAP_FAILED) {
        return false;
    }
    log->guard =
        fd < 0 ? -1 : sigbus_guard(log->bits, log->size, PVRDMA_PAGE_SIZE, mem->guest);
    if (fd >= 0 && log->guard < 0) { /* cannot be: each VM has one */
        munmap(log->bits, log->size);
        return false;
    }
    return true;
}

/*
 * @fd: the file that the bits are in, which is the log's from now on; -1: none.  NULL: no
 * memory for it, and @fd is closed.
 */
static struct dirty_log *new_log(struct guest_mem *mem, const struct dirty_span *span,
                                 unsigned n, int fd)
{
    struct dirty_log *log = g_new0(struct dirty_log, 1);
    uint64_t offset = 0;

    log->fd = fd;
    log->size = file_size(span, n);
    if (!map_bits(mem, log, fd)) {
        if (fd >= 0) {
            close(fd);
        }
        g_free(log);
        return NULL;
    }
    for (; log->n < n; log->n++) {
        struct dirty_range *r = &log->range[log->n];

        r->at = span[log->n];
        r->bits = (_Atomic uint64_t *)(log->bits + offset);
        r->used = g_malloc0((chunks_of(r) + 63) / 64 * 8);
        offset += pvrdma_dirty_bytes(r->at.size);
    }
    return log;
}

static int start(struct guest_mem *mem, const struct dirty_span *span, unsigned n, int fd)
{
    struct dirty_log *log = new_log(mem, span, n, fd);

    if (!log) {
        return ENOMEM;
    }
    atomic_store(&mem->dirty, log);
    grace_wait();
    return 0;
}

int guest_dirty_start(struct guest_mem *mem, const struct dirty_span *span, unsigned n)
{
    if (atomic_load(&mem->dirty)) {
        return EBUSY;
    }
    return spans_valid(span, n) ? start(mem, span, n, -1) : EINVAL;
}

/* Of a fixed size, zero; -1: errno. */
static int new_file(uint64_t size)
{
    int fd = memfd_create("pvrdma-dirty", MFD_CLOEXEC | MFD_ALLOW_SEALING), err;

    if (fd >= 0 &&
        (ftruncate(fd, (off_t)size) < 0 ||
         fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)) {
        err = errno;
        close(fd);
        errno = err;
        return -1;
    }
    return fd;
}

int guest_dirty_share(struct guest_mem *mem, const struct dirty_span *span, unsigned n,
                      int *fd)
{
    uint64_t bytes = 0;
    int file, err;

    if (atomic_load(&mem->dirty)) {
        return EBUSY;
    }
    if (!spans_valid(span, n)) {
        return EINVAL;
    }
    for (unsigned i = 0; i < n; i++) {
        bytes += span[i].size;
    }
    if (bytes > PVRDMA_DIRTY_MAX_BYTES) {
        return EFBIG;
    }
    file = new_file(file_size(span, n));
    *fd = file < 0 ? -1 : fcntl(file, F_DUPFD_CLOEXEC, 0);
    if (*fd < 0) {
        err = errno;
        if (file >= 0) {
            close(file);
        }
        return err;
    }
    err = start(mem, span, n, file);
    if (err) {
        close(*fd);
        *fd = -1;
    }
    return err;
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

    handover_put_fd(h, log ? log->fd : -1);
    state_put_u32(&h->s, n);
    for (unsigned i = 0; i < n; i++) {
        state_put_u64(&h->s, log->range[i].at.gpa);
        state_put_u64(&h->s, log->range[i].at.size);
    }
    for (unsigned i = 0; i < n && log->fd < 0; i++) {
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
            state_fail(s, "dirty pages outside of the log");
            return;
        }
        for (uint64_t i = 0; i < words_in(r, c); i++) {
            uint64_t w = c * DIRTY_CHUNK + i;

            atomic_store(&r->bits[w], state_get_u64(s) & pages_mask(r, w));
        }
        note_used(r, c * DIRTY_CHUNK, c * DIRTY_CHUNK);
    }
}

/* What is mapped of it cannot go. */
static bool is_log_file(int fd, const struct dirty_span *span, unsigned n)
{
    int seals = fcntl(fd, F_GET_SEALS);
    struct stat st;

    return seals >= 0 && (seals & F_SEAL_SHRINK) && fstat(fd, &st) == 0 &&
           (uint64_t)st.st_size == file_size(span, n);
}

void dirty_adopt(struct guest_mem *mem, struct handover_in *h, struct state_in *s)
{
    int fd = handover_get_fd(h, s);
    uint32_t n = state_get_count(s, DIRTY_MAX_RANGES, 16);
    struct dirty_span span[DIRTY_MAX_RANGES] = {{0, 0}};
    struct dirty_log *log;
    int err;

    for (uint32_t i = 0; i < n; i++) {
        span[i].gpa = state_get_u64(s);
        span[i].size = state_get_u64(s);
    }
    if (fd >= 0 && !state_failed(s) &&
        (!spans_valid(span, n) || !is_log_file(fd, span, n))) {
        state_fail(s, "a file that is not its dirty log");
    }
    if (n == 0 || state_failed(s)) {
        if (fd >= 0) {
            close(fd);
        }
        return;
    }
    err = fd < 0 ? guest_dirty_start(mem, span, n) : start(mem, span, n, fd);
    if (err) {
        state_fail(s, "its dirty log cannot be kept: %s", g_strerror(err));
        return;
    }
    log = atomic_load(&mem->dirty);
    for (uint32_t i = 0; i < n && fd < 0; i++) {
        range_adopt(&log->range[i], s);
    }
}
