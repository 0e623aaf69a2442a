/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: the time in CQs.  Time stamps are of the device's clock, within what the
 * guest sees of it before it posts and after it has polled, and never go backwards in a
 * CQ; only CQs that were made with them have any.  Moderated events come when there were
 * enough completions or the first is old enough, never earlier, never not at all,
 * whatever happens to CQ and VM meanwhile.
 */
#include "vgtest.h"

#include <sched.h>

#define FAR 0x80000u

static void stamps_open(struct vgt_pair *p, unsigned b, uint32_t flags)
{
    struct vgt_opts o = {.guest = {{.db = VG_DB_EXT}, {.db = VG_DB_EXT}},
                         .cq_flags = flags};

    vgt_pair_open(p, 0, b, &o);
}

static uint64_t stamp_of(const struct pvrdma_cqe *c)
{
    uint64_t v = 0;

    for (unsigned i = 0; i < 6; i++) {
        v |= (uint64_t)c->reserved[i] << (8 * i);
    }
    g_assert_cmphex(v, ==, pvrdma_ext_stamp(c->reserved));
    return v;
}

/* ---- the clock ---- */

static void test_clock(void)
{
    struct vgt_opts o = {.guest = {{.db = VG_DB_EXT}}};
    int64_t attached = vg_now_ns(), before, between, after;
    struct vgt_side s;
    uint64_t a, b;

    vgt_side_open(&s, 0, &o, 0);
    g_assert_cmphex(vg_reg_read(s.g, PVRDMA_EXT_REG_FEATURES) & PVRDMA_EXT_FEAT_CQ_TIME,
                    !=, 0);
    before = vg_now_ns();
    a = vg_query_clock(s.g);
    between = vg_now_ns();
    g_usleep(50000);
    b = vg_query_clock(s.g);
    after = vg_now_ns();
    /* Nanoseconds, read within the call. */
    g_assert_cmpuint(b - a, >=, 50000000);
    g_assert_cmpuint(b - a, <=, after - before);
    g_assert_cmpuint(a, >, 0);
    /* This VM's: it tells nothing of the host's. */
    g_assert_cmpuint(a, <=, between - attached);
    vgt_side_close(&s);
}

/* ---- stamps ---- */

/* Within the two readings of side @s's clock; the CQ's last one is in *last. */
static void check(struct vgt_side *s, const struct pvrdma_cqe *c, uint64_t from,
                  uint64_t *last)
{
    uint64_t at = stamp_of(c), to = vg_query_clock(s->g);

    g_assert_cmpuint(at, >=, from);
    g_assert_cmpuint(at, <=, to);
    g_assert_cmpuint(at, >=, *last);
    *last = at;
}

/* SENDs one way: stamps of sender and receiver, each of its own VM's clock. */
static void test_stamps(gconstpointer data)
{
    uint64_t last[2] = {0}, from[2];
    struct vgt_pair p;

    stamps_open(&p, GPOINTER_TO_UINT(data), PVRDMA_EXT_CQ_STAMPS);
    for (unsigned i = 0; i < 50; i++) {
        struct pvrdma_cqe c;

        if (i == 25) {
            g_assert_cmpint(vg_cq_resize(p.s[0].scq, 16), ==, 0);
            g_assert_cmpint(vg_cq_resize(p.s[1].rcq, 512), ==, 0);
        }
        from[0] = vg_query_clock(p.s[0].g);
        from[1] = vg_query_clock(p.s[1].g);
        vgt_recv(&p.s[1], i, FAR, 64);
        vgt_send(&p.s[0], i, PVRDMA_WR_SEND, VGT_SIG, 0, 64, NULL, 0);
        c = vgt_expect(p.s[0].scq, i, PVRDMA_WC_SUCCESS);
        check(&p.s[0], &c, from[0], &last[0]);
        c = vgt_expect(p.s[1].rcq, i, PVRDMA_WC_SUCCESS);
        check(&p.s[1], &c, from[1], &last[1]);
    }
    vgt_pair_close(&p);
}

