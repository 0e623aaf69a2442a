/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The daemon under test: start the real pvrdmad in a private directory, look at
 * it from outside (/proc, pvrdmactl), stop it and judge how it ended.
 *
 * The binaries are those of the build (PVRDMAD, PVRDMACTL from meson); the
 * environment variables of the same names override them.  The daemon's stderr
 * goes to a file, in which sanitizer reports are looked for; it is shown when a
 * test aborts.  The daemon dies with the test (PR_SET_PDEATHSIG).
 */
#include "vguest.h"

#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef PVRDMAD
#define PVRDMAD "pvrdmad"
#endif
#ifndef PVRDMACTL
#define PVRDMACTL "pvrdmactl"
#endif

/* Logs of the daemons that were begun last, for a test that aborts. */
static char logs[8][256];
static unsigned n_logs;

static void show_logs(int sig)
{
    static const char head[] = "---- pvrdmad's log ----\n";
    char buf[4096];

    for (unsigned i = 0; i < G_N_ELEMENTS(logs); i++) {
        int fd = open(logs[i], O_RDONLY | O_CLOEXEC);
        ssize_t n;

        if (fd < 0) { /* it has ended well, or there was none */
            continue;
        }
        n = write(STDERR_FILENO, head, sizeof(head) - 1);
        while ((n = read(fd, buf, sizeof(buf))) > 0) {
            n = write(STDERR_FILENO, buf, n);
        }
        close(fd);
    }
    raise(sig); /* SA_RESETHAND: now as it would be without us */
}

static const char *binary(const char *env, const char *def)
{
    const char *path = g_getenv(env);

    return path && *path ? path : def;
}

char *vg_daemon_socket(const struct vg_daemon *d, unsigned vm)
{
    return g_strdup_printf("%s/vm%u.sock", d->dir, vm);
}

/* All daemons have this NIC of the machine; NULL: each has one in memory. */
static const char *real_nic(void)
{
    return g_getenv("VGUEST_NIC");
}

static void write_config(struct vg_daemon *d, const struct vg_daemon_opts *o)
{
    GString *s = g_string_new("[daemon]\n");
    GError *err = NULL;

    g_string_append_printf(s, "socket-dir=%s\ncontrol-socket=%s\n", d->dir, d->control);
    if (o->workers) {
        g_string_append_printf(s, "workers=%u\n", o->workers);
    } else if (g_getenv("VGUEST_WORKERS")) {
        g_string_append_printf(s, "workers=%s\n", g_getenv("VGUEST_WORKERS"));
    }
    if (g_getenv("VGUEST_PATH")) {
        g_string_append_printf(s, "path=%s\n", g_getenv("VGUEST_PATH"));
    }
    if (g_getenv("VGUEST_LOG_LEVEL")) {
        g_string_append_printf(s, "log-level=%s\n", g_getenv("VGUEST_LOG_LEVEL"));
    }
    if (o->poll_us >= 0) {
        g_string_append_printf(s, "poll-us=%d\n", o->poll_us);
    }
    if (o->daemon_keys) {
        g_string_append_printf(s, "%s\n", o->daemon_keys);
    }
    if (d->nic) {
        g_string_append_printf(s, "[nic soft0]\ndevice=%s\naddress=%s\n%s\n",
                               real_nic() ? real_nic() : "soft0", d->nic,
                               o->nic_keys ? o->nic_keys : "");
    }
    for (unsigned i = 0; i < o->n_vms; i++) {
        g_string_append_printf(s,
                               "[vm vm%u]\nsocket=%s/vm%u.sock\nnetwork=lan\n"
                               "addresses=10.0.%u.%u\n%s\n%s\n",
                               i, d->dir, i, (i + 1) >> 8, (i + 1) & 0xff,
                               o->vm_keys ? o->vm_keys : "",
                               o->keys && o->keys[i] ? o->keys[i] : "");
    }
    if (!g_file_set_contents(d->config, s->str, s->len, &err)) {
        g_error("%s", err->message);
    }
    g_string_free(s, TRUE);
}

