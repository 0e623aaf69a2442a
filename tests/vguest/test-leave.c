/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: the daemon ends and another one is started, by a service manager that
 * keeps what the one leaves for the other.  A guest sees nothing of it but the time.  If
 * nothing is kept, or not what was left, the daemon ends as ever, or begins as ever.
 */
#include <errno.h>
#include <glib/gstdio.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hosts.h"
#include "keeper.h"

#define ROUNDS      10u
#define NAME        "pvrdmad-state"
#define FDS_AT_ONCE 253u

static struct keeper *keeper;

/* A daemon has ended: the one descriptor that is kept then, to be closed. */
static int lend_kept(void)
{
    int kept[2];

    g_assert_cmpuint(keeper_lend(keeper, kept, G_N_ELEMENTS(kept)), ==, 1);
    return kept[0];
}

static int end_kept(struct vg_daemon *d)
{
    vg_daemon_end(d);
    return lend_kept();
}

/* It is started with these; nothing is kept any more when it has them. */
static void begin_again(struct vg_daemon *d, const int *fds, unsigned n,
                        const char *names)
{
    vg_daemon_again(d, fds, n, names);
    for (unsigned i = 0; i < n; i++) {
        close(fds[i]);
    }
    keeper_wait_empty(keeper);
}

/* As `systemctl restart` does. */
static void restart(struct vg_daemon *d)
{
    int kept = end_kept(d);

    begin_again(d, &kept, 1, NAME);
}

/* ---- what stays ---- */

struct running {
    struct vgt_traffic t;
    gint stop;
};

static gpointer traffic_thread(gpointer opaque)
{
    struct running *r = opaque;

    while (!g_atomic_int_get(&r->stop)) {
        vgt_traffic_run(&r->t, 20);
    }
    return NULL;
}

/* A daemon ends with the thread that has started it: that is this one. */
static void run_traffic(const struct vgt_opts *o, unsigned restarts)
{
    struct running *r = g_new0(struct running, 1);
    GThread *thread;

    vgt_traffic_open(&r->t, 0, 1, 4, 8, 100000, o);
    thread = g_thread_new("traffic", traffic_thread, r);
    for (unsigned i = 0; i < restarts; i++) {
        restart(vgt_daemon);
        g_usleep(20000);
    }
    g_atomic_int_set(&r->stop, 1);
    g_thread_join(thread);
    vgt_traffic_run(&r->t, 50);
    g_test_message("%u restarts, %" PRIu64 " operations", restarts, r->t.ops);
    vgt_traffic_close(&r->t);
    g_free(r);
}

static void test_traffic(gconstpointer style)
{
    struct vgt_opts o = vgt_opts_of(style);

    run_traffic(&o, vgt_rounds(ROUNDS));
}

/* Between hosts, of which one is restarted. */
static void test_hosts(void)
{
    static const struct host_opts keys = {.n_vms = 2, .daemon_keys = "peer-timeout=30"};
    struct vg_daemon *shared = vgt_daemon, *host[2];
    struct vgt_opts o = {.conn = {.timeout = 18, .retry_cnt = 7}};

    hosts_start(host, 2, &keys);
    o.daemon[0] = host[0];
    o.daemon[1] = host[1];
    vgt_daemon = host[0];
    run_traffic(&o, vgt_rounds(ROUNDS) / 4 + 1);
    keeper_do(keeper, KEEPER_DROPS);
    hosts_stop(host, 2);
    keeper_do(keeper, KEEPER_KEEPS);
    vgt_daemon = shared;
}

/*
 * It is told to end while it begins, soon after the program was started, or when it has
 * just taken what was kept.  Either it has not taken it, or it leaves it to the next one.
 */
static void test_soon(void)
{
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, NULL);
    for (unsigned i = 0; i < vgt_rounds(ROUNDS); i++) {
        int kept = end_kept(vgt_daemon), status;

        vg_daemon_begin(vgt_daemon, &kept, 1, NAME);
        close(kept);
        if (i % 2) {
            keeper_wait_empty(keeper);
        } else {
            g_usleep(i * 1000);
        }
        vg_daemon_term(vgt_daemon);
        status = vg_daemon_wait_end(vgt_daemon);
        if (i % 2 || !WIFSIGNALED(status)) {
            g_assert_cmpint(status, ==, 0);
        } else {
            g_assert_cmpint(WTERMSIG(status), ==, SIGTERM);
        }
        kept = lend_kept();
        begin_again(vgt_daemon, &kept, 1, NAME);
        vgt_write_once(&p, i);
    }
    vgt_pair_close(&p);
}