/* Of many at a time, and of flushed ones, each has its own; the clock moves meanwhile. */
static void test_many(void)
{
    uint64_t last = 0, first = 0;
    unsigned distinct = 0;
    struct vgt_pair p;

    stamps_open(&p, 1, PVRDMA_EXT_CQ_STAMPS);
    for (unsigned i = 0; i < 100; i++) {
        struct pvrdma_cqe c;

        for (unsigned k = 0; k < 32; k++) {
            vgt_send(&p.s[0], k, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 64, &p.s[1], FAR);
        }
        for (unsigned k = 0; k < 32; k++) {
            uint64_t at;

            c = vgt_expect(p.s[0].scq, k, PVRDMA_WC_SUCCESS);
            at = stamp_of(&c);
            g_assert_cmpuint(at, >=, last);
            distinct += at != last;
            first = first ? first : at;
            last = at;
        }
    }
    g_assert_cmpuint(last, >, first);
    g_assert_cmpuint(distinct, >, 3200 / 2);
    vgt_recv(&p.s[0], 7, 0, 64);
    vg_qp_to_state(p.s[0].qp, PVRDMA_QPS_ERR);
    {
        struct pvrdma_cqe c = vgt_expect(p.s[0].rcq, 7, PVRDMA_WC_WR_FLUSH_ERR);

        g_assert_cmpuint(stamp_of(&c), >, last);
    }
    vgt_pair_close(&p);
}

/* The guest's memory is never without anything: what is 0 then was stored. */
static struct vg_cq *cq_over_rubbish(struct vg_pd *pd, uint32_t flags)
{
    struct vg_cq *cq = vg_cq_new_flags(pd, 16, flags);

    memset(cq->mem->host + PVRDMA_PAGE_SIZE, 0xee, cq->mem->len - PVRDMA_PAGE_SIZE);
    return cq;
}

/* A CQ without: its bytes are 0, also where the other CQ of its QP is one with. */
static void test_none(void)
{
    struct vgt_side s;

    vgt_side_open(&s, 0, &(struct vgt_opts){.guest = {{.db = VG_DB_EXT}}}, 0);
    for (unsigned i = 0; i < 4; i++) {
        bool sent = i & 1, received = i & 2;
        struct vg_cq *scq = cq_over_rubbish(s.pd, sent ? PVRDMA_EXT_CQ_STAMPS : 0);
        struct vg_cq *rcq = cq_over_rubbish(s.pd, received ? PVRDMA_EXT_CQ_STAMPS : 0);
        struct vgt_side self = {.mr = s.mr, .qp = vg_qp_new(s.pd, scq, rcq, NULL)};
        struct pvrdma_cqe c;

        vg_qp_connect(self.qp, self.qp, NULL);
        vgt_recv(&self, 1, FAR, 64);
        vgt_send(&self, 2, PVRDMA_WR_SEND, VGT_SIG, 0, 64, NULL, 0);
        c = vgt_expect(rcq, 1, PVRDMA_WC_SUCCESS);
        g_assert_cmpint(stamp_of(&c) != 0, ==, received);
        c = vgt_expect(scq, 2, PVRDMA_WC_SUCCESS);
        g_assert_cmpint(stamp_of(&c) != 0, ==, sent);
        vg_qp_free(self.qp);
        vg_cq_free(scq);
        vg_cq_free(rcq);
    }
    vgt_side_close(&s);
}

