/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: a host that is linked, binds a connection to a VM's queue pair, and then
 * sends what no daemon would (fakestream.c).  Only that connection suffers: checksummed
 * traffic of another VM with a third host goes on, and the daemon says what was wrong.
 */
#include "fakestream.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "transport/iwarp/wire/bytes.h"
#include "transport/iwarp/wire/control_stags.h"

/* ---- startup ---- */

static void test_start(void)
{
    uint8_t bytes[MPA_MAX_STARTUP];
    size_t len;
    int fd;

    fakestream_begin(PVRDMA_QPT_RC, MPA_REQUEST);
    /* A token that was never agreed on, one that was used, one for another's. */
    fd = connect_from(2, 0);
    put(fd, bytes, put_start(bytes));
    expect_end(fd, IWARP_OK);
    fd = call();
    close(fd);
    fd = connect_from(2, 0);
    put(fd, bytes, put_start(bytes));
    expect_end(fd, IWARP_OK);
    /* From another host that may link, which has seen it; its owner's still goes. */
    g_assert_cmpuint(ask(), ==, PEER_BIND_OK);
    len = put_start(bytes);
    fd = connect_from(1, 0);
    put(fd, bytes, len);
    expect_end(fd, IWARP_OK);
    fd = connect_from(2, 0);
    put(fd, bytes, len);
    g_assert_true(get_ready(fd));
    close(fd);
    /* Half a Request, and then the end; rubbish; more than a Request. */
    for (unsigned i = 1; i < 90; i += 7) {
        g_assert_cmpuint(ask(), ==, PEER_BIND_OK);
        fd = connect_from(2, 0);
        len = put_start(bytes);
        put(fd, bytes, MIN(i, len - 1));
        shutdown(fd, SHUT_WR);
        expect_end(fd, IWARP_OK);
        fd = connect_from(2, 0);
        bytes[i % 16] ^= 0x80;
        put(fd, bytes, len);
        expect_end(fd, IWARP_OK);
    }
    /* One byte and more behind it. */
    g_assert_cmpuint(ask(), ==, PEER_BIND_OK);
    fd = connect_from(2, 0);
    len = put_start(bytes);
    memset(bytes + len, 0, 20);
    put(fd, bytes, len + 20);
    expect_end(fd, IWARP_OK);
    /* A first message that does not come first. */
    g_assert_cmpuint(ask(), ==, PEER_BIND_OK);
    fd = connect_from(2, 0);
    put(fd, bytes, put_start(bytes));
    put_empty_write(fd, 0x10, 0);
    wait_closed(fd);
    /* No Request at all: others come in meanwhile, and it is closed in the end. */
    g_assert_cmpuint(ask(), ==, PEER_BIND_OK);
    fd = connect_from(2, 0);
    put(fd, bytes, 10);
    close(call());
    expect_end(fd, IWARP_OK);
    /* A token that was agreed on, and is shown too late: 5 s is what it lives for. */
    g_assert_cmpuint(ask(), ==, PEER_BIND_OK);
    g_usleep(5100000);
    fd = connect_from(2, 0);
    put(fd, bytes, put_start(bytes));
    expect_end(fd, IWARP_OK);
    fakestream_end();
}

/*
 * A host that is taken out of the key file has no say any more, not by a token that was
 * good, nor by a Request of which a part had come.
 */
static void test_removed(void)
{
    g_autofree char *text = NULL;
    uint8_t bytes[MPA_MAX_STARTUP];
    char *group, *next;
    size_t len;
    int fd[2];

    fakestream_begin(PVRDMA_QPT_RC, MPA_REQUEST);
    g_assert_cmpuint(ask(), ==, PEER_BIND_OK);
    len = put_start(bytes);
    for (unsigned i = 0; i < 2; i++) {
        fd[i] = connect_from(2, 0);
    }
    put(fd[0], bytes, len / 2);
    check_ping(&fake, 3); /* so it has come */

    g_assert_true(g_file_get_contents(fakestream_host[0]->config, &text, NULL, NULL));
    group = strstr(text, "[peer host2]");
    g_assert_nonnull(group);
    next = strchr(group + 1, '[');
    memmove(group, next ? next : "", strlen(next ? next : "") + 1);
    g_assert_true(g_file_set_contents(fakestream_host[0]->config, text, -1, NULL));
    g_assert_cmpint(vg_ctl(fakestream_host[0], NULL, "reload"), ==, 0);
    close(fake.fd);
    fake.fd = -1;

    put(fd[0], bytes + len / 2, len - len / 2);
    expect_end(fd[0], IWARP_OK);
    put(fd[1], bytes, len);
    expect_end(fd[1], IWARP_OK);
    fakestream_end();
}

