/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Fixed records: which members of a structure go over the wire, in which order, how wide
 * and up to which value.  One table is used to write a record and to read it, so that
 * neither can have a field that the other lacks; base/state_stream.c does so with
 * little-endian numbers, transport/link/msg.c with big-endian ones.
 *
 *     RECORD(sge_record, struct pvrdma_sge, FIELD(addr), FIELD(length), FIELD(lkey))
 *
 * defines sge_record(), which takes a struct pvrdma_sge, for nothing but the compiler to
 * see that, and returns the table.  What is neither an unsigned number, a bool nor an
 * array of bytes or characters does not compile as a field; nor does a pointer.  An enum
 * that the compiler keeps in an unsigned number does, as four bytes without a bound.
 *
 * Threads: tables are constant.  A member may be _Atomic; of those that are not nobody
 * else writes any meanwhile.
 */
#ifndef PVRDMAD_BASE_RECORD_H
#define PVRDMAD_BASE_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum record_kind {
    RECORD_END, /* behind the last field */
    RECORD_NUMBER,
    RECORD_BYTES, /* as they are, all of the array */
    RECORD_TEXT, /* up to the NUL; how, and how long it may be, whoever writes it knows */
};

struct record_field {
    enum record_kind kind;
    uint32_t at;    /* in the structure */
    uint32_t size;  /* there */
    uint32_t width; /* on the wire; of a text not known */
    uint64_t max;   /* of a number, when it is read */
    const char *name;
};

/* ---- in a RECORD ---- */

#define RECORD_FIELD(kind, m, width, max)                                               \
    {                                                                                   \
        (kind), offsetof(__typeof__(*record), m), sizeof(record->m), (width), (max), #m \
    }

#define RECORD_UINT(type) \
    const type * : RECORD_NUMBER, const _Atomic(type) * : RECORD_NUMBER
#define RECORD_ARRAY(type, x, kind) const type(*)[sizeof(x)] : (kind)
#define RECORD_KIND(x)                                                             \
    _Generic(&(x), RECORD_UINT(bool), RECORD_UINT(uint8_t), RECORD_UINT(uint16_t), \
             RECORD_UINT(uint32_t), RECORD_UINT(uint64_t),                         \
             RECORD_ARRAY(uint8_t, x, RECORD_BYTES),                               \
             RECORD_ARRAY(char, x, RECORD_BYTES))

/* A member, as wide as it is. */
#define FIELD(m) FIELD_MAX(m, _Generic(record->m, bool : 1, default : UINT64_MAX))
#define FIELD_MAX(m, max) \
    RECORD_FIELD(RECORD_KIND(record->m), m, sizeof(record->m), (max))
/* An enumeration, which goes as one byte. */
#define FIELD_U8(m, max) \
    RECORD_FIELD(_Generic(record->m, uint32_t : RECORD_NUMBER), m, 1, (max))
#define FIELD_TEXT(m)                                                                    \
    RECORD_FIELD(_Generic(&record->m, RECORD_ARRAY(char, record->m, RECORD_TEXT)), m, 0, \
                 0)

#define RECORD(name, type, ...)                                                          \
    static inline const struct record_field *name(const type *record)                    \
    {                                                                                    \
        static const struct record_field fields[] = {__VA_ARGS__, {.kind = RECORD_END}}; \
                                                                                         \
        (void)record;                                                                    \
        return fields;                                                                   \
    }

/* Bytes of a record without texts. */
#define RECORD_WIDTH(name) record_width(name(NULL))
uint32_t record_width(const struct record_field *field);

/* The number that a field has, and the other way; @object: the structure. */
uint64_t record_number(const struct record_field *field, const void *object);
void record_set_number(const struct record_field *field, void *object, uint64_t value);

#endif /* PVRDMAD_BASE_RECORD_H */
