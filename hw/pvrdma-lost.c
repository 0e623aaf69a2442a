/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The pvrdma device without its daemon.
 *
 * The device lives in the daemon; when that dies, its queue pairs are dead with
 * it.  What a guest must see then is a failed adapter, not a hang: its driver
 * is told by asynchronous events that the port went down and that the device
 * failed, commands fail at once (ERR reads nonzero), and other registers read
 * all-ones like those of hardware that was pulled out.  Two kinds of commands
 * are answered nevertheless: queries of the port, which is DOWN, so that tools
 * show that and not an I/O error, and the destruction of objects, which are
 * indeed gone, so that programs and the driver clean up without complaints.
 *
 * A guest that sees all this uses the memory of its queues and regions for
 * other things.  So it must not see any of it as long as the daemon may write
 * there: the connection may be lost because the daemon does not answer, and
 * that it is gone is known only when its end of the connection is closed.
 * Until then the VM is held: stopped, as it is for a disk that fails with
 * werror=stop.  The stop takes a moment, in which other vCPUs run: one that
 * accesses the device comes no further.  Attempts to continue the VM have no
 * effect.  A daemon that dies closes its end as well, so the way out is always
 * there, and in that case the VM is never stopped.
 *
 * The state is "paused", because a guest may ask for sleep (S3) while its vCPUs
 * are being stopped, and QEMU carries that out on a stopped VM, too.  That is
 * legal for few other stopped states, and not for "io-error".  A suspended VM
 * can wake up and run, so it is stopped once more.
 *
 * What was stopped here is continued here, but only if it is certain that
 * nobody else wants the VM stopped: neither before, nor by a command or a
 * failing disk meanwhile.  QEMU forgets a stop of a VM that is stopped already;
 * build-qemu.sh makes it count them (vm_stop_calls).
 *
 * Stopping waits for the vCPUs with the big lock dropped, and the device may be
 * unplugged meanwhile.  So all of that is the VM's and not the device's: one
 * static structure.  It is looked at in the main loop before that drops the big
 * lock to wait.  vCPUs that the main loop has let go before, as after a reset,
 * need that lock to run on, so they do not if the daemon was lost in between.
 *
 * The address of the device shared region (DSR) is known because the guest's
 * write of it passed through BAR1.  Everything found there is the guest's word:
 * accesses are bounded, go to RAM only and as the device's DMA (so not without
 * bus mastering), and any nonsense ends the attempt.
 *
 * The adapter stays so until there is another daemon and the guest has reset
 * it: pvrdma-reconnect.c.  Until then all that the guest does ends here.
 *
 * include/pvrdma/abi.h describes what is there; all of it is little-endian.
 */
#include "qemu/osdep.h"
#include "qemu/bswap.h"
#include "qemu/error-report.h"
#include "qemu/main-loop.h"
#include "qemu/notify.h"
#include "hw/pci/pci_device.h"
#include "qapi/qapi-events-pvrdma.h"
#include "system/cpus.h"
#include "pvrdma-compat.h"
#include "pvrdma.h"
#include "trace.h"

/* Pages a ring may have here: state page, and what one table can address. */
#define RING_MAX_PAGES PVRDMA_PDIR_ENTRIES

/* Values of the verbs API that only this file uses. */
#define PORT_WIDTH_4X      2
#define PORT_SPEED_SDR     1
#define PORT_PHYS_DISABLED 3
#define PKEY_DEFAULT       0xffff

/* DMA that only reaches memory: a guest may put any address in its rings. */
static bool guest_rw(PVRDMADevice *s, uint64_t addr, void *buf, size_t len,
                     DMADirection dir)
{
    const MemTxAttrs attrs = { .memory = 1 };

    return pci_dma_rw(PCI_DEVICE(s), addr, buf, len, dir, attrs) == MEMTX_OK;
}

static bool guest_read(PVRDMADevice *s, uint64_t addr, void *buf, size_t len)
{
    return guest_rw(s, addr, buf, len, DMA_DIRECTION_TO_DEVICE);
}

static bool guest_write(PVRDMADevice *s, uint64_t addr, void *buf, size_t len)
{
    return guest_rw(s, addr, buf, len, DMA_DIRECTION_FROM_DEVICE);
}

static bool read_dsr(PVRDMADevice *s, struct pvrdma_dsr *dsr)
{
    return s->dsr_valid && guest_read(s, s->dsr, dsr, sizeof(*dsr));
}

/* The address of one page of a ring, through its page directory. */
static bool ring_page(PVRDMADevice *s, uint64_t pdir, uint32_t page,
                      uint64_t *addr)
{
    uint64_t entry;

    if (!guest_read(s, pdir + page / PVRDMA_PDIR_ENTRIES * sizeof(entry),
                    &entry, sizeof(entry)) ||
        !guest_read(s, le64_to_cpu(entry) +
                    page % PVRDMA_PDIR_ENTRIES * sizeof(entry),
                    &entry, sizeof(entry))) {
        return false;
    }
    *addr = le64_to_cpu(entry);
    return true;
}

