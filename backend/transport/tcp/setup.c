/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Transport "tcp", how a stream comes about.
 *
 *   initiator                                   responder
 *   BIND {addresses, QPNs, token}  -- link -->  is the queue pair there and ready?
 *                                  <-- link --  OK, or NOT_YET
 *   TCP connect, MPA Request {hello}  ------->  the token is one that is awaited
 *                                     <-------  MPA Reply {hello}
 *   first frame, then messages        ------->  from here on it may send, too
 *
 * Of two queue pairs the one whose (GID, QPN) is less is the initiator, always, so
 * attempts do not cross.  The responder's side may want a stream first: its BIND makes
 * the initiator ask, and is answered by BUSY.
 *
 * A token is random, made by the initiator for one try, and comes to the responder by
 * a link that is authenticated; the MPA Request must show it, once, within
 * AWAIT_NS.  So a connection that comes to the port by itself gets to nothing but this
 * file's parser.
 *
 * Without links (path=tcp, one daemon) BINDs go from this file to itself.
 *
 * Nothing is tried anew here: start() asks again while there is something to send.
 *
 * Threads: the main thread; setup_ask() is any thread's, by a list under asks_lock and an
 * eventfd.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "fdwatch.h"
#include "transport/tcp/conn.h"
#include "transport/tcp/tcp.h"
#include "transport/transports.h"

/*
 * ns: until a BIND is sent once more; of an answer to it, which a busy daemon may give
 * late; of the connection that was agreed on; of the frames.
 */
#define ASK_NS    200000000u
#define ANSWER_NS 5000000000u
#define AWAIT_NS  5000000000u
#define FRAMES_NS 5000000000u
#define LOOK_MS   500u
/* In one turn of the main loop, for those whose peers have moved. */
#define CHANGES_US 1000

/* Connections that have come and not shown their token, of all hosts and of each. */
#define MAX_ACCEPTED 4096u
#define MAX_OF_HOST  64u
#define BACKLOG      4096
#define ACCEPT_TURN  32u
/* Asks in one turn. */
#define ASK_TURN 64u

enum setup_state { CONNECTING, WAIT_REPLY, WAIT_REQUEST };

/* A TCP connection on its way to be a stream. */
struct setup {
    TAILQ_ENTRY(setup) link;
    enum setup_state state;
    int fd;
    guint watch; /* 0: none is needed yet */
    GIOCondition cond;
    uint64_t until;               /* ns */
    struct conn *conn;            /* the initiator's; it cancels this if it goes */
    struct sockaddr_storage from; /* of one that has come; AF_UNSPEC: this daemon */
    struct hello own;
    size_t have;
    uint8_t in[MPA_MAX_STARTUP + 1]; /* one more shows that it is too much */
};

static const struct mpa_config mpa_config = {
    .enhanced = true,
    .crc = true,
    .p2p = true,
    .rtr = MPA_RTR_WRITE,
    .ird = TCP_DEPTH,
    .max_ird = TCP_DEPTH,
    .ord = TCP_DEPTH,
};

static struct conn_list conns = TAILQ_HEAD_INITIALIZER(conns); /* all there are */
static TAILQ_HEAD(, setup) setups = TAILQ_HEAD_INITIALIZER(setups);
static unsigned n_accepted;
static guint look_timer;
static GHashTable *asked, *awaited; /* of struct setup_token */

/* Those who send to one address. */
struct followers {
    struct conn_list conns;
    bool changed;      /* in changes: its place, or whether it is held */
    struct conn *next; /* then: who has not been told */
    STAILQ_ENTRY(followers) link;
};

static GHashTable *by_route; /* of struct followers */
static STAILQ_HEAD(, followers) changes = STAILQ_HEAD_INITIALIZER(changes);
static guint changes_idle;

static pthread_mutex_t asks_lock = PTHREAD_MUTEX_INITIALIZER; /* protects asks */
static STAILQ_HEAD(, conn) asks = STAILQ_HEAD_INITIALIZER(asks);
static int asks_fd = -1;
static guint asks_watch;

