/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Unit tests: completion queues, on NICs in memory: several channels in one, how much a
 * look takes, what has its time while there is always more, and looks that come late.
 */
#include "channelfix.h"

/* ---- several channels ---- */

#define N FIX_CHANNELS

static void open_all(struct fixpair *p, unsigned flows)
{
    for (unsigned i = 0; i < N; i++) {
        fix_open(&p[i],
                 &(struct fixopts){.n = 2 + 3 * i,
                                   .max_size = RNIC_SIZE_MIN << i,
                                   .with = i ? &p[0] : NULL},
                 flows);
    }
}

static void turn_all(struct fixpair *p)
{
    for (unsigned i = 0; i < N; i++) {
        fix_turn(&p[i].a);
        fix_turn(&p[i].b);
    }
}

/* All of those that are not broken. */
static void run_all(struct fixpair *p)
{
    bool done = false;

    for (unsigned n = 0; !done; n++) {
        g_assert_cmpuint(n, <, 200000);
        turn_all(p);
        done = true;
        for (unsigned i = 0; i < N; i++) {
            done &= p[i].a.ch->phase >= RNIC_BREAKING || fix_done(&p[i]);
        }
    }
}

static void send_all(struct fixpair *p, uint64_t bytes)
{
    for (unsigned i = 0; i < 2 * N; i++) {
        p[i / 2].a.flow[i % 2].to_send += bytes + i;
        p[i / 2].b.flow[i % 2].to_send += bytes;
    }
}

/* One breaks, and one is in its place, while the others go on. */
static void test_several(void)
{
    struct fixpair p[N];

    open_all(p, 2);
    send_all(p, 1000000);
    run_all(p);
    for (unsigned i = 1; i < N; i++) {
        struct fixpair *x = &p[i];
        uint64_t sent;

        send_all(p, 300000);
        turn_all(p);
        rnic_channel_break(x->a.ch, "one of several");
        rnic_channel_break(x->b.ch, "one of several");
        for (unsigned k = 0; k < 5; k++) {
            softnic_settle();
            turn_all(p);
            for (unsigned m = 0; m < N; m++) {
                fix_pass(&p[m], 40 * MS);
            }
        }
        g_assert_true(x->a.broken && x->b.broken);
        g_assert_true(x->a.all && x->b.all);
        sent = x->a.flow[0].sent;
        g_assert_cmpuint(x->b.flow[0].taken, <=, sent);
        run_all(p);
        fix_close(x);
        fix_open(x, &(struct fixopts){.with = &p[0]}, 2);
        x->a.flow[0].to_send = 500000;
        run_all(p);
    }
    g_assert_cmpint(rnrs(), ==, 0);
    for (unsigned i = N; i-- > 0;) {
        fix_close(&p[i]);
    }
}

/* All are told when the queue dies. */
static void test_dead(void)
{
    struct rnic_channel another = {0};
    struct fixpair p[N];

    open_all(p, 2);
    send_all(p, 1000);
    softnic_do("fail poll_cq 0 5");
    fix_turn(&p[0].a);
    softnic_do("clear");
    for (unsigned i = 0; i < N; i++) {
        g_assert_true(p[i].a.broken && !p[i].a.all);
    }
    g_assert_false(rnic_cq_enter(p[0].a.cq, &another));
    for (unsigned i = N; i-- > 0;) {
        fix_close(&p[i]);
    }
}

/* ---- how much a look takes ---- */

/* The next @len bytes of A's first flow. */
static void liar_data(struct liar *l, uint64_t *at, uint16_t len)
{
    rnic_put_send(l->bytes, &(struct rnic_send_head){0});
    rnic_put_frame(l->bytes + 8, &(struct rnic_frame){1, len, RNIC_DATA});
    memcpy(l->bytes + 16, fix_pattern(0, *at), len);
    *at += len;
    liar_sends(l, 16u + len, 0);
}

static void test_look(void)
{
    const uint64_t *taken;
    struct liar l;
    uint64_t at = 0;
    int64_t polls;

    liar_open(&l);
    taken = &l.p.a.flow[0].taken;
    g_assert_false(rnic_cq_peek(l.p.a.cq));
    for (unsigned i = 0; i < 7; i++) {
        liar_data(&l, &at, 4000);
    }
    g_assert_true(rnic_cq_peek(l.p.a.cq));
    polls = softnic_count("calls", "poll_cq");
    g_assert_true(rnic_cq_peek(l.p.a.cq));
    g_assert_cmpuint(*taken, ==, 0);
    /* One at least. */
    g_assert_true(rnic_cq_look(l.p.a.cq, l.p.a.now, 1));
    g_assert_cmpuint(*taken, ==, 4000);
    /* By bytes: one, and the one that goes beyond. */
    g_assert_true(rnic_cq_look(l.p.a.cq, l.p.a.now, 4016 + RNIC_CQ_COST + 1));
    g_assert_cmpuint(*taken, ==, 12000);
    g_assert_cmpuint(rnic_cq_due(l.p.a.cq), ==, 0);
    g_assert_cmpint(softnic_count("calls", "poll_cq"), ==, polls);
    g_assert_false(rnic_cq_arm(l.p.a.cq, l.p.a.now));
    /* What came behind those that were polled. */
    liar_data(&l, &at, 100);
    g_assert_false(rnic_cq_look(l.p.a.cq, l.p.a.now, 1u << 20));
    g_assert_cmpuint(*taken, ==, at);
    g_assert_false(rnic_cq_peek(l.p.a.cq));
    rnic_cq_flush(l.p.a.cq);
    liar_close(&l);
}