static void test_refused(void)
{
    struct vgt_opts o = {.guest = {{.db = VG_DB_EXT}}};
    struct pvrdma_cmd_create_cq req = {.cqe = 64, .nchunks = 2};
    struct pvrdma_resp_create_cq resp;
    struct vg_buf *mem;
    struct vgt_side s;

    vgt_side_open(&s, 0, &o, 0);
    mem = vg_buf_new(s.g, 0, 2 * PVRDMA_PAGE_SIZE, VG_SCATTERED);
    req.pdir_dma = vg_pdir_new(s.g, mem->page, mem->npages);
    req.ctx_handle = s.pd->ctx;
    /* Stamps are for extended CQs; what is not known is not there. */
    req.reserved = PVRDMA_EXT_CQ_STAMPS;
    g_assert_cmpint(vg_create_cq(s.g, &req, &resp), ==, EINVAL);
    for (unsigned bit = 2; bit < 16; bit++) {
        req.reserved = PVRDMA_EXT_OBJ_RING | PVRDMA_EXT_CQ_STAMPS | 1u << bit;
        g_assert_cmpint(vg_create_cq(s.g, &req, &resp), ==, EINVAL);
    }
    req.reserved = PVRDMA_EXT_OBJ_RING | PVRDMA_EXT_CQ_STAMPS;
    g_assert_cmpint(vg_create_cq(s.g, &req, &resp), ==, 0);
    g_assert_cmpint(vg_destroy(s.g, PVRDMA_CMD_DESTROY_CQ, resp.cq_handle), ==, 0);
    vg_pdir_free(s.g, req.pdir_dma, mem->npages);
    vg_buf_free(mem);
    vgt_side_close(&s);
}

/* ---- moderation ---- */

#define MS      1000u    /* of periods, in us */
#define LONGEST 65535000 /* ns */
#define AT_ONCE 60000000 /* what takes less did not wait for the longest period */

/* Of each VM; the most that a test has at a time, and a few. */
#define MAX_CQ 64

static void moderate(struct vg_cq *cq, unsigned count, unsigned period_us)
{
    g_assert_cmpint(vg_moderate(cq->g, cq->handle, count, period_us), ==, 0);
}

static void write_to(struct vgt_pair *p, uint64_t wr_id)
{
    vgt_send(&p->s[0], wr_id, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p->s[1], FAR);
}

/* @n of them, which complete at once: an event that is held back holds no completion. */
static void write_and_poll(struct vgt_pair *p, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        write_to(p, i);
    }
    for (unsigned i = 0; i < n; i++) {
        vgt_expect(p->s[0].scq, i, PVRDMA_WC_SUCCESS);
    }
}

static void expect_event(struct vg_cq *cq)
{
    g_assert_true(vg_cqn_wait(cq->g, cq->handle, VGT_WAIT_MS));
}

/* An event of @cq, and the ns since @from; it took the arm word, if that is to be seen.
 */
static int64_t event_after(struct vg_cq *cq, int64_t from)
{
    int64_t ns;

    expect_event(cq);
    ns = vg_now_ns() - from;
    g_assert_true(!cq->ext || *cq->arm == PVRDMA_EXT_ARM_NONE);
    return ns;
}

static void open_db(struct vgt_pair *p, unsigned b, enum vg_db_mode db)
{
    struct vgt_opts o = {.guest = {{.db = db}, {.db = db}}};

    vgt_pair_open(p, 0, b, &o);
}

/* Too few for the count: not before the period is over, and then it comes, though nobody
 * does anything any more and both VMs are parked. */
static void test_period(gconstpointer data)
{
    static const unsigned counts[] = {0, 4, 65535};
    struct vgt_pair p;

    open_db(&p, 1, GPOINTER_TO_UINT(data));
    for (unsigned i = 0; i < G_N_ELEMENTS(counts); i++) {
        struct vg_cq *scq = p.s[0].scq, *rcq = p.s[1].rcq;
        int64_t from;

        moderate(scq, counts[i], 30 * MS);
        moderate(rcq, counts[i], 50 * MS);
        g_usleep(20000); /* parked */
        vg_cq_arm(scq, false);
        vg_cq_arm(rcq, false);
        g_usleep(20000); /* a message that is not answered has come */
        vgt_recv(&p.s[1], 9, FAR, 64);
        from = vg_now_ns();
        vgt_send(&p.s[0], 8, PVRDMA_WR_SEND, VGT_SIG, 0, 64, NULL, 0);
        vgt_expect(scq, 8, PVRDMA_WC_SUCCESS);
        vgt_expect(rcq, 9, PVRDMA_WC_SUCCESS);
        g_assert_cmpint(event_after(scq, from), >=, 30000000);
        g_assert_cmpint(event_after(rcq, from), >=, 50000000);
        /* It was one event. */
        g_assert_false(vg_cqn_wait(scq->g, scq->handle, 60));
    }
    vgt_pair_close(&p);
}

