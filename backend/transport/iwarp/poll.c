/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Transport "tcp": a VM's turns.
 *
 * What is to be done for a VM's streams is in lists: those that have something for the
 * end of a turn (work), and those whose peer is to do something (expecting), which a
 * sweep looks at.  What comes is the carriers' affair (socket.c, flow.c).
 *
 * The engine has no timer for what is on its way, so the sweep looks for peers that have
 * not answered for one try's time, and breaks their streams.
 *
 * Threads: under the VM's token.
 */
#include "transport/iwarp/poll.h"

#include <stdlib.h>

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
    struct rnic_vm *rv = tcp_vm_rnic(net);

    soon = rv && rnic_vm_is_used(rv) ? MIN(soon, rnic_vm_due(rv)) : soon;
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

void conn_no_work(struct conn *c)
{
    if (c->has_work) {
        c->has_work = false;
        TAILQ_REMOVE(&c->net->work, c, work);
    }
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
        if (silent > CLOSING_NS && flow_is_held_up(c)) {
            c->progress = now; /* its last word waits here */
        } else if (silent > CLOSING_NS) {
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
    } else if (silent > most && c->s->carrier->has_drained(c, now)) {
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
    /* The VM stood still, or its worker: answers may lie here. */
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
        sockets_run(net, t);
    }
    if (G_UNLIKELY(tcp_vm_rnic(net))) {
        flows_run(net, t);
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
static bool poll_goes_on(const struct conn *c, uint64_t *due, uint64_t now)
{
    const struct stream *s = c->s;

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
        *due = MIN(*due, tx_ack_until(c));
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
            /* One that needs no stream now would keep an idle channel. */
            bool idle = flow_is_carrier(c->s) && !conn_waits(c);
            bool again = c->s->phase == STREAM_BROKEN && c->s->answered && !idle;

            conn_down(c);
            if (again) {
                setup_ask(c); /* a failed try: when there is something to send */
            }
            continue;
        }
        now = now ? now : now_ns();
        if (!c->s || !poll_goes_on(c, &due, now)) {
            conn_no_work(c);
        }
    }
    if (G_UNLIKELY(tcp_vm_rnic(net))) {
        flows_flush(net);
    }
    tx_told(net);
    poll_set_due(net, due);
}

/* Completion queues tell nobody while the VM is not parked. */
static bool tcp_look(struct vm_net *vn)
{
    struct tcp_vm *net = poll_of_net(vn);
    struct rnic_vm *rv = tcp_vm_rnic(net);
    bool came;

    if (!rnic_vm_is_used(rv) || pthread_mutex_trylock(&net->vm->dp.token) != 0) {
        return false;
    }
    /* The main thread has something for the turn's end, as of a channel that breaks. */
    came = rnic_vm_peek(rv) || !rnic_vm_due(rv);
    pthread_mutex_unlock(&net->vm->dp.token);
    return came;
}

static bool tcp_arm(struct vm_net *vn, uint64_t now)
{
    struct tcp_vm *net = poll_of_net(vn);
    struct rnic_vm *rv = tcp_vm_rnic(net);

    if (!rnic_vm_is_used(rv) || (rnic_vm_due(rv) && rnic_vm_arm(rv, now))) {
        return true;
    }
    atomic_store_explicit(&vn->ready, true, memory_order_relaxed);
    return false;
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
    sockets_fini(net);
    flows_fini(net);
    g_free(net);
}

static const struct vm_net_ops net_ops = {.take = tcp_take,
                                          .flush = tcp_end_turn,
                                          .look = tcp_look,
                                          .arm = tcp_arm,
                                          .fini = tcp_fini_vm};

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
    TAILQ_INIT(&net->deferred);
    TAILQ_INIT(&net->flows);
    TAILQ_INIT(&net->leaving);
    STAILQ_INIT(&net->dropped);
    if (!sockets_init(net)) {
        g_free(net);
        return NULL;
    }
    setup_begin_shares(net);
    atomic_fetch_add(&vm->dp.worker->n_nets, 1);
    atomic_store(&vm->dp.net, &net->net);
    flows_channels(net);
    return net;
}