/*
 * Append one event to the ring of asynchronous events.
 *
 * The driver feeds the number of slots n, which is no power of two, into
 * arithmetic made for powers of two.  Indices therefore wrap where 2n - 1 has
 * its lowest zero bit, and half as many slots are distinct; the ring is full
 * when those are used up.
 */
static bool push_event(PVRDMADevice *s, const struct pvrdma_dsr *dsr,
                       uint32_t type, uint32_t info)
{
    const struct pvrdma_ring_pages *pages = &dsr->async_ring;
    uint32_t npages = le32_to_cpu(pages->num_pages);
    uint64_t pdir = le64_to_cpu(pages->pdir_dma);
    struct pvrdma_eqe eqe = {
        .type = cpu_to_le32(type),
        .info = cpu_to_le32(info),
    };
    struct pvrdma_ring ring;
    uint32_t n, mask, wrap, tail, head, pos;
    uint64_t state, page;

    if (npages < 2 || npages > RING_MAX_PAGES ||
        !ring_page(s, pdir, 0, &state)) {
        return false;
    }
    state += offsetof(struct pvrdma_ring_state, rx);
    if (!guest_read(s, state, &ring, sizeof(ring))) {
        return false;
    }
    n = (npages - 1) * (PVRDMA_PAGE_SIZE / sizeof(eqe));
    mask = 2 * n - 1;
    wrap = ~mask & (mask + 1);
    tail = le32_to_cpu(ring.prod_tail);
    head = le32_to_cpu(ring.cons_head);
    if (!pvrdma_idx_valid(tail, n) || !pvrdma_idx_valid(head, n) ||
        ((tail - head) & (wrap - 1)) >= wrap / 2) {
        return false;
    }
    pos = pvrdma_idx_slot(tail, n) * sizeof(eqe);
    if (!ring_page(s, pdir, 1 + pos / PVRDMA_PAGE_SIZE, &page) ||
        !guest_write(s, page + pos % PVRDMA_PAGE_SIZE, &eqe, sizeof(eqe))) {
        return false;
    }
    /* The guest sees the event once it sees the new index. */
    smp_wmb();
    ring.prod_tail = cpu_to_le32(pvrdma_idx_next(tail, n));
    return guest_write(s, state, &ring.prod_tail, sizeof(ring.prod_tail));
}

/* Tell the guest that its port is down and its device failed. */
static void notify_guest(PVRDMADevice *s)
{
    struct pvrdma_dsr dsr;

    if (read_dsr(s, &dsr) && push_event(s, &dsr, PVRDMA_EVENT_PORT_ERR, 1) &&
        push_event(s, &dsr, PVRDMA_EVENT_DEVICE_FATAL, 1)) {
        pvrdma_irq_raise(&s->irq, PVRDMA_VEC_ASYNC);
    }
}

/* Write the answer to a query, which @hdr begins, and signal it. */
static bool respond(PVRDMADevice *s, const struct pvrdma_dsr *dsr,
                    const struct pvrdma_req_hdr *req,
                    struct pvrdma_resp_hdr *hdr, size_t len)
{
    hdr->response = req->response;
    hdr->ack = cpu_to_le32(PVRDMA_CMD_RESP(le32_to_cpu(req->cmd)));
    if (!guest_write(s, le64_to_cpu(dsr->resp_slot_dma), hdr, len)) {
        return false;
    }
    pvrdma_irq_raise(&s->irq, PVRDMA_VEC_CMD);
    return true;
}

static bool query_port(PVRDMADevice *s, const struct pvrdma_dsr *dsr,
                       const struct pvrdma_req_hdr *req)
{
    struct pvrdma_resp_query_port resp = {
        .attrs = {
            .state = cpu_to_le32(PVRDMA_PORT_DOWN),
            .max_mtu = cpu_to_le32(PVRDMA_MTU_4096),
            .active_mtu = cpu_to_le32(PVRDMA_MTU_1024),
            .gid_tbl_len = dsr->caps.gid_tbl_len,
            .pkey_tbl_len = dsr->caps.max_pkeys,
            .active_width = PORT_WIDTH_4X,
            .active_speed = PORT_SPEED_SDR,
            .phys_state = PORT_PHYS_DISABLED,
        },
    };

    return respond(s, dsr, req, &resp.hdr, sizeof(resp));
}