/* Enough, all at once or one by one: at once.  No period said: the longest there is. */
static void test_count(void)
{
    struct vg_cq *cq;
    struct vgt_pair p;
    unsigned early = 0; /* a bit each, since now and then the machine is slow */

    open_db(&p, 1, VG_DB_EXT);
    cq = p.s[0].scq;
    for (unsigned i = 0; i < 12; i++) {
        bool one_by_one = i & 2;
        int64_t from = vg_now_ns();

        moderate(cq, 8, i & 1 ? 0 : 65535);
        vg_cq_arm(cq, false);
        write_and_poll(&p, 7);
        g_assert_cmpint(event_after(cq, from), >=, LONGEST);
        vg_cq_arm(cq, false);
        from = vg_now_ns();
        for (unsigned n = 0; n < 8; n += one_by_one ? 1 : 8) {
            write_and_poll(&p, one_by_one ? 1 : 8);
        }
        early |= (event_after(cq, from) < AT_ONCE) << one_by_one;
    }
    g_assert_cmphex(early, ==, 3);
    /* That hold is over: it tells nobody who waits for the next. */
    vg_cq_arm(cq, false);
    g_assert_false(vg_cqn_wait(cq->g, cq->handle, 100));
    vgt_pair_close(&p);
}

/* Whoever arms again and again, and may have polled before that, is not told earlier. */
static void test_armed_again(void)
{
    struct vg_cq *cq;
    struct vgt_pair p;
    uint32_t tail;
    int64_t from;

    open_db(&p, 1, VG_DB_POSTED);
    cq = p.s[0].scq;
    moderate(cq, 4, 65535);
    vg_cq_arm(cq, false);
    tail = *cq->prod_tail;
    from = vg_now_ns();
    write_to(&p, 1);
    while (__atomic_load_n(cq->prod_tail, __ATOMIC_ACQUIRE) == tail) {
        sched_yield();
    }
    for (unsigned i = 0; i < 8; i++) {
        vg_cq_arm(cq, false);
    }
    g_assert_cmpint(event_after(cq, from), >=, LONGEST);
    vgt_expect(cq, 1, PVRDMA_WC_SUCCESS);
    vgt_pair_close(&p);
}

/* Solicited ones are held like all; others begin nothing for who waits for those. */
static void test_solicited(void)
{
    struct vg_cq *cq;
    struct vgt_pair p;
    int64_t from;

    open_db(&p, 1, VG_DB_EXT);
    cq = p.s[1].rcq;
    moderate(cq, 0, 40 * MS);
    for (unsigned i = 0; i < 4; i++) {
        vgt_recv(&p.s[1], i, FAR, 64);
    }
    vg_cq_arm(cq, true);
    vgt_send(&p.s[0], 1, PVRDMA_WR_SEND, VGT_SIG, 0, 8, NULL, 0);
    vgt_expect(cq, 0, PVRDMA_WC_SUCCESS);
    g_assert_false(vg_cqn_wait(cq->g, cq->handle, 80));
    vgt_send(&p.s[0], 2, PVRDMA_WR_SEND, VGT_SIG, 0, 8, NULL, 0);
    vgt_expect(cq, 1, PVRDMA_WC_SUCCESS);
    g_assert_false(vg_cqn_wait(cq->g, cq->handle, 20));
    g_assert_cmpuint(*cq->arm, ==, PVRDMA_EXT_ARM_SOLICITED);
    from = vg_now_ns();
    vgt_send(&p.s[0], 3, PVRDMA_WR_SEND, VGT_SIG | PVRDMA_SEND_SOLICITED, 0, 8, NULL, 0);
    vgt_expect(cq, 2, PVRDMA_WC_SUCCESS);
    vgt_send(&p.s[0], 4, PVRDMA_WR_SEND, VGT_SIG, 0, 8, NULL, 0);
    vgt_expect(cq, 3, PVRDMA_WC_SUCCESS);
    g_assert_cmpint(event_after(cq, from), >=, 40000000);
    vgt_pair_close(&p);
}

