/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * events.c against a reader that is written as the guest driver's arithmetic
 * is described: n = (pages - 1) * 4096 / size, and index operations with that n
 * though it is no power of two.
 */
#include "testdev.h"

static struct testdev *td;

static void setup(void)
{
    td = testdev_new("events");
    testdev_up(td);
}

/* As the VM's worker does it, which has the token then. */
static uint32_t retry(void)
{
    uint32_t vectors;

    vm_token_take(&td->vm);
    vectors = event_cq_retry(&td->vm.guest);
    vm_token_release(&td->vm);
    return vectors;
}

/* The driver's side of a ring. */
struct reader {
    const uint64_t *page;
    uint32_t n, size;
};

static struct pvrdma_ring *ring_words(const struct reader *r)
{
    return &((struct pvrdma_ring_state *)testdev_ptr(td, r->page[0]))->rx;
}

/* Next element, or false when there is none. */
static bool reader_next(const struct reader *r, void *elem)
{
    struct pvrdma_ring *ring = ring_words(r);
    uint32_t tail = __atomic_load_n(&ring->prod_tail, __ATOMIC_ACQUIRE);
    uint32_t head = ring->cons_head, slot, offset;

    g_assert_cmpuint(tail & ~(2 * r->n - 1), ==, 0);
    g_assert_cmpuint(head & ~(2 * r->n - 1), ==, 0);
    if (tail == head) {
        return false;
    }
    slot = head & (r->n - 1);
    offset = 4096 + slot * r->size;
    memcpy(elem, (uint8_t *)testdev_ptr(td, r->page[offset / 4096]) + offset % 4096,
           r->size);
    ring->cons_head = (head + 1) & (2 * r->n - 1);
    return true;
}

static struct reader async_reader(void)
{
    return (struct reader){td->async_ring, 3 * 4096 / 8, 8};
}

static struct reader cqn_reader(void)
{
    return (struct reader){td->cqn_ring, 3 * 4096 / 4, 4};
}

/* Every element arrives once and in order, over many laps. */
static void test_async_order(void)
{
    struct reader r;
    struct pvrdma_eqe eqe;
    uint32_t pushed = 0, seen = 0;
    GRand *rand = g_rand_new_with_seed(1);

    setup();
    r = async_reader();
    g_assert_cmpuint(r.n, ==, 1536);
    while (seen < 20000) {
        uint32_t burst = g_rand_int_range(rand, 0, 400);

        for (uint32_t i = 0; i < burst && pushed - seen < 512; i++) {
            event_async(&td->vm.guest, PVRDMA_EVENT_QP_FATAL, pushed++);
        }
        burst = g_rand_int_range(rand, 0, 600);
        while (burst-- && reader_next(&r, &eqe)) {
            g_assert_cmpuint(eqe.type, ==, PVRDMA_EVENT_QP_FATAL);
            g_assert_cmpuint(eqe.info, ==, seen);
            seen++;
        }
    }
    g_assert_cmpuint(td->vm.guest.events.async.dropped, ==, 0);
    g_assert_cmpuint(testdev_irqs(td, PVRDMA_VEC_ASYNC), >, 0);
    g_rand_free(rand);
    testdev_free(td);
}

/* Of the port's 512 fit, the 513th is dropped, and none is overwritten. */
static void test_async_overrun(void)
{
    struct reader r;
    struct pvrdma_eqe eqe;

    setup();
    r = async_reader();
    for (uint32_t i = 0; i < 600; i++) {
        event_async(&td->vm.guest, PVRDMA_EVENT_PORT_ERR, i);
    }
    g_assert_cmpuint(td->vm.guest.events.async.pushed, ==, 512);
    g_assert_cmpuint(td->vm.guest.events.async.dropped, ==, 88);
    g_assert_cmpuint(testdev_irqs(td, PVRDMA_VEC_ASYNC), ==, 512);
    for (uint32_t i = 0; i < 512; i++) {
        g_assert_true(reader_next(&r, &eqe));
        g_assert_cmpuint(eqe.info, ==, i);
    }
    g_assert_false(reader_next(&r, &eqe));
    event_async(&td->vm.guest, PVRDMA_EVENT_PORT_ERR, 777);
    g_assert_true(reader_next(&r, &eqe));
    g_assert_cmpuint(eqe.info, ==, 777);
    testdev_free(td);
}

