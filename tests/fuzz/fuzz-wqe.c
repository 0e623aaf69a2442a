/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Fuzzer of rings and work queue elements: everything a guest writes that the
 * workers read.
 *
 * One VM with two connected QPs and two for datagrams, a stock and an extended one
 * each, and their CQs. The connected ones may be unreliable; one of those for datagrams
 * may be the GSI QP, which has no SRQ. The VM holds an IPv4 and an IPv6 address, so that
 * both headers are made. An input is a list of steps, each a kind byte and its arguments:
 * WQEs raw or right with patched bytes, ring indices, doorbells, arms, state changes, in
 * one pair of QPs or, after a step that says so, the other; fast registrations of the
 * MR's pages, whose page list the input may spoil, windows bound to the MR, and ends of
 * their keys among them. All of them may receive from one SRQ. A real worker serves them;
 * "ring" steps wait until it has nothing left to do, and fail when that takes seconds (an
 * endless walk).  Completions of the extended ones have time stamps; all CQs may hold
 * their events back.
 *
 * After each input: completions must name our QPs and a defined status, and the
 * memory that no ring, MR or key covers must be as it was.
 *
 * The corpus has to get requests of each kind to succeed (fuzz_reached_all).
 */
#include <inttypes.h>
#include <unistd.h>

#include "datapath/engine.h"
#include "fuzz.h"
#include "pvrdma/ext.h"
#include "testdev.h"

#define NQP        4
#define QKEY       0x11111111u
#define CQE        64u
#define WR         64u
#define NSGE       4u
#define MR_PAGES   16u
#define MR_VA      0x7f0000010080ull
#define MR_LEN     (MR_PAGES * 4096u - 0x100u)
#define CANARY     0xc3
#define MAX_STEPS  64
#define OTHER_PAIR 0xff /* a step: those that follow are for the other pair of QPs */
#define MAX_INLINE 48   /* the WQE has room for 176 */

/* Guest memory of one QP and its CQ, kept over all inputs. */
struct rings {
    uint64_t qp_pdir, qp_first; /* header, 4 send pages, 2 receive pages */
    uint64_t cq_pdir, cq_first; /* header, 1 page */
    uint32_t qp, qpn, cq;
};

static struct testdev *td;
static struct rings ring[NQP];
/* Where both receive: their own queues, a stock SRQ, an extended one. */
static enum { OWN, STOCK_SRQ, EXT_SRQ, N_SHARED } shared;
static uint64_t srq_pdir, srq_first; /* header, 2 pages */
static uint32_t srq;
static uint32_t pd, mr_handle, key;
static uint32_t fast_handle, fast_key;
static uint32_t window_handle[2], window_key[2];
static uint64_t mr_pdir, mr_table, mr_first, canary[2];

static bool gsi;       /* the third QP is that */
static bool uc;        /* the first two are */
static bool moderated; /* the CQs are */
/* How often something succeeded: by enum pvrdma_wc_opcode of the completion. */
static unsigned done[256], done_uc, done_held;

/* The VM's addresses, and nobody's. */
static const struct pvrdma_gid gid[] = {
    {.raw = {[10] = 0xff, [11] = 0xff, 10, 0, 0, 1}},
    {.raw = {0xfe, 0x80, [15] = 1}},
    {.raw = {0xfe, 0x80, [15] = 2}},
};

/* ---- objects ---- */

static void command(uint32_t op, void *req, size_t size)
{
    CHECK(testdev_command(td, op, req, size) == 0);
    testdev_irqs(td, PVRDMA_VEC_CMD);
}

static void modify(uint32_t qp, uint32_t mask, const struct pvrdma_qp_attr *a)
{
    struct pvrdma_cmd_modify_qp req = {.qp_handle = qp, .attr_mask = mask, .attrs = *a};

    command(PVRDMA_CMD_MODIFY_QP, &req, sizeof(req));
}

/* The shared words of a QP or CQ; the second of each is an extended one. */
struct words {
    uint32_t *tx_prod, *tx_cons, *rx_prod, *rx_cons;
};

static bool is_ext(const struct rings *r)
{
    return (r - ring) & 1;
}

/* The second pair. */
static bool is_ud(const struct rings *r)
{
    return r - ring >= 2;
}

