/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Transport "tcp", payload straight from the socket to guest memory, which saves a copy:
 * of SENDs and WRITEs of several segments all but the first, if they are long.
 *
 * Where those go is known before they are there.  They are summed in their place, so
 * what is stored is not known to be right yet and must do no harm: only a frame goes so
 * whose header is just what follows the segment before it, and which is as long as
 * others before it were, of which the sum was right.  What is wrong in it are then bytes
 * that come once more.  Its end is held back until the sum was found right: programs poll
 * a WRITE's last byte, and may use the place from then on; and that it is not the last
 * segment is a bit of the header that may be wrong, too.
 *
 * A guest that writes there before spoils the sum, which costs its own connection the
 * stream; from then on (conn.no_direct) it gets everything by way of the buffer, where
 * nobody can.
 *
 * A frame can go so if its header came without its payload.  So reading stops behind
 * headers where large messages come: within them, and behind one where the next is
 * likely to begin as it did.  That is a guess about speed alone.
 *
 * Threads: the VM's worker in its turns.
 */
#include "transport/iwarp/rx.h"

#include <string.h>
#include <sys/socket.h>

/* Payload of this size comes in segments that are worth a call of their own. */
#define DIRECT_MIN FPDU_PARTS_MIN
/* Of a message that has had so much their headers are read alone ... */
#define LARGE 98304u
/* ... and of any if they are that long. */
#define LONG_SEGMENT 32768u
/* What is before them is read with the header of the next one, if it is no more. */
#define SHORT_FIRST 16384u

/* ---- what is expected ----------------------------------------------------------------
 */

void direct_expect(struct stream *s, const struct ddp_header *h, uint32_t len, bool first)
{
    uint32_t before = s->segment_len;

    s->segment = *h;
    s->segment_len = len;
    s->in_response = false;
    if (first) {
        s->first = rx_in_message(s) && len <= SHORT_FIRST ? len : 0;
    } else if (!h->last || len > s->usual || len >= before) {
        s->usual = len; /* a last one that is less may be what was over */
    }
}

bool direct_in_parts(void *arg, const uint8_t *head, uint32_t len, uint32_t ulpdu_len)
{
    struct conn *c = arg;
    struct stream *s = c->s;
    struct ddp_header h;

    return !c->no_direct && s->usual >= DIRECT_MIN && ulpdu_len == len + s->usual &&
           ddp_get(head, len, &h) == IWARP_OK && len == ddp_len(h.tagged) &&
           s->rx_phase == RX_MESSAGE && ddp_continues(&s->segment, s->segment_len, &h);
}

/* Bytes up to the header behind the segment that came last, its pad and sum aside. */
static size_t direct_to_next_header(const struct stream *s)
{
    uint32_t head = ddp_len(s->segment.tagged);
    size_t n = FPDU_LENGTH + head;

    /* The next message may be like this one. */
    return s->segment.last && s->first ? n + fpdu_size(head + s->first) : n;
}

size_t direct_limit(const struct conn *c)
{
    const struct stream *s = c->s;
    uint32_t head = ddp_len(s->segment.tagged);
    size_t n;

    if (c->no_direct || !stream_is_up(s) || s->in_response || s->usual < DIRECT_MIN) {
        return SIZE_MAX;
    }
    if (s->rx_phase == RX_MESSAGE) {
        return s->in.done >= LARGE || s->usual >= LONG_SEGMENT
                   ? fpdu_rx_rest(&s->socket.rx, head)
                   : SIZE_MAX;
    }
    if (!s->segment.last || !s->first || s->usual < LONG_SEGMENT ||
        fpdu_rx_wants(&s->socket.rx)) {
        return SIZE_MAX;
    }
    n = direct_to_next_header(s);
    return s->socket.rx.have < n ? n - s->socket.rx.have : SIZE_MAX;
}

/* ---- a frame in parts ----------------------------------------------------------------
 */

void direct_begin(struct conn *c, const struct fpdu_part *part)
{
    struct segment seg = {.ulpdu = part->data, .ulpdu_len = part->len};
    struct stream *s = c->s;
    enum iwarp_error error = ddp_get(part->data, part->len, &s->segment);

    s->segment_len = part->ulpdu_len - part->len;
    s->in_response = false;
    /* It continues a segment (ddp_continues()), whose queue's number was checked. */
    if (!error && !s->segment.tagged) {
        error =
            ddp_queue_take(&s->q[s->segment.qn], &s->segment, s->segment_len, UINT32_MAX);
    }
    if (error) {
        rx_refuse(c, &seg, error);
    }
    s->socket.n_held = 0;
    s->socket.direct = true;
}

