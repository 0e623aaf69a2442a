/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What a queue pair's stream keeps in memory of a peer that does not read, or whose input
 * cannot be looked at yet: docs/hosts.md says how much.  And which ACKs go by themselves.
 */
#include "streamdev.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "transport/iwarp/tx.h"
#include "transport/iwarp/wire/control_stags.h"

#define KIB 1024u
/* Of docs/hosts.md. */
#define FRAME_BYTES  (64u * KIB)
#define UNSENT_BYTES (264u * KIB)
#define INPUT_BYTES  (128u * KIB)
#define IDLE_BYTES   (KIB * 42 / 10)

#define N_READS 16u /* TCP_DEPTH */

static struct streamdev d;

static void begin(void)
{
    static const struct streamdev_opts o = {
        .type = PVRDMA_QPT_RC,
        .framing = {.crc = true, .ird = N_READS, .ord = N_READS},
        .sndbuf = 16384};

    streamdev_start(&d);
    streamdev_open(&d, &o);
}

static void end(void)
{
    streamdev_close(&d);
    streamdev_stop(&d);
}

static void test_sizes(void)
{
    size_t out = sizeof(((struct tcp_scratch *)NULL)->out_buf);

    g_assert_cmpuint(FPDU_MAX_SIZE, <=, FRAME_BYTES + 16);
    g_assert_cmpuint(2 * out, <=, UNSENT_BYTES + 64); /* see keep() */
    g_assert_cmpuint(sizeof(((struct tcp_scratch *)NULL)->in_buf), <=, INPUT_BYTES);
    g_test_message("idle: %zu", sizeof(struct conn) + sizeof(struct stream));
    g_assert_cmpuint(sizeof(struct conn) + sizeof(struct stream), <=, IDLE_BYTES);
}

/* ---- what the peer does not take ---- */

static void check_backlog(const struct stream *s)
{
    g_assert_true(s && s->backlog);
    g_assert_cmpuint(s->backlog_size, <=, UNSENT_BYTES + 64);
    g_assert_cmpuint(s->backlog_len, <=, s->backlog_size);
}

static void give(const GByteArray *bytes)
{
    g_assert_cmpint(send(d.fd, bytes->data, bytes->len, MSG_NOSIGNAL), ==, bytes->len);
}

/* All that it has to say, and until it has nothing more. */
static void drain(void *got)
{
    static uint8_t buf[1 << 16];
    ssize_t n;

    do {
        g_assert_nonnull(streamdev_serve(&d));
        n = recv(d.fd, buf, sizeof(buf), 0);
        *(size_t *)got += n > 0 ? (size_t)n : 0;
    } while (n > 0);
    g_assert_cmpint(errno, ==, EAGAIN);
    g_assert_null(streamdev_stream(&d)->backlog);
}

/* Messages of the VM's own. */
static void unread_sends(void *unused)
{
    struct pvrdma_sq_wqe_hdr h = {.opcode = PVRDMA_WR_RDMA_WRITE,
                                  .wr.rdma = {STREAMDEV_VA, 0x1000}};

    for (unsigned i = 0; i < STREAMDEV_WR; i++) {
        streamdev_post_send(&d, h, STREAMDEV_LEN);
    }
    for (unsigned i = 0; i < 4 * STREAMDEV_WR; i++) {
        check_backlog(streamdev_serve(&d));
    }
}

static void test_sends(void)
{
    size_t got = 0;

    begin();
    streamdev_on_worker(&d, unread_sends, NULL);
    streamdev_on_worker(&d, drain, &got);
    g_assert_cmpuint(got, >, (size_t)STREAMDEV_WR * STREAMDEV_LEN);
    end();
}

