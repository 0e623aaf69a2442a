/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The device's states in a migration, and its state as a stream.
 *
 *   RUNNING <-> STOP <-> STOP_COPY      saves: MIG_DATA_READ
 *                    <-> RESUMING       loads: MIG_DATA_WRITE
 *
 * Other ways lead over STOP.  A step that fails leaves the device where it began, but for
 * a stream that cannot be loaded: ERROR, which only a reset leaves, for RUNNING.
 *
 * In every state but RUNNING the data path is paused, once, on our account: nothing of
 * the guest's memory changes, no interrupt is raised, peers hold what they have for it.
 * Whoever resets the device or detaches the VM gives that pause back.
 *
 * Saving changes nothing, but that connections end which would with RUNNING: a source may
 * go back to that at any time, unless somebody has claimed its addresses meanwhile
 * (directory_may_run).  The target claims them when it becomes RUNNING, and waits a
 * little if they cannot be had yet.  Between, a source whose stream was read to its end
 * may leave: then its addresses are held for whoever has the stream, for HOLD_NS.
 *
 * A VM that is put back to a time after which it ran on is not what its peers have gone
 * on with: its connections end, with an event.  The guest's clock in the state tells what
 * time that is: in the VMM that was saved, and in this daemon (directory/restored.c).
 * Others are told by the VMM that this was saved.  Where nobody knows, its QPs and their
 * peers' see that they count differently: on one host when both VMs run (qp_compare()),
 * between hosts when they connect.
 *
 * Streams are the VMMs' memory in the daemon, for as long as they like: all together have
 * a bound, in equal shares.  Whoever needs more when it is reached makes the longest give
 * way, if that is longer than what it needs itself; its migration fails, and its VM goes
 * on where it is.
 *
 * Main thread.  States change with vm->ops; the stream is the connection's messages'.
 */
#include "frontend/migration_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/coro.h"
#include "datapath/datapath.h"
#include "device/device.h"
#include "directory/directory.h"
#include "guest/pagelist.h"
#include "verbs/verbs.h"
#include "vm/attach.h"

/* How long the peers of a source that has left wait for its new place. */
#define HOLD_NS (30ull * 1000000000u)

/* How long a target that is to run waits for its addresses, and how often it looks. */
gint64 migration_claim_us = 3000000;
#define CLAIM_EVERY_MS 2u

#define FIRST_ROOM (1u << 20)

uint64_t migration_max_streams = 2ull << 30;

/* Of all VMs that have one, with a stream or without. */
static GQueue migrations = G_QUEUE_INIT;

/* A stream comes in one go: QEMU sends it when all of memory has gone. */
gint64 migration_stalls_us = 60 * G_USEC_PER_SEC;

static const char *const state_names[] = {
    [ERROR] = "error",         [STOP] = "stop",         [RUNNING] = "running",
    [STOP_COPY] = "stop-copy", [RESUMING] = "resuming",
};

struct migration *migration_get(struct vm *vm)
{
    if (!vm->migration) {
        vm->migration = g_new0(struct migration, 1);
        vm->migration->state = RUNNING;
        vm->migration->vm = vm;
        g_queue_push_tail(&migrations, vm->migration);
    }
    return vm->migration;
}

void migration_forget(struct migration **m)
{
    if (*m && (*m)->watch) {
        g_source_remove((*m)->watch);
    }
    if (*m) {
        g_queue_remove(&migrations, *m);
    }
    g_clear_pointer(m, g_free);
}

/* See migration_status.still_us; of a VM that has not gone on here. */
static uint64_t still_for(const struct vm *vm, const struct migration *m)
{
    gint64 until = vm->moved ? vm->moved_at : g_get_monotonic_time();

    if (m->state == RESUMING && m->got == 0) {
        return 0; /* it runs where it is, for all that is known */
    }
    return (uint64_t)(MAX(until, m->stopped_at) - m->stopped_at);
}

void migration_get_status(const struct vm *vm, struct migration_status *st)
{
    static const struct migration_status none;
    const struct migration *m = vm->migration;

    *st = m ? m->last : none;
    st->state = state_names[m ? m->state : RUNNING];
    if (m && m->state != RUNNING) {
        st->still_us = still_for(vm, m);
    }
    if (vm->gave_way) {
        g_strlcpy(st->error,
                  "another instance of it runs on another host and takes precedence",
                  sizeof(st->error));
    }
}

bool migration_stopped(const struct vm *vm)
{
    return vm->migration && vm->migration->state != RUNNING;
}