void direct_span(struct conn *c, const struct fpdu_part *part)
{
    struct stream *s = c->s;
    uint32_t behind = fpdu_rx_wants(&s->socket.rx), held = 0;

    if (s->rx_phase != RX_MESSAGE) { /* it has failed with those before */
        return;
    }
    if (behind < DIRECT_HELD) {
        held = MIN(part->len, DIRECT_HELD - behind);
        memcpy(s->socket.held + s->socket.n_held, part->data + part->len - held, held);
        s->socket.n_held += held;
    }
    if (part->len > held) {
        inbound_bytes(c, part->data, part->len - held, false);
    }
}

void direct_end(struct conn *c)
{
    struct stream *s = c->s;

    s->socket.direct = false;
    if (rx_in_message(s)) {
        inbound_next(c, s->socket.held, s->socket.n_held, s->segment.last);
    }
}

/* ---- from the socket ------------------------------------------------------------------
 */

/* What a frame's payload is made of at most, with one page each. */
#define PIECES (FPDU_MAX_SIZE / PVRDMA_PAGE_SIZE + 2)

/*
 * The first @n bytes of @to, which are @piece, came: they are summed where they lie.
 */
static void direct_came(struct conn *c, struct sg_list *to, const struct sg_piece *piece,
                        uint32_t n)
{
    struct stream *s = c->s;
    uint32_t crc = s->socket.rx.crc, left = n;

    for (unsigned i = 0; left; i++) {
        uint32_t len = (uint32_t)MIN(left, piece[i].len);

        crc = s->socket.rx.crc_on ? crc32c_add(crc, piece[i].hva, len) : 0;
        left -= len;
    }
    sg_stored(to, piece, n);
    count(&c->net->net.straight_bytes, n);
    fpdu_rx_placed(&s->socket.rx, n, crc);
    s->in.done += n;
}

ssize_t direct_receive(struct conn *c, size_t *asked, size_t *taken)
{
    struct stream *s = c->s;
    struct tcp_inbound *in = &s->in;
    uint32_t wants = fpdu_rx_wants(&s->socket.rx);
    struct sg_piece piece[PIECES];
    struct iovec iov[PIECES + 1];
    struct msghdr msg = {.msg_iov = iov};
    struct pvrdma_sge sge;
    struct recv_op recv;
    struct sg_list to;
    unsigned n;
    ssize_t r;

    if (wants <= DIRECT_HELD || c->no_direct || s->rx_phase != RX_MESSAGE) {
        return 0;
    }
    if ((msg_is_send(&in->m) && wants > in->capacity - in->done) ||
        !responder_begin_slice(c->qp, &in->m, in->admission, &recv)) {
        return 0;
    }
    wants -= DIRECT_HELD;
    to = inbound_place(c, &recv, wants, &sge);
    n = sg_pieces(&to, wants, piece, PIECES);
    if (!n) { /* by way of the buffer it shows why */
        responder_end_slice(c->qp, &in->m, in->admission, &to.cur);
        return 0;
    }
    *asked = 0;
    for (unsigned i = 0; i < n; i++) {
        iov[i] = (struct iovec){piece[i].hva, piece[i].len};
        *asked += piece[i].len;
    }
    if (*asked == wants) {
        iov[n] = (struct iovec){tcp_scratch()->in_buf,
                                DIRECT_HELD + fpdu_pad(s->socket.rx.ulpdu_len) +
                                    CRC32C_SIZE + direct_to_next_header(s)};
        *asked += iov[n++].iov_len;
    }
    msg.msg_iovlen = n;
    r = recvmsg(s->socket.fd, &msg, MSG_DONTWAIT);
    *taken = r > 0 ? MIN((size_t)r, wants) : 0;
    direct_came(c, &to, piece, (uint32_t)*taken);
    responder_end_slice(c->qp, &in->m, in->admission, &to.cur);
    if (r < 0 && errno == EFAULT) {
        c->no_direct = true; /* touching it will tell what is wrong with it */
        return 0;
    }
    return r;
}
