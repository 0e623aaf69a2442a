/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vfio-user commands: check, carry out, answer.
 *
 * Each handler gets the daemon's own copy of a complete message and returns 0
 * with a payload, or a positive errno, which becomes an error reply.  Commands
 * are carried out one after the other as they came, so replies are in order and
 * a command without reply is complete before the next one is looked at.  Which
 * of them may let the main loop turn before they are done: vfu_may_wait().
 * Requests of fixed size may be longer than we know (later versions of the
 * protocol add at the end), never shorter; where data follows, the size is exact.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "frontend/conn.h"
#include "frontend/feature.h"
#include "frontend/migration.h"
#include "guest/irq.h"
#include "datapath/datapath.h"
#include "device/device.h"
#include "vm/attach.h"

void *vfu_reply_alloc(struct vfu_reply *r, uint32_t len)
{
    if (len <= sizeof(r->small)) {
        r->data = memset(r->small, 0, len);
    } else {
        r->data = g_try_malloc0(len);
    }
    r->len = r->data ? len : 0;
    return r->data;
}

static void vfu_reply_free(struct vfu_reply *r)
{
    if (r->data != r->small) {
        g_free(r->data);
    }
    r->data = NULL;
}

/* Nobody waits for the answer. */
static bool is_posted(const struct vfu_msg *m)
{
    return m->hdr.flags & VFIO_USER_NO_REPLY;
}

static int vfu_answer(struct vfu_reply *r, const void *payload, uint32_t size)
{
    void *out = vfu_reply_alloc(r, size);

    if (!out) {
        return ENOMEM;
    }
    memcpy(out, payload, size);
    return 0;
}

static int dma_map(struct vfu_conn *c, const struct vfu_msg *m, struct vfu_reply *r)
{
    struct vfio_user_dma_map map;
    int err;

    memcpy(&map, m->body, sizeof(map));
    if (map.argsz < sizeof(map) || m->nfds > 1) {
        return EINVAL;
    }
    err = guest_mem_map(&c->vm->guest.mem, m->nfds ? m->fds[0] : -1, map.offset, map.addr,
                        map.size, map.flags);
    if (err) {
        /* Stock QEMU goes on without that memory: leave a trace of it. */
        log_vm(LOG_LVL_WARN, c->vm,
               "DMA map of %#" PRIx64 " bytes at %#" PRIx64 " failed: %s", map.size,
               map.addr, g_strerror(err));
    } else if (m->nfds && fcntl(m->fds[0], F_GET_SEALS) >= 0) {
        /* Mapped, so this is not the last reference, and a memfd: that is quick. */
        close(m->fds[0]);
        m->fds[0] = -1;
    }
    /* What the worker has to tell the guest before it sleeps may lie there. */
    datapath_wake(c->vm);
    return err;
}

static int dma_unmap(struct vfu_conn *c, const struct vfu_msg *m, struct vfu_reply *r)
{
    struct vfio_user_dma_unmap un;
    bool all;
    int err;

    memcpy(&un, m->body, sizeof(un));
    if (un.argsz < sizeof(un) || (un.flags & ~VFIO_USER_DMA_UNMAP_ALL)) {
        return EINVAL;
    }
    all = un.flags & VFIO_USER_DMA_UNMAP_ALL;
    if (all && (un.addr != 0 || un.size != 0)) {
        return EINVAL;
    }
    err = guest_mem_unmap(&c->vm->guest.mem, un.addr, un.size, all);
    return err ? err : vfu_answer(r, &un, sizeof(un));
}

static int get_info(struct vfu_conn *c, const struct vfu_msg *m, struct vfu_reply *r)
{
    struct vfio_user_device_info info;

    memcpy(&info, m->body, sizeof(info));
    if (info.argsz < sizeof(info)) {
        return EINVAL;
    }
    info.argsz = sizeof(info);
    info.flags = VFIO_USER_DEVICE_FLAG_RESET | VFIO_USER_DEVICE_FLAG_PCI;
    info.num_regions = PVRDMA_DB_REGION_INDEX + 1;
    info.num_irqs = VFIO_USER_IRQ_MSIX + 1;
    return vfu_answer(r, &info, sizeof(info));
}

