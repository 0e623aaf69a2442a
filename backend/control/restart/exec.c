/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A restart, as the daemon does it that is replaced.
 *
 * The new program is asked first, in a process of its own, which sections of what this
 * one leaves it reads, and can be started as this one was.  Then everything stands still:
 * nothing is read from any client any more, and vm->ops of each VM is taken, which nobody
 * else ever does of two, as soon as it has nothing in work.  Who has for long is waited
 * for while the others go on, or let go, and then it begins anew: no VM can hold up the
 * others for more than REST_US, so ATTEMPTS times.  That goes for what is no VM's
 * command, too: the data path of all is paused, for which each worker has to come out of
 * its turn, where it may stand in a page fault; and no memory is being freed any more, as
 * the kernel would wait for that.  A VM whose command waits for such a worker is not late
 * by itself: it is not let go for that (struct term).  Who leaves (leave.c) leaves out in
 * its last attempt whoever cannot come along, and waits for workers for longer: the
 * others are kept in any case.  Peers are told that addresses are held.  The state of all
 * of it goes to a memfd, and execve() makes this process the new daemon, with the
 * descriptors that the state names; adopt.c goes on there.
 *
 * Up to execve() nothing has changed that anybody could see but the time, so whatever
 * fails before is undone by letting all go on.  From there on there is no way back: a
 * new daemon that ends takes its VMs' adapters along, as any daemon that ends does.
 *
 * What is not handed over: commands of administrators that are being carried out (only
 * who asked for the restart is answered), memory that is still being unmapped, links to
 * other hosts and TCP connections.  These are made anew: peers are told that addresses
 * are held, and connections go on by their sequence numbers.  Peers are heard out before
 * anything is cut, for a moment: from then on nobody's time runs there.  On this side it
 * does not until they are back (claims_expect_back()).
 *
 * NICs are closed before anything stands still: execve() ends the control threads, and
 * waits for one that is in the kernel.  They are opened anew by the next daemon.
 *
 * Signals are held back from just before execve() until the new daemon listens to them,
 * since one of them would end it before.
 *
 * leave.c does the same for a new daemon in a process of its own.
 */
#include "control/restart/restart.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/grace.h"
#include "base/thread.h"
#include "control/control.h"
#include "control/registry.h"
#include "control/reload.h"
#include "control/restart/internal.h"
#include "datapath/datapath.h"
#include "directory/directory.h"
#include "frontend/frontend.h"
#include "frontend/migration.h"
#include "guest/reaper.h"
#include "guest/restart.h"
#include "handover/handover.h"
#include "handover/manager.h"
#include "transport/link/addresses.h"
#include "transport/rnic/nic.h"
#include "vm/attach.h"

/* How long the new program may take to say that it can do it. */
#define CHECK_MS 10000u
/* Of what it writes no more is looked at. */
#define MAX_WORDS 4096u

/*
 * So long all stand still for those that are not at rest yet; those alone until
 * restart_late_us are over, which is less than QEMU waits for an answer; then they are
 * let go, for which is waited as long again.  So often, as others may be late then.
 */
#define REST_US          (1 * G_USEC_PER_SEC)
#define ATTEMPTS         3u
#define LEAVING_ATTEMPTS 2u /* who is late in the last one is left out */

/*
 * So long the last attempt of who leaves may take for workers, half of it while commands
 * wait for them: without it all is lost.
 */
#define WORKERS_US (20 * G_USEC_PER_SEC)
/* So long they have in any case, for the turns that they are in. */
#define TURNS_US (G_USEC_PER_SEC / 10)

/* For who is let go to be seen as that. */
#define LET_GO_MS 10u

#define DRAIN_MS 500u

/*
 * So long peers wait for the next daemon.  It takes well under a second; but there may be
 * none, as `systemctl stop` looks like a restart, and then they are to hear so soon.
 */
#define PEERS_WAIT_NS (30ull * 1000000000u)

