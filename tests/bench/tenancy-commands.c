/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Part "commands" of bench-tenancy: a VM registers and deregisters 4 KiB, over and
 * over, while others keep the daemon's main thread busy in their ways.
 *
 * Where neither the worker nor the kernel has much to do for an aggressor, the worker's
 * processor is the main thread's and the aggressor's ("apart"), so that the victim waits
 * for nothing but the daemon.  Elsewhere the main thread and the aggressor share the
 * victim's: there a victim that has its answer runs when the main thread sleeps, however
 * often that turns.  What that alone costs is what an aggressor costs who does the same
 * in another daemon.
 *
 * VMMs that die do so as processes: the kernel ends their mappings first, so that
 * the daemon holds the last reference to the guest's memory, as with a real VMM.
 */
#include "tenancy.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define GIB        (1ull << 30)
#define BIG_GPA    (1ull << 40) /* of memory besides the library's */
#define BIG_VA     0x7e0000000000ull
#define AIM_RATIO  2.0  /* of p99 to alone */
#define AIM_MAX_US 1000 /* of the longest */

/* ---- the victim ---- */

static struct {
    struct vguest *g;
    struct vg_pd *pd;
    struct vg_buf *buf;
    uint64_t pdir;
} victim;

static void victim_open(void)
{
    victim.g = vguest_new(vgt_daemon, VM_VICTIM, NULL);
    victim.pd = vg_pd_new(victim.g);
    victim.buf = vg_buf_new(victim.g, BIG_VA, PVRDMA_PAGE_SIZE, VG_CONTIG);
    victim.pdir = vg_pdir_new(victim.g, victim.buf->page, 1);
}

static void victim_close(void)
{
    vg_buf_free(victim.buf);
    vg_pd_free(victim.pd);
    vguest_free(victim.g);
}

static uint32_t register_one(struct vg_pd *pd, uint64_t va, uint64_t len, uint64_t pdir)
{
    struct pvrdma_cmd_create_mr req = {.start = va,
                                       .length = len,
                                       .pd_handle = pd->handle,
                                       .access_flags = VG_ACCESS_ALL,
                                       .nchunks = (len + PVRDMA_PAGE_SIZE - 1) /
                                                  PVRDMA_PAGE_SIZE,
                                       .pdir_dma = pdir};
    struct pvrdma_resp_create_mr resp;

    g_assert_cmpint(vg_create_mr(pd->g, &req, &resp), ==, 0);
    return resp.mr_handle;
}

static void deregister(struct vg_pd *pd, uint32_t handle)
{
    g_assert_cmpint(vg_destroy(pd->g, PVRDMA_CMD_DESTROY_MR, handle), ==, 0);
}

static void register_and_back(struct vg_pd *pd, uint64_t va, uint64_t len, uint64_t pdir)
{
    deregister(pd, register_one(pd, va, len, pdir));
}

static struct tail victim_run(int64_t ns, const struct aggressor *a)
{
    GArray *us = g_array_new(FALSE, FALSE, sizeof(double));
    int64_t start = vg_now_ns(), now = start, next = start;

    for (; now - start < ns; now = vg_now_ns()) {
        int64_t t;
        double d;

        if (a && a->tick && now >= next) {
            a->tick((double)(now - start) / ns);
            next = vg_now_ns() + a->tick_us * 1000ll;
        }
        t = vg_now_ns();
        register_and_back(victim.pd, BIG_VA, PVRDMA_PAGE_SIZE, victim.pdir);
        d = (vg_now_ns() - t) / 1000.0;
        g_array_append_val(us, d);
    }
    return tail_of(us);
}

/* ---- memory besides the library's: any size, in no allocator ---- */

static int sealed_memfd(uint64_t size)
{
    int fd = memfd_create("tenancy", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    g_assert_cmpint(fd, >=, 0);
    g_assert_cmpint(ftruncate(fd, size), ==, 0);
    g_assert_cmpint(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), ==,
                    0);
    return fd;
}

static int add_memory(struct vguest *g, int fd, uint64_t gpa, uint64_t size)
{
    return vg_dma_map(g, fd, 0, gpa, size, VG_DMA_RW);
}

/* Page directory over [gpa, gpa + GIB), in random order if @r. */
static uint64_t gib_pdir(struct vguest *g, uint64_t gpa, GRand *r)
{
    uint32_t n = GIB / PVRDMA_PAGE_SIZE;
    g_autofree uint64_t *page = page_list(gpa, n, r);

    return vg_pdir_new(g, page, n);
}

