/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: memory windows, and MRs that are changed, of programs' extended QPs.
 *
 * What a window lets a peer do, and whom; that its key gives nothing once its end was
 * told, and its MR stays as long as it has windows; that no bind can be made which
 * gives more than the MR has.  A changed MR keeps its keys, and what is refused
 * changes nothing.
 */
#include "vgtest.h"

#include <unistd.h>

#define VA       0x7f6600000000ull
#define LEN      (16 * 4096u)
#define RIGHTS   (VG_ACCESS_ALL | PVRDMA_ACCESS_MW_BIND)
#define REMOTE   PVRDMA_ACCESS_REMOTE
#define BIND_ID  80
#define WRITE_ID 81
#define INV_ID   82
#define SEND_ID  83

static const struct vgt_opts program = {.guest = {{.db = VG_DB_EXT}, {.db = VG_DB_EXT}},
                                        .conn = {.timeout = 8}};

/* A pair of programs' QPs; side 1 has an MR that windows can be bound to. */
struct lab {
    struct vgt_pair p;
    struct vgt_side *own; /* side 1 */
    struct vg_mr *mr;
};

static void lab_open(struct lab *l)
{
    vgt_pair_open(&l->p, 0, 1, &program);
    l->own = &l->p.s[1];
    l->mr = vg_mr_alloc(l->own->pd, VA + 0x123, LEN, RIGHTS);
}

static void lab_close(struct lab *l)
{
    vg_mr_free(l->mr);
    vgt_pair_close(&l->p);
    vg_daemon_check(vgt_daemon);
    vgt_assert_no_objects("vm0");
    vgt_assert_no_objects("vm1");
}

static void reconnect(struct lab *l)
{
    vgt_pair_reconnect(&l->p, &program.conn);
}

static struct vg_mw window_new(struct lab *l, uint32_t type)
{
    struct vg_mw w;

    g_assert_cmpint(vg_create_mw(l->own->g, l->own->pd->handle, type, &w), ==, 0);
    return w;
}

static int window_end(const struct vg_mw *w)
{
    return vg_destroy(w->g, (enum pvrdma_cmd)PVRDMA_CMD_DESTROY_MW, w->handle);
}

static void window_free(const struct vg_mw *w)
{
    g_assert_cmpint(window_end(w), ==, 0);
}

static void post(struct vgt_side *s, struct vg_wr wr)
{
    g_assert_cmpuint(vg_post_send(s->qp, &wr, 1), ==, 1);
}

static void bind_mw(struct vgt_side *s, struct vg_mw *w, const struct vg_mr *mr,
                    uint64_t off, uint64_t len, uint32_t access)
{
    struct pvrdma_cqe cqe;

    post(s, vg_wr_bind(w, BIND_ID, mr, off, len, access));
    cqe = vgt_expect(s->scq, BIND_ID, PVRDMA_WC_SUCCESS);
    g_assert_cmpuint(cqe.opcode, ==, PVRDMA_WC_BIND_MW);
}

static struct vg_wr inv_wr(uint32_t opcode, uint32_t key)
{
    return (struct vg_wr){.wr_id = opcode == PVRDMA_WR_LOCAL_INV ? INV_ID : SEND_ID,
                          .opcode = opcode,
                          .flags = VGT_SIG,
                          .imm = key};
}

/* Side 0 moves @len bytes at @va under @key; reconnects after an error. */
static void rdma(struct lab *l, uint32_t opcode, uint64_t va, uint32_t key, uint32_t len,
                 enum pvrdma_wc_status status)
{
    struct vgt_side *s = &l->p.s[0];
    struct pvrdma_sge sge = vg_sge(s->mr, 0, len);

    post(s, vg_wr_at(WRITE_ID, opcode, VGT_SIG, &sge, va, key));
    vgt_expect(s->scq, WRITE_ID, status);
    if (status != PVRDMA_WC_SUCCESS) {
        reconnect(l);
    }
}

static void write_to(struct lab *l, uint64_t va, uint32_t key, uint32_t len, bool good)
{
    rdma(l, PVRDMA_WR_RDMA_WRITE, va, key, len,
         good ? PVRDMA_WC_SUCCESS : PVRDMA_WC_REM_ACCESS_ERR);
}

/* Side 1 posts what its queue fails with. */
static void refuse(struct lab *l, struct vg_wr wr, enum pvrdma_wc_status status)
{
    post(l->own, wr);
    vgt_expect(l->own->scq, wr.wr_id, status);
    g_assert_cmpuint(vg_qp_state(l->own->qp), ==, PVRDMA_QPS_ERR);
    reconnect(l);
}

static int end_mr(const struct vg_mr *mr)
{
    return vg_destroy(mr->pd->g, PVRDMA_CMD_DESTROY_MR, mr->handle);
}

/* ---- what a window is good for ---- */