static bool is_gsi(unsigned i)
{
    return gsi && i == 2 && shared == OWN;
}

static struct words words_at(bool ext, uint64_t gpa)
{
    struct pvrdma_ring_state *st = testdev_ptr(td, gpa);
    struct pvrdma_ext_ring *e = (struct pvrdma_ext_ring *)(void *)st;

    if (ext) {
        return (struct words){&e->tx_prod_tail.value, &e->tx_cons_head.value,
                              &e->rx_prod_tail.value, &e->rx_cons_head.value};
    }
    return (struct words){&st->tx.prod_tail, &st->tx.cons_head, &st->rx.prod_tail,
                          &st->rx.cons_head};
}

static struct words qp_words(const struct rings *r)
{
    struct words w = words_at(is_ext(r), r->qp_first);

    if (shared != OWN) {
        struct words s = words_at(shared == EXT_SRQ, srq_first);

        w.rx_prod = s.rx_prod;
        w.rx_cons = s.rx_cons;
    }
    return w;
}

static struct words cq_words(const struct rings *r)
{
    return words_at(is_ext(r), r->cq_first);
}

/* RESET to RTS, with timers so short that every wait ends soon. */
static void connect_qp(unsigned i)
{
    struct pvrdma_qp_attr a = {.qp_state = PVRDMA_QPS_INIT,
                               .port_num = 1,
                               .qp_access_flags = 0xf,
                               .path_mtu = PVRDMA_MTU_1024,
                               .dest_qp_num = ring[i ^ 1].qpn,
                               .qkey = QKEY,
                               .max_rd_atomic = 4,
                               .max_dest_rd_atomic = 4,
                               .min_rnr_timer = 1,
                               .timeout = 1,
                               .retry_cnt = 1,
                               .rnr_retry = 2,
                               .ah_attr = {.dgid = gid[0], .ah_flags = 1, .port_num = 1}};

    if (is_ud(&ring[i])) {
        modify(ring[i].qp,
               PVRDMA_QP_STATE | PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_QKEY |
                   (is_gsi(i) ? 0 : PVRDMA_QP_PORT),
               &a);
        a.qp_state = PVRDMA_QPS_RTR;
        modify(ring[i].qp, PVRDMA_QP_STATE, &a);
        a.qp_state = PVRDMA_QPS_RTS;
        modify(ring[i].qp, PVRDMA_QP_STATE | PVRDMA_QP_SQ_PSN, &a);
        return;
    }
    modify(ring[i].qp,
           PVRDMA_QP_STATE | PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_PORT |
               PVRDMA_QP_ACCESS_FLAGS,
           &a);
    a.qp_state = PVRDMA_QPS_RTR;
    modify(ring[i].qp,
           PVRDMA_QP_STATE | PVRDMA_QP_AV | PVRDMA_QP_PATH_MTU | PVRDMA_QP_DEST_QPN |
               PVRDMA_QP_RQ_PSN |
               (uc ? 0 : PVRDMA_QP_MAX_DEST_RD_ATOMIC | PVRDMA_QP_MIN_RNR_TIMER),
           &a);
    a.qp_state = PVRDMA_QPS_RTS;
    modify(ring[i].qp,
           PVRDMA_QP_STATE | PVRDMA_QP_SQ_PSN |
               (uc ? 0
                   : PVRDMA_QP_TIMEOUT | PVRDMA_QP_RETRY_CNT | PVRDMA_QP_RNR_RETRY |
                         PVRDMA_QP_MAX_RD_ATOMIC),
           &a);
}

static void create_srq(void)
{
    const union pvrdma_cmd_resp *resp = testdev_ptr(td, td->resp);
    struct pvrdma_cmd_create_srq req = {
        .pdir_dma = srq_pdir,
        .pd_handle = pd,
        .nchunks = 3,
        .attrs = {.max_wr = WR, .max_sge = NSGE},
        .reserved = {shared == EXT_SRQ ? PVRDMA_EXT_OBJ_RING : 0}};

    memset(testdev_ptr(td, srq_first), 0, 3 * 4096);
    command(PVRDMA_CMD_CREATE_SRQ, &req, sizeof(req));
    srq = resp->handle.handle;
}

