/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * MPA in full operation (RFC 5044 4): length, ULPDU, pad and CRC32C around each DDP
 * segment; the markers of a peer that demands them, when sending; and the way back
 * from a stream of bytes, cut anywhere, to ULPDUs.
 *
 * Sending without markers is the caller's iovec: length field and headers, payload,
 * fpdu_tail().  A marker stands at every FPDU_MARKER_EVERY-th byte of the stream behind
 * the startup frame, its first byte included, and tells how far back the FPDU's length
 * field is; one between two FPDUs belongs to the later one and to its sum.  All FPDUs
 * and markers are multiples of 4 bytes, so none cuts a length field or a sum.
 *
 * Receiving: the caller feeds what came and takes one part at a time.  An FPDU that is
 * complete in the input is handed out from there, one that fits the caller's room is
 * collected in it, and both only after their sums were checked.  A longer one, or one of
 * which the caller says so, comes in parts, for placement without another copy: its
 * header and payload were NOT checked when they are handed out, FPDU_END tells that they
 * were right.  So before that, payload may go only where a header that is right could
 * have sent it as well: to the place where the message that is being received goes on
 * (see ddp_continues()).
 *
 * Who receives payload straight from the socket asks fpdu_rx_wants() and tells by
 * fpdu_rx_placed(), with the sum over it from rx->crc on.  Memory in which a guest
 * writes meanwhile gives no good sum: then receive into private memory.
 *
 * Invariants: memory is the caller's room, which bounds what a peer can make us keep;
 * each byte is taken once; after an error nothing is handed out any more.  The
 * receiver knows no markers, as we ask for none.
 */
#include <glib.h>

#include "transport/iwarp/wire/bytes.h"
#include "transport/iwarp/wire/fpdu.h"

/* The longest ULPDU that goes in one TCP segment (RFC 5044 4.3 and 4.4). */
uint32_t fpdu_mulpdu(uint32_t emss, bool markers)
{
    uint64_t around = FPDU_LENGTH + CRC32C_SIZE + emss % 4;
    uint32_t most = markers ? FPDU_MAX_MARKED : FPDU_MAX_ULPDU;

    if (markers) {
        around +=
            FPDU_MARKER * (((uint64_t)emss + FPDU_MARKER_EVERY - 1) / FPDU_MARKER_EVERY);
    }
    if (emss < around || emss - around < FPDU_MIN_MULPDU) {
        return FPDU_MIN_MULPDU;
    }
    return MIN(most, (uint32_t)(emss - around));
}

/*
 * What follows a ULPDU of @ulpdu_len bytes; @crc is the sum so far, over the length
 * field and the ULPDU.  Returns how many bytes.
 */
size_t fpdu_tail(uint32_t ulpdu_len, bool crc_on, uint32_t crc,
                 uint8_t tail[FPDU_MAX_TAIL])
{
    uint32_t pad = fpdu_pad(ulpdu_len);

    memset(tail, 0, FPDU_MAX_TAIL);
    if (crc_on) {
        crc32c_put(crc32c_add(crc, tail, pad), tail + pad);
    }
    return pad + CRC32C_SIZE;
}

/* ---- markers ---- */

struct marking {
    uint64_t pos;
    uint64_t start; /* of the length field */
    bool started;
    uint32_t crc;
    struct fpdu_marks *marks;
    unsigned markers;
    struct iovec *out;
    unsigned n, max;
    bool full;
};

static void put_bytes(struct marking *m, const void *data, size_t len)
{
    if (m->n == m->max) {
        m->full = true;
        return;
    }
    m->out[m->n++] = (struct iovec){(void *)(uintptr_t)data, len};
    m->pos += len;
}

static void put_marker(struct marking *m)
{
    uint8_t *marker;

    if (m->pos % FPDU_MARKER_EVERY) {
        return;
    }
    if (m->markers == FPDU_MAX_MARKERS) {
        m->full = true;
        return;
    }
    marker = m->marks->marker[m->markers++];
    put_be32(marker, m->started ? (uint32_t)(m->pos - m->start) : 0);
    m->crc = crc32c_add(m->crc, marker, FPDU_MARKER);
    put_bytes(m, marker, FPDU_MARKER);
}

static void put_marked(struct marking *m, const uint8_t *data, size_t len)
{
    while (len && !m->full) {
        size_t n;

        put_marker(m);
        if (!m->started) {
            m->started = true;
            m->start = m->pos;
        }
        n = MIN(len, FPDU_MARKER_EVERY - m->pos % FPDU_MARKER_EVERY);
        m->crc = crc32c_add(m->crc, data, n);
        put_bytes(m, data, n);
        data += n;
        len -= n;
    }
}

