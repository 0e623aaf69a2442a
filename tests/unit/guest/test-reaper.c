/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The reaper and the budgets: who unmaps, in which pieces and turns, what counts
 * until when, and who is refused.
 *
 * The linker sends the daemon's munmap() here (--wrap), where it can be held up.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "guest/budget.h"
#include "guest/reaper.h"
#include "objects/vm.h"
#include "pvrdma/vfio_user.h"

#define RW   (VFIO_USER_DMA_READ_FLAG | VFIO_USER_DMA_WRITE_FLAG)
#define MIB  (1ull << 20)
#define GIB  (1ull << 30)
#define TIB  (1ull << 40)
#define WAIT (10 * G_USEC_PER_SEC)

int __real_munmap(void *at, size_t len);
int __wrap_munmap(void *at, size_t len);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static pthread_t main_thread;
static bool watch;     /* look at munmap() at all */
static unsigned allow; /* pieces that may go on */
static bool held;      /* ... beyond which they wait */
static unsigned pieces, on_main;
static size_t largest, fail_up_to;
static void *order[64];

int __wrap_munmap(void *at, size_t len)
{
    bool fail = false;

    if (watch) {
        pthread_mutex_lock(&lock);
        while (held && allow == 0) {
            pthread_cond_wait(&changed, &lock);
        }
        allow -= allow > 0;
        on_main += pthread_equal(pthread_self(), main_thread) != 0;
        largest = MAX(largest, len);
        order[pieces++ % G_N_ELEMENTS(order)] = at;
        fail = len <= fail_up_to;
        pthread_mutex_unlock(&lock);
    }
    if (fail) {
        errno = ENOMEM;
        return -1;
    }
    return __real_munmap(at, len);
}

static void let(unsigned n, bool hold)
{
    pthread_mutex_lock(&lock);
    allow = n;
    held = hold;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static unsigned pieces_done(void)
{
    unsigned n;

    pthread_mutex_lock(&lock);
    n = pieces;
    pthread_mutex_unlock(&lock);
    return n;
}

static void begin(bool thread)
{
    g_autoptr(GError) err = NULL;

    guest_mem_init_process();
    if (thread) {
        g_assert_true(reaper_start(&err));
    }
    main_thread = pthread_self();
    pieces = on_main = 0;
    largest = fail_up_to = 0;
    let(0, false);
    watch = true;
}

static void end(void)
{
    let(0, false);
    reaper_stop();
    watch = false;
}

static struct vm_config test_config = {.name = (char *)"test"};

static void attach(struct vm *vm)
{
    vm->cfg = &test_config;
    guest_mem_init(&vm->guest.mem, &vm->guest, true);
}

static int sealed(uint64_t size)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    g_assert_cmpint(ftruncate(fd, (off_t)size), ==, 0);
    g_assert_cmpint(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), ==, 0);
    return fd;
}

/* Map a new file of @size at 0 (it needs no descriptor afterwards). */
static int map(struct vm *vm, uint64_t gpa, uint64_t size)
{
    int fd = sealed(size);
    int err = guest_mem_map(&vm->guest.mem, fd, 0, gpa, size, RW);

    close(fd);
    return err;
}

static struct guest_mem_stats stats(struct vm *vm)
{
    struct guest_mem_stats st;

    guest_mem_get_stats(&vm->guest.mem, &st);
    return st;
}

static void wait_pending(struct vm *vm, uint64_t bytes)
{
    gint64 deadline = g_get_monotonic_time() + WAIT;

    while (stats(vm).pending != bytes) {
        g_assert_cmpint(g_get_monotonic_time(), <, deadline);
        g_usleep(1000);
    }
}

/* Not by the main thread, not in one go, and counted until it is done. */
static void test_pieces(void)
{
    struct vm vm = {0};

    begin(true);
    attach(&vm);
    g_assert_cmpint(map(&vm, 0, GIB), ==, 0);
    let(0, true);
    g_assert_cmpint(guest_mem_unmap(&vm.guest.mem, 0, GIB, false), ==, 0);
    g_assert_cmpuint(stats(&vm).bytes, ==, 0);
    g_assert_cmpuint(stats(&vm).pending, ==, GIB);
    let(3, true);
    wait_pending(&vm, GIB - 3 * REAPER_PIECE);
    let(0, false);
    wait_pending(&vm, 0);
    g_assert_cmpuint(on_main, ==, 0);
    g_assert_cmpuint(largest, ==, REAPER_PIECE);
    g_assert_cmpuint(pieces_done(), ==, GIB / REAPER_PIECE);
    guest_mem_fini(&vm.guest.mem);
    g_assert_null(vm.guest.mem.budget);
    end();
}