/*
 * The address has come to a VM of host 1.  Host 2 asks for connections as before; that it
 * is a peer, and had the address, is not enough.
 */
static void test_not_its_own(void)
{
    int64_t until = vg_now_ns() + VGT_WAIT_MS * 1000000ll;
    struct peer_msg unclaim = {.type = PEER_MSG_UNCLAIM, .claim.network = "lan"};
    uint8_t bytes[MPA_MAX_STARTUP];
    struct pvrdma_gid gid;
    unsigned result;
    struct vguest *g;
    int fd;

    fakestream_begin(PVRDMA_QPT_RC, MPA_REQUEST);
    close(call());
    g = vguest_new(fakestream_host[1], 4, NULL);
    gid = vg_gid(0);
    unclaim.claim.gid = gid;
    put_msg(&fake, &unclaim);
    while (vg_bind_gid(g, 1, &gid) != 0) { /* once host 1 has heard it, if it asked */
        g_assert_cmpint(vg_now_ns(), <, until);
        g_usleep(10000);
    }
    do {
        g_assert_cmpint(vg_now_ns(), <, until);
        if (vg_qp_state(victim.qp) != PVRDMA_QPS_RTS) {
            victim_connect();
        }
        result = ask();
    } while (result == PEER_BIND_NOT_YET); /* while it is asked for */
    g_assert_cmpuint(result, ==, PEER_BIND_REFUSED);
    host_wait_logged(
        fakestream_host[0],
        "peer host2: a connection from an address that the peer does not have");
    fd = connect_from(2, 0);
    put(fd, bytes, put_start(bytes));
    expect_end(fd, IWARP_OK);
    vguest_free(g);
    fakestream_end();
}

/*
 * Take the markers out of the stream's next @n bytes, which are behind @*pos of them; how
 * many are left.  Where the frames begin they say themselves, by being understood.
 */
static size_t unmark(uint8_t *in, size_t n, uint64_t *pos, unsigned *bytes)
{
    size_t out = 0;

    for (size_t i = 0; i < n; i++, ++*pos) {
        unsigned at = *pos % FPDU_MARKER_EVERY;

        if (at >= FPDU_MARKER) {
            in[out++] = in[i];
            continue;
        }
        g_assert_true(at >= 2 || in[i] == 0); /* 16 reserved bits, then the way back */
        ++*bytes;
    }
    return out;
}

/* A peer that demands markers gets them; it has no need to send any. */
static void test_markers(void)
{
    static uint8_t room[FPDU_MAX_SIZE];
    uint8_t bytes[MPA_MAX_STARTUP], in[1500], data[3000];
    struct pvrdma_sge sge = {0};
    struct vg_wr wr = vg_wr_of(1, PVRDMA_WR_SEND, VGT_SIG, &sge);
    unsigned marks = 0;
    struct fpdu_rx rx;
    uint64_t pos = 0;
    size_t got = 0;
    int fd;

    fakestream_begin(PVRDMA_QPT_RC, MPA_REQUEST);
    g_assert_cmpuint(ask(), ==, PEER_BIND_OK);
    fd = connect_from(2, 0);
    start.markers = true;
    put(fd, bytes, put_start(bytes));
    g_assert_true(get_ready(fd));
    for (size_t i = 0; i < sizeof(data); i++) {
        VG_MR_HOST(victim.mr, 0)[i] = (uint8_t)(i * 7 + 1);
    }
    sge = vg_sge(victim.mr, 0, sizeof(data));
    g_assert_cmpuint(vg_post_send(victim.qp, &wr, 1), ==, 1);
    /* Sums, and where markers point to, are for tshark (test-tshark.py). */
    fpdu_rx_init(&rx, room, sizeof(room), false, rdmap_head_len);
    while (got < sizeof(data)) {
        ssize_t n = recv(fd, in, sizeof(in), 0);
        struct fpdu_input input = {in, n > 0 ? unmark(in, (size_t)n, &pos, &marks) : 0};
        struct rdmap_segment s;
        struct fpdu_part part;

        g_assert_cmpint(n, >, 0);
        for (;;) {
            g_assert_cmpint(fpdu_rx_next(&rx, &input, &part), ==, IWARP_OK);
            if (part.kind == FPDU_NONE) {
                break;
            }
            g_assert_cmpint(part.kind, ==, FPDU_WHOLE);
            g_assert_cmpint(rdmap_get(part.data, part.len, part.len, RDMAP_EXTENDED, &s),
                            ==, IWARP_OK);
            if (s.opcode == RDMAP_SEND) {
                g_assert_cmpuint(s.payload_len, <=, sizeof(data) - got);
                memcpy(data + got, part.data + s.head_len, s.payload_len);
                got += s.payload_len;
            }
        }
    }
    g_assert_cmpmem(data, sizeof(data), VG_MR_HOST(victim.mr, 0), sizeof(data));
    g_assert_cmpuint(marks, >=, sizeof(data) / FPDU_MARKER_EVERY * FPDU_MARKER);
    put_empty_write(fd, 0x10, 0); /* ACK: message 0 is done */
    vgt_expect(victim.scq, wr.wr_id, PVRDMA_WC_SUCCESS);
    close(fd);
    fakestream_end();
}

