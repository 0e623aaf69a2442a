/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Transport "late", for tests: what a network between two daemons does to the engine,
 * without a network.  It is linked with the daemon's own main() and takes the place of
 * `copy` when the program starts.
 *
 * Messages become packets of at most a slice each.  A thread of its own keeps each for
 * a random time, in order, and hands it to the responder's VM, and the answer to the
 * requester's.  Acknowledgements are sometimes held back, so that a later answer stands
 * for them.  At random moments a connection is lost with everything that is on its way
 * in both directions; some time later it is there again, and the responder is asked
 * which message it expects.  Then the messages may go by `copy` for a while: a path
 * that changes in the middle.  The answer that a message has failed is given again if it
 * was lost, so that the tests see the same errors as with `copy`.
 *
 * A message that would be thousands of packets, of which each may break the connection,
 * makes it break at once, and goes by `copy`.
 *
 * PVRDMAD_LATE_LOSS=N: one packet in N breaks its connection (default 40; 0: none).
 *
 * Threads: start() on the requester's worker; arrivals and answers in turns of the
 * VM they are for (vm_post); `lock` protects the queue and the table of connections.
 * The thread holds pointers to VMs only while it is online (grace.h), and takes a
 * responder's qp->lock without holding `lock`.
 */
#include <stdlib.h>

#include "datapath/engine.h"
#include "transport/transports.h"

/* ns */
#define DELAY_NS   60000u   /* of a packet, at most */
#define HELD_NS    200000u  /* of an acknowledgement */
#define DOWN_NS    1500000u /* of a connection, at most */
#define COPYING_NS 3000000u /* of going by `copy`, at most */
#define SWEEP_NS   20000000u

/* Bytes of one connection that are on their way; then it stalls. */
#define ROOM (1u << 20)

#define MAX_BYTES DATAPATH_SLICE

/* Messages of more bytes go by `copy`. */
#define LONG_MESSAGE (64u << 20)

/* For the message that a responder expects. */
#define UNKNOWN UINT64_MAX

enum kind { REQUEST, ANSWER, LOST, RESUME, BACK, GO };

struct conn {
    TAILQ_ENTRY(conn) due; /* the thread's */
    struct ticket ticket;  /* of the requester; its incarnation is the key */
    struct conn_path path;

    /* Under `lock`. */
    unsigned refs;
    uint64_t up_at, back_at; /* ns; 0: it is up / goes this way */
    struct packet *held;     /* an acknowledgement, waits for a later one */
    uint64_t held_until;
    size_t on_way; /* bytes */
    bool stalled;
    bool is_long; /* the next message: break, and then by `copy` */

    _Atomic unsigned gen;  /* what was sent under another one is lost */
    _Atomic uint32_t dest; /* the responder's VM, when asked last */
    uint64_t grace;        /* over: nothing of an older one is being executed */

    /* The responder's side: the message that arrives; turns of its VM. */
    uint64_t seq;
    uint64_t epoch;
    bool admitted;
    _Atomic bool failed; /* the next two: what it failed with, should that get lost */
    uint64_t failed_seq;
    struct outcome failure;
    /* The requester's; turns of its VM. */
    unsigned tx_gen;   /* as it knows */
    bool down;         /* it has heard that the connection is lost */
    struct send_op op; /* the READ or atomic that is answered */
};

