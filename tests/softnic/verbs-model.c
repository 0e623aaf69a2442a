/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the daemon relies on of verbs, as a test of a NIC that is connected to itself.  It
 * uses the table alone, so the same assertions hold for softnic and for a real NIC.
 *
 *     verbs-model DEVICE ADDRESS [CASE...]
 *
 * ADDRESS is an IPv4 address of the device's interface, port 7471 of it must be free.
 * Without cases all run; the output is TAP.  A case that needs what the device lacks is
 * skipped and says what: "imm" is found out by a post, "iwarp" are devices whose
 * transport is iWARP, on which a requester does not learn of an error at the responder,
 * "rights" is lacking where a QP whose rights were taken off is written to all the same
 * (siw looks at those of the region alone).
 * Locked memory: `ulimit -l unlimited`, or root.  For rxe:
 *
 *     rdma link add rxe0 type rxe netdev eth0; verbs-model rxe0 $(address of eth0)
 *
 * Where devices differ, a check accepts what is known of each: see the sets of statuses.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "transport/rnic/verbs.h"

#define V        rnic_verbs
#define PORT     7471
#define WAIT_MS  20000
#define QUIET_MS 50
#define BYTES    (256u << 10)
#define DEPTH    64u
/* To rxe 7 means for ever. */
#define RETRIES 6

static const char *device;
static struct sockaddr_in address;
static bool iwarp, imm;
static struct ibv_device_attr attr;

static struct rdma_event_channel *passive_events, *active_events;
static struct rdma_cm_id *listener;
static struct ibv_context *ctx;
static struct ibv_pd *pd;

static jmp_buf out;
static char reason[256];

/* ---- checks ---- */

static void fail(int line, const char *fmt, ...)
    __attribute__((format(printf, 2, 3), noreturn));

static void fail(int line, const char *fmt, ...)
{
    va_list ap;
    int n = snprintf(reason, sizeof(reason), "line %d: ", line);

    va_start(ap, fmt);
    vsnprintf(reason + n, sizeof(reason) - n, fmt, ap);
    va_end(ap);
    longjmp(out, 1);
}

#define CHECK(cond)                                        \
    do {                                                   \
        if (!(cond)) {                                     \
            fail(__LINE__, "%s (errno %d)", #cond, errno); \
        }                                                  \
    } while (0)

#define EQUAL(a, b)                                             \
    do {                                                        \
        long long a_ = (long long)(a), b_ = (long long)(b);     \
                                                                \
        if (a_ != b_) {                                         \
            fail(__LINE__, "%s is %lld, not %lld", #a, a_, b_); \
        }                                                       \
    } while (0)

static void skip(const char *what)
{
    snprintf(reason, sizeof(reason), "%s", what);
    longjmp(out, 2);
}

static int64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000ll + t.tv_nsec / 1000000;
}

static bool readable(int fd, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    return poll(&p, 1, ms) == 1;
}

/* ---- connections ---- */

/* One end, with a buffer that is registered with all rights. */
struct end {
    struct rdma_cm_id *id;
    struct ibv_comp_channel *channel;
    struct ibv_cq *scq, *rcq;
    struct ibv_mr *mr;
    uint8_t *buf;
};

struct pair {
    struct end a, b; /* the one that connects, the one that accepts */
};

static struct rdma_cm_event *event_of(struct rdma_event_channel *channel)
{
    struct rdma_cm_event *e = NULL;

    for (;;) {
        CHECK(readable(channel->fd, WAIT_MS));
        CHECK(V->cm_get_event(channel, &e) == 0);
        if (e->event != RDMA_CM_EVENT_TIMEWAIT_EXIT) {
            return e;
        }
        V->cm_ack_event(e);
    }
}

static void expect(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
    struct rdma_cm_event *e = event_of(channel);

    EQUAL(e->event, type);
    EQUAL(e->status, 0);
    V->cm_ack_event(e);
}

static void end_open(struct end *e)
{
    struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC};

    CHECK(e->id->verbs == ctx);
    CHECK((e->channel = V->create_comp_channel(ctx)));
    CHECK((e->scq = V->create_cq(ctx, 2 * DEPTH, e, e->channel, 0)));
    CHECK((e->rcq = V->create_cq(ctx, 2 * DEPTH, e, e->channel, 0)));
    CHECK((e->buf = calloc(1, BYTES)));
    CHECK((e->mr = V->reg_mr(pd, e->buf, BYTES,
                             IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                 IBV_ACCESS_REMOTE_READ)));
    init.send_cq = e->scq;
    init.recv_cq = e->rcq;
    init.cap.max_send_wr = init.cap.max_recv_wr = DEPTH;
    init.cap.max_send_sge = init.cap.max_recv_sge = 2;
    init.cap.max_inline_data = 32;
    CHECK(V->cm_create_qp(e->id, pd, &init) == 0);
}

static void end_close(struct end *e)
{
    V->cm_destroy_qp(e->id);
    EQUAL(V->destroy_cq(e->scq), 0);
    EQUAL(V->destroy_cq(e->rcq), 0);
    EQUAL(V->destroy_comp_channel(e->channel), 0);
    EQUAL(V->dereg_mr(e->mr), 0);
    free(e->buf);
    EQUAL(V->cm_destroy_id(e->id), 0);
    memset(e, 0, sizeof(*e));
}

/* Up to the request. */
static struct rdma_cm_event *begin(struct pair *p, uint16_t port, const void *data,
                                   uint8_t len, uint8_t rnr_retry)
{
    struct sockaddr_in src = address, dst = address;
    struct rdma_conn_param param = {.private_data = data,
                                    .private_data_len = len,
                                    .responder_resources = 4,
                                    .initiator_depth = 2,
                                    .retry_count = RETRIES,
                                    .rnr_retry_count = rnr_retry};
    uint8_t timeout = 14, tos = 32;
    int err;

    memset(p, 0, sizeof(*p));
    src.sin_port = 0;
    dst.sin_port = htons(port);
    CHECK(V->cm_create_id(active_events, &p->a.id, p, RDMA_PS_TCP) == 0);
    CHECK(V->cm_resolve_addr(p->a.id, (struct sockaddr *)&src, (struct sockaddr *)&dst,
                             WAIT_MS) == 0);
    expect(active_events, RDMA_CM_EVENT_ADDR_RESOLVED);
    CHECK(V->cm_resolve_route(p->a.id, WAIT_MS) == 0);
    expect(active_events, RDMA_CM_EVENT_ROUTE_RESOLVED);
    if (!iwarp) {
        CHECK(V->cm_set_option(p->a.id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT,
                               &timeout, 1) == 0);
    }
    CHECK(V->cm_set_option(p->a.id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 1) == 0);
    end_open(&p->a);
    err = V->cm_connect(p->a.id, &param) ? errno : 0;
    if (port != PORT) {
        /* nothing listens: siw waits for TCP's answer */
        CHECK(err == 0 || (iwarp && err == ECONNREFUSED));
        return err ? NULL : event_of(active_events);
    }
    EQUAL(err, 0);
    return event_of(passive_events);
}

