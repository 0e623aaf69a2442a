/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Fuzzer of a stream in full operation: FPDUs, DDP and RDMAP headers, Terminates, and
 * what our daemons tell each other.
 *
 * An input is a byte of bits, a seed for cuts, and bytes: the raw stream, or ULPDUs,
 * each behind two bytes of length, that are framed with the right sum and may have one
 * wrong bit somewhere.  Two receivers get the stream, one in one piece and with room for
 * every FPDU, the other cut and with little room: both must hand out the same ULPDUs,
 * end with the same verdict, and get back what was framed.  What parses must come
 * out the same from rdmap_put().
 *
 * The corpus has to get every operation, verdict and way of receiving
 * (fuzz_reached_all).
 */
#include "fuzz.h"
#include "transport/iwarp/wire/control_stags.h"
#include "transport/iwarp/wire/fpdu.h"
#include "transport/iwarp/wire/rdmap.h"

enum { CRC_ON = 1, RAW = 2, SPOIL = 4, STANDARD = 8, DIRECT = 16, ROOM_SHIFT = 5 };

/* What has come about; the verdicts are those of rdmap_get(). */
static const enum iwarp_error verdict[] = {
    IWARP_OK,
    DDP_TAGGED_BAD_VERSION,
    DDP_TAGGED_TO_WRAP,
    DDP_UNTAGGED_BAD_VERSION,
    DDP_UNTAGGED_BAD_QN,
    DDP_UNTAGGED_BAD_MO,
    DDP_UNTAGGED_TOO_LONG,
    RDMAP_BAD_VERSION,
    RDMAP_BAD_OPCODE,
    RDMAP_TO_WRAP,
    RDMAP_STREAM_CATASTROPHIC,
};
static struct {
    bool part[FPDU_END + 1], direct, held, bad_sum;
    bool verdict[G_N_ELEMENTS(verdict)];
    bool opcode[RDMAP_OPCODES], swapped, segment, read;
    bool ctl[CTL_KINDS], bad_ctl;
    bool taken, out_of_order;
} reached;

struct receiver {
    struct fpdu_rx rx;
    uint8_t *room;
    GByteArray *done; /* ULPDUs that were found right, each behind its length */
    GByteArray *open; /* the long one that is coming */
    uint32_t open_len;
    bool is_open;
    enum iwarp_error error;
};

static uint32_t seed;

static uint32_t some(uint32_t most)
{
    seed = seed * 1103515245u + 12345u;
    return 1 + (seed >> 8) % most;
}

static void keep(GByteArray *to, const uint8_t *data, uint32_t len)
{
    g_byte_array_append(to, (const uint8_t *)&len, sizeof(len));
    if (len) {
        g_byte_array_append(to, data, len);
    }
}

static bool same(const GByteArray *a, const GByteArray *b)
{
    return a->len == b->len && (!a->len || memcmp(a->data, b->data, a->len) == 0);
}

static void receiver_init(struct receiver *r, size_t room, bool crc_on)
{
    *r = (struct receiver){
        .room = g_malloc(room), .done = g_byte_array_new(), .open = g_byte_array_new()};
    fpdu_rx_init(&r->rx, NULL, room, crc_on, rdmap_head_len);
}

static bool odd_in_parts(void *arg, const uint8_t *head, uint32_t len, uint32_t ulpdu_len)
{
    CHECK(!arg && len <= ulpdu_len && len == MIN(rdmap_head_len(head), ulpdu_len));
    return ulpdu_len & 1;
}

static void receiver_clear(struct receiver *r)
{
    g_free(r->room);
    g_byte_array_unref(r->done);
    g_byte_array_unref(r->open);
}

static void take(struct receiver *r, const struct fpdu_part *p)
{
    reached.part[p->kind] = true;
    switch (p->kind) {
    case FPDU_WHOLE:
        CHECK(!r->is_open && p->len == p->ulpdu_len);
        keep(r->done, p->data, p->len);
        break;
    case FPDU_HEAD:
        CHECK(!r->is_open && p->len <= p->ulpdu_len && p->len <= FPDU_MAX_HEAD);
        CHECK(fpdu_size(p->ulpdu_len) > r->rx.size ||
              (r->rx.in_parts && p->ulpdu_len & 1));
        r->is_open = true;
        r->open_len = p->ulpdu_len;
        g_byte_array_set_size(r->open, 0);
        g_byte_array_append(r->open, p->data, p->len);
        break;
    case FPDU_SPAN:
        CHECK(r->is_open && p->len && p->len <= r->open_len - r->open->len);
        g_byte_array_append(r->open, p->data, p->len);
        break;
    case FPDU_END:
        CHECK(r->is_open && r->open->len == r->open_len);
        r->is_open = false;
        keep(r->done, r->open->data, r->open->len);
        break;
    case FPDU_NONE:
        break;
    }
}

/* The end of a payload that goes past fpdu_rx_next(), and does not, as in
 * direct_receive.c. */
#define HELD 8u

/*
 * In pieces of up to @most bytes; @direct: payload may go past fpdu_rx_next(), and what
 * is read otherwise ends with the next header.
 */
