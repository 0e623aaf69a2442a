/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * CQs that get another ring while completions come and others poll or arm them; see
 * verbs.h.
 */
#include <pthread.h>
#include <sched.h>

#include "verbs.h"

/* ---- resizing a CQ ---------------------------------------------------------------- */

/* Of the queue: more than the CQ's rings and what a resize puts aside ever hold. */
#define DEPTH 256

static struct {
    struct rig *rig;
    struct ibv_qp *qp; /* whose receives complete */
    pthread_mutex_t device;
    uint64_t next;
    unsigned late; /* completions that come when the CQ is about to move */
} rs = {.device = PTHREAD_MUTEX_INITIALIZER};

static void moving(bool begin)
{
    if (begin) {
        pthread_mutex_lock(&rs.device);
        for (unsigned i = 0; i < rs.late; i++) {
            device_complete(rs.rig, rs.qp, rs.next++);
        }
        return;
    }
    rs.rig->cq_addr = fake.cq.buf_addr;
    pthread_mutex_unlock(&rs.device);
}

static void resize_begin(struct rig *r)
{
    rs.rig = r;
    rs.next = 0;
    rs.late = 0;
    fake.moving = moving;
}

static void completes(unsigned n)
{
    while (n--) {
        device_complete(rs.rig, rs.qp, rs.next++);
    }
}

/* All up to now come, in order, @max at a time. */
static void polls(uint64_t *want, int max)
{
    struct ibv_wc wc[8];

    while (*want < rs.next) {
        int n = fake.ops->poll_cq(rs.rig->cq, max, wc);

        g_assert_cmpint(n, >, 0);
        for (int i = 0; i < n; i++) {
            g_assert_cmpuint(wc[i].wr_id, ==, (*want)++);
        }
    }
    g_assert_cmpint(fake.ops->poll_cq(rs.rig->cq, max, wc), ==, 0);
}

void test_resize(struct rig *r, gconstpointer data)
{
    static const int sizes[] = {16, 7, 64, 9};
    uint64_t want = 0;
    uint32_t *arm;

    if (!r->ext) {
        g_assert_cmpint(fake.ops->resize_cq(r->cq, 16), ==, EOPNOTSUPP);
        return;
    }
    resize_begin(r);
    rs.qp = make_qp(r, DEPTH);
    for (unsigned i = 0; i < G_N_ELEMENTS(sizes); i++) {
        completes(4);
        rs.late = i;
        arm = cq_words(r).arm;
        *arm = PVRDMA_EXT_ARM_NONE;
        fake.ops->req_notify_cq(r->cq, i & 1);
        g_assert_cmpint(fake.ops->resize_cq(r->cq, sizes[i]), ==, 0);
        g_assert_cmpint(r->cq->cqe, ==, pv_roundup_pow2(sizes[i]));
        arm = cq_words(r).arm;
        g_assert_cmpuint(*arm, ==, i & 1 ? PVRDMA_EXT_ARM_SOLICITED : PVRDMA_EXT_ARM_ANY);
        fake.ops->req_notify_cq(r->cq, 0);
        g_assert_cmpuint(*arm, ==, PVRDMA_EXT_ARM_ANY);
        completes(3);
        polls(&want, 1 + i);
    }
    /* Twice before anything is polled. */
    rs.late = 1;
    completes(2);
    g_assert_cmpint(fake.ops->resize_cq(r->cq, 8), ==, 0);
    completes(2);
    g_assert_cmpint(fake.ops->resize_cq(r->cq, 8), ==, 0);
    completes(2);
    /* What is not polled must fit; a failure changes nothing. */
    g_assert_cmpint(fake.ops->resize_cq(r->cq, 4), ==, EINVAL);
    g_assert_cmpint(fake.ops->resize_cq(r->cq, 0), ==, EINVAL);
    g_assert_cmpint(fake.ops->resize_cq(r->cq, INT_MAX), ==, EINVAL);
    fake.fail = ENOMEM;
    g_assert_cmpint(fake.ops->resize_cq(r->cq, 32), ==, ENOMEM);
    g_assert_cmpint(r->cq->cqe, ==, 8);
    polls(&want, 8);
    fake.moving = NULL;
    fake.ops->destroy_qp(rs.qp);
}

/* What was put aside of a QP that is destroyed is not another's with its handle. */
void test_resize_sweep(struct rig *r, gconstpointer data)
{
    struct ibv_qp *one, *two, *again;
    struct ibv_wc wc[8];

    if (!r->ext) {
        return;
    }
    resize_begin(r);
    one = make_qp(r, 4);
    two = make_qp(r, 4);
    for (unsigned i = 0; i < 6; i++) {
        device_complete(r, i % 2 ? two : one, i);
    }
    g_assert_cmpint(fake.ops->resize_cq(r->cq, 16), ==, 0);
    g_assert_cmpint(fake.ops->destroy_qp(one), ==, 0);
    fake.next_handle = 1;
    again = make_qp(r, 4);
    device_complete(r, again, 50);
    g_assert_cmpint(fake.ops->poll_cq(r->cq, 8, wc), ==, 4);
    for (unsigned i = 0; i < 3; i++) {
        g_assert_cmpuint(wc[i].wr_id, ==, 1 + 2 * i);
        g_assert_cmpuint(wc[i].qp_num, ==, two->qp_num);
    }
    g_assert_cmpuint(wc[3].wr_id, ==, 50);
    g_assert_cmpuint(wc[3].qp_num, ==, again->qp_num);
    fake.moving = NULL;
    fake.ops->destroy_qp(again);
    fake.ops->destroy_qp(two);
}