static void connect_rnr(struct pair *p, uint8_t rnr_retry)
{
    struct rdma_cm_event *e = begin(p, PORT, NULL, 0, rnr_retry);
    struct rdma_conn_param param = {
        .responder_resources = 2, .initiator_depth = 4, .rnr_retry_count = rnr_retry};

    EQUAL(e->event, RDMA_CM_EVENT_CONNECT_REQUEST);
    p->b.id = e->id;
    V->cm_ack_event(e);
    end_open(&p->b);
    CHECK(V->cm_accept(p->b.id, &param) == 0);
    expect(active_events, RDMA_CM_EVENT_ESTABLISHED);
    expect(passive_events, RDMA_CM_EVENT_ESTABLISHED);
}

static void connect_pair(struct pair *p)
{
    connect_rnr(p, 7);
}

static void to_error(struct end *e)
{
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_ERR};

    EQUAL(V->modify_qp(e->id->qp, &to, IBV_QP_STATE), 0);
}

static void close_pair(struct pair *p)
{
    bool a_down = false, b_down = false;

    V->cm_disconnect(p->a.id);
    V->cm_disconnect(p->b.id);
    while (!a_down || !b_down) {
        struct rdma_event_channel *c = a_down ? passive_events : active_events;
        struct rdma_cm_event *e = event_of(c);

        EQUAL(e->event, RDMA_CM_EVENT_DISCONNECTED);
        *(c == active_events ? &a_down : &b_down) = true;
        V->cm_ack_event(e);
    }
    end_close(&p->a);
    end_close(&p->b);
}

/* ---- work ---- */

static struct ibv_sge sge_of(const struct end *e, uint32_t at, uint32_t len)
{
    return (struct ibv_sge){(uintptr_t)e->buf + at, len, e->mr->lkey};
}

static int try_post(struct end *e, struct ibv_send_wr wr, struct ibv_sge *sge, int n)
{
    struct ibv_send_wr *bad = NULL;

    wr.sg_list = sge;
    wr.num_sge = n;
    return V->post_send(e->id->qp, &wr, &bad);
}

/* From offset @at of @e to the same of @to, or back for a READ. */
static void post(struct end *e, const struct end *to, enum ibv_wr_opcode op,
                 uint64_t wr_id, unsigned flags, uint32_t at, uint32_t len)
{
    struct ibv_send_wr wr = {.wr_id = wr_id, .opcode = op, .send_flags = flags};
    struct ibv_sge sge = sge_of(e, at, len);

    wr.imm_data = htonl((uint32_t)wr_id);
    wr.wr.rdma.remote_addr = (uintptr_t)to->buf + at;
    wr.wr.rdma.rkey = to->mr->rkey;
    EQUAL(try_post(e, wr, &sge, 1), 0);
}

static void post_recv(struct end *e, uint64_t wr_id, uint32_t at, uint32_t len)
{
    struct ibv_sge sge = sge_of(e, at, len);
    struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1}, *bad;

    EQUAL(V->post_recv(e->id->qp, &wr, &bad), 0);
}

/* The next completion, or false after so long without one. */
static bool next(struct ibv_cq *cq, struct ibv_wc *wc, int ms)
{
    int64_t until = now_ms() + ms;

    for (;;) {
        int n = V->poll_cq(cq, 1, wc);

        CHECK(n >= 0);
        if (n || now_ms() > until) {
            return n;
        }
        usleep(100);
    }
}

static struct ibv_wc completion(struct ibv_cq *cq)
{
    struct ibv_wc wc;

    CHECK(next(cq, &wc, WAIT_MS));
    return wc;
}

static void succeeds(struct ibv_cq *cq, uint64_t wr_id)
{
    struct ibv_wc wc = completion(cq);

    EQUAL(wc.status, IBV_WC_SUCCESS);
    EQUAL(wc.wr_id, wr_id);
}

/* A status that is one of those, ended by -1. */
static bool is_one(int status, const int *set)
{
    for (; *set >= 0; set++) {
        if (*set == status) {
            return true;
        }
    }
    return false;
}

