/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What waits to be sent to a peer.
 *
 * A peer has a queue for each VM's datagrams, which workers fill, another one for each
 * VM's management datagrams, and one for all else, which goes first.  The VMs' are served
 * in turn, a datagram each, so nobody waits behind another one's flood.  What waits is
 * bounded in bytes: of each kind, and what one VM has for all peers.  Of what a peer may
 * have of a kind a VM has no more than it leaves free, but one datagram in any case: who
 * floods drops his own only.  What does not fit is dropped and counted.  While a link is
 * down nothing waits.
 *
 * Whoever queues something wakes the main thread, once until it has looked; only that
 * writes to sockets.  A message counts until its last byte is with the kernel.
 *
 * Threads: any for peer_send_datagram() and what makes its arguments, under the queue's
 * lock; the main thread for the rest.
 */
#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/fdwatch.h"
#include "transport/link/internal.h"

static int wake_fd = -1;
static guint wake_watch;

/* ---- messages and who pays for them ---- */

struct peer_account *peer_account_new(uint64_t max)
{
    struct peer_account *a = g_new0(struct peer_account, 1);

    atomic_init(&a->refs, 1);
    a->max = max;
    return a;
}

void peer_account_unref(struct peer_account *account)
{
    if (account && atomic_fetch_sub(&account->refs, 1) == 1) {
        g_free(account);
    }
}

/* What a message counts as: small ones are not free. */
#define OVERHEAD 16u /* of malloc() */
static uint64_t cost(const struct peer_out *out)
{
    return OVERHEAD + sizeof(*out) + out->len;
}

static _Atomic uint64_t *queued_of(struct peer_account *account,
                                   const struct peer_out *out)
{
    return out->mad ? &account->queued_mads : &account->queued;
}

/* False: it has too much. */
static bool charge(struct peer_account *account, const struct peer_out *out)
{
    uint64_t max = out->mad ? PEER_MAX_MADS_OF : account->max;
    _Atomic uint64_t *queued = queued_of(account, out);
    uint64_t now = atomic_load_explicit(queued, memory_order_relaxed);

    do {
        if (now + cost(out) > max) {
            return false;
        }
    } while (!atomic_compare_exchange_weak(queued, &now, now + cost(out)));
    atomic_fetch_add(&account->refs, 1);
    return true;
}

struct peer_out *peer_out_new(const struct peer_msg *m)
{
    bool data = m->type == PEER_MSG_DATAGRAM;
    size_t room = sizeof(struct peer_out) + PEER_MSG_MAX - PEER_MAX_DATA;
    struct peer_out *out = g_malloc(room + (data ? m->datagram.len : 0));

    out->next = NULL;
    out->account = NULL;
    out->mad = data && m->datagram.dqpn == 1;
    out->len = (uint32_t)peer_msg_put(m, out->bytes);
    /* As it counts: many small ones may wait. */
    return g_realloc(out, sizeof(*out) + out->len);
}

void peer_out_free(struct peer_out *out)
{
    if (out->account) {
        atomic_fetch_sub(queued_of(out->account, out), cost(out));
        peer_account_unref(out->account);
    }
    g_free(out);
}

/* ---- a queue ---- */

static unsigned kind_of(const struct peer_out *out)
{
    return !out->account ? QUEUE_CONTROL : out->mad ? QUEUE_MAD : QUEUE_DATA;
}

/* An account's flows: pointers to it are even. */
static void *key_of(const struct peer_out *out)
{
    return (uint8_t *)out->account + out->mad;
}

static void flow_init(struct peer_flow *f, void *key)
{
    *f = (struct peer_flow){.key = key, .last = &f->first};
}

static void flow_put(struct peer_flow *f, struct peer_out *out)
{
    *f->last = out;
    f->last = &out->next;
    f->bytes += cost(out);
}

static struct peer_out *flow_get(struct peer_flow *f)
{
    struct peer_out *out = f->first;

    if (out) {
        f->first = out->next;
        f->last = out->next ? f->last : &f->first;
        f->bytes -= cost(out);
        out->next = NULL;
    }
    return out;
}

