/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Benchmark of the dirty log: what it costs the traffic of two VMs that both have one,
 * beside the same without, in turns; and one look at it, as QEMU does it several times in
 * a migration, by messages, of 4 GiB each, and at a log that is shared.  Nothing is
 * marked there: what a mark costs is the same for both.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "bench.h"
#include "pvrdma/dirty.h"

#define GIB         (UINT64_C(1) << 30)
#define AT          (64 * GIB) /* nothing is mapped there, which does not matter */
#define REPORTED    (4 * GIB)
#define BITS        (REPORTED / PVRDMA_PAGE_SIZE / 8)
#define TURNS       5u
#define OUTSTANDING 64u
#define SPAN        (4u * MIB)

/* The log of @gib GiB begins; its bits, if it is @shared. */
static _Atomic uint64_t *start(struct vguest *g, uint64_t gib, bool shared)
{
    struct {
        struct vfio_user_device_feature head;
        struct vfio_user_log_start start;
        struct vfio_user_log_range range;
    } msg = {{sizeof(msg), VFIO_USER_FEATURE_SET},
             {.page_size = PVRDMA_PAGE_SIZE, .num_ranges = 1},
             {AT, gib * GIB}};
    struct vg_reply reply;
    void *p;

    msg.head.flags |=
        shared ? PVRDMA_FEATURE_DIRTY_LOG : VFIO_USER_FEATURE_DMA_LOGGING_START;
    g_assert_cmpint(
        vg_request(g, VFIO_USER_DEVICE_FEATURE, 0, &msg, sizeof(msg), NULL, 0, &reply),
        ==, 0);
    g_assert_cmpuint(reply.nfds, ==, shared ? 1 : 0);
    if (!shared) {
        vg_reply_clear(&reply);
        return NULL;
    }
    p = mmap(NULL, pvrdma_dirty_bytes(gib * GIB), PROT_READ | PROT_WRITE, MAP_SHARED,
             reply.fds[0], 0);
    g_assert_true(p != MAP_FAILED);
    vg_reply_clear(&reply);
    return p;
}

static void stop(struct vguest *g)
{
    struct vfio_user_device_feature msg = {
        sizeof(msg), VFIO_USER_FEATURE_DMA_LOGGING_STOP | VFIO_USER_FEATURE_SET};

    g_assert_cmpint(
        vg_request(g, VFIO_USER_DEVICE_FEATURE, 0, &msg, sizeof(msg), NULL, 0, NULL), ==,
        0);
}

static uint64_t look(struct vguest *g, uint64_t gib, _Atomic uint64_t *bits)
{
    struct {
        struct vfio_user_device_feature head;
        struct vfio_user_log_report report;
    } msg = {{sizeof(msg) + BITS,
              VFIO_USER_FEATURE_DMA_LOGGING_REPORT | VFIO_USER_FEATURE_GET},
             {AT, REPORTED, PVRDMA_PAGE_SIZE}};
    struct vg_reply reply;
    uint64_t marked = 0, word;

    for (uint64_t i = 0; bits && i < gib * GIB / PVRDMA_PAGE_SIZE / 64; i++) {
        marked += atomic_load_explicit(&bits[i], memory_order_relaxed) &&
                  atomic_exchange(&bits[i], 0);
    }
    for (; !bits && msg.report.iova < AT + gib * GIB; msg.report.iova += REPORTED) {
        g_assert_cmpint(vg_request(g, VFIO_USER_DEVICE_FEATURE, 0, &msg, sizeof(msg),
                                   NULL, 0, &reply),
                        ==, 0);
        for (uint64_t i = 0; i < BITS / 8; i++) {
            memcpy(&word, reply.data + sizeof(msg) + i * 8, 8);
            marked += word != 0;
        }
        vg_reply_clear(&reply);
    }
    return marked;
}

/* us of the fastest look; the first one finds pages that are not there. */
static double us_of(struct vguest *g, uint64_t gib, _Atomic uint64_t *bits)
{
    int64_t begin = vg_now_ns(), best = INT64_MAX;

    look(g, gib, bits);
    for (unsigned n = 0; n < 3 || time_left(begin); n++) {
        int64_t at = vg_now_ns();

        g_assert_cmpuint(look(g, gib, bits), ==, 0);
        best = MIN(best, vg_now_ns() - at);
    }
    return (double)best / 1e3;
}

