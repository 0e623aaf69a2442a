/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Unit tests: flows of channels that are opened, refused and closed by frames, on NICs in
 * memory: what each side is told, when an index is used again, lies about all that.
 */
#include "channelfix.h"

/* Does a flow have this index, or may the peer still send to one that had? */
static bool is_used(const struct rnic_channel *ch, uint32_t index)
{
    const struct channel_place *place = &ch->place[index];

    return place->flow || place->asked || place->peer_index;
}

/* Nothing is left of any flow. */
static void check_empty(const struct rnic_channel *ch)
{
    static const uint8_t none[sizeof(ch->peer_uses)];
    unsigned n = 0;

    for (uint32_t i = ch->first_free; i; i = ch->place[i].next) {
        g_assert_false(is_used(ch, i));
        n++;
    }
    g_assert_cmpuint(n, ==, ch->n_places ? ch->n_places - 1 : 0);
    g_assert_cmpmem(ch->peer_uses, sizeof(none), none, sizeof(none));
    g_assert_true(TAILQ_EMPTY(&ch->messages) && TAILQ_EMPTY(&ch->opens));
    g_assert_cmpuint(ch->asked + ch->peer_asked + ch->n_opens, ==, 0);
}

/* Those that the peer has closed or refused. */
static void close_ended(struct fixend *e)
{
    for (unsigned i = e->more->len; i-- > 0;) {
        struct fixflow *x = e->more->pdata[i];

        if (x->ended || x->refused) {
            fix_flow_close(x);
        }
    }
}

static void close_all(struct fixend *e)
{
    while (e->more->len) {
        fix_flow_close(e->more->pdata[e->more->len - 1]);
    }
}

static void check_both_empty(struct fixpair *p)
{
    for (unsigned i = 0; i < 3; i++) {
        fix_settle(p);
        close_ended(&p->a);
        close_ended(&p->b);
    }
    g_assert_cmpuint(p->a.more->len + p->b.more->len, ==, 0);
    check_empty(p->a.ch);
    check_empty(p->b.ch);
}

static unsigned count_opened(const struct fixend *e)
{
    unsigned n = 0;

    for (unsigned i = 0; i < e->more->len; i++) {
        n += ((struct fixflow *)e->more->pdata[i])->opened;
    }
    return n;
}

/* More at a time than may be unanswered, of both sides, with few credits or many. */
static void test_open(void)
{
    for (unsigned n = 2; n <= 18; n += 4) {
        struct fixpair p;

        fix_open(&p, &(struct fixopts){.n = n, .max_size = RNIC_SIZE_MIN}, 0);
        for (unsigned i = 0; i < 900; i++) {
            g_assert_nonnull(fix_begin(i % 3 ? &p.a : &p.b, i));
        }
        for (unsigned i = 0; count_opened(&p.a) + count_opened(&p.b) < 1800; i++) {
            g_assert_cmpuint(i, <, 100000);
            fix_turn(i % 2 ? &p.a : &p.b);
            g_assert_cmpuint(p.a.ch->asked, <=, RNIC_OPENS);
            g_assert_cmpuint(p.b.ch->asked, <=, RNIC_OPENS);
            g_assert_false(p.a.broken || p.b.broken);
        }
        for (unsigned i = 0; i < 900; i++) {
            fix_find(&p.a, i)->to_send = fix_find(&p.b, i)->to_send = 100 + i;
        }
        for (unsigned i = 0; i < 900; i++) {
            for (unsigned k = 0;
                 fix_find(&p.a, i)->taken < 100 + i || fix_find(&p.b, i)->taken < 100 + i;
                 k++) {
                g_assert_cmpuint(k, <, 10000);
                fix_settle(&p);
            }
            g_assert_cmpuint(fix_find(&p.a, i)->taken, ==, 100 + i);
            g_assert_cmpuint(fix_find(&p.b, i)->taken, ==, 100 + i);
        }
        close_all(&p.a);
        check_both_empty(&p);
        g_assert_cmpint(rnrs(), ==, 0);
        fix_close(&p);
    }
}