/* Positions that no queue pair gets to: counting on, the numbers would not fit. */
static void test_far_positions(void)
{
    static const uint64_t seq[] = {CTL_SEQ_START_MAX + 1, CTL_SEQ_MAX, CTL_SEQ_MAX + 1,
                                   UINT64_MAX};
    uint8_t bytes[MPA_MAX_STARTUP];
    int fd;

    fakestream_begin(PVRDMA_QPT_RC, MPA_REQUEST);
    for (unsigned i = 0; i < G_N_ELEMENTS(seq); i++) {
        g_assert_cmpuint(ask(), ==, PEER_BIND_OK);
        hello.seq = seq[i];
        fd = connect_from(2, 0);
        put(fd, bytes, put_start(bytes));
        g_assert_false(get_ready(fd));
        close(fd);
        hello.seq = 0;
        vgt_traffic_run(&traffic, 5);
        victim_connect();
    }
    for (unsigned i = 0; i < 2; i++) {
        fd = call();
        put_empty_write(fd, 0x13, seq[i]);
        put_empty_write(fd, CTL_FIRST_KEY, 0);
        put_empty_write(fd, CTL_FIRST_KEY, 0);
        expect_end(fd, RDMAP_STREAM_CATASTROPHIC);
    }
    /* The last one that may be, and the end of the stream in the same packet. */
    for (unsigned i = 0; i < 20; i++) {
        fd = call();
        put_empty_write(fd, 0x13, CTL_SEQ_START_MAX);
        put_empty_write(fd, CTL_FIRST_KEY, 0);
        put_empty_write(fd, CTL_FIRST_KEY, 0);
        shutdown(fd, SHUT_WR);
        expect_end(fd, IWARP_OK);
        victim_connect();
    }
    fakestream_end();
}

/* ---- frames ---- */

static void test_ctl(void)
{
    static const uint32_t reserved[] = {0, 2, 0xf, 0x17, 0x80, 0xff};
    struct rdmap_segment s;
    int fd;

    fakestream_begin(PVRDMA_QPT_RC, MPA_REQUEST);
    for (unsigned i = 0; i < G_N_ELEMENTS(reserved); i++) {
        fd = call();
        put_empty_write(fd, reserved[i], 0);
        expect_end(fd, DDP_TAGGED_BAD_STAG);
    }
    for (uint32_t stag = 0x10; stag < 0x13; stag++) { /* of what was not sent */
        fd = call();
        put_empty_write(fd, stag, stag == 0x12 ? 9ull << 56 : 0);
        expect_end(fd, RDMAP_STREAM_CATASTROPHIC);
        fd = call();
        put_empty_write(fd, stag, CTL_SEQ_MAX | (stag == 0x12 ? 9ull << 56 : 0));
        expect_end(fd, RDMAP_STREAM_CATASTROPHIC);
    }
    for (uint32_t stag = 0x10; stag < 0x17; stag++) { /* wrong arguments */
        fd = call();
        put_empty_write(fd, stag, 0xffull << 56);
        expect_end(fd, RDMAP_STREAM_CATASTROPHIC);
    }
    fd = call();
    put_empty_write(fd, 0x16, 0); /* of UC alone */
    expect_end(fd, RDMAP_STREAM_CATASTROPHIC);
    fd = call();
    rdmap_begin(&s, RDMAP_WRITE); /* with bytes it is a Write to no memory */
    s.ddp.stag = 0x10;
    put_segment(fd, &s, 1);
    expect_end(fd, IWARP_OK);
    fakestream_end();
}

