/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The dirty log: which pages are marked, what is taken, and that no store is missed
 * between a collector's look and the next.  That all stores of the daemon are marked:
 * tests/vguest/test-dirty.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "guest/guest.h"
#include "handover/handover.h"
#include "pvrdma/abi.h"

#define PG   4096ull
#define HIGH 0x100000000ull

static struct guest guest;
static struct guest_mem *const mem = &guest.mem;

static void setup(void)
{
    guest_mem_init(mem, &guest, false);
}

static void note(void *opaque, uint64_t gpa)
{
    g_string_append_printf(opaque, "%s%" G_GINT64_MODIFIER "x",
                           ((GString *)opaque)->len ? " " : "", (guint64)(gpa / PG));
}

/* Numbers of the pages that are taken, in hex. */
static void expect(uint64_t gpa, uint64_t size, const char *pages)
{
    g_autoptr(GString) s = g_string_new(NULL);

    g_assert_cmpint(guest_dirty_collect(mem, gpa, size, note, s), ==, 0);
    g_assert_cmpstr(s->str, ==, pages);
}

static void test_marks(void)
{
    static const struct dirty_span span[] = {{HIGH, 1000 * PG}, {0, 64 * PG}};

    setup();
    guest_mark_dirty(mem, 0, PG); /* no log: nothing */
    g_assert_cmpint(guest_dirty_collect(mem, 0, PG, note, NULL), ==, ENOENT);
    g_assert_cmpint(guest_dirty_start(mem, span, 2), ==, 0);
    g_assert_cmpint(guest_dirty_start(mem, span, 2), ==, EBUSY);
    expect(0, 64 * PG, "");
    expect(HIGH, 1000 * PG, "");

    guest_mark_dirty(mem, 5 * PG + 4095, 1);
    guest_mark_dirty(mem, 7 * PG + 4095, 2);
    guest_mark_dirty(mem, 63 * PG, PG);
    guest_mark_dirty(mem, 9 * PG, 0);
    guest_mark_dirty(mem, 64 * PG, PG);         /* in no span */
    guest_mark_dirty(mem, HIGH + 1000 * PG, 8); /* nor that */
    expect(6 * PG, 2 * PG, "7");
    expect(0, 64 * PG, "5 8 3f");
    expect(0, 64 * PG, "");

    /* Over words, and over the ends of a span. */
    guest_mark_dirty(mem, HIGH + 62 * PG + 1, 3 * PG - 1);
    expect(HIGH + 63 * PG, PG, "10003f");
    expect(HIGH, 1000 * PG, "10003e 100040");
    guest_mark_dirty(mem, HIGH - 5, 10);
    guest_mark_dirty(mem, HIGH + 1000 * PG - 1, 2 * PG);
    expect(HIGH, 1000 * PG, "100000 1003e7");
    guest_mark_dirty(mem, 0, UINT64_MAX);
    expect(0, 3 * PG, "0 1 2");
    expect(HIGH + 998 * PG, 2 * PG, "1003e6 1003e7");

    g_assert_cmpint(guest_dirty_collect(mem, 0, 65 * PG, note, NULL), ==, ENOENT);
    g_assert_cmpint(guest_dirty_collect(mem, 100 * PG, PG, note, NULL), ==, ENOENT);
    g_assert_cmpint(guest_dirty_collect(mem, 0, 0, note, NULL), ==, EINVAL);
    g_assert_cmpint(guest_dirty_collect(mem, 1, PG, note, NULL), ==, EINVAL);
    guest_dirty_stop(mem);
    guest_dirty_stop(mem);
    g_assert_cmpint(guest_dirty_collect(mem, 0, PG, note, NULL), ==, ENOENT);

    /* A new one knows nothing of the old one; the guest's end is its end. */
    g_assert_cmpint(guest_dirty_start(mem, span, 2), ==, 0);
    expect(0, 64 * PG, "");
    guest_mem_fini(mem);
}

