/* SPDX-License-Identifier: GPL-2.0-or-later */
/* See fullqueues.h. */
#include "fullqueues.h"

#include "datapath/engine.h"

#define PEER_QPN 0x070009u
#define SECOND   1000000000ull

/* ---- making them ---- */

static void cq(struct testdev *td, uint32_t uctx, uint32_t flags)
{
    struct pvrdma_cmd_create_cq req = {
        .pdir_dma = testdev_new_pdir(td, 2, NULL),
        .ctx_handle = uctx,
        .cqe = 64,
        .nchunks = 2,
        .reserved = flags,
    };

    testdev_do(td, PVRDMA_CMD_CREATE_CQ, &req, sizeof(req));
}

static void srq(struct testdev *td, uint32_t pd, uint32_t flags)
{
    struct pvrdma_cmd_create_srq req = {
        .pdir_dma = testdev_new_pdir(td, 2, NULL),
        .pd_handle = pd,
        .nchunks = 2,
        .attrs = {.max_wr = 32, .max_sge = 2},
        .srq_type = PVRDMA_SRQT_BASIC,
        .reserved = {(uint8_t)flags},
    };

    testdev_do(td, PVRDMA_CMD_CREATE_SRQ, &req, sizeof(req));
}

static void qp(struct testdev *td, uint32_t pd, uint32_t cqn, enum pvrdma_qp_type type,
               uint32_t srqn, bool ext)
{
    struct pvrdma_cmd_create_qp req;

    testdev_qp_req(td, &req, pd, cqn);
    req.qp_type = (uint8_t)type;
    req.reserved[0] = ext ? PVRDMA_EXT_OBJ_RING : 0;
    req.sq_sig_all = type == PVRDMA_QPT_RC;
    req.max_recv_wr = 32; /* half as many, and twice as long */
    req.max_recv_sge = 2;
    if (srqn) {
        req.is_srq = 1;
        req.srq_handle = srqn;
        req.recv_cq_handle = FULL_CQ_KERNEL;
        req.total_chunks = 3;
        req.max_recv_wr = req.max_recv_sge = 0;
    }
    testdev_do(td, PVRDMA_CMD_CREATE_QP, &req, sizeof(req));
}

struct qp *fullqueues_qp(struct testdev *td, uint32_t handle)
{
    struct qp *q = id_table_get(&td->vm.objects.qp, handle);

    if (!q) {
        g_error("there is no QP %u", handle);
    }
    return q;
}

static void modify(struct testdev *td, uint32_t handle, uint32_t mask,
                   struct pvrdma_qp_attr a)
{
    struct pvrdma_cmd_modify_qp req = {
        .qp_handle = handle, .attr_mask = PVRDMA_QP_STATE | mask, .attrs = a};

    testdev_do(td, PVRDMA_CMD_MODIFY_QP, &req, sizeof(req));
}

