/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The admin protocol: request parsing, execution against real declared VMs
 * (their sockets in a private directory), and the socket's own bounds.
 */
#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <json-glib/json-glib.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/coro.h"
#include "config/config.h"
#include "control/control.h"
#include "control/json.h"
#include "control/registry.h"
#include "directory/directory.h"
#include "vm/attach.h"

static struct daemon_config *cfg;

/* ---- parsing ---- */

static struct control_request *parse(const char *text, GError **errp)
{
    return control_request_parse(text, strlen(text), errp);
}

static void test_parse_good(void)
{
    g_autoptr(GError) err = NULL;
    struct control_request *r;

    r = parse("{\"cmd\":\"status\"}", &err);
    g_assert_no_error(err);
    g_assert_cmpint(r->cmd, ==, CONTROL_STATUS);
    g_assert_null(r->name);
    control_request_free(r);

    r = parse(" { \"after\" : 7 , \"name\" : \"a\" , \"cmd\" : \"qp-list\" } ", &err);
    g_assert_no_error(err);
    g_assert_cmpint(r->cmd, ==, CONTROL_QP_LIST);
    g_assert_cmpstr(r->name, ==, "a");
    g_assert_cmpuint(r->after, ==, 7);
    control_request_free(r);

    r = parse("{\"cmd\":\"vm-add\",\"name\":\"a\",\"set\":{\"network\":\"x\","
              "\"k\":\"\"}}",
              &err);
    g_assert_no_error(err);
    g_assert_cmpint(r->cmd, ==, CONTROL_VM_ADD);
    g_assert_cmpuint(r->n_set, ==, 2);
    control_request_free(r);
}

static void test_parse_bad(void)
{
    static const char *const bad[] = {
        "",
        " ",
        "null",
        "[]",
        "7",
        "\"status\"",
        "{}",
        "{",
        "{\"cmd\":}",
        "{\"cmd\":null}",
        "{\"cmd\":1}",
        "{\"cmd\":\"\"}",
        "{\"cmd\":\"STATUS\"}",
        "{\"cmd\":[\"status\"]}",
        "{\"cmd\":\"status\",\"name\":\"a\"}",
        "{\"cmd\":\"status\",\"x\":1}",
        "{\"cmd\":\"vm-remove\"}",
        "{\"cmd\":\"vm-remove\",\"name\":1}",
        "{\"cmd\":\"vm-remove\",\"name\":\"\"}",
        "{\"cmd\":\"vm-remove\",\"name\":\"a/b\"}",
        "{\"cmd\":\"vm-remove\",\"name\":\"a\\u0000b\"}",
        "{\"cmd\":\"vm-remove\",\"name\":\"a\",\"set\":{}}",
        "{\"cmd\":\"qp-list\",\"name\":\"a\",\"after\":-1}",
        "{\"cmd\":\"qp-list\",\"name\":\"a\",\"after\":4294967296}",
        "{\"cmd\":\"qp-list\",\"name\":\"a\",\"after\":1.5}",
        "{\"cmd\":\"qp-list\",\"name\":\"a\",\"after\":\"1\"}",
        "{\"cmd\":\"qp-list\",\"after\":1}",
        "{\"cmd\":\"vm-add\",\"name\":\"a\",\"set\":[]}",
        "{\"cmd\":\"vm-add\",\"name\":\"a\",\"set\":\"x\"}",
        "{\"cmd\":\"vm-add\",\"name\":\"a\",\"set\":{\"max-qp\":5}}",
        "{\"cmd\":\"vm-add\",\"name\":\"a\",\"set\":{\"k\":{}}}",
        "{\"cmd\":\"vm-add\",\"name\":\"a\",\"set\":{\"k\":null}}",
        "{\"cmd\":\"status\"} {\"cmd\":\"status\"}",
        "{\"cmd\":\"stat\xff\"}",
        "{\"cmd\":/* \" */\"status\"}",
        "{\"cmd\":'status'}",
        "var x = {\"cmd\":\"status\"};",
        "{\"cmd\":\"status\"}]",
    };

    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_autoptr(GError) err = NULL;
        g_autofree char *shown = g_strescape(bad[i], NULL);

        g_test_message("%s", shown);
        g_assert_null(parse(bad[i], &err));
        g_assert_nonnull(err);
    }
}

