/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Fuzzer of a queue pair's stream, with all that it remembers: what comes from the peer,
 * from the socket to guest memory, and what the queue pair makes of it.
 *
 * An input is a byte of bits (CRC, markers, UC, who calls, depths), a seed for cuts, and
 * steps: a byte that says what, and its arguments.
 *
 *   raw       bytes
 *   ulpdu     the same, as a frame with the right sum
 *   segment   of any operation; keys, offsets and numbers are right, or not
 *   told      one of what our daemons tell each other
 *   spoil     a bit of what was not given yet is another
 *   give      what there is goes to the socket in pieces, a turn behind each
 *   part      so many bytes less than there are go there, at once
 *   receive   one is posted, of that length
 *   send      the VM has a message of its own, READs and atomics among them
 *   register  the fast MR, with a key
 *   read      some of what the device says is read
 *   rest      the worker goes on by itself, until what waited has ended; or the queue
 * pair is put into ERR by its VM
 *
 * Numbers are those that the stream expects, so that much of an input is messages.  What
 * is kept in memory must be bounded as docs/hosts.md says, the queue pair in a state that
 * it can have, completions those of its work, and all memory that nothing was sent to as
 * it was.
 *
 * The corpus has to get to what the code has room for (fuzz_reached_all).
 */
#include <sys/socket.h>

#include "fuzz.h"
#include "streamdev.h"
#include "transport/iwarp/wire/control_stags.h"

#define MAX_STEPS  96u
#define MAX_PIECES 64u /* then all the rest at once */
#define MAX_STREAM (1u << 20)
/* docs/hosts.md has these. */
#define UNSENT_BYTES (264u * 1024 + 64)
#define INPUT_BYTES  (128u * 1024)

enum { CRC_ON = 1, MARKERS = 2, UNRELIABLE = 4, RESPONDER = 8, SHALLOW = 16, SMALL = 32 };
enum {
    RAW,
    ULPDU,
    SEGMENT,
    TOLD,
    SPOIL,
    GIVE,
    RECEIVE,
    SEND,
    REGISTER,
    READ,
    REST,
    PART,
    STEPS
};
/* Of a segment. */
enum { MORE = 1, KEY_SHIFT = 1, FOLLOWS = 8, BAD_NUMBER = 16, BAD_ID = 32, FULL = 64 };

static struct streamdev d;
static struct fuzz_input in;
static unsigned steps;
static uint8_t bits;
static uint32_t seed, cut;
static GByteArray *stream; /* that was not given yet */
static uint32_t msn[RDMAP_QNS], mo[RDMAP_QNS];
static uint64_t to; /* where the last tagged segment ends */
static bool resting, failing, over, registered;
static size_t given;
static ssize_t seen;       /* of that, when a message began to wait; -1: none does */
static uint32_t completed; /* receives */

/* What has come about; by name, and by opcode for what was executed. */
static const char *const names[] = {
    "a stream is left whole",
    "a stream is ended by us",
    "a message waits for its key",
    "something is not taken by the socket",
    "payload goes straight to its place",
    "a receive is missed",
    "a receive completes",
    "a receive fails",
    "a request of the VM's completes",
    "a READ of the VM's completes",
    "an atomic of the VM's completes",
    "a request of the VM's fails",
    "the queue pair fails",
    "READs or atomics wait for their answers",
    "an unreliable message is given up",
    "a message of several segments arrives",
};
enum {
    WHOLE,
    ENDED,
    WAITS,
    BACKLOG,
    STRAIGHT,
    MISSED,
    RECEIVED,
    RECV_FAILED,
    SENT,
    READ_DONE,
    ATOMIC_DONE,
    SEND_FAILED,
    FAILED,
    JOBS,
    GIVEN_UP,
    SEVERAL,
    REACHED
};
static bool reached[REACHED];

static uint32_t take(unsigned bytes)
{
    return fuzz_take(&in, bytes);
}

static uint32_t some(uint32_t most)
{
    seed = seed * 1103515245u + 12345u;
    return 1 + (seed >> 8) % most;
}

