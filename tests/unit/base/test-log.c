/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The log: one line per message whatever it holds, levels, and the rate limit
 * of a VM.  stderr is a file while a test looks at it.
 */
#include <fcntl.h>
#include <glib/gstdio.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

static int old_stderr;
static char *path;

static void capture(void)
{
    int fd = g_file_open_tmp("pvrdma-log-XXXXXX", &path, NULL);

    g_assert_cmpint(fd, >=, 0);
    old_stderr = dup(STDERR_FILENO);
    dup2(fd, STDERR_FILENO);
    close(fd);
}

static char *release(void)
{
    char *text = NULL;

    dup2(old_stderr, STDERR_FILENO);
    close(old_stderr);
    g_assert_true(g_file_get_contents(path, &text, NULL, NULL));
    g_unlink(path);
    g_clear_pointer(&path, g_free);
    return text;
}

static unsigned lines(const char *text)
{
    unsigned n = 0;

    for (; *text; text++) {
        n += *text == '\n';
    }
    return n;
}

static void test_levels(void)
{
    g_autofree char *text = NULL;
    enum log_level level;

    capture();
    log_set_level(LOG_LVL_WARN);
    log_msg(LOG_LVL_ERROR, "e");
    log_msg(LOG_LVL_WARN, "w");
    log_msg(LOG_LVL_INFO, "i");
    log_set_level(LOG_LVL_DEBUG);
    log_msg(LOG_LVL_DEBUG, "d");
    text = release();
    g_assert_cmpstr(text, ==, "<3>e\n<4>w\n<7>d\n");
    g_assert_true(log_parse_level("info", &level) && level == LOG_LVL_INFO);
    g_assert_false(log_parse_level("INFO", &level));
    g_assert_false(log_parse_level("", &level));
}

static void test_escape(void)
{
    g_autofree char *text = NULL;
    g_autofree char *big = g_strnfill(100000, '\n');

    capture();
    log_msg(LOG_LVL_ERROR, "a\n<0>forged\x1b[2J\x7f");
    log_msg(LOG_LVL_ERROR, "%s", big);
    text = release();
    g_assert_true(g_str_has_prefix(text, "<3>a\\x0a<0>forged\\x1b[2J\\x7f\n<3>"));
    g_assert_cmpuint(lines(text), ==, 2);
    g_assert_cmpuint(strlen(text), <, 2048);
}

static void test_limit(void)
{
    struct log_subject vm = {.name = "noisy"}, other = {.name = "noisy"};
    g_autofree char *text = NULL;

    capture();
    log_set_level(LOG_LVL_INFO);
    for (unsigned i = 0; i < 1000; i++) {
        log_about(LOG_LVL_INFO, &vm, "message %u", i);
    }
    log_about(LOG_LVL_INFO, &other, "still heard");
    log_flush(&vm);
    log_flush(&vm);
    text = release();
    g_assert_nonnull(strstr(text, "<6>vm noisy: message 9\n"));
    g_assert_null(strstr(text, "message 10\n"));
    g_assert_nonnull(strstr(text, "still heard"));
    g_assert_nonnull(strstr(text, "990 messages suppressed"));
    g_assert_cmpuint(lines(text), ==, 12);
}

/* Many noisy VMs together leave room for a quiet one and for the daemon itself. */
static void test_limit_all(void)
{
    static struct log_subject noisy[60];
    struct log_subject quiet = {.name = "quiet"};
    g_autofree char *text = NULL;

    /* The second of the test before is over. */
    g_usleep(1100000);
    capture();
    log_set_level(LOG_LVL_INFO);
    for (unsigned i = 0; i < 100; i++) {
        for (unsigned v = 0; v < G_N_ELEMENTS(noisy); v++) {
            noisy[v].name = "noisy";
            log_about(LOG_LVL_INFO, &noisy[v], "message %u", i);
        }
    }
    log_about(LOG_LVL_INFO, &quiet, "still heard");
    log_msg(LOG_LVL_INFO, "the daemon too");
    text = release();
    g_assert_nonnull(strstr(text, "<6>vm quiet: still heard\n"));
    g_assert_nonnull(strstr(text, "<6>the daemon too\n"));
    g_assert_cmpuint(lines(text), >=, 150);
    /* A second boundary may have been met. */
    g_assert_cmpuint(lines(text), <=, 2 * 200 + 2);
}

/* ---- with the thread ---- */

#define WRITERS  4u
#define MESSAGES 100u

static gpointer write_many(gpointer id)
{
    for (unsigned i = 0; i < MESSAGES; i++) {
        log_msg(LOG_LVL_INFO, "writer %u says %u", GPOINTER_TO_UINT(id), i);
    }
    return NULL;
}

static void test_thread(void)
{
    unsigned next[WRITERS] = {0};
    g_autofree char *text = NULL;
    g_auto(GStrv) line = NULL;
    GThread *writer[WRITERS];

    capture();
    g_assert_true(log_start(NULL));
    for (unsigned i = 0; i < WRITERS; i++) {
        writer[i] = g_thread_new("writer", write_many, GUINT_TO_POINTER(i));
    }
    for (unsigned i = 0; i < WRITERS; i++) {
        g_thread_join(writer[i]);
    }
    g_assert_true(log_drain(10000));
    g_assert_true(log_stop());
    log_msg(LOG_LVL_INFO, "directly");
    text = release();
    /* Every line is there and whole, each writer's in its order. */
    g_assert_cmpuint(lines(text), ==, WRITERS * MESSAGES + 1);
    g_assert_true(g_str_has_suffix(text, "\n<6>directly\n"));
    line = g_strsplit(text, "\n", -1);
    for (unsigned i = 0; i < WRITERS * MESSAGES; i++) {
        unsigned id, n;

        g_assert_cmpint(sscanf(line[i], "<6>writer %u says %u", &id, &n), ==, 2);
        g_assert_cmpuint(id, <, WRITERS);
        g_assert_cmpuint(n, ==, next[id]++);
    }
}

