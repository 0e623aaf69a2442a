/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * pvrdmactl: asks pvrdmad over its admin socket and prints the answer, as text
 * tables or (--json) as the JSON that came.  The protocol is in
 * control/control.h.
 */
#include <errno.h>
#include <gio/gio.h>
#include <json-glib/json-glib.h>
#include <locale.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define DEFAULT_SOCKET PVRDMA_SOCKET_DIR "/control"
#define MAX_ANSWER     (64u << 20)
/* Characters of an error message that go to the terminal. */
#define PRINTABLE \
    G_CSET_A_2_Z G_CSET_a_2_z G_CSET_DIGITS " !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"

/* The command line is wrong; EXIT_FAILURE: what it asks for was not done. */
#define EXIT_USAGE 2

static int sock = -1;
static int timeout_s; /* 0: none */
static gboolean as_json;

static G_GNUC_PRINTF(1, 2) G_GNUC_NORETURN void die(const char *fmt, ...)
{
    va_list ap;

    fputs("pvrdmactl: ", stderr);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    exit(EXIT_FAILURE);
}

/* ---- asking ---- */

static void connect_daemon(const char *path)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};

    if (g_strlcpy(addr.sun_path, path, sizeof(addr.sun_path)) >= sizeof(addr.sun_path)) {
        die("%s: path is too long for a UNIX socket", path);
    }
    sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (sock < 0) {
        die("socket: %s", g_strerror(errno));
    }
    if (timeout_s > 0) {
        struct timeval tv = {.tv_sec = timeout_s};

        setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
        setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv));
    }
    if (connect(sock, (struct sockaddr *)&addr, sizeof(addr)) < 0) {
        die("%s: %s%s", path, g_strerror(errno),
            errno == EACCES                            ? " (run it as the daemon's user)"
            : errno == ENOENT || errno == ECONNREFUSED ? " (is pvrdmad running?)"
                                                       : "");
    }
}

/* The connection is of no use; @n is what send() or recv() returned. */
static G_GNUC_NORETURN void gone(ssize_t n)
{
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        die("the daemon has not answered for %d s", timeout_s);
    }
    die("the daemon ended the connection%s%s: it has ended, is being replaced, "
        "or has too many clients",
        n < 0 ? ": " : "", n < 0 ? g_strerror(errno) : "");
}

static void send_all(const char *text, size_t len)
{
    while (len) {
        ssize_t n = send(sock, text, len, MSG_NOSIGNAL);

        if (n < 0 && errno != EINTR) {
            gone(n);
        }
        if (n > 0) {
            text += n;
            len -= n;
        }
    }
}

static GString *receive_line(void)
{
    GString *line = g_string_new(NULL);
    char buf[65536];

    for (;;) {
        ssize_t n = recv(sock, buf, sizeof(buf), 0);

        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            gone(n);
        }
        g_string_append_len(line, buf, n);
        if (buf[n - 1] == '\n') {
            return line;
        }
        if (line->len > MAX_ANSWER) {
            die("the answer is too long");
        }
    }
}

/* Member @name of @o if it is an object, array or value of the right kind. */
static JsonObject *get_object(JsonObject *o, const char *name)
{
    JsonNode *n = o ? json_object_get_member(o, name) : NULL;

    return n && JSON_NODE_HOLDS_OBJECT(n) ? json_node_get_object(n) : NULL;
}

static JsonArray *get_array(JsonObject *o, const char *name)
{
    JsonNode *n = o ? json_object_get_member(o, name) : NULL;

    return n && JSON_NODE_HOLDS_ARRAY(n) ? json_node_get_array(n) : NULL;
}

static JsonNode *get_value(JsonObject *o, const char *name, GType type)
{
    JsonNode *n = o ? json_object_get_member(o, name) : NULL;

    return n && JSON_NODE_HOLDS_VALUE(n) && json_node_get_value_type(n) == type ? n
                                                                                : NULL;
}

static const char *get_str(JsonObject *o, const char *name)
{
    JsonNode *n = get_value(o, name, G_TYPE_STRING);

    return n ? json_node_get_string(n) : "-";
}

