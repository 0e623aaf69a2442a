/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The whole provider on a faked kernel (fake-kernel.c), in both modes; the test
 * plays the device.  run-verbs.sh builds it for each provider ABI, and runs it under
 * valgrind, by which every byte that the device looks at must have been written, and
 * with the compiler's sanitizers.
 */
#include <glib.h>
#include <sched.h>
#include <unistd.h>

#include "verbs.h"

/* ---- the device's side ------------------------------------------------------------- */

/* Reads bytes as the device would; memcheck complains if they are undefined. */
void device_reads(const void *p, size_t n)
{
    const uint8_t *b = p;
    unsigned sum = 0;

    for (size_t i = 0; i < n; i++) {
        sum += b[i];
    }
    if (sum == 0xffffffff) {
        g_print("never\n");
    }
}

static struct words words_of(void *page, bool ext)
{
    struct pvrdma_ext_ring *e = page;
    struct pvrdma_ring_state *s = page;

    if (ext) {
        return (struct words){&e->tx_prod_tail.value, &e->tx_cons_head.value,
                              &e->rx_prod_tail.value, &e->rx_cons_head.value,
                              &e->arm.value};
    }
    return (struct words){&s->tx.prod_tail, &s->tx.cons_head, &s->rx.prod_tail,
                          &s->rx.cons_head, NULL};
}

struct words qp_words(const struct rig *r, uint32_t handle)
{
    return words_of((void *)(uintptr_t)fake.qp[handle].req.sbuf_addr, r->ext);
}

struct words cq_words(const struct rig *r)
{
    return words_of((void *)(uintptr_t)r->cq_addr, r->ext);
}

/* The next unconsumed send WQE of a QP; NULL if there is none. */
struct pvrdma_sq_wqe_hdr *device_take(const struct rig *r, uint32_t handle)
{
    const struct fake_qp *f = &fake.qp[handle];
    struct words w = qp_words(r, handle);
    uint32_t n = f->cap.max_send_wr;
    uint32_t size = pv_sq_wqe_size(f->cap.max_send_sge, f->req.ext.max_inline);
    uint32_t head = *w.tx_cons;
    struct pvrdma_sq_wqe_hdr *hdr;

    g_assert_true(pvrdma_idx_valid(__atomic_load_n(w.tx_prod, __ATOMIC_ACQUIRE), n));
    if (__atomic_load_n(w.tx_prod, __ATOMIC_ACQUIRE) == head) {
        return NULL;
    }
    hdr = (void *)(uintptr_t)(f->req.sbuf_addr + 4096 +
                              (uint64_t)pvrdma_idx_slot(head, n) * size);
    device_reads(hdr, sizeof(*hdr) + hdr->num_sge * 16 + hdr->total_len);
    __atomic_store_n(w.tx_cons, pvrdma_idx_next(head, n), __ATOMIC_RELEASE);
    return hdr;
}

static void device_put(const struct rig *r, const struct pvrdma_cqe *what)
{
    struct words w = cq_words(r);
    uint32_t n = r->cq->cqe, tail = *w.rx_prod;
    struct pvrdma_cqe *cqe = (void *)(uintptr_t)(r->cq_addr + 4096);

    while (((tail - __atomic_load_n(w.rx_cons, __ATOMIC_ACQUIRE)) & (2 * n - 1)) == n) {
        sched_yield();
    }
    cqe[pvrdma_idx_slot(tail, n)] = *what;
    __atomic_store_n(w.rx_prod, pvrdma_idx_next(tail, n), __ATOMIC_RELEASE);
}

void device_received(const struct rig *r, uint32_t handle, uint64_t name)
{
    struct pvrdma_cqe cqe = {
        .wr_id = name,
        .qp = handle,
        .opcode = 128,
        .byte_len = 17,
        .imm_data = 0x55,
        .src_qp = 6,
        .wc_flags = PVRDMA_WC_FLAG_IMM,
        .vendor_err = 0xabc,
        .reserved = {0xf6, 0xf5, 0xf4, 0xf3, 0xf2, 0xf1},
    };

    device_put(r, &cqe);
}

/* The next unconsumed receive of a QP: what the device is to call it. */
static uint64_t device_take_recv(const struct rig *r, uint32_t handle)
{
    const struct fake_qp *f = &fake.qp[handle];
    struct words w = qp_words(r, handle);
    uint32_t n = f->cap.max_recv_wr, head = *w.rx_cons;
    const struct pvrdma_rq_wqe_hdr *hdr;

    g_assert_true(pvrdma_idx_valid(__atomic_load_n(w.rx_prod, __ATOMIC_ACQUIRE), n));
    g_assert_cmpuint(__atomic_load_n(w.rx_prod, __ATOMIC_ACQUIRE), !=, head);
    hdr = (void *)(uintptr_t)(f->req.rbuf_addr + (uint64_t)pvrdma_idx_slot(head, n) *
                                                     pv_rq_wqe_size(f->cap.max_recv_sge));
    device_reads(hdr, sizeof(*hdr) + hdr->num_sge * 16);
    __atomic_store_n(w.rx_cons, pvrdma_idx_next(head, n), __ATOMIC_RELEASE);
    return hdr->wr_id;
}