/* Each is closed when it is open, by this side or that, or both. */
static void test_rounds(void)
{
    unsigned rounds = 1000000 / SLOWER, done = 0;
    struct fixpair p;

    fix_open(&p, &(struct fixopts){.max_size = RNIC_SIZE_MIN}, 0);
    while (done < rounds) {
        for (unsigned i = 0; i < 60; i++) {
            g_assert_nonnull(fix_begin(i % 2 ? &p.a : &p.b, done++ % 4));
        }
        while (count_opened(&p.a) + count_opened(&p.b) < 120) {
            fix_turn(&p.a);
            fix_turn(&p.b);
        }
        close_all(done % 3 ? &p.a : &p.b);
        if (done % 5 == 0) {
            close_all(&p.a);
            close_all(&p.b);
        }
        while (p.a.more->len + p.b.more->len || p.a.ch->messages.tqh_first ||
               p.b.ch->messages.tqh_first) {
            fix_turn(&p.a);
            fix_turn(&p.b);
            close_ended(&p.a);
            close_ended(&p.b);
        }
    }
    check_both_empty(&p);
    g_assert_cmpuint(p.a.ch->n_places, <=, 256);
    fix_close(&p);
}

/* ---- answers that come late ---- */

static uint32_t waiting[RNIC_OPENS + 1];
static unsigned n_waiting;

static bool wait_open(struct rnic_channel *ch, uint32_t peer_index, const uint8_t *bytes,
                      size_t len)
{
    (void)ch, (void)bytes, (void)len;
    g_assert_cmpuint(n_waiting, <, G_N_ELEMENTS(waiting));
    waiting[n_waiting++] = peer_index;
    return true;
}

static struct rnic_channel_ops waiting_ops(void)
{
    struct rnic_channel_ops ops = fix_ops;

    n_waiting = 0;
    ops.open = wait_open;
    return ops;
}

static void answer(struct fixend *e, unsigned number, bool accept)
{
    uint8_t bytes[RNIC_OPEN_MAX];
    size_t len = fix_content(bytes, number);

    if (accept) {
        fix_opens(e->ch, waiting[--n_waiting], bytes, len);
    } else {
        rnic_flow_refuse(e->ch, waiting[--n_waiting], bytes, len);
    }
}

static void test_refuse(void)
{
    struct rnic_channel_ops ops = waiting_ops();
    struct fixpair p;

    fix_open(&p, &(struct fixopts){0}, 0);
    p.b.ch->ops = &ops;
    for (unsigned i = 0; i < 100; i++) {
        struct fixflow *x = fix_begin(&p.a, 40);

        fix_settle(&p);
        g_assert_cmpuint(n_waiting, ==, 1);
        g_assert_false(x->opened || x->refused);
        answer(&p.b, 40, false);
        fix_settle(&p);
        g_assert_true(x->refused);
        fix_flow_close(x);
        check_empty(p.a.ch);
        check_empty(p.b.ch);
    }
    fix_close(&p);
}

/* Closed before the answer comes, whatever that is; or before anything was sent. */
static void test_early_close(void)
{
    struct rnic_channel_ops ops = waiting_ops();
    struct fixpair p;
    int64_t packets;

    fix_open(&p, &(struct fixopts){0}, 0);
    p.b.ch->ops = &ops;
    for (unsigned accept = 0; accept < 2; accept++) {
        uint32_t index;

        index = fix_begin(&p.a, 7)->f.index;
        fix_settle(&p);
        close_all(&p.a);
        fix_settle(&p);
        g_assert_true(is_used(p.a.ch, index));
        answer(&p.b, 7, accept);
        fix_settle(&p);
        g_assert_cmpuint(p.b.more->len, ==, accept);
        g_assert_cmpint(is_used(p.a.ch, index), ==, accept);
        check_both_empty(&p);
    }
    packets = softnic_count("packets", "roce1");
    fix_begin(&p.a, 1);
    fix_begin(&p.a, 2);
    close_all(&p.a);
    check_both_empty(&p);
    g_assert_cmpint(softnic_count("packets", "roce1"), ==, packets);
    fix_close(&p);
}

