/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Unit test of datapath/vms.c: what is posted to a VM.  Notes from many threads are
 * all run by its worker, in the order of each thread, and none while the VM stands
 * still; those that are left when it goes are run without a VM.  And a VM that goes on
 * just when its worker is about to park it.
 */
#include "qpfix.h"

#define POSTERS 4u
#define NOTES   20000u

struct numbered {
    struct note note; /* first */
    unsigned poster, number;
};

static struct qpfix f;
static _Atomic unsigned run_count, orphans;
static _Atomic bool stands_still;     /* datapath_pause() has returned */
static unsigned next_number[POSTERS]; /* the worker's */

static void run_numbered(struct note *n, struct vm *vm)
{
    struct numbered *m = (struct numbered *)(void *)n;

    if (vm) {
        g_assert_true(vm == &f.td->vm && worker_self() == vm->dp.worker);
        g_assert_false(atomic_load(&stands_still));
        g_assert_cmpuint(m->number, ==, next_number[m->poster]);
        next_number[m->poster]++;
        atomic_fetch_add(&run_count, 1);
    } else {
        g_assert_null(worker_self());
        atomic_fetch_add(&orphans, 1);
    }
    g_free(m);
}

static void post(unsigned who, unsigned number)
{
    struct numbered *m = g_new0(struct numbered, 1);

    m->note.run = run_numbered;
    m->poster = who;
    m->number = number;
    vm_post(&f.td->vm, &m->note);
}

static gpointer poster(gpointer opaque)
{
    for (unsigned i = 0; i < NOTES; i++) {
        post(GPOINTER_TO_UINT(opaque), i);
        if (i % 1000 == 0) {
            g_usleep(100); /* the worker sleeps meanwhile */
        }
    }
    return NULL;
}

static void wait_for_count(unsigned n)
{
    gint64 end = g_get_monotonic_time() + 20 * G_USEC_PER_SEC;

    while (atomic_load(&run_count) < n) {
        g_assert_cmpint(g_get_monotonic_time(), <, end);
        g_usleep(50);
    }
}

static void test_notes(void)
{
    GThread *t[POSTERS];

    qpfix_open(&f, "vms");
    for (unsigned i = 0; i < POSTERS; i++) {
        t[i] = g_thread_new("poster", poster, GUINT_TO_POINTER(i));
    }
    for (unsigned i = 0; i < 20; i++) {
        datapath_pause(&f.td->vm);
        atomic_store(&stands_still, true);
        g_usleep(500);
        atomic_store(&stands_still, false);
        datapath_resume(&f.td->vm);
    }
    for (unsigned i = 0; i < POSTERS; i++) {
        g_thread_join(t[i]);
    }
    wait_for_count(POSTERS * NOTES);

    datapath_pause(&f.td->vm);
    for (unsigned i = 0; i < 5; i++) {
        post(0, NOTES + i);
    }
    g_usleep(20000);
    g_assert_cmpuint(atomic_load(&run_count), ==, POSTERS * NOTES);
    datapath_resume(&f.td->vm);
    wait_for_count(POSTERS * NOTES + 5);

    datapath_pause(&f.td->vm);
    for (unsigned i = 0; i < 5; i++) {
        post(0, NOTES + 5 + i);
    }
    testdev_free(f.td);
    /* Whatever its worker did not come to. */
    g_assert_cmpuint(atomic_load(&run_count) + atomic_load(&orphans), ==,
                     POSTERS * NOTES + 10);
}

/*
 * The worker stays where it has found, with the VM's token, that the VM may not run: it
 * is about to park it then.
 */
static enum { GOES, STAYS_NEXT, STAYS } _Atomic parking;

bool __wrap_sched_may_run(const struct vm *vm);
bool __real_sched_may_run(const struct vm *vm);

bool __wrap_sched_may_run(const struct vm *vm)
{
    bool may = __real_sched_may_run(vm);

    if (!may && worker_self() && atomic_load(&parking) == STAYS_NEXT &&
        pthread_mutex_trylock(&f.td->vm.dp.token) != 0) {
        atomic_store(&parking, STAYS);
        while (atomic_load(&parking) == STAYS) {
            g_usleep(100);
        }
    }
    return may;
}

#define WAIT(condition)                                             \
    do {                                                            \
        gint64 end_ = g_get_monotonic_time() + 20 * G_USEC_PER_SEC; \
                                                                    \
        while (!(condition)) {                                      \
            g_assert_cmpint(g_get_monotonic_time(), <, end_);       \
            g_usleep(50);                                           \
        }                                                           \
    } while (0)

/* It goes on just then: it is not left parked without its guest being told to ring. */
static void test_parks(void)
{
    struct vm_datapath *dp;
    uint32_t *kick;

    qpfix_open(&f, "parks");
    dp = &f.td->vm.dp;
    kick = &f.td->vm.guest.db.shared->kick;
    WAIT(atomic_load(&dp->parked));
    datapath_pause(&f.td->vm);
    __atomic_store_n(kick, 0, __ATOMIC_RELEASE); /* as if it had been busy before */
    atomic_store(&parking, STAYS_NEXT);
    source_poke(&dp->bell);
    WAIT(atomic_load(&parking) == STAYS);
    g_assert_false(atomic_load(&dp->parked));
    datapath_resume(&f.td->vm);
    atomic_store(&parking, GOES);
    WAIT(__atomic_load_n(kick, __ATOMIC_ACQUIRE));
    testdev_free(f.td);
}

int main(int argc, char **argv)
{
    testdev_init(&argc, &argv);
    g_test_add_func("/vms/notes", test_notes);
    g_test_add_func("/vms/parks", test_parks);
    return testdev_run();
}
