/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Fuzzer of a channel: the peer's SENDs, and a host NIC that may tell of completions
 * twice, never, or of some that nobody asked for.
 *
 * An input is a byte of bits (blocks of two buffers, none may grow, not connected yet,
 * looks that take little, SENDs that come several at a time and while the channel
 * breaks, flows that act when they are given bytes), and steps: a byte that says what,
 * and its arguments.
 *
 *   send      the peer's: header and frames, right but for what the input wants
 *   raw       ... bytes
 *   sent      SENDs of ours complete, or fail
 *   stray     a completion that was seen before, or of a wrong number or channel
 *   lose      the next receive's completion does not come
 *   flush     all receives come back unused
 *   write     a flow sends
 *   want      ... wants to
 *   wait      ... takes nothing any more; or, when it is given bytes, closes, breaks the
 *             channel, or opens another
 *   go_on     ... does again
 *   close     ... is closed
 *   begin     ... is opened
 *   answer    an OPEN of the peer's is accepted or refused
 *   grow      what became of a block that the channel has asked for
 *   pass      time passes
 *   break     the channel is broken by its owner
 *
 * Whatever comes: bytes that flows take are those that were sent to them, in order; each
 * SEND of ours is well-formed, finds a receive of the peer's that is large enough, and
 * opens, sends to and closes what it may; what the peer may not say breaks the channel;
 * what is kept is bounded; at the end the channel breaks within its second, says rightly
 * whether all was taken, and all blocks come back.
 *
 * What a frame behind an OPEN, OPENED or CLOSE in the same SEND may say depends on what
 * the channel makes of those; from such a SEND on nothing is known of flows.
 */
#include "fuzz.h"

#include "base/log.h"
#include "transport/rnic/channel_internal.h"

#define MAX_STEPS 400u
#define N_FLOWS   4u
#define INDICES   256u /* of ours that are looked at */
#define CQES      1024u
#define MS        1000000ull

enum { SMALL = 1, FIXED = 2, LATE = 4, LITTLE = 8, MANY = 16 };
enum {
    SEND,
    RAW,
    SENT,
    STRAY,
    LOSE,
    FLUSH,
    WRITE,
    WANT,
    WAIT,
    GO_ON,
    CLOSE,
    BEGIN,
    ANSWER,
    GROW,
    PASS,
    BREAK,
    STEPS
};
/* Of a SEND: what may be wrong with it; of a frame likewise. */
enum {
    BAD_VERSION = 1,
    BAD_FLAGS = 2,
    BAD_SIZE = 4,
    BAD_OPCODE = 8,
    CUT = 16,
    MIXED = 32
};
enum { BAD_INDEX = 1, BAD_KIND = 2, TOO_LONG = 4, EMPTY = 8, OF_CHANNEL = 16 };

struct fuzz_flow {
    struct rnic_flow f;
    GByteArray *sent; /* to it, that is right */
    uint32_t taken;   /* of it */
    bool stops, lost; /* it takes nothing; it was overrun */
    unsigned whim;    /* what it does when it is given bytes, once */
    bool used, open;  /* it is the channel's; either side has opened it */
};

/* What an index of ours is. */
struct model {
    struct fuzz_flow *x; /* NULL: closed by us */
    uint32_t peer;       /* the peer's index */
    bool used, begun, asked, told, closed, close_sent, peer_closed;
};

static struct {
    struct rnic_cq cq;
    struct rnic_channel *ch;
    struct fuzz_flow flow[N_FLOWS];
    struct model index[INDICES];
    uint8_t uses[RNIC_FLOWS];      /* the peer's indices */
    uint16_t answered[RNIC_FLOWS]; /* likewise: answers that are not sent yet */
    uint32_t waiting[RNIC_OPENS];  /* OPENs, for us to answer */
    unsigned n_waiting, unanswered;
    uint8_t again[INDICES]; /* it was used before */
    bool unsure, odd;       /* of flows; completions were not as they should be */
    struct ibv_mr mr;
    struct ibv_wc wc[CQES];
    unsigned wc_first, wc_next;
    struct {
        uint64_t wr_id;
        uint8_t *data;
        uint32_t size;
    } receive[RNIC_POSTED];
    unsigned rx_first, rx_next;
    struct {
        uint64_t wr_id;
        bool signalled;
    } send[RNIC_POSTED];
    unsigned tx_first, tx_next;
    /* The peer's receives, by size; and its account of ours. */
    uint32_t left[RNIC_SIZES], told;
    unsigned high;
    bool control_out, control_used; /* the peer's; ours */
    uint64_t now, seen;             /* the last completion that was made */
    size_t most;                    /* for a look to take */
    unsigned blocks;
    bool grows[2], lose, broken, all, liar, many;
    unsigned grow_n[2];
    uint32_t grow_size[2];
} z;

