/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * tcp/owed.c and take.c: what the main thread has to do with a VM's token comes later
 * while somebody else has that token, or the queue pair's lock, and nobody waits for it
 * any more when it is done.  It ends in time if it keeps something that is a peer's, and
 * all of it has its share of a turn of the main loop and no more.
 *
 * The test is the main thread, and whoever has the token or lock as well.  Peers are made
 * up: what is said to them is caught here.
 */
#include <fcntl.h>
#include <glib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../stillclock.h"
#include "testdev.h"
#include "transport/tcp/setup.h"
#include "transport/tcp/tcp.h"
#include "transport/transports.h"

#define PATIENCE_S 30
/* What is late stays so for that many turns of the main loop. */
#define LATE_TURNS 50u
#define FOLLOW_US  400u
#define MANY       8u
/* What is late is waited for for a second: it does not pass in as many readings. */
#define STEP_NS 1000000u

struct dev {
    struct testdev *td;
    uint32_t pd, cq;
    uint64_t pdir;
    struct pvrdma_gid gid;
};

/* ---- what others say and do ---- */

static struct peer *peer;  /* that every address belongs to; NULL: as it is */
static struct conn *bound; /* whom its TAKEs are for */
static struct peer_take said;
static struct peer_taken answered;
static unsigned n_said, n_answered, n_followed;
static bool slow; /* conn_follow() */

bool __wrap_setup_peer_of(const struct conn *c, struct peer **p);
bool __real_setup_peer_of(const struct conn *c, struct peer **p);
bool __wrap_follow_is_there(const struct conn *c);
bool __real_follow_is_there(const struct conn *c);
struct conn *__wrap_setup_check_bind(struct peer *from, const struct peer_bind *b,
                                     struct peer_bind_answer *a);
bool __wrap_peer_send_take(struct peer *to, const struct peer_take *t);
bool __wrap_peer_send_taken(struct peer *to, const struct peer_taken *t);
void __wrap_conn_follow(struct conn *c);
void __real_conn_follow(struct conn *c);

bool __wrap_setup_peer_of(const struct conn *c, struct peer **p)
{
    *p = peer;
    return peer || __real_setup_peer_of(c, p);
}

bool __wrap_follow_is_there(const struct conn *c)
{
    return peer || __real_follow_is_there(c);
}

struct conn *__wrap_setup_check_bind(struct peer *from, const struct peer_bind *b,
                                     struct peer_bind_answer *a)
{
    *a = (struct peer_bind_answer){.token = {b->token[0], b->token[1]}};
    return bound;
}

bool __wrap_peer_send_take(struct peer *to, const struct peer_take *t)
{
    said = *t;
    n_said++;
    return true;
}

bool __wrap_peer_send_taken(struct peer *to, const struct peer_taken *t)
{
    answered = *t;
    n_answered++;
    return true;
}

void __wrap_conn_follow(struct conn *c)
{
    if (slow) {
        g_usleep(FOLLOW_US);
        n_followed++;
    } else {
        __real_conn_follow(c);
    }
}

/* ---- devices ---- */

