/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Transport "tcp", how a queue pair gets a stream that was made in advance (park.c).
 *
 *   initiator                                    responder
 *   TAKE {BIND, token, number, hello} -- link -->  as for a BIND, and for MPA's Request
 *                                     <-- link --  TAKEN {answer, hello}: it may send
 *   from here on it may, too
 *
 * The initiator of a connection is who it is without this, and either end may have made
 * the stream.  Of those of one announcement the end that made them takes the first, the
 * other end the last, so that they do not meet before all are taken; if they do, both are
 * refused.
 *
 * For each place of its peer a connection tries this once; if it is refused, or not
 * answered for TAKE_NS, it goes on with a BIND.  Neither is a try of the queue pair's.
 * A peer that does not answer has none taken from it any more: all that are parked with
 * it go, those of our announcements to it, too, until the next one.  TAKE_MAX are under
 * way at a time, so that they do not fill the link; the rest waits.  Who ends, or takes
 * none after all, lets the next one go on; those that are forgotten, as the next one was
 * one that stands still, go on by the timer.
 *
 * What takes a VM's token may have to wait for it (owed.c).  So one is picked when TAKE
 * can be sent: who only waits for a token keeps nothing from others.  A TAKE or TAKEN
 * that has come and for which there is no token within TOKEN_NS is as if it were refused.
 *
 * Threads: the main thread.
 */
#include "transport/tcp/setup.h"

#define TAKE_NS  5000000000u
#define TAKE_MAX 1024u
#define TOKEN_NS 1000000000u
/* Well within a try of the queue pair that is asked: that does not wait for ours. */
#define LOOK_MS 50u

_Static_assert(PEER_HELLO_LEN == HELLO_SIZE, "what a link carries is what MPA does");

/* Those that were asked for; who asked first comes first. */
static struct parked_list takes = TAILQ_HEAD_INITIALIZER(takes);
/* Those that wait for a VM's token: their TAKEN or TAKE has come; likewise. */
static struct parked_list tokens = TAILQ_HEAD_INITIALIZER(tokens);
static guint look_timer;
static void look_soon(void);

static void be_in_none(struct parked *p)
{
    if (p->in) {
        p->host->n_taking -= p->in == &takes;
        TAILQ_REMOVE(p->in, p, link);
        p->in = NULL;
    }
}

/* For @ns at most. */
static void be_in(struct parked *p, struct parked_list *list, uint64_t ns)
{
    be_in_none(p);
    p->host->n_taking += list == &takes;
    p->in = list;
    p->until = now_ns() + ns;
    TAILQ_INSERT_TAIL(list, p, link);
    look_soon();
}

bool take_is_going_on(const struct conn *c)
{
    return atomic_load(&c->taking) || (c->owed & OWED_TAKE);
}

/* What @c was about to take is its own no more, nor anybody's, unless it has become its
 * stream. */
static void let_go(struct conn *c)
{
    struct parked *p = atomic_load(&c->taking);

    conn_owe_no_more(c, OWED_TAKEN);
    be_in_none(p);
    atomic_store(&c->taking, NULL);
    setup_go_on(&p->host->waiting, 1);
    parked_free(p);
}

/* It is answered, one way or the other. */
static void attach_over(struct conn *c)
{
    struct parked *p = c->attaching;

    conn_owe_no_more(c, OWED_ATTACH);
    c->attaching = NULL;
    be_in_none(p);
    parked_free(p);
}

static void refuse_attach(struct conn *c)
{
    struct parked *p = c->attaching;
    const uint64_t *token = p->take->bind.token;
    struct peer_taken a = {
        .answer = {.token = {token[0], token[1]}, .result = PEER_BIND_NOT_YET}};

    p->host->refused++;
    peer_send_taken(p->host->peer, &a);
    attach_over(c);
}

void take_attach_no_more(struct conn *c)
{
    if (c->attaching) {
        refuse_attach(c);
    }
}

/* It is tried without. */
static void fall_back(struct conn *c)
{
    setup_ask_over(c);
    let_go(c);
    setup_ask(c);
}

/* It was not had in time. */
static void no_token(struct parked *p)
{
    struct conn *c = p->conn;

    if (p == c->attaching) {
        refuse_attach(c);
    } else {
        p->host->refused++;
        fall_back(c);
    }
}

/* As many go on as may take one; true: there are others. */
static bool let_wait_no_more(struct park_host *h)
{
    if (h->n_taking < TAKE_MAX) {
        setup_go_on(&h->waiting, TAKE_MAX - h->n_taking);
    }
    return setup_has_some(&h->waiting);
}

