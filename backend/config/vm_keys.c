/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A VM's configuration as the keys that it is made of, for config_vm_set(). */
#include <inttypes.h>

#include "config.h"

struct out {
    config_key_fn *fn;
    void *opaque;
};

static void put(const struct out *o, const char *key, const char *value)
{
    o->fn(o->opaque, key, value);
}

static void put_number(const struct out *o, const char *key, uint64_t value)
{
    g_autofree char *text = g_strdup_printf("%" PRIu64, value);

    put(o, key, text);
}

/* "any", or a list. */
static void put_list(const struct out *o, const char *key, bool any, GString *list)
{
    put(o, key, any ? "any" : list->str);
    g_string_free(list, TRUE);
}

static void put_addresses(const struct out *o, const struct vm_config *vm)
{
    GString *s = g_string_new(NULL);
    char text[CONFIG_GID_STRLEN];

    for (unsigned i = 0; i < vm->n_addresses; i++) {
        config_format_gid(&vm->addresses[i], text);
        g_string_append_printf(s, "%s;", text);
    }
    put_list(o, "addresses", vm->any_address, s);
}

static void put_uids(const struct out *o, const struct vm_config *vm)
{
    GString *s = g_string_new(NULL);

    for (unsigned i = 0; i < vm->n_uids; i++) {
        g_string_append_printf(s, "%u;", vm->uids[i]);
    }
    put_list(o, "uid", vm->any_uid, s);
}

static void put_workers(const struct out *o, const struct vm_config *vm)
{
    GString *s = g_string_new(NULL);

    for (unsigned i = 0; i < CONFIG_MAX_WORKERS; i++) {
        if (vm->workers >> i & 1) {
            g_string_append_printf(s, "%u;", i);
        }
    }
    put_list(o, "worker", !vm->workers, s);
}

/* All that config_vm_keys() may pass. */
static const char *const names[] = {
    "socket",    "network",        "addresses", "mac",          "max-qp",   "max-cq",
    "max-srq",   "max-mr",         "max-pd",    "max-mr-pages", "shares",   "max-memory",
    "max-files", "require-sealed", "uid",       "worker",       "nic-rate", "nic-dscp",
};

void config_vm_key_names(GString *text)
{
    for (unsigned i = 0; i < G_N_ELEMENTS(names); i++) {
        g_string_append_printf(text, "key %s\n", names[i]);
    }
}

void config_vm_keys(const struct vm_config *vm, config_key_fn *fn, void *opaque)
{
    const struct out o = {fn, opaque};
    g_autofree char *mac =
        g_strdup_printf("%02x:%02x:%02x:%02x:%02x:%02x", vm->mac[0], vm->mac[1],
                        vm->mac[2], vm->mac[3], vm->mac[4], vm->mac[5]);

    put(&o, "socket", vm->socket);
    put(&o, "network", vm->network);
    put_addresses(&o, vm);
    if (vm->has_mac) {
        put(&o, "mac", mac);
    }
    put_number(&o, "max-qp", vm->max_qp);
    put_number(&o, "max-cq", vm->max_cq);
    put_number(&o, "max-srq", vm->max_srq);
    put_number(&o, "max-mr", vm->max_mr);
    put_number(&o, "max-pd", vm->max_pd);
    put_number(&o, "max-mr-pages", vm->max_mr_pages);
    put_number(&o, "shares", vm->shares);
    put_number(&o, "max-memory", vm->max_memory);
    put_number(&o, "max-files", vm->max_files);
    put(&o, "require-sealed", vm->require_sealed ? "true" : "false");
    put_uids(&o, vm);
    if (vm->own_workers) {
        put_workers(&o, vm);
    }
    if (vm->own_rate && vm->nic_rate) {
        put_number(&o, "nic-rate", vm->nic_rate);
    } else if (vm->own_rate) {
        put(&o, "nic-rate", "none");
    }
    if (vm->own_dscp) {
        put_number(&o, "nic-dscp", vm->nic_dscp);
    }
}