static struct fuzz_input in;
static struct log_subject subject = {.name = "peer"};

static struct fuzz_reached reached[] = {
    {"a SEND is taken", false},
    {"frames are sent", false},
    {"a flow finds no room", false},
    {"a flow is told of room", false},
    {"a flow waits", false},
    {"credits are withheld", false},
    {"a flow is overrun", false},
    {"a PROBE is sent", false},
    {"silence", false},
    {"larger receives", false},
    {"larger SENDs", false},
    {"a lie", false},
    {"a stray", false},
    {"a completion is lost", false},
    {"all came back", false},
    {"not all did", false},
    {"control takes its credit", false},
    {"a flow is opened", false},
    {"a flow is refused", false},
    {"the peer opens one", false},
    {"the peer is refused", false},
    {"the peer closes one", false},
    {"an index is used again", false},
    {"a SEND comes while it breaks", false},
    {"a flow acts when it is given bytes", false},
};
enum {
    TAKEN,
    FRAMES,
    NO_ROOM,
    ROOM,
    WAITS,
    WITHHELD,
    OVERRUN,
    PROBE,
    SILENCE,
    LARGER_RX,
    LARGER_TX,
    LIE,
    STRAYS,
    LOST,
    ALL,
    NOT_ALL,
    CONTROL,
    OPENED,
    REFUSED,
    PEER_OPENS,
    PEER_REFUSED,
    PEER_CLOSES,
    AGAIN,
    BREAKS,
    WHIM
};

static uint32_t take(unsigned bytes)
{
    return fuzz_take(&in, bytes);
}

/* ---- the NIC ------------------------------------------------------------------- */

static void complete(uint64_t wr_id, enum ibv_wc_status status, uint32_t len)
{
    CHECK(z.wc_next - z.wc_first < CQES);
    z.wc[z.wc_next++ % CQES] = (struct ibv_wc){
        .wr_id = wr_id, .status = status, .opcode = IBV_WC_RECV, .byte_len = len};
    z.seen = wr_id;
}

static int nic_poll_cq(struct ibv_cq *cq, int num, struct ibv_wc *wc)
{
    int n = 0;

    CHECK(cq == (struct ibv_cq *)(void *)&z);
    while (n < num && z.wc_first != z.wc_next) {
        wc[n++] = z.wc[z.wc_first++ % CQES];
    }
    return n;
}

static int nic_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr,
                         struct ibv_recv_wr **bad)
{
    CHECK(qp == (struct ibv_qp *)(void *)&z && bad);
    for (; wr; wr = wr->next) {
        CHECK(z.rx_next - z.rx_first < RNIC_POSTED && wr->num_sge == 1);
        z.receive[z.rx_next % RNIC_POSTED].wr_id = wr->wr_id;
        z.receive[z.rx_next % RNIC_POSTED].data = (uint8_t *)(uintptr_t)wr->sg_list->addr;
        z.receive[z.rx_next++ % RNIC_POSTED].size = wr->sg_list->length;
    }
    return 0;
}

static uint32_t peer_receives(void)
{
    uint32_t n = 0;

    for (unsigned i = 0; i < RNIC_SIZES; i++) {
        n += z.left[i];
    }
    return n;
}

static uint32_t word(const uint8_t *p)
{
    uint32_t v;

    memcpy(&v, p, sizeof(v));
    return GUINT32_FROM_BE(v);
}

/* NULL: free, or not looked at. */
static struct model *model(uint32_t index)
{
    return index < INDICES && z.index[index].used ? &z.index[index] : NULL;
}

static void model_release(struct model *m)
{
    if (m->closed && m->close_sent && m->peer_closed) {
        z.uses[m->peer] = 0;
        *m = (struct model){0};
    }
}

/* The one that is open for the peer's index. */
static struct model *model_of_peer(uint32_t peer)
{
    for (unsigned i = 1; peer && i < INDICES; i++) {
        if (z.index[i].used && z.index[i].peer == peer && !z.index[i].close_sent) {
            return &z.index[i];
        }
    }
    return NULL;
}

/* A frame that the peer gets. */
static void nic_check_frame(const struct rnic_frame *f, const uint8_t *bytes)
{
    struct model *m;

    reached[FRAMES].is = true;
    if (z.unsure) {
        return;
    }
    switch (f->kind) {
    case RNIC_DATA:
        m = model_of_peer(f->index);
        CHECK(m && m->told);
        break;
    case RNIC_OPEN:
        m = model(word(bytes));
        CHECK(m && m->begun && !m->asked && f->len <= 4 + RNIC_OPEN_MAX);
        m->asked = true;
        break;
    case RNIC_OPENED:
        CHECK(word(bytes) < RNIC_FLOWS && z.answered[word(bytes)] && z.unanswered);
        z.answered[word(bytes)]--;
        z.unanswered--;
        m = model(word(bytes + 4));
        CHECK(word(bytes + 4) ? m && m->peer == word(bytes) && !m->told : true);
        if (m) {
            m->told = true;
        }
        break;
    default:
        m = model_of_peer(word(bytes));
        CHECK(m && m->told && m->closed);
        m->close_sent = true;
        model_release(m);
    }
}

