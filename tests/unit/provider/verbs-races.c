/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Threads of a program that post, poll, make and destroy at the same time; see verbs.h.
 */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "verbs.h"

/* ---- destruction at the same time as other things ------------------------------------
 *
 * A thread in ibv_destroy_qp() stops when the kernel has destroyed the QP, as it does
 * while the program has not acknowledged an event of it, until let_go().
 */
static struct {
    pthread_mutex_t mutex; /* GLib's are unknown to ThreadSanitizer */
    pthread_cond_t changed;
    bool in_kernel, go;
} held = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, false};

static void hold(struct ibv_qp *qp)
{
    pthread_mutex_lock(&held.mutex);
    held.in_kernel = true;
    pthread_cond_broadcast(&held.changed);
    while (!held.go) {
        pthread_cond_wait(&held.changed, &held.mutex);
    }
    pthread_mutex_unlock(&held.mutex);
}

static gpointer destroy_thread(gpointer qp)
{
    g_assert_cmpint(fake.ops->destroy_qp(qp), ==, 0);
    return NULL;
}

/* Returns when the kernel has destroyed @qp. */
static GThread *destroy_held(struct ibv_qp *qp)
{
    GThread *thread;

    held.in_kernel = held.go = false;
    fake.destroying = hold;
    thread = g_thread_new("destroy", destroy_thread, qp);
    pthread_mutex_lock(&held.mutex);
    while (!held.in_kernel) {
        pthread_cond_wait(&held.changed, &held.mutex);
    }
    fake.destroying = NULL;
    pthread_mutex_unlock(&held.mutex);
    return thread;
}

static void let_go(void)
{
    pthread_mutex_lock(&held.mutex);
    held.go = true;
    pthread_cond_broadcast(&held.changed);
    pthread_mutex_unlock(&held.mutex);
}

/* A deadlock ends the program. */
#define DEADLOCK_SECONDS 60

/*
 * A QP whose events are not acknowledged does not keep other threads from making one,
 * which may even get the same handle: it has its own completions and only these.
 * In the second round that one, too, comes and goes meanwhile.
 */
void test_destroy_waits(struct rig *r, gconstpointer data)
{
    struct rig other = *r;
    struct ibv_qp *qp;
    struct ibv_wc wc[8];
    GThread *thread;

    alarm(DEADLOCK_SECONDS);
    other.cq = fake.ops->create_cq(r->ctx, 8, NULL, 0);
    other.cq_addr = fake.cq.buf_addr;
    for (unsigned round = 0; round < 2; round++) {
        fake.next_handle = 1;
        qp = make_qp_of(r, 4, other.cq);
        device_complete(r, qp, 10);
        device_complete(r, qp, 11);
        device_sent(&other, 1, 12, 0);
        thread = destroy_held(qp);
        for (unsigned i = 0; i <= round; i++) {
            fake.next_handle = 1;
            qp = make_qp(r, 4);
            device_complete(r, qp, 20 + i);
            g_assert_cmpint(fake.ops->poll_cq(other.cq, 8, wc), ==, 0);
            if (i < round) {
                g_assert_cmpint(fake.ops->destroy_qp(qp), ==, 0);
            }
        }
        let_go();
        g_thread_join(thread);
        g_assert_cmpint(fake.ops->poll_cq(r->cq, 8, wc), ==, 1);
        g_assert_cmpuint(wc[0].wr_id, ==, 20 + round);
        g_assert_cmpuint(wc[0].qp_num, ==, qp->qp_num);
        g_assert_cmpint(fake.ops->destroy_qp(qp), ==, 0);
        g_assert_cmpuint(*cq_words(&other).rx_cons, ==, *cq_words(&other).rx_prod);
    }
    fake.ops->destroy_cq(other.cq);
    alarm(0);
}

/*
 * The entry of handle 1 lies across two pages, its CQs on the first: the next write to
 * those faults, and a poll of `cq` comes just before it.
 */
