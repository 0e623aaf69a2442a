/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Transport "tcp", what the main thread has to do with a VM's token.
 *
 * A VM's worker holds the token through a page fault, and how long that takes is the
 * VMM's to say: it can make a hole of any size in its guest's memory.  Everybody's
 * registers and links are the main thread's, so it waits for no token here (nor for a
 * queue pair's lock, which a worker holds likewise): it asks for it, and what was to be
 * done is owed to the connection until the token is had.  As a rule that is at once.
 *
 * What is owed is a bit each, not a list: a connection owes little, whatever peers say.
 * All but bits is kept by who owes (setup, taking, attaching in struct conn), and what
 * has become of no use meanwhile is forgotten.
 *
 * Invariants: a connection is in its VM's list if it owes anything.  A VM is in `late` if
 * the token was asked for and not had; then its worker takes no turn (token_waiters).
 * Threads: the main thread.  tests/unit/test-floors.py looks that nothing of transport/
 * calls what waits.
 */
#include "transport/tcp/setup.h"

/* Until a token that was not had is tried again. */
#define LATE_MS 1u
/* All that one VM is owed in one go. */
#define PAY_NS 500000u

/* These look at what the peer has sent so far: under qp->lock. */
#define WITH_LOCK \
    (OWED_HELLO | OWED_STREAM | OWED_REQUEST | OWED_TAKE | OWED_TAKEN | OWED_ATTACH)

static TAILQ_HEAD(tcp_vm_list, tcp_vm) late = TAILQ_HEAD_INITIALIZER(late);
static guint late_timer;

static void in_vain(struct conn *c)
{
    if (c->trying && !c->s) {
        c->trying = false;
        c->refused = true;
    }
}

static bool follow(struct conn *c, unsigned what)
{
    if (what & OWED_FOLLOW) {
        conn_follow(c);
    }
    if (what & OWED_GONE) {
        conn_break(c, "its host is no peer any more");
        atomic_store(&c->net->net.ready, true); /* its worker looks */
    }
    if (what & OWED_REACHABLE) {
        conn_reachable(c, what & OWED_ANEW);
    }
    return what & (OWED_FOLLOW | OWED_GONE | OWED_REACHABLE);
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
        c->trying = false;
        wake = true;
    }
    if (what & OWED_IN_VAIN) {
        in_vain(c);
        wake = true;
    }
    wake |= what & OWED_HELLO && startup_pay_hello(c);
    wake |= what & OWED_STREAM && startup_pay_stream(c);
    wake |= what & OWED_REQUEST && startup_pay_request(c);
    wake |= what & OWED_TAKE && take_pay(c);
    wake |= what & OWED_TAKEN && take_pay_taken(c);
    wake |= what & OWED_ATTACH && take_pay_attach(c);
    return wake;
}

/* Token held.  True: the worker is to look at once. */
static bool pay(struct tcp_vm *net)
{
    const struct conn *busy = NULL; /* the first whose lock somebody has */
    uint64_t end = now_ns() + PAY_NS;
    bool wake = false;
    struct conn *c;

    net->paying = true; /* what is owed from here on, too, comes behind */
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
    net->paying = false;
    return wake;
}

static void pay_and_return(struct tcp_vm *net)
{
    if (pay(net)) {
        vm_token_release(net->vm);
    } else {
        vm_token_return(net->vm);
    }
}

static gboolean run_late(gpointer unused);

static void is_late(struct tcp_vm *net)
{
    net->late = true;
    TAILQ_INSERT_TAIL(&late, net, late_link);
    if (!late_timer) {
        late_timer = g_timeout_add(LATE_MS, run_late, NULL);
    }
}

static void not_late(struct tcp_vm *net)
{
    if (net->late) {
        net->late = false;
        TAILQ_REMOVE(&late, net, late_link);
    }
}

/* It owes something.  The token is ours, or will be. */
static void get_token(struct tcp_vm *net)
{
    if (!vm_token_try(net->vm)) {
        is_late(net);
        return;
    }
    pay_and_return(net);
    if (!TAILQ_EMPTY(&net->owed)) { /* the rest in another turn of the loop */
        vm_token_ask(net->vm);
        is_late(net);
    }
}

static gboolean run_late(gpointer unused)
{
    struct tcp_vm *net, *next, *last = TAILQ_LAST(&late, tcp_vm_list);

    for (net = TAILQ_FIRST(&late); net; net = next) {
        next = net == last ? NULL : TAILQ_NEXT(net, late_link);
        if (TAILQ_EMPTY(&net->owed)) {
            not_late(net);
            vm_token_give_up(net->vm);
        } else if (vm_token_try_again(net->vm)) {
            not_late(net);
            pay_and_return(net);
            if (!TAILQ_EMPTY(&net->owed)) {
                vm_token_ask(net->vm);
                is_late(net);
            }
        }
    }
    if (!TAILQ_EMPTY(&late)) {
        return G_SOURCE_CONTINUE;
    }
    late_timer = 0;
    return G_SOURCE_REMOVE;
}

void conn_owe(struct conn *c, unsigned what)
{
    struct tcp_vm *net = c->net;

    if (!c->owed) {
        TAILQ_INSERT_TAIL(&net->owed, c, owe);
    }
    c->owed |= what;
    if (!net->paying && !net->late) {
        get_token(net);
    }
}

void conn_owe_no_more(struct conn *c, unsigned what)
{
    if (c->owed && !(c->owed &= ~what)) {
        TAILQ_REMOVE(&c->net->owed, c, owe);
    }
}

void owed_vm_gone(struct tcp_vm *net)
{
    if (net->late) {
        not_late(net);
        vm_token_give_up(net->vm);
    }
}

void owed_close(void)
{
    if (late_timer) {
        g_source_remove(late_timer);
        late_timer = 0;
    }
}