/* Without links. */
static int loop_fd = -1;
static guint loop_watch, loop_idle;
static struct sockaddr_storage loop_address;
static GQueue loop = G_QUEUE_INIT; /* of struct loop_msg */

struct loop_msg {
    bool is_answer;
    union {
        struct peer_bind bind;
        struct peer_bind_answer answer;
    };
};

/* ---- tokens --------------------------------------------------------------------- */

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

/* ---- what both sides share ------------------------------------------------------ */

/* What was asked for is there, or is wanted no more. */
static void ask_over(struct conn *c)
{
    token_drop(asked, &c->asked);
    c->ask_again = 0;
}

/* The try was in vain: start() is to say so. */
static void in_vain(struct conn *c)
{
    ask_over(c);
    vm_token_take(c->vm);
    if (c->trying && !c->s) {
        c->trying = false;
        c->refused = true;
    }
    vm_token_release(c->vm);
}

static void unwatch(struct setup *s)
{
    if (s->watch) {
        fdwatch_remove(s->watch);
        s->watch = 0;
    }
}

static void setup_free(struct setup *s, bool close_fd)
{
    TAILQ_REMOVE(&setups, s, link);
    unwatch(s);
    if (close_fd) {
        close(s->fd);
    }
    if (s->conn) {
        s->conn->setup = NULL;
    } else {
        n_accepted--;
    }
    g_free(s);
}

static void setup_failed(struct setup *s, const char *why)
{
    struct conn *c = s->conn;

    log_msg(LOG_LVL_DEBUG, "a connection was not made: %s", why);
    setup_free(s, true);
    if (c) {
        in_vain(c);
    }
}

static gboolean look(gpointer unused)
{
    uint64_t now = now_ns();
    struct setup *s, *next;

    for (s = TAILQ_FIRST(&setups); s; s = next) {
        next = TAILQ_NEXT(s, link);
        if (now >= s->until) {
            setup_failed(s, "it takes too long");
        }
    }
    if (!TAILQ_EMPTY(&setups)) {
        return G_SOURCE_CONTINUE;
    }
    look_timer = 0;
    return G_SOURCE_REMOVE;
}

static gboolean on_socket(int fd, GIOCondition ready, gpointer opaque);
static bool peer_of(const struct conn *c, struct peer **peer);
static struct place place_of(const struct route *route);
static bool is_there(const struct conn *c);
static void catch_up(struct conn *c);

static void wait_for(struct setup *s, GIOCondition cond)
{
    if (s->watch && s->cond == cond) {
        return;
    }
    unwatch(s);
    s->cond = cond;
    s->watch = fdwatch_add(s->fd, cond, on_socket, s);
}

static struct setup *setup_new(enum setup_state state, int fd, struct conn *c)
{
    struct setup *s = g_new0(struct setup, 1);
    int one = 1;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    s->state = state;
    s->fd = fd;
    s->conn = c;
    s->until = now_ns() + FRAMES_NS;
    TAILQ_INSERT_TAIL(&setups, s, link);
    if (!look_timer) {
        look_timer = g_timeout_add(LOOK_MS, look, NULL);
    }
    return s;
}

/* A socket that has sent nothing yet takes that much, once it is connected.  0 or errno.
 */
static int send_frame(int fd, struct mpa_frame *f, const struct hello *own)
{
    uint8_t data[HELLO_SIZE], out[MPA_MAX_STARTUP];
    ssize_t n;
    size_t len;

    hello_put(own, data);
    f->data = data;
    f->data_len = sizeof(data);
    len = mpa_put(f, out);
    n = send(fd, out, len, MSG_DONTWAIT | MSG_NOSIGNAL);
    return n == (ssize_t)len ? 0 : n < 0 ? errno : ENOBUFS;
}

/*
 * The frame that is awaited, out of what has come.  True: *f is it; false: it is not all
 * there and waited for, or @s has failed and is gone.
 */
