/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The state stream's codec: what is written comes back, and what is cut or changed does
 * not pass. */
#include "base/state_stream.h"

#include <string.h>

#define TAG_A STATE_TAG('A', 'A', 'A', 'A')
#define TAG_B STATE_TAG('B', 'B', 'B', 'B')

static GByteArray *sample(void)
{
    GByteArray *bytes = g_byte_array_new();
    struct state_out s;

    state_out_begin(&s, bytes);
    state_section_begin(&s, TAG_A, 3, 0);
    state_put_u8(&s, 1);
    state_put_u16(&s, 0x2345);
    state_put_u32(&s, 0x6789abcd);
    state_put_u64(&s, 0x0123456789abcdef);
    state_put_bytes(&s, "xyz", 3);
    state_section_end(&s);
    state_section_begin(&s, TAG_B, 1, STATE_OPTIONAL);
    state_put_u32(&s, 2);
    state_put_u16(&s, 10);
    state_put_u16(&s, 11);
    state_section_end(&s);
    state_out_end(&s);
    return bytes;
}

/* Everything as sample() has it? */
static bool reads(const uint8_t *data, uint64_t len)
{
    char error[STATE_ERROR_MAX], xyz[3];
    struct state_section a, b, c;
    struct state_in s;
    uint16_t list[2] = {0};
    bool same;

    state_in_begin(&s, data, len, error);
    if (!state_section_next(&s, &a)) {
        return false;
    }
    same = a.tag == TAG_A && a.version == 3 && !a.flags && state_get_bool(&a.in) &&
           state_get_u16(&a.in) == 0x2345 && state_get_u32(&a.in) == 0x6789abcd &&
           state_get_u64(&a.in) == 0x0123456789abcdef;
    state_get_bytes(&a.in, xyz, sizeof(xyz));
    same &= memcmp(xyz, "xyz", sizeof(xyz)) == 0;
    state_all_read(&a.in);
    if (!state_section_next(&s, &b)) {
        return false;
    }
    same &= b.tag == TAG_B && b.version == 1 && b.flags == STATE_OPTIONAL;
    for (uint32_t i = 0, n = state_get_count(&b.in, 2, 2); i < n; i++) {
        list[i] = state_get_u16(&b.in);
    }
    state_all_read(&b.in);
    same &= list[0] == 10 && list[1] == 11;
    return !state_section_next(&s, &c) && !state_failed(&s) && same;
}

static void test_round_trip(void)
{
    GByteArray *bytes = sample();

    g_assert_true(reads(bytes->data, bytes->len));
    g_byte_array_unref(bytes);
}

