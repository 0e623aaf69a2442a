/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The numbers of a structure by their place and size; record.h has what for. */
#include "record.h"

uint32_t record_width(const struct record_field *field)
{
    uint32_t width = 0;

    for (; field->kind != RECORD_END; field++) {
        width += field->width;
    }
    return width;
}

uint64_t record_number(const struct record_field *field, const void *object)
{
    const void *p = (const uint8_t *)object + field->at;

    switch (field->size) {
    case sizeof(uint8_t):
        return __atomic_load_n((const uint8_t *)p, __ATOMIC_RELAXED);
    case sizeof(uint16_t):
        return __atomic_load_n((const uint16_t *)p, __ATOMIC_RELAXED);
    case sizeof(uint32_t):
        return __atomic_load_n((const uint32_t *)p, __ATOMIC_RELAXED);
    default:
        return __atomic_load_n((const uint64_t *)p, __ATOMIC_RELAXED);
    }
}

void record_set_number(const struct record_field *field, void *object, uint64_t value)
{
    void *p = (uint8_t *)object + field->at;

    switch (field->size) {
    case sizeof(uint8_t):
        __atomic_store_n((uint8_t *)p, (uint8_t)value, __ATOMIC_RELAXED);
        break;
    case sizeof(uint16_t):
        __atomic_store_n((uint16_t *)p, (uint16_t)value, __ATOMIC_RELAXED);
        break;
    case sizeof(uint32_t):
        __atomic_store_n((uint32_t *)p, (uint32_t)value, __ATOMIC_RELAXED);
        break;
    default:
        __atomic_store_n((uint64_t *)p, value, __ATOMIC_RELAXED);
    }
}