/* ---- what has to hold ---- */

/* Until a grace period ends, and none does on the worker, nothing more is read. */
static void check_waiting(const struct stream *s)
{
    ssize_t now = (ssize_t)given - streamdev_unread(&d);

    CHECK(s->rx_phase != RX_GRACE || seen < 0 || now == seen);
    seen = s->rx_phase == RX_GRACE ? now : -1;
}

static void check_stream(const struct stream *s)
{
    CHECK(s->n_jobs <= s->framing.ird && s->n_asked <= s->framing.ord);
    for (unsigned i = 0; i < s->n_asked; i++) {
        const struct tcp_asked *a = &s->asked[(s->asked_first + i) % TCP_DEPTH];

        CHECK(a->done <= a->length && a->seq < s->seq);
    }
    for (unsigned i = 0; i < s->n_jobs; i++) {
        const struct tcp_job *j = &s->job[(s->job_first + i) % TCP_DEPTH];

        CHECK(j->done <= j->m.length);
    }
    CHECK(stream_is_up(s) == (d.qp->req.conn->phase == CONN_UP));
    CHECK(s->rx_phase != (bits & UNRELIABLE ? RX_DISCARD : RX_ABANDONED));
    check_waiting(s);
    CHECK(s->backlog_at <= s->backlog_len && s->backlog_len <= s->backlog_size);
    CHECK(!s->backlog || s->backlog_size <= UNSENT_BYTES);
    CHECK(!s->socket.saved ||
          (s->rx_phase == RX_GRACE && s->socket.saved_len <= INPUT_BYTES));
    CHECK(s->socket.n_held <= DIRECT_HELD);
    /* A frame's end is held back until its sum is found right. */
    CHECK(!s->socket.direct || s->rx_phase != RX_MESSAGE ||
          fpdu_rx_wants(&s->socket.rx) + s->socket.n_held >= DIRECT_HELD);
    CHECK(s->rx_phase != RX_MESSAGE || !msg_is_send(&s->in.m) ||
          s->in.done <= s->in.capacity);
    CHECK(s->rx_seq <= CTL_SEQ_MAX);
    reached[WAITS] |= s->rx_phase == RX_GRACE;
    reached[BACKLOG] |= s->backlog != NULL;
    reached[STRAIGHT] |= s->socket.direct;
    reached[MISSED] |= s->rx_phase == RX_DISCARD && s->rnr;
    reached[JOBS] |= s->n_jobs != 0;
    reached[GIVEN_UP] |= s->rx_phase == RX_ABANDONED;
    reached[SEVERAL] |= s->rx_phase == RX_MESSAGE && s->in.done;
}

static void note_sent(const struct pvrdma_cqe *c)
{
    bool good = c->status == PVRDMA_WC_SUCCESS;

    reached[SENT] |= good;
    reached[SEND_FAILED] |= !good && c->status != PVRDMA_WC_WR_FLUSH_ERR;
    reached[READ_DONE] |= good && c->opcode == PVRDMA_WC_RDMA_READ;
    reached[ATOMIC_DONE] |= good && c->opcode == PVRDMA_WC_FETCH_ADD;
}

static void poll_cq(void)
{
    struct pvrdma_cqe c;

    while (streamdev_poll(&d, &c)) {
        CHECK(c.qp == d.qp->handle && c.status <= PVRDMA_WC_GENERAL_ERR);
        if (c.wr_id == UINT32_MAX) {
            note_sent(&c);
            continue;
        }
        CHECK(c.wr_id == completed && completed < d.posted); /* each once, in order */
        completed++;
        reached[RECEIVED] |= c.status == PVRDMA_WC_SUCCESS;
        reached[RECV_FAILED] |=
            c.status != PVRDMA_WC_SUCCESS && c.status != PVRDMA_WC_WR_FLUSH_ERR;
    }
}

static void check(const struct stream *s)
{
    uint32_t state = atomic_load(&d.qp->state);

    CHECK(state == PVRDMA_QPS_RTS || state == PVRDMA_QPS_ERR ||
          (state == PVRDMA_QPS_SQE && bits & UNRELIABLE)); /* for what its VM asked */
    reached[FAILED] |= state == PVRDMA_QPS_ERR;
    if (s) {
        check_stream(s);
    } else {
        over = true;
    }
    poll_cq();
}