static struct {
    char *pages;
    struct ibv_cq *cq;
    unsigned polls;
    int found;
    struct ibv_wc wc[2];
} entry;

static void poll_before(int sig)
{
    if (mprotect(entry.pages, 4096, PROT_READ | PROT_WRITE)) {
        abort();
    }
    entry.polls++;
    entry.found = fake.ops->poll_cq(entry.cq, 2, entry.wc);
}

/*
 * The handle of a QP that is being destroyed is another's now, on other CQs: a poll that
 * comes while its entry changes takes no completion of the former for one of the new QP.
 */
void test_handle_in_poll(struct rig *r, gconstpointer data)
{
    struct pv_context *ctx = to_pv_ctx(r->ctx);
    struct pv_qp_entry *table = ctx->qp_tbl, *e;
    struct sigaction act = {.sa_handler = poll_before}, before;
    struct ibv_send_wr wr[3], *bad;
    struct ibv_sge sge = {0x1000, 8, 1};
    struct rig other = *r;
    struct ibv_qp *former, *next;
    GThread *thread;

    alarm(DEADLOCK_SECONDS);
    other.cq = fake.ops->create_cq(r->ctx, 8, NULL, 0);
    other.cq_addr = fake.cq.buf_addr;
    entry.cq = other.cq;
    entry.polls = 0;
    entry.pages =
        mmap(NULL, 2 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    g_assert_true(entry.pages != MAP_FAILED);
    e = (void *)(entry.pages + 4096 - offsetof(struct pv_qp_entry, qp));
    ctx->qp_tbl = e - 1;

    former = make_qp_of(r, 4, other.cq);
    g_assert_cmpint(fake.ops->post_send(former, list_of(wr, &sge, 3, 10), &bad), ==, 0);
    for (unsigned i = 0; i < 3; i++) {
        g_assert_nonnull(device_take(r, 1));
    }
    device_sent(&other, 1, 12, PVRDMA_EXT_CQE_SENT | 3);
    thread = destroy_held(former);
    fake.next_handle = 1;
    g_assert_cmpint(sigaction(SIGSEGV, &act, &before), ==, 0);
    g_assert_cmpint(mprotect(entry.pages, 4096, PROT_READ), ==, 0);
    next = make_qp(r, 4);
    g_assert_cmpint(sigaction(SIGSEGV, &before, NULL), ==, 0);
    g_assert_cmpuint(entry.polls, ==, 1);
    g_assert_cmpint(entry.found, ==, 1);
    g_assert_cmpuint(entry.wc[0].wr_id, ==, 12);
    g_assert_cmpuint(entry.wc[0].qp_num, ==, former->qp_num);
    g_assert_cmpuint(to_pv_qp(next)->sq_polled, ==, 0);
    let_go();
    g_thread_join(thread);
    g_assert_cmpint(fake.ops->destroy_qp(next), ==, 0);
    fake.ops->destroy_cq(other.cq);
    ctx->qp_tbl = table;
    munmap(entry.pages, 2 * 4096);
    alarm(0);
}

/*
 * Between ibv_start_poll and ibv_end_poll a program may make and destroy QPs of the
 * CQ, while another thread destroys one and waits for the poll to end.
 */
void test_destroy_in_poll(struct rig *r, gconstpointer data)
{
    struct ibv_cq_init_attr_ex attr = {.cqe = 8, .wc_flags = IBV_WC_STANDARD_FLAGS};
    struct ibv_poll_cq_attr none = {0};
    struct ibv_cq_ex *cq = fake.ops->create_cq_ex(r->ctx, &attr);
    struct rig ex = *r;
    struct ibv_qp *qp[5];
    GThread *thread;

    alarm(DEADLOCK_SECONDS);
    ex.cq = ibv_cq_ex_to_cq(cq);
    ex.cq_addr = fake.cq.buf_addr;
    for (unsigned i = 1; i <= 3; i++) {
        qp[i] = make_qp(&ex, 4);
    }
    for (unsigned i = 0; i < 6; i++) {
        device_complete(&ex, qp[1 + i % 3], 40 + i);
    }
    g_assert_cmpint(ibv_start_poll(cq, &none), ==, 0);
    g_assert_cmpuint(cq->wr_id, ==, 40);
    thread = destroy_held(qp[2]);
    let_go();
    g_usleep(100000); /* it wants the CQ now */
    g_assert_cmpint(fake.ops->destroy_qp(qp[3]), ==, 0);
    qp[4] = make_qp(&ex, 4);
    /* The slot that is being read is not the device's yet. */
    g_assert_cmpuint(*cq_words(&ex).rx_cons, ==, 0);
    g_assert_cmpuint(ibv_wc_read_qp_num(cq), ==, qp[1]->qp_num);
    g_assert_cmpuint(ibv_wc_read_byte_len(cq), ==, 17);
    g_assert_cmpint(ibv_next_poll(cq), ==, 0);
    g_assert_cmpuint(cq->wr_id, ==, 43);
    g_assert_cmpint(ibv_next_poll(cq), ==, ENOENT);
    ibv_end_poll(cq);
    g_thread_join(thread);
    g_assert_cmpuint(*cq_words(&ex).rx_cons, ==, *cq_words(&ex).rx_prod);
    device_complete(&ex, qp[4], 50);
    g_assert_cmpint(ibv_start_poll(cq, &none), ==, 0);
    g_assert_cmpuint(cq->wr_id, ==, 50);
    ibv_end_poll(cq);
    fake.ops->destroy_qp(qp[1]);
    fake.ops->destroy_qp(qp[4]);
    fake.ops->destroy_cq(ex.cq);
    alarm(0);
}

/* Two threads post to one QP, two poll one CQ, the device loops back. */
#define MT_POSTS 3000u

static struct rig *mt_rig;
static struct ibv_qp *mt_qp;
static unsigned mt_polled;

static gpointer mt_post(gpointer data)
{
    struct ibv_sge sge = {0x1000, 8, 1};
    struct ibv_send_wr wr, *bad;
    uint64_t base = GPOINTER_TO_SIZE(data);

    for (unsigned i = 0; i < MT_POSTS; i++) {
        list_of(&wr, &sge, 1, base + i);
        while (fake.ops->post_send(mt_qp, &wr, &bad) == ENOMEM) {
            sched_yield();
        }
    }
    return NULL;
}

static gpointer mt_poll(gpointer seen)
{
    struct ibv_wc wc[3];

    while (__atomic_load_n(&mt_polled, __ATOMIC_RELAXED) < 2 * MT_POSTS) {
        int n = fake.ops->poll_cq(mt_rig->cq, 3, wc);

        for (int i = 0; i < n; i++) {
            g_assert_cmpint(((uint8_t *)seen)[wc[i].wr_id], ==, 0);
            ((uint8_t *)seen)[wc[i].wr_id] = 1;
        }
        __atomic_add_fetch(&mt_polled, n, __ATOMIC_RELAXED);
        if (!n) {
            sched_yield();
        }
    }
    return NULL;
}

void test_threads(struct rig *r, gconstpointer data)
{
    g_autofree uint8_t *seen = g_malloc0(2 * MT_POSTS);
    GThread *thread[4];
    unsigned done = 0;
    uint32_t taken = 0;

    mt_rig = r;
    mt_qp = make_qp(r, 16);
    mt_polled = 0;
    thread[0] = g_thread_new("post", mt_post, GSIZE_TO_POINTER(0));
    thread[1] = g_thread_new("post", mt_post, GSIZE_TO_POINTER(MT_POSTS));
    thread[2] = g_thread_new("poll", mt_poll, seen);
    thread[3] = g_thread_new("poll", mt_poll, seen);
    while (done < 2 * MT_POSTS) {
        struct pvrdma_sq_wqe_hdr *hdr = device_take(r, 1);

        if (hdr) {
            taken = pvrdma_idx_next(taken, 16);
            /*
             * In stock mode the slot may be written again by now, so what it held is
             * lost: each id must come once, whichever it is.
             */
            device_sent(r, 1, r->ext ? hdr->wr_id : done,
                        r->ext ? PVRDMA_EXT_CQE_SENT | taken : 0);
            done++;
        } else {
            sched_yield();
        }
    }
    for (unsigned i = 0; i < 4; i++) {
        g_thread_join(thread[i]);
    }
    g_assert_cmpuint(mt_polled, ==, 2 * MT_POSTS);
    for (unsigned i = 0; i < 2 * MT_POSTS; i++) {
        g_assert_cmpuint(seen[i], ==, 1);
    }
    fake.ops->destroy_qp(mt_qp);
}

/*
 * Threads make and destroy QPs of one CQ, which get each other's handles, and leave
 * completions behind; pollers find none with another QP's number.
 */
#define CHURN_ROUNDS  1500u
#define CHURN_THREADS 3u

static struct {
    const struct rig *rig;
    pthread_mutex_t device;
    unsigned running, polled;
} churn = {.device = PTHREAD_MUTEX_INITIALIZER};

static void dawdle(struct ibv_qp *qp)
{
    for (unsigned i = qp->qp_num / 16 % 4; i; i--) {
        sched_yield();
    }
}

static gpointer churn_qps(gpointer data)
{
    struct ibv_qp_init_attr attr = {
        .send_cq = churn.rig->cq,
        .recv_cq = churn.rig->cq,
        .cap = {1, 1, 1, 1, 0},
        .qp_type = IBV_QPT_RC,
    };

    for (unsigned i = 0; i < CHURN_ROUNDS; i++) {
        struct ibv_qp *qp = fake.ops->create_qp(churn.rig->pd, &attr);

        g_assert_nonnull(qp);
        pthread_mutex_lock(&churn.device);
        for (unsigned n = i % 4; n; n--) {
            device_sent(churn.rig, to_pv_qp(qp)->handle, qp->qp_num,
                        PVRDMA_EXT_CQE_SENT | 1);
        }
        pthread_mutex_unlock(&churn.device);
        g_assert_cmpint(fake.ops->destroy_qp(qp), ==, 0);
    }
    __atomic_sub_fetch(&churn.running, 1, __ATOMIC_RELEASE);
    return NULL;
}

static gpointer churn_poll(gpointer data)
{
    struct ibv_wc wc[3];

    while (__atomic_load_n(&churn.running, __ATOMIC_ACQUIRE)) {
        int n = fake.ops->poll_cq(churn.rig->cq, 3, wc);

        g_assert_cmpint(n, >=, 0);
        for (int i = 0; i < n; i++) {
            g_assert_cmpuint(wc[i].wr_id, ==, wc[i].qp_num);
        }
        __atomic_add_fetch(&churn.polled, n, __ATOMIC_RELAXED);
        sched_yield();
    }
    return NULL;
}

void test_churn(struct rig *r, gconstpointer data)
{
    GThread *thread[CHURN_THREADS + 2];

    alarm(2 * DEADLOCK_SECONDS);
    churn.rig = r;
    churn.running = CHURN_THREADS;
    churn.polled = 0;
    fake.pick_handles = true;
    fake.destroying = dawdle;
    for (unsigned i = 0; i < G_N_ELEMENTS(thread); i++) {
        thread[i] =
            g_thread_new("churn", i < CHURN_THREADS ? churn_qps : churn_poll, NULL);
    }
    for (unsigned i = 0; i < G_N_ELEMENTS(thread); i++) {
        g_thread_join(thread[i]);
    }
    g_assert_cmpuint(churn.polled, >, 0);
    g_assert_cmpuint(*cq_words(r).rx_cons, ==, *cq_words(r).rx_prod);
    alarm(0);
}
