/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Between the directory's engine `static` and the links: what it says becomes messages,
 * and messages are passed to it.
 *
 * A peer whose link is lost may be back in a moment, with the same VMs: its claims stay
 * for `timeout` from then, so that connections to them have a chance to go on.  After
 * that their addresses are free for others; but those that were held are waited for until
 * their own time is over, unless the peer has said that it ends, and others are asked for
 * them again and again.  For `timeout`, too, it may have what nobody else has, unless it
 * has said so, or that has come to nothing too often.
 *
 * Main thread.
 */
#include "transport/link/addresses.h"

#include <string.h>

#include "base/coro.h"
#include "config/config.h"
#include "directory/static.h"
#include "transport/link/peer.h"

#define NS_PER_MS 1000000u
#define NS_PER_S  1000000000u

/* A peer that takes longer is not waited for. */
#define HEARD_MS 200u
/* All that a host had is looked at when a hold ends, but not more often than that. */
#define LOOK_MS 1000u

/*
 * So many losses in a row, of links that were not up for `timeout`, may be restarts.
 * With more of them, whoever waits for an address that nobody has would never hear so.
 * Peers that mean it can do worse, also with a claim and HOLD: docs/limits.md.
 */
#define MAX_LOSSES 4u

/* A peer's links, as long as there are peers. */
struct past {
    guint timer;     /* it has no link: until what it had is looked at; 0: not so */
    bool expected;   /* until then it may be back with what nobody else has */
    unsigned losses; /* in a row */
    gint64 up_since; /* us */
};

static unsigned timeout;
static GHashTable *pasts; /* of struct past, by peer */

/* ---- to peers ---- */

static bool say(struct peer *peer, enum peer_msg_type type, const char *network,
                const struct pvrdma_gid *gid, const struct claim *claim, uint64_t hold_ns)
{
    struct peer_claim c = {.gid = *gid};

    g_strlcpy(c.network, network, sizeof(c.network));
    if (claim) {
        c.owner[0] = claim->owner[0];
        c.owner[1] = claim->owner[1];
        c.generation = claim->generation;
        g_strlcpy(c.host, claim->host ? claim->host : "", sizeof(c.host));
        memcpy(c.proof, claim->proof, sizeof(c.proof));
    }
    /* 0 is "not at all": rounded up. */
    c.hold_ms = (uint32_t)MIN((hold_ns + NS_PER_MS - 1) / NS_PER_MS, UINT32_MAX);
    return peer_send_claim(peer, type, &c);
}

static bool say_ask(struct peer *peer, const char *network, const struct pvrdma_gid *gid)
{
    return say(peer, PEER_MSG_ASK, network, gid, NULL, 0);
}

static bool say_claim(struct peer *peer, const char *network,
                      const struct pvrdma_gid *gid, const struct claim *claim,
                      uint64_t hold_ns)
{
    return say(peer, claim_is_proved(claim) ? PEER_MSG_PROVED : PEER_MSG_CLAIM, network,
               gid, claim, hold_ns);
}

static bool say_rival(struct peer *peer, const char *network,
                      const struct pvrdma_gid *gid, const struct claim *claim)
{
    return say(peer, PEER_MSG_PROVED, network, gid, claim, 0);
}

static bool say_unclaim(struct peer *peer, const char *network,
                        const struct pvrdma_gid *gid)
{
    return say(peer, PEER_MSG_UNCLAIM, network, gid, NULL, 0);
}

static bool say_hold(struct peer *peer, const char *network, const struct pvrdma_gid *gid,
                     uint64_t hold_ns)
{
    return say(peer, PEER_MSG_HOLD, network, gid, NULL, hold_ns);
}

static void begin_anew(struct peer *peer)
{
    peer_reset(peer, "too many claims wait for it");
}

static const struct static_ops static_ops = {
    .ask = say_ask,
    .claim = say_claim,
    .unclaim = say_unclaim,
    .hold = say_hold,
    .rival = say_rival,
    .reset = begin_anew,
};

/* ---- from peers ---- */

static bool peer_is_linked(const char *name)
{
    const struct peer *peer = peer_find(name);

    return peer && peer_is_up(peer);
}

static void on_ask(struct peer *from, const struct peer_claim *what)
{
    static_asked(from, what->network, &what->gid);
}

static void on_claim(struct peer *from, const struct peer_claim *c)
{
    struct claim claim = {.owner = {c->owner[0], c->owner[1]},
                          .generation = c->generation};

    static_claimed(from, c->network, &c->gid, &claim, (uint64_t)c->hold_ms * NS_PER_MS);
}

/* Its own, or that of a host of which it has heard. */
static void on_proved(struct peer *from, const struct peer_claim *c)
{
    struct claim claim = {.owner = {c->owner[0], c->owner[1]},
                          .generation = c->generation,
                          .host = c->host};

    memcpy(claim.proof, c->proof, sizeof(claim.proof));
    if (strcmp(c->host, peer_name(from)) == 0) {
        claim.host = peer_name(from); /* which stays */
        static_claimed(from, c->network, &c->gid, &claim,
                       (uint64_t)c->hold_ms * NS_PER_MS);
    } else if (!peer_is_linked(c->host)) { /* that would say it itself */
        static_rival(from, c->network, &c->gid, &claim);
    }
}

