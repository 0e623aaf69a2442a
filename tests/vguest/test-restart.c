/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: the daemon is replaced under running VMs.  A guest sees nothing of it
 * but the time: registers, objects, queue pairs with traffic, armed CQs and half a
 * message on its way are what they were; and if the new daemon cannot be had, the old
 * one goes on.
 */
#include <errno.h>
#include <glib/gstdio.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "hosts.h"
#include "slowfd.h"

#define ROUNDS 20u

static int64_t longest_us;

static void restart(const struct vg_daemon *d)
{
    longest_us = MAX(longest_us, vgt_restart(d));
}

/* ---- what stays ---- */

static void test_idle(void)
{
    static const uint32_t regs[] = {PVRDMA_REG_VERSION, PVRDMA_REG_DSRLOW,
                                    PVRDMA_REG_DSRHIGH, PVRDMA_REG_IMR,
                                    PVRDMA_REG_ERR,     PVRDMA_REG_MACL};
    uint32_t before[G_N_ELEMENTS(regs)];
    uint8_t config[256], after[256], table[64], entry[64];
    struct vg_usage was, is;
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, NULL);
    memset(table, 0x5a, sizeof(table));
    g_assert_cmpint(vg_region_write(p.s[0].g, 0, 0, table, sizeof(table), false), !=, -1);
    for (unsigned i = 0; i < G_N_ELEMENTS(regs); i++) {
        before[i] = vg_reg_read(p.s[0].g, regs[i]);
    }
    g_assert_cmpint(vg_region_read(p.s[0].g, 7, 0, config, sizeof(config)), ==, 0);
    vg_region_read(p.s[0].g, 0, 0, table, sizeof(table));
    for (unsigned k = 0; k < 3; k++) {
        restart(vgt_daemon);
        for (unsigned i = 0; i < G_N_ELEMENTS(regs); i++) {
            g_assert_cmphex(vg_reg_read(p.s[0].g, regs[i]), ==, before[i]);
        }
        g_assert_cmpint(vg_region_read(p.s[0].g, 7, 0, after, sizeof(after)), ==, 0);
        g_assert_cmpmem(after, sizeof(after), config, sizeof(config));
        g_assert_cmpint(vg_region_read(p.s[0].g, 0, 0, entry, sizeof(entry)), ==, 0);
        g_assert_cmpmem(entry, sizeof(entry), table, sizeof(table));
        g_assert_cmpuint(vg_qp_state(p.s[0].qp), ==, PVRDMA_QPS_RTS);
        vgt_write_once(&p, k);
        vgt_note_channels("vm1"); /* this daemon ends in another one */
        if (k == 0) { /* what the first daemon had made when it was asked is not there */
            vgt_usage_settled(&was);
        }
    }
    vgt_usage_settled(&is);
    g_assert_cmpuint(is.fds, ==, was.fds);
    g_assert_cmpuint(is.threads, ==, was.threads);
    vgt_pair_close(&p);
    vgt_assert_no_objects("vm0");
}

/* What was posted and armed before happens after it. */
static void test_posted(gconstpointer style)
{
    struct vgt_pair p;

    vgt_pair_of(&p, style);
    for (unsigned k = 0; k < 3; k++) {
        vgt_recv(&p.s[1], k, 4096, 64);
        vg_cq_arm(p.s[1].rcq, false);
        restart(vgt_daemon);
        vgt_send(&p.s[0], k, PVRDMA_WR_SEND, VGT_SIG, 0, 64, NULL, 0);
        g_assert_true(vg_cqn_wait(p.s[1].g, p.s[1].rcq->handle, VGT_WAIT_MS));
        vgt_expect(p.s[1].rcq, k, PVRDMA_WC_SUCCESS);
        vgt_expect(p.s[0].scq, k, PVRDMA_WC_SUCCESS);
    }
    vgt_pair_close(&p);
}

/* A VM that an administrator has added and paused is that, and so are its peers' tries.
 */
