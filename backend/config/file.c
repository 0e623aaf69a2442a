/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The key file: its groups, read into a struct daemon_config.
 *
 * The file is cut into its groups before GKeyFile sees it: that would give up the whole
 * file for one bad line, and merge two groups of one name.  Main thread only.
 */
#include "config.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

/* What a group's keys are for; nothing set: the daemon. */
struct target {
    struct vm_config *vm;
    struct network_config *net;
    struct peer_config *peer;
    struct nic_config *nic;
};

static bool set_key(struct daemon_config *cfg, const struct target *to, const char *key,
                    const char *value, GError **errp)
{
    if (to->vm) {
        return config_vm_set(to->vm, key, value, errp);
    }
    if (to->net) {
        return config_network_set(to->net, key, value, errp);
    }
    if (to->peer) {
        return config_peer_set(to->peer, key, value, errp);
    }
    if (to->nic) {
        return config_nic_set(to->nic, key, value, errp);
    }
    return config_is_fixed(cfg, key) || config_set(cfg, key, value, false, errp);
}

/* A group's heading and lines. */
struct section {
    const char *text;
    size_t len;
    unsigned line; /* 1-based */
    char *group;   /* without brackets; or the line, if it is no heading after all */
};

/* The next line of @sec with a key, to be freed, and its number; NULL: there is none.
 * *at: NULL at first. */
static char *next_key(const struct section *sec, const char **at, unsigned *line)
{
    const char *end = sec->text + sec->len, *p = *at ? *at : sec->text;
    char *key = NULL;

    *line = *at ? *line : sec->line - 1;
    while (p < end && !key) {
        const char *eol = memchr(p, '\n', (size_t)(end - p));
        const char *equals;

        eol = eol ? eol : end;
        equals = memchr(p, '=', (size_t)(eol - p));
        key = equals ? g_strstrip(g_strndup(p, (gsize)(equals - p))) : NULL;
        if (key && (*key == '#' || *key == '[')) {
            g_clear_pointer(&key, g_free);
        }
        ++*line;
        p = eol < end ? eol + 1 : end;
    }
    *at = p;
    return key;
}

/* Where @key stands; 0: nowhere. */
static unsigned line_of(const struct section *sec, const char *key)
{
    const char *at = NULL;
    unsigned line;
    char *each;

    while ((each = next_key(sec, &at, &line))) {
        bool found = strcmp(each, key) == 0;

        g_free(each);
        if (found) {
            return line;
        }
    }
    return 0;
}

/* Of two lines the last one counts, which whoever wrote the first one should know. */
static void look_for_twice(struct daemon_config *cfg, const struct section *sec)
{
    g_autoptr(GHashTable) seen =
        g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    const char *at = NULL;
    unsigned line;
    char *key;

    while ((key = next_key(sec, &at, &line))) {
        unsigned first = GPOINTER_TO_UINT(g_hash_table_lookup(seen, key));

        if (first) {
            g_autofree char *shown = g_utf8_make_valid(key, MIN(strlen(key), 63));

            cfg->warnings = g_list_append(
                cfg->warnings,
                g_strdup_printf(
                    "[%s] %s is set twice, at line %u and at line %u: the last "
                    "one counts",
                    sec->group, shown, first, line));
        }
        g_hash_table_insert(seen, key, GUINT_TO_POINTER(line));
    }
}

/* Set each key of @sec's group. */
static bool load_group(struct daemon_config *cfg, struct target to, GKeyFile *kf,
                       const struct section *sec, GError **errp)
{
    g_auto(GStrv) keys = g_key_file_get_keys(kf, sec->group, NULL, NULL);

    for (char **key = keys; key && *key; key++) {
        g_autoptr(GError) err = NULL;
        g_autofree char *value = g_key_file_get_string(kf, sec->group, *key, &err);

        if (!value) {
            g_prefix_error(&err, "%s: ", *key);
        } else {
            set_key(cfg, &to, *key, g_strstrip(value), &err);
        }
        if (err) {
            g_set_error(errp, PVRDMA_ERROR, 0, "[%s] %s (line %u)", sec->group,
                        err->message, line_of(sec, *key));
            return false;
        }
    }
    look_for_twice(cfg, sec);
    return true;
}

static bool add_vm(struct daemon_config *cfg, struct vm_config *vm, GError **errp)
{
    if (!config_vm_finish(cfg, vm, errp)) {
        return false;
    }
    for (GList *l = cfg->vms; l; l = l->next) {
        const struct vm_config *other = l->data;

        if (strcmp(other->socket, vm->socket) == 0) {
            g_set_error(errp, PVRDMA_ERROR, 0, "socket: %s belongs to VM %s", vm->socket,
                        other->name);
            return false;
        }
    }
    vm->from_file = true;
    cfg->vms = g_list_append(cfg->vms, vm);
    return true;
}

