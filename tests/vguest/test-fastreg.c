/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: fast registration, LOCAL_INV and SEND with invalidate, as the guest's
 * kernel uses them.
 *
 * What a key gives, and that it gives nothing once its end was told: no byte lands
 * after that completion, though workers are copying by it when it comes.  What is not
 * to be registered or invalidated is an error to who asked.
 */
#include "vgtest.h"

#include <unistd.h>

#define FAST_VA  0x7f5500000000ull
#define FAST_MAX PVRDMA_EXT_MAX_FAST_REG

static const struct vgt_opts kernel = {.kernel = true, .conn = {.timeout = 8}};

/* A pair of the kernels' QPs; side 1 has an MR for fast registration. */
struct fast {
    struct vgt_pair p;
    struct vg_mr *mr;
    struct vg_srq *srq; /* where side 1 receives, or NULL */
};

static void fast_open(struct fast *f, uint64_t offset, uint64_t len)
{
    *f = (struct fast){0};
    vgt_pair_open(&f->p, 0, 1, &kernel);
    f->mr = vg_mr_new_fast(f->p.s[1].pd,
                           vg_buf_new(f->p.s[1].g, FAST_VA + offset, len, VG_SCATTERED),
                           FAST_MAX);
}

static void fast_close(struct fast *f)
{
    vg_mr_free(f->mr);
    if (f->srq) { /* its QP first */
        vg_qp_free(f->p.s[1].qp);
        vg_srq_free(f->srq);
        f->p.s[1].qp = vg_qp_new(f->p.s[1].pd, f->p.s[1].scq, f->p.s[1].rcq, NULL);
    }
    vgt_pair_close(&f->p);
    vg_daemon_check(vgt_daemon);
    vgt_assert_no_objects("vm0");
    vgt_assert_no_objects("vm1");
}

static void post(struct vgt_side *s, struct vg_wr wr)
{
    g_assert_cmpuint(vg_post_send(s->qp, &wr, 1), ==, 1);
}

static void fast_reg(struct vgt_side *s, struct vg_mr *mr, uint32_t access)
{
    struct pvrdma_cqe cqe;

    post(s, vg_wr_fast_reg(mr, 70, access));
    cqe = vgt_expect(s->scq, 70, PVRDMA_WC_SUCCESS);
    g_assert_cmpuint(cqe.opcode, ==, PVRDMA_WC_FAST_REG);
}

static struct vg_wr local_inv(uint32_t key)
{
    return (struct vg_wr){
        .wr_id = 71, .opcode = PVRDMA_WR_LOCAL_INV, .flags = VGT_SIG, .imm = key};
}

static struct vg_wr send_inv(uint32_t key)
{
    return (struct vg_wr){
        .wr_id = 72, .opcode = PVRDMA_WR_SEND_WITH_INV, .flags = VGT_SIG, .imm = key};
}

/* @s moves @len bytes at the start of its MR to or from @key. */
static void rdma(struct vgt_side *s, uint32_t opcode, uint64_t va, uint32_t key,
                 uint32_t len, enum pvrdma_wc_status status)
{
    struct pvrdma_sge sge = vg_sge(s->mr, 0, len);

    post(s, vg_wr_at(73, opcode, VGT_SIG, &sge, va, key));
    vgt_expect(s->scq, 73, status);
}

static void write_to(struct fast *f, uint32_t key, enum pvrdma_wc_status status)
{
    rdma(&f->p.s[0], PVRDMA_WR_RDMA_WRITE, f->mr->buf->va, key, (uint32_t)f->mr->buf->len,
         status);
}

static void reconnect(struct fast *f)
{
    vgt_pair_reconnect(&f->p, &kernel.conn);
}

/* From here on side 1 receives from a shared queue. */
static void use_srq(struct fast *f)
{
    struct vgt_side *s = &f->p.s[1];

    f->srq = vg_srq_new(s->pd, 16, 1, true);
    vg_qp_free(s->qp);
    s->qp = vg_qp_new(s->pd, s->scq, s->rcq, &(struct vg_qp_opts){.srq = f->srq});
    reconnect(f);
}

static void recv_one(struct fast *f, uint32_t len)
{
    struct pvrdma_sge sge = vg_sge(f->p.s[1].mr, 0, len);
    struct vg_wr wr = {.wr_id = 8, .nsge = 1, .sge = &sge};

    g_assert_cmpuint(
        f->srq ? vg_post_srq(f->srq, &wr, 1) : vg_post_recv(f->p.s[1].qp, &wr, 1), ==, 1);
}