static void test_admin(void)
{
    struct vgt_pair p;

    g_assert_cmpint(
        vg_ctl(vgt_daemon, NULL, "vm add extra network=lan addresses=10.0.9.9"), ==, 0);
    vgt_pair_open(&p, 0, 1, NULL);
    vgt_vm(vgt_daemon, "pause", 1);
    vgt_send(&p.s[0], 1, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 100, &p.s[1], 0);
    restart(vgt_daemon);
    vgt_expect_none(p.s[0].scq, 100);
    vgt_vm(vgt_daemon, "resume", 1);
    vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS);
    g_assert_cmpint(vg_ctl(vgt_daemon, NULL, "vm remove extra"), ==, 0);
    vgt_pair_close(&p);
}

/* The key file is followed: vm2 is not in it any more, and has no VMM. */
static void test_file(void)
{
    g_autofree char *socket = vg_daemon_socket(vgt_daemon, 2);
    char *text, *cut;

    g_assert_true(g_file_get_contents(vgt_daemon->config, &text, NULL, NULL));
    cut = g_strndup(text, (gsize)(strstr(text, "[vm vm2]") - text));
    g_assert_true(g_file_set_contents(vgt_daemon->config, cut, -1, NULL));
    restart(vgt_daemon);
    g_assert_cmpint(vg_ctl(vgt_daemon, NULL, "vm pause vm2"), !=, 0);
    g_assert_cmpint(access(socket, F_OK), <, 0);
    g_assert_true(g_file_set_contents(vgt_daemon->config, text, -1, NULL));
    restart(vgt_daemon);
    g_assert_cmpint(access(socket, F_OK), ==, 0);
    g_free(text);
    g_free(cut);
}

/* A message is cut off at every length; the rest comes to the new daemon. */
static void test_half(void)
{
    struct vfio_user_region_rw rw = {.region = VFIO_USER_REGION_CONFIG, .count = 4};
    struct vfio_user_hdr hdr = {
        .id = 0x7777, .command = VFIO_USER_REGION_READ, .size = sizeof(hdr) + sizeof(rw)};
    struct vguest *g = vguest_new(vgt_daemon, 0, NULL);
    uint8_t msg[sizeof(hdr) + sizeof(rw)];

    memcpy(msg, &hdr, sizeof(hdr));
    memcpy(msg + sizeof(hdr), &rw, sizeof(rw));
    for (unsigned cut = 1; cut < sizeof(msg); cut += VGT_PLAIN_BUILD ? 6 : 13) {
        struct vg_reply reply;

        g_assert_cmpint(vg_raw_send(g->sock, msg, cut, NULL, 0), ==, 0);
        g_usleep(20000); /* some of it is read, more or less */
        restart(vgt_daemon);
        g_assert_cmpint(vg_raw_send(g->sock, msg + cut, sizeof(msg) - cut, NULL, 0), ==,
                        0);
        g_assert_cmpint(vg_raw_recv(g->sock, &reply, VGT_WAIT_MS), ==, 0);
        g_assert_cmpuint(reply.hdr.id, ==, hdr.id);
        g_assert_cmpuint(reply.hdr.flags & VFIO_USER_ERROR, ==, 0);
        g_assert_cmpuint(reply.len, ==, sizeof(rw) + 4);
        vg_reply_clear(&reply);
    }
    vguest_free(g);
}

/* ---- traffic ---- */

struct restarts {
    struct vg_daemon *d;
    unsigned n;
    gint done;
};

static gpointer restart_thread(gpointer opaque)
{
    struct restarts *r = opaque;

    for (unsigned i = 0; i < r->n; i++) {
        restart(r->d);
        g_usleep(20000);
    }
    g_atomic_int_set(&r->done, 1);
    return NULL;
}

static void run_traffic(const struct vgt_opts *o, unsigned nqp, unsigned restarts)
{
    struct restarts r = {.d = vgt_daemon, .n = restarts};
    struct vgt_traffic t;
    GThread *thread;

    vgt_traffic_open(&t, 0, 1, nqp, 8, 100000, o);
    thread = g_thread_new("restart", restart_thread, &r);
    while (!g_atomic_int_get(&r.done)) {
        vgt_traffic_run(&t, 20);
    }
    g_thread_join(thread);
    vgt_traffic_run(&t, 50);
    g_test_message("%u restarts, %" PRIu64 " operations, %" PRIu64 " bytes", restarts,
                   t.ops, t.bytes);
    vgt_traffic_close(&t);
}

