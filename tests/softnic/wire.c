/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * softnic: connections, in this process or over UNIX sockets, and the thread that moves
 * packets.  Packets of one direction are never reordered or lost before the connection
 * is: what a NIC would repeat is told to the requester instead (PKT_DROPPED), which lets
 * its time for it run out.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <arpa/inet.h>
#include <unistd.h>

#include "base/thread.h"
#include "internal.h"

#define OUT_FULL (1u << 18)

struct soft soft = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .acked = PTHREAD_COND_INITIALIZER,
    .hold = -1,
    .timer_at = INT64_MAX,
    .wake = -1,
    .epoll = -1,
    .ready = G_QUEUE_INIT,
};

int64_t soft_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

/* ---- packets ---- */

struct packet *soft_packet(enum packet_kind kind, uint32_t len)
{
    struct packet *p = g_malloc(sizeof(*p) + len);

    memset(p, 0, sizeof(*p));
    p->h.kind = kind;
    p->h.len = len;
    return p;
}

static void packets_push(struct packets *q, struct packet *p)
{
    p->next = NULL;
    *q->end = p;
    q->end = &p->next;
    q->n++;
}

struct packet *soft_pop(struct packets *q)
{
    struct packet *p = q->first;

    if (p) {
        q->first = p->next;
        q->end = q->first ? q->end : &q->first;
        q->n--;
    }
    return p;
}

static void packets_drop(struct packets *q)
{
    struct packet *p;

    while ((p = soft_pop(q))) {
        g_free(p);
    }
}

/* ---- the queue of wires with something to do ---- */

void soft_wake(void)
{
    uint64_t one = 1;

    if (soft.asleep) {
        soft.asleep = false;
        if (write(soft.wake, &one, sizeof(one)) < 0) {
            soft_bug("cannot wake the thread");
        }
    }
}

void soft_kick(struct wire *w)
{
    if (w && !w->queued) {
        w->queued = true;
        g_queue_push_tail(&soft.ready, w);
        soft_wake();
    }
}

/* Nothing arrives from the peer for now, or for ever. */
bool soft_stalled(struct wire *w)
{
    return w->dead || w->peer_down || !w->dev->up || (w->peer && !w->peer->dev->up);
}

bool soft_wire_full(struct wire *w)
{
    return w->peer ? w->peer->answers.n >= SOFT_WINDOW
                   : w->out && w->out->len >= OUT_FULL;
}

/* ---- wires ---- */

struct wire *soft_wire_new(struct softdev *dev)
{
    struct wire *w = g_new0(struct wire, 1);

    w->dev = dev;
    dev->refs++;
    w->fd = -1;
    w->requests.end = &w->requests.first;
    w->answers.end = &w->answers.first;
    g_ptr_array_add(soft.wires, w);
    return w;
}

static void wire_fd(struct wire *w, int fd)
{
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = w};

    w->fd = fd;
    w->in = g_byte_array_new();
    w->out = g_byte_array_new();
    if (epoll_ctl(soft.epoll, EPOLL_CTL_ADD, fd, &e)) {
        soft_bug("epoll");
    }
}

static void wire_dead(struct wire *w)
{
    w->dead = true;
    packets_drop(&w->requests); /* answers that were on their way do arrive */
    if (w->fd >= 0) {
        close(w->fd);
        w->fd = -1;
        g_byte_array_free(w->in, TRUE);
        g_byte_array_free(w->out, TRUE);
        w->in = w->out = NULL;
    }
    if (w->peer) {
        struct wire *peer = w->peer;

        w->peer = NULL;
        peer->peer = NULL;
        wire_dead(peer);
    }
    soft_kick(w);
}

static void packet_arrived(struct wire *w, struct packet *p);

void soft_wire_free(struct wire *w)
{
    if (w->qp) {
        w->qp->wire = NULL;
    }
    if (w->peer) { /* behind all that was sent */
        packet_arrived(w->peer, soft_packet(PKT_LOST, 0));
        w->peer->peer = NULL;
        w->peer = NULL;
    }
    wire_dead(w);
    packets_drop(&w->answers);
    g_queue_remove(&soft.ready, w);
    g_ptr_array_remove_fast(soft.wires, w);
    soft_dev_put(w->dev);
    g_free(w);
}

static void wire_write(struct wire *w)
{
    while (w->out && w->out->len) {
        ssize_t n = send(w->fd, w->out->data, w->out->len, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0) {
            break; /* told by the reading side, if it is not for room */
        }
        g_byte_array_remove_range(w->out, 0, n);
    }
    if (w->out && w->watched_out != (w->out->len > 0)) {
        struct epoll_event e = {.data.ptr = w};

        w->watched_out = w->out->len > 0;
        e.events = EPOLLIN | (w->watched_out ? EPOLLOUT : 0);
        epoll_ctl(soft.epoll, EPOLL_CTL_MOD, w->fd, &e);
    }
}

