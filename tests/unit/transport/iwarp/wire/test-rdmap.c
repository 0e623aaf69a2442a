/* SPDX-License-Identifier: GPL-2.0-or-later */
/* rdmap.c: each operation's bytes, what is refused and how, Terminates in both layouts.
 */
#include <glib.h>
#include <string.h>

#include "transport/iwarp/wire/fpdu.h"
#include "transport/iwarp/wire/rdmap.h"

G_STATIC_ASSERT(RDMAP_MAX_HEAD <= FPDU_MAX_HEAD);

static enum iwarp_error get(const uint8_t *bytes, size_t len, unsigned permitted,
                            struct rdmap_segment *s)
{
    /* So that AddressSanitizer sees what reads too far. */
    uint8_t *exact = g_memdup2(bytes, len);
    enum iwarp_error e = rdmap_get(exact, len, (uint32_t)len, permitted, s);

    g_free(exact);
    return e;
}

static const char read_bytes[] = "\x41\x41\0\0\0\0\0\0\0\1\0\0\0\x09\0\0\0\0"
                                 "\1\2\3\4\x11\x12\x13\x14\x15\x16\x17\x18"
                                 "\0\0\x10\0\5\6\7\x08\x21\x22\x23\x24\x25\x26\x27\x28";
static const char imm_bytes[] = "\x41\x49\0\0\0\0\0\0\0\0\0\0\0\2\0\0\0\0"
                                "\xde\xad\xbe\xef\0\0\0\1";
static const char add_bytes[] = "\x41\x4a\0\0\0\0\0\0\0\1\0\0\0\3\0\0\0\0"
                                "\0\0\0\0\0\0\0\7\0\0\1\2\0\0\0\0\0\0\x10\x08"
                                "\0\0\0\0\0\0\0\5\0\0\0\0\0\0\0\0"
                                "\0\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff";
static const char swap_bytes[] = "\x41\x4a\0\0\0\0\0\0\0\1\0\0\0\3\0\0\0\0"
                                 "\0\0\0\2\0\0\0\7\0\0\1\2\0\0\0\0\0\0\x10\x08"
                                 "\0\0\0\0\0\0\0\5\xff\xff\xff\xff\xff\xff\xff\xff"
                                 "\0\0\0\0\0\0\0\x06\xff\xff\xff\xff\xff\xff\xff\xff";
static const char result_bytes[] = "\x41\x4b\0\0\0\0\0\0\0\3\0\0\0\4\0\0\0\0"
                                   "\0\0\0\7\1\2\3\4\5\6\7\x08";

static void same_head(const struct rdmap_segment *a, const struct rdmap_segment *b)
{
    uint8_t x[RDMAP_MAX_HEAD], y[RDMAP_MAX_HEAD];

    g_assert_cmpmem(x, rdmap_put(a, x), y, rdmap_put(b, y));
}

static void known(const struct rdmap_segment *s, const char *bytes, size_t len)
{
    uint8_t out[RDMAP_MAX_HEAD];
    struct rdmap_segment back;

    g_assert_cmpuint(rdmap_put(s, out), ==, len);
    g_assert_cmpmem(out, len, bytes, len);
    g_assert_cmpint(get(out, len, RDMAP_EXTENDED, &back), ==, IWARP_OK);
    g_assert_cmpuint(back.head_len, ==, len);
    g_assert_cmpuint(back.payload_len, ==, 0);
    g_assert_cmpuint(rdmap_head_len(out), ==, len);
    same_head(s, &back);
}

