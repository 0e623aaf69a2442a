/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The command channel of a virtual guest, as the driver runs it: request into
 * the slot, REQUEST = 0, read ERR, and for commands with a response wait for
 * vector 0 and check the response's ack.  cmd_lock admits one at a time.
 */
#include "vguest.h"

#include <errno.h>

#define COMMAND_TIMEOUT_MS 10000

int vg_command(struct vguest *g, void *req, size_t req_len, void *resp, size_t resp_len)
{
    struct pvrdma_req_hdr *hdr = req;
    struct pvrdma_resp_hdr *ack = g->resp_slot;
    uint32_t err;
    int ret;

    g_mutex_lock(&g->cmd_lock);
    hdr->response = ++g->cookie;
    memcpy(g->cmd_slot, req, req_len);
    memset(g->resp_slot, 0, sizeof(union pvrdma_cmd_resp));
    vg_irq_wait(g, PVRDMA_VEC_CMD, 0); /* forget old ones */
    ret = vg_reg_write(g, PVRDMA_REG_REQUEST, 0);
    if (ret) {
        goto out;
    }
    err = vg_reg_read(g, PVRDMA_REG_ERR);
    if (err) {
        ret = err > G_MAXINT ? G_MAXINT : (int)err;
        goto out;
    }
    if (!resp) {
        goto out;
    }
    if (!vg_irq_wait(g, PVRDMA_VEC_CMD, vg_patience(COMMAND_TIMEOUT_MS))) {
        ret = -ETIMEDOUT;
        goto out;
    }
    memcpy(resp, g->resp_slot, resp_len);
    if (ack->ack != PVRDMA_CMD_RESP(hdr->cmd) || ack->response != g->cookie) {
        ret = -EPROTO;
    } else {
        ret = ack->err;
    }
out:
    g_mutex_unlock(&g->cmd_lock);
    return ret;
}

int vg_query_port(struct vguest *g, uint8_t port, struct pvrdma_port_attr *a)
{
    struct pvrdma_cmd_query_port req = {.hdr.cmd = PVRDMA_CMD_QUERY_PORT,
                                        .port_num = port};
    struct pvrdma_resp_query_port resp;
    int err = vg_command(g, &req, sizeof(req), &resp, sizeof(resp));

    if (!err && a) {
        *a = resp.attrs;
    }
    return err;
}

int vg_query_pkey(struct vguest *g, uint8_t index, uint16_t *pkey)
{
    struct pvrdma_cmd_query_pkey req = {
        .hdr.cmd = PVRDMA_CMD_QUERY_PKEY, .port_num = 1, .index = index};
    struct pvrdma_resp_query_pkey resp;
    int err = vg_command(g, &req, sizeof(req), &resp, sizeof(resp));

    if (!err) {
        *pkey = resp.pkey;
    }
    return err;
}

int vg_create_uc(struct vguest *g, uint64_t pfn, uint32_t *handle)
{
    struct pvrdma_cmd_create_uc req = {.hdr.cmd = PVRDMA_CMD_CREATE_UC, .pfn = pfn};
    struct pvrdma_resp_handle resp;
    int err = vg_command(g, &req, sizeof(req), &resp, sizeof(resp));

    if (!err) {
        *handle = resp.handle;
    }
    return err;
}

int vg_create_uc_ext(struct vguest *g, uint64_t pfn, uint64_t pdir, uint32_t features,
                     uint32_t *handle, uint32_t *granted)
{
    struct pvrdma_ext_cmd_uc req = {.cmd = PVRDMA_CMD_CREATE_UC_EXT,
                                    .pfn = pfn,
                                    .pdir_dma = pdir,
                                    .features = features,
                                    .npages = PVRDMA_EXT_PAGES};
    struct pvrdma_ext_resp_uc resp;
    int err = vg_command(g, &req, sizeof(req), &resp, sizeof(resp));

    if (!err) {
        *handle = resp.ctx_handle;
        *granted = resp.features;
    }
    return err;
}

int vg_create_pd(struct vguest *g, uint32_t ctx, uint32_t *handle)
{
    struct pvrdma_cmd_create_pd req = {.hdr.cmd = PVRDMA_CMD_CREATE_PD,
                                       .ctx_handle = ctx};
    struct pvrdma_resp_handle resp;
    int err = vg_command(g, &req, sizeof(req), &resp, sizeof(resp));

    if (!err) {
        *handle = resp.handle;
    }
    return err;
}

int vg_create_mr(struct vguest *g, struct pvrdma_cmd_create_mr *req,
                 struct pvrdma_resp_create_mr *resp)
{
    req->hdr.cmd = PVRDMA_CMD_CREATE_MR;
    return vg_command(g, req, sizeof(*req), resp, sizeof(*resp));
}

int vg_create_cq(struct vguest *g, struct pvrdma_cmd_create_cq *req,
                 struct pvrdma_resp_create_cq *resp)
{
    req->hdr.cmd = PVRDMA_CMD_CREATE_CQ;
    return vg_command(g, req, sizeof(*req), resp, sizeof(*resp));
}

int vg_move_cq(struct vguest *g, struct pvrdma_ext_cmd_move_cq *req)
{
    struct pvrdma_resp_create_cq resp;
    int err;

    req->cmd = PVRDMA_CMD_MOVE_CQ;
    err = vg_command(g, req, sizeof(*req), &resp, sizeof(resp));
    if (!err) {
        g_assert_cmpuint(resp.cq_handle, ==, req->cq_handle);
        g_assert_cmpuint(resp.cqe, ==, req->cqe);
    }
    return err;
}