/* A packet has arrived at @w. */
static void packet_arrived(struct wire *w, struct packet *p)
{
    switch (p->h.kind) {
    case PKT_RETRY:
        if (w->qp) {
            w->qp->parked = false;
        }
        g_free(p);
        break;
    case PKT_DOWN:
    case PKT_UP:
        w->peer_down = p->h.kind == PKT_DOWN;
        g_free(p);
        break;
    default:
        packets_push(p->h.kind <= PKT_READ ? &w->requests : &w->answers, p);
    }
    soft_kick(w);
}

void soft_send(struct wire *w, struct packet *p)
{
    if (w->peer && !w->mute) {
        packet_arrived(w->peer, p);
        return;
    }
    if (w->fd >= 0 && !w->mute) {
        g_byte_array_append(w->out, (uint8_t *)&p->h, sizeof(p->h) + p->h.len);
        wire_write(w);
    }
    g_free(p);
}

void soft_send_plain(struct wire *w, enum packet_kind kind)
{
    soft_send(w, soft_packet(kind, 0));
}

/* No packet passes any more, and neither side is told. */
void soft_cut(struct wire *w)
{
    if (w->fd >= 0) {
        soft_send_plain(w, PKT_CUT);
    }
    wire_dead(w);
}

/* ---- sockets ---- */

static void socket_name(struct sockaddr_un *a, in_addr_t addr)
{
    char text[INET_ADDRSTRLEN];
    struct in_addr in = {addr};

    memset(a, 0, sizeof(*a));
    a->sun_family = AF_UNIX;
    inet_ntop(AF_INET, &in, text, sizeof(text));
    if (snprintf(a->sun_path, sizeof(a->sun_path), "%s/%s", soft.dir, text) >=
        (int)sizeof(a->sun_path)) {
        soft_bug("the folder's name is too long");
    }
}

/* The way to a NIC's address from one of ours, or NULL. */
struct wire *soft_wire_connect(struct softdev *dev, in_addr_t to)
{
    struct softdev *there = soft_find_address(to);
    struct sockaddr_un a;
    struct wire *w;
    int fd;

    if (there) {
        if (!there->up || there->fatal) {
            return NULL;
        }
        w = soft_wire_new(dev);
        w->peer = soft_wire_new(there);
        w->peer->peer = w;
        return w;
    }
    if (!soft.dir) {
        return NULL;
    }
    socket_name(&a, to);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof(a))) {
        close(fd);
        return NULL;
    }
    w = soft_wire_new(dev);
    wire_fd(w, fd);
    return w;
}

/*
 * Descriptors in the epoll set are wires, or these: a NIC's address, tagged by the lowest
 * bit, or NULL for the eventfd.
 */
void soft_listen(struct softdev *dev)
{
    for (unsigned i = 0; i < dev->n_addresses; i++) {
        struct epoll_event e = {.events = EPOLLIN,
                                .data.u64 = ((uintptr_t)dev | 1) + 2 * i};
        struct sockaddr_un a;
        int fd;

        dev->listener[i] = -1;
        if (!soft.dir) {
            continue;
        }
        socket_name(&a, dev->address[i]);
        unlink(a.sun_path);
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) || listen(fd, 1024) ||
            epoll_ctl(soft.epoll, EPOLL_CTL_ADD, fd, &e)) {
            soft_bug("cannot listen in the folder");
        }
        dev->listener[i] = fd;
    }
}

void soft_unlisten(struct softdev *dev)
{
    for (unsigned i = 0; i < dev->n_addresses; i++) {
        struct sockaddr_un a;

        if (dev->listener[i] >= 0) {
            socket_name(&a, dev->address[i]);
            unlink(a.sun_path);
            close(dev->listener[i]);
            dev->listener[i] = -1;
        }
    }
}

