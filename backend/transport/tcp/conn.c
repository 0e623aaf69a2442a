/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Transport "tcp": connected queue pairs whose peer is on another host, as iWARP (MPA,
 * DDP, RDMAP) over TCP.
 *
 * A queue pair has a struct conn from RTR to RESET.  It has a stream, a TCP connection in
 * full operation, when both sides want one and the network lets them; one stream carries
 * both directions.  What breaks is a stream, never the queue pair: the engine is told
 * (requester_lost), start() asks for another one, and when that is there both sides know
 * from its private data (hello.h) what has arrived.  Until then start() answers OUT_HELD
 * while a try is under way, and OUT_SILENT when one was in vain, which costs one of the
 * queue pair's own retries: its budget, not ours, decides when it fails.
 *
 * The peer may change its place, with what it knows of us: another host, or this one,
 * where messages go by `copy`.  A stream belongs to one place.  When the directory says
 * that there is another, the stream is broken and the next one goes there; to the engine
 * that is like any other broken stream.  While the peer is on its way its route is held,
 * and nobody's time runs.
 *
 * An unreliable connection (UC) has the same streams, on which nothing is answered: a
 * message is complete when it is staged, and what breaks with a stream is lost.  One
 * waits for a stream that is being made, and is lost if there comes none
 * (unacknowledged()).
 *
 * The engine has no timer for what is on its way, so a sweep looks for peers that have
 * not answered for one try's time, and breaks their streams.
 *
 *   conn.c   connections and streams come and go; the transport's interface
 *   setup.c  the main thread: who connects; with it startup.c (MPA's startup frames),
 *            follow.c (peers that move) and loop.c (both ends in this daemon)
 *   tx.c     frames out        rx.c  frames in        arrival.c  the messages in them
 *
 * Threads.  All of a conn but what conn.h calls the main thread's is under the VM's
 * token: the VM's worker in its turns, and the main thread when it makes or ends one. The
 * staging buffer is a worker's, and empty whenever a token is let go.
 *
 * Sockets are in an epoll set of the VM, which is one source of the VM's worker.  They
 * are edge-triggered: a level would be looked at twice for what is read once.  So what
 * has been told and is not read to its end yet is in a list (unread).  Whoever frees a
 * conn holds the token, and so does who asks epoll: what that returns is alive.
 */
#include "transport/tcp/conn.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "transport/tcp/tcp.h"
#include "transport/transports.h"

/* How long a try to get a stream counts as under way. */
#define TRY_NS 300000000u
/* UC: tries before a message is lost; one that is refused counts for more. */
#define MAX_IN_VAIN 8u
#define REFUSED_FOR 4u
/* Not more often than that. */
#define ASK_EVERY_NS 2000000u
/* A peer may be silent for that long, whatever the queue pair's timeout. */
#define MIN_SILENCE_NS 500000000u
/* ... and one of an unreliable connection not read. */
#define MAX_SILENCE_NS 4000000000u
#define SWEEP_NS       50000000u
#define SWEEP_MAX      64u /* in a turn */
/* ... or not read what it is told at the end. */
#define CLOSING_NS 1000000000u
/* Sockets looked at with one call. */
#define EVENTS 64
/* Of a cache. */
#define LINE 64u
/* What a socket is watched for, always. */
#define WATCH (EPOLLIN | EPOLLRDHUP | EPOLLET)
/* How soon to look whether a grace period is over. */
#define GRACE_NS 2000u

bool tcp_forced;

struct tcp_scratch *tcp_scratch(void)
{
    struct worker *w = worker_self();

    if (!w->scratch) {
        w->scratch = malloc(sizeof(struct tcp_scratch));
        if (!w->scratch) {
            g_error("no memory for a worker's buffers");
        }
        ((struct tcp_scratch *)w->scratch)->out = NULL;
    }
    return w->scratch;
}

static void set_due(struct tcp_vm *net, uint64_t soon)
{
    atomic_store_explicit(&net->net.due, MIN(net->sweep, soon), memory_order_relaxed);
}

/* The peer is to do something: somebody has to see if it does. */
static void expect_answer(struct conn *c)
{
    struct tcp_vm *net = c->net;

    if (c->expecting) {
        return;
    }
    c->expecting = true;
    c->progress = now_ns();
    TAILQ_INSERT_TAIL(&net->expecting, c, expect);
    net->n_expecting++;
    if (net->sweep == UINT64_MAX) {
        net->sweep = c->progress + SWEEP_NS;
        set_due(net, UINT64_MAX);
    }
}

static void expect_nothing(struct conn *c)
{
    if (c->expecting) {
        c->expecting = false;
        TAILQ_REMOVE(&c->net->expecting, c, expect);
        c->net->n_expecting--;
    }
}

/* ---- streams ---------------------------------------------------------------- */

void conn_work(struct conn *c)
{
    if (!c->has_work) {
        c->has_work = true;
        TAILQ_INSERT_TAIL(&c->net->work, c, work);
    }
}

/* It may have something to read, or still has. */
static void is_unread(struct conn *c)
{
    if (!c->is_unread) {
        c->is_unread = true;
        TAILQ_INSERT_TAIL(&c->net->unread, c, unread);
    }
}

static void not_unread(struct conn *c)
{
    if (c->is_unread) {
        c->is_unread = false;
        TAILQ_REMOVE(&c->net->unread, c, unread);
    }
}

static void no_work(struct conn *c)
{
    if (c->has_work) {
        c->has_work = false;
        TAILQ_REMOVE(&c->net->work, c, work);
    }
}

void conn_break(struct conn *c, const char *why)
{
    if (c->s && !c->s->broken) {
        c->s->broken = true;
        c->is_up = false;
        log_vm(LOG_LVL_DEBUG, c->vm, "QP %u: connection ends: %s", c->ticket.qp, why);
        conn_work(c);
    }
}

void conn_failed(struct conn *c, uint64_t seq, struct outcome o)
{
    struct stream *s = c->s;
    struct qp *qp = c->qp;

    s->nak_status = o.status;
    s->nak = seq;
    s->nak_due = true;
    /* READs and atomics that were executed before are answered all the same. */
    pthread_mutex_lock(&qp->lock);
    for (unsigned i = 0; i < s->n_jobs; i++) {
        s->job[(s->job_first + i) % TCP_DEPTH].epoch = qp->resp.epoch;
    }
    pthread_mutex_unlock(&qp->lock);
    conn_work(c);
}

void conn_finish(struct conn *c)
{
    c->s->closing = true;
    c->is_up = false;
    expect_answer(c);
    c->progress = now_ns();
    conn_work(c);
}

void conn_go(struct conn *c)
{
    if (c->stalled) {
        c->stalled = false;
        requester_go(c->qp);
    }
}

void conn_watch(struct conn *c, bool writable)
{
    struct stream *s = c->s;
    struct epoll_event ev = {.events = WATCH | (writable ? EPOLLOUT : 0), .data.ptr = c};

    if (s->writable != writable) {
        s->writable = writable;
        epoll_ctl(c->net->epfd, EPOLL_CTL_MOD, s->fd, &ev);
        if (writable) { /* there may be room already: no edge for the worker */
            atomic_store(&c->net->net.ready, true);
        }
    }
}

void conn_follow(struct conn *c)
{
    c->trying = c->refused = false;
    c->next_ask = 0;
    c->in_vain = 0;
    conn_break(c, "its peer has another place");
    atomic_store(&c->net->net.ready, true); /* the worker looks */
}

void conn_reachable(struct conn *c, bool anew)
{
    struct qp *qp = c->qp;

    if (qp->req.wait == QP_WAIT_HOLD || (anew && qp->req.wait == QP_WAIT_TIMEOUT)) {
        sched_unwait(qp);
        datapath_ring(c->vm, qp->handle); /* the worker may be about to sleep */
    }
}

void conn_down(struct conn *c)
{
    struct stream *s = c->s;

    if (!s) {
        return;
    }
    c->s = NULL;
    c->is_up = false;
    no_work(c);
    not_unread(c);
    /* One that brought nothing was a try in vain. */
    c->refused |= c->reliable && s->sent && !s->answered;
    c->ready_owed |= s->ready_due;
    epoll_ctl(c->net->epfd, EPOLL_CTL_DEL, s->fd, NULL);
    close(s->fd);
    g_free(s->backlog);
    g_free(s->saved);
    g_free(s);
    c->stalled = false;
    if (c->qp) {
        requester_lost(c->qp);
    }
}

void conn_hello(struct conn *c, struct hello *h)
{
    struct qp *qp = c->qp;

    *h = (struct hello){
        .incarnation = c->incarnation,
        .seq = qp->req.seq - qp->req.in_flight,
        .psn = qp->req.psn,
        .mtu = (uint8_t)qp->attr.path_mtu,
        .unreliable = !c->reliable,
    };
    for (uint64_t i = h->seq; i < qp->req.seq; i++) {
        h->psn = (h->psn - window_at(qp, i)->npsn) & PSN_MASK;
    }
    pthread_mutex_lock(&qp->lock);
    h->heard = qp->resp.incarnation;
    h->got = qp->resp.seq;
    h->failed_status = atomic_load(&qp->resp.failed_status);
    h->failed_seq = qp->resp.failed_seq;
    pthread_mutex_unlock(&qp->lock);
}

uint32_t conn_mulpdu(int fd, bool markers)
{
    int mss = 0;
    socklen_t len = sizeof(mss);

    if (getsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &mss, &len) < 0 || mss <= 0) {
        mss = 1448;
    }
    return fpdu_mulpdu((uint32_t)mss, markers);
}

