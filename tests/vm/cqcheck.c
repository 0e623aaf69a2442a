/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * cqcheck: the time in CQs, and their room, seen from a program.
 *
 *   cqcheck stamps -d DEVICE -g GID_INDEX    the device's clock beside this system's;
 *                                            time stamps of completions within readings
 *                                            of that clock; what is refused
 *   cqcheck moderate -d DEVICE -g GID_INDEX  events come neither before there are enough
 *                                            completions or the period is over, nor not
 *                                            at all
 *   cqcheck slots -d DEVICE -g GID_INDEX     who posts until ENOMEM and polls then sees
 *                                            each completion, and overruns no CQ: a
 *                                            request takes its place until it is polled
 *   cqcheck gone -d DEVICE -g GID_INDEX      (gone-ex: by an extended CQ) leave requests
 *                                            outstanding, print "ready", and poll until
 *                                            the device is gone: what it completed comes
 *                                            first, then all else as flushed, each once,
 *                                            and what is posted then
 *
 * QPs that are connected to themselves, RDMA WRITEs (gone: SENDs too).  Prints "N
 * checks, N errors", fails if there are errors.  One thread.
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

#define DEPTH  64
#define WAIT_S 20

static struct {
    struct ibv_context *ctx;
    struct ibv_device_attr_ex dev;
    struct ibv_pd *pd;
    struct ibv_mr *mr;
    struct ibv_qp *qp;
    struct ibv_cq_ex *ex; /* its only CQ */
    int gid_index;
    unsigned checks, errors;
    char buf[4096];
} s;

static uint64_t now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

static void open_device(const char *name)
{
    s.ctx = device_open(name);
    DIE_IF(!s.ctx || ibv_query_device_ex(s.ctx, NULL, &s.dev), name);
    s.pd = ibv_alloc_pd(s.ctx);
    s.mr = ibv_reg_mr(s.pd, s.buf, sizeof(s.buf),
                      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    DIE_IF(!s.mr, "memory region");
}

/* A QP connected to itself, with @cq for both of its queues. */
static void make_qp(struct ibv_cq *cq)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq,
        .recv_cq = cq,
        .cap = {.max_send_wr = DEPTH,
                .max_recv_wr = 1,
                .max_send_sge = 1,
                .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
    };
    union ibv_gid gid;

    s.qp = ibv_create_qp(s.pd, &init);
    DIE_IF(!s.qp || ibv_query_gid(s.ctx, 1, s.gid_index, &gid), "QP");
    errno = rcqp_to_init(s.qp, IBV_ACCESS_REMOTE_WRITE);
    errno = errno ? errno : rcqp_connect(s.qp, s.qp->qp_num, &gid, s.gid_index);
    DIE_IF(errno, "connecting");
}

/* 0 or an errno. */
static int post_write(uint64_t wr_id, unsigned flags)
{
    struct ibv_sge sge = {(uintptr_t)s.buf, 8, s.mr->lkey};
    struct ibv_send_wr wr = {.wr_id = wr_id,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_WRITE,
                             .send_flags = flags,
                             .wr.rdma = {(uintptr_t)s.buf + 2048, s.mr->rkey}},
                       *bad;

    return ibv_post_send(s.qp, &wr, &bad);
}

static void write_one(uint64_t wr_id)
{
    errno = post_write(wr_id, IBV_SEND_SIGNALED);
    DIE_IF(errno, "ibv_post_send");
}

/* ---- stamps ------------------------------------------------------------------------ */

static uint64_t raw_clock(void)
{
    struct ibv_values_ex v = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};

    errno = ibv_query_rt_values_ex(s.ctx, &v);
    DIE_IF(errno || v.comp_mask != IBV_VALUES_MASK_RAW_CLOCK, "ibv_query_rt_values_ex");
    return (uint64_t)v.raw_clock.tv_nsec;
}

/* From @a to @b, the counter may have wrapped. */
static uint64_t passed(uint64_t a, uint64_t b)
{
    return (b - a) & s.dev.completion_timestamp_mask;
}

/* The clock counts as fast as is said: within what the calls leave open, and 0.1 %. */
static void check_clock(void)
{
    uint64_t t[4], a, b, ns, least, most, call;

    t[0] = now_ns();
    a = raw_clock();
    t[1] = now_ns();
    usleep(300000);
    t[2] = now_ns();
    b = raw_clock();
    t[3] = now_ns();
    ns = passed(a, b) * 1000000 / s.dev.hca_core_clock;
    least = t[2] - t[1];
    most = t[3] - t[0];
    CHECK(ns >= least - least / 1000 && ns <= most + most / 1000,
          "%llu ns, not %llu to %llu", (unsigned long long)ns, (unsigned long long)least,
          (unsigned long long)most);
    call = t[1] - t[0];
    printf("a reading takes %llu us\n", (unsigned long long)call / 1000);
}

