/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Doorbells of the pvrdma device: getting the daemon's doorbell region.
 *
 * The memfd must be sealed against shrinking, or the daemon could kill QEMU by
 * truncating it.  All checks are made once, here, under the BQL.
 */
#include "qemu/osdep.h"
#include <linux/magic.h>
#include <linux/vfio.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include "qemu/atomic.h"
#include "qemu/error-report.h"
#include "pvrdma-calls.h"
#include "pvrdma-doorbell.h"
#include "pvrdma-eventfd.h"

/*
 * May this descriptor be an eventfd?  Those live in a file system of their own.
 * (/proc would tell for certain, but QEMU may run in a chroot without it.)
 * This is for a clear message: only an eventfd can be signalled anyway.
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
    int fd = pvrdma_call_io_fd(c, VFIO_PCI_BAR2_REGION_INDEX, errp);

    if (fd < 0) {
        return -1;
    }
    if (!is_eventfd(fd)) {
        error_setg(errp, "pvrdmad's doorbell descriptor is not an eventfd");
        close(fd);
        return -1;
    }
    if (!pvrdma_eventfd_setup()) {
        warn_report_once("pvrdma: no asynchronous I/O to wake pvrdmad with: "
                         "%s; this takes longer", strerror(errno));
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
