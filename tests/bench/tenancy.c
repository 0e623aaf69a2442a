/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Benchmark of tenants: what one VM's work costs another VM of the same daemon.
 *
 *   data        8-byte operations of one pair of VMs, one at a time, beside each of
 *               a table of aggressors: large and small, contiguous and random, in
 *               pieces, atomics, receivers that are not ready, timers, failing
 *               completion queues, pulses, idle VMs
 *   commands    registering and deregistering 4 KiB, beside other VMs' commands,
 *               deaths and memory
 *   shares      worker time of two and three busy pairs with different shares
 *
 *   bench-tenancy [-t SECONDS] [--gib N] [--long] [--send] [--list] [PART|ROW...]
 *
 * Default: all parts, without the rows that take long.  Every row has a daemon of
 * its own, and what the victim sees alone is measured before and after, in the same
 * run: ratios and differences are against the mean of the two, marked "~" when they
 * differ by more than a third.  Aims are reported, never enforced; "noisy" where the
 * victim alone already waits for other programs.
 *
 * An aggressor is one VM (pair).  Its rings are filled beforehand and topped up by
 * the victim's own thread between its operations, which takes no time that counts;
 * so two processors do.
 */
#include "tenancy.h"

#include <getopt.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

volatile gint tenancy_stop;
bool tenancy_long;
unsigned tenancy_exit_gib = 3;
struct flood tenancy_flood;

struct tail tail_of(GArray *us)
{
    struct tail t = {.n = us->len};

    for (unsigned i = 0; i < us->len; i++) {
        t.max = MAX(t.max, g_array_index(us, double, i));
    }
    if (us->len) {
        t.p50 = vgt_percentile(us, 50);
        t.p99 = vgt_percentile(us, 99);
        t.p999 = vgt_percentile(us, 99.9);
    }
    g_array_unref(us);
    return t;
}

void tenancy_daemon(unsigned idle_vms, const char *const *keys)
{
    struct vg_daemon_opts o = {
        .n_vms = VM_IDLE + idle_vms, .workers = 1, .poll_us = -1, .keys = keys};

    vgt_daemon = vg_daemon_start(&o);
    pin_daemon(vgt_daemon, CPU_GUEST);
    pin_self(CPU_GUEST);
}

/* ---- aggressors ---- */

static bool flooding;

void aggressor_open(const struct aggressor *a)
{
    g_atomic_int_set(&tenancy_stop, 0);
    flooding = a->shape != NULL;
    if (flooding) {
        flood_open(&tenancy_flood, VM_AGGRESSOR,
                   a->loopback ? VM_AGGRESSOR : VM_AGGRESSOR_PEER, a->shape);
    }
    if (a->open) {
        a->open(a);
    }
}

void aggressor_close(const struct aggressor *a)
{
    if (a->close) {
        a->close();
    }
    if (flooding) {
        flood_close(&tenancy_flood);
    }
}

static int64_t plus(int64_t a, int64_t b)
{
    return a < 0 || b < 0 ? MAX(a, b) : a + b;
}

void charge_now(struct charge *c)
{
    JsonNode *all = vg_daemon_counters(vgt_daemon);

    *c = (struct charge){vg_now_ns(), -1, -1, -1};
    for (unsigned i = VM_AGGRESSOR; i <= VM_AGGRESSOR_PEER; i++) {
        g_autofree char *name = g_strdup_printf("vm%u", i);
        JsonObject *vm = vg_status_vm(all, name);

        c->worker_ns = plus(c->worker_ns, flood_counter(vm, "worker_ns"));
        c->messages = plus(c->messages, flood_counter(vm, "tx_messages"));
        c->bytes = plus(c->bytes, flood_counter(vm, "tx_bytes"));
    }
    json_node_unref(all);
}