/*
 * Of streams of migrations in the state, all together: what else is in it needs room,
 * too, and the state of one that was just saved is in it twice.
 */
uint64_t restart_max_streams = STATE_OUT_MAX / 4;

gint64 restart_late_us = 4 * G_USEC_PER_SEC;

/*
 * All VMs run meanwhile, so it may be long, for 160 GiB of small pages.  Who leaves takes
 * 122 s at most with this and all else: the unit's TimeoutStopSec= is longer.
 */
gint64 restart_memory_us = 40 * G_USEC_PER_SEC;

static char **arguments; /* argv as it was, with the program's path first */
static bool under_way, stopping, leaving;

void restart_init(char **argv)
{
    g_autofree char *self = g_file_read_link("/proc/self/exe", NULL);

    arguments = g_strdupv(argv);
    if (self && arguments[0]) {
        g_free(arguments[0]);
        arguments[0] = g_steal_pointer(&self);
    }
    stopping = leaving = false;
}

void restart_stop(void)
{
    stopping = true;
    while (under_way || leaving) {
        g_main_context_iteration(NULL, TRUE);
    }
    g_clear_pointer(&arguments, g_strfreev);
}

bool restart_under_way(void)
{
    return under_way;
}

/* ---- the new program ---- */

struct check {
    struct coro *coro;
    GPid pid;
    guint timer;
    int status;
};

static void on_checked(GPid pid, gint status, gpointer opaque)
{
    struct check *c = opaque;

    c->status = status;
    coro_wake(c->coro);
}

static gboolean on_too_late(gpointer opaque)
{
    struct check *c = opaque;

    c->timer = 0;
    kill(c->pid, SIGKILL);
    return G_SOURCE_REMOVE;
}

/*
 * What it has written, as far as that is looked at, to be freed.  It has ended: what does
 * not fit into the pipe has kept it from that.
 */
static char *words_of(int fd)
{
    char *text = g_malloc(MAX_WORDS);
    ssize_t n;

    fcntl(fd, F_SETFL, O_NONBLOCK);
    n = read(fd, text, MAX_WORDS - 1);
    text[MAX(n, 0)] = 0;
    close(fd);
    return text;
}

/* The last line of @text, to be freed. */
static char *last_line(char *text)
{
    const char *line;

    g_strchomp(text);
    line = strrchr(text, '\n');
    return g_utf8_make_valid(line ? line + 1 : text, -1);
}

char *restart_sections(void)
{
    static const uint32_t tags[] = {RESTART_HEAD, RESTART_SOCKET, RESTART_VM,
                                    RESTART_CLOSING};
    GString *text = g_string_new(NULL);

    for (unsigned i = 0; i < G_N_ELEMENTS(tags); i++) {
        state_section_name(text, tags[i], RESTART_SECTION_VERSION);
    }
    config_vm_key_names(text); /* one that is not known would cost each VM its adapter */
    vm_state_sections(text);
    return g_string_free(text, FALSE);
}

/* What @answer, the new program's, lacks of what is handed over, to be freed, or NULL. */
static char *not_read(const char *answer)
{
    g_autofree char *sections = restart_sections();
    g_auto(GStrv) ours = g_strsplit(g_strchomp(sections), "\n", -1);
    g_auto(GStrv) theirs = g_strsplit(answer, "\n", -1);

    for (char **line = ours; *line; line++) {
        if (!g_strv_contains((const char *const *)theirs, *line)) {
            return g_strdup(*line);
        }
    }
    return NULL;
}

