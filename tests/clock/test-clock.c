/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * clock.c, in a program that has it preloaded, PVRDMA_CLOCK being FAST: LONG_S seconds
 * take a tenth of one, by whatever this program and GLib wait.  That it took less than
 * half of them, and not less than the tenth, holds however busy the machine is.  Children
 * have other factors.
 */
#include <glib.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define FAST   1000
#define LONG_S 100
#define NS     1000000000ll

/* A child's factor and what waiting 100 ms must take by the kernel's clock, ms. */
static const struct {
    const char *path, *factor;
    gint64 ms;
} children[] = {
    {"/clock/half", "1/2", 200},
    {"/clock/two-thirds", "2/3", 150},
    {"/clock/none", NULL, 100},
};

static gint64 ns_of(struct timespec t)
{
    return t.tv_sec * NS + t.tv_nsec;
}

static gint64 kernel_ns(clockid_t clock)
{
    struct timespec t;

    g_assert_cmpint(syscall(SYS_clock_gettime, clock, &t), ==, 0);
    return ns_of(t);
}

static gint64 clock_ns(clockid_t clock)
{
    struct timespec t;

    g_assert_cmpint(clock_gettime(clock, &t), ==, 0);
    return ns_of(t);
}

static void test_times(void)
{
    static const clockid_t scaled[] = {CLOCK_MONOTONIC, CLOCK_MONOTONIC_RAW,
                                       CLOCK_MONOTONIC_COARSE, CLOCK_BOOTTIME};
    gint64 before, us;

    for (guint i = 0; i < G_N_ELEMENTS(scaled); i++) {
        gint64 t;

        before = kernel_ns(scaled[i]);
        t = clock_ns(scaled[i]);
        g_assert_cmpint(t, >=, before * FAST);
        g_assert_cmpint(t, <=, kernel_ns(scaled[i]) * FAST);
    }
    before = kernel_ns(CLOCK_MONOTONIC);
    us = g_get_monotonic_time();
    g_assert_cmpint(us, >=, before * FAST / 1000);
    g_assert_cmpint(us, <=, kernel_ns(CLOCK_MONOTONIC) * FAST / 1000);
}

static void test_others(void)
{
    static const clockid_t others[] = {CLOCK_REALTIME, CLOCK_THREAD_CPUTIME_ID};

    for (guint i = 0; i < G_N_ELEMENTS(others); i++) {
        gint64 before = kernel_ns(others[i]), t = clock_ns(others[i]);

        g_assert_cmpint(t, >=, before);
        g_assert_cmpint(t, <=, kernel_ns(others[i]));
    }
}

static void wait_poll(void)
{
    g_assert_cmpint(poll(NULL, 0, LONG_S * 1000), ==, 0);
}

static void wait_epoll(void)
{
    const struct timespec t = {LONG_S, 0};
    struct epoll_event ev;
    int fd = epoll_create1(EPOLL_CLOEXEC);

    g_assert_cmpint(epoll_pwait2(fd, &ev, 1, &t, NULL), ==, 0);
    close(fd);
}

static void wait_nanosleep(void)
{
    const struct timespec t = {LONG_S, 0};

    g_assert_cmpint(nanosleep(&t, NULL), ==, 0);
}

static void wait_usleep(void)
{
    g_assert_cmpint(usleep(LONG_S * 1000000u), ==, 0);
}

static void wait_g_usleep(void)
{
    g_usleep(LONG_S * G_USEC_PER_SEC);
}

static gboolean quit(gpointer loop)
{
    g_main_loop_quit(loop);
    return G_SOURCE_REMOVE;
}

static void wait_loop(void)
{
    GMainLoop *loop = g_main_loop_new(NULL, FALSE);

    g_timeout_add(LONG_S * 1000, quit, loop);
    g_main_loop_run(loop);
    g_main_loop_unref(loop);
}

static void test_wait(gconstpointer data)
{
    void (*const *wait)(void) = data;
    gint64 begun = kernel_ns(CLOCK_MONOTONIC), us = g_get_monotonic_time(), ns;

    (*wait)();
    ns = kernel_ns(CLOCK_MONOTONIC) - begun;
    g_assert_cmpint(ns, >=, LONG_S * NS / FAST);
    g_assert_cmpint(ns, <, LONG_S * NS / 2);
    /* Nobody is woken up before his time. */
    g_assert_cmpint(g_get_monotonic_time() - us, >=, LONG_S * G_USEC_PER_SEC - FAST);
}

