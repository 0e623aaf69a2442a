/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The one TCP port for everything that a host receives from others.
 *
 * Its first sixteen bytes say what a connection is: a link between daemons, or iWARP,
 * which is for the transport that has asked for it.  They are looked at, not read.
 * Whatever begins otherwise is closed, and what has said nothing after PEER_DECIDE_MS.
 *
 * Only addresses that some peer has are listened to at all.  Until a link is up or an
 * iWARP connection has begun it has a place (places.c): PEER_MAX_UNDECIDED there are for
 * all hosts and PEER_MAX_PER_HOST for each, so that no host keeps the others out.  A host
 * that has a link is known, and may begin many iWARP connections at a time:
 * PEER_MAX_OF_LINK.  As a rule the bytes are there when the connection is taken, and
 * nothing has to wait.
 *
 * An address that this host does not have (yet) is tried again every RETRY_MS.
 * Main thread.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

#include "base/acceptor.h"
#include "base/fdwatch.h"
#include "transport/link/internal.h"

#define BACKLOG 4096
/* Taken per turn of the main loop. */
#define ACCEPT_TURN 32u
/* Until an address is tried again. */
#define RETRY_MS 2000

static const char mpa_magic[PEER_MAGIC_LEN + 1] = "MPA ID Req Frame";

struct listener {
    struct sockaddr_storage address;
    struct acceptor acceptor; /* fd -1: it cannot be had */
    char *error;
};

/* A connection of which nothing is known but where it comes from. */
struct undecided {
    int fd;
    struct sockaddr_storage from;
    struct peer_place place;
    guint watch, timer;
    TAILQ_ENTRY(undecided) link; /* in `all` */
};

static struct listener listeners[CONFIG_MAX_LISTEN];
static unsigned n_listeners;
static guint retry;
/* Those that may be anything, and links that are not up; and of hosts with a link. */
static struct peer_places early =
    PEER_PLACES_INIT(early, PEER_MAX_UNDECIDED, PEER_MAX_PER_HOST);
static struct peer_places of_linked =
    PEER_PLACES_INIT(of_linked, UINT_MAX, PEER_MAX_OF_LINK);
static TAILQ_HEAD(, undecided) all = TAILQ_HEAD_INITIALIZER(all);

unsigned listen_undecided(void)
{
    return early.n + of_linked.n;
}

/* ---- a connection's first bytes ---- */

static void turn_away(const struct sockaddr_storage *from, const char *why)
{
    char text[CONFIG_ADDRESS_STRLEN];

    config_format_address(from, text);
    peers_self.turned_away++;
    log_about(LOG_LVL_WARN, &peers_self.strangers_log, "connection from %s: %s", text,
              why);
}

/* @u goes, and its place; its descriptor, which is returned, stays. */
static int undecided_free(struct undecided *u)
{
    int fd = u->fd;

    peer_place_leave(&u->place);
    TAILQ_REMOVE(&all, u, link);
    fdwatch_remove(u->watch);
    if (u->timer) {
        g_source_remove(u->timer);
    }
    g_free(u);
    return fd;
}

static void undecided_close(struct undecided *u, const char *why)
{
    turn_away(&u->from, why);
    close(undecided_free(u));
}

static void set_low_water(int fd, int bytes)
{
    setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof(bytes));
}

static void lose_place(struct peer_place *p)
{
    struct undecided *u = (void *)((char *)p - offsetof(struct undecided, place));

    undecided_close(u, "too many at a time");
}

enum first { NOT_YET, ENDED, OF_LINK, OF_IWARP, UNKNOWN };

static enum first look(int fd)
{
    char begin[PEER_MAGIC_LEN];
    ssize_t n = recv(fd, begin, sizeof(begin), MSG_PEEK);

    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return NOT_YET;
    }
    if (n != sizeof(begin)) {
        return ENDED;
    }
    if (memcmp(begin, PEER_MAGIC, sizeof(begin)) == 0) {
        return OF_LINK;
    }
    return memcmp(begin, mpa_magic, sizeof(begin)) == 0 && peers_self.ops &&
                   peers_self.ops->accepted
               ? OF_IWARP
               : UNKNOWN;
}

/* It is a link's or iWARP's. */
static void pass_on(int fd, const struct sockaddr_storage *from, enum first what)
{
    if (what == OF_LINK) {
        link_accept(fd, from, &early); /* whoever has a link already */
    } else {
        peers_self.ops->accepted(fd, from);
    }
}

static gboolean on_first_bytes(gint fd, GIOCondition cond, gpointer opaque)
{
    struct undecided *u = opaque;
    struct sockaddr_storage from = u->from;
    enum first what = look(fd);

    switch (what) {
    case NOT_YET:
        return G_SOURCE_CONTINUE;
    case ENDED:
        /* Ready with less than the low-water mark means that no more will come. */
        undecided_close(u, "it was closed before a complete request");
        break;
    case UNKNOWN:
        undecided_close(u, "unknown protocol");
        break;
    default:
        set_low_water(fd, 1);
        undecided_free(u);
        pass_on(fd, &from, what);
        break;
    }
    return G_SOURCE_REMOVE;
}

static gboolean on_silence(gpointer opaque)
{
    struct undecided *u = opaque;

    u->timer = 0;
    undecided_close(u, "no complete request in time");
    return G_SOURCE_REMOVE;
}