bool restart_check_program(GError **errp)
{
    g_autoptr(GPtrArray) argv = g_ptr_array_new();
    g_autofree char *option = g_strdup_printf("--can-adopt=%u", HANDOVER_VERSION);
    g_autofree char *answer = NULL, *words = NULL, *why = NULL, *lacks = NULL;
    struct check c = {.coro = coro_self()};
    int out_fd, err_fd;

    for (char **a = arguments; *a; a++) {
        g_ptr_array_add(argv, *a);
    }
    g_ptr_array_add(argv, option);
    g_ptr_array_add(argv, NULL);
    if (!g_spawn_async_with_pipes(NULL, (char **)argv->pdata, NULL,
                                  G_SPAWN_DO_NOT_REAP_CHILD |
                                      G_SPAWN_LEAVE_DESCRIPTORS_OPEN |
                                      G_SPAWN_CLOEXEC_PIPES,
                                  NULL, NULL, &c.pid, NULL, &out_fd, &err_fd, errp)) {
        return false;
    }
    g_child_watch_add(c.pid, on_checked, &c);
    c.timer = g_timeout_add(CHECK_MS, on_too_late, &c);
    coro_yield();
    if (c.timer) {
        g_source_remove(c.timer);
    }
    g_spawn_close_pid(c.pid);
    answer = words_of(out_fd);
    words = words_of(err_fd);
    why = last_line(words);
    if (WIFEXITED(c.status) && WEXITSTATUS(c.status) == 0) {
        lacks = not_read(answer);
        if (!lacks) {
            return true;
        }
        g_clear_pointer(&why, g_free);
        why = g_strdup_printf("it does not report support for \"%s\"", lacks);
    }
    g_set_error(errp, PVRDMA_ERROR, 0, "%s cannot take over: %s", arguments[0],
                !c.timer ? "it did not report in time whether it can"
                : *why   ? why
                         : "it reports no reason");
    return false;
}

/* ---- how long is waited ---- */

/* Nothing is handed over any more: the daemon ends, or (@all) leaves. */
static bool must_end(bool all)
{
    return stopping || (all && leaving);
}

/* False: @done(@arg) is not so until then, or it must end. */
static bool wait_until(bool (*done)(uint64_t arg), uint64_t arg, bool all, gint64 until)
{
    while (!done(arg)) {
        if (g_get_monotonic_time() >= until || must_end(all)) {
            return false;
        }
        coro_sleep(1);
    }
    return true;
}

/* Has each worker been between two turns since?  False: not until then. */
static bool wait_for_workers(bool all, gint64 until)
{
    return wait_until(grace_is_over, grace_begin(), all, until);
}

/*
 * The time of those that are late.  It does not run while a worker stands in its turn, as
 * their commands may wait for that, in a grace period or for a lock, whichever VM it
 * serves; but it ends.
 */
struct term {
    gint64 until;    /* put off for as long as workers stood */
    gint64 end;      /* but not beyond this */
    gint64 began;    /* when @period did */
    uint64_t period; /* all workers have to pass this one now */
    bool waited;     /* one of them had not, when last looked at */
    bool stands;     /* ... for long */
};

static struct term term_begin(gint64 us, gint64 most)
{
    gint64 now = g_get_monotonic_time();

    return (struct term){now + us, now + most, now, grace_begin(), false, false};
}

/* To be asked again and again. */
static bool term_is_over(struct term *t)
{
    gint64 now = g_get_monotonic_time(), took = now - t->began;
    bool passed = grace_is_over(t->period);

    t->stands = !passed && took > TURNS_US;
    if (passed && t->waited && took > TURNS_US) { /* not this thread was late */
        t->until = MIN(t->until + took, t->end);
    }
    t->waited = !passed;
    if (passed) {
        t->period = grace_begin();
        t->began = now;
    }
    return now >= (t->stands ? t->end : t->until);
}

/* ---- standing still ---- */

/* Why the VM cannot be handed over; NULL: it can. */
static const char *cannot_go(struct vm *vm)
{
    return vm->attached && !guest_can_hand_over(&vm->guest)
               ? "its memory is a file whose descriptor was not kept"
               : NULL;
}

/*
 * Is no message of the VM in work, nor anything of an administrator's, nor is its client
 * being let go, or about to be, nor the VM removed?
 */
