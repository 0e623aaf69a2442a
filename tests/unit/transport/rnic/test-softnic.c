/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What softnic does beyond a NIC that works: removal, events, faults at calls and in
 * data, and QPs of two processes.  What real NICs do as well is in
 * tests/softnic/verbs-model.c.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <glib.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "softnic.h"

#define V    rnic_verbs
#define PORT 7471
#define SIZE 65536u
#define MANY 32u

/* ---- one end of a connection ---- */

struct end {
    struct rdma_event_channel *events;
    struct rdma_cm_id *listener, *id;
    struct ibv_pd *pd;
    struct ibv_cq *cq, *rcq;
    struct ibv_mr *mr;
    uint8_t *buf;
};

static char *self;

static void wait_fd(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    g_assert_cmpint(poll(&p, 1, 20000), ==, 1);
}

static bool is_quiet(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    return poll(&p, 1, 0) == 0;
}

static struct rdma_cm_event *event_of(struct end *e, enum rdma_cm_event_type type)
{
    struct rdma_cm_event *event;

    for (;;) {
        wait_fd(e->events->fd);
        g_assert_cmpint(V->cm_get_event(e->events, &event), ==, 0);
        if (event->event != RDMA_CM_EVENT_TIMEWAIT_EXIT ||
            type == RDMA_CM_EVENT_TIMEWAIT_EXIT) {
            break;
        }
        V->cm_ack_event(event);
    }
    g_assert_cmpint(event->event, ==, type);
    return event;
}

static void expect(struct end *e, enum rdma_cm_event_type type)
{
    V->cm_ack_event(event_of(e, type));
}

static struct sockaddr *address(const char *text, uint16_t port)
{
    static struct sockaddr_in a[2];
    static unsigned n;
    struct sockaddr_in *in = &a[n++ % 2];

    *in = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
    g_assert_cmpint(inet_pton(AF_INET, text, &in->sin_addr), ==, 1);
    return (struct sockaddr *)in;
}

static void open_qp(struct end *e)
{
    struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC};

    e->buf = g_malloc0(SIZE);
    g_assert_nonnull((e->pd = V->alloc_pd(e->id->verbs)));
    g_assert_nonnull((e->cq = V->create_cq(e->id->verbs, 256, e, NULL, 0)));
    g_assert_nonnull((e->rcq = V->create_cq(e->id->verbs, 256, e, NULL, 0)));
    g_assert_nonnull((e->mr = V->reg_mr(e->pd, e->buf, SIZE,
                                        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                            IBV_ACCESS_REMOTE_READ)));
    init.send_cq = e->cq;
    init.recv_cq = e->rcq;
    init.cap.max_send_wr = init.cap.max_recv_wr = MANY;
    init.cap.max_send_sge = init.cap.max_recv_sge = 1;
    g_assert_cmpint(V->cm_create_qp(e->id, e->pd, &init), ==, 0);
}

static void end_close(struct end *e)
{
    if (e->id && e->id->qp) {
        V->cm_destroy_qp(e->id);
        g_assert_cmpint(V->dereg_mr(e->mr), ==, 0);
        g_assert_cmpint(V->destroy_cq(e->cq), ==, 0);
        g_assert_cmpint(V->destroy_cq(e->rcq), ==, 0);
        g_assert_cmpint(V->dealloc_pd(e->pd), ==, 0);
        g_free(e->buf);
    }
    if (e->id) {
        g_assert_cmpint(V->cm_destroy_id(e->id), ==, 0);
    }
    if (e->listener) {
        g_assert_cmpint(V->cm_destroy_id(e->listener), ==, 0);
    }
    V->cm_destroy_event_channel(e->events);
    memset(e, 0, sizeof(*e));
}

static void listen_at(struct end *e, const char *addr)
{
    memset(e, 0, sizeof(*e));
    g_assert_nonnull((e->events = V->cm_create_event_channel()));
    g_assert_cmpint(V->cm_create_id(e->events, &e->listener, NULL, RDMA_PS_TCP), ==, 0);
    g_assert_cmpint(V->cm_bind_addr(e->listener, address(addr, PORT)), ==, 0);
    g_assert_cmpint(V->cm_listen(e->listener, 4), ==, 0);
}

