/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Unit tests: a NIC that VMs share, and limits.  A model of a NIC sends what is posted
 * one after the other, at its rate; time is the model's.  Then the same with channels on
 * NICs in memory, and with threads.
 */
#include "channelfix.h"

#include <pthread.h>
#include <sched.h>

#include "datapath/datapath.h"
#include "objects/vm.h"
#include "transport/rnic/pair.h"

#define SIZE    65536u
#define CAP     (1u << 20)
#define VMS     8u
#define SENDERS 256u
/* What the model's NIC sends in a microsecond, and how long a worker needs to come. */
#define PER_US  3000u
#define COME_US 3u
/* For what is on its way, of CAP. */
#define PERIOD_US ((uint64_t)RNIC_FAIR_PERIOD * CAP / PER_US)

/* ---- the model -------------------------------------------------------------------- */

struct simvm {
    struct vm vm;
    struct rnic_fair_vm v;
    struct rnic_rate rate;
    struct rnic_sender sender[SENDERS];
    unsigned n;    /* of its senders, which want to send all the time */
    uint32_t size; /* of their SENDs */
    uint64_t back,
        n_back; /* bytes and SENDs that have completed, and it has not looked */
    uint64_t sent, of[SENDERS];
    uint64_t come; /* us, when its worker does, as somebody woke it; 0: nobody has */
    uint64_t rests, next; /* us, its worker between two turns; not before */
    bool away;
    /* Its senders' peers take what the NIC has sent, `per_us` of it, and hold up no
     * other; a sender has as much on its way as a channel may have. */
    bool slow;
    uint32_t per_us;
    uint64_t credit, posted[SENDERS], served[SENDERS];
    GQueue lies; /* of struct simsend: what these have not taken */
};

struct simsend {
    struct simvm *of;
    unsigned sender;
    uint32_t len;
};

struct sim {
    struct rnic_fair f;
    struct simvm vm[VMS];
    unsigned n;
    uint64_t us;
    GQueue nic;     /* of struct simsend */
    bool in_turn;   /* it serves its queue pairs in turn, and not SENDs */
    uint64_t turns; /* of these */
    uint64_t credit, carried;
};

static struct vm_config sim_cfg;

static void sim_add(struct sim *s, uint32_t shares, unsigned senders, uint64_t rate)
{
    struct simvm *m = &s->vm[s->n++];

    m->vm.cfg = &sim_cfg;
    pthread_mutex_init(&m->vm.dp.token, NULL);
    m->n = senders;
    m->size = SIZE;
    rnic_rate_init(&m->rate, rate);
    rnic_fair_enter(&s->f, &m->v, &m->vm, shares, &m->rate);
}

static struct sim *sim_new(uint64_t bytes, uint32_t requests)
{
    struct sim *s = g_new0(struct sim, 1);

    s->us = 1000 * 1000; /* as ends of channels */
    rnic_fair_init(&s->f, bytes, requests, PER_US * 8);
    return s;
}

static uint64_t sim_used(struct sim *s)
{
    struct rnic_nic_usage u;

    rnic_fair_usage(&s->f, &u);
    return u.bytes;
}

static uint64_t sim_flying(struct simvm *m)
{
    return atomic_load(&m->v.flying[0]) + atomic_load(&m->v.flying[1]);
}

static void sim_post(struct sim *s, struct simvm *m, unsigned i, uint32_t len)
{
    struct simsend *send = g_new(struct simsend, 1);

    rnic_fair_posted(&m->v, &m->sender[i], len);
    *send = (struct simsend){m, i, len};
    g_queue_push_tail(m->slow ? &m->lies : &s->nic, send);
    m->posted[i] += len;
    m->sent += len;
    m->of[i] += len;
}

static void sim_look(struct sim *s, struct simvm *m)
{
    m->come = 0;
    m->next = s->us + m->rests;
    rnic_fair_done(&m->v, m->back, (uint32_t)m->n_back);
    m->back = m->n_back = 0;
    rnic_fair_look(&m->v, s->us * 1000);
}

static bool sim_may_post(const struct simvm *m, unsigned i)
{
    return !m->slow || m->posted[i] < RNIC_POSTED_BYTES;
}

/* A turn of its VM. */
static void sim_turn(struct sim *s, struct simvm *m)
{
    sim_look(s, m);
    for (unsigned i = 0; i < m->n; i++) {
        while (sim_may_post(m, i) &&
               rnic_fair_take(&m->v, &m->sender[i], SIZE, s->us * 1000)) {
            sim_post(s, m, i, m->size);
        }
        if (!sim_may_post(m, i)) {
            rnic_fair_withdraw(&m->v, &m->sender[i]);
        }
    }
    rnic_fair_settle(&m->v);
}

static bool sim_is_due(struct sim *s, struct simvm *m)
{
    if (rnic_fair_told(&m->v) && !m->come) {
        m->come = s->us + COME_US;
    }
    return m->next <= s->us &&
           (m->back || (m->come && m->come <= s->us) ||
            (m->n && TAILQ_EMPTY(&m->v.queue)) || rnic_fair_due(&m->v) <= s->us * 1000);
}

static void sim_completes(struct simsend *send)
{
    send->of->back += send->len;
    send->of->n_back++;
    send->of->posted[send->sender] -= send->len;
    g_free(send);
}

/* What the NIC sends next: the first, or that of the queue pair that waits longest. */
static GList *sim_next(struct sim *s)
{
    GList *next = s->nic.head;

    for (GList *l = next; s->in_turn && l; l = l->next) {
        struct simsend *is = l->data, *was = next->data;

        next = is->of->served[is->sender] < was->of->served[was->sender] ? l : next;
    }
    return next;
}

