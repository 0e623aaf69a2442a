/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Verbs-like objects of a virtual guest, with the guest's own ring arithmetic:
 * what the driver and the user-space provider do between them.
 */
#include "vguest.h"

#include <errno.h>
#include <sched.h>
#include <unistd.h>

static uint32_t pow2_at_least(uint32_t v)
{
    uint32_t p = 1;

    while (p < v) {
        p <<= 1;
    }
    return p;
}

/* ---- PD and MR ---- */

static struct vg_pd *pd_new(struct vguest *g, uint32_t ctx, uint32_t uar_page)
{
    struct vg_pd *pd = g_new0(struct vg_pd, 1);

    pd->g = g;
    pd->ctx = ctx;
    pd->uar_page = uar_page;
    g_assert_cmpint(vg_create_pd(g, ctx, &pd->handle), ==, 0);
    return pd;
}

struct vg_pd *vg_pd_new(struct vguest *g)
{
    return pd_new(g, g->uctx, g->uar_page);
}

struct vg_pd *vg_pd_new_kernel(struct vguest *g)
{
    return pd_new(g, 0, 0);
}

void vg_pd_free(struct vg_pd *pd)
{
    if (pd->g->up) {
        g_assert_cmpint(vg_destroy(pd->g, PVRDMA_CMD_DESTROY_PD, pd->handle), ==, 0);
    }
    g_free(pd);
}

struct vg_mr *vg_mr_new(struct vg_pd *pd, struct vg_buf *buf, uint32_t access)
{
    struct vg_mr *mr = g_new0(struct vg_mr, 1);
    struct pvrdma_cmd_create_mr req = {.start = buf->va,
                                       .length = buf->len,
                                       .pd_handle = pd->handle,
                                       .access_flags = access,
                                       .nchunks = buf->npages};
    struct pvrdma_resp_create_mr resp;

    mr->pd = pd;
    mr->buf = buf;
    mr->pdir = req.pdir_dma = vg_pdir_new(pd->g, buf->page, buf->npages);
    g_assert_cmpint(vg_create_mr(pd->g, &req, &resp), ==, 0);
    mr->handle = resp.mr_handle;
    mr->lkey = resp.lkey;
    mr->rkey = resp.rkey;
    return mr;
}

struct vg_mr *vg_mr_alloc(struct vg_pd *pd, uint64_t va, uint64_t len, uint32_t access)
{
    return vg_mr_new(pd, vg_buf_new(pd->g, va, len, VG_SCATTERED), access);
}

struct vg_mr *vg_mr_new_dma(struct vg_pd *pd)
{
    struct vg_mr *mr = g_new0(struct vg_mr, 1);
    struct pvrdma_cmd_create_mr req = {.pd_handle = pd->handle,
                                       .access_flags = PVRDMA_ACCESS_LOCAL_WRITE,
                                       .flags = PVRDMA_MR_FLAG_DMA};
    struct pvrdma_resp_create_mr resp;

    mr->pd = pd;
    g_assert_cmpint(vg_create_mr(pd->g, &req, &resp), ==, 0);
    mr->handle = resp.mr_handle;
    mr->lkey = resp.lkey;
    mr->rkey = resp.rkey;
    return mr;
}

struct vg_mr *vg_mr_new_fast(struct vg_pd *pd, struct vg_buf *buf, uint32_t max)
{
    struct vg_mr *mr = g_new0(struct vg_mr, 1);
    struct pvrdma_cmd_create_mr req = {
        .pd_handle = pd->handle, .flags = PVRDMA_MR_FLAG_FRMR, .nchunks = max};
    struct pvrdma_resp_create_mr resp;

    mr->pd = pd;
    mr->buf = buf;
    mr->pdir = vg_pdir_new(pd->g, buf->page, buf->npages);
    g_assert_cmpint(vg_create_mr(pd->g, &req, &resp), ==, 0);
    mr->handle = resp.mr_handle;
    mr->lkey = resp.lkey;
    mr->rkey = resp.rkey;
    return mr;
}

struct vg_wr vg_wr_fast_reg(struct vg_mr *mr, uint64_t wr_id, uint32_t access)
{
    mr->rkey = mr->lkey = (mr->lkey & ~0xffu) | ((mr->lkey + 1) & 0xff);
    return (struct vg_wr){.wr_id = wr_id,
                          .opcode = PVRDMA_WR_FAST_REG,
                          .flags = PVRDMA_SEND_SIGNALED,
                          .reg = {.iova_start = mr->buf->va,
                                  .pl_pdir_dma = mr->pdir,
                                  .page_shift = PVRDMA_PAGE_SHIFT,
                                  .page_list_len = mr->buf->npages,
                                  .length = (uint32_t)mr->buf->len,
                                  .access_flags = access,
                                  .rkey = mr->rkey}};
}

