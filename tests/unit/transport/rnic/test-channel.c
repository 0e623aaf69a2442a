/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Unit tests: channels, on NICs in memory.  Order, credits, growth, flows that wait,
 * breaking with an exact count, silence, and completions as no NIC should have them.
 */
#include "channelfix.h"

/* ---- order and credits ---- */

static void many(const struct fixopts *o, unsigned flows, uint64_t bytes)
{
    struct fixpair p;

    fix_open(&p, o, flows);
    for (unsigned i = 0; i < flows; i++) {
        p.a.flow[i].to_send = bytes + i * 13 % 4000;
        p.b.flow[i].to_send = i % 3 ? bytes / 2 + i : 0;
    }
    fix_run(&p);
    g_assert_cmpint(rnrs(), ==, 0);
    fix_close(&p);
}

static void test_order(void)
{
    many(&(struct fixopts){.max_size = RNIC_SIZE_MIN}, 300, 20000);
    many(&(struct fixopts){.max_size = RNIC_SIZE_MAX}, 70, 300000);
    many(&(struct fixopts){{fix_iwarp[0], fix_iwarp[1]}, .max_size = RNIC_SIZE_MAX}, 30,
         300000);
    /* The ends need not be alike. */
    many(&(struct fixopts){.n = 3, .size = 2 * RNIC_SIZE_MIN, .max_size = 16384}, 5,
         100000);
}

static void test_two_credits(void)
{
    struct fixopts o = {.n = 2, .size = RNIC_SIZE_MAX};
    uint64_t large = (1ull << 30) / SLOWER;
    unsigned rounds = 0;
    struct fixpair p;

    fix_open(&p, &o, 3);
    p.a.flow[0].to_send = large;
    while (p.b.flow[0].taken < large) {
        if (p.b.flow[1].taken == p.a.flow[1].to_send &&
            p.a.flow[2].taken == p.b.flow[2].to_send) {
            p.a.flow[1].to_send += 8;
            p.b.flow[2].to_send += 8;
            rounds++;
        }
        fix_turn(&p.a);
        fix_turn(&p.b);
        g_assert_false(p.a.broken || p.b.broken);
    }
    fix_run(&p);
    /* None of them waited for more than two of the large one's pieces. */
    g_assert_cmpuint(rounds, >=, large / RNIC_SIZE_MAX / 4);
    g_assert_cmpint(rnrs(), ==, 0);
    fix_close(&p);
}

/* Both send as much as they can, with as few credits as there may be. */
static void test_both_flood(void)
{
    struct fixopts o = {.n = 2, .max_size = RNIC_SIZE_MIN};
    int64_t packets;
    struct fixpair p;

    for (unsigned round = 0; round < 20; round++) {
        o.n = 2 + round % 3;
        o.nic[0] = round % 2 ? fix_iwarp[0] : NULL;
        o.nic[1] = round % 2 ? fix_iwarp[1] : NULL;
        fix_open(&p, &o, 4);
        for (unsigned i = 0; i < 4; i++) {
            p.a.flow[i].to_send = i < 1 + round % 4 ? 200000 : 0;
            p.b.flow[i].to_send = i < 1 + round / 4 % 4 ? 200000 : 0;
        }
        fix_run(&p);
        fix_settle(&p);
        /* And then there is nothing more to say. */
        packets = softnic_count("packets", "roce0") + softnic_count("packets", "iwarp0");
        fix_settle(&p);
        g_assert_cmpint(packets, ==,
                        softnic_count("packets", "roce0") +
                            softnic_count("packets", "iwarp0"));
        fix_close(&p);
    }
    g_assert_cmpint(rnrs(), ==, 0);
}

/*
 * Ends of any shape, turns in any order, flows that wait, time that passes: all comes,
 * and then it is quiet.
 */
static void draw(GRand *r)
{
    bool iwarp = g_rand_boolean(r);
    struct fixopts o = {{iwarp ? fix_iwarp[0] : NULL, iwarp ? fix_iwarp[1] : NULL},
                        .n = (unsigned)g_rand_int_range(r, 2, 12),
                        .size = RNIC_SIZE_MIN << g_rand_int_range(r, 0, 3)};
    struct fixend *e[2];
    struct fixpair p;
    int64_t packets;

    o.max_size = o.size << g_rand_int_range(r, 0, 3);
    o.max_size = MIN(o.max_size, RNIC_SIZE_MAX);
    fix_open(&p, &o, 3);
    e[0] = &p.a;
    e[1] = &p.b;
    for (unsigned i = 0; i < 6; i++) {
        e[i % 2]->flow[i / 2].to_send = (uint64_t)g_rand_int_range(r, 0, 200000);
        e[i % 2]->no_growth = g_rand_int_range(r, 0, 4) == 0;
    }
    for (unsigned n = 0; !fix_done(&p); n++) {
        struct fixend *now = e[g_rand_int_range(r, 0, 2)];
        struct fixflow *x = &now->flow[g_rand_int_range(r, 0, 3)];

        g_assert_cmpuint(n, <, 1000000);
        x->stops = n < 200 && g_rand_int_range(r, 0, 4) == 0;
        rnic_flow_go_on(&x->f);
        if (g_rand_boolean(r)) {
            softnic_settle();
        }
        fix_turn(now);
        if (g_rand_int_range(r, 0, 8) == 0) { /* a PROBE may be due */
            fix_pass(&p, (uint64_t)g_rand_int_range(r, 0, 400) * MS);
            fix_settle(&p);
        }
        for (unsigned i = 0; n >= 200 && i < 6; i++) {
            e[i % 2]->flow[i / 2].stops = false;
            rnic_flow_go_on(&e[i % 2]->flow[i / 2].f);
        }
        g_assert_false(p.a.to_err || p.b.to_err || p.a.broken || p.b.broken);
    }
    for (unsigned i = 0; i < 4; i++) {
        fix_settle(&p);
        fix_pass(&p, 500 * MS);
    }
    packets = softnic_count("packets", "roce0") + softnic_count("packets", "iwarp0");
    fix_pass(&p, 5000 * MS);
    fix_settle(&p);
    g_assert_cmpint(packets, ==,
                    softnic_count("packets", "roce0") +
                        softnic_count("packets", "iwarp0"));
    g_assert_cmpuint(rnic_cq_due(p.a.cq), ==, UINT64_MAX);
    g_assert_cmpuint(rnic_cq_due(p.b.cq), ==, UINT64_MAX);
    fix_close(&p);
}