/* ---- what a key is good for ---- */

static void test_use(void)
{
    const uint32_t len = 300 * 4096 - 1000; /* 300 pages, the first one in part */
    struct vgt_opts o = kernel;
    struct fast f = {0};
    uint32_t old;

    o.mr_len = 2 << 20;
    vgt_pair_open(&f.p, 0, 1, &o);
    f.mr = vg_mr_new_fast(
        f.p.s[1].pd, vg_buf_new(f.p.s[1].g, FAST_VA + 0x321, len, VG_SCATTERED), 300);
    /* No key yet. */
    write_to(&f, f.mr->rkey, PVRDMA_WC_REM_ACCESS_ERR);
    reconnect(&f);

    fast_reg(&f.p.s[1], f.mr, VG_ACCESS_ALL);
    vgt_fill(f.p.s[0].mr->buf->host, len, 5);
    write_to(&f, f.mr->rkey, PVRDMA_WC_SUCCESS);
    vgt_check(f.mr->buf->host, len, 5);
    vgt_fill(f.mr->buf->host, len, 6);
    rdma(&f.p.s[0], PVRDMA_WR_RDMA_READ, f.mr->buf->va, f.mr->rkey, len,
         PVRDMA_WC_SUCCESS);
    vgt_check(f.p.s[0].mr->buf->host, len, 6);
    /* It is an lkey as well. */
    f.p.s[1].mr->buf->host[0] = 0;
    {
        struct pvrdma_sge sge = {f.mr->buf->va + 100, 64, f.mr->lkey};

        post(&f.p.s[1], vg_wr_to(1, PVRDMA_WR_RDMA_WRITE, VGT_SIG, &sge, f.p.s[0].mr, 0));
        vgt_expect(f.p.s[1].scq, 1, PVRDMA_WC_SUCCESS);
        g_assert_cmpmem(f.p.s[0].mr->buf->host, 64, f.mr->buf->host + 100, 64);
    }
    /* Not a byte more. */
    rdma(&f.p.s[0], PVRDMA_WR_RDMA_WRITE, f.mr->buf->va, f.mr->rkey, len + 1,
         PVRDMA_WC_REM_ACCESS_ERR);
    reconnect(&f);

    old = f.mr->rkey;
    post(&f.p.s[1], local_inv(old));
    g_assert_cmpuint(vgt_expect(f.p.s[1].scq, 71, PVRDMA_WC_SUCCESS).opcode, ==,
                     PVRDMA_WC_LOCAL_INV);
    memset(f.mr->buf->host, 0x5c, len);
    write_to(&f, old, PVRDMA_WC_REM_ACCESS_ERR);
    vgt_expect_event(f.p.s[1].g, PVRDMA_EVENT_QP_ACCESS_ERR, f.p.s[1].qp->handle);
    reconnect(&f);
    /* Once more is no harm: the peer may have been faster. */
    post(&f.p.s[1], local_inv(old));
    vgt_expect(f.p.s[1].scq, 71, PVRDMA_WC_SUCCESS);

    /* The next key: the old one stays dead, and rights are what the WR says. */
    fast_reg(&f.p.s[1], f.mr, PVRDMA_ACCESS_REMOTE_READ);
    g_assert_cmpuint(f.mr->rkey, !=, old);
    write_to(&f, old, PVRDMA_WC_REM_ACCESS_ERR);
    reconnect(&f);
    write_to(&f, f.mr->rkey, PVRDMA_WC_REM_ACCESS_ERR);
    reconnect(&f);
    rdma(&f.p.s[0], PVRDMA_WR_RDMA_READ, f.mr->buf->va, f.mr->rkey, len,
         PVRDMA_WC_SUCCESS);
    for (uint32_t i = 0; i < len; i++) {
        g_assert_cmpuint(f.p.s[0].mr->buf->host[i], ==, 0x5c);
    }
    fast_close(&f);
}

/* All 256 low bytes, one after the other; whoever has the index next has another. */
static void test_keys(void)
{
    struct fast f;
    GHashTable *seen = g_hash_table_new(NULL, NULL);

    fast_open(&f, 0, 8192);
    for (unsigned i = 0; i < 256; i++) {
        fast_reg(&f.p.s[1], f.mr, VG_ACCESS_ALL);
        g_assert_true(g_hash_table_add(seen, GUINT_TO_POINTER(f.mr->rkey)));
        write_to(&f, f.mr->rkey, PVRDMA_WC_SUCCESS);
        post(&f.p.s[1], local_inv(f.mr->rkey));
        vgt_expect(f.p.s[1].scq, 71, PVRDMA_WC_SUCCESS);
    }
    g_hash_table_unref(seen);
    fast_close(&f);
}

