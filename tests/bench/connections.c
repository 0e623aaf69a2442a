/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Part "connections" of bench: what RDMA CM does to connect two guests and to take the
 * connection down, over and over.
 *
 * Each guest has a thread of its own and a GSI QP.  The active one makes a CQ and a QP,
 * takes it to INIT and sends a REQ; the passive one does the same, goes on to RTS and
 * sends a REP; the active one goes to RTS, sends an RTU and writes eight bytes.  Then its
 * QP goes to ERR, a DREQ and a DREP pass, the passive QP goes to ERR, and both destroy
 * what they made.  The datagrams are of a MAD's size, with just these words in them.
 *
 * The aim is 500 a second.  Printed with it: what each step took its guest, which is what
 * bounds the rate, and the same rate in commands that do nothing.
 */
#include "bench.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#define GSI_QKEY  0x80010000u
#define MAD_SIZE  256u
#define SLOT      512u /* of a MAD in memory, GRH included */
#define SLOTS     64u
#define MAX_DEPTH 16u
#define DATA_VA   0x7f4400000000ull
#define AIM       500.0
#define LIMIT_S   60

enum kind { REQ = 1, REP, RTU, DREQ, DREP };

struct mad {
    uint32_t kind, conn, qpn, rkey;
};

enum step { CREATE_CQ, CREATE_QP, INIT, RTR, RTS, ERR, DESTROY_QP, DESTROY_CQ, STEPS };
static const char *const step_name[STEPS] = {
    "CREATE_CQ", "CREATE_QP", "INIT", "RTR", "RTS", "ERR", "DESTROY_QP", "DESTROY_CQ"};

struct conn {
    bool open;
    struct vg_cq *cq;
    struct vg_qp *qp;
};

struct side {
    struct vguest *g;
    const struct vguest *peer;
    struct vg_pd *kernel, *pd;
    struct vg_cq *scq, *rcq;
    struct vg_qp *gsi;
    struct vg_mr *mads, *data;
    unsigned sent, reaped;
    struct conn conn[MAX_DEPTH];
    double us[STEPS];
    uint64_t n[STEPS];
};

static struct side side[2]; /* active, passive */
static gint stop;           /* nothing comes any more */

/* ---- commands, with their times ---- */

static void took(struct side *s, enum step step, double since)
{
    s->us[step] += now_us() - since;
    s->n[step]++;
}

static void conn_open(struct side *s, struct conn *c)
{
    const struct vg_qp_opts o = {
        .send_wr = 16, .recv_wr = 16, .send_sge = 1, .recv_sge = 1, .contig = true};
    double t = now_us();

    c->cq = vg_cq_new(s->pd, 64);
    took(s, CREATE_CQ, t);
    t = now_us();
    c->qp = vg_qp_new(s->pd, c->cq, c->cq, &o);
    took(s, CREATE_QP, t);
    t = now_us();
    vg_qp_to_init(c->qp, NULL);
    took(s, INIT, t);
    c->open = true;
}

static void conn_ready(struct side *s, struct conn *c, uint32_t qpn)
{
    double t = now_us();

    vg_qp_to_rtr(c->qp, &s->peer->gid, qpn, qpn, NULL);
    took(s, RTR, t);
    t = now_us();
    vg_qp_to_rts(c->qp, c->qp->qpn, NULL);
    took(s, RTS, t);
}

static void conn_error(struct side *s, struct conn *c)
{
    double t = now_us();

    vg_qp_to_state(c->qp, PVRDMA_QPS_ERR);
    took(s, ERR, t);
}

static void conn_close(struct side *s, struct conn *c)
{
    double t = now_us();

    vg_qp_free(c->qp);
    took(s, DESTROY_QP, t);
    t = now_us();
    vg_cq_free(c->cq);
    took(s, DESTROY_CQ, t);
    c->open = false;
}

/* ---- MADs ---- */

static void post_slot(struct side *s, unsigned slot)
{
    struct pvrdma_sge sge =
        vg_sge(s->mads, (uint64_t)slot * SLOT, PVRDMA_GRH_SIZE + MAD_SIZE);
    struct vg_wr wr = {.wr_id = slot, .nsge = 1, .sge = &sge};

    g_assert_cmpuint(vg_post_recv(s->gsi, &wr, 1), ==, 1);
}

