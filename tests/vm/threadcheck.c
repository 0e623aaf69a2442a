/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * threadcheck: many threads on one pair of QPs and one CQ of a device.
 *
 *   threadcheck -d DEVICE -g GIDINDEX [-n MESSAGES]
 *
 * Three threads send MESSAGES messages on one QP to the other one, in all; three
 * threads poll the CQ of both and post the receives again, one of them arming it and
 * sleeping when it is empty; one thread makes QPs of the same CQ meanwhile, lets their
 * receives be flushed and destroys them, now and then with completions left in the CQ.
 * Each request must complete once, with the number of its QP, and each message must
 * arrive once, with its bytes.
 *
 * Prints "N messages, N flushed, N errors"; exits 0 only without errors.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "die.h"
#include "options.h"
#include "rcqp.h"

#define DEPTH   16u
#define FLUSHED 3u /* receives of a QP of the churning thread */
#define LIMIT_S 180
#define CHURN   (3 * FLUSHED) /* flushed at least: QPs did come and go meanwhile */

/* What a wr_id is about; the rest is a number. */
#define ID_KIND  (3ull << 62)
#define ID_SEND  (1ull << 62)
#define ID_RECV  (2ull << 62)
#define ID_FLUSH (3ull << 62)

static struct {
    struct ibv_context *ctx;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp[2]; /* [0] sends, [1] receives */
    struct ibv_mr *mr;
    uint64_t *src, *dst; /* a word for each message; a word for each receive */
    union ibv_gid gid;
    int gid_index;
    unsigned messages;
    atomic_uint next, sent, received, errors;
    atomic_uint flushed;
    atomic_uchar *seen_send, *seen_recv;
} s;

static void wrong(const char *what, uint64_t number)
{
    if (atomic_fetch_add(&s.errors, 1) < 20) {
        fprintf(stderr, "threadcheck: %s: %llu\n", what, (unsigned long long)number);
    }
}

static bool finished(void)
{
    return atomic_load(&s.sent) >= s.messages && atomic_load(&s.received) >= s.messages &&
           atomic_load(&s.flushed) >= CHURN;
}

static uint64_t content(uint64_t number)
{
    return number * 0x9e3779b97f4a7c15ull + 1;
}

/* ---- the threads ----------------------------------------------------------------- */

static void post_recv(uint32_t slot)
{
    struct ibv_sge sge = {(uintptr_t)&s.dst[slot], 8, s.mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = ID_RECV | slot, .sg_list = &sge, .num_sge = 1},
                       *bad;
    int ret = ibv_post_recv(s.qp[1], &wr, &bad);

    if (ret) {
        wrong("post_recv", (uint64_t)ret);
    }
}

static void *poster(void *unused)
{
    unsigned number;

    (void)unused;
    while ((number = atomic_fetch_add(&s.next, 1)) < s.messages) {
        struct ibv_sge sge = {(uintptr_t)&s.src[number], 8, s.mr->lkey};
        struct ibv_send_wr wr = {
            .wr_id = ID_SEND | number,
            .sg_list = &sge,
            .num_sge = 1,
            .opcode = IBV_WR_SEND_WITH_IMM,
            .send_flags = IBV_SEND_SIGNALED,
            .imm_data = number,
        };
        struct ibv_send_wr *bad;
        int ret;

        s.src[number] = content(number);
        while ((ret = ibv_post_send(s.qp[0], &wr, &bad)) == ENOMEM) {
            sched_yield();
        }
        if (ret) {
            wrong("post_send", (uint64_t)ret);
            break;
        }
    }
    return NULL;
}

static void mark(atomic_uchar *seen, uint64_t number, atomic_uint *count,
                 const char *what)
{
    if (number >= s.messages || atomic_exchange(&seen[number], 1)) {
        wrong(what, number);
    } else {
        atomic_fetch_add(count, 1);
    }
}

