/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: the doorbell and arm protocols, raced.
 *
 *   post    store producer index, set the map's bits, full barrier, load kick,
 *           ring if set          against
 *           set kick, full barrier, scan again, sleep
 *   watch   store producer index, full barrier, load no_notify, post if clear
 *                                against
 *           clear no_notify, full barrier, look at the index, sleep or forget
 * it arm     store arm, full barrier, poll again    against write CQE, publish,
 * full barrier, exchange arm, interrupt
 *
 * /race/post runs the daemon's own functions and the guest's, those of QEMU's
 * doorbell handler (shared; hw/pvrdma-doorbell.c itself) or of our provider
 * (extended), against each other in this process, where a round costs least.
 * /race/daemon runs the protocols against the real daemon, which goes to sleep
 * after every message (poll-us=0), /race/extended the same with maps and arm
 * words in guest RAM.  In /race/answered doorbells and arms are messages that the
 * guest waits for.  /race/forwarded is the arm in a message that nobody waits
 * for: it must fire exactly once, and without another poll.  /race/rnr ends RNR
 * waits by a receive doorbell, at another worker.  A lost wake-up shows as a wait
 * that does not end.
 *
 * /race/post does 10^6 rounds or what a busy machine gets done in half a minute;
 * the others do a fiftieth and a two-hundredth of it.  VGUEST_SOAK=100 is 10^8.
 */
#include "vgtest.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "datapath/engine.h"
#include "ring.h"

#define QUEUES     8u
#define EXT_QUEUES (DATAPATH_WATCHED + 8) /* not all can be watched */
#define EXT_WQES   4u
#define LOST_NS    (vg_patience(10000) * 1000000ll) /* without a wake-up: it was lost */

static uint64_t rounds(void)
{
    return vgt_rounds(1000000);
}

static inline uint32_t next_random(uint32_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 17;
    *x ^= *x << 5;
    return *x;
}

/* 0 .. @max turns of an empty loop. */
static inline void delay(uint32_t *x, uint32_t max)
{
    for (uint32_t n = next_random(x) % max; n > 0; n--) {
        __asm__ volatile("" ::: "memory");
    }
}

/* ---- the daemon's functions in this process ---- */

/* One run of /race/post: a poster (the main thread), a worker. */
static struct {
    struct vm *vm;
    struct vm_config cfg;
    int eventfd;
    _Atomic uint64_t total;
    bool extended;
    unsigned queues;
    _Atomic uint64_t all_taken;
    uint64_t sleeps;
    /* Queues of the shared region: what was posted and what the worker took. */
    _Atomic uint64_t posted[QUEUES];
    uint64_t taken[QUEUES];
    /* Extended ones: rings whose WQEs nobody reads. */
    struct guest_map *map;
    struct worker worker; /* never runs */
    struct ring_mem ext_mem;
    struct qp *qp;
    struct pv_bell bell[EXT_QUEUES];
    uint32_t prod[EXT_QUEUES];
    uint64_t now;
    uint32_t x; /* the worker's random numbers */
    uint64_t silent, places_given;
} race;

static void found_recv(struct vm *vm, uint32_t handle)
{
    g_error("a receive doorbell that nobody rang");
}

static void found_shared(struct vm *vm, uint32_t handle)
{
    uint64_t posted;

    g_assert_cmpuint(handle, >=, 1);
    g_assert_cmpuint(handle, <=, QUEUES);
    posted = atomic_load_explicit(&race.posted[handle - 1], memory_order_acquire);
    g_assert_cmpuint(posted, >=, race.taken[handle - 1]);
    atomic_fetch_add(&race.all_taken, posted - race.taken[handle - 1]);
    race.taken[handle - 1] = posted;
}

/* As sched.c does; time goes by so fast that queues lose their places. */
static void found_ext(struct vm *vm, uint32_t handle)
{
    bool watched;

    g_assert_cmpuint(handle, >=, 1);
    g_assert_cmpuint(handle, <=, EXT_QUEUES);
    race.now += 100000;
    watched = race.qp[handle - 1].req.watched;
    sched_look(&race.qp[handle - 1]);
    watch_add(&race.qp[handle - 1], race.now);
    race.places_given += !watched && race.qp[handle - 1].req.watched;
}

