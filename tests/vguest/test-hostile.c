/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: hostile guests and VMMs.
 *
 * VMs 0 and 1 attack, from a thread of their own, in one way per test; VMs 2
 * and 3 exchange checksummed traffic all the while.  The traffic must not see a
 * single wrong byte or error; its latency before and during the attack is
 * reported, and bounded only against a standstill (the machine may be busy).
 * Afterwards the daemon must hold what it held before.
 *
 * On a machine with few processors latency shows first how its scheduler shares
 * them.  So that it shows what the daemon does, the traffic pauses between its
 * operations, and it and the daemon's worker have the higher priority, as far as
 * that is permitted.
 */
#include "vgtest.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define QUIET_OPS     1500u /* enough for a p99 that repeats */
#define ATTACK_OPS    1500u
#define PAUSE_US      200
#define STANDSTILL_US 500000.0

static struct vgt_traffic victim;
static volatile gint stop_attack;

struct attack {
    const char *name;
    void (*run)(GRand *r); /* until stop_attack, at least one round */
};

static bool go_on(void)
{
    return !g_atomic_int_get(&stop_attack);
}

/* A new attacker guest, however the last one ended. */
static struct vguest *attacker(unsigned vm)
{
    return vguest_new(vgt_daemon, vm, NULL);
}

/* ---- the attacks ---- */

static void random_wqe(struct vgt_pair *p, GRand *r)
{
    struct vgt_side *a = &p->s[0], *b = &p->s[1];
    struct pvrdma_sge sge[4];
    struct vg_wr wr = {.wr_id = g_rand_int(r), .sge = sge};

    wr.opcode = g_rand_int(r) % 8 ? g_rand_int(r) % 7 : g_rand_int(r);
    wr.flags = g_rand_int(r) % 8 ? g_rand_int(r) & 7 : g_rand_int(r);
    wr.nsge = g_rand_int(r) % 16 ? g_rand_int(r) % 5 : g_rand_int(r);
    wr.rkey = g_rand_int(r) % 8 ? b->mr->rkey : g_rand_int(r);
    wr.remote_addr = b->mr->buf->va + (g_rand_int(r) % 1200000);
    if (g_rand_int(r) % 16 == 0) {
        wr.remote_addr = (uint64_t)g_rand_int(r) << 32 | g_rand_int(r);
    }
    wr.compare_add = g_rand_int(r);
    for (unsigned i = 0; i < 4; i++) {
        sge[i] = vg_sge(a->mr, g_rand_int(r) % 1048576, g_rand_int(r) % 100000);
        if (g_rand_int(r) % 32 == 0) {
            sge[i].lkey = g_rand_int(r);
        }
        if (g_rand_int(r) % 32 == 0) {
            sge[i].length = g_rand_int(r);
        }
    }
    if (g_rand_int(r) % 3) {
        vg_post_send(a->qp, &wr, 1);
    } else {
        vg_post_recv(b->qp, &wr, 1);
    }
}

static void attack_random_wqes(GRand *r)
{
    struct vg_conn c = {.timeout = 8,
                        .retry_cnt = 1,
                        .rnr_retry = 1,
                        .zero_counts = true,
                        .max_rd_atomic = 16,
                        .max_dest_rd_atomic = 16};
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, &(struct vgt_opts){.conn = c});
    do {
        for (unsigned i = g_rand_int(r) % 200; i > 0; i--) {
            random_wqe(&p, r);
        }
        g_usleep(g_rand_int(r) % 1000);
        vgt_pair_reconnect(&p, &c);
    } while (go_on());
    vgt_pair_close(&p);
}