/* ---- the end of a flow ---- */

/* What was sent before comes before. */
static void test_behind(void)
{
    struct fixflow *x, *y;
    struct fixpair p;

    fix_open(&p, &(struct fixopts){.n = 4, .max_size = RNIC_SIZE_MIN}, 0);
    for (unsigned i = 0; i < 50; i++) {
        bool stops = i % 2;

        x = fix_begin(&p.a, i);
        fix_settle(&p);
        y = fix_find(&p.b, i);
        y->stops = stops;
        x->to_send = 100000;
        while (x->sent < x->to_send) {
            fix_turn(&p.a);
            fix_turn(&p.b);
        }
        fix_flow_close(x);
        fix_settle(&p);
        g_assert_cmpint(y->ended, ==, !stops);
        y->stops = false;
        rnic_flow_go_on(&y->f);
        g_assert_true(y->ended);
        g_assert_cmpuint(y->taken, ==, 100000);
        check_both_empty(&p);
    }
    fix_close(&p);
}

/* The peer goes on sending: that is dropped, and the index is not used meanwhile. */
static void test_deaf(void)
{
    struct fixflow *x, *y;
    struct fixpair p;
    uint32_t index;

    fix_open(&p, &(struct fixopts){0}, 0);
    x = fix_begin(&p.a, 1);
    fix_settle(&p);
    y = fix_find(&p.b, 1);
    index = y->f.index;
    x->to_send = 300000;
    fix_turn(&p.a);
    fix_flow_close(y);
    while (x->sent < x->to_send) {
        fix_turn(&p.a);
        fix_turn(&p.b);
    }
    fix_settle(&p);
    g_assert_true(x->ended);
    for (unsigned i = 0; i < 70; i++) { /* all indices that there are at first */
        g_assert_nonnull(fix_begin(&p.b, 100 + i));
        g_assert_cmpuint(((struct fixflow *)p.b.more->pdata[i])->f.index, !=, index);
    }
    fix_settle(&p);
    g_assert_true(is_used(p.b.ch, index));
    fix_flow_close(x);
    fix_settle(&p);
    g_assert_false(is_used(p.b.ch, index));
    g_assert_false(p.a.broken || p.b.broken);
    close_all(&p.b);
    check_both_empty(&p);
    fix_close(&p);
}

/* Closed in the middle of what comes for it, by the one who takes it. */
static struct fixflow *closed_within;

static bool take_and_close(struct rnic_flow *f, const uint8_t *bytes, size_t len)
{
    struct fixflow *x = (struct fixflow *)(void *)f;
    guint i;

    if (x->taken + len < 50000) {
        return fix_take(f, bytes, len);
    }
    rnic_flow_close(f);
    g_ptr_array_find(fix_of(f->channel)->more, x, &i);
    closed_within = g_ptr_array_steal_index_fast(fix_of(f->channel)->more, i);
    return false;
}

static void test_close_within(void)
{
    struct rnic_channel_ops ops = fix_ops;
    struct fixflow *x, *y;
    struct fixpair p;

    ops.take = take_and_close;
    fix_open(&p, &(struct fixopts){0}, 0);
    p.b.ch->ops = &ops;
    for (unsigned keeps = 0; keeps < 2; keeps++) {
        x = fix_begin(&p.a, keeps);
        fix_settle(&p);
        y = fix_find(&p.b, keeps);
        y->stops = keeps;
        x->to_send = 200000;
        for (unsigned i = 0; i < 20; i++) {
            fix_settle(&p);
        }
        if (keeps) {
            g_assert_cmpuint(p.b.ch->rx.kept, >, 100000);
            y->stops = false;
            rnic_flow_go_on(&y->f);
        }
        g_assert_cmpuint(p.b.more->len, ==, 0);
        g_assert_cmpuint(p.b.ch->rx.kept, ==, 0);
        g_assert_true(closed_within == y);
        g_assert_false(y->f.waits); /* it is the test's again */
        g_clear_pointer(&closed_within, g_free);
        check_both_empty(&p);
    }
    fix_close(&p);
}