/* Fill the ring with what does not matter. */
static void fill_async(void)
{
    for (uint32_t i = 0; i < 512; i++) {
        event_async(&td->vm.guest, PVRDMA_EVENT_PORT_ERR, 0);
    }
}

static void empty_async(const struct reader *r)
{
    struct pvrdma_eqe eqe;

    for (uint32_t i = 0; i < 512; i++) {
        g_assert_true(reader_next(r, &eqe));
        g_assert_cmpuint(eqe.type, ==, PVRDMA_EVENT_PORT_ERR);
    }
}

/* The next event, which the VM's worker or this thread brings. */
static struct pvrdma_eqe next_async(const struct reader *r)
{
    struct pvrdma_eqe eqe = {.type = UINT32_MAX};

    for (unsigned tries = 0; tries < 20000 && !reader_next(r, &eqe); tries++) {
        event_async_retry(&td->vm.guest);
        g_usleep(100);
    }
    return eqe;
}

static void expect_async(const struct reader *r, uint32_t type, uint32_t info)
{
    struct pvrdma_eqe eqe = next_async(r);

    g_assert_cmpuint(eqe.type, ==, type);
    g_assert_cmpuint(eqe.info, ==, info);
}

/* The VM's worker may be at it. */
static uint64_t async_dropped(void)
{
    struct event_ring *ring = &td->vm.guest.events.async;
    uint64_t n;

    pthread_mutex_lock(&ring->lock);
    n = ring->dropped;
    pthread_mutex_unlock(&ring->lock);
    return n;
}

/* What a full ring has no room for comes later, once, a CQ's first. */
static void test_async_pending(void)
{
    struct guest *g;
    struct reader r;
    uint32_t max_qp, max_cq, max_srq;

    setup();
    g = &td->vm.guest;
    r = async_reader();
    max_qp = td->vm.cfg->max_qp;
    max_cq = td->vm.cfg->max_cq;
    max_srq = td->vm.cfg->max_srq;
    fill_async();
    for (unsigned again = 0; again < 2; again++) {
        for (uint32_t qp = 1; qp <= 1200; qp++) {
            event_async(g, PVRDMA_EVENT_QP_FATAL, qp);
        }
        event_async(g, PVRDMA_EVENT_QP_ACCESS_ERR, max_qp - 1);
        event_async(g, PVRDMA_EVENT_QP_LAST_WQE_REACHED, max_qp - 1);
        event_async(g, PVRDMA_EVENT_COMM_EST, max_qp - 1);
        event_async(g, PVRDMA_EVENT_SRQ_ERR, 9);
        event_async(g, PVRDMA_EVENT_SRQ_LIMIT_REACHED, 9);
        event_async(g, PVRDMA_EVENT_SRQ_LIMIT_REACHED, max_srq - 1);
        event_async(g, PVRDMA_EVENT_CQ_ERR, max_cq - 1);
        event_async(g, PVRDMA_EVENT_CQ_ERR, 5);
    }
    g_assert_cmpuint(async_dropped(), ==, 0);
    g_assert_true(event_deferred(&g->events));
    g_assert_cmpuint(testdev_irqs(td, PVRDMA_VEC_ASYNC), ==, 512);

    /* Who is raised when there is room again waits behind them. */
    empty_async(&r);
    event_async(g, PVRDMA_EVENT_QP_FATAL, 2000);
    expect_async(&r, PVRDMA_EVENT_CQ_ERR, 5);
    expect_async(&r, PVRDMA_EVENT_CQ_ERR, max_cq - 1);
    for (uint32_t qp = 1; qp <= 1200; qp++) {
        expect_async(&r, PVRDMA_EVENT_QP_FATAL, qp);
    }
    expect_async(&r, PVRDMA_EVENT_QP_FATAL, 2000);
    expect_async(&r, PVRDMA_EVENT_COMM_EST, max_qp - 1);
    expect_async(&r, PVRDMA_EVENT_QP_ACCESS_ERR, max_qp - 1);
    expect_async(&r, PVRDMA_EVENT_QP_LAST_WQE_REACHED, max_qp - 1);
    expect_async(&r, PVRDMA_EVENT_SRQ_LIMIT_REACHED, 9);
    expect_async(&r, PVRDMA_EVENT_SRQ_ERR, 9);
    expect_async(&r, PVRDMA_EVENT_SRQ_LIMIT_REACHED, max_srq - 1);
    g_assert_false(event_deferred(&g->events));
    event_async(g, PVRDMA_EVENT_QP_FATAL, 7);
    expect_async(&r, PVRDMA_EVENT_QP_FATAL, 7);
    g_assert_cmpuint(async_dropped(), ==, 0);

    /* Nothing is known of an object that there cannot be. */
    fill_async();
    event_async(g, PVRDMA_EVENT_QP_FATAL, max_qp);
    event_async(g, PVRDMA_EVENT_QP_FATAL, UINT32_MAX);
    event_async(g, PVRDMA_EVENT_CQ_ERR, max_cq);
    event_async(g, PVRDMA_EVENT_SRQ_LIMIT_REACHED, max_srq);
    g_assert_cmpuint(async_dropped(), ==, 4);
    g_assert_false(event_deferred(&g->events));
    testdev_free(td);
}

