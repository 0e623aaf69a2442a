/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The device's states in a migration and its stream, as one client sees them: every way
 * from state to state, every way not to ask for data, and what is paused when.  What is
 * in the stream: tests/unit/base/test-state-stream.c and those of the parts.
 */
#include "client.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/pci_regs.h>
#include <string.h>
#include <unistd.h>

#include "control/registry.h"
#include "control/restart/internal.h"
#include "device/device.h"
#include "frontend/frontend.h"
#include "frontend/migration.h"

#define FEATURE (VFIO_USER_FEATURE_MIG_DEVICE_STATE)
#define GET     VFIO_USER_FEATURE_GET
#define SET     VFIO_USER_FEATURE_SET

enum {
    ERROR = VFIO_USER_MIG_ERROR,
    STOP = VFIO_USER_MIG_STOP,
    RUNNING = VFIO_USER_MIG_RUNNING,
    STOP_COPY = VFIO_USER_MIG_STOP_COPY,
    RESUMING = VFIO_USER_MIG_RESUMING,
};

static struct reply last;

static void setup(struct fixture *f, gconstpointer arg)
{
    fixture_setup(f, arg);
    client_attach(f);
}

/* With a state that is not long.  Its worker reads the limits: not when it is attached.
 */
static void setup_small(struct fixture *f, gconstpointer arg)
{
    struct vm_config *cfg;

    fixture_setup(f, arg);
    cfg = f->vm->cfg;
    cfg->max_qp = cfg->max_cq = cfg->max_srq = 4;
    cfg->max_mr = cfg->max_pd = 4;
    cfg->max_mr_pages = 1 << 20;
    client_attach(f);
}

/* ---- states ---- */

struct state_msg {
    struct vfio_user_device_feature head;
    struct vfio_user_mig_device_state data;
};

static int set_state(struct fixture *f, uint32_t state)
{
    struct state_msg msg = {{sizeof(msg), FEATURE | SET}, {state, -1}};
    int err =
        client_call(f->cl, VFIO_USER_DEVICE_FEATURE, &msg, sizeof(msg), NULL, 0, &last);

    if (!err) {
        g_assert_cmpuint(last.len, ==, sizeof(msg));
        g_assert_cmpmem(last.body, last.len, &msg, sizeof(msg));
    }
    return err;
}

static uint32_t get_state(struct fixture *f)
{
    struct state_msg msg = {{sizeof(msg), FEATURE | GET}, {0}};

    client_ask(f->cl, VFIO_USER_DEVICE_FEATURE, &msg, sizeof(msg.head), &last);
    g_assert_cmpuint(last.len, ==, sizeof(msg));
    memcpy(&msg, last.body, sizeof(msg));
    g_assert_cmpuint(msg.head.argsz, ==, sizeof(msg));
    g_assert_cmpint(msg.data.data_fd, ==, -1);
    return msg.data.device_state;
}

/* In every state but RUNNING it is paused, once, beside a bus master's pause. */
static void check_state(struct fixture *f, uint32_t state)
{
    g_assert_cmpuint(get_state(f), ==, state);
    g_assert_cmpuint(f->vm->pauses, ==, (state != RUNNING) + f->vm->dev->stopped);
    g_assert_cmpint(atomic_load(&f->vm->dp.paused), ==, f->vm->pauses != 0);
}

static void reset(struct fixture *f)
{
    g_assert_cmpint(client_do(f->cl, VFIO_USER_DEVICE_RESET, NULL, 0), ==, 0);
    check_state(f, RUNNING);
}

/* ---- the stream ---- */

/* Read @size bytes; 0 or the errno, and `last`. */
static int read_data(struct fixture *f, uint32_t argsz, uint32_t size)
{
    struct vfio_user_mig_data req = {argsz, size};

    return client_call(f->cl, VFIO_USER_MIG_DATA_READ, &req, sizeof(req), NULL, 0, &last);
}

static int write_data(struct fixture *f, const void *data, uint32_t size)
{
    struct vfio_user_mig_data req = {(uint32_t)sizeof(req) + size, size};
    g_autofree uint8_t *msg = g_malloc(req.argsz);

    memcpy(msg, &req, sizeof(req));
    memcpy(msg + sizeof(req), data, size);
    return client_do(f->cl, VFIO_USER_MIG_DATA_WRITE, msg, req.argsz);
}

