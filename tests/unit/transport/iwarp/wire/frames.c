/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * frames FILE - every kind of frame that the encoders make, as a capture (pcap)
 *
 * For test-tshark.py.  TCP streams with their handshakes: 0 has all kinds without
 * markers, 1 the same with them in both directions, 2 is refused, 3 is of revision 1.
 * FPDUs follow each other without regard to TCP segments.  Prints for each FPDU its
 * stream, the port that sends it, the ULPDU's length and the opcode.
 */
#include <glib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/iwarp/wire/bytes.h"
#include "transport/iwarp/wire/control_stags.h"
#include "transport/iwarp/wire/fpdu.h"
#include "transport/iwarp/wire/mpa.h"
#include "transport/iwarp/wire/rdmap.h"

#define MSS        1460u
#define RESPONDER  4791u
#define MAX_STREAM (1u << 17)

enum side { INITIATOR, RESPONDER_SIDE, SIDES };

/* What one side has not sent yet. */
struct half {
    uint8_t buf[MAX_STREAM];
    size_t len;
    uint32_t seq;
    uint64_t pos; /* in full operation */
    uint32_t msn[RDMAP_QNS];
};

static FILE *file;
static unsigned stream;
static bool markers;
static struct half half[SIDES];
static uint32_t clock_us;

static void put_packet(enum side from, uint8_t flags, const uint8_t *data, size_t len)
{
    uint16_t port = (uint16_t)(40000 + stream);
    uint32_t record[4] = {0, clock_us += 10, (uint32_t)(40 + len), (uint32_t)(40 + len)};
    uint8_t h[40] = {0x45, [8] = 64, 6, [12] = 10, [15] = 1, 10, [19] = 2, [32] = 0x50};

    put_be16(h + 2, (uint16_t)(40 + len));
    h[15] = 1 + from;
    h[19] = 2 - from;
    put_be16(h + 20, from == INITIATOR ? port : RESPONDER);
    put_be16(h + 22, from == INITIATOR ? RESPONDER : port);
    put_be32(h + 24, half[from].seq);
    put_be32(h + 28, flags == 0x02 ? 0 : half[!from].seq);
    h[33] = flags;
    put_be16(h + 34, 0xffff);
    fwrite(record, sizeof(record), 1, file);
    fwrite(h, sizeof(h), 1, file);
    if (len) {
        fwrite(data, len, 1, file);
    }
    half[from].seq += (uint32_t)len + (flags & 0x03 ? 1 : 0);
}

static void flush(enum side from)
{
    struct half *h = &half[from];

    for (size_t at = 0; at < h->len; at += MSS) {
        put_packet(from, 0x18, h->buf + at, MIN(MSS, h->len - at));
    }
    h->len = 0;
}

static void append(struct half *h, const void *data, size_t len)
{
    g_assert(len <= MAX_STREAM - h->len);
    memcpy(h->buf + h->len, data, len);
    h->len += len;
}

/* ---- frames ---- */

static void startup(enum side from, const struct mpa_frame *f)
{
    uint8_t bytes[MPA_MAX_STARTUP];

    append(&half[from], bytes, mpa_put(f, bytes));
    flush(from);
}

/* A ULPDU: headers and payload. */
static void fpdu(enum side from, const uint8_t *head, size_t head_len,
                 const uint8_t *payload, size_t len)
{
    static struct fpdu_marks marks;
    struct half *h = &half[from];
    uint32_t ulpdu_len = (uint32_t)(head_len + len), crc = CRC32C_INIT;
    uint8_t length[FPDU_LENGTH], tail[FPDU_MAX_TAIL];
    struct iovec in[] = {{length, FPDU_LENGTH},
                         {(void *)(uintptr_t)head, head_len},
                         {(void *)(uintptr_t)payload, len}};
    struct iovec out[FPDU_MARKED_IOV(3)];

    put_be16(length, (uint16_t)ulpdu_len);
    printf("%u %u %u %u\n", stream, from == INITIATOR ? 40000 + stream : RESPONDER,
           ulpdu_len, head[1] & 15u);
    if (markers) {
        unsigned n = fpdu_mark(h->pos, in, 3, true, &marks, out, G_N_ELEMENTS(out));

        g_assert(n > 0);
        for (unsigned i = 0; i < n; i++) {
            append(h, out[i].iov_base, out[i].iov_len);
            h->pos += out[i].iov_len;
        }
        /* tshark 4.0 finds markers in whole segments only. */
        flush(from);
        return;
    }
    for (unsigned i = 0; i < 3; i++) {
        append(h, in[i].iov_base, in[i].iov_len);
        crc = crc32c_add(crc, in[i].iov_base, in[i].iov_len);
    }
    append(h, tail, fpdu_tail(ulpdu_len, true, crc, tail));
}

