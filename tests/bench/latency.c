/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Latency: one thread posts on virtual guest A and polls B's completion queue,
 * so "one way" is a SEND's time from post to the receiver's completion.  Then
 * the same beside other traffic (isolation) and beside idle queue pairs (idle).
 */
#include <stdio.h>

#include "bench.h"

#define IDLE_QPS 4000
#define COUNT    1000000u

static const struct vgt_opts ext_opts = {
    .guest = {{.db = VG_DB_EXT}, {.db = VG_DB_EXT}},
    .qp = {.max_inline = 128, .send_sge = 1, .recv_sge = 1},
};

static struct figures write_latency(struct vgt_pair *p)
{
    return op_latency(p, PVRDMA_WR_RDMA_WRITE, (unsigned)(seconds * COUNT / 4));
}

void part_latency(void)
{
    double line = cache_line_us();
    struct ucx ucx = ucx_run("posix", "tag_lat", 8, COUNT);
    struct figures send;
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, &ext_opts);
    send = op_latency(&p, PVRDMA_WR_SEND, COUNT);
    print_latency("SEND, 8 bytes, to receiver's CQE", send);
    print_latency("WRITE, 8 bytes, to completion", write_latency(&p));
    print_latency("READ, 8 bytes, to completion",
                  op_latency(&p, PVRDMA_WR_RDMA_READ, COUNT / 2));
    vgt_pair_close(&p);
    vgt_pair_open(&p, 0, 1, NULL);
    print_latency("SEND, stock objects", op_latency(&p, PVRDMA_WR_SEND, COUNT / 2));
    vgt_pair_close(&p);
    printf("a cache line there and back: %.2f us; a SEND takes %.1f times that\n", line,
           send.p50 / line);
    if (ucx.ok) {
        printf("UCX tag_lat, 8 bytes: p50 %.2f us; a SEND takes %.1f times that\n",
               ucx.us, send.p50 / ucx.us);
    }
}

/* ---- isolation ---- */

#define LOAD_QPS 16
#define LOAD_WR  1024u /* 16 GiB on 16 QPs: seldom to be refilled */

struct load {
    struct vgt_pair p;
    struct vg_qp *qp[LOAD_QPS], *far[LOAD_QPS];
    _Atomic bool stop;
};

static void load_open(struct load *l)
{
    struct vg_qp_opts o = {.send_wr = LOAD_WR, .sq_sig_all = true};

    vgt_pair_open(&l->p, 0, 1,
                  &(struct vgt_opts){.cqe = LOAD_QPS * LOAD_WR, .mr_len = MIB});
    for (unsigned i = 0; i < LOAD_QPS; i++) {
        struct vgt_side *s = l->p.s;

        l->qp[i] = vg_qp_new(s[0].pd, s[0].scq, s[0].rcq, &o);
        l->far[i] = vg_qp_new(s[1].pd, s[1].scq, s[1].rcq, NULL);
        vg_qp_connect(l->qp[i], l->far[i], NULL);
    }
    l->stop = false;
}

static void load_close(struct load *l)
{
    for (unsigned i = 0; i < LOAD_QPS; i++) {
        vg_qp_free(l->qp[i]);
        vg_qp_free(l->far[i]);
    }
    vgt_pair_close(&l->p);
}

/* Keeps 16 rings filled without taking a processor. */
static gpointer load_thread(gpointer data)
{
    struct load *l = data;
    struct vgt_side *s = l->p.s;
    struct pvrdma_sge sge = vg_sge(s[0].mr, 0, MIB);
    struct vg_wr wr = vg_wr_to(0, PVRDMA_WR_RDMA_WRITE, 0, &sge, s[1].mr, 0);

    while (!l->stop) {
        for (unsigned i = 0; i < LOAD_QPS; i++) {
            while (vg_post_send(l->qp[i], &wr, 1)) {
            }
        }
        while (reap(s[0].scq)) {
        }
        g_usleep(100000);
    }
    return NULL;
}

/* Bytes that the daemon has carried for VM 0. */
static uint64_t load_bytes(void)
{
    JsonNode *status = vg_daemon_counters(vgt_daemon);
    JsonObject *vm = vg_status_vm(status, "vm0");
    uint64_t n = json_object_get_int_member(json_object_get_object_member(vm, "datapath"),
                                            "tx_bytes");

    json_node_unref(status);
    return n;
}

void part_isolation(void)
{
    struct load load;
    struct vgt_pair p;
    struct figures alone, under;
    double slice_us, extra;
    GThread *t;
    uint64_t bytes;
    int64_t start;

    load_open(&load);
    vgt_pair_open(&p, 2, 3, &ext_opts);
    slice_us = SLICE / (memcpy_rate(&load.p, MIB, MIB) * 1000);
    alone = write_latency(&p);
    t = g_thread_new("load", load_thread, &load);
    g_usleep(100000);
    bytes = load_bytes();
    start = vg_now_ns();
    under = write_latency(&p);
    printf("load: %.2f GB/s of 1 MiB WRITEs on 16 QPs; one slice's copy: %.1f us\n",
           (double)(load_bytes() - bytes) / (vg_now_ns() - start), slice_us);
    load.stop = true;
    g_thread_join(t);
    print_latency("WRITE, 8 bytes, alone", alone);
    print_latency("WRITE, 8 bytes, beside the load", under);
    extra = under.p99 - alone.p99;
    printf("p99 grows by %.1f us; aim: at most %.1f us: %s\n", extra, slice_us + 20,
           extra <= slice_us + 20 ? "met" : "missed");
    vgt_pair_close(&p);
    load_close(&load);
}

/* ---- idle QPs ---- */

void part_idle(void)
{
    struct vgt_opts o = ext_opts;
    struct vg_qp_opts small = {.send_wr = 2, .recv_wr = 2, .contig = true};
    struct vg_qp **qp = g_new(struct vg_qp *, IDLE_QPS);
    struct vgt_pair p;
    struct figures alone, among;

    o.guest[0].low_size = o.guest[1].low_size = 256 << 20;
    vgt_pair_open(&p, 0, 1, &o);
    alone = write_latency(&p);
    for (unsigned i = 0; i < IDLE_QPS; i++) {
        qp[i] = vg_qp_new(p.s[0].pd, p.s[0].scq, p.s[0].rcq, &small);
        vg_qp_reset_to_rts(qp[i], &p.s[1].g->gid, p.s[1].qp->qpn, 0, 0, NULL);
    }
    among = write_latency(&p);
    print_latency("WRITE, 8 bytes, alone", alone);
    print_latency("WRITE, 8 bytes, 4000 idle QPs", among);
    printf("ratio of medians: %.2f\n", among.p50 / alone.p50);
    for (unsigned i = 0; i < IDLE_QPS; i++) {
        vg_qp_free(qp[i]);
    }
    g_free(qp);
    vgt_pair_close(&p);
}
