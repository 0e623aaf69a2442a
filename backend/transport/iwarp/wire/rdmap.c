/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * RDMAP (RFC 5040) and its extensions (RFC 7306): which messages there are, how their
 * headers look, and what a Terminate says.
 *
 * rdmap_get() takes the headers of one segment and finds whatever is wrong with them by
 * themselves; order (ddp_queue_take()), keys, buffers and limits are the engine's.
 * An operation with a header of its own is one segment with nothing behind it.
 *
 * A Terminate that came is not judged: the peer has given up, whatever it says.  siw on
 * a little-endian host has both nibbles of the first byte and the three flags in the
 * wrong order; what makes no sense as the RFC has it and does so in that order is read
 * so.
 *
 * Invariants: pure functions; nothing is read behind the length that was given; a
 * parsed Terminate's pointers lie in the input.
 *
 * Sources: RFC 5040 4 (headers), 4.8 (Terminate), 7 (errors); RFC 7306 4 to 6.
 */
#include <glib.h>

#include "transport/iwarp/wire/bytes.h"
#include "transport/iwarp/wire/rdmap.h"

#define RV_MASK     0xc0u
#define RV          0x40u
#define OPCODE_MASK 0x0fu

#define TERM_M 0x80u /* the segment's length is there */
#define TERM_D 0x40u /* its DDP header */
#define TERM_R 0x20u /* its RDMAP header */
/* siw's. */
#define SWAPPED_M 0x01u
#define SWAPPED_D 0x02u
#define SWAPPED_R 0x04u

const struct rdmap_op rdmap_ops[RDMAP_OPCODES] = {
    [RDMAP_WRITE] = {.tagged = true},
    [RDMAP_READ_REQUEST] = {.qn = RDMAP_QN_REQUEST, .header = RDMAP_READ_LEN},
    [RDMAP_READ_RESPONSE] = {.tagged = true},
    [RDMAP_SEND] = {.receives = true},
    [RDMAP_SEND_INV] = {.receives = true, .invalidates = true},
    [RDMAP_SEND_SE] = {.receives = true, .solicited = true},
    [RDMAP_SEND_SE_INV] = {.receives = true, .invalidates = true, .solicited = true},
    [RDMAP_TERMINATE] = {.qn = RDMAP_QN_TERMINATE, .header = RDMAP_TERMINATE_LEN},
    [RDMAP_IMM] = {.receives = true, .header = RDMAP_IMM_LEN},
    [RDMAP_IMM_SE] = {.receives = true, .solicited = true, .header = RDMAP_IMM_LEN},
    [RDMAP_ATOMIC_REQUEST] = {.qn = RDMAP_QN_REQUEST, .header = RDMAP_ATOMIC_LEN},
    [RDMAP_ATOMIC_RESPONSE] = {.qn = RDMAP_QN_ATOMIC, .header = RDMAP_ATOMIC_RESULT_LEN},
};

/* ---- to send ---- */

/* One segment of @opcode; the caller adds STag, TO or MSN, and the header's fields. */
void rdmap_begin(struct rdmap_segment *s, enum rdmap_opcode opcode)
{
    *s = (struct rdmap_segment){
        .opcode = opcode,
        .ddp = {.tagged = rdmap_ops[opcode].tagged,
                .last = true,
                .ulp = RV | opcode,
                .qn = rdmap_ops[opcode].qn},
    };
}

/* The 64-bit operations as verbs know them, in RFC 7306's masked ones. */
void rdmap_plain_atomic(struct rdmap_segment *s, enum rdmap_atomic_op op, uint64_t data,
                        uint64_t compare)
{
    bool swap = op == RDMAP_CMP_SWAP;

    s->atomic.op = op;
    s->atomic.data = data;
    s->atomic.mask = swap ? UINT64_MAX : 0;
    s->atomic.compare = swap ? compare : 0;
    s->atomic.compare_mask = UINT64_MAX;
}

bool rdmap_atomic_is_plain(const struct rdmap_atomic *a)
{
    return a->op == RDMAP_CMP_SWAP
               ? a->mask == UINT64_MAX && a->compare_mask == UINT64_MAX
               : a->mask == 0;
}

static void put_read(const struct rdmap_read *r, uint8_t *out)
{
    put_be32(out, r->sink_stag);
    put_be64(out + 4, r->sink_to);
    put_be32(out + 12, r->len);
    put_be32(out + 16, r->src_stag);
    put_be64(out + 20, r->src_to);
}

static void put_atomic(const struct rdmap_atomic *a, uint8_t *out)
{
    put_be32(out, a->op);
    put_be32(out + 4, a->id);
    put_be32(out + 8, a->stag);
    put_be64(out + 12, a->to);
    put_be64(out + 20, a->data);
    put_be64(out + 28, a->mask);
    put_be64(out + 36, a->compare);
    put_be64(out + 44, a->compare_mask);
}

/*
 * The headers of a segment, which is not a Terminate: rdmap_put_terminate() makes those.
 * Returns their length.
 */