static gboolean look(gpointer unused)
{
    uint64_t now = now_ns();
    struct parked *p;
    bool waiting;

    while ((p = TAILQ_FIRST(&takes)) && now >= p->until) {
        struct peer *peer = p->host->peer;

        log_vm(LOG_LVL_WARN, p->conn->vm,
               "peer %s: no answer about connections that were made in advance",
               peer_name(peer));
        park_drop_peer(peer);
        take_give_up(peer);
    }
    while ((p = TAILQ_FIRST(&tokens)) && now >= p->until) {
        no_token(p);
    }
    waiting = park_any_host(let_wait_no_more);
    if (waiting || !TAILQ_EMPTY(&takes) || !TAILQ_EMPTY(&tokens)) {
        return G_SOURCE_CONTINUE;
    }
    look_timer = 0;
    return G_SOURCE_REMOVE;
}

static void look_soon(void)
{
    if (!look_timer) {
        look_timer = g_timeout_add(LOOK_MS, look, NULL);
    }
}

/* ---- the initiator ---- */

/* Of our announcement of @c's address, or of @peer's of the one that @c goes to. */
static struct park *park_for(const struct conn *c, struct peer *peer, bool ours)
{
    return park_of(peer, c->network, ours ? &c->path.sgid : &c->path.dgid, ours);
}

/* One of the two, which @t names then.  NULL: neither has one. */
static struct parked *pick(const struct conn *c, struct peer *peer, struct peer_take *t)
{
    struct park *park = park_for(c, peer, true);
    struct parked *p = park ? park_take(park, true) : NULL;

    if (!p) { /* it may be what is left of a move before this one */
        park = park_for(c, peer, false);
        p = park ? park_take(park, false) : NULL;
    }
    if (p) {
        memcpy(t->token, park->token, sizeof(t->token));
        t->number = p->number;
        park_begin_to_end(park);
    }
    return p;
}

/* May it get one? */
static bool may_pick(const struct conn *c, struct peer *peer)
{
    const struct park *ours = park_for(c, peer, true), *theirs = park_for(c, peer, false);

    return (ours && park_has(ours)) || (theirs && park_has(theirs));
}

bool take_begin(struct conn *c, struct peer *peer)
{
    if (!peer || c->took || !c->initiator) {
        return false;
    }
    if (!may_pick(c, peer)) {
        /* What it waited for, if it did, is the next one's. */
        setup_go_on(&park_host(peer)->waiting, 1);
        return false;
    }
    setup_ask_over(c);
    conn_owe(c, OWED_TAKE);
    return true;
}

/* Ask for @p, by @t. */
static bool send_take(struct conn *c, struct parked *p, struct peer_take *t)
{
    p->own = g_new(struct hello, 1);
    conn_hello(c, p->own);
    setup_random_token(t->bind.token);
    memcpy(p->own->token, t->bind.token, sizeof(p->own->token));
    hello_put(p->own, t->hello);
    p->take = g_memdup2(t, sizeof(*t));
    p->conn = c;
    return setup_asks(c, t->bind.token, 2 * (uint64_t)TAKE_NS) &&
           peer_send_take(p->host->peer, t);
}

/* Those that there were, and whoever might be asked for them, may have gone meanwhile. */
bool take_pay(struct conn *c)
{
    struct peer_take t;
    struct park_host *h;
    struct peer *peer;
    struct parked *p;
    bool had = c->s;

    if (!setup_is_ready(c) || !follow_is_there(c) || !setup_peer_of(c, &peer) || !peer) {
        setup_ask(c); /* which sees why */
        return false;
    }
    h = park_host(peer);
    if (h->n_taking >= TAKE_MAX) { /* until one of them ends */
        setup_wait_in(c, &h->waiting);
        look_soon();
        return false;
    }
    setup_bind_of(c, &t.bind);
    p = pick(c, peer, &t);
    if (!p || (!p->framing.ord && startup_wants_reads(c))) {
        c->took = p != NULL;
        if (p) {
            parked_free(p);
        }
        setup_ask(c);
        return false;
    }
    c->took = true;
    conn_down(c);
    atomic_store(&c->taking, p);
    if (send_take(c, p, &t)) {
        be_in(p, &takes, TAKE_NS);
    } else {
        fall_back(c);
    }
    return had;
}

