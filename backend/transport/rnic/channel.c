/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Channels: one host RC QP joins two VMs; the SENDs on it carry pieces of what their
 * queue pairs send each other (flows), into receives of the peer's daemon.  Nothing here
 * knows what those bytes are.  docs/rnic.md has the wire format.
 *
 * The rules:
 * 1. A channel that breaks posts nothing any more, has its host QP put to ERR, and is
 *    polled until every posted receive is back, a second at most.  What came is taken,
 *    in order; only then is that reported, with: was it all?  What the NIC says later
 *    is dropped (cq.h).
 * 2. Every SEND has a receive that waits for it: the host never answers RNR.  Credits are
 *    channel_tx.c's and channel_rx.c's.
 * 3. Nothing here waits: verbs that may block are asked of the owner, who runs them on a
 *    control thread and says later what became of it.
 *
 * Flows that find no room ask to be told, and are, one after the other, for 64 KiB each
 * while others wait.
 *
 * A peer that says nothing for half a second while frames are on their way is asked for
 * an answer, and is gone if none comes for as long: with iWARP nobody else would tell.
 * Without a credit there is nothing to ask with; but then the peer owes credits.
 *
 * Memory: two blocks for each direction, while one replaces the other; nothing is
 * allocated per message, but for flows that take nothing, see channel_rx.c.
 *
 * Threads: under the VM's token, all of it, but the making and freeing of blocks.
 */
#include "transport/rnic/channel_internal.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/log.h"

/* ---- blocks ---------------------------------------------------------------------- */

struct rnic_block *rnic_block_new(struct ibv_pd *pd, enum rnic_side side, unsigned n,
                                  uint32_t size)
{
    struct rnic_block *b = calloc(1, sizeof(*b));
    int err;

    g_assert(n && n <= RNIC_BLOCK_BUFFERS && rnic_size_class(size) < RNIC_SIZES);
    if (!b) {
        return NULL;
    }
    /* Not the heap's, which would keep megabytes when channels have gone. */
    b->memory = mmap(NULL, (size_t)n * size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b->memory == MAP_FAILED) {
        free(b);
        return NULL;
    }
    b->mr = rnic_verbs->reg_mr(pd, b->memory, (size_t)n * size,
                               side == RNIC_RX ? IBV_ACCESS_LOCAL_WRITE : 0);
    if (!b->mr) {
        err = errno;
        munmap(b->memory, (size_t)n * size);
        free(b);
        errno = err;
        return NULL;
    }
    b->n = n;
    b->size = size;
    for (unsigned i = 0; i < n; i++) {
        b->buffer[i].block = b;
        b->buffer[i].data = (uint8_t *)b->memory + (size_t)i * size;
    }
    return b;
}

/* A NIC may still store into these. */
_Atomic(struct rnic_block *) channel_stuck;

void rnic_block_free(struct rnic_block *b)
{
    int kept = rnic_verbs->dereg_mr(b->mr);

    if (kept) {
        b->stuck = atomic_exchange(&channel_stuck, b);
        log_msg(LOG_LVL_ERROR, "%zu bytes of a channel stay registered: %s",
                (size_t)b->n * b->size, g_strerror(abs(kept)));
        return;
    }
    munmap(b->memory, (size_t)b->n * b->size);
    free(b);
}

/* ---- its life ---------------------------------------------------------------------- */

struct rnic_channel *rnic_channel_new(const struct rnic_channel_config *config)
{
    unsigned class = rnic_size_class(config->peer_size);
    struct rnic_buffer *all[RNIC_BLOCK_BUFFERS];
    struct rnic_channel *ch;

    g_assert(config->tx->n >= 2 && config->rx->n >= 2);
    if (class == RNIC_SIZES || config->peer_receives < 2 ||
        config->peer_receives > RNIC_BLOCK_BUFFERS) {
        return NULL;
    }
    ch = calloc(1, sizeof(*ch));
    if (!ch) {
        return NULL;
    }
    ch->cq = config->cq;
    ch->fair = ch->cq->fair;
    if (!rnic_cq_enter(ch->cq, ch)) {
        free(ch);
        return NULL;
    }
    ch->qp = config->qp;
    ch->ops = config->ops;
    ch->owner = config->owner;
    ch->log = config->log;
    ch->name = config->name;
    ch->max_size = config->max_size;
    TAILQ_INIT(&ch->wanting);
    TAILQ_INIT(&ch->keeping);
    TAILQ_INIT(&ch->blocks);
    TAILQ_INIT(&ch->messages);
    TAILQ_INIT(&ch->opens);
    ch->tx.left[class] = ch->tx.n_left = config->peer_receives;
    ch->tx.low = ch->tx.high = class;
    for (unsigned i = 0; i < config->rx->n; i++) {
        all[i] = &config->rx->buffer[i];
    }
    if (!channel_post_receives(ch, all, config->rx->n)) {
        rnic_cq_leave(ch->cq, ch);
        free(ch);
        return NULL;
    }
    ch->rx.block = config->rx;
    ch->rx.told = config->rx->n;
    channel_add_tx(ch, config->tx);
    TAILQ_INSERT_TAIL(&ch->blocks, config->rx, link);
    TAILQ_INSERT_TAIL(&ch->blocks, config->tx, link);
    return ch;
}

