/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: what goes straight from the socket to guest memory (direct_receive.c),
 * from a host that is made up (fakestream.c) and decides where a message stops, and with
 * what. What is found wrong at a segment's end is in place by then, but nothing beside
 * it, and not the message's end.
 */
#include "fakestream.h"
#include "migrate.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/iwarp/wire/bytes.h"
#include "transport/iwarp/wire/control_stags.h"

#define FIRST    74u    /* payload of a message's first segment */
#define LONG     40960u /* ... and of those behind it */
#define SHORTER  36864u /* which is yet read behind its header (LONG_SEGMENT) */
#define SHORTEST 8192u  /* ... in large messages (DIRECT_MIN) */
#define PLACE    8192u  /* in the victim's memory */
#define HELD     128u   /* of a message's end: DIRECT_HELD */
#define OLD      0x55

static struct rdmap_segment segment;
static struct {
    uint32_t at;
    uint8_t bits;
} lie; /* what is wrong in the next header */

/* A frame with the next @len bytes of the message, @value each, its sum changed. */
static size_t make(uint8_t frame[FPDU_MAX_SIZE], uint32_t len, bool last, uint8_t value,
                   uint32_t spoil)
{
    uint8_t *ulpdu = frame + FPDU_LENGTH;
    uint32_t head, size;

    segment.ddp.last = last;
    head = (uint32_t)rdmap_put(&segment, ulpdu);
    ulpdu[lie.at] ^= lie.bits;
    ddp_advance(&segment.ddp, len);
    memset(ulpdu + head, value, len);
    size = head + len;
    put_be16(frame, (uint16_t)size);
    memset(ulpdu + size, 0, fpdu_pad(size));
    size += fpdu_pad(size);
    crc32c_put(crc32c_add(CRC32C_INIT, frame, FPDU_LENGTH + size) ^ spoil, ulpdu + size);
    return FPDU_LENGTH + size + CRC32C_SIZE;
}

static void put_next(int fd, uint32_t len, bool last, uint8_t value, uint32_t spoil)
{
    static uint8_t frame[FPDU_MAX_SIZE];

    put(fd, frame, make(frame, len, last, value, spoil));
}

static void begin_write(void)
{
    rdmap_begin(&segment, RDMAP_WRITE);
    segment.ddp.stag = victim.mr->rkey;
    segment.ddp.to = victim.mr->buf->va + PLACE;
}

/* A WRITE's first two segments: @value, and @len bytes of the next, @spoil in its sum. */
static void put_write(int fd, uint32_t len, bool last, uint8_t value, uint32_t spoil)
{
    begin_write();
    put_next(fd, FIRST, false, value, 0);
    put_next(fd, len, last, value + 1, spoil);
}

static void begin_send(uint32_t msn)
{
    rdmap_begin(&segment, RDMAP_SEND);
    segment.ddp.msn = msn;
}

/* Until the daemon acknowledges message @seq. */
static void await_ack(uint64_t seq)
{
    struct rdmap_segment s;
    struct ctl ctl;

    do {
        g_assert_true(get_segment(&s, VGT_WAIT_MS));
    } while (!ctl_is(&s) || ctl_get(&s, &ctl) != IWARP_OK || ctl.kind != CTL_ACK);
    g_assert_cmpuint(ctl.seq, ==, seq);
}

static void clear_place(void)
{
    memset(VG_MR_HOST(victim.mr, 0), OLD, 4 * LONG);
}

/* Until the byte at @off of the victim's memory is @value. */
static void await_byte(uint32_t off, uint8_t value)
{
    while (*(volatile uint8_t *)VG_MR_HOST(victim.mr, off) != value) {
        g_usleep(100);
    }
}

/* Of the victim's memory, from PLACE on. */
static void expect(uint32_t off, uint32_t len, uint8_t value)
{
    const uint8_t *at = VG_MR_HOST(victim.mr, PLACE + off);

    for (uint32_t i = 0; i < len; i++) {
        g_assert_cmpuint(at[i], ==, value);
    }
}