static bool load_vm(struct daemon_config *cfg, GKeyFile *kf, const struct section *sec,
                    GError **errp)
{
    const char *group = sec->group;
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
    if (!load_group(cfg, (struct target){.vm = vm}, kf, sec, errp)) {
        config_vm_free(vm);
        return false;
    }
    if (!add_vm(cfg, vm, errp)) {
        g_prefix_error(errp, "[%s] ", group);
        config_vm_free(vm);
        return false;
    }
    return true;
}

static void section_free(struct section *sec)
{
    g_free(sec->group);
    g_free(sec);
}

static void end_section(struct section *sec, const char *end)
{
    sec->len = end - sec->text;
}

static struct section *begin_section(const char *text, const char *line, const char *end,
                                     unsigned number)
{
    struct section *sec = g_new0(struct section, 1);
    const char *close = line < end ? memchr(line, ']', end - line) : NULL;

    sec->text = text;
    sec->line = number;
    sec->group = line == end ? NULL
                 : close     ? g_strndup(line + 1, close - line - 1)
                             : g_strndup(line, end - line);
    return sec;
}

/* Cut @text at the lines that begin with a bracket.  First, perhaps empty, what stands
 * before the first group. */
static GPtrArray *cut(const char *text, size_t len)
{
    GPtrArray *all = g_ptr_array_new_with_free_func((GDestroyNotify)section_free);
    const char *end = text + len;
    struct section *sec = begin_section(text, text, text, 1);
    unsigned number = 1;

    g_ptr_array_add(all, sec);
    for (const char *p = text; p < end; number++) {
        const char *eol = memchr(p, '\n', end - p);
        const char *word = p;

        if (!eol) {
            eol = end;
        }
        while (word < eol && g_ascii_isspace(*word)) {
            word++;
        }
        if (word < eol && *word == '[') {
            end_section(sec, p);
            sec = begin_section(p, word, eol, number);
            g_ptr_array_add(all, sec);
        }
        p = eol < end ? eol + 1 : end;
    }
    end_section(sec, end);
    return all;
}

/* Is its heading none, for want of a closing bracket? */
static bool unclosed(const struct section *sec)
{
    return sec->group && *sec->group == '[';
}

/* One section as a key file of its own. */
static GKeyFile *parse_section(const struct section *sec, GError **errp)
{
    GKeyFile *kf = g_key_file_new();

    if (unclosed(sec)) {
        g_set_error(errp, PVRDMA_ERROR, 0, "line %u: \"%.64s\" has no ]", sec->line,
                    sec->group);
    } else if (g_key_file_load_from_data(kf, sec->text, sec->len, G_KEY_FILE_NONE,
                                         errp)) {
        return kf;
    }
    if (sec->group && !unclosed(sec)) {
        g_prefix_error(errp, "[%s] ", sec->group);
    }
    g_key_file_free(kf);
    return NULL;
}

static bool is_daemon(const struct section *sec)
{
    return sec->group &&
           (strcmp(sec->group, "daemon") == 0 || g_str_has_prefix(sec->group, "[daemon"));
}

/* An earlier section of the same group, or NULL. */
static const struct section *find_earlier(GHashTable *seen, const struct section *sec)
{
    const struct section *first = g_hash_table_lookup(seen, sec->group);

    if (!first) {
        g_hash_table_insert(seen, sec->group, (void *)sec);
    }
    return first;
}

static bool refuse_twice(const struct section *sec, const struct section *first,
                         GError **errp)
{
    if (first) {
        g_set_error(errp, PVRDMA_ERROR, 0,
                    "[%s] appears twice, at line %u and at line %u", sec->group,
                    first->line, sec->line);
    }
    return first == NULL;
}

static bool load_section(struct daemon_config *cfg, const struct section *sec,
                         GError **errp)
{
    g_autoptr(GKeyFile) kf = parse_section(sec, errp);

    if (!kf) {
        return false; /* the message has the group */
    }
    if (!g_str_has_prefix(sec->group, "vm ")) {
        g_set_error(errp, PVRDMA_ERROR, 0, "[%s] unknown group", sec->group);
        return false;
    }
    return load_vm(cfg, kf, sec, errp);
}

static void add_problem(struct daemon_config *cfg, const struct section *sec,
                        const GError *err)
{
    struct config_problem *p = g_new0(struct config_problem, 1);
    const char *name = sec->group;
    size_t len;

    name += *name == '['; /* without its closing bracket */
    if (g_str_has_prefix(name, "vm ")) {
        name += strlen("vm ");
    }
    len = MIN(strlen(name), 63);
    p->name = g_utf8_make_valid(name, len);
    for (char *c = p->name; *c; c++) {
        *c = g_ascii_iscntrl(*c) ? '?' : *c;
    }
    p->why = g_utf8_make_valid(err->message, -1);
    cfg->problems = g_list_append(cfg->problems, p);
}

