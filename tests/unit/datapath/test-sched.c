/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Unit test of datapath/sched.c: the run queue and the timer heap against a
 * simple model, with random enqueues, waits and removals.
 */
#include "datapath/engine.h"

#define NQP 200u

static struct vm vm;
static struct qp qps[NQP];

static void setup(void)
{
    TAILQ_INIT(&vm.dp.run);
    vm.dp.timer = g_new0(struct qp *, NQP + 1);
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
            min = MIN(min, qps[i].req.wait_until);
            g_assert_true(vm.dp.timer[qps[i].req.heap_pos] == &qps[i]);
        } else {
            g_assert_cmpuint(qps[i].req.heap_pos, ==, 0);
        }
    }
    g_assert_cmpuint(vm.dp.ntimer, ==, waiting);
    g_assert_cmpuint(atomic_load(&vm.dp.next_timer), ==, min);
    for (unsigned i = 2; i <= vm.dp.ntimer; i++) {
        g_assert_cmpuint(vm.dp.timer[i / 2]->req.wait_until, <=,
                         vm.dp.timer[i]->req.wait_until);
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

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    setup();
    g_test_add_func("/sched/heap", test_heap);
    g_test_add_func("/sched/queue", test_queue);
    return g_test_run();
}
