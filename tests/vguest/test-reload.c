/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: the key file is read again while VMs are at work.  A reload cuts no
 * guest off: what concerns a VM with a VMM waits until that has left.  And who may
 * be a VM's VMM.
 */
#include "vgtest.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* The key file: [daemon] as it was, and @vms. */
static void write_vms(const char *vms)
{
    static char *head;
    char *text;

    if (!head) {
        char *end;

        g_assert_true(g_file_get_contents(vgt_daemon->config, &head, NULL, NULL));
        end = strstr(head, "[vm ");
        g_assert_nonnull(end);
        *end = 0;
    }
    text = g_strconcat(head, vms, NULL);
    g_assert_true(g_file_set_contents(vgt_daemon->config, text, -1, NULL));
    g_free(text);
}

static char *group(unsigned vm, const char *keys)
{
    char *path = vg_daemon_socket(vgt_daemon, vm);
    char *text = g_strdup_printf("[vm vm%u]\nsocket=%s\nnetwork=lan\n"
                                 "addresses=10.0.0.%u\n%s\n",
                                 vm, path, vm + 1, keys);

    g_free(path);
    return text;
}

/* @keys: what to add to a VM's group; NULL: no such group. */
static void reload(const char *keys0, const char *keys1, const char *keys2)
{
    char *g0 = keys0 ? group(0, keys0) : g_strdup("");
    char *g1 = keys1 ? group(1, keys1) : g_strdup("");
    char *g2 = keys2 ? group(2, keys2) : g_strdup("");
    char *all = g_strconcat(g0, g1, g2, NULL);

    write_vms(all);
    /* One that a signal has begun may be under way. */
    for (unsigned i = 0; vg_ctl(vgt_daemon, NULL, "reload") != 0; i++) {
        g_assert_cmpint((int)i, <, vg_patience(6000)); /* a minute */
        g_usleep(10000);
    }
    g_free(all);
    g_free(g2);
    g_free(g1);
    g_free(g0);
}

static bool listed(const char *word)
{
    char *text = NULL;
    bool found;

    g_assert_cmpint(vg_ctl(vgt_daemon, &text, "--json vm list"), ==, 0);
    found = strstr(text, word) != NULL;
    g_free(text);
    return found;
}

static void wait_listed(const char *word, bool there)
{
    vgt_await(listed(word) == there);
}

static int64_t limit(unsigned vm)
{
    g_autofree char *name = g_strdup_printf("vm%u", vm);

    return vg_status_int(vgt_daemon, name, "limits", "max_qp");
}

static void exchange(struct vgt_pair *p, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        vgt_complete(&p->s[0], i, PVRDMA_WR_RDMA_WRITE, 0, 5000, &p->s[1], 0);
    }
}

/* Changed and removed while connected: only once the VMM has left. */
static void test_under_load(void)
{
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, NULL);
    exchange(&p, 10);
    reload("max-qp=100", NULL, "max-qp=50");
    exchange(&p, 10);
    g_assert_cmpint(limit(0), ==, 16384);
    g_assert_true(listed("\"pending\":\"max-qp\"") || listed("\"pending\" : \"max-qp\""));
    g_assert_true(listed("removal"));
    g_assert_cmpint(limit(2), ==, 50); /* nobody is connected there */
    vgt_pair_close(&p);
    wait_listed("vm1", false);
    wait_listed("pending", false);
    g_assert_cmpint(limit(0), ==, 100);

    /* It comes again, and what is taken back in time does not happen. */
    reload("max-qp=100", "", "");
    vgt_pair_open(&p, 0, 1, NULL);
    reload(NULL, NULL, "");
    g_assert_true(listed("removal"));
    reload("max-qp=100", "", "");
    g_assert_false(listed("removal"));
    exchange(&p, 10);
    vgt_pair_close(&p);
    g_assert_true(listed("vm0"));
    vgt_assert_no_objects("vm1");

    /* A file that cannot be used, between two messages. */
    vgt_pair_open(&p, 0, 1, NULL);
    exchange(&p, 5);
    write_vms("[daemon]\nagain=1\n");
    g_assert_cmpint(vg_ctl(vgt_daemon, NULL, "reload"), ==, 1);
    exchange(&p, 5);
    reload("", "", "");
    vgt_pair_close(&p);
}

/* Many reloads by signal beside traffic and look-ups. */
static void test_storm(void)
{
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, NULL);
    for (unsigned i = 0; i < 60; i++) {
        char *keys = g_strdup_printf("max-qp=%u", 100 + i);

        reload("", i % 2 ? "" : NULL, i % 3 ? keys : NULL);
        kill(vgt_daemon->pid, SIGHUP);
        exchange(&p, 5);
        g_free(keys);
    }
    reload("", "", "");
    exchange(&p, 5);
    vgt_pair_close(&p);
    vgt_assert_no_objects("vm1");
    vg_daemon_check(vgt_daemon);
}