static bool query_pkey(PVRDMADevice *s, const struct pvrdma_dsr *dsr,
                       const struct pvrdma_req_hdr *req)
{
    struct pvrdma_resp_query_pkey resp = { .pkey = cpu_to_le16(PKEY_DEFAULT) };

    return respond(s, dsr, req, &resp.hdr, sizeof(resp));
}

static bool answer(PVRDMADevice *s, const struct pvrdma_dsr *dsr,
                   const struct pvrdma_req_hdr *req)
{
    switch (le32_to_cpu(req->cmd)) {
    case PVRDMA_CMD_QUERY_PORT:
        return query_port(s, dsr, req);
    case PVRDMA_CMD_QUERY_PKEY:
        return query_pkey(s, dsr, req);
    case PVRDMA_CMD_DESTROY_PD:
    case PVRDMA_CMD_DESTROY_MR:
    case PVRDMA_CMD_DESTROY_CQ:
    case PVRDMA_CMD_DESTROY_QP:
    case PVRDMA_CMD_DESTROY_UC:
    case PVRDMA_CMD_DESTROY_BIND:
    case PVRDMA_CMD_DESTROY_SRQ:
        return true;
    default:
        return false;
    }
}

/* Run the command in the slot; false: it fails. */
static bool run_command(PVRDMADevice *s)
{
    struct pvrdma_dsr dsr;
    struct pvrdma_req_hdr req;
    bool ok;

    if (!read_dsr(s, &dsr) ||
        !guest_read(s, le64_to_cpu(dsr.cmd_slot_dma), &req, sizeof(req))) {
        return false;
    }
    ok = answer(s, &dsr, &req);
    trace_pvrdma_lost_command(s->name, le32_to_cpu(req.cmd), ok);
    return ok;
}

/*
 * The VM is held; all under the BQL.
 * @holders: lost adapters whose daemon may still write
 * @poll: runs hold_update() in the main loop, if it is @due
 * @suspend: is told before a guest is suspended
 * @stop: the VM is to be stopped
 * @again: it was stopped already, and is suspended all the same
 * @ours: it was stopped, by us alone, when vm_stop_calls was @calls
 * @orphaned: an adapter was removed too early; its user is to continue the VM
 */
static struct {
    unsigned holders;
    Notifier poll;
    Notifier suspend;
    bool due;
    bool stop;
    bool again;
    bool ours;
    bool orphaned;
    unsigned calls;
} hold;

/* In the main loop.  The big lock is dropped on the way. */
static void hold_stop_now(void)
{
    bool again = hold.again;

    hold.again = false;
    if (!runstate_is_live(runstate_get())) {
        /* Somebody else has stopped it, and will continue it. */
        return;
    }
    trace_pvrdma_lost_hold(hold.holders);
    vm_stop(RUN_STATE_PAUSED);
    if (again) {
        /* Whose stop it was, and who asked for another, stays as it was. */
        hold.calls++;
    } else {
        hold.ours = true;
        hold.calls = vm_stop_calls;
    }
}

static void hold_schedule(void)
{
    hold.due = true;
    qemu_notify_event();
}

static void hold_update(void)
{
    if (hold.stop) {
        hold.stop = false;
        hold_stop_now();
        /* What asked for a stop meanwhile is to be counted first. */
        hold_schedule();
        return;
    }
    if (hold.orphaned) {
        hold.orphaned = false;
        hold.ours = false;
    }
    if (hold.holders == 0 && hold.ours) {
        hold.ours = false;
        trace_pvrdma_lost_release(vm_stop_calls, hold.calls);
        if (vm_stop_calls == hold.calls && runstate_check(RUN_STATE_PAUSED)) {
            vm_start();
        } else {
            info_report("pvrdma: pvrdmad released the VM's memory; the VM "
                        "stays stopped because of another stop");
        }
    }
}

/* Before the main loop waits, and after it has carried out all requests. */
static void hold_poll(Notifier *n, void *data)
{
    MainLoopPoll *poll = data;

    if (poll->state == MAIN_LOOP_POLL_FILL && hold.due) {
        hold.due = false;
        hold_update();
    }
}

/* Stop the VM, and at once the vCPU that calls. */
static void hold_stop(void)
{
    hold.stop = true;
    hold_schedule();
    if (qemu_in_vcpu_thread()) {
        cpu_stop_current();
    }
}

/*
 * Still in the state from which the guest is suspended.  A VM that is stopped
 * for whatever reason must not come to run by a wake-up: the daemon may have
 * let go just now, or there may be nobody left who would know.
 */
static void hold_suspend(Notifier *n, void *data)
{
    bool stopped = !runstate_is_running();

    if (hold.holders > 0 || stopped) {
        hold.again = stopped;
        hold_stop();
    }
}