/* The peer gets that: it must be as docs/rnic.md says. */
static void nic_check_send(const uint8_t *p, uint32_t len)
{
    struct rnic_send_head h;
    struct rnic_frame f;
    unsigned class = 0;
    uint32_t n;

    while (class < RNIC_SIZES && !z.left[class]) {
        class ++;
    }
    CHECK(class < RNIC_SIZES && len <= RNIC_SIZE_MIN << class);
    z.left[class]--;
    n = peer_receives();
    CHECK(rnic_get_send(p, len, &h) == NULL);
    if (h.flags & RNIC_SEND_CONTROL) {
        CHECK(!z.control_used && h.credits && len == RNIC_SEND_HEADER);
        z.control_used = true;
        reached[CONTROL].is = true;
    }
    CHECK(z.control_used || n); /* one is kept */
    if (h.flags & RNIC_SEND_BACK) {
        CHECK(z.control_out);
        z.control_out = false;
    }
    z.told += h.credits;
    CHECK(z.told <= z.rx_next - z.rx_first);
    reached[PROBE].is |= h.flags & RNIC_SEND_PROBE;
    reached[LARGER_RX].is |= h.credits && h.size > RNIC_SIZE_MIN;
    reached[LARGER_TX].is |= len > RNIC_SIZE_MIN;
    for (uint32_t at = RNIC_SEND_HEADER; at < len; at += RNIC_FRAME + f.len) {
        CHECK(rnic_get_frame(p + at, len - at, &f) == NULL);
        nic_check_frame(&f, p + at + RNIC_FRAME);
    }
}

static int nic_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr,
                         struct ibv_send_wr **bad)
{
    CHECK(qp == (struct ibv_qp *)(void *)&z && bad && !wr->next && wr->num_sge == 1);
    CHECK(z.tx_next - z.tx_first < RNIC_POSTED);
    nic_check_send((const uint8_t *)(uintptr_t)wr->sg_list->addr, wr->sg_list->length);
    z.send[z.tx_next % RNIC_POSTED].wr_id = wr->wr_id;
    z.send[z.tx_next++ % RNIC_POSTED].signalled = wr->send_flags & IBV_SEND_SIGNALED;
    return 0;
}

static int nic_req_notify_cq(struct ibv_cq *cq, int solicited)
{
    CHECK(cq == (struct ibv_cq *)(void *)&z && !solicited);
    return 0;
}

static struct ibv_mr *nic_reg_mr(struct ibv_pd *pd, void *addr, size_t len, int access)
{
    (void)pd;
    CHECK(addr && len && !(access & ~IBV_ACCESS_LOCAL_WRITE));
    z.blocks++;
    return &z.mr;
}

static int nic_dereg_mr(struct ibv_mr *mr)
{
    CHECK(mr == &z.mr && z.blocks);
    z.blocks--;
    return 0;
}

static const struct rnic_verbs nic = {.poll_cq = nic_poll_cq,
                                      .post_recv = nic_post_recv,
                                      .post_send = nic_post_send,
                                      .req_notify_cq = nic_req_notify_cq,
                                      .reg_mr = nic_reg_mr,
                                      .dereg_mr = nic_dereg_mr};

/* ---- the owner ------------------------------------------------------------------- */

static struct fuzz_flow *of(struct rnic_flow *f)
{
    return (struct fuzz_flow *)(void *)f;
}

static void has_whim(struct fuzz_flow *x);

static bool on_take(struct rnic_flow *f, const uint8_t *bytes, size_t len)
{
    struct fuzz_flow *x = of(f);

    CHECK(x->used && !x->lost && len && !z.broken);
    CHECK(z.unsure || (len <= x->sent->len - x->taken &&
                       memcmp(bytes, x->sent->data + x->taken, len) == 0));
    x->taken += (uint32_t)len;
    reached[TAKEN].is = true;
    if (x->whim) {
        has_whim(x);
        return true;
    }
    return !x->stops;
}

static void on_writable(struct rnic_flow *f)
{
    static const uint8_t bytes[40000];

    reached[ROOM].is = true;
    CHECK(of(f)->open);
    rnic_flow_send(f, bytes, 1 + (z.now / MS) % sizeof(bytes));
}

