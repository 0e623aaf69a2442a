/* SPDX-License-Identifier: GPL-2.0-or-later */
/* RDMAP and its extensions: operations, their headers, Terminates; see rdmap.c. */
#ifndef PVRDMAD_IWARP_WIRE_RDMAP_H
#define PVRDMAD_IWARP_WIRE_RDMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pvrdma/abi.h"
#include "transport/iwarp/wire/ddp.h"
#include "transport/iwarp/wire/errors.h"

enum rdmap_opcode {
    RDMAP_WRITE = 0,
    RDMAP_READ_REQUEST = 1,
    RDMAP_READ_RESPONSE = 2,
    RDMAP_SEND = 3,
    RDMAP_SEND_INV = 4,
    RDMAP_SEND_SE = 5,
    RDMAP_SEND_SE_INV = 6,
    RDMAP_TERMINATE = 7,
    /* RFC 7306. */
    RDMAP_IMM = 8,
    RDMAP_IMM_SE = 9,
    RDMAP_ATOMIC_REQUEST = 10,
    RDMAP_ATOMIC_RESPONSE = 11,
    RDMAP_OPCODES
};

/* Sets of opcodes: what a peer may send. */
#define RDMAP_STANDARD 0x00ffu /* RFC 5040 */
#define RDMAP_EXTENDED 0x0fffu /* and RFC 7306 */

enum { RDMAP_QN_SEND, RDMAP_QN_REQUEST, RDMAP_QN_TERMINATE, RDMAP_QN_ATOMIC, RDMAP_QNS };

#define RDMAP_READ_LEN          28u
#define RDMAP_IMM_LEN           8u
#define RDMAP_ATOMIC_LEN        52u
#define RDMAP_ATOMIC_RESULT_LEN 12u
#define RDMAP_TERMINATE_LEN     4u /* with nothing behind it */
#define RDMAP_MAX_TERMINATE \
    (DDP_UNTAGGED_LEN + RDMAP_TERMINATE_LEN + 2u + DDP_MAX_LEN + RDMAP_READ_LEN)
/* DDP's and RDMAP's headers together, at most. */
#define RDMAP_MAX_HEAD RDMAP_MAX_TERMINATE

/* What every message of an opcode has in common. */
struct rdmap_op {
    bool tagged;
    bool solicited;
    bool invalidates;
    bool receives; /* takes a receive buffer, or may */
    uint8_t qn;
    uint8_t header; /* bytes behind DDP's header; not 0: that is all there is */
};

extern const struct rdmap_op rdmap_ops[RDMAP_OPCODES];

struct rdmap_read {
    uint32_t sink_stag;
    uint64_t sink_to;
    uint32_t len;
    uint32_t src_stag;
    uint64_t src_to;
};

/* What an Immediate Data's second word says: ours, and zero between others. */
#define RDMAP_IMM_OF_WRITE 0u /* it ends the Write before it */
#define RDMAP_IMM_OF_SEND  1u /* it belongs to the Send behind it */
#define RDMAP_IMM_OF_NEXT  2u /* it belongs to the Write behind it */

struct rdmap_imm {
    uint32_t imm;
    uint32_t of;
};

enum rdmap_atomic_op { RDMAP_FETCH_ADD = 0, RDMAP_CMP_SWAP = 2 };

struct rdmap_atomic {
    uint8_t op;
    uint32_t id;
    uint32_t stag;
    uint64_t to;
    uint64_t data, mask; /* to add or to put there */
    uint64_t compare, compare_mask;
};

struct rdmap_atomic_result {
    uint32_t id;
    uint64_t value; /* that was there */
};

struct rdmap_terminate {
    uint8_t layer, etype, code;
    bool swapped; /* it is in siw's layout */
    /* Of the segment that it complains about, in the input: none, or what there is. */
    uint16_t segment_len;   /* 0: not told */
    const uint8_t *segment; /* its DDP header */
    const uint8_t *read;    /* its RDMAP header, a Read Request's */
};

/* A segment's headers. */
struct rdmap_segment {
    struct ddp_header ddp;
    enum rdmap_opcode opcode;
    union {
        struct rdmap_read read;
        struct rdmap_imm imm;
        struct rdmap_atomic atomic;
        struct rdmap_atomic_result result;
        struct rdmap_terminate terminate; /* only of what came */
    };
    /* Of what came: where the payload begins, and how much of it there is. */
    uint32_t head_len, payload_len;
};

void rdmap_begin(struct rdmap_segment *s, enum rdmap_opcode opcode);
void rdmap_plain_atomic(struct rdmap_segment *s, enum rdmap_atomic_op op, uint64_t data,
                        uint64_t compare);
bool rdmap_atomic_is_plain(const struct rdmap_atomic *a);
size_t rdmap_put(const struct rdmap_segment *s, uint8_t out[RDMAP_MAX_HEAD]);
size_t rdmap_put_terminate(enum iwarp_error error, const uint8_t *head, size_t have,
                           uint32_t ulpdu_len, uint8_t out[RDMAP_MAX_TERMINATE]);

unsigned rdmap_head_len(const uint8_t first[2]);
enum iwarp_error rdmap_get(const uint8_t *head, size_t have, uint32_t ulpdu_len,
                           unsigned permitted, struct rdmap_segment *s);

bool rdmap_error_known(unsigned layer, unsigned etype, unsigned code);

#endif /* PVRDMAD_IWARP_WIRE_RDMAP_H */