bool conn_waits(const struct conn *c)
{
    const struct qp_requester *req = &c->qp->req;

    return req->in_flight || req->replay || req->queued || req->op.active ||
           req->wait != QP_WAIT_NONE || c->stalled || c->ready_owed ||
           (c->s && c->s->behind) || atomic_load(&c->qp->state) == PVRDMA_QPS_ERR;
}

bool conn_up(struct conn *c, int fd, const struct framing *framing,
             const struct hello *own, const struct hello *peer)
{
    struct epoll_event ev = {.events = WATCH, .data.ptr = c};
    struct stream *s = g_try_malloc(sizeof(*s));

    if (!s || epoll_ctl(c->net->epfd, EPOLL_CTL_ADD, fd, &ev) < 0) {
        g_free(s);
        close(fd);
        return false;
    }
    memset(s, 0,
           offsetof(struct stream, room)); /* that is not touched until it is used */
    s->fd = fd;
    s->framing = *framing;
    s->mulpdu = conn_mulpdu(fd, framing->markers);
    s->may_send = c->initiator;
    s->psn = own->psn;
    for (unsigned i = 0; i < RDMAP_QNS; i++) {
        s->msn[i] = 1;
        s->q[i] = DDP_QUEUE_INIT;
    }
    fpdu_rx_init(&s->rx, s->room, sizeof(s->room), framing->crc, rdmap_head_len);
    s->rx.in_parts = rx_goes_straight;
    s->rx.parts_arg = c;

    /* What each expects of the other. */
    s->seq = peer->heard == c->incarnation ? peer->got : own->seq;
    s->rx_seq = own->heard == peer->incarnation ? own->got : peer->seq;
    c->peer_incarnation = peer->incarnation;
    c->peer_seq = peer->seq;
    c->peer_psn = peer->psn;
    c->peer_mtu = peer->mtu;
    s->behind = c->reliable && own->heard == peer->incarnation && peer->seq > own->got;
    s->fresh = true; /* completions are a worker's affair */
    c->s = s;
    c->is_up = true;
    c->trying = c->refused = false;
    c->in_vain = 0;
    c->progress = now_ns();
    conn_work(c);
    if (conn_waits(c)) {
        atomic_store(&c->net->net.ready, true);
    }
    return true;
}