static void test_use(const void *arg)
{
    uint32_t type = GPOINTER_TO_UINT(arg), old;
    struct vg_mw w;
    struct lab l;
    uint64_t va;

    lab_open(&l);
    va = l.mr->buf->va;
    w = window_new(&l, type);
    write_to(&l, va, w.rkey, 8, false); /* bound to nothing */

    bind_mw(l.own, &w, l.mr, 4000, 9000, REMOTE);
    vgt_fill(l.p.s[0].mr->buf->host, 9000, 1);
    memset(l.mr->buf->host, 0x77, LEN);
    write_to(&l, va + 4000, w.rkey, 9000, true);
    vgt_check(l.mr->buf->host + 4000, 9000, 1);
    rdma(&l, PVRDMA_WR_RDMA_READ, va + 5000, w.rkey, 8000, PVRDMA_WC_SUCCESS);
    g_assert_cmpmem(l.p.s[0].mr->buf->host, 8000, l.mr->buf->host + 5000, 8000);
    /* Not a byte beside it, though the MR has them. */
    write_to(&l, va + 3999, w.rkey, 9000, false);
    write_to(&l, va + 4000, w.rkey, 9001, false);
    write_to(&l, va + 13000, w.rkey, 1, false);
    write_to(&l, va + 4000, w.rkey ^ 0x80, 8, false);
    for (unsigned i = 0; i < LEN; i++) {
        g_assert_true((i >= 4000 && i < 13000) || l.mr->buf->host[i] == 0x77);
    }

    /* It is none of the owner's keys. */
    {
        struct pvrdma_sge sge = {va + 4000, 8, w.rkey};

        refuse(&l, vg_wr_to(1, PVRDMA_WR_RDMA_WRITE, VGT_SIG, &sge, l.p.s[0].mr, 0),
               PVRDMA_WC_LOC_PROT_ERR);
    }
    /* The MR stays, as it is, while it has windows. */
    g_assert_cmpint(end_mr(l.mr), ==, EBUSY);
    g_assert_cmpint(vg_destroy(l.own->g, PVRDMA_CMD_DESTROY_MR, w.handle), !=, 0);
    write_to(&l, va + 4000, w.rkey, 9000, true);

    old = w.rkey;
    if (type == PVRDMA_EXT_MW_TYPE_1) { /* bound over, with fewer rights */
        bind_mw(l.own, &w, l.mr, 0, LEN, PVRDMA_ACCESS_REMOTE_READ);
        write_to(&l, va + 4000, old, 8, false);
        write_to(&l, va + 4000, w.rkey, 8, false);
        rdma(&l, PVRDMA_WR_RDMA_READ, va, w.rkey, LEN, PVRDMA_WC_SUCCESS);
        /* Nobody but a bind takes its key. */
        refuse(&l, inv_wr(PVRDMA_WR_LOCAL_INV, w.rkey), PVRDMA_WC_MW_BIND_ERR);
        vgt_recv(l.own, 9, 0, 64);
        post(&l.p.s[0], inv_wr(PVRDMA_WR_SEND_WITH_INV, w.rkey));
        vgt_expect(l.p.s[0].scq, SEND_ID, PVRDMA_WC_REM_ACCESS_ERR);
        reconnect(&l);
        rdma(&l, PVRDMA_WR_RDMA_READ, va, w.rkey, LEN, PVRDMA_WC_SUCCESS);
        old = w.rkey;
        bind_mw(l.own, &w, l.mr, 0, 0, 0); /* to nothing */
    } else {
        refuse(&l, vg_wr_bind(&w, BIND_ID, l.mr, 0, LEN, REMOTE), PVRDMA_WC_MW_BIND_ERR);
        write_to(&l, va + 4000, old, 8, true);
        post(l.own, inv_wr(PVRDMA_WR_LOCAL_INV, old));
        vgt_expect(l.own->scq, INV_ID, PVRDMA_WC_SUCCESS);
        refuse(&l, vg_wr_bind(&w, BIND_ID, l.mr, 0, 0, REMOTE), PVRDMA_WC_MW_BIND_ERR);
    }
    write_to(&l, va + 4000, old, 8, false);
    write_to(&l, va + 4000, w.rkey, 8, false);
    g_assert_cmpint(end_mr(l.mr), ==, 0);
    refuse(&l, vg_wr_bind(&w, BIND_ID, l.mr, 0, LEN, REMOTE), PVRDMA_WC_MW_BIND_ERR);

    /* It ends bound as well, and the next has another key. */
    l.own->g->up = false;
    vg_mr_free(l.mr);
    l.own->g->up = true;
    l.mr = vg_mr_alloc(l.own->pd, VA, LEN, RIGHTS);
    bind_mw(l.own, &w, l.mr, 0, LEN, REMOTE);
    write_to(&l, VA, w.rkey, LEN, true);
    window_free(&w);
    g_assert_cmpint(window_end(&w), !=, 0);
    write_to(&l, VA, w.rkey, 8, false);
    lab_close(&l);
}

