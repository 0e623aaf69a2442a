/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Channels, flows: their indices, how they are opened and closed, and whose turn it is.
 *
 * Each side numbers the flows for itself.  A side opens one by OPEN with its index, which
 * the peer answers by OPENED with its own, or refuses; and each side sends one CLOSE when
 * it sends no more.  An index is used again when both were: ours has been queued, so it
 * is before whatever uses the index next, and the peer's has come, so nothing comes for
 * the flow that had it.  Until then what comes for a closed flow is dropped.
 *
 * These messages wait until there is room, and go before DATA.  They are not many: a
 * flow has one CLOSE, 256 OPENs of the peer are unanswered at most, until OPENED is sent,
 * and own OPENs, which wait for the other messages and for answers, are refused to the
 * caller beyond a number.
 */
#include "transport/rnic/channel_internal.h"

#include <stdlib.h>

#define FIRST_PLACES 64u

/* ---- numbers ---- */

static void put_index(uint8_t *p, uint32_t index)
{
    index = GUINT32_TO_BE(index);
    memcpy(p, &index, sizeof(index));
}

static uint32_t get_index(const uint8_t *p)
{
    uint32_t index;

    memcpy(&index, p, sizeof(index));
    return GUINT32_FROM_BE(index);
}

/* Is @index one that the peer may use anew? */
static bool peer_may_use(const struct rnic_channel *ch, uint32_t index)
{
    return index && index < RNIC_FLOWS && !(ch->peer_uses[index / 8] & 1u << index % 8);
}

/* It does, or not any more. */
static void peer_uses(struct rnic_channel *ch, uint32_t index, bool uses)
{
    uint8_t bit = (uint8_t)(1u << index % 8);

    if (uses) {
        ch->peer_uses[index / 8] |= bit;
    } else {
        ch->peer_uses[index / 8] &= (uint8_t)~bit;
    }
}

/* ---- places ---- */

static void place_add_free(struct rnic_channel *ch, uint32_t index)
{
    ch->place[index] = (struct channel_place){0};
    if (ch->last_free) {
        ch->place[ch->last_free].next = index;
    } else {
        ch->first_free = index;
    }
    ch->last_free = index;
}

/* False: there are as many as there may be, or there is no memory. */
static bool place_more(struct rnic_channel *ch)
{
    uint32_t was = ch->n_places, n = was ? 2 * was : FIRST_PLACES;
    struct channel_place *more;

    more = n <= RNIC_FLOWS ? realloc(ch->place, n * sizeof(*more)) : NULL;
    if (!more) {
        return false;
    }
    ch->place = more;
    ch->n_places = n;
    ch->place[0] = (struct channel_place){0}; /* no flow's */
    for (uint32_t i = MAX(was, 1); i < n; i++) {
        place_add_free(ch, i);
    }
    return true;
}

bool channel_take_place(struct rnic_channel *ch, struct rnic_flow *f, uint32_t peer_index)
{
    uint32_t index;

    if (!ch->first_free && !place_more(ch)) {
        return false;
    }
    index = ch->first_free;
    ch->first_free = ch->place[index].next;
    ch->last_free = ch->first_free ? ch->last_free : 0;
    ch->place[index] = (struct channel_place){.flow = f, .peer_index = peer_index};
    *f = (struct rnic_flow){.channel = ch, .index = index, .peer_index = peer_index};
    return true;
}

static void place_release(struct rnic_channel *ch, uint32_t index)
{
    peer_uses(ch, ch->place[index].peer_index, false);
    place_add_free(ch, index);
}

/* NULL: there is none with this index. */
static struct channel_place *place_of(struct rnic_channel *ch, uint32_t index)
{
    return index < ch->n_places ? &ch->place[index] : NULL;
}

struct channel_place *channel_place(struct rnic_channel *ch, uint32_t index)
{
    struct channel_place *place = place_of(ch, index);

    return place && place->peer_index && !place->peer_closed ? place : NULL;
}

/* ---- messages ---- */

/* @n indices and then @bytes. */
static struct rnic_message *message_new(enum rnic_kind kind, const uint32_t *index,
                                        unsigned n, const uint8_t *bytes, size_t len)
{
    uint32_t head = n * (uint32_t)sizeof(*index);
    struct rnic_message *m = g_malloc(sizeof(*m) + head + len);

    g_assert(len <= RNIC_OPEN_MAX);
    m->kind = kind;
    m->index = index[0];
    m->len = head + (uint32_t)len;
    for (unsigned i = 0; i < n; i++) {
        put_index(m->bytes + i * sizeof(*index), index[i]);
    }
    if (len) {
        memcpy(m->bytes + head, bytes, len);
    }
    return m;
}

