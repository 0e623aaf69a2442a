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
#include <string.h>

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

static void get_bytes(struct reader *r, void *out, size_t n)
{
    const uint8_t *p = take(r, n);

    if (p) {
        memcpy(out, p, n);
    }
}

static uint8_t get_u8(struct reader *r)
{
    const uint8_t *p = take(r, 1);

    return p ? *p : 0;
}

static uint16_t get_u16(struct reader *r)
{
    const uint8_t *p = take(r, 2);

    return p ? get_be16(p) : 0;
}

static uint32_t get_u32(struct reader *r)
{
    const uint8_t *p = take(r, 4);

    return p ? get_be32(p) : 0;
}

static uint64_t get_u64(struct reader *r)
{
    const uint8_t *p = take(r, 8);

    return p ? get_be64(p) : 0;
}

/* A host's or a network's: what the key file takes as such. */
static void get_name(struct reader *r, char name[PEER_NAME_MAX + 1])
{
    size_t n = get_u8(r);
    const uint8_t *p = take(r, n);

    if (!p || n > PEER_NAME_MAX || memchr(p, 0, n)) {
        r->bad = true;
        return;
    }
    memcpy(name, p, n);
    name[n] = 0;
    r->bad = !config_valid_name(name);
}

static uint8_t *add_bytes(uint8_t *p, const void *bytes, size_t n)
{
    memcpy(p, bytes, n);
    return p + n;
}

static uint8_t *add_u8(uint8_t *p, uint8_t v)
{
    *p = v;
    return p + 1;
}

static uint8_t *add_u16(uint8_t *p, uint16_t v)
{
    put_be16(p, v);
    return p + 2;
}

static uint8_t *add_u32(uint8_t *p, uint32_t v)
{
    put_be32(p, v);
    return p + 4;
}

static uint8_t *add_u64(uint8_t *p, uint64_t v)
{
    put_be64(p, v);
    return p + 8;
}

static uint8_t *add_name(uint8_t *p, const char *name)
{
    size_t n = strnlen(name, PEER_NAME_MAX);

    return add_bytes(add_u8(p, (uint8_t)n), name, n);
}

/* ---- bodies ---- */

static uint8_t *put_hello(uint8_t *p, const struct peer_hello *h)
{
    p = add_u16(p, h->min_version);
    p = add_u16(p, h->max_version);
    p = add_u32(p, h->timeout_ms);
    p = add_u64(p, h->features);
    p = add_u64(p, h->needs);
    p = add_bytes(p, h->instance, sizeof(h->instance));
    p = add_bytes(p, h->nonce, sizeof(h->nonce));
    return add_name(add_name(p, h->from), h->to);
}

static void get_hello(struct reader *r, struct peer_hello *h)
{
    h->min_version = get_u16(r);
    h->max_version = get_u16(r);
    h->timeout_ms = get_u32(r);
    h->features = get_u64(r);
    h->needs = get_u64(r);
    get_bytes(r, h->instance, sizeof(h->instance));
    get_bytes(r, h->nonce, sizeof(h->nonce));
    get_name(r, h->from);
    get_name(r, h->to);
    r->bad |= h->min_version > h->max_version;
    take(r, r->left); /* of a later version */
}

static uint8_t *put_claim(uint8_t *p, const struct peer_msg *m)
{
    const struct peer_claim *c = &m->claim;

    p = add_name(p, c->network);
    p = add_bytes(p, c->gid.raw, sizeof(c->gid.raw));
    if (m->type == PEER_MSG_ASK) {
        return p;
    }
    p = add_u64(p, c->owner[0]);
    p = add_u64(p, c->owner[1]);
    p = add_u64(p, c->generation);
    if (m->type == PEER_MSG_UNCLAIM) {
        return p;
    }
    p = add_u32(p, c->hold_ms);
    if (m->type != PEER_MSG_PROVED) {
        return p;
    }
    return add_bytes(add_name(p, c->host), c->proof, sizeof(c->proof));
}

static void get_claim(struct reader *r, struct peer_msg *m)
{
    struct peer_claim *c = &m->claim;

    get_name(r, c->network);
    get_bytes(r, c->gid.raw, sizeof(c->gid.raw));
    if (m->type == PEER_MSG_ASK) {
        return;
    }
    c->owner[0] = get_u64(r);
    c->owner[1] = get_u64(r);
    c->generation = get_u64(r);
    if (m->type != PEER_MSG_UNCLAIM) {
        c->hold_ms = get_u32(r);
        /* HOLD may be about whoever has it; a VM's generations begin with 1. */
        r->bad |= m->type != PEER_MSG_HOLD &&
                  ((!c->owner[0] && !c->owner[1]) || !c->generation);
    }
    if (m->type == PEER_MSG_PROVED) {
        get_name(r, c->host);
        get_bytes(r, c->proof, sizeof(c->proof));
    }
}

static uint8_t *add_token(uint8_t *p, const uint64_t token[2])
{
    return add_u64(add_u64(p, token[0]), token[1]);
}

static void get_token(struct reader *r, uint64_t token[2])
{
    token[0] = get_u64(r);
    token[1] = get_u64(r);
}

static uint8_t *put_bind(uint8_t *p, const struct peer_bind *b)
{
    p = add_name(p, b->network);
    p = add_bytes(p, b->sgid.raw, sizeof(b->sgid.raw));
    p = add_bytes(p, b->dgid.raw, sizeof(b->dgid.raw));
    p = add_u32(p, b->sqpn);
    p = add_u32(p, b->dqpn);
    p = add_u32(p, b->psn);
    p = add_u32(p, b->flags);
    p = add_u64(p, b->incarnation);
    return add_token(p, b->token);
}