static void on_overrun(struct rnic_flow *f)
{
    of(f)->lost = true;
    reached[OVERRUN].is = true;
}

static struct fuzz_flow *free_flow(void)
{
    for (unsigned i = 0; i < N_FLOWS; i++) {
        if (!z.flow[i].used) {
            return &z.flow[i];
        }
    }
    return NULL;
}

/* It is the channel's now. */
static void use_flow(struct fuzz_flow *x, struct model m)
{
    uint32_t index = x->f.index;

    x->used = true;
    x->open = m.peer;
    x->taken = 0;
    x->stops = x->lost = false;
    x->whim = 0;
    g_byte_array_set_size(x->sent, 0);
    m.x = x;
    m.used = true;
    CHECK(index < INDICES);
    if (z.index[index].closed && z.index[index].peer_closed) {
        z.unsure = true; /* its CLOSE goes before this OPEN, and is not sent yet */
    }
    CHECK(!z.index[index].used || z.unsure);
    reached[AGAIN].is |= z.again[index];
    z.again[index] = 1;
    z.index[index] = m;
}

static void answer_open(uint32_t peer, bool accept)
{
    static const uint8_t bytes[8];
    struct fuzz_flow *x = accept ? free_flow() : NULL;

    z.answered[peer]++; /* a liar opens what it cannot know to be refused */
    if (x && rnic_flow_accept(z.ch, &x->f, peer, bytes, sizeof(bytes))) {
        use_flow(x, (struct model){.peer = peer});
        reached[PEER_OPENS].is = true;
    } else if (z.ch->phase <= RNIC_UP) {
        z.uses[peer] = 0;
        rnic_flow_refuse(z.ch, peer, NULL, 0);
        reached[PEER_REFUSED].is = true;
    }
}

static bool on_open(struct rnic_channel *ch, uint32_t peer, const uint8_t *bytes,
                    size_t len)
{
    unsigned how = len ? bytes[0] : 0;

    CHECK(ch == z.ch && peer && peer < RNIC_FLOWS && len <= RNIC_OPEN_MAX);
    if (how == 0xff) {
        return false;
    }
    if (how % 4 == 3 && z.n_waiting < RNIC_OPENS) {
        z.waiting[z.n_waiting++] = peer;
    } else {
        answer_open(peer, how % 4);
    }
    return true;
}

static bool on_opened(struct rnic_flow *f, bool accepted, const uint8_t *bytes,
                      size_t len)
{
    struct fuzz_flow *x = of(f);

    CHECK(x->used && !x->open && len <= RNIC_OPEN_MAX);
    x->open = accepted;
    reached[accepted ? OPENED : REFUSED].is = true;
    return len == 0 || bytes[0] != 0xff;
}

static void on_closed(struct rnic_flow *f)
{
    CHECK(of(f)->used && of(f)->open);
    reached[PEER_CLOSES].is = true;
}

static void on_grow(struct rnic_channel *ch, enum rnic_side side, unsigned n,
                    uint32_t size)
{
    CHECK(ch == z.ch && !z.grows[side] && n <= RNIC_BLOCK_BUFFERS &&
          rnic_size_class(size) < RNIC_SIZES);
    z.grows[side] = true;
    z.grow_n[side] = n;
    z.grow_size[side] = size;
}

static void on_spare(struct rnic_channel *ch, struct rnic_block *b)
{
    CHECK(ch == z.ch);
    memset(b->memory, 0xee, (size_t)b->n * b->size);
    rnic_block_free(b);
}

static void on_err(struct rnic_channel *ch)
{
    CHECK(ch == z.ch);
}

static void on_broken(struct rnic_channel *ch, bool all)
{
    CHECK(ch == z.ch && !z.broken);
    z.broken = true;
    z.all = all;
    CHECK(!all || !z.liar || ch->rx.lost || z.many);
    CHECK(!all || ch->in_err || ch->rx.flushed);
    for (unsigned i = 0; i < N_FLOWS; i++) {
        struct fuzz_flow *x = &z.flow[i];

        CHECK(!all || !x->used || x->lost || z.unsure || z.odd ||
              x->taken == x->sent->len);
    }
    reached[all ? ALL : NOT_ALL].is = true;
}

static const struct rnic_channel_ops ops = {on_take,   on_writable, on_overrun, on_open,
                                            on_opened, on_closed,   on_grow,    on_spare,
                                            on_err,    on_broken};

/* ---- what has to hold ---- */

