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
            struct vg_wr wr = {.wr_id = k,
                               .opcode = op[k % 4],
                               .flags = VGT_SIG,
                               .nsge = 1,
                               .sge = &sge,
                               .remote_addr = o->mr->buf->va + 500000,
                               .rkey = o->mr->rkey};

            vg_post_recv(s->qp, &rwr, 1);
            vg_post_send(s->qp, &wr, 1);
        }
    }
    for (unsigned d = g_rand_int(f->r) % 20000; d > 0; d--) {
        __asm__ volatile("" ::: "memory");
    }
}

static void open_fire(struct fire *f)
{
    /* One side posts through maps in its own RAM, which goes away as well. */
    struct vgt_opts o = {.conn = {.timeout = 8, .retry_cnt = 1},
                         .guest = {{.db = VG_DB_EXT}}};

    vgt_pair_open(&f->p, 0, 1, &o);
}

static void destroy_qp(struct fire *f)
{
    struct vgt_side *s = &f->p.s[g_rand_int(f->r) & 1];
    struct vg_qp *fresh;
    struct pvrdma_cqe cqe;

    g_assert_cmpint(vg_destroy(s->g, PVRDMA_CMD_DESTROY_QP, s->qp->handle), ==, 0);
    /* The driver frees the rings now: nothing may be written any more. */
    memset(s->qp->mem->host, 0x5c, s->qp->mem->len);
    while (vg_cq_poll(s->scq, &cqe, 1) == 1 || vg_cq_poll(s->rcq, &cqe, 1) == 1) {
    }
    g_usleep(2000);
    g_assert_cmpint(vg_cq_poll(s->scq, &cqe, 1), ==, 0);
    g_assert_cmpint(vg_cq_poll(s->rcq, &cqe, 1), ==, 0);
    for (uint64_t i = 0; i < s->qp->mem->len; i++) {
        g_assert_cmpuint(s->qp->mem->host[i], ==, 0x5c);
    }
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
    memset(s->mr->buf->host, 0x5c, s->mr->buf->len);
    g_usleep(1000);
    for (uint64_t i = 0; i < s->mr->buf->len; i += 61) {
        g_assert_cmpuint(s->mr->buf->host[i], ==, 0x5c);
    }
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

/* What a context still has goes with it. */
static void destroy_context(struct fire *f)
{
    struct vgt_side *s = &f->p.s[g_rand_int(f->r) & 1];

    g_assert_cmpint(vg_destroy(s->g, PVRDMA_CMD_DESTROY_UC, s->g->uctx), ==, 0);
    memset(s->mr->buf->host, 0x5c, s->mr->buf->len);
    memset(s->qp->mem->host, 0x5c, s->qp->mem->len);
    g_usleep(1000);
    for (uint64_t i = 0; i < s->mr->buf->len; i += 61) {
        g_assert_cmpuint(s->mr->buf->host[i], ==, 0x5c);
    }
    for (uint64_t i = 0; i < s->qp->mem->len; i++) {
        g_assert_cmpuint(s->qp->mem->host[i], ==, 0x5c);
    }
    g_assert_cmpint(vg_destroy(s->g, PVRDMA_CMD_DESTROY_PD, s->pd->handle), >, 0);
    vgt_assert_no_objects(s->g == f->p.s[0].g ? "vm0" : "vm1");
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
} shots[] = {
    {"qp", destroy_qp, false},          {"mr", destroy_mr, false},
    {"cq", destroy_cq, false},          {"modify", modify_qp, false},
    {"gid", unbind_gid, false},         {"unmap", remap, true},
    {"reset", reset_device, true},      {"detach", detach, true},
    {"context", destroy_context, true},
};

static void test_shot(const void *data)
{
    const struct shot *shot = data;
    struct fire f = {.r = g_rand_new_with_seed(3)};
    struct vgt_traffic bystander;

    vgt_traffic_open(&bystander, 2, 3, 2, 4, 65536, NULL);
    open_fire(&f);
    for (unsigned i = 0; i < vgt_rounds(ROUNDS); i++) {
        ignite(&f);
        shot->fire(&f);
        vgt_traffic_run(&bystander, 4);
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
    struct vg_daemon_opts o = {.n_vms = 4, .poll_us = -1, .workers = 2};

    vgt_init(&argc, &argv, 300);
    vgt_daemon = vg_daemon_start(&o);
    for (unsigned i = 0; i < G_N_ELEMENTS(shots); i++) {
        char *path = g_strdup_printf("/destroy/%s", shots[i].name);

        g_test_add_data_func(path, &shots[i], test_shot);
        g_free(path);
    }
    return vgt_run();
}
