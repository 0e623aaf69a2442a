/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: destroy under fire.  Objects, memory maps and whole VMs go away
 * while workers move data through them, in both directions.  What counts: no
 * crash, no leak, no report of a sanitizer (TSan above all), no completion after
 * DESTROY answered, and an innocent connection that stays correct.
 */
#include "vgtest.h"

#include <unistd.h>

#define ROUNDS 60

struct fire {
    struct vgt_pair p;
    GRand *r;
    /* Of a shot at all of a context: what else it can have, another connection. */
    struct vg_qp *qp[2];
    struct vg_srq *srq[2]; /* where those receive */
    struct vg_mr *mr;      /* side 0's, with a window that the peer writes to */
    struct vg_mw window;
};

/* Fill both send queues with large WRITEs, READs and SENDs. */
static void ignite(struct fire *f)
{
    for (unsigned i = 0; i < 2; i++) {
        struct vgt_side *s = &f->p.s[i], *o = &f->p.s[1 - i];
        struct pvrdma_sge sge = vg_sge(s->mr, 0, 400000);
        struct pvrdma_sge rsge = vg_sge(s->mr, 500000, 400000);
        struct vg_wr rwr = {.nsge = 1, .sge = &rsge};

        for (unsigned k = 0; k < 16; k++) {
            static const uint32_t op[] = {PVRDMA_WR_RDMA_WRITE, PVRDMA_WR_SEND,
                                          PVRDMA_WR_RDMA_READ,
                                          PVRDMA_WR_RDMA_WRITE_WITH_IMM};
            struct vg_wr wr = vg_wr_to(k, op[k % 4], VGT_SIG, &sge, o->mr, 500000);

            vg_post_recv(s->qp, &rwr, 1);
            vg_post_send(s->qp, &wr, 1);
        }
    }
    for (unsigned d = g_rand_int(f->r) % 20000; d > 0; d--) {
        __asm__ volatile("" ::: "memory");
    }
}

/* The same of the further connection: SENDs, and WRITEs by the window's key. */
static void ignite_more(struct fire *f)
{
    for (unsigned i = 0; i < 2; i++) {
        struct vgt_side *s = &f->p.s[i], *o = &f->p.s[1 - i];
        struct pvrdma_sge sge = vg_sge(s->mr, 0, 400000);
        struct pvrdma_sge rsge = vg_sge(s->mr, 500000, 400000);
        struct vg_wr rwr = {.nsge = 1, .sge = &rsge};

        for (unsigned k = 0; k < 16; k++) {
            struct vg_wr wr = vg_wr_at(
                k, k % 2 ? PVRDMA_WR_SEND : PVRDMA_WR_RDMA_WRITE, VGT_SIG, &sge,
                (i ? f->mr : o->mr)->buf->va + 500000, i ? f->window.rkey : o->mr->rkey);

            vg_post_srq(f->srq[i], &rwr, 1);
            vg_post_send(f->qp[i], &wr, 1);
        }
    }
}

static void open_more(struct fire *f)
{
    static const struct vg_conn conn = {.timeout = 8, .retry_cnt = 1};
    struct vgt_side *s = f->p.s;
    struct vg_wr bind;

    for (unsigned i = 0; i < 2; i++) {
        f->srq[i] = vg_srq_new(s[i].pd, 64, 1, false);
        f->qp[i] = vg_qp_new(s[i].pd, s[i].scq, s[i].rcq,
                             &(struct vg_qp_opts){.srq = f->srq[i]});
    }
    vg_qp_connect(f->qp[0], f->qp[1], &conn);
    g_assert_cmpint(
        vg_create_mw(s[0].g, s[0].pd->handle, PVRDMA_EXT_MW_TYPE_1, &f->window), ==, 0);
    f->mr = vg_mr_alloc(s[0].pd, 0x7f1300000000ull, 1 << 20,
                        VG_ACCESS_ALL | PVRDMA_ACCESS_MW_BIND);
    bind =
        vg_wr_bind(&f->window, 99, f->mr, 0, f->mr->buf->len, PVRDMA_ACCESS_REMOTE_WRITE);
    g_assert_cmpuint(vg_post_send(s[0].qp, &bind, 1), ==, 1);
    vgt_expect(s[0].scq, 99, PVRDMA_WC_SUCCESS);
}

