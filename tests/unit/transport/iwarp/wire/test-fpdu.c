/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * fpdu.c: the RFC's two frames; markers at every offset against a model that counts
 * bytes; streams fed whole, byte by byte and at random, into rooms of several sizes;
 * corruptions of every byte.
 */
#include <glib.h>
#include <string.h>

#include "transport/iwarp/wire/fpdu.h"

#define HEAD 14u

/* By the first byte, which is odd if the length is: more than there can be. */
static unsigned head_of(const uint8_t first[2])
{
    return first[0] & 1 ? 1000 : HEAD;
}

/* ---- sending ---- */

/* Length field and ULPDU in @buf; adds the rest, returns the size. */
static size_t finish(uint8_t *buf, uint32_t len, bool crc_on)
{
    uint8_t tail[FPDU_MAX_TAIL];
    size_t n;

    buf[0] = (uint8_t)(len >> 8);
    buf[1] = (uint8_t)len;
    n = fpdu_tail(len, crc_on, crc32c_add(CRC32C_INIT, buf, 2 + len), tail);
    memcpy(buf + 2 + len, tail, n);
    g_assert_cmpuint(2 + len + n, ==, fpdu_size(len));
    return 2 + len + n;
}

static void test_sizes(void)
{
    for (uint32_t len = 0; len < 100; len++) {
        g_assert_cmpuint(fpdu_pad(len), <, 4);
        g_assert_cmpuint((2 + len + fpdu_pad(len)) % 4, ==, 0);
    }
    g_assert_cmpuint(fpdu_size(FPDU_MAX_ULPDU), ==, FPDU_MAX_SIZE);
    g_assert_cmpuint(fpdu_mulpdu(1460, false), ==, 1454);
    g_assert_cmpuint(fpdu_mulpdu(1460, true), ==, 1442); /* RFC 5044 4.3's formula */
    g_assert_cmpuint(fpdu_mulpdu(8961, false), ==, 8954);
    for (uint32_t emss = 0; emss < 70000; emss++) {
        for (unsigned markers = 0; markers < 2; markers++) {
            uint32_t m = fpdu_mulpdu(emss, markers);
            uint32_t size = fpdu_size(m) + (markers ? 4 * ((emss + 511) / 512) : 0);

            g_assert_cmpuint(m, >=, 128);
            g_assert_cmpuint(m, <=, markers ? FPDU_MAX_MARKED : FPDU_MAX_ULPDU);
            if (m > 128) {
                g_assert_cmpuint(size, <=, emss);
            }
            if (m > 128 && m < FPDU_MAX_MARKED) {
                g_assert_cmpuint(size + 4, >, emss);
            }
        }
    }
    g_assert_cmpuint(fpdu_mulpdu(UINT32_MAX, true), ==, FPDU_MAX_MARKED);
}

/* Byte by byte: a marker wherever the position says so. */
static size_t model_mark(uint64_t pos, const uint8_t *ulpdu, uint32_t len, uint8_t *out)
{
    uint32_t body = 2 + len + fpdu_pad(len), at = 0, start = UINT32_MAX;
    uint8_t sum[4];

    for (uint32_t i = 0; i < body + 4; i++) {
        if ((pos + at) % 512 == 0) {
            uint32_t back = start == UINT32_MAX ? 0 : at - start;

            out[at++] = 0;
            out[at++] = 0;
            out[at++] = (uint8_t)(back >> 8);
            out[at++] = (uint8_t)back;
        }
        if (i == 0) {
            start = at;
        }
        if (i == body) {
            crc32c_put(crc32c_add(CRC32C_INIT, out, at), sum);
        }
        out[at++] = i == 0        ? (uint8_t)(len >> 8)
                    : i == 1      ? (uint8_t)len
                    : i < 2 + len ? ulpdu[i - 2]
                    : i < body    ? 0
                                  : sum[i - body];
    }
    return at;
}

static size_t flatten(const struct iovec *iov, unsigned n, uint8_t *out)
{
    size_t at = 0;

    for (unsigned i = 0; i < n; i++) {
        memcpy(out + at, iov[i].iov_base, iov[i].iov_len);
        at += iov[i].iov_len;
    }
    return at;
}

