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
 * Mapped is RAM of memory backends, page by page as the guest sees it: shadowed
 * ROM areas are parts of RAM mapped read-only.  Left out is all other RAM, as
 * video memory, option ROMs, BARs of assigned devices: no buffer is ever there,
 * and the daemon could not map it.  The machine's memory and that of DIMMs and
 * the like is where the guest's buffers are: if it cannot be shared, the device
 * must not start, and no such memory may be plugged.  What else a backend is
 * for (NVDIMMs, ivshmem) is welcome but not needed.
 *
 * Once memory is there nobody can object, so before a DIMM and the like is made
 * the daemon is asked: it maps the memory once where no guest memory ever is,
 * and unmaps it.  While there is no daemon, memory must be shareable all the
 * same, or no later daemon would do.  What it refuses nevertheless later
 * (others took what was left; a device comes in more pieces than it has room
 * for) is reported; buffers in that memory cannot be used.
 *
 * What the daemon has accepted is remembered: only that is ever unmapped.  A
 * refusal of one memory is reported once in a while: a guest can have the same
 * memory mapped again and again, by moving BARs.
 *
 * The daemon and the guest's driver and library meet in this memory by atomic
 * operations (posts, arming).  KVM's are; TCG's are only if they are asked for.
 *
 * Addresses are guest-physical: with a vIOMMU the device would reach memory the
 * guest did not allow, so that is refused.
 */
#include "qemu/osdep.h"
#include <linux/vfio.h>
#include "qemu/error-report.h"
#include "exec/translation-block.h"
#include "hw/core/cpu.h"
#include "hw/mem/memory-device.h"
#include "hw/mem/nvdimm.h"
#include "qobject/qdict.h"
#include "system/hostmem.h"
#include "system/numa.h"
#include "system/tcg.h"
#include "pvrdma-compat.h"
#include "pvrdma-mem.h"
#include "trace.h"

/* Above all that section_to_op() takes. */
#define TRIAL_ADDR (UINT64_C(1) << 63)

/* The same memory's refusals are reported this often. */
#define REPORT_PAUSE_US (60 * G_USEC_PER_SEC)

typedef struct MapOp {
    MemoryRegion *mr;   /* NULL: unmap */
    MemoryRegion *old;  /* unmap: what counts as written (a reference) */
    uint32_t flags;
    int fd;             /* the memory backend's */
    uint64_t offset;    /* in the file; unmap: in @old */
    uint64_t addr;
    uint64_t size;
} MapOp;

#define SEAL_HINT \
    "pvrdmad takes sealed memfds: use memory-backend-memfd, and leave its " \
    "'seal' option on.\n"
#define LIMIT_HINT \
    "pvrdmad's log names the limit.\n"
#define SHARE_HINT \
    "Use shared memory: '-object memory-backend-memfd,id=mem,size=SIZE," \
    "share=on -machine memory-backend=mem' with SIZE as in '-m SIZE'.\n"

/* Is this a device that gives the guest ordinary memory, as DIMMs do? */
static bool gives_ram(ObjectClass *klass)
{
    return object_class_dynamic_cast(klass, TYPE_MEMORY_DEVICE) &&
           !object_class_dynamic_cast(klass, TYPE_NVDIMM) &&
           !object_class_dynamic_cast(klass, "virtio-pmem-pci") &&
           !object_class_dynamic_cast(klass, "sgx-epc");
}

static int is_ram_of(Object *obj, void *backend)
{
    return gives_ram(object_get_class(obj)) &&
           object_property_find(obj, "memdev") &&
           object_property_get_link(obj, "memdev", NULL) == backend;
}

/* Is the memory of this backend where the guest's buffers may be? */
static bool is_guest_ram(Object *backend)
{
    MachineState *ms = current_machine;
    int i;

    if (ms->memdev && OBJECT(ms->memdev) == backend) {
        return true;
    }
    for (i = 0; ms->numa_state && i < ms->numa_state->num_nodes; i++) {
        HostMemoryBackend *node = ms->numa_state->nodes[i].node_memdev;

        if (node && OBJECT(node) == backend) {
            return true;
        }
    }
    return object_child_foreach_recursive(OBJECT(ms), is_ram_of, backend);
}

static const char *refusal_hint(int ret)
{
    return ret == -EPERM || ret == -EINVAL ? SEAL_HINT :
           ret == -ENOSPC ? LIMIT_HINT : "";
}

