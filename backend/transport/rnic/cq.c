/* SPDX-License-Identifier: GPL-2.0-or-later */
/* See cq.h. */
#include "transport/rnic/cq.h"

#include "transport/rnic/channel_internal.h"

#define BATCH 16

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
    for (unsigned n = 0; n < RNIC_CQ_CHANNELS; n++) {
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

/* How many there were, of a batch. */
static int cq_poll(struct rnic_cq *cq)
{
    struct ibv_wc wc[BATCH];
    struct rnic_channel *ch;
    int n = cq->dead ? 0 : rnic_verbs->poll_cq(cq->cq, BATCH, wc);

    if (n < 0 || n > BATCH) {
        cq_die(cq);
        n = 0;
    }
    for (int i = 0; i < n; i++) {
        cq_completion(cq, &wc[i]);
    }
    if (n) {
        TAILQ_FOREACH(ch, &cq->touched, touch)
        {
            channel_repost(ch);
        }
    }
    return n;
}

static void cq_looked(struct rnic_cq *cq)
{
    struct rnic_channel *ch;

    TAILQ_FOREACH(ch, &cq->touched, touch)
    {
        channel_looked(ch);
    }
}

bool rnic_cq_look(struct rnic_cq *cq, uint64_t now, unsigned most)
{
    struct deadline *d;
    int n;

    cq->now = now;
    do {
        n = cq_poll(cq);
        most -= MIN(most, (unsigned)n);
    } while (n == BATCH && most);
    cq_looked(cq);
    if (n == BATCH) {
        return true; /* what somebody waits for may be among it */
    }
    while ((d = deadlines_first(&cq->deadlines)) && d->when <= now) {
        deadline_remove(&cq->deadlines, d);
        channel_tick(
            (struct rnic_channel *)(void *)((char *)d -
                                            offsetof(struct rnic_channel, deadline)));
    }
    return false;
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
}

uint64_t rnic_cq_due(const struct rnic_cq *cq)
{
    return TAILQ_EMPTY(&cq->touched) ? deadlines_next(&cq->deadlines) : 0;
}

bool rnic_cq_arm(struct rnic_cq *cq, uint64_t now)
{
    int n;

    cq->now = now;
    if (!cq->dead && rnic_verbs->req_notify_cq(cq->cq, 0) != 0) {
        cq_die(cq);
    }
    /* What came before that told nobody. */
    n = cq_poll(cq);
    cq_looked(cq);
    return n == 0;
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