/* The peer asks READs, reads nothing of what they return, and goes on sending. */
static void unread_answers(void *unused)
{
    GByteArray *reads = g_byte_array_new(), *write = g_byte_array_new();
    const struct stream *s;
    struct rdmap_segment seg;
    size_t unsent;

    for (uint32_t i = 0; i < N_READS; i++) {
        rdmap_begin(&seg, RDMAP_READ_REQUEST);
        seg.ddp.msn = 1 + i;
        seg.read = (struct rdmap_read){.sink_stag = 0x100,
                                       .len = STREAMDEV_LEN,
                                       .src_stag = d.key[STREAMDEV_READ],
                                       .src_to = STREAMDEV_VA};
        streamdev_segment(reads, &seg, 0, 0, true);
    }
    rdmap_begin(&seg, RDMAP_WRITE);
    seg.ddp.stag = CTL_FIRST_KEY; /* no bytes, no key */
    streamdev_segment(write, &seg, 0, 0, true);
    give(reads);
    for (unsigned i = 0; i < 64; i++) {
        s = streamdev_serve(&d);
    }
    check_backlog(s);
    unsent = s->backlog_len;
    for (unsigned i = 0; i < 1000; i++) {
        give(write);
        s = streamdev_serve(&d);
        check_backlog(s);
        g_assert_cmpuint(s->backlog_len, ==, unsent); /* neither answers nor ACKs */
        g_assert_cmpuint(s->rx_seq, ==, N_READS + i + 1);
    }
    g_byte_array_unref(reads);
    g_byte_array_unref(write);
}

static void test_answers(void)
{
    size_t got = 0;

    begin();
    streamdev_on_worker(&d, unread_answers, NULL);
    streamdev_on_worker(&d, drain, &got);
    g_assert_cmpuint(got, >, (size_t)N_READS * STREAMDEV_LEN);
    end();
}

/* ---- ACKs that wait for a message to go with ---- */

#define HOUR (3600ull * 1000000000ull)

/* The next message of the peer's; how many bytes the device has to say then. */
static size_t next_answer(void)
{
    GByteArray *bytes = g_byte_array_new();
    struct rdmap_segment seg;
    size_t got = 0;

    rdmap_begin(&seg, RDMAP_WRITE);
    seg.ddp.stag = CTL_FIRST_KEY; /* no bytes, no key */
    streamdev_segment(bytes, &seg, 0, 0, true);
    give(bytes);
    g_byte_array_unref(bytes);
    drain(&got);
    return got;
}

static size_t own_message(void)
{
    struct pvrdma_sq_wqe_hdr h = {.opcode = PVRDMA_WR_RDMA_WRITE,
                                  .wr.rdma = {STREAMDEV_VA, 0x1000}};
    size_t got = 0;

    streamdev_post_send(&d, h, 8);
    drain(&got);
    return got;
}

static void acks(void *unused)
{
    struct stream *s = streamdev_stream(&d);
    struct tcp_vm *net = d.qp->req.conn->net;
    size_t ack, alone, with, none = 0;

    /* At once, and the VM sends long after that. */
    ack = next_answer();
    g_assert_cmpuint(ack, >, 0);
    g_assert_false(s->ack_due);
    g_assert_cmpuint(net->n_told, ==, 0);
    g_assert_cmpuint(net->ack_ns, >, 0);
    s->ack_at = 1;
    net->ack_ns = 0;
    alone = own_message();
    g_assert_false(s->ping_pong);
    /* Soon, as to what an ACK costs. */
    next_answer();
    s->ack_at -= 1000000;
    net->ack_ns = HOUR;
    g_assert_cmpuint(own_message(), ==, alone);
    g_assert_true(s->ping_pong);
    /* So the next one waits, and goes with a message. */
    g_assert_cmpuint(next_answer(), ==, 0);
    drain(&none);
    g_assert_cmpuint(none, ==, 0);
    g_assert_true(s->ack_due);
    with = own_message();
    g_assert_cmpuint(with, >=, alone + ack);
    g_assert_false(s->ack_due);
    g_assert_true(s->ping_pong);
    /* In vain: it goes alone, and so does the next one. */
    g_assert_cmpuint(next_answer(), ==, 0);
    net->ack_ns = 0;
    s->ack_at = 1;
    drain(&none);
    g_assert_cmpuint(none, ==, ack);
    g_assert_false(s->ping_pong);
    g_assert_cmpuint(next_answer(), ==, ack);
    /* One that took long, as its thread was not run, does not count for much. */
    net->ack_ns = 0;
    for (unsigned i = 0; i < 1000; i++) {
        net->told_at = 1;
        net->n_told = 1;
        tx_told(net);
        g_assert_cmpuint(net->ack_ns, <=, 100000);
    }
    g_assert_cmpuint(net->ack_ns, >, 99000);
    /* Of several each one takes its part. */
    net->ack_ns = 0;
    net->told_at = now_ns() - 800000000;
    net->n_told = 100000;
    tx_told(net);
    g_assert_cmpuint(net->ack_ns, >=, 1000);
    g_assert_cmpuint(net->ack_ns, <, 12000);
}