/* For as long as can be, and of three completions. */
static void moderate(uint32_t cq)
{
    struct pvrdma_ext_cmd_moderate_cq req = {.cq_handle = cq, .count = 3};

    command(PVRDMA_CMD_MODERATE_CQ, &req, sizeof(req));
}

static void create_objects(void)
{
    const union pvrdma_cmd_resp *resp = testdev_ptr(td, td->resp);

    if (shared != OWN) {
        create_srq();
    }
    for (unsigned i = 0; i < NQP; i++) {
        struct rings *r = &ring[i];
        struct pvrdma_cmd_create_cq cq = {
            .pdir_dma = r->cq_pdir, .cqe = CQE, .nchunks = 2};
        struct pvrdma_cmd_create_qp qp = {.pdir_dma = r->qp_pdir,
                                          .pd_handle = pd,
                                          .max_send_wr = WR,
                                          .max_recv_wr = WR,
                                          .max_send_sge = NSGE,
                                          .max_recv_sge = NSGE,
                                          .total_chunks = 7,
                                          .send_chunks = 4,
                                          .qp_type = uc ? PVRDMA_QPT_UC : PVRDMA_QPT_RC,
                                          .access_flags = PVRDMA_ACCESS_LOCAL_WRITE};

        if (is_ext(r)) {
            cq.reserved = PVRDMA_EXT_OBJ_RING | PVRDMA_EXT_CQ_STAMPS;
            qp.reserved[0] = PVRDMA_EXT_OBJ_RING;
            qp.max_inline_data = MAX_INLINE;
        }
        if (is_ud(r)) {
            qp.qp_type = gsi && i == 2 && shared == OWN ? PVRDMA_QPT_GSI : PVRDMA_QPT_UD;
        }
        if (shared != OWN) {
            qp.is_srq = 1;
            qp.srq_handle = srq;
            qp.max_recv_wr = qp.max_recv_sge = 0;
            qp.total_chunks = 5;
        }
        memset(testdev_ptr(td, r->qp_first), 0, 7 * 4096);
        memset(testdev_ptr(td, r->cq_first), 0, 2 * 4096);
        command(PVRDMA_CMD_CREATE_CQ, &cq, sizeof(cq));
        r->cq = resp->create_cq.cq_handle;
        if (moderated) {
            moderate(r->cq);
        }
        qp.send_cq_handle = qp.recv_cq_handle = r->cq;
        command(PVRDMA_CMD_CREATE_QP, &qp, sizeof(qp));
        r->qp = resp->create_qp.qp_handle;
        r->qpn = resp->create_qp.qpn;
    }
    for (unsigned i = 0; i < NQP; i++) {
        connect_qp(i);
    }
}

static void destroy_objects(void)
{
    for (unsigned i = 0; i < NQP; i++) {
        CHECK(testdev_handle(td, PVRDMA_CMD_DESTROY_QP, ring[i].qp) == 0);
        CHECK(testdev_handle(td, PVRDMA_CMD_DESTROY_CQ, ring[i].cq) == 0);
    }
    if (shared != OWN) {
        CHECK(testdev_handle(td, PVRDMA_CMD_DESTROY_SRQ, srq) == 0);
    }
}

/* The page list of the MR, whatever an input made of it. */
static void right_list(void)
{
    uint64_t *page = testdev_ptr(td, mr_table);

    memset(testdev_ptr(td, mr_pdir), 0, 4096);
    *(uint64_t *)testdev_ptr(td, mr_pdir) = mr_table;
    memset(page, 0, 4096);
    for (unsigned i = 0; i < MR_PAGES; i++) {
        page[i] = mr_first + i * 4096;
    }
}

static void create_mr(void)
{
    const union pvrdma_cmd_resp *resp = testdev_ptr(td, td->resp);
    struct pvrdma_cmd_create_mr req = {.start = MR_VA,
                                       .length = MR_LEN,
                                       .pdir_dma = mr_pdir,
                                       .pd_handle = pd,
                                       .access_flags = 0x1f,
                                       .nchunks = MR_PAGES};

    command(PVRDMA_CMD_CREATE_MR, &req, sizeof(req));
    mr_handle = resp->create_mr.mr_handle;
    key = resp->create_mr.lkey;
}