int vg_moderate(struct vguest *g, uint32_t cq, unsigned count, unsigned period_us)
{
    struct pvrdma_ext_cmd_moderate_cq req = {.cmd = PVRDMA_CMD_MODERATE_CQ,
                                             .cq_handle = cq,
                                             .count = (uint16_t)count,
                                             .period = (uint16_t)period_us};

    return vg_command(g, &req, sizeof(req), NULL, 0);
}

int vg_query_qp_counters(struct vguest *g, uint32_t handle,
                         struct pvrdma_ext_resp_qp_counters *resp)
{
    struct pvrdma_cmd_handle req = {.hdr.cmd = PVRDMA_CMD_QUERY_QP_COUNTERS,
                                    .handle = handle};
    struct pvrdma_ext_resp_qp_counters ignored;

    return vg_command(g, &req, sizeof(req), resp ? resp : &ignored, sizeof(*resp));
}

uint64_t vg_query_clock(struct vguest *g)
{
    struct pvrdma_cmd_handle req = {.hdr.cmd = PVRDMA_CMD_QUERY_CLOCK};
    struct pvrdma_ext_resp_clock resp;

    g_assert_cmpint(vg_command(g, &req, sizeof(req), &resp, sizeof(resp)), ==, 0);
    return resp.ns;
}

int vg_create_qp(struct vguest *g, struct pvrdma_cmd_create_qp *req,
                 struct pvrdma_resp_create_qp *resp)
{
    req->hdr.cmd = PVRDMA_CMD_CREATE_QP;
    return vg_command(g, req, sizeof(*req), resp, sizeof(*resp));
}

int vg_modify_qp(struct vguest *g, uint32_t handle, uint32_t mask,
                 const struct pvrdma_qp_attr *attr)
{
    struct pvrdma_cmd_modify_qp req = {.hdr.cmd = PVRDMA_CMD_MODIFY_QP,
                                       .qp_handle = handle,
                                       .attr_mask = mask,
                                       .attrs = *attr};
    struct pvrdma_resp_hdr resp;

    return vg_command(g, &req, sizeof(req), &resp, sizeof(resp));
}

int vg_query_qp(struct vguest *g, uint32_t handle, struct pvrdma_qp_attr *attr)
{
    struct pvrdma_cmd_handle req = {
        .hdr.cmd = PVRDMA_CMD_QUERY_QP, .handle = handle, .arg = PVRDMA_QP_ATTR_ALL};
    struct pvrdma_resp_query_qp resp;
    int err = vg_command(g, &req, sizeof(req), &resp, sizeof(resp));

    if (!err) {
        *attr = resp.attrs;
    }
    return err;
}

int vg_create_srq(struct vguest *g, struct pvrdma_cmd_create_srq *req, uint32_t *handle)
{
    struct pvrdma_resp_handle resp;
    int err;

    req->hdr.cmd = PVRDMA_CMD_CREATE_SRQ;
    err = vg_command(g, req, sizeof(*req), &resp, sizeof(resp));
    if (!err) {
        *handle = resp.handle;
    }
    return err;
}

int vg_modify_srq(struct vguest *g, uint32_t handle, uint32_t mask, uint32_t limit)
{
    struct pvrdma_cmd_modify_srq req = {.hdr.cmd = PVRDMA_CMD_MODIFY_SRQ,
                                        .srq_handle = handle,
                                        .attr_mask = mask,
                                        .attrs.srq_limit = limit};

    return vg_command(g, &req, sizeof(req), NULL, 0);
}

int vg_query_srq(struct vguest *g, uint32_t handle, struct pvrdma_srq_attr *attr)
{
    struct pvrdma_cmd_handle req = {.hdr.cmd = PVRDMA_CMD_QUERY_SRQ, .handle = handle};
    struct pvrdma_resp_query_srq resp;
    int err = vg_command(g, &req, sizeof(req), &resp, sizeof(resp));

    if (!err) {
        *attr = resp.attrs;
    }
    return err;
}

int vg_create_mw(struct vguest *g, uint32_t pd, uint32_t type, struct vg_mw *w)
{
    struct pvrdma_ext_cmd_create_mw req = {
        .cmd = PVRDMA_CMD_CREATE_MW, .pd_handle = pd, .type = type};
    struct pvrdma_resp_create_mr resp;
    int err = vg_command(g, &req, sizeof(req), &resp, sizeof(resp));

    if (!err) {
        *w = (struct vg_mw){g, resp.mr_handle, resp.rkey};
        g_assert_cmpuint(resp.lkey, ==, 0);
    }
    return err;
}

int vg_bind_gid(struct vguest *g, uint32_t index, const struct pvrdma_gid *gid)
{
    struct pvrdma_cmd_create_bind req = {.hdr.cmd = PVRDMA_CMD_CREATE_BIND,
                                         .mtu = 1024,
                                         .vlan = 0xfff,
                                         .index = index,
                                         .gid = *gid,
                                         .gid_type = PVRDMA_GID_TYPE_ROCE_V2};

    if (g->dsr) {
        req.gid_type = g->dsr->caps.gid_types;
    }
    return vg_command(g, &req, sizeof(req), NULL, 0);
}

int vg_unbind_gid(struct vguest *g, uint32_t index, const struct pvrdma_gid *gid)
{
    struct pvrdma_cmd_destroy_bind req = {
        .hdr.cmd = PVRDMA_CMD_DESTROY_BIND, .index = index, .gid = *gid};

    return vg_command(g, &req, sizeof(req), NULL, 0);
}

int vg_destroy(struct vguest *g, enum pvrdma_cmd cmd, uint32_t handle)
{
    struct pvrdma_cmd_handle req = {.hdr.cmd = cmd, .handle = handle};

    return vg_command(g, &req, sizeof(req), NULL, 0);
}
