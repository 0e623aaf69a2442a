/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Guest memory of the pvrdma device: what the daemon may reach.
 *
 * The daemon maps guest RAM itself, from the file descriptors of the memory
 * backends, so that it copies between guests without QEMU.  A MemoryListener
 * on the system address space collects the changes of each memory transaction
 * and sends them in its commit: QEMU reports all removed ranges first, then the
 * added ones, which is the order the daemon needs, as maps must not overlap.
 * The commands are pipelined; the commit returns when the last is answered, so
 * that no DMA to a removed range can happen afterwards.
 *
 * Mapped is RAM that has a descriptor, page by page as the guest sees it:
 * shadowed ROM areas are parts of RAM mapped read-only.  Left out is what the
 * daemon could not map (video memory, option ROMs, BARs of assigned devices).
 * But RAM that belongs to a memory backend is the guest's own memory, where its
 * buffers are: if that cannot be shared, the device must not start.
 *
 * The daemon and the guest's driver and library meet in this memory by atomic
 * operations (posts, arming).  KVM's are; TCG's are only if they are asked for.
 *
 * Addresses are guest-physical: with a vIOMMU the device would reach memory the
 * guest did not allow, so that is refused.
 */
#include "qemu/osdep.h"
#include "qemu/error-report.h"
#include "exec/translation-block.h"
#include "hw/core/cpu.h"
#include "system/hostmem.h"
#include "system/tcg.h"
#include "pvrdma-compat.h"
#include "pvrdma-mem.h"

typedef struct MapOp {
    bool map;
    uint32_t flags;
    int fd;             /* the memory backend's */
    uint64_t offset;
    uint64_t addr;
    uint64_t size;
} MapOp;

static void G_GNUC_PRINTF(3, 4) mem_problem(PVRDMAMem *mem, const char *hint,
                                            const char *fmt, ...)
{
    g_autofree char *text = NULL;
    va_list ap;

    va_start(ap, fmt);
    text = g_strdup_vprintf(fmt, ap);
    va_end(ap);
    if (!mem->starting) {
        error_report("pvrdma: %s", text);
    } else if (!mem->error) {
        error_setg(&mem->error, "%s", text);
        if (hint) {
            error_append_hint(&mem->error, "%s", hint);
        }
    }
}

#define SHARE_HINT \
    "Use shared memory: '-object memory-backend-memfd,id=mem,size=SIZE," \
    "share=on -machine memory-backend=mem' with SIZE as in '-m SIZE'.\n"

/* The part of a section in whole pages; false if there is none. */
static bool section_to_op(const MemoryRegionSection *section, MapOp *op)
{
    uint64_t page = qemu_real_host_page_size();
    uint64_t addr = section->offset_within_address_space;
    uint64_t size = int128_get64(section->size);
    uint64_t skip = ROUND_UP(addr, page) - addr;

    if (skip >= size || addr + size - 1 > INT64_MAX) {
        return false;
    }
    *op = (MapOp) {
        .addr = addr + skip,
        .size = ROUND_DOWN(size - skip, page),
        .offset = section->offset_within_region + skip,
    };
    return op->size != 0;
}

/* Is this RAM the daemon is to have?  @op is filled then. */
static bool section_wanted(PVRDMAMem *mem, const MemoryRegionSection *section,
                           bool report, MapOp *op)
{
    MemoryRegion *mr = section->mr;
    Object *owner;
    bool shareable;

    if (!memory_region_is_ram(mr) || memory_region_is_ram_device(mr) ||
        !section_to_op(section, op)) {
        return false;
    }
    op->fd = memory_region_get_fd(mr);
    op->offset += mr->ram_block->fd_offset;
    op->flags = VFIO_USER_DMA_READ_FLAG;
    if (!section->readonly && !mr->readonly) {
        op->flags |= VFIO_USER_DMA_WRITE_FLAG;
    }
    shareable = op->fd >= 0 && qemu_ram_is_shared(mr->ram_block) &&
                !memory_region_is_protected(mr);
    if (shareable) {
        return true;
    }
    owner = memory_region_owner(mr);
    if (report && owner && object_dynamic_cast(owner, TYPE_MEMORY_BACKEND)) {
        mem_problem(mem, SHARE_HINT,
                    "guest RAM '%s' at 0x%" PRIx64 " is not shared, so "
                    "pvrdmad cannot reach it", memory_region_name(mr),
                    op->addr);
    }
    return false;
}

static void mem_region_add(MemoryListener *listener,
                           MemoryRegionSection *section)
{
    PVRDMAMem *mem = container_of(listener, PVRDMAMem, listener);
    MapOp op;

    if (section_wanted(mem, section, true, &op)) {
        op.map = true;
        g_array_append_val(mem->ops, op);
    }
}