void device_complete(const struct rig *r, struct ibv_qp *qp, uint64_t wr_id)
{
    struct ibv_sge sge = {0x2000, 100, 9};
    struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1}, *bad;
    uint32_t handle = to_pv_qp(qp)->handle;

    g_assert_cmpint(fake.ops->post_recv(qp, &wr, &bad), ==, 0);
    device_received(r, handle, device_take_recv(r, handle));
}

void device_sent(const struct rig *r, uint32_t handle, uint64_t wr_id, uint32_t src_qp)
{
    struct pvrdma_cqe cqe = {.wr_id = wr_id, .qp = handle, .src_qp = src_qp};

    device_put(r, &cqe);
}

/* ---- set-up -------------------------------------------------------------------------
 */

static void setup(struct rig *r, gconstpointer data)
{
    r->ext = GPOINTER_TO_INT(data);
    r->ctx = fake_open(r->ext);
    g_assert_nonnull(r->ctx);
    r->pd = fake.ops->alloc_pd(r->ctx);
    r->cq = fake.ops->create_cq(r->ctx, 5, NULL, 0);
    g_assert_nonnull(r->cq);
    g_assert_cmpint(r->cq->cqe, ==, 8);
    g_assert_cmpuint(fake.cq.ext.flags, ==, r->ext ? PVRDMA_EXT_OBJ_RING : 0);
    g_assert_cmpuint(fake.cq.buf_size, ==, 2 * 4096);
    r->cq_addr = fake.cq.buf_addr;
}

static void teardown(struct rig *r, gconstpointer data)
{
    g_assert_cmpint(fake.ops->destroy_cq(r->cq), ==, 0);
    g_assert_cmpint(fake.ops->dealloc_pd(r->pd), ==, 0);
    fake_close(r->ctx);
}

struct ibv_qp *make_qp_with(const struct rig *r, struct ibv_qp_init_attr *attr)
{
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_RTS};
    struct ibv_qp *qp = fake.ops->create_qp(r->pd, attr);

    g_assert_nonnull(qp);
    g_assert_cmpint(fake.ops->modify_qp(qp, &to, IBV_QP_STATE), ==, 0);
    fake.next_handle++;
    return qp;
}

/* With another CQ for what is sent. */
struct ibv_qp *make_qp_of(const struct rig *r, uint32_t depth, struct ibv_cq *send_cq)
{
    struct ibv_qp_init_attr attr = {
        .send_cq = send_cq,
        .recv_cq = r->cq,
        .cap = {.max_send_wr = depth,
                .max_recv_wr = depth,
                .max_send_sge = 2,
                .max_recv_sge = 1,
                .max_inline_data = r->ext ? 128 : 0},
        .qp_type = IBV_QPT_RC,
    };

    return make_qp_with(r, &attr);
}

struct ibv_qp *make_qp(const struct rig *r, uint32_t depth)
{
    return make_qp_of(r, depth, r->cq);
}

struct ibv_send_wr *list_of(struct ibv_send_wr *wr, struct ibv_sge *sge, unsigned n,
                            uint64_t first_id)
{
    for (unsigned i = 0; i < n; i++) {
        wr[i] = (struct ibv_send_wr){
            .wr_id = first_id + i,
            .next = i + 1 < n ? &wr[i + 1] : NULL,
            .sg_list = sge,
            .num_sge = 1,
            .opcode = IBV_WR_SEND,
            .send_flags = IBV_SEND_SIGNALED,
        };
    }
    return wr;
}

/* ---- tests ---------------------------------------------------------------------------
 */

static void test_mode(struct rig *r, gconstpointer data)
{
    struct pv_context *ctx = to_pv_ctx(r->ctx);

    g_assert_cmphex(fake.ucontext.magic, ==, PVRDMA_EXT_MAGIC);
    g_assert_cmpint(ctx->ext != NULL, ==, r->ext);
    g_assert_cmpuint(ctx->max_inline, ==, r->ext ? 432 : 0);
}

static void test_environment(void)
{
    struct ibv_context *ctx;

    g_setenv("PVRDMA_STOCK", "1", TRUE);
    ctx = fake_open(true);
    g_assert_cmphex(fake.ucontext.magic, ==, 0);
    g_assert_null(to_pv_ctx(ctx)->ext);
    fake_close(ctx);
    g_unsetenv("PVRDMA_STOCK");
}

/* A kernel that refuses to be asked is asked again, and never hears of us later. */
static void test_strict_kernel(void)
{
    struct rig r = {.ctx = fake_open_strict()};
    struct ibv_qp *qp;

    g_assert_nonnull(r.ctx);
    g_assert_cmpuint(fake.contexts, ==, 2);
    g_assert_null(to_pv_ctx(r.ctx)->ext);
    g_assert_cmpuint(to_pv_ctx(r.ctx)->max_inline, ==, 0);
    r.pd = fake.ops->alloc_pd(r.ctx);
    r.cq = fake.ops->create_cq(r.ctx, 5, NULL, 0);
    g_assert_nonnull(r.cq);
    r.cq_addr = fake.cq.buf_addr;
    qp = make_qp(&r, 4);
    device_complete(&r, qp, 5);
    fake.ops->destroy_qp(qp);
    teardown(&r, NULL);
}

