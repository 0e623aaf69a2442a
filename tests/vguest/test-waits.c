/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: commands that take long or wait, and who waits with them.
 *
 * A VMM that comes back at once is served, never taken for a second one.  While
 * VMs register as many pages in as many ranges as they may, or reset a device full of
 * objects, another VM's commands are answered; how fast is reported.  The aim is 20
 * ms at most; asserted is only what no busy machine makes of that.
 */
#include "vgtest.h"

#include <errno.h>
#include <unistd.h>

#define MAX_MS    200.0
#define N_HOSTILE 3u

/* ---- coming back ---- */

/* One connection after the other, the next one right after the last one's end. */
static void test_reconnect(void)
{
    struct vguest *g = vguest_open(vgt_daemon, 0, NULL);

    for (unsigned i = 0; i < 200; i++) {
        int err = vg_connect(g);

        g_assert_cmpint(err, ==, 0);
        err = i % 10 ? vg_version(g) : vg_attach(g);
        if (err) {
            g_error("connection %u was not served: %s", i, g_strerror(ABS(err)));
        }
        if (i % 10 == 0) {
            g_assert_cmpint(vg_bring_up(g), ==, 0);
        }
        vg_disconnect(g);
    }
    vguest_free(g);
}

/* ---- long commands ---- */

#define RANGES    4000u
#define RANGE_GPA (1ull << 40)
#define MR_PAGES  262144u /* 1 GiB, the most there is */

struct hostile {
    struct vguest *g;
    struct pvrdma_cmd_create_mr req;
    GThread *thread;
    unsigned rounds;
    int64_t ns; /* of all of them */
};

static gint stop;

/* Many ranges, and a page list that hops between them at random. */
static void hostile_open(struct hostile *h, unsigned vm)
{
    struct vg_opts o = {.low_size = 64 << 20, .high_size = 64 << 20};
    uint64_t *page = g_new(uint64_t, MR_PAGES);
    GRand *r = g_rand_new_with_seed(vm);
    struct vg_pd *pd;

    h->g = vguest_new(vgt_daemon, vm, &o);
    for (uint64_t i = 0; i < RANGES; i++) {
        g_assert_cmpint(vg_dma_map(h->g, h->g->memfd, i * PVRDMA_PAGE_SIZE,
                                   RANGE_GPA + i * 2 * PVRDMA_PAGE_SIZE, PVRDMA_PAGE_SIZE,
                                   VG_DMA_RW),
                        ==, 0);
    }
    for (unsigned i = 0; i < MR_PAGES; i++) {
        page[i] = RANGE_GPA + (uint64_t)(g_rand_int(r) % RANGES) * 2 * PVRDMA_PAGE_SIZE;
    }
    pd = vg_pd_new(h->g);
    h->req = (struct pvrdma_cmd_create_mr){
        .start = 0x10000000,
        .length = (uint64_t)MR_PAGES * PVRDMA_PAGE_SIZE,
        .pd_handle = pd->handle,
        .access_flags = VG_ACCESS_ALL,
        .nchunks = MR_PAGES,
        .pdir_dma = vg_pdir_new(h->g, page, MR_PAGES),
    };
    g_free(pd);
    g_rand_free(r);
    g_free(page);
}

static gpointer register_on_and_on(gpointer opaque)
{
    struct hostile *h = opaque;

    do {
        struct pvrdma_resp_create_mr resp;
        int64_t t = vg_now_ns();

        g_assert_cmpint(vg_create_mr(h->g, &h->req, &resp), ==, 0);
        h->ns += vg_now_ns() - t;
        h->rounds++;
        g_assert_cmpint(vg_destroy(h->g, PVRDMA_CMD_DESTROY_MR, resp.mr_handle), ==, 0);
    } while (!g_atomic_int_get(&stop));
    return NULL;
}

/* Commands with and without a wait, and register reads; ms each. */
static void measure(struct vguest *g, GArray *ms, unsigned rounds)
{
    g_array_set_size(ms, 0);
    for (unsigned i = 0; i < rounds; i++) {
        int64_t t = vg_now_ns();
        uint32_t pd;
        double d;

        g_assert_cmpint(vg_create_pd(g, g->uctx, &pd), ==, 0);
        g_assert_cmpint(vg_destroy(g, PVRDMA_CMD_DESTROY_PD, pd), ==, 0);
        g_assert_cmpuint(vg_reg_read(g, PVRDMA_REG_VERSION), ==, PVRDMA_VERSION);
        d = (double)(vg_now_ns() - t) / 1e6;
        g_array_append_val(ms, d);
    }
}

static double report(const char *what, GArray *ms)
{
    double max = vgt_percentile(ms, 100);

    g_test_message("%s: p50 %.3f ms, p99 %.3f ms, longest %.3f ms", what,
                   vgt_percentile(ms, 50), vgt_percentile(ms, 99), max);
    return max;
}

