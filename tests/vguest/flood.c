/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Floods; see flood.h.
 */
#include "flood.h"

#define VA       0x7f1200000000ull
#define VA_APART 0x10000000ull
#define MIB      (1ull << 20)
#define RUN      64u

const struct flood_shape flood_8 = {.opcode = PVRDMA_WR_RDMA_WRITE,
                                    .len = 8,
                                    .inline_data = true,
                                    .qps = 64,
                                    .depth = 4096};
const struct flood_shape flood_64k = {
    .opcode = PVRDMA_WR_RDMA_WRITE, .len = 65536, .qps = 16, .depth = 1024};

static struct vg_buf *shuffled(struct vguest *g, uint64_t va, uint64_t len, GRand *r)
{
    struct vg_buf *b = g_new0(struct vg_buf, 1);

    g_assert_cmpuint(va % PVRDMA_PAGE_SIZE, ==, 0);
    b->g = g;
    b->va = va;
    b->len = len;
    b->npages = b->owned = (len + PVRDMA_PAGE_SIZE - 1) / PVRDMA_PAGE_SIZE;
    b->page = g_new(uint64_t, b->npages);
    /* Short runs: the scattered pages of others leave no long ones. */
    for (uint32_t i = 0; i < b->npages; i += RUN) {
        uint32_t n = MIN(RUN, b->npages - i);
        uint64_t gpa = vg_alloc_pages(g, n);

        for (uint32_t k = 0; k < n; k++) {
            b->page[i + k] = gpa + (uint64_t)k * PVRDMA_PAGE_SIZE;
        }
    }
    for (uint32_t i = b->npages - 1; i > 0; i--) {
        uint32_t k = g_rand_int(r) % (i + 1);
        uint64_t page = b->page[i];

        b->page[i] = b->page[k];
        b->page[k] = page;
    }
    return b;
}

static uint64_t place(const struct flood *f, GRand *r)
{
    uint64_t slots = f->shape.span / MAX(f->shape.len, 64);

    return f->shape.random ? g_rand_int(r) % slots * MAX(f->shape.len, 64) : 0;
}

/* The ring's requests.  Nobody rings, and the index is taken back, so that the
 * flood begins with flood_fill(). */
static void write_requests(struct flood *f, struct vg_qp *qp, GRand *r)
{
    const struct flood_shape *sh = &f->shape;
    static const uint8_t data[64] = {1};
    struct pvrdma_sge sge[16];

    g_assert_cmpuint(sh->nsge, <=, G_N_ELEMENTS(sge));
    for (uint32_t i = 0; i < qp->sq.n; i++) {
        struct vg_wr wr = {.wr_id = i,
                           .opcode = sh->opcode,
                           .remote_addr = f->s[1].mr->buf->va + place(f, r),
                           .rkey = f->s[1].mr->rkey,
                           .compare_add = 1,
                           .nsge = sh->nsge,
                           .sge = sge};

        for (unsigned k = 0; k < sh->nsge; k++) {
            sge[k] = vg_sge(f->s[0].mr, place(f, r), sh->len);
        }
        if (sh->inline_data) {
            wr.flags = PVRDMA_SEND_INLINE;
            wr.inline_data = data;
            wr.inline_len = sh->len;
        }
        g_assert_cmpuint(vg_queue_send(qp, &wr, 1), ==, 1);
    }
    *qp->sq.prod_tail = 0;
}

static void open_qps(struct flood *f, GRand *r)
{
    const struct flood_shape *sh = &f->shape;
    struct vg_qp_opts tx = {.send_wr = sh->depth,
                            .recv_wr = 2,
                            .send_sge = sh->nsge,
                            .recv_sge = 1,
                            .max_inline = sh->inline_data ? sh->len : 0,
                            .contig = true};
    struct vg_qp_opts rx = {
        .send_wr = 2, .recv_wr = 2, .send_sge = 1, .recv_sge = 1, .contig = true};

    f->tx = g_new(struct vg_qp *, sh->qps);
    f->rx = g_new(struct vg_qp *, sh->qps);
    for (unsigned i = 0; i < sh->qps; i++) {
        f->tx[i] = vg_qp_new(f->s[0].pd, f->s[0].scq, f->s[0].rcq, &tx);
        f->rx[i] = vg_qp_new(f->s[1].pd, f->s[1].scq, f->s[1].rcq, &rx);
        write_requests(f, f->tx[i], r);
        if (!sh->nowhere) {
            vg_qp_connect(f->tx[i], f->rx[i], &sh->conn);
            continue;
        }
        vg_qp_reset_to_rts(f->tx[i], &f->s[1].g->gid, f->rx[i]->qpn, 0, 0, &sh->conn);
    }
}