static bool can_connect(const char *path)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool ok;

    g_strlcpy(sa.sun_path, path, sizeof(sa.sun_path));
    ok = connect(fd, (struct sockaddr *)&sa, sizeof(sa)) == 0;
    close(fd);
    return ok;
}

static bool daemon_ready(struct vg_daemon *d)
{
    for (unsigned i = 0; i < d->n_vms; i++) {
        char *path = vg_daemon_socket(d, i);
        bool there = g_file_test(path, G_FILE_TEST_EXISTS);

        g_free(path);
        if (!there) {
            return false;
        }
    }
    return can_connect(d->control);
}

static void remove_dir(const char *path)
{
    GDir *dir = g_dir_open(path, 0, NULL);
    const char *name;

    while (dir && (name = g_dir_read_name(dir))) {
        char *file = g_build_filename(path, name, NULL);

        if (g_unlink(file) < 0) {
            g_rmdir(file); /* of a NIC in memory */
        }
        g_free(file);
    }
    if (dir) {
        g_dir_close(dir);
    }
    g_rmdir(path);
}

static char *fabric_dir;

static void remove_fabric(void)
{
    remove_dir(fabric_dir);
}

/* Where the NICs in memory of all daemons meet (tests/softnic). */
static const char *fabric(void)
{
    if (!fabric_dir) {
        /* That of this program's own NIC, if it has one. */
        fabric_dir = g_getenv("PVRDMA_SOFTNIC")
                         ? g_strdup(g_getenv("PVRDMA_SOFTNIC"))
                         : g_dir_make_tmp("vguest-nics-XXXXXX", NULL);
        g_assert_nonnull(fabric_dir);
        atexit(remove_fabric);
    }
    return fabric_dir;
}

static void child_setup(void *data)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}