/* Nothing but the @len bytes from PLACE on was stored to. */
static void expect_beside(uint32_t len)
{
    const uint8_t *before = VG_MR_HOST(victim.mr, 0);

    for (uint32_t i = 0; i < PLACE; i++) {
        g_assert_cmpuint(before[i], ==, OLD);
    }
    expect(len, 4 * LONG - PLACE - len, OLD);
}

/*
 * A connection to which a message of two segments came, by the buffer: from now on those
 * that begin like it are received straight.
 */
static int call_ready(bool reliable)
{
    int fd;

    fd = call();
    clear_place();
    put_write(fd, LONG, true, 1, 0);
    if (reliable) {
        await_ack(0);
    }
    return fd;
}

/* The first of a test about RC. */
static int begin_ready(void)
{
    fakestream_begin(PVRDMA_QPT_RC, MPA_REQUEST);
    return call_ready(true);
}

/* A frame whose parts come late, cut everywhere: its end, too, is put together again. */
static void test_cut(void)
{
    static const uint32_t cut[] = {1, 15, 16, 17, 4000, LONG - HELD, LONG - 1};
    static uint8_t frame[FPDU_MAX_SIZE];
    int fd = begin_ready();

    expect(0, FIRST, 1);
    expect(FIRST, LONG, 2);
    expect_beside(FIRST + LONG);
    for (unsigned i = 0; i < G_N_ELEMENTS(cut); i++) {
        size_t size, at = 0;

        clear_place();
        put_write(fd, LONG, false, 3, 0);
        size = make(frame, LONG, true, 5, 0);
        for (uint32_t n = cut[i]; at < size; at += n) {
            n = (uint32_t)MIN(MAX(n, size / 40), size - at);
            if (at == 0) {
                n = cut[i];
            }
            put(fd, frame + at, n);
            g_usleep(500);
        }
        await_ack(1 + i);
        expect(0, FIRST, 3);
        expect(FIRST, LONG, 4);
        expect(FIRST + LONG, LONG, 5);
        expect_beside(FIRST + 2 * LONG);
    }
    close(fd);
    fakestream_end();
}

/* It goes straight to its place: with a wrong sum, too, all is there but its end. */
static void expect_straight(int fd, uint32_t len, bool last)
{
    clear_place();
    put_write(fd, len, last, 3, 1);
    expect_end(fd, MPA_BAD_CRC);
    expect(0, FIRST, 3);
    expect(FIRST, len - HELD, 4);
    expect_beside(FIRST + len - HELD);
}

/*
 * A wrong sum: what came is there, but the segment's end, whether it says that it is the
 * message's last one or not, and nothing is complete.
 */
static void test_spoiled(void)
{
    for (int last = 0; last < 2; last++) {
        int fd = begin_ready();

        expect_straight(fd, LONG, last);
        /* By way of the buffer from now on: of what is wrong nothing is stored. */
        fd = call();
        clear_place();
        put_empty_write(fd, 0x13, 1); /* RESTART */
        put_write(fd, LONG, true, 5, 0);
        await_ack(1);
        clear_place();
        put_write(fd, LONG, last, 7, 1);
        expect_end(fd, MPA_BAD_CRC);
        expect(0, FIRST, 7);
        expect_beside(FIRST);
        fakestream_end();
    }
}

/* Messages that are shorter from now on: the second one of these is received so, too. */
static void test_shorter(void)
{
    int fd = begin_ready();

    put_write(fd, SHORTER, true, 1, 0);
    await_ack(1);
    expect_straight(fd, SHORTER, true);
    fakestream_end();
}

