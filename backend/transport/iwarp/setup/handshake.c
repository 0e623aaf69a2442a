/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Transport "tcp", how a TCP connection, or a flow of a channel, becomes a stream: MPA's
 * startup frames.
 *
 *   initiator                                   responder
 *   TCP connect, MPA Request {hello}  ------->  the token is one that is awaited
 *   or OPEN {MPA Request {hello}}
 *                                     <-------  MPA Reply {hello}, or OPENED {the same}
 *   first frame, then messages        ------->  from here on it may send, too
 *
 * bind.c says when one is made, and what a token is.  A connection that comes to the
 * port by itself gets to nothing but this file's parser; of those that have not shown
 * their token there are MAX_ACCEPTED at most, and MAX_OF_HOST of each host (places.c).
 * On the loopback interface (local.c) hosts tell nobody apart: all may have what there
 * is.  A flow comes by a channel, whose peer is known, and which bounds how many wait.
 *
 * A struct setup exists until its connection is a stream or has failed, SETUP_FRAMES_NS
 * at most.  An initiator's belongs to its conn, which cancels it if it goes; a
 * responder's belongs to nobody until its Request is read.
 *
 * Threads: the main thread.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include "base/fdwatch.h"
#include "transport/iwarp/linger.h"
#include "transport/iwarp/setup/bind.h"
#include "transport/iwarp/tx.h"
#include "transport/iwarp/wire/mpa.h"
#include "transport/link/places.h"

#define LOOK_MS 500u

/* Connections that have come and not shown their token, of all hosts and of each. */
#define MAX_ACCEPTED 4096u
#define MAX_OF_HOST  64u

/* SETUP_DEFERRED: all has come, and what is to be done needs the VM's token. */
enum setup_state {
    SETUP_CONNECTING,
    SETUP_WAIT_REPLY,
    SETUP_WAIT_REQUEST,
    SETUP_DEFERRED
};

/* A TCP connection or a flow on its way to be a stream. */
struct setup {
    TAILQ_ENTRY(setup) link;
    struct setup_list *list;
    struct peer_place place; /* of one that has come and not shown its token */
    enum setup_state state;
    struct rnic_pair *pair; /* of a flow; NULL: it is a TCP connection */
    struct flow *flow;      /* NULL: an initiator's that has not begun */
    bool not_taken;         /* of a TCP connection: a channel that is up took it not */
    int fd;                 /* of a TCP connection */
    guint watch;            /* 0: none is needed yet */
    GIOCondition cond;
    uint64_t until;    /* ns */
    struct conn *conn; /* which cancels this if it goes; a responder's: SETUP_DEFERRED */
    struct framing framing; /* of an initiator's that is SETUP_DEFERRED */
    struct hello own;
    size_t have;
    uint8_t in[MPA_MAX_STARTUP + 1]; /* one more shows that it is too much */
};

/* What we offer; with sums by TCP, without by a flow. */
#define MPA_OFFER(sums)                                                     \
    {                                                                       \
        .enhanced = true, .crc = (sums), .p2p = true, .rtr = MPA_RTR_WRITE, \
        .ird = TCP_DEPTH, .max_ird = TCP_DEPTH, .ord = TCP_DEPTH            \
    }
static const struct mpa_config mpa_configs[] = {MPA_OFFER(true), MPA_OFFER(false)};

/* The initiators', and those that have come. */
TAILQ_HEAD(setup_list, setup);
static struct setup_list setups = TAILQ_HEAD_INITIALIZER(setups);
static struct setup_list accepted = TAILQ_HEAD_INITIALIZER(accepted);
static struct peer_places places = PEER_PLACES_INIT(places, MAX_ACCEPTED, MAX_OF_HOST);
static guint look_timer;

/* ---- what both sides share ---- */

static void handshake_unwatch(struct setup *s)
{
    if (s->watch) {
        fdwatch_remove(s->watch);
        s->watch = 0;
    }
}

static const struct mpa_config *setup_mpa(const struct setup *s)
{
    return &mpa_configs[s->pair != NULL];
}