/* Every index in guest memory, at random, with doorbells. */
static void attack_indices(GRand *r)
{
    struct vgt_pair p;

    do {
        vgt_pair_open(&p, 0, 1, NULL);
        for (unsigned i = 0; i < 300 && go_on(); i++) {
            struct vgt_side *s = &p.s[g_rand_int(r) & 1];
            uint32_t *word[] = {
                s->qp->sq.prod_tail,
                s->qp->sq.cons_head,
                s->qp->rq.prod_tail,
                s->qp->rq.cons_head,
                s->scq->prod_tail,
                s->scq->cons_head,
                s->rcq->prod_tail,
                s->rcq->cons_head,
                &((struct pvrdma_ring_state *)s->g->async_ring->host)->rx.cons_head,
                &((struct pvrdma_ring_state *)s->g->cqn_ring->host)->rx.cons_head};

            *word[g_rand_int(r) % G_N_ELEMENTS(word)] =
                g_rand_int(r) & 1 ? g_rand_int(r) : g_rand_int(r) % 256;
            vg_ring_send(s->qp);
            vg_ring_recv(s->qp);
            vg_cq_arm(s->scq, g_rand_int(r) & 1);
            g_usleep(g_rand_int(r) % 100);
        }
        vgt_pair_close(&p);
    } while (go_on());
}

static void attack_doorbells(GRand *r)
{
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, NULL);
    do {
        struct pvrdma_db_region *db = p.s[0].g->db;

        /* All handles at once, then single ones on any page. */
        memset(db->send.words, 0xff, sizeof(db->send.words));
        memset(db->send.summary, 0xff, sizeof(db->send.summary));
        memset(db->recv.words, 0xff, sizeof(db->recv.words));
        memset(db->recv.summary, 0xff, sizeof(db->recv.summary));
        memset(db->srq.summary, 0xff, sizeof(db->srq.summary));
        memset(db->arm, g_rand_int(r), sizeof(db->arm));
        memset(db->qp_owner, g_rand_int(r), sizeof(db->qp_owner));
        db->kick = g_rand_int(r);
        for (unsigned i = 0; i < 500; i++) {
            uint32_t page = g_rand_int(r) % 513, value = g_rand_int(r);
            uint64_t one = 1;

            vg_doorbell_shared(db, p.s[0].g->db_eventfd, page, g_rand_int(r) % 3 * 4,
                               value);
            if (write(p.s[0].g->db_eventfd, &one, 8) < 0) {
                break;
            }
        }
        for (unsigned i = 0; i < 200; i++) {
            uint32_t value = g_rand_int(r);

            vg_region_write(p.s[0].g, PVRDMA_BAR_UAR, g_rand_int(r) % 0x201000, &value,
                            1 + g_rand_int(r) % 4, true);
        }
    } while (go_on());
    vgt_pair_close(&p);
}

static void attack_commands(GRand *r)
{
    struct vguest *g = attacker(0);
    unsigned n = 0;

    do {
        uint32_t req[64];
        struct pvrdma_req_hdr *hdr = (struct pvrdma_req_hdr *)req;

        for (unsigned i = 0; i < G_N_ELEMENTS(req); i++) {
            switch (g_rand_int(r) % 4) {
            case 0:
                req[i] = 0;
                break;
            case 1:
                req[i] = g_rand_int(r) % 16;
                break;
            case 2:
                req[i] = g_rand_int(r) % 100 * 4096;
                break;
            case 3:
                req[i] = g_rand_int(r);
                break;
            }
        }
        hdr->cmd = g_rand_int(r) % 24;
        vg_command(g, req, sizeof(req), NULL, 0);
        if (++n % 5000 == 0) {
            vguest_free(g);
            g = attacker(0);
        }
    } while (go_on());
    vguest_free(g);
}

static void attack_dsr(GRand *r)
{
    struct vgt_pair p;

    do {
        struct vguest *g;

        vgt_pair_open(&p, 0, 1, NULL);
        g = p.s[0].g;
        for (unsigned i = 0; i < 32; i++) {
            vgt_send(&p.s[0], i, PVRDMA_WR_RDMA_WRITE, 0, 0, 900000, &p.s[1], 0);
        }
        for (unsigned i = 0; i < 20; i++) {
            uint32_t *word = (uint32_t *)g->dsr;

            word[g_rand_int(r) % (sizeof(*g->dsr) / 4)] =
                g_rand_int(r) & 1 ? g_rand_int(r) : g_rand_int(r) % 64 * 4096;
            vg_write_dsr(g,
                         g_rand_int(r) & 1 ? g->dsr_gpa : (uint64_t)g_rand_int(r) << 8);
            vg_reg_write(g, g_rand_int(r) % 11 * 4, g_rand_int(r) % 4);
        }
        g->up = false;
        vgt_pair_close(&p);
    } while (go_on());
}

