/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * VMs: the registry of declared ones, attach and detach, faults.
 *
 * A declared VM is a struct vm with a listening socket and costs next to
 * nothing.  vm_attach() builds the parts that a connected VMM needs, from the
 * memory map up; vm_detach() takes them down in an order in which nothing
 * refers to what is already gone:
 *
 *   device_reset     objects, binds, rings: no guest memory in use any more
 *   datapath_vm_fini no worker knows the VM
 *   verbs, device, irq, guest memory
 *
 * A fault (SIGBUS in guest memory, a client that blocks a worker) may be
 * noticed by any thread, in a signal handler even: vm_fault() stores the reason
 * and writes an eventfd; the main loop then disconnects the VM.
 */
#include "vm.h"

#include <errno.h>
#include <glib-unix.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "frontend/frontend.h"
#include "log.h"

static GList *vms;        /* of struct vm */
static int fault_fd = -1; /* set before threads start */
static guint fault_source;

/* ---- faults ---- */

void vm_fault(struct vm *vm, const char *why)
{
    const char *none = NULL;
    int saved_errno = errno;
    uint64_t one = 1;

    /* The first reason is the one to report. */
    if (atomic_compare_exchange_strong(&vm->fault, &none, why) &&
        write(fault_fd, &one, sizeof(one)) < 0) {
        /* Only without vm_init_process(): then the caller looks at ->fault. */
    }
    errno = saved_errno;
}

static void handle_fault(struct vm *vm)
{
    const char *why = atomic_load(&vm->fault);

    if (!why) {
        return;
    }
    if (vm->conn) {
        frontend_disconnect(vm, why);
    }
    if (vm->attached) {
        vm_detach(vm);
    }
    atomic_store(&vm->fault, NULL);
}

static gboolean on_fault(gint fd, GIOCondition cond, gpointer opaque)
{
    uint64_t n;

    if (read(fd, &n, sizeof(n)) < 0) {
        return G_SOURCE_CONTINUE;
    }
    for (GList *l = vms; l; l = l->next) {
        handle_fault(l->data);
    }
    return G_SOURCE_CONTINUE;
}

bool vm_init_process(GError **errp)
{
    fault_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fault_fd < 0) {
        g_set_error(errp, PVRDMA_ERROR, 0, "eventfd: %s", g_strerror(errno));
        return false;
    }
    fault_source = g_unix_fd_add(fault_fd, G_IO_IN, on_fault, NULL);
    return true;
}

void vm_stop_process(void)
{
    if (fault_fd >= 0) {
        g_source_remove(fault_source);
        close(fault_fd);
        fault_fd = -1;
    }
}

/* ---- attach and detach ---- */

bool vm_attach(struct vm *vm, GError **errp)
{
    int err;

    atomic_store(&vm->fault, NULL);
    guest_mem_init(&vm->mem, vm, vm->cfg->require_sealed);
    irq_init(&vm->irq, vm);
    if (device_init(&vm->dev, vm, errp) != 0) {
        goto err_irq;
    }
    err = verbs_init(&vm->verbs, vm);
    if (err) {
        g_set_error(errp, PVRDMA_ERROR, 0, "object tables: %s", g_strerror(err));
        goto err_device;
    }
    err = datapath_vm_init(vm);
    if (err) {
        g_set_error(errp, PVRDMA_ERROR, 0, "data path: %s", g_strerror(err));
        goto err_verbs;
    }
    vm->attached = true;
    vm->attaches++;
    return true;

err_verbs:
    verbs_fini(&vm->verbs);
err_device:
    device_fini(&vm->dev);
err_irq:
    irq_fini(&vm->irq);
    guest_mem_fini(&vm->mem);
    return false;
}

void vm_detach(struct vm *vm)
{
    if (!vm->attached) {
        return;
    }
    /* Objects first: what peers hold for a paused VM must not reach it now. */
    device_reset(&vm->dev);
    while (vm->pauses) {
        vm_resume(vm);
    }
    vm->admin_paused = false;
    datapath_vm_fini(vm);
    vm->attached = false;
    verbs_fini(&vm->verbs);
    device_fini(&vm->dev);
    irq_fini(&vm->irq);
    guest_mem_fini(&vm->mem);
    if (atomic_exchange(&vm->fault, NULL)) {
        vm->faults++;
        if (vm->listener) {
            frontend_hold_off(vm->listener);
        }
    }
}

/* ---- pause ---- */

void vm_pause(struct vm *vm)
{
    if (!vm->attached || vm->pauses++ > 0) {
        return;
    }
    vm_token_take(vm);
    atomic_store(&vm->dp.paused, true);
    vm_token_release(vm);
    /* Peers' workers may be in the middle of a slice into this VM. */
    datapath_quiesce();
}

void vm_resume(struct vm *vm)
{
    if (!vm->attached || vm->pauses == 0 || --vm->pauses > 0) {
        return;
    }
    vm_token_take(vm);
    atomic_store(&vm->dp.paused, false);
    vm_token_release(vm);
    datapath_wake(vm);
}

/* ---- registry ---- */

struct vm *vm_find(const char *name)
{
    for (GList *l = vms; l; l = l->next) {
        struct vm *vm = l->data;

        if (strcmp(vm->cfg->name, name) == 0) {
            return vm;
        }
    }
    return NULL;
}

GList *vm_all(void)
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

struct vm *vm_add(struct vm_config *cfg, GError **errp)
{
    struct vm *vm;

    if (!check_new(cfg, errp)) {
        config_vm_free(cfg);
        return NULL;
    }
    vm = g_new0(struct vm, 1);
    vm->cfg = cfg;
    vm->listener = frontend_listen(vm, errp);
    if (!vm->listener) {
        g_prefix_error(errp, "VM %s: ", cfg->name);
        config_vm_free(cfg);
        g_free(vm);
        return NULL;
    }
    if (!cfg->any_address && cfg->n_addresses == 0) {
        log_vm(LOG_LVL_WARN, vm, "has no addresses: its guest can bind no GID");
    }
    vms = g_list_append(vms, vm);
    return vm;
}

void vm_remove(struct vm *vm)
{
    vms = g_list_remove(vms, vm);
    frontend_disconnect(vm, "the VM was removed");
    vm_detach(vm);
    frontend_unlisten(vm->listener);
    log_vm_flush(vm);
    discard_forget(&vm->discard);
    config_vm_free(vm->cfg);
    g_free(vm);
}