/* ---- churn of regions ---- */

static struct {
    struct vg_daemon *other; /* NULL: the victim's */
    struct vguest *g;
    struct vg_pd *pd;
    uint64_t pdir, len;
    int fd;
} churn;

static struct vg_daemon *other_daemon(unsigned main_cpu)
{
    struct vg_daemon_opts o = {.n_vms = VM_IDLE, .workers = 1, .poll_us = -1};
    struct vg_daemon *d = vg_daemon_start(&o);

    pin_daemon(d, main_cpu);
    return d;
}

static void churn_open(const struct aggressor *a)
{
    churn.other =
        strstr(a->name, "other") ? other_daemon(a->apart ? CPU_WORKER : CPU_GUEST) : NULL;
    churn.g = vguest_new(churn.other ? churn.other : vgt_daemon, VM_AGGRESSOR, NULL);
    churn.pd = vg_pd_new(churn.g);
    churn.len = PVRDMA_PAGE_SIZE;
    churn.fd = -1;
    if (strstr(a->name, "1g")) {
        GRand *r = g_rand_new_with_seed(1);

        churn.len = GIB;
        churn.fd = sealed_memfd(GIB);
        g_assert_cmpint(add_memory(churn.g, churn.fd, BIG_GPA, GIB), ==, 0);
        churn.pdir = gib_pdir(churn.g, BIG_GPA, r);
        g_rand_free(r);
    } else {
        uint64_t gpa = vg_alloc_page(churn.g);

        churn.pdir = vg_pdir_new(churn.g, &gpa, 1);
    }
}

static void churn_run(void)
{
    while (go_on()) {
        register_and_back(churn.pd, BIG_VA, churn.len, churn.pdir);
    }
}

/* Many at a time. */
static void lists_run(void)
{
    uint32_t mr[32];

    while (go_on()) {
        for (unsigned i = 0; i < G_N_ELEMENTS(mr); i++) {
            mr[i] = register_one(churn.pd, BIG_VA, churn.len, churn.pdir);
        }
        for (unsigned i = 0; i < G_N_ELEMENTS(mr); i++) {
            deregister(churn.pd, mr[i]);
        }
    }
}

static void churn_close(void)
{
    vg_pd_free(churn.pd);
    vguest_free(churn.g);
    if (churn.fd >= 0) {
        close(churn.fd);
    }
    if (churn.other) {
        vg_daemon_stop(churn.other);
    }
}

/* ---- a guest with many queue pairs is gone ---- */

static struct {
    struct vgt_side s;
    struct vg_qp **qp;
    unsigned n;
} dying;

static void dying_open(const struct aggressor *a)
{
    struct vg_opts o = {.db = VG_DB_EXT, .low_size = 512ull << 20};
    struct vg_qp_opts small = {
        .send_wr = 2, .recv_wr = 2, .send_sge = 1, .recv_sge = 1, .contig = true};

    dying.n = strstr(a->name, "8000") ? 8000 : 2000;
    dying.qp = g_new(struct vg_qp *, dying.n);
    dying.s.g = vguest_new(vgt_daemon, VM_AGGRESSOR, &o);
    dying.s.pd = vg_pd_new(dying.s.g);
    dying.s.scq = vg_cq_new(dying.s.pd, 256);
    for (unsigned i = 0; i < dying.n; i++) {
        dying.qp[i] = vg_qp_new(dying.s.pd, dying.s.scq, dying.s.scq, &small);
        vg_qp_connect(dying.qp[i], dying.qp[i], NULL);
    }
}

/* Wait in small steps for the middle of the window; false: it is over. */
static bool to_the_middle(void)
{
    int64_t middle = vg_now_ns() + (int64_t)(seconds * 1e9 / 3);

    while (go_on() && vg_now_ns() < middle) {
        g_usleep(1000);
    }
    return go_on();
}

static void dying_run(void)
{
    if (to_the_middle()) {
        dying.s.g->up = false;
        vg_disconnect(dying.s.g);
    }
}

static void dying_close(void)
{
    dying.s.g->up = false;
    for (unsigned i = 0; i < dying.n; i++) {
        vg_qp_free(dying.qp[i]);
    }
    vg_cq_free(dying.s.scq);
    vg_pd_free(dying.s.pd);
    vguest_crash(dying.s.g);
    g_free(dying.qp);
}

