/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the benchmark programs share: placement of threads, statistics,
 * completions, one operation at a time, a dirty log.
 */
#include "bench.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

double seconds = 2;
const char *path = "copy";

/* ---- placement ---- */

static void pin(pid_t tid, unsigned cpu)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(tid, sizeof(set), &set) < 0) {
        g_error("cannot pin to processor %u", cpu);
    }
}

void pin_self(unsigned cpu)
{
    pin(0, cpu);
}

void unpin_self(void)
{
    cpu_set_t all;

    memset(&all, 0xff, sizeof(all));
    g_assert_cmpint(sched_setaffinity(0, sizeof(all), &all), ==, 0);
}

/*
 * Beside traffic the main thread cannot share the worker's processor: at a real-time
 * priority it would never run there.  All others but the worker sleep.
 */
void pin_daemon(const struct vg_daemon *d, unsigned main_cpu)
{
    char *path = g_strdup_printf("/proc/%d/task", (int)d->pid);
    GDir *dir = g_dir_open(path, 0, NULL);
    const char *tid;

    g_assert_nonnull(dir);
    while ((tid = g_dir_read_name(dir))) {
        pin(atoi(tid), atoi(tid) == d->pid ? main_cpu : CPU_WORKER);
    }
    g_dir_close(dir);
    g_free(path);
}

/* ---- statistics ---- */

struct figures percentiles(GArray *a)
{
    struct figures f = {vgt_percentile(a, 50), vgt_percentile(a, 99),
                        vgt_percentile(a, 99.9)};

    g_array_unref(a);
    return f;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double median(double *v, unsigned n)
{
    qsort(v, n, sizeof(*v), compare);
    return v[n / 2];
}

void print_latency(const char *what, struct figures f)
{
    printf("%-34s p50 %7.2f us  p99 %8.2f us  p99.9 %8.2f us\n", what, f.p50, f.p99,
           f.p999);
}

/* ---- completions ---- */

uint64_t *page_list(uint64_t gpa, uint32_t n, GRand *r)
{
    uint64_t *page = g_new(uint64_t, n);

    for (uint32_t i = 0; i < n; i++) {
        page[i] = gpa + (uint64_t)i * PVRDMA_PAGE_SIZE;
    }
    for (uint32_t i = n - 1; r && i > 0; i--) {
        uint32_t k = g_rand_int(r) % (i + 1);
        uint64_t p = page[i];

        page[i] = page[k];
        page[k] = p;
    }
    return page;
}

unsigned reap(struct vg_cq *cq)
{
    struct pvrdma_cqe c[64];
    int n = vg_cq_poll(cq, c, G_N_ELEMENTS(c));

    for (int i = 0; i < n; i++) {
        if (c[i].status != PVRDMA_WC_SUCCESS) {
            g_error("completion with status %u", c[i].status);
        }
    }
    g_assert_cmpint(n, >=, 0);
    return n;
}

void spin_cqe(struct vg_cq *cq)
{
    while (!reap(cq)) {
    }
}

/* ---- one operation at a time ---- */

struct figures op_latency(struct vgt_pair *p, uint32_t opcode, unsigned count)
{
    GArray *a = g_array_sized_new(FALSE, FALSE, sizeof(double), count);
    struct vgt_side *s = &p->s[0], *far = &p->s[1];
    bool send = opcode == PVRDMA_WR_SEND, read = opcode == PVRDMA_WR_RDMA_READ;
    struct pvrdma_sge sge = vg_sge(s->mr, 0, 8), into = vg_sge(far->mr, 0, 8);
    struct vg_wr recv = {.nsge = 1, .sge = &into};
    uint64_t data = 0;
    struct vg_wr wr = vg_wr_to(0, opcode, PVRDMA_SEND_SIGNALED, &sge, far->mr, 0);

    if (!read && s->qp->opts.max_inline) {
        wr.flags |= PVRDMA_SEND_INLINE;
        wr.inline_data = &data;
        wr.inline_len = sizeof(data);
    }
    for (unsigned i = 0; i < count; i++) {
        double t, us;

        if (send) {
            vg_post_recv(far->qp, &recv, 1);
        }
        t = now_us();
        vg_post_send(s->qp, &wr, 1);
        spin_cqe(send ? far->rcq : s->scq);
        us = now_us() - t;
        if (send) {
            spin_cqe(s->scq);
        }
        g_array_append_val(a, us);
    }
    return percentiles(a);
}

/* ---- the dirty log ---- */

void start_log(struct vguest *g)
{
    struct {
        struct vfio_user_device_feature head;
        struct vfio_user_log_start start;
    } msg = {{sizeof(msg), VFIO_USER_FEATURE_DMA_LOGGING_START | VFIO_USER_FEATURE_SET},
             {.page_size = PVRDMA_PAGE_SIZE}};

    g_assert_cmpint(
        vg_request(g, VFIO_USER_DEVICE_FEATURE, 0, &msg, sizeof(msg), NULL, 0, NULL), ==,
        0);
}
