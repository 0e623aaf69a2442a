/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Part "data" of bench-tenancy: the latency of a pair that does one 8-byte operation
 * at a time, beside each aggressor.
 */
#include "tenancy.h"

#include <stdio.h>

#define AIM_US  25.0 /* of p99, more than alone */
#define IDLE_50 1.1  /* of p50 beside who does nothing, to alone */
#define IDLE_99 1.2
#define WARM_NS 50000000ll
#define STUCK_S 10

/* ---- the victim ---- */

static struct vgt_pair victim;

static void victim_open(void)
{
    struct vgt_opts o = {.guest = {{.db = VG_DB_EXT}, {.db = VG_DB_EXT}},
                         .qp = {.max_inline = 128, .send_sge = 1, .recv_sge = 1}};

    vgt_pair_open(&victim, VM_VICTIM, VM_VICTIM_PEER, &o);
}

/* As spin_cqe(), but an operation that never completes ends the program. */
static void await(struct vg_cq *cq, int64_t since)
{
    for (unsigned i = 1; !reap(cq); i++) {
        if (i % 100000 == 0 && vg_now_ns() - since > STUCK_S * 1000000000ll) {
            g_error("the victim's operation did not complete in %d s", STUCK_S);
        }
    }
}

/* One operation, us: of a SEND until it has arrived, else until it is complete. */
static double one_op(uint32_t opcode)
{
    static const uint64_t data = 1;
    struct vgt_side *s = &victim.s[0], *far = &victim.s[1];
    struct pvrdma_sge into = vg_sge(far->mr, 0, 8);
    struct vg_wr recv = {.nsge = 1, .sge = &into};
    struct vg_wr wr = {.opcode = opcode,
                       .flags = PVRDMA_SEND_SIGNALED | PVRDMA_SEND_INLINE,
                       .remote_addr = far->mr->buf->va,
                       .rkey = far->mr->rkey,
                       .inline_data = &data,
                       .inline_len = sizeof(data)};
    bool send = opcode == PVRDMA_WR_SEND;
    int64_t t, end;

    if (send) {
        vg_post_recv(far->qp, &recv, 1);
    }
    t = vg_now_ns();
    vg_post_send(s->qp, &wr, 1);
    await(send ? far->rcq : s->scq, t);
    end = vg_now_ns();
    if (send) {
        await(s->scq, t);
    }
    return (end - t) / 1000.0;
}

/* The longest operation after each single deed of an aggressor (overruns). */
#define EVENT_NS 2000000ll

static struct {
    int64_t at; /* 0: none lately */
    double worst;
    GArray *all;
} event;

static void event_begin(void)
{
    event.at = vg_now_ns();
    event.worst = 0;
}

static void event_op(double us, int64_t now)
{
    event.worst = MAX(event.worst, us);
    if (now - event.at > EVENT_NS) {
        g_array_append_val(event.all, event.worst);
        event.at = 0;
    }
}

/* Spinning: a thread that sleeps would measure its own waking up as well. */
static void rest(unsigned us)
{
    int64_t end = vg_now_ns() + us * 1000ll;

    while (vg_now_ns() < end) {
        /* nothing */
    }
}

/* Operations for @ns nanoseconds, @a (or NULL) getting its ticks between them. */
static struct tail victim_run(uint32_t opcode, int64_t ns, const struct aggressor *a)
{
    GArray *us = g_array_sized_new(FALSE, FALSE, sizeof(double), 1 << 20);
    int64_t start = vg_now_ns(), now = start, next = start;

    for (; now - start < ns; now = vg_now_ns()) {
        double t;

        if (a && a->tick && now >= next) {
            a->tick((double)(now - start) / ns);
            next = vg_now_ns() + a->tick_us * 1000ll;
        }
        if (a && a->pause_us) {
            rest(a->pause_us);
        }
        t = one_op(opcode);
        g_array_append_val(us, t);
        if (event.at) {
            event_op(t, vg_now_ns());
        }
    }
    return tail_of(us);
}

/* ---- aggressors ---- */

static void fill(double part)
{
    flood_fill(&tenancy_flood);
}

/* 1 ms on, 9 ms off; what is in the rings at the end lasts a fraction of that. */
static void pulse(double part)
{
    if (vg_now_ns() / 1000000 % 10 == 0) {
        flood_fill(&tenancy_flood);
    }
}

/* Doorbells for receives that were not posted, on all handles that there can be;
 * each of an existing one wakes the sender that waits. */
