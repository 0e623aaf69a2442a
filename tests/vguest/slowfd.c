/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A descriptor that is slow to close; see slowfd.h. */
#include "slowfd.h"

#include <glib.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

int slow_to_close(int *peer)
{
    struct sockaddr_in addr = {.sin_family = AF_INET,
                               .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof(addr);
    struct linger linger = {1, 10000};
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    static const char data[65536];

    g_assert_cmpint(bind(listener, (struct sockaddr *)&addr, len), ==, 0);
    g_assert_cmpint(listen(listener, 1), ==, 0);
    g_assert_cmpint(getsockname(listener, (struct sockaddr *)&addr, &len), ==, 0);
    g_assert_cmpint(connect(fd, (struct sockaddr *)&addr, len), ==, 0);
    *peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    g_assert_cmpint(*peer, >=, 0);
    close(listener);
    while (send(fd, data, sizeof(data), MSG_DONTWAIT) > 0) {
    }
    g_assert_cmpint(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)), ==,
                    0);
    return fd;
}