/* ---- the VM's turns ----------------------------------------------------------- */

static struct tcp_vm *of_net(struct vm_net *net)
{
    return (struct tcp_vm *)(void *)net;
}

/* How long a peer may take for an answer, before that is a try; ns, 0: for ever. */
static uint64_t patience(const struct qp *qp)
{
    if (!qp->service->acknowledged) {
        return MAX_SILENCE_NS;
    }
    return qp->attr.timeout ? MAX(4096ull << qp->attr.timeout, MIN_SILENCE_NS) : 0;
}

/* Has the peer taken some of what is in the socket since that was asked last? */
static bool has_drained(struct conn *c)
{
    int was = c->s->unsent, n = 0;

    c->s->unsent = ioctl(c->s->fd, SIOCOUTQ, &n) == 0 ? n : 0;
    return c->s->unsent < was;
}

/* A peer that does not answer, or does not read.  False: it is not waited for. */
static bool look_at(struct conn *c, uint64_t now)
{
    struct qp *qp = c->qp;
    uint64_t silent = now > c->progress ? now - c->progress : 0, most;

    if (c->s && c->s->closing) {
        if (silent > CLOSING_NS) {
            conn_break(c, "the peer does not read to the end");
        }
        return true;
    }
    if (!c->s ||
        (!qp->req.in_flight && !c->stalled && !(qp->req.op.active && qp->req.op.done))) {
        return false;
    }
    most = patience(qp);
    if (!most || !qp->req.route || route_is_held(qp->req.route)) {
        c->progress = now; /* its clock stands still */
        if (!c->reliable) {
            conn_go(c); /* what is sent to it is lost */
        }
    } else if (silent > most && has_drained(c)) {
        c->progress = now;
    } else if (silent > most) {
        c->progress = now;
        if (qp->req.in_flight) {
            requester_answered(qp, qp->req.seq - qp->req.in_flight, OUTCOME(OUT_SILENT));
        } else {
            c->refused = true;
        }
        c->s->answered = true; /* that was the try; its end is none */
        conn_break(c, "no answer");
    }
    return true;
}