/* While a channel breaks, and behind that. */
static void test_close_late(void)
{
    struct fixpair p;

    fix_open(&p, &(struct fixopts){0}, 0);
    for (unsigned i = 0; i < 9; i++) {
        fix_begin(&p.a, i);
    }
    fix_settle(&p);
    fix_begin(&p.a, 9);
    fix_flow_close(fix_find(&p.b, 0));
    fix_flow_close(fix_find(&p.a, 1));
    rnic_channel_break(p.a.ch, "in the middle");
    g_assert_null(fix_begin(&p.a, 10));
    fix_flow_close(fix_find(&p.a, 2));
    fix_flow_close(fix_find(&p.a, 9));
    fix_settle(&p);
    g_assert_true(p.a.broken);
    fix_flow_close(fix_find(&p.a, 3));
    fix_close(&p); /* the rest */
}

/* ---- how many there may be ---- */

static void test_full(void)
{
    struct rnic_flow *f = g_new(struct rnic_flow, RNIC_FLOWS);
    struct rnic_channel_ops ops = waiting_ops();
    struct fixflow *x, last;
    struct fixpair p;

    fix_open(&p, &(struct fixopts){0}, 0);
    p.b.ch->ops = &ops;
    for (unsigned i = 1; i < RNIC_FLOWS; i++) {
        g_assert_true(channel_take_place(p.b.ch, &f[i], 0));
    }
    x = fix_begin(&p.a, 3);
    fix_settle(&p);
    g_assert_false(rnic_flow_accept(p.b.ch, &last.f, waiting[0], NULL, 0));
    answer(&p.b, 3, false);
    fix_settle(&p);
    g_assert_true(x->refused);
    g_assert_null(fix_begin(&p.b, 4));
    for (unsigned i = 1; i < RNIC_FLOWS; i++) {
        rnic_flow_close(&f[i]);
    }
    check_both_empty(&p);
    g_free(f);
    fix_close(&p);
}

/* Those that wait to be sent are bounded. */
static void test_many_wait(void)
{
    struct rnic_channel_ops ops = waiting_ops();
    struct fixpair p;

    fix_open(&p, &(struct fixopts){0}, 0);
    p.b.ch->ops = &ops;
    for (unsigned i = 0; i < RNIC_OPENS_WAIT; i++) {
        g_assert_nonnull(fix_begin(&p.a, 0));
    }
    g_assert_null(fix_begin(&p.a, 0));
    fix_settle(&p);
    g_assert_cmpuint(n_waiting, ==, RNIC_OPENS);
    g_assert_cmpuint(p.a.ch->n_opens, ==, RNIC_OPENS_WAIT - RNIC_OPENS);
    answer(&p.b, 0, false);
    fix_settle(&p);
    g_assert_cmpuint(n_waiting, ==, RNIC_OPENS);
    fix_close(&p);
}

/* OPENs that are answered, but whose answers find no credit, are still not answered. */
static void test_no_credit(void)
{
    struct liar l;

    liar_open(&l);
    l.p.a.ch->tx.n_left = 1;
    l.p.a.ch->tx.left[0] = 1;
    for (unsigned i = 0; i < 3; i++) {
        uint32_t at = RNIC_SEND_HEADER;

        rnic_put_send(l.bytes, &(struct rnic_send_head){0});
        for (unsigned k = 1; k <= 100; k++) {
            uint32_t index = GUINT32_TO_BE(i * 100 + k);

            rnic_put_frame(l.bytes + at, &(struct rnic_frame){0, 8, RNIC_OPEN});
            memcpy(l.bytes + at + 8, &index, 4);
            memset(l.bytes + at + 12, 0, 4); /* number 0 */
            at += 16;
        }
        liar_says(&l, at, 0);
        g_assert_cmpint(l.p.a.ch->phase, ==, i < 2 ? RNIC_UP : RNIC_BREAKING);
    }
    liar_close(&l);
}

