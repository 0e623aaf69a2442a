/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * iwarp/setup/handshake.c: connections that have come and show no token, and how many
 * there may be, of a host, of the loopback interface and of all.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <glib.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../../heap.h"
#include "transport/iwarp/setup/bind.h"

/* docs/hosts.md has these. */
#define ALL    4096u
#define OF_ONE 64u
#define EACH   1024u /* bytes */
#define LOOP   UINT_MAX

static int pair[2]; /* the connections are this one's copies: nothing ever comes */

static struct sockaddr_storage host(unsigned i)
{
    struct sockaddr_storage a = {0};
    struct sockaddr_in *in = (struct sockaddr_in *)&a;

    in->sin_family = AF_INET;
    in->sin_addr.s_addr = htonl(0x7f010000u + i);
    return a;
}

static bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

/* One more, @fd, of host @i, or of the loopback interface, has its place. */
static void take(int fd, unsigned i)
{
    struct sockaddr_storage from = host(i);

    g_assert_cmpint(fd, >=, 0);
    handshake_accepted(fd, i == LOOP ? NULL : &from);
    g_assert_true(is_open(fd));
}

static int take_copy(unsigned i)
{
    int fd = fcntl(pair[0], F_DUPFD_CLOEXEC, 0);

    take(fd, i);
    return fd;
}

static void make_pair(int fd[2])
{
    g_assert_cmpint(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), ==, 0);
}

static void test_bounds(void)
{
    static int fd[ALL];
    size_t before;
    int one[2];

    if (!heap_have_descriptors(ALL + 100)) {
        return;
    }
    make_pair(pair);
    make_pair(one);
    before = heap_used();
    fd[ALL - 1] = take_copy(ALL + 1); /* the oldest of all, of a host that has few */
    for (unsigned i = 0; i < ALL - 1; i++) {
        fd[i] = take_copy(i / OF_ONE);
    }
    heap_assert_each("without a token", before, ALL, EACH);
    /* One more of a host is for its oldest; one of another for that of a host that has
     * most. */
    take(one[0], 1);
    g_assert_false(is_open(fd[OF_ONE]));
    fd[OF_ONE] = take_copy(ALL);
    g_assert_false(is_open(fd[0]));
    g_assert_true(is_open(fd[ALL - 1]));
    /* One has ended: there is room for another. */
    close(one[1]);
    while (is_open(one[0])) {
        g_main_context_iteration(NULL, TRUE);
    }
    take_copy(ALL);
    g_assert_true(is_open(fd[1]));
    handshake_close();
    close(pair[0]);
    close(pair[1]);
}

/* path=tcp: whoever can connect to the loopback interface. */
static void test_loop(void)
{
    static int fd[ALL];

    if (!heap_have_descriptors(ALL + 100)) {
        return;
    }
    make_pair(pair);
    for (unsigned i = 0; i < ALL; i++) {
        fd[i] = take_copy(LOOP);
    }
    g_assert_true(is_open(fd[0]));
    take_copy(LOOP);
    g_assert_false(is_open(fd[0]));
    g_assert_true(is_open(fd[1]));
    handshake_close();
    close(pair[0]);
    close(pair[1]);
}

/* What has come as a whole needs no place, and nobody loses one for it. */
static void test_whole(void)
{
    struct sockaddr_storage from = host(0);
    int fd[OF_ONE], one[2];

    make_pair(pair);
    make_pair(one);
    for (unsigned i = 0; i < OF_ONE; i++) {
        fd[i] = take_copy(0);
    }
    g_assert_cmpint(send(one[1], "GET / HTTP/1.1\r\n\r\n\r\n\r\n", 22, 0), ==, 22);
    handshake_accepted(one[0], &from);
    g_assert_false(is_open(one[0]));
    for (unsigned i = 0; i < OF_ONE; i++) {
        g_assert_true(is_open(fd[i]));
    }
    /* What is not is for its host's oldest, though there is room for others. */
    take_copy(0);
    g_assert_false(is_open(fd[0]));
    handshake_close();
    close(one[1]);
    close(pair[0]);
    close(pair[1]);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/startup/bounds", test_bounds);
    g_test_add_func("/startup/loop", test_loop);
    g_test_add_func("/startup/whole", test_whole);
    return g_test_run();
}
