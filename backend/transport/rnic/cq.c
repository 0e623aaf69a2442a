/* SPDX-License-Identifier: GPL-2.0-or-later */
/* See cq.h. */
#include "transport/rnic/cq.h"

#include "transport/rnic/channel_internal.h"

/* A work request's ID: what it is, 23 bits of generation, 8 of place, 32 of number. */
#define WR_SEND            (1ull << 63)
#define WR_GENERATION_MASK 0x7fffffu

bool rnic_cq_init(struct rnic_cq *cq, struct ibv_cq *ibv, struct ibv_comp_channel *events)
{
    *cq = (struct rnic_cq){.cq = ibv, .events = events};
    TAILQ_INIT(&cq->touched);
    return deadlines_init(&cq->deadlines, RNIC_CQ_CHANNELS);
}

void rnic_cq_fini(struct rnic_cq *cq)
{
    deadlines_fini(&cq->deadlines);
}

bool rnic_cq_enter(struct rnic_cq *cq, struct rnic_channel *ch)
{
    for (unsigned n = 0; n < RNIC_CQ_CHANNELS && !cq->dead; n++) {
        unsigned slot = (cq->next + n) % RNIC_CQ_CHANNELS;

        if (!cq->channel[slot]) {
            cq->channel[slot] = ch;
            cq->next = slot + 1; /* the one that was left last is used last */
            ch->slot = slot;
            return true;
        }
    }
    return false;
}

void rnic_cq_leave(struct rnic_cq *cq, struct rnic_channel *ch)
{
    cq->channel[ch->slot] = NULL;
    cq->generation[ch->slot]++;
    deadline_remove(&cq->deadlines, &ch->deadline);
    if (ch->touched) {
        TAILQ_REMOVE(&cq->touched, ch, touch);
    }
}

uint64_t rnic_cq_wr_id(const struct rnic_channel *ch, bool is_send, uint32_t seq)
{
    uint64_t generation = ch->cq->generation[ch->slot] & WR_GENERATION_MASK;

    return (is_send ? WR_SEND : 0) | generation << 40 | (uint64_t)ch->slot << 32 | seq;
}

static void cq_completion(struct rnic_cq *cq, const struct ibv_wc *wc)
{
    unsigned slot = wc->wr_id >> 32 & (RNIC_CQ_CHANNELS - 1);
    struct rnic_channel *ch = cq->channel[slot];

    if (!ch || ch->phase == RNIC_BROKEN ||
        (wc->wr_id >> 40 & WR_GENERATION_MASK) !=
            (cq->generation[slot] & WR_GENERATION_MASK)) {
        cq->strays++;
    } else if (wc->wr_id & WR_SEND) {
        channel_sent(ch, (uint32_t)wc->wr_id, wc->status);
    } else {
        channel_arrived(ch, (uint32_t)wc->wr_id, wc);
    }
}

/* The NIC has gone: nothing comes any more. */
static void cq_die(struct rnic_cq *cq)
{
    if (!cq->dead) {
        cq->dead = true;
        for (unsigned i = 0; i < RNIC_CQ_CHANNELS; i++) {
            if (cq->channel[i]) {
                channel_fail(cq->channel[i], "the completion queue cannot be polled");
            }
        }
    }
}

/* Is there anything to take?  It is polled if not. */
static bool cq_fill(struct rnic_cq *cq)
{
    int n;

    if (cq->wc_first != cq->wc_next) {
        return true;
    }
    n = cq->dead ? 0 : rnic_verbs->poll_cq(cq->cq, RNIC_CQ_BATCH, cq->wc);
    if (n < 0 || n > (int)RNIC_CQ_BATCH) {
        cq_die(cq);
        n = 0;
    }
    cq->wc_first = 0;
    cq->wc_next = (unsigned)n;
    return n;
}

bool rnic_cq_peek(struct rnic_cq *cq)
{
    bool any = cq_fill(cq);

    cq->idle |= !any;
    return any || (cq->fair && rnic_fair_told(cq->fair));
}

