/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A service manager, as far as it keeps descriptors: FDSTORE, FDSTOREREMOVE and BARRIER
 * of sd_notify(3).  What it keeps has to be named as the daemon's state is.
 */
#include "keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "vgtest.h"

struct keeper {
    char *dir, *path;
    int sock;
    GThread *thread;
    pthread_mutex_t lock; /* does, fds */
    enum keeper_does does;
    GArray *fds; /* of int */
    gint end;
};

static void close_all(const int *fds, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        close(fds[i]);
    }
}

static void forget(struct keeper *k)
{
    close_all((const int *)(const void *)k->fds->data, k->fds->len);
    g_array_set_size(k->fds, 0);
}

static void told(struct keeper *k, const char *text, const int *fds, unsigned n)
{
    bool ours = strstr(text, "FDNAME=pvrdmad-state") != NULL;

    if (g_str_has_prefix(text, "FDSTOREREMOVE=1\n") && ours) {
        forget(k);
    }
    if (k->does == KEEPER_KEEPS && g_str_has_prefix(text, "FDSTORE=1\n")) {
        g_assert_true(ours);
        g_assert_nonnull(strstr(text, "FDPOLL=0"));
        g_array_append_vals(k->fds, fds, n);
    } else {
        close_all(fds, n);
    }
}

static void receive(struct keeper *k)
{
    char text[1024] = "", control[CMSG_SPACE(8 * sizeof(int))];
    struct iovec iov = {.iov_base = text, .iov_len = sizeof(text) - 1};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control,
                         .msg_controllen = sizeof(control)};
    struct cmsghdr *c;
    int fds[8];
    unsigned n = 0;

    if (recvmsg(k->sock, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT) < 0) {
        return;
    }
    c = CMSG_FIRSTHDR(&msg);
    if (c && c->cmsg_type == SCM_RIGHTS) {
        n = (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds, CMSG_DATA(c), n * sizeof(int));
    }
    told(k, text, fds, n);
}

static gpointer keeper_thread(gpointer opaque)
{
    struct keeper *k = opaque;

    while (!g_atomic_int_get(&k->end)) {
        struct pollfd p = {.fd = k->sock, .events = POLLIN};
        bool there = poll(&p, 1, 20) == 1;

        pthread_mutex_lock(&k->lock);
        if (there && k->does != KEEPER_SLEEPS) {
            receive(k);
        } else if (there) {
            g_usleep(20000);
        }
        pthread_mutex_unlock(&k->lock);
    }
    return NULL;
}

struct keeper *keeper_start(void)
{
    struct keeper *k = g_new0(struct keeper, 1);
    struct sockaddr_un addr = {.sun_family = AF_UNIX};

    k->dir = g_dir_make_tmp("keeper-XXXXXX", NULL);
    g_assert_nonnull(k->dir);
    k->path = g_build_filename(k->dir, "notify", NULL);
    g_strlcpy(addr.sun_path, k->path, sizeof(addr.sun_path));
    k->sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    g_assert_cmpint(bind(k->sock, (struct sockaddr *)&addr, sizeof(addr)), ==, 0);
    k->fds = g_array_new(FALSE, FALSE, sizeof(int));
    pthread_mutex_init(&k->lock, NULL);
    g_setenv("NOTIFY_SOCKET", k->path, TRUE);
    k->thread = g_thread_new("keeper", keeper_thread, k);
    return k;
}

void keeper_stop(struct keeper *k)
{
    g_unsetenv("NOTIFY_SOCKET");
    g_atomic_int_set(&k->end, 1);
    g_thread_join(k->thread);
    forget(k);
    g_array_unref(k->fds);
    pthread_mutex_destroy(&k->lock);
    close(k->sock);
    g_unlink(k->path);
    g_rmdir(k->dir);
    g_free(k->path);
    g_free(k->dir);
    g_free(k);
}

void keeper_do(struct keeper *k, enum keeper_does what)
{
    pthread_mutex_lock(&k->lock);
    k->does = what;
    pthread_mutex_unlock(&k->lock);
}

void keeper_fill(struct keeper *k)
{
    int sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0), on = 0;
    struct sockaddr_un addr = {.sun_family = AF_UNIX};

    g_strlcpy(addr.sun_path, k->path, sizeof(addr.sun_path));
    keeper_do(k, KEEPER_SLEEPS);
    g_assert_cmpint(connect(sock, (struct sockaddr *)&addr, sizeof(addr)), ==, 0);
    while (send(sock, "X=1", 3, MSG_DONTWAIT) == 3) {
        on++;
    }
    g_assert_cmpint(errno, ==, EAGAIN);
    g_assert_cmpint(on, >, 0);
    close(sock);
}

unsigned keeper_lend(struct keeper *k, int *fds, unsigned max)
{
    unsigned n;

    pthread_mutex_lock(&k->lock);
    n = k->fds->len;
    g_assert_cmpuint(n, <=, max);
    for (unsigned i = 0; i < n; i++) {
        fds[i] = fcntl(g_array_index(k->fds, int, i), F_DUPFD_CLOEXEC, 3);
    }
    pthread_mutex_unlock(&k->lock);
    return n;
}

void keeper_forget(struct keeper *k)
{
    pthread_mutex_lock(&k->lock);
    forget(k);
    pthread_mutex_unlock(&k->lock);
}

void keeper_wait_empty(struct keeper *k)
{
    int64_t end = vg_now_ns() + VGT_WAIT_MS * 1000000ll;
    bool empty = false;

    while (!empty) {
        g_assert_cmpint(vg_now_ns(), <, end);
        pthread_mutex_lock(&k->lock);
        empty = k->fds->len == 0;
        pthread_mutex_unlock(&k->lock);
        g_usleep(1000);
    }
}