static bool read_frame(struct setup *s, enum mpa_kind kind, struct mpa_frame *f)
{
    ssize_t n = recv(s->fd, s->in + s->have, sizeof(s->in) - s->have, MSG_DONTWAIT);
    enum iwarp_error error;
    size_t size;

    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        wait_for(s, G_IO_IN);
        return false;
    }
    if (n <= 0) {
        setup_failed(s, n < 0 ? g_strerror(errno) : "the peer has closed it");
        return false;
    }
    s->have += (size_t)n;
    error = mpa_get(kind, s->in, s->have, f, &size);
    if (error || s->have > size) {
        setup_failed(s, "not the frame that MPA begins with");
        return false;
    }
    if (s->have < size) {
        wait_for(s, G_IO_IN);
    }
    return s->have == size;
}

/* Is the queue pair one that could take messages, or has to say why it does not? */
static bool is_ready(const struct conn *c)
{
    uint32_t state = atomic_load(&c->qp->state);

    return c->qp->req.bound && (state == PVRDMA_QPS_RTR || state == PVRDMA_QPS_RTS ||
                                state == PVRDMA_QPS_SQD || state == PVRDMA_QPS_SQE ||
                                (state == PVRDMA_QPS_ERR && c->failed_status));
}

/* ---- the initiator ----------------------------------------------------------------- */

/* As soon as the connection takes it, which may be at once. */
static void send_request(struct setup *s)
{
    struct conn *c = s->conn;
    struct mpa_frame request;
    int err;

    vm_token_take(c->vm);
    conn_down(c);
    conn_hello(c, &s->own);
    vm_token_release(c->vm);
    memcpy(s->own.token, c->asked.token, sizeof(s->own.token));
    mpa_request(&mpa_config, &request);
    err = send_frame(s->fd, &request, &s->own);
    if (err == EAGAIN) {
        wait_for(s, G_IO_OUT);
    } else if (err) {
        setup_failed(s, g_strerror(err));
    } else {
        s->state = WAIT_REPLY;
        wait_for(s, G_IO_IN);
    }
}

/* If the peer's queue pair has failed, for a message of ours: that is to be known. */
static void hear_of_failure(struct conn *c, const struct hello *peer)
{
    if (peer->failed_status && peer->heard == c->incarnation) {
        c->peer_failed_status = peer->failed_status;
        c->peer_failed_seq = peer->failed_seq;
    }
}

static void take_reply(struct setup *s)
{
    struct conn *c = s->conn;
    struct mpa_agreed agreed;
    struct framing framing;
    struct mpa_frame reply;
    struct hello peer;
    int fd = s->fd;

    if (!read_frame(s, MPA_REPLY, &reply)) {
        return;
    }
    if (!hello_get(reply.data, reply.data_len, &peer) ||
        memcmp(peer.token, s->own.token, sizeof(peer.token)) != 0 ||
        peer.unreliable == c->reliable) {
        setup_failed(s, "it is not a daemon's, or not this one's");
        return;
    }
    if (reply.reject) {
        vm_token_take(c->vm);
        hear_of_failure(c, &peer);
        vm_token_release(c->vm);
        setup_failed(s, "refused");
        return;
    }
    if (mpa_conclude(&mpa_config, &reply, &agreed) || agreed.rtr != MPA_RTR_WRITE) {
        setup_failed(s, "MPA: no agreement");
        return;
    }
    framing = (struct framing){agreed.crc, agreed.send_markers, 0};
    if (!tx_first_frame(fd, &framing)) {
        setup_failed(s, "the first frame could not be sent");
        return;
    }
    ask_over(c);
    vm_token_take(c->vm);
    if (!c->s && is_ready(c) && is_there(c)) {
        conn_up(c, fd, &framing, &s->own, &peer);
        c->up_at = now_ns();
        peer_of(c, &c->peer);
        setup_free(s, false);
    } else {
        setup_free(s, true);
    }
    vm_token_release(c->vm);
}

static void connected(struct setup *s)
{
    int error = 0;
    socklen_t len = sizeof(error);

    if (getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0 || error) {
        setup_failed(s, g_strerror(error ? error : errno));
        return;
    }
    send_request(s);
}

/*
 * Between VMs of this daemon there is no network that pacing would spare: it only has
 * the sender wait for a timer.  So no congestion control that paces (BBR may be the
 * host's); before connect() and listen(), for a socket that has begun to pace goes on.
 */
