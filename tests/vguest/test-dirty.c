/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: every store of the daemon to guest memory is in the dirty log.
 *
 * Traffic of every kind, in every style of guest; dirty.h says how stores are seen.
 */
#include "dirty.h"
#include "ud.h"

#include <string.h>

#define VA      0x7f3400000000ull
#define BIG     (1u << 20)
#define KEYS_ID 70

/* Each first store to a page takes a signal and two system calls. */
static const struct vg_conn patient = {.timeout = 18};

static void open_side(struct vgt_side *s, unsigned vm, enum vg_db_mode mode)
{
    struct vg_opts o = {.low_size = DIRTY_RAM, .high_size = DIRTY_RAM, .db = mode};

    s->g = vguest_open(vgt_daemon, vm, &o);
    g_assert_cmpint(vg_attach_again(s->g, 5000), ==, 0);
    dirty_watch(s->g);
    g_assert_cmpint(vg_bring_up(s->g), ==, 0);
    dirty_check("bring-up");
    g_assert_true(dirty_stored(s->g, s->g->dsr_gpa));
    g_assert_true(dirty_stored(s->g, s->g->resp_gpa));
    if (mode == VG_DB_EXT) {
        g_assert_true(dirty_stored(s->g, s->g->ext_buf->page[0]));
    }

    s->pd = vg_pd_new(s->g);
    s->scq = vg_cq_new(s->pd, 64);
    s->rcq = vg_cq_new(s->pd, 64);
    s->qp = vg_qp_new(s->pd, s->scq, s->rcq, NULL);
    s->mr = vg_mr_alloc(s->pd, 0x7f1200000000ull, 64 << 10, VG_ACCESS_ALL);
    dirty_check("objects");
    g_assert_true(dirty_stored(s->g, s->g->resp_gpa));
    g_assert_cmpint(dirty_stored(s->g, s->qp->mem->page[0]), ==, mode == VG_DB_EXT);
}

static void send_armed(struct vgt_side *a, struct vgt_side *b)
{
    vgt_recv(b, 1, 0, 3000);
    vg_cq_arm(b->rcq, true);
    vg_cq_arm(a->scq, false);
    vgt_send(a, 2, PVRDMA_WR_SEND, VGT_SIG | PVRDMA_SEND_SOLICITED, 0, 3000, NULL, 0);
    vgt_expect(a->scq, 2, PVRDMA_WC_SUCCESS);
    vgt_expect(b->rcq, 1, PVRDMA_WC_SUCCESS);
    g_assert_true(vg_cqn_wait(b->g, b->rcq->handle, VGT_WAIT_MS));
    g_assert_true(vg_cqn_wait(a->g, a->scq->handle, VGT_WAIT_MS));
    dirty_check("SEND to an armed CQ");
    g_assert_true(dirty_stored(b->g, b->mr->buf->page[0]));
    g_assert_true(dirty_stored(b->g, b->rcq->mem->page[0]));
    g_assert_true(dirty_any_stored(b->g, b->rcq->mem, 1));
    g_assert_true(dirty_stored(b->g, b->qp->mem->page[0]));
    g_assert_true(dirty_stored(b->g, b->g->cqn_ring->page[0]));
    g_assert_true(dirty_any_stored(b->g, b->g->cqn_ring, 1));
    g_assert_true(dirty_stored(a->g, a->qp->mem->page[0]));
    g_assert_true(dirty_any_stored(a->g, a->scq->mem, 1));
    g_assert_false(dirty_stored(a->g, a->mr->buf->page[0]));
}

/* @opcode, 20,000 bytes or a word; who is stored to: @to. */
static void one_op(struct vgt_side *a, struct vgt_side *b, uint32_t opcode, uint32_t len,
                   const struct vgt_side *to)
{
    struct pvrdma_sge sge = vg_sge(a->mr, 4096, len);
    struct vg_wr wr = {.wr_id = opcode,
                       .opcode = opcode,
                       .flags = VGT_SIG,
                       .remote_addr = b->mr->buf->va + 4096,
                       .rkey = b->mr->rkey,
                       .compare_add = 0,
                       .swap = 7,
                       .nsge = 1,
                       .sge = &sge};
    char *what = g_strdup_printf("operation %u", opcode);

    if (opcode == PVRDMA_WR_RDMA_WRITE_WITH_IMM) {
        vgt_recv(b, opcode, 0, 0);
    }
    g_assert_cmpuint(vg_post_send(a->qp, &wr, 1), ==, 1);
    vgt_expect(a->scq, opcode, PVRDMA_WC_SUCCESS);
    if (opcode == PVRDMA_WR_RDMA_WRITE_WITH_IMM) {
        vgt_expect(b->rcq, opcode, PVRDMA_WC_SUCCESS);
    }
    dirty_check(what);
    g_assert_true(dirty_stored(to->g, to->mr->buf->page[1]));
    g_free(what);
}