static void check(void)
{
    struct rnic_channel *ch = z.ch;
    size_t kept = 0;
    uint32_t n = 0;

    for (unsigned i = 0; i < N_FLOWS; i++) {
        const struct rnic_flow *f = &z.flow[i].f;

        kept += z.flow[i].used && f->kept ? f->kept->len - f->kept_at : 0;
    }
    CHECK(kept == ch->rx.kept);
    CHECK(kept <= RNIC_KEPT + (size_t)RNIC_POSTED * RNIC_SIZE_MAX);
    CHECK(!ch->rx.withheld == (kept <= RNIC_KEPT));
    for (unsigned i = 0; i < RNIC_SIZES; i++) {
        n += ch->tx.left[i];
    }
    CHECK(n == ch->tx.n_left && n <= RNIC_POSTED);
    CHECK(rnic_ring_used(&ch->rx.ring) <= RNIC_POSTED &&
          rnic_ring_used(&ch->tx.ring) <= RNIC_POSTED);
    CHECK(z.broken == (ch->phase == RNIC_BROKEN));
    reached[WITHHELD].is |= ch->rx.withheld != 0;
    reached[LIE].is |= ch->rx.liar;
    reached[LOST].is |= ch->rx.lost;
    reached[STRAYS].is |= z.cq.strays != 0;
}

static void look(void)
{
    while (rnic_cq_look(&z.cq, z.now, z.most)) {
        check();
    }
    check();
    /* Of several, what was told within the look may make good what was a lie when it
     * came. */
    CHECK(!z.liar || z.many || z.ch->phase >= RNIC_BREAKING || z.ch->rx.lost);
}

/* ---- the peer ---- */

static bool judge_open(const struct rnic_frame *f, const uint8_t *bytes)
{
    uint32_t index = f->len < 4 ? 0 : word(bytes);

    if (!index || index >= RNIC_FLOWS || z.uses[index] || z.unanswered == RNIC_OPENS ||
        f->len > 4 + RNIC_OPEN_MAX) {
        return false;
    }
    z.uses[index] = 1;
    z.unanswered++;
    return f->len == 4 || bytes[4] != 0xff;
}

static bool judge_opened(const struct rnic_frame *f, const uint8_t *bytes)
{
    struct model *m = f->len < 8 ? NULL : model(word(bytes));
    uint32_t its = m ? word(bytes + 4) : 0;

    if (!m || !m->asked || f->len > 8 + RNIC_OPEN_MAX || its >= RNIC_FLOWS ||
        z.uses[its]) {
        return false;
    }
    m->begun = m->asked = false;
    m->told = true;
    m->peer = its;
    if (its) {
        z.uses[its] = 1;
    } else if (!m->x) {
        *m = (struct model){0};
        return true;
    }
    return !m->x || f->len == 8 || bytes[8] != 0xff;
}

/* Is that a frame to be taken? */
static bool judge_frame(const struct rnic_frame *f, const uint8_t *bytes)
{
    struct model *m;

    switch (f->kind) {
    case RNIC_OPEN:
        return judge_open(f, bytes);
    case RNIC_OPENED:
        return judge_opened(f, bytes);
    case RNIC_CLOSE:
        m = f->len == 4 ? model(word(bytes)) : NULL;
        if (!m || !m->peer || m->peer_closed) {
            return false;
        }
        m->peer_closed = true;
        model_release(m);
        return true;
    default:
        m = model(f->index);
        if (!m || !m->peer || m->peer_closed) {
            return false;
        }
        if (m->x) {
            g_byte_array_append(m->x->sent, bytes, f->len);
        }
        return true;
    }
}

/* What the SEND means to an honest peer and its daemon; false: it is a lie. */
static bool judge(const uint8_t *p, uint32_t len)
{
    struct rnic_send_head h;
    struct rnic_frame f;

    if (rnic_get_send(p, len, &h) || !z.told) {
        return false;
    }
    z.told--;
    if ((h.flags & RNIC_SEND_CONTROL && z.control_out) ||
        (h.flags & RNIC_SEND_BACK && !z.control_used)) {
        return false;
    }
    z.control_out |= h.flags & RNIC_SEND_CONTROL;
    z.control_used &= !(h.flags & RNIC_SEND_BACK);
    if (h.credits) {
        unsigned class = rnic_size_class(h.size);

        if (class < z.high || peer_receives() + h.credits > RNIC_POSTED) {
            return false;
        }
        z.high = class;
        z.left[class] += h.credits;
    }
    if (z.unsure) {
        return true;
    }
    for (uint32_t at = RNIC_SEND_HEADER; at < len; at += RNIC_FRAME + f.len) {
        if (rnic_get_frame(p + at, len - at, &f) ||
            !judge_frame(&f, p + at + RNIC_FRAME)) {
            return false;
        }
        if (!f.index && at + RNIC_FRAME + f.len < len) {
            z.unsure = true;
            return true;
        }
    }
    return true;
}