/* us since @since, which is moved on. */
static uint64_t took(gint64 *since)
{
    gint64 now = g_get_monotonic_time(), us = now - *since;

    *since = now;
    return (uint64_t)us;
}

static void G_GNUC_PRINTF(2, 3) failed(struct vm *vm, const char *format, ...)
{
    char *why = vm->migration->last.error;
    va_list ap;

    va_start(ap, format);
    g_vsnprintf(why, sizeof(vm->migration->last.error), format, ap);
    va_end(ap);
    log_vm(LOG_LVL_ERROR, vm, "migration: %s", why);
}

/* They may be some 100 MiB: the main loop turns meanwhile. */
void migration_drop_streams(struct migration *m)
{
    GByteArray *out = g_steal_pointer(&m->out);
    uint8_t *in = g_steal_pointer(&m->in);
    uint64_t room = m->room;

    m->got = m->room = 0;
    if (out) {
        pagelist_give_back(out->data, out->len);
        g_byte_array_unref(out);
    }
    if (in) {
        pagelist_give_back(in, room);
        g_free(in);
    }
}

/* ---- what is given up ---- */

/* Has a stream come, which is not loaded, or is one there that is not all read? */
static bool under_way(const struct migration *m)
{
    return (m->state == RESUMING && m->in) || (m->out && !m->handed_over);
}

void migration_give_up(struct vm *vm, const char *why)
{
    struct migration *m = vm->migration;
    bool saved = m->out != NULL;

    m->state = saved ? STOP : ERROR;
    if (!saved || !m->handed_over) { /* else nothing more is asked for */
        failed(vm, "%s", why);
    }
    migration_drop_streams(m); /* last: the VM may be gone when that is done */
}

static uint64_t room_of(const struct migration *m)
{
    return m->out ? MAX(m->out->len, m->saving) : m->got;
}

/* The longest but @but's, of those that nobody is at work with; *all: of all together. */
static struct migration *longest(const struct migration *but, uint64_t *all)
{
    struct migration *most = NULL;

    *all = 0;
    for (GList *l = migrations.head; l; l = l->next) {
        struct migration *m = l->data;

        *all += room_of(m);
        if (m != but && !m->vm->ops.held && (!most || room_of(m) > room_of(most))) {
            most = m;
        }
    }
    return most;
}

/* May the stream of @m become so much longer? */
static bool take_room(struct migration *m, uint64_t more)
{
    uint64_t wanted = room_of(m) + more, all;
    struct migration *other = longest(m, &all);

    while (all > migration_max_streams || more > migration_max_streams - all) {
        if (!other || room_of(other) <= wanted) {
            return false;
        }
        migration_give_up(other->vm, "the states of other VMs need the memory");
        other = longest(m, &all);
    }
    return true;
}

static const char no_room[] = "the states of all migrating VMs are too long together";

static gboolean on_watch(gpointer opaque)
{
    struct migration *m = opaque;

    if (under_way(m) &&
        (m->vm->ops.held || g_get_monotonic_time() - m->came < migration_stalls_us)) {
        return G_SOURCE_CONTINUE; /* it may be just being loaded, or saved */
    }
    m->watch = 0;
    if (under_way(m)) {
        migration_give_up(m->vm, m->out ? "the state was not read for too long"
                                        : "no more of the state was received in time");
    }
    return G_SOURCE_REMOVE;
}

void migration_came(struct migration *m)
{
    m->came = g_get_monotonic_time();
    if (!m->watch) {
        m->watch = g_timeout_add((guint)(migration_stalls_us / 8000), on_watch, m);
    }
}

/* ---- steps ---- */

static int stop(struct vfu_conn *c, struct migration *m)
{
    gint64 since = g_get_monotonic_time();

    m->stopped_at = since;
    datapath_pause(c->vm);
    m->last.quiesce_us = took(&since);
    return 0;
}

/*
 * The word that the VM stands still where it was comes by the link between the hosts,
 * and the state by another way, which may be faster.
 */
static int claim(struct vfu_conn *c, struct migration *m)
{
    int err;

    if (!m->claim_until) {
        m->claim_until = g_get_monotonic_time() + migration_claim_us;
    }
    while ((err = vm_claim(c->vm)) != 0 && coro_self() && !c->why &&
           g_get_monotonic_time() < m->claim_until) {
        if (c->frozen) {
            return VFU_AGAIN; /* a restart does not wait for that: the next daemon does */
        }
        coro_sleep(CLAIM_EVERY_MS);
    }
    m->claim_until = 0;
    return err;
}

