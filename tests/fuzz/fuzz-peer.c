/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Fuzzer of the messages of a link between daemons.
 *
 * An input is a stream: messages one behind the other.  Each beginning of a message must
 * be judged as the whole is, or as not complete; names must be such; what parses must
 * come out the same again.
 */
#include "config/config.h"
#include "fuzz.h"
#include "transport/link/msg.h"

/* Beginnings of a message that are tried: of a long one its first and last. */
#define PARTS 64u

static void check_parts(const uint8_t *in, size_t len)
{
    struct peer_msg m;
    size_t size;

    for (size_t n = 0; n < len; n++) {
        uint8_t *part;

        if (n == PARTS && len > 2 * PARTS) {
            n = len - PARTS;
        }
        part = g_memdup2(in, n); /* with nothing behind it, for the sanitizer */
        CHECK(peer_msg_get(part, n, PEER_MSG_MAX_BODY, &m, &size) == PEER_MSG_MORE);
        CHECK(size == (n < PEER_MSG_HEADER ? PEER_MSG_HEADER : len));
        g_free(part);
    }
}

static void check_names(const struct peer_msg *m)
{
    switch (m->type) {
    case PEER_MSG_HELLO:
        CHECK(config_valid_name(m->hello.from) && config_valid_name(m->hello.to));
        CHECK(m->hello.min_version <= m->hello.max_version);
        break;
    case PEER_MSG_ASK:
    case PEER_MSG_CLAIM:
    case PEER_MSG_UNCLAIM:
    case PEER_MSG_HOLD:
        CHECK(config_valid_name(m->claim.network));
        break;
    case PEER_MSG_PROVED:
        CHECK(config_valid_name(m->claim.network) && config_valid_name(m->claim.host));
        CHECK(m->claim.owner[0] || m->claim.owner[1]);
        break;
    case PEER_MSG_BIND:
        CHECK(config_valid_name(m->bind.network));
        break;
    case PEER_MSG_BIND_ANSWER:
        CHECK(m->answer.result < PEER_BIND_RESULTS);
        break;
    case PEER_MSG_DATAGRAM:
        CHECK(config_valid_name(m->datagram.network));
        CHECK(m->datagram.len <= PEER_MAX_DATA && m->datagram.dqpn <= 0xffffff);
        break;
    case PEER_MSG_NIC:
        CHECK(config_valid_name(m->nic.fabric) && m->nic.n <= PEER_MAX_NICS);
        CHECK(m->nic.i < MAX(m->nic.n, 1));
        break;
    case PEER_MSG_CHANNEL:
        CHECK(config_valid_name(m->channel.network));
        CHECK(m->channel.flags <= PEER_CHANNEL_WANT);
        break;
    case PEER_MSG_CHANNEL_ANSWER:
        CHECK(m->channel_answer.result < PEER_CHANNEL_RESULTS);
        break;
    default:
        break;
    }
}

static void check_again(const struct peer_msg *m, const uint8_t *in, size_t len)
{
    uint8_t *out = g_malloc(PEER_MSG_MAX);
    size_t n = peer_msg_put(m, out);

    CHECK(n <= PEER_MSG_MAX);
    CHECK(m->type == PEER_MSG_HELLO ? n <= len : n == len);
    CHECK(memcmp(in, out, 2) == 0);
    CHECK(memcmp(in + PEER_MSG_HEADER, out + PEER_MSG_HEADER, n - PEER_MSG_HEADER) == 0);
    g_free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    while (size) {
        struct peer_msg m;
        size_t len;
        enum peer_msg_verdict v = peer_msg_get(data, size, PEER_MSG_MAX_BODY, &m, &len);

        if (v == PEER_MSG_BAD || v == PEER_MSG_MORE) {
            CHECK(len <= PEER_MSG_HEADER + PEER_MSG_MAX_BODY);
            CHECK(v == PEER_MSG_BAD || len > size);
            break;
        }
        CHECK(len <= size);
        check_parts(data, len);
        if (v == PEER_MSG_OK) {
            check_names(&m);
            check_again(&m, data, len);
        }
        data += len;
        size -= len;
    }
    return 0;
}