static void ops(struct vgt_side *a, struct vgt_side *b)
{
    one_op(a, b, PVRDMA_WR_RDMA_WRITE, 20000, b);
    one_op(a, b, PVRDMA_WR_RDMA_WRITE, 8, b);
    one_op(a, b, PVRDMA_WR_RDMA_WRITE_WITH_IMM, 100, b);
    one_op(a, b, PVRDMA_WR_RDMA_READ, 20000, a);
    one_op(a, b, PVRDMA_WR_ATOMIC_FETCH_AND_ADD, 8, b);
    one_op(a, b, PVRDMA_WR_ATOMIC_CMP_AND_SWP, 8, b);
    one_op(a, b, PVRDMA_WR_ATOMIC_CMP_AND_SWP, 8, a);
}

/* Doorbells of all kinds, and the words that a worker stores before it sleeps. */
static void stream(struct vgt_side *a, struct vgt_side *b)
{
    gint64 end;

    for (unsigned i = 0; i < 200; i++) {
        vgt_send(a, i, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 64, b, 0);
        vgt_recv(b, i, 0, 64);
        vgt_complete(a, i, PVRDMA_WR_SEND, 0, 64, NULL, 0);
        vgt_expect(a->scq, i, PVRDMA_WC_SUCCESS);
        vgt_expect(b->rcq, i, PVRDMA_WC_SUCCESS);
        if (i % 50 == 0) {
            g_usleep(2000);
        }
    }
    dirty_check("stream");
    dirty_await_sleep();
    dirty_check("sleep");
    end = g_get_monotonic_time() + VGT_WAIT_MS * 1000;
    do { /* a worker that happens to be awake needs no bit in a map */
        g_assert_cmpint(g_get_monotonic_time(), <, end);
        vgt_complete(a, 1, PVRDMA_WR_RDMA_WRITE, 0, 64, b, 0);
        dirty_await_sleep();
        dirty_check("waking and sleep");
    } while (a->qp->sq.no_notify && !(dirty_stored(a->g, a->qp->mem->page[0]) &&
                                      dirty_stored(a->g, a->g->ext_buf->page[0]) &&
                                      dirty_any_stored(a->g, a->g->ext_buf, 1)));
}

/* Arming that comes as a message, posted, with a completion there already. */
static void arm_message(struct vgt_side *a, struct vgt_side *b)
{
    uint64_t at = a->scq->uar_page * (uint64_t)PVRDMA_PAGE_SIZE + PVRDMA_UAR_CQ;
    uint32_t arm[] = {a->scq->handle | PVRDMA_UAR_CQ_ARM_SOL,
                      a->scq->handle | PVRDMA_UAR_CQ_ARM};

    vgt_send(a, 3, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 64, b, 0);
    while (__atomic_load_n(a->scq->prod_tail, __ATOMIC_ACQUIRE) == *a->scq->cons_head) {
        g_usleep(100);
    }
    for (unsigned i = 0; i < G_N_ELEMENTS(arm); i++) {
        g_assert_cmpint(
            vg_region_write(a->g, PVRDMA_BAR_UAR, at, &arm[i], sizeof(arm[i]), true), ==,
            0);
        /* A reply comes after all that was posted before it. */
        vg_reg_read(a->g, PVRDMA_REG_VERSION);
        dirty_check("arm");
        if (a->scq->ext) {
            g_assert_true(dirty_stored(a->g, a->scq->mem->page[0]));
        }
    }
    g_assert_true(vg_cqn_wait(a->g, a->scq->handle, VGT_WAIT_MS));
    vgt_expect(a->scq, 3, PVRDMA_WC_SUCCESS);
}