static void test_drawn(void)
{
    GRand *r = g_rand_new_with_seed(g_test_rand_int_range(0, G_MAXINT32));

    for (unsigned i = 0; i < (g_test_slow() ? 20000 : 160) / SLOWER; i++) {
        draw(r);
    }
    g_assert_cmpint(rnrs(), ==, 0);
    g_rand_free(r);
}

/* Answered where it is taken: nothing is posted before receives are, again. */
static bool take_and_echo(struct rnic_flow *f, const uint8_t *bytes, size_t len)
{
    struct fixflow *x = (struct fixflow *)(void *)f;
    const struct fixend *e = fix_of(f->channel);
    bool more = fix_take(f, bytes, len);

    if (x->number == e->echoes) {
        x->to_send += len;
        fix_push(x);
    }
    return more;
}

static void test_within(void)
{
    struct rnic_channel_ops ops = fix_ops;
    struct fixpair p;

    ops.take = take_and_echo;
    for (unsigned n = 2; n <= 16; n++) {
        const char *const *nic = n % 2 ? fix_iwarp : fix_roce;

        fix_open(&p, &(struct fixopts){{nic[0], nic[1]}, n, .max_size = RNIC_SIZE_MIN},
                 2);
        p.a.ch->ops = p.b.ch->ops = &ops;
        p.a.echoes = 1;
        p.a.flow[0].to_send = p.b.flow[1].to_send = 300000;
        p.a.flow[1].to_send = p.b.flow[0].to_send = 1;
        for (unsigned i = 0; i < 200 && !fix_done(&p); i++) {
            fix_settle(&p);
        }
        g_assert_true(fix_done(&p));
        fix_close(&p);
    }
    g_assert_cmpint(rnrs(), ==, 0);
}

static void test_growth(void)
{
    struct fixpair p;

    fix_open(&p, &(struct fixopts){0}, 4);
    g_assert_cmpuint(rnic_channel_room(p.a.ch), ==, RNIC_SIZE_MIN - 16);
    p.a.flow[0].to_send = p.b.flow[1].to_send = 16u << 20;
    fix_run(&p);
    g_assert_cmpuint(rnic_channel_room(p.a.ch), ==, RNIC_SIZE_MAX - 16);
    g_assert_cmpuint(rnic_channel_room(p.b.ch), ==, RNIC_SIZE_MAX - 16);
    g_assert_cmpuint(p.b.ch->rx.block->n, ==, RNIC_BLOCK_BUFFERS);
    p.a.flow[0].to_send += 4u << 20;
    p.b.flow[1].to_send += 4u << 20;
    fix_run(&p);
    fix_settle(&p);
    /* What was there before is given back; SENDs may have skipped a size. */
    g_assert_cmpuint(p.a.spared, >=, 4 + 1);
    g_assert_cmpuint(p.a.spared, ==, p.a.grow_asked);
    g_assert_cmpuint(p.b.spared, ==, p.b.grow_asked);
    g_assert_cmpint(rnrs(), ==, 0);
    fix_close(&p);
    g_assert_cmpuint(p.a.spared, ==, p.a.grow_asked + 2);
}

static void test_no_growth(void)
{
    struct fixpair p;

    fix_open(&p, &(struct fixopts){0}, 1);
    p.a.no_growth = p.b.no_growth = true;
    p.a.flow[0].to_send = 1u << 20;
    fix_run(&p);
    g_assert_cmpuint(p.b.grow_asked, ==, 1); /* not again so soon */
    fix_pass(&p, 1001 * MS);
    p.b.no_growth = p.a.no_growth = false;
    p.a.flow[0].to_send = 2u << 20;
    fix_run(&p);
    g_assert_cmpuint(p.b.grow_asked, >, 1);
    g_assert_cmpuint(rnic_channel_room(p.a.ch), >, RNIC_SIZE_MIN);
    fix_close(&p);
}

/* ---- flows that wait ---- */

static void test_waits(void)
{
    struct fixpair p;

    fix_open(&p, &(struct fixopts){0}, 3);
    p.b.flow[0].stops = true;
    p.a.flow[0].to_send = 300000;
    p.a.flow[1].to_send = 3000000;
    while (p.b.flow[1].taken < 3000000) {
        fix_turn(&p.a);
        fix_turn(&p.b);
    }
    g_assert_cmpuint(p.b.flow[0].taken, <, 70000);
    g_assert_cmpuint(p.b.ch->rx.kept + p.b.flow[0].taken, ==, p.a.flow[0].sent);
    g_assert_cmpuint(p.b.ch->rx.withheld, ==, 0);
    for (unsigned i = 0; i < 40; i++) { /* it stops at once, while more comes */
        rnic_flow_go_on(&p.b.flow[0].f);
        g_assert_true(p.b.flow[0].f.waits);
        p.a.flow[0].to_send += RNIC_QUANTUM;
        fix_settle(&p);
        g_assert_cmpuint(p.b.flow[0].f.kept->len, <, 1u << 20);
    }
    p.b.flow[0].stops = false;
    rnic_flow_go_on(&p.b.flow[0].f);
    g_assert_cmpuint(p.b.ch->rx.kept, ==, 0);
    fix_run(&p);
    fix_close(&p);
}

/* Too much comes for it. */
static void test_overrun(void)
{
    uint64_t most = RNIC_KEPT + (uint64_t)RNIC_POSTED * RNIC_SIZE_MAX;
    struct fixpair p;

    fix_open(&p, &(struct fixopts){0}, 3);
    p.a.flow[1].to_send = 1u << 20; /* larger receives */
    fix_run(&p);
    p.b.flow[0].stops = p.b.flow[2].stops = true;
    p.a.flow[0].to_send = p.b.flow[1].to_send = 2 * most;
    p.a.flow[2].to_send = 1000;
    for (unsigned i = 0; i < 2000; i++) {
        fix_turn(&p.a);
        fix_turn(&p.b);
    }
    fix_settle(&p);
    g_assert_cmpuint(p.b.ch->rx.withheld, !=, 0);
    g_assert_cmpuint(p.b.ch->rx.kept, <=, most);
    g_assert_cmpuint(p.a.flow[0].sent, <, most);
    /* In time, it goes on and nothing is lost. */
    p.b.flow[0].stops = false;
    fix_pass(&p, 50 * MS);
    rnic_flow_go_on(&p.b.flow[0].f);
    p.a.flow[0].to_send = p.a.flow[0].sent + (1u << 20);
    fix_run(&p);
    /* Or too late: it is lost, others are not. */
    p.b.flow[0].stops = true;
    p.a.flow[0].to_send += 2 * most;
    for (unsigned i = 0; i < 2000; i++) {
        fix_turn(&p.a);
        fix_turn(&p.b);
    }
    g_assert_cmpuint(p.b.ch->rx.withheld, !=, 0);
    g_assert_false(p.b.flow[0].lost);
    fix_pass(&p, 101 * MS);
    fix_turn(&p.b);
    g_assert_true(p.b.flow[0].lost);
    g_assert_false(p.b.flow[2].lost);
    g_assert_cmpuint(p.b.ch->rx.kept, <, 1000);
    p.b.flow[2].stops = false;
    rnic_flow_go_on(&p.b.flow[2].f);
    p.a.flow[1].to_send += 1u << 20;
    p.b.flow[0].taken = p.a.flow[0].to_send = p.a.flow[0].sent;
    fix_run(&p);
    g_assert_false(p.a.broken || p.b.broken);
    fix_close(&p);
}