static void sim_nic(struct sim *s)
{
    struct simsend *send;
    GList *next;

    s->credit += PER_US;
    while ((next = sim_next(s)) && s->credit >= ((struct simsend *)next->data)->len) {
        send = next->data;
        g_queue_delete_link(&s->nic, next);
        s->credit -= send->len;
        s->carried += send->len;
        send->of->served[send->sender] = ++s->turns;
        sim_completes(send);
    }
    s->credit = next ? s->credit : 0;
    for (unsigned i = 0; i < s->n; i++) {
        struct simvm *m = &s->vm[i];

        m->credit += m->per_us;
        while ((send = g_queue_peek_head(&m->lies)) && m->credit >= send->len) {
            m->credit -= send->len;
            sim_completes(g_queue_pop_head(&m->lies));
        }
        m->credit = send ? m->credit : 0;
    }
}

/* A microsecond. */
static void sim_step(struct sim *s)
{
    s->us++;
    sim_nic(s);
    for (unsigned i = 0; i < s->n; i++) {
        struct simvm *m = &s->vm[(s->us + i) % s->n];

        if (!m->away && sim_is_due(s, m)) {
            sim_turn(s, m);
        }
    }
    g_assert_cmpuint(sim_used(s), <, s->f.most % (1ull << 40) + SIZE);
}

static void sim_run(struct sim *s, uint64_t us)
{
    while (us--) {
        sim_step(s);
    }
}

/* All that is on its way comes back, and then nothing is. */
static void sim_free(struct sim *s)
{
    for (unsigned i = 0; i < s->n; i++) {
        s->vm[i].n = 0;
        s->vm[i].away = false;
        s->vm[i].per_us = UINT32_MAX;
        s->vm[i].rests = 0;
        for (unsigned k = 0; k < SENDERS; k++) {
            rnic_fair_withdraw(&s->vm[i].v, &s->vm[i].sender[k]);
        }
    }
    sim_run(s, 2 * CAP / PER_US);
    g_assert_true(g_queue_is_empty(&s->nic));
    g_assert_cmpuint(atomic_load(&s->f.used), ==, 0);
    g_assert_cmpuint(atomic_load(&s->f.n_waiting), ==, 0);
    for (unsigned i = 0; i < s->n; i++) {
        rnic_fair_leave(&s->vm[i].v);
        pthread_mutex_destroy(&s->vm[i].vm.dp.token);
    }
    rnic_fair_fini(&s->f);
    g_free(s);
}

/* From when all of them send: each has its share of what all had, within @slack. */
static void check_shares(struct sim *s, uint64_t ms, uint64_t slack)
{
    uint64_t was[VMS], carried = s->carried, all, shares;

    for (unsigned i = 0; i < s->n; i++) {
        was[i] = s->vm[i].sent;
    }
    for (uint64_t n = 0; n < ms; n++) {
        sim_run(s, 1000);
        all = shares = 0;
        for (unsigned i = 0; i < s->n; i++) {
            all += s->vm[i].sent - was[i];
            shares += s->vm[i].v.shares;
        }
        for (unsigned i = 0; i < s->n; i++) {
            uint64_t its = s->vm[i].sent - was[i];
            uint64_t right = all * s->vm[i].v.shares / shares;

            g_assert_cmpuint(its, <=, right + slack);
            g_assert_cmpuint(right, <=, its + slack);
        }
    }
    /* The NIC always had something to send. */
    g_assert_cmpuint(s->carried - carried, >=, (ms * 1000 - 10) * PER_US - SIZE);
}

/* ---- shares -------------------------------------------------------------------------
 */

static void test_shares(void)
{
    struct sim *s = sim_new(CAP, 1024);

    for (unsigned i = 0; i < 3; i++) {
        sim_add(s, 100u << i, 1, 0);
    }
    sim_run(s, 2000);
    check_shares(s, 200, 2 * RNIC_SLICE);
    sim_free(s);
}

/* As much as a group may say, and small SENDs. */
static void test_far_apart(void)
{
    struct sim *s = sim_new(CAP, 1024);

    sim_add(s, 10000, 1, 0);
    sim_add(s, 10000, 3, 0);
    sim_add(s, 1, 1, 0);
    s->vm[1].size = 3000; /* of 64 KiB that might be */
    sim_run(s, 2000);
    check_shares(s, 200, 2 * RNIC_SLICE);
    sim_free(s);
}

/* Many channels are no more than one. */
static void test_flood(void)
{
    struct sim *s = sim_new(CAP, 1024);

    sim_add(s, 100, SENDERS, 0);
    sim_add(s, 100, 1, 0);
    sim_add(s, 100, 2, 0);
    sim_run(s, 2000);
    check_shares(s, 200, 2 * RNIC_SLICE);
    sim_free(s);
}

/* Those of one VM take turns. */
static void test_senders(void)
{
    struct sim *s = sim_new(4 * SIZE, 1024);
    struct simvm *m = &s->vm[0];

    sim_add(s, 100, 5, 0);
    sim_run(s, 10000);
    g_assert_cmpuint(m->of[0], >, 50 * SIZE);
    for (unsigned i = 1; i < 5; i++) {
        /* It had four before anybody else wanted one. */
        g_assert_cmpuint(m->of[i] + 5 * SIZE, >=, m->of[0]);
        g_assert_cmpuint(m->of[i], <=, m->of[0] + SIZE);
    }
    /* One that does not want to any more does not hold them up. */
    m->n = 4;
    rnic_fair_withdraw(&m->v, &m->sender[4]);
    s->carried = 0;
    sim_run(s, 1000);
    g_assert_cmpuint(s->carried, >=, 990 * PER_US - SIZE);
    sim_free(s);
}

