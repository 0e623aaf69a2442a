/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A VM's part in a migration goes from one daemon to the next.
 *
 * Whatever state it is in goes along, with a stream that the client has read or written a
 * part of: the new daemon goes on at the byte where the old one was.  The pause of a VM
 * that is not RUNNING is made anew on the migration's account, so whoever set it
 * standing still sets it going.  Its addresses keep their generation, which is in a
 * stream that somebody may have by now: with a higher one the target's claim would be
 * too late.
 *
 * All is checked as if a guest had sent it.  Main thread; the data path stands still.
 */
#include <string.h>

#include "datapath/datapath.h"
#include "frontend/migration_internal.h"

enum flag {
    HANDED_OVER = 1,
    LOADED = 2,
    SAVED = 4,
    PAST = 8,
    MOVED = 16,
    PASSED_ON = 32,
    PUT_BACK = 64,
    ALL_FLAGS = 127
};

/* Of a VM without a VMM nothing of the kind counts any more. */
static uint8_t flags_of(const struct vm *vm, const struct migration *m)
{
    if (!vm->attached) {
        return 0;
    }
    return (uint8_t)((m->handed_over ? HANDED_OVER : 0) | (m->loaded ? LOADED : 0) |
                     (m->saved ? SAVED : 0) | (m->past ? PAST : 0) |
                     (vm->moved ? MOVED : 0) | (m->passed_on ? PASSED_ON : 0) |
                     (m->state == RESUMING && m->put_back ? PUT_BACK : 0));
}

RECORD(last_record, struct migration_status, FIELD_U8(kind, MIGRATION_LOADED),
       FIELD(bytes), FIELD(done), FIELD(quiesce_us), FIELD(save_us), FIELD(load_us),
       FIELD(resume_us), FIELD(still_us), FIELD(error))

static uint64_t stream_bytes(const struct migration *m)
{
    return m->out ? m->out->len : m->got;
}

uint64_t migration_stream_bytes(const struct vm *vm)
{
    return vm->migration ? stream_bytes(vm->migration) : 0;
}

/* The stream, and how far the client is with it: all of it is at the next daemon's. */
static void stream_hand_over(const struct migration *m, struct state_out *s)
{
    uint64_t len = stream_bytes(m);

    state_put_u64(s, len);
    state_put_u64(s, m->out ? m->read : 0);
    if (len) {
        state_put_bytes(s, m->out ? m->out->data : m->in, len);
    }
}

RECORD(migration_record, struct migration, FIELD(clock), FIELD(before.owner[0]),
       FIELD(before.owner[1]), FIELD(before.generation), FIELD(former[0]),
       FIELD(former[1]), FIELD(former_generation))

void migration_hand_over(struct vm *vm, struct state_out *s)
{
    const struct migration *m = migration_get(vm);

    state_put_u8(s, (uint8_t)m->state);
    state_put_u8(s, flags_of(vm, m));
    state_put_record(s, migration_record, m);
    state_put_u64(s, vm->identity.generation);
    /* The clock is the host's, and goes on. */
    state_put_u64(s, (uint64_t)m->stopped_at);
    state_put_u64(s, vm->attached ? (uint64_t)vm->moved_at : 0);
    state_put_record(s, last_record, &m->last);
    stream_hand_over(m, s);
}

/* A time that has been. */
static gint64 time_take_over(struct state_in *s)
{
    uint64_t us = state_get_u64(s);

    if (us > (uint64_t)g_get_monotonic_time()) {
        state_fail(s, "a time in the future");
        return 0;
    }
    return (gint64)us;
}

static void last_take_over(struct migration_status *last, struct state_in *s)
{
    state_get_record(s, last_record, last);
    if (last->error[sizeof(last->error) - 1] || !g_utf8_validate(last->error, -1, NULL)) {
        state_fail(s, "a reason that is not valid text");
        last->error[0] = '\0';
    }
}

static void stream_take_over(struct vm *vm, struct migration *m, struct state_in *s)
{
    uint64_t len = state_get_u64(s), read = state_get_u64(s);

    if (state_failed(s) || len > s->left || read > len ||
        (m->state == STOP_COPY ? len > UINT32_MAX : read > 0) ||
        (m->state != STOP_COPY && m->state != RESUMING && len > 0) ||
        (len > 0 && len > vm_state_max(vm))) {
        state_fail(s, "invalid state stream");
        return;
    }
    if (m->state == STOP_COPY) {
        m->out = g_byte_array_sized_new((guint)len);
        g_byte_array_append(m->out, s->at, (guint)len);
        m->read = (uint32_t)read;
        migration_came(m);
    } else if (len > 0 && migration_make_room(m, len)) {
        memcpy(m->in, s->at, len);
        m->got = len;
        migration_came(m);
    } else if (len > 0) {
        state_fail(s, "no memory for its stream");
    }
    s->at += len;
    s->left -= len;
}

/* It has not moved, although its state was loaded: it is of the former generation. */
static void set_flags(struct vm *vm, struct migration *m, unsigned flags,
                      uint64_t generation)
{
    m->handed_over = flags & HANDED_OVER;
    m->loaded = flags & LOADED;
    m->saved = flags & SAVED;
    m->past = flags & PAST;
    m->passed_on = flags & PASSED_ON;
    m->put_back = flags & PUT_BACK;
    vm->moved = flags & MOVED;
    if (vm->attached) {
        vm->identity.generation = generation;
    }
}

void migration_take_over(struct vm *vm, struct state_in *s)
{
    struct migration *m = migration_get(vm);
    uint8_t state = state_get_u8(s), flags = state_get_u8(s);
    uint64_t generation;

    state_get_record(s, migration_record, m);
    generation = state_get_u64(s);
    if (state > RESUMING || (flags & ~ALL_FLAGS) || (flags & PAST && !(flags & LOADED)) ||
        (flags & PASSED_ON && !(flags & LOADED)) || (flags & MOVED && flags & LOADED) ||
        (state == RUNNING && flags & LOADED) || (state != RESUMING && flags & PUT_BACK) ||
        (!vm->attached && (flags || state != RUNNING)) ||
        (vm->attached && (generation == 0 || generation == UINT64_MAX))) {
        state_fail(s, "invalid state of the migration");
    }
    m->stopped_at = time_take_over(s);
    vm->moved_at = time_take_over(s);
    last_take_over(&m->last, s);
    if (!state_failed(s)) {
        m->state = state;
        stream_take_over(vm, m, s);
    }
    if (state_failed(s)) {
        migration_drop_streams(m);
        m->state = RUNNING;
        return;
    }
    if (vm->attached) {
        set_flags(vm, m, flags, generation);
    }
    if (m->state != RUNNING) {
        datapath_pause(vm);
    }
}

bool migration_owns(const struct vm *vm)
{
    return !vm->moved && !(vm->migration && vm->migration->loaded);
}