/* Both keep as much as they may before they withhold credits. */
static void fill(struct fixpair *p)
{
    p->a.flow[0].stops = p->b.flow[0].stops = true;
    p->a.flow[0].to_send = p->b.flow[0].to_send = 1;
    fix_settle(p);
    p->a.flow[0].to_send = p->b.flow[0].to_send = RNIC_KEPT;
    while (p->a.ch->rx.kept + p->b.ch->rx.kept < 2 * (RNIC_KEPT - 1)) {
        fix_settle(p);
    }
}

/* They send more, on that flow and others; both begin to withhold, sooner or later. */
static void draw_withheld(GRand *r, bool *both)
{
    struct fixopts o = {.n = (unsigned)g_rand_int_range(r, 2, 6),
                        .max_size = RNIC_SIZE_MIN};
    struct fixend *e[2];
    struct fixpair p;

    fix_open(&p, &o, 3);
    e[0] = &p.a;
    e[1] = &p.b;
    fill(&p);
    for (unsigned i = 0; i < 60; i++) {
        struct fixend *now = e[g_rand_int_range(r, 0, 2)];

        now->flow[g_rand_int_range(r, 0, 3)].to_send +=
            (uint64_t)g_rand_int_range(r, 0, 9000);
        softnic_do("hold %d", g_rand_int_range(r, -1, 3));
        if (g_rand_boolean(r)) {
            softnic_settle();
        }
        fix_turn(now);
        *both |= p.a.ch->rx.withheld && p.b.ch->rx.withheld;
    }
    softnic_do("hold -1");
    for (unsigned i = 0; i < 20; i++) { /* they give up, or not */
        fix_settle(&p);
        fix_pass(&p, 20 * MS);
    }
    for (unsigned i = 0; i < 2; i++) {
        struct fixflow *x = &e[i]->flow[0], *peer = &e[!i]->flow[0];

        peer->to_send = peer->sent;
        x->stops = false;
        rnic_flow_go_on(&x->f);
        x->taken = x->lost ? peer->sent : x->taken;
    }
    fix_run(&p);
    fix_close(&p);
}

static void test_both_withhold(void)
{
    GRand *r = g_rand_new_with_seed(g_test_rand_int_range(0, G_MAXINT32));
    bool both = false;

    for (unsigned i = 0; i < (g_test_slow() ? 20000 : 100) / SLOWER; i++) {
        draw_withheld(r, &both);
    }
    g_assert_true(both);
    g_assert_cmpint(rnrs(), ==, 0);
    g_rand_free(r);
}

/* The header of A's N-th SEND to it. */
static struct rnic_send_head liar_heard(const struct liar *l, unsigned n)
{
    struct rnic_send_head h;

    g_assert_null(rnic_get_send(l->bytes + LIE_ROOM + (size_t)n * RNIC_SIZE_MIN,
                                RNIC_SIZE_MIN, &h));
    return h;
}

/* What it takes that both can go on: nothing is promised that is not told. */
static void test_withheld(void)
{
    struct rnic_channel *ch;
    struct rnic_send_head h;
    struct liar l;

    liar_open(&l);
    ch = l.p.a.ch;
    rnic_put_send(l.bytes, &(struct rnic_send_head){RNIC_SEND_CONTROL, 1, RNIC_SIZE_MIN});
    liar_says(&l, RNIC_SEND_HEADER, 0);
    g_assert_cmpuint(ch->tx.ring.next, ==, 0);
    ch->rx.withheld = l.p.a.now;
    l.p.a.flow[0].to_send = 100;
    fix_turn(&l.p.a);
    softnic_settle();
    h = liar_heard(&l, 0);
    g_assert_cmpuint(h.credits, ==, 0);
    g_assert_cmpuint(h.flags & RNIC_SEND_BACK, ==, 0);
    ch->rx.withheld = 0;
    l.p.a.flow[0].to_send = 200;
    fix_turn(&l.p.a);
    softnic_settle();
    h = liar_heard(&l, 1);
    g_assert_cmpuint(h.credits, ==, 1);
    g_assert_cmpuint(h.flags & RNIC_SEND_BACK, !=, 0);
    liar_close(&l);

    /* The last credit is not for what tells nothing. */
    liar_open(&l);
    ch = l.p.a.ch;
    rnic_put_send(l.bytes, &(struct rnic_send_head){0});
    liar_says(&l, RNIC_SEND_HEADER, 0);
    ch->tx.control_used = true;
    ch->tx.n_left = ch->tx.left[0] = 1;
    ch->rx.withheld = l.p.a.now;
    l.p.a.flow[0].to_send = 100;
    fix_turn(&l.p.a);
    g_assert_cmpuint(ch->tx.ring.next, ==, 0);
    ch->rx.withheld = 0;
    rnic_flow_want(&l.p.a.flow[0].f, false);
    fix_turn(&l.p.a);
    softnic_settle();
    g_assert_cmpuint(ch->tx.ring.next, ==, 1);
    g_assert_cmpuint(liar_heard(&l, 0).credits, ==, 1);
    liar_close(&l);

    /* What was filled before a look, which may begin that, goes before it. */
    liar_open(&l);
    ch = l.p.a.ch;
    g_assert_cmpint(rnic_flow_send(&l.p.a.flow[0].f, fix_pattern(0, 0), 10), ==, 10);
    g_assert_nonnull(ch->tx.open);
    rnic_cq_look(l.p.a.cq, l.p.a.now, FIX_LOOK);
    g_assert_null(ch->tx.open);
    g_assert_cmpuint(ch->tx.ring.next, ==, 1);
    liar_close(&l);
}

