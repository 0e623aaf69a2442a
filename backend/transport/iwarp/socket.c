/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Transport "tcp", the carrier of a stream's frames that is always there: a TCP socket of
 * its own.
 *
 * A frame is looked at when it is all there and its sum is right, and its payload goes
 * from the receive buffer to its place in guest memory.  Most of what large messages are
 * made of goes there straight from the socket, see direct_receive.c.
 *
 * Reading stops only for the short time in which a message waits for the grace period of
 * a key that it took away; input that is here already is kept meanwhile.
 *
 * Sockets are in an epoll set of the VM, which is one source of the VM's worker; those
 * that have told of something that is not read to its end are in a list (unread).  They
 * are edge-triggered: a level would be looked at twice for what is read once.  What tells
 * of the VM's channels is in that set, too (flow.c).  Whoever
 * frees a conn holds the VM's token, and so does who asks epoll: what that returns is
 * alive.
 *
 * Threads: the VM's worker in its turns, with the VM's token, and sockets_ready() without
 * it; the main thread makes and ends sockets, with it.
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

/* Looked at with one call. */
#define EVENTS 64
/* Of a cache. */
#define LINE 64u

/* ---- out ---------------------------------------------------------------------- */

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
    count(&c->net->net.sends, 1);
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

static bool socket_has_drained(struct conn *c, uint64_t now)
{
    int was = c->s->socket.unsent, n = 0;

    c->s->socket.unsent = ioctl(c->s->socket.fd, SIOCOUTQ, &n) == 0 ? n : 0;
    return c->s->socket.unsent < was;
}

static bool socket_is_silent(const struct conn *c)
{
    return peer_fd_is_silent(c->s->socket.fd);
}

/* ---- in ----------------------------------------------------------------------- */

/* True: all of @in was taken. */
static bool socket_take_input(struct conn *c, struct fpdu_input *in, struct turn *t)
{
    struct stream *s = c->s;
    struct fpdu_part part;

    for (;;) {
        enum iwarp_error error;

        if (!rx_have_room(&s->socket.rx, in)) {
            conn_break(c, "no memory");
            return false;
        }
        error = fpdu_rx_next(&s->socket.rx, in, &part);
        if (error) {
            c->no_direct |= s->socket.direct; /* perhaps it was the guest */
            tx_terminate(c, error, NULL, 0, 0);
            return false;
        }
        switch (part.kind) {
        case FPDU_NONE:
            return true;
        case FPDU_HEAD:
            direct_begin(c, &part);
            break;
        case FPDU_SPAN:
            direct_span(c, &part);
            break;
        case FPDU_END:
            direct_end(c);
            break;
        default:
            rx_segment(c, part.data, part.len);
            break;
        }
        comp_make_room(worker_self());
        turn_spent(t, 1 + (part.len >> PVRDMA_PAGE_SHIFT));
        if (!stream_is_up(s) || s->rx_phase == RX_GRACE) {
            return false;
        }
    }
}

static void socket_input(struct conn *c, struct fpdu_input *in, struct turn *t)
{
    struct stream *s = c->s;

    if (!socket_take_input(c, in, t) && s->rx_phase == RX_GRACE && stream_is_up(s)) {
        rx_save(&s->socket.saved, &s->socket.saved_len, in);
    } else {
        g_clear_pointer(&s->socket.saved, g_free);
    }
}

static void socket_resume(struct conn *c, struct turn *t)
{
    struct socket *k = &c->s->socket;
    struct fpdu_input in = {k->saved, k->saved ? k->saved_len : 0};

    if (in.left) {
        socket_input(c, &in, t);
    }
}

/*
 * Read once.  *@asked: how much that could have been; *@taken: what of it went straight
 * to its place.
 */
static ssize_t socket_read_some(struct conn *c, size_t *asked, size_t *taken)
{
    struct tcp_scratch *x = tcp_scratch();
    struct stream *s = c->s;
    ssize_t n = stream_is_up(s) ? direct_receive(c, asked, taken) : 0;

    if (n) {
        return n;
    }
    *taken = 0;
    *asked = MIN(sizeof(x->in_buf), direct_limit(c));
    n = recv(s->socket.fd, x->in_buf, *asked, MSG_DONTWAIT);
    if (n == 0) {
        conn_break(c, "the peer has closed it");
    }
    return n;
}

static bool socket_has_input(const struct stream *s)
{
    int n = 0;

    return ioctl(s->socket.fd, SIOCINQ, &n) == 0 && n > 0;
}

