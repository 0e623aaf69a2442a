/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The messages of a link between two daemons: from and to bytes.
 *
 * A message is a header (type, flags, a byte that is zero, the length of the body) and
 * its body; numbers are big-endian, names a byte of length and their characters.  The
 * form of HELLO is for all versions: later ones add bytes at its end.  Every other body
 * has exactly the bytes that its type says.  Of types that are not known those with the
 * flag "optional" are skipped.
 *
 * Invariants: pure functions, which trust nothing of the input; nothing is read behind
 * the length that was given; what parses comes out the same again by peer_msg_put().
 */
#include "transport/link/msg.h"

#include <glib.h>
#include <limits.h>
#include <string.h>

#include "base/record.h"
#include "config/config.h"
#include "transport/iwarp/wire/bytes.h"

#define FLAG_OPTIONAL 1u

/* Bytes still to be read; an overrun makes all that follows zero, and is remembered. */
struct reader {
    const uint8_t *p;
    size_t left;
    bool bad;
};

static const uint8_t *take(struct reader *r, size_t n)
{
    const uint8_t *p = r->p;

    if (r->bad || n > r->left) {
        r->bad = true;
        return NULL;
    }
    r->p += n;
    r->left -= n;
    return p;
}

/* A host's or a network's: what the key file takes as such. */
static void get_name(struct reader *r, char name[PEER_NAME_MAX + 1])
{
    const uint8_t *len = take(r, 1), *p = len ? take(r, *len) : NULL;

    if (!p || *len > PEER_NAME_MAX || memchr(p, 0, *len)) {
        r->bad = true;
        return;
    }
    memcpy(name, p, *len);
    name[*len] = 0;
    r->bad = !config_valid_name(name);
}

static void get_field(struct reader *r, const struct record_field *f, struct peer_msg *m)
{
    uint8_t *to = (uint8_t *)m + f->at;
    const uint8_t *p;
    uint64_t v = 0;

    if (f->kind == RECORD_TEXT) {
        get_name(r, (char *)to);
        return;
    }
    p = take(r, f->width);
    if (!p) {
        return;
    }
    if (f->kind == RECORD_BYTES) {
        memcpy(to, p, f->width);
        return;
    }
    for (uint32_t i = 0; i < f->width; i++) {
        v = v << 8 | p[i];
    }
    r->bad |= v > f->max;
    record_set_number(f, m, v);
}

static uint8_t *add_bytes(uint8_t *p, const void *bytes, size_t n)
{
    memcpy(p, bytes, n);
    return p + n;
}

static uint8_t *add_field(uint8_t *p, const struct record_field *f,
                          const struct peer_msg *m)
{
    const uint8_t *from = (const uint8_t *)m + f->at;
    uint64_t v;
    size_t n;

    if (f->kind == RECORD_BYTES) {
        return add_bytes(p, from, f->width);
    }
    if (f->kind == RECORD_TEXT) {
        n = strnlen((const char *)from, PEER_NAME_MAX);
        *p = (uint8_t)n;
        return add_bytes(p + 1, from, n);
    }
    v = record_number(f, m);
    for (uint32_t i = f->width; i > 0; i--) {
        *p++ = (uint8_t)(v >> 8 * (i - 1));
    }
    return p;
}

/* ---- bodies ---- */

RECORD(hello_record, struct peer_msg, FIELD(hello.min_version), FIELD(hello.max_version),
       FIELD(hello.timeout_ms), FIELD(hello.features), FIELD(hello.needs),
       FIELD(hello.instance), FIELD(hello.nonce), FIELD_TEXT(hello.from),
       FIELD_TEXT(hello.to))
RECORD(auth_record, struct peer_msg, FIELD(proof))
RECORD(ping_record, struct peer_msg, FIELD(stamp))
RECORD(close_record, struct peer_msg, FIELD(reason))
RECORD(claim_record, struct peer_msg, FIELD_TEXT(claim.network), FIELD(claim.gid.raw),
       FIELD(claim.owner[0]), FIELD(claim.owner[1]), FIELD(claim.generation),
       FIELD(claim.hold_ms), FIELD_TEXT(claim.host), FIELD(claim.proof))