/* @ends: what it has is no stream's, and ends. */
static void setup_free(struct setup *s, bool ends)
{
    TAILQ_REMOVE(s->list, s, link);
    handshake_unwatch(s);
    if (ends && s->flow) {
        flow_drop(s->flow);
    } else if (ends && !s->pair) {
        close(s->fd);
    }
    if (s->conn && s->conn->setup == s) {
        s->conn->setup = NULL;
        atomic_store(&s->conn->is_joining, false);
        conn_defer_no_more(s->conn, DEFERRED_HELLO | DEFERRED_STREAM);
    } else if (s->conn) {
        s->conn->arrived = NULL;
        conn_defer_no_more(s->conn, DEFERRED_REQUEST);
    }
    peer_place_leave(&s->place);
    if (s->pair) {
        rnic_pair_let_go(s->pair);
    }
    g_free(s);
}

static void setup_failed(struct setup *s, const char *why)
{
    struct conn *c = s->conn && s->conn->setup == s ? s->conn : NULL;

    log_msg(LOG_LVL_DEBUG, "a connection was not made: %s", why);
    setup_free(s, true);
    if (c) {
        setup_try_failed(c);
    }
}

/* Its channel has broken. */
static void setup_lost(struct setup *s)
{
    struct conn *c = s->conn && s->conn->setup == s ? s->conn : NULL;

    if (c) {
        setup_try_again(c); /* later */
    }
    setup_free(s, true);
}

/* Those that have begun first come first. */
static void handshake_end_late(struct setup_list *list, uint64_t now)
{
    struct setup *s;

    while ((s = TAILQ_FIRST(list)) && now >= s->until) {
        setup_failed(s, "it takes too long");
    }
}

static gboolean handshake_look(gpointer unused)
{
    uint64_t now = now_ns();

    handshake_end_late(&setups, now);
    handshake_end_late(&accepted, now);
    if (!TAILQ_EMPTY(&setups) || !TAILQ_EMPTY(&accepted)) {
        return G_SOURCE_CONTINUE;
    }
    look_timer = 0;
    return G_SOURCE_REMOVE;
}

static gboolean handshake_on_socket(int fd, GIOCondition ready, gpointer opaque);

static void handshake_wait_for(struct setup *s, GIOCondition cond)
{
    if (s->watch && s->cond == cond) {
        return;
    }
    handshake_unwatch(s);
    s->cond = cond;
    s->watch = fdwatch_add(s->fd, cond, handshake_on_socket, s);
}

static struct setup *setup_new(enum setup_state state, int fd, struct setup_list *list)
{
    struct setup *s = g_new0(struct setup, 1);

    s->state = state;
    s->fd = fd;
    s->list = list;
    s->until = now_ns() + SETUP_FRAMES_NS;
    TAILQ_INSERT_TAIL(list, s, link);
    if (!look_timer) {
        look_timer = g_timeout_add(LOOK_MS, handshake_look, NULL);
    }
    return s;
}

static size_t handshake_put_hello(struct mpa_frame *f, const struct hello *own,
                                  uint8_t out[MPA_MAX_STARTUP])
{
    uint8_t data[HELLO_SIZE];

    hello_put(own, data);
    f->data = data;
    f->data_len = sizeof(data);
    return mpa_put(f, out);
}

/* A socket that has sent nothing yet takes that much, once it is connected.  0 or errno.
 */
static int handshake_send_hello(int fd, struct mpa_frame *f, const struct hello *own)
{
    uint8_t out[MPA_MAX_STARTUP];
    size_t size = handshake_put_hello(f, own, out);
    ssize_t n = send(fd, out, size, MSG_DONTWAIT | MSG_NOSIGNAL);

    return n == (ssize_t)size ? 0 : n < 0 ? errno : ENOBUFS;
}

/* What has come of the frame that is awaited; *f is it, if it is all there. */
static enum iwarp_error handshake_get(const struct setup *s, enum mpa_kind kind,
                                      struct mpa_frame *f, size_t *size)
{
    enum iwarp_error error = mpa_get(kind, s->in, s->have, f, size);

