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

void vfu_reply_free(struct vfu_reply *r)
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

/* Copy the fixed part of a request; false if the message is shorter. */
static bool take(const struct vfu_msg *m, void *fixed, uint32_t size)
{
    if (m->len < size) {
        return false;
    }
    memcpy(fixed, m->body, size);
    return true;
}

static int answer(struct vfu_reply *r, const void *payload, uint32_t size)
{
    void *out = vfu_reply_alloc(r, size);

    if (!out) {
        return ENOMEM;
    }
    memcpy(out, payload, size);
    return 0;
}

static int dma_map(struct vfu_conn *c, struct vfu_msg *m, struct vfu_reply *r)
{
    struct vfio_user_dma_map map;
    int err;

    if (!take(m, &map, sizeof(map)) || map.argsz < sizeof(map) || m->nfds > 1) {
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

static int dma_unmap(struct vfu_conn *c, struct vfu_msg *m, struct vfu_reply *r)
{
    struct vfio_user_dma_unmap un;
    bool all;
    int err;

    if (!take(m, &un, sizeof(un)) || un.argsz < sizeof(un) ||
        (un.flags & ~VFIO_USER_DMA_UNMAP_ALL)) {
        return EINVAL;
    }
    all = un.flags & VFIO_USER_DMA_UNMAP_ALL;
    if (all && (un.addr != 0 || un.size != 0)) {
        return EINVAL;
    }
    err = guest_mem_unmap(&c->vm->guest.mem, un.addr, un.size, all);
    return err ? err : answer(r, &un, sizeof(un));
}

static int get_info(struct vfu_conn *c, struct vfu_msg *m, struct vfu_reply *r)
{
    struct vfio_user_device_info info;

    if (!take(m, &info, sizeof(info)) || info.argsz < sizeof(info)) {
        return EINVAL;
    }
    info.argsz = sizeof(info);
    info.flags = VFIO_USER_DEVICE_FLAG_RESET | VFIO_USER_DEVICE_FLAG_PCI;
    info.num_regions = PVRDMA_DB_REGION_INDEX + 1;
    info.num_irqs = VFIO_USER_IRQ_MSIX + 1;
    return answer(r, &info, sizeof(info));
}

static int get_region_info(struct vfu_conn *c, struct vfu_msg *m, struct vfu_reply *r)
{
    struct vfio_user_region_info req;

    return take(m, &req, sizeof(req)) ? region_info(c, &req, r) : EINVAL;
}

static int get_region_io_fds(struct vfu_conn *c, struct vfu_msg *m, struct vfu_reply *r)
{
    struct vfio_user_region_io_fds req;

    return take(m, &req, sizeof(req)) ? region_io_fds(c, &req, r) : EINVAL;
}

static int get_irq_info(struct vfu_conn *c, struct vfu_msg *m, struct vfu_reply *r)
{
    struct vfio_user_irq_info info;

    if (!take(m, &info, sizeof(info)) || info.argsz < sizeof(info) ||
        info.index > VFIO_USER_IRQ_MSIX) {
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
    return answer(r, &info, sizeof(info));
}

static int set_irqs(struct vfu_conn *c, struct vfu_msg *m, struct vfu_reply *r)
{
    return vfu_set_irqs(c, m);
}

static int do_region_read(struct vfu_conn *c, struct vfu_msg *m, struct vfu_reply *r)
{
    struct vfio_user_region_rw rw;
    uint8_t *out;
    int err;

    if (!take(m, &rw, sizeof(rw))) {
        return EINVAL;
    }
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

static int do_region_write(struct vfu_conn *c, struct vfu_msg *m, struct vfu_reply *r)
{
    struct vfio_user_region_rw rw;
    int err;

    if (!take(m, &rw, sizeof(rw))) {
        return EINVAL;
    }
    err = check_write(c, rw.region, rw.offset, rw.count);
    if (err) {
        return err;
    }
    if (m->len - sizeof(rw) != rw.count) {
        return EINVAL;
    }
    region_write(c, rw.region, rw.offset, rw.count, m->body + sizeof(rw), is_posted(m));
    return answer(r, &rw, sizeof(rw));
}

/*
 * DMA maps, eventfds and configuration space stay: a VFIO reset restores the
 * latter, and the VMM writes PCI_COMMAND itself when the machine is reset.
 */
static int do_reset(struct vfu_conn *c, struct vfu_msg *m, struct vfu_reply *r)
{
    device_reset(c->vm->dev);
    migration_reset(c->vm);
    irq_forget_pending(&c->vm->guest.irq);
    return 0;
}

static int mig_data_read(struct vfu_conn *c, struct vfu_msg *m, struct vfu_reply *r)
{
    return migration_read(c, m, r);
}

static int mig_data_write(struct vfu_conn *c, struct vfu_msg *m, struct vfu_reply *r)
{
    return migration_write(c, m, r);
}

static int not_supported(struct vfu_conn *c, struct vfu_msg *m, struct vfu_reply *r)
{
    return ENOTSUP;
}

static int device_feature(struct vfu_conn *c, struct vfu_msg *m, struct vfu_reply *r)
{
    return feature_request(c, m, r);
}

static int version(struct vfu_conn *c, struct vfu_msg *m, struct vfu_reply *r)
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

static const struct {
    int (*run)(struct vfu_conn *c, struct vfu_msg *m, struct vfu_reply *r);
    bool fds; /* may carry descriptors */
} commands[] = {
    [VFIO_USER_VERSION] = {version, true}, /* it refuses them itself */
    [VFIO_USER_DMA_MAP] = {dma_map, true},
    [VFIO_USER_DMA_UNMAP] = {dma_unmap, false},
    [VFIO_USER_DEVICE_GET_INFO] = {get_info, false},
    [VFIO_USER_DEVICE_GET_REGION_INFO] = {get_region_info, false},
    [VFIO_USER_DEVICE_GET_REGION_IO_FDS] = {get_region_io_fds, false},
    [VFIO_USER_DEVICE_GET_IRQ_INFO] = {get_irq_info, false},
    [VFIO_USER_DEVICE_SET_IRQS] = {set_irqs, true},
    [VFIO_USER_REGION_READ] = {do_region_read, false},
    [VFIO_USER_REGION_WRITE] = {do_region_write, false},
    [VFIO_USER_DEVICE_RESET] = {do_reset, false},
    [VFIO_USER_DEVICE_FEATURE] = {device_feature, false},
    [VFIO_USER_MIG_DATA_READ] = {mig_data_read, false},
    [VFIO_USER_MIG_DATA_WRITE] = {mig_data_write, false},
};

/* Registers run commands and resets, configuration space stops the data path. */
static bool region_may_wait(uint32_t region)
{
    return region == VFIO_USER_REGION_BAR1 || region == VFIO_USER_REGION_CONFIG;
}

bool vfu_may_wait(const struct vfu_msg *m)
{
    struct vfio_user_region_rw rw;

    switch (m->hdr.command) {
    case VFIO_USER_VERSION:
    case VFIO_USER_DMA_MAP:
    case VFIO_USER_DMA_UNMAP:
    case VFIO_USER_DEVICE_SET_IRQS:
    case VFIO_USER_DEVICE_RESET:
    case VFIO_USER_DEVICE_FEATURE:
        return true;
    case VFIO_USER_REGION_WRITE:
        return take(m, &rw, sizeof(rw)) && region_may_wait(rw.region);
    default:
        return false;
    }
}

bool vfu_dispatch(struct vfu_conn *c, struct vfu_msg *m)
{
    unsigned cmd = m->hdr.command;
    struct vfu_reply r;
    int err;

    vfu_reply_init(&r);
    if (m->fds_lost) {
        log_vm(LOG_LVL_WARN, c->vm,
               "command %u is refused: no descriptors left (RLIMIT_NOFILE)", cmd);
        err = EMFILE;
    } else if (cmd >= G_N_ELEMENTS(commands) || !commands[cmd].run) {
        err = not_supported(c, m, &r);
    } else if (m->nfds && !commands[cmd].fds) {
        err = EINVAL;
    } else {
        err = commands[cmd].run(c, m, &r);
    }
    if (err == VFU_AGAIN) {
        vfu_reply_free(&r);
        return false;
    }
    if (!is_posted(m)) {
        conn_reply(c, &m->hdr, err, &r);
    } else if (err && c->lost_errors++ == 0) {
        log_vm(LOG_LVL_WARN, c->vm, "command %u, which wanted no reply, failed: %s", cmd,
               g_strerror(err));
    }
    vfu_reply_free(&r);
    return true;
}