static void completed(const struct ibv_wc *wc)
{
    uint64_t number = wc->wr_id & ~ID_KIND;

    if ((wc->wr_id & ID_KIND) == ID_FLUSH) {
        if (wc->status != IBV_WC_WR_FLUSH_ERR || wc->qp_num != number) {
            wrong("flushed request of another QP", wc->qp_num);
        }
        atomic_fetch_add(&s.flushed, 1);
        return;
    }
    if (wc->status != IBV_WC_SUCCESS) {
        fprintf(stderr, "%s\n", ibv_wc_status_str(wc->status));
        wrong("failed request", wc->wr_id);
        exit(1);
    }
    if ((wc->wr_id & ID_KIND) == ID_SEND) {
        if (wc->qp_num != s.qp[0]->qp_num) {
            wrong("send of another QP", wc->qp_num);
        }
        mark(s.seen_send, number, &s.sent, "send completed twice");
        return;
    }
    if (wc->qp_num != s.qp[1]->qp_num || number >= DEPTH) {
        wrong("receive of another QP", wc->qp_num);
        return;
    }
    if (s.dst[number] != content(wc->imm_data)) {
        wrong("message with other bytes", wc->imm_data);
    }
    mark(s.seen_recv, wc->imm_data, &s.received, "message received twice");
    post_recv((uint32_t)number);
}

static bool drain(void)
{
    struct ibv_wc wc[4];
    int n = ibv_poll_cq(s.cq, 4, wc);

    DIE_IF(n < 0, "ibv_poll_cq");
    for (int i = 0; i < n; i++) {
        completed(&wc[i]);
    }
    return n > 0;
}

static void *poller(void *unused)
{
    (void)unused;
    while (!finished()) {
        if (!drain()) {
            sched_yield();
        }
    }
    return NULL;
}

/* The other pollers may take what the event was for. */
static void *sleeper(void *unused)
{
    struct pollfd fd = {.fd = s.channel->fd, .events = POLLIN};
    struct ibv_cq *cq;
    void *context;

    (void)unused;
    while (!finished()) {
        DIE_IF(ibv_req_notify_cq(s.cq, 0), "ibv_req_notify_cq");
        if (drain() || poll(&fd, 1, 20) <= 0) {
            continue;
        }
        DIE_IF(ibv_get_cq_event(s.channel, &cq, &context), "ibv_get_cq_event");
        ibv_ack_cq_events(cq, 1);
    }
    return NULL;
}

static void must(int err, const char *what)
{
    if (err) {
        errno = err;
        die(what);
    }
}

static struct ibv_qp *make_qp(uint32_t depth)
{
    struct ibv_qp_init_attr attr = {
        .send_cq = s.cq,
        .recv_cq = s.cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = depth,
                .max_recv_wr = depth,
                .max_send_sge = 1,
                .max_recv_sge = 1},
    };
    struct ibv_qp *qp = ibv_create_qp(s.pd, &attr);

    DIE_IF(!qp, "ibv_create_qp");
    must(rcqp_to_init(qp, IBV_ACCESS_REMOTE_WRITE), "QP to INIT");
    return qp;
}

static void *churner(void *unused)
{
    unsigned made = 0;

    (void)unused;
    while (!finished()) {
        struct ibv_qp *qp = make_qp(4);
        struct ibv_sge sge = {(uintptr_t)s.dst, 8, s.mr->lkey};
        unsigned before = atomic_load(&s.flushed);

        for (unsigned i = 0; i < FLUSHED; i++) {
            struct ibv_recv_wr wr = {.wr_id = ID_FLUSH | qp->qp_num,
                                     .sg_list = &sge,
                                     .num_sge = 1},
                               *bad;

            errno = ibv_post_recv(qp, &wr, &bad);
            DIE_IF(errno, "ibv_post_recv");
        }
        must(rcqp_modify(qp, IBV_QPS_ERR, (struct ibv_qp_attr){0}, 0), "QP to ERR");
        /* All of them come, unless the QP goes at once. */
        while (made % 2 && atomic_load(&s.flushed) < before + FLUSHED && !finished()) {
            sched_yield();
        }
        errno = ibv_destroy_qp(qp);
        DIE_IF(errno, "ibv_destroy_qp");
        made++;
        if (atomic_load(&s.flushed) > made * FLUSHED) {
            wrong("more requests flushed than posted", atomic_load(&s.flushed));
        }
    }
    return NULL;
}