static void errors(struct vgt_side *a, struct vgt_side *b)
{
    struct pvrdma_sge sge = vg_sge(a->mr, 0, 8);
    struct vg_wr wr = vg_wr_at(1, PVRDMA_WR_RDMA_WRITE, VGT_SIG, &sge, b->mr->buf->va,
                               b->mr->rkey ^ 0x5500);

    vgt_recv(b, 9, 0, 64);
    g_assert_cmpuint(vg_post_send(a->qp, &wr, 1), ==, 1);
    vgt_expect(a->scq, 1, PVRDMA_WC_REM_ACCESS_ERR);
    vgt_expect(b->rcq, 9, PVRDMA_WC_WR_FLUSH_ERR);
    vgt_expect_event(b->g, PVRDMA_EVENT_QP_ACCESS_ERR, b->qp->handle);
    dirty_check("errors");
    g_assert_true(dirty_stored(b->g, b->g->async_ring->page[0]));
    g_assert_true(dirty_any_stored(b->g, b->g->async_ring, 1));
}

/* ---- other queue pairs ---- */

static void destroy_qps(struct vgt_side q[2])
{
    for (unsigned i = 0; i < 2; i++) {
        vg_qp_free(q[i].qp);
    }
    dirty_check("QPs destroyed");
}

/* The same sides with QPs of their own. */
static void other_qps(const struct vgt_side s[2], struct vgt_side q[2],
                      const struct vg_qp_opts *o)
{
    for (unsigned i = 0; i < 2; i++) {
        q[i] = s[i];
        q[i].qp = vg_qp_new(s[i].pd, s[i].scq, s[i].rcq, o);
    }
}

/*
 * A SEND that arrives at the end of a page.  Short ones do: copies of pages, which take a
 * step for each byte, are among ops().
 */
static void one_send(struct vgt_side *a, struct vgt_side *b, uint32_t opcode,
                     uint32_t len, const char *what)
{
    vgt_recv(b, 1, PVRDMA_PAGE_SIZE - 100, len);
    vgt_complete(a, 2, opcode, 32768, len, NULL, 0);
    vgt_expect(b->rcq, 1, PVRDMA_WC_SUCCESS);
    dirty_check(what);
    g_assert_true(!len || dirty_stored(b->g, b->mr->buf->page[0]));
    g_assert_true(len <= 100 || dirty_stored(b->g, b->mr->buf->page[1]));
    g_assert_true(dirty_any_stored(b->g, b->rcq->mem, 1));
}

static void sends(struct vgt_side s[2])
{
    one_send(&s[0], &s[1], PVRDMA_WR_SEND_WITH_IMM, 100, "SEND with immediate");
    one_send(&s[0], &s[1], PVRDMA_WR_SEND, 0, "empty SEND");
    one_send(&s[0], &s[1], PVRDMA_WR_SEND, 200, "SEND to two pages");
    one_send(&s[1], &s[0], PVRDMA_WR_SEND, 8, "SEND the other way");
}

static void unreliable(struct vgt_side s[2])
{
    struct vg_qp_opts o = {.type = PVRDMA_QPT_UC};
    struct vgt_side q[2];

    other_qps(s, q, &o);
    vg_qp_connect(q[0].qp, q[1].qp, &patient);
    one_send(&q[0], &q[1], PVRDMA_WR_SEND, 200, "UC SEND");
    vgt_recv(&q[1], 1, 0, 0);
    vgt_complete(&q[0], 2, PVRDMA_WR_RDMA_WRITE_WITH_IMM, 0, 200, &q[1], 8192);
    vgt_expect(q[1].rcq, 1, PVRDMA_WC_SUCCESS);
    dirty_check("UC WRITE");
    g_assert_true(dirty_stored(q[1].g, q[1].mr->buf->page[2]));
    destroy_qps(q);
}

static void datagrams(struct vgt_side s[2])
{
    struct vg_qp_opts o = {.type = PVRDMA_QPT_UD};
    struct vgt_side q[2];

    other_qps(s, q, &o);
    for (unsigned i = 0; i < 2; i++) {
        vg_ud_to_rts(q[i].qp, QKEY);
    }
    /* The header and the bytes are in a page each. */
    vgt_recv(&q[1], 1, PVRDMA_PAGE_SIZE - GRH, GRH + 64);
    ud_send(&q[0], &q[1], (struct dg){.len = 64, .wr_id = 2});
    vgt_expect(q[0].scq, 2, PVRDMA_WC_SUCCESS);
    vgt_expect(q[1].rcq, 1, PVRDMA_WC_SUCCESS);
    dirty_check("datagram");
    g_assert_true(dirty_stored(q[1].g, q[1].mr->buf->page[0]));
    g_assert_true(dirty_stored(q[1].g, q[1].mr->buf->page[1]));
    destroy_qps(q);
}