static gint64 get_int(JsonObject *o, const char *name)
{
    JsonNode *n = get_value(o, name, G_TYPE_INT64);

    return n ? json_node_get_int(n) : 0;
}

static gboolean get_bool(JsonObject *o, const char *name)
{
    JsonNode *n = get_value(o, name, G_TYPE_BOOLEAN);

    return n && json_node_get_boolean(n);
}

/* Send what @b has built; the node of "result", or the end of the program. */
static JsonNode *ask_daemon(JsonBuilder *b)
{
    g_autoptr(JsonGenerator) gen = json_generator_new();
    g_autoptr(JsonNode) root = json_builder_get_root(b);
    g_autoptr(GString) line = NULL;
    g_autoptr(JsonNode) answer = NULL;
    g_autofree char *text = NULL;
    JsonObject *o;

    json_generator_set_root(gen, root);
    text = json_generator_to_data(gen, NULL);
    send_all(text, strlen(text));
    send_all("\n", 1);
    line = receive_line();
    answer = json_from_string(line->str, NULL);
    if (!answer || !JSON_NODE_HOLDS_OBJECT(answer)) {
        die("the daemon's answer is not understood");
    }
    o = json_node_get_object(answer);
    if (!get_bool(o, "ok")) {
        g_autofree char *why = g_strdup(get_str(o, "error"));

        die("%s", g_strcanon(why, PRINTABLE, '?'));
    }
    if (!get_object(o, "result")) {
        die("the daemon's answer has no result");
    }
    return json_node_copy(json_object_get_member(o, "result"));
}

/* A request; the caller may add members before finish(). */
static JsonBuilder *request(const char *cmd, const char *name)
{
    JsonBuilder *b = json_builder_new();

    json_builder_begin_object(b);
    json_builder_set_member_name(b, "cmd");
    json_builder_add_string_value(b, cmd);
    if (name) {
        json_builder_set_member_name(b, "name");
        json_builder_add_string_value(b, name);
    }
    return b;
}

static JsonNode *finish(JsonBuilder *b)
{
    JsonNode *result;

    json_builder_end_object(b);
    result = ask_daemon(b);
    g_object_unref(b);
    return result;
}

static JsonNode *simple(const char *cmd, const char *name)
{
    return finish(request(cmd, name));
}

/* ---- printing ---- */

static void print_json(JsonNode *node)
{
    g_autofree char *text = json_to_string(node, TRUE);

    puts(text);
}

static char *join(JsonArray *a)
{
    GString *s = g_string_new(NULL);

    for (guint i = 0; a && i < json_array_get_length(a); i++) {
        JsonNode *n = json_array_get_element(a, i);

        if (JSON_NODE_HOLDS_VALUE(n) && json_node_get_value_type(n) == G_TYPE_STRING) {
            g_string_append_printf(s, "%s%s", s->len ? "," : "", json_node_get_string(n));
        }
    }
    if (!s->len) {
        g_string_append_c(s, '-');
    }
    return g_string_free(s, FALSE);
}

static const char *vm_state(JsonObject *vm)
{
    if (!get_bool(vm, "attached")) {
        return get_bool(vm, "connected") ? "connecting" : "waiting";
    }
    if (get_bool(vm, "paused")) {
        return "paused";
    }
    return get_bool(vm, "active") ? "active" : "attached";
}

/* The addresses that @vm is to have when others let go. */
static void print_waiting(JsonObject *vm)
{
    JsonArray *a = get_array(vm, "waiting_gids");

    for (guint i = 0; a && i < json_array_get_length(a); i++) {
        JsonObject *w = json_array_get_object_element(a, i);

        printf("%s waits for %s: %s has it\n", get_str(vm, "name"), get_str(w, "gid"),
               get_str(w, "holder"));
    }
}

