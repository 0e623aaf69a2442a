/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Migration of the pvrdma device: it stops and starts with the VM, and its
 * state is part of the VM's.
 *
 * The device's inside is the daemon's, and so is its state: a run of bytes that
 * one daemon hands out and another, or the same, takes and checks.  QEMU adds
 * what it has itself: config space, MSI-X, and where the shared region is.  The
 * device goes through these states, as the vfio-user specification has them:
 *
 *   the VM stops     RUNNING -> STOP; then what the daemon has signalled so far
 *                    becomes messages and pending bits (pvrdma-irq.c)
 *   it is saved      STOP -> STOP_COPY, all bytes are read, -> STOP
 *   it is loaded     RUNNING (reset) -> STOP -> RESUMING, all bytes are
 *                    written, -> STOP, which is where the daemon checks them
 *   in vain          -> RUNNING, by a reset: the stream broke off, or what came
 *                    behind the device's state made the migration fail
 *   the VM starts    STOP -> RUNNING; the daemon claims the device's addresses
 *
 * The daemon is not told of a stream before the device's state comes, when all
 * of memory was copied: it could not refuse the state yet, and the machine may
 * be reset, or the daemon replaced, meanwhile.
 *
 * Saving changes nothing that matters here: the VM can go on afterwards, as it
 * does when a migration fails or was for a snapshot.  That is for the daemon to
 * refuse when the device has come to run elsewhere meanwhile; then it is lost
 * here, as if the daemon were gone, and the guest sees that.
 *
 * What can fail on the target fails while it loads, when the source can still
 * go on.  The guest's memory is what the daemon reads last, when it is RUNNING.
 * Interrupts that were on their way may be lost with the way: after a load all
 * vectors are raised once, and the driver looks at everything.
 *
 * A daemon without these features cannot be stopped, and blocks migration.  The
 * device must be stopped when memory is copied for the last time: so no
 * post-copy, in which the VM runs before all of it is there, and no background
 * snapshot, for which the VM would run on, with writes that nobody intercepts.
 *
 * The stream is not trusted: the length of each piece is bounded here, and the
 * rest, also how many there may be, is the daemon's to check.
 *
 * All under the BQL, in the main loop or the migration's thread; but what is
 * asked while memory is copied, in the latter, without it.
 */
#include "qemu/osdep.h"
#include "qemu/error-report.h"
#include "qemu/main-loop.h"
#include "qemu/units.h"
#include "migration/blocker.h"
#include "migration/client-options.h"
#include "migration/migration.h"
#include "migration/misc.h"
#include "migration/options.h"
#include "migration/register.h"
#include "migration/vmstate.h"
#include "hw/pci/msix.h"
#include "io/channel-file.h"
#include "migration/qemu-file.h"
#include "migration/qemu-file-types.h"
#include "pvrdma-calls.h"
#include "pvrdma-compat.h"
#include "pvrdma.h"
#include "trace.h"

/* In the stream the state is in pieces of this size at most. */
#define PIECE_MAX VFIO_USER_MAX_DATA
/* More than the daemon has room for: this one does not come to an end. */
#define STATE_MAX (2 * GiB)

/*
 * A network is taken for as fast as this if nobody knows better; and so long
 * is waited, in us, until it is looked again whether the state fits.
 */
#define RATE_MIN (125.0 * 1000 * 1000)
#define LOOK_AGAIN 50000

/* The section of the handlers, in which nothing is saved. */
#define HANDLERS_ID "pvrdma-adapter"

static const char *why_not(uint32_t old, uint32_t state)
{
    if (state == VFIO_USER_MIG_RUNNING) {
        return "the device cannot run";
    }
    if (state == VFIO_USER_MIG_STOP && old == VFIO_USER_MIG_RESUMING) {
        return "the received state cannot be loaded into this VM (pvrdmad's "
               "log has the reason)";
    }
    return state == VFIO_USER_MIG_STOP ? "the device cannot be stopped" :
           "the device cannot be saved or loaded";
}

static bool set_state(PVRDMADevice *s, uint32_t state, Error **errp)
{
    uint32_t old = s->state;
    int ret;

    if (old == state) {
        return true;
    }
    ret = pvrdma_call_set_state(s->client, state);
    trace_pvrdma_migrate_state(s->name, old, state, ret);
    if (ret == 0) {
        s->state = state;
        return true;
    }
    pvrdma_client_error(s->client, ret, errp, why_not(old, state));
    /* Anywhere on the way there. */
    pvrdma_call_get_state(s->client, &s->state);
    return false;
}