static void test_caps(struct rig *r, gconstpointer data)
{
    struct ibv_qp_init_attr attr = {
        .send_cq = r->cq,
        .recv_cq = r->cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 5, .max_recv_wr = 0, .max_send_sge = 0, .max_recv_sge = 3},
    };
    struct ibv_qp *qp = fake.ops->create_qp(r->pd, &attr);
    struct ibv_qp_attr qa;

    g_assert_cmpuint(attr.cap.max_send_wr, ==, 8);
    g_assert_cmpuint(attr.cap.max_recv_wr, ==, 1);
    g_assert_cmpuint(attr.cap.max_send_sge, ==, 1);
    g_assert_cmpuint(attr.cap.max_recv_sge, ==, 3);
    g_assert_cmpuint(attr.cap.max_inline_data, ==, r->ext ? 48 : 0);
    g_assert_cmpuint(fake.qp[1].req.sbuf_size, ==, 2 * 4096);
    g_assert_cmpuint(fake.qp[1].req.rbuf_size, ==, 4096);
    memset(&attr, 0, sizeof(attr));
    g_assert_cmpint(fake.ops->query_qp(qp, &qa, 0, &attr), ==, 0);
    g_assert_cmpuint(attr.cap.max_send_wr, ==, 8);
    g_assert_cmpuint(qa.cap.max_recv_sge, ==, 3);
    fake.ops->destroy_qp(qp);

    attr.cap.max_inline_data = 433;
    attr.qp_type = IBV_QPT_RC;
    attr.send_cq = attr.recv_cq = r->cq;
    qp = fake.ops->create_qp(r->pd, &attr);
    if (r->ext) {
        g_assert_null(qp);
        g_assert_cmpint(errno, ==, EINVAL);
    } else {
        g_assert_cmpuint(attr.cap.max_inline_data, ==, 0);
        fake.ops->destroy_qp(qp);
    }
    /* Each refusal has its reason: ours an error, the kernel's for debugging. */
    memset(fake.logged, 0, sizeof(fake.logged));
    attr.cap.max_inline_data = 0;
    attr.cap.max_send_wr = UINT32_MAX;
    g_assert_null(fake.ops->create_qp(r->pd, &attr));
    g_assert_cmpuint(fake.logged[VERBS_LOG_ERR], ==, 1);
    attr.cap.max_send_wr = 1;
    attr.qp_type = IBV_QPT_RAW_PACKET;
    g_assert_null(fake.ops->create_qp(r->pd, &attr));
    g_assert_cmpint(errno, ==, EOPNOTSUPP);
    g_assert_cmpuint(fake.logged[VERBS_LOG_ERR], ==, 2);
    attr.qp_type = IBV_QPT_RC;
    g_assert_cmpuint(fake.logged[VERBS_LOG_DEBUG], ==, 0);
    fake.fail = ENOMEM;
    g_assert_null(fake.ops->create_qp(r->pd, &attr));
    g_assert_cmpint(errno, ==, ENOMEM);
    g_assert_cmpuint(fake.logged[VERBS_LOG_DEBUG], ==, 1);
    fake.fail = ENOSPC;
    g_assert_null(fake.ops->create_cq(r->ctx, 4, NULL, 0));
    g_assert_cmpint(errno, ==, ENOSPC);
    g_assert_cmpuint(fake.logged[VERBS_LOG_DEBUG], ==, 2);
    g_assert_cmpuint(fake.logged[VERBS_LOG_ERR], ==, 2);
    fake.no_fork = true;
    g_assert_null(fake.ops->create_cq(r->ctx, 4, NULL, 0));
    fake.no_fork = false;
    g_assert_cmpint(errno, ==, ENOMEM);
}

/* One notification per list; in extended mode only if the device sleeps. */
static void test_post(struct rig *r, gconstpointer data)
{
    struct ibv_qp *qp = make_qp(r, 8);
    struct ibv_sge sge = {0x1000, 8, 1};
    struct ibv_send_wr wr[12], *bad = NULL;
    struct pvrdma_sq_wqe_hdr *hdr;
    struct ibv_wc wc;

    fake.uar[0] = 0;
    g_assert_cmpint(fake.ops->post_send(qp, list_of(wr, &sge, 5, 50), &bad), ==, 0);
    if (r->ext) {
        g_assert_cmphex(fake.uar[0], ==, 0);
        g_assert_cmphex(fake.ext->send.words[0], ==, 1 << 1);
        g_assert_cmphex(fake.ext->send.summary[0], ==, 1);
    } else {
        g_assert_cmphex(fake.uar[0], ==, 1 | PVRDMA_UAR_QP_SEND);
    }
    /* Three fit; the fourth does not. */
    fake.ext->head.kick = 1;
    fake.uar[0] = 0;
    g_assert_cmpint(fake.ops->post_send(qp, list_of(wr, &sge, 4, 55), &bad), ==, ENOMEM);
    g_assert_true(bad == &wr[3]);
    g_assert_cmphex(fake.uar[0], ==, 1 | PVRDMA_UAR_QP_SEND);
    for (unsigned i = 0; i < 8; i++) {
        hdr = device_take(r, 1);
        g_assert_cmpuint(hdr->wr_id, ==, 50 + i);
        g_assert_cmpuint(hdr->num_sge, ==, 1);
    }
    g_assert_null(device_take(r, 1));
    device_sent(r, 1, 57, r->ext ? PVRDMA_EXT_CQE_SENT | 8 : 0);
    g_assert_cmpint(fake.ops->poll_cq(r->cq, 1, &wc), ==, 1);

    /* A bad request in the middle: those before it go out. */
    list_of(wr, &sge, 3, 70);
    wr[1].num_sge = 3;
    g_assert_cmpint(fake.ops->post_send(qp, wr, &bad), ==, EINVAL);
    g_assert_true(bad == &wr[1]);
    g_assert_cmpuint(device_take(r, 1)->wr_id, ==, 70);
    g_assert_null(device_take(r, 1));

    /* Nothing taken: no notification at all. */
    fake.uar[0] = 0;
    wr[1].next = NULL;
    g_assert_cmpint(fake.ops->post_send(qp, &wr[1], &bad), ==, EINVAL);
    g_assert_cmphex(fake.uar[0], ==, 0);
    qp->state = IBV_QPS_RTR;
    g_assert_cmpint(fake.ops->post_send(qp, wr, &bad), ==, EINVAL);
    fake.ops->destroy_qp(qp);
}