static void dont_pace(int fd)
{
    static const char plain[] = "reno"; /* the one that is always there */

    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, plain, sizeof(plain) - 1);
}

/* The responder awaits us. */
static void connect_to(struct conn *c, const struct sockaddr_storage *to,
                       const struct sockaddr_storage *from)
{
    int fd = socket(to->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0),
        one = 1;

    if (fd < 0) {
        log_msg(LOG_LVL_WARN, "no socket for a connection: %s", g_strerror(errno));
        in_vain(c);
        return;
    }
    if (to == &loop_address) {
        dont_pace(fd);
    }
    if (from && from->ss_family != AF_UNSPEC) {
        /* The port is chosen at connect(), so that they do not run out. */
        setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one));
        if (bind(fd, (const struct sockaddr *)from, peer_address_len(from)) < 0) {
            log_msg(LOG_LVL_WARN, "bind: %s", g_strerror(errno));
        }
    }
    if (connect(fd, (const struct sockaddr *)to, peer_address_len(to)) < 0 &&
        errno != EINPROGRESS) {
        log_msg(LOG_LVL_DEBUG, "a connection was not made: %s", g_strerror(errno));
        close(fd);
        in_vain(c);
        return;
    }
    c->setup = setup_new(CONNECTING, fd, c);
    send_request(c->setup);
}

/* ---- the responder ------------------------------------------------------------------
 */

static void take_request(struct setup *s)
{
    struct mpa_agreed agreed;
    struct mpa_frame request, reply;
    struct hello own, peer;
    struct conn *c;
    bool refuse;
    int fd = s->fd;

    if (!read_frame(s, MPA_REQUEST, &request)) {
        return;
    }
    c = hello_get(request.data, request.data_len, &peer)
            ? conn_of_token(awaited, peer.token)
            : NULL;
    if (!c || peer.unreliable == c->reliable || !request.enhanced || !request.p2p ||
        !(request.rtr & MPA_RTR_WRITE)) {
        setup_failed(s, "nobody awaits it");
        return;
    }
    token_drop(awaited, &c->awaited);
    vm_token_take(c->vm);
    conn_down(c);
    conn_hello(c, &own);
    memcpy(own.token, peer.token, sizeof(own.token));
    hear_of_failure(c, &peer);
    refuse = c->failed_status || peer.failed_status || !is_ready(c) || !is_there(c);
    mpa_accept(&mpa_config, &request, &reply, &agreed);
    reply.reject = refuse;
    if (send_frame(fd, &reply, &own) == 0 && !refuse) {
        setup_free(s, false);
        conn_up(c, fd, &(struct framing){agreed.crc, agreed.send_markers, 0}, &own,
                &peer);
        peer_of(c, &c->peer);
    } else {
        setup_free(s, true);
    }
    vm_token_release(c->vm);
}

/* How many of these have come from there? */
static unsigned n_of_host(const struct sockaddr_storage *from)
{
    const struct setup *s;
    unsigned n = 0;

    TAILQ_FOREACH(s, &setups, link)
    {
        n += s->state == WAIT_REQUEST && config_same_host(&s->from, from);
    }
    return n;
}

/* A daemon's Request is there as a whole, as a rule: what waits here is others'. */
static void accepted(int fd, const struct sockaddr_storage *from)
{
    struct setup *s;

    if (n_accepted >= MAX_ACCEPTED || (from && n_of_host(from) >= MAX_OF_HOST)) {
        close(fd);
        return;
    }
    n_accepted++;
    s = setup_new(WAIT_REQUEST, fd, NULL);
    if (from) {
        s->from = *from;
    }
    take_request(s);
}

static gboolean on_socket(int fd, GIOCondition ready, gpointer opaque)
{
    struct setup *s = opaque;

    switch (s->state) {
    case CONNECTING:
        connected(s);
        break;
    case WAIT_REPLY:
        take_reply(s);
        break;
    default:
        take_request(s);
        break;
    }
    return G_SOURCE_CONTINUE; /* what has gone has removed it */
}

/* ---- BINDs
 * ----------------------------------------------------------------------------- */

static bool send_bind(struct peer *peer, const struct peer_bind *b);
static bool send_answer(struct peer *peer, const struct peer_bind_answer *a);