static void post_shared(unsigned q)
{
    atomic_store_explicit(&race.posted[q],
                          atomic_load_explicit(&race.posted[q], memory_order_relaxed) + 1,
                          memory_order_release);
    vg_doorbell_shared(race.vm->guest.db.shared, race.eventfd, 0, PVRDMA_UAR_QP,
                       (q + 1) | PVRDMA_UAR_QP_SEND);
}

static void post_ext(unsigned q)
{
    struct pvrdma_ext_ring *head =
        guest_ptr(&race.vm->guest.mem, race.qp[q].mem.page[0], sizeof(*head), true);
    uint64_t one = 1;

    race.prod[q] = pvrdma_idx_next(race.prod[q], EXT_WQES);
    __atomic_store_n(&head->tx_prod_tail.value, race.prod[q], __ATOMIC_RELEASE);
    race.silent += __atomic_load_n(&head->tx_no_notify.value, __ATOMIC_RELAXED);
    if (pv_bell_set(&race.bell[q])) {
        g_assert_cmpint(write(race.eventfd, &one, sizeof(one)), ==, sizeof(one));
    }
}

/* The worker's look at everything; true: there was something. */
static bool take(void)
{
    struct turn turn = {.now = race.now, .end = UINT64_MAX};
    struct doorbell_calls calls = {race.extended ? found_ext : found_shared, found_recv,
                                   found_recv};
    bool any = doorbells_scan(race.vm, &turn, &calls);
    bool long_turn = next_random(&race.x) % 64 == 0;
    struct qp *qp;

    if (!race.extended) {
        return any;
    }
    any |= watch_scan(race.vm, race.now);
    while ((qp = TAILQ_FIRST(&race.vm->dp.run))) {
        int32_t n;

        /* Served until it is empty, once or more around the ring. */
        sched_dequeue(qp);
        while ((n = sq_pending(qp)) > 0) {
            qp->sq.next = (qp->sq.next + (uint32_t)n) & (2 * EXT_WQES - 1);
            qp->sq.cons = qp->sq.next;
            atomic_fetch_add(&race.all_taken, (uint64_t)n);
            delay(&race.x, long_turn ? 4096 : 64);
        }
        g_assert_cmpint(n, ==, 0);
        watch_drained(qp);
    }
    return any;
}

static bool pending(void)
{
    return watch_pending(race.vm) || doorbells_pending(race.vm, true);
}

/* Is there anything the worker should have seen? */
static bool posted(void)
{
    for (unsigned q = 0; race.extended && q < EXT_QUEUES; q++) {
        if (sq_pending(&race.qp[q])) {
            return true;
        }
    }
    return pending();
}

/* As the worker sleeps, with reads of the eventfd in place of epoll. */
static void sleep_until_kicked(void)
{
    int64_t since = 0;
    uint64_t junk;

    watch_stop_telling(race.vm);
    doorbells_set_kick(race.vm);
    full_barrier();
    if (pending()) {
        return; /* the next look clears the kick words */
    }
    race.sleeps++;
    for (unsigned spins = 1; read(race.eventfd, &junk, sizeof(junk)) < 0; spins++) {
        if (atomic_load(&race.all_taken) == atomic_load(&race.total)) {
            break;
        }
        if (spins % 256 == 0) {
            sched_yield();
        }
        if (spins % 4096 == 0) {
            since = since ? since : vg_now_ns();
            /* Nothing posted, nothing lost: the poster may be held up. */
            if (posted() && vg_now_ns() - since > LOST_NS) {
                g_error("a doorbell was lost after %" PRIu64 " rounds",
                        atomic_load(&race.all_taken));
            }
        }
    }
}

static gpointer worker_thread(gpointer data)
{
    race.x = 88172645;
    while (atomic_load(&race.all_taken) < atomic_load(&race.total)) {
        if (!take()) {
            delay(&race.x, 64);
            if (next_random(&race.x) % 8 == 0) {
                sched_yield(); /* both may have one processor: a post before it sleeps */
            }
            sleep_until_kicked();
        }
    }
    return NULL;
}