struct vg_wr vg_wr_bind(struct vg_mw *w, uint64_t wr_id, const struct vg_mr *mr,
                        uint64_t off, uint64_t len, uint32_t access)
{
    w->rkey = (w->rkey & ~0xffu) | ((w->rkey + 1) & 0xff);
    return (struct vg_wr){.wr_id = wr_id,
                          .opcode = PVRDMA_WR_BIND_MW,
                          .flags = PVRDMA_SEND_SIGNALED,
                          .bind = {.addr = mr->buf->va + off,
                                   .length = len,
                                   .lkey = mr->lkey,
                                   .access_flags = access,
                                   .rkey = w->rkey}};
}

void vg_mr_free(struct vg_mr *mr)
{
    struct vguest *g = mr->pd->g;

    if (g->up) {
        g_assert_cmpint(vg_destroy(g, PVRDMA_CMD_DESTROY_MR, mr->handle), ==, 0);
    }
    if (mr->buf) {
        vg_pdir_free(g, mr->pdir, mr->buf->npages);
        vg_buf_free(mr->buf);
    }
    g_free(mr);
}

struct pvrdma_sge vg_sge(const struct vg_mr *mr, uint64_t offset, uint32_t len)
{
    struct pvrdma_sge s = {
        .addr = (mr->buf ? mr->buf->va : 0) + offset, .length = len, .lkey = mr->lkey};

    return s;
}

struct vg_wr vg_wr_of(uint64_t wr_id, uint32_t opcode, uint32_t flags,
                      const struct pvrdma_sge *sge)
{
    return (struct vg_wr){
        .wr_id = wr_id, .opcode = opcode, .flags = flags, .nsge = 1, .sge = sge};
}

struct vg_wr vg_wr_at(uint64_t wr_id, uint32_t opcode, uint32_t flags,
                      const struct pvrdma_sge *sge, uint64_t addr, uint32_t rkey)
{
    struct vg_wr wr = vg_wr_of(wr_id, opcode, flags, sge);

    wr.remote_addr = addr;
    wr.rkey = rkey;
    return wr;
}

struct vg_wr vg_wr_to(uint64_t wr_id, uint32_t opcode, uint32_t flags,
                      const struct pvrdma_sge *sge, const struct vg_mr *mr,
                      uint64_t offset)
{
    return vg_wr_at(wr_id, opcode, flags, sge, mr->buf->va + offset, mr->rkey);
}

struct vg_wr vg_wr_datagram(uint64_t wr_id, uint32_t flags, const struct pvrdma_sge *sge,
                            const struct pvrdma_av *av, uint32_t qpn, uint32_t qkey)
{
    struct vg_wr wr = vg_wr_of(wr_id, PVRDMA_WR_SEND, flags, sge);

    wr.av = av;
    wr.remote_qpn = qpn;
    wr.remote_qkey = qkey;
    return wr;
}

/* ---- CQ ---- */

static void cq_words(struct vg_cq *cq, bool ext)
{
    struct pvrdma_ring *stock = &((struct pvrdma_ring_state *)cq->mem->host)->rx;
    struct pvrdma_ext_ring *e = (struct pvrdma_ext_ring *)cq->mem->host;

    cq->ext = ext;
    cq->prod_tail = ext ? &e->rx_prod_tail.value : &stock->prod_tail;
    cq->cons_head = ext ? &e->rx_cons_head.value : &stock->cons_head;
    cq->arm = ext ? &e->arm.value : NULL;
}

struct vg_cq *vg_cq_new(struct vg_pd *pd, uint32_t cqe)
{
    return vg_cq_new_vector(pd, cqe, 0);
}

struct vg_cq *vg_cq_new_vector(struct vg_pd *pd, uint32_t cqe, uint32_t vector)
{
    return vg_cq_new_flags(pd, cqe, vector << PVRDMA_EXT_CQ_VECTOR_SHIFT);
}

struct vg_cq *vg_cq_new_flags(struct vg_pd *pd, uint32_t cqe, uint32_t flags)
{
    struct vguest *g = pd->g;
    struct vg_cq *cq = g_new0(struct vg_cq, 1);
    struct pvrdma_cmd_create_cq req = {.ctx_handle = pd->ctx};
    struct pvrdma_resp_create_cq resp;