/* The next completion's stamp. */
static uint64_t take_stamp(uint64_t wr_id)
{
    struct ibv_poll_cq_attr none = {0};
    time_t end = time(NULL) + WAIT_S;
    uint64_t stamp;
    int ret;

    while ((ret = ibv_start_poll(s.ex, &none)) == ENOENT && time(NULL) <= end) {
    }
    if (ret) {
        errno = ret;
        die("ibv_start_poll");
    }
    CHECK(s.ex->wr_id == wr_id && s.ex->status == IBV_WC_SUCCESS, "%llu: %s",
          (unsigned long long)s.ex->wr_id, ibv_wc_status_str(s.ex->status));
    CHECK(ibv_wc_read_opcode(s.ex) == IBV_WC_RDMA_WRITE, "opcode");
    stamp = ibv_wc_read_completion_ts(s.ex);
    ibv_end_poll(s.ex);
    return stamp;
}

static void check_stamps(void)
{
    uint64_t before, last, stamp, after;

    for (unsigned i = 0; i < 200; i++) {
        unsigned n = i % 2 ? DEPTH : 1;

        last = before = raw_clock();
        for (unsigned k = 0; k < n; k++) {
            write_one(k);
        }
        for (unsigned k = 0; k < n; k++) {
            stamp = take_stamp(k);
            after = k == n - 1 ? raw_clock() : stamp;
            CHECK(passed(before, last) <= passed(before, stamp) &&
                      passed(before, stamp) <= passed(before, after),
                  "%llu after %llu, polled by %llu", (unsigned long long)stamp,
                  (unsigned long long)last, (unsigned long long)after);
            last = stamp;
        }
    }
}

static void stamps(void)
{
    struct ibv_cq_init_attr_ex attr = {.cqe = 2 * DEPTH,
                                       .wc_flags = IBV_WC_STANDARD_FLAGS |
                                                   IBV_WC_EX_WITH_COMPLETION_TIMESTAMP};
    struct ibv_cq_init_attr_ex wall = {
        .cqe = 1, .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK};

    CHECK(s.dev.completion_timestamp_mask == (1ull << 48) - 1, "mask %#llx",
          (unsigned long long)s.dev.completion_timestamp_mask);
    CHECK(s.dev.hca_core_clock == 1000000, "%llu kHz",
          (unsigned long long)s.dev.hca_core_clock);
    if (s.errors) {
        return;
    }
    check_clock();
    CHECK(!ibv_create_cq_ex(s.ctx, &wall) && errno == EOPNOTSUPP, "a wall clock");
    s.ex = ibv_create_cq_ex(s.ctx, &attr);
    DIE_IF(!s.ex, "ibv_create_cq_ex");
    make_qp(ibv_cq_ex_to_cq(s.ex));
    check_stamps();
    errno = ibv_resize_cq(ibv_cq_ex_to_cq(s.ex), 4 * DEPTH);
    DIE_IF(errno, "ibv_resize_cq");
    check_stamps();
    ibv_destroy_qp(s.qp);
    ibv_destroy_cq(ibv_cq_ex_to_cq(s.ex));
}

/* ---- moderate ---------------------------------------------------------------------- */

static void moderate(struct ibv_cq *cq, unsigned count, unsigned period_us)
{
    struct ibv_modify_cq_attr attr = {IBV_CQ_ATTR_MODERATE,
                                      {(uint16_t)count, (uint16_t)period_us}};

    errno = ibv_modify_cq(cq, &attr);
    DIE_IF(errno, "ibv_modify_cq");
}

/* us from the first of @n writes, with the CQ armed before, to its event. */
static uint64_t event_us(struct ibv_comp_channel *ch, struct ibv_cq *cq, unsigned n)
{
    struct pollfd pfd = {.fd = ch->fd, .events = POLLIN};
    struct ibv_cq *got = NULL;
    struct ibv_wc wc;
    uint64_t from, us;
    void *context;

    errno = ibv_req_notify_cq(cq, 0);
    from = now_ns();
    for (unsigned i = 0; i < n; i++) {
        write_one(i);
    }
    DIE_IF(errno || poll(&pfd, 1, WAIT_S * 1000) != 1 ||
               ibv_get_cq_event(ch, &got, &context),
           "no event");
    us = (now_ns() - from) / 1000;
    CHECK(got == cq, "of another CQ");
    ibv_ack_cq_events(cq, 1);
    for (unsigned i = 0; i < n; i++) {
        CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && wc.wr_id == i, "of %u: %u", n, i);
    }
    return us;
}

