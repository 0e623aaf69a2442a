/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A NIC that VMs share: whose SENDs go next.
 *
 * A NIC serves its queue pairs in turn, so a VM with many would have most of it, and what
 * is posted cannot be called back.  Therefore no more is on its way on a NIC than keeps
 * it busy, in bytes and in work requests; who finds no room waits, and what becomes free
 * is shared by bytes, as the VMs' shares say.
 *
 * While nobody waits a SEND costs an atomic to take what it may need, one to give back
 * what it did not, if so, and one when it has completed.  As soon as somebody waits, who
 * takes is charged: bytes by shares, which is the VM's time, as a worker charges what its
 * turns take (datapath/sched.c).  A VM may go on while its time is less than a slice (256
 * KiB of its own) beyond the least time of those that wait.  That is deficit round robin,
 * but for the rounds: shares may differ by 10,000, and a VM that has sent little goes
 * next and does not wait for a round to end.  A VM that begins to wait has no less time
 * than those that wait, less a slice: what it did not want before is not saved up.
 *
 * A VM waits in the NIC's heap from its first refusal until a turn of its own ends in
 * which none of its channels waits.  When a turn ends that leaves something free, the
 * first of the heap is woken.  It takes what it wants when it runs: nothing is kept for
 * it.  Until it comes others go on, with half of what may be on its way, and what it has
 * besides; so one whose worker is slow to come keeps nothing from others.  If it does not
 * come for 1 ms it leaves the heap, with its time.  Who waits looks each millisecond, so
 * nothing hangs on a wake-up.
 *
 * A SEND that does not complete is not what keeps the NIC busy: its peer is slow or dead,
 * or its VM does not look at completions.  So none counts for ever.  A period is twice
 * the time that the port takes for all that may be on its way, for each VM that waits: by
 * then a NIC has sent what it had, even if it serves queue pairs in turn.  What VMs take
 * in a period and has not completed at the end of the next is written off.  Whoever waits
 * sees to that, for all VMs, and needs no token of theirs.
 *
 * A VM of which something was written off counts as slow, for 32 of the shortest periods.
 * All slow ones share half of what may be on its way.  One that has its part of that
 * leaves the heap: neither does it wait for others, nor they for it.  So VMs with other
 * peers always have the other half, which is enough for the NIC to be busy.  A NIC that
 * sends a fraction of what its port is said to has more on its way, and is shared as it
 * serves its queue pairs.
 *
 * Channels of one VM that wait take turns, of 64 KiB: then the first of its queue goes to
 * the end, if it wants more.
 *
 * A rate limit is the VM's own, over all NICs: a bucket that a SEND may overdraw, so what
 * goes in a time is what the rate allows in it and one burst, and one SEND.  A VM that
 * waits for its bucket does not wait in heaps.
 *
 * What a channel has to say beside data (credits, answers, OPEN, CLOSE) goes at once, and
 * counts.
 */
#include "transport/rnic/fair.h"

#include <glib.h>

#include "config/config.h"
#include "datapath/datapath.h"
#include "transport/rnic/pair.h"

#define BYTE_BITS 40u
#define BYTES     ((1ull << BYTE_BITS) - 1)
/* Units of time for a byte of a VM with one share.  A NIC of 400 Gb/s whose VMs have one
 * share each would come to the end of the numbers after a month in which always somebody
 * waits; a NIC that comes up begins anew. */
#define TIME_SCALE 256u
#define PER_SECOND 1000000000

static uint64_t pack(uint64_t bytes, uint32_t requests)
{
    return (uint64_t)requests << BYTE_BITS | bytes;
}

/* ---- what is on its way ---- */

/* What @v has taken of `used`, which has it already. */
static void fair_own(struct rnic_fair_vm *v, uint64_t what)
{
    unsigned now = atomic_load_explicit(&v->fair->period, memory_order_relaxed);

    atomic_fetch_add(&v->flying[now], what);
}

static uint64_t fair_flying(const struct rnic_fair_vm *v)
{
    return atomic_load(&v->flying[0]) + atomic_load(&v->flying[1]);
}