/* ---- guests in processes of their own ---- */

static pid_t child;

/* Start @body in a process that ends with ours; wait until it says that it is ready
 * (a byte into the descriptor that it gets). */
static void child_start(void (*body)(int ready))
{
    int fd[2];
    char byte;

    g_assert_cmpint(pipe(fd), ==, 0);
    fflush(stdout);
    child = fork();
    g_assert_cmpint(child, >=, 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(fd[0]);
        /* The worker's processor, on which next to nothing happens meanwhile: the
         * kernel's work on this process is not the daemon's. */
        pin_self(CPU_WORKER);
        alarm(120);
        body(fd[1]);
        _exit(0);
    }
    close(fd[1]);
    if (read(fd[0], &byte, 1) != 1) {
        g_error("a guest's process ended early");
    }
    close(fd[0]);
}

static void child_end(void)
{
    if (child > 0) {
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        child = 0;
    }
}

static void tell(int ready)
{
    ssize_t n = write(ready, "", 1);

    (void)n;
}

/* A guest with @gib regions of 1 GiB in a memfd of its own. */
struct big {
    struct vgt_side s;
    int fd;
    unsigned gib;
    uint32_t lkey[TENANCY_MAX_GIB], rkey[TENANCY_MAX_GIB];
};

static void big_open(struct big *b, unsigned gib)
{
    /* page directories: 2 MiB for each GiB */
    struct vg_opts o = {.db = VG_DB_EXT, .low_size = (64 + 4ull * gib) * MIB};
    struct vgt_side *s = &b->s;

    b->gib = gib;
    b->fd = sealed_memfd(gib * GIB);
    s->g = vguest_new(vgt_daemon, VM_AGGRESSOR, &o);
    g_assert_cmpint(add_memory(s->g, b->fd, BIG_GPA, gib * GIB), ==, 0);
    s->pd = vg_pd_new(s->g);
    s->scq = vg_cq_new(s->pd, 256);
    s->qp = vg_qp_new(s->pd, s->scq, s->scq, NULL);
    vg_qp_connect(s->qp, s->qp, NULL);
    for (unsigned i = 0; i < gib; i++) {
        struct pvrdma_cmd_create_mr req = {.start = BIG_VA + i * GIB,
                                           .length = GIB,
                                           .pd_handle = s->pd->handle,
                                           .access_flags = VG_ACCESS_ALL,
                                           .nchunks = GIB / PVRDMA_PAGE_SIZE};
        struct pvrdma_resp_create_mr resp;

        req.pdir_dma = gib_pdir(s->g, BIG_GPA + i * GIB, NULL);
        g_assert_cmpint(vg_create_mr(s->g, &req, &resp), ==, 0);
        b->lkey[i] = resp.lkey;
        b->rkey[i] = resp.rkey;
    }
}

/* Have the daemon write every page, so that its own page tables know them. */
static void big_touch(struct big *b)
{
    for (unsigned i = 0; i < b->gib; i++) {
        for (uint64_t off = 0; off < GIB; off += 16 * MIB) {
            struct pvrdma_sge sge = {BIG_VA, 16 * MIB, b->lkey[0]};
            struct vg_wr wr = vg_wr_at(0, PVRDMA_WR_RDMA_WRITE, PVRDMA_SEND_SIGNALED,
                                       &sge, BIG_VA + i * GIB + off, b->rkey[i]);
            struct pvrdma_cqe c;

            g_assert_cmpuint(vg_post_send(b->s.qp, &wr, 1), ==, 1);
            g_assert_true(vg_cq_wait(b->s.scq, &c, VGT_WAIT_MS));
            g_assert_cmpuint(c.status, ==, PVRDMA_WC_SUCCESS);
        }
    }
}

static void exiting_guest(int ready)
{
    struct big b;

    big_open(&b, tenancy_exit_gib);
    big_touch(&b);
    tell(ready);
    pause();
}

static void exiting_open(const struct aggressor *a)
{
    child_start(exiting_guest);
}

static void exiting_run(void)
{
    if (to_the_middle()) {
        child_end();
    }
}

static void hole_guest(int ready)
{
    struct big b;

    big_open(&b, 2);
    big_touch(&b);
    tell(ready);
    for (;;) { /* until killed, or the alarm */
        g_assert_cmpint(
            fallocate(b.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 2 * GIB), ==,
            0);
        big_touch(&b);
    }
}

