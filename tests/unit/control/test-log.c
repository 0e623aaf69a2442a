/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The log: one line per message whatever it holds, levels, and the rate limit
 * of a VM.  stderr is a file while a test looks at it.
 */
#include <fcntl.h>
#include <glib/gstdio.h>
#include <string.h>
#include <unistd.h>

#include "log.h"

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

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/log/levels", test_levels);
    g_test_add_func("/log/escape", test_escape);
    g_test_add_func("/log/limit", test_limit);
    return g_test_run();
}