    cq->g = g;
    cq->n = pow2_at_least(cqe);
    cq->uar_page = pd->uar_page;
    cq->mem =
        vg_buf_new(g, 0, PVRDMA_PAGE_SIZE + (uint64_t)cq->n * sizeof(struct pvrdma_cqe),
                   VG_SCATTERED);
    cq_words(cq, g->ext && pd->uar_page == g->uar_page);
    req.reserved = (cq->ext ? PVRDMA_EXT_OBJ_RING : 0) | flags;
    cq->pdir = req.pdir_dma = vg_pdir_new(g, cq->mem->page, cq->mem->npages);
    req.cqe = cq->n;
    req.nchunks = cq->mem->npages;
    g_assert_cmpint(vg_create_cq(g, &req, &resp), ==, 0);
    g_assert_cmpuint(resp.cqe, ==, cq->n);
    g_assert_cmpuint(resp.cq_handle, !=, 0);
    cq->handle = resp.cq_handle;
    return cq;
}

#define SCRIBBLE  0xa5
#define OLD_RINGS 8 /* of a CQ, that are kept to look at */

static void cq_put_aside(struct vg_cq *cq)
{
    uint32_t tail = __atomic_load_n(cq->prod_tail, __ATOMIC_ACQUIRE), n = 0;
    struct pvrdma_cqe *to = g_new(struct pvrdma_cqe, cq->n_left + cq->n);

    g_assert_true(pvrdma_idx_valid(tail, cq->n));
    for (; cq->n_left; cq->n_left--) {
        to[n++] = cq->left[cq->left_at++];
    }
    for (uint32_t head = *cq->cons_head; head != tail;
         head = pvrdma_idx_next(head, cq->n)) {
        memcpy(&to[n++],
               cq->mem->host + PVRDMA_PAGE_SIZE +
                   pvrdma_idx_slot(head, cq->n) * sizeof(*to),
               sizeof(*to));
    }
    g_free(cq->left);
    cq->left = to;
    cq->left_at = 0;
    cq->n_left = n;
}

static void check_old(void *data)
{
    struct vg_buf *mem = data;

    for (uint64_t i = 0; i < mem->len; i++) {
        g_assert_cmpuint(mem->host[i], ==, SCRIBBLE);
    }
    vg_buf_free(mem);
}

int vg_cq_resize(struct vg_cq *cq, uint32_t cqe)
{
    struct vguest *g = cq->g;
    uint32_t n = pow2_at_least(cqe);
    struct vg_buf *mem = vg_buf_new(
        g, 0, PVRDMA_PAGE_SIZE + (uint64_t)n * sizeof(struct pvrdma_cqe), VG_SCATTERED);
    uint64_t pdir = vg_pdir_new(g, mem->page, mem->npages);
    struct pvrdma_ext_cmd_move_cq req = {
        .pdir_dma = pdir, .cq_handle = cq->handle, .cqe = n, .nchunks = mem->npages};
    int err = vg_move_cq(g, &req);

    if (err) {
        vg_pdir_free(g, pdir, mem->npages);
        vg_buf_free(mem);
        return err;
    }
    cq_put_aside(cq);
    memset(cq->mem->host, SCRIBBLE, cq->mem->len);
    vg_pdir_free(g, cq->pdir, cq->mem->npages);
    cq->old = g_slist_prepend(cq->old, cq->mem);
    if (g_slist_length(cq->old) > OLD_RINGS) {
        GSList *last = g_slist_last(cq->old);

        check_old(last->data);
        cq->old = g_slist_delete_link(cq->old, last);
    }
    cq->mem = mem;
    cq->pdir = pdir;
    cq->n = n;
    cq_words(cq, true);
    return 0;
}

void vg_cq_free(struct vg_cq *cq)
{
    struct vguest *g = cq->g;

    if (g->up) {
        g_assert_cmpint(vg_destroy(g, PVRDMA_CMD_DESTROY_CQ, cq->handle), ==, 0);
    }
    g_slist_free_full(cq->old, check_old);
    g_free(cq->left);
    vg_pdir_free(g, cq->pdir, cq->mem->npages);
    vg_buf_free(cq->mem);
    g_free(cq);
}

int vg_cq_poll(struct vg_cq *cq, struct pvrdma_cqe *cqe, int max)
{
    uint32_t tail = __atomic_load_n(cq->prod_tail, __ATOMIC_ACQUIRE);
    uint32_t head = *cq->cons_head;
    int n = 0, taken;

    if (!pvrdma_idx_valid(tail, cq->n)) {
        return -EINVAL;
    }
    for (; n < max && cq->n_left; n++, cq->n_left--) {
        cqe[n] = cq->left[cq->left_at++];
    }
    for (taken = n; n < max && head != tail; n++) {
        memcpy(&cqe[n],
               cq->mem->host + PVRDMA_PAGE_SIZE +
                   pvrdma_idx_slot(head, cq->n) * sizeof(*cqe),
               sizeof(*cqe));
        head = pvrdma_idx_next(head, cq->n);
    }
    if (n > taken) {
        __atomic_store_n(cq->cons_head, head, __ATOMIC_RELEASE);
    }
    return n;
}