static void test_registration(void)
{
    struct vguest *g = vguest_new(vgt_daemon, 0, NULL);
    GArray *ms = g_array_new(FALSE, FALSE, sizeof(double));
    struct hostile h[N_HOSTILE] = {{0}};
    double max;

    g_atomic_int_set(&stop, 0);
    for (unsigned i = 0; i < N_HOSTILE; i++) {
        hostile_open(&h[i], 1 + i);
    }
    measure(g, ms, vgt_rounds(3000));
    report("two commands and a read, quiet", ms);
    for (unsigned i = 0; i < N_HOSTILE; i++) {
        h[i].thread = g_thread_new("hostile", register_on_and_on, &h[i]);
    }
    measure(g, ms, vgt_rounds(3000));
    g_atomic_int_set(&stop, 1);
    for (unsigned i = 0; i < N_HOSTILE; i++) {
        g_thread_join(h[i].thread);
        g_assert_cmpuint(h[i].rounds, >, 0);
        g_test_message("VM %u: %u registrations of 1 GiB over %u ranges, %.1f ms each",
                       1 + i, h[i].rounds, RANGES, h[i].ns / 1e6 / h[i].rounds);
        vguest_free(h[i].g);
    }
    max = report("two commands and a read, among registrations", ms);
    vgt_assert_shorter(max, MAX_MS);
    g_array_unref(ms);
    vguest_free(g);
}

#define N_MR (VGT_PLAIN_BUILD ? 20000u : 2000u)
#define N_QP (VGT_PLAIN_BUILD ? 2000u : 200u)

static gpointer reset(gpointer opaque)
{
    struct hostile *h = opaque;
    int64_t t = vg_now_ns();

    g_assert_cmpint(vg_reset(h->g), ==, 0);
    h->ns = vg_now_ns() - t;
    g_atomic_int_set(&stop, 1);
    return NULL;
}

/* A device full of objects is reset. */
static void test_reset(void)
{
    struct vg_opts o = {.low_size = 128 << 20};
    struct vguest *g = vguest_new(vgt_daemon, 0, NULL);
    struct hostile h = {.g = vguest_new(vgt_daemon, 1, &o)};
    struct vg_pd *pd = vg_pd_new(h.g), *kernel = vg_pd_new_kernel(h.g);
    struct vg_cq *cq = vg_cq_new(pd, 64);
    struct vg_qp_opts small = {.send_wr = 2, .recv_wr = 2, .contig = true};
    struct vg_qp **qp = g_new(struct vg_qp *, N_QP);
    GArray *all = g_array_new(FALSE, FALSE, sizeof(double));
    GArray *ms = g_array_new(FALSE, FALSE, sizeof(double));
    double max;

    for (unsigned i = 0; i < N_MR; i++) {
        g_free(vg_mr_new_dma(kernel));
    }
    for (unsigned i = 0; i < N_QP; i++) {
        qp[i] = vg_qp_new(pd, cq, cq, &small);
    }
    g_atomic_int_set(&stop, 0);
    h.thread = g_thread_new("reset", reset, &h);
    do {
        measure(g, ms, 10);
        g_array_append_vals(all, ms->data, ms->len);
    } while (!g_atomic_int_get(&stop));
    g_thread_join(h.thread);
    g_test_message("reset of %u memory regions and %u queue pairs: %.1f ms", N_MR, N_QP,
                   h.ns / 1e6);
    max = report("two commands and a read, meanwhile", all);
    vgt_assert_shorter(max, MAX_MS);
    vgt_assert_no_objects("vm1");

    h.g->up = false; /* the device has none of them any more */
    for (unsigned i = 0; i < N_QP; i++) {
        vg_qp_free(qp[i]);
    }
    vg_cq_free(cq);
    vg_pd_free(pd);
    vg_pd_free(kernel);
    g_free(qp);
    vguest_free(h.g);
    g_array_unref(ms);
    g_array_unref(all);
    vguest_free(g);
}

/* What the main thread did for a VM is counted. */
static void test_command_ns(void)
{
    struct vguest *g = vguest_new(vgt_daemon, 0, NULL);
    int64_t ns[2];

    for (unsigned i = 0; i < 2; i++) {
        JsonNode *node = vg_daemon_counters(vgt_daemon);
        JsonObject *dev =
            json_object_get_object_member(vg_status_vm(node, "vm0"), "device");

        ns[i] = json_object_get_int_member(dev, "command_ns");
        json_node_unref(node);
        for (unsigned k = 0; k < 100; k++) {
            vg_reg_read(g, PVRDMA_REG_VERSION);
        }
    }
    g_assert_cmpint(ns[0], >, 0);
    g_assert_cmpint(ns[1], >, ns[0]);
    g_assert_cmpint(ns[1] - ns[0], <, vg_patience(1000) * 1000000ll);
    vguest_free(g);
}

int main(int argc, char **argv)
{
    struct vg_daemon_opts o = {.n_vms = 1 + N_HOSTILE, .poll_us = -1};

    vgt_init(&argc, &argv, 200);
    vgt_daemon = vg_daemon_start(&o);
    g_test_add_func("/waits/reconnect", test_reconnect);
    g_test_add_func("/waits/registration", test_registration);
    g_test_add_func("/waits/reset", test_reset);
    g_test_add_func("/waits/command-ns", test_command_ns);
    return vgt_run();
}