void rnic_channel_up(struct rnic_channel *ch)
{
    if (ch->phase == RNIC_MADE) {
        ch->phase = RNIC_UP;
        channel_touch(ch);
    }
}

void rnic_channel_free(struct rnic_channel *ch)
{
    struct rnic_block *b;

    channel_drop_places(ch);
    channel_give_back(ch); /* that of a VM that has gone does not end */
    rnic_cq_leave(ch->cq, ch);
    while ((b = TAILQ_FIRST(&ch->blocks))) {
        TAILQ_REMOVE(&ch->blocks, b, link);
        ch->ops->spare(ch, b);
    }
    free(ch);
}

void *rnic_channel_owner(const struct rnic_channel *ch)
{
    return ch->owner;
}

enum rnic_phase rnic_channel_phase(const struct rnic_channel *ch)
{
    return ch->phase;
}

bool rnic_channel_is_silent(const struct rnic_channel *ch, uint64_t now)
{
    return ch->phase != RNIC_UP ||
           (ch->since && now > ch->since && now - ch->since > RNIC_SILENCE_NS / 2);
}

bool rnic_channel_awaits(const struct rnic_channel *ch)
{
    return ch->phase == RNIC_UP && ch->since;
}

uint64_t rnic_channel_heard(const struct rnic_channel *ch)
{
    return ch->heard;
}

void rnic_channel_grow(struct rnic_channel *ch, enum rnic_side side, struct rnic_block *b)
{
    if (!b && side == RNIC_TX) {
        ch->tx.grows = false;
        ch->tx.grow_at = ch->cq->now + RNIC_GROW_NS;
    } else if (!b) {
        ch->rx.grows = false;
        ch->rx.grow_at = ch->cq->now + RNIC_GROW_NS;
    } else {
        TAILQ_INSERT_TAIL(&ch->blocks, b, link);
        if (side == RNIC_TX) {
            ch->tx.grows = false;
            channel_add_tx(ch, b);
        } else {
            ch->rx.next = b;
        }
        channel_touch(ch);
    }
}

void channel_retire(struct rnic_channel *ch, struct rnic_block *b)
{
    if (b && !b->posted && b != ch->rx.block && b != ch->rx.next && b != ch->tx.block &&
        !(ch->tx.open && ch->tx.open->block == b)) {
        TAILQ_REMOVE(&ch->blocks, b, link);
        ch->ops->spare(ch, b);
    }
}

/* With frames on their way, or waiting for a credit, the peer has something to say. */
void channel_expect(struct rnic_channel *ch)
{
    if (!ch->since) {
        ch->since = ch->cq->now;
        channel_due(ch, ch->since + RNIC_SILENCE_NS);
    }
}

/* Those that want to send may, as long as there is room: as many as may find some. */
static void channel_serve(struct rnic_channel *ch)
{
    struct rnic_flow *f;

    for (unsigned n = ch->tx.n_free;
         n && channel_stage_messages(ch) && (f = TAILQ_FIRST(&ch->wanting)) &&
         channel_has_room(ch);
         n--) {
        rnic_flow_want(f, false);
        f->allowance = RNIC_QUANTUM;
        ch->ops->writable(f);
    }
}

/* ---- time ---------------------------------------------------------------------- */

void channel_touch(struct rnic_channel *ch)
{
    if (!ch->touched && ch->phase != RNIC_BROKEN) {
        ch->touched = true;
        TAILQ_INSERT_TAIL(&ch->cq->touched, ch, touch);
    }
}

void channel_due(struct rnic_channel *ch, uint64_t when)
{
    if (!ch->deadline.pos || when < ch->deadline.when) {
        deadline_remove(&ch->cq->deadlines, &ch->deadline);
        deadline_add(&ch->cq->deadlines, &ch->deadline, when);
    }
}

static void channel_end(struct rnic_channel *ch, bool all)
{
    struct rnic_flow *f;

    ch->phase = RNIC_BROKEN;
    channel_give_back(ch);
    while ((f = TAILQ_FIRST(&ch->wanting))) {
        rnic_flow_want(f, false);
    }
    while ((f = TAILQ_FIRST(&ch->keeping))) {
        channel_forget(f);
    }
    ch->ops->broken(ch, all);
}