/* A list as a ULP posts it: each waits for those before. */
static void test_order(void)
{
    struct fast f;

    fast_open(&f, 0, 65536);
    for (unsigned i = 0; i < vgt_rounds(300); i++) {
        struct vgt_side *s = &f.p.s[1], *peer = &f.p.s[0];
        struct pvrdma_sge to = {FAST_VA, 65536, 0}, from = vg_sge(peer->mr, 0, 65536);
        struct vg_wr wr[6];

        vgt_fill(peer->mr->buf->host, 65536, i);
        wr[0] = vg_wr_fast_reg(f.mr, 0, PVRDMA_ACCESS_LOCAL_WRITE);
        to.lkey = f.mr->lkey;
        wr[1] = vg_wr_at(0, PVRDMA_WR_RDMA_READ, 0, &to, from.addr, from.lkey);
        wr[2] = local_inv(f.mr->rkey);
        wr[3] = vg_wr_fast_reg(f.mr, 3, VG_ACCESS_ALL);
        wr[4] = (struct vg_wr){.opcode = PVRDMA_WR_SEND, .nsge = 0};
        wr[5] = local_inv(f.mr->rkey);
        for (unsigned k = 0; k < 6; k++) {
            wr[k].wr_id = 100 + k;
            wr[k].flags = i % 2 ? VGT_SIG : k == 5 ? VGT_SIG : 0;
            wr[k].flags |= i % 3 ? 0 : PVRDMA_SEND_FENCE;
        }
        vgt_recv(peer, 9, 0, 64);
        g_assert_cmpuint(vg_post_send(s->qp, wr, 6), ==, 6);
        for (unsigned k = i % 2 ? 0 : 5; k < 6; k++) {
            vgt_expect(s->scq, 100 + k, PVRDMA_WC_SUCCESS);
        }
        vgt_expect(peer->rcq, 9, PVRDMA_WC_SUCCESS);
        vgt_check(f.mr->buf->host, 65536, i);
    }
    fast_close(&f);
}

/* ---- SEND with invalidate ---- */

static void expect_inv(struct fast *f, uint32_t key, uint32_t len)
{
    struct pvrdma_cqe cqe = vgt_expect(f->p.s[1].rcq, 8, PVRDMA_WC_SUCCESS);

    g_assert_cmpuint(cqe.opcode, ==, PVRDMA_WC_RECV);
    g_assert_cmpuint(cqe.wc_flags, ==, PVRDMA_WC_FLAG_INV);
    g_assert_cmpuint(cqe.imm_data, ==, key);
    g_assert_cmpuint(cqe.byte_len, ==, len);
    vgt_expect(f->p.s[0].scq, 72, PVRDMA_WC_SUCCESS);
}

/* The peer names a key that is not its to invalidate. */
static void refuse_inv(struct fast *f, uint32_t key)
{
    recv_one(f, 64);
    post(&f->p.s[0], send_inv(key));
    vgt_expect(f->p.s[0].scq, 72, PVRDMA_WC_REM_ACCESS_ERR);
    vgt_expect(f->p.s[1].rcq, 8, PVRDMA_WC_MW_BIND_ERR);
    vgt_expect_event(f->p.s[1].g, PVRDMA_EVENT_QP_ACCESS_ERR, f->p.s[1].qp->handle);
    reconnect(f);
}

static void test_send_inv(const void *shared)
{
    static const uint32_t length[] = {0, 1, 4096, 4097, 300000};
    struct fast f;

    fast_open(&f, 0, 65536);
    if (shared) {
        use_srq(&f);
    }
    for (unsigned i = 0; i < G_N_ELEMENTS(length) * 4; i++) {
        uint32_t len = length[i % G_N_ELEMENTS(length)];
        struct pvrdma_sge sge = vg_sge(f.p.s[0].mr, 0, len);
        struct vg_wr wr;

        fast_reg(&f.p.s[1], f.mr, VG_ACCESS_ALL);
        write_to(&f, f.mr->rkey, PVRDMA_WC_SUCCESS);
        vgt_fill(f.p.s[0].mr->buf->host, len, i);
        recv_one(&f, 400000);
        wr = send_inv(f.mr->rkey);
        wr.nsge = 1;
        wr.sge = &sge;
        post(&f.p.s[0], wr);
        expect_inv(&f, f.mr->rkey, len);
        vgt_check(f.p.s[1].mr->buf->host, len, i);
        write_to(&f, f.mr->rkey, PVRDMA_WC_REM_ACCESS_ERR);
        reconnect(&f);
    }
    refuse_inv(&f, f.mr->rkey); /* it is dead */
    fast_close(&f);
}