void queue_init(struct peer_queue *q)
{
    memset(q, 0, sizeof(*q));
    pthread_mutex_init(&q->lock, NULL);
    flow_init(&q->control, NULL);
    TAILQ_INIT(&q->ready);
    q->flows = g_hash_table_new(NULL, NULL);
}

void queue_fini(struct peer_queue *q)
{
    queue_close(q);
    g_hash_table_destroy(q->flows);
    pthread_mutex_destroy(&q->lock);
}

void queue_open(struct peer_queue *q, uint64_t max_data)
{
    pthread_mutex_lock(&q->lock);
    q->max_data = max_data;
    q->open = true;
    pthread_mutex_unlock(&q->lock);
}

/* Of datagrams, in turn.  The lock is held. */
static struct peer_out *next_datagram(struct peer_queue *q)
{
    struct peer_flow *f = TAILQ_FIRST(&q->ready);
    struct peer_out *out;

    if (!f) {
        return NULL;
    }
    out = flow_get(f);
    TAILQ_REMOVE(&q->ready, f, link);
    if (f->first) {
        TAILQ_INSERT_TAIL(&q->ready, f, link);
    } else {
        g_hash_table_remove(q->flows, f->key);
        g_free(f);
    }
    return out;
}

static struct peer_out *next_out(struct peer_queue *q)
{
    struct peer_out *out = flow_get(&q->control);

    return out ? out : next_datagram(q);
}

void queue_close(struct peer_queue *q)
{
    struct peer_out *left = NULL, *out;

    pthread_mutex_lock(&q->lock);
    q->open = false;
    while ((out = next_out(q))) {
        q->bytes[kind_of(out)] -= cost(out);
        q->dropped++;
        out->next = left;
        left = out;
    }
    pthread_mutex_unlock(&q->lock);
    while ((out = left)) {
        left = out->next;
        peer_out_free(out);
    }
}

/* Its flow, if there is room for it; the lock is held.  NULL: there is none. */
static struct peer_flow *flow_for(struct peer_queue *q, const struct peer_out *out)
{
    unsigned kind = kind_of(out);
    uint64_t max = kind == QUEUE_MAD ? PEER_MAX_MADS : q->max_data, left;
    struct peer_flow *f;

    if (kind == QUEUE_CONTROL) {
        return cost(out) + q->bytes[kind] <= PEER_MAX_CONTROL ? &q->control : NULL;
    }
    left = max - MIN(max, q->bytes[kind]);
    f = g_hash_table_lookup(q->flows, key_of(out));
    if (f) {
        return f->bytes + cost(out) <= left ? f : NULL;
    }
    f = g_new(struct peer_flow, 1); /* the first one is always taken */
    flow_init(f, key_of(out));
    TAILQ_INSERT_TAIL(&q->ready, f, link);
    g_hash_table_insert(q->flows, f->key, f);
    return f;
}

static bool queue_push(struct peer_queue *q, struct peer_out *out)
{
    struct peer_flow *f;

    pthread_mutex_lock(&q->lock);
    f = q->open ? flow_for(q, out) : NULL;
    if (f) {
        flow_put(f, out);
        q->bytes[kind_of(out)] += cost(out);
    } else {
        q->dropped++;
    }
    pthread_mutex_unlock(&q->lock);
    return f;
}

struct peer_out *queue_pop(struct peer_queue *q)
{
    struct peer_out *out;

    pthread_mutex_lock(&q->lock);
    out = next_out(q);
    pthread_mutex_unlock(&q->lock);
    return out;
}

void queue_done(struct peer_queue *q, struct peer_out *out, bool sent)
{
    pthread_mutex_lock(&q->lock);
    q->bytes[kind_of(out)] -= cost(out);
    q->dropped += !sent;
    pthread_mutex_unlock(&q->lock);
    peer_out_free(out);
}

uint64_t queue_bytes(struct peer_queue *q, uint64_t *dropped)
{
    uint64_t bytes;

    pthread_mutex_lock(&q->lock);
    bytes = q->bytes[QUEUE_CONTROL] + q->bytes[QUEUE_MAD] + q->bytes[QUEUE_DATA];
    *dropped = q->dropped;
    pthread_mutex_unlock(&q->lock);
    return bytes;
}

