/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Transport "tcp", the carrier of a stream's frames: a TCP socket of its own.
 *
 * Threads: the VM's worker in its turns, with the VM's token; the main thread makes and
 * ends one, with it, too.
 */
#include "transport/iwarp/socket.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "transport/iwarp/linger.h"
#include "transport/iwarp/rx.h"

/* What it is watched for, always. */
#define WATCH (EPOLLIN | EPOLLRDHUP | EPOLLET)

/*
 * The kernel's memory for TCP is the whole host's (net.ipv4.tcp_mem).  What it has not
 * sent of a stream is so much at most; the rest waits with us, and that is little.
 */
#define UNSENT (128u << 10)
/*
 * A VM's first streams have buffers that grow as the network needs it; those of further
 * ones are bounded, so that all of them get along with some hundred MiB.
 */
#define GROWING     16u
#define VM_BUFFERS  (64u << 20)
#define LEAST_BYTES (16u << 10)
#define SEGMENTS    4
#define MOST_BYTES  (1u << 20)

/* ---- out --------------------------------------------------------------------------- */

ssize_t socket_send(int fd, const uint8_t *data, size_t len)
{
    size_t done = 0;

    while (done < len) {
        ssize_t n = send(fd, data + done, len - done, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0 && errno == EAGAIN) {
            break;
        }
        if (n < 0) {
            return -1;
        }
        done += (size_t)n;
    }
    return (ssize_t)done;
}

static ssize_t socket_send_frames(struct conn *c, const uint8_t *frames, size_t len)
{
    return socket_send(c->s->socket.fd, frames, len);
}

static void socket_watch(struct conn *c, bool writable)
{
    struct epoll_event ev = {.events = WATCH | (writable ? EPOLLOUT : 0), .data.ptr = c};
    struct socket *k = &c->s->socket;

    if (k->writable != writable) {
        k->writable = writable;
        epoll_ctl(c->net->epfd, EPOLL_CTL_MOD, k->fd, &ev);
        if (writable) { /* there may be room already: no edge for the worker */
            atomic_store(&c->net->net.ready, true);
        }
    }
}

static int max_segment(int fd)
{
    int mss = 0;
    socklen_t len = sizeof(mss);

    if (getsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &mss, &len) < 0 || mss <= 0) {
        mss = 1448;
    }
    return mss;
}

/* TCP's segments grow with its window. */
static uint32_t socket_mulpdu(const struct conn *c)
{
    return fpdu_mulpdu((uint32_t)max_segment(c->s->socket.fd), c->s->framing.markers);
}

static bool socket_has_drained(struct conn *c)
{
    int was = c->s->socket.unsent, n = 0;

    c->s->socket.unsent = ioctl(c->s->socket.fd, SIOCOUTQ, &n) == 0 ? n : 0;
    return c->s->socket.unsent < was;
}

static bool socket_is_silent(const struct conn *c)
{
    return peer_fd_is_silent(c->s->socket.fd);
}

/* ---- it begins, and ends ------------------------------------------------------------
 */

/*
 * In the kernel, of either direction.  It doubles them, for what it needs itself.  With
 * less than some segments TCP would wait for timers.
 */
static void bound_buffers(const struct conn *c, int fd)
{
    uint64_t n = c->net->net.connections;
    int unsent = UNSENT, bytes;

    setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof(unsent));
    if (n > GROWING) {
        bytes = MAX((int)MIN(VM_BUFFERS / n, MOST_BYTES),
                    MAX((int)LEAST_BYTES, SEGMENTS * max_segment(fd)));
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
        /* Else it stays as it was when the connection was made. */
        setsockopt(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, &bytes, sizeof(bytes));
    }
}

/* Not close(): with input unread the peer might not get what was sent. */
static void socket_shut(struct conn *c)
{
    if (!c->s->socket.resets) {
        shutdown(c->s->socket.fd, SHUT_WR);
    }
}

static bool socket_is_delivered(const struct conn *c)
{
    return c->s->socket.resets && linger_all_acked(c->s->socket.fd);
}

static void socket_close(struct conn *c)
{
    struct socket *k = &c->s->socket;

    epoll_ctl(c->net->epfd, EPOLL_CTL_DEL, k->fd, NULL);
    if (c->qp || !k->resets) {
        close(k->fd);
    } else {
        linger_add(c->net, k->fd); /* on the main thread, where queue pairs go */
    }
    g_free(k->saved);
    g_free(k->rx.room);
}

static const struct carrier socket_carrier = {
    .send = socket_send_frames,
    .watch = socket_watch,
    .mulpdu = socket_mulpdu,
    .has_drained = socket_has_drained,
    .is_silent = socket_is_silent,
    .shut = socket_shut,
    .is_delivered = socket_is_delivered,
    .close = socket_close,
};

bool socket_up(struct conn *c, int fd, const struct framing *framing, bool ready,
               const struct hello *own, const struct hello *peer)
{
    struct epoll_event ev = {.events = WATCH, .data.ptr = c};
    struct stream *s = g_try_new0(struct stream, 1);

    if (!s || epoll_ctl(c->net->epfd, EPOLL_CTL_ADD, fd, &ev) < 0) {
        g_free(s);
        close(fd);
        return false;
    }
    bound_buffers(c, fd);
    s->carrier = &socket_carrier;
    s->socket.fd = fd;
    s->socket.resets = linger_is_reset(fd);
    fpdu_rx_init(&s->socket.rx, NULL, FPDU_MAX_SIZE, framing->crc, rdmap_head_len);
    s->socket.rx.in_parts = direct_in_parts;
    s->socket.rx.parts_arg = c;
    conn_up(c, s, framing, ready, own, peer);
    return true;
}