static void ring_receivers(double part)
{
    struct vguest *g = tenancy_flood.s[1].g;
    struct pvrdma_ext_map *map = &g->ext->recv;

    flood_fill(&tenancy_flood);
    memset(map->words, 0xff, sizeof(map->words));
    __atomic_thread_fence(__ATOMIC_RELEASE);
    memset(map->summary, 0xff, sizeof(map->summary));
    vg_doorbell(g, g->uar_page, PVRDMA_UAR_QP,
                tenancy_flood.rx[0]->handle | PVRDMA_UAR_QP_RECV);
}

/* The guest that waits for all its peers turns its bus mastering off and on. */
static void toggle_own(double part)
{
    flood_fill(&tenancy_flood);
    vg_bus_master(tenancy_flood.s[0].g, false);
    vg_bus_master(tenancy_flood.s[0].g, true);
}

/* The guest that all messages go to does. */
static bool peer_off;

static void toggle_peer(double part)
{
    peer_off = !peer_off;
    flood_fill(&tenancy_flood);
    vg_bus_master(tenancy_flood.s[1].g, !peer_off);
}

static void peer_on(void)
{
    peer_off = false;
    vg_bus_master(tenancy_flood.s[1].g, true);
}

static const struct flood_shape write_1m = {
    .opcode = PVRDMA_WR_RDMA_WRITE, .len = MIB, .qps = 16, .depth = 256};
static const struct flood_shape write_64k = {.opcode = PVRDMA_WR_RDMA_WRITE,
                                             .len = 65536,
                                             .qps = 16,
                                             .depth = 1024,
                                             .span = 64 * MIB,
                                             .random = true};
static const struct flood_shape write_8_hot = {
    .opcode = PVRDMA_WR_RDMA_WRITE, .len = 8, .qps = 16, .depth = 4096};
static const struct flood_shape write_8 = {.opcode = PVRDMA_WR_RDMA_WRITE,
                                           .len = 8,
                                           .qps = 256,
                                           .depth = 512,
                                           .span = 64 * MIB,
                                           .random = true};
static const struct flood_shape sge_hot = {
    .opcode = PVRDMA_WR_RDMA_WRITE, .len = 1, .nsge = 16, .qps = 16, .depth = 1024};
static const struct flood_shape sge_write = {.opcode = PVRDMA_WR_RDMA_WRITE,
                                             .len = 1,
                                             .nsge = 16,
                                             .qps = 64,
                                             .depth = 512,
                                             .span = 64 * MIB,
                                             .random = true};
static const struct flood_shape sge_read = {.opcode = PVRDMA_WR_RDMA_READ,
                                            .len = 1,
                                            .nsge = 16,
                                            .qps = 64,
                                            .depth = 512,
                                            .span = 64 * MIB,
                                            .random = true};
static const struct flood_shape faa = {
    .opcode = PVRDMA_WR_ATOMIC_FETCH_AND_ADD, .len = 8, .qps = 16, .depth = 4096};
/* The connection's defaults: 10 us, and again for ever. */
static const struct flood_shape rnr_256 = {
    .opcode = PVRDMA_WR_SEND, .len = 8, .qps = 256, .depth = 4};
static const struct flood_shape rnr_4096 = {
    .opcode = PVRDMA_WR_SEND, .len = 8, .qps = 4096, .depth = 4};
static const struct flood_shape rnr_slow = {.opcode = PVRDMA_WR_SEND,
                                            .len = 8,
                                            .qps = 256,
                                            .depth = 4,
                                            .conn = {.min_rnr_timer = 31}};
/* 134 ms, seven times: longer than the row. */
static const struct flood_shape nowhere_256 = {.opcode = PVRDMA_WR_RDMA_WRITE,
                                               .len = 8,
                                               .qps = 256,
                                               .depth = 4,
                                               .conn = {.timeout = 15},
                                               .nowhere = true};
static const struct flood_shape nowhere_4096 = {.opcode = PVRDMA_WR_RDMA_WRITE,
                                                .len = 8,
                                                .qps = 4096,
                                                .depth = 4,
                                                .conn = {.timeout = 15},
                                                .nowhere = true};
static const struct flood_shape held = {
    .opcode = PVRDMA_WR_RDMA_WRITE, .len = 8, .qps = 1024, .depth = 16};
static const struct flood_shape pulse_8 = {
    .opcode = PVRDMA_WR_RDMA_WRITE, .len = 8, .qps = 16, .depth = 64};