static void test_bytes(void)
{
    struct rdmap_segment s;

    rdmap_begin(&s, RDMAP_READ_REQUEST);
    s.ddp.msn = 9;
    s.read = (struct rdmap_read){0x01020304, 0x1112131415161718, 4096, 0x05060708,
                                 0x2122232425262728};
    known(&s, read_bytes, sizeof(read_bytes) - 1);

    rdmap_begin(&s, RDMAP_IMM_SE);
    s.ddp.msn = 2;
    s.imm = (struct rdmap_imm){0xdeadbeef, RDMAP_IMM_OF_SEND};
    known(&s, imm_bytes, sizeof(imm_bytes) - 1);

    rdmap_begin(&s, RDMAP_ATOMIC_REQUEST);
    s.ddp.msn = 3;
    s.atomic = (struct rdmap_atomic){.id = 7, .stag = 0x102, .to = 0x1008};
    rdmap_plain_atomic(&s, RDMAP_FETCH_ADD, 5, 6);
    known(&s, add_bytes, sizeof(add_bytes) - 1);
    g_assert_true(rdmap_atomic_is_plain(&s.atomic));
    s.atomic.mask = 1;
    g_assert_false(rdmap_atomic_is_plain(&s.atomic));
    rdmap_plain_atomic(&s, RDMAP_CMP_SWAP, 5, 6);
    known(&s, swap_bytes, sizeof(swap_bytes) - 1);
    g_assert_true(rdmap_atomic_is_plain(&s.atomic));
    s.atomic.compare_mask = 1;
    g_assert_false(rdmap_atomic_is_plain(&s.atomic));

    rdmap_begin(&s, RDMAP_ATOMIC_RESPONSE);
    s.ddp.msn = 4;
    s.result = (struct rdmap_atomic_result){7, 0x0102030405060708};
    known(&s, result_bytes, sizeof(result_bytes) - 1);
}

/* Plain is what verbs have; each mask of another kind is not. */
static void test_plain(void)
{
    struct rdmap_segment s;

    for (unsigned i = 0; i < 64; i++) {
        rdmap_plain_atomic(&s, RDMAP_FETCH_ADD, 3, 0);
        g_assert_true(rdmap_atomic_is_plain(&s.atomic));
        s.atomic.mask ^= 1ull << i;
        g_assert_false(rdmap_atomic_is_plain(&s.atomic));
        rdmap_plain_atomic(&s, RDMAP_CMP_SWAP, 3, 4);
        g_assert_true(rdmap_atomic_is_plain(&s.atomic));
        s.atomic.mask ^= 1ull << i;
        g_assert_false(rdmap_atomic_is_plain(&s.atomic));
        rdmap_plain_atomic(&s, RDMAP_CMP_SWAP, 3, 4);
        s.atomic.compare_mask ^= 1ull << i;
        g_assert_false(rdmap_atomic_is_plain(&s.atomic));
    }
}

/* Those with payload: where it begins, whole and by the header alone. */
static void test_payload(void)
{
    static const enum rdmap_opcode ops[] = {RDMAP_WRITE,    RDMAP_READ_RESPONSE,
                                            RDMAP_SEND,     RDMAP_SEND_SE,
                                            RDMAP_SEND_INV, RDMAP_SEND_SE_INV};

    for (unsigned i = 0; i < G_N_ELEMENTS(ops); i++) {
        uint8_t bytes[100];
        struct rdmap_segment s, back;
        size_t n;

        rdmap_begin(&s, ops[i]);
        s.ddp.stag = 0x12345678;
        s.ddp.last = i & 1;
        if (s.ddp.tagged) {
            s.ddp.to = 0x1000;
        } else {
            s.ddp.msn = 3;
            s.ddp.mo = 77;
        }
        n = rdmap_put(&s, bytes);
        g_assert_cmpuint(n, ==, i < 2 ? 14 : 18);
        g_assert_cmpint(get(bytes, 100, RDMAP_STANDARD, &back), ==, IWARP_OK);
        g_assert_cmpuint(back.head_len, ==, n);
        g_assert_cmpuint(back.payload_len, ==, 100 - n);
        same_head(&s, &back);
        g_assert_cmpint(rdmap_get(bytes, n, 60000, RDMAP_STANDARD, &back), ==, IWARP_OK);
        g_assert_cmpuint(back.payload_len, ==, 60000 - n);
        g_assert_cmpuint(rdmap_head_len(bytes), ==, n);
    }
}

static enum iwarp_error changed(const char *bytes, size_t len, size_t at, uint8_t value,
                                size_t new_len)
{
    uint8_t copy[256] = {0};
    struct rdmap_segment s;

    memcpy(copy, bytes, len);
    copy[at] = value;
    return get(copy, new_len, RDMAP_EXTENDED, &s);
}

#define CHANGED(bytes, at, value) \
    changed(bytes, sizeof(bytes) - 1, at, value, sizeof(bytes) - 1)
#define RESIZED(bytes, by) \
    changed(bytes, sizeof(bytes) - 1, 0, (uint8_t)(bytes)[0], sizeof(bytes) - 1 + (by))

