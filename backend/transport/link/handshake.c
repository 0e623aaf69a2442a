/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * How a link begins: who both are, what they can do, and that they have the same secret.
 *
 * A side believes nothing of the other's HELLO before its AUTH was right, but for which
 * secret to check that with.  The responder, who does not know who calls, finds his
 * peer by the name and address.  Main thread.
 */
#include <string.h>

#include "transport/link/link.h"

G_STATIC_ASSERT(EARLY_SIZE >= PEER_MAGIC_LEN + 2 * PEER_MSG_HEADER + PEER_PROOF_LEN + 24 +
                                  16 + PEER_NONCE_LEN + 2 * (PEER_NAME_MAX + 1));

void greet(struct peer_link *l)
{
    struct peer_hello_bytes *own = &l->hello[l->role];
    struct peer_msg m = {.type = PEER_MSG_HELLO};

    m.hello.min_version = PEER_VERSION_MIN;
    m.hello.max_version = PEER_VERSION_MAX;
    m.hello.timeout_ms = peers_self.timeout_ms;
    m.hello.features = PEER_FEATURE_CHANNELS;
    memcpy(m.hello.instance, peers_self.instance, sizeof(m.hello.instance));
    peers_random(m.hello.nonce, sizeof(m.hello.nonce));
    g_strlcpy(m.hello.from, peers_self.name, sizeof(m.hello.from));
    g_strlcpy(m.hello.to, l->peer->name, sizeof(m.hello.to));
    own->len = peer_msg_put(&m, own->bytes);
    link_say(l, PEER_MAGIC, PEER_MAGIC_LEN);
    link_say(l, own->bytes, own->len);
}

static void proof_of(const struct peer_link *l, enum peer_role role,
                     uint8_t proof[PEER_PROOF_LEN])
{
    peer_auth_proof(l->peer->cfg->secret, l->peer->cfg->secret_len, role, l->hello,
                    proof);
}

static void say_auth(struct peer_link *l)
{
    struct peer_msg m = {.type = PEER_MSG_AUTH};
    uint8_t bytes[PEER_MSG_HEADER + PEER_PROOF_LEN];

    proof_of(l, l->role, m.proof);
    link_say(l, bytes, peer_msg_put(&m, bytes));
}

/* True: what it says of itself fits; else it is closed. */
static bool check_hello(struct peer_link *l)
{
    const struct peer_hello *h = &l->other;

    if (strcmp(h->to, peers_self.name) != 0) {
        link_close(l, PEER_CLOSE_NOT_ME, "it expects another host-name here");
    } else if (l->role == PEER_INITIATOR && strcmp(h->from, l->peer->name) != 0) {
        link_close(l, PEER_CLOSE_UNKNOWN, "its host-name is a different one");
    } else if (!l->peer) {
        link_close(l, PEER_CLOSE_UNKNOWN, "no [peer] group has its name and address");
    } else if (!link_version(l) || h->needs) {
        link_close(l, PEER_CLOSE_VERSION, peer_close_text(PEER_CLOSE_VERSION));
    }
    return !l->dead;
}

static void got_hello(struct peer_link *l, const struct peer_msg *m, const uint8_t *bytes,
                      size_t len)
{
    struct peer_hello_bytes *other = &l->hello[!l->role];

    memcpy(other->bytes, bytes, len); /* at most PEER_MSG_MAX_EARLY and its header */
    other->len = len;
    l->other = m->hello;
    if (l->role == PEER_RESPONDER) {
        l->peer = peer_of_hello(&m->hello, &l->from);
    }
    if (!check_hello(l)) {
        return;
    }
    l->state = LINK_AUTH;
    if (l->role == PEER_RESPONDER) {
        greet(l);
    } else {
        say_auth(l);
    }
}

static void got_auth(struct peer_link *l, const struct peer_msg *m)
{
    uint8_t proof[PEER_PROOF_LEN];

    proof_of(l, !l->role, proof);
    if (!peer_auth_same(proof, m->proof)) {
        link_close(l, PEER_CLOSE_PROOF, "its secret is a different one");
    } else if (!peer_may_link(l->peer)) {
        link_close(l, 0, "too many links in a short time");
    } else if (!peer_take_link(l->peer, l)) {
        link_close(l, PEER_CLOSE_CROSSED, "there is another link");
    } else {
        if (l->role == PEER_RESPONDER) {
            say_auth(l);
        }
        link_be_up(l);
    }
}

void greet_got(struct peer_link *l, const struct peer_msg *m, const uint8_t *bytes,
               size_t len)
{
    if (m->type == PEER_MSG_CLOSE) {
        link_closed(l, m);
    } else if (m->type == PEER_MSG_HELLO && l->state == LINK_HELLO) {
        got_hello(l, m, bytes, len);
    } else if (m->type == PEER_MSG_AUTH && l->state == LINK_AUTH) {
        got_auth(l, m);
    } else {
        link_refuse(l, "unexpected message before authentication");
    }
}
