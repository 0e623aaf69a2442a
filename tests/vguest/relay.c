/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A relay between host 0 and host 1.
 *
 * It has two addresses, as hosts 10 and 11.  Host 0 believes that host 1 is at the one,
 * and host 1 that host 0 is at the other: what comes to the one goes on to the host that
 * it stands for, from the other, so both see a peer of theirs.
 *
 * Only iWARP connections, which begin by MPA's key, are cut to pieces, slowed down, and
 * reset, each after just as many bytes as it was given: in the middle of whatever that
 * is; links pass as they are, so that connections can be made again.
 *
 * Threads: one of its own has all sockets; the switches are atomic.
 */
#include "relay.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define RELAY_AS(host) (11 - (host)) /* whom host @host takes for the other one */
#define MAX_CONNS      512u
#define MAX_ORPHANS    1024u
#define WAIT_MS        2

/* Bytes on their way, of one direction. */
struct way {
    uint8_t buf[65536];
    size_t at, len;
};

struct through {
    int fd[2];
    unsigned from;     /* the host that called: fd[0] */
    bool known, iwarp; /* what its first byte says */
    uint64_t left;     /* iWARP: bytes until it is reset */
    bool to_cut, cut_now;
    struct relay_start_cut at; /* if it is to be cut */
    uint64_t carried[2];
    struct way way[2]; /* [0]: from fd[0] to fd[1] */
};

struct relay {
    struct relay_opts o;
    GThread *thread;
    GRand *rand;
    int listener[2]; /* of what host 0, and host 1, calls */
    struct through *conn[MAX_CONNS];
    unsigned n, n_iwarp;     /* n_iwarp: that there were */
    int orphan[MAX_ORPHANS]; /* of connections that were cut, unheard */
    unsigned n_orphans;
    pthread_mutex_t lock; /* protects these two */
    bool cuts_starts;
    struct relay_start_cut start_cut;
    _Atomic unsigned starts_cut;
    _Atomic bool refuse, reset;
    _Atomic bool stop, stalled[2], cut; /* [host that sends] */
    _Atomic unsigned resets, closes, rounds;
    _Atomic uint64_t carried;
};

static struct sockaddr_in address_of(unsigned host, unsigned port)
{
    g_autofree char *text = host_address(host);
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};

    g_assert_cmpint(inet_pton(AF_INET, text, &sa.sin_addr), ==, 1);
    return sa;
}

/* A socket that has the address of host @host. */
static int socket_as(const struct relay *r, unsigned host, unsigned port)
{
    struct sockaddr_in own = address_of(host, port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1;

    g_assert_cmpint(fd, >=, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (r->o.buffer) {
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &r->o.buffer, sizeof(r->o.buffer));
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &r->o.buffer, sizeof(r->o.buffer));
    }
    if (r->o.mss) {
        setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &r->o.mss, sizeof(r->o.mss));
    }
    g_assert_cmpint(bind(fd, (struct sockaddr *)&own, sizeof(own)), ==, 0);
    return fd;
}

static void hang_up(int fd, bool reset)
{
    const struct linger now = {.l_onoff = 1};

    if (reset) {
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    }
    close(fd);
}

static void forget(struct relay *r, unsigned i)
{
    g_free(r->conn[i]);
    r->conn[i] = r->conn[--r->n];
}

static void drop(struct relay *r, unsigned i, bool reset)
{
    hang_up(r->conn[i]->fd[0], reset);
    hang_up(r->conn[i]->fd[1], reset);
    forget(r, i);
}

/* It is where it is to be cut. */
static void cut_start(struct relay *r, unsigned i)
{
    struct through *t = r->conn[i];
    bool reset = atomic_fetch_add(&r->starts_cut, 1) % 2 == 0;

    for (unsigned k = 0; k < 2; k++) {
        if (t->at.hears & (k ? RELAY_CALLEE : RELAY_CALLER)) {
            hang_up(t->fd[k], reset);
        } else {
            g_assert_cmpuint(r->n_orphans, <, MAX_ORPHANS);
            r->orphan[r->n_orphans++] = t->fd[k];
        }
    }
    forget(r, i);
}

/* An iWARP connection begins. */
static void choose(struct relay *r, struct through *t)
{
    pthread_mutex_lock(&r->lock);
    t->to_cut = r->cuts_starts;
    t->at = r->start_cut;
    pthread_mutex_unlock(&r->lock);
}

