/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Dirty log of the pvrdma device: what the daemon writes to guest memory.
 *
 * The daemon writes from another process, so neither KVM nor TCG sees it.  From
 * the start of QEMU's global dirty log on it notes the pages: DMA_LOGGING_START
 * is answered when every later store is noted.  Each of QEMU's looks at the log
 * fetches and clears the notes of one section (DMA_LOGGING_REPORT).  Once the
 * device is stopped nothing more is noted: the look after that is the last.
 *
 * The log is of guest-physical pages and spans all memory, so it goes on when
 * the firmware or the guest maps parts of it anew.  What is noted at an address
 * is lost when that is unmapped, and the daemon may write until it answers: so
 * then all of that memory counts as written.  So it does whenever a report
 * cannot be had.  If the connection is lost, so are the notes: the migration
 * must not succeed.
 *
 * A daemon that can do so shares its log (pvrdma/dirty.h): then a look takes
 * the bits from its memory, word by word, and no message is sent.  The page's
 * content is read after that, so it has the store that the bit was set for.
 *
 * VGA asks for its own memory's log whether there is a global one or not; that
 * memory is never the daemon's.
 *
 * All under the BQL.
 */
#include "qemu/osdep.h"
#include "qemu/error-report.h"
#include "qemu/main-loop.h"
#include "migration/misc.h"
#include "pvrdma-calls.h"
#include "pvrdma-compat.h"
#include "pvrdma-mem.h"
#include "pvrdma/abi.h"
#include "pvrdma/dirty.h"
#include "trace.h"
#include <sys/mman.h>

/* One report is about so much memory at most: a bitmap of 128 KiB. */
#define REPORT_SIZE (UINT64_C(128 * 1024 * 8) * PVRDMA_PAGE_SIZE)

/* See PVRDMA_LOG_RANGES. */
#define HIGH_MEMORY (UINT64_C(1) << 32)

/* The daemon's log must span all that is mapped; holes cost it nothing. */
static uint32_t log_ranges(PVRDMAMem *mem, struct vfio_user_log_range *ranges)
{
    uint64_t begin[2] = { UINT64_MAX, UINT64_MAX }, end[2] = { 0, 0 };
    gpointer addr, size;
    GHashTableIter iter;
    uint32_t i, n = 0;

    g_hash_table_iter_init(&iter, mem->maps);
    while (g_hash_table_iter_next(&iter, &addr, &size)) {
        uint64_t at = *(uint64_t *)addr;

        i = at >= HIGH_MEMORY;
        begin[i] = MIN(begin[i], at);
        end[i] = MAX(end[i], at + *(uint64_t *)size);
    }
    if (end[0] > begin[1]) {
        end[0] = MAX(end[0], end[1]);
        end[1] = 0;
    }
    for (i = 0; i < 2; i++) {
        if (end[i]) {
            ranges[n].iova = begin[i];
            ranges[n].length = end[i] - begin[i];
            n++;
        }
    }
    return n;
}

void pvrdma_dirty_unmap(PVRDMAMem *mem)
{
    uint32_t i;

    for (i = 0; i < PVRDMA_LOG_RANGES; i++) {
        if (mem->log[i].bits) {
            munmap(mem->log[i].bits, pvrdma_dirty_bytes(mem->log[i].size));
            mem->log[i].bits = NULL;
        }
    }
}

/* Map what is behind @fd, if it is what the ranges want. */
static bool map_log(PVRDMAMem *mem, int fd,
                    const struct vfio_user_log_range *ranges, uint32_t n)
{
    int seals = fcntl(fd, F_GET_SEALS);
    uint64_t total = 0, len;
    struct stat st;
    uint32_t i;
    void *p;

    for (i = 0; i < n; i++) {
        total += pvrdma_dirty_bytes(ranges[i].length);
    }
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) < 0 ||
        st.st_size < total) {
        return false;
    }
    for (i = 0, total = 0; i < n; i++, total += len) {
        len = pvrdma_dirty_bytes(ranges[i].length);
        p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, total);
        if (p == MAP_FAILED) {
            pvrdma_dirty_unmap(mem);
            return false;
        }
        mem->log[i] = (PVRDMALog) { p, ranges[i].iova, ranges[i].length };
    }
    return true;
}

/* 0, or a negative errno: then there is no log. */
static int start_shared(PVRDMAMem *mem,
                        const struct vfio_user_log_range *ranges, uint32_t n)
{
    int fd, ret = pvrdma_call_log_share(mem->client, PVRDMA_PAGE_SIZE, ranges,
                                        n, &fd);

    if (ret < 0) {
        return ret;
    }
    if (!map_log(mem, fd, ranges, n)) {
        warn_report("pvrdma '%s': pvrdmad's log of writes cannot be shared",
                    mem->name);
        ret = pvrdma_call_log_stop(mem->client);
        ret = ret < 0 ? ret : -ENOMEM;
    }
    close(fd);
    return ret;
}

bool pvrdma_dirty_start(PVRDMAMem *mem, Error **errp)
{
    struct vfio_user_log_range ranges[PVRDMA_LOG_RANGES];
    int ret = -ENOTTY;
    uint32_t n;

    if (!mem->can_log || mem->logging || pvrdma_client_lost(mem->client)) {
        return true;
    }
    n = log_ranges(mem, ranges);
    if (mem->share_log && n) {
        ret = start_shared(mem, ranges, n);
        trace_pvrdma_dirty_share(mem->name, n, ret);
    }
    if (ret < 0 && !pvrdma_client_lost(mem->client)) {
        /* It is short of something, as of memory: then by messages. */
        ret = pvrdma_call_log_start(mem->client, PVRDMA_PAGE_SIZE, ranges, n);
        trace_pvrdma_dirty_start(mem->name, n, ret);
    }
    if (ret < 0) {
        pvrdma_client_error(mem->client, ret, errp,
                            "cannot log writes to guest memory");
        return false;
    }
    mem->logging = true;
    return true;
}

