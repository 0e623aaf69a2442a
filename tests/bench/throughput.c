/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Rate of small messages, on one and on many queue pairs, and bandwidth.
 */
#include <stdio.h>

#include "bench.h"

/* ---- rate ---- */

#define BATCH     64u
#define BATCHES   8u /* in flight at most */
#define UD_ROUNDS 3u

#define UD_QKEY 0x11111111u

/* Every BATCHth request signalled; inline where it can be. */
static void fill_batch(struct vg_wr *wr, unsigned n, uint32_t opcode,
                       const struct vgt_side *far)
{
    static const uint64_t data = 1;
    static struct pvrdma_av av;

    for (unsigned i = 0; i < n; i++) {
        wr[i] = (struct vg_wr){.opcode = opcode,
                               .flags = PVRDMA_SEND_INLINE,
                               .inline_data = &data,
                               .inline_len = sizeof(data),
                               .remote_addr = far->mr->buf->va,
                               .rkey = far->mr->rkey};
    }
    wr[n - 1].flags |= PVRDMA_SEND_SIGNALED;
    if (far->qp->opts.type != PVRDMA_QPT_UD) {
        return;
    }
    av = vg_av(far->pd, 0, &far->g->gid); /* the first domain of either guest */
    for (unsigned i = 0; i < n; i++) {
        wr[i].av = &av;
        wr[i].remote_qpn = far->qp->qpn;
        wr[i].remote_qkey = UD_QKEY;
    }
}

/* Messages a second on one QP; SENDs: each with a receive completion. */
static double batch_rate(struct vgt_pair *p, uint32_t opcode, struct vg_srq *srq)
{
    struct vgt_side *s = &p->s[0], *far = &p->s[1];
    struct pvrdma_sge into = vg_sge(far->mr, 0, PVRDMA_GRH_SIZE + 8);
    bool send = opcode == PVRDMA_WR_SEND;
    struct vg_wr wr[BATCH], recv[BATCH];
    uint64_t posted = 0, done = 0, received = 0, ready = 0, first = 0;
    int64_t start = vg_now_ns(), warm = start + 100000000, now;

    fill_batch(wr, BATCH, opcode, far);
    for (unsigned i = 0; i < BATCH; i++) {
        recv[i] = (struct vg_wr){.nsge = 1, .sge = &into};
    }
    do {
        while (send && ready < received + (BATCHES + 1) * BATCH) {
            g_assert_cmpuint(srq ? vg_post_srq(srq, recv, BATCH)
                                 : vg_post_recv(far->qp, recv, BATCH),
                             ==, BATCH);
            ready += BATCH;
        }
        while (posted < done + BATCHES * BATCH && (!send || posted + BATCH <= ready)) {
            g_assert_cmpuint(vg_post_send(s->qp, wr, BATCH), ==, BATCH);
            posted += BATCH;
        }
        done += reap(s->scq) * BATCH;
        if (send) {
            received += reap(far->rcq);
        }
        now = vg_now_ns();
        if (warm && now >= warm) {
            start = now;
            first = done;
            warm = 0;
        }
    } while (warm || now - start < (int64_t)(seconds * 5e9));
    return (done - first) / ((now - start) / 1e9);
}

static const struct vgt_opts rate_opts = {
    .guest = {{.db = VG_DB_EXT}, {.db = VG_DB_EXT}},
    .qp = {.send_wr = 1024,
           .recv_wr = 1024,
           .send_sge = 1,
           .recv_sge = 1,
           .max_inline = 16},
    .cqe = 2048,
};

double message_rate(uint8_t type, uint32_t opcode)
{
    struct vgt_opts o = rate_opts;
    struct vgt_pair p;
    double r;

    o.qp.type = type;
    o.unconnected = type == PVRDMA_QPT_UD;
    vgt_pair_open(&p, 0, 1, &o);
    for (unsigned i = 0; o.unconnected && i < 2; i++) {
        vg_ud_to_rts(p.s[i].qp, UD_QKEY);
    }
    if (o.unconnected) {
        g_assert_cmpuint(p.s[0].pd->handle, ==, p.s[1].pd->handle);
    }
    r = batch_rate(&p, opcode, NULL);
    vgt_pair_close(&p);
    return r;
}