/* Nor does anything come of an object that is gone, or after a reset. */
static void test_async_forget(void)
{
    struct guest *g;
    struct reader r;

    setup();
    g = &td->vm.guest;
    r = async_reader();
    fill_async();
    event_async(g, PVRDMA_EVENT_CQ_ERR, 3);
    event_async(g, PVRDMA_EVENT_QP_FATAL, 3);
    event_async(g, PVRDMA_EVENT_SQ_DRAINED, 3);
    event_async(g, PVRDMA_EVENT_QP_FATAL, 4);
    event_async(g, PVRDMA_EVENT_SRQ_LIMIT_REACHED, 3);
    event_async(g, PVRDMA_EVENT_SRQ_LIMIT_REACHED, 4);
    event_cq_forget(g, 3, 0);
    event_qp_forget(g, 3);
    event_srq_forget(g, 3);
    event_qp_forget(g, 5);
    empty_async(&r);
    expect_async(&r, PVRDMA_EVENT_QP_FATAL, 4);
    expect_async(&r, PVRDMA_EVENT_SRQ_LIMIT_REACHED, 4);
    g_assert_false(event_deferred(&g->events));

    fill_async();
    event_async(g, PVRDMA_EVENT_QP_FATAL, 4);
    g_assert_true(event_deferred(&g->events));
    testdev_write(td, PVRDMA_REG_CTL, PVRDMA_CTL_RESET);
    g_assert_false(event_deferred(&g->events));
    g_assert_false(event_async_retry(g));
    testdev_free(td);
}

static void notify(uint32_t handle)
{
    event_cq_notify(&td->vm.guest, handle, 0);
}

static void test_cqn_order(void)
{
    struct reader r;
    struct pvrdma_cqne cqne;
    uint32_t pushed = 0, seen = 0;

    setup();
    r = cqn_reader();
    g_assert_cmpuint(r.n, ==, 3072);
    while (seen < 30000) {
        for (unsigned i = 0; i < 700 && pushed - seen < 1024; i++) {
            notify(pushed++ % 16000);
        }
        for (unsigned i = 0; i < 650 && reader_next(&r, &cqne); i++) {
            g_assert_cmpuint(cqne.info, ==, seen % 16000);
            seen++;
        }
    }
    g_assert_cmphex(retry(), ==, 0);
    testdev_free(td);
}

