/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The programs themselves: pvrdmad's options, start, readiness and end, and
 * pvrdmactl's commands, output and exit status.  PVRDMAD and PVRDMACTL in the
 * environment say where they are.
 */
#include <fcntl.h>
#include <glib/gstdio.h>
#include <json-glib/json-glib.h>
#include <signal.h>
#include <stdint.h>
#include <stdbool.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
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

static void wait_notify(const char *word)
{
    char got[64];

    /* Blocks until the daemon says so; the test runner's timeout is the limit.  What it
     * would leave to a manager is closed unseen. */
    do {
        ssize_t n = recv(notify_fd, got, sizeof(got) - 1, 0);

        g_assert_cmpint(n, >, 0);
        got[n] = 0;
    } while (strcmp(got, "WATCHDOG=1") == 0 || g_str_has_prefix(got, "FDSTORE") ||
             strcmp(got, "BARRIER=1") == 0);
    g_assert_cmpstr(got, ==, word);
}

static GPid start(const char *arg)
{
    char *argv[] = {(char *)g_getenv("PVRDMAD"), (char *)"--config", config, (char *)arg,
                    NULL};
    g_autoptr(GError) err = NULL;
    GPid pid;

    g_assert_true(g_spawn_async(NULL, argv, NULL,
                                G_SPAWN_DO_NOT_REAP_CHILD | G_SPAWN_STDERR_TO_DEV_NULL,
                                die_with_parent, NULL, &pid, &err));
    wait_notify("READY=1");
    return pid;
}

static void stop(GPid pid, int sig)
{
    int status;

    kill(pid, sig);
    wait_notify("STOPPING=1");
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
    g_assert_cmpint(run(&out, &err, "PVRDMACTL", NULL), ==, 2);
    g_assert_nonnull(strstr(err, "qp list"));
}

/* Nobody has to run for what is wrong with the command itself. */
static void test_usage(void)
{
    static const struct {
        const char *args[4];
        int status;
        const char *said, *unsaid;
    } of[] = {
        {{"vm", "explode", "two"}, 2, "usage: pvrdmactl vm list", "qp list"},
        {{"vm"}, 2, "pvrdmactl vm add NAME [KEY=VALUE ...]", "qp list"},
        {{"vm", "add"}, 2, "usage: pvrdmactl vm add NAME [KEY=VALUE ...]", "unknown"},
        {{"vm", "remove", "a", "b"}, 2, "usage: pvrdmactl vm remove NAME", "unknown"},
        {{"status", "two"}, 2, "usage: pvrdmactl status", "unknown"},
        {{"stat"}, 2, "unknown command", "usage"},
        {{"--nonsense"}, 2, "--nonsense", "usage"},
        {{"--timeout=x", "status"}, 2, "timeout", "usage"},
        {{"vm", "list"}, 1, "is pvrdmad running?", "usage"},
    };

    for (unsigned i = 0; i < G_N_ELEMENTS(of); i++) {
        g_autofree char *out = NULL, *err = NULL;

        g_assert_cmpint(
            CTL(&out, &err, of[i].args[0], of[i].args[1], of[i].args[2], of[i].args[3]),
            ==, of[i].status);
        g_assert_nonnull(strstr(err, of[i].said));
        g_assert_null(strstr(err, of[i].unsaid));
    }
}

/* One that says nothing is not waited for longer than was said. */
static void test_silent(void)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    g_autofree char *out = NULL, *err = NULL;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    g_snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/silent", dir);
    g_assert_cmpint(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), ==, 0);
    g_assert_cmpint(listen(fd, 1), ==, 0);
    g_assert_cmpint(run(&out, &err, "PVRDMACTL", "--socket", addr.sun_path, "--timeout=1",
                        "status", NULL),
                    ==, 1);
    g_assert_nonnull(strstr(err, "has not answered for 1 s"));
    close(fd);
    g_assert_cmpint(g_unlink(addr.sun_path), ==, 0);
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

/* The mask of blocked signals of a thread, bit 0 for signal 1. */
static uint64_t blocked(GPid pid, const char *tid)
{
    g_autofree char *path = g_strdup_printf("/proc/%d/task/%s/status", (int)pid, tid);
    g_autofree char *text = NULL;
    const char *at;

    g_assert_true(g_file_get_contents(path, &text, NULL, NULL));
    at = strstr(text, "SigBlk:");
    g_assert_nonnull(at);
    return g_ascii_strtoull(at + strlen("SigBlk:"), NULL, 16);
}