#define BIG (FPDU_MAX_SIZE + 4 * FPDU_MAX_MARKERS)

static void mark(uint64_t pos, uint32_t len, unsigned cuts)
{
    static uint8_t ulpdu[FPDU_MAX_ULPDU], model[BIG], out[BIG];
    static struct fpdu_marks marks;
    uint8_t length[2] = {(uint8_t)(len >> 8), (uint8_t)len};
    struct iovec in[8] = {{length, 2}}, iov[FPDU_MARKED_IOV(8)];
    unsigned n = 1, made;
    size_t at = 0, size;

    for (uint32_t i = 0; i < len; i++) {
        ulpdu[i] = (uint8_t)(i * 31 + i / 251 + 1);
    }
    for (; n <= cuts; n++) {
        size_t piece = n == cuts ? len - at : (size_t)g_test_rand_int() % (len - at + 1);

        in[n] = (struct iovec){ulpdu + at, piece};
        at += piece;
    }
    made = fpdu_mark(pos, in, n, true, &marks, iov, FPDU_MARKED_IOV(n));
    g_assert_cmpuint(made, >, 0);
    size = model_mark(pos, ulpdu, len, model);
    g_assert_cmpuint(flatten(iov, made, out), ==, size);
    g_assert_cmpmem(out, size, model, size);
    g_assert_cmpuint(size % 4, ==, 0);
    /* Any room less than it took is too little, and said so. */
    if (made < 20) {
        for (unsigned max = 0; max < made; max++) {
            g_assert_cmpuint(fpdu_mark(pos, in, n, true, &marks, iov, max), ==, 0);
        }
    }
}

static void test_markers(void)
{
    static const uint32_t lens[] = {0,   14,  42,  43,  44,   45,  488,
                                    500, 502, 503, 506, 1442, 1500};

    for (uint64_t pos = 0; pos < 1024; pos += 4) {
        for (unsigned i = 0; i < G_N_ELEMENTS(lens); i++) {
            mark(pos, lens[i], 1 + (pos / 4 + i) % 7);
        }
    }
    for (uint64_t pos = 0; pos < 512; pos += 4) {
        mark((1ull << 40) + pos, FPDU_MAX_MARKED - (uint32_t)pos % 4, 7);
        mark(pos, FPDU_MAX_MARKED, 3);
    }
}

static void test_no_markers(void)
{
    static uint8_t ulpdu[FPDU_MAX_ULPDU];
    static struct fpdu_marks marks;
    uint8_t length[2] = {0xfa, 0x01};
    struct iovec in[] = {{length, 2}, {ulpdu, FPDU_MAX_MARKED + 1}};
    struct iovec iov[FPDU_MARKED_IOV(2)];
    unsigned max = G_N_ELEMENTS(iov);

    g_assert_cmpuint(fpdu_mark(0, in, 2, true, &marks, iov, max), ==, 0);
    length[1] = 0; /* is now as long as can be, and does not say what it is */
    g_assert_cmpuint(fpdu_mark(0, in, 2, true, &marks, iov, max), ==, 0);
    in[1].iov_len--;
    g_assert_cmpuint(fpdu_mark(0, in, 2, true, &marks, iov, max), >, 0);
    g_assert_cmpuint(fpdu_mark(2, in, 2, true, &marks, iov, max), ==, 0);
    g_assert_cmpuint(fpdu_mark(0, in, 0, true, &marks, iov, max), ==, 0);
    in[1].iov_len = SIZE_MAX;
    g_assert_cmpuint(fpdu_mark(0, in, 2, true, &marks, iov, max), ==, 0);
}

/*
 * RFC 5044, figures 5 and 6: Sends of 24 zero bytes, the first behind the first
 * marker of the stream, the second with a marker in its header.
 */
