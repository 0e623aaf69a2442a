/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Unit tests: how TCP connections end that this host has made.  No time passes but where
 * a test says so.
 */
#include "transport/iwarp/linger.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "../../stillclock.h"
#include "transport/iwarp/poll.h"

#define OF_VM 256u

/* A connection that resets, and its peer; neither waits. */
struct ends {
    int fd, peer;
    size_t sent;
};

static void ends_open(struct ends *e)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), small = 4096;

    g_assert_cmpint(setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)),
                    ==, 0);
    g_assert_cmpint(bind(listener, (struct sockaddr *)&a, sizeof(a)), ==, 0);
    g_assert_cmpint(listen(listener, 1), ==, 0);
    g_assert_cmpint(getsockname(listener, (struct sockaddr *)&a, &len), ==, 0);
    e->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    g_assert_cmpint(connect(e->fd, (struct sockaddr *)&a, sizeof(a)), ==, 0);
    e->peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    g_assert_cmpint(e->peer, >=, 0);
    close(listener);
    g_assert_cmpint(fcntl(e->fd, F_SETFL, O_NONBLOCK), ==, 0);
    g_assert_false(linger_is_reset(e->fd));
    linger_set_reset(e->fd, true);
    g_assert_true(linger_is_reset(e->fd));
    e->sent = 0;
}

/* More than the peer's socket takes. */
static void fill(struct ends *e)
{
    static const char bytes[16384];
    ssize_t n;

    while (e->sent < sizeof(bytes) * 2 &&
           (n = send(e->fd, bytes, sizeof(bytes), 0)) > 0) {
        e->sent += (size_t)n;
    }
    g_assert_false(linger_all_acked(e->fd));
}

static void turn(void)
{
    g_usleep(1000);
    while (g_main_context_iteration(NULL, FALSE)) {
    }
}

/* All that comes until it ends: with a reset. */
static size_t reads(struct ends *e)
{
    char bytes[16384];
    size_t had = 0;
    ssize_t n;

    do {
        turn();
        n = recv(e->peer, bytes, sizeof(bytes), 0);
        had += n > 0 ? (size_t)n : 0;
    } while (n > 0 || (n < 0 && errno == EAGAIN));
    g_assert_cmpint(n, ==, -1);
    g_assert_cmpint(errno, ==, ECONNRESET);
    close(e->peer);
    return had;
}

static void test_at_once(void)
{
    struct tcp_vm net = {0};
    struct ends e;

    ends_open(&e);
    g_assert_cmpint(send(e.fd, "all", 3, 0), ==, 3);
    while (!linger_all_acked(e.fd)) {
        g_usleep(100);
    }
    linger_add(&net, e.fd);
    g_assert_cmpuint(net.n_lingering, ==, 0);
    g_assert_cmpuint(reads(&e), ==, 3);
}

/* The peer reads slowly, and has all. */
static void test_read(void)
{
    struct tcp_vm net = {0};
    struct ends e;

    ends_open(&e);
    fill(&e);
    linger_add(&net, e.fd);
    g_assert_cmpuint(net.n_lingering, ==, 1);
    g_assert_cmpuint(reads(&e), ==, e.sent);
    g_assert_cmpuint(net.n_lingering, ==, 0);
}

/* Its VM goes meanwhile. */
static void test_vm_gone(void)
{
    struct tcp_vm *net = g_new0(struct tcp_vm, 1);
    struct ends e;

    ends_open(&e);
    fill(&e);
    linger_add(net, e.fd);
    linger_vm_gone(net);
    g_free(net);
    g_assert_cmpuint(reads(&e), ==, e.sent);
}

/* It does not read, or not soon: that is waited for for a second. */
static void test_unread(void)
{
    struct tcp_vm net = {0};
    struct ends e;

    ends_open(&e);
    fill(&e);
    linger_add(&net, e.fd);
    stillclock_pass(STILLCLOCK_S - 1);
    for (unsigned i = 0; i < 20; i++) {
        turn();
    }
    g_assert_cmpuint(net.n_lingering, ==, 1);
    stillclock_pass(1);
    while (net.n_lingering) {
        turn();
    }
    g_assert_cmpuint(reads(&e), <, e.sent);
}

/* The oldest makes room; another VM's do not. */
static void test_many(void)
{
    static struct ends e[OF_VM + 1];
    struct tcp_vm net = {0}, other = {0};
    struct ends another;

    ends_open(&another);
    fill(&another);
    linger_add(&other, another.fd);
    for (unsigned i = 0; i <= OF_VM; i++) {
        ends_open(&e[i]);
        fill(&e[i]);
        linger_add(&net, e[i].fd);
        g_assert_cmpuint(net.n_lingering, <=, OF_VM);
    }
    g_assert_cmpuint(other.n_lingering, ==, 1);
    g_assert_cmpuint(reads(&e[0]), <, e[0].sent);
    for (unsigned i = 1; i <= OF_VM; i++) {
        close(e[i].peer); /* with input that was not read: a reset */
    }
    g_assert_cmpuint(reads(&another), ==, another.sent);
    while (net.n_lingering) {
        turn();
    }
}

/* The daemon ends: the kernel sends the rest. */
static void test_close(void)
{
    struct tcp_vm net = {0};
    char bytes[16384];
    struct ends e;
    size_t had = 0;
    ssize_t n;

    ends_open(&e);
    fill(&e);
    linger_add(&net, e.fd);
    linger_close();
    g_assert_cmpuint(net.n_lingering, ==, 0);
    while ((n = recv(e.peer, bytes, sizeof(bytes), 0)) > 0 ||
           (n < 0 && errno == EAGAIN)) {
        had += n > 0 ? (size_t)n : 0;
    }
    g_assert_cmpint(n, ==, 0);
    g_assert_cmpuint(had, ==, e.sent);
    close(e.peer);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/ending/at-once", test_at_once);
    g_test_add_func("/ending/read", test_read);
    g_test_add_func("/ending/vm-gone", test_vm_gone);
    g_test_add_func("/ending/unread", test_unread);
    g_test_add_func("/ending/many", test_many);
    g_test_add_func("/ending/close", test_close);
    return g_test_run();
}