/* The manager has something else to do first. */
static void test_busy(void)
{
    struct vgt_pair p;
    int kept;

    vgt_pair_open(&p, 0, 1, NULL);
    keeper_fill(keeper);
    vg_daemon_term(vgt_daemon);
    g_usleep(200000);
    keeper_do(keeper, KEEPER_KEEPS);
    g_assert_cmpint(vg_daemon_wait_end(vgt_daemon), ==, 0);
    kept = lend_kept();
    begin_again(vgt_daemon, &kept, 1, NAME);
    vgt_write_once(&p, 0);
    vgt_pair_close(&p);
}

/* Not only VMs with a VMM, and nothing piles up. */
static void test_administration(void)
{
    struct vg_usage was, is;
    struct vgt_pair p;

    g_assert_cmpint(
        vg_ctl(vgt_daemon, NULL, "vm add extra network=lan addresses=10.0.9.9"), ==, 0);
    vgt_pair_open(&p, 0, 1, NULL);
    vgt_vm(vgt_daemon, "pause", 1);
    vgt_send(&p.s[0], 1, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 100, &p.s[1], 0);
    restart(vgt_daemon);
    vgt_expect_none(p.s[0].scq, 100);
    vgt_usage_settled(&was);
    restart(vgt_daemon);
    vgt_expect_none(p.s[0].scq, 100);
    vgt_usage_settled(&is);
    g_assert_cmpuint(is.fds, ==, was.fds);
    g_assert_cmpuint(is.threads, ==, was.threads);
    vgt_vm(vgt_daemon, "resume", 1);
    vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS);
    g_assert_cmpint(vg_ctl(vgt_daemon, NULL, "vm remove extra"), ==, 0);
    vgt_pair_close(&p);
}

/* ---- the end of it ---- */

static void assert_closed(struct vguest *g)
{
    g_assert_true(vg_wait_closed(g, VGT_WAIT_MS));
    vguest_crash(g);
}

static void assert_ended(struct vg_daemon *d, struct vguest *g)
{
    g_autofree char *socket = vg_daemon_socket(d, 0);

    assert_closed(g);
    g_assert_cmpint(access(socket, F_OK), <, 0);
    g_assert_cmpint(access(d->control, F_OK), <, 0);
    keeper_wait_empty(keeper);
}

/* Somebody listens, but keeps nothing, or does not even read. */
static void test_no_store(void)
{
    static const enum keeper_does does[] = {KEEPER_DROPS, KEEPER_SLEEPS};

    for (unsigned i = 0; i < G_N_ELEMENTS(does); i++) {
        struct vg_daemon *d = vg_daemon_start(NULL);
        struct vguest *g = vguest_new(d, 0, NULL);

        keeper_do(keeper, does[i]);
        vg_daemon_end(d);
        keeper_do(keeper, KEEPER_KEEPS);
        assert_ended(d, g);
        vg_daemon_again(d, NULL, 0, NULL);
        vg_daemon_kill(d);
    }
}

static void end_refused(const char *path)
{
    vg_daemon_end(vgt_daemon);
    vgt_wait_logged("no VM is handed over to the next daemon");
}

/* A restart is under way that will fail, and it is told to end twice meanwhile. */
static void end_in_restart(const char *path)
{
    g_autofree char *asked = g_strconcat(path, ".asked", NULL);

    kill(vgt_daemon->pid, SIGUSR2);
    for (unsigned i = 0; access(asked, F_OK) < 0; i++) {
        g_assert_cmpint((int)i, <, vg_patience(12000)); /* a minute */
        g_usleep(5000);
    }
    for (unsigned i = 0; i < 2; i++) {
        vg_daemon_term(vgt_daemon);
        g_usleep(100000);
    }
    g_unlink(asked);
    g_assert_cmpint(vg_daemon_wait_end(vgt_daemon), ==, 0);
    g_unlink(asked); /* if both signals came as one, it was asked again */
}