void take_answered(struct peer *from, const struct peer_taken *t)
{
    struct conn *c = setup_asked(t->answer.token);
    struct parked *p = c ? atomic_load(&c->taking) : NULL;
    struct hello peer;
    bool said;

    if (!p || p->in != &takes || p->host->peer != from) {
        return;
    }
    said = startup_hears(c, t->hello, sizeof(t->hello), t->answer.token, &peer);
    if (!said || t->answer.result != PEER_BIND_OK) {
        p->host->refused++;
        if (said) {
            startup_refused(c, &peer);
        }
        fall_back(c);
        return;
    }
    setup_ask_over(c);
    be_in(p, &tokens, TOKEN_NS);
    p->peer = g_memdup2(&peer, sizeof(peer));
    conn_owe(c, OWED_TAKEN);
}

bool take_pay_taken(struct conn *c)
{
    struct parked *p = atomic_load(&c->taking);

    if (!c->s && setup_is_ready(c) && follow_is_there(c)) {
        conn_up(c, p->fd, &p->framing, true, p->own, p->peer);
        p->fd = -1;
        announce_taken(p);
        c->up_at = now_ns();
        c->peer = p->host->peer;
    }
    let_go(c);
    return conn_waits(c);
}

void take_cancel(struct conn *c)
{
    setup_wait_no_more(c);
    take_attach_no_more(c);
    conn_owe_no_more(c, OWED_TAKE);
    if (atomic_load(&c->taking)) {
        setup_ask_over(c);
        let_go(c);
    }
}

void take_give_up(struct peer *peer)
{
    struct park_host *h = park_host(peer);
    struct parked *p, *next;

    for (p = TAILQ_FIRST(&takes); p; p = next) {
        next = TAILQ_NEXT(p, link);
        if (p->host == h) {
            fall_back(p->conn);
        }
    }
    setup_go_on(&h->waiting, UINT_MAX);
}

/* ---- the responder ---- */

/* Is it an address of @park that the BIND leads to, or comes from? */
static bool is_about(const struct park *park, const struct peer_bind *b)
{
    return strcmp(park->network, b->network) == 0 &&
           gid_equal(&park->gid, park->ours ? &b->dgid : &b->sgid);
}

/* That which @t is about; it is nobody else's from now on.  NULL: there is none. */
static struct parked *find(struct peer *from, const struct peer_take *t)
{
    struct park *park = park_find(t->token);
    struct parked *p = park && park->host->peer == from && is_about(park, &t->bind)
                           ? park_take_number(park, t->number)
                           : NULL;

    if (p) {
        park_begin_to_end(park);
    }
    return p;
}

/* @p is to be the stream of @c, as @t says, whose hello is @peer. */
static void attach(struct conn *c, struct parked *p, const struct peer_take *t,
                   const struct hello *peer)
{
    setup_arrived(c);
    take_attach_no_more(c); /* it has another one now */
    startup_arrived_no_more(c);
    p->conn = c;
    p->take = g_memdup2(t, sizeof(*t));
    p->peer = g_memdup2(peer, sizeof(*peer));
    c->attaching = p;
    be_in(p, &tokens, TOKEN_NS);
    conn_owe(c, OWED_ATTACH);
}

bool take_pay_attach(struct conn *c)
{
    struct parked *p = c->attaching;
    const uint64_t *token = p->take->bind.token;
    struct peer_taken a = {
        .answer = {.token = {token[0], token[1]}, .incarnation = c->incarnation}};
    struct hello own;
    bool had = c->s, ok;

    ok = startup_agree(c, p->peer, &own) && (p->framing.ord || !startup_wants_reads(c));
    hello_put(&own, a.hello);
    a.answer.result = ok ? PEER_BIND_OK : PEER_BIND_NOT_YET;
    if (peer_send_taken(p->host->peer, &a) && ok) {
        conn_up(c, p->fd, &p->framing, true, &own, p->peer);
        p->fd = -1;
        announce_taken(p);
        c->peer = p->host->peer;
    } else {
        p->host->refused++;
    }
    attach_over(c);
    return had || conn_waits(c);
}

void take_came(struct peer *from, const struct peer_take *t)
{
    struct peer_taken a = {.answer = {.token = {t->bind.token[0], t->bind.token[1]},
                                      .result = PEER_BIND_REFUSED}};
    struct parked *p = find(from, t);
    struct conn *c = p ? setup_check_bind(from, &t->bind, &a.answer) : NULL;
    struct hello peer;

    if (!c || c->initiator ||
        !startup_hears(c, t->hello, sizeof(t->hello), t->bind.token, &peer)) {
        a.answer.result =
            a.answer.result == PEER_BIND_OK ? PEER_BIND_REFUSED : a.answer.result;
        peer_send_taken(from, &a);
        if (p) {
            parked_free(p);
        }
        park_host(from)->refused++;
    } else {
        attach(c, p, t, &peer);
    }
}

void take_close(void)
{
    if (look_timer) {
        g_source_remove(look_timer);
        look_timer = 0;
    }
}
