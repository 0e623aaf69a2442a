/* SPDX-License-Identifier: GPL-2.0-or-later */
/* See vm.h. */
#include "objects/vm.h"

static _Atomic(struct vm *) attached[CONFIG_MAX_VMS];

bool vm_enter(struct vm *vm)
{
    for (uint32_t i = 0; i < CONFIG_MAX_VMS; i++) {
        if (!atomic_load(&attached[i])) {
            vm->id = i;
            atomic_store(&attached[i], vm);
            return true;
        }
    }
    return false;
}

void vm_leave(struct vm *vm)
{
    atomic_store(&attached[vm->id], NULL);
}

struct vm *vm_by_id(uint32_t id)
{
    return id < CONFIG_MAX_VMS ? atomic_load_explicit(&attached[id], memory_order_acquire)
                               : NULL;
}

struct vm *vm_new(struct vm_config *cfg)
{
    struct vm *vm = g_new0(struct vm, 1);

    vm->cfg = cfg;
    vm->guest.log.name = cfg->name;
    return vm;
}

void vm_free(struct vm *vm)
{
    log_flush(&vm->guest.log);
    guest_mem_forget(&vm->guest.mem);
    config_vm_free(vm->cfg);
    g_free(vm);
}
