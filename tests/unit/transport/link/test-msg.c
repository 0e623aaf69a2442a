/* SPDX-License-Identifier: GPL-2.0-or-later */
/* link/msg.c: the messages of a link byte by byte, there and back, and bad ones. */
#include <glib.h>
#include <string.h>

#include "transport/link/msg.h"

#define N_SAMPLES 16u

static uint8_t wire[PEER_MSG_MAX + 1];

static const struct pvrdma_gid gid_a = {{0xfe, 0x80, [15] = 1}};
static const struct pvrdma_gid gid_b = {{[10] = 0xff, 0xff, 10, 0, 0, 2}};

/* One of each type; @len of data in the datagram. */
static unsigned samples(struct peer_msg m[N_SAMPLES], const uint8_t *data, uint32_t len)
{
    unsigned n = 0;

    memset(m, 0, N_SAMPLES * sizeof(m[0]));
    m[n++] = (struct peer_msg){.type = PEER_MSG_HELLO,
                               .hello = {.min_version = 1,
                                         .max_version = 0x203,
                                         .timeout_ms = 5000,
                                         .features = UINT64_C(0x8000000000000007),
                                         .needs = 1,
                                         .instance = {1, [15] = 2},
                                         .nonce = {3, [31] = 4},
                                         .from = "a",
                                         .to = "host-B.example"}};
    m[n] = (struct peer_msg){.type = PEER_MSG_AUTH};
    memset(m[n++].proof, 0xa5, PEER_PROOF_LEN);
    m[n++] = (struct peer_msg){.type = PEER_MSG_PING, .stamp = 0x0102030405060708};
    m[n++] = (struct peer_msg){.type = PEER_MSG_PONG, .stamp = UINT64_MAX};
    m[n++] = (struct peer_msg){.type = PEER_MSG_CLOSE, .reason = PEER_CLOSE_PROOF};
    m[n++] = (struct peer_msg){.type = PEER_MSG_ASK,
                               .claim = {.network = "lan", .gid = gid_b}};
    for (unsigned t = PEER_MSG_CLAIM; t <= PEER_MSG_HOLD; t++) {
        m[n++] =
            (struct peer_msg){.type = (uint16_t)t,
                              .claim = {.network = "lan",
                                        .gid = gid_a,
                                        .owner = {t, 7},
                                        .generation = 9,
                                        .hold_ms = t == PEER_MSG_UNCLAIM ? 0 : 1000}};
    }
    m[n++] = (struct peer_msg){.type = PEER_MSG_BIND,
                               .bind = {.network = "lan",
                                        .sgid = gid_a,
                                        .dgid = gid_b,
                                        .sqpn = 0x123456,
                                        .dqpn = 5,
                                        .psn = 0xabcdef,
                                        .flags = 3,
                                        .incarnation = 0x1111222233334444,
                                        .token = {1, 2}}};
    m[n++] = (struct peer_msg){
        .type = PEER_MSG_BIND_ANSWER,
        .answer = {.token = {1, 2}, .incarnation = 3, .result = PEER_BIND_REFUSED}};
    m[n++] = (struct peer_msg){
        .type = PEER_MSG_DATAGRAM,
        .datagram = {.network = "lan",
                     .sgid = gid_a,
                     .dgid = gid_b,
                     .sqpn = 0xffffff,
                     .dqpn = 1,
                     .qkey = 0x80010000,
                     .flow_label = 0xfffff,
                     .imm = 0x01020304,
                     .traffic_class = 6,
                     .hop_limit = 64,
                     .flags = PEER_DATAGRAM_IMM | PEER_DATAGRAM_SOLICITED,
                     .data = data,
                     .len = len}};
    m[n++] = (struct peer_msg){.type = PEER_MSG_PROVED,
                               .claim = {.network = "lan",
                                         .gid = gid_a,
                                         .owner = {20, 7},
                                         .generation = 9,
                                         .hold_ms = 1000,
                                         .host = "b1",
                                         .proof = {0xaa, [15] = 0xbb}}};
    m[n++] =
        (struct peer_msg){.type = PEER_MSG_NIC,
                          .nic = {.n = 3, .i = 2, .address = gid_b, .fabric = "blue"}};
    m[n++] = (struct peer_msg){.type = PEER_MSG_CHANNEL,
                               .channel = {.token = {1, 2},
                                           .network = "lan",
                                           .from = {3, 4},
                                           .to = {5, 6},
                                           .from_nic = gid_a,
                                           .to_nic = gid_b,
                                           .receives = 8,
                                           .size = 4096,
                                           .flags = PEER_CHANNEL_WANT}};
    m[n++] = (struct peer_msg){.type = PEER_MSG_CHANNEL_ANSWER,
                               .channel_answer = {.token = {1, 2},
                                                  .result = PEER_CHANNEL_NOT_NOW,
                                                  .port = 0x1234,
                                                  .receives = 8,
                                                  .size = 4096}};
    return n;
}