/* Guest RAM with the extension memory and a header page for each queue. */
static void ext_open(void)
{
    unsigned pages = PVRDMA_EXT_PAGES + EXT_QUEUES;
    struct pvrdma_ext_mem *ext;

    race.map = g_malloc0(sizeof(*race.map) + sizeof(race.map->region[0]));
    race.map->generation = 1;
    race.map->n = 1;
    race.map->region[0] = (struct guest_region){
        .size = pages * PVRDMA_PAGE_SIZE,
        .hva = g_aligned_alloc0(pages, PVRDMA_PAGE_SIZE, PVRDMA_PAGE_SIZE),
        .writable = true,
    };
    atomic_store(&race.vm->guest.mem.map, race.map);
    TAILQ_INIT(&race.vm->dp.run);
    race.vm->dp.worker = &race.worker;

    race.ext_mem.npages = PVRDMA_EXT_PAGES;
    race.ext_mem.page = g_new0(uint64_t, pages);
    for (unsigned i = 0; i < pages; i++) {
        race.ext_mem.page[i] = i * PVRDMA_PAGE_SIZE;
    }
    datapath_ext_add(race.vm, &race.ext_mem);

    ext = (struct pvrdma_ext_mem *)(void *)race.map->region[0].hva;
    race.qp = g_new0(struct qp, EXT_QUEUES);
    memset(race.prod, 0, sizeof(race.prod));
    for (unsigned q = 0; q < EXT_QUEUES; q++) {
        struct pvrdma_ext_ring *head =
            (struct pvrdma_ext_ring *)((uint8_t *)(ext + 1) + q * PVRDMA_PAGE_SIZE);

        race.qp[q].vm = race.vm;
        race.qp[q].handle = q + 1;
        race.qp[q].mem.ext = true;
        race.qp[q].mem.page = &race.ext_mem.page[PVRDMA_EXT_PAGES + q];
        race.qp[q].sq.nwqe = EXT_WQES;
        pv_bell_init(&race.bell[q], &ext->head, &ext->send, &head->tx_no_notify, q + 1);
    }
}

static void ext_close(void)
{
    datapath_ext_clear(race.vm);
    g_free(race.qp);
    g_free(race.ext_mem.page);
    g_aligned_free(race.map->region[0].hva);
}

static void race_open(bool extended)
{
    memset(&race, 0, sizeof(race));
    race.extended = extended;
    race.queues = extended ? EXT_QUEUES : QUEUES;
    race.total = rounds();
    race.cfg.max_qp = 16384;
    race.vm = g_new0(struct vm, 1);
    race.vm->cfg = &race.cfg;
    race.vm->guest.db.own = g_new0(struct pvrdma_db_region, 1);
    race.vm->guest.db.shared = g_new0(struct pvrdma_db_region, 1);
    race.eventfd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (extended) {
        ext_open();
    } else {
        race.map = g_new0(struct guest_map, 1);
        atomic_store(&race.vm->guest.mem.map, race.map);
    }
}

static void race_close(void)
{
    if (race.extended) {
        ext_close();
    }
    g_free(race.map);
    close(race.eventfd);
    g_free(race.vm->guest.db.own);
    g_free(race.vm->guest.db.shared);
    g_free(race.vm);
}

static void test_post(const void *extended)
{
    int64_t end = vg_now_ns() + vgt_rounds(30000) * 1000000ll;
    uint32_t x = 2463534242u, q = 0;
    GThread *worker;

    race_open(extended);
    worker = g_thread_new("worker", worker_thread, NULL);
    for (uint64_t i = 0; i < race.total; i++) {
        /* An extended one often several times: by then it is watched. */
        if (!race.extended || next_random(&x) % 16 == 0) {
            q = next_random(&x) % race.queues;
        }
        if (race.extended) {
            post_ext(q);
        } else {
            post_shared(q);
        }
        /*
         * Mostly wait until it is taken, so that the worker goes to sleep, and in
         * any case before a ring is full.
         */
        if (next_random(&x) % 8 || i - atomic_load(&race.all_taken) >= EXT_WQES - 1) {
            for (unsigned s = 1; atomic_load(&race.all_taken) <= i; s++) {
                if (s % 1024 == 0) {
                    sched_yield();
                }
            }
        }
        /* At times long enough for a worker that a sanitizer slows down. */
        delay(&x, next_random(&x) % 32 ? 256 : 65536);
        if (i % 1024 == 1023 && vg_now_ns() > end) {
            race.total = i + 1;
        }
    }
    g_thread_join(worker);
    g_test_message("%" PRIu64 " posts, %" PRIu64 " sleeps", atomic_load(&race.total),
                   race.sleeps);
    g_assert_cmpuint(race.sleeps, >, race.total / 100);
    if (race.extended) {
        g_test_message("%" PRIu64 " without notification, %" PRIu64 " times a place",
                       race.silent, race.places_given);
        g_assert_cmpuint(race.silent, >, race.total / 100);
        g_assert_cmpuint(race.places_given, >, vgt_rounds(10 * DATAPATH_WATCHED));
    }
    race_close();
}

