/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Transport "tcp", what the main thread has to do with a VM's token.
 *
 * A VM's worker holds the token through a page fault, and how long that takes is the
 * VMM's to say: it can make a hole of any size in its guest's memory.  Registers and
 * links of all VMs are the main thread's, so it waits for no token here (nor for a queue
 * pair's lock, which a worker holds likewise).  What needs the token is deferred: noted
 * in the connection, and done later in the same turn of the main loop if the token can be
 * taken then: at once, as a rule.  Else it is asked for, and tried every WAIT_MS.
 *
 * All VMs together take TURN_NS of a turn of the main loop, each in its turn.  A VM for
 * which more than that is deferred, or something behind a lock that is held, goes on
 * after REST_NS; until then nobody asks for its token, and its worker has it.
 *
 * What is deferred is a bit each, not a list: it is little for a connection, whatever
 * peers say.  All but bits is kept elsewhere (setup, arrived in struct conn), and what
 * has become of no use meanwhile is forgotten.  Who keeps something of a peer's bounds
 * how long.
 *
 * Invariants: a connection is in its VM's list if it has any of those bits; then that VM
 * is in `deferring`.  While that has any, deferred_run() is going to run.  A VM that was
 * asked for its token and has not given it (asked) takes no turn (token_waiters).
 * Threads: the main thread.  tests/unit/test-floors.py checks that nothing of transport/
 * calls what waits.
 */
#include "transport/iwarp/deferred.h"

#include "base/fdwatch.h"
#include "transport/iwarp/setup/bind.h"

/* Until a token that was not had is tried again. */
#define WAIT_MS 1u
/* For all in one turn of the main loop. */
#define TURN_NS 1000000u
/* Between two goes of one VM. */
#define REST_NS 1000000u

/* These look at what the peer has sent so far: under qp->lock. */
#define WITH_LOCK (DEFERRED_HELLO | DEFERRED_STREAM | DEFERRED_REQUEST)

static TAILQ_HEAD(, tcp_vm) deferring = TAILQ_HEAD_INITIALIZER(deferring);
static unsigned n_deferring;
static guint timer;
static void deferred_run(void);
static struct fdwatch_later soon = {.fn = deferred_run};

static void deferred_try_failed(struct conn *c)
{
    if (c->phase == CONN_TRYING) {
        conn_try_over(c);
        c->try_failed = true;
        conn_reachable(c, false); /* who waits for it hears of it */
    }
}

static bool deferred_moves(struct conn *c, unsigned what)
{
    if (what & DEFERRED_MOVED) {
        conn_moved(c);
    }
    if (what & DEFERRED_GONE) {
        conn_break(c, "its host is no longer a peer");
        atomic_store(&c->net->net.ready, true); /* its worker looks */
    }
    if (what & DEFERRED_SILENT) {
        conn_break_silent(c);
    }
    if (what & DEFERRED_CHANNEL) {
        conn_leave_socket(c);
    }
    if (what & DEFERRED_REACHABLE) {
        conn_reachable(c, what & DEFERRED_ANEW);
    }
    return what & (DEFERRED_MOVED | DEFERRED_GONE | DEFERRED_SILENT | DEFERRED_CHANNEL |
                   DEFERRED_REACHABLE);
}

/* In the order in which one follows from another.  True: the worker is to look at once.
 */
static bool deferred_do_one(struct conn *c, unsigned what)
{
    bool wake = deferred_moves(c, what);

    if (what & DEFERRED_FAILURE) {
        conn_peer_failed(c, c->heard.status, c->heard.seq);
        wake = true;
    }
    if (what & DEFERRED_NOT_NOW) {
        conn_try_over(c);
        wake = true;
    }
    if (what & DEFERRED_TRY_FAILED) {
        deferred_try_failed(c);
        wake = true;
    }
    wake |= what & DEFERRED_HELLO && handshake_do_hello(c);
    wake |= what & DEFERRED_STREAM && handshake_do_stream(c);
    wake |= what & DEFERRED_REQUEST && handshake_do_request(c);
    return wake;
}

