/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The table of the real libraries.  What their headers have as macros or inline functions
 * has a function here.
 */
#include "transport/rnic/verbs.h"

#include <stddef.h>

static struct ibv_device **rnic_get_device_list(int *num)
{
    return ibv_get_device_list(num);
}

static int rnic_query_port(struct ibv_context *ctx, uint8_t port,
                           struct ibv_port_attr *attr)
{
    return ibv_query_port(ctx, port, attr);
}

static ssize_t rnic_query_gid_table(struct ibv_context *ctx,
                                    struct ibv_gid_entry *entries, size_t max,
                                    uint32_t flags)
{
    return ibv_query_gid_table(ctx, entries, max, flags);
}

static struct ibv_mr *rnic_reg_mr(struct ibv_pd *pd, void *addr, size_t len, int access)
{
    return ibv_reg_mr(pd, addr, len, access);
}

static int rnic_poll_cq(struct ibv_cq *cq, int num, struct ibv_wc *wc)
{
    return ibv_poll_cq(cq, num, wc);
}

static int rnic_req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
    return ibv_req_notify_cq(cq, solicited_only);
}

static int rnic_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr,
                          struct ibv_send_wr **bad)
{
    return ibv_post_send(qp, wr, bad);
}

static int rnic_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr,
                          struct ibv_recv_wr **bad)
{
    return ibv_post_recv(qp, wr, bad);
}

const struct rnic_verbs rnic_verbs_system = {
    .get_device_list = rnic_get_device_list,
    .free_device_list = ibv_free_device_list,
    .get_device_name = ibv_get_device_name,
    .get_device_guid = ibv_get_device_guid,
    .open_device = ibv_open_device,
    .close_device = ibv_close_device,
    .query_device = ibv_query_device,
    .query_port = rnic_query_port,
    .query_gid_table = rnic_query_gid_table,
    .get_async_event = ibv_get_async_event,
    .ack_async_event = ibv_ack_async_event,
    .alloc_pd = ibv_alloc_pd,
    .dealloc_pd = ibv_dealloc_pd,
    .reg_mr = rnic_reg_mr,
    .dereg_mr = ibv_dereg_mr,
    .create_comp_channel = ibv_create_comp_channel,
    .destroy_comp_channel = ibv_destroy_comp_channel,
    .create_cq = ibv_create_cq,
    .destroy_cq = ibv_destroy_cq,
    .poll_cq = rnic_poll_cq,
    .req_notify_cq = rnic_req_notify_cq,
    .get_cq_event = ibv_get_cq_event,
    .ack_cq_events = ibv_ack_cq_events,
    .modify_qp = ibv_modify_qp,
    .query_qp = ibv_query_qp,
    .post_send = rnic_post_send,
    .post_recv = rnic_post_recv,
    .cm_get_devices = rdma_get_devices,
    .cm_free_devices = rdma_free_devices,
    .cm_create_event_channel = rdma_create_event_channel,
    .cm_destroy_event_channel = rdma_destroy_event_channel,
    .cm_create_id = rdma_create_id,
    .cm_destroy_id = rdma_destroy_id,
    .cm_bind_addr = rdma_bind_addr,
    .cm_resolve_addr = rdma_resolve_addr,
    .cm_resolve_route = rdma_resolve_route,
    .cm_set_option = rdma_set_option,
    .cm_create_qp = rdma_create_qp,
    .cm_destroy_qp = rdma_destroy_qp,
    .cm_listen = rdma_listen,
    .cm_connect = rdma_connect,
    .cm_accept = rdma_accept,
    .cm_reject = rdma_reject,
    .cm_disconnect = rdma_disconnect,
    .cm_get_event = rdma_get_cm_event,
    .cm_ack_event = rdma_ack_cm_event,
};

const struct rnic_verbs *rnic_verbs = &rnic_verbs_system;