/* A message, whose first header is @s. */
static void message(enum side from, struct rdmap_segment *s, size_t len)
{
    g_autofree uint8_t *payload = g_malloc(len + 1);
    uint8_t head[RDMAP_MAX_HEAD];
    struct ddp_header *h = &s->ddp;
    size_t at = 0;

    for (size_t i = 0; i < len; i++) {
        payload[i] = (uint8_t)(i * 7 + 3);
    }
    if (!s->ddp.tagged) {
        s->ddp.msn = ++half[from].msn[s->ddp.qn];
    }
    if (rdmap_ops[s->opcode].header) {
        fpdu(from, head, rdmap_put(s, head), NULL, 0);
        return;
    }
    do {
        uint32_t n = ddp_cut(h, len - at, true, fpdu_mulpdu(MSS, markers));

        fpdu(from, head, ddp_put(h, head), payload + at, n);
        ddp_advance(h, n);
        at += n;
    } while (at < len);
}

static void tagged(enum side from, enum rdmap_opcode op, uint32_t stag, uint64_t to,
                   size_t len)
{
    struct rdmap_segment s;

    rdmap_begin(&s, op);
    s.ddp.stag = stag;
    s.ddp.to = to;
    message(from, &s, len);
}

static void sends(enum side from, enum rdmap_opcode op, uint32_t stag, size_t len)
{
    struct rdmap_segment s;

    rdmap_begin(&s, op);
    s.ddp.stag = stag;
    message(from, &s, len);
}

static void immediate(enum side from, enum rdmap_opcode op, uint32_t imm, uint32_t of)
{
    struct rdmap_segment s;

    rdmap_begin(&s, op);
    s.imm = (struct rdmap_imm){imm, of};
    message(from, &s, 0);
}

static void atomic(enum side from, enum rdmap_atomic_op op, uint32_t id)
{
    struct rdmap_segment s;

    rdmap_begin(&s, RDMAP_ATOMIC_REQUEST);
    s.atomic = (struct rdmap_atomic){.id = id, .stag = 0x104, .to = 0x7f0000001000};
    rdmap_plain_atomic(&s, op, 0x1122334455667788, 0x99aabbccddeeff00);
    message(from, &s, 0);
    rdmap_begin(&s, RDMAP_ATOMIC_RESPONSE);
    s.result = (struct rdmap_atomic_result){id, 0x0102030405060708};
    message(!from, &s, 0);
}

static void control(enum side from, enum ctl_kind kind, uint64_t seq, uint8_t arg)
{
    struct ctl c = {kind, seq, arg};
    struct rdmap_segment s;

    ctl_begin(&c, &s);
    message(from, &s, 0);
}

static void terminate(enum side from, enum iwarp_error error, const uint8_t *head,
                      size_t have)
{
    uint8_t ulpdu[RDMAP_MAX_TERMINATE];

    fpdu(from, ulpdu, rdmap_put_terminate(error, head, have, 77, ulpdu), NULL, 0);
}

static void terminates(enum side from)
{
    struct rdmap_segment s;
    uint8_t head[RDMAP_MAX_HEAD];
    size_t n;

    rdmap_begin(&s, RDMAP_READ_REQUEST);
    s.ddp.msn = 9;
    s.read = (struct rdmap_read){7, 8, 9, 10, 11};
    n = rdmap_put(&s, head);
    terminate(from, RDMAP_BAD_BOUNDS, head, n);
    terminate(from, RDMAP_BAD_OPCODE, head, n);
    terminate(from, DDP_UNTAGGED_NO_BUFFER, head, n);
    rdmap_begin(&s, RDMAP_WRITE);
    s.ddp.stag = 0x666;
    terminate(from, DDP_TAGGED_BAD_STAG, head, rdmap_put(&s, head));
    terminate(from, RDMAP_LOCAL_CATASTROPHIC, NULL, 0);
    terminate(from, MPA_BAD_CRC, NULL, 0);
}