struct packet {
    struct note note; /* first */
    TAILQ_ENTRY(packet) link;
    struct conn *conn;
    unsigned gen;
    enum kind kind;
    uint32_t vm;  /* whom it is for: struct vm's id */
    uint64_t due; /* ns */
    struct msg m; /* of a request */
    uint64_t seq; /* of an answer */
    struct outcome o;
    bool first, last, copying, is_data;
    uint64_t offset; /* of data in the message */
    uint32_t n;
    uint8_t data[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond;
static TAILQ_HEAD(, packet) wire = TAILQ_HEAD_INITIALIZER(wire);
static uint64_t last_due;
static GHashTable *conns; /* of struct conn, by incarnation */
static GRand *rnd;
static bool stopping;
static unsigned loss = 40;

static pthread_t thread;
static struct grace_thread grace;

static const struct transport_ops transport_late;

/* ---- packets and connections --------------------------------------------- */

static void conn_unref_locked(struct conn *c)
{
    if (--c->refs == 0) {
        g_free(c);
    }
}

static struct packet *packet_new(struct conn *c, enum kind kind, uint32_t vm, uint32_t n)
{
    struct packet *p = g_malloc0(sizeof(*p) + n);

    p->conn = c;
    p->gen = atomic_load(&c->gen);
    p->kind = kind;
    p->vm = vm;
    p->n = n;
    pthread_mutex_lock(&lock);
    c->refs++;
    c->on_way += n;
    pthread_mutex_unlock(&lock);
    return p;
}

static void packet_free(struct packet *p)
{
    struct conn *c = p->conn;
    bool go;

    pthread_mutex_lock(&lock);
    c->on_way -= p->n;
    go = c->stalled && c->on_way < ROOM / 2;
    if (go) {
        c->stalled = false;
    }
    pthread_mutex_unlock(&lock);
    if (go) { /* the reference goes on to it */
        p->kind = GO;
        p->vm = c->ticket.vm;
        p->n = 0;
        pthread_mutex_lock(&lock);
        p->due = 0;
        TAILQ_INSERT_HEAD(&wire, p, link);
        pthread_cond_signal(&cond);
        pthread_mutex_unlock(&lock);
        return;
    }
    pthread_mutex_lock(&lock);
    conn_unref_locked(c);
    pthread_mutex_unlock(&lock);
    g_free(p);
}

static void send_packet(struct packet *p)
{
    pthread_mutex_lock(&lock);
    p->due = MAX(last_due, now_ns() + (uint64_t)g_rand_int_range(rnd, 0, DELAY_NS));
    last_due = p->due;
    TAILQ_INSERT_TAIL(&wire, p, link);
    pthread_cond_signal(&cond);
    pthread_mutex_unlock(&lock);
}

static void send_answer(const struct packet *request, struct outcome o)
{
    struct conn *c = request->conn;
    struct packet *p = packet_new(c, ANSWER, c->ticket.vm, 0);

    if (o.what == OUT_FAIL) {
        c->failed_seq = request->m.seq;
        c->failure = o;
        atomic_store(&c->failed, true);
    } else if (o.what == OUT_SILENT && atomic_load(&c->failed) &&
               c->failed_seq == request->m.seq) {
        o = c->failure; /* asked again, as the answer was lost */
    }
    p->gen = request->gen;
    p->seq = request->m.seq;
    p->o = o;
    send_packet(p);
}

static struct conn *conn_of(struct qp *qp)
{
    const struct ticket *t = &qp->req.op.m.ticket;
    struct conn *c;

    pthread_mutex_lock(&lock);
    c = g_hash_table_lookup(conns, &t->incarnation);
    if (!c) {
        c = g_new0(struct conn, 1);
        c->ticket = *t;
        c->path = qp->req.path;
        c->refs = 1;
        g_hash_table_insert(conns, &c->ticket.incarnation, c);
    }
    pthread_mutex_unlock(&lock);
    return c;
}

/* ---- the requester's side -------------------------------------------------- */

static struct outcome late_start(struct qp *qp, struct send_op *op)
{
    struct route *route = qp->req.route;
    struct vm *vm = route ? atomic_load(&route->vm) : NULL;
    struct conn *c;
    struct packet *p;
    uint32_t n = 0;
    bool full;

    if (!qp->req.bound || !vm || guest_faulted(&vm->guest)) {
        return OUTCOME(OUT_SILENT);
    }
    if (route_is_held(route)) {
        return OUTCOME(OUT_HELD);
    }
    c = conn_of(qp);
    atomic_store(&c->dest, vm->id);
    if (c->down) {
        return OUTCOME(OUT_HELD);
    }
    pthread_mutex_lock(&lock);
    full = c->on_way >= ROOM;
    c->stalled |= full;
    if (op->m.length > LONG_MESSAGE) {
        c->is_long = full = true;
        pthread_cond_signal(&cond);
    }
    pthread_mutex_unlock(&lock);
    if (full) {
        return OUTCOME(OUT_STALLED);
    }
    if (!msg_returns(&op->m)) {
        n = (uint32_t)MIN(op->m.length - op->done, qp->req.slice);
    }
    p = packet_new(c, REQUEST, vm->id, n);
    p->gen = c->tx_gen;
    p->m = op->m;
    p->m.path = &c->path;
    p->first = op->done == 0;
    p->offset = op->done;
    if (n) {
        struct sg_list local = sg_of_op(qp, op, false);

        if (sg_fetch(&local, p->data, n) != SG_OK) {
            packet_free(p);
            return (struct outcome){.what = OUT_FAIL, .status = PVRDMA_WC_LOC_PROT_ERR};
        }
        op->cur = local.cur;
        op->done += n;
    }
    p->last = msg_returns(&op->m) || op->done == op->m.length;
    /* Only now: it may be answered at once. */
    n = p->last;
    send_packet(p);
    return OUTCOME(n ? OUT_PENDING : OUT_MORE);
}

static const struct transport_ops transport_late = {
    .name = "late",
    .pipelined = true,
    .start = late_start,
};

/* A part of what a READ or an atomic returns. */
static void place(struct qp *qp, struct packet *p)
{
    struct send_op *op = &p->conn->op;
    struct outcome o = OUTCOME(OUT_DONE);
    uint64_t skip = p->offset;
    bool ok = requester_reopen(qp, p->seq, op) && p->offset + p->n <= op->m.length;

    if (ok) {
        struct sg_list local = sg_of_op(qp, op, true);

        while (local.cur.sge < op->nsge && skip >= op->sge[local.cur.sge].length) {
            skip -= op->sge[local.cur.sge++].length;
        }
        local.cur.offset = (uint32_t)skip;
        ok = sg_fill(&local, p->data, p->n) == SG_OK;
    }
    if (!ok) { /* the guest's doing; or it is not waited for, which is seen there */
        o = (struct outcome){.what = OUT_FAIL, .status = PVRDMA_WC_LOC_PROT_ERR};
    }
    if (p->last || !ok) {
        requester_answered(qp, p->seq, o);
    }
}

static void back_to_late(struct qp *qp, struct conn *c)
{
    bool done = qp->req.transport != &transport_copy || !qp->req.op.active;

    if (done) {
        qp->req.transport = &transport_late;
    }
    pthread_mutex_lock(&lock);
    c->back_at = done ? 0 : now_ns() + 100000;
    pthread_mutex_unlock(&lock);
}

/*
 * What the responder expects, if it knows the connection.  In the requester's turn: asked
 * before, it would be of the past, for `copy` may carry messages until that turn comes.
 */
static uint64_t ask_responder(const struct conn *c)
{
    struct vm *vm = vm_by_id(atomic_load(&c->dest));
    struct qp *qp = vm ? objects_qp_by_qpn(&vm->objects, c->path.dqpn) : NULL;
    uint64_t got = UNKNOWN;

    if (qp) {
        pthread_mutex_lock(&qp->lock);
        if (qp->resp.incarnation == c->ticket.incarnation) {
            got = qp->resp.seq;
        }
        pthread_mutex_unlock(&qp->lock);
    }
    return got;
}

static void answered(struct packet *p, struct vm *vm)
{
    struct qp *qp = ticket_qp(&p->conn->ticket);
    uint64_t got;

    if (!qp || qp->vm != vm) {
        return;
    }
    switch (p->kind) {
    case LOST:
        p->conn->down = true;
        requester_lost(qp);
        break;
    case RESUME:
        p->conn->down = false;
        p->conn->tx_gen = p->gen;
        if (p->copying) {
            qp->req.transport = &transport_copy;
        }
        /* Of a responder that is gone nothing is known but what it had answered. */
        got = ask_responder(p->conn);
        requester_resume(qp, got != UNKNOWN ? got : qp->req.seq - qp->req.in_flight);
        break;
    case BACK:
        back_to_late(qp, p->conn);
        break;
    case GO:
        requester_go(qp);
        break;
    default:
        if (p->is_data) {
            place(qp, p);
        } else {
            requester_answered(qp, p->seq, p->o);
        }
        break;
    }
}

/* ---- the responder's side ---------------------------------------------------- */

static struct packet *data_packet(const struct packet *request, uint64_t offset,
                                  uint32_t n)
{
    struct packet *p = packet_new(request->conn, ANSWER, request->conn->ticket.vm, n);

    p->gen = request->gen;
    p->seq = request->m.seq;
    p->is_data = true;
    p->offset = offset;
    p->last = offset + n == request->m.length;
    return p;
}

static void fail(struct qp *qp, struct packet *p, struct outcome o)
{
    responder_settle(qp, p->m.seq, p->conn->epoch, o);
    send_answer(p, o.remote ? o : OUTCOME(OUT_SILENT));
}

/* All of it at once: a test that reads gigabytes is the test's fault. */
static void read_out(struct qp *qp, struct packet *p, bool again)
{
    struct pvrdma_sge sge = {p->m.addr, (uint32_t)p->m.length, p->m.rkey};
    struct sg_list remote = {.vm = qp->vm,
                             .at = qp,
                             .pd = qp->pd,
                             .access = PVRDMA_ACCESS_REMOTE_READ,
                             .nsge = 1,
                             .sge = &sge};
    TAILQ_HEAD(, packet) out = TAILQ_HEAD_INITIALIZER(out);
    enum sg_result r = SG_OK;
    uint64_t done = 0;
    struct packet *d;
    bool ok;

    do {
        uint32_t n = (uint32_t)MIN(p->m.length - done, MAX_BYTES);

        d = data_packet(p, done, n);
        TAILQ_INSERT_TAIL(&out, d, link);
        r = n ? sg_fetch(&remote, d->data, n) : SG_OK;
        done += n;
    } while (r == SG_OK && done < p->m.length);
    ok = r == SG_OK && (again || responder_finish(qp, &p->m, p->conn->epoch));
    if (r != SG_OK) {
        fail(qp, p, responder_outcome(&p->m, r, true));
    } else if (!ok) {
        send_answer(p, OUTCOME(OUT_SILENT)); /* what was admitted is void */
    }
    while ((d = TAILQ_FIRST(&out))) {
        TAILQ_REMOVE(&out, d, link);
        if (ok) {
            send_packet(d);
        } else {
            packet_free(d);
        }
    }
}

/* Bytes of a SEND or WRITE that is admitted. */
static void take_bytes(struct qp *qp, struct packet *p)
{
    struct pvrdma_sge sge = {p->m.addr, (uint32_t)p->m.length, p->m.rkey};
    struct sg_list remote = {.vm = qp->vm,
                             .at = qp,
                             .pd = qp->pd,
                             .write = true,
                             .access = PVRDMA_ACCESS_REMOTE_WRITE,
                             .nsge = 1,
                             .sge = &sge,
                             .cur = {0, (uint32_t)p->offset}};
    struct conn *c = p->conn;
    bool send = msg_is_send(&p->m);
    struct recv_op recv;
    enum sg_result r = SG_OK;
    struct outcome o;

    if (!responder_begin_slice(qp, &p->m, c->epoch, &recv)) {
        c->admitted = false;
        send_answer(p, OUTCOME(OUT_SILENT));
        return;
    }
    if (send) {
        remote.pd = qp->rq->pd;
        remote.access = PVRDMA_ACCESS_LOCAL_WRITE;
        remote.nsge = recv.nsge;
        remote.sge = recv.sge;
        remote.cur = recv.cur;
    }
    if (p->n) {
        r = sg_fill(&remote, p->data, p->n);
    }
    if (send && (r != SG_OK || !p->last)) {
        responder_end_slice(qp, c->epoch, &remote.cur);
    }
    if (r != SG_OK) {
        fail(qp, p, responder_outcome(&p->m, r, false));
    } else if (p->last && msg_invalidates(&p->m) &&
               (o = responder_invalidate(qp, &p->m, c->epoch)).what != OUT_DONE) {
        responder_end_slice(qp, c->epoch, &remote.cur);
        if (o.what == OUT_FAIL) {
            fail(qp, p, o);
        } else {
            send_answer(p, o);
        }
    } else if (p->last && responder_finish(qp, &p->m, c->epoch)) {
        if (send) {
            comp_received(qp->vm, p->m.length);
        }
        send_answer(p, OUTCOME(OUT_DONE));
    } else if (p->last) {
        send_answer(p, OUTCOME(OUT_SILENT));
    }
    c->admitted = r == SG_OK && !p->last;
}

/* An atomic under the lock that admitted it. */
static struct outcome execute_atomic(struct qp *qp, const struct msg *m, bool again,
                                     uint64_t *old)
{
    struct outcome o = OUTCOME(OUT_DONE);

    if (again) {
        responder_saved_atomic_locked(qp, m->seq, old);
    } else {
        o = responder_atomic_locked(qp, m, old);
        if (o.what == OUT_DONE) {
            responder_finish_locked(qp, m);
        }
    }
    return o;
}

static void begin(struct qp *qp, struct packet *p)
{
    struct conn *c = p->conn;
    struct outcome o, admitted;
    uint64_t old = 0;
    bool again;

    pthread_mutex_lock(&qp->lock);
    o = admitted = responder_admit_locked(qp, &p->m, &c->epoch);
    again = o.what == OUT_DUPLICATE && msg_returns(&p->m);
    if ((o.what == OUT_DONE || again) && msg_is_atomic(&p->m)) {
        o = execute_atomic(qp, &p->m, again, &old);
    }
    pthread_mutex_unlock(&qp->lock);
    if (admitted.what == OUT_FAIL || admitted.comm_est) {
        responder_tell(qp, admitted);
    }
    c->seq = p->m.seq;
    c->admitted = admitted.what == OUT_DONE && !msg_returns(&p->m);
    if (admitted.what == OUT_EARLY || c->admitted) {
        return;
    }
    if (admitted.what != OUT_DONE && !again) {
        send_answer(p, admitted);
    } else if (p->m.opcode == PVRDMA_WR_RDMA_READ) {
        read_out(qp, p, again);
    } else if (o.what == OUT_DONE) {
        struct packet *d = data_packet(p, 0, sizeof(old));

        memcpy(d->data, &old, sizeof(old));
        send_packet(d);
    } else {
        fail(qp, p, o);
    }
}

/* It may have gone in the middle of a message. */
static void nobody_there(struct packet *p)
{
    if (p->first || p->last) {
        send_answer(p, OUTCOME(OUT_SILENT));
    }
}

static void arrived(struct packet *p, struct vm *vm)
{
    struct conn *c = p->conn;
    struct qp *qp = objects_qp_by_qpn(&vm->objects, c->path.dqpn);

    /*
     * A connection ends with its requester.  Its first message would else be taken for
     * that of a new connection of the same QPs and packet sequence numbers.
     */
    if (!ticket_qp(&c->ticket)) {
        return;
    }
    if (!qp) {
        nobody_there(p);
        return;
    }
    if (p->first) {
        begin(qp, p);
    }
    if (c->admitted && c->seq == p->m.seq) {
        take_bytes(qp, p);
    }
}

static void run_packet(struct note *n, struct vm *vm)
{
    struct packet *p = (struct packet *)(void *)n;
    bool mine = p->gen == atomic_load(&p->conn->gen) || p->kind == LOST ||
                p->kind == BACK || p->kind == GO;

    if (mine && vm && p->kind == REQUEST) {
        arrived(p, vm);
    } else if (mine && vm) {
        answered(p, vm);
    } else if (mine && p->kind == REQUEST) {
        nobody_there(p);
    }
    packet_free(p);
}

/* ---- the thread: the wire ------------------------------------------------------ */

static void deliver(struct packet *p)
{
    struct vm *vm = vm_by_id(p->vm);

    p->note.run = run_packet;
    if (vm) {
        vm_post(vm, &p->note);
    } else {
        run_packet(&p->note, NULL);
    }
}

/* Everything of @c that is on its way is lost. */
static void break_conn(struct conn *c)
{
    struct packet *p, *held;

    pthread_mutex_lock(&lock);
    held = c->held;
    c->held = NULL;
    c->up_at = now_ns() + (uint64_t)g_rand_int_range(rnd, 50000, DOWN_NS);
    atomic_fetch_add(&c->gen, 1);
    c->grace = grace_begin();
    pthread_mutex_unlock(&lock);
    if (held) {
        packet_free(held);
    }
    p = packet_new(c, LOST, c->ticket.vm, 0);
    deliver(p);
}

static void resume_conn(struct conn *c)
{
    struct packet *p = packet_new(c, RESUME, c->ticket.vm, 0);

    pthread_mutex_lock(&lock);
    p->copying =
        !atomic_load(&c->failed) && (c->is_long || g_rand_int_range(rnd, 0, 4) == 0);
    c->is_long = false;
    c->up_at = 0;
    if (p->copying) {
        c->back_at = now_ns() + (uint64_t)g_rand_int_range(rnd, 0, COPYING_NS);
    }
    pthread_mutex_unlock(&lock);
    deliver(p);
}

/* True: @p is kept back.  One that was kept is not needed if a later one follows. */
static bool hold_back(struct packet *p)
{
    struct conn *c = p->conn;
    struct packet *old;
    bool hold;

    if (p->kind != ANSWER || p->gen != atomic_load(&c->gen)) {
        return false;
    }
    pthread_mutex_lock(&lock);
    old = c->held;
    hold = !p->is_data && p->o.what == OUT_DONE && g_rand_boolean(rnd);
    c->held = hold ? p : NULL;
    c->held_until = now_ns() + HELD_NS;
    pthread_mutex_unlock(&lock);
    if (old && p->seq > old->seq) {
        packet_free(old);
    } else if (old) {
        deliver(old);
    }
    return hold;
}

static bool breaks(void)
{
    bool yes;

    pthread_mutex_lock(&lock);
    yes = loss && g_rand_int_range(rnd, 0, (gint32)loss) == 0;
    pthread_mutex_unlock(&lock);
    return yes;
}

static void carry(struct packet *p)
{
    struct conn *c = p->conn;

    if ((p->kind == REQUEST || p->kind == ANSWER) && !c->up_at && breaks()) {
        break_conn(c);
    }
    if (!hold_back(p)) {
        deliver(p);
    }
}

TAILQ_HEAD(conn_list, conn);

/* A reference to each connection that has something to do by now, or is dead. */
static void due_conns(struct conn_list *due, uint64_t now, uint64_t *next)
{
    GHashTableIter it;
    gpointer value;

    g_hash_table_iter_init(&it, conns);
    while (g_hash_table_iter_next(&it, NULL, &value)) {
        struct conn *c = value;
        uint64_t t = UINT64_MAX;

        t = c->up_at ? MIN(t, c->up_at) : t;
        t = c->back_at ? MIN(t, c->back_at) : t;
        t = c->held ? MIN(t, c->held_until) : t;
        t = c->is_long && !c->up_at ? 0 : t;
        if (t <= now || !ticket_qp(&c->ticket)) {
            c->refs++;
            TAILQ_INSERT_TAIL(due, c, due);
        } else {
            *next = MIN(*next, t);
        }
    }
}

static void serve_conn(struct conn *c, uint64_t now)
{
    struct packet *held = NULL;
    bool up, back, down;

    pthread_mutex_lock(&lock);
    if (!ticket_qp(&c->ticket) && g_hash_table_remove(conns, &c->ticket.incarnation)) {
        held = c->held;
        c->held = NULL;
        atomic_fetch_add(&c->gen, 1);
        pthread_mutex_unlock(&lock);
        if (held) {
            packet_free(held);
        }
        return;
    }
    up = c->up_at && c->up_at <= now && grace_is_over(c->grace);
    if (c->up_at && !up) {
        c->up_at = MAX(c->up_at, now + 20000);
    }
    if (c->held && c->held_until <= now) {
        held = c->held;
        c->held = NULL;
    }
    down = c->is_long && !c->up_at;
    back = c->back_at && c->back_at <= now;
    if (back) {
        c->back_at = 0;
    }
    pthread_mutex_unlock(&lock);
    if (held) {
        deliver(held);
    }
    if (down) {
        break_conn(c);
    }
    if (up) {
        resume_conn(c);
    }
    if (back) {
        deliver(packet_new(c, BACK, c->ticket.vm, 0));
    }
}

static void serve_conns(uint64_t now, uint64_t *next)
{
    struct conn_list due = TAILQ_HEAD_INITIALIZER(due);
    struct conn *c;

    pthread_mutex_lock(&lock);
    due_conns(&due, now, next);
    pthread_mutex_unlock(&lock);
    while ((c = TAILQ_FIRST(&due))) {
        TAILQ_REMOVE(&due, c, due);
        serve_conn(c, now);
        pthread_mutex_lock(&lock);
        conn_unref_locked(c);
        pthread_mutex_unlock(&lock);
        *next = now;
    }
}

static void sleep_until(uint64_t when)
{
    struct timespec ts = {(time_t)(when / 1000000000u), (long)(when % 1000000000u)};

    pthread_cond_timedwait(&cond, &lock, &ts);
}

static void *wire_main(void *unused)
{
    pthread_mutex_lock(&lock);
    while (!stopping) {
        uint64_t now = now_ns(), next = now + SWEEP_NS;
        struct packet *p;

        pthread_mutex_unlock(&lock);
        grace_online(&grace);
        grace_pass(&grace);
        for (;;) {
            pthread_mutex_lock(&lock);
            p = TAILQ_FIRST(&wire);
            if (p && p->due > now) {
                next = MIN(next, p->due);
                p = NULL;
            }
            if (p) {
                TAILQ_REMOVE(&wire, p, link);
            }
            pthread_mutex_unlock(&lock);
            if (!p) {
                break;
            }
            carry(p);
        }
        serve_conns(now, &next);
        grace_offline(&grace);
        pthread_mutex_lock(&lock);
        p = TAILQ_FIRST(&wire);
        next = p ? MIN(next, p->due) : next;
        if (!stopping && next > now_ns()) {
            sleep_until(next);
        }
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* ---- in and out ------------------------------------------------------------------ */

static void conn_free(gpointer c)
{
    conn_unref_locked(c);
}

__attribute__((constructor)) static void late_init(void)
{
    const char *env = getenv("PVRDMAD_LATE_LOSS");
    pthread_condattr_t attr;

    if (env) {
        loss = (unsigned)atoi(env);
    }
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&cond, &attr);
    pthread_condattr_destroy(&attr);
    conns = g_hash_table_new_full(g_int64_hash, g_int64_equal, NULL, conn_free);
    rnd = g_rand_new();
    grace_register(&grace);
    grace_offline(&grace);
    transport_local = &transport_late;
    if (pthread_create(&thread, NULL, wire_main, NULL) != 0) {
        abort();
    }
}

__attribute__((destructor)) static void late_fini(void)
{
    struct packet *p;

    pthread_mutex_lock(&lock);
    stopping = true;
    pthread_cond_signal(&cond);
    pthread_mutex_unlock(&lock);
    pthread_join(thread, NULL);
    while ((p = TAILQ_FIRST(&wire))) {
        TAILQ_REMOVE(&wire, p, link);
        conn_unref_locked(p->conn);
        g_free(p);
    }
    g_hash_table_destroy(conns);
    g_rand_free(rnd);
    grace_unregister(&grace);
}