static void test_foreign_inv(void)
{
    struct vg_pd *other;
    struct vg_mr *mr, *dma, *foreign;
    struct vgt_side s;
    struct fast f;

    fast_open(&f, 0, 8192);
    refuse_inv(&f, f.mr->rkey); /* not registered */
    refuse_inv(&f, 0);
    refuse_inv(&f, UINT32_MAX);
    refuse_inv(&f, f.p.s[1].mr->rkey); /* no fast registration */
    fast_reg(&f.p.s[1], f.mr, VG_ACCESS_ALL);
    refuse_inv(&f, f.mr->rkey ^ 0x80); /* a key that it had, or is going to have */
    write_to(&f, f.mr->rkey, PVRDMA_WC_SUCCESS);
    post(&f.p.s[1], local_inv(f.mr->rkey));
    vgt_expect(f.p.s[1].scq, 71, PVRDMA_WC_SUCCESS);
    dma = vg_mr_new_dma(f.p.s[1].pd);
    refuse_inv(&f, dma->rkey);
    vg_mr_free(dma);

    /* Without remote rights it is none of the peer's. */
    fast_reg(&f.p.s[1], f.mr, PVRDMA_ACCESS_LOCAL_WRITE);
    refuse_inv(&f, f.mr->rkey);
    post(&f.p.s[1], local_inv(f.mr->rkey));
    vgt_expect(f.p.s[1].scq, 71, PVRDMA_WC_SUCCESS);

    /* Another PD's, registered by that one's QP. */
    other = vg_pd_new_kernel(f.p.s[1].g);
    s = f.p.s[1];
    s.pd = other;
    s.qp = vg_qp_new(other, s.scq, s.rcq, NULL);
    vg_qp_connect(s.qp, s.qp, NULL);
    mr = vg_mr_new_fast(other, vg_buf_new(s.g, FAST_VA, 8192, VG_SCATTERED), 2);
    fast_reg(&s, mr, VG_ACCESS_ALL);
    refuse_inv(&f, mr->rkey);
    /* It is alive: its own queue has it. */
    s.mr = f.p.s[1].mr;
    post(&s, local_inv(mr->rkey));
    vgt_expect(s.scq, 71, PVRDMA_WC_SUCCESS);
    vg_mr_free(mr);
    vg_qp_free(s.qp);
    vg_pd_free(other);

    /* Another VM's: at most a number here. */
    foreign =
        vg_mr_new_fast(f.p.s[0].pd, vg_buf_new(f.p.s[0].g, FAST_VA, 8192, VG_CONTIG), 2);
    fast_reg(&f.p.s[0], foreign, VG_ACCESS_ALL);
    if (foreign->rkey != f.mr->rkey) {
        refuse_inv(&f, foreign->rkey);
    }
    vg_mr_free(foreign);
    fast_close(&f);
}

/* ---- what cannot be registered ---- */

static void refuse(struct fast *f, struct vg_wr wr, enum pvrdma_wc_status status)
{
    post(&f->p.s[1], wr);
    vgt_expect(f->p.s[1].scq, wr.wr_id, status);
    g_assert_cmpuint(vg_qp_state(f->p.s[1].qp), ==, PVRDMA_QPS_ERR);
    reconnect(f);
}