/* What is left of it: in a context that has gone just our side. */
static void close_more(struct fire *f)
{
    for (unsigned i = 0; i < 2; i++) {
        vg_qp_free(f->qp[i]);
        vg_srq_free(f->srq[i]);
    }
    if (f->window.g->up) {
        g_assert_cmpint(vg_destroy(f->window.g, (enum pvrdma_cmd)PVRDMA_CMD_DESTROY_MW,
                                   f->window.handle),
                        ==, 0);
    }
    vg_mr_free(f->mr);
}

static void open_fire(struct fire *f)
{
    /* One side posts through maps in its own RAM, which goes away as well. */
    struct vgt_opts o = {.conn = {.timeout = 8, .retry_cnt = 1},
                         .guest = {{.db = VG_DB_EXT}}};

    vgt_pair_open(&f->p, 0, 1, &o);
}

static void scribble(struct vg_buf *buf)
{
    memset(buf->host, 0x5c, buf->len);
}

static void check_scribbled(const struct vg_buf *buf, unsigned step)
{
    for (uint64_t i = 0; i < buf->len; i += step) {
        g_assert_cmpuint(buf->host[i], ==, 0x5c);
    }
}

static void destroy_qp(struct fire *f)
{
    struct vgt_side *s = &f->p.s[g_rand_int(f->r) & 1];
    struct vg_qp *fresh;
    struct pvrdma_cqe cqe;

    g_assert_cmpint(vg_destroy(s->g, PVRDMA_CMD_DESTROY_QP, s->qp->handle), ==, 0);
    /* The driver frees the rings now: nothing may be written any more. */
    scribble(s->qp->mem);
    while (vg_cq_poll(s->scq, &cqe, 1) == 1 || vg_cq_poll(s->rcq, &cqe, 1) == 1) {
    }
    g_usleep(2000);
    g_assert_cmpint(vg_cq_poll(s->scq, &cqe, 1), ==, 0);
    g_assert_cmpint(vg_cq_poll(s->rcq, &cqe, 1), ==, 0);
    check_scribbled(s->qp->mem, 1);
    fresh = vg_qp_new(s->pd, s->scq, s->rcq, NULL);
    s->g->up = false; /* free our side of the old one only */
    vg_qp_free(s->qp);
    s->g->up = true;
    s->qp = fresh;
}

static void destroy_mr(struct fire *f)
{
    struct vgt_side *s = &f->p.s[g_rand_int(f->r) & 1];

    g_assert_cmpint(vg_destroy(s->g, PVRDMA_CMD_DESTROY_MR, s->mr->handle), ==, 0);
    scribble(s->mr->buf);
    g_usleep(1000);
    check_scribbled(s->mr->buf, 61);
    s->g->up = false;
    vg_mr_free(s->mr);
    s->g->up = true;
    s->mr = vg_mr_alloc(s->pd, 0x7f1200000000ull, 1 << 20, VG_ACCESS_ALL);
}

/* A CQ in use cannot go; with its QP it can. */
static void destroy_cq(struct fire *f)
{
    struct vgt_side *s = &f->p.s[g_rand_int(f->r) & 1];

    g_assert_cmpint(vg_destroy(s->g, PVRDMA_CMD_DESTROY_CQ, s->scq->handle), >, 0);
    g_assert_cmpint(vg_destroy(s->g, PVRDMA_CMD_DESTROY_PD, s->pd->handle), >, 0);
    vg_cq_arm(s->scq, false);
    vg_qp_free(s->qp);
    vg_cq_free(s->scq);
    s->scq = vg_cq_new(s->pd, 256);
    s->qp = vg_qp_new(s->pd, s->scq, s->rcq, NULL);
}

static void modify_qp(struct fire *f)
{
    struct vgt_side *s = &f->p.s[g_rand_int(f->r) & 1];

    switch (g_rand_int(f->r) % 3) {
    case 0:
        vg_qp_to_state(s->qp, PVRDMA_QPS_ERR);
        break;
    case 1:
        vg_qp_to_reset(s->qp);
        break;
    case 2:
        vg_qp_to_state(s->qp, PVRDMA_QPS_SQD);
        break;
    }
}

static void unbind_gid(struct fire *f)
{
    struct vguest *g = f->p.s[g_rand_int(f->r) & 1].g;

    g_assert_cmpint(vg_unbind_gid(g, 0, &g->gid), ==, 0);
    g_usleep(g_rand_int(f->r) % 500);
    g_assert_cmpint(vg_bind_gid(g, 0, &g->gid), ==, 0);
}

