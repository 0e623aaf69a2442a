/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * iwarp/deferred.c: what the main thread has to do with a VM's token comes later while
 * somebody else has that token, or the queue pair's lock, and nobody waits for it any
 * more when it is done.  All of it has its share of a turn of the main loop and no more.
 *
 * The test is the main thread, and whoever has the token or lock as well.
 */
#include <glib.h>

#include "../../stillclock.h"
#include "testdev.h"
#include "transport/iwarp/iwarp.h"
#include "transport/iwarp/setup/bind.h"
#include "transport/transports.h"

#define PATIENCE_S 30
/* What is late stays so for that many turns of the main loop. */
#define LATE_TURNS 50u
#define FOLLOW_US  400u
#define MANY       8u
/* Startup frames are waited for for five seconds: these do not pass in as many readings,
 * but where a test says so. */
#define STEP_NS 1000000u

struct dev {
    struct testdev *td;
    uint32_t pd, cq;
    uint64_t pdir;
    struct pvrdma_gid gid;
};

static unsigned n_moved;
static bool slow; /* conn_moved() */

void __wrap_conn_moved(struct conn *c);
void __real_conn_moved(struct conn *c);

void __wrap_conn_moved(struct conn *c)
{
    if (slow) {
        g_usleep(FOLLOW_US);
        n_moved++;
    } else {
        __real_conn_moved(c);
    }
}

/* ---- devices ---- */

static void command(struct dev *d, uint32_t op, void *req, size_t size)
{
    testdev_do(d->td, op, req, size);
    testdev_irqs(d->td, PVRDMA_VEC_CMD);
}

static struct dev dev_new(unsigned i)
{
    struct pvrdma_cmd_create_bind bind = {
        .mtu = 1024, .vlan = 0xfff, .gid_type = PVRDMA_GID_TYPE_ROCE_V2};
    g_autofree char *name = g_strdup_printf("vm%u", i);
    struct dev d = {.td = testdev_new(name),
                    .gid = {.raw = {[10] = 0xff, [11] = 0xff, 10, 0, 0, 5 + i}}};
    uint64_t first;

    testdev_up(d.td);
    bind.gid = d.gid;
    command(&d, PVRDMA_CMD_CREATE_BIND, &bind, sizeof(bind));
    d.pd = testdev_pd(d.td, 0);
    d.cq = testdev_cq(d.td, 0, 16);
    d.pdir = testdev_new_pdir(d.td, 7, &first); /* which all share: nothing is posted */
    return d;
}

static struct qp *make(struct dev *d)
{
    struct pvrdma_cmd_create_qp req = {.pdir_dma = d->pdir,
                                       .pd_handle = d->pd,
                                       .send_cq_handle = d->cq,
                                       .recv_cq_handle = d->cq,
                                       .max_send_wr = 64,
                                       .max_recv_wr = 64,
                                       .max_send_sge = 4,
                                       .max_recv_sge = 4,
                                       .total_chunks = 7,
                                       .send_chunks = 4,
                                       .qp_type = PVRDMA_QPT_RC,
                                       .access_flags = PVRDMA_ACCESS_LOCAL_WRITE};
    const union pvrdma_cmd_resp *r;

    command(d, PVRDMA_CMD_CREATE_QP, &req, sizeof(req));
    r = testdev_ptr(d->td, d->td->resp);
    return id_table_get(&d->td->vm.objects.qp, r->create_qp.qp_handle);
}

static void modify(struct dev *d, struct qp *qp, uint32_t mask,
                   const struct pvrdma_qp_attr *a)
{
    struct pvrdma_cmd_modify_qp req = {
        .qp_handle = qp->handle, .attr_mask = PVRDMA_QP_STATE | mask, .attrs = *a};

    command(d, PVRDMA_CMD_MODIFY_QP, &req, sizeof(req));
}

/* To RTS, with QP @qpn of the same address. */
static struct conn *connect_qp(struct dev *d, struct qp *qp, uint32_t qpn)
{
    struct pvrdma_qp_attr a = {.qp_state = PVRDMA_QPS_INIT,
                               .port_num = 1,
                               .qp_access_flags = 0xf,
                               .path_mtu = PVRDMA_MTU_1024,
                               .dest_qp_num = qpn,
                               .max_rd_atomic = 4,
                               .max_dest_rd_atomic = 4,
                               .min_rnr_timer = 1,
                               .retry_cnt = 1,
                               .rnr_retry = 1,
                               .ah_attr = {.ah_flags = 1, .port_num = 1}};

    a.ah_attr.dgid = d->gid;
    modify(d, qp, PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_PORT | PVRDMA_QP_ACCESS_FLAGS, &a);
    a.qp_state = PVRDMA_QPS_RTR;
    modify(d, qp,
           PVRDMA_QP_AV | PVRDMA_QP_PATH_MTU | PVRDMA_QP_DEST_QPN | PVRDMA_QP_RQ_PSN |
               PVRDMA_QP_MAX_DEST_RD_ATOMIC | PVRDMA_QP_MIN_RNR_TIMER,
           &a);
    a.qp_state = PVRDMA_QPS_RTS;
    modify(d, qp,
           PVRDMA_QP_SQ_PSN | PVRDMA_QP_TIMEOUT | PVRDMA_QP_RETRY_CNT |
               PVRDMA_QP_RNR_RETRY | PVRDMA_QP_MAX_RD_ATOMIC,
           &a);
    g_assert_nonnull(qp->req.conn);
    return qp->req.conn;
}