/* Those that wait for something, some at a time. */
static void sweep(struct tcp_vm *net, uint64_t now)
{
    /* The VM stood still, or its worker: answers may lie in the sockets. */
    bool late = now - net->sweep > MIN_SILENCE_NS / 2;
    struct conn *c;

    net->sweep_left = net->sweep_left ? net->sweep_left : net->n_expecting;
    for (unsigned n = 0; n < SWEEP_MAX && net->sweep_left; n++) {
        c = TAILQ_FIRST(&net->expecting);
        if (!c) {
            net->sweep_left = 0;
            break;
        }
        net->sweep_left--;
        TAILQ_REMOVE(&net->expecting, c, expect);
        TAILQ_INSERT_TAIL(&net->expecting, c, expect);
        c->progress = late ? now : c->progress;
        if (!look_at(c, now)) {
            expect_nothing(c);
        }
        comp_make_room(worker_self());
    }
    net->sweep = net->sweep_left ? now : net->n_expecting ? now + SWEEP_NS : UINT64_MAX;
}

static inline void prefetch(const void *at, size_t n)
{
    for (size_t i = 0; i < n; i += LINE) {
        __builtin_prefetch((const char *)at + i);
    }
}

/* What a frame of it will touch: with many streams that is in no cache. */
static void prefetch_conn(const struct conn *c)
{
    prefetch(c->s, offsetof(struct stream, asked));
    prefetch(c, offsetof(struct conn, expect));
    __builtin_prefetch(&c->qp->lock);
    prefetch(&c->qp->resp, sizeof(c->qp->resp));
}

/* Note what the sockets tell.  True: there may be more. */
static bool look_at_sockets(struct tcp_vm *net)
{
    struct epoll_event ev[EVENTS];
    int n = epoll_wait(net->epfd, ev, EVENTS, 0);

    for (int i = 0; i < n; i++) {
        __builtin_prefetch(ev[i].data.ptr);
    }
    for (int i = 0; i < n; i++) {
        struct conn *c = ev[i].data.ptr;

        if (c->s) {
            c->s->drains |= (ev[i].events & EPOLLOUT) != 0;
            /* An end that comes with data is seen behind them, without another edge. */
            c->s->ended |= (ev[i].events & EPOLLRDHUP) != 0;
            is_unread(c);
        }
    }
    return n == EVENTS;
}

