/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Event rings: async events (8 bytes each) and CQ notifications (4 bytes).
 *
 * A ring is a header page with the ring state and npages - 1 pages of slots.
 * The guest driver computes n = (npages - 1) * 4096 / elem and does power-of-two
 * arithmetic with it although n is 1536 or 3072.  What really comes out of
 * those expressions: an index cycle of 2 * s and s distinct slots, s being the
 * largest power of two that divides n; and the driver's own test for "full"
 * never says yes.  So we use its expressions for indices and our own guard, s,
 * for the fill: prod - cons never exceeds s.
 *
 * Our producer index is the record of progress; of the guest's words only
 * cons_head is read, and it is only believed if it says that between 0 and s
 * elements are unread.  Otherwise the ring counts as full for async events
 * and notifications alike, and they are dropped.
 *
 * Notifications have a ring per completion vector: that of the shared region for
 * vector 0, others that the guest adds until its next reset.  A CQ keeps its vector, so
 * what follows is true of each ring by itself.
 *
 * A notification that finds a well-behaved ring full is not lost but deferred:
 * a bit per CQ, which the VM's worker retries.  So is an async event of a CQ, QP or SRQ:
 * a bit per object and type.  While any waits, those that are raised meanwhile wait
 * too, CQs' first, so that the failure of a CQ is told before what it did to its QPs.
 * Only what concerns the port or the device is dropped then, which is not raised here.
 *
 * Threads: setup and activation on the main thread, pushes from anywhere; the
 * ring's lock protects all of it.  A push stores the element, then prod_tail
 * with release order, then marks the page dirty.
 */
#include "guest/events.h"

#include <errno.h>
#include <string.h>

#include "guest/guest.h"

/* Deferred notifications or events tried in one go: others wait for the lock. */
#define RETRY_MAX 64u

static uint32_t bitmap_words(const struct guest_events *ev)
{
    return (ev->max_cq + 63) / 64;
}

/* Bytes of ev->pending. */
static uint32_t n_places(const struct guest_events *ev)
{
    return ev->max_cq + ev->max_qp + ev->max_srq;
}

void event_init(struct guest_events *ev, uint32_t max_cq, uint32_t max_qp,
                uint32_t max_srq)
{
    memset(ev, 0, sizeof(*ev));
    pthread_mutex_init(&ev->async.lock, NULL);
    for (unsigned i = 0; i < PVRDMA_EXT_MAX_VECTORS; i++) {
        pthread_mutex_init(&ev->cqn[i].ring.lock, NULL);
    }
    ev->max_cq = max_cq;
    ev->max_qp = max_qp;
    ev->max_srq = max_srq;
    ev->cqn[0].deferred = g_new0(uint64_t, bitmap_words(ev));
    /* Whole words, see first_place(). */
    ev->pending = g_new0(uint8_t, (n_places(ev) + 7) & ~7u);
    ev->first_pending = UINT32_MAX;
}

void event_fini(struct guest_events *ev)
{
    for (unsigned i = 0; i < PVRDMA_EXT_MAX_VECTORS; i++) {
        g_clear_pointer(&ev->cqn[i].deferred, g_free);
        pthread_mutex_destroy(&ev->cqn[i].ring.lock);
    }
    g_clear_pointer(&ev->pending, g_free);
    pthread_mutex_destroy(&ev->async.lock);
}

void event_ring_setup(struct event_ring *ring, uint32_t npages, const uint64_t *page,
                      uint32_t elem)
{
    pthread_mutex_lock(&ring->lock);
    ring->npages = npages;
    memcpy(ring->page, page, npages * sizeof(page[0]));
    ring->elem = elem;
    ring->n = (npages - 1) * PVRDMA_PAGE_SIZE / elem;
    ring->slots = ring->n & -ring->n;
    ring->prod = 0;
    pthread_mutex_unlock(&ring->lock);
}

static void ring_flags(struct event_ring *ring, bool active, bool held)
{
    pthread_mutex_lock(&ring->lock);
    ring->active = active;
    ring->held = held;
    pthread_mutex_unlock(&ring->lock);
}

/* Nothing waits any more; a vector but the first is gone. */
static void vector_clear(struct guest_events *ev, unsigned i)
{
    struct event_cq *v = &ev->cqn[i];

    pthread_mutex_lock(&v->ring.lock);
    if (i) {
        g_clear_pointer(&v->deferred, g_free);
    } else {
        memset(v->deferred, 0, bitmap_words(ev) * sizeof(v->deferred[0]));
    }
    atomic_fetch_and(&ev->deferred_any, ~(1u << i));
    pthread_mutex_unlock(&v->ring.lock);
}

