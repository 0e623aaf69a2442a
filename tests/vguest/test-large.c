/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: messages of many segments, on any path; made for path=tcp, whose middle
 * segments go straight from the socket to guest memory.
 */
#include "vgtest.h"

#define MIB   (1u << 20)
#define AHEAD 4u    /* messages on their way at a time */
#define EDGE  4096u /* that must stay as it was, on either side of each */
#define ROOM  (MIB + 4 * EDGE)

/* Around the segments' lengths of the loopback interface, and what is received whole. */
static const uint32_t lengths[] = {98303,  98304,  130918, 130919, 131072,  163600,
                                   196379, 196380, 196381, 262145, MIB - 1, MIB};

static const uint8_t edge[EDGE];

static uint8_t *place(const struct vgt_side *s, unsigned slot, uint32_t off)
{
    return VG_MR_HOST(s->mr, (uint64_t)slot * ROOM + off);
}

/* Messages of all lengths to addresses of all kinds; each byte is looked at. */
static void test_lengths(gconstpointer opcode)
{
    bool send = GPOINTER_TO_UINT(opcode) == PVRDMA_WR_SEND;
    struct vgt_opts o = {.mr_len = AHEAD * ROOM};
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, &o);
    for (unsigned first = 0; first < 3 * G_N_ELEMENTS(lengths); first += AHEAD) {
        uint32_t off = EDGE + first % 7;

        memset(place(&p.s[1], 0, 0), 0, AHEAD * ROOM);
        for (unsigned i = 0; i < AHEAD; i++) {
            uint32_t len = lengths[(first + i) % G_N_ELEMENTS(lengths)];

            vgt_fill(place(&p.s[0], i, 0), len, first + i);
            if (send) {
                vgt_recv(&p.s[1], i, i * ROOM + off, len);
            }
        }
        for (unsigned i = 0; i < AHEAD; i++) {
            vgt_send(&p.s[0], i, GPOINTER_TO_UINT(opcode), VGT_SIG, i * ROOM,
                     lengths[(first + i) % G_N_ELEMENTS(lengths)], send ? NULL : &p.s[1],
                     i * ROOM + off);
        }
        for (unsigned i = 0; i < AHEAD; i++) {
            uint32_t len = lengths[(first + i) % G_N_ELEMENTS(lengths)];

            vgt_expect(p.s[0].scq, i, PVRDMA_WC_SUCCESS);
            if (send) {
                struct pvrdma_cqe cqe = vgt_expect(p.s[1].rcq, i, PVRDMA_WC_SUCCESS);

                g_assert_cmpuint(cqe.byte_len, ==, len);
            }
            vgt_check(place(&p.s[1], i, off), len, first + i);
            g_assert_cmpmem(place(&p.s[1], i, off - EDGE), EDGE, edge, EDGE);
            g_assert_cmpmem(place(&p.s[1], i, off + len), EDGE, edge, EDGE);
        }
    }
    vgt_pair_close(&p);
}

/* Into receives of many pieces, none of them as long as a segment or a page. */
static void test_pieces(void)
{
    enum { PIECES = 8, LENGTH = 3 * MIB / 4 };
    struct vgt_opts o = {.mr_len = 2 * MIB, .qp = {.recv_sge = PIECES}};
    struct pvrdma_sge sge[PIECES];
    struct vg_wr recv = {.nsge = PIECES, .sge = sge};
    uint8_t *got = g_malloc(LENGTH);
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, &o);
    for (unsigned round = 0; round < 8; round++) {
        uint32_t left = LENGTH, at = 0;

        for (unsigned i = 0; i < PIECES; i++) {
            uint32_t len = i < PIECES - 1 ? 1 + round + i * 21001 : left;

            sge[i] = vg_sge(p.s[1].mr, 2 * MIB - at - len - 100 * i, len);
            at += len;
            left -= len;
        }
        vgt_fill(VG_MR_HOST(p.s[0].mr, 0), LENGTH, round);
        g_assert_cmpuint(vg_post_recv(p.s[1].qp, &recv, 1), ==, 1);
        vgt_complete(&p.s[0], 1, PVRDMA_WR_SEND, 0, LENGTH, NULL, 0);
        vgt_expect(p.s[1].rcq, 0, PVRDMA_WC_SUCCESS);
        at = 0;
        for (unsigned i = 0; i < PIECES; i++) {
            memcpy(got + at,
                   VG_MR_HOST(p.s[1].mr, 2 * MIB - at - sge[i].length - 100 * i),
                   sge[i].length);
            at += sge[i].length;
        }
        vgt_check(got, LENGTH, round);
    }
    g_free(got);
    vgt_pair_close(&p);
}

/* ---- a guest that writes where messages come from, or arrive ---- */

static struct {
    volatile uint64_t *at;
    _Atomic bool stop;
} scribble;

static gpointer scribbler(gpointer data)
{
    for (uint64_t n = 1; !scribble.stop; n++) {
        scribble.at[n * 61 % (MIB / 8)] = n;
    }
    return data;
}

/* How often the daemon has said that a stream was wrong. */
static unsigned wrong_streams(void)
{
    g_autofree char *text = NULL;
    unsigned n = 0;

    g_assert_true(g_file_get_contents(vgt_daemon->log, &text, NULL, NULL));
    for (const char *at = text; (at = strstr(at, "malformed data from the peer")); at++) {
        n++;
    }
    return n;
}

