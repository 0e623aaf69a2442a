/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: every store of the daemon to guest memory is in the dirty log.
 *
 * The daemon runs in this process, on a thread of its own, and virtual guests are its
 * clients as ever.  The guests store through their mapping of the RAM; the daemon's
 * mappings of it are read-only here.  A store there ends in a handler which notes the
 * page, takes the page's mark out of the log, as a collector might at that moment, and
 * lets the one instruction happen.  So when the daemon stands still, the log must have
 * each page that was stored to, and a mark for an earlier store to the same page does
 * not help.  (Two threads that store to one page at a time may escape the handler.)
 *
 * Instrumented builds see the first store to each page only: ThreadSanitizer keeps
 * the single step from working.
 */
#include "vgtest.h"

#include <errno.h>
#include <glib/gstdio.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "control/registry.h"
#include "datapath/datapath.h"
#include "directory/directory.h"
#include "grace.h"
#include "guest/budget.h"
#include "guest/reaper.h"
#include "vm.h"

#define PG         PVRDMA_PAGE_SIZE
#define RAM        (8u << 20) /* of each of a guest's two regions */
#define MAX_AREAS  4u
#define TRAP_FLAG  0x100
#define STEP_PAGES 4u /* that one instruction may store to */

/* A region of a guest's memory as the daemon has it. */
struct area {
    struct vm *vm;
    uint64_t gpa, size;
    uint8_t *hva;
    _Atomic bool stored[RAM / PG]; /* since the last check */
    bool marked[RAM / PG];         /* what the log had then */
    bool last[RAM / PG];           /* what was stored until then */
};

static struct area area[MAX_AREAS];
static _Atomic unsigned n_areas;
static _Atomic uint64_t n_stores;

/* ---- seeing the daemon's stores ---- */

static _Thread_local uint8_t *stepping[STEP_PAGES];
static _Thread_local unsigned n_stepping;

static void no_page(void *opaque, uint64_t gpa)
{
}

static struct area *find_area(const uint8_t *p)
{
    for (unsigned i = 0; i < atomic_load(&n_areas); i++) {
        if ((uintptr_t)p - (uintptr_t)area[i].hva < area[i].size) {
            return &area[i];
        }
    }
    return NULL;
}

static void on_store(int sig, siginfo_t *info, void *context)
{
    ucontext_t *uc = context;
    struct area *a = find_area(info->si_addr);
    int err = errno;
    uint64_t page;

    if (!a || n_stepping == STEP_PAGES) {
        signal(SIGSEGV, SIG_DFL); /* it comes again */
        return;
    }
    page = (uint64_t)((uint8_t *)info->si_addr - a->hva) / PG;
    atomic_store(&a->stored[page], true);
    atomic_fetch_add(&n_stores, 1);
    guest_dirty_collect(&a->vm->guest.mem, a->gpa + page * PG, PG, no_page, NULL);
    mprotect(a->hva + page * PG, PG, PROT_READ | PROT_WRITE);
    if (VGT_PLAIN_BUILD) {
        stepping[n_stepping++] = a->hva + page * PG;
        uc->uc_mcontext.gregs[REG_EFL] |= TRAP_FLAG;
    }
    errno = err;
}

static void on_step(int sig, siginfo_t *info, void *context)
{
    ucontext_t *uc = context;
    int err = errno;

    while (n_stepping) {
        mprotect(stepping[--n_stepping], PG, PROT_READ);
    }
    uc->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
    errno = err;
}

static void install_handlers(void)
{
    struct sigaction sa = {.sa_sigaction = on_store, .sa_flags = SA_SIGINFO};

    sigfillset(&sa.sa_mask);
    g_assert_cmpint(sigaction(SIGSEGV, &sa, NULL), ==, 0);
    sa.sa_sigaction = on_step;
    g_assert_cmpint(sigaction(SIGTRAP, &sa, NULL), ==, 0);
}

/* ---- the daemon ---- */

static struct {
    struct daemon_config *cfg;
    GMainLoop *loop;
    GThread *thread;
    pthread_mutex_t lock; /* of pthread: ThreadSanitizer does not see into GLib's */
    pthread_cond_t cond;
    bool ready;
} dmn = {.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};

static void declare(const char *name, const char *address)
{
    GError *err = NULL;
    struct vm_config *cfg = config_vm_new(dmn.cfg, name, &err);

    g_assert_no_error(err);
    g_assert_true(config_vm_set(cfg, "addresses", address, NULL));
    registry_add(cfg, &err);
    g_assert_no_error(err);
}

