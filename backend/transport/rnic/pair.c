/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Pairs: which VMs are joined by a channel, or are to be.
 *
 * The host with the smaller name connects; within a daemon (path=rnic) the VM with the
 * smaller owner.  If it is the other side that wants a channel, it asks that one to.  A
 * pair that has a channel takes the next one in its place, since the peer knows better:
 * the former one is broken, and both are there until it is taken apart.
 *
 *   state    there is            others
 *   NONE     nothing             do without
 *   MAKING   an end, or a WANT   wait, rnic_make_ms at most; then it is NONE for them,
 *                                though the channel may still come up
 *   UP       a channel           use it
 *
 * A pair whose channels fail twice in a minute rests for one, and refuses the peer's; the
 * NIC that has failed is the last that is tried.  What a NIC's own events end does not
 * count, here or at the peer: it tells of its NICs when they are others, and then all
 * begins anew.  A peer that has no room, or has ended a channel that worked, is asked
 * again after a second.
 *
 * A pair that nobody here wants goes when nobody holds it, it has no end, and there is no
 * failure to remember.  One that is wanted stays, as changed() is to be called for it,
 * until there is no room for others and its VM is not known any more.
 *
 * Bounds: a VM has so many pairs, channels on a NIC and channels in the making; a peer so
 * many that it has begun and that are being made, and of a VM's channels on a NIC as many
 * as are left.  When all are used the one that was idle longest goes.
 *
 * Threads: the main thread, but for rnic_pair_channel() and _nic().
 */
#include "transport/rnic/pair.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "base/log.h"
#include "directory/directory.h"
#include "objects/vm.h"
#include "transport/rnic/pair_internal.h"

/* A peer that has no room is left alone for so long. */
#define LATER_MS 1000u
/* ... doubled each time that no room is found, so many times at most: a VM may have pairs
 * by the thousand that find none, and each look goes through all connections. */
#define FULL_MAX 4u

unsigned rnic_make_ms = RNIC_MAKE_MS, rnic_pair_rest_ms = RNIC_PAIR_REST_MS,
         rnic_token_ms = RNIC_TOKEN_MS, rnic_idle_ms = RNIC_IDLE_MS,
         rnic_linger_ms = RNIC_LINGER_MS, rnic_honest_ms = RNIC_HONEST_MS,
         rnic_vm_channels = RNIC_VM_CHANNELS;

static const struct rnic_pair_ops *ops;
static bool running, within; /* channels within this daemon, too */
static unsigned telling;     /* changed() is being called: no pair may go */
static LIST_HEAD(, rnic_pair) asking = LIST_HEAD_INITIALIZER(asking);

static gint64 now_us(void)
{
    return g_get_monotonic_time();
}

static gint64 after_ms(unsigned ms)
{
    return now_us() + (gint64)ms * 1000;
}

static int compare_owners(const uint64_t a[2], const uint64_t b[2])
{
    unsigned i = a[0] == b[0];

    return a[i] < b[i] ? -1 : a[i] > b[i];
}

/* Is it this side that connects? */
static bool connects(const struct rnic_vm *rv, const struct peer *peer,
                     const uint64_t owner[2])
{
    return peer ? !directory_host_is_before(peer_name(peer))
                : compare_owners(rnic_vm_owner(rv), owner) <= 0;
}

/* ---- what is known of a pair ---- */

enum rnic_pair_state rnic_pair_state(const struct rnic_pair *p)
{
    return p->up                                 ? RNIC_PAIR_UP
           : p->making && now_us() < p->patience ? RNIC_PAIR_MAKING
                                                 : RNIC_PAIR_NONE;
}

struct rnic_channel *rnic_pair_channel(const struct rnic_pair *p)
{
    return p->ch && rnic_channel_phase(p->ch) == RNIC_UP ? p->ch : NULL;
}

struct rnic_pair *rnic_pair_of(const struct rnic_channel *ch)
{
    return ((struct rnic_end *)rnic_channel_owner(ch))->pair;
}