static void hole_open(const struct aggressor *a)
{
    child_start(hole_guest);
}

/* ---- VMMs with a lot of memory that is not there ---- */

#define SPARSE_VMS  32u
#define SPARSE_SIZE ((4ull << 40) - 2 * MIB) /* with its RAM: as much as a VM may */

static struct {
    struct vguest *g[SPARSE_VMS];
    int fd[SPARSE_VMS];
    bool mapped[SPARSE_VMS];
    unsigned at_most, refused;
} sparse;

static void sparse_open(const struct aggressor *a)
{
    struct vg_opts o = {.low_size = MIB, .high_size = MIB};

    memset(&sparse, 0, sizeof(sparse));
    for (unsigned i = 0; i < SPARSE_VMS; i++) {
        sparse.g[i] = vguest_new(vgt_daemon, VM_IDLE + i, &o);
        sparse.fd[i] = sealed_memfd(SPARSE_SIZE);
    }
}

/* All that can be, then one after the other anew. */
static void sparse_run(void)
{
    unsigned mapped = 0;

    for (unsigned i = 0; go_on(); i = (i + 1) % SPARSE_VMS) {
        if (sparse.mapped[i]) {
            g_assert_cmpint(vg_dma_unmap(sparse.g[i], BIG_GPA, SPARSE_SIZE), ==, 0);
            sparse.mapped[i] = false;
            mapped--;
        }
        sparse.mapped[i] =
            add_memory(sparse.g[i], sparse.fd[i], BIG_GPA, SPARSE_SIZE) == 0;
        mapped += sparse.mapped[i];
        sparse.refused += !sparse.mapped[i];
        sparse.at_most = MAX(sparse.at_most, mapped);
    }
}

/* Can another VM come, with all that is mapped? */
static bool another_attaches(void)
{
    struct vguest *g = vguest_open(vgt_daemon, VM_VICTIM_PEER, NULL);
    bool ok = vg_attach_again(g, 5000) == 0 && vg_bring_up(g) == 0;

    if (ok) {
        vguest_free(g);
    } else {
        vguest_crash(g);
    }
    return ok;
}

static void sparse_close(void)
{
    printf("  (of %u VMMs with 4 TiB %u were mapped at a time; refused %u times; "
           "another VM %s)\n",
           SPARSE_VMS, sparse.at_most, sparse.refused,
           another_attaches() ? "attaches" : "CANNOT ATTACH");
    for (unsigned i = 0; i < SPARSE_VMS; i++) {
        if (sparse.mapped[i]) {
            vg_dma_unmap(sparse.g[i], BIG_GPA, SPARSE_SIZE);
        }
        vguest_free(sparse.g[i]);
        close(sparse.fd[i]);
    }
}

/* ---- attach and detach ---- */

static void attach_run(void)
{
    while (go_on()) {
        vguest_free(vguest_new(vgt_daemon, VM_AGGRESSOR, NULL));
    }
}

/* ---- data ---- */

static const struct flood_shape write_1m = {
    .opcode = PVRDMA_WR_RDMA_WRITE, .len = MIB, .qps = 16, .depth = 512};
static const struct flood_shape sge_read = {.opcode = PVRDMA_WR_RDMA_READ,
                                            .len = 1,
                                            .nsge = 16,
                                            .qps = 64,
                                            .depth = 1024,
                                            .span = 64 * MIB,
                                            .random = true};

static void fill(double part)
{
    flood_fill(&tenancy_flood);
}