    return !error && s->have > *size ? MPA_BAD_STARTUP : error;
}

/*
 * The frame that is awaited, out of what has come.  True: *f is it; false: it is not all
 * there and waited for, or @s has failed and is gone.
 */
static bool handshake_read_frame(struct setup *s, enum mpa_kind kind, struct mpa_frame *f)
{
    ssize_t n = recv(s->fd, s->in + s->have, sizeof(s->in) - s->have, MSG_DONTWAIT);
    size_t size;

    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        handshake_wait_for(s, G_IO_IN);
        return false;
    }
    if (n <= 0) {
        setup_failed(s, n < 0 ? g_strerror(errno) : "the peer has closed it");
        return false;
    }
    s->have += (size_t)n;
    if (handshake_get(s, kind, f, &size)) {
        setup_failed(s, "malformed MPA request or reply");
        return false;
    }
    if (s->have < size) {
        handshake_wait_for(s, G_IO_IN);
    }
    return s->have == size;
}

/* What was found right when it came, of one that is SETUP_DEFERRED. */
static void handshake_reread(const struct setup *s, enum mpa_kind kind,
                             struct mpa_frame *f, struct hello *peer)
{
    size_t size;

    mpa_get(kind, s->in, s->have, f, &size);
    hello_get(f->data, f->data_len, peer);
}

static struct framing framing_of(const struct mpa_agreed *agreed)
{
    return (struct framing){.crc = agreed->crc,
                            .markers = agreed->send_markers,
                            .ird = agreed->ird,
                            .ord = agreed->ord};
}

/*
 * Does its guest mean to send READs or atomics?  One that says so later, behind a peer
 * that takes none, gets another stream (tx.c).
 */
static bool handshake_wants_reads(const struct conn *c)
{
    return c->reliable && c->qp->attr.max_rd_atomic;
}

/* ---- the initiator ---- */

static void handshake_request_sent(struct setup *s, int err)
{
    if (err == EAGAIN) {
        s->state = SETUP_CONNECTING;
        handshake_wait_for(s, G_IO_OUT);
    } else if (err) {
        setup_failed(s, g_strerror(err));
    } else {
        s->state = SETUP_WAIT_REPLY;
        handshake_wait_for(s, G_IO_IN);
    }
}

/* The VM's token is wanted for it; until then nothing that comes matters. */
static void defer_setup(struct setup *s, enum deferred_work what)
{
    handshake_unwatch(s);
    s->state = SETUP_DEFERRED;
    conn_defer(s->conn, what);
}

/* Not by the channel: the peer awaits the same token by TCP as well. */
static void handshake_by_tcp(struct setup *s)
{
    struct conn *c = s->conn;
    struct peer *peer = rnic_pair_peer(s->pair);

    setup_free(s, true);
    handshake_connect(c, peer);
    if (c->setup) {
        c->setup->not_taken = true;
    }
    atomic_store(&c->is_joining, c->setup != NULL);
}

/* By a flow, if the pair has a channel, which takes some thousands at a time. */
static void handshake_begin_flow(struct setup *s, struct mpa_frame *request)
{
    uint8_t out[MPA_MAX_STARTUP];
    size_t size = handshake_put_hello(request, &s->own, out);

    s->flow = flow_begin(s->conn->net, s->pair, out, size);
    if (!s->flow) {
        handshake_by_tcp(s);
        return;
    }
    s->flow->setup = s;
    s->state = SETUP_WAIT_REPLY;
}

bool handshake_do_hello(struct conn *c)
{
    struct setup *s = c->setup;
    struct mpa_frame request;
    bool had = c->s;

    conn_down(c);
    conn_hello(c, &s->own);
    memcpy(s->own.token, c->asked.token, sizeof(s->own.token));
    mpa_request(setup_mpa(s), &request);
    if (s->pair) {
        handshake_begin_flow(s, &request);
    } else {
        if (atomic_exchange(&c->is_joining, false)) {
            conn_try_anew(c); /* it is none of TCP's time */
        }
        handshake_request_sent(s, handshake_send_hello(s->fd, &request, &s->own));
    }
    return had;
}