struct rnic_vm *rnic_pair_vm(const struct rnic_pair *p)
{
    return p->rv;
}

struct peer *rnic_pair_peer(const struct rnic_pair *p)
{
    return p->peer;
}

const uint64_t *rnic_pair_owner(const struct rnic_pair *p)
{
    return p->owner;
}

const char *rnic_pair_nic(const struct rnic_pair *p)
{
    return p->ch ? ((struct rnic_end *)rnic_channel_owner(p->ch))->cm->name : NULL;
}

/* ---- its time ---- */

static gboolean on_time(gpointer opaque);

/* Until when it remembers a failure; 0: it knows of none. */
static gint64 failed_until(const struct rnic_pair *p)
{
    return p->failed_at ? p->failed_at + (gint64)rnic_pair_rest_ms * 1000 : 0;
}

/*
 * Call on_time() when something of it is over, also if that is in the past: on_time()
 * sets to 0 what is.  While a channel is made that is when nobody waits any more, and
 * then when there should be one.
 */
static void set_timer(struct rnic_pair *p)
{
    bool waits = p->told == RNIC_PAIR_MAKING || !p->end;
    gint64 now = now_us(), at = INT64_MAX;
    const gint64 times[] = {!p->making ? 0
                            : waits    ? p->patience
                                       : p->end->deadline,
                            p->rest_until, p->not_before, failed_until(p)};

    g_clear_handle_id(&p->timer, g_source_remove);
    for (unsigned i = 0; i < G_N_ELEMENTS(times); i++) {
        at = times[i] ? MIN(at, MAX(times[i], now)) : at;
    }
    if (at < INT64_MAX) {
        p->timer = g_timeout_add((guint)((at - now) / 1000 + 1), on_time, p);
    }
}

/* Its state is another, or it may be wanted again: whoever is interested hears of it. */
static void changed(struct rnic_pair *p)
{
    p->told = rnic_pair_state(p);
    set_timer(p);
    if (p->rv->vm && !p->hidden && running) {
        telling++;
        ops->changed(p);
        telling--;
    }
}

/* The same, if its state is another. */
static void tell(struct rnic_pair *p)
{
    if (rnic_pair_state(p) != p->told) {
        changed(p);
    } else {
        set_timer(p);
    }
}

static void set_making(struct rnic_pair *p, bool making)
{
    p->rv->making += making && !p->making ? 1 : 0;
    p->rv->making -= !making && p->making ? 1 : 0;
    p->making = making;
    if (making) {
        p->patience = after_ms(rnic_make_ms);
    }
}

static void pair_free(struct rnic_pair *p)
{
    g_assert(!p->rv->vm || !atomic_load(&p->holds));
    g_clear_handle_id(&p->timer, g_source_remove);
    rnic_pair_asked(p);
    set_making(p, false);
    LIST_REMOVE(p, of_vm);
    p->rv->n_pairs--;
    rnic_vm_unref(p->rv);
    g_free(p);
}

/* Nobody here knows of it, nor is there anything to remember.  True: it has gone. */
static bool settle(struct rnic_pair *p)
{
    if (p->n_ends || p->making ||
        (p->rv->vm &&
         (p->wanted || atomic_load(&p->holds) || now_us() < failed_until(p)))) {
        return false;
    }
    pair_free(p);
    return true;
}

static bool is_over(gint64 *at, gint64 now)
{
    bool over = *at && now >= *at;

    *at = over ? 0 : *at;
    return over;
}

/* The peer was asked to begin: nothing comes of it. */
static void wants_no_more(struct rnic_pair *p)
{
    rnic_pair_asked(p);
    set_making(p, false);
    p->not_before = after_ms(LATER_MS);
}