/* All of it, in pieces of @size bytes; in STOP_COPY. */
static GByteArray *read_all(struct fixture *f, uint32_t size)
{
    GByteArray *all = g_byte_array_new();
    uint32_t n;

    do {
        struct vfio_user_mig_data head;

        g_assert_cmpint(read_data(f, (uint32_t)sizeof(head) + size, size), ==, 0);
        g_assert_cmpuint(last.len, >=, sizeof(head));
        memcpy(&head, last.body, sizeof(head));
        n = head.size;
        g_assert_cmpuint(head.argsz, ==, last.len);
        g_assert_cmpuint(last.len, ==, sizeof(head) + n);
        g_assert_cmpuint(n, <=, size);
        g_byte_array_append(all, last.body + sizeof(head), n);
    } while (n == size);
    return all;
}

static GByteArray *save(struct fixture *f, uint32_t size)
{
    GByteArray *all;

    g_assert_cmpint(set_state(f, STOP_COPY), ==, 0);
    all = read_all(f, size);
    g_assert_cmpint(set_state(f, STOP), ==, 0);
    return all;
}

/* In RESUMING, in pieces. */
static void write_all(struct fixture *f, const GByteArray *all, uint32_t size)
{
    for (uint32_t at = 0; at < all->len; at += size) {
        g_assert_cmpint(write_data(f, all->data + at, MIN(size, all->len - at)), ==, 0);
    }
}

/* From RUNNING to @state; ERROR by a stream that is none. */
static void bring_to(struct fixture *f, uint32_t state, const GByteArray *stream)
{
    check_state(f, RUNNING);
    if (state == ERROR) {
        g_assert_cmpint(set_state(f, RESUMING), ==, 0);
        g_assert_cmpint(set_state(f, STOP), ==, EBADMSG);
    } else {
        g_assert_cmpint(set_state(f, state), ==, 0);
    }
    if (state == RESUMING) {
        write_all(f, stream, UINT16_MAX);
    }
    check_state(f, state);
}

/* All pairs, states that there are not among them. */
static void test_pairs(struct fixture *f, gconstpointer arg)
{
    static const uint32_t to[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 255, UINT32_MAX};
    GByteArray *stream = save(f, 100);

    reset(f);
    for (uint32_t from = ERROR; from <= RESUMING; from++) {
        for (unsigned i = 0; i < G_N_ELEMENTS(to); i++) {
            bool legal = from != ERROR && to[i] >= STOP && to[i] <= RESUMING;

            bring_to(f, from, stream);
            g_assert_cmpint(set_state(f, to[i]), ==, legal ? 0 : EINVAL);
            check_state(f, legal ? to[i] : from);
            reset(f);
        }
    }
    g_byte_array_unref(stream);
}

/* Nothing but a whole request sets a state. */
static void test_requests(struct fixture *f, gconstpointer arg)
{
    struct state_msg msg = {{sizeof(msg), FEATURE | SET}, {STOP, -1}};

    for (uint32_t len = 0; len < sizeof(msg); len++) {
        client_refused(f->cl, VFIO_USER_DEVICE_FEATURE, &msg, len);
    }
    msg.head.flags |= VFIO_USER_FEATURE_PROBE;
    g_assert_cmpint(client_do(f->cl, VFIO_USER_DEVICE_FEATURE, &msg, sizeof(msg)), ==, 0);
    check_state(f, RUNNING);
    msg.head = (struct vfio_user_device_feature){sizeof(msg) - 1, FEATURE | GET};
    client_refused(f->cl, VFIO_USER_DEVICE_FEATURE, &msg.head, sizeof(msg.head));
    /* The feature that says what there is. */
    msg.head = (struct vfio_user_device_feature){16, VFIO_USER_FEATURE_MIGRATION | GET};
    client_ask(f->cl, VFIO_USER_DEVICE_FEATURE, &msg.head, sizeof(msg.head), &last);
    g_assert_cmpuint(last.len, ==, 16);
    g_assert_cmpuint(last.body[8], ==, VFIO_USER_MIGRATION_STOP_COPY);
}

