/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Numbers on the wire: big-endian, at any address. */
#ifndef PVRDMAD_IWARP_WIRE_BYTES_H
#define PVRDMAD_IWARP_WIRE_BYTES_H

#include <glib.h>
#include <stdint.h>
#include <string.h>

static inline void put_be16(uint8_t *p, uint16_t v)
{
    v = GUINT16_TO_BE(v);
    memcpy(p, &v, sizeof(v));
}

static inline void put_be32(uint8_t *p, uint32_t v)
{
    v = GUINT32_TO_BE(v);
    memcpy(p, &v, sizeof(v));
}

static inline void put_be64(uint8_t *p, uint64_t v)
{
    v = GUINT64_TO_BE(v);
    memcpy(p, &v, sizeof(v));
}

static inline uint16_t get_be16(const uint8_t *p)
{
    uint16_t v;

    memcpy(&v, p, sizeof(v));
    return GUINT16_FROM_BE(v);
}

static inline uint32_t get_be32(const uint8_t *p)
{
    uint32_t v;

    memcpy(&v, p, sizeof(v));
    return GUINT32_FROM_BE(v);
}

static inline uint64_t get_be64(const uint8_t *p)
{
    uint64_t v;

    memcpy(&v, p, sizeof(v));
    return GUINT64_FROM_BE(v);
}

#endif /* PVRDMAD_IWARP_WIRE_BYTES_H */