/* Host @from calls. */
static void take(struct relay *r, unsigned from)
{
    struct sockaddr_in to = address_of(1 - from, hosts_port());
    int fd = accept4(r->listener[from], NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), on = 1;
    struct through *t;

    if (fd < 0) {
        return;
    }
    if (atomic_load(&r->cut) || r->n == MAX_CONNS) {
        close(fd);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    t = g_new0(struct through, 1);
    t->fd[0] = fd;
    t->from = from;
    t->fd[1] = socket_as(r, RELAY_AS(1 - from), 0);
    t->left = UINT64_MAX;
    if (connect(t->fd[1], (struct sockaddr *)&to, sizeof(to)) < 0) {
        g_assert_cmpint(errno, ==, EINPROGRESS);
    }
    r->conn[r->n++] = t;
}

/* How many bytes it lives for. */
static uint64_t lifetime(struct relay *r)
{
    bool early = r->o.reset_early && r->n_iwarp++ % 2 == 0;
    uint64_t most = early ? r->o.reset_early : 2 * r->o.reset_after;

    return r->o.reset_after ? (uint64_t)(g_rand_double(r->rand) * (double)most)
                            : UINT64_MAX;
}

static size_t at_once(struct relay *r, const struct through *t, size_t most)
{
    size_t n = most;

    if (t->iwarp && r->o.chunk) {
        n = (size_t)g_rand_int_range(r->rand, 1, (gint32)r->o.chunk + 1);
    }
    return MIN(most, n);
}

/* Does direction @k of @t stand still? */
static bool is_still(struct relay *r, const struct through *t, unsigned k)
{
    return t->iwarp && atomic_load(&r->stalled[k ? 1 - t->from : t->from]);
}

/* Direction @k of @t; false: it is over. */
static bool carry(struct relay *r, struct through *t, unsigned k)
{
    struct way *w = &t->way[k];
    size_t most;
    ssize_t n;

    if (is_still(r, t, k)) {
        return true;
    }
    if (w->len == 0) {
        w->at = 0;
        n = recv(t->fd[k], w->buf, at_once(r, t, sizeof(w->buf)), 0);
        if (n <= 0) {
            return n < 0 && errno == EAGAIN;
        }
        if (!t->known) {
            t->known = true;
            t->iwarp = w->buf[0] == 'M'; /* of MPA's key */
            t->left = t->iwarp ? lifetime(r) : UINT64_MAX;
            if (t->iwarp) {
                choose(r, t);
            }
        }
        w->len = (size_t)n;
    }
    most = MIN(w->len, t->left);
    if (t->to_cut && k == t->at.back) {
        most = MIN(most, t->at.bytes - t->carried[k]);
        t->cut_now = !most;
        if (t->cut_now) {
            return true;
        }
    }
    n = send(t->fd[1 - k], w->buf + w->at, at_once(r, t, most), MSG_NOSIGNAL);
    if (n < 0) {
        return errno == EAGAIN || errno == ENOTCONN;
    }
    w->at += (size_t)n;
    w->len -= (size_t)n;
    t->carried[k] += (size_t)n;
    if (t->iwarp) {
        atomic_fetch_add(&r->carried, (uint64_t)n);
        t->left -= MIN(t->left, (uint64_t)n);
    }
    return true;
}

static void listen_or_not(struct relay *r)
{
    bool refuse = atomic_load(&r->refuse);

    for (unsigned k = 0; k < 2; k++) {
        if (refuse && r->listener[k] >= 0) {
            close(r->listener[k]);
            r->listener[k] = -1;
        } else if (!refuse && r->listener[k] < 0) {
            r->listener[k] = socket_as(r, RELAY_AS(k), hosts_port());
            g_assert_cmpint(listen(r->listener[k], 64), ==, 0);
        }
    }
}

/* Whatever can go on goes on. */
static void go_round(struct relay *r)
{
    struct pollfd p[2 + 2 * MAX_CONNS];
    nfds_t n = 2;

    listen_or_not(r);
    for (unsigned k = 0; k < 2; k++) {
        p[k] = (struct pollfd){.fd = r->listener[k], .events = POLLIN};
    }
    for (unsigned i = 0; i < r->n; i++) {
        for (unsigned k = 0; k < 2; k++) {
            const struct through *t = r->conn[i];
            bool still = is_still(r, t, k), back_still = is_still(r, t, 1 - k);
            bool in = t->way[k].len == 0 && !still;
            bool out = t->way[1 - k].len != 0 && !back_still;

            p[n++] = (struct pollfd){
                .fd = still && back_still ? -1 : t->fd[k],
                .events = (short)((in ? POLLIN : 0) | (out ? POLLOUT : 0))};
        }
    }
    poll(p, n, WAIT_MS);
    for (unsigned i = r->n; i-- > 0;) {
        struct through *t = r->conn[i];
        bool goes_on = carry(r, t, 0);

        goes_on = carry(r, t, 1) && goes_on;
        if (atomic_load(&r->cut)) {
            drop(r, i, true);
        } else if (t->cut_now) {
            cut_start(r, i);
        } else if (t->iwarp && atomic_load(&r->reset)) {
            drop(r, i, true);
        } else if (t->iwarp && !t->left) {
            bool reset = g_rand_boolean(r->rand);

            drop(r, i, reset);
            atomic_fetch_add(reset ? &r->resets : &r->closes, 1);
        } else if (!goes_on) {
            drop(r, i, false);
        }
    }
    for (unsigned k = 0; k < 2; k++) {
        if (p[k].revents) {
            take(r, k);
        }
    }
    if (r->o.pause_us) {
        g_usleep(r->o.pause_us);
    }
}

static gpointer run(gpointer opaque)
{
    struct relay *r = opaque;

    while (!atomic_load(&r->stop)) {
        go_round(r);
        atomic_fetch_add(&r->rounds, 1);
    }
    return NULL;
}

/* A thread; it listens when this returns. */
static struct relay *start(const struct relay_opts *o)
{
    struct relay *r = g_new0(struct relay, 1);

    r->o = *o;
    r->rand = g_rand_new_with_seed(1);
    pthread_mutex_init(&r->lock, NULL);
    r->listener[0] = r->listener[1] = -1;
    listen_or_not(r);
    r->thread = g_thread_new("relay", run, r);
    return r;
}

static void stop(struct relay *r)
{
    atomic_store(&r->stop, true);
    g_thread_join(r->thread);
    while (r->n) {
        drop(r, 0, false);
    }
    for (unsigned i = 0; i < r->n_orphans; i++) {
        close(r->orphan[i]);
    }
    for (unsigned k = 0; k < 2; k++) {
        if (r->listener[k] >= 0) {
            close(r->listener[k]);
        }
    }
    pthread_mutex_destroy(&r->lock);
    g_rand_free(r->rand);
    g_free(r);
}

unsigned relay_resets(const struct relay *r)
{
    return atomic_load(&r->resets);
}

unsigned relay_closes(const struct relay *r)
{
    return atomic_load(&r->closes);
}

uint64_t relay_carried(const struct relay *r)
{
    return atomic_load(&r->carried);
}

/* What was set counts from here on: a round that began before it is over. */
static void wait_round(const struct relay *r)
{
    unsigned now = atomic_load(&r->rounds);

    while (atomic_load(&r->rounds) - now < 2) {
        g_usleep(500);
    }
}

void relay_stall(struct relay *r, bool on)
{
    atomic_store(&r->stalled[0], on);
    relay_stall_from(r, 1, on);
}

void relay_stall_from(struct relay *r, unsigned host, bool on)
{
    atomic_store(&r->stalled[host], on);
    wait_round(r);
}

void relay_cut(struct relay *r, bool on)
{
    atomic_store(&r->cut, on);
    wait_round(r);
}

void relay_cut_starts(struct relay *r, const struct relay_start_cut *cut)
{
    pthread_mutex_lock(&r->lock);
    r->cuts_starts = cut != NULL;
    if (cut) {
        r->start_cut = *cut;
    }
    pthread_mutex_unlock(&r->lock);
}

unsigned relay_starts_cut(const struct relay *r)
{
    return atomic_load(&r->starts_cut);
}

void relay_refuse(struct relay *r, bool on)
{
    atomic_store(&r->refuse, on);
    wait_round(r);
}

void relay_reset(struct relay *r)
{
    atomic_store(&r->reset, true);
    wait_round(r);
    atomic_store(&r->reset, false);
}

struct vg_daemon *relay_host(unsigned i, struct host_opts o)
{
    g_autofree char *secret = host_secret_file(hosts_secret);
    g_autofree char *address = host_address(RELAY_AS(i));
    g_autofree char *group =
        g_strdup_printf("[peer host%u]\naddress=%s:%u\nsecret-file=%s\n", 1 - i, address,
                        hosts_port(), secret);

    o.n_peers = 0;
    o.groups = group;
    return host_start(i, &o);
}

struct relay *relay_hosts(struct vg_daemon **host, const struct relay_opts *r,
                          const struct host_opts *o)
{
    struct relay *relay = start(r);

    for (unsigned i = 0; i < 2; i++) {
        host[i] = relay_host(i, *o);
    }
    hosts_wait_up(host, 2);
    return relay;
}

void relay_hosts_stop(struct relay *r, struct vg_daemon **host)
{
    hosts_stop(host, 2);
    stop(r);
}
