/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Doorbells: the region that is shared with the VMM (doorbell.h has its layout
 * and protocol), and doorbells that arrive as messages.
 *
 * The shared region is a sealed memfd, so the VMM can neither shrink it under
 * us nor be given anything but that.  Its content is the VMM's to scribble on:
 * a bit only means "look at that queue", an arm word only "send an interrupt".
 * A message sets bits in a region of our own, with the owner check made on the
 * objects themselves, so that region's owner words are not used; both regions
 * are scanned by the VM's worker.
 */
#include "vm.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

static void *map_region(int fd, int flags)
{
    void *p = mmap(NULL, PVRDMA_DB_REGION_SIZE, PROT_READ | PROT_WRITE, flags, fd, 0);

    return p == MAP_FAILED ? NULL : p;
}

static int make_memfd(void)
{
    int fd = memfd_create("pvrdma-doorbells", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0 || ftruncate(fd, PVRDMA_DB_REGION_SIZE) ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
        if (fd >= 0) {
            close(fd);
        }
        return -1;
    }
    return fd;
}

bool doorbell_init(struct device *dev, GError **errp)
{
    dev->db_memfd = make_memfd();
    dev->db_eventfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    dev->db_private = map_region(-1, MAP_PRIVATE | MAP_ANONYMOUS);
    if (dev->db_memfd >= 0) {
        dev->db_shared = map_region(dev->db_memfd, MAP_SHARED);
    }
    if (dev->db_eventfd < 0 || !dev->db_private || !dev->db_shared) {
        g_set_error(errp, G_FILE_ERROR, g_file_error_from_errno(errno),
                    "cannot make the doorbell region: %s", g_strerror(errno));
        doorbell_fini(dev);
        return false;
    }
    dev->db_shared->magic = dev->db_private->magic = PVRDMA_DB_MAGIC;
    dev->db_shared->version = dev->db_private->version = PVRDMA_DB_VERSION;
    /* Until the worker clears it, every doorbell wakes it. */
    dev->db_shared->kick = dev->db_private->kick = 1;
    memset(dev->db_shared->qp_owner, 0xff, sizeof(dev->db_shared->qp_owner));
    memset(dev->db_shared->cq_owner, 0xff, sizeof(dev->db_shared->cq_owner));
    memset(dev->db_shared->srq_owner, 0xff, sizeof(dev->db_shared->srq_owner));
    return true;
}

void doorbell_fini(struct device *dev)
{
    if (dev->db_shared) {
        munmap(dev->db_shared, PVRDMA_DB_REGION_SIZE);
    }
    if (dev->db_private) {
        munmap(dev->db_private, PVRDMA_DB_REGION_SIZE);
    }
    if (dev->db_memfd >= 0) {
        close(dev->db_memfd);
    }
    if (dev->db_eventfd >= 0) {
        close(dev->db_eventfd);
    }
    dev->db_shared = dev->db_private = NULL;
    dev->db_memfd = dev->db_eventfd = -1;
}

/* Writes only what is set: most pages of the regions are never touched. */
static void map_reset(struct pvrdma_db_map *map)
{
    for (unsigned i = 0; i < PVRDMA_DB_SUMMARY_WORDS; i++) {
        __atomic_store_n(&map->summary[i], 0, __ATOMIC_RELAXED);
    }
    for (unsigned i = 0; i < PVRDMA_DB_WORDS; i++) {
        if (__atomic_load_n(&map->words[i], __ATOMIC_RELAXED)) {
            __atomic_store_n(&map->words[i], 0, __ATOMIC_RELAXED);
        }
    }
}

static void region_reset(struct pvrdma_db_region *db)
{
    map_reset(&db->send);
    map_reset(&db->recv);
    map_reset(&db->srq);
}

/* Only words of handles that this VM can have mean anything. */
void doorbell_reset(struct device *dev)
{
    struct pvrdma_db_region *db = dev->db_shared;
    const struct vm_config *cfg = dev->vm->cfg;

    region_reset(dev->db_private);
    region_reset(db);
    for (uint32_t i = 0; i < cfg->max_qp; i++) {
        __atomic_store_n(&db->qp_owner[i], PVRDMA_DB_NO_OWNER, __ATOMIC_RELAXED);
    }
    for (uint32_t i = 0; i < cfg->max_cq; i++) {
        __atomic_store_n(&db->arm[i], PVRDMA_DB_ARM_NONE, __ATOMIC_RELAXED);
        __atomic_store_n(&db->cq_owner[i], PVRDMA_DB_NO_OWNER, __ATOMIC_RELAXED);
    }
}

static void map_set(struct pvrdma_db_map *map, uint32_t handle)
{
    __atomic_fetch_or(&map->words[handle / 64], 1ull << (handle % 64), __ATOMIC_RELEASE);
    __atomic_fetch_or(&map->summary[handle / 4096], 1ull << (handle / 64 % 64),
                      __ATOMIC_RELEASE);
}

/* The kernel's page rings everything, a program's page its own objects. */
static bool may_ring(uint32_t page, const struct uctx *uctx)
{
    return page == 0 || (uctx && uctx->uar_page == page);
}

static bool qp_doorbell(struct device *dev, uint32_t page, uint32_t value)
{
    uint32_t handle = value & PVRDMA_UAR_HANDLE_MASK;
    const struct qp *qp = id_table_get(&dev->vm->verbs.qp, handle);

    if (!qp || !may_ring(page, qp->pd->uctx)) {
        return false;
    }
    if (value & PVRDMA_UAR_QP_SEND) {
        map_set(&dev->db_private->send, handle);
    }
    if (value & PVRDMA_UAR_QP_RECV) {
        map_set(&dev->db_private->recv, handle);
    }
    datapath_wake(dev->vm); /* begins with a full barrier */
    return true;
}

static bool cq_doorbell(struct device *dev, uint32_t page, uint32_t value)
{
    uint32_t handle = value & PVRDMA_UAR_HANDLE_MASK;
    const struct cq *cq = id_table_get(&dev->vm->verbs.cq, handle);

    if (!cq || !may_ring(page, cq->uctx)) {
        return false;
    }
    /*
     * POLL asks for nothing that we do not do anyway.  Arming looks into the
     * guest's ring, which a device without bus mastering may not.
     */
    if ((value & (PVRDMA_UAR_CQ_ARM | PVRDMA_UAR_CQ_ARM_SOL)) && dev->bus_master) {
        datapath_cq_arm(dev->vm, handle, !(value & PVRDMA_UAR_CQ_ARM));
    }
    return true;
}

void device_doorbell(struct device *dev, uint64_t bar2_offset, uint32_t value)
{
    uint64_t page = bar2_offset / PVRDMA_PAGE_SIZE;
    bool ok = false;

    if (page < DEVICE_MAX_UAR) {
        switch (bar2_offset % PVRDMA_PAGE_SIZE) {
        case PVRDMA_UAR_QP:
            ok = qp_doorbell(dev, page, value);
            break;
        case PVRDMA_UAR_CQ:
            ok = cq_doorbell(dev, page, value);
            break;
        default: /* PVRDMA_UAR_SRQ among them: there are no SRQs */
            break;
        }
    }
    if (!ok) {
        atomic_fetch_add_explicit(&dev->bad_doorbells, 1, memory_order_relaxed);
    }
}
