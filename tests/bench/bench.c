/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Benchmarks of the daemon with virtual guests: its own figures, without a VM's
 * exits and interrupts.  Every figure comes with a peer measured in the same
 * run, since absolute numbers do not carry from one machine to another.
 *
 *   latency     8-byte SEND, WRITE, READ; peers: a cache line, UCX
 *   rate        8-byte SENDs and WRITEs a second; peers: UCX, and a private receive
 *               queue of a shared one
 *   qps         8-byte WRITEs a second over 1 to 10,000 active QPs
 *   bandwidth   WRITE and READ; peers: memcpy, UCX
 *   isolation   8-byte WRITE latency of one pair, alone and while another pair
 *               streams 1 MiB WRITEs on 16 QPs over the same worker; the aim is
 *               at most one slice's copy and 20 us more at p99
 *   keys        worker time of a fast registration of 1 MiB and its invalidation
 *   regions     main thread's time for memory regions of gigabytes; peer: memcpy
 *   connections set up and taken down as RDMA CM does it; peer: empty commands
 *   idle        8-byte WRITE latency alone and among 4,000 idle QPs
 *   network     the path to other hosts; peers: iperf3 and UCX over loopback; in pieces:
 *               network-bulk, -small, -active, -connections
 *   dirty-log   what it costs traffic; one look at it, by messages and shared
 *   migration   blackout of a guest that moves with its connections, by its parts
 *   restart     how long guests stand still while the daemon is replaced
 *
 *   bench [-t SECONDS] [-p PATH] [PART...]    default: all parts, 2 seconds each
 *
 * PATH is the daemon's transport between its VMs, key `path`; by default `copy`.
 *
 * The guests use the device's extensions, as our own driver and library do.
 * Not part of the test suites: run it on an idle machine.
 */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- main ---- */

static const struct {
    const char *name;
    void (*run)(void);
    int poll_us; /* -1: as long as a daemon polls by itself */
} parts[] = {
    {"latency", part_latency, -1},
    {"rate", part_rate, -1},
    {"qps", part_qps, -1},
    {"bandwidth", part_bandwidth, -1},
    {"isolation", part_isolation, -1},
    {"idle", part_idle, -1},
    {"keys", part_keys, -1},
    {"regions", part_regions, -1},
    {"connections", part_connections, -1},
    {"network-bulk", part_network_bulk, -1},
    {"network-small", part_network_small, -1},
    {"network-active", part_network_active, -1},
    {"network-connections", part_network_connections, 0},
    {"dirty-log", part_dirty_log, 0},
    {"migration", part_migration, -1},
    {"restart", part_restart, -1},
};

/* By its name, or as a piece of "network". */
static bool wanted(const char *part, int argc, char **argv)
{
    bool yes = optind == argc;

    for (int i = optind; i < argc; i++) {
        yes = yes || strcmp(argv[i], part) == 0 ||
              (strcmp(argv[i], "network") == 0 && g_str_has_prefix(part, "network-"));
    }
    return yes;
}

int main(int argc, char **argv)
{
    struct vg_daemon_opts o = {.n_vms = 4, .workers = 1};
    g_autofree char *key = NULL;
    int opt;

    while ((opt = getopt(argc, argv, "t:p:")) != -1) {
        if (opt == 'p') {
            path = optarg;
            g_free(key);
            o.daemon_keys = key = g_strdup_printf("path=%s", path);
        } else if (opt != 't' || (seconds = atof(optarg)) <= 0) {
            fprintf(stderr, "usage: bench [-t SECONDS] [-p PATH] [PART...]\n");
            return 2;
        }
    }
    printf("%ld processors, one worker, path=%s\n", sysconf(_SC_NPROCESSORS_ONLN), path);
    say_missing_peers();
    for (unsigned i = 0; i < G_N_ELEMENTS(parts); i++) {
        if (wanted(parts[i].name, argc, argv)) {
            o.poll_us = parts[i].poll_us;
            vgt_daemon = vg_daemon_start(&o);
            pin_daemon(vgt_daemon, CPU_GUEST);
            pin_self(CPU_GUEST);
            printf("\n== %s\n", parts[i].name);
            fflush(stdout);
            parts[i].run();
            vg_daemon_stop(vgt_daemon);
        }
    }
    printf("\n");
    say_missing_peers(); /* who has waited for it all sees the end */
    return 0;
}