static const struct flood_shape pulse_64k = {.opcode = PVRDMA_WR_RDMA_WRITE,
                                             .len = 65536,
                                             .qps = 16,
                                             .depth = 4,
                                             .span = 64 * MIB,
                                             .random = true};

/* ---- completion queues that overrun ---- */

#define OVERRUNS    40u /* in a row's window */
#define OVERRUN_CQE 4u

static struct {
    struct vgt_pair p;
    struct vg_cq *cq[OVERRUNS];
    struct vg_qp *tx[OVERRUNS], *rx[OVERRUNS];
    struct vg_qp **idle;
    unsigned n_idle, next;
} over;

static void overrun_open(const struct aggressor *a)
{
    struct vgt_opts o = {.guest = {{.db = VG_DB_EXT, .low_size = 256 << 20},
                                   {.db = VG_DB_EXT, .low_size = 64 << 20}}};
    struct vg_qp_opts small = {.send_wr = 16,
                               .recv_wr = 2,
                               .send_sge = 1,
                               .recv_sge = 1,
                               .sq_sig_all = true,
                               .contig = true};
    unsigned n_idle = strstr(a->name, "4000") ? 4000 - OVERRUNS : 0;
    struct vgt_side *s = over.p.s;

    vgt_pair_open(&over.p, VM_AGGRESSOR, VM_AGGRESSOR_PEER, &o);
    for (unsigned i = 0; i < OVERRUNS; i++) {
        over.cq[i] = vg_cq_new(s[0].pd, OVERRUN_CQE);
        over.tx[i] = vg_qp_new(s[0].pd, over.cq[i], s[0].rcq, &small);
        over.rx[i] = vg_qp_new(s[1].pd, s[1].scq, s[1].rcq, &small);
        vg_qp_connect(over.tx[i], over.rx[i], NULL);
    }
    over.next = 0;
    over.n_idle = n_idle;
    over.idle = g_new(struct vg_qp *, n_idle + 1);
    for (unsigned i = 0; i < n_idle; i++) {
        over.idle[i] = vg_qp_new(s[0].pd, s[0].scq, s[0].rcq, &small);
    }
}

static void overrun_tick(double part)
{
    while (over.next < OVERRUNS && over.next < part * OVERRUNS) {
        struct pvrdma_sge sge = vg_sge(over.p.s[0].mr, 0, 8);
        struct vg_wr wr = vg_wr_to(0, PVRDMA_WR_RDMA_WRITE, 0, &sge, over.p.s[1].mr, 0);

        for (unsigned i = 0; i < 2 * OVERRUN_CQE; i++) {
            vg_queue_send(over.tx[over.next], &wr, 1);
        }
        vg_ring_send(over.tx[over.next++]);
        event_begin();
    }
}

static void overrun_close(void)
{
    struct tail t = tail_of(g_array_ref(event.all));
    unsigned failed = 0;

    printf("  (the longest operation in the 2 ms after an overrun: median %.1f us)\n",
           t.p50);

    for (unsigned i = 0; i < OVERRUNS; i++) {
        failed += vg_qp_state(over.tx[i]) == PVRDMA_QPS_ERR;
    }
    if (failed < OVERRUNS) {
        printf("  (%u of %u completion queues overran)\n", failed, OVERRUNS);
    }
    for (unsigned i = 0; i < OVERRUNS; i++) {
        vg_qp_free(over.tx[i]);
        vg_qp_free(over.rx[i]);
        vg_cq_free(over.cq[i]);
    }
    for (unsigned i = 0; i < over.n_idle; i++) {
        vg_qp_free(over.idle[i]);
    }
    g_free(over.idle);
    vgt_pair_close(&over.p);
}

/* ---- VMs that do nothing ---- */

static struct vguest **idle_vm;
static unsigned n_idle_vms;

static void idle_open(const struct aggressor *a)
{
    struct vg_opts o = {.db = VG_DB_EXT, .low_size = MIB, .high_size = MIB};

    n_idle_vms = a->idle_vms;
    idle_vm = g_new(struct vguest *, n_idle_vms);
    for (unsigned i = 0; i < n_idle_vms; i++) {
        idle_vm[i] = vguest_new(vgt_daemon, VM_IDLE + i, &o);
    }
}

/* One VM with as many contexts as BAR2 has pages, each with maps to look at. */
#define CONTEXTS 511u