/* A VM with little to send waits for what is on its way, and for no slice of others. */
static void test_small(void)
{
    struct sim *s = sim_new(CAP, 1024);
    struct simvm *m = &s->vm[3];
    uint64_t asked, before, worst = 0;

    for (unsigned i = 0; i < 3; i++) {
        sim_add(s, 100, 4, 0);
    }
    sim_add(s, 100, 0, 0);
    m->away = true; /* its turns are here */
    sim_run(s, 2000);
    for (unsigned round = 0; round < 200; round++) {
        asked = s->us;
        before = s->vm[0].sent + s->vm[1].sent + s->vm[2].sent;
        while (sim_look(s, m),
               !rnic_fair_take(&m->v, &m->sender[0], 4096, s->us * 1000)) {
            rnic_fair_settle(&m->v);
            sim_step(s);
            g_assert_cmpuint(s->us, <, asked + 1000);
        }
        sim_post(s, m, 0, 100);
        rnic_fair_settle(&m->v);
        worst = MAX(worst, s->vm[0].sent + s->vm[1].sent + s->vm[2].sent - before);
        while (!m->n_back) {
            sim_step(s);
            g_assert_cmpuint(s->us, <, asked + (CAP + 2 * SIZE) / PER_US + 10);
        }
        sim_run(s, 137);
    }
    g_assert_cmpuint(worst, <=, SIZE);
    sim_free(s);
}

/* Many small SENDs are bounded, too; what has to be said at once is not. */
static void test_requests(void)
{
    struct sim *s = sim_new(CAP, 16);
    struct simvm *m = &s->vm[0];
    struct rnic_nic_usage u;

    sim_add(s, 100, 1, 0);
    m->size = 20;
    sim_turn(s, m);
    g_assert_cmpuint(g_queue_get_length(&s->nic), ==, 16);
    for (unsigned i = 0; i < 40; i++) {
        sim_post(s, m, 1, 8);
    }
    rnic_fair_usage(&s->f, &u);
    g_assert_cmpuint(u.bytes, ==, 16 * 20 + 40 * 8);
    g_assert_cmpuint(u.requests, ==, 56);
    g_assert_cmpuint(u.waiting, ==, 1);
    sim_turn(s, m);
    g_assert_cmpuint(g_queue_get_length(&s->nic), ==, 56);
    sim_free(s);
}

/* Nobody pays for what was sent while nobody waited; nor saves what it did not send. */
static void test_no_savings(void)
{
    struct sim *s = sim_new(CAP, 1024);
    uint64_t was[2];

    sim_add(s, 100, 1, 0);
    sim_add(s, 100, 0, 0);
    sim_add(s, 100, 1, 0);
    sim_run(s, 50000); /* 0 and 2 share, 1 has had nothing */
    s->vm[2].n = 0;
    rnic_fair_withdraw(&s->vm[2].v, &s->vm[2].sender[0]);
    sim_run(s, 50000); /* 0 alone */
    s->vm[1].n = s->vm[2].n = 1;
    for (unsigned i = 0; i < 2; i++) {
        was[i] = s->vm[i].sent;
    }
    sim_run(s, 5000);
    g_assert_cmpuint(s->vm[0].sent - was[0] + 3 * RNIC_SLICE, >=, s->vm[1].sent - was[1]);
    g_assert_cmpuint(s->vm[0].sent - was[0], <=, s->vm[1].sent - was[1] + 3 * RNIC_SLICE);
    check_shares(s, 20, 2 * RNIC_SLICE);
    sim_free(s);
}

/* A NIC that serves queue pairs in turn does not serve the VM best that has most. */
static void test_in_turn(void)
{
    for (unsigned n = 2; n <= VMS; n++) {
        struct sim *s = sim_new(CAP, 1024);

        s->in_turn = true;
        sim_add(s, 100, 16, 0);
        sim_add(s, 100, 1, 0);
        for (unsigned i = 2; i < n; i++) {
            sim_add(s, i == 2 ? 200 : 100, 4 + i, 0);
        }
        sim_run(s, 2000);
        check_shares(s, 100, 2 * RNIC_SLICE);
        sim_free(s);
    }
}

/* Whatever it may take, in SENDs of @len bytes.  How many. */
static unsigned take_all(struct sim *s, struct simvm *m, unsigned i, uint32_t len)
{
    unsigned n = 0;

    rnic_fair_look(&m->v, s->us * 1000);
    while (rnic_fair_take(&m->v, &m->sender[i], SIZE, s->us * 1000)) {
        rnic_fair_posted(&m->v, &m->sender[i], len);
        n++;
    }
    return n;
}