/* No more than is there.  How much it was. */
static uint64_t fair_disown(_Atomic uint64_t *flying, uint64_t bytes, uint64_t n)
{
    uint64_t was = atomic_load(flying), less;

    do {
        less = pack(MIN(bytes, was & BYTES), (uint32_t)MIN(n, was >> BYTE_BITS));
    } while (less && !atomic_compare_exchange_weak(flying, &was, was - less));
    return less;
}

/* All of it. */
static void fair_disown_all(struct rnic_fair_vm *v)
{
    for (unsigned i = 0; i < 2; i++) {
        atomic_fetch_sub(&v->fair->used, atomic_exchange(&v->flying[i], 0));
    }
}

/* For one SEND, if there is room at all: the last one may go beyond it. */
static bool fair_reserve(struct rnic_fair *f, uint32_t bytes)
{
    uint64_t most = atomic_load_explicit(&f->most, memory_order_relaxed);
    uint64_t used = atomic_load(&f->used);

    do {
        if ((used & BYTES) >= (most & BYTES) || used >> BYTE_BITS >= most >> BYTE_BITS) {
            return false;
        }
    } while (!atomic_compare_exchange_weak(&f->used, &used, used + pack(bytes, 1)));
    return true;
}

static bool fair_has_room(const struct rnic_fair *f)
{
    uint64_t most = atomic_load_explicit(&f->most, memory_order_relaxed);
    uint64_t used = atomic_load(&f->used);

    return (used & BYTES) < (most & BYTES) && used >> BYTE_BITS < most >> BYTE_BITS;
}

/* Do all but @v have less than half of what may be on its way? */
static bool fair_spares_half(const struct rnic_fair_vm *v)
{
    uint64_t most = atomic_load_explicit(&v->fair->most, memory_order_relaxed);
    uint64_t used = atomic_load(&v->fair->used);
    uint64_t its = fair_flying(v);

    return (used & BYTES) < (its & BYTES) + (most & BYTES) / 2 &&
           used >> BYTE_BITS < (its >> BYTE_BITS) + (most >> BYTE_BITS) / 2;
}

/* ---- the heap: with the lock ---- */

static uint64_t fair_time(const struct rnic_fair_vm *v, uint64_t bytes)
{
    return bytes * TIME_SCALE / v->shares;
}

static struct rnic_fair_vm *fair_first(const struct rnic_fair *f)
{
    struct deadline *d = deadlines_first(&f->waiting);

    return d ? (struct rnic_fair_vm *)(void *)((char *)d -
                                               offsetof(struct rnic_fair_vm, time))
             : NULL;
}

static void fair_join(struct rnic_fair_vm *v)
{
    struct rnic_fair *f = v->fair;
    uint64_t slice = fair_time(v, RNIC_SLICE);

    if (!atomic_load_explicit(&v->waits, memory_order_relaxed)) {
        if (v->time.when < f->now - MIN(f->now, slice)) {
            v->time.when = f->now - slice;
            v->refund = 0; /* it was not charged for that */
        }
        atomic_store_explicit(&v->waits, true, memory_order_relaxed);
        /* Who frees something from here on sees that it is waited for. */
        atomic_fetch_add(&f->n_waiting, 1);
        deadline_add(&f->waiting, &v->time, v->time.when);
    }
}

static void fair_part(struct rnic_fair_vm *v)
{
    if (atomic_load_explicit(&v->waits, memory_order_relaxed)) {
        deadline_remove(&v->fair->waiting, &v->time);
        atomic_store_explicit(&v->waits, false, memory_order_relaxed);
        atomic_fetch_sub(&v->fair->n_waiting, 1);
        v->blocks = 0;
    }
}

static bool fair_is_slow(const struct rnic_fair_vm *v, uint64_t now)
{
    return now < atomic_load_explicit(&v->slow_until, memory_order_relaxed);
}

/* Is a period over?  What was taken before it and is not back does not count. */
static void fair_age(struct rnic_fair *f, uint64_t now)
{
    unsigned old = !atomic_load_explicit(&f->period, memory_order_relaxed);
    struct rnic_fair_vm *v;
    uint64_t stale;

    if (now < f->aged + f->least * MAX(atomic_load(&f->n_waiting), 1)) {
        return;
    }
    f->aged = now;
    f->n_slow = 0;
    LIST_FOREACH(v, &f->vms, link)
    {
        stale = atomic_exchange(&v->flying[old], 0);
        if (stale) {
            atomic_fetch_sub(&f->used, stale);
            atomic_store_explicit(&v->slow_until, now + RNIC_FAIR_SLOW * f->least,
                                  memory_order_relaxed);
        }
        f->n_slow += fair_is_slow(v, now);
    }
    atomic_store_explicit(&f->period, old, memory_order_relaxed);
}