/* What would overrun a recursive parser, or its memory. */
static void test_parse_size(void)
{
    g_autoptr(GString) s = g_string_new("{\"cmd\":\"vm-add\",\"name\":\"a\",\"set\":{");
    g_autofree char *open = g_strnfill(CONTROL_MAX_REQUEST / 2 - 10, '[');
    g_autofree char *close = g_strnfill(CONTROL_MAX_REQUEST / 2 - 10, ']');
    g_autofree char *deep = g_strconcat("{\"cmd\":", open, close, "}", NULL);
    g_autofree char *braces = NULL;
    g_autoptr(GError) err = NULL;
    struct control_request *r;

    g_assert_null(parse(deep, &err));
    g_assert_nonnull(strstr(err->message, "nested"));
    g_clear_error(&err);

    /* Brackets in a string are text. */
    braces = g_strconcat("{\"cmd\":\"vm-add\",\"name\":\"a\","
                         "\"set\":{\"k\":\"\\\"[[[[[[[[[[\"}}",
                         NULL);
    r = parse(braces, &err);
    g_assert_no_error(err);
    g_assert_cmpstr(r->value[0], ==, "\"[[[[[[[[[[");
    control_request_free(r);

    for (unsigned i = 0; i <= CONTROL_MAX_SET; i++) {
        g_string_append_printf(s, "%s\"k%u\":\"v\"", i ? "," : "", i);
    }
    g_string_append(s, "}}");
    g_assert_null(parse(s->str, &err));
    g_clear_error(&err);

    g_string_truncate(s, 0);
    g_string_append(s, "{\"cmd\":\"status\"}");
    while (s->len <= CONTROL_MAX_REQUEST) {
        g_string_append_c(s, ' ');
    }
    g_assert_null(parse(s->str, &err));
    g_string_truncate(s, CONTROL_MAX_REQUEST);
    g_clear_error(&err);
    r = parse(s->str, &err);
    g_assert_no_error(err);
    control_request_free(r);
}

/* ---- execution ---- */

static JsonObject *handle(const char *line, JsonNode **node)
{
    g_autofree char *text = control_handle(cfg, line, strlen(line));

    g_assert_true(g_str_has_suffix(text, "\n"));
    g_assert_true(strchr(text, '\n') == text + strlen(text) - 1);
    *node = json_from_string(text, NULL);
    g_assert_nonnull(*node);
    return json_node_get_object(*node);
}

static void handle_ok(const char *line)
{
    g_autoptr(JsonNode) node = NULL;
    JsonObject *o = handle(line, &node);

    g_assert_true(json_object_get_boolean_member(o, "ok"));
    g_assert_true(json_object_has_member(o, "result"));
}

static void handle_fails(const char *line, const char *word)
{
    g_autoptr(JsonNode) node = NULL;
    JsonObject *o = handle(line, &node);

    g_assert_false(json_object_get_boolean_member(o, "ok"));
    g_assert_nonnull(strstr(json_object_get_string_member(o, "error"), word));
}

static unsigned vm_count(void)
{
    g_autoptr(JsonNode) node = NULL;
    JsonObject *o = handle("{\"cmd\":\"status\"}", &node);

    o = json_object_get_object_member(o, "result");
    g_assert_cmpint(json_object_get_int_member(o, "pid"), ==, getpid());
    o = json_object_get_object_member(o, "process");
    g_assert_cmpint(json_object_get_int_member(o, "fds"), >=, 3);
    g_assert_cmpint(json_object_get_int_member(o, "threads"), >=, 1);
    g_assert_cmpint(json_object_get_int_member(o, "rss_anon_kb"), >, 0);
    o = json_object_get_object_member(json_node_get_object(node), "result");
    return json_array_get_length(json_object_get_array_member(o, "vms"));
}

