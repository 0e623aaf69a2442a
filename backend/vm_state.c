/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The state of a VM's device as one stream: which parts there are, in which order, and
 * what both sides must have in common.
 *
 * Saving changes nothing that anybody could see: the VM can go on here.  Loading fills a
 * device that is in reset; if the stream is bad in any place the device is in reset
 * again, and whoever sent it is told why.
 *
 * Parts are saved and loaded in the table's order: what refers to something comes after
 * it.  Each must be there once.  docs/state-stream.md has the fields.
 *
 * Main thread.
 */
#include "vm.h"

#include <string.h>

#include "datapath/datapath.h"
#include "device/device.h"
#include "state.h"

/* ---- what must be equal, since the guest has seen it ---- */

static void caps_save(struct vm *vm, struct state_out *s)
{
    const struct vm_config *cfg = vm->cfg;

    state_put_u32(s, cfg->max_qp);
    state_put_u32(s, cfg->max_cq);
    state_put_u32(s, cfg->max_srq);
    state_put_u32(s, cfg->max_mr);
    state_put_u32(s, cfg->max_pd);
    state_put_u32(s, cfg->max_mr_pages);
    state_put_u8(s, cfg->has_mac);
    state_put_bytes(s, cfg->mac, sizeof(cfg->mac));
    state_put_u32(s, (uint32_t)strlen(cfg->network));
    state_put_bytes(s, cfg->network, strlen(cfg->network));
}

static void same(struct state_in *s, const char *key, uint32_t here)
{
    uint32_t there = state_get_u32(s);

    if (there != here) {
        state_fail(s, "%s is %u there and %u here", key, there, here);
    }
}

static void caps_load(struct vm *vm, struct state_in *s)
{
    const struct vm_config *cfg = vm->cfg;
    uint8_t mac[sizeof(cfg->mac)];
    char network[64] = "";
    bool has_mac;
    uint32_t len;

    same(s, "max-qp", cfg->max_qp);
    same(s, "max-cq", cfg->max_cq);
    same(s, "max-srq", cfg->max_srq);
    same(s, "max-mr", cfg->max_mr);
    same(s, "max-pd", cfg->max_pd);
    same(s, "max-mr-pages", cfg->max_mr_pages);
    has_mac = state_get_bool(s);
    state_get_bytes(s, mac, sizeof(mac));
    if (has_mac != cfg->has_mac || memcmp(mac, cfg->mac, sizeof(mac)) != 0) {
        state_fail(s, "mac is not the same here");
    }
    len = state_get_count(s, sizeof(network) - 1, 1);
    state_get_bytes(s, network, len);
    if (strlen(network) != len || strcmp(network, cfg->network) != 0) {
        state_fail(s, "network is not the same here");
    }
}

/* ---- whose addresses they are, and the guest's clock ---- */

static void owner_save(struct vm *vm, struct state_out *s)
{
    state_put_u64(s, vm->owner[0]);
    state_put_u64(s, vm->owner[1]);
    state_put_u64(s, vm->generation);
}

static void owner_load(struct vm *vm, struct state_in *s)
{
    uint64_t a = state_get_u64(s), b = state_get_u64(s), generation = state_get_u64(s);

    if ((!a && !b) || !generation || generation == UINT64_MAX) {
        state_fail(s, "no owner of addresses has such a number");
        return;
    }
    vm->owner[0] = a;
    vm->owner[1] = b;
    vm->generation = generation + 1; /* it has moved */
}

/* ---- all of it ---- */

static const struct part {
    uint32_t tag;
    uint16_t version; /* the only one that is read */
    const char *what;
    void (*save)(struct vm *vm, struct state_out *s);
    void (*load)(struct vm *vm, struct state_in *s);
} parts[] = {
    {STATE_TAG('C', 'A', 'P', 'S'), 1, "limits", caps_save, caps_load},
    {STATE_TAG('O', 'W', 'N', 'R'), 1, "owner", owner_save, owner_load},
};

void vm_save(struct vm *vm, GByteArray *out)
{
    struct state_out s;

    state_out_begin(&s, out);
    for (unsigned i = 0; i < G_N_ELEMENTS(parts); i++) {
        state_section_begin(&s, parts[i].tag, parts[i].version, 0);
        parts[i].save(vm, &s);
        state_section_end(&s);
    }
    state_out_end(&s);
}

/* The sections, in the order of @parts. */
static void load_parts(struct vm *vm, struct state_in *s)
{
    struct state_section section;
    unsigned next = 0;

    while (state_section_next(s, &section)) {
        const struct part *part = next < G_N_ELEMENTS(parts) ? &parts[next] : NULL;

        if (part && section.tag == part->tag) {
            if (section.version != part->version) {
                state_fail(s, "%s: version %u, this daemon reads %u", part->what,
                           section.version, part->version);
                return;
            }
            part->load(vm, &section.in);
            state_all_read(&section.in);
            next++;
        } else if (!(section.flags & STATE_OPTIONAL)) {
            state_fail(s, "a part that is not known or not in its place: %#x",
                       section.tag);
        }
        if (state_failed(s)) {
            return;
        }
    }
    if (next < G_N_ELEMENTS(parts)) {
        state_fail(s, "%s: missing", parts[next].what);
    }
}

bool vm_load(struct vm *vm, const uint8_t *data, size_t len, GError **errp)
{
    uint64_t owner[2] = {vm->owner[0], vm->owner[1]}, generation = vm->generation;
    char error[STATE_ERROR_MAX];
    struct state_in s;

    state_in_begin(&s, data, len, error);
    if (!state_failed(&s)) {
        load_parts(vm, &s);
    }
    if (!state_failed(&s)) {
        return true;
    }
    device_reset(vm->dev);
    vm->owner[0] = owner[0];
    vm->owner[1] = owner[1];
    vm->generation = generation;
    g_set_error(errp, PVRDMA_ERROR, 0, "the state of the device: %s", error);
    return false;
}