static uint64_t ask_size(struct fixture *f)
{
    struct vfio_user_device_feature head = {16, VFIO_USER_FEATURE_MIG_DATA_SIZE | GET};
    uint64_t size;

    client_ask(f->cl, VFIO_USER_DEVICE_FEATURE, &head, sizeof(head), &last);
    g_assert_cmpuint(last.len, ==, sizeof(head) + sizeof(size));
    memcpy(&size, last.body + sizeof(head), sizeof(size));
    return size;
}

/* How long the stream would be: what is registered counts. */
static void test_size(struct fixture *f, gconstpointer arg)
{
    struct vfio_user_device_feature head = {15, VFIO_USER_FEATURE_MIG_DATA_SIZE | GET};
    uint64_t *pages = &f->vm->objects.pages_used, before = ask_size(f);

    *pages += 1000000;
    g_assert_cmpuint(ask_size(f), ==, before + 8000000);
    *pages -= 1000000;
    g_assert_cmpint(set_state(f, STOP_COPY), ==, 0);
    g_assert_cmpuint(ask_size(f), ==, before);
    g_assert_cmpint(read_data(f, UINT32_MAX, VFIO_USER_MAX_DATA), ==, 0);
    g_assert_cmpuint(before + 8, >=, last.len);
    client_refused(f->cl, VFIO_USER_DEVICE_FEATURE, &head, sizeof(head));
}

/* However it is read and written it is a whole one. */
static void test_pieces(struct fixture *f, gconstpointer arg)
{
    static const uint32_t size[] = {1, 7, 64, 4096, VFIO_USER_MAX_DATA};
    GByteArray *first = save(f, 4096);

    for (unsigned i = 0; i < G_N_ELEMENTS(size); i++) {
        GByteArray *again = save(f, size[i]);

        g_assert_cmpuint(again->len, ==, first->len); /* the guest's clock goes on */
        g_assert_cmpint(set_state(f, RESUMING), ==, 0);
        write_all(f, again, 4096);
        g_assert_cmpint(set_state(f, STOP), ==, 0);
        g_byte_array_unref(again);
    }
    /* As many bytes as there are: the end is said by the next read, again and again. */
    g_assert_cmpint(set_state(f, STOP_COPY), ==, 0);
    g_assert_cmpint(read_data(f, 8 + first->len, first->len), ==, 0);
    g_assert_cmpuint(last.len, ==, 8 + first->len);
    for (unsigned i = 0; i < 3; i++) {
        g_assert_cmpint(read_data(f, 9, 1), ==, 0);
        g_assert_cmpuint(last.len, ==, 8);
    }
    for (unsigned i = 0; i < G_N_ELEMENTS(size); i++) {
        g_assert_cmpint(set_state(f, RESUMING), ==, 0);
        write_all(f, first, size[i]);
        g_assert_cmpint(set_state(f, RUNNING), ==, 0);
        check_state(f, RUNNING);
    }
    g_byte_array_unref(first);
}

static void test_bad_reads(struct fixture *f, gconstpointer arg)
{
    for (uint32_t state = ERROR; state <= RESUMING; state++) {
        GByteArray *stream = save(f, 4096);

        reset(f);
        bring_to(f, state, stream);
        if (state != STOP_COPY) {
            g_assert_cmpint(read_data(f, 8 + 64, 64), ==, EINVAL);
        }
        if (state != RESUMING) {
            g_assert_cmpint(write_data(f, "x", 1), ==, EINVAL);
        }
        check_state(f, state);
        reset(f);
        g_byte_array_unref(stream);
    }
    g_assert_cmpint(set_state(f, STOP_COPY), ==, 0);
    for (uint32_t len = 0; len < 8; len++) {
        client_refused(f->cl, VFIO_USER_MIG_DATA_READ, "\20\0\0\0\10\0\0\0", len);
    }
    for (uint32_t argsz = 0; argsz < 8 + 64; argsz++) {
        g_assert_cmpint(read_data(f, argsz, 64), ==, EINVAL);
    }
    g_assert_cmpint(read_data(f, UINT32_MAX, 0), ==, EINVAL);
    g_assert_cmpint(read_data(f, UINT32_MAX, VFIO_USER_MAX_DATA + 1), ==, E2BIG);
    g_assert_cmpint(read_data(f, UINT32_MAX, UINT32_MAX), ==, EINVAL);
    g_assert_cmpint(read_data(f, UINT32_MAX, UINT32_MAX - 8), ==, E2BIG);
    check_state(f, STOP_COPY);
}

