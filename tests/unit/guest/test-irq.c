/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Interrupts: what is taken as an eventfd, latching, swapping under fire, and
 * clients that make their eventfd block.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/coro.h"
#include "datapath/datapath.h"
#include "guest/irq.h"

struct fixture {
    struct vm vm;
    struct guest_irq *irq;
};

static struct vm_config test_config = {.name = (char *)"test"};

static void setup(struct fixture *f, gconstpointer arg)
{
    f->vm.cfg = &test_config;
    f->vm.guest.log.name = test_config.name;
    f->irq = &f->vm.guest.irq;
    irq_init(f->irq, &f->vm.guest);
    irq_enable(f->irq, true);
}

static void teardown(struct fixture *f, gconstpointer arg)
{
    irq_fini(f->irq);
}

/* Give vector @vec a new eventfd; returns our own descriptor of it. */
static int give(struct fixture *f, unsigned vec, int flags)
{
    int fd = eventfd(0, EFD_CLOEXEC | flags);
    int mine = fcntl(fd, F_DUPFD_CLOEXEC, 0);

    g_assert_cmpint(mine, >=, 0);
    g_assert_cmpint(irq_assign(f->irq, vec, fd), ==, 0);
    return mine;
}

/* The counter, which becomes 0; reading does not block. */
static uint64_t count(int fd)
{
    uint64_t n = 0;

    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    return read(fd, &n, sizeof(n)) == sizeof(n) ? n : 0;
}

static void test_raise(struct fixture *f, gconstpointer arg)
{
    int fd[IRQ_VECTORS];

    for (unsigned i = 0; i < IRQ_VECTORS; i++) {
        fd[i] = give(f, i, 0);
    }
    irq_raise(f->irq, 1);
    irq_raise(f->irq, 2);
    irq_raise(f->irq, 2);
    irq_raise(f->irq, IRQ_VECTORS);
    irq_raise(f->irq, UINT_MAX);
    g_assert_cmpuint(count(fd[0]), ==, 0);
    g_assert_cmpuint(count(fd[1]), ==, 1);
    g_assert_cmpuint(count(fd[2]), ==, 2);
    g_assert_cmpuint(atomic_load(&f->irq->vec[2].raised), ==, 2);
    for (unsigned i = 0; i < IRQ_VECTORS; i++) {
        close(fd[i]);
    }
    g_assert_cmpint(irq_assign(f->irq, IRQ_VECTORS, -1), ==, EINVAL);
}

/* What cannot leave is delivered once, when it can. */
static void test_latch(struct fixture *f, gconstpointer arg)
{
    int fd;

    irq_raise(f->irq, 0);
    irq_raise(f->irq, 0);
    fd = give(f, 0, EFD_NONBLOCK);
    g_assert_cmpuint(count(fd), ==, 1);

    irq_mask(f->irq, 0, true);
    irq_raise(f->irq, 0);
    irq_raise(f->irq, 0);
    g_assert_cmpuint(count(fd), ==, 0);
    irq_enable(f->irq, false);
    irq_mask(f->irq, 0, false);
    g_assert_cmpuint(count(fd), ==, 0);
    irq_enable(f->irq, true);
    g_assert_cmpuint(count(fd), ==, 1);
    irq_mask(f->irq, 0, true);
    irq_mask(f->irq, 0, false);
    g_assert_cmpuint(count(fd), ==, 0);

    /* De-assigned: the old one gets nothing, the next one the latched. */
    g_assert_cmpint(irq_assign(f->irq, 0, -1), ==, 0);
    irq_raise(f->irq, 0);
    g_assert_cmpuint(count(fd), ==, 0);
    close(fd);
    fd = give(f, 0, 0);
    g_assert_cmpuint(count(fd), ==, 1);

    irq_enable(f->irq, false);
    irq_raise(f->irq, 0);
    irq_forget_pending(f->irq);
    irq_enable(f->irq, true);
    g_assert_cmpuint(count(fd), ==, 0);
    close(fd);
}

static void test_not_eventfd(struct fixture *f, gconstpointer arg)
{
    int pipes[2];
    int fds[6];

    g_assert_cmpint(pipe2(pipes, O_CLOEXEC), ==, 0);
    fds[0] = pipes[0];
    fds[1] = pipes[1];
    fds[2] = memfd_create("eventfd-count:", MFD_CLOEXEC);
    fds[3] = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    fds[4] = epoll_create1(EPOLL_CLOEXEC);
    fds[5] = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (unsigned i = 0; i < G_N_ELEMENTS(fds); i++) {
        g_assert_cmpint(fds[i], >=, 0);
        g_assert_false(irq_is_eventfd(fds[i]));
        close(fds[i]);
    }
    g_assert_false(irq_is_eventfd(99999));
    g_assert_cmpint(irq_assign(f->irq, 0, 99999), ==, EINVAL);
    g_assert_cmpint(atomic_load(&f->irq->vec[0].fd), ==, -1);
}