static void moderation(void)
{
    struct ibv_comp_channel *ch = ibv_create_comp_channel(s.ctx);
    struct ibv_cq *cq = ch ? ibv_create_cq(s.ctx, 2 * DEPTH, NULL, ch, 0) : NULL;
    uint64_t us, least = UINT64_MAX;

    DIE_IF(!cq, "ibv_create_cq");
    CHECK(s.dev.cq_mod_caps.max_cq_count == 65535, "%u", s.dev.cq_mod_caps.max_cq_count);
    CHECK(s.dev.cq_mod_caps.max_cq_period == 65535, "%u",
          s.dev.cq_mod_caps.max_cq_period);
    make_qp(cq);
    for (unsigned i = 0; i < 10; i++) {
        moderate(cq, 8, 50000);
        us = event_us(ch, cq, 7);
        CHECK(us >= 49900, "7 of 8 after %llu us", (unsigned long long)us);
        us = event_us(ch, cq, 8);
        least = us < least ? us : least;
        moderate(cq, 0, 20000);
        us = event_us(ch, cq, DEPTH);
        CHECK(us >= 19900, "%u after %llu us", DEPTH, (unsigned long long)us);
        moderate(cq, 0, 0);
        us = event_us(ch, cq, 1);
        printf("%llu us without\n", (unsigned long long)us);
    }
    printf("8 of 8 after %llu us\n", (unsigned long long)least);
    CHECK(least < 45000, "8 of 8 after %llu us", (unsigned long long)least);
    moderate(cq, 8, 60000); /* destroyed with an event held */
    errno = ibv_req_notify_cq(cq, 0);
    write_one(1);
    ibv_destroy_qp(s.qp);
    CHECK(!ibv_destroy_cq(cq), "%s", strerror(errno));
    usleep(100000);
}

/* ---- slots ------------------------------------------------------------------------- */

/* Of the device: what is posted has all been taken by then, slow as it is. */
#define TAKEN_US 20000

static enum ibv_qp_state qp_state(void)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;

    DIE_IF(ibv_query_qp(s.qp, &attr, IBV_QP_STATE, &init), "ibv_query_qp");
    return attr.qp_state;
}

/* Completions, at most @most: the next ones in order, *seen the first of them. */
static void take(unsigned every, unsigned most, uint64_t *seen)
{
    uint64_t end = now_ns() + WAIT_S * 1000000000ull;
    struct ibv_wc wc[DEPTH];
    int n;

    do {
        n = ibv_poll_cq(s.qp->send_cq, (int)most, wc);
    } while (n == 0 && now_ns() < end);
    CHECK(n > 0, "no completion of %llu: %d", (unsigned long long)*seen, n);
    for (int i = 0; i < n; i++) {
        CHECK(wc[i].status == IBV_WC_SUCCESS && wc[i].wr_id == *seen,
              "%llu, not %llu, status %d", (unsigned long long)wc[i].wr_id,
              (unsigned long long)*seen, wc[i].status);
        *seen += every;
    }
}

/*
 * Every @every-th one is signalled.  Posts until it may not, and some more later, when
 * the device has taken all; then polls what there is, or only the first.
 */
static void press(unsigned every, unsigned rounds)
{
    uint64_t posted = 0, seen = every - 1;

    for (unsigned r = 0; r < rounds && !s.errors; r++) {
        for (unsigned more = 0; more < 2; more++) {
            while (post_write(posted,
                              posted % every == every - 1 ? IBV_SEND_SIGNALED : 0) == 0) {
                posted++;
            }
            if (r % 64 == 0) {
                usleep(TAKEN_US);
            }
        }
        take(every, 1 + r % DEPTH, &seen);
    }
    while (seen < posted && !s.errors) {
        take(every, DEPTH, &seen);
    }
    CHECK(posted > rounds, "%llu posted", (unsigned long long)posted);
    CHECK(qp_state() == IBV_QPS_RTS, "state %d", qp_state());
    printf("%llu requests, each %u. signalled\n", (unsigned long long)posted, every);
}

