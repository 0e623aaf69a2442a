/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The GID table.  A bind is the guest's claim to an address: it must be one of
 * those the VM was declared with (or the VM may use any), and the directory
 * must not know another holder in the network.
 *
 * Main thread.
 */
#include "verbs/verbs_internal.h"

#include <errno.h>
#include <string.h>

#include "directory/directory.h"
#include "grace.h"

#define VLAN_NONE 0xfffu

/* Unicast, as IPv6 or as IPv4, and not the unspecified address. */
static bool gid_is_valid(const struct pvrdma_gid *gid)
{
    static const struct pvrdma_gid zero;
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

    if (memcmp(gid->raw, mapped, sizeof(mapped)) == 0) {
        return gid->raw[12] < 224; /* not multicast, reserved, broadcast */
    }
    return gid->raw[0] != 0xff && !gid_equal(gid, &zero);
}

static bool gid_is_allowed(const struct vm_config *cfg, const struct pvrdma_gid *gid)
{
    if (cfg->any_address) {
        return true;
    }
    for (unsigned i = 0; i < cfg->n_addresses; i++) {
        if (gid_equal(&cfg->addresses[i], gid)) {
            return true;
        }
    }
    return false;
}

/* With the token: the worker sends datagrams from these. */
static void gid_set(struct vm *vm, struct gid_entry *entry, bool bound, uint8_t type,
                    const struct pvrdma_gid *gid)
{
    vm_token_take(vm);
    entry->bound = bound;
    entry->type = type;
    entry->gid = *gid;
    vm_token_release(vm);
}

int verbs_create_bind(struct vm *vm, const struct pvrdma_cmd_create_bind *req)
{
    struct gid_entry *entry;
    int err;

    if (req->index >= VERBS_GID_TBL_LEN || req->gid_type != PVRDMA_GID_TYPE_ROCE_V2 ||
        req->vlan != VLAN_NONE || !gid_is_valid(&req->gid)) {
        return EINVAL;
    }
    entry = &vm->objects.gid[req->index];
    if (entry->bound) {
        return gid_equal(&entry->gid, &req->gid) ? 0 : EBUSY;
    }
    if (!gid_is_allowed(vm->cfg, &req->gid)) {
        return EPERM;
    }
    err = directory_bind(vm, &req->gid);
    if (err) {
        return err;
    }
    gid_set(vm, entry, true, req->gid_type, &req->gid);
    return 0;
}

void gid_unbind(struct vm *vm, unsigned index)
{
    struct gid_entry *entry = &vm->objects.gid[index];
    struct pvrdma_gid none = {0}, gid = entry->gid;

    gid_set(vm, entry, false, 0, &none);
    /* Before another VM can have the address. */
    datapath_gid_unbound(vm, index);
    grace_wait(); /* what was sent from it is at its receiver */
    directory_unbind(vm, &gid);
}

int verbs_destroy_bind(struct vm *vm, const struct pvrdma_cmd_destroy_bind *req)
{
    struct gid_entry *entry;

    if (req->index >= VERBS_GID_TBL_LEN) {
        return EINVAL;
    }
    entry = &vm->objects.gid[req->index];
    if (!entry->bound || !gid_equal(&entry->gid, &req->gid)) {
        return ENOENT;
    }
    gid_unbind(vm, req->index);
    return 0;
}
