/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * eventcheck: makes each asynchronous event happen that a program can bring about on
 * objects of its own, and looks whether it comes, for the right object, alone.
 *
 *   eventcheck -d DEVICE -g GIDINDEX
 *
 * Both ends of every connection are here.  Prints the events in order, then "N events, N
 * errors"; fails if there are errors.  What it cannot make happen: those of the port and
 * the device, and SRQ_ERR, which needs a ring that no library writes.
 *
 * One thread.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "options.h"
#include "rcqp.h"

#define WAIT_MS  20000
#define QUIET_MS 200

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static union ibv_gid gid;
static int gid_index, events, errors;
static char bytes[4096];

static void must(int err, const char *what)
{
    if (err) {
        fprintf(stderr, "eventcheck: %s: %s\n", what, strerror(err));
        exit(1);
    }
}

static void must_have(const void *p, const char *what)
{
    must(p ? 0 : errno ? errno : EIO, what);
}

/* Two QPs that are connected to each other; the first sends. */
struct pair {
    struct ibv_cq *cq[2];
    struct ibv_srq *srq; /* of the second, or NULL */
    struct ibv_qp *qp[2];
};

static void to_rtr(struct ibv_qp *qp, uint32_t peer)
{
    must(rcqp_modify(
             qp, IBV_QPS_RTR,
             (struct ibv_qp_attr){.path_mtu = IBV_MTU_1024,
                                  .dest_qp_num = peer,
                                  .max_dest_rd_atomic = 1,
                                  .min_rnr_timer = 1,
                                  .ah_attr = {.is_global = 1,
                                              .port_num = 1,
                                              .grh = {.dgid = gid,
                                                      .sgid_index = (uint8_t)gid_index,
                                                      .hop_limit = 1}}},
             IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
         "to RTR");
}

/* @cqe: of the sender's CQ; @rts: the receiver, too. */
static void pair_open(struct pair *p, int cqe, int with_srq, int rts)
{
    memset(p, 0, sizeof(*p));
    if (with_srq) {
        struct ibv_srq_init_attr init = {.attr = {.max_wr = 16, .max_sge = 1}};

        p->srq = ibv_create_srq(pd, &init);
        must_have(p->srq, "SRQ");
    }
    for (int i = 0; i < 2; i++) {
        struct ibv_qp_init_attr init = {
            .cap = {.max_send_wr = 64,
                    .max_recv_wr = 16,
                    .max_send_sge = 1,
                    .max_recv_sge = 1},
            .qp_type = IBV_QPT_RC,
            .sq_sig_all = 1,
            .srq = i ? p->srq : NULL,
        };

        p->cq[i] = ibv_create_cq(ctx, i ? 64 : cqe, NULL, NULL, 0);
        must_have(p->cq[i], "CQ");
        init.send_cq = init.recv_cq = p->cq[i];
        p->qp[i] = ibv_create_qp(pd, &init);
        must_have(p->qp[i], "QP");
        must(rcqp_to_init(p->qp[i], IBV_ACCESS_REMOTE_WRITE), "to INIT");
    }
    must(rcqp_connect(p->qp[0], p->qp[1]->qp_num, &gid, gid_index), "connection");
    if (rts) {
        must(rcqp_connect(p->qp[1], p->qp[0]->qp_num, &gid, gid_index), "connection");
    } else {
        to_rtr(p->qp[1], p->qp[0]->qp_num);
    }
}

static void pair_close(struct pair *p)
{
    for (int i = 0; i < 2; i++) {
        must(ibv_destroy_qp(p->qp[i]), "end of a QP");
    }
    for (int i = 0; i < 2; i++) {
        must(ibv_destroy_cq(p->cq[i]), "end of a CQ");
    }
    must(p->srq ? ibv_destroy_srq(p->srq) : 0, "end of an SRQ");
}

static struct ibv_sge sge_of(unsigned length)
{
    return (struct ibv_sge){(uintptr_t)bytes, length, mr->lkey};
}

static void send_bytes(struct pair *p, enum ibv_wr_opcode opcode, unsigned length,
                       uint32_t rkey)
{
    struct ibv_sge sge = sge_of(length);
    struct ibv_send_wr *bad, wr = {
                                 .sg_list = &sge,
                                 .num_sge = 1,
                                 .opcode = opcode,
                                 .wr.rdma = {(uintptr_t)bytes, rkey},
                             };

    must(ibv_post_send(p->qp[0], &wr, &bad), "send");
}

static void receive(struct pair *p, unsigned length)
{
    struct ibv_sge sge = sge_of(length);
    struct ibv_recv_wr *bad, wr = {.sg_list = &sge, .num_sge = 1};

    must(p->srq ? ibv_post_srq_recv(p->srq, &wr, &bad)
                : ibv_post_recv(p->qp[1], &wr, &bad),
         "receive");
}

static void wrong(const char *what, const char *more)
{
    printf("WRONG: %s %s\n", what, more);
    errors++;
}

/* The next event is of @type, for @object. */
static void expect(enum ibv_event_type type, const void *object)
{
    struct pollfd fd = {ctx->async_fd, POLLIN, 0};
    const char *name = ibv_event_type_str(type);
    struct ibv_async_event event;

    if (poll(&fd, 1, WAIT_MS) != 1) {
        wrong(name, "does not come");
        return;
    }
    must(ibv_get_async_event(ctx, &event) ? errno : 0, "event");
    ibv_ack_async_event(&event);
    if (event.event_type != type) {
        wrong(ibv_event_type_str(event.event_type), "comes instead");
    } else if (event.element.qp != object) { /* all are pointers in one union */
        wrong(name, "is of another object");
    } else {
        printf("%s\n", name);
        events++;
    }
}

static void expect_no_more(void)
{
    struct pollfd fd = {ctx->async_fd, POLLIN, 0};
    struct ibv_async_event event;

    while (poll(&fd, 1, QUIET_MS) == 1 && !ibv_get_async_event(ctx, &event)) {
        wrong(ibv_event_type_str(event.event_type), "comes, too");
        ibv_ack_async_event(&event);
    }
}

static void finish(struct pair *p)
{
    expect_no_more();
    pair_close(p);
}

/* The first message for a QP that is not in RTS yet. */
static void communication_established(void)
{
    struct pair p;

    pair_open(&p, 64, 0, 0);
    send_bytes(&p, IBV_WR_RDMA_WRITE, 8, mr->rkey);
    expect(IBV_EVENT_COMM_EST, p.qp[1]);
    finish(&p);
}

/* A message that is longer than its receive. */
static void bad_request(void)
{
    struct pair p;

    pair_open(&p, 64, 0, 1);
    receive(&p, 8);
    send_bytes(&p, IBV_WR_SEND, 9, 0);
    expect(IBV_EVENT_QP_REQ_ERR, p.qp[1]);
    finish(&p);
}

/* A key that there is not. */
static void bad_access(void)
{
    struct pair p;

    pair_open(&p, 64, 0, 1);
    send_bytes(&p, IBV_WR_RDMA_WRITE, 8, mr->rkey ^ 1);
    expect(IBV_EVENT_QP_ACCESS_ERR, p.qp[1]);
    finish(&p);
}

static void drained(void)
{
    struct pair p;

    pair_open(&p, 64, 0, 1);
    must(rcqp_modify(p.qp[0], IBV_QPS_SQD, (struct ibv_qp_attr){.en_sqd_async_notify = 1},
                     IBV_QP_EN_SQD_ASYNC_NOTIFY),
         "to SQD");
    expect(IBV_EVENT_SQ_DRAINED, p.qp[0]);
    finish(&p);
}

/* More completions than the CQ has room for: it fails, and its QPs with it. */
static void overrun(void)
{
    struct pair p;
    int n;

    pair_open(&p, 1, 0, 1);
    n = p.cq[0]->cqe + 1;
    if (n > 64) {
        wrong("CQ", "of more entries than asked for");
        n = 0;
    }
    while (n-- > 0) {
        send_bytes(&p, IBV_WR_RDMA_WRITE, 8, mr->rkey);
    }
    expect(IBV_EVENT_CQ_ERR, p.cq[0]);
    expect(IBV_EVENT_QP_FATAL, p.qp[0]);
    finish(&p);
}

static void limit_reached(void)
{
    struct ibv_srq_attr attr = {.srq_limit = 2};
    struct pair p;

    pair_open(&p, 64, 1, 1);
    receive(&p, 8);
    receive(&p, 8);
    must(ibv_modify_srq(p.srq, &attr, IBV_SRQ_LIMIT), "limit");
    send_bytes(&p, IBV_WR_SEND, 8, 0);
    expect(IBV_EVENT_SRQ_LIMIT_REACHED, p.srq);
    finish(&p);
}

static void last_wqe(void)
{
    struct pair p;

    pair_open(&p, 64, 1, 1);
    must(rcqp_modify(p.qp[1], IBV_QPS_ERR, (struct ibv_qp_attr){0}, 0), "to ERR");
    expect(IBV_EVENT_QP_LAST_WQE_REACHED, p.qp[1]);
    finish(&p);
}

static void open_device(const char *name)
{
    ctx = device_open(name);
    must_have(ctx, name);
    pd = ibv_alloc_pd(ctx);
    must_have(pd, "PD");
    mr = ibv_reg_mr(pd, bytes, sizeof(bytes),
                    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    must_have(mr, "MR");
    must(ibv_query_gid(ctx, 1, gid_index, &gid) ? EINVAL : 0, "GID");
}

int main(int argc, char **argv)
{
    struct options o = {0};

    if (!options_read(&o, argc, argv, 0, 0) || !o.device) {
        fprintf(stderr, "usage: eventcheck -d DEVICE -g GIDINDEX\n");
        return 2;
    }
    gid_index = o.gid_index;
    open_device(o.device);
    communication_established();
    bad_request();
    bad_access();
    drained();
    overrun();
    limit_reached();
    last_wqe();
    printf("%d events, %d errors\n", events, errors);
    return errors != 0;
}