static void call(struct end *e, const char *from, const char *to)
{
    struct rdma_conn_param param = {.private_data = "hello",
                                    .private_data_len = 6,
                                    .responder_resources = 4,
                                    .initiator_depth = 4,
                                    .retry_count = 6,
                                    .rnr_retry_count = 7};
    uint8_t timeout = 14;

    memset(e, 0, sizeof(*e));
    g_assert_nonnull((e->events = V->cm_create_event_channel()));
    g_assert_cmpint(V->cm_create_id(e->events, &e->id, NULL, RDMA_PS_TCP), ==, 0);
    g_assert_cmpint(V->cm_resolve_addr(e->id, address(from, 0), address(to, PORT), 1000),
                    ==, 0);
    expect(e, RDMA_CM_EVENT_ADDR_RESOLVED);
    g_assert_cmpint(V->cm_resolve_route(e->id, 1000), ==, 0);
    expect(e, RDMA_CM_EVENT_ROUTE_RESOLVED);
    V->cm_set_option(e->id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 1);
    open_qp(e);
    g_assert_cmpint(V->cm_connect(e->id, &param), ==, 0);
}

static void answer(struct end *e)
{
    struct rdma_conn_param param = {
        .responder_resources = 4, .initiator_depth = 4, .rnr_retry_count = 7};
    struct rdma_cm_event *event = event_of(e, RDMA_CM_EVENT_CONNECT_REQUEST);

    g_assert_cmpstr(event->param.conn.private_data, ==, "hello");
    e->id = event->id;
    V->cm_ack_event(event);
    open_qp(e);
    g_assert_cmpint(V->cm_accept(e->id, &param), ==, 0);
}

static void connect_pair(struct end *a, struct end *b)
{
    listen_at(b, "127.0.0.2");
    call(a, "127.0.0.1", "127.0.0.2");
    answer(b);
    expect(a, RDMA_CM_EVENT_ESTABLISHED);
    expect(b, RDMA_CM_EVENT_ESTABLISHED);
}

static int try_post(struct end *a, const struct end *b, enum ibv_wr_opcode op,
                    uint64_t id, unsigned flags)
{
    struct ibv_sge sge = {(uintptr_t)a->buf + id * 64, 64, a->mr->lkey};
    struct ibv_send_wr wr = {
        .wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = op, .send_flags = flags};
    struct ibv_send_wr *bad;

    if (b) {
        wr.wr.rdma.remote_addr = (uintptr_t)b->buf + id * 64;
        wr.wr.rdma.rkey = b->mr->rkey;
    }
    return V->post_send(a->id->qp, &wr, &bad);
}

static void post(struct end *a, const struct end *b, enum ibv_wr_opcode op, uint64_t id)
{
    g_assert_cmpint(try_post(a, b, op, id, IBV_SEND_SIGNALED), ==, 0);
}