/* Has @v, which is slow, as much as those may have, or a SEND? */
static bool fair_is_filled(const struct rnic_fair_vm *v)
{
    uint64_t most = atomic_load_explicit(&v->fair->most, memory_order_relaxed);
    uint64_t its = fair_flying(v), n = 2 * MAX(v->fair->n_slow, 1ull);

    return its && ((its & BYTES) >= (most & BYTES) / n ||
                   its >> BYTE_BITS >= (most >> BYTE_BITS) / n);
}

/* What is left is the first one's, if it comes. */
static void fair_offer(struct rnic_fair *f, const struct rnic_fair_vm *by)
{
    struct rnic_fair_vm *v = fair_first(f);

    if (v && v != by && v->vm && !rnic_fair_told(v) && fair_has_room(f)) {
        atomic_store(&v->told, true);
        datapath_wake(v->vm);
    }
}

/*
 * May @v, which is not in the heap now, go before all that wait?  Of those that stand in
 * its way and do not come, none is left.
 */
static bool fair_is_next(struct rnic_fair_vm *v, uint64_t now)
{
    uint64_t slice = fair_time(v, RNIC_SLICE);
    struct rnic_fair_vm *first;

    while ((first = fair_first(v->fair)) && v->time.when >= first->time.when + slice) {
        if (!fair_has_room(v->fair)) {
            return false; /* it is not its fault */
        }
        if (rnic_fair_told(first) && fair_spares_half(first)) {
            /* It may lie behind as far as if it had just begun to wait. */
            deadline_remove(&v->fair->waiting, &first->time);
            first->time.when = v->time.when - slice;
            deadline_add(&v->fair->waiting, &first->time, first->time.when);
            return true;
        }
        if (!first->blocks) {
            first->blocks = now;
        }
        if (now <= first->blocks + RNIC_FAIR_LATE_NS) {
            return false;
        }
        fair_part(first);
    }
    return true;
}

/* Somebody waits, or there is no room. */
static bool fair_reserve_in_turn(struct rnic_fair_vm *v, uint32_t bytes, uint64_t now)
{
    struct rnic_fair *f = v->fair;
    bool ok;

    pthread_mutex_lock(&f->lock);
    fair_age(f, now);
    if (fair_is_slow(v, now) && fair_is_filled(v)) {
        fair_part(v);
        pthread_mutex_unlock(&f->lock);
        return false;
    }
    fair_join(v);
    deadline_remove(&f->waiting, &v->time);
    v->blocks = 0;
    v->time.when -= MIN(v->time.when, fair_time(v, v->refund));
    v->refund = 0;
    ok = fair_is_next(v, now) && fair_reserve(f, bytes);
    if (ok) {
        v->time.when += fair_time(v, bytes);
    }
    deadline_add(&f->waiting, &v->time, v->time.when);
    f->now = MAX(f->now, deadlines_next(&f->waiting));
    pthread_mutex_unlock(&f->lock);
    return ok;
}

/* ---- a limit ---- */

void rnic_rate_init(struct rnic_rate *r, uint64_t bytes_per_second)
{
    uint64_t part = bytes_per_second / (PER_SECOND / RNIC_BURST_NS);

    *r = (struct rnic_rate){.rate = bytes_per_second};
    r->burst = r->level = (int64_t)MAX(part, RNIC_BURST_BYTES) * PER_SECOND;
}

static bool rate_allows(struct rnic_rate *r, uint64_t now)
{
    uint64_t passed = now - MIN(now, r->since), room = (uint64_t)(r->burst - r->level);

    if (!r->rate) {
        return true;
    }
    r->level =
        passed > room / r->rate ? r->burst : r->level + (int64_t)(passed * r->rate);
    r->since = MAX(r->since, now);
    return r->level > 0;
}