/* ---- breaking ---- */

static void run_break(struct fixpair *p)
{
    for (unsigned i = 0; i < 5 && !(p->a.broken && p->b.broken); i++) {
        fix_settle(p);
        fix_pass(p, i ? 400 * MS : 0);
    }
    g_assert_true(p->a.broken && p->b.broken);
}

/*
 * The N-th SEND to B is the last one that arrives.  Each of A's has 100 bytes, so what B
 * has taken tells how many it has executed.
 */
static void cut_at(const char *const nic[2], const char *name, unsigned n,
                   const char *where, unsigned executed)
{
    struct fixopts o = {{nic[0], nic[1]}, .max_size = RNIC_SIZE_MIN};
    struct fixpair p;

    fix_open(&p, &o, 2);
    softnic_do("cut %s %u %s", name, n, where);
    for (unsigned i = 0; i < 24; i++) {
        p.a.flow[0].to_send += 100;
        fix_turn(&p.a);
        softnic_settle();
        if (i % 3 == 2) {
            fix_turn(&p.b);
        }
    }
    rnic_channel_break(p.a.ch, "cut");
    rnic_channel_break(p.b.ch, "cut");
    run_break(&p);
    g_assert_true(p.b.all);
    g_assert_cmpuint(p.b.flow[0].taken, ==, MIN(executed, 24) * 100);
    g_assert_cmpuint(p.b.flow[0].taken, <=, p.a.flow[0].sent);
    fix_close(&p);
}

static void test_cut(void)
{
    for (unsigned n = 1; n <= 26; n++) {
        cut_at(fix_roce, "roce1", n, "before", n - 1);
        cut_at(fix_roce, "roce1", n, "after", n);
        cut_at(fix_iwarp, "iwarp1", n, "before", n - 1);
        cut_at(fix_iwarp, "iwarp1", n, "after", n);
    }
}

/* Broken in the middle of what it takes, by the one who takes it. */
static bool take_and_break(struct rnic_flow *f, const uint8_t *bytes, size_t len)
{
    rnic_channel_break(f->channel, "enough");
    return fix_take(f, bytes, len);
}

static void test_break_within(void)
{
    struct rnic_channel_ops ops = fix_ops;
    struct fixpair p;

    fix_open(&p, &(struct fixopts){0}, 3);
    ops.take = take_and_break;
    p.b.ch->ops = &ops;
    for (unsigned i = 0; i < 3; i++) {
        p.a.flow[i].to_send = 50;
        fix_turn(&p.a);
        p.a.flow[i].to_send = 100;
        fix_turn(&p.a);
    }
    softnic_settle();
    fix_turn(&p.b);
    rnic_channel_break(p.a.ch, "so does this one");
    run_break(&p);
    g_assert_true(p.b.all);
    for (unsigned i = 0; i < 3; i++) {
        g_assert_cmpuint(p.b.flow[i].taken, ==, 100);
    }
    fix_close(&p);
}

/* It is given up: nothing that comes later is anybody's. */
static void test_drop(void)
{
    struct fixpair p;

    for (unsigned late = 0; late < 2; late++) {
        fix_open(&p, &(struct fixopts){0}, 2);
        p.a.flow[0].to_send = 100;
        fix_settle(&p);
        p.a.flow[0].to_send = 200;
        fix_turn(&p.a);
        softnic_settle();
        if (late) { /* it breaks already */
            rnic_channel_break(p.b.ch, "the test wants it");
        }
        rnic_channel_drop(p.b.ch);
        g_assert_true(p.b.broken && !p.b.all);
        rnic_channel_drop(p.b.ch); /* broken() is not called again */
        fix_settle(&p);
        g_assert_cmpuint(p.b.flow[0].taken, ==, 100);
        fix_close(&p);
    }
}

/* What a flow has not taken by then is not all. */
static void test_break_waiting(void)
{
    struct fixpair p;

    for (unsigned late = 0; late < 2; late++) {
        fix_open(&p, &(struct fixopts){0}, 2);
        p.b.flow[0].stops = true;
        p.a.flow[0].to_send = 100;
        fix_settle(&p);
        p.a.flow[0].to_send = 200;
        fix_settle(&p);
        rnic_channel_break(p.b.ch, "while a flow waits");
        fix_settle(&p);
        g_assert_false(p.b.broken);
        p.b.flow[0].stops = false;
        if (late) {
            fix_pass(&p, 1001 * MS);
            fix_settle(&p);
        }
        rnic_flow_go_on(&p.b.flow[0].f);
        fix_settle(&p);
        g_assert_true(p.b.broken);
        g_assert_cmpint(p.b.all, ==, !late);
        g_assert_cmpuint(p.b.flow[0].taken, ==, late ? 100 : 200);
        fix_close(&p);
    }
}

/* What was kept for a flow is not given up while the channel breaks. */
static void test_break_withheld(void)
{
    struct fixpair p;

    for (unsigned late = 0; late < 2; late++) {
        fix_open(&p, &(struct fixopts){.max_size = RNIC_SIZE_MIN}, 2);
        p.b.flow[0].stops = true;
        p.a.flow[0].to_send = 2u << 20;
        while (!p.b.ch->rx.withheld) {
            fix_turn(&p.a);
            fix_turn(&p.b);
        }
        rnic_channel_break(p.b.ch, "while it withholds credits");
        for (unsigned i = 0; i < 5; i++) {
            fix_settle(&p);
            fix_pass(&p, 110 * MS);
        }
        g_assert_false(p.b.broken || p.b.flow[0].lost);
        p.b.flow[0].stops = late;
        rnic_flow_go_on(&p.b.flow[0].f);
        fix_settle(&p);
        g_assert_cmpint(p.b.broken, ==, !late);
        fix_pass(&p, 500 * MS);
        fix_settle(&p);
        g_assert_true(p.b.broken);
        g_assert_cmpint(p.b.all, ==, !late);
        fix_close(&p);
    }
}