/* Without the thread it is unmapped on return. */
static void test_no_thread(void)
{
    struct vm vm = {0};

    begin(false);
    attach(&vm);
    g_assert_cmpint(map(&vm, 0, GIB), ==, 0);
    guest_mem_fini(&vm.guest.mem);
    g_assert_cmpuint(pieces_done(), ==, 1);
    g_assert_null(vm.guest.mem.budget);
    end();
}

/* Two mappings take turns: the small one does not wait for all of the large. */
static void test_turns(void)
{
    struct vm a = {0}, b = {0};

    begin(true);
    attach(&a);
    attach(&b);
    g_assert_cmpint(map(&a, 0, 4 * GIB), ==, 0);
    g_assert_cmpint(map(&b, 0, 2 * REAPER_PIECE), ==, 0);
    let(0, true);
    guest_mem_fini(&a.guest.mem);
    guest_mem_fini(&b.guest.mem);
    let(6, true);
    wait_pending(&b, 0);
    g_assert_cmpuint(stats(&a).pending, >=, 3 * GIB);
    let(0, false);
    wait_pending(&a, 0);
    guest_mem_forget(&a.guest.mem);
    guest_mem_forget(&b.guest.mem);
    end();
}

/* The VM is gone before its memory is (the sanitizers watch). */
static void test_vm_freed(void)
{
    struct vm *vm = g_new0(struct vm, 1);
    struct budget_stats all;
    gint64 deadline = g_get_monotonic_time() + WAIT;

    begin(true);
    attach(vm);
    g_assert_cmpint(map(vm, 0, GIB), ==, 0);
    let(0, true);
    guest_mem_fini(&vm->guest.mem);
    guest_mem_forget(&vm->guest.mem);
    g_free(vm);
    budget_get_daemon(&all);
    g_assert_cmpuint(all.pending, ==, GIB);
    g_assert_cmpuint(all.bytes, ==, GIB);
    g_assert_cmpuint(all.mappings, ==, 1);
    let(0, false);
    do {
        g_assert_cmpint(g_get_monotonic_time(), <, deadline);
        g_usleep(1000);
        budget_get_daemon(&all);
    } while (all.bytes);
    g_assert_cmpuint(all.pending, ==, 0);
    g_assert_cmpuint(all.mappings, ==, 0);
    end();
}

/* A VM that comes and goes faster than it is unmapped has to wait, and comes back. */
static void test_piled_up(void)
{
    struct vm vm = {0};
    unsigned rounds = 0;

    begin(true);
    let(0, true);
    g_assert_false(guest_mem_piled_up(&vm.guest.mem));
    while (!guest_mem_piled_up(&vm.guest.mem)) {
        attach(&vm);
        g_assert_cmpint(map(&vm, 0, 2 * GIB), ==, 0);
        guest_mem_fini(&vm.guest.mem);
        g_assert_cmpuint(++rounds, <, 10);
    }
    g_assert_cmpuint(rounds, >=, 2); /* a restart or two are no offence */
    g_assert_cmpuint(stats(&vm).pending, ==, rounds * 2 * GIB);
    /* Nor may one that is there go on so. */
    attach(&vm);
    g_assert_cmpint(map(&vm, 0, 4096), ==, ENOSPC);
    g_assert_cmpuint(stats(&vm).refused, ==, 1);
    guest_mem_fini(&vm.guest.mem);
    let(0, false);
    wait_pending(&vm, 0);
    g_assert_false(guest_mem_piled_up(&vm.guest.mem));
    attach(&vm);
    g_assert_cmpint(map(&vm, 0, 4096), ==, 0);
    guest_mem_fini(&vm.guest.mem);
    wait_pending(&vm, 0);
    guest_mem_forget(&vm.guest.mem);
    end();
}

/* A piece that cannot be unmapped by itself goes with all the rest. */
static void test_no_piece(void)
{
    struct vm vm = {0};

    begin(true);
    attach(&vm);
    g_assert_cmpint(map(&vm, 0, GIB), ==, 0);
    fail_up_to = REAPER_PIECE;
    guest_mem_fini(&vm.guest.mem);
    wait_pending(&vm, 0);
    g_assert_cmpuint(largest, ==, GIB);
    guest_mem_forget(&vm.guest.mem);
    end();
}

/*
 * The daemon's budget: hostile VMs with 4 TiB each use up the common half, the rest
 * of them are refused, and everybody else still gets what is reserved.
 */