/* Pages vanish from guest RAM while they are copied and used as rings. */
static void attack_holes(GRand *r)
{
    struct vgt_traffic t;

    do {
        struct vguest *g;

        vgt_traffic_open(&t, 0, 1, 2, 4, 65536, NULL);
        vgt_traffic_run(&t, 20);
        g = t.s[0].g;
        t.s[0].qp = t.qp[0][0];
        for (unsigned i = 0; i < t.depth; i++) {
            vgt_send(&t.s[0], 1, PVRDMA_WR_RDMA_WRITE, 0, 0, 1 << 20, &t.s[1], 0);
        }
        for (unsigned i = 0; i < 500; i++) {
            g_assert_cmpint(fallocate(g->memfd,
                                      FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                      g_rand_int(r) % g->n_pages * 4096, 65536),
                            ==, 0);
        }
        g->up = false; /* its rings are zeroes now: no orderly end */
        vgt_traffic_close(&t);
    } while (go_on());
}

static void attack_unmap(GRand *r)
{
    struct vgt_pair p;

    do {
        bool high = g_rand_int(r) & 1;
        uint64_t gpa, off, size;
        struct vguest *g;

        /* Anew each time: a CQ whose ring was not there has failed for good. */
        vgt_pair_open(&p, 0, 1, NULL);
        g = p.s[0].g;
        gpa = high ? VG_HIGH_GPA : 0;
        off = high ? g->opts.low_size : 0;
        size = high ? g->opts.high_size : g->opts.low_size;
        for (unsigned k = 0; k < 8; k++) {
            vgt_send(&p.s[0], k, PVRDMA_WR_RDMA_WRITE, 0, 0, 900000, &p.s[1], 0);
            vgt_send(&p.s[1], k, PVRDMA_WR_RDMA_WRITE, 0, 0, 900000, &p.s[0], 0);
        }
        g_usleep(g_rand_int(r) % 500);
        g_assert_cmpint(vg_dma_unmap(g, gpa, size), ==, 0);
        g_assert_cmpint(vg_dma_unmap(g, gpa, size), >, 0);
        g_assert_cmpint(vg_dma_map(g, g->memfd, off, gpa, size, 3), ==, 0);
        vgt_pair_close(&p);
    } while (go_on());
}

/* Ask and ask and never read an answer. */
static void attack_not_reading(GRand *r)
{
    do {
        struct vguest *g = attacker(0);
        int64_t end = vg_now_ns() + 300000000ll;

        g_assert_cmpint(fcntl(g->sock, F_SETFL, O_NONBLOCK), ==, 0);
        while (vg_now_ns() < end && go_on()) {
            struct {
                struct vfio_user_hdr h;
                struct vfio_user_region_rw rw;
            } m = {.h = {.id = 1, .command = VFIO_USER_REGION_READ, .size = sizeof(m)},
                   .rw = {.region = VFIO_USER_REGION_CONFIG, .count = 256}};
            ssize_t n = send(g->sock, &m, sizeof(m), MSG_NOSIGNAL | MSG_DONTWAIT);

            if (n < 0 && errno == EAGAIN) {
                g_usleep(1000);
            } else if (n < 0) {
                break; /* the daemon has had enough */
            }
        }
        vguest_crash(g);
    } while (go_on());
}

/* Interrupt descriptors on which a write blocks. */
static void attack_eventfd(GRand *r)
{
    do {
        struct vgt_pair p;

        vgt_pair_open(&p, 0, 1, NULL);
        for (unsigned v = 0; v < PVRDMA_NUM_VEC; v++) {
            uint64_t full = 0xfffffffffffffffeull;

            g_assert_cmpint(fcntl(p.s[0].g->irq[v], F_SETFL, 0), ==, 0);
            if (v != PVRDMA_VEC_CMD) {
                fcntl(p.s[0].g->irq[v], F_SETFL, O_NONBLOCK);
                g_assert_cmpint(write(p.s[0].g->irq[v], &full, 8), ==, 8);
                fcntl(p.s[0].g->irq[v], F_SETFL, 0);
            }
        }
        for (unsigned i = 0; i < 50 && go_on(); i++) {
            struct pvrdma_cqe c;

            vg_cq_arm(p.s[0].scq, false);
            vgt_send(&p.s[0], i, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p.s[1], 0);
            if (!vg_cq_wait(p.s[0].scq, &c, 200)) {
                break; /* detached */
            }
        }
        for (unsigned v = 0; v < PVRDMA_NUM_VEC; v++) {
            fcntl(p.s[0].g->irq[v], F_SETFL, O_NONBLOCK);
        }
        p.s[0].g->up = false; /* the VM may be detached by now */
        vg_disconnect(p.s[0].g);
        vgt_pair_close(&p);
    } while (go_on());
}