static bool is_shareable(MemoryRegion *mr)
{
    return memory_region_get_fd(mr) >= 0 && qemu_ram_is_shared(mr->ram_block);
}

/* Has nobody been told lately what is wrong with @mr? */
static bool may_report(PVRDMAMem *mem, MemoryRegion *mr)
{
    int64_t now = g_get_monotonic_time();
    const char *name = memory_region_name(mr);
    int64_t *last = g_hash_table_lookup(mem->reported, name);

    if (last && now - *last < REPORT_PAUSE_US) {
        return false;
    }
    g_hash_table_insert(mem->reported, g_strdup(name),
                        g_memdup2(&now, sizeof(now)));
    return true;
}

static void G_GNUC_PRINTF(4, 5) mem_problem(PVRDMAMem *mem, MemoryRegion *mr,
                                            const char *hint, const char *fmt,
                                            ...)
{
    bool needed = is_guest_ram(memory_region_owner(mr));
    g_autofree char *text = NULL;
    va_list ap;

    va_start(ap, fmt);
    text = g_strdup_vprintf(fmt, ap);
    va_end(ap);
    if (mem->starting && needed) {
        if (!mem->error) {
            error_setg(&mem->error, "pvrdma '%s': %s", mem->name, text);
            error_append_hint(&mem->error, "%s", hint);
        }
    } else if (!may_report(mem, mr)) {
        return;
    } else if (needed) {
        error_report("pvrdma '%s': %s", mem->name, text);
    } else {
        warn_report("pvrdma '%s': %s", mem->name, text);
    }
}

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

/* Makes @op, whose offset is one in @mr, a map. */
static void op_set_memory(MapOp *op, MemoryRegion *mr, bool readonly)
{
    op->mr = mr;
    op->fd = memory_region_get_fd(mr);
    op->offset += mr->ram_block->fd_offset;
    op->flags = VFIO_DMA_MAP_FLAG_READ;
    if (!readonly && !mr->readonly) {
        op->flags |= VFIO_DMA_MAP_FLAG_WRITE;
    }
}

static void mem_region_add(MemoryListener *listener,
                           MemoryRegionSection *section)
{
    PVRDMAMem *mem = container_of(listener, PVRDMAMem, listener);
    MemoryRegion *mr = section->mr;
    Object *owner = memory_region_owner(mr);
    MapOp op;

    if (!memory_region_is_ram(mr) || memory_region_is_ram_device(mr) ||
        memory_region_is_protected(mr) || !owner ||
        !object_dynamic_cast(owner, TYPE_MEMORY_BACKEND) ||
        !section_to_op(section, &op)) {
        return;
    }
    if (!is_shareable(mr)) {
        mem_problem(mem, mr, SHARE_HINT,
                    "guest RAM '%s' at 0x%" PRIx64 " is not shared, so "
                    "pvrdmad cannot reach it", memory_region_name(mr),
                    op.addr);
        return;
    }
    op_set_memory(&op, mr, section->readonly);
    g_array_append_val(mem->ops, op);
}

static void mem_report(PVRDMAMem *mem, MemoryRegion *mr, const MapOp *op)
{
    const PVRDMAPart part = { mr, op->offset, op->addr, op->size };

    pvrdma_dirty_sync(mem, &part);
}

static void mem_region_del(MemoryListener *listener,
                           MemoryRegionSection *section)
{
    PVRDMAMem *mem = container_of(listener, PVRDMAMem, listener);
    MapOp op;

    if (!section_to_op(section, &op) ||
        !g_hash_table_contains(mem->maps, &op.addr)) {
        return;
    }
    if (mem->stopping) {
        /* The device was reset: it is the last report. */
        mem_report(mem, section->mr, &op);
    } else {
        op.mr = NULL;
        if (mem->logging) {
            op.old = section->mr;
            memory_region_ref(op.old);
        }
        g_array_append_val(mem->ops, op);
    }
}

/* Never fails while the listener is being registered: QEMU would abort. */
static bool mem_log_start(MemoryListener *listener, Error **errp)
{
    PVRDMAMem *mem = container_of(listener, PVRDMAMem, listener);
    Error **where = mem->starting ? (mem->error ? NULL : &mem->error) : errp;

    return pvrdma_dirty_start(mem, where) || mem->starting;
}