bool vg_cq_wait(struct vg_cq *cq, struct pvrdma_cqe *cqe, int timeout_ms)
{
    int64_t deadline = 0;

    for (unsigned spins = 0;; spins++) {
        int n = vg_cq_poll(cq, cqe, 1);

        if (n) {
            g_assert_cmpint(n, ==, 1);
            return true;
        }
        if (spins < 200) {
            sched_yield();
            continue;
        }
        if (deadline == 0) {
            deadline = vg_now_ns() + timeout_ms * 1000000ll;
        } else if (vg_now_ns() > deadline) {
            return false;
        }
        usleep(20);
    }
}

void vg_cq_arm(struct vg_cq *cq, bool solicited_only)
{
    uint32_t none = PVRDMA_EXT_ARM_NONE;

    if (cq->ext) {
        if (solicited_only) {
            __atomic_compare_exchange_n(cq->arm, &none, PVRDMA_EXT_ARM_SOLICITED, false,
                                        __ATOMIC_RELEASE, __ATOMIC_RELAXED);
        } else {
            __atomic_store_n(cq->arm, PVRDMA_EXT_ARM_ANY, __ATOMIC_RELEASE);
        }
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        return;
    }
    vg_doorbell(cq->g, cq->uar_page, PVRDMA_UAR_CQ,
                cq->handle |
                    (solicited_only ? PVRDMA_UAR_CQ_ARM_SOL : PVRDMA_UAR_CQ_ARM));
}

/* ---- QP ---- */

static void qp_layout(struct vg_qp *qp, struct pvrdma_cmd_create_qp *req)
{
    struct vg_qp_opts *o = &qp->opts;
    uint64_t send_pages, recv_pages;

    o->send_wr = pow2_at_least(o->send_wr ? o->send_wr : 64);
    o->recv_wr = o->srq ? 0 : pow2_at_least(o->recv_wr ? o->recv_wr : 64);
    o->send_sge = o->send_sge ? o->send_sge : 4;
    o->recv_sge = o->srq ? 0 : o->recv_sge ? o->recv_sge : 4;
    o->type = o->type ? o->type : PVRDMA_QPT_RC;
    qp->sq.n = o->send_wr;
    qp->rq.n = o->recv_wr;
    qp->sq.wqe_size =
        pow2_at_least(sizeof(struct pvrdma_sq_wqe_hdr) +
                      MAX(o->send_sge * sizeof(struct pvrdma_sge), o->max_inline));
    qp->rq.wqe_size = pow2_at_least(sizeof(struct pvrdma_rq_wqe_hdr) +
                                    o->recv_sge * sizeof(struct pvrdma_sge));
    send_pages =
        ((uint64_t)qp->sq.n * qp->sq.wqe_size + PVRDMA_PAGE_SIZE - 1) / PVRDMA_PAGE_SIZE;
    recv_pages =
        ((uint64_t)qp->rq.n * qp->rq.wqe_size + PVRDMA_PAGE_SIZE - 1) / PVRDMA_PAGE_SIZE;
    qp->sq.first = PVRDMA_PAGE_SIZE;
    qp->rq.first = (1 + send_pages) * PVRDMA_PAGE_SIZE;
    req->max_send_wr = o->send_wr;
    req->max_recv_wr = o->recv_wr;
    req->max_send_sge = o->send_sge;
    req->max_recv_sge = o->recv_sge;
    req->total_chunks = 1 + send_pages + recv_pages;
    req->send_chunks = send_pages;
    req->is_srq = o->srq != NULL;
    req->srq_handle = o->srq ? o->srq->handle : 0;
}

/* Where the shared words are; true: an extended QP. */
static bool qp_words(struct vg_qp *qp)
{
    struct pvrdma_ring_state *st = (struct pvrdma_ring_state *)qp->mem->host;
    struct pvrdma_ext_ring *e = (struct pvrdma_ext_ring *)qp->mem->host;
    bool ext = qp->g->ext && qp->pd->uar_page == qp->g->uar_page && !qp->opts.stock;

    qp->sq.prod_tail = ext ? &e->tx_prod_tail.value : &st->tx.prod_tail;
    qp->sq.cons_head = ext ? &e->tx_cons_head.value : &st->tx.cons_head;
    qp->rq.prod_tail = ext ? &e->rx_prod_tail.value : &st->rx.prod_tail;
    qp->rq.cons_head = ext ? &e->rx_cons_head.value : &st->rx.cons_head;
    qp->sq.no_notify = ext ? &e->tx_no_notify.value : NULL;
    qp->rq.no_notify = ext ? &e->rx_no_notify.value : NULL;
    return ext;
}