/* Messages of two segments that are alike: so are the ones that come. */
static void test_alike(void)
{
    int fd = begin_ready();

    for (unsigned i = 1; i <= 2; i++) {
        clear_place();
        begin_write();
        put_next(fd, SHORTER, false, 3, 0);
        await_byte(PLACE, 3); /* or both would be read at once */
        put_next(fd, SHORTER, true, 4, i == 2);
        if (i == 1) {
            await_ack(1);
        }
    }
    expect_end(fd, MPA_BAD_CRC);
    expect(SHORTER, SHORTER - HELD, 4);
    expect_beside(2 * SHORTER - HELD);
    fakestream_end();
}

/* Of another length, or for another place: looked at when it is all there. */
static void test_unlike(void)
{
    for (unsigned i = 0; i < 3; i++) {
        int fd = begin_ready();

        clear_place();
        begin_write();
        put_next(fd, FIRST, false, 3, 0);
        segment.ddp.to += i == 1 ? 1 : 0;
        segment.ddp.stag += i == 2 ? 1 : 0;
        put_next(fd, LONG - (i == 0 ? 1 : 0), true, 4, 1);
        expect_end(fd, MPA_BAD_CRC);
        expect(0, FIRST, 3);
        expect_beside(FIRST);
        fakestream_end();
    }
}

/* A SEND that is too long for its receive, which its last segment tells. */
static void test_too_long(void)
{
    int fd = begin_ready();

    clear_place();
    vgt_recv(&victim, 1, PLACE, FIRST + 2 * LONG - 1);
    vgt_recv(&victim, 2, PLACE, FIRST + 2 * LONG - 1);
    begin_send(1);
    put_next(fd, FIRST, false, 3, 0);
    put_next(fd, LONG, true, 4, 0);
    await_ack(1);
    g_assert_cmpuint(vgt_expect(victim.rcq, 1, PVRDMA_WC_SUCCESS).byte_len, ==,
                     FIRST + LONG);
    begin_send(2);
    put_next(fd, FIRST, false, 5, 0);
    put_next(fd, LONG, false, 6, 0);
    put_next(fd, LONG, true, 7, 0);
    vgt_expect(victim.rcq, 2, PVRDMA_WC_LOC_LEN_ERR);
    expect_end(fd, IWARP_OK);
    expect_beside(FIRST + 2 * LONG - 1);
    fakestream_end();
}

/* Its place goes in the middle of a segment. */
static void test_taken_away(void)
{
    static uint8_t frame[FPDU_MAX_SIZE];
    struct vg_mr *mr;
    size_t size;
    int fd = begin_ready();

    mr = vg_mr_new(victim.pd, victim.mr->buf, VG_ACCESS_ALL);
    clear_place();
    begin_write();
    segment.ddp.stag = mr->rkey;
    put_next(fd, FIRST, false, 3, 0);
    size = make(frame, LONG, true, 4, 0);
    put(fd, frame, size / 2);
    await_byte(PLACE + FIRST, 4);
    g_assert_cmpint(vg_destroy(victim.g, PVRDMA_CMD_DESTROY_MR, mr->handle), ==, 0);
    vg_pdir_free(victim.g, mr->pdir, mr->buf->npages);
    g_free(mr);
    clear_place();
    put(fd, frame + size / 2, size - size / 2);
    expect_end(fd, IWARP_OK);
    expect_beside(0);
    g_assert_cmpuint(vg_qp_state(victim.qp), ==, PVRDMA_QPS_ERR);
    fakestream_end();
}

/* A SEND to a receive, 1, up to the middle of its second and last segment. */
struct half {
    int fd;
    size_t at, size;
    uint8_t frame[FPDU_MAX_SIZE]; /* that segment's: from @at on it is to come */
};

static void begin_half(struct half *h)
{
    h->fd = begin_ready();
    clear_place();
    vgt_recv(&victim, 1, PLACE, FIRST + LONG);
    begin_send(1);
    put_next(h->fd, FIRST, false, 3, 0);
    h->size = make(h->frame, LONG, true, 4, 0);
    h->at = h->size / 2;
    put(h->fd, h->frame, h->at);
    await_byte(PLACE + FIRST, 4);
}

