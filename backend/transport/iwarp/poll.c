/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Transport "tcp": a VM's turns.
 *
 * What is to be done for a VM's streams is in lists: those whose socket has told of
 * something that is not read to its end (unread), those that have something for the end
 * of a turn (work), and those whose peer is to do something (expecting), which a sweep
 * looks at.  Sockets are in an epoll set of the VM, which is one source of the VM's
 * worker.  They are edge-triggered: a level would be looked at twice for what is read
 * once.  Whoever frees a conn holds the VM's token, and so does who asks epoll: what that
 * returns is alive.
 *
 * The engine has no timer for what is on its way, so the sweep looks for peers that have
 * not answered for one try's time, and breaks their streams.
 *
 * Threads: under the VM's token, but poll_sockets_ready(), which is the worker's.
 */
#include "transport/iwarp/poll.h"

#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "transport/iwarp/deferred.h"
#include "transport/iwarp/linger.h"
#include "transport/iwarp/rx.h"
#include "transport/iwarp/setup/bind.h"

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
/* How soon to look whether a grace period is over. */
#define GRACE_NS 2000u

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

static void poll_set_due(struct tcp_vm *net, uint64_t soon)
{
    atomic_store_explicit(&net->net.due, MIN(net->sweep, soon), memory_order_relaxed);
}

void conn_expect(struct conn *c)
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
        poll_set_due(net, UINT64_MAX);
    }
}

void conn_expect_nothing(struct conn *c)
{
    if (c->expecting) {
        c->expecting = false;
        TAILQ_REMOVE(&c->net->expecting, c, expect);
        c->net->n_expecting--;
    }
}

/* ---- the lists ---------------------------------------------------------------- */

void conn_work(struct conn *c)
{
    if (!c->has_work) {
        c->has_work = true;
        TAILQ_INSERT_TAIL(&c->net->work, c, work);
    }
}

/* It may have something to read, or still has. */
static void poll_add_unread(struct conn *c)
{
    if (!c->is_unread) {
        c->is_unread = true;
        TAILQ_INSERT_TAIL(&c->net->unread, c, unread);
    }
}

static void poll_remove_unread(struct conn *c)
{
    if (c->is_unread) {
        c->is_unread = false;
        TAILQ_REMOVE(&c->net->unread, c, unread);
    }
}

static void poll_remove_work(struct conn *c)
{
    if (c->has_work) {
        c->has_work = false;
        TAILQ_REMOVE(&c->net->work, c, work);
    }
}

void conn_no_work(struct conn *c)
{
    poll_remove_work(c);
    poll_remove_unread(c);
}

/* ---- the VM's turns ----------------------------------------------------------- */

static struct tcp_vm *poll_of_net(struct vm_net *net)
{
    return (struct tcp_vm *)(void *)net;
}

uint64_t conn_patience(const struct qp *qp)
{
    if (!qp->service->acknowledged) {
        return MAX_SILENCE_NS;
    }
    return qp->attr.timeout ? MAX(4096ull << qp->attr.timeout, MIN_SILENCE_NS) : 0;
}

/* A peer that does not answer, or does not read.  False: it is not waited for. */
static bool poll_check_peer(struct conn *c, uint64_t now)
{
    struct qp *qp = c->qp;
    uint64_t silent = now > c->progress ? now - c->progress : 0, most;

    if (c->s && stream_is_closing(c->s)) {
        if (silent > CLOSING_NS) {
            conn_break(c, "the peer does not read the last data");
        } else if (c->s->phase == STREAM_SHUT && c->s->carrier->is_delivered(c)) {
            conn_break(c, "all data was delivered");
        }
        return true;
    }
    if (!c->s ||
        (!qp->req.in_flight && !c->stalled && !(qp->req.op.active && qp->req.op.done))) {
        return false;
    }
    most = conn_patience(qp);
    if (!most || !qp->req.route || route_is_held(qp->req.route)) {
        c->progress = now; /* its clock stands still */
        if (!c->reliable) {
            conn_go(c); /* what is sent to it is lost */
        }
    } else if (silent > most && c->s->carrier->has_drained(c)) {
        c->progress = now;
    } else if (silent > most) {
        c->progress = now;
        if (qp->req.in_flight) {
            requester_answered(qp, qp->req.seq - qp->req.in_flight, OUTCOME(OUT_SILENT));
        } else {
            c->try_failed = true;
        }
        c->s->answered = true; /* that was the try; its end is none */
        conn_break(c, "no answer");
    }
    return true;
}

