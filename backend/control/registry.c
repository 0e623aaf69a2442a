/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The registry of declared VMs, and what becomes of one that has a fault (SIGBUS in
 * guest memory, a client that blocks a worker): it is disconnected, and may come
 * again.
 *
 * A VM that is being removed is `gone` from the first moment: nobody who finds it then
 * begins anything with it.  Its connection is waited for; all others who found it
 * before are ahead in the queue for vm->ops, as they looked it up and asked for that
 * in one go.  So when the removal has had vm->ops, nobody knows the VM any more.
 *
 * A VM's configuration is read while a VMM is connected, also by workers, so it is
 * replaced, or the VM removed, only when there is none, nor anybody in vm->ops:
 * on_settle() looks for such VMs after each end of a connection.
 *
 * Main thread.
 */
#include "control/registry.h"

#include <string.h>

#include "frontend/frontend.h"
#include "vm/attach.h"

/* While a VM has no VMM but is not at rest, in ms. */
#define SETTLE_AGAIN_MS 100

static GQueue vms = G_QUEUE_INIT; /* of struct vm */
static GHashTable *by_name;       /* the same */
static uint64_t last_serial;
static GList *failed; /* of struct registry_failed */
static guint settle_source;

static gboolean on_settle(gpointer unused);
static void settle_soon(void);

static struct vm *find_serial(uint64_t serial)
{
    struct vm *vm = registry_next(serial - 1);

    return vm && vm->serial == serial ? vm : NULL;
}

/* A VM without a connection, by its serial number: this may begin later. */
static void run_fault(void *serial)
{
    struct vm *vm = find_serial((uintptr_t)serial);

    if (!vm || vm->gone) {
        return;
    }
    coro_lock(&vm->ops);
    if (atomic_load(&vm->guest.fault)) { /* nobody else was faster */
        vm_detach(vm);
        atomic_store(&vm->guest.fault, NULL);
    }
    coro_unlock(&vm->ops);
}

static void on_fault(void)
{
    for (GList *l = vms.head; l; l = l->next) {
        struct vm *vm = l->data;
        const char *why = atomic_load(&vm->guest.fault);

        if (!why || vm->gone) {
            continue;
        }
        if (vm->conn) {
            frontend_disconnect(vm, why);
        } else {
            coro_run(run_fault, (void *)(uintptr_t)vm->serial);
        }
    }
}

bool registry_start(GError **errp)
{
    frontend_on_left(settle_soon);
    return guest_on_fault(on_fault, errp);
}

void registry_stop(void)
{
    guest_fault_stop();
    frontend_on_left(NULL);
    g_clear_handle_id(&settle_source, g_source_remove);
    registry_forget_failed();
    g_clear_pointer(&by_name, g_hash_table_unref);
}

struct vm *registry_find(const char *name)
{
    return by_name ? g_hash_table_lookup(by_name, name) : NULL;
}

struct vm *registry_next(uint64_t serial)
{
    for (GList *l = vms.head; l; l = l->next) {
        struct vm *vm = l->data;

        if (vm->serial > serial) {
            return vm;
        }
    }
    return NULL;
}

GList *registry_all(void)
{
    return vms.head;
}

unsigned registry_count(void)
{
    return vms.length;
}

GPtrArray *registry_names(void)
{
    GPtrArray *names = g_ptr_array_new_with_free_func(g_free);

    for (GList *l = vms.head; l; l = l->next) {
        struct vm *vm = l->data;

        g_ptr_array_add(names, g_strdup(vm->cfg->name));
    }
    return names;
}

/* ---- what could not be had ---- */

static void failed_free(struct registry_failed *f)
{
    g_free(f->name);
    g_free(f->why);
    g_free(f);
}

void registry_fail(const char *name, const char *why)
{
    struct registry_failed *f = g_new0(struct registry_failed, 1);

    f->name = g_strdup(name);
    f->why = g_strdup(why);
    failed = g_list_append(failed, f);
}