/* Make stderr a pipe; its reading end. */
static int pipe_stderr(void)
{
    int fd[2];

    g_assert_cmpint(pipe2(fd, O_CLOEXEC), ==, 0);
    old_stderr = dup(STDERR_FILENO);
    dup2(fd[1], STDERR_FILENO);
    close(fd[1]);
    return fd[0];
}

static void restore_stderr(void)
{
    dup2(old_stderr, STDERR_FILENO);
    close(old_stderr);
}

/* What comes out of @fd until @word was seen. */
static GString *read_until(int fd, const char *word)
{
    GString *all = g_string_new(NULL);
    char buf[4096];

    while (!strstr(all->str, word)) {
        ssize_t n = read(fd, buf, sizeof(buf));

        g_assert_cmpint(n, >, 0);
        g_string_append_len(all, buf, n);
    }
    return all;
}

/* Nobody reads: no writer waits, what was lost is counted, in its place. */
static void test_unread(void)
{
    g_autofree char *pad = g_strnfill(500, 'x');
    struct log_subject vm = {.name = "vm"};
    unsigned said = 0, next = 0, n;
    g_auto(GStrv) line = NULL;
    GString *text;
    gint64 begin;
    int fd;

    fd = pipe_stderr();
    g_assert_true(log_start(NULL));
    begin = g_get_monotonic_time();
    for (unsigned i = 0; i < 5000; i++) {
        log_msg(LOG_LVL_INFO, "number %u %s", i, pad);
    }
    log_about(LOG_LVL_INFO, &vm, "lost too");
    g_assert_cmpint(g_get_monotonic_time() - begin, <, 5 * G_USEC_PER_SEC);
    g_assert_false(log_drain(10));
    text = read_until(fd, "messages lost");
    log_msg(LOG_LVL_INFO, "the end");
    g_string_append(text, read_until(fd, "the end")->str);
    restore_stderr();
    g_assert_true(log_stop());
    close(fd);
    line = g_strsplit(text->str, "\n", -1);
    for (unsigned i = 0; line[i]; i++) {
        if (sscanf(line[i], "<6>number %u", &n) == 1) {
            g_assert_cmpuint(n, ==, next++); /* none is missing that is not counted */
            said++;
        } else if (sscanf(line[i], "<4>%u messages lost", &n) == 1) {
            next += n;
        }
    }
    g_assert_cmpuint(said, >, 300);
    g_assert_cmpuint(next, ==, 5001);
    g_string_free(text, TRUE);
}

/* Messages about VMs do not take the room of the others. */
static void test_reserve(void)
{
    static struct log_subject vms[400];
    g_autofree char *pad = g_strnfill(900, 'x');
    GString *text;
    int fd;

    g_usleep(1100000);
    fd = pipe_stderr();
    g_assert_true(log_start(NULL));
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < G_N_ELEMENTS(vms); i++) {
            vms[i].name = "vm";
            log_about(LOG_LVL_INFO, &vms[i], "%s", pad);
        }
        g_usleep(1100000);
    }
    for (unsigned i = 0; i < 50; i++) {
        log_msg(LOG_LVL_WARN, "reserved %u %s", i, pad);
    }
    text = read_until(fd, "reserved 49");
    for (unsigned i = 0; i < 50; i++) {
        g_autofree char *line = g_strdup_printf("<4>reserved %u x", i);

        g_assert_nonnull(strstr(text->str, line));
    }
    /* What was lost is said, before what came after it. */
    g_assert_nonnull(strstr(text->str, " messages lost"));
    g_assert_true(strstr(text->str, " messages lost") < strstr(text->str, "reserved 0"));
    restore_stderr();
    g_assert_true(log_stop());
    close(fd);
    g_string_free(text, TRUE);
}

/* The end is not waited for for ever.  In a child: its log is deaf afterwards. */
static void test_stop_unread(void)
{
    if (g_test_subprocess()) {
        gint64 begin = g_get_monotonic_time();
        int fd = pipe_stderr();

        g_assert_true(log_start(NULL));
        for (unsigned i = 0; i < 3000; i++) {
            log_msg(LOG_LVL_INFO, "a line that is a bit longer than the others are %u",
                    i);
        }
        if (log_stop() || g_get_monotonic_time() - begin > 10 * G_USEC_PER_SEC) {
            _exit(1);
        }
        for (unsigned i = 0; i < 1000; i++) {
            log_msg(LOG_LVL_INFO, "would block");
        }
        _exit(fd < 0); /* it was open until here */
    }
    g_test_trap_subprocess(NULL, 30 * G_USEC_PER_SEC, 0);
    g_test_trap_assert_passed();
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/log/levels", test_levels);
    g_test_add_func("/log/escape", test_escape);
    g_test_add_func("/log/limit", test_limit);
    g_test_add_func("/log/limit-all", test_limit_all);
    g_test_add_func("/log/thread", test_thread);
    g_test_add_func("/log/unread", test_unread);
    g_test_add_func("/log/reserve", test_reserve);
    g_test_add_func("/log/stop-unread", test_stop_unread);
    return g_test_run();
}
