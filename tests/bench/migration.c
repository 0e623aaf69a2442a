/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Part "migration" of bench: the blackout of a guest that moves with its connections, the
 * device's share of it: from the request to stop until messages pass again, without RAM,
 * which stays where it is.
 *
 * Hosts are daemons on this one; a guest's peer is on host 0, or on host 2 if the guest
 * moves between two others.  Each QP has one WRITE under way either way.  What had
 * completed when the guest stood still counts for nothing; "first" is when any message
 * completes after that, "each" when one of each QP has in either direction.
 *
 *   quiesce   the worker lets go of the VM
 *   save      its state is made
 *   transfer  and read in one place and written in the other
 *   load      checked, and made into objects
 *   resume    addresses claimed, rings looked at
 *   re-route  connections, by the transport of the new place, to the first completion
 *
 * Medians of a few moves.  As in a migration, the targets' VMMs are attached and RESUMING
 * while the guest still runs.
 *
 * Part "restart": a daemon that is replaced under the same traffic.  "pause" is what it
 * says of itself, from the first VM that it stops until all go on; "still" the longest
 * time without any completion in the guests.  Nothing has a processor of its own.
 */
#include "bench.h"

#include <sched.h>
#include <stdio.h>

#include "hosts.h"
#include "migrate.h"

#define HOSTS    3u
#define MOVES    5u /* of a kind */
#define MAX_QPS  4096u
#define GIB      (1ull << 30)
#define BIG_VA   0x7f6000000000ull
#define LIMIT_S  60
#define RESTARTS 5u /* of a row */
#define MANY_VMS 16u

enum part { QUIESCE, SAVE, TRANSFER, LOAD, RESUME, REROUTE, FIRST, EACH, PARTS };
static const char *const part_name[PARTS] = {"quiesce", "save",     "transfer", "load",
                                             "resume",  "re-route", "first",    "each"};

/* Where a guest is. */
struct at {
    unsigned host, vm;
};

/* There, and back. */
static const struct kind {
    const char *there, *back;
    unsigned peer;
    struct at place[2];
} kinds[] = {
    {"within a daemon", "and back", 0, {{0, 0}, {0, 2}}},
    {"copy to tcp", "tcp to copy", 0, {{0, 0}, {1, 0}}},
    {"tcp to tcp", "and back", 2, {{0, 0}, {1, 0}}},
};

struct load {
    unsigned n;
    uint32_t bytes;
    struct vgt_pair p;
    struct vg_qp *qp[2][MAX_QPS];
    bool flying[2][MAX_QPS]; /* a message of side s, QP q */
    bool again[2][MAX_QPS];  /* one completed since the guest goes on */
    unsigned n_again;
    struct vg_mr *big[16];
    unsigned n_big;
};

static struct vg_daemon *host[HOSTS];

/* The first @n hosts. */
static void begin(unsigned n, unsigned vms, const char *groups)
{
    bool other = strcmp(path, "copy") != 0; /* than what the daemon does unasked */
    g_autofree char *keys = g_strdup_printf("peer-timeout=30\nworkers=1%s%s",
                                            other ? "\npath=" : "", other ? path : "");
    struct host_opts o = {
        .n_vms = vms, .daemon_keys = keys, .groups = groups, .vm_keys = ""};

    hosts_start(host, n, &o);
}

static void begin_moves(void)
{
    /* VM 2 is another place of VM 0. */
    begin(HOSTS, 2, "[vm vm2]\nnetwork=lan\naddresses=10.0.0.1\n");
    for (unsigned i = 0; i < HOSTS; i++) {
        pin_daemon(host[i], CPU_GUEST);
    }
}

/* ---- traffic ---- */

static void post(struct load *l, unsigned side, unsigned q)
{
    struct vgt_side *s = &l->p.s[side], *far = &l->p.s[1 - side];
    struct pvrdma_sge sge = vg_sge(s->mr, 0, l->bytes);
    struct vg_wr wr = vg_wr_to(q, PVRDMA_WR_RDMA_WRITE, VGT_SIG, &sge, far->mr, l->bytes);

    g_assert_cmpuint(vg_post_send(l->qp[side][q], &wr, 1), ==, 1);
    l->flying[side][q] = true;
}

/* Post what is not under way. */
static void post_all(struct load *l, unsigned side)
{
    for (unsigned q = 0; q < l->n; q++) {
        if (!l->flying[side][q]) {
            post(l, side, q);
        }
    }
}