static void print_vms(JsonArray *vms)
{
    printf("%-20s %-10s %-12s %6s %5s %5s %5s %5s %9s  %s\n", "VM", "STATE", "NETWORK",
           "WORKER", "QPS", "CQS", "MRS", "GIDS", "MEM/MIB", "ADDRESSES");
    for (guint i = 0; vms && i < json_array_get_length(vms); i++) {
        JsonObject *vm = json_array_get_object_element(vms, i);
        JsonObject *obj = get_object(vm, "objects");
        g_autofree char *addr = join(get_array(vm, "addresses"));
        g_autofree char *worker =
            get_value(vm, "worker", G_TYPE_INT64)
                ? g_strdup_printf("%" G_GINT64_FORMAT, get_int(vm, "worker"))
                : g_strdup("-");

        printf("%-20s %-10s %-12s %6s %5" G_GINT64_FORMAT " %5" G_GINT64_FORMAT
               " %5" G_GINT64_FORMAT " %5" G_GINT64_FORMAT " %9" G_GINT64_FORMAT "  %s\n",
               get_str(vm, "name"), vm_state(vm), get_str(vm, "network"), worker,
               get_int(obj, "qps"), get_int(obj, "cqs"), get_int(obj, "mrs"),
               get_int(obj, "gids"),
               (get_int(get_object(vm, "memory"), "ram_bytes") + (1 << 19)) >> 20, addr);
    }
    for (guint i = 0; vms && i < json_array_get_length(vms); i++) {
        print_waiting(json_array_get_object_element(vms, i));
    }
}

static void print_workers(JsonArray *workers)
{
    for (guint i = 0; workers && i < json_array_get_length(workers); i++) {
        JsonObject *w = json_array_get_object_element(workers, i);

        printf("worker %u: thread %" G_GINT64_FORMAT
               ", %s; ran %.1f s, waited %.1f s for a processor, was preempted "
               "%" G_GINT64_FORMAT " times\n",
               i, get_int(w, "thread"), get_str(w, "priority"),
               get_int(w, "ran_us") / 1e6, get_int(w, "waited_us") / 1e6,
               get_int(w, "lost_processor"));
    }
}

/* Text of the daemon's that goes back to a key file: nothing for the terminal in it. */
static const char *clean(char *text)
{
    return g_strcanon(text, PRINTABLE, '?');
}

static void print_failed(JsonArray *failed)
{
    for (guint i = 0; failed && i < json_array_get_length(failed); i++) {
        JsonObject *f = json_array_get_object_element(failed, i);
        g_autofree char *name = g_strdup(get_str(f, "name"));
        g_autofree char *why = g_strdup(get_str(f, "reason"));

        printf("%-20s %-10s %s\n", clean(name), "failed", clean(why));
    }
}

/* "1m05s": how long something is so. */
static char *duration(gint64 ms)
{
    gint64 s = ms / 1000;

    if (s < 60) {
        return g_strdup_printf("%.1fs", (double)ms / 1000);
    }
    if (s < 3600) {
        return g_strdup_printf("%" G_GINT64_FORMAT "m%02" G_GINT64_FORMAT "s", s / 60,
                               s % 60);
    }
    return g_strdup_printf("%" G_GINT64_FORMAT "h%02" G_GINT64_FORMAT "m", s / 3600,
                           s / 60 % 60);
}

static void print_peers(JsonArray *peers)
{
    printf("%-20s %-24s %-10s %8s %8s %9s %12s %12s %7s  %s\n", "PEER", "ADDRESS",
           "STATE", "SINCE", "RTT/US", "QUEUED", "SENT", "RECEIVED", "REFUSED",
           "LAST ERROR");
    for (guint i = 0; peers && i < json_array_get_length(peers); i++) {
        JsonObject *p = json_array_get_object_element(peers, i);
        g_autofree char *since = duration(get_int(p, "since_ms"));
        const char *error = get_str(p, "last_error");

        printf("%-20s %-24s %-10s %8s %8" G_GINT64_FORMAT " %9" G_GINT64_FORMAT
               " %12" G_GINT64_FORMAT " %12" G_GINT64_FORMAT " %7" G_GINT64_FORMAT
               "  %s\n",
               get_str(p, "name"), get_str(p, "address"),
               get_bool(p, "silent") ? "silent" : get_str(p, "state"), since,
               get_int(p, "rtt_us"), get_int(p, "queued_bytes"), get_int(p, "sent_bytes"),
               get_int(p, "received_bytes"), get_int(p, "refused_messages"),
               *error ? error : "-");
    }
}

