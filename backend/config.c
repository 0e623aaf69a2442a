/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The key file: parsing and range checks.
 *
 * Every value goes through the same setter whether it comes from the file, the
 * command line or the admin socket, so the limits hold everywhere.  Main
 * thread only; the result is read-only for everybody else.
 */
#include "config.h"

#include <arpa/inet.h>
#include <string.h>
#include <sys/un.h>

#define DEFAULT_NETWORK "default"

static bool fail(GError **errp, const char *key, const char *why)
{
    g_set_error(errp, PVRDMA_ERROR, 0, "%s: %s", key, why);
    return false;
}

bool config_valid_name(const char *text)
{
    size_t n = strlen(text);

    if (n == 0 || n > 63 || strcmp(text, ".") == 0 || strcmp(text, "..") == 0) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        if (!g_ascii_isalnum(text[i]) && !strchr("_.-", text[i])) {
            return false;
        }
    }
    return true;
}

static bool parse_uint(const char *key, const char *value, uint32_t min, uint32_t max,
                       uint32_t *out, GError **errp)
{
    guint64 n;

    if (!g_ascii_string_to_unsigned(value, 10, min, max, &n, NULL)) {
        g_set_error(errp, PVRDMA_ERROR, 0, "%s: \"%s\" is not a number from %u to %u",
                    key, value, min, max);
        return false;
    }
    *out = n;
    return true;
}

/* Bytes: a number, with K, M, G or T after it for powers of 1024. */
static bool parse_size(const char *key, const char *value, uint64_t min, uint64_t max,
                       uint64_t *out, GError **errp)
{
    static const char units[] = "KMGT";
    g_autofree char *number = g_strdup(value);
    size_t len = strlen(number);
    const char *unit = len ? strchr(units, g_ascii_toupper(number[len - 1])) : NULL;
    unsigned shift = 0;
    guint64 n;

    if (unit) {
        shift = 10 * (unsigned)(unit - units + 1);
        number[len - 1] = 0;
    }
    if (!g_ascii_string_to_unsigned(number, 10, 0, max >> shift, &n, NULL) ||
        n << shift < min) {
        g_set_error(errp, PVRDMA_ERROR, 0,
                    "%s: \"%s\" is not a size from %" G_GUINT64_FORMAT
                    " to %" G_GUINT64_FORMAT " bytes (or with K, M, G or T)",
                    key, value, (guint64)min, (guint64)max);
        return false;
    }
    *out = n << shift;
    return true;
}

static bool parse_bool(const char *key, const char *value, bool *out, GError **errp)
{
    if (strcmp(value, "true") == 0 || strcmp(value, "yes") == 0) {
        *out = true;
    } else if (strcmp(value, "false") == 0 || strcmp(value, "no") == 0) {
        *out = false;
    } else {
        return fail(errp, key, "expected true or false");
    }
    return true;
}

/* A path for a UNIX socket (or a directory of such), made absolute. */
static bool parse_path(const char *key, const char *value, char **out, GError **errp)
{
    g_autofree char *path = NULL;

    if (!*value) {
        return fail(errp, key, "is empty");
    }
    path = g_canonicalize_filename(value, NULL);
    if (strlen(path) >= sizeof(((struct sockaddr_un *)0)->sun_path)) {
        return fail(errp, key, "path is too long for a UNIX socket");
    }
    g_free(*out);
    *out = g_steal_pointer(&path);
    return true;
}

static bool parse_mac(const char *text, uint8_t mac[6])
{
    if (strlen(text) != 17) {
        return false;
    }
    for (unsigned i = 0; i < 6; i++) {
        int hi = g_ascii_xdigit_value(text[3 * i]);
        int lo = g_ascii_xdigit_value(text[3 * i + 1]);

        if (hi < 0 || lo < 0 || (i < 5 && text[3 * i + 2] != ':')) {
            return false;
        }
        mac[i] = hi << 4 | lo;
    }
    return true;
}