/* No more DMA and no more interrupts from here on. */
static bool stop_device(PVRDMADevice *s, Error **errp)
{
    if (!set_state(s, VFIO_USER_MIG_STOP, errp)) {
        return false;
    }
    pvrdma_irq_pause(&s->irq);
    return true;
}

/*
 * Is it no migration?  A snapshot is loaded in another state of the machine,
 * and a file comes from no VM that waits for what becomes of it.  A pipe may.
 */
static bool is_put_back(QEMUFile *f)
{
    QIOChannelFile *ioc = (QIOChannelFile *)object_dynamic_cast(
        OBJECT(qemu_file_get_ioc(f)), TYPE_QIO_CHANNEL_FILE);
    struct stat st;

    return !runstate_check(RUN_STATE_INMIGRATE) ||
           (ioc && fstat(ioc->fd, &st) == 0 &&
            (S_ISREG(st.st_mode) || S_ISBLK(st.st_mode)));
}

/*
 * Whoever is connected to a VM that is put back to what was saved of it has
 * gone on: the daemon cannot tell that from the state.
 */
static bool say_what_comes(PVRDMADevice *s, QEMUFile *f, Error **errp)
{
    int ret = 0;

    if (is_put_back(f)) {
        ret = pvrdma_call_put_back(s->client);
        trace_pvrdma_migrate_put_back(s->name, ret);
    }
    if (ret == 0) {
        return true;
    }
    pvrdma_client_error(s->client, ret, errp,
                        "the device cannot be restored to the saved state");
    return false;
}

/* The device is as after a reset; nothing of what was written is in use. */
static void give_up_state(PVRDMADevice *s)
{
    if (!s->lost && pvrdma_call_reset(s->client, NULL)) {
        trace_pvrdma_migrate_state(s->name, s->state, VFIO_USER_MIG_RUNNING, 0);
        s->state = VFIO_USER_MIG_RUNNING;
        s->loaded = false;
    }
}

static void start_device(PVRDMADevice *s)
{
    Error *err = NULL;
    unsigned i;

    pvrdma_irq_resume(&s->irq);
    if (!set_state(s, VFIO_USER_MIG_RUNNING, &err)) {
        if (!pvrdma_client_lost(s->client)) {
            pvrdma_client_fail(s->client, "%s", error_get_pretty(err));
        }
        error_free(err);
        return;
    }
    if (s->loaded) {
        s->loaded = false;
        for (i = 0; i < s->vectors; i++) {
            pvrdma_irq_raise(&s->irq, i);
        }
    }
}

static void vm_changed(void *opaque, bool running, RunState state)
{
    PVRDMADevice *s = opaque;
    Error *err = NULL;

    if (s->lost) {
        pvrdma_irq_resume(&s->irq);
        return;
    }
    pvrdma_client_begin(s->client);
    s->ran_on = false;
    if (running) {
        start_device(s);
    } else if (!stop_device(s, &err)) {
        s->ran_on = true;
        error_report_err(err);
    }
    pvrdma_client_end(s->client);
}

/*
 * Save and load
 */

static bool save_bytes(PVRDMADevice *s, QEMUFile *f, Error **errp)
{
    uint32_t max = MIN(PIECE_MAX, pvrdma_client_max_data(s->client));
    g_autofree uint8_t *buf = g_malloc(max);
    uint64_t total = 0;
    ssize_t n;

    do {
        n = pvrdma_call_state_read(s->client, buf, max);
        if (n < 0) {
            pvrdma_client_error(s->client, n, errp,
                                "cannot read the device's state");
            return false;
        }
        total += n;
        if (total > STATE_MAX) {
            error_setg(errp, "pvrdma '%s': pvrdmad's state of the device has "
                       "no end", s->name);
            return false;
        }
        if (n > 0) {
            qemu_put_be32(f, n);
            qemu_put_buffer(f, buf, n);
        }
    } while (n == max);
    qemu_put_be32(f, 0);
    trace_pvrdma_migrate_saved(s->name, total);
    return true;
}

static bool save_state(PVRDMADevice *s, QEMUFile *f, Error **errp)
{
    if (s->lost) {
        error_setg(errp, "pvrdma '%s': pvrdmad was lost, and the guest has not "
                   "reset the adapter since: there is no state to save",
                   s->name);
        return false;
    }
    if (s->ran_on) {
        /* What it has stored since may be missing in the copy of the memory. */
        error_setg(errp, "pvrdma '%s': pvrdmad did not stop the device when "
                   "the VM was stopped", s->name);
        return false;
    }
    return stop_device(s, errp) &&
           set_state(s, VFIO_USER_MIG_STOP_COPY, errp) &&
           save_bytes(s, f, errp) &&
           set_state(s, VFIO_USER_MIG_STOP, errp);
}