static void test_refused(void)
{
    static const char write[] = "\xc1\x40\0\0\1\2\0\0\0\0\0\0\0\0xyz";
    struct rdmap_segment s;
    char bytes[sizeof(write)];

    /* Versions. */
    g_assert_cmpint(CHANGED(write, 0, 0xc0), ==, DDP_TAGGED_BAD_VERSION);
    g_assert_cmpint(CHANGED(read_bytes, 0, 0x42), ==, DDP_UNTAGGED_BAD_VERSION);
    g_assert_cmpint(CHANGED(write, 1, 0x80), ==, RDMAP_BAD_VERSION);
    g_assert_cmpint(CHANGED(write, 1, 0x00), ==, RDMAP_BAD_VERSION);
    g_assert_cmpint(CHANGED(write, 1, 0x70), ==, IWARP_OK); /* reserved bits */
    /* Operations: unassigned, tagged but should not be, not permitted. */
    for (unsigned op = 12; op < 16; op++) {
        g_assert_cmpint(CHANGED(read_bytes, 1, 0x40 | op), ==, RDMAP_BAD_OPCODE);
        g_assert_cmpint(CHANGED(write, 1, 0x40 | op), ==, RDMAP_BAD_OPCODE);
    }
    for (unsigned op = 0; op < RDMAP_OPCODES; op++) {
        g_assert_cmpint(CHANGED(write, 1, 0x40 | op) == RDMAP_BAD_OPCODE, ==,
                        !rdmap_ops[op].tagged);
        g_assert_cmpint(CHANGED(read_bytes, 1, 0x40 | op) == RDMAP_BAD_OPCODE, ==,
                        rdmap_ops[op].tagged);
    }
    g_assert_cmpint(get((const uint8_t *)imm_bytes, 26, RDMAP_STANDARD, &s), ==,
                    RDMAP_BAD_OPCODE);
    /* Queues, offsets, lengths. */
    g_assert_cmpint(CHANGED(read_bytes, 9, 0), ==, DDP_UNTAGGED_BAD_QN);
    g_assert_cmpint(CHANGED(read_bytes, 6, 1), ==, DDP_UNTAGGED_BAD_QN);
    g_assert_cmpint(CHANGED(read_bytes, 17, 4), ==, DDP_UNTAGGED_BAD_MO);
    g_assert_cmpint(CHANGED(read_bytes, 0, 0x01), ==, DDP_UNTAGGED_TOO_LONG);
    g_assert_cmpint(RESIZED(read_bytes, 1), ==, DDP_UNTAGGED_TOO_LONG);
    g_assert_cmpint(RESIZED(imm_bytes, 4), ==, DDP_UNTAGGED_TOO_LONG);
    g_assert_cmpint(RESIZED(add_bytes, 8), ==, DDP_UNTAGGED_TOO_LONG);
    for (size_t n = 0; n < sizeof(read_bytes) - 1; n++) {
        g_assert_cmpint(get((const uint8_t *)read_bytes, n, RDMAP_EXTENDED, &s), ==,
                        RDMAP_STREAM_CATASTROPHIC);
    }
    /* Offsets at the end of the address space. */
    memcpy(bytes, write, sizeof(bytes));
    memset(bytes + 6, 0xff, 8);
    g_assert_cmpint(get((const uint8_t *)bytes, 15, RDMAP_STANDARD, &s), ==, IWARP_OK);
    g_assert_cmpint(get((const uint8_t *)bytes, 16, RDMAP_STANDARD, &s), ==,
                    DDP_TAGGED_TO_WRAP);
    g_assert_cmpint(get((const uint8_t *)bytes, 14, RDMAP_STANDARD, &s), ==, IWARP_OK);
    {
        uint8_t read[46];

        memcpy(read, read_bytes, 46);
        memset(read + 38, 0xff, 8);
        g_assert_cmpint(get(read, 46, RDMAP_STANDARD, &s), ==, RDMAP_TO_WRAP);
        memset(read + 30, 0, 4);
        g_assert_cmpint(get(read, 46, RDMAP_STANDARD, &s), ==, IWARP_OK);
    }
    /* Atomics: reserved bits, unknown, not aligned. */
    g_assert_cmpint(CHANGED(add_bytes, 18, 0xff), ==, IWARP_OK);
    g_assert_cmpint(CHANGED(add_bytes, 21, 0xf0), ==, IWARP_OK);
    g_assert_cmpint(CHANGED(add_bytes, 21, 1), ==, RDMAP_BAD_OPCODE);
    g_assert_cmpint(CHANGED(add_bytes, 21, 3), ==, RDMAP_BAD_OPCODE);
    g_assert_cmpint(CHANGED(add_bytes, 37, 4), ==, RDMAP_STREAM_CATASTROPHIC);
}

