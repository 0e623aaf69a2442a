/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The programs themselves: pvrdmad's options, start, readiness and end, and
 * pvrdmactl's commands, output and exit status.  PVRDMAD and PVRDMACTL in the
 * environment say where they are.
 */
#include <glib/gstdio.h>
#include <json-glib/json-glib.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static char *dir, *config, *control, *notify;
static int notify_fd = -1;

static void die_with_parent(gpointer unused)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static GPid start(const char *arg)
{
    char *argv[] = {(char *)g_getenv("PVRDMAD"), (char *)"--config", config, (char *)arg,
                    NULL};
    g_autoptr(GError) err = NULL;
    char got[64] = "";
    GPid pid;

    g_assert_true(g_spawn_async(NULL, argv, NULL,
                                G_SPAWN_DO_NOT_REAP_CHILD | G_SPAWN_STDERR_TO_DEV_NULL,
                                die_with_parent, NULL, &pid, &err));
    /* Blocks until the daemon says so; the test runner's timeout is the limit. */
    g_assert_cmpint(recv(notify_fd, got, sizeof(got) - 1, 0), >, 0);
    g_assert_cmpstr(got, ==, "READY=1");
    return pid;
}

static void stop(GPid pid, int sig)
{
    char got[64] = "";
    int status;

    kill(pid, sig);
    g_assert_cmpint(recv(notify_fd, got, sizeof(got) - 1, 0), >, 0);
    g_assert_cmpstr(got, ==, "STOPPING=1");
    g_assert_cmpint(waitpid(pid, &status, 0), ==, pid);
    g_assert_true(WIFEXITED(status));
    g_assert_cmpint(WEXITSTATUS(status), ==, 0);
}