/* Who never signals one has as many as the queue has places, until RESET. */
static void press_unsignalled(void)
{
    union ibv_gid gid;
    struct ibv_wc wc;

    for (unsigned life = 0; life < 2; life++) {
        unsigned n = 0;

        for (unsigned more = 0; more < 2; more++) {
            while (n < 2 * DEPTH && post_write(n, 0) == 0) {
                n++;
            }
            usleep(TAKEN_US);
        }
        CHECK(n == DEPTH, "%u of %u", n, DEPTH);
        CHECK(ibv_poll_cq(s.qp->send_cq, 1, &wc) == 0, "a completion");
        errno = rcqp_modify(s.qp, IBV_QPS_RESET, (struct ibv_qp_attr){0}, 0);
        errno = errno ? errno : rcqp_to_init(s.qp, IBV_ACCESS_REMOTE_WRITE);
        DIE_IF(errno || ibv_query_gid(s.ctx, 1, s.gid_index, &gid), "RESET");
        errno = rcqp_connect(s.qp, s.qp->qp_num, &gid, s.gid_index);
        DIE_IF(errno, "connecting");
    }
}

static void slots(void)
{
    /* No more than the requests that the queue has places for. */
    struct ibv_cq *cq = ibv_create_cq(s.ctx, DEPTH, NULL, NULL, 0);

    DIE_IF(!cq, "ibv_create_cq");
    make_qp(cq);
    press(1, 600);
    if (!s.errors) {
        press(3, 600);
    }
    ibv_destroy_qp(s.qp);
    make_qp(cq);
    press_unsignalled();
    press(2, 100);
}

/* ---- gone -------------------------------------------------------------------------- */

#define SENDS 6 /* every other one signalled */

/* What one CQ gives, by either way of polling. */
static int next_of(struct ibv_cq *cq, bool ex, struct ibv_wc *wc)
{
    struct ibv_poll_cq_attr none = {0};
    int ret;

    if (!ex) {
        return ibv_poll_cq(cq, 1, wc);
    }
    ret = ibv_start_poll(s.ex, &none);
    if (ret) {
        return ret == ENOENT ? 0 : -ret;
    }
    wc->wr_id = s.ex->wr_id;
    wc->status = s.ex->status;
    wc->opcode = ibv_wc_read_opcode(s.ex);
    wc->qp_num = ibv_wc_read_qp_num(s.ex);
    ibv_end_poll(s.ex);
    return 1;
}

static void post_recv(struct ibv_qp *qp, uint64_t wr_id)
{
    struct ibv_recv_wr wr = {.wr_id = wr_id}, *bad;

    errno = ibv_post_recv(qp, &wr, &bad);
    DIE_IF(errno, "ibv_post_recv");
}

static void post_send(struct ibv_qp *qp, uint64_t wr_id)
{
    struct ibv_send_wr wr = {.wr_id = wr_id,
                             .opcode = IBV_WR_SEND,
                             .send_flags = wr_id & 1 ? IBV_SEND_SIGNALED : 0},
                       *bad;

    errno = ibv_post_send(qp, &wr, &bad);
    DIE_IF(errno, "ibv_post_send");
}

/* A QP that receives from @srq, connected to itself, and to which nobody has posted. */
static struct ibv_qp *idle_qp(struct ibv_cq *cq, struct ibv_srq *srq)
{
    struct ibv_qp_init_attr init = {.send_cq = cq,
                                    .recv_cq = cq,
                                    .srq = srq,
                                    .cap = {.max_send_wr = 16, .max_send_sge = 1},
                                    .qp_type = IBV_QPT_RC};
    struct ibv_qp *qp = ibv_create_qp(s.pd, &init);
    union ibv_gid gid;

    DIE_IF(!qp || ibv_query_gid(s.ctx, 1, s.gid_index, &gid), "QP");
    errno = rcqp_to_init(qp, 0);
    errno = errno ? errno : rcqp_connect(qp, qp->qp_num, &gid, s.gid_index);
    DIE_IF(errno, "connecting");
    return qp;
}

/* The next completion must be this; it may take until somebody ends the device. */
static void next(struct ibv_cq *cq, bool ex, uint64_t wr_id, enum ibv_wc_status status,
                 const struct ibv_qp *qp)
{
    time_t end = time(NULL) + 6 * WAIT_S;
    struct ibv_wc wc;
    int n;

    while ((n = next_of(cq, ex, &wc)) == 0 && time(NULL) <= end) {
    }
    CHECK(n == 1, "%d", n);
    if (n != 1) {
        exit(1);
    }
    CHECK(wc.wr_id == wr_id && wc.status == status && wc.qp_num == qp->qp_num,
          "%llu: %s of QP %u, not %llu", (unsigned long long)wc.wr_id,
          ibv_wc_status_str(wc.status), wc.qp_num, (unsigned long long)wr_id);
}

static void nothing(struct ibv_cq *cq, bool ex)
{
    struct ibv_wc wc;

    for (unsigned i = 0; i < 1000; i++) {
        CHECK(next_of(cq, ex, &wc) == 0, "%llu", (unsigned long long)wc.wr_id);
    }
}