static int get_irq_info(struct vfu_conn *c, const struct vfu_msg *m, struct vfu_reply *r)
{
    struct vfio_user_irq_info info;

    memcpy(&info, m->body, sizeof(info));
    if (info.argsz < sizeof(info) || info.index > VFIO_USER_IRQ_MSIX) {
        return EINVAL;
    }
    info.argsz = sizeof(info);
    info.flags = 0;
    info.count = 0;
    if (info.index == VFIO_USER_IRQ_MSIX) {
        /* Not NORESIZE: stock QEMU would take all vectors down to add one. */
        info.flags = VFIO_USER_IRQ_FLAG_EVENTFD;
        info.count = IRQ_VECTORS;
    }
    return vfu_answer(r, &info, sizeof(info));
}

static int do_region_read(struct vfu_conn *c, const struct vfu_msg *m,
                          struct vfu_reply *r)
{
    struct vfio_user_region_rw rw;
    uint8_t *out;
    int err;

    memcpy(&rw, m->body, sizeof(rw));
    err = region_check(rw.region, rw.offset, rw.count, false);
    if (err) {
        return err;
    }
    out = vfu_reply_alloc(r, sizeof(rw) + rw.count);
    if (!out) {
        return ENOMEM;
    }
    memcpy(out, &rw, sizeof(rw));
    region_read(c, rw.region, rw.offset, rw.count, out + sizeof(rw));
    return 0;
}

/*
 * A register may run a command, which stores to the guest's memory: not while the VM
 * stands still for a migration.  A doorbell is only noted.
 */
static int check_write(const struct vfu_conn *c, uint32_t region, uint64_t offset,
                       uint64_t count)
{
    int err = region_check(region, offset, count, true);

    if (!err && region == VFIO_USER_REGION_BAR1 && migration_stopped(c->vm)) {
        err = EBUSY;
    }
    return err;
}

static int do_region_write(struct vfu_conn *c, const struct vfu_msg *m,
                           struct vfu_reply *r)
{
    struct vfio_user_region_rw rw;
    int err;

    memcpy(&rw, m->body, sizeof(rw));
    err = check_write(c, rw.region, rw.offset, rw.count);
    if (err) {
        return err;
    }
    if (m->len - sizeof(rw) != rw.count) {
        return EINVAL;
    }
    region_write(c, rw.region, rw.offset, rw.count, m->body + sizeof(rw), is_posted(m));
    return vfu_answer(r, &rw, sizeof(rw));
}

/*
 * DMA maps, eventfds and configuration space stay: a VFIO reset restores the
 * latter, and the VMM writes PCI_COMMAND itself when the machine is reset.
 */
static int do_reset(struct vfu_conn *c, const struct vfu_msg *m, struct vfu_reply *r)
{
    device_reset(c->vm->dev);
    migration_reset(c->vm);
    irq_forget_pending(&c->vm->guest.irq);
    return 0;
}

static int do_version(struct vfu_conn *c, const struct vfu_msg *m, struct vfu_reply *r)
{
    GError *err = NULL;
    const char *why = vfu_version(c, m, r);

    if (why) {
        conn_close(c, why);
        return EINVAL;
    }
    if (!vm_attach(c->vm, &err)) {
        log_vm(LOG_LVL_ERROR, c->vm, "cannot attach: %s",
               err ? err->message : "no reason given");
        g_clear_error(&err);
        conn_close(c, "no resources for this VM");
        return ENOMEM;
    }
    c->version_done = true;
    pci_config_init(&c->pci);
    log_vm(LOG_LVL_INFO, c->vm, "VMM attached");
    return 0;
}