static gboolean on_time(gpointer opaque)
{
    struct rnic_pair *p = opaque;
    struct rnic_end *e = p->end;
    gint64 now = now_us();
    bool again, rested = is_over(&p->rest_until, now);

    p->timer = 0;
    again = is_over(&p->not_before, now) || rested;
    p->failed_at = now >= failed_until(p) ? 0 : p->failed_at;
    if (p->making && e && now >= e->deadline) { /* a call stands in the kernel */
        rnic_end_go(e, "it takes too long", true);
        rnic_pair_end_goes(e);
    } else if (p->making && !e && now >= p->patience) { /* the peer does not */
        wants_no_more(p);
    }
    if (settle(p)) {
        return G_SOURCE_REMOVE;
    }
    if (again && !p->making && !p->up) {
        changed(p);
    } else {
        tell(p);
    }
    return G_SOURCE_REMOVE;
}

static void note_failure(struct rnic_pair *p, const struct rnic_cm *cm)
{
    gint64 now = now_us();

    if (now < failed_until(p)) {
        p->rest_until = after_ms(rnic_pair_rest_ms);
    }
    p->failed_at = now;
    p->avoid = cm->address;
}

static void forget_failures(struct rnic_pair *p)
{
    p->failed_at = p->rest_until = p->not_before = 0;
    memset(&p->avoid, 0, sizeof(p->avoid));
}

/* ---- pairs of a VM ---- */

static struct rnic_pair *find(struct rnic_vm *rv, const struct peer *peer,
                              const uint64_t owner[2], bool hidden)
{
    struct rnic_pair *p;

    LIST_FOREACH(p, &rv->pairs, of_vm)
    {
        if (p->peer == peer && p->hidden == hidden &&
            compare_owners(p->owner, owner) == 0) {
            return p;
        }
    }
    return NULL;
}

/* Those with VMs that there are no more are not wanted, and go; so do those that nobody
 * holds any more. */
static void sweep(struct rnic_vm *rv)
{
    gint64 now = now_us();
    struct rnic_pair *p, *next;

    if (telling || now < rv->swept + LATER_MS * 1000) {
        return;
    }
    rv->swept = now;
    for (p = LIST_FIRST(&rv->pairs); p; p = next) {
        next = LIST_NEXT(p, of_vm);
        p->wanted =
            p->wanted && (p->peer ? directory_has_owner(p->peer, rv->network, p->owner)
                                  : rnic_vm_find(p->owner, rv->network) != NULL);
        settle(p);
    }
}

/* @most: that there may be of the VM. */
static struct rnic_pair *find_or_add(struct rnic_vm *rv, struct peer *peer,
                                     const uint64_t owner[2], bool hidden, unsigned most)
{
    struct rnic_pair *p = find(rv, peer, owner, hidden);

    if (!p && rv->n_pairs >= most) {
        sweep(rv);
    }
    if (!p && rv->n_pairs < most) {
        p = g_new0(struct rnic_pair, 1);
        p->rv = rv;
        p->peer = peer;
        p->hidden = hidden;
        memcpy(p->owner, owner, sizeof(p->owner));
        rv->n_pairs++;
        rv->refs++;
        LIST_INSERT_HEAD(&rv->pairs, p, of_vm);
    }
    return p;
}

/* ---- room ---- */

/* The end that was idle longest goes, of all, or of those that @peer has begun.  False:
 * there is none. */
static bool end_idle(struct rnic_vm *rv, struct rnic_cm *cm, const struct peer *peer)
{
    uint64_t oldest = (uint64_t)(now_us() - (gint64)rnic_idle_ms * 1000) * 1000;
    struct rnic_end *e, *found = NULL;

    LIST_FOREACH(e, &cm->ends, of_cm)
    {
        uint64_t heard = atomic_load_explicit(&e->heard, memory_order_relaxed);

        if (e->rv == rv && e->stage == END_UP && !e->why && heard < oldest &&
            (!peer || (e->of_peer && e->pair->peer == peer))) {
            oldest = heard;
            found = e;
        }
    }
    if (found) {
        found->idle = true;
        rnic_end_go(found, "it is idle, and another is wanted", false);
    }
    return found;
}