static void test_rfc5044(void)
{
    uint8_t ulpdu[42] = {0x41, 0x43, [13] = 1}, out[64];
    uint8_t length[2] = {0, 42};
    struct iovec in[] = {{length, 2}, {ulpdu, 42}}, iov[FPDU_MARKED_IOV(2)];
    struct fpdu_marks marks;
    uint8_t first[] = {0,    0,        0,           0,    0,    42,  0x41,
                       0x43, [19] = 1, [48] = 0x52, 0x23, 0x99, 0x83};
    uint8_t second[] = {0, 42, 0x41,        0x43, [20] = 0, 0,
                        0, 20, [48] = 0x84, 0x92, 0x58,     0x98};
    unsigned n;

    n = fpdu_mark(0, in, 2, true, &marks, iov, G_N_ELEMENTS(iov));
    g_assert_cmpuint(flatten(iov, n, out), ==, 52);
    g_assert_cmpmem(out, 52, first, 52);
    ulpdu[13] = second[15] = 2;
    n = fpdu_mark(512 - 20, in, 2, true, &marks, iov, G_N_ELEMENTS(iov));
    g_assert_cmpuint(flatten(iov, n, out), ==, 52);
    g_assert_cmpmem(out, 52, second, 52);
    /* The sum is of length, ULPDU and pad only without markers. */
    n = fpdu_mark(4, in, 2, false, &marks, iov, G_N_ELEMENTS(iov));
    g_assert_cmpuint(flatten(iov, n, out), ==, 48);
    g_assert_cmpmem(out + 44, 4, "\0\0\0\0", 4);
}

/* ---- receiving ---- */

/* What came out, and what went in. */
struct stream {
    GByteArray *wire; /* all FPDUs */
    GByteArray *data; /* all ULPDUs, each behind four bytes of length */
};

static void add(struct stream *s, uint32_t len, bool crc_on)
{
    g_autofree uint8_t *buf = g_malloc(FPDU_MAX_SIZE);

    for (uint32_t i = 0; i < len; i++) {
        buf[2 + i] = i ? (uint8_t)g_test_rand_int() : len & 1;
    }
    g_byte_array_append(s->data, (const uint8_t *)&len, 4);
    g_byte_array_append(s->data, buf + 2, len);
    g_byte_array_append(s->wire, buf, (guint)finish(buf, len, crc_on));
}

/* Feeds pieces of random length up to @most; @direct: some payload goes past next(). */
struct feeder {
    struct fpdu_rx rx;
    uint8_t *room;
    GByteArray *out;
    uint32_t inside, told; /* of the long one: bytes that came, its length */
    bool is_long, direct;
    unsigned parts; /* that came so though there was room */
};

/* Those of odd length are to. */
static bool odd_in_parts(void *arg, const uint8_t *head, uint32_t len, uint32_t ulpdu_len)
{
    g_assert_null(arg);
    g_assert_cmpuint(ulpdu_len, >=, FPDU_PARTS_MIN);
    g_assert_cmpuint(len, ==, MIN(head[0] & 1 ? FPDU_MAX_HEAD : HEAD, ulpdu_len));
    return ulpdu_len & 1;
}

static void feeder_init(struct feeder *f, size_t room, bool crc_on, bool direct)
{
    *f = (struct feeder){
        .room = g_malloc(room), .out = g_byte_array_new(), .direct = direct};
    fpdu_rx_init(&f->rx, NULL, room, crc_on, head_of);
    f->rx.in_parts = direct ? odd_in_parts : NULL;
}

static void feeder_clear(struct feeder *f)
{
    g_free(f->room);
    g_byte_array_unref(f->out);
}

static void took(struct feeder *f, const struct fpdu_part *p)
{
    switch (p->kind) {
    case FPDU_WHOLE:
    case FPDU_HEAD:
        g_assert_false(f->is_long);
        g_byte_array_append(f->out, (const uint8_t *)&p->ulpdu_len, 4);
        g_byte_array_append(f->out, p->data, p->len);
        if (p->kind == FPDU_WHOLE) {
            g_assert_cmpuint(p->len, ==, p->ulpdu_len);
        } else {
            g_assert_cmpuint(p->len, ==,
                             p->data[0] & 1 ? MIN(FPDU_MAX_HEAD, p->ulpdu_len) : HEAD);
            if (fpdu_size(p->ulpdu_len) <= f->rx.size) {
                g_assert_true(f->rx.in_parts && p->ulpdu_len & 1);
                f->parts++;
            }
            f->is_long = true;
            f->inside = p->len;
            f->told = p->ulpdu_len;
        }
        break;
    case FPDU_SPAN:
        g_assert_true(f->is_long);
        g_byte_array_append(f->out, p->data, p->len);
        f->inside += p->len;
        break;
    case FPDU_END:
        g_assert_true(f->is_long);
        g_assert_cmpuint(f->inside, ==, f->told);
        f->is_long = false;
        break;
    default:
        break;
    }
}

