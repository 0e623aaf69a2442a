/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Transport "tcp", who connects, and when.
 *
 *   initiator                                   responder
 *   BIND {addresses, QPNs, token}  -- link -->  is the queue pair there and ready?
 *                                  <-- link --  OK, or NOT_YET
 *   a flow of the channel between both VMs, or a TCP connection; see handshake.c
 *
 * Of two queue pairs the one whose (GID, QPN) is less is the initiator, always, so
 * attempts do not cross.  The responder's side may want a stream first: its BIND makes
 * the initiator ask, and is answered by BUSY.
 *
 * A token is random, made by the initiator for one try, and comes to the responder by
 * a link that is authenticated; the MPA Request must show it, once, from that link's
 * host, within AWAIT_NS.
 *
 * The initiator chooses.  While a channel is being made it waits (joining), with what was
 * agreed on.
 *
 * Without links (path=tcp or rnic, one daemon) BINDs go by local.c; peer_moves.c says
 * what becomes of all this when a peer moves.
 *
 * Nothing is tried anew here: start() asks again while there is something to send.
 *
 * Threads: the main thread; setup_ask() is any thread's, by a list under asks_lock and an
 * eventfd.
 */
#include "transport/iwarp/setup/bind.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/fdwatch.h"
#include "transport/iwarp/flow.h"
#include "transport/iwarp/iwarp.h"
#include "transport/iwarp/linger.h"
#include "transport/transports.h"

/*
 * ns: until a BIND is sent once more; of an answer to it, which a busy daemon may give
 * late; of the connection that was agreed on.
 */
#define ASK_NS    200000000u
#define ANSWER_NS 5000000000u
#define AWAIT_NS  5000000000u
/* Asks in one turn. */
#define ASK_TURN 64u

static GHashTable *asked, *awaited; /* of struct setup_token */

static pthread_mutex_t asks_lock = PTHREAD_MUTEX_INITIALIZER; /* protects asks */
static STAILQ_HEAD(, conn) asks = STAILQ_HEAD_INITIALIZER(asks);
static int asks_fd = -1;
static guint asks_watch;
static void setup_run_asks(void);
static struct fdwatch_later asks_later = {.fn = setup_run_asks};

/* ---- tokens ---- */

static guint token_hash(gconstpointer p)
{
    return (guint)((const struct setup_token *)p)->token[0];
}

static gboolean token_equal(gconstpointer a, gconstpointer b)
{
    return memcmp(((const struct setup_token *)a)->token,
                  ((const struct setup_token *)b)->token, sizeof(uint64_t[2])) == 0;
}

static struct conn *conn_of_token(GHashTable *table, const uint64_t token[2])
{
    struct setup_token key = {.token = {token[0], token[1]}}, *t;

    t = g_hash_table_lookup(table, &key);
    return t && now_ns() < t->until ? t->conn : NULL;
}

static void token_drop(GHashTable *table, struct setup_token *t)
{
    if (t->until) {
        g_hash_table_remove(table, t);
        t->until = 0;
    }
}

/* False: somebody has that token already. */
static bool token_set(GHashTable *table, struct setup_token *t, struct conn *c,
                      const uint64_t token[2], uint64_t ns)
{
    struct setup_token key = {.token = {token[0], token[1]}};

    token_drop(table, t);
    if (g_hash_table_contains(table, &key)) {
        return false;
    }
    *t = (struct setup_token){{token[0], token[1]}, now_ns() + ns, c};
    g_hash_table_add(table, t);
    return true;
}

struct conn *setup_awaited(const uint64_t token[2])
{
    return conn_of_token(awaited, token);
}

void setup_arrived(struct conn *c)
{
    token_drop(awaited, &c->awaited);
}

/* ---- a try ---- */

static struct conn_list joining = TAILQ_HEAD_INITIALIZER(joining);

/* @p NULL: it waits for no channel. */
static void setup_set_joins(struct conn *c, struct rnic_pair *p)
{
    if (c->joins) {
        TAILQ_REMOVE(&joining, c, join_link);
        rnic_pair_let_go(c->joins);
    }
    c->joins = p;
    if (p) {
        rnic_pair_hold(p);
        TAILQ_INSERT_TAIL(&joining, c, join_link);
        atomic_store(&c->is_joining, true); /* until the setup that follows says */
    }
}

