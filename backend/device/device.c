/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * BAR1 registers, the device shared region (DSR), activation and reset.
 *
 * The guest hands over its DSR by writing DSRLOW and then DSRHIGH; within that
 * write the device copies the DSR, checks everything it names, and fills in the
 * caps.  CTL=ACTIVATE then opens the command channel and the event rings.
 * CTL=RESET, DEVICE_RESET and a second DSRHIGH all take everything down before
 * the write is answered: the guest frees that memory right afterwards
 * (CVE-2022-1050 was a DSR replaced under a live device).
 *
 * While bus mastering is off the device does no DMA: no DSR, no commands, event
 * rings are held and the data path is paused.  One that was active stays paused when it
 * is on again, until the guest gives a DSR, a command or a reset: the guest may be
 * another kernel (kexec), whose driver sets it before anything else, while what this
 * device knows is the former one's memory.  Doorbells do not say whose they are.
 *
 * Main thread only.
 */
#include "device/device.h"

#include <errno.h>

#include "datapath/datapath.h"
#include "guest/pagedir.h"

#define PFN_MAX (UINT64_MAX >> PVRDMA_PAGE_SHIFT)

struct device *device_new(struct vm *vm)
{
    struct device *dev = g_new0(struct device, 1);

    dev->vm = vm;
    return dev;
}

void device_free(struct device *dev)
{
    g_free(dev);
}

/* ---- DSR ---- */

/*
 * The pages of a device ring into @page: at least a header and one page of
 * slots, bounded before anything is read (CVE-2021-3607, CVE-2023-1544), and
 * every one writable guest memory.
 */
static int ring_pages_read(struct vm *vm, const struct pvrdma_ring_pages *rp,
                           uint64_t page[EVENT_RING_MAX_PAGES])
{
    int err;

    if (rp->num_pages < 2 || rp->num_pages > EVENT_RING_MAX_PAGES) {
        return EINVAL;
    }
    err = pagedir_read(&vm->guest.mem, rp->pdir_dma, rp->num_pages, page);
    if (err) {
        return err;
    }
    for (uint32_t i = 0; i < rp->num_pages; i++) {
        if (!guest_ptr(&vm->guest.mem, page[i], PVRDMA_PAGE_SIZE, true)) {
            return EFAULT;
        }
    }
    return 0;
}

static int slot_check(struct vm *vm, uint64_t gpa, bool write)
{
    if (gpa % PVRDMA_PAGE_SIZE) {
        return EINVAL;
    }
    return guest_ptr(&vm->guest.mem, gpa, PVRDMA_PAGE_SIZE, write) ? 0 : EFAULT;
}

/*
 * The guest's memory is not shared with us: what we have instead is missing, or zeros.
 * Stock QEMU starts such a VM without a word.
 */
static int not_shared(struct device *dev, const char *how)
{
    /* Guests can have it again and again; once says it all. */
    log_vm(dev->told_not_shared ? LOG_LVL_DEBUG : LOG_LVL_WARN, dev->vm,
           "the device shared region %s: the guest's memory must be a "
           "memory-backend-memfd with share=on, named in -machine memory-backend=",
           how);
    dev->told_not_shared = true;
    return EFAULT;
}

static bool all_zero(const void *data, size_t size)
{
    const uint8_t *p = data;

    return p[0] == 0 && memcmp(p, p + 1, size - 1) == 0;
}