/* SENDs into a shared receive queue. */
static double shared_rate(void)
{
    struct vgt_opts o = rate_opts;
    struct vg_srq *srq;
    struct vgt_pair p;
    struct vgt_side *far = &p.s[1];
    double r;

    o.unconnected = true;
    vgt_pair_open(&p, 0, 1, &o);
    srq = vg_srq_new(far->pd, o.qp.recv_wr, 1, false);
    vg_qp_free(far->qp);
    o.qp.srq = srq;
    far->qp = vg_qp_new(far->pd, far->scq, far->rcq, &o.qp);
    vg_qp_connect(p.s[0].qp, far->qp, NULL);
    r = batch_rate(&p, PVRDMA_WR_SEND, srq);
    vg_qp_free(far->qp);
    vg_srq_free(srq);
    far->qp = vg_qp_new(far->pd, far->scq, far->rcq, NULL); /* for the pair's end */
    vgt_pair_close(&p);
    return r;
}

/* In turns, so that both meet the same machine. */
static void compare_ud(void)
{
    double rc[UD_ROUNDS], ud[UD_ROUNDS], r, u;

    for (unsigned i = 0; i < UD_ROUNDS; i++) {
        rc[i] = message_rate(PVRDMA_QPT_RC, PVRDMA_WR_SEND);
        ud[i] = message_rate(PVRDMA_QPT_UD, PVRDMA_WR_SEND);
    }
    r = median(rc, UD_ROUNDS);
    u = median(ud, UD_ROUNDS);
    printf("the same, UD:   %6.2f M datagrams/s; one takes %.2f of an RC SEND's time "
           "(%.2f M/s, medians of %u in turns)\n",
           u / 1e6, r / u, r / 1e6, UD_ROUNDS);
}

void part_rate(void)
{
    struct ucx ucx = ucx_run("posix", "tag_bw", 8, 20000000);
    double send = 0, shared = 0, ratio[3];
    double write = message_rate(PVRDMA_QPT_RC, PVRDMA_WR_RDMA_WRITE);

    /* By turns: what else the machine does meets both. */
    for (unsigned i = 0; i < G_N_ELEMENTS(ratio); i++) {
        send = message_rate(PVRDMA_QPT_RC, PVRDMA_WR_SEND);
        shared = shared_rate();
        ratio[i] = send / shared;
    }
    printf("batches of 64, inline, every 64th signalled, one QP\n");
    printf("SEND,  8 bytes: %6.2f M messages/s\n", send / 1e6);
    printf("SEND,  8 bytes: %6.2f M messages/s into a shared receive queue; a private one"
           " has %.2f times that (median of %zu; aim: 1.3)\n",
           shared / 1e6, median(ratio, G_N_ELEMENTS(ratio)), G_N_ELEMENTS(ratio));
    printf("WRITE, 8 bytes: %6.2f M messages/s\n", write / 1e6);
    compare_ud();
    if (ucx.ok) {
        printf("UCX tag_bw, 8 bytes: %.2f M messages/s; a SEND has %.2f of that\n",
               ucx.rate / 1e6, send / ucx.rate);
    }
}

/* ---- many QPs ---- */

#define QPS_MAX   10000u
#define QPS_BURST 16u

struct many {
    struct vgt_pair p;
    struct vg_qp *qp[QPS_MAX], *far[QPS_MAX];
    uint8_t busy[QPS_MAX]; /* bursts in flight */
    unsigned n;
};

static void many_grow(struct many *m, unsigned n)
{
    struct vg_qp_opts o = {.send_wr = 2 * QPS_BURST,
                           .recv_wr = 2,
                           .send_sge = 1,
                           .recv_sge = 1,
                           .max_inline = 16,
                           .contig = true};

    for (; m->n < n; m->n++) {
        struct vgt_side *s = m->p.s;

        m->qp[m->n] = vg_qp_new(s[0].pd, s[0].scq, s[0].rcq, &o);
        m->far[m->n] = vg_qp_new(s[1].pd, s[1].scq, s[1].rcq, &o);
        vg_qp_connect(m->qp[m->n], m->far[m->n], NULL);
    }
}

/* Completions of bursts; wr_id is the QP. */
static unsigned many_reap(struct many *m)
{
    struct pvrdma_cqe c[64];
    int n = vg_cq_poll(m->p.s[0].scq, c, G_N_ELEMENTS(c));

    g_assert_cmpint(n, >=, 0);
    for (int i = 0; i < n; i++) {
        g_assert_cmpuint(c[i].status, ==, PVRDMA_WC_SUCCESS);
        m->busy[c[i].wr_id]--;
    }
    return n;
}

