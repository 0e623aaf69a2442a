/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: each call of verbs and of the connection manager that the daemon makes
 * fails, or takes long, the first time and some later times, while its NIC comes, a
 * channel is made and messages go over it.  Every operation is done, once and in order
 * (vgt_traffic), by the channel or by TCP; at the end there is a channel again, and when
 * the daemons end nothing of their NICs is left (check_log() in daemon.c).
 *
 * What is taken apart is taken apart: those calls are late only.
 */
#include "hosts.h"

#include <string.h>

#define TIMES 2u
#define N_QPS 2u

static const struct vg_conn patient = {.timeout = 18, .retry_cnt = 7, .rnr_retry = 7};

static struct vg_daemon *host[2];
static struct vgt_traffic traffic;

/* By control threads of the NIC, which may wait, or by workers. */
static const struct entry {
    const char *name;
    bool fails, waits;
} entries[] = {
    {"get_device_list", true, true},
    {"open_device", true, true},
    {"query_device", true, true},
    {"query_port", true, true},
    {"query_gid_table", true, true},
    {"get_async_event", true, false},
    {"cm_create_event_channel", true, true},
    {"cm_create_id", true, true},
    {"cm_bind_addr", true, true},
    {"cm_listen", true, true},
    {"cm_get_event", true, false},
    {"cm_get_devices", true, true},
    {"cm_resolve_addr", true, true},
    {"cm_resolve_route", true, true},
    {"cm_set_option", true, true},
    {"cm_create_qp", true, true},
    {"cm_connect", true, true},
    {"cm_accept", true, true},
    {"cm_reject", true, true},
    {"cm_disconnect", true, true},
    {"alloc_pd", true, true},
    {"reg_mr", true, true},
    {"create_comp_channel", true, true},
    {"create_cq", true, true},
    {"modify_qp", true, true},
    {"query_qp", true, true},
    {"post_recv", true, false},
    {"post_send", true, false},
    {"poll_cq", true, false},
    {"req_notify_cq", true, false},
    {"get_cq_event", true, false},
    {"ack_cq_events", false, false},
    {"cm_ack_event", false, true},
    {"cm_destroy_qp", false, true},
    {"cm_destroy_id", false, true},
    {"cm_destroy_event_channel", false, true},
    {"dereg_mr", false, true},
    {"destroy_cq", false, true},
    {"destroy_comp_channel", false, true},
    {"dealloc_pd", false, true},
    {"close_device", false, true},
    {"free_device_list", false, true},
};

/*
 * Host @h's NIC goes, or its link does, and comes back with @rule.  If it has failed too
 * often the daemon is replaced: the next one knows nothing of that, or of the rule.
 */
static void come_back(unsigned h, bool link, const char *rule)
{
    vg_daemon_nic(host[h], link ? "down soft0" : "remove soft0");
    vgt_await(!vg_daemon_nic_is(host[h], "up"));
    if (link) {
        vg_daemon_nic(host[h], "%s;up soft0", rule);
    } else {
        vg_daemon_nic(host[h], "%s;add soft0 %s", rule, host[h]->nic);
    }
    vgt_traffic_run(&traffic, 5);
    vgt_await(vg_daemon_nic_is(host[h], "up") || vg_daemon_nic_is(host[h], "resting"));
    if (vg_daemon_nic_is(host[h], "resting")) {
        vgt_restart(host[h]);
    }
    vgt_traffic_run(&traffic, 20);
}

/* By the first test that runs. */
static void begin(void)
{
    struct vgt_opts o = {.conn = patient, .daemon = {host[0], host[1]}};

    if (!traffic.nqp) {
        vgt_traffic_open(&traffic, 0, 1, N_QPS, 4, 20000, &o);
        vgt_traffic_run(&traffic, 20);
        vgt_await(host_traffic_by(&traffic, 0, "rnic"));
    }
}

static void test_entry(gconstpointer opaque)
{
    const struct entry *e = opaque;

    begin();
    for (unsigned i = 0; i < 2 * TIMES; i++) {
        unsigned h = i % 2, n = 1 + i / 2;
        bool link = (i ^ i >> 1) & 1;

        if (e->fails) {
            g_autofree char *fail = g_strdup_printf("fail %s %u EIO", e->name, n);

            come_back(h, link, fail);
        } else {
            g_autofree char *delay =
                g_strdup_printf("delay %s %u %u", e->name, n, e->waits ? 200000 : 5000);

            come_back(h, link, delay);
        }
        vg_daemon_check(host[h]);
        vg_daemon_nic(host[h], "clear");
    }
}

/* After all of that. */
static void test_end(void)
{
    begin();
    come_back(0, true, "clear");
    come_back(1, true, "clear");
    vgt_await((vgt_traffic_run(&traffic, 1), host_traffic_by(&traffic, 0, "rnic")));
    g_test_message("%" PRIu64 " operations", traffic.ops);
    vgt_traffic_close(&traffic);
}

int main(int argc, char **argv)
{
    const struct host_opts o = {.n_vms = 2, .daemon_keys = "workers=2\npeer-timeout=10"};

    vgt_init(&argc, &argv, 600);
    hosts_start(host, 2, &o);
    vgt_daemon = host[0];
    for (unsigned i = 0; i < G_N_ELEMENTS(entries); i++) {
        g_autofree char *path = g_strdup_printf("/rnic-faults/%s", entries[i].name);

        g_test_add_data_func(path, &entries[i], test_entry);
    }
    g_test_add_func("/rnic-faults/end", test_end);
    return hosts_run(host, 2);
}