/*
 * From what it was begun with, or from what was saved of it.  If it stands still all the
 * same (an administrator's pause) that is as good as ever.
 */
static void ran_on(const struct vm *vm, const struct migration *m)
{
    if ((m->loaded || m->saved) && !atomic_load(&vm->dp.paused)) {
        directory_ran_on(vm, m->loaded ? datapath_stopped_clock(vm) : m->clock);
    }
}

/*
 * Now, when it is saved or runs, not before: since it was loaded others may have run on
 * from the same state, or have given it up.
 */
static void end_past(struct vm *vm, const struct migration *m)
{
    if (m->past || (m->loaded && directory_is_past(vm, datapath_stopped_clock(vm)))) {
        datapath_connections_lost(vm);
    }
}

static int run(struct vfu_conn *c, struct migration *m)
{
    gint64 since = g_get_monotonic_time();
    struct vm *vm = c->vm;
    int err;

    if (m->passed_on) {
        vm->identity.generation += 2; /* as directory_went_on() */
        m->passed_on = false;
    }
    err = m->loaded ? claim(c, m) : 0;
    if (err == VFU_AGAIN) {
        return err;
    }
    if (err) {
        failed(vm, "the addresses are in use elsewhere");
        return EADDRINUSE; /* it may try again */
    }
    if (!directory_may_run(vm)) { /* then none was loaded */
        failed(vm, "its addresses were taken over: it runs elsewhere");
        return EADDRINUSE;
    }
    end_past(vm, m);
    if (m->saved && !m->loaded) {
        directory_went_on(vm);
    }
    m->passed_on = false;
    datapath_resume(vm);
    ran_on(vm, m); /* it does, unless others pause it, too */
    m->last.resume_us = took(&since);
    m->last.still_us = still_for(vm, m);
    m->last.error[0] = '\0';
    if (m->loaded) {
        log_vm(LOG_LVL_INFO, vm, "migrated here");
    }
    m->loaded = m->past = false;
    m->handed_over = m->saved = false;
    return 0;
}

static int save(struct vfu_conn *c, struct migration *m)
{
    gint64 since = g_get_monotonic_time();
    uint64_t len;

    if (!directory_may_run(c->vm)) { /* nor may who begins from its state */
        failed(c->vm, "its addresses were taken over: it runs elsewhere");
        return EADDRINUSE;
    }
    len = vm_state_estimate(c->vm);
    if (!take_room(m, len)) {
        failed(c->vm, "%s", no_room);
        return ENOBUFS;
    }
    end_past(c->vm, m); /* who is begun from it cannot know */
    m->out = g_byte_array_new();
    m->read = 0;
    m->saving = len;
    vm_save(c->vm, m->out);
    m->saving = 0;
    migration_came(m);
    m->saved = !m->past;
    m->passed_on = m->loaded;
    m->clock = datapath_stopped_clock(c->vm);
    m->last = (struct migration_status){
        .kind = MIGRATION_SAVED,
        .bytes = m->out->len,
        .quiesce_us = m->last.quiesce_us,
        .save_us = took(&since),
    };
    if (guest_faulted(&c->vm->guest)) { /* so what it is made of is not to be believed */
        failed(c->vm, "it has a fault");
        migration_drop_streams(m);
        return EIO;
    }
    if (m->out->len > vm_state_max(c->vm)) { /* nobody would take it */
        failed(c->vm, "its state of %u bytes is too long", m->out->len);
        migration_drop_streams(m);
        return E2BIG;
    }
    return 0;
}

static int end_save(struct vfu_conn *c, struct migration *m)
{
    if (m->handed_over) {
        log_vm(LOG_LVL_INFO, c->vm, "its state was handed over: %u bytes", m->out->len);
    }
    migration_drop_streams(m);
    return 0;
}

/*
 * What had moved from here is gone, and what begins here now is another: with the same
 * owner it could take from the VM that runs elsewhere what is that one's.
 */
static void begin_anew(struct vm *vm)
{
    struct migration *m = migration_get(vm);

    memcpy(m->former, vm->identity.owner, sizeof(m->former));
    m->former_generation = vm->identity.generation;
    vm_new_owner(vm);
    m->saved = false;
    if (vm->pauses == 0 && atomic_load(&vm->dp.paused)) { /* resumed in vain before */
        datapath_pause(vm);
        datapath_resume(vm);
    }
    log_vm(LOG_LVL_INFO, vm, "was reset: it begins anew, as another owner");
}

