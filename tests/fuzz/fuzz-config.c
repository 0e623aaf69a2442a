/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Fuzz target: the key file.  Whatever is accepted must be within the limits
 * that the rest of the daemon relies on.
 */
#include <stddef.h>
#include <sys/mman.h>
#include <sys/un.h>
#include <unistd.h>

#include "config/config.h"
#include "fuzz.h"

static bool path_ok(const char *path)
{
    return path && path[0] == '/' &&
           strlen(path) < sizeof(((struct sockaddr_un *)0)->sun_path);
}

static void check(const struct daemon_config *cfg)
{
    if (cfg->workers < 1 || cfg->workers > CONFIG_MAX_WORKERS ||
        cfg->poll_us > CONFIG_MAX_POLL_US || !path_ok(cfg->socket_dir) ||
        !cfg->control_socket || g_list_length(cfg->vms) > CONFIG_MAX_VMS) {
        abort();
    }
    for (GList *l = cfg->vms; l; l = l->next) {
        const struct vm_config *vm = l->data;

        if (!config_valid_name(vm->name) || !config_valid_name(vm->network) ||
            !path_ok(vm->socket) || vm->max_qp < 2 || vm->max_qp > 65535 ||
            vm->max_cq < 2 || vm->max_cq > 65535 || vm->max_pd < 2 ||
            vm->max_pd > 65535 || vm->max_mr < 2 || vm->max_mr > 1u << 20 ||
            vm->max_mr_pages < 1 || vm->max_memory < 1u << 20 ||
            vm->max_memory > 1ull << 46 || vm->nic_rate > 1ull << 40 ||
            (vm->nic_rate && vm->nic_rate < 1u << 20) || vm->nic_dscp > 63 ||
            vm->max_files < 1 || vm->max_files > 1024 ||
            vm->n_addresses > CONFIG_MAX_ADDRESSES ||
            (vm->any_address && vm->n_addresses) || vm->n_uids > CONFIG_MAX_UIDS ||
            vm->any_uid != (vm->n_uids == 0)) {
            abort();
        }
        for (GList *other = cfg->vms; other != l; other = other->next) {
            if (strcmp(((struct vm_config *)other->data)->name, vm->name) == 0) {
                abort();
            }
        }
    }
    if (cfg->n_listen > CONFIG_MAX_LISTEN || cfg->peer_timeout < 1 ||
        cfg->peer_timeout > 3600 || cfg->hold_timeout < 1 ||
        cfg->hold_timeout > CONFIG_MAX_HOLD ||
        g_list_length(cfg->peers) > CONFIG_MAX_PEERS) {
        abort();
    }
    for (GList *l = cfg->peers; l; l = l->next) {
        const struct peer_config *peer = l->data;

        if (!config_valid_name(peer->name) || strcmp(peer->name, cfg->host_name) == 0 ||
            config_any_host(&peer->address) || peer->secret_len < CONFIG_MIN_SECRET ||
            peer->secret_len > CONFIG_MAX_SECRET || peer->max_queued < 65536) {
            abort();
        }
    }
    if (g_list_length(cfg->nics) > CONFIG_MAX_NICS) {
        abort();
    }
    for (GList *l = cfg->nics; l; l = l->next) {
        const struct nic_config *nic = l->data;

        if (!config_valid_name(nic->name) || !config_valid_name(nic->fabric) ||
            !nic->device || !*nic->device || strlen(nic->device) > CONFIG_MAX_DEVICE ||
            strchr(nic->device, '/') || nic->max_in_flight > 1u << 30 ||
            (nic->max_in_flight && nic->max_in_flight < 65536) ||
            nic->max_requests < 16 || nic->max_requests > 1u << 20 ||
            (nic->networks && !*nic->networks)) {
            abort();
        }
        for (char **net = nic->networks; net && *net; net++) {
            if (!config_valid_name(*net)) {
                abort();
            }
        }
    }
    for (GList *l = cfg->problems; l; l = l->next) {
        const struct config_problem *p = l->data;

        /* They go into JSON. */
        if (!g_utf8_validate(p->name, -1, NULL) || !g_utf8_validate(p->why, -1, NULL)) {
            abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    static char path[64];
    struct daemon_config *cfg;
    g_autoptr(GError) err = NULL;

    if (fd < 0) {
        fd = memfd_create("key-file", MFD_CLOEXEC);
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    }
    if (ftruncate(fd, 0) < 0 || pwrite(fd, data, size, 0) != (ssize_t)size) {
        return 0;
    }
    cfg = config_new();
    if (config_load(cfg, path, &err)) {
        check(cfg);
    } else if (!err) {
        abort();
    }
    config_free(cfg);
    return 0;
}