/*
 * The FPDU whose length field and ULPDU are @in, for the stream position @pos, behind
 * which it goes: @out gets their pieces, markers between them, pad and sum.  Returns
 * how many elements; 0 if it is too long for markers, is not as long as it says, or
 * @max is less than FPDU_MARKED_IOV(n).
 */
unsigned fpdu_mark(uint64_t pos, const struct iovec *in, unsigned n, bool crc_on,
                   struct fpdu_marks *marks, struct iovec *out, unsigned max)
{
    struct marking m = {
        .pos = pos, .crc = CRC32C_INIT, .marks = marks, .out = out, .max = max};
    size_t len = 0;
    uint32_t pad;

    for (unsigned i = 0; i < n; i++) {
        if (in[i].iov_len > FPDU_LENGTH + FPDU_MAX_MARKED - len) {
            return 0;
        }
        len += in[i].iov_len;
    }
    if (n == 0 || in[0].iov_len < FPDU_LENGTH || pos % 4 ||
        get_be16(in[0].iov_base) != len - FPDU_LENGTH) {
        return 0;
    }
    for (unsigned i = 0; i < n; i++) {
        put_marked(&m, in[i].iov_base, in[i].iov_len);
    }
    pad = fpdu_pad((uint32_t)len - FPDU_LENGTH);
    memset(marks->tail, 0, sizeof(marks->tail));
    put_marked(&m, marks->tail, pad);
    put_marker(&m);
    if (crc_on) {
        crc32c_put(m.crc, marks->tail + pad);
    }
    put_bytes(&m, marks->tail + pad, CRC32C_SIZE);
    return m.full ? 0 : m.n;
}

/* ---- receiving ---- */

/*
 * @size is at least FPDU_RX_ROOM; FPDU_MAX_SIZE and more: no FPDU comes in parts.  @room
 * may be NULL until fpdu_rx_gathers().
 */
void fpdu_rx_init(struct fpdu_rx *rx, uint8_t *room, size_t size, bool crc_on,
                  fpdu_head_fn *head_len)
{
    g_assert(size >= FPDU_RX_ROOM);
    *rx = (struct fpdu_rx){
        .crc_on = crc_on, .head_len = head_len, .room = room, .size = size};
}

/* Have @have bytes at @to become @want; did they? */
static bool gather(struct fpdu_input *in, uint8_t *to, size_t *have, size_t want)
{
    size_t n = MIN(want - *have, in->left);

    if (n) {
        memcpy(to + *have, in->at, n);
        *have += n;
        in->at += n;
        in->left -= n;
    }
    return *have == want;
}

static enum iwarp_error whole(struct fpdu_rx *rx, const uint8_t *fpdu,
                              struct fpdu_part *part)
{
    uint32_t len = get_be16(fpdu);
    uint32_t sum_at = FPDU_LENGTH + len + fpdu_pad(len);

    if (rx->crc_on && !crc32c_is(crc32c_add(CRC32C_INIT, fpdu, sum_at), fpdu + sum_at)) {
        return rx->error = MPA_BAD_CRC;
    }
    *part = (struct fpdu_part){FPDU_WHOLE, fpdu + FPDU_LENGTH, len, len};
    return IWARP_OK;
}

/* A long one: have its header, of @head bytes. */
static bool gather_head(struct fpdu_rx *rx, struct fpdu_input *in, uint32_t *head)
{
    if (rx->have < FPDU_LENGTH + 2 && !gather(in, rx->room, &rx->have, FPDU_LENGTH + 2)) {
        return false;
    }
    *head = CLAMP(rx->head_len(rx->room + FPDU_LENGTH), 2, FPDU_MAX_HEAD);
    *head = MIN(*head, rx->ulpdu_len);
    return rx->have >= FPDU_LENGTH + *head ||
           gather(in, rx->room, &rx->have, FPDU_LENGTH + *head);
}

static void begin_parts(struct fpdu_rx *rx, uint32_t head, struct fpdu_part *part)
{
    rx->crc = rx->crc_on ? crc32c_add(CRC32C_INIT, rx->room, FPDU_LENGTH + head) : 0;
    rx->left = rx->ulpdu_len - head;
    rx->have = 0;
    rx->state = FPDU_PAYLOAD;
    *part = (struct fpdu_part){FPDU_HEAD, rx->room + FPDU_LENGTH, head, rx->ulpdu_len};
}