static enum peer_msg_verdict get(size_t len, struct peer_msg *m)
{
    size_t size;

    return peer_msg_get(wire, len, PEER_MSG_MAX_BODY, m, &size);
}

static void bytes_are(const struct peer_msg *m, const char *bytes, size_t len)
{
    g_assert_cmpuint(peer_msg_put(m, wire), ==, len);
    g_assert_cmpmem(wire, len, bytes, len);
}

#define GID_A               "\xfe\x80\0\0\0\0\0\0\0\0\0\0\0\0\0\x01"
#define GID_B               "\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\0\0\x02"
#define BYTES_ARE(m, bytes) bytes_are((m), (bytes), sizeof(bytes) - 1)

/* As docs/peer-protocol.md has them. */
static void test_bytes(void)
{
    struct peer_msg m[N_SAMPLES];

    samples(m, (const uint8_t *)"xyz", 3);
    BYTES_ARE(&m[2], "\0\x03\0\0\0\0\0\x08\x01\x02\x03\x04\x05\x06\x07\x08");
    BYTES_ARE(&m[4], "\0\x05\0\0\0\0\0\x02\0\x05");
    BYTES_ARE(&m[5], "\0\x10\0\0\0\0\0\x14\x03lan" GID_B);
    BYTES_ARE(&m[6], "\0\x11\0\0\0\0\0\x30\x03lan" GID_A "\0\0\0\0\0\0\0\x11"
                     "\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\x09\0\0\x03\xe8");
    BYTES_ARE(&m[7], "\0\x12\0\0\0\0\0\x2c\x03lan" GID_A "\0\0\0\0\0\0\0\x12"
                     "\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\x09");
    BYTES_ARE(&m[9], "\0\x20\0\0\0\0\0\x4c\x03lan" GID_A GID_B
                     "\0\x12\x34\x56\0\0\0\x05\0\xab\xcd\xef\0\0\0\x03"
                     "\x11\x11\x22\x22\x33\x33\x44\x44"
                     "\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02");
    BYTES_ARE(&m[10], "\0\x21\0\0\0\0\0\x19\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02"
                      "\0\0\0\0\0\0\0\x03\x03");
    BYTES_ARE(&m[11], "\0\x30\0\0\0\0\0\x3e\x03lan" GID_A GID_B
                      "\0\xff\xff\xff\0\0\0\x01\x80\x01\0\0\0\x0f\xff\xff"
                      "\x01\x02\x03\x04\x06\x40\x03xyz");
    BYTES_ARE(&m[12], "\0\x14\0\0\0\0\0\x43\x03lan" GID_A "\0\0\0\0\0\0\0\x14"
                      "\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\x09\0\0\x03\xe8\x02"
                      "b1\xaa\0\0\0\0\0\0\0\0\0\0\0\0\0\0\xbb");
    BYTES_ARE(&m[13], "\0\x40\0\0\0\0\0\x17\x03\x02" GID_B "\x04"
                      "blue");
    BYTES_ARE(&m[14],
              "\0\x41\0\0\0\0\0\x5b\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02"
              "\x03lan\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x04"
              "\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\x06" GID_A GID_B "\0\x08\0\0\x10\0\x01");
    BYTES_ARE(&m[15], "\0\x42\0\0\0\0\0\x19\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02"
                      "\x01\x12\x34\0\x08\0\0\x10\0");
    /* HELLO: numbers, instance, nonce, names. */
    g_assert_cmpuint(peer_msg_put(&m[0], wire), ==, 8 + 24 + 16 + 32 + 2 + 15);
    g_assert_cmpmem(wire, 16, "\0\x01\0\0\0\0\0\x59\0\x01\x02\x03\0\0\x13\x88", 16);
    /* Without data: their room is left, and it is at the end. */
    memset(wire, 0x77, sizeof(wire));
    m[11].datagram.data = NULL;
    m[11].datagram.len = 100;
    g_assert_cmpuint(peer_msg_put(&m[11], wire), ==, 8 + 4 + 32 + 23 + 100);
    g_assert_cmpuint(wire[66], ==, 3);
    g_assert_cmpuint(wire[67], ==, 0x77);
}

