/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Streams that no daemon has written, or one that is not as this: cut, with bytes and
 * parts changed, of other limits.  test-refused.c has what a device cannot be.
 */
#include <string.h>

#include "directory/directory.h"
#include "fullqueues.h"
#include "pair.h"

static void test_cut(void)
{
    g_autoptr(GByteArray) a = fulldev_save(from);

    for (guint len = 0; len < a->len; len++) {
        uint8_t *copy = g_memdup2(a->data, len); /* so that ASan sees its end */

        g_assert_false(pair_load_bytes(copy, len));
        pair_assert_reset();
        g_free(copy);
    }
}

/* Whatever it makes of it: it can be saved, loaded again, and taken down. */
static void try_changed(GByteArray *a)
{
    GByteArray *b;

    if (pair_load(a)) {
        b = fulldev_save(to);
        g_assert_true(pair_load(b));
        g_byte_array_unref(b);
        device_reset(to->vm.dev);
    }
    device_set_bus_master(to->vm.dev, false);
    pair_assert_reset();
}

/* Any one byte; the fuzzer has the time for more. */
static void test_changed(void)
{
    static const uint8_t masks[] = {0x01, 0x80, 0xff};
    g_autoptr(GByteArray) a = fulldev_save(from);

    for (guint i = 0; i < a->len; i++) {
        uint8_t was = a->data[i];

        a->data[i] = was ^ masks[i % G_N_ELEMENTS(masks)];
        try_changed(a);
        a->data[i] = was;
    }
}

/* Each part once, and in its place. */
static void test_parts(void)
{
    static const char *const tags[] = {"CAPS", "OFFR", "OWNR", "KEY ", "DEVC", "RING",
                                       "STAT", "CTXT", "PD  ", "MR  ", "GIDS", "GIDW",
                                       "LINK", "CQ  ", "SRQ ", "QP  ", "FAIL", "WAIT"};
    GByteArray *a = fulldev_save(from), *b;

    for (unsigned i = 0; i < G_N_ELEMENTS(tags); i++) {
        uint64_t len;
        guint at = (guint)(pair_section(a, tags[i], &len) - a->data) - 16;
        guint all = 16 + (guint)len;

        b = g_byte_array_new(); /* without it */
        g_byte_array_append(b, a->data, a->len);
        g_byte_array_remove_range(b, at, all);
        g_assert_false(pair_load(b));
        pair_assert_reset();
        g_byte_array_unref(b);

        b = g_byte_array_new(); /* twice */
        g_byte_array_append(b, a->data, at + all);
        g_byte_array_append(b, a->data + at, a->len - at);
        g_assert_false(pair_load(b));
        pair_assert_reset();
        /* Unless nobody needs to know it. */
        b->data[at + all] = b->data[at + all + 6] = 1;
        g_assert_true(pair_load(b));
        g_byte_array_unref(b);
    }
    g_byte_array_unref(a);
}

/* Load it with @n bytes of FAIL changed at @at of it. */
static bool load_failed(const GByteArray *a, guint at, const void *value, guint n)
{
    GByteArray *b = g_byte_array_new();
    uint64_t len;
    bool ok;

    g_byte_array_append(b, a->data, a->len);
    memcpy(pair_section(b, "FAIL", &len) + at, value, n);
    g_assert_cmpuint(len, ==, 13);
    ok = pair_load(b);
    g_byte_array_unref(b);
    return ok;
}