/* Extended polls: not in the middle of one, and the old ring's come first. */
void test_resize_ex(struct rig *r, gconstpointer data)
{
    struct ibv_cq_init_attr_ex attr = {.cqe = 8, .wc_flags = IBV_WC_STANDARD_FLAGS};
    struct ibv_poll_cq_attr none = {0};
    struct rig plain = *r;
    struct ibv_cq_ex *cq;
    uint64_t want = 0;

    if (!r->ext) {
        return;
    }
    cq = fake.ops->create_cq_ex(r->ctx, &attr);
    r->cq = ibv_cq_ex_to_cq(cq);
    r->cq_addr = fake.cq.buf_addr;
    resize_begin(r);
    rs.qp = make_qp(r, DEPTH);
    completes(3);
    g_assert_cmpint(ibv_start_poll(cq, &none), ==, 0);
    g_assert_cmpint(fake.ops->resize_cq(r->cq, 16), ==, EBUSY);
    g_assert_cmpint(fake.ops->req_notify_cq(r->cq, 0), ==, 0);
    g_assert_cmpuint(cq->wr_id, ==, want++);
    ibv_end_poll(cq);
    g_assert_cmpint(fake.ops->resize_cq(r->cq, 16), ==, 0);
    completes(3);
    g_assert_cmpint(ibv_start_poll(cq, &none), ==, 0);
    do {
        g_assert_cmpuint(cq->wr_id, ==, want++);
        g_assert_cmpuint(ibv_wc_read_qp_num(cq), ==, rs.qp->qp_num);
    } while (ibv_next_poll(cq) == 0);
    ibv_end_poll(cq);
    g_assert_cmpuint(want, ==, 6);
    fake.moving = NULL;
    fake.ops->destroy_qp(rs.qp);
    fake.ops->destroy_cq(r->cq);
    *r = plain;
}

static gpointer arm_elsewhere(gpointer cq)
{
    g_assert_cmpint(fake.ops->req_notify_cq(cq, 0), ==, 0);
    return NULL;
}

/*
 * A CQ can be armed while another thread polls it: two that poll one CQ each and arm the
 * other's would wait for each other for ever.
 */
void test_arm_in_poll(struct rig *r, gconstpointer data)
{
    struct ibv_cq_init_attr_ex attr = {.cqe = 8, .wc_flags = IBV_WC_STANDARD_FLAGS};
    struct ibv_poll_cq_attr none = {0};
    struct rig plain = *r;
    struct ibv_cq_ex *cq;

    if (!r->ext) {
        return;
    }
    cq = fake.ops->create_cq_ex(r->ctx, &attr);
    r->cq = ibv_cq_ex_to_cq(cq);
    r->cq_addr = fake.cq.buf_addr;
    rs.rig = r;
    rs.next = 0;
    rs.qp = make_qp(r, DEPTH);
    completes(3);
    g_assert_cmpint(ibv_start_poll(cq, &none), ==, 0);
    g_thread_join(g_thread_new("arm", arm_elsewhere, r->cq));
    ibv_end_poll(cq);
    fake.ops->destroy_qp(rs.qp);
    fake.ops->destroy_cq(r->cq);
    *r = plain;
}

#define RS_COUNT 6000u

static unsigned rs_polled;

static gpointer rs_poll(gpointer seen)
{
    struct ibv_wc wc[3];

    while (__atomic_load_n(&rs_polled, __ATOMIC_RELAXED) < RS_COUNT) {
        int n = fake.ops->poll_cq(rs.rig->cq, 3, wc);

        g_assert_cmpint(n, >=, 0);
        fake.ops->req_notify_cq(rs.rig->cq, 0);
        for (int i = 0; i < n; i++) {
            g_assert_cmpint(((uint8_t *)seen)[wc[i].wr_id]++, ==, 0);
        }
        __atomic_add_fetch(&rs_polled, n, __ATOMIC_RELAXED);
        if (!n) {
            sched_yield();
        }
    }
    return NULL;
}

/* Is there room for one more?  With rs.device. */
static bool rs_room(void)
{
    struct words w = cq_words(rs.rig);
    uint32_t n = rs.rig->cq->cqe;

    return ((*w.rx_prod - __atomic_load_n(w.rx_cons, __ATOMIC_ACQUIRE)) & (2 * n - 1)) <
           n;
}

static gpointer rs_device(gpointer data)
{
    while (rs.next < RS_COUNT) {
        pthread_mutex_lock(&rs.device);
        if (rs_room()) {
            device_complete(rs.rig, rs.qp, rs.next++);
        }
        pthread_mutex_unlock(&rs.device);
        sched_yield();
    }
    return NULL;
}

/* Two poll, one resizes, the device goes on: each completion comes once. */
void test_resize_threads(struct rig *r, gconstpointer data)
{
    g_autofree uint8_t *seen = g_malloc0(RS_COUNT);
    GThread *thread[3];
    unsigned resizes = 0;

    if (!r->ext) {
        return;
    }
    resize_begin(r);
    rs.qp = make_qp(r, DEPTH);
    rs_polled = 0;
    thread[0] = g_thread_new("poll", rs_poll, seen);
    thread[1] = g_thread_new("poll", rs_poll, seen);
    thread[2] = g_thread_new("device", rs_device, NULL);
    while (__atomic_load_n(&rs_polled, __ATOMIC_RELAXED) < RS_COUNT) {
        int err = fake.ops->resize_cq(r->cq, 8 << resizes % 4);

        g_assert_true(err == 0 || err == EINVAL);
        resizes += !err;
        sched_yield();
    }
    for (unsigned i = 0; i < 3; i++) {
        g_thread_join(thread[i]);
    }
    g_assert_cmpuint(resizes, >, 10);
    g_assert_cmpuint(rs_polled, ==, RS_COUNT);
    fake.moving = NULL;
    fake.ops->destroy_qp(rs.qp);
}