static void test_vms(void)
{
    g_autofree char *socket = g_build_filename(cfg->socket_dir, "a.sock", NULL);
    g_autofree char *line = NULL;
    unsigned fds;

    g_assert_cmpuint(vm_count(), ==, 0);
    handle_ok("{\"cmd\":\"vm-add\",\"name\":\"a\",\"set\":{\"addresses\":\"10.0."
              "0.1\"}}");
    g_assert_cmpuint(vm_count(), ==, 1);
    g_assert_true(g_file_test(socket, G_FILE_TEST_EXISTS));
    g_assert_cmpuint(registry_find("a")->cfg->n_addresses, ==, 1);

    handle_fails("{\"cmd\":\"vm-add\",\"name\":\"a\"}", "exists");
    handle_fails("{\"cmd\":\"vm-add\",\"name\":\"b\",\"set\":{\"max-qp\":\"1\"}}",
                 "max-qp");
    handle_fails("{\"cmd\":\"vm-add\",\"name\":\"b\",\"set\":{\"x\":\"1\"}}",
                 "unknown key");
    line = g_strdup_printf(
        "{\"cmd\":\"vm-add\",\"name\":\"b\",\"set\":{\"socket\":\"%s\"}}", socket);
    handle_fails(line, "belongs to VM a");
    g_free(line);
    line =
        g_strdup_printf("{\"cmd\":\"vm-add\",\"name\":\"b\",\"set\":{\"socket\":\"%s\"}}",
                        cfg->control_socket);
    handle_fails(line, "control socket");
    handle_fails("{\"cmd\":\"vm-add\",\"name\":\"b\",\"set\":"
                 "{\"socket\":\"/nonexistent/dir/x\"}}",
                 "VM b");
    g_assert_cmpuint(vm_count(), ==, 1);

    handle_ok("{\"cmd\":\"vm-list\"}");
    handle_ok("{\"cmd\":\"qp-list\",\"name\":\"a\"}");
    handle_ok("{\"cmd\":\"qp-list\",\"name\":\"a\",\"after\":4294967295}");
    handle_ok("{\"cmd\":\"vm-migrate-status\"}");
    handle_ok("{\"cmd\":\"vm-migrate-status\",\"name\":\"a\"}");
    handle_fails("{\"cmd\":\"vm-migrate-status\",\"name\":\"z\"}", "no VM z");
    handle_ok("{\"cmd\":\"counters\"}");
    handle_ok("{\"cmd\":\"counters\",\"name\":\"a\"}");
    handle_fails("{\"cmd\":\"counters\",\"name\":\"z\"}", "no VM z");
    handle_fails("{\"cmd\":\"vm-pause\",\"name\":\"a\"}", "not attached");
    handle_fails("{\"cmd\":\"vm-resume\",\"name\":\"a\"}", "not attached");
    handle_fails("{\"cmd\":\"vm-remove\",\"name\":\"b\"}", "no VM b");
    handle_ok("{\"cmd\":\"vm-remove\",\"name\":\"a\"}");
    g_assert_cmpuint(vm_count(), ==, 0);
    g_assert_false(g_file_test(socket, G_FILE_TEST_EXISTS));

    /* Adding and removing leaves nothing behind. */
    fds = g_list_length(registry_all());
    for (unsigned i = 0; i < 50; i++) {
        handle_ok("{\"cmd\":\"vm-add\",\"name\":\"a\",\"set\":{\"addresses\":\"any\"}}");
        handle_ok("{\"cmd\":\"vm-remove\",\"name\":\"a\"}");
    }
    g_assert_cmpuint(g_list_length(registry_all()), ==, fds);
}

/* ---- the socket ---- */