/* What was charged for SENDs that were smaller is not given back when it is forgotten. */
static void test_refund(void)
{
    struct sim *s = sim_new(CAP, 1024);
    struct rnic_fair_vm *v[3];
    unsigned n[3] = {0};

    for (unsigned i = 0; i < 3; i++) {
        sim_add(s, 100, 0, 0);
        v[i] = &s->vm[i].v;
    }
    n[0] = take_all(s, &s->vm[0], 0, SIZE);
    n[1] = take_all(s, &s->vm[1], 0, SIZE);
    g_assert_cmpuint(n[0] * SIZE, ==, CAP);
    g_assert_cmpuint(n[1], ==, 0);
    rnic_fair_done(v[0], CAP, n[0]); /* both wait, and there is room */
    while (rnic_fair_take(v[2], &s->vm[2].sender[n[2]], SIZE, s->us * 1000)) {
        n[2]++;
    }
    g_assert_cmpuint(n[2] * SIZE, >=, RNIC_SLICE);
    rnic_fair_withdraw(v[2], &s->vm[2].sender[n[2]]);
    for (unsigned i = 0; i < n[2]; i++) {
        rnic_fair_posted(v[2], &s->vm[2].sender[i], 48);
    }
    rnic_fair_done(v[2], n[2] * 48, n[2]);
    rnic_fair_settle(v[2]);
    g_assert_false(v[2]->waits);
    for (unsigned i = 0; i < 10; i++) { /* these go on */
        n[i % 2] = take_all(s, &s->vm[i % 2], 0, SIZE);
        g_assert_cmpuint(n[i % 2], >=, RNIC_SLICE / SIZE);
        rnic_fair_done(v[i % 2], n[i % 2] * SIZE, n[i % 2]);
    }
    n[2] = take_all(s, &s->vm[2], 0, SIZE);
    g_assert_cmpuint(n[2] * SIZE, <=, 2 * RNIC_SLICE);
    rnic_fair_done(v[2], n[2] * SIZE, n[2]);
    for (unsigned i = 0; i < 3; i++) {
        rnic_fair_withdraw(v[i], &s->vm[i].sender[0]);
        rnic_fair_settle(v[i]);
    }
    sim_free(s);
}

/* ---- VMs that do not come
 * ---------------------------------------------------------------- */

/* One that is to go next and is not served holds the others up for a moment. */
static void test_late(void)
{
    struct sim *s = sim_new(CAP, 1024);
    struct simvm *m = &s->vm[0];
    uint64_t carried;

    for (unsigned i = 0; i < 3; i++) {
        sim_add(s, 100, 1, 0);
    }
    sim_run(s, 5000);
    /* What it has on its way comes back, or is not counted. */
    m->away = true;
    sim_run(s, 15000);
    g_assert_false(s->vm[0].v.waits);
    carried = s->carried;
    sim_run(s, 20000);
    g_assert_cmpuint(s->carried - carried, >=, (20000 - 1000 - 10) * PER_US - CAP);
    m->away = false;
    sim_run(s, 2000);
    check_shares(s, 50, 2 * RNIC_SLICE);
    sim_free(s);
}

/* All that may be on its way is a VM's that does not look. */
static void test_away(void)
{
    struct sim *s = sim_new(CAP, 1024);
    uint64_t from, sent, carried;

    sim_add(s, 100, 1, 0);
    sim_turn(s, &s->vm[0]);
    s->vm[0].away = true;
    sim_add(s, 100, 1, 0);
    from = s->us;
    while (!s->vm[1].sent) {
        sim_step(s);
        g_assert_cmpuint(s->us, <, from + 1000 + 2 * PERIOD_US);
    }
    g_assert_cmpuint(s->us, >=, from + PERIOD_US);
    /* It comes back: what completes now was not counted any more. */
    sent = s->vm[0].sent;
    s->vm[0].away = false;
    sim_run(s, 5000);
    g_assert_cmpuint(s->vm[0].sent, >, sent);
    sim_run(s, RNIC_FAIR_SLOW * PERIOD_US);
    check_shares(s, 20, 2 * RNIC_SLICE);
    /* Though it is in its turn: it may stand in a page fault. */
    s->vm[0].away = true;
    pthread_mutex_lock(&s->vm[0].vm.dp.token);
    sim_run(s, 6 * PERIOD_US);
    g_assert_cmpuint(sim_flying(&s->vm[0]), ==, 0);
    carried = s->carried;
    sim_run(s, 20000);
    g_assert_cmpuint(s->carried - carried, >=, 19000 * PER_US);
    pthread_mutex_unlock(&s->vm[0].vm.dp.token);
    sim_free(s);
}

/* A VM whose worker is slow to come has about what it can take, and others the rest. */
static void test_slow_worker(void)
{
    static const uint64_t us[] = {100, 277, 900};

    for (unsigned i = 0; i < G_N_ELEMENTS(us); i++) {
        struct sim *s = sim_new(CAP, 1024);
        uint64_t carried, sent;

        sim_add(s, 100, 1, 0);
        sim_add(s, 100, 1, 0);
        s->vm[0].rests = us[i];
        sim_run(s, 20000);
        carried = s->carried;
        sent = s->vm[0].sent;
        sim_run(s, 50000);
        g_assert_cmpuint(s->carried - carried, >=, 49000 * PER_US);
        g_assert_cmpuint((s->vm[0].sent - sent) * 5 / 3, >=,
                         MIN(25000 * PER_US, 50000 / us[i] * 2 * RNIC_SLICE));
        sim_free(s);
    }
}

/* VM 0 sends by @n channels to peers that take @per_us. */
static struct sim *slow_new(unsigned n, uint32_t per_us)
{
    struct sim *s = sim_new(CAP, 1024);

    sim_add(s, 100, n, 0);
    sim_add(s, 100, 1, 0);
    s->vm[0].slow = true;
    s->vm[0].per_us = per_us;
    return s;
}

/* What peers do not take holds up their own VM. */
static void test_slow_peers(void)
{
    static const uint32_t per_us[] = {0, PER_US / 100, PER_US / 25, PER_US / 5};
    static const unsigned n[] = {1, 8, 64};

    for (unsigned i = 0; i < G_N_ELEMENTS(per_us) * G_N_ELEMENTS(n); i++) {
        struct sim *s = slow_new(n[i % G_N_ELEMENTS(n)], per_us[i / G_N_ELEMENTS(n)]);
        uint64_t sent;

        sim_run(s, 10000); /* until that is known */
        g_assert_cmpuint(s->carried, >=, 6000 * PER_US);
        s->carried = 0;
        sent = s->vm[0].sent;
        sim_run(s, 100000);
        g_assert_cmpuint(s->carried, >=, 98000 * PER_US);
        /* And those have what they take. */
        g_assert_cmpuint(s->vm[0].sent - sent + CAP, >=, 95000ull * s->vm[0].per_us);
        sim_free(s);
    }
}

