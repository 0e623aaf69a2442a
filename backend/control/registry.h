/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The registry of declared VMs.  Main thread.
 */
#ifndef PVRDMAD_REGISTRY_H
#define PVRDMAD_REGISTRY_H

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#include "config.h"

struct vm;

/*
 * Once per process, before the first registry_add(): make the main loop act on
 * guest_fault().  registry_stop() undoes it after the last registry_remove().
 */
bool registry_start(GError **errp);
void registry_stop(void);

/*
 * registry_add() starts to listen and takes over @cfg in any case, also when it
 * fails (name or socket in use, too many VMs, no socket).
 *
 * registry_remove() disconnects and forgets a VM that is not vm->gone yet; outside a
 * coroutine it runs the main loop until that is done.  Meanwhile the VM is listed, its
 * name and socket are taken.
 */
struct vm *registry_add(struct vm_config *cfg, GError **errp);
void registry_remove(struct vm *vm);
/* Remove all, one after the other.  Outside coroutines. */
void registry_remove_all(const char *why);
struct vm *registry_find(const char *name);
/* The first that was added after the one of this serial number; 0: of all. */
struct vm *registry_next(uint64_t serial);
GList *registry_all(void); /* of struct vm, in order of declaration; not to be freed */

#endif /* PVRDMAD_REGISTRY_H */