static void test_refused(void)
{
    static const struct {
        struct dirty_span span[2];
        unsigned n;
    } cases[] = {
        {{{0, 0}}, 1},
        {{{1, PG}}, 1},
        {{{0, PG + 1}}, 1},
        {{{UINT64_MAX - PG + 1, 2 * PG}}, 1},
        {{{0, DIRTY_MAX_BYTES + PG}}, 1},
        {{{0, DIRTY_MAX_BYTES}, {DIRTY_MAX_BYTES, PG}}, 2},
        {{{0, 2 * PG}, {PG, PG}}, 2},
        {{{PG, PG}, {0, 2 * PG}}, 2},
        {{{PG, PG}, {PG, PG}}, 2},
        {{{0, PG}}, 0},
    };
    struct dirty_span many[DIRTY_MAX_RANGES + 1];
    struct dirty_span last = {UINT64_MAX - PG + 1, PG};

    setup();
    for (unsigned i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_assert_cmpint(guest_dirty_start(mem, cases[i].span, cases[i].n), ==, EINVAL);
    }
    for (unsigned i = 0; i < G_N_ELEMENTS(many); i++) {
        many[i] = (struct dirty_span){i * PG, PG};
    }
    g_assert_cmpint(guest_dirty_start(mem, many, DIRTY_MAX_RANGES + 1), ==, EINVAL);
    g_assert_cmpint(guest_dirty_start(mem, many, DIRTY_MAX_RANGES), ==, 0);
    guest_dirty_stop(mem);
    g_assert_cmpint(guest_dirty_start(mem, &last, 1), ==, 0);
    guest_mark_dirty(mem, UINT64_MAX, 1);
    expect(UINT64_MAX - PG + 1, PG, "fffffffffffff");
    guest_mem_fini(mem);
}

/* ---- from one daemon to the next ---- */

static const struct dirty_span far[] = {{HIGH, 40000 * PG}, {0, 3 * PG}};

/* What a daemon leaves of a log with some marks; to be freed. */
static GByteArray *leave(void)
{
    GByteArray *left = g_byte_array_new();
    struct handover_out h;
    guint from;

    setup();
    g_assert_cmpint(guest_dirty_start(mem, far, 2), ==, 0);
    guest_mark_dirty(mem, 2 * PG, 1);
    guest_mark_dirty(mem, HIGH + 5 * PG, PG);
    guest_mark_dirty(mem, HIGH + 32767 * PG, 2 * PG); /* in two chunks */
    guest_mark_dirty(mem, HIGH + 39999 * PG, PG);
    expect(HIGH + 5 * PG, PG, "100005"); /* is not there any more */
    handover_out_begin(&h);
    from = h.bytes->len;
    dirty_hand_over(mem, &h);
    g_byte_array_append(left, h.bytes->data + from, h.bytes->len - from);
    handover_out_clear(&h);
    expect(HIGH + 39999 * PG, PG, "109c3f"); /* and here it all goes on */
    guest_mem_fini(mem);
    return left;
}

/* Without descriptors. */
static struct handover_in *handed_nothing(void)
{
    static struct handover_in *nothing;

    if (!nothing) {
        struct handover_out h;

        handover_out_begin(&h);
        nothing = handover_open(handover_seal(&h, NULL), NULL);
        g_assert_nonnull(nothing);
        handover_out_clear(&h);
    }
    return nothing;
}

static bool adopt(const uint8_t *data, size_t len)
{
    char error[STATE_ERROR_MAX] = "";
    struct state_in s = {data, len, error};

    setup();
    dirty_adopt(mem, handed_nothing(), &s);
    state_all_read(&s);
    return !state_failed(&s);
}

/* One that the client has, too, is the same file in the next daemon. */
static void test_adopted_shared(void)
{
    static const struct dirty_span two[] = {{0, 3 * PG}, {HIGH, 70 * PG}};
    struct handover_in *in;
    struct handover_out h;
    int client, own, memfd;
    uint64_t *bits;

    setup();
    g_assert_cmpint(guest_dirty_share(mem, two, 2, &client), ==, 0);
    own = atomic_load(&mem->dirty)->fd;
    bits = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, client, 0);
    g_assert_true(bits != MAP_FAILED);
    guest_mark_dirty(mem, PG, 1);
    handover_out_begin(&h);
    dirty_hand_over(mem, &h);
    memfd = handover_seal(&h, NULL);
    g_assert_cmpint(memfd, >=, 0);
    guest_mem_fini(mem);
    g_assert_cmpint(dup2(client, own), ==, own); /* as execve() keeps it */

    in = handover_open(memfd, NULL);
    g_assert_nonnull(in);
    setup();
    dirty_adopt(mem, in, handover_stream(in));
    g_assert_cmpstr(handover_stream(in)->error, ==, "");
    handover_close(in);
    guest_mark_dirty(mem, HIGH + 65 * PG, 1);
    g_assert_cmphex(bits[0], ==, 2);
    g_assert_cmphex(bits[513], ==, 2);
    expect(0, 3 * PG, "1");
    g_assert_cmphex(bits[0], ==, 0);
    guest_mem_fini(mem);
    munmap(bits, 8192);
    close(client);
    handover_out_clear(&h);
}