/* How many requests can be posted; the device takes them. */
static unsigned post_all(const struct rig *r, struct ibv_qp *qp)
{
    struct ibv_sge sge = {0x1000, 8, 1};
    struct ibv_send_wr wr, *bad;
    unsigned n = 0;

    while (fake.ops->post_send(qp, list_of(&wr, &sge, 1, 0), &bad) == 0) {
        g_assert_cmpuint(n++, <, 100);
        g_assert_nonnull(device_take(r, 1));
        if (!r->ext && n == 20) {
            break; /* for ever */
        }
    }
    return n;
}

/*
 * In extended mode a send slot is free when the completion of its request, or of a later
 * one, was polled.
 */
static void test_send_slots(struct rig *r, gconstpointer data)
{
    struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
    struct ibv_qp *qp = make_qp(r, 8);
    struct ibv_wc wc[4];

    if (!r->ext) { /* when the device has taken the request */
        g_assert_cmpuint(post_all(r, qp), ==, 20);
        fake.ops->destroy_qp(qp);
        return;
    }
    g_assert_cmpuint(post_all(r, qp), ==, 8);
    device_complete(r, qp, 1); /* a receive frees none */
    g_assert_cmpint(fake.ops->poll_cq(r->cq, 1, wc), ==, 1);
    g_assert_cmpuint(wc[0].src_qp, ==, 6);
    g_assert_cmpuint(post_all(r, qp), ==, 0);
    device_sent(r, 1, 3, PVRDMA_EXT_CQE_SENT | 3); /* two before it had none */
    device_sent(r, 1, 4, PVRDMA_EXT_CQE_SENT | 4);
    g_assert_cmpuint(post_all(r, qp), ==, 0);
    g_assert_cmpint(fake.ops->poll_cq(r->cq, 1, wc), ==, 1);
    g_assert_cmpuint(wc[0].src_qp, ==, 0); /* it is nobody's business */
    g_assert_cmpuint(post_all(r, qp), ==, 3);
    g_assert_cmpint(fake.ops->poll_cq(r->cq, 4, wc), ==, 1);
    g_assert_cmpuint(post_all(r, qp), ==, 1);
    /* One that wraps round. */
    device_sent(r, 1, 5, PVRDMA_EXT_CQE_SENT | 12);
    g_assert_cmpint(fake.ops->poll_cq(r->cq, 4, wc), ==, 1);
    g_assert_cmpuint(post_all(r, qp), ==, 8);
    /* What is left of the life before frees none of this one. */
    device_sent(r, 1, 7, PVRDMA_EXT_CQE_SENT | 9);
    g_assert_cmpint(fake.ops->modify_qp(qp, &reset, IBV_QP_STATE), ==, 0);
    g_assert_cmpuint(*qp_words(r, 1).tx_prod, ==, 0);
    g_assert_cmpuint(*qp_words(r, 1).tx_cons, ==, 0);
    qp->state = IBV_QPS_RTS;
    g_assert_cmpuint(post_all(r, qp), ==, 8);
    g_assert_cmpint(fake.ops->poll_cq(r->cq, 4, wc), ==, 0);
    g_assert_cmpuint(post_all(r, qp), ==, 0);
    fake.ops->destroy_qp(qp);
}

static void test_recv(struct rig *r, gconstpointer data)
{
    struct ibv_qp *qp = make_qp(r, 4);
    struct ibv_sge sge = {0x2000, 100, 9};
    struct ibv_recv_wr wr[2] =
        {
            {.wr_id = 1, .next = &wr[1], .sg_list = &sge, .num_sge = 1},
            {.wr_id = 2, .sg_list = &sge, .num_sge = 1},
        },
                       *bad;
    struct words w = qp_words(r, 1);
    struct pvrdma_rq_wqe_hdr *hdr = (void *)(uintptr_t)fake.qp[1].req.rbuf_addr;

    fake.uar[0] = 0;
    g_assert_cmpint(fake.ops->post_recv(qp, wr, &bad), ==, 0);
    g_assert_cmpint(fake.ops->post_recv(qp, wr, &bad), ==, 0);
    g_assert_cmpint(fake.ops->post_recv(qp, wr, &bad), ==, ENOMEM);
    g_assert_true(bad == &wr[0]);
    g_assert_cmpuint(*w.rx_prod, ==, 4);
    g_assert_cmphex(fake.uar[0], ==, r->ext ? 0 : (1 | PVRDMA_UAR_QP_RECV));
    g_assert_cmphex(fake.ext->recv.words[0], ==, r->ext ? 2 : 0);
    device_reads(hdr, 4 * 32);
    /* 32-byte WQEs; an extended queue's are named by their index. */
    g_assert_cmpuint(hdr[2].wr_id, ==, r->ext ? 1 : 2);
    qp->state = IBV_QPS_RESET;
    g_assert_cmpint(fake.ops->post_recv(qp, wr, &bad), ==, EINVAL);
    fake.ops->destroy_qp(qp);
}

