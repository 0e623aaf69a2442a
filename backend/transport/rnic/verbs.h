/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the daemon calls of libibverbs and librdmacm, as one table, so that tests can put
 * a NIC in memory there (tests/softnic).  Each entry is the function of its name with
 * ibv_ or rdma_ (cm_: the connection manager's) before it, and has its parameters, result
 * and errors: see the manual page of that name.
 *
 * Posting returns 0 or an error number; some providers return it negative, so anything
 * but 0 is an error.
 *
 * Threads: entries marked "blocks" may take milliseconds, or for ever when the device
 * goes away; they belong on a control thread (control.h).  The others neither block nor
 * enter the kernel for long: workers and the main thread call them.
 */
#ifndef PVRDMAD_RNIC_VERBS_H
#define PVRDMAD_RNIC_VERBS_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

struct rnic_verbs {
    /* ---- devices ---- */
    struct ibv_device **(*get_device_list)(int *num);   /* blocks */
    void (*free_device_list)(struct ibv_device **list); /* blocks */
    const char *(*get_device_name)(struct ibv_device *dev);
    __be64 (*get_device_guid)(struct ibv_device *dev);
    struct ibv_context *(*open_device)(struct ibv_device *dev); /* blocks */
    int (*close_device)(struct ibv_context *ctx);               /* blocks */
    int (*query_device)(struct ibv_context *ctx,
                        struct ibv_device_attr *attr); /* blocks */
    int (*query_port)(struct ibv_context *ctx, uint8_t port,
                      struct ibv_port_attr *attr); /* blocks */
    ssize_t (*query_gid_table)(struct ibv_context *ctx, struct ibv_gid_entry *entries,
                               size_t max, uint32_t flags); /* blocks */
    /* @ctx->async_fd is set to O_NONBLOCK before. */
    int (*get_async_event)(struct ibv_context *ctx, struct ibv_async_event *event);
    void (*ack_async_event)(struct ibv_async_event *event);

    /* ---- memory ---- */
    struct ibv_pd *(*alloc_pd)(struct ibv_context *ctx); /* blocks */
    int (*dealloc_pd)(struct ibv_pd *pd);                /* blocks */
    struct ibv_mr *(*reg_mr)(struct ibv_pd *pd, void *addr, size_t len, int access);
    /* (blocks, both) */
    int (*dereg_mr)(struct ibv_mr *mr);

    /* ---- completion queues ---- */
    struct ibv_comp_channel *(*create_comp_channel)(struct ibv_context *ctx); /* blocks */
    int (*destroy_comp_channel)(struct ibv_comp_channel *channel);            /* blocks */
    struct ibv_cq *(*create_cq)(struct ibv_context *ctx, int cqe, void *opaque,
                                struct ibv_comp_channel *channel,
                                int vector); /* blocks */
    int (*destroy_cq)(struct ibv_cq *cq);    /* blocks, until its events are acked */
    int (*poll_cq)(struct ibv_cq *cq, int num, struct ibv_wc *wc);
    int (*req_notify_cq)(struct ibv_cq *cq, int solicited_only);
    /* @channel->fd is set to O_NONBLOCK before. */
    int (*get_cq_event)(struct ibv_comp_channel *channel, struct ibv_cq **cq,
                        void **opaque);
    void (*ack_cq_events)(struct ibv_cq *cq, unsigned n);

    /* ---- queue pairs ---- */
    int (*modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask); /* blocks */
    int (*query_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
                    struct ibv_qp_init_attr *init); /* blocks */
    int (*post_send)(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
    int (*post_recv)(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

    /* ---- connection manager ---- */
    /*
     * Contexts that the manager has of its own, which are those of ids (id->verbs): a PD
     * or CQ of another context is refused by cm_create_qp().  The manager closes one when
     * no id or list has it and a later cm_get_devices() finds its device gone.
     */
    struct ibv_context **(*cm_get_devices)(int *num);                     /* blocks */
    void (*cm_free_devices)(struct ibv_context **list);                   /* blocks */
    struct rdma_event_channel *(*cm_create_event_channel)(void);          /* blocks */
    void (*cm_destroy_event_channel)(struct rdma_event_channel *channel); /* blocks */
    int (*cm_create_id)(struct rdma_event_channel *channel, struct rdma_cm_id **id,
                        void *context, enum rdma_port_space ps); /* blocks */
    int (*cm_destroy_id)(struct rdma_cm_id *id); /* blocks, until its events are acked */
    int (*cm_bind_addr)(struct rdma_cm_id *id, struct sockaddr *addr); /* blocks */
    int (*cm_resolve_addr)(struct rdma_cm_id *id, struct sockaddr *src,
                           struct sockaddr *dst, int timeout_ms);   /* blocks */
    int (*cm_resolve_route)(struct rdma_cm_id *id, int timeout_ms); /* blocks */
    int (*cm_set_option)(struct rdma_cm_id *id, int level, int optname, void *optval,
                         size_t optlen); /* blocks */
    int (*cm_create_qp)(struct rdma_cm_id *id, struct ibv_pd *pd,
                        struct ibv_qp_init_attr *attr);                      /* blocks */
    void (*cm_destroy_qp)(struct rdma_cm_id *id);                            /* blocks */
    int (*cm_listen)(struct rdma_cm_id *id, int backlog);                    /* blocks */
    int (*cm_connect)(struct rdma_cm_id *id, struct rdma_conn_param *param); /* blocks */
    int (*cm_accept)(struct rdma_cm_id *id, struct rdma_conn_param *param);  /* blocks */
    int (*cm_reject)(struct rdma_cm_id *id, const void *data, uint8_t len);  /* blocks */
    int (*cm_disconnect)(struct rdma_cm_id *id);                             /* blocks */
    /*
     * @channel->fd is set to O_NONBLOCK before.  Blocks nevertheless: it asks the kernel
     * about the id, opens its device or makes its QP ready.
     */
    int (*cm_get_event)(struct rdma_event_channel *channel, struct rdma_cm_event **event);
    int (*cm_ack_event)(struct rdma_cm_event *event);
};

/* The libraries'. */
extern const struct rnic_verbs rnic_verbs_system;
/* The one that is used: the libraries', unless another is put here before main(). */
extern const struct rnic_verbs *rnic_verbs;

#endif /* PVRDMAD_RNIC_VERBS_H */