static const struct aggressor table[] = {
    {"reg-4k", "another VM registers 4 KiB, over and over", .apart = true,
     .open = churn_open, .run = churn_run, .close = churn_close},
    {"reg-1g", "another VM registers 1 GiB of scattered pages, over and over",
     .apart = true, .open = churn_open, .run = churn_run, .close = churn_close},
    {"reg-1g-32", "the same, 32 at a time", .apart = true, .open = churn_open,
     .run = lists_run, .close = churn_close},
    {"reg-1g-other", "the same, but it is another daemon's VM", .apart = true,
     .open = churn_open, .run = churn_run, .close = churn_close},
    {"reg-1g-crowd", "1 GiB again, all on one processor", .open = churn_open,
     .run = churn_run, .close = churn_close},
    {"reg-1g-crowd-other", "the same, but it is another daemon's VM", .open = churn_open,
     .run = churn_run, .close = churn_close},
    {"reg-write-1m", "1 MiB WRITEs, 16 QPs", .shape = &write_1m, .tick = fill,
     .tick_us = 1000},
    {"reg-sge16-read", "READs of 16 pieces of 1 B, random places", .shape = &sge_read,
     .tick = fill, .tick_us = 1000},
    {"reg-attach", "another VM attaches and leaves, over and over", .apart = true,
     .run = attach_run},
    {"reg-death-2000", "a VM with 2,000 QPs dies", .apart = true, .open = dying_open,
     .run = dying_run, .close = dying_close},
    {"reg-death-8000", "a VM with 8,000 QPs dies", .apart = true, .only_long = true,
     .open = dying_open, .run = dying_run, .close = dying_close},
    {"reg-exit", "a VM with 3 GiB (--gib) that were used exits", .open = exiting_open,
     .run = exiting_run, .close = child_end},
    {"reg-holes", "a VM's 2 GiB are punched out and written, over and over",
     .open = hole_open, .close = child_end},
    {"reg-sparse", "32 VMMs map and unmap 4 TiB each", .idle_vms = SPARSE_VMS,
     .open = sparse_open, .run = sparse_run, .close = sparse_close},
};

/* ---- the table ---- */

static gpointer run_thread(gpointer data)
{
    const struct aggressor *a = data;

    if (a->apart) {
        pin_self(CPU_WORKER);
    }
    a->run();
    return NULL;
}

static void print_row(const struct aggressor *a, const struct tail alone[2],
                      const struct tail *t, const char *charge)
{
    double p50 = (alone[0].p50 + alone[1].p50) / 2;
    double p99 = (alone[0].p99 + alone[1].p99) / 2;
    double max = MIN(alone[0].max, alone[1].max);
    bool met = t->p99 <= AIM_RATIO * p99, met_max = t->max <= AIM_MAX_US;

    printf("%-18s%7.1f %8.1f %9.1f |%8.1f %9.1f %10.1f |%6.2f %6.2f %-6s %-6s |%s\n",
           a->name, p50, p99, max, t->p50, t->p99, t->max, t->p50 / p50, t->p99 / p99,
           met ? "met" : "MISSED", met_max ? "met" : "MISSED", charge);
    fflush(stdout);
}

static void run_row(const struct aggressor *a)
{
    int64_t ns = (int64_t)(seconds * 1e9);
    struct charge from, to;
    struct tail alone[2], t;
    GThread *thread = NULL;
    char *charge;

    tenancy_daemon(a->idle_vms, NULL);
    pin_daemon(vgt_daemon, a->apart ? CPU_WORKER : CPU_GUEST);
    victim_open();
    victim_run(ns / 10, NULL);
    alone[0] = victim_run(ns / 2, NULL);
    aggressor_open(a);
    charge_now(&from);
    if (a->run) {
        thread = g_thread_new(a->name, run_thread, (gpointer)a);
    }
    t = victim_run(ns, a);
    g_atomic_int_set(&tenancy_stop, 1);
    if (thread) {
        g_thread_join(thread);
    }
    charge_now(&to);
    charge = charge_text(&from, &to);
    aggressor_close(a);
    victim_run(ns / 10, NULL);
    alone[1] = victim_run(ns / 2, NULL);
    print_row(a, alone, &t, charge);
    g_free(charge);
    victim_close();
    vg_daemon_stop(vgt_daemon);
}

void commands_list(void)
{
    list_rows("commands", table, G_N_ELEMENTS(table));
}

void part_commands(const char *const *names, unsigned n_names)
{
    bool header = false;

    for (unsigned i = 0; i < G_N_ELEMENTS(table); i++) {
        if (!row_wanted(&table[i], "commands", names, n_names)) {
            continue;
        }
        if (!header) {
            printf("\n== commands: register and deregister 4 KiB, us; aims: p99 <= %.0f "
                   "x alone, max <= %d us\n"
                   "%-18s%26s |%29s |%13s %-13s |%s\n"
                   "%-18s%7s %8s %9s |%8s %9s %10s |%6s %6s %-6s %-6s |%5s %6s %6s\n",
                   AIM_RATIO, AIM_MAX_US, "", "alone", "beside it", "ratio of", "aims",
                   " the aggressor", "aggressor", "p50", "p99", "max", "p50", "p99",
                   "max", "p50", "p99", "p99", "max", "time", "M/s", "GB/s");
            header = true;
        }
        run_row(&table[i]);
    }
}