/* Take up to @max completions; how many. */
static unsigned take(struct load *l, unsigned side, unsigned max, bool counts)
{
    struct pvrdma_cqe c[64];
    int n = vg_cq_poll(l->p.s[side].scq, c, (int)MIN(max, G_N_ELEMENTS(c)));

    g_assert_cmpint(n, >=, 0);
    for (int i = 0; i < n; i++) {
        unsigned q = (unsigned)c[i].wr_id;

        if (c[i].status != PVRDMA_WC_SUCCESS) {
            g_error("completion with status %u", c[i].status);
        }
        l->flying[side][q] = false;
        if (counts && !l->again[side][q]) {
            l->again[side][q] = true;
            l->n_again++;
        }
    }
    return (unsigned)n;
}

static void expect_soon(int64_t since)
{
    if (vg_now_ns() - since > LIMIT_S * 1000000000ll) {
        g_error("no message passes");
    }
}

/* Until one of each QP has completed in either direction; when the first one had, us. */
static double run_each(struct load *l)
{
    int64_t start = vg_now_ns();
    double first = 0;

    while (l->n_again < 2 * l->n) {
        if (take(l, 0, UINT_MAX, true) + take(l, 1, UINT_MAX, true) == 0) {
            sched_yield(); /* the daemons' main threads run here, too */
        }
        first = first == 0 && l->n_again ? now_us() : first;
        expect_soon(start);
    }
    return first;
}

static void forget(struct load *l)
{
    memset(l->again, 0, sizeof(l->again));
    l->n_again = 0;
}

/* ---- guests ---- */

static struct load *load_open(struct at a, struct at b, unsigned n, uint32_t bytes)
{
    struct vg_qp_opts small = {
        .send_wr = 2, .recv_wr = 2, .send_sge = 1, .recv_sge = 1, .contig = true};
    struct vgt_opts o = {
        .cqe = 2 * n, .mr_len = 2ull * bytes, .daemon = {host[a.host], host[b.host]}};
    struct load *l = g_new0(struct load, 1);

    for (unsigned i = 0; i < 2; i++) {
        o.guest[i] = (struct vg_opts){.db = VG_DB_EXT, .low_size = 256 * MIB};
    }
    l->n = n;
    l->bytes = bytes;
    vgt_pair_open(&l->p, a.vm, b.vm, &o);
    for (unsigned q = 0; q < n; q++) {
        for (unsigned side = 0; side < 2; side++) {
            struct vgt_side *s = &l->p.s[side];

            l->qp[side][q] = vg_qp_new(s->pd, s->scq, s->rcq, &small);
        }
        vg_qp_connect(l->qp[0][q], l->qp[1][q], NULL);
    }
    return l;
}

static struct load *load_to_move(const struct kind *k, unsigned n, uint32_t bytes)
{
    return load_open(k->place[0], (struct at){k->peer, 1}, n, bytes);
}

/* Until it has @gib more, an MR each; of the guest that moves. */
static void load_register(struct load *l, unsigned gib)
{
    struct vgt_side *s = &l->p.s[0];

    g_assert_cmpuint(gib, <=, G_N_ELEMENTS(l->big));
    for (; l->n_big < gib; l->n_big++) {
        struct vg_buf *b = vg_buf_new_alias(s->g, BIG_VA + l->n_big * GIB, GIB, 1);

        l->big[l->n_big] = vg_mr_new(s->pd, b, VG_ACCESS_ALL);
    }
}

static void load_close(struct load *l)
{
    while (l->n_big) {
        vg_mr_free(l->big[--l->n_big]);
    }
    for (unsigned q = 0; q < l->n; q++) {
        vg_qp_free(l->qp[0][q]);
        vg_qp_free(l->qp[1][q]);
    }
    vgt_pair_close(&l->p);
    g_free(l);
}

/* ---- a move ---- */

/* Since @t, us, which is moved on. */
static double took(double *t)
{
    double now = now_us(), us = now - *t;

    *t = now;
    return us;
}

/* Messages that have completed and were not taken: the guest stands still. */
static unsigned left_over(const struct vg_cq *cq)
{
    return (__atomic_load_n(cq->prod_tail, __ATOMIC_ACQUIRE) - *cq->cons_head) &
           (2 * cq->n - 1);
}

/* A place for @g there, RESUMING. */
static struct vg_place make_place(struct vguest *g, const struct at *to)
{
    struct vg_place place = vg_place_open(g, host[to->host], to->vm);

    vg_place_swap(g, &place);
    vg_mig_enter(g, VFIO_USER_MIG_RESUMING);
    vg_place_swap(g, &place);
    return place;
}