static gpointer daemon_main(gpointer unused)
{
    GError *err = NULL;

    pthread_mutex_lock(&dmn.lock); /* what was written before the thread began */
    pthread_mutex_unlock(&dmn.lock);
    guest_mem_init_process();
    directory_init();
    g_assert_true(grace_start(&err));
    g_assert_true(reaper_start(&err));
    g_assert_true(registry_start(&err));
    g_assert_true(datapath_start(2, 50, &err));
    declare("vm0", "10.0.0.1");
    declare("vm1", "10.0.0.2");
    pthread_mutex_lock(&dmn.lock);
    dmn.ready = true;
    pthread_cond_signal(&dmn.cond);
    pthread_mutex_unlock(&dmn.lock);
    g_main_loop_run(dmn.loop);
    registry_remove_all("the test ends");
    datapath_stop();
    registry_stop();
    reaper_stop();
    grace_stop();
    coro_fini();
    directory_fini();
    return NULL;
}

static void daemon_start(void)
{
    static struct vg_daemon d;
    GError *err = NULL;

    d.dir = g_dir_make_tmp("vguest-dirty-XXXXXX", &err);
    g_assert_no_error(err);
    vgt_daemon = &d;
    dmn.cfg = config_new();
    g_assert_true(config_set(dmn.cfg, "socket-dir", d.dir, false, NULL));
    config_complete(dmn.cfg);
    dmn.loop = g_main_loop_new(NULL, FALSE);
    pthread_mutex_lock(&dmn.lock);
    dmn.thread = g_thread_new("daemon", daemon_main, NULL);
    while (!dmn.ready) {
        pthread_cond_wait(&dmn.cond, &dmn.lock);
    }
    pthread_mutex_unlock(&dmn.lock);
}

struct call {
    void (*fn)(void *arg);
    void *arg;
    bool done;
};

static gboolean run_call(gpointer opaque)
{
    struct call *c = opaque, call;

    pthread_mutex_lock(&dmn.lock);
    call = *c;
    pthread_mutex_unlock(&dmn.lock);
    call.fn(call.arg);
    pthread_mutex_lock(&dmn.lock);
    c->done = true;
    pthread_cond_signal(&dmn.cond);
    pthread_mutex_unlock(&dmn.lock);
    return G_SOURCE_REMOVE;
}

/* Call @fn on the daemon's main thread. */
static void in_daemon(void (*fn)(void *arg), void *arg)
{
    struct call c;

    pthread_mutex_lock(&dmn.lock);
    c = (struct call){fn, arg, false};
    g_idle_add(run_call, &c);
    while (!c.done) {
        pthread_cond_wait(&dmn.cond, &dmn.lock);
    }
    pthread_mutex_unlock(&dmn.lock);
}

static void quit(void *arg)
{
    g_main_loop_quit(dmn.loop);
}

static void daemon_stop(void)
{
    in_daemon(quit, NULL);
    g_thread_join(dmn.thread);
    g_main_loop_unref(dmn.loop);
    config_free(dmn.cfg);
    g_rmdir(vgt_daemon->dir);
    g_free(vgt_daemon->dir);
    vgt_daemon = NULL;
}

/* ---- watching ---- */

static void protect(void)
{
    for (unsigned i = 0; i < atomic_load(&n_areas); i++) {
        g_assert_cmpint(mprotect(area[i].hva, area[i].size, PROT_READ), ==, 0);
    }
}

/* All of VM @arg's memory, from now on. */
static void watch_vm(void *arg)
{
    struct vm *vm = registry_find(arg);
    const struct guest_map *map = atomic_load(&vm->guest.mem.map);
    struct dirty_span span[MAX_AREAS];
    unsigned n = atomic_load(&n_areas);

    g_assert_cmpuint(n + map->n, <=, MAX_AREAS);
    for (unsigned i = 0; i < map->n; i++) {
        const struct guest_region *r = &map->region[i];

        g_assert_cmpuint(r->size, ==, RAM);
        memset(&area[n + i], 0, sizeof(area[0]));
        area[n + i].vm = vm;
        area[n + i].gpa = r->gpa;
        area[n + i].size = r->size;
        area[n + i].hva = r->hva;
        span[i] = (struct dirty_span){r->gpa, r->size};
    }
    g_assert_cmpint(guest_dirty_start(&vm->guest.mem, span, map->n), ==, 0);
    atomic_store(&n_areas, n + map->n);
    protect();
}

static void unwatch(void *unused)
{
    unsigned n = atomic_load(&n_areas);

    for (unsigned i = 0; i < n; i++) {
        g_assert_cmpint(mprotect(area[i].hva, area[i].size, PROT_READ | PROT_WRITE), ==,
                        0);
        guest_dirty_stop(&area[i].vm->guest.mem);
    }
    atomic_store(&n_areas, 0);
}