struct vg_qp *vg_qp_new(struct vg_pd *pd, struct vg_cq *scq, struct vg_cq *rcq,
                        const struct vg_qp_opts *opts)
{
    struct vguest *g = pd->g;
    struct vg_qp *qp = g_new0(struct vg_qp, 1);
    struct pvrdma_cmd_create_qp req = {.pd_handle = pd->handle,
                                       .send_cq_handle = scq->handle,
                                       .recv_cq_handle = rcq->handle,
                                       .access_flags = PVRDMA_ACCESS_LOCAL_WRITE};
    struct pvrdma_resp_create_qp resp;

    qp->pd = pd;
    qp->g = g;
    qp->scq = scq;
    qp->rcq = rcq;
    if (opts) {
        qp->opts = *opts;
    }
    qp_layout(qp, &req);
    req.sq_sig_all = qp->opts.sq_sig_all;
    req.qp_type = qp->opts.type;
    qp->mem = vg_buf_new(g, 0, (uint64_t)req.total_chunks * PVRDMA_PAGE_SIZE,
                         qp->opts.contig ? VG_CONTIG : VG_SCATTERED);
    qp->pdir = req.pdir_dma = vg_pdir_new(g, qp->mem->page, qp->mem->npages);
    if (qp_words(qp)) {
        req.reserved[0] = PVRDMA_EXT_OBJ_RING;
        req.max_inline_data = qp->opts.max_inline;
    }
    g_assert_cmpint(vg_create_qp(g, &req, &resp), ==, 0);
    g_assert_cmpuint(resp.qp_handle, !=, 0);
    g_assert_cmpuint(resp.qp_handle, <, g->dsr->caps.max_qp);
    g_assert_cmpuint(resp.qpn, !=, 0);
    g_assert_cmpuint(resp.qpn, <=, 0xffffff);
    qp->handle = resp.qp_handle;
    qp->qpn = resp.qpn;
    return qp;
}

void vg_qp_free(struct vg_qp *qp)
{
    struct vguest *g = qp->g;

    if (g->up) {
        g_assert_cmpint(vg_destroy(g, PVRDMA_CMD_DESTROY_QP, qp->handle), ==, 0);
    }
    vg_pdir_free(g, qp->pdir, qp->mem->npages);
    vg_buf_free(qp->mem);
    g_free(qp);
}

int vg_add_vector(struct vguest *g, uint32_t vector, uint64_t pdir, uint32_t npages)
{
    struct pvrdma_ext_cmd_vector req = {.cmd = PVRDMA_CMD_ADD_VECTOR,
                                        .vector = vector,
                                        .pdir_dma = pdir,
                                        .npages = npages};

    return vg_command(g, &req, sizeof(req), NULL, 0);
}

void vg_qp_modify(struct vg_qp *qp, uint32_t mask, const struct pvrdma_qp_attr *a)
{
    g_assert_cmpint(vg_modify_qp(qp->g, qp->handle, mask, a), ==, 0);
}

void vg_qp_to_init(struct vg_qp *qp, const struct vg_conn *c)
{
    struct pvrdma_qp_attr a = {.qp_state = PVRDMA_QPS_INIT, .port_num = 1};

    a.qp_access_flags = c && c->access ? c->access : VG_ACCESS_ALL;
    vg_qp_modify(qp,
                 PVRDMA_QP_STATE | PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_PORT |
                     PVRDMA_QP_ACCESS_FLAGS,
                 &a);
}

static bool is_uc(const struct vg_qp *qp)
{
    return qp->opts.type == PVRDMA_QPT_UC;
}

static uint8_t or_default(const struct vg_conn *c, uint8_t value, uint8_t def)
{
    return value || (c && c->zero_counts) ? value : def;
}

void vg_qp_to_rtr(struct vg_qp *qp, const struct pvrdma_gid *dgid, uint32_t dqpn,
                  uint32_t rq_psn, const struct vg_conn *c)
{
    struct pvrdma_qp_attr a = {
        .qp_state = PVRDMA_QPS_RTR,
        .path_mtu = PVRDMA_MTU_1024,
        .dest_qp_num = dqpn,
        .rq_psn = rq_psn,
        .ah_attr = {.dgid = *dgid, .hop_limit = 64, .ah_flags = 1, .port_num = 1}};

    a.ah_attr.sgid_index = c ? c->sgid_index : 0;
    a.max_dest_rd_atomic = or_default(c, c ? c->max_dest_rd_atomic : 0, 16);
    a.min_rnr_timer = c && c->min_rnr_timer ? c->min_rnr_timer : 1;
    vg_qp_modify(
        qp,
        PVRDMA_QP_STATE | PVRDMA_QP_AV | PVRDMA_QP_PATH_MTU | PVRDMA_QP_DEST_QPN |
            PVRDMA_QP_RQ_PSN |
            (is_uc(qp) ? 0 : PVRDMA_QP_MAX_DEST_RD_ATOMIC | PVRDMA_QP_MIN_RNR_TIMER),
        &a);
}