static void post_recv(struct end *e, uint64_t id)
{
    struct ibv_sge sge = {(uintptr_t)e->buf + id * 64, 64, e->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;

    g_assert_cmpint(V->post_recv(e->id->qp, &wr, &bad), ==, 0);
}

static struct ibv_wc completion(struct ibv_cq *cq)
{
    int64_t until = g_get_monotonic_time() + 20 * G_USEC_PER_SEC;
    struct ibv_wc wc;
    int n;

    while ((n = V->poll_cq(cq, 1, &wc)) == 0) {
        g_assert_cmpint(g_get_monotonic_time(), <, until);
        g_usleep(100);
    }
    g_assert_cmpint(n, ==, 1);
    return wc;
}

static void completes(struct ibv_cq *cq, uint64_t id, enum ibv_wc_status status)
{
    struct ibv_wc wc = completion(cq);

    g_assert_cmpint(wc.wr_id, ==, id);
    g_assert_cmpint(wc.status, ==, status);
}

static void is_empty(struct ibv_cq *cq)
{
    struct ibv_wc wc;

    softnic_settle();
    g_assert_cmpint(V->poll_cq(cq, 1, &wc), ==, 0);
}

/* ---- a NIC for each test, which is gone at its end ---- */

static void begin(const char *flags)
{
    softnic_do("add left 127.0.0.1%s; add right 127.0.0.2%s", flags, flags);
}

/* The manager closes contexts of NICs that are gone, if it finds another. */
static void rescan(void)
{
    softnic_do("add spare 127.0.0.8");
    V->cm_free_devices(V->cm_get_devices(NULL));
    softnic_do("remove spare");
}

static void finish(void)
{
    softnic_do("clear; remove left; remove right");
    g_assert_cmpint(softnic_count("objects", NULL), ==, 0);
    g_assert_null(V->cm_get_devices(NULL));
    rescan();
    g_assert_cmpint(softnic_count("contexts", "left"), ==, -1);
    g_assert_cmpint(softnic_count("contexts", "right"), ==, -1);
}

static struct ibv_context *open_named(const char *name)
{
    struct ibv_device **list = V->get_device_list(NULL);
    struct ibv_context *ctx = NULL;

    for (struct ibv_device **d = list; *d; d++) {
        if (!strcmp(V->get_device_name(*d), name)) {
            ctx = V->open_device(*d);
        }
    }
    V->free_device_list(list);
    return ctx;
}

static void next_event(struct ibv_context *ctx, enum ibv_event_type type)
{
    struct ibv_async_event e;

    wait_fd(ctx->async_fd);
    g_assert_cmpint(V->get_async_event(ctx, &e), ==, 0);
    g_assert_cmpint(e.event_type, ==, type);
    V->ack_async_event(&e);
}

/* ---- devices ---- */

static void test_remove(void)
{
    struct ibv_device **list;
    struct ibv_context *ctx;
    struct end a, b;
    int n, null;

    begin("");
    list = V->get_device_list(&n);
    g_assert_cmpint(n, ==, 2);
    g_assert_true(V->get_device_guid(list[0]) != V->get_device_guid(list[1]));
    V->free_device_list(list);
    connect_pair(&a, &b);
    g_assert_nonnull((ctx = open_named("left")));
    g_assert_cmpint(access(ctx->device->dev_path, F_OK), ==, 0);
    softnic_do("remove left");
    g_assert_cmpint(access(ctx->device->dev_path, F_OK), ==, -1);
    g_assert_cmpint(access(ctx->device->ibdev_path, F_OK), ==, 0);
    g_assert_null(open_named("left"));
    g_assert_true(is_quiet(ctx->async_fd));
    g_assert_true(is_quiet(a.events->fd));
    /* it is there until all contexts are closed, the manager's too */
    g_assert_cmpint(softnic_count("contexts", "left"), ==, 2);
    V->close_device(ctx);
    end_close(&a);
    g_assert_cmpint(softnic_count("contexts", "left"), ==, 1);
    V->cm_free_devices(V->cm_get_devices(NULL));
    g_assert_cmpint(softnic_count("contexts", "left"), ==, -1);
    softnic_do("add left 127.0.0.1");
    g_assert_nonnull((ctx = open_named("left")));
    V->close_device(ctx);
    /* or the kernel's part of them is */
    ctx = b.id->verbs;
    softnic_do("remove right");
    end_close(&b);
    g_assert_cmpint(softnic_count("contexts", "right"), ==, 1);
    null = open("/dev/null", O_RDWR | O_CLOEXEC);
    g_assert_cmpint(dup2(null, ctx->cmd_fd), ==, ctx->cmd_fd);
    close(null);
    g_assert_cmpint(softnic_count("contexts", "right"), ==, 0);
    softnic_do("add right 127.0.0.2");
    finish();
}

static void test_fatal(void)
{
    struct ibv_device_attr attr;
    struct ibv_context *ctx;
    struct end a, b;

    begin("");
    connect_pair(&a, &b);
    g_assert_nonnull((ctx = open_named("left")));
    post_recv(&a, 0);
    softnic_do("fatal left");
    next_event(ctx, IBV_EVENT_DEVICE_FATAL);
    next_event(a.id->verbs, IBV_EVENT_DEVICE_FATAL);
    g_assert_cmpint(V->query_device(ctx, &attr), ==, EIO);
    g_assert_null(V->alloc_pd(ctx));
    g_assert_null(V->reg_mr(a.pd, a.buf, 64, 0));
    g_assert_cmpint(errno, ==, EIO);
    g_assert_cmpint(try_post(&a, NULL, IBV_WR_SEND, 1, 0), ==, EIO);
    is_empty(a.rcq); /* nothing comes back */
    post(&b, &a, IBV_WR_RDMA_WRITE, 3);
    completes(b.cq, 3, IBV_WC_RETRY_EXC_ERR);
    softnic_do("add left 127.0.0.1"); /* it is back while the old one is in use */
    V->close_device(ctx);
    end_close(&a);
    end_close(&b);
    connect_pair(&a, &b);
    end_close(&a);
    end_close(&b);
    finish();
}

static void test_unplug(void)
{
    struct end a, b;

    begin("");
    connect_pair(&a, &b);
    softnic_do("unplug left");
    expect(&a, RDMA_CM_EVENT_DEVICE_REMOVAL);
    next_event(a.id->verbs, IBV_EVENT_DEVICE_FATAL);
    end_close(&a);
    end_close(&b);
    softnic_do("add left 127.0.0.1");
    finish();
}

static void test_port(void)
{
    struct ibv_port_attr port;
    struct end a, b;

    begin("");
    connect_pair(&a, &b);
    for (unsigned i = 0; i < 3; i++) {
        post_recv(&b, i);
    }
    softnic_do("down right");
    next_event(b.id->verbs, IBV_EVENT_GID_CHANGE);
    next_event(b.id->verbs, IBV_EVENT_PORT_ERR);
    V->query_port(b.id->verbs, 1, &port);
    g_assert_cmpint(port.state, ==, IBV_PORT_DOWN);
    post(&a, NULL, IBV_WR_SEND, 0);
    is_empty(b.rcq);
    softnic_do("up right"); /* in time */
    next_event(b.id->verbs, IBV_EVENT_PORT_ACTIVE);
    completes(b.rcq, 0, IBV_WC_SUCCESS);
    completes(a.cq, 0, IBV_WC_SUCCESS);
    softnic_do("down right");
    post(&a, NULL, IBV_WR_SEND, 1);
    completes(a.cq, 1, IBV_WC_RETRY_EXC_ERR);
    softnic_do("up right");
    is_empty(b.rcq);
    end_close(&a);
    end_close(&b);
    finish();
}

/* ---- faults at calls ---- */

static void test_calls(void)
{
    struct ibv_async_event async;
    struct rdma_cm_event *event;
    int64_t before;
    struct end a, b;

    begin("");
    connect_pair(&a, &b);
    softnic_do("fail reg_mr 2 ENOMEM");
    g_assert_cmpint(V->dereg_mr(a.mr), ==, 0);
    g_assert_nonnull((a.mr = V->reg_mr(a.pd, a.buf, 64, IBV_ACCESS_LOCAL_WRITE)));
    g_assert_null(V->reg_mr(a.pd, a.buf, 64, IBV_ACCESS_LOCAL_WRITE));
    g_assert_cmpint(errno, ==, ENOMEM);
    softnic_do(
        "fail dereg_mr 1 EBUSY; fail post_send 0 ENOMEM; fail cm_disconnect 1 EINVAL");
    g_assert_cmpint(V->dereg_mr(a.mr), ==, EBUSY);
    for (unsigned i = 0; i < 3; i++) {
        g_assert_cmpint(try_post(&a, NULL, IBV_WR_SEND, 0, 0), ==, ENOMEM);
    }
    g_assert_cmpint(V->cm_disconnect(a.id), ==, -1);
    g_assert_cmpint(errno, ==, EINVAL);
    softnic_do("clear; fail any 1 EIO; delay query_qp 1 20000");
    g_assert_null(V->alloc_pd(a.id->verbs));
    before = g_get_monotonic_time();
    V->query_qp(a.id->qp, &(struct ibv_qp_attr){0}, 0, &(struct ibv_qp_init_attr){0});
    g_assert_cmpint(g_get_monotonic_time() - before, >=, 20000);
    softnic_do("fail cm_get_event 1 EINTR; fail get_async_event 1 EINTR");
    g_assert_cmpint(V->cm_get_event(a.events, &event), ==, -1);
    g_assert_cmpint(errno, ==, EINTR);
    g_assert_cmpint(V->get_async_event(a.id->verbs, &async), ==, -1);
    g_assert_cmpint(errno, ==, EINTR);
    before = softnic_count("calls", "poll_cq");
    is_empty(a.cq);
    g_assert_cmpint(softnic_count("calls", "poll_cq"), ==, before + 1);
    end_close(&a);
    end_close(&b);
    finish();
}

static void test_negative(void)
{
    struct end a, b;

    begin(" negative noimm");
    connect_pair(&a, &b);
    g_assert_cmpint(try_post(&a, &b, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 0), ==, -EINVAL);
    post_recv(&b, 0);
    post(&a, NULL, IBV_WR_SEND, 0); /* and is none the worse */
    completes(b.rcq, 0, IBV_WC_SUCCESS);
    end_close(&a);
    end_close(&b);
    finish();
}

/* ---- faults in data ---- */

/* Ten counted WRITEs; how many the responder counts and the requester hears of. */
static void cut(const char *how, unsigned *counted, unsigned *heard)
{
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_ERR};
    struct end a, b;

    begin("");
    connect_pair(&a, &b);
    memset(a.buf, 1, SIZE);
    for (unsigned i = 0; i < 10; i++) {
        post_recv(&b, i);
    }
    softnic_do("cut %s", how);
    for (unsigned i = 0; i < 10; i++) {
        post(&a, &b, IBV_WR_RDMA_WRITE_WITH_IMM, i);
    }
    *heard = *counted = 0;
    for (unsigned i = 0; i < 10; i++) {
        struct ibv_wc wc = completion(a.cq);

        g_assert_cmpint(wc.status, ==,
                        i < *heard || wc.status == IBV_WC_SUCCESS ? IBV_WC_SUCCESS
                        : i == *heard                             ? IBV_WC_RETRY_EXC_ERR
                                                                  : IBV_WC_WR_FLUSH_ERR);
        *heard += wc.status == IBV_WC_SUCCESS;
    }
    g_assert_cmpint(V->modify_qp(b.id->qp, &to, IBV_QP_STATE), ==, 0);
    for (unsigned i = 0; i < 10; i++) {
        struct ibv_wc wc = completion(b.rcq);

        g_assert_cmpint(wc.wr_id, ==, i);
        *counted += wc.status == IBV_WC_SUCCESS;
        g_assert_cmpint(b.buf[i * 64], ==, wc.status == IBV_WC_SUCCESS);
    }
    end_close(&a);
    end_close(&b);
    finish();
}

