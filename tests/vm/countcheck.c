/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * countcheck: one end counts in the other's memory by fetch-and-add, until SIGTERM.
 *
 *   countcheck -d DEVICE -g GIDINDEX -p PORT [SERVER]
 *       Without SERVER the end with the counter.  The other adds one at a time, several
 *       under way, and compares what each brings back: it is the only one that counts, so
 *       that an addition that is lost or done twice shows in the next.
 *
 * The end that counts says about once a second how far it is, and how long it stood still
 * since the last time, from one completion to the next at most: "at N, longest wait N
 * us". At the end both compare the counter with the successes and print "counter N,
 * successes N"; other than equal is a failure, as is any completion with an error: then
 * "event NAME" for each asynchronous event that comes within EVENTS_MS.  It sleeps until
 * a completion comes, so an event that is lost is an end that does not come. One thread.
 * Needs libibverbs; the TCP connection is datacheck's.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "datacheck.h"
#include "options.h"
#include "rcqp.h"

#define DEPTH     8u
#define EVENTS_MS 5000
#define ACCESS \
    (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)

struct end {
    union ibv_gid gid;
    uint64_t addr;
    uint32_t qpn, rkey;
};

static struct {
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    /* The counter at one end, at the other what the additions under way bring. */
    uint64_t *words;
    struct end other;
    uint64_t posted, successes;
    /* In us: when the last completion came, and the longest wait that was not told. */
    uint64_t last, longest;
} c;

static volatile sig_atomic_t ended;

static void on_term(int sig)
{
    (void)sig;
    ended = 1;
}

static uint64_t now_us(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
}

static void create(void)
{
    struct ibv_qp_init_attr init = {
        .cap = {.max_send_wr = DEPTH,
                .max_recv_wr = 1,
                .max_send_sge = 1,
                .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 1,
    };

    DIE_IF(posix_memalign((void **)&c.words, 4096, 4096), "no memory");
    memset(c.words, 0, 4096);
    c.pd = ibv_alloc_pd(s.ctx);
    c.channel = c.pd ? ibv_create_comp_channel(s.ctx) : NULL;
    c.cq = c.channel ? ibv_create_cq(s.ctx, 2 * (int)DEPTH, NULL, c.channel, 0) : NULL;
    c.mr = c.cq ? ibv_reg_mr(c.pd, c.words, 4096, ACCESS) : NULL;
    DIE_IF(!c.mr, "cannot create PD, CQ or MR: %s", strerror(errno));
    init.send_cq = init.recv_cq = c.cq;
    c.qp = ibv_create_qp(c.pd, &init);
    DIE_IF(!c.qp, "create_qp: %s", strerror(errno));
}

static void meet(void)
{
    struct end own = {
        .addr = (uintptr_t)c.words, .qpn = c.qp->qp_num, .rkey = c.mr->rkey};
    int err;

    DIE_IF(ibv_query_gid(s.ctx, 1, s.gid_index, &own.gid), "query_gid: %s",
           strerror(errno));
    sock_write(&own, sizeof(own));
    sock_read(&c.other, sizeof(c.other));
    err = rcqp_to_init(c.qp, ACCESS);
    err = err ? err : rcqp_connect(c.qp, c.other.qpn, &c.other.gid, s.gid_index);
    DIE_IF(err, "connection: %s", strerror(err));
    barrier('c');
}

static void add(void)
{
    struct ibv_sge sge = {(uintptr_t)&c.words[c.posted % DEPTH], sizeof(*c.words),
                          c.mr->lkey};
    struct ibv_send_wr *bad, wr = {
                                 .wr_id = c.posted,
                                 .sg_list = &sge,
                                 .num_sge = 1,
                                 .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
                                 .wr.atomic = {.remote_addr = c.other.addr,
                                               .rkey = c.other.rkey,
                                               .compare_add = 1},
                             };
    int err = ibv_post_send(c.qp, &wr, &bad);

    DIE_IF(err, "post_send: %s", strerror(err));
    c.posted++;
}

static void tell_events(void)
{
    struct pollfd fd = {.fd = s.ctx->async_fd, .events = POLLIN};
    struct ibv_async_event event;

    while (poll(&fd, 1, EVENTS_MS) == 1 && ibv_get_async_event(s.ctx, &event) == 0) {
        printf("event %s\n", ibv_event_type_str(event.event_type));
        ibv_ack_async_event(&event);
    }
}

static void added(const struct ibv_wc *wc)
{
    uint64_t was = c.words[wc->wr_id % DEPTH], now = now_us();

    if (wc->status != IBV_WC_SUCCESS) {
        tell_events();
        die("addition %" PRIu64 " ended with %s", wc->wr_id,
            ibv_wc_status_str(wc->status));
    }
    DIE_IF(wc->wr_id != c.successes || was != c.successes,
           "addition %" PRIu64 " found %" PRIu64 " after %" PRIu64 " successes",
           wc->wr_id, was, c.successes);
    c.successes++;
    if (now - c.last > c.longest) {
        c.longest = now - c.last;
    }
    c.last = now;
}

/* Whether there were completions. */
static bool reap(void)
{
    struct ibv_wc wc;
    bool found = false;
    int n;

    while ((n = ibv_poll_cq(c.cq, 1, &wc)) > 0) {
        added(&wc);
        found = true;
    }
    DIE_IF(n < 0, "poll_cq failed");
    return found;
}

/* At least one completion. */
static void complete(void)
{
    struct ibv_cq *cq;
    void *context;

    while (!reap()) {
        DIE_IF(ibv_req_notify_cq(c.cq, 0), "req_notify_cq failed");
        /* What came before it was armed. */
        if (reap()) {
            return;
        }
        if (ibv_get_cq_event(c.channel, &cq, &context) == 0) {
            ibv_ack_cq_events(cq, 1);
        } else if (errno != EINTR) {
            die("get_cq_event: %s", strerror(errno));
        }
    }
}

static void tell(void)
{
    printf("at %" PRIu64 ", longest wait %" PRIu64 " us\n", c.successes, c.longest);
    fflush(stdout);
    c.longest = 0;
}

static void count(void)
{
    time_t told = time(NULL);

    c.last = now_us();
    while (!ended || c.successes < c.posted) {
        while (!ended && c.posted < c.successes + DEPTH) {
            add();
        }
        if (c.successes < c.posted) {
            complete();
        }
        if (time(NULL) != told) {
            told = time(NULL);
            tell();
        }
    }
    tell();
}

int main(int argc, char **argv)
{
    struct options o = {.number = (unsigned)s.port};
    uint64_t counter, successes;

    if (!options_read(&o, argc, argv, 'p', 0)) {
        fprintf(stderr, "usage: countcheck -d DEVICE -g GIDINDEX -p PORT [SERVER]\n");
        return 2;
    }
    s.dev = o.device;
    s.gid_index = o.gid_index;
    s.port = (int)o.number;
    s.server = argv[optind];
    open_device();
    tcp_open();
    create();
    meet();
    if (s.server) {
        sigaction(SIGTERM, &(struct sigaction){.sa_handler = on_term}, NULL);
        count();
        successes = c.successes;
        sock_write(&successes, sizeof(successes));
        sock_read(&counter, sizeof(counter));
    } else {
        sock_read(&successes, sizeof(successes));
        counter = *(volatile uint64_t *)c.words;
        sock_write(&counter, sizeof(counter));
    }
    printf("counter %" PRIu64 ", successes %" PRIu64 "\n", counter, successes);
    return counter != successes;
}
