/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * One TCP connection between two daemons.
 *
 *   initiator                      responder
 *   magic, HELLO  -------------->            names, versions, random numbers
 *                 <--------------  magic, HELLO
 *   AUTH          -------------->            proof of the secret
 *                 <--------------  AUTH      up
 *   up            <------------->            PING, PONG and all the rest
 *
 * Until a side has proved that it has the secret, nothing but these messages is taken
 * from it, of 512 bytes at most, and all of it has to happen within PEER_DECIDE_MS.  The
 * responder shows its proof only to who has shown his.  What breaks the rules
 * ends the connection, with a CLOSE that says why.
 *
 * A link that is up is given up when nothing has come by it for our time limit; so
 * each side sends a PING three times within the shorter of both limits, and each PING_MS
 * at least.  Long before that it is seen to be silent: what was written is
 * looked at each LOOK_MS until the other end's kernel has it.  Then peer.c calls anew,
 * and the new link takes this one's place if that comes first.
 *
 * Per turn of the main loop a link gets READ_TURN bytes or TURN_US of time for what
 * came, and WRITE_TURN bytes written.  It holds at most one read buffer and BATCH
 * messages; the rest waits in the peer's queue or in the kernel.
 *
 * Invariants: link_close() may be called at any time, from within what link_close() or
 * a message's handler calls as well; the memory goes when the last of them has
 * returned.  Main thread.
 */
#include <errno.h>
#include <string.h>

#include "base/fdwatch.h"
#include "transport/link/link.h"

#define IN_SIZE    65536u
#define READ_TURN  (4u * IN_SIZE)
#define WRITE_TURN (1u << 20)
#define TURN_US    1000
#define TURN_CHECK 16u /* messages between looks at the clock */
#define PING_MS    1700u
#define LOOK_MS    250u
#define MAX_LOOKS  4u /* with nothing heard */

/* Those from outside that are not up. */
static LIST_HEAD(, peer_link) early_links = LIST_HEAD_INITIALIZER(early_links);

static gboolean on_ready(gint fd, GIOCondition cond, gpointer opaque);

/* ---- life ---- */

static struct peer_link *link_new(enum peer_role role)
{
    struct peer_link *l = g_new0(struct peer_link, 1);

    l->role = role;
    l->stream.fd = -1;
    l->in_size = PEER_MSG_HEADER + PEER_MSG_MAX_EARLY;
    l->in = g_malloc(l->in_size);
    l->heard = l->ticked = g_get_monotonic_time();
    return l;
}

static void link_unbusy(struct peer_link *l)
{
    if (--l->busy == 0 && l->dead) {
        g_free(l->in);
        g_free(l);
    }
}

static void unwatch(struct peer_link *l)
{
    fdwatch_remove(l->watch);
    l->watch = 0;
    l->watched = 0;
}

static void set_watch(struct peer_link *l, GIOCondition want)
{
    if (want != l->watched) {
        guint old = l->watch;

        l->watch = fdwatch_add(l->stream.fd, want, on_ready, l);
        l->watched = want;
        fdwatch_remove(old);
    }
}

/* No longer one of those that nobody knows. */
static void leave_early(struct peer_link *l)
{
    if (l->place.of) {
        LIST_REMOVE(l, is_early);
        peer_place_leave(&l->place);
    }
}

/* One message at once, as far as the socket takes it: the last one. */
static void say_close(struct peer_link *l, unsigned reason)
{
    struct peer_msg m = {.type = PEER_MSG_CLOSE, .reason = (uint16_t)reason};
    uint8_t bytes[PEER_MAGIC_LEN + PEER_MSG_HEADER + 2];
    size_t magic = 0;
    struct iovec iov = {.iov_base = bytes};

    /* In the middle of another message it would be part of that. */
    if (l->early_pos < l->early_len || l->sending_pos || l->state == LINK_CONNECTING) {
        return;
    }
    if (l->role == PEER_RESPONDER && l->state == LINK_HELLO) {
        memcpy(bytes, PEER_MAGIC, PEER_MAGIC_LEN);
        magic = PEER_MAGIC_LEN;
    }
    iov.iov_len = magic + peer_msg_put(&m, bytes + magic);
    stream_write(&l->stream, &iov, 1);
}