/* A queue pair of UC, which hears of nothing that RC's do. */
static void test_unreliable(void)
{
    uint8_t bytes[MPA_MAX_STARTUP];
    struct rdmap_segment s;
    int fd;

    fakestream_begin(PVRDMA_QPT_UC, MPA_REQUEST);
    for (uint32_t stag = 0x10; stag < 0x15; stag++) {
        if (stag == 0x13) {
            continue; /* RESTART is for both */
        }
        fd = call();
        put_empty_write(fd, stag, stag == 0x12 ? 9ull << 56 : 0);
        expect_end(fd, RDMAP_STREAM_CATASTROPHIC);
    }
    fd = call();
    rdmap_begin(&s, RDMAP_READ_REQUEST);
    s.ddp.msn = 1;
    put_segment(fd, &s, 0);
    expect_end(fd, RDMAP_STREAM_CATASTROPHIC);
    fd = call();
    rdmap_begin(&s, RDMAP_SEND_INV);
    s.ddp.msn = 1;
    put_segment(fd, &s, 0);
    expect_end(fd, RDMAP_BAD_OPCODE);
    /* What is given up never ends, or was none. */
    fd = call();
    put_empty_write(fd, 0x16, 0);
    put_empty_write(fd, 0x16, 0);
    put_empty_write(fd, CTL_FIRST_KEY, 0);
    close(fd);
    /* One of RC does not get to it. */
    g_assert_cmpuint(ask(), ==, PEER_BIND_OK);
    hello.unreliable = false;
    fd = connect_from(2, 0);
    put(fd, bytes, put_start(bytes));
    expect_end(fd, IWARP_OK);
    g_assert_cmpuint(vg_qp_state(victim.qp), ==, PVRDMA_QPS_RTS);
    fakestream_end();
}

/* Good frames each, which test-wire.py captures. */
static void test_order(void)
{
    struct rdmap_segment s;
    int fd;

    fakestream_begin(PVRDMA_QPT_RC, MPA_REQUEST);
    for (unsigned i = 0; i < 8; i++) {
        vgt_recv(&victim, i, 0, 64);
    }
    fd = call();
    rdmap_begin(&s, RDMAP_SEND);
    s.ddp.msn = 2;
    put_segment(fd, &s, 8);
    expect_end(fd, DDP_UNTAGGED_BAD_MSN);
    fd = call();
    s.ddp.msn = 1;
    s.ddp.mo = 8;
    put_segment(fd, &s, 8);
    expect_end(fd, DDP_UNTAGGED_BAD_MO);
    /* A Write into a Send, and the other way round. */
    fd = call();
    s.ddp.mo = 0;
    s.ddp.last = false;
    put_segment(fd, &s, 8);
    rdmap_begin(&s, RDMAP_WRITE);
    s.ddp.stag = victim.mr->rkey;
    s.ddp.to = victim.mr->buf->va;
    put_segment(fd, &s, 8);
    expect_end(fd, DDP_TAGGED_BAD_BOUNDS);
    fd = call();
    s.ddp.last = false;
    put_segment(fd, &s, 8);
    s.ddp.to += 9;
    put_segment(fd, &s, 8);
    expect_end(fd, DDP_TAGGED_BAD_BOUNDS);
    fakestream_end();
}

static void test_answers(void)
{
    struct rdmap_segment s;
    uint8_t ulpdu[RDMAP_MAX_HEAD] = {0};
    int fd;

    fakestream_begin(PVRDMA_QPT_RC, MPA_REQUEST);
    fd = call();
    rdmap_begin(&s, RDMAP_READ_RESPONSE);
    s.ddp.stag = 0x100;
    put_segment(fd, &s, 8);
    expect_end(fd, DDP_TAGGED_BAD_STAG);
    fd = call();
    rdmap_begin(&s, RDMAP_ATOMIC_RESPONSE);
    s.ddp.msn = 1;
    s.result.id = 0x100;
    put_segment(fd, &s, 0);
    expect_end(fd, RDMAP_STREAM_CATASTROPHIC);
    /* An atomic whose masks no verb has. */
    fd = call();
    rdmap_begin(&s, RDMAP_ATOMIC_REQUEST);
    s.ddp.msn = 1;
    rdmap_plain_atomic(&s, RDMAP_FETCH_ADD, 1, 0);
    s.atomic.mask = 1ull << 31;
    s.atomic.stag = victim.mr->rkey;
    s.atomic.to = victim.mr->buf->va;
    put_segment(fd, &s, 0);
    expect_end(fd, RDMAP_STREAM_CATASTROPHIC);
    /* A wrong sum. */
    fd = call();
    put_ulpdu(fd, ulpdu, (uint32_t)rdmap_put(&s, ulpdu), 1);
    expect_end(fd, MPA_BAD_CRC);
    fakestream_end();
}