/* Run a program; its exit status, and (to be freed) what it wrote. */
static int run(char **out, char **err, const char *program, ...)
{
    g_autoptr(GPtrArray) argv = g_ptr_array_new();
    g_autoptr(GError) error = NULL;
    int status;
    va_list ap;

    g_ptr_array_add(argv, (char *)g_getenv(program));
    va_start(ap, program);
    do {
        g_ptr_array_add(argv, va_arg(ap, char *));
    } while (argv->pdata[argv->len - 1]);
    va_end(ap);
    g_assert_true(g_spawn_sync(NULL, (char **)argv->pdata, NULL, 0, NULL, NULL, out, err,
                               &status, &error));
    g_assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

#define CTL(out, err, ...) \
    run(out, err, "PVRDMACTL", "--socket", control, __VA_ARGS__, NULL)

static void ctl_ok(const char *a, const char *b, const char *c)
{
    g_autofree char *out = NULL, *err = NULL;

    g_assert_cmpint(CTL(&out, &err, a, b, c), ==, 0);
    g_assert_cmpstr(err, ==, "");
}

static void ctl_fails(const char *word, const char *a, const char *b, const char *c)
{
    g_autofree char *out = NULL, *err = NULL;

    g_assert_cmpint(CTL(&out, &err, a, b, c), ==, 1);
    g_assert_cmpstr(out, ==, "");
    g_assert_nonnull(strstr(err, word));
}

static void write_config(const char *vms)
{
    g_autofree char *text = g_strdup_printf("[daemon]\nsocket-dir=%s\n%s", dir, vms);

    g_assert_true(g_file_set_contents(config, text, -1, NULL));
}

static void bad_option(const char *word, const char *a, const char *b)
{
    g_autofree char *out = NULL, *err = NULL;

    g_assert_cmpint(run(&out, &err, "PVRDMAD", a, b, NULL), ==, 1);
    g_assert_nonnull(strstr(err, word));
}

static void test_options(void)
{
    g_autofree char *out = NULL, *err = NULL;

    bad_option("--workers", "--workers", "0");
    bad_option("--workers", "--workers", "many");
    bad_option("--poll-us", "--poll-us", "-1");
    bad_option("--log-level", "--log-level", "loud");
    bad_option("unexpected argument", "stray", NULL);
    bad_option("--nonsense", "--nonsense", NULL);
    bad_option("/nonexistent/file", "--config", "/nonexistent/file");
    bad_option("/proc/nowhere", "--socket-dir", "/proc/nowhere");
    g_assert_cmpint(run(&out, &err, "PVRDMAD", "--version", NULL), ==, 0);
    g_assert_true(g_str_has_prefix(out, "pvrdmad "));
    g_free(out);
    g_free(err);
    g_assert_cmpint(run(&out, &err, "PVRDMAD", "--help", NULL), ==, 0);
    g_assert_nonnull(strstr(out, "--socket-dir"));
}

static void test_no_daemon(void)
{
    g_autofree char *out = NULL, *err = NULL;

    ctl_fails("is pvrdmad running?", "status", NULL, NULL);
    g_assert_cmpint(run(&out, &err, "PVRDMACTL", NULL), ==, 1);
    g_assert_nonnull(strstr(err, "qp list"));
}

static void test_life(void)
{
    g_autofree char *socket = g_build_filename(dir, "one.sock", NULL);
    g_autofree char *out = NULL, *err = NULL;
    struct stat st;
    GPid pid;

    write_config("[vm one]\naddresses=any\n");
    pid = start(NULL);
    g_assert_cmpint(stat(socket, &st), ==, 0);
    g_assert_cmpuint(st.st_mode & 0777, ==, 0660);
    /* A second one keeps off and does no harm. */
    g_assert_cmpint(run(&out, &err, "PVRDMAD", "--config", config, NULL), ==, 1);
    g_assert_nonnull(strstr(err, "another pvrdmad"));
    ctl_ok("status", NULL, NULL);
    stop(pid, SIGTERM);
    g_assert_cmpint(access(socket, F_OK), !=, 0);
    g_assert_cmpint(access(control, F_OK), !=, 0);

    /* Killed: sockets stay behind, the next one takes over. */
    pid = start("--workers=3");
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    g_assert_cmpint(access(socket, F_OK), ==, 0);
    pid = start(NULL);
    ctl_ok("status", NULL, NULL);
    stop(pid, SIGINT);
    g_assert_cmpint(access(socket, F_OK), !=, 0);
}

static void test_commands(void)
{
    g_autofree char *out = NULL, *err = NULL;
    GPid pid;

    write_config("");
    pid = start("--poll-us=0");
    ctl_ok("vm", "add", "two");
    g_assert_cmpint(CTL(&out, &err, "vm", "add", "three",
                        "addresses=10.0.0.3;52:54:00:00:00:03", "network=n3"),
                    ==, 0);
    g_clear_pointer(&out, g_free);
    g_clear_pointer(&err, g_free);
    ctl_fails("exists", "vm", "add", "two");
    ctl_fails("name", "vm", "add", "a/b");
    ctl_fails("no VM", "vm", "remove", "four");
    ctl_fails("not attached", "vm", "pause", "two");
    ctl_fails("unknown command", "vm", "explode", "two");
    ctl_fails("unknown command", "status", "two", NULL);
    ctl_fails("no VM", "counters", "four", NULL);
    ctl_fails("no VM", "qp", "list", "four");
    ctl_ok("vm", "list", NULL);
    ctl_ok("qp", "list", NULL);
    ctl_ok("qp", "list", "two");
    ctl_ok("counters", NULL, NULL);
    ctl_ok("counters", "three", NULL);

    g_assert_cmpint(CTL(&out, &err, "vm", "list"), ==, 0);
    g_assert_nonnull(strstr(out, "10.0.0.3,fe80::5054:ff:fe00:3"));
    g_assert_nonnull(strstr(out, "waiting"));
    g_clear_pointer(&out, g_free);
    g_clear_pointer(&err, g_free);
    ctl_ok("vm", "remove", "two");
    ctl_fails("no VM", "vm", "remove", "two");
    stop(pid, SIGTERM);
}

static void test_json(void)
{
    static const char *const commands[][2] = {
        {"status", NULL}, {"vm", "list"}, {"qp", "list"}, {"counters", NULL}};
    GPid pid;

    write_config("[vm one]\naddresses=10.0.0.1\n");
    pid = start(NULL);
    for (unsigned i = 0; i < G_N_ELEMENTS(commands); i++) {
        g_autofree char *out = NULL, *err = NULL;
        g_autoptr(JsonNode) node = NULL;

        g_assert_cmpint(CTL(&out, &err, "--json", commands[i][0], commands[i][1]), ==, 0);
        node = json_from_string(out, NULL);
        g_assert_nonnull(node);
        g_assert_true(JSON_NODE_HOLDS_OBJECT(node));
    }
    stop(pid, SIGTERM);
}

static void make_notify_socket(void)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};

    notify = g_build_filename(dir, "notify", NULL);
    g_strlcpy(addr.sun_path, notify, sizeof(addr.sun_path));
    notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    g_assert_cmpint(bind(notify_fd, (struct sockaddr *)&addr, sizeof(addr)), ==, 0);
    g_setenv("NOTIFY_SOCKET", notify, TRUE);
}

int main(int argc, char **argv)
{
    int rc;

    g_test_init(&argc, &argv, NULL);
    g_assert_nonnull(g_getenv("PVRDMAD"));
    g_assert_nonnull(g_getenv("PVRDMACTL"));
    dir = g_dir_make_tmp("pvrdma-programs-XXXXXX", NULL);
    config = g_build_filename(dir, "pvrdmad.conf", NULL);
    control = g_build_filename(dir, "control", NULL);
    make_notify_socket();

    g_test_add_func("/programs/options", test_options);
    g_test_add_func("/programs/no-daemon", test_no_daemon);
    g_test_add_func("/programs/life", test_life);
    g_test_add_func("/programs/commands", test_commands);
    g_test_add_func("/programs/json", test_json);
    rc = g_test_run();

    close(notify_fd);
    g_unlink(notify);
    g_unlink(config);
    g_rmdir(dir);
    g_free(notify);
    g_free(config);
    g_free(control);
    g_free(dir);
    return rc;
}