/* @from: the peer that begins it, NULL: it is wanted here. */
static bool has_room(struct rnic_vm *rv, struct rnic_cm *cm, const struct peer *from)
{
    unsigned all = 0, its = 0;
    const struct rnic_end *e;

    LIST_FOREACH(e, &cm->ends, of_cm)
    {
        if (e->rv == rv && !e->why) {
            all++;
            its += e->of_peer && e->pair->peer == from;
        }
    }
    if (from && its + all >= rnic_vm_channels) {
        return end_idle(rv, cm, from);
    }
    return all < rnic_vm_channels || end_idle(rv, cm, NULL);
}

/* ---- which NICs ---- */

static bool same_family(const struct pvrdma_gid *a, const struct pvrdma_gid *b)
{
    struct sockaddr_storage x, y;

    rnic_cm_sockaddr(a, 0, &x);
    rnic_cm_sockaddr(b, 0, &y);
    return x.ss_family == y.ss_family;
}

struct choice {
    struct rnic_cm *cm;
    struct pvrdma_gid address;
    uint64_t cost;
};

static int by_cost(const void *a, const void *b)
{
    const struct choice *x = a, *y = b;

    return x->cost < y->cost ? -1 : x->cost > y->cost;
}

static bool was_tried(const struct rnic_pair *p, const struct pvrdma_gid *ours,
                      const struct pvrdma_gid *theirs)
{
    for (unsigned i = 0; i < p->tries; i++) {
        if (memcmp(&p->tried[i].ours, ours, sizeof(*ours)) == 0 &&
            memcmp(&p->tried[i].theirs, theirs, sizeof(*theirs)) == 0) {
            return true;
        }
    }
    return false;
}

/*
 * The best of our NICs and the peer's that were not tried: one that has just failed comes
 * last, then those with fewer channels first, then those in the same place of both lists.
 */
static bool choose(const struct rnic_pair *p, struct choice *out)
{
    struct choice all[PEER_MAX_NICS * PEER_MAX_NICS];
    unsigned n = 0, at = 0, theirs = rnic_far_nics(p->peer);
    struct rnic_cm *cm;

    TAILQ_FOREACH(cm, &rnic_cms, link)
    {
        bool avoid = memcmp(&cm->address, &p->avoid, sizeof(p->avoid)) == 0;

        for (unsigned i = 0; i < theirs && rnic_cm_serves(cm, p->rv->network); i++) {
            const struct peer_nic *nic = rnic_far_nic(p->peer, i);

            if (n < G_N_ELEMENTS(all) && strcmp(nic->fabric, cm->fabric) == 0 &&
                same_family(&nic->address, &cm->address) &&
                !was_tried(p, &cm->address, &nic->address)) {
                all[n++] =
                    (struct choice){cm, nic->address,
                                    (uint64_t)avoid << 40 | (uint64_t)cm->n_ends << 8 |
                                        (at > i ? at - i : i - at)};
            }
        }
        at++;
    }
    qsort(all, n, sizeof(all[0]), by_cost);
    *out = all[0];
    return n > 0;
}

/* ---- asking the other side ---- */

bool rnic_pair_ask(struct rnic_pair *p, struct peer_channel *c)
{
    rnic_pair_asked(p);
    if (!p->rv->vm || getrandom(c->token, sizeof(c->token), 0) != sizeof(c->token)) {
        return false;
    }
    g_strlcpy(c->network, p->rv->network, sizeof(c->network));
    memcpy(c->from, rnic_vm_owner(p->rv), sizeof(c->from));
    memcpy(c->to, p->owner, sizeof(c->to));
    if (!rnic_far_send_channel(p->peer, c)) {
        return false;
    }
    memcpy(p->token, c->token, sizeof(p->token));
    p->wants = c->flags & PEER_CHANNEL_WANT;
    p->asking = true;
    LIST_INSERT_HEAD(&asking, p, is_asking);
    return true;
}