static void note_mark(void *opaque, uint64_t gpa)
{
    struct area *a = opaque;

    a->marked[(gpa - a->gpa) / PG] = true;
}

static void check_area(struct area *a, const char *what)
{
    memset(a->marked, 0, sizeof(a->marked));
    g_assert_cmpint(guest_dirty_collect(&a->vm->guest.mem, a->gpa, a->size, note_mark, a),
                    ==, 0);
    for (unsigned i = 0; i < RAM / PG; i++) {
        a->last[i] = atomic_exchange(&a->stored[i], false);
        if (a->last[i] && !a->marked[i]) {
            g_error("%s: %s: page 0x%" PRIx64 " was stored to and is not marked", what,
                    a->vm->cfg->name, a->gpa + i * (uint64_t)PG);
        }
    }
}

static void check_all(void *what)
{
    for (unsigned i = 0; i < atomic_load(&n_areas); i++) {
        datapath_pause(area[i].vm);
    }
    for (unsigned i = 0; i < atomic_load(&n_areas); i++) {
        check_area(&area[i], what);
    }
    protect();
    for (unsigned i = 0; i < atomic_load(&n_areas); i++) {
        datapath_resume(area[i].vm);
    }
}

/* The daemon stands still: is all of what it stored since the last check marked? */
static void check(const char *what)
{
    uint64_t before = atomic_exchange(&n_stores, 0);

    in_daemon(check_all, (void *)what);
    g_test_message("%s: %" PRIu64 " stores", what, before);
}

/* Did the daemon store to this page of VM @g before the last check? */
static bool was_stored(const struct vguest *g, uint64_t gpa)
{
    for (unsigned i = 0; i < atomic_load(&n_areas); i++) {
        if (area[i].vm->cfg->name[2] - '0' == (int)g->index &&
            gpa - area[i].gpa < area[i].size) {
            return area[i].last[(gpa - area[i].gpa) / PG];
        }
    }
    g_assert_not_reached();
}

static bool any_stored(const struct vguest *g, const struct vg_buf *b, unsigned first)
{
    bool any = false;

    for (unsigned i = first; i < b->npages; i++) {
        any |= was_stored(g, b->page[i]);
    }
    return any;
}

/* ---- what makes the daemon store ---- */

static void open_side(struct vgt_side *s, unsigned vm, enum vg_db_mode mode)
{
    struct vg_opts o = {.low_size = RAM, .high_size = RAM, .db = mode};

    s->g = vguest_open(vgt_daemon, vm, &o);
    g_assert_cmpint(vg_attach_again(s->g, 5000), ==, 0);
    in_daemon(watch_vm, vm ? "vm1" : "vm0");
    g_assert_cmpint(vg_bring_up(s->g), ==, 0);
    check("bring-up");
    g_assert_true(was_stored(s->g, s->g->dsr_gpa));
    g_assert_true(was_stored(s->g, s->g->resp_gpa));
    if (mode == VG_DB_EXT) {
        g_assert_true(was_stored(s->g, s->g->ext_buf->page[0]));
    }

    s->pd = vg_pd_new(s->g);
    s->scq = vg_cq_new(s->pd, 64);
    s->rcq = vg_cq_new(s->pd, 64);
    s->qp = vg_qp_new(s->pd, s->scq, s->rcq, NULL);
    s->mr = vg_mr_alloc(s->pd, 0x7f1200000000ull, 64 << 10, VG_ACCESS_ALL);
    check("objects");
    g_assert_true(was_stored(s->g, s->g->resp_gpa));
    g_assert_cmpint(was_stored(s->g, s->qp->mem->page[0]), ==, mode == VG_DB_EXT);
}

static void send_armed(struct vgt_side *a, struct vgt_side *b)
{
    vgt_recv(b, 1, 0, 3000);
    vg_cq_arm(b->rcq, true);
    vg_cq_arm(a->scq, false);
    vgt_send(a, 2, PVRDMA_WR_SEND, VGT_SIG | PVRDMA_SEND_SOLICITED, 0, 3000, NULL, 0);
    vgt_expect(a->scq, 2, PVRDMA_WC_SUCCESS);
    vgt_expect(b->rcq, 1, PVRDMA_WC_SUCCESS);
    g_assert_true(vg_cqn_wait(b->g, b->rcq->handle, VGT_WAIT_MS));
    g_assert_true(vg_cqn_wait(a->g, a->scq->handle, VGT_WAIT_MS));
    check("SEND to an armed CQ");
    g_assert_true(was_stored(b->g, b->mr->buf->page[0]));
    g_assert_true(was_stored(b->g, b->rcq->mem->page[0]));
    g_assert_true(any_stored(b->g, b->rcq->mem, 1));
    g_assert_true(was_stored(b->g, b->qp->mem->page[0]));
    g_assert_true(was_stored(b->g, b->g->cqn_ring->page[0]));
    g_assert_true(any_stored(b->g, b->g->cqn_ring, 1));
    g_assert_true(was_stored(a->g, a->qp->mem->page[0]));
    g_assert_true(any_stored(a->g, a->scq->mem, 1));
    g_assert_false(was_stored(a->g, a->mr->buf->page[0]));
}

