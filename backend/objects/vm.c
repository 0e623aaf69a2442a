/* SPDX-License-Identifier: GPL-2.0-or-later */
/* See vm.h. */
#include "objects/vm.h"

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
    config_vm_free(vm->cfg);
    g_free(vm);
}