/* No queue pair fails like that. */
static void test_bad_failure(void)
{
    static const uint8_t not_there = 40, running = FULL_QP_WINDOW, ud = FULL_QP_UD,
                         none = PVRDMA_WC_SUCCESS, own = PVRDMA_WC_LOC_PROT_ERR,
                         too_far = 43, executed = 41, other = PVRDMA_WC_REM_OP_ERR;
    uint8_t *at, twice[13];
    uint64_t len;
    g_autoptr(GByteArray) a = fulldev_save(from);

    g_assert_false(load_failed(a, 0, &not_there, 1));
    g_assert_false(load_failed(a, 0, &running, 1));
    g_assert_false(load_failed(a, 0, &ud, 1));
    g_assert_false(load_failed(a, 4, &none, 1));
    g_assert_false(load_failed(a, 4, &own, 1));
    g_assert_false(load_failed(a, 5, &too_far, 1));
    pair_assert_reset();
    g_assert_true(load_failed(a, 5, &executed, 1));
    g_assert_true(load_failed(a, 4, &other, 1));
    /* Twice. */
    at = pair_section(a, "FAIL", &len);
    memcpy(twice, at, sizeof(twice));
    at[-8] = 2 * sizeof(twice);
    len = (guint)(at - a->data) + sizeof(twice);
    g_byte_array_set_size(a, a->len + sizeof(twice));
    memmove(a->data + len + sizeof(twice), a->data + len, a->len - len - sizeof(twice));
    memcpy(a->data + len, twice, sizeof(twice));
    g_assert_false(pair_load(a));
    pair_assert_reset();
}

/* What must be understood and is not: another's section, and one's own of another
 * version. */
static void test_needed_parts(void)
{
    static const uint8_t head[16] = {'N', 'E', 'W', ' ', 1, 0, 0, 0};
    GByteArray *a = fulldev_save(from);

    g_byte_array_set_size(a, a->len - 16);
    g_byte_array_append(a, head, sizeof(head));
    g_byte_array_append(a, (const uint8_t *)"END \1\0\0\0\0\0\0\0\0\0\0\0", 16);
    pair_assert_refused(a, "unknown or misplaced section");
    g_byte_array_unref(a);
    a = fulldev_save(from);
    for (gsize at = 16; at + 16 <= a->len;) {
        struct {
            char tag[4];
            uint16_t version, flags;
            uint64_t len;
        } s;

        memcpy(&s, a->data + at, sizeof(s));
        if (memcmp(s.tag, "END ", 4) == 0) {
            break;
        }
        a->data[at + 4]++;
        for (unsigned optional = 0; optional < 2; optional++) {
            a->data[at + 6] ^= optional;
            pair_assert_refused(a, "this daemon reads 1");
        }
        a->data[at + 4]--;
        a->data[at + 6] ^= 1;
        at += sizeof(s) + GUINT64_FROM_LE(s.len);
    }
    g_assert_true(pair_load(a));
    g_byte_array_unref(a);
}

/* What a later release may add is passed over, but not any number of it. */
static void test_unknown_parts(void)
{
    static const uint8_t head[16] = {'N', 'E', 'W', ' ', 1, 0, 1, 0};
    g_autoptr(GByteArray) a = fulldev_save(from);

    g_byte_array_set_size(a, a->len - 16);
    for (unsigned i = 0; i <= 65; i++) {
        GByteArray *b = g_byte_array_new();

        g_byte_array_append(b, a->data, a->len);
        g_byte_array_append(b, (const uint8_t *)"END \1\0\0\0\0\0\0\0\0\0\0\0", 16);
        g_assert_true(pair_load(b) == (i <= 64));
        g_byte_array_unref(b);
        g_byte_array_append(a, head, sizeof(head));
    }
    pair_assert_reset();
}

/* It only grows, by two at most, and must never begin anew: half of all is too many. */
static void test_generation(void)
{
    static const struct {
        uint64_t generation;
        bool good;
    } of[] = {{0, false},
              {1, true},
              {UINT64_MAX / 2, true},
              {UINT64_MAX / 2 + 1, false},
              {UINT64_MAX - 1, false},
              {UINT64_MAX, false}};
    g_autoptr(GByteArray) a = fulldev_save(from);
    guint8 *at;
    uint64_t len;

    at = pair_section(a, "OWNR", &len) + 16;
    for (unsigned i = 0; i < G_N_ELEMENTS(of); i++) {
        uint64_t le = GUINT64_TO_LE(of[i].generation), was = to->vm.identity.generation;

        memcpy(at, &le, sizeof(le));
        g_assert_true(pair_load(a) == of[i].good);
        g_assert_cmpuint(to->vm.identity.generation, ==,
                         of[i].good ? of[i].generation + 1 : was);
    }
}