/* Whole, and with each beginning of it. */
static void test_round_trip(void)
{
    uint8_t data[PEER_MAX_DATA], again[PEER_MSG_MAX];
    static const uint32_t lens[] = {0, 1, 256, PEER_MAX_DATA};

    for (unsigned i = 0; i < sizeof(data); i++) {
        data[i] = (uint8_t)(i * 7);
    }
    for (unsigned l = 0; l < G_N_ELEMENTS(lens); l++) {
        struct peer_msg m[N_SAMPLES], back;
        unsigned n = samples(m, data, lens[l]);

        g_assert_cmpuint(n, ==, N_SAMPLES);
        for (unsigned i = 0; i < n; i++) {
            size_t len = peer_msg_put(&m[i], wire), size;

            g_assert_cmpuint(len, <=, PEER_MSG_MAX);
            for (size_t k = 0; k < len; k++) {
                /* So that AddressSanitizer sees what reads too far. */
                g_autofree uint8_t *part = g_memdup2(wire, k);

                g_assert_cmpint(peer_msg_get(part, k, PEER_MSG_MAX_BODY, &back, &size),
                                ==, PEER_MSG_MORE);
                g_assert_cmpuint(size, ==, k < 8 ? 8 : len);
            }
            g_assert_cmpint(get(len, &back), ==, PEER_MSG_OK);
            g_assert_cmpuint(back.type, ==, m[i].type);
            if (m[i].type == PEER_MSG_DATAGRAM) {
                g_assert_cmpmem(back.datagram.data, back.datagram.len, data, lens[l]);
            }
            g_assert_cmpuint(peer_msg_put(&back, again), ==, len);
            g_assert_cmpmem(again, len, wire, len);
        }
    }
}

static size_t put_sample(unsigned i)
{
    struct peer_msg m[N_SAMPLES];

    samples(m, NULL, 0);
    return peer_msg_put(&m[i], wire);
}

/* A body that is a byte too short or too long. */
static void test_length(void)
{
    for (unsigned i = 0; i < N_SAMPLES; i++) {
        struct peer_msg m;
        size_t len = put_sample(i);

        wire[7]--;
        g_assert_cmpint(get(len, &m), ==, PEER_MSG_BAD);
        wire[7] += 2;
        wire[len] = 0;
        /* HELLO grows with later versions; a datagram has a byte of data then. */
        g_assert_cmpint(get(len + 1, &m), ==,
                        i == 0 || i == 11 ? PEER_MSG_OK : PEER_MSG_BAD);
    }
}

static void test_limits(void)
{
    struct peer_msg m;
    size_t len = put_sample(2), size;

    g_assert_cmpint(peer_msg_get(wire, len, 8, &m, &size), ==, PEER_MSG_OK);
    g_assert_cmpint(peer_msg_get(wire, len, 7, &m, &size), ==, PEER_MSG_BAD);
    /* Refused by its header, before anybody waits for the rest. */
    memcpy(wire, "\0\x30\0\0\xff\xff\xff\xff", 8);
    g_assert_cmpint(get(8, &m), ==, PEER_MSG_BAD);
    memcpy(wire, "\0\x30\0\0\0\0\x40\x01", 8);
    g_assert_cmpint(get(8, &m), ==, PEER_MSG_BAD);
    wire[7] = 0;
    g_assert_cmpint(get(8, &m), ==, PEER_MSG_MORE);
    /* A datagram of more than a packet. */
    len = put_sample(11);
    memset(wire + len, 0, PEER_MAX_DATA + 1);
    wire[6] = (uint8_t)((len - 8 + PEER_MAX_DATA + 1) >> 8);
    wire[7] = (uint8_t)(len - 8 + PEER_MAX_DATA + 1);
    g_assert_cmpint(get(len + PEER_MAX_DATA + 1, &m), ==, PEER_MSG_BAD);
    wire[6] = (uint8_t)((len - 8 + PEER_MAX_DATA) >> 8);
    wire[7] = (uint8_t)(len - 8 + PEER_MAX_DATA);
    g_assert_cmpint(get(len + PEER_MAX_DATA, &m), ==, PEER_MSG_OK);
}

static void test_unknown(void)
{
    static const uint16_t types[] = {0, 6, 21, 34, 49, 67, 0xffff};

    for (unsigned i = 0; i < G_N_ELEMENTS(types); i++) {
        struct peer_msg m;
        size_t size;

        memcpy(wire, "\0\0\0\0\0\0\0\x03xyz", 11);
        wire[0] = (uint8_t)(types[i] >> 8);
        wire[1] = (uint8_t)types[i];
        g_assert_cmpint(get(11, &m), ==, PEER_MSG_BAD);
        wire[2] = 1;
        g_assert_cmpint(peer_msg_get(wire, 11, 100, &m, &size), ==, PEER_MSG_SKIP);
        g_assert_cmpuint(size, ==, 11);
        g_assert_cmpint(get(10, &m), ==, PEER_MSG_MORE);
    }
}