/* "25G": of a link. */
static char *speed(gint64 mbit_s)
{
    return mbit_s ? g_strdup_printf("%.4gG", (double)mbit_s / 1000) : g_strdup("-");
}

static void print_nics(JsonArray *nics)
{
    printf("%-12s %-12s %-10s %-20s %-12s %-8s %8s %6s %6s %-7s %9s %7s %-12s  %s\n",
           "NIC", "DEVICE", "KIND", "ADDRESS", "FABRIC", "STATE", "SINCE", "SPEED", "MTU",
           "ATOMICS", "IN-FLIGHT", "WAITING", "NETWORKS", "REASON");
    for (guint i = 0; nics && i < json_array_get_length(nics); i++) {
        JsonObject *n = json_array_get_object_element(nics, i);
        bool open = json_object_has_member(n, "kind");
        g_autofree char *since = duration(get_int(n, "since_ms"));
        g_autofree char *networks =
            get_array(n, "networks") ? join(get_array(n, "networks")) : g_strdup("all");
        g_autofree char *fast = speed(get_int(n, "mbit_s"));
        g_autofree char *reason = g_strdup(get_str(n, "reason"));

        printf("%-12s %-12s %-10s %-20s %-12s %-8s %8s %6s %6" G_GINT64_FORMAT
               " %-7s %9" G_GINT64_FORMAT " %7" G_GINT64_FORMAT " %-12s  %s\n",
               get_str(n, "name"), get_str(n, "device"), get_str(n, "kind"),
               get_str(n, "address"), get_str(n, "fabric"), get_str(n, "state"), since,
               fast, get_int(n, "mtu"),
               !open                    ? "-"
               : get_bool(n, "atomics") ? "yes"
                                        : "no",
               get_int(n, "in_flight"), get_int(n, "waiting_vms"), networks,
               *reason ? clean(reason) : "-");
    }
}

static void print_directory(JsonObject *d, JsonObject *u)
{
    printf("other hosts: %" G_GINT64_FORMAT " GIDs known, %" G_GINT64_FORMAT
           " asked for and not found, %" G_GINT64_FORMAT " claims refused, "
           "%" G_GINT64_FORMAT " beyond the limits; %" G_GINT64_FORMAT
           " datagrams received, %" G_GINT64_FORMAT " from a wrong source address, "
           "%" G_GINT64_FORMAT " without a receiver\n",
           get_int(d, "remote_gids"), get_int(d, "asked_gids"),
           get_int(d, "claims_refused"), get_int(d, "too_many"), get_int(u, "received"),
           get_int(u, "bad_source"), get_int(u, "to_nobody"));
}

/* Of `status` and of `peer list`, which has no directory. */
static void print_hosts(JsonObject *st)
{
    JsonObject *h = get_object(st, "hosts");
    JsonArray *listen = get_array(h, "listen");

    if (!listen || !json_array_get_length(listen)) {
        return;
    }
    printf("host %s:", get_str(h, "host_name"));
    for (guint i = 0; i < json_array_get_length(listen); i++) {
        JsonObject *l = json_array_get_object_element(listen, i);
        const char *error = get_str(l, "error");

        printf(" %s%s%s", get_str(l, "address"), strcmp(error, "-") ? " " : "",
               strcmp(error, "-") ? error : "");
    }
    printf("; %" G_GINT64_FORMAT " of %" G_GINT64_FORMAT
           " peers up; connections refused: %" G_GINT64_FORMAT
           " from unknown addresses, %" G_GINT64_FORMAT " others\n",
           get_int(h, "peers_up"), get_int(h, "peers"), get_int(h, "strangers"),
           get_int(h, "turned_away"));
    if (get_object(st, "directory")) {
        print_directory(get_object(st, "directory"), get_object(st, "remote_datagrams"));
    }
}