static void mem_region_del(MemoryListener *listener,
                           MemoryRegionSection *section)
{
    PVRDMAMem *mem = container_of(listener, PVRDMAMem, listener);
    MapOp op;

    if (!mem->stopping && section_wanted(mem, section, false, &op)) {
        op.map = false;
        g_array_append_val(mem->ops, op);
    }
}

static int mem_send(PVRDMAMem *mem, const MapOp *op)
{
    struct vfio_user_dma_map map = {
        .argsz = sizeof(map),
        .flags = op->flags,
        .offset = op->offset,
        .addr = op->addr,
        .size = op->size,
    };
    struct vfio_user_dma_unmap unmap = {
        .argsz = sizeof(unmap),
        .addr = op->addr,
        .size = op->size,
    };
    struct iovec iov = { &map, sizeof(map) };

    if (op->map) {
        return pvrdma_client_send(mem->client, VFIO_USER_DMA_MAP, &iov, 1,
                                  &op->fd, 1);
    }
    iov = (struct iovec) { &unmap, sizeof(unmap) };
    return pvrdma_client_send(mem->client, VFIO_USER_DMA_UNMAP, &iov, 1, NULL,
                              0);
}

/* Take the answer to @op, the oldest that was sent. */
static void mem_collect(PVRDMAMem *mem, const MapOp *op)
{
    struct vfio_user_dma_unmap unmap;
    PVRDMAReply reply = { .data = &unmap, .max = sizeof(unmap) };
    int ret = pvrdma_client_collect(mem->client, op->map ? NULL : &reply);

    if (pvrdma_client_lost(mem->client)) {
        return;
    }
    if (ret < 0) {
        mem_problem(mem, ret == -EPERM || ret == -EINVAL ?
                    "pvrdmad takes sealed memfds: use memory-backend-memfd, "
                    "and leave its 'seal' option on.\n" : NULL,
                    "pvrdmad refuses to %s guest memory 0x%" PRIx64 "-0x%"
                    PRIx64 ": %s", op->map ? "map" : "unmap", op->addr,
                    op->addr + op->size - 1, strerror(-ret));
    }
}

static void mem_commit(MemoryListener *listener)
{
    PVRDMAMem *mem = container_of(listener, PVRDMAMem, listener);
    const MapOp *ops = (const MapOp *)mem->ops->data;
    size_t sent = 0, collected = 0, n = mem->ops->len;

    pvrdma_client_begin(mem->client);
    while (collected < n) {
        if (sent < n && sent - collected < PVRDMA_CLIENT_PIPELINE) {
            if (mem_send(mem, &ops[sent]) < 0) {
                break;
            }
            sent++;
        } else {
            mem_collect(mem, &ops[collected++]);
        }
    }
    /* Lost: only the client's own count is left to settle. */
    while (collected < sent) {
        mem_collect(mem, &ops[collected++]);
    }
    pvrdma_client_end(mem->client);
    g_array_set_size(mem->ops, 0);
}

/*
 * With a single CPU, or all in one thread, TCG makes a locked instruction a
 * load and a store: nobody else is thought to write there.  Then a bit that the
 * daemon took in between comes back, and one that it set is lost.
 */
static void mem_want_atomics(void)
{
    CPUState *cpu;

    if (tcg_enabled()) {
        CPU_FOREACH(cpu) {
            cpu->tcg_cflags |= CF_PARALLEL;
        }
    }
}

bool pvrdma_mem_start(PVRDMAMem *mem, PVRDMAClient *client, PCIDevice *dev,
                      Error **errp)
{
    if (pci_device_iommu_address_space(dev) != &address_space_memory) {
        error_setg(errp, "pvrdma does not support a vIOMMU");
        return false;
    }
    mem_want_atomics();
    mem->client = client;
    mem->ops = g_array_new(false, false, sizeof(MapOp));
    mem->starting = true;
    mem->stopping = false;
    mem->listener = (MemoryListener) {
        .name = "pvrdma",
        .priority = MEMORY_LISTENER_PRIORITY_DEV_BACKEND,
        .region_add = mem_region_add,
        .region_del = mem_region_del,
        .commit = mem_commit,
    };
    memory_listener_register(&mem->listener, &address_space_memory);
    mem->starting = false;
    if (!mem->error && pvrdma_client_lost(client)) {
        pvrdma_client_error(client, -EIO, &mem->error,
                            "cannot hand over guest memory");
    }
    if (mem->error) {
        pvrdma_mem_stop(mem);
        error_propagate(errp, mem->error);
        mem->error = NULL;
        return false;
    }
    return true;
}

void pvrdma_mem_stop(PVRDMAMem *mem)
{
    if (mem->ops) {
        mem->stopping = true;
        memory_listener_unregister(&mem->listener);
        g_array_free(mem->ops, true);
        mem->ops = NULL;
    }
}
