/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Channels, frames in.  The peer is anybody: each SEND is looked at once, in a receive
 * that nothing writes to meanwhile, and costs the channel if it makes no sense.
 *
 * Receives are taken in the order of their posting, each once; a completion that is ahead
 * of that order shows that one was lost, and what is behind the gap is not executed.
 * Buffers are posted again behind each batch, and the peer is told with the next SEND, or
 * by one of its own when it has used half of them.
 *
 * Flows that take nothing for a while have what comes copied.  If that is too much, no
 * credits are told, so that it ends with what the peer has been told of already; and if
 * it lasts, the flow with most of it is given up.
 *
 * More or larger receives are a new block: it is posted behind all that was told of, and
 * buffers of the old one are not posted again, so sizes only grow, in the order in which
 * the peer uses them.
 */
#include "transport/rnic/channel_internal.h"

bool channel_post_receives(struct rnic_channel *ch, struct rnic_buffer *const *b,
                           unsigned n)
{
    struct rnic_ring *ring = &ch->rx.ring;
    struct ibv_recv_wr wr[RNIC_BLOCK_BUFFERS], *bad = NULL;
    struct ibv_sge sge[RNIC_BLOCK_BUFFERS];
    int err;

    for (unsigned i = 0; i < n; i++) {
        sge[i] = (struct ibv_sge){(uintptr_t)b[i]->data, b[i]->block->size,
                                  b[i]->block->mr->lkey};
        wr[i] = (struct ibv_recv_wr){.wr_id = rnic_cq_wr_id(ch, false, ring->next + i),
                                     .next = i + 1 < n ? &wr[i + 1] : NULL,
                                     .sg_list = &sge[i],
                                     .num_sge = 1};
    }
    err = n ? rnic_verbs->post_recv(ch->qp, wr, &bad) : 0;
    for (unsigned i = 0; i < n && (!err || &wr[i] != bad); i++) {
        b[i]->block->posted++;
        ring->b[ring->next++ % RNIC_POSTED] = b[i];
    }
    return !err;
}

void channel_repost(struct rnic_channel *ch)
{
    struct rnic_rx *rx = &ch->rx;

    if (rx->n_idle && ch->phase <= RNIC_UP) {
        if (!channel_post_receives(ch, rx->idle, rx->n_idle)) {
            channel_fail(ch, "receives cannot be posted");
        }
        rx->owed += rx->n_idle;
    }
    rx->n_idle = 0;
}

bool channel_widen(struct rnic_channel *ch)
{
    struct rnic_rx *rx = &ch->rx;
    struct rnic_buffer *all[RNIC_BLOCK_BUFFERS];
    struct rnic_block *old = rx->block;

    if (ch->phase != RNIC_UP || !rx->next || rx->owed || rx->n_idle ||
        rnic_ring_used(&rx->ring) + rx->next->n > RNIC_POSTED) {
        return false;
    }
    for (unsigned i = 0; i < rx->next->n; i++) {
        all[i] = &rx->next->buffer[i];
    }
    rx->block = rx->next;
    rx->next = NULL;
    if (!channel_post_receives(ch, all, rx->block->n)) {
        channel_fail(ch, "receives cannot be posted");
    }
    rx->owed = rx->used = rx->block->n;
    rx->grows = false;
    channel_retire(ch, old);
    return true;
}

bool channel_owes(const struct rnic_channel *ch)
{
    const struct rnic_rx *rx = &ch->rx;

    if (rx->withheld) {
        return rx->answer;
    }
    return rx->answer || rx->used >= MAX(1, (rx->block->n - 1) / 2) ||
           (rx->next && rx->owed);
}

/* ---- flows that take nothing ----------------------------------------------------- */

static void rx_kept(struct rnic_channel *ch)
{
    struct rnic_rx *rx = &ch->rx;

    if (rx->kept <= RNIC_KEPT) {
        rx->withheld = 0;
    } else if (!rx->withheld) {
        rx->withheld = MAX(ch->cq->now, 1);
        channel_due(ch, rx->withheld + RNIC_KEPT_NS);
    }
    channel_touch(ch);
}

static void rx_keep(struct rnic_flow *f, const uint8_t *bytes, uint32_t len)
{
    if (!f->kept) {
        f->kept = g_byte_array_new();
        f->kept_at = 0;
        TAILQ_INSERT_TAIL(&f->channel->keeping, f, keep);
    }
    g_byte_array_append(f->kept, bytes, len);
    f->channel->rx.kept += len;
    rx_kept(f->channel);
}

void channel_forget(struct rnic_flow *f)
{
    if (f->kept) {
        f->channel->rx.kept -= f->kept->len - f->kept_at;
        TAILQ_REMOVE(&f->channel->keeping, f, keep);
        g_byte_array_unref(g_steal_pointer(&f->kept));
        rx_kept(f->channel);
    }
}

void channel_overrun(struct rnic_channel *ch)
{
    struct rnic_flow *f, *most = NULL;

    TAILQ_FOREACH(f, &ch->keeping, keep)
    {
        if (!most || f->kept->len - f->kept_at > most->kept->len - most->kept_at) {
            most = f;
        }
    }
    if (most) {
        channel_forget(most);
        most->deaf = true;
        ch->ops->overrun(most);
    }
}