static void mem_log_stop(MemoryListener *listener)
{
    pvrdma_dirty_stop(container_of(listener, PVRDMAMem, listener));
}

static void mem_log_sync(MemoryListener *listener,
                         MemoryRegionSection *section)
{
    PVRDMAMem *mem = container_of(listener, PVRDMAMem, listener);
    MapOp op;

    if (mem->logging && section_to_op(section, &op) &&
        g_hash_table_contains(mem->maps, &op.addr)) {
        mem_report(mem, section->mr, &op);
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

    if (op->mr) {
        trace_pvrdma_mem_map(mem->name, memory_region_name(op->mr), op->addr,
                             op->size, op->offset, op->flags);
        return pvrdma_client_send(mem->client, VFIO_USER_DMA_MAP, &iov, 1,
                                  &op->fd, 1);
    }
    trace_pvrdma_mem_unmap(mem->name, op->addr, op->size);
    iov = (struct iovec) { &unmap, sizeof(unmap) };
    return pvrdma_client_send(mem->client, VFIO_USER_DMA_UNMAP, &iov, 1, NULL,
                              0);
}

/* Take the answer to @op, the oldest that was sent. */
static void mem_collect(PVRDMAMem *mem, const MapOp *op)
{
    struct vfio_user_dma_unmap unmap;
    PVRDMAReply reply = { .data = &unmap, .max = sizeof(unmap) };
    int ret = pvrdma_client_collect(mem->client, op->mr ? NULL : &reply);

    if (op->old) {
        const PVRDMAPart part = { op->old, op->offset, op->addr, op->size };

        pvrdma_dirty_all(mem, &part);
    }
    if (pvrdma_client_lost(mem->client)) {
        return;
    }
    if (!op->mr) {
        g_hash_table_remove(mem->maps, &op->addr);
        if (ret < 0) {
            error_report("pvrdma '%s': pvrdmad refuses to unmap guest memory "
                         "0x%" PRIx64 "-0x%" PRIx64 ": %s", mem->name, op->addr,
                         op->addr + op->size - 1, strerror(-ret));
        }
    } else if (ret == 0) {
        g_hash_table_insert(mem->maps,
                            g_memdup2(&op->addr, sizeof(op->addr)),
                            g_memdup2(&op->size, sizeof(op->size)));
    } else {
        mem_problem(mem, op->mr, refusal_hint(ret),
                    "pvrdmad refuses to map guest memory '%s' 0x%" PRIx64
                    "-0x%" PRIx64 ": %s", memory_region_name(op->mr), op->addr,
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
    for (sent = 0; sent < n; sent++) {
        if (ops[sent].old) {
            memory_region_unref(ops[sent].old);
        }
    }
    g_array_set_size(mem->ops, 0);
}

/* One step of mem_try(). */
static int mem_request(PVRDMAMem *mem, const MapOp *op)
{
    struct vfio_user_dma_unmap unmap;
    PVRDMAReply reply = { .data = &unmap, .max = sizeof(unmap) };
    int ret = mem_send(mem, op);

    return ret < 0 ? ret : pvrdma_client_collect(mem->client,
                                                 op->mr ? NULL : &reply);
}

/*
 * Would the daemon map all of @mr?  Returns 0 or its errno.  One that is gone
 * refuses nothing.
 */
static int mem_try(PVRDMAMem *mem, MemoryRegion *mr)
{
    MapOp op = {
        .addr = TRIAL_ADDR,
        .size = ROUND_DOWN(memory_region_size(mr), qemu_real_host_page_size()),
    };
    int ret;

    op_set_memory(&op, mr, false);
    pvrdma_client_begin(mem->client);
    ret = mem_request(mem, &op);
    if (ret == 0) {
        op.mr = NULL;
        ret = mem_request(mem, &op);
    }
    pvrdma_client_end(mem->client);
    return pvrdma_client_lost(mem->client) ? 0 : ret;
}

/*
 * With a single CPU, or all in one thread, TCG makes a locked instruction a
 * load and a store: nobody else is thought to write there.  Then a bit that the
 * daemon took in between comes back, and one that it set is lost.
 */
static void mem_want_atomics(CPUState *cpu)
{
    if (tcg_enabled()) {
        tcg_cflags_set(cpu, CF_PARALLEL);
    }
}

static void mem_device_realized(DeviceListener *listener, DeviceState *dev)
{
    if (object_dynamic_cast(OBJECT(dev), TYPE_CPU)) {
        mem_want_atomics(CPU(dev));
    }
}

/*
 * Called for each device that is to be made.  An error is a veto: nobody can
 * object once the memory is there.
 */
static bool mem_device_wanted(DeviceListener *listener, const QDict *opts,
                              bool from_json, Error **errp)
{
    PVRDMAMem *mem = container_of(listener, PVRDMAMem, devices);
    const char *driver = qdict_get_try_str(opts, "driver");
    const char *memdev = qdict_get_try_str(opts, "memdev");
    ObjectClass *klass = driver ? object_class_by_name(driver) : NULL;
    Object *backend = memdev ?
        object_resolve_path_type(memdev, TYPE_MEMORY_BACKEND, NULL) : NULL;
    MemoryRegion *mr;
    int ret;

    if (!klass || !backend || !gives_ram(klass)) {
        return false;
    }
    mr = host_memory_backend_get_memory(MEMORY_BACKEND(backend));
    if (!is_shareable(mr)) {
        error_setg(errp, "pvrdma '%s': memory '%s' is not shared, so pvrdmad "
                   "could not reach it", mem->name, memdev);
        error_append_hint(errp, "Use 'memory-backend-memfd' with 'share=on', "
                          "or unplug the pvrdma device first.\n");
        return false;
    }
    /* In use already: the device is going to be refused for that. */
    if (host_memory_backend_is_mapped(MEMORY_BACKEND(backend))) {
        return false;
    }
    ret = mem_try(mem, mr);
    if (ret < 0) {
        error_setg(errp, "pvrdma '%s': pvrdmad refuses memory '%s' of %" PRIu64
                   " bytes: %s", mem->name, memdev, memory_region_size(mr),
                   strerror(-ret));
        error_append_hint(errp, "%s", refusal_hint(ret));
    }
    return false;
}

bool pvrdma_mem_check_iommu(PCIDevice *dev, Error **errp)
{
    if (pci_device_iommu_address_space(dev) == &address_space_memory) {
        return true;
    }
    error_setg(errp, "pvrdma does not support a vIOMMU");
    error_append_hint(errp, "Leave out '-device intel-iommu' and the like.\n");
    return false;
}

bool pvrdma_mem_start(PVRDMAMem *mem, PVRDMAClient *client, PCIDevice *dev,
                      const char *name, bool can_log, Error **errp)
{
    CPUState *cpu;

    if (!pvrdma_mem_check_iommu(dev, errp)) {
        return false;
    }
    CPU_FOREACH(cpu) {
        mem_want_atomics(cpu);
    }
    mem->name = name;
    mem->client = client;
    mem->can_log = can_log;
    mem->logging = false;
    mem->ops = g_array_new(false, false, sizeof(MapOp));
    mem->maps = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free,
                                      g_free);
    mem->reported = g_hash_table_new_full(g_str_hash, g_str_equal, g_free,
                                          g_free);
    mem->starting = true;
    mem->stopping = false;
    mem->listener = (MemoryListener) {
        .name = "pvrdma",
        .priority = MEMORY_LISTENER_PRIORITY_DEV_BACKEND,
        .region_add = mem_region_add,
        .region_del = mem_region_del,
        .commit = mem_commit,
        .log_global_start = mem_log_start,
        .log_global_stop = mem_log_stop,
        .log_sync = mem_log_sync,
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
        if (pvrdma_client_lost(mem->client)) {
            pvrdma_dirty_lost(mem);
        }
        memory_listener_unregister(&mem->listener);
        /* QEMU does not end the log of a listener that goes. */
        mem->logging = false;
        pvrdma_dirty_unmap(mem);
        g_array_free(mem->ops, true);
        mem->ops = NULL;
        g_hash_table_destroy(mem->maps);
        g_hash_table_destroy(mem->reported);
    }
}

void pvrdma_mem_watch(PVRDMAMem *mem)
{
    mem->devices = (DeviceListener) {
        .realize = mem_device_realized,
        .hide_device = mem_device_wanted,
    };
    device_listener_register(&mem->devices);
    mem->watching = true;
}

void pvrdma_mem_unwatch(PVRDMAMem *mem)
{
    if (mem->watching) {
        mem->watching = false;
        device_listener_unregister(&mem->devices);
    }
}