/* What was asked for is there, or is wanted no more. */
void setup_ask_over(struct conn *c)
{
    setup_set_joins(c, NULL);
    atomic_store(&c->is_joining, false);
    token_drop(asked, &c->asked);
    c->ask_again = 0;
}

/* The try has failed: start() is to say so. */
void setup_try_failed(struct conn *c)
{
    setup_ask_over(c);
    if (conn_is_trying(c)) {
        conn_defer(c, DEFERRED_TRY_FAILED);
    }
}

/* Is the queue pair one that could take messages, or has to say why it does not? */
bool setup_is_ready(const struct conn *c)
{
    uint32_t state = atomic_load(&c->qp->state);

    return atomic_load(&c->qp->req.bound) &&
           (state == PVRDMA_QPS_RTR || state == PVRDMA_QPS_RTS ||
            state == PVRDMA_QPS_SQD || state == PVRDMA_QPS_SQE ||
            (state == PVRDMA_QPS_ERR && atomic_load(&c->qp->resp.failed_status)));
}

/* ---- BINDs ---- */

static bool setup_send_bind(struct peer *peer, const struct peer_bind *b)
{
    if (peer) {
        return peer_send_bind(peer, b);
    }
    loop_send_bind(b);
    return true;
}

static bool setup_send_answer(struct peer *peer, const struct peer_bind_answer *a)
{
    if (peer) {
        return peer_send_bind_answer(peer, a);
    }
    loop_send_answer(a);
    return true;
}

/*
 * The daemon that has @c's peer; NULL without links.  False: it is not known, and asked
 * for.
 */
bool setup_peer_of(const struct conn *c, struct peer **peer)
{
    struct remote *remote = atomic_load(&c->route->remote);
    bool known = remote || (tcp_forced && atomic_load(&c->route->vm));

    *peer = remote ? remote->peer : NULL;
    if (!known) {
        route_ask(c->route, c->vm);
    }
    return known;
}

/* Numbers are fetched by the dozen; each is used once, and not kept. */
static void random_token(uint64_t token[2])
{
    static uint64_t pool[32][2];
    static unsigned left;

    if (!left) {
        while (getrandom(pool, sizeof(pool), 0) != sizeof(pool)) {
        }
        left = G_N_ELEMENTS(pool);
    }
    left--;
    memcpy(token, pool[left], sizeof(pool[left]));
    memset(pool[left], 0, sizeof(pool[left]));
}

/* ---- shares ---- */

static struct share_pool all_streams;
static GHashTable *all_ports; /* of struct share_pool, by peer */

void setup_begin_shares(struct tcp_vm *net)
{
    if (!all_streams.max) {
        all_streams.max = share_of_descriptors();
    }
    net->streams.pool = &all_streams;
    LIST_INIT(&net->ports);
}

void setup_end_shares(struct tcp_vm *net)
{
    struct port_share *p;

    while ((p = LIST_FIRST(&net->ports))) {
        LIST_REMOVE(p, link);
        g_free(p);
    }
}

static struct share_pool *ports_to(struct peer *peer)
{
    struct share_pool *pool = g_hash_table_lookup(all_ports, peer);

    if (!pool) {
        pool = g_new0(struct share_pool, 1);
        pool->max = share_of_ports();
        g_hash_table_insert(all_ports, peer, pool);
    }
    return pool;
}

static struct port_share *port_share(struct tcp_vm *net, struct peer *peer)
{
    struct share_pool *pool = ports_to(peer);
    struct port_share *p;

    LIST_FOREACH(p, &net->ports, link)
    {
        if (p->share.pool == pool) {
            return p;
        }
    }
    p = g_new0(struct port_share, 1);
    p->share.pool = pool;
    LIST_INSERT_HEAD(&net->ports, p, link);
    return p;
}

static void setup_leave_ports(struct conn *c)
{
    if (c->ports) {
        share_give(&c->ports->share);
        c->ports = NULL;
    }
}

/*
 * A queue pair has its place among the VM's connections from its first try until it is
 * reset, whatever becomes of its streams; its port is one towards where its peer is.
 */
static bool setup_get_share(struct conn *c, struct peer *peer)
{
    struct port_share *p = c->initiator ? port_share(c->net, peer) : NULL;

    if (!c->has_share) {
        c->has_share = share_take(&c->net->streams);
        c->net->net.connections += c->has_share;
    }
    if (c->ports != p) {
        setup_leave_ports(c); /* its peer was somewhere else */
    }
    if (c->has_share && p && !c->ports && share_take(&p->share)) {
        c->ports = p;
    }
    return c->has_share && c->ports == p;
}