static void command(struct dev *d, uint32_t op, void *req, size_t size)
{
    g_assert_cmpuint(testdev_command(d->td, op, req, size), ==, 0);
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

/* The token is the test's: the loop turns all the same, and @c goes on being owed that.
 */
static void is_late(const struct conn *c, unsigned what)
{
    for (unsigned i = 0; i < LATE_TURNS; i++) {
        g_main_context_iteration(NULL, FALSE);
        g_usleep(100);
    }
    g_assert_cmpuint(c->owed & what, ==, what);
    REACH(waiters(c) == 2); /* the test, and it was asked for */
}

/*
 * The same while the test has the queue pair's lock, and not the token, which nobody asks
 * for but to look; then that, too.
 */
static void is_late_by_either(struct conn *c, unsigned what)
{
    REACH(c->owed & what);
    for (unsigned i = 0; i < LATE_TURNS; i++) {
        g_main_context_iteration(NULL, FALSE);
        g_usleep(100);
    }
    REACH(waiters(c) == 0);
    g_assert_cmpuint(c->owed & what, ==, what);
    vm_token_ask(c->vm); /* with the lock held nobody waits for it */
    REACH(vm_token_try_again(c->vm));
    pthread_mutex_unlock(&c->qp->lock);
    is_late(c, what);
}

static void release(struct conn *c)
{
    vm_token_release(c->vm);
}

static void is_settled(const struct conn *c)
{
    REACH(c->owed == 0);
    REACH(waiters(c) == 0);
    REACH(!c->net->owing && !c->net->asked);
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
    n_said = n_answered = n_followed = 0;
}

static void end(struct dev *d)
{
    peer = NULL;
    bound = NULL;
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
    REACH(i->owed & OWED_HELLO);
    is_late(i, OWED_HELLO);
    pthread_mutex_lock(&r->qp->lock);
    release(i);
    is_late_by_either(r, OWED_REQUEST);
    pthread_mutex_lock(&i->qp->lock);
    release(r);
    is_late_by_either(i, OWED_STREAM);
    g_assert_false(i->is_up);
    release(i);
    REACH(i->is_up && r->is_up);
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
    REACH(i->is_up && r->is_up);
    is_settled(i);

    vm_token_take(i->vm);
    i->in_vain = 3;
    alone->trying = true;
    alone->peer_failed_status = 0;
    alone->heard.status = failed.failed_status;
    alone->heard.seq = failed.failed_seq;
    conn_owe(i, OWED_FOLLOW | OWED_GONE | OWED_REACHABLE | OWED_ANEW);
    conn_owe(alone, OWED_FAILURE | OWED_IN_VAIN);
    is_late(i, OWED_FOLLOW | OWED_GONE | OWED_REACHABLE | OWED_ANEW);
    is_late(alone, OWED_FAILURE | OWED_IN_VAIN);
    g_assert_true(setup_waits(alone));
    g_assert_true(i->is_up && i->in_vain == 3);
    g_assert_true(alone->trying && !alone->refused && !alone->peer_failed_status);
    setup_ask(i); /* it has a stream yet, of a former place: another one is wanted */
    REACH(i->setup);
    release(i);
    is_settled(alone);
    vm_token_take(i->vm);
    g_assert_true(!alone->trying && alone->refused);
    g_assert_cmpuint(alone->peer_failed_status, ==, 12);
    g_assert_cmpuint(alone->peer_failed_seq, ==, 34);
    alone->trying = true;
    conn_owe(alone, OWED_NOT_NOW);
    is_late(alone, OWED_NOT_NOW);
    g_assert_true(alone->trying);
    release(i);
    is_settled(alone);
    g_assert_false(alone->trying);
    REACH(i->is_up && r->is_up);
    up_at = i->up_at;
    conn_owe(i, OWED_GONE); /* its stream is closed; maybe there comes another one */
    REACH(!i->is_up || i->up_at != up_at);
    is_settled(i);

    /* What is not wanted any more is not asked for. */
    vm_token_take(i->vm);
    conn_owe(alone, OWED_NOT_NOW);
    is_late(alone, OWED_NOT_NOW);
    conn_owe_no_more(alone, OWED_NOT_NOW);
    REACH(waiters(i) == 1);
    release(i);
    is_settled(i);
    /* Nor by a VM that goes: end(). */
    conn_owe(i, OWED_REACHABLE);
    end(&d);
}

/* ---- streams that were made in advance ---- */

static const struct framing framing = {.crc = true, .ird = 16, .ord = 16};

/* One for @c, of @ours or the peer's; the other end is returned, *park its park. */
static int advance(const struct conn *c, bool ours, unsigned number, struct park **park)
{
    static uint64_t n;
    uint64_t token[2] = {1, ++n};
    struct parked *p;
    int fd[2];

    g_assert_cmpint(
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fd), ==, 0);
    *park = park_new(peer, c->network, ours ? &c->path.sgid : &c->path.dgid, ours, NULL,
                     token);
    p = parked_new(*park, number);
    parked_is(p, fd[0], &framing, PARK_IDLE);
    return fd[1];
}

