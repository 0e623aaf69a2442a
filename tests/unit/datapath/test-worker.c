/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Unit test of datapath/worker.c: sources, on a real worker that sleeps between
 * them.  One is called for events and for pokes, and never after it was removed.
 */
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "datapath/engine.h"

static struct worker *worker;

static void wait_for(_Atomic unsigned *counter, unsigned value)
{
    gint64 end = g_get_monotonic_time() + 20 * G_USEC_PER_SEC;

    while (atomic_load(counter) < value) {
        g_assert_cmpint(g_get_monotonic_time(), <, end);
        g_usleep(50);
    }
}

struct counted {
    struct source source; /* first */
    _Atomic unsigned calls;
    _Atomic bool removed;
};

static void ready(struct source *s)
{
    struct counted *c = (struct counted *)(void *)s;

    g_assert_true(worker_self() == worker && s->worker == worker);
    g_assert_false(atomic_load(&c->removed));
    atomic_fetch_add(&c->calls, 1);
}

static void test_sources(void)
{
    uint64_t one = 1;

    for (unsigned round = 0; round < 200; round++) {
        struct counted c = {
            .source = {.fd = round % 2 ? -1 : eventfd(0, EFD_CLOEXEC), .ready = ready}};

        g_assert_true(worker_add_source(worker, &c.source, EPOLLIN));
        wait_for(&c.calls, 1); /* for what came before */
        for (unsigned i = 0; i < 3; i++) {
            unsigned before = atomic_load(&c.calls);

            if (c.source.fd < 0) {
                source_poke(&c.source);
            } else {
                g_assert_cmpint(write(c.source.fd, &one, sizeof(one)), ==, sizeof(one));
            }
            wait_for(&c.calls, before + 1);
        }
        if (round % 4 < 2) { /* one that is on its way */
            source_poke(&c.source);
        }
        worker_remove_source(&c.source);
        atomic_store(&c.removed, true);
        if (c.source.fd >= 0) {
            g_assert_cmpint(write(c.source.fd, &one, sizeof(one)), ==, sizeof(one));
            close(c.source.fd);
        }
    }
}

int main(int argc, char **argv)
{
    GError *err = NULL;
    int ret;

    g_test_init(&argc, &argv, NULL);
    datapath_start(1, 0, &err);
    g_assert_no_error(err);
    worker = worker_least_loaded(UINT64_MAX);
    g_test_add_func("/worker/sources", test_sources);
    ret = g_test_run();
    datapath_stop();
    return ret;
}