static void not_failed(const char *name)
{
    GList *next;

    for (GList *l = failed; l; l = next) {
        struct registry_failed *f = l->data;

        next = l->next;
        if (strcmp(f->name, name) == 0) {
            failed_free(f);
            failed = g_list_delete_link(failed, l);
        }
    }
}

void registry_forget_failed(void)
{
    g_list_free_full(failed, (GDestroyNotify)failed_free);
    failed = NULL;
}

GList *registry_failed(void)
{
    return failed;
}

/* ---- VMs ---- */

/* Does no VM but @self use the socket? */
static bool check_socket(const char *socket, const struct vm *self, GError **errp)
{
    for (GList *l = vms.head; l; l = l->next) {
        struct vm *vm = l->data;

        if (vm != self && strcmp(vm->cfg->socket, socket) == 0) {
            g_set_error(errp, PVRDMA_ERROR, 0, "socket %s belongs to VM %s", socket,
                        vm->cfg->name);
            return false;
        }
    }
    return true;
}

static bool check_new(const struct vm_config *cfg, GError **errp)
{
    const struct vm *old;

    if (vms.length >= CONFIG_MAX_VMS) {
        g_set_error(errp, PVRDMA_ERROR, 0, "there are already %d VMs", CONFIG_MAX_VMS);
        return false;
    }
    old = registry_find(cfg->name);
    if (old) {
        g_set_error(errp, PVRDMA_ERROR, 0,
                    old->gone ? "VM %s still exists, it is being removed"
                              : "VM %s exists already",
                    cfg->name);
        return false;
    }
    return check_socket(cfg->socket, NULL, errp);
}

static void warn_addresses(struct vm *vm)
{
    if (!vm->cfg->any_address && vm->cfg->n_addresses == 0) {
        log_vm(LOG_LVL_WARN, vm, "has no addresses: its guest can bind no GID");
    }
}

struct vm *registry_add(struct vm_config *cfg, GError **errp)
{
    struct vm *vm;

    if (!check_new(cfg, errp)) {
        config_vm_free(cfg);
        return NULL;
    }
    vm = vm_new(cfg);
    vm->listener = frontend_listen(vm, errp);
    if (!vm->listener) {
        g_prefix_error(errp, "VM %s: ", cfg->name);
        vm_free(vm);
        return NULL;
    }
    warn_addresses(vm);
    if (!by_name) {
        by_name = g_hash_table_new(g_str_hash, g_str_equal);
    }
    vm->serial = ++last_serial;
    g_hash_table_insert(by_name, cfg->name, vm);
    g_queue_push_tail(&vms, vm);
    not_failed(cfg->name);
    return vm;
}

static void run_removal(void *opaque)
{
    struct vm *vm = opaque;

    frontend_disconnect(vm, "the VM was removed");
    coro_lock(&vm->ops);
    vm_detach(vm); /* one without a connection */
    coro_unlock(&vm->ops);
    g_queue_remove(&vms, vm);
    g_hash_table_remove(by_name, vm->cfg->name);
    if (!vms.length) {
        g_clear_pointer(&by_name, g_hash_table_unref);
    }
    refusals_forget(vm);
    discard_forget(&vm->discard);
    migration_forget(&vm->migration);
    config_vm_free(vm->next_cfg);
    vm_free(vm);
}

void registry_remove(struct vm *vm)
{
    uint64_t serial = vm->serial;

    vm->gone = true;
    frontend_unlisten(vm->listener);
    vm->listener = NULL;
    coro_run(run_removal, vm);
    while (!coro_self() && find_serial(serial)) {
        g_main_context_iteration(NULL, TRUE);
    }
}

static struct vm *first_to_remove(void)
{
    for (GList *l = vms.head; l; l = l->next) {
        struct vm *vm = l->data;

        if (!vm->gone) {
            return vm;
        }
    }
    return NULL;
}

static void run_remove_all(void *why)
{
    struct vm *vm;

    while ((vm = first_to_remove())) {
        frontend_disconnect(vm, why);
        registry_remove(vm);
    }
}

void registry_remove_all(const char *why)
{
    coro_run(run_remove_all, (void *)why);
    while (vms.length) {
        g_main_context_iteration(NULL, TRUE);
    }
}