/* That reaches the next receive, if there is one for it. */
static void arrives(const uint8_t *bytes, uint32_t len, enum ibv_wc_opcode opcode)
{
    if (z.rx_first == z.rx_next || len > z.receive[z.rx_first % RNIC_POSTED].size ||
        z.ch->phase > (z.many ? RNIC_BREAKING : RNIC_UP)) {
        return;
    }
    reached[BREAKS].is |= z.ch->phase == RNIC_BREAKING;
    memcpy(z.receive[z.rx_first % RNIC_POSTED].data, bytes, len);
    if (z.lose && z.told) { /* what is behind it shows that */
        z.lose = false;
        z.odd = z.unsure = true;
        z.rx_first++;
        z.told--;
        return;
    }
    complete(z.receive[z.rx_first++ % RNIC_POSTED].wr_id, IBV_WC_SUCCESS, len);
    z.wc[(z.wc_next - 1) % CQES].opcode = opcode;
    z.liar |= opcode != IBV_WC_RECV || !judge(bytes, len);
    z.unsure |= z.liar && z.many; /* a channel that breaks need not see all lies */
}

/* An OPEN, OPENED or CLOSE: its kind and bytes, right but for what the input wants. */
static uint32_t put_control(uint8_t *p, struct rnic_frame *f, unsigned bad)
{
    unsigned kind = RNIC_OPEN + bad / 64 % 3, own = f->index;
    uint32_t first = kind == RNIC_OPEN ? take(1) : own, second = take(1);
    uint32_t len = take(1) % 16;

    f->index = 0;
    f->kind = (uint8_t)kind;
    first = GUINT32_TO_BE(first + (bad & BAD_INDEX ? take(2) * 16 : 0));
    second = GUINT32_TO_BE(second);
    memcpy(p, &first, sizeof(first));
    if (kind == RNIC_OPENED) {
        memcpy(p + 4, &second, sizeof(second));
    }
    p[kind == RNIC_OPEN ? 4 : 8] = (uint8_t)take(1);
    if (bad & EMPTY) {
        return len;
    }
    return kind == RNIC_CLOSE ? 4 : 9 + len;
}

/* A frame; its size. */
static uint32_t put_frame(uint8_t *p, uint32_t room)
{
    unsigned bad = take(1), i = take(1) % N_FLOWS;
    uint32_t len = bad & EMPTY ? 0 : 1 + take(2) % 5000;
    struct rnic_frame f = {.index = z.flow[i].f.index, .kind = RNIC_DATA};

    if (room < RNIC_FRAME + 32) {
        return 0;
    }
    len = MIN(len, room - RNIC_FRAME);
    memset(p + RNIC_FRAME, (int)(len + z.now / MS), MAX(len, 32));
    if (bad & OF_CHANNEL) {
        len = put_control(p + RNIC_FRAME, &f, bad);
    } else {
        f.index += bad & BAD_INDEX ? 7 + (bad & 0xf0) * 4096u : 0;
    }
    f.kind = (uint8_t)(f.kind + (bad & BAD_KIND ? 5 : 0));
    f.len = (uint16_t)(bad & TOO_LONG ? room : len);
    rnic_put_frame(p, &f);
    return RNIC_FRAME + len;
}

static void peer_sends(void)
{
    static uint8_t bytes[RNIC_SIZE_MAX];
    unsigned bad = take(1), frames = take(1) % 24;
    struct rnic_send_head h = {.flags = (uint8_t)take(1),
                               .credits = (uint16_t)(take(1) % RNIC_BLOCK_BUFFERS)};
    uint32_t size =
        z.rx_first == z.rx_next ? 0 : z.receive[z.rx_first % RNIC_POSTED].size;
    uint32_t len = RNIC_SEND_HEADER;

    h.size = h.credits ? RNIC_SIZE_MIN << take(1) % 8 : 0;
    if (!(bad & BAD_FLAGS)) {
        h.flags &= RNIC_SEND_FLAGS;
        h.flags = z.control_used ? h.flags : h.flags & ~RNIC_SEND_BACK;
        h.flags = z.control_out ? h.flags & ~RNIC_SEND_CONTROL : h.flags;
    }
    if (!(bad & BAD_SIZE) && h.credits) {
        h.credits = (uint16_t)MIN(h.credits, RNIC_POSTED - peer_receives());
        h.size = h.credits ? MIN(MAX(h.size, RNIC_SIZE_MIN << z.high), RNIC_SIZE_MAX) : 0;
    }
    while (frames-- && size > len + RNIC_FRAME) {
        uint32_t was = len;

        len += put_frame(bytes + len, size - len);
        if (len == was || (!(bad & MIXED) && !word(bytes + was))) {
            break;
        }
    }
    rnic_put_send(bytes, &h);
    bytes[0] = (uint8_t)(bytes[0] + (bad & BAD_VERSION ? 1 : 0));
    len -= bad & CUT ? MIN(len, 1 + bad / 16) : 0;
    arrives(bytes, len, bad & BAD_OPCODE ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV);
}

