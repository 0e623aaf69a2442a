/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A restart, as the daemon does it that takes the other's place: exec.c has the rest,
 * and leave.c, where that was another process, and the service manager keeps what it
 * left.
 *
 * Listening sockets come first, so that whoever listens at the same path gets the old
 * one, with the clients that wait in it.  Then VMs are declared as they were, whatever
 * the key file says by now, since a VMM is connected; the file is followed afterwards, as
 * in a reload.  Each is attached to the connection it had, its guest's memory is mapped
 * and its device loaded.  They go on when all of the daemon is up, first all claims, then
 * all data paths: two VMs that are connected meet again.
 *
 * A VM that cannot be had loses its connection and is declared all the same.
 *
 * Outside coroutines: nobody else is served yet.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "control/control.h"
#include "control/registry.h"
#include "control/restart/internal.h"
#include "control/restart/restart.h"
#include "datapath/datapath.h"
#include "directory/directory.h"
#include "frontend/frontend.h"
#include "frontend/migration.h"
#include "guest/budget.h"
#include "guest/doorbells.h"
#include "handover/manager.h"
#include "handover/sockfile.h"
#include "transport/link/addresses.h"
#include "vm/attach.h"

/* The keys of a VM, at most, and sockets: one for each, and the administrator's. */
#define MAX_KEYS 64u

static char *number;                 /* of the memfd, as text */
static GArray *kept;                 /* sockets that the service manager has kept */
static struct handover_in *handover; /* NULL: it is no restart */
static GArray *sections;             /* of struct state_section: the VMs */
static gint64 since;                 /* monotonic us: when all stood still */
static struct state_section closing; /* what waits to be closed; tag 0: nothing */
static int client = -1;              /* who waits for the answer */

struct adopted {
    struct vm *vm; /* with this serial number, unless it was removed */
    uint64_t serial;
    char *why; /* it cannot go on; NULL: it can */
    bool admin_paused;
};
static GArray *adopted; /* of struct adopted */

bool adopt_answer(const char *version, GError **errp)
{
    g_autofree char *ours = g_strdup_printf("%u", HANDOVER_VERSION);
    g_autofree char *sections = restart_sections();

    if (strcmp(version, ours) != 0) {
        g_set_error(errp, PVRDMA_ERROR, 0, "it reads handover version %s, not %s", ours,
                    version);
        return false;
    }
    if (fputs(sections, stdout) < 0 || fflush(stdout) != 0) {
        g_set_error(errp, PVRDMA_ERROR, 0, "stdout: %s", g_strerror(errno));
        return false;
    }
    return true;
}

/* ---- reading ---- */

static bool is_known(uint32_t tag)
{
    return tag == RESTART_HEAD || tag == RESTART_SOCKET || tag == RESTART_VM ||
           tag == RESTART_CLOSING;
}

static void take_section(struct state_section *section)
{
    struct state_in *s = &section->in;

    if (!is_known(section->tag)) {
        if (!(section->flags & STATE_OPTIONAL)) {
            state_fail(s, "unknown section %#x", section->tag);
        }
    } else if (section->version != RESTART_SECTION_VERSION) {
        state_fail(s, "unknown version %u of a section", section->version);
    } else if (section->tag == RESTART_HEAD) {
        since = (gint64)state_get_u64(s);
        client = handover_get_fd(handover, s);
    } else if (section->tag == RESTART_SOCKET) {
        sockfile_take_over(handover, s);
    } else if (section->tag == RESTART_VM) {
        g_array_append_val(sections, *section);
    } else {
        closing = *section;
    }
}

void adopt_init(void)
{
    number = g_strdup(g_getenv(RESTART_ENV));
    g_unsetenv(RESTART_ENV);
    kept = manager_kept(RESTART_KEPT_NAME);
}

/*
 * The first one that has something: there is one at most, unless the manager has missed
 * that others were read.  From here on what is in them is in this process only: a signal
 * that ended it now would end all adapters, so they wait until the daemon listens to
 * them.
 */
static void open_kept(void)
{
    if (kept->len) {
        restart_hold_signals(NULL);
    }
    for (guint i = 0; i < kept->len; i++) {
        int sock = g_array_index(kept, int, i);
        g_autoptr(GError) err = NULL;

        if (handover) {
            log_msg(LOG_LVL_WARN, "the service manager stored more than one state");
        } else {
            handover = handover_receive(sock, &err);
        }
        if (err) {
            log_msg(LOG_LVL_ERROR, "the state that the service manager stored: %s",
                    err->message);
        }
        handover_drain(sock);
        close(sock);
    }
    if (kept->len) {
        manager_notify("FDSTOREREMOVE=1\nFDNAME=" RESTART_KEPT_NAME, false);
    }
    g_clear_pointer(&kept, g_array_unref);
}