bool config_parse_gid(const char *text, struct pvrdma_gid *gid)
{
    static const uint8_t zero[16];
    uint8_t mac[6], v4[4];

    memset(gid, 0, sizeof(*gid));
    if (parse_mac(text, mac)) {
        if (mac[0] & 1) {
            return false; /* multicast */
        }
        /* Modified EUI-64 (RFC 4291, appendix A): U/L bit flipped. */
        gid->raw[0] = 0xfe;
        gid->raw[1] = 0x80;
        gid->raw[8] = mac[0] ^ 2;
        gid->raw[9] = mac[1];
        gid->raw[10] = mac[2];
        gid->raw[11] = 0xff;
        gid->raw[12] = 0xfe;
        gid->raw[13] = mac[3];
        gid->raw[14] = mac[4];
        gid->raw[15] = mac[5];
        return true;
    }
    if (inet_pton(AF_INET, text, v4) == 1) {
        if (v4[0] == 0 || v4[0] >= 224) {
            return false; /* "this network", multicast, reserved */
        }
        gid->raw[10] = 0xff;
        gid->raw[11] = 0xff;
        memcpy(&gid->raw[12], v4, 4);
        return true;
    }
    return inet_pton(AF_INET6, text, gid->raw) == 1 && gid->raw[0] != 0xff &&
           memcmp(gid->raw, zero, 16) != 0;
}

void config_format_gid(const struct pvrdma_gid *gid, char text[CONFIG_GID_STRLEN])
{
    static const uint8_t v4_prefix[12] = {[10] = 0xff, [11] = 0xff};

    if (memcmp(gid->raw, v4_prefix, 12) == 0) {
        inet_ntop(AF_INET, &gid->raw[12], text, CONFIG_GID_STRLEN);
    } else {
        inet_ntop(AF_INET6, gid->raw, text, CONFIG_GID_STRLEN);
    }
}

static bool parse_addresses(struct vm_config *vm, const char *value, GError **errp)
{
    g_autofree struct pvrdma_gid *gids = NULL;
    g_auto(GStrv) words = NULL;
    unsigned n = 0;

    if (strcmp(value, "any") == 0) {
        g_clear_pointer(&vm->addresses, g_free);
        vm->n_addresses = 0;
        vm->any_address = true;
        return true;
    }
    words = g_strsplit_set(value, ";,", CONFIG_MAX_ADDRESSES + 2);
    gids = g_new0(struct pvrdma_gid, CONFIG_MAX_ADDRESSES);
    for (char **w = words; *w; w++) {
        g_strstrip(*w);
        if (!**w) {
            continue; /* a list may end in a separator */
        }
        if (n == CONFIG_MAX_ADDRESSES) {
            return fail(errp, "addresses", "too many");
        }
        if (!config_parse_gid(*w, &gids[n])) {
            g_set_error(errp, PVRDMA_ERROR, 0,
                        "addresses: \"%s\" is not an IPv4, IPv6 or MAC address", *w);
            return false;
        }
        n++;
    }
    g_free(vm->addresses);
    vm->addresses = g_steal_pointer(&gids);
    vm->n_addresses = n;
    vm->any_address = false;
    return true;
}

/* ---- [vm NAME] ---- */

struct vm_config *config_vm_new(const struct daemon_config *cfg, const char *name,
                                GError **errp)
{
    struct vm_config *vm;
    g_autofree char *path = NULL;

    if (!config_valid_name(name)) {
        g_set_error(errp, PVRDMA_ERROR, 0,
                    "VM name must be 1 to 63 letters, digits, '_', '.' or '-'");
        return NULL;
    }
    vm = g_new0(struct vm_config, 1);
    vm->name = g_strdup(name);
    vm->network = g_strdup(DEFAULT_NETWORK);
    vm->max_qp = 16384;
    vm->max_cq = 16384;
    vm->max_mr = 65536;
    vm->max_pd = 8192;
    vm->max_mr_pages = 16u << 20;
    vm->shares = VM_SHARES_DEFAULT;
    vm->max_memory = UINT64_C(4) << 40;
    vm->max_files = 64;
    vm->require_sealed = cfg->require_sealed;
    path = g_strdup_printf("%s/%s.sock", cfg->socket_dir, name);
    if (!parse_path("socket", path, &vm->socket, errp)) {
        config_vm_free(vm);
        return NULL;
    }
    return vm;
}