/* ---- lies ---- */

#define DATA 0xffff
#define L    RNIC_OPEN_MAX

/* Frames, after A has sent OPEN for its index 1; the last one breaks it, or not. */
static const struct {
    const char *what;
    struct {
        unsigned kind, len;
        uint32_t word[2];
    } frame[4];
    bool good;
} lies[] = {
    {"opened", {{RNIC_OPENED, 8, {1, 65535}}, {DATA, 1, {1}}}, true},
    {"the longest OPENED", {{RNIC_OPENED, 8 + L, {1, 5}}}, true},
    {"the longest OPEN", {{RNIC_OPEN, 4 + L, {5}}, {DATA, 1, {2}}}, true},
    {"the largest index", {{RNIC_OPEN, 4, {65535}}}, true},
    {"refused, and its index used",
     {{RNIC_OPENED, 8, {1, 0}}, {RNIC_OPEN, 4, {5}}, {DATA, 1, {2}}},
     true},
    {"an unknown kind", {{RNIC_OPENED, 8, {1, 5}}, {RNIC_KINDS, 4, {1}}}, false},
    {"closed", {{RNIC_OPENED, 8, {1, 5}}, {RNIC_CLOSE, 4, {1}}}, true},
    {"opened twice", {{RNIC_OPENED, 8, {1, 5}}, {RNIC_OPENED, 8, {1, 6}}}, false},
    {"refused twice", {{RNIC_OPENED, 8, {1, 0}}, {RNIC_OPENED, 8, {1, 0}}}, false},
    {"opened when refused", {{RNIC_OPENED, 8, {1, 0}}, {RNIC_OPENED, 8, {1, 5}}}, false},
    {"opened, not begun", {{RNIC_OPENED, 8, {2, 5}}}, false},
    {"opened, not begun by it", {{RNIC_OPEN, 4, {5}}, {RNIC_OPENED, 8, {2, 6}}}, false},
    {"OPENED for 0", {{RNIC_OPENED, 8, {0, 5}}}, false},
    {"OPENED behind the table", {{RNIC_OPENED, 8, {64, 5}}}, false},
    {"OPENED behind it, for 1 by its size", {{RNIC_OPENED, 8, {65, 5}}}, false},
    {"OPENED far behind it", {{RNIC_OPENED, 8, {UINT32_MAX, 5}}}, false},
    {"opened with an index that is none", {{RNIC_OPENED, 8, {1, 65536}}}, false},
    {"opened with an index in use",
     {{RNIC_OPEN, 4, {5}}, {RNIC_OPENED, 8, {1, 5}}},
     false},
    {"a short OPENED", {{RNIC_OPENED, 7, {1, 5}}}, false},
    {"a long OPENED", {{RNIC_OPENED, 8 + L + 1, {1, 5}}}, false},
    {"OPEN with index 0", {{RNIC_OPEN, 4, {0}}}, false},
    {"OPEN with an index that is none", {{RNIC_OPEN, 4, {65536}}}, false},
    {"OPEN with the largest number", {{RNIC_OPEN, 4, {UINT32_MAX}}}, false},
    {"OPEN twice", {{RNIC_OPEN, 4, {5}}, {RNIC_OPEN, 4, {5}}}, false},
    {"OPEN with an index of OPENED",
     {{RNIC_OPENED, 8, {1, 5}}, {RNIC_OPEN, 4, {5}}},
     false},
    {"OPEN before our CLOSE",
     {{RNIC_OPENED, 8, {1, 5}}, {RNIC_CLOSE, 4, {1}}, {RNIC_OPEN, 4, {5}}},
     false},
    {"a short OPEN", {{RNIC_OPEN, 3, {5}}}, false},
    {"a long OPEN", {{RNIC_OPEN, 4 + L + 1, {5}}}, false},
    {"DATA before OPENED", {{DATA, 1, {1}}}, false},
    {"DATA when refused", {{RNIC_OPENED, 8, {1, 0}}, {DATA, 1, {1}}}, false},
    {"DATA behind CLOSE",
     {{RNIC_OPENED, 8, {1, 5}}, {RNIC_CLOSE, 4, {1}}, {DATA, 1, {1}}},
     false},
    {"CLOSE before OPENED", {{RNIC_CLOSE, 4, {1}}}, false},
    {"CLOSE when refused", {{RNIC_OPENED, 8, {1, 0}}, {RNIC_CLOSE, 4, {1}}}, false},
    {"CLOSE twice",
     {{RNIC_OPENED, 8, {1, 5}}, {RNIC_CLOSE, 4, {1}}, {RNIC_CLOSE, 4, {1}}},
     false},
    {"CLOSE for 0", {{RNIC_CLOSE, 4, {0}}}, false},
    {"CLOSE for what is free", {{RNIC_CLOSE, 4, {2}}}, false},
    {"CLOSE behind the table", {{RNIC_CLOSE, 4, {64}}}, false},
    {"a short CLOSE", {{RNIC_OPENED, 8, {1, 5}}, {RNIC_CLOSE, 3, {1}}}, false},
    {"a long CLOSE", {{RNIC_OPENED, 8, {1, 5}}, {RNIC_CLOSE, 5, {1}}}, false},
};