static bool at_rest(const struct vm *vm)
{
    return !vm->gone &&
           (!vm->conn || (frontend_connected(vm) && !guest_faulted(&vm->guest))) &&
           !vm->ops.held;
}

/* Of those that stand still the one with the longest stream, or NULL. */
static struct vm *longest(const GPtrArray *frozen)
{
    struct vm *most = NULL;

    for (guint i = 0; i < frozen->len; i++) {
        struct vm *vm = frozen->pdata[i];

        if (migration_stream_bytes(vm) > (most ? migration_stream_bytes(most) : 0)) {
            most = vm;
        }
    }
    return most;
}

/*
 * All that come along stand still.  Streams are given up where they are too long
 * together, the longest first: their VMs go on where they are, and nobody else's restart
 * fails for them.  From here on it can fail for a fault of just now, a worker that stands
 * in a page fault or the kernel's refusal.
 */
static void shed_streams(const GPtrArray *frozen)
{
    uint64_t streams = 0;
    struct vm *vm;

    for (guint i = 0; i < frozen->len; i++) {
        streams += migration_stream_bytes(frozen->pdata[i]);
    }
    while (streams > restart_max_streams && (vm = longest(frozen))) {
        streams -= migration_stream_bytes(vm);
        migration_give_up(vm,
                          "its state is too long to be handed over to the next daemon");
    }
}

/* By its serial number, as it may go while we wait. */
static struct vm *find(uint64_t serial)
{
    struct vm *vm = registry_next(serial - 1);

    return vm && vm->serial == serial ? vm : NULL;
}

static void freeze(GArray *late)
{
    uint64_t serial = 0;
    struct vm *vm;

    while ((vm = registry_next(serial))) {
        serial = vm->serial;
        frontend_freeze(vm);
        g_array_append_val(late, serial);
    }
}

static void leave_out(struct vm *vm, const char *why)
{
    log_vm(LOG_LVL_ERROR, vm, "cannot be handed over to the next daemon: %s", why);
}

/*
 * Take vm->ops of those in @late that are at rest by now: they leave it for @frozen, or
 * (@out) are left out if they cannot be handed over.  False: one of them cannot, with
 * errp.
 */
static bool take_all(GArray *late, GPtrArray *frozen, bool out, GError **errp)
{
    for (guint i = 0; i < late->len;) {
        struct vm *vm = find(g_array_index(late, uint64_t, i));
        const char *why;

        if (vm && !at_rest(vm)) {
            i++;
            continue;
        }
        g_array_remove_index(late, i);
        if (!vm) {
            continue;
        }
        coro_lock(&vm->ops);
        frontend_freeze(vm); /* what came of its last message, too */
        g_ptr_array_add(frozen, vm);
        why = cannot_go(vm);
        if (why && out) {
            leave_out(vm, why);
            g_ptr_array_remove(frozen, vm);
            coro_unlock(&vm->ops);
        } else if (why) {
            g_set_error(errp, PVRDMA_ERROR, 0, "VM %s: %s", vm->cfg->name, why);
            return false;
        }
    }
    return true;
}

static void leave_all_out(GArray *late)
{
    for (guint i = 0; i < late->len; i++) {
        struct vm *vm = find(g_array_index(late, uint64_t, i));

        if (vm) {
            leave_out(vm, "it does not stop in time");
        }
    }
    g_array_set_size(late, 0);
}

/*
 * All stop, and are waited for together.  False: with errp, or @late are not at rest.
 * @out: who cannot come along is left out.
 */
static bool stand_still(GArray *late, GPtrArray *frozen, bool out, struct term *term,
                        GError **errp)
{
    freeze(late);
    while (take_all(late, frozen, out, errp)) {
        bool over = late->len && term_is_over(term);

        if (out && over) {
            leave_all_out(late);
        }
        if (late->len == 0) {
            return true;
        }
        if (over || must_end(false)) {
            return false;
        }
        coro_sleep(1);
    }
    return false;
}

