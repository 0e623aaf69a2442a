/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: many connections to a host that does not read.  What waits for it in the
 * daemon's memory stays below what docs/hosts.md says of each, and goes when it reads on.
 * And no connection has a thread of its own.
 */
#include "relay.h"

#define N_QPS 64u
#define LEN   (1u << 18)
#define EACH  4u /* of such messages */
/*
 * "frames that the peer does not take", of "a queue pair's connection to another host" in
 * docs/hosts.md; and what the allocator and the rings' pages add.
 */
#define CONN_KIB  264u
#define SLACK_KIB 16u

static struct vg_daemon *host[2];
static struct relay *relay;

static void begin(void)
{
    const struct host_opts o = {.n_vms = 2, .daemon_keys = "peer-timeout=30"};

    /* Sockets that take little, so that the rest is the daemon's. */
    relay = relay_hosts(host, &(struct relay_opts){.mss = 536, .buffer = 4096}, &o);
    vgt_daemon = host[0];
}

static void end(void)
{
    relay_hosts_stop(relay, host);
    vgt_daemon = NULL;
}

/* @n WRITEs of @len bytes by each. */
static void post_all(struct vgt_pair *p, struct vg_qp *const *qp, unsigned n,
                     uint32_t len)
{
    for (unsigned i = 0; i < N_QPS * n; i++) {
        struct pvrdma_sge sge = vg_sge(p->s[0].mr, 0, len);
        struct vg_wr wr =
            vg_wr_to(i % N_QPS, PVRDMA_WR_RDMA_WRITE, VGT_SIG, &sge, p->s[1].mr, 0);

        g_assert_cmpuint(vg_post_send(qp[i % N_QPS], &wr, 1), ==, 1);
    }
}

static void all_done(struct vgt_pair *p, unsigned n)
{
    unsigned done[N_QPS] = {0};

    for (unsigned i = 0; i < N_QPS * n; i++) {
        struct pvrdma_cqe c;

        g_assert_true(vg_cq_wait(p->s[0].scq, &c, VGT_WAIT_MS));
        g_assert_cmpuint(c.status, ==, PVRDMA_WC_SUCCESS);
        g_assert_cmpuint(c.wr_id, <, N_QPS);
        g_assert_cmpuint(++done[c.wr_id], <=, n);
    }
}

static void test_unread(void)
{
    const struct vg_conn c = {.timeout = 25, .retry_cnt = 7}; /* longer than this takes */
    struct vg_qp *qp[2][N_QPS];
    struct vg_usage before, first[2], now;
    struct vgt_opts o;
    struct vgt_pair p;
    long grown;

    begin();
    o = (struct vgt_opts){.guest = {{.db = VG_DB_EXT}, {.db = VG_DB_EXT}},
                          .daemon = {host[0], host[1]},
                          .cqe = N_QPS * EACH};
    vgt_pair_open(&p, 0, 1, &o);
    vgt_write_once(&p, 1);
    for (unsigned k = 0; k < 2; k++) {
        vg_daemon_usage(host[k], &first[k]); /* with one connection */
    }
    for (unsigned i = 0; i < N_QPS; i++) {
        for (unsigned k = 0; k < 2; k++) {
            qp[k][i] = vg_qp_new(p.s[k].pd, p.s[k].scq, p.s[k].rcq, &o.qp);
        }
        vg_qp_connect(qp[0][i], qp[1][i], &c);
    }
    vgt_fill(VG_MR_HOST(p.s[0].mr, 0), LEN, 1);
    post_all(&p, qp[0], 1, 8);
    all_done(&p, 1);
    vg_daemon_usage(host[0], &before);
    for (unsigned k = 0; k < 2; k++) {
        vg_daemon_usage(host[k], &now);
        g_assert_cmpuint(now.threads, ==, first[k].threads);
        g_assert_cmpuint(now.fds, >=, first[k].fds + N_QPS);
    }
    relay_stall_from(relay, 0, true);
    post_all(&p, qp[0], EACH, LEN);
    /* It reads a little, now and then: who may go on stages more than is taken. */
    for (unsigned i = 0; i < 5; i++) {
        g_usleep(100000);
        relay_stall_from(relay, 0, false);
        relay_stall_from(relay, 0, true);
    }
    grown = vgt_settled_kib() - before.rss_anon_kib;
    g_test_message("%ld KiB for %u connections", grown, N_QPS);
    if (VGT_PLAIN_BUILD) {
        g_assert_cmpint(grown, >, N_QPS); /* there is something */
        g_assert_cmpint(grown, <, N_QPS * (CONN_KIB + SLACK_KIB));
    }
    vgt_expect_none(p.s[0].scq, 0);
    relay_stall_from(relay, 0, false);
    all_done(&p, EACH);
    vgt_check(VG_MR_HOST(p.s[1].mr, 0), LEN, 1);
    for (unsigned i = 0; i < N_QPS; i++) {
        vg_qp_free(qp[0][i]);
        vg_qp_free(qp[1][i]);
    }
    vgt_pair_close(&p);
    end();
}

int main(int argc, char **argv)
{
    vgt_init(&argc, &argv, 120);
    g_test_add_func("/hosts-full/unread", test_unread);
    return vgt_run();
}
