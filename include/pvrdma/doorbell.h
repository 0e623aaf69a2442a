/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The doorbell region: how a VMM's BAR2 handler tells pvrdmad about doorbells
 * without a message.
 *
 * The daemon owns one sealed memfd per VM and offers it over vfio-user as
 * device-specific region PVRDMA_DB_REGION_INDEX (capability: type
 * PVRDMA_DB_REGION_TYPE, subtype PVRDMA_DB_REGION_SUBTYPE).  It also offers one
 * eventfd per VM as the single ioeventfd entry that DEVICE_GET_REGION_IO_FDS
 * returns for region 2 (BAR2); it is not meant for KVM: the BAR2 handler writes
 * it.  The layout is fixed: every offset is a constant, so neither side has to
 * believe the other's numbers.  All words are in host byte order (both sides
 * run on one host) and are accessed with atomic operations only.
 *
 * A doorbell write of a guest to UAR page P (BAR2 offset P * 4096):
 *
 *  +0 QP   SEND: set bit `handle` in the send map; RECV: in the receive map
 *  +4 CQ   ARM: arm[handle] = PVRDMA_DB_ARM_ANY; ARM_SOLICITED: cmpxchg
 *          arm[handle] 0 -> PVRDMA_DB_ARM_SOLICITED; POLL: counted
 *  +8 SRQ  RECV: set bit `handle` in the SRQ map
 *
 * Setting a bit: atomic OR into words[handle / 64] (release), atomic OR into
 * summary[handle / 4096], full barrier, load `kick`; if it is not 0, write the
 * eventfd.  Arming: store, full barrier; no kick: the completing worker looks.
 *
 * The writer first checks that the page may ring the handle: page 0 (the guest
 * kernel's) may ring every handle, page P > 0 only those whose owner word is P.
 * A doorbell that fails the check is dropped and counted in `bad_doorbells`.
 *
 * The worker clears summary bits before words, so a bit set meanwhile is
 * either taken now or leaves its summary bit set.  Nothing here is trusted by
 * the daemon: a bit only means "look at that object's ring".
 */
#ifndef PVRDMA_DOORBELL_H
#define PVRDMA_DOORBELL_H

#include <stdint.h>

#define PVRDMA_DB_REGION_INDEX   9
/* VFIO region types: vendor types have bit 31 set, PCI vendor id below. */
#define PVRDMA_DB_REGION_TYPE    (0x80000000u | 0x15adu)
#define PVRDMA_DB_REGION_SUBTYPE 1u

#define PVRDMA_DB_MAGIC   0x42445250u /* "PRDB" */
#define PVRDMA_DB_VERSION 1u

/* Handles are 16 bits wide on this ABI, so the maps never need to grow. */
#define PVRDMA_DB_HANDLES       65536u
#define PVRDMA_DB_WORDS         (PVRDMA_DB_HANDLES / 64)
#define PVRDMA_DB_SUMMARY_WORDS (PVRDMA_DB_WORDS / 64)

/* Values of an arm word. */
#define PVRDMA_DB_ARM_NONE      0u
#define PVRDMA_DB_ARM_ANY       1u
#define PVRDMA_DB_ARM_SOLICITED 2u

/* Value of an owner word of a handle that no context owns. */
#define PVRDMA_DB_NO_OWNER 0xffffu

/* One bit per handle, and one summary bit per 64-bit word of those. */
struct pvrdma_db_map {
    uint64_t summary[PVRDMA_DB_SUMMARY_WORDS];
    uint8_t pad[4096 - 8 * PVRDMA_DB_SUMMARY_WORDS];
    uint64_t words[PVRDMA_DB_WORDS];
};

struct pvrdma_db_region {
    /* Page 0.  magic and version: written once by the daemon. */
    uint32_t magic;
    uint32_t version;
    uint8_t pad0[56];
    /* Set by the worker before it sleeps, cleared when it wakes. */
    uint32_t kick;
    uint8_t pad1[60];
    /* Counted by the VMM: doorbells for foreign or impossible handles. */
    uint64_t bad_doorbells;
    /* Counted by the VMM: BAR2 writes taken, of any kind. */
    uint64_t writes;
    /* Counted by the VMM: those of them that announce a poll of a CQ. */
    uint64_t polls;
    uint8_t pad2[4096 - 152];

    struct pvrdma_db_map send;
    struct pvrdma_db_map recv;
    struct pvrdma_db_map srq;
    uint8_t pad3[0x10000 - 4096 - 3 * sizeof(struct pvrdma_db_map)];

    uint32_t arm[PVRDMA_DB_HANDLES];

    /* UAR page index that may ring the handle; written by the daemon. */
    uint16_t qp_owner[PVRDMA_DB_HANDLES];
    uint16_t cq_owner[PVRDMA_DB_HANDLES];
    uint16_t srq_owner[PVRDMA_DB_HANDLES];
};

#define PVRDMA_DB_REGION_SIZE ((uint64_t)sizeof(struct pvrdma_db_region))

_Static_assert(sizeof(struct pvrdma_db_map) == 0x3000, "doorbell map size");
_Static_assert(__builtin_offsetof(struct pvrdma_db_region, kick) == 64, "kick");
_Static_assert(__builtin_offsetof(struct pvrdma_db_region, send) == 0x1000,
               "send map");
_Static_assert(__builtin_offsetof(struct pvrdma_db_region, arm) == 0x10000,
               "arm words");
_Static_assert(__builtin_offsetof(struct pvrdma_db_region, qp_owner) == 0x50000,
               "owner words");
_Static_assert(sizeof(struct pvrdma_db_region) == 0xb0000, "region size");

#endif /* PVRDMA_DOORBELL_H */