/* Each QP in turn gets @burst WRITEs of @len bytes, the last signalled; at most two
 * bursts on one QP and 1,024, or 64 MiB, in all are in flight. */
static double many_rate(struct many *m, unsigned n, unsigned burst, uint32_t len)
{
    struct pvrdma_sge sge = vg_sge(m->p.s[0].mr, 0, len);
    uint64_t posted = 0, done = 0, first = 0;
    unsigned most = MIN(1024, 64 * MIB / len);
    struct vg_wr wr[QPS_BURST];
    int64_t start = 0, now;

    fill_batch(wr, burst, PVRDMA_WR_RDMA_WRITE, &m->p.s[1]);
    for (unsigned i = 0; len > sizeof(uint64_t) && i < burst; i++) {
        wr[i].flags &= ~(uint32_t)PVRDMA_SEND_INLINE;
        wr[i].inline_data = NULL;
        wr[i].nsge = 1;
        wr[i].sge = &sge;
    }
    do {
        unsigned next = posted % n;

        while (m->busy[next] < 2 && posted < done + most) {
            wr[burst - 1].wr_id = next;
            g_assert_cmpuint(vg_post_send(m->qp[next], wr, burst), ==, burst);
            m->busy[next]++;
            next = ++posted % n;
        }
        done += many_reap(m);
        now = vg_now_ns();
        if (!start && done >= 2 * n) { /* every QP had its turn */
            start = now;
            first = done;
        }
    } while (!start || now - start < (int64_t)(seconds * 1e9 / 2));
    while (done < posted) {
        done += many_reap(m);
    }
    return (done - first) * burst / ((now - start) / 1e9);
}

static struct many *many_open(void)
{
    struct vgt_opts o = {.cqe = 4096};
    struct many *m = g_new0(struct many, 1);

    for (unsigned i = 0; i < 2; i++) {
        o.guest[i] = (struct vg_opts){.db = VG_DB_EXT, .low_size = 256 << 20};
    }
    vgt_pair_open(&m->p, 0, 1, &o);
    return m;
}

static void many_close(struct many *m)
{
    for (unsigned i = 0; i < m->n; i++) {
        vg_qp_free(m->qp[i]);
        vg_qp_free(m->far[i]);
    }
    vgt_pair_close(&m->p);
    g_free(m);
}

void part_qps(void)
{
    struct many *m = many_open();

    printf("WRITE, 8 bytes, M messages/s; QPs served in turn, 1 or 16 messages each\n");
    for (unsigned n = 1; n <= QPS_MAX; n *= 10) {
        many_grow(m, n);
        printf("%6u QPs:  1 each %6.2f   16 each %6.2f\n", n, many_rate(m, n, 1, 8) / 1e6,
               many_rate(m, n, QPS_BURST, 8) / 1e6);
        fflush(stdout);
    }
    many_close(m);
}

/* Active connections to another host, of which none waits for another. */
void part_network_active(void)
{
    static const unsigned counts[] = {1, 64, 1000};
    struct many *m = many_open();
    double one[3] = {0};

    printf("WRITE; connections served in turn; beside it, the ratio to one connection\n");
    for (unsigned i = 0; i < G_N_ELEMENTS(counts); i++) {
        double r[3];

        many_grow(m, counts[i]);
        r[0] = many_rate(m, counts[i], 1, 8) / 1e6;
        r[1] = many_rate(m, counts[i], QPS_BURST, 8) / 1e6;
        r[2] = many_rate(m, counts[i], 1, SLICE) * SLICE / 1e9;
        for (unsigned k = 0; k < 3; k++) {
            one[k] = i ? one[k] : r[k];
        }
        printf("%5u active: 8 bytes, 1 each %6.2f M/s (%.2f), 16 each %6.2f M/s (%.2f); "
               "64 KiB %6.2f GB/s (%.2f)\n",
               counts[i], r[0], r[0] / one[0], r[1], r[1] / one[1], r[2], r[2] / one[2]);
        fflush(stdout);
    }
    many_close(m);
}

/* ---- bandwidth ---- */

#define OUTSTANDING 16u
#define ROUNDS      3u
#define COLD        (64u * MIB) /* on either side: together more than caches hold */