/*
 * The daemon that has @c's peer; NULL without links.  False: it is not known, and asked
 * for.
 */
static bool peer_of(const struct conn *c, struct peer **peer)
{
    struct remote *remote = atomic_load(&c->route->remote);

    *peer = remote ? remote->peer : NULL;
    if (!remote && !tcp_forced) {
        route_ask(c->route, c->vm);
    }
    return remote || tcp_forced;
}

static void random_token(uint64_t token[2])
{
    while (getrandom(token, 2 * sizeof(token[0]), 0) != 2 * sizeof(token[0])) {
    }
}

static bool has_stream(struct conn *c)
{
    bool has;

    vm_token_take(c->vm);
    has = c->s && !c->s->broken && !c->s->closing;
    vm_token_release(c->vm);
    return has;
}

/* There is no try now; who wants one asks again when there can be one. */
static void not_now(struct conn *c)
{
    vm_token_take(c->vm);
    c->trying = false;
    vm_token_release(c->vm);
}

/*
 * The token of a BIND that is sent now.  If there is no answer yet to one that was sent
 * before, it is the same: either answer will do, or a daemon that is slower than ASK_NS
 * would never be heard.
 */
static bool ask_token(struct conn *c, uint64_t token[2])
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

/* A stream is wanted. */
static void begin(struct conn *c)
{
    struct peer_bind b = {
        .sgid = c->path.sgid,
        .dgid = c->path.dgid,
        .sqpn = c->path.sqpn,
        .dqpn = c->path.dqpn,
        .incarnation = c->incarnation,
    };
    struct peer *peer;

    if (c->setup || now_ns() < c->ask_again) {
        return; /* it is under way */
    }
    if (!is_ready(c)) {
        return;
    }
    if (route_is_held(c->route) || atomic_load(&c->vm->dp.paused)) {
        not_now(c); /* one of the two stands still */
        return;
    }
    g_strlcpy(b.network, c->network, sizeof(b.network));
    if (!peer_of(c, &peer) && atomic_load(&c->route->asked) == ROUTE_ASKED) {
        return; /* place_changed() comes here again */
    }
    catch_up(c);
    if (!c->place.who || !ask_token(c, b.token) || !send_bind(peer, &b)) {
        in_vain(c);
    }
}

/* The connection that @b is about, of one of this host's queue pairs. */
static struct conn *conn_of_bind(const struct peer_bind *b)
{
    GQuark network = g_quark_try_string(b->network);
    const struct route *route =
        network ? route_find(g_quark_to_string(network), &b->dgid) : NULL;
    struct vm *vm = route ? atomic_load(&route->vm) : NULL;
    struct qp *qp = vm ? objects_qp_by_qpn(&vm->objects, b->dqpn) : NULL;
    struct conn *c = qp ? qp->req.conn : NULL;

    if (!c || !gid_equal(&b->sgid, &c->path.dgid) || b->sqpn != c->path.dqpn ||
        !gid_equal(&b->dgid, &c->path.sgid) || !is_ready(c)) {
        return NULL;
    }
    return c;
}

static void bind_came(struct peer *from, const struct peer_bind *b)
{
    struct conn *c = conn_of_bind(b);
    struct peer_bind_answer a = {.token = {b->token[0], b->token[1]},
                                 .result = PEER_BIND_NOT_YET};
    struct peer *owner;

    if (c && !peer_of(c, &owner)) {
        c = NULL; /* until it is known whose that address is */
    } else if (c && owner != from) {
        log_vm(LOG_LVL_WARN, c->vm,
               "peer %s: a connection from an address it does not have", peer_name(from));
        a.result = PEER_BIND_REFUSED;
        c = NULL;
    }
    if (c) {
        catch_up(c);
        a.incarnation = c->incarnation;
        a.result = c->initiator ? PEER_BIND_BUSY
                   : token_set(awaited, &c->awaited, c, b->token, AWAIT_NS)
                       ? PEER_BIND_OK
                       : PEER_BIND_REFUSED;
    }
    send_answer(from, &a);
    if (c && c->initiator && !(now_ns() - c->up_at < ASK_NS && has_stream(c))) {
        begin(c); /* it knows that there is no stream, if we do or not */
    }
}