static void attack_connections(GRand *r)
{
    do {
        struct vguest *g[16];

        for (unsigned i = 0; i < 16; i++) {
            char junk[256];

            g[i] =
                vguest_open(vgt_daemon, i & 1,
                            &(struct vg_opts){.low_size = 1 << 20, .high_size = 1 << 20});
            if (vg_connect(g[i])) {
                continue;
            }
            for (unsigned k = 0; k < sizeof(junk); k++) {
                junk[k] = g_rand_int(r);
            }
            switch (g_rand_int(r) % 4) {
            case 0:
                vg_raw_send(g[i]->sock, junk, sizeof(junk), NULL, 0);
                break;
            case 1:
                vg_raw_send(g[i]->sock, junk, 7, &g[i]->memfd, 1);
                break;
            case 2:
                vg_version(g[i]);
                break;
            case 3:
                shutdown(g[i]->sock, SHUT_WR);
                break;
            }
        }
        for (unsigned i = 0; i < 16; i++) {
            vguest_crash(g[i]);
        }
    } while (go_on());
}

/* Interrupt descriptors changed all the time, with traffic that uses them. */
static void attack_irq_swap(GRand *r)
{
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, NULL);
    do {
        struct vguest *g = p.s[0].g;
        struct pvrdma_cqe c;
        int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        unsigned v = g_rand_int(r) % PVRDMA_NUM_VEC;

        vg_cq_arm(p.s[0].scq, false);
        vgt_send(&p.s[0], 1, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p.s[1], 0);
        g_assert_cmpint(vg_set_irqs(g, VG_IRQ_EVENTFDS, v, 1, &fd, 1), ==, 0);
        close(fd);
        g_assert_cmpint(vg_set_irqs(g, VG_IRQ_EVENTFDS, v, 1, NULL, 0), ==, 0);
        g_assert_true(vg_cq_wait(p.s[0].scq, &c, VGT_WAIT_MS));
        g_assert_cmpuint(c.status, ==, PVRDMA_WC_SUCCESS);
    } while (go_on());
    g_assert_cmpint(vg_set_irqs(p.s[0].g, VG_IRQ_EVENTFDS, 0, PVRDMA_NUM_VEC,
                                p.s[0].g->irq, PVRDMA_NUM_VEC),
                    ==, 0);
    vgt_pair_close(&p);
}

/* Everything at random in the memory that an extended guest shares: doorbell
 * maps, kick and arm words, ring lines. */