static void side_open(struct flood *f, unsigned which, GRand *r)
{
    struct vgt_side *s = &f->s[which];
    uint64_t va = VA + which * VA_APART;

    s->pd = vg_pd_new(s->g);
    s->scq = vg_cq_new(s->pd, 256);
    s->rcq = vg_cq_new(s->pd, 256);
    s->mr = vg_mr_new(s->pd, shuffled(s->g, va, f->shape.span, r), VG_ACCESS_ALL);
}

void flood_open(struct flood *f, unsigned a, unsigned b, const struct flood_shape *shape)
{
    GRand *r = g_rand_new_with_seed(a + 1);
    struct vg_opts o = {.db = VG_DB_EXT};
    uint64_t rings;

    memset(f, 0, sizeof(*f));
    f->shape = *shape;
    f->shape.span = f->shape.span ? f->shape.span : MIB;
    f->shape.nsge = f->shape.nsge ? f->shape.nsge : 1;
    /* Requests of 64 bytes, or of 512 with 16 pieces; 8 pages beside them. */
    rings = shape->qps *
            ((uint64_t)shape->depth * (f->shape.nsge > 1 ? 512 : 128) + 12 * 4096);
    o.low_size = 32 * MIB + ((f->shape.span + rings + MIB - 1) & ~(MIB - 1));
    o.low_size *= a == b ? 2 : 1;
    g_assert_cmpuint(o.low_size, <, 3072 * MIB);
    f->s[0].g = vguest_new(vgt_daemon, a, &o);
    f->s[1].g = a == b ? f->s[0].g : vguest_new(vgt_daemon, b, &o);
    for (unsigned i = 0; i < 2; i++) {
        side_open(f, i, r);
    }
    open_qps(f, r);
    g_rand_free(r);
}

static void side_close(struct vgt_side *s)
{
    vg_mr_free(s->mr);
    vg_cq_free(s->scq);
    vg_cq_free(s->rcq);
    vg_pd_free(s->pd);
}

void flood_close(struct flood *f)
{
    for (unsigned i = 0; i < f->shape.qps; i++) {
        vg_qp_free(f->tx[i]);
        vg_qp_free(f->rx[i]);
    }
    g_free(f->tx);
    g_free(f->rx);
    side_close(&f->s[0]);
    side_close(&f->s[1]);
    if (f->s[1].g != f->s[0].g) {
        vguest_free(f->s[1].g);
    }
    vguest_free(f->s[0].g);
}

static bool fill_one(struct flood *f, unsigned i)
{
    struct vg_qp *qp = f->tx[i];
    uint32_t head = __atomic_load_n(qp->sq.cons_head, __ATOMIC_ACQUIRE);
    uint32_t tail = *qp->sq.prod_tail;

    if (tail != (head ^ qp->sq.n)) {
        __atomic_store_n(qp->sq.prod_tail, head ^ qp->sq.n, __ATOMIC_RELEASE);
        vg_ring_send(qp);
    }
    return tail == head;
}

unsigned flood_fill(struct flood *f)
{
    unsigned dry = 0;

    for (unsigned i = 0; i < f->shape.qps; i++) {
        dry += fill_one(f, i);
    }
    return dry;
}

/* ---- what the daemon says ---- */

int64_t flood_counter(JsonObject *vm, const char *name)
{
    if (json_object_has_member(vm, name)) {
        return json_object_get_int_member(vm, name);
    }
    if (!json_object_has_member(vm, "datapath")) {
        return -1;
    }
    vm = json_object_get_object_member(vm, "datapath");
    return json_object_has_member(vm, name) ? json_object_get_int_member(vm, name) : -1;
}