/* What execve() has left. */
static bool open_left(GError **errp)
{
    guint64 fd;

    if (!g_ascii_string_to_unsigned(number, 10, 0, INT32_MAX, &fd, NULL)) {
        g_set_error(errp, PVRDMA_ERROR, 0, RESTART_ENV "=%s is not a descriptor number",
                    number);
        return false;
    }
    handover = handover_open((int)fd, errp);
    return handover != NULL;
}

/* False: it cannot be used, for the reason that the stream has. */
static bool read_sections(void)
{
    struct state_in *s = handover_stream(handover);
    struct state_section section;

    sections = g_array_new(FALSE, FALSE, sizeof(struct state_section));
    while (state_section_next(s, &section)) {
        take_section(&section);
    }
    return !state_failed(s);
}

bool adopt_open(GError **errp)
{
    const char *why;

    open_kept();
    if (number && !handover && !open_left(errp)) {
        return false;
    }
    if (!handover || read_sections()) {
        return true;
    }
    why = handover_stream(handover)->error;
    if (number) {
        g_set_error(errp, PVRDMA_ERROR, 0, "the state of the former daemon: %s", why);
        return false;
    }
    log_msg(LOG_LVL_ERROR, "the state that the service manager stored: %s", why);
    sockfile_drop_rest();
    g_clear_pointer(&sections, g_array_unref);
    handover_close(g_steal_pointer(&handover));
    return true;
}

/* ---- VMs ---- */

static struct vm_config *read_config(const struct daemon_config *cfg, struct state_in *s)
{
    g_autofree char *name = state_get_text(s);
    bool from_file = state_get_bool(s);
    uint32_t n = state_get_count(s, MAX_KEYS, 8);
    g_autoptr(GError) err = NULL;
    struct vm_config *vm = config_vm_new(cfg, name, &err);

    for (uint32_t i = 0; i < n && vm && !err; i++) {
        g_autofree char *key = state_get_text(s), *value = state_get_text(s);

        if (!state_failed(s)) {
            config_vm_set(vm, key, value, &err);
        }
    }
    if (err || state_failed(s)) {
        state_fail(s, "VM \"%s\": %s", name, err ? err->message : "malformed keys");
        config_vm_free(vm);
        return NULL;
    }
    vm->from_file = from_file;
    if (!config_vm_finish(cfg, vm, &err)) {
        log_msg(LOG_LVL_WARN, "VM %s: %s; it is served nevertheless", name, err->message);
        vm->workers = 0;
    }
    return vm;
}

static void load_device(struct adopted *a, struct state_in *s)
{
    g_autoptr(GError) err = NULL;
    uint64_t len;

    a->admin_paused = state_get_bool(s);
    len = state_get_u64(s);
    if (len > s->left) {
        state_fail(s, "it ends too early");
        return;
    }
    if (!vm_load(a->vm, s->at, len, &err)) {
        state_fail(s, "%s", err->message);
    } else {
        s->at += len;
        s->left -= len;
    }
}

/* What its VMM and its guest had. */
static void adopt_connection(struct adopted *a, struct state_in *s)
{
    struct vm *vm = a->vm;
    int memfd;

    if (frontend_take_over(vm, handover, s, &memfd) && vm->attached) {
        load_device(a, s);
    }
    migration_take_over(vm, s);
    directory_left_take_over(vm, s);
    state_all_read(s);
    if (vm->attached && !state_failed(s)) {
        if (doorbells_adopt(&vm->guest.db, memfd)) {
            memfd = -1;
        } else {
            state_fail(s, "its doorbells cannot be mapped");
        }
    }
    if (memfd >= 0) {
        close(memfd);
    }
}

static void adopt_vm(const struct daemon_config *cfg, struct state_in *s)
{
    struct vm_config *config = read_config(cfg, s);
    g_autofree char *name = config ? g_strdup(config->name) : NULL;
    g_autoptr(GError) err = NULL;
    struct adopted a = {0};

    if (!config) {
        log_msg(LOG_LVL_ERROR, "a VM is lost in the restart: %s", s->error);
        return;
    }
    a.vm = registry_add(config, &err);
    if (!a.vm) {
        log_msg(LOG_LVL_ERROR, "a VM is lost in the restart: %s", err->message);
        registry_fail(name, err->message);
        return;
    }
    a.vm->attaches = state_get_u64(s);
    a.vm->faults = state_get_u64(s);
    frontend_freeze(a.vm);
    /* What a daemon has let it have, with other limits maybe, it keeps. */
    budget_trust(true);
    adopt_connection(&a, s);
    budget_trust(false);
    if (state_failed(s)) {
        a.why = g_strdup(s->error);
    }
    a.serial = a.vm->serial;
    g_array_append_val(adopted, a);
}