void vg_qp_to_rts(struct vg_qp *qp, uint32_t sq_psn, const struct vg_conn *c)
{
    struct pvrdma_qp_attr a = {.qp_state = PVRDMA_QPS_RTS, .sq_psn = sq_psn};

    a.timeout = c && c->timeout ? c->timeout : 14;
    a.retry_cnt = or_default(c, c ? c->retry_cnt : 0, 7);
    a.rnr_retry = or_default(c, c ? c->rnr_retry : 0, 7);
    a.max_rd_atomic = or_default(c, c ? c->max_rd_atomic : 0, 16);
    vg_qp_modify(qp,
                 PVRDMA_QP_STATE | PVRDMA_QP_SQ_PSN |
                     (is_uc(qp) ? 0
                                : PVRDMA_QP_TIMEOUT | PVRDMA_QP_RETRY_CNT |
                                      PVRDMA_QP_RNR_RETRY | PVRDMA_QP_MAX_RD_ATOMIC),
                 &a);
}

void vg_qp_reset_to_rts(struct vg_qp *qp, const struct pvrdma_gid *dgid, uint32_t dqpn,
                        uint32_t rq_psn, uint32_t sq_psn, const struct vg_conn *c)
{
    vg_qp_to_init(qp, c);
    vg_qp_to_rtr(qp, dgid, dqpn, rq_psn, c);
    vg_qp_to_rts(qp, sq_psn, c);
}

void vg_qp_to_state(struct vg_qp *qp, enum pvrdma_qp_state state)
{
    struct pvrdma_qp_attr a = {.qp_state = state};

    vg_qp_modify(qp, PVRDMA_QP_STATE, &a);
}

void vg_qp_to_reset(struct vg_qp *qp)
{
    vg_qp_to_state(qp, PVRDMA_QPS_RESET);
    memset(qp->mem->host, 0, offsetof(struct pvrdma_ext_ring, tx_no_notify));
    qp->sq.head = qp->rq.head = 0;
}

void vg_ud_to_rts(struct vg_qp *qp, uint32_t qkey)
{
    struct pvrdma_qp_attr a = {.qp_state = PVRDMA_QPS_INIT, .qkey = qkey, .port_num = 1};
    uint32_t port = qp->opts.type == PVRDMA_QPT_GSI ? 0 : PVRDMA_QP_PORT;

    vg_qp_modify(qp, PVRDMA_QP_STATE | PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_QKEY | port, &a);
    a.qp_state = PVRDMA_QPS_RTR;
    vg_qp_modify(qp, PVRDMA_QP_STATE, &a);
    a.qp_state = PVRDMA_QPS_RTS;
    vg_qp_modify(qp, PVRDMA_QP_STATE | PVRDMA_QP_SQ_PSN, &a);
}

struct pvrdma_av vg_av(const struct vg_pd *pd, uint8_t gid_index,
                       const struct pvrdma_gid *dgid)
{
    struct pvrdma_av av = {.port_pd = pd->handle | 1u << 24,
                           .sl_tclass_flowlabel = 0x5au << 20 | 0xabcde,
                           .src_path_bits = 0x80,
                           .gid_index = gid_index,
                           .hop_limit = 63};

    memcpy(av.dgid, dgid->raw, sizeof(av.dgid));
    return av;
}

void vg_qp_connect(struct vg_qp *a, struct vg_qp *b, const struct vg_conn *c)
{
    struct vg_qp *qp[2] = {a, b};
    unsigned n = a == b ? 1 : 2;

    for (unsigned i = 0; i < n; i++) {
        struct vg_qp *peer = qp[1 - i];

        vg_qp_to_init(qp[i], c);
        vg_qp_to_rtr(qp[i], &peer->g->gid, peer->qpn, peer->qpn & 0xffffff, c);
    }
    for (unsigned i = 0; i < n; i++) {
        vg_qp_to_rts(qp[i], qp[i]->qpn & 0xffffff, c);
    }
}

enum pvrdma_qp_state vg_qp_state(struct vg_qp *qp)
{
    struct pvrdma_qp_attr a;

