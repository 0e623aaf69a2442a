/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The shared dirty log: which pages of guest memory pvrdmad has stored to, as bits that
 * the VMM takes without a message.
 *
 * The VMM asks for it by a feature of DEVICE_FEATURE that is ours, with SET and the data
 * of DMA_LOGGING_START: the log begins as by that, and the reply, which repeats the
 * request with the page size of the log, brings a memfd.  In it are the bits of the
 * ranges, one behind the other: those of range k begin where pvrdma_dirty_bytes() of all
 * before it end.  A page is a bit, page p of a range bit p % 64 of its 64-bit word p / 64,
 * in host byte order.
 *
 * The daemon makes the file and seals its size: so neither side's access can fault for
 * what the other does.  It sets bits by atomic OR, after what it stored is visible, and
 * before anything tells of that.  The VMM takes a word by an atomic exchange (or AND, if
 * it is about some of its bits), then reads the pages.  What the VMM stores there is its
 * own loss; the daemon never acts on it.
 *
 * DMA_LOGGING_REPORT and _STOP are as ever.  After STOP no bits are set any more, and
 * the file is not used again.
 */
#ifndef PVRDMA_DIRTY_H
#define PVRDMA_DIRTY_H

#include <stdint.h>

/* Ours: vfio's own features are numbered from 0. */
#define PVRDMA_FEATURE_DIRTY_LOG 0x8001u /* SET */

#define PVRDMA_DIRTY_PAGE_SHIFT 12
/* Of guest memory in the ranges of one shared log. */
#define PVRDMA_DIRTY_MAX_BYTES (UINT64_C(1) << 42)

/* Bytes of the file for a range of @length bytes: whole pages of it. */
static inline uint64_t pvrdma_dirty_bytes(uint64_t length)
{
    uint64_t bits = length >> PVRDMA_DIRTY_PAGE_SHIFT;

    return ((bits + 32767) / 32768) << PVRDMA_DIRTY_PAGE_SHIFT;
}

#endif /* PVRDMA_DIRTY_H */
