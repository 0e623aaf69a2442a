/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Fuzzer of the state stream, as it comes from another host or out of a file.
 *
 * The first byte of an input says what it is: 0, a stream; others, changes to a stream
 * that is right, of a device with several of everything or of one in reset: bytes that
 * are other ones, more or fewer of them with the section's length as it has to be then,
 * and numbers that are a little more or less.
 *
 * What was loaded is saved and loaded again, which must go well; then the guest runs for
 * a moment, with whatever it has in its rings.  One device serves all inputs; after each
 * it is reset, and nothing may be left.
 *
 * The corpus has to get streams of each kind loaded, and refused (fuzz_reached_all).
 */
#include "directory/directory.h"
#include "fulldev.h"
#include "fuzz.h"

#define N_BASES     2 /* full, in reset */
#define MAX_CHANGES 64
#define HEAD        16u /* of the stream, and of a section */

static struct testdev *td;
static GByteArray *base[N_BASES];
/* By what the first byte can say: a stream, or a change of one of these. */
static unsigned loaded[1 + N_BASES], refused[1 + N_BASES];

/* ---- changes ---- */

static uint64_t *length_at(GByteArray *s, guint section)
{
    return (uint64_t *)(void *)(s->data + section + 8);
}

/* The section that has the byte at @at. */
static guint section_of(GByteArray *s, guint at)
{
    guint section = HEAD;
    uint64_t len;

    for (;;) {
        memcpy(&len, length_at(s, section), sizeof(len));
        if (len > s->len - section - HEAD || at < section + HEAD + (guint)len ||
            s->len - section - HEAD - (guint)len < HEAD) {
            return section;
        }
        section += HEAD + (guint)len;
    }
}

/* @by more or fewer bytes from @at on. */
static void lengthen(GByteArray *s, guint at, const uint8_t *bytes, int by)
{
    guint section = section_of(s, at);
    guint8 *tail;
    guint n_tail;
    uint64_t len;

    if (at < section + HEAD) {
        return;
    }
    memcpy(&len, length_at(s, section), sizeof(len));
    len += (uint64_t)by;
    memcpy(length_at(s, section), &len, sizeof(len));
    if (by < 0) {
        g_byte_array_remove_range(s, at, MIN((guint)-by, s->len - at));
        return;
    }
    n_tail = s->len - at;
    tail = g_memdup2(s->data + at, n_tail);
    g_byte_array_set_size(s, at);
    g_byte_array_append(s, bytes, (guint)by);
    g_byte_array_append(s, tail, n_tail);
    g_free(tail);
}

static void change(GByteArray *s, struct fuzz_input *in)
{
    guint at = fuzz_take(in, 2) % s->len;
    uint8_t op = (uint8_t)fuzz_take(in, 1), n = 1 + op / 4 % 8;
    uint8_t bytes[8];
    uint32_t v;

    switch (op % 4) {
    case 0:
        for (guint i = at; i < s->len && i < at + n; i++) {
            s->data[i] = (uint8_t)fuzz_take(in, 1);
        }
        break;
    case 1:
        if (s->len - at >= sizeof(v)) {
            memcpy(&v, s->data + at, sizeof(v));
            v += (uint32_t)(int8_t)fuzz_take(in, 1);
            memcpy(s->data + at, &v, sizeof(v));
        }
        break;
    case 2:
        lengthen(s, at, NULL, -(int)n);
        break;
    default:
        for (unsigned i = 0; i < n; i++) {
            bytes[i] = (uint8_t)fuzz_take(in, 1);
        }
        lengthen(s, at, bytes, n);
        break;
    }
}

/* ---- an input ---- */

static void start(void)
{
    struct testdev *full;

    testdev_start();
    log_set_level(LOG_LVL_ERROR);
    full = fulldev_new("state");
    fulldev_fill(full);
    td = fulldev_new("state");
    datapath_pause(&td->vm);
    memcpy(td->ram, full->ram, TESTDEV_RAM_SIZE);
    td->next = full->next;
    base[0] = fulldev_save(full);
    base[1] = fulldev_save(td);
    testdev_free(full);
}

static bool load(const GByteArray *s)
{
    uint8_t *copy = g_memdup2(s->data, s->len); /* so that ASan sees its end */
    bool ok = vm_load(&td->vm, copy, s->len, NULL);

    g_free(copy);
    return ok;
}

/* It is as good a device as any. */
static void use(void)
{
    GByteArray *s = fulldev_save(td);

    CHECK(load(s));
    g_byte_array_unref(s);
    CHECK(vm_claim(&td->vm) == 0);
    datapath_resume(&td->vm);
    g_usleep(20); /* the worker may look at it, or not yet */
    datapath_pause(&td->vm);
    s = fulldev_save(td);
    CHECK(load(s));
    g_byte_array_unref(s);
}

static void reset(void)
{
    struct objects_stats st;

    device_set_bus_master(td->vm.dev, false);
    device_reset(td->vm.dev);
    irq_forget_pending(&td->vm.guest.irq);
    st = testdev_stats(td);
    CHECK(!st.uctx && !st.pd && !st.mr && !st.cq && !st.qp && !st.srq && !st.gid);
    CHECK(!st.pages && td->vm.pauses == 1 && directory_count() == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    unsigned kind;
    GByteArray *s;
    bool ok;

    if (!td) {
        start();
    }
    s = g_byte_array_new();
    kind = fuzz_take(&in, 1) % (1 + N_BASES);
    if (kind) {
        g_byte_array_append(s, base[kind - 1]->data, base[kind - 1]->len);
        for (unsigned i = 0; i < MAX_CHANGES && in.left; i++) {
            change(s, &in);
        }
    } else {
        g_byte_array_append(s, in.data, (guint)in.left);
    }
    ok = load(s);
    (ok ? loaded : refused)[kind]++;
    if (ok) {
        use();
    }
    reset();
    g_byte_array_unref(s);
    return 0;
}

bool fuzz_reached_all(void)
{
    bool all = true;

    for (unsigned i = 0; i < 1 + N_BASES; i++) {
        if (!loaded[i] || !refused[i]) {
            printf("kind %u: %u loaded, %u refused\n", i, loaded[i], refused[i]);
            all = false;
        }
    }
    return all;
}