/* Two that are each other's. */
static void make_pair(struct dev *d, struct conn **initiator, struct conn **responder)
{
    struct qp *a = make(d), *b = make(d);
    struct conn *x = connect_qp(d, a, b->qpn), *y = connect_qp(d, b, a->qpn);

    *initiator = x->initiator ? x : y;
    *responder = x->initiator ? y : x;
}

/* One whose peer is the test. */
static struct conn *make_one(struct dev *d, bool initiator)
{
    struct conn *c = connect_qp(d, make(d), initiator ? 0xfffff0 : 2);

    g_assert_true(c->initiator == initiator);
    return c;
}

/* ---- time ---- */

/* A turn of the loop, until that is so. */
#define REACH(what)                                                               \
    do {                                                                          \
        gint64 until_ = g_get_monotonic_time() + PATIENCE_S * G_TIME_SPAN_SECOND; \
        while (!(what)) {                                                         \
            g_main_context_iteration(NULL, FALSE);                                \
            if (g_get_monotonic_time() > until_) {                                \
                g_error("never: %s", #what);                                      \
            }                                                                     \
        }                                                                         \
    } while (0)

static unsigned waiters(const struct conn *c)
{
    return atomic_load(&c->vm->dp.token_waiters);
}

/* The token is the test's: the loop turns all the same, and @c keeps that deferred.
 */
static void is_late(const struct conn *c, unsigned what)
{
    for (unsigned i = 0; i < LATE_TURNS; i++) {
        g_main_context_iteration(NULL, FALSE);
        g_usleep(100);
    }
    g_assert_cmpuint(c->deferred & what, ==, what);
    REACH(waiters(c) == 2); /* the test, and it was asked for */
}

static void release(struct conn *c)
{
    vm_token_release(c->vm);
}

/*
 * The same when @other's token is let go: while the test has the queue pair's
 * lock, and not the token, which nobody asks for but to look; then that, too.
 */
static void is_late_by_either(struct conn *c, unsigned what, struct conn *other)
{
    pthread_mutex_lock(&c->qp->lock);
    release(other);
    REACH(c->deferred & what);
    for (unsigned i = 0; i < LATE_TURNS; i++) {
        g_main_context_iteration(NULL, FALSE);
        g_usleep(100);
    }
    REACH(waiters(c) == 0);
    g_assert_cmpuint(c->deferred & what, ==, what);
    vm_token_ask(c->vm); /* with the lock held nobody waits for it */
    REACH(vm_token_try_again(c->vm));
    pthread_mutex_unlock(&c->qp->lock);
    is_late(c, what);
}

static void is_settled(const struct conn *c)
{
    REACH(c->deferred == 0);
    REACH(waiters(c) == 0);
    REACH(!c->net->is_deferring && !c->net->asked);
}

static void begin(void)
{
    GError *err = NULL;

    log_set_level(LOG_LVL_ERROR);
    stillclock_begin(STEP_NS);
    testdev_start();
    tcp_open(true, &err);
    g_assert_no_error(err);
    transport_local = &transport_tcp;
    n_moved = 0;
}

static void end(struct dev *d)
{
    testdev_free(d->td);
    tcp_close();
    testdev_stop();
}

/* ---- MPA's startup frames ---- */

static void test_startup(void)
{
    struct conn *i, *r;
    struct dev d;

    begin();
    d = dev_new(0);
    make_pair(&d, &i, &r);
    vm_token_take(i->vm);
    REACH(i->deferred & DEFERRED_HELLO);
    is_late(i, DEFERRED_HELLO);
    is_late_by_either(r, DEFERRED_REQUEST, i);
    is_late_by_either(i, DEFERRED_STREAM, r);
    g_assert_true(i->phase != CONN_UP);
    release(i);
    REACH(i->phase == CONN_UP && r->phase == CONN_UP);
    is_settled(i);
    end(&d);
}

/* Nobody waits for ever for one who does not get at it: the next try has it. */
static void test_given_up(void)
{
    struct conn *i, *r;
    struct dev d;

    begin();
    d = dev_new(0);
    make_pair(&d, &i, &r);
    vm_token_take(i->vm);
    REACH(i->deferred & DEFERRED_HELLO);
    is_late(i, DEFERRED_HELLO);
    stillclock_pass(SETUP_FRAMES_NS);
    REACH(!i->setup);
    g_assert_false(i->deferred & DEFERRED_HELLO);
    setup_ask(i); /* there is nothing to be sent, so nobody else does */

    is_late_by_either(r, DEFERRED_REQUEST, i);
    stillclock_pass(SETUP_FRAMES_NS);
    REACH(!r->arrived && !i->setup);
    g_assert_false(r->deferred & DEFERRED_REQUEST);
    setup_ask(i);

    is_late_by_either(r, DEFERRED_REQUEST, r);
    is_late_by_either(i, DEFERRED_STREAM, r);
    stillclock_pass(SETUP_FRAMES_NS);
    REACH(!i->setup);
    g_assert_false(i->deferred & DEFERRED_STREAM);
    g_assert_true(i->phase != CONN_UP);
    setup_ask(i);
    release(i);
    REACH(i->phase == CONN_UP && r->phase == CONN_UP);
    is_settled(i);
    end(&d);
}

/* ---- what needs the token alone ---- */

static void test_bits(void)
{
    static const struct hello failed = {.failed_status = 12, .failed_seq = 34};
    struct conn *i, *r, *alone;
    uint64_t up_at;
    struct dev d;

    begin();
    d = dev_new(0);
    make_pair(&d, &i, &r);
    alone = make_one(&d, false);
    REACH(i->phase == CONN_UP && r->phase == CONN_UP);
    is_settled(i);

    vm_token_take(i->vm);
    i->failed_tries = 3;
    alone->phase = CONN_TRYING;
    alone->peer_failed_status = 0;
    alone->heard.status = failed.failed_status;
    alone->heard.seq = failed.failed_seq;
    conn_defer(i, DEFERRED_MOVED | DEFERRED_GONE | DEFERRED_REACHABLE | DEFERRED_ANEW);
    conn_defer(alone, DEFERRED_FAILURE | DEFERRED_TRY_FAILED);
    is_late(i, DEFERRED_MOVED | DEFERRED_GONE | DEFERRED_REACHABLE | DEFERRED_ANEW);
    is_late(alone, DEFERRED_FAILURE | DEFERRED_TRY_FAILED);
    g_assert_true(setup_waits(alone));
    g_assert_true(i->phase == CONN_UP && i->failed_tries == 3);
    g_assert_true(alone->phase == CONN_TRYING && !alone->try_failed &&
                  !alone->peer_failed_status);
    setup_ask(i); /* it has a stream yet, of a former place: another one is wanted */
    REACH(i->setup);
    release(i);
    is_settled(alone);
    vm_token_take(i->vm);
    g_assert_true(alone->phase == CONN_DOWN && alone->try_failed);
    g_assert_cmpuint(alone->peer_failed_status, ==, 12);
    g_assert_cmpuint(alone->peer_failed_seq, ==, 34);
    alone->phase = CONN_TRYING;
    conn_defer(alone, DEFERRED_NOT_NOW);
    is_late(alone, DEFERRED_NOT_NOW);
    g_assert_true(alone->phase == CONN_TRYING);
    release(i);
    is_settled(alone);
    g_assert_false(alone->phase == CONN_TRYING);
    REACH(i->phase == CONN_UP && r->phase == CONN_UP);
    up_at = i->up_at;
    conn_defer(i,
               DEFERRED_GONE); /* its stream is closed; maybe there comes another one */
    REACH(i->phase != CONN_UP || i->up_at != up_at);
    is_settled(i);

    /* What is not wanted any more is not asked for. */
    vm_token_take(i->vm);
    conn_defer(alone, DEFERRED_NOT_NOW);
    is_late(alone, DEFERRED_NOT_NOW);
    conn_defer_no_more(alone, DEFERRED_NOT_NOW);
    REACH(waiters(i) == 1);
    release(i);
    is_settled(i);
    /* Nor by a VM that goes: end(). */
    conn_defer(i, DEFERRED_REACHABLE);
    end(&d);
}

/* ---- shares of the main loop ---- */

/*
 * For many VMs much is deferred: all of them take a millisecond of a turn, or as long as
 * a last one takes, and each comes to its turn.  What one takes is slow, so that is few.
 */
static void test_budget(void)
{
    enum { EACH = 12, MOST = 2 * (1000 / FOLLOW_US + 1) };
    struct conn *c[MANY][EACH];
    struct dev d[MANY];
    unsigned most = 0;

    begin();
    for (unsigned i = 0; i < MANY; i++) {
        d[i] = dev_new(i);
        for (unsigned j = 0; j < EACH; j++) {
            c[i][j] = make_one(&d[i], false);
        }
        is_settled(c[i][0]);
    }
    slow = true;
    for (unsigned i = 0; i < MANY; i++) {
        for (unsigned j = 0; j < EACH; j++) {
            conn_defer(c[i][j], DEFERRED_MOVED);
        }
    }
    while (n_moved < MANY * EACH) {
        unsigned before = n_moved;

        g_main_context_iteration(NULL, TRUE);
        most = MAX(most, n_moved - before);
    }
    slow = false;
    g_test_message("%u in one turn", most);
    g_assert_cmpuint(most, <=, MOST);
    for (unsigned i = 0; i < MANY; i++) {
        is_settled(c[i][0]);
    }
    for (unsigned i = 1; i < MANY; i++) {
        testdev_free(d[i].td);
    }
    end(&d[0]);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/deferred/startup", test_startup);
    g_test_add_func("/deferred/given-up", test_given_up);
    g_test_add_func("/deferred/bits", test_bits);
    g_test_add_func("/deferred/budget", test_budget);
    return g_test_run();
}