bool config_has_problem(const struct daemon_config *cfg, const char *kind,
                        const char *name)
{
    g_autofree char *group = g_strdup_printf("%s %s", kind, name);

    for (GList *l = cfg->problems; l; l = l->next) {
        const struct config_problem *p = l->data;

        if (strncmp(p->name, group, 63) == 0) { /* as long as names there are */
            return true;
        }
    }
    return false;
}

/* [daemon] first, wherever it stands: the VMs' defaults depend on it. */
static bool load_daemon(struct daemon_config *cfg, GPtrArray *sections, GError **errp)
{
    g_autoptr(GKeyFile) before = parse_section(sections->pdata[0], errp);
    const struct section *first = NULL;

    if (!before) {
        return false;
    }
    for (guint i = 1; i < sections->len; i++) {
        const struct section *sec = sections->pdata[i];
        g_autoptr(GKeyFile) kf = NULL;

        if (!is_daemon(sec)) {
            continue;
        }
        if (!refuse_twice(sec, first, errp)) {
            return false;
        }
        first = sec;
        kf = parse_section(sec, errp);
        if (!kf || !load_group(cfg, (struct target){0}, kf, sec, errp)) {
            return false;
        }
    }
    config_complete(cfg);
    return true;
}

/* The name of the @kind ("peer ") that @sec is meant to be about, or NULL. */
static const char *name_of(const struct section *sec, const char *kind)
{
    const char *group = sec->group ? sec->group : "";

    group += *group == '['; /* without its closing bracket */
    return g_str_has_prefix(group, kind) ? group + strlen(kind) : NULL;
}

static bool load_network(struct daemon_config *cfg, const struct section *sec,
                         struct network_config *net, GError **errp)
{
    g_autoptr(GKeyFile) kf = parse_section(sec, errp);

    if (!kf) {
        return false; /* the message has the group, here and below */
    }
    if (config_valid_name(net->name)) {
        if (!load_group(cfg, (struct target){.net = net}, kf, sec, errp)) {
            return false;
        }
        if (config_network_check(cfg, net, errp)) {
            return true;
        }
    } else {
        g_set_error(errp, PVRDMA_ERROR, 0,
                    "network: the name must be 1 to 63 letters, digits, '_', '.' or "
                    "'-'");
    }
    g_prefix_error(errp, "[%s] ", sec->group);
    return false;
}

/* Before the VMs, wherever they stand.  A wrong one is remembered as such. */
static void load_networks(struct daemon_config *cfg, GPtrArray *sections)
{
    g_autoptr(GHashTable) seen = g_hash_table_new(g_str_hash, g_str_equal);

    for (guint i = 1; i < sections->len; i++) {
        const struct section *sec = sections->pdata[i];
        const char *name = name_of(sec, "network ");
        g_autoptr(GError) err = NULL;

        if (!name) {
            continue;
        }
        if (refuse_twice(sec, find_earlier(seen, sec), &err)) {
            struct network_config *net = g_new0(struct network_config, 1);

            net->name = g_strdup(name);
            net->wrong = !load_network(cfg, sec, net, &err);
            net->workers = net->wrong ? 0 : net->workers;
            cfg->networks = g_list_append(cfg->networks, net);
        }
        if (err) {
            add_problem(cfg, sec, err);
        }
    }
}

static bool add_peer(struct daemon_config *cfg, struct peer_config *peer, GError **errp)
{
    if (g_list_length(cfg->peers) >= CONFIG_MAX_PEERS) {
        g_set_error(errp, PVRDMA_ERROR, 0, "more than %d peers", CONFIG_MAX_PEERS);
        return false;
    }
    if (!config_peer_finish(cfg, peer, errp)) {
        return false;
    }
    for (GList *l = cfg->peers; l; l = l->next) {
        const struct peer_config *other = l->data;

        if (memcmp(&other->address, &peer->address, sizeof(peer->address)) == 0) {
            g_set_error(errp, PVRDMA_ERROR, 0, "address: belongs to [peer %s]",
                        other->name);
            return false;
        }
    }
    cfg->peers = g_list_append(cfg->peers, peer);
    return true;
}

