/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What can be wrong with a peer's bytes, in all layers of iWARP: the layer, the type
 * and the code of the Terminate that tells it (RFC 5040 4.8, RFC 5041 8.2, RFC 5044 8,
 * RFC 6581 8).  The low 16 bits are that message's first two bytes; the bit above tells
 * RDMAP's local error 0/0/00 from "nothing is wrong".
 */
#ifndef PVRDMAD_IWARP_WIRE_ERRORS_H
#define PVRDMAD_IWARP_WIRE_ERRORS_H

#define IWARP_LAYER_RDMAP 0u
#define IWARP_LAYER_DDP   1u
#define IWARP_LAYER_MPA   2u

#define IWARP_ERROR(layer, etype, code) \
    (int)(0x10000u | (layer) << 12 | (etype) << 8 | (code))

enum iwarp_error {
    IWARP_OK = 0,

    RDMAP_LOCAL_CATASTROPHIC = IWARP_ERROR(0u, 0u, 0x00u),
    RDMAP_BAD_STAG = IWARP_ERROR(0u, 1u, 0x00u),
    RDMAP_BAD_BOUNDS = IWARP_ERROR(0u, 1u, 0x01u),
    RDMAP_NO_ACCESS = IWARP_ERROR(0u, 1u, 0x02u),
    RDMAP_OTHER_STREAM = IWARP_ERROR(0u, 1u, 0x03u),
    RDMAP_TO_WRAP = IWARP_ERROR(0u, 1u, 0x04u),
    RDMAP_NOT_INVALIDATED = IWARP_ERROR(0u, 1u, 0x09u),
    RDMAP_PROTECTION = IWARP_ERROR(0u, 1u, 0xffu),
    RDMAP_BAD_VERSION = IWARP_ERROR(0u, 2u, 0x05u),
    RDMAP_BAD_OPCODE = IWARP_ERROR(0u, 2u, 0x06u),
    RDMAP_STREAM_CATASTROPHIC = IWARP_ERROR(0u, 2u, 0x07u),
    RDMAP_GLOBAL_CATASTROPHIC = IWARP_ERROR(0u, 2u, 0x08u),
    RDMAP_CANNOT_INVALIDATE = IWARP_ERROR(0u, 2u, 0x09u),
    RDMAP_OPERATION = IWARP_ERROR(0u, 2u, 0xffu),

    DDP_LOCAL_CATASTROPHIC = IWARP_ERROR(1u, 0u, 0x00u),
    DDP_TAGGED_BAD_STAG = IWARP_ERROR(1u, 1u, 0x00u),
    DDP_TAGGED_BAD_BOUNDS = IWARP_ERROR(1u, 1u, 0x01u),
    DDP_TAGGED_OTHER_STREAM = IWARP_ERROR(1u, 1u, 0x02u),
    DDP_TAGGED_TO_WRAP = IWARP_ERROR(1u, 1u, 0x03u),
    DDP_TAGGED_BAD_VERSION = IWARP_ERROR(1u, 1u, 0x04u),
    DDP_UNTAGGED_BAD_QN = IWARP_ERROR(1u, 2u, 0x01u),
    DDP_UNTAGGED_NO_BUFFER = IWARP_ERROR(1u, 2u, 0x02u),
    DDP_UNTAGGED_BAD_MSN = IWARP_ERROR(1u, 2u, 0x03u),
    DDP_UNTAGGED_BAD_MO = IWARP_ERROR(1u, 2u, 0x04u),
    DDP_UNTAGGED_TOO_LONG = IWARP_ERROR(1u, 2u, 0x05u),
    DDP_UNTAGGED_BAD_VERSION = IWARP_ERROR(1u, 2u, 0x06u),

    MPA_TCP_LOST = IWARP_ERROR(2u, 0u, 0x01u),
    MPA_BAD_CRC = IWARP_ERROR(2u, 0u, 0x02u),
    MPA_BAD_LENGTH = IWARP_ERROR(2u, 0u, 0x03u),
    MPA_BAD_STARTUP = IWARP_ERROR(2u, 0u, 0x04u),
    MPA_LOCAL_CATASTROPHIC = IWARP_ERROR(2u, 0u, 0x05u),
    MPA_SMALL_IRD = IWARP_ERROR(2u, 0u, 0x06u),
    MPA_NO_RTR = IWARP_ERROR(2u, 0u, 0x07u),
};

static inline unsigned iwarp_error_layer(enum iwarp_error e)
{
    return ((unsigned)e >> 12) & 15;
}

static inline unsigned iwarp_error_type(enum iwarp_error e)
{
    return ((unsigned)e >> 8) & 15;
}

static inline unsigned iwarp_error_code(enum iwarp_error e)
{
    return (unsigned)e & 255;
}

#endif /* PVRDMAD_IWARP_WIRE_ERRORS_H */
