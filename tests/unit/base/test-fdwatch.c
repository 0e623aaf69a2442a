/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Watches of descriptors: who is called for what, several on one descriptor, and
 * callbacks that remove themselves, each other, and reuse numbers.
 */
#include <fcntl.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fdwatch.h"

struct end {
    int fd, peer;
    guint in, out;
    unsigned ins, outs;
    GIOCondition last;
    struct end *removes; /* this one's watches, when called */
    bool once;
};

static void open_end(struct end *e)
{
    int s[2];

    g_assert_cmpint(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, s),
                    ==, 0);
    *e = (struct end){.fd = s[0], .peer = s[1]};
}

static void drop(struct end *e)
{
    if (e->in) {
        fdwatch_remove(e->in);
        e->in = 0;
    }
    if (e->out) {
        fdwatch_remove(e->out);
        e->out = 0;
    }
}

static void close_end(struct end *e)
{
    drop(e);
    close(e->fd);
    if (e->peer >= 0) {
        close(e->peer);
    }
}

static gboolean on_in(gint fd, GIOCondition cond, gpointer opaque)
{
    struct end *e = opaque;

    g_assert_cmpint(fd, ==, e->fd);
    e->ins++;
    e->last = cond;
    if (e->removes) {
        drop(e->removes);
    }
    if (e->once) {
        e->in = 0;
    }
    return e->once ? G_SOURCE_REMOVE : G_SOURCE_CONTINUE;
}

static gboolean on_out(gint fd, GIOCondition cond, gpointer opaque)
{
    struct end *e = opaque;

    e->outs++;
    e->out = 0;
    return G_SOURCE_REMOVE;
}

static void turn(void)
{
    for (unsigned i = 0; i < 10; i++) {
        g_main_context_iteration(NULL, FALSE);
    }
}

static void test_basics(void)
{
    struct end e;
    char c;

    open_end(&e);
    e.in = fdwatch_add(e.fd, G_IO_IN, on_in, &e);
    g_assert_cmpuint(e.in, !=, 0);
    turn();
    g_assert_cmpuint(e.ins, ==, 0);
    g_assert_cmpint(write(e.peer, "x", 1), ==, 1);
    turn();
    g_assert_cmpuint(e.ins, >, 0); /* and again while it is so */
    g_assert_cmpint(e.last, ==, G_IO_IN);
    g_assert_cmpint(read(e.fd, &c, 1), ==, 1);
    turn();
    e.ins = 0;
    turn();
    g_assert_cmpuint(e.ins, ==, 0);

    /* A second watch of the same descriptor comes and goes. */
    e.out = fdwatch_add(e.fd, G_IO_OUT, on_out, &e);
    turn();
    g_assert_cmpuint(e.outs, ==, 1);
    g_assert_cmpuint(e.ins, ==, 0);
    turn();
    g_assert_cmpuint(e.outs, ==, 1);

    close(e.peer);
    e.peer = -1;
    e.once = true;
    turn();
    g_assert_cmpuint(e.ins, ==, 1);
    g_assert_true(e.last & G_IO_HUP);
    fdwatch_remove(12345); /* unknown: nothing happens */
    close_end(&e);
}

/* What a callback removes is not called any more, though it was ready as well. */
static void test_remove_other(void)
{
    struct end e[2];

    for (unsigned i = 0; i < 2; i++) {
        open_end(&e[i]);
        e[i].in = fdwatch_add(e[i].fd, G_IO_IN, on_in, &e[i]);
        g_assert_cmpint(write(e[i].peer, "x", 1), ==, 1);
    }
    e[0].removes = &e[1];
    e[1].removes = &e[0];
    turn();
    g_assert_cmpuint((e[0].ins > 0) + (e[1].ins > 0), ==, 1);
    close_end(&e[0]);
    close_end(&e[1]);
    turn();
}

/* Everybody gets a say when more are ready than a turn takes. */
static void test_many(void)
{
    enum { MANY = 400 };
    static struct end e[MANY];
    struct rlimit rl;

    g_assert_cmpint(getrlimit(RLIMIT_NOFILE, &rl), ==, 0);
    rl.rlim_cur = rl.rlim_max;
    setrlimit(RLIMIT_NOFILE, &rl);
    for (unsigned i = 0; i < MANY; i++) {
        open_end(&e[i]);
        e[i].in = fdwatch_add(e[i].fd, G_IO_IN, on_in, &e[i]);
        g_assert_cmpint(write(e[i].peer, "x", 1), ==, 1);
    }
    turn();
    for (unsigned i = 0; i < MANY; i++) {
        g_assert_cmpuint(e[i].ins, >, 0);
        close_end(&e[i]);
    }
}

/* ---- what is put off ---- */

static unsigned calls[2];
static void on_first(void);
static void on_second(void);
static struct fdwatch_later first = {.fn = on_first}, second = {.fn = on_second};

static void on_first(void)
{
    calls[0]++;
    fdwatch_later(&second);
    if (calls[0] < 100) {
        fdwatch_later(&first);
    }
}

static void on_second(void)
{
    calls[1]++;
}

static gboolean on_in_later(gint fd, GIOCondition cond, gpointer opaque)
{
    char c;

    g_assert_cmpint(read(fd, &c, 1), ==, 1);
    fdwatch_later(&second);
    fdwatch_later(&second);
    return G_SOURCE_CONTINUE;
}

/* It comes, once, in its turn, and not if that is taken back. */
static void test_later(void)
{
    struct end e;

    fdwatch_later(&first);
    fdwatch_later(&first);
    g_assert_cmpuint(calls[0], ==, 0);
    for (unsigned i = 0; i < 1000 && calls[0] < 100; i++) {
        turn();
    }
    turn();
    g_assert_cmpuint(calls[0], ==, 100);
    g_assert_cmpuint(calls[1], >, 0);
    g_assert_cmpuint(calls[1], <=, 100);

    calls[1] = 0;
    fdwatch_later(&first);
    fdwatch_later(&second);
    fdwatch_not_later(&first);
    fdwatch_not_later(&second);
    fdwatch_not_later(&second);
    turn();
    g_assert_cmpuint(calls[0], ==, 100);
    g_assert_cmpuint(calls[1], ==, 0);

    /* From a descriptor's callback: in the same turn. */
    open_end(&e);
    e.in = fdwatch_add(e.fd, G_IO_IN, on_in_later, &e);
    g_assert_cmpint(write(e.peer, "x", 1), ==, 1);
    g_main_context_iteration(NULL, FALSE);
    g_assert_cmpuint(calls[1], ==, 1);
    turn();
    g_assert_cmpuint(calls[1], ==, 1);
    close_end(&e);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/fdwatch/basics", test_basics);
    g_test_add_func("/fdwatch/remove-other", test_remove_other);
    g_test_add_func("/fdwatch/many", test_many);
    g_test_add_func("/fdwatch/later", test_later);
    return g_test_run();
}