static void shared_receives(struct vgt_side s[2])
{
    struct vg_srq *srq = vg_srq_new(s[1].pd, 16, 1, false);
    struct pvrdma_sge into = vg_sge(s[1].mr, 0, 64);
    struct vg_wr recv[2] = {{.wr_id = 1, .nsge = 1, .sge = &into},
                            {.wr_id = 2, .nsge = 1, .sge = &into}};
    struct vg_qp_opts o = {.srq = srq};
    struct vgt_side q[2];

    other_qps(s, q, NULL);
    vg_qp_free(q[1].qp);
    q[1].qp = vg_qp_new(s[1].pd, s[1].scq, s[1].rcq, &o);
    vg_qp_connect(q[0].qp, q[1].qp, &patient);
    g_assert_cmpuint(vg_post_srq(srq, recv, 2), ==, 2);
    g_assert_cmpint(vg_modify_srq(srq->g, srq->handle, PVRDMA_SRQ_LIMIT, 2), ==, 0);
    dirty_check("SRQ");
    vgt_complete(&q[0], 3, PVRDMA_WR_SEND, 0, 64, NULL, 0);
    vgt_expect(q[1].rcq, 1, PVRDMA_WC_SUCCESS);
    vgt_expect_event(srq->g, PVRDMA_EVENT_SRQ_LIMIT_REACHED, srq->handle);
    dirty_check("SEND to an SRQ, and its limit");
    g_assert_true(dirty_stored(srq->g, s[1].mr->buf->page[0]));
    g_assert_true(dirty_stored(srq->g, srq->mem->page[0]));
    g_assert_true(dirty_any_stored(srq->g, srq->g->async_ring, 1));
    destroy_qps(q);
    vg_srq_free(srq);
}

/* ---- keys ---- */

static void post_wr(struct vgt_side *s, struct vg_wr wr, const char *what)
{
    g_assert_cmpuint(vg_post_send(s->qp, &wr, 1), ==, 1);
    vgt_expect(s->scq, wr.wr_id, PVRDMA_WC_SUCCESS);
    dirty_check(what);
    g_assert_true(dirty_any_stored(s->g, s->scq->mem, 1));
}

static struct vg_wr key_wr(uint32_t opcode, uint32_t key)
{
    return (struct vg_wr){
        .wr_id = KEYS_ID, .opcode = opcode, .flags = VGT_SIG, .imm = key};
}

/* To @buf, which is two pages. */
static void write_by_key(struct vgt_side *s, const struct vg_buf *buf, uint32_t rkey)
{
    struct pvrdma_sge sge = vg_sge(s->mr, 0, 200);
    struct vg_wr wr = vg_wr_at(KEYS_ID, PVRDMA_WR_RDMA_WRITE, VGT_SIG, &sge,
                               buf->va + PVRDMA_PAGE_SIZE - 100, rkey);

    post_wr(s, wr, "WRITE by a key");
    g_assert_true(dirty_stored(buf->g, buf->page[0]));
    g_assert_true(dirty_stored(buf->g, buf->page[1]));
}

/* As the guest's kernel: its QPs, and keys that come and go. */
static void fast_registrations(const struct vgt_side s[2])
{
    struct vgt_side k[2];
    struct vg_mr *fast;

    for (unsigned i = 0; i < 2; i++) {
        k[i].g = s[i].g;
        k[i].pd = vg_pd_new_kernel(k[i].g);
        k[i].scq = vg_cq_new(k[i].pd, 16);
        k[i].rcq = vg_cq_new(k[i].pd, 16);
        k[i].qp = vg_qp_new(k[i].pd, k[i].scq, k[i].rcq, NULL);
        k[i].mr = vg_mr_alloc(k[i].pd, VA, 64 << 10, VG_ACCESS_ALL);
    }
    vg_qp_connect(k[0].qp, k[1].qp, &patient);
    fast = vg_mr_new_fast(
        k[1].pd, vg_buf_new(k[1].g, VA + BIG, 2 * PVRDMA_PAGE_SIZE, VG_SCATTERED), 16);
    dirty_check("objects of the kernel");
    post_wr(&k[1], vg_wr_fast_reg(fast, KEYS_ID, VG_ACCESS_ALL), "FAST_REG");
    write_by_key(&k[0], fast->buf, fast->rkey);
    post_wr(&k[1], key_wr(PVRDMA_WR_LOCAL_INV, fast->rkey), "LOCAL_INV");
    post_wr(&k[1], vg_wr_fast_reg(fast, KEYS_ID, VG_ACCESS_ALL), "FAST_REG again");
    vgt_recv(&k[1], 1, 0, 64);
    post_wr(&k[0], key_wr(PVRDMA_WR_SEND_WITH_INV, fast->rkey), "SEND with invalidate");
    vgt_expect(k[1].rcq, 1, PVRDMA_WC_SUCCESS);
    vg_mr_free(fast);
    for (unsigned i = 0; i < 2; i++) {
        vg_mr_free(k[i].mr);
        vg_qp_free(k[i].qp);
        vg_cq_free(k[i].scq);
        vg_cq_free(k[i].rcq);
        vg_pd_free(k[i].pd);
    }
    dirty_check("objects of the kernel destroyed");
}