void setup_drop(struct conn *c)
{
    setup_ask_over(c);
    token_drop(awaited, &c->awaited);
    setup_leave_ports(c);
}

static void setup_leave_share(struct conn *c)
{
    if (c->has_share) {
        c->has_share = false;
        share_give(&c->net->streams);
        c->net->net.connections--;
        c->net->is_full = false;
    }
    setup_leave_ports(c);
}

/* False: its VM has its share.  Said once, until it has less again. */
static bool setup_has_share(struct conn *c, struct peer *peer)
{
    struct tcp_vm *net = c->net;

    if (setup_get_share(c, peer)) {
        return true;
    }
    net->net.over_share++;
    if (!net->is_full) {
        net->is_full = true;
        log_vm(LOG_LVL_WARN, c->vm,
               "its share of %s is used up: its other queue pairs get none",
               c->has_share ? "the ports towards another host" : "connections");
    }
    return false;
}

/* There is no try now; who wants one asks again when there can be one. */
static void setup_not_now(struct conn *c)
{
    if (conn_is_trying(c)) {
        conn_defer(c, DEFERRED_NOT_NOW);
    }
}

void setup_try_again(struct conn *c)
{
    setup_not_now(c); /* first: there is no moment in which it waits for nothing */
    setup_ask(c);
    setup_ask_over(c);
}

/*
 * The token of a BIND that is sent now.  If there is no answer yet to one that was sent
 * before, it is the same: either answer will do, or a daemon that is slower than ASK_NS
 * would never be heard.
 */
static bool setup_ask_token(struct conn *c, uint64_t token[2])
{
    uint64_t now = now_ns();

    c->ask_again = now + ASK_NS;
    if (now < c->asked.until) {
        memcpy(token, c->asked.token, sizeof(c->asked.token));
        return true;
    }
    random_token(token);
    return token_set(asked, &c->asked, c, token, ANSWER_NS);
}

static void setup_bind_of(const struct conn *c, struct peer_bind *b)
{
    *b = (struct peer_bind){
        .sgid = c->path.sgid,
        .dgid = c->path.dgid,
        .sqpn = c->path.sqpn,
        .dqpn = c->path.dqpn,
        .incarnation = c->incarnation,
    };
    g_strlcpy(b->network, c->network, sizeof(b->network));
}

/* A stream is wanted. */
static void setup_begin(struct conn *c)
{
    struct peer_bind b;
    struct peer *peer;

    if (c->setup || c->joins || now_ns() < c->ask_again) {
        return; /* it is under way */
    }
    if (!setup_is_ready(c)) {
        return;
    }
    if (route_is_held(c->route) || atomic_load(&c->vm->dp.paused)) {
        setup_not_now(c); /* one of the two stands still */
        return;
    }
    if (!setup_peer_of(c, &peer) && atomic_load(&c->route->asked) == ROUTE_ASKED) {
        return; /* place_changed() comes here again */
    }
    moves_catch_up(c);
    if (c->location.holder && !setup_has_share(c, peer)) {
        return; /* as if nobody had answered: the try takes its time */
    }
    if (peer && !peer_hears(peer)) {
        return; /* likewise: it asks again when that is over (moves_peer_heard()) */
    }
    setup_bind_of(c, &b);
    if (!c->location.holder || !setup_ask_token(c, b.token) ||
        !setup_send_bind(peer, &b)) {
        setup_try_failed(c);
    }
}

/* The connection that @b is about, of one of this host's queue pairs. */
static struct conn *setup_conn_of_bind(const struct peer_bind *b)
{
    const char *network = directory_network(b->network);
    const struct route *route = network ? route_find(network, &b->dgid) : NULL;
    struct vm *vm = route ? atomic_load(&route->vm) : NULL;
    struct qp *qp = vm ? objects_qp_by_qpn(&vm->objects, b->dqpn) : NULL;
    struct conn *c = qp ? qp->req.conn : NULL;

    if (!c || !gid_equal(&b->sgid, &c->path.dgid) || b->sqpn != c->path.dqpn ||
        !gid_equal(&b->dgid, &c->path.sgid) || !setup_is_ready(c)) {
        return NULL;
    }
    return c;
}