/* Some that take all at once, now and then. */
static void test_hostile_peers(void)
{
    for (unsigned n = 1; n <= 64; n *= 8) {
        struct sim *s = slow_new(n, 0);
        struct simvm *m = &s->vm[0];

        sim_run(s, 10000);
        for (unsigned k = 0; k < 20; k++) {
            s->carried = 0;
            for (unsigned us = 0; us < 10000; us++) {
                m->per_us = g_queue_get_length(&m->lies) >= n * 15 ? UINT32_MAX : 0;
                sim_step(s);
            }
            g_assert_cmpuint(s->carried, >=, 9000 * PER_US);
        }
        sim_free(s);
    }
}

/* Many such VMs, and one that sends now and then: it finds room. */
static void test_seldom(void)
{
    struct sim *s = sim_new(CAP, 12);
    struct simvm *m = &s->vm[VMS - 1];
    uint64_t sent[VMS];

    for (unsigned i = 0; i < VMS - 1; i++) {
        sim_add(s, 100, 64, 0);
        s->vm[i].slow = true;
    }
    sim_add(s, 100, 0, 0);
    m->away = true; /* its turns are here */
    sim_run(s, 100000);
    for (unsigned i = 0; i < VMS - 1; i++) {
        sent[i] = s->vm[i].sent;
    }
    for (unsigned round = 0; round < 20; round++) {
        uint64_t asked = s->us;

        while (sim_look(s, m),
               !rnic_fair_take(&m->v, &m->sender[0], SIZE, s->us * 1000)) {
            rnic_fair_settle(&m->v);
            sim_step(s);
            g_assert_cmpuint(s->us, <, asked + 100);
        }
        sim_post(s, m, 0, 100);
        rnic_fair_settle(&m->v);
        sim_run(s, 5000);
    }
    for (unsigned i = 0; i < VMS - 1; i++) { /* nor do those stand still */
        g_assert_cmpuint(s->vm[i].sent, >, sent[i] + CAP);
    }
    sim_free(s);
}

static void test_gone(void)
{
    struct sim *s = sim_new(CAP, 1024);
    uint64_t sent;

    for (unsigned i = 0; i < 3; i++) {
        sim_add(s, 100, 1, 0);
    }
    sim_run(s, 5000);
    s->vm[0].away = s->vm[1].away = true; /* it is woken, and goes */
    sent = s->vm[2].sent;
    rnic_fair_gone(&s->vm[0].v);
    g_assert_cmpuint(sim_flying(&s->vm[0]), ==, 0);
    rnic_fair_gone(&s->vm[1].v);
    sim_run(s, 2000);
    g_assert_cmpuint(s->vm[2].sent - sent, >=, 1500 * PER_US);
    g_assert_false(s->vm[0].v.waits || s->vm[1].v.waits);
    sim_free(s);
}

static void test_close(void)
{
    struct sim *s = sim_new(CAP, 1024);

    for (unsigned i = 0; i < 3; i++) {
        sim_add(s, 100, 1, 0);
    }
    sim_run(s, 5000);
    for (unsigned i = 0; i < 3; i++) {
        g_assert_true(s->vm[i].v.waits);
    }
    rnic_fair_close(&s->f);
    g_assert_cmpuint(atomic_load(&s->f.n_waiting), ==, 0);
    for (unsigned i = 0; i < 3; i++) {
        g_assert_true(rnic_fair_told(&s->vm[i].v));
        sim_look(s, &s->vm[i]);
        g_assert_true(rnic_fair_take(&s->vm[i].v, &s->vm[i].sender[0], SIZE, 0));
        sim_post(s, &s->vm[i], 0, SIZE);
        rnic_fair_settle(&s->vm[i].v);
    }
    sim_free(s);
}

/* ---- limits
 * --------------------------------------------------------------------------------- */

/* What a VM sends in @us that looks when it is due, and @every us. */
static uint64_t rate_sent(uint64_t rate, uint32_t size, uint64_t us, uint64_t every)
{
    struct sim *s = sim_new(16 * CAP, 1u << 20);
    struct simvm *m = &s->vm[0];
    uint64_t end = (s->us + us) * 1000, now, sent;

    sim_add(s, 100, 2, rate);
    m->size = size;
    for (now = s->us * 1000; now < end;) {
        rnic_fair_look(&m->v, now);
        for (unsigned i = 0; i < m->n; i++) {
            while (rnic_fair_take(&m->v, &m->sender[i], SIZE, now)) {
                rnic_fair_posted(&m->v, &m->sender[i], size);
                rnic_fair_done(&m->v, size, 1);
                m->sent += size;
                g_assert_cmpuint(m->sent, <, 2 * rate + 4 * RNIC_BURST_BYTES);
            }
        }
        rnic_fair_settle(&m->v);
        g_assert_false(m->v.waits); /* it holds nobody up */
        g_assert_cmpuint(rnic_fair_due(&m->v), <=, now + SIZE * 1000000000ull / rate + 1);
        if (rnic_fair_due(&m->v) > now) {
            now = every ? now + every * 1000 : rnic_fair_due(&m->v);
        }
    }
    sent = m->sent;
    sim_free(s);
    return sent;
}