static void untouched(uint64_t gpa, uint32_t len)
{
    const uint8_t *p = testdev_ptr(d.td, gpa);

    CHECK(p[0] == STREAMDEV_CANARY && memcmp(p, p + 1, len - 1) == 0);
}

static void check_memory(void)
{
    uint32_t first = STREAMDEV_VA & 4095, end = first + STREAMDEV_LEN;

    for (unsigned i = 0; i <= STREAMDEV_MRS; i++) {
        untouched(d.beside[i], 4096);
    }
    for (unsigned i = 0; i < STREAMDEV_MRS; i++) {
        if (i == STREAMDEV_READ || (i == STREAMDEV_FAST && !registered)) {
            untouched(d.mr_first[i], STREAMDEV_PAGES * 4096);
        } else if (i == STREAMDEV_FAST) { /* its first page is mapped from its begin on */
            untouched(d.mr_first[i], first);
        } else {
            untouched(d.mr_first[i], first);
            untouched(d.mr_first[i] + end, STREAMDEV_PAGES * 4096 - end);
        }
    }
}

/* ---- steps ---- */

/* The first @len bytes, in pieces of @most; false: it does not read. */
static bool give_first(size_t len, size_t most)
{
    size_t at = 0;

    for (unsigned n = 0; at < len && !over; n++) {
        size_t piece = n < MAX_PIECES && most < len ? some((uint32_t)most) : len;
        ssize_t done = send(d.fd, stream->data + at, MIN(piece, len - at),
                            MSG_NOSIGNAL | MSG_DONTWAIT);

        if (done <= 0) {
            break;
        }
        at += (size_t)done;
        given += (size_t)done;
        check(streamdev_serve(&d));
    }
    g_byte_array_remove_range(stream, 0, (guint)at);
    return at == len;
}

/* All but the last bytes. */
static void part(void)
{
    size_t less = take(2);

    give_first(stream->len - MIN(less, stream->len), stream->len);
}

static void give(void)
{
    if (!give_first(stream->len, cut)) {
        g_byte_array_set_size(stream, 0); /* what is left is lost */
    }
    if (!over) {
        check(streamdev_serve(&d));
    }
}

static void raw(bool framed)
{
    uint32_t named = take(1), len = (uint32_t)MIN(named, in.left);

    if (framed) {
        streamdev_frame(stream, in.data, len, bits & CRC_ON);
    } else if (len) {
        g_byte_array_append(stream, in.data, len);
    }
    in.data += len;
    in.left -= len;
}

/* A key that there is, or one that was not asked for. */
static uint32_t key_of(unsigned flags)
{
    unsigned which = flags >> KEY_SHIFT & 3;

    return which < STREAMDEV_MRS ? d.key[which] : CTL_FIRST_KEY + take(1);
}

/* Around where the MRs are. */
static uint64_t place(void)
{
    return STREAMDEV_VA - 0x100 + take(2);
}

/* The answer to what the VM has asked for first. */
static void answer(struct rdmap_segment *s, unsigned flags)
{
    const struct stream *st = streamdev_stream(&d);
    const struct tcp_asked *a = st ? &st->asked[st->asked_first] : NULL;
    uint32_t id = (a ? a->id : 0) + (flags & BAD_ID ? 1 : 0);

    if (s->opcode == RDMAP_ATOMIC_RESPONSE) {
        s->result = (struct rdmap_atomic_result){id, take(1)};
    } else {
        s->ddp.stag = id;
        s->ddp.to = a ? a->done : 0;
    }
}

static void number(struct ddp_header *h, uint32_t len, unsigned flags)
{
    uint32_t qn = h->qn;

    h->msn = msn[qn] + (flags & BAD_NUMBER ? take(1) : 0);
    h->mo = mo[qn];
    mo[qn] = h->last ? 0 : mo[qn] + len;
    msn[qn] += h->last;
}