static gboolean on_late(gpointer serial)
{
    struct vm *vm = find(GPOINTER_TO_SIZE(serial));

    if (vm && !at_rest(vm)) {
        frontend_disconnect(vm, "it delays a restart");
    }
    return G_SOURCE_REMOVE;
}

static gboolean on_unfit(gpointer serial)
{
    struct vm *vm = find(GPOINTER_TO_SIZE(serial));

    if (vm) {
        frontend_disconnect(vm, "the daemon ends");
    }
    return G_SOURCE_REMOVE;
}

/* Not from this coroutine, which would wait for its end; a busy loop has its turn. */
static void let_go(GSourceFunc how, uint64_t serial)
{
    g_idle_add_full(G_PRIORITY_DEFAULT, how, GSIZE_TO_POINTER(serial), NULL);
}

/*
 * Wait for those in @late: when at rest they leave it, and go on.  True: the rest is late
 * by itself.  A daemon that leaves does not wait longer for workers, and lets nobody go.
 */
static bool wait_for(GArray *late, bool all)
{
    struct term term = term_begin(restart_late_us, (all ? 2 : 1) * restart_late_us);

    while (late->len && !must_end(all)) {
        if (term_is_over(&term)) {
            return !term.stands && term.until < term.end;
        }
        coro_sleep(10);
        for (guint i = late->len; i > 0; i--) {
            struct vm *vm = find(g_array_index(late, uint64_t, i - 1));

            if (!vm || at_rest(vm)) {
                g_array_remove_index(late, i - 1);
            }
            if (vm && at_rest(vm)) {
                frontend_thaw(vm); /* others may be late for longer */
            }
        }
    }
    return false;
}

/* ... and let those go that are not; who leaves leaves them out in its next attempt. */
static void settle(GArray *late, bool all)
{
    if (wait_for(late, all)) {
        for (guint i = 0; i < late->len; i++) {
            let_go(on_late, g_array_index(late, uint64_t, i));
        }
        wait_for(late, all);
    }
}

/* ---- what is no VM's command ---- */

/*
 * Memory that is being freed while the program is replaced, or ends, is waited for by the
 * kernel, when all VMs are at rest.
 */
static bool memory_is_freed(uint64_t unused)
{
    return reaper_is_idle() && !discard_is_freeing();
}

static bool wait_for_memory(bool all, gint64 until)
{
    return wait_until(memory_is_freed, 0, all, until);
}

/* None of the clients can add to it; what waits to be closed goes along with execve(). */
static bool no_more_is_freed(bool all, gint64 until)
{
    if (all) {
        discard_stop();
    }
    return wait_for_memory(all, until);
}

/* What is closed does not go along: it is closed here. */
static void close_on(void)
{
    uint64_t serial = 0;
    struct vm *vm;

    discard_go_on();
    while ((vm = registry_next(serial))) {
        serial = vm->serial;
        frontend_closing_go_on(vm);
    }
}

/* Those that cannot be handed over lose their VMM before anybody stands still. */
static void let_unfit_go(void)
{
    uint64_t serial = 0;
    bool any = false;
    struct vm *vm;

    while ((vm = registry_next(serial))) {
        const char *why = vm->gone ? NULL : cannot_go(vm);

        serial = vm->serial;
        if (why) {
            leave_out(vm, why);
            let_go(on_unfit, serial);
            any = true;
        }
    }
    if (any) {
        coro_sleep(LET_GO_MS);
    }
}