/* A channel goes while what came for it waits to be taken. */
static void test_stash(void)
{
    struct fixpair p[2];
    uint64_t strays;

    fix_open(&p[0], &(struct fixopts){0}, 1);
    fix_open(&p[1], &(struct fixopts){.with = &p[0]}, 1);
    p[1].b.flow[0].to_send = 100;
    fix_turn(&p[1].b);
    softnic_settle();
    g_assert_true(rnic_cq_peek(p[0].a.cq));
    strays = p[0].a.cq->strays;
    rnic_flow_close(&p[1].a.flow[0].f);
    g_clear_pointer(&p[1].a.flow, g_free);
    fix_end_close(&p[1].a);
    fix_turn(&p[0].a);
    g_assert_cmpuint(p[0].a.cq->strays, ==, strays + 1);
    fix_break(&p[1].b);
    fix_end_close(&p[1].b);
    fix_drop_id(&p[1].a);
    fix_drop_id(&p[1].b);
    p[0].a.flow[0].to_send = p[0].b.flow[0].to_send = 100000;
    fix_run(&p[0]);
    fix_close(&p[0]);
}

/* ---- time ---- */

/* A flood on one channel, of which each look leaves something. */
static void flood_turn(struct fixpair *p, struct fixend *silent)
{
    p->b.flow[0].to_send = p->b.flow[0].sent + (1u << 20);
    fix_turn(&p->b);
    softnic_settle();
    g_assert_true(rnic_cq_look(p->a.cq, p->a.now, 1));
    fix_control_thread(&p->a);
    fix_control_thread(silent);
    rnic_cq_flush(p->a.cq);
}

static void pass(struct fixpair *p, struct liar *l, uint64_t ns)
{
    p->a.now += ns;
    p->b.now += ns;
    l->p.a.now += ns;
}

/* The other one's peer is silent, which is found in spite of that: 100 ms later. */
static void test_flood(void)
{
    struct fixpair p;
    struct liar l;
    uint64_t begin;

    for (unsigned answers = 0; answers < 2; answers++) {
        fix_open(&p, &(struct fixopts){.n = 16, .max_size = RNIC_SIZE_MIN}, 1);
        liar_open_with(&l, &p);
        begin = p.a.now;
        fix_turn(&p.a);
        l.p.a.flow[0].to_send = 100;
        fix_turn(&l.p.a);
        g_assert_cmpuint(l.p.a.ch->since, ==, begin);
        for (unsigned ms = 10; ms < 1200; ms += 10) {
            pass(&p, &l, 10 * MS);
            if (answers && ms == 1190) { /* behind all that is there */
                rnic_put_send(l.bytes, &(struct rnic_send_head){RNIC_SEND_ANSWER});
                liar_sends(&l, RNIC_SEND_HEADER, 0);
            }
            flood_turn(&p, &l.p.a);
            g_assert_cmpint(l.p.a.ch->phase, ==, RNIC_UP);
            g_assert_cmpint(l.p.a.ch->probed != 0, ==, ms >= 600);
        }
        if (answers) {
            fix_turn(&p.a);
            softnic_settle(); /* the flood goes on */
        }
        pass(&p, &l, 10 * MS);
        flood_turn(&p, &l.p.a);
        g_assert_cmpint(l.p.a.ch->phase, ==, answers ? RNIC_UP : RNIC_BREAKING);
        p.b.flow[0].to_send = p.b.flow[0].sent;
        liar_close(&l);
        fix_close(&p);
    }
}