static void print_status(JsonObject *st)
{
    JsonObject *p = get_object(st, "process");
    JsonObject *m = get_object(st, "guest_memory");
    JsonArray *vms = get_array(st, "vms");

    printf("pvrdmad %s, pid %" G_GINT64_FORMAT ", %" G_GINT64_FORMAT
           " worker(s), polling %" G_GINT64_FORMAT " us, sockets in %s\n",
           get_str(st, "version"), get_int(st, "pid"), get_int(st, "workers"),
           get_int(st, "poll_us"), get_str(st, "socket_dir"));
    printf("process: %" G_GINT64_FORMAT " descriptors, %" G_GINT64_FORMAT
           " threads, %" G_GINT64_FORMAT " KiB anonymous memory, %" G_GINT64_FORMAT
           " GIDs in the directory\n",
           get_int(p, "fds"), get_int(p, "threads"), get_int(p, "rss_anon_kb"),
           get_int(st, "directory_gids"));
    print_workers(get_array(st, "worker_threads"));
    print_hosts(st);
    printf("guest memory: %" G_GINT64_FORMAT " of at most %" G_GINT64_FORMAT
           " MiB mapped, %" G_GINT64_FORMAT " of them being unmapped; %" G_GINT64_FORMAT
           " of at most %" G_GINT64_FORMAT " mappings\n\n",
           get_int(m, "bytes") >> 20, get_int(m, "max_bytes") >> 20,
           get_int(m, "unmapping_bytes") >> 20, get_int(m, "mappings"),
           get_int(m, "max_mappings"));
    print_vms(vms);
    print_failed(get_array(st, "failed"));
}

static void print_qps(const char *vm, JsonArray *qps)
{
    static bool heading;

    if (!heading) {
        heading = true;
        printf("%-16s %6s %-8s %-4s %-5s %-8s %-24s %-6s %12s %12s %-8s %-8s %-7s %-16s "
               "%-6s %-11s %s\n",
               "VM", "HANDLE", "QPN", "TYPE", "STATE", "DEST-QPN", "DEST-GID", "VIA",
               "SQ CONS/PROD", "RQ CONS/PROD", "SQ-PSN", "RQ-PSN", "WAIT", "HOST", "CONN",
               "IN-FLIGHT", "NIC");
    }
    for (guint i = 0; qps && i < json_array_get_length(qps); i++) {
        JsonObject *q = json_array_get_object_element(qps, i);
        JsonObject *sq = get_object(q, "sq"), *rq = get_object(q, "rq");

        printf("%-16s %6" G_GINT64_FORMAT " 0x%06" G_GINT64_MODIFIER
               "x %-4s %-5s 0x%06" G_GINT64_MODIFIER "x %-24s %-6s %6" G_GINT64_FORMAT
               "/%-5" G_GINT64_FORMAT " %6" G_GINT64_FORMAT "/%-5" G_GINT64_FORMAT
               " 0x%06" G_GINT64_MODIFIER "x 0x%06" G_GINT64_MODIFIER
               "x %-7s %-16s %-6s %-11" G_GINT64_FORMAT " %s\n",
               vm, get_int(q, "handle"), (guint64)get_int(q, "qpn"), get_str(q, "type"),
               get_str(q, "state"), (guint64)get_int(q, "dest_qpn"),
               get_str(q, "dest_gid"), get_str(q, "transport"), get_int(sq, "consumer"),
               get_int(sq, "producer"), get_int(rq, "consumer"), get_int(rq, "producer"),
               (guint64)get_int(q, "sq_psn"), (guint64)get_int(q, "rq_psn"),
               get_str(q, "wait"), get_str(q, "host"), get_str(q, "connection"),
               get_int(q, "in_flight_bytes"), get_str(q, "nic"));
    }
}

