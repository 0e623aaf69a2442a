/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What waits to be sent to a peer.
 *
 * A peer has two queues, one for datagrams, which workers fill, and one for all else,
 * which goes first.  Each is bounded in bytes, and so is what one VM has in all of them;
 * what does not fit is dropped and counted.  While a link is down nothing waits.
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

#include "fdwatch.h"
#include "transport/peer/internal.h"

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

/* False: it has too much. */
static bool charge(struct peer_account *account, uint64_t bytes)
{
    uint64_t now = atomic_load_explicit(&account->queued, memory_order_relaxed);

    do {
        if (now + bytes > account->max) {
            return false;
        }
    } while (!atomic_compare_exchange_weak(&account->queued, &now, now + bytes));
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
    out->len = (uint32_t)peer_msg_put(m, out->bytes);
    /* As it counts: many small ones may wait. */
    return g_realloc(out, sizeof(*out) + out->len);
}

void peer_out_free(struct peer_out *out)
{
    if (out->account) {
        atomic_fetch_sub(&out->account->queued, cost(out));
        peer_account_unref(out->account);
    }
    g_free(out);
}

/* ---- a queue ---- */

void queue_init(struct peer_queue *q)
{
    memset(q, 0, sizeof(*q));
    pthread_mutex_init(&q->lock, NULL);
    q->last[QUEUE_CONTROL] = &q->first[QUEUE_CONTROL];
    q->last[QUEUE_DATA] = &q->first[QUEUE_DATA];
}

void queue_fini(struct peer_queue *q)
{
    queue_close(q);
    pthread_mutex_destroy(&q->lock);
}

void queue_open(struct peer_queue *q, uint64_t max_data)
{
    pthread_mutex_lock(&q->lock);
    q->max_data = max_data;
    q->open = true;
    pthread_mutex_unlock(&q->lock);
}

static void free_all(struct peer_out *out)
{
    while (out) {
        struct peer_out *next = out->next;

        peer_out_free(out);
        out = next;
    }
}

void queue_close(struct peer_queue *q)
{
    struct peer_out *left[2];

    pthread_mutex_lock(&q->lock);
    q->open = false;
    for (unsigned i = 0; i < 2; i++) {
        left[i] = q->first[i];
        for (struct peer_out *out = left[i]; out; out = out->next) {
            q->bytes[i] -= cost(out);
            q->dropped++;
        }
        q->first[i] = NULL;
        q->last[i] = &q->first[i];
    }
    pthread_mutex_unlock(&q->lock);
    free_all(left[QUEUE_CONTROL]);
    free_all(left[QUEUE_DATA]);
}

static bool queue_push(struct peer_queue *q, struct peer_out *out, unsigned which)
{
    bool ok;

    pthread_mutex_lock(&q->lock);
    ok = q->open && cost(out) + q->bytes[which] <=
                        (which == QUEUE_DATA ? q->max_data : PEER_MAX_CONTROL);
    if (ok) {
        q->bytes[which] += cost(out);
        *q->last[which] = out;
        q->last[which] = &out->next;
    } else {
        q->dropped++;
    }
    pthread_mutex_unlock(&q->lock);
    return ok;
}

struct peer_out *queue_pop(struct peer_queue *q, unsigned *which)
{
    struct peer_out *out;

    pthread_mutex_lock(&q->lock);
    *which = q->first[QUEUE_CONTROL] ? QUEUE_CONTROL : QUEUE_DATA;
    out = q->first[*which];
    if (out) {
        q->first[*which] = out->next;
        if (!out->next) {
            q->last[*which] = &q->first[*which];
        }
        out->next = NULL;
    }
    pthread_mutex_unlock(&q->lock);
    return out;
}

void queue_done(struct peer_queue *q, struct peer_out *out, unsigned which, bool sent)
{
    pthread_mutex_lock(&q->lock);
    q->bytes[which] -= cost(out);
    q->dropped += !sent;
    pthread_mutex_unlock(&q->lock);
    peer_out_free(out);
}

uint64_t queue_bytes(struct peer_queue *q, uint64_t *dropped)
{
    uint64_t bytes;

    pthread_mutex_lock(&q->lock);
    bytes = q->bytes[QUEUE_CONTROL] + q->bytes[QUEUE_DATA];
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
    if (!charge(account, cost(out))) {
        pthread_mutex_lock(&peer->queue.lock);
        peer->queue.dropped++;
        pthread_mutex_unlock(&peer->queue.lock);
        peer_out_free(out);
        return false;
    }
    out->account = account;
    if (!queue_push(&peer->queue, out, QUEUE_DATA)) {
        peer_out_free(out);
        return false;
    }
    wake(peer);
    return true;
}

bool peer_send_control(struct peer *peer, const struct peer_msg *m)
{
    struct peer_out *out = peer_out_new(m);

    if (!queue_push(&peer->queue, out, QUEUE_CONTROL)) {
        peer_out_free(out);
        return false;
    }
    wake(peer);
    return true;
}

static bool can(const struct peer *peer, uint64_t feature)
{
    return peer_features(peer) & feature;
}

bool peer_send_bind(struct peer *peer, const struct peer_bind *bind)
{
    struct peer_msg m = {.type = PEER_MSG_BIND, .bind = *bind};

    return can(peer, PEER_FEATURE_BIND) && peer_send_control(peer, &m);
}

bool peer_send_bind_answer(struct peer *peer, const struct peer_bind_answer *answer)
{
    struct peer_msg m = {.type = PEER_MSG_BIND_ANSWER, .answer = *answer};

    return can(peer, PEER_FEATURE_BIND) && peer_send_control(peer, &m);
}

bool peer_send_announce(struct peer *peer, const struct peer_announce *announce)
{
    struct peer_msg m = {.type = PEER_MSG_ANNOUNCE, .announce = *announce};

    return can(peer, PEER_FEATURE_ADVANCE) && peer_send_control(peer, &m);
}

bool peer_send_take(struct peer *peer, const struct peer_take *take)
{
    struct peer_msg m = {.type = PEER_MSG_TAKE, .take = *take};

    return can(peer, PEER_FEATURE_ADVANCE) && peer_send_control(peer, &m);
}

bool peer_send_taken(struct peer *peer, const struct peer_taken *taken)
{
    struct peer_msg m = {.type = PEER_MSG_TAKEN, .taken = *taken};

    return can(peer, PEER_FEATURE_ADVANCE) && peer_send_control(peer, &m);
}

bool peer_send_claim(struct peer *peer, enum peer_msg_type type,
                     const struct peer_claim *claim)
{
    struct peer_msg m = {.type = type, .claim = *claim};

    return can(peer,
               type == PEER_MSG_PROVED ? PEER_FEATURE_PROOFS : PEER_FEATURE_CLAIMS) &&
           peer_send_control(peer, &m);
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