static void check_rate(uint64_t rate, uint32_t size)
{
    /* A second, but no more SENDs than a sanitizer has time for. */
    uint64_t us = MIN(1000000, 40000ull * size / (rate / 1000000));
    uint64_t burst = MAX(RNIC_BURST_BYTES, rate / 1000), most = rate / 1000 * us / 1000;
    uint64_t sent = rate_sent(rate, size, us, 0);

    g_assert_cmpuint(sent, <=, most + burst + size + 1000);
    g_assert_cmpuint(sent + size, >=, most + burst);
    /* Whenever it looks. */
    sent = rate_sent(rate, size, us, 333);
    g_assert_cmpuint(sent, <=, most + burst + size + 1000);
    g_assert_cmpuint(sent + burst + size, >=, most);
}

static void test_rate(void)
{
    static const uint64_t rates[] = {1u << 20, 10000019, 125000000, 12500000000};
    static const uint32_t sizes[] = {SIZE, 1500, 48};

    for (unsigned i = 0; i < G_N_ELEMENTS(rates); i++) {
        for (unsigned k = 0; k < G_N_ELEMENTS(sizes); k++) {
            check_rate(rates[i], sizes[k]);
        }
    }
}

/* By two NICs, whose turns came at different times, nothing is saved up. */
static void test_rate_of_two(void)
{
    const uint64_t second = 1000000000, hour = 3600 * second;
    struct sim *s[2];
    struct simvm *m[2];
    uint64_t sent = 0;

    for (unsigned i = 0; i < 2; i++) {
        s[i] = sim_new(CAP, 1024);
        sim_add(s[i], 100, 0, 1u << 20);
        m[i] = &s[i]->vm[0];
        m[i]->v.rate = &m[0]->rate;
        g_assert_true(rnic_fair_take(&m[i]->v, &m[i]->sender[0], SIZE, (i + 1) * second));
    }
    for (unsigned i = 0; i < 2; i++) {
        sim_post(s[i], m[i], 0, 48);
    }
    for (unsigned n = 1; n < 4; n++) {
        while (rnic_fair_take(&m[0]->v, &m[0]->sender[0], SIZE, n * hour)) {
            rnic_fair_posted(&m[0]->v, &m[0]->sender[0], SIZE);
            rnic_fair_done(&m[0]->v, SIZE, 1);
            sent += SIZE;
        }
        rnic_fair_look(&m[0]->v, n * hour);
        g_assert_cmpuint(sent, <=, n * (RNIC_BURST_BYTES + SIZE));
        g_assert_cmpuint(sent, >=, n * RNIC_BURST_BYTES);
    }
    sim_free(s[0]);
    sim_free(s[1]);
}

/* A VM with a limit does not hold up those without, and has what it may. */
static void test_rate_beside(void)
{
    struct sim *s = sim_new(CAP, 1024);
    uint64_t sent[2], carried;

    sim_add(s, 100, 1, 100000000); /* of 3,000,000,000 */
    sim_add(s, 100, 1, 0);
    sim_run(s, 5000);
    sent[0] = s->vm[0].sent;
    carried = s->carried;
    sim_run(s, 100000);
    sent[0] = s->vm[0].sent - sent[0];
    g_assert_cmpuint(sent[0], <=, 10000000 + RNIC_BURST_BYTES + SIZE);
    g_assert_cmpuint(sent[0], >=, 10000000 - 3 * SIZE);
    g_assert_cmpuint(s->carried - carried, >=, 99900ull * PER_US);
    sim_free(s);
}

static void test_default(void)
{
    g_assert_cmpuint(rnic_fair_default(0), ==, RNIC_FAIR_BYTES);
    g_assert_cmpuint(rnic_fair_default(10000), ==, RNIC_FAIR_BYTES);
    g_assert_cmpuint(rnic_fair_default(400000), ==, 5000000);
    g_assert_cmpuint(rnic_fair_default(UINT64_MAX), ==, RNIC_FAIR_MAX_BYTES);
}

/* ---- channels
 * ------------------------------------------------------------------------------------ */

#define CHANNELS 6u

/* VM 0 has all of the channels but the last, which is VM 1's. */
struct shared {
    struct sim *s;
    struct fixpair p[CHANNELS];
};

static void shared_open(struct shared *x, const uint32_t shares[2])
{
    x->s = sim_new(2 * SIZE, 64);
    for (unsigned i = 0; i < 2; i++) {
        sim_add(x->s, shares[i], 0, 0);
    }
    for (unsigned i = 0; i < CHANNELS; i++) {
        struct fixopts o = {.fair = &x->s->vm[i == CHANNELS - 1].v};

        fix_open(&x->p[i], &o, 2);
    }
}

static void shared_close(struct shared *x)
{
    for (unsigned i = 0; i < CHANNELS; i++) {
        fix_close(&x->p[i]);
    }
    sim_free(x->s);
}

static void shared_turns(struct shared *x)
{
    for (unsigned i = 0; i < CHANNELS; i++) {
        fix_turn(&x->p[i].a);
        g_assert_cmpuint(sim_used(x->s), <, 3 * SIZE + CHANNELS * 64);
    }
    softnic_settle();
    for (unsigned i = 0; i < CHANNELS; i++) {
        x->p[i].a.now += 1000;
        fix_turn(&x->p[i].b);
        g_assert_false(x->p[i].a.broken || x->p[i].b.broken);
    }
}

static uint64_t shared_taken(const struct shared *x, unsigned i)
{
    return x->p[i].b.flow[0].taken + x->p[i].b.flow[1].taken;
}