static void print_migrations(JsonArray *vms)
{
    printf("%-20s %-10s %-7s %12s %12s %11s %9s %9s %11s %11s  %s\n", "VM", "STATE",
           "LAST", "BYTES", "DONE", "QUIESCE/US", "SAVE/US", "LOAD/US", "RESUME/US",
           "STILL/US", "ERROR");
    for (guint i = 0; vms && i < json_array_get_length(vms); i++) {
        JsonObject *vm = json_array_get_object_element(vms, i);
        g_autofree char *error = g_strdup(get_str(vm, "error"));

        printf("%-20s %-10s %-7s %12" G_GINT64_FORMAT " %12" G_GINT64_FORMAT
               " %11" G_GINT64_FORMAT " %9" G_GINT64_FORMAT " %9" G_GINT64_FORMAT
               " %11" G_GINT64_FORMAT " %11" G_GINT64_FORMAT "  %s\n",
               get_str(vm, "name"), get_str(vm, "state"), get_str(vm, "last"),
               get_int(vm, "bytes"), get_int(vm, "done"), get_int(vm, "quiesce_us"),
               get_int(vm, "save_us"), get_int(vm, "load_us"), get_int(vm, "resume_us"),
               get_int(vm, "still_us"), *error ? clean(error) : "-");
    }
}

/* "group.name  value", whatever the daemon counts. */
static void print_members(JsonObject *o, const char *prefix)
{
    g_autoptr(GList) names = json_object_get_members(o);

    for (GList *n = names; n; n = n->next) {
        g_autofree char *name = g_strconcat(prefix, n->data, NULL);
        JsonObject *sub = get_object(o, n->data);

        if (sub) {
            g_autofree char *deeper = g_strconcat(name, ".", NULL);

            print_members(sub, deeper);
        } else if (get_value(o, n->data, G_TYPE_INT64)) {
            printf("  %-40s %20" G_GINT64_FORMAT "\n", name, get_int(o, n->data));
        }
    }
}

/* ---- commands ---- */

static void show_vms(JsonObject *result)
{
    print_vms(get_array(result, "vms"));
    print_failed(get_array(result, "failed"));
}

static void show_peers(JsonObject *result)
{
    print_hosts(result);
    print_peers(get_array(result, "peers"));
}

static void show_nics(JsonObject *result)
{
    JsonArray *nics = get_array(result, "nics");

    if (nics && json_array_get_length(nics)) {
        print_nics(nics);
    } else {
        puts("no RDMA NIC is used: the key file has no [nic NAME] group");
    }
    print_failed(get_array(result, "failed"));
}

static void show_migrations(JsonObject *result)
{
    print_migrations(get_array(result, "vms"));
}

static void show_counters(JsonObject *result)
{
    JsonArray *vms = get_array(result, "vms");

    for (guint i = 0; vms && i < json_array_get_length(vms); i++) {
        JsonObject *vm = json_array_get_object_element(vms, i);

        printf("%s%s (%s)\n", i ? "\n" : "", get_str(vm, "name"),
               get_bool(vm, "attached") ? "attached" : "not attached");
        print_members(vm, "");
    }
}

static void do_vm_add(char **args)
{
    JsonBuilder *b = request("vm-add", args[0]);
    g_autoptr(JsonNode) r = NULL;

    json_builder_set_member_name(b, "set");
    json_builder_begin_object(b);
    for (char **set = args + 1; *set; set++) {
        char *eq = strchr(*set, '=');

        if (!eq || eq == *set) {
            die("\"%s\" is not KEY=VALUE", *set);
        }
        *eq = 0;
        json_builder_set_member_name(b, *set);
        json_builder_add_string_value(b, eq + 1);
    }
    json_builder_end_object(b);
    r = finish(b);
    if (as_json) {
        print_json(r);
    }
}

/* All pages of one VM's QPs, into @out or as text. */
static void list_qps(const char *name, JsonArray *out)
{
    gint64 after = 0;

    do {
        JsonBuilder *b = request("qp-list", name);
        g_autoptr(JsonNode) r = NULL;
        JsonArray *qps;

        json_builder_set_member_name(b, "after");
        json_builder_add_int_value(b, after);
        r = finish(b);
        qps = get_array(json_node_get_object(r), "qps");
        if (!out) {
            print_qps(name, qps);
        }
        for (guint i = 0; out && qps && i < json_array_get_length(qps); i++) {
            JsonNode *row = json_node_copy(json_array_get_element(qps, i));

            json_object_set_string_member(json_node_get_object(row), "vm", name);
            json_array_add_element(out, row);
        }
        after = get_int(json_node_get_object(r), "next");
    } while (after > 0);
}