/* @opcode, 20,000 bytes or a word; who is stored to: @to. */
static void one_op(struct vgt_side *a, struct vgt_side *b, uint32_t opcode, uint32_t len,
                   const struct vgt_side *to)
{
    struct pvrdma_sge sge = vg_sge(a->mr, 4096, len);
    struct vg_wr wr = {.wr_id = opcode,
                       .opcode = opcode,
                       .flags = VGT_SIG,
                       .remote_addr = b->mr->buf->va + 4096,
                       .rkey = b->mr->rkey,
                       .compare_add = 0,
                       .swap = 7,
                       .nsge = 1,
                       .sge = &sge};
    char *what = g_strdup_printf("operation %u", opcode);

    if (opcode == PVRDMA_WR_RDMA_WRITE_WITH_IMM) {
        vgt_recv(b, opcode, 0, 0);
    }
    g_assert_cmpuint(vg_post_send(a->qp, &wr, 1), ==, 1);
    vgt_expect(a->scq, opcode, PVRDMA_WC_SUCCESS);
    if (opcode == PVRDMA_WR_RDMA_WRITE_WITH_IMM) {
        vgt_expect(b->rcq, opcode, PVRDMA_WC_SUCCESS);
    }
    check(what);
    g_assert_true(was_stored(to->g, to->mr->buf->page[1]));
    g_free(what);
}

static void ops(struct vgt_side *a, struct vgt_side *b)
{
    one_op(a, b, PVRDMA_WR_RDMA_WRITE, 20000, b);
    one_op(a, b, PVRDMA_WR_RDMA_WRITE, 8, b);
    one_op(a, b, PVRDMA_WR_RDMA_WRITE_WITH_IMM, 100, b);
    one_op(a, b, PVRDMA_WR_RDMA_READ, 20000, a);
    one_op(a, b, PVRDMA_WR_ATOMIC_FETCH_AND_ADD, 8, b);
    one_op(a, b, PVRDMA_WR_ATOMIC_CMP_AND_SWP, 8, b);
    one_op(a, b, PVRDMA_WR_ATOMIC_CMP_AND_SWP, 8, a);
}

/*
 * All workers have parked the watched VMs and sleep: they have stored what they tell a
 * guest before that.  A worker that sleeps is offline (grace.h).
 */
static void await_sleep(void)
{
    gint64 end = g_get_monotonic_time() + VGT_WAIT_MS * 1000;

    while (!grace_is_over(UINT64_MAX)) {
        g_assert_cmpint(g_get_monotonic_time(), <, end);
        g_usleep(100);
    }
}

/* Doorbells of all kinds, and the words that a worker stores before it sleeps. */
static void stream(struct vgt_side *a, struct vgt_side *b)
{
    gint64 end;

    for (unsigned i = 0; i < 200; i++) {
        vgt_send(a, i, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 64, b, 0);
        vgt_recv(b, i, 0, 64);
        vgt_send(a, i, PVRDMA_WR_SEND, VGT_SIG, 0, 64, NULL, 0);
        vgt_expect(a->scq, i, PVRDMA_WC_SUCCESS);
        vgt_expect(a->scq, i, PVRDMA_WC_SUCCESS);
        vgt_expect(b->rcq, i, PVRDMA_WC_SUCCESS);
        if (i % 50 == 0) {
            g_usleep(2000);
        }
    }
    check("stream");
    await_sleep();
    check("sleep");
    end = g_get_monotonic_time() + VGT_WAIT_MS * 1000;
    do { /* a worker that happens to be awake needs no bit in a map */
        g_assert_cmpint(g_get_monotonic_time(), <, end);
        vgt_send(a, 1, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 64, b, 0);
        vgt_expect(a->scq, 1, PVRDMA_WC_SUCCESS);
        await_sleep();
        check("waking and sleep");
    } while (a->qp->sq.no_notify && !(was_stored(a->g, a->qp->mem->page[0]) &&
                                      was_stored(a->g, a->g->ext_buf->page[0]) &&
                                      any_stored(a->g, a->g->ext_buf, 1)));
}