double stream_rate(struct vgt_pair *p, uint32_t opcode, uint32_t len, uint64_t span)
{
    struct vgt_side *s = &p->s[0], *far = &p->s[1];
    uint64_t posted = 0, done = 0, first = 0, off = 0;
    int64_t start = 0, now;
    struct pvrdma_sge sge;
    struct vg_wr wr = {.opcode = opcode,
                       .flags = PVRDMA_SEND_SIGNALED,
                       .nsge = 1,
                       .sge = &sge,
                       .rkey = far->mr->rkey};

    do {
        while (posted < done + OUTSTANDING) {
            sge = vg_sge(s->mr, off, len);
            wr.remote_addr = far->mr->buf->va + off;
            g_assert_cmpuint(vg_post_send(s->qp, &wr, 1), ==, 1);
            off = off + len < span ? off + len : 0;
            posted++;
        }
        done += reap(s->scq);
        now = vg_now_ns();
        if (!start && done * len >= span && done >= 100) {
            start = now;
            first = done;
        }
    } while (!start || now - start < (int64_t)(seconds * 1e9 / 4));
    while (done < posted) {
        done += reap(s->scq);
    }
    return (double)(done - first) * len / (now - start);
}

static void bandwidth(struct vgt_pair *p, const char *what, uint32_t len, uint64_t span)
{
    double wr[ROUNDS], rd[ROUNDS], mem[ROUNDS], m;

    for (unsigned i = 0; i < ROUNDS; i++) {
        mem[i] = memcpy_rate(p, len, span);
        wr[i] = stream_rate(p, PVRDMA_WR_RDMA_WRITE, len, span);
        rd[i] = stream_rate(p, PVRDMA_WR_RDMA_READ, len, span);
    }
    m = median(mem, ROUNDS);
    printf("%-16s memcpy %6.2f GB/s   WRITE %6.2f GB/s (%.2f)   READ %6.2f GB/s (%.2f)\n",
           what, m, median(wr, ROUNDS), median(wr, ROUNDS) / m, median(rd, ROUNDS),
           median(rd, ROUNDS) / m);
    fflush(stdout);
}

/* A pair whose buffers have @layout; the fixture's own are always scattered. */
static void lay_out(struct vgt_pair *p, enum vg_layout layout)
{
    for (unsigned i = 0; i < 2; i++) {
        struct vgt_side *s = &p->s[i];

        vg_mr_free(s->mr);
        s->mr = vg_mr_new(s->pd, vg_buf_new(s->g, 0x7f1200000000ull, COLD, layout),
                          VG_ACCESS_ALL);
        memset(VG_MR_HOST(s->mr, 0), 1 + i, COLD);
    }
}

void part_bandwidth(void)
{
    struct vgt_opts o = {.qp = {.send_wr = OUTSTANDING, .send_sge = 1}};
    struct ucx ucx[2] = {ucx_run("posix", "tag_bw", SLICE, 200000),
                         ucx_run("posix", "tag_bw", MIB, 20000)};
    struct vgt_pair p;

    for (unsigned i = 0; i < 2; i++) {
        /* Sparse: room for a run of COLD bytes between scattered pages. */
        o.guest[i] = (struct vg_opts){.db = VG_DB_EXT, .low_size = 2048ull * MIB};
    }
    vgt_pair_open(&p, 0, 1, &o);
    printf("16 outstanding; beside memcpy of the same buffers on the same processor\n");
    for (unsigned i = 0; i < 2; i++) {
        static const char *const layout[] = {"contiguous guest pages",
                                             "scattered 4 KiB guest pages"};

        printf("%s:\n", layout[i]);
        lay_out(&p, i ? VG_SCATTERED : VG_CONTIG);
        bandwidth(&p, "  4 KiB in cache", 4096, 4096);
        bandwidth(&p, " 64 KiB in cache", SLICE, SLICE);
        bandwidth(&p, "  1 MiB in cache", MIB, MIB);
        bandwidth(&p, "  1 MiB cold", MIB, COLD);
    }
    vgt_pair_close(&p);
    if (ucx[0].ok && ucx[1].ok) {
        printf("UCX tag_bw: 64 KiB %.2f GB/s, 1 MiB %.2f GB/s\n", ucx[0].gbs, ucx[1].gbs);
    }
}
