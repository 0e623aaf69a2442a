/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: what a VM's places know each other by, owner, generation and key, as the
 * streams of its state have it: what becomes of that while states are saved, loaded, run
 * and given up, and that it is the same with a daemon that is replaced at every step.
 *
 * VM 0 and VM 2 are two places, VM 1 is another VM.
 */
#include "migrate.h"

#include <errno.h>
#include <string.h>

#define STOP      VFIO_USER_MIG_STOP
#define RUNNING   VFIO_USER_MIG_RUNNING
#define STOP_COPY VFIO_USER_MIG_STOP_COPY
#define RESUMING  VFIO_USER_MIG_RESUMING

#define PIECE 65536u

static bool restarts;

static void maybe_restart(void)
{
    if (restarts) {
        vgt_restart(vgt_daemon);
    }
}

static void set(struct vguest *g, enum vfio_user_mig_state state)
{
    g_assert_cmpint(vg_mig_set(g, state), ==, 0);
    maybe_restart();
    g_assert_cmpint(vg_mig_get(g), ==, state);
}

static void reset(struct vguest *g)
{
    g_assert_cmpint(vg_request(g, VFIO_USER_DEVICE_RESET, 0, NULL, 0, NULL, 0, NULL), ==,
                    0);
    maybe_restart();
    g_assert_cmpint(vg_mig_get(g), ==, RUNNING);
}

static struct vguest *begin(unsigned vm)
{
    struct vguest *g = vguest_new(vgt_daemon, vm, NULL);

    maybe_restart();
    return g;
}

/* Nobody has its state: its addresses are not held for anybody. */
static void end(struct vguest *g)
{
    set(g, RUNNING);
    vguest_free(g);
}

/* In STOP_COPY then. */
static GByteArray *save(struct vguest *g)
{
    set(g, STOP_COPY);
    return vg_mig_read(g, PIECE);
}

/* In STOP then. */
static void load(struct vguest *g, const GByteArray *stream)
{
    set(g, RESUMING);
    g_assert_cmpint(vg_mig_write(g, stream->data, stream->len, PIECE), ==, 0);
    set(g, STOP);
}

/* ---- what is in a stream ---- */

static const uint8_t *owner_of(const GByteArray *stream)
{
    return vg_mig_section(stream, "OWNR", 24);
}

static uint64_t generation_of(const GByteArray *stream)
{
    uint64_t n;

    memcpy(&n, owner_of(stream) + 16, sizeof(n));
    return n;
}

static bool same_owner(const GByteArray *a, const GByteArray *b)
{
    return memcmp(owner_of(a), owner_of(b), 16) == 0;
}

static bool same_key(const GByteArray *a, const GByteArray *b)
{
    return memcmp(vg_mig_section(a, "KEY ", 32), vg_mig_section(b, "KEY ", 32), 32) == 0;
}

/* Both are of one VM, and @b is of generation @n. */
static void assert_same(const GByteArray *a, const GByteArray *b, uint64_t n)
{
    g_assert_true(same_owner(a, b));
    g_assert_true(same_key(a, b));
    g_assert_cmpuint(generation_of(b), ==, n);
}

/* ---- where it is ---- */

/* It has not moved by being saved, nor by a restart; going on after that counts two. */
static void test_stays(void)
{
    struct vguest *g = begin(0);
    g_autoptr(GByteArray) first = NULL;

    maybe_restart();
    first = save(g);
    g_assert_cmpuint(generation_of(first), ==, 1);
    for (unsigned i = 0; i < 2; i++) {
        g_autoptr(GByteArray) more = NULL;

        set(g, STOP);
        more = save(g); /* once more: it has not run */
        assert_same(first, more, 1 + 2 * i);
        set(g, RUNNING);
        set(g, STOP); /* nobody has its state of since */
        set(g, RUNNING);
        g_byte_array_unref(save(g));
    }
    end(g);
}

/*
 * What was loaded, saved again and then run comes before who was begun from that: it was
 * one more where it was loaded, has one more there, and two more here.
 */
static void test_passed_on(void)
{
    struct vguest *g = begin(0);
    g_autoptr(GByteArray) first = save(g), second = NULL, third = NULL;
    struct vg_place place = vg_place_open(g, vgt_daemon, 2);

    vg_place_swap(g, &place);
    load(g, first);
    second = save(g);
    assert_same(first, second, 2);
    set(g, STOP);
    set(g, RUNNING);
    third = save(g);
    assert_same(first, third, 4);
    vg_place_close(&place);
    end(g);
}

/* But one that was only loaded counts one. */
static void test_moves(void)
{
    struct vguest *g = begin(0);
    g_autoptr(GByteArray) first = save(g), second = NULL;
    struct vg_place place = vg_place_open(g, vgt_daemon, 2);

    vg_place_swap(g, &place);
    load(g, first);
    set(g, RUNNING);
    second = save(g);
    assert_same(first, second, 2);
    vg_place_close(&place);
    end(g);
}