static bool is_closed(int fd)
{
    char byte;

    return recv(fd, &byte, 1, MSG_DONTWAIT) == 0;
}

static void answer(struct peer_taken *a)
{
    struct hello h = {.token = {said.bind.token[0], said.bind.token[1]},
                      .incarnation = 1,
                      .mtu = PVRDMA_MTU_1024};

    *a = (struct peer_taken){.answer = {.token = {h.token[0], h.token[1]}}};
    hello_put(&h, a->hello);
}

/* TAKE, and TAKEN: @how far it gets. */
enum take_how { TAKE_GOES, TAKE_LATE, TAKE_FULL, TAKE_NONE };

static void test_take(gconstpointer arg)
{
    enum take_how how = GPOINTER_TO_UINT(arg);
    static char none;
    struct park_host *h;
    struct peer_taken a;
    struct park *park;
    struct conn *c;
    struct dev d;
    int fd;

    begin();
    d = dev_new(0);
    c = make_one(&d, true);
    is_settled(c);
    peer = (struct peer *)&none;
    h = park_host(peer);
    fd = advance(c, false, 0, &park);
    vm_token_take(c->vm);
    g_assert_true(take_begin(c, peer));
    is_late(c, OWED_TAKE);
    g_assert_true(setup_waits(c));
    /* Until TAKE is sent it keeps nothing from others. */
    g_assert_cmpuint(n_said, ==, 0);
    g_assert_cmpuint(h->n_taking, ==, 0);
    g_assert_false(TAILQ_EMPTY(&park->streams));
    if (how == TAKE_FULL) {
        h->n_taking = 1024;
    } else if (how == TAKE_NONE) {
        park_drop(park);
    }
    release(c);
    is_settled(c);
    if (how == TAKE_FULL || how == TAKE_NONE) {
        g_assert_cmpuint(n_said, ==, 0);
        g_assert_true(setup_has_some(&h->waiting) == (how == TAKE_FULL));
        h->n_taking = 0;
        setup_wait_no_more(c);
        goto out;
    }
    g_assert_cmpuint(n_said, ==, 1);
    g_assert_cmpuint(h->n_taking, ==, 1);

    vm_token_take(c->vm);
    answer(&a);
    take_answered(peer, &a);
    g_assert_cmpuint(h->n_taking, ==, 0);
    is_late(c, OWED_TAKEN);
    g_assert_false(c->is_up);
    if (how == TAKE_LATE) {
        stillclock_pass(2 * STILLCLOCK_S);
        REACH(is_closed(fd));
        g_assert_false(c->owed & OWED_TAKEN);
        g_assert_null(atomic_load(&c->taking));
        g_assert_cmpuint(h->refused, ==, 1);
        peer = NULL; /* a BIND finds nobody */
        release(c);
        is_settled(c);
        g_assert_false(c->is_up);
    } else {
        release(c);
        is_settled(c);
        g_assert_true(c->is_up);
        g_assert_false(is_closed(fd));
        g_assert_null(atomic_load(&c->taking));
    }
out:
    close(fd);
    end(&d);
}

/* A TAKE that is for @c. */
static void take_of(struct conn *c, const struct park *park, struct peer_take *t)
{
    struct hello h = {.token = {7, 8}, .incarnation = 1, .mtu = PVRDMA_MTU_1024};

    *t = (struct peer_take){.token = {park->token[0], park->token[1]}};
    setup_bind_of(c, &t->bind);
    t->bind.sgid = c->path.dgid;
    t->bind.dgid = c->path.sgid;
    memcpy(t->bind.token, h.token, sizeof(h.token));
    hello_put(&h, t->hello);
    bound = c;
}

