/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Attach and detach: the parts that a connected VMM needs.
 *
 * A declared VM costs next to nothing.  vm_attach() builds the parts from the
 * memory map up; vm_detach() takes them down in an order in which nothing refers
 * to what is already gone:
 *
 *   device_reset     objects, binds, rings: no guest memory in use any more
 *   vm_leave         no ticket leads to it
 *   datapath_vm_fini no worker knows the VM
 *   objects, device, doorbells, events, irq, guest memory
 */
#include "attach.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "datapath/datapath.h"
#include "device/device.h"
#include "guest/budget.h"
#include "transport/link/datagrams.h"

_Static_assert(BUDGET_SHARES >= CONFIG_MAX_VMS, "each VM has its share");

void vm_new_owner(struct vm *vm)
{
    while (getrandom(vm->identity.owner, sizeof(vm->identity.owner), 0) !=
           sizeof(vm->identity.owner)) {
    }
    vm->identity.generation = 1;
    memset(vm->identity.key, 0, sizeof(vm->identity.key));
    vm->identity.proved = 0;
    vm->moved = vm->gave_way = false;
}

void vm_identity_restore(struct vm *vm, const struct vm_identity *former)
{
    vm->identity = *former;
    vm->identity.proved = 0;
}

bool vm_attach(struct vm *vm, GError **errp)
{
    return vm_attach_bell(vm, -1, errp);
}

bool vm_attach_bell(struct vm *vm, int bell, GError **errp)
{
    struct guest *g = &vm->guest;
    int err;

    atomic_store(&g->fault, NULL);
    vm_new_owner(vm);
    guest_mem_init(&g->mem, g, vm->cfg->require_sealed);
    guest_mem_limit(&g->mem, vm->cfg->max_memory, vm->cfg->max_files);
    irq_init(&g->irq, g);
    event_init(&g->events, vm->cfg->max_cq, vm->cfg->max_qp, vm->cfg->max_srq);
    if (!doorbells_init(&g->db, g, bell, errp)) {
        goto err_irq;
    }
    vm->dev = device_new(vm);
    err = objects_init(&vm->objects, vm);
    if (err) {
        g_set_error(errp, PVRDMA_ERROR, 0, "object tables: %s", g_strerror(err));
        goto err_device;
    }
    err = vm_enter(vm) ? datapath_vm_init(vm) : ENOSPC;
    if (err) {
        g_set_error(errp, PVRDMA_ERROR, 0, "data path: %s", g_strerror(err));
        vm_leave(vm);
        goto err_objects;
    }
    vm->attached = true;
    vm->attaches++;
    return true;

err_objects:
    objects_fini(&vm->objects);
err_device:
    device_free(vm->dev);
    vm->dev = NULL;
    doorbells_fini(&g->db);
err_irq:
    event_fini(&g->events);
    irq_fini(&g->irq);
    guest_mem_fini(&g->mem);
    return false;
}

void vm_has_moved(struct vm *vm)
{
    if (!atomic_load(&vm->dp.paused)) {
        vm->gave_way = true;
        guest_fault(&vm->guest, "another instance of this VM runs elsewhere");
    }
}

bool vm_detach(struct vm *vm)
{
    struct guest *g = &vm->guest;

    if (!vm->attached) {
        return false;
    }
    /* Objects first: what peers hold for a paused VM must not reach it now. */
    device_reset(vm->dev);
    while (vm->pauses) {
        datapath_resume(vm);
    }
    vm->admin_paused = false;
    vm_leave(vm);
    datapath_vm_fini(vm);
    ud_vm_gone(vm);
    vm->attached = false;
    objects_fini(&vm->objects);
    device_free(vm->dev);
    vm->dev = NULL;
    doorbells_fini(&g->db);
    event_fini(&g->events);
    irq_fini(&g->irq);
    guest_mem_fini(&g->mem);
    if (!atomic_exchange(&g->fault, NULL)) {
        return false;
    }
    vm->faults++;
    return true;
}