/*
 * May the queue pair that @b is about be connected with @from's?  @a is the answer.
 * Returns its connection if that is OK, or BUSY since it is the initiator's; else NULL.
 */
static struct conn *setup_check_bind(struct peer *from, const struct peer_bind *b,
                                     struct peer_bind_answer *a)
{
    struct conn *c = setup_conn_of_bind(b);
    struct peer *owner;

    *a = (struct peer_bind_answer){.token = {b->token[0], b->token[1]},
                                   .result = PEER_BIND_NOT_YET};
    if (c && !setup_peer_of(c, &owner)) {
        c = NULL; /* until it is known whose that address is */
    } else if (c && owner != from) {
        log_vm(LOG_LVL_WARN, c->vm,
               "peer %s: a connection from an address that the peer does not have",
               peer_name(from));
        a->result = PEER_BIND_REFUSED;
        c = NULL;
    } else if (c && !c->initiator && !setup_has_share(c, from)) {
        c = NULL;
    }
    if (c) {
        moves_catch_up(c);
        flows_channels(c->net); /* the peer may want one */
        a->incarnation = c->incarnation;
        a->result = c->initiator ? PEER_BIND_BUSY : PEER_BIND_OK;
    }
    return c;
}

void setup_bind_came(struct peer *from, const struct peer_bind *b)
{
    struct peer_bind_answer a;
    struct conn *c = setup_check_bind(from, b, &a);

    if (c && !c->initiator && !token_set(awaited, &c->awaited, c, b->token, AWAIT_NS)) {
        a.result = PEER_BIND_REFUSED;
    }
    setup_send_answer(from, &a);
    if (c && c->initiator && !(now_ns() - c->up_at < ASK_NS && c->phase == CONN_UP)) {
        setup_begin(c); /* it knows that there is no stream, if we do or not */
    }
}

/* ---- the connection ---- */

/* The pair of its VM with that at @peer, which is to have a channel; NULL: they have
 * none. */
static struct rnic_pair *setup_want(const struct conn *c, struct peer *peer)
{
    struct rnic_vm *rv = flows_channels(c->net);

    return rv ? rnic_pair_want(rv, peer, c->location.claim.owner, c->network) : NULL;
}

/* The peer, which is at @peer, awaits it. */
static void setup_connect(struct conn *c, struct peer *peer)
{
    struct rnic_pair *p = setup_want(c, peer);
    enum rnic_pair_state state = p ? rnic_pair_state(p) : RNIC_PAIR_NONE;

    if (state == RNIC_PAIR_UP) {
        handshake_join(c, p);
    } else if (state == RNIC_PAIR_MAKING) {
        setup_set_joins(c, p);
    } else {
        handshake_connect(c, peer);
    }
}

void setup_is_up(struct conn *c)
{
    struct rnic_pair *p =
        c->reliable && !flow_is_carrier(c->s) ? setup_want(c, c->peer) : NULL;

    if (p && rnic_pair_state(p) == RNIC_PAIR_UP && rnic_pair_channel(p)) {
        conn_defer(c, DEFERRED_CHANNEL);
    }
}

void setup_pair_changed(struct rnic_pair *p)
{
    struct conn *c, *next, *last = TAILQ_LAST(&joining, conn_list);
    bool more = last;

    for (c = TAILQ_FIRST(&joining); more; c = next) {
        next = TAILQ_NEXT(c, join_link);
        more = c != last; /* it may be waiting again */
        if (c->joins == p) {
            setup_set_joins(c, NULL);
            setup_connect(c, rnic_pair_peer(p));
        }
    }
    if (moves_to_channel(p) && rnic_pair_state(p) == RNIC_PAIR_NONE) {
        rnic_pair_want(rnic_pair_vm(p), rnic_pair_peer(p), rnic_pair_owner(p),
                       rnic_vm_of(rnic_pair_vm(p))->objects.network);
    }
}

void setup_answer_came(struct peer *from, const struct peer_bind_answer *a)
{
    struct conn *c = conn_of_token(asked, a->token);

    if (!c || c->setup || c->joins) {
        return;
    }
    if (a->result == PEER_BIND_BUSY && !c->initiator) {
        setup_ask_over(c); /* it comes; until then start() waits */
    } else if (a->result == PEER_BIND_OK && c->initiator) {
        c->asked.until = now_ns() + SETUP_FRAMES_NS;
        setup_connect(c, from);
    } else {
        setup_try_failed(c);
    }
}

