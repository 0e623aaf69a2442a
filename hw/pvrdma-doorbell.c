/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Doorbells of the pvrdma device: BAR2 writes become bits in shared memory.
 *
 * A message per doorbell would cost the guest a round trip to the daemon for
 * each post and each empty poll.  Instead the daemon offers a memfd with one
 * bit per object; include/pvrdma/doorbell.h has the layout and the protocol.  A
 * doorbell sets a bit here, and only if the daemon's worker said that it is
 * going to sleep, an eventfd is signalled (pvrdma-eventfd.c).  If that fails,
 * the message is sent after all.
 *
 * The region is the daemon's memory and may change at any time: it is only
 * accessed by atomic operations, at constant offsets and at handles checked
 * here, and nothing read from it but the owner words and the kick word has any
 * effect.
 *
 * This file needs atomic operations and nothing else of QEMU, for the project's
 * tests race it, as it is, against the daemon's worker.
 */
#include "qemu/osdep.h"
#include "qemu/atomic.h"
#include "pvrdma-doorbell.h"
#include "pvrdma-eventfd.h"
#include "pvrdma/abi.h"

static bool may_ring(const uint16_t *owner, uint32_t handle, uint64_t page)
{
    return handle < PVRDMA_DB_HANDLES &&
           (page == 0 || qatomic_read(&owner[handle]) == page);
}

static void set_bit_in(struct pvrdma_db_map *map, uint32_t handle)
{
    /* Release: what the guest wrote to the ring comes before the bit. */
    qatomic_or(&map->words[handle / 64], 1ull << (handle % 64));
    qatomic_or(&map->summary[handle / 4096], 1ull << (handle / 64 % 64));
}

/* What became of a doorbell. */
typedef enum {
    RING_BAD,    /* to be counted as such */
    RING_DONE,
    RING_UNHEARD /* the bit is set, but the worker sleeps on */
} Ring;

static Ring kick(PVRDMADoorbell *db)
{
    /* Pairs with the worker's: it sets the kick word, then scans again. */
    smp_mb();
    if (qatomic_read(&db->region->kick) &&
        !pvrdma_eventfd_signal(db->eventfd)) {
        return RING_UNHEARD;
    }
    return RING_DONE;
}

static Ring ring_qp(PVRDMADoorbell *db, uint64_t page, uint32_t value)
{
    struct pvrdma_db_region *r = db->region;
    uint32_t handle = value & PVRDMA_UAR_HANDLE_MASK;

    if (!may_ring(r->qp_owner, handle, page)) {
        return RING_BAD;
    }
    if (value & PVRDMA_UAR_QP_SEND) {
        set_bit_in(&r->send, handle);
    }
    if (value & PVRDMA_UAR_QP_RECV) {
        set_bit_in(&r->recv, handle);
    }
    if (value & (PVRDMA_UAR_QP_SEND | PVRDMA_UAR_QP_RECV)) {
        return kick(db);
    }
    return RING_DONE;
}

static Ring ring_cq(PVRDMADoorbell *db, uint64_t page, uint32_t value)
{
    struct pvrdma_db_region *r = db->region;
    uint32_t handle = value & PVRDMA_UAR_HANDLE_MASK;

    if (!may_ring(r->cq_owner, handle, page)) {
        return RING_BAD;
    }
    if (value & PVRDMA_UAR_CQ_ARM) {
        qatomic_set(&r->arm[handle], PVRDMA_DB_ARM_ANY);
    } else {
        /* Never weakens an ARM that is pending. */
        qatomic_cmpxchg(&r->arm[handle], PVRDMA_DB_ARM_NONE,
                        PVRDMA_DB_ARM_SOLICITED);
    }
    /* The guest looks at the CQ again after this write. */
    smp_mb();
    return RING_DONE;
}

static Ring ring_srq(PVRDMADoorbell *db, uint64_t page, uint32_t value)
{
    uint32_t handle = value & PVRDMA_UAR_HANDLE_MASK;

    if (!may_ring(db->region->srq_owner, handle, page)) {
        return RING_BAD;
    }
    if (value & PVRDMA_UAR_SRQ_RECV) {
        set_bit_in(&db->region->srq, handle);
        return kick(db);
    }
    return RING_DONE;
}

bool pvrdma_doorbell_is_poll(uint64_t offset, uint32_t value)
{
    return (offset & (PVRDMA_PAGE_SIZE - 1)) == PVRDMA_UAR_CQ &&
           !(value & (PVRDMA_UAR_CQ_ARM | PVRDMA_UAR_CQ_ARM_SOL));
}

bool pvrdma_doorbell_ring(PVRDMADoorbell *db, uint64_t offset, uint32_t value)
{
    uint64_t page = offset >> PVRDMA_PAGE_SHIFT;
    Ring result = RING_BAD;

    qatomic_inc(&db->region->writes);
    if (pvrdma_doorbell_is_poll(offset, value)) {
        qatomic_inc(&db->region->polls);
        return true;
    }
    switch (offset & (PVRDMA_PAGE_SIZE - 1)) {
    case PVRDMA_UAR_QP:
        result = ring_qp(db, page, value);
        break;
    case PVRDMA_UAR_CQ:
        result = ring_cq(db, page, value);
        break;
    case PVRDMA_UAR_SRQ:
        result = ring_srq(db, page, value);
        break;
    }
    if (result == RING_BAD) {
        qatomic_inc(&db->region->bad_doorbells);
    }
    return result != RING_UNHEARD;
}