static void on_unclaim(struct peer *from, const struct peer_claim *c)
{
    static_unclaimed(from, c->network, &c->gid);
}

static void on_hold(struct peer *from, const struct peer_claim *c)
{
    static_held(from, c->network, &c->gid, (uint64_t)c->hold_ms * NS_PER_MS);
}

static struct past *past_of(struct peer *peer)
{
    struct past *p = g_hash_table_lookup(pasts, peer);

    if (!p) {
        p = g_new0(struct past, 1);
        g_hash_table_insert(pasts, peer, p);
    }
    return p;
}

/* Has nobody lost a link that may be back? */
static void look_who_is_back(void)
{
    GHashTableIter i;
    gpointer peer, p;

    g_hash_table_iter_init(&i, pasts);
    while (g_hash_table_iter_next(&i, &peer, &p)) {
        const struct past *past = p;

        if (past->timer && past->expected && !peer_has_ended(peer)) {
            return;
        }
    }
    directory_expect(0);
}

/* After `timeout`, and then as long as something is held: its group may go meanwhile. */
static gboolean on_away(gpointer peer)
{
    struct past *p = past_of(peer);
    uint64_t left = 0;

    p->timer = 0;
    p->expected = false;
    look_who_is_back();
    if (peer_has_ended(peer)) {
        static_peer_gone(peer);
    } else {
        left = static_peer_away(peer);
    }
    if (left) {
        left = MIN(left, (uint64_t)timeout * NS_PER_S);
        p->timer =
            g_timeout_add(MAX((guint)(left / NS_PER_MS) + 1, LOOK_MS), on_away, peer);
    }
    return G_SOURCE_REMOVE;
}

static void is_lost(struct peer *peer)
{
    struct past *p = past_of(peer);

    if (g_get_monotonic_time() - p->up_since >= (gint64)timeout * G_USEC_PER_SEC) {
        p->losses = 0;
    }
    p->expected = !peer_has_ended(peer) && p->losses < MAX_LOSSES;
    if (p->expected) {
        p->losses += !peer_is_replaced(peer);
        directory_expect((uint64_t)timeout * NS_PER_S);
    }
    if (!p->timer) {
        p->timer = g_timeout_add_seconds(timeout, on_away, peer);
    }
}

static void on_link_up(struct peer *peer)
{
    struct past *p = past_of(peer);

    p->up_since = g_get_monotonic_time();
    if (p->timer) {
        g_source_remove(p->timer);
        p->timer = 0;
    }
    static_peer_up(peer, peer_name(peer));
    look_who_is_back(); /* which was asked for all that is not known */
}

static void on_link_down(struct peer *peer)
{
    is_lost(peer); /* first: that it does not answer is no answer */
    static_peer_down(peer);
}

static const struct peer_claim_ops claim_ops = {
    .ask = on_ask,
    .claim = on_claim,
    .unclaim = on_unclaim,
    .hold = on_hold,
    .proved = on_proved,
    .link_up = on_link_up,
    .link_down = on_link_down,
};

/* ---- restarts ---- */

static bool all_have_answered(void)
{
    struct peer *p = peer_next(NULL);

    while (p && !peer_echo_is_due(p)) {
        p = peer_next(p);
    }
    return !p;
}

/* Each of @owed, once nothing is left to be said to it.  True: they all are asked. */
static bool ask_who_was_told(GPtrArray *owed)
{
    for (guint i = owed->len; i-- > 0;) {
        struct peer *p = owed->pdata[i];

        if (!static_owes(p)) {
            peer_ask_echo(p);
            g_ptr_array_remove_index_fast(owed, i);
        }
    }
    return owed->len == 0;
}

void claims_be_heard(void)
{
    gint64 end = g_get_monotonic_time() + HEARD_MS * 1000;
    g_autoptr(GPtrArray) owed = g_ptr_array_new();

    for (struct peer *p = peer_next(NULL); p; p = peer_next(p)) {
        g_ptr_array_add(owed, p);
    }
    while (!ask_who_was_told(owed) || !all_have_answered()) {
        if (g_get_monotonic_time() >= end) {
            return;
        }
        coro_sleep(1);
    }
}

void claims_expect_back(void)
{
    for (struct peer *p = pasts ? peer_next(NULL) : NULL; p; p = peer_next(p)) {
        is_lost(p);
    }
}

/* ---- start and stop ---- */

bool claims_start(const char *host, unsigned seconds, GError **errp)
{
    int err = static_start(&static_ops);

    if (err) {
        g_set_error(errp, PVRDMA_ERROR, 0, "directory: %s", g_strerror(err));
        return false;
    }
    directory_set_host(host);
    timeout = seconds;
    pasts = g_hash_table_new_full(NULL, NULL, NULL, g_free);
    peer_set_claim_ops(&claim_ops);
    return true;
}

static void cancel(gpointer peer, gpointer past, gpointer unused)
{
    guint timer = ((struct past *)past)->timer;

    if (timer) {
        g_source_remove(timer);
    }
}

void claims_stop(void)
{
    if (!pasts) {
        return;
    }
    peer_set_claim_ops(NULL);
    g_hash_table_foreach(pasts, cancel, NULL);
    g_clear_pointer(&pasts, g_hash_table_destroy);
    static_stop();
}