/* For fast registration of the same pages. */
static void create_fast_mr(void)
{
    const union pvrdma_cmd_resp *resp = testdev_ptr(td, td->resp);
    struct pvrdma_cmd_create_mr req = {
        .pd_handle = pd, .flags = PVRDMA_MR_FLAG_FRMR, .nchunks = MR_PAGES};

    command(PVRDMA_CMD_CREATE_MR, &req, sizeof(req));
    fast_handle = resp->create_mr.mr_handle;
    fast_key = resp->create_mr.lkey;
}

/* One of each type. */
static void create_windows(void)
{
    const union pvrdma_cmd_resp *resp = testdev_ptr(td, td->resp);

    for (uint32_t i = 0; i < 2; i++) {
        struct pvrdma_ext_cmd_create_mw req = {.pd_handle = pd, .type = 1 + i};

        command(PVRDMA_CMD_CREATE_MW, &req, sizeof(req));
        window_handle[i] = resp->create_mr.mr_handle;
        window_key[i] = resp->create_mr.rkey;
    }
}

/* Those bound to the MR keep it. */
static void destroy_mrs(void)
{
    for (unsigned i = 0; i < 2; i++) {
        CHECK(testdev_handle(td, PVRDMA_CMD_DESTROY_MW, window_handle[i]) == 0);
    }
    CHECK(testdev_handle(td, PVRDMA_CMD_DESTROY_MR, mr_handle) == 0);
    CHECK(testdev_handle(td, PVRDMA_CMD_DESTROY_MR, fast_handle) == 0);
}

static void start(void)
{
    struct pvrdma_cmd_create_bind bind = {.vlan = 0xfff,
                                          .gid_type = PVRDMA_GID_TYPE_ROCE_V2};

    testdev_start();
    log_set_level(LOG_LVL_ERROR);
    td = testdev_new("fuzz");
    testdev_up(td);
    bind.gid_type = ((struct pvrdma_dsr *)testdev_ptr(td, td->dsr))->caps.gid_types;
    for (unsigned i = 0; i < 2; i++) {
        bind.index = i;
        bind.gid = gid[i];
        CHECK(testdev_command(td, PVRDMA_CMD_CREATE_BIND, &bind, sizeof(bind)) == 0);
    }
    for (unsigned i = 0; i < NQP; i++) {
        ring[i].qp_pdir = testdev_new_pdir(td, 7, &ring[i].qp_first);
        ring[i].cq_pdir = testdev_new_pdir(td, 2, &ring[i].cq_first);
    }
    srq_pdir = testdev_new_pdir(td, 3, &srq_first);
    /* The MR's neighbours, before and after. */
    canary[0] = testdev_pages(td, 4);
    mr_pdir = testdev_new_pdir(td, MR_PAGES, &mr_first);
    mr_table = *(uint64_t *)testdev_ptr(td, mr_pdir);
    canary[1] = testdev_pages(td, 4);
    for (unsigned i = 0; i < 2; i++) {
        memset(testdev_ptr(td, canary[i]), CANARY, 4 * 4096);
    }
}

/* ---- the worker ---- */

static bool idle(void)
{
    struct vm *vm = &td->vm;
    bool busy;

    vm_token_take(vm);
    busy = !TAILQ_EMPTY(&vm->dp.run) || vm->dp.timers.n || doorbells_pending(vm, true) ||
           atomic_load(&vm->dp.cq_error);
    vm_token_release(vm);
    return !busy;
}

static void settle(void)
{
    uint64_t end = now_ns() + 5000000000u;

    while (!idle()) {
        if (now_ns() > end) {
            const struct vm_datapath *dp = &td->vm.dp;

            fprintf(stderr,
                    "still busy: run queue empty %d, %u timers (next in %" PRId64
                    " ns), doorbells %d, CQ error %d, worker asleep %d\n",
                    TAILQ_EMPTY(&dp->run), dp->timers.n,
                    (int64_t)(atomic_load(&dp->next_timer) - now_ns()),
                    doorbells_pending(&td->vm, true), atomic_load(&dp->cq_error),
                    atomic_load(&dp->worker->grace.offline));
            abort();
        }
        usleep(1);
    }
    grace_wait();
}

/* ---- steps ---- */