static void wire_accept(struct softdev *dev, unsigned i)
{
    int fd;

    while (dev->listener[i] >= 0 &&
           (fd = accept4(dev->listener[i], NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        if (dev->up && !dev->fatal) {
            wire_fd(soft_wire_new(dev), fd);
        } else {
            close(fd);
        }
    }
}

static void wire_read(struct wire *w)
{
    uint8_t buf[65536];
    ssize_t n = -1;

    while (w->fd >= 0 && (n = recv(w->fd, buf, sizeof(buf), MSG_DONTWAIT)) != -1) {
        unsigned at = 0;
        struct packet_head h;

        if (!n) { /* the process has ended, or freed its end */
            break;
        }
        g_byte_array_append(w->in, buf, n);
        while (w->fd >= 0 && w->in->len - at >= sizeof(h)) {
            struct packet *p;

            memcpy(&h, w->in->data + at, sizeof(h));
            if (w->in->len - at < sizeof(h) + h.len) {
                break;
            }
            if (h.kind == PKT_CUT) {
                wire_dead(w);
                return;
            }
            p = soft_packet(h.kind, h.len);
            p->h = h;
            memcpy(p->data, w->in->data + at + sizeof(h), h.len);
            at += sizeof(h) + h.len;
            packet_arrived(w, p);
        }
        g_byte_array_remove_range(w->in, 0, at);
    }
    if (w->fd >= 0 && (!n || errno != EAGAIN)) {
        epoll_ctl(soft.epoll, EPOLL_CTL_DEL, w->fd, NULL);
        packet_arrived(w, soft_packet(PKT_LOST, 0));
    }
}

/* ---- the thread ---- */

/* A turn of one connection's end: answers first, as a request may be parked. */
static void wire_turn(struct wire *w)
{
    struct softqp *qp = w->qp;
    bool more = false;
    struct packet *p;

    for (unsigned i = 0; i < SOFT_TURN && soft.hold && (p = w->answers.first); i++) {
        bool cm = p->h.kind >= PKT_REQ;

        if (!cm && (!qp || qp->state < IBV_QPS_RTS || (soft_stalled(w) && !w->dead))) {
            if (qp) {
                break;
            }
        }
        soft_pop(&w->answers);
        soft.hold -= soft.hold > 0;
        if (cm) {
            soft_kick(w);
            soft_cm_packet(w, p); /* may be the end of the wire */
            return;
        }
        soft_answer(w, p);
        more = true;
    }
    for (unsigned i = 0; i < SOFT_TURN && soft_respond(w); i++) {
        more = true;
    }
    for (unsigned i = 0; i < SOFT_TURN && soft_request(w); i++) {
        more = true;
    }
    if (w->qp) {
        soft_qp_stalled(w->qp);
    }
    if (w->dead && w->id) {
        soft_cm_stalled(w->id);
    }
    if (more) {
        soft_kick(w);
        soft_kick(w->peer);
    }
}

/* At most so many turns; whether there was one. */
bool soft_run(unsigned turns)
{
    bool any = false;

    while (turns-- && soft.hold && soft.ready.length) {
        struct wire *w = g_queue_pop_head(&soft.ready);

        w->queued = false;
        wire_turn(w);
        any = true;
    }
    return any;
}

void soft_timer(int64_t at)
{
    if (at < soft.timer_at) {
        soft.timer_at = at;
        soft_wake();
    }
}

/* Timers that are over; until the next, or -1: ms. */
static int soft_timers(void)
{
    int64_t now;

    if (soft.timer_at == INT64_MAX) {
        return -1;
    }
    now = soft_now();
    if (now >= soft.timer_at) {
        soft.timer_at = INT64_MAX;
        for (unsigned i = 0; i < soft.qps->len; i++) {
            soft_qp_timer(soft.qps->pdata[i], now);
        }
        for (unsigned i = 0; i < soft.ids->len; i++) {
            soft_cm_timer(soft.ids->pdata[i], now);
        }
    }
    return soft.timer_at == INT64_MAX
               ? -1
               : (int)((MAX(soft.timer_at - now, 0) + 999999) / 1000000);
}

static void *soft_main(void *unused)
{
    struct epoll_event e[64];

    pthread_mutex_lock(&soft.lock);
    for (;;) {
        int n, timeout = soft_timers();
        bool busy = soft.hold && soft.ready.length;

        soft.asleep = !busy;
        pthread_mutex_unlock(&soft.lock);
        n = epoll_wait(soft.epoll, e, G_N_ELEMENTS(e), busy ? 0 : timeout);
        pthread_mutex_lock(&soft.lock);
        soft.asleep = false;
        for (int i = 0; i < n; i++) {
            uintptr_t tag = e[i].data.u64;
            uint64_t count;

            if (!tag) {
                if (read(soft.wake, &count, sizeof(count)) < 0) {
                    continue;
                }
            } else if (tag & 1) {
                for (unsigned k = 0; k < soft.devs->len; k++) {
                    struct softdev *dev = soft.devs->pdata[k];
                    uintptr_t first = (uintptr_t)dev | 1;

                    if (tag >= first && tag < first + 2ul * dev->n_addresses) {
                        wire_accept(dev, (tag - first) / 2);
                    }
                }
            } else if (g_ptr_array_find(soft.wires, e[i].data.ptr, NULL)) {
                wire_write(e[i].data.ptr);
                soft_kick(e[i].data.ptr);
                wire_read(e[i].data.ptr);
            }
        }
        soft_run(16);
    }
    return NULL;
}

/* With the first NIC. */
void soft_start(void)
{
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = 0};
    pthread_t thread;

    if (soft.started) {
        return;
    }
    soft.started = true;
    soft.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    soft.epoll = epoll_create1(EPOLL_CLOEXEC);
    if (soft.wake < 0 || soft.epoll < 0 ||
        epoll_ctl(soft.epoll, EPOLL_CTL_ADD, soft.wake, &e) ||
        thread_create(&thread, NULL, soft_main, NULL)) {
        soft_bug("cannot start");
    }
    pthread_detach(thread);
}