void rnic_flow_go_on(struct rnic_flow *f)
{
    GByteArray *kept = f->kept ? g_byte_array_ref(f->kept) : NULL;
    struct rnic_channel *ch = f->channel;
    uint32_t index = f->index;
    bool more = true;

    f->waits = false;
    while (kept && more && f->kept_at < kept->len) {
        size_t n = MIN(kept->len - f->kept_at, RNIC_QUANTUM);

        f->kept_at += n;
        ch->rx.kept -= n;
        more = ch->ops->take(f, kept->data + f->kept_at - n, n);
        if (ch->place[index].flow != f) { /* it is closed */
            g_byte_array_unref(kept);
            return;
        }
    }
    f->waits = !more;
    if (kept && f->kept_at == kept->len) {
        channel_forget(f);
    } else if (kept && f->kept_at > kept->len / 2) {
        g_byte_array_remove_range(kept, 0, (guint)f->kept_at);
        f->kept_at = 0;
    }
    rx_kept(ch);
    g_clear_pointer(&kept, g_byte_array_unref);
    if (f->ends && more && ch->phase != RNIC_BROKEN) {
        f->ends = false;
        ch->ops->closed(f);
    }
}

/* ---- frames -------------------------------------------------------------------- */

static void rx_lie(struct rnic_channel *ch, const char *what)
{
    ch->rx.liar = true;
    channel_fail(ch, what);
}

/* NULL, or what is wrong. */
static const char *rx_frame(struct rnic_channel *ch, const struct rnic_frame *h,
                            const uint8_t *bytes)
{
    struct channel_place *place;
    struct rnic_flow *f;
    bool more;

    if (!h->index) {
        return channel_control(ch, h, bytes);
    }
    place = channel_place(ch, h->index);
    if (!place) {
        return "a frame for a queue pair that is not on it";
    }
    f = place->flow;
    if (!f || f->deaf) {
        return NULL;
    }
    if (f->waits) {
        rx_keep(f, bytes, h->len);
        return NULL;
    }
    more = ch->ops->take(f, bytes, h->len);
    if (ch->place[h->index].flow == f) { /* it is not closed */
        f->waits = !more;
    }
    return NULL;
}

/* The SEND's header, which is about the channel.  @again: its receive is posted again. */
static const char *rx_head(struct rnic_channel *ch, const struct rnic_send_head *h,
                           bool again)
{
    struct rnic_rx *rx = &ch->rx;

    if (!rx->told) {
        return "a SEND without a credit";
    }
    rx->told--;
    if (h->flags & RNIC_SEND_CONTROL) {
        if (rx->back) {
            return "a second SEND for control";
        }
        rx->back = true;
    } else if (again) {
        rx->used++;
    }
    if (h->flags & RNIC_SEND_ANSWER && !ch->sent_since) {
        ch->since = 0;
    }
    if (h->flags & RNIC_SEND_BACK) {
        if (!ch->tx.control_used) {
            return "an answer to no SEND for control";
        }
        ch->tx.control_used = false;
    }
    rx->answer |= (h->flags & RNIC_SEND_PROBE) != 0;
    if ((h->flags & RNIC_SEND_STARVED) && rx->block->size < ch->max_size && !rx->grows &&
        ch->cq->now >= rx->grow_at) {
        rx->grows = true;
        ch->ops->grow(ch, RNIC_RX, MIN(RNIC_BLOCK_BUFFERS, rx->block->n * 2),
                      rx->block->size * 2);
    }
    return h->credits ? channel_credit(ch, h) : NULL;
}

/* A SEND of @len bytes. */
static void rx_send(struct rnic_channel *ch, const struct rnic_buffer *b, uint32_t len)
{
    const uint8_t *bytes = b->data;
    struct rnic_send_head head;
    struct rnic_frame frame;
    const char *wrong = rnic_get_send(bytes, len, &head);
    uint32_t at = RNIC_SEND_HEADER;

    wrong = wrong ? wrong : rx_head(ch, &head, b->block == ch->rx.block);
    while (!wrong && at < len) {
        wrong = rnic_get_frame(bytes + at, len - at, &frame);
        wrong = wrong ? wrong : rx_frame(ch, &frame, bytes + at + RNIC_FRAME);
        at += RNIC_FRAME + frame.len;
    }
    if (wrong) {
        rx_lie(ch, wrong);
    }
}

/* The oldest receive is back: the peer was heard. */
static void rx_back(struct rnic_channel *ch, struct rnic_buffer *b,
                    const struct ibv_wc *wc)
{
    struct rnic_rx *rx = &ch->rx;

    ch->heard = ch->cq->now;
    ch->probed = 0;
    ch->since = ch->since ? ch->heard : 0;
    rx->lost |= rx->flushed; /* nothing could come behind that */
    if (rx->lost || rx->liar) {
        return;
    }
    if (wc->opcode != IBV_WC_RECV || wc->wc_flags & (IBV_WC_WITH_IMM | IBV_WC_WITH_INV) ||
        wc->byte_len > b->block->size) {
        rx_lie(ch, "what came is no SEND");
        return;
    }
    rx_send(ch, b, wc->byte_len);
    if (b->block == rx->block) {
        rx->idle[rx->n_idle++] = b;
    }
}

void channel_arrived(struct rnic_channel *ch, uint32_t seq, const struct ibv_wc *wc)
{
    struct rnic_rx *rx = &ch->rx;
    struct rnic_ring *ring = &rx->ring;
    struct rnic_buffer *b = NULL;

    if (seq - ring->first >= rnic_ring_used(ring)) {
        ch->cq->strays++; /* a second time, or never posted */
        return;
    }
    if (seq != ring->first) {
        rx->lost = true;
        channel_fail(ch, "a completion was lost");
    }
    while (ring->first != seq + 1) {
        b = ring->b[ring->first++ % RNIC_POSTED];
        b->block->posted--;
    }
    channel_touch(ch);
    if (wc->status == IBV_WC_SUCCESS) {
        rx_back(ch, b, wc);
    } else {
        rx->flushed = true;
        channel_fail(ch, "a receive has failed");
    }
    channel_retire(ch, b->block);
}