int event_vector_add(struct guest_events *ev, uint32_t vector, uint32_t npages,
                     const uint64_t *page)
{
    struct event_cq *v;
    uint64_t *deferred;

    if (vector >= PVRDMA_EXT_MAX_VECTORS) {
        return EINVAL;
    }
    v = &ev->cqn[vector];
    if (v->deferred) {
        return EBUSY;
    }
    deferred = g_try_new0(uint64_t, bitmap_words(ev));
    if (!deferred) {
        return ENOMEM;
    }
    event_ring_setup(&v->ring, npages, page, sizeof(struct pvrdma_cqne));
    pthread_mutex_lock(&v->ring.lock);
    v->deferred = deferred;
    v->ring.active = true;
    pthread_mutex_unlock(&v->ring.lock);
    return 0;
}

bool event_vector_exists(const struct guest_events *ev, uint32_t vector)
{
    return vector < PVRDMA_EXT_MAX_VECTORS && ev->cqn[vector].deferred;
}

void event_set_active(struct guest_events *ev, bool active, bool held)
{
    ring_flags(&ev->async, active, held);
    for (unsigned i = 0; i < PVRDMA_EXT_MAX_VECTORS; i++) {
        ring_flags(&ev->cqn[i].ring, active && ev->cqn[i].deferred, held);
        if (!active) {
            vector_clear(ev, i);
        }
    }
    if (!active) {
        pthread_mutex_lock(&ev->async.lock);
        memset(ev->pending, 0, n_places(ev));
        ev->n_pending = 0;
        ev->first_pending = UINT32_MAX;
        atomic_store(&ev->pending_any, false);
        pthread_mutex_unlock(&ev->async.lock);
    }
}

void event_set_paused(struct guest_events *ev, bool paused)
{
    atomic_store(&ev->paused, paused);
}

/*
 * Elements that the guest has not consumed, or -1 if its index is impossible.
 */
static int64_t ring_fill(const struct event_ring *ring, const uint8_t *head)
{
    const struct pvrdma_ring_state *state = (const void *)head;
    uint32_t cycle = ring->slots * 2;
    uint32_t cons = __atomic_load_n(&state->rx.cons_head, __ATOMIC_ACQUIRE);
    uint32_t fill = (ring->prod - cons) & (cycle - 1);

    return cons >= cycle || fill > ring->slots ? -1 : (int64_t)fill;
}

/*
 * Push one element; ring->lock is held.  0, ENOSPC (full) or another errno (not
 * active, not accessible, corrupt).
 */
static int ring_push(struct event_ring *ring, struct guest *g, const void *elem)
{
    struct pvrdma_ring_state *state;
    uint32_t next, page, offset;
    int64_t fill;
    uint8_t *head;
    uint64_t gpa;

    if (!ring->active) {
        return ENODEV;
    }
    if (ring->held || atomic_load(&g->events.paused)) {
        return ENOSPC;
    }
    head = guest_ptr(&g->mem, ring->page[0], PVRDMA_PAGE_SIZE, true);
    fill = head ? ring_fill(ring, head) : -1;
    if (fill < 0) {
        return EFAULT;
    }
    if (fill == ring->slots) {
        return ENOSPC;
    }
    offset = pvrdma_idx_slot(ring->prod, ring->n) * ring->elem;
    page = 1 + offset / PVRDMA_PAGE_SIZE;
    gpa = ring->page[page] + offset % PVRDMA_PAGE_SIZE;
    if (!guest_write(&g->mem, gpa, elem, ring->elem)) {
        return EFAULT;
    }
    next = pvrdma_idx_next(ring->prod, ring->n);
    state = (void *)head;
    guest_store32(&g->mem,
                  ring->page[0] + offsetof(struct pvrdma_ring_state, rx.prod_tail),
                  &state->rx.prod_tail, next);
    ring->prod = next;
    ring->pushed++;
    return 0;
}

/* The highest bit is told first: of several what is no error, of a QP LAST_WQE last. */
static const uint8_t cq_bits[] = {PVRDMA_EVENT_CQ_ERR};
static const uint8_t qp_bits[] = {
    PVRDMA_EVENT_QP_LAST_WQE_REACHED, PVRDMA_EVENT_QP_FATAL, PVRDMA_EVENT_QP_REQ_ERR,
    PVRDMA_EVENT_QP_ACCESS_ERR,       PVRDMA_EVENT_COMM_EST, PVRDMA_EVENT_SQ_DRAINED,
};
static const uint8_t srq_bits[] = {PVRDMA_EVENT_SRQ_ERR, PVRDMA_EVENT_SRQ_LIMIT_REACHED};