static void test_bad_writes(struct fixture *f, gconstpointer arg)
{
    g_autofree uint8_t *much = g_malloc0(VFIO_USER_MAX_DATA + 9);
    struct vfio_user_mig_data req = {8 + 64, 64};
    uint64_t room = vm_state_max(f->vm);

    g_assert_cmpuint(room, <, 64u << 20);
    g_assert_cmpint(set_state(f, RESUMING), ==, 0);
    memcpy(much, &req, sizeof(req));
    for (uint32_t len = 0; len < 8 + 70; len++) {
        g_assert_cmpint(client_do(f->cl, VFIO_USER_MIG_DATA_WRITE, much, len), ==,
                        len == 8 + 64 ? 0 : EINVAL);
    }
    room -= 64;
    for (req.argsz = 0; req.argsz < 8 + 64; req.argsz++) {
        memcpy(much, &req, sizeof(req));
        client_refused(f->cl, VFIO_USER_MIG_DATA_WRITE, much, 8 + 64);
    }
    g_assert_cmpint(write_data(f, much, VFIO_USER_MAX_DATA + 1), ==, E2BIG);
    g_assert_cmpint(write_data(f, much, 0), ==, 0);
    /* More than any device of this VM has. */
    for (; room >= VFIO_USER_MAX_DATA; room -= VFIO_USER_MAX_DATA) {
        g_assert_cmpint(write_data(f, much, VFIO_USER_MAX_DATA), ==, 0);
    }
    g_assert_cmpint(write_data(f, much, (uint32_t)room + 1), ==, E2BIG);
    g_assert_cmpint(write_data(f, much, (uint32_t)room), ==, 0);
    g_assert_cmpint(write_data(f, much, 1), ==, E2BIG);
    check_state(f, RESUMING);
    g_assert_cmpint(set_state(f, STOP), ==, EBADMSG);
    check_state(f, ERROR);
}

/* What stops coming is not kept, unless it goes on. */
static void test_stalled(struct fixture *f, gconstpointer arg)
{
    gint64 before = migration_stalls_us, end;
    uint8_t data[64] = {0};

    migration_stalls_us = 400000;
    g_assert_cmpint(set_state(f, RESUMING), ==, 0);
    g_assert_cmpint(write_data(f, data, sizeof(data)), ==, 0);
    g_assert_cmpuint(migration_stream_bytes(f->vm), ==, sizeof(data));
    end = g_get_monotonic_time() + 20 * G_USEC_PER_SEC;
    while (migration_stream_bytes(f->vm)) {
        pump();
        g_usleep(1000);
        g_assert_cmpint(g_get_monotonic_time(), <, end);
    }
    check_state(f, ERROR);
    g_assert_cmpint(write_data(f, data, sizeof(data)), ==, EINVAL);
    reset(f);
    check_state(f, RUNNING);
    migration_stalls_us = before;
}

/* Nor what was saved and is not read. */
static void test_unread(struct fixture *f, gconstpointer arg)
{
    gint64 before = migration_stalls_us, end;

    migration_stalls_us = 400000;
    g_assert_cmpint(set_state(f, STOP), ==, 0);
    g_assert_cmpint(set_state(f, STOP_COPY), ==, 0);
    g_assert_cmpuint(migration_stream_bytes(f->vm), >, 0);
    end = g_get_monotonic_time() + 20 * G_USEC_PER_SEC;
    while (migration_stream_bytes(f->vm)) {
        pump();
        g_usleep(1000);
        g_assert_cmpint(g_get_monotonic_time(), <, end);
    }
    check_state(f, STOP);
    reset(f);
    check_state(f, RUNNING);
    migration_stalls_us = before;
}

/* ---- several ---- */

/* Another VM of the same daemon, with a client. */
static struct fixture second(const struct fixture *f)
{
    struct fixture other = *f;
    GError *err = NULL;
    struct vm_config *vc = config_vm_new(f->cfg, "other", &err);

