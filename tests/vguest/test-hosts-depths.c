/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: how many READs and atomics MPA's startup frames let be on their way, by a
 * made-up host (fakestream.h) that takes less than a daemon, and counts; and what it
 * costs when that has begun as many frames as it can, and ends none.
 */
#include "fakestream.h"

#include <arpa/inet.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "transport/iwarp/wire/bytes.h"

#define LEN 64u

/* The next READ or atomic that is asked for; false: none, for @ms. */
static bool get_request(struct rdmap_segment *s, int ms)
{
    while (get_segment(s, ms)) {
        if (s->opcode == RDMAP_READ_REQUEST || s->opcode == RDMAP_ATOMIC_REQUEST) {
            return true;
        }
    }
    return false;
}

static void answer(int fd, const struct rdmap_segment *request)
{
    struct rdmap_segment s;

    if (request->opcode == RDMAP_ATOMIC_REQUEST) {
        rdmap_begin(&s, RDMAP_ATOMIC_RESPONSE);
        s.ddp.msn = 1; /* there is one in each stream */
        s.result.id = request->atomic.id;
        put_segment(fd, &s, 0);
        return;
    }
    rdmap_begin(&s, RDMAP_READ_RESPONSE);
    s.ddp.stag = request->read.sink_stag;
    s.ddp.to = request->read.sink_to;
    put_segment(fd, &s, request->read.len);
}

/* ---- connections ---- */

/* A link's message that has come. */
static void take_msg(void)
{
    struct peer_msg m, a = {.type = PEER_MSG_BIND_ANSWER};

    g_assert_true(get_msg(&fake, &m, NULL));
    if (m.type == PEER_MSG_BIND) {
        a.answer = (struct peer_bind_answer){.token = {m.bind.token[0], m.bind.token[1]},
                                             .incarnation = hello.incarnation,
                                             .result = PEER_BIND_OK};
        put_msg(&fake, &a);
    }
}