    g_assert_cmpint(vg_query_qp(qp->g, qp->handle, &a), ==, 0);
    return a.qp_state;
}

/* ---- work requests ---- */

void *vg_wqe(struct vg_qp *qp, struct vg_wq *wq, uint32_t idx)
{
    return qp->mem->host + wq->first +
           (uint64_t)pvrdma_idx_slot(idx, wq->n) * wq->wqe_size;
}

/* As a library does it: the device's index is read only if it matters. */
static bool wq_full(struct vg_wq *wq, uint32_t tail)
{
    if (((tail - wq->head) & (2 * wq->n - 1)) < wq->n) {
        return false;
    }
    wq->head = __atomic_load_n(wq->cons_head, __ATOMIC_ACQUIRE);
    return tail == (wq->head ^ wq->n);
}

static void fill_send(struct vg_qp *qp, uint32_t idx, const struct vg_wr *wr)
{
    struct pvrdma_sq_wqe_hdr *w = vg_wqe(qp, &qp->sq, idx);

    w->wr_id = wr->wr_id;
    w->num_sge = wr->nsge;
    w->opcode = wr->opcode;
    w->send_flags = wr->flags;
    w->imm_data = wr->imm;
    if (wr->av) {
        w->wr.ud.remote_qpn = wr->remote_qpn;
        w->wr.ud.remote_qkey = wr->remote_qkey;
        w->wr.ud.av = *wr->av;
    } else if (wr->opcode == PVRDMA_WR_ATOMIC_CMP_AND_SWP ||
               wr->opcode == PVRDMA_WR_ATOMIC_FETCH_AND_ADD) {
        w->wr.atomic.remote_addr = wr->remote_addr;
        w->wr.atomic.rkey = wr->rkey;
        w->wr.atomic.compare_add = wr->compare_add;
        w->wr.atomic.swap = wr->swap;
    } else if (wr->opcode == PVRDMA_WR_FAST_REG) {
        w->wr.fast_reg = wr->reg;
    } else if (wr->opcode == PVRDMA_WR_BIND_MW) {
        w->wr.bind_mw = wr->bind;
    } else {
        w->wr.rdma.remote_addr = wr->remote_addr;
        w->wr.rdma.rkey = wr->rkey;
    }
    if (wr->inline_data) {
        w->num_sge = 0;
        w->total_len = wr->inline_len;
        memcpy(w + 1, wr->inline_data, MIN(wr->inline_len, qp->sq.wqe_size - sizeof(*w)));
        return;
    }
    if (wr->nsge) {
        memcpy(w + 1, wr->sge, MIN(wr->nsge, qp->opts.send_sge) * sizeof(*wr->sge));
    }
}

static void put_recv(struct pvrdma_rq_wqe_hdr *w, const struct vg_wr *wr,
                     uint32_t max_sge)
{
    w->wr_id = wr->wr_id;
    w->num_sge = wr->nsge;
    memcpy(w + 1, wr->sge, MIN(wr->nsge, max_sge) * sizeof(*wr->sge));
}

static void fill_recv(struct vg_qp *qp, uint32_t idx, const struct vg_wr *wr)
{
    put_recv(vg_wqe(qp, &qp->rq, idx), wr, qp->opts.recv_sge);
}

static unsigned queue(struct vg_qp *qp, struct vg_wq *wq, const struct vg_wr *wr,
                      unsigned n,
                      void (*fill)(struct vg_qp *, uint32_t, const struct vg_wr *))
{
    uint32_t tail = *wq->prod_tail;
    unsigned i;

    for (i = 0; i < n && !wq_full(wq, tail); i++) {
        fill(qp, tail, &wr[i]);
        tail = pvrdma_idx_next(tail, wq->n);
    }
    __atomic_store_n(wq->prod_tail, tail, __ATOMIC_RELEASE);
    return i;
}

unsigned vg_queue_send(struct vg_qp *qp, const struct vg_wr *wr, unsigned n)
{
    return queue(qp, &qp->sq, wr, n, fill_send);
}

unsigned vg_queue_recv(struct vg_qp *qp, const struct vg_wr *wr, unsigned n)
{
    return queue(qp, &qp->rq, wr, n, fill_recv);
}

/* Did the device say that it needs no doorbell?  After the producer index. */
static bool no_notify(const struct vg_wq *wq)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return wq->no_notify && __atomic_load_n(wq->no_notify, __ATOMIC_RELAXED);
}

void vg_ring_send(struct vg_qp *qp)
{
    if (no_notify(&qp->sq)) {
        return;
    }
    vg_doorbell(qp->g, qp->pd->uar_page, PVRDMA_UAR_QP, qp->handle | PVRDMA_UAR_QP_SEND);
}