static struct pvrdma_sge right_sge(struct fuzz_input *in)
{
    struct pvrdma_sge s = {.addr = MR_VA + fuzz_take(in, 2) % MR_LEN, .lkey = key};

    s.length = fuzz_take(in, 2) % (MR_LEN - (uint32_t)(s.addr - MR_VA) + 1);
    return s;
}

static void patch(struct fuzz_input *in, void *wqe, uint32_t size)
{
    for (uint32_t n = fuzz_take(in, 1) % 4; n > 0; n--) {
        uint32_t at = fuzz_take(in, 1) % size;

        ((uint8_t *)wqe)[at] = (uint8_t)fuzz_take(in, 1);
    }
}

/*
 * A FAST_REG of another page list that there is, a ring's say, would have the device
 * write where it must not by the input's own wish.
 */
static void own_list(uint8_t *wqe)
{
    struct pvrdma_sq_wqe_hdr h;

    memcpy(&h, wqe, sizeof(h));
    if (h.opcode == PVRDMA_WR_FAST_REG && h.wr.fast_reg.pl_pdir_dma != mr_pdir) {
        h.wr.fast_reg.pl_pdir_dma |= 1ull << 50;
        memcpy(wqe, &h, sizeof(h));
    }
}

/* Opcodes from here on in the input are those of keys; others are modulo 7. */
#define KEY_OPS    0xf0u
#define WINDOW_OPS 0xf8u

/* A window's WQE; with the key that it was bound with last or near to it. */
static struct pvrdma_sq_wqe_hdr window_op(struct fuzz_input *in, uint32_t which)
{
    static const uint32_t op[] = {PVRDMA_WR_BIND_MW, PVRDMA_WR_LOCAL_INV,
                                  PVRDMA_WR_SEND_WITH_INV, PVRDMA_WR_RDMA_WRITE};
    struct pvrdma_sq_wqe_hdr h = {.opcode = op[which % 4]};
    uint32_t *rkey = &window_key[which >> 2 & 1];

    h.send_flags = fuzz_take(in, 1) & 7;
    switch (h.opcode) {
    case PVRDMA_WR_BIND_MW:
        *rkey = (*rkey & ~0xffu) | fuzz_take(in, 1);
        h.wr.bind_mw = (struct pvrdma_bind_mw){.addr = MR_VA + fuzz_take(in, 2),
                                               .length = fuzz_take(in, 2),
                                               .lkey = key,
                                               .access_flags = fuzz_take(in, 1) & 14,
                                               .rkey = *rkey};
        break;
    case PVRDMA_WR_RDMA_WRITE:
        h.num_sge = 1;
        h.wr.rdma.remote_addr = MR_VA + fuzz_take(in, 2);
        h.wr.rdma.rkey = *rkey;
        break;
    default:
        h.imm_data = *rkey ^ (fuzz_take(in, 1) & 1);
        break;
    }
    return h;
}

/* Of these in turn; with the key that was registered last or near to it. */
static struct pvrdma_sq_wqe_hdr key_op(struct fuzz_input *in, uint32_t which)
{
    static const uint32_t op[] = {PVRDMA_WR_FAST_REG, PVRDMA_WR_LOCAL_INV,
                                  PVRDMA_WR_SEND_WITH_INV, PVRDMA_WR_RDMA_WRITE};
    struct pvrdma_sq_wqe_hdr h = {.opcode = op[which % 4]};

    h.send_flags = fuzz_take(in, 1) & 7;
    switch (h.opcode) {
    case PVRDMA_WR_FAST_REG:
        fast_key = (fast_key & ~0xffu) | fuzz_take(in, 1);
        h.wr.fast_reg =
            (struct pvrdma_fast_reg){.iova_start = MR_VA,
                                     .pl_pdir_dma = mr_pdir,
                                     .page_shift = PVRDMA_PAGE_SHIFT,
                                     .page_list_len = MR_PAGES,
                                     .length = MR_LEN - fuzz_take(in, 2) % MR_LEN,
                                     .access_flags = fuzz_take(in, 1) & 15,
                                     .rkey = fast_key};
        break;
    case PVRDMA_WR_RDMA_WRITE:
        h.num_sge = 1;
        h.wr.rdma.remote_addr = MR_VA + fuzz_take(in, 2);
        h.wr.rdma.rkey = fast_key;
        break;
    default:
        h.imm_data = fast_key ^ (fuzz_take(in, 1) & 1);
        break;
    }
    return h;
}