/* Of side 1's MR. */
static void window(struct vgt_side s[2])
{
    struct vg_mr *mr = vg_mr_alloc(s[1].pd, VA, 2 * PVRDMA_PAGE_SIZE,
                                   VG_ACCESS_ALL | PVRDMA_ACCESS_MW_BIND);
    struct pvrdma_ext_cmd_create_mw req = {
        .cmd = PVRDMA_CMD_CREATE_MW, .pd_handle = s[1].pd->handle, .type = 2};
    struct vg_wr bind = {.wr_id = KEYS_ID,
                         .opcode = PVRDMA_WR_BIND_MW,
                         .flags = VGT_SIG,
                         .bind = {.addr = mr->buf->va,
                                  .length = mr->buf->len,
                                  .lkey = mr->lkey,
                                  .access_flags = PVRDMA_ACCESS_REMOTE}};
    struct pvrdma_resp_create_mr resp;

    g_assert_cmpint(vg_command(s[1].g, &req, sizeof(req), &resp, sizeof(resp)), ==, 0);
    dirty_check("window");
    bind.bind.rkey = (resp.rkey & ~0xffu) | ((resp.rkey + 1) & 0xff);
    post_wr(&s[1], bind, "BIND_MW");
    write_by_key(&s[0], mr->buf, bind.bind.rkey);
    post_wr(&s[1], key_wr(PVRDMA_WR_LOCAL_INV, bind.bind.rkey), "window invalidated");
    g_assert_cmpint(
        vg_destroy(s[1].g, (enum pvrdma_cmd)PVRDMA_CMD_DESTROY_MW, resp.mr_handle), ==,
        0);
    vg_mr_free(mr);
}

/* ---- completion queues ---- */

/* Moved to another ring with completions in it; then events that are held back. */
static void other_rings(struct vgt_side s[2])
{
    for (unsigned i = 0; i < 8; i++) {
        vgt_recv(&s[1], i, 0, 64);
        vgt_complete(&s[0], i, PVRDMA_WR_SEND, 0, 64, NULL, 0);
    }
    dirty_check("completions that are left");
    g_assert_cmpint(vg_cq_resize(s[1].rcq, 128), ==, 0);
    dirty_check("another ring");
    for (unsigned i = 0; i < 8; i++) {
        vgt_expect(s[1].rcq, i, PVRDMA_WC_SUCCESS);
    }
    g_assert_cmpint(vg_moderate(s[1].g, s[1].rcq->handle, 4, 1000), ==, 0);
    vg_cq_arm(s[1].rcq, false);
    one_send(&s[0], &s[1], PVRDMA_WR_SEND, 64, "SEND to a CQ that holds its events back");
    g_assert_true(vg_cqn_wait(s[1].g, s[1].rcq->handle, VGT_WAIT_MS));
    dirty_check("the event");
}

static void stamps(struct vgt_side s[2])
{
    struct vg_cq *cq = vg_cq_new_flags(s[1].pd, 16, PVRDMA_EXT_CQ_STAMPS);
    struct vgt_side q[2];

    other_qps(s, q, NULL);
    vg_qp_free(q[1].qp);
    q[1].rcq = cq;
    q[1].qp = vg_qp_new(q[1].pd, q[1].scq, cq, NULL);
    vg_qp_connect(q[0].qp, q[1].qp, &patient);
    one_send(&q[0], &q[1], PVRDMA_WR_SEND, 64, "completion with a time");
    destroy_qps(q);
    vg_cq_free(cq);
}

static void expect_response(const struct vguest *g, const char *what)
{
    dirty_check(what);
    g_assert_true(dirty_stored(g, g->resp_gpa));
}