/* ---- asks ---- */

/* There are some, where there were none, or more than were looked at. */
static void setup_tell_asks(void)
{
    uint64_t one = 1;

    if (!worker_self()) {
        fdwatch_later(&asks_later);
    } else if (write(asks_fd, &one, sizeof(one)) < 0) {
        return; /* the counter is full: it is seen */
    }
}

/* It is in @asks from now on, or not.  Under asks_lock. */
static void setup_be_asking(struct conn *c, bool asks_now)
{
    if (c->asks) {
        STAILQ_REMOVE(&asks, c, conn, ask_link);
    }
    c->asks = asks_now;
    if (asks_now) {
        STAILQ_INSERT_TAIL(&asks, c, ask_link);
    }
}

void setup_ask(struct conn *c)
{
    bool first;

    pthread_mutex_lock(&asks_lock);
    first = STAILQ_EMPTY(&asks);
    if (!c->asks) {
        setup_be_asking(c, true);
    }
    pthread_mutex_unlock(&asks_lock);
    if (first) {
        setup_tell_asks();
    }
}

bool setup_waits(struct conn *c)
{
    bool waits;

    pthread_mutex_lock(&asks_lock);
    waits = c->asks || atomic_load(&c->deferred) || atomic_load(&c->is_joining);
    pthread_mutex_unlock(&asks_lock);
    return waits;
}

static struct conn *setup_next_ask(void)
{
    struct conn *c;

    pthread_mutex_lock(&asks_lock);
    c = STAILQ_FIRST(&asks);
    if (c) {
        setup_be_asking(c, false);
    }
    pthread_mutex_unlock(&asks_lock);
    return c;
}

static void setup_run_asks(void)
{
    struct conn *c;

    for (unsigned n = 0; n < ASK_TURN; n++) {
        c = setup_next_ask();
        if (!c) {
            return;
        }
        /* A stream to a former place is none. */
        if (c->phase != CONN_UP || (c->deferred & DEFERRED_MOVED)) {
            setup_begin(c);
        }
    }
    setup_tell_asks();
}

static gboolean setup_on_asks(int fd, GIOCondition ready, gpointer unused)
{
    uint64_t told;

    if (read(fd, &told, sizeof(told)) > 0) {
        setup_run_asks();
    }
    return G_SOURCE_CONTINUE;
}

void setup_know(struct conn *c)
{
    moves_add(c);
}

void setup_forget(struct conn *c)
{
    pthread_mutex_lock(&asks_lock);
    setup_be_asking(c, false);
    pthread_mutex_unlock(&asks_lock);
    moves_remove(c);
    setup_leave_share(c);
}

/* ---- start and stop ---- */

static const struct peer_ops ops = {.bind = setup_bind_came,
                                    .bind_answer = setup_answer_came,
                                    .heard = moves_peer_heard,
                                    .accepted = handshake_accepted};

bool tcp_open(bool forced, GError **errp)
{
    tcp_forced = forced;
    asked = g_hash_table_new(token_hash, token_equal);
    awaited = g_hash_table_new(token_hash, token_equal);
    all_streams = (struct share_pool){0};
    all_ports = g_hash_table_new_full(NULL, NULL, NULL, g_free);
    moves_open();
    asks_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (asks_fd < 0) {
        g_set_error(errp, PVRDMA_ERROR, 0, "eventfd: %s", g_strerror(errno));
        return false;
    }
    asks_watch = fdwatch_add(asks_fd, G_IO_IN, setup_on_asks, NULL);
    peer_set_ops(&ops);
    return flows_open(errp) && (!forced || loop_open(errp));
}

void tcp_use(const struct daemon_config *cfg)
{
    moves_drop_former_peers();
    flows_use(cfg);
    if (tcp_forced || cfg->peers) {
        transport_local = &transport_tcp;
    }
}

void tcp_close(void)
{
    peer_set_ops(NULL);
    moves_close();
    handshake_close();
    flows_close();
    loop_close();
    deferred_close();
    linger_close();
    if (asks_fd >= 0) {
        fdwatch_remove(asks_watch);
        fdwatch_not_later(&asks_later);
        close(asks_fd);
        asks_fd = -1;
    }
    g_clear_pointer(&asked, g_hash_table_destroy);
    g_clear_pointer(&awaited, g_hash_table_destroy);
    g_clear_pointer(&all_ports, g_hash_table_destroy);
}