/* Take what was polled, about @most bytes.  How much it was. */
static size_t cq_take(struct rnic_cq *cq, size_t most)
{
    struct rnic_channel *ch;
    size_t taken = 0;

    cq->taking = true;
    while (cq->wc_first != cq->wc_next && taken < most) {
        const struct ibv_wc *wc = &cq->wc[cq->wc_first++];

        taken += RNIC_CQ_COST;
        if (!(wc->wr_id & WR_SEND) && wc->status == IBV_WC_SUCCESS) {
            taken += MIN(wc->byte_len, RNIC_SIZE_MAX);
        }
        cq_completion(cq, wc);
    }
    cq->taking = false;
    TAILQ_FOREACH(ch, &cq->touched, touch)
    {
        channel_repost(ch);
    }
    return taken;
}

/* Has nobody looked, though there was something to look at? */
static bool cq_was_away(const struct rnic_cq *cq, uint64_t now)
{
    uint64_t from = cq->idle ? MAX(cq->now, deadlines_next(&cq->deadlines)) : cq->now;

    return now > from && now - from > RNIC_CQ_AWAY_NS;
}

bool rnic_cq_look(struct rnic_cq *cq, uint64_t now, size_t most)
{
    bool away = cq_was_away(cq, now), more;
    struct rnic_channel *ch;
    struct deadline *d;

    cq->now = now;
    cq->idle = false;
    for (unsigned i = 0; away && i < RNIC_CQ_CHANNELS; i++) {
        if (cq->channel[i]) {
            channel_begin_anew(cq->channel[i]);
        }
    }
    TAILQ_FOREACH(ch, &cq->touched, touch)
    {
        channel_post_staged(ch);
    }
    do { /* what was polled before need not be the last that came */
        more = cq->wc_first != cq->wc_next;
        more = cq_fill(cq) && (more || cq->wc_next == RNIC_CQ_BATCH);
        most -= MIN(most, cq_take(cq, most));
    } while (most && more);
    more |= cq->wc_first != cq->wc_next;
    /* What somebody waits for may be among what is left. */
    cq->ripe = more ? now - MIN(now, RNIC_CQ_LATE_NS) : now;
    if (cq->fair) {
        rnic_fair_look(cq->fair, now);
        channel_touch_next(cq->fair);
    }
    TAILQ_FOREACH(ch, &cq->touched, touch)
    {
        channel_looked(ch);
    }
    while ((d = deadlines_first(&cq->deadlines)) && d->when <= cq->ripe) {
        deadline_remove(&cq->deadlines, d);
        channel_tick(
            (struct rnic_channel *)(void *)((char *)d -
                                            offsetof(struct rnic_channel, deadline)));
    }
    return more;
}

void rnic_cq_flush(struct rnic_cq *cq)
{
    struct rnic_channel_list list = TAILQ_HEAD_INITIALIZER(list);
    struct rnic_channel *ch;

    TAILQ_CONCAT(&list, &cq->touched, touch);
    while ((ch = TAILQ_FIRST(&list))) {
        TAILQ_REMOVE(&list, ch, touch);
        ch->touched = false;
        channel_flush(ch); /* it may be touched again: it has more to do */
    }
    if (cq->fair) {
        rnic_fair_settle(cq->fair);
    }
}

uint64_t rnic_cq_due(const struct rnic_cq *cq)
{
    bool now = !TAILQ_EMPTY(&cq->touched) || cq->wc_first != cq->wc_next;
    uint64_t turn = cq->fair ? rnic_fair_due(cq->fair) : UINT64_MAX;

    return now ? 0 : MIN(turn, deadlines_next(&cq->deadlines));
}

bool rnic_cq_arm(struct rnic_cq *cq, uint64_t now)
{
    if (!cq->dead && rnic_verbs->req_notify_cq(cq->cq, 0) != 0) {
        cq_die(cq);
    }
    /* What came before that told nobody. */
    cq->idle = !cq_fill(cq);
    cq->now = cq->idle ? now : cq->now;
    return cq->idle;
}

void rnic_cq_woken(struct rnic_cq *cq)
{
    struct ibv_cq *which;
    void *opaque;
    unsigned n = 0;

    while (rnic_verbs->get_cq_event(cq->events, &which, &opaque) == 0) {
        n++;
    }
    if (n) {
        rnic_verbs->ack_cq_events(cq->cq, n);
    }
}