static void sockets(struct tcp_vm *net, struct turn *t)
{
    struct conn *c, *last;
    bool more;

    /* First: what comes from now on sets it again. */
    atomic_store(&net->net.ready, false);
    more = look_at_sockets(net);
    last = TAILQ_LAST(&net->unread, conn_list);
    while ((c = TAILQ_FIRST(&net->unread))) {
        struct conn *next = TAILQ_NEXT(c, unread);

        if (next) {
            prefetch_conn(next);
        }
        not_unread(c);
        if (c->s->drains) {
            c->s->drains = false;
            tx_writable(c);
        }
        if (rx_run(c, t) || c->s->ended) {
            is_unread(c);
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

static void tcp_take(struct vm_net *vn, struct turn *t)
{
    struct tcp_vm *net = of_net(vn);
    struct conn *c, *next, *last;
    bool served = false;

    if (t->now >= net->sweep) {
        sweep(net, t->now);
    }
    for (c = TAILQ_FIRST(&net->work); c; c = next) {
        next = TAILQ_NEXT(c, work);
        if (c->s && c->s->fresh) {
            c->s->fresh = false;
            c->s->ready_due |= c->ready_owed;
            c->ready_owed = false;
            if (c->s->behind) {
                requester_strayed(c->qp);
            } else {
                requester_resume(c->qp, c->s->seq);
            }
        }
        if (c->s && c->s->waiting && !c->s->broken) {
            rx_resume(c, t);
        }
        comp_make_room(worker_self());
    }
    if (atomic_load_explicit(&vn->ready, memory_order_relaxed)) {
        sockets(net, t);
    }
    last = TAILQ_LAST(&net->work, conn_list);
    /*
     * One after the other, as far as the turn goes, but one at least; the next turn
     * begins with the rest.
     */
    for (c = TAILQ_FIRST(&net->work); c; c = next) {
        next = TAILQ_NEXT(c, work);
        if (c->s && !c->s->broken && c->s->n_jobs) {
            tx_jobs(c, t);
            TAILQ_REMOVE(&net->work, c, work);
            TAILQ_INSERT_TAIL(&net->work, c, work);
            comp_make_room(worker_self());
            served = true;
        }
        if (c == last || (served && turn_spent(t, 1))) {
            break;
        }
    }
}

/* What is left to do for it in the next turn? */
static bool goes_on(const struct stream *s, uint64_t *due, uint64_t now)
{
    if (s->waiting) {
        *due = MIN(*due, now + GRACE_NS);
        return true;
    }
    if (s->backlog) {
        return false; /* tx_writable() */
    }
    if (s->n_jobs && !s->closing) {
        *due = 0;
        return true;
    }
    if (s->ack_due && s->may_send &&
        !s->closing) { /* it waits for a message to go with */
        *due = MIN(*due, s->ack_at + TX_ACK_WAIT_NS);
        return true;
    }
    return false;
}

static void tcp_end_turn(struct vm_net *vn)
{
    struct tcp_vm *net = of_net(vn);
    struct tcp_scratch *x = tcp_scratch();
    uint64_t due = UINT64_MAX, now = 0;
    struct conn *c, *next;

    for (c = TAILQ_FIRST(&net->work); c; c = next) {
        next = TAILQ_NEXT(c, work);
        if (c->s && !c->s->broken) {
            tx_tell(c);
        }
    }
    tx_flush(x);
    for (c = TAILQ_FIRST(&net->work); c; c = next) {
        next = TAILQ_NEXT(c, work);
        if (c->s && c->s->closing && !c->s->backlog && !c->s->shut) {
            /* Not close(): with input unread the peer might not get what was sent. */
            c->s->shut = true;
            shutdown(c->s->fd, SHUT_WR);
        }
        if (c->s && c->s->broken) {
            bool again = !c->s->closing && c->s->answered;

            conn_down(c);
            if (again) {
                setup_ask(c); /* in vain: when there is something to send */
            }
            continue;
        }
        now = now ? now : now_ns();
        if (!c->s || !goes_on(c->s, &due, now)) {
            no_work(c);
        }
    }
    set_due(net, due);
}

static void tcp_fini_vm(struct vm_net *vn)
{
    struct tcp_vm *net = of_net(vn);

    g_assert(TAILQ_EMPTY(&net->conns));
    atomic_store(&net->vm->dp.net, NULL);
    atomic_fetch_sub(&net->source.worker->n_nets, 1);
    worker_remove_source(&net->source);
    close(net->epfd);
    g_free(net);
}

static const struct vm_net_ops net_ops = {
    .take = tcp_take, .flush = tcp_end_turn, .fini = tcp_fini_vm};

static void sockets_ready(struct source *s)
{
    struct tcp_vm *net =
        (struct tcp_vm *)(void *)((char *)s - offsetof(struct tcp_vm, source));

    atomic_store(&net->net.ready, true);
    datapath_wake(net->vm);
}

/* The VM's; NULL: errno. */
static struct tcp_vm *vm_net_get(struct vm *vm)
{
    struct vm_net *vn = atomic_load(&vm->dp.net);
    struct tcp_vm *net;

    if (vn) {
        return of_net(vn);
    }
    net = g_new0(struct tcp_vm, 1);
    net->net.ops = &net_ops;
    atomic_init(&net->net.due, UINT64_MAX);
    net->vm = vm;
    net->sweep = UINT64_MAX;
    TAILQ_INIT(&net->conns);
    TAILQ_INIT(&net->expecting);
    TAILQ_INIT(&net->work);
    TAILQ_INIT(&net->unread);
    net->epfd = epoll_create1(EPOLL_CLOEXEC);
    net->source = (struct source){.fd = net->epfd, .ready = sockets_ready};
    if (net->epfd < 0 || !worker_add_source(vm->dp.worker, &net->source, EPOLLIN)) {
        log_vm(LOG_LVL_WARN, vm, "no sockets for it: %s", g_strerror(errno));
        if (net->epfd >= 0) {
            close(net->epfd);
        }
        g_free(net);
        return NULL;
    }
    atomic_fetch_add(&vm->dp.worker->n_nets, 1);
    atomic_store(&vm->dp.net, &net->net);
    return net;
}

/* ---- the transport's interface ------------------------------------------------- */

/* Of the two ends, one makes the TCP connection: whose (GID, QPN) is less. */
static bool is_initiator(const struct conn_path *p)
{
    int order = memcmp(p->sgid.raw, p->dgid.raw, sizeof(p->sgid.raw));

    return order < 0 || (order == 0 && p->sqpn < p->dqpn);
}

/* Is its peer's address to be found, or may it be? */
static bool is_known(const struct qp *qp)
{
    const struct route *route = qp->req.route;

    return tcp_forced || atomic_load_explicit(&route->remote, memory_order_acquire) ||
           directory_want(qp->vm, route, qp->vm->objects.network, &qp->req.path.dgid);
}

/* Does it go by this room, as things are now? */
static bool is_remote(const struct qp *qp)
{
    return tcp_forced || !atomic_load_explicit(&qp->req.route->vm, memory_order_acquire);
}

static void tcp_bind(struct qp *qp)
{
    struct tcp_vm *net = vm_net_get(qp->vm);
    struct qp_requester *req = &qp->req;
    struct conn *c;

    if (!net) {
        return; /* start() finds nobody */
    }
    c = g_new0(struct conn, 1);
    c->qp = qp;
    c->vm = qp->vm;
    c->net = net;
    c->ticket = req->op.m.ticket;
    c->ticket.far = true;
    c->network = qp->vm->objects.network;
    c->route = req->route;
    c->path = req->path;
    c->peer_path =
        (struct conn_path){c->path.dgid, c->path.sgid, c->path.dqpn, c->path.sqpn};
    c->incarnation = req->op.m.incarnation;
    c->initiator = is_initiator(&c->path);
    c->is_self = !memcmp(&c->path, &c->peer_path, sizeof(c->path));
    c->reliable = qp->service->acknowledged;
    TAILQ_INSERT_TAIL(&net->conns, c, link);
    setup_know(c);
    req->conn = c;
    if (is_remote(qp) && !c->is_self && sched_may_run(qp->vm)) {
        setup_ask(c); /* else when there is something to send */
    }
}

static void tcp_unbind(struct qp *qp)
{
    struct conn *c = qp->req.conn;

    qp->req.conn = NULL;
    setup_forget(c);
    if (c->s) {
        tx_last_words(c);
        c->qp = NULL; /* it need not be told */
        conn_down(c);
    }
    TAILQ_REMOVE(&c->net->conns, c, link);
    no_work(c);
    expect_nothing(c);
    g_free(c);
}

/* One that waits behind others in this daemon has not begun. */
static bool try_is_over(struct conn *c, uint64_t now)
{
    if (!c->trying || now < c->try_until) {
        return false;
    }
    if (setup_waits(c)) {
        c->try_until = now + TRY_NS;
        return false;
    }
    return true;
}

/* There is no stream. */
static struct outcome no_stream(struct conn *c, const struct send_op *op)
{
    uint64_t now = now_ns();

    if (c->peer_failed_status && !requester_agrees(c->qp, c->peer_failed_seq)) {
        requester_strayed(c->qp);
        return OUTCOME(OUT_STALLED);
    }
    if (c->peer_failed_status && op->m.seq == c->peer_failed_seq) {
        return (struct outcome){.what = OUT_FAIL, .status = c->peer_failed_status};
    }
    if (c->peer_failed_status && op->m.seq < c->peer_failed_seq && !msg_returns(&op->m)) {
        return OUTCOME(OUT_DUPLICATE); /* it was executed, but that was not heard */
    }
    if (try_is_over(c, now)) {
        c->trying = false;
        c->refused = true;
    }
    if (c->refused) {
        c->refused = false;
        return OUTCOME(OUT_SILENT); /* and so the next try comes a timeout later */
    }
    if (!c->trying && now >= c->next_ask) {
        c->trying = true;
        c->try_until = now + TRY_NS;
        c->next_ask = now + ASK_EVERY_NS;
        setup_ask(c);
    }
    return OUTCOME(OUT_HELD); /* looks again soon */
}

/*
 * The same of UC.  A message waits for the stream that it asks for, and is lost if that
 * is refused twice (the first time may have been before the peer was ready) or takes too
 * long.  Those behind it are, too, until it is time to ask again.
 */
static struct outcome unacknowledged(struct conn *c, const struct send_op *op)
{
    uint64_t now = now_ns();

    if (op->done) {
        return OUTCOME(OUT_SILENT); /* its beginning is lost */
    }
    if (!atomic_load(&c->qp->req.route->remote) && !tcp_forced) {
        return OUTCOME(OUT_ASKED); /* where it goes */
    }
    if (try_is_over(c, now)) {
        c->trying = false;
        c->in_vain++;
    } else if (c->refused) {
        c->refused = false;
        c->in_vain += REFUSED_FOR;
    }
    if (c->in_vain >= MAX_IN_VAIN) {
        c->in_vain = 0;
        return OUTCOME(OUT_SILENT);
    }
    if (!c->trying) {
        if (!c->in_vain && now < c->next_ask) {
            return OUTCOME(OUT_SILENT);
        }
        c->trying = true;
        c->try_until = now + TRY_NS;
        c->next_ask = now + ASK_EVERY_NS;
        setup_ask(c);
    }
    return OUTCOME(OUT_ASKED);
}

static struct outcome tcp_start(struct qp *qp, struct send_op *op)
{
    struct qp_requester *req = &qp->req;
    struct conn *c = req->conn;
    const struct transport_ops *by;
    struct outcome o;

    if (!req->bound || !req->route || !c) {
        return OUTCOME(OUT_SILENT);
    }
    by = c->is_self || !is_remote(qp) ? &transport_copy : &transport_tcp;
    if (c->carried_by != by) { /* another way than its first bytes */
        c->carried_by = by;
        op->done = 0;
        op->cur = (struct sg_cursor){0, 0};
        op->admitted = op->repeated = false;
    }
    if (by == &transport_copy && !c->s) {
        return transport_copy.start(qp, op);
    }
    if (by == &transport_copy) {
        /* The peer has come to this host: first all that is on its way is taken back. */
        conn_break(c, "its peer is on this host");
        return OUTCOME(c->reliable ? OUT_HELD : OUT_ASKED);
    }
    if (route_is_held(req->route)) {
        return OUTCOME(OUT_HELD);
    }
    if (!c->s || c->s->broken || c->s->closing) {
        if (!is_known(qp)) {
            return OUTCOME(OUT_SILENT);
        }
        return c->reliable ? no_stream(c, op) : unacknowledged(c, op);
    }
    o = tx_start(c, qp, op);
    if (o.what != OUT_FAIL) {
        expect_answer(c);
    }
    return o;
}

/* The peer was told that there is no receive. */
static void tcp_receive_posted(struct qp *qp)
{
    struct conn *c = qp->req.conn;

    if (c && c->s) {
        c->s->ready_due = true;
        conn_work(c);
    } else if (c) {
        c->ready_owed = true;
    }
}

static void tcp_describe(const struct qp *qp, struct transport_path *path)
{
    const struct conn *c = qp->req.conn;

    *path = (struct transport_path){.name = transport_copy.name};
    if (c && !c->is_self && is_remote(qp)) {
        path->name = transport_tcp.name;
        path->connection = c->s ? "up" : c->trying ? "wanted" : "down";
    }
}

const struct transport_ops transport_tcp = {
    .name = "tcp",
    .pipelined = true,
    .unreliable = true,
    .start = tcp_start,
    .bind = tcp_bind,
    .unbind = tcp_unbind,
    .receive_posted = tcp_receive_posted,
    .describe = tcp_describe,
};