/* A datagram to a QP that there is, from and to an address that the VM holds, mostly. */
static void right_av(struct fuzz_input *in, struct pvrdma_sq_wqe_hdr *h)
{
    struct pvrdma_av *av = &h->wr.ud.av;
    uint32_t how = fuzz_take(in, 1);

    h->wr.ud.remote_qpn = how & 4 ? 1 : ring[2 + how % 2].qpn;
    h->wr.ud.remote_qkey = how & 8 ? 0x80000000u : QKEY;
    *av = (struct pvrdma_av){.port_pd = pd | 1u << 24, .gid_index = how >> 4 & 3};
    if (how & 0x40) {
        av->sl_tclass_flowlabel = fuzz_take(in, 4);
        av->hop_limit = (uint8_t)fuzz_take(in, 1);
    }
    memcpy(av->dgid, gid[how & 0x80 ? fuzz_take(in, 1) % G_N_ELEMENTS(gid) : 0].raw,
           sizeof(av->dgid));
}

static void post_send(struct fuzz_input *in, struct rings *r, bool raw)
{
    uint32_t *tail = qp_words(r).tx_prod;
    uint32_t slot = pvrdma_idx_slot(*tail, WR);
    uint8_t *wqe = testdev_ptr(td, r->qp_first + 4096 + slot * 256);
    struct pvrdma_sq_wqe_hdr h = {.wr_id = slot};

    if (raw) {
        size_t n = MIN(in->left, 144);

        memcpy(wqe, in->data, n);
        in->data += n;
        in->left -= n;
    } else if ((h.opcode = fuzz_take(in, 1)) >= KEY_OPS) {
        struct pvrdma_sge s;

        h = h.opcode >= WINDOW_OPS ? window_op(in, h.opcode) : key_op(in, h.opcode);
        h.wr_id = slot;
        s = right_sge(in);
        memcpy(wqe, &h, sizeof(h));
        memcpy(wqe + sizeof(h), &s, sizeof(s));
        patch(in, wqe, 96);
    } else {
        h.opcode %= 7;
        h.send_flags = fuzz_take(in, 1) & 15;
        h.num_sge = fuzz_take(in, 1) % (NSGE + 1);
        h.total_len = h.send_flags & PVRDMA_SEND_INLINE ? fuzz_take(in, 1) : 0;
        h.wr.rdma.remote_addr = MR_VA + fuzz_take(in, 2);
        h.wr.rdma.rkey = key;
        if (h.opcode >= PVRDMA_WR_ATOMIC_CMP_AND_SWP) {
            h.wr.atomic.remote_addr = (MR_VA + fuzz_take(in, 2) % MR_LEN) & ~7ull;
            h.wr.atomic.rkey = key;
        }
        if (is_ud(r)) {
            h.opcode = PVRDMA_WR_SEND + h.opcode % 2;
            right_av(in, &h);
        }
        memcpy(wqe, &h, sizeof(h));
        for (uint32_t i = 0; i < h.num_sge; i++) {
            struct pvrdma_sge s = right_sge(in);

            memcpy(wqe + sizeof(h) + i * sizeof(s), &s, sizeof(s));
        }
        patch(in, wqe, 144);
    }
    own_list(wqe);
    *tail = pvrdma_idx_next(*tail & (2 * WR - 1), WR);
}

static void post_recv(struct fuzz_input *in, struct rings *r, bool raw)
{
    uint32_t *tail = qp_words(r).rx_prod;
    uint32_t slot = pvrdma_idx_slot(*tail, WR);
    uint64_t first = shared != OWN ? srq_first + 4096 : r->qp_first + 5 * 4096;
    uint8_t *wqe = testdev_ptr(td, first + slot * 128);
    struct pvrdma_rq_wqe_hdr h = {.wr_id = slot};

    h.num_sge = fuzz_take(in, raw ? 4 : 1);
    h.num_sge = raw ? h.num_sge : h.num_sge % (NSGE + 1);
    memcpy(wqe, &h, sizeof(h));
    for (uint32_t i = 0; i < MIN(h.num_sge, NSGE); i++) {
        struct pvrdma_sge s = right_sge(in);

        memcpy(wqe + sizeof(h) + i * sizeof(s), &s, sizeof(s));
    }
    patch(in, wqe, 80);
    *tail = pvrdma_idx_next(*tail & (2 * WR - 1), WR);
}