static void do_qp_list(char **args)
{
    JsonArray *out = as_json ? json_array_new() : NULL;

    if (args[0]) {
        list_qps(args[0], out);
    } else {
        g_autoptr(JsonNode) r = simple("vm-list", NULL);
        JsonArray *vms = get_array(json_node_get_object(r), "vms");

        for (guint i = 0; vms && i < json_array_get_length(vms); i++) {
            list_qps(get_str(json_array_get_object_element(vms, i), "name"), out);
        }
    }
    if (out) {
        g_autoptr(JsonNode) root = json_node_new(JSON_NODE_OBJECT);
        JsonObject *o = json_object_new();

        json_object_set_array_member(o, "qps", out);
        json_node_take_object(root, o);
        print_json(root);
    }
}

static void print_lines(FILE *to, JsonArray *lines)
{
    for (guint i = 0; lines && i < json_array_get_length(lines); i++) {
        JsonNode *n = json_array_get_element(lines, i);

        if (JSON_NODE_HOLDS_VALUE(n) && json_node_get_value_type(n) == G_TYPE_STRING) {
            g_autofree char *line = json_node_dup_string(n);

            fprintf(to, "%s\n", clean(line));
        }
    }
}

static void show_reload(JsonObject *o)
{
    printf("%" G_GINT64_FORMAT " added, %" G_GINT64_FORMAT " removed, %" G_GINT64_FORMAT
           " changed, %" G_GINT64_FORMAT " wait for their VMM\n",
           get_int(o, "added"), get_int(o, "removed"), get_int(o, "changed"),
           get_int(o, "waiting"));
    print_lines(stdout, get_array(o, "notes"));
    print_lines(stderr, get_array(o, "problems"));
}

static void show_restart(JsonObject *o)
{
    printf("a new daemon serves %" G_GINT64_FORMAT
           " VM(s), which were paused for %.1f ms\n",
           get_int(o, "vms"), (double)get_int(o, "pause_us") / 1000);
}

/* What stands behind the words is @least to @most arguments. */
static const struct command {
    const char *words, *args;
    int least, most;
    const char *help;
    const char *request;              /* the one to send, with the first argument ... */
    void (*show)(JsonObject *result); /* ... and its result as text; NULL: nothing */
    void (*run)(char **args);         /* instead */
} commands[] = {
    {"status", "", 0, 0, "the daemon and its VMs", "status", print_status},
    {"vm list", "", 0, 0, "declared VMs", "vm-list", show_vms},
    {"vm add", " NAME [KEY=VALUE ...]", 1, G_MAXINT,
     "declare a VM (keys as in the key file)", .run = do_vm_add},
    {"vm remove", " NAME", 1, 1, "disconnect and remove a VM", "vm-remove"},
    {"vm pause", " NAME", 1, 1, "pause a VM's data path", "vm-pause"},
    {"vm resume", " NAME", 1, 1, "resume a VM's data path", "vm-resume"},
    {"vm migrate-status", " [NAME]", 0, 1, "progress of VMs' migrations",
     "vm-migrate-status", show_migrations},
    {"qp list", " [VM]", 0, 1, "queue pairs", .run = do_qp_list},
    {"peer list", "", 0, 0, "other hosts' daemons", "peer-list", show_peers},
    {"nic list", "", 0, 0, "RDMA NICs of this host", "nic-list", show_nics},
    {"counters", " [VM]", 0, 1, "all counters", "counters", show_counters},
    {"reload", "", 0, 0, "apply the key file again", "reload", show_reload},
    {"restart", "", 0, 0, "replace the daemon while VMs run", "restart", show_restart},
};

/* How many arguments are behind the words of @c; -1: they are others. */
static int behind(const struct command *c, int argc, char **argv)
{
    g_auto(GStrv) words = g_strsplit(c->words, " ", -1);
    int n = (int)g_strv_length(words);

    for (int i = 0; i < n; i++) {
        if (i >= argc || strcmp(argv[i], words[i]) != 0) {
            return -1;
        }
    }
    return argc - n;
}