#define ONE_OF(status, ...)                                                            \
    do {                                                                               \
        const int set_[] = {__VA_ARGS__, -1};                                          \
                                                                                       \
        if (!is_one(status, set_)) {                                                   \
            fail(__LINE__, "%s is %d, none of " #__VA_ARGS__, #status, (int)(status)); \
        }                                                                              \
    } while (0)

static void fill(struct end *e, uint32_t at, uint32_t len, uint32_t seed)
{
    for (uint32_t i = 0; i < len; i++) {
        e->buf[at + i] = (uint8_t)(seed * 31 + i * 7 + (i >> 8) + 1);
    }
}

static bool is_filled(const struct end *e, uint32_t at, uint32_t len, uint32_t seed)
{
    for (uint32_t i = 0; i < len; i++) {
        if (e->buf[at + i] != (uint8_t)(seed * 31 + i * 7 + (i >> 8) + 1)) {
            return false;
        }
    }
    return true;
}

static bool is_zero(const struct end *e, uint32_t at, uint32_t len)
{
    for (uint32_t i = 0; i < len; i++) {
        if (e->buf[at + i]) {
            return false;
        }
    }
    return true;
}

/* ---- cases ---- */

static void case_device(void)
{
    struct ibv_device **list;
    struct ibv_port_attr port;
    struct ibv_gid_entry gids[64];
    bool found = false;
    ssize_t n;

    CHECK((list = V->get_device_list(NULL)));
    for (struct ibv_device **d = list; *d; d++) {
        struct ibv_context *own;

        if (strcmp(V->get_device_name(*d), device)) {
            continue;
        }
        found = true;
        CHECK((own = V->open_device(*d)));
        CHECK(own != ctx); /* the connection manager's is another */
        EQUAL(V->query_device(own, &attr), 0);
        CHECK(attr.node_guid == V->get_device_guid(*d) || attr.node_guid);
        EQUAL(V->query_port(own, 1, &port), 0);
        EQUAL(port.state, IBV_PORT_ACTIVE);
        CHECK((n = V->query_gid_table(own, gids, 64, 0)) >= 0);
        CHECK(fcntl(own->async_fd, F_SETFL, O_NONBLOCK) == 0);
        CHECK(V->get_async_event(own, &(struct ibv_async_event){.event_type = 0}) != 0);
        EQUAL(V->close_device(own), 0);
    }
    V->free_device_list(list);
    CHECK(found);
    if (!iwarp) {
        found = false;
        for (ssize_t i = 0; i < n; i++) {
            found = found || (gids[i].gid_type == IBV_GID_TYPE_ROCE_V2 &&
                              !memcmp(gids[i].gid.raw + 12, &address.sin_addr, 4));
        }
        CHECK(found);
    }
}

static void case_memory(void)
{
    uint32_t keys[500];
    static uint8_t page[8192];

    CHECK(!V->reg_mr(pd, page, 4096, IBV_ACCESS_REMOTE_WRITE)); /* needs LOCAL_WRITE */
    for (unsigned i = 0; i < 500; i++) {
        struct ibv_mr *mr = V->reg_mr(pd, page + i, 4096, IBV_ACCESS_LOCAL_WRITE);

        CHECK(mr);
        keys[i] = mr->lkey;
        EQUAL(mr->length, 4096);
        EQUAL(V->dereg_mr(mr), 0);
        for (unsigned k = 0; k < i; k++) {
            CHECK(keys[k] != keys[i]);
        }
    }
}

static void case_pd(void)
{
    struct ibv_device **list = V->get_device_list(NULL);
    struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC};
    struct ibv_context *own = NULL;
    struct ibv_pd *other;
    struct rdma_cm_id *id;
    struct sockaddr_in src = address;

    for (struct ibv_device **d = list; *d; d++) {
        if (!strcmp(V->get_device_name(*d), device)) {
            own = V->open_device(*d);
        }
    }
    V->free_device_list(list);
    CHECK(own && (other = V->alloc_pd(own)));
    src.sin_port = 0;
    CHECK(V->cm_create_id(active_events, &id, NULL, RDMA_PS_TCP) == 0);
    CHECK(V->cm_bind_addr(id, (struct sockaddr *)&src) == 0);
    CHECK(id->verbs == ctx);
    init.cap.max_send_wr = init.cap.max_recv_wr = 1;
    init.cap.max_send_sge = init.cap.max_recv_sge = 1;
    CHECK((init.send_cq = init.recv_cq = V->create_cq(ctx, 2, NULL, NULL, 0)));
    CHECK(V->cm_create_qp(id, other, &init) != 0); /* of another context */
    EQUAL(V->destroy_cq(init.send_cq), 0);
    EQUAL(V->cm_destroy_id(id), 0);
    EQUAL(V->dealloc_pd(other), 0);
    EQUAL(V->close_device(own), 0);
}

static void case_connect(void)
{
    uint8_t words[56];
    struct rdma_conn_param param = {.private_data = "welcome",
                                    .private_data_len = 7,
                                    .responder_resources = 2,
                                    .initiator_depth = 4,
                                    .rnr_retry_count = 7};
    struct ibv_qp_attr qa;
    struct ibv_qp_init_attr init;
    struct rdma_cm_event *e;
    struct pair p;

    for (unsigned i = 0; i < sizeof(words); i++) {
        words[i] = (uint8_t)(i + 1);
    }
    e = begin(&p, PORT, words, sizeof(words), 7);
    EQUAL(e->event, RDMA_CM_EVENT_CONNECT_REQUEST);
    CHECK(e->listen_id == listener && e->id != listener);
    CHECK(e->param.conn.private_data_len >= sizeof(words));
    CHECK(!memcmp(e->param.conn.private_data, words, sizeof(words)));
    if (!iwarp) {
        EQUAL(e->param.conn.responder_resources, 2); /* what the peer begins */
        EQUAL(e->param.conn.initiator_depth, 4);
    }
    CHECK(e->id->channel == passive_events && e->id->verbs == ctx);
    p.b.id = e->id;
    V->cm_ack_event(e);
    end_open(&p.b);
    CHECK(V->cm_accept(p.b.id, &param) == 0);
    e = event_of(active_events);
    EQUAL(e->event, RDMA_CM_EVENT_ESTABLISHED);
    CHECK(e->param.conn.private_data_len >= 7);
    CHECK(!memcmp(e->param.conn.private_data, "welcome", 7));
    V->cm_ack_event(e);
    expect(passive_events, RDMA_CM_EVENT_ESTABLISHED);
    EQUAL(V->query_qp(p.a.id->qp, &qa,
                      IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_TIMEOUT, &init),
          0);
    if (!iwarp) { /* siw of 6.1 reports no state */
        EQUAL(qa.qp_state, IBV_QPS_RTS);
        CHECK(qa.qp_access_flags & IBV_ACCESS_REMOTE_WRITE);
        EQUAL(qa.timeout, 14);
    }
    close_pair(&p);
}

static void case_reject(void)
{
    struct rdma_cm_event *e;
    struct pair p;

    e = begin(&p, PORT, "x", 1, 7);
    EQUAL(e->event, RDMA_CM_EVENT_CONNECT_REQUEST);
    p.b.id = e->id;
    V->cm_ack_event(e);
    CHECK(V->cm_reject(p.b.id, "no", 2) == 0);
    e = event_of(active_events);
    EQUAL(e->event, RDMA_CM_EVENT_REJECTED);
    CHECK(e->status);
    CHECK(e->param.conn.private_data_len >= 2);
    CHECK(!memcmp(e->param.conn.private_data, "no", 2));
    V->cm_ack_event(e);
    end_close(&p.a);
    EQUAL(V->cm_destroy_id(p.b.id), 0);
}

static void case_no_port(void)
{
    struct pair p;
    struct rdma_cm_event *e = begin(&p, PORT + 1, NULL, 0, 7);

    if (e) {
        CHECK(e->event == RDMA_CM_EVENT_REJECTED ||
              e->event == RDMA_CM_EVENT_UNREACHABLE);
        V->cm_ack_event(e);
    }
    end_close(&p.a);
}

static void case_disconnect(void)
{
    struct ibv_wc wc;
    struct pair p;

    connect_pair(&p);
    for (unsigned i = 0; i < 4; i++) {
        post_recv(&p.a, i, 0, 64);
    }
    CHECK(V->cm_disconnect(p.a.id) == 0);
    for (unsigned i = 0; i < 4; i++) {
        wc = completion(p.a.rcq);
        EQUAL(wc.status, IBV_WC_WR_FLUSH_ERR);
    }
    expect(passive_events, RDMA_CM_EVENT_DISCONNECTED);
    V->cm_disconnect(p.b.id);
    expect(active_events, RDMA_CM_EVENT_DISCONNECTED);
    end_close(&p.a);
    end_close(&p.b);
}

static void case_gone(void)
{
    struct pair p;

    connect_pair(&p);
    end_close(&p.a); /* without a word */
    expect(passive_events, RDMA_CM_EVENT_DISCONNECTED);
    end_close(&p.b);
}