static void contexts_open(const struct aggressor *a)
{
    struct vg_opts o = {.db = VG_DB_EXT};
    struct vguest *g = vguest_new(vgt_daemon, VM_AGGRESSOR, &o);
    unsigned made = 1;

    n_idle_vms = 1;
    idle_vm = g_new(struct vguest *, 1);
    idle_vm[0] = g;
    for (; made < CONTEXTS; made++) {
        uint64_t gpa = vg_alloc_pages(g, PVRDMA_EXT_PAGES), page[PVRDMA_EXT_PAGES];
        uint32_t handle, granted;

        for (unsigned k = 0; k < PVRDMA_EXT_PAGES; k++) {
            page[k] = gpa + k * PVRDMA_PAGE_SIZE;
        }
        if (vg_create_uc_ext(g, VG_UAR_PFN + 1 + made,
                             vg_pdir_new(g, page, PVRDMA_EXT_PAGES),
                             PVRDMA_EXT_CONTEXT_FEATURES, &handle, &granted)) {
            break;
        }
    }
    if (made < CONTEXTS) {
        printf("  (%u contexts; the daemon allows no more)\n", made);
    }
}

static void idle_close(void)
{
    for (unsigned i = 0; i < n_idle_vms; i++) {
        vguest_free(idle_vm[i]);
    }
    g_free(idle_vm);
}

static const struct aggressor table[] = {
    {"write-1m", "1 MiB WRITEs, 16 QPs", .shape = &write_1m, .tick = fill,
     .tick_us = 1000},
    {"write-1m-self", "the same, of a VM to itself", .shape = &write_1m, .loopback = true,
     .tick = fill, .tick_us = 1000},
    {"write-64k", "64 KiB WRITEs, random places in 64 MiB, 16 QPs", .shape = &write_64k,
     .tick = fill, .tick_us = 1000},
    {"write-8-hot", "8 B WRITEs, 16 QPs, one place", .shape = &write_8_hot, .tick = fill,
     .tick_us = 500},
    {"write-8", "8 B WRITEs, 256 QPs, random places", .shape = &write_8, .tick = fill,
     .tick_us = 1000},
    {"sge16-hot", "WRITEs of 16 pieces of 1 B, one place", .shape = &sge_hot,
     .tick = fill, .tick_us = 500},
    {"sge16", "WRITEs of 16 pieces of 1 B, random places", .shape = &sge_write,
     .tick = fill, .tick_us = 1000},
    {"sge16-read", "READs of 16 pieces of 1 B, random places", .shape = &sge_read,
     .tick = fill, .tick_us = 1000},
    {"faa", "FETCH_AND_ADD, 16 QPs, one place", .shape = &faa, .tick = fill,
     .tick_us = 500},
    {"rnr-256", "SENDs nobody receives, 10 us timer, 256 QPs", .shape = &rnr_256,
     .tick = fill, .tick_us = 10000},
    {"rnr-4096", "SENDs nobody receives, 10 us timer, 4,096 QPs", .only_long = true,
     .shape = &rnr_4096, .tick = fill, .tick_us = 50000},
    {"receive-bits", "receive doorbells of all handles, 256 wait, none is posted",
     .shape = &rnr_slow, .tick = ring_receivers, .tick_us = 20},
    {"timers-256", "256 QPs to nobody, bus mastering off and on", .shape = &nowhere_256,
     .tick = toggle_own, .tick_us = 5000},
    {"timers-4096", "4,096 QPs to nobody, bus mastering off and on", .only_long = true,
     .shape = &nowhere_4096, .tick = toggle_own, .tick_us = 5000},
    {"held", "1,024 QPs, their peer's bus mastering off and on", .shape = &held,
     .tick = toggle_peer, .tick_us = 5000, .close = peer_on},
    {"overrun", "40 CQ overruns, as many QPs", .open = overrun_open, .tick = overrun_tick,
     .tick_us = 1000, .close = overrun_close},
    {"overrun-4000", "40 CQ overruns, 4,000 QPs", .only_long = true, .open = overrun_open,
     .tick = overrun_tick, .tick_us = 1000, .close = overrun_close},
    {"pulse-8", "8 B WRITEs, 16 QPs, 1 ms on, 9 ms off", .shape = &pulse_8, .tick = pulse,
     .tick_us = 50},
    {"pulse-64k", "64 KiB WRITEs, random places, 1 ms on, 9 ms off", .shape = &pulse_64k,
     .tick = pulse, .tick_us = 50},
    {"wake", "nobody; the victim pauses 300 us", .pause_us = 300},
    {"wake-busy", "1 MiB WRITEs, 16 QPs; the victim pauses 300 us", .shape = &write_1m,
     .tick = fill, .tick_us = 1000, .pause_us = 300},
    {"contexts-511", "an idle VM with 511 contexts", .idle = true, .open = contexts_open,
     .close = idle_close},
    {"idle-8", "8 idle VMs", .idle = true, .idle_vms = 8, .open = idle_open,
     .close = idle_close},
    {"idle-64", "64 idle VMs", .idle = true, .idle_vms = 64, .open = idle_open,
     .close = idle_close},
    {"idle-240", "240 idle VMs", .idle = true, .idle_vms = 240, .open = idle_open,
     .close = idle_close},
    {"idle-1000", "1,000 idle VMs", .idle = true, .only_long = true, .idle_vms = 1000,
     .open = idle_open, .close = idle_close},
};