static void answer_came(struct peer *from, const struct peer_bind_answer *a)
{
    struct conn *c = conn_of_token(asked, a->token);

    if (!c || c->setup) {
        return;
    }
    if (a->result == PEER_BIND_BUSY && !c->initiator) {
        ask_over(c); /* it comes; until then start() waits */
    } else if (a->result == PEER_BIND_OK && c->initiator) {
        c->asked.until = now_ns() + FRAMES_NS;
        connect_to(c, from ? peer_address(from) : &loop_address,
                   from ? peer_own_address(from) : NULL);
    } else {
        in_vain(c);
    }
}

/* ---- places ---------------------------------------------------------------------------
 */

static struct place place_of(const struct route *route)
{
    const struct vm *vm = atomic_load(&route->vm);
    const struct remote *remote = atomic_load(&route->remote);

    if (vm) {
        return (struct place){vm, {{vm->owner[0], vm->owner[1]}, vm->generation}};
    }
    return remote ? (struct place){remote->peer, remote->claim} : (struct place){NULL};
}

static bool same_place(const struct place *a, const struct place *b)
{
    return a->who == b->who && a->claim.owner[0] == b->claim.owner[0] &&
           a->claim.owner[1] == b->claim.owner[1] &&
           a->claim.generation == b->claim.generation;
}

/* Nothing that is under way leads to where the peer is now. */
static void drop_setup(struct conn *c)
{
    ask_over(c);
    token_drop(awaited, &c->awaited);
    if (c->setup) {
        setup_free(c->setup, true);
    }
    c->peer = NULL;
    c->place = (struct place){NULL};
}

/* Is the peer still where all of @c belongs to? */
static bool is_there(const struct conn *c)
{
    struct place now = place_of(c->route);

    return same_place(&c->place, &now);
}

/* From now on all of it belongs to where the peer is now. */
static void catch_up(struct conn *c)
{
    if (c->place.who && !is_there(c)) {
        drop_setup(c);
        vm_token_take(c->vm);
        conn_follow(c);
        vm_token_release(c->vm);
    }
    c->place = place_of(c->route);
}

/*
 * Where @c's peer is has changed, maybe.  What belongs to a place where it is not any
 * more is dropped; when it can be reached, a stream is asked for at once, by both sides,
 * and who waited goes on.
 */
static void follow(struct conn *c)
{
    bool anew = !is_there(c), up;

    catch_up(c);
    up = c->place.who && !route_is_held(c->route);
    if (up) {
        vm_token_take(c->vm);
        conn_reachable(c, anew);
        vm_token_release(c->vm);
    }
    if (up && !c->is_self && (tcp_forced || !atomic_load(&c->route->vm))) {
        setup_ask(c); /* which looks whether there is a stream */
    }
}

static gboolean run_changes(gpointer unused)
{
    gint64 until = g_get_monotonic_time() + CHANGES_US;
    struct followers *f;

    for (unsigned n = 1; (f = STAILQ_FIRST(&changes)); n++) {
        struct conn *c = f->next;

        if (!c) {
            STAILQ_REMOVE_HEAD(&changes, link);
            f->changed = false;
            continue;
        }
        f->next = TAILQ_NEXT(c, same);
        follow(c);
        if (n % 16 == 0 && g_get_monotonic_time() >= until) {
            return G_SOURCE_CONTINUE;
        }
    }
    changes_idle = 0;
    return G_SOURCE_REMOVE;
}

/* The directory's watcher: later, since its caller may hold a token. */
static void place_changed(struct route *route)
{
    struct followers *f = g_hash_table_lookup(by_route, route);

    if (!f) {
        return;
    }
    f->next = TAILQ_FIRST(&f->conns);
    if (!f->changed) {
        f->changed = true;
        STAILQ_INSERT_TAIL(&changes, f, link);
    }
    if (!changes_idle) {
        changes_idle = g_idle_add_full(G_PRIORITY_DEFAULT, run_changes, NULL, NULL);
    }
}

