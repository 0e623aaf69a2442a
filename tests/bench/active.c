/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What a message costs the daemon on many connections, in processor time, of two daemons
 * beside each other: for changes to transport `tcp` on a machine that does other things.
 *
 *   bench-active [-p PATH] [-r ROUNDS] BASE NEW write|read BYTES CONNECTIONS BURST
 *
 * Both daemons run, each with two VMs and CONNECTIONS between these.  A round of one
 * posts some times BURST messages on each, waits until all are complete, and takes what
 * the daemon's threads ran; then comes the other.  Workers that have nothing to do sleep
 * at once.  Printed: the medians of the rounds, and of the ratios within them.  PID_FILE
 * in the environment: where to write the daemons' process IDs, for a profiler.
 */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define BURST_MAX 64u
#define CONNS_MAX 4096u
#define WARM      3u
#define LIMIT_S   60
#define IN_FLIGHT 1024u /* bursts, at most */
#define PER_QP    64u   /* of them */

struct side {
    struct vg_daemon *daemon;
    struct vgt_pair p;
    struct vg_qp *qp[CONNS_MAX], *far[CONNS_MAX];
    double *us;
};

static unsigned conns, burst, bytes;
static unsigned turns; /* bursts of a connection in a round */
static uint32_t opcode;

static double cpu_us(const struct side *d)
{
    struct timespec t;
    clockid_t clock;

    g_assert_cmpint(clock_getcpuclockid(d->daemon->pid, &clock), ==, 0);
    g_assert_cmpint(clock_gettime(clock, &t), ==, 0);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void open_side(struct side *d, const char *daemon, const char *key)
{
    struct vg_daemon_opts o = {
        .n_vms = 2, .workers = 1, .poll_us = 0, .daemon_keys = key};
    struct vg_qp_opts q = {.send_wr = turns * burst,
                           .recv_wr = 2,
                           .send_sge = 1,
                           .recv_sge = 1,
                           .max_inline = bytes <= 16 ? 16 : 0,
                           .contig = true};
    struct vgt_opts po = {.cqe = 4096, .mr_len = 2 * MIB};

    g_setenv("PVRDMAD", daemon, TRUE);
    d->daemon = vgt_daemon = vg_daemon_start(&o);
    pin_daemon(vgt_daemon, CPU_GUEST);
    for (unsigned i = 0; i < 2; i++) {
        po.guest[i] = (struct vg_opts){.db = VG_DB_EXT, .low_size = 256 << 20};
    }
    vgt_pair_open(&d->p, 0, 1, &po);
    for (unsigned i = 0; i < conns; i++) {
        struct vgt_side *s = d->p.s;

        d->qp[i] = vg_qp_new(s[0].pd, s[0].scq, s[0].rcq, &q);
        d->far[i] = vg_qp_new(s[1].pd, s[1].scq, s[1].rcq, &q);
        vg_qp_connect(d->qp[i], d->far[i], NULL);
    }
}

static double round_us(struct side *d)
{
    struct vgt_side *s = d->p.s;
    struct pvrdma_sge sge = vg_sge(s[0].mr, 0, bytes);
    static const uint64_t data[2] = {1};
    unsigned posted = 0, done = 0, all = turns * conns;
    struct vg_wr wr[BURST_MAX];
    int64_t start = vg_now_ns();
    double cpu;

    for (unsigned i = 0; i < burst; i++) {
        wr[i] = vg_wr_to(0, opcode, 0, &sge, s[1].mr, 0);
        if (bytes <= 16 && opcode == PVRDMA_WR_RDMA_WRITE) {
            wr[i].flags = PVRDMA_SEND_INLINE;
            wr[i].inline_data = data;
            wr[i].inline_len = bytes;
        }
    }
    wr[burst - 1].flags |= PVRDMA_SEND_SIGNALED;
    cpu = cpu_us(d);
    while (done < all) {
        unsigned n;

        for (; posted < all && posted < done + IN_FLIGHT; posted++) {
            g_assert_cmpuint(vg_post_send(d->qp[posted % conns], wr, burst), ==, burst);
        }
        n = reap(s[0].scq);
        done += n;
        if (!n) {
            usleep(20);
        }
        g_assert_cmpint(vg_now_ns() - start, <, LIMIT_S * 1000000000ll);
    }
    return (cpu_us(d) - cpu) / all / burst;
}

static void close_side(struct side *d)
{
    for (unsigned i = 0; i < conns; i++) {
        vg_qp_free(d->qp[i]);
        vg_qp_free(d->far[i]);
    }
    vgt_pair_close(&d->p);
    vg_daemon_stop(d->daemon);
    g_free(d->us);
}

static void tell_pids(const struct side *d)
{
    const char *file = getenv("PID_FILE");
    g_autofree char *pids =
        g_strdup_printf("%d %d\n", (int)d[0].daemon->pid, (int)d[1].daemon->pid);

    if (file && !g_file_set_contents(file, pids, -1, NULL)) {
        g_error("%s: cannot be written", file);
    }
}

int main(int argc, char **argv)
{
    g_autofree char *key = NULL;
    unsigned rounds = 40;
    struct side *d = g_new0(struct side, 2);
    double *ratio, base, new;
    int opt;

    path = "tcp";
    while ((opt = getopt(argc, argv, "p:r:")) != -1) {
        if (opt == 'p') {
            path = optarg;
        } else {
            rounds = opt == 'r' ? (unsigned)atoi(optarg) : 0;
        }
    }
    argv += optind;
    if (argc - optind == 6) {
        opcode = strcmp(argv[2], "read") ? PVRDMA_WR_RDMA_WRITE : PVRDMA_WR_RDMA_READ;
        bytes = (uint32_t)atoi(argv[3]);
        conns = (unsigned)atoi(argv[4]);
        burst = (unsigned)atoi(argv[5]);
    }
    if (!rounds || !bytes || bytes > MIB || !conns || conns > CONNS_MAX || !burst ||
        burst > BURST_MAX) {
        fprintf(stderr, "usage: bench-active [-p PATH] [-r ROUNDS] BASE NEW write|read "
                        "BYTES CONNECTIONS BURST\n");
        return 2;
    }
    turns = MIN(PER_QP, MAX(2, IN_FLIGHT / conns));
    key = g_strdup_printf("path=%s", path);
    for (unsigned i = 0; i < 2; i++) {
        open_side(&d[i], argv[i], key);
        d[i].us = g_new(double, rounds);
    }
    pin_self(CPU_GUEST);
    tell_pids(d);
    ratio = g_new(double, rounds);
    for (unsigned i = 0; i < rounds + WARM; i++) {
        double us[2];

        for (unsigned k = 0; k < 2; k++) {
            us[(k + i) % 2] = round_us(&d[(k + i) % 2]);
        }
        if (i >= WARM) {
            d[0].us[i - WARM] = us[0];
            d[1].us[i - WARM] = us[1];
            ratio[i - WARM] = us[1] / us[0];
        }
    }
    base = median(d[0].us, rounds);
    new = median(d[1].us, rounds);
    printf(
        "%s %u bytes, %u connections, %u each: base %.3f us, new %.3f us (%.3f; within "
        "rounds %.3f)\n",
        argv[2], bytes, conns, burst, base, new, new / base, median(ratio, rounds));
    close_side(&d[0]);
    close_side(&d[1]);
    g_free(ratio);
    g_free(d);
    return 0;
}
