/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Doorbells of the pvrdma device: BAR2 writes become bits in shared memory.
 *
 * A message per doorbell would cost the guest a round trip to the daemon for
 * each post and each empty poll.  Instead the daemon offers a memfd with one
 * bit per object; include/pvrdma/doorbell.h has the layout and the protocol.  A
 * doorbell sets a bit here, and only if the daemon's worker said that it is
 * going to sleep, an eventfd is written.
 *
 * The region is the daemon's memory and may change at any time: it is only
 * accessed by atomic operations, at constant offsets and at handles checked
 * here, and nothing read from it but the owner words and the kick word has any
 * effect.  The memfd must be sealed against shrinking, or the daemon could kill
 * QEMU by truncating it.
 */
#include "qemu/osdep.h"
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include "qemu/atomic.h"
#include "pvrdma-doorbell.h"
#include "pvrdma-eventfd.h"
#include "pvrdma/abi.h"

/*
 * May this descriptor be an eventfd?  Those live in a file system of their own,
 * with nothing else in it to which a write could do harm.  (/proc would tell for
 * certain, but QEMU may run in a chroot without it.)
 */
static bool is_eventfd(int fd)
{
    struct statfs fs;

    return fstatfs(fd, &fs) == 0 && fs.f_type == ANON_INODE_FS_MAGIC &&
           (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR;
}

/* Map the file behind @r; NULL, with @errp set, if it is not as agreed. */
static struct pvrdma_db_region *map_region(const PVRDMARegion *r, Error **errp)
{
    struct pvrdma_db_region *db;
    struct stat st;
    int seals = fcntl(r->fd, F_GET_SEALS);

    if (r->size < PVRDMA_DB_REGION_SIZE || r->sparse ||
        r->offset % qemu_real_host_page_size()) {
        error_setg(errp, "pvrdmad's doorbell region has an unknown layout");
        return NULL;
    }
    if (seals < 0 || !(seals & F_SEAL_SHRINK)) {
        error_setg(errp, "pvrdmad's doorbell region is not a sealed memfd");
        return NULL;
    }
    if (fstat(r->fd, &st) < 0 || st.st_size < PVRDMA_DB_REGION_SIZE ||
        r->offset > st.st_size - PVRDMA_DB_REGION_SIZE) {
        error_setg(errp, "pvrdmad's doorbell region is larger than its file");
        return NULL;
    }
    db = mmap(NULL, PVRDMA_DB_REGION_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED,
              r->fd, r->offset);
    if (db == MAP_FAILED) {
        error_setg_errno(errp, errno, "cannot map pvrdmad's doorbell region");
        return NULL;
    }
    if (qatomic_read(&db->magic) != PVRDMA_DB_MAGIC ||
        qatomic_read(&db->version) != PVRDMA_DB_VERSION) {
        error_setg(errp, "pvrdmad's doorbell region has an unknown version");
        munmap(db, PVRDMA_DB_REGION_SIZE);
        return NULL;
    }
    return db;
}

/* Get the eventfd; it must be one. */
static int open_eventfd(PVRDMAClient *c, Error **errp)
{
    int fd = pvrdma_call_io_fd(c, VFIO_USER_REGION_BAR2, errp);

    if (fd < 0) {
        return -1;
    }
    if (!is_eventfd(fd)) {
        error_setg(errp, "pvrdmad's doorbell descriptor is not an eventfd");
        close(fd);
        return -1;
    }
    return fd;
}

bool pvrdma_doorbell_open(PVRDMADoorbell *db, PVRDMAClient *c,
                          uint32_t num_regions, Error **errp)
{
    PVRDMARegion region;

    db->region = NULL;
    db->eventfd = -1;
    if (num_regions <= PVRDMA_DB_REGION_INDEX) {
        return true;
    }
    if (!pvrdma_call_region_info(c, PVRDMA_DB_REGION_INDEX, &region, errp)) {
        return false;
    }
    /* Another device-specific region may use this index: not ours. */
    if (region.fd >= 0 && region.type == PVRDMA_DB_REGION_TYPE &&
        region.subtype == PVRDMA_DB_REGION_SUBTYPE) {
        db->region = map_region(&region, errp);
        if (db->region) {
            db->eventfd = open_eventfd(c, errp);
        }
        if (db->eventfd < 0) {
            close(region.fd);
            pvrdma_doorbell_close(db);
            return false;
        }
    }
    if (region.fd >= 0) {
        close(region.fd);
    }
    return true;
}

void pvrdma_doorbell_close(PVRDMADoorbell *db)
{
    if (db->region) {
        munmap(db->region, PVRDMA_DB_REGION_SIZE);
        db->region = NULL;
    }
    if (db->eventfd >= 0) {
        close(db->eventfd);
        db->eventfd = -1;
    }
}

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

static void kick(PVRDMADoorbell *db)
{
    /* Pairs with the worker's: it sets the kick word, then scans again. */
    smp_mb();
    if (qatomic_read(&db->region->kick)) {
        pvrdma_eventfd_signal(db->eventfd);
    }
}

/* False: the doorbell is to be counted as bad. */
static bool ring_qp(PVRDMADoorbell *db, uint64_t page, uint32_t value)
{
    struct pvrdma_db_region *r = db->region;
    uint32_t handle = value & PVRDMA_UAR_HANDLE_MASK;

    if (!may_ring(r->qp_owner, handle, page)) {
        return false;
    }
    if (value & PVRDMA_UAR_QP_SEND) {
        set_bit_in(&r->send, handle);
    }
    if (value & PVRDMA_UAR_QP_RECV) {
        set_bit_in(&r->recv, handle);
    }
    if (value & (PVRDMA_UAR_QP_SEND | PVRDMA_UAR_QP_RECV)) {
        kick(db);
    }
    return true;
}

static bool ring_cq(PVRDMADoorbell *db, uint64_t page, uint32_t value)
{
    struct pvrdma_db_region *r = db->region;
    uint32_t handle = value & PVRDMA_UAR_HANDLE_MASK;

    if (!may_ring(r->cq_owner, handle, page)) {
        return false;
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
    return true;
}

static bool ring_srq(PVRDMADoorbell *db, uint64_t page, uint32_t value)
{
    uint32_t handle = value & PVRDMA_UAR_HANDLE_MASK;

    if (!may_ring(db->region->srq_owner, handle, page)) {
        return false;
    }
    if (value & PVRDMA_UAR_SRQ_RECV) {
        set_bit_in(&db->region->srq, handle);
        kick(db);
    }
    return true;
}

bool pvrdma_doorbell_is_poll(uint64_t offset, uint32_t value)
{
    return (offset & (PVRDMA_PAGE_SIZE - 1)) == PVRDMA_UAR_CQ &&
           !(value & (PVRDMA_UAR_CQ_ARM | PVRDMA_UAR_CQ_ARM_SOL));
}

void pvrdma_doorbell_ring(PVRDMADoorbell *db, uint64_t offset, uint32_t value)
{
    uint64_t page = offset >> PVRDMA_PAGE_SHIFT;
    bool good = false;

    qatomic_inc(&db->region->writes);
    if (pvrdma_doorbell_is_poll(offset, value)) {
        qatomic_inc(&db->region->polls);
        return;
    }
    switch (offset & (PVRDMA_PAGE_SIZE - 1)) {
    case PVRDMA_UAR_QP:
        good = ring_qp(db, page, value);
        break;
    case PVRDMA_UAR_CQ:
        good = ring_cq(db, page, value);
        break;
    case PVRDMA_UAR_SRQ:
        good = ring_srq(db, page, value);
        break;
    }
    if (!good) {
        qatomic_inc(&db->region->bad_doorbells);
    }
}