    g_assert_no_error(err);
    other.vm = registry_add(vc, &err);
    g_assert_no_error(err);
    client_attach(&other);
    return other;
}

static void second_end(struct fixture *other)
{
    client_close(other);
    registry_remove(other->vm);
}

/* All streams together have a bound: the longest gives way to what is shorter. */
static void test_shares(struct fixture *f, gconstpointer arg)
{
    struct fixture other = second(f), *g = &other;
    uint64_t before = migration_max_streams, len;
    uint8_t data[1000] = {0};

    migration_max_streams = 1000;
    g_assert_cmpint(set_state(f, RESUMING), ==, 0);
    g_assert_cmpint(set_state(g, RESUMING), ==, 0);
    g_assert_cmpint(write_data(f, data, 600), ==, 0);
    g_assert_cmpint(write_data(g, data, 400), ==, 0);
    check_state(f, RESUMING);
    g_assert_cmpint(write_data(g, data, 100), ==, 0);
    check_state(f, ERROR);
    g_assert_cmpuint(migration_stream_bytes(f->vm), ==, 0);
    reset(f);
    g_assert_cmpint(set_state(f, RESUMING), ==, 0);
    g_assert_cmpint(write_data(f, data, 500), ==, 0);
    g_assert_cmpint(write_data(f, data, 1), ==, ENOBUFS); /* it would be the longest */
    check_state(f, ERROR);
    check_state(g, RESUMING);
    g_assert_cmpuint(migration_stream_bytes(g->vm), ==, 500);
    reset(f);

    /* What is saved: not beside that, ... */
    g_assert_cmpint(set_state(f, STOP_COPY), ==, ENOBUFS);
    check_state(f, STOP);
    reset(g);
    migration_max_streams = before;
    g_assert_cmpint(set_state(f, STOP_COPY), ==, 0);
    len = migration_stream_bytes(f->vm);
    migration_max_streams = len + 100;
    g_assert_cmpint(read_data(f, UINT32_MAX, 64), ==, 0);
    g_assert_cmpint(set_state(g, RESUMING), ==, 0);
    g_assert_cmpint(write_data(g, data, 100), ==, 0);
    check_state(f, STOP_COPY);
    /* ... and longer than others are: it cannot be read to its end, and the VM goes on.
     */
    g_assert_cmpint(write_data(g, data, 1), ==, 0);
    check_state(f, STOP);
    g_assert_cmpint(read_data(f, UINT32_MAX, 64), ==, EINVAL);
    g_assert_cmpint(set_state(f, RUNNING), ==, 0);
    check_state(f, RUNNING);
    reset(g);
    migration_max_streams = before;
    second_end(g);
}

struct freeze {
    GPtrArray *frozen;
    gint64 since;
    bool all, ok, done;
};

static void run_freeze(void *opaque)
{
    struct freeze *f = opaque;

    f->ok = restart_freeze_all(f->frozen, f->all, &f->since, NULL);
    f->done = true;
}

/* All are frozen, for a restart or to leave, if they can be, and go on. */
static bool try_freeze_all(bool all, guint n)
{
    struct freeze fr = {.frozen = g_ptr_array_new(), .all = all};

    coro_run(run_freeze, &fr);
    while (!fr.done) {
        pump();
    }
    if (fr.ok) {
        g_assert_cmpuint(fr.frozen->len, ==, n);
        restart_thaw_all(fr.frozen, true);
    }
    g_ptr_array_unref(fr.frozen);
    return fr.ok;
}

static void freeze_all(bool all, guint n)
{
    g_assert_true(try_freeze_all(all, n));
}

/* Streams that are too long together for a restart are given up; the restart is not, nor
 * is any VM. */