/* The bit of @type in @bits; 0: no such event can wait. */
static uint8_t bit_in(const uint8_t *bits, unsigned n, enum pvrdma_event_type type)
{
    for (unsigned i = 0; i < n; i++) {
        if (bits[i] == type) {
            return (uint8_t)(1u << i);
        }
    }
    return 0;
}

/* Where such an event can wait, and as which bit; >= n_places(): nowhere. */
static uint32_t pending_place(const struct guest_events *ev, enum pvrdma_event_type type,
                              uint32_t info, uint8_t *bit)
{
    if (info < ev->max_cq && (*bit = bit_in(cq_bits, G_N_ELEMENTS(cq_bits), type))) {
        return info;
    }
    if (info < ev->max_qp && (*bit = bit_in(qp_bits, G_N_ELEMENTS(qp_bits), type))) {
        return ev->max_cq + info;
    }
    if (info < ev->max_srq && (*bit = bit_in(srq_bits, G_N_ELEMENTS(srq_bits), type))) {
        return ev->max_cq + ev->max_qp + info;
    }
    return UINT32_MAX;
}

/* async.lock is held. */
static void set_pending(struct guest_events *ev, uint32_t place, uint8_t bits)
{
    unsigned before = (unsigned)__builtin_popcount(ev->pending[place]);

    ev->pending[place] = bits;
    ev->n_pending += (unsigned)__builtin_popcount(bits) - before;
    if (bits) {
        ev->first_pending = MIN(ev->first_pending, place);
    }
    if (!ev->n_pending) {
        ev->first_pending = UINT32_MAX;
    }
    atomic_store(&ev->pending_any, ev->n_pending != 0);
}

void event_set_pending(struct guest_events *ev, uint32_t place, uint8_t bits)
{
    pthread_mutex_lock(&ev->async.lock);
    set_pending(ev, place, bits);
    pthread_mutex_unlock(&ev->async.lock);
}

bool event_bits_valid(enum event_object what, uint8_t bits)
{
    static const unsigned n[] = {
        [EVENT_OF_CQ] = G_N_ELEMENTS(cq_bits),
        [EVENT_OF_QP] = G_N_ELEMENTS(qp_bits),
        [EVENT_OF_SRQ] = G_N_ELEMENTS(srq_bits),
    };

    return bits && !(bits >> n[what]);
}

void event_async(struct guest *g, enum pvrdma_event_type type, uint32_t info)
{
    struct guest_events *ev = &g->events;
    struct pvrdma_eqe eqe = {.type = type, .info = info};
    uint8_t bit = 0;
    uint32_t place = pending_place(ev, type, info, &bit);
    bool can_wait = place < n_places(ev), first = false;
    int err;

    pthread_mutex_lock(&ev->async.lock);
    err = can_wait && ev->n_pending ? ENOSPC : ring_push(&ev->async, g, &eqe);
    if (err == ENOSPC && can_wait) {
        first = !ev->n_pending;
        set_pending(ev, place, ev->pending[place] | bit);
    } else if (err) {
        ev->async.dropped++;
    }
    pthread_mutex_unlock(&ev->async.lock);

    if (!err) {
        irq_raise(&g->irq, PVRDMA_VEC_ASYNC);
    } else if (first && ev->on_pending) {
        ev->on_pending(g);
    }
}

/* The next event of @place, which is *bit of it.  async.lock is held. */
static struct pvrdma_eqe next_pending(const struct guest_events *ev, uint32_t place,
                                      uint8_t *bit)
{
    unsigned i = 31 - (unsigned)__builtin_clz(ev->pending[place]);

    *bit = (uint8_t)(1u << i);
    if (place < ev->max_cq) {
        return (struct pvrdma_eqe){.type = cq_bits[i], .info = place};
    }
    place -= ev->max_cq;
    if (place < ev->max_qp) {
        return (struct pvrdma_eqe){.type = qp_bits[i], .info = place};
    }
    return (struct pvrdma_eqe){.type = srq_bits[i], .info = place - ev->max_qp};
}

/* Of those that are pending, from @place on, the first; there is one. */
static uint32_t first_place(const struct guest_events *ev, uint32_t place)
{
    uint64_t word;

    while (place % sizeof(word) && !ev->pending[place]) {
        place++;
    }
    if (place % sizeof(word)) {
        return place;
    }
    for (;; place += sizeof(word)) { /* there are 200,000 places and more */
        memcpy(&word, &ev->pending[place], sizeof(word));
        if (word) {
            return place + (uint32_t)__builtin_ctzll(GUINT64_FROM_LE(word)) / 8;
        }
    }
}

