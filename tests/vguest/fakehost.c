/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A made-up host; see fakehost.h. */
#include "fakehost.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

static struct sockaddr_in sockaddr_of(unsigned host, unsigned port)
{
    g_autofree char *text = host_address(host);
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};

    g_assert_cmpint(inet_pton(AF_INET, text, &sa.sin_addr), ==, 1);
    return sa;
}

static int tcp_socket(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    struct timeval tv = {.tv_sec = VGT_WAIT_MS / 1000};

    g_assert_cmpint(fd, >=, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv));
    return fd;
}

int connect_from(unsigned from, unsigned to)
{
    struct sockaddr_in own = sockaddr_of(from, 0), other = sockaddr_of(to, hosts_port());
    int fd = tcp_socket();

    g_assert_cmpint(bind(fd, (struct sockaddr *)&own, sizeof(own)), ==, 0);
    g_assert_cmpint(connect(fd, (struct sockaddr *)&other, sizeof(other)), ==, 0);
    return fd;
}

int listen_as(unsigned host)
{
    struct sockaddr_in own = sockaddr_of(host, hosts_port());
    int fd = tcp_socket();

    g_assert_cmpint(bind(fd, (struct sockaddr *)&own, sizeof(own)), ==, 0);
    g_assert_cmpint(listen(fd, 128), ==, 0);
    return fd;
}

void wait_closed(int fd)
{
    uint8_t buf[4096];
    ssize_t n;

    do {
        n = recv(fd, buf, sizeof(buf), 0);
        g_assert_false(n < 0 && errno == EAGAIN);
    } while (n > 0);
    close(fd);
}

void put(int fd, const void *bytes, size_t len)
{
    g_assert_cmpint(send(fd, bytes, len, MSG_NOSIGNAL), ==, (gssize)len);
}

void put_msg(struct fake *f, const struct peer_msg *m)
{
    uint8_t bytes[PEER_MSG_MAX];

    put(f->fd, bytes, peer_msg_put(m, bytes));
}

bool get_msg(struct fake *f, struct peer_msg *m, struct peer_hello_bytes *raw)
{
    static uint8_t taken[PEER_MSG_HEADER + PEER_MSG_MAX_BODY];

    for (;;) {
        size_t size;
        ssize_t n;

        switch (peer_msg_get(f->in, f->in_len, PEER_MSG_MAX_BODY, m, &size)) {
        case PEER_MSG_OK:
            memcpy(taken, f->in, size);
            if (raw) {
                memcpy(raw->bytes, taken, size);
                raw->len = size;
            }
            f->in_len -= size;
            memmove(f->in, f->in + size, f->in_len);
            peer_msg_get(taken, size, PEER_MSG_MAX_BODY, m, &size);
            return true;
        case PEER_MSG_MORE:
            break;
        default:
            g_error("the daemon sent a malformed message");
        }
        n = recv(f->fd, f->in + f->in_len, sizeof(f->in) - f->in_len, 0);
        if (n == 0 || (n < 0 && errno == ECONNRESET)) {
            return false;
        }
        g_assert_cmpint(n, >, 0);
        f->in_len += (size_t)n;
    }
}

void get_magic(struct fake *f)
{
    g_assert_cmpint(recv(f->fd, f->in, PEER_MAGIC_LEN, MSG_WAITALL), ==, PEER_MAGIC_LEN);
    g_assert_cmpmem(f->in, PEER_MAGIC_LEN, PEER_MAGIC, PEER_MAGIC_LEN);
}

void fake_init(struct fake *f, unsigned from)
{
    memset(f, 0, sizeof(*f));
    f->secret = hosts_secret;
    f->hello =
        (struct peer_hello){.min_version = 1, .max_version = 1, .timeout_ms = 5000};
    g_snprintf(f->hello.from, sizeof(f->hello.from), "host%u", from);
    strcpy(f->hello.to, "host0");
    f->hello.instance[0] = 1;
    f->hello.nonce[0] = (uint8_t)g_random_int();
}

void fake_init_to(struct fake *f, unsigned from, unsigned to)
{
    fake_init(f, from);
    f->to = to;
    g_snprintf(f->hello.to, sizeof(f->hello.to), "host%u", to);
}

void put_hello(struct fake *f)
{
    struct peer_msg m = {.type = PEER_MSG_HELLO, .hello = f->hello};
    struct peer_hello_bytes *own = &f->bytes[f->role];

    own->len = peer_msg_put(&m, own->bytes);
    put(f->fd, PEER_MAGIC, PEER_MAGIC_LEN);
    put(f->fd, own->bytes, own->len);
}

void put_auth(struct fake *f)
{
    struct peer_msg m = {.type = PEER_MSG_AUTH};

    peer_auth_proof((const uint8_t *)f->secret, strlen(f->secret), f->role, f->bytes,
                    m.proof);
    peer_msg_put(&m, f->proof);
    put(f->fd, f->proof, sizeof(f->proof));
}

void get_hello(struct fake *f)
{
    struct peer_msg m;

    get_magic(f);
    g_assert_true(get_msg(f, &m, &f->bytes[!f->role]));
    g_assert_cmpint(m.type, ==, PEER_MSG_HELLO);
    f->other = m.hello;
}

void get_auth(struct fake *f)
{
    uint8_t proof[PEER_PROOF_LEN];
    struct peer_msg m;

    g_assert_true(get_msg(f, &m, NULL));
    g_assert_cmpint(m.type, ==, PEER_MSG_AUTH);
    peer_auth_proof((const uint8_t *)f->secret, strlen(f->secret), !f->role, f->bytes,
                    proof);
    g_assert_cmpmem(proof, sizeof(proof), m.proof, sizeof(m.proof));
}

void expect_close(struct fake *f, unsigned reason)
{
    struct peer_msg m;

    do {
        g_assert_true(get_msg(f, &m, NULL));
    } while (m.type != PEER_MSG_CLOSE);
    g_assert_cmpuint(m.reason, ==, reason);
    wait_closed(f->fd);
}

void fake_call(struct fake *f, unsigned from)
{
    f->role = PEER_INITIATOR;
    f->fd = connect_from(from, f->to);
    put_hello(f);
}

void fake_link(struct fake *f, unsigned from)
{
    fake_call(f, from);
    get_hello(f);
    put_auth(f);
    get_auth(f);
}

void fake_answer(struct fake *f, int listener)
{
    f->role = PEER_RESPONDER;
    f->fd = accept(listener, NULL, NULL);
    g_assert_cmpint(f->fd, >=, 0);
    get_hello(f);
    put_hello(f);
    get_auth(f);
    put_auth(f);
}

void check_ping(struct fake *f, uint64_t stamp)
{
    struct peer_msg ping = {.type = PEER_MSG_PING, .stamp = stamp}, m;

    put_msg(f, &ping);
    do {
        g_assert_true(get_msg(f, &m, NULL));
        g_assert_cmpint(m.type, !=, PEER_MSG_CLOSE);
    } while (m.type != PEER_MSG_PONG);
    g_assert_cmpuint(m.stamp, ==, stamp);
}
