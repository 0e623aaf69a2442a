/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The registry of declared VMs.  Main thread.
 */
#ifndef PVRDMAD_REGISTRY_H
#define PVRDMAD_REGISTRY_H

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#include "config/config.h"

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
/* May be vm->gone: then nobody begins anything with it. */
struct vm *registry_find(const char *name);
/* The first that was added after the one of this serial number; 0: of all. */
struct vm *registry_next(uint64_t serial);
GList *registry_all(void); /* of struct vm, in order of declaration; not to be freed */
unsigned registry_count(void);

/*
 * For work that lets the main loop turn, after which a VM may be gone: the names of all
 * VMs, in order; to be freed by g_ptr_array_unref.
 */
GPtrArray *registry_names(void);

/*
 * Declare @vm, not vm->gone, anew as @cfg (taken over), which has the same name.  @what:
 * the keys that differ, or NULL; to be freed.  With a VMM connected the change is made
 * when that has left; *later is set then.  False with errp: it stays as it was.
 */
bool registry_change(struct vm *vm, struct vm_config *cfg, char **what, bool *later,
                     GError **errp);

/*
 * Remove the VM, as registry_remove(); with a VMM connected when that has left (true
 * is returned then).
 */
bool registry_retire(struct vm *vm);

/*
 * VMs that were declared but could not be had, and why.  An entry goes when a VM of
 * that name is added.
 */
struct registry_failed {
    char *name, *why;
};
void registry_fail(const char *name, const char *why);
void registry_forget_failed(void);
GList *registry_failed(void); /* of struct registry_failed; not to be freed */

#endif /* PVRDMAD_REGISTRY_H */