static int connect_client(void)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    g_strlcpy(addr.sun_path, cfg->control_socket, sizeof(addr.sun_path));
    g_assert_cmpint(connect(s, (struct sockaddr *)&addr, sizeof(addr)), ==, 0);
    fcntl(s, F_SETFL, O_NONBLOCK);
    return s;
}

static void turn(void)
{
    for (unsigned i = 0; i < 100; i++) {
        g_main_context_iteration(NULL, FALSE);
    }
}

/* Answer lines that arrive within a few turns of the main loop; -1: closed. */
static int count_answers(int s)
{
    static char buf[1 << 20];
    int lines = 0;

    for (unsigned i = 0; i < 50; i++) {
        ssize_t n;

        turn();
        n = recv(s, buf, sizeof(buf), 0);
        if (n == 0 || (n < 0 && errno != EAGAIN)) {
            return -1;
        }
        for (ssize_t k = 0; k < n; k++) {
            lines += buf[k] == '\n';
        }
    }
    return lines;
}

static void send_text(int s, const char *text)
{
    g_assert_cmpint(send(s, text, strlen(text), MSG_NOSIGNAL), ==, strlen(text));
}

/* A VM that goes while its row waits to be written, and a name that needs quotes. */
static void test_reports(void)
{
    g_autofree char *text = NULL;
    g_autoptr(JsonNode) node = NULL;
    JsonObject *o;
    JsonArray *list;

    handle_ok("{\"cmd\":\"vm-add\",\"name\":\"a\"}");
    handle_ok("{\"cmd\":\"vm-add\",\"name\":\"b\"}");
    registry_fail("qu\"o\\te\t", "it \"failed\"\nbadly");
    text = control_handle(cfg, "{\"cmd\":\"status\"}", 16);
    node = json_from_string(text, NULL);
    g_assert_nonnull(node);
    o = json_object_get_object_member(json_node_get_object(node), "result");
    list = json_object_get_array_member(o, "vms");
    g_assert_cmpuint(json_array_get_length(list), ==, 2);
    o = json_array_get_object_element(json_object_get_array_member(o, "failed"), 0);
    g_assert_cmpstr(json_object_get_string_member(o, "name"), ==, "qu\"o\\te\t");
    g_assert_cmpstr(json_object_get_string_member(o, "reason"), ==,
                    "it \"failed\"\nbadly");
    registry_forget_failed();
    registry_fail("\xff\xfe", "\xc3");
    g_clear_pointer(&text, g_free);
    text = control_handle(cfg, "{\"cmd\":\"status\"}", 16);
    g_assert_true(g_utf8_validate(text, -1, NULL));
    registry_forget_failed();
    handle_ok("{\"cmd\":\"vm-remove\",\"name\":\"a\"}");
    handle_ok("{\"cmd\":\"vm-remove\",\"name\":\"b\"}");
}

struct remover {
    GString *s;
    bool ended;
};

static void report_and_remove(GString *s, struct vm *vm)
{
    gint64 end = g_get_monotonic_time() + 3000;

    report_vm(s, vm);
    while (g_get_monotonic_time() < end) { /* more than a turn's time */
    }
}

static void run_report(void *opaque)
{
    struct remover *r = opaque;

    json_begin(r->s, NULL, '{');
    report_all(r->s, report_and_remove);
    json_end(r->s, '}');
    r->ended = true;
}