/* Its receive is flushed in the middle of a segment: what comes then has no place. */
static void test_flushed(void)
{
    static struct half h;

    begin_half(&h);
    vg_qp_to_state(victim.qp, PVRDMA_QPS_ERR);
    vgt_expect(victim.rcq, 1, PVRDMA_WC_WR_FLUSH_ERR);
    clear_place();
    /* It may be closed already. */
    send(h.fd, h.frame + h.at, h.size - h.at, MSG_NOSIGNAL);
    expect_end(h.fd, IWARP_OK);
    expect_beside(0);
    fakestream_end();
}

/*
 * Its VM is stopped in the middle of a segment, and saved.  Nothing is stored as long as
 * it stands still, and the message is whole when it goes on.
 */
static void test_stopped(void)
{
    static struct half h;

    begin_half(&h);
    vg_mig_enter(victim.g, VFIO_USER_MIG_STOP);
    vg_mig_enter(victim.g, VFIO_USER_MIG_STOP_COPY);
    clear_place();
    put(h.fd, h.frame + h.at, h.size - h.at);
    g_usleep(20000);
    expect_beside(0);
    vg_mig_enter(victim.g, VFIO_USER_MIG_RUNNING);
    g_assert_cmpuint(vgt_expect(victim.rcq, 1, PVRDMA_WC_SUCCESS).byte_len, ==,
                     FIRST + LONG);
    await_ack(1);
    expect(FIRST + LONG / 2, LONG / 2, 4);
    close(h.fd);
    fakestream_end();
}

/*
 * In the middle of a large WRITE, what a READ returns: of that headers are not read
 * alone, and so no payload of a segment that came with it goes straight.
 */
static void test_answers(void)
{
    static uint8_t frame[2 * FPDU_MAX_SIZE];
    struct rdmap_segment request, write;
    size_t size;
    int fd;

    fakestream_begin(PVRDMA_QPT_RC, MPA_REQUEST);
    victim_attr.timeout = 22; /* 17 s, in which the READ is not tried again */
    victim_connect();
    fd = call_ready(true);
    vgt_send(&victim, 1, PVRDMA_WR_RDMA_READ, VGT_SIG, 0, PLACE, &victim, 0);
    do {
        g_assert_true(get_segment(&request, VGT_WAIT_MS));
    } while (request.opcode != RDMAP_READ_REQUEST);
    clear_place();
    begin_write();
    for (unsigned i = 0; i < 4; i++) { /* LARGE, and its segments are short now */
        put_next(fd, i < 3 ? LONG - 7 * i : SHORTEST, false, 3, 0);
    }
    await_byte(PLACE + 3 * LONG - 21 + SHORTEST - 1, 3);
    vg_mig_enter(victim.g, VFIO_USER_MIG_STOP);
    write = segment;
    rdmap_begin(&segment, RDMAP_READ_RESPONSE);
    segment.ddp.stag = request.read.sink_stag;
    segment.ddp.to = request.read.sink_to;
    size = make(frame, PLACE / 2, false, OLD, 0);
    segment = write;
    size += make(frame + size, SHORTEST, false, 4, 1);
    put(fd, frame, size);
    vg_mig_enter(victim.g, VFIO_USER_MIG_RUNNING);
    expect_end(fd, MPA_BAD_CRC);
    expect(3 * LONG - 21, SHORTEST, 3);
    expect_beside(3 * LONG - 21 + SHORTEST);
    fakestream_end();
}

/*
 * A receive of which only the first segment's place is good; of the next one the header
 * comes, and then nothing: the queue pair can be flushed.
 */