static void test_cut(void)
{
    unsigned counted, heard;

    cut("right 5", &counted, &heard);
    g_assert_cmpint(counted, ==, 4);
    g_assert_cmpint(heard, ==, 4);
    cut("right 5 after", &counted, &heard);
    g_assert_cmpint(counted, ==, 5);
    g_assert_cmpint(heard, ==, 4);
    cut("left 5 answer", &counted, &heard);
    g_assert_cmpint(counted, >=, 5);
    g_assert_cmpint(heard, ==, 4); /* what was answered before the cut arrives */
}

static void test_strike(void)
{
    struct end a, b;

    begin("");
    connect_pair(&a, &b);
    post_recv(&a, 0);
    post_recv(&a, 1);
    softnic_do("strike left"); /* out of nowhere */
    completes(a.rcq, 0, IBV_WC_WR_FLUSH_ERR);
    completes(a.rcq, 1, IBV_WC_WR_FLUSH_ERR);
    softnic_do("hold 0");
    post(&b, &a, IBV_WR_RDMA_WRITE, 5);
    post(&b, &a, IBV_WR_RDMA_WRITE, 6);
    softnic_do("strike right 21");
    completes(b.cq, 5, IBV_WC_GENERAL_ERR);
    completes(b.cq, 6, IBV_WC_WR_FLUSH_ERR);
    end_close(&a);
    end_close(&b);
    finish();
}

