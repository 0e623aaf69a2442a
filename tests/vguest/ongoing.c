/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * ongoing DIR [VM DIR VM]: traffic between two virtual guests, at DIR/vm0.sock and
 * DIR/vm1.sock of a daemon that somebody else has started, or at such a socket of either
 * of two daemons, until standard input ends.
 *
 * It prints "running" when the first operations are done, and at the end a line of JSON:
 * the operations, and the longest time in microseconds in which nothing was completed.
 * Whatever fails, or comes late (VGT_WAIT_MS), ends it as it would a test.
 *
 * The one guest posts with doorbells in memory; the other one's doorbells are register
 * accesses that wait for their answer, so they meet a daemon that is not there.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "vgtest.h"

static bool input_ended(void)
{
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    char c;

    return poll(&p, 1, 0) == 1 && read(STDIN_FILENO, &c, 1) <= 0;
}

int main(int argc, char **argv)
{
    struct vg_daemon d[2] = {{.log = (char *)"/dev/null"}, {.log = (char *)"/dev/null"}};
    struct vgt_opts o = {.daemon = {&d[0], &d[1]},
                         .guest = {{.db = VG_DB_SHARED}, {.db = VG_DB_REPLY}}};
    struct vgt_traffic *t = g_new0(struct vgt_traffic, 1);
    unsigned vm[2] = {0, 1};

    if (argc != 2 && argc != 5) {
        fprintf(stderr, "usage: %s DIR [VM DIR VM]\n", argv[0]);
        return 2;
    }
    for (unsigned i = 0; i < 2; i++) {
        d[i].dir = argv[argc == 5 ? 1 + 2 * i : 1];
        vm[i] = argc == 5 ? (unsigned)strtoul(argv[2 + 2 * i], NULL, 10) : i;
        d[i].n_vms = vm[i] + 1;
    }
    vgt_traffic_open(t, vm[0], vm[1], 4, 8, 100000, &o);
    vgt_traffic_run(t, 20);
    t->still_ns = 0; /* of the restarts only */
    printf("running\n");
    fflush(stdout);
    while (!input_ended()) {
        vgt_traffic_run(t, 20);
    }
    vgt_traffic_run(t, 20);
    printf("{\"operations\": %" PRIu64 ", \"still_us\": %" PRIi64 "}\n", t->ops,
           t->still_ns / 1000);
    fflush(stdout);
    vgt_traffic_close(t); /* its commands are answered, too */
    g_free(t);
    return 0;
}