static void mad_send(struct side *s, struct mad m)
{
    uint64_t at = (uint64_t)(SLOTS + s->sent % SLOTS) * SLOT;
    struct pvrdma_sge sge = vg_sge(s->mads, at, MAD_SIZE);
    struct pvrdma_av av = vg_av(s->kernel, 0, &s->peer->gid);
    struct vg_wr wr = vg_wr_datagram(0, PVRDMA_SEND_SIGNALED, &sge, &av, 1, GSI_QKEY);

    do {
        s->reaped += reap(s->scq);
    } while (s->sent - s->reaped == SLOTS);
    memcpy(VG_MR_HOST(s->mads, at), &m, sizeof(m));
    g_assert_cmpuint(vg_post_send(s->gsi, &wr, 1), ==, 1);
    s->sent++;
}

static bool mad_next(struct side *s, struct mad *m)
{
    struct pvrdma_cqe c;

    if (vg_cq_poll(s->rcq, &c, 1) == 0) {
        return false;
    }
    g_assert_cmpuint(c.status, ==, PVRDMA_WC_SUCCESS);
    memcpy(m, VG_MR_HOST(s->mads, c.wr_id * SLOT + PVRDMA_GRH_SIZE), sizeof(*m));
    g_assert_cmpuint(m->conn, <, MAX_DEPTH);
    post_slot(s, (unsigned)c.wr_id);
    return true;
}

/* ---- the passive guest ---- */

static void passive_mad(struct side *s, const struct mad *m)
{
    struct conn *c = &s->conn[m->conn];

    switch (m->kind) {
    case REQ:
        conn_open(s, c);
        conn_ready(s, c, m->qpn);
        mad_send(s, (struct mad){REP, m->conn, c->qp->qpn, s->data->rkey});
        break;
    case RTU:
        break;
    case DREQ:
        conn_error(s, c);
        mad_send(s, (struct mad){DREP, m->conn, 0, 0});
        conn_close(s, c);
        break;
    default:
        g_assert_not_reached();
    }
}

static gpointer passive_run(gpointer data)
{
    struct side *s = data;
    struct mad m;

    while (!g_atomic_int_get(&stop)) {
        if (mad_next(s, &m)) {
            passive_mad(s, &m);
        } else {
            sched_yield();
        }
    }
    return NULL;
}

/* ---- the active one ---- */

static void active_write(struct side *s, struct conn *c, uint32_t rkey)
{
    struct pvrdma_sge sge = vg_sge(s->data, 0, 8);
    struct vg_wr wr =
        vg_wr_at(0, PVRDMA_WR_RDMA_WRITE, PVRDMA_SEND_SIGNALED, &sge, DATA_VA, rkey);

    g_assert_cmpuint(vg_post_send(c->qp, &wr, 1), ==, 1);
    spin_cqe(c->cq);
}

/* True: this connection is over. */
static bool active_mad(struct side *s, const struct mad *m)
{
    struct conn *c = &s->conn[m->conn];

    if (m->kind == DREP) {
        conn_close(s, c);
        return true;
    }
    g_assert_cmpuint(m->kind, ==, REP);
    conn_ready(s, c, m->qpn);
    mad_send(s, (struct mad){RTU, m->conn, 0, 0});
    active_write(s, c, m->rkey);
    conn_error(s, c);
    mad_send(s, (struct mad){DREQ, m->conn, 0, 0});
    return false;
}

/* @depth at a time; how many a second. */
static double active_run(struct side *s, unsigned depth)
{
    int64_t start = vg_now_ns();
    unsigned n_open = 0, done = 0;
    struct mad m;

    do {
        for (unsigned i = 0; i < depth && time_left(start); i++) {
            if (!s->conn[i].open) {
                conn_open(s, &s->conn[i]);
                mad_send(s, (struct mad){REQ, i, s->conn[i].qp->qpn, 0});
                n_open++;
            }
        }
        if (!mad_next(s, &m)) {
            sched_yield();
        } else if (active_mad(s, &m)) {
            n_open--;
            done++;
        }
        if (vg_now_ns() - start > LIMIT_S * 1000000000ll) {
            g_error("%u connections stand still", n_open);
        }
    } while (n_open || time_left(start));
    return done / ((double)(vg_now_ns() - start) / 1e9);
}