RECORD(bind_record, struct peer_msg, FIELD_TEXT(bind.network), FIELD(bind.sgid.raw),
       FIELD(bind.dgid.raw), FIELD(bind.sqpn), FIELD(bind.dqpn), FIELD(bind.psn),
       FIELD(bind.flags), FIELD(bind.incarnation), FIELD(bind.token[0]),
       FIELD(bind.token[1]))
RECORD(answer_record, struct peer_msg, FIELD(answer.token[0]), FIELD(answer.token[1]),
       FIELD(answer.incarnation), FIELD_MAX(answer.result, PEER_BIND_RESULTS - 1))
RECORD(datagram_record, struct peer_msg, FIELD_TEXT(datagram.network),
       FIELD(datagram.sgid.raw), FIELD(datagram.dgid.raw),
       FIELD_MAX(datagram.sqpn, 0xffffff), FIELD_MAX(datagram.dqpn, 0xffffff),
       FIELD(datagram.qkey), FIELD_MAX(datagram.flow_label, 0xfffff), FIELD(datagram.imm),
       FIELD(datagram.traffic_class), FIELD(datagram.hop_limit),
       FIELD_MAX(datagram.flags, PEER_DATAGRAM_IMM | PEER_DATAGRAM_SOLICITED))
RECORD(channel_record, struct peer_msg, FIELD(channel.token[0]), FIELD(channel.token[1]),
       FIELD_TEXT(channel.network), FIELD(channel.from[0]), FIELD(channel.from[1]),
       FIELD(channel.to[0]), FIELD(channel.to[1]), FIELD(channel.from_nic.raw),
       FIELD(channel.to_nic.raw), FIELD(channel.receives), FIELD(channel.size),
       FIELD_MAX(channel.flags, PEER_CHANNEL_WANT))
RECORD(channel_answer_record, struct peer_msg, FIELD(channel_answer.token[0]),
       FIELD(channel_answer.token[1]),
       FIELD_MAX(channel_answer.result, PEER_CHANNEL_RESULTS - 1),
       FIELD(channel_answer.port), FIELD(channel_answer.receives),
       FIELD(channel_answer.size))
RECORD(nic_record, struct peer_msg, FIELD_MAX(nic.n, PEER_MAX_NICS), FIELD(nic.i),
       FIELD(nic.address.raw), FIELD_TEXT(nic.fabric))

static const struct body {
    uint16_t type;
    const struct record_field *(*record)(const struct peer_msg *m);
    unsigned n; /* fields, at most: claims end where their type has no more to say */
} bodies[] = {
    {PEER_MSG_HELLO, hello_record, UINT_MAX},
    {PEER_MSG_AUTH, auth_record, UINT_MAX},
    {PEER_MSG_PING, ping_record, UINT_MAX},
    {PEER_MSG_PONG, ping_record, UINT_MAX},
    {PEER_MSG_CLOSE, close_record, UINT_MAX},
    {PEER_MSG_ASK, claim_record, 2},
    {PEER_MSG_UNCLAIM, claim_record, 5},
    {PEER_MSG_CLAIM, claim_record, 6},
    {PEER_MSG_HOLD, claim_record, 6},
    {PEER_MSG_PROVED, claim_record, UINT_MAX},
    {PEER_MSG_BIND, bind_record, UINT_MAX},
    {PEER_MSG_BIND_ANSWER, answer_record, UINT_MAX},
    {PEER_MSG_DATAGRAM, datagram_record, UINT_MAX},
    {PEER_MSG_NIC, nic_record, UINT_MAX},
    {PEER_MSG_CHANNEL, channel_record, UINT_MAX},
    {PEER_MSG_CHANNEL_ANSWER, channel_answer_record, UINT_MAX},
};

/* NULL: not a type that is known. */
static const struct body *body_of(unsigned type)
{
    for (unsigned i = 0; i < G_N_ELEMENTS(bodies); i++) {
        if (bodies[i].type == type) {
            return &bodies[i];
        }
    }
    return NULL;
}

/* ---- messages ---- */

