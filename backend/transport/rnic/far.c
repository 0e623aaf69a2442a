/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The other side of pairs: which NICs its daemon has, and messages to and from it.
 *
 * Daemons tell each other which of their NICs are up, when their link is up and when that
 * changes.  Within one daemon (path=rnic) messages go by a list that the main loop
 * empties later, as a link would bring them.
 *
 * A peer may say what it likes as often as it likes: a list of its own takes the place of
 * the former, and those of other NICs than before are looked at ten times a second.
 *
 * Threads: the main thread.
 */
#include <string.h>

#include "base/fdwatch.h"
#include "transport/rnic/pair_internal.h"

#define GAP_MS 100u

/* What a peer has said. */
struct far {
    struct peer *peer;
    uint8_t instance[PEER_INSTANCE_LEN]; /* of the daemon that the channels lead to */
    bool known;                          /* that */
    unsigned n, n_coming,
        all; /* of a list that comes: so far, and in all; 0: none does */
    struct peer_nic nic[PEER_MAX_NICS], coming[PEER_MAX_NICS];
    unsigned making;
    gint64 looked;
    guint timer; /* its NICs are to be looked at */
};

struct letter {
    bool is_answer;
    union {
        struct peer_channel channel;
        struct peer_channel_answer answer;
    };
};

static GHashTable *fars; /* of struct far, by peer */
static struct far own;   /* and those of this daemon */

static void run_letters(void);
static struct fdwatch_later later = {.fn = run_letters};
static GQueue letters = G_QUEUE_INIT; /* of struct letter */

/* ---- within this daemon ---- */

static void run_letters(void)
{
    unsigned n = g_queue_get_length(&letters);
    struct letter *m;

    while (n-- && (m = g_queue_pop_head(&letters))) {
        if (m->is_answer) {
            rnic_pair_answer_came(NULL, &m->answer);
        } else {
            rnic_pair_channel_came(NULL, &m->channel);
        }
        g_free(m);
    }
    if (!g_queue_is_empty(&letters)) {
        fdwatch_later(&later);
    }
}

static struct letter *add_letter(void)
{
    struct letter *m = g_new0(struct letter, 1);

    g_queue_push_tail(&letters, m);
    fdwatch_later(&later);
    return m;
}

bool rnic_far_send_channel(struct peer *peer, const struct peer_channel *c)
{
    if (peer) {
        return peer_send_channel(peer, c);
    }
    add_letter()->channel = *c;
    return true;
}

/* What has to get there, and does not: all begins anew. */
static void sent(struct peer *peer, bool ok)
{
    if (!ok && peer_is_up(peer) && peer_knows_channels(peer)) {
        peer_reset(peer, "too much waits for it");
    }
}

void rnic_far_send_answer(struct peer *peer, const struct peer_channel_answer *a)
{
    struct letter *m;

    if (peer) {
        sent(peer, peer_send_channel_answer(peer, a));
        return;
    }
    m = add_letter();
    m->is_answer = true;
    m->answer = *a;
}

/* ---- NICs ---- */

/* Those of @peer; made if need be. */
static struct far *far_of(struct peer *peer)
{
    struct far *f;

    if (!peer) {
        return &own;
    }
    f = fars ? g_hash_table_lookup(fars, peer) : NULL;
    if (!f) {
        f = g_new0(struct far, 1);
        f->peer = peer;
        fars = fars ? fars : g_hash_table_new(NULL, NULL);
        g_hash_table_insert(fars, peer, f);
    }
    return f;
}

unsigned *rnic_far_making(struct peer *peer)
{
    return &far_of(peer)->making;
}

unsigned rnic_far_nics(struct peer *peer)
{
    return far_of(peer)->n;
}

const struct peer_nic *rnic_far_nic(struct peer *peer, unsigned i)
{
    return &far_of(peer)->nic[i];
}

