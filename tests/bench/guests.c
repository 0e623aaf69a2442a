/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Two virtual guests at a daemon that somebody else has started, whose VMs vm0 and vm1
 * have the sockets DIR/vm0.sock and DIR/vm1.sock, and the addresses 10.0.0.1 and 10.0.0.2
 * of network "lan".  For comparing paths (tests/l1/demo_rnic.py).
 *
 *   bench-guests [-t SECONDS] [-p DIR] DIR PATH
 *
 * The figures of sends.h, SECONDS each, by default 0.5, when messages go by PATH, as
 * `pvrdmactl qp list` has it.
 *
 *   bench-guests [-p DIR] DIR
 *
 * Numbered messages until standard input ends, each of which has to arrive whole, in
 * order and once: "running", and at the end "sent N, arrived N".
 *
 * With -p vm1 is at another daemon, that of the other DIR.  Control sockets are
 * DIR/control.  Whatever fails ends it as it would a test.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "numbered.h"
#include "sends.h"

/* ---- figures ---- */

static void send_some(void *end, unsigned n, uint32_t len, unsigned slot)
{
    static const uint64_t data = 1;
    struct vgt_side *s = end;
    struct pvrdma_sge sge = vg_sge(s->mr, slot * SENDS_BYTES, len);
    struct vg_wr wr[SENDS_BATCH];

    for (unsigned i = 0; i < n; i++) {
        wr[i] = (struct vg_wr){.opcode = PVRDMA_WR_SEND, .nsge = 1, .sge = &sge};
        if (len == sizeof(data)) {
            wr[i].flags = PVRDMA_SEND_INLINE;
            wr[i].inline_data = &data;
            wr[i].inline_len = sizeof(data);
        }
    }
    wr[n - 1].flags |= PVRDMA_SEND_SIGNALED;
    g_assert_cmpuint(vg_post_send(s->qp, wr, n), ==, n);
}

static void receive_some(void *end, unsigned n, unsigned slot)
{
    struct vgt_side *s = end;
    struct pvrdma_sge sge = vg_sge(s->mr, slot * SENDS_BYTES, SENDS_BYTES);
    struct vg_wr wr[SENDS_BATCH];

    for (unsigned i = 0; i < n; i++) {
        wr[i] = (struct vg_wr){.nsge = 1, .sge = &sge};
    }
    g_assert_cmpuint(vg_post_recv(s->qp, wr, n), ==, n);
}

static unsigned take(struct vg_cq *cq)
{
    struct pvrdma_cqe c[SENDS_BATCH];
    int n = vg_cq_poll(cq, c, SENDS_BATCH);

    g_assert_cmpint(n, >=, 0);
    for (int i = 0; i < n; i++) {
        g_assert_cmpuint(c[i].status, ==, PVRDMA_WC_SUCCESS);
    }
    return (unsigned)n;
}

static unsigned sent(void *end)
{
    return take(((struct vgt_side *)end)->scq);
}

static unsigned received(void *end)
{
    return take(((struct vgt_side *)end)->rcq);
}

static const struct sends_ops ops = {send_some, receive_some, sent, received};

/* Sends a message, and looks which way it went, as `pvrdmactl qp list` has it. */
static bool goes_by(struct vg_daemon *d, struct vgt_pair *p, const char *path)
{
    g_autoptr(JsonNode) list = NULL;
    struct vg_qp *qp = p->s[0].qp;

    receive_some(&p->s[1], 1, 0);
    send_some(&p->s[0], 1, SENDS_SMALL, 0);
    vgt_expect(p->s[1].rcq, 0, PVRDMA_WC_SUCCESS);
    vgt_expect(p->s[0].scq, 0, PVRDMA_WC_SUCCESS);
    list = vg_ctl_json(d, "qp list vm%u", qp->g->index);
    return strcmp(json_object_get_string_member(vg_qp_row(list, qp->handle), "transport"),
                  path) == 0;
}

/* @d: of vm0, of vm1. */
static void measure(struct vg_daemon *const d[2], double seconds, const char *path)
{
    struct vgt_opts o = {
        .daemon = {d[0], d[1]},
        .guest = {{.db = VG_DB_EXT}, {.db = VG_DB_EXT}},
        .qp = {.send_wr = SENDS_DEPTH,
               .recv_wr = SENDS_DEPTH,
               .send_sge = 1,
               .recv_sge = 1,
               .max_inline = 2 * SENDS_SMALL},
        .cqe = 2 * SENDS_DEPTH,
        .mr_len = SENDS_SLOTS * SENDS_BYTES,
    };
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, &o);
    vgt_await(goes_by(d[0], &p, path)); /* its first messages may go another way */
    sends_measure(&ops, &p.s[0], &p.s[1], seconds);
    if (!goes_by(d[0], &p, path)) {
        g_error("the figures are not those of path %s alone", path);
    }
    vgt_pair_close(&p);
}

/* ---- traffic ---- */

static bool input_ended(void)
{
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    char c;

    return poll(&p, 1, 0) == 1 && read(STDIN_FILENO, &c, 1) <= 0;
}

static void send_numbered(struct vg_daemon *const d[2])
{
    struct vgt_opts o = {.daemon = {d[0], d[1]},
                         .guest = {{.db = VG_DB_EXT}, {.db = VG_DB_EXT}}};
    struct numbered n;
    uint64_t posted = 0;

    numbered_open(&n, 0, 1, PVRDMA_QPT_RC, false, &o);
    numbered_run(&n, 1);
    printf("running\n");
    fflush(stdout);
    while (!input_ended()) {
        numbered_run(&n, n.arrived + 20);
    }
    numbered_end(&n);
    for (unsigned q = 0; q < n.n_qps; q++) {
        posted += n.sent[q];
    }
    printf("sent %" PRIu64 ", arrived %" PRIu64 "\n", posted, n.arrived);
    fflush(stdout);
    numbered_close(&n);
}

static void daemon_in(struct vg_daemon *d, char *dir)
{
    *d = (struct vg_daemon){.n_vms = 2, .log = (char *)"/dev/null", .dir = dir};
    d->control = g_build_filename(dir, "control", NULL);
}

static int usage(void)
{
    fprintf(stderr, "usage: bench-guests [-t SECONDS] [-p DIR] DIR [PATH]\n");
    return 2;
}

int main(int argc, char **argv)
{
    struct vg_daemon own, other, *d[2] = {&own, &own};
    double seconds = 0.5;
    char *peer = NULL;
    int opt;

    while ((opt = getopt(argc, argv, "t:p:")) != -1) {
        if (opt == 't' && (seconds = atof(optarg)) > 0) {
            continue;
        }
        if (opt != 'p') {
            return usage();
        }
        peer = optarg;
    }
    if (argc - optind != 1 && argc - optind != 2) {
        return usage();
    }
    daemon_in(&own, argv[optind]);
    if (peer) {
        daemon_in(&other, peer);
        d[1] = &other;
    }
    if (argc - optind == 2) {
        measure(d, seconds, argv[optind + 1]);
    } else {
        send_numbered(d);
    }
    return 0;
}
