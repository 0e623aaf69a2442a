/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Bringing the parts of one VM together and apart.  Main thread, with vm->ops; in a
 * coroutine the main loop may turn meanwhile.
 */
#ifndef PVRDMAD_VM_ATTACH_H
#define PVRDMAD_VM_ATTACH_H

#include "objects/vm.h"

/*
 * Make the VM's data path and device state for a new VMM connection.  Returns
 * false and sets errp when resources are missing.
 */
bool vm_attach(struct vm *vm, GError **errp);
/* For a VMM that has its doorbells' eventfd, taken over, from another daemon. */
bool vm_attach_bell(struct vm *vm, int bell, GError **errp);

/* It is nobody who was before, and has no addresses: none of it has moved anywhere. */
void vm_new_owner(struct vm *vm);

/* Loading a state changes a VM's identity; this one takes it back to the former one. */
void vm_identity_restore(struct vm *vm, const struct vm_identity *former);

/*
 * Undo vm_attach: after return no worker touches anything of the VM, peers'
 * connections to it are cut, all objects, maps and descriptors are gone.  True: the
 * VM had a fault.
 */
bool vm_detach(struct vm *vm);

/*
 * Its addresses have gone elsewhere, with the VM itself (directory_set_moved()).  One
 * that runs all the same was begun twice, and has the fault that it is not the first.
 */
void vm_has_moved(struct vm *vm);

/*
 * The state of the device, see save.c, in @out, which is empty.  The data path is
 * paused; nothing changes that the guest or a peer could see.  What is longer than
 * vm_state_max() ends with the byte behind that: it is of no use.
 */
void vm_save(struct vm *vm, GByteArray *out);

/*
 * Make it from what vm_save() has made, anywhere, or somebody who pretends that.  The
 * device is in reset, the data path paused.  False: it is in reset again, and why.
 */
bool vm_load(struct vm *vm, const uint8_t *data, size_t len, GError **errp);

/*
 * What vm_save() writes and vm_load() reads, a line for each section
 * (state_section_name()) and each feature of the device.
 */
void vm_state_sections(GString *text);

/*
 * The guest is about to run here: its addresses become this VM's, unless they are
 * already, and interrupts that were latched leave.  EADDRINUSE: somebody has one of them,
 * and nothing has changed.
 */
int vm_claim(struct vm *vm);

/*
 * No stream that vm_load() takes for @vm is longer: what its configuration allows, and
 * less than 2 GiB.
 */
uint64_t vm_state_max(const struct vm *vm);

/*
 * About so long would be what vm_save() makes of @vm as it is, which may run: not much
 * less, and not much more but for tables whose objects are gone.
 */
uint64_t vm_state_estimate(const struct vm *vm);

#endif /* PVRDMAD_VM_ATTACH_H */
