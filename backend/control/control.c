/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The admin socket: listening, clients, lines in and out.
 *
 * Everything is non-blocking on the main loop.  A client has one request in
 * work at a time, in a coroutine, as it may wait; the line stays in the buffer
 * meanwhile.  While that or an answer is on its way, nothing is read from it,
 * so a client that does not read costs one answer of memory and no more.  A
 * line that is too long, or more clients than CONTROL_MAX_CLIENTS, ends the
 * connection.
 */
#include "control/control.h"

#include <errno.h>
#include <fcntl.h>
#include <glib-unix.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "coro.h"
#include "log.h"

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
};

static const struct daemon_config *daemon_cfg;
static int listen_fd = -1;
static guint listen_source;
static GList *clients;

static void client_free(struct client *c)
{
    clients = g_list_remove(clients, c);
    if (c->source) {
        g_source_remove(c->source);
    }
    close(c->fd);
    g_free(c->out);
    g_free(c);
}

static bool client_run(struct client *c);

static void run_request(void *opaque)
{
    struct client *c = opaque;

    c->out = control_handle(daemon_cfg, c->in, c->line);
    c->out_len = strlen(c->out);
    c->out_pos = 0;
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
    c->source = g_unix_fd_add(c->fd, want, on_client, c);
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

static gboolean on_connect(gint fd, GIOCondition cond, gpointer opaque)
{
    int s = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct client *c;

    if (s < 0) {
        if (errno == EMFILE || errno == ENFILE) {
            log_msg(LOG_LVL_ERROR, "control: out of file descriptors");
            g_usleep(10000); /* the pending client keeps the socket readable */
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
    c->source = g_unix_fd_add(s, G_IO_IN, on_client, c);
    clients = g_list_prepend(clients, c);
    return G_SOURCE_CONTINUE;
}

/* Is somebody answering on @addr?  If not, a leftover socket is removed. */
static bool clear_stale(const struct sockaddr_un *addr, GError **errp)
{
    struct stat st;
    int s, rc;

    if (lstat(addr->sun_path, &st) < 0) {
        return true;
    }
    if (!S_ISSOCK(st.st_mode)) {
        g_set_error(errp, PVRDMA_ERROR, 0, "%s exists and is not a socket",
                    addr->sun_path);
        return false;
    }
    s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s < 0) {
        g_set_error(errp, PVRDMA_ERROR, 0, "socket: %s", g_strerror(errno));
        return false;
    }
    rc = connect(s, (const struct sockaddr *)addr, sizeof(*addr));
    if (rc == 0 || errno == EAGAIN) {
        close(s);
        g_set_error(errp, PVRDMA_ERROR, 0, "another pvrdmad serves %s", addr->sun_path);
        return false;
    }
    close(s);
    unlink(addr->sun_path);
    return true;
}

bool control_listen(const struct daemon_config *cfg, GError **errp)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    const char *what;

    if (g_strlcpy(addr.sun_path, cfg->control_socket, sizeof(addr.sun_path)) >=
        sizeof(addr.sun_path)) {
        g_set_error(errp, PVRDMA_ERROR, 0, "%s: path is too long for a UNIX socket",
                    cfg->control_socket);
        return false;
    }
    if (!clear_stale(&addr, errp)) {
        return false;
    }
    what = "socket";
    listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listen_fd < 0) {
        goto err;
    }
    /* The mode of the unbound socket becomes that of the file: no window in
     * which anybody else could connect. */
    what = cfg->control_socket;
    if (fchmod(listen_fd, 0600) < 0 ||
        bind(listen_fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 ||
        listen(listen_fd, CONTROL_MAX_CLIENTS) < 0) {
        goto err;
    }
    daemon_cfg = cfg;
    listen_source = g_unix_fd_add(listen_fd, G_IO_IN, on_connect, NULL);
    return true;

err:
    g_set_error(errp, PVRDMA_ERROR, 0, "control socket: %s: %s", what, g_strerror(errno));
    if (listen_fd >= 0) {
        close(listen_fd);
        listen_fd = -1;
    }
    return false;
}

void control_close(void)
{
    if (listen_fd < 0) {
        return;
    }
    g_source_remove(listen_source);
    close(listen_fd);
    listen_fd = -1;
    unlink(daemon_cfg->control_socket);
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
