/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The state stream: what a guest can observe of its device, as bytes, for migration,
 * snapshots and a daemon that is replaced.  state_stream.c has the format; who has a
 * structure saves and loads it, and knows what in it must hold.
 */
#ifndef PVRDMAD_BASE_STATE_STREAM_H
#define PVRDMAD_BASE_STATE_STREAM_H

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/record.h"

/* Of the stream as a whole; a section has its own. */
#define STATE_VERSION 1u

/* A tag is four characters, as they stand in the stream. */
#define STATE_TAG(a, b, c, d) \
    ((uint32_t)(a) | (uint32_t)(b) << 8 | (uint32_t)(c) << 16 | (uint32_t)(d) << 24)

/* Of a section: who does not know it may go on without it. */
#define STATE_OPTIONAL 1u

/* ---- writing ---- */

struct state_out {
    GByteArray *bytes;
    guint section; /* where the head of the open one is; 0: none is open */
    guint max;     /* of bytes->len; who knows better sets it lower */
    bool cut;      /* there was more: what is beyond has been left out */
};
#define STATE_OUT_MAX (1u << 31)

/* The stream is put behind what @bytes has. */
void state_out_begin(struct state_out *s, GByteArray *bytes);
void state_out_end(struct state_out *s);

/* Sections are not nested. */
void state_section_begin(struct state_out *s, uint32_t tag, uint16_t version,
                         uint16_t flags);
void state_section_end(struct state_out *s);
/* "CAPS 1" and an end of line: a section, as a daemon that reads such ones calls it. */
void state_section_name(GString *text, uint32_t tag, uint16_t version);

void state_put_u8(struct state_out *s, uint8_t v);
void state_put_u16(struct state_out *s, uint16_t v);
void state_put_u32(struct state_out *s, uint32_t v);
void state_put_u64(struct state_out *s, uint64_t v);
/* Bytes as they are: GIDs, memory that the guest has in its own order. */
void state_put_bytes(struct state_out *s, const void *data, gsize len);
void state_put_text(struct state_out *s, const char *text);
/* The fields that RECORD @record has of *@object. */
#define state_put_record(s, record, object) \
    state_put_fields((s), record(object), (object))
void state_put_fields(struct state_out *s, const struct record_field *field,
                      const void *object);

/* ---- reading ---- */

/*
 * After the first failure everything reads as zeros, and more failures are not heard of:
 * a loop has to be bounded by what the reader itself holds (state_get_count).
 */
struct state_in {
    const uint8_t *at;
    uint64_t left;
    char *error; /* [STATE_ERROR_MAX] of the whole stream; "": none */
};
#define STATE_ERROR_MAX 160u

struct state_section {
    uint32_t tag;
    uint16_t version;
    uint16_t flags;
    struct state_in in; /* what is in it */
};

/* Checks the head.  @error has STATE_ERROR_MAX bytes and stays valid. */
void state_in_begin(struct state_in *s, const uint8_t *data, uint64_t len, char *error);
/* The next section; false: there are no more, or it failed. */
bool state_section_next(struct state_in *s, struct state_section *section);

bool state_failed(const struct state_in *s);
void state_fail(struct state_in *s, const char *format, ...) G_GNUC_PRINTF(2, 3);
/* Fails if something is left of a section, or of the stream. */
void state_all_read(struct state_in *s);

uint8_t state_get_u8(struct state_in *s);
uint16_t state_get_u16(struct state_in *s);
uint32_t state_get_u32(struct state_in *s);
uint64_t state_get_u64(struct state_in *s);
/* 0 or 1, all else fails. */
bool state_get_bool(struct state_in *s);
void state_get_bytes(struct state_in *s, void *data, uint64_t len);
/* To be freed, never NULL; without control characters. */
char *state_get_text(struct state_in *s);
/* What state_put_record() has put; a number that is too large fails, and is 0. */
#define state_get_record(s, record, object) \
    state_get_fields((s), record(object), (object))
void state_get_fields(struct state_in *s, const struct record_field *field, void *object);
/* A number of things of @size bytes each, at least, that follow; more than @max fail. */
uint32_t state_get_count(struct state_in *s, uint32_t max, uint32_t size);

#endif /* PVRDMAD_BASE_STATE_STREAM_H */