/* Let all go on; those in @but stay as they are, and nothing is read from them. */
static void thaw(GPtrArray *frozen, const GArray *but, bool paused)
{
    uint64_t serial = 0;
    struct vm *vm;

    close_on();
    for (guint i = 0; i < frozen->len; i++) {
        vm = frozen->pdata[i];
        if (paused) {
            datapath_resume(vm);
        }
        coro_unlock(&vm->ops);
    }
    g_ptr_array_set_size(frozen, 0);
    while ((vm = registry_next(serial))) {
        bool stays = false;

        serial = vm->serial;
        for (guint i = 0; but && i < but->len; i++) {
            stays |= g_array_index(but, uint64_t, i) == serial;
        }
        if (!stays) {
            frontend_thaw(vm);
        }
    }
}

void restart_thaw_all(GPtrArray *frozen, bool paused)
{
    thaw(frozen, NULL, paused);
}

static struct vm *faulted_of(const GPtrArray *frozen)
{
    for (guint i = 0; i < frozen->len; i++) {
        struct vm *vm = frozen->pdata[i];

        if (vm->conn && guest_faulted(&vm->guest)) {
            return vm;
        }
    }
    return NULL;
}

bool restart_leave_faulted_out(GPtrArray *frozen)
{
    struct vm *vm;
    bool any = false;

    while ((vm = faulted_of(frozen))) {
        leave_out(vm, "it has a fault");
        g_ptr_array_remove(frozen, vm);
        coro_unlock(&vm->ops);
        any = true;
    }
    return any;
}

/*
 * Name the VMs whose workers have not passed since: a VMM makes a hole of many GiB in a
 * guest's memory, or the machine swaps.
 */
static void name_stuck(uint64_t since)
{
    uint64_t serial = 0;
    bool any = false;
    struct vm *vm;

    while ((vm = registry_next(serial))) {
        serial = vm->serial;
        if (datapath_in_turn(vm, since)) {
            log_vm(LOG_LVL_WARN, vm,
                   "delays a restart: its worker waits for a page of its memory, or of a "
                   "VM that it sends to");
            any = true;
        }
    }
    if (!any) {
        log_msg(LOG_LVL_WARN,
                "a worker delays a restart: its turn takes long; the VM is not known");
    }
}

/*
 * They ran until here.  False: a worker does not come to rest, or one got a fault, and is
 * let go first.
 */
static bool pause_all(GPtrArray *frozen, bool all, bool out, gint64 until)
{
    uint64_t period;

    for (guint i = 0; i < frozen->len; i++) {
        datapath_pause_begin(frozen->pdata[i], PEERS_WAIT_NS);
    }
    period = grace_begin();
    until = MAX(until, g_get_monotonic_time() + TURNS_US);
    if (!wait_until(grace_is_over, period, all, until)) {
        if (!must_end(all)) {
            name_stuck(period);
        }
        return false;
    }
    for (guint i = 0; i < frozen->len; i++) {
        datapath_pause_end(frozen->pdata[i], PEERS_WAIT_NS);
    }
    if (out) {
        restart_leave_faulted_out(frozen);
    }
    return !faulted_of(frozen);
}

/* Name the VMs that are late, or the VM whose worker they may wait for. */
static void name_late(const GArray *late, const struct term *term)
{
    if (late->len && term->stands) {
        name_stuck(term->period);
        return;
    }
    for (guint i = 0; i < late->len; i++) {
        struct vm *vm = find(g_array_index(late, uint64_t, i));

        if (vm) {
            log_vm(LOG_LVL_WARN, vm, "delays a restart: a command takes long");
        }
    }
}