static const struct scribbled {
    const char *name;
    uint32_t opcode;
    unsigned side;  /* whose memory it writes to */
    unsigned wrong; /* streams, over TCP */
} scribbled[] = {
    /* What is sent has the sum of what is sent, whatever that is. */
    {"source/write", PVRDMA_WR_RDMA_WRITE, 0, 0},
    {"source/send", PVRDMA_WR_SEND, 0, 0},
    {"source/read", PVRDMA_WR_RDMA_READ, 1, 0},
    /* What is received straight into its memory breaks the connection, but only once. */
    {"place/write", PVRDMA_WR_RDMA_WRITE, 1, 1},
    {"place/send", PVRDMA_WR_SEND, 1, 1},
    {"place/read", PVRDMA_WR_RDMA_READ, 0, 0},
};

static void message(struct vgt_pair *p, const struct scribbled *how, unsigned i)
{
    bool send = how->opcode == PVRDMA_WR_SEND;

    if (send) {
        vgt_recv(&p->s[1], i, 0, MIB);
    }
    vgt_complete(&p->s[0], i, how->opcode, 0, MIB, send ? NULL : &p->s[1], 0);
    if (send) {
        vgt_expect(p->s[1].rcq, i, PVRDMA_WC_SUCCESS);
    }
}

/* What becomes of its bytes is its own affair, but all messages end well. */
static void test_scribbler(gconstpointer data)
{
    const struct scribbled *how = data;
    struct vgt_opts o = {.mr_len = MIB};
    unsigned wrong = wrong_streams();
    /* Resets are logged, too, and of a VM only so much a second. */
    unsigned expected = vgt_tcp_undisturbed() ? how->wrong : 0;
    int64_t until = 0;
    struct vgt_pair p;
    GThread *t;

    if (expected) {
        g_usleep(1100000); /* what the tests before logged does not count any more */
        until = vg_now_ns() + VGT_WAIT_MS * 1000000ll;
    }
    vgt_pair_open(&p, 0, 1, &o);
    scribble.at = (void *)VG_MR_HOST(p.s[how->side].mr, 0);
    scribble.stop = false;
    t = g_thread_new("scribbler", scribbler, NULL);
    /* Until it has hit: so it was received straight.  The line is written a while later.
     */
    for (unsigned i = 0; wrong_streams() - wrong < expected; i++) {
        g_assert_cmpint(vg_now_ns(), <, until);
        message(&p, how, i);
    }
    /* From then on it is not. */
    for (unsigned i = 0; i < vgt_rounds(40); i++) {
        message(&p, how, i);
    }
    scribble.stop = true;
    g_thread_join(t);
    vgt_fill(VG_MR_HOST(p.s[0].mr, 0), MIB, 5);
    vgt_complete(&p.s[0], 9, PVRDMA_WR_RDMA_WRITE, 0, MIB, &p.s[1], 0);
    vgt_check(VG_MR_HOST(p.s[1].mr, 0), MIB, 5);
    g_usleep(200000); /* what there is to say is in the log by then */
    g_assert_cmpuint(wrong_streams() - wrong, <=, how->wrong);
    vgt_pair_close(&p);
}

/* All but the first segments of long messages, which are short, and segments' ends. */
static void test_straight(gconstpointer opcode)
{
    enum { COUNT = 16 };
    bool send = GPOINTER_TO_UINT(opcode) == PVRDMA_WR_SEND;
    struct vgt_opts o = {.mr_len = MIB};
    struct vgt_pair p;
    int64_t straight;

    vgt_pair_open(&p, 0, 1, &o);
    straight = vgt_counter("vm1", "tcp", "straight_bytes");
    for (unsigned i = 0; i < COUNT; i++) {
        if (send) {
            vgt_recv(&p.s[1], i, 0, MIB);
        }
        vgt_complete(&p.s[0], i, GPOINTER_TO_UINT(opcode), 0, MIB, send ? NULL : &p.s[1],
                     0);
    }
    straight = vgt_counter("vm1", "tcp", "straight_bytes") - straight;
    g_test_message("%" G_GINT64_FORMAT " bytes of %u", straight, COUNT * MIB);
    g_assert_cmpint(straight, >, COUNT * MIB / 2);
    g_assert_cmpint(straight, <, COUNT * MIB);
    vgt_pair_close(&p);
}

int main(int argc, char **argv)
{
    vgt_start(&argc, &argv, 120, 2);
    g_test_add_data_func("/large/lengths/write", GUINT_TO_POINTER(PVRDMA_WR_RDMA_WRITE),
                         test_lengths);
    g_test_add_data_func("/large/lengths/send", GUINT_TO_POINTER(PVRDMA_WR_SEND),
                         test_lengths);
    g_test_add_func("/large/pieces", test_pieces);
    if (vgt_tcp_undisturbed()) {
        g_test_add_data_func("/large/straight/write",
                             GUINT_TO_POINTER(PVRDMA_WR_RDMA_WRITE), test_straight);
        g_test_add_data_func("/large/straight/send", GUINT_TO_POINTER(PVRDMA_WR_SEND),
                             test_straight);
    }
    for (unsigned i = 0; i < G_N_ELEMENTS(scribbled); i++) {
        g_autofree char *path = g_strdup_printf("/large/scribbler/%s", scribbled[i].name);

        g_test_add_data_func(path, &scribbled[i], test_scribbler);
    }
    return vgt_run();
}
