/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Every store of the daemon to guest memory, and the dirty log; see dirty.h.
 *
 * The daemon's mappings are read-only.  A store there ends in a handler which notes the
 * page, takes the page's mark out of the log, as a collector might at that moment, and
 * lets the one instruction happen.  So when the daemon stands still, the log must have
 * each page that was stored to, and a mark for an earlier store to the same page does
 * not help.  (Two threads that store to one page at a time may escape the handler.)
 *
 * Instrumented builds see the first store to each page only: ThreadSanitizer keeps
 * the single step from working.
 *
 * Threads: the handler is any thread's that stores; areas change while the daemon's main
 * thread is here, and workers pause.
 */
#include "dirty.h"

#include <errno.h>
#include <glib/gstdio.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "base/grace.h"
#include "control/registry.h"
#include "datapath/datapath.h"
#include "directory/directory.h"
#include "guest/budget.h"
#include "guest/reaper.h"
#include "pvrdma/dirty.h"
#include "transport/iwarp/iwarp.h"
#include "vm/attach.h"

#define PG         PVRDMA_PAGE_SIZE
#define RAM        DIRTY_RAM
#define MAX_AREAS  4u
#define TRAP_FLAG  0x100
#define STEP_PAGES 4u /* that one instruction may store to */
/* Of the log's bits, for one region. */
#define SHARED_BYTES pvrdma_dirty_bytes(RAM)

/* A region of a guest's memory as the daemon has it. */
struct area {
    struct vm *vm;
    uint64_t gpa, size;
    uint8_t *hva;
    _Atomic bool stored[RAM / PG]; /* since the last check */
    bool marked[RAM / PG];         /* what the log had then */
    _Atomic uint64_t *shared;      /* the log's bits, if we have them */
    bool last[RAM / PG];           /* what was stored until then */
};

static struct area area[MAX_AREAS];
static _Atomic unsigned n_areas;
static bool seen = true; /* stores are: memory is read-only */
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

    if (!n_stepping) { /* no step of ours, but g_error(), after which nothing is to come
                        */
        signal(SIGTRAP, SIG_DFL);
        raise(SIGTRAP);
        return;
    }
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
    g_assert_true(tcp_open(dmn.cfg->local_path != CONFIG_PATH_AUTO, &err));
    tcp_use(dmn.cfg);
    declare("vm0", "10.0.0.1");
    declare("vm1", "10.0.0.2");
    pthread_mutex_lock(&dmn.lock);
    dmn.ready = true;
    pthread_cond_signal(&dmn.cond);
    pthread_mutex_unlock(&dmn.lock);
    g_main_loop_run(dmn.loop);
    registry_remove_all("the test ends");
    tcp_close();
    datapath_stop();
    registry_stop();
    reaper_stop();
    grace_stop();
    coro_fini();
    directory_fini();
    return NULL;
}

void dirty_begin(void)
{
    static struct vg_daemon d;
    GError *err = NULL;

    log_set_level(LOG_LVL_ERROR);
    install_handlers();
    d.dir = g_dir_make_tmp("vguest-dirty-XXXXXX", &err);
    g_assert_no_error(err);
    vgt_daemon = &d;
    dmn.cfg = config_new();
    g_assert_true(config_set(dmn.cfg, "socket-dir", d.dir, false, NULL));
    if (g_getenv("VGUEST_PATH")) {
        g_assert_true(config_set(dmn.cfg, "path", g_getenv("VGUEST_PATH"), false, NULL));
    }
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

void dirty_end(void)
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
        g_assert_cmpint(mprotect(area[i].hva, area[i].size,
                                 seen ? PROT_READ : PROT_READ | PROT_WRITE),
                        ==, 0);
    }
}

/* The log as a client has it that shares it; areas @first and following are to be its. */
static void share(struct vm *vm, unsigned first, const struct dirty_span *span,
                  unsigned n)
{
    uint64_t offset = 0;
    int fd;

    g_assert_cmpint(guest_dirty_share(&vm->guest.mem, span, n, &fd), ==, 0);
    for (unsigned i = 0; i < n; i++) {
        void *p = mmap(NULL, SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                       (off_t)offset);

        g_assert_true(p != MAP_FAILED);
        area[first + i].shared = p;
        offset += pvrdma_dirty_bytes(span[i].size);
    }
    close(fd);
}

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
    if (g_getenv("VGUEST_SHARED_LOG")) {
        share(vm, n, span, map->n);
    } else {
        g_assert_cmpint(guest_dirty_start(&vm->guest.mem, span, map->n), ==, 0);
    }
    atomic_store(&n_areas, n + map->n);
    protect();
}

