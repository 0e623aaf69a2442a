/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Fast registration: what a FAST_REG of 1 MiB and the end of its key take of the
 * worker's time, by what the daemon charges the VM (all of its turns), and how long they
 * take the guest.  The aim is 5 us of worker time for both together; the peer is a
 * memcpy of the page list, which is the least there is to do.
 */
#include <stdio.h>

#include "bench.h"

#define BATCH 16u

static double charged_us(void)
{
    return (double)vgt_counter("vm0", "datapath", "worker_ns") / 1000;
}

static struct vg_wr local_inv(const struct vg_mr *mr)
{
    return (struct vg_wr){.opcode = PVRDMA_WR_LOCAL_INV, .imm = mr->rkey};
}

/* One after the other, each waited for: us from the post to the completion. */
static void one_by_one(struct vgt_side *s, struct vg_mr *mr)
{
    GArray *reg = g_array_new(FALSE, FALSE, sizeof(double));
    GArray *inv = g_array_new(FALSE, FALSE, sizeof(double));
    int64_t start = vg_now_ns();

    while (time_left(start)) {
        struct vg_wr wr = vg_wr_fast_reg(mr, 0, VG_ACCESS_ALL);
        double t = now_us(), d;

        g_assert_cmpuint(vg_post_send(s->qp, &wr, 1), ==, 1);
        spin_cqe(s->scq);
        d = now_us() - t;
        g_array_append_val(reg, d);
        wr = local_inv(mr);
        wr.flags = VGT_SIG;
        t = now_us();
        g_assert_cmpuint(vg_post_send(s->qp, &wr, 1), ==, 1);
        spin_cqe(s->scq);
        d = now_us() - t;
        g_array_append_val(inv, d);
    }
    print_latency("FAST_REG, post to completion", percentiles(reg));
    print_latency("LOCAL_INV, post to completion", percentiles(inv));
}

/* Queues of them: worker time for one of each. */
static double charged(struct vgt_side *s, struct vg_mr **mr)
{
    int64_t start = vg_now_ns();
    double before = charged_us();
    uint64_t n = 0;

    while (time_left(start)) {
        struct vg_wr wr[2 * BATCH];

        for (unsigned i = 0; i < BATCH; i++) {
            wr[2 * i] = vg_wr_fast_reg(mr[i], 0, VG_ACCESS_ALL);
            wr[2 * i].flags = 0;
            wr[2 * i + 1] = local_inv(mr[i]);
        }
        wr[2 * BATCH - 1].flags = VGT_SIG;
        g_assert_cmpuint(vg_post_send(s->qp, wr, 2 * BATCH), ==, 2 * BATCH);
        spin_cqe(s->scq);
        n += BATCH;
    }
    return (charged_us() - before) / (double)n;
}

static double copy_us(unsigned pages)
{
    static uint64_t from[PVRDMA_EXT_MAX_FAST_REG], into[PVRDMA_EXT_MAX_FAST_REG];
    int64_t start = vg_now_ns();
    uint64_t n = 0;

    while (time_left(start)) {
        for (unsigned i = 0; i < 1000; i++, n++) {
            memcpy(into, from, pages * sizeof(from[0]));
            __asm__ volatile("" ::"r"(into) : "memory");
        }
    }
    return (double)(vg_now_ns() - start) / 1000 / (double)n;
}

void part_keys(void)
{
    const struct vgt_opts o = {.kernel = true};
    struct vg_mr *mr[BATCH];
    struct vgt_side s;
    double us;

    vgt_side_open(&s, 0, &o, 0);
    vg_qp_connect(s.qp, s.qp, NULL);
    for (unsigned i = 0; i < BATCH; i++) {
        mr[i] = vg_mr_new_fast(s.pd, vg_buf_new(s.g, 0x7f5500000000, MIB, VG_SCATTERED),
                               MIB / PVRDMA_PAGE_SIZE);
    }
    one_by_one(&s, mr[0]);
    us = charged(&s, mr);
    printf("  1 MiB registered and invalidated: %.2f us of worker time (aim: 5), %.0f "
           "times a copy of the list\n",
           us, us / copy_us(MIB / PVRDMA_PAGE_SIZE));
    for (unsigned i = 0; i < BATCH; i++) {
        vg_mr_free(mr[i]);
    }
    vgt_side_close(&s);
}