/* Copy and check the DSR at @gpa, take its rings over, write the caps. */
static int dsr_load(struct device *dev, uint64_t gpa)
{
    uint64_t async[EVENT_RING_MAX_PAGES], cqn[EVENT_RING_MAX_PAGES];
    struct vm *vm = dev->vm;
    struct pvrdma_dsr dsr;
    int err;

    if (!dev->bus_master) {
        return ENODEV;
    }
    if (gpa % sizeof(uint64_t)) {
        return EINVAL;
    }
    if (!guest_ptr(&vm->guest.mem, gpa, sizeof(dsr), true) ||
        !guest_read(&vm->guest.mem, gpa, &dsr, sizeof(dsr))) {
        return not_shared(dev, "is not in memory that the VMM shares");
    }
    if (all_zero(&dsr, sizeof(dsr))) {
        return not_shared(dev, "is empty");
    }
    err = slot_check(vm, dsr.cmd_slot_dma, false);
    err = err ? err : slot_check(vm, dsr.resp_slot_dma, true);
    err = err ? err : ring_pages_read(vm, &dsr.async_ring, async);
    err = err ? err : ring_pages_read(vm, &dsr.cq_ring, cqn);
    if (!err && dsr.uar_pfn > PFN_MAX - (VERBS_MAX_UAR - 1)) {
        err = EINVAL;
    }
    if (err) {
        return err;
    }

    verbs_fill_caps(&vm->objects, &dsr.caps);
    guest_write(&vm->guest.mem, gpa + offsetof(struct pvrdma_dsr, caps), &dsr.caps,
                sizeof(dsr.caps));
    event_ring_setup(&vm->guest.events.async, dsr.async_ring.num_pages, async,
                     sizeof(struct pvrdma_eqe));
    event_ring_setup(&vm->guest.events.cqn[0].ring, dsr.cq_ring.num_pages, cqn,
                     sizeof(struct pvrdma_cqne));
    dev->dsr = dsr;
    vm->objects.uar_pfn = dsr.uar_pfn;
    dev->cmd_slot = dsr.cmd_slot_dma;
    dev->resp_slot = dsr.resp_slot_dma;
    dev->dsr_valid = true;
    dev->told_not_shared = false;
    return 0;
}

int device_add_vector(struct vm *vm, const union verbs_req *req, union verbs_resp *resp)
{
    const struct pvrdma_ext_cmd_vector *v = &req->vector;
    struct pvrdma_ring_pages rp = {.num_pages = v->npages, .pdir_dma = v->pdir_dma};
    uint64_t page[EVENT_RING_MAX_PAGES];
    int err = ring_pages_read(vm, &rp, page);

    return err ? err : event_vector_add(&vm->guest.events, v->vector, v->npages, page);
}

/* The guest knows the device as it is, or nothing is left that could run. */
void device_go_on(struct device *dev)
{
    if (dev->stopped) {
        dev->stopped = false;
        datapath_wake(dev->vm); /* notifications may have been deferred */
        datapath_resume(dev->vm);
    }
}

/* Objects, rings, doorbells and the DSR; registers stay. */
static void teardown(struct device *dev)
{
    struct guest *g = &dev->vm->guest;

    dev->active = false;
    dev->dsr_valid = false;
    verbs_reset(&dev->vm->objects);
    event_set_active(&g->events, false, !dev->bus_master);
    doorbells_reset(&g->db, dev->vm->cfg->max_qp, dev->vm->cfg->max_cq,
                    dev->vm->cfg->max_srq);
    memset(&dev->dsr, 0, sizeof(dev->dsr));
    dev->cmd_slot = dev->resp_slot = 0;
    device_go_on(dev); /* do not stay paused for the next guest */
}

static uint32_t dsr_write(struct device *dev)
{
    uint64_t gpa = (uint64_t)dev->dsr_high << 32 | dev->dsr_low;
    int err;

    if (dev->dsr_valid || dev->stopped) {
        teardown(dev);
    }
    err = dsr_load(dev, gpa);
    if (err) {
        log_vm(LOG_LVL_INFO, dev->vm, "device shared region refused: %s",
               g_strerror(err));
    }
    return err;
}

/* ---- registers ---- */

static uint32_t activate(struct device *dev)
{
    if (!dev->dsr_valid || !dev->bus_master) {
        return ENODEV;
    }
    device_go_on(dev);
    dev->active = true;
    event_set_active(&dev->vm->guest.events, true, false);
    return 0;
}

static uint32_t ctl_write(struct device *dev, uint32_t value)
{
    switch (value) {
    case PVRDMA_CTL_ACTIVATE:
        return activate(dev);
    case PVRDMA_CTL_UNQUIESCE:
    case PVRDMA_EXT_CTL_LINK_DOWN:
        /* The netdev came up, or went down, if the driver says so. */
        if (!dev->active) {
            return ENODEV;
        }
        verbs_set_link(dev->vm, value == PVRDMA_CTL_UNQUIESCE);
        return 0;
    case PVRDMA_CTL_RESET:
        device_reset(dev);
        return 0;
    default:
        return EINVAL;
    }
}