void dirty_watch(const struct vguest *g)
{
    in_daemon(watch_vm, g->index ? "vm1" : "vm0");
}

static void unwatch(void *unused)
{
    unsigned n = atomic_load(&n_areas);

    for (unsigned i = 0; i < n; i++) {
        g_assert_cmpint(mprotect(area[i].hva, area[i].size, PROT_READ | PROT_WRITE), ==,
                        0);
        guest_dirty_stop(&area[i].vm->guest.mem);
        if (area[i].shared) {
            munmap((void *)area[i].shared, SHARED_BYTES);
        }
    }
    atomic_store(&n_areas, 0);
}

static void note_mark(void *opaque, uint64_t gpa)
{
    struct area *a = opaque;

    a->marked[(gpa - a->gpa) / PG] = true;
}

/* As a client does, without asking. */
static void take_shared(struct area *a)
{
    for (uint64_t w = 0; w < RAM / PG / 64; w++) {
        uint64_t bits = atomic_exchange(&a->shared[w], 0);

        for (; bits; bits &= bits - 1) {
            a->marked[w * 64 + (unsigned)__builtin_ctzll(bits)] = true;
        }
    }
}

static void check_area(struct area *a, const char *what)
{
    memset(a->marked, 0, sizeof(a->marked));
    if (a->shared) {
        take_shared(a);
    } else {
        g_assert_cmpint(
            guest_dirty_collect(&a->vm->guest.mem, a->gpa, a->size, note_mark, a), ==, 0);
    }
    for (unsigned i = 0; i < RAM / PG; i++) {
        a->last[i] = atomic_exchange(&a->stored[i], false);
        if (a->last[i] && !a->marked[i]) {
            g_error("%s: %s: page 0x%" PRIx64 " was stored to and is not marked", what,
                    a->vm->cfg->name, a->gpa + i * (uint64_t)PG);
        }
    }
}

void dirty_unwatch(void)
{
    in_daemon(unwatch, NULL);
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

void dirty_check(const char *what)
{
    uint64_t before = atomic_exchange(&n_stores, 0);

    in_daemon(check_all, (void *)what);
    g_test_message("%s: %" PRIu64 " stores", what, before);
}

static void see(void *arg)
{
    seen = GPOINTER_TO_INT(arg);
    protect();
}

void dirty_see(bool on)
{
    dirty_check("what came before");
    in_daemon(see, GINT_TO_POINTER(on));
}

static const struct area *area_of(const struct vguest *g, uint64_t gpa)
{
    for (unsigned i = 0; i < atomic_load(&n_areas); i++) {
        if (area[i].vm->cfg->name[2] - '0' == (int)g->index &&
            gpa - area[i].gpa < area[i].size) {
            return &area[i];
        }
    }
    g_assert_not_reached();
}

bool dirty_stored(const struct vguest *g, uint64_t gpa)
{
    const struct area *a = area_of(g, gpa);

    return a->last[(gpa - a->gpa) / PG];
}

bool dirty_any_stored(const struct vguest *g, const struct vg_buf *b, unsigned first)
{
    bool any = false;

    for (unsigned i = first; i < b->npages; i++) {
        any |= dirty_stored(g, b->page[i]);
    }
    return any;
}

bool dirty_marked(const struct vguest *g, uint64_t gpa)
{
    const struct area *a = area_of(g, gpa);

    return a->marked[(gpa - a->gpa) / PG];
}

/* A worker that sleeps is offline (grace.h). */
void dirty_await_sleep(void)
{
    gint64 end = g_get_monotonic_time() + VGT_WAIT_MS * 1000;

    while (!grace_is_over(UINT64_MAX)) {
        g_assert_cmpint(g_get_monotonic_time(), <, end);
        g_usleep(100);
    }
}
