/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The doorbell regions of one guest.
 *
 * The shared region is a sealed memfd, so the VMM can neither shrink it under
 * us nor be given anything but that.  It can free pages of it by a hole, though, and
 * where the host has none to fill that, or its memory an error, the guard of guest memory
 * (sigbus.h) has the VMM let go.  Its content is the VMM's to scribble on:
 * a bit only means "look at that queue", an arm word only "send an interrupt".
 * Doorbells that come as messages set bits in a region of our own, after a check
 * on the objects themselves, so that region's owner words are not used.
 *
 * Main thread.
 */
#include "guest/doorbells.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/coro.h"
#include "guest/sigbus.h"
#include "pvrdma/abi.h"

static void *map_region(int fd, int flags)
{
    void *p = mmap(NULL, PVRDMA_DB_REGION_SIZE, PROT_READ | PROT_WRITE, flags, fd, 0);

    return p == MAP_FAILED ? NULL : p;
}

/* A shared one; *guard is set if it is there. */
static void *map_shared(int fd, struct guest *guest, int *guard)
{
    void *p = map_region(fd, MAP_SHARED);

    *guard = p ? sigbus_guard(p, PVRDMA_DB_REGION_SIZE, PVRDMA_PAGE_SIZE, guest) : -1;
    if (p && *guard < 0) { /* cannot be: each VM has its own */
        munmap(p, PVRDMA_DB_REGION_SIZE);
        errno = ENOSPC;
        return NULL;
    }
    return p;
}

static void unmap_shared(void *p, int guard)
{
    sigbus_unguard(guard);
    munmap(p, PVRDMA_DB_REGION_SIZE);
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

/* Nobody's.  Pages that were never touched: the kernel takes half a microsecond each. */
static void disown(uint16_t *owner, size_t n)
{
    const size_t step = 2048;

    for (size_t i = 0; i < n; i += step) {
        memset(owner + i, 0xff, MIN(step, n - i) * sizeof(*owner));
        coro_breathe();
    }
}

bool doorbells_init(struct guest_doorbells *db, struct guest *guest, int bell,
                    GError **errp)
{
    db->guest = guest;
    db->guard = -1;
    db->memfd = make_memfd();
    db->eventfd = bell >= 0 ? bell : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    db->own = map_region(-1, MAP_PRIVATE | MAP_ANONYMOUS);
    if (db->memfd >= 0) {
        db->shared = map_shared(db->memfd, guest, &db->guard);
    }
    if (db->eventfd < 0 || !db->own || !db->shared) {
        g_set_error(errp, G_FILE_ERROR, g_file_error_from_errno(errno),
                    "cannot make the doorbell region: %s", g_strerror(errno));
        doorbells_fini(db);
        return false;
    }
    db->shared->magic = db->own->magic = PVRDMA_DB_MAGIC;
    db->shared->version = db->own->version = PVRDMA_DB_VERSION;
    /* Until the worker clears it, every doorbell wakes it. */
    db->shared->kick = db->own->kick = 1;
    disown(db->shared->qp_owner, G_N_ELEMENTS(db->shared->qp_owner));
    disown(db->shared->cq_owner, G_N_ELEMENTS(db->shared->cq_owner));
    disown(db->shared->srq_owner, G_N_ELEMENTS(db->shared->srq_owner));
    return true;
}

/*
 * What is stored there from now on, and was before, is in @memfd.  The new pages take
 * the old ones' place in one step, since workers have the address.
 */
bool doorbells_adopt(struct guest_doorbells *db, int memfd)
{
    int guard;
    struct pvrdma_db_region *region = map_shared(memfd, db->guest, &guard);
    void *p;

    if (!region) {
        return false;
    }
    memcpy(region->qp_owner, db->shared->qp_owner, sizeof(region->qp_owner));
    memcpy(region->cq_owner, db->shared->cq_owner, sizeof(region->cq_owner));
    memcpy(region->srq_owner, db->shared->srq_owner, sizeof(region->srq_owner));
    __atomic_store_n(&region->kick, 1, __ATOMIC_RELEASE);
    unmap_shared(region, guard);
    p = mmap(db->shared, PVRDMA_DB_REGION_SIZE, PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_FIXED, memfd, 0);
    if (p == MAP_FAILED) {
        return false;
    }
    close(db->memfd);
    db->memfd = memfd;
    return true;
}

void doorbells_fini(struct guest_doorbells *db)
{
    if (db->shared) {
        unmap_shared(db->shared, db->guard);
    }
    if (db->own) {
        munmap(db->own, PVRDMA_DB_REGION_SIZE);
    }
    if (db->memfd >= 0) {
        close(db->memfd);
    }
    if (db->eventfd >= 0) {
        close(db->eventfd);
    }
    db->shared = db->own = NULL;
    db->memfd = db->eventfd = -1;
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

/* The VMM may have punched holes: bringing a page back takes the kernel a while. */
static void breathe(uint32_t i)
{
    if (i % 1024 == 1023) {
        coro_breathe();
    }
}

static void region_reset(struct pvrdma_db_region *db)
{
    map_reset(&db->send);
    map_reset(&db->recv);
    map_reset(&db->srq);
    coro_breathe();
}

/* Only words of handles that this VM can have mean anything. */
void doorbells_reset(struct guest_doorbells *db, uint32_t max_qp, uint32_t max_cq,
                     uint32_t max_srq)
{
    struct pvrdma_db_region *shared = db->shared;

    region_reset(db->own);
    region_reset(shared);
    for (uint32_t i = 0; i < max_qp; i++) {
        __atomic_store_n(&shared->qp_owner[i], PVRDMA_DB_NO_OWNER, __ATOMIC_RELAXED);
        breathe(i);
    }
    for (uint32_t i = 0; i < max_cq; i++) {
        __atomic_store_n(&shared->arm[i], PVRDMA_DB_ARM_NONE, __ATOMIC_RELAXED);
        __atomic_store_n(&shared->cq_owner[i], PVRDMA_DB_NO_OWNER, __ATOMIC_RELAXED);
        breathe(i);
    }
    for (uint32_t i = 0; i < max_srq; i++) {
        __atomic_store_n(&shared->srq_owner[i], PVRDMA_DB_NO_OWNER, __ATOMIC_RELAXED);
        breathe(i);
    }
}
