/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The registry of declared VMs, and what becomes of one that has a fault (SIGBUS in
 * guest memory, a client that blocks a worker): it is disconnected, and may come
 * again.
 *
 * Main thread.
 */
#include "control/registry.h"

#include <string.h>

#include "frontend/frontend.h"
#include "vm.h"

static GList *vms; /* of struct vm */

static void on_fault(void)
{
    for (GList *l = vms; l; l = l->next) {
        struct vm *vm = l->data;
        const char *why = atomic_load(&vm->guest.fault);

        if (!why) {
            continue;
        }
        frontend_disconnect(vm, why);
        vm_detach(vm); /* one without a connection */
        atomic_store(&vm->guest.fault, NULL);
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
    vms = g_list_append(vms, vm);
    return vm;
}

void registry_remove(struct vm *vm)
{
    vms = g_list_remove(vms, vm);
    frontend_disconnect(vm, "the VM was removed");
    vm_detach(vm);
    frontend_unlisten(vm->listener);
    discard_forget(&vm->discard);
    vm_free(vm);
}
