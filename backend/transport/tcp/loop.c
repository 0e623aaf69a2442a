/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Transport "tcp" within one daemon (path=tcp): what replaces links to other daemons.
 *
 * BINDs and their answers go by a list that the main loop empties later, as a link would
 * bring them, and connections by a port of the loopback interface.
 *
 * Threads: the main thread.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <unistd.h>

#include "fdwatch.h"
#include "transport/tcp/setup.h"

#define BACKLOG     4096
#define ACCEPT_TURN 32u

struct sockaddr_storage loop_address;

static int loop_fd = -1;
static guint loop_watch, loop_idle;
static GQueue loop = G_QUEUE_INIT; /* of struct loop_msg */

struct loop_msg {
    bool is_answer;
    union {
        struct peer_bind bind;
        struct peer_bind_answer answer;
    };
};

static gboolean run_loop(gpointer unused)
{
    struct loop_msg *m;
    unsigned n = g_queue_get_length(&loop);

    while (n-- && (m = g_queue_pop_head(&loop))) {
        if (m->is_answer) {
            setup_answer_came(NULL, &m->answer);
        } else {
            setup_bind_came(NULL, &m->bind);
        }
        g_free(m);
    }
    if (!g_queue_is_empty(&loop)) {
        return G_SOURCE_CONTINUE;
    }
    loop_idle = 0;
    return G_SOURCE_REMOVE;
}

static struct loop_msg *loop_add(void)
{
    struct loop_msg *m = g_new0(struct loop_msg, 1);

    g_queue_push_tail(&loop, m);
    if (!loop_idle) {
        loop_idle = g_idle_add_full(G_PRIORITY_DEFAULT, run_loop, NULL, NULL);
    }
    return m;
}

void loop_send_bind(const struct peer_bind *b)
{
    loop_add()->bind = *b;
}

void loop_send_answer(const struct peer_bind_answer *a)
{
    struct loop_msg *m = loop_add();

    m->is_answer = true;
    m->answer = *a;
}

static gboolean on_loop_listener(int fd, GIOCondition ready, gpointer unused)
{
    int s = 0;

    for (unsigned n = 0; n < ACCEPT_TURN && s >= 0; n++) {
        s = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (s >= 0) {
            startup_accepted(s, NULL);
        }
    }
    return G_SOURCE_CONTINUE;
}

bool loop_open(GError **errp)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);

    loop_fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (loop_fd >= 0) {
        startup_dont_pace(loop_fd);
    }
    if (loop_fd < 0 || bind(loop_fd, (struct sockaddr *)&a, sizeof(a)) < 0 ||
        listen(loop_fd, BACKLOG) < 0 ||
        getsockname(loop_fd, (struct sockaddr *)&a, &len) < 0) {
        g_set_error(errp, PVRDMA_ERROR, 0,
                    "path=tcp: no port of the loopback interface: %s", g_strerror(errno));
        return false;
    }
    memcpy(&loop_address, &a, sizeof(a));
    loop_watch = fdwatch_add(loop_fd, G_IO_IN, on_loop_listener, NULL);
    return true;
}

void loop_close(void)
{
    if (loop_idle) {
        g_source_remove(loop_idle);
        loop_idle = 0;
    }
    g_queue_clear_full(&loop, g_free);
    if (loop_fd >= 0) {
        fdwatch_remove(loop_watch);
        close(loop_fd);
        loop_fd = -1;
    }
}
