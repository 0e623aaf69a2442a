/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The ibv_wr_*() calls, of each type of queue pair, and memory windows; see verbs.h.
 */
#include "verbs.h"

void test_wr(struct rig *r, gconstpointer data)
{
    const uint64_t ops = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                         IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP;
    struct pv_qp *pv = make_qp_ex(r, ops);
    struct ibv_qp_ex *qp = &pv->vqp.qp_ex;
    struct pvrdma_sq_wqe_hdr *hdr;
    char text[] = "inline data of 29 characters.";

    g_assert_cmpuint(mask_seen(pv), ==, VERBS_QP_EX);
    g_assert_null(qp->wr_rdma_read);
    fake.uar[0] = 0;
    fake.ext->head.kick = 1;
    ibv_wr_start(qp);
    qp->wr_id = 1;
    qp->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write_imm(qp, 5, 0x123456, 0x77);
    ibv_wr_set_sge(qp, 3, 0x1000, 64);
    qp->wr_id = 2;
    qp->wr_flags = 0;
    ibv_wr_atomic_cmp_swp(qp, 5, 0x2000, 10, 11);
    ibv_wr_set_sge(qp, 3, 0x1000, 8);
    qp->wr_id = 3;
    ibv_wr_send(qp);
    if (r->ext) {
        ibv_wr_set_inline_data(qp, text, 29);
    } else {
        ibv_wr_set_sge(qp, 3, 0x1000, 29);
    }
    g_assert_null(device_take(r, 1)); /* nothing yet */
    g_assert_cmpint(ibv_wr_complete(qp), ==, 0);
    g_assert_cmphex(fake.uar[0], ==, 1 | PVRDMA_UAR_QP_SEND);
    hdr = device_take(r, 1);
    g_assert_cmpuint(hdr->opcode, ==, PVRDMA_WR_RDMA_WRITE_WITH_IMM);
    g_assert_cmpuint(hdr->imm_data, ==, 0x77);
    g_assert_cmpuint(hdr->send_flags, ==, PVRDMA_SEND_SIGNALED);
    g_assert_cmphex(hdr->wr.rdma.remote_addr, ==, 0x123456);
    hdr = device_take(r, 1);
    g_assert_cmpuint(hdr->wr.atomic.swap, ==, 11);
    hdr = device_take(r, 1);
    if (r->ext) {
        g_assert_cmpuint(hdr->total_len, ==, 29);
        g_assert_cmpint(memcmp(hdr + 1, text, 29), ==, 0);
    }
    g_assert_null(device_take(r, 1));

    /* Undone batches: by the program, by a full queue, by a bad setter. */
    fake.uar[0] = 0;
    ibv_wr_start(qp);
    ibv_wr_send(qp);
    ibv_wr_abort(qp);
    ibv_wr_start(qp);
    for (unsigned i = 0; i < 5; i++) {
        ibv_wr_send(qp);
        ibv_wr_set_sge(qp, 1, 2, 3);
    }
    g_assert_cmpint(ibv_wr_complete(qp), ==, ENOMEM);
    ibv_wr_start(qp);
    ibv_wr_send(qp);
    ibv_wr_set_inline_data(qp, text, 4096);
    g_assert_cmpint(ibv_wr_complete(qp), ==, EINVAL);
    ibv_wr_start(qp);
    g_assert_cmpint(ibv_wr_complete(qp), ==, 0);
    g_assert_null(device_take(r, 1));
    g_assert_cmphex(fake.uar[0], ==, 0);
    fake.ops->destroy_qp(&pv->vqp.qp);

    /* The other libibverbs of ABI 34. */
    fake.old_layout = IBVERBS_PABI_VERSION == 34;
    pv = make_qp_ex(r, ops);
    g_assert_cmpuint(mask_seen(pv), ==, VERBS_QP_EX);
    g_assert_true(!pv->vqp.comp_mask == fake.old_layout);
    fake.ops->destroy_qp(&pv->vqp.qp);
    g_assert_null(make_qp_ex(r, IBV_QP_EX_WITH_TSO));
    g_assert_cmpint(errno, ==, EOPNOTSUPP);
}