static void test_attach(void)
{
    static char none;
    struct park *park;
    struct peer_take t;
    struct conn *c;
    struct dev d;
    int fd;

    begin();
    d = dev_new(0);
    c = make_one(&d, false);
    is_settled(c);
    peer = (struct peer *)&none;
    for (unsigned late = 1; late < 2; late--) {
        fd = advance(c, true, 0, &park);
        take_of(c, park, &t);
        pthread_mutex_lock(&c->qp->lock);
        take_came(peer, &t);
        is_late_by_either(c, OWED_ATTACH);
        g_assert_cmpuint(n_answered, ==, !late);
        if (late) {
            stillclock_pass(2 * STILLCLOCK_S);
            REACH(is_closed(fd));
            g_assert_cmpint(answered.answer.result, ==, PEER_BIND_NOT_YET);
            g_assert_null(c->attaching);
            close(fd);
        }
        release(c);
        is_settled(c);
        g_assert_cmpuint(n_answered, ==, late ? 1 : 2);
        g_assert_true(c->is_up == !late);
    }
    g_assert_cmpint(answered.answer.result, ==, PEER_BIND_OK);
    g_assert_false(is_closed(fd));
    close(fd);
    end(&d);
}

/* A connection is owed both a Request's answer and a TAKE's: the later one's. */
static void test_both(gconstpointer arg)
{
    bool take_last = GPOINTER_TO_UINT(arg);
    static char none;
    struct peer *made_up = (struct peer *)&none;
    struct conn *i, *r;
    struct peer_take t;
    struct park *park;
    struct dev d;
    int fd;

    begin();
    d = dev_new(0);
    make_pair(&d, &i, &r);
    pthread_mutex_lock(&r->qp->lock);
    if (take_last) {
        REACH(r->owed & OWED_REQUEST);
    }
    peer = made_up;
    fd = advance(r, true, 0, &park);
    peer = NULL;
    take_of(r, park, &t);
    take_came(made_up, &t);
    bound = NULL;
    if (take_last) {
        g_assert_null(r->arrived);
        g_assert_cmpuint(r->owed, ==, OWED_ATTACH);
        REACH(!i->setup); /* it hears that the other end has gone */
        g_assert_cmpuint(n_answered, ==, 0);
        peer = made_up;
    } else {
        bound = r; /* the BIND, too, is */
        REACH(r->arrived);
        g_assert_null(r->attaching);
        g_assert_cmpuint(r->owed, ==, OWED_REQUEST);
        g_assert_cmpuint(n_answered, ==, 1);
        g_assert_cmpint(answered.answer.result, ==, PEER_BIND_NOT_YET);
        g_assert_true(is_closed(fd));
    }
    pthread_mutex_unlock(&r->qp->lock);
    REACH(r->is_up);
    is_settled(r);
    g_assert_cmpuint(n_answered, ==, 1);
    g_assert_true(is_closed(fd) == !take_last);
    close(fd);
    end(&d);
}

/* ---- shares of the main loop ---- */

/*
 * Many VMs are owed much: all of them take a millisecond of a turn, or as long as a last
 * one takes, and each comes to its turn.  What one takes is slow, so that is few.
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
            conn_owe(c[i][j], OWED_FOLLOW);
        }
    }
    while (n_followed < MANY * EACH) {
        unsigned before = n_followed;

        g_main_context_iteration(NULL, TRUE);
        most = MAX(most, n_followed - before);
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
    g_test_add_func("/owed/startup", test_startup);
    g_test_add_func("/owed/bits", test_bits);
    g_test_add_data_func("/owed/take", GUINT_TO_POINTER(TAKE_GOES), test_take);
    g_test_add_data_func("/owed/take-late", GUINT_TO_POINTER(TAKE_LATE), test_take);
    g_test_add_data_func("/owed/take-full", GUINT_TO_POINTER(TAKE_FULL), test_take);
    g_test_add_data_func("/owed/take-none", GUINT_TO_POINTER(TAKE_NONE), test_take);
    g_test_add_func("/owed/attach", test_attach);
    g_test_add_data_func("/owed/take-last", GUINT_TO_POINTER(true), test_both);
    g_test_add_data_func("/owed/request-last", GUINT_TO_POINTER(false), test_both);
    g_test_add_func("/owed/budget", test_budget);
    return g_test_run();
}