/* All receives are used: only the state of the host QP shows that it was all. */
static void test_in_err(void)
{
    for (unsigned told = 0; told < 2; told++) {
        struct liar l;

        liar_open(&l);
        rnic_put_send(l.bytes, &(struct rnic_send_head){0});
        for (unsigned i = 0; i < RNIC_FIRST_BUFFERS; i++) {
            liar_sends(&l, RNIC_SEND_HEADER, 0);
        }
        rnic_channel_break(l.p.a.ch, "with no receive");
        l.p.a.to_err = false; /* that takes time */
        for (unsigned i = 0; i < 5; i++) {
            fix_turn(&l.p.a);
            g_assert_cmpuint(rnic_ring_used(&l.p.a.ch->rx.ring), ==, 0);
            g_assert_false(l.p.a.broken);
            fix_pass(&l.p, 150 * MS);
        }
        l.p.a.to_err = told;
        fix_turn(&l.p.a);
        fix_turn(&l.p.a);
        g_assert_cmpint(l.p.a.broken, ==, told);
        fix_pass(&l.p, 400 * MS);
        fix_turn(&l.p.a);
        g_assert_true(l.p.a.broken);
        g_assert_cmpint(l.p.a.all, ==, told);
        liar_close(&l);
    }
}

/* Memory that the NIC keeps stays. */
static void test_dereg(void)
{
    struct rnic_block *b;
    struct fixpair p;

    fix_open(&p, &(struct fixopts){0}, 0);
    b = rnic_block_new(p.a.pd, RNIC_RX, 2, RNIC_SIZE_MIN);
    g_assert_nonnull(b);
    softnic_do("fail dereg_mr 1 16");
    rnic_block_free(b);
    g_assert_true(channel_stuck == b);
    memset(b->memory, 1, (size_t)b->n * b->size);
    channel_stuck = NULL;
    rnic_block_free(b);
    g_assert_null(channel_stuck);
    fix_close(&p);
}

/* What the peer says about its receives. */
static void test_peer_receives(void)
{
    static const struct {
        unsigned n;
        uint32_t size;
    } bad[] = {{0, 4096}, {1, 4096}, {65, 4096},  {UINT32_MAX, 4096},
               {8, 0},    {8, 4095}, {8, 131072}, {8, UINT32_MAX}};
    struct fixpair p;

    fix_open(&p, &(struct fixopts){0}, 0);
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++) {
        struct rnic_channel_config config = {.cq = p.a.cq,
                                             .qp = p.a.id->qp,
                                             .ops = &fix_ops,
                                             .log = &p.a.log,
                                             .name = "of a liar",
                                             .tx = p.a.ch->tx.block,
                                             .rx = p.a.ch->rx.block,
                                             .peer_receives = bad[i].n,
                                             .peer_size = bad[i].size,
                                             .max_size = RNIC_SIZE_MAX};

        g_assert_null(rnic_channel_new(&config));
    }
    fix_close(&p);
}

/* One that breaks posts nothing: neither what was filled, nor larger receives. */
static void test_break_posts(void)
{
    static const uint8_t bytes[RNIC_OPEN_MAX];
    struct rnic_frame frame = {.kind = RNIC_OPEN};
    struct rnic_channel *ch;
    struct fixpair p;
    uint32_t posted;

    fix_open(&p, &(struct fixopts){0}, 1);
    ch = p.a.ch;
    g_assert_cmpint(rnic_flow_send(&p.a.flow[0].f, fix_pattern(0, 0), 4000), ==, 4000);
    rnic_channel_grow(ch, RNIC_RX, rnic_block_new(p.a.pd, RNIC_RX, 4, RNIC_SIZE_MAX));
    rnic_channel_break(ch, "with a SEND that is filled");
    posted = ch->rx.ring.next;
    g_assert_cmpint(channel_stage(ch, &frame, bytes, sizeof(bytes), true), ==, -1);
    g_assert_cmpuint(ch->tx.ring.next, ==, 0);
    g_assert_false(channel_widen(ch));
    g_assert_cmpuint(ch->rx.ring.next, ==, posted);
    fix_close(&p);
}

/* Nothing comes of a NIC that has gone. */
static void test_dead(void)
{
    struct fixpair p;

    fix_open(&p, &(struct fixopts){0}, 1);
    p.a.flow[0].to_send = 100;
    fix_settle(&p);
    softnic_do("fail poll_cq 0 5");
    fix_turn(&p.a);
    softnic_do("clear");
    g_assert_true(p.a.broken && !p.a.all);
    fix_close(&p);
}

static void test_post_fails(void)
{
    static const char *const entry[] = {"post_send", "post_recv"};
    struct fixpair p;

    for (unsigned i = 0; i < 2; i++) {
        for (unsigned n = 1; n < 4; n++) {
            fix_open(&p, &(struct fixopts){{fix_iwarp[0], fix_iwarp[1]}}, 1);
            softnic_do("fail %s %u 12", entry[i], n);
            p.a.flow[0].to_send = 100000;
            for (unsigned k = 0; k < 4; k++) {
                fix_settle(&p);
            }
            g_assert_true(p.a.broken || p.b.broken);
            fix_close(&p);
        }
    }
}

/* ---- silence ---- */

static void test_silence(void)
{
    struct fixpair p;
    int64_t packets;

    for (unsigned iwarp = 0; iwarp < 2; iwarp++) {
        const char *const *nic = iwarp ? fix_iwarp : fix_roce;

        fix_open(&p, &(struct fixopts){{nic[0], nic[1]}}, 1);
        fix_settle(&p);
        g_assert_cmpuint(rnic_cq_due(p.a.cq), ==, UINT64_MAX);
        p.a.flow[0].to_send = 100;
        fix_settle(&p);
        g_assert_cmpuint(p.b.flow[0].taken, ==, 100);
        g_assert_cmpuint(rnic_cq_due(p.a.cq), ==, p.a.now + 500 * MS);
        /* B has nothing to say until it is asked. */
        fix_pass(&p, 499 * MS);
        packets = softnic_count("packets", iwarp ? "iwarp0" : "roce0");
        fix_settle(&p);
        g_assert_cmpint(softnic_count("packets", iwarp ? "iwarp0" : "roce0"), ==,
                        packets);
        fix_pass(&p, MS);
        fix_settle(&p);
        g_assert_cmpint(softnic_count("packets", iwarp ? "iwarp0" : "roce0"), ==,
                        packets + 1);
        g_assert_cmpuint(rnic_channel_heard(p.a.ch), ==, p.a.now);
        /* That is all, as long as nothing is sent. */
        for (unsigned i = 0; i < 20; i++) {
            fix_pass(&p, 300 * MS);
            fix_settle(&p);
        }
        g_assert_cmpint(softnic_count("packets", iwarp ? "iwarp0" : "roce0"), ==,
                        packets + 1);
        g_assert_cmpuint(rnic_cq_due(p.a.cq), ==, UINT64_MAX);
        /* What was sent before the PROBE is answered by that, not what follows it. */
        softnic_do("hold 0");
        p.a.flow[0].to_send = 200;
        fix_turn(&p.a);
        fix_pass(&p, 500 * MS);
        fix_turn(&p.a);
        g_assert_false(p.a.ch->phase != RNIC_UP);
        fix_pass(&p, 499 * MS);
        fix_turn(&p.a);
        g_assert_false(p.a.ch->phase != RNIC_UP);
        fix_pass(&p, MS);
        fix_turn(&p.a);
        g_assert_cmpint(p.a.ch->phase, ==, RNIC_BREAKING);
        softnic_do("hold -1");
        fix_settle(&p);
        g_assert_cmpuint(p.b.flow[0].taken, <=, 200);
        fix_close(&p);
    }
}