static bool load_peer(struct daemon_config *cfg, const struct section *sec, GError **errp)
{
    g_autoptr(GKeyFile) kf = parse_section(sec, errp);
    struct peer_config *peer = kf ? config_peer_new(name_of(sec, "peer "), errp) : NULL;

    if (!kf) {
        return false;
    }
    if (!peer) {
        g_prefix_error(errp, "[%s] ", sec->group);
        return false;
    }
    if (!load_group(cfg, (struct target){.peer = peer}, kf, sec, errp)) {
        config_peer_free(peer); /* the message has the group */
        return false;
    }
    if (!add_peer(cfg, peer, errp)) {
        g_prefix_error(errp, "[%s] ", sec->group);
        config_peer_free(peer);
        return false;
    }
    return true;
}

static bool load_nic(struct daemon_config *cfg, const struct section *sec, GError **errp)
{
    g_autoptr(GKeyFile) kf = parse_section(sec, errp);
    struct nic_config *nic = kf ? config_nic_new(name_of(sec, "nic "), errp) : NULL;

    if (!kf) {
        return false;
    }
    if (!nic) {
        g_prefix_error(errp, "[%s] ", sec->group);
        return false;
    }
    if (!load_group(cfg, (struct target){.nic = nic}, kf, sec, errp)) {
        config_nic_free(nic); /* the message has the group */
        return false;
    }
    if (!config_nic_finish(cfg, nic, errp)) {
        g_prefix_error(errp, "[%s] ", sec->group);
        config_nic_free(nic);
        return false;
    }
    cfg->nics = g_list_append(cfg->nics, nic);
    return true;
}

/* All groups of @kind. */
static void load_all(struct daemon_config *cfg, GPtrArray *sections, const char *kind,
                     bool (*load)(struct daemon_config *cfg, const struct section *sec,
                                  GError **errp))
{
    g_autoptr(GHashTable) seen = g_hash_table_new(g_str_hash, g_str_equal);

    for (guint i = 1; i < sections->len; i++) {
        const struct section *sec = sections->pdata[i];
        g_autoptr(GError) err = NULL;

        if (name_of(sec, kind) && (!refuse_twice(sec, find_earlier(seen, sec), &err) ||
                                   !load(cfg, sec, &err))) {
            add_problem(cfg, sec, err);
        }
    }
}

static void load_vms(struct daemon_config *cfg, GPtrArray *sections)
{
    g_autoptr(GHashTable) seen = g_hash_table_new(g_str_hash, g_str_equal);

    for (guint i = 1; i < sections->len; i++) {
        const struct section *sec = sections->pdata[i];
        g_autoptr(GError) err = NULL;

        if (!is_daemon(sec) && !name_of(sec, "network ") && !name_of(sec, "peer ") &&
            !name_of(sec, "nic ") &&
            (!refuse_twice(sec, find_earlier(seen, sec), &err) ||
             !load_section(cfg, sec, &err))) {
            add_problem(cfg, sec, err);
        }
    }
}

/* @running and @notes: as in config_reload(), or NULL. */
static bool load_file(struct daemon_config *cfg, const char *path,
                      const struct daemon_config *running, GString *notes, GError **errp)
{
    g_autoptr(GPtrArray) sections = NULL;
    g_autofree char *text = NULL;
    gsize len;

    g_free(cfg->path);
    cfg->path = g_strdup(path);
    if (!g_file_get_contents(path, &text, &len, errp)) {
        return false; /* the message has the path */
    }
    sections = cut(text, len);
    if (!load_daemon(cfg, sections, errp)) {
        g_prefix_error(errp, "%s: ", path);
        return false;
    }
    if (running) {
        config_keep(cfg, running, notes);
    }
    load_networks(cfg, sections);
    load_all(cfg, sections, "peer ", load_peer);
    load_all(cfg, sections, "nic ", load_nic);
    load_vms(cfg, sections);
    return true;
}

bool config_load(struct daemon_config *cfg, const char *path, GError **errp)
{
    return load_file(cfg, path, NULL, NULL, errp);
}

bool config_load_default(struct daemon_config *cfg, const char *path, GError **errp)
{
    struct stat st;

    /* One that is there and cannot be read is an error: it declares VMs. */
    if (lstat(path, &st) == 0 || (errno != ENOENT && errno != ENOTDIR)) {
        return config_load(cfg, path, errp);
    }
    g_free(cfg->path);
    cfg->path = g_strdup(path);
    cfg->no_file = true;
    config_complete(cfg);
    return true;
}

struct daemon_config *config_reload(const struct daemon_config *running, GString *notes,
                                    GError **errp)
{
    struct daemon_config *cfg;

    if (!running->path) {
        g_set_error(errp, PVRDMA_ERROR, 0, "reload: there is no key file");
        return NULL;
    }
    cfg = config_new();
    config_take_fixed(cfg, running); /* the command line goes on winning */
    if (!load_file(cfg, running->path, running, notes, errp)) {
        config_free(cfg);
        return NULL;
    }
    return cfg;
}