static void peer_sends_raw(void)
{
    uint32_t len = take(1);

    len = (uint32_t)MIN(len, in.left);
    arrives(in.data, len, IBV_WC_RECV);
    in.data += len;
    in.left -= len;
}

/* ---- steps ---- */

static void sends_complete(unsigned n, bool fail)
{
    while (n-- && z.tx_first != z.tx_next) {
        unsigned i = z.tx_first++ % RNIC_POSTED;

        if (z.send[i].signalled || fail) {
            complete(z.send[i].wr_id, fail ? IBV_WC_RETRY_EXC_ERR : IBV_WC_SUCCESS, 0);
        }
    }
}

static void stray(unsigned how)
{
    uint64_t id = z.seen ^ (how & 1 ? 1ull << (32 + how % 31) : 0);

    z.odd = z.unsure = true;
    id += how & 2 ? how * 64 : 0;
    complete(id, how & 4 ? IBV_WC_WR_FLUSH_ERR : IBV_WC_SUCCESS, how * 100);
}

static void flush(void)
{
    while (z.rx_first != z.rx_next) {
        complete(z.receive[z.rx_first++ % RNIC_POSTED].wr_id, IBV_WC_WR_FLUSH_ERR, 0);
    }
    sends_complete(RNIC_POSTED, true);
}

static void writes(struct fuzz_flow *x, uint32_t len)
{
    static const uint8_t bytes[65536];
    ssize_t n;

    if (!x->open) {
        return;
    }
    n = rnic_flow_send(&x->f, bytes, len);
    CHECK(n == -1 ? z.ch->phase > RNIC_UP : n <= (ssize_t)len);
    if (n >= 0 && n < (ssize_t)len) {
        reached[NO_ROOM].is = true;
    }
}

static void begin_flow(unsigned len)
{
    static const uint8_t bytes[RNIC_OPEN_MAX];
    struct fuzz_flow *x = free_flow();

    if (x && z.ch->n_places < INDICES &&
        rnic_flow_begin(z.ch, &x->f, bytes, len % (RNIC_OPEN_MAX + 1))) {
        use_flow(x, (struct model){.begun = true});
    }
}

static void close_flow(struct fuzz_flow *x)
{
    struct model *m;

    if (!x->used) {
        return;
    }
    m = model(x->f.index);
    rnic_flow_close(&x->f);
    x->used = x->open = false;
    if (m && m->x == x) {
        m->x = NULL;
        m->closed = true;
        if ((m->begun && !m->asked) || (!m->begun && !m->peer)) {
            *m = (struct model){0}; /* the peer knows nothing of it, or has refused */
        } else if (m->peer && m->peer_closed && z.ch->phase > RNIC_UP) {
            m->close_sent = true;
            model_release(m);
        }
    }
}

/* Within take(). */
static void has_whim(struct fuzz_flow *x)
{
    unsigned whim = x->whim;

    x->whim = 0;
    z.unsure = true; /* the model is told of what comes before it is taken */
    reached[WHIM].is = true;
    if (whim == 1) {
        close_flow(x);
    } else if (whim == 2) {
        rnic_channel_break(z.ch, "a whim");
    } else {
        begin_flow(10);
    }
}

static void answer_waiting(bool accept)
{
    if (z.n_waiting) {
        answer_open(z.waiting[--z.n_waiting], accept);
    }
}

static void answer_grow(enum rnic_side side, bool yes)
{
    if (z.grows[side]) {
        z.grows[side] = false;
        rnic_channel_grow(
            z.ch, side,
            yes ? rnic_block_new(NULL, side, z.grow_n[side], z.grow_size[side]) : NULL);
    }
}

static void go_on(struct fuzz_flow *x)
{
    x->stops = false;
    if (x->used) {
        rnic_flow_go_on(&x->f);
    }
}

