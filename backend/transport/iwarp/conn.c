/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Transport "tcp": connected queue pairs whose peer is on another host, as iWARP (MPA,
 * DDP, RDMAP) over TCP.
 *
 * A queue pair has a struct conn from RTR to RESET.  It has a stream, a TCP connection in
 * full operation, when both sides want one and the network lets them; one stream carries
 * both directions.  What breaks is a stream, never the queue pair: the engine is told
 * (requester_lost), start() asks for another one, and when that is there both sides know
 * from its private data (private_data.h) what has arrived.  Until then start() answers
 * OUT_HELD while a try is under way, and OUT_SILENT when one has failed, which costs one
 * of the queue pair's own retries: its budget, not ours, decides when it fails.  Who
 * resets streams as they come cannot use that up in no time: those that brought nothing
 * are one try together for as long as a silent peer would be.
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
 * (conn_uc_no_stream()).
 *
 *   conn.c      connections and streams come and go; the transport's interface
 *   poll.c      what a VM's streams do in its turns
 *   socket.c    what carries their frames: TCP sockets
 *   flow.c      ... or flows of the channels between VMs (rnic/)
 *   linger.c    how TCP connections end that this host has made
 *   deferred.c  what the main thread does with a VM's token, for which it does not wait
 *   setup/      the main thread: bind.c (who connects), handshake.c (startup frames),
 *               peer_moves.c (peers that move), local.c (both ends in this daemon)
 *   wire/       the bytes of each layer: pure functions
 *   tx.c        frames out
 *   rx.c        segments in
 *   inbound.c   the messages in them
 *
 * Threads.  All of a conn but what conn.h calls the main thread's is under the VM's
 * token: the VM's worker in its turns, and the main thread when it makes or ends one. The
 * staging buffer is a worker's, and empty whenever a token is let go.
 */
#include "transport/iwarp/conn.h"

#include "transport/iwarp/deferred.h"
#include "transport/iwarp/iwarp.h"
#include "transport/iwarp/rx.h"
#include "transport/iwarp/setup/bind.h"
#include "transport/transports.h"

/* How long a try to get a stream counts as under way. */
#define TRY_NS 400000000u
/* UC: tries before a message is lost; one that is refused counts for more. */
#define MAX_FAILED_TRIES 8u
#define REFUSED_FOR      4u
/* Not more often than that. */
#define ASK_EVERY_NS 2000000u
/* After a stream that brought nothing: until another one is asked for; then twice that.
 */
#define USELESS_NS     5000000u
#define MAX_USELESS_NS 100000000u
/* Streams further apart than so many times a peer's patience are not one try. */
#define USELESS_APART 4u

bool tcp_forced;

/* ---- streams ---------------------------------------------------------------- */

/* The only one that changes it; see enum conn_phase.  @c->s is what goes with @to. */
static void conn_phase_set(struct conn *c, enum conn_phase to)
{
#define FROM(phase) (1u << CONN_##phase)
    static const uint8_t from[] = {
        [CONN_DOWN] = FROM(TRYING) | FROM(UP) | FROM(ENDING),
        [CONN_TRYING] = FROM(DOWN) | FROM(REPLACING),
        [CONN_UP] = FROM(DOWN) | FROM(TRYING),
        [CONN_ENDING] = FROM(UP) | FROM(REPLACING),
        [CONN_REPLACING] = FROM(ENDING),
    };
#undef FROM

    g_assert(from[to] >> atomic_load(&c->phase) & 1);
    g_assert((to >= CONN_UP) == (c->s != NULL));
    atomic_store(&c->phase, to);
}

void stream_phase_set(struct conn *c, enum stream_phase to)
{
#define FROM(phase) (1u << STREAM_##phase)
    static const uint8_t from[] = {
        [STREAM_OPEN] = FROM(STARTING),
        [STREAM_CLOSING] = FROM(OPEN),
        [STREAM_SHUT] = FROM(CLOSING),
        [STREAM_CLOSED] = FROM(CLOSING) | FROM(SHUT),
        [STREAM_BROKEN] = FROM(STARTING) | FROM(OPEN),
    };
#undef FROM
    struct stream *s = c->s;

    g_assert(from[to] >> s->phase & 1);
    s->phase = to;
    if (!stream_is_up(s) && c->phase == CONN_UP) {
        conn_phase_set(c, CONN_ENDING);
    }
}