bool restart_freeze_all(GPtrArray *frozen, bool all, gint64 *since, GError **errp)
{
    g_autoptr(GArray) late = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    g_autoptr(GError) err = NULL;
    unsigned n = all ? ATTEMPTS : LEAVING_ATTEMPTS;

    wait_for_memory(all, g_get_monotonic_time() + restart_memory_us);
    for (unsigned i = 0; i < n && !(err && all) && !must_end(all); i++) {
        bool out = !all && i + 1 == n, paused = false;
        struct term term;
        gint64 until;

        g_clear_error(&err);
        if (!all) {
            let_unfit_go();
        }
        g_array_set_size(late, 0);
        *since = g_get_monotonic_time();
        term = term_begin(REST_US, out ? WORKERS_US / 2 : REST_US);
        if (stand_still(late, frozen, out, &term, &err) &&
            (no_more_is_freed(all, *since + REST_US) || out)) {
            shed_streams(frozen); /* before anybody's data path waits for that */
            paused = true;
            if (pause_all(frozen, all, out, out ? *since + WORKERS_US : term.end)) {
                claims_be_heard();
                return true;
            }
        }
        thaw(frozen, err ? NULL : late, paused);
        name_late(late, &term);
        if (!err && late->len) {
            settle(late, all);
        } else if (!err && i + 1 < n) {
            until = g_get_monotonic_time() + restart_late_us; /* all go on meanwhile */
            wait_for_workers(all, until);
            wait_for_memory(all, until);
        }
    }
    thaw(frozen, NULL, false);
    if (!err) {
        g_set_error(&err, PVRDMA_ERROR, 0,
                    must_end(all)         ? "the daemon ends"
                    : !memory_is_freed(0) ? "memory of VMs is still being freed"
                                          : "VMs do not stop in time");
    }
    g_propagate_error(errp, g_steal_pointer(&err));
    return false;
}

/* ---- the state ---- */

struct keys {
    struct handover_out *h;
    unsigned n;
};

static void count_key(void *opaque, const char *key, const char *value)
{
    struct keys *k = opaque;

    k->n++;
}

static void put_key(void *opaque, const char *key, const char *value)
{
    struct keys *k = opaque;

    state_put_text(&k->h->s, key);
    state_put_text(&k->h->s, value);
}

static void save_vm(struct vm *vm, struct handover_out *h)
{
    g_autoptr(GByteArray) device = g_byte_array_new();
    struct keys keys = {.h = h};

    state_put_text(&h->s, vm->cfg->name);
    state_put_u8(&h->s, vm->cfg->from_file);
    config_vm_keys(vm->cfg, count_key, &keys);
    state_put_u32(&h->s, keys.n);
    config_vm_keys(vm->cfg, put_key, &keys);
    state_put_u64(&h->s, vm->attaches);
    state_put_u64(&h->s, vm->faults);
    frontend_hand_over(vm, h);
    if (frontend_connected(vm) && vm->attached) {
        vm_save(vm, device);
        state_put_u8(&h->s, vm->admin_paused);
        state_put_u64(&h->s, device->len);
        state_put_bytes(&h->s, device->data, device->len);
    }
    migration_hand_over(vm, &h->s);
    directory_left_hand_over(vm, &h->s);
}

static void begin(struct handover_out *h, uint32_t tag)
{
    state_section_begin(&h->s, tag, RESTART_SECTION_VERSION, 0);
}

static void save_closing(const GPtrArray *frozen, struct handover_out *h)
{
    begin(h, RESTART_CLOSING);
    state_put_u32(&h->s, frozen->len);
    for (guint i = 0; i < frozen->len; i++) {
        struct vm *vm = frozen->pdata[i];

        state_put_text(&h->s, vm->cfg->name);
        frontend_closing_hand_over(vm, h);
    }
    discard_forgotten_hand_over(h);
    state_section_end(&h->s);
}