/* 1 to @most, and not more than @len. */
static size_t some(size_t most, size_t len)
{
    size_t n = 1 + (size_t)g_test_rand_int() % most;

    return MIN(n, len);
}

static enum iwarp_error feed(struct feeder *f, const uint8_t *data, size_t len,
                             unsigned most)
{
    enum iwarp_error e;

    while (len) {
        size_t n = most ? some(most, len) : len;
        uint32_t wants = fpdu_rx_wants(&f->rx);
        /* So that AddressSanitizer sees what reads too far, and stale pointers. */
        g_autofree uint8_t *piece = NULL;
        struct fpdu_input in;
        struct fpdu_part part;

        if (f->direct && wants) {
            n = some(wants, len);
            g_assert_cmpuint(fpdu_rx_rest(&f->rx, HEAD), ==,
                             wants + fpdu_pad(f->rx.ulpdu_len) + CRC32C_SIZE +
                                 FPDU_LENGTH + HEAD);
            g_assert_false(fpdu_rx_placed(&f->rx, wants + 1, 0));
            g_byte_array_append(f->out, data, (guint)n);
            f->inside += n;
            g_assert_true(
                fpdu_rx_placed(&f->rx, (uint32_t)n, crc32c_add(f->rx.crc, data, n)));
            data += n;
            len -= n;
            continue;
        }
        if (f->direct && !most) { /* no payload with the headers */
            g_assert_cmpuint(fpdu_rx_rest(&f->rx, HEAD), >, 0);
            n = MIN(n, fpdu_rx_rest(&f->rx, HEAD));
        }
        piece = g_memdup2(data, n);
        in = (struct fpdu_input){piece, n};
        do {
            if (fpdu_rx_gathers(&f->rx, &in)) {
                f->rx.room = f->room; /* else it is not touched */
            }
            e = fpdu_rx_next(&f->rx, &in, &part);
            if (e) {
                g_assert_cmpuint(part.kind, ==, FPDU_NONE);
                g_assert_cmpuint(fpdu_rx_wants(&f->rx), ==, 0);
                return e;
            }
            took(f, &part);
        } while (part.kind != FPDU_NONE);
        g_assert_cmpuint(in.left, ==, 0);
        data += n;
        len -= n;
    }
    return IWARP_OK;
}

static const size_t rooms[] = {FPDU_RX_ROOM, 128, 1500, 4096, FPDU_MAX_SIZE};

/* The ULPDUs of these lengths, through each room, in pieces of up to @most bytes. */
static void streams(const uint32_t *lens, unsigned n, const unsigned *most)
{
    struct stream s = {g_byte_array_new(), g_byte_array_new()};
    unsigned odd_long = 0;

    for (unsigned i = 0; i < n; i++) {
        add(&s, lens[i], true);
        odd_long += lens[i] >= FPDU_PARTS_MIN && lens[i] & 1;
    }
    for (unsigned r = 0; r < G_N_ELEMENTS(rooms); r++) {
        for (unsigned m = 0; m < 4; m++) {
            for (unsigned direct = 0; direct < 2; direct++) {
                struct feeder f;

                feeder_init(&f, rooms[r], true, direct);
                g_assert_cmpint(feed(&f, s.wire->data, s.wire->len, most[m]), ==,
                                IWARP_OK);
                g_assert_cmpmem(f.out->data, f.out->len, s.data->data, s.data->len);
                g_assert_false(f.is_long);
                g_assert_cmpuint(f.rx.state, ==, FPDU_GATHER);
                g_assert_cmpuint(f.rx.have, ==, 0);
                if (direct && !most[m] && rooms[r] == FPDU_MAX_SIZE) {
                    g_assert_cmpuint(f.parts, ==, odd_long);
                }
                feeder_clear(&f);
            }
        }
    }
    g_byte_array_unref(s.wire);
    g_byte_array_unref(s.data);
}