static void followers_add(struct conn *c)
{
    struct followers *f = g_hash_table_lookup(by_route, c->route);

    if (!f) {
        f = g_new0(struct followers, 1);
        TAILQ_INIT(&f->conns);
        g_hash_table_insert(by_route, c->route, f);
    }
    TAILQ_INSERT_TAIL(&f->conns, c, same);
}

static void followers_remove(struct conn *c)
{
    struct followers *f = g_hash_table_lookup(by_route, c->route);

    if (f->next == c) {
        f->next = TAILQ_NEXT(c, same);
    }
    TAILQ_REMOVE(&f->conns, c, same);
    if (TAILQ_EMPTY(&f->conns)) {
        if (f->changed) {
            STAILQ_REMOVE(&changes, f, followers, link);
        }
        g_hash_table_remove(by_route, c->route);
    }
}

/* ---- without links --------------------------------------------------------------------
 */

static gboolean run_loop(gpointer unused)
{
    struct loop_msg *m;
    unsigned n = g_queue_get_length(&loop);

    while (n-- && (m = g_queue_pop_head(&loop))) {
        if (m->is_answer) {
            answer_came(NULL, &m->answer);
        } else {
            bind_came(NULL, &m->bind);
        }
        g_free(m);
    }
    if (!g_queue_is_empty(&loop)) {
        return G_SOURCE_CONTINUE;
    }
    loop_idle = 0;
    return G_SOURCE_REMOVE;
}

static struct loop_msg *loop_add(void)
{
    struct loop_msg *m = g_new0(struct loop_msg, 1);

    g_queue_push_tail(&loop, m);
    if (!loop_idle) {
        loop_idle = g_idle_add_full(G_PRIORITY_DEFAULT, run_loop, NULL, NULL);
    }
    return m;
}

static bool send_bind(struct peer *peer, const struct peer_bind *b)
{
    if (peer) {
        return peer_send_bind(peer, b);
    }
    loop_add()->bind = *b;
    return true;
}

static bool send_answer(struct peer *peer, const struct peer_bind_answer *a)
{
    struct loop_msg *m;

    if (peer) {
        return peer_send_bind_answer(peer, a);
    }
    m = loop_add();
    m->is_answer = true;
    m->answer = *a;
    return true;
}

static gboolean on_loop_listener(int fd, GIOCondition ready, gpointer unused)
{
    int s = 0;

    for (unsigned n = 0; n < ACCEPT_TURN && s >= 0; n++) {
        s = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (s >= 0) {
            accepted(s, NULL);
        }
    }
    return G_SOURCE_CONTINUE;
}

static bool loop_listen(GError **errp)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);

    loop_fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (loop_fd >= 0) {
        dont_pace(loop_fd);
    }
    if (loop_fd < 0 || bind(loop_fd, (struct sockaddr *)&a, sizeof(a)) < 0 ||
        listen(loop_fd, BACKLOG) < 0 ||
        getsockname(loop_fd, (struct sockaddr *)&a, &len) < 0) {
        g_set_error(errp, PVRDMA_ERROR, 0,
                    "path=tcp: no port of the loopback interface: %s", g_strerror(errno));
        return false;
    }
    memcpy(&loop_address, &a, sizeof(a));
    loop_watch = fdwatch_add(loop_fd, G_IO_IN, on_loop_listener, NULL);
    return true;
}

/* ---- asks -----------------------------------------------------------------------------
 */

/* There are some, where there were none, or more than were looked at. */
static void tell_asks(void)
{
    uint64_t one = 1;

    if (write(asks_fd, &one, sizeof(one)) < 0) {
        return; /* the counter is full: it is seen */
    }
}

void setup_ask(struct conn *c)
{
    bool first;

    pthread_mutex_lock(&asks_lock);
    first = STAILQ_EMPTY(&asks);
    if (!c->ask_queued) {
        c->ask_queued = true;
        STAILQ_INSERT_TAIL(&asks, c, ask_link);
    }
    pthread_mutex_unlock(&asks_lock);
    if (first) {
        tell_asks();
    }
}

bool setup_waits(struct conn *c)
{
    bool waits;

    pthread_mutex_lock(&asks_lock);
    waits = c->ask_queued;
    pthread_mutex_unlock(&asks_lock);
    return waits;
}