/*
 * The error goes into the file, for a migration's status has no other place for
 * a reason; a snapshot's has none at all, so it is told here, too.
 */
static int put_state(QEMUFile *f, void *opaque, size_t size,
                     const VMStateField *field, JSONWriter *vmdesc)
{
    Error *err = NULL;

    if (!save_state(opaque, f, &err)) {
        error_report("%s", error_get_pretty(err));
        migration_file_set_error(-EIO, err);
    }
    return 0;
}

/* One piece of the stream; 0: the end, -1: there is something wrong with it. */
static ssize_t load_piece(PVRDMADevice *s, QEMUFile *f, uint8_t *buf,
                          uint64_t total, Error **errp)
{
    uint32_t n = qemu_get_be32(f);

    if (n > PIECE_MAX) {
        error_setg(errp, "pvrdma '%s': malformed saved state: %u bytes after "
                   "%" PRIu64, s->name, n, total);
        return -1;
    }
    if (qemu_get_buffer(f, buf, n) != n) {
        error_setg(errp, "pvrdma '%s': saved state ends after %" PRIu64
                   " bytes", s->name, total);
        return -1;
    }
    return n;
}

static bool load_bytes(PVRDMADevice *s, QEMUFile *f, Error **errp)
{
    uint32_t max = pvrdma_client_max_data(s->client);
    g_autofree uint8_t *buf = g_malloc(PIECE_MAX);
    uint64_t total = 0;
    ssize_t n, done;
    int ret;

    while (true) {
        n = load_piece(s, f, buf, total, errp);
        if (n <= 0) {
            trace_pvrdma_migrate_loaded(s->name, total);
            return n == 0;
        }
        for (done = 0; done < n; done += MIN(max, n - done)) {
            ret = pvrdma_call_state_write(s->client, buf + done,
                                          MIN(max, n - done));
            if (ret < 0) {
                pvrdma_client_error(s->client, ret, errp,
                                    "cannot write the device's state");
                return false;
            }
        }
        total += n;
    }
}

/*
 * A stream has ended, well or not, or never begun.  A state that was written
 * but not checked is dropped: a part that is not known here came behind it.  So
 * is one that was checked, if the VM still waits for a stream.
 */
static int load_ended(void *opaque)
{
    PVRDMADevice *s = opaque;

    if (s->state == VFIO_USER_MIG_RESUMING ||
        (s->loaded && runstate_check(RUN_STATE_INMIGRATE))) {
        give_up_state(s);
    }
    return 0;
}

static int load_failed(PVRDMADevice *s, Error *err)
{
    error_report_err(err);
    give_up_state(s);
    return -EINVAL;
}

static int get_state(QEMUFile *f, void *opaque, size_t size,
                     const VMStateField *field)
{
    PVRDMADevice *s = opaque;
    Error *err = NULL;

    if (s->able && stop_device(s, &err) &&
        set_state(s, VFIO_USER_MIG_RESUMING, &err) &&
        say_what_comes(s, f, &err) && load_bytes(s, f, &err)) {
        return 0;
    }
    if (!s->able) {
        error_setg(&err, "pvrdma '%s': this pvrdmad cannot load the state of "
                   "a device", s->name);
    }
    return load_failed(s, err);
}

static int post_load(void *opaque, int version)
{
    PVRDMADevice *s = opaque;
    Error *err = NULL;

    if (!set_state(s, VFIO_USER_MIG_STOP, &err) ||
        !pvrdma_follow_config(s, &err)) {
        return load_failed(s, err);
    }
    s->loaded = true;
    return 0;
}

static const VMStateInfo state_info = {
    .name = "pvrdmad's state of a device",
    .get = get_state,
    .put = put_state,
};