static int begin_load(struct vfu_conn *c, struct migration *m)
{
    struct vm *vm = c->vm;

    device_reset(vm->dev);
    irq_forget_pending(&vm->guest.irq);
    if (vm->moved) {
        begin_anew(vm);
    }
    if (!m->loaded) {
        m->before = vm->identity;
    }
    m->passed_on = false;
    m->handed_over = m->past = m->put_back = false;
    m->last = (struct migration_status){.quiesce_us = m->last.quiesce_us};
    return 0;
}

static int end_load(struct vfu_conn *c, struct migration *m)
{
    gint64 since = g_get_monotonic_time();
    struct vm *vm = c->vm;
    GError *err = NULL;
    bool ok = vm_load(vm, m->in, m->got, &err), was, is, not_run;

    m->last.kind = MIGRATION_LOADED;
    m->last.bytes = m->got;
    m->last.load_us = took(&since);
    migration_drop_streams(m);
    if (!ok) {
        m->state = ERROR;
        failed(vm, "%s", err->message);
        g_error_free(err);
        return EBADMSG;
    }
    gids_wait_anew(vm); /* it came by the VMM, which could say anything */
    m->loaded = true;
    not_run = m->saved && datapath_stopped_clock(vm) == m->clock;
    was = memcmp(m->former, vm->identity.owner, sizeof(m->former)) == 0;
    is = memcmp(m->before.owner, vm->identity.owner, sizeof(vm->identity.owner)) == 0;
    if (was) {
        vm->identity.generation = MAX(vm->identity.generation, m->former_generation + 1);
    }
    if (is) {
        vm->identity.generation = MAX(vm->identity.generation, m->before.generation + 1);
    }
    m->past = (was || is || m->put_back) && !not_run;
    pci_config_set_bus_master(&c->pci, vm->dev->bus_master);
    log_vm(LOG_LVL_INFO, vm, "a state of %" PRIu64 " bytes was loaded", m->last.bytes);
    return 0;
}

static const struct step {
    enum state from, to;
    int (*take)(struct vfu_conn *c, struct migration *m);
} steps[] = {
    {RUNNING, STOP, stop},       {STOP, RUNNING, run},         {STOP, STOP_COPY, save},
    {STOP_COPY, STOP, end_save}, {STOP, RESUMING, begin_load}, {RESUMING, STOP, end_load},
};

static int take_step(struct vfu_conn *c, struct migration *m, enum state to)
{
    for (unsigned i = 0; i < G_N_ELEMENTS(steps); i++) {
        if (steps[i].from == m->state && steps[i].to == to) {
            int err = steps[i].take(c, m);

            m->state = err ? m->state : to;
            return err;
        }
    }
    return EINVAL;
}

/* ---- messages ---- */

int migration_get_state(struct vfu_conn *c, const struct vfu_feature *f,
                        struct vfu_reply *r)
{
    struct vfio_user_mig_device_state data = {
        .device_state = (uint32_t)migration_get(c->vm)->state, .data_fd = -1};

    return feature_answer(f, &data, sizeof(data), r);
}

int migration_set_state(struct vfu_conn *c, const struct vfu_feature *f,
                        struct vfu_reply *r)
{
    struct vfio_user_mig_device_state want;
    struct migration *m = migration_get(c->vm);
    int err = 0;

    if (f->len < sizeof(want)) {
        return EINVAL;
    }
    memcpy(&want, f->data, sizeof(want));
    if (want.device_state == ERROR || want.device_state > RESUMING || m->state == ERROR) {
        return EINVAL;
    }
    while (!err && m->state != want.device_state) {
        err = take_step(c, m, m->state == STOP ? want.device_state : STOP);
    }
    return err ? err : feature_reply(f, f->len, 0, r, NULL);
}

int migration_get_size(struct vfu_conn *c, const struct vfu_feature *f,
                       struct vfu_reply *r)
{
    struct vfio_user_mig_data_size data = {.stop_copy_length = vm_state_estimate(c->vm)};

    return feature_answer(f, &data, sizeof(data), r);
}

int migration_put_back(struct vfu_conn *c, const struct vfu_feature *f,
                       struct vfu_reply *r)
{
    struct migration *m = migration_get(c->vm);

    if (m->state != RESUMING) {
        return EINVAL;
    }
    m->put_back = true;
    return feature_reply(f, f->len, 0, r, NULL);
}

