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

#include "base/acceptor.h"
#include "base/fdwatch.h"
#include "transport/iwarp/setup/bind.h"

#define BACKLOG     4096
#define ACCEPT_TURN 32u

struct sockaddr_storage loop_address;

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

static void loop_on_connection(void *unused, int fd, const struct sockaddr_storage *from)
{
    handshake_accepted(fd, NULL);
}

static void loop_on_no_room(void *unused, int err)
{
    log_msg(LOG_LVL_ERROR, "cannot accept connections: %s", g_strerror(err));
}

static struct acceptor loop_acceptor = {.fd = -1,
                                        .batch = ACCEPT_TURN,
                                        .accepted = loop_on_connection,
                                        .no_room = loop_on_no_room};

bool loop_open(GError **errp)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    int one = 1, fd;

    fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    loop_acceptor.fd = fd;
    if (fd >= 0) {
        handshake_dont_pace(fd);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    }
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 ||
        listen(fd, BACKLOG) < 0 || getsockname(fd, (struct sockaddr *)&a, &len) < 0) {
        g_set_error(errp, PVRDMA_ERROR, 0,
                    "path=tcp: no port of the loopback interface: %s", g_strerror(errno));
        return false;
    }
    memcpy(&loop_address, &a, sizeof(a));
    acceptor_start(&loop_acceptor);
    return true;
}

void loop_close(void)
{
    fdwatch_not_later(&loop_later);
    g_queue_clear_full(&loop, g_free);
    if (loop_acceptor.fd >= 0) {
        acceptor_stop(&loop_acceptor);
        close(loop_acceptor.fd);
        loop_acceptor.fd = -1;
    }
}