static void rate_charge(struct rnic_rate *r, int64_t bytes)
{
    if (r->rate) {
        /* What is given back may have been taken before the last refill. */
        r->level = MIN(r->level - bytes * PER_SECOND, r->burst);
    }
}

static uint64_t rate_due(const struct rnic_rate *r)
{
    return r->level > 0 ? 0 : r->since + (uint64_t)-r->level / r->rate + 1;
}

/* ---- under the token ---- */

static bool others_wait(const struct rnic_fair_vm *v)
{
    return atomic_load_explicit(&v->fair->n_waiting, memory_order_relaxed) >
           atomic_load_explicit(&v->waits, memory_order_relaxed);
}

bool rnic_fair_may(struct rnic_fair_vm *v, struct rnic_sender *s)
{
    if (!v->refused && (TAILQ_EMPTY(&v->queue) || TAILQ_FIRST(&v->queue) == s)) {
        return true;
    }
    if (!s->queued) {
        s->queued = true;
        s->left = RNIC_SENDER_BYTES;
        TAILQ_INSERT_TAIL(&v->queue, s, link);
    }
    return false;
}

static void dequeue(struct rnic_fair_vm *v, struct rnic_sender *s)
{
    if (s->queued) {
        s->queued = false;
        TAILQ_REMOVE(&v->queue, s, link);
    }
}

bool rnic_fair_take(struct rnic_fair_vm *v, struct rnic_sender *s, uint32_t bytes,
                    uint64_t now)
{
    if (v->goes) {
        return true; /* it is posted as what may not wait */
    }
    if (!rnic_fair_may(v, s)) {
        return false;
    }
    if (!rate_allows(v->rate, now)) {
        v->limited = v->refused = true;
        return rnic_fair_may(v, s);
    }
    s->charged = false;
    if (others_wait(v) || fair_is_slow(v, now) || !fair_reserve(v->fair, bytes)) {
        s->charged = fair_reserve_in_turn(v, bytes, now);
        v->refused = !s->charged;
    }
    if (v->refused) {
        return rnic_fair_may(v, s);
    }
    s->left -= MIN(s->left, bytes);
    if (!s->left) {
        dequeue(v, s);
    }
    s->reserved = bytes;
    fair_own(v, pack(bytes, 1));
    rate_charge(v->rate, bytes);
    return true;
}

/* First what was taken first; what was written off is not there any more. */
static void fair_release(struct rnic_fair_vm *v, uint64_t bytes, uint32_t n)
{
    unsigned now = atomic_load_explicit(&v->fair->period, memory_order_relaxed);
    uint64_t done = fair_disown(&v->flying[!now], bytes, n);

    done += fair_disown(&v->flying[now], bytes - (done & BYTES), n - (done >> BYTE_BITS));
    if (done) {
        atomic_fetch_sub(&v->fair->used, done);
        v->freed = true;
    }
}

/* Less than was taken is used: @bytes, @n SENDs. */
static void fair_give_back(struct rnic_fair_vm *v, struct rnic_sender *s, uint32_t bytes,
                           uint32_t n)
{
    fair_release(v, bytes, n);
    rate_charge(v->rate, -(int64_t)bytes);
    v->refund += s->charged ? bytes : 0;
    s->reserved = 0;
}

void rnic_fair_posted(struct rnic_fair_vm *v, struct rnic_sender *s, uint32_t len)
{
    if (s->reserved) {
        fair_give_back(v, s, s->reserved - len, 0);
    } else {
        atomic_fetch_add(&v->fair->used, pack(len, 1));
        fair_own(v, pack(len, 1));
        rate_charge(v->rate, len);
    }
}

void rnic_fair_done(struct rnic_fair_vm *v, uint64_t bytes, uint32_t n)
{
    fair_release(v, bytes, n);
}

void rnic_fair_withdraw(struct rnic_fair_vm *v, struct rnic_sender *s)
{
    dequeue(v, s);
    if (s->reserved) {
        fair_give_back(v, s, s->reserved, 1);
    }
}

void rnic_fair_last(struct rnic_fair_vm *v)
{
    v->goes = true;
}

void rnic_fair_look(struct rnic_fair_vm *v, uint64_t now)
{
    v->looked = now;
    if (rnic_fair_told(v)) {
        atomic_store(&v->told, false);
    }
    v->refused = v->limited = false;
}