/* One of type 2B is for the queue pair that bound it. */
static void test_other_qp(void)
{
    struct vg_mw w;
    struct vg_qp *bound;
    struct lab l;

    lab_open(&l);
    w = window_new(&l, PVRDMA_EXT_MW_TYPE_2B);
    bind_mw(l.own, &w, l.mr, 0, LEN, REMOTE);
    write_to(&l, l.mr->buf->va, w.rkey, LEN, true);

    bound = l.own->qp;
    l.own->qp = vg_qp_new(l.own->pd, l.own->scq, l.own->rcq, NULL);
    reconnect(&l);
    write_to(&l, l.mr->buf->va, w.rkey, 8, false);
    rdma(&l, PVRDMA_WR_ATOMIC_FETCH_AND_ADD, (l.mr->buf->va + 7) & ~7ull, w.rkey, 8,
         PVRDMA_WC_REM_ACCESS_ERR);
    refuse(&l, inv_wr(PVRDMA_WR_LOCAL_INV, w.rkey), PVRDMA_WC_MW_BIND_ERR);
    vgt_recv(l.own, 9, 0, 64);
    post(&l.p.s[0], inv_wr(PVRDMA_WR_SEND_WITH_INV, w.rkey));
    vgt_expect(l.p.s[0].scq, SEND_ID, PVRDMA_WC_REM_ACCESS_ERR);
    vgt_expect(l.own->rcq, 9, PVRDMA_WC_MW_BIND_ERR);

    /* Its own: the key is alive, and a peer ends it. */
    vg_qp_free(l.own->qp);
    l.own->qp = bound;
    reconnect(&l);
    write_to(&l, l.mr->buf->va, w.rkey, 8, true);
    vgt_recv(l.own, 9, 0, 64);
    post(&l.p.s[0], inv_wr(PVRDMA_WR_SEND_WITH_INV, w.rkey));
    vgt_expect(l.p.s[0].scq, SEND_ID, PVRDMA_WC_SUCCESS);
    {
        struct pvrdma_cqe cqe = vgt_expect(l.own->rcq, 9, PVRDMA_WC_SUCCESS);

        g_assert_cmpuint(cqe.wc_flags, ==, PVRDMA_WC_FLAG_INV);
        g_assert_cmpuint(cqe.imm_data, ==, w.rkey);
    }
    write_to(&l, l.mr->buf->va, w.rkey, 8, false);

    /* Bound, and its queue pair gone: the key is nobody's. */
    bind_mw(l.own, &w, l.mr, 0, LEN, REMOTE);
    vg_qp_free(l.own->qp);
    l.own->qp = vg_qp_new(l.own->pd, l.own->scq, l.own->rcq, NULL);
    reconnect(&l);
    write_to(&l, l.mr->buf->va, w.rkey, 8, false);
    g_assert_cmpint(end_mr(l.mr), ==, EBUSY);
    window_free(&w);
    lab_close(&l);
}

/* A bind goes by what the MR has. */
static void test_bad(void)
{
    struct vg_mr *mr, *other_mr;
    struct vg_pd *other;
    struct vg_mw w, w1, far;
    struct vg_wr good, wr;
    struct lab l;

    lab_open(&l);
    w = window_new(&l, PVRDMA_EXT_MW_TYPE_2B);
    w1 = window_new(&l, PVRDMA_EXT_MW_TYPE_1);
    good = vg_wr_bind(&w, BIND_ID, l.mr, 0, LEN, REMOTE);
#define BAD(field, value)                      \
    do {                                       \
        wr = good;                             \
        wr.bind.field = (value);               \
        refuse(&l, wr, PVRDMA_WC_MW_BIND_ERR); \
    } while (0)
    BAD(addr, l.mr->buf->va - 1);
    BAD(addr, l.mr->buf->va + 1);
    BAD(addr, 0);
    BAD(addr, UINT64_MAX);
    BAD(length, LEN + 1);
    BAD(length, UINT64_MAX);
    BAD(length, UINT64_MAX - VA);
    BAD(length, 0);
    BAD(lkey, 0);
    BAD(lkey, UINT32_MAX);
    BAD(lkey, l.mr->lkey ^ 0x80);
    BAD(lkey, w.rkey); /* a window of a window */
    BAD(lkey, w1.rkey);
    BAD(rkey, 0);
    BAD(rkey, UINT32_MAX);
    BAD(rkey, l.mr->rkey); /* no window */
    BAD(access_flags, REMOTE | PVRDMA_ACCESS_MW_BIND);
    BAD(access_flags, REMOTE | PVRDMA_ACCESS_ZERO_BASED);
    BAD(access_flags, 1u << 7);
#undef BAD
    wr = good;
    wr.bind.addr = l.own->mr->buf->va;
    wr.bind.lkey = l.own->mr->lkey;
    refuse(&l, wr, PVRDMA_WC_MW_BIND_ERR); /* no MW_BIND */
    wr = good;
    wr.flags |= PVRDMA_SEND_INLINE;
    refuse(&l, wr, PVRDMA_WC_LOC_QP_OP_ERR);
    wr = good;
    wr.opcode = PVRDMA_WR_FAST_REG; /* the kernel's */
    refuse(&l, wr, PVRDMA_WC_LOC_QP_OP_ERR);
    refuse(&l, inv_wr(PVRDMA_WR_LOCAL_INV, l.mr->rkey), PVRDMA_WC_MW_BIND_ERR);
    refuse(&l, inv_wr(PVRDMA_WR_LOCAL_INV, 0), PVRDMA_WC_MW_BIND_ERR);

    /* To be written, the MR must be writable. */
    mr = vg_mr_alloc(l.own->pd, VA, 4096,
                     PVRDMA_ACCESS_MW_BIND | PVRDMA_ACCESS_REMOTE_READ);
    refuse(&l, vg_wr_bind(&w, BIND_ID, mr, 0, 4096, PVRDMA_ACCESS_REMOTE_WRITE),
           PVRDMA_WC_MW_BIND_ERR);
    refuse(&l, vg_wr_bind(&w1, BIND_ID, mr, 0, 4096, PVRDMA_ACCESS_REMOTE_ATOMIC),
           PVRDMA_WC_MW_BIND_ERR);
    bind_mw(l.own, &w1, mr, 0, 4096, PVRDMA_ACCESS_REMOTE_READ);

    /* Another PD's window, MR, or queue. */
    other = vg_pd_new(l.own->g);
    other_mr = vg_mr_alloc(other, VA, 4096, RIGHTS);
    g_assert_cmpint(vg_create_mw(l.own->g, other->handle, PVRDMA_EXT_MW_TYPE_1, &far), ==,
                    0);
    refuse(&l, vg_wr_bind(&far, BIND_ID, l.mr, 0, 8, REMOTE), PVRDMA_WC_MW_BIND_ERR);
    refuse(&l, vg_wr_bind(&far, BIND_ID, other_mr, 0, 8, REMOTE), PVRDMA_WC_MW_BIND_ERR);
    refuse(&l, vg_wr_bind(&w, BIND_ID, other_mr, 0, 8, REMOTE), PVRDMA_WC_MW_BIND_ERR);
    g_assert_cmpint(vg_destroy(l.own->g, PVRDMA_CMD_DESTROY_PD, other->handle), !=, 0);
    window_free(&far);
    vg_mr_free(other_mr);
    vg_pd_free(other);

    g_assert_cmpint(vg_create_mw(l.own->g, 0, PVRDMA_EXT_MW_TYPE_1, &far), !=, 0);
    g_assert_cmpint(vg_create_mw(l.own->g, l.own->pd->handle, 0, &far), !=, 0);
    g_assert_cmpint(vg_create_mw(l.own->g, l.own->pd->handle, 3, &far), !=, 0);
    far = (struct vg_mw){l.own->g, l.mr->handle, 0};
    g_assert_cmpint(window_end(&far), !=, 0);
    far.handle = 0;
    g_assert_cmpint(window_end(&far), !=, 0);
    far.handle = UINT32_MAX;
    g_assert_cmpint(window_end(&far), !=, 0);

    /* What was changed is all there was against it. */
    post(l.own, good);
    vgt_expect(l.own->scq, BIND_ID, PVRDMA_WC_SUCCESS);
    write_to(&l, l.mr->buf->va, good.bind.rkey, LEN, true);
    window_free(&w1);
    window_free(&w);
    vg_mr_free(mr);
    lab_close(&l);
}