static bool any_open(struct rnic_channel *ch, uint32_t peer_index, const uint8_t *bytes,
                     size_t len)
{
    struct fixflow *x = g_new0(struct fixflow, 1);

    g_assert_cmpuint(len, <=, RNIC_OPEN_MAX);
    g_ptr_array_add(fix_of(ch)->more, x);
    g_assert_true(rnic_flow_accept(ch, &x->f, peer_index, bytes, len));
    return true;
}

static bool any_opened(struct rnic_flow *f, bool accepted, const uint8_t *bytes,
                       size_t len)
{
    g_assert_cmpuint(len, <=, RNIC_OPEN_MAX);
    (void)bytes;
    if (!accepted) {
        fix_flow_close((struct fixflow *)(void *)f);
    }
    return true;
}

static bool any_take(struct rnic_flow *f, const uint8_t *bytes, size_t len)
{
    (void)f, (void)bytes, (void)len;
    return true;
}

static const struct rnic_channel_ops any_ops = {
    any_take,   fix_writable, fix_overrun, any_open, any_opened,
    fix_closed, fix_grow,     fix_spare,   fix_err,  fix_broken};

/* One frame in a SEND. */
static void say(struct liar *l, unsigned kind, uint32_t first, uint32_t second,
                unsigned len)
{
    struct rnic_frame frame = {.len = (uint16_t)len, .kind = (uint8_t)kind};
    uint32_t word[2] = {GUINT32_TO_BE(first), GUINT32_TO_BE(second)};

    if (kind == DATA) {
        frame.kind = RNIC_DATA;
        frame.index = first;
    }
    rnic_put_send(l->bytes, &(struct rnic_send_head){0});
    rnic_put_frame(l->bytes + 8, &frame);
    memcpy(l->bytes + 16, word, sizeof(word));
    liar_says(l, 16 + len, 0);
}

/* A's first flow is index 1, and the peer has its OPEN. */
static void lies_open(struct liar *l)
{
    liar_open(l);
    for (unsigned i = 0; i < l->p.a.n_flows; i++) { /* as if there had been none */
        l->p.a.ch->place[i + 1].peer_closed = true;
        rnic_flow_close(&l->p.a.flow[i].f);
    }
    l->p.a.n_flows = 0;
    while (l->p.a.ch->first_free != 1) { /* the others' turn comes first */
        struct rnic_flow f;

        g_assert_true(channel_take_place(l->p.a.ch, &f, 0));
        rnic_flow_close(&f);
    }
    l->p.a.ch->ops = &any_ops;
    fix_begin(&l->p.a, 0);
    fix_turn(&l->p.a);
    softnic_settle();
}

