/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Channels, frames out: SENDs are filled with frames of any flows, and posted when they
 * are full, at the latest at the turn's end.
 *
 * A SEND takes one of the peer's receives (a credit), the oldest one, whose size is known
 * as sizes only grow.  The last credit is kept for control: a SEND that tells of at
 * least one receive of ours may take it, and the next one when the peer has said that it
 * saw that.  So both sides can never be out of credits with nothing on its way: if a side
 * is out of them, its peer has receives to tell of; and if the peer could not say so, its
 * last SEND of that kind would have brought this side a credit, which it would have.
 *
 * This holds as each SEND tells of all that was received before it: receives are posted
 * again behind each batch of completions, and no SEND is filled or posted within one.  A
 * side that withholds what it should tell keeps a credit to tell it with, whatever its
 * peer has said, and does not say BACK.
 *
 * OPEN, OPENED and CLOSE go before DATA.
 *
 * No more than 1 MiB and a block's buffers are posted at a time; one buffer is kept for
 * what is told.  A SEND is opened for DATA if the NIC has room and it is the VM's turn
 * (fair.c); one that was opened for other frames, which do not wait, takes no DATA unless
 * that is so.  Each SEND has a completion: what is on its way is known, even of a VM that
 * sends no more.
 */
#include "transport/rnic/channel_internal.h"

/* Is there something to be told that is not? */
static bool tx_withholds(const struct rnic_channel *ch)
{
    return ch->rx.withheld && ch->rx.owed;
}

bool channel_has_credit(const struct rnic_channel *ch)
{
    return ch->tx.n_left > (ch->tx.control_used && !tx_withholds(ch) ? 0 : 1);
}

bool channel_can_open(const struct rnic_channel *ch)
{
    const struct rnic_tx *tx = &ch->tx;

    return ch->phase == RNIC_UP && channel_has_credit(ch) && tx->n_free > 1 &&
           tx->bytes < RNIC_POSTED_BYTES && rnic_ring_used(&tx->ring) < RNIC_POSTED - 1;
}

/* How many bytes the next SEND may have. */
static uint32_t tx_next_cap(const struct rnic_tx *tx)
{
    return MIN(tx->block->size, RNIC_SIZE_MIN << tx->low);
}

/* Begin a SEND; there is a buffer. */
static void tx_open(struct rnic_tx *tx)
{
    tx->open = tx->free[--tx->n_free];
    tx->fill = RNIC_SEND_HEADER;
    tx->cap = tx_next_cap(tx);
}

/* ---- the VM's part of the NIC ---- */

void channel_touch_next(struct rnic_fair_vm *v)
{
    struct rnic_sender *s = rnic_fair_head(v);

    if (s) {
        channel_touch(
            (struct rnic_channel *)(void *)((char *)s -
                                            offsetof(struct rnic_channel, sender)));
    }
}

/* May what is open, or the next one, take DATA? */
static bool tx_has_turn(struct rnic_channel *ch)
{
    return !ch->fair || (ch->tx.open && ch->sender.reserved) ||
           rnic_fair_may(ch->fair, &ch->sender);
}

/* ... It is to. */
static bool tx_take_turn(struct rnic_channel *ch)
{
    struct rnic_tx *tx = &ch->tx;
    uint32_t cap = tx->open ? tx->cap : tx_next_cap(tx);

    if (!ch->fair || (tx->open && ch->sender.reserved)) {
        return true;
    }
    if (!rnic_fair_take(ch->fair, &ch->sender, cap, ch->cq->now)) {
        return false;
    }
    channel_touch_next(ch->fair);
    return true;
}

bool rnic_flow_is_held_up(const struct rnic_flow *f)
{
    return f->wants && f->channel->sender.queued;
}

void channel_stand_back(struct rnic_channel *ch)
{
    if (ch->fair) {
        rnic_fair_withdraw(ch->fair, &ch->sender);
    }
}

void channel_give_back(struct rnic_channel *ch)
{
    if (ch->fair) {
        rnic_fair_withdraw(ch->fair, &ch->sender);
        rnic_fair_done(ch->fair, ch->tx.bytes, rnic_ring_used(&ch->tx.ring));
        rnic_fair_settle(ch->fair);
        ch->fair = NULL;
    }
}

/* ---- SENDs ---- */

/* A credit is used, the oldest. */
static void tx_use_credit(struct rnic_tx *tx)
{
    tx->left[tx->low]--;
    tx->n_left--;
    while (!tx->left[tx->low] && tx->low < tx->high) {
        tx->low++;
    }
}

/* Post what is open; there is a credit.  False: the channel fails. */
static bool tx_post(struct rnic_channel *ch, uint8_t flags)
{
    struct rnic_tx *tx = &ch->tx;
    struct rnic_rx *rx = &ch->rx;
    struct rnic_buffer *b = tx->open;
    uint32_t tells = rx->withheld ? 0 : rx->owed;
    struct ibv_sge sge = {(uintptr_t)b->data, tx->fill, b->block->mr->lkey};
    struct ibv_send_wr wr = {.wr_id = rnic_cq_wr_id(ch, true, tx->ring.next),
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED},
                       *bad;

    bool back = rx->back && !tx_withholds(ch);

    flags |= (back ? RNIC_SEND_BACK : 0) | (rx->answer ? RNIC_SEND_ANSWER : 0) |
             (tx->starved ? RNIC_SEND_STARVED : 0);
    rnic_put_send(b->data, &(struct rnic_send_head){flags, (uint16_t)tells,
                                                    tells ? rx->block->size : 0});
    if (rnic_verbs->post_send(ch->qp, &wr, &bad) != 0) {
        channel_fail(ch, "a SEND cannot be posted");
        return false;
    }
    tx->open = NULL;
    b->len = tx->fill;
    b->block->posted++;
    tx->ring.b[tx->ring.next++ % RNIC_POSTED] = b;
    tx->bytes += b->len;
    if (ch->fair) {
        rnic_fair_posted(ch->fair, &ch->sender, b->len);
    }
    tx_use_credit(tx);
    tx->control_used |= flags & RNIC_SEND_CONTROL;
    tx->starved = false;
    rx->told += tells;
    rx->owed -= tells;
    rx->used = rx->owed ? rx->used : 0;
    rx->back &= !back;
    rx->answer = false;
    if (b->len > RNIC_SEND_HEADER) { /* frames: to be reacted to */
        ch->sent_since = true;
        channel_expect(ch);
    }
    return true;
}