/* Who serves a VM changes when its VMM has left, and only to a worker that there is. */
static void test_worker(void)
{
    struct vgt_pair p;
    char *bad = group(0, "worker=2");

    reload("worker=1", "worker=0", "");
    vgt_pair_open(&p, 0, 1, NULL);
    exchange(&p, 10);
    g_assert_cmpuint(vgt_worker_of(0), ==, 1);
    g_assert_cmpuint(vgt_worker_of(1), ==, 0);
    reload("worker=0", "worker=0", "");
    g_assert_true(listed("\"pending\":\"worker\"") || listed("\"pending\" : \"worker\""));
    g_assert_cmpuint(vgt_worker_of(0), ==, 1);
    exchange(&p, 10);
    vgt_pair_close(&p);
    wait_listed("pending", false);
    vgt_pair_open(&p, 0, 1, NULL);
    g_assert_cmpuint(vgt_worker_of(0), ==, 0);
    g_assert_cmpuint(vgt_worker_of(1), ==, 0);

    write_vms(bad);
    g_assert_cmpint(vg_ctl(vgt_daemon, NULL, "reload"), ==, 1);
    g_assert_true(listed("there is no worker 2: the daemon has 2"));
    exchange(&p, 10);
    g_assert_cmpuint(vgt_worker_of(0), ==, 0);
    reload("", "", "");
    vgt_pair_close(&p);
    g_free(bad);
}

/* What the file says about a network is also for its VMs that are not in the file. */
static void test_network_of_added(void)
{
    static const struct {
        const char *keys;
        bool named; /* worker 1, by the VM that says nothing itself */
    } step[] = {
        {"[network blue]\nworker=1\n", true},
        {"[network blue]\nworker=7\n", true}, /* wrong: as it was */
        {"", false},
    };

    g_assert_cmpint(vg_ctl(vgt_daemon, NULL, "vm add follows network=blue"), ==, 0);
    g_assert_cmpint(vg_ctl(vgt_daemon, NULL, "vm add has network=blue worker=0"), ==, 0);
    for (unsigned i = 0; i < G_N_ELEMENTS(step); i++) {
        JsonNode *status;
        JsonArray *follows, *has;

        write_vms(step[i].keys);
        vg_ctl(vgt_daemon, NULL, "reload");
        status = vg_daemon_status(vgt_daemon);
        follows = json_object_get_array_member(vg_status_vm(status, "follows"),
                                               "named_workers");
        has = json_object_get_array_member(vg_status_vm(status, "has"), "named_workers");
        g_assert_cmpuint(json_array_get_length(follows), ==, step[i].named);
        g_assert_true(!step[i].named || json_array_get_int_element(follows, 0) == 1);
        g_assert_cmpuint(json_array_get_length(has), ==, 1);
        g_assert_cmpint(json_array_get_int_element(has, 0), ==, 0);
        json_node_unref(status);
    }
    g_assert_cmpint(vg_ctl(vgt_daemon, NULL, "vm remove follows"), ==, 0);
    g_assert_cmpint(vg_ctl(vgt_daemon, NULL, "vm remove has"), ==, 0);
    reload("", "", "");
}

/* What VERSION is answered by @s, an errno; -1: not at all. */
static int version_answer(int s)
{
    struct {
        struct vfio_user_hdr hdr;
        struct vfio_user_version version;
    } m = {.hdr = {.command = VFIO_USER_VERSION, .size = sizeof(m)}, .version = {0, 1}};

    if (send(s, &m, sizeof(m), MSG_NOSIGNAL) != sizeof(m) ||
        recv(s, &m.hdr, sizeof(m.hdr), MSG_WAITALL) != sizeof(m.hdr)) {
        return -1;
    }
    return (int)m.hdr.error;
}

/* Connect to VM 2 as user @uid; does the daemon serve it? */
static bool served(uid_t uid)
{
    char *path = vg_daemon_socket(vgt_daemon, 2);
    int status;
    pid_t pid = fork();

    g_assert_cmpint(pid, >=, 0);
    if (pid == 0) {
        struct sockaddr_un sa = {.sun_family = AF_UNIX};
        struct timeval tv = {.tv_sec = 30};
        int s = socket(AF_UNIX, SOCK_STREAM, 0), err;

        g_strlcpy(sa.sun_path, path, sizeof(sa.sun_path));
        setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
        if (uid != geteuid() &&
            (chmod(path, 0666) < 0 || chmod(vgt_daemon->dir, 0711) < 0 ||
             setresuid(uid, uid, uid) < 0)) {
            _exit(2);
        }
        if (connect(s, (struct sockaddr *)&sa, sizeof(sa)) < 0) {
            _exit(2);
        }
        err = version_answer(s);
        _exit(err == 0 ? 0 : err == EPERM ? 1 : 2);
    }
    g_free(path);
    g_assert_cmpint(waitpid(pid, &status, 0), ==, pid);
    g_assert_true(WIFEXITED(status) && WEXITSTATUS(status) != 2);
    return WEXITSTATUS(status) == 0;
}

static void test_uid(void)
{
    char *mine = g_strdup_printf("uid=%u", (unsigned)geteuid());

    g_assert_true(served(geteuid()));
    reload("", "", "uid=4000000");
    g_assert_false(served(geteuid()));
    vgt_wait_logged("vm vm2: refused a VMM of user");
    if (geteuid() == 0) {
        g_assert_true(served(4000000));
    }
    reload("", "", mine);
    g_assert_true(served(geteuid()));
    if (geteuid() == 0) {
        g_assert_false(served(4000000));
    }
    reload("", "", "");
    g_free(mine);
}

int main(int argc, char **argv)
{
    vgt_start(&argc, &argv, 120, 3);
    g_test_add_func("/reload/under-load", test_under_load);
    g_test_add_func("/reload/storm", test_storm);
    g_test_add_func("/reload/worker", test_worker);
    g_test_add_func("/reload/network-of-added", test_network_of_added);
    g_test_add_func("/reload/uid", test_uid);
    return vgt_run();
}