static struct conn *next_ask(void)
{
    struct conn *c;

    pthread_mutex_lock(&asks_lock);
    c = STAILQ_FIRST(&asks);
    if (c) {
        STAILQ_REMOVE_HEAD(&asks, ask_link);
        c->ask_queued = false;
    }
    pthread_mutex_unlock(&asks_lock);
    return c;
}

static gboolean on_asks(int fd, GIOCondition ready, gpointer unused)
{
    uint64_t told;
    struct conn *c;

    if (read(fd, &told, sizeof(told)) < 0) {
        return G_SOURCE_CONTINUE;
    }
    for (unsigned n = 0; n < ASK_TURN; n++) {
        c = next_ask();
        if (!c) {
            return G_SOURCE_CONTINUE;
        }
        if (!has_stream(c)) {
            begin(c);
        }
    }
    tell_asks();
    return G_SOURCE_CONTINUE;
}

void setup_know(struct conn *c)
{
    followers_add(c);
    TAILQ_INSERT_TAIL(&conns, c, all);
}

void setup_forget(struct conn *c)
{
    followers_remove(c);
    TAILQ_REMOVE(&conns, c, all);
    pthread_mutex_lock(&asks_lock);
    if (c->ask_queued) {
        STAILQ_REMOVE(&asks, c, conn, ask_link);
        c->ask_queued = false;
    }
    pthread_mutex_unlock(&asks_lock);
    drop_setup(c);
}

/* ---- start and stop
 * ---------------------------------------------------------------------- */

static const struct peer_ops ops = {
    .bind = bind_came, .bind_answer = answer_came, .accepted = accepted};

bool tcp_open(bool forced, GError **errp)
{
    tcp_forced = forced;
    asked = g_hash_table_new(token_hash, token_equal);
    awaited = g_hash_table_new(token_hash, token_equal);
    by_route = g_hash_table_new_full(NULL, NULL, NULL, g_free);
    directory_set_watcher(place_changed);
    asks_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (asks_fd < 0) {
        g_set_error(errp, PVRDMA_ERROR, 0, "eventfd: %s", g_strerror(errno));
        return false;
    }
    asks_watch = fdwatch_add(asks_fd, G_IO_IN, on_asks, NULL);
    peer_set_ops(&ops);
    return !forced || loop_listen(errp);
}

/* A host that is no peer any more has no say in guests' memory. */
static void leave_the_gone(void)
{
    struct conn *c;

    TAILQ_FOREACH(c, &conns, all)
    {
        if (c->peer && peer_find(peer_name(c->peer)) != c->peer) {
            c->peer = NULL;
            vm_token_take(c->vm);
            conn_break(c, "its host is no peer any more");
            atomic_store(&c->net->net.ready, true);
            vm_token_release(c->vm); /* its worker looks */
        }
    }
}

void tcp_use(const struct daemon_config *cfg)
{
    leave_the_gone();
    if (tcp_forced || cfg->peers) {
        transport_local = &transport_tcp;
    }
}

void tcp_close(void)
{
    directory_set_watcher(NULL);
    peer_set_ops(NULL);
    if (changes_idle) {
        g_source_remove(changes_idle);
        changes_idle = 0;
    }
    while (!TAILQ_EMPTY(&setups)) {
        setup_free(TAILQ_FIRST(&setups), true);
    }
    if (look_timer) {
        g_source_remove(look_timer);
        look_timer = 0;
    }
    if (loop_idle) {
        g_source_remove(loop_idle);
        loop_idle = 0;
    }
    g_queue_clear_full(&loop, g_free);
    if (loop_fd >= 0) {
        fdwatch_remove(loop_watch);
        close(loop_fd);
        loop_fd = -1;
    }
    if (asks_fd >= 0) {
        fdwatch_remove(asks_watch);
        close(asks_fd);
        asks_fd = -1;
    }
    g_clear_pointer(&asked, g_hash_table_destroy);
    g_clear_pointer(&awaited, g_hash_table_destroy);
    g_clear_pointer(&by_route, g_hash_table_destroy);
}