static void test_no_place(void)
{
    static uint8_t frame[FPDU_MAX_SIZE];
    struct pvrdma_sge sge[2];
    struct vg_wr wr = {.wr_id = 1, .nsge = 2, .sge = sge};
    int fd = begin_ready();

    clear_place();
    sge[0] = vg_sge(victim.mr, PLACE, FIRST);
    sge[1] = vg_sge(victim.mr, PLACE + FIRST, LONG);
    sge[1].lkey ^= 0xff;
    g_assert_cmpuint(vg_post_recv(victim.qp, &wr, 1), ==, 1);
    vgt_recv(&victim, 2, 0, 64);
    begin_send(1);
    put_next(fd, FIRST, false, 3, 0);
    make(frame, LONG, true, 4, 0);
    put(fd, frame, FPDU_LENGTH + ddp_len(false));
    await_byte(PLACE, 3);
    g_usleep(50000); /* the header is seen */
    close(fd);
    vg_qp_to_state(victim.qp, PVRDMA_QPS_ERR);
    vgt_expect(victim.rcq, 1, PVRDMA_WC_WR_FLUSH_ERR);
    vgt_expect(victim.rcq, 2, PVRDMA_WC_WR_FLUSH_ERR);
    expect_beside(FIRST);
    fakestream_end();
}

/*
 * UC: a message that is given up ends with the next segment, whatever that says, or when
 * the next message is announced.
 */
static void test_given_up(void)
{
    int fd;

    fakestream_begin(PVRDMA_QPT_UC, MPA_REQUEST);
    fd = call_ready(false);
    vgt_recv(&victim, 1, 0, 64);
    begin_send(1);
    put_next(fd, 8, true, 1, 0);
    vgt_expect(victim.rcq, 1, PVRDMA_WC_SUCCESS); /* so the one before is complete */
    clear_place();
    begin_write();
    put_next(fd, FIRST, false, 3, 0);
    await_byte(PLACE, 3);         /* or all would be read at once, and nothing straight */
    put_empty_write(fd, 0x16, 2); /* DROP */
    g_usleep(20000);
    put_next(fd, LONG, true, 4, 0);
    put_empty_write(fd, 0x13, 3); /* RESTART */
    vgt_recv(&victim, 2, 0, 64);
    begin_send(2);
    put_next(fd, 8, true, OLD, 0);
    vgt_expect(victim.rcq, 2, PVRDMA_WC_SUCCESS);
    begin_write();
    put_next(fd, FIRST, false, 5, 0);
    put_empty_write(fd, 0x16, 4);
    put_empty_write(fd, 0x13, 5);
    vgt_recv(&victim, 3, 0, 64);
    begin_send(3);
    put_next(fd, 8, true, OLD, 0);
    vgt_expect(victim.rcq, 3, PVRDMA_WC_SUCCESS);
    expect(0, FIRST, 5);
    expect_beside(FIRST);
    close(fd);
    fakestream_end();
}

/* ---- whatever comes ---- */

#define N_STREAMS  150u
#define N_SEGMENTS 20u /* of each */

static GRand *rand_of;

static uint32_t any(uint32_t n)
{
    return (uint32_t)g_rand_int_range(rand_of, 0, (int)n);
}

/* Another message. */
static void begin_any(const struct vg_mr *mr, uint32_t msn)
{
    uint32_t which = any(40);

    if (which < 20) {
        rdmap_begin(&segment, which == 0   ? RDMAP_READ_RESPONSE
                              : which == 1 ? RDMAP_SEND_SE_INV
                                           : RDMAP_SEND);
        segment.ddp.msn = msn;
        return;
    }
    begin_write();
    segment.ddp.stag = mr->rkey;
    segment.ddp.to = mr->buf->va + any(LONG);
}

/* In one piece, or in some.  False: it is closed. */
static bool put_pieces(int fd, const uint8_t *bytes, size_t len)
{
    static const size_t most[] = {20, 1000, 30000, 2 * FPDU_MAX_SIZE};
    size_t piece = most[any(4)];

    for (size_t at = 0; at < len;) {
        size_t n = MIN(at < 2000 ? piece : MAX(piece, 5000), len - at);

        if (send(fd, bytes + at, n, MSG_NOSIGNAL) != (ssize_t)n) {
            return false;
        }
        at += n;
    }
    return true;
}

