/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Part "network" of bench: the path to other hosts (`-p`), between two guests of one
 * daemon, beside what others make of the same loopback: iperf3, one stream, and UCX over
 * TCP.  Bandwidth is in turns with the peers', medians; with it goes processor time for a
 * gigabyte, the daemon's and that of both of iperf3's processes.  Who posts and polls is
 * not counted, nor does iperf3 look at its data.  The peers have two processors, the
 * worker one: beside it is what iperf3 does on one.
 *
 * Then what bringing up many connections costs the daemon, until each has carried
 * a message, beside as many commands that do nothing.  The worker sleeps at once then: on
 * a machine with nothing else to do it would spend more on polling, while others connect,
 * than connecting takes.
 */
#include "bench.h"

#include <stdio.h>
#include <time.h>

#define ROUNDS    3u
#define CONNS     4096u
#define AIM_CONNS 400.0 /* ms */

double daemon_cpu(void)
{
    struct timespec t;
    clockid_t clock;

    g_assert_cmpint(clock_getcpuclockid(vgt_daemon->pid, &clock), ==, 0);
    g_assert_cmpint(clock_gettime(clock, &t), ==, 0);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- bandwidth ---- */

/* A peer's figure, ours over it, and the aim for that; nothing if the peer is missing. */
static void compare(const char *peer, double ours, double theirs, double aim)
{
    if (theirs > 0) {
        printf("   %s %6.2f GB/s (%.2f; aim %.1f: %s)", peer, theirs, ours / theirs, aim,
               ours / theirs >= aim ? "met" : "missed");
    }
}

static void bandwidth(struct vgt_pair *p, const char *what, uint32_t len,
                      double iperf_aim, unsigned ucx_count)
{
    double wr[ROUNDS], ip[ROUNDS], one[ROUNDS], ucx[ROUNDS], cpu[ROUNDS], ip_cpu[ROUNDS],
        w;

    for (unsigned i = 0; i < ROUNDS; i++) {
        unsigned secs = (unsigned)MAX(seconds / 2, 1);
        struct iperf peer = iperf_run(len, secs, 1);
        int64_t bytes;
        double busy;

        ip[i] = peer.gbs;
        ip_cpu[i] = peer.cpu_s;
        one[i] = iperf_run(len, secs, 0).gbs;
        bytes = vgt_counter("vm0", "datapath", "tx_bytes");
        busy = daemon_cpu();
        wr[i] = stream_rate(p, PVRDMA_WR_RDMA_WRITE, len, len);
        busy = daemon_cpu() - busy;
        bytes = vgt_counter("vm0", "datapath", "tx_bytes") - bytes;
        cpu[i] = busy / ((double)bytes / 1e9);
        ucx[i] = ucx_run("tcp", "tag_bw", len, ucx_count).gbs;
    }
    w = median(wr, ROUNDS);
    printf("%s %6.2f GB/s", what, w);
    compare("iperf3", w, median(ip, ROUNDS), iperf_aim);
    compare("UCX tag_bw", w, median(ucx, ROUNDS), 1);
    printf("\n  processor time for a GB: %.3f s", median(cpu, ROUNDS));
    if (median(ip, ROUNDS) > 0) {
        printf(", iperf3's %.3f s", median(ip_cpu, ROUNDS));
    }
    if (median(one, ROUNDS) > 0) {
        printf("; iperf3 on one processor %.2f GB/s (%.2f)", median(one, ROUNDS),
               w / median(one, ROUNDS));
    }
    printf("\n");
    fflush(stdout);
}

/* ---- small messages ---- */

static void latency(void)
{
    struct vgt_opts o = {
        .guest = {{.db = VG_DB_EXT}, {.db = VG_DB_EXT}},
        .qp = {.max_inline = 128, .send_sge = 1, .recv_sge = 1},
    };
    double us[ROUNDS], ucx[ROUNDS], u;
    struct vgt_pair p;

    for (unsigned i = 0; i < ROUNDS; i++) {
        ucx[i] = ucx_run("tcp", "tag_lat", 8, 50000).us;
        vgt_pair_open(&p, 0, 1, &o);
        op_latency(&p, PVRDMA_WR_SEND, 30000); /* the worker polls by then */
        us[i] = op_latency(&p, PVRDMA_WR_SEND, 50000).p50;
        vgt_pair_close(&p);
    }
    u = median(us, ROUNDS);
    printf("SEND,  8 bytes: p50 %6.2f us", u);
    if (median(ucx, ROUNDS) > 0) {
        double ratio = u / median(ucx, ROUNDS);

        printf("   UCX tag_lat %6.2f us (%.2f; aim at most 1.2: %s)", median(ucx, ROUNDS),
               ratio, ratio <= 1.2 ? "met" : "missed");
    }
    printf("\n");
}

static void rate(void)
{
    double r = message_rate(PVRDMA_QPT_RC, PVRDMA_WR_SEND);

    printf("SEND,  8 bytes: %6.2f M messages/s of one worker (aim 0.5: %s)\n", r / 1e6,
           r >= 500e3 ? "met" : "missed");
    fflush(stdout);
}

/* ---- connections ---- */

/* From INIT. */
static void connect_two(struct vg_qp *qp[2])
{
    for (unsigned i = 0; i < 2; i++) {
        const struct vg_qp *far = qp[1 - i];

        vg_qp_to_rtr(qp[i], &far->g->gid, far->qpn, 1, NULL);
    }
    for (unsigned i = 0; i < 2; i++) {
        vg_qp_to_rts(qp[i], 1, NULL);
    }
}

/* What as many commands cost as take CONNS connections from INIT to RTS; ms. */
static double commands_ms(struct vguest *g)
{
    double cpu = daemon_cpu();

    for (unsigned i = 0; i < 4 * CONNS; i++) {
        struct pvrdma_port_attr a;

        g_assert_cmpint(vg_query_port(g, 1, &a), ==, 0);
    }
    return (daemon_cpu() - cpu) * 1e3;
}

static void connections(void)
{
    struct vg_qp_opts small = {
        .send_wr = 2, .recv_wr = 2, .send_sge = 1, .recv_sge = 1, .contig = true};
    struct vg_qp **qp = g_new(struct vg_qp *, 2 * CONNS);
    struct vgt_opts o = {.cqe = 2 * CONNS};
    struct vgt_pair p;
    double none, all;

    for (unsigned i = 0; i < 2; i++) {
        o.guest[i] = (struct vg_opts){.db = VG_DB_EXT, .low_size = 256 << 20};
    }
    vgt_pair_open(&p, 0, 1, &o);
    for (unsigned i = 0; i < 2 * CONNS; i++) {
        struct vgt_side *s = &p.s[i % 2];

        qp[i] = vg_qp_new(s->pd, s->scq, s->rcq, &small);
        vg_qp_to_init(qp[i], NULL);
    }
    none = commands_ms(p.s[0].g);
    all = daemon_cpu();
    for (unsigned i = 0; i < 2 * CONNS; i += 2) {
        connect_two(&qp[i]);
    }
    for (unsigned i = 0; i < 2 * CONNS; i += 2) {
        g_assert_true(vgt_post_write(&p, qp[i], i));
    }
    for (unsigned done = 0; done < CONNS;) {
        done += reap(p.s[0].scq);
    }
    all = (daemon_cpu() - all) * 1e3;
    printf("%u connections, until each has carried a message: %.0f ms of the daemon's "
           "processor time, %.0f more than as many commands that do nothing (aim at most "
           "%.0f: %s)\n",
           CONNS, all, all - none, AIM_CONNS, all - none <= AIM_CONNS ? "met" : "missed");
    for (unsigned i = 0; i < 2 * CONNS; i++) {
        vg_qp_free(qp[i]);
    }
    g_free(qp);
    vgt_pair_close(&p);
}

/* ---- the parts ---- */

void part_network_bulk(void)
{
    struct vgt_opts o = {.qp = {.send_wr = 16, .send_sge = 1}, .mr_len = 2 * MIB};
    struct vgt_pair p;

    for (unsigned i = 0; i < 2; i++) {
        o.guest[i] = (struct vg_opts){.db = VG_DB_EXT};
    }
    printf("peers: TCP over loopback, not paced either\n");
    vgt_pair_open(&p, 0, 1, &o);
    bandwidth(&p, "WRITE, 64 KiB:", SLICE, 0.9, 20000);
    bandwidth(&p, "WRITE,  1 MiB:", MIB, 0.7, 2000);
    vgt_pair_close(&p);
}

void part_network_small(void)
{
    latency();
    rate();
}

void part_network_connections(void)
{
    connections();
}