static void test_daemon_budget(void)
{
    struct vm vm[40] = {0};
    unsigned mapped = 0;
    struct budget_stats all;

#ifdef __SANITIZE_THREAD__
    g_test_skip("the thread sanitizer has no room for terabytes");
    return;
#endif
    begin(false);
    budget_set_daemon(64 * TIB);
    for (unsigned i = 0; i < 32; i++) {
        attach(&vm[i]);
        mapped += map(&vm[i], 0, 4 * TIB) == 0;
    }
    g_assert_cmpuint(mapped, ==, 8);
    budget_get_daemon(&all);
    g_assert_cmpuint(all.bytes, ==, 32 * TIB);
    for (unsigned i = 32; i < 40; i++) {
        attach(&vm[i]);
        g_assert_cmpint(map(&vm[i], 0, 32 * GIB), ==, 0);
        g_assert_cmpint(map(&vm[i], TIB, 3 * TIB), ==, ENOSPC);
    }
    for (unsigned i = 0; i < 40; i++) {
        guest_mem_fini(&vm[i].guest.mem);
    }
    budget_get_daemon(&all);
    g_assert_cmpuint(all.bytes, ==, 0);
    g_assert_cmpuint(all.mappings, ==, 0);
    end();
}

/* Likewise with mappings: few VMs cannot take those of all. */
static void test_mappings_budget(void)
{
    const unsigned n = 60;
    struct vm *vm = g_new0(struct vm, n + 1);
    struct budget_stats all;
    unsigned got = 0;

    begin(false);
    for (unsigned i = 0; i < n; i++) {
        attach(&vm[i]);
        guest_mem_limit(&vm[i].guest.mem, 0, 1024);
        for (unsigned k = 0; k < 1024 && map(&vm[i], k * 4096ull, 4096) == 0; k++) {
            got++;
        }
    }
    budget_get_daemon(&all);
    g_assert_cmpuint(got, ==, all.mappings);
    g_assert_cmpuint(got, <, all.max_mappings);
    attach(&vm[n]);
    for (unsigned k = 0; k < 8; k++) {
        g_assert_cmpint(map(&vm[n], k * 4096ull, 4096), ==, 0);
    }
    for (unsigned i = 0; i <= n; i++) {
        guest_mem_fini(&vm[i].guest.mem);
    }
    g_free(vm);
    end();
}

/* Whatever is taken and given back, in the end nothing is. */
static void test_sums(void)
{
    struct budget *b[5];
    uint64_t had[5][20] = {{0}};
    struct budget_stats st;
    GRand *r = g_rand_new_with_seed(3);

    budget_set_daemon(8 * TIB);
    for (unsigned i = 0; i < 5; i++) {
        b[i] = budget_new();
    }
    for (unsigned k = 0; k < 20000; k++) {
        unsigned i = g_rand_int(r) % 5, j = g_rand_int(r) % 20;
        uint64_t bytes = g_rand_int(r) % 1000000 * 4096ull + 4096;

        if (had[i][j]) {
            budget_retire(b[i], had[i][j]);
            budget_give(b[i], had[i][j], 1);
            had[i][j] = 0;
        } else if (!budget_take(b[i], bytes)) {
            had[i][j] = bytes;
        }
        budget_get_daemon(&st);
        g_assert_cmpuint(st.bytes, <=, st.max_bytes);
    }
    for (unsigned i = 0; i < 5; i++) {
        for (unsigned j = 0; j < 20; j++) {
            if (had[i][j]) {
                budget_retire(b[i], had[i][j]);
                budget_give(b[i], had[i][j], 1);
            }
        }
        budget_get(b[i], &st);
        g_assert_cmpuint(st.bytes + st.mappings + st.pending, ==, 0);
        budget_unref(b[i]);
    }
    budget_get_daemon(&st);
    g_assert_cmpuint(st.bytes + st.mappings + st.pending, ==, 0);
    budget_set_daemon(64 * TIB);
    g_rand_free(r);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    log_set_level(LOG_LVL_ERROR);
    g_test_add_func("/guest/reaper/pieces", test_pieces);
    g_test_add_func("/guest/reaper/no-thread", test_no_thread);
    g_test_add_func("/guest/reaper/turns", test_turns);
    g_test_add_func("/guest/reaper/vm-freed", test_vm_freed);
    g_test_add_func("/guest/reaper/piled-up", test_piled_up);
    g_test_add_func("/guest/reaper/no-piece", test_no_piece);
    g_test_add_func("/guest/budget/daemon", test_daemon_budget);
    g_test_add_func("/guest/budget/mappings", test_mappings_budget);
    g_test_add_func("/guest/budget/sums", test_sums);
    return g_test_run();
}