/* ---- Terminate ---- */

static const struct rdmap_terminate *term(const uint8_t *bytes, size_t len,
                                          struct rdmap_segment *s)
{
    g_assert_cmpint(rdmap_get(bytes, len, (uint32_t)len, RDMAP_STANDARD, s), ==,
                    IWARP_OK);
    g_assert_cmpint(s->opcode, ==, RDMAP_TERMINATE);
    return &s->terminate;
}

static void test_terminate_put(void)
{
    static const struct {
        enum iwarp_error error;
        bool about_read;
        uint8_t bytes[4];
        bool ddp, rdma;
    } known[] = {
        {RDMAP_LOCAL_CATASTROPHIC, true, {0x00, 0x00, 0, 0}, false, false},
        {RDMAP_BAD_STAG, true, {0x01, 0x00, 0xe0, 0}, true, true},
        {RDMAP_PROTECTION, false, {0x01, 0xff, 0xc0, 0}, true, false},
        {RDMAP_BAD_OPCODE, true, {0x02, 0x06, 0xc0, 0}, true, false},
        {DDP_LOCAL_CATASTROPHIC, false, {0x10, 0x00, 0, 0}, false, false},
        {DDP_TAGGED_BAD_BOUNDS, false, {0x11, 0x01, 0xc0, 0}, true, false},
        {DDP_UNTAGGED_NO_BUFFER, true, {0x12, 0x02, 0xc0, 0}, true, false},
        {MPA_BAD_CRC, false, {0x20, 0x02, 0, 0}, false, false},
        {MPA_NO_RTR, false, {0x20, 0x07, 0, 0}, false, false},
    };
    static const uint8_t write[] = {0xc1, 0x40, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 9};
    static const uint8_t ddp[18] = {0x41, 0x47, [9] = 2, [13] = 1};

    for (unsigned i = 0; i < G_N_ELEMENTS(known); i++) {
        bool about_read = known[i].about_read;
        const uint8_t *head = about_read ? (const uint8_t *)read_bytes : write;
        size_t head_len = about_read ? 18 : 14, have = about_read ? 46 : 14, len, right;
        uint8_t out[RDMAP_MAX_TERMINATE];
        const struct rdmap_terminate *t;
        struct rdmap_segment s;

        len = rdmap_put_terminate(known[i].error, head, have, 1234, out);
        right = 22 + (known[i].ddp ? 2 + head_len : 0) + (known[i].rdma ? 28 : 0);
        g_assert_cmpuint(len, ==, right);
        g_assert_cmpmem(out, 18, ddp, 18);
        g_assert_cmpmem(out + 18, 4, known[i].bytes, 4);
        if (known[i].ddp) {
            g_assert_cmpmem(out + 22, 2, "\x04\xd2", 2);
            g_assert_cmpmem(out + 24, head_len, head, head_len);
        }
        if (known[i].rdma) {
            g_assert_cmpmem(out + 42, 28, head + 18, 28);
        }
        t = term(out, len, &s);
        g_assert_cmpint(
            IWARP_ERROR((unsigned)t->layer, (unsigned)t->etype, (unsigned)t->code), ==,
            known[i].error);
        g_assert_false(t->swapped);
        g_assert_true(t->segment == (known[i].ddp ? out + 24 : NULL));
        g_assert_cmpuint(t->segment_len, ==, known[i].ddp ? 1234 : 0);
        g_assert_true(t->read == (known[i].rdma ? out + 42 : NULL));
        /* Too little of the segment, or none. */
        g_assert_cmpuint(rdmap_put_terminate(known[i].error, head, head_len - 1, 1, out),
                         ==, 22);
        g_assert_cmpuint(out[20], ==, 0);
        g_assert_cmpuint(rdmap_put_terminate(known[i].error, NULL, 0, 0, out), ==, 22);
    }
}

