/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The key file's VMs: at start, and when the file is read again.
 *
 * The file is the record of what it has declared: VMs that are new in it are added,
 * those that are gone are removed, changed ones are changed.  VMs of `pvrdmactl vm
 * add` are none of its business, but for what it says about their networks.  A guest is
 * never cut off by a reload: with a VMM connected, removal and changes wait until that
 * leaves (registry.c).  A VM whose group has become wrong stays as it was.  Links to
 * other hosts and NICs follow the file at once.
 *
 * In a coroutine the main loop turns between VMs, so each step finds its VM by name.
 * Main thread.
 */
#include "control/reload.h"

#include <string.h>

#include "base/coro.h"
#include "base/log.h"
#include "control/json.h"
#include "control/registry.h"
#include "control/restart/restart.h"
#include "datapath/datapath.h"
#include "transport/iwarp/iwarp.h"
#include "transport/link/peer.h"
#include "transport/rnic/nic.h"
#include "vm/attach.h"

static struct daemon_config *cfg;
static struct coro_mutex one_at_a_time;
static bool stopping;

struct summary {
    unsigned added, removed, changed, waiting;
    GPtrArray *problems, *notes; /* of lines */
};

static void note(struct summary *o, enum log_level level, char *text)
{
    log_msg(level, "%s", text);
    g_ptr_array_add(level <= LOG_LVL_WARN ? o->problems : o->notes, text);
}

/* A VM that is not being removed. */
static struct vm *find_vm(const char *name)
{
    struct vm *vm = registry_find(name);

    return vm && !vm->gone ? vm : NULL;
}

/* @why begins with the group that it is about. */
static void fail_vm(struct summary *o, const char *name, const char *why)
{
    const char *kept =
        find_vm(name) ? "; the VM is served as it was declared before" : "";
    g_autofree char *text = g_strconcat(why, kept, NULL);

    registry_fail(name, text);
    note(o, LOG_LVL_ERROR, g_strdup_printf("%s: %s", cfg->path, text));
}

static void summary_init(struct summary *o)
{
    memset(o, 0, sizeof(*o));
    o->problems = g_ptr_array_new_with_free_func(g_free);
    o->notes = g_ptr_array_new_with_free_func(g_free);
}

static void summary_fini(struct summary *o)
{
    g_ptr_array_unref(o->problems);
    g_ptr_array_unref(o->notes);
}

/* ---- steps ---- */

static void add_one(struct summary *o, struct vm_config *vm)
{
    g_autofree char *name = g_strdup(vm->name);
    g_autoptr(GError) err = NULL;

    if (registry_add(vm, &err)) {
        o->added++;
    } else {
        g_autofree char *why = g_strdup_printf("[vm %s] %s", name, err->message);

        fail_vm(o, name, why);
    }
}

static void change_one(struct summary *o, struct vm *vm, struct vm_config *new)
{
    g_autofree char *what = NULL;
    g_autoptr(GError) err = NULL;
    bool later = false;

    if (!vm->cfg->from_file) {
        g_autofree char *why = g_strdup_printf(
            "[vm %s] was declared by an administrator's command", new->name);

        fail_vm(o, new->name, why);
        config_vm_free(new);
    } else if (!registry_change(vm, new, &what, &later, &err)) {
        g_autofree char *why = g_strdup_printf("[vm %s] %s", vm->cfg->name, err->message);

        fail_vm(o, vm->cfg->name, why);
    } else if (later) {
        o->waiting++;
        note(o, LOG_LVL_INFO,
             g_strdup_printf("VM %s: %s will change when its VMM has left", vm->cfg->name,
                             what));
    } else if (what) {
        o->changed++;
        note(o, LOG_LVL_INFO, g_strdup_printf("VM %s: changed %s", vm->cfg->name, what));
    }
}

static void remove_one(struct summary *o, struct vm *vm)
{
    g_autofree char *name = g_strdup(vm->cfg->name);

    if (registry_retire(vm)) {
        o->waiting++;
        note(o, LOG_LVL_INFO,
             g_strdup_printf("VM %s will be removed when its VMM has left", name));
    } else {
        o->removed++;
        note(o, LOG_LVL_INFO, g_strdup_printf("VM %s was removed", name));
    }
}

/* The names that the file has, rightly or not. */
static GHashTable *named(const struct daemon_config *new)
{
    GHashTable *names = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);

    for (GList *l = new->vms; l; l = l->next) {
        g_hash_table_add(names, g_strdup(((struct vm_config *)l->data)->name));
    }
    for (GList *l = new->problems; l; l = l->next) {
        g_hash_table_add(names, g_strdup(((struct config_problem *)l->data)->name));
    }
    return names;
}

static void remove_gone(struct summary *o, const struct daemon_config *new)
{
    g_autoptr(GHashTable) keep = named(new);
    g_autoptr(GPtrArray) names = registry_names();

    for (guint i = 0; i < names->len && !stopping; i++) {
        struct vm *vm = find_vm(names->pdata[i]);

        if (vm && vm->cfg->from_file && !g_hash_table_contains(keep, vm->cfg->name)) {
            remove_one(o, vm);
            coro_breathe();
        }
    }
}