static void test_bad(void)
{
    const uint64_t nowhere = 1ull << 45;
    struct vg_mr *small;
    struct vguest *g;
    struct fast f;
    struct vg_wr good, wr;
    uint64_t dir, list, *word;

    fast_open(&f, 0x10, 2 * 4096);
    g = f.p.s[1].g;
    good = vg_wr_fast_reg(f.mr, 70, VG_ACCESS_ALL);
    good.reg.page_list_len = 3;
    /* A directory of our own to spoil. */
    dir = vg_alloc_page(g);
    list = vg_alloc_page(g);
    *(uint64_t *)vg_ptr(g, dir) = list;
    memcpy(vg_ptr(g, list), f.mr->buf->page, 3 * sizeof(uint64_t));
    good.reg.pl_pdir_dma = dir;

#define BAD(field, value)                      \
    do {                                       \
        wr = good;                             \
        wr.reg.field = (value);                \
        refuse(&f, wr, PVRDMA_WC_MW_BIND_ERR); \
    } while (0)
    BAD(page_shift, 0);
    BAD(page_shift, 21);
    BAD(page_shift, UINT32_MAX);
    BAD(page_list_len, 0);
    BAD(page_list_len, 2); /* 2 pages and 16 bytes */
    BAD(page_list_len, FAST_MAX + 1);
    BAD(page_list_len, UINT32_MAX);
    BAD(length, 0);
    BAD(length, 3 * 4096);
    BAD(length, UINT32_MAX);
    BAD(iova_start, UINT64_MAX - 100);
    BAD(access_flags, PVRDMA_ACCESS_REMOTE_WRITE);
    BAD(access_flags, PVRDMA_ACCESS_MW_BIND);
    BAD(access_flags, PVRDMA_ACCESS_ON_DEMAND);
    BAD(pl_pdir_dma, dir + 8);
    BAD(pl_pdir_dma, nowhere);
    BAD(pl_pdir_dma, UINT64_MAX & ~4095ull);
    BAD(rkey, 0);
    BAD(rkey, UINT32_MAX);
    BAD(rkey, f.p.s[1].mr->rkey);
#undef BAD
    word = vg_ptr(g, dir);
    *word = list + 1;
    refuse(&f, good, PVRDMA_WC_MW_BIND_ERR);
    *word = nowhere;
    refuse(&f, good, PVRDMA_WC_MW_BIND_ERR);
    *word = list;
    word = (uint64_t *)vg_ptr(g, list) + 2;
    *word += 8;
    refuse(&f, good, PVRDMA_WC_MW_BIND_ERR);
    *word = nowhere;
    refuse(&f, good, PVRDMA_WC_MW_BIND_ERR);
    *word = f.mr->buf->page[2];

    /* A list longer than this MR has room for. */
    small =
        vg_mr_new_fast(f.p.s[1].pd, vg_buf_new(g, FAST_VA, 3 * 4096, VG_SCATTERED), 2);
    refuse(&f, vg_wr_fast_reg(small, 70, VG_ACCESS_ALL), PVRDMA_WC_MW_BIND_ERR);
    vg_mr_free(small);
    refuse(&f, local_inv(0), PVRDMA_WC_MW_BIND_ERR);
    refuse(&f, local_inv(f.p.s[1].mr->rkey), PVRDMA_WC_MW_BIND_ERR);
    refuse(&f, local_inv(f.mr->rkey ^ 0x80), PVRDMA_WC_MW_BIND_ERR);
    wr = good;
    wr.flags |= PVRDMA_SEND_INLINE;
    refuse(&f, wr, PVRDMA_WC_LOC_QP_OP_ERR);

    /* With none of these it is good, and with a key it cannot have another. */
    post(&f.p.s[1], good);
    vgt_expect(f.p.s[1].scq, 70, PVRDMA_WC_SUCCESS);
    write_to(&f, f.mr->rkey, PVRDMA_WC_SUCCESS);
    wr = vg_wr_fast_reg(f.mr, 70, VG_ACCESS_ALL);
    refuse(&f, wr, PVRDMA_WC_MW_BIND_ERR);
    write_to(&f, good.reg.rkey, PVRDMA_WC_SUCCESS);
    vg_free_pages(g, dir, 1);
    vg_free_pages(g, list, 1);
    fast_close(&f);
}

/*
 * A program's stock queue has no such requests: its library means others by these
 * numbers. An extended one has those about windows (test-memwin.c).
 */
static void test_program(void)
{
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, NULL);
    for (uint32_t op = PVRDMA_WR_LSO; op < 20; op++) {
        g_assert_null(p.s[0].g->ext);
        post(&p.s[0], (struct vg_wr){.wr_id = op, .opcode = op, .imm = p.s[0].mr->rkey});
        vgt_expect(p.s[0].scq, op, PVRDMA_WC_LOC_QP_OP_ERR);
        vgt_pair_reconnect(&p, NULL);
    }
    vgt_pair_close(&p);
}

static int create(struct vg_pd *pd, uint32_t max, struct pvrdma_cmd_create_mr more)
{
    struct pvrdma_resp_create_mr resp;
    int err;

    more.pd_handle = pd->handle;
    more.flags |= PVRDMA_MR_FLAG_FRMR;
    more.nchunks = max;
    err = vg_create_mr(pd->g, &more, &resp);
    if (!err) {
        g_assert_cmpint(vg_destroy(pd->g, PVRDMA_CMD_DESTROY_MR, resp.mr_handle), ==, 0);
    }
    return err;
}