static void message_queue(struct rnic_channel *ch, enum rnic_kind kind,
                          const uint32_t *index, unsigned n, const uint8_t *bytes,
                          size_t len)
{
    struct rnic_message *m = message_new(kind, index, n, bytes, len);

    TAILQ_INSERT_TAIL(&ch->messages, m, link);
    channel_touch(ch);
}

static void message_drop_open(struct rnic_channel *ch, struct rnic_message *m)
{
    TAILQ_REMOVE(&ch->opens, m, link);
    ch->n_opens--;
    ch->place[m->index].open = NULL;
    g_free(m);
}

static bool message_stage(struct rnic_channel *ch, const struct rnic_message *m)
{
    struct rnic_frame frame = {.kind = (uint8_t)m->kind};

    return channel_stage(ch, &frame, m->bytes, m->len, true) >= 0;
}

bool channel_stage_messages(struct rnic_channel *ch)
{
    struct rnic_message *m;

    while ((m = TAILQ_FIRST(&ch->messages))) {
        if (!message_stage(ch, m)) {
            return false;
        }
        ch->peer_asked -= m->kind == RNIC_OPENED;
        TAILQ_REMOVE(&ch->messages, m, link);
        g_free(m);
    }
    while (ch->asked < RNIC_OPENS && (m = TAILQ_FIRST(&ch->opens))) {
        if (!message_stage(ch, m)) {
            return false;
        }
        ch->asked++;
        message_drop_open(ch, m);
    }
    return true;
}

void channel_drop_places(struct rnic_channel *ch)
{
    struct rnic_message *m;

    for (uint32_t i = 1; i < ch->n_places; i++) {
        g_assert(!ch->place[i].flow);
    }
    while ((m = TAILQ_FIRST(&ch->opens))) {
        message_drop_open(ch, m);
    }
    while ((m = TAILQ_FIRST(&ch->messages))) {
        TAILQ_REMOVE(&ch->messages, m, link);
        g_free(m);
    }
    free(ch->place);
}

/* ---- ours ---- */

bool rnic_flow_begin(struct rnic_channel *ch, struct rnic_flow *f, const uint8_t *bytes,
                     size_t len)
{
    struct channel_place *place;

    if (ch->phase > RNIC_UP || ch->n_opens == RNIC_OPENS_WAIT ||
        !channel_take_place(ch, f, 0)) {
        return false;
    }
    place = &ch->place[f->index];
    place->asked = true;
    place->open = message_new(RNIC_OPEN, &f->index, 1, bytes, len);
    TAILQ_INSERT_TAIL(&ch->opens, place->open, link);
    ch->n_opens++;
    channel_touch(ch);
    return true;
}

bool rnic_flow_accept(struct rnic_channel *ch, struct rnic_flow *f, uint32_t peer_index,
                      const uint8_t *bytes, size_t len)
{
    if (ch->phase > RNIC_UP || !channel_take_place(ch, f, peer_index)) {
        return false;
    }
    message_queue(ch, RNIC_OPENED, (uint32_t[]){peer_index, f->index}, 2, bytes, len);
    return true;
}

void rnic_flow_refuse(struct rnic_channel *ch, uint32_t peer_index, const uint8_t *bytes,
                      size_t len)
{
    if (ch->phase <= RNIC_UP) {
        peer_uses(ch, peer_index, false);
        message_queue(ch, RNIC_OPENED, (uint32_t[]){peer_index, 0}, 2, bytes, len);
    }
}

/* The flow is closed, and the peer's index known: say so. */
static void place_close(struct rnic_channel *ch, uint32_t index)
{
    struct channel_place *place = &ch->place[index];

    place->closed = true;
    if (ch->phase <= RNIC_UP) {
        message_queue(ch, RNIC_CLOSE, &place->peer_index, 1, NULL, 0);
    }
    if (place->peer_closed) {
        place_release(ch, index);
    }
}

void rnic_flow_close(struct rnic_flow *f)
{
    struct rnic_channel *ch = f->channel;
    struct channel_place *place = &ch->place[f->index];

    rnic_flow_want(f, false);
    channel_forget(f);
    place->flow = NULL;
    if (place->open) { /* the peer knows nothing of it */
        message_drop_open(ch, place->open);
        place_release(ch, f->index);
    } else if (place->peer_index) {
        place_close(ch, f->index);
    } else if (!place->asked) { /* it was refused */
        place_release(ch, f->index);
    }
}