static void test_poll(struct rig *r, gconstpointer data)
{
    struct ibv_qp *qp = make_qp(r, 8);
    struct ibv_wc wc[8];
    uint64_t id = 0, want = 0;

    fake.uar[1] = 0;
    g_assert_cmpint(fake.ops->poll_cq(r->cq, 8, wc), ==, 0);
    g_assert_cmphex(fake.uar[1], ==, r->ext ? 0 : (3 | PVRDMA_UAR_CQ_POLL));
    for (int round = 0; round < 200; round++) {
        int in = g_test_rand_int_range(1, 9), out = 0;

        for (int i = 0; i < in; i++) {
            device_complete(r, qp, id++);
        }
        while (out < in) {
            int n = fake.ops->poll_cq(r->cq, g_test_rand_int_range(1, 9), wc);

            g_assert_cmpint(n, >, 0);
            for (int i = 0; i < n; i++) {
                g_assert_cmpuint(wc[i].wr_id, ==, want++);
                g_assert_cmpuint(wc[i].qp_num, ==, qp->qp_num);
                g_assert_cmpint(wc[i].opcode, ==, IBV_WC_RECV);
                g_assert_cmpuint(wc[i].vendor_err, ==, 0xabc);
            }
            out += n;
        }
    }
    *cq_words(r).rx_prod = 0x12345;
    g_assert_cmpint(fake.ops->poll_cq(r->cq, 8, wc), <, 0);
    fake.ops->destroy_qp(qp);
}

/* Entries of a destroyed or reset QP go, the others stay in order. */
static void test_sweep(struct rig *r, gconstpointer data)
{
    struct ibv_qp *one = make_qp(r, 4), *two = make_qp(r, 4);
    struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
    struct ibv_sge sge = {0x1000, 8, 1};
    struct ibv_send_wr wr[2], *bad;
    struct ibv_wc wc[8];

    for (unsigned i = 0; i < 8; i++) {
        device_complete(r, i % 2 ? two : one, i);
    }
    g_assert_cmpint(fake.ops->destroy_qp(one), ==, 0);
    g_assert_cmpint(fake.ops->poll_cq(r->cq, 3, wc), ==, 3);
    g_assert_cmpuint(wc[0].wr_id, ==, 1);
    g_assert_cmpuint(wc[2].wr_id, ==, 5);
    /* A late entry of the dead QP is dropped. */
    device_received(r, 1, 99);
    g_assert_cmpint(fake.ops->poll_cq(r->cq, 8, wc), ==, 1);
    g_assert_cmpuint(wc[0].wr_id, ==, 7);

    g_assert_cmpint(fake.ops->post_send(two, list_of(wr, &sge, 2, 1), &bad), ==, 0);
    device_complete(r, two, 1);
    g_assert_cmpint(fake.ops->modify_qp(two, &reset, IBV_QP_STATE), ==, 0);
    g_assert_cmpint(fake.ops->poll_cq(r->cq, 8, wc), ==, 0);
    g_assert_cmpuint(*qp_words(r, 2).tx_prod, ==, 0);
    two->state = IBV_QPS_RTS;
    g_assert_cmpint(fake.ops->post_send(two, list_of(wr, &sge, 2, 7), &bad), ==, 0);
    g_assert_cmpuint(device_take(r, 2)->wr_id, ==, 7);

    fake.fail = EBUSY;
    g_assert_cmpint(fake.ops->destroy_qp(two), ==, EBUSY);
    device_complete(r, two, 12);
    g_assert_cmpint(fake.ops->poll_cq(r->cq, 8, wc), ==, 1);
    g_assert_cmpint(fake.ops->destroy_qp(two), ==, 0);

    /* A producer index that cannot be right is no reason to look at all of it. */
    two = make_qp(r, 4);
    *cq_words(r).rx_prod = 0x12345;
    g_assert_cmpint(fake.ops->destroy_qp(two), ==, 0);
}

static void test_arm(struct rig *r, gconstpointer data)
{
    fake.uar[1] = 0;
    g_assert_cmpint(fake.ops->req_notify_cq(r->cq, 1), ==, 0);
    if (r->ext) {
        g_assert_cmpuint(*cq_words(r).arm, ==, PVRDMA_EXT_ARM_SOLICITED);
        g_assert_cmphex(fake.uar[1], ==, 0);
    } else {
        g_assert_cmphex(fake.uar[1], ==, 3 | PVRDMA_UAR_CQ_ARM_SOL);
    }
    g_assert_cmpint(fake.ops->req_notify_cq(r->cq, 0), ==, 0);
    if (r->ext) {
        g_assert_cmpuint(*cq_words(r).arm, ==, PVRDMA_EXT_ARM_ANY);
    } else {
        g_assert_cmphex(fake.uar[1], ==, 3 | PVRDMA_UAR_CQ_ARM);
    }
}

