/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: the daemons of two hosts are replaced, in turn, under traffic between
 * them of every type of queue pair.  No operation fails, however soon its queue pair
 * would give up: no time runs while either daemon is not there.  What may be lost is lost
 * without a word.  A host that hangs delays nobody's restart.
 */
#include <signal.h>

#include "hosts.h"
#include "numbered.h"

#define ROUNDS       10u
#define PEER_TIMEOUT 30
#define HANGS_US     4000000u

/* Gives up after three times 1 ms, or 500 ms of silence. */
static const struct vg_conn impatient = {.timeout = 8, .retry_cnt = 1, .rnr_retry = 7};
static const struct vg_conn patient = {.timeout = 18, .retry_cnt = 7, .rnr_retry = 7};
/* After two seconds, which is less than HANGS_US, and more than that begins with. */
static const struct vg_conn seconds = {.timeout = 18, .retry_cnt = 1, .rnr_retry = 7};

static struct vg_daemon *host[2];

static gint done; /* what goes on beside the traffic */

/* Some before the link is there again, some at once, some when all goes on. */
static gpointer restart_both(gpointer unused)
{
    unsigned n = MAX(vgt_rounds(ROUNDS), 4);

    for (unsigned i = 0; i < n; i++) {
        vgt_restart(host[i % 2]);
        g_usleep(i * i % 4 * 300000 + i % 3 * 100000);
    }
    g_atomic_int_set(&done, 1);
    return NULL;
}

/* Host 0's daemon is replaced while host 1's hangs, for longer than anything waits. */
static gpointer restart_alone(gpointer unused)
{
    int64_t us;

    kill(host[1]->pid, SIGSTOP);
    us = vgt_restart(host[0]);
    g_usleep(HANGS_US);
    kill(host[1]->pid, SIGCONT);
    g_test_message("the pause beside a host that hangs: %" PRIi64 " us", us);
    g_assert_cmpint(us, <, PEER_TIMEOUT * G_USEC_PER_SEC / 2);
    g_atomic_int_set(&done, 1);
    return NULL;
}

/* ---- numbered messages ---- */

struct kind {
    enum pvrdma_qp_type type;
    const struct vg_conn *conn;
    bool shared; /* all receive from one queue */
    bool back;   /* from host 1 to host 0 */
};

static void numbered(const struct kind *k, GThreadFunc beside)
{
    struct vgt_opts o = {.daemon = {host[k->back], host[!k->back]}, .conn = patient};
    struct numbered n;
    GThread *thread;

    if (k->conn) {
        o.conn = *k->conn;
    }
    numbered_open(&n, k->back, !k->back, k->type, k->shared, &o);
    numbered_run(&n, 50);
    done = 0;
    thread = g_thread_new("beside", beside, NULL);
    while (!g_atomic_int_get(&done)) {
        numbered_run(&n, n.arrived + 1);
    }
    g_thread_join(thread);
    numbered_run(&n, n.arrived + 50);
    numbered_end(&n);
    g_test_message("%" PRIu64 " messages, %" PRIu64 " lost", n.arrived,
                   numbered_lost(&n));
    numbered_close(&n);
}

static void test_kind(gconstpointer kind)
{
    numbered(kind, restart_both);
}

static void test_hung(gconstpointer kind)
{
    numbered(kind, restart_alone);
}

/* ---- every operation, both ways ---- */

static void test_traffic(gconstpointer style)
{
    struct vgt_opts o = vgt_opts_of(style);
    struct vgt_traffic t;
    GThread *thread;

    o.conn = impatient;
    o.daemon[1] = host[1];
    vgt_traffic_open(&t, 0, 1, 4, 8, 100000, &o);
    done = 0;
    thread = g_thread_new("beside", restart_both, NULL);
    while (!g_atomic_int_get(&done)) {
        vgt_traffic_run(&t, 20);
    }
    g_thread_join(thread);
    vgt_traffic_run(&t, 50);
    g_test_message("%" PRIu64 " operations", t.ops);
    vgt_traffic_close(&t);
}

int main(int argc, char **argv)
{
    static const struct kind rc = {PVRDMA_QPT_RC, &patient, false, false},
                             rc_impatient = {PVRDMA_QPT_RC, &impatient, false, false},
                             rc_back = {PVRDMA_QPT_RC, &impatient, false, true},
                             srq = {PVRDMA_QPT_RC, &impatient, true, false},
                             uc = {PVRDMA_QPT_UC, NULL, false, false},
                             ud = {PVRDMA_QPT_UD, NULL, false, false},
                             gsi = {PVRDMA_QPT_GSI, NULL, false, false},
                             hung = {PVRDMA_QPT_RC, &seconds, false, false};
    static const struct vgt_both both[] = {{"traffic", test_traffic}};
    struct host_opts o = {
        .n_vms = 2, .daemon_keys = "workers=2\npeer-timeout=" G_STRINGIFY(PEER_TIMEOUT)};

    vgt_init(&argc, &argv, 240);
    hosts_start(host, 2, &o);
    g_test_add_data_func("/restart-kinds/rc", &rc, test_kind);
    g_test_add_data_func("/restart-kinds/rc-impatient", &rc_impatient, test_kind);
    g_test_add_data_func("/restart-kinds/rc-back", &rc_back, test_kind);
    g_test_add_data_func("/restart-kinds/srq", &srq, test_kind);
    g_test_add_data_func("/restart-kinds/uc", &uc, test_kind);
    g_test_add_data_func("/restart-kinds/ud", &ud, test_kind);
    g_test_add_data_func("/restart-kinds/gsi", &gsi, test_kind);
    g_test_add_data_func("/restart-kinds/hung/rc", &hung, test_hung);
    g_test_add_data_func("/restart-kinds/hung/gsi", &gsi, test_hung);
    vgt_add_both("restart-kinds", both, G_N_ELEMENTS(both));
    return hosts_run(host, 2);
}
