/* SPDX-License-Identifier: GPL-2.0-or-later */
/* acceptor.c: how many are accepted per turn, and what stops it. */
#include "base/acceptor.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/fdwatch.h"

#define CLIENTS 5u

static struct {
    struct acceptor a;
    unsigned accepted, no_room;
    unsigned first; /* accepted when others had their first turn */
    unsigned most;  /* on_may() says no from then on, and pauses; 0: never */
    int client[CLIENTS];
} f;

static bool on_may(void *opaque)
{
    if (f.most && f.accepted == f.most) {
        acceptor_pause(&f.a, 1);
        f.most = 0;
        return false;
    }
    return true;
}

static void run_others(void)
{
    f.first = f.first ? f.first : f.accepted;
}

static struct fdwatch_later others = {.fn = run_others};

static void on_accepted(void *opaque, int fd, const struct sockaddr_storage *from)
{
    f.accepted++;
    fdwatch_later(&others);
    close(fd);
}

static void on_no_room(void *opaque, int err)
{
    g_assert_cmpint(err, ==, EMFILE);
    f.no_room++;
}

/* CLIENTS wait to be accepted. */
static void setup(unsigned batch)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t len = sizeof(sa_family_t);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    memset(&f, 0, sizeof(f));
    /* The kernel finds a name. */
    g_assert_cmpint(bind(fd, (struct sockaddr *)&address, len), ==, 0);
    g_assert_cmpint(listen(fd, CLIENTS), ==, 0);
    len = sizeof(address);
    g_assert_cmpint(getsockname(fd, (struct sockaddr *)&address, &len), ==, 0);
    for (unsigned i = 0; i < CLIENTS; i++) {
        f.client[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        g_assert_cmpint(connect(f.client[i], (struct sockaddr *)&address, len), ==, 0);
    }
    f.a = (struct acceptor){fd, batch, on_may, on_accepted, on_no_room, NULL};
    acceptor_start(&f.a);
}

static void teardown(void)
{
    acceptor_stop(&f.a);
    close(f.a.fd);
    for (unsigned i = 0; i < CLIENTS; i++) {
        close(f.client[i]);
    }
}

static void until(unsigned accepted)
{
    while (f.accepted < accepted) {
        g_main_context_iteration(NULL, TRUE);
    }
}

static void test_all(void)
{
    setup(2);
    until(CLIENTS);
    g_assert_cmpuint(f.first, ==, 2);
    g_assert_cmpuint(f.no_room, ==, 0);
    teardown();
}

/* The owner's pause: nothing is accepted meanwhile, the rest behind it. */
static void test_may(void)
{
    setup(CLIENTS);
    f.most = 2;
    until(2);
    g_assert_true(f.a.pause && !f.a.watch);
    g_assert_cmpuint(f.accepted, ==, 2);
    acceptor_start(&f.a); /* does not end the pause */
    g_assert_true(f.a.pause && !f.a.watch);
    until(CLIENTS);
    teardown();
}

/* Said once, then nothing runs until the pause is over. */
static void test_no_room(void)
{
    struct rlimit was, none;
    int next;

    setup(2);
    next = dup(0);
    close(next);
    g_assert_cmpint(getrlimit(RLIMIT_NOFILE, &was), ==, 0);
    none = (struct rlimit){(rlim_t)next, was.rlim_max};
    g_assert_cmpint(setrlimit(RLIMIT_NOFILE, &none), ==, 0);
    while (!f.no_room) {
        g_main_context_iteration(NULL, TRUE);
    }
    g_assert_true(f.a.pause && !f.a.watch);
    g_assert_false(g_main_context_iteration(NULL, FALSE));
    g_assert_cmpuint(f.no_room, ==, 1);
    g_assert_cmpint(setrlimit(RLIMIT_NOFILE, &was), ==, 0);
    until(CLIENTS);
    teardown();
}

static void test_stop(void)
{
    setup(1);
    acceptor_stop(&f.a);
    acceptor_pause(&f.a, 1);
    acceptor_stop(&f.a);
    g_assert_true(!f.a.pause && !f.a.watch);
    while (g_main_context_iteration(NULL, FALSE)) {
    }
    g_assert_cmpuint(f.accepted, ==, 0);
    acceptor_start(&f.a);
    until(CLIENTS);
    teardown();
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/acceptor/all", test_all);
    g_test_add_func("/acceptor/may", test_may);
    g_test_add_func("/acceptor/no-room", test_no_room);
    g_test_add_func("/acceptor/stop", test_stop);
    return g_test_run();
}