static void connected(struct testdev *td, uint32_t handle, uint8_t sgid_index, bool rts)
{
    bool rc = fullqueues_qp(td, handle)->type == PVRDMA_QPT_RC;
    uint32_t rd = rc ? PVRDMA_QP_MAX_DEST_RD_ATOMIC | PVRDMA_QP_MIN_RNR_TIMER : 0;
    uint32_t tries = rc ? PVRDMA_QP_TIMEOUT | PVRDMA_QP_RETRY_CNT | PVRDMA_QP_RNR_RETRY |
                              PVRDMA_QP_MAX_RD_ATOMIC
                        : 0;

    modify(td, handle, PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_PORT | PVRDMA_QP_ACCESS_FLAGS,
           (struct pvrdma_qp_attr){.qp_state = PVRDMA_QPS_INIT,
                                   .port_num = 1,
                                   .qp_access_flags = PVRDMA_ACCESS_REMOTE_WRITE});
    modify(td, handle,
           PVRDMA_QP_AV | PVRDMA_QP_PATH_MTU | PVRDMA_QP_DEST_QPN | PVRDMA_QP_RQ_PSN | rd,
           (struct pvrdma_qp_attr){
               .qp_state = PVRDMA_QPS_RTR,
               .path_mtu = PVRDMA_MTU_1024,
               .dest_qp_num = PEER_QPN,
               .rq_psn = 0x123456,
               .max_dest_rd_atomic = 3,
               .min_rnr_timer = 12,
               .ah_attr = {.dgid = {.raw = {[10] = 0xff, 0xff, 10, 0, 0, 99}},
                           .sgid_index = sgid_index,
                           .flow_label = 0x12345,
                           .hop_limit = 64,
                           .traffic_class = 3,
                           .dlid = 0x1234,
                           .vlan_id = 0x5678,
                           .sl = 2,
                           .src_path_bits = 5,
                           .static_rate = 6,
                           .ah_flags = 1,
                           .port_num = 1,
                           .dmac = {2, 3, 4, 5, 6, 7}}});
    if (rts) {
        modify(td, handle, PVRDMA_QP_SQ_PSN | tries,
               (struct pvrdma_qp_attr){.qp_state = PVRDMA_QPS_RTS,
                                       .sq_psn = 0xfffffe,
                                       .timeout = 14,
                                       .retry_cnt = 6,
                                       .rnr_retry = 5,
                                       .max_rd_atomic = 4});
    }
}

static void unconnected(struct testdev *td, uint32_t handle)
{
    modify(td, handle, PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_PORT | PVRDMA_QP_QKEY,
           (struct pvrdma_qp_attr){
               .qp_state = PVRDMA_QPS_INIT, .port_num = 1, .qkey = 0x11111111});
    modify(td, handle, 0, (struct pvrdma_qp_attr){.qp_state = PVRDMA_QPS_RTR});
    modify(td, handle, PVRDMA_QP_SQ_PSN,
           (struct pvrdma_qp_attr){.qp_state = PVRDMA_QPS_RTS, .sq_psn = 77});
    modify(td, handle, 0, (struct pvrdma_qp_attr){.qp_state = PVRDMA_QPS_SQD});
}

static void rebind(struct testdev *td, uint32_t index, bool bind)
{
    struct pvrdma_cmd_create_bind make = {
        .mtu = 1024,
        .vlan = 0xfff,
        .index = index,
        .gid = {.raw = {[10] = 0xff, 0xff, 10, 0, 0, 55}},
        .gid_type = PVRDMA_GID_TYPE_ROCE_V2,
    };
    struct pvrdma_cmd_destroy_bind undo = {.index = index, .gid = make.gid};

    if (bind) {
        testdev_do(td, PVRDMA_CMD_CREATE_BIND, &make, sizeof(make));
    } else {
        testdev_do(td, PVRDMA_CMD_DESTROY_BIND, &undo, sizeof(undo));
    }
}

void fullqueues_make(struct testdev *td, uint32_t kernel_pd, uint32_t uctx, uint32_t pd)
{
    cq(td, 0, 0);
    cq(td, 0,
       PVRDMA_EXT_OBJ_RING | PVRDMA_EXT_CQ_STAMPS | 5u << PVRDMA_EXT_CQ_VECTOR_SHIFT);
    cq(td, uctx, 0);
    srq(td, kernel_pd, PVRDMA_EXT_OBJ_RING);
    srq(td, pd, 0);
    qp(td, kernel_pd, FULL_CQ_KERNEL, PVRDMA_QPT_RC, 0, false);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_QP, FULL_QP_GONE), ==, 0);
    qp(td, kernel_pd, FULL_CQ_EXT, PVRDMA_QPT_RC, 0, true);
    qp(td, kernel_pd, FULL_CQ_KERNEL, PVRDMA_QPT_RC, 0, false);
    qp(td, kernel_pd, FULL_CQ_KERNEL, PVRDMA_QPT_RC, 0, false);
    qp(td, kernel_pd, FULL_CQ_EXT, PVRDMA_QPT_RC, 0, true);
    qp(td, kernel_pd, FULL_CQ_EXT, PVRDMA_QPT_RC, FULL_SRQ_EXT, true);
    qp(td, pd, FULL_CQ_USER, PVRDMA_QPT_UD, 0, false);
    qp(td, kernel_pd, FULL_CQ_KERNEL, PVRDMA_QPT_UC, 0, true);
    qp(td, kernel_pd, FULL_CQ_KERNEL, PVRDMA_QPT_GSI, 0, false);
    rebind(td, 6, true);
    connected(td, FULL_QP_WINDOW, 0, true);
    connected(td, FULL_QP_LOCAL, 3, true);
    connected(td, FULL_QP_REG, 3, true);
    connected(td, FULL_QP_BIND, 3, true);
    connected(td, FULL_QP_SRQ, 0, true);
    connected(td, FULL_QP_UC, 6, false);
    unconnected(td, FULL_QP_UD);
    rebind(td, 6, false);
}

