/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The GID table.  A bind is the guest's claim to an address: it must be one of
 * those the VM was declared with (or the VM may use any), and the directory
 * must not know another holder in the network.
 *
 * What comes from a state stream is claimed later, all at once: until the VM runs here
 * it may run where it comes from.
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

static bool gid_is_possible(uint32_t index, uint8_t type, const struct pvrdma_gid *gid)
{
    return index < VERBS_GID_TBL_LEN && type == PVRDMA_GID_TYPE_ROCE_V2 &&
           gid_is_valid(gid);
}

int verbs_create_bind(struct vm *vm, const struct pvrdma_cmd_create_bind *req)
{
    struct gid_entry *entry;
    int err;

    if (!gid_is_possible(req->index, req->gid_type, &req->gid) ||
        req->vlan != VLAN_NONE) {
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
    if (!vm->objects.gids_unclaimed) {
        directory_unbind(vm, &gid);
    }
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

/* ---- the state stream ---- */

void gids_save(struct vm *vm, struct state_out *s)
{
    const struct gid_entry *gid = vm->objects.gid;
    uint32_t n = 0;

    for (uint32_t i = 0; i < VERBS_GID_TBL_LEN; i++) {
        n += gid[i].bound;
    }
    state_put_u32(s, n);
    for (uint32_t i = 0; i < VERBS_GID_TBL_LEN; i++) {
        if (gid[i].bound) {
            state_put_u32(s, i);
            state_put_u8(s, gid[i].type);
            state_put_bytes(s, &gid[i].gid, sizeof(gid[i].gid));
        }
    }
}

static void gid_load(struct vm *vm, struct state_in *s)
{
    uint32_t index = state_get_u32(s);
    uint8_t type = state_get_u8(s);
    struct pvrdma_gid gid;

    state_get_bytes(s, &gid, sizeof(gid));
    if (state_failed(s) || !gid_is_possible(index, type, &gid) ||
        vm->objects.gid[index].bound) {
        state_fail(s, "entry %u cannot be", index);
    } else if (!gid_is_allowed(vm->cfg, &gid)) {
        state_fail(s, "entry %u is an address that the VM may not have here", index);
    } else {
        gid_set(vm, &vm->objects.gid[index], true, type, &gid);
    }
}

void gids_load(struct vm *vm, struct state_in *s)
{
    uint32_t n = state_get_count(s, VERBS_GID_TBL_LEN, 21);

    vm->objects.gids_unclaimed = true;
    for (uint32_t i = 0; i < n && !state_failed(s); i++) {
        gid_load(vm, s);
    }
}

static bool is_first(const struct gid_entry *gid, unsigned i)
{
    for (unsigned k = 0; k < i; k++) {
        if (gid[k].bound && gid_equal(&gid[k].gid, &gid[i].gid)) {
            return false;
        }
    }
    return true;
}

void gids_look(struct vm *vm)
{
    const struct gid_entry *gid = vm->objects.gid;

    for (unsigned i = 0; i < VERBS_GID_TBL_LEN; i++) {
        if (gid[i].bound && is_first(gid, i)) {
            directory_look(vm->cfg->network, &gid[i].gid);
        }
    }
}

int gids_claim(struct vm *vm)
{
    struct pvrdma_gid gid[VERBS_GID_TBL_LEN];
    struct objects *v = &vm->objects;
    unsigned n = 0;
    int err;

    for (unsigned i = 0; v->gids_unclaimed && i < VERBS_GID_TBL_LEN; i++) {
        if (v->gid[i].bound) {
            gid[n++] = v->gid[i].gid;
        }
    }
    err = directory_bind_all(vm, gid, n);
    if (!err) {
        v->gids_unclaimed = false;
    }
    return err;
}