void pvrdma_dirty_stop(PVRDMAMem *mem)
{
    int ret;

    if (!mem->logging) {
        return;
    }
    mem->logging = false;
    pvrdma_dirty_unmap(mem);
    ret = pvrdma_call_log_stop(mem->client);
    trace_pvrdma_dirty_stop(mem->name, ret);
    if (ret < 0 && !pvrdma_client_lost(mem->client)) {
        warn_report("pvrdma '%s': pvrdmad does not end its log of writes to "
                    "guest memory: %s", mem->name, strerror(-ret));
    }
}

/* Each bit of @bits is a page of @mr, the first of them at @offset. */
static uint64_t mark_pages(MemoryRegion *mr, uint64_t offset,
                           const uint64_t *bits, uint64_t pages)
{
    uint64_t p = 0, marked = 0;

    while (p < pages) {
        uint64_t word = bits[p / 64] >> p % 64, run;

        if (!word) {
            p = ROUND_UP(p + 1, 64);
            continue;
        }
        p += ctz64(word);
        if (p >= pages) {
            /* Beyond the range: not asked for. */
            break;
        }
        word >>= ctz64(word);
        run = MIN(word == UINT64_MAX ? 64 : ctz64(~word), pages - p);
        memory_region_set_dirty(mr, offset + p * PVRDMA_PAGE_SIZE,
                                run * PVRDMA_PAGE_SIZE);
        p += run;
        marked += run;
    }
    return marked;
}

/* Take the bits of pages @first to @last, which are in one word of @log. */
static uint64_t take_word(PVRDMALog *log, uint64_t first, uint64_t last)
{
    uint64_t *word = &log->bits[first / 64];
    uint64_t mask = (UINT64_MAX << first % 64) &
                    (UINT64_MAX >> (63 - last % 64));

    if (!(qatomic_read(word) & mask)) {
        return 0;
    }
    return mask == UINT64_MAX ? qatomic_xchg(word, 0) :
                                qatomic_fetch_and(word, ~mask) & mask;
}

/* False: no range of a shared log has all of it. */
static bool take_shared(PVRDMAMem *mem, const PVRDMAPart *part)
{
    uint64_t page, last, end, marked = 0;
    PVRDMALog *log = mem->log;

    while (!log->bits || part->addr - log->addr >= log->size ||
           part->size > log->size - (part->addr - log->addr)) {
        if (++log == mem->log + PVRDMA_LOG_RANGES) {
            return false;
        }
    }
    page = (part->addr - log->addr) / PVRDMA_PAGE_SIZE;
    end = page + part->size / PVRDMA_PAGE_SIZE;
    for (; page < end; page = last + 1) {
        uint64_t base = ROUND_DOWN(page, 64), bits;

        last = MIN(base + 63, end - 1);
        bits = take_word(log, page, last);
        if (bits) {
            /* Those before @page are not set, and may be no part's. */
            bits >>= page % 64;
            marked += mark_pages(part->mr, part->offset +
                                 log->addr + page * PVRDMA_PAGE_SIZE -
                                 part->addr, &bits, last + 1 - page);
        }
    }
    trace_pvrdma_dirty_sync(mem->name, part->addr, part->size, marked);
    return true;
}

/* False: the report cannot be had. */
static bool fetch_report(PVRDMAMem *mem, const PVRDMAPart *part)
{
    uint64_t done = 0, marked = 0;
    g_autofree uint64_t *bits =
        g_malloc(DIV_ROUND_UP(MIN(part->size, REPORT_SIZE) / PVRDMA_PAGE_SIZE,
                              64) * sizeof(*bits));

    while (done < part->size) {
        uint64_t size = MIN(part->size - done, REPORT_SIZE);

        if (pvrdma_call_log_report(mem->client, part->addr + done, size,
                                   PVRDMA_PAGE_SIZE, bits) < 0) {
            return false;
        }
        marked += mark_pages(part->mr, part->offset + done, bits,
                             size / PVRDMA_PAGE_SIZE);
        done += size;
    }
    trace_pvrdma_dirty_sync(mem->name, part->addr, part->size, marked);
    return true;
}

void pvrdma_dirty_sync(PVRDMAMem *mem, const PVRDMAPart *part)
{
    if (!mem->logging) {
        return;
    }
    if (!take_shared(mem, part) && !fetch_report(mem, part)) {
        pvrdma_dirty_all(mem, part);
    }
    if (pvrdma_client_lost(mem->client)) {
        pvrdma_dirty_lost(mem);
    }
}

void pvrdma_dirty_all(PVRDMAMem *mem, const PVRDMAPart *part)
{
    trace_pvrdma_dirty_all(mem->name, part->addr, part->size);
    memory_region_set_dirty(part->mr, part->offset, part->size);
}

void pvrdma_dirty_lost(PVRDMAMem *mem)
{
    Error *err = NULL;

    if (mem->logging) {
        mem->logging = false;
        pvrdma_dirty_unmap(mem);
        pvrdma_client_error(mem->client, -EIO, &err,
                            "cannot tell what was written to guest memory");
        migration_file_set_error(-EIO, err);
    }
}