/* ---- the part ---- */

static void side_open(struct side *s, unsigned vm)
{
    const struct vg_qp_opts o = {.type = PVRDMA_QPT_GSI,
                                 .send_wr = SLOTS,
                                 .recv_wr = SLOTS,
                                 .send_sge = 1,
                                 .recv_sge = 1};
    const struct vg_opts g = {.db = VG_DB_EXT};

    memset(s, 0, sizeof(*s));
    s->g = vguest_new(vgt_daemon, vm, &g);
    s->kernel = vg_pd_new_kernel(s->g);
    s->pd = vg_pd_new(s->g);
    s->scq = vg_cq_new(s->kernel, 2 * SLOTS);
    s->rcq = vg_cq_new(s->kernel, 2 * SLOTS);
    s->gsi = vg_qp_new(s->kernel, s->scq, s->rcq, &o);
    s->mads = vg_mr_alloc(s->kernel, 0x7f4500000000ull, 2 * SLOTS * SLOT, VG_ACCESS_ALL);
    s->data = vg_mr_alloc(s->pd, DATA_VA, 4096, VG_ACCESS_ALL);
    for (unsigned i = 0; i < SLOTS; i++) {
        post_slot(s, i);
    }
    vg_ud_to_rts(s->gsi, GSI_QKEY);
}

static void side_close(struct side *s)
{
    vg_qp_free(s->gsi);
    vg_cq_free(s->scq);
    vg_cq_free(s->rcq);
    vg_mr_free(s->mads);
    vg_mr_free(s->data);
    vg_pd_free(s->pd);
    vg_pd_free(s->kernel);
    vguest_free(s->g);
}

/* A command that asks for next to nothing. */
static double command_us(struct side *s)
{
    int64_t start = vg_now_ns();
    unsigned n = 0;

    for (; time_left(start); n++) {
        g_assert_cmpint(vg_query_port(s->g, 1, NULL), ==, 0);
    }
    return (double)(vg_now_ns() - start) / 1000 / n;
}

static void run(unsigned depth)
{
    GThread *t;
    double rate, command = command_us(&side[0]), active = 0, passive = 0;

    for (unsigned i = 0; i < 2; i++) {
        memset(side[i].us, 0, sizeof(side[i].us));
        memset(side[i].n, 0, sizeof(side[i].n));
    }
    g_atomic_int_set(&stop, 0);
    t = g_thread_new("passive", passive_run, &side[1]);
    rate = active_run(&side[0], depth);
    while (vgt_counter("vm1", "objects", "qps") > 1) { /* the last DREQ's */
        g_usleep(1000);
    }
    g_atomic_int_set(&stop, 1);
    g_thread_join(t);
    printf("  %2u at a time: %6.0f a second (aim: %.0f, %s); one takes as long as %.0f "
           "commands that do nothing (%.1f us)\n",
           depth, rate, AIM, rate >= AIM ? "met" : "MISSED", 1e6 / rate / command,
           command);
    for (unsigned i = 0; i < STEPS; i++) {
        active += side[0].us[i] / side[0].n[i];
        passive += side[1].us[i] / side[1].n[i];
        printf("    %-11s active %7.1f us, passive %7.1f us\n", step_name[i],
               side[0].us[i] / side[0].n[i], side[1].us[i] / side[1].n[i]);
    }
    printf("    %-11s active %7.1f us, passive %7.1f us of %.1f us\n", "commands", active,
           passive, 1e6 / rate);
    fflush(stdout);
}

void part_connections(void)
{
    for (unsigned i = 0; i < 2; i++) {
        side_open(&side[i], i);
    }
    side[0].peer = side[1].g;
    side[1].peer = side[0].g;
    run(1);
    run(MAX_DEPTH);
    for (unsigned i = 0; i < 2; i++) {
        side_close(&side[i]);
    }
}
