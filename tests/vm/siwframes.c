/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * siwframes make REQUEST FRAMES - the bytes of an initiator that talks as the daemon does
 * siwframes wrong WHAT FRAME    - a frame that ends it all: WHAT is wrong with it
 * siwframes check ANSWER        - are these bytes a responder's that has minded nothing?
 *
 * For test_siw.py, whose responder is siw with rdma_server(1): one Send of 16 bytes is
 * answered by another.  In front of ours come the first frame, each of the frames that
 * our daemons tell each other things with, and the Write of no bytes that is a guest's
 * (docs/iwarp.md), several times.
 *
 * A Terminate in an answer is printed as the daemon's parser reads it, with its layout.
 *
 * Runs on the host: only the daemon's encoders are used, no socket.
 */
#include <glib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/iwarp/wire/bytes.h"
#include "transport/iwarp/wire/control_stags.h"
#include "transport/iwarp/wire/crc32c.h"
#include "transport/iwarp/wire/fpdu.h"
#include "transport/iwarp/wire/mpa.h"
#include "transport/iwarp/wire/private_data.h"
#include "transport/iwarp/wire/rdmap.h"

#define TEXT  16u /* of rdma_server's messages */
#define TIMES 3u

static const struct mpa_config config = {
    .enhanced = true,
    .crc = true,
    .p2p = true,
    .rtr = MPA_RTR_WRITE,
    .ird = 16,
    .max_ird = 16,
    .ord = 16,
};

static void put_fpdu(GByteArray *out, const struct rdmap_segment *s, const void *payload,
                     uint32_t len)
{
    uint8_t head[FPDU_LENGTH + RDMAP_MAX_HEAD], tail[FPDU_MAX_TAIL];
    uint32_t head_len = (uint32_t)rdmap_put(s, head + FPDU_LENGTH);
    uint32_t crc;

    put_be16(head, (uint16_t)(head_len + len));
    crc = crc32c_add(CRC32C_INIT, head, FPDU_LENGTH + head_len);
    g_byte_array_append(out, head, FPDU_LENGTH + head_len);
    if (len) {
        crc = crc32c_add(crc, payload, len);
        g_byte_array_append(out, payload, len);
    }
    g_byte_array_append(out, tail, (guint)fpdu_tail(head_len + len, true, crc, tail));
}

static void put_told(GByteArray *out, enum ctl_kind kind, uint64_t seq, uint8_t arg)
{
    struct ctl c = {.kind = kind, .seq = seq, .arg = arg};
    struct rdmap_segment s;

    ctl_begin(&c, &s);
    put_fpdu(out, &s, NULL, 0);
}

static GByteArray *make_frames(void)
{
    static const uint8_t text[TEXT] = "hello, siw";
    GByteArray *out = g_byte_array_new();
    struct rdmap_segment s;

    rdmap_begin(&s, RDMAP_WRITE); /* the first frame */
    s.ddp.stag = CTL_STAG_RTR;
    put_fpdu(out, &s, NULL, 0);
    for (unsigned i = 0; i < TIMES; i++) {
        put_told(out, CTL_ACK, i, 0);
        put_told(out, CTL_RNR, CTL_SEQ_START_MAX - i, 31);
        put_told(out, CTL_NAK, i, PVRDMA_WC_REM_ACCESS_ERR);
        put_told(out, CTL_RESTART, i, 0);
        put_told(out, CTL_READY, i, 0);
        put_told(out, CTL_PSN, 0xffffff, 0);
        put_told(out, CTL_DROP, i, 0);
        G_STATIC_ASSERT(CTL_DROP == CTL_KINDS - 1); /* none is missing */
        rdmap_begin(&s, RDMAP_WRITE);               /* a guest's own, of no bytes */
        s.ddp.stag = CTL_FIRST_KEY;
        s.ddp.to = 0x7f0000000000 + i;
        put_fpdu(out, &s, NULL, 0);
    }
    rdmap_begin(&s, RDMAP_SEND);
    s.ddp.msn = 1;
    put_fpdu(out, &s, text, sizeof(text));
    return out;
}