/* ---- the real daemon ---- */

/* Take one completion, sleeping on the interrupt whenever the CQ is empty. */
static void await(struct vgt_side *s, uint64_t wr_id, uint32_t *x, uint64_t *waits)
{
    struct pvrdma_cqe c;

    delay(x, next_random(x) % 4 ? 2000 : 20000);
    vg_cq_arm(s->scq, false);
    while (vg_cq_poll(s->scq, &c, 1) == 0) {
        (*waits)++;
        if (!vg_irq_wait(s->g, PVRDMA_VEC_CQ, LOST_NS / 1000000)) {
            g_error("no interrupt for an armed CQ, round %" PRIu64, wr_id);
        }
        /*
         * Once more: the worker may have been stopped between publishing the
         * completion before and looking at the arm word, so that it took this
         * arm for that one.  Programs arm again after every event.
         */
        vg_cq_arm(s->scq, false);
    }
    g_assert_cmpuint(c.wr_id, ==, wr_id);
    g_assert_cmpuint(c.status, ==, PVRDMA_WC_SUCCESS);
}

static void test_daemon(const void *data)
{
    struct vg_opts g = {.db = GPOINTER_TO_UINT(data)};
    struct vgt_opts o = {.guest = {g, g}};
    uint64_t total = rounds() / 50, waits = 0;
    /* An arm that is answered takes its time: so must the work, to be done after it. */
    uint32_t x = 7, handle, max = g.db == VG_DB_REPLY ? 300000 : 64;
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, &o);
    for (uint64_t i = 0; i < total; i++) {
        vgt_send(&p.s[0], i, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, next_random(&x) % max,
                 &p.s[1], 0);
        await(&p.s[0], i, &x, &waits);
        while (vg_cqn_poll(p.s[0].g, &handle)) {
            g_assert_cmpuint(handle, ==, p.s[0].scq->handle);
        }
    }
    g_test_message("%" PRIu64 " rounds, %" PRIu64 " waits for an interrupt", total,
                   waits);
    g_assert_cmpuint(waits, >, 0);
    vgt_pair_close(&p);
}

static void test_forwarded(void)
{
    struct vg_opts posted = {.db = VG_DB_POSTED};
    struct vgt_opts o = {.guest = {posted, posted}};
    uint64_t total = rounds() / 200;
    uint32_t x = 9, handle;
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, &o);
    for (uint64_t i = 0; i < total; i++) {
        struct pvrdma_cqe c;
        unsigned told = 0, arms = 1;

        vgt_send(&p.s[0], i, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, next_random(&x) % 64,
                 &p.s[1], 0);
        delay(&x, next_random(&x) % 4 ? 4000 : 40000);
        vg_cq_arm(p.s[0].scq, false);
        /* No look at the CQ: the arm itself must see what lies there. */
        while (told < arms) {
            if (!vg_irq_wait(p.s[0].g, PVRDMA_VEC_CQ, LOST_NS / 1000000)) {
                g_error("no interrupt for a forwarded arm, round %" PRIu64, i);
            }
            while (vg_cqn_poll(p.s[0].g, &handle)) {
                told++;
            }
            /* As in await(): taken for the completion before. */
            if (told == arms && !vg_cq_poll(p.s[0].scq, &c, 1)) {
                vg_cq_arm(p.s[0].scq, false);
                arms++;
            }
        }
        g_assert_cmpuint(c.wr_id, ==, i);
        if (i % 64 == 0) {
            /* A reply comes after all that was posted before it. */
            vg_reg_read(p.s[0].g, PVRDMA_REG_VERSION);
            g_usleep(200);
        }
        while (vg_cqn_poll(p.s[0].g, &handle)) {
            told++;
        }
        g_assert_cmpuint(told, ==, arms);
    }
    vgt_pair_close(&p);
}

/* Do all threads of the daemon wait for something?  Who waits for a processor only
 * is running to the kernel. */
