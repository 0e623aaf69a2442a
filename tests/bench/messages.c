/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Send a number of messages through a daemon, and nothing else: the load that
 * instructions.py counts instructions of.
 *
 *   bench-messages send|write|ud BYTES COUNT [log]
 *
 * Extended objects, batches of 64 of which the last is signalled, several batches in
 * flight, so that the worker always finds work; up to 64 bytes inline.  A worker that
 * has nothing to do sleeps at once, polling would be counted too.  COUNT is rounded up
 * to whole batches.  With "log" both VMs have a dirty log.
 */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>

#define BATCH   64u
#define BATCHES 8u
#define UD_QKEY 0x11111111u
#define LIMIT_S 500 /* under an instrumenting emulator everything is slow */

static void run(struct vgt_pair *p, uint32_t opcode, uint32_t bytes, uint64_t batches)
{
    static const uint8_t data[64] = {1};
    struct vgt_side *s = &p->s[0], *far = &p->s[1];
    bool ud = s->qp->opts.type == PVRDMA_QPT_UD;
    struct pvrdma_sge from = vg_sge(s->mr, 0, bytes);
    struct pvrdma_sge into = vg_sge(far->mr, 0, bytes + (ud ? PVRDMA_GRH_SIZE : 0));
    struct pvrdma_av av = vg_av(s->pd, 0, &far->g->gid);
    bool send = opcode == PVRDMA_WR_SEND;
    int64_t deadline = vg_now_ns() + LIMIT_S * 1000000000ll;
    struct vg_wr wr[BATCH], recv[BATCH];
    uint64_t posted = 0, done = 0, ready = 0, received = 0;

    for (unsigned i = 0; i < BATCH; i++) {
        wr[i] = (struct vg_wr){.opcode = opcode,
                               .remote_addr = far->mr->buf->va,
                               .rkey = far->mr->rkey,
                               .nsge = 1,
                               .sge = &from,
                               .av = ud ? &av : NULL,
                               .remote_qpn = far->qp->qpn,
                               .remote_qkey = UD_QKEY};
        recv[i] = (struct vg_wr){.nsge = 1, .sge = &into};
        if (bytes <= sizeof(data)) {
            wr[i].flags = PVRDMA_SEND_INLINE;
            wr[i].inline_data = data;
            wr[i].inline_len = bytes;
        }
    }
    wr[BATCH - 1].flags |= PVRDMA_SEND_SIGNALED;
    while (done < batches || (send && received < batches * BATCH)) {
        if (send && ready < batches && ready * BATCH < received + BATCHES * BATCH) {
            g_assert_cmpuint(vg_post_recv(far->qp, recv, BATCH), ==, BATCH);
            ready++;
        }
        if (posted < batches && posted < done + BATCHES && (!send || posted < ready)) {
            g_assert_cmpuint(vg_post_send(s->qp, wr, BATCH), ==, BATCH);
            posted++;
        }
        done += reap(s->scq);
        received += send ? reap(far->rcq) : 0;
        if (vg_now_ns() > deadline) {
            g_error("%" PRIu64 " of %" PRIu64 " batches after %d s", done, batches,
                    LIMIT_S);
        }
    }
}

int main(int argc, char **argv)
{
    struct vg_daemon_opts d = {.n_vms = 2, .workers = 1, .poll_us = 0};
    struct vgt_opts o = {
        .guest = {{.db = VG_DB_EXT}, {.db = VG_DB_EXT}},
        .qp = {.send_wr = 1024, .recv_wr = 1024, .send_sge = 1, .recv_sge = 1},
        .cqe = 2048};
    bool log = argc == 5 && strcmp(argv[4], "log") == 0;
    uint32_t bytes = argc == 4 || log ? atoi(argv[2]) : 0;
    uint64_t count = argc == 4 || log ? strtoull(argv[3], NULL, 10) : 0;
    struct vgt_pair p;
    bool ud;

    if (!bytes || bytes > MIB || !count ||
        (strcmp(argv[1], "send") && strcmp(argv[1], "write") && strcmp(argv[1], "ud"))) {
        fprintf(stderr, "usage: bench-messages send|write|ud BYTES COUNT [log]\n");
        return 2;
    }
    o.qp.max_inline = bytes <= 64 ? 64 : 0;
    vgt_daemon = vg_daemon_start(&d);
    ud = strcmp(argv[1], "ud") == 0;
    o.qp.type = ud ? PVRDMA_QPT_UD : PVRDMA_QPT_RC;
    o.unconnected = ud;
    vgt_pair_open(&p, 0, 1, &o);
    for (unsigned i = 0; ud && i < 2; i++) {
        vg_ud_to_rts(p.s[i].qp, UD_QKEY);
    }
    for (unsigned i = 0; log && i < 2; i++) {
        start_log(p.s[i].g);
    }
    run(&p, strcmp(argv[1], "write") ? PVRDMA_WR_SEND : PVRDMA_WR_RDMA_WRITE, bytes,
        (count + BATCH - 1) / BATCH);
    vgt_pair_close(&p);
    vg_daemon_stop(vgt_daemon);
    return 0;
}
