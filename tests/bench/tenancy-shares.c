/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Part "shares" of bench-tenancy: busy pairs of VMs with different shares, with
 * equal and unequal messages, and what worker time each gets.
 */
#include "tenancy.h"

#include <stdio.h>

#define PAIRS_MAX 3u
#define AIM       0.05
#define RUN_S     2.0 /* at least */
#define SETTLE_NS 200000000ll

static const struct {
    const char *what;
    unsigned n, shares[PAIRS_MAX];
    const struct flood_shape *shape[PAIRS_MAX];
} rows[] = {
    {"8 B, 8 B", 2, {100, 300}, {&flood_8, &flood_8}},
    {"64 KiB, 64 KiB", 2, {100, 300}, {&flood_64k, &flood_64k}},
    {"8 B, 64 KiB", 2, {100, 300}, {&flood_8, &flood_64k}},
    {"64 KiB, 8 B", 2, {100, 300}, {&flood_64k, &flood_8}},
    {"64 KiB, 8 B", 2, {100, 100}, {&flood_64k, &flood_8}},
    {"8 B, 64 KiB, 8 B", 3, {100, 300, 100}, {&flood_8, &flood_64k, &flood_8}},
    {"64 KiB, 8 B, 64 KiB", 3, {100, 300, 300}, {&flood_64k, &flood_8, &flood_64k}},
};

/* Does the daemon know the key?  `vm add` takes the key file's. */
static bool shares_known(void)
{
    bool known;

    tenancy_daemon(0, NULL);
    known = vg_ctl(vgt_daemon, NULL, "vm add probe shares=100") == 0;
    vg_daemon_stop(vgt_daemon);
    return known;
}

struct sample {
    int64_t at, ns[PAIRS_MAX], messages[PAIRS_MAX];
};

struct asking {
    struct sample s;
    unsigned n;
    volatile gint answered;
};

static gpointer ask_thread(gpointer data)
{
    struct asking *q = data;
    JsonNode *all = vg_daemon_counters(vgt_daemon);

    q->s.at = vg_now_ns();
    for (unsigned i = 0; i < q->n; i++) {
        g_autofree char *name = g_strdup_printf("vm%u", 2 * i);
        JsonObject *vm = vg_status_vm(all, name);

        q->s.ns[i] = flood_counter(vm, "worker_ns");
        q->s.messages[i] = flood_counter(vm, "tx_messages");
    }
    json_node_unref(all);
    g_atomic_int_set(&q->answered, 1);
    return NULL;
}

/* How often a pair had nothing left to do. */
static unsigned keep_full(struct flood *f, unsigned n, int64_t ns)
{
    int64_t end = vg_now_ns() + ns;
    unsigned dry = 0;

    do {
        for (unsigned i = 0; i < n; i++) {
            dry += flood_fill(&f[i]) == f[i].shape.qps;
        }
        g_usleep(200);
    } while (vg_now_ns() < end);
    return dry;
}

/* The answer takes milliseconds, in which the rings must not run empty. */
static unsigned ask(struct flood *f, unsigned n, struct sample *s)
{
    struct asking q = {.n = n};
    GThread *t = g_thread_new("ask", ask_thread, &q);
    unsigned dry = 0;

    while (!g_atomic_int_get(&q.answered)) {
        dry += keep_full(f, n, 500000);
    }
    g_thread_join(t);
    *s = q.s;
    return dry;
}

static void print_row(unsigned row, const struct sample *a, const struct sample *b,
                      unsigned dry)
{
    double s = (b->at - a->at) / 1e9, worst = 0;
    unsigned n = rows[row].n;

    printf("%-20s", rows[row].what);
    for (unsigned i = 0; i < PAIRS_MAX; i++) {
        double ns = b->ns[i] - a->ns[i], want, is;

        if (i >= n) {
            printf(" |%25s", "");
            continue;
        }
        want = (double)rows[row].shares[i] / rows[row].shares[0];
        is = ns / (b->ns[0] - a->ns[0]);
        if (b->ns[0] >= 0) {
            worst = MAX(worst, ABS(is / want - 1));
            printf(" |%4u %5.2f %5.1f %%", rows[row].shares[i], is, ns / s / 1e7);
        } else {
            printf(" |%4u %5s %7s", rows[row].shares[i], "-", "-");
        }
        printf(" %6.3f", (b->messages[i] - a->messages[i]) / s / 1e6);
    }
    if (b->ns[0] >= 0) {
        printf(" |%5.1f %% %-6s", worst * 100, worst <= AIM ? "met" : "MISSED");
    } else {
        printf(" |%14s", "-");
    }
    printf(dry ? " | %u times empty\n" : "\n", dry);
    fflush(stdout);
}

static void run_row(unsigned row, bool known)
{
    g_autoptr(GPtrArray) keys = g_ptr_array_new_with_free_func(g_free);
    struct flood f[PAIRS_MAX];
    struct sample a, b;
    unsigned n = rows[row].n, dry;

    for (unsigned i = 0; i < VM_IDLE + 2; i++) {
        g_ptr_array_add(keys, i % 2 == 0 && i / 2 < n && known
                                  ? g_strdup_printf("shares=%u", rows[row].shares[i / 2])
                                  : g_strdup(""));
    }
    tenancy_daemon(2, (const char *const *)keys->pdata);
    for (unsigned i = 0; i < n; i++) {
        flood_open(&f[i], 2 * i, 2 * i + 1, rows[row].shape[i]);
    }
    keep_full(f, n, SETTLE_NS);
    dry = ask(f, n, &a);
    dry += keep_full(f, n, (int64_t)(MAX(seconds, RUN_S) * 1e9));
    dry += ask(f, n, &b);
    print_row(row, &a, &b, dry);
    for (unsigned i = 0; i < n; i++) {
        flood_close(&f[i]);
    }
    vg_daemon_stop(vgt_daemon);
}

void part_shares(void)
{
    bool known = shares_known();

    printf("\n== shares: worker time of busy pairs to the first one's; aim: within %.0f "
           "%% of the shares\n%s%-20s |%25s |%25s |%25s |\n%-20s",
           AIM * 100,
           known ? "" : "this daemon knows no shares: all VMs count the same\n", "WRITEs",
           "first pair", "second", "third", "");
    for (unsigned i = 0; i < PAIRS_MAX; i++) {
        printf(" |%4s %5s %7s %6s", "has", "gets", "time", "M/s");
    }
    printf(" |%14s\n", "off");
    for (unsigned i = 0; i < G_N_ELEMENTS(rows); i++) {
        run_row(i, known);
    }
}