/* With descriptors from 3 on, if @names is not NULL. */
static void spawn(struct vg_daemon *d, const int *fds, unsigned n, const char *names)
{
    /* Dumpable, as the tests look into its /proc files, and not only as root. */
    /* Without root its /proc files are readable only if it says so. */
    const char *argv[] = {"/bin/sh",
                          "-c",
                          "LISTEN_PID=$$ exec \"$0\" \"$@\"",
                          binary("PVRDMAD", PVRDMAD),
                          "--config",
                          d->config,
                          geteuid() ? "--dumpable" : NULL,
                          NULL};
    int log = open(d->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    g_autofree char *count = g_strdup_printf("%u", n);
    g_auto(GStrv) env = g_get_environ();
    GError *err = NULL;
    int targets[8];

    g_assert_cmpint(log, >=, 0);
    d->log_begin = lseek(log, 0, SEEK_END);
    g_assert_cmpuint(n, <=, G_N_ELEMENTS(targets));
    for (unsigned i = 0; i < n; i++) {
        targets[i] = 3 + (int)i;
    }
    if (d->nic && !real_nic()) {
        g_autofree char *add = g_strdup_printf("add soft0 %s", d->nic);

        env = g_environ_setenv(env, "PVRDMA_SOFTNIC", fabric(), TRUE);
        env = g_environ_setenv(env, "PVRDMA_SOFTNIC_DO", add, TRUE);
    }
    if (names) {
        env = g_environ_setenv(env, "LISTEN_FDS", count, TRUE);
        env = g_environ_setenv(env, "LISTEN_FDNAMES", names, TRUE);
    }
    if (!g_spawn_async_with_pipes_and_fds(
            NULL, argv + (names ? 0 : 3), (const char *const *)env,
            G_SPAWN_DO_NOT_REAP_CHILD, child_setup, NULL, -1, log, log, fds, targets, n,
            &d->pid, NULL, NULL, NULL, &err)) {
        g_error("pvrdmad: %s", err->message);
    }
    close(log);
}

static void wait_ready(struct vg_daemon *d)
{
    for (unsigned i = 0; !daemon_ready(d); i++) {
        int status;

        if (waitpid(d->pid, &status, WNOHANG) == d->pid) {
            d->pid = 0;
            g_error("pvrdmad ended at start, wait status 0x%x", status);
        }
        g_assert_cmpint((int)i, <, vg_patience(3000));
        g_usleep(5000);
    }
}

struct vg_daemon *vg_daemon_start(const struct vg_daemon_opts *opts)
{
    static const struct vg_daemon_opts defaults = {.n_vms = 2, .poll_us = -1};
    struct sigaction sa = {.sa_handler = show_logs, .sa_flags = SA_RESETHAND};
    struct vg_daemon *d = g_new0(struct vg_daemon, 1);
    GError *err = NULL;

    if (!opts) {
        opts = &defaults;
    }
    d->n_vms = opts->n_vms;
    d->dir = g_dir_make_tmp("vguest-XXXXXX", &err);
    if (!d->dir) {
        g_error("%s", err->message);
    }
    d->config = g_build_filename(d->dir, "pvrdmad.conf", NULL);
    d->control = g_build_filename(d->dir, "control", NULL);
    d->log = g_build_filename(d->dir, "log", NULL);
    g_strlcpy(logs[n_logs++ % G_N_ELEMENTS(logs)], d->log, sizeof(logs[0]));
    sigaction(SIGABRT, &sa, NULL);
    sigaction(SIGTRAP, &sa, NULL); /* g_error() */
    if (!g_strcmp0(g_getenv("VGUEST_PATH"), "rnic")) {
        g_assert_true(!real_nic() || g_getenv("VGUEST_NIC_ADDRESS"));
        d->nic = g_strdup(real_nic()  ? g_getenv("VGUEST_NIC_ADDRESS")
                          : opts->nic ? opts->nic
                                      : "127.0.0.1");
    }
    write_config(d, opts);
    spawn(d, NULL, 0, NULL);
    wait_ready(d);
    for (int i = 0; d->nic && !vg_daemon_nic_is(d, "up"); i++) {
        g_assert_cmpint(i, <, vg_patience(3000));
        g_usleep(5000);
    }
    return d;
}

static void check_log(struct vg_daemon *d)
{
    static const char *const bad[] = {"ERROR: AddressSanitizer",
                                      "ERROR: LeakSanitizer",
                                      "runtime error:",
                                      "WARNING: ThreadSanitizer",
                                      "ERROR: UndefinedBehaviorSanitizer",
                                      "CRITICAL **",
                                      "Bail out",
                                      "softnic: "};
    char *text = NULL;

    g_assert_true(g_file_get_contents(d->log, &text, NULL, NULL));
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++) {
        if (strstr(text, bad[i])) {
            g_error("pvrdmad's log has a report: %s", bad[i]);
        }
    }
    g_free(text);
}

void vg_daemon_check(struct vg_daemon *d)
{
    int status;

    if (waitpid(d->pid, &status, WNOHANG) == d->pid) {
        d->pid = 0;
        g_error("pvrdmad died, wait status 0x%x", status);
    }
    check_log(d);
}

#ifdef __SANITIZE_THREAD__
/* It has been heard: the next signal would end it at once. */
static bool is_stopping(const struct vg_daemon *d)
{
    g_autofree char *text = NULL;

    return g_file_get_contents(d->log, &text, NULL, NULL) &&
           strstr(text + d->log_begin, "stopping\n");
}
#endif

static void forget(struct vg_daemon *d)
{
    remove_dir(d->dir);
    g_free(d->dir);
    g_free(d->config);
    g_free(d->control);
    g_free(d->log);
    g_free(d->nic);
    g_free(d);
}

void vg_daemon_nic(const struct vg_daemon *d, const char *fmt, ...)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    g_autofree char *text = NULL;
    va_list ap;

    g_assert_null(real_nic());
    va_start(ap, fmt);
    text = g_strdup_vprintf(fmt, ap);
    va_end(ap);
    g_snprintf(sa.sun_path, sizeof(sa.sun_path), "%s/ctl-%d", fabric(), (int)d->pid);
    if (sendto(fd, text, strlen(text), 0, (struct sockaddr *)&sa, sizeof(sa)) < 0) {
        g_error("%s: %s", sa.sun_path, g_strerror(errno));
    }
    close(fd);
}

