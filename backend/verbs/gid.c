/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The GID table.  A bind is the guest's claim to an address: it must be one of
 * those the VM was declared with (or the VM may use any).  While the directory knows
 * another holder in the network it waits there for its turn: the guest has its entry,
 * and queue pairs with it, as no stock driver would ask again; but nothing is sent from
 * that address or comes to it.
 *
 * What comes from a state stream is claimed later, all at once: until the VM runs here
 * it may run where it comes from.
 *
 * Main thread.
 */
#include "verbs/verbs_internal.h"

#include <errno.h>
#include <string.h>

#include "base/grace.h"
#include "base/log.h"
#include "directory/directory.h"

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

enum gid_state { GID_NONE, GID_HELD, GID_WAITING };

/* With the token: the worker sends datagrams from these. */
static void gid_set(struct vm *vm, struct gid_entry *entry, enum gid_state state,
                    uint8_t type, const struct pvrdma_gid *gid)
{
    vm_token_take(vm);
    entry->bound = state != GID_NONE;
    entry->waiting = state == GID_WAITING;
    entry->type = type;
    entry->gid = *gid;
    vm_token_release(vm);
}

/* ---- waiting ---- */

/*
 * Nothing else of the VM changes with it, and nothing waits: neither `ops` is needed nor
 * the token, which its VMM could keep from the main thread.
 */
static void on_gid_granted(struct vm *vm, unsigned index)
{
    struct gid_entry *entry = &vm->objects.gid[index];
    char text[CONFIG_GID_STRLEN];

    entry->waiter = NULL;
    atomic_store(&entry->waiting, false);
    datapath_addresses_changed(vm);
    config_format_gid(&entry->gid, text);
    log_vm(LOG_LVL_INFO, vm, "%s is free: the VM has it now", text);
}

static void gid_wait(struct vm *vm, unsigned index, uint64_t waited)
{
    struct gid_entry *entry = &vm->objects.gid[index];

    entry->waiter = directory_wait(vm, index, &entry->gid, waited, on_gid_granted);
}

static void gid_wait_over(struct gid_entry *entry)
{
    if (entry->waiter) {
        directory_wait_over(entry->waiter);
        entry->waiter = NULL;
    }
}

static void gid_say_waits(struct vm *vm, const struct pvrdma_gid *gid)
{
    char text[CONFIG_GID_STRLEN], holder[DIRECTORY_HOLDER_LEN];

    config_format_gid(gid, text);
    directory_holder_text(vm->cfg->network, gid, holder);
    log_vm(LOG_LVL_WARN, vm, "%s is in use: %s has it; the VM gets it when it is free",
           text, holder);
}

static bool gid_is_possible(uint32_t index, uint8_t type, const struct pvrdma_gid *gid)
{
    return index < VERBS_GID_TBL_LEN && type == PVRDMA_GID_TYPE_ROCE_V2 &&
           gid_is_valid(gid);
}

int verbs_create_bind(struct vm *vm, const union verbs_req *cmd, union verbs_resp *resp)
{
    const struct pvrdma_cmd_create_bind *req = &cmd->abi.create_bind;
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
    err = directory_bind_in_turn(vm, &req->gid);
    if (err && err != EADDRINUSE) {
        return err;
    }
    gid_set(vm, entry, err ? GID_WAITING : GID_HELD, req->gid_type, &req->gid);
    if (err) {
        gid_wait(vm, req->index, 0);
        gid_say_waits(vm, &req->gid);
    } else {
        datapath_addresses_changed(vm);
    }
    return 0;
}

void gid_unbind(struct vm *vm, unsigned index)
{
    struct gid_entry *entry = &vm->objects.gid[index];
    struct pvrdma_gid none = {0}, gid = entry->gid;
    bool held = gid_is_held(entry);

    gid_wait_over(entry);
    gid_set(vm, entry, GID_NONE, 0, &none);
    if (!held) {
        return; /* nobody has sent from it, and what is connected from it is not bound */
    }
    /* Before another VM can have the address. */
    datapath_gid_unbound(vm, index);
    grace_wait(); /* what was sent from it is at its receiver */
    if (!vm->objects.gids_unclaimed) {
        directory_unbind(vm, &gid);
    }
}