static void attack_extension(GRand *r)
{
    struct vgt_opts o = {.guest = {{.db = VG_DB_EXT}, {.db = VG_DB_EXT}}};
    struct vgt_pair p;

    do {
        vgt_pair_open(&p, 0, 1, &o);
        for (unsigned i = 0; i < 20 && go_on(); i++) {
            struct vgt_side *s = &p.s[g_rand_int(r) & 1];
            uint64_t *ext = (uint64_t *)s->g->ext;
            uint32_t *ring = (uint32_t *)s->qp->mem->host;
            uint32_t *cq = (uint32_t *)s->scq->mem->host;

            struct vgt_side *peer = &p.s[s == &p.s[0]];
            struct pvrdma_sge sge = vg_sge(s->mr, 0, 900000);
            struct vg_wr wr = vg_wr_to(0, PVRDMA_WR_RDMA_WRITE, 0, &sge, peer->mr, 0);

            vg_post_send(s->qp, &wr, 1); /* or not: the index is rubbish */
            for (unsigned k = 0; k < 300; k++) {
                uint64_t bits = (uint64_t)g_rand_int(r) << 32 | g_rand_int(r);

                ext[g_rand_int(r) % (sizeof(*s->g->ext) / 8)] =
                    g_rand_int(r) & 1 ? bits : ~0ull;
                ring[g_rand_int(r) % 96] = bits & (bits & 1 ? 127 : ~0ull);
                cq[g_rand_int(r) % 96] = bits & (bits & 1 ? 511 : ~0ull);
                s->g->ext->send.summary[0] = 1;
                s->g->ext->send.words[0] |= 1ull << (s->qp->handle & 63);
                vg_doorbell_shared(
                    s->g->db, s->g->db_eventfd, s->g->uar_page, PVRDMA_UAR_QP,
                    s->qp->handle | PVRDMA_UAR_QP_SEND | PVRDMA_UAR_QP_RECV);
            }
            if (i % 4 == 0) { /* and it goes away for a while */
                g_assert_cmpint(vg_dma_unmap(s->g, VG_HIGH_GPA, s->g->opts.high_size), ==,
                                0);
                g_assert_cmpint(vg_dma_map(s->g, s->g->memfd, s->g->opts.low_size,
                                           VG_HIGH_GPA, s->g->opts.high_size, 3),
                                ==, 0);
            }
            g_usleep(g_rand_int(r) % 500);
        }
        vgt_pair_close(&p);
    } while (go_on());
}

static const struct attack attacks[] = {
    {"wqes", attack_random_wqes},
    {"indices", attack_indices},
    {"doorbells", attack_doorbells},
    {"commands", attack_commands},
    {"dsr", attack_dsr},
    {"holes", attack_holes},
    {"unmap", attack_unmap},
    {"not-reading", attack_not_reading},
    {"eventfd", attack_eventfd},
    {"connections", attack_connections},
    {"irq-swap", attack_irq_swap},
    {"extension", attack_extension},
};

static gpointer attack_thread(gpointer data)
{
    const struct attack *a = data;
    GRand *r = g_rand_new_with_seed(a - attacks + 100);

    a->run(r);
    g_rand_free(r);
    return NULL;
}

/* @ops operations of the victim each way. */
static void run_victim(unsigned ops)
{
    while (ops-- > 0) {
        vgt_traffic_run(&victim, 1);
        g_usleep(PAUSE_US);
    }
}

static void test_attack(const void *data)
{
    static const double percent[2] = {50, 99};
    const struct attack *a = data;
    struct vg_usage before;
    double quiet[2], hostile[2];
    GThread *t;

    g_array_set_size(victim.latency, 0);
    run_victim(vgt_rounds(QUIET_OPS));
    for (unsigned i = 0; i < 2; i++) {
        quiet[i] = vgt_percentile(victim.latency, percent[i]);
    }
    g_array_set_size(victim.latency, 0);
    vgt_usage_settled(&before);

    g_atomic_int_set(&stop_attack, 0);
    t = g_thread_new(a->name, attack_thread, (gpointer)a);
    for (int64_t end = vg_now_ns() + 1000000000ll; vg_now_ns() < end;) {
        run_victim(100); /* at least a second of it */
    }
    run_victim(vgt_rounds(ATTACK_OPS));
    g_atomic_int_set(&stop_attack, 1);
    g_thread_join(t);
    for (unsigned i = 0; i < 2; i++) {
        hostile[i] = vgt_percentile(victim.latency, percent[i]);
    }
    g_test_message("%s: victim's latency in us, p50 %.1f quiet, %.1f attacked; p99 "
                   "%.1f, %.1f (x %.2f)",
                   a->name, quiet[0], hostile[0], quiet[1], hostile[1],
                   hostile[1] / quiet[1]);
    vgt_assert_shorter(hostile[1], STANDSTILL_US);
    vg_daemon_check(vgt_daemon);
    vgt_usage_returns(&before);
}

/* Without require-sealed, RAM can be truncated under the daemon: SIGBUS.  The
 * VM is detached, nobody else notices. */