int migration_read(struct vfu_conn *c, const struct vfu_msg *m, struct vfu_reply *r)
{
    struct migration *mig = migration_get(c->vm);
    struct vfio_user_mig_data req;
    uint8_t *out;
    uint32_t n;

    memcpy(&req, m->body, sizeof(req));
    if (mig->state != STOP_COPY || req.size == 0 || req.argsz < sizeof(req) ||
        req.size > req.argsz - sizeof(req)) {
        return EINVAL;
    }
    if (req.size > VFIO_USER_MAX_DATA) {
        return E2BIG;
    }
    n = MIN(req.size, mig->out->len - mig->read);
    if (n && !directory_may_run(c->vm)) {
        failed(c->vm, "its addresses were taken over: it runs elsewhere");
        return EADDRINUSE;
    }
    out = vfu_reply_alloc(r, (uint32_t)sizeof(req) + n);
    if (!out) {
        return ENOMEM;
    }
    mig->handed_over |= n < req.size;
    req = (struct vfio_user_mig_data){.argsz = (uint32_t)sizeof(req) + n, .size = n};
    memcpy(out, &req, sizeof(req));
    if (n) {
        memcpy(out + sizeof(req), mig->out->data + mig->read, n);
    }
    mig->read += n;
    mig->last.done = mig->read;
    migration_came(mig);
    return 0;
}

bool migration_make_room(struct migration *m, uint64_t n)
{
    uint64_t room = MAX(m->room, FIRST_ROOM);
    uint8_t *in;

    if (n <= m->room - m->got) {
        return true;
    }
    while (room - m->got < n) {
        room *= 2;
    }
    in = g_try_realloc(m->in, room);
    if (in) {
        m->in = in;
        m->room = room;
    }
    return in != NULL;
}

int migration_write(struct vfu_conn *c, const struct vfu_msg *m, struct vfu_reply *r)
{
    struct migration *mig = migration_get(c->vm);
    struct vfio_user_mig_data req;
    uint64_t max = vm_state_max(c->vm);

    memcpy(&req, m->body, sizeof(req));
    if (mig->state != RESUMING || m->len - sizeof(req) != req.size ||
        req.argsz < m->len) {
        return EINVAL;
    }
    if (req.size > VFIO_USER_MAX_DATA) {
        return E2BIG;
    }
    if (req.size > max - mig->got) {
        failed(c->vm,
               "a state of more than %" PRIu64 " bytes, which is too long for this VM",
               max);
        return E2BIG;
    }
    if (!take_room(mig, req.size)) {
        migration_give_up(c->vm, no_room);
        return ENOBUFS;
    }
    if (!migration_make_room(mig, req.size)) {
        return ENOMEM;
    }
    if (req.size) { /* else there may be no room at all */
        if (mig->got == 0) {
            /* It may be RESUMING since long before the source stopped. */
            mig->stopped_at = g_get_monotonic_time() - (gint64)mig->last.quiesce_us;
        }
        memcpy(mig->in + mig->got, m->body + sizeof(req), req.size);
        mig->got += req.size;
        mig->last.done = mig->got;
        migration_came(mig);
    }
    return 0;
}

/* ---- the end of it ---- */

void migration_activated(struct vm *vm)
{
    struct migration *m = vm->migration;

    if (m && m->saved) { /* and reset since, so that no RUNNING has said so */
        ran_on(vm, m);
        begin_anew(vm); /* it is nothing to who has the state */
    }
}

/* A state that was loaded and not run is not its own. */
static void forget_loaded(struct vm *vm, struct migration *m)
{
    if (m->loaded) {
        vm_identity_restore(vm, &m->before);
        m->loaded = m->past = m->passed_on = false;
    }
}

void migration_reset(struct vm *vm)
{
    struct migration *m = vm->migration;

    if (vm->moved) {
        begin_anew(vm);
    }
    if (!migration_stopped(vm)) {
        return;
    }
    migration_drop_streams(m);
    forget_loaded(vm, m);
    m->handed_over = false; /* what was saved may be loaded: QEMU resets before that */
    m->state = RUNNING;
    datapath_resume(vm);
}

void migration_leave(struct vm *vm)
{
    struct migration *m = vm->migration;

    if (m) { /* what its VMM had been through is nothing to the next one */
        m->former[0] = m->former[1] = m->former_generation = 0;
        m->claim_until = 0;
        m->saved = false; /* of another VMM's */
    }
    if (!migration_stopped(vm)) {
        return;
    }
    if (m->handed_over && !m->loaded) { /* else it had no addresses here */
        directory_left(vm, m->clock, HOLD_NS);
    }
    m->last.still_us = still_for(vm, m);
    migration_drop_streams(m);
    m->loaded = m->past = m->passed_on = m->handed_over = false;
    m->state = RUNNING; /* vm_detach() gives our pause back */
}