static void test_create(void)
{
    struct vguest *g = vguest_new(vgt_daemon, 0, NULL);
    struct vg_pd *pd = vg_pd_new_kernel(g), *user = vg_pd_new(g);
    const struct pvrdma_cmd_create_mr none = {0};

    g_assert_cmpuint(g->dsr->caps.bmme_flags, ==, 7);
    g_assert_cmpuint(g->dsr->caps.max_fast_reg_page_list_len, ==, 128);
    g_assert_cmpuint(g->dsr->caps.max_sge_rd, <=, g->dsr->caps.max_sge);
    g_assert_cmpint(create(pd, 1, none), ==, 0);
    g_assert_cmpint(create(pd, FAST_MAX, none), ==, 0);
    g_assert_cmpint(create(pd, 0, none), >, 0);
    g_assert_cmpint(create(pd, FAST_MAX + 1, none), >, 0);
    g_assert_cmpint(create(pd, UINT32_MAX, none), >, 0);
    g_assert_cmpint(create(user, 1, none), >, 0);
    g_assert_cmpint(create(pd, 1, (struct pvrdma_cmd_create_mr){.start = 1}), >, 0);
    g_assert_cmpint(create(pd, 1, (struct pvrdma_cmd_create_mr){.length = 1}), >, 0);
    g_assert_cmpint(create(pd, 1, (struct pvrdma_cmd_create_mr){.access_flags = 1}), >,
                    0);
    g_assert_cmpint(
        create(pd, 1, (struct pvrdma_cmd_create_mr){.flags = PVRDMA_MR_FLAG_DMA}), >, 0);
    vg_pd_free(user);
    vg_pd_free(pd);
    vguest_free(g);
}

/* ---- a key that is in use when its end comes ---- */

/*
 * Two VMs, served by two workers, WRITE by the key of a third one, 64 KiB at a time.
 * Its end is a LOCAL_INV, or a SEND with invalidate of either; once that is told, not a
 * byte changes.
 */
static void test_race(void)
{
    const uint32_t len = 65536;
    struct vgt_opts o = kernel;
    struct vgt_pair p[2];
    struct vgt_side own;
    struct vg_mr *mr;
    struct vg_qp *inv[2];
    unsigned caught = 0;

    o.qp.send_wr = 64;
    vgt_side_open(&p[0].s[1], 0, &o, 0); /* the target, and where its own queue is */
    own = p[0].s[1];
    for (unsigned i = 0; i < 2; i++) {
        struct vgt_side *t = &p[i].s[1], *s = &p[i].s[0];

        *t = own;
        vgt_side_open(s, 1 + i, &o, 1);
        t->qp = vg_qp_new(own.pd, own.scq, own.rcq, &o.qp);
        inv[i] = vg_qp_new(s->pd, s->scq, s->rcq, &o.qp);
    }
    mr = vg_mr_new_fast(own.pd, vg_buf_new(own.g, FAST_VA, len, VG_SCATTERED), 16);
    for (unsigned round = 0; round < vgt_rounds(600); round++) {
        unsigned how = round % 3, n = 0;
        struct vgt_side *target;
        struct pvrdma_cqe cqe;

        /* From scratch: the last round's writers have failed. */
        vg_qp_to_reset(own.qp);
        for (unsigned i = 0; i < 2; i++) {
            vg_qp_to_reset(inv[i]);
            vgt_pair_reconnect(&p[i], &kernel.conn);
        }
        vg_qp_connect(own.qp, how == 0 ? own.qp : inv[how - 1], NULL);
        while (vg_cq_poll(own.scq, &cqe, 1) == 1 || vg_cq_poll(own.rcq, &cqe, 1) == 1) {
        }
        fast_reg(&own, mr, VG_ACCESS_ALL);
        target = &own;
        for (unsigned i = 0; i < 2; i++) {
            struct vgt_side *s = &p[i].s[0];
            struct pvrdma_sge sge = vg_sge(s->mr, 0, len);
            struct vg_wr wr =
                vg_wr_at(0, PVRDMA_WR_RDMA_WRITE, 0, &sge, FAST_VA, mr->rkey);

            memset(s->mr->buf->host, 1 + i, len);
            for (unsigned k = 0; k < 40; k++) {
                g_assert_cmpuint(vg_queue_send(s->qp, &wr, 1), ==, 1);
            }
            vg_ring_send(s->qp);
        }
        g_usleep(round % 7 * 20);
        if (how == 0) {
            post(&own, local_inv(mr->rkey));
            vgt_expect(own.scq, 71, PVRDMA_WC_SUCCESS);
        } else {
            struct vgt_side s = p[how - 1].s[0];

            s.qp = inv[how - 1];
            vgt_recv(target, 8, 0, 64);
            post(&s, send_inv(mr->rkey));
            vgt_expect(own.rcq, 8, PVRDMA_WC_SUCCESS);
        }
        memset(mr->buf->host, 0x5c, len);
        for (unsigned i = 0; i < 2; i++) { /* were they writing? */
            n += vg_cq_wait(p[i].s[0].scq, &cqe, 0) ? 1 : 0;
        }
        g_usleep(300);
        for (uint32_t i = 0; i < len; i++) {
            g_assert_cmpuint(mr->buf->host[i], ==, 0x5c);
        }
        caught += n < 2;
    }
    g_test_message("%u rounds, in %u writers had not heard of it", vgt_rounds(600),
                   caught);
    vg_mr_free(mr);
    for (unsigned i = 0; i < 2; i++) {
        vg_qp_free(p[i].s[1].qp);
        vg_qp_free(inv[i]);
        vgt_side_close(&p[i].s[0]);
    }
    vgt_side_close(&own);
    vg_daemon_check(vgt_daemon);
    vgt_assert_no_objects("vm0");
}