/* ---- work ---- */

static void cqs_work(struct testdev *td)
{
    struct cq *kernel = id_table_get(&td->vm.objects.cq, FULL_CQ_KERNEL);
    struct cq *ext = id_table_get(&td->vm.objects.cq, FULL_CQ_EXT);
    struct cq *user = id_table_get(&td->vm.objects.cq, FULL_CQ_USER);

    kernel->prod = 70;
    kernel->published = 69;
    kernel->cons = 65;
    kernel->last_sol = 66;
    td->vm.guest.db.shared->arm[FULL_CQ_KERNEL] = PVRDMA_DB_ARM_SOLICITED;
    datapath_cq_moderate(ext, 100, 60000);
    ext->prod = ext->published = 3;
    ext->cons = 127;
    pthread_mutex_lock(&ext->lock);
    hold_begin_locked(ext, td->vm.dp.stopped_at + 30000000);
    ext->hold.n = 4;
    ext->hold.sol = true;
    pthread_mutex_unlock(&ext->lock);
    user->prod = user->published = 64;
    user->error = user->error_reported = true;
}

static void srqs_work(struct testdev *td)
{
    struct srq *ext = id_table_get(&td->vm.objects.srq, FULL_SRQ_EXT);
    struct srq *user = id_table_get(&td->vm.objects.srq, FULL_SRQ_USER);

    ext->rq.wq.cons = ext->rq.wq.next = ext->rq.wq.prod = 33;
    atomic_store(&ext->limit, 7);
    user->error = true;
    atomic_store(&user->tell, SRQ_TELL_ERROR);
}

/* One in flight that is acknowledged, one before it that is not. */
static void window_work(struct qp *q)
{
    struct qp_requester *req = &q->req;

    if (!req->sent) {
        req->sent = g_new0(struct sent, QP_WINDOW);
    }
    req->seq = 1002;
    req->psn = 3; /* of the one in progress: it begins with 0xfffffe */
    req->in_flight = 2;
    *window_at(q, 1000) = (struct sent){.wr_id = 11,
                                        .npsn = 4,
                                        .length = 4096,
                                        .opcode = PVRDMA_WC_RDMA_READ,
                                        .state = SENT_OUT,
                                        .signaled = true,
                                        .returns = true};
    *window_at(q, 1001) = (struct sent){
        .wr_id = 12, .npsn = 1, .opcode = PVRDMA_WC_SEND, .state = SENT_DONE};
    req->returning = 1;
    req->op.active = true;
    req->op.m.opcode = PVRDMA_WR_RDMA_WRITE;
    req->op.m.length = 99;
    req->op.m.npsn = 1;
    req->op.wr_id = 13;
    req->op.done = 50;
    q->sq.cons = 127;
    q->sq.next = q->sq.prod = 2;
    req->retry_seq = 1000;
    req->retries_left = 3;
    req->rnr_left = 2;
    req->rnr_until = q->vm->dp.stopped_at + 400000000;
    sched_wait(q, QP_WAIT_RNR, req->rnr_until);
}

static struct send_op *local_work(struct qp *q, uint32_t opcode)
{
    struct send_op *op = &q->req.op;

    op->active = true;
    op->m.opcode = opcode;
    op->m.flags = PVRDMA_SEND_SIGNALED;
    op->wr_id = 1234567890123;
    q->req.seq = 7;
    q->req.psn = 0x10;
    q->sq.cons = 4;
    q->sq.next = q->sq.prod = 5;
    return op;
}