/* Nothing is on its way, but something waits for a credit, which never comes. */
static void test_no_credit(void)
{
    struct liar l;

    for (unsigned opens = 0; opens < 2; opens++) {
        liar_open(&l);
        l.p.a.ch->tx.n_left = l.p.a.ch->tx.left[0] = 1;
        if (opens) {
            fix_begin(&l.p.a, 0);
        } else {
            l.p.a.flow[0].to_send = 100;
        }
        fix_turn(&l.p.a);
        g_assert_cmpuint(rnic_cq_due(l.p.a.cq), ==, l.p.a.now + 500 * MS);
        for (unsigned i = 0; i < 2; i++) {
            g_assert_cmpint(l.p.a.ch->phase, ==, RNIC_UP);
            fix_pass(&l.p, 500 * MS);
            fix_turn(&l.p.a);
        }
        g_assert_cmpint(l.p.a.ch->phase, ==, RNIC_BREAKING);
        liar_close(&l);
    }
}

/* Both are held up, with all credits used; then all goes on. */
static void test_held_up(void)
{
    struct fixpair p;

    for (unsigned n = 2; n < 10; n++) {
        fix_open(&p, &(struct fixopts){.n = n, .max_size = RNIC_SIZE_MIN}, 2);
        softnic_do("hold 0");
        p.a.flow[0].to_send = p.b.flow[1].to_send = 200000;
        fix_turn(&p.a);
        fix_turn(&p.b);
        fix_pass(&p, 600 * MS);
        fix_turn(&p.a);
        fix_turn(&p.b);
        softnic_do("hold -1");
        fix_run(&p);
        fix_close(&p);
    }
    g_assert_cmpint(rnrs(), ==, 0);
}

/* ---- completions ---- */

/* Each one of the first is lost, of either side's. */
static void test_lost(void)
{
    for (unsigned n = 1; n <= 40; n++) {
        struct fixpair p;
        uint64_t taken;

        fix_open(&p, &(struct fixopts){.max_size = RNIC_SIZE_MIN}, 1);
        softnic_do("lose roce1 %u", n);
        p.a.flow[0].to_send = p.b.flow[0].to_send = 150000;
        for (unsigned i = 0; i < 500 && p.b.ch->phase == RNIC_UP; i++) {
            fix_turn(&p.a);
            fix_turn(&p.b);
        }
        taken = p.b.flow[0].taken;
        rnic_channel_break(p.a.ch, "lost");
        rnic_channel_break(p.b.ch, "lost");
        run_break(&p);
        /* Nothing behind the gap was executed; a SEND's does no harm. */
        g_assert_true(p.b.ch->rx.lost ? !p.b.all && p.b.flow[0].taken == taken : p.b.all);
        fix_close(&p);
    }
}

/* A receive is said to be unused, but the NIC goes on. */
static void test_flush(void)
{
    struct ibv_wc wc = {.status = IBV_WC_WR_FLUSH_ERR};
    struct fixpair p;

    fix_open(&p, &(struct fixopts){0}, 1);
    p.a.flow[0].to_send = 100;
    fix_settle(&p);
    channel_arrived(p.b.ch, p.b.ch->rx.ring.first, &wc);
    p.b.to_err = false; /* that takes time */
    for (unsigned i = 0; i < 2; i++) {
        p.a.flow[0].to_send += 100;
        fix_turn(&p.a);
    }
    fix_settle(&p);
    fix_pass(&p, 101 * MS);
    fix_settle(&p);
    g_assert_true(p.b.broken && !p.b.all);
    g_assert_cmpuint(p.b.flow[0].taken, ==, 100);
    fix_close(&p);
}

static int (*real_poll)(struct ibv_cq *cq, int num, struct ibv_wc *wc);
static unsigned polls;

/* Some come twice, and some from nowhere. */
static int poll_much(struct ibv_cq *cq, int num, struct ibv_wc *wc)
{
    static struct ibv_cq *first;
    static struct ibv_wc was[2];
    struct ibv_wc *last;
    int n = 0;

    first = first ? first : cq;
    last = &was[cq == first];
    if (last->wr_id) {
        wc[n++] = *last;
        wc[n] = *last;
        wc[n].wr_id ^= 1ull << polls % 63;
        wc[n++].wr_id += polls % 63 < 32 ? 1u << 20 : 0;
    }
    n += real_poll(cq, num - n, wc + n);
    polls++;
    if (n) {
        *last = wc[n - 1];
        last->byte_len = 0;
    }
    return n;
}

static void test_twice(void)
{
    const struct rnic_verbs *old = rnic_verbs;
    struct rnic_verbs all = *rnic_verbs;
    struct fixpair p;

    real_poll = all.poll_cq;
    all.poll_cq = poll_much;
    fix_open(&p, &(struct fixopts){0}, 8);
    rnic_verbs = &all;
    /* Each bit, on both sides; how much one look finds is the threads'. */
    while (polls < 63 * 4) {
        for (unsigned i = 0; i < 8; i++) {
            p.a.flow[i].to_send += 100000;
            p.b.flow[i].to_send += 100000;
        }
        fix_run(&p);
    }
    rnic_verbs = old;
    g_assert_cmpuint(p.a.cq->strays + p.b.cq->strays, >, 100);
    fix_close(&p);
}

/* A channel in the place of one that has gone. */
static void test_generation(void)
{
    struct rnic_cq cq;
    struct ibv_cq ibv;
    struct rnic_channel ch = {.cq = &cq}, *others;
    uint64_t id;

    g_assert_true(rnic_cq_init(&cq, &ibv, NULL));
    others = g_new0(struct rnic_channel, RNIC_CQ_CHANNELS);
    g_assert_true(rnic_cq_enter(&cq, &ch));
    id = rnic_cq_wr_id(&ch, false, 7);
    rnic_cq_leave(&cq, &ch);
    for (unsigned i = 0; i < RNIC_CQ_CHANNELS; i++) {
        others[i].cq = &cq;
        g_assert_true(rnic_cq_enter(&cq, &others[i]));
        g_assert_cmpuint(rnic_cq_wr_id(&others[i], false, 7), !=, id);
    }
    g_assert_false(rnic_cq_enter(&cq, &ch));
    rnic_cq_fini(&cq);
    g_free(others);
}