/* MACL: bytes 0 to 3 of the paired NIC's address, MACH: 4 and 5; LE. */
static uint32_t mac_word(const struct vm_config *cfg, unsigned first)
{
    uint32_t v = 0;

    for (unsigned i = 0; i < 4 && first + i < sizeof(cfg->mac); i++) {
        v |= (uint32_t)cfg->mac[first + i] << (8 * i);
    }
    return v;
}

/* Of some device; PVRDMA_EXT_FEAT_MAC is only of those that have a MAC. */
#define EXT_FEATURES                                                                     \
    (PVRDMA_EXT_CONTEXT_FEATURES | PVRDMA_EXT_FEAT_COUNTERS | PVRDMA_EXT_FEAT_FAST_REG | \
     PVRDMA_EXT_FEAT_UC | PVRDMA_EXT_FEAT_LARGE_MR | PVRDMA_EXT_FEAT_VECTORS |           \
     PVRDMA_EXT_FEAT_CQ_EX | PVRDMA_EXT_FEAT_CQ_TIME | PVRDMA_EXT_FEAT_QP_COUNTERS |     \
     PVRDMA_EXT_FEAT_MAC | PVRDMA_EXT_FEAT_LINK)

static uint32_t ext_features(const struct device *dev)
{
    return EXT_FEATURES & ~(dev->vm->cfg->has_mac ? 0u : PVRDMA_EXT_FEAT_MAC);
}

/* The extension window (ext.h); the rest of the page reads as all ones. */
static uint32_t ext_reg_read(const struct device *dev, uint64_t offset)
{
    switch (offset) {
    case PVRDMA_EXT_REG_MAGIC:
        return PVRDMA_EXT_MAGIC;
    case PVRDMA_EXT_REG_LENGTH:
        return PVRDMA_EXT_WINDOW_SIZE;
    case PVRDMA_EXT_REG_VERSION:
        return PVRDMA_EXT_VERSION;
    case PVRDMA_EXT_REG_FEATURES:
        return ext_features(dev);
    case PVRDMA_EXT_REG_INLINE:
        return PVRDMA_EXT_MAX_INLINE;
    case PVRDMA_EXT_REG_COUNTERS:
        return PVRDMA_EXT_CNT_MAX;
    case PVRDMA_EXT_REG_MR_PAGES:
        return MIN(PVRDMA_EXT_MR_MAX_PAGES, dev->vm->cfg->max_mr_pages);
    default:
        return UINT32_MAX;
    }
}

uint32_t device_reg_read(struct device *dev, uint64_t offset)
{
    switch (offset) {
    case PVRDMA_REG_VERSION:
        return PVRDMA_VERSION;
    case PVRDMA_REG_DSRLOW:
        return dev->dsr_low;
    case PVRDMA_REG_DSRHIGH:
        return dev->dsr_high;
    case PVRDMA_REG_CTL:
    case PVRDMA_REG_REQUEST:
        return 0;
    case PVRDMA_REG_ERR:
        return dev->err;
    case PVRDMA_REG_ICR:
        return dev->icr;
    case PVRDMA_REG_IMR:
        return dev->imr;
    case PVRDMA_REG_MACL:
        return mac_word(dev->vm->cfg, 0);
    case PVRDMA_REG_MACH:
        return mac_word(dev->vm->cfg, 4);
    default:
        return ext_reg_read(dev, offset);
    }
}

void device_reg_write(struct device *dev, uint64_t offset, uint32_t value)
{
    switch (offset) {
    case PVRDMA_REG_DSRLOW:
        dev->dsr_low = value;
        break;
    case PVRDMA_REG_DSRHIGH:
        dev->dsr_high = value;
        dev->err = dsr_write(dev);
        break;
    case PVRDMA_REG_CTL:
        dev->err = ctl_write(dev, value);
        break;
    case PVRDMA_REG_REQUEST:
        dev->err = command_execute(dev);
        break;
    case PVRDMA_REG_IMR:
        dev->imr = value;
        break;
    default: /* read-only, or nothing */
        break;
    }
}

