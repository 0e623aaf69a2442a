/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * excheck: the extended verbs API of one device, between two QPs of this process.
 *
 *   excheck -d DEVICE -g GIDINDEX [-i BYTES]
 *
 * ibv_wr_* batches, ibv_create_cq_ex polling, inline data (-i: how much must be
 * granted), regions with an address of their own, solicited events, full queues,
 * RESET and destruction with completions left in the CQ.  Every message's bytes are
 * compared.
 *
 * Prints "N checks, N errors"; exits 0 only without errors, 3 if the device has
 * no extended API at all.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "device.h"
#include "options.h"
#include "rcqp.h"

#define AREA   65536u
#define DEPTH  16
#define WAIT_S 30
/* For what must not come: an event or a completion takes far less. */
#define ABSENT_MS 100

static struct {
    struct ibv_context *ctx;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq_ex *cq;
    struct ibv_qp *qp[2]; /* [0] acts, [1] is acted on */
    struct ibv_qp_ex *ex;
    struct ibv_mr *mr;
    uint8_t *src, *dst; /* AREA bytes each, one MR */
    union ibv_gid gid;
    int gid_index;
    uint32_t max_inline;
    unsigned checks, errors;
} s;

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* One completion, copied out of the extended CQ. */
struct done {
    uint64_t wr_id;
    enum ibv_wc_status status;
    enum ibv_wc_opcode opcode;
    uint32_t len, qpn, imm;
    unsigned flags;
};

/* True if one came; gives up after @seconds (0: one look). */
static bool take(struct done *d, double seconds)
{
    struct ibv_poll_cq_attr none = {0};
    double end = now() + seconds;
    int ret;

    while ((ret = ibv_start_poll(s.cq, &none)) == ENOENT) {
        if (now() >= end) {
            return false;
        }
    }
    if (ret) {
        errno = ret;
        die("ibv_start_poll");
    }
    d->wr_id = s.cq->wr_id;
    d->status = s.cq->status;
    d->opcode = ibv_wc_read_opcode(s.cq);
    d->len = ibv_wc_read_byte_len(s.cq);
    d->qpn = ibv_wc_read_qp_num(s.cq);
    d->flags = ibv_wc_read_wc_flags(s.cq);
    d->imm = ibv_wc_read_imm_data(s.cq);
    ibv_end_poll(s.cq);
    return true;
}

/* The completion of @wr_id must be the next of its QP, and good. */
static void expect(uint64_t wr_id, enum ibv_wc_opcode opcode, uint32_t len)
{
    struct done d = {0};

    CHECK(take(&d, WAIT_S), "no completion %llu", (unsigned long long)wr_id);
    CHECK(d.wr_id == wr_id, "got %llu", (unsigned long long)d.wr_id);
    CHECK(d.status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(d.status));
    CHECK(d.opcode == opcode, "got %d", (int)d.opcode);
    if (opcode & IBV_WC_RECV) {
        CHECK(d.len == len, "got %u, not %u", d.len, len);
        CHECK(d.qpn == s.qp[1]->qp_num, "qp %u", d.qpn);
    }
}

static void fill(uint32_t len, unsigned seed)
{
    for (uint32_t i = 0; i < len; i++) {
        s.src[i] = (uint8_t)(i * 7 + seed);
    }
    memset(s.dst, 0xdd, len + 64);
}

static void verify(uint32_t len, unsigned seed)
{
    uint32_t bad = 0;

    for (uint32_t i = 0; i < len; i++) {
        bad += s.dst[i] != (uint8_t)(i * 7 + seed);
    }
    CHECK(bad == 0, "%u of %u bytes differ", bad, len);
    CHECK(s.dst[len] == 0xdd, "written behind the end");
}

static void post_recv(uint64_t wr_id, void *addr, uint32_t len)
{
    struct ibv_sge sge = {(uintptr_t)addr, len, s.mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1}, *bad;
    int ret = ibv_post_recv(s.qp[1], &wr, &bad);

    CHECK(ret == 0, "post_recv: %s", strerror(ret));
}