bool config_vm_set(struct vm_config *vm, const char *key, const char *value,
                   GError **errp)
{
    if (strcmp(key, "socket") == 0) {
        return parse_path(key, value, &vm->socket, errp);
    }
    if (strcmp(key, "network") == 0) {
        if (!config_valid_name(value)) {
            return fail(errp, key, "must be 1 to 63 letters, digits, '_', '.' or '-'");
        }
        g_free(vm->network);
        vm->network = g_strdup(value);
        return true;
    }
    if (strcmp(key, "addresses") == 0) {
        return parse_addresses(vm, value, errp);
    }
    if (strcmp(key, "mac") == 0) {
        vm->has_mac = parse_mac(value, vm->mac) && !(vm->mac[0] & 1);
        return vm->has_mac || fail(errp, key, "is not a unicast MAC address");
    }
    if (strcmp(key, "max-qp") == 0) {
        return parse_uint(key, value, 2, 65535, &vm->max_qp, errp);
    }
    if (strcmp(key, "max-cq") == 0) {
        return parse_uint(key, value, 2, 65535, &vm->max_cq, errp);
    }
    if (strcmp(key, "max-mr") == 0) {
        return parse_uint(key, value, 2, 1u << 20, &vm->max_mr, errp);
    }
    if (strcmp(key, "max-pd") == 0) {
        return parse_uint(key, value, 2, 65535, &vm->max_pd, errp);
    }
    if (strcmp(key, "max-mr-pages") == 0) {
        return parse_uint(key, value, 1, UINT32_MAX, &vm->max_mr_pages, errp);
    }
    if (strcmp(key, "shares") == 0) {
        return parse_uint(key, value, 1, 10000, &vm->shares, errp);
    }
    if (strcmp(key, "max-memory") == 0) {
        return parse_size(key, value, 1u << 20, UINT64_C(1) << 46, &vm->max_memory, errp);
    }
    if (strcmp(key, "max-files") == 0) {
        return parse_uint(key, value, 1, 1024, &vm->max_files, errp);
    }
    if (strcmp(key, "require-sealed") == 0) {
        return parse_bool(key, value, &vm->require_sealed, errp);
    }
    return fail(errp, key, "unknown key");
}

void config_vm_free(struct vm_config *vm)
{
    if (!vm) {
        return;
    }
    g_free(vm->name);
    g_free(vm->socket);
    g_free(vm->network);
    g_free(vm->addresses);
    g_free(vm);
}

/* ---- [daemon] ---- */

enum daemon_key {
    KEY_SOCKET_DIR,
    KEY_CONTROL_SOCKET,
    KEY_WORKERS,
    KEY_WORKER_PRIORITY,
    KEY_POLL_US,
    KEY_LOG_LEVEL,
    KEY_REQUIRE_SEALED,
    KEY_MAX_MAPPED,
    KEY_COUNT,
};

static const char *const daemon_keys[KEY_COUNT] = {
    [KEY_SOCKET_DIR] = "socket-dir",
    [KEY_CONTROL_SOCKET] = "control-socket",
    [KEY_WORKERS] = "workers",
    [KEY_WORKER_PRIORITY] = "worker-priority",
    [KEY_POLL_US] = "poll-us",
    [KEY_LOG_LEVEL] = "log-level",
    [KEY_REQUIRE_SEALED] = "require-sealed",
    [KEY_MAX_MAPPED] = "max-mapped",
};

static int find_daemon_key(const char *key)
{
    for (int k = 0; k < KEY_COUNT; k++) {
        if (strcmp(key, daemon_keys[k]) == 0) {
            return k;
        }
    }
    return -1;
}

struct daemon_config *config_new(void)
{
    struct daemon_config *cfg = g_new0(struct daemon_config, 1);

    cfg->socket_dir = g_strdup(PVRDMA_SOCKET_DIR);
    cfg->workers = 1;
    cfg->poll_us = 50;
    cfg->require_sealed = true;
    cfg->max_mapped = UINT64_C(64) << 40;
    cfg->log_level = LOG_LVL_INFO;
    return cfg;
}

void config_free(struct daemon_config *cfg)
{
    if (!cfg) {
        return;
    }
    g_free(cfg->socket_dir);
    g_free(cfg->control_socket);
    g_list_free_full(cfg->vms, (GDestroyNotify)config_vm_free);
    g_free(cfg);
}