/* A full notify ring loses nothing: the CQ's bit waits. */
static void test_cqn_deferred(void)
{
    struct reader r;
    struct pvrdma_cqne cqne;
    g_autofree uint8_t *seen = g_malloc0(16384);
    uint32_t n = 0;

    setup();
    r = cqn_reader();
    for (uint32_t i = 0; i < 1500; i++) {
        notify(100 + i);
        notify(100 + i / 2); /* again: one more is enough */
    }
    g_assert_cmpuint(td->vm.guest.events.cqn[0].ring.pushed, >=, 1024);
    g_assert_true(atomic_load(&td->vm.guest.events.deferred_any) ||
                  td->vm.guest.events.cqn[0].ring.pushed > 1024);
    /* The worker may retry as well; between us everything comes. */
    for (unsigned tries = 0; tries < 2000 && n < 1500; tries++) {
        while (reader_next(&r, &cqne)) {
            g_assert_cmpuint(cqne.info, >=, 100);
            g_assert_cmpuint(cqne.info, <, 1600);
            n += !seen[cqne.info];
            seen[cqne.info] = 1;
        }
        retry();
        g_usleep(100);
    }
    g_assert_cmpuint(n, ==, 1500);
    g_assert_cmpuint(td->vm.guest.events.cqn[0].ring.dropped, ==, 0);
    g_assert_false(atomic_load(&td->vm.guest.events.deferred_any));
    testdev_free(td);
}

/* A CQ that is gone is not announced any more. */
static void test_cqn_forget(void)
{
    struct reader r;
    struct pvrdma_cqne cqne;

    setup();
    r = cqn_reader();
    for (uint32_t i = 0; i < 1024; i++) {
        notify(1);
    }
    notify(50);
    notify(51);
    event_cq_forget(&td->vm.guest, 50, 0);
    for (uint32_t i = 0; i < 1024; i++) {
        g_assert_true(reader_next(&r, &cqne));
        g_assert_cmpuint(cqne.info, ==, 1);
    }
    for (unsigned tries = 0; tries < 2000; tries++) {
        retry();
        if (reader_next(&r, &cqne)) {
            break;
        }
        g_usleep(100);
    }
    g_assert_cmpuint(cqne.info, ==, 51);
    g_assert_cmphex(retry(), ==, 0);
    g_assert_false(reader_next(&r, &cqne));
    /* An impossible handle is nothing at all. */
    notify(UINT32_MAX);
    notify(td->vm.cfg->max_cq);
    g_assert_false(reader_next(&r, &cqne));
    testdev_free(td);
}

/*
 * CVE-2018-20216 (endless walk over a ring whose index the guest scribbled on):
 * an impossible cons_head costs events, not the daemon's time or memory.
 */
static void test_cve_2018_20216(void)
{
    static const uint32_t bad[] = {
        1024, 1536, 3072, 0x80000000, UINT32_MAX, 5 /* ahead of us */,
    };
    struct reader ra, rc;

    setup();
    ra = async_reader();
    rc = cqn_reader();
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++) {
        uint64_t dropped = td->vm.guest.events.async.dropped;

        ring_words(&ra)->cons_head = bad[i];
        event_async(&td->vm.guest, PVRDMA_EVENT_QP_FATAL, 1);
        g_assert_cmpuint(td->vm.guest.events.async.dropped, ==, dropped + 1);
    }
    ring_words(&rc)->cons_head = 2048;
    notify(1);
    g_assert_cmpuint(td->vm.guest.events.cqn[0].ring.dropped, ==, 1);
    g_assert_false(atomic_load(&td->vm.guest.events.deferred_any));
    g_assert_cmpuint(testdev_irqs(td, PVRDMA_VEC_ASYNC), ==, 0);

    /* prod_tail is ours: the guest's word is not believed, nor read. */
    ring_words(&ra)->cons_head = 0;
    ring_words(&ra)->prod_tail = 0x12345678;
    event_async(&td->vm.guest, PVRDMA_EVENT_QP_FATAL, 1);
    g_assert_cmpuint(ring_words(&ra)->prod_tail, ==, 1);
    testdev_free(td);
}

