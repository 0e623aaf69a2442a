/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Requests of the admin socket: parsing and execution.
 *
 * The client is trusted to administer the daemon, not to be free of bugs: a
 * line is bounded, must be UTF-8 without NUL, is checked for nesting before the
 * JSON parser (which recurses) sees it, and each member for its type.  Unknown
 * commands and members are errors.
 *
 * A request that waits (pause, resume, removal, a list of QPs) runs in a coroutine, as
 * all do; see vm.h for what it owns then.
 */
#include "control/control.h"

#include <json-glib/json-glib.h>
#include <string.h>

#include "control/json.h"
#include "control/registry.h"
#include "control/reload.h"
#include "control/restart/restart.h"
#include "datapath/datapath.h"
#include "directory/directory.h"
#include "vm/attach.h"

/* Which members a command takes. */
enum { NAME_NONE, NAME_OPTIONAL, NAME_NEEDED };

static const struct command {
    const char *text;
    int name;
    bool set, after;
} commands[] = {
    [CONTROL_STATUS] = {"status", NAME_NONE},
    [CONTROL_VM_LIST] = {"vm-list", NAME_NONE},
    [CONTROL_VM_ADD] = {"vm-add", NAME_NEEDED, .set = true},
    [CONTROL_VM_REMOVE] = {"vm-remove", NAME_NEEDED},
    [CONTROL_VM_PAUSE] = {"vm-pause", NAME_NEEDED},
    [CONTROL_VM_RESUME] = {"vm-resume", NAME_NEEDED},
    [CONTROL_VM_MIGRATE_STATUS] = {"vm-migrate-status", NAME_OPTIONAL},
    [CONTROL_QP_LIST] = {"qp-list", NAME_NEEDED, .after = true},
    [CONTROL_COUNTERS] = {"counters", NAME_OPTIONAL},
    [CONTROL_PEER_LIST] = {"peer-list", NAME_NONE},
    [CONTROL_NIC_LIST] = {"nic-list", NAME_NONE},
    [CONTROL_RELOAD] = {"reload", NAME_NONE},
    [CONTROL_RESTART] = {"restart", NAME_NONE},
};

static bool fail(GError **errp, const char *why)
{
    g_set_error_literal(errp, PVRDMA_ERROR, 0, why);
    return false;
}

/* ---- parsing ---- */

/*
 * Is @text one object and nothing else, not nested too deeply, without an
 * escaped NUL (at which the parser's strings would silently end) and without
 * what JSON does not have but the parser takes, such as comments?
 */
static bool text_ok(const char *text, size_t len)
{
    unsigned depth = 0;
    bool in_string = false, done = false;

    for (size_t i = 0; i < len; i++) {
        char c = text[i];

        if (in_string) {
            if (c == '\\') {
                if (len - i > 5 && memcmp(text + i + 1, "u0000", 5) == 0) {
                    return false;
                }
                i++;
            } else if (c == '"') {
                in_string = false;
            }
            continue;
        }
        if (g_ascii_isspace(c)) {
            continue;
        }
        if (done || (depth == 0 && c != '{')) {
            return false;
        }
        if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > CONTROL_MAX_DEPTH) {
                return false;
            }
        } else if (c == '}' || c == ']') {
            done = --depth == 0;
        } else if (!g_ascii_isalnum(c) && !strchr(":,+-.", c)) {
            return false;
        }
    }
    return done;
}

/* The string in @node, or NULL if it holds something else. */
static const char *node_string(JsonNode *node)
{
    return node && JSON_NODE_HOLDS_VALUE(node) &&
                   json_node_get_value_type(node) == G_TYPE_STRING
               ? json_node_get_string(node)
               : NULL;
}

static bool parse_cmd(struct control_request *req, JsonObject *o, GError **errp)
{
    const char *text = node_string(json_object_get_member(o, "cmd"));

    for (unsigned i = 0; text && i < G_N_ELEMENTS(commands); i++) {
        if (strcmp(text, commands[i].text) == 0) {
            req->cmd = i;
            return true;
        }
    }
    return fail(errp, "unknown command");
}