/* Messages to receives and to @mr, as they should be but for a few segments. */
static void put_any(int fd, const struct vg_mr *mr)
{
    static const uint32_t lens[] = {LONG, LONG, LONG, LONG, LONG, SHORTER, FIRST, 0};
    static uint8_t frame[FPDU_MAX_SIZE];
    uint32_t msn = 1;

    begin_any(mr, msn);
    for (unsigned i = 0; i < N_SEGMENTS; i++) {
        bool last = any(3) == 0, first = i == 0 || segment.ddp.last;
        uint32_t len = first && any(4) ? FIRST : lens[any(8)];

        /* A bit of its header is not what it should be. */
        lie.at = any(DDP_MAX_LEN);
        lie.bits = (uint8_t)(!first && any(6) == 0 ? 1 << any(8) : 0);
        if (first) {
            vgt_recv(&victim, 1, PLACE, any(8) ? 4 * LONG : any(4 * LONG));
        }
        if (!put_pieces(fd, frame, make(frame, len, last, 7, any(60) == 0))) {
            break;
        }
        if (last) {
            msn += segment.ddp.tagged ? 0 : 1;
            begin_any(mr, msn);
            segment.ddp.last = true;
        }
    }
}

/*
 * Large segments of which bits of headers, sums and lengths are wrong now and then, cut
 * anywhere: nothing is stored to but where they may, and the daemon serves others.
 */
static void test_random(void)
{
    struct vg_mr *mr;
    int64_t straight;

    fakestream_begin(PVRDMA_QPT_RC, MPA_REQUEST);
    straight = vgt_counter("vm3", "tcp", "straight_bytes");
    mr = vg_mr_new(victim.pd,
                   vg_buf_new(victim.g, 0x7e0000000000ull + 123, 5 * LONG, VG_SCATTERED),
                   VG_ACCESS_ALL);
    rand_of = g_rand_new_with_seed(21);
    memset(VG_MR_HOST(victim.mr, 0), OLD, 1 << 20);
    for (unsigned i = 0; i < vgt_rounds(N_STREAMS); i++) {
        struct pvrdma_cqe c;
        int fd = call();

        put_any(fd, mr);
        shutdown(fd, SHUT_WR);
        wait_closed(fd); /* all was read */
        victim_connect();
        while (vg_cq_poll(victim.rcq, &c, 1) == 1) {
        }
        expect_beside(4 * LONG - PLACE);
        expect(4 * LONG, (1 << 20) - 4 * LONG - PLACE, OLD);
    }
    straight = vgt_counter("vm3", "tcp", "straight_bytes") - straight;
    g_test_message("%" G_GINT64_FORMAT " bytes straight", straight);
    g_assert_cmpint(straight, >, 0);
    g_rand_free(rand_of);
    vg_mr_free(mr);
    fakestream_end();
}

int main(int argc, char **argv)
{
    vgt_init(&argc, &argv, 120);
    g_test_add_func("/hosts-direct/cut", test_cut);
    g_test_add_func("/hosts-direct/spoiled", test_spoiled);
    g_test_add_func("/hosts-direct/shorter", test_shorter);
    g_test_add_func("/hosts-direct/alike", test_alike);
    g_test_add_func("/hosts-direct/unlike", test_unlike);
    g_test_add_func("/hosts-direct/too-long", test_too_long);
    g_test_add_func("/hosts-direct/taken-away", test_taken_away);
    g_test_add_func("/hosts-direct/flushed", test_flushed);
    g_test_add_func("/hosts-direct/stopped", test_stopped);
    g_test_add_func("/hosts-direct/answers", test_answers);
    g_test_add_func("/hosts-direct/no-place", test_no_place);
    g_test_add_func("/hosts-direct/given-up", test_given_up);
    g_test_add_func("/hosts-direct/random", test_random);
    return vgt_run();
}