#define FIXED(type) sizeof(struct vfio_user_##type)

static const struct vfu_command {
    vfu_handler *run;
    uint32_t size; /* of the fixed part, which is there when the handler runs */
    bool waits;    /* may wait or take long */
    bool fds;      /* may carry descriptors */
} commands[] = {
    /* VERSION checks its size and descriptors itself: the log says what is wrong. */
    [VFIO_USER_VERSION] = {do_version, 0, true, true},
    [VFIO_USER_DMA_MAP] = {dma_map, FIXED(dma_map), true, true},
    [VFIO_USER_DMA_UNMAP] = {dma_unmap, FIXED(dma_unmap), true},
    [VFIO_USER_DEVICE_GET_INFO] = {get_info, FIXED(device_info)},
    [VFIO_USER_DEVICE_GET_REGION_INFO] = {region_info, FIXED(region_info)},
    [VFIO_USER_DEVICE_GET_REGION_IO_FDS] = {region_io_fds, FIXED(region_io_fds)},
    [VFIO_USER_DEVICE_GET_IRQ_INFO] = {get_irq_info, FIXED(irq_info)},
    [VFIO_USER_DEVICE_SET_IRQS] = {vfu_set_irqs, FIXED(irq_set), true, true},
    [VFIO_USER_REGION_READ] = {do_region_read, FIXED(region_rw)},
    [VFIO_USER_REGION_WRITE] = {do_region_write, FIXED(region_rw), true},
    [VFIO_USER_DEVICE_RESET] = {do_reset, 0, true},
    [VFIO_USER_DEVICE_FEATURE] = {feature_request, FIXED(device_feature), true},
    [VFIO_USER_MIG_DATA_READ] = {migration_read, FIXED(mig_data)},
    [VFIO_USER_MIG_DATA_WRITE] = {migration_write, FIXED(mig_data)},
};

static const struct vfu_command *vfu_command_of(const struct vfu_msg *m)
{
    unsigned cmd = m->hdr.command;

    return cmd < G_N_ELEMENTS(commands) && commands[cmd].run ? &commands[cmd] : NULL;
}

bool vfu_may_wait(const struct vfu_msg *m)
{
    const struct vfu_command *cmd = vfu_command_of(m);
    struct vfio_user_region_rw rw;

    if (m->hdr.command != VFIO_USER_REGION_WRITE) {
        return cmd && cmd->waits;
    }
    if (m->len < sizeof(rw)) {
        return false;
    }
    /* Registers run commands and resets, configuration space stops the data path. */
    memcpy(&rw, m->body, sizeof(rw));
    return rw.region == VFIO_USER_REGION_BAR1 || rw.region == VFIO_USER_REGION_CONFIG;
}

bool vfu_dispatch(struct vfu_conn *c, const struct vfu_msg *m)
{
    const struct vfu_command *cmd = vfu_command_of(m);
    struct vfu_reply r;
    int err;

    vfu_reply_init(&r);
    if (m->fds_lost) {
        log_vm(LOG_LVL_WARN, c->vm,
               "command %u is refused: no descriptors left (RLIMIT_NOFILE)",
               m->hdr.command);
        err = EMFILE;
    } else if (!cmd) {
        err = ENOTSUP;
    } else if (m->len < cmd->size || (m->nfds && !cmd->fds)) {
        err = EINVAL;
    } else {
        err = cmd->run(c, m, &r);
    }
    if (err == VFU_AGAIN) {
        vfu_reply_free(&r);
        return false;
    }
    if (!is_posted(m)) {
        conn_reply(c, &m->hdr, err, &r);
    } else if (err && c->lost_errors++ == 0) {
        log_vm(LOG_LVL_WARN, c->vm, "command %u, which wanted no reply, failed: %s",
               m->hdr.command, g_strerror(err));
    }
    vfu_reply_free(&r);
    return true;
}