/* ---- sending ---- */

static void wake(struct peer *peer)
{
    uint64_t one = 1;

    if (!atomic_exchange(&peer->kicked, true) && wake_fd >= 0) {
        /* It cannot fail but for a full counter, and then it is readable. */
        (void)!write(wake_fd, &one, sizeof(one));
    }
}

bool peer_send_datagram(struct peer *peer, struct peer_account *account,
                        struct peer_out *out)
{
    if (!charge(account, out)) {
        pthread_mutex_lock(&peer->queue.lock);
        peer->queue.dropped++;
        pthread_mutex_unlock(&peer->queue.lock);
        peer_out_free(out);
        return false;
    }
    out->account = account;
    if (!queue_push(&peer->queue, out)) {
        peer_out_free(out);
        return false;
    }
    wake(peer);
    return true;
}

bool peer_send_control(struct peer *peer, const struct peer_msg *m)
{
    struct peer_out *out = peer_out_new(m);

    if (!queue_push(&peer->queue, out)) {
        peer_out_free(out);
        return false;
    }
    wake(peer);
    return true;
}

/* Of a link that is down nothing is lost: it is said when that is up. */
static bool send_if_up(struct peer *peer, const struct peer_msg *m)
{
    return peer_is_up(peer) && peer_send_control(peer, m);
}

bool peer_send_bind(struct peer *peer, const struct peer_bind *bind)
{
    struct peer_msg m = {.type = PEER_MSG_BIND, .bind = *bind};

    return send_if_up(peer, &m);
}

bool peer_send_bind_answer(struct peer *peer, const struct peer_bind_answer *answer)
{
    struct peer_msg m = {.type = PEER_MSG_BIND_ANSWER, .answer = *answer};

    return send_if_up(peer, &m);
}

bool peer_knows_channels(const struct peer *peer)
{
    return peer->link && (link_hello(peer->link)->features & PEER_FEATURE_CHANNELS);
}

/* A daemon that knows no channels breaks the link at what it does not know. */
static bool send_of_channels(struct peer *peer, const struct peer_msg *m)
{
    return peer_knows_channels(peer) && send_if_up(peer, m);
}

bool peer_send_nic(struct peer *peer, const struct peer_nic *nic)
{
    struct peer_msg m = {.type = PEER_MSG_NIC, .nic = *nic};

    return send_of_channels(peer, &m);
}

bool peer_send_channel(struct peer *peer, const struct peer_channel *channel)
{
    struct peer_msg m = {.type = PEER_MSG_CHANNEL, .channel = *channel};

    return send_of_channels(peer, &m);
}

bool peer_send_channel_answer(struct peer *peer, const struct peer_channel_answer *answer)
{
    struct peer_msg m = {.type = PEER_MSG_CHANNEL_ANSWER, .channel_answer = *answer};

    return send_of_channels(peer, &m);
}

bool peer_send_claim(struct peer *peer, enum peer_msg_type type,
                     const struct peer_claim *claim)
{
    struct peer_msg m = {.type = type, .claim = *claim};

    return send_if_up(peer, &m);
}

static gboolean on_wake(gint fd, GIOCondition cond, gpointer unused)
{
    GPtrArray *all = peers_all();
    uint64_t n;

    (void)!read(fd, &n, sizeof(n));
    for (guint i = 0; i < all->len; i++) {
        struct peer *peer = all->pdata[i];

        if (atomic_exchange(&peer->kicked, false) && peer->link) {
            link_kick(peer->link);
        }
    }
    return G_SOURCE_CONTINUE;
}

void queues_start(void)
{
    wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_fd < 0) {
        g_error("eventfd: %s", g_strerror(errno));
    }
    wake_watch = fdwatch_add(wake_fd, G_IO_IN, on_wake, NULL);
}

void queues_stop(void)
{
    fdwatch_remove(wake_watch);
    close(wake_fd);
    wake_fd = -1;
}
