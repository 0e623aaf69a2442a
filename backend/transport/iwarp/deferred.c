/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Transport "tcp", what the main thread has to do with a VM's token.
 *
 * A VM's worker holds the token through a page fault, and how long that takes is the
 * VMM's to say: it can make a hole of any size in its guest's memory.  Everybody's
 * registers and links are the main thread's, so it waits for no token here (nor for a
 * queue pair's lock, which a worker holds likewise).  What is to be done with the token
 * is owed to the connection, and done later in the same turn of the main loop if the
 * token is had then: at once, as a rule.  Else it is asked for, and tried every WAIT_MS.
 *
 * All VMs together take TURN_NS of a turn of the main loop, each in its turn.  A VM that
 * is owed more than that, or something behind a lock that somebody has, goes on after
 * REST_NS; until then nobody asks for its token, and its worker has it.
 *
 * What is owed is a bit each, not a list: a connection owes little, whatever peers say.
 * All but bits is kept by who owes (setup, arrived in struct conn), and what has become
 * of no use meanwhile is forgotten.  Who keeps something of a peer's says for how long.
 *
 * Invariants: a connection is in its VM's list if it owes anything; then that VM is in
 * `owing`.  While that has any, run() is going to run.  A VM that was asked for its token
 * and has not given it (asked) takes no turn (token_waiters).
 * Threads: the main thread.  tests/unit/test-floors.py looks that nothing of transport/
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
#define WITH_LOCK (OWED_HELLO | OWED_STREAM | OWED_REQUEST)

static TAILQ_HEAD(, tcp_vm) owing = TAILQ_HEAD_INITIALIZER(owing);
static unsigned n_owing;
static guint timer;
static void run(void);
static struct fdwatch_later soon = {.fn = run};

static void in_vain(struct conn *c)
{
    if (c->phase == CONN_TRYING) {
        conn_try_over(c);
        c->refused = true;
        conn_reachable(c, false); /* who waits for it hears of it */
    }
}

static bool follow(struct conn *c, unsigned what)
{
    if (what & OWED_FOLLOW) {
        conn_follow(c);
    }
    if (what & OWED_GONE) {
        conn_break(c, "its host is no longer a peer");
        atomic_store(&c->net->net.ready, true); /* its worker looks */
    }
    if (what & OWED_SILENT) {
        conn_leave_silent(c);
    }
    if (what & OWED_REACHABLE) {
        conn_reachable(c, what & OWED_ANEW);
    }
    return what & (OWED_FOLLOW | OWED_GONE | OWED_SILENT | OWED_REACHABLE);
}

/* In the order in which one follows from another.  True: the worker is to look at once.
 */
static bool pay_one(struct conn *c, unsigned what)
{
    bool wake = follow(c, what);

    if (what & OWED_FAILURE) {
        conn_peer_failed(c, c->heard.status, c->heard.seq);
        wake = true;
    }
    if (what & OWED_NOT_NOW) {
        conn_try_over(c);
        wake = true;
    }
    if (what & OWED_IN_VAIN) {
        in_vain(c);
        wake = true;
    }
    wake |= what & OWED_HELLO && startup_pay_hello(c);
    wake |= what & OWED_STREAM && startup_pay_stream(c);
    wake |= what & OWED_REQUEST && startup_pay_request(c);
    return wake;
}

/* Token held, until @end (ns).  True: the worker is to look at once. */
static bool pay(struct tcp_vm *net, uint64_t end)
{
    const struct conn *busy = NULL; /* the first whose lock somebody has */
    bool wake = false;
    struct conn *c;

    while ((c = TAILQ_FIRST(&net->owed)) && c != busy && now_ns() < end) {
        unsigned what = c->owed;
        bool lock = what & WITH_LOCK;

        TAILQ_REMOVE(&net->owed, c, owe);
        if (lock && pthread_mutex_trylock(&c->qp->lock) != 0) {
            TAILQ_INSERT_TAIL(&net->owed, c, owe);
            busy = busy ? busy : c;
            continue;
        }
        c->owed = 0;
        wake |= pay_one(c, what);
        if (lock) {
            pthread_mutex_unlock(&c->qp->lock);
        }
    }
    return wake;
}

/* It owes nothing. */
static void leave(struct tcp_vm *net)
{
    if (net->asked) {
        net->asked = false;
        vm_token_give_up(net->vm);
    }
    net->owing = false;
    n_owing--;
    TAILQ_REMOVE(&owing, net, owing_link);
}

static void visit(struct tcp_vm *net, uint64_t end)
{
    bool had;

    TAILQ_REMOVE(&owing, net, owing_link);
    TAILQ_INSERT_TAIL(&owing, net, owing_link);
    if (TAILQ_EMPTY(&net->owed)) {
        leave(net);
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
    if (pay(net, end)) {
        vm_token_release(net->vm);
    } else {
        vm_token_return(net->vm);
    }
    if (TAILQ_EMPTY(&net->owed)) {
        leave(net);
    } else {
        net->rest_until = now_ns() + REST_NS;
    }
}

static gboolean on_timer(gpointer unused)
{
    timer = 0;
    run();
    return G_SOURCE_REMOVE;
}

static void run(void)
{
    uint64_t end = now_ns() + TURN_NS;

    for (unsigned n = n_owing; n; n--) {
        if (now_ns() >= end) { /* the others in another turn of the loop */
            fdwatch_later(&soon);
            return;
        }
        visit(TAILQ_FIRST(&owing), end);
    }
    if (n_owing && !timer) {
        timer = g_timeout_add(WAIT_MS, on_timer, NULL);
    }
}

void conn_owe(struct conn *c, unsigned what)
{
    struct tcp_vm *net = c->net;

    if (!c->owed) {
        TAILQ_INSERT_TAIL(&net->owed, c, owe);
    }
    c->owed |= what;
    if (!net->owing) {
        net->owing = true;
        n_owing++;
        TAILQ_INSERT_TAIL(&owing, net, owing_link);
        fdwatch_later(&soon);
    }
}

void conn_owe_no_more(struct conn *c, unsigned what)
{
    unsigned was = c->owed;

    c->owed = was & ~what;
    if (was && !(was & ~what)) {
        TAILQ_REMOVE(&c->net->owed, c, owe);
    }
}

void owed_vm_gone(struct tcp_vm *net)
{
    if (net->owing) {
        leave(net);
    }
}

void owed_close(void)
{
    fdwatch_not_later(&soon);
    if (timer) {
        g_source_remove(timer);
        timer = 0;
    }
}