static void test_too_long_for_restart(struct fixture *f, gconstpointer arg)
{
    struct fixture other = second(f), *g = &other;
    uint64_t before = restart_max_streams;
    uint8_t data[64] = {0};

    for (int all = 0; all < 2; all++) {
        restart_max_streams = sizeof(data) + 32;
        g_assert_cmpint(set_state(f, RESUMING), ==, 0);
        g_assert_cmpint(write_data(f, data, sizeof(data)), ==, 0);
        freeze_all(all, 2);
        check_state(f, RESUMING);
        g_assert_cmpint(set_state(g, RESUMING), ==, 0);
        g_assert_cmpint(write_data(g, data, 32), ==, 0);
        freeze_all(all, 2);
        check_state(f, RESUMING);
        check_state(g, RESUMING);
        g_assert_cmpint(write_data(g, data, 1), ==, 0);
        freeze_all(all, 2);
        check_state(f, ERROR);
        check_state(g, RESUMING);
        reset(f);

        g_assert_cmpint(set_state(f, STOP_COPY), ==, 0);
        g_assert_cmpint(read_data(f, UINT32_MAX, 64), ==, 0);
        freeze_all(all, 2);
        check_state(f, STOP);
        g_assert_cmpuint(migration_stream_bytes(f->vm), ==, 0);
        check_state(g, RESUMING);
        g_assert_cmpint(read_data(f, UINT32_MAX, 64), ==, EINVAL);
        g_assert_cmpint(set_state(f, RUNNING), ==, 0);
        reset(f);
        reset(g);
    }
    restart_max_streams = before;
    second_end(g);
}

/* A restart that fails for another VM, which cannot come along, costs no stream. */
static void test_failed_restart(struct fixture *f, gconstpointer arg)
{
    static const struct vfio_user_dma_map map = {sizeof(map), 3, 0, 0x100000, 4096};
    static const struct vfio_user_dma_unmap unmap = {sizeof(unmap), 0, 0x100000, 4096};
    g_autofree char *self = g_file_read_link("/proc/self/exe", NULL);
    g_autofree char *dir = g_path_get_dirname(self);
    int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    struct fixture other = second(f), *g = &other;
    uint64_t before = restart_max_streams;
    uint8_t data[64] = {0};

    if (fd < 0 || fcntl(fd, F_GET_SEALS) >= 0 || ftruncate(fd, 4096) < 0) {
        g_test_skip("the build is not on a disk");
    } else {
        g->vm->guest.mem.require_sealed = false; /* as the operator may say */
        restart_max_streams = sizeof(data) - 1;
        g_assert_cmpint(
            client_call(g->cl, VFIO_USER_DMA_MAP, &map, sizeof(map), &fd, 1, &last), ==,
            0);
        g_assert_cmpint(set_state(f, RESUMING), ==, 0);
        g_assert_cmpint(write_data(f, data, sizeof(data)), ==, 0);
        g_assert_false(try_freeze_all(true, 2));
        check_state(f, RESUMING);
        g_assert_cmpuint(migration_stream_bytes(f->vm), ==, sizeof(data));
        g_assert_cmpint(client_do(g->cl, VFIO_USER_DMA_UNMAP, &unmap, sizeof(unmap)), ==,
                        0);
        freeze_all(true, 2);
        check_state(f, ERROR);
        reset(f);
        restart_max_streams = before;
    }
    close(fd);
    second_end(g);
}

/* Cut and damaged streams: the device is in ERROR, and a reset mends it. */
static void test_bad_streams(struct fixture *f, gconstpointer arg)
{
    GByteArray *stream = save(f, 4096);
    struct migration_status st;

    for (uint32_t len = 0; len < stream->len; len++) {
        reset(f);
        g_assert_cmpint(set_state(f, RESUMING), ==, 0);
        g_assert_cmpint(write_data(f, stream->data, len), ==, 0);
        g_assert_cmpint(set_state(f, RUNNING), ==, EBADMSG);
        check_state(f, ERROR);
    }
    migration_get_status(f->vm, &st);
    g_assert_cmpstr(st.state, ==, "error");
    g_assert_cmpint(st.kind, ==, MIGRATION_LOADED);
    g_assert_cmpuint(st.bytes, ==, stream->len - 1);
    g_assert_cmpstr(st.error, !=, "");
    for (uint32_t i = 0; i < stream->len; i++) {
        uint64_t generation = f->vm->identity.generation;
        int err;

        reset(f);
        stream->data[i] ^= (uint8_t)(1 << i % 8);
        g_assert_cmpint(set_state(f, RESUMING), ==, 0);
        write_all(f, stream, 4096);
        err = set_state(f, STOP);
        g_assert_true(err == 0 || err == EBADMSG);
        check_state(f, err ? ERROR : STOP);
        stream->data[i] ^= (uint8_t)(1 << i % 8);
        reset(f);
        g_assert_cmpuint(f->vm->identity.generation, ==, generation);
    }
    g_byte_array_unref(stream);
}