static void case_send(void)
{
    static const uint32_t sizes[] = {0, 1, 31, 4096, 4097, 100000};
    struct pair p;

    connect_pair(&p);
    for (unsigned i = 0; i < 6; i++) {
        post_recv(&p.b, 100 + i, 0, BYTES);
    }
    for (unsigned i = 0; i < 6; i++) {
        struct ibv_wc wc;

        fill(&p.a, 0, sizes[i], i);
        post(&p.a, &p.b, IBV_WR_SEND, i, IBV_SEND_SIGNALED, 0, sizes[i]);
        wc = completion(p.b.rcq);
        EQUAL(wc.status, IBV_WC_SUCCESS);
        EQUAL(wc.opcode, IBV_WC_RECV);
        EQUAL(wc.wr_id, 100 + i);
        EQUAL(wc.byte_len, sizes[i]);
        EQUAL(wc.wc_flags & IBV_WC_WITH_IMM, 0);
        EQUAL(wc.qp_num, p.b.id->qp->qp_num);
        CHECK(is_filled(&p.b, 0, sizes[i], i));
        succeeds(p.a.scq, i);
    }
    /* both ways at once, in order */
    for (unsigned i = 0; i < DEPTH / 2; i++) {
        post_recv(&p.a, i, 128 * 1024 + i * 64, 64);
        post_recv(&p.b, i, 128 * 1024 + i * 64, 64);
    }
    for (unsigned i = 0; i < DEPTH / 2; i++) {
        fill(&p.a, i * 64, 64, i);
        post(&p.a, &p.b, IBV_WR_SEND, i, IBV_SEND_SIGNALED, i * 64, 64);
        post(&p.b, &p.a, IBV_WR_SEND, i, IBV_SEND_SIGNALED, i * 64, 64);
    }
    for (unsigned i = 0; i < DEPTH / 2; i++) {
        succeeds(p.a.rcq, i);
        succeeds(p.b.rcq, i);
        succeeds(p.a.scq, i);
        succeeds(p.b.scq, i);
        CHECK(is_filled(&p.b, 128 * 1024 + i * 64, 64, i));
    }
    close_pair(&p);
}

