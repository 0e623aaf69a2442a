/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Listening sockets in the main loop (acceptor.h).
 *
 * A connection that is not accepted keeps its socket readable: without a pause the main
 * loop would spin when descriptors run out.
 */
#include "base/acceptor.h"

#include <errno.h>

#include "base/fdwatch.h"

/* The pause when there is no room. */
#define ACCEPT_PAUSE_MS 500

static gboolean on_connection(gint fd, GIOCondition cond, gpointer opaque)
{
    struct acceptor *a = opaque;

    for (unsigned n = 0; n < a->batch && a->watch; n++) {
        struct sockaddr_storage from = {0};
        socklen_t len = sizeof(from);
        int s;

        if (a->may && !a->may(a->opaque)) {
            break;
        }
        s = accept4(fd, (struct sockaddr *)&from, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (s >= 0) {
            a->accepted(a->opaque, s, &from);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM ||
                   errno == ENOBUFS) {
            a->no_room(a->opaque, errno);
            acceptor_pause(a, ACCEPT_PAUSE_MS);
        } else if (errno != EINTR && errno != ECONNABORTED) {
            break;
        }
    }
    return G_SOURCE_CONTINUE;
}

void acceptor_start(struct acceptor *a)
{
    if (!a->watch && !a->pause) {
        a->watch = fdwatch_add(a->fd, G_IO_IN, on_connection, a);
    }
}

static gboolean on_pause_over(gpointer opaque)
{
    struct acceptor *a = opaque;

    a->pause = 0;
    acceptor_start(a);
    return G_SOURCE_REMOVE;
}

void acceptor_pause(struct acceptor *a, guint ms)
{
    g_clear_handle_id(&a->watch, fdwatch_remove);
    if (!a->pause) {
        a->pause = g_timeout_add(ms, on_pause_over, a);
    }
}

void acceptor_stop(struct acceptor *a)
{
    g_clear_handle_id(&a->watch, fdwatch_remove);
    g_clear_handle_id(&a->pause, g_source_remove);
}