/* Those that wait for something, some at a time. */
static void poll_sweep(struct tcp_vm *net, uint64_t now)
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
        if (!poll_check_peer(c, now)) {
            conn_expect_nothing(c);
        }
        comp_make_room(worker_self());
    }
    net->sweep = net->sweep_left ? now : net->n_expecting ? now + SWEEP_NS : UINT64_MAX;
}

static inline void poll_prefetch(const void *at, size_t n)
{
    for (size_t i = 0; i < n; i += LINE) {
        __builtin_prefetch((const char *)at + i);
    }
}

/* What a frame of it will touch: with many streams that is in no cache. */
static void poll_prefetch_conn(const struct conn *c)
{
    poll_prefetch(c->s, offsetof(struct stream, socket.held));
    poll_prefetch(c, offsetof(struct conn, expect));
    __builtin_prefetch(&c->qp->lock);
    poll_prefetch(&c->qp->resp, sizeof(c->qp->resp));
}

/* Note what the sockets tell.  True: there may be more. */
static bool poll_epoll(struct tcp_vm *net)
{
    struct epoll_event ev[EVENTS];
    int n = epoll_wait(net->epfd, ev, EVENTS, 0);

    for (int i = 0; i < n; i++) {
        __builtin_prefetch(ev[i].data.ptr);
    }
    for (int i = 0; i < n; i++) {
        struct conn *c = ev[i].data.ptr;

        if (c->s) {
            c->s->socket.has_room |= (ev[i].events & EPOLLOUT) != 0;
            /* An end that comes with data is seen behind them, without another edge. */
            c->s->socket.peer_shut |= (ev[i].events & EPOLLRDHUP) != 0;
            poll_add_unread(c);
        }
    }
    return n == EVENTS;
}