void device_set_bus_master(struct device *dev, bool on)
{
    if (dev->bus_master == on) {
        return;
    }
    dev->bus_master = on;
    event_set_active(&dev->vm->guest.events, dev->active, !on);
    if (on) {
        irq_enable(&dev->vm->guest.irq, true);
    } else {
        if (dev->active && !dev->stopped) {
            dev->stopped = true;
            datapath_pause(dev->vm);
        }
        irq_enable(&dev->vm->guest.irq, false);
    }
}

void device_reset(struct device *dev)
{
    teardown(dev);
    dev->dsr_low = dev->dsr_high = 0;
    dev->err = dev->icr = dev->imr = 0;
}

/* ---- the state stream ---- */

/* The rings themselves are the events'. */
RECORD(dsr_record, struct pvrdma_dsr, FIELD(driver_version), FIELD(gos_info),
       FIELD(cmd_slot_dma), FIELD(resp_slot_dma), FIELD(async_ring.num_pages),
       FIELD(async_ring.pdir_dma), FIELD(cq_ring.num_pages), FIELD(cq_ring.pdir_dma),
       FIELD(uar_pfn))

static void dsr_load_saved(struct device *dev, struct state_in *s)
{
    struct pvrdma_dsr dsr = {0};

    state_get_record(s, dsr_record, &dsr);
    if (dsr.cmd_slot_dma % PVRDMA_PAGE_SIZE || dsr.resp_slot_dma % PVRDMA_PAGE_SIZE ||
        dsr.uar_pfn > PFN_MAX - (VERBS_MAX_UAR - 1)) {
        state_fail(s, "invalid device shared region");
        return;
    }
    verbs_fill_caps(&dev->vm->objects, &dsr.caps);
    dev->dsr = dsr;
    dev->dsr_valid = true;
    dev->vm->objects.uar_pfn = dsr.uar_pfn;
    dev->cmd_slot = dsr.cmd_slot_dma;
    dev->resp_slot = dsr.resp_slot_dma;
}

void device_offers_save(const struct device *dev, struct state_out *s)
{
    state_put_u32(s, ext_features(dev));
    state_put_u32(s, PVRDMA_EXT_MAX_INLINE);
    state_put_u32(s, PVRDMA_EXT_CNT_MAX);
}

void device_offers_names(GString *text)
{
    for (uint32_t left = EXT_FEATURES; left; left &= left - 1) {
        g_string_append_printf(text, "feature %#x\n", left & -left);
    }
}

static void no_more(struct state_in *s, const char *what, uint32_t here)
{
    uint32_t there = state_get_u32(s);

    if (there > here) {
        state_fail(s, "the guest was offered %u %s, this daemon has %u", there, what,
                   here);
    }
}

void device_offers_load(const struct device *dev, struct state_in *s)
{
    uint32_t lack = state_get_u32(s) & ~ext_features(dev);

    if (lack) {
        state_fail(s, "the guest was offered features %#x, this daemon lacks them", lack);
    }
    no_more(s, "bytes of inline data", PVRDMA_EXT_MAX_INLINE);
    no_more(s, "counters", PVRDMA_EXT_CNT_MAX);
}

RECORD(device_record, struct device, FIELD(dsr_low), FIELD(dsr_high), FIELD(err),
       FIELD(icr), FIELD(imr), FIELD(bus_master))

void device_save(const struct device *dev, struct state_out *s)
{
    state_put_record(s, device_record, dev);
    state_put_u8(s, dev->active);
    state_put_u8(s, dev->stopped);
    state_put_u8(s, dev->dsr_valid);
    if (dev->dsr_valid) {
        state_put_record(s, dsr_record, &dev->dsr);
    }
}

void device_load(struct device *dev, struct state_in *s)
{
    bool active, stopped;

    state_get_record(s, device_record, dev);
    active = state_get_bool(s);
    stopped = state_get_bool(s);
    if (state_get_bool(s)) {
        dsr_load_saved(dev, s);
    }
    if ((active && !dev->dsr_valid) || (active && !dev->bus_master && !stopped)) {
        state_fail(s, "invalid device state");
    }
    if (state_failed(s)) {
        return;
    }
    dev->active = active;
    if (stopped) {
        dev->stopped = true;
        datapath_pause(dev->vm);
    }
}