void rnic_pair_asked(struct rnic_pair *p)
{
    if (p->asking) {
        p->asking = false;
        LIST_REMOVE(p, is_asking);
    }
}

void rnic_pair_answer(struct peer *to, const uint64_t token[2],
                      enum peer_channel_result result, uint16_t port)
{
    bool ok = result == PEER_CHANNEL_OK;
    struct peer_channel_answer a = {.token = {token[0], token[1]},
                                    .result = (uint8_t)result,
                                    .port = port,
                                    .receives = ok ? RNIC_FIRST_BUFFERS : 0,
                                    .size = ok ? RNIC_SIZE_MIN : 0};

    if (running) { /* else peers may have gone */
        rnic_far_send_answer(to, &a);
    }
}

/* ---- making ---- */

static struct rnic_end *new_end(struct rnic_pair *p, struct rnic_cm *cm, bool active,
                                bool of_peer)
{
    struct rnic_end *e = rnic_end_new(p, cm, active);

    LIST_INSERT_HEAD(&p->ends, e, of_pair);
    p->n_ends++;
    p->end = e;
    memcpy(p->own, rnic_vm_owner(p->rv), sizeof(p->own));
    e->of_peer = of_peer;
    if (of_peer) {
        e->counts = true;
        ++*rnic_far_making(p->peer);
    }
    rnic_end_kick(e);
    return e;
}

static void is_made(struct rnic_end *e)
{
    if (e->counts) {
        e->counts = false;
        --*rnic_far_making(e->pair->peer);
    }
}

/* The next NICs are tried.  False: there are none. */
static bool try_next(struct rnic_pair *p)
{
    struct choice c;

    if (p->tries >= RNIC_TRIES || !choose(p, &c) ||
        !has_room(p->rv, c.cm, p->wanted ? NULL : p->peer)) {
        return false;
    }
    p->tried[p->tries].ours = c.cm->address;
    p->tried[p->tries++].theirs = c.address;
    new_end(p, c.cm, true, !p->wanted)->address = c.address;
    return true;
}

/* Begin, if that is possible now.  If not, though NICs fit, it is in a while: then
 * changed() is called. */
static bool begin(struct rnic_pair *p)
{
    struct peer_channel want = {.flags = PEER_CHANNEL_WANT};
    struct choice c;
    bool may;

    if (!running || !p->rv->vm || p->hidden || p->end || p->making ||
        now_us() < p->rest_until || now_us() < p->not_before) {
        return false;
    }
    p->tries = 0;
    if (!choose(p, &c)) {
        return false;
    }
    want.from_nic = c.cm->address;
    want.to_nic = c.address;
    may = p->n_ends < RNIC_PAIR_ENDS && p->rv->making < RNIC_VM_MAKING;
    if (may &&
        (connects(p->rv, p->peer, p->owner) ? try_next(p) : rnic_pair_ask(p, &want))) {
        set_making(p, true);
        return true;
    }
    p->not_before = after_ms(LATER_MS << (may ? MIN(p->n_full, FULL_MAX) : 0));
    p->n_full += may;
    set_timer(p);
    return false;
}

/* Its channel is to go; it has none. */
static void drop_end(struct rnic_pair *p, const char *why)
{
    struct rnic_end *e = p->end;

    rnic_pair_asked(p);
    set_making(p, false);
    p->up = false;
    p->end = NULL;
    if (e) {
        is_made(e);
        rnic_end_go(e, why, false);
    }
}