/* What a context still has goes with it: an extended one (side 0), or a stock one. */
static void destroy_context(struct fire *f)
{
    unsigned i = g_rand_int(f->r) & 1;
    struct vgt_side *s = &f->p.s[i];

    g_assert_cmpint(vg_destroy(s->g, PVRDMA_CMD_DESTROY_UC, s->g->uctx), ==, 0);
    scribble(s->mr->buf);
    if (i == 0) {
        scribble(f->mr->buf);
    }
    scribble(s->qp->mem);
    scribble(f->qp[i]->mem);
    scribble(f->srq[i]->mem);
    g_usleep(1000);
    check_scribbled(s->mr->buf, 61);
    if (i == 0) {
        check_scribbled(f->mr->buf, 61);
    }
    check_scribbled(s->qp->mem, 1);
    check_scribbled(f->qp[i]->mem, 1);
    check_scribbled(f->srq[i]->mem, 1);
    g_assert_cmpint(vg_destroy(s->g, PVRDMA_CMD_DESTROY_PD, s->pd->handle), >, 0);
    vgt_assert_no_objects(i == 0 ? "vm0" : "vm1");
    s->g->up = false;
}

static void remap(struct fire *f)
{
    struct vguest *g = f->p.s[g_rand_int(f->r) & 1].g;

    g_assert_cmpint(vg_dma_unmap(g, VG_HIGH_GPA, g->opts.high_size), ==, 0);
    g_assert_cmpint(
        vg_dma_map(g, g->memfd, g->opts.low_size, VG_HIGH_GPA, g->opts.high_size, 3), ==,
        0);
}

static void reset_device(struct fire *f)
{
    struct vguest *g = f->p.s[g_rand_int(f->r) & 1].g;

    if (g_rand_int(f->r) & 1) {
        g_assert_cmpint(vg_reset(g), ==, 0);
    } else {
        vg_reg_write(g, PVRDMA_REG_CTL, PVRDMA_CTL_RESET);
    }
    g->up = false;
}

static void detach(struct fire *f)
{
    struct vguest *g = f->p.s[g_rand_int(f->r) & 1].g;

    vg_disconnect(g);
}

static const struct shot {
    const char *name;
    void (*fire)(struct fire *f);
    bool reopen; /* the pair is unusable afterwards: without CQs that work, at least */
    bool more;   /* with all that a context can have */
} shots[] = {
    {"qp", destroy_qp, false},
    {"mr", destroy_mr, false},
    {"cq", destroy_cq, false},
    {"modify", modify_qp, false},
    {"gid", unbind_gid, false},
    {"unmap", remap, true},
    {"reset", reset_device, true},
    {"detach", detach, true},
    {"context", destroy_context, true, true},
};

static void test_shot(const void *data)
{
    const struct shot *shot = data;
    struct fire f = {.r = g_rand_new_with_seed(3)};
    struct vgt_traffic bystander;

    vgt_traffic_open(&bystander, 2, 3, 2, 4, 65536, NULL);
    open_fire(&f);
    for (unsigned i = 0; i < vgt_rounds(ROUNDS); i++) {
        if (shot->more) {
            open_more(&f);
            ignite_more(&f);
        }
        ignite(&f);
        shot->fire(&f);
        vgt_traffic_run(&bystander, 4);
        if (shot->more) {
            close_more(&f);
        }
        if (shot->reopen) {
            vgt_pair_close(&f.p);
            open_fire(&f);
        } else {
            vgt_pair_reconnect(&f.p, &(struct vg_conn){.timeout = 8, .retry_cnt = 1});
        }
    }
    vgt_pair_close(&f.p);
    vgt_traffic_close(&bystander);
    g_rand_free(f.r);
    vg_daemon_check(vgt_daemon);
    vgt_assert_no_objects("vm0");
    vgt_assert_no_objects("vm1");
}

int main(int argc, char **argv)
{
    /* Two workers: a QP's VM and its peer's may be served at the same time. */
    vgt_start(&argc, &argv, 300, 4);
    for (unsigned i = 0; i < G_N_ELEMENTS(shots); i++) {
        char *path = g_strdup_printf("/destroy/%s", shots[i].name);

        g_test_add_data_func(path, &shots[i], test_shot);
        g_free(path);
    }
    return vgt_run();
}