static void test_cq_ex(struct rig *r, gconstpointer data)
{
    struct ibv_cq_init_attr_ex attr = {
        .cqe = 8,
        .wc_flags = IBV_WC_STANDARD_FLAGS,
        .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
        .flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
    };
    struct ibv_poll_cq_attr none = {0};
    struct ibv_cq_ex *cq = fake.ops->create_cq_ex(r->ctx, &attr);
    struct rig plain = *r;
    struct ibv_qp *qp;

    g_assert_nonnull(cq);
    r->cq = ibv_cq_ex_to_cq(cq);
    r->cq_addr = fake.cq.buf_addr;
    qp = make_qp(r, 4);
    g_assert_cmpint(ibv_start_poll(cq, &none), ==, ENOENT);
    for (unsigned round = 0; round < 40; round++) {
        for (unsigned i = 0; i < 3; i++) {
            device_complete(r, qp, 20 + i);
        }
        g_assert_cmpint(ibv_start_poll(cq, &none), ==, 0);
        for (unsigned i = 0; i < 3; i++) {
            g_assert_cmpuint(cq->wr_id, ==, 20 + i);
            g_assert_cmpint(cq->status, ==, IBV_WC_SUCCESS);
            g_assert_cmpint(ibv_wc_read_opcode(cq), ==, IBV_WC_RECV);
            g_assert_cmpuint(ibv_wc_read_byte_len(cq), ==, 17);
            g_assert_cmpuint(ibv_wc_read_imm_data(cq), ==, 0x55);
            g_assert_cmpuint(ibv_wc_read_qp_num(cq), ==, qp->qp_num);
            g_assert_cmpuint(ibv_wc_read_src_qp(cq), ==, 6);
            g_assert_cmpuint(ibv_wc_read_wc_flags(cq), ==, IBV_WC_WITH_IMM);
            g_assert_cmpuint(ibv_wc_read_vendor_err(cq), ==, 0xabc);
            g_assert_cmpint(ibv_next_poll(cq), ==, i < 2 ? 0 : ENOENT);
        }
        ibv_end_poll(cq);
        g_assert_cmpuint(*cq_words(r).rx_cons, ==, *cq_words(r).rx_prod);
    }
    fake.ops->destroy_qp(qp);
    fake.ops->destroy_cq(r->cq);
    *r = plain;

    attr.wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
    g_assert_null(fake.ops->create_cq_ex(r->ctx, &attr));
    g_assert_cmpint(errno, ==, EOPNOTSUPP);
}

/* Time stamps, and the clock that they are of. */
static void test_stamps(struct rig *r, gconstpointer data)
{
    struct ibv_cq_init_attr_ex attr = {
        .cqe = 8, .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_IMM};
    struct ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};
    struct ibv_poll_cq_attr none = {0};
    struct ibv_device_attr_ex dev = {0};
    struct rig plain = *r;
    struct ibv_cq_ex *cq;
    struct ibv_qp *qp;

    fake.clock = 1;
    g_assert_cmpint(fake.ops->query_device_ex(r->ctx, NULL, &dev, sizeof(dev)), ==, 0);
    g_assert_cmphex(dev.completion_timestamp_mask, ==,
                    r->ext ? PVRDMA_EXT_STAMP_MASK : 0);
    cq = fake.ops->create_cq_ex(r->ctx, &attr);
    if (!r->ext) {
        g_assert_null(cq);
        g_assert_cmpint(errno, ==, EOPNOTSUPP);
        return;
    }
    g_assert_cmpuint(fake.cq.ext.flags, ==, PVRDMA_EXT_OBJ_RING | PVRDMA_EXT_CQ_STAMPS);
    r->cq = ibv_cq_ex_to_cq(cq);
    r->cq_addr = fake.cq.buf_addr;
    qp = make_qp(r, 4);
    device_complete(r, qp, 20);
    g_assert_cmpint(ibv_start_poll(cq, &none), ==, 0);
    g_assert_cmphex(ibv_wc_read_completion_ts(cq), ==, 0xf1f2f3f4f5f6);
    g_assert_cmpuint(ibv_wc_read_imm_data(cq), ==, 0x55);
    ibv_end_poll(cq);
    fake.ops->destroy_qp(qp);
    fake.ops->destroy_cq(r->cq);
    *r = plain;

    fake.clock = 0;
    g_assert_cmpint(fake.ops->query_rt_values(r->ctx, &values), ==, EOPNOTSUPP);
    fake.clock = 0xabcd123456789abc;
    g_assert_cmpint(fake.ops->query_rt_values(r->ctx, &values), ==, 0);
    g_assert_cmphex((uint64_t)values.raw_clock.tv_nsec, ==, 0x123456789abc);
    g_assert_cmpint(values.raw_clock.tv_sec, ==, 0);
    values.comp_mask |= 2;
    g_assert_cmpint(fake.ops->query_rt_values(r->ctx, &values), ==, EINVAL);
}