/* What gone_on() left comes: of two QPs in any order, of one queue in its own. */
static void flushed(struct ibv_cq *cq, bool ex, const struct ibv_qp *sender)
{
    time_t end = time(NULL) + 6 * WAIT_S;
    unsigned sent = 0, received = 0;
    struct ibv_wc wc;

    while (sent < SENDS || received < 1) {
        int n = next_of(cq, ex, &wc);

        if (n < 0 || time(NULL) > end) {
            errno = n < 0 ? -n : ETIMEDOUT;
            die("nothing is flushed");
        }
        if (n == 0) {
            continue;
        }
        CHECK(wc.status == IBV_WC_WR_FLUSH_ERR, "%s", ibv_wc_status_str(wc.status));
        if (wc.qp_num == sender->qp_num) {
            CHECK(wc.wr_id == 200 + sent && wc.opcode == IBV_WC_SEND, "%llu",
                  (unsigned long long)wc.wr_id);
            sent++;
        } else {
            CHECK(wc.qp_num == s.qp->qp_num && wc.wr_id == 100 &&
                      wc.opcode == IBV_WC_RECV,
                  "%llu", (unsigned long long)wc.wr_id);
            received++;
        }
    }
}

/* @sender's requests wait for receives that never come; that of @s.qp for a message. */
static void gone_on(bool ex)
{
    struct ibv_comp_channel *ch = ibv_create_comp_channel(s.ctx);
    struct ibv_cq_init_attr_ex attr = {
        .cqe = 64, .channel = ch, .wc_flags = IBV_WC_STANDARD_FLAGS};
    struct ibv_srq_init_attr srq_attr = {.attr = {.max_wr = 8, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(s.pd, &srq_attr);
    struct pollfd pfd = {.fd = ch ? ch->fd : -1, .events = POLLIN};
    struct ibv_recv_wr wr = {.wr_id = 400}, *bad_recv;
    struct ibv_qp *sender;
    struct ibv_cq *cq;

    if (ex) {
        s.ex = ch ? ibv_create_cq_ex(s.ctx, &attr) : NULL;
        cq = s.ex ? ibv_cq_ex_to_cq(s.ex) : NULL;
    } else {
        cq = ch ? ibv_create_cq(s.ctx, 64, NULL, ch, 0) : NULL;
    }
    DIE_IF(!cq || !srq, "CQ, SRQ");
    make_qp(cq);
    /* Not flushed: who made the SRQ has what it posted there. */
    sender = idle_qp(cq, srq);
    errno = ibv_req_notify_cq(cq, 0);
    write_one(300);
    DIE_IF(errno || poll(&pfd, 1, WAIT_S * 1000) != 1, "no event");
    post_recv(s.qp, 100);
    for (unsigned i = 0; i < SENDS; i++) {
        post_send(sender, 200 + i);
    }
    puts("ready");
    fflush(stdout);
    next(cq, ex, 300, IBV_WC_SUCCESS, s.qp);
    /* Of queue pairs in any order, of one queue in its. */
    flushed(cq, ex, sender);
    nothing(cq, ex);
    errno = ibv_post_srq_recv(srq, &wr, &bad_recv);
    CHECK(!errno, "%s", strerror(errno));
    nothing(cq, ex);
    /* More than there are slots, as nobody reads them. */
    for (unsigned i = 0; i < 40; i++) {
        post_send(sender, 500 + i);
        next(cq, ex, 500 + i, IBV_WC_WR_FLUSH_ERR, sender);
        post_recv(s.qp, 600 + i);
        next(cq, ex, 600 + i, IBV_WC_WR_FLUSH_ERR, s.qp);
    }
    nothing(cq, ex);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    struct options o = {0};

    optind = 2;
    if (!options_read(&o, argc, argv, 0, 0) || !o.device ||
        (strcmp(mode, "stamps") != 0 && strcmp(mode, "moderate") != 0 &&
         strcmp(mode, "slots") != 0 && strncmp(mode, "gone", 4) != 0)) {
        fputs(
            "usage: cqcheck stamps|moderate|slots|gone|gone-ex -d DEVICE -g GID_INDEX\n",
            stderr);
        return 2;
    }
    s.gid_index = o.gid_index;
    open_device(o.device);
    if (strcmp(mode, "stamps") == 0) {
        stamps();
    } else if (strcmp(mode, "slots") == 0) {
        slots();
    } else if (strncmp(mode, "gone", 4) == 0) {
        gone_on(mode[4] != 0);
    } else {
        moderation();
    }
    printf("%u checks, %u errors\n", s.checks, s.errors);
    return s.errors != 0;
}