/* Arming that comes as a message, posted, with a completion there already. */
static void arm_message(struct vgt_side *a, struct vgt_side *b)
{
    uint64_t at = a->scq->uar_page * (uint64_t)PG + PVRDMA_UAR_CQ;
    uint32_t arm[] = {a->scq->handle | PVRDMA_UAR_CQ_ARM_SOL,
                      a->scq->handle | PVRDMA_UAR_CQ_ARM};

    vgt_send(a, 3, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 64, b, 0);
    while (__atomic_load_n(a->scq->prod_tail, __ATOMIC_ACQUIRE) == *a->scq->cons_head) {
        g_usleep(100);
    }
    for (unsigned i = 0; i < G_N_ELEMENTS(arm); i++) {
        g_assert_cmpint(
            vg_region_write(a->g, PVRDMA_BAR_UAR, at, &arm[i], sizeof(arm[i]), true), ==,
            0);
        /* A reply comes after all that was posted before it. */
        vg_reg_read(a->g, PVRDMA_REG_VERSION);
        check("arm");
        if (a->scq->ext) {
            g_assert_true(was_stored(a->g, a->scq->mem->page[0]));
        }
    }
    g_assert_true(vg_cqn_wait(a->g, a->scq->handle, VGT_WAIT_MS));
    vgt_expect(a->scq, 3, PVRDMA_WC_SUCCESS);
}

static void errors(struct vgt_side *a, struct vgt_side *b)
{
    struct pvrdma_sge sge = vg_sge(a->mr, 0, 8);
    struct vg_wr wr = {.wr_id = 1,
                       .opcode = PVRDMA_WR_RDMA_WRITE,
                       .flags = VGT_SIG,
                       .remote_addr = b->mr->buf->va,
                       .rkey = b->mr->rkey ^ 0x5500,
                       .nsge = 1,
                       .sge = &sge};

    vgt_recv(b, 9, 0, 64);
    g_assert_cmpuint(vg_post_send(a->qp, &wr, 1), ==, 1);
    vgt_expect(a->scq, 1, PVRDMA_WC_REM_ACCESS_ERR);
    vgt_expect(b->rcq, 9, PVRDMA_WC_WR_FLUSH_ERR);
    g_assert_true(
        vg_event_wait(b->g, PVRDMA_EVENT_QP_ACCESS_ERR, b->qp->handle, VGT_WAIT_MS));
    check("errors");
    g_assert_true(was_stored(b->g, b->g->async_ring->page[0]));
    g_assert_true(any_stored(b->g, b->g->async_ring, 1));
}

static void test_mode(gconstpointer arg)
{
    enum vg_db_mode mode = GPOINTER_TO_UINT(arg);
    struct vgt_side s[2];

    for (unsigned i = 0; i < 2; i++) {
        open_side(&s[i], i, mode);
    }
    vg_qp_connect(s[0].qp, s[1].qp, NULL);
    check("connect");
    g_assert_true(was_stored(s[0].g, s[0].g->resp_gpa));
    send_armed(&s[0], &s[1]);
    ops(&s[0], &s[1]);
    stream(&s[0], &s[1]);
    arm_message(&s[0], &s[1]);
    errors(&s[0], &s[1]);
    for (unsigned i = 0; i < 2; i++) {
        vg_mr_free(s[i].mr);
        vg_qp_free(s[i].qp);
        vg_cq_free(s[i].scq);
        vg_cq_free(s[i].rcq);
        vg_pd_free(s[i].pd);
    }
    check("destruction");
    for (unsigned i = 0; i < 2; i++) {
        g_assert_cmpint(vg_reset(s[i].g), ==, 0);
    }
    check("reset");
    in_daemon(unwatch, NULL);
    for (unsigned i = 0; i < 2; i++) {
        vguest_free(s[i].g);
    }
}

int main(int argc, char **argv)
{
    int ret;

    vgt_init(&argc, &argv, 120);
    log_set_level(LOG_LVL_ERROR);
    install_handlers();
    daemon_start();
    g_test_add_data_func("/dirty/shared", GUINT_TO_POINTER(VG_DB_SHARED), test_mode);
    g_test_add_data_func("/dirty/messages", GUINT_TO_POINTER(VG_DB_REPLY), test_mode);
    g_test_add_data_func("/dirty/extended", GUINT_TO_POINTER(VG_DB_EXT), test_mode);
    ret = g_test_run();
    daemon_stop();
    return ret;
}
