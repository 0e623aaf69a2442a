/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The device's regions: their description and accesses by message.
 *
 *   0  BAR0, MSI-X table and PBA.  The VMM emulates them; here the table is
 *      plain storage and the rest zeros that ignore writes.
 *   1  BAR1, registers.  Claims to be mappable, with a sparse list that has no
 *      area: nothing is mapped, but stock QEMU stops posting register writes
 *      once it has seen the flag, and the in-tree guest driver needs that: it
 *      frees memory right after writing DSRHIGH or CTL without a read between.
 *   2  BAR2, doorbells.
 *   7  configuration space.
 *   9  the doorbell region (pvrdma/doorbell.h): a memfd of ours to be mapped;
 *      messages reach it as well, as the protocol demands.
 *   3..6, 8: not there, size 0.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <fcntl.h>
#include <unistd.h>

#include "frontend/conn.h"
#include "frontend/migration.h"
#include "datapath/datapath.h"
#include "device/device.h"
#include "guest/irq.h"
#include "vm/attach.h"

#define BAR2_SIZE ((uint64_t)VERBS_MAX_UAR * PVRDMA_PAGE_SIZE)

/* Largest write to a BAR: what one CPU store makes. */
#define BAR_MAX_WRITE 8u

struct region_desc {
    uint64_t size;
    uint32_t flags;
};

#define RW (VFIO_USER_REGION_FLAG_READ | VFIO_USER_REGION_FLAG_WRITE)

static const struct region_desc regions[] = {
    [VFIO_USER_REGION_BAR0] = {PVRDMA_BAR_MSIX_SIZE, RW},
    [VFIO_USER_REGION_BAR1] = {PVRDMA_BAR_REG_SIZE, RW},
    [VFIO_USER_REGION_BAR2] = {BAR2_SIZE, RW},
    [VFIO_USER_REGION_CONFIG] = {PCI_CONFIG_SIZE, RW},
    [PVRDMA_DB_REGION_INDEX] = {PVRDMA_DB_REGION_SIZE, RW},
};