/* A VM with five channels and one with one, who has twice the shares. */
static void test_channels(void)
{
    const uint64_t each = (64u << 20) / SLOWER;
    struct shared x;
    uint64_t its, all, was[CHANNELS];

    shared_open(&x, (const uint32_t[]){100, 200});
    for (unsigned i = 0; i < CHANNELS; i++) {
        x.p[i].a.flow[0].to_send = x.p[i].a.flow[1].to_send = each;
    }
    while (shared_taken(&x, CHANNELS - 1) < each / 4) { /* buffers grow meanwhile */
        shared_turns(&x);
    }
    for (unsigned i = 0; i < CHANNELS; i++) {
        was[i] = shared_taken(&x, i);
    }
    while (shared_taken(&x, CHANNELS - 1) < each) {
        shared_turns(&x);
    }
    all = its = shared_taken(&x, CHANNELS - 1) - was[CHANNELS - 1];
    for (unsigned i = 0; i < CHANNELS - 1; i++) {
        uint64_t mine = shared_taken(&x, i) - was[i];
        uint64_t first = shared_taken(&x, 0) - was[0];

        all += mine;
        /* At either end some have had one turn more, and a SEND. */
        g_assert_cmpuint(mine + 3 * RNIC_SENDER_BYTES, >=, first);
        g_assert_cmpuint(mine, <=, first + 3 * RNIC_SENDER_BYTES);
    }
    g_assert_cmpuint(its, <=, all * 2 / 3 + 2 * RNIC_SLICE);
    g_assert_cmpuint(its + 2 * RNIC_SLICE, >=, all * 2 / 3);
    /* The rest comes, too; and nothing counts any more. */
    for (unsigned n = 0; !fix_done(&x.p[0]) || !fix_done(&x.p[CHANNELS - 1]); n++) {
        shared_turns(&x);
        g_assert_cmpuint(n, <, 1000000);
    }
    for (unsigned n = 0; n < 10; n++) {
        shared_turns(&x);
    }
    g_assert_cmpint(rnrs(), ==, 0);
    shared_close(&x);
}

/* What the other side waits for is said, though there is no room for data. */
static void test_control(void)
{
    struct sim *s = sim_new(SIZE, 64);
    struct fixopts o = {0};
    struct fixpair p;
    struct fixflow *f;

    sim_add(s, 100, 0, 0);
    sim_add(s, 100, 2, 0);
    s->vm[0].away = true; /* its turns are those of fix_turn() */
    o.fair = &s->vm[0].v;
    fix_open(&p, &o, 1);
    sim_turn(s, &s->vm[1]); /* all that may be on its way is another's */
    p.a.flow[0].to_send = 1000;
    p.b.flow[0].to_send = 300000; /* which takes credits of A's */
    f = fix_begin(&p.a, 7);
    g_assert_nonnull(f);
    for (unsigned i = 0; i < 300; i++) {
        softnic_settle();
        fix_turn(&p.a);
        fix_turn(&p.b);
    }
    g_assert_cmpuint(p.a.flow[0].taken, ==, 300000);
    g_assert_true(f->opened);
    f->to_send = 10;
    fix_turn(&p.a);
    fix_flow_close(fix_find(&p.a, 7));
    fix_settle(&p);
    g_assert_true(fix_find(&p.b, 7)->ended);
    /* And nothing of the data went. */
    g_assert_cmpuint(p.b.flow[0].taken, ==, 0);
    g_assert_cmpuint(fix_find(&p.b, 7)->taken, ==, 0);
    g_assert_cmpuint(p.a.cq->deadlines.n, <=, 1);
    s->vm[1].n = 0;
    rnic_fair_withdraw(&s->vm[1].v, &s->vm[1].sender[0]);
    rnic_fair_withdraw(&s->vm[1].v, &s->vm[1].sender[1]);
    sim_run(s, 100);
    g_assert_true(rnic_fair_told(&s->vm[0].v));
    g_assert_true(rnic_cq_peek(p.a.cq));
    fix_settle(&p);
    g_assert_cmpuint(p.b.flow[0].taken, ==, 1000);
    fix_close(&p);
    sim_free(s);
}

/* What a VM says that goes does not wait, for its limit neither. */
static void test_last(void)
{
    struct sim *s = sim_new(SIZE, 64);
    struct fixopts o = {0};
    struct fixpair p;

    sim_add(s, 100, 0, 1);
    sim_add(s, 100, 2, 0);
    s->vm[0].away = true; /* its turns are those of fix_turn() */
    o.fair = &s->vm[0].v;
    s->vm[0].rate.level = -1;
    fix_open(&p, &o, 1);
    sim_turn(s, &s->vm[1]); /* all that may be on its way is another's */
    p.a.flow[0].to_send = 1000;
    fix_turn(&p.a);
    g_assert_cmpuint(p.a.flow[0].sent, ==, 0);
    rnic_flow_want(&p.a.flow[0].f, false);
    rnic_fair_last(&s->vm[0].v);
    fix_push(&p.a.flow[0]);
    g_assert_cmpuint(p.a.flow[0].sent, ==, 1000);
    rnic_cq_flush(p.a.cq);
    fix_settle(&p);
    g_assert_cmpuint(p.b.flow[0].taken, ==, 1000);
    fix_close(&p);
    sim_free(s);
}