/* Has the peer's queue pair failed, for a message of ours? */
static bool handshake_has_failed(const struct conn *c, const struct hello *peer)
{
    return peer->failed_status && peer->heard == c->incarnation;
}

/* There is no stream, maybe because the peer's queue pair has failed. */
static void handshake_refused(struct conn *c, const struct hello *peer)
{
    if (handshake_has_failed(c, peer)) {
        c->heard.status = peer->failed_status;
        c->heard.seq = peer->failed_seq;
        conn_defer(c, DEFERRED_FAILURE);
    }
}

/* What holds for us by @reply, if we can do with it. */
static enum iwarp_error handshake_conclude(const struct setup *s,
                                           const struct mpa_frame *reply,
                                           struct mpa_agreed *agreed)
{
    enum iwarp_error error = mpa_conclude(setup_mpa(s), reply, agreed);

    if (!error && agreed->rtr != MPA_RTR_WRITE) {
        error = MPA_NO_RTR;
    }
    return !error && !agreed->ord && handshake_wants_reads(s->conn) ? MPA_SMALL_IRD
                                                                    : error;
}

/*
 * It is complete, but for our first frame, which a flow is sent later (flow_up()).
 * False: it was not made.
 */
static bool handshake_end(struct setup *s, const struct mpa_frame *reply,
                          struct framing *framing)
{
    struct mpa_agreed agreed;
    enum iwarp_error error = handshake_conclude(s, reply, &agreed);
    uint8_t frame[TX_ALONE];
    size_t len;

    *framing = framing_of(&agreed);
    if (error) {
        if (!s->pair &&
            error != MPA_BAD_STARTUP) { /* which leaves nothing to talk about */
            linger_set_reset(s->fd, false);
            socket_send(s->fd, frame, tx_only_frame(framing, error, frame));
        }
        setup_failed(s, "MPA: no agreement");
        return false;
    }
    if (s->pair) {
        return true;
    }
    len = tx_first_frame(framing, frame);
    if (socket_send(s->fd, frame, len) != (ssize_t)len) {
        setup_failed(s, "the first frame could not be sent");
        return false;
    }
    return true;
}

/* Does a peer of @c's service say that, with that token?  It is in @peer then. */
static bool handshake_is_answer(const struct conn *c, const uint8_t *in, size_t len,
                                const uint64_t token[2], struct hello *peer)
{
    return hello_get(in, len, peer) &&
           memcmp(peer->token, token, sizeof(peer->token)) == 0 &&
           peer->unreliable != c->reliable;
}

/* All of it has come. */
static void handshake_take_reply(struct setup *s, const struct mpa_frame *reply)
{
    struct conn *c = s->conn;
    struct hello peer;

    if (!handshake_is_answer(c, reply->data, reply->data_len, s->own.token, &peer)) {
        setup_failed(s, "the reply is not from pvrdmad, or not for this connection");
        return;
    }
    if (reply->reject) {
        handshake_refused(c, &peer);
        setup_failed(s, "refused");
        return;
    }
    if (handshake_end(s, reply, &s->framing)) {
        setup_ask_over(c);
        defer_setup(s, DEFERRED_STREAM);
    }
}

static void handshake_reply(struct setup *s)
{
    struct mpa_frame reply;

    if (handshake_read_frame(s, MPA_REPLY, &reply)) {
        handshake_take_reply(s, &reply);
    }
}

/* What has come is the stream's, which there is now, or is not.  Token held. */
static void setup_up(struct setup *s, const struct framing *framing, bool ready,
                     const struct hello *own, const struct hello *peer)
{
    struct conn *c = s->conn;

    if (s->pair) {
        flow_up(c, s->flow, framing, ready, own, peer);
    } else {
        socket_up(c, s->fd, framing, ready, own, peer);
    }
    setup_peer_of(c, &c->peer);
    setup_free(s, false);
}

