/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What can be configured for an RDMA NIC: the keys of [nic NAME].  Main thread only. */
#include "config.h"

#include <string.h>

#define DEFAULT_FABRIC   "default"
#define DEFAULT_REQUESTS 1024u

struct nic_config *config_nic_new(const char *name, GError **errp)
{
    struct nic_config *nic;

    if (!config_valid_name(name)) {
        g_set_error(errp, PVRDMA_ERROR, 0,
                    "the name must be 1 to 63 letters, digits, '_', '.' or '-'");
        return NULL;
    }
    nic = g_new0(struct nic_config, 1);
    nic->name = g_strdup(name);
    nic->fabric = g_strdup(DEFAULT_FABRIC);
    nic->max_requests = DEFAULT_REQUESTS;
    return nic;
}

/* A name of a file in /sys, and nothing for the log or a terminal in it. */
static bool device_ok(const char *name)
{
    size_t len = strlen(name);

    for (size_t i = 0; i < len; i++) {
        if (!g_ascii_isgraph(name[i]) || name[i] == '/') {
            return false;
        }
    }
    return len >= 1 && len <= CONFIG_MAX_DEVICE;
}

/* Of IP, and not of one link only: no link would be named. */
static bool parse_address(const char *text, struct pvrdma_gid *address)
{
    return config_parse_gid(text, address) &&
           !(address->raw[0] == 0xfe && (address->raw[1] & 0xc0) == 0x80);
}

static bool parse_networks(struct nic_config *nic, const char *value, GError **errp)
{
    g_auto(GStrv) words = g_strsplit_set(value, ";,", -1);
    g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(g_free);

    for (char **w = words; *w; w++) {
        g_strstrip(*w);
        if (!**w) {
            continue; /* a list may end in a separator */
        }
        if (!config_valid_name(*w)) {
            return config_fail(errp, "networks", "is not a list of names of networks");
        }
        g_ptr_array_add(names, g_strdup(*w));
    }
    if (!names->len) {
        return config_fail(errp, "networks", "names no network");
    }
    g_ptr_array_add(names, NULL);
    g_strfreev(nic->networks);
    nic->networks = (char **)g_ptr_array_free(g_steal_pointer(&names), FALSE);
    return true;
}

bool config_nic_set(struct nic_config *nic, const char *key, const char *value,
                    GError **errp)
{
    if (strcmp(key, "device") == 0) {
        if (!device_ok(value)) {
            return config_fail(errp, key, "is not the name of an RDMA device");
        }
        g_free(nic->device);
        nic->device = g_strdup(value);
        return true;
    }
    if (strcmp(key, "address") == 0) {
        return parse_address(value, &nic->address) ||
               config_fail(errp, key,
                           "is not an IPv4 or IPv6 address; link-local addresses are not "
                           "supported");
    }
    if (strcmp(key, "fabric") == 0) {
        if (!config_valid_name(value)) {
            return config_fail(errp, key,
                               "must be 1 to 63 letters, digits, '_', '.' or '-'");
        }
        g_free(nic->fabric);
        nic->fabric = g_strdup(value);
        return true;
    }
    if (strcmp(key, "networks") == 0) {
        return parse_networks(nic, value, errp);
    }
    if (strcmp(key, "max-in-flight") == 0) {
        return config_parse_size(key, value, 64u << 10, 1u << 30, &nic->max_in_flight,
                                 errp);
    }
    if (strcmp(key, "max-requests") == 0) {
        return config_parse_uint(key, value, 16, 1u << 20, &nic->max_requests, errp);
    }
    return config_fail(errp, key, "unknown key");
}

bool config_nic_finish(const struct daemon_config *cfg, struct nic_config *nic,
                       GError **errp)
{
    static const struct pvrdma_gid none;

    if (g_list_length(cfg->nics) >= CONFIG_MAX_NICS) {
        g_set_error(errp, PVRDMA_ERROR, 0, "more than %d NICs", CONFIG_MAX_NICS);
        return false;
    }
    if (!nic->device) {
        return config_fail(errp, "device", "is missing");
    }
    if (memcmp(&nic->address, &none, sizeof(none)) == 0) {
        return config_fail(errp, "address", "is missing");
    }
    for (GList *l = cfg->nics; l; l = l->next) {
        const struct nic_config *other = l->data;

        if (memcmp(&other->address, &nic->address, sizeof(none)) == 0) {
            g_set_error(errp, PVRDMA_ERROR, 0, "address: belongs to [nic %s]",
                        other->name);
            return false;
        }
    }
    return true;
}

void config_nic_free(struct nic_config *nic)
{
    if (nic) {
        g_free(nic->name);
        g_free(nic->device);
        g_free(nic->fabric);
        g_strfreev(nic->networks);
        g_free(nic);
    }
}

bool config_nic_same(const struct nic_config *a, const struct nic_config *b)
{
    return strcmp(a->device, b->device) == 0 &&
           memcmp(&a->address, &b->address, sizeof(a->address)) == 0 &&
           strcmp(a->fabric, b->fabric) == 0 && a->max_in_flight == b->max_in_flight &&
           a->max_requests == b->max_requests && !a->networks == !b->networks &&
           (!a->networks || g_strv_equal((const char *const *)a->networks,
                                         (const char *const *)b->networks));
}