void link_close(struct peer_link *l, unsigned tell, const char *why)
{
    struct peer *peer = l->peer;

    if (l->dead) {
        return;
    }
    l->dead = true;
    l->busy++;
    l->crossed |= tell == PEER_CLOSE_CROSSED;
    if (tell) {
        say_close(l, tell);
    }
    g_clear_handle_id(&l->timer, g_source_remove);
    g_clear_handle_id(&l->again, g_source_remove);
    g_clear_handle_id(&l->look, g_source_remove);
    unwatch(l);
    stream_close(&l->stream);
    if (l->state != LINK_UP) {
        leave_early(l);
    }
    for (unsigned i = 0; i < l->n_sending; i++) {
        queue_done(&peer->queue, l->sending[i], false);
    }
    l->n_sending = 0;
    if (peer) {
        peer_link_gone(peer, l, why, l->crossed);
    } else {
        char from[CONFIG_ADDRESS_STRLEN];

        config_format_address(&l->from, from);
        peers_self.turned_away++;
        log_about(LOG_LVL_WARN, &peers_self.strangers_log, "connection from %s: %s", from,
                  why);
    }
    link_unbusy(l);
}

void links_close_early(void)
{
    while (!LIST_EMPTY(&early_links)) {
        link_close(LIST_FIRST(&early_links), PEER_CLOSE_STOPPING, "the daemon ends");
    }
}

enum peer_role link_role(const struct peer_link *l)
{
    return l->role;
}

enum link_state link_state(const struct peer_link *l)
{
    return l->state;
}

bool link_is_silent(const struct peer_link *l)
{
    return l->silent;
}

const struct peer_hello *link_hello(const struct peer_link *l)
{
    return &l->other;
}

unsigned link_version(const struct peer_link *l)
{
    struct peer_hello own = {.min_version = PEER_VERSION_MIN,
                             .max_version = PEER_VERSION_MAX};

    return peer_msg_version(&own, &l->other);
}

void link_bytes(const struct peer_link *l, uint64_t *sent, uint64_t *received)
{
    *sent = l->stream.sent;
    *received = l->stream.received;
}

/* ---- writing ---- */

static void set_silent(struct peer_link *l, bool silent)
{
    if (silent != l->silent) {
        l->silent = silent;
        if (silent) {
            peer_link_silent(l->peer);
        } else {
            peer_link_heard(l->peer);
        }
    }
}

static gboolean on_look(gpointer opaque)
{
    struct peer_link *l = opaque;
    uint64_t left = stream_unheard(&l->stream), acked = l->stream.sent - left;

    if (!left) {
        l->look = 0;
        set_silent(l, false);
        return G_SOURCE_REMOVE;
    }
    l->looks = acked == l->acked ? l->looks + 1 : 0;
    l->acked = acked;
    set_silent(l, l->looks >= MAX_LOOKS && peer_fd_is_silent(l->stream.fd));
    return G_SOURCE_CONTINUE;
}

static void write_error(struct peer_link *l, ssize_t err)
{
    link_close(l, 0, g_strerror((int)-err));
}

/* False: not all of it is gone. */
static bool write_early(struct peer_link *l)
{
    while (l->early_pos < l->early_len) {
        struct iovec iov = {l->early + l->early_pos, l->early_len - l->early_pos};
        ssize_t n = stream_write(&l->stream, &iov, 1);

        if (n < 0) {
            if (n != -EAGAIN) {
                write_error(l, n);
            }
            return false;
        }
        l->early_pos += (size_t)n;
    }
    return true;
}

static void fill_batch(struct peer_link *l)
{
    while (l->n_sending < BATCH) {
        struct peer_out *out = queue_pop(&l->peer->queue);

        if (!out) {
            return;
        }
        l->sending[l->n_sending++] = out;
    }
}

/* @n bytes of the batch are with the kernel. */
static void sent(struct peer_link *l, size_t n)
{
    unsigned done = 0;

    l->sending_pos += n;
    while (done < l->n_sending && l->sending_pos >= l->sending[done]->len) {
        l->sending_pos -= l->sending[done]->len;
        queue_done(&l->peer->queue, l->sending[done], true);
        l->peer->sent_messages++;
        done++;
    }
    l->n_sending -= done;
    memmove(l->sending, l->sending + done, l->n_sending * sizeof(l->sending[0]));
}