/*
 * A connection that is reset when the first bytes of a message have come; or before any
 * may.  False: there was none, or nothing came.
 */
static bool reset_one(bool sent)
{
    struct linger hard = {.l_onoff = 1};
    uint8_t bytes[MPA_MAX_STARTUP];
    struct mpa_frame reply;
    bool done;
    int fd;

    if (ask() != PEER_BIND_OK) {
        return false;
    }
    fd = connect_from(2, 0);
    put(fd, bytes, put_start(bytes));
    if (sent) {
        done = get_ready(fd) && recv(fd, bytes, 1, 0) == 1;
    } else {
        done = get_start(fd, MPA_REPLY, bytes, &reply);
    }
    g_assert_cmpint(setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard)), ==, 0);
    close(fd);
    return done;
}

/* Resets use up the tries no faster than silence does; but they do. */
static void test_resets(void)
{
    uint8_t byte;
    gint64 begin;
    unsigned n;
    int fd;

    fakestream_begin(PVRDMA_QPT_RC, MPA_REQUEST);
    victim_attr.timeout = 22; /* 17 s */
    victim_connect();
    vgt_send(&victim, 1, PVRDMA_WR_SEND, VGT_SIG, 0, 64, &victim, 0);
    for (n = 0; n < 10;) {
        n += reset_one(true);
    }
    g_assert_cmpuint(vg_qp_state(victim.qp), ==, PVRDMA_QPS_RTS);
    fd = call();
    g_assert_cmpint(recv(fd, &byte, 1, 0), ==, 1);
    put_empty_write(fd, 0x10, 0); /* it has come, after all */
    vgt_expect(victim.scq, 1, PVRDMA_WC_SUCCESS);
    close(fd);

    victim_attr.timeout = 14; /* taken for half a second */
    victim_attr.retry_cnt = 1;
    for (unsigned sent = 0; sent < 2; sent++) {
        victim_connect();
        begin = g_get_monotonic_time();
        vgt_send(&victim, 2, PVRDMA_WR_SEND, VGT_SIG, 0, 64, &victim, 0);
        for (n = 0; vg_qp_state(victim.qp) == PVRDMA_QPS_RTS;) {
            n += reset_one(sent);
        }
        g_assert_cmpuint(n, >, 2);
        vgt_expect(victim.scq, 2, PVRDMA_WC_RETRY_EXC_ERR);
        g_assert_cmpint(g_get_monotonic_time() - begin, >, 500000);
    }
    fakestream_end();
}

static void put_read(int fd, uint32_t msn, uint32_t len)
{
    struct rdmap_segment s;

    rdmap_begin(&s, RDMAP_READ_REQUEST);
    s.ddp.msn = msn;
    s.read = (struct rdmap_read){.sink_stag = 0x100,
                                 .len = len,
                                 .src_stag = victim.mr->rkey,
                                 .src_to = victim.mr->buf->va};
    put_segment(fd, &s, 0);
}

/*
 * Memory, of one that does not read the answers to its READs and goes on sending; and
 * more READs than were agreed on.
 */