/* The main loop turns between VMs, and one that is gone by then is left out. */
static void test_report_turns(void)
{
    struct remover r = {.s = g_string_new(NULL)};
    g_autoptr(JsonNode) node = NULL;

    handle_ok("{\"cmd\":\"vm-add\",\"name\":\"a\"}");
    handle_ok("{\"cmd\":\"vm-add\",\"name\":\"b\"}");
    handle_ok("{\"cmd\":\"vm-add\",\"name\":\"c\"}");
    g_assert_false(coro_run(run_report, &r));
    handle_ok("{\"cmd\":\"vm-remove\",\"name\":\"b\"}");
    while (!r.ended) {
        g_main_context_iteration(NULL, FALSE);
    }
    node = json_from_string(r.s->str, NULL);
    g_assert_nonnull(node);
    g_assert_nonnull(strstr(r.s->str, "\"a\""));
    g_assert_null(strstr(r.s->str, "\"b\""));
    g_assert_nonnull(strstr(r.s->str, "\"c\""));
    g_string_free(r.s, TRUE);
    handle_ok("{\"cmd\":\"vm-remove\",\"name\":\"a\"}");
    handle_ok("{\"cmd\":\"vm-remove\",\"name\":\"c\"}");
    coro_fini();
}

static void test_socket(void)
{
    static const char request[] = "{\"cmd\":\"status\"}\n";
    g_autoptr(GError) err = NULL;
    struct stat st;
    int s;

    g_assert_true(control_listen(cfg, &err));
    g_assert_no_error(err);
    g_assert_cmpint(stat(cfg->control_socket, &st), ==, 0);
    g_assert_cmpuint(st.st_mode & 0777, ==, 0600);

    /* Whole, in pieces, and several at once. */
    s = connect_client();
    send_text(s, request);
    g_assert_cmpint(count_answers(s), ==, 1);
    for (const char *p = request; *p; p++) {
        g_assert_cmpint(send(s, p, 1, 0), ==, 1);
        turn();
    }
    g_assert_cmpint(count_answers(s), ==, 1);
    for (unsigned i = 0; i < 20; i++) {
        send_text(s, request);
    }
    send_text(s, "nonsense\n\n");
    g_assert_cmpint(count_answers(s), ==, 22);
    close(s);
    turn();
    control_close();
    g_assert_cmpint(access(cfg->control_socket, F_OK), !=, 0);
}

static void test_socket_bounds(void)
{
    g_autofree char *longer = g_strnfill(CONTROL_MAX_REQUEST + 1, 'x');
    int s[CONTROL_MAX_CLIENTS + 1], n;
    g_autoptr(GError) err = NULL;

    g_assert_true(control_listen(cfg, &err));
    /* A line without end is not collected for ever. */
    s[0] = connect_client();
    send_text(s[0], longer);
    g_assert_cmpint(count_answers(s[0]), ==, -1);
    close(s[0]);

    for (unsigned i = 0; i <= CONTROL_MAX_CLIENTS; i++) {
        s[i] = connect_client();
        turn();
    }
    g_assert_cmpint(count_answers(s[CONTROL_MAX_CLIENTS]), ==, -1);
    send_text(s[0], "{\"cmd\":\"vm-list\"}\n");
    g_assert_cmpint(count_answers(s[0]), ==, 1);

    /* Who does not read is not read from either: the socket fills up. */
    for (n = 0; n < 100000; n++) {
        if (send(s[1], "{\"cmd\":\"status\"}\n", 17, MSG_NOSIGNAL) < 0) {
            break;
        }
        if (n % 16 == 0) {
            turn();
        }
    }
    g_assert_cmpint(n, <, 100000);
    send_text(s[0], "{\"cmd\":\"vm-list\"}\n");
    g_assert_cmpint(count_answers(s[0]), ==, 1);
    for (unsigned i = 0; i <= CONTROL_MAX_CLIENTS; i++) {
        close(s[i]);
    }
    turn();
    control_close();
}

/* Is the connection closed within @ms? */
static bool closes(int s, unsigned ms)
{
    gint64 end = g_get_monotonic_time() + ms * 1000;
    char buf[4096];

    while (g_get_monotonic_time() < end) {
        ssize_t n;

        g_usleep(1000);
        turn();
        n = recv(s, buf, sizeof(buf), 0);
        if (n == 0 || (n < 0 && errno != EAGAIN)) {
            return true;
        }
    }
    return false;
}