static void queries(const struct vgt_side s[2])
{
    struct pvrdma_port_attr a;
    uint16_t pkey;

    g_assert_cmpint(vg_query_port(s[0].g, 1, &a), ==, 0);
    expect_response(s[0].g, "QUERY_PORT");
    g_assert_cmpint(vg_query_pkey(s[0].g, 0, &pkey), ==, 0);
    expect_response(s[0].g, "QUERY_PKEY");
    vg_qp_state(s[0].qp);
    expect_response(s[0].g, "QUERY_QP");
    vg_query_clock(s[0].g);
    expect_response(s[0].g, "QUERY_CLOCK");
}

/* ---- many pages ---- */

static void expect_big(const struct vgt_side *s, uint64_t seed, const char *what)
{
    dirty_check(what);
    vgt_check(s->mr->buf->host, BIG, seed);
    for (unsigned i = 0; i < s->mr->buf->npages; i++) {
        g_assert_true(dirty_marked(s->g, s->mr->buf->page[i]));
    }
}

/*
 * Large messages: over TCP the kernel stores their middle in the guest's pages.  On a
 * connection that has not met read-only memory.
 */
static void large(const struct vgt_side s[2])
{
    struct vgt_side q[2];

    dirty_see(false);
    other_qps(s, q, NULL);
    for (unsigned i = 0; i < 2; i++) {
        q[i].mr = vg_mr_alloc(q[i].pd, VA, BIG, VG_ACCESS_ALL);
    }
    vg_qp_connect(q[0].qp, q[1].qp, &patient);
    dirty_check("large messages");

    vgt_fill(q[0].mr->buf->host, BIG, 1);
    vgt_complete(&q[0], 1, PVRDMA_WR_RDMA_WRITE, 0, BIG, &q[1], 0);
    expect_big(&q[1], 1, "large WRITE");
    vgt_fill(q[0].mr->buf->host, BIG, 2);
    vgt_recv(&q[1], 2, 0, BIG);
    vgt_complete(&q[0], 3, PVRDMA_WR_SEND, 0, BIG, NULL, 0);
    vgt_expect(q[1].rcq, 2, PVRDMA_WC_SUCCESS);
    expect_big(&q[1], 2, "large SEND");
    vgt_fill(q[1].mr->buf->host, BIG, 3);
    vgt_complete(&q[0], 4, PVRDMA_WR_RDMA_READ, 0, BIG, &q[1], 0);
    expect_big(&q[0], 3, "large READ");
    destroy_qps(q);
    for (unsigned i = 0; i < 2; i++) {
        vg_mr_free(q[i].mr);
    }
    dirty_see(true);
}

static void test_mode(gconstpointer arg)
{
    enum vg_db_mode mode = GPOINTER_TO_UINT(arg);
    struct vgt_side s[2];

    for (unsigned i = 0; i < 2; i++) {
        open_side(&s[i], i, mode);
    }
    vg_qp_connect(s[0].qp, s[1].qp, &patient);
    dirty_check("connect");
    g_assert_true(dirty_stored(s[0].g, s[0].g->resp_gpa));
    send_armed(&s[0], &s[1]);
    ops(&s[0], &s[1]);
    sends(s);
    unreliable(s);
    datagrams(s);
    shared_receives(s);
    fast_registrations(s);
    if (mode == VG_DB_EXT) {
        window(s);
        other_rings(s);
        stamps(s);
    }
    queries(s);
    large(s);
    stream(&s[0], &s[1]);
    arm_message(&s[0], &s[1]);
    errors(&s[0], &s[1]);
    for (unsigned i = 0; i < 2; i++) {
        vg_mr_free(s[i].mr);
        vg_qp_free(s[i].qp);
        vg_cq_free(s[i].scq);
        vg_cq_free(s[i].rcq);
        vg_pd_free(s[i].pd);
    }
    dirty_check("destruction");
    for (unsigned i = 0; i < 2; i++) {
        g_assert_cmpint(vg_reset(s[i].g), ==, 0);
    }
    dirty_check("reset");
    dirty_unwatch();
    for (unsigned i = 0; i < 2; i++) {
        vguest_free(s[i].g);
    }
}

int main(int argc, char **argv)
{
    int ret;

    vgt_init(&argc, &argv, 120);
    dirty_begin();
    g_test_add_data_func("/dirty/shared", GUINT_TO_POINTER(VG_DB_SHARED), test_mode);
    g_test_add_data_func("/dirty/messages", GUINT_TO_POINTER(VG_DB_REPLY), test_mode);
    g_test_add_data_func("/dirty/extended", GUINT_TO_POINTER(VG_DB_EXT), test_mode);
    ret = g_test_run();
    dirty_end();
    return ret;
}