void rnic_fair_settle(struct rnic_fair_vm *v)
{
    bool waits = atomic_load_explicit(&v->waits, memory_order_relaxed);
    bool goes = waits && (TAILQ_EMPTY(&v->queue) || v->limited);

    if (goes || (others_wait(v) && (waits || v->freed))) {
        pthread_mutex_lock(&v->fair->lock);
        if (goes) {
            fair_part(v);
        }
        fair_offer(v->fair, v);
        pthread_mutex_unlock(&v->fair->lock);
    }
    v->freed = false;
}

uint64_t rnic_fair_due(const struct rnic_fair_vm *v)
{
    if (TAILQ_EMPTY(&v->queue)) {
        return UINT64_MAX;
    }
    if (v->limited) {
        return rate_due(v->rate);
    }
    return v->refused ? v->looked + RNIC_FAIR_LATE_NS : 0;
}

/* ---- main thread ---- */

uint64_t rnic_fair_default(uint64_t mbit_s)
{
    uint64_t bytes = MIN(mbit_s, RNIC_FAIR_MAX_BYTES) * 100 / 8;

    return CLAMP(bytes, RNIC_FAIR_BYTES, RNIC_FAIR_MAX_BYTES);
}

void rnic_fair_init(struct rnic_fair *f, uint64_t bytes, uint32_t requests,
                    uint64_t mbit_s)
{
    atomic_init(&f->most, pack(bytes, requests));
    f->least = mbit_s ? RNIC_FAIR_PERIOD * bytes * 8000 / mbit_s : RNIC_FAIR_UNKNOWN_NS;
    f->least = MAX(f->least, RNIC_FAIR_LEAST_NS);
    LIST_INIT(&f->vms);
    pthread_mutex_init(&f->lock, NULL);
    if (!deadlines_init(&f->waiting, CONFIG_MAX_VMS)) {
        g_error("no memory for those that wait for a NIC");
    }
}

void rnic_fair_fini(struct rnic_fair *f)
{
    g_assert(LIST_EMPTY(&f->vms) && !atomic_load(&f->used));
    deadlines_fini(&f->waiting);
    pthread_mutex_destroy(&f->lock);
}

void rnic_fair_close(struct rnic_fair *f)
{
    struct rnic_fair_vm *v;

    atomic_store(&f->most, UINT64_MAX);
    pthread_mutex_lock(&f->lock);
    while ((v = fair_first(f))) {
        fair_offer(f, NULL);
        fair_part(v);
    }
    pthread_mutex_unlock(&f->lock);
}

void rnic_fair_usage(const struct rnic_fair *f, struct rnic_nic_usage *u)
{
    uint64_t most = atomic_load(&f->most), used = atomic_load(&f->used);

    u->max_bytes = most & BYTES;
    u->max_requests = (uint32_t)(most >> BYTE_BITS);
    u->bytes = used & BYTES;
    u->requests = (uint32_t)(used >> BYTE_BITS);
    u->waiting = atomic_load(&f->n_waiting);
}

void rnic_fair_enter(struct rnic_fair *f, struct rnic_fair_vm *v, struct vm *vm,
                     uint32_t shares, struct rnic_rate *rate)
{
    g_assert(shares);
    v->fair = f;
    v->vm = vm;
    v->shares = shares;
    v->rate = rate;
    TAILQ_INIT(&v->queue);
    pthread_mutex_lock(&f->lock);
    LIST_INSERT_HEAD(&f->vms, v, link);
    pthread_mutex_unlock(&f->lock);
}

void rnic_fair_gone(struct rnic_fair_vm *v)
{
    struct rnic_fair *f = v->fair;

    pthread_mutex_lock(&f->lock);
    fair_part(v);
    v->vm = NULL;
    fair_disown_all(v); /* nobody looks at what completes */
    fair_offer(f, v);
    pthread_mutex_unlock(&f->lock);
}

void rnic_fair_leave(struct rnic_fair_vm *v)
{
    rnic_fair_gone(v);
    g_assert(TAILQ_EMPTY(&v->queue));
    pthread_mutex_lock(&v->fair->lock);
    LIST_REMOVE(v, link);
    pthread_mutex_unlock(&v->fair->lock);
}