static void get_bind(struct reader *r, struct peer_bind *b)
{
    get_name(r, b->network);
    get_bytes(r, b->sgid.raw, sizeof(b->sgid.raw));
    get_bytes(r, b->dgid.raw, sizeof(b->dgid.raw));
    b->sqpn = get_u32(r);
    b->dqpn = get_u32(r);
    b->psn = get_u32(r);
    b->flags = get_u32(r);
    b->incarnation = get_u64(r);
    get_token(r, b->token);
}

static uint8_t *put_answer(uint8_t *p, const struct peer_bind_answer *a)
{
    p = add_token(p, a->token);
    p = add_u64(p, a->incarnation);
    return add_u8(p, a->result);
}

static void get_answer(struct reader *r, struct peer_bind_answer *a)
{
    get_token(r, a->token);
    a->incarnation = get_u64(r);
    a->result = get_u8(r);
    r->bad |= a->result >= PEER_BIND_RESULTS;
}

static uint8_t *put_datagram(uint8_t *p, const struct peer_datagram *d)
{
    p = add_name(p, d->network);
    p = add_bytes(p, d->sgid.raw, sizeof(d->sgid.raw));
    p = add_bytes(p, d->dgid.raw, sizeof(d->dgid.raw));
    p = add_u32(p, d->sqpn);
    p = add_u32(p, d->dqpn);
    p = add_u32(p, d->qkey);
    p = add_u32(p, d->flow_label);
    p = add_u32(p, d->imm);
    p = add_u8(p, d->traffic_class);
    p = add_u8(p, d->hop_limit);
    p = add_u8(p, d->flags);
    if (d->data && d->len) {
        memcpy(p, d->data, d->len);
    }
    return p + d->len;
}

static void get_datagram(struct reader *r, struct peer_datagram *d)
{
    get_name(r, d->network);
    get_bytes(r, d->sgid.raw, sizeof(d->sgid.raw));
    get_bytes(r, d->dgid.raw, sizeof(d->dgid.raw));
    d->sqpn = get_u32(r);
    d->dqpn = get_u32(r);
    d->qkey = get_u32(r);
    d->flow_label = get_u32(r);
    d->imm = get_u32(r);
    d->traffic_class = get_u8(r);
    d->hop_limit = get_u8(r);
    d->flags = get_u8(r);
    r->bad |= r->left > PEER_MAX_DATA || d->flow_label >> 20 || d->sqpn >> 24 ||
              d->dqpn >> 24 || d->flags > (PEER_DATAGRAM_IMM | PEER_DATAGRAM_SOLICITED);
    if (!r->bad) {
        d->len = (uint32_t)r->left;
        d->data = take(r, r->left);
    }
}

/* ---- messages ---- */

size_t peer_msg_put(const struct peer_msg *m, uint8_t *out)
{
    uint8_t *p = out + PEER_MSG_HEADER;

    switch (m->type) {
    case PEER_MSG_HELLO:
        p = put_hello(p, &m->hello);
        break;
    case PEER_MSG_AUTH:
        p = add_bytes(p, m->proof, sizeof(m->proof));
        break;
    case PEER_MSG_PING:
    case PEER_MSG_PONG:
        p = add_u64(p, m->stamp);
        break;
    case PEER_MSG_CLOSE:
        p = add_u16(p, m->reason);
        break;
    case PEER_MSG_ASK:
    case PEER_MSG_CLAIM:
    case PEER_MSG_UNCLAIM:
    case PEER_MSG_HOLD:
    case PEER_MSG_PROVED:
        p = put_claim(p, m);
        break;
    case PEER_MSG_BIND:
        p = put_bind(p, &m->bind);
        break;
    case PEER_MSG_BIND_ANSWER:
        p = put_answer(p, &m->answer);
        break;
    case PEER_MSG_DATAGRAM:
        p = put_datagram(p, &m->datagram);
        break;
    default:
        g_assert_not_reached(); /* the caller's mistake, no input leads here */
    }
    put_be16(out, m->type);
    out[2] = out[3] = 0;
    put_be32(out + 4, (uint32_t)(p - out - PEER_MSG_HEADER));
    return p - out;
}

/* False: not a type that is known. */
static bool get_body(struct reader *r, struct peer_msg *m)
{
    switch (m->type) {
    case PEER_MSG_HELLO:
        get_hello(r, &m->hello);
        return true;
    case PEER_MSG_AUTH:
        get_bytes(r, m->proof, sizeof(m->proof));
        return true;
    case PEER_MSG_PING:
    case PEER_MSG_PONG:
        m->stamp = get_u64(r);
        return true;
    case PEER_MSG_CLOSE:
        m->reason = get_u16(r);
        return true;
    case PEER_MSG_ASK:
    case PEER_MSG_CLAIM:
    case PEER_MSG_UNCLAIM:
    case PEER_MSG_HOLD:
    case PEER_MSG_PROVED:
        get_claim(r, m);
        return true;
    case PEER_MSG_BIND:
        get_bind(r, &m->bind);
        return true;
    case PEER_MSG_BIND_ANSWER:
        get_answer(r, &m->answer);
        return true;
    case PEER_MSG_DATAGRAM:
        get_datagram(r, &m->datagram);
        return true;
    default:
        return false;
    }
}

enum peer_msg_verdict peer_msg_get(const uint8_t *in, size_t len, size_t max_body,
                                   struct peer_msg *m, size_t *size)
{
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
    if (!get_body(&r, m)) {
        return in[2] & FLAG_OPTIONAL ? PEER_MSG_SKIP : PEER_MSG_BAD;
    }
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
