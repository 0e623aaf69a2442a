/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Event rings in the state stream.
 *
 * In two parts: the rings, whose vectors CQs name, and what waits for room in them,
 * which is of CQs, QPs and SRQs.  Of a ring there are its pages and our producer index;
 * the consumer's is the guest's, and in its memory.
 *
 * Main thread; the data path stands still, so nobody else is at the rings.
 */
#include <string.h>

#include "base/coro.h"
#include "guest/events.h"
#include "guest/guest.h"
#include "guest/pagelist.h"

static void ring_save(const struct event_ring *ring, struct state_out *s)
{
    state_put_u32(s, ring->npages);
    pagelist_save(ring->page, ring->npages, s);
    state_put_u32(s, ring->prod);
}

/* What ring_save() has saved.  False: it is none. */
static bool ring_load(struct state_in *s, uint64_t page[EVENT_RING_MAX_PAGES],
                      uint32_t *npages, uint32_t *prod)
{
    *npages = state_get_count(s, EVENT_RING_MAX_PAGES, sizeof(page[0]));
    if (*npages < 2) {
        state_fail(s, "an event ring has %u pages", *npages);
        return false;
    }
    pagelist_load(page, *npages, s);
    *prod = state_get_u32(s);
    return !state_failed(s);
}

static void ring_seek(struct event_ring *ring, uint32_t prod, struct state_in *s)
{
    pthread_mutex_lock(&ring->lock);
    if (prod >= ring->slots * 2) {
        state_fail(s, "an event ring has no entry %u", prod);
    } else {
        ring->prod = prod;
    }
    pthread_mutex_unlock(&ring->lock);
}

static void first_ring_load(struct event_ring *ring, uint32_t elem, struct state_in *s)
{
    uint64_t page[EVENT_RING_MAX_PAGES];
    uint32_t npages, prod;

    if (ring_load(s, page, &npages, &prod)) {
        event_ring_setup(ring, npages, page, elem);
        ring_seek(ring, prod, s);
    }
}

static unsigned n_vectors(const struct guest_events *ev)
{
    unsigned n = 0;

    for (unsigned i = 1; i < PVRDMA_EXT_MAX_VECTORS; i++) {
        n += event_vector_exists(ev, i);
    }
    return n;
}

void event_save(struct guest_events *ev, bool given, struct state_out *s)
{
    if (!given) {
        return;
    }
    ring_save(&ev->async, s);
    ring_save(&ev->cqn[0].ring, s);
    state_put_u32(s, n_vectors(ev));
    for (unsigned i = 1; i < PVRDMA_EXT_MAX_VECTORS; i++) {
        if (event_vector_exists(ev, i)) {
            state_put_u32(s, i);
            ring_save(&ev->cqn[i].ring, s);
        }
    }
}

static void vector_load(struct guest_events *ev, struct state_in *s)
{
    uint64_t page[EVENT_RING_MAX_PAGES];
    uint32_t i = state_get_u32(s), npages, prod;

    if (!ring_load(s, page, &npages, &prod)) {
        return;
    }
    if (event_vector_add(ev, i, npages, page) != 0) {
        state_fail(s, "completion vector %u cannot be added", i);
        return;
    }
    ring_seek(&ev->cqn[i].ring, prod, s);
}

void event_load(struct guest_events *ev, bool given, bool active, bool held,
                struct state_in *s)
{
    uint32_t n;

    if (given) {
        first_ring_load(&ev->async, sizeof(struct pvrdma_eqe), s);
        first_ring_load(&ev->cqn[0].ring, sizeof(struct pvrdma_cqne), s);
        n = state_get_count(s, active ? PVRDMA_EXT_MAX_VECTORS - 1 : 0, 1);
        for (uint32_t i = 0; i < n && !state_failed(s); i++) {
            vector_load(ev, s);
        }
    }
    event_set_active(ev, active && !state_failed(s), held);
}

/* ---- what waits ---- */

static uint32_t n_words(const struct guest_events *ev)
{
    return (ev->max_cq + 63) / 64;
}