size_t rdmap_put(const struct rdmap_segment *s, uint8_t out[RDMAP_MAX_HEAD])
{
    size_t at = ddp_put(&s->ddp, out);

    switch (s->opcode) {
    case RDMAP_READ_REQUEST:
        put_read(&s->read, out + at);
        break;
    case RDMAP_IMM:
    case RDMAP_IMM_SE:
        put_be32(out + at, s->imm.imm);
        put_be32(out + at + 4, s->imm.of);
        break;
    case RDMAP_ATOMIC_REQUEST:
        put_atomic(&s->atomic, out + at);
        break;
    case RDMAP_ATOMIC_RESPONSE:
        put_be32(out + at, s->result.id);
        put_be64(out + at + 4, s->result.value);
        break;
    case RDMAP_TERMINATE:
        g_assert_not_reached();
    default:
        break;
    }
    return at + rdmap_ops[s->opcode].header;
}

/*
 * The whole ULPDU of the one Terminate that a side may send.  @head are the first @have
 * bytes of the segment that is wrong, as they came, @ulpdu_len its length; @have is 0 if
 * the error is not about one.  Returns its length.
 */
size_t rdmap_put_terminate(enum iwarp_error error, const uint8_t *head, size_t have,
                           uint32_t ulpdu_len, uint8_t out[RDMAP_MAX_TERMINATE])
{
    unsigned layer = iwarp_error_layer(error), etype = iwarp_error_type(error);
    struct rdmap_segment term;
    struct ddp_header bad;
    uint8_t *p;

    rdmap_begin(&term, RDMAP_TERMINATE);
    term.ddp.msn = 1;
    p = out + ddp_put(&term.ddp, out);
    p[0] = (uint8_t)(layer << 4 | etype);
    p[1] = (uint8_t)iwarp_error_code(error);
    p[2] = p[3] = 0;
    /* Errors of ours, and of MPA, are not about a segment. */
    if (layer > IWARP_LAYER_DDP || etype == 0 || have == 0 ||
        have < ddp_len(head[0] >> 7)) {
        return (size_t)(p + RDMAP_TERMINATE_LEN - out);
    }
    p[2] = TERM_M | TERM_D;
    put_be16(p + 4, (uint16_t)MIN(ulpdu_len, UINT16_MAX));
    bad = (struct ddp_header){.tagged = head[0] >> 7, .ulp = head[1]};
    memcpy(p + 6, head, ddp_len(bad.tagged));
    if (layer == IWARP_LAYER_RDMAP && etype == 1 && !bad.tagged &&
        (bad.ulp & OPCODE_MASK) == RDMAP_READ_REQUEST &&
        have >= DDP_UNTAGGED_LEN + RDMAP_READ_LEN) {
        p[2] |= TERM_R;
        memcpy(p + 6 + DDP_UNTAGGED_LEN, head + DDP_UNTAGGED_LEN, RDMAP_READ_LEN);
        return (size_t)(p + 6 + DDP_UNTAGGED_LEN + RDMAP_READ_LEN - out);
    }
    return (size_t)(p + 6 + ddp_len(bad.tagged) - out);
}

/* ---- to receive ---- */

/* fpdu_head_fn: of what is no good, as much as rdmap_get() needs to see it. */
unsigned rdmap_head_len(const uint8_t first[2])
{
    unsigned opcode = first[1] & OPCODE_MASK;
    bool tagged = first[0] >> 7;

    if (opcode == RDMAP_TERMINATE && !tagged) {
        return RDMAP_MAX_TERMINATE;
    }
    return ddp_len(tagged) +
           (opcode < RDMAP_OPCODES && !tagged ? rdmap_ops[opcode].header : 0);
}

static void get_read(const uint8_t *in, struct rdmap_read *r)
{
    r->sink_stag = get_be32(in);
    r->sink_to = get_be64(in + 4);
    r->len = get_be32(in + 12);
    r->src_stag = get_be32(in + 16);
    r->src_to = get_be64(in + 20);
}

static void get_atomic(const uint8_t *in, struct rdmap_atomic *a)
{
    a->op = in[3] & 15;
    a->id = get_be32(in + 4);
    a->stag = get_be32(in + 8);
    a->to = get_be64(in + 12);
    a->data = get_be64(in + 20);
    a->mask = get_be64(in + 28);
    a->compare = get_be64(in + 36);
    a->compare_mask = get_be64(in + 44);
}

static bool wraps(uint64_t to, uint32_t len)
{
    return len && len - 1 > UINT64_MAX - to;
}

/* Which codes the RFCs have. */
bool rdmap_error_known(unsigned layer, unsigned etype, unsigned code)
{
    switch (layer << 4 | etype) {
    case 0x00:
    case 0x10:
        return true;
    case 0x01:
        return code <= 4 || code == 9 || code == 0xff;
    case 0x02:
        return (code >= 5 && code <= 9) || code == 0xff;
    case 0x11:
        return code <= 4;
    case 0x12:
        return code >= 1 && code <= 6;
    case 0x20:
        return code >= 1 && code <= 7;
    default:
        return false;
    }
}

