/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What can be configured: the keys, their ranges and defaults.
 *
 * Every value goes through the same setter whether it comes from the file (file.c),
 * the command line or the admin socket, so the limits hold everywhere.  Main thread
 * only; the result is read-only for everybody else.
 */
#include "config.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#define DEFAULT_NETWORK "default"

bool config_fail(GError **errp, const char *key, const char *why)
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

bool config_parse_uint(const char *key, const char *value, uint32_t min, uint32_t max,
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

bool config_parse_size(const char *key, const char *value, uint64_t min, uint64_t max,
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

/* Bytes per second; 0 in *out: "none". */
static bool parse_rate(const char *key, const char *value, uint64_t *out, GError **errp)
{
    if (strcmp(value, "none") == 0) {
        *out = 0;
        return true;
    }
    return config_parse_size(key, value, 1u << 20, UINT64_C(1) << 40, out, errp);
}

static bool parse_bool(const char *key, const char *value, bool *out, GError **errp)
{
    if (strcmp(value, "true") == 0 || strcmp(value, "yes") == 0) {
        *out = true;
    } else if (strcmp(value, "false") == 0 || strcmp(value, "no") == 0) {
        *out = false;
    } else {
        return config_fail(errp, key, "expected true or false");
    }
    return true;
}

/* A path for a UNIX socket (or a directory of such), made absolute. */
static bool parse_path(const char *key, const char *value, char **out, GError **errp)
{
    g_autofree char *path = NULL;

    if (!*value) {
        return config_fail(errp, key, "is empty");
    }
    path = g_canonicalize_filename(value, NULL);
    if (strlen(path) >= sizeof(((struct sockaddr_un *)0)->sun_path)) {
        return config_fail(errp, key, "path is too long for a UNIX socket");
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
            return config_fail(errp, "addresses", "too many");
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

const char *config_user_files[2] = {"/etc/passwd", "/usr/lib/passwd"};

static bool uid_in(const char *path, const char *name, uint32_t *uid)
{
    FILE *file = fopen(path, "re");
    const struct passwd *pw;
    bool found = false;

    while (file && !found && (pw = fgetpwent(file))) {
        found = strcmp(pw->pw_name, name) == 0;
        *uid = found ? pw->pw_uid : *uid;
    }
    if (file) {
        fclose(file);
    }
    return found;
}

/*
 * A user of this host's own files, of which hosts with an unchanging /usr have two.  Not
 * what else NSS knows: that may ask other hosts, for as long as it likes, and the main
 * thread waits.
 */
static bool local_uid(const char *name, uint32_t *uid)
{
    return uid_in(config_user_files[0], name, uid) ||
           uid_in(config_user_files[1], name, uid);
}

/* A user by name or number. */
static bool parse_uid(const char *text, uint32_t *uid)
{
    guint64 n;

    /* The largest number means "none" to the kernel. */
    if (g_ascii_string_to_unsigned(text, 10, 0, UINT32_MAX - 1, &n, NULL)) {
        *uid = n;
        return true;
    }
    return config_valid_name(text) && local_uid(text, uid);
}

static bool parse_uids(struct vm_config *vm, const char *value, GError **errp)
{
    g_autofree uint32_t *uids = NULL;
    g_auto(GStrv) words = NULL;
    unsigned n = 0;

    if (strcmp(value, "any") == 0) {
        g_clear_pointer(&vm->uids, g_free);
        vm->n_uids = 0;
        vm->any_uid = true;
        return true;
    }
    words = g_strsplit_set(value, ";,", CONFIG_MAX_UIDS + 2);
    uids = g_new0(uint32_t, CONFIG_MAX_UIDS);
    for (char **w = words; *w; w++) {
        g_strstrip(*w);
        if (!**w) {
            continue; /* a list may end in a separator */
        }
        if (n == CONFIG_MAX_UIDS) {
            return config_fail(errp, "uid", "too many");
        }
        if (!parse_uid(*w, &uids[n])) {
            g_set_error(errp, PVRDMA_ERROR, 0,
                        "uid: \"%s\" is neither a number nor in /etc/passwd or "
                        "/usr/lib/passwd",
                        *w);
            return false;
        }
        n++;
    }
    if (n == 0) {
        return config_fail(errp, "uid", "names no user");
    }
    g_free(vm->uids);
    vm->uids = g_steal_pointer(&uids);
    vm->n_uids = n;
    vm->any_uid = false;
    return true;
}

/* Workers by number; 0 in *out: any. */
static bool parse_workers(const char *key, const char *value, uint64_t *out,
                          GError **errp)
{
    g_auto(GStrv) words = g_strsplit_set(value, ";,", -1);
    uint64_t set = 0;
    uint32_t n;

    if (strcmp(value, "any") == 0) {
        *out = 0;
        return true;
    }
    for (char **w = words; *w; w++) {
        g_strstrip(*w);
        if (!**w) {
            continue; /* a list may end in a separator */
        }
        if (!config_parse_uint(key, *w, 0, CONFIG_MAX_WORKERS - 1, &n, errp)) {
            return false;
        }
        set |= UINT64_C(1) << n;
    }
    if (!set) {
        return config_fail(errp, key, "names no worker");
    }
    *out = set;
    return true;
}

/* Does the daemon have all of @workers? */
static bool check_workers(const struct daemon_config *cfg, uint64_t workers,
                          GError **errp)
{
    unsigned last = workers ? 63 - (unsigned)__builtin_clzll(workers) : 0;

    if (last >= cfg->workers) {
        g_set_error(errp, PVRDMA_ERROR, 0,
                    "worker: there is no worker %u: the daemon has %u, numbered from 0",
                    last, cfg->workers);
        return false;
    }
    return true;
}

/* ---- [network NAME] ---- */

static void network_free(struct network_config *net)
{
    g_free(net->name);
    g_free(net);
}

static const struct network_config *find_network(const struct daemon_config *cfg,
                                                 const char *name)
{
    for (GList *l = cfg->networks; l; l = l->next) {
        const struct network_config *net = l->data;

        if (strcmp(net->name, name) == 0) {
            return net;
        }
    }
    return NULL;
}

bool config_network_set(struct network_config *net, const char *key, const char *value,
                        GError **errp)
{
    if (strcmp(key, "worker") == 0) {
        return parse_workers(key, value, &net->workers, errp);
    }
    if (strcmp(key, "nic-rate") == 0) {
        return parse_rate(key, value, &net->nic_rate, errp);
    }
    if (strcmp(key, "nic-dscp") == 0) {
        return config_parse_uint(key, value, 0, 63, &net->nic_dscp, errp);
    }
    return config_fail(errp, key, "unknown key");
}

bool config_network_check(const struct daemon_config *cfg,
                          const struct network_config *net, GError **errp)
{
    return check_workers(cfg, net->workers, errp);
}

uint64_t config_network_workers(const struct daemon_config *cfg)
{
    uint64_t all = 0;

    for (GList *l = cfg->networks; l; l = l->next) {
        all |= ((const struct network_config *)l->data)->workers;
    }
    return all;
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
    vm->max_srq = 16384;
    vm->max_mr = 65536;
    vm->max_pd = 8192;
    vm->max_mr_pages = 16u << 20;
    vm->shares = VM_SHARES_DEFAULT;
    vm->max_memory = UINT64_C(4) << 40;
    vm->max_files = 64;
    vm->require_sealed = cfg->require_sealed;
    vm->any_uid = true;
    path = g_strdup_printf("%s/%s.sock", cfg->socket_dir, name);
    if (!parse_path("socket", path, &vm->socket, errp)) {
        config_vm_free(vm);
        return NULL;
    }
    return vm;
}

/*
 * A daemon that is replaced hands its VMs' keys over, with values that it took: what one
 * release takes all later ones do, or such VMs would be lost.
 */
bool config_vm_set(struct vm_config *vm, const char *key, const char *value,
                   GError **errp)
{
    if (strcmp(key, "socket") == 0) {
        return parse_path(key, value, &vm->socket, errp);
    }
    if (strcmp(key, "network") == 0) {
        if (!config_valid_name(value)) {
            return config_fail(errp, key,
                               "must be 1 to 63 letters, digits, '_', '.' or '-'");
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
        return vm->has_mac || config_fail(errp, key, "is not a unicast MAC address");
    }
    if (strcmp(key, "max-qp") == 0) {
        return config_parse_uint(key, value, 2, 65535, &vm->max_qp, errp);
    }
    if (strcmp(key, "max-cq") == 0) {
        return config_parse_uint(key, value, 2, 65535, &vm->max_cq, errp);
    }
    if (strcmp(key, "max-srq") == 0) {
        return config_parse_uint(key, value, 2, 65535, &vm->max_srq, errp);
    }
    if (strcmp(key, "max-mr") == 0) {
        return config_parse_uint(key, value, 2, 1u << 20, &vm->max_mr, errp);
    }
    if (strcmp(key, "max-pd") == 0) {
        return config_parse_uint(key, value, 2, 65535, &vm->max_pd, errp);
    }
    if (strcmp(key, "max-mr-pages") == 0) {
        return config_parse_uint(key, value, 1, UINT32_MAX, &vm->max_mr_pages, errp);
    }
    if (strcmp(key, "shares") == 0) {
        return config_parse_uint(key, value, 1, 10000, &vm->shares, errp);
    }
    if (strcmp(key, "max-memory") == 0) {
        return config_parse_size(key, value, 1u << 20, UINT64_C(1) << 46, &vm->max_memory,
                                 errp);
    }
    if (strcmp(key, "max-files") == 0) {
        return config_parse_uint(key, value, 1, 1024, &vm->max_files, errp);
    }
    if (strcmp(key, "require-sealed") == 0) {
        return parse_bool(key, value, &vm->require_sealed, errp);
    }
    if (strcmp(key, "uid") == 0) {
        return parse_uids(vm, value, errp);
    }
    if (strcmp(key, "worker") == 0) {
        vm->own_workers = parse_workers(key, value, &vm->workers, errp);
        return vm->own_workers;
    }
    if (strcmp(key, "nic-rate") == 0) {
        vm->own_rate = parse_rate(key, value, &vm->nic_rate, errp);
        return vm->own_rate;
    }
    if (strcmp(key, "nic-dscp") == 0) {
        vm->own_dscp = config_parse_uint(key, value, 0, 63, &vm->nic_dscp, errp);
        return vm->own_dscp;
    }
    return config_fail(errp, key, "unknown key");
}

/* What its own group does not say. */
static void take_from_network(const struct network_config *net, struct vm_config *vm)
{
    if (!vm->own_workers) {
        vm->workers = net ? net->workers : 0;
    }
    if (!vm->own_rate) {
        vm->nic_rate = net ? net->nic_rate : 0;
    }
    if (!vm->own_dscp) {
        vm->nic_dscp = net ? net->nic_dscp : 0;
    }
}

bool config_vm_finish(const struct daemon_config *cfg, struct vm_config *vm,
                      GError **errp)
{
    const struct network_config *net = find_network(cfg, vm->network);

    if (net && net->wrong && !vm->own_workers) {
        /* On another worker it might not be kept apart from whom it should. */
        g_set_error(errp, PVRDMA_ERROR, 0, "network: there is an error in [network %s]",
                    net->name);
        return false;
    }
    take_from_network(net, vm);
    if (g_strcmp0(vm->socket, cfg->control_socket) == 0) {
        return config_fail(errp, "socket", "is the control socket");
    }
    return check_workers(cfg, vm->workers, errp);
}

void config_vm_follow(const struct daemon_config *cfg, struct vm_config *vm)
{
    const struct network_config *net = find_network(cfg, vm->network);

    if (!(net && net->wrong)) {
        take_from_network(net, vm);
    }
}

bool config_vm_uid_ok(const struct vm_config *vm, uint32_t uid)
{
    for (unsigned i = 0; i < vm->n_uids; i++) {
        if (vm->uids[i] == uid) {
            return true;
        }
    }
    return vm->any_uid;
}

static bool same_addresses(const struct vm_config *a, const struct vm_config *b)
{
    return a->any_address == b->any_address && a->n_addresses == b->n_addresses &&
           (a->n_addresses == 0 || memcmp(a->addresses, b->addresses,
                                          a->n_addresses * sizeof(a->addresses[0])) == 0);
}

static bool same_uids(const struct vm_config *a, const struct vm_config *b)
{
    return a->any_uid == b->any_uid && a->n_uids == b->n_uids &&
           (a->n_uids == 0 ||
            memcmp(a->uids, b->uids, a->n_uids * sizeof(a->uids[0])) == 0);
}

char *config_vm_diff(const struct vm_config *a, const struct vm_config *b)
{
    const struct {
        const char *key;
        bool same;
    } keys[] = {
        {"socket", strcmp(a->socket, b->socket) == 0},
        {"uid", same_uids(a, b)},
        {"network", strcmp(a->network, b->network) == 0},
        {"mac", a->has_mac == b->has_mac && memcmp(a->mac, b->mac, sizeof(a->mac)) == 0},
        {"addresses", same_addresses(a, b)},
        {"max-qp", a->max_qp == b->max_qp},
        {"max-cq", a->max_cq == b->max_cq},
        {"max-srq", a->max_srq == b->max_srq},
        {"max-mr", a->max_mr == b->max_mr},
        {"max-pd", a->max_pd == b->max_pd},
        {"max-mr-pages", a->max_mr_pages == b->max_mr_pages},
        {"shares", a->shares == b->shares},
        {"max-memory", a->max_memory == b->max_memory},
        {"max-files", a->max_files == b->max_files},
        {"require-sealed", a->require_sealed == b->require_sealed},
        {"worker", a->workers == b->workers},
        {"nic-rate", a->nic_rate == b->nic_rate},
        {"nic-dscp", a->nic_dscp == b->nic_dscp},
    };
    GString *s = NULL;

    for (unsigned i = 0; i < G_N_ELEMENTS(keys); i++) {
        if (!keys[i].same) {
            s = s ? g_string_append(s, ", ") : g_string_new(NULL);
            g_string_append(s, keys[i].key);
        }
    }
    return s ? g_string_free(s, FALSE) : NULL;
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
    g_free(vm->uids);
    g_free(vm);
}

/* ---- [daemon] ---- */

enum daemon_key {
    KEY_SOCKET_DIR,
    KEY_CONTROL_SOCKET,
    KEY_WORKERS,
    KEY_WORKER_PRIORITY,
    KEY_POLL_US,
    KEY_PATH,
    KEY_LOG_LEVEL,
    KEY_REQUIRE_SEALED,
    KEY_MAX_MAPPED,
    KEY_MAX_OBJECTS,
    KEY_LISTEN,
    KEY_HOST_NAME,
    KEY_PEER_TIMEOUT,
    KEY_HOLD_TIMEOUT,
    KEY_COUNT,
};

static const char *const daemon_keys[KEY_COUNT] = {
    [KEY_SOCKET_DIR] = "socket-dir",
    [KEY_CONTROL_SOCKET] = "control-socket",
    [KEY_WORKERS] = "workers",
    [KEY_WORKER_PRIORITY] = "worker-priority",
    [KEY_POLL_US] = "poll-us",
    [KEY_PATH] = "path",
    [KEY_LOG_LEVEL] = "log-level",
    [KEY_REQUIRE_SEALED] = "require-sealed",
    [KEY_MAX_MAPPED] = "max-mapped",
    [KEY_MAX_OBJECTS] = "max-objects",
    [KEY_LISTEN] = "listen",
    [KEY_HOST_NAME] = "host-name",
    [KEY_PEER_TIMEOUT] = "peer-timeout",
    [KEY_HOLD_TIMEOUT] = "hold-timeout",
};

static const char *const path_names[] = {
    [CONFIG_PATH_AUTO] = "auto", [CONFIG_PATH_TCP] = "tcp", [CONFIG_PATH_RNIC] = "rnic"};

static bool parse_local_path(const char *key, const char *value, enum config_path *path,
                             GError **errp)
{
    for (unsigned i = 0; i < G_N_ELEMENTS(path_names); i++) {
        if (strcmp(value, path_names[i]) == 0) {
            *path = (enum config_path)i;
            return true;
        }
    }
    return config_fail(errp, key, "expected auto, tcp or rnic");
}

static int find_daemon_key(const char *key)
{
    for (int k = 0; k < KEY_COUNT; k++) {
        if (strcmp(key, daemon_keys[k]) == 0) {
            return k;
        }
    }
    return -1;
}

/* The value of a key as text, or NULL if it is not set. */
static char *daemon_value(const struct daemon_config *cfg, int k)
{
    switch (k) {
    case KEY_SOCKET_DIR:
        return g_strdup(cfg->socket_dir);
    case KEY_CONTROL_SOCKET:
        return g_strdup(cfg->control_socket);
    case KEY_WORKERS:
        return g_strdup_printf("%u", cfg->workers);
    case KEY_POLL_US:
        return g_strdup_printf("%u", cfg->poll_us);
    case KEY_PATH:
        return g_strdup(path_names[cfg->local_path]);
    case KEY_LOG_LEVEL:
        return g_strdup(log_level_name(cfg->log_level));
    case KEY_REQUIRE_SEALED:
        return g_strdup(cfg->require_sealed ? "true" : "false");
    case KEY_WORKER_PRIORITY:
        return priority_text(&cfg->worker_priority);
    case KEY_MAX_MAPPED:
        return g_strdup_printf("%" G_GUINT64_FORMAT, (guint64)cfg->max_mapped);
    case KEY_MAX_OBJECTS:
        return g_strdup_printf("%" G_GUINT64_FORMAT, (guint64)cfg->max_objects);
    case KEY_LISTEN:
        return g_strdup(cfg->listen_text);
    case KEY_HOST_NAME:
        return g_strdup(cfg->host_name);
    case KEY_PEER_TIMEOUT:
        return g_strdup_printf("%u", cfg->peer_timeout);
    case KEY_HOLD_TIMEOUT:
        return g_strdup_printf("%u", cfg->hold_timeout);
    default:
        return NULL;
    }
}

/* Does a reload set it? */
static bool daemon_key_live(int k)
{
    return k == KEY_LOG_LEVEL || k == KEY_REQUIRE_SEALED;
}

static void problem_free(struct config_problem *p)
{
    g_free(p->name);
    g_free(p->why);
    g_free(p);
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
    cfg->listen_text = g_strdup("");
    cfg->host_name = g_strdup(g_get_host_name());
    cfg->peer_timeout = 5;
    cfg->hold_timeout = CONFIG_MAX_HOLD;
    return cfg;
}

void config_free(struct daemon_config *cfg)
{
    if (!cfg) {
        return;
    }
    g_free(cfg->socket_dir);
    g_free(cfg->control_socket);
    g_free(cfg->listen_text);
    g_free(cfg->host_name);
    g_free(cfg->path);
    g_list_free_full(cfg->peers, (GDestroyNotify)config_peer_free);
    g_list_free_full(cfg->nics, (GDestroyNotify)config_nic_free);
    g_list_free_full(cfg->networks, (GDestroyNotify)network_free);
    g_list_free_full(cfg->vms, (GDestroyNotify)config_vm_free);
    g_list_free_full(cfg->problems, (GDestroyNotify)problem_free);
    g_list_free_full(cfg->warnings, g_free);
    g_free(cfg);
}

/* None: nothing listens. */
static bool parse_listen(struct daemon_config *cfg, const char *value, GError **errp)
{
    g_auto(GStrv) words = g_strsplit_set(value, ";, ", -1);
    struct sockaddr_storage found[CONFIG_MAX_LISTEN];
    unsigned n = 0;

    for (char **w = words; *w; w++) {
        if (!**w) {
            continue; /* a list may end in a separator */
        }
        if (n == CONFIG_MAX_LISTEN) {
            return config_fail(errp, "listen", "too many addresses");
        }
        if (!config_parse_address(*w, &found[n])) {
            g_set_error(errp, PVRDMA_ERROR, 0,
                        "listen: \"%s\" is not ADDRESS or ADDRESS:PORT; link-local "
                        "addresses are not supported",
                        *w);
            return false;
        }
        n++;
    }
    memcpy(cfg->listen, found, n * sizeof(found[0]));
    cfg->n_listen = n;
    g_free(cfg->listen_text);
    cfg->listen_text = g_strdup(value);
    return true;
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
        ok = config_parse_uint(key, value, 1, CONFIG_MAX_WORKERS, &cfg->workers, errp);
        break;
    case KEY_WORKER_PRIORITY:
        if (!priority_parse(value, &cfg->worker_priority)) {
            ok = config_fail(
                errp, key,
                "expected auto, normal, nice:-20 to nice:19, fifo:1 to fifo:99 or "
                "rr:1 to rr:99");
        }
        break;
    case KEY_POLL_US:
        ok = config_parse_uint(key, value, 0, CONFIG_MAX_POLL_US, &cfg->poll_us, errp);
        break;
    case KEY_PATH:
        ok = parse_local_path(key, value, &cfg->local_path, errp);
        break;
    case KEY_LOG_LEVEL:
        if (!log_parse_level(value, &cfg->log_level)) {
            ok = config_fail(errp, key, "expected error, warn, info or debug");
        }
        break;
    case KEY_REQUIRE_SEALED:
        ok = parse_bool(key, value, &cfg->require_sealed, errp);
        break;
    case KEY_MAX_MAPPED:
        ok = config_parse_size(key, value, 1u << 30, UINT64_C(112) << 40,
                               &cfg->max_mapped, errp);
        break;
    case KEY_MAX_OBJECTS:
        ok = config_parse_size(key, value, 16u << 20, CONFIG_MAX_OBJECTS,
                               &cfg->max_objects, errp);
        break;
    case KEY_LISTEN:
        ok = parse_listen(cfg, value, errp);
        break;
    case KEY_HOST_NAME:
        if (!config_valid_name(value)) {
            ok = config_fail(errp, key,
                             "must be 1 to 63 letters, digits, '_', '.' or '-'");
            break;
        }
        g_free(cfg->host_name);
        cfg->host_name = g_strdup(value);
        break;
    case KEY_PEER_TIMEOUT:
        ok = config_parse_uint(key, value, 1, 3600, &cfg->peer_timeout, errp);
        break;
    case KEY_HOLD_TIMEOUT:
        ok = config_parse_uint(key, value, 1, CONFIG_MAX_HOLD, &cfg->hold_timeout, errp);
        break;
    default:
        return config_fail(errp, key, "unknown key");
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

bool config_is_fixed(const struct daemon_config *cfg, const char *key)
{
    int k = find_daemon_key(key);

    return k >= 0 && cfg->fixed & 1u << k;
}

void config_take_fixed(struct daemon_config *cfg, const struct daemon_config *running)
{
    for (int k = 0; k < KEY_COUNT; k++) {
        g_autofree char *value = daemon_value(running, k);

        if (running->fixed & 1u << k && value) {
            config_set(cfg, daemon_keys[k], value, true, NULL);
        }
    }
}

void config_keep(struct daemon_config *cfg, const struct daemon_config *running,
                 GString *notes)
{
    for (int k = 0; k < KEY_COUNT; k++) {
        g_autofree char *old = daemon_value(running, k);
        g_autofree char *new = daemon_value(cfg, k);

        if (old && g_strcmp0(old, new) != 0 && !daemon_key_live(k)) {
            g_string_append_printf(notes,
                                   "[daemon] %s is still %s: it is set at start only\n",
                                   daemon_keys[k], *old ? old : "not set");
            config_set(cfg, daemon_keys[k], old, false, NULL);
        }
    }
}
