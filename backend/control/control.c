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

#include "base/acceptor.h"
#include "base/coro.h"
#include "base/fdwatch.h"
#include "base/log.h"
#include "handover/sockfile.h"

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
static void on_connect(void *unused, int fd, const struct sockaddr_storage *from);
static void on_no_room(void *unused, int err);
static struct acceptor acceptor = {
    .fd = -1, .batch = 1, .accepted = on_connect, .no_room = on_no_room};
static struct sockfile listen_file;
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
        if (acceptor.fd < 0 || !client_run(c)) {
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

static gboolean on_client_ready(gint fd, GIOCondition cond, gpointer opaque);

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
    c->source = fdwatch_add(c->fd, want, on_client_ready, c);
    return true;
}

static gboolean on_client_ready(gint fd, GIOCondition cond, gpointer opaque)
{
    struct client *c = opaque;

    if (!client_run(c)) {
        client_free(c); /* removes this source */
        return G_SOURCE_CONTINUE;
    }
    return G_SOURCE_REMOVE; /* client_run() has made another, if need be */
}

static void on_no_room(void *unused, int err)
{
    log_msg(LOG_LVL_ERROR, "control: cannot accept a client: %s", g_strerror(err));
}

static void on_connect(void *unused, int fd, const struct sockaddr_storage *from)
{
    struct client *c;

    if (g_list_length(clients) >= CONTROL_MAX_CLIENTS) {
        log_msg(LOG_LVL_WARN, "control: too many clients");
        close(fd);
        return;
    }
    c = g_new0(struct client, 1);
    c->fd = fd;
    c->source = fdwatch_add(fd, G_IO_IN, on_client_ready, c);
    c->active = g_get_monotonic_time();
    clients = g_list_prepend(clients, c);
    if (!idle_timer) {
        idle_timer = g_timeout_add(MAX(idle_ms / 4, 1), on_idle_check, NULL);
    }
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
    acceptor.fd = fd;
    daemon_cfg = cfg;
    acceptor_start(&acceptor);
    return true;
}

void control_hand_over(struct handover_out *h)
{
    sockfile_hand_over(&listen_file, acceptor.fd, h);
}

int control_client(void)
{
    return client_fd;
}

void control_close(void)
{
    if (acceptor.fd < 0) {
        return;
    }
    g_clear_handle_id(&idle_timer, g_source_remove);
    acceptor_stop(&acceptor);
    close(acceptor.fd);
    acceptor.fd = -1;
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