/* The guest's registers are closed while it stands still; doorbells are noted. */
static void test_registers(struct fixture *f, gconstpointer arg)
{
    uint32_t v = 5;

    g_assert_cmpint(client_write(f->cl, VFIO_USER_REGION_BAR1, PVRDMA_REG_IMR, &v, 4), ==,
                    0);
    for (uint32_t state = ERROR; state <= RESUMING; state++) {
        bool runs = state == RUNNING;
        GByteArray *stream = save(f, 4096);

        g_assert_cmpint(set_state(f, RUNNING), ==, 0);
        bring_to(f, state, stream);
        v = 6;
        g_assert_cmpint(client_write(f->cl, VFIO_USER_REGION_BAR1, PVRDMA_REG_IMR, &v, 4),
                        ==, runs ? 0 : EBUSY);
        client_post(f->cl, VFIO_USER_REGION_BAR1, PVRDMA_REG_IMR, &v, 4);
        v = 8;
        g_assert_cmpint(client_write(f->cl, VFIO_USER_REGION_BAR1, PVRDMA_REG_IMR, &v, 4),
                        ==, runs ? 0 : EBUSY);
        v = client_read32(f->cl, VFIO_USER_REGION_BAR1, PVRDMA_REG_IMR);
        g_assert_cmpuint(v == 8, ==, runs);
        g_assert_cmpuint(v, !=, 6);
        v = 0;
        g_assert_cmpint(client_write(f->cl, VFIO_USER_REGION_BAR2, PVRDMA_UAR_QP, &v, 4),
                        ==, 0);
        reset(f);
        g_byte_array_unref(stream);
    }
}

/* It leaves in each state, and the next client finds a VM that runs. */
static void test_leave(struct fixture *f, gconstpointer arg)
{
    GByteArray *stream = save(f, 4096);

    for (uint32_t state = ERROR; state <= RESUMING; state++) {
        client_close(f);
        client_attach(f);
        bring_to(f, state, stream);
    }
    /* Half read, and read to the end. */
    for (unsigned i = 0; i < 2; i++) {
        reset(f);
        g_assert_cmpint(set_state(f, STOP_COPY), ==, 0);
        g_assert_cmpint(read_data(f, 8 + 16, 16), ==, 0);
        if (i) {
            g_byte_array_unref(read_all(f, 4096));
        }
        client_close(f);
        client_attach(f);
        check_state(f, RUNNING);
    }
    g_byte_array_unref(stream);
}

/* What a VM with a fault has is not to be believed: nobody gets its state. */
static void test_fault(struct fixture *f, gconstpointer arg)
{
    g_assert_cmpint(set_state(f, STOP), ==, 0);
    atomic_store(&f->vm->guest.fault, "a fault of the test");
    g_assert_cmpint(set_state(f, STOP_COPY), ==, EIO);
    client_dropped(f);
    client_attach(f);
}

/* A function-level reset is one. */
static void test_function_reset(struct fixture *f, gconstpointer arg)
{
    uint8_t flr = PCI_AF_CTRL_FLR;

    for (uint32_t state = STOP; state <= RESUMING; state++) {
        g_assert_cmpint(set_state(f, state), ==, 0);
        g_assert_cmpint(
            client_write(f->cl, VFIO_USER_REGION_CONFIG, 0x50 + PCI_AF_CTRL, &flr, 1), ==,
            0);
        check_state(f, RUNNING);
    }
}

/* ---- from one daemon to the next ---- */

/* What a daemon leaves of it; to be freed. */
static GByteArray *leave(struct fixture *f)
{
    GByteArray *left = g_byte_array_new();
    struct state_out out;
    guint from;

    state_out_begin(&out, left);
    from = left->len;
    migration_hand_over(f->vm, &out);
    g_byte_array_remove_range(left, 0, from);
    return left;
}