/* Its header is all that there is in the room: is it to come in parts? */
static bool in_parts(const struct fpdu_rx *rx, uint32_t head)
{
    return fpdu_size(rx->ulpdu_len) > rx->size ||
           (rx->have == FPDU_LENGTH + head &&
            rx->in_parts(rx->parts_arg, rx->room + FPDU_LENGTH, head, rx->ulpdu_len));
}

size_t fpdu_rx_rest(const struct fpdu_rx *rx, uint32_t head)
{
    size_t header = FPDU_LENGTH + head;

    if (rx->state == FPDU_GATHER && rx->have >= header) {
        return fpdu_size(rx->ulpdu_len) - rx->have;
    }
    if (rx->state != FPDU_GATHER) {
        header += fpdu_rx_wants(rx) + fpdu_pad(rx->ulpdu_len) + CRC32C_SIZE;
    }
    return header - rx->have;
}

bool fpdu_rx_gathers(const struct fpdu_rx *rx, const struct fpdu_input *in)
{
    return rx->state == FPDU_GATHER && !rx->error && in->left &&
           (rx->have || in->left < FPDU_LENGTH || in->left < fpdu_size(get_be16(in->at)));
}

static enum iwarp_error gather_fpdu(struct fpdu_rx *rx, struct fpdu_input *in,
                                    struct fpdu_part *part)
{
    uint32_t size, head;

    if (rx->have == 0 && in->left >= FPDU_LENGTH) {
        const uint8_t *fpdu = in->at;

        size = fpdu_size(get_be16(fpdu));
        if (in->left >= size) {
            in->at += size;
            in->left -= size;
            return whole(rx, fpdu, part);
        }
    }
    if (rx->have < FPDU_LENGTH && !gather(in, rx->room, &rx->have, FPDU_LENGTH)) {
        return IWARP_OK;
    }
    rx->ulpdu_len = get_be16(rx->room);
    size = fpdu_size(rx->ulpdu_len);
    if (size > rx->size || (rx->in_parts && rx->ulpdu_len >= FPDU_PARTS_MIN)) {
        if (!gather_head(rx, in, &head)) {
            return IWARP_OK;
        }
        if (in_parts(rx, head)) {
            begin_parts(rx, head, part);
            return IWARP_OK;
        }
    }
    if (!gather(in, rx->room, &rx->have, size)) {
        return IWARP_OK;
    }
    rx->have = 0;
    return whole(rx, rx->room, part);
}

/*
 * Take the next part out of @in.  FPDU_NONE: there is none yet, all of @in was taken.
 * After an error, which the stream does not survive, there is never one.
 */
enum iwarp_error fpdu_rx_next(struct fpdu_rx *rx, struct fpdu_input *in,
                              struct fpdu_part *part)
{
    uint32_t pad, n;

    *part = (struct fpdu_part){FPDU_NONE};
    if (rx->error) {
        return rx->error;
    }
    if (rx->state == FPDU_GATHER) {
        return gather_fpdu(rx, in, part);
    }
    if (rx->state == FPDU_PAYLOAD) {
        n = (uint32_t)MIN(rx->left, in->left);
        if (n) {
            *part = (struct fpdu_part){FPDU_SPAN, in->at, n};
            in->at += n;
            in->left -= n;
            fpdu_rx_placed(rx, n, rx->crc_on ? crc32c_add(rx->crc, part->data, n) : 0);
        }
        if (n || rx->left) {
            return IWARP_OK;
        }
        rx->state = FPDU_TAIL;
    }
    pad = fpdu_pad(rx->ulpdu_len);
    if (!gather(in, rx->tail, &rx->have, pad + CRC32C_SIZE)) {
        return IWARP_OK;
    }
    if (rx->crc_on && !crc32c_is(crc32c_add(rx->crc, rx->tail, pad), rx->tail + pad)) {
        return rx->error = MPA_BAD_CRC;
    }
    rx->have = 0;
    rx->state = FPDU_GATHER;
    part->kind = FPDU_END;
    return IWARP_OK;
}

/*
 * The next @n bytes of payload went from the stream to their place; @crc is rx->crc
 * continued over them.  false: so many were not wanted, and nothing changed.
 */
bool fpdu_rx_placed(struct fpdu_rx *rx, uint32_t n, uint32_t crc)
{
    if (n > fpdu_rx_wants(rx)) {
        return false;
    }
    rx->left -= n;
    rx->crc = crc;
    return true;
}