/* ---- set-up ------------------------------------------------------------------------ */

static void open_device(const char *name)
{
    struct ibv_device **list = ibv_get_device_list(NULL);

    for (unsigned i = 0; list && list[i] && !s.ctx; i++) {
        if (!name || !strcmp(ibv_get_device_name(list[i]), name)) {
            s.ctx = ibv_open_device(list[i]);
        }
    }
    DIE_IF(!s.ctx || ibv_query_gid(s.ctx, 1, s.gid_index, &s.gid),
           "no such device or GID");
    ibv_free_device_list(list);
}

static void make_objects(void)
{
    size_t bytes = (s.messages + DEPTH) * sizeof(*s.src);

    s.pd = ibv_alloc_pd(s.ctx);
    s.channel = ibv_create_comp_channel(s.ctx);
    s.seen_send = calloc(s.messages, 1);
    s.seen_recv = calloc(s.messages, 1);
    DIE_IF(!s.pd || !s.channel || !s.seen_send || !s.seen_recv ||
               posix_memalign((void **)&s.src, 4096, bytes),
           "set-up");
    s.dst = s.src + s.messages;
    s.mr = ibv_reg_mr(s.pd, s.src, bytes, IBV_ACCESS_LOCAL_WRITE);
    s.cq = ibv_create_cq(s.ctx, 2 * DEPTH + 4 * FLUSHED, NULL, s.channel, 0);
    DIE_IF(!s.mr || !s.cq, "ibv_reg_mr or ibv_create_cq");
    for (unsigned i = 0; i < 2; i++) {
        s.qp[i] = make_qp(DEPTH);
    }
    for (unsigned i = 0; i < 2; i++) {
        must(rcqp_connect(s.qp[i], s.qp[!i]->qp_num, &s.gid, s.gid_index), "connection");
    }
    for (uint32_t i = 0; i < DEPTH; i++) {
        post_recv(i);
    }
}

int main(int argc, char **argv)
{
    void *(*const part[])(void *) = {poster, poster,  poster, poller,
                                     poller, sleeper, churner};
    pthread_t thread[sizeof(part) / sizeof(part[0])];
    struct options o = {.number = 1000};

    if (!options_read(&o, argc, argv, 'n', 0)) {
        fprintf(stderr, "usage: threadcheck -d DEVICE -g GIDINDEX [-n MESSAGES]\n");
        return 2;
    }
    s.gid_index = o.gid_index;
    s.messages = (unsigned)o.number;
    alarm(LIMIT_S + s.messages / 500);
    open_device(o.device);
    make_objects();
    for (unsigned i = 0; i < sizeof(part) / sizeof(part[0]); i++) {
        errno = pthread_create(&thread[i], NULL, part[i], NULL);
        DIE_IF(errno, "pthread_create");
    }
    for (unsigned i = 0; i < sizeof(part) / sizeof(part[0]); i++) {
        pthread_join(thread[i], NULL);
    }
    for (unsigned i = 0; i < 2; i++) {
        if (ibv_destroy_qp(s.qp[i])) {
            wrong("ibv_destroy_qp", i);
        }
    }
    if (drain()) {
        wrong("completions of destroyed QPs", 0);
    }
    if (ibv_destroy_cq(s.cq) || ibv_dereg_mr(s.mr) ||
        ibv_destroy_comp_channel(s.channel) || ibv_dealloc_pd(s.pd) ||
        ibv_close_device(s.ctx)) {
        wrong("tear-down", 0);
    }
    printf("%u messages, %u flushed, %u errors\n", atomic_load(&s.received),
           atomic_load(&s.flushed), atomic_load(&s.errors));
    return atomic_load(&s.errors) ? 1 : 0;
}