static void send_nics(struct peer *peer)
{
    static const struct peer_nic none = {.fabric = "-"};

    bool ok = own.n || peer_send_nic(peer, &none);

    for (unsigned i = 0; i < own.n && ok; i++) {
        ok = peer_send_nic(peer, &own.nic[i]);
    }
    sent(peer, ok);
}

void rnic_far_own_changed(void)
{
    struct rnic_cm *cm;

    memset(own.nic, 0, sizeof(own.nic));
    own.n = 0;
    TAILQ_FOREACH(cm, &rnic_cms, link)
    {
        if (cm->open && !cm->over && own.n < PEER_MAX_NICS) {
            struct peer_nic *nic = &own.nic[own.n];

            nic->i = (uint8_t)own.n++;
            nic->address = cm->address;
            g_strlcpy(nic->fabric, cm->fabric, sizeof(nic->fabric));
        }
    }
    for (unsigned i = 0; i < own.n; i++) {
        own.nic[i].n = (uint8_t)own.n;
    }
    for (struct peer *p = peer_next(NULL); p; p = peer_next(p)) {
        if (peer_is_up(p)) {
            send_nics(p);
        }
    }
}

/* ---- links ---- */

static gboolean look_at(gpointer opaque)
{
    struct far *f = opaque;

    f->timer = 0;
    f->looked = g_get_monotonic_time();
    rnic_pairs_peer_nics(f->peer);
    return G_SOURCE_REMOVE;
}

static void take_list(struct far *f)
{
    gint64 left = f->looked + GAP_MS * 1000 - g_get_monotonic_time();

    if (f->n == f->n_coming && memcmp(f->nic, f->coming, f->n * sizeof(f->nic[0])) == 0) {
        return;
    }
    f->n = f->n_coming;
    memcpy(f->nic, f->coming, sizeof(f->nic));
    if (!f->timer) {
        f->timer = g_timeout_add(left > 0 ? (guint)(left / 1000 + 1) : 0, look_at, f);
    }
}

static void nic_came(struct peer *from, const struct peer_nic *nic)
{
    struct far *f = far_of(from);

    if (nic->i == 0) {
        f->n_coming = 0;
        f->all = nic->n;
    } else if (nic->n != f->all || nic->i != f->n_coming) {
        f->all = 0;
        return; /* of a list whose beginning is not here */
    }
    if (nic->n) {
        f->coming[f->n_coming++] = *nic;
    }
    if (f->n_coming == f->all) {
        f->all = 0;
        take_list(f);
    }
}

static void link_up(struct peer *peer)
{
    struct far *f = far_of(peer);

    if (f->known && memcmp(f->instance, peer_instance(peer), sizeof(f->instance)) != 0) {
        f->n = 0; /* those of the former one */
        rnic_pairs_peer_ended(peer, "the peer's daemon is another");
    }
    memcpy(f->instance, peer_instance(peer), sizeof(f->instance));
    f->known = true;
    f->all = 0;
    send_nics(peer);
}

/* Its channels may well work on. */
static void link_down(struct peer *peer)
{
    struct far *f = far_of(peer);

    rnic_pairs_link_down(peer);
    if (peer_has_ended(peer)) {
        f->n = 0;
        g_clear_handle_id(&f->timer, g_source_remove);
        rnic_pairs_peer_ended(peer, "the peer's daemon has ended");
    }
}

static const struct peer_channel_ops far_ops = {
    nic_came, rnic_pair_channel_came, rnic_pair_answer_came, link_up, link_down};

void rnic_far_start(void)
{
    own = (struct far){0};
    peer_set_channel_ops(&far_ops);
}

static void far_free(gpointer unused, gpointer opaque, gpointer unused2)
{
    struct far *f = opaque;

    g_clear_handle_id(&f->timer, g_source_remove);
    g_free(f);
}

void rnic_far_stop(void)
{
    peer_set_channel_ops(NULL);
    fdwatch_not_later(&later);
    g_queue_clear_full(&letters, g_free);
    if (fars) {
        g_hash_table_foreach(fars, far_free, NULL);
        g_clear_pointer(&fars, g_hash_table_destroy);
    }
}