static ssize_t write_batch(struct peer_link *l)
{
    struct iovec iov[BATCH];

    for (unsigned i = 0; i < l->n_sending; i++) {
        size_t skip = i ? 0 : l->sending_pos;

        iov[i].iov_base = l->sending[i]->bytes + skip;
        iov[i].iov_len = l->sending[i]->len - skip;
    }
    if (!l->look) {
        l->looks = 0;
        l->look = g_timeout_add(LOOK_MS, on_look, l);
    }
    return stream_write(&l->stream, iov, l->n_sending);
}

/* What waits, as far as the socket takes it; then watch for what is to come next. */
static void link_write(struct peer_link *l)
{
    size_t total = 0;
    bool more = false;

    if (l->state == LINK_CONNECTING) {
        return;
    }
    if (!write_early(l)) {
        more = true;
    } else if (l->state == LINK_UP) {
        for (;;) {
            ssize_t n;

            fill_batch(l);
            if (!l->n_sending) {
                break;
            }
            more = total >= WRITE_TURN;
            if (more) {
                break; /* others' turn */
            }
            n = write_batch(l);
            if (n < 0) {
                if (n != -EAGAIN) {
                    write_error(l, n);
                    return;
                }
                more = true;
                break;
            }
            total += (size_t)n;
            sent(l, (size_t)n);
        }
    }
    if (!l->dead) {
        set_watch(l, more ? G_IO_IN | G_IO_OUT : G_IO_IN);
    }
}

void link_kick(struct peer_link *l)
{
    l->busy++;
    if (!l->dead) {
        link_write(l);
    }
    link_unbusy(l);
}

void link_say(struct peer_link *l, const void *bytes, size_t len)
{
    memcpy(l->early + l->early_len, bytes, len);
    l->early_len += len;
}

static gboolean on_tick(gpointer opaque);

void link_be_up(struct peer_link *l)
{
    uint32_t limit = MIN(peers_self.timeout_ms, l->other.timeout_ms);

    l->peer->patience_ms =
        CLAMP(4 * stream_rtt_ms(&l->stream), PEER_SILENT_MS, PEER_DECIDE_MS);
    leave_early(l);
    l->state = LINK_UP;
    l->in_size = IN_SIZE;
    l->in = g_realloc(l->in, l->in_size);
    l->heard = l->ticked = g_get_monotonic_time();
    g_clear_handle_id(&l->timer, g_source_remove);
    l->timer = g_timeout_add(CLAMP(limit / 3, 10, PING_MS), on_tick, l);
    peer_link_up(l->peer, l);
}

/* ---- what comes ---- */

void link_closed(struct peer_link *l, const struct peer_msg *m)
{
    g_autofree char *why =
        g_strdup_printf("closed by the other side: %s", peer_close_text(m->reason));

    l->crossed = m->reason == PEER_CLOSE_CROSSED;
    if (l->state == LINK_UP && m->reason == PEER_CLOSE_STOPPING) { /* it has proved it */
        l->peer->ended = true;
    }
    link_close(l, 0, why);
}

void link_refuse(struct peer_link *l, const char *why)
{
    if (l->peer) {
        l->peer->refused++;
    }
    link_close(l, PEER_CLOSE_PROTOCOL, why);
}

/* Hand @arg to whoever @fn is, if there is anybody. */
#define GIVE(l, fn, arg)            \
    do {                            \
        if (fn) {                   \
            (fn)((l)->peer, (arg)); \
        } else {                    \
            (l)->peer->refused++;   \
        }                           \
    } while (0)

static void got_claim(struct peer_link *l, const struct peer_msg *m)
{
    const struct peer_claim_ops *ops = peers_self.claim_ops;
    void (*fn)(struct peer *, const struct peer_claim *) = NULL;

    if (ops) {
        fn = m->type == PEER_MSG_ASK       ? ops->ask
             : m->type == PEER_MSG_CLAIM   ? ops->claim
             : m->type == PEER_MSG_UNCLAIM ? ops->unclaim
             : m->type == PEER_MSG_HOLD    ? ops->hold
                                           : ops->proved;
    }
    GIVE(l, fn, &m->claim);
}