/* ---- lies ---- */

/* What it says: one line each, as bytes. */
static const struct {
    const char *what;
    uint8_t version, flags;
    uint16_t credits;
    uint32_t size;
    uint32_t index;
    uint16_t len;
    uint8_t kind, zero;
    uint32_t send; /* bytes of the SEND; 0: as they should be */
    bool good;
} lies[] = {
    {"nothing wrong", 1, 0, 0, 0, 1, 10, 0, 0, 0, true},
    {"nothing wrong, with credits", 1, 0, 8, 4096, 2, 10, 0, 0, 0, true},
    {"the most credits", 1, 0, RNIC_POSTED - 8, 65536, 1, 1, 0, 0, 0, true},
    {"version 0", 0, 0, 0, 0, 1, 10, 0, 0, 0, false},
    {"version 2", 2, 0, 0, 0, 1, 10, 0, 0, 0, false},
    {"an unknown flag", 1, 32, 0, 0, 1, 10, 0, 0, 0, false},
    {"an answer to no control", 1, RNIC_SEND_BACK, 0, 0, 1, 10, 0, 0, 0, false},
    {"more credits than there can be", 1, 0, RNIC_POSTED - 7, 4096, 1, 10, 0, 0, 0,
     false},
    {"no credits of a size", 1, 0, 0, 4096, 1, 10, 0, 0, 0, false},
    {"credits of no size", 1, 0, 1, 0, 1, 10, 0, 0, 0, false},
    {"credits of a small size", 1, 0, 1, 2048, 1, 10, 0, 0, 0, false},
    {"credits of an odd size", 1, 0, 1, 5000, 1, 10, 0, 0, 0, false},
    {"credits of a large size", 1, 0, 1, 131072, 1, 10, 0, 0, 0, false},
    {"an index that is free", 1, 0, 0, 0, 3, 10, 0, 0, 0, false},
    {"an index behind the table", 1, 0, 0, 0, 64, 10, 0, 0, 0, false},
    {"an index far behind it", 1, 0, 0, 0, 65, 10, 0, 0, 0, false},
    {"the largest index", 1, 0, 0, 0, UINT32_MAX, 10, 0, 0, 0, false},
    {"data of the channel", 1, 0, 0, 0, 0, 10, 0, 0, 0, false},
    {"a kind for a flow", 1, 0, 0, 0, 1, 10, RNIC_OPEN, 0, 0, false},
    {"an unknown kind", 1, 0, 0, 0, 0, 10, RNIC_KINDS, 0, 0, false},
    {"a reserved byte", 1, 0, 0, 0, 1, 10, 0, 1, 0, false},
    {"an empty frame", 1, 0, 0, 0, 1, 0, 0, 0, 0, false},
    {"a frame of one byte too much", 1, 0, 0, 0, 1, 11, 0, 0, 26, false},
    {"the longest frame", 1, 0, 0, 0, 1, 65535, 0, 0, 26, false},
    {"half a frame's header", 1, 0, 0, 0, 1, 10, 0, 0, 12, false},
    {"half a header", 1, 0, 0, 0, 1, 10, 0, 0, 7, false},
    {"nothing", 1, 0, 0, 0, 1, 10, 0, 0, 1, false},
};

static void test_lies(void)
{
    for (unsigned i = 0; i < G_N_ELEMENTS(lies); i++) {
        struct liar l;
        uint32_t len = lies[i].send ? lies[i].send : 16u + lies[i].len;

        liar_open(&l);
        put_send(l.bytes, lies[i].flags, lies[i].credits, lies[i].size);
        l.bytes[0] = lies[i].version;
        rnic_put_frame(l.bytes + 8,
                       &(struct rnic_frame){lies[i].index, lies[i].len, lies[i].kind});
        l.bytes[15] = lies[i].zero;
        memcpy(l.bytes + 16, fix_pattern(lies[i].index == 2, 0), 64);
        g_test_message("%s", lies[i].what);
        /* What lies in the receive before is no part of what comes. */
        l.p.a.ch->rx.block->buffer[0].data[13] = 1;
        liar_sends(&l, len, 0);
        if (!lies[i].good) { /* and nothing more is believed */
            put_send(l.bytes, 0, 0, 0);
            rnic_put_frame(l.bytes + 8, &(struct rnic_frame){1, 10, 0});
            liar_sends(&l, 26, 0);
        }
        fix_turn(&l.p.a);
        g_assert_cmpint(l.p.a.ch->phase, ==, lies[i].good ? RNIC_UP : RNIC_BREAKING);
        g_assert_cmpuint(l.p.a.flow[0].taken + l.p.a.flow[1].taken, ==,
                         lies[i].good ? lies[i].len : 0);
        if (!lies[i].good) {
            fix_settle(&l.p);
            g_assert_true(l.p.a.broken && !l.p.a.all);
        }
        liar_close(&l);
    }
}

/* What is right by itself, but not behind what was before. */
static void test_later_lies(void)
{
    struct liar l;

    /* Receives that were not told of. */
    liar_open(&l);
    for (unsigned i = 0; i < 8; i++) {
        put_send(l.bytes, 0, 0, 0);
        l.p.a.cq->now = l.p.a.now;
        liar_says(&l, 8, 0);
        g_assert_cmpint(l.p.a.ch->phase, ==, RNIC_UP);
        l.p.a.ch->rx.told = 7 - i; /* nobody told it of more */
    }
    liar_says(&l, 8, 0);
    g_assert_cmpint(l.p.a.ch->phase, ==, RNIC_BREAKING);
    liar_close(&l);

    /* A second one for control, without an answer to the first. */
    liar_open(&l);
    put_send(l.bytes, RNIC_SEND_CONTROL, 1, 4096);
    liar_says(&l, 8, 0);
    g_assert_cmpint(l.p.a.ch->phase, ==, RNIC_UP);
    liar_says(&l, 8, 0);
    g_assert_cmpint(l.p.a.ch->phase, ==, RNIC_BREAKING);
    liar_close(&l);

    /* Receives that become smaller. */
    liar_open(&l);
    put_send(l.bytes, 0, 1, 8192);
    liar_says(&l, 8, 0);
    g_assert_cmpint(l.p.a.ch->phase, ==, RNIC_UP);
    put_send(l.bytes, 0, 1, 4096);
    liar_says(&l, 8, 0);
    g_assert_cmpint(l.p.a.ch->phase, ==, RNIC_BREAKING);
    liar_close(&l);
}

