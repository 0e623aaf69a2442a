/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Fuzzer of links between daemons: the other side of up to two connections.
 *
 * An input is a row of steps: a byte that says what and on which connection, a byte of
 * length and as many bytes.
 *
 *   open     a connection of which nothing is known; the bytes are sent
 *   greet    open one, and prove the secret as a daemon would; its instance is the first
 *            byte
 *   send     the bytes
 *   message  the bytes as the body of a message, whose type is the first of them
 *   end      hang up
 *
 * After each step the main loop turns until it has nothing to do.  What the daemon says
 * must be messages.  Both connections gone, nothing may be left of them.
 */
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fuzz.h"
#include "transport/link/internal.h"

#define ENDS      2u
#define MAX_STEPS 64u

static const char secret[] = "a secret of nobody";
static struct sockaddr_storage address;
static struct peer *peer;
static unsigned handed; /* messages that came to handlers */

struct end {
    int fd; /* -1: none */
    bool magic;
    uint8_t in[65536];
    size_t len;
    struct peer_hello_bytes hello[2];
};
static struct end ends[ENDS];

static void turn(void)
{
    for (unsigned i = 0; i < 1000 && g_main_context_iteration(NULL, FALSE); i++) {
        continue;
    }
}

/* ---- those that the daemon tells ---- */

static void on_claim(struct peer *from, const struct peer_claim *claim)
{
    CHECK(from == peer && config_valid_name(claim->network));
    handed++;
}

static void on_proved(struct peer *from, const struct peer_claim *claim)
{
    CHECK(config_valid_name(claim->host) && (claim->owner[0] || claim->owner[1]));
    on_claim(from, claim);
}

static void on_bind(struct peer *from, const struct peer_bind *bind)
{
    struct peer_bind_answer answer = {{bind->token[0], bind->token[1]}, 1, 0};

    CHECK(from == peer && config_valid_name(bind->network));
    peer_send_bind_answer(from, &answer);
    handed++;
}

/* From within the link's own work. */
static void on_answer(struct peer *from, const struct peer_bind_answer *answer)
{
    CHECK(answer->result < PEER_BIND_RESULTS);
    if (answer->result == PEER_BIND_REFUSED) {
        peer_reset(from, "it is refused");
    }
    handed++;
}

static void on_datagram(struct peer *from, const struct peer_datagram *d)
{
    uint8_t sum = 0;

    CHECK(from == peer && d->len <= PEER_MAX_DATA);
    for (unsigned i = 0; i < d->len; i++) {
        sum += d->data[i]; /* all of it is there */
    }
    handed += sum != 1;
}

static void on_link(struct peer *p)
{
    CHECK(p == peer);
}

static const struct peer_claim_ops claim_ops = {
    .ask = on_claim,
    .claim = on_claim,
    .unclaim = on_claim,
    .hold = on_claim,
    .proved = on_proved,
    .link_up = on_link,
    .link_down = on_link,
};

static const struct peer_ops ops = {.bind = on_bind, .bind_answer = on_answer};

static void start(void)
{
    struct daemon_config *cfg = config_new();
    struct peer_config *pc = config_peer_new("b", NULL);

    /* Nobody answers there: the link's own calls end at once. */
    CHECK(config_parse_address("127.0.0.1:1", &address));
    CHECK(config_set(cfg, "listen", "127.0.0.1:1", false, NULL));
    CHECK(config_set(cfg, "host-name", "a", false, NULL));
    pc->address = address;
    pc->secret = g_memdup2(secret, sizeof(secret) - 1);
    pc->secret_len = sizeof(secret) - 1;
    cfg->peers = g_list_append(NULL, pc);
    log_set_level(LOG_LVL_ERROR);
    peer_set_ops(&ops);
    peer_set_claim_ops(&claim_ops);
    peer_set_datagram(on_datagram);
    cfg->n_listen = 1;
    peers_start(cfg);
    config_free(cfg);
    peer = peer_find("b");
    for (unsigned i = 0; i < ENDS; i++) {
        ends[i].fd = -1;
    }
}

/* ---- the other side ---- */

static void hang_up(struct end *e)
{
    if (e->fd >= 0) {
        close(e->fd);
        e->fd = -1;
        turn();
    }
}