void rnic_flow_want(struct rnic_flow *f, bool wants)
{
    struct rnic_channel *ch = f->channel;

    if (wants == f->wants) {
        return;
    }
    g_assert(!wants || f->peer_index);
    f->wants = wants;
    if (wants) {
        TAILQ_INSERT_TAIL(&ch->wanting, f, want);
    } else {
        TAILQ_REMOVE(&ch->wanting, f, want);
    }
    channel_touch(ch);
}

ssize_t rnic_flow_send(struct rnic_flow *f, const uint8_t *bytes, size_t len)
{
    struct rnic_channel *ch = f->channel;
    struct rnic_frame frame = {.index = f->peer_index, .kind = RNIC_DATA};
    bool shared = !TAILQ_EMPTY(&ch->wanting);
    size_t most = shared ? MIN(len, f->allowance) : len, done = 0;
    ssize_t n;

    g_assert(f->peer_index);
    if (ch->phase > RNIC_UP) {
        return -1;
    }
    if (ch->cq->taking || !channel_stage_messages(ch)) {
        most = 0;
    }
    while (done < most &&
           (n = channel_stage(ch, &frame, bytes + done, most - done, false)) > 0) {
        done += (size_t)n;
    }
    f->allowance -= shared ? (uint32_t)done : 0;
    return ch->phase > RNIC_UP ? -1 : (ssize_t)done;
}

/* ---- the peer's ---- */

static const char *peer_opens(struct rnic_channel *ch, const uint8_t *bytes, uint32_t len)
{
    uint32_t index;

    if (len < 4 || len - 4 > RNIC_OPEN_MAX) {
        return "an OPEN of a wrong length";
    }
    index = get_index(bytes);
    if (!peer_may_use(ch, index)) {
        return "an OPEN with an index that is in use, or is none";
    }
    if (ch->peer_asked == RNIC_OPENS) {
        return "too many OPENs that are not answered";
    }
    if (ch->phase > RNIC_UP) {
        return NULL; /* nobody could answer */
    }
    peer_uses(ch, index, true);
    ch->peer_asked++;
    return ch->ops->open(ch, index, bytes + 4, len - 4) ? NULL
                                                        : "an OPEN that makes no sense";
}

static const char *peer_opened(struct rnic_channel *ch, const uint8_t *bytes,
                               uint32_t len)
{
    struct channel_place *place;
    uint32_t index, its;
    struct rnic_flow *f;

    if (len < 8 || len - 8 > RNIC_OPEN_MAX) {
        return "an OPENED of a wrong length";
    }
    index = get_index(bytes);
    its = get_index(bytes + 4);
    place = place_of(ch, index);
    if (!place || !place->asked || place->open) {
        return "an OPENED for what was not opened";
    }
    if (its && !peer_may_use(ch, its)) {
        return "an OPENED with an index that is in use, or is none";
    }
    ch->asked--;
    channel_touch(ch); /* the next one may go */
    place->asked = false;
    place->peer_index = its;
    if (its) {
        peer_uses(ch, its, true);
    }
    f = place->flow;
    if (f) {
        f->peer_index = its;
        return ch->ops->opened(f, its, bytes + 8, len - 8)
                   ? NULL
                   : "an OPENED that makes no sense";
    }
    if (its) {
        place_close(ch, index);
    } else {
        place_release(ch, index);
    }
    return NULL;
}

static const char *peer_closes(struct rnic_channel *ch, const uint8_t *bytes,
                               uint32_t len)
{
    struct channel_place *place;
    struct rnic_flow *f;
    uint32_t index;

    if (len != 4) {
        return "a CLOSE of a wrong length";
    }
    index = get_index(bytes);
    place = channel_place(ch, index);
    if (!place) {
        return "a CLOSE for what is not open";
    }
    place->peer_closed = true;
    f = place->flow;
    if (place->closed) {
        place_release(ch, index);
    } else if (f->waits) {
        f->ends = true;
    } else {
        ch->ops->closed(f);
    }
    return NULL;
}

const char *channel_control(struct rnic_channel *ch, const struct rnic_frame *h,
                            const uint8_t *bytes)
{
    switch (h->kind) {
    case RNIC_OPEN:
        return peer_opens(ch, bytes, h->len);
    case RNIC_OPENED:
        return peer_opened(ch, bytes, h->len);
    default:
        return peer_closes(ch, bytes, h->len);
    }
}
