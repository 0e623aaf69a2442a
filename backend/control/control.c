/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The admin socket: listening, clients, lines in and out.
 *
 * Everything is non-blocking on the main loop.  A client has one request in
 * work at a time, in a coroutine, as it may wait; the line stays in the buffer
 * meanwhile.  While that or an answer is on its way, nothing is read from it,
 * so a client that does not read costs one answer of memory and no more.  A
 * line that is too long, or more clients than CONTROL_MAX_CLIENTS, ends the
 * connection; so does a client of which nothing is heard, neither a whole request
 * nor that it reads its answer, for CONTROL_IDLE_S: sixteen forgotten ones would lock
 * the administrator out.
 */
#include "control/control.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/coro.h"
#include "base/fdwatch.h"
#include "base/log.h"
#include "handover/sockfile.h"

/* Until connections are taken again, when descriptors ran out. */
#define ACCEPT_PAUSE_MS 500

struct client {
    int fd;
    guint source; /* the one watch: for reading, or for writing; none while parked */
    size_t line;  /* length of the request in work */
    bool busy;    /* there is one */
    bool parked;  /* and it waits */
    char in[CONTROL_MAX_REQUEST + 1];
    size_t in_len;
    char *out; /* answer under way, or NULL */
    size_t out_len, out_pos;
    gint64 active; /* when it last asked something or read some of its answer */
};

static const struct daemon_config *daemon_cfg;
static int listen_fd = -1;
static struct sockfile listen_file;
static guint listen_source;
static guint listen_pause; /* instead of it, for want of descriptors */
static GList *clients;
static int client_fd = -1; /* of the request that was begun last */
static guint idle_timer;   /* while there are clients */
static unsigned idle_ms = CONTROL_IDLE_S * 1000;

static void client_free(struct client *c)
{
    clients = g_list_remove(clients, c);
    fdwatch_remove(c->source);
    close(c->fd);
    g_free(c->out);
    g_free(c);
}

static gboolean on_idle_check(gpointer unused)
{
    gint64 before = g_get_monotonic_time() - (gint64)idle_ms * 1000;
    GList *next;

    for (GList *l = clients; l; l = next) {
        struct client *c = l->data;

        next = l->next;
        if (!c->busy && c->active < before) {
            log_msg(LOG_LVL_WARN, "control: closing an idle connection");
            client_free(c);
        }
    }
    idle_timer = clients ? idle_timer : 0;
    return clients ? G_SOURCE_CONTINUE : G_SOURCE_REMOVE;
}

void control_set_idle(unsigned ms)
{
    idle_ms = ms;
}

static bool client_run(struct client *c);

static void run_request(void *opaque)
{
    struct client *c = opaque;

    client_fd = c->fd;
    c->out = control_handle(daemon_cfg, c->in, c->line);
    c->out_len = strlen(c->out);
    c->out_pos = 0;
    c->active = g_get_monotonic_time();
    c->in_len -= c->line + 1;
    memmove(c->in, c->in + c->line + 1, c->in_len);
    c->busy = false;
    if (c->parked) {
        c->parked = false;
        if (listen_fd < 0 || !client_run(c)) {
            client_free(c);
        }
    }
}

/* Begin the first request in the input, if there is one. */
static bool next_request(struct client *c)
{
    char *newline = memchr(c->in, '\n', c->in_len);

    if (!newline) {
        return false;
    }
    c->line = newline - c->in;
    c->busy = true;
    c->parked = !coro_run(run_request, c);
    return true;
}

static gboolean on_client(gint fd, GIOCondition cond, gpointer opaque);

/* Work until the client would have to be waited for.  False: it is gone. */
static bool client_run(struct client *c)
{
    GIOCondition want;

    for (;;) {
        ssize_t n;

        if (c->out) {
            n = send(c->fd, c->out + c->out_pos, c->out_len - c->out_pos, MSG_NOSIGNAL);
            if (n < 0) {
                want = G_IO_OUT;
                break;
            }
            c->out_pos += n;
            c->active = g_get_monotonic_time();
            if (c->out_pos == c->out_len) {
                g_clear_pointer(&c->out, g_free);
                /* One request a turn: others get their say. */
                want = memchr(c->in, '\n', c->in_len) ? G_IO_OUT : G_IO_IN;
                errno = EAGAIN;
                break;
            }
            continue;
        }
        if (next_request(c)) {
            if (c->parked) {
                c->source = 0;
                return true;
            }
            continue;
        }
        if (c->in_len >= CONTROL_MAX_REQUEST) {
            log_msg(LOG_LVL_WARN, "control: request too long");
            return false;
        }
        n = recv(c->fd, c->in + c->in_len, CONTROL_MAX_REQUEST - c->in_len, 0);
        if (n == 0) {
            return false;
        }
        if (n < 0) {
            want = G_IO_IN;
            break;
        }
        c->in_len += n;
    }
    if (errno != EAGAIN && errno != EINTR) {
        return false;
    }
    c->source = fdwatch_add(c->fd, want, on_client, c);
    return true;
}