/* Not one of another length, nor one that can be cut. */
static void test_no_log_file(void)
{
    static const struct dirty_span one = {0, 3 * PG};

    for (unsigned i = 0; i < 3; i++) {
        int fd = memfd_create("log", MFD_CLOEXEC | MFD_ALLOW_SEALING), memfd;
        struct handover_in *in;
        struct handover_out h;

        g_assert_cmpint(ftruncate(fd, i == 1 ? 8192 : 4096), ==, 0);
        g_assert_cmpint(fcntl(fd, F_ADD_SEALS, i == 2 ? 0 : F_SEAL_SHRINK), ==, 0);
        handover_out_begin(&h);
        handover_put_fd(&h, fd);
        state_put_u32(&h.s, 1);
        state_put_u64(&h.s, one.gpa);
        state_put_u64(&h.s, one.size);
        memfd = handover_seal(&h, NULL);
        in = handover_open(memfd, NULL);
        g_assert_nonnull(in);
        setup();
        dirty_adopt(mem, in, handover_stream(in));
        g_assert_cmpint(state_failed(handover_stream(in)), ==, i != 0);
        handover_close(in);
        guest_mem_fini(mem);
        handover_out_clear(&h);
    }
}

static void test_adopted(void)
{
    g_autoptr(GByteArray) left = leave();
    struct handover_out h;

    g_assert_cmpuint(left->len, <, 10000);
    g_assert_true(adopt(left->data, left->len));
    expect(0, 3 * PG, "2");
    expect(HIGH, 40000 * PG, "107fff 108000 109c3f");
    guest_mark_dirty(mem, 0, 1);
    expect(0, 3 * PG, "0");
    guest_mem_fini(mem);

    setup(); /* no log: there is none */
    handover_out_begin(&h);
    g_byte_array_set_size(left, 0);
    g_byte_array_append(left, h.bytes->data, h.bytes->len);
    dirty_hand_over(mem, &h);
    g_assert_cmpuint(h.bytes->len - left->len, ==, 8);
    guest_mem_fini(mem);
    g_assert_true(adopt(h.bytes->data + left->len, 8));
    g_assert_null(atomic_load(&mem->dirty));
    handover_out_clear(&h);
    guest_mem_fini(mem);
}

/* Cut off anywhere it fails; with a bit changed no page is marked that there is not. */
static void test_damaged(void)
{
    g_autoptr(GByteArray) left = leave();

    for (guint i = 0; i < left->len; i++) {
        g_assert_false(adopt(left->data, i));
        guest_mem_fini(mem);
    }
    for (guint i = 0; i < left->len * 8; i += i < 1000 ? 1 : 7) {
        left->data[i / 8] ^= 1u << i % 8;
        if (adopt(left->data, left->len) && i / 8 >= 40) { /* behind the spans */
            g_autoptr(GString) s = g_string_new(NULL);

            guest_dirty_collect(mem, 0, 3 * PG, note, s);
            g_assert_cmpuint(s->len, <=, strlen("0 1 2"));
        }
        guest_mem_fini(mem);
        left->data[i / 8] ^= 1u << i % 8;
    }
}

/* ---- a collector beside a thread that stores ---- */

#define PAGES  4u
#define STORES 300000u

static uint32_t ram[PAGES][1024] __attribute__((aligned(4096)));
static uint32_t copy[PAGES]; /* the collector's */
static _Atomic bool done;

static gpointer storer(gpointer unused)
{
    for (uint32_t i = 1; i <= STORES; i++) {
        guest_store32(mem, i % PAGES * PG, &ram[i % PAGES][0], i);
    }
    atomic_store(&done, true);
    return NULL;
}

static void copy_page(void *opaque, uint64_t gpa)
{
    copy[gpa / PG] = __atomic_load_n(&ram[gpa / PG][0], __ATOMIC_RELAXED);
}

/* Whoever copies what is marked ends with what is there. */
static void test_race(void)
{
    static const struct dirty_span span = {0, PAGES * PG};

    setup();
    for (unsigned round = 0; round < 5; round++) {
        GThread *t;
        bool last = false;

        g_assert_cmpint(guest_dirty_start(mem, &span, 1), ==, 0);
        atomic_store(&done, false);
        t = g_thread_new("storer", storer, NULL);
        while (!last) {
            last = atomic_load(&done);
            guest_dirty_collect(mem, 0, PAGES * PG, copy_page, NULL);
        }
        g_thread_join(t);
        for (unsigned i = 0; i < PAGES; i++) {
            g_assert_cmpuint(copy[i], ==, ram[i][0]);
        }
        guest_dirty_stop(mem);
    }
    guest_mem_fini(mem);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/dirty/marks", test_marks);
    g_test_add_func("/dirty/refused", test_refused);
    g_test_add_func("/dirty/adopted", test_adopted);
    g_test_add_func("/dirty/adopted-shared", test_adopted_shared);
    g_test_add_func("/dirty/no-log-file", test_no_log_file);
    g_test_add_func("/dirty/damaged", test_damaged);
    g_test_add_func("/dirty/race", test_race);
    return g_test_run();
}