/* The next daemon has the VM, in reset and RUNNING but for this. */
static bool take(struct fixture *f, const uint8_t *data, size_t len)
{
    char error[STATE_ERROR_MAX] = "";
    struct state_in s = {data, len, error};

    migration_take_over(f->vm, &s);
    state_all_read(&s);
    return !state_failed(&s);
}

/* In any state, with half of a stream: the client goes on with it. */
static void test_adopted(struct fixture *f, gconstpointer arg)
{
    GByteArray *stream = save(f, 4096);
    uint64_t generation;

    reset(f);
    for (uint32_t state = ERROR; state <= RESUMING; state++) {
        g_autoptr(GByteArray) left = NULL, rest = NULL;
        struct migration_status was, is;
        uint32_t some = stream->len / 2;

        bring_to(f, state == RESUMING ? RUNNING : state, stream);
        if (state == RESUMING) {
            g_assert_cmpint(set_state(f, RESUMING), ==, 0);
            g_assert_cmpint(write_data(f, stream->data, some), ==, 0);
        } else if (state == STOP_COPY) {
            g_assert_cmpint(read_data(f, 8 + some, some), ==, 0);
        }
        migration_get_status(f->vm, &was);
        left = leave(f);
        generation = f->vm->identity.generation;
        reset(f);
        f->vm->identity.generation++; /* as a load does */
        g_assert_true(take(f, left->data, left->len));
        check_state(f, state);
        migration_get_status(f->vm, &is);
        g_assert_cmpuint(is.still_us, >=, was.still_us); /* it stands still on */
        is.still_us = was.still_us;
        g_assert_cmpmem(&is, sizeof(is), &was, sizeof(was));
        if (state != RUNNING) {
            g_assert_cmpuint(f->vm->identity.generation, ==, generation);
        }
        if (state == STOP_COPY) {
            rest = read_all(f, 64);
            g_assert_cmpuint(some + rest->len, ==, stream->len);
            g_assert_cmpint(set_state(f, RUNNING), ==, 0);
        } else if (state == RESUMING) {
            g_assert_cmpint(write_data(f, stream->data + some, stream->len - some), ==,
                            0);
            g_assert_cmpint(set_state(f, RUNNING), ==, 0);
        } else if (state != ERROR) {
            g_assert_cmpint(set_state(f, RUNNING), ==, 0);
        }
        reset(f);
    }
    g_byte_array_unref(stream);
}

/* Cut off it is refused; damaged it is, too, or the VM is in a state that there is. */
static void test_adopted_damage(struct fixture *f, gconstpointer arg)
{
    GByteArray *stream = save(f, 4096);

    reset(f);
    for (uint32_t state = ERROR; state <= RESUMING; state++) {
        g_autoptr(GByteArray) left = NULL;

        bring_to(f, state, stream);
        left = leave(f);
        reset(f);
        for (guint i = 0; i < left->len; i++) {
            g_assert_false(take(f, left->data, i));
            reset(f);
        }
        for (guint i = 0; i < MIN(left->len, 300u) * 8; i++) {
            left->data[i / 8] ^= 1u << i % 8;
            take(f, left->data, left->len);
            f->vm->moved = false;
            g_assert_cmpuint(get_state(f), <=, RESUMING);
            reset(f);
            left->data[i / 8] ^= 1u << i % 8;
        }
    }
    g_byte_array_unref(stream);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
#define ADD(path, fn) \
    g_test_add("/migration/" path, struct fixture, NULL, setup, fn, fixture_teardown)
    ADD("pairs", test_pairs);
    ADD("requests", test_requests);
    ADD("size", test_size);
    ADD("pieces", test_pieces);
    ADD("bad-reads", test_bad_reads);
    ADD("stalled", test_stalled);
    ADD("unread", test_unread);
    ADD("shares", test_shares);
    ADD("too-long-for-restart", test_too_long_for_restart);
    ADD("failed-restart", test_failed_restart);
    g_test_add("/migration/bad-writes", struct fixture, NULL, setup_small,
               test_bad_writes, fixture_teardown);
    ADD("bad-streams", test_bad_streams);
    ADD("registers", test_registers);
    ADD("leave", test_leave);
    ADD("fault", test_fault);
    ADD("function-reset", test_function_reset);
    ADD("adopted", test_adopted);
    ADD("adopted-damage", test_adopted_damage);
    return g_test_run();
}