static void receive(struct receiver *r, const uint8_t *data, size_t len, uint32_t most,
                    bool direct)
{
    while (len && !r->error) {
        uint32_t n = (uint32_t)MIN(len, most), wants = fpdu_rx_wants(&r->rx);
        struct fpdu_input in;
        struct fpdu_part part;
        uint8_t *piece;

        if (most < len) {
            n = some(n);
        }
        CHECK(!wants || r->is_open);
        if (direct && wants > HELD) {
            n = MIN(n, wants - HELD);
            CHECK(!fpdu_rx_placed(&r->rx, wants + 1, 0));
            CHECK(fpdu_rx_placed(&r->rx, n, crc32c_add(r->rx.crc, data, n)));
            reached.direct = true;
            g_byte_array_append(r->open, data, n);
            data += n;
            len -= n;
            continue;
        }
        if (direct) {
            size_t rest = fpdu_rx_rest(&r->rx, DDP_TAGGED_LEN);

            CHECK(rest > wants);
            reached.held = reached.held || wants;
            n = (uint32_t)MIN(n, rest);
        }
        piece = g_memdup2(data, n);
        in = (struct fpdu_input){piece, n};
        do {
            size_t left = in.left;

            if (fpdu_rx_gathers(&r->rx, &in)) {
                r->rx.room = r->room; /* else it is not touched */
            }
            r->error = fpdu_rx_next(&r->rx, &in, &part);
            CHECK(in.left <= left && in.at + in.left == piece + n);
            CHECK(!r->error || (part.kind == FPDU_NONE && r->error == MPA_BAD_CRC));
            reached.bad_sum = reached.bad_sum || r->error;
            take(r, &part);
        } while (part.kind != FPDU_NONE);
        CHECK(!in.left || r->error);
        g_free(piece);
        data += n;
        len -= n;
    }
}

/* ---- what is in a ULPDU ---- */

static void note_verdict(enum iwarp_error e)
{
    unsigned i = 0;

    while (i < G_N_ELEMENTS(verdict) && verdict[i] != e) {
        i++;
    }
    CHECK(i < G_N_ELEMENTS(verdict));
    reached.verdict[i] = true;
}

static void parse_ctl(const struct rdmap_segment *s)
{
    struct rdmap_segment back;
    struct ctl c;

    if (ctl_get(s, &c)) {
        reached.bad_ctl = true;
        return;
    }
    reached.ctl[c.kind] = true;
    CHECK(s->payload_len == 0 && s->ddp.last);
    ctl_begin(&c, &back);
    CHECK(back.ddp.stag == s->ddp.stag && back.ddp.to == s->ddp.to);
}

static void parse_queue(struct ddp_queue *queues, const struct rdmap_segment *s)
{
    struct ddp_queue *q, before;

    CHECK(s->ddp.qn < RDMAP_QNS);
    q = &queues[s->ddp.qn];
    before = *q;
    if (ddp_queue_take(q, &s->ddp, s->payload_len, 3000)) {
        CHECK(q->msn == before.msn && q->mo == before.mo);
        reached.out_of_order = true;
        return;
    }
    reached.taken = true;
    CHECK(q->mo <= 3000);
    CHECK(s->ddp.last ? q->msn == before.msn + 1 && !q->mo : q->msn == before.msn);
}

/* Reserved bits, and what a Terminate holds, are not put back. */
static void parse(const uint8_t *ulpdu, uint32_t len, unsigned permitted,
                  struct ddp_queue *queues)
{
    uint8_t first[2] = {0}, again[RDMAP_MAX_HEAD], twice[RDMAP_MAX_HEAD];
    struct rdmap_segment s, part, back;
    uint32_t have;
    enum iwarp_error e;

    if (len) {
        memcpy(first, ulpdu, MIN(len, 2));
    }
    have = MIN(len, rdmap_head_len(first));
    e = rdmap_get(ulpdu, len, len, permitted, &s);
    /* The header alone says the same. */
    CHECK(rdmap_get(ulpdu, have, len, permitted, &part) == e);
    note_verdict(e);
    if (e) {
        uint8_t term[RDMAP_MAX_TERMINATE];
        size_t n = rdmap_put_terminate(e, ulpdu, have, len, term);

        CHECK(rdmap_get(term, n, (uint32_t)n, RDMAP_STANDARD, &s) == IWARP_OK);
        CHECK(!s.terminate.swapped);
        CHECK(IWARP_ERROR((unsigned)s.terminate.layer, (unsigned)s.terminate.etype,
                          (unsigned)s.terminate.code) == (int)e);
        return;
    }
    CHECK(permitted >> s.opcode & 1);
    CHECK(s.head_len <= len && s.payload_len == len - s.head_len);
    CHECK(part.head_len == s.head_len && part.payload_len == s.payload_len);
    reached.opcode[s.opcode] = true;
    if (s.opcode == RDMAP_TERMINATE) {
        const uint8_t *end = ulpdu + len;

        reached.swapped = reached.swapped || s.terminate.swapped;
        reached.segment = reached.segment || s.terminate.segment;
        reached.read = reached.read || s.terminate.read;
        if (s.terminate.segment) {
            CHECK(end - s.terminate.segment >= ddp_len(s.terminate.segment[0] >> 7));
        }
        if (s.terminate.read) {
            CHECK(end - s.terminate.read >= RDMAP_READ_LEN);
        }
    } else {
        CHECK(have == s.head_len);
        CHECK(rdmap_put(&s, again) == s.head_len);
        CHECK(rdmap_get(again, s.head_len, len, permitted, &back) == IWARP_OK);
        CHECK(rdmap_put(&back, twice) == s.head_len);
        CHECK(memcmp(again, twice, s.head_len) == 0);
        CHECK(rdmap_put(&part, twice) == s.head_len);
        CHECK(memcmp(again, twice, s.head_len) == 0);
    }
    if (ctl_is(&s)) {
        parse_ctl(&s);
    }
    if (!s.ddp.tagged) {
        parse_queue(queues, &s);
    }
}