static void test_truncated(void)
{
    struct vg_daemon_opts o = {
        .n_vms = 4, .poll_us = -1, .daemon_keys = "require-sealed=false"};
    struct vg_daemon *saved = vgt_daemon;
    struct vgt_traffic bystander;

    vgt_daemon = vg_daemon_start(&o);
    vgt_traffic_open(&bystander, 2, 3, 1, 1, 65536, NULL);
    for (unsigned i = 0; i < 5; i++) {
        struct vguest *g = vguest_open(vgt_daemon, 0, NULL);
        struct vgt_side s;

        close(g->memfd); /* the same RAM again, but unsealed */
        g->memfd = memfd_create("vguest-ram", MFD_CLOEXEC);
        g_assert_cmpint(ftruncate(g->memfd, g->ram_size), ==, 0);
        g_assert_true(mmap(g->ram, g->ram_size, PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_FIXED, g->memfd, 0) == g->ram);
        g_assert_cmpint(vg_attach_again(g, 5000), ==, 0);
        g_assert_cmpint(vg_bring_up(g), ==, 0);
        s.g = g;
        s.pd = vg_pd_new(g);
        s.scq = s.rcq = vg_cq_new(s.pd, 64);
        s.qp = vg_qp_new(s.pd, s.scq, s.rcq, NULL);
        s.mr = vg_mr_alloc(s.pd, 0x10000, 1 << 20, VG_ACCESS_ALL);
        vg_qp_connect(s.qp, s.qp, NULL);
        vgt_complete(&s, 1, PVRDMA_WR_RDMA_WRITE, 0, 4096, &s, 8192);
        /* Post, cut the RAM off, ring. */
        for (unsigned k = 0; k < 8; k++) {
            struct pvrdma_sge sge = vg_sge(s.mr, 0, 500000);
            struct vg_wr wr = vg_wr_to(k, PVRDMA_WR_RDMA_WRITE, 0, &sge, s.mr, 500000);

            vg_queue_send(s.qp, &wr, 1);
        }
        g_assert_cmpint(ftruncate(g->memfd, 4096), ==, 0);
        vg_ring_send(s.qp);
        g_assert_true(vg_wait_closed(g, VGT_WAIT_MS));
        vgt_traffic_run(&bystander, 100);
        /* Our own view of the objects is gone with the RAM. */
        g_assert_cmpint(ftruncate(g->memfd, g->ram_size), ==, 0);
        g->up = false;
        vg_mr_free(s.mr);
        vg_qp_free(s.qp);
        vg_cq_free(s.scq);
        vg_pd_free(s.pd);
        vguest_crash(g);
    }
    vgt_traffic_close(&bystander);
    vg_daemon_stop(vgt_daemon);
    vgt_daemon = saved;
}

/* Real-time priority for this thread and for the daemon's but its main thread. */
static void set_priorities(void)
{
    g_autofree char *path = g_strdup_printf("/proc/%d/task", (int)vgt_daemon->pid);
    GDir *dir = g_dir_open(path, 0, NULL);
    const char *tid;
    struct sched_param sp = {.sched_priority = 1};
    bool ok = sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &sp) == 0;

    g_assert_nonnull(dir);
    while ((tid = g_dir_read_name(dir))) {
        if (atoi(tid) != vgt_daemon->pid) {
            ok &=
                sched_setscheduler(atoi(tid), SCHED_FIFO | SCHED_RESET_ON_FORK, &sp) == 0;
        }
    }
    g_dir_close(dir);
    if (!ok) {
        g_test_message("no right to set priorities: latencies say little");
    }
}

int main(int argc, char **argv)
{
    struct vg_daemon_opts o = {.n_vms = 4, .poll_us = -1};
    int ret;

    vgt_init(&argc, &argv, 480);
    vgt_daemon = vg_daemon_start(&o);
    if (vgt_judges()) { /* else others have a right to run, too */
        set_priorities();
    }
    vgt_traffic_open(&victim, 2, 3, 1, 1, 8192, NULL);
    for (unsigned i = 0; i < G_N_ELEMENTS(attacks); i++) {
        char *path = g_strdup_printf("/hostile/%s", attacks[i].name);

        g_test_add_data_func(path, &attacks[i], test_attack);
        g_free(path);
    }
    g_test_add_func("/hostile/truncated-ram", test_truncated);
    ret = g_test_run();
    vgt_traffic_close(&victim);
    vg_daemon_stop(vgt_daemon);
    return ret;
}