/* Nobody is asked for what cannot be: it ends here.  *args: what is behind the words. */
static const struct command *find_command(int argc, char **argv, char ***args)
{
    bool any = false;

    for (unsigned i = 0; i < G_N_ELEMENTS(commands); i++) {
        const struct command *c = &commands[i];
        int n = behind(c, argc, argv);

        if (n >= c->least && n <= c->most) {
            *args = argv + argc - n;
            return c;
        }
        if (n >= 0) {
            fprintf(stderr, "usage: pvrdmactl %s%s\n", c->words, c->args);
            exit(EXIT_USAGE);
        }
    }
    fprintf(stderr, "pvrdmactl: unknown command; pvrdmactl --help lists them\n");
    for (unsigned i = 0; i < G_N_ELEMENTS(commands); i++) {
        size_t len = strcspn(commands[i].words, " ");

        if (commands[i].words[len] && strlen(argv[0]) == len &&
            strncmp(argv[0], commands[i].words, len) == 0) {
            fprintf(stderr, "%s pvrdmactl %s%s\n",
                    any ? "      " : "usage:", commands[i].words, commands[i].args);
            any = true;
        }
    }
    exit(EXIT_USAGE);
}

/* The exit status: were there no problems? */
static int run_command(const struct command *c, char **args)
{
    g_autoptr(JsonNode) r = NULL;
    JsonArray *problems;

    if (c->run) {
        c->run(args);
        return EXIT_SUCCESS;
    }
    r = simple(c->request, args[0]);
    problems = get_array(json_node_get_object(r), "problems");
    if (as_json) {
        print_json(r);
    } else if (c->show) {
        c->show(json_node_get_object(r));
    }
    return problems && json_array_get_length(problems) ? EXIT_FAILURE : EXIT_SUCCESS;
}

static char *commands_help(void)
{
    GString *s = g_string_new("Commands:\n");

    for (unsigned i = 0; i < G_N_ELEMENTS(commands); i++) {
        g_autofree char *usage = g_strconcat(commands[i].words, commands[i].args, NULL);

        g_string_append_printf(s, "  %-27s %s\n", usage, commands[i].help);
    }
    return g_string_free(s, FALSE);
}

int main(int argc, char **argv)
{
    g_autofree char *path = NULL;
    gboolean version = FALSE;
    int status;
    const GOptionEntry entries[] = {
        {"socket", 's', 0, G_OPTION_ARG_FILENAME, &path,
         "The daemon's admin socket (default: " DEFAULT_SOCKET ")", "PATH"},
        {"timeout", 't', 0, G_OPTION_ARG_INT, &timeout_s,
         "How long to wait for the daemon (default: no limit)", "SECONDS"},
        {"json", 'j', 0, G_OPTION_ARG_NONE, &as_json, "Print JSON", NULL},
        {"version", 0, 0, G_OPTION_ARG_NONE, &version, "Show the version", NULL},
        {NULL},
    };
    g_autoptr(GOptionContext) ctx = g_option_context_new("COMMAND");
    g_autoptr(GError) err = NULL;
    g_autofree char *help = NULL, *list = NULL;
    const struct command *cmd;
    char **args;

    setlocale(LC_ALL, "");
    g_option_context_add_main_entries(ctx, entries, NULL);
    list = commands_help();
    g_option_context_set_description(ctx, list);
    if (!g_option_context_parse(ctx, &argc, &argv, &err)) {
        fprintf(stderr, "pvrdmactl: %s\n", err->message);
        return EXIT_USAGE;
    }
    if (version) {
        printf("pvrdmactl %s\n", PVRDMA_PROJECT_VERSION);
        return EXIT_SUCCESS;
    }
    if (argc < 2 || (argc == 2 && strcmp(argv[1], "help") == 0)) {
        help = g_option_context_get_help(ctx, TRUE, NULL);
        fputs(help, argc < 2 ? stderr : stdout);
        return argc < 2 ? EXIT_USAGE : EXIT_SUCCESS;
    }
    cmd = find_command(argc - 1, argv + 1, &args);
    connect_daemon(path ? path : DEFAULT_SOCKET);
    status = run_command(cmd, args);
    close(sock);
    return status;
}