static bool terminate_is_swapped(const uint8_t *in)
{
    unsigned flags = in[2], high = in[0] >> 4, low = in[0] & 15;

    if (flags & (TERM_M | TERM_D | TERM_R)) {
        return false;
    }
    return flags & (SWAPPED_M | SWAPPED_D | SWAPPED_R) ||
           (!rdmap_error_known(high, low, in[1]) && rdmap_error_known(low, high, in[1]));
}

/* Whatever is there of it; an empty one is RDMAP's "unspecified". */
static void get_terminate(const uint8_t *in, size_t len, struct rdmap_terminate *t)
{
    unsigned flags;

    *t = (struct rdmap_terminate){.layer = IWARP_LAYER_RDMAP, .etype = 2, .code = 0xff};
    if (len < RDMAP_TERMINATE_LEN) {
        return;
    }
    t->swapped = terminate_is_swapped(in);
    t->layer = t->swapped ? in[0] & 15 : in[0] >> 4;
    t->etype = t->swapped ? in[0] >> 4 : in[0] & 15;
    t->code = in[1];
    flags = in[2];
    if (t->swapped) {
        flags = (flags & SWAPPED_M ? TERM_M : 0) | (flags & SWAPPED_D ? TERM_D : 0) |
                (flags & SWAPPED_R ? TERM_R : 0);
    }
    in += RDMAP_TERMINATE_LEN;
    len -= RDMAP_TERMINATE_LEN;
    if (!(flags & TERM_D) || len < 3 || len - 2 < ddp_len(in[2] >> 7)) {
        return;
    }
    t->segment_len = flags & TERM_M ? get_be16(in) : 0;
    t->segment = in + 2;
    len -= 2 + ddp_len(in[2] >> 7);
    if (flags & TERM_R && len >= RDMAP_READ_LEN) {
        t->read = t->segment + ddp_len(in[2] >> 7);
    }
}

/* The header behind DDP's, of an operation that has one; nothing may follow it. */
static enum iwarp_error get_header(const uint8_t *in, struct rdmap_segment *s)
{
    switch (s->opcode) {
    case RDMAP_READ_REQUEST:
        get_read(in, &s->read);
        return wraps(s->read.src_to, s->read.len) ? RDMAP_TO_WRAP : IWARP_OK;
    case RDMAP_ATOMIC_REQUEST:
        get_atomic(in, &s->atomic);
        if (s->atomic.op != RDMAP_FETCH_ADD && s->atomic.op != RDMAP_CMP_SWAP) {
            return RDMAP_BAD_OPCODE;
        }
        return s->atomic.to % 8 ? RDMAP_STREAM_CATASTROPHIC : IWARP_OK;
    case RDMAP_ATOMIC_RESPONSE:
        s->result.id = get_be32(in);
        s->result.value = get_be64(in + 4);
        return IWARP_OK;
    default:
        s->imm.imm = get_be32(in);
        s->imm.of = get_be32(in + 4);
        return IWARP_OK;
    }
}

/*
 * Parse the headers of a segment, a ULPDU of @ulpdu_len bytes whose first @have are at
 * @head: rdmap_head_len() or all of it.  @permitted is a set of opcodes.  If it is wrong,
 * @s is not for use.
 */
enum iwarp_error rdmap_get(const uint8_t *head, size_t have, uint32_t ulpdu_len,
                           unsigned permitted, struct rdmap_segment *s)
{
    const struct rdmap_op *op;
    enum iwarp_error error;
    uint32_t at;

    have = MIN(have, ulpdu_len);
    error = ddp_get(head, have, &s->ddp);
    if (error) {
        return error;
    }
    if ((s->ddp.ulp & RV_MASK) != RV) {
        return RDMAP_BAD_VERSION;
    }
    s->opcode = s->ddp.ulp & OPCODE_MASK;
    if (s->opcode >= RDMAP_OPCODES || !(permitted >> s->opcode & 1) ||
        s->ddp.tagged != rdmap_ops[s->opcode].tagged) {
        return RDMAP_BAD_OPCODE;
    }
    op = &rdmap_ops[s->opcode];
    at = ddp_len(op->tagged);
    s->head_len = at;
    s->payload_len = ulpdu_len - at;
    if (op->tagged) {
        return wraps(s->ddp.to, s->payload_len) ? DDP_TAGGED_TO_WRAP : IWARP_OK;
    }
    if (s->ddp.qn != op->qn) {
        return DDP_UNTAGGED_BAD_QN;
    }
    if (s->opcode == RDMAP_TERMINATE) {
        get_terminate(head + at, have - at, &s->terminate);
        return IWARP_OK;
    }
    if (!op->header) {
        return IWARP_OK;
    }
    if (s->ddp.mo) {
        return DDP_UNTAGGED_BAD_MO;
    }
    if (!s->ddp.last || s->payload_len > op->header) {
        return DDP_UNTAGGED_TOO_LONG;
    }
    if (have - at < op->header) {
        return RDMAP_STREAM_CATASTROPHIC;
    }
    s->head_len = at + op->header;
    s->payload_len = 0;
    return get_header(head + at, s);
}