/* ---- reset and destroy in the middle ---- */

/* What is destroyed while keys come and go on all sides. */
static void test_destroy(void)
{
    struct fast f;

    fast_open(&f, 0, 65536);
    for (unsigned round = 0; round < vgt_rounds(200); round++) {
        struct vgt_side *s = &f.p.s[1];
        uint32_t key;

        fast_reg(s, f.mr, VG_ACCESS_ALL);
        key = f.mr->rkey;
        for (unsigned k = 0; k < 8; k++) {
            struct pvrdma_sge sge = vg_sge(f.p.s[0].mr, 0, 65536);

            post(&f.p.s[0], vg_wr_at(0, PVRDMA_WR_RDMA_WRITE, 0, &sge, FAST_VA, key));
        }
        vgt_recv(s, 8, 0, 64);
        g_usleep(round % 5 * 15);
        if (round % 2) {
            post(&f.p.s[0], send_inv(key));
        }
        for (unsigned k = 0; k < 4; k++) {
            post(s, local_inv(key));
            post(s, vg_wr_fast_reg(f.mr, 70, VG_ACCESS_ALL));
            key = f.mr->rkey;
        }
        switch (round % 4) {
        case 0: { /* the MR; the next has its place */
            g_assert_cmpint(vg_destroy(s->g, PVRDMA_CMD_DESTROY_MR, f.mr->handle), ==, 0);
            memset(f.mr->buf->host, 0x5c, 65536);
            g_usleep(200);
            for (unsigned i = 0; i < 65536; i++) {
                g_assert_cmpuint(f.mr->buf->host[i], ==, 0x5c);
            }
            s->g->up = false;
            vg_mr_free(f.mr);
            s->g->up = true;
            f.mr = vg_mr_new_fast(s->pd, vg_buf_new(s->g, FAST_VA, 65536, VG_SCATTERED),
                                  FAST_MAX);
            break;
        }
        case 1:
            vg_qp_to_reset(s->qp);
            break;
        case 2:
            vg_qp_free(s->qp);
            s->qp = vg_qp_new(s->pd, s->scq, s->rcq, NULL);
            break;
        default: /* all of it */
            g_assert_cmpint(vg_reset(s->g), ==, 0);
            s->g->up = false;
            vg_mr_free(f.mr);
            vgt_pair_close(&f.p);
            fast_open(&f, 0, 65536);
            continue;
        }
        reconnect(&f);
        /* A key may be left. */
        vg_mr_free(f.mr);
        f.mr = vg_mr_new_fast(s->pd, vg_buf_new(s->g, FAST_VA, 65536, VG_SCATTERED),
                              FAST_MAX);
    }
    fast_close(&f);
}

/* ---- a flood ---- */

#define FLOOD_QPS 16u

static gint stop;

struct flood {
    struct vgt_side s;
    struct vg_qp *qp[FLOOD_QPS];
    struct vg_mr *mr[FLOOD_QPS];
    _Atomic uint64_t n; /* completions so far */
};