const VMStateDescription pvrdma_vmstate = {
    .name = "pvrdma",
    .version_id = 1,
    .minimum_version_id = 1,
    .post_load = post_load,
    .fields = (const VMStateField[]) {
        /* What the guest sees of the device must be the same. */
        VMSTATE_UINT32_EQUAL(vectors, PVRDMADevice,
                             "pvrdma: property 'vectors' differs"),
        VMSTATE_UINT32_EQUAL(regs_size, PVRDMADevice,
                             "pvrdma: property 'regs-size' differs"),
        VMSTATE_UINT32_EQUAL(uar_size, PVRDMADevice,
                             "pvrdma: property 'uar-size' differs"),
        VMSTATE_PCI_DEVICE(parent_obj, PVRDMADevice),
        VMSTATE_MSIX(parent_obj, PVRDMADevice),
        VMSTATE_UINT32(dsr_low, PVRDMADevice),
        VMSTATE_UINT64(dsr, PVRDMADevice),
        VMSTATE_BOOL(dsr_valid, PVRDMADevice),
        {
            .name = "state",
            .info = &state_info,
        },
        VMSTATE_END_OF_LIST()
    },
};

/*
 * What cannot be migrated
 */

/* Before a migration begins. */
static int check_migration(void *opaque, Error **errp)
{
    PVRDMADevice *s = opaque;
    const char *what = NULL;

    if (s->lost) {
        error_setg(errp, "pvrdma '%s': pvrdmad was lost, and the guest has not "
                   "reset the adapter since: wait until it has, or unplug the "
                   "device",
                   s->name);
        return -EIO;
    }
    if (runstate_check(RUN_STATE_SAVE_VM)) {
        /* A snapshot; the rest is about migrations. */
        return 0;
    }
    if (migrate_postcopy_ram()) {
        what = "by post-copy";
    } else if (migrate_background_snapshot()) {
        what = "to a background snapshot";
    } else if (migrate_colo()) {
        /* Both sides run, and the state goes over at each checkpoint. */
        what = "by COLO";
    } else if (migrate_mode() != MIG_MODE_NORMAL) {
        what = MigMode_str(migrate_mode());
    }
    if (what) {
        /* A snapshot of a VM that was stopped before looks like a migration. */
        error_setg(errp, "pvrdma '%s' cannot migrate %s: the device must be "
                   "stopped before the last of the VM's memory is copied%s",
                   s->name, what, runstate_is_running() ? "" :
                   "; switch that off for a snapshot of a stopped VM, too");
        return -ENOTSUP;
    }
    return 0;
}

/*
 * How long the VM would stand still for the state
 *
 * All of it is copied after the VM has stopped.  QEMU's own estimate of how
 * fast that would be is what it has sent of memory of late, which is next to
 * nothing when there is nothing left to be sent, and would never do for any
 * state: so the best of this migration counts, or what the user has said.
 */

static double rate(const PVRDMADevice *s)
{
    uint64_t said = migrate_avail_switchover_bandwidth();

    return said ? said : MAX(s->best_rate, RATE_MIN);
}

/*
 * A VM that stands still already does not wait for anything.  Nor does one
 * whose user wants the end at any price: it would be throttled more and more,
 * which makes the state no smaller; and without any downtime nothing ever fits.
 */
static bool fits(const PVRDMADevice *s, uint64_t others)
{
    return !runstate_is_running() || migrate_auto_converge() ||
           !migrate_downtime_limit() ||
           ((double)s->data_size + others) * 1000 <=
           rate(s) * migrate_downtime_limit();
}

/* What the daemon says; one that cannot has a state that nobody waits for. */
static void ask_size(PVRDMADevice *s)
{
    BQL_LOCK_GUARD();

    s->data_size = 0;
    if (!s->lost) {
        pvrdma_call_data_size(s->client, &s->data_size);
    }
}

#if PVRDMA_TELLS_PENDING
/*
 * Each time before more memory is sent.  With nothing left of it QEMU would
 * not ask further if this were nothing, and not ask again if it were much.
 */
static void pending_estimate(void *opaque, uint64_t *must_precopy,
                             uint64_t *can_postcopy)
{
    PVRDMADevice *s = opaque;

    s->best_rate = MAX(s->best_rate,
                       migrate_get_current()->mbps * 1000 * 1000 / 8);
    *must_precopy += s->held_back;
}

/* When what is left of memory would fit.  Not a busy loop. */
static void pending_exact(void *opaque, uint64_t *must_precopy,
                          uint64_t *can_postcopy)
{
    PVRDMADevice *s = opaque;
    uint64_t others = *must_precopy + *can_postcopy;

    ask_size(s);
    s->held_back = !fits(s, others);
    trace_pvrdma_migrate_pending(s->name, s->data_size, others,
                                 (uint64_t)rate(s), !s->held_back);
    if (!s->held_back) {
        return;
    }
    if (!s->told_held) {
        s->told_held = true;
        warn_report("pvrdma '%s': the migration waits: for the device's state "
                    "of %" PRIu64 " bytes the VM would be stopped for longer "
                    "than downtime-limit (%" PRIu64 " ms): raise that, or set "
                    "avail-switchover-bandwidth to the network's bandwidth",
                    s->name, s->data_size, migrate_downtime_limit());
    }
    /* More than is let pass for memory, too. */
    *must_precopy += MAX(s->data_size, migrate_get_current()->threshold_size);
    g_usleep(LOOK_AGAIN);
}
#endif