static void test_traffic(gconstpointer style)
{
    struct vgt_opts o = vgt_opts_of(style);

    run_traffic(&o, 4, vgt_rounds(ROUNDS));
}

/* As with stock QEMU: doorbells are messages that nobody answers. */
static void test_messages(void)
{
    struct vgt_opts o = {.guest = {{.db = VG_DB_POSTED}, {.db = VG_DB_REPLY}}};

    run_traffic(&o, 2, vgt_rounds(ROUNDS));
}

/* Connections to another host, whose daemon is replaced in turn. */
static void test_hosts(void)
{
    static const struct host_opts keys = {.n_vms = 2, .daemon_keys = "peer-timeout=30"};
    struct vg_daemon *shared = vgt_daemon, *host[2];
    struct vgt_opts o = {.conn = {.timeout = 18, .retry_cnt = 7}};

    hosts_start(host, 2, &keys);
    o.daemon[0] = host[0];
    o.daemon[1] = host[1];
    for (unsigned i = 0; i < 2; i++) {
        vgt_daemon = host[i];
        run_traffic(&o, 2, vgt_rounds(ROUNDS) / 4 + 1);
    }
    hosts_stop(host, 2);
    vgt_daemon = shared;
}

/* Commands go on all the while, each answered once. */
static void test_commands(void)
{
    struct restarts r = {.d = vgt_daemon, .n = vgt_rounds(ROUNDS)};
    struct vguest *g = vguest_new(vgt_daemon, 0, NULL);
    GThread *thread = g_thread_new("restart", restart_thread, &r);
    unsigned n = 0;

    while (!g_atomic_int_get(&r.done)) {
        struct vg_pd *pd = vg_pd_new(g);
        struct vg_mr *mr = vg_mr_alloc(pd, 0x660000000000ull, 1 << 20, VG_ACCESS_ALL);

        vg_mr_free(mr);
        vg_pd_free(pd);
        n++;
    }
    g_thread_join(thread);
    g_test_message("%u times two objects", n);
    vguest_free(g);
    vgt_assert_no_objects("vm0");
}

static void test_signal(void)
{
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, NULL);
    for (unsigned i = 0; i < 3; i++) { /* the second comes when it comes */
        kill(vgt_daemon->pid, SIGUSR2);
        kill(vgt_daemon->pid, SIGHUP);
        vgt_write_once(&p, i);
    }
    vgt_wait_logged("took over 3 VM(s)");
    vgt_write_once(&p, 3);
    vgt_pair_close(&p);
}

/* ---- what fails ---- */

static void install(const char *path, const char *script)
{
    g_unlink(path);
    if (script) {
        g_assert_true(g_file_set_contents(path, script, -1, NULL));
        g_assert_cmpint(chmod(path, 0755), ==, 0);
    }
}

/* The daemon says why, and goes on. */
static void refuses(const char *path, const char *script, const char *why)
{
    size_t before = vgt_log_length();

    install(path, script);
    g_assert_cmpint(vg_ctl(vgt_daemon, NULL, "restart"), !=, 0);
    vgt_wait_logged_after(before, why);
}

/*
 * The program is gone, says no, reads other sections (MR of another version), lacks a
 * feature that the guest may use, says nothing of use, does not end, or goes between
 * saying so and doing.
 */