bool event_async_retry(struct guest *g)
{
    struct guest_events *ev = &g->events;
    uint64_t pushed;

    if (!atomic_load(&ev->pending_any)) {
        return false;
    }
    pthread_mutex_lock(&ev->async.lock);
    pushed = ev->async.pushed;
    for (unsigned n = 0; ev->n_pending && n < RETRY_MAX; n++) {
        uint32_t place = ev->first_pending;
        struct pvrdma_eqe eqe;
        uint8_t bit;
        int err;

        place = first_place(ev, place);
        ev->first_pending = place;
        eqe = next_pending(ev, place, &bit);
        err = ring_push(&ev->async, g, &eqe);
        if (err == ENOSPC) {
            break;
        }
        ev->async.dropped += err != 0;
        set_pending(ev, place, ev->pending[place] & (uint8_t)~bit);
    }
    pushed = ev->async.pushed - pushed;
    pthread_mutex_unlock(&ev->async.lock);
    return pushed > 0;
}

/* The ring's lock is held. */
static void set_deferred(struct event_cq *v, uint32_t handle, bool deferred)
{
    uint64_t bit = 1ull << (handle % 64);

    if (deferred) {
        v->deferred[handle / 64] |= bit;
    } else {
        v->deferred[handle / 64] &= ~bit;
    }
}

/* The ring's lock is held.  False: the ring is full, it was deferred. */
static bool notify_or_defer(struct guest *g, struct event_cq *v, uint32_t handle)
{
    struct pvrdma_cqne cqne = {.info = handle};
    int err = ring_push(&v->ring, g, &cqne);

    set_deferred(v, handle, err == ENOSPC);
    if (err && err != ENOSPC) {
        v->ring.dropped++;
    }
    return err != ENOSPC;
}

void event_cq_notify(struct guest *g, uint32_t cq_handle, uint32_t vector)
{
    struct guest_events *ev = &g->events;
    struct event_cq *v = &ev->cqn[vector];

    if (cq_handle >= ev->max_cq) {
        return;
    }
    pthread_mutex_lock(&v->ring.lock);
    /* Without a ring the device is being reset, and so are its CQs. */
    if (v->deferred && !notify_or_defer(g, v, cq_handle)) {
        atomic_fetch_or(&ev->deferred_any, 1u << vector);
    }
    pthread_mutex_unlock(&v->ring.lock);
}

/* True if some were pushed; *budget: how many may still be tried. */
static bool vector_retry(struct guest *g, unsigned i, unsigned *budget)
{
    struct guest_events *ev = &g->events;
    struct event_cq *v = &ev->cqn[i];
    uint64_t pushed;
    bool full = false;

    pthread_mutex_lock(&v->ring.lock);
    pushed = v->ring.pushed;
    for (uint32_t w = 0; v->deferred && w < bitmap_words(ev) && !full; w++) {
        for (uint64_t left = v->deferred[w]; left && !full; left &= left - 1) {
            full = *budget == 0 || !notify_or_defer(g, v, w * 64 + __builtin_ctzll(left));
            *budget -= !full;
        }
    }
    if (!full) {
        atomic_fetch_and(&ev->deferred_any, ~(1u << i));
    }
    pushed = v->ring.pushed - pushed;
    pthread_mutex_unlock(&v->ring.lock);
    return pushed > 0;
}

uint32_t event_cq_retry(struct guest *g)
{
    struct guest_events *ev = &g->events;
    uint32_t raise = 0, any = atomic_load(&ev->deferred_any);
    unsigned first = ev->retry_first, budget = RETRY_MAX;

    for (unsigned k = 0; any && budget && k < PVRDMA_EXT_MAX_VECTORS; k++) {
        unsigned i = (first + k) % PVRDMA_EXT_MAX_VECTORS;

        if (any & 1u << i) {
            raise |= (uint32_t)vector_retry(g, i, &budget) << i;
            ev->retry_first = i + 1;
        }
    }
    return raise;
}

void event_cq_forget(struct guest *g, uint32_t cq_handle, uint32_t vector)
{
    struct guest_events *ev = &g->events;
    struct event_cq *v = &ev->cqn[vector];

    pthread_mutex_lock(&v->ring.lock);
    if (v->deferred) {
        set_deferred(v, cq_handle, false);
    }
    pthread_mutex_unlock(&v->ring.lock);
    event_set_pending(ev, cq_handle, 0);
}

void event_qp_forget(struct guest *g, uint32_t qp_handle)
{
    struct guest_events *ev = &g->events;

    event_set_pending(ev, ev->max_cq + qp_handle, 0);
}

void event_srq_forget(struct guest *g, uint32_t srq_handle)
{
    struct guest_events *ev = &g->events;

    event_set_pending(ev, ev->max_cq + ev->max_qp + srq_handle, 0);
}