/* us of the daemon's processor time for a message, of @bytes of them. */
static double message_us(struct vgt_pair *p, uint32_t opcode, uint32_t len,
                         uint64_t bytes)
{
    struct vgt_side *s = &p->s[0], *far = &p->s[1];
    uint64_t count = bytes / len, posted = 0, done = 0;
    double cpu = daemon_cpu();
    struct pvrdma_sge sge;
    struct vg_wr wr = {.opcode = opcode,
                       .flags = PVRDMA_SEND_SIGNALED,
                       .nsge = 1,
                       .sge = &sge,
                       .rkey = far->mr->rkey};

    while (done < count) {
        for (; posted < count && posted < done + OUTSTANDING; posted++) {
            uint64_t off = posted * len % SPAN;

            sge = vg_sge(s->mr, off, len);
            wr.remote_addr = far->mr->buf->va + off;
            g_assert_cmpuint(vg_post_send(s->qp, &wr, 1), ==, 1);
        }
        done += reap(s->scq);
    }
    return (daemon_cpu() - cpu) * 1e6 / (double)count;
}

static void traffic(struct vgt_pair *p, const char *what, uint32_t opcode, uint32_t len,
                    uint64_t bytes)
{
    double off[TURNS], on[TURNS], ratio[TURNS];

    message_us(p, opcode, len, bytes); /* pages that are not there */
    for (unsigned i = 0; i < TURNS; i++) {
        off[i] = message_us(p, opcode, len, bytes);
        for (unsigned k = 0; k < 2; k++) {
            start_log(p->s[k].g);
        }
        on[i] = message_us(p, opcode, len, bytes);
        for (unsigned k = 0; k < 2; k++) {
            stop(p->s[k].g);
        }
        ratio[i] = on[i] / off[i];
    }
    printf("  %-14s %6.2f us without, %6.2f us with a log (%.2f)\n", what,
           median(off, TURNS), median(on, TURNS), median(ratio, TURNS));
    fflush(stdout);
}

static void traffic_cost(void)
{
    struct vgt_opts o = {.guest = {{.db = VG_DB_EXT}, {.db = VG_DB_EXT}},
                         .qp = {.send_wr = OUTSTANDING, .send_sge = 1},
                         .mr_len = SPAN};
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, &o);
    printf("processor time of a message, %u outstanding; medians of %u turns\n",
           OUTSTANDING, TURNS);
    traffic(&p, "WRITE, 8 bytes", PVRDMA_WR_RDMA_WRITE, 8, 8 * MIB);
    traffic(&p, "WRITE, 4 KiB", PVRDMA_WR_RDMA_WRITE, 4096, GIB);
    traffic(&p, "WRITE, 64 KiB", PVRDMA_WR_RDMA_WRITE, SLICE, 2 * GIB);
    traffic(&p, "READ, 64 KiB", PVRDMA_WR_RDMA_READ, SLICE, 2 * GIB);
    vgt_pair_close(&p);
}

static void look_cost(void)
{
    static const uint64_t gib[] = {4, 16, 64, 256};
    struct vguest *g = vguest_new(vgt_daemon, 0, NULL);

    printf("one look, nothing marked\n");
    for (unsigned i = 0; i < G_N_ELEMENTS(gib); i++) {
        _Atomic uint64_t *bits;
        double us[2];

        start(g, gib[i], false);
        us[0] = us_of(g, gib[i], NULL);
        stop(g);
        bits = start(g, gib[i], true);
        us[1] = us_of(g, gib[i], bits);
        munmap((void *)bits, pvrdma_dirty_bytes(gib[i] * GIB));
        stop(g);
        printf("  %4" PRIu64 " GiB: %9.1f us by messages, %8.1f us shared (%.3f)\n",
               gib[i], us[0], us[1], us[1] / us[0]);
        fflush(stdout);
    }
    vguest_free(g);
}

void part_dirty_log(void)
{
    traffic_cost();
    look_cost();
}