bool adopt_vms(const struct daemon_config *cfg)
{
    if (!handover) {
        return false;
    }
    adopted = g_array_new(FALSE, FALSE, sizeof(struct adopted));
    for (guint i = 0; i < sections->len; i++) {
        struct state_in s = g_array_index(sections, struct state_section, i).in;
        char error[STATE_ERROR_MAX] = "";

        s.error = error; /* of this VM alone */
        adopt_vm(cfg, &s);
    }
    return true;
}

/* ---- going on ---- */

/* Those without a VMM may have been removed since, as the key file wants it. */
static void forget_removed(void)
{
    for (guint i = adopted->len; i > 0; i--) {
        struct adopted *a = &g_array_index(adopted, struct adopted, i - 1);

        if (registry_next(a->serial - 1) != a->vm || a->vm->gone) {
            g_free(a->why);
            g_array_remove_index(adopted, i - 1);
        }
    }
}

/* The VM lives without its VMM. */
static void give_up(struct adopted *a)
{
    log_vm(LOG_LVL_ERROR, a->vm, "is lost in the restart: %s", a->why);
    frontend_disconnect(a->vm, "the new daemon cannot serve it");
    g_free(a->why);
}

static void claim(struct adopted *a)
{
    if (a->vm->attached && !a->why && migration_owns(a->vm) && vm_claim(a->vm) != 0) {
        a->why = g_strdup("one of its addresses is in use elsewhere");
    }
}

static void resume(struct adopted *a)
{
    struct vm *vm = a->vm;

    if (vm->attached && !a->why) {
        if (a->admin_paused) {
            vm->admin_paused = true;
            datapath_pause(vm);
        }
        datapath_resume(vm);
    }
}

/* What the former daemon would have closed; that of a VM that is lost is nobody's. */
static void take_closing(void)
{
    struct state_in *s = &closing.in;
    char error[STATE_ERROR_MAX] = "";
    uint32_t n;

    if (!closing.tag) {
        return;
    }
    s->error = error;
    n = state_get_count(s, UINT32_MAX, 12);
    for (uint32_t i = 0; i < n && !state_failed(s); i++) {
        g_autofree char *name = state_get_text(s);
        struct vm *vm = state_failed(s) ? NULL : registry_find(name);

        frontend_closing_take_over(vm, handover, s);
    }
    discard_forgotten_take_over(handover, s);
    state_all_read(s);
    if (state_failed(s)) {
        log_msg(LOG_LVL_WARN, "descriptors that wait to be closed: %s", error);
    }
    closing.tag = 0;
}

static void answer(gint64 us)
{
    char text[128];
    int len = g_snprintf(text, sizeof(text),
                         "{\"result\":{\"vms\":%u,\"pause_us\":%" G_GINT64_FORMAT
                         "},\"ok\":true}\n",
                         adopted->len, us);

    if (client >= 0) {
        send(client, text, (size_t)len, MSG_NOSIGNAL | MSG_DONTWAIT);
        close(client);
        client = -1;
    }
}

void adopt_finish(void)
{
    gint64 us;

    if (!handover) {
        return;
    }
    forget_removed();
    claims_expect_back();
    for (guint i = 0; i < adopted->len; i++) {
        claim(&g_array_index(adopted, struct adopted, i));
    }
    for (guint i = 0; i < adopted->len; i++) {
        resume(&g_array_index(adopted, struct adopted, i));
    }
    us = g_get_monotonic_time() - since;
    for (guint i = 0; i < adopted->len; i++) {
        struct adopted *a = &g_array_index(adopted, struct adopted, i);

        if (a->why) {
            give_up(a);
        }
        frontend_thaw(a->vm);
    }
    log_msg(LOG_LVL_INFO,
            "took over %u VM(s), which were paused for %" G_GINT64_FORMAT " us",
            adopted->len, us);
    answer(us);
    take_closing();
    sockfile_drop_rest();
    g_clear_pointer(&adopted, g_array_unref);
    g_clear_pointer(&sections, g_array_unref);
    handover_close(g_steal_pointer(&handover));
}