void conn_try_over(struct conn *c)
{
    if (conn_is_trying(c)) {
        conn_phase_set(c, c->s ? CONN_ENDING : CONN_DOWN);
    }
}

void conn_break(struct conn *c, const char *why)
{
    if (c->s && !stream_is_over(c->s)) {
        stream_phase_set(c, stream_is_closing(c->s) ? STREAM_CLOSED : STREAM_BROKEN);
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
    stream_phase_set(c, STREAM_CLOSING);
    conn_expect(c);
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

void conn_moved(struct conn *c)
{
    conn_try_over(c);
    c->try_failed = false;
    c->next_ask = 0;
    c->failed_tries = 0;
    c->useless_since = 0;
    if (c->s) {
        c->s->answered = true; /* whatever it brought, its end is no try */
    }
    conn_break(c, "its peer has moved");
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

/* What is on its way may come by TCP yet, so one whose sender knows is not left. */
void conn_break_silent(struct conn *c)
{
    if (c->s && c->reliable && c->s->carrier->is_silent(c)) {
        c->s->answered = true; /* there is to be another one now, and that is no try */
        conn_break(c, "sent data is not acknowledged");
        atomic_store(&c->net->net.ready, true); /* the worker looks */
    }
}

/* What is on its way goes again; of an unreliable one it would be lost. */
void conn_leave_socket(struct conn *c)
{
    if (c->s && c->reliable && stream_is_up(c->s) && !flow_is_carrier(c->s)) {
        c->s->answered = true; /* that is no try */
        conn_break(c, "there is a channel");
        atomic_store(&c->net->net.ready, true); /* the worker looks */
    }
}

/* Does it want to send, or to know what has arrived? */
static bool conn_wants(const struct conn *c)
{
    const struct qp_requester *req = &c->qp->req;

    return c->s->sent || req->in_flight || req->replay || req->op.active || c->stalled;
}

/* A stream that was wanted has gone, and nothing came back. */
static void conn_was_useless(struct conn *c)
{
    uint64_t now = now_ns(), most = conn_patience(c->qp);

    /* While one of the two stood still, or had nothing to say, no time ran. */
    if (!c->useless_since || (most && now - c->useless_at > USELESS_APART * most)) {
        c->useless_since = now;
        c->useless_wait = USELESS_NS;
    } else if (most && now - c->useless_since > most) {
        c->useless_since = now;
        c->try_failed = true;
    }
    c->useless_at = now;
    c->next_ask = now + c->useless_wait;
    c->useless_wait = MIN(2 * c->useless_wait, MAX_USELESS_NS);
}

void conn_down(struct conn *c)
{
    struct stream *s = c->s;

    if (!s) {
        return;
    }
    conn_no_work(c);
    if (s->answered) {
        c->useless_since = 0;
    } else if (c->qp && c->reliable && conn_wants(c)) {
        conn_was_useless(c);
    }
    s->carrier->close(c);
    c->s = NULL;
    conn_phase_set(c, c->phase == CONN_REPLACING ? CONN_TRYING : CONN_DOWN);
    c->ready_owed |= s->ready_due;
    g_free(s->backlog);
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
    h->heard = qp->resp.incarnation;
    h->got = qp->resp.seq;
    h->failed_status = atomic_load(&qp->resp.failed_status);
    h->failed_seq = qp->resp.failed_seq;
}

void conn_peer_failed(struct conn *c, uint8_t status, uint64_t seq)
{
    c->peer_failed_status = status;
    c->peer_failed_seq = seq;
}

bool conn_waits(const struct conn *c)
{
    const struct qp_requester *req = &c->qp->req;

    return req->in_flight || req->replay || req->queued || req->op.active ||
           req->wait != QP_WAIT_NONE || c->stalled || c->ready_owed ||
           (c->s &&
            (c->s->peer_ahead || (c->reliable && !requester_agrees(c->qp, c->s->seq)))) ||
           atomic_load(&c->qp->state) == PVRDMA_QPS_ERR;
}

/*
 * Does the peer know of more that we executed than we do?  One that was put back to when
 * nothing had come yet is known by what the peer has heard of it.
 */
static bool conn_peer_is_ahead(const struct conn *c, const struct hello *own,
                               const struct hello *peer)
{
    if (!c->reliable || own->heard == peer->incarnation) {
        return c->reliable && peer->seq > own->got;
    }
    if (own->heard || peer->heard != c->incarnation || peer->seq == 0) {
        return false;
    }
    return peer->psn != c->qp->resp.psn; /* else they took another path, both */
}

void conn_up(struct conn *c, struct stream *s, const struct framing *framing, bool ready,
             const struct hello *own, const struct hello *peer)
{
    c->s = s;
    s->framing = *framing;
    s->mulpdu = s->carrier->mulpdu(c);
    s->phase = ready ? STREAM_OPEN : STREAM_STARTING;
    s->psn = own->psn;
    for (unsigned i = 0; i < RDMAP_QNS; i++) {
        s->msn[i] = 1;
        s->q[i] = DDP_QUEUE_INIT;
    }

    /* What each expects of the other. */
    s->seq = peer->heard == c->incarnation ? peer->got : own->seq;
    s->rx_seq = own->heard == peer->incarnation ? own->got : peer->seq;
    c->peer_incarnation = peer->incarnation;
    c->peer_seq = peer->seq;
    c->peer_psn = peer->psn;
    c->peer_mtu = peer->mtu;
    s->peer_ahead = conn_peer_is_ahead(c, own, peer);
    s->is_new = true; /* completions are a worker's affair */
    conn_phase_set(c, CONN_UP);
    c->try_failed = false;
    c->failed_tries = 0;
    c->progress = now_ns();
    conn_work(c);
    if (conn_waits(c)) {
        atomic_store(&c->net->net.ready, true);
    }
}

/* ---- the transport's interface ------------------------------------------------- */

/* Of the two ends, one makes the TCP connection: whose (GID, QPN) is less. */
static bool is_initiator(const struct conn_path *p)
{
    int order = memcmp(p->sgid.raw, p->dgid.raw, sizeof(p->sgid.raw));

    return order < 0 || (order == 0 && p->sqpn < p->dqpn);
}

/* Is its peer's address to be found, or may it be? */
static bool conn_is_known(const struct qp *qp)
{
    const struct route *route = qp->req.route;

    return tcp_forced || atomic_load_explicit(&route->remote, memory_order_acquire) ||
           directory_want(qp->vm, route, qp->vm->objects.network, &qp->req.path.dgid);
}

/* Does it go by this room, as things are now? */
static bool conn_is_remote(const struct qp *qp)
{
    return tcp_forced || !atomic_load_explicit(&qp->req.route->vm, memory_order_acquire);
}

static void tcp_bind(struct qp *qp)
{
    struct tcp_vm *net = tcp_vm_get(qp->vm);
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
    if (conn_is_remote(qp) && !c->is_self && sched_may_run(qp->vm)) {
        setup_ask(c); /* else when there is something to send */
    }
}

static void tcp_unbind(struct qp *qp)
{
    struct conn *c = qp->req.conn;

    qp->req.conn = NULL;
    setup_forget(c);
    conn_defer_no_more(c, ~0u);
    if (c->s) {
        tx_last_ack(c);
        c->qp = NULL; /* it need not be told */
        conn_down(c);
    }
    TAILQ_REMOVE(&c->net->conns, c, link);
    conn_no_work(c);
    conn_expect_nothing(c);
    g_free(c);
}

void conn_try_anew(struct conn *c)
{
    c->try_until = now_ns() + TRY_NS;
}

/* One that waits behind others in this daemon has not begun; one that waits for a channel
 * has that to tell it. */
static bool conn_try_is_late(struct conn *c, uint64_t now)
{
    if (!conn_is_trying(c) || now < c->try_until) {
        return false;
    }
    if (setup_waits(c)) {
        c->try_until = now + TRY_NS;
        return false;
    }
    return true;
}

/*
 * Neither a try is over, nor has one failed: its peer stands still, or is looked
 * for. A try that was begun has all of its time from when that ends.
 */
static void conn_stop_clock(struct conn *c, uint64_t now)
{
    c->try_failed = false;
    c->failed_tries = 0;
    c->useless_since = 0;
    c->try_until = now + TRY_NS;
}

/* Where it is may be known in a moment. */
static bool conn_is_looked_for(const struct route *route)
{
    return !atomic_load(&route->vm) && !atomic_load(&route->remote) &&
           (atomic_load(&route->asked) == ROUTE_ASKED || directory_expects());
}

static void conn_begin_try(struct conn *c, uint64_t now)
{
    conn_phase_set(c, c->s ? CONN_REPLACING : CONN_TRYING);
    c->try_until = now + TRY_NS;
    c->next_ask = now + ASK_EVERY_NS;
    setup_ask(c);
}

/* There is no stream. */
static struct outcome conn_no_stream(struct conn *c, const struct send_op *op)
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
    if (conn_is_looked_for(c->route)) {
        conn_stop_clock(c, now);
    } else if (conn_try_is_late(c, now)) {
        conn_try_over(c);
        c->try_failed = true;
    }
    if (c->try_failed) {
        c->try_failed = false;
        return OUTCOME(OUT_SILENT); /* and so the next try comes a timeout later */
    }
    if (!conn_is_trying(c) && now >= c->next_ask) {
        conn_begin_try(c, now);
    }
    return OUTCOME(OUT_HELD); /* looks again soon */
}

/*
 * The same of UC.  A message waits for the stream that it asks for, and is lost if that
 * is refused twice (the first time may have been before the peer was ready) or takes too
 * long.  Those behind it are, too, until it is time to ask again.
 */
static struct outcome conn_uc_no_stream(struct conn *c, const struct send_op *op)
{
    uint64_t now = now_ns();

    if (op->done) {
        return OUTCOME(OUT_SILENT); /* its beginning is lost */
    }
    if (!atomic_load(&c->qp->req.route->remote) && !tcp_forced) {
        return OUTCOME(OUT_ASKED); /* where it goes */
    }
    if (conn_try_is_late(c, now)) {
        conn_try_over(c);
        c->failed_tries++;
    } else if (c->try_failed) {
        c->try_failed = false;
        c->failed_tries += REFUSED_FOR;
    }
    if (c->failed_tries >= MAX_FAILED_TRIES) {
        c->failed_tries = 0;
        return OUTCOME(OUT_SILENT);
    }
    if (!conn_is_trying(c)) {
        if (!c->failed_tries && now < c->next_ask) {
            return OUTCOME(OUT_SILENT);
        }
        conn_begin_try(c, now);
    }
    return OUTCOME(OUT_ASKED);
}

static struct outcome tcp_start(struct qp *qp, struct send_op *op)
{
    struct qp_requester *req = &qp->req;
    struct conn *c = req->conn;
    struct outcome o;
    uint64_t still, now;
    bool is_here;

    if (!atomic_load(&req->bound) || !req->route || !c) {
        return OUTCOME(OUT_SILENT);
    }
    is_here = c->is_self || !conn_is_remote(qp);
    if (is_here && !c->s) {
        return transport_copy.start(qp, op);
    }
    if (is_here) {
        /* The peer has come to this host: first all that is on its way is taken back. */
        conn_break(c, "its peer is on this host");
        return OUTCOME(c->reliable ? OUT_HELD : OUT_ASKED);
    }
    still = route_still_until(req->route);
    if (still && ((now = now_ns()) < still || !c->reliable)) {
        conn_stop_clock(c, now);
        return OUTCOME(OUT_HELD);
    }
    if (c->phase != CONN_UP) {
        if (!conn_is_known(qp)) {
            return OUTCOME(OUT_SILENT);
        }
        return c->reliable ? conn_no_stream(c, op) : conn_uc_no_stream(c, op);
    }
    o = tx_start(c, qp, op);
    if (o.what != OUT_FAIL) {
        conn_expect(c);
    }
    return o;
}

/* Those of other hosts find it when they connect. */
static void tcp_compare(struct qp *qp, bool both)
{
    const struct conn *c = qp->req.conn;

    if (qp->req.route && (!c || c->is_self || !conn_is_remote(qp))) {
        transport_copy.compare(qp, both);
    }
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
    const char *nic = c ? flow_nic(c) : NULL;

    *path = (struct transport_path){.name = transport_copy.name};
    if (nic) {
        path->name = "rnic";
        g_strlcpy(path->nic, nic, sizeof(path->nic));
    } else if (c && !c->is_self && conn_is_remote(qp)) {
        path->name = transport_tcp.name;
    }
    if (c && !c->is_self && conn_is_remote(qp)) {
        path->connection = c->phase >= CONN_UP       ? "up"
                           : c->phase == CONN_TRYING ? "wanted"
                                                     : "down";
    }
}

const struct transport_ops transport_tcp = {
    .name = "tcp",
    .pipelined = true,
    .unreliable = true,
    .start = tcp_start,
    .bind = tcp_bind,
    .unbind = tcp_unbind,
    .compare = tcp_compare,
    .receive_posted = tcp_receive_posted,
    .describe = tcp_describe,
};