static void flood_post(struct flood *f, unsigned i)
{
    struct vg_wr wr[2] = {vg_wr_fast_reg(f->mr[i], i, VG_ACCESS_ALL),
                          local_inv(f->mr[i]->rkey)};

    wr[0].flags = 0;
    wr[1].wr_id = i;
    g_assert_cmpuint(vg_post_send(f->qp[i], wr, 2), ==, 2);
}

static gpointer flood_run(gpointer opaque)
{
    struct flood *f = opaque;
    struct pvrdma_cqe cqe;

    for (unsigned i = 0; i < FLOOD_QPS; i++) {
        flood_post(f, i);
    }
    for (unsigned running = FLOOD_QPS; running;) {
        g_assert_true(vg_cq_wait(f->s.scq, &cqe, VGT_WAIT_MS));
        g_assert_cmpuint(cqe.status, ==, PVRDMA_WC_SUCCESS);
        f->n++;
        if (g_atomic_int_get(&stop)) {
            running--;
        } else {
            flood_post(f, (unsigned)cqe.wr_id);
        }
    }
    return NULL;
}

/* Registrations of 512 pages on and on; another VM's commands and messages. */
static void test_flood(void)
{
    GArray *ms = g_array_new(FALSE, FALSE, sizeof(double));
    struct vgt_pair p;
    struct flood f = {0};
    GThread *thread;
    int64_t began, end;

    vgt_side_open(&f.s, 0, &kernel, 0);
    for (unsigned i = 0; i < FLOOD_QPS; i++) {
        f.qp[i] = vg_qp_new(f.s.pd, f.s.scq, f.s.rcq, NULL);
        vg_qp_connect(f.qp[i], f.qp[i], NULL);
        f.mr[i] = vg_mr_new_fast(
            f.s.pd, vg_buf_new_alias(f.s.g, FAST_VA, (uint64_t)FAST_MAX * 4096, 16),
            FAST_MAX);
    }
    vgt_pair_open(&p, 1, 2, NULL);
    thread = g_thread_new("flood", flood_run, &f);
    began = vg_now_ns();
    end = began + 500000000;
    do {
        int64_t t = vg_now_ns();
        uint32_t pd;
        double d;

        g_assert_cmpint(vg_create_pd(p.s[0].g, p.s[0].g->uctx, &pd), ==, 0);
        g_assert_cmpint(vg_destroy(p.s[0].g, PVRDMA_CMD_DESTROY_PD, pd), ==, 0);
        vgt_write_once(&p, 1);
        d = (double)(vg_now_ns() - t) / 1e6;
        g_array_append_val(ms, d);
        /* A machine that stands still for so long must not end it before it has begun. */
    } while (vg_now_ns() < end || f.n <= FLOOD_QPS);
    g_atomic_int_set(&stop, 1);
    g_thread_join(thread);
    g_test_message("%u rounds of two commands and a message: median %.3f ms, 99 %% %.3f "
                   "ms, longest %.3f ms, beside %.0f registrations/s",
                   ms->len, vgt_percentile(ms, 50), vgt_percentile(ms, 99),
                   vgt_percentile(ms, 100), (double)f.n * 1e9 / (double)(end - began));
    vgt_assert_shorter(vgt_percentile(ms, 99), 100);
    g_array_unref(ms);
    for (unsigned i = 0; i < FLOOD_QPS; i++) {
        vg_qp_free(f.qp[i]);
        vg_mr_free(f.mr[i]);
    }
    vgt_pair_close(&p);
    vgt_side_close(&f.s);
    vg_daemon_check(vgt_daemon);
}

int main(int argc, char **argv)
{
    vgt_start(&argc, &argv, 120, 3);
    g_test_add_func("/fastreg/create", test_create);
    g_test_add_func("/fastreg/use", test_use);
    g_test_add_func("/fastreg/keys", test_keys);
    g_test_add_func("/fastreg/order", test_order);
    g_test_add_data_func("/fastreg/send-inv", NULL, test_send_inv);
    g_test_add_data_func("/fastreg/send-inv-srq", "srq", test_send_inv);
    g_test_add_func("/fastreg/foreign-inv", test_foreign_inv);
    g_test_add_func("/fastreg/bad", test_bad);
    g_test_add_func("/fastreg/program", test_program);
    g_test_add_func("/fastreg/race", test_race);
    g_test_add_func("/fastreg/destroy", test_destroy);
    g_test_add_func("/fastreg/flood", test_flood);
    return vgt_run();
}