/* VMs of which the file says nothing have networks of which it does: for the next VMM. */
static void follow_networks(void)
{
    for (GList *l = registry_all(); l; l = l->next) {
        struct vm *vm = l->data;

        if (!vm->cfg->from_file) {
            config_vm_follow(cfg, vm->cfg);
        }
    }
}

/* Take the VMs and problems out of @new. */
static void take_vms(struct summary *o, struct daemon_config *new)
{
    while (new->vms && !stopping) {
        struct vm_config *config = new->vms->data;
        struct vm *vm = find_vm(config->name);

        new->vms = g_list_delete_link(new->vms, new->vms);
        if (vm) {
            change_one(o, vm, config);
        } else {
            add_one(o, config);
        }
        coro_breathe();
    }
    for (GList *l = new->problems; l; l = l->next) {
        const struct config_problem *p = l->data;

        fail_vm(o, p->name, p->why);
    }
}

/* ---- start and reload ---- */

/* Workers that the file or an administrator's command has given to some VM or network. */
static uint64_t named_workers(void)
{
    uint64_t all = config_network_workers(cfg);

    for (GList *l = registry_all(); l; l = l->next) {
        all |= ((const struct vm *)l->data)->cfg->workers;
    }
    return all;
}

void reload_lock(void)
{
    coro_lock(&one_at_a_time);
}

void reload_unlock(void)
{
    coro_unlock(&one_at_a_time);
}

void reload_start(struct daemon_config *config)
{
    struct summary o;

    cfg = config;
    datapath_set_named(named_workers);
    summary_init(&o);
    if (adopt_vms(cfg)) {
        remove_gone(&o, cfg);
    }
    take_vms(&o, cfg);
    summary_fini(&o);
}

void reload_stop(void)
{
    stopping = true;
    while (one_at_a_time.held) { /* those under way end soon, with what they have */
        g_main_context_iteration(NULL, TRUE);
    }
    stopping = false;
    datapath_set_named(NULL);
    cfg = NULL;
}

static void report_lines(GString *s, const char *name, const GPtrArray *lines)
{
    json_begin(s, name, '[');
    for (guint i = 0; i < lines->len; i++) {
        json_str(s, NULL, lines->pdata[i]);
    }
    json_end(s, ']');
}

static void report(GString *s, const struct summary *o)
{
    json_int(s, "added", o->added);
    json_int(s, "removed", o->removed);
    json_int(s, "changed", o->changed);
    json_int(s, "waiting", o->waiting);
    report_lines(s, "notes", o->notes);
    report_lines(s, "problems", o->problems);
}

static void say_line(void *opaque, char *line)
{
    note(opaque, LOG_LVL_INFO, line);
}

static void apply_daemon(struct summary *o, struct daemon_config *new, const char *notes)
{
    GList *old_networks = cfg->networks;
    g_auto(GStrv) lines = g_strsplit(notes, "\n", -1);

    for (char **line = lines; *line; line++) {
        if (**line) {
            note(o, LOG_LVL_WARN, g_strdup_printf("%s: %s", cfg->path, *line));
        }
    }
    for (GList *l = new->warnings; l; l = l->next) {
        note(o, LOG_LVL_INFO,
             g_strdup_printf("%s: %s", cfg->path, (const char *)l->data));
    }
    if (new->log_level != cfg->log_level) {
        note(o, LOG_LVL_INFO,
             g_strdup_printf("log-level is %s now", log_level_name(new->log_level)));
    }
    cfg->log_level = new->log_level;
    cfg->require_sealed = new->require_sealed;
    cfg->networks = new->networks; /* the VMs have theirs already */
    new->networks = old_networks;
    cfg->no_file = false;
    log_set_level(cfg->log_level);
}

static bool reload(GString *s, GError **errp)
{
    GString *notes = g_string_new(NULL);
    struct daemon_config *new = NULL;
    struct summary o;

    if (!cfg || stopping) {
        g_set_error(errp, PVRDMA_ERROR, 0, "the daemon is starting or stopping");
    } else {
        new = config_reload(cfg, notes, errp);
    }
    if (!new) {
        g_string_free(notes, TRUE);
        return false;
    }
    summary_init(&o);
    apply_daemon(&o, new, notes->str);
    follow_networks();
    peers_reload(new, say_line, &o);
    rnic_nics_reload(new, say_line, &o);
    tcp_use(new);
    registry_forget_failed();
    /* Those that go first: their sockets and addresses may be wanted again. */
    remove_gone(&o, new);
    take_vms(&o, new);
    log_msg(LOG_LVL_INFO, "%s was read: %u VM(s) added, %u removed, %u changed, %u wait",
            cfg->path, o.added, o.removed, o.changed, o.waiting);
    if (s) {
        report(s, &o);
    }
    summary_fini(&o);
    config_free(new);
    g_string_free(notes, TRUE);
    return true;
}

bool reload_run(GString *s, GError **errp)
{
    g_autoptr(GError) err = NULL;
    bool ok = false;

    if (one_at_a_time.held && !coro_self()) {
        g_set_error(&err, PVRDMA_ERROR, 0, "a reload is under way");
    } else {
        coro_lock(&one_at_a_time);
        ok = reload(s, &err);
        coro_unlock(&one_at_a_time);
    }
    if (!ok) {
        log_msg(LOG_LVL_ERROR, "not reloaded: %s", err->message);
        g_propagate_error(errp, g_steal_pointer(&err));
    }
    return ok;
}