static void test_reads(void)
{
    struct vg_usage before, after;
    struct pvrdma_cqe c;
    int fd;

    fakestream_begin(PVRDMA_QPT_RC, MPA_REQUEST);
    vgt_traffic_run(&traffic, 50);
    fd = call();
    vg_daemon_usage(fakestream_host[0], &before);
    for (uint32_t i = 1; i <= 16; i++) {
        put_read(fd, i, 1 << 20);
    }
    /* And what the VM itself has to say. */
    for (unsigned i = 0; i < 32; i++) {
        struct pvrdma_sge sge = vg_sge(victim.mr, 0, 1 << 20);
        struct vg_wr wr = {.wr_id = i,
                           .opcode = PVRDMA_WR_RDMA_WRITE,
                           .flags = VGT_SIG,
                           .rkey = 0x1000,
                           .nsge = 1,
                           .sge = &sge};

        g_assert_cmpuint(vg_post_send(victim.qp, &wr, 1), ==, 1);
    }
    for (unsigned i = 0; i < 300; i++) { /* each is a turn for its connection */
        put_empty_write(fd, CTL_FIRST_KEY, 0);
        g_usleep(500);
    }
    vgt_traffic_run(&traffic, 100);
    vg_daemon_usage(fakestream_host[0], &after);
    g_test_message("%ld KiB before, %ld KiB after", before.rss_anon_kib,
                   after.rss_anon_kib);
    if (VGT_PLAIN_BUILD) {
        g_assert_cmpint(after.rss_anon_kib - before.rss_anon_kib, <, 4096);
    }
    for (uint32_t i = 17; i <= 40; i++) {
        put_read(fd, i, 1 << 20);
    }
    vg_qp_to_state(victim.qp, PVRDMA_QPS_ERR);
    for (unsigned i = 0; i < 32; i++) {
        g_assert_true(vg_cq_wait(victim.scq, &c, VGT_WAIT_MS));
        g_assert_cmpuint(c.status, !=, PVRDMA_WC_SUCCESS);
    }
    close(fd);
    fd = call();
    for (uint32_t i = 1; i <= 60; i++) {
        put_read(fd, i, 1 << 20);
    }
    expect_end(fd, RDMAP_STREAM_CATASTROPHIC);
    fakestream_end();
}

/* What costs the queue pair that it was for. */
static void test_protection(void)
{
    struct rdmap_segment s;
    int fd;

    fakestream_begin(PVRDMA_QPT_RC, MPA_REQUEST);
    vgt_recv(&victim, 1, 0, 64);
    fd = call();
    rdmap_begin(&s, RDMAP_SEND);
    s.ddp.msn = 1;
    put_segment(fd, &s, 65);
    vgt_expect(victim.rcq, 1, PVRDMA_WC_LOC_LEN_ERR);
    expect_end(fd, IWARP_OK);
    g_assert_cmpuint(vg_qp_state(victim.qp), ==, PVRDMA_QPS_ERR);
    memset(VG_MR_HOST(victim.mr, 0), 0x55, 64);
    fd = call();
    rdmap_begin(&s, RDMAP_WRITE);
    s.ddp.stag = victim.mr->rkey;
    s.ddp.to = victim.mr->buf->va - 8;
    put_segment(fd, &s, 64);
    expect_end(fd, IWARP_OK);
    g_assert_cmpuint(vg_qp_state(victim.qp), ==, PVRDMA_QPS_ERR);
    for (unsigned i = 0; i < 64; i++) {
        g_assert_cmpuint(*VG_MR_HOST(victim.mr, i), ==, 0x55);
    }
    fd = call();
    rdmap_begin(&s, RDMAP_ATOMIC_REQUEST);
    s.ddp.msn = 1;
    rdmap_plain_atomic(&s, RDMAP_FETCH_ADD, 1, 0);
    s.atomic.stag = victim.mr->rkey;
    s.atomic.to = victim.mr->buf->va + 4;
    put_segment(fd, &s, 0);
    wait_closed(fd);
    vgt_traffic_run(&traffic, 20);
    g_assert_cmpuint(*VG_MR_HOST(victim.mr, 4), ==, 0x55);
    fakestream_end();
}

/* ---- anything ---- */

static uint64_t pick(GRand *r, uint64_t likely)
{
    switch (g_rand_int_range(r, 0, 12)) {
    case 0:
        return g_rand_int(r);
    case 1:
        return (uint64_t)g_rand_int(r) << 32 | g_rand_int(r);
    case 2:
        return likely + 1;
    default:
        return likely;
    }
}