static void on_connection(void *unused, int fd, const struct sockaddr_storage *from)
{
    struct peer_places *places;
    struct undecided *u;
    enum first what;

    if (!peers_know(from)) {
        char text[CONFIG_ADDRESS_STRLEN];

        config_format_address(from, text);
        peers_self.strangers++;
        log_about(LOG_LVL_WARN, &peers_self.strangers_log,
                  "connection from %s: no [peer] group has that address", text);
        close(fd);
        return;
    }
    what = look(fd);
    if (what == OF_LINK ||
        what == OF_IWARP) { /* who says so at once needs no place here */
        pass_on(fd, from, what);
        return;
    }
    u = g_new0(struct undecided, 1);
    u->fd = fd;
    u->from = *from;
    TAILQ_INSERT_TAIL(&all, u, link);
    places = peers_linked(from) ? &of_linked : &early;
    peer_place_take(places, &u->place, from, lose_place);
    set_low_water(fd, PEER_MAGIC_LEN);
    u->timer = g_timeout_add(PEER_DECIDE_MS, on_silence, u);
    u->watch = fdwatch_add(fd, G_IO_IN | G_IO_HUP, on_first_bytes, u);
    peer_places_bound(places, from);
}

/* ---- listening ---- */

static void on_no_room(void *unused, int err)
{
    log_about(LOG_LVL_ERROR, &peers_self.strangers_log,
              "cannot accept connections of other hosts: %s", g_strerror(err));
}

static int open_socket(const struct sockaddr_storage *address)
{
    int fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int err, on = 1;

    if (fd < 0) {
        return -errno;
    }
    /* Connections have the listener's TCP_NODELAY, and are kept alive as it would be. */
    peer_keep_alive(fd);
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) < 0 ||
        (address->ss_family == AF_INET6 &&
         setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on)) < 0) ||
        bind(fd, (const struct sockaddr *)address, peer_address_len(address)) < 0 ||
        listen(fd, BACKLOG) < 0) {
        err = errno;
        close(fd);
        return -err;
    }
    return fd;
}

/* True: it listens. */
static bool try_listen(struct listener *l)
{
    char text[CONFIG_ADDRESS_STRLEN];
    int fd = open_socket(&l->address);

    config_format_address(&l->address, text);
    if (fd < 0) {
        if (g_strcmp0(l->error, g_strerror(-fd)) != 0) {
            log_msg(LOG_LVL_ERROR, "listen: %s: %s; it is tried again", text,
                    g_strerror(-fd));
            g_free(l->error);
            l->error = g_strdup(g_strerror(-fd));
        }
        return false;
    }
    l->acceptor = (struct acceptor){fd, ACCEPT_TURN, .accepted = on_connection,
                                    .no_room = on_no_room};
    acceptor_start(&l->acceptor);
    g_clear_pointer(&l->error, g_free);
    log_msg(LOG_LVL_INFO, "listening to other hosts on %s", text);
    return true;
}

static gboolean on_retry(gpointer unused)
{
    bool all = true;

    for (unsigned i = 0; i < n_listeners; i++) {
        all &= listeners[i].acceptor.fd >= 0 || try_listen(&listeners[i]);
    }
    retry = all ? 0 : retry;
    return all ? G_SOURCE_REMOVE : G_SOURCE_CONTINUE;
}

void listen_start(const struct daemon_config *cfg)
{
    bool all = true;

    memset(listeners, 0, sizeof(listeners));
    n_listeners = cfg->n_listen;
    for (unsigned i = 0; i < n_listeners; i++) {
        listeners[i].address = cfg->listen[i];
        listeners[i].acceptor.fd = -1;
        all &= try_listen(&listeners[i]);
    }
    if (!all) {
        retry = g_timeout_add(RETRY_MS, on_retry, NULL);
    }
}

void listen_stop(void)
{
    g_clear_handle_id(&retry, g_source_remove);
    for (unsigned i = 0; i < n_listeners; i++) {
        struct listener *l = &listeners[i];

        acceptor_stop(&l->acceptor);
        if (l->acceptor.fd >= 0) {
            close(l->acceptor.fd);
        }
        g_free(l->error);
    }
    n_listeners = 0;
    while (!TAILQ_EMPTY(&all)) { /* links go by themselves */
        close(undecided_free(TAILQ_FIRST(&all)));
    }
}

void listen_own(const struct sockaddr_storage *to, struct sockaddr_storage *own)
{
    memset(own, 0, sizeof(*own));
    for (unsigned i = 0; i < n_listeners; i++) {
        const struct sockaddr_storage *a = &listeners[i].address;

        if (a->ss_family == to->ss_family && !config_any_host(a)) {
            *own = *a;
            if (a->ss_family == AF_INET) {
                ((struct sockaddr_in *)own)->sin_port = 0;
            } else {
                ((struct sockaddr_in6 *)own)->sin6_port = 0;
            }
            return;
        }
    }
}

bool listen_report(unsigned i, char text[CONFIG_ADDRESS_STRLEN], const char **error)
{
    if (i >= n_listeners) {
        return false;
    }
    config_format_address(&listeners[i].address, text);
    *error = listeners[i].error;
    return true;
}