/* Nobody has looked: what the peer did not say meanwhile is not its fault. */
static void test_away(void)
{
    struct fixpair p;

    fix_open(&p, &(struct fixopts){0}, 1);
    softnic_do("hold 0");
    p.a.flow[0].to_send = 100;
    fix_turn(&p.a);
    fix_pass(&p, 500 * MS);
    fix_turn(&p.a);
    g_assert_cmpuint(p.a.ch->probed, ==, p.a.now);
    p.a.now += 600 * MS; /* in the middle of its turn */
    fix_turn(&p.a);
    g_assert_cmpint(p.a.ch->phase, ==, RNIC_UP);
    g_assert_cmpuint(p.a.ch->probed, ==, 0);
    g_assert_cmpuint(p.a.ch->since, ==, p.a.now);
    fix_pass(&p,
             500 * MS + RNIC_CQ_AWAY_NS + 1); /* it was parked, and not woken in time */
    fix_turn(&p.a);
    g_assert_cmpuint(p.a.ch->probed, ==, 0);
    fix_pass(&p, 500 * MS + RNIC_CQ_AWAY_NS);
    fix_turn(&p.a);
    g_assert_cmpuint(p.a.ch->probed, ==, p.a.now);
    p.a.now += RNIC_CQ_AWAY_NS;
    fix_turn(&p.a);
    p.a.now += RNIC_CQ_AWAY_NS;
    fix_turn(&p.a);
    g_assert_cmpint(p.a.ch->phase, ==, RNIC_BREAKING);
    softnic_do("hold -1");
    fix_close(&p);
}

/* It is never parked, but there is nothing to look at: that is no absence. */
static void test_peeks(void)
{
    struct fixpair p;

    fix_open(&p, &(struct fixopts){0}, 1);
    softnic_do("hold 0");
    p.a.flow[0].to_send = 100;
    fix_turn(&p.a);
    for (unsigned i = 0; i < 2; i++) {
        for (unsigned k = 0; k < 50; k++) {
            p.a.now += 10 * MS;
            rnic_cq_peek(p.a.cq);
        }
        g_assert_cmpuint(rnic_cq_due(p.a.cq), <=, p.a.now);
        fix_turn(&p.a);
        g_assert_cmpint(p.a.ch->phase, ==, i ? RNIC_BREAKING : RNIC_UP);
        g_assert_cmpint(p.a.ch->probed != 0, ==, true);
    }
    softnic_do("hold -1");
    fix_close(&p);
}

/* What came meanwhile is taken, though a channel breaks, and a look leaves some. */
static void test_away_breaks(void)
{
    struct liar l;
    uint64_t at = 0;

    liar_open(&l);
    for (unsigned i = 0; i < 4; i++) {
        liar_data(&l, &at, 100);
    }
    rnic_channel_break(l.p.a.ch, "before it is looked at");
    g_assert_true(rnic_cq_look(l.p.a.cq, l.p.a.now, 1));
    l.p.a.now += 100 * MS; /* its second begins */
    g_assert_true(rnic_cq_look(l.p.a.cq, l.p.a.now, 1));
    g_assert_cmpuint(l.p.a.ch->break_until, !=, 0);
    l.p.a.now += 1500 * MS;
    g_assert_true(rnic_cq_look(l.p.a.cq, l.p.a.now, 1));
    g_assert_false(l.p.a.broken);
    for (unsigned i = 0; i < 3; i++) {
        fix_turn(&l.p.a);
        softnic_settle();
    }
    g_assert_true(l.p.a.broken && l.p.a.all);
    g_assert_cmpuint(l.p.a.flow[0].taken, ==, at);
    liar_close(&l);
}

/* ... nor that a flow took nothing. */
static void test_away_withheld(void)
{
    struct fixpair p;

    fix_open(&p, &(struct fixopts){.max_size = RNIC_SIZE_MIN}, 1);
    p.b.flow[0].stops = true;
    p.a.flow[0].to_send = 2u << 20;
    while (!p.b.ch->rx.withheld) {
        fix_turn(&p.a);
        fix_turn(&p.b);
    }
    p.b.now += 1000 * MS;
    fix_turn(&p.b);
    g_assert_false(p.b.flow[0].lost);
    p.b.now += 99 * MS;
    fix_turn(&p.b);
    g_assert_false(p.b.flow[0].lost);
    p.b.now += MS;
    fix_turn(&p.b);
    g_assert_true(p.b.flow[0].lost);
    fix_close(&p);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    log_set_level(g_test_verbose() ? LOG_LVL_DEBUG : LOG_LVL_ERROR);
    fix_nics();
    fix_pattern(0, 0);
    g_test_add_func("/channel-cq/several", test_several);
    g_test_add_func("/channel-cq/dead", test_dead);
    g_test_add_func("/channel-cq/look", test_look);
    g_test_add_func("/channel-cq/stash", test_stash);
    g_test_add_func("/channel-cq/flood", test_flood);
    g_test_add_func("/channel-cq/away", test_away);
    g_test_add_func("/channel-cq/peeks", test_peeks);
    g_test_add_func("/channel-cq/away-breaks", test_away_breaks);
    g_test_add_func("/channel-cq/away-withheld", test_away_withheld);
    return g_test_run();
}
