/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: which worker serves which VM, as the key file has it; and that one that
 * stands still, as in a page fault that the kernel takes long for, holds up its own VMs
 * only.
 */
#include "vgtest.h"

#include <string.h>

/* Workers 0 and 1 are named: by vm0, and by the network for vm1 and vm2. */
#define NETWORK "[network lan]\nworker=1"
static const char *const keys[] = {"worker=0", NULL, NULL, "worker=any", "worker=any"};

static void test_place(void)
{
    static const unsigned place[] = {0, 1, 1, 2, 2};
    struct vguest *g[G_N_ELEMENTS(place)];
    char *text = NULL;

    for (unsigned i = 0; i < G_N_ELEMENTS(place); i++) {
        g[i] = vguest_new(vgt_daemon, i, NULL);
    }
    for (unsigned i = 0; i < G_N_ELEMENTS(place); i++) {
        g_assert_cmpuint(vgt_worker_of(i), ==, place[i]);
    }
    g_assert_cmpint(vg_ctl(vgt_daemon, &text, "status"), ==, 0);
    g_assert_nonnull(strstr(text, "worker 2: thread "));
    g_assert_nonnull(strstr(text, " WORKER "));
    g_free(text);
    for (unsigned i = 0; i < G_N_ELEMENTS(place); i++) {
        vguest_free(g[i]);
    }
}

/* Of the administrator's VMs too. */
static void test_add(void)
{
    g_assert_cmpint(vg_ctl(vgt_daemon, NULL, "vm add late worker=3"), ==, 1);
    g_assert_cmpint(vg_ctl(vgt_daemon, NULL, "vm add late worker=0,x"), ==, 1);
    g_assert_cmpint(vg_ctl(vgt_daemon, NULL, "vm add late network=lan"), ==, 0);
    g_assert_cmpint(vg_ctl(vgt_daemon, NULL, "vm add later worker=2"), ==, 0);
    g_assert_cmpint(vg_ctl(vgt_daemon, NULL, "vm remove late"), ==, 0);

    /* All three are named now: then a VM without a key may be anywhere. */
    for (unsigned i = 3; i < 5; i++) {
        struct vguest *g = vguest_new(vgt_daemon, i, NULL);

        g_assert_cmpuint(vgt_worker_of(i), <, 3);
        vguest_free(g);
    }
    g_assert_cmpint(vg_ctl(vgt_daemon, NULL, "vm remove later"), ==, 0);
}

static void write_one(struct vgt_pair *p, uint64_t id)
{
    vgt_fill(VG_MR_HOST(p->s[0].mr, 0), 5000, id);
    vgt_send(&p->s[0], id, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 5000, &p->s[1], 0);
}

static void written(struct vgt_pair *p, uint64_t id)
{
    vgt_expect(p->s[0].scq, id, PVRDMA_WC_SUCCESS);
    vgt_check(VG_MR_HOST(p->s[1].mr, 0), 5000, id);
}

/* From vm0 to itself at worker 0, from vm1 to vm3 at worker 1 and back at worker 2. */
static void test_isolation(void)
{
    struct vgt_pair a, b, c;
    struct pvrdma_cqe cqe;
    pid_t tid;

    vgt_pair_open(&a, 0, 0, NULL);
    vgt_pair_open(&b, 1, 3, NULL);
    vgt_pair_open(&c, 4, 2, NULL);
    write_one(&a, 1);
    written(&a, 1);
    tid = vgt_worker_stop(0);
    if (tid) {
        write_one(&a, 2);
        for (unsigned i = 0; i < 200; i++) {
            write_one(&b, i);
            write_one(&c, i);
            written(&b, i);
            written(&c, i);
        }
        g_assert_cmpint(vg_cq_poll(a.s[0].scq, &cqe, 1), ==, 0);
        vgt_worker_go(tid);
        written(&a, 2);
    }
    vgt_pair_close(&c);
    vgt_pair_close(&b);
    vgt_pair_close(&a);
    vg_daemon_check(vgt_daemon);
}

int main(int argc, char **argv)
{
    struct vg_daemon_opts o = {.n_vms = G_N_ELEMENTS(keys),
                               .poll_us = -1,
                               .workers = 3,
                               .daemon_keys = NETWORK,
                               .keys = keys};

    vgt_init(&argc, &argv, 120);
    vgt_daemon = vg_daemon_start(&o);
    g_test_add_func("/workers/place", test_place);
    g_test_add_func("/workers/add", test_add);
    g_test_add_func("/workers/isolation", test_isolation);
    return vgt_run();
}