/* A stock queue of a program has none of it. */
static void test_stock(void)
{
    static const uint32_t op[] = {PVRDMA_WR_BIND_MW, PVRDMA_WR_LOCAL_INV,
                                  PVRDMA_WR_SEND_WITH_INV};
    struct vgt_opts o = program;
    struct vg_mw w;
    struct lab l;

    o.qp.stock = true;
    vgt_pair_open(&l.p, 0, 1, &o);
    l.own = &l.p.s[1];
    l.mr = vg_mr_alloc(l.own->pd, VA, LEN, RIGHTS);
    w = window_new(&l, PVRDMA_EXT_MW_TYPE_1);
    for (unsigned i = 0; i < G_N_ELEMENTS(op); i++) {
        struct vg_wr wr = vg_wr_bind(&w, BIND_ID, l.mr, 0, LEN, REMOTE);

        wr.opcode = op[i];
        refuse(&l, wr, PVRDMA_WC_LOC_QP_OP_ERR);
    }
    window_free(&w);
    lab_close(&l);
}

/* ---- a key that is in use when its end comes ---- */

/* The writer may have found the key dead before: then its end is flushed, and is one. */
static void expect_end(struct vgt_side *own)
{
    struct pvrdma_cqe cqe;

    g_assert_true(vg_cq_wait(own->scq, &cqe, VGT_WAIT_MS));
    if (cqe.status != PVRDMA_WC_SUCCESS) {
        g_assert_cmpuint(cqe.status, ==, PVRDMA_WC_WR_FLUSH_ERR);
    }
}

/*
 * Two VMs, served by two workers, WRITE by the keys of two windows of a third one's MR.
 * Their end is a LOCAL_INV, a SEND with invalidate, a bind of type 1 over it, or
 * DESTROY_MW; once it is told, not a byte changes, and the MR can go.
 */