static bool daemon_sleeps(void)
{
    g_autofree char *path = g_strdup_printf("/proc/%d/task", (int)vgt_daemon->pid);
    GDir *dir = g_dir_open(path, 0, NULL);
    bool sleeps = true;
    const char *tid;

    g_assert_nonnull(dir);
    while (sleeps && (tid = g_dir_read_name(dir))) {
        g_autofree char *file = g_build_filename(path, tid, "stat", NULL);
        g_autofree char *stat = NULL;
        const char *name_end;

        if (g_file_get_contents(file, &stat, NULL, NULL)) {
            name_end = strrchr(stat, ')');
            g_assert_nonnull(name_end);
            sleeps = name_end[2] == 'S';
        }
    }
    g_dir_close(dir);
    return sleeps;
}

/*
 * The next completion, which must not come by the RNR timer: if it is late, somebody
 * must be at work.  The machine may be busy.
 */
static void await_woken(struct vg_cq *cq, uint64_t wr_id)
{
    struct pvrdma_cqe c;
    unsigned asleep = 0;

    if (!vg_cq_wait(cq, &c, 300)) {
        /* Several looks: threads are looked at one by one, and may wake each other. */
        while (!vg_cq_poll(cq, &c, 1)) {
            asleep = daemon_sleeps() ? asleep + 1 : 0;
            if (asleep == 5) {
                g_error("no wake-up in round %" PRIu64, wr_id);
            }
            g_usleep(100);
        }
    }
    g_assert_cmpuint(c.wr_id, ==, wr_id);
    g_assert_cmpuint(c.status, ==, PVRDMA_WC_SUCCESS);
}

/*
 * A SEND without a receive WQE, and the receive WQE a moment later: the waiter
 * flag against the receive doorbell, on two workers.  A miss costs the whole
 * RNR timer, 655 ms, and none may be missed.
 */
static void test_rnr(const void *data)
{
    struct vg_opts g = {.db = GPOINTER_TO_UINT(data)};
    struct vgt_opts o = {.guest = {g, g}};
    struct pvrdma_qp_attr attr = {.qp_state = PVRDMA_QPS_RTS};
    uint64_t total = rounds() / 50, worst = 0;
    uint32_t x = 11;
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, &o);
    vg_qp_modify(p.s[1].qp, PVRDMA_QP_MIN_RNR_TIMER | PVRDMA_QP_STATE, &attr);
    for (uint64_t i = 0; i < total; i++) {
        uint64_t start, ns;

        vgt_send(&p.s[0], i, PVRDMA_WR_SEND, VGT_SIG, 0, 8, NULL, 0);
        delay(&x, next_random(&x) % 4 ? 3000 : 30000);
        start = vg_now_ns();
        vgt_recv(&p.s[1], i, 0, 8);
        await_woken(p.s[1].rcq, i);
        ns = vg_now_ns() - start;
        vgt_expect(p.s[0].scq, i, PVRDMA_WC_SUCCESS);
        worst = MAX(worst, ns);
    }
    g_test_message("%" PRIu64 " rounds, slowest wake-up %" PRIu64 " us", total,
                   worst / 1000);
    vgt_pair_close(&p);
}

int main(int argc, char **argv)
{
    struct vg_daemon_opts o = {.n_vms = 2, .poll_us = 0, .workers = 2};

    vgt_init(&argc, &argv, 200);
    vgt_daemon = vg_daemon_start(&o);
    g_test_add_data_func("/race/post/shared", NULL, test_post);
    g_test_add_data_func("/race/post/extended", GUINT_TO_POINTER(1), test_post);
    g_test_add_data_func("/race/daemon", GUINT_TO_POINTER(VG_DB_SHARED), test_daemon);
    g_test_add_data_func("/race/extended", GUINT_TO_POINTER(VG_DB_EXT), test_daemon);
    g_test_add_data_func("/race/answered", GUINT_TO_POINTER(VG_DB_REPLY), test_daemon);
    g_test_add_func("/race/forwarded", test_forwarded);
    g_test_add_data_func("/race/rnr/shared", GUINT_TO_POINTER(VG_DB_SHARED), test_rnr);
    g_test_add_data_func("/race/rnr/extended", GUINT_TO_POINTER(VG_DB_EXT), test_rnr);
    return vgt_run();
}