/* ---- changes ---- */

/* Somebody relies on the VM's configuration, or soon will. */
static bool busy(const struct vm *vm)
{
    return vm->conn || vm->attached || vm->ops.held;
}

/* Of a VM that is not busy; takes over @cfg if true is returned. */
static bool apply(struct vm *vm, struct vm_config *cfg, GError **errp)
{
    struct vm_config *old = vm->cfg;

    if (strcmp(cfg->socket, old->socket) != 0) {
        struct vfu_listener *l;

        if (!check_socket(cfg->socket, vm, errp)) {
            return false;
        }
        vm->cfg = cfg;
        l = frontend_listen(vm, errp);
        if (!l) {
            vm->cfg = old;
            return false;
        }
        frontend_unlisten(vm->listener);
        vm->listener = l;
    }
    /* Others point to the name: the new one gets the old one's string. */
    g_free(cfg->name);
    cfg->name = g_steal_pointer(&old->name);
    vm->cfg = cfg;
    config_vm_free(old);
    warn_addresses(vm);
    return true;
}

bool registry_change(struct vm *vm, struct vm_config *cfg, char **what, bool *later,
                     GError **errp)
{
    *what = config_vm_diff(vm->cfg, cfg);
    *later = *what && busy(vm);
    vm->retiring = false;
    g_clear_pointer(&vm->next_cfg, config_vm_free);
    if (*later) {
        vm->next_cfg = cfg;
        settle_soon();
        return true;
    }
    if (!*what || !apply(vm, cfg, errp)) {
        config_vm_free(cfg);
        return *what == NULL;
    }
    return true;
}

bool registry_retire(struct vm *vm)
{
    if (!busy(vm)) {
        registry_remove(vm);
        return false;
    }
    vm->retiring = true;
    settle_soon();
    return true;
}

static bool unsettled(const struct vm *vm)
{
    return !vm->gone && (vm->next_cfg || vm->retiring);
}

/* Do what waited for the VM's VMM to leave. */
static void settle_vm(struct vm *vm)
{
    struct vm_config *next = g_steal_pointer(&vm->next_cfg);
    g_autoptr(GError) err = NULL;

    if (vm->retiring) {
        log_msg(LOG_LVL_INFO, "VM %s was removed, its VMM has left", vm->cfg->name);
        config_vm_free(next);
        registry_remove(vm);
    } else if (next) {
        g_autofree char *what = config_vm_diff(vm->cfg, next);

        if (apply(vm, next, &err)) {
            log_msg(LOG_LVL_INFO, "VM %s: changed %s, its VMM has left", vm->cfg->name,
                    what ? what : "nothing");
        } else {
            log_msg(LOG_LVL_ERROR, "VM %s is unchanged: %s", vm->cfg->name, err->message);
            config_vm_free(next);
        }
    }
}

/* By its serial number: this may begin later. */
static void run_settle(void *serial)
{
    struct vm *vm = find_serial((uintptr_t)serial);

    if (!vm || !unsettled(vm)) {
        return;
    }
    if (!busy(vm)) {
        settle_vm(vm);
    } else if (!vm->conn && !settle_source) {
        settle_source = g_timeout_add(SETTLE_AGAIN_MS, on_settle, NULL);
    }
}

static gboolean on_settle(gpointer unused)
{
    g_autoptr(GArray) todo = g_array_new(FALSE, FALSE, sizeof(uint64_t));

    settle_source = 0;
    for (GList *l = vms.head; l; l = l->next) {
        struct vm *vm = l->data;

        if (unsettled(vm)) {
            g_array_append_val(todo, vm->serial);
        }
    }
    for (guint i = 0; i < todo->len; i++) {
        coro_run(run_settle, (void *)(uintptr_t)g_array_index(todo, uint64_t, i));
    }
    return G_SOURCE_REMOVE;
}

/* Before the next VMM is accepted. */
static void settle_soon(void)
{
    if (!settle_source) {
        settle_source = g_idle_add_full(G_PRIORITY_HIGH, on_settle, NULL, NULL);
    }
}
