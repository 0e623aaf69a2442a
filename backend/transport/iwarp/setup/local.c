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
#include <netinet/tcp.h>
#include <unistd.h>

#include "base/fdwatch.h"
#include "transport/iwarp/setup/bind.h"

#define BACKLOG     4096
#define ACCEPT_TURN 32u
/* Until connections are taken again when descriptors ran out. */
#define ACCEPT_PAUSE_MS 500

struct sockaddr_storage loop_address;

static int loop_fd = -1;
static guint loop_watch;
static guint loop_pause; /* instead of it */
static void run_loop(void);
static struct fdwatch_later loop_later = {.fn = run_loop};
static GQueue loop = G_QUEUE_INIT; /* of struct loop_msg */

struct loop_msg {
    bool is_answer;
    union {
        struct peer_bind bind;
        struct peer_bind_answer answer;
    };
};

static void run_loop(void)
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
        fdwatch_later(&loop_later);
    }
}

static struct loop_msg *loop_add(void)
{
    struct loop_msg *m = g_new0(struct loop_msg, 1);

    g_queue_push_tail(&loop, m);
    fdwatch_later(&loop_later);
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

static gboolean on_loop_listener(int fd, GIOCondition ready, gpointer unused);

static gboolean loop_on_pause_over(gpointer unused)
{
    loop_pause = 0;
    loop_watch = fdwatch_add(loop_fd, G_IO_IN, on_loop_listener, NULL);
    return G_SOURCE_REMOVE;
}

static gboolean on_loop_listener(int fd, GIOCondition ready, gpointer unused)
{
    for (unsigned n = 0; n < ACCEPT_TURN; n++) {
        int s = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (s >= 0) {
            handshake_accepted(s, NULL);
        } else if (errno == EMFILE || errno == ENFILE) {
            /* What waits keeps the socket readable. */
            log_msg(LOG_LVL_ERROR, "no descriptors are left for connections");
            loop_watch = 0;
            loop_pause = g_timeout_add(ACCEPT_PAUSE_MS, loop_on_pause_over, NULL);
            return G_SOURCE_REMOVE;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            break;
        }
    }
    return G_SOURCE_CONTINUE;
}

bool loop_open(GError **errp)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    int one = 1;

    loop_fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (loop_fd >= 0) {
        handshake_dont_pace(loop_fd);
        setsockopt(loop_fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
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
    fdwatch_not_later(&loop_later);
    g_queue_clear_full(&loop, g_free);
    if (loop_fd >= 0) {
        fdwatch_remove(loop_watch);
        if (loop_pause) {
            g_source_remove(loop_pause);
            loop_pause = 0;
        }
        close(loop_fd);
        loop_fd = -1;
    }
}