void vg_ring_recv(struct vg_qp *qp)
{
    if (no_notify(&qp->rq)) {
        return;
    }
    vg_doorbell(qp->g, qp->pd->uar_page, PVRDMA_UAR_QP, qp->handle | PVRDMA_UAR_QP_RECV);
}

unsigned vg_post_send(struct vg_qp *qp, const struct vg_wr *wr, unsigned n)
{
    unsigned done = vg_queue_send(qp, wr, n);

    if (done) {
        vg_ring_send(qp);
    }
    return done;
}

unsigned vg_post_recv(struct vg_qp *qp, const struct vg_wr *wr, unsigned n)
{
    unsigned done = vg_queue_recv(qp, wr, n);

    if (done) {
        vg_ring_recv(qp);
    }
    return done;
}

/* ---- SRQ ---- */

struct vg_srq *vg_srq_new(struct vg_pd *pd, uint32_t wr, uint32_t sge, bool stock)
{
    struct vguest *g = pd->g;
    struct vg_srq *srq = g_new0(struct vg_srq, 1);
    bool ext = g->ext && pd->uar_page == g->uar_page && !stock;
    struct pvrdma_cmd_create_srq req = {
        .pd_handle = pd->handle,
        .attrs = {.max_wr = pow2_at_least(wr), .max_sge = sge},
        .reserved = {ext ? PVRDMA_EXT_OBJ_RING : 0}};
    struct pvrdma_ext_ring *e;
    struct pvrdma_ring *st;

    srq->pd = pd;
    srq->g = g;
    srq->max_sge = sge;
    srq->rq.n = req.attrs.max_wr;
    srq->rq.first = PVRDMA_PAGE_SIZE;
    srq->rq.wqe_size =
        pow2_at_least(sizeof(struct pvrdma_rq_wqe_hdr) + sge * sizeof(struct pvrdma_sge));
    srq->mem = vg_buf_new(g, 0, PVRDMA_PAGE_SIZE + (uint64_t)srq->rq.n * srq->rq.wqe_size,
                          VG_SCATTERED);
    st = &((struct pvrdma_ring_state *)srq->mem->host)->rx;
    e = (struct pvrdma_ext_ring *)srq->mem->host;
    srq->rq.prod_tail = ext ? &e->rx_prod_tail.value : &st->prod_tail;
    srq->rq.cons_head = ext ? &e->rx_cons_head.value : &st->cons_head;
    srq->rq.no_notify = ext ? &e->rx_no_notify.value : NULL;
    srq->pdir = req.pdir_dma = vg_pdir_new(g, srq->mem->page, srq->mem->npages);
    req.nchunks = srq->mem->npages;
    g_assert_cmpint(vg_create_srq(g, &req, &srq->handle), ==, 0);
    g_assert_cmpuint(srq->handle, !=, 0);
    g_assert_cmpuint(srq->handle, <, g->dsr->caps.max_srq);
    return srq;
}

void vg_srq_free(struct vg_srq *srq)
{
    struct vguest *g = srq->g;

    if (g->up) {
        g_assert_cmpint(vg_destroy(g, PVRDMA_CMD_DESTROY_SRQ, srq->handle), ==, 0);
    }
    vg_pdir_free(g, srq->pdir, srq->mem->npages);
    vg_buf_free(srq->mem);
    g_free(srq);
}

unsigned vg_queue_srq(struct vg_srq *srq, const struct vg_wr *wr, unsigned n)
{
    struct vg_wq *wq = &srq->rq;
    uint32_t tail = *wq->prod_tail;
    unsigned i;

    for (i = 0; i < n && !wq_full(wq, tail); i++) {
        uint64_t off = (uint64_t)pvrdma_idx_slot(tail, wq->n) * wq->wqe_size;

        put_recv((struct pvrdma_rq_wqe_hdr *)(srq->mem->host + wq->first + off), &wr[i],
                 srq->max_sge);
        tail = pvrdma_idx_next(tail, wq->n);
    }
    __atomic_store_n(wq->prod_tail, tail, __ATOMIC_RELEASE);
    return i;
}

void vg_ring_srq(struct vg_srq *srq)
{
    if (!no_notify(&srq->rq)) {
        vg_doorbell(srq->g, srq->pd->uar_page, PVRDMA_UAR_SRQ,
                    srq->handle | PVRDMA_UAR_SRQ_RECV);
    }
}

unsigned vg_post_srq(struct vg_srq *srq, const struct vg_wr *wr, unsigned n)
{
    unsigned done = vg_queue_srq(srq, wr, n);

    if (done) {
        vg_ring_srq(srq);
    }
    return done;
}