static void test_race(void)
{
    const uint32_t len = 65536;
    struct vgt_opts o = program;
    struct vgt_pair p[2];
    struct vgt_side own;
    struct vg_mr *mr;
    unsigned caught = 0;

    o.qp.send_wr = 64;
    vgt_side_open(&own, 0, &o, 0);
    for (unsigned i = 0; i < 2; i++) {
        p[i].s[1] = own;
        vgt_side_open(&p[i].s[0], 1 + i, &o, 0);
        p[i].s[1].qp = vg_qp_new(own.pd, own.scq, own.rcq, &o.qp);
    }
    mr = vg_mr_alloc(own.pd, VA, len, RIGHTS);
    for (unsigned round = 0; round < vgt_rounds(400); round++) {
        unsigned how = round % 4, n = 0;
        bool type1 = how == 2;
        struct vg_mw w[2];
        struct pvrdma_cqe cqe;

        for (unsigned i = 0; i < 2; i++) {
            struct vgt_side *s = &p[i].s[0];
            struct pvrdma_sge sge = vg_sge(s->mr, 0, len);
            struct vg_wr wr = {.opcode = PVRDMA_WR_RDMA_WRITE,
                               .remote_addr = VA,
                               .nsge = 1,
                               .sge = &sge};

            vgt_pair_reconnect(&p[i], &o.conn);
            g_assert_cmpint(
                vg_create_mw(own.g, own.pd->handle,
                             type1 ? PVRDMA_EXT_MW_TYPE_1 : PVRDMA_EXT_MW_TYPE_2B, &w[i]),
                ==, 0);
            bind_mw(&p[i].s[1], &w[i], mr, 0, len, REMOTE);
            memset(s->mr->buf->host, 1 + i, len);
            wr.rkey = w[i].rkey;
            for (unsigned k = 0; k < 40; k++) {
                g_assert_cmpuint(vg_queue_send(s->qp, &wr, 1), ==, 1);
            }
            vg_ring_send(s->qp);
        }
        g_usleep(round % 7 * 20);
        for (unsigned i = 0; i < 2; i++) {
            struct vgt_side *s = &p[i].s[1];

            switch (how) {
            case 0:
                post(s, inv_wr(PVRDMA_WR_LOCAL_INV, w[i].rkey));
                expect_end(&own);
                break;
            case 1: /* behind the WRITEs */
                vgt_recv(s, 8, 0, 64);
                post(&p[i].s[0], inv_wr(PVRDMA_WR_SEND_WITH_INV, w[i].rkey));
                vgt_expect(own.rcq, 8, PVRDMA_WC_SUCCESS);
                break;
            case 2:
                post(s, vg_wr_bind(&w[i], BIND_ID, mr, 0, 0, 0));
                expect_end(&own);
                break;
            default:
                window_free(&w[i]);
                break;
            }
        }
        memset(mr->buf->host, 0x5c, len);
        for (unsigned i = 0; i < 2; i++) { /* were they writing? */
            n += vg_cq_wait(p[i].s[0].scq, &cqe, 0) ? 1 : 0;
        }
        g_usleep(200);
        for (uint32_t i = 0; i < len; i++) {
            g_assert_cmpuint(mr->buf->host[i], ==, 0x5c);
        }
        caught += n < 2;
        if (round % 16 == 0) {
            g_assert_cmpint(end_mr(mr), ==, 0); /* no window is left */
            own.g->up = false;
            vg_mr_free(mr);
            own.g->up = true;
            mr = vg_mr_alloc(own.pd, VA, len, RIGHTS);
        }
        for (unsigned i = 0; how != 3 && i < 2; i++) {
            window_free(&w[i]);
        }
    }
    g_test_message("in %u rounds writers had not heard of it", caught);
    vg_mr_free(mr);
    for (unsigned i = 0; i < 2; i++) {
        vg_qp_free(p[i].s[1].qp);
        vgt_side_close(&p[i].s[0]);
    }
    vgt_side_close(&own);
    vg_daemon_check(vgt_daemon);
    vgt_assert_no_objects("vm0");
}

/*
 * Two VMs, served by two workers, WRITE by the key of one window of a third one's MR,
 * which a queue pair that neither uses binds over.  Once that is told, the old key
 * changes nothing, wherever the window is now.
 */