static void segment(void)
{
    struct rdmap_segment s;
    unsigned flags, opcode = take(1) % RDMAP_OPCODES;
    uint32_t len = 0;

    rdmap_begin(&s, (enum rdmap_opcode)opcode);
    flags = take(1);
    if (rdmap_ops[opcode].invalidates || opcode == RDMAP_WRITE) {
        s.ddp.stag = key_of(flags);
    }
    switch (opcode) {
    case RDMAP_READ_REQUEST:
        s.read.sink_stag = 0x200;
        s.read.len = take(2);
        s.read.src_stag = key_of(flags);
        s.read.src_to = place();
        break;
    case RDMAP_ATOMIC_REQUEST:
        len = take(1);
        rdmap_plain_atomic(&s, flags & BAD_ID ? RDMAP_CMP_SWAP : RDMAP_FETCH_ADD, len,
                           take(1));
        len = 0;
        s.atomic.stag = key_of(flags);
        s.atomic.to = place();
        break;
    case RDMAP_READ_RESPONSE:
    case RDMAP_ATOMIC_RESPONSE:
        answer(&s, flags);
        break;
    case RDMAP_WRITE:
        s.ddp.to = flags & FOLLOWS ? to : place();
        break;
    case RDMAP_IMM:
    case RDMAP_IMM_SE:
        s.imm.imm = take(1);
        s.imm.of = take(1) % 4;
        break;
    case RDMAP_TERMINATE:
        return; /* rdmap_put() makes none: a ULPDU is one as well */
    default:
        break;
    }
    if (!rdmap_ops[opcode].header) {
        len = flags & FULL ? 1400 * (1 + take(1) % 32) : take(1);
        s.ddp.last = !(flags & MORE);
    }
    if (s.ddp.tagged) {
        to = s.ddp.to + len;
    } else {
        number(&s.ddp, len, flags);
    }
    if (stream->len + len < MAX_STREAM) {
        streamdev_segment(stream, &s, (uint8_t)steps, len, bits & CRC_ON);
    }
}

static void told(void)
{
    const struct stream *st = streamdev_stream(&d);
    enum ctl_kind kind = (enum ctl_kind)(take(1) % CTL_KINDS);
    uint64_t base = kind == CTL_RESTART ? st->rx_seq : st->seq;
    uint64_t number = base - 4 + take(1) % 8;
    struct ctl ctl = {kind, MIN(number, CTL_SEQ_MAX), (uint8_t)(take(1) % 32)};
    struct rdmap_segment s;

    ctl_begin(&ctl, &s);
    streamdev_segment(stream, &s, 0, 0, bits & CRC_ON);
}

static void spoil(void)
{
    uint32_t back = take(1), bit = take(1) % 8;

    if (stream->len) {
        stream->data[stream->len - 1 - back % stream->len] ^= (uint8_t)(1u << bit);
    }
}

static void send_own(void)
{
    static const uint32_t ops[] = {
        PVRDMA_WR_RDMA_WRITE,
        PVRDMA_WR_SEND,
        PVRDMA_WR_RDMA_READ,
        PVRDMA_WR_ATOMIC_FETCH_AND_ADD,
    };
    uint32_t what = take(1), len = take(2) % (STREAMDEV_LEN + 1);
    struct pvrdma_sq_wqe_hdr h = {.opcode = ops[what % G_N_ELEMENTS(ops)],
                                  .send_flags = PVRDMA_SEND_SIGNALED};

    if (h.opcode == PVRDMA_WR_ATOMIC_FETCH_AND_ADD) {
        h.wr.atomic.remote_addr = STREAMDEV_VA;
        h.wr.atomic.rkey = CTL_FIRST_KEY;
        len = 8;
    } else {
        h.wr.rdma.remote_addr = STREAMDEV_VA;
        h.wr.rdma.rkey = CTL_FIRST_KEY;
    }
    streamdev_post_send(&d, h, len);
}