static void all_kinds(void)
{
    struct rdmap_segment s;

    tagged(INITIATOR, RDMAP_WRITE, CTL_STAG_RTR, 0, 0);
    flush(INITIATOR);
    tagged(INITIATOR, RDMAP_WRITE, 0x100, 0x7f0000000000, 5001);
    sends(INITIATOR, RDMAP_SEND, 0, 7);
    sends(INITIATOR, RDMAP_SEND_SE, 0, 3000);
    sends(INITIATOR, RDMAP_SEND_INV, 0x203, 0);
    sends(INITIATOR, RDMAP_SEND_SE_INV, 0x203, 1);
    immediate(INITIATOR, RDMAP_IMM, 0x11111111, RDMAP_IMM_OF_SEND);
    sends(INITIATOR, RDMAP_SEND, 0, 50);
    tagged(INITIATOR, RDMAP_WRITE, 0x100, 0x7f0000000000, 2);
    immediate(INITIATOR, RDMAP_IMM_SE, 0x22222222, RDMAP_IMM_OF_WRITE);
    rdmap_begin(&s, RDMAP_READ_REQUEST);
    s.read = (struct rdmap_read){0x301, 0, 2999, 0x302, 0x7f0000002000};
    message(INITIATOR, &s, 0);
    flush(INITIATOR);
    control(RESPONDER_SIDE, CTL_ACK, 8, 0);
    tagged(RESPONDER_SIDE, RDMAP_READ_RESPONSE, 0x301, 0, 2999);
    atomic(INITIATOR, RDMAP_FETCH_ADD, 1);
    atomic(INITIATOR, RDMAP_CMP_SWAP, 2);
    control(RESPONDER_SIDE, CTL_RNR, 12, 14);
    control(RESPONDER_SIDE, CTL_NAK, 12, PVRDMA_WC_REM_ACCESS_ERR);
    flush(INITIATOR);
    flush(RESPONDER_SIDE);
    control(INITIATOR, CTL_RESTART, 12, 0);
    control(INITIATOR, CTL_PSN, 0xffffff, 0);
    control(INITIATOR, CTL_DROP, 13, 0);
    G_STATIC_ASSERT(CTL_DROP == CTL_KINDS - 1); /* none is missing */
    tagged(INITIATOR, RDMAP_WRITE, CTL_FIRST_KEY, 0, 0);
    control(RESPONDER_SIDE, CTL_READY, 12, 0);
    /* So long that every place in an FPDU meets a marker. */
    for (unsigned i = 0; i < 150; i++) {
        sends(RESPONDER_SIDE, RDMAP_SEND, 0, i * 4 % 97 + i % 4);
    }
    terminates(RESPONDER_SIDE);
    flush(INITIATOR);
    flush(RESPONDER_SIDE);
}

/* ---- streams ---- */

static void talk(bool enhanced, bool with_markers, bool refuse)
{
    struct mpa_config ini = {.enhanced = enhanced,
                             .crc = true,
                             .p2p = true,
                             .rtr = MPA_RTR_WRITE | MPA_RTR_READ,
                             .ird = 16,
                             .max_ird = 16,
                             .ord = 16};
    struct mpa_config res = ini;
    struct mpa_frame req, reply;
    struct mpa_agreed agreed;

    memset(half, 0, sizeof(half));
    half[INITIATOR].seq = 1000;
    half[RESPONDER_SIDE].seq = 5000;
    markers = with_markers;
    put_packet(INITIATOR, 0x02, NULL, 0);
    put_packet(RESPONDER_SIDE, 0x12, NULL, 0);
    put_packet(INITIATOR, 0x10, NULL, 0);
    mpa_request(&ini, &req);
    /* We never do; others may. */
    req.markers = with_markers;
    req.data = (const uint8_t *)"hello";
    req.data_len = 5;
    startup(INITIATOR, &req);
    mpa_accept(&res, &req, &reply, &agreed);
    reply.reject = refuse;
    reply.markers = with_markers;
    startup(RESPONDER_SIDE, &reply);
    if (!refuse) {
        all_kinds();
    }
    put_packet(INITIATOR, 0x11, NULL, 0);
    put_packet(RESPONDER_SIDE, 0x11, NULL, 0);
    stream++;
}

int main(int argc, char **argv)
{
    /* Of microseconds, IP packets without a link's header. */
    static const uint32_t header[] = {0xa1b2c3d4, 2 | 4 << 16, 0, 0, 0x40000, 101};

    file = argc == 2 ? fopen(argv[1], "wb") : NULL;
    if (!file) {
        fprintf(stderr, "usage: frames FILE\n");
        return 1;
    }
    fwrite(header, sizeof(header), 1, file);
    talk(true, false, false);
    talk(true, true, false);
    talk(true, false, true);
    talk(false, false, false);
    return fclose(file) ? 1 : 0;
}