char *charge_text(const struct charge *from, const struct charge *to)
{
    double ns = to->at - from->at;
    g_autofree char *share = NULL;

    if (from->worker_ns >= 0 && to->worker_ns >= from->worker_ns) {
        share = g_strdup_printf("%3.0f %%", (to->worker_ns - from->worker_ns) * 100 / ns);
    }
    if (from->messages < 0 || to->messages < from->messages) {
        return g_strdup_printf("%5s", share ? share : "-");
    }
    return g_strdup_printf("%5s %6.2f %6.2f", share ? share : "-",
                           (to->messages - from->messages) * 1e3 / ns,
                           (to->bytes - from->bytes) / ns);
}

/* ---- selection ---- */

static bool named(const char *name, const char *const *names, unsigned n_names)
{
    for (unsigned i = 0; i < n_names; i++) {
        if (!strcmp(names[i], name)) {
            return true;
        }
    }
    return false;
}

static unsigned rows_run;

bool row_wanted(const struct aggressor *a, const char *part, const char *const *names,
                unsigned n_names)
{
    bool wanted = !n_names || named(part, names, n_names);

    wanted =
        named(a->name, names, n_names) || (wanted && (!a->only_long || tenancy_long));
    rows_run += wanted;
    return wanted;
}

void list_rows(const char *part, const struct aggressor *a, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        printf("%-10s %-18s %s%s\n", part, a[i].name, a[i].what,
               a[i].only_long ? " (--long)" : "");
    }
}

/* Many guests in one process; what the daemon may open follows from it. */
static void raise_limits(void)
{
    struct rlimit r;

    if (getrlimit(RLIMIT_NOFILE, &r) == 0) {
        r.rlim_cur = r.rlim_max;
        setrlimit(RLIMIT_NOFILE, &r);
    }
}

/* Two threads that spin at a real-time priority are stopped for 50 ms each second,
 * and the longest times say just that. */
static void warn_of_throttling(void)
{
    g_autofree char *text = NULL;

    if (sched_getscheduler(0) != SCHED_OTHER &&
        g_file_get_contents("/proc/sys/kernel/sched_rt_runtime_us", &text, NULL, NULL) &&
        atoi(text) > 0) {
        printf("real-time threads are throttled: for maxima that mean something, "
               "sysctl kernel.sched_rt_runtime_us=-1\n");
    }
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"long", no_argument, NULL, 'l'},
                                            {"gib", required_argument, NULL, 'g'},
                                            {"send", no_argument, NULL, 's'},
                                            {"list", no_argument, NULL, 'L'},
                                            {NULL, 0, NULL, 0}};
    uint32_t opcode = PVRDMA_WR_RDMA_WRITE;
    const char *const *names;
    unsigned n_names;
    int opt;

    seconds = 1;
    while ((opt = getopt_long(argc, argv, "t:", options, NULL)) != -1) {
        if (opt == 'l') {
            tenancy_long = true;
        } else if (opt == 's') {
            opcode = PVRDMA_WR_SEND;
        } else if (opt == 'L') {
            data_list();
            commands_list();
            printf("shares\n");
            return 0;
        } else if (opt == 'g' && atoi(optarg) > 0 &&
                   atoi(optarg) <= (int)TENANCY_MAX_GIB) {
            tenancy_exit_gib = atoi(optarg);
        } else if (opt != 't' || (seconds = atof(optarg)) <= 0) {
            fprintf(stderr, "usage: bench-tenancy [-t SECONDS] [--gib N] [--long] "
                            "[--send] [--list] [PART|ROW...]\n");
            return 2;
        }
    }
    names = (const char *const *)argv + optind;
    n_names = argc - optind;
    raise_limits();
    printf("%ld processors, one worker, %g s for each row\n",
           sysconf(_SC_NPROCESSORS_ONLN), seconds);
    warn_of_throttling();
    part_data(names, n_names, opcode);
    part_commands(names, n_names);
    if (!n_names || named("shares", names, n_names)) {
        part_shares();
        rows_run++;
    }
    if (!rows_run) {
        fprintf(stderr, "bench-tenancy: no such part or row; --list shows them\n");
        return 2;
    }
    return 0;
}
