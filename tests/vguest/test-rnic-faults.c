/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: each call of verbs and of the connection manager that the daemon makes
 * fails, or takes long, the first time and the second, while its NIC goes, comes back, a
 * channel is made and messages go over it.  Every operation is done, once and in order
 * (vgt_traffic), by the channel or by TCP; behind each call that failed there is a
 * channel again, and when the daemons end nothing of their NICs is left (check_log() in
 * daemon.c).
 *
 * What is taken apart is taken apart: those calls are late only.  cm_reject(), which is
 * for strangers, is not called here.
 */
#include "hosts.h"

#include <string.h>

#define N_QPS 2u

static const struct vg_conn patient = {.timeout = 20, .retry_cnt = 7, .rnr_retry = 7};

static struct vg_daemon *host[2];
static struct vgt_traffic traffic;

/* By control threads of the NIC, which may wait, or by workers.  `opening`: only where a
 * device is looked for, opened and closed.  `end`: only by the one who connects (host 0),
 * or by the other one. */
static const struct entry {
    const char *name;
    bool fails, waits, opening;
    enum { BOTH, CONNECTS, ACCEPTS } end;
} entries[] = {
    {"get_device_list", true, true, .opening = true},
    {"open_device", true, true, .opening = true},
    {"query_device", true, true, .opening = true},
    {"query_port", true, true},
    {"query_gid_table", true, true},
    {"get_async_event", true, false},
    {"cm_create_event_channel", true, true},
    {"cm_create_id", true, true},
    {"cm_bind_addr", true, true},
    {"cm_listen", true, true},
    {"cm_get_event", true, false},
    {"cm_get_devices", true, true},
    {"cm_resolve_addr", true, true, .end = CONNECTS},
    {"cm_resolve_route", true, true, .end = CONNECTS},
    {"cm_set_option", true, true},
    {"cm_create_qp", true, true},
    {"cm_connect", true, true, .end = CONNECTS},
    {"cm_accept", true, true, .end = ACCEPTS},
    {"cm_disconnect", true, true},
    {"alloc_pd", true, true},
    {"reg_mr", true, true},
    {"create_comp_channel", true, true},
    {"create_cq", true, true},
    {"modify_qp", true, true},
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
    {"close_device", false, true, .opening = true},
    {"free_device_list", false, true, .opening = true},
};

/* How many calls of @name have failed or been late at host @h. */
static unsigned hits(unsigned h, const char *name)
{
    g_autofree char *line = g_strdup_printf("rule: %s\n", name), *log = NULL;
    unsigned n = 0;

    g_assert_true(g_file_get_contents(host[h]->log, &log, NULL, NULL));
    for (const char *p = log; (p = strstr(p, line)); p++) {
        n++;
    }
    return n;
}

/*
 * Host @h's NIC goes, or its link does, with @rule, and comes back.  If it has failed too
 * often the daemon is replaced: the next one knows nothing of that, or of the rule.  Was
 * it?
 */
static bool come_back(unsigned h, bool link, const char *rule)
{
    bool rests;

    /* An event has it look at once. */
    vg_daemon_nic(host[h], "%s;gids soft0;%s soft0", rule, link ? "down" : "remove");
    vgt_await(!vg_daemon_nic_is(host[h], "up"));
    if (link) {
        vg_daemon_nic(host[h], "up soft0");
    } else {
        vg_daemon_nic(host[h], "add soft0 %s", host[h]->nic);
    }
    vgt_traffic_run(&traffic, 5);
    vgt_await((rests = vg_daemon_nic_is(host[h], "resting")) ||
              vg_daemon_nic_is(host[h], "up"));
    if (rests) {
        vgt_restart(host[h]);
    }
    return rests;
}

static bool by_channel(void)
{
    vgt_traffic_run(&traffic, 1);
    return host_traffic_by(&traffic, 0, "rnic") && host_traffic_by(&traffic, 1, "rnic");
}

/* A pair whose channels have failed twice rests until a NIC changes. */
static void await_channel(void)
{
    int64_t until = vg_now_ns() + VGT_WAIT_MS * 1000000ll;

    for (unsigned i = 1; !by_channel(); i++) {
        g_assert_cmpint(vg_now_ns(), <, until);
        if (i % 50 == 0) {
            come_back(0, true, "");
        }
        g_usleep(5000);
    }
    vgt_traffic_run(&traffic, 5);
}

/* By the first test that runs. */
static void begin(void)
{
    struct vgt_opts o = {.conn = patient, .daemon = {host[0], host[1]}};

    if (!traffic.nqp) {
        vgt_traffic_open(&traffic, 0, 1, N_QPS, 4, 20000, &o);
        await_channel();
    }
}

/* At host @h the @n-th call goes wrong, while there is a channel and that goes. */
static void hit(const struct entry *e, unsigned h, bool link, unsigned n)
{
    g_autofree char *rule = e->fails ? g_strdup_printf("fail %s %u EIO", e->name, n)
                                     : g_strdup_printf("delay %s %u %u", e->name, n,
                                                       e->waits ? 200000 : 5000);
    unsigned before = hits(h, e->name);
    bool lost = true;

    for (unsigned i = 0; hits(h, e->name) == before; i++) {
        g_assert_cmpuint(i, <, 2 * n); /* each time it is called once at least */
        lost = come_back(h, link && !e->opening, lost ? rule : "");
        await_channel();
    }
    vg_daemon_check(host[h]);
    vg_daemon_nic(host[h], "clear");
    await_channel();
}

static void test_entry(gconstpointer opaque)
{
    const struct entry *e = opaque;
    unsigned first = e->end == CONNECTS  ? 0
                     : e->end == ACCEPTS ? 1
                                         : (unsigned)(e - entries) % 2,
             other = e->end == BOTH ? 1 - first : first;

    begin();
    hit(e, first, false, 1);
    hit(e, other, true, 2);
    if (VGT_PLAIN_BUILD) {
        hit(e, other, true, 1);
    }
}

/* After all of that. */
static void test_end(void)
{
    begin();
    come_back(0, true, "clear");
    come_back(1, true, "clear");
    await_channel();
    g_test_message("%" PRIu64 " operations", traffic.ops);
    vgt_traffic_close(&traffic);
}

int main(int argc, char **argv)
{
    const struct host_opts o = {.n_vms = 2, .daemon_keys = "workers=2\npeer-timeout=10"};

    vgt_init(&argc, &argv, VGT_PLAIN_BUILD ? 600 : 300);
    vgt_channels_break();
    hosts_start(host, 2, &o);
    vgt_daemon = host[0];
    for (unsigned i = 0; i < G_N_ELEMENTS(entries); i++) {
        g_autofree char *path = g_strdup_printf("/rnic-faults/%s", entries[i].name);

        g_test_add_data_func(path, &entries[i], test_entry);
    }
    g_test_add_func("/rnic-faults/end", test_end);
    return hosts_run(host, 2);
}
