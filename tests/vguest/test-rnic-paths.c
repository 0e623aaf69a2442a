/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: the path between two hosts changes again and again, from a channel of
 * their NICs to TCP and back, while queue pairs of two VMs send and write, read and add.
 * NICs in memory (tests/softnic) and their links go and come, connections between them
 * are cut, daemons are replaced, the link between them is lost, VMs stand still.  Each
 * operation is done once and in order, the counter is what the successes are
 * (vgt_traffic), and `pvrdmactl qp list` shows each path.
 *
 * Of both styles of queue pairs there are CHANGES, with sanitizers as many as need be, or
 * RNIC_PATHS; which, the seed of the program decides (as with all GLib tests, it is
 * printed, and --seed takes it).
 *
 * Threads: the test's has the traffic; another one has the changes.
 */
#include "relay.h"

#include <stdlib.h>
#include <string.h>

#define CHANGES 100u
#define LEAST   20u
#define N_QPS   4u

/* Gives up after eight times four seconds; what a change takes is less. */
static const struct vg_conn patient = {.timeout = 20, .retry_cnt = 7, .rnr_retry = 7};

static struct vg_daemon *host[2];
static struct relay *relay;
static struct vgt_traffic traffic;
static gint done; /* all changes */

/* ---- what is seen ---- */

static void await_path(bool channel)
{
    for (unsigned h = 0; h < 2; h++) {
        vgt_await(host_traffic_by(&traffic, h, channel ? "rnic" : "tcp"));
    }
}

/* How many channels have broken, on both hosts. */
static unsigned broken(void)
{
    unsigned n = 0;

    for (unsigned h = 0; h < 2; h++) {
        g_autofree char *text = NULL;

        g_assert_true(g_file_get_contents(host[h]->log, &text, NULL, NULL));
        for (const char *p = text; (p = strstr(p, " breaks: ")); p++) {
            n++;
        }
    }
    return n;
}

/* ---- changes ---- */

static void port_off_and_on(unsigned h)
{
    vg_daemon_nic(host[h], "down soft0");
    vgt_await(vg_daemon_nic_is(host[h], "down"));
    await_path(false);
    vg_daemon_nic(host[h], "up soft0");
}

/* It breaks for what has been done to it.  Its pair may rest then, until a NIC changes.
 */
static void breaks(unsigned h, unsigned before)
{
    vgt_await(broken() > before);
    port_off_and_on(h);
}

static void cut(unsigned h)
{
    static const char *const how[] = {"before", "after", "answer"};
    unsigned before = broken();

    vg_daemon_nic(host[h], "cut soft0 %d %s", g_test_rand_int_range(1, 50),
                  how[g_test_rand_int_range(0, 3)]);
    breaks(h, before);
}

/* With a flush out of nowhere, a protection error, or an operation that nobody answers.
 */
static void strike(unsigned h)
{
    static const int status[] = {5, 4, 12};
    unsigned before = broken();

    vg_daemon_nic(host[h], "strike soft0 %d", status[g_test_rand_int_range(0, 3)]);
    breaks(h, before);
}

/* Nothing passes any more, and no NIC says so. */
static void silence(unsigned h)
{
    unsigned before = broken();

    vg_daemon_nic(host[h], "hold %d", g_test_rand_int_range(0, 50));
    vgt_await(broken() > before);
    vg_daemon_nic(host[h], "hold -1");
    port_off_and_on(h);
}

/* Back, if it need not rest; a daemon that is new knows of no failures. */
static void back(unsigned h)
{
    vgt_await(!vg_daemon_nic_is(host[h], "up"));
    vg_daemon_nic(host[h], "add soft0 %s", host[h]->nic);
    vgt_await(vg_daemon_nic_is(host[h], "up") || vg_daemon_nic_is(host[h], "resting"));
    if (vg_daemon_nic_is(host[h], "resting")) {
        vgt_restart(host[h]);
    }
}

static void unplug(unsigned h)
{
    vg_daemon_nic(host[h], "unplug soft0");
    await_path(false);
    back(h);
}

static void detach(unsigned h)
{
    vg_daemon_nic(host[h], "remove soft0");
    await_path(false);
    back(h);
}

static void fatal(unsigned h)
{
    vg_daemon_nic(host[h], "fatal soft0%s", g_test_rand_int_range(0, 2) ? " silent" : "");
    await_path(false);
    back(h);
}

static void restart(unsigned h)
{
    vgt_restart(host[h]);
    host_wait_up(host[0], 1, true);
    host_wait_up(host[1], 0, true);
}