/* Change one byte of sample @i; it must be refused. */
static void spoil(unsigned i, size_t at, uint8_t value)
{
    struct peer_msg m;
    size_t len = put_sample(i);

    g_assert_cmpuint(at, <, len);
    g_assert_cmpuint(wire[at], !=, value);
    wire[at] = value;
    g_assert_cmpint(get(len, &m), ==, PEER_MSG_BAD);
}

static void test_fields(void)
{
    spoil(0, 8, 3);    /* lowest version 0x301 above the highest, 0x203 */
    spoil(0, 80, 0);   /* a name without characters */
    spoil(0, 80, 64);  /* a long one */
    spoil(0, 80, 255); /* a longer one than there are bytes */
    spoil(0, 81, '/');
    spoil(0, 81, 0);
    spoil(0, 81, '\n');
    spoil(5, 9, ' ');
    spoil(9, 9, 0);
    spoil(10, 32, PEER_BIND_RESULTS);
    spoil(11, 44, 1); /* queue pair numbers have 24 bits */
    spoil(11, 48, 1);
    spoil(11, 57, 0x1f); /* flow labels 20 */
    spoil(11, 66, 4);
    spoil(12, 56, 0); /* nobody's claim, of one who is not named well */
    spoil(12, 57, '/');
    spoil(12, 56, 3);
    spoil(13, 8, 17); /* too many NICs, or one that is not of so many */
    spoil(13, 8, 2);
    spoil(13, 8, 0);
    spoil(13, 26, 0);
    spoil(14, 25, '/');
    spoil(14, 98, 2); /* unknown flags */
    spoil(15, 24, PEER_CHANNEL_RESULTS);
}

/* Who claims has a name for it, and a time; who says that nobody is there has none. */
static void test_owner(void)
{
    struct peer_msg m = {.type = PEER_MSG_CLAIM, .claim = {.network = "n"}}, back;

    m.claim.generation = 1;
    g_assert_cmpint(get(peer_msg_put(&m, wire), &back), ==, PEER_MSG_BAD);
    m.claim.owner[1] = 1;
    g_assert_cmpint(get(peer_msg_put(&m, wire), &back), ==, PEER_MSG_OK);
    m.claim.generation = 0;
    g_assert_cmpint(get(peer_msg_put(&m, wire), &back), ==, PEER_MSG_BAD);
    m.type = PEER_MSG_PROVED;
    strcpy(m.claim.host, "h");
    g_assert_cmpint(get(peer_msg_put(&m, wire), &back), ==, PEER_MSG_BAD);
    m.claim.owner[1] = 0;
    m.claim.generation = 1;
    g_assert_cmpint(get(peer_msg_put(&m, wire), &back), ==, PEER_MSG_BAD);
    m.claim.generation = 0;
    m.type = PEER_MSG_HOLD;
    g_assert_cmpint(get(peer_msg_put(&m, wire), &back), ==, PEER_MSG_OK);
    m.type = PEER_MSG_UNCLAIM;
    g_assert_cmpint(get(peer_msg_put(&m, wire), &back), ==, PEER_MSG_OK);
}

static void test_version(void)
{
    struct peer_hello a = {.min_version = 2, .max_version = 4};
    static const struct {
        uint16_t min, max, version;
    } others[] = {{1, 1, 0}, {1, 2, 2}, {1, 9, 4}, {3, 3, 3}, {4, 9, 4}, {5, 9, 0}};

    for (unsigned i = 0; i < G_N_ELEMENTS(others); i++) {
        struct peer_hello b = {.min_version = others[i].min,
                               .max_version = others[i].max};

        g_assert_cmpuint(peer_msg_version(&a, &b), ==, others[i].version);
        g_assert_cmpuint(peer_msg_version(&b, &a), ==, others[i].version);
    }
    for (unsigned i = PEER_CLOSE_STOPPING; i <= PEER_CLOSE_PROTOCOL; i++) {
        g_assert_cmpstr(peer_close_text(i), !=, "?");
    }
    g_assert_cmpstr(peer_close_text(0), ==, "?");
    g_assert_cmpstr(peer_close_text(PEER_CLOSE_PROTOCOL + 1), ==, "?");
    g_assert_cmpstr(peer_close_text(0xffff), ==, "?");
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/peer/msg/bytes", test_bytes);
    g_test_add_func("/peer/msg/round-trip", test_round_trip);
    g_test_add_func("/peer/msg/length", test_length);
    g_test_add_func("/peer/msg/limits", test_limits);
    g_test_add_func("/peer/msg/unknown", test_unknown);
    g_test_add_func("/peer/msg/fields", test_fields);
    g_test_add_func("/peer/msg/owner", test_owner);
    g_test_add_func("/peer/msg/version", test_version);
    return g_test_run();
}