static void poll_sockets(struct tcp_vm *net, struct turn *t)
{
    struct conn *c, *last;
    bool more;

    /* First: what comes from now on sets it again. */
    atomic_store(&net->net.ready, false);
    more = poll_epoll(net);
    last = TAILQ_LAST(&net->unread, conn_list);
    while ((c = TAILQ_FIRST(&net->unread))) {
        struct conn *next = TAILQ_NEXT(c, unread);

        if (next) {
            poll_prefetch_conn(next);
        }
        poll_remove_unread(c);
        if (c->s->socket.has_room) {
            c->s->socket.has_room = false;
            tx_writable(c);
        }
        if (rx_run(c, t) || c->s->socket.peer_shut) {
            poll_add_unread(c);
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
    struct tcp_vm *net = poll_of_net(vn);
    struct conn *c, *next, *last;
    bool served = false;

    if (t->now >= net->sweep) {
        poll_sweep(net, t->now);
    }
    for (c = TAILQ_FIRST(&net->work); c; c = next) {
        next = TAILQ_NEXT(c, work);
        if (c->s && c->s->is_new) {
            c->s->is_new = false;
            c->s->ready_due |= c->ready_owed;
            c->ready_owed = false;
            if (c->s->peer_ahead) {
                requester_strayed(c->qp);
            } else {
                requester_resume(c->qp, c->s->seq);
            }
        }
        if (c->s && c->s->rx_phase == RX_GRACE && !stream_is_over(c->s)) {
            rx_resume(c, t);
        }
        comp_make_room(worker_self());
    }
    if (atomic_load_explicit(&vn->ready, memory_order_relaxed)) {
        poll_sockets(net, t);
    }
    last = TAILQ_LAST(&net->work, conn_list);
    /*
     * One after the other, as far as the turn goes, but one at least; the next turn
     * begins with the rest.
     */
    for (c = TAILQ_FIRST(&net->work); c; c = next) {
        next = TAILQ_NEXT(c, work);
        if (c->s && !stream_is_over(c->s) && c->s->n_jobs) {
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
static bool poll_goes_on(const struct stream *s, uint64_t *due, uint64_t now)
{
    if (s->rx_phase == RX_GRACE) {
        *due = MIN(*due, now + GRACE_NS);
        return true;
    }
    if (s->backlog || s->phase != STREAM_OPEN) {
        return false; /* tx_writable(), or nothing is to be told */
    }
    if (s->n_jobs) {
        *due = 0;
        return true;
    }
    if (s->ack_due) { /* it waits for a message to go with */
        *due = MIN(*due, s->ack_at + TX_ACK_WAIT_NS);
        return true;
    }
    return false;
}

static void tcp_end_turn(struct vm_net *vn)
{
    struct tcp_vm *net = poll_of_net(vn);
    struct tcp_scratch *x = tcp_scratch();
    uint64_t due = UINT64_MAX, now = 0;
    struct conn *c, *next;

    for (c = TAILQ_FIRST(&net->work); c; c = next) {
        next = TAILQ_NEXT(c, work);
        if (c->s) {
            tx_notify(c);
        }
    }
    tx_flush(x);
    for (c = TAILQ_FIRST(&net->work); c; c = next) {
        next = TAILQ_NEXT(c, work);
        if (c->s && c->s->phase == STREAM_CLOSING && !c->s->backlog) {
            stream_phase_set(c, STREAM_SHUT);
            c->s->carrier->shut(c);
        }
        if (c->s && stream_is_over(c->s)) {
            bool again = c->s->phase == STREAM_BROKEN && c->s->answered;

            conn_down(c);
            if (again) {
                setup_ask(c); /* a failed try: when there is something to send */
            }
            continue;
        }
        now = now ? now : now_ns();
        if (!c->s || !poll_goes_on(c->s, &due, now)) {
            poll_remove_work(c);
        }
    }
    poll_set_due(net, due);
}

static void tcp_fini_vm(struct vm_net *vn)
{
    struct tcp_vm *net = poll_of_net(vn);

    g_assert(TAILQ_EMPTY(&net->conns));
    deferred_vm_gone(net);
    linger_vm_gone(net);
    setup_end_shares(net);
    atomic_store(&net->vm->dp.net, NULL);
    atomic_fetch_sub(&net->source.worker->n_nets, 1);
    worker_remove_source(&net->source);
    close(net->epfd);
    g_free(net);
}

static const struct vm_net_ops net_ops = {
    .take = tcp_take, .flush = tcp_end_turn, .fini = tcp_fini_vm};

static void poll_sockets_ready(struct source *s)
{
    struct tcp_vm *net =
        (struct tcp_vm *)(void *)((char *)s - offsetof(struct tcp_vm, source));

    atomic_store(&net->net.ready, true);
    datapath_wake(net->vm);
}

struct tcp_vm *tcp_vm_get(struct vm *vm)
{
    struct vm_net *vn = atomic_load(&vm->dp.net);
    struct tcp_vm *net;

    if (vn) {
        return poll_of_net(vn);
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
    TAILQ_INIT(&net->deferred);
    net->epfd = epoll_create1(EPOLL_CLOEXEC);
    net->source = (struct source){.fd = net->epfd, .ready = poll_sockets_ready};
    if (net->epfd < 0 || !worker_add_source(vm->dp.worker, &net->source, EPOLLIN)) {
        log_vm(LOG_LVL_WARN, vm, "cannot watch sockets for it: %s", g_strerror(errno));
        if (net->epfd >= 0) {
            close(net->epfd);
        }
        g_free(net);
        return NULL;
    }
    setup_begin_shares(net);
    atomic_fetch_add(&vm->dp.worker->n_nets, 1);
    atomic_store(&vm->dp.net, &net->net);
    return net;
}