/* Other page counts: what the expressions really use. */
static void test_sizes(void)
{
    static const struct {
        uint32_t npages, slots;
    } cases[] = {{2, 512}, {3, 1024}, {4, 512}, {5, 2048}, {8, 512}, {64, 512}};

    td = testdev_new("events");
    device_set_bus_master(td->vm.dev, true);
    for (unsigned i = 0; i < G_N_ELEMENTS(cases); i++) {
        uint32_t n = (cases[i].npages - 1) * 512, cycle = 0, idx = 0;
        struct pvrdma_dsr *dsr;

        testdev_fill_dsr(td);
        dsr = testdev_ptr(td, td->dsr);
        dsr->async_ring.num_pages = cases[i].npages;
        dsr->async_ring.pdir_dma =
            testdev_new_pdir(td, cases[i].npages, &td->async_ring[0]);
        g_assert_cmpuint(testdev_set_dsr(td), ==, 0);
        testdev_write(td, PVRDMA_REG_CTL, PVRDMA_CTL_ACTIVATE);

        do { /* count the cycle as the driver would walk it */
            idx = (idx + 1) & (2 * n - 1);
            cycle++;
        } while (idx);
        g_assert_cmpuint(cycle, ==, 2 * cases[i].slots);
        for (uint32_t k = 0; k < cases[i].slots + 10; k++) {
            event_async(&td->vm.guest, PVRDMA_EVENT_QP_FATAL, k);
        }
        g_assert_cmpuint(td->vm.guest.events.async.prod, ==, cases[i].slots);
        testdev_write(td, PVRDMA_REG_CTL, PVRDMA_CTL_RESET);
    }
    testdev_free(td);
}

/* Before ACTIVATE and after RESET no guest memory is touched. */
static void test_inactive(void)
{
    struct reader r;

    td = testdev_new("events");
    device_set_bus_master(td->vm.dev, true);
    event_async(&td->vm.guest, PVRDMA_EVENT_QP_FATAL, 1);
    notify(1);
    testdev_fill_dsr(td);
    g_assert_cmpuint(testdev_set_dsr(td), ==, 0);
    r = async_reader();
    event_async(&td->vm.guest, PVRDMA_EVENT_QP_FATAL, 1);
    g_assert_cmpuint(ring_words(&r)->prod_tail, ==, 0);
    testdev_write(td, PVRDMA_REG_CTL, PVRDMA_CTL_ACTIVATE);
    event_async(&td->vm.guest, PVRDMA_EVENT_QP_FATAL, 1);
    g_assert_cmpuint(ring_words(&r)->prod_tail, ==, 1);
    testdev_write(td, PVRDMA_REG_CTL, PVRDMA_CTL_RESET);
    event_async(&td->vm.guest, PVRDMA_EVENT_QP_FATAL, 1);
    notify(1);
    g_assert_cmpuint(ring_words(&r)->prod_tail, ==, 1);
    testdev_free(td);
}

/* Bus mastering off: nothing is written; all that was raised comes afterwards. */
static void test_held(void)
{
    struct reader r;
    struct pvrdma_cqne cqne = {0};
    struct pvrdma_eqe eqe;
    struct reader ra;

    setup();
    r = cqn_reader();
    ra = async_reader();
    device_set_bus_master(td->vm.dev, false);
    event_async(&td->vm.guest, PVRDMA_EVENT_QP_FATAL, 1);
    notify(9);
    g_assert_false(reader_next(&r, &cqne));
    g_assert_false(event_async_retry(&td->vm.guest));
    g_assert_false(reader_next(&ra, &eqe));
    device_set_bus_master(td->vm.dev, true);
    device_go_on(td->vm.dev);
    for (unsigned tries = 0; tries < 2000; tries++) {
        retry();
        if (reader_next(&r, &cqne)) {
            break;
        }
        g_usleep(100);
    }
    g_assert_cmpuint(cqne.info, ==, 9);
    expect_async(&ra, PVRDMA_EVENT_QP_FATAL, 1);

    /* A pause likewise. */
    datapath_pause(&td->vm);
    event_async(&td->vm.guest, PVRDMA_EVENT_QP_FATAL, 2);
    g_assert_false(reader_next(&ra, &eqe));
    datapath_resume(&td->vm);
    expect_async(&ra, PVRDMA_EVENT_QP_FATAL, 2);
    testdev_free(td);
}