struct rnic_pair *rnic_pair_want(struct rnic_vm *rv, struct peer *peer,
                                 const uint64_t owner[2], const char *network)
{
    struct rnic_pair *p;

    g_assert(strcmp(network, rv->network) == 0);
    p = find_or_add(rv, peer, owner, false, RNIC_VM_PAIRS);
    if (p) {
        p->wanted = true;
        if (p->end && memcmp(p->own, rnic_vm_owner(rv), sizeof(p->own)) != 0) {
            drop_end(p, "its VM is another"); /* the peer refuses its flows */
        }
        if ((peer || within) && begin(p)) {
            p->told = RNIC_PAIR_MAKING; /* the caller sees it */
            set_timer(p);
        }
    }
    return p;
}

void rnic_pair_hold(struct rnic_pair *p)
{
    atomic_fetch_add_explicit(&p->holds, 1, memory_order_relaxed);
}

void rnic_pair_let_go(struct rnic_pair *p)
{
    atomic_fetch_sub_explicit(&p->holds, 1, memory_order_release);
}

void rnic_pair_break(struct rnic_pair *p, const char *why)
{
    drop_end(p, why);
    p->told = RNIC_PAIR_NONE; /* the caller knows */
    set_timer(p);
}

/* ---- what becomes of ends ---- */

void rnic_pair_end_up(struct rnic_end *e)
{
    struct rnic_pair *p = e->pair;

    is_made(e);
    atomic_store_explicit(&e->heard, (uint64_t)now_us() * 1000, memory_order_relaxed);
    if (p->end == e) {
        log_about(LOG_LVL_DEBUG, &e->rv->vm->guest.log, "channel %s is up", e->name);
        rnic_pair_asked(p);
        set_making(p, false);
        p->up = true;
        p->n_full = 0;
        tell(p);
    }
}

void rnic_pair_end_goes(struct rnic_end *e)
{
    struct rnic_pair *p = e->pair;
    bool was_up = p->up;

    is_made(e);
    if (p->end != e) {
        return;
    }
    if (e->rv->vm && e->failed) {
        log_about(was_up ? LOG_LVL_INFO : LOG_LVL_DEBUG, &e->rv->vm->guest.log,
                  "channel %s: %s", e->name, e->why);
    }
    rnic_pair_asked(p);
    p->up = false;
    p->end = NULL;
    if (e->failed && !e->later && !was_up && e->active && p->rv->vm &&
        now_us() < p->patience && try_next(p)) {
        return;
    }
    set_making(p, false);
    if (e->failed && e->later) {
        p->not_before = after_ms(LATER_MS);
    } else if (e->failed) {
        note_failure(p, e->cm);
    }
    if (e->idle) { /* who has something to send wants one: an idle one would go again */
        p->wanted = false;
        p->told = RNIC_PAIR_NONE;
        set_timer(p);
        return;
    }
    changed(p); /* also if nobody waits for it any more */
}

void rnic_pair_end_gone(struct rnic_end *e)
{
    struct rnic_pair *p = e->pair;

    LIST_REMOVE(e, of_pair);
    p->n_ends--;
    settle(p);
}

void rnic_pairs_of_vm_gone(struct rnic_vm *rv)
{
    struct rnic_pair *p, *next;
    struct rnic_end *e;

    for (p = LIST_FIRST(&rv->pairs); p; p = next) {
        next = LIST_NEXT(p, of_vm);
        drop_end(p, "its VM goes");
        LIST_FOREACH(e, &p->ends, of_pair)
        {
            rnic_end_go(e, "its VM goes", false);
            rnic_end_kick(e);
        }
        settle(p);
    }
}

/* ---- what the other side asks ---- */

static bool makes_sense(unsigned receives, uint32_t size)
{
    return receives >= 2 && receives <= RNIC_BLOCK_BUFFERS &&
           rnic_size_class(size) < RNIC_SIZES;
}

/*
 * May @from begin to make one of @p now?  As with channels that are up it gets no more of
 * the VM's than are left, unless they are wanted here.
 */