bool handshake_do_stream(struct conn *c)
{
    struct setup *s = c->setup;
    bool not_taken = s->not_taken;
    struct mpa_frame reply;
    struct hello peer;

    if (s->flow && !s->flow->channel) {
        setup_lost(s); /* it has just broken */
        return true;
    }
    handshake_reread(s, MPA_REPLY, &reply, &peer);
    if (!c->s && setup_is_ready(c) && moves_is_current(c)) {
        setup_up(s, &s->framing, true, &s->own, &peer);
        c->up_at = now_ns();
        if (c->s && !not_taken) {
            setup_is_up(c);
        }
    } else {
        setup_free(s, true);
    }
    return conn_waits(c);
}

static void handshake_connected(struct setup *s)
{
    int error = 0;
    socklen_t len = sizeof(error);

    if (getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0 || error) {
        setup_failed(s, g_strerror(error ? error : errno));
        return;
    }
    defer_setup(s, DEFERRED_HELLO);
}

/*
 * Between VMs of this daemon there is no network that pacing would spare: it only has
 * the sender wait for a timer.  So no congestion control that paces (BBR may be the
 * host's); before connect() and listen(), for a socket that has begun to pace goes on.
 */
void handshake_dont_pace(int fd)
{
    static const char plain[] = "reno"; /* the one that is always there */

    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, plain, sizeof(plain) - 1);
}

static void failed_to(struct vm *vm, const char *what)
{
    log_vm(LOG_LVL_WARN, vm, "%s: %s", what, g_strerror(errno));
}

/* -1: it cannot be, on the account of @vm. */
static int begin_connect(struct vm *vm, const struct sockaddr_storage *to,
                         const struct sockaddr_storage *from)
{
    int fd = socket(to->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0),
        one = 1;

    if (fd < 0) {
        failed_to(vm, "no socket for a connection");
        return -1;
    }
    linger_set_reset(fd, true); /* its port is free again at once */
    if (to == &loop_address) {
        handshake_dont_pace(fd);
    }
    if (from && from->ss_family != AF_UNSPEC) {
        /* The port is chosen at connect(), so that they do not run out. */
        setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one));
        if (bind(fd, (const struct sockaddr *)from, peer_address_len(from)) < 0) {
            failed_to(vm, "a connection is not from the address of `listen`");
        }
    }
    if (connect(fd, (const struct sockaddr *)to, peer_address_len(to)) < 0 &&
        errno != EINPROGRESS) {
        failed_to(vm, errno == EADDRNOTAVAIL
                          ? "no port is left for a connection to that host"
                          : "a connection was not made");
        close(fd);
        return -1;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    peer_keep_alive(fd);
    return fd;
}

/* The responder awaits us. */
void handshake_connect(struct conn *c, struct peer *peer)
{
    int fd = begin_connect(c->vm, peer ? peer_address(peer) : &loop_address,
                           peer ? peer_own_address(peer) : NULL);

    if (fd < 0) {
        setup_try_failed(c);
        return;
    }
    c->setup = setup_new(SETUP_CONNECTING, fd, &setups);
    c->setup->conn = c;
    defer_setup(c->setup, DEFERRED_HELLO); /* it takes the Request then, or later */
}

void handshake_join(struct conn *c, struct rnic_pair *p)
{
    atomic_store(&c->is_joining, true);
    c->setup = setup_new(SETUP_DEFERRED, -1, &setups);
    c->setup->pair = p;
    rnic_pair_hold(p);
    c->setup->conn = c;
    defer_setup(c->setup, DEFERRED_HELLO);
}

/* ---- the responder ---- */

/* A token that another host or VM has got to see is of no use to it. */
static bool is_from_its_vm(const struct rnic_pair *p, const struct conn *c)
{
    struct peer *peer;

    return setup_peer_of(c, &peer) && peer == rnic_pair_peer(p) &&
           rnic_pair_vm(p) == tcp_vm_rnic(c->net) && c->location.holder &&
           memcmp(rnic_pair_owner(p), c->location.claim.owner,
                  sizeof(c->location.claim.owner)) == 0;
}