static void got_message(struct peer_link *l, const struct peer_msg *m)
{
    const struct peer_ops *ops = peers_self.ops;
    const struct peer_channel_ops *channels = peers_self.channel_ops;
    struct peer_msg pong = {.type = PEER_MSG_PONG, .stamp = m->stamp};

    l->peer->received_messages++;
    switch (m->type) {
    case PEER_MSG_PING:
        peer_send_control(l->peer, &pong);
        break;
    case PEER_MSG_PONG:
        if (l->pinged && m->stamp == (uint64_t)l->pinged) {
            l->peer->rtt_us = (uint64_t)(g_get_monotonic_time() - l->pinged);
            l->pinged = 0;
        }
        if (m->stamp == l->peer->echo) {
            l->peer->echo = 0;
        }
        break;
    case PEER_MSG_CLOSE:
        link_closed(l, m);
        break;
    case PEER_MSG_ASK:
    case PEER_MSG_CLAIM:
    case PEER_MSG_UNCLAIM:
    case PEER_MSG_HOLD:
    case PEER_MSG_PROVED:
        got_claim(l, m);
        break;
    case PEER_MSG_BIND:
        GIVE(l, ops ? ops->bind : NULL, &m->bind);
        break;
    case PEER_MSG_BIND_ANSWER:
        GIVE(l, ops ? ops->bind_answer : NULL, &m->answer);
        break;
    case PEER_MSG_DATAGRAM:
        GIVE(l, peers_self.datagram, &m->datagram);
        break;
    case PEER_MSG_NIC:
        GIVE(l, channels ? channels->nic : NULL, &m->nic);
        break;
    case PEER_MSG_CHANNEL:
        GIVE(l, channels ? channels->channel : NULL, &m->channel);
        break;
    case PEER_MSG_CHANNEL_ANSWER:
        GIVE(l, channels ? channels->answer : NULL, &m->channel_answer);
        break;
    default: /* a greeting again */
        link_refuse(l, "unexpected message after authentication");
        break;
    }
}

/* Take the other side's magic off the input.  False: there is more to come. */
static bool take_magic(struct peer_link *l, size_t *pos)
{
    size_t n = MIN(l->in_len, PEER_MAGIC_LEN);

    if (!l->magic) {
        if (memcmp(l->in, PEER_MAGIC, n) != 0) {
            link_refuse(l, "the remote end is not pvrdmad");
            return false;
        }
        if (n < PEER_MAGIC_LEN) {
            return false;
        }
        l->magic = true;
        *pos = PEER_MAGIC_LEN;
    }
    return true;
}

/* False: time is up at @until (us), and there are messages left. */
static bool take_messages(struct peer_link *l, gint64 until)
{
    bool all = true;
    size_t pos = 0;

    if (!take_magic(l, &pos)) {
        return true;
    }
    for (unsigned n = 1; !l->dead; n++) {
        struct peer_msg m;
        size_t size;
        bool up = l->state == LINK_UP;
        enum peer_msg_verdict v =
            peer_msg_get(l->in + pos, l->in_len - pos,
                         up ? PEER_MSG_MAX_BODY : PEER_MSG_MAX_EARLY, &m, &size);

        if (v == PEER_MSG_MORE) {
            break;
        }
        if (v == PEER_MSG_BAD || (v == PEER_MSG_SKIP && !up)) {
            link_refuse(l, "malformed message");
            return true;
        }
        if (v == PEER_MSG_SKIP) {
            l->peer->refused++;
        } else if (up) {
            got_message(l, &m);
        } else {
            greet_got(l, &m, l->in + pos, size);
        }
        pos += size;
        if (n % TURN_CHECK == 0 && g_get_monotonic_time() >= until) {
            all = false;
            break;
        }
    }
    l->in_len -= pos;
    memmove(l->in, l->in + pos, l->in_len);
    return all;
}

static gboolean on_again(gpointer opaque);

/* As much as a turn has time for. */
static void link_read(struct peer_link *l)
{
    gint64 until = g_get_monotonic_time() + TURN_US;
    size_t total = 0;

    for (;;) {
        size_t room;
        ssize_t n;

        if (!take_messages(l, until)) {
            if (!l->dead) {
                l->again = g_idle_add_full(G_PRIORITY_DEFAULT, on_again, l, NULL);
            }
            return;
        }
        if (l->dead || total >= READ_TURN) {
            return;
        }
        room = l->in_size - l->in_len;
        n = stream_read(&l->stream, l->in + l->in_len, room);
        if (n == -EAGAIN) {
            return;
        }
        if (n <= 0) {
            link_close(l, 0, n ? g_strerror((int)-n) : "the connection was closed");
            return;
        }
        l->heard = g_get_monotonic_time();
        set_silent(l, l->silent && peer_fd_is_silent(l->stream.fd));
        l->in_len += (size_t)n;
        total += (size_t)n;
    }
}