/* Its times, us; the state's length, bytes. */
static uint32_t move(struct load *l, const struct at *to, double us[PARTS])
{
    struct vguest *g = l->p.s[0].g;
    struct vg_place other = make_place(g, to);
    g_autoptr(GByteArray) stream = NULL;
    unsigned before;
    double start, t;

    for (unsigned side = 0; side < 2; side++) {
        post_all(l, side);
    }
    forget(l);
    run_each(l);
    for (unsigned side = 0; side < 2; side++) {
        post_all(l, side);
    }
    start = t = now_us();
    vg_mig_enter(g, VFIO_USER_MIG_STOP);
    us[QUIESCE] = took(&t);
    vg_mig_enter(g, VFIO_USER_MIG_STOP_COPY);
    us[SAVE] = took(&t);
    stream = vg_mig_read(g, VFIO_USER_MAX_DATA);
    vg_place_swap(g, &other);
    g_assert_cmpint(vg_mig_write(g, stream->data, stream->len, VFIO_USER_MAX_DATA), ==,
                    0);
    us[TRANSFER] = took(&t);
    vg_mig_enter(g, VFIO_USER_MIG_STOP);
    us[LOAD] = took(&t);

    forget(l);
    before = left_over(l->p.s[0].scq);
    while (take(l, 1, UINT_MAX, false)) {
    }
    post_all(l, 1);
    t = now_us();
    vg_mig_enter(g, VFIO_USER_MIG_RUNNING);
    vg_raise_all(g);
    us[RESUME] = took(&t);
    while (before) {
        before -= take(l, 0, before, false);
    }
    post_all(l, 0);
    us[FIRST] = run_each(l) - start;
    us[EACH] = now_us() - start;
    us[REROUTE] = us[FIRST];
    for (unsigned i = QUIESCE; i <= RESUME; i++) {
        us[REROUTE] -= us[i];
    }
    vg_place_close(&other);
    return stream->len;
}

/* ---- tables ---- */

static void print_head(const char *what)
{
    printf("%-24s", what);
    for (unsigned i = 0; i < PARTS; i++) {
        printf(" %8s", part_name[i]);
    }
    printf("  state, KiB (times in ms)\n");
}

struct result {
    double us[PARTS][MOVES];
    uint32_t bytes;
};

static void print_row(const char *what, struct result *r, double aim_ms)
{
    double each = 0;

    printf("  %-22s", what);
    for (unsigned i = 0; i < PARTS; i++) {
        each = median(r->us[i], MOVES) / 1e3;
        printf(" %8.2f", each);
    }
    printf("  %9.1f", r->bytes / 1024.0);
    if (aim_ms > 0) {
        printf("  (aim below %.0f: %s)", aim_ms, each < aim_ms ? "met" : "MISSED");
    }
    printf("\n");
    fflush(stdout);
}

static void there_and_back(struct load *l, const struct kind *k, struct result r[2])
{
    for (unsigned i = 0; i < 2 * MOVES; i++) {
        double us[PARTS];

        r[i % 2].bytes = move(l, &k->place[1 - i % 2], us);
        for (unsigned part = 0; part < PARTS; part++) {
            r[i % 2].us[part][i / 2] = us[part];
        }
    }
}

static void table(const char *what, unsigned n, uint32_t bytes, double aim_ms)
{
    print_head(what);
    for (unsigned i = 0; i < G_N_ELEMENTS(kinds); i++) {
        struct load *l = load_to_move(&kinds[i], n, bytes);
        struct result r[2];

        there_and_back(l, &kinds[i], r);
        print_row(kinds[i].there, &r[0], aim_ms);
        print_row(kinds[i].back, &r[1], aim_ms);
        load_close(l);
    }
}

/* How it grows; copy to tcp. */
static void growth(void)
{
    static const unsigned qps[] = {1, 64, 256, 1024}, gib[] = {1, 4, 16};
    struct result r[2];
    struct load *l;

    print_head("QPs, copy to tcp");
    for (unsigned i = 0; i < G_N_ELEMENTS(qps); i++) {
        g_autofree char *name = g_strdup_printf("%u", qps[i]);

        l = load_to_move(&kinds[1], qps[i], 8);
        there_and_back(l, &kinds[1], r);
        print_row(name, &r[0], 0);
        load_close(l);
    }
    print_head("GiB in MRs, copy to tcp");
    l = load_to_move(&kinds[1], 16, 8);
    for (unsigned i = 0; i < G_N_ELEMENTS(gib); i++) {
        g_autofree char *name = g_strdup_printf("%u", gib[i]);

        load_register(l, gib[i]);
        there_and_back(l, &kinds[1], r);
        print_row(name, &r[0], 0);
    }
    load_close(l);
}