/* A ring of a completion vector, and what it looked like. */
struct vector {
    uint64_t page[4];
    uint8_t before[4][4096];
};

static struct reader vector_reader(const struct vector *v)
{
    return (struct reader){v->page, 3 * 4096 / 4, 4};
}

enum { VECTORS = 4 };

static void look(struct vector *v)
{
    for (unsigned i = 0; i < VECTORS; i++) {
        for (unsigned k = 0; k < 4; k++) {
            memcpy(v[i].before[k], testdev_ptr(td, v[i].page[k]), 4096);
        }
    }
}

static void assert_untouched(const struct vector *v)
{
    for (unsigned i = 0; i < VECTORS; i++) {
        for (unsigned k = 0; k < 4; k++) {
            g_assert_cmpmem(testdev_ptr(td, v[i].page[k]), 4096, v[i].before[k], 4096);
        }
    }
}

/* The three reasons to leave a running guest's rings alone. */
static void hold_by_pause(bool on)
{
    if (on) {
        datapath_pause(&td->vm);
    } else {
        datapath_resume(&td->vm);
    }
}

static void hold_by_bus_master(bool on)
{
    device_set_bus_master(td->vm.dev, !on);
    if (!on) {
        device_go_on(td->vm.dev);
    }
}

/* Before what bus mastering does besides: it pauses, too. */
static void hold_alone(bool on)
{
    event_set_active(&td->vm.guest.events, true, on);
}

static void setup_vectors(struct vector *v)
{
    setup();
    memcpy(v[0].page, td->cqn_ring, sizeof(v[0].page));
    for (unsigned i = 1; i < VECTORS; i++) {
        union verbs_req req = {.vector = {.vector = i, .npages = 4}};

        req.vector.pdir_dma = testdev_new_pdir(td, 4, v[i].page);
        for (unsigned k = 1; k < 4; k++) {
            v[i].page[k] = v[i].page[0] + k * 4096;
        }
        g_assert_cmpint(device_add_vector(&td->vm, &req, NULL), ==, 0);
    }
}

/* No vector's ring is written to meanwhile; then each notification comes once. */
static void test_held_vectors(gconstpointer data)
{
    void (*hold)(bool) = (void (*)(bool))data;
    struct guest_events *ev;
    struct vector v[VECTORS];
    struct pvrdma_cqne cqne;

    setup_vectors(v);
    ev = &td->vm.guest.events;
    for (unsigned round = 0; round < 10; round++) {
        look(v);
        hold(true);
        for (unsigned i = 0; i < VECTORS; i++) {
            event_cq_notify(&td->vm.guest, 10 + i, i);
            event_cq_notify(&td->vm.guest, 10 + i, i);
        }
        g_assert_cmphex(retry(), ==, 0);
        assert_untouched(v);
        hold(false);
        for (unsigned tries = 0; atomic_load(&ev->deferred_any); tries++) {
            g_assert_cmpuint(tries, <, 20000);
            retry();
            g_usleep(100);
        }
        for (unsigned i = 0; i < VECTORS; i++) {
            struct reader r = vector_reader(&v[i]);

            g_assert_true(reader_next(&r, &cqne));
            g_assert_cmpuint(cqne.info, ==, 10 + i);
            g_assert_false(reader_next(&r, &cqne));
        }
    }
    testdev_free(td);
}

enum { AT_ONCE = 64 }; /* RETRY_MAX */

/* Notifications of @vector, @n from CQ 1 on, that have to wait. */
static void defer(uint32_t vector, uint32_t n)
{
    hold_alone(true);
    for (uint32_t i = 1; i <= n; i++) {
        event_cq_notify(&td->vm.guest, i, vector);
    }
    hold_alone(false);
}

