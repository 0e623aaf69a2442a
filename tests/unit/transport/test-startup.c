/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * tcp/startup.c: connections that have come and show no token, and how many there may be,
 * of a host and of all.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <glib.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../heap.h"
#include "transport/tcp/setup.h"

/* docs/hosts.md has these. */
#define ALL    4096u
#define OF_ONE 64u
#define EACH   1024u /* bytes */

static int pair[2]; /* the connections are this one's copies: nothing ever comes */

static struct sockaddr_storage host(unsigned i)
{
    struct sockaddr_storage a = {0};
    struct sockaddr_in *in = (struct sockaddr_in *)&a;

    in->sin_family = AF_INET;
    in->sin_addr.s_addr = htonl(0x7f010000u + i);
    return a;
}

/* One more, @fd, of host @i.  False: it was closed at once. */
static bool taken(int fd, unsigned i)
{
    struct sockaddr_storage from = host(i);

    g_assert_cmpint(fd, >=, 0);
    startup_accepted(fd, &from);
    return fcntl(fd, F_GETFD) >= 0;
}

static bool copy_taken(unsigned i)
{
    return taken(fcntl(pair[0], F_DUPFD_CLOEXEC, 0), i);
}

static void test_bounds(void)
{
    size_t before;
    int one[2];

    if (!heap_have_descriptors(ALL + 100)) {
        return;
    }
    g_assert_cmpint(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), ==, 0);
    g_assert_cmpint(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, one), ==, 0);
    before = heap_used();
    g_assert_true(taken(one[0], 0));
    for (unsigned n = 1; n < OF_ONE; n++) {
        g_assert_true(copy_taken(0));
    }
    g_assert_false(copy_taken(0));
    for (unsigned i = 1; i < ALL / OF_ONE; i++) {
        for (unsigned n = 0; n < OF_ONE; n++) {
            g_assert_true(copy_taken(i));
        }
    }
    heap_assert_each("without a token", before, ALL, EACH);
    g_assert_false(copy_taken(ALL));
    /* One has ended: there is room for another. */
    close(one[1]);
    while (fcntl(one[0], F_GETFD) >= 0) {
        g_main_context_iteration(NULL, TRUE);
    }
    g_assert_true(copy_taken(ALL));
    startup_close();
    close(pair[0]);
    close(pair[1]);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/startup/bounds", test_bounds);
    return g_test_run();
}