static void test_lose(void)
{
    struct end a, b;

    begin("");
    connect_pair(&a, &b);
    softnic_do("lose left 2");
    for (unsigned i = 0; i < 4; i++) {
        post(&a, &b, IBV_WR_RDMA_WRITE, i);
    }
    completes(a.cq, 0, IBV_WC_SUCCESS);
    completes(a.cq, 2, IBV_WC_SUCCESS);
    completes(a.cq, 3, IBV_WC_SUCCESS);
    is_empty(a.cq);
    g_assert_cmpint(softnic_count("lost", "left"), ==, 1);
    end_close(&a);
    end_close(&b);
    finish();
}

static void test_flush_twice(void)
{
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_ERR};
    struct end a, b;

    begin(" flush2");
    connect_pair(&a, &b);
    for (unsigned i = 0; i < 3; i++) {
        post_recv(&a, i);
    }
    V->modify_qp(a.id->qp, &to, IBV_QP_STATE);
    for (unsigned i = 0; i < 6; i++) {
        completes(a.rcq, i / 2, IBV_WC_WR_FLUSH_ERR);
    }
    end_close(&a);
    end_close(&b);
    finish();
}

static void test_early(void)
{
    struct end a, b;

    begin(" early iwarp");
    connect_pair(&a, &b);
    post(&a, NULL, IBV_WR_SEND, 0); /* there is no receive */
    completes(a.cq, 0, IBV_WC_SUCCESS);
    expect(&a, RDMA_CM_EVENT_DISCONNECTED);
    expect(&b, RDMA_CM_EVENT_DISCONNECTED);
    post(&a, NULL, IBV_WR_SEND, 1);
    completes(a.cq, 1, IBV_WC_WR_FLUSH_ERR);
    end_close(&a);
    end_close(&b);
    finish();
}