/* Another moderation, or none: what is held comes now. */
static void test_changed(void)
{
    static const unsigned to[][2] = {{0, 0}, {1, 65535}, {1, 0}, {2, 65535}, {0, 1}};
    struct vg_cq *cq;
    struct vgt_pair p;
    unsigned early = 0, off_early = 0; /* a bit for each of those */

    open_db(&p, 1, VG_DB_EXT);
    cq = p.s[0].scq;
    for (unsigned i = 0; i < 4 * G_N_ELEMENTS(to); i++) {
        unsigned which = i % G_N_ELEMENTS(to);
        const unsigned *t = to[which];
        int64_t from = vg_now_ns();

        moderate(cq, 0, 65535);
        vg_cq_arm(cq, false);
        write_and_poll(&p, 1);
        moderate(cq, t[0], t[1]);
        early |= (event_after(cq, from) < AT_ONCE) << which;
        if (which < 3) { /* it is off */
            from = vg_now_ns();
            vg_cq_arm(cq, false);
            write_and_poll(&p, 1);
            off_early |= (event_after(cq, from) < AT_ONCE) << which;
        }
    }
    g_assert_cmphex(early, ==, 0x1f);
    g_assert_cmphex(off_early, ==, 0x7);
    g_assert_cmpint(vg_moderate(cq->g, 0, 1, 1), !=, 0);
    g_assert_cmpint(vg_moderate(cq->g, UINT32_MAX, 1, 1), !=, 0);
    g_assert_cmpint(vg_moderate(cq->g, cq->handle + 100, 1, 1), !=, 0);
    vgt_pair_close(&p);
}

/* A ring of another size: it comes now, once, and moderation stays. */
static void test_resized(void)
{
    bool early = false;
    struct vg_cq *cq;
    struct vgt_pair p;
    int64_t from;

    open_db(&p, 1, VG_DB_EXT);
    cq = p.s[0].scq;
    moderate(cq, 0, 65535);
    for (unsigned i = 0; i < 10; i++) {
        from = vg_now_ns();
        vg_cq_arm(cq, false);
        write_and_poll(&p, 1);
        g_assert_cmpint(vg_cq_resize(cq, 16), ==, 0);
        early = event_after(cq, from) < AT_ONCE || early;
    }
    g_assert_true(early);
    g_assert_false(vg_cqn_wait(cq->g, cq->handle, 80));
    from = vg_now_ns();
    vg_cq_arm(cq, false);
    write_and_poll(&p, 2);
    g_assert_cmpint(event_after(cq, from), >=, LONGEST);
    vgt_pair_close(&p);
}

/* The CQ and its QP are destroyed, and the one CQ that there is room for takes its place.
 */
static void replace_cq(struct vgt_side *s)
{
    uint32_t handle = s->scq->handle;

    vg_qp_free(s->qp);
    vg_cq_free(s->scq);
    s->scq = vg_cq_new(s->pd, 16);
    g_assert_cmpuint(s->scq->handle, ==, handle);
    vg_cq_arm(s->scq, false);
}

/*
 * Destroyed, reset or left while held: nothing comes of it, for a successor neither.
 * False: the hold was over before, the machine is slow.
 */