static void case_gather(void)
{
    struct ibv_send_wr wr = {
        .wr_id = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
    struct ibv_sge sge[2], to[2];
    struct ibv_recv_wr recv = {.wr_id = 2, .sg_list = to, .num_sge = 2}, *bad;
    struct pair p;

    connect_pair(&p);
    fill(&p.a, 0, 6000, 9);
    sge[0] = sge_of(&p.a, 0, 5000);
    sge[1] = sge_of(&p.a, 5000, 1000);
    to[0] = sge_of(&p.b, 0, 10);
    to[1] = sge_of(&p.b, 10, 8000);
    EQUAL(V->post_recv(p.b.id->qp, &recv, &bad), 0);
    EQUAL(try_post(&p.a, wr, sge, 2), 0);
    EQUAL(completion(p.b.rcq).byte_len, 6000);
    CHECK(is_filled(&p.b, 0, 6000, 9));
    succeeds(p.a.scq, 1);
    /* inline: the buffer is free when the post returns, and needs no key */
    post_recv(&p.b, 3, 0, 64);
    fill(&p.a, 0, 32, 5);
    sge[0] = sge_of(&p.a, 0, 32);
    sge[0].lkey = 0x7fffff;
    wr.send_flags |= IBV_SEND_INLINE;
    EQUAL(try_post(&p.a, wr, sge, 1), 0);
    memset(p.a.buf, 0xee, 32);
    succeeds(p.b.rcq, 3);
    CHECK(is_filled(&p.b, 0, 32, 5));
    succeeds(p.a.scq, 1);
    close_pair(&p);
}

static void case_imm(void)
{
    struct ibv_wc wc;
    struct pair p;

    if (!imm) {
        skip("imm");
    }
    connect_pair(&p);
    for (unsigned i = 0; i < 2; i++) {
        post_recv(&p.b, i, BYTES / 2, 64);
    }
    fill(&p.a, 0, 64, 1);
    post(&p.a, &p.b, IBV_WR_SEND_WITH_IMM, 10, IBV_SEND_SIGNALED, 0, 64);
    fill(&p.a, 4096, 20000, 2);
    post(&p.a, &p.b, IBV_WR_RDMA_WRITE_WITH_IMM, 11, IBV_SEND_SIGNALED, 4096, 20000);
    wc = completion(p.b.rcq);
    EQUAL(wc.status, IBV_WC_SUCCESS);
    EQUAL(wc.opcode, IBV_WC_RECV);
    EQUAL(wc.wc_flags & IBV_WC_WITH_IMM, IBV_WC_WITH_IMM);
    EQUAL(ntohl(wc.imm_data), 10);
    CHECK(is_filled(&p.b, BYTES / 2, 64, 1));
    wc = completion(p.b.rcq);
    EQUAL(wc.status, IBV_WC_SUCCESS);
    EQUAL(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    EQUAL(wc.wr_id, 1);
    EQUAL(wc.byte_len, 20000);
    EQUAL(ntohl(wc.imm_data), 11);
    CHECK(is_filled(&p.b, 4096, 20000, 2));
    succeeds(p.a.scq, 10);
    succeeds(p.a.scq, 11);
    close_pair(&p);
}

static void case_write(void)
{
    struct pair p;

    connect_pair(&p);
    fill(&p.a, 0, BYTES, 3);
    post(&p.a, &p.b, IBV_WR_RDMA_WRITE, 1, IBV_SEND_SIGNALED, 0, BYTES);
    post_recv(&p.b, 0, 0, 0);
    post(&p.a, &p.b, IBV_WR_SEND, 2, IBV_SEND_SIGNALED, 0, 0);
    succeeds(p.b.rcq, 0); /* so the WRITE before it is there */
    CHECK(is_filled(&p.b, 0, BYTES, 3));
    succeeds(p.a.scq, 1);
    succeeds(p.a.scq, 2);
    close_pair(&p);
}

static void case_read(void)
{
    struct pair p;

    connect_pair(&p);
    fill(&p.b, 0, BYTES, 4);
    post(&p.a, &p.b, IBV_WR_RDMA_READ, 1, IBV_SEND_SIGNALED, 0, BYTES);
    succeeds(p.a.scq, 1);
    CHECK(is_filled(&p.a, 0, BYTES, 4));
    /* more than may be on their way (2) */
    memset(p.a.buf, 0, BYTES);
    for (unsigned i = 0; i < 32; i++) {
        post(&p.a, &p.b, IBV_WR_RDMA_READ, i, IBV_SEND_SIGNALED, i * 8192, 8192);
    }
    for (unsigned i = 0; i < 32; i++) {
        succeeds(p.a.scq, i);
    }
    CHECK(is_filled(&p.a, 0, BYTES, 4));
    close_pair(&p);
}

static void case_unsignalled(void)
{
    struct ibv_wc wc;
    struct pair p;

    connect_pair(&p);
    for (unsigned round = 0; round < 10; round++) { /* more than the queue has room for */
        for (unsigned i = 0; i < 15; i++) {
            post(&p.a, &p.b, IBV_WR_RDMA_WRITE, i, i == 14 ? IBV_SEND_SIGNALED : 0, 0,
                 64);
        }
        succeeds(p.a.scq, 14);
    }
    CHECK(!next(p.a.scq, &wc, QUIET_MS));
    close_pair(&p);
}

/* One that fails completes though it is not signalled, and so does all behind it. */
static void case_unsignalled_fails(void)
{
    struct ibv_send_wr wr = {.wr_id = 1, .opcode = IBV_WR_RDMA_WRITE};
    struct ibv_sge sge;
    struct ibv_wc wc;
    struct pair p;

    if (iwarp) {
        skip("iwarp");
    }
    connect_pair(&p);
    post(&p.a, &p.b, IBV_WR_RDMA_WRITE, 0, 0, 0, 64);
    sge = sge_of(&p.a, 0, 64);
    wr.wr.rdma.remote_addr = (uintptr_t)p.b.buf + BYTES - 32; /* half of it beyond */
    wr.wr.rdma.rkey = p.b.mr->rkey;
    EQUAL(try_post(&p.a, wr, &sge, 1), 0);
    wc = completion(p.a.scq);
    EQUAL(wc.wr_id, 1);
    EQUAL(wc.status, IBV_WC_REM_ACCESS_ERR);
    post(&p.a, &p.b, IBV_WR_SEND, 2, 0, 0, 64);
    post(&p.a, &p.b, IBV_WR_RDMA_WRITE, 3, 0, 0, 64);
    wc = completion(p.a.scq);
    EQUAL(wc.wr_id, 2);
    EQUAL(wc.status, IBV_WC_WR_FLUSH_ERR);
    wc = completion(p.a.scq);
    EQUAL(wc.wr_id, 3);
    EQUAL(wc.status, IBV_WC_WR_FLUSH_ERR);
    CHECK(is_zero(&p.b, BYTES - 32, 32));
    close_pair(&p);
}

/* A request that the responder refuses: its statuses at the requester. */
static void refused(struct pair *p, enum ibv_wr_opcode op, uint64_t addr, uint32_t rkey,
                    uint32_t len, const int *statuses)
{
    struct ibv_send_wr wr = {.wr_id = 7, .opcode = op, .send_flags = IBV_SEND_SIGNALED};
    struct ibv_sge sge = sge_of(&p->a, 0, len);
    struct ibv_wc wc;

    wr.wr.rdma.remote_addr = addr;
    wr.wr.rdma.rkey = rkey;
    EQUAL(try_post(&p->a, wr, &sge, 1), 0);
    if (iwarp && op != IBV_WR_RDMA_READ) {
        /* It may have succeeded already; the connection ends. */
        struct rdma_cm_event *e = event_of(active_events);

        EQUAL(e->event, RDMA_CM_EVENT_DISCONNECTED);
        V->cm_ack_event(e);
    } else {
        wc = completion(p->a.scq);
        EQUAL(wc.wr_id, 7);
        if (!is_one(wc.status, statuses)) {
            fail(__LINE__, "status %d", wc.status);
        }
    }
}

static void drain_events(int ms)
{
    while (readable(active_events->fd, ms) || readable(passive_events->fd, 0)) {
        struct rdma_event_channel *c =
            readable(active_events->fd, 0) ? active_events : passive_events;
        struct rdma_cm_event *e;

        CHECK(V->cm_get_event(c, &e) == 0);
        V->cm_ack_event(e);
    }
}

/* After an error; either side may or may not learn of it by itself. */
static void abandon(struct pair *p)
{
    to_error(&p->a);
    to_error(&p->b);
    end_close(&p->a);
    end_close(&p->b);
    drain_events(QUIET_MS);
}

static void case_bounds(void)
{
    const int access[] = {IBV_WC_REM_ACCESS_ERR, iwarp ? IBV_WC_WR_FLUSH_ERR : -1, -1};
    /* siw does not look at the right to read. */
    const int to_read[] = {IBV_WC_REM_ACCESS_ERR, iwarp ? IBV_WC_WR_FLUSH_ERR : -1,
                           IBV_WC_SUCCESS, -1};
    struct ibv_mr *mr;
    uint64_t addr;
    struct pair p;

    for (unsigned i = 0; i < 5; i++) {
        connect_pair(&p);
        addr = (uintptr_t)p.b.buf;
        switch (i) {
        case 0:
            refused(&p, IBV_WR_RDMA_WRITE, addr + BYTES - 32, p.b.mr->rkey, 64, access);
            break;
        case 1:
            refused(&p, IBV_WR_RDMA_READ, addr + BYTES - 32, p.b.mr->rkey, 64, access);
            break;
        case 2:
            refused(&p, IBV_WR_RDMA_WRITE, addr, p.b.mr->rkey + 0x100, 64, access);
            break;
        default: /* without the right */
            CHECK((mr = V->reg_mr(pd, p.b.buf, BYTES, IBV_ACCESS_LOCAL_WRITE)));
            refused(&p, i == 3 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, addr, mr->rkey, 64,
                    i == 3 ? access : to_read);
            EQUAL(V->dereg_mr(mr), 0);
        }
        CHECK(is_zero(&p.b, 0, BYTES));
        abandon(&p);
    }
}

static void case_dereg(void)
{
    const int access[] = {IBV_WC_REM_ACCESS_ERR, -1};
    struct ibv_mr *mr;
    uint32_t rkey;
    struct pair p;

    connect_pair(&p);
    CHECK((mr = V->reg_mr(pd, p.b.buf, 4096,
                          IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
    rkey = mr->rkey;
    EQUAL(V->dereg_mr(mr), 0);
    fill(&p.a, 0, 64, 1);
    refused(&p, IBV_WR_RDMA_WRITE, (uintptr_t)p.b.buf, rkey, 64, access);
    CHECK(is_zero(&p.b, 0, 64));
    abandon(&p);
}

/*
 * Pages of a file in another order, registered, unmapped, and other memory at their
 * addresses: a WRITE still goes to the file.
 */
static void case_stitched(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int fd = memfd_create("pages", MFD_CLOEXEC);
    struct ibv_send_wr wr = {.wr_id = 1, .opcode = IBV_WR_RDMA_WRITE};
    struct ibv_mr *mr;
    struct ibv_sge sge;
    uint8_t *at, *file;
    struct pair p;

    CHECK(fd >= 0 && ftruncate(fd, 3 * (off_t)page) == 0);
    file = mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    at = mmap(NULL, 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(file != MAP_FAILED && at != MAP_FAILED);
    CHECK(mmap(at, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
               2 * (off_t)page) == at);
    CHECK(mmap(at + page, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
          at + page);
    CHECK((mr = V->reg_mr(pd, at, 2 * page,
                          IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
    CHECK(mmap(at, 2 * page, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);

    connect_pair(&p);
    fill(&p.a, 0, 2 * (uint32_t)page, 1);
    sge = sge_of(&p.a, 0, 2 * (uint32_t)page);
    wr.wr.rdma.remote_addr = (uintptr_t)at;
    wr.wr.rdma.rkey = mr->rkey;
    EQUAL(try_post(&p.a, wr, &sge, 1), 0);
    post_recv(&p.b, 2, 0, 0);
    post(&p.a, &p.b, IBV_WR_SEND, 2, IBV_SEND_SIGNALED, 0, 0);
    succeeds(p.b.rcq, 2);
    succeeds(p.a.scq, 2);
    CHECK(!memcmp(file + 2 * page, p.a.buf, page));
    CHECK(!memcmp(file, p.a.buf + page, page));
    for (size_t i = 0; i < page; i++) {
        CHECK(!file[page + i] && !at[i] && !at[page + i]);
    }
    EQUAL(V->dereg_mr(mr), 0);
    munmap(at, 2 * page);
    munmap(file, 3 * page);
    close(fd);
    close_pair(&p);
}

static void case_rights_off(void)
{
    const int set[] = {IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_ACCESS_ERR, -1};
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_RTS, .qp_access_flags = 0};
    struct ibv_wc wc;
    struct pair p;

    connect_pair(&p);
    fill(&p.a, 0, 64, 1);
    post_recv(&p.b, 0, 4096, 64);
    post(&p.a, &p.b, IBV_WR_RDMA_WRITE, 1, IBV_SEND_SIGNALED, 0, 64);
    post(&p.a, &p.b, IBV_WR_SEND, 0, IBV_SEND_SIGNALED, 0, 64);
    succeeds(p.b.rcq, 0); /* an iWARP requester may be told of success too early */
    succeeds(p.a.scq, 1);
    succeeds(p.a.scq, 0);
    EQUAL(V->modify_qp(p.b.id->qp, &to, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS), 0);
    memset(p.b.buf, 0, 64);
    post_recv(&p.b, 1, 4096, 64);
    post(&p.a, &p.b, IBV_WR_SEND, 2, IBV_SEND_SIGNALED, 0, 64);
    succeeds(p.b.rcq, 1);
    succeeds(p.a.scq, 2);
    if (iwarp) {
        post_recv(&p.b, 3, 4096, 64);
        post(&p.a, &p.b, IBV_WR_RDMA_WRITE, 3, 0, 0, 64);
        post(&p.a, &p.b, IBV_WR_SEND, 3, 0, 0, 64);
        wc = completion(p.b.rcq);
        if (wc.status == IBV_WC_SUCCESS) {
            CHECK(is_filled(&p.b, 0, 64, 1));
            close_pair(&p);
            skip("rights");
        }
        EQUAL(wc.status, IBV_WC_WR_FLUSH_ERR);
    } else {
        refused(&p, IBV_WR_RDMA_WRITE, (uintptr_t)p.b.buf, p.b.mr->rkey, 64, set);
    }
    CHECK(is_zero(&p.b, 0, 64));
    abandon(&p);
}

static void case_local_key(void)
{
    struct ibv_send_wr wr = {.wr_id = 1, .opcode = IBV_WR_SEND};
    struct ibv_sge sge;
    struct ibv_wc wc;
    struct pair p;

    connect_pair(&p);
    post_recv(&p.b, 1, 0, 64);
    sge = sge_of(&p.a, 0, 64);
    sge.lkey ^= 0x5500;
    EQUAL(try_post(&p.a, wr, &sge, 1), 0);
    wc = completion(p.a.scq);
    EQUAL(wc.wr_id, 1);
    ONE_OF(wc.status, IBV_WC_LOC_PROT_ERR, IBV_WC_LOC_QP_OP_ERR, IBV_WC_WR_FLUSH_ERR);
    abandon(&p);
}

static void case_too_long(void)
{
    struct ibv_wc wc;
    struct pair p;

    connect_pair(&p);
    post_recv(&p.b, 1, 0, 63);
    fill(&p.a, 0, 64, 1);
    post(&p.a, &p.b, IBV_WR_SEND, 2, IBV_SEND_SIGNALED, 0, 64);
    wc = completion(p.b.rcq);
    EQUAL(wc.wr_id, 1);
    ONE_OF(wc.status, IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_QP_OP_ERR);
    if (!iwarp) {
        wc = completion(p.a.scq);
        EQUAL(wc.wr_id, 2);
        ONE_OF(wc.status, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_OP_ERR);
    }
    CHECK(is_zero(&p.b, 63, 1));
    abandon(&p);
}

static void case_rnr(void)
{
    struct ibv_wc wc;
    struct pair p;

    if (iwarp) {
        skip("iwarp");
    }
    connect_rnr(&p, 0); /* not once more */
    post(&p.a, &p.b, IBV_WR_SEND, 1, IBV_SEND_SIGNALED, 0, 64);
    wc = completion(p.a.scq);
    EQUAL(wc.wr_id, 1);
    EQUAL(wc.status, IBV_WC_RNR_RETRY_EXC_ERR);
    abandon(&p);

    connect_rnr(&p, 7); /* for ever */
    fill(&p.a, 0, 64, 1);
    post(&p.a, &p.b, IBV_WR_SEND, 1, IBV_SEND_SIGNALED, 0, 64);
    CHECK(!next(p.a.scq, &wc, QUIET_MS));
    post_recv(&p.b, 1, 0, 64);
    succeeds(p.b.rcq, 1);
    succeeds(p.a.scq, 1);
    CHECK(is_filled(&p.b, 0, 64, 1));
    close_pair(&p);
}

/* A work request that is flushed may be so twice. */
static bool is_again(const struct ibv_wc *wc, unsigned n)
{
    return n && wc->wr_id == n - 1 && wc->status == IBV_WC_WR_FLUSH_ERR;
}

/* In state ERR all that was posted comes back, in order. */
static void drained(struct ibv_cq *cq, unsigned n)
{
    struct ibv_wc wc;

    for (unsigned i = 0; i < n; i++) {
        do {
            wc = completion(cq);
        } while (is_again(&wc, i));
        EQUAL(wc.wr_id, i);
        EQUAL(wc.status, IBV_WC_WR_FLUSH_ERR);
    }
    while (next(cq, &wc, QUIET_MS)) {
        CHECK(is_again(&wc, n));
    }
}

static void case_flush(void)
{
    struct pair p;

    connect_pair(&p);
    for (unsigned i = 0; i < DEPTH; i++) {
        post_recv(&p.b, i, 0, 64);
    }
    to_error(&p.b);
    drained(p.b.rcq, DEPTH);
    to_error(&p.a);
    if (!iwarp) { /* in siw such sends stay for ever */
        for (unsigned i = 0; i < 8; i++) {
            post(&p.a, &p.b, i % 2 ? IBV_WR_SEND : IBV_WR_RDMA_WRITE, i, 0, 0, 64);
        }
        drained(p.a.scq, 8);
    }
    abandon(&p);
}

/* A requester whose peer's QP is in ERR gives up; it does not succeed. */
static void case_peer_in_error(void)
{
    struct ibv_wc wc;
    struct pair p;

    if (iwarp) {
        skip("iwarp");
    }
    connect_pair(&p);
    post_recv(&p.b, 0, 0, 64);
    to_error(&p.b);
    EQUAL(completion(p.b.rcq).status, IBV_WC_WR_FLUSH_ERR);
    post(&p.a, &p.b, IBV_WR_SEND, 1, IBV_SEND_SIGNALED, 0, 64);
    wc = completion(p.a.scq);
    EQUAL(wc.wr_id, 1);
    ONE_OF(wc.status, IBV_WC_RETRY_EXC_ERR, IBV_WC_WR_FLUSH_ERR);
    abandon(&p);
}

static bool cq_event(struct end *e, struct ibv_cq *cq, int ms)
{
    struct ibv_cq *got;
    void *opaque;

    if (!readable(e->channel->fd, ms)) {
        return false;
    }
    CHECK(V->get_cq_event(e->channel, &got, &opaque) == 0);
    CHECK(got == cq && opaque == e);
    V->ack_cq_events(got, 1);
    return true;
}

static void case_arm(void)
{
    struct ibv_cq *got;
    void *opaque;
    struct pair p;

    connect_pair(&p);
    CHECK(fcntl(p.b.channel->fd, F_SETFL, O_NONBLOCK) == 0);
    CHECK(V->get_cq_event(p.b.channel, &got, &opaque) != 0);
    EQUAL(errno, EAGAIN);
    for (unsigned i = 0; i < 16; i++) {
        post_recv(&p.b, i, 0, 64);
    }
    /* not armed: no event */
    post(&p.a, &p.b, IBV_WR_SEND, 0, IBV_SEND_SIGNALED, 0, 64);
    succeeds(p.a.scq, 0);
    succeeds(p.b.rcq, 0);
    CHECK(!cq_event(&p.b, p.b.rcq, 0));
    /* armed: one event for two completions */
    EQUAL(V->req_notify_cq(p.b.rcq, 0), 0);
    CHECK(!cq_event(&p.b, p.b.rcq, 0));
    for (unsigned i = 1; i < 3; i++) {
        post(&p.a, &p.b, IBV_WR_SEND, i, IBV_SEND_SIGNALED, 0, 64);
        succeeds(p.a.scq, i);
    }
    CHECK(cq_event(&p.b, p.b.rcq, WAIT_MS));
    succeeds(p.b.rcq, 1);
    succeeds(p.b.rcq, 2);
    CHECK(!cq_event(&p.b, p.b.rcq, QUIET_MS));
    /* solicited only */
    EQUAL(V->req_notify_cq(p.b.rcq, 1), 0);
    post(&p.a, &p.b, IBV_WR_SEND, 3, IBV_SEND_SIGNALED, 0, 64);
    succeeds(p.b.rcq, 3);
    CHECK(!cq_event(&p.b, p.b.rcq, QUIET_MS));
    post(&p.a, &p.b, IBV_WR_SEND, 4, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED, 0, 64);
    /* to siw no receive is solicited */
    CHECK(cq_event(&p.b, p.b.rcq, iwarp ? QUIET_MS : WAIT_MS) || iwarp);
    succeeds(p.b.rcq, 4);
    close_pair(&p);
}

struct pump {
    struct pair *p;
    unsigned n;
    _Atomic unsigned seen; /* by the receiver, which has DEPTH receives ahead of it */
};

static void *pump_main(void *arg)
{
    struct pump *pump = arg;
    struct ibv_wc wc;

    for (unsigned i = 0; i < pump->n; i++) {
        struct ibv_send_wr wr = {
            .wr_id = i, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
        struct ibv_sge sge = sge_of(&pump->p->a, 0, 8);

        while (i - pump->seen >= DEPTH) {
            sched_yield();
        }
        if (try_post(&pump->p->a, wr, &sge, 1)) {
            break;
        }
        while (V->poll_cq(pump->p->a.scq, 1, &wc) == 0) {
        }
    }
    return NULL;
}

/* Arm, poll once more, sleep: nothing is missed. */
static void case_arm_race(void)
{
    struct pump pump = {.n = 2000};
    pthread_t thread;
    struct ibv_wc wc;
    struct pair p;

    connect_pair(&p);
    pump.p = &p;
    for (unsigned i = 0; i < DEPTH; i++) {
        post_recv(&p.b, i, 0, 64);
    }
    EQUAL(pthread_create(&thread, NULL, pump_main, &pump), 0);
    while (pump.seen < pump.n) {
        EQUAL(V->req_notify_cq(p.b.rcq, 0), 0);
        while (next(p.b.rcq, &wc, -1)) {
            EQUAL(wc.status, IBV_WC_SUCCESS);
            post_recv(&p.b, 0, 0, 64);
            pump.seen++;
        }
        if (pump.seen < pump.n && !cq_event(&p.b, p.b.rcq, WAIT_MS)) {
            fail(__LINE__, "no event after %u of %u", pump.seen, pump.n);
        }
    }
    pthread_join(thread, NULL);
    close_pair(&p);
}

static void *cut_main(void *arg)
{
    struct pump *pump = arg;
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_ERR};

    usleep(pump->n);
    V->modify_qp(pump->p->b.id->qp, &to, IBV_QP_STATE);
    return NULL;
}

/*
 * The responder goes to ERR in the middle of WRITEs with immediate: what is counted by a
 * receive is whole, what is not is not, and what the requester heard of is counted.
 */
static void case_cut(void)
{
    enum { N = 48, SIZE = 4096 };
    unsigned seed = 1, cuts = 0;

    if (!imm) {
        skip("imm");
    }
    for (unsigned round = 0; round < 20; round++) {
        unsigned counted = 0, back = 0, heard = 0, ended = 0;
        struct ibv_wc wc;
        struct pair p;
        struct pump pump = {&p, (unsigned)rand_r(&seed) % (300 * (round % 4 + 1)), 0};
        pthread_t thread;

        connect_pair(&p);
        for (unsigned i = 0; i < N; i++) {
            post_recv(&p.b, i, 0, 0);
        }
        EQUAL(pthread_create(&thread, NULL, cut_main, &pump), 0);
        for (unsigned i = 0; i < N; i++) {
            fill(&p.a, i * SIZE, SIZE, i);
            post(&p.a, &p.b, IBV_WR_RDMA_WRITE_WITH_IMM, i, IBV_SEND_SIGNALED, i * SIZE,
                 SIZE);
        }
        pthread_join(thread, NULL);
        while (back < N) {
            wc = completion(p.b.rcq);
            if (is_again(&wc, back)) {
                continue;
            }
            EQUAL(wc.wr_id, back);
            back++;
            counted += wc.status == IBV_WC_SUCCESS;
        }
        to_error(&p.a); /* it would try for a second */
        while (ended < N) {
            wc = completion(p.a.scq);
            if (is_again(&wc, ended)) {
                continue;
            }
            EQUAL(wc.wr_id, ended);
            ended++;
            heard += wc.status == IBV_WC_SUCCESS;
        }
        CHECK(counted >= heard || iwarp); /* which may be told too early */
        for (unsigned i = 0; i < N; i++) {
            EQUAL(is_filled(&p.b, i * SIZE, SIZE, i), i < counted);
        }
        cuts += counted < N;
        abandon(&p);
    }
    printf("# %u of 20 cut in the middle\n", cuts);
}

static void case_full(void)
{
    struct ibv_qp_attr qa;
    struct ibv_qp_init_attr init;
    struct ibv_sge sge;
    struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad = NULL;
    unsigned n = 0;
    struct pair p;

    connect_pair(&p);
    EQUAL(V->query_qp(p.b.id->qp, &qa, IBV_QP_CAP, &init), 0);
    sge = sge_of(&p.b, 0, 64);
    while (n < 100000 && V->post_recv(p.b.id->qp, &wr, &bad) == 0) {
        n++;
    }
    CHECK(n >= DEPTH && n < 100000);
    CHECK(bad == &wr);
    close_pair(&p);
}

/* ---- main ---- */

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"device", case_device},
    {"memory", case_memory},
    {"pd", case_pd},
    {"connect", case_connect},
    {"reject", case_reject},
    {"no-port", case_no_port},
    {"disconnect", case_disconnect},
    {"gone", case_gone},
    {"send", case_send},
    {"gather", case_gather},
    {"imm", case_imm},
    {"write", case_write},
    {"read", case_read},
    {"unsignalled", case_unsignalled},
    {"unsignalled-fails", case_unsignalled_fails},
    {"bounds", case_bounds},
    {"dereg", case_dereg},
    {"stitched", case_stitched},
    {"rights-off", case_rights_off},
    {"local-key", case_local_key},
    {"too-long", case_too_long},
    {"rnr", case_rnr},
    {"flush", case_flush},
    {"peer-in-error", case_peer_in_error},
    {"arm", case_arm},
    {"arm-race", case_arm_race},
    {"cut", case_cut},
    {"full", case_full},
};

static bool wanted(const char *name, char **argv)
{
    if (!*argv) {
        return true;
    }
    for (; *argv; argv++) {
        if (!strcmp(*argv, name)) {
            return true;
        }
    }
    return false;
}

static void setup(void)
{
    struct sockaddr_in at = address;
    struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                             .send_flags = IBV_SEND_SIGNALED};
    struct ibv_sge sge;
    struct ibv_wc wc;
    struct pair p;

    CHECK((passive_events = V->cm_create_event_channel()));
    CHECK((active_events = V->cm_create_event_channel()));
    CHECK(V->cm_create_id(passive_events, &listener, NULL, RDMA_PS_TCP) == 0);
    at.sin_port = htons(PORT);
    CHECK(V->cm_bind_addr(listener, (struct sockaddr *)&at) == 0);
    ctx = listener->verbs;
    CHECK(ctx && !strcmp(V->get_device_name(ctx->device), device));
    iwarp = ctx->device->transport_type == IBV_TRANSPORT_IWARP;
    EQUAL(V->query_device(ctx, &attr), 0);
    CHECK((pd = V->alloc_pd(ctx)));
    CHECK(V->cm_listen(listener, 16) == 0);
    /* immediate data? */
    connect_pair(&p);
    post_recv(&p.b, 0, 0, 64);
    sge = sge_of(&p.a, 0, 8);
    wr.wr.rdma.remote_addr = (uintptr_t)p.b.buf;
    wr.wr.rdma.rkey = p.b.mr->rkey;
    imm = try_post(&p.a, wr, &sge, 1) == 0;
    if (imm) {
        wc = completion(p.a.scq);
        imm = wc.status == IBV_WC_SUCCESS;
    }
    abandon(&p);
}

int main(int argc, char **argv)
{
    unsigned n = sizeof(cases) / sizeof(cases[0]);
    volatile int failed = 0;

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc < 3 || inet_pton(AF_INET, argv[2], &address.sin_addr) != 1) {
        fprintf(stderr, "usage: verbs-model DEVICE ADDRESS [CASE...]\n");
        return 2;
    }
    device = argv[1];
    address.sin_family = AF_INET;
    if (setjmp(out)) {
        printf("Bail out! %s: %s\n", device, reason);
        return 1;
    }
    setup();
    printf("1..%u\n", n);
    for (volatile unsigned i = 0; i < n; i++) {
        int how = setjmp(out);

        if (!how) {
            if (!wanted(cases[i].name, argv + 3)) {
                skip("not asked for");
            }
            drain_events(0); /* of a case that failed */
            cases[i].run();
            printf("ok %u %s\n", i + 1, cases[i].name);
        } else if (how == 2) {
            printf("ok %u %s # SKIP %s\n", i + 1, cases[i].name, reason);
        } else {
            printf("not ok %u %s\n# %s\n", i + 1, cases[i].name, reason);
            failed = 1;
        }
    }
    if (failed) {
        return 1;
    }
    if (setjmp(out)) {
        printf("Bail out! at the end: %s\n", reason);
        return 1;
    }
    EQUAL(V->cm_destroy_id(listener), 0);
    EQUAL(V->dealloc_pd(pd), 0);
    V->cm_destroy_event_channel(passive_events);
    V->cm_destroy_event_channel(active_events);
    return 0;
}