static bool may_begin(const struct rnic_pair *p, struct peer *from)
{
    const struct rnic_pair *q;
    unsigned its = 0;

    if (p->wanted || !from) {
        return p->rv->making < RNIC_VM_MAKING;
    }
    LIST_FOREACH(q, &p->rv->pairs, of_vm)
    {
        its += q->making && q->peer == from && !q->wanted;
    }
    return its + p->rv->making < RNIC_VM_MAKING &&
           *rnic_far_making(from) < RNIC_PEER_MAKING;
}

/* The peer, which does not connect, wants a channel. */
static enum peer_channel_result consider_want(struct rnic_vm *rv, struct peer *from,
                                              const struct peer_channel *c)
{
    struct rnic_pair *p;

    if (!connects(rv, from, c->from)) {
        return PEER_CHANNEL_REFUSED;
    }
    p = find_or_add(rv, from, c->from, false, RNIC_VM_PAIRS / 2);
    if (!p) {
        return PEER_CHANNEL_NOT_NOW;
    }
    if (p->making) {
        return PEER_CHANNEL_OK; /* it will see */
    }
    if (p->n_ends >= RNIC_PAIR_ENDS || !may_begin(p, from)) {
        settle(p);
        return PEER_CHANNEL_NOT_NOW;
    }
    drop_end(p, "the peer has lost it");
    if (!begin(p)) {
        tell(p);
        settle(p);
        return PEER_CHANNEL_NOT_NOW;
    }
    tell(p);
    return PEER_CHANNEL_OK;
}

/* It connects. */
static enum peer_channel_result consider_channel(struct rnic_vm *rv, struct peer *from,
                                                 const struct peer_channel *c)
{
    struct rnic_cm *cm = rnic_cm_find(&c->to_nic);
    bool self = !from && compare_owners(c->from, c->to) == 0;
    struct rnic_pair *p;
    struct rnic_end *e;
    gint64 until;

    if ((connects(rv, from, c->from) && !self) || !makes_sense(c->receives, c->size) ||
        !cm || !rnic_cm_serves(cm, rv->network)) {
        return PEER_CHANNEL_REFUSED;
    }
    p = find_or_add(rv, from, c->from, self, RNIC_VM_PAIRS / 2);
    if (!p) {
        return PEER_CHANNEL_NOT_NOW;
    }
    if (now_us() < p->rest_until || p->n_ends >= RNIC_PAIR_ENDS ||
        (!p->making && !may_begin(p, from)) ||
        !has_room(rv, cm, p->wanted ? NULL : from)) {
        if (p->making && !p->end) { /* it was asked to */
            wants_no_more(p);
            changed(p);
        }
        settle(p);
        return PEER_CHANNEL_NOT_NOW;
    }
    until = p->making ? p->patience : 0;
    drop_end(p, "the peer makes another");
    e = new_end(p, cm, false, !p->wanted);
    memcpy(e->token, c->token, sizeof(e->token));
    e->address = c->from_nic;
    e->receives = c->receives;
    e->size = c->size;
    set_making(p, true);
    p->patience = until ? until : p->patience; /* whoever waits does so once */
    tell(p);
    return PEER_CHANNEL_OK;
}

static enum peer_channel_result consider(struct peer *from, const struct peer_channel *c)
{
    struct rnic_vm *rv = rnic_vm_find(c->to, c->network);

    if (!rv) {
        return PEER_CHANNEL_NOT_NOW; /* it has no queue pair that needs one */
    }
    if (from ? !directory_has_owner(from, rv->network, c->from)
             : !within || !rnic_vm_find(c->from, c->network)) {
        return PEER_CHANNEL_REFUSED;
    }
    return c->flags & PEER_CHANNEL_WANT ? consider_want(rv, from, c)
                                        : consider_channel(rv, from, c);
}

void rnic_pair_channel_came(struct peer *from, const struct peer_channel *c)
{
    enum peer_channel_result result = running ? consider(from, c) : PEER_CHANNEL_NOT_NOW;

    if (result != PEER_CHANNEL_OK) {
        rnic_pair_answer(from, c->token, result, 0);
    }
}