static bool try_gone(enum vg_db_mode db, unsigned how)
{
    struct vg_cq *others[MAX_CQ - 3]; /* handle 0 is none, and a side has two */
    struct vgt_pair p;
    struct vgt_side *s = &p.s[0];
    int64_t from;
    bool held;

    open_db(&p, 1, db);
    for (unsigned i = 0; how == 0 && i < G_N_ELEMENTS(others); i++) {
        others[i] = vg_cq_new(s->pd, 16);
    }
    from = vg_now_ns();
    moderate(s->scq, 0, 65535);
    vg_cq_arm(s->scq, false);
    write_and_poll(&p, 1);
    if (how == 0) {
        replace_cq(s);
    } else if (how == 1) {
        g_assert_cmpint(vg_reset(s->g), ==, 0);
    } else {
        vg_disconnect(s->g); /* nobody answers when that is over */
    }
    held = vg_now_ns() - from < LONGEST;
    if (how < 2) {
        bool told = vg_cqn_wait(s->g, s->scq->handle, 100);

        g_assert_false(held && told);
        if (held && s->scq->ext) {
            g_assert_cmpuint(*s->scq->arm, ==, PVRDMA_EXT_ARM_ANY);
        }
    } else {
        g_usleep(100000);
    }
    vg_daemon_check(vgt_daemon);
    if (how == 0) {
        for (unsigned i = 0; i < G_N_ELEMENTS(others); i++) {
            vg_cq_free(others[i]);
        }
        s->qp = vg_qp_new(s->pd, s->scq, s->rcq, NULL);
    } else {
        s->g->up = false;
    }
    vgt_pair_close(&p);
    return held;
}

static void test_gone(gconstpointer data)
{
    for (unsigned how = 0; how < 3; how++) {
        for (unsigned i = 0; !try_gone(GPOINTER_TO_UINT(data), how); i++) {
            g_assert_cmpuint(i, <, 50);
        }
    }
}

/* A paused VM hears nothing; when it runs again, what is due. */
static void test_paused(void)
{
    struct vg_cq *cq;
    struct vgt_pair p;

    open_db(&p, 1, VG_DB_EXT);
    cq = p.s[0].scq;
    moderate(cq, 0, 50 * MS);
    for (unsigned i = 0; i < 3; i++) {
        vg_cq_arm(cq, false);
        write_and_poll(&p, 1);
        vgt_vm(vgt_daemon, "pause", 0);
        if (*cq->arm == PVRDMA_EXT_ARM_NONE) { /* the machine is slow */
            vgt_vm(vgt_daemon, "resume", 0);
            expect_event(cq);
            continue;
        }
        g_assert_false(vg_cqn_wait(cq->g, cq->handle, 100));
        g_assert_cmpuint(*cq->arm, ==, PVRDMA_EXT_ARM_ANY);
        vgt_vm(vgt_daemon, "resume", 0);
        expect_event(cq);
        g_assert_cmpuint(*cq->arm, ==, PVRDMA_EXT_ARM_NONE);
    }
    vgt_pair_close(&p);
}

/* More at a time than one turn tells. */
static void test_many_held(void)
{
    enum { N = MAX_CQ - 3 };
    bool told[N] = {false};
    struct vg_cq *cq[N];
    struct vg_qp *qp[N];
    struct vgt_pair p;
    unsigned n = 0;
    int64_t end;

    open_db(&p, 1, VG_DB_EXT);
    for (unsigned i = 0; i < N; i++) {
        struct pvrdma_sge sge = vg_sge(p.s[0].mr, 0, 8);
        struct vg_wr wr =
            vg_wr_to(0, PVRDMA_WR_RDMA_WRITE, VGT_SIG, &sge, p.s[0].mr, FAR);

        cq[i] = vg_cq_new(p.s[0].pd, 16);
        qp[i] = vg_qp_new(p.s[0].pd, cq[i], cq[i], NULL);
        vg_qp_connect(qp[i], qp[i], NULL);
        moderate(cq[i], 0, 60 * MS + i % 3);
        vg_cq_arm(cq[i], false);
        g_assert_cmpuint(vg_post_send(qp[i], &wr, 1), ==, 1);
    }
    end = vg_now_ns() + VGT_WAIT_MS * 1000000ll;
    while (n < N && vg_now_ns() < end) {
        uint32_t handle;

        while (vg_cqn_poll(p.s[0].g, &handle)) {
            for (unsigned i = 0; i < N; i++) {
                if (cq[i]->handle == handle) {
                    g_assert_false(told[i]);
                    told[i] = true;
                    n++;
                }
            }
        }
        vg_irq_wait(p.s[0].g, PVRDMA_VEC_CQ, 10);
    }
    g_assert_cmpuint(n, ==, N);
    for (unsigned i = 0; i < N; i++) {
        vg_qp_free(qp[i]);
        vg_cq_free(cq[i]);
    }
    vgt_pair_close(&p);
}