int restart_save(GPtrArray *frozen, struct handover_out *h, gint64 since, int client,
                 GError **errp)
{
    handover_out_begin(h);
    begin(h, RESTART_HEAD);
    state_put_u64(&h->s, (uint64_t)since);
    handover_put_fd(h, client);
    state_section_end(&h->s);
    begin(h, RESTART_SOCKET);
    control_hand_over(h);
    state_section_end(&h->s);
    for (guint i = 0; i < frozen->len; i++) {
        struct vm *vm = frozen->pdata[i];

        begin(h, RESTART_SOCKET);
        frontend_listener_hand_over(vm->listener, h);
        state_section_end(&h->s);
    }
    for (guint i = 0; i < frozen->len; i++) {
        begin(h, RESTART_VM);
        save_vm(frozen->pdata[i], h);
        state_section_end(&h->s);
        coro_breathe();
    }
    if (!leaving) { /* when nothing more happens */
        save_closing(frozen, h);
    }
    if (faulted_of(frozen)) { /* so what it has left is not to be believed */
        g_set_error(errp, PVRDMA_ERROR, 0, "VM %s has a fault, and is disconnected first",
                    faulted_of(frozen)->cfg->name);
        return -1;
    }
    return handover_seal(h, errp);
}

/* ---- the step ---- */

void restart_hold_signals(sigset_t *old)
{
    sigset_t ours;

    thread_main_signals(&ours);
    pthread_sigmask(SIG_BLOCK, &ours, old);
}

/* Returns if it fails. */
static void become(const struct handover_out *h, int memfd, GError **errp)
{
    g_autofree char *number = g_strdup_printf("%d", memfd);
    g_auto(GStrv) env = g_environ_setenv(g_get_environ(), RESTART_ENV, number, TRUE);
    sigset_t old;
    int err;

    if (stopping || leaving) {
        g_set_error(errp, PVRDMA_ERROR, 0, "the daemon ends");
        return;
    }
    log_drain(DRAIN_MS);
    restart_hold_signals(&old);
    handover_keep(h, memfd, true);
    execve(arguments[0], arguments, env);
    err = errno;
    handover_keep(h, memfd, false);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    g_set_error(errp, PVRDMA_ERROR, 0, "%s: %s", arguments[0], g_strerror(err));
}

static void hand_over(int client, GError **errp)
{
    g_autoptr(GPtrArray) frozen = g_ptr_array_new();
    gint64 since;
    struct handover_out h;
    bool closed = rnic_nics_suspend(restart_stopping, errp);
    bool paused = closed && restart_freeze_all(frozen, true, &since, errp);
    int memfd;

    if (paused) {
        memfd = restart_save(frozen, &h, since, client, errp);
        if (memfd >= 0) {
            become(&h, memfd, errp);
            close(memfd);
        }
        handover_out_clear(&h);
    }
    restart_thaw_all(frozen, paused);
    if (!stopping) {
        rnic_nics_resume();
    }
}

static bool begin_alone(GError **errp)
{
    if (under_way || stopping || !arguments) {
        g_set_error(errp, PVRDMA_ERROR, 0,
                    under_way ? "a restart is under way"
                              : "the daemon is starting or stopping");
        return false;
    }
    under_way = true;
    reload_lock();
    return true;
}

/* Who is about to leave may be waiting for this; restart_stop() waits for both. */
static void end_alone(void)
{
    reload_unlock();
    under_way = false;
}

bool restart_begin_leaving(void)
{
    leaving = true;
    while (under_way) {
        coro_sleep(1);
    }
    leaving = begin_alone(NULL);
    return leaving;
}

void restart_end_leaving(void)
{
    end_alone();
    leaving = false;
}

bool restart_stopping(void)
{
    return stopping;
}

void restart_run(int client, GError **errp)
{
    g_autoptr(GError) err = NULL;
    g_autofree char *state = NULL;

    if (begin_alone(&err)) {
        if (restart_check_program(&err)) {
            log_msg(LOG_LVL_INFO, "%s takes over", arguments[0]);
            state = g_strdup_printf("RELOADING=1\nMONOTONIC_USEC=%" G_GINT64_FORMAT,
                                    g_get_monotonic_time());
            manager_notify(state, false);
            hand_over(client, &err);
            manager_notify("READY=1", false);
        }
        end_alone();
    }
    log_msg(LOG_LVL_ERROR, "not restarted: %s", err->message);
    g_propagate_error(errp, g_steal_pointer(&err));
}