static void step(void)
{
    unsigned what = take(1), arg = what / STEPS;
    struct fuzz_flow *x = &z.flow[arg % N_FLOWS];

    switch (what % STEPS) {
    case SEND:
        do {
            peer_sends();
        } while (z.many && in.left && take(1) & 1);
        break;
    case RAW:
        peer_sends_raw();
        break;
    case SENT:
        sends_complete(1 + take(1) % 32, arg == 7);
        break;
    case STRAY:
        stray(take(1));
        break;
    case LOSE:
        z.lose = true;
        break;
    case FLUSH:
        z.odd = true;
        flush();
        break;
    case WRITE:
        writes(x, take(2));
        break;
    case WANT:
        if (x->open) {
            rnic_flow_want(&x->f, arg & 4);
        }
        break;
    case WAIT:
        x->whim = z.many ? arg / N_FLOWS : 0;
        x->stops = !x->whim;
        break;
    case GO_ON:
        go_on(x);
        break;
    case CLOSE:
        close_flow(x);
        break;
    case BEGIN:
        begin_flow(take(1) * 5);
        break;
    case ANSWER:
        answer_waiting(arg & 1);
        break;
    case GROW:
        answer_grow(arg & 1 ? RNIC_RX : RNIC_TX, !(arg & 2));
        break;
    case PASS:
        rnic_cq_arm(&z.cq, z.now);
        z.now += take(1) * 10 * MS;
        break;
    default:
        rnic_channel_break(z.ch, "a whim");
        break;
    }
    for (unsigned i = 0; i < N_FLOWS; i++) {
        reached[WAITS].is |= z.flow[i].used && z.flow[i].f.kept;
    }
}

static void begin(unsigned bits)
{
    unsigned n = bits & SMALL ? 2 : RNIC_FIRST_BUFFERS;
    struct rnic_channel_config config = {.cq = &z.cq,
                                         .qp = (struct ibv_qp *)(void *)&z,
                                         .ops = &ops,
                                         .log = &subject,
                                         .name = "to the fuzzer",
                                         .peer_receives = n,
                                         .peer_size = RNIC_SIZE_MIN,
                                         .max_size = bits & FIXED ? RNIC_SIZE_MIN
                                                                  : RNIC_SIZE_MAX};

    memset(&z, 0, sizeof(z));
    z.now = 1000 * MS;
    /* Many are taken by one look: what is sent between would make good what was a lie. */
    z.most = bits & MANY ? 1u << 30 : bits & LITTLE ? 1 : 65536;
    z.many = bits & MANY;
    CHECK(rnic_cq_init(&z.cq, (struct ibv_cq *)(void *)&z, NULL));
    config.tx = rnic_block_new(NULL, RNIC_TX, n, RNIC_SIZE_MIN);
    config.rx = rnic_block_new(NULL, RNIC_RX, n, RNIC_SIZE_MIN);
    z.ch = rnic_channel_new(&config);
    CHECK(z.ch);
    z.left[0] = z.told = n;
    for (unsigned i = 0; i < N_FLOWS; i++) {
        z.flow[i].sent = g_byte_array_new();
        if (i < 2) { /* open on both sides */
            CHECK(channel_take_place(z.ch, &z.flow[i].f, i + 1));
            z.ch->peer_uses[0] |= (uint8_t)(2u << i);
            z.uses[i + 1] = 1;
            use_flow(&z.flow[i], (struct model){.peer = i + 1, .told = true});
        }
    }
    if (!(bits & LATE)) {
        rnic_channel_up(z.ch);
    }
}

/* It breaks, in its time. */
static void end(void)
{
    unsigned how = take(1);
    bool flushes = how & 1, says = how & 2, sure;

    sure = !z.odd && !z.liar && z.ch->phase <= RNIC_UP && !z.unsure;
    rnic_channel_break(z.ch, "the end");
    look();
    if (flushes) {
        flush();
        look();
    }
    if (says) {
        rnic_channel_in_err(z.ch);
    }
    for (unsigned i = 0; i < N_FLOWS; i++) {
        go_on(&z.flow[i]);
    }
    look();
    CHECK(!sure || !flushes || (z.broken && z.all));
    for (unsigned i = 0; i < 12; i++) {
        z.now += RNIC_BREAK_NS / 10;
        look();
    }
    CHECK(z.broken);
    for (unsigned i = 0; i < N_FLOWS; i++) {
        close_flow(&z.flow[i]);
        g_byte_array_unref(z.flow[i].sent);
    }
    rnic_channel_free(z.ch);
    CHECK(!z.blocks);
    rnic_cq_fini(&z.cq);
}

bool fuzz_reached_all(void)
{
    return fuzz_all_reached(reached, G_N_ELEMENTS(reached));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned bits;

    rnic_verbs = &nic;
    log_set_level(LOG_LVL_ERROR);
    in = (struct fuzz_input){data, size};
    bits = take(1);
    begin(bits);
    for (unsigned n = 0; in.left && n < MAX_STEPS; n++) {
        uint64_t since = z.ch->probed;

        step();
        look();
        reached[SILENCE].is |= since && z.ch->phase == RNIC_BREAKING && !z.ch->heard;
        rnic_cq_flush(&z.cq);
        check();
    }
    end();
    return 0;
}