/* A frame that may be right, and mostly is nearly so. */
static void put_random(int fd, GRand *r, uint32_t msn[RDMAP_QNS])
{
    uint8_t ulpdu[2048];
    struct rdmap_segment s;
    uint32_t len = (uint32_t)g_rand_int_range(r, 0, 4) * 100;
    size_t head;

    rdmap_begin(&s, (enum rdmap_opcode)(g_rand_int(r) % RDMAP_OPCODES));
    s.ddp.last = g_rand_int_range(r, 0, 4) != 0;
    if (s.ddp.tagged) {
        s.ddp.stag = (uint32_t)pick(r, victim.mr->rkey);
        s.ddp.to = pick(r, victim.mr->buf->va);
        if (g_rand_int_range(r, 0, 3) == 0) {
            s.ddp.stag = (uint32_t)g_rand_int_range(r, 0, 0x20);
            s.ddp.to = pick(r, 0);
            len = 0;
        }
    } else {
        s.ddp.stag = (uint32_t)pick(r, 0);
        s.ddp.qn = (uint32_t)pick(r, s.ddp.qn);
        s.ddp.mo = (uint32_t)pick(r, 0);
        s.ddp.msn = (uint32_t)pick(r, msn[s.ddp.qn % RDMAP_QNS]);
        msn[s.ddp.qn % RDMAP_QNS] += s.ddp.last;
    }
    switch (s.opcode) {
    case RDMAP_READ_REQUEST:
        s.read.len = (uint32_t)pick(r, len);
        s.read.src_stag = (uint32_t)pick(r, victim.mr->rkey);
        s.read.src_to = pick(r, victim.mr->buf->va);
        s.read.sink_to = pick(r, 0);
        break;
    case RDMAP_IMM:
    case RDMAP_IMM_SE:
        s.imm.of = (uint32_t)g_rand_int_range(r, 0, 4);
        break;
    case RDMAP_ATOMIC_REQUEST:
        rdmap_plain_atomic(&s, g_rand_boolean(r) ? RDMAP_FETCH_ADD : RDMAP_CMP_SWAP, 1,
                           0);
        s.atomic.stag = (uint32_t)pick(r, victim.mr->rkey);
        s.atomic.to = pick(r, victim.mr->buf->va);
        break;
    case RDMAP_TERMINATE: /* rdmap_put() does not make one */
        s.opcode = RDMAP_SEND;
        break;
    default:
        break;
    }
    memset(ulpdu, 0, sizeof(ulpdu));
    head = rdmap_put(&s, ulpdu);
    if (rdmap_ops[s.opcode].header) {
        len = 0;
    }
    if (g_rand_int_range(r, 0, 30) == 0) {
        ulpdu[g_rand_int(r) % head] ^= (uint8_t)(1u << g_rand_int(r) % 8);
    }
    put_ulpdu(fd, ulpdu, (uint32_t)(head + len), 0);
}

static void test_random(void)
{
    unsigned frames = vgt_rounds(10000), calls = 0, n = 0;
    GRand *r = g_rand_new_with_seed(20);
    struct pvrdma_cqe c;

    fakestream_begin(PVRDMA_QPT_RC, MPA_REQUEST);
    while (n < frames) {
        uint32_t msn[RDMAP_QNS] = {1, 1, 1, 1};
        int fd = call();

        calls++;
        vgt_recv(&victim, 1, 0, 256);
        for (unsigned i = 0; i < 20; i++, n++) {
            put_random(fd, r, msn);
        }
        close(fd);
        while (vg_cq_poll(victim.rcq, &c, 1) == 1) {
        }
        if (calls % 8 == 0) {
            victim_connect();
            vgt_traffic_run(&traffic, 2);
        }
    }
    g_test_message("%u frames by %u connections", n, calls);
    g_rand_free(r);
    fakestream_end();
}

int main(int argc, char **argv)
{
    vgt_init(&argc, &argv, 240);
    g_test_add_func("/hosts-hostile/start", test_start);
    g_test_add_func("/hosts-hostile/removed", test_removed);
    g_test_add_func("/hosts-hostile/not-its-own", test_not_its_own);
    g_test_add_func("/hosts-hostile/markers", test_markers);
    g_test_add_func("/hosts-hostile/far-positions", test_far_positions);
    g_test_add_func("/hosts-hostile/ctl", test_ctl);
    g_test_add_func("/hosts-hostile/unreliable", test_unreliable);
    g_test_add_func("/hosts-hostile/order", test_order);
    g_test_add_func("/hosts-hostile/answers", test_answers);
    g_test_add_func("/hosts-hostile/resets", test_resets);
    g_test_add_func("/hosts-hostile/reads", test_reads);
    g_test_add_func("/hosts-hostile/protection", test_protection);
    g_test_add_func("/hosts-hostile/random", test_random);
    return vgt_run();
}
