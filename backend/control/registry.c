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
 * Main thread.
 */
#include "control/registry.h"

#include <string.h>

#include "frontend/frontend.h"
#include "vm.h"

static GList *vms; /* of struct vm */
static uint64_t last_serial;

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
    for (GList *l = vms; l; l = l->next) {
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
    return guest_on_fault(on_fault, errp);
}

void registry_stop(void)
{
    guest_fault_stop();
}

struct vm *registry_find(const char *name)
{
    for (GList *l = vms; l; l = l->next) {
        struct vm *vm = l->data;

        if (strcmp(vm->cfg->name, name) == 0) {
            return vm;
        }
    }
    return NULL;
}

struct vm *registry_next(uint64_t serial)
{
    for (GList *l = vms; l; l = l->next) {
        struct vm *vm = l->data;

        if (vm->serial > serial) {
            return vm;
        }
    }
    return NULL;
}

GList *registry_all(void)
{
    return vms;
}

static bool check_new(const struct vm_config *cfg, GError **errp)
{
    if (g_list_length(vms) >= CONFIG_MAX_VMS) {
        g_set_error(errp, PVRDMA_ERROR, 0, "there are already %d VMs", CONFIG_MAX_VMS);
        return false;
    }
    for (GList *l = vms; l; l = l->next) {
        struct vm *vm = l->data;

        if (strcmp(vm->cfg->name, cfg->name) == 0) {
            g_set_error(errp, PVRDMA_ERROR, 0, "VM %s exists already", cfg->name);
            return false;
        }
        if (strcmp(vm->cfg->socket, cfg->socket) == 0) {
            g_set_error(errp, PVRDMA_ERROR, 0, "socket %s belongs to VM %s", cfg->socket,
                        vm->cfg->name);
            return false;
        }
    }
    return true;
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
    if (!cfg->any_address && cfg->n_addresses == 0) {
        log_vm(LOG_LVL_WARN, vm, "has no addresses: its guest can bind no GID");
    }
    vm->serial = ++last_serial;
    vms = g_list_append(vms, vm);
    return vm;
}

static void run_removal(void *opaque)
{
    struct vm *vm = opaque;

    frontend_disconnect(vm, "the VM was removed");
    coro_lock(&vm->ops);
    vm_detach(vm); /* one without a connection */
    coro_unlock(&vm->ops);
    vms = g_list_remove(vms, vm);
    discard_forget(&vm->discard);
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
    for (GList *l = vms; l; l = l->next) {
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
    while (vms) {
        g_main_context_iteration(NULL, TRUE);
    }
}