/* Without a timeout, and with none at all, it is as without the clock. */
static void test_no_timeout(void)
{
    struct epoll_event ev;
    int fds[2], fd = epoll_create1(EPOLL_CLOEXEC);
    struct pollfd p;

    g_assert_cmpint(pipe(fds), ==, 0);
    p = (struct pollfd){.fd = fds[0], .events = POLLIN};
    g_assert_cmpint(poll(&p, 1, 0), ==, 0);
    g_assert_cmpint(epoll_ctl(fd, EPOLL_CTL_ADD, fds[0], &(struct epoll_event){EPOLLIN}),
                    ==, 0);
    g_assert_cmpint(epoll_pwait2(fd, &ev, 1, &(struct timespec){0, 0}, NULL), ==, 0);
    g_assert_cmpint(write(fds[1], "", 1), ==, 1);
    g_assert_cmpint(poll(&p, 1, -1), ==, 1);
    g_assert_cmpint(epoll_pwait2(fd, &ev, 1, NULL, NULL), ==, 1);
    close(fds[0]);
    close(fds[1]);
    close(fd);
}

static void test_child(gconstpointer data)
{
    guint i = GPOINTER_TO_UINT(data);
    g_auto(GStrv) env = g_get_environ();
    const char *argv[] = {"/proc/self/exe", "--child", NULL};
    gint64 begun = kernel_ns(CLOCK_MONOTONIC);
    int status;

    env = children[i].factor
              ? g_environ_setenv(env, "PVRDMA_CLOCK", children[i].factor, TRUE)
              : g_environ_unsetenv(env, "PVRDMA_CLOCK");
    g_assert_true(g_spawn_sync(NULL, (char **)argv, env, G_SPAWN_DEFAULT, NULL, NULL,
                               NULL, NULL, &status, NULL));
    g_assert_cmpint(status, ==, 0);
    g_assert_cmpint(kernel_ns(CLOCK_MONOTONIC) - begun, >=, children[i].ms * 1000000);
}

/* What is no factor must not pass for 1. */
static void test_nonsense(void)
{
    static const char *const texts[] = {"",   "0",   "-1",    "x",  "4x",
                                        "1/", "1/0", "1/2/3", "1e9"};

    for (guint i = 0; i < G_N_ELEMENTS(texts); i++) {
        g_auto(GStrv) env =
            g_environ_setenv(g_get_environ(), "PVRDMA_CLOCK", texts[i], TRUE);
        const char *argv[] = {"/proc/self/exe", "--child", NULL};
        g_autofree char *said = NULL;
        int status;

        g_assert_true(g_spawn_sync(NULL, (char **)argv, env, G_SPAWN_DEFAULT, NULL, NULL,
                                   NULL, &said, &status, NULL));
        g_assert_cmpint(status, !=, 0);
        g_assert_nonnull(strstr(said, "is neither N nor N/M"));
    }
}

int main(int argc, char **argv)
{
    static const struct {
        const char *path;
        void (*wait)(void);
    } waits[] = {
        {"/clock/poll", wait_poll},           {"/clock/epoll", wait_epoll},
        {"/clock/nanosleep", wait_nanosleep}, {"/clock/usleep", wait_usleep},
        {"/clock/g-usleep", wait_g_usleep},   {"/clock/loop", wait_loop},
    };

    if (g_strcmp0(argv[1], "--child") == 0) {
        return poll(NULL, 0, 100);
    }
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/clock/times", test_times);
    g_test_add_func("/clock/others", test_others);
    for (guint i = 0; i < G_N_ELEMENTS(waits); i++) {
        g_test_add_data_func(waits[i].path, &waits[i].wait, test_wait);
    }
    g_test_add_func("/clock/no-timeout", test_no_timeout);
    for (guint i = 0; i < G_N_ELEMENTS(children); i++) {
        g_test_add_data_func(children[i].path, GUINT_TO_POINTER(i), test_child);
    }
    g_test_add_func("/clock/nonsense", test_nonsense);
    return g_test_run();
}