size_t peer_msg_put(const struct peer_msg *m, uint8_t *out)
{
    const struct body *body = body_of(m->type);
    const struct record_field *field;
    uint8_t *p = out + PEER_MSG_HEADER;

    g_assert(body); /* else it is the caller's mistake, no input leads here */
    field = body->record(m);
    for (unsigned i = 0; i < body->n && field[i].kind != RECORD_END; i++) {
        p = add_field(p, &field[i], m);
    }
    if (m->type == PEER_MSG_DATAGRAM) {
        if (m->datagram.data && m->datagram.len) {
            memcpy(p, m->datagram.data, m->datagram.len);
        }
        p += m->datagram.len;
    }
    put_be16(out, m->type);
    out[2] = out[3] = 0;
    put_be32(out + 4, (uint32_t)(p - out - PEER_MSG_HEADER));
    return p - out;
}

/* What the bounds of single fields do not say; and what is behind them. */
static void get_rest(struct reader *r, struct peer_msg *m)
{
    const struct peer_claim *c = &m->claim;

    switch (m->type) {
    case PEER_MSG_HELLO:
        r->bad |= m->hello.min_version > m->hello.max_version;
        take(r, r->left); /* of a later version */
        break;
    case PEER_MSG_CLAIM: /* HOLD may be about whoever has it */
    case PEER_MSG_PROVED:
        r->bad |= (!c->owner[0] && !c->owner[1]) || !c->generation; /* it begins with 1 */
        break;
    case PEER_MSG_NIC:
        r->bad |= m->nic.n ? m->nic.i >= m->nic.n : m->nic.i > 0;
        break;
    case PEER_MSG_DATAGRAM:
        r->bad |= r->left > PEER_MAX_DATA;
        m->datagram.len = (uint32_t)r->left;
        m->datagram.data = take(r, r->left);
        break;
    default:
        break;
    }
}

enum peer_msg_verdict peer_msg_get(const uint8_t *in, size_t len, size_t max_body,
                                   struct peer_msg *m, size_t *size)
{
    const struct record_field *field;
    const struct body *known;
    struct reader r;
    size_t body;

    *size = PEER_MSG_HEADER;
    if (len < PEER_MSG_HEADER) {
        return PEER_MSG_MORE;
    }
    body = get_be32(in + 4);
    if (body > max_body) {
        return PEER_MSG_BAD; /* before room is made for it */
    }
    *size = PEER_MSG_HEADER + body;
    if (len < *size) {
        return PEER_MSG_MORE;
    }
    r = (struct reader){.p = in + PEER_MSG_HEADER, .left = body};
    memset(m, 0, sizeof(*m));
    m->type = get_be16(in);
    known = body_of(m->type);
    if (!known) {
        return in[2] & FLAG_OPTIONAL ? PEER_MSG_SKIP : PEER_MSG_BAD;
    }
    field = known->record(m);
    for (unsigned i = 0; i < known->n && field[i].kind != RECORD_END; i++) {
        get_field(&r, &field[i], m);
    }
    get_rest(&r, m);
    return r.bad || r.left ? PEER_MSG_BAD : PEER_MSG_OK;
}

unsigned peer_msg_version(const struct peer_hello *a, const struct peer_hello *b)
{
    unsigned max = MIN(a->max_version, b->max_version);

    return max >= MAX(a->min_version, b->min_version) ? max : 0;
}

const char *peer_close_text(unsigned reason)
{
    static const char *const texts[] = {
        [PEER_CLOSE_STOPPING] = "it is stopping, or this host is no longer a peer",
        [PEER_CLOSE_VERSION] = "no protocol version or needed feature in common",
        [PEER_CLOSE_UNKNOWN] = "it has no [peer] group for this host's name and address",
        [PEER_CLOSE_NOT_ME] = "its host-name is a different one",
        [PEER_CLOSE_PROOF] = "its secret is a different one",
        [PEER_CLOSE_CROSSED] = "there is another link",
        [PEER_CLOSE_PROTOCOL] = "it did not understand a message",
    };

    return reason < G_N_ELEMENTS(texts) && texts[reason] ? texts[reason] : "?";
}