static void test_rnr(void)
{
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_RTS, .min_rnr_timer = 1};
    struct end a, b;

    begin("");
    connect_pair(&a, &b);
    g_assert_cmpint(V->modify_qp(b.id->qp, &to, IBV_QP_STATE | IBV_QP_MIN_RNR_TIMER), ==,
                    0);
    post(&a, NULL, IBV_WR_SEND, 0);
    while (softnic_count("rnr", "right") < 3) {
        g_usleep(100);
    }
    post_recv(&b, 0);
    completes(b.rcq, 0, IBV_WC_SUCCESS);
    completes(a.cq, 0, IBV_WC_SUCCESS);
    g_assert_cmpint(softnic_count("rnr", "left"), ==, 0);
    end_close(&a);
    end_close(&b);
    finish();
}

/* Nothing is executed by a post, and what is on its way can be counted. */
static void test_hold(void)
{
    struct end a, b;

    begin("");
    connect_pair(&a, &b);
    for (unsigned i = 0; i < 3; i++) {
        post_recv(&b, i);
    }
    softnic_settle();
    softnic_do("hold 0");
    for (unsigned i = 0; i < 3; i++) {
        post(&a, NULL, IBV_WR_SEND, i);
    }
    is_empty(b.rcq);
    is_empty(a.cq);
    softnic_do("hold 1");
    completes(b.rcq, 0, IBV_WC_SUCCESS);
    is_empty(b.rcq);
    softnic_do("hold -1");
    completes(b.rcq, 1, IBV_WC_SUCCESS);
    completes(b.rcq, 2, IBV_WC_SUCCESS);
    end_close(&a);
    end_close(&b);
    finish();
}

/* A send queue has room when a later completion was polled, not before. */
static void test_room(void)
{
    struct end a, b;

    begin("");
    connect_pair(&a, &b);
    for (unsigned i = 0; i < MANY; i++) {
        g_assert_cmpint(
            try_post(&a, &b, IBV_WR_RDMA_WRITE, i, i == MANY / 2 ? IBV_SEND_SIGNALED : 0),
            ==, 0);
    }
    softnic_settle();
    g_assert_cmpint(try_post(&a, &b, IBV_WR_RDMA_WRITE, 0, 0), ==, ENOMEM);
    completes(a.cq, MANY / 2, IBV_WC_SUCCESS);
    for (unsigned i = 0; i < MANY / 2 + 1; i++) {
        g_assert_cmpint(try_post(&a, &b, IBV_WR_RDMA_WRITE, 0, 0), ==, 0);
    }
    g_assert_cmpint(try_post(&a, &b, IBV_WR_RDMA_WRITE, 0, 0), ==, ENOMEM);
    end_close(&a);
    end_close(&b);
    finish();
}