static void must(int err, const char *what)
{
    if (err) {
        errno = err;
        die(what);
    }
}

/* From RESET. */
static void connect_both(void)
{
    for (unsigned i = 0; i < 2; i++) {
        must(rcqp_to_init(s.qp[i], IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                       IBV_ACCESS_REMOTE_ATOMIC),
             "QP to INIT");
        must(rcqp_connect(s.qp[i], s.qp[!i]->qp_num, &s.gid, s.gid_index), "connection");
    }
}

static struct ibv_qp *make_qp(uint32_t want_inline)
{
    struct ibv_qp_init_attr_ex attr = {
        .send_cq = ibv_cq_ex_to_cq(s.cq),
        .recv_cq = ibv_cq_ex_to_cq(s.cq),
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = DEPTH,
                .max_recv_wr = DEPTH,
                .max_send_sge = 2,
                .max_recv_sge = 1,
                .max_inline_data = want_inline},
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = s.pd,
        .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
                          IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                          IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                          IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
    };
    struct ibv_qp *qp = ibv_create_qp_ex(s.ctx, &attr);

    if (!qp) {
        if (errno == EOPNOTSUPP) {
            fprintf(stderr, "excheck: no extended QPs here\n");
            exit(3);
        }
        die("ibv_create_qp_ex");
    }
    s.max_inline = attr.cap.max_inline_data;
    return qp;
}

static void connect_pair(uint32_t want_inline)
{
    s.qp[0] = make_qp(want_inline);
    s.qp[1] = make_qp(want_inline);
    s.ex = ibv_qp_to_qp_ex(s.qp[0]);
    DIE_IF(!s.ex, "ibv_qp_to_qp_ex finds no extended QP");
    connect_both();
}

static void begin(uint64_t wr_id, unsigned flags)
{
    s.ex->wr_id = wr_id;
    s.ex->wr_flags = flags;
}

static void complete(int want)
{
    int ret = ibv_wr_complete(s.ex);

    CHECK(ret == want, "wr_complete: %s", strerror(ret));
}

/* ---- parts --------------------------------------------------------------------------
 */

/* A batch of sends, only the last signalled; each receive in its own place. */
static void part_batch(void)
{
    const uint32_t len = 1000;

    fill(len * 8, 1);
    for (unsigned i = 0; i < 8; i++) {
        post_recv(100 + i, s.dst + i * len, len);
    }
    ibv_wr_start(s.ex);
    for (unsigned i = 0; i < 8; i++) {
        struct ibv_sge half[2] = {
            {(uintptr_t)s.src + i * len, 400, s.mr->lkey},
            {(uintptr_t)s.src + i * len + 400, len - 400, s.mr->lkey},
        };

        begin(i, i == 7 ? IBV_SEND_SIGNALED : 0);
        ibv_wr_send(s.ex);
        ibv_wr_set_sge_list(s.ex, 2, half);
    }
    complete(0);
    for (unsigned i = 0; i < 8; i++) {
        expect(100 + i, IBV_WC_RECV, len);
    }
    expect(7, IBV_WC_SEND, 0);
    verify(len * 8, 1);
}

static void part_inline(void)
{
    const uint32_t sizes[] = {0, 1, 8, 48, 127, 128, 200, 431, 432};

    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        uint32_t len = sizes[i], cut = len / 3;
        struct ibv_data_buf list[2] = {{s.src, cut}, {s.src + cut, len - cut}};

        if (len > s.max_inline) {
            break;
        }
        fill(AREA / 2, i);
        post_recv(200, s.dst, 1024);
        ibv_wr_start(s.ex);
        begin(i, IBV_SEND_SIGNALED);
        ibv_wr_send_imm(s.ex, 0x1234);
        if (i % 2) {
            ibv_wr_set_inline_data(s.ex, s.src, len);
        } else {
            ibv_wr_set_inline_data_list(s.ex, 2, list);
        }
        complete(0);
        memset(s.src, 0x11, len + 1); /* it is ours again at once */
        expect(200, IBV_WC_RECV, len);
        expect(i, IBV_WC_SEND, 0);
        verify(len, i);
    }
    ibv_wr_start(s.ex);
    begin(1, 0);
    ibv_wr_send(s.ex);
    ibv_wr_set_inline_data(s.ex, s.src, s.max_inline + 1);
    complete(EINVAL);
}