static uint32_t count_deferred(const struct guest_events *ev, const struct event_cq *v)
{
    uint32_t n = 0;

    for (uint32_t w = 0; v->deferred && w < n_words(ev); w++) {
        n += (uint32_t)__builtin_popcountll(v->deferred[w]);
    }
    return n;
}

static void deferred_save(const struct guest_events *ev, struct state_out *s)
{
    uint32_t n = 0;

    for (unsigned i = 0; i < PVRDMA_EXT_MAX_VECTORS; i++) {
        n += count_deferred(ev, &ev->cqn[i]);
    }
    state_put_u32(s, n);
    for (unsigned i = 0; i < PVRDMA_EXT_MAX_VECTORS; i++) {
        const struct event_cq *v = &ev->cqn[i];

        for (uint32_t w = 0; v->deferred && w < n_words(ev); w++) {
            for (uint64_t left = v->deferred[w]; left; left &= left - 1) {
                state_put_u32(s, w * 64 + (uint32_t)__builtin_ctzll(left));
                state_put_u32(s, i);
            }
        }
    }
}

void event_waiting_save(struct guest_events *ev, struct state_out *s)
{
    const uint32_t max[] = {ev->max_cq, ev->max_qp, ev->max_srq};
    const uint8_t *bits = ev->pending;
    uint32_t n = 0;

    deferred_save(ev, s);
    for (uint32_t i = 0; ev->n_pending && i < ev->max_cq + ev->max_qp + ev->max_srq;
         i++) {
        n += ev->pending[i] != 0;
    }
    state_put_u32(s, n);
    for (unsigned what = EVENT_OF_CQ; n && what <= EVENT_OF_SRQ; what++) {
        for (uint32_t h = 0; h < max[what]; h++) {
            if (bits[h]) {
                state_put_u8(s, (uint8_t)what);
                state_put_u32(s, h);
                state_put_u8(s, bits[h]);
            }
        }
        bits += max[what];
    }
}

typedef bool (*exists_fn)(void *opaque, enum event_object what, uint32_t handle,
                          int vector);

static void deferred_load(struct guest_events *ev, exists_fn exists, void *opaque,
                          struct state_in *s)
{
    uint32_t n = state_get_count(s, ev->max_cq, 8);

    for (uint32_t i = 0; i < n; i++) {
        uint32_t h = state_get_u32(s), vector = state_get_u32(s);

        if (h >= ev->max_cq || !event_vector_exists(ev, vector) ||
            !exists(opaque, EVENT_OF_CQ, h, (int)vector)) {
            state_fail(s, "CQ %u has no vector %u", h, vector);
            return;
        }
        pthread_mutex_lock(&ev->cqn[vector].ring.lock);
        ev->cqn[vector].deferred[h / 64] |= 1ull << (h % 64);
        atomic_fetch_or(&ev->deferred_any, 1u << vector);
        pthread_mutex_unlock(&ev->cqn[vector].ring.lock);
        coro_breathe();
    }
}

void event_waiting_load(struct guest_events *ev, exists_fn exists, void *opaque,
                        struct state_in *s)
{
    const uint32_t first[] = {0, ev->max_cq, ev->max_cq + ev->max_qp};
    const uint32_t max[] = {ev->max_cq, ev->max_qp, ev->max_srq};
    uint32_t n;

    deferred_load(ev, exists, opaque, s);
    n = state_get_count(s, ev->max_cq + ev->max_qp + ev->max_srq, 6);
    for (uint32_t i = 0; i < n; i++) {
        unsigned what = state_get_u8(s);
        uint32_t h = state_get_u32(s);
        uint8_t bits = state_get_u8(s);

        if (what > EVENT_OF_SRQ || h >= max[what] ||
            !event_bits_valid((enum event_object)what, bits) ||
            !exists(opaque, (enum event_object)what, h, -1)) {
            state_fail(s, "an event of an unknown object");
            return;
        }
        event_set_pending(ev, first[what] + h, bits);
        coro_breathe();
    }
}