static void test_bind_over(void)
{
    const uint32_t len = 65536;
    struct vgt_opts o = program;
    struct vgt_pair p[2], binder;
    struct vgt_side own;
    struct vg_mw w;
    struct vg_mr *mr;
    unsigned caught = 0;

    o.qp.send_wr = 64;
    vgt_side_open(&own, 0, &o, 0);
    binder.s[0] = binder.s[1] = own;
    binder.s[1].qp = vg_qp_new(own.pd, own.scq, own.rcq, &o.qp);
    for (unsigned i = 0; i < 2; i++) {
        p[i].s[1] = own;
        vgt_side_open(&p[i].s[0], 1 + i, &o, 0);
        p[i].s[1].qp = vg_qp_new(own.pd, own.scq, own.rcq, &o.qp);
    }
    mr = vg_mr_alloc(own.pd, VA, 2 * len, RIGHTS);
    g_assert_cmpint(vg_create_mw(own.g, own.pd->handle, PVRDMA_EXT_MW_TYPE_1, &w), ==, 0);
    for (unsigned round = 0; round < vgt_rounds(400); round++) {
        struct pvrdma_cqe cqe;
        unsigned n = 0;

        vgt_pair_reconnect(&binder, &o.conn);
        bind_mw(&binder.s[0], &w, mr, 0, len, REMOTE);
        for (unsigned i = 0; i < 2; i++) {
            struct vgt_side *s = &p[i].s[0];
            struct pvrdma_sge sge = vg_sge(s->mr, 0, len);
            struct vg_wr wr = vg_wr_at(0, PVRDMA_WR_RDMA_WRITE, 0, &sge, VA, w.rkey);

            vgt_pair_reconnect(&p[i], &o.conn);
            memset(s->mr->buf->host, 1 + i, len);
            for (unsigned k = 0; k < 40; k++) {
                g_assert_cmpuint(vg_queue_send(s->qp, &wr, 1), ==, 1);
            }
            vg_ring_send(s->qp);
        }
        g_usleep(round % 7 * 20);
        bind_mw(&binder.s[0], &w, mr, round % 2 ? len : 0, round % 2 ? len : 0, REMOTE);
        memset(mr->buf->host, 0x5c, 2 * len);
        for (unsigned i = 0; i < 2; i++) { /* were they writing? */
            n += vg_cq_wait(p[i].s[0].scq, &cqe, 0) ? 1 : 0;
        }
        g_usleep(200);
        for (uint32_t i = 0; i < 2 * len; i++) {
            g_assert_cmpuint(mr->buf->host[i], ==, 0x5c);
        }
        caught += n < 2;
    }
    g_test_message("in %u rounds writers had not heard of it", caught);
    g_assert_cmpuint(caught, >, 0);
    window_free(&w);
    vg_mr_free(mr);
    for (unsigned i = 0; i < 2; i++) {
        vg_qp_free(p[i].s[1].qp);
        vgt_side_close(&p[i].s[0]);
    }
    vg_qp_free(binder.s[1].qp);
    vgt_side_close(&own);
    vg_daemon_check(vgt_daemon);
    vgt_assert_no_objects("vm0");
}

/*
 * Binds while the MR is deregistered, or changed: either the bind comes first and the MR
 * stays, or it finds none.  Whatever is in the middle may be destroyed, or all of it.
 */
static void test_destroy(void)
{
    unsigned busy = 0, gone = 0;
    struct lab l;

    lab_open(&l);
    for (unsigned round = 0; round < vgt_rounds(300); round++) {
        struct vg_mw w = window_new(&l, 1 + round % 2);
        struct pvrdma_cqe cqe;
        int err;

        post(l.own, vg_wr_bind(&w, BIND_ID, l.mr, 0, LEN, REMOTE));
        if (round % 3) {
            g_usleep(round % 5 * 10);
        }
        err = end_mr(l.mr);
        g_assert_true(vg_cq_wait(l.own->scq, &cqe, VGT_WAIT_MS));
        if (err) {
            g_assert_cmpint(err, ==, EBUSY);
            g_assert_cmpuint(cqe.status, ==, PVRDMA_WC_SUCCESS);
            write_to(&l, l.mr->buf->va, w.rkey, LEN, true);
            busy++;
        } else {
            g_assert_cmpuint(cqe.status, ==, PVRDMA_WC_MW_BIND_ERR);
            gone++;
            reconnect(&l);
            write_to(&l, l.mr->buf->va, w.rkey, 8, false);
            l.own->g->up = false;
            vg_mr_free(l.mr);
            l.own->g->up = true;
            l.mr = vg_mr_alloc(l.own->pd, VA, LEN, RIGHTS);
        }
        if (round % 10 == 9) { /* all of it, bound or not */
            g_assert_cmpint(vg_reset(l.own->g), ==, 0);
            l.own->g->up = false;
            vg_mr_free(l.mr);
            vgt_pair_close(&l.p);
            lab_open(&l);
            continue;
        }
        window_free(&w);
    }
    g_test_message("the bind was first %u times, the end %u times", busy, gone);
    lab_close(&l);
}

/* ---- MRs that are changed ---- */

static int rereg(const struct vg_mr *mr, struct pvrdma_ext_cmd_rereg_mr req)
{
    struct pvrdma_resp_create_mr resp;
    int err;

    req.cmd = PVRDMA_CMD_REREG_MR;
    req.mr_handle = mr->handle;
    err = vg_command(mr->pd->g, &req, sizeof(req), &resp, sizeof(resp));
    if (!err) {
        g_assert_cmpuint(resp.lkey, ==, mr->lkey);
        g_assert_cmpuint(resp.rkey, ==, mr->rkey);
        g_assert_cmpuint(resp.mr_handle, ==, mr->handle);
    }
    return err;
}

/* By all objects of side 1's VM. */
static int64_t pages_used(void)
{
    return vg_status_int(vgt_daemon, "vm1", "objects", "pages");
}