static void note_done(const struct rings *r, const struct pvrdma_cqe *c)
{
    done[c->opcode & 255]++;
    done_uc += uc && !is_ud(r);
}

static void note_held(const struct rings *r)
{
    struct cq *cq = id_table_get(&td->vm.objects.cq, r->cq);

    pthread_mutex_lock(&cq->lock);
    done_held += cq->hold.held;
    pthread_mutex_unlock(&cq->lock);
}

/* Take what is in the CQ; an index the input spoilt is put right first. */
static void poll_cq(struct rings *r)
{
    struct words w = cq_words(r);
    uint32_t head = *w.rx_cons & (2 * CQE - 1);

    note_held(r);
    CHECK(pvrdma_idx_valid(*w.rx_prod, CQE)); /* the device's alone */
    for (unsigned n = 0; head != *w.rx_prod && n < CQE; n++) {
        const struct pvrdma_cqe *c =
            testdev_ptr(td, r->cq_first + 4096 + pvrdma_idx_slot(head, CQE) * sizeof(*c));

        if (c->qp) { /* 0: a slot that was never written */
            CHECK(c->qp == r->qp);
            CHECK(c->status <= PVRDMA_WC_GENERAL_ERR);
            CHECK((pvrdma_ext_stamp(c->reserved) != 0) == is_ext(r));
            if (c->status == PVRDMA_WC_SUCCESS) {
                note_done(r, c);
            }
        }
        head = pvrdma_idx_next(head, CQE);
    }
    *w.rx_cons = head;
}

static void write_index(struct fuzz_input *in, struct rings *r)
{
    uint32_t which = fuzz_take(in, 1), value = fuzz_take(in, which & 0x80 ? 4 : 1);
    struct words qp = qp_words(r), cq = cq_words(r);
    uint32_t *word[] = {qp.tx_prod, qp.tx_cons, qp.rx_prod, qp.rx_cons, cq.rx_cons};

    *word[which % 5] = value;
}

/* Of the values that say what becomes of a QP or its keys. */
#define SRQ_OPS 60u

static void change_srq(struct fuzz_input *in, uint32_t what)
{
    struct pvrdma_cmd_modify_srq req = {.srq_handle = srq, .attr_mask = PVRDMA_SRQ_LIMIT};

    if (what % 2 == 0) {
        destroy_objects();
        shared = (shared + 1) % N_SHARED;
        create_objects();
    } else if (shared != OWN) {
        req.attrs.srq_limit = fuzz_take(in, 1);
        testdev_command(td, PVRDMA_CMD_MODIFY_SRQ, &req, sizeof(req));
    }
}

static void change_state(struct fuzz_input *in, unsigned i)
{
    struct pvrdma_qp_attr a = {.qp_state = PVRDMA_QPS_ERR};
    uint32_t what = fuzz_take(in, 1);

    if (what >= KEY_OPS) { /* a page list as a guest may leave it */
        uint64_t *entry = testdev_ptr(td, mr_pdir);
        uint32_t spoil;

        entry = what & 1 ? testdev_ptr(td, mr_table) : entry;
        /* Not to another page of the guest: what is there then is its own fault. */
        spoil = fuzz_take(in, 1) % 36;
        entry[fuzz_take(in, 1) % MR_PAGES] ^= 1ull << (spoil < 12 ? spoil : spoil + 28);
        return;
    }
    if (what % 64 >= SRQ_OPS) {
        change_srq(in, what % 64 - SRQ_OPS);
        return;
    }
    switch (what % 4) {
    case 0:
        if (is_ud(&ring[i]) && (what & 4)) {
            a.qp_state = PVRDMA_QPS_RTS; /* refused but in SQE, where a bad WR puts it */
        }
        modify(ring[i].qp, PVRDMA_QP_STATE, &a);
        break;
    case 1:
        a.qp_state = PVRDMA_QPS_RESET;
        modify(ring[i].qp, PVRDMA_QP_STATE, &a);
        memset(testdev_ptr(td, ring[i].qp_first), 0, 4096);
        connect_qp(i);
        break;
    case 2: /* keys of before are stale now */
        destroy_mrs();
        right_list();
        create_mr();
        create_fast_mr();
        create_windows();
        break;
    case 3:
        destroy_objects();
        gsi = what & 4;
        uc = what & 8;
        moderated = what & 16;
        create_objects();
        break;
    }
}