void rnic_pair_answer_came(struct peer *from, const struct peer_channel_answer *a)
{
    struct rnic_pair *p;
    struct rnic_end *e;

    LIST_FOREACH(p, &asking, is_asking)
    {
        if (p->peer == from && p->token[0] == a->token[0] && p->token[1] == a->token[1]) {
            break;
        }
    }
    if (!p || (p->wants && a->result == PEER_CHANNEL_OK)) {
        return;
    }
    rnic_pair_asked(p);
    e = p->end;
    if (p->wants && !e) {
        wants_no_more(p);
        changed(p);
    } else if (!p->wants && e) {
        bool ok = a->result != PEER_CHANNEL_OK ||
                  (a->port && makes_sense(a->receives, a->size));

        e->result = ok ? a->result : PEER_CHANNEL_REFUSED;
        e->port = a->port;
        e->receives = a->receives;
        e->size = a->size;
        e->answered = true;
        rnic_end_kick(e);
    }
}

/* ---- NICs and peers come and go ---- */

/* Each pair of @peer, or of all. */
static void each(struct peer *peer, bool all, void (*fn)(struct rnic_pair *p, void *arg),
                 void *arg)
{
    struct rnic_vm *rv;
    struct rnic_pair *p, *next;

    LIST_FOREACH(rv, &rnic_vms, link)
    {
        for (p = LIST_FIRST(&rv->pairs); p; p = next) {
            next = LIST_NEXT(p, of_vm);
            if (all || p->peer == peer) {
                fn(p, arg);
            }
        }
    }
}

/* It may find other NICs. */
static void begin_anew(struct rnic_pair *p, void *unused)
{
    forget_failures(p);
    if (!p->making && !p->up && p->wanted) {
        changed(p);
    } else {
        set_timer(p);
    }
}

void rnic_pairs_nics_changed(void)
{
    if (running) {
        rnic_far_own_changed();
        each(NULL, true, begin_anew, NULL);
    }
}

static bool has_nic(struct peer *peer, const struct pvrdma_gid *address)
{
    for (unsigned i = 0; i < rnic_far_nics(peer); i++) {
        if (memcmp(&rnic_far_nic(peer, i)->address, address, sizeof(*address)) == 0) {
            return true;
        }
    }
    return false;
}

static void drop(struct rnic_pair *p, void *why)
{
    if (p->end || p->making) {
        drop_end(p, why);
        changed(p);
    }
}

static void drop_lost(struct rnic_pair *p, void *unused)
{
    if (p->end && !has_nic(p->peer, &p->end->address)) {
        drop(p, "the peer's NIC is not up any more");
    }
}

void rnic_pairs_peer_nics(struct peer *peer)
{
    each(peer, false, drop_lost, NULL);
    each(peer, false, begin_anew, NULL);
}

void rnic_pairs_peer_ended(struct peer *peer, const char *why)
{
    each(peer, false, drop, (void *)why);
}

/* What was asked is not answered. */
static void drop_asking(struct rnic_pair *p, void *unused)
{
    if (p->asking) {
        drop(p, "the link is down");
    }
}

void rnic_pairs_link_down(struct peer *peer)
{
    each(peer, false, drop_asking, NULL);
}

/* ---- start, stop ---- */

void rnic_pair_set_ops(const struct rnic_pair_ops *to)
{
    ops = to;
    rnic_ends_set_ops(to);
}

void rnic_pairs_start(const struct daemon_config *cfg, bool local)
{
    running = ops && rnic_ends_start();
    within = local;
    if (running) {
        rnic_cm_start();
        rnic_far_start();
    }
}

unsigned rnic_nic_channels(const struct rnic_nic *nic)
{
    return nic->cm ? nic->cm->n_ends : 0;
}

void rnic_pairs_stop(void)
{
    if (running) {
        running = false;
        rnic_far_stop();
        rnic_ends_stop();
    }
}