static void read_some(uint32_t len)
{
    uint8_t buf[4096];
    ssize_t n;

    do {
        n = recv(d.fd, buf, MIN(len, sizeof(buf)), MSG_DONTWAIT);
        len -= n > 0 ? (uint32_t)n : len;
    } while (len);
}

static void step(void)
{
    uint32_t what = take(1) % STEPS;

    switch (what) {
    case RAW:
    case ULPDU:
        raw(what == ULPDU);
        break;
    case SEGMENT:
        segment();
        break;
    case TOLD:
        told();
        break;
    case SPOIL:
        spoil();
        break;
    case GIVE:
        give();
        break;
    case PART:
        part();
        break;
    case RECEIVE:
        streamdev_post_recv(&d, take(2) % (STREAMDEV_LEN + 1));
        break;
    case SEND:
        send_own();
        break;
    case REGISTER:
        streamdev_register(&d, (d.key[STREAMDEV_FAST] & ~0xffu) | take(1));
        registered = true;
        break;
    case READ:
        read_some(take(1) * 512);
        break;
    default:
        give();
        failing = take(1) & 1;
        resting = true;
        break;
    }
}

/* Until it has to rest, or there is no more. */
static void run(void *unused)
{
    (void)unused;
    seen = -1;
    check(streamdev_serve(&d));
    resting = false;
    while (in.left && steps < MAX_STEPS && !over && !resting) {
        steps++;
        step();
    }
    if (!over && !resting) {
        give();
    }
}

/* What waited for a grace period goes on.  Here the worker does as it likes. */
static void rest(void)
{
    struct vm *vm = &d.td->vm;
    uint64_t end = now_ns() + 20000000000u;
    bool waits;

    do {
        grace_wait();
        vm_token_take(vm);
        waits = streamdev_stream(&d) && streamdev_stream(&d)->rx_phase == RX_GRACE;
        vm_token_release(vm);
        CHECK(now_ns() < end);
    } while (waits);
    if (failing) {
        struct pvrdma_cmd_modify_qp req = {.qp_handle = d.qp->handle,
                                           .attr_mask = PVRDMA_QP_STATE,
                                           .attrs.qp_state = PVRDMA_QPS_ERR};

        CHECK(testdev_command(d.td, PVRDMA_CMD_MODIFY_QP, &req, sizeof(req)) == 0);
        failing = false;
    }
}

bool fuzz_reached_all(void)
{
    bool all = true;

    for (unsigned i = 0; i < REACHED; i++) {
        if (!reached[i]) {
            printf("never: %s\n", names[i]);
            all = false;
        }
    }
    return all;
}

static void open_stream(void)
{
    uint16_t depth = bits & SHALLOW ? 1 : TCP_DEPTH;
    struct streamdev_opts o = {.type = bits & UNRELIABLE ? PVRDMA_QPT_UC : PVRDMA_QPT_RC,
                               .responder = bits & RESPONDER,
                               .framing = {.crc = bits & CRC_ON,
                                           .markers = bits & MARKERS,
                                           .ird = depth,
                                           .ord = depth},
                               .sndbuf = bits & SMALL ? 4096 : 0};

    streamdev_open(&d, &o);
    for (unsigned i = 0; i < RDMAP_QNS; i++) {
        msn[i] = 1;
        mo[i] = 0;
    }
    to = STREAMDEV_VA;
    steps = completed = 0;
    given = 0;
    over = registered = failing = false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) {
        return 0;
    }
    if (!d.td) {
        streamdev_start(&d);
        stream = g_byte_array_new();
    }
    in = (struct fuzz_input){data, size};
    bits = (uint8_t)take(1);
    seed = take(1);
    cut = 1 + (seed & 15) * (seed & 15) * 256;
    open_stream();
    do {
        streamdev_on_worker(&d, run, NULL);
        rest();
    } while (in.left && steps < MAX_STEPS && !over);
    reached[ENDED] |= over;
    reached[WHOLE] |= !over;
    g_byte_array_set_size(stream, 0);
    poll_cq();
    streamdev_close(&d);
    check_memory();
    CHECK(atomic_load(&d.td->vm.guest.fault) == NULL);
    return 0;
}