/* A Send with a wrong sum or a number too high, or a frame of an opcode that is none. */
static GByteArray *make_wrong(const char *what)
{
    static const uint8_t text[TEXT] = "hello, siw";
    GByteArray *out = g_byte_array_new();
    struct rdmap_segment s;

    rdmap_begin(&s, RDMAP_SEND);
    s.ddp.msn = 1;
    if (!strcmp(what, "msn")) {
        s.ddp.msn = 2;
    } else if (!strcmp(what, "opcode")) {
        s.ddp.ulp |= 15;
    } else if (strcmp(what, "sum") != 0) {
        fprintf(stderr, "nothing wrong is called %s\n", what);
        exit(2);
    }
    put_fpdu(out, &s, text, sizeof(text));
    if (!strcmp(what, "sum")) {
        out->data[out->len - 1] ^= 1;
    }
    return out;
}

static GByteArray *make_request(void)
{
    const struct hello h = {.token = {1, 2}, .incarnation = 3, .mtu = PVRDMA_MTU_1024};
    GByteArray *out = g_byte_array_new();
    uint8_t data[HELLO_SIZE], bytes[MPA_MAX_STARTUP];
    struct mpa_frame f;

    mpa_request(&config, &f);
    hello_put(&h, data);
    f.data = data;
    f.data_len = sizeof(data);
    g_byte_array_append(out, bytes, (guint)mpa_put(&f, bytes));
    return out;
}

static bool save(const char *path, GByteArray *bytes)
{
    GError *err = NULL;
    bool ok = g_file_set_contents(path, (const char *)bytes->data, bytes->len, &err);

    if (!ok) {
        fprintf(stderr, "%s\n", err->message);
        g_clear_error(&err);
    }
    g_byte_array_unref(bytes);
    return ok;
}

static void print_terminate(const struct rdmap_terminate *t)
{
    printf("Terminate %u/%u/%02x, %s layout, segment of %u bytes\n", t->layer, t->etype,
           t->code, t->swapped ? "siw's" : "the RFC's", t->segment_len);
}

/* One Send of TEXT bytes, and nothing else. */
static bool frames_right(const uint8_t *at, size_t len)
{
    uint8_t room[FPDU_MAX_SIZE];
    struct fpdu_input in = {.at = at, .left = len};
    unsigned sends = 0;
    struct fpdu_part part;
    struct fpdu_rx rx;

    fpdu_rx_init(&rx, room, sizeof(room), true, rdmap_head_len);
    for (;;) {
        enum iwarp_error e = fpdu_rx_next(&rx, &in, &part);
        struct rdmap_segment s;

        if (e || part.kind == FPDU_NONE) {
            printf("%u Sends, %s\n", sends, e ? "then a frame that is wrong" : "no more");
            return !e && sends == 1;
        }
        if (part.kind != FPDU_WHOLE ||
            rdmap_get(part.data, part.len, part.ulpdu_len, RDMAP_STANDARD, &s)) {
            printf("a frame of a wrong kind\n");
            return false;
        }
        if (s.opcode == RDMAP_TERMINATE) {
            print_terminate(&s.terminate);
            return false;
        }
        printf("opcode %u, %u bytes\n", s.opcode, s.payload_len);
        if (s.opcode != RDMAP_SEND || s.payload_len != TEXT) {
            return false;
        }
        sends++;
    }
}

static bool check(const char *path)
{
    struct mpa_agreed agreed;
    struct mpa_frame reply;
    char *bytes = NULL;
    gsize len = 0;
    size_t size;
    bool ok;

    if (!g_file_get_contents(path, &bytes, &len, NULL) ||
        mpa_get(MPA_REPLY, (const uint8_t *)bytes, len, &reply, &size) || len < size) {
        printf("no Reply in %zu bytes\n", len);
        g_free(bytes);
        return false;
    }
    ok = !mpa_conclude(&config, &reply, &agreed) && !agreed.rejected && agreed.crc &&
         agreed.rtr == MPA_RTR_WRITE;
    if (!ok) {
        printf("MPA: no agreement\n");
    }
    ok = ok && frames_right((const uint8_t *)bytes + size, len - size);
    g_free(bytes);
    return ok;
}

int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[1], "make")) {
        return save(argv[2], make_request()) && save(argv[3], make_frames()) ? 0 : 1;
    }
    if (argc == 4 && !strcmp(argv[1], "wrong")) {
        return save(argv[3], make_wrong(argv[2])) ? 0 : 1;
    }
    if (argc == 3 && !strcmp(argv[1], "check")) {
        return check(argv[2]) ? 0 : 1;
    }
    fprintf(stderr, "usage: siwframes make REQUEST FRAMES | wrong sum|msn|opcode FRAME "
                    "| check ANSWER\n");
    return 2;
}