static void locals_work(struct testdev *td)
{
    struct send_op *op;

    op = local_work(fullqueues_qp(td, FULL_QP_LOCAL), PVRDMA_WR_LOCAL_INV);
    op->m.imm = 0x123;
    op->period = grace_begin();
    op = local_work(fullqueues_qp(td, FULL_QP_REG), PVRDMA_WR_FAST_REG);
    op->reg = (struct pvrdma_fast_reg){.iova_start = 1,
                                       .pl_pdir_dma = 2,
                                       .page_shift = 12,
                                       .page_list_len = 4,
                                       .length = 5,
                                       .access_flags = 6,
                                       .rkey = 7};
    op = local_work(fullqueues_qp(td, FULL_QP_BIND), PVRDMA_WR_BIND_MW);
    op->bind = (struct pvrdma_bind_mw){
        .addr = 1, .length = 2, .lkey = 3, .access_flags = 4, .rkey = 5};
}

static void responder_work(struct qp *q)
{
    struct qp_responder *resp = &q->resp;

    pthread_mutex_lock(&q->lock);
    qp_enter_error_locked(q);
    pthread_mutex_unlock(&q->lock);
    resp->psn = 0x654321;
    resp->seq = 42;
    resp->incarnation = 0x1122334455667788;
    resp->comm_est = true;
    resp->recv = (struct recv_op){.active = true, .wr_id = 5, .nsge = 2, .capacity = 300};
    resp->recv.sge[0] = (struct pvrdma_sge){0x1000, 100, 0x201};
    resp->recv.sge[1] = (struct pvrdma_sge){0x2000, 200, 0x202};
    resp->n_atomic = 18;
    for (unsigned i = 0; i < G_N_ELEMENTS(resp->atomic); i++) {
        resp->atomic[i] = (struct atomic_result){20 + i, i * 1000};
    }
    resp->inv_period = grace_begin();
    resp->inv_key = 0x305;
    atomic_store(&resp->failed_status, PVRDMA_WC_REM_ACCESS_ERR);
    resp->failed_seq = 42;
    atomic_store(&resp->rx_msgs, 8);
    atomic_store(&resp->rx_bytes, 9);
    atomic_store(&q->req.tx_msgs, 10);
    atomic_store(&q->req.tx_bytes, 11);
    atomic_store(&q->seldom.errors, 1);
    atomic_store(&q->seldom.rnr_waits, 2);
    atomic_store(&q->seldom.retries, 3);
    atomic_store(&q->seldom.rnr_naks, 4);
    atomic_store(&q->seldom.duplicates, 5);
    atomic_store(&q->seldom.dropped, 6);
}

/* Incarnations are random; these are the same in each. */
static void incarnations(struct testdev *td)
{
    for (uint32_t i = FULL_QP_WINDOW; i <= FULL_QP_GSI; i++) {
        struct qp *q = fullqueues_qp(td, i);

        if (atomic_load(&q->req.incarnation)) {
            atomic_store(&q->req.incarnation, 0x123456789000 + i);
        }
    }
}

void fullqueues_work(struct testdev *td)
{
    struct qp *ud = fullqueues_qp(td, FULL_QP_UD);

    vm_token_take(&td->vm);
    incarnations(td);
    cqs_work(td);
    srqs_work(td);
    window_work(fullqueues_qp(td, FULL_QP_WINDOW));
    locals_work(td);
    responder_work(fullqueues_qp(td, FULL_QP_SRQ));
    ud->attr.en_sqd_async_notify = 1; /* only now: it would have been told */
    ud->attr.sq_draining = 0;         /* a worker may have seen that already, or not */
    ud->req.sqd_notified = true;
    ud->own_rq.wq.cons = ud->own_rq.wq.next = ud->own_rq.wq.prod = 9;
    sched_wait(ud, QP_WAIT_HOLD, td->vm.dp.stopped_at + SECOND);
    vm_token_release(&td->vm);
}