static void test_refused(void)
{
    const char *daemon = g_getenv("PVRDMAD") ? g_getenv("PVRDMAD") : PVRDMAD;
    g_autofree char *keep = g_strdup(g_getenv("PVRDMAD"));
    g_autofree char *dir = g_dir_make_tmp("restart-XXXXXX", NULL);
    g_autofree char *path = g_build_filename(dir, "pvrdmad", NULL);
    g_autofree char *other =
        g_strdup_printf("#!/bin/sh\n'%s' \"$@\" | sed 's/^MR   1$/MR   2/'\n", daemon);
    g_autofree char *poorer =
        g_strdup_printf("#!/bin/sh\n'%s' \"$@\" | grep -vx 'feature 0x1'\n", daemon);
    g_autofree char *traitor =
        g_strdup_printf("#!/bin/sh\n'%s' \"$@\"\nrm -f '%s'\n", daemon, path);
    g_autofree char *gone = g_strdup_printf("%s: No such file", path);
    g_autofree char *program = NULL;
    struct vg_daemon *shared = vgt_daemon;
    struct vgt_pair p;
    gsize len;

    g_assert_true(g_file_get_contents(daemon, &program, &len, NULL));
    g_assert_true(g_file_set_contents(path, program, (gssize)len, NULL));
    g_assert_cmpint(chmod(path, 0755), ==, 0);
    g_setenv("PVRDMAD", path, TRUE);
    vgt_daemon = vg_daemon_start(NULL);
    vgt_pair_open(&p, 0, 1, NULL);

    refuses(path, NULL, "No such file");
    vgt_write_once(&p, 1);
    refuses(path, "#!/bin/sh\necho I am too old >&2\nexit 1\n", "I am too old");
    vgt_write_once(&p, 2);
    refuses(path, other, "does not report support for \"MR   1\"");
    refuses(path, poorer, "does not report support for \"feature 0x1\"");
    refuses(path, "#!/bin/sh\necho pvrdmad 1.0\n", "support for \"HEAD 1\"");
    refuses(path, "#!/bin/sh\nhead -c 9000 /dev/zero\n", "support for \"HEAD 1\"");
    refuses(path, "#!/bin/sh\nexec yes 'HEAD 1'\n", "did not report in time");
    vgt_write_once(&p, 3);
    for (unsigned i = 0; i < 3; i++) {
        refuses(path, traitor, gone);
        vgt_write_once(&p, 4 + i);
    }
    install(path, NULL);
    g_assert_true(g_file_set_contents(path, program, (gssize)len, NULL));
    g_assert_cmpint(chmod(path, 0755), ==, 0);
    restart(vgt_daemon);
    vgt_write_once(&p, 9);

    vgt_pair_close(&p);
    vg_daemon_stop(vgt_daemon);
    vgt_daemon = shared;
    install(path, NULL);
    g_rmdir(dir);
    if (keep) {
        g_setenv("PVRDMAD", keep, TRUE);
    } else {
        g_unsetenv("PVRDMAD");
    }
}

/* ---- what cannot be closed ---- */

/* How many of a VM's descriptors wait for that, the one in work included. */
static int64_t unclosed(unsigned vm)
{
    JsonNode *node = vg_daemon_counters(vgt_daemon);
    JsonArray *all = json_object_get_array_member(json_node_get_object(node), "vms");
    int64_t n = json_object_get_int_member(json_array_get_object_element(all, vm),
                                           "closing_descriptors");

    json_node_unref(node);
    return n;
}

static void wait_unclosed(unsigned vm, int64_t least, int64_t most)
{
    gint64 end = g_get_monotonic_time() + VGT_WAIT_MS * 1000;

    for (int64_t n = unclosed(vm); n < least || n > most; n = unclosed(vm)) {
        g_assert_cmpint(g_get_monotonic_time(), <, end);
        g_usleep(1000);
    }
}

/* It goes along, and nobody waits for it, here or there: of a client, and of one that is
 * not served, in whose socket it is. */
