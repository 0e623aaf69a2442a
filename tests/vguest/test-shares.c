/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: workers' time goes by shares.  Two VMs that both always have work,
 * with shares=100 and shares=300, get worker time (counter worker_ns) as 1 to 3
 * within 5 %, whatever their messages cost: the same small ones, the same large
 * ones, small against large either way, and more queue pairs against fewer.
 *
 * A run in which a VM had nothing to do for a moment says nothing: the guests'
 * thread keeps the rings full, but may itself not run in time.  Such a run ends
 * there and is repeated, a few times; then the case is skipped.
 */
#include "flood.h"

#define SHARES                                 \
    {                                          \
        "shares=100", NULL, "shares=300", NULL \
    }
#define WANT      3.0
#define TOLERANCE 0.05
#define RUN_NS    2000000000ll
#define SETTLE_NS 200000000ll /* until what went before does not count any more */
#define ATTEMPTS  5u

static const struct flood_shape one_qp = {
    .opcode = PVRDMA_WR_RDMA_WRITE, .len = 65536, .qps = 1, .depth = 16384};
static const struct flood_shape pieces = {.opcode = PVRDMA_WR_RDMA_WRITE,
                                          .len = 1,
                                          .nsge = 16,
                                          .qps = 32,
                                          .depth = 2048,
                                          .span = 16 << 20,
                                          .random = true};

struct shares_case {
    const char *path;
    const struct flood_shape *shape[2]; /* of the VM with 100, with 300 */
};

static const struct shares_case cases[] = {
    {"/shares/small", {&flood_8, &flood_8}},
    {"/shares/large", {&flood_64k, &flood_64k}},
    {"/shares/small-and-large", {&flood_8, &flood_64k}},
    {"/shares/large-and-small", {&flood_64k, &flood_8}},
    {"/shares/pieces-and-large", {&pieces, &flood_64k}},
    {"/shares/many-qps-and-one", {&flood_64k, &one_qp}},
};

/* Keep both full until @until; false: one of them had nothing left to do. */
static bool keep_full(struct flood *f, int64_t until)
{
    bool dry = false;

    while (vg_now_ns() < until && !dry) {
        for (unsigned i = 0; i < 2; i++) {
            dry |= flood_fill(&f[i]) == f[i].shape.qps;
        }
        g_usleep(200);
    }
    return !dry;
}

struct question {
    int64_t ns[2];
    volatile gint answered;
};

static gpointer ask_thread(gpointer data)
{
    struct question *q = data;

    JsonNode *all = vg_daemon_counters(vgt_daemon); /* of one moment */

    q->ns[0] = flood_counter(vg_status_vm(all, "vm0"), "worker_ns");
    q->ns[1] = flood_counter(vg_status_vm(all, "vm2"), "worker_ns");
    json_node_unref(all);
    g_atomic_int_set(&q->answered, 1);
    return NULL;
}

/* To ask takes milliseconds, in which the rings must not run empty. */
static bool ask(struct flood *f, int64_t ns[2])
{
    struct question q = {.answered = 0};
    GThread *t = g_thread_new("ask", ask_thread, &q);
    bool full = true;

    while (!g_atomic_int_get(&q.answered)) {
        full &= keep_full(f, vg_now_ns() + 1000000);
    }
    g_thread_join(t);
    for (unsigned i = 0; i < 2; i++) {
        g_assert_cmpint(q.ns[i], >=, 0); /* else the daemon does not count it */
        ns[i] = q.ns[i];
    }
    return full;
}

/* False: it says nothing, and *ratio is as it was. */
static bool attempt(struct flood *f, double *ratio)
{
    int64_t before[2], after[2];

    for (unsigned i = 0; i < 2; i++) { /* an attempt that failed left them empty */
        flood_fill(&f[i]);
    }
    if (!keep_full(f, vg_now_ns() + SETTLE_NS) || !ask(f, before) ||
        !keep_full(f, vg_now_ns() + RUN_NS) || !ask(f, after)) {
        return false;
    }
    g_assert_cmpint(after[0], >, before[0]);
    *ratio = (double)(after[1] - before[1]) / (after[0] - before[0]);
    g_test_message("worker time %.0f and %.0f ms, ratio %.3f",
                   (after[0] - before[0]) / 1e6, (after[1] - before[1]) / 1e6, *ratio);
    return true;
}

static void test_shares(const void *data)
{
    const struct shares_case *c = data;
    struct flood f[2];
    double ratio = 0;
    bool valid = false;
    unsigned n = 0;

    for (unsigned i = 0; i < 2; i++) {
        flood_open(&f[i], 2 * i, 2 * i + 1, c->shape[i]);
    }
    /* A sanitizer's own work is charged to nobody; beside others it says nothing. */
    for (; n < (vgt_judges() ? ATTEMPTS : 1) && !valid; n++) {
        valid = attempt(f, &ratio);
    }
    g_test_message("%u attempts", n);
    for (unsigned i = 0; i < 2; i++) {
        flood_close(&f[i]);
    }
    if (!vgt_judges()) {
        return;
    }
    if (!valid) {
        g_test_skip("the guests did not get the processor often enough");
        return;
    }
    g_assert_cmpfloat(ratio, >=, WANT * (1 - TOLERANCE));
    g_assert_cmpfloat(ratio, <=, WANT * (1 + TOLERANCE));
}

int main(int argc, char **argv)
{
    static const char *const keys[] = SHARES;
    struct vg_daemon_opts o = {
        .n_vms = G_N_ELEMENTS(keys), .workers = 1, .poll_us = -1, .keys = keys};

    vgt_init(&argc, &argv, 400);
    vgt_daemon = vg_daemon_start(&o);
    for (unsigned i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_test_add_data_func(cases[i].path, &cases[i], test_shares);
    }
    return vgt_run();
}