static void test_terminate_get(void)
{
    uint8_t bytes[18 + 4 + 2 + 18 + 28] = {0x41, 0x47, [9] = 2, [13] = 1};
    uint8_t *p = bytes + 18;
    const struct rdmap_terminate *t;
    struct rdmap_segment s;

    /* Of siw, with headers: DDP, untagged, too long. */
    memcpy(p, "\x21\x05\x03\x00\x01\x00", 6);
    memcpy(p + 6, read_bytes, 46);
    t = term(bytes, 42, &s);
    g_assert_true(t->swapped);
    g_assert_cmpint(t->layer << 8 | t->etype << 4 | t->code, ==, 0x125);
    g_assert_cmpuint(t->segment_len, ==, 256);
    g_assert_true(t->segment == p + 6);
    g_assert_null(t->read);
    /* RDMAP, protection, with the Read Request. */
    memcpy(p, "\x10\x01\x07\x00", 4);
    t = term(bytes, sizeof(bytes), &s);
    g_assert_cmpint(t->layer << 8 | t->etype << 4 | t->code, ==, 0x011);
    g_assert_true(t->read == p + 24);
    /* No headers: it makes sense in one order only. */
    memcpy(p, "\x02\x02\x00\x00", 4);
    t = term(bytes, 22, &s);
    g_assert_true(t->swapped);
    g_assert_cmpint(t->layer << 8 | t->etype << 4 | t->code, ==, 0x202);
    memcpy(p, "\x20\x02\x00\x00", 4);
    t = term(bytes, 22, &s);
    g_assert_false(t->swapped);
    g_assert_cmpint(t->layer << 8 | t->etype << 4 | t->code, ==, 0x202);
    /* In none. */
    memcpy(p, "\xf7\x33\x00\x00", 4);
    t = term(bytes, 22, &s);
    g_assert_false(t->swapped);
    g_assert_cmpint(t->layer, ==, 15);

    /* Cut anywhere: no pointer leads outside. */
    memcpy(p, "\x01\x01\xe0\x00", 4);
    for (size_t n = 18; n <= sizeof(bytes); n++) {
        g_autofree uint8_t *cut = g_memdup2(bytes, n);

        t = term(cut, n, &s);
        g_assert_cmpuint(t->etype, ==, n < 22 ? 2 : 1);
        g_assert_cmpuint(t->code, ==, n < 22 ? 0xff : 1);
        g_assert_true(!t->segment == (n < 42));
        g_assert_true(!t->read == (n < 70));
    }
    /* Flags without what they tell of, and more behind it than there should be. */
    memset(bytes + 22, 0, 48);
    g_assert_null(term(bytes, 23, &s)->segment);
    g_assert_cmpint(rdmap_get(bytes, 70, 60000, RDMAP_STANDARD, &s), ==, IWARP_OK);
    g_assert_cmpuint(s.head_len + s.payload_len, ==, 60000);
}

/* All that we tell are among the known ones. */
static void test_known(void)
{
    static const enum iwarp_error told[] = {
        RDMAP_LOCAL_CATASTROPHIC,
        RDMAP_BAD_STAG,
        RDMAP_BAD_OPCODE,
        RDMAP_PROTECTION,
        RDMAP_TO_WRAP,
        RDMAP_STREAM_CATASTROPHIC,
        DDP_TAGGED_BAD_STAG,
        DDP_TAGGED_BAD_BOUNDS,
        DDP_TAGGED_BAD_VERSION,
        DDP_UNTAGGED_BAD_MSN,
        DDP_UNTAGGED_NO_BUFFER,
        DDP_UNTAGGED_TOO_LONG,
        MPA_BAD_CRC,
        MPA_SMALL_IRD,
        MPA_NO_RTR,
    };

    for (unsigned i = 0; i < G_N_ELEMENTS(told); i++) {
        g_assert_true(rdmap_error_known(iwarp_error_layer(told[i]),
                                        iwarp_error_type(told[i]),
                                        iwarp_error_code(told[i])));
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/rdmap/bytes", test_bytes);
    g_test_add_func("/rdmap/plain-atomics", test_plain);
    g_test_add_func("/rdmap/payload", test_payload);
    g_test_add_func("/rdmap/refused", test_refused);
    g_test_add_func("/rdmap/terminate-put", test_terminate_put);
    g_test_add_func("/rdmap/terminate-get", test_terminate_get);
    g_test_add_func("/rdmap/known", test_known);
    return g_test_run();
}