static void test_overrun(void)
{
    struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC};
    struct rdma_cm_id *id;
    struct ibv_wc wc;
    struct end a, b;

    begin("");
    connect_pair(&a, &b);
    /* a completion queue of 2, in place of that of 256 */
    id = a.id;
    V->cm_destroy_qp(id);
    V->destroy_cq(a.cq);
    g_assert_nonnull((a.cq = V->create_cq(id->verbs, 2, NULL, NULL, 0)));
    init.send_cq = init.recv_cq = a.cq;
    init.cap.max_send_wr = init.cap.max_recv_wr = 4;
    init.cap.max_send_sge = init.cap.max_recv_sge = 1;
    g_assert_cmpint(V->cm_create_qp(id, a.pd, &init), ==, 0);
    for (unsigned i = 0; i < 3; i++) {
        post_recv(&a, i);
    }
    V->cm_disconnect(id);
    next_event(id->verbs, IBV_EVENT_CQ_ERR);
    g_assert_cmpint(V->poll_cq(a.cq, 1, &wc), <, 0);
    g_assert_cmpint(softnic_count("overruns", "left"), >=, 1);
    end_close(&a);
    end_close(&b);
    finish();
}

/* ---- two processes ---- */

/* Answers SENDs until it is disconnected or killed. */
static int echo_main(const char *dir)
{
    struct end e;
    struct ibv_wc wc;
    uint64_t n = 0;

    softnic_do("add other 127.0.0.2");
    listen_at(&e, "127.0.0.2");
    printf("ready\n");
    fflush(stdout);
    answer(&e);
    for (unsigned i = 0; i < 16; i++) {
        post_recv(&e, i);
    }
    expect(&e, RDMA_CM_EVENT_ESTABLISHED);
    while (is_quiet(e.events->fd)) {
        if (V->poll_cq(e.rcq, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS) {
            memcpy(e.buf + 1024 + n % 16 * 64, e.buf + wc.wr_id * 64, 64);
            post(&e, NULL, IBV_WR_SEND, 16 + n++ % 16);
            post_recv(&e, wc.wr_id);
        }
        V->poll_cq(e.cq, 1, &wc);
    }
    expect(&e, RDMA_CM_EVENT_DISCONNECTED);
    V->cm_disconnect(e.id);
    g_usleep(1000);
    end_close(&e);
    return 0;
}

static GPid other_start(const char *dir)
{
    char *argv[] = {self, (char *)"--echo", NULL};
    char line[16] = "";
    GPid pid;
    int fd;

    g_assert_true(g_spawn_async_with_pipes(NULL, argv, NULL, G_SPAWN_DO_NOT_REAP_CHILD,
                                           NULL, NULL, &pid, NULL, &fd, NULL, NULL));
    g_assert_cmpint(read(fd, line, sizeof(line)), ==, 6);
    close(fd);
    return pid;
}

static void tell(const char *dir, GPid pid, const char *command)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    g_snprintf(a.sun_path, sizeof(a.sun_path), "%s/ctl-%d", dir, pid);
    g_assert_cmpint(
        sendto(fd, command, strlen(command), 0, (struct sockaddr *)&a, sizeof(a)), ==,
        strlen(command));
    close(fd);
}

static void echoes(struct end *e, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        unsigned at = i % 8;

        post_recv(e, 8 + at);
        memset(e->buf + at * 64, (int)(i + 1), 64);
        post(e, NULL, IBV_WR_SEND, at);
        completes(e->rcq, 8 + at, IBV_WC_SUCCESS);
        g_assert_cmpmem(e->buf + at * 64, 64, e->buf + (8 + at) * 64, 64);
        completes(e->cq, at, IBV_WC_SUCCESS);
    }
}

/* 0: disconnect; 1: kill it; 2: cut the connection there; 3: stop its port for a moment.
 */