static void test_moderate(struct rig *r, gconstpointer data)
{
    struct ibv_modify_cq_attr attr = {IBV_CQ_ATTR_MODERATE, {7, 300}};

    g_assert_cmpint(fake.ops->modify_cq(r->cq, &attr), ==, 0);
    g_assert_cmpuint(fake.moderate.cq_count, ==, 7);
    g_assert_cmpuint(fake.moderate.cq_period, ==, 300);
    fake.fail = EOPNOTSUPP;
    g_assert_cmpint(fake.ops->modify_cq(r->cq, &attr), ==, EOPNOTSUPP);
}

/* Where the libibverbs in use would find comp_mask. */
uint32_t mask_seen(struct pv_qp *qp)
{
    uint32_t v;

    memcpy(&v, fake.old_layout ? (void *)&qp->vqp.qp_ex.wr_flush : &qp->vqp.comp_mask, 4);
    return v;
}

struct pv_qp *make_qp_ex_of(struct rig *r, enum ibv_qp_type type, uint64_t ops)
{
    struct ibv_qp_init_attr_ex attr = {
        .send_cq = r->cq,
        .recv_cq = r->cq,
        .qp_type = type,
        .pd = r->pd,
        .cap = {.max_send_wr = 4,
                .max_recv_wr = 1,
                .max_send_sge = 2,
                .max_recv_sge = 1,
                .max_inline_data = r->ext ? 128 : 0},
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .send_ops_flags = ops,
    };
    struct ibv_qp *qp = fake.ops->create_qp_ex(r->ctx, &attr);

    if (!qp) {
        return NULL;
    }
    qp->state = IBV_QPS_RTS;
    return to_pv_qp(qp);
}

struct pv_qp *make_qp_ex(struct rig *r, uint64_t ops)
{
    return make_qp_ex_of(r, IBV_QPT_RC, ops);
}

static void test_domains(struct rig *r, gconstpointer data)
{
    struct ibv_td_init_attr td_attr = {0};
    struct ibv_td *td = fake.ops->alloc_td(r->ctx, &td_attr);
    struct ibv_parent_domain_init_attr attr = {.pd = r->pd, .td = td};
    struct ibv_pd *parent = fake.ops->alloc_parent_domain(r->ctx, &attr), *pd = r->pd;
    struct ibv_qp *qp;

    g_assert_nonnull(parent);
    g_assert_cmpint(fake.ops->dealloc_pd(r->pd), ==, EBUSY);
    g_assert_cmpint(fake.ops->dealloc_td(td), ==, EBUSY);
    r->pd = parent;
    qp = make_qp(r, 2);
    r->pd = pd;
    g_assert_false(to_pv_qp(qp)->sq.lock.needed);
    fake.ops->destroy_qp(qp);
    g_assert_cmpint(fake.ops->dealloc_pd(parent), ==, 0);
    g_assert_cmpint(fake.ops->dealloc_td(td), ==, 0);
}

static void test_mr_and_ah(struct rig *r, gconstpointer data)
{
    char buf[64];
    struct ibv_mr *mr = fake.ops->reg_mr(r->pd, buf, 64, (uintptr_t)buf, 1);
    struct ibv_ah_attr attr = {
        .is_global = 1,
        .port_num = 1,
        .grh = {.dgid.raw = {[10] = 0xff, [11] = 0xff, 10, 0, 0, 1}, .sgid_index = 3},
    };
    struct ibv_ah *ah = fake.ops->create_ah(r->pd, &attr);

    g_assert_nonnull(mr);
    fake.ops->dereg_mr(verbs_get_mr(mr));
    mr = fake.ops->reg_mr(r->pd, buf, 64, 0, 1);
    g_assert_true(!mr == !r->ext);
    if (mr) {
        fake.ops->dereg_mr(verbs_get_mr(mr));
    } else {
        g_assert_cmpint(errno, ==, EOPNOTSUPP);
    }
    g_assert_nonnull(ah);
    g_assert_cmphex(to_pv_ah(ah)->av.port_pd, ==, 7 | 1 << 24);
    /* Resolved only for a device that may be another one's. */
    g_assert_cmpuint(to_pv_ah(ah)->av.dmac[5], ==, r->ext ? 0 : 0xaa);
    fake.ops->destroy_ah(ah);
    /* A plain IPv6 address, which the stock provider refuses. */
    attr.grh.dgid = (union ibv_gid){.raw = {0x20, 0x01, 0x0d, 0xb8, [15] = 2}};
    attr.grh.flow_label = 0xfff12345;
    attr.grh.traffic_class = 0x81;
    attr.grh.hop_limit = 63;
    ah = fake.ops->create_ah(r->pd, &attr);
    g_assert_nonnull(ah);
    g_assert_cmpmem(to_pv_ah(ah)->av.dgid, 16, attr.grh.dgid.raw, 16);
    g_assert_cmphex(to_pv_ah(ah)->av.sl_tclass_flowlabel, ==, 0x08112345);
    g_assert_cmpuint(to_pv_ah(ah)->av.gid_index, ==, 3);
    g_assert_cmpuint(to_pv_ah(ah)->av.hop_limit, ==, 63);
    fake.ops->destroy_ah(ah);
    /* Multicast is carried by nobody. */
    attr.grh.dgid.raw[0] = 0xff;
    g_assert_null(fake.ops->create_ah(r->pd, &attr));
    attr.grh.dgid = (union ibv_gid){.raw = {[10] = 0xff, 0xff, 239, 1, 1, 1}};
    g_assert_null(fake.ops->create_ah(r->pd, &attr));
    attr.grh.dgid.raw[0] = 0x20;
    attr.is_global = 0;
    g_assert_null(fake.ops->create_ah(r->pd, &attr));
}