/* Its receive is used, but what is in it did not come. */
static void test_no_send(void)
{
    struct ibv_wc wc[] = {
        {.status = IBV_WC_SUCCESS, .opcode = IBV_WC_RECV_RDMA_WITH_IMM, .byte_len = 26},
        {.status = IBV_WC_SUCCESS, .opcode = IBV_WC_RECV, .byte_len = RNIC_SIZE_MIN + 1},
        {.opcode = IBV_WC_RECV, .byte_len = 26, .wc_flags = IBV_WC_WITH_IMM},
        {.opcode = IBV_WC_RECV, .byte_len = 26, .wc_flags = IBV_WC_WITH_INV},
    };

    for (unsigned i = 0; i < G_N_ELEMENTS(wc); i++) {
        struct fixpair p;
        uint8_t *bytes;

        fix_open(&p, &(struct fixopts){0}, 1);
        bytes = p.a.ch->rx.block->buffer[0].data;
        put_send(bytes, 0, 0, 0);
        rnic_put_frame(bytes + 8, &(struct rnic_frame){1, 10, RNIC_DATA});
        memcpy(bytes + 16, fix_pattern(0, 0), 10);
        channel_arrived(p.a.ch, 0, &wc[i]);
        g_assert_true(p.a.ch->rx.liar);
        g_assert_cmpuint(p.a.flow[0].taken, ==, 0);
        fix_close(&p);
    }
}

/* ---- two workers ---- */

struct two {
    struct fixpair p;
    uint64_t rounds;
};

static _Atomic unsigned flooded; /* ends that have sent and taken all */

static void *flood(void *arg)
{
    struct fixend *e = arg;
    bool told = false;

    while (atomic_load(&flooded) < 2) {
        bool all = true;

        fix_turn(e);
        for (unsigned i = 0; i < e->n_flows; i++) {
            all &= e->flow[i].taken == 1u << 20 && e->flow[i].sent == 1u << 20;
        }
        if (all && !told) {
            told = true;
            atomic_fetch_add(&flooded, 1);
        }
    }
    return NULL;
}

static void test_two_workers(void)
{
    struct fixpair p;
    GThread *t[2];

    fix_open(&p, &(struct fixopts){0}, 8);
    for (unsigned i = 0; i < 8; i++) {
        p.a.flow[i].to_send = p.b.flow[i].to_send = 1u << 20;
    }
    t[0] = g_thread_new("a", flood, &p.a);
    t[1] = g_thread_new("b", flood, &p.b);
    g_thread_join(t[0]);
    g_thread_join(t[1]);
    g_assert_cmpint(rnrs(), ==, 0);
    fix_close(&p);
}

/* Until that much has come: parked whenever there is nothing to do. */
static void await(struct fixend *e, uint64_t bytes)
{
    struct pollfd fd = {.fd = e->events->fd, .events = POLLIN};

    for (;;) {
        fix_turn(e);
        if (e->flow[0].taken >= bytes) {
            return;
        }
        if (rnic_cq_arm(e->cq, e->now) && rnic_cq_due(e->cq) > e->now) {
            g_assert_cmpint(poll(&fd, 1, 60000), ==, 1); /* else it was not woken */
            rnic_cq_woken(e->cq);
        }
    }
}

static void *answer(void *arg)
{
    struct two *w = arg;

    for (uint64_t i = 1; i <= w->rounds; i++) {
        await(&w->p.b, i);
        w->p.b.flow[0].to_send++;
        fix_turn(&w->p.b);
    }
    return NULL;
}

static void test_arm(void)
{
    struct two w = {.rounds = (g_test_slow() ? 1000000 : 20000) / SLOWER};
    GThread *t;

    fix_open(&w.p, &(struct fixopts){0}, 1);
    t = g_thread_new("b", answer, &w);
    for (uint64_t i = 1; i <= w.rounds; i++) {
        w.p.a.flow[0].to_send++;
        fix_turn(&w.p.a);
        await(&w.p.a, i);
    }
    g_thread_join(t);
    fix_close(&w.p);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    log_set_level(g_test_verbose() ? LOG_LVL_DEBUG : LOG_LVL_ERROR);
    fix_nics();
    fix_pattern(0, 0);
    g_test_add_func("/channel/order", test_order);
    g_test_add_func("/channel/two-credits", test_two_credits);
    g_test_add_func("/channel/both-flood", test_both_flood);
    g_test_add_func("/channel/drawn", test_drawn);
    g_test_add_func("/channel/within", test_within);
    g_test_add_func("/channel/growth", test_growth);
    g_test_add_func("/channel/no-growth", test_no_growth);
    g_test_add_func("/channel/waits", test_waits);
    g_test_add_func("/channel/overrun", test_overrun);
    g_test_add_func("/channel/withheld", test_withheld);
    g_test_add_func("/channel/both-withhold", test_both_withhold);
    g_test_add_func("/channel/cut", test_cut);
    g_test_add_func("/channel/break-within", test_break_within);
    g_test_add_func("/channel/drop", test_drop);
    g_test_add_func("/channel/break-waiting", test_break_waiting);
    g_test_add_func("/channel/break-withheld", test_break_withheld);
    g_test_add_func("/channel/in-err", test_in_err);
    g_test_add_func("/channel/dereg", test_dereg);
    g_test_add_func("/channel/peer-receives", test_peer_receives);
    g_test_add_func("/channel/break-posts", test_break_posts);
    g_test_add_func("/channel/dead", test_dead);
    g_test_add_func("/channel/post-fails", test_post_fails);
    g_test_add_func("/channel/silence", test_silence);
    g_test_add_func("/channel/no-credit", test_no_credit);
    g_test_add_func("/channel/held-up", test_held_up);
    g_test_add_func("/channel/lost", test_lost);
    g_test_add_func("/channel/flush", test_flush);
    g_test_add_func("/channel/twice", test_twice);
    g_test_add_func("/channel/generation", test_generation);
    g_test_add_func("/channel/lies", test_lies);
    g_test_add_func("/channel/later-lies", test_later_lies);
    g_test_add_func("/channel/no-send", test_no_send);
    g_test_add_func("/channel/two-workers", test_two_workers);
    g_test_add_func("/channel/arm", test_arm);
    return g_test_run();
}