/* ---- the table ---- */

/* Alone is not undisturbed either: other programs', or a real-time class's, time
 * slices.  Then p99 says nothing. */
#define NOISY 10.0 /* times p50 */

static bool far_apart(double a, double b)
{
    return MAX(a, b) > MIN(a, b) * 4 / 3;
}

static void print_row(const struct aggressor *a, const struct tail alone[2],
                      const struct tail *t, const char *charge)
{
    double p50 = (alone[0].p50 + alone[1].p50) / 2;
    double p99 = (alone[0].p99 + alone[1].p99) / 2;
    double max = MIN(alone[0].max, alone[1].max);
    bool met = a->idle ? t->p50 <= IDLE_50 * p50 && t->p99 <= IDLE_99 * p99
                       : t->p99 <= p99 + AIM_US;
    const char *verdict = p99 > NOISY * p50 ? "noisy" : met ? "met" : "MISSED";

    printf("%-14s%c%6.2f %7.2f %8.1f |%7.2f %7.2f %7.1f %8.1f |%6.2f %6.2f %+8.1f %-6s "
           "|%s\n",
           a->name, far_apart(alone[0].p50, alone[1].p50) ? '~' : ' ', p50, p99, max,
           t->p50, t->p99, t->p999, t->max, t->p50 / p50, t->p99 / p99, t->p99 - p99,
           verdict, charge);
    fflush(stdout);
}

static void run_row(const struct aggressor *a, uint32_t opcode)
{
    int64_t ns = (int64_t)(seconds * 1e9);
    struct charge from, to;
    struct tail alone[2], t;
    char *charge;

    tenancy_daemon(a->idle_vms, NULL);
    event.all = g_array_new(FALSE, FALSE, sizeof(double));
    event.at = 0;
    victim_open();
    victim_run(opcode, WARM_NS, NULL);
    alone[0] = victim_run(opcode, ns / 2, NULL);
    aggressor_open(a);
    /* What happens once per window does not begin before it. */
    if (a->tick != overrun_tick) {
        victim_run(opcode, WARM_NS, a);
    }
    charge_now(&from);
    t = victim_run(opcode, ns, a);
    charge_now(&to);
    charge = charge_text(&from, &to);
    aggressor_close(a);
    victim_run(opcode, WARM_NS, NULL);
    alone[1] = victim_run(opcode, ns / 2, NULL);
    print_row(a, alone, &t, charge);
    g_free(charge);
    g_array_unref(event.all);
    vgt_pair_close(&victim);
    vg_daemon_stop(vgt_daemon);
}

void data_list(void)
{
    list_rows("data", table, G_N_ELEMENTS(table));
}

void part_data(const char *const *names, unsigned n_names, uint32_t opcode)
{
    bool header = false;

    for (unsigned i = 0; i < G_N_ELEMENTS(table); i++) {
        if (!row_wanted(&table[i], "data", names, n_names)) {
            continue;
        }
        if (!header) {
            printf(
                "\n== data: 8-byte %s, one at a time, us; aim: p99 <= alone + %.0f us; "
                "beside idle ones p50 <= %.1f, p99 <= %.1f x alone\n"
                "%-15s%22s  |%32s |%13s %15s |%s\n"
                "%-15s%6s %7s %8s |%7s %7s %7s %8s |%6s %6s %8s %-6s |%5s %6s %6s\n",
                opcode == PVRDMA_WR_SEND ? "SENDs" : "WRITEs", AIM_US, IDLE_50, IDLE_99,
                "", "alone", "beside it", "ratio of", "p99 more", " the aggressor",
                "aggressor", "p50", "p99", "max", "p50", "p99", "p99.9", "max", "p50",
                "p99", "us", "aim", "time", "M/s", "GB/s");
            header = true;
        }
        run_row(&table[i], opcode);
    }
}