/* It was saved before it loaded another, not since: nobody begins from what it has. */
static void test_saved_before(void)
{
    struct vguest *g = begin(0), *other = begin(1);
    g_autoptr(GByteArray) own = save(g), strange = save(other), again = NULL;

    set(g, STOP);
    load(g, strange);
    set(g, RUNNING);
    again = save(g);
    g_assert_false(same_owner(own, again));
    assert_same(strange, again, generation_of(strange) + 1);
    end(g);
    vguest_free(other); /* it runs elsewhere */
}

/* ---- what it was before ---- */

/* A state that was loaded and not run leaves nothing behind: not its key either. */
static void test_not_run(void)
{
    struct vguest *g = begin(0), *other = begin(1);
    g_autoptr(GByteArray) own = save(g), strange = save(other), again = NULL;

    g_assert_false(same_owner(own, strange));
    g_assert_false(same_key(own, strange));
    set(g, STOP);
    load(g, strange);
    reset(g);
    again = save(g);
    g_assert_true(same_owner(own, again));
    g_assert_cmpuint(generation_of(again), ==, 1);
    g_assert_false(same_key(again, strange));
    if (!restarts) { /* behind one another was made */
        g_assert_true(same_key(own, again));
    }
    end(g);
    end(other);
}

/* Nor does one that could not be loaded. */
static void test_refused(void)
{
    struct vguest *g = begin(0), *other = begin(1);
    g_autoptr(GByteArray) own = save(g), strange = save(other), again = NULL;

    set(g, RESUMING);
    g_assert_cmpint(vg_mig_write(g, strange->data, strange->len - 1, PIECE), ==, 0);
    g_assert_cmpint(vg_mig_set(g, STOP), ==, EBADMSG);
    maybe_restart();
    reset(g);
    again = save(g);
    g_assert_true(same_owner(own, again));
    g_assert_cmpuint(generation_of(again), ==, 1);
    g_assert_false(same_key(again, strange));
    g_assert_true(same_key(own, again));
    end(g);
    end(other);
}

/* ---- it runs elsewhere ---- */

static int read_piece(struct vguest *g)
{
    struct vfio_user_mig_data req = {(uint32_t)sizeof(req) + 64, 64};

    return vg_request(g, VFIO_USER_MIG_DATA_READ, 0, &req, sizeof(req), NULL, 0, NULL);
}

static void assert_said(unsigned vm, const char *words)
{
    g_autofree char *text = NULL;

    g_assert_cmpint(vg_ctl(vgt_daemon, &text, "--json vm migrate-status vm%u", vm), ==,
                    0);
    g_assert_nonnull(strstr(text, words));
}

/*
 * Once its other place has its addresses nobody gets this one's state: not what was saved
 * before and not read, nor another.  Reset, it is a VM like any.
 */
static void test_moved(void)
{
    struct vguest *g = begin(0);
    g_autoptr(GByteArray) first = save(g), anew = NULL;
    struct vg_place place = vg_place_open(g, vgt_daemon, 2);

    set(g, STOP);
    set(g, STOP_COPY);
    g_assert_cmpint(read_piece(g), ==, 0);
    vg_place_swap(g, &place);
    load(g, first);
    set(g, RUNNING);
    vg_place_swap(g, &place);
    g_assert_cmpint(read_piece(g), ==, EADDRINUSE);
    assert_said(0, "it runs elsewhere");
    set(g, STOP);
    g_assert_cmpint(vg_mig_set(g, STOP_COPY), ==, EADDRINUSE);
    maybe_restart();
    g_assert_cmpint(vg_mig_set(g, STOP_COPY), ==, EADDRINUSE);
    g_assert_cmpint(vg_mig_set(g, RUNNING), ==, EADDRINUSE);
    g_assert_cmpint(vg_mig_get(g), ==, STOP);
    assert_said(0, "it runs elsewhere");
    reset(g);
    anew = save(g);
    g_assert_false(same_owner(first, anew));
    g_assert_false(same_key(first, anew));
    g_assert_cmpuint(generation_of(anew), ==, 1);
    vg_place_close(&place);
    end(g);
}

static const struct {
    const char *name;
    void (*fn)(void);
} tests[] = {
    {"stays", test_stays},
    {"passed-on", test_passed_on},
    {"moves", test_moves},
    {"not-run", test_not_run},
    {"refused", test_refused},
    {"moved", test_moved},
    {"saved-before", test_saved_before},
};

static void run(gconstpointer i)
{
    restarts = GPOINTER_TO_UINT(i) & 1;
    tests[GPOINTER_TO_UINT(i) / 2].fn();
}

int main(int argc, char **argv)
{
    struct vg_daemon_opts o = {.n_vms = 3, .workers = 1, .vm_keys = "addresses=any"};

    vgt_init(&argc, &argv, 120);
    vgt_daemon = vg_daemon_start(&o);
    for (unsigned i = 0; i < 2 * G_N_ELEMENTS(tests); i++) {
        g_autofree char *path =
            g_strdup_printf("/places/%s%s", i & 1 ? "restarts/" : "", tests[i / 2].name);

        g_test_add_data_func(path, GUINT_TO_POINTER(i), run);
    }
    return vgt_run();
}