static gboolean on_client(gint fd, GIOCondition cond, gpointer opaque)
{
    struct client *c = opaque;

    if (!client_run(c)) {
        client_free(c); /* removes this source */
        return G_SOURCE_CONTINUE;
    }
    return G_SOURCE_REMOVE; /* client_run() has made another, if need be */
}

static gboolean on_connect(gint fd, GIOCondition cond, gpointer opaque);

static gboolean on_pause_over(gpointer opaque)
{
    listen_pause = 0;
    listen_source = fdwatch_add(listen_fd, G_IO_IN, on_connect, NULL);
    return G_SOURCE_REMOVE;
}

static gboolean on_connect(gint fd, GIOCondition cond, gpointer opaque)
{
    int s = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct client *c;

    if (s < 0) {
        if (errno == EMFILE || errno == ENFILE) {
            log_msg(LOG_LVL_ERROR, "control: out of file descriptors");
            /* The client that waits keeps the socket readable. */
            listen_source = 0;
            listen_pause = g_timeout_add(ACCEPT_PAUSE_MS, on_pause_over, NULL);
            return G_SOURCE_REMOVE;
        }
        return G_SOURCE_CONTINUE;
    }
    if (g_list_length(clients) >= CONTROL_MAX_CLIENTS) {
        log_msg(LOG_LVL_WARN, "control: too many clients");
        close(s);
        return G_SOURCE_CONTINUE;
    }
    c = g_new0(struct client, 1);
    c->fd = s;
    c->source = fdwatch_add(s, G_IO_IN, on_client, c);
    c->active = g_get_monotonic_time();
    clients = g_list_prepend(clients, c);
    if (!idle_timer) {
        idle_timer = g_timeout_add(MAX(idle_ms / 4, 1), on_idle_check, NULL);
    }
    return G_SOURCE_CONTINUE;
}

bool control_listen(const struct daemon_config *cfg, GError **errp)
{
    const char *path = cfg->control_socket;
    int fd = sockfile_listen(&listen_file, path, 0600, CONTROL_MAX_CLIENTS);

    if (fd < 0) {
        if (fd == -EADDRINUSE) {
            g_set_error(errp, PVRDMA_ERROR, 0, "another pvrdmad serves %s", path);
        } else if (fd == -EEXIST) {
            g_set_error(errp, PVRDMA_ERROR, 0, "%s exists and is not a socket", path);
        } else {
            g_set_error(errp, PVRDMA_ERROR, 0, "control socket: %s: %s", path,
                        g_strerror(-fd));
        }
        return false;
    }
    listen_fd = fd;
    daemon_cfg = cfg;
    listen_source = fdwatch_add(listen_fd, G_IO_IN, on_connect, NULL);
    return true;
}

void control_hand_over(struct handover_out *h)
{
    sockfile_hand_over(&listen_file, listen_fd, h);
}

int control_client(void)
{
    return client_fd;
}

void control_close(void)
{
    if (listen_fd < 0) {
        return;
    }
    if (idle_timer) {
        g_source_remove(idle_timer);
        idle_timer = 0;
    }
    if (listen_pause) {
        g_source_remove(listen_pause);
        listen_pause = 0;
    }
    fdwatch_remove(listen_source);
    close(listen_fd);
    listen_fd = -1;
    sockfile_remove(&listen_file);
    for (GList *l = clients, *next; l; l = next) {
        struct client *c = l->data;

        next = l->next;
        if (!c->busy) {
            client_free(c);
        }
    }
    while (clients) { /* those with a request that waits go when it is done */
        g_main_context_iteration(NULL, TRUE);
    }
}