/* The program that is installed, at @path, is @script by now, and @end is called. */
static void replace_program(const char *script, void (*end)(const char *path))
{
    const char *daemon = g_getenv("PVRDMAD") ? g_getenv("PVRDMAD") : PVRDMAD;
    g_autofree char *keep = g_strdup(g_getenv("PVRDMAD"));
    g_autofree char *dir = g_dir_make_tmp("leave-XXXXXX", NULL);
    g_autofree char *path = g_build_filename(dir, "pvrdmad", NULL);
    g_autofree char *program = NULL;
    struct vg_daemon *shared = vgt_daemon;
    struct vguest *g;
    gsize len;

    g_assert_true(g_file_get_contents(daemon, &program, &len, NULL));
    g_assert_true(g_file_set_contents(path, program, (gssize)len, NULL));
    g_assert_cmpint(chmod(path, 0755), ==, 0);
    g_setenv("PVRDMAD", path, TRUE);
    vgt_daemon = vg_daemon_start(NULL);
    g = vguest_new(vgt_daemon, 0, NULL);
    g_unlink(path);
    g_assert_true(g_file_set_contents(path, script, -1, NULL));
    g_assert_cmpint(chmod(path, 0755), ==, 0);
    end(path);
    if (keep) {
        g_setenv("PVRDMAD", keep, TRUE);
    } else {
        g_unsetenv("PVRDMAD");
    }
    assert_ended(vgt_daemon, g);
    vg_daemon_again(vgt_daemon, NULL, 0, NULL);
    vg_daemon_kill(vgt_daemon);
    vgt_daemon = shared;
    g_unlink(path);
    g_rmdir(dir);
}

/* The program that is installed cannot go on with it. */
static void test_refused(void)
{
    replace_program("#!/bin/sh\nexit 1\n", end_refused);
}

/* Nor does it say so before its file is removed. */
static void test_in_restart(void)
{
    replace_program("#!/bin/sh\n"
                    ": > \"$0.asked\"\n"
                    "while [ -e \"$0.asked\" ]; do sleep 0.05; done\n"
                    "exit 1\n",
                    end_in_restart);
}

/* The next daemon never comes: what is closed then are the VMMs' connections. */
static void test_given_up(void)
{
    struct vguest *g = vguest_new(vgt_daemon, 0, NULL);

    close(end_kept(vgt_daemon));
    keeper_forget(keeper);
    assert_closed(g);
    vg_daemon_again(vgt_daemon, NULL, 0, NULL);
}

/*
 * What a killed daemon has just started has its sockets until execve() closes them, and
 * would be taken for another daemon.  A service manager waits, too.
 */
static void wait_for_orphans(void)
{
    g_autofree char *path = g_strdup_printf("/proc/self/task/%d/children", (int)getpid());
    g_autofree char *text = NULL;
    g_auto(GStrv) pids = NULL;

    g_assert_true(g_file_get_contents(path, &text, NULL, NULL));
    pids = g_strsplit(text, " ", -1);
    for (unsigned i = 0; pids[i]; i++) {
        pid_t pid = atoi(pids[i]);

        if (pid > 0 && pid != vgt_daemon->pid) {
            waitpid(pid, NULL, 0);
        }
    }
}

/* kill -9: nothing is kept, whenever it comes, and the VMM can connect again. */
static void test_killed(void)
{
    GRand *rand = g_rand_new_with_seed(12);

    g_assert_cmpint(prctl(PR_SET_CHILD_SUBREAPER, 1), ==, 0);
    for (unsigned i = 0; i < vgt_rounds(10); i++) {
        struct vg_daemon *d = vg_daemon_start(NULL);
        struct vguest *g = vguest_new(d, 0, NULL);
        unsigned n;
        int kept[2];

        if (i % 2) {
            kill(d->pid, SIGTERM);
            g_usleep((gulong)g_rand_int_range(rand, 0, 60000));
        }
        kill(d->pid, SIGKILL);
        waitpid(d->pid, NULL, 0);
        wait_for_orphans();
        n = keeper_lend(keeper, kept, G_N_ELEMENTS(kept));
        if (i % 2) { /* it may have been faster */
            vg_daemon_again(d, kept, n, n ? NAME : NULL);
            for (unsigned k = 0; k < n; k++) {
                close(kept[k]);
            }
            vguest_crash(g);
        } else {
            g_assert_cmpuint(n, ==, 0);
            g_assert_true(vg_wait_closed(g, VGT_WAIT_MS));
            vguest_crash(g);
            vg_daemon_again(d, NULL, 0, NULL);
        }
        g = vguest_new(d, 0, NULL);
        vguest_crash(g);
        vg_daemon_kill(d);
        keeper_forget(keeper);
    }
    prctl(PR_SET_CHILD_SUBREAPER, 0);
    g_rand_free(rand);
}