static void test_lies(void)
{
    for (unsigned i = 0; i < G_N_ELEMENTS(lies); i++) {
        struct liar l;

        g_test_message("%s", lies[i].what);
        lies_open(&l);
        for (unsigned k = 0; lies[i].frame[k].kind; k++) {
            g_assert_cmpint(l.p.a.ch->phase, ==, RNIC_UP);
            say(&l, lies[i].frame[k].kind, lies[i].frame[k].word[0],
                lies[i].frame[k].word[1], lies[i].frame[k].len);
        }
        g_assert_cmpint(l.p.a.ch->phase, ==, lies[i].good ? RNIC_UP : RNIC_BREAKING);
        g_assert_cmpint(l.p.a.ch->rx.liar, ==, !lies[i].good);
        liar_close(&l);
    }
}

static bool no_open(struct rnic_channel *ch, uint32_t peer_index, const uint8_t *bytes,
                    size_t len)
{
    (void)ch, (void)peer_index, (void)bytes, (void)len;
    return false;
}

static bool no_opened(struct rnic_flow *f, bool accepted, const uint8_t *bytes,
                      size_t len)
{
    (void)f, (void)accepted, (void)bytes, (void)len;
    return false;
}

/* What the owner cannot make sense of; what was not sent yet; one OPEN too many. */
static void test_later_lies(void)
{
    struct rnic_channel_ops ops = any_ops;
    struct liar l;

    ops.open = no_open;
    ops.opened = no_opened;
    for (unsigned i = 0; i < 2; i++) {
        lies_open(&l);
        l.p.a.ch->ops = &ops;
        say(&l, i ? RNIC_OPEN : RNIC_OPENED, i ? 5 : 1, 5, 8);
        g_assert_cmpint(l.p.a.ch->phase, ==, RNIC_BREAKING);
        liar_close(&l);
    }

    lies_open(&l);
    fix_begin(&l.p.a, 0);
    g_assert_cmpuint(((struct fixflow *)l.p.a.more->pdata[1])->f.index, ==,
                     l.p.a.ch->opens.tqh_first->index);
    say(&l, RNIC_OPENED, l.p.a.ch->opens.tqh_first->index, 5, 8);
    g_assert_cmpint(l.p.a.ch->phase, ==, RNIC_BREAKING);
    liar_close(&l);

    lies_open(&l);
    ops = waiting_ops();
    l.p.a.ch->ops = &ops;
    for (unsigned i = 1; i <= RNIC_OPENS + 1; i++) {
        g_assert_cmpint(l.p.a.ch->phase, ==, RNIC_UP);
        say(&l, RNIC_OPEN, i, 0, 4);
        l.p.a.ch->rx.told += l.p.a.ch->rx.owed; /* as if it had been told */
        l.p.a.ch->rx.owed = 0;
    }
    g_assert_cmpint(l.p.a.ch->phase, ==, RNIC_BREAKING);
    g_assert_cmpuint(n_waiting, ==, RNIC_OPENS);
    liar_close(&l);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    log_set_level(g_test_verbose() ? LOG_LVL_DEBUG : LOG_LVL_ERROR);
    fix_nics();
    fix_pattern(0, 0);
    g_test_add_func("/channel-flows/open", test_open);
    g_test_add_func("/channel-flows/rounds", test_rounds);
    g_test_add_func("/channel-flows/refuse", test_refuse);
    g_test_add_func("/channel-flows/early-close", test_early_close);
    g_test_add_func("/channel-flows/behind", test_behind);
    g_test_add_func("/channel-flows/deaf", test_deaf);
    g_test_add_func("/channel-flows/close-within", test_close_within);
    g_test_add_func("/channel-flows/close-late", test_close_late);
    g_test_add_func("/channel-flows/full", test_full);
    g_test_add_func("/channel-flows/many-wait", test_many_wait);
    g_test_add_func("/channel-flows/no-credit", test_no_credit);
    g_test_add_func("/channel-flows/lies", test_lies);
    g_test_add_func("/channel-flows/later-lies", test_later_lies);
    return g_test_run();
}