/* @pair: of QPs, 0 or 2. */
static void step(struct fuzz_input *in, unsigned *pair)
{
    uint32_t kind = fuzz_take(in, 1);
    unsigned i = *pair + (kind >> 7);
    struct rings *r = &ring[i];

    if (kind == OTHER_PAIR) {
        *pair ^= 2;
        return;
    }
    switch (kind % 9) {
    case 0:
    case 1:
        post_send(in, r, false);
        break;
    case 2:
        post_send(in, r, true);
        break;
    case 3:
        post_recv(in, r, false);
        break;
    case 4:
        post_recv(in, r, true);
        break;
    case 5:
        write_index(in, r);
        break;
    case 6:
        device_doorbell(td->vm.dev, PVRDMA_UAR_QP,
                        r->qp | PVRDMA_UAR_QP_SEND | PVRDMA_UAR_QP_RECV, true);
        device_doorbell(td->vm.dev, PVRDMA_UAR_SRQ, srq | PVRDMA_UAR_SRQ_RECV, true);
        settle();
        break;
    case 7:
        device_doorbell(td->vm.dev, PVRDMA_UAR_CQ, r->cq | fuzz_take(in, 1) << 24, true);
        poll_cq(r);
        break;
    case 8:
        change_state(in, i);
        break;
    }
}

bool fuzz_reached_all(void)
{
    static const struct {
        const char *what;
        const unsigned *n;
    } kind[] = {
        {"SEND", &done[PVRDMA_WC_SEND]},
        {"WRITE", &done[PVRDMA_WC_RDMA_WRITE]},
        {"READ", &done[PVRDMA_WC_RDMA_READ]},
        {"COMP_SWAP", &done[PVRDMA_WC_COMP_SWAP]},
        {"FETCH_ADD", &done[PVRDMA_WC_FETCH_ADD]},
        {"receive", &done[PVRDMA_WC_RECV]},
        {"receive of a WRITE", &done[PVRDMA_WC_RECV_RDMA_WITH_IMM]},
        {"FAST_REG", &done[PVRDMA_WC_FAST_REG]},
        {"LOCAL_INV", &done[PVRDMA_WC_LOCAL_INV]},
        {"BIND_MW", &done[PVRDMA_WC_BIND_MW]},
        {"unreliable connection", &done_uc},
        {"event held back", &done_held},
    };
    bool all = true;

    for (unsigned i = 0; i < G_N_ELEMENTS(kind); i++) {
        if (!*kind[i].n) {
            printf("no %s ever succeeds\n", kind[i].what);
            all = false;
        }
    }
    return all;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    unsigned pair = 0;

    if (!td) {
        start();
    }
    pd = testdev_pd(td, 0);
    right_list();
    shared = OWN;
    gsi = uc = moderated = false;
    create_mr();
    create_fast_mr();
    create_windows();
    create_objects();
    for (unsigned n = 0; in.left && n < MAX_STEPS; n++) {
        step(&in, &pair);
    }
    for (unsigned i = 0; i < NQP; i++) {
        device_doorbell(td->vm.dev, PVRDMA_UAR_QP,
                        ring[i].qp | PVRDMA_UAR_QP_SEND | PVRDMA_UAR_QP_RECV, true);
    }
    settle();
    for (unsigned i = 0; i < NQP; i++) {
        poll_cq(&ring[i]);
    }
    destroy_objects();
    destroy_mrs();
    CHECK(testdev_handle(td, PVRDMA_CMD_DESTROY_PD, pd) == 0);
    CHECK(atomic_load(&td->vm.guest.fault) == NULL);
    for (unsigned i = 0; i < 2; i++) {
        const uint8_t *p = testdev_ptr(td, canary[i]);

        for (unsigned k = 0; k < 4 * 4096; k++) {
            CHECK(p[k] == CANARY);
        }
    }
    return 0;
}