static bool parse_set(struct control_request *req, JsonNode *node, GError **errp)
{
    g_autoptr(GList) keys = NULL;
    JsonObject *o;

    if (!JSON_NODE_HOLDS_OBJECT(node)) {
        return fail(errp, "\"set\" must be an object");
    }
    o = json_node_get_object(node);
    if (json_object_get_size(o) > CONTROL_MAX_SET) {
        return fail(errp, "too many settings");
    }
    keys = json_object_get_members(o);
    for (GList *k = keys; k; k = k->next) {
        const char *value = node_string(json_object_get_member(o, k->data));

        if (!value) {
            return fail(errp, "settings must be strings");
        }
        req->key[req->n_set] = g_strdup(k->data);
        req->value[req->n_set] = g_strdup(value);
        req->n_set++;
    }
    return true;
}

static bool parse_member(struct control_request *req, const char *key, JsonNode *node,
                         GError **errp)
{
    const struct command *cmd = &commands[req->cmd];

    if (strcmp(key, "name") == 0 && cmd->name != NAME_NONE) {
        const char *name = node_string(node);

        if (!name || !config_valid_name(name)) {
            return fail(errp, "\"name\" is not a VM name");
        }
        req->name = g_strdup(name);
        return true;
    }
    if (strcmp(key, "set") == 0 && cmd->set) {
        return parse_set(req, node, errp);
    }
    if (strcmp(key, "after") == 0 && cmd->after) {
        int64_t n = -1;

        if (JSON_NODE_HOLDS_VALUE(node) &&
            json_node_get_value_type(node) == G_TYPE_INT64) {
            n = json_node_get_int(node);
        }
        if (n < 0 || n > UINT32_MAX) {
            return fail(errp, "\"after\" is not a handle");
        }
        req->after = n;
        return true;
    }
    return strcmp(key, "cmd") == 0 || fail(errp, "unknown member in the request");
}

static bool parse_object(struct control_request *req, JsonNode *root, GError **errp)
{
    g_autoptr(GList) keys = NULL;
    JsonObject *o;

    if (!root || !JSON_NODE_HOLDS_OBJECT(root)) {
        return fail(errp, "a request must be a JSON object");
    }
    o = json_node_get_object(root);
    if (!parse_cmd(req, o, errp)) {
        return false;
    }
    keys = json_object_get_members(o);
    for (GList *k = keys; k; k = k->next) {
        if (!parse_member(req, k->data, json_object_get_member(o, k->data), errp)) {
            return false;
        }
    }
    if (commands[req->cmd].name == NAME_NEEDED && !req->name) {
        return fail(errp, "\"name\" is missing");
    }
    return true;
}

struct control_request *control_request_parse(const char *line, size_t len, GError **errp)
{
    g_autoptr(JsonParser) parser = json_parser_new_immutable();
    struct control_request *req;

    if (len > CONTROL_MAX_REQUEST || memchr(line, 0, len) ||
        !g_utf8_validate(line, len, NULL)) {
        fail(errp, "a request must be one line of UTF-8 text of at most 16 KiB");
        return NULL;
    }
    if (!text_ok(line, len)) {
        fail(errp, "the request is not a JSON object, or is nested too deeply");
        return NULL;
    }
    if (!json_parser_load_from_data(parser, line, len, NULL)) {
        fail(errp, "the request is not JSON");
        return NULL;
    }
    req = g_new0(struct control_request, 1);
    if (!parse_object(req, json_parser_get_root(parser), errp)) {
        control_request_free(req);
        return NULL;
    }
    return req;
}

void control_request_free(struct control_request *req)
{
    if (!req) {
        return;
    }
    for (unsigned i = 0; i < req->n_set; i++) {
        g_free(req->key[i]);
        g_free(req->value[i]);
    }
    g_free(req->name);
    g_free(req);
}

/* ---- execution ---- */

static struct vm *find_vm(const char *name, GError **errp)
{
    struct vm *vm = registry_find(name);

    if (vm && !vm->gone) {
        return vm;
    }
    g_set_error(errp, PVRDMA_ERROR, 0,
                vm ? "VM %s is being removed" : "there is no VM %s", name);
    return NULL;
}

static bool run_vm_add(const struct daemon_config *cfg, const struct control_request *req,
                       GError **errp)
{
    struct vm_config *vm = config_vm_new(cfg, req->name, errp);

    if (!vm) {
        return false;
    }
    for (unsigned i = 0; i < req->n_set; i++) {
        if (!config_vm_set(vm, req->key[i], req->value[i], errp)) {
            config_vm_free(vm);
            return false;
        }
    }
    if (!config_vm_finish(cfg, vm, errp)) {
        config_vm_free(vm);
        return false;
    }
    if (!registry_add(vm, errp)) {
        return false;
    }
    log_msg(LOG_LVL_INFO, "VM %s was added", req->name);
    return true;
}