/* The end, if all is back and taken, or it took too long. */
static void channel_check_broken(struct rnic_channel *ch)
{
    struct rnic_rx *rx = &ch->rx;
    uint64_t now = ch->cq->now, ripe = ch->cq->ripe, until;
    /* While the host QP is not in ERR more may come, even with no receive for it. */
    bool back = !rnic_ring_used(&rx->ring) && (ch->in_err || rx->flushed), all;

    if (!ch->break_until) {
        ch->break_until = now + (ch->cq->dead ? 0 : RNIC_BREAK_NS);
    }
    /* Some NICs never return a receive that was posted after they had failed (rxe). */
    if (rx->flushed && !ch->flush_until) {
        ch->flush_until = MIN(ch->break_until, now + RNIC_FLUSH_NS);
    }
    back |= rx->flushed && ripe >= ch->flush_until;
    if ((!back || rx->kept) && ripe < ch->break_until) {
        until = rx->flushed && !back ? ch->flush_until : ch->break_until;
        channel_due(ch, until);
        return;
    }
    all = !rx->lost && !rx->liar && !rx->kept && (back || rx->flushed);
    channel_end(ch, all);
}

static void channel_check_silence(struct rnic_channel *ch)
{
    uint64_t now = ch->cq->now, ripe = ch->cq->ripe;

    if (!ch->since) {
        return;
    }
    if (!ch->probed && ripe >= ch->since + RNIC_SILENCE_NS) {
        channel_post_staged(ch);
        if (channel_say(ch, RNIC_SEND_PROBE)) {
            ch->sent_since = false;
        }
        ch->probed = now;
    } else if (ch->probed && ripe >= ch->probed + RNIC_SILENCE_NS) {
        channel_fail(ch, "the peer is silent");
        return;
    }
    channel_due(ch, (ch->probed ? ch->probed : ch->since) + RNIC_SILENCE_NS);
}

void channel_tick(struct rnic_channel *ch)
{
    if (ch->phase <= RNIC_UP && ch->rx.withheld) {
        if (ch->cq->ripe >= ch->rx.withheld + RNIC_KEPT_NS) {
            channel_overrun(ch);
        }
        if (ch->rx.withheld) {
            channel_due(ch, MAX(ch->rx.withheld + RNIC_KEPT_NS, ch->cq->now + 1));
        }
    }
    if (ch->phase == RNIC_UP) {
        channel_check_silence(ch);
    }
    if (ch->phase == RNIC_BREAKING) {
        channel_check_broken(ch);
    }
}

void channel_begin_anew(struct rnic_channel *ch)
{
    ch->since = ch->since ? ch->cq->now : 0;
    ch->probed = 0;
    ch->rx.withheld = ch->rx.withheld ? ch->cq->now : 0;
    ch->break_until = ch->break_until ? ch->cq->now + RNIC_BREAK_NS : 0;
}

void channel_looked(struct rnic_channel *ch)
{
    if (ch->phase == RNIC_UP) {
        channel_serve(ch);
    }
    if (ch->phase == RNIC_BREAKING) {
        channel_check_broken(ch);
    }
}

void channel_flush(struct rnic_channel *ch)
{
    bool waits;

    if (ch->phase != RNIC_UP) {
        return;
    }
    waits = !channel_stage_messages(ch);
    channel_post_staged(ch);
    if (channel_owes(ch)) {
        channel_say(ch, 0);
    }
    if (channel_widen(ch)) {
        channel_say(ch, 0);
    }
    waits |= !TAILQ_EMPTY(&ch->wanting);
    if (waits && channel_has_room(ch)) {
        channel_touch(ch); /* those who were told did not need it */
    } else if (waits && !channel_has_credit(ch)) {
        channel_expect(ch);
    }
    if (TAILQ_EMPTY(&ch->wanting) || !channel_can_open(ch)) {
        channel_stand_back(ch);
    }
}

/* ---- the end --------------------------------------------------------------------- */

static void channel_begin_break(struct rnic_channel *ch)
{
    ch->phase = RNIC_BREAKING;
    channel_stand_back(ch);
    channel_due(ch, 0); /* at the next look, which knows what time it is */
    ch->ops->to_err(ch);
}

void channel_fail(struct rnic_channel *ch, const char *why)
{
    if (ch->phase <= RNIC_UP) {
        log_about(LOG_LVL_WARN, ch->log, "channel %s breaks: %s", ch->name, why);
        channel_begin_break(ch);
    }
}

void rnic_channel_break(struct rnic_channel *ch, const char *why)
{
    if (ch->phase <= RNIC_UP) {
        log_about(LOG_LVL_DEBUG, ch->log, "channel %s is broken: %s", ch->name, why);
        channel_begin_break(ch);
    }
}

void rnic_channel_in_err(struct rnic_channel *ch)
{
    ch->in_err = true;
    if (ch->phase == RNIC_BREAKING) {
        channel_due(ch, 0);
    }
}

void rnic_channel_drop(struct rnic_channel *ch)
{
    rnic_channel_break(ch, "what has come is not waited for");
    if (ch->phase == RNIC_BREAKING) {
        channel_end(ch, false);
    }
}