/* A full counter means that the interrupt is pending: nothing to do. */
static void test_full(struct fixture *f, gconstpointer arg)
{
    int fd = give(f, 0, 0);
    uint64_t max = UINT64_MAX - 1;

    g_assert_cmpint(write(fd, &max, sizeof(max)), ==, sizeof(max));
    fcntl(fd, F_SETFL, 0);
    irq_raise(f->irq, 0);
    irq_raise(f->irq, 0);
    g_assert_null(atomic_load(&f->vm.guest.fault));
    g_assert_cmpuint(count(fd), ==, max);
    close(fd);
}

/*
 * The linker sends irq.c's poll() here (--wrap=poll): a client that wins the
 * race between poll() and write() every time.
 */
int __real_poll(struct pollfd *fds, nfds_t n, int timeout);
int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout);

static int hostile_fd = -1;

int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout)
{
    int res = __real_poll(fds, n, timeout);
    uint64_t max = UINT64_MAX - 1;

    if (hostile_fd >= 0) {
        g_assert_cmpint(write(hostile_fd, &max, sizeof(max)), ==, sizeof(max));
        fcntl(hostile_fd, F_SETFL, 0);
    }
    return res;
}

static void *raise_as_worker(void *arg)
{
    irq_thread_register(IRQ_MAX_THREADS - 1); /* no real worker has it */
    irq_raise(arg, 0);
    return NULL;
}

/* A worker's write blocks, is broken off in time, and the VM pays for it. */
static void test_blocking(struct fixture *f, gconstpointer arg)
{
    gint64 begin = g_get_monotonic_time();
    pthread_t thread;

    hostile_fd = give(f, 0, 0);
    g_assert_true(datapath_start(1, 0, NULL));
    g_assert_cmpint(pthread_create(&thread, NULL, raise_as_worker, f->irq), ==, 0);
    pthread_join(thread, NULL);
    g_assert_cmpint(g_get_monotonic_time() - begin, <, 3 * G_USEC_PER_SEC);
    g_assert_nonnull(atomic_load(&f->vm.guest.fault));
    datapath_stop();
    close(hostile_fd);
    hostile_fd = -1;
}

static int hostile_fds[IRQ_VECTORS];

static void *raise_all_as_worker(void *arg)
{
    irq_thread_register(IRQ_MAX_THREADS - 1);
    for (unsigned i = 0; i < IRQ_VECTORS; i++) {
        hostile_fd = hostile_fds[i];
        irq_raise(arg, i);
    }
    return NULL;
}

/* All of a VM's eventfds would block: the first costs a while, the others nothing. */
static void test_all_blocking(struct fixture *f, gconstpointer arg)
{
    gint64 begin = g_get_monotonic_time();
    pthread_t thread;

    for (unsigned i = 0; i < IRQ_VECTORS; i++) {
        hostile_fds[i] = give(f, i, 0);
    }
    g_assert_true(datapath_start(1, 0, NULL));
    g_assert_cmpint(pthread_create(&thread, NULL, raise_all_as_worker, f->irq), ==, 0);
    pthread_join(thread, NULL);
    hostile_fd = -1;
    /* Each would take two ticks of the watchdog, 100 ms. */
    g_assert_cmpint(g_get_monotonic_time() - begin, <, 2 * G_USEC_PER_SEC);
    g_assert_nonnull(atomic_load(&f->vm.guest.fault));
    datapath_stop();
    for (unsigned i = 0; i < IRQ_VECTORS; i++) {
        close(hostile_fds[i]);
    }
}

/* The main thread's raises, of every kind, do not wait for such a client. */
static void test_main_thread(struct fixture *f, gconstpointer arg)
{
    int fd = give(f, 0, 0);
    gint64 begin;

    g_assert_true(datapath_start(1, 0, NULL));
    irq_raise(f->irq, 0); /* and they arrive, each once */
    irq_raise(f->irq, 0);
    g_assert_cmpuint(count(fd), ==, 2);
    irq_mask(f->irq, 0, true);
    irq_raise(f->irq, 0);
    irq_mask(f->irq, 0, false);
    g_assert_cmpuint(count(fd), ==, 1);

    hostile_fd = fd;
    begin = g_get_monotonic_time();
    irq_raise(f->irq, 0);
    count(fd);
    irq_enable(f->irq, false);
    irq_raise(f->irq, 0);
    irq_enable(f->irq, true);
    count(fd);
    irq_mask(f->irq, 0, true);
    irq_raise(f->irq, 0);
    irq_mask(f->irq, 0, false);
    /* Each would take two ticks of the watchdog, 100 ms. */
    g_assert_cmpint(g_get_monotonic_time() - begin, <, 80000);
    g_assert_null(atomic_load(&f->vm.guest.fault));
    hostile_fd = -1;
    datapath_stop();
    close(fd);
}