bool config_set(struct daemon_config *cfg, const char *key, const char *value, bool fixed,
                GError **errp)
{
    int k = find_daemon_key(key);
    bool ok = true;

    switch (k) {
    case KEY_SOCKET_DIR:
        ok = parse_path(key, value, &cfg->socket_dir, errp);
        break;
    case KEY_CONTROL_SOCKET:
        ok = parse_path(key, value, &cfg->control_socket, errp);
        break;
    case KEY_WORKERS:
        ok = parse_uint(key, value, 1, CONFIG_MAX_WORKERS, &cfg->workers, errp);
        break;
    case KEY_WORKER_PRIORITY:
        if (!priority_parse(value, &cfg->worker_priority)) {
            ok = fail(errp, key,
                      "expected auto, normal, nice:-20 to nice:19, fifo:1 to fifo:99 or "
                      "rr:1 to rr:99");
        }
        break;
    case KEY_POLL_US:
        ok = parse_uint(key, value, 0, CONFIG_MAX_POLL_US, &cfg->poll_us, errp);
        break;
    case KEY_LOG_LEVEL:
        if (!log_parse_level(value, &cfg->log_level)) {
            ok = fail(errp, key, "expected error, warn, info or debug");
        }
        break;
    case KEY_REQUIRE_SEALED:
        ok = parse_bool(key, value, &cfg->require_sealed, errp);
        break;
    case KEY_MAX_MAPPED:
        ok =
            parse_size(key, value, 1u << 30, UINT64_C(112) << 40, &cfg->max_mapped, errp);
        break;
    default:
        return fail(errp, key, "unknown key");
    }
    if (ok && fixed) {
        cfg->fixed |= 1u << k;
    }
    return ok;
}

void config_complete(struct daemon_config *cfg)
{
    if (!cfg->control_socket) {
        cfg->control_socket = g_strdup_printf("%s/control", cfg->socket_dir);
    }
}

/* Call one of the two setters for each key of @group. */
static bool load_group(struct daemon_config *cfg, struct vm_config *vm, GKeyFile *kf,
                       const char *group, GError **errp)
{
    g_auto(GStrv) keys = g_key_file_get_keys(kf, group, NULL, NULL);

    for (char **key = keys; key && *key; key++) {
        g_autofree char *value = g_key_file_get_string(kf, group, *key, errp);
        bool ok;

        if (!value) {
            g_prefix_error(errp, "[%s] %s: ", group, *key);
            return false;
        }
        g_strstrip(value);
        if (vm) {
            ok = config_vm_set(vm, *key, value, errp);
        } else {
            int k = find_daemon_key(*key);

            ok = (k >= 0 && cfg->fixed & 1u << k) ||
                 config_set(cfg, *key, value, false, errp);
        }
        if (!ok) {
            g_prefix_error(errp, "[%s] ", group);
            return false;
        }
    }
    return true;
}

static bool load_vm(struct daemon_config *cfg, GKeyFile *kf, const char *group,
                    GError **errp)
{
    struct vm_config *vm;

    if (g_list_length(cfg->vms) >= CONFIG_MAX_VMS) {
        g_set_error(errp, PVRDMA_ERROR, 0, "[%s] more than %d VMs", group,
                    CONFIG_MAX_VMS);
        return false;
    }
    vm = config_vm_new(cfg, group + strlen("vm "), errp);
    if (!vm) {
        g_prefix_error(errp, "[%s] ", group);
        return false;
    }
    if (!load_group(cfg, vm, kf, group, errp)) {
        config_vm_free(vm);
        return false;
    }
    cfg->vms = g_list_append(cfg->vms, vm);
    return true;
}

bool config_load(struct daemon_config *cfg, const char *path, GError **errp)
{
    g_autoptr(GKeyFile) kf = g_key_file_new();
    g_auto(GStrv) groups = NULL;

    if (!g_key_file_load_from_file(kf, path, G_KEY_FILE_NONE, errp)) {
        g_prefix_error(errp, "%s: ", path);
        return false;
    }
    /* [daemon] first, wherever it stands: the VMs' defaults depend on it. */
    if (!load_group(cfg, NULL, kf, "daemon", errp)) {
        g_prefix_error(errp, "%s: ", path);
        return false;
    }
    config_complete(cfg);

    groups = g_key_file_get_groups(kf, NULL);
    for (char **g = groups; *g; g++) {
        bool ok;

        if (strcmp(*g, "daemon") == 0) {
            continue;
        }
        if (g_str_has_prefix(*g, "vm ")) {
            ok = load_vm(cfg, kf, *g, errp);
        } else {
            g_set_error(errp, PVRDMA_ERROR, 0, "[%s] unknown group", *g);
            ok = false;
        }
        if (!ok) {
            g_prefix_error(errp, "%s: ", path);
            return false;
        }
    }
    return true;
}