/* ---- what is not what was left ---- */

/* Its two ends; @n messages of the socket that was left go from the one to the other. */
static int part_of(int sock, unsigned n)
{
    char control[CMSG_SPACE(FDS_AT_ONCE * sizeof(int))], byte;
    int pair[2];

    g_assert_cmpint(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), ==, 0);
    for (unsigned i = 0; i < n; i++) {
        struct iovec iov = {.iov_base = &byte, .iov_len = 1};
        struct msghdr msg = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof(control)};
        struct cmsghdr *c;

        g_assert_cmpint(recvmsg(sock, &msg, MSG_CMSG_CLOEXEC), ==, 1);
        g_assert_cmpint(sendmsg(pair[1], &msg, 0), ==, 1);
        c = CMSG_FIRSTHDR(&msg);
        for (unsigned k = 0; c && CMSG_LEN(k * sizeof(int)) < c->cmsg_len; k++) {
            close(((int *)(void *)CMSG_DATA(c))[k]);
        }
    }
    close(pair[1]);
    return pair[0];
}

/* The daemon serves all the same. */
static void serves(struct vg_daemon *d)
{
    struct vguest *g = vguest_new(d, 0, NULL);

    vg_daemon_check(d);
    vguest_free(g);
}

/* The descriptors are not all there, or nothing is. */
static void test_incomplete(void)
{
    for (unsigned n = 0; n < 2; n++) {
        struct vguest *g = vguest_new(vgt_daemon, 0, NULL);
        int kept = end_kept(vgt_daemon), part = part_of(kept, n);

        close(kept);
        keeper_forget(keeper);
        begin_again(vgt_daemon, &part, 1, NAME);
        assert_closed(g);
        serves(vgt_daemon);
    }
}

/* One that was emptied is there as well, before or behind it, and strangers. */
static void test_stale(void)
{
    static const char *const names[] = {"x:" NAME ":" NAME, NAME ":" NAME ":stored"};
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, NULL);
    for (unsigned i = 0; i < G_N_ELEMENTS(names); i++) {
        int kept = end_kept(vgt_daemon), empty = part_of(-1, 0);
        int stranger = eventfd(0, EFD_CLOEXEC);
        const int fds[][3] = {{stranger, empty, kept}, {kept, empty, stranger}};

        begin_again(vgt_daemon, fds[i], 3, names[i]);
        vgt_write_once(&p, i);
    }
    vgt_pair_close(&p);
}

/* Whatever else is said to be what was left.  The daemons end as ever, with all that
 * sanitizers look for then. */
static void test_strangers(void)
{
    static const char *const names[] = {"", ":::", NAME, NAME ":" NAME, NAME "x", "\n"};

    keeper_do(keeper, KEEPER_DROPS);
    for (unsigned i = 0; i < G_N_ELEMENTS(names); i++) {
        int fds[2] = {eventfd(0, EFD_CLOEXEC), part_of(-1, 0)};

        vg_daemon_end(vgt_daemon);
        begin_again(vgt_daemon, fds, 2, names[i]);
        serves(vgt_daemon);
    }
    keeper_do(keeper, KEEPER_KEEPS);
}

int main(int argc, char **argv)
{
    static const struct vgt_both both[] = {
        {"traffic", test_traffic},
    };
    struct vg_daemon_opts o = {.n_vms = 3, .poll_us = -1, .workers = 2};
    int rc;

    vgt_init(&argc, &argv, 180);
    keeper = keeper_start();
    vgt_daemon = vg_daemon_start(&o);
    vgt_add_both("leave", both, G_N_ELEMENTS(both));
    g_test_add_func("/leave/hosts", test_hosts);
    g_test_add_func("/leave/soon", test_soon);
    g_test_add_func("/leave/busy", test_busy);
    g_test_add_func("/leave/administration", test_administration);
    g_test_add_func("/leave/no-store", test_no_store);
    g_test_add_func("/leave/refused", test_refused);
    g_test_add_func("/leave/in-restart", test_in_restart);
    g_test_add_func("/leave/given-up", test_given_up);
    g_test_add_func("/leave/killed", test_killed);
    g_test_add_func("/leave/incomplete", test_incomplete);
    g_test_add_func("/leave/stale", test_stale);
    g_test_add_func("/leave/strangers", test_strangers);
    rc = vgt_run();
    keeper_stop(keeper);
    return rc;
}