static void test_unclosed(void)
{
    struct vfio_user_dma_map map = {sizeof(map), 3, 0, 1ull << 40, PVRDMA_PAGE_SIZE};
    struct vfio_user_hdr hdr = {.command = VFIO_USER_VERSION, .size = sizeof(hdr)};
    struct vg_daemon *shared = vgt_daemon;
    g_autofree char *path = NULL;
    int peer[6], fd, other[3];
    struct vgt_pair p;

    vgt_daemon = vg_daemon_start(NULL);
    path = vg_daemon_socket(vgt_daemon, 1);
    vgt_pair_open(&p, 0, 1, NULL);
    /* If it had closed its own before us, our close() would be the one that takes so
     * long. */
    g_assert_cmpint(kill(vgt_daemon->pid, SIGSTOP), ==, 0);
    for (unsigned i = 0; i < 3; i++) {
        fd = slow_to_close(&peer[i]);
        g_assert_cmpint(vg_request(p.s[0].g, VFIO_USER_DMA_MAP, VFIO_USER_NO_REPLY, &map,
                                   sizeof(map), &fd, 1, NULL),
                        ==, 0);
        close(fd);
    }
    for (unsigned i = 0; i < 3; i++) {
        struct sockaddr_un addr = {.sun_family = AF_UNIX};

        g_strlcpy(addr.sun_path, path, sizeof(addr.sun_path));
        other[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        g_assert_cmpint(connect(other[i], (struct sockaddr *)&addr, sizeof(addr)), ==, 0);
        fd = slow_to_close(&peer[3 + i]);
        vg_raw_send(other[i], &hdr, sizeof(hdr), &fd, 1);
        close(fd);
    }
    g_assert_cmpint(kill(vgt_daemon->pid, SIGCONT), ==, 0);
    for (unsigned vm = 0; vm < 2; vm++) {
        wait_unclosed(vm, 3, 3);
    }
    for (unsigned i = 1; i < 3; i++) { /* the close() that is under way is broken off */
        vgt_restart(vgt_daemon);
        for (unsigned vm = 0; vm < 2; vm++) {
            g_assert_cmpint(unclosed(vm), >=, 3 - i); /* and no other ends by itself */
            g_assert_cmpint(unclosed(vm), <=, 3);
        }
        vgt_write_once(&p, i);
    }
    for (unsigned i = 0; i < G_N_ELEMENTS(peer); i++) {
        close(peer[i]); /* resets: nothing to wait for */
    }
    wait_unclosed(0, 0, 0);
    wait_unclosed(1, 0, 0);
    for (unsigned i = 0; i < G_N_ELEMENTS(other); i++) {
        close(other[i]);
    }
    vgt_pair_close(&p);
    vg_daemon_stop(vgt_daemon);
    vgt_daemon = shared;
}

/* kill -9 somewhere in it: the VMMs see that, whoever of the two daemons had them. */
static void test_killed(void)
{
    GRand *rand = g_rand_new_with_seed(11);

    for (unsigned i = 0; i < vgt_rounds(10); i++) {
        struct vg_daemon *d = vg_daemon_start(NULL);
        struct vguest *g = vguest_new(d, 0, NULL);

        kill(d->pid, SIGUSR2);
        g_usleep((gulong)g_rand_int_range(rand, 0, 60000));
        vg_daemon_kill(d);
        g_assert_true(vg_wait_closed(g, VGT_WAIT_MS));
        vguest_crash(g);
    }
    g_rand_free(rand);
}

static void test_longest(void)
{
    g_test_message("the longest pause was %.1f ms", (double)longest_us / 1000);
    vgt_assert_shorter((double)longest_us, 4e6); /* QEMU waits for 5 s */
}

int main(int argc, char **argv)
{
    static const struct vgt_both both[] = {
        {"posted", test_posted},
        {"traffic", test_traffic},
    };

    vgt_start(&argc, &argv, 180, 3);
    g_test_add_func("/restart/idle", test_idle);
    vgt_add_both("restart", both, G_N_ELEMENTS(both));
    g_test_add_func("/restart/admin", test_admin);
    g_test_add_func("/restart/file", test_file);
    g_test_add_func("/restart/half", test_half);
    g_test_add_func("/restart/messages", test_messages);
    if (!g_getenv("VGUEST_PATH")) { /* between hosts it is always one */
        g_test_add_func("/restart/hosts", test_hosts);
    }
    g_test_add_func("/restart/commands", test_commands);
    g_test_add_func("/restart/signal", test_signal);
    g_test_add_func("/restart/refused", test_refused);
    g_test_add_func("/restart/unclosed", test_unclosed);
    g_test_add_func("/restart/killed", test_killed);
    g_test_add_func("/restart/longest", test_longest);
    return vgt_run();
}