/* Around the sizes of the rooms. */
static void test_streams(void)
{
    static const uint32_t few[] = {0,  1,  2,   3,   13,   14,   15,   42, 43, 65,
                                   66, 67, 117, 118, 1489, 1490, 1491, 0,  18};
    static const uint32_t many[] = {4085, 4086,  4087,  9000,  0,
                                    18,   65533, 65534, 65535, 7};

    streams(few, G_N_ELEMENTS(few), (const unsigned[]){1, 2, 3, 20});
    streams(few, G_N_ELEMENTS(few), (const unsigned[]){100, 500, 3000, 0});
    streams(many, G_N_ELEMENTS(many), (const unsigned[]){500, 1460, 70000, 0});
}

/* A wrong bit anywhere: what was there before comes, and nothing whole behind it. */
static void test_corrupt(void)
{
    static const unsigned most[] = {1, 30, 0};
    struct stream s = {g_byte_array_new(), g_byte_array_new()};
    guint good;

    add(&s, 33, true);
    good = s.wire->len;
    add(&s, 301, true);
    /* Should the length say more, there is more. */
    for (unsigned i = 0; i < 70; i++) {
        add(&s, 1000, true);
    }
    for (guint at = good; at < good + fpdu_size(301); at++) {
        for (unsigned r = 0; r < 3; r++) {
            unsigned bit = 1u << g_test_rand_int_range(0, 8);
            struct feeder f;

            s.wire->data[at] ^= bit;
            feeder_init(&f, rooms[r], true, at & 1);
            g_assert_cmpint(feed(&f, s.wire->data, s.wire->len, most[at % 3]), ==,
                            MPA_BAD_CRC);
            g_assert_cmpmem(f.out->data, MIN(f.out->len, 37), s.data->data, 37);
            if (rooms[r] > 400 && at > good + 1) {
                g_assert_cmpuint(f.out->len, ==, 37);
            }
            /* It stays so, whatever comes. */
            g_assert_cmpint(feed(&f, s.wire->data, good, 0), ==, MPA_BAD_CRC);
            feeder_clear(&f);

            feeder_init(&f, rooms[r], false, false);
            if (at > good + 1) {
                g_assert_cmpint(
                    feed(&f, s.wire->data, good + fpdu_size(301), most[at % 3]), ==,
                    IWARP_OK);
                g_assert_cmpuint(f.out->len, ==, 4 + 33 + 4 + 301);
            }
            feeder_clear(&f);
            s.wire->data[at] ^= bit;
        }
    }
    g_byte_array_unref(s.wire);
    g_byte_array_unref(s.data);
}

/* Sums that are off are sent as 0. */
static void test_no_crc(void)
{
    struct stream s = {g_byte_array_new(), g_byte_array_new()};
    struct feeder f;

    add(&s, 500, false);
    g_assert_cmpmem(s.wire->data + s.wire->len - 4, 4, "\0\0\0\0", 4);
    for (unsigned r = 0; r < G_N_ELEMENTS(rooms); r++) {
        feeder_init(&f, rooms[r], false, r & 1);
        g_assert_cmpint(feed(&f, s.wire->data, s.wire->len, 7), ==, IWARP_OK);
        g_assert_cmpmem(f.out->data, f.out->len, s.data->data, s.data->len);
        feeder_clear(&f);
    }
    g_byte_array_unref(s.wire);
    g_byte_array_unref(s.data);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/fpdu/sizes", test_sizes);
    g_test_add_func("/fpdu/markers", test_markers);
    g_test_add_func("/fpdu/no-markers", test_no_markers);
    g_test_add_func("/fpdu/rfc5044", test_rfc5044);
    g_test_add_func("/fpdu/streams", test_streams);
    g_test_add_func("/fpdu/corrupt", test_corrupt);
    g_test_add_func("/fpdu/no-crc", test_no_crc);
    return g_test_run();
}