/* Channels stay, as they need no link, unless something else happens meanwhile: one whose
 * daemon stands still breaks by itself. */
static void link_loss(unsigned h)
{
    bool port = g_test_rand_int_range(0, 2);
    unsigned before = broken();

    relay_cut(relay, true);
    host_wait_up(host[h], 1 - h, false);
    if (port) {
        vg_daemon_nic(host[h], "down soft0");
        vgt_await(vg_daemon_nic_is(host[h], "down"));
        vg_daemon_nic(host[h], "up soft0");
    } else {
        g_assert_true(host_traffic_by(&traffic, h, "rnic") || broken() > before);
    }
    relay_cut(relay, false);
    host_wait_up(host[0], 1, true);
    host_wait_up(host[1], 0, true);
    if (!port && broken() > before) {
        port_off_and_on(h);
    }
}

/* A VM stands still, for longer or shorter than a channel is silent. */
static void pause_vm(unsigned h)
{
    unsigned before = broken();

    vgt_vm(host[h], "pause", h);
    g_usleep((gulong)g_test_rand_int_range(0, 1500) * 1000);
    vgt_vm(host[h], "resume", h);
    if (broken() > before) {
        port_off_and_on(h);
    }
}

static const struct {
    const char *name;
    void (*change)(unsigned h);
} changes[] = {
    {"port", port_off_and_on}, {"cut", cut},         {"strike", strike},
    {"silence", silence},      {"unplug", unplug},   {"remove", detach},
    {"fatal", fatal},          {"restart", restart}, {"link", link_loss},
    {"pause", pause_vm},
};

/* How many, of each style. */
static unsigned n_changes(void)
{
    const char *env = g_getenv("RNIC_PATHS");

    return env ? (unsigned)strtoul(env, NULL, 10) : MAX(vgt_rounds(CHANGES), LEAST);
}

static gpointer change_paths(gpointer unused)
{
    unsigned n = n_changes();
    unsigned count[G_N_ELEMENTS(changes)] = {0};
    g_autoptr(GString) text = g_string_new(NULL);

    for (unsigned i = 0; i < n; i++) {
        /* Each once, then any. */
        unsigned k = i < G_N_ELEMENTS(changes)
                         ? i
                         : (unsigned)g_test_rand_int_range(0, G_N_ELEMENTS(changes));
        unsigned h = (unsigned)g_test_rand_int_range(0, 2);

        if (g_test_verbose()) {
            g_test_message("%s of host%u", changes[k].name, h);
        }
        changes[k].change(h);
        await_path(true);
        count[k]++;
    }
    for (unsigned k = 0; k < G_N_ELEMENTS(changes); k++) {
        g_string_append_printf(text, " %s %u", changes[k].name, count[k]);
    }
    g_test_message("changes:%s", text->str);
    g_atomic_int_set(&done, 1);
    return NULL;
}

/* Options for two VMs of the hosts, which are there now. */
static struct vgt_opts begin(gconstpointer style)
{
    const struct host_opts o = {.n_vms = 4, .daemon_keys = "workers=2\npeer-timeout=4"};
    struct vgt_opts vo = vgt_opts_of(style);

    relay = relay_hosts(host, &(struct relay_opts){0}, &o);
    vgt_daemon = host[0];
    vo.conn = patient;
    vo.daemon[0] = host[0];
    vo.daemon[1] = host[1];
    return vo;
}

static void end(void)
{
    relay_hosts_stop(relay, host);
    vgt_daemon = NULL;
}

static void test_changes(gconstpointer style)
{
    struct vgt_opts vo = begin(style);
    GThread *thread;

    vgt_traffic_open(&traffic, 0, 1, N_QPS, 8, 20000, &vo);
    vgt_traffic_run(&traffic, 10);
    await_path(true);
    done = 0;
    thread = g_thread_new("changes", change_paths, NULL);
    while (!g_atomic_int_get(&done)) {
        vgt_traffic_run(&traffic, 20);
    }
    g_thread_join(thread);
    vgt_traffic_run(&traffic, 50);
    g_test_message("%" PRIu64 " operations; nothing came for %" PRId64 " ms at most",
                   traffic.ops, traffic.still_ns / 1000000);
    vgt_traffic_close(&traffic);
    end();
}

int main(int argc, char **argv)
{
    static const struct vgt_both both[] = {{"changes", test_changes}};

    vgt_init(&argc, &argv,
             VGT_PLAIN_BUILD ? MAX(600, 6 * n_changes()) : MAX(300, 3 * n_changes()));
    vgt_channels_break();
    vgt_add_both("rnic-paths", both, G_N_ELEMENTS(both));
    return vgt_run();
}
