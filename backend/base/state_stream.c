/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The format of the state stream.  All numbers are little-endian.
 *
 *   head      magic "pvrdmaVM" (8), version u32, 0 u32
 *   sections  tag u32, version u16, flags u16, length of what follows u64, ...
 *   end       a section with the tag "END " and nothing in it
 *
 * Nothing comes behind the end.  A section of an unknown tag is skipped if it is
 * optional, a version that the reader does not have is an error; both are for whoever
 * reads the sections to say.
 *
 * The writer stops where its limit is (GLib ends the process for an array of 4 GiB).  The
 * reader trusts nothing: lengths are compared with what is left, never added up.
 *
 * Threads: none of its own, and no state but the caller's.
 */
#include "state_stream.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#define SECTION_SIZE 16u
#define TAG_END      STATE_TAG('E', 'N', 'D', ' ')
#define MAX_TEXT     65536u

static const uint8_t magic[8] = {'p', 'v', 'r', 'd', 'm', 'a', 'V', 'M'};

/* ---- writing ---- */

void state_put_bytes(struct state_out *s, const void *data, gsize len)
{
    gsize room = s->max - MIN(s->bytes->len, s->max);

    if (len > room) {
        s->cut = true;
        len = room;
    }
    if (len) {
        g_byte_array_append(s->bytes, data, (guint)len);
    }
}

static void put_number(struct state_out *s, uint64_t v, uint32_t width)
{
    v = GUINT64_TO_LE(v);
    state_put_bytes(s, &v, width);
}

void state_put_u8(struct state_out *s, uint8_t v)
{
    put_number(s, v, sizeof(v));
}

void state_put_u16(struct state_out *s, uint16_t v)
{
    put_number(s, v, sizeof(v));
}

void state_put_u32(struct state_out *s, uint32_t v)
{
    put_number(s, v, sizeof(v));
}

void state_put_u64(struct state_out *s, uint64_t v)
{
    put_number(s, v, sizeof(v));
}

void state_put_fields(struct state_out *s, const struct record_field *field,
                      const void *object)
{
    for (; field->kind != RECORD_END; field++) {
        if (field->kind == RECORD_NUMBER) {
            put_number(s, record_number(field, object), field->width);
        } else {
            state_put_bytes(s, (const uint8_t *)object + field->at, field->width);
        }
    }
}

void state_put_text(struct state_out *s, const char *text)
{
    state_put_u32(s, (uint32_t)strlen(text));
    state_put_bytes(s, text, strlen(text));
}

void state_out_begin(struct state_out *s, GByteArray *bytes)
{
    *s = (struct state_out){.bytes = bytes, .max = STATE_OUT_MAX};
    state_put_bytes(s, magic, sizeof(magic));
    state_put_u32(s, STATE_VERSION);
    state_put_u32(s, 0);
}

void state_out_end(struct state_out *s)
{
    state_section_begin(s, TAG_END, 1, 0);
    state_section_end(s);
}

void state_section_begin(struct state_out *s, uint32_t tag, uint16_t version,
                         uint16_t flags)
{
    g_assert(!s->section);
    s->section = s->bytes->len;
    state_put_u32(s, tag);
    state_put_u16(s, version);
    state_put_u16(s, flags);
    state_put_u64(s, 0); /* its length, once that is known */
}

void state_section_end(struct state_out *s)
{
    uint64_t len = GUINT64_TO_LE(s->bytes->len - s->section - SECTION_SIZE);

    if (!s->cut) { /* else its head may not be there */
        memcpy(s->bytes->data + s->section + 8, &len, sizeof(len));
    }
    s->section = 0;
}

void state_section_name(GString *text, uint32_t tag, uint16_t version)
{
    for (unsigned i = 0; i < 4; i++) {
        g_string_append_c(text, (char)(tag >> 8 * i));
    }
    g_string_append_printf(text, " %u\n", version);
}

/* ---- reading ---- */

bool state_failed(const struct state_in *s)
{
    return s->error[0];
}

void state_fail(struct state_in *s, const char *format, ...)
{
    va_list ap;

    if (!state_failed(s)) {
        va_start(ap, format);
        g_vsnprintf(s->error, STATE_ERROR_MAX, format, ap);
        va_end(ap);
    }
    s->left = 0;
}