static void test_rereg(void)
{
    const uint32_t T = PVRDMA_EXT_REREG_TRANS, A = PVRDMA_EXT_REREG_ACCESS,
                   P = PVRDMA_EXT_REREG_PD;
    struct vg_buf *more;
    struct vg_pd *other, *kernel;
    struct pvrdma_ext_cmd_rereg_mr req;
    struct vg_mr *dma;
    struct vg_mw w;
    struct lab l;
    uint64_t va, pdir;
    int64_t pages;

    lab_open(&l);
    va = l.mr->buf->va;
    pages = pages_used();
    more = vg_buf_new(l.own->g, VA + (1ull << 32) + 5, 5 * 4096, VG_SCATTERED);
    pdir = vg_pdir_new(l.own->g, more->page, more->npages);

    /* Rights, and nothing else. */
    write_to(&l, va, l.mr->rkey, LEN, true);
    g_assert_cmpint(rereg(l.mr,
                          (struct pvrdma_ext_cmd_rereg_mr){
                              .flags = A, .access_flags = PVRDMA_ACCESS_REMOTE_READ}),
                    ==, 0);
    write_to(&l, va, l.mr->rkey, 8, false);
    rdma(&l, PVRDMA_WR_RDMA_READ, va, l.mr->rkey, LEN, PVRDMA_WC_SUCCESS);

    /* Other memory, with the rights that it has. */
    req = (struct pvrdma_ext_cmd_rereg_mr){.flags = T,
                                           .start = more->va,
                                           .length = more->len,
                                           .pdir_dma = pdir,
                                           .nchunks = more->npages};
    g_assert_cmpint(rereg(l.mr, req), ==, 0);
    vgt_fill(more->host, more->len, 3);
    rdma(&l, PVRDMA_WR_RDMA_READ, more->va, l.mr->rkey, (uint32_t)more->len,
         PVRDMA_WC_SUCCESS);
    vgt_check(l.p.s[0].mr->buf->host, more->len, 3);
    rdma(&l, PVRDMA_WR_RDMA_READ, va, l.mr->rkey, 8, PVRDMA_WC_REM_ACCESS_ERR);
    write_to(&l, more->va, l.mr->rkey, 8, false);
    g_assert_cmpint(pages_used(), ==, pages - l.mr->buf->npages + more->npages);

    /* Another PD: the key is not this queue's any more.  All at once, and back. */
    other = vg_pd_new(l.own->g);
    kernel = vg_pd_new_kernel(l.own->g);
    g_assert_cmpint(
        rereg(l.mr,
              (struct pvrdma_ext_cmd_rereg_mr){.flags = P, .pd_handle = other->handle}),
        ==, 0);
    rdma(&l, PVRDMA_WR_RDMA_READ, more->va, l.mr->rkey, 8, PVRDMA_WC_REM_ACCESS_ERR);
    g_assert_cmpint(vg_destroy(l.own->g, PVRDMA_CMD_DESTROY_PD, other->handle), !=, 0);
    req.flags = T | P | A;
    req.pd_handle = l.own->pd->handle;
    req.access_flags = RIGHTS | 1u << 20; /* a hint */
    req.start = l.mr->buf->va;
    req.length = LEN;
    req.pdir_dma = l.mr->pdir;
    req.nchunks = l.mr->buf->npages;
    g_assert_cmpint(rereg(l.mr, req), ==, 0);
    write_to(&l, va, l.mr->rkey, LEN, true);
    g_assert_cmpint(pages_used(), ==, pages);

    /* What cannot be changes nothing. */
#define BAD(field, value)                         \
    do {                                          \
        struct pvrdma_ext_cmd_rereg_mr bad = req; \
        bad.field = (value);                      \
        g_assert_cmpint(rereg(l.mr, bad), !=, 0); \
    } while (0)
    BAD(flags, 0);
    BAD(flags, 8);
    BAD(flags, UINT32_MAX);
    BAD(pd_handle, 0);
    BAD(pd_handle, kernel->handle);
    BAD(pd_handle, UINT32_MAX);
    BAD(access_flags, PVRDMA_ACCESS_REMOTE_WRITE);
    BAD(access_flags, PVRDMA_ACCESS_ON_DEMAND);
    BAD(length, 0);
    BAD(length, UINT64_MAX);
    BAD(length, LEN + 4096);
    BAD(start, UINT64_MAX);
    BAD(nchunks, 0);
    BAD(nchunks, UINT32_MAX);
    BAD(pdir_dma, 1);
    BAD(pdir_dma, 1ull << 45);
#undef BAD
    dma = vg_mr_new_dma(kernel);
    g_assert_cmpint(
        rereg(dma, (struct pvrdma_ext_cmd_rereg_mr){.flags = A, .access_flags = REMOTE}),
        !=, 0);
    vg_mr_free(dma);
    g_assert_cmpint(pages_used(), ==, pages);

    /* Nor does it while a window is bound to it; a window is no MR. */
    w = window_new(&l, PVRDMA_EXT_MW_TYPE_2B);
    bind_mw(l.own, &w, l.mr, 0, LEN, REMOTE);
    g_assert_cmpint(rereg(l.mr, req), ==, EBUSY);
    write_to(&l, va, w.rkey, LEN, true);
    window_free(&w);
    g_assert_cmpint(rereg(l.mr, req), ==, 0);
    w = window_new(&l, PVRDMA_EXT_MW_TYPE_1);
    {
        struct vg_mr none = *l.mr;

        none.handle = w.handle;
        g_assert_cmpint(rereg(&none, req), !=, 0);
    }
    window_free(&w);
    vg_pd_free(other);
    vg_pd_free(kernel);
    vg_pdir_free(l.own->g, pdir, more->npages);
    vg_buf_free(more);
    lab_close(&l);
}

