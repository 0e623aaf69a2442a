/* SPDX-License-Identifier: GPL-2.0-or-later */
/* CRC32C (Castagnoli) over bytes that come in pieces; see crc32c.c. */
#ifndef PVRDMAD_IWARP_WIRE_CRC32C_H
#define PVRDMAD_IWARP_WIRE_CRC32C_H

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

#define CRC32C_INIT 0xffffffffu
#define CRC32C_SIZE 4u

uint32_t crc32c_add(uint32_t crc, const void *data, size_t len);

/* The bytes that go on the wire: MPA and iSCSI send the lowest first. */
static inline void crc32c_put(uint32_t crc, uint8_t *out)
{
    crc = GUINT32_TO_LE(~crc);
    memcpy(out, &crc, sizeof(crc));
}

static inline bool crc32c_is(uint32_t crc, const uint8_t *in)
{
    uint8_t right[CRC32C_SIZE];

    crc32c_put(crc, right);
    return memcmp(right, in, sizeof(right)) == 0;
}

#endif /* PVRDMAD_IWARP_WIRE_CRC32C_H */