/* No event is lost, and none too many, while all of that changes. */
static void test_moderate_race(gconstpointer data)
{
    const unsigned n = vgt_rounds(3000);
    unsigned peer = GPOINTER_TO_UINT(data);
    struct vgt_pair p;

    open_db(&p, peer, VG_DB_EXT);
    for (unsigned i = 0; i < n; i++) {
        struct vgt_side *at = &p.s[i & 1];
        struct vg_cq *cq = i & 1 ? at->rcq : at->scq;
        struct pvrdma_cqe c;

        if (i & 1) {
            vgt_recv(at, i, FAR, 64);
        }
        if (i % 5 == 0) {
            moderate(cq, i / 5 % 4, 1 + i / 20 % 3 * 100);
        }
        vg_cq_arm(cq, false);
        vgt_send(&p.s[0], i, i & 1 ? PVRDMA_WR_SEND : PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8,
                 i & 1 ? NULL : &p.s[1], FAR);
        for (unsigned spin = 0; spin < i % 50 * 20; spin++) {
            __asm__ volatile("" ::: "memory");
        }
        if (i % 3 == 0) {
            moderate(cq, i % 4, 1 + i % 7 * 50);
        } else if (i % 7 == 0) {
            g_assert_cmpint(vg_cq_resize(cq, i & 8 ? 16 : 64), ==, 0);
        }
        expect_event(cq);
        while (vg_cq_poll(cq, &c, 1) == 0) {
            sched_yield();
        }
        g_assert_cmpuint(c.wr_id, ==, i);
        if (i & 1) {
            vgt_expect(p.s[0].scq, i, PVRDMA_WC_SUCCESS);
        }
    }
    vgt_pair_close(&p);
}

int main(int argc, char **argv)
{
    struct vg_daemon_opts o = {.n_vms = 2,
                               .poll_us = -1,
                               .workers = 2,
                               .vm_keys = "max-cq=" G_STRINGIFY(MAX_CQ) "\n"};

    vgt_init(&argc, &argv, 100);
    vgt_daemon = vg_daemon_start(&o);
    g_test_add_func("/cqtime/clock", test_clock);
    g_test_add_data_func("/cqtime/stamps", GUINT_TO_POINTER(1), test_stamps);
    g_test_add_data_func("/cqtime/stamps-one-vm", GUINT_TO_POINTER(0), test_stamps);
    g_test_add_func("/cqtime/many", test_many);
    g_test_add_func("/cqtime/none", test_none);
    g_test_add_func("/cqtime/refused", test_refused);
    g_test_add_data_func("/cqtime/period", GUINT_TO_POINTER(VG_DB_EXT), test_period);
    g_test_add_data_func("/cqtime/period-stock", GUINT_TO_POINTER(VG_DB_SHARED),
                         test_period);
    g_test_add_data_func("/cqtime/period-posted", GUINT_TO_POINTER(VG_DB_POSTED),
                         test_period);
    g_test_add_func("/cqtime/count", test_count);
    g_test_add_func("/cqtime/armed-again", test_armed_again);
    g_test_add_func("/cqtime/solicited", test_solicited);
    g_test_add_func("/cqtime/changed", test_changed);
    g_test_add_func("/cqtime/resized", test_resized);
    g_test_add_data_func("/cqtime/gone", GUINT_TO_POINTER(VG_DB_EXT), test_gone);
    g_test_add_data_func("/cqtime/gone-stock", GUINT_TO_POINTER(VG_DB_SHARED), test_gone);
    g_test_add_func("/cqtime/paused", test_paused);
    g_test_add_func("/cqtime/many-held", test_many_held);
    g_test_add_data_func("/cqtime/race", GUINT_TO_POINTER(1), test_moderate_race);
    g_test_add_data_func("/cqtime/race-one-vm", GUINT_TO_POINTER(0), test_moderate_race);
    return vgt_run();
}