/* Datagrams carry their address handle's vector; what UD has not is refused. */
void test_wr_ud(struct rig *r, gconstpointer data)
{
    const uint64_t ops = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    struct ibv_ah_attr attr = {
        .is_global = 1,
        .port_num = 1,
        .grh = {.dgid.raw = {[0] = 0xfe, [1] = 0x80, [15] = 9}},
    };
    struct ibv_ah *ah = fake.ops->create_ah(r->pd, &attr);
    struct pv_qp *pv = make_qp_ex_of(r, IBV_QPT_UD, ops);
    struct ibv_qp_ex *qp = &pv->vqp.qp_ex;
    struct pvrdma_sq_wqe_hdr *hdr;

    ibv_wr_start(qp);
    qp->wr_id = 5;
    qp->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED;
    ibv_wr_send_imm(qp, 0x77);
    ibv_wr_set_ud_addr(qp, ah, 11, 22);
    ibv_wr_set_sge(qp, 3, 0x1000, 64);
    ibv_wr_send(qp);
    ibv_wr_set_ud_addr(qp, ah, 12, 23);
    if (r->ext) {
        ibv_wr_set_inline_data(qp, "datagram", 8);
    }
    g_assert_cmpint(ibv_wr_complete(qp), ==, 0);
    hdr = device_take(r, 1);
    g_assert_cmpuint(hdr->opcode, ==, PVRDMA_WR_SEND_WITH_IMM);
    g_assert_cmpuint(hdr->wr.ud.remote_qpn, ==, 11);
    g_assert_cmpuint(hdr->wr.ud.remote_qkey, ==, 22);
    g_assert_cmpmem(&hdr->wr.ud.av, 40, &to_pv_ah(ah)->av, 40);
    g_assert_cmpuint(hdr->num_sge, ==, 1);
    hdr = device_take(r, 1);
    g_assert_cmpuint(hdr->wr.ud.remote_qpn, ==, 12);
    g_assert_cmpmem(&hdr->wr.ud.av, 40, &to_pv_ah(ah)->av, 40);
    g_assert_cmpuint(hdr->total_len, ==, r->ext ? 8 : 0);
    g_assert_null(device_take(r, 1));
    fake.ops->destroy_qp(&pv->vqp.qp);
    fake.ops->destroy_ah(ah);
    g_assert_null(make_qp_ex_of(r, IBV_QPT_UD, ops | IBV_QP_EX_WITH_RDMA_WRITE));
    g_assert_cmpint(errno, ==, EOPNOTSUPP);
}

/* What UC has, by both ways to post; what it has not is refused. */
void test_wr_uc(struct rig *r, gconstpointer data)
{
    const uint64_t ops = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
                         IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    struct pv_qp *pv = make_qp_ex_of(r, IBV_QPT_UC, ops);
    struct ibv_qp_ex *qp = &pv->vqp.qp_ex;
    struct ibv_sge sge = {0x2000, 8, 4};
    struct ibv_send_wr *bad, wr = {.opcode = IBV_WR_RDMA_WRITE,
                                   .sg_list = &sge,
                                   .num_sge = 1,
                                   .wr.rdma = {.remote_addr = 0x4000, .rkey = 8}};
    struct pvrdma_sq_wqe_hdr *hdr;

    ibv_wr_start(qp);
    ibv_wr_rdma_write_imm(qp, 7, 0x3000, 0x77);
    ibv_wr_set_sge(qp, 3, 0x1000, 64);
    ibv_wr_send(qp);
    ibv_wr_set_sge(qp, 3, 0x1000, 64);
    g_assert_cmpint(ibv_wr_complete(qp), ==, 0);
    g_assert_cmpint(fake.ops->post_send(&pv->vqp.qp, &wr, &bad), ==, 0);
    hdr = device_take(r, 1);
    g_assert_cmpuint(hdr->opcode, ==, PVRDMA_WR_RDMA_WRITE_WITH_IMM);
    g_assert_cmpuint(hdr->wr.rdma.rkey, ==, 7);
    g_assert_cmphex(hdr->wr.rdma.remote_addr, ==, 0x3000);
    g_assert_cmphex(hdr->imm_data, ==, 0x77);
    hdr = device_take(r, 1);
    g_assert_cmpuint(hdr->opcode, ==, PVRDMA_WR_SEND);
    hdr = device_take(r, 1);
    g_assert_cmpuint(hdr->opcode, ==, PVRDMA_WR_RDMA_WRITE);
    g_assert_cmphex(hdr->wr.rdma.remote_addr, ==, 0x4000);
    g_assert_null(device_take(r, 1));
    fake.ops->destroy_qp(&pv->vqp.qp);
    g_assert_null(make_qp_ex_of(r, IBV_QPT_UC, ops | IBV_QP_EX_WITH_RDMA_READ));
    g_assert_cmpint(errno, ==, EOPNOTSUPP);
    g_assert_null(
        make_qp_ex_of(r, IBV_QPT_UC, ops | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD));
    g_assert_cmpint(errno, ==, EOPNOTSUPP);
}