/* Read it, and take what comes.  False: there is no more until it tells. */
static bool socket_run(struct conn *c, struct turn *t)
{
    struct tcp_scratch *x = tcp_scratch();
    struct stream *s = c->s;
    size_t asked, taken;
    struct fpdu_input in;
    ssize_t n;

    do {
        if (s->rx_phase == RX_GRACE || stream_is_over(s)) {
            return s->rx_phase == RX_GRACE;
        }
        n = socket_read_some(c, &asked, &taken);
        if (n < 0 && errno == EINTR) {
            return true;
        }
        if (n < 0 && errno != EAGAIN) {
            conn_break(c, g_strerror(errno));
        }
        if (n <= 0) {
            return false;
        }
        if (stream_is_up(s)) {
            c->progress = t->now; /* it is there, and speaks */
            in = (struct fpdu_input){x->in_buf, (size_t)n - taken};
            socket_input(c, &in, t);
        }
        /* In the middle of a large message: little was asked for. */
    } while ((size_t)n == asked && asked < sizeof(x->in_buf) &&
             !turn_spent(t, 1 + (unsigned)(taken >> PVRDMA_PAGE_SHIFT)));
    /* Less than that was all there was, unless it is the guest's memory that ended. */
    return (size_t)n == asked || ((size_t)n == taken && socket_has_input(s));
}

/* ---- those of a VM ------------------------------------------------------------ */

/* It may have something to read, or still has. */
static void socket_add_unread(struct conn *c)
{
    if (!c->is_unread) {
        c->is_unread = true;
        TAILQ_INSERT_TAIL(&c->net->unread, c, unread);
    }
}

static void socket_remove_unread(struct conn *c)
{
    if (c->is_unread) {
        c->is_unread = false;
        TAILQ_REMOVE(&c->net->unread, c, unread);
    }
}

static inline void socket_prefetch(const void *at, size_t n)
{
    for (size_t i = 0; i < n; i += LINE) {
        __builtin_prefetch((const char *)at + i);
    }
}

/* What a frame of it will touch: with many streams that is in no cache. */
static void socket_prefetch_conn(const struct conn *c)
{
    socket_prefetch(c->s, offsetof(struct stream, socket.held));
    socket_prefetch(c, offsetof(struct conn, expect));
    __builtin_prefetch(&c->qp->lock);
    socket_prefetch(&c->qp->resp, sizeof(c->qp->resp));
}

/* Note what the sockets tell.  True: there may be more. */
static bool sockets_look(struct tcp_vm *net)
{
    struct epoll_event ev[EVENTS];
    int n = epoll_wait(net->epfd, ev, EVENTS, 0);

    for (int i = 0; i < n; i++) {
        __builtin_prefetch(ev[i].data.ptr);
    }
    for (int i = 0; i < n; i++) {
        struct conn *c = ev[i].data.ptr;

        if (G_UNLIKELY(!c)) {
            rnic_vm_woken(tcp_vm_rnic(net));
        } else if (c->s) {
            c->s->socket.has_room |= (ev[i].events & EPOLLOUT) != 0;
            /* An end that comes with data is seen behind them, without another edge. */
            c->s->socket.peer_shut |= (ev[i].events & EPOLLRDHUP) != 0;
            socket_add_unread(c);
        }
    }
    return n == EVENTS;
}

void sockets_run(struct tcp_vm *net, struct turn *t)
{
    struct conn *c, *last;
    bool more;

    /* First: what comes from now on sets it again. */
    atomic_store(&net->net.ready, false);
    more = sockets_look(net);
    last = TAILQ_LAST(&net->unread, conn_list);
    while ((c = TAILQ_FIRST(&net->unread))) {
        struct conn *next = TAILQ_NEXT(c, unread);

        if (next) {
            socket_prefetch_conn(next);
        }
        socket_remove_unread(c);
        if (c->s->socket.has_room) {
            c->s->socket.has_room = false;
            tx_writable(c);
        }
        if (socket_run(c, t) || c->s->socket.peer_shut) {
            socket_add_unread(c);
        }
        comp_make_room(worker_self());
        if (c == last || turn_spent(t, 1)) {
            break;
        }
    }
    if (more || !TAILQ_EMPTY(&net->unread)) {
        atomic_store_explicit(&net->net.ready, true, memory_order_relaxed);
    }
}

static void sockets_ready(struct source *s)
{
    struct tcp_vm *net =
        (struct tcp_vm *)(void *)((char *)s - offsetof(struct tcp_vm, source));

    atomic_store(&net->net.ready, true);
    datapath_wake(net->vm);
}

bool sockets_init(struct tcp_vm *net)
{
    TAILQ_INIT(&net->unread);
    net->epfd = epoll_create1(EPOLL_CLOEXEC);
    net->source = (struct source){.fd = net->epfd, .ready = sockets_ready};
    if (net->epfd >= 0 && worker_add_source(net->vm->dp.worker, &net->source, EPOLLIN)) {
        return true;
    }
    log_vm(LOG_LVL_WARN, net->vm, "cannot watch sockets for it: %s", g_strerror(errno));
    if (net->epfd >= 0) {
        close(net->epfd);
    }
    return false;
}

void sockets_fini(struct tcp_vm *net)
{
    worker_remove_source(&net->source);
    close(net->epfd);
}

/* ---- it begins, and ends -------------------------------------------------------- */

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

    socket_remove_unread(c);
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
    .resume = socket_resume,
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
    flow_not_used(c->net);
    conn_up(c, s, framing, ready, own, peer);
    return true;
}
