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
#include "trace.h"

/* One report is about so much memory at most: a bitmap of 128 KiB. */
#define REPORT_SIZE (UINT64_C(128 * 1024 * 8) * PVRDMA_PAGE_SIZE)

/* PCs have memory below this, and above it. */
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

bool pvrdma_dirty_start(PVRDMAMem *mem, Error **errp)
{
    struct vfio_user_log_range ranges[2];
    uint32_t n;
    int ret;

    if (!mem->can_log || mem->logging || pvrdma_client_lost(mem->client)) {
        return true;
    }
    n = log_ranges(mem, ranges);
    ret = pvrdma_call_log_start(mem->client, PVRDMA_PAGE_SIZE, ranges, n);
    trace_pvrdma_dirty_start(mem->name, n, ret);
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
    if (!fetch_report(mem, part)) {
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
        pvrdma_client_error(mem->client, -EIO, &err,
                            "cannot tell what was written to guest memory");
        migration_file_set_error(-EIO, err);
    }
}
