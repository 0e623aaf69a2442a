/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Unit test of datapath/sched.c: the run queue and the timer heap against a
 * simple model, with random enqueues, waits and removals; that a turn takes few
 * expired timers, however many there are; and that it ends for a grace period.
 */
#include "datapath/engine.h"

#define NQP 200u

static struct vm vm;
static struct qp qps[NQP];

static void setup(void)
{
    TAILQ_INIT(&vm.dp.run);
    g_assert_true(deadlines_init(&vm.dp.timers, NQP));
    atomic_store(&vm.dp.next_timer, UINT64_MAX);
    for (unsigned i = 0; i < NQP; i++) {
        qps[i].vm = &vm;
        qps[i].handle = i + 1;
    }
}

static void check_heap(void)
{
    unsigned waiting = 0;
    uint64_t min = UINT64_MAX;

    for (unsigned i = 0; i < NQP; i++) {
        if (qps[i].req.wait != QP_WAIT_NONE) {
            waiting++;
            min = MIN(min, qps[i].req.timer.when);
            g_assert_true(vm.dp.timers.heap[qps[i].req.timer.pos] == &qps[i].req.timer);
        } else {
            g_assert_cmpuint(qps[i].req.timer.pos, ==, 0);
        }
    }
    g_assert_cmpuint(vm.dp.timers.n, ==, waiting);
    g_assert_cmpuint(atomic_load(&vm.dp.next_timer), ==, min);
    for (unsigned i = 2; i <= vm.dp.timers.n; i++) {
        g_assert_cmpuint(vm.dp.timers.heap[i / 2]->when, <=, vm.dp.timers.heap[i]->when);
    }
}

static void test_heap(void)
{
    for (unsigned round = 0; round < 20000; round++) {
        struct qp *qp = &qps[g_test_rand_int_range(0, NQP)];

        if (g_test_rand_bit()) {
            sched_wait(qp, QP_WAIT_RNR, (uint64_t)g_test_rand_int_range(1, 1000));
        } else {
            sched_unwait(qp);
        }
        if (round % 64 == 0) {
            check_heap();
        }
    }
    for (unsigned i = 0; i < NQP; i++) {
        sched_unwait(&qps[i]);
    }
    check_heap();
}

static void test_queue(void)
{
    GQueue model = G_QUEUE_INIT;
    struct qp *qp;
    GList *l;

    for (unsigned round = 0; round < 20000; round++) {
        qp = &qps[g_test_rand_int_range(0, NQP)];
        if (g_test_rand_int_range(0, 3)) {
            if (!g_queue_find(&model, qp)) {
                g_queue_push_tail(&model, qp);
            }
            sched_enqueue(qp);
        } else {
            g_queue_remove(&model, qp);
            sched_dequeue(qp);
        }
        g_assert_true(TAILQ_FIRST(&vm.dp.run) == g_queue_peek_head(&model));
    }
    l = model.head;
    TAILQ_FOREACH(qp, &vm.dp.run, req.run)
    {
        g_assert_true(l && qp == l->data);
        l = l->next;
    }
    g_assert_null(l);
    g_queue_clear(&model);
}

/* A VM that can be served: no doorbells, no memory. */
static struct vm *bare_vm(const struct vm_config *cfg)
{
    static struct pvrdma_db_region region[2];
    struct vm *v = g_new0(struct vm, 1);

    v->cfg = (struct vm_config *)cfg;
    guest_mem_init(&v->guest.mem, &v->guest, false);
    v->guest.db.own = &region[0];
    v->guest.db.shared = &region[1];
    TAILQ_INIT(&v->dp.run);
    pthread_mutex_init(&v->dp.token, NULL);
    atomic_store(&v->dp.next_timer, UINT64_MAX);
    return v;
}

static void bare_vm_free(struct vm *v)
{
    pthread_mutex_destroy(&v->dp.token);
    guest_mem_fini(&v->guest.mem);
    g_free(v);
}

/* As in sched.c. */
#define TURN_TIMERS 64u

static void test_turn_timers(void)
{
    enum { N = 5000 };
    struct vm_config cfg = {.max_qp = N + 1, .shares = VM_SHARES_DEFAULT};
    struct vm *v = bare_vm(&cfg);
    struct qp *qp = g_new0(struct qp, N);
    struct worker *w = g_new0(struct worker, 1);
    uint64_t now = now_ns();
    unsigned turns = 0, left = N;

    g_assert_true(deadlines_init(&v->dp.timers, N));
    for (unsigned i = 0; i < N; i++) {
        qp[i].vm = v;
        qp[i].handle = i + 1;
        sched_wait(&qp[i], QP_WAIT_TIMEOUT, now - 1 - i);
    }
    /* In RESET there is nothing to do for them: only the timers cost. */
    while (left) {
        sched_serve(w, v, now);
        g_assert_cmpuint(left - v->dp.timers.n, <=, TURN_TIMERS);
        g_assert_cmpuint(v->dp.timers.n, <, left);
        left = v->dp.timers.n;
        g_assert_true(left == 0 || sched_pending(v, now, false));
        turns++;
    }
    g_assert_cmpuint(turns, >=, N / TURN_TIMERS);
    while (!TAILQ_EMPTY(&v->dp.run)) {
        sched_serve(w, v, now);
    }
    deadlines_fini(&v->dp.timers);
    bare_vm_free(v);
    g_free(w);
    g_free(qp);
}

static unsigned n_notes;

static void on_note(struct note *n, struct vm *v)
{
    n_notes++;
}

/* @n notes have arrived; how many does a turn of a second take? */
static unsigned notes_of_a_turn(struct worker *w, struct vm *v, unsigned n)
{
    g_autofree struct note *note = g_new0(struct note, n);

    for (unsigned i = 0; i < n; i++) {
        note[i] = (struct note){i + 1 < n ? &note[i + 1] : NULL, on_note};
    }
    v->dp.arrived = note;
    n_notes = 0;
    sched_serve(w, v, now_ns() + 1000000000u); /* it has that long */
    v->dp.arrived = NULL;
    return n_notes;
}

/* A command that waits for the workers does not wait for a turn's end. */
static void test_turn_grace(void)
{
    struct vm_config cfg = {.max_qp = 1, .shares = VM_SHARES_DEFAULT};
    struct vm *v = bare_vm(&cfg);
    struct worker *w = g_new0(struct worker, 1);

    grace_register(&w->grace);
    g_assert_cmpuint(notes_of_a_turn(w, v, 100), ==, 100);
    grace_begin();
    g_assert_cmpuint(notes_of_a_turn(w, v, 100), ==, 1);
    g_assert_cmpuint(notes_of_a_turn(w, v, 100), ==, 1); /* it never stands still */
    grace_pass(&w->grace);
    g_assert_cmpuint(notes_of_a_turn(w, v, 100), ==, 100);
    grace_unregister(&w->grace);
    bare_vm_free(v);
    g_free(w);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    setup();
    g_test_add_func("/sched/heap", test_heap);
    g_test_add_func("/sched/queue", test_queue);
    g_test_add_func("/sched/turn-timers", test_turn_timers);
    g_test_add_func("/sched/turn-grace", test_turn_grace);
    return g_test_run();
}