/* Behind what the VM has under way; @vm was found just now. */
static bool run_pause(struct vm *vm, bool pause, GError **errp)
{
    coro_lock(&vm->ops);
    if (!vm->attached) {
        g_set_error(errp, PVRDMA_ERROR, 0, "VM %s is not attached", vm->cfg->name);
        coro_unlock(&vm->ops);
        return false;
    }
    if (!pause && vm->admin_paused && !directory_may_run(vm)) {
        g_set_error(errp, PVRDMA_ERROR, 0, "VM %s runs elsewhere, its addresses moved",
                    vm->cfg->name);
        coro_unlock(&vm->ops);
        return false;
    }
    if (vm->admin_paused != pause) {
        vm->admin_paused = pause;
        if (pause) {
            datapath_pause(vm);
        } else {
            datapath_resume(vm);
        }
        log_vm(LOG_LVL_INFO, vm, pause ? "paused" : "resumed");
    }
    coro_unlock(&vm->ops);
    return true;
}

/* Of @vm, or of all. */
static void report_some(GString *s, struct vm *vm,
                        void (*report)(GString *s, struct vm *vm))
{
    if (vm) {
        json_begin(s, "vms", '[');
        report(s, vm);
        json_end(s, ']');
    } else {
        report_all(s, report);
    }
}

static bool changes(enum control_cmd cmd)
{
    return cmd == CONTROL_VM_ADD || cmd == CONTROL_VM_REMOVE || cmd == CONTROL_VM_PAUSE ||
           cmd == CONTROL_VM_RESUME || cmd == CONTROL_RELOAD || cmd == CONTROL_RESTART;
}

/* Adds the members of the result to @s. */
static bool run(const struct daemon_config *cfg, const struct control_request *req,
                GString *s, GError **errp)
{
    struct vm *vm = NULL;

    if (restart_under_way() && changes(req->cmd)) {
        return fail(errp, "a restart is under way");
    }
    if (req->cmd == CONTROL_VM_ADD) {
        return run_vm_add(cfg, req, errp);
    }
    if (req->name) {
        vm = find_vm(req->name, errp);
        if (!vm) {
            return false;
        }
    }
    switch (req->cmd) {
    case CONTROL_STATUS:
        report_status(s, cfg);
        report_peers(s);
        report_all(s, report_vm);
        report_failed(s);
        break;
    case CONTROL_PEER_LIST:
        report_peers(s);
        report_failed(s);
        break;
    case CONTROL_NIC_LIST:
        report_nics(s);
        report_failed(s);
        break;
    case CONTROL_VM_LIST:
        report_all(s, report_vm);
        report_failed(s);
        break;
    case CONTROL_RELOAD:
        return reload_run(s, errp);
    case CONTROL_RESTART:
        restart_run(control_client(), errp);
        return false;
    case CONTROL_VM_REMOVE:
        registry_remove(vm);
        log_msg(LOG_LVL_INFO, "VM %s was removed", req->name);
        break;
    case CONTROL_VM_PAUSE:
    case CONTROL_VM_RESUME:
        return run_pause(vm, req->cmd == CONTROL_VM_PAUSE, errp);
    case CONTROL_QP_LIST:
        report_qps(s, vm, req->after);
        break;
    case CONTROL_VM_MIGRATE_STATUS:
        report_some(s, vm, report_migration);
        break;
    case CONTROL_COUNTERS:
        report_some(s, vm, report_counters);
        break;
    default:
        break;
    }
    return true;
}

char *control_handle(const struct daemon_config *cfg, const char *line, size_t len)
{
    GString *s = g_string_new(NULL);
    g_autoptr(GError) err = NULL;
    struct control_request *req = control_request_parse(line, len, &err);
    bool ok = req != NULL;

    json_begin(s, NULL, '{');
    json_begin(s, "result", '{');
    if (ok) {
        ok = run(cfg, req, s, &err);
    }
    json_end(s, '}');
    json_bool(s, "ok", ok);
    if (!ok) {
        json_str(s, "error", err ? err->message : "failed");
    }
    json_end(s, '}');
    g_string_append_c(s, '\n');
    control_request_free(req);
    return g_string_free(s, FALSE);
}
