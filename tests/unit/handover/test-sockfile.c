/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Socket files: their mode from the first moment on, what is replaced and what is
 * not, and a folder whose owner means harm.
 */
#include <errno.h>
#include <glib/gstdio.h>
#include <stdbool.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "handover/sockfile.h"

static char *dir, *path;

static mode_t mode_of(const char *name)
{
    struct stat st;

    g_assert_cmpint(lstat(name, &st), ==, 0);
    return st.st_mode & 07777;
}

static void test_mode(void)
{
    static const mode_t masks[] = {0, 022, 077, 0777};
    struct sockfile f;

    for (unsigned i = 0; i < G_N_ELEMENTS(masks); i++) {
        int fd;

        umask(masks[i]);
        fd = sockfile_listen(&f, path, 0660, 1);
        g_assert_cmpint(fd, >=, 0);
        g_assert_cmpuint(mode_of(path), ==, 0660);
        g_assert_cmpuint(umask(022), ==, masks[i]);
        close(fd);
        sockfile_remove(&f);
        g_assert_cmpint(access(path, F_OK), !=, 0);
    }
}

static struct state_in *next_section(struct handover_in *h, struct state_section *s)
{
    g_assert_true(state_section_next(handover_stream(h), s));
    return &s->in;
}

/* To another daemon: the socket with its file and its clients, if nothing has changed. */
static void test_hand_over(void)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    g_autofree char *other = g_strconcat(path, "-2", NULL);
    struct sockfile f[2], got;
    struct handover_out out;
    struct handover_in *in;
    struct state_section s;
    int fd[2], client, memfd;
    char *first;

    handover_out_begin(&out);
    for (unsigned i = 0; i < 2; i++) {
        fd[i] = sockfile_listen(&f[i], i ? other : path, 0660, 1);
        g_assert_cmpint(fd[i], >=, 0);
        state_section_begin(&out.s, STATE_TAG('S', 'O', 'C', 'K'), 1, 0);
        sockfile_hand_over(&f[i], fd[i], &out);
        state_section_end(&out.s);
    }
    memfd = handover_seal(&out, NULL);
    g_assert_cmpint(memfd, >=, 0);
    handover_out_clear(&out);
    client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    g_strlcpy(addr.sun_path, path, sizeof(addr.sun_path));
    g_assert_cmpint(connect(client, (struct sockaddr *)&addr, sizeof(addr)), ==, 0);

    in = handover_open(memfd, NULL);
    g_assert_nonnull(in);
    sockfile_take_over(in, next_section(in, &s));
    sockfile_take_over(in, next_section(in, &s));
    handover_close(in);
    g_assert_cmpint(sockfile_listen(&got, path, 0660, 1), ==, fd[0]);
    g_assert_cmpint(accept(fd[0], NULL, NULL), >=, 0);
    first = f[0].path; /* what the former daemon had */
    /* Somebody has taken the other one's place, so it is as if it had not been there. */
    g_assert_cmpint(g_unlink(other), ==, 0);
    g_assert_cmpint(sockfile_listen(&f[0], other, 0660, 1), >=, 0);
    sockfile_drop_rest();
    g_assert_cmpint(access(other, F_OK), ==, 0);
    g_assert_cmpint(access(path, F_OK), ==, 0);
    sockfile_remove(&f[0]);
    sockfile_remove(&got);
    g_free(f[1].path);
    g_free(first);
    close(client);
}

/*
 * Nothing changes attributes by name: in a folder of somebody else the name may lead
 * elsewhere by then.  The kernel reports each such change.
 */
static void test_no_chmod(void)
{
    int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    struct sockfile f;
    char buf[4096];
    int fd;

    g_assert_cmpint(inotify_add_watch(watch, dir, IN_ATTRIB), >=, 0);
    fd = sockfile_listen(&f, path, 0660, 1);
    g_assert_cmpint(fd, >=, 0);
    g_assert_cmpint(read(watch, buf, sizeof(buf)), ==, -1);
    g_assert_cmpint(errno, ==, EAGAIN);
    close(fd);
    sockfile_remove(&f);
    close(watch);
}

static int make_socket(bool listening)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    g_strlcpy(addr.sun_path, path, sizeof(addr.sun_path));
    g_assert_cmpint(bind(s, (struct sockaddr *)&addr, sizeof(addr)), ==, 0);
    if (listening) {
        g_assert_cmpint(listen(s, 0), ==, 0);
    }
    return s;
}

static void test_stale(void)
{
    struct sockfile f;
    int s, fd;

    /* Somebody listens. */
    s = make_socket(true);
    g_assert_cmpint(sockfile_listen(&f, path, 0660, 1), ==, -EADDRINUSE);
    /* The attempt has filled the backlog: still somebody. */
    g_assert_cmpint(sockfile_listen(&f, path, 0660, 1), ==, -EADDRINUSE);
    g_assert_cmpint(sockfile_listen(&f, path, 0660, 1), ==, -EADDRINUSE);
    close(s);
    fd = sockfile_listen(&f, path, 0660, 1);
    g_assert_cmpint(fd, >=, 0);
    /* Replaced by another's: not removed. */
    g_unlink(path);
    s = make_socket(false);
    sockfile_remove(&f);
    g_assert_cmpint(access(path, F_OK), ==, 0);
    close(s);
    close(fd);
    g_unlink(path);

    /* A datagram socket refuses in another way than a dead one: hands off. */
    s = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    {
        struct sockaddr_un addr = {.sun_family = AF_UNIX};

        g_strlcpy(addr.sun_path, path, sizeof(addr.sun_path));
        g_assert_cmpint(bind(s, (struct sockaddr *)&addr, sizeof(addr)), ==, 0);
    }
    g_assert_cmpint(sockfile_listen(&f, path, 0660, 1), ==, -EADDRINUSE);
    g_assert_cmpint(access(path, F_OK), ==, 0);
    close(s);
    g_unlink(path);
}

static void test_not_a_socket(void)
{
    g_autofree char *target = g_build_filename(dir, "target", NULL);
    struct sockfile f;

    g_assert_true(g_file_set_contents(path, "precious", -1, NULL));
    g_assert_cmpint(sockfile_listen(&f, path, 0660, 1), ==, -EEXIST);
    g_assert_true(g_file_test(path, G_FILE_TEST_IS_REGULAR));
    g_unlink(path);
    /* A link is none either, wherever it leads to. */
    g_assert_cmpint(symlink(target, path), ==, 0);
    g_assert_cmpint(sockfile_listen(&f, path, 0660, 1), ==, -EEXIST);
    g_assert_cmpint(access(target, F_OK), !=, 0);
    g_unlink(path);
    g_assert_cmpint(sockfile_listen(&f, "/nonexistent/socket", 0660, 1), ==, -ENOENT);
}

int main(int argc, char **argv)
{
    int rc;

    g_test_init(&argc, &argv, NULL);
    dir = g_dir_make_tmp("pvrdma-sockfile-XXXXXX", NULL);
    g_assert_nonnull(dir);
    path = g_build_filename(dir, "socket", NULL);
    g_test_add_func("/sockfile/mode", test_mode);
    g_test_add_func("/sockfile/hand-over", test_hand_over);
    g_test_add_func("/sockfile/no-chmod", test_no_chmod);
    g_test_add_func("/sockfile/stale", test_stale);
    g_test_add_func("/sockfile/not-a-socket", test_not_a_socket);
    rc = g_test_run();
    g_rmdir(dir);
    g_free(path);
    g_free(dir);
    return rc;
}