static void hold_begin(PVRDMADevice *s)
{
    if (!hold.poll.notify) {
        hold.poll.notify = hold_poll;
        main_loop_poll_add_notifier(&hold.poll);
        hold.suspend.notify = hold_suspend;
        qemu_register_suspend_notifier(&hold.suspend);
    }
    if (!s->hold) {
        s->hold = true;
        hold.holders++;
    }
}

static void hold_end(PVRDMADevice *s)
{
    if (s->hold) {
        s->hold = false;
        hold.holders--;
        hold_schedule();
    }
}

void pvrdma_lost_barrier(PVRDMADevice *s)
{
    if (s->hold) {
        hold_stop();
    }
}

void pvrdma_lost_tell(PVRDMADevice *s)
{
    g_autofree char *path = object_get_canonical_path(OBJECT(s));

    qapi_event_send_pvrdma_connection(DEVICE(s)->id, path,
                                      !pvrdma_client_lost(s->client), s->hold,
                                      s->lost,
                                      pvrdma_client_reason(s->client));
}

uint32_t pvrdma_lost_read(PVRDMADevice *s, hwaddr addr)
{
    pvrdma_lost_barrier(s);
    return addr == PVRDMA_REG_ERR ? s->lost_err : UINT32_MAX;
}

void pvrdma_lost_write(PVRDMADevice *s, hwaddr addr)
{
    pvrdma_lost_barrier(s);
    s->lost_err = UINT32_MAX;
    if (addr == PVRDMA_REG_REQUEST && !s->hold && run_command(s)) {
        s->lost_err = 0;
    }
}

/* The daemon is gone. */
static void lost_bh(void *opaque)
{
    PVRDMADevice *s = opaque;

    pvrdma_mem_stop(&s->mem);
    if (s->fresh) {
        s->fresh = false;
        pvrdma_client_abandon(s->client, NULL);
    }
    if (!s->told) {
        s->told = true;
        notify_guest(s);
    }
    hold_end(s);
    pvrdma_lost_tell(s);
    pvrdma_reconnect_start(s);
}

/* May run in the middle of a register access: the guest is told later. */
void pvrdma_lost_report(void *opaque, const char *reason, bool gone)
{
    PVRDMADevice *s = opaque;

    trace_pvrdma_lost(s->name, gone, reason);
    if (s->fresh) {
        qemu_bh_schedule(s->lost_bh);
        return;
    }
    s->lost = true;
    s->lost_err = UINT32_MAX;
    if (gone) {
        error_report("pvrdma '%s': lost the connection to pvrdmad: %s; the "
                     "guest's adapter is down until %s", s->name, reason,
                     pvrdma_reconnect_wanted(s) ?
                     "pvrdmad is back and the guest has reset it" :
                     "the VM is started again");
        qemu_bh_schedule(s->lost_bh);
        return;
    }
    hold_begin(s);
    pvrdma_lost_tell(s);
    error_report("pvrdma '%s': %s; the VM is stopped because pvrdmad may still "
                 "write to its memory, and continues without its adapter "
                 "when pvrdmad releases it: continue or kill pvrdmad", s->name,
                 reason);
    hold_stop();
}

static void vm_changed(void *opaque, bool running, RunState state)
{
    PVRDMADevice *s = opaque;

    if (!running || !s->hold) {
        return;
    }
    error_report("pvrdma '%s': the VM stays stopped: pvrdmad may still write "
                 "to its memory; continue or kill pvrdmad", s->name);
    hold.again = false;
    if (state == RUN_STATE_SUSPENDED) {
        /* No vCPU is about to run, and this would be lost on vm_start(). */
        hold_stop();
    } else {
        hold_stop_now();
        /* Not in the main loop: the daemon may have let go meanwhile. */
        hold_schedule();
    }
}

void pvrdma_lost_watch(PVRDMADevice *s)
{
    s->lost_bh = qemu_bh_new_guarded(lost_bh, s,
                                     &DEVICE(s)->mem_reentrancy_guard);
    /* The last to hear that the VM starts; after that its vCPUs would run. */
    s->vm_change = qemu_add_vm_change_state_handler_prio(vm_changed, s,
                                                         INT_MAX);
    pvrdma_client_watch(s->client, pvrdma_lost_report, s);
}

void pvrdma_lost_unwatch(PVRDMADevice *s)
{
    if (!s->lost_bh) {
        return;
    }
    qemu_del_vm_change_state_handler(s->vm_change);
    s->vm_change = NULL;
    qemu_bh_delete(s->lost_bh);
    s->lost_bh = NULL;
    if (s->hold) {
        hold_end(s);
        /* Nobody is left to tell when it may go on: stopped, but not ours. */
        hold.orphaned = true;
        error_report("pvrdma '%s': the adapter was removed before pvrdmad "
                     "released the VM's memory: kill pvrdmad, then continue "
                     "the VM", s->name);
    }
}