static uint64_t pushed(uint32_t first, uint32_t last)
{
    uint64_t n = 0;

    for (uint32_t i = first; i <= last; i++) {
        n += td->vm.guest.events.cqn[i].ring.pushed;
    }
    return n;
}

/*
 * So many are tried again at once of all vectors together, and one that always has some
 * keeps none of the others from its turn.
 */
static void test_retry_budget(void)
{
    const uint32_t each = 100;
    struct vector v[VECTORS];

    setup_vectors(v);
    vm_token_take(&td->vm); /* nobody but us retries */
    for (uint32_t i = 0; i < VECTORS; i++) {
        defer(i, each);
    }
    for (uint64_t left = VECTORS * each; left > 0; left -= MIN(left, AT_ONCE)) {
        uint64_t before = pushed(0, VECTORS - 1);

        g_assert_cmphex(event_cq_retry(&td->vm.guest), !=, 0);
        g_assert_cmpuint(pushed(0, VECTORS - 1) - before, ==, MIN(left, AT_ONCE));
    }
    g_assert_cmphex(event_cq_retry(&td->vm.guest), ==, 0);
    g_assert_cmphex(atomic_load(&td->vm.guest.events.deferred_any), ==, 0);

    for (uint32_t busy = 0; busy < VECTORS; busy++) {
        uint64_t before[VECTORS];

        for (uint32_t i = 0; i < VECTORS; i++) {
            before[i] = pushed(i, i);
            defer(i, i == busy ? each : AT_ONCE);
        }
        for (uint32_t turn = 0; turn < VECTORS; turn++) {
            defer(busy, each); /* it is never done */
            event_cq_retry(&td->vm.guest);
        }
        for (uint32_t i = 0; i < VECTORS; i++) {
            g_assert_cmpuint(pushed(i, i) - before[i], ==, AT_ONCE);
        }
        while (event_cq_retry(&td->vm.guest)) {
        }
    }
    vm_token_release(&td->vm);
    testdev_free(td);
}

/* The rings' pages leave the DMA map. */
static void test_unmapped(void)
{
    setup();
    g_assert_cmpint(guest_mem_unmap(&td->vm.guest.mem, 0, 0, true), ==, 0);
    event_async(&td->vm.guest, PVRDMA_EVENT_QP_FATAL, 1);
    notify(1);
    g_assert_cmpuint(td->vm.guest.events.async.dropped, ==, 1);
    g_assert_cmpuint(td->vm.guest.events.cqn[0].ring.dropped, ==, 1);
    testdev_free(td);
}

int main(int argc, char **argv)
{
    testdev_init(&argc, &argv);
    g_test_add_func("/device/events/async-order", test_async_order);
    g_test_add_func("/device/events/async-overrun", test_async_overrun);
    g_test_add_func("/device/events/async-pending", test_async_pending);
    g_test_add_func("/device/events/async-forget", test_async_forget);
    g_test_add_func("/device/events/cqn-order", test_cqn_order);
    g_test_add_func("/device/events/cqn-deferred", test_cqn_deferred);
    g_test_add_func("/device/events/cqn-forget", test_cqn_forget);
    g_test_add_func("/device/events/cve-2018-20216", test_cve_2018_20216);
    g_test_add_func("/device/events/sizes", test_sizes);
    g_test_add_func("/device/events/inactive", test_inactive);
    g_test_add_func("/device/events/held", test_held);
    g_test_add_data_func("/device/events/held-vectors/pause", hold_by_pause,
                         test_held_vectors);
    g_test_add_data_func("/device/events/held-vectors/bus-master", hold_by_bus_master,
                         test_held_vectors);
    g_test_add_data_func("/device/events/held-vectors/alone", hold_alone,
                         test_held_vectors);
    g_test_add_func("/device/events/retry-budget", test_retry_budget);
    g_test_add_func("/device/events/unmapped", test_unmapped);
    return testdev_run();
}