/* A page that can only be read, to go along with BAR1's empty sparse list. */
int region_empty_memfd(void)
{
    static int fd = -1;

    if (fd >= 0) {
        return fd;
    }
    fd = memfd_create("pvrdma-empty", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd >= 0 &&
        (ftruncate(fd, PVRDMA_BAR_REG_SIZE) < 0 ||
         fcntl(fd, F_ADD_SEALS,
               F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* The fd of a mappable region and its capability (16 bytes), or -1. */
static int region_map(struct vfu_conn *c, uint32_t index, uint8_t cap[16])
{
    struct vfio_user_cap_type type = {
        .head = {.id = VFIO_USER_CAP_TYPE, .version = 1},
        .type = PVRDMA_DB_REGION_TYPE,
        .subtype = PVRDMA_DB_REGION_SUBTYPE,
    };
    struct vfio_user_cap_sparse sparse = {
        .head = {.id = VFIO_USER_CAP_SPARSE_MMAP, .version = 1},
    };

    if (c->client.max_msg_fds == 0) {
        return -1;
    }
    switch (index) {
    case VFIO_USER_REGION_BAR1:
        memcpy(cap, &sparse, sizeof(sparse));
        return region_empty_memfd();
    case PVRDMA_DB_REGION_INDEX:
        memcpy(cap, &type, sizeof(type));
        return c->vm->guest.db.memfd;
    default:
        return -1;
    }
}

int region_info(struct vfu_conn *c, const struct vfu_msg *m, struct vfu_reply *r)
{
    struct vfio_user_region_info req;
    struct vfio_user_region_info info = {.argsz = sizeof(info)};
    uint8_t cap[16] = {0};
    uint8_t *out;
    uint32_t len;

    memcpy(&req, m->body, sizeof(req));
    if (req.argsz < sizeof(info) || req.index >= G_N_ELEMENTS(regions)) {
        return EINVAL;
    }
    info.index = req.index;
    info.size = regions[req.index].size;
    info.flags = regions[req.index].flags;
    r->fd = region_map(c, req.index, cap);
    if (r->fd >= 0) {
        info.flags |= VFIO_USER_REGION_FLAG_MMAP | VFIO_USER_REGION_FLAG_CAPS;
        info.argsz += sizeof(cap);
        info.cap_offset = sizeof(info);
    }
    /* Too little room: the fixed part, which says how much it takes. */
    len = req.argsz >= info.argsz ? info.argsz : sizeof(info);
    out = vfu_reply_alloc(r, len);
    if (!out) {
        return ENOMEM;
    }
    memcpy(out, &info, sizeof(info));
    if (len > sizeof(info)) {
        memcpy(out + sizeof(info), cap, sizeof(cap));
    }
    return 0;
}

int region_io_fds(struct vfu_conn *c, const struct vfu_msg *m, struct vfu_reply *r)
{
    struct vfio_user_region_io_fds req;
    struct vfio_user_region_io_fds head = {
        .argsz = sizeof(head) + sizeof(struct vfio_user_io_fd),
        .count = 1,
    };
    struct vfio_user_io_fd entry = {
        .size = BAR2_SIZE,
        .type = VFIO_USER_IO_FD_IOEVENTFD,
    };
    uint8_t *out;
    bool cut;

    memcpy(&req, m->body, sizeof(req));
    cut = req.argsz < head.argsz;
    head.index = req.index;
    if (req.argsz < sizeof(head) || req.index >= G_N_ELEMENTS(regions)) {
        return EINVAL;
    }
    if (req.index != VFIO_USER_REGION_BAR2 || c->vm->guest.db.eventfd < 0 ||
        c->client.max_msg_fds == 0) {
        return ENOTSUP;
    }
    out = vfu_reply_alloc(r, cut ? sizeof(head) : head.argsz);
    if (!out) {
        return ENOMEM;
    }
    memcpy(out, &head, sizeof(head));
    if (!cut) {
        memcpy(out + sizeof(head), &entry, sizeof(entry));
        r->fd = c->vm->guest.db.eventfd;
    }
    return 0;
}

int region_check(uint32_t region, uint64_t offset, uint64_t count, bool write)
{
    uint64_t size;

    if (region >= G_N_ELEMENTS(regions) || count == 0) {
        return EINVAL;
    }
    if (count > VFIO_USER_MAX_DATA) {
        return E2BIG;
    }
    size = regions[region].size;
    if (offset > size || count > size - offset) {
        return EINVAL;
    }
    if (write && region <= VFIO_USER_REGION_BAR2 && count > BAR_MAX_WRITE) {
        return EINVAL;
    }
    return 0;
}

/* BAR1 and BAR2 know whole, aligned 32-bit words. */
static bool words(uint64_t offset, uint32_t count)
{
    return ((offset | count) & 3) == 0;
}

static void regs_read(struct device *dev, uint64_t offset, uint32_t count, uint8_t *data)
{
    if (!words(offset, count)) {
        memset(data, 0xff, count);
        return;
    }
    for (uint32_t i = 0; i < count; i += 4) {
        uint32_t v = GUINT32_TO_LE(device_reg_read(dev, offset + i));

        memcpy(data + i, &v, 4);
    }
}

/*
 * Copies from and to the shared region: atomic in aligned 64-bit words where
 * they cover such, as the worker and the VMM use them at the same time.
 */
static bool word_at(const void *shared, uint32_t left)
{
    return left >= sizeof(uint64_t) && (uintptr_t)shared % sizeof(uint64_t) == 0;
}

static void shared_read(uint8_t *dst, const uint8_t *shared, uint32_t n)
{
    while (n > 0) {
        uint32_t step = 1;

        if (word_at(shared, n)) {
            uint64_t v = __atomic_load_n((const uint64_t *)shared, __ATOMIC_RELAXED);

            step = sizeof(v);
            memcpy(dst, &v, sizeof(v));
        } else {
            *dst = __atomic_load_n(shared, __ATOMIC_RELAXED);
        }
        dst += step;
        shared += step;
        n -= step;
    }
}

static void shared_write(uint8_t *shared, const uint8_t *src, uint32_t n)
{
    while (n > 0) {
        uint32_t step = 1;

        if (word_at(shared, n)) {
            uint64_t v;

            step = sizeof(v);
            memcpy(&v, src, sizeof(v));
            __atomic_store_n((uint64_t *)shared, v, __ATOMIC_RELEASE);
        } else {
            __atomic_store_n(shared, *src, __ATOMIC_RELEASE);
        }
        shared += step;
        src += step;
        n -= step;
    }
}

void region_read(struct vfu_conn *c, uint32_t region, uint64_t offset, uint32_t count,
                 uint8_t *data)
{
    struct device *dev = c->vm->dev;

    switch (region) {
    case VFIO_USER_REGION_BAR0:
        for (uint32_t i = 0; i < count; i++) {
            uint64_t at = offset + i;

            data[i] = at < sizeof(c->msix_table) ? c->msix_table[at] : 0;
        }
        break;
    case VFIO_USER_REGION_BAR1:
        regs_read(dev, offset, count, data);
        break;
    case VFIO_USER_REGION_CONFIG:
        pci_config_read(&c->pci, (uint32_t)offset, count, data);
        break;
    case PVRDMA_DB_REGION_INDEX:
        shared_read(data, (const uint8_t *)c->vm->guest.db.shared + offset, count);
        break;
    default:
        memset(data, 0, count);
        break;
    }
}

/*
 * All that the guest can see is as after power-on.  Not the VMM's part: DMA maps, and
 * the eventfds, as a VMM that emulates MSI-X need not tell that the guest enables it
 * again.
 */
static void function_reset(struct vfu_conn *c)
{
    device_set_bus_master(c->vm->dev, false);
    device_reset(c->vm->dev);
    migration_reset(c->vm);
    irq_forget_pending(&c->vm->guest.irq);
    memset(c->msix_table, 0, sizeof(c->msix_table));
    pci_config_init(&c->pci);
}

static void config_write(struct vfu_conn *c, uint32_t offset, uint32_t count,
                         const uint8_t *data)
{
    bool before = pci_config_bus_master(&c->pci);
    bool after;

    if (pci_config_write(&c->pci, offset, count, data)) {
        function_reset(c);
        return;
    }
    after = pci_config_bus_master(&c->pci);
    if (after != before) {
        device_set_bus_master(c->vm->dev, after);
    }
}

/*
 * A doorbell region write by message has the effect of the same store to the
 * mapping: whoever can send one can do the other, and the daemon trusts nothing
 * there.  Afterwards the worker looks, as the client cannot know about kick.
 */
static void doorbell_region_write(struct vfu_conn *c, uint64_t offset, uint32_t count,
                                  const uint8_t *data)
{
    shared_write((uint8_t *)c->vm->guest.db.shared + offset, data, count);
    datapath_wake(c->vm);
}

static void register_write(struct vm *vm, uint64_t offset, uint32_t value)
{
    bool was_active = vm->dev->active;

    device_reg_write(vm->dev, offset, value);
    if (vm->dev->active && !was_active) {
        migration_activated(vm);
    }
}

void region_write(struct vfu_conn *c, uint32_t region, uint64_t offset, uint32_t count,
                  const uint8_t *data, bool posted)
{
    struct device *dev = c->vm->dev;
    uint32_t v;

    switch (region) {
    case VFIO_USER_REGION_BAR0:
        for (uint32_t i = 0; i < count; i++) {
            if (offset + i < sizeof(c->msix_table)) {
                c->msix_table[offset + i] = data[i];
            }
        }
        break;
    case VFIO_USER_REGION_BAR1:
    case VFIO_USER_REGION_BAR2:
        if (!words(offset, count)) {
            break;
        }
        for (uint32_t i = 0; i < count; i += 4) {
            memcpy(&v, data + i, 4);
            v = GUINT32_FROM_LE(v);
            if (region == VFIO_USER_REGION_BAR1) {
                register_write(c->vm, offset + i, v);
            } else {
                device_doorbell(dev, offset + i, v, posted);
            }
        }
        break;
    case VFIO_USER_REGION_CONFIG:
        config_write(c, (uint32_t)offset, count, data);
        break;
    case PVRDMA_DB_REGION_INDEX:
        doorbell_region_write(c, offset, count, data);
        break;
    default:
        break;
    }
}