static void test_acks(void)
{
    begin();
    streamdev_on_worker(&d, acks, NULL);
    end();
}

/* ---- what waits for a key to be taken away ---- */

#define N_WRITES 800u

struct input {
    GByteArray *bytes;
    size_t given;
    unsigned waited;
};

static void give_some(struct input *in)
{
    ssize_t n;

    do {
        n = send(d.fd, in->bytes->data + in->given, in->bytes->len - in->given,
                 MSG_NOSIGNAL);
        in->given += n > 0 ? (size_t)n : 0;
    } while (n > 0);
}

/* Nothing is looked at in here once the first message has come. */
static void wait_for_key(void *opaque)
{
    struct input *in = opaque;
    const struct stream *s = NULL;

    for (unsigned i = 0; i < 32; i++) {
        give_some(in);
        s = streamdev_serve(&d);
        g_assert_nonnull(s);
        if (s->rx_phase == RX_GRACE) {
            in->waited++;
            g_assert_cmpuint(s->rx_seq, ==, 0);
            g_assert_cmpuint(s->socket.saved_len, <=, INPUT_BYTES);
            g_assert_cmpuint(in->given - (size_t)streamdev_unread(&d), <=, INPUT_BYTES);
        }
    }
}

static void go_on(void *opaque)
{
    give_some(opaque);
    g_assert_nonnull(streamdev_serve(&d));
}

static uint64_t rx_seq(void)
{
    uint64_t seq;

    vm_token_take(&d.td->vm);
    g_assert_nonnull(streamdev_stream(&d));
    seq = streamdev_stream(&d)->rx_seq;
    vm_token_release(&d.td->vm);
    return seq;
}

static void test_waiting(void)
{
    struct input in = {.bytes = g_byte_array_new()};
    struct rdmap_segment seg;
    uint32_t key;

    begin();
    key = d.key[STREAMDEV_FAST];
    streamdev_register(&d, key);
    streamdev_post_recv(&d, 64);
    streamdev_on_worker(&d, go_on, &in);
    rdmap_begin(&seg, RDMAP_SEND_INV);
    seg.ddp.msn = 1;
    seg.ddp.stag = key;
    streamdev_segment(in.bytes, &seg, 1, 64, true);
    for (unsigned i = 0; i < N_WRITES; i++) {
        rdmap_begin(&seg, RDMAP_WRITE);
        seg.ddp.stag = d.key[STREAMDEV_ALL];
        seg.ddp.to = STREAMDEV_VA + 8 * i;
        streamdev_segment(in.bytes, &seg, (uint8_t)(i % 100 + 2), 1400, true);
    }
    streamdev_on_worker(&d, wait_for_key, &in);
    g_assert_cmpuint(in.waited, >, 30);
    while (rx_seq() < 1 + N_WRITES) {
        streamdev_on_worker(&d, go_on, &in);
    }
    for (unsigned i = 0; i < N_WRITES; i++) {
        g_assert_cmpuint(*(uint8_t *)testdev_ptr(d.td, d.mr_first[0] + 0x80 + 8 * i), ==,
                         i % 100 + 2);
    }
    g_byte_array_unref(in.bytes);
    end();
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/stream/sizes", test_sizes);
    g_test_add_func("/stream/sends", test_sends);
    g_test_add_func("/stream/answers", test_answers);
    g_test_add_func("/stream/acks", test_acks);
    g_test_add_func("/stream/waiting", test_waiting);
    return g_test_run();
}