bool vg_daemon_nic_is(const struct vg_daemon *d, const char *state)
{
    g_autoptr(JsonNode) node = vg_ctl_json(d, "nic list");
    JsonArray *all = json_object_get_array_member(json_node_get_object(node), "nics");
    JsonObject *nic = json_array_get_object_element(all, 0);

    return strcmp(json_object_get_string_member(nic, "state"), state) == 0;
}

void vg_daemon_again(struct vg_daemon *d, const int *fds, unsigned n, const char *names)
{
    spawn(d, fds, n, names);
    wait_ready(d);
    /* What took our call may be what the former one left. */
    for (unsigned i = 0; vg_ctl(d, NULL, "status") != 0; i++) {
        g_assert_cmpint((int)i, <, vg_patience(1000));
        g_usleep(20000);
    }
}

void vg_daemon_begin(struct vg_daemon *d, const int *fds, unsigned n, const char *names)
{
    spawn(d, fds, n, names);
}

void vg_daemon_term(struct vg_daemon *d)
{
    vg_daemon_check(d);
    kill(d->pid, SIGTERM);
}

/* Of those that have ended by themselves (tests/reset; docs/rnic.md). */
static unsigned long resets, channel_bytes, channel_streams, tcp_streams;

static unsigned long said_at_end(const struct vg_daemon *d, const char *words)
{
    g_autofree char *text = NULL;
    const char *said = NULL;

    if (g_file_get_contents(d->log, &text, NULL, NULL)) {
        said = strstr(text + d->log_begin, words);
    }
    return said ? strtoul(said + strlen(words), NULL, 10) : 0;
}

unsigned long vg_daemon_resets(void)
{
    return resets;
}

unsigned long vg_daemon_channel_bytes(void)
{
    return channel_bytes;
}

unsigned long vg_daemon_channel_streams(unsigned long *by_tcp)
{
    *by_tcp = tcp_streams;
    return channel_streams;
}

int vg_daemon_wait_end(struct vg_daemon *d)
{
    int status = 0;

    for (unsigned i = 0; waitpid(d->pid, &status, WNOHANG) == 0; i++) {
        if ((int)i >= vg_patience(12000)) { /* a minute */
            g_error("pvrdmad does not end");
        }
#ifdef __SANITIZE_THREAD__
        /* The sanitizer's runtime was seen to keep a signal to itself, rarely. */
        if (i % 4000 == 3999 && !is_stopping(d)) {
            kill(d->pid, SIGTERM);
        }
#endif
        g_usleep(5000);
    }
    check_log(d);
    resets += said_at_end(d, "connections that were reset: ");
    channel_bytes += said_at_end(d, "bytes that came by channels: ");
    channel_streams += said_at_end(d, "; streams by channels: ");
    tcp_streams += said_at_end(d, ", by TCP: ");
    return status;
}

void vg_daemon_end(struct vg_daemon *d)
{
    int status;

    vg_daemon_term(d);
    status = vg_daemon_wait_end(d);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        g_error("pvrdmad ended with wait status 0x%x", status);
    }
}

void vg_daemon_stop(struct vg_daemon *d)
{
    vg_daemon_end(d);
    forget(d);
}

void vg_daemon_kill(struct vg_daemon *d)
{
    vg_daemon_check(d);
    kill(d->pid, SIGKILL);
    waitpid(d->pid, NULL, 0);
    forget(d);
}

/* ---- looking at it ---- */

static unsigned count_dir(pid_t pid, const char *what)
{
    char *path = g_strdup_printf("/proc/%d/%s", (int)pid, what);
    GDir *dir = g_dir_open(path, 0, NULL);
    unsigned n = 0;

    g_free(path);
    while (dir && g_dir_read_name(dir)) {
        n++;
    }
    if (dir) {
        g_dir_close(dir);
    }
    return n;
}

static char *proc_file(pid_t pid, const char *what)
{
    char *path = g_strdup_printf("/proc/%d/%s", (int)pid, what);
    char *text = NULL;

    g_assert_true(g_file_get_contents(path, &text, NULL, NULL));
    g_free(path);
    return text;
}