static gboolean on_late(gpointer opaque);

static void connected(struct peer_link *l)
{
    int err = stream_connected(&l->stream);

    if (err) {
        link_close(l, 0, g_strerror(-err));
        return;
    }
    l->state = LINK_HELLO;
    g_clear_handle_id(&l->timer, g_source_remove);
    l->timer = g_timeout_add(PEER_DECIDE_MS, on_late, l);
    greet(l);
}

static gboolean on_ready(gint fd, GIOCondition cond, gpointer opaque)
{
    struct peer_link *l = opaque;

    l->busy++;
    if (l->state == LINK_CONNECTING) {
        connected(l);
    } else if ((cond & ~G_IO_OUT) && !l->again) {
        link_read(l);
    }
    if (!l->dead) {
        link_write(l);
    }
    link_unbusy(l);
    return G_SOURCE_CONTINUE; /* a watch that has gone does not mind */
}

static gboolean on_again(gpointer opaque)
{
    struct peer_link *l = opaque;

    l->busy++;
    l->again = 0;
    link_read(l);
    if (!l->dead) {
        link_write(l);
    }
    link_unbusy(l);
    return G_SOURCE_REMOVE;
}

/* ---- time ---- */

static gboolean on_late(gpointer opaque)
{
    struct peer_link *l = opaque;

    l->timer = 0;
    link_close(l, 0,
               l->state == LINK_CONNECTING ? "no answer"
               : l->state == LINK_HELLO    ? "no greeting"
                                           : "no proof of the secret");
    return G_SOURCE_REMOVE;
}

static gboolean on_tick(gpointer opaque)
{
    struct peer_link *l = opaque;
    gint64 now = g_get_monotonic_time();
    gint64 limit = (gint64)peers_self.timeout_ms * 1000;
    struct peer_msg ping = {.type = PEER_MSG_PING};

    if (now - l->ticked > limit / 2) {
        l->heard = now; /* it is we who stood still: what came is not read yet */
    }
    l->ticked = now;
    if (now - l->heard >= limit) {
        l->timer = 0;
        /* If its limit is so short that it was not seen: */
        set_silent(l, l->silent || peer_fd_is_silent(l->stream.fd));
        link_close(l, 0, "no message for too long");
        return G_SOURCE_REMOVE;
    }
    if (l->pinged && now - l->pinged >= limit) {
        l->pinged = 0; /* its answer was dropped */
    }
    /* Said each time, for the other side's sake; measured one at a time. */
    ping.stamp = l->pinged ? 0 : (uint64_t)now;
    if (peer_send_control(l->peer, &ping) && !l->pinged) {
        l->pinged = now;
    }
    return G_SOURCE_CONTINUE;
}

/* ---- beginnings ---- */

struct peer_link *link_connect(struct peer *peer, int *err)
{
    struct peer_link *l = link_new(PEER_INITIATOR);

    *err = stream_connect(&l->stream, &peer->own, &peer->cfg->address);
    if (*err) {
        g_free(l->in);
        g_free(l);
        return NULL;
    }
    l->peer = peer;
    l->state = LINK_CONNECTING;
    l->timer = g_timeout_add(peer_patience_ms(peer), on_late, l);
    set_watch(l, G_IO_OUT);
    return l;
}

static void lose_place(struct peer_place *p)
{
    struct peer_link *l = (void *)((char *)p - offsetof(struct peer_link, place));

    link_close(l, 0, "too many at a time");
}

void link_accept(int fd, const struct sockaddr_storage *from, struct peer_places *places)
{
    struct peer_link *l = link_new(PEER_RESPONDER);

    stream_open(&l->stream, fd);
    l->from = *from;
    l->state = LINK_HELLO;
    l->timer = g_timeout_add(PEER_DECIDE_MS, on_late, l);
    LIST_INSERT_HEAD(&early_links, l, is_early);
    peer_place_take(places, &l->place, from, lose_place);
    set_watch(l, G_IO_IN);
    peer_places_bound(places, from);
}