int verbs_destroy_bind(struct vm *vm, const union verbs_req *cmd, union verbs_resp *resp)
{
    const struct pvrdma_cmd_destroy_bind *req = &cmd->abi.destroy_bind;
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

/* ---- the link ---- */

void verbs_set_link(struct vm *vm, bool up)
{
    if (atomic_load(&vm->objects.link_down) == up) {
        atomic_store(&vm->objects.link_down, !up);
        datapath_addresses_changed(vm);
        log_vm(LOG_LVL_INFO, vm, "the guest's interface is %s", up ? "up" : "down");
    }
}

void link_save(struct vm *vm, struct state_out *s)
{
    state_put_u8(s, atomic_load(&vm->objects.link_down));
}

void link_load(struct vm *vm, struct state_in *s)
{
    atomic_store(&vm->objects.link_down, state_get_bool(s));
}

/* ---- the state stream ---- */

static uint32_t gid_count(const struct gid_entry *gid, bool waiting)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < VERBS_GID_TBL_LEN; i++) {
        n += gid[i].bound && gid[i].waiting == waiting;
    }
    return n;
}

static void gid_save(const struct gid_entry *gid, uint32_t index, struct state_out *s)
{
    state_put_u32(s, index);
    state_put_u8(s, gid->type);
    state_put_bytes(s, &gid->gid, sizeof(gid->gid));
}

void gids_save(struct vm *vm, struct state_out *s)
{
    const struct gid_entry *gid = vm->objects.gid;

    state_put_u32(s, gid_count(gid, false));
    for (uint32_t i = 0; i < VERBS_GID_TBL_LEN; i++) {
        if (gid_is_held(&gid[i])) {
            gid_save(&gid[i], i, s);
        }
    }
}

/* Each with the time that it has waited: its place among others when daemons change. */
void gids_waiting_save(struct vm *vm, struct state_out *s)
{
    const struct gid_entry *gid = vm->objects.gid;

    state_put_u32(s, gid_count(gid, true));
    for (uint32_t i = 0; i < VERBS_GID_TBL_LEN; i++) {
        if (gid[i].waiting) {
            gid_save(&gid[i], i, s);
            state_put_u64(s, gid[i].waiter ? directory_waited(gid[i].waiter)
                                           : gid[i].waited);
        }
    }
}

static struct gid_entry *gid_load(struct vm *vm, struct state_in *s, enum gid_state state)
{
    uint32_t index = state_get_u32(s);
    uint8_t type = state_get_u8(s);
    struct pvrdma_gid gid;

    state_get_bytes(s, &gid, sizeof(gid));
    if (state_failed(s) || !gid_is_possible(index, type, &gid) ||
        vm->objects.gid[index].bound) {
        state_fail(s, "invalid entry %u", index);
    } else if (!gid_is_allowed(vm->cfg, &gid)) {
        state_fail(s, "entry %u is an address that the VM may not have here", index);
    } else {
        gid_set(vm, &vm->objects.gid[index], state, type, &gid);
    }
    return state_failed(s) ? NULL : &vm->objects.gid[index];
}

void gids_load(struct vm *vm, struct state_in *s)
{
    uint32_t n = state_get_count(s, VERBS_GID_TBL_LEN, 21);

    vm->objects.gids_unclaimed = true;
    for (uint32_t i = 0; i < n && !state_failed(s); i++) {
        gid_load(vm, s, GID_HELD);
    }
}

void gids_waiting_load(struct vm *vm, struct state_in *s)
{
    uint32_t n = state_get_count(s, VERBS_GID_TBL_LEN, 29);

    for (uint32_t i = 0; i < n && !state_failed(s); i++) {
        struct gid_entry *entry = gid_load(vm, s, GID_WAITING);
        uint64_t waited = state_get_u64(s);

        if (entry) {
            entry->waited = waited;
        }
    }
}

void gids_wait_anew(struct vm *vm)
{
    for (unsigned i = 0; i < VERBS_GID_TBL_LEN; i++) {
        vm->objects.gid[i].waited = 0;
    }
}

static bool gid_is_first(const struct gid_entry *gid, unsigned i)
{
    for (unsigned k = 0; k < i; k++) {
        if (gid_is_held(&gid[k]) && gid_equal(&gid[k].gid, &gid[i].gid)) {
            return false;
        }
    }
    return true;
}

void gids_look(struct vm *vm)
{
    const struct gid_entry *gid = vm->objects.gid;

    for (unsigned i = 0; i < VERBS_GID_TBL_LEN; i++) {
        if (gid_is_held(&gid[i]) && gid_is_first(gid, i)) {
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

    if (!v->gids_unclaimed) {
        return 0;
    }
    for (unsigned i = 0; i < VERBS_GID_TBL_LEN; i++) {
        if (gid_is_held(&v->gid[i])) {
            gid[n++] = v->gid[i].gid;
        }
    }
    err = directory_bind_all(vm, gid, n);
    if (err) {
        return err;
    }
    v->gids_unclaimed = false;
    datapath_addresses_changed(vm); /* what was granted may not have reached all */
    for (unsigned i = 0; i < VERBS_GID_TBL_LEN; i++) {
        if (v->gid[i].waiting) {
            gid_wait(vm, i, v->gid[i].waited);
        }
    }
    return 0;
}