void vg_daemon_usage(const struct vg_daemon *d, struct vg_usage *u)
{
    char *text = proc_file(d->pid, "maps");
    unsigned long utime = 0, stime = 0;
    char *p;

    memset(u, 0, sizeof(*u));
    for (p = text; (p = strstr(p, "memfd:")); p++) {
        u->maps++;
    }
    g_free(text);
    u->fds = count_dir(d->pid, "fd");
    u->threads = count_dir(d->pid, "task");
    text = proc_file(d->pid, "status");
    p = strstr(text, "RssAnon:");
    u->rss_anon_kib = p ? strtol(p + 8, NULL, 10) : -1;
    g_free(text);
    text = proc_file(d->pid, "stat");
    p = strrchr(text, ')');
    g_assert_nonnull(p);
    g_assert_cmpint(sscanf(p + 2,
                           "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u "
                           "%lu %lu",
                           &utime, &stime),
                    ==, 2);
    u->cpu_ticks = utime + stime;
    g_free(text);
}

int vg_ctl(const struct vg_daemon *d, char **out, const char *args, ...)
{
    char *cmd, *line, **argv = NULL;
    char *text = NULL;
    GError *err = NULL;
    int status = -1;
    va_list ap;

    va_start(ap, args);
    cmd = g_strdup_vprintf(args, ap);
    va_end(ap);
    line = g_strdup_printf("'%s' --socket '%s' %s", binary("PVRDMACTL", PVRDMACTL),
                           d->control, cmd);
    if (!g_shell_parse_argv(line, NULL, &argv, &err) ||
        !g_spawn_sync(NULL, argv, NULL, G_SPAWN_SEARCH_PATH, NULL, NULL, &text, NULL,
                      &status, &err)) {
        g_error("%s: %s", line, err->message);
    }
    g_strfreev(argv);
    g_free(line);
    g_free(cmd);
    if (out) {
        *out = text;
    } else {
        g_free(text);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

JsonNode *vg_ctl_json(const struct vg_daemon *d, const char *args, ...)
{
    g_autofree char *text = NULL, *words = NULL;
    GError *err = NULL;
    JsonNode *node;
    va_list ap;

    va_start(ap, args);
    words = g_strdup_vprintf(args, ap);
    va_end(ap);
    if (vg_ctl(d, &text, "--json %s", words) != 0) {
        g_error("pvrdmactl --json %s fails: %s", words, text);
    }
    node = json_from_string(text, &err);
    if (!node) {
        g_error("pvrdmactl --json %s: %s in: %s", words, err->message, text);
    }
    return node;
}

JsonNode *vg_daemon_status(const struct vg_daemon *d)
{
    return vg_ctl_json(d, "status");
}

JsonNode *vg_daemon_counters(const struct vg_daemon *d)
{
    return vg_ctl_json(d, "counters");
}

int64_t vg_status_int(const struct vg_daemon *d, const char *vm, const char *group,
                      const char *name)
{
    g_autoptr(JsonNode) node = vg_daemon_status(d);
    JsonObject *o = vm ? vg_status_vm(node, vm) : json_node_get_object(node);

    return json_object_get_int_member(json_object_get_object_member(o, group), name);
}

JsonObject *vg_qp_row(JsonNode *list, uint32_t handle)
{
    JsonArray *rows = json_object_get_array_member(json_node_get_object(list), "qps");

    for (guint i = 0; i < json_array_get_length(rows); i++) {
        JsonObject *row = json_array_get_object_element(rows, i);

        if (json_object_get_int_member(row, "handle") == handle) {
            return row;
        }
    }
    g_error("no row for QP %u", handle);
}

JsonObject *vg_status_vm(JsonNode *status, const char *name)
{
    JsonArray *vms = json_object_get_array_member(json_node_get_object(status), "vms");

    for (guint i = 0; i < json_array_get_length(vms); i++) {
        JsonObject *vm = json_array_get_object_element(vms, i);

        if (!strcmp(json_object_get_string_member(vm, "name"), name)) {
            return vm;
        }
    }
    g_error("status knows no VM \"%s\"", name);
}