/* Who neither asks nor reads is not kept. */
static void test_socket_idle(void)
{
    static const char request[] = "{\"cmd\":\"status\"}\n";
    /* Much longer than it takes this program to come to its turn again. */
    const unsigned idle_ms = 1000;
    gint64 end = g_get_monotonic_time() + 20 * G_USEC_PER_SEC;
    g_autoptr(GError) err = NULL;
    struct pollfd p = {0};
    int talks, half, mute;

    control_set_idle(idle_ms);
    g_assert_true(control_listen(cfg, &err));
    talks = connect_client();
    half = connect_client();
    turn();
    for (unsigned i = 0; i < 8; i++) {
        g_usleep(idle_ms * 1000 / 5);
        send_text(talks, request);
        /* A byte at a time is not a request. */
        send(half, " ", 1, MSG_NOSIGNAL);
        g_assert_cmpint(count_answers(talks), ==, 1);
    }
    g_assert_true(closes(half, 100));
    close(half);
    g_assert_true(closes(talks, 10000));
    close(talks);

    /* Asks, but does not read. */
    mute = connect_client();
    for (unsigned i = 0; i < 20000 && send(mute, request, strlen(request), 0) > 0; i++) {
        turn();
    }
    for (p.fd = mute; !(p.revents & POLLHUP); poll(&p, 1, 10)) {
        g_assert_cmpint(g_get_monotonic_time(), <, end);
        turn();
    }
    g_assert_cmpint(send(mute, request, strlen(request), MSG_NOSIGNAL), ==, -1);
    g_assert_cmpint(errno, !=, EAGAIN);
    close(mute);
    control_close();
    control_set_idle(CONTROL_IDLE_S * 1000);
}

static void test_stale_socket(void)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    g_autoptr(GError) err = NULL;
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    g_strlcpy(addr.sun_path, cfg->control_socket, sizeof(addr.sun_path));
    g_assert_cmpint(bind(s, (struct sockaddr *)&addr, sizeof(addr)), ==, 0);
    g_assert_cmpint(listen(s, 1), ==, 0);
    /* Somebody listens: hands off. */
    g_assert_false(control_listen(cfg, &err));
    g_assert_nonnull(strstr(err->message, "another"));
    g_clear_error(&err);
    close(s);
    /* Left over: taken. */
    g_assert_true(control_listen(cfg, &err));
    control_close();
    /* Not a socket: never removed. */
    g_assert_true(g_file_set_contents(cfg->control_socket, "precious", -1, NULL));
    g_assert_false(control_listen(cfg, &err));
    g_assert_true(g_file_test(cfg->control_socket, G_FILE_TEST_IS_REGULAR));
    g_unlink(cfg->control_socket);
}

int main(int argc, char **argv)
{
    g_autofree char *dir = NULL;
    int rc;

    g_test_init(&argc, &argv, NULL);
    dir = g_dir_make_tmp("pvrdma-control-XXXXXX", NULL);
    g_assert_nonnull(dir);
    cfg = config_new();
    g_assert_true(config_set(cfg, "socket-dir", dir, false, NULL));
    config_complete(cfg);
    log_set_level(LOG_LVL_ERROR);
    directory_init();

    g_test_add_func("/control/parse/good", test_parse_good);
    g_test_add_func("/control/parse/bad", test_parse_bad);
    g_test_add_func("/control/parse/size", test_parse_size);
    g_test_add_func("/control/vms", test_vms);
    g_test_add_func("/control/reports", test_reports);
    g_test_add_func("/control/report-turns", test_report_turns);
    g_test_add_func("/control/socket", test_socket);
    g_test_add_func("/control/socket/bounds", test_socket_bounds);
    g_test_add_func("/control/socket/idle", test_socket_idle);
    g_test_add_func("/control/socket/stale", test_stale_socket);
    rc = g_test_run();

    directory_fini();
    config_free(cfg);
    g_rmdir(dir);
    return rc;
}