static void parse_all(const GByteArray *ulpdus, unsigned permitted)
{
    struct ddp_queue queues[RDMAP_QNS];
    uint32_t len;

    for (unsigned i = 0; i < RDMAP_QNS; i++) {
        queues[i] = DDP_QUEUE_INIT;
    }
    for (uint32_t at = 0; at < ulpdus->len; at += len) {
        uint8_t *exact;

        memcpy(&len, ulpdus->data + at, sizeof(len));
        at += sizeof(len);
        exact = g_memdup2(ulpdus->data + at, len);
        parse(exact, len, permitted, queues);
        g_free(exact);
    }
}

/* ---- the stream ---- */

static void frame(GByteArray *stream, const uint8_t *ulpdu, uint32_t len, bool crc_on)
{
    uint8_t length[FPDU_LENGTH] = {(uint8_t)(len >> 8), (uint8_t)len};
    uint8_t tail[FPDU_MAX_TAIL];
    uint32_t crc = crc32c_add(CRC32C_INIT, length, sizeof(length));

    g_byte_array_append(stream, length, sizeof(length));
    if (len) {
        g_byte_array_append(stream, ulpdu, len);
    }
    g_byte_array_append(stream, tail,
                        (guint)fpdu_tail(len, crc_on, crc32c_add(crc, ulpdu, len), tail));
}

static bool all_of(const char *what, const bool *is, unsigned n)
{
    bool all = true;

    for (unsigned i = 0; i < n; i++) {
        if (!is[i]) {
            printf("%s %u is never reached\n", what, i);
            all = false;
        }
    }
    return all;
}

bool fuzz_reached_all(void)
{
    const bool others[] = {reached.direct,  reached.held,    reached.bad_sum,
                           reached.swapped, reached.segment, reached.read,
                           reached.bad_ctl, reached.taken,   reached.out_of_order};
    bool all = all_of("part", reached.part, G_N_ELEMENTS(reached.part));

    all &= all_of("verdict", reached.verdict, G_N_ELEMENTS(verdict));
    all &= all_of("operation", reached.opcode, RDMAP_OPCODES);
    all &= all_of("control frame", reached.ctl, CTL_KINDS);
    return all & all_of("the rest, number", others, G_N_ELEMENTS(others));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const size_t rooms[] = {FPDU_RX_ROOM, 100, 256, FPDU_MAX_SIZE};
    GByteArray *stream, *framed;
    struct receiver all, cut;
    unsigned bits;

    if (size < 3) {
        return 0;
    }
    bits = data[0];
    seed = (uint32_t)data[1] << 8 | data[2];
    data += 3;
    size -= 3;
    stream = g_byte_array_new();
    framed = g_byte_array_new();
    if (bits & RAW) {
        g_byte_array_append(stream, data, (guint)size);
    }
    while (!(bits & RAW) && size >= 2) {
        uint32_t len = (uint32_t)(data[0] << 8 | data[1]);

        data += 2;
        size -= 2;
        len = (uint32_t)MIN(len, size);
        frame(stream, data, len, bits & CRC_ON);
        keep(framed, data, len);
        data += len;
        size -= len;
    }
    if (bits & SPOIL && stream->len) {
        stream->data[some(stream->len) - 1] ^= (uint8_t)(1u << (some(8) - 1));
    }

    receiver_init(&all, FPDU_MAX_SIZE, bits & CRC_ON);
    receive(&all, stream->data, stream->len, UINT32_MAX, false);
    receiver_init(&cut, rooms[bits >> ROOM_SHIFT & 3], bits & CRC_ON);
    cut.rx.in_parts = bits & DIRECT ? odd_in_parts : NULL;
    receive(&cut, stream->data, stream->len, some(400), bits & DIRECT);
    CHECK(all.error == cut.error);
    CHECK(same(all.done, cut.done));
    if (!(bits & (RAW | SPOIL))) {
        CHECK(!all.error && same(all.done, framed));
    }
    parse_all(all.done, bits & STANDARD ? RDMAP_STANDARD : RDMAP_EXTENDED);

    receiver_clear(&all);
    receiver_clear(&cut);
    g_byte_array_unref(stream);
    g_byte_array_unref(framed);
    return 0;
}