/* READs of an MR that flips between two buffers find one or the other. */
static void test_rereg_traffic(void)
{
    struct pvrdma_ext_cmd_rereg_mr req[2];
    struct vg_buf *more;
    struct lab l;
    uint64_t pdir;
    unsigned seen[2] = {0};

    lab_open(&l);
    more = vg_buf_new(l.own->g, l.mr->buf->va, LEN, VG_SCATTERED);
    pdir = vg_pdir_new(l.own->g, more->page, more->npages);
    memset(l.mr->buf->host, 0, LEN);
    memset(more->host, 1, LEN);
    for (unsigned i = 0; i < 2; i++) {
        req[i] = (struct pvrdma_ext_cmd_rereg_mr){.flags = PVRDMA_EXT_REREG_TRANS,
                                                  .start = more->va,
                                                  .length = LEN,
                                                  .pdir_dma = i ? pdir : l.mr->pdir,
                                                  .nchunks = more->npages};
    }
    for (unsigned round = 0; round < vgt_rounds(300); round++) {
        struct vgt_side *s = &l.p.s[0];
        struct pvrdma_sge sge = vg_sge(s->mr, 0, 4096);

        for (unsigned k = 0; k < 8; k++) {
            sge.addr = s->mr->buf->va + k * 4096;
            post(s, vg_wr_to(k, PVRDMA_WR_RDMA_READ, VGT_SIG, &sge, l.mr, 0));
        }
        g_assert_cmpint(rereg(l.mr, req[(round + 1) % 2]), ==, 0);
        for (unsigned k = 0; k < 8; k++) {
            const uint8_t *got = s->mr->buf->host + k * 4096;

            vgt_expect(s->scq, k, PVRDMA_WC_SUCCESS);
            g_assert_cmpuint(got[0], <, 2);
            seen[got[0]]++;
            for (unsigned i = 0; i < 4096; i++) {
                g_assert_cmpuint(got[i], ==, got[0]);
            }
        }
        /* And from now on the new one. */
        rdma(&l, PVRDMA_WR_RDMA_READ, l.mr->buf->va, l.mr->rkey, LEN, PVRDMA_WC_SUCCESS);
        g_assert_cmpuint(s->mr->buf->host[LEN - 1], ==, (round + 1) % 2);
    }
    g_test_message("%u found the one, %u the other", seen[0], seen[1]);
    vg_pdir_free(l.own->g, pdir, more->npages);
    vg_buf_free(more);
    lab_close(&l);
}

/* Byte 0 at address 0, wherever in its page it lies; windows, too. */
static void test_zero_based(void)
{
    struct vg_mw w;
    struct vg_mr *mr;
    struct lab l;

    lab_open(&l);
    mr = vg_mr_alloc(l.own->pd, VA + 0x345, LEN, RIGHTS | PVRDMA_ACCESS_ZERO_BASED);
    vgt_fill(l.p.s[0].mr->buf->host, LEN, 4);
    write_to(&l, 0, mr->rkey, LEN, true);
    vgt_check(mr->buf->host, LEN, 4);
    write_to(&l, 1, mr->rkey, LEN, false);
    write_to(&l, mr->buf->va, mr->rkey, 8, false);
    w = window_new(&l, PVRDMA_EXT_MW_TYPE_1);
    {
        struct vg_wr wr = vg_wr_bind(&w, BIND_ID, mr, 0, 5000, REMOTE);

        wr.bind.addr = 8000;
        post(l.own, wr);
        vgt_expect(l.own->scq, BIND_ID, PVRDMA_WC_SUCCESS);
    }
    vgt_fill(l.p.s[0].mr->buf->host, 5000, 6);
    write_to(&l, 8000, w.rkey, 5000, true);
    vgt_check(mr->buf->host + 8000, 5000, 6);
    write_to(&l, 7999, w.rkey, 8, false);
    window_free(&w);
    /* Without its range it cannot begin elsewhere. */
    g_assert_cmpint(
        rereg(mr, (struct pvrdma_ext_cmd_rereg_mr){.flags = PVRDMA_EXT_REREG_ACCESS,
                                                   .access_flags = RIGHTS}),
        !=, 0);
    write_to(&l, 0, mr->rkey, LEN, true);
    vg_mr_free(mr);
    lab_close(&l);
}

int main(int argc, char **argv)
{
    vgt_start(&argc, &argv, 170, 3);
    g_test_add_data_func("/memwin/type-1", GUINT_TO_POINTER(PVRDMA_EXT_MW_TYPE_1),
                         test_use);
    g_test_add_data_func("/memwin/type-2b", GUINT_TO_POINTER(PVRDMA_EXT_MW_TYPE_2B),
                         test_use);
    g_test_add_func("/memwin/other-qp", test_other_qp);
    g_test_add_func("/memwin/bad", test_bad);
    g_test_add_func("/memwin/stock", test_stock);
    g_test_add_func("/memwin/race", test_race);
    g_test_add_func("/memwin/bind-over", test_bind_over);
    g_test_add_func("/memwin/destroy", test_destroy);
    g_test_add_func("/memwin/rereg", test_rereg);
    g_test_add_func("/memwin/rereg-traffic", test_rereg_traffic);
    g_test_add_func("/memwin/zero-based", test_zero_based);
    return vgt_run();
}