/* Token held, until @end (ns).  True: the worker is to look at once. */
static bool deferred_do(struct tcp_vm *net, uint64_t end)
{
    const struct conn *busy = NULL; /* the first whose lock somebody has */
    bool wake = false;
    struct conn *c;

    while ((c = TAILQ_FIRST(&net->deferred)) && c != busy && now_ns() < end) {
        unsigned what = c->deferred;
        bool lock = what & WITH_LOCK;

        TAILQ_REMOVE(&net->deferred, c, deferred_link);
        if (lock && pthread_mutex_trylock(&c->qp->lock) != 0) {
            TAILQ_INSERT_TAIL(&net->deferred, c, deferred_link);
            busy = busy ? busy : c;
            continue;
        }
        c->deferred = 0;
        wake |= deferred_do_one(c, what);
        if (lock) {
            pthread_mutex_unlock(&c->qp->lock);
        }
    }
    return wake;
}

/* Nothing is deferred for it any more. */
static void deferred_leave(struct tcp_vm *net)
{
    if (net->asked) {
        net->asked = false;
        vm_token_give_up(net->vm);
    }
    net->is_deferring = false;
    n_deferring--;
    TAILQ_REMOVE(&deferring, net, deferred_link);
}

static void deferred_visit(struct tcp_vm *net, uint64_t end)
{
    bool had;

    TAILQ_REMOVE(&deferring, net, deferred_link);
    TAILQ_INSERT_TAIL(&deferring, net, deferred_link);
    if (TAILQ_EMPTY(&net->deferred)) {
        deferred_leave(net);
        return;
    }
    if (now_ns() < net->rest_until) {
        return;
    }
    had = net->asked ? vm_token_try_again(net->vm) : vm_token_try(net->vm);
    net->asked = !had;
    if (!had) {
        return;
    }
    if (deferred_do(net, end)) {
        vm_token_release(net->vm);
    } else {
        vm_token_return(net->vm);
    }
    if (TAILQ_EMPTY(&net->deferred)) {
        deferred_leave(net);
    } else {
        net->rest_until = now_ns() + REST_NS;
    }
}

static gboolean deferred_on_timer(gpointer unused)
{
    timer = 0;
    deferred_run();
    return G_SOURCE_REMOVE;
}

static void deferred_run(void)
{
    uint64_t end = now_ns() + TURN_NS;

    for (unsigned n = n_deferring; n; n--) {
        if (now_ns() >= end) { /* the others in another turn of the loop */
            fdwatch_later(&soon);
            return;
        }
        deferred_visit(TAILQ_FIRST(&deferring), end);
    }
    if (n_deferring && !timer) {
        timer = g_timeout_add(WAIT_MS, deferred_on_timer, NULL);
    }
}

void conn_defer(struct conn *c, unsigned what)
{
    struct tcp_vm *net = c->net;

    if (!c->deferred) {
        TAILQ_INSERT_TAIL(&net->deferred, c, deferred_link);
    }
    c->deferred |= what;
    if (!net->is_deferring) {
        net->is_deferring = true;
        n_deferring++;
        TAILQ_INSERT_TAIL(&deferring, net, deferred_link);
        fdwatch_later(&soon);
    }
}

void conn_defer_no_more(struct conn *c, unsigned what)
{
    unsigned was = c->deferred;

    c->deferred = was & ~what;
    if (was && !(was & ~what)) {
        TAILQ_REMOVE(&c->net->deferred, c, deferred_link);
    }
}

void deferred_vm_gone(struct tcp_vm *net)
{
    if (net->is_deferring) {
        deferred_leave(net);
    }
}

void deferred_close(void)
{
    fdwatch_not_later(&soon);
    if (timer) {
        g_source_remove(timer);
        timer = 0;
    }
}