/* What ends or reloads the daemon gets to its main thread, which waits for it. */
static void test_signals(void)
{
    const uint64_t ours =
        1ull << (SIGTERM - 1) | 1ull << (SIGINT - 1) | 1ull << (SIGHUP - 1);
    g_autofree char *folder = NULL;
    g_autoptr(GDir) tasks = NULL;
    const char *tid;
    unsigned threads = 0;
    GPid pid;

    write_config("[vm one]\naddresses=any\n");
    pid = start("--workers=2");
    folder = g_strdup_printf("/proc/%d/task", (int)pid);
    tasks = g_dir_open(folder, 0, NULL);
    g_assert_nonnull(tasks);
    while ((tid = g_dir_read_name(tasks))) {
        uint64_t mask = blocked(pid, tid) & ours;

        threads++;
        g_assert_cmphex(mask, ==, atoi(tid) == pid ? 0 : ours);
    }
    g_assert_cmpuint(threads, >=, 5); /* log, reaper, watchdog, two workers */
    stop(pid, SIGTERM);
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

static void assert_listed(const char *a, const char *b, const char *word, bool there)
{
    g_autofree char *out = NULL, *err = NULL;

    g_assert_cmpint(CTL(&out, &err, a, b), ==, 0);
    g_assert_true((strstr(out, word) != NULL) == there);
}

/* A VM with an error costs that VM: the rest runs, and status tells. */
static void test_bad_vm(void)
{
    g_autofree char *out = NULL, *err = NULL;
    g_autofree char *busy = g_build_filename(dir, "busy.sock", NULL);
    GPid pid;

    g_assert_true(g_file_set_contents(busy, "not a socket", -1, NULL));
    write_config("[vm good]\n[vm bad]\nmax-qp=0\n[vm busy]\n[vm good]\n[machine x]\n");
    g_assert_cmpint(
        run(&out, &err, "PVRDMAD", "--config", config, "--check-config", NULL), ==, 1);
    g_assert_nonnull(strstr(err, "[vm bad] max-qp: \"0\""));
    g_assert_nonnull(strstr(err, "[vm good] appears twice, at line 3 and at line 7"));
    g_assert_nonnull(strstr(err, "[machine x] unknown group"));
    g_assert_nonnull(strstr(out, "2 VM(s), 3 group(s) with errors"));
    pid = start(NULL);
    assert_listed("status", NULL, "good                 waiting", true);
    assert_listed("status", NULL, "bad                  failed     [vm bad] max-qp",
                  true);
    assert_listed("vm", "list", "busy                 failed     [vm busy]", true);
    assert_listed("status", NULL,
                  "good                 failed     [vm good] appears twice", true);
    /* It can be mended by hand as well. */
    g_unlink(busy);
    ctl_ok("vm", "add", "busy");
    assert_listed("vm", "list", "busy                 failed", false);
    assert_listed("vm", "list", "busy                 waiting", true);
    stop(pid, SIGTERM);
    g_clear_pointer(&out, g_free);
    g_clear_pointer(&err, g_free);
    write_config("[vm good]\n");
    g_assert_cmpint(
        run(&out, &err, "PVRDMAD", "--config", config, "--check-config", NULL), ==, 0);
    g_assert_cmpstr(err, ==, "");
}

static void test_reload(void)
{
    g_autofree char *out = NULL, *err = NULL;
    GPid pid;

    write_config("[vm stays]\n[vm goes]\n[vm turns-bad]\nmax-qp=5\n");
    pid = start(NULL);
    ctl_ok("vm", "add", "mine");
    write_config("workers=5\n[vm stays]\nnetwork=blue\n[vm comes]\n"
                 "[vm turns-bad]\nmax-qp=x\n[vm mine]\n");
    g_assert_cmpint(CTL(&out, &err, "reload"), ==, 1);
    g_assert_nonnull(strstr(out, "1 added, 1 removed, 1 changed, 0 wait"));
    g_assert_nonnull(strstr(err, "workers is still 1"));
    g_assert_nonnull(strstr(err, "[vm turns-bad] max-qp"));
    g_assert_nonnull(strstr(err, "[vm mine] was declared"));
    assert_listed("vm", "list", "stays                waiting    blue", true);
    assert_listed("vm", "list", "comes                waiting", true);
    assert_listed("vm", "list", "goes", false);
    /* What was there goes on, whatever the file says of it. */
    assert_listed("vm", "list", "turns-bad            waiting", true);
    assert_listed("vm", "list", "mine                 waiting", true);
    assert_listed("vm", "list", "turns-bad            failed     [vm turns-bad] max-qp",
                  true);
    assert_listed("vm", "list", "mine                 failed", true);

    /* A file that cannot be used changes nothing. */
    g_assert_true(g_file_set_contents(config, "[daemon]\nworkers=x\n", -1, NULL));
    ctl_fails("[daemon] workers", "reload", NULL, NULL);
    g_unlink(config);
    ctl_fails(config, "reload", NULL, NULL);
    assert_listed("vm", "list", "comes                waiting", true);
    assert_listed("vm", "list", "turns-bad            waiting", true);

    /* The same by signal; "mine" is not the file's, so it stays. */
    write_config("[vm stays]\n");
    kill(pid, SIGHUP);
    for (unsigned i = 0;; i++) { /* a VM at a time, with others' requests between */
        g_autofree char *out = NULL, *err = NULL;

        g_assert_cmpint(CTL(&out, &err, "vm", "list"), ==, 0);
        g_assert_nonnull(strstr(out, "mine"));
        if (strstr(out, "stays                waiting    default") &&
            !strstr(out, "comes") && !strstr(out, "turns-bad") &&
            !strstr(out, "failed")) {
            break;
        }
        g_assert_cmpuint(i, <, 500);
        g_usleep(10000);
    }
    ctl_ok("reload", NULL, NULL);
    stop(pid, SIGTERM);
}

static void few_descriptors(gpointer unused)
{
    struct rlimit rl = {.rlim_cur = 256, .rlim_max = 256};

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setrlimit(RLIMIT_NOFILE, &rl);
}

/* Start the daemon, and stop it; what it said, to be freed by g_string_free. */
static GString *said_at_start(GSpawnChildSetupFunc setup)
{
    char *argv[] = {(char *)g_getenv("PVRDMAD"), (char *)"--config", config, NULL};
    char buf[4096];
    GString *text = g_string_new(NULL);
    GPid pid;
    int fd;

    g_assert_true(g_spawn_async_with_pipes(NULL, argv, NULL, G_SPAWN_DO_NOT_REAP_CHILD,
                                           setup, NULL, &pid, NULL, NULL, &fd, NULL));
    wait_notify("READY=1");
    /* ThreadSanitizer may lose a signal that comes before the main loop waits. */
    ctl_ok("vm", "list", NULL);
    stop(pid, SIGTERM);
    for (ssize_t n; (n = read(fd, buf, sizeof(buf))) > 0;) {
        g_string_append_len(text, buf, n);
    }
    close(fd);
    return text;
}

static void test_no_vms(void)
{
    GString *text;

    write_config("");
    text = said_at_start(die_with_parent);
    g_assert_nonnull(strstr(text->str, "<4>no VM is declared: "));
    g_assert_nonnull(strstr(text->str, config));
    g_string_free(text, TRUE);
}

/* Too few descriptors for the declared VMs: said at start, with numbers. */
static void test_descriptors(void)
{
    GString *vms = g_string_new(NULL), *text;

    for (unsigned i = 0; i < 20; i++) {
        g_string_append_printf(vms, "[vm v%u]\n", i);
    }
    write_config(vms->str);
    text = said_at_start(few_descriptors);
    g_assert_nonnull(strstr(text->str,
                            "<4>256 descriptors (RLIMIT_NOFILE) are not enough "
                            "for 20 VM(s): about 468"));
    g_string_free(text, TRUE);
    write_config("[vm one]\n");
    text = said_at_start(few_descriptors);
    g_assert_null(strstr(text->str, "RLIMIT_NOFILE"));
    g_string_free(text, TRUE);
    g_string_free(vms, TRUE);
}

/* Nobody reads stderr: the daemon serves and ends all the same. */
static void test_unread_log(void)
{
    char *argv[] = {(char *)g_getenv("PVRDMAD"), (char *)"--config", config, NULL};
    gint64 begin;
    int fd[2];
    GPid pid;

    write_config("");
    g_assert_cmpint(pipe(fd), ==, 0);
    g_assert_cmpint(fcntl(fd[1], F_SETPIPE_SZ, 4096), >=, 0);
    g_assert_true(g_spawn_async_with_fds(NULL, argv, NULL, G_SPAWN_DO_NOT_REAP_CHILD,
                                         die_with_parent, NULL, &pid, -1, -1, fd[1],
                                         NULL));
    wait_notify("READY=1");
    /* Some 100 bytes each. */
    for (unsigned i = 0; i < 100; i++) {
        ctl_ok("vm", "add", "a");
        ctl_ok("vm", "remove", "a");
    }
    begin = g_get_monotonic_time();
    stop(pid, SIGTERM);
    g_assert_cmpint(g_get_monotonic_time() - begin, <, 10 * G_USEC_PER_SEC);
    close(fd[0]);
    close(fd[1]);
}

/* Alive while the main loop turns, at half the interval that is asked for. */
static void test_watchdog(void)
{
    char got[64];
    int status;
    ssize_t n;
    GPid pid;

    write_config("");
    g_setenv("WATCHDOG_USEC", "200000", TRUE);
    pid = start(NULL);
    for (unsigned i = 0; i < 3; i++) {
        n = recv(notify_fd, got, sizeof(got) - 1, 0);
        g_assert_cmpint(n, >, 0);
        got[n] = 0;
        g_assert_cmpstr(got, ==, "WATCHDOG=1");
    }
    kill(pid, SIGSTOP);
    g_assert_cmpint(waitpid(pid, &status, WUNTRACED), ==, pid);
    g_assert_true(WIFSTOPPED(status));
    while (recv(notify_fd, got, sizeof(got) - 1, MSG_DONTWAIT) > 0) {
    }
    /* For what must not come: alive, it would have said so four times. */
    g_usleep(400000);
    g_assert_cmpint(recv(notify_fd, got, sizeof(got) - 1, MSG_DONTWAIT), <, 0);
    kill(pid, SIGCONT);
    g_unsetenv("WATCHDOG_USEC");
    stop(pid, SIGTERM);
}

#define NOBODY 65534

/*
 * As nobody if we are root.  By a program, as between fork() and execve() a thread of
 * ThreadSanitizer's may keep setresuid() for ever.
 */
static char **as_nobody(const char *program, const char *const *args)
{
    static const char *const change[] = {"setpriv", "--pdeathsig=KILL", "--reuid=65534",
                                         "--regid=65534", "--clear-groups"};
    g_autoptr(GStrvBuilder) argv = g_strv_builder_new();

    for (unsigned i = 0; geteuid() == 0 && i < G_N_ELEMENTS(change); i++) {
        g_strv_builder_add(argv, change[i]);
    }
    g_strv_builder_add(argv, program);
    for (; *args; args++) {
        g_strv_builder_add(argv, *args);
    }
    return g_strv_builder_end(argv);
}

static bool nobody_may_run(const char *program)
{
    const char *args[] = {"-x", program, NULL};
    g_auto(GStrv) argv = as_nobody("test", args);
    int status;

    return g_spawn_sync(NULL, argv, NULL, G_SPAWN_SEARCH_PATH, NULL, NULL, NULL, NULL,
                        &status, NULL) &&
           status == 0;
}

/* The owner of the daemon's descriptors in /proc: root, if nobody else may look. */
static uid_t proc_owner(const char *option)
{
    const char *args[] = {"--config", config, option, NULL};
    g_auto(GStrv) argv = as_nobody(g_getenv("PVRDMAD"), args);
    g_autofree char *path = NULL;
    struct stat st = {.st_uid = (uid_t)-1};
    GPid pid;

    if (!nobody_may_run(g_getenv("PVRDMAD"))) {
        return (uid_t)-1;
    }
    g_assert_true(g_spawn_async(NULL, argv, NULL,
                                G_SPAWN_DO_NOT_REAP_CHILD | G_SPAWN_STDERR_TO_DEV_NULL |
                                    G_SPAWN_SEARCH_PATH,
                                NULL, NULL, &pid, NULL));
    wait_notify("READY=1");
    path = g_strdup_printf("/proc/%d/fd", (int)pid);
    g_assert_cmpint(stat(path, &st), ==, 0);
    stop(pid, SIGTERM);
    return st.st_uid;
}

static void test_dumpable(void)
{
#if defined(__SANITIZE_ADDRESS__)
    g_test_skip("the sanitizer traces the process");
#else
    uid_t me = geteuid() == 0 ? NOBODY : geteuid(), owner;

    write_config("[vm a]\n");
    g_assert_cmpint(g_chmod(config, 0644), ==, 0);
    if (geteuid() == 0) {
        g_assert_cmpint(chown(dir, NOBODY, NOBODY), ==, 0);
        g_assert_cmpint(g_chmod(notify, 0777), ==, 0);
    }
    owner = proc_owner("--dumpable");
    if (owner == (uid_t)-1) {
        g_test_skip("the build folder is not open to everybody");
    } else {
        g_assert_cmpuint(owner, ==, me);
        g_assert_cmpuint(proc_owner(NULL), ==, 0);
    }
    if (geteuid() == 0) {
        g_assert_cmpint(chown(dir, 0, 0), ==, 0);
    }
#endif
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
    g_test_add_func("/programs/usage", test_usage);
    g_test_add_func("/programs/silent", test_silent);
    g_test_add_func("/programs/life", test_life);
    g_test_add_func("/programs/signals", test_signals);
    g_test_add_func("/programs/commands", test_commands);
    g_test_add_func("/programs/json", test_json);
    g_test_add_func("/programs/bad-vm", test_bad_vm);
    g_test_add_func("/programs/reload", test_reload);
    g_test_add_func("/programs/no-vms", test_no_vms);
    g_test_add_func("/programs/descriptors", test_descriptors);
    g_test_add_func("/programs/unread-log", test_unread_log);
    g_test_add_func("/programs/watchdog", test_watchdog);
    g_test_add_func("/programs/dumpable", test_dumpable);
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