/* Take the next message that the daemon has sent; false: there is none. */
static bool take(struct end *e, struct peer_msg *m, struct peer_hello_bytes *raw)
{
    enum peer_msg_verdict v;
    size_t size;

    if (!e->magic) {
        if (e->len < PEER_MAGIC_LEN) {
            return false;
        }
        CHECK(memcmp(e->in, PEER_MAGIC, PEER_MAGIC_LEN) == 0);
        e->magic = true;
        e->len -= PEER_MAGIC_LEN;
        memmove(e->in, e->in + PEER_MAGIC_LEN, e->len);
    }
    v = peer_msg_get(e->in, e->len, PEER_MSG_MAX_BODY, m, &size);
    if (v == PEER_MSG_MORE) {
        return false;
    }
    CHECK(v == PEER_MSG_OK);
    if (raw) {
        CHECK(size <= sizeof(raw->bytes));
        memcpy(raw->bytes, e->in, size);
        raw->len = size;
    }
    e->len -= size;
    memmove(e->in, e->in + size, e->len);
    return true;
}

/* Let it work, and read what it says. */
static void settle(struct end *e)
{
    struct peer_msg m;
    ssize_t n;

    turn();
    while (e->fd >= 0) {
        n = recv(e->fd, e->in + e->len, sizeof(e->in) - e->len, MSG_DONTWAIT);
        if (n <= 0) {
            break;
        }
        e->len += (size_t)n;
        while (take(e, &m, NULL)) {
            continue;
        }
        turn();
    }
}

static void say(struct end *e, const void *bytes, size_t len)
{
    if (e->fd >= 0) {
        (void)!send(e->fd, bytes, len, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
}

static struct peer_places places =
    PEER_PLACES_INIT(places, PEER_MAX_UNDECIDED, PEER_MAX_PER_HOST);

static void begin(struct end *e)
{
    int fds[2];

    hang_up(e);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    memset(e, 0, sizeof(*e));
    e->fd = fds[0];
    peer->links_paid = 0; /* none of them comes too soon */
    link_accept(fds[1], &address, &places);
}

/* What was said, without what was heard being thrown away. */
static bool hear(struct end *e, struct peer_msg *m, struct peer_hello_bytes *raw)
{
    ssize_t n;

    turn();
    n = recv(e->fd, e->in + e->len, sizeof(e->in) - e->len, MSG_DONTWAIT);
    e->len += n > 0 ? (size_t)n : 0;
    return take(e, m, raw);
}

static void greet_as(struct end *e, uint8_t instance)
{
    struct peer_msg m = {.type = PEER_MSG_HELLO,
                         .hello = {.min_version = 1,
                                   .max_version = 1,
                                   .timeout_ms = 5000,
                                   .features = 1, /* a later release's */
                                   .instance = {instance},
                                   .from = "b",
                                   .to = "a"}};
    uint8_t bytes[PEER_MSG_HEADER + PEER_PROOF_LEN];
    struct peer_hello_bytes own;

    begin(e);
    own.len = peer_msg_put(&m, own.bytes);
    say(e, PEER_MAGIC, PEER_MAGIC_LEN);
    say(e, own.bytes, own.len);
    e->hello[PEER_INITIATOR] = own;
    CHECK(hear(e, &m, &e->hello[PEER_RESPONDER]) && m.type == PEER_MSG_HELLO);
    m.type = PEER_MSG_AUTH;
    peer_auth_proof((const uint8_t *)secret, sizeof(secret) - 1, PEER_INITIATOR, e->hello,
                    m.proof);
    say(e, bytes, peer_msg_put(&m, bytes));
    CHECK(hear(e, &m, NULL) && m.type == PEER_MSG_AUTH && peer_is_up(peer));
}

static void say_message(struct end *e, const uint8_t *data, size_t len)
{
    uint8_t bytes[PEER_MSG_HEADER + 256] = {0};

    if (len) {
        bytes[1] = data[0];
        bytes[7] = (uint8_t)(len - 1);
        memcpy(bytes + PEER_MSG_HEADER, data + 1, len - 1);
        say(e, bytes, PEER_MSG_HEADER + len - 1);
    }
}

static void step(uint8_t what, const uint8_t *data, size_t len)
{
    struct end *e = &ends[what >> 7];

    switch (what % 5) {
    case 0:
        begin(e);
        say(e, data, len);
        break;
    case 1:
        greet_as(e, len ? data[0] : 0);
        break;
    case 2:
        say(e, data, len);
        break;
    case 3:
        say_message(e, data, len);
        break;
    default:
        hang_up(e);
        break;
    }
    settle(&ends[0]);
    settle(&ends[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t dropped;

    if (!peer) {
        start();
    }
    for (unsigned n = 0; n < MAX_STEPS && size >= 2; n++) {
        size_t len = MIN(data[1], size - 2);

        step(data[0], data + 2, len);
        data += 2 + len;
        size -= 2 + len;
    }
    hang_up(&ends[0]);
    hang_up(&ends[1]);
    turn();
    CHECK(!peer_is_up(peer) && !peer->link);
    CHECK(queue_bytes(&peer->queue, &dropped) == 0);
    return 0;
}