static void part_one_sided(void)
{
    uint64_t *word = (uint64_t *)(void *)s.dst, *old = (uint64_t *)(void *)s.src;

    fill(5000, 3);
    post_recv(300, s.dst, 0);
    ibv_wr_start(s.ex);
    begin(1, 0);
    ibv_wr_rdma_write(s.ex, s.mr->rkey, (uintptr_t)s.dst);
    ibv_wr_set_sge(s.ex, s.mr->lkey, (uintptr_t)s.src, 3000);
    begin(2, IBV_SEND_SIGNALED);
    ibv_wr_rdma_write_imm(s.ex, s.mr->rkey, (uintptr_t)s.dst + 3000, 0x99);
    ibv_wr_set_sge(s.ex, s.mr->lkey, (uintptr_t)s.src + 3000, 2000);
    complete(0);
    expect(300, IBV_WC_RECV_RDMA_WITH_IMM, 2000);
    expect(2, IBV_WC_RDMA_WRITE, 0);
    verify(5000, 3);

    fill(777, 4);
    ibv_wr_start(s.ex);
    begin(3, IBV_SEND_SIGNALED);
    ibv_wr_rdma_read(s.ex, s.mr->rkey, (uintptr_t)s.src);
    ibv_wr_set_sge(s.ex, s.mr->lkey, (uintptr_t)s.dst, 777);
    complete(0);
    expect(3, IBV_WC_RDMA_READ, 0);
    verify(777, 4);

    *word = 40;
    ibv_wr_start(s.ex);
    begin(4, IBV_SEND_SIGNALED);
    ibv_wr_atomic_fetch_add(s.ex, s.mr->rkey, (uintptr_t)word, 2);
    ibv_wr_set_sge(s.ex, s.mr->lkey, (uintptr_t)old, 8);
    begin(5, IBV_SEND_SIGNALED);
    ibv_wr_atomic_cmp_swp(s.ex, s.mr->rkey, (uintptr_t)word, 42, 7);
    ibv_wr_set_sge(s.ex, s.mr->lkey, (uintptr_t)(old + 1), 8);
    complete(0);
    expect(4, IBV_WC_FETCH_ADD, 0);
    expect(5, IBV_WC_COMP_SWAP, 0);
    CHECK(*word == 7 && old[0] == 40 && old[1] == 42, "%llu %llu %llu",
          (unsigned long long)*word, (unsigned long long)old[0],
          (unsigned long long)old[1]);
}

