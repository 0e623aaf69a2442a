/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Two devices for the tests of backend/vm/save.c; pair.h says more. */
#include "pair.h"

#include <string.h>

#include "directory/directory.h"

struct testdev *from, *to;

static void run(gconstpointer test)
{
    from = fulldev_new("state");
    fulldev_fill(from);
    to = fulldev_new("state");
    datapath_pause(&to->vm);
    ((void (*)(void))test)();
    testdev_free(from);
    testdev_free(to);
    g_assert_cmpuint(directory_count(), ==, 0);
}

void pair_add(const char *path, void (*test)(void))
{
    g_test_add_data_func(path, test, run);
}

bool pair_load_bytes(const uint8_t *data, size_t len)
{
    GError *err = NULL;
    bool ok = vm_load(&to->vm, data, len, &err);

    g_assert_true(ok == (err == NULL));
    g_clear_error(&err);
    return ok;
}

bool pair_load(const GByteArray *stream)
{
    return pair_load_bytes(stream->data, stream->len);
}

void pair_move_memory(void)
{
    memcpy(to->ram, from->ram, TESTDEV_RAM_SIZE);
    to->next = from->next;
    to->dsr = from->dsr;
    to->cmd = from->cmd;
    to->resp = from->resp;
}

void pair_assert_reset(void)
{
    struct objects_stats st = testdev_stats(to);

    g_assert_cmpuint(st.uctx + st.pd + st.mr + st.cq + st.qp + st.srq + st.gid, ==, 0);
    g_assert_cmpuint(st.pages, ==, 0);
    g_assert_false(to->vm.dev->active);
    g_assert_false(to->vm.dev->dsr_valid);
    g_assert_cmpuint(to->vm.pauses, ==, 1);
    g_assert_false(event_deferred(&to->vm.guest.events));
}

void pair_assert_refused(const GByteArray *stream, const char *why)
{
    g_autoptr(GError) err = NULL;

    if (vm_load(&to->vm, stream->data, stream->len, &err)) {
        g_error("loaded, although: %s", why);
    }
    if (!strstr(err->message, why)) {
        g_error("refused, but not for \"%s\": %s", why, err->message);
    }
    pair_assert_reset();
}

uint8_t *pair_section(GByteArray *bytes, const char *tag, uint64_t *len)
{
    for (guint at = 16; at + 16 <= bytes->len;) {
        memcpy(len, bytes->data + at + 8, sizeof(*len));
        *len = GUINT64_FROM_LE(*len);
        if (memcmp(bytes->data + at, tag, 4) == 0) {
            return bytes->data + at + 16;
        }
        at += 16 + (guint)*len;
    }
    g_error("no section %s", tag);
}

void pair_make_comparable(GByteArray *bytes)
{
    uint64_t len;

    memset(pair_section(bytes, "OWNR", &len) + 16, 0, 8);
    memset(pair_section(bytes, "STAT", &len), 0, 8);
}

void pair_assert_equal(GByteArray *a, GByteArray *b)
{
    pair_make_comparable(a);
    pair_make_comparable(b);
    g_assert_cmpmem(a->data, a->len, b->data, b->len);
}