void channel_post_staged(struct rnic_channel *ch)
{
    if (ch->tx.open && ch->phase == RNIC_UP) {
        tx_post(ch, 0);
    }
}

bool channel_say(struct rnic_channel *ch, enum rnic_send_flag flags)
{
    struct rnic_tx *tx = &ch->tx;
    bool tells = ch->rx.owed && !ch->rx.withheld;

    if (ch->phase != RNIC_UP || !tx->n_free || tx->open ||
        rnic_ring_used(&tx->ring) == RNIC_POSTED) {
        return false;
    }
    if (tells && !tx->control_used && tx->n_left && !(flags & RNIC_SEND_PROBE)) {
        flags |= RNIC_SEND_CONTROL;
    } else if (!channel_has_credit(ch)) {
        return false;
    }
    tx_open(tx);
    return tx_post(ch, (uint8_t)flags);
}

bool channel_has_room(struct rnic_channel *ch)
{
    const struct rnic_tx *tx = &ch->tx;

    return ((tx->open && tx->fill + RNIC_FRAME < tx->cap) || channel_can_open(ch)) &&
           tx_has_turn(ch);
}

ssize_t channel_stage(struct rnic_channel *ch, const struct rnic_frame *f,
                      const uint8_t *bytes, size_t len, bool whole)
{
    struct rnic_tx *tx = &ch->tx;
    struct rnic_frame frame = *f;
    uint32_t least = RNIC_FRAME + (whole ? (uint32_t)len : 1);

    g_assert(!ch->cq->taking);
    if (ch->phase != RNIC_UP) {
        return -1;
    }
    if (tx->open && least > tx->cap - tx->fill && !tx_post(ch, 0)) {
        return -1;
    }
    if (!tx->open) {
        if (!channel_can_open(ch)) {
            tx->starved = true;
            return -1;
        }
        if (!whole && !tx_take_turn(ch)) {
            return -1;
        }
        tx_open(tx);
    } else if (!whole && !tx_take_turn(ch)) {
        return -1;
    }
    frame.len = (uint16_t)MIN(len, tx->cap - tx->fill - RNIC_FRAME);
    rnic_put_frame(tx->open->data + tx->fill, &frame);
    if (frame.len) {
        memcpy(tx->open->data + tx->fill + RNIC_FRAME, bytes, frame.len);
    }
    tx->fill += RNIC_FRAME + frame.len;
    channel_touch(ch);
    return frame.len;
}

uint32_t rnic_channel_room(const struct rnic_channel *ch)
{
    const struct rnic_tx *tx = &ch->tx;

    return tx_next_cap(tx) - RNIC_SEND_HEADER - RNIC_FRAME;
}

const char *channel_credit(struct rnic_channel *ch, const struct rnic_send_head *h)
{
    unsigned class = rnic_size_class(h->size);
    struct rnic_tx *tx = &ch->tx;
    uint32_t size;

    if (class < tx->high) {
        return "receives that become smaller";
    }
    if (h->credits > RNIC_POSTED - tx->n_left) {
        return "more receives than a channel has";
    }
    tx->left[class] += h->credits;
    tx->n_left += h->credits;
    tx->high = class;
    while (!tx->left[tx->low] && tx->low < tx->high) {
        tx->low++;
    }
    size = MIN(h->size, ch->max_size);
    if (size > tx->block->size && !tx->grows && ch->cq->now >= tx->grow_at) {
        tx->grows = true;
        ch->ops->grow(ch, RNIC_TX,
                      MIN(RNIC_BLOCK_BUFFERS, tx->block->n * (size / tx->block->size)),
                      size);
    }
    return NULL;
}

void channel_sent(struct rnic_channel *ch, uint32_t seq, enum ibv_wc_status status)
{
    struct rnic_tx *tx = &ch->tx;
    uint32_t bytes = tx->bytes, n = rnic_ring_used(&tx->ring);

    if (seq - tx->ring.first >= n) {
        ch->cq->strays++;
        return;
    }
    while (tx->ring.first != seq + 1) { /* those before it need not have told */
        struct rnic_buffer *b = tx->ring.b[tx->ring.first++ % RNIC_POSTED];

        tx->bytes -= b->len;
        b->block->posted--;
        if (b->block == tx->block) {
            tx->free[tx->n_free++] = b;
        } else {
            channel_retire(ch, b->block);
        }
    }
    if (ch->fair) {
        rnic_fair_done(ch->fair, bytes - tx->bytes, n - rnic_ring_used(&tx->ring));
    }
    channel_touch(ch);
    if (status != IBV_WC_SUCCESS) {
        channel_fail(ch, "a SEND has failed");
    }
}

void channel_add_tx(struct rnic_channel *ch, struct rnic_block *b)
{
    struct rnic_tx *tx = &ch->tx;
    struct rnic_block *old = tx->block;

    tx->block = b;
    for (tx->n_free = 0; tx->n_free < b->n; tx->n_free++) {
        tx->free[tx->n_free] = &b->buffer[tx->n_free];
    }
    channel_retire(ch, old);
}