/* The host 0 that has connected; -1: it is host 1, which wants a link. */
static int accept_victims(int listener)
{
    g_autofree char *victims = host_address(0);
    char text[INET_ADDRSTRLEN];
    struct sockaddr_in from;
    socklen_t len = sizeof(from);
    int fd = accept(listener, (struct sockaddr *)&from, &len);

    g_assert_cmpint(fd, >=, 0);
    inet_ntop(AF_INET, &from.sin_addr, text, sizeof(text));
    if (strcmp(text, victims) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* The daemon calls, and gets our startup frame; its own is @request. */
static int be_called(int listener, struct mpa_frame *request)
{
    static uint8_t bytes[MPA_MAX_STARTUP];
    uint8_t ours[MPA_MAX_STARTUP];
    struct hello theirs;
    int fd = -1;

    while (fd < 0) {
        struct pollfd p[2] = {{.fd = listener, .events = POLLIN},
                              {.fd = fake.fd, .events = POLLIN}};

        /* Messages may have come together: then they are not in the socket. */
        g_assert_cmpint(poll(p, 2, fake.in_len ? 0 : VGT_WAIT_MS), >=, 0);
        if (p[1].revents || fake.in_len) {
            take_msg();
        }
        if (p[0].revents) {
            fd = accept_victims(listener);
        }
    }
    g_assert_true(get_start(fd, MPA_REQUEST, bytes, request));
    g_assert_true(hello_get(request->data, request->data_len, &theirs));
    memcpy(hello.token, theirs.token, sizeof(hello.token));
    put(fd, ours, put_start(ours));
    return fd;
}

/* Call it; its Reply, without our first frame. */
static int call_it(struct mpa_frame *reply)
{
    uint8_t bytes[MPA_MAX_STARTUP];
    int fd;

    g_assert_cmpuint(ask(), ==, PEER_BIND_OK);
    fd = connect_from(2, 0);
    put(fd, bytes, put_start(bytes));
    g_assert_true(get_start(fd, MPA_REPLY, bytes, reply));
    return fd;
}

/* ---- cases ---- */

static void post(unsigned i, uint32_t opcode)
{
    struct pvrdma_sge sge =
        vg_sge(victim.mr, i * LEN, opcode == PVRDMA_WR_RDMA_READ ? LEN : 8);
    struct vg_wr wr = vg_wr_at(i, opcode, VGT_SIG, &sge, 0x10000, 0x1000);

    g_assert_cmpuint(vg_post_send(victim.qp, &wr, 1), ==, 1);
}

/* More than are taken at a time: there are never more than @depth to answer. */
static void check_depth(int fd, unsigned depth)
{
    enum { N = 6 };
    struct rdmap_segment open[N];
    unsigned asked = 0;

    get_from(fd);
    for (unsigned i = 0; i < N; i++) {
        post(i, i == 2 ? PVRDMA_WR_ATOMIC_FETCH_AND_ADD : PVRDMA_WR_RDMA_READ);
    }
    for (unsigned done = 0; done < N; done++) {
        struct rdmap_segment more;

        while (asked < MIN(N, done + depth)) {
            g_assert_true(get_request(&open[asked++], VGT_WAIT_MS));
        }
        g_assert_false(get_request(&more, 50));
        answer(fd, &open[done]);
    }
    for (unsigned i = 0; i < N; i++) {
        vgt_expect(victim.scq, i, PVRDMA_WC_SUCCESS);
    }
    close(fd);
}

/* One at a time and three, by a Request. */
static void test_request(void)
{
    struct rdmap_segment s;
    struct mpa_frame reply;
    int fd;

    fakestream_begin(PVRDMA_QPT_RC, MPA_REQUEST);
    victim_attr.timeout = 21; /* who answers here may be slow: 9 s */
    for (start.ird = 1; start.ird <= 3; start.ird += 2) {
        victim_connect();
        fd = call_it(&reply);
        g_assert_false(reply.reject);
        g_assert_cmpuint(reply.ord, ==, start.ird);
        g_assert_cmpuint(reply.ird, ==, 16);
        put_empty_write(fd, 1, 0);
        check_depth(fd, start.ird);
    }
    /* Nor are more answered than were asked for. */
    start.ird = 16;
    start.ord = 2;
    victim_connect();
    fd = call_it(&reply);
    g_assert_cmpuint(reply.ird, ==, 2);
    put_empty_write(fd, 1, 0);
    rdmap_begin(&s, RDMAP_READ_REQUEST);
    s.read = (struct rdmap_read){.sink_stag = 0x100,
                                 .len = 1 << 20,
                                 .src_stag = victim.mr->rkey,
                                 .src_to = victim.mr->buf->va};
    for (s.ddp.msn = 1; s.ddp.msn <= 40; s.ddp.msn++) {
        put_segment(fd, &s, 0);
    }
    expect_end(fd, RDMAP_STREAM_CATASTROPHIC);
    /* None at all is too few for a queue pair that may send them. */
    start.ird = 0;
    victim_connect();
    fd = call_it(&reply);
    g_assert_true(reply.reject);
    g_assert_cmpuint(reply.ord, ==, 1);
    expect_end(fd, IWARP_OK);
    /* One that may not yet gets its stream, up to its first READ. */
    victim_to_rtr();
    fd = call_it(&reply);
    g_assert_false(reply.reject);
    g_assert_cmpuint(reply.ord, ==, 0);
    put_empty_write(fd, 1, 0);
    vg_qp_to_rts(victim.qp, 0, &victim_attr);
    post(0, PVRDMA_WR_RDMA_READ);
    expect_end(fd, MPA_SMALL_IRD);
    fakestream_end();
}

/* The same by a Reply, and what an initiator cannot do with. */
static void test_reply(void)
{
    struct mpa_frame request;
    int listener, fd;

    fakestream_begin(PVRDMA_QPT_RC, MPA_REPLY);
    listener = listen_as(2);
    victim_attr.timeout = 21;
    for (start.ird = 1; start.ird <= 3; start.ird += 2) {
        victim_connect();
        fd = be_called(listener, &request);
        g_assert_cmpuint(request.ird, ==, 16);
        g_assert_cmpuint(request.ord, ==, 16);
        check_depth(fd, start.ird);
    }
    start.ird = 0;
    victim_connect();
    expect_end(be_called(listener, &request), MPA_SMALL_IRD);
    start.ird = 16;
    start.ord = 17;
    victim_connect();
    expect_end(be_called(listener, &request), MPA_SMALL_IRD);
    start.ord = 16;
    start.rtr = MPA_RTR_READ;
    victim_connect();
    expect_end(be_called(listener, &request), MPA_NO_RTR);
    /* And nothing is lost by that. */
    start.rtr = MPA_RTR_WRITE;
    victim_connect();
    check_depth(be_called(listener, &request), 16);
    close(listener);
    fakestream_end();
}

/* ---- frames that are not all there ---- */

#define N_HALVES 256u
#define HALF     65000u /* of a frame of 65,400 */
/*
 * "a frame that is not all there" in docs/hosts.md; and all the rest of a queue pair,
 * which is 8 or 9.
 */
#define EACH_KIB  64u
#define SLACK_KIB 16u

static void put_half(int fd)
{
    static uint8_t frame[HALF];
    struct rdmap_segment s;

    rdmap_begin(&s, RDMAP_WRITE);
    s.ddp.stag = victim.mr->rkey;
    s.ddp.to = victim.mr->buf->va;
    put_be16(frame, 65400);
    rdmap_put(&s, frame + FPDU_LENGTH);
    put(fd, frame, sizeof(frame));
}

static void test_halves(void)
{
    const struct vgt_opts o = {.guest[0].db = VG_DB_EXT};
    struct vg_qp *own, *qp[N_HALVES];
    int fd[N_HALVES];
    long grown;

    fakestream_begin(PVRDMA_QPT_RC, MPA_REQUEST);
    vgt_traffic_run(&traffic, 50);
    own = victim.qp;
    grown = -vgt_settled_kib();
    for (unsigned i = 0; i < N_HALVES; i++) {
        victim.qp = qp[i] = vg_qp_new(victim.pd, victim.scq, victim.rcq, &o.qp);
        fd[i] = call();
    }
    for (unsigned i = 0; i < N_HALVES; i++) {
        put_half(fd[i]);
    }
    grown += vgt_settled_kib();
    g_test_message("%ld KiB for %u frames", grown, N_HALVES);
    if (VGT_PLAIN_BUILD) {
        g_assert_cmpint(grown, >, N_HALVES * EACH_KIB); /* they have come */
        g_assert_cmpint(grown, <, N_HALVES * (EACH_KIB + SLACK_KIB));
    }
    vgt_traffic_run(&traffic, 20);
    for (unsigned i = 0; i < N_HALVES; i++) {
        close(fd[i]);
        vg_qp_free(qp[i]);
    }
    victim.qp = own;
    fakestream_end();
}

int main(int argc, char **argv)
{
    vgt_init(&argc, &argv, 120);
    g_test_add_func("/hosts-depths/request", test_request);
    g_test_add_func("/hosts-depths/reply", test_reply);
    g_test_add_func("/hosts-depths/halves", test_halves);
    return vgt_run();
}