/* A region with an address of its own, as remote and as local memory. */
static void part_iova(void)
{
    const uint64_t iova = 0x7654321000;
    struct ibv_mr *mr;

    mr = ibv_reg_mr_iova(s.pd, s.dst + 64, AREA - 64, iova + 64,
                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (!mr) {
        /* The in-tree driver has no such regions, nor has it inline data. */
        CHECK(errno == EOPNOTSUPP && !s.max_inline, "%s", strerror(errno));
        return;
    }
    fill(9000, 5);
    ibv_wr_start(s.ex);
    begin(1, IBV_SEND_SIGNALED);
    ibv_wr_rdma_write(s.ex, mr->rkey, iova + 64);
    ibv_wr_set_sge(s.ex, s.mr->lkey, (uintptr_t)s.src + 64, 5000);
    begin(2, IBV_SEND_SIGNALED);
    ibv_wr_rdma_read(s.ex, s.mr->rkey, (uintptr_t)s.src + 5064);
    ibv_wr_set_sge(s.ex, mr->lkey, iova + 5064, 9000 - 5064);
    complete(0);
    expect(1, IBV_WC_RDMA_WRITE, 0);
    expect(2, IBV_WC_RDMA_READ, 0);
    memcpy(s.dst, s.src, 64);
    verify(9000, 5);
    CHECK(!ibv_dereg_mr(mr), "ibv_dereg_mr");
    mr = ibv_reg_mr_iova(s.pd, s.dst, AREA, iova + 1, IBV_ACCESS_LOCAL_WRITE);
    CHECK(!mr && errno == EINVAL, "region %p, %s", (void *)mr, strerror(errno));
}

/* Nothing of an undone batch may reach the device. */
static void part_undo(void)
{
    struct done d;

    ibv_wr_start(s.ex);
    for (unsigned i = 0; i <= DEPTH; i++) {
        begin(i, IBV_SEND_SIGNALED);
        ibv_wr_send(s.ex);
        ibv_wr_set_sge(s.ex, s.mr->lkey, (uintptr_t)s.src, 8);
    }
    complete(ENOMEM);
    ibv_wr_start(s.ex);
    ibv_wr_send(s.ex);
    ibv_wr_abort(s.ex);
    CHECK(!take(&d, ABSENT_MS / 1e3), "completion %llu", (unsigned long long)d.wr_id);
    part_batch();
}

/* Solicited arming: a plain message is no event, a solicited one is. */
static bool event_within(int ms)
{
    struct pollfd p = {.fd = s.channel->fd, .events = POLLIN};
    struct ibv_cq *cq;
    void *ctx;

    if (poll(&p, 1, ms) != 1) {
        return false;
    }
    DIE_IF(ibv_get_cq_event(s.channel, &cq, &ctx), "ibv_get_cq_event");
    ibv_ack_cq_events(cq, 1);
    return true;
}

static void send_one(unsigned flags)
{
    post_recv(400, s.dst, 64);
    ibv_wr_start(s.ex);
    begin(1, flags);
    ibv_wr_send(s.ex);
    ibv_wr_set_sge(s.ex, s.mr->lkey, (uintptr_t)s.src, 64);
    complete(0);
}

/* What was sent without a completion of its own is over with one that has it. */
static void settle(void)
{
    struct done d;

    send_one(IBV_SEND_SIGNALED);
    CHECK(take(&d, WAIT_S) && take(&d, WAIT_S), "not two completions");
}

static void part_events(void)
{
    struct ibv_cq *cq = ibv_cq_ex_to_cq(s.cq);
    struct done d;

    for (unsigned round = 0; round < 50; round++) {
        DIE_IF(ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
        CHECK(!take(&d, 0), "stray completion");
        send_one(0);
        CHECK(event_within(WAIT_S * 1000), "no event in round %u", round);
        expect(400, IBV_WC_RECV, 64);
        if (round % 8 == 7) {
            settle();
        }
    }
    settle();
    DIE_IF(ibv_req_notify_cq(cq, 1), "ibv_req_notify_cq");
    send_one(0);
    expect(400, IBV_WC_RECV, 64);
    CHECK(!event_within(ABSENT_MS), "event for an unsolicited message");
    send_one(IBV_SEND_SOLICITED);
    CHECK(event_within(WAIT_S * 1000), "no event for a solicited message");
    expect(400, IBV_WC_RECV, 64);
}

/* Let unpolled completions of QP 0 and QP 1 pile up: the last message's event says that
 * its receive is there, and so are all before it. */
static void leave_completions(void)
{
    DIE_IF(ibv_req_notify_cq(ibv_cq_ex_to_cq(s.cq), 1), "ibv_req_notify_cq");
    for (unsigned i = 0; i < 4; i++) {
        send_one(IBV_SEND_SIGNALED | (i == 3 ? IBV_SEND_SOLICITED : 0));
    }
    CHECK(event_within(WAIT_S * 1000), "no event for the last message");
}

static void part_reset(void)
{
    struct done d;
    unsigned n = 0;

    leave_completions();
    must(rcqp_modify(s.qp[0], IBV_QPS_RESET, (struct ibv_qp_attr){0}, 0), "QP to RESET");
    while (take(&d, 0)) {
        CHECK(d.qpn == s.qp[1]->qp_num, "completion of the QP in RESET");
        n++;
    }
    CHECK(n == 4, "%u receives left", n);
    must(rcqp_modify(s.qp[1], IBV_QPS_RESET, (struct ibv_qp_attr){0}, 0), "QP to RESET");
    connect_both();
    part_batch();
}

static void part_destroy(void)
{
    struct done d;
    unsigned n = 0;

    leave_completions();
    DIE_IF(ibv_destroy_qp(s.qp[0]), "ibv_destroy_qp");
    while (take(&d, 0)) {
        CHECK(d.qpn == s.qp[1]->qp_num, "completion of a destroyed QP");
        n++;
    }
    CHECK(n == 4, "%u receives left", n);
    DIE_IF(ibv_destroy_qp(s.qp[1]), "ibv_destroy_qp");
    CHECK(!take(&d, 0), "completion of a destroyed QP");
}

/* ---- start --------------------------------------------------------------------------
 */

static void open_device(const char *name)
{
    s.ctx = device_open(name);
    DIE_IF(!s.ctx, "cannot open the device");
    DIE_IF(ibv_query_gid(s.ctx, 1, s.gid_index, &s.gid), "ibv_query_gid");
}

static void make_objects(void)
{
    struct ibv_cq_init_attr_ex attr = {
        .cqe = 64,
        .wc_flags = IBV_WC_STANDARD_FLAGS,
    };

    s.pd = ibv_alloc_pd(s.ctx);
    s.channel = ibv_create_comp_channel(s.ctx);
    DIE_IF(!s.pd || !s.channel || posix_memalign((void **)&s.src, 4096, 2 * AREA),
           "set-up");
    s.dst = s.src + AREA;
    s.mr = ibv_reg_mr(s.pd, s.src, 2 * AREA,
                      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                          IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
    DIE_IF(!s.mr, "ibv_reg_mr");
    attr.channel = s.channel;
    s.cq = ibv_create_cq_ex(s.ctx, &attr);
    if (!s.cq) {
        if (errno == EOPNOTSUPP || errno == ENOSYS) {
            fprintf(stderr, "excheck: no extended CQs here\n");
            exit(3);
        }
        die("ibv_create_cq_ex");
    }
}

int main(int argc, char **argv)
{
    struct options o = {0};
    uint32_t want_inline;
    int ret;

    if (!options_read(&o, argc, argv, 'i', 0)) {
        fprintf(stderr, "usage: excheck -d DEVICE -g GIDINDEX [-i BYTES]\n");
        return 2;
    }
    s.gid_index = o.gid_index;
    want_inline = (uint32_t)o.number;
    open_device(o.device);
    make_objects();
    connect_pair(want_inline);
    CHECK(s.max_inline >= want_inline, "only %u bytes inline", s.max_inline);
    part_batch();
    part_inline();
    part_one_sided();
    part_iova();
    part_undo();
    part_events();
    part_reset();
    part_destroy();
    ret = ibv_destroy_cq(ibv_cq_ex_to_cq(s.cq)) || ibv_dereg_mr(s.mr) ||
          ibv_destroy_comp_channel(s.channel) || ibv_dealloc_pd(s.pd) ||
          ibv_close_device(s.ctx);
    CHECK(!ret, "tear-down");
    printf("inline %u\n%u checks, %u errors\n", s.max_inline, s.checks, s.errors);
    return s.errors ? 1 : 0;
}