static bool is_from_its_host(const struct setup *s, const struct conn *c)
{
    const struct sockaddr_storage *from = peer_place_from(&s->place);
    struct peer *peer;

    return setup_peer_of(c, &peer) && (peer ? config_same_host(peer_address(peer), from)
                                            : from->ss_family == AF_UNSPEC);
}

/*
 * What it says to an initiator that says @peer.  False: there is to be no stream.  Token
 * and qp->lock held.
 */
static bool handshake_agree(struct conn *c, const struct hello *peer, struct hello *own)
{
    conn_down(c);
    conn_hello(c, own);
    memcpy(own->token, peer->token, sizeof(own->token));
    if (handshake_has_failed(c, peer)) {
        conn_peer_failed(c, peer->failed_status, peer->failed_seq);
    }
    return !own->failed_status && !peer->failed_status && setup_is_ready(c) &&
           moves_is_current(c);
}

/* It counts no more among those that have not, and has time anew. */
static void has_shown_token(struct setup *s)
{
    TAILQ_REMOVE(&accepted, s, link);
    peer_place_leave(&s->place);
    s->list = &setups;
    s->until = now_ns() + SETUP_FRAMES_NS;
    TAILQ_INSERT_TAIL(&setups, s, link);
}

static bool handshake_fits(const struct mpa_frame *request)
{
    return request->enhanced && request->p2p && (request->rtr & MPA_RTR_WRITE);
}

static void handshake_arrived_no_more(struct conn *c)
{
    if (c->arrived) {
        setup_free(c->arrived, true);
    }
}

/* All of it has come. */
static void handshake_take_request(struct setup *s, const struct mpa_frame *request)
{
    struct hello peer;
    struct conn *c = hello_get(request->data, request->data_len, &peer)
                         ? setup_awaited(peer.token)
                         : NULL;

    if (!c || peer.unreliable == c->reliable || !handshake_fits(request)) {
        setup_failed(s, "no queue pair expects it");
        return;
    }
    if (s->pair ? !is_from_its_vm(s->pair, c) : !is_from_its_host(s, c)) {
        setup_failed(s, "it is not from the expected host"); /* which may come yet */
        return;
    }
    setup_arrived(c);
    handshake_arrived_no_more(c); /* there was another try meanwhile */
    has_shown_token(s);
    s->conn = c;
    c->arrived = s;
    defer_setup(s, DEFERRED_REQUEST);
}

static void handshake_request(struct setup *s)
{
    struct mpa_frame request;

    if (handshake_read_frame(s, MPA_REQUEST, &request)) {
        handshake_take_request(s, &request);
    }
}

/* The Reply goes.  False: it does not, or it says that there is to be no stream. */
static bool handshake_send_reply(struct setup *s, struct mpa_frame *reply,
                                 const struct hello *own)
{
    uint8_t out[MPA_MAX_STARTUP];

    if (!s->pair) {
        return handshake_send_hello(s->fd, reply, own) == 0 && !reply->reject;
    }
    if (reply->reject) {
        flow_refuse(s->flow, out, handshake_put_hello(reply, own, out));
        return false;
    }
    return flow_accept(s->flow, out, handshake_put_hello(reply, own, out));
}

bool handshake_do_request(struct conn *c)
{
    struct setup *s = c->arrived;
    struct mpa_agreed agreed;
    struct mpa_frame request, reply;
    struct framing framing;
    struct hello own, peer;
    bool had = c->s, refuse;

    handshake_reread(s, MPA_REQUEST, &request, &peer);
    refuse = !handshake_agree(c, &peer, &own);
    mpa_accept(setup_mpa(s), &request, &reply, &agreed);
    framing = framing_of(&agreed);
    if (!agreed.ord && handshake_wants_reads(c)) {
        reply.ord = 1; /* so it hears what is needed at least */
        refuse = true;
    }
    reply.reject = refuse;
    if (handshake_send_reply(s, &reply, &own)) {
        setup_up(s, &framing, false, &own, &peer);
    } else {
        setup_free(s, true);
    }
    return had || conn_waits(c);
}

