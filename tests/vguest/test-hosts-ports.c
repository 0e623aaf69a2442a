/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: the ports between two hosts, which all their VMs share.  One VM connects
 * and disconnects more often than there are ports, or has more queue pairs: another one
 * notices nothing.
 *
 * The hosts are network namespaces (netns.h) whose kernels have few ports.
 */
#include "netns.h"

#define PORTS  64u
#define ROUNDS (PORTS + 16)
#define LARGE  262144u

static struct netns *net;
static struct vg_daemon *host[2];

/* Eight tries of half a second, if nobody answers. */
static const struct vg_conn patient = {.timeout = 14, .retry_cnt = 7, .rnr_retry = 7};

/* False: it is skipped. */
static bool begin(void)
{
    struct host_opts o = {.n_vms = 6, .n_peers = 2};
    g_autofree char *why = netns_why_not();
    g_autofree char *few =
        g_strdup_printf("echo 40000 %u > /proc/sys/net/ipv4/ip_local_port_range &&"
                        "echo 0 > /proc/sys/net/ipv4/tcp_tw_reuse",
                        40000 + PORTS - 1);

    if (why) {
        g_test_skip(why);
        return false;
    }
    net = netns_new(2);
    for (unsigned i = 0; i < 2; i++) {
        if (!netns_run(net, i, few)) {
            g_test_skip("/proc/sys of a network namespace cannot be written");
            netns_free(net);
            return false;
        }
    }
    netns_hosts(net, host, &o);
    vgt_daemon = host[1];
    return true;
}

static void end(void)
{
    hosts_stop(host, 2);
    netns_free(net);
    vgt_daemon = NULL;
}

/* VM @a of host 0 and VM @b of host 1; of two, the lesser makes the connection. */
static void pair(struct vgt_pair *p, unsigned a, unsigned b)
{
    struct vgt_opts o = {.guest = {{.db = VG_DB_EXT}, {.db = VG_DB_EXT}},
                         .daemon = {host[0], host[1]},
                         .conn = patient,
                         .mr_len = LARGE};

    vgt_pair_open(p, a, b, &o);
}

static void one(struct vgt_pair *p, unsigned from)
{
    vgt_recv(&p->s[!from], 7, 0, 64);
    vgt_complete(&p->s[from], 1, PVRDMA_WR_SEND, 0, 64, &p->s[!from], 0);
    vgt_expect(p->s[!from].rcq, 7, PVRDMA_WC_SUCCESS);
}

static void another(void)
{
    struct vgt_pair p;

    pair(&p, 4, 2);
    one(&p, 0);
    one(&p, 1);
    vgt_pair_close(&p);
}

/* How a connection ends: who sends and goes first, 1 has made it; and what is left. */
struct way {
    const char *name;
    unsigned from;
    bool busy;  /* something is on its way */
    bool fails; /* the other end has to say why not */
};

static const struct way ways[] = {
    {"caller", .from = 1},
    {"called", .from = 0},
    {"caller-busy", .from = 1, .busy = true},
    {"called-busy", .from = 0, .busy = true},
    {"failure", .from = 0, .fails = true},
};

static void test_churn(gconstpointer opaque)
{
    const struct way *w = opaque;
    struct vgt_pair p;

    if (!begin()) {
        return;
    }
    pair(&p, 3, 1);
    for (unsigned i = 0; i < ROUNDS; i++) {
        one(&p, w->from);
        if (w->busy) {
            vgt_send(&p.s[w->from], 2, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, LARGE,
                     &p.s[!w->from], 0);
        }
        if (w->fails) {
            vgt_send(&p.s[w->from], 3, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 64,
                     &p.s[!w->from], LARGE);
            vgt_expect(p.s[w->from].scq, 3, PVRDMA_WC_REM_ACCESS_ERR);
        }
        vg_qp_to_reset(p.s[w->from].qp);
        vg_qp_to_reset(p.s[!w->from].qp);
        vgt_pair_reconnect(&p, &patient);
    }
    one(&p, w->from);
    another();
    vgt_pair_close(&p);
    end();
}

/* One VM has more queue pairs than there are ports. */
static void test_many(void)
{
    static const struct vg_qp_opts small = {
        .send_wr = 2, .recv_wr = 2, .send_sge = 1, .recv_sge = 1};
    struct vg_qp *qp[2][PORTS + 32];
    struct pvrdma_cqe c;
    struct vgt_pair p;
    unsigned good = 0;

    if (!begin()) {
        return;
    }
    pair(&p, 3, 1);
    for (unsigned k = 0; k < PORTS + 32; k++) {
        struct pvrdma_sge sge = vg_sge(p.s[1].mr, 0, 8);
        struct vg_wr wr = vg_wr_to(k, PVRDMA_WR_RDMA_WRITE, VGT_SIG, &sge, p.s[0].mr, 0);

        for (unsigned i = 0; i < 2; i++) {
            qp[i][k] = vg_qp_new(p.s[i].pd, p.s[i].scq, p.s[i].scq, &small);
        }
        vg_qp_connect(qp[0][k], qp[1][k], &patient);
        g_assert_cmpuint(vg_post_send(qp[1][k], &wr, 1), ==, 1);
    }
    for (unsigned k = 0; k < PORTS + 32; k++) {
        g_assert_true(vg_cq_wait(p.s[1].scq, &c, VGT_WAIT_MS));
        good += c.status == PVRDMA_WC_SUCCESS;
    }
    /* The pair's own is one. */
    g_assert_cmpuint(good, ==, PORTS / 2 - 1);
    host_wait_logged(host[1], "its share of the ports towards another host is used up");
    g_assert_cmpint(vgt_counter("vm1", "tcp", "over_share"), >, 0);
    another();
    for (unsigned k = 0; k < PORTS + 32; k++) {
        vg_qp_free(qp[0][k]);
        vg_qp_free(qp[1][k]);
    }
    vgt_pair_close(&p);
    end();
}

int main(int argc, char **argv)
{
    vgt_init(&argc, &argv, 240);
    for (unsigned i = 0; i < G_N_ELEMENTS(ways); i++) {
        g_autofree char *path = g_strdup_printf("/hosts-ports/churn/%s", ways[i].name);

        g_test_add_data_func(path, &ways[i], test_churn);
    }
    g_test_add_func("/hosts-ports/many", test_many);
    return vgt_run();
}