/* Windows, changed regions and requests about keys: in extended mode, as the ABI says. */
void test_windows(struct rig *r, gconstpointer data)
{
    const uint64_t ops =
        IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_SEND_WITH_INV;
    struct ibv_qp_init_attr_ex ex = {
        .send_cq = r->cq,
        .recv_cq = r->cq,
        .cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = r->pd,
        .send_ops_flags = ops,
    };
    struct ibv_mr mr = {.context = r->ctx, .pd = r->pd, .lkey = 0x700, .rkey = 0x700};
    struct ibv_mw_bind bind = {.wr_id = 3,
                               .send_flags = IBV_SEND_SIGNALED,
                               .bind_info = {.mr = &mr,
                                             .addr = 0x1234,
                                             .length = 99,
                                             .mw_access_flags = IBV_ACCESS_REMOTE_READ}};
    struct ibv_send_wr inv = {.wr_id = 4,
                              .opcode = IBV_WR_LOCAL_INV,
                              .invalidate_rkey = 77},
                       *bad;
    struct ibv_qp *qp = make_qp(r, 4);
    const struct pvrdma_sq_wqe_hdr *hdr =
        (void *)(uintptr_t)(fake.qp[1].req.sbuf_addr + 4096);
    struct verbs_mr vmr = {.ibv_mr = mr};
    struct ibv_mw *mw;

    g_assert_cmpint(
        fake.ops->rereg_mr(&vmr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, 0, 0, 0), ==, 0);
    g_assert_cmphex(fake.rereg_va, ==, 0);
    fake.fail = EBUSY;
    g_assert_cmpint(fake.ops->rereg_mr(&vmr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL,
                                       (void *)0x5000, 9, 0),
                    ==, EBUSY);
    g_assert_cmphex(fake.rereg_va, ==, 0x5000);
    if (!r->ext) {
        g_assert_null(fake.ops->alloc_mw(r->pd, IBV_MW_TYPE_1));
        g_assert_cmpint(errno, ==, EOPNOTSUPP);
        g_assert_cmpint(fake.ops->post_send(qp, &inv, &bad), ==, EINVAL);
        g_assert_null(fake.ops->create_qp_ex(r->ctx, &ex));
        g_assert_cmpint(errno, ==, EOPNOTSUPP);
        fake.ops->destroy_qp(qp);
        return;
    }
    mw = fake.ops->alloc_mw(r->pd, IBV_MW_TYPE_1);
    g_assert_nonnull(mw);
    /* The key counts up in its low byte, and only if the request is posted. */
    g_assert_cmpint(fake.ops->bind_mw(qp, mw, &bind), ==, 0);
    g_assert_cmphex(mw->rkey, ==, 0x500);
    device_reads(hdr, 80);
    g_assert_cmpuint(hdr->wr_id, ==, 3);
    g_assert_cmpuint(hdr->opcode, ==, PVRDMA_WR_BIND_MW);
    g_assert_cmpuint(hdr->num_sge, ==, 0);
    g_assert_cmphex(hdr->wr.bind_mw.addr, ==, 0x1234);
    g_assert_cmphex(hdr->wr.bind_mw.length, ==, 99);
    g_assert_cmphex(hdr->wr.bind_mw.lkey, ==, 0x700);
    g_assert_cmphex(hdr->wr.bind_mw.rkey, ==, 0x500);
    g_assert_cmphex(hdr->wr.bind_mw.access_flags, ==, IBV_ACCESS_REMOTE_READ);
    mw->type = IBV_MW_TYPE_2;
    g_assert_cmpint(fake.ops->bind_mw(qp, mw, &bind), ==, EINVAL);
    qp->state = IBV_QPS_INIT;
    mw->type = IBV_MW_TYPE_1;
    g_assert_cmpint(fake.ops->bind_mw(qp, mw, &bind), ==, EINVAL);
    g_assert_cmphex(mw->rkey, ==, 0x500);
    qp->state = IBV_QPS_RTS;
    g_assert_cmpint(fake.ops->post_send(qp, &inv, &bad), ==, 0);
    fake.fail = EBUSY;
    g_assert_cmpint(fake.ops->dealloc_mw(mw), ==, EBUSY);
    g_assert_cmpint(fake.ops->dealloc_mw(mw), ==, 0);
    fake.ops->destroy_qp(qp);
    qp = fake.ops->create_qp_ex(r->ctx, &ex);
    g_assert_nonnull(qp);
    fake.ops->destroy_qp(qp);
    ex.qp_type = IBV_QPT_UD;
    g_assert_null(fake.ops->create_qp_ex(r->ctx, &ex));
}
