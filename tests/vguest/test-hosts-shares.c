/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: what tenants share once there are hosts.  In each case one of them takes
 * all that it can get, and another notices nothing.
 */
#include "hosts.h"

static struct vg_daemon *host[2];

static void begin(const char *daemon_keys)
{
    const struct host_opts o = {
        .n_vms = 8, .n_peers = 2, .vm_keys = "addresses=any", .daemon_keys = daemon_keys};

    hosts_start(host, 2, &o);
    vgt_daemon = host[1];
}

static void end(void)
{
    hosts_stop(host, 2);
    vgt_daemon = NULL;
}

/* ---- the main thread ---- */

/*
 * A worker stands still with a VM's token, as in a page fault that a VMM has made long,
 * while queue pairs of other hosts connect with that VM, and it with them: its host goes
 * on with registers, links and connections of others.
 */
#define ROUNDS   6u
#define N_CONNS  4u
#define N_LOAD   2048u /* messages of 1 MiB, within the VM: its worker is in its turns */
#define LOAD_LEN (1u << 20)

/* Eight tries of 0.5 s. */
static const struct vg_conn patient = {.timeout = 17, .retry_cnt = 7, .rnr_retry = 7};

/* Queue pairs of host 1, which are ready, with some of host 0 that are not yet. */
struct waiting {
    struct vgt_side far, near;
    struct vg_qp *qp[2][ROUNDS * N_CONNS];
    unsigned n, begun;
};

static void waiting_open(struct waiting *w, struct vguest *near, unsigned far, unsigned n)
{
    static const struct vgt_opts fresh = {.unconnected = true};
    static const struct vg_qp_opts small = {
        .send_wr = 2, .recv_wr = 2, .send_sge = 1, .recv_sge = 1};
    struct vgt_opts o = fresh;
    struct vgt_side *s[2] = {&w->far, &w->near};

    o.daemon[0] = host[0];
    o.conn = patient;
    vgt_side_open(&w->far, far, &o, 0);
    w->near = (struct vgt_side){.g = near};
    w->near.pd = vg_pd_new(near);
    w->near.scq = vg_cq_new(w->near.pd, 256);
    w->near.mr = vg_mr_alloc(w->near.pd, 0x10000000, 4096, VG_ACCESS_ALL);
    w->n = n;
    w->begun = 0;
    for (unsigned i = 0; i < n; i++) {
        for (unsigned k = 0; k < 2; k++) {
            w->qp[k][i] = vg_qp_new(s[k]->pd, s[k]->scq, s[k]->scq, &small);
            g_assert_cmpint(vg_qp_to_init(w->qp[k][i], &patient), ==, 0);
        }
        g_assert_cmpint(
            vg_qp_to_rtr(w->qp[1][i], &w->far.g->gid, w->qp[0][i]->qpn, 1, &patient), ==,
            0);
        g_assert_cmpint(vg_qp_to_rts(w->qp[1][i], 1, &patient), ==, 0);
    }
}

static void waiting_close(struct waiting *w)
{
    for (unsigned i = 0; i < w->n; i++) {
        vg_qp_free(w->qp[0][i]);
        vg_qp_free(w->qp[1][i]);
    }
    vg_mr_free(w->near.mr);
    vg_cq_free(w->near.scq);
    vg_pd_free(w->near.pd);
    vgt_side_close(&w->far);
}

/* The next @n become ready, and write. */
static void waiting_begin(struct waiting *w, unsigned n)
{
    for (unsigned i = w->begun; i < w->begun + n; i++) {
        struct pvrdma_sge sge = vg_sge(w->far.mr, 0, 64);
        struct vg_wr wr = {.wr_id = i,
                           .opcode = PVRDMA_WR_RDMA_WRITE,
                           .flags = VGT_SIG,
                           .nsge = 1,
                           .sge = &sge,
                           .remote_addr = w->near.mr->buf->va,
                           .rkey = w->near.mr->rkey};

        g_assert_cmpint(
            vg_qp_to_rtr(w->qp[0][i], &w->near.g->gid, w->qp[1][i]->qpn, 1, &patient), ==,
            0);
        g_assert_cmpint(vg_qp_to_rts(w->qp[0][i], 1, &patient), ==, 0);
        g_assert_cmpuint(vg_post_send(w->qp[0][i], &wr, 1), ==, 1);
    }
    w->begun += n;
}

static void waiting_written(struct waiting *w, unsigned n)
{
    struct pvrdma_cqe c;

    while (n--) {
        g_assert_true(vg_cq_wait(w->far.scq, &c, VGT_WAIT_MS));
        g_assert_cmpint(c.status, ==, PVRDMA_WC_SUCCESS);
    }
}

static void load(struct vgt_pair *p)
{
    for (unsigned i = 0; i < N_LOAD; i++) {
        vgt_send(&p->s[0], i, PVRDMA_WR_RDMA_WRITE, i == N_LOAD - 1 ? VGT_SIG : 0, 0,
                 LOAD_LEN, &p->s[1], 0);
    }
}

static void test_token(void)
{
    struct vgt_opts o = {.qp = {.send_wr = N_LOAD}, .conn = {.timeout = 20}};
    struct waiting lesser, greater, other; /* VM 2 is called, or calls */
    struct vguest *by;
    struct vgt_pair p;
    pid_t tid = 1;

    begin("workers=2\npeer-timeout=60");
    vgt_pair_open(&p, 2, 2, &o);
    by = vguest_new(host[1], 6, NULL);
    g_assert_cmpuint(vgt_worker_of(6), !=, vgt_worker_of(2));
    waiting_open(&lesser, p.s[0].g, 1, ROUNDS * N_CONNS);
    waiting_open(&greater, p.s[0].g, 3, ROUNDS * N_CONNS);
    waiting_open(&other, by, 5, ROUNDS);
    for (unsigned i = 0; i < ROUNDS && tid; i++) {
        load(&p);
        g_usleep(2000);
        tid = vgt_worker_stop(vgt_worker_of(2)); /* in a turn of VM 2's, most times */
        if (tid) {
            waiting_begin(&lesser, N_CONNS);
            waiting_begin(&greater, N_CONNS);
            g_usleep(20000);
            vg_reg_read(by, PVRDMA_REG_ERR);
            waiting_begin(&other, 1);
            waiting_written(&other, 1);
            vg_reg_read(by, PVRDMA_REG_ERR);
            vgt_worker_go(tid);
            waiting_written(&lesser, N_CONNS);
            waiting_written(&greater, N_CONNS);
        }
        vgt_expect(p.s[0].scq, N_LOAD - 1, PVRDMA_WC_SUCCESS);
    }
    waiting_close(&other);
    waiting_close(&greater);
    waiting_close(&lesser);
    vguest_free(by);
    vgt_pair_close(&p);
    end();
}

int main(int argc, char **argv)
{
    vgt_init(&argc, &argv, 240);
    g_test_add_func("/hosts-shares/token", test_token);
    return vgt_run();
}