void state_all_read(struct state_in *s)
{
    if (s->left) {
        state_fail(s, "%" G_GUINT64_FORMAT " bytes too many", s->left);
    }
}

void state_get_bytes(struct state_in *s, void *data, uint64_t len)
{
    if (len == 0) {
        return;
    }
    if (state_failed(s) || len > s->left) {
        memset(data, 0, len);
        state_fail(s, "it ends too early");
        return;
    }
    memcpy(data, s->at, len);
    s->at += len;
    s->left -= len;
}

static uint64_t get_number(struct state_in *s, uint32_t width)
{
    uint64_t v = 0;

    state_get_bytes(s, &v, width);
    return GUINT64_FROM_LE(v);
}

uint8_t state_get_u8(struct state_in *s)
{
    return (uint8_t)get_number(s, sizeof(uint8_t));
}

uint16_t state_get_u16(struct state_in *s)
{
    return (uint16_t)get_number(s, sizeof(uint16_t));
}

uint32_t state_get_u32(struct state_in *s)
{
    return (uint32_t)get_number(s, sizeof(uint32_t));
}

uint64_t state_get_u64(struct state_in *s)
{
    return get_number(s, sizeof(uint64_t));
}

void state_get_fields(struct state_in *s, const struct record_field *field, void *object)
{
    for (; field->kind != RECORD_END; field++) {
        uint64_t v;

        if (field->kind != RECORD_NUMBER) {
            state_get_bytes(s, (uint8_t *)object + field->at, field->width);
            continue;
        }
        v = get_number(s, field->width);
        if (v > field->max) {
            state_fail(s, "%s is %" PRIu64 ", must be at most %" PRIu64, field->name, v,
                       field->max);
            v = 0;
        }
        record_set_number(field, object, v);
    }
}

bool state_get_bool(struct state_in *s)
{
    uint8_t v = state_get_u8(s);

    if (v > 1) {
        state_fail(s, "value %u, must be 0 or 1", v);
    }
    return v == 1;
}

uint32_t state_get_count(struct state_in *s, uint32_t max, uint32_t size)
{
    uint32_t n = state_get_u32(s);

    if (n > max || n > s->left / MAX(size, 1)) {
        state_fail(s, "count %u, must be at most %u", n, max);
        return 0;
    }
    return n;
}

char *state_get_text(struct state_in *s)
{
    uint32_t len = state_get_count(s, MAX_TEXT, 1);
    char *text = g_malloc0((gsize)len + 1);

    state_get_bytes(s, text, len);
    for (uint32_t i = 0; i < len; i++) {
        if (g_ascii_iscntrl(text[i])) {
            state_fail(s, "a text with control characters");
            text[0] = 0;
            break;
        }
    }
    return text;
}

void state_in_begin(struct state_in *s, const uint8_t *data, uint64_t len, char *error)
{
    uint8_t have[sizeof(magic)];
    uint32_t version;

    error[0] = '\0';
    *s = (struct state_in){.at = data, .left = len, .error = error};
    state_get_bytes(s, have, sizeof(have));
    version = state_get_u32(s);
    state_get_u32(s);
    if (state_failed(s) || memcmp(have, magic, sizeof(magic)) != 0) {
        state_fail(s, "it is not the state of a device");
    } else if (version != STATE_VERSION) {
        state_fail(s, "it has version %u, this daemon reads %u", version, STATE_VERSION);
    }
}

bool state_section_next(struct state_in *s, struct state_section *section)
{
    uint64_t len;

    section->tag = state_get_u32(s);
    section->version = state_get_u16(s);
    section->flags = state_get_u16(s);
    len = state_get_u64(s);
    if (len > s->left) {
        state_fail(s, "it ends too early");
    }
    if (state_failed(s)) {
        return false;
    }
    section->in = (struct state_in){.at = s->at, .left = len, .error = s->error};
    s->at += len;
    s->left -= len;
    if (section->tag == TAG_END) {
        state_all_read(&section->in);
        state_all_read(s);
        return false;
    }
    return true;
}