static void processes(unsigned how)
{
    const char *dir = g_getenv("PVRDMA_SOFTNIC");
    GPid pid = other_start(dir);
    struct end e;
    int status;

    softnic_do("add left 127.0.0.1");
    call(&e, "127.0.0.1", "127.0.0.2");
    expect(&e, RDMA_CM_EVENT_ESTABLISHED);
    echoes(&e, 100);
    switch (how) {
    case 0:
        g_assert_cmpint(V->cm_disconnect(e.id), ==, 0);
        expect(&e, RDMA_CM_EVENT_DISCONNECTED);
        break;
    case 1:
        kill(pid, SIGKILL);
        expect(&e, RDMA_CM_EVENT_DISCONNECTED);
        post(&e, NULL, IBV_WR_SEND, 0);
        completes(e.cq, 0, IBV_WC_RETRY_EXC_ERR);
        break;
    case 2:
        tell(dir, pid, "cut other 1 after");
        g_usleep(50000);
        post(&e, NULL, IBV_WR_SEND, 0);
        completes(e.cq, 0, IBV_WC_RETRY_EXC_ERR);
        g_assert_true(is_quiet(e.events->fd));
        break;
    case 3:
        tell(dir, pid, "down other");
        g_usleep(20000);
        tell(dir, pid, "up other");
        echoes(&e, 100);
        break;
    }
    end_close(&e);
    if (how) {
        kill(pid, SIGKILL);
    }
    g_assert_cmpint(waitpid(pid, &status, 0), ==, pid);
    g_assert_true(how ? WIFSIGNALED(status) : WIFEXITED(status) && !WEXITSTATUS(status));
    softnic_do("clear; remove left");
    rescan();
    g_assert_cmpint(softnic_count("objects", NULL), ==, 0);
}

static void test_processes(void)
{
    for (unsigned how = 0; how < 4; how++) {
        processes(how);
    }
}

/* No process at the other end. */
static void test_unreachable(void)
{
    struct rdma_cm_event *event;
    struct end a;

    softnic_do("add left 127.0.0.1");
    call(&a, "127.0.0.1", "127.0.0.9");
    event = event_of(&a, RDMA_CM_EVENT_UNREACHABLE);
    g_assert_cmpint(event->status, ==, -ETIMEDOUT);
    V->cm_ack_event(event);
    end_close(&a);
    softnic_do("remove left");
    rescan();
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "--echo")) {
        return echo_main(g_getenv("PVRDMA_SOFTNIC"));
    }
    if (!g_getenv("PVRDMA_SOFTNIC")) { /* which is read before main() */
        char *dir = g_dir_make_tmp("softnic-XXXXXX", NULL), *rm;
        int status;

        g_assert_nonnull(dir);
        g_setenv("PVRDMA_SOFTNIC", dir, TRUE);
        g_assert_true(g_spawn_sync(NULL, argv, NULL, G_SPAWN_CHILD_INHERITS_STDIN, NULL,
                                   NULL, NULL, NULL, &status, NULL));
        rm = g_strdup_printf("rm -rf '%s'", dir);
        g_spawn_command_line_sync(rm, NULL, NULL, NULL, NULL);
        g_free(rm);
        g_free(dir);
        return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    }
    self = argv[0];
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/softnic/remove", test_remove);
    g_test_add_func("/softnic/fatal", test_fatal);
    g_test_add_func("/softnic/unplug", test_unplug);
    g_test_add_func("/softnic/port", test_port);
    g_test_add_func("/softnic/calls", test_calls);
    g_test_add_func("/softnic/negative", test_negative);
    g_test_add_func("/softnic/cut", test_cut);
    g_test_add_func("/softnic/strike", test_strike);
    g_test_add_func("/softnic/lose", test_lose);
    g_test_add_func("/softnic/flush-twice", test_flush_twice);
    g_test_add_func("/softnic/early", test_early);
    g_test_add_func("/softnic/rnr", test_rnr);
    g_test_add_func("/softnic/hold", test_hold);
    g_test_add_func("/softnic/room", test_room);
    g_test_add_func("/softnic/overrun", test_overrun);
    g_test_add_func("/softnic/processes", test_processes);
    g_test_add_func("/softnic/unreachable", test_unreachable);
    return g_test_run();
}