static int prepare(void *opaque, Error **errp)
{
    PVRDMADevice *s = opaque;
    int ret = check_migration(s, errp);

    if (ret == 0 && !runstate_check(RUN_STATE_SAVE_VM)) {
        s->best_rate = 0;
        s->told_held = false;
        ask_size(s);
        s->held_back = !fits(s, 0);
    }
    return ret;
}

/* Nothing is saved for the handlers, but QEMU asks them if a stream says so. */
static int load_nothing(QEMUFile *f, void *opaque, int version)
{
    error_report("malformed saved state: a section " HANDLERS_ID);
    return -EINVAL;
}

static const SaveVMHandlers handlers = {
    .save_prepare = prepare,
#if PVRDMA_TELLS_PENDING
    .state_pending_estimate = pending_estimate,
    .state_pending_exact = pending_exact,
#endif
    .load_state = load_nothing,
    .load_cleanup = load_ended,
};

/* The first feature of those needed that the daemon has not, or NULL. */
static const char *missing_feature(PVRDMADevice *s)
{
    static const struct {
        uint32_t which;
        const char *name;
    } needed[] = {
        { VFIO_USER_FEATURE_MIG_DEVICE_STATE | VFIO_USER_FEATURE_GET |
          VFIO_USER_FEATURE_SET, "MIG_DEVICE_STATE" },
        { VFIO_USER_FEATURE_DMA_LOGGING_START | VFIO_USER_FEATURE_SET,
          "DMA_LOGGING_START" },
        { VFIO_USER_FEATURE_DMA_LOGGING_STOP | VFIO_USER_FEATURE_SET,
          "DMA_LOGGING_STOP" },
        { VFIO_USER_FEATURE_DMA_LOGGING_REPORT | VFIO_USER_FEATURE_GET,
          "DMA_LOGGING_REPORT" },
    };
    uint64_t flags = 0;
    size_t i;

    if (pvrdma_call_migration(s->client, &flags) < 0 ||
        !(flags & VFIO_USER_MIGRATION_STOP_COPY)) {
        return "MIGRATION";
    }
    for (i = 0; i < ARRAY_SIZE(needed); i++) {
        if (pvrdma_call_probe(s->client, needed[i].which) < 0) {
            return needed[i].name;
        }
    }
    return NULL;
}

bool pvrdma_migrate_setup(PVRDMADevice *s, Error **errp)
{
    const char *missing = missing_feature(s);

    if (pvrdma_client_lost(s->client)) {
        pvrdma_client_error(s->client, -EIO, errp,
                            "cannot learn what pvrdmad can migrate");
        return false;
    }
    s->state = VFIO_USER_MIG_RUNNING;
    s->loaded = false;
    s->able = !missing;
    if (missing) {
        error_setg(&s->migration_blocker, "pvrdma '%s' cannot migrate: this "
                   "pvrdmad has no vfio-user feature %s; unplug the device "
                   "first", s->name, missing);
        return migrate_add_blocker(&s->migration_blocker, errp) == 0;
    }
    register_savevm_live(HANDLERS_ID, VMSTATE_INSTANCE_ID_ANY, 1, &handlers, s);
    s->run_state = qdev_add_vm_change_state_handler(DEVICE(s), vm_changed, s);
    return true;
}

bool pvrdma_migrate_fits(PVRDMADevice *s, Error **errp)
{
    const char *missing = s->able ? missing_feature(s) : NULL;

    if (missing) {
        error_setg(errp, "pvrdma '%s': this pvrdmad has no vfio-user feature "
                   "%s, which the last one had", s->name, missing);
    }
    return !missing;
}

void pvrdma_migrate_cleanup(PVRDMADevice *s)
{
    migrate_del_blocker(&s->migration_blocker);
    if (s->run_state) {
        qemu_del_vm_change_state_handler(s->run_state);
        s->run_state = NULL;
        unregister_savevm(NULL, HANDLERS_ID, s);
    }
    s->able = false;
}

void pvrdma_migrate_reset(PVRDMADevice *s)
{
    s->state = VFIO_USER_MIG_RUNNING;
    s->loaded = false;
}