static void handshake_lose_place(struct peer_place *p)
{
    struct setup *s = (void *)((char *)p - offsetof(struct setup, place));

    setup_failed(s, "too many at a time, of that host or of all");
}

/*
 * A daemon's Request is there as a whole, as a rule: what waits here is others'.  The
 * listener's TCP_NODELAY is the connection's.
 */
void handshake_accepted(int fd, const struct sockaddr_storage *from)
{
    static const struct sockaddr_storage none = {.ss_family = AF_UNSPEC};
    struct setup *s = setup_new(SETUP_WAIT_REQUEST, fd, &accepted);

    from = from ? from : &none;
    peer_place_take(&places, &s->place, from, handshake_lose_place);
    /* First: what is whole needs no place, nor does one go for it. */
    handshake_request(s);
    peer_places_bound(&places, from);
}

/* ---- flows ---- */

/* What was said with the news is all of the frame, or makes no sense. */
static bool handshake_said(struct setup *s, enum mpa_kind kind, const uint8_t *said,
                           size_t len, struct mpa_frame *f)
{
    size_t size;

    s->have = MIN(len, sizeof(s->in));
    if (s->have) {
        memcpy(s->in, said, s->have);
    }
    return !handshake_get(s, kind, f, &size) && s->have == size;
}

static void handshake_flow_asked(struct flow *f, const uint8_t *said, size_t len)
{
    struct setup *s = setup_new(SETUP_WAIT_REQUEST, -1, &accepted);
    struct mpa_frame request;

    s->pair = f->pair;
    rnic_pair_hold(s->pair);
    s->flow = f;
    f->setup = s;
    if (handshake_said(s, MPA_REQUEST, said, len, &request)) {
        handshake_take_request(s, &request);
    } else {
        setup_failed(s, "malformed MPA request");
    }
}

static void handshake_flow_answered(struct setup *s, bool refused, const uint8_t *said,
                                    size_t len)
{
    struct mpa_frame reply;

    if (s->state != SETUP_WAIT_REPLY) {
        return;
    }
    if (refused && !len) { /* no queue pair has said that: the channel takes none */
        handshake_by_tcp(s);
    } else if (handshake_said(s, MPA_REPLY, said, len, &reply) &&
               reply.reject == refused) {
        handshake_take_reply(s, &reply);
    } else {
        setup_failed(s, refused ? "refused" : "malformed MPA reply");
    }
}

void handshake_flow(struct flow *f, unsigned what, const uint8_t *said, size_t len)
{
    if ((what & FLOW_BROKEN) && f->setup) {
        setup_lost(f->setup);
    } else if (what & FLOW_BROKEN) {
        flow_drop(f);
    } else if (what & FLOW_ASKED) {
        handshake_flow_asked(f, said, len);
    } else if (f->setup) {
        handshake_flow_answered(f->setup, what & FLOW_REFUSED, said, len);
    }
}

static gboolean handshake_on_socket(int fd, GIOCondition ready, gpointer opaque)
{
    struct setup *s = opaque;

    switch (s->state) {
    case SETUP_CONNECTING:
        handshake_connected(s);
        break;
    case SETUP_WAIT_REPLY:
        handshake_reply(s);
        break;
    case SETUP_WAIT_REQUEST:
        handshake_request(s);
        break;
    case SETUP_DEFERRED: /* it is not watched */
        break;
    }
    return G_SOURCE_CONTINUE; /* what has gone has removed it */
}

void handshake_cancel(struct conn *c)
{
    if (c->setup) {
        setup_free(c->setup, true);
    }
    handshake_arrived_no_more(c);
}

void handshake_close(void)
{
    while (!TAILQ_EMPTY(&setups)) {
        setup_free(TAILQ_FIRST(&setups), true);
    }
    while (!TAILQ_EMPTY(&accepted)) {
        setup_free(TAILQ_FIRST(&accepted), true);
    }
    if (look_timer) {
        g_source_remove(look_timer);
        look_timer = 0;
    }
}