static void test_srq(struct rig *r, gconstpointer data)
{
    struct ibv_srq_init_attr attr = {.attr = {.max_wr = 3, .max_sge = 1}};
    struct ibv_srq *srq = fake.ops->create_srq(r->pd, &attr);
    struct ibv_sge sge = {0x2000, 100, 9};
    struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1}, *bad;

    g_assert_nonnull(srq);
    g_assert_cmpuint(attr.attr.max_wr, ==, 4);
    fake.uar[2] = 0;
    for (unsigned i = 0; i < 4; i++) {
        g_assert_cmpint(fake.ops->post_srq_recv(srq, &wr, &bad), ==, 0);
    }
    g_assert_cmpint(fake.ops->post_srq_recv(srq, &wr, &bad), ==, ENOMEM);
    g_assert_cmphex(fake.uar[2], ==, 9 | PVRDMA_UAR_SRQ_RECV);
    g_assert_cmphex(fake.srq_flags, ==, r->ext ? PVRDMA_EXT_OBJ_RING : 0);
    if (r->ext) {
        struct pvrdma_ext_ring *h = to_pv_srq(srq)->buf.addr;

        /* The device has read them all, and looks by itself from now on. */
        g_assert_cmpuint(h->rx_prod_tail.value, ==, 4);
        h->rx_cons_head.value = 4;
        h->rx_no_notify.value = 1;
        fake.uar[2] = 0;
        g_assert_cmpint(fake.ops->post_srq_recv(srq, &wr, &bad), ==, 0);
        g_assert_cmpuint(h->rx_prod_tail.value, ==, 5);
        g_assert_cmphex(fake.uar[2], ==, 0);
        h->rx_no_notify.value = 0;
        g_assert_cmpint(fake.ops->post_srq_recv(srq, &wr, &bad), ==, 0);
        g_assert_cmphex(fake.uar[2], ==, 9 | PVRDMA_UAR_SRQ_RECV);
    }
    g_assert_cmpint(fake.ops->destroy_srq(srq), ==, 0);
}

/* Long polling in vain is told; how long that is, this test does not say. */
static void test_idle(struct rig *r, gconstpointer data)
{
#if defined(__x86_64__) || defined(__i386__)
    struct ibv_wc wc;

    for (unsigned round = 0; r->ext && round < 3; round++) {
        fake.uar[1] = 0;
        for (unsigned i = 0; !fake.uar[1]; i++) {
            g_assert_cmpuint(i, <, 1u << 30);
            g_assert_cmpint(fake.ops->poll_cq(r->cq, 1, &wc), ==, 0);
            g_assert_true(i > 30 || round || !fake.uar[1]);
        }
        g_assert_cmphex(fake.uar[1], ==, 3 | PVRDMA_UAR_CQ_POLL | PVRDMA_EXT_UAR_CQ_IDLE);
    }
#endif
}

#define ADD(name, fn)                                                                  \
    do {                                                                               \
        g_test_add("/provider/stock/" name, struct rig, GINT_TO_POINTER(0), setup, fn, \
                   teardown);                                                          \
        g_test_add("/provider/ext/" name, struct rig, GINT_TO_POINTER(1), setup, fn,   \
                   teardown);                                                          \
    } while (0)

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    ADD("mode", test_mode);
    ADD("caps", test_caps);
    ADD("post", test_post);
    ADD("send-slots", test_send_slots);
    ADD("recv", test_recv);
    ADD("poll", test_poll);
    ADD("bad-names", test_bad_names);
    ADD("gone", test_gone);
    ADD("gone-ex", test_gone_ex);
    ADD("gone-two-cqs", test_gone_two_cqs);
    ADD("sweep", test_sweep);
    ADD("destroy-waits", test_destroy_waits);
    ADD("destroy-in-poll", test_destroy_in_poll);
    ADD("arm", test_arm);
    ADD("arm-in-poll", test_arm_in_poll);
    ADD("cq-ex", test_cq_ex);
    ADD("stamps", test_stamps);
    ADD("moderate", test_moderate);
    ADD("resize", test_resize);
    ADD("resize-sweep", test_resize_sweep);
    ADD("resize-ex", test_resize_ex);
    ADD("resize-threads", test_resize_threads);
    ADD("wr", test_wr);
    ADD("wr-ud", test_wr_ud);
    ADD("wr-uc", test_wr_uc);
    ADD("domains", test_domains);
    ADD("mr-ah", test_mr_and_ah);
    ADD("srq", test_srq);
    ADD("windows", test_windows);
    ADD("idle", test_idle);
    ADD("threads", test_threads);
    ADD("churn", test_churn);
#ifdef GO_ON_AT_FAULTS
    ADD("handle-in-poll", test_handle_in_poll);
    ADD("gone-late", test_gone_late);
#endif
    g_test_add_func("/provider/environment", test_environment);
    g_test_add_func("/provider/strict-kernel", test_strict_kernel);
    return g_test_run();
}