/* Little-endian, and nothing moves: later releases read what this one has written. */
static void test_layout(void)
{
    static const uint8_t begin[] = {
        'p', 'v', 'r', 'd', 'm', 'a', 'V', 'M', 1, 0, 0, 0, 0, 0, 0, 0,    'A',  'A',
        'A', 'A', 3,   0,   0,   0,   18,  0,   0, 0, 0, 0, 0, 0, 1, 0x45, 0x23, 0xcd};
    static const uint8_t end[] = {'E', 'N', 'D', ' ', 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    GByteArray *bytes = sample();

    g_assert_cmpmem(bytes->data, sizeof(begin), begin, sizeof(begin));
    g_assert_cmpmem(bytes->data + bytes->len - sizeof(end), sizeof(end), end,
                    sizeof(end));
    g_byte_array_unref(bytes);
}

static void test_cut(void)
{
    GByteArray *bytes = sample();

    for (guint len = 0; len < bytes->len; len++) {
        uint8_t *copy = g_memdup2(bytes->data, len); /* so that ASan sees its end */

        g_assert_false(reads(copy, len));
        g_free(copy);
    }
    g_byte_array_append(bytes, (const uint8_t *)"", 1);
    g_assert_false(reads(bytes->data, bytes->len));
    g_byte_array_unref(bytes);
}

/* Any one byte, but the four of the head, and of the end, that are not looked at. */
static void test_changed(void)
{
    GByteArray *bytes = sample();

    for (guint i = 0; i < bytes->len; i++) {
        uint8_t was = bytes->data[i];

        if ((i >= 12 && i < 16) || (i >= bytes->len - 12 && i < bytes->len - 8)) {
            continue;
        }
        bytes->data[i] = was ^ 0x80;
        g_assert_false(reads(bytes->data, bytes->len));
        bytes->data[i] = was;
    }
    g_byte_array_unref(bytes);
}

/* A limit anywhere: what is beyond is left out, and that shows. */
static void test_limit(void)
{
    GByteArray *all = sample(), *bytes;
    struct state_out s;

    for (guint max = 0; max <= all->len; max++) {
        bytes = g_byte_array_new();
        s = (struct state_out){.bytes = bytes, .max = max};
        state_put_bytes(&s, all->data, 16);
        state_section_begin(&s, TAG_A, 3, 0);
        state_put_bytes(&s, all->data + 32, 18);
        state_section_end(&s);
        state_put_bytes(&s, all->data + 50, all->len - 50);
        g_assert_true(s.cut == (max < all->len));
        g_assert_cmpuint(bytes->len, ==, max);
        g_assert_true(s.cut || memcmp(bytes->data, all->data, max) == 0);
        state_put_u8(&s, 0);
        g_assert_true(s.cut);
        g_assert_cmpuint(bytes->len, ==, max);
        g_byte_array_unref(bytes);
    }
    g_byte_array_unref(all);
}

static void test_counts(void)
{
    static const uint8_t many[] = {0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4};
    char error[STATE_ERROR_MAX] = "";
    struct state_in s = {.at = many, .left = sizeof(many), .error = error};

    g_assert_cmpuint(state_get_count(&s, UINT32_MAX, 8), ==, 0);
    g_assert_true(state_failed(&s));
    g_assert_cmpuint(state_get_u64(&s), ==, 0);

    error[0] = '\0';
    s = (struct state_in){.at = many + 4, .left = 4, .error = error};
    g_assert_cmpuint(state_get_count(&s, 3, 1), ==, 0);
    g_assert_true(state_failed(&s));
    /* The first failure is what is told. */
    state_fail(&s, "another");
    g_assert_cmpstr(error, !=, "another");

    error[0] = '\0';
    s = (struct state_in){.at = many, .left = 1, .error = error};
    state_get_bool(&s);
    g_assert_true(state_failed(&s));
}

struct thing {
    _Atomic uint64_t big;
    bool flag;
    enum { ONE = 1, SEVEN = 7 } kind;
    uint16_t half;
    uint32_t word;
    uint8_t raw[3], byte;
    char text[2];
};

RECORD(thing_record, struct thing, FIELD(word), FIELD_MAX(half, 0x1234), FIELD(big),
       FIELD(flag), FIELD_U8(kind, SEVEN), FIELD(raw), FIELD_MAX(byte, 9), FIELD(text))

/* Its fields in the record's order; the way back, and one byte that is over a bound. */
static void test_record(void)
{
    static const uint8_t wire[] = {4, 3, 2, 1, 0x34, 0x12, 8,   7,   6, 5,   4,
                                   3, 2, 1, 1, 7,    'r',  'a', 'w', 9, 't', 'x'};
    static const struct {
        guint at;
        uint8_t value;
        const char *why;
    } bad[] = {{5, 0x13, "half is 4916, must be at most 4660"},
               {14, 2, "flag is 2, must be at most 1"},
               {15, 8, "kind is 8, must be at most 7"},
               {19, 10, "byte is 10, must be at most 9"}};
    const struct thing thing = {0x0102030405060708, true, SEVEN, 0x1234, 0x01020304,
                                {'r', 'a', 'w'},    9,    "tx"};
    g_autoptr(GByteArray) bytes = g_byte_array_new();
    struct state_out out = {.bytes = bytes, .max = STATE_OUT_MAX};
    char error[STATE_ERROR_MAX] = "";
    struct state_in in;
    struct thing back;

    g_assert_cmpuint(RECORD_WIDTH(thing_record), ==, sizeof(wire));
    state_put_record(&out, thing_record, &thing);
    g_assert_cmpmem(bytes->data, bytes->len, wire, sizeof(wire));
    memset(&back, 0xff, sizeof(back));
    in = (struct state_in){.at = bytes->data, .left = bytes->len, .error = error};
    state_get_record(&in, thing_record, &back);
    state_all_read(&in);
    g_assert_cmpstr(error, ==, "");
    g_assert_true(back.big == thing.big && back.flag && back.kind == SEVEN &&
                  back.half == thing.half && back.word == thing.word && back.byte == 9);
    g_assert_cmpmem(back.raw, 3, thing.raw, 3);
    g_assert_cmpmem(back.text, 2, thing.text, 2);
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++) {
        bytes->data[bad[i].at] = bad[i].value;
        error[0] = '\0';
        in = (struct state_in){.at = bytes->data, .left = bytes->len, .error = error};
        state_get_record(&in, thing_record, &back);
        g_assert_cmpstr(error, ==, bad[i].why);
        bytes->data[bad[i].at] = wire[bad[i].at];
    }
    g_assert_cmpuint(back.byte, ==, 0);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/state/round-trip", test_round_trip);
    g_test_add_func("/state/layout", test_layout);
    g_test_add_func("/state/cut", test_cut);
    g_test_add_func("/state/changed", test_changed);
    g_test_add_func("/state/limit", test_limit);
    g_test_add_func("/state/counts", test_counts);
    g_test_add_func("/state/record", test_record);
    return g_test_run();
}
