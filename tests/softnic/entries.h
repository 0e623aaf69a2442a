/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * softnic: the entries of its table, each with the name that it has there.
 */
#ifndef SOFTNIC_ENTRIES_H
#define SOFTNIC_ENTRIES_H

#include "softnic.h"

struct ibv_device **soft_get_device_list(int *num);
void soft_free_device_list(struct ibv_device **list);
const char *soft_get_device_name(struct ibv_device *dev);
__be64 soft_get_device_guid(struct ibv_device *dev);
struct ibv_context *soft_open_device(struct ibv_device *ibv);
int soft_close_device(struct ibv_context *ibv);
int soft_query_device(struct ibv_context *ibv, struct ibv_device_attr *attr);
int soft_query_port(struct ibv_context *ibv, uint8_t port, struct ibv_port_attr *attr);
ssize_t soft_query_gid_table(struct ibv_context *ibv, struct ibv_gid_entry *entries,
                             size_t max, uint32_t flags);
int soft_get_async_event(struct ibv_context *ibv, struct ibv_async_event *event);
void soft_ack_async_event(struct ibv_async_event *event);
struct ibv_pd *soft_alloc_pd(struct ibv_context *ibv);
int soft_dealloc_pd(struct ibv_pd *ibv);
struct ibv_mr *soft_reg_mr(struct ibv_pd *ibv, void *addr, size_t len, int access);
int soft_dereg_mr(struct ibv_mr *ibv);
struct ibv_comp_channel *soft_create_comp_channel(struct ibv_context *ibv);
int soft_destroy_comp_channel(struct ibv_comp_channel *ibv);
struct ibv_cq *soft_create_cq(struct ibv_context *ibv, int cqe, void *opaque,
                              struct ibv_comp_channel *channel, int vector);
int soft_destroy_cq(struct ibv_cq *ibv);
int soft_poll_cq(struct ibv_cq *ibv, int num, struct ibv_wc *wc);
int soft_req_notify_cq(struct ibv_cq *ibv, int solicited_only);
int soft_get_cq_event(struct ibv_comp_channel *ibv, struct ibv_cq **cq, void **opaque);
void soft_ack_cq_events(struct ibv_cq *ibv, unsigned n);
int soft_modify_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask);
int soft_query_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask,
                  struct ibv_qp_init_attr *init);
int soft_post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int soft_post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
struct rdma_event_channel *soft_cm_create_event_channel(void);
void soft_cm_destroy_event_channel(struct rdma_event_channel *ibv);
int soft_cm_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id,
                      void *context, enum rdma_port_space ps);
int soft_cm_destroy_id(struct rdma_cm_id *ibv);
int soft_cm_bind_addr(struct rdma_cm_id *ibv, struct sockaddr *addr);
int soft_cm_resolve_addr(struct rdma_cm_id *ibv, struct sockaddr *src,
                         struct sockaddr *dst, int timeout_ms);
int soft_cm_resolve_route(struct rdma_cm_id *ibv, int timeout_ms);
int soft_cm_set_option(struct rdma_cm_id *ibv, int level, int optname, void *optval,
                       size_t optlen);
int soft_cm_create_qp(struct rdma_cm_id *ibv, struct ibv_pd *pd,
                      struct ibv_qp_init_attr *attr);
void soft_cm_destroy_qp(struct rdma_cm_id *ibv);
int soft_cm_listen(struct rdma_cm_id *ibv, int backlog);
int soft_cm_connect(struct rdma_cm_id *ibv, struct rdma_conn_param *param);
int soft_cm_accept(struct rdma_cm_id *ibv, struct rdma_conn_param *param);
int soft_cm_reject(struct rdma_cm_id *ibv, const void *data, uint8_t len);
int soft_cm_disconnect(struct rdma_cm_id *ibv);
int soft_cm_get_event(struct rdma_event_channel *channel, struct rdma_cm_event **event);
int soft_cm_ack_event(struct rdma_cm_event *event);
struct ibv_context **soft_cm_get_devices(int *num);
void soft_cm_free_devices(struct ibv_context **list);

#endif /* SOFTNIC_ENTRIES_H */