/* Whatever the guest has seen must be the same. */
static void test_other_limits(void)
{
    static const struct {
        const char *key, *value, *said;
    } of[] = {
        {"max-qp", "65", "max-qp is 64 there and 65 here"},
        {"max-cq", "129", "max-cq is 128 there and 129 here"},
        {"max-srq", "17", "max-srq is 16 there and 17 here"},
        {"max-mr", "65", "max-mr is 64 there and 65 here"},
        {"max-pd", "33", "max-pd is 32 there and 33 here"},
        {"max-mr-pages", "1000", "max-mr-pages is"},
        {"mac", "52:54:00:00:00:09", "mac is not the same"},
        {"network", "elsewhere", "network is not the same"},
    };
    g_autoptr(GByteArray) a = fulldev_save(from);

    for (unsigned i = 0; i < G_N_ELEMENTS(of); i++) {
        testdev_free(to);
        /* Of two values of a key the last one counts. */
        to = testdev_new_with("state", "addresses", "any", "max-qp", "64", "max-cq",
                              "128", "max-srq", "16", "max-mr", "64", "max-pd", "32",
                              of[i].key, of[i].value, NULL);
        datapath_pause(&to->vm);
        pair_assert_refused(a, of[i].said);
    }
}

/* The guest has been told of no more than there is here; but it may have been of less. */
static void test_offers(void)
{
    static const char *const said[] = {"the guest was offered features 0x80000000",
                                       "bytes of inline data, this daemon has",
                                       "counters, this daemon has"};
    uint32_t value[3];
    uint64_t len;
    g_autoptr(GByteArray) a = fulldev_save(from);

    for (unsigned i = 0; i < G_N_ELEMENTS(said); i++) {
        uint8_t *at = pair_section(a, "OFFR", &len);
        uint32_t was, more, less = 0;

        g_assert_cmpuint(len, ==, sizeof(value));
        memcpy(value, at, len);
        was = value[i];
        g_assert_cmpuint(was, !=, 0);
        more = i == 0 ? GUINT32_TO_LE(GUINT32_FROM_LE(was) | 0x80000000)
                      : GUINT32_TO_LE(GUINT32_FROM_LE(was) + 1);
        memcpy(at + i * sizeof(more), &more, sizeof(more));
        pair_assert_refused(a, said[i]);
        memcpy(at + i * sizeof(less), &less, sizeof(less));
        g_assert_true(pair_load(a));
        memcpy(at + i * sizeof(was), &was, sizeof(was));
    }
}

/* Addresses that the configuration here does not give to the VM. */
static void test_other_addresses(void)
{
    g_autoptr(GByteArray) a = fulldev_save(from);

    testdev_free(to);
    to = testdev_new_with("state", "addresses", "10.0.0.1", "max-qp", "64", "max-cq",
                          "128", "max-srq", "16", "max-mr", "64", "max-pd", "32", NULL);
    datapath_pause(&to->vm);
    pair_assert_refused(a, "GID table: entry 3");
    /* What the other one holds it still holds. */
    g_assert_cmpuint(directory_count(), ==, 2);
}

int main(int argc, char **argv)
{
    testdev_init(&argc, &argv);
    log_set_level(LOG_LVL_ERROR);
    pair_add("/vm-hostile/generation", test_generation);
    pair_add("/vm-hostile/other-limits", test_other_limits);
    pair_add("/vm-hostile/offers", test_offers);
    pair_add("/vm-hostile/other-addresses", test_other_addresses);
    pair_add("/vm-hostile/cut", test_cut);
    pair_add("/vm-hostile/changed", test_changed);
    pair_add("/vm-hostile/parts", test_parts);
    pair_add("/vm-hostile/bad-failure", test_bad_failure);
    pair_add("/vm-hostile/needed-parts", test_needed_parts);
    pair_add("/vm-hostile/unknown-parts", test_unknown_parts);
    return testdev_run();
}