void part_migration(void)
{
    struct vg_daemon *other = vgt_daemon;

    begin_moves();
    table("16 QPs, 2 MiB each way", 16, 2 * MIB, 50);
    table("4,096 QPs, 8 bytes", MAX_QPS, 8, 300);
    growth();
    hosts_stop(host, HOSTS);
    vgt_daemon = other;
}

/* ---- a daemon that is replaced ---- */

struct restart {
    int64_t pause_us;
    gint done;
};

static gpointer restart_thread(gpointer data)
{
    struct restart *r = data;

    r->pause_us = vgt_restart(host[0]);
    g_atomic_int_set(&r->done, 1);
    return NULL;
}

/* Take and post again; whether anything had completed. */
static bool turn(struct load *l)
{
    bool any = false;

    for (unsigned side = 0; side < 2; side++) {
        if (take(l, side, UINT_MAX, false)) {
            post_all(l, side);
            any = true;
        }
    }
    return any;
}

/* How long all @n loads stood still, us. */
static void under_restart(struct load **l, unsigned n, double *pause, double *still)
{
    struct restart r = {0};
    int64_t start = vg_now_ns();
    double last = now_us();
    GThread *thread;
    bool any;

    for (unsigned i = 0; i < n; i++) {
        post_all(l[i], 0);
        post_all(l[i], 1);
    }
    thread = g_thread_new("restart", restart_thread, &r);
    *still = 0;
    do {
        any = false;
        for (unsigned i = 0; i < n; i++) {
            any |= turn(l[i]);
        }
        if (any) {
            double gap = took(&last);

            *still = MAX(*still, gap);
        } else {
            sched_yield();
        }
        expect_soon(start);
    } while (!any || !g_atomic_int_get(&r.done));
    g_thread_join(thread);
    *pause = (double)r.pause_us;
    for (unsigned i = 0; i < n; i++) {
        forget(l[i]);
        run_each(l[i]);
    }
}

static void restart_row(const char *what, struct load **l, unsigned n)
{
    double pause[RESTARTS], still[RESTARTS], pause_max = 0, still_max = 0;

    for (unsigned i = 0; i < RESTARTS; i++) {
        under_restart(l, n, &pause[i], &still[i]);
        pause_max = MAX(pause_max, pause[i]);
        still_max = MAX(still_max, still[i]);
    }
    printf("  %-24s %8.2f %8.2f %8.2f %8.2f  (aim below 1000: %s)\n", what,
           median(pause, RESTARTS) / 1e3, pause_max / 1e3, median(still, RESTARTS) / 1e3,
           still_max / 1e3, still_max < 1e6 ? "met" : "MISSED");
    fflush(stdout);
}

static struct load *load_to_stay(unsigned pair, unsigned n)
{
    return load_open((struct at){0, 2 * pair}, (struct at){0, 2 * pair + 1}, n, 8);
}

void part_restart(void)
{
    static const unsigned qps[] = {1, 16, 1024, MAX_QPS}, gib[] = {1, 4, 16};
    struct vg_daemon *other = vgt_daemon;
    struct load *l[MANY_VMS / 2];

    unpin_self();
    begin(1, MANY_VMS, NULL);
    printf("  %-24s %8s %8s %8s %8s  (times in ms, of %u restarts)\n", "", "pause",
           "longest", "still", "longest", RESTARTS);
    for (unsigned i = 0; i < G_N_ELEMENTS(qps); i++) {
        g_autofree char *name = g_strdup_printf("2 VMs, %u QPs", qps[i]);

        l[0] = load_to_stay(0, qps[i]);
        restart_row(name, l, 1);
        load_close(l[0]);
    }
    l[0] = load_to_stay(0, 16);
    for (unsigned i = 0; i < G_N_ELEMENTS(gib); i++) {
        g_autofree char *name = g_strdup_printf("2 VMs, 16 QPs, %u GiB", gib[i]);

        load_register(l[0], gib[i]);
        restart_row(name, l, 1);
    }
    load_close(l[0]);
    for (unsigned i = 0; i < G_N_ELEMENTS(l); i++) {
        l[i] = load_to_stay(i, 16);
    }
    restart_row("16 VMs, 16 QPs each", l, G_N_ELEMENTS(l));
    for (unsigned i = 0; i < G_N_ELEMENTS(l); i++) {
        load_close(l[i]);
    }
    hosts_stop(host, 1);
    vgt_daemon = other;
}