struct raiser {
    struct guest_irq *irq;
    _Atomic bool stop;
    _Atomic uint64_t raised;
};

static void *raise_on(void *arg)
{
    struct raiser *r = arg;

    while (!atomic_load(&r->stop)) {
        irq_raise(r->irq, 2);
        if (atomic_fetch_add(&r->raised, 1) % 64 == 0) {
            usleep(1);
        }
    }
    return NULL;
}

/*
 * Masking and bus mastering switched while another thread raises: in the end
 * nothing stays latched, and nothing is invented.  (Descriptors are swapped
 * under fire with real workers elsewhere: only those take part in quiescence.)
 */
static void test_race(struct fixture *f, gconstpointer arg)
{
    struct raiser r = {.irq = f->irq};
    int rounds = g_test_slow() ? 1000000 : 50000;
    int fd = give(f, 2, EFD_NONBLOCK);
    pthread_t thread;
    uint64_t got;

    pthread_create(&thread, NULL, raise_on, &r);
    while (atomic_load(&r.raised) == 0) {
        sched_yield();
    }
    for (int i = 0; i < rounds; i++) {
        irq_mask(f->irq, 2, i & 1);
        irq_enable(f->irq, i & 2);
    }
    atomic_store(&r.stop, true);
    pthread_join(thread, NULL);
    irq_enable(f->irq, true);
    irq_mask(f->irq, 2, false);
    g_assert_false(atomic_load(&f->irq->vec[2].pending));
    got = count(fd);
    g_assert_cmpuint(got, >, 0);
    g_assert_cmpuint(got, <=, atomic_load(&r.raised));
    irq_mask(f->irq, 2, true);
    irq_raise(f->irq, 2);
    irq_mask(f->irq, 2, false);
    g_assert_cmpuint(count(fd), ==, 1);
    close(fd);
}

/* ---- who replaces an eventfd while somebody is stuck in the old one ---- */

#define STUCK_US 20000000 /* else it would never fail */

struct stuck {
    struct fixture *f;
    _Atomic bool in, go;
    bool replaced;
};

static void *raise_slowly(void *arg)
{
    gint64 end = g_get_monotonic_time() + STUCK_US;
    struct stuck *s = arg;

    irq_thread_register(IRQ_MAX_THREADS - 1);
    irq_enter(&s->f->vm.guest);
    atomic_store(&s->in, true);
    while (!atomic_load(&s->go) && g_get_monotonic_time() < end) {
        g_usleep(1000);
    }
    irq_leave();
    return NULL;
}

static void replace(void *arg)
{
    struct stuck *s = arg;

    close(give(s->f, 0, EFD_NONBLOCK));
    s->replaced = true;
}

static gboolean let_go(gpointer arg)
{
    struct stuck *s = arg;

    g_assert_false(s->replaced);
    atomic_store(&s->go, true);
    return G_SOURCE_REMOVE;
}

/* It waits, and the main loop, on which others are, does not. */
static void test_stuck(struct fixture *f, gconstpointer arg)
{
    struct stuck s = {.f = f};
    pthread_t thread;

    close(give(f, 0, EFD_NONBLOCK));
    g_assert_cmpint(pthread_create(&thread, NULL, raise_slowly, &s), ==, 0);
    while (!atomic_load(&s.in)) {
        sched_yield();
    }
    g_idle_add(let_go, &s);
    g_assert_false(coro_run(replace, &s));
    while (!s.replaced) {
        g_main_context_iteration(NULL, TRUE);
    }
    pthread_join(thread, NULL);
    coro_fini();
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
#define ADD(name) \
    g_test_add("/frontend/irq/" #name, struct fixture, NULL, setup, test_##name, teardown)
    ADD(raise);
    ADD(latch);
    ADD(not_eventfd);
    ADD(full);
    ADD(blocking);
    ADD(all_blocking);
    ADD(main_thread);
    ADD(race);
    ADD(stuck);
    return g_test_run();
}