/* A channel that breaks gives back what it had, and a VM that has gone as well. */
static void test_break(void)
{
    struct sim *s = sim_new(4 * SIZE, 64);
    struct fixopts o = {0};
    struct fixpair p[2];

    sim_add(s, 100, 0, 0);
    sim_add(s, 100, 0, 0);
    o.fair = &s->vm[0].v;
    fix_open(&p[0], &o, 1);
    fix_open(&p[1], &o, 1);
    rnic_fair_posted(&s->vm[1].v, &s->vm[1].sender[0], 100);
    for (unsigned i = 0; i < 2; i++) {
        softnic_do("hold 0");
        p[i].a.flow[0].to_send = 1u << 20;
        fix_turn(&p[i].a);
        g_assert_cmpuint(sim_used(s), >, 100);
        if (i) {
            rnic_fair_gone(&s->vm[0].v);
        }
        rnic_channel_drop(p[i].a.ch);
        g_assert_cmpuint(sim_used(s), ==, 100);
        softnic_do("hold -1");
    }
    rnic_fair_done(&s->vm[1].v, 100, 1);
    fix_close(&p[0]);
    fix_close(&p[1]);
    sim_free(s);
}

/* ---- threads
 * ----------------------------------------------------------------------------------- */

#define THREADS    4u
#define LAST_WORDS 1000u

struct threads {
    struct sim *s;
    _Atomic uint64_t worst;
    _Atomic unsigned running;
};

struct thread {
    struct threads *all;
    struct simvm *m;
};

static void *thread_main(void *arg)
{
    const uint64_t much = (256ull << 20) / SLOWER;
    struct thread *t = arg;
    struct simvm *m = t->m;
    uint64_t on_its_way = 0, n = 0, used;

    while (m->sent < much) {
        uint64_t now = (uint64_t)g_get_monotonic_time() * 1000;

        pthread_mutex_lock(&m->vm.dp.token);
        rnic_fair_done(&m->v, on_its_way, (uint32_t)n);
        on_its_way = n = 0;
        rnic_fair_look(&m->v, now);
        for (unsigned i = 0; i < 3; i++) {
            while (n < 8 && rnic_fair_take(&m->v, &m->sender[i], SIZE, now)) {
                uint32_t len = SIZE - (uint32_t)(m->sent % 4096);

                rnic_fair_posted(&m->v, &m->sender[i], len);
                m->sent += len;
                on_its_way += len;
                n++;
            }
        }
        used = sim_used(t->all->s);
        if (used > atomic_load(&t->all->worst)) {
            atomic_store(&t->all->worst, used);
        }
        rnic_fair_settle(&m->v);
        pthread_mutex_unlock(&m->vm.dp.token);
        if (!n) {
            sched_yield();
        }
    }
    pthread_mutex_lock(&m->vm.dp.token);
    rnic_fair_done(&m->v, on_its_way, (uint32_t)n);
    for (unsigned i = 0; i < 3; i++) {
        rnic_fair_withdraw(&m->v, &m->sender[i]);
    }
    rnic_fair_settle(&m->v);
    pthread_mutex_unlock(&m->vm.dp.token);
    return NULL;
}

/*
 * No more than may be is on its way, and all threads come to their end.  Meanwhile a VM
 * goes, which has no token when it says what may not wait.
 */
static void test_threads(void)
{
    struct threads all = {.s = sim_new(6 * SIZE, 1024)};
    struct simvm *goes = &all.s->vm[THREADS];
    struct thread t[THREADS];
    pthread_t thread[THREADS];

    for (unsigned i = 0; i < THREADS; i++) {
        sim_add(all.s, 100 + 50 * i, 0, 0);
    }
    sim_add(all.s, 100, 0, 0);
    for (unsigned i = 0; i < THREADS; i++) {
        t[i] = (struct thread){&all, &all.s->vm[i]};
        g_assert_cmpint(pthread_create(&thread[i], NULL, thread_main, &t[i]), ==, 0);
    }
    for (unsigned i = 0; i < LAST_WORDS; i++) {
        rnic_fair_posted(&goes->v, &goes->sender[0], 8);
        sched_yield();
    }
    rnic_fair_gone(&goes->v);
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
    }
    g_assert_cmpuint(atomic_load(&all.worst), <, 7 * SIZE + LAST_WORDS * 8);
    g_assert_cmpuint(atomic_load(&all.worst), >, 5 * SIZE);
    sim_free(all.s);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    fix_nics();
    g_test_add_func("/fair/shares", test_shares);
    g_test_add_func("/fair/far-apart", test_far_apart);
    g_test_add_func("/fair/flood", test_flood);
    g_test_add_func("/fair/senders", test_senders);
    g_test_add_func("/fair/small", test_small);
    g_test_add_func("/fair/requests", test_requests);
    g_test_add_func("/fair/no-savings", test_no_savings);
    g_test_add_func("/fair/in-turn", test_in_turn);
    g_test_add_func("/fair/refund", test_refund);
    g_test_add_func("/fair/slow-worker", test_slow_worker);
    g_test_add_func("/fair/slow-peers", test_slow_peers);
    g_test_add_func("/fair/hostile-peers", test_hostile_peers);
    g_test_add_func("/fair/seldom", test_seldom);
    g_test_add_func("/fair/late", test_late);
    g_test_add_func("/fair/away", test_away);
    g_test_add_func("/fair/gone", test_gone);
    g_test_add_func("/fair/close", test_close);
    g_test_add_func("/fair/rate", test_rate);
    g_test_add_func("/fair/rate-of-two", test_rate_of_two);
    g_test_add_func("/fair/rate-beside", test_rate_beside);
    g_test_add_func("/fair/default", test_default);
    g_test_add_func("/fair/channels", test_channels);
    g_test_add_func("/fair/control", test_control);
    g_test_add_func("/fair/break", test_break);
    g_test_add_func("/fair/last", test_last);
    g_test_add_func("/fair/threads", test_threads);
    return g_test_run();
}
