/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the daemon's figures are compared with, on the same processors: a cache
 * line between two threads, memcpy, and UCX and iperf3 between two processes.
 */
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"

/* ---- a cache line ---- */

static _Atomic int ball __attribute__((aligned(64))) = 1;
static _Atomic int ball_stop;

static gpointer bounce(gpointer data)
{
    pin_self(CPU_WORKER);
    while (!ball_stop) {
        if (ball == 1) {
            ball = 0;
        }
    }
    return NULL;
}

double cache_line_us(void)
{
    GThread *t = g_thread_new("bounce", bounce, NULL);
    GArray *a = g_array_new(FALSE, FALSE, sizeof(double));

    while (ball == 1) {
        g_usleep(1000); /* it begins on this processor */
    }
    for (unsigned i = 0; i < 100000; i++) {
        double start = now_us(), us;

        ball = 1;
        while (ball == 1) {
        }
        us = now_us() - start;
        g_array_append_val(a, us);
    }
    ball_stop = 1;
    g_thread_join(t);
    return percentiles(a).p50;
}

/* ---- memcpy ---- */

double memcpy_rate(struct vgt_pair *p, uint32_t len, uint64_t span)
{
    const uint8_t *src = VG_MR_HOST(p->s[0].mr, 0);
    uint8_t *dst = VG_MR_HOST(p->s[1].mr, 0);
    uint64_t n = 0, off = 0;
    int64_t start, ns;

    pin_self(CPU_WORKER);
    /* Once over all of it first: page tables, caches. */
    for (uint64_t i = 0; i < span; i += len) {
        memcpy(dst + i, src + i, len);
    }
    start = vg_now_ns();
    do {
        for (unsigned i = 0; i < 16; i++) {
            memcpy(dst + off, src + off, len);
            __asm__ volatile("" ::: "memory");
            off = off + len < span ? off + len : 0;
        }
        n += 16;
        ns = vg_now_ns() - start;
    } while (ns < (int64_t)(seconds * 1e9 / 4));
    pin_self(CPU_GUEST);
    return (double)n * len / ns;
}

/* ---- other programs ---- */

void say_missing_peers(void)
{
    static const struct {
        const char *program, *package;
    } peers[] = {{"iperf3", "iperf3"}, {"ucx_perftest", "ucx-utils"}};

    for (unsigned i = 0; i < G_N_ELEMENTS(peers); i++) {
        g_autofree char *path = g_find_program_in_path(peers[i].program);

        if (!path) {
            printf(
                "%s is not installed (Debian: %s): no figures of it, no ratios to it\n",
                peers[i].program, peers[i].package);
        }
    }
}

/* ---- UCX ---- */

struct ucx ucx_run(const char *transport, const char *test, uint32_t bytes,
                   unsigned count)
{
    char *cmd =
        g_strdup_printf("sh '%s/unpaced.sh' sh '%s/ucx.sh' %s %s %u %u", BENCH_SCRIPTS,
                        BENCH_SCRIPTS, transport, test, bytes, count);
    FILE *f = popen(cmd, "r");
    struct ucx u = {false};
    double mb = 0;

    if (f) {
        u.ok = fscanf(f, "%lf %lf %lf", &u.us, &mb, &u.rate) == 3;
        u.gbs = mb * MIB / 1e9;
        pclose(f);
    }
    g_free(cmd);
    return u;
}

/* ---- iperf3 ---- */

/* A number of the report; 0 if it is not there. */
static double member(JsonNode *report, const char *path)
{
    g_autoptr(JsonNode) found = json_path_query(path, report, NULL);
    JsonArray *a = found ? json_node_get_array(found) : NULL;

    return a && json_array_get_length(a) ? json_array_get_double_element(a, 0) : 0;
}

struct iperf iperf_run(uint32_t bytes, unsigned secs, unsigned cpu)
{
    g_autofree char *cmd =
        g_strdup_printf("sh '%s/unpaced.sh' sh '%s/iperf.sh' %u %u %u", BENCH_SCRIPTS,
                        BENCH_SCRIPTS, bytes, secs, cpu);
    g_autofree char *text = NULL;
    g_autoptr(JsonNode) report = NULL;
    struct iperf r = {0};
    double got, s, percent;

    if (g_spawn_command_line_sync(cmd, &text, NULL, NULL, NULL) && *text) {
        report = json_from_string(text, NULL);
    }
    if (report) {
        got = member(report, "$.end.sum_received.bytes");
        s = member(report, "$.end.sum_received.seconds");
        percent = member(report, "$.end.cpu_utilization_percent.host_total") +
                  member(report, "$.end.cpu_utilization_percent.remote_total");
        if (got > 0 && s > 0) {
            r = (struct iperf){got / s / 1e9, percent / 100 * s / (got / 1e9)};
        }
    }
    return r;
}
