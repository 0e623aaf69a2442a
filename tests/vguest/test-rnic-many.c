/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: eight VMs of one host, and eight of another, on the NICs of both, at the
 * same time: each operation is done once and in order (vgt_traffic), by channels, which
 * `pvrdmactl nic list` shows; what is on its way stays below the NIC's limit, others wait
 * for their turn, and none is left behind by the others.
 *
 * Threads: the test's looks; each pair of VMs has one with its traffic.
 */
#include "hosts.h"

#define VMS       8u
#define IN_FLIGHT 65536 /* the least that may be set */
#define BYTES     65536u

static const struct vg_conn patient = {.timeout = 20, .retry_cnt = 7, .rnr_retry = 7};

static struct vg_daemon *host[2];
static struct pair {
    struct vgt_traffic traffic;
    gint ops; /* that its thread has done for each lane */
} pairs[VMS];
static gint done;

static int64_t nic_int(unsigned h, const char *name)
{
    g_autoptr(JsonNode) node = vg_ctl_json(host[h], "nic list");
    JsonArray *all = json_object_get_array_member(json_node_get_object(node), "nics");

    return json_object_get_int_member(json_array_get_object_element(all, 0), name);
}

/* Nothing is on its way, and nobody waits. */
static bool is_still(unsigned h)
{
    return !nic_int(h, "in_flight") && !nic_int(h, "requests") &&
           !nic_int(h, "waiting_vms");
}

static struct vgt_opts begin(void)
{
    /* With one worker it is not the machine that decides who may go. */
    const struct host_opts o = {.n_vms = 2 * VMS,
                                .daemon_keys = "workers=1\npeer-timeout=30",
                                .nic_keys = "max-in-flight=64K"};

    hosts_start(host, 2, &o);
    vgt_daemon = host[0];
    return (struct vgt_opts){.daemon = {host[0], host[1]}, .conn = patient};
}

static void end(void)
{
    for (unsigned h = 0; h < 2; h++) {
        vgt_await(is_still(h));
    }
    hosts_stop(host, 2);
    vgt_daemon = NULL;
}

/* ---- all at once ---- */

static gpointer run_traffic(gpointer opaque)
{
    struct pair *p = opaque;

    while (!g_atomic_int_get(&done)) {
        vgt_traffic_run(&p->traffic, 5);
        g_atomic_int_add(&p->ops, 5);
    }
    return NULL;
}

static bool all_did(gint ops)
{
    for (unsigned i = 0; i < VMS; i++) {
        if (g_atomic_int_get(&pairs[i].ops) < ops) {
            return false;
        }
    }
    return true;
}

static void test_at_once(void)
{
    struct vgt_opts o = begin();
    GThread *thread[VMS];
    gint before = 0;

    done = 0;
    for (unsigned i = 0; i < VMS; i++) {
        struct pair *p = &pairs[i];

        vgt_traffic_open(&p->traffic, i, VMS + i, 2, 8, 20000, &o);
        p->ops = 0;
    }
    for (unsigned i = 0; i < VMS; i++) {
        thread[i] = g_thread_new("traffic", run_traffic, &pairs[i]);
    }
    for (unsigned i = 0; i < VMS; i++) {
        vgt_await(host_traffic_by(&pairs[i].traffic, 0, "rnic"));
        vgt_await(host_traffic_by(&pairs[i].traffic, 1, "rnic"));
        before = MAX(before, g_atomic_int_get(&pairs[i].ops));
    }
    for (unsigned h = 0; h < 2; h++) {
        g_assert_cmpint(nic_int(h, "max_in_flight"), ==, IN_FLIGHT);
        vgt_await(nic_int(h, "channels") == VMS);
        vgt_await(nic_int(h, "waiting_vms") > 0);
    }
    while (!all_did(before + (gint)MAX(vgt_rounds(200), 50))) {
        g_assert_cmpint(nic_int(0, "in_flight"), <=, IN_FLIGHT);
        g_usleep(10000);
    }
    g_atomic_int_set(&done, 1);
    for (unsigned i = 0; i < VMS; i++) {
        g_thread_join(thread[i]);
        g_test_message("VM %u: %" PRIu64 " operations", i, pairs[i].traffic.ops);
    }
    for (unsigned i = 0; i < VMS; i++) {
        vgt_traffic_close(&pairs[i].traffic);
    }
    end();
}

/* ---- shares ---- */

/* Completions that have come. */
static void count(struct vgt_pair *p, unsigned *n)
{
    struct pvrdma_cqe c;

    while (vg_cq_poll(p->s[0].scq, &c, 1) == 1) {
        g_assert_cmpuint(c.status, ==, PVRDMA_WC_SUCCESS);
        g_assert_cmpuint(c.wr_id, ==, *n);
        ++*n;
    }
}

static void until_by_channel(struct vgt_pair *p)
{
    int64_t until = vg_now_ns() + VGT_WAIT_MS * 1000000ll;

    do {
        g_assert_cmpint(vg_now_ns(), <, until);
        vgt_write_once(p, 1);
    } while (!host_qp_by(p->s[0].qp, "rnic"));
}

/* What all have posted is more than what the NIC has on its way: when the first one is
 * done, each of the others has half of what it has had since, or more. */
static void test_shares(void)
{
    const unsigned each = VGT_PLAIN_BUILD ? 200 : 60;
    unsigned n[VMS] = {0}, had[VMS], first = VMS, left = VMS;
    struct vgt_opts o = begin();
    struct vgt_pair p[VMS];

    o.qp.send_wr = 256;
    for (unsigned i = 0; i < VMS; i++) {
        vgt_pair_open(&p[i], i, VMS + i, &o);
        until_by_channel(&p[i]);
        vgt_fill(VG_MR_HOST(p[i].s[0].mr, 0), BYTES, i);
    }
    for (unsigned i = 0; i < VMS; i++) {
        for (unsigned k = 0; k < each; k++) {
            vgt_send(&p[i].s[0], k, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, BYTES, &p[i].s[1],
                     0);
        }
    }
    for (unsigned i = 0; i < VMS; i++) {
        count(&p[i], &n[i]);
        had[i] = n[i];
    }
    while (first == VMS && left) {
        left = 0;
        for (unsigned i = 0; i < VMS; i++) {
            count(&p[i], &n[i]);
            first = n[i] == each && had[i] < each ? i : first;
            left += n[i] < each;
        }
    }
    for (unsigned i = 0; i < VMS; i++) {
        g_test_message("VM %u: %u, then %u", i, had[i], n[i]);
        if (n[i] < each) {
            g_assert_cmpuint(2 * (n[i] - had[i]), >=, each - had[first]);
        }
    }
    for (unsigned i = 0; i < VMS; i++) {
        vgt_await((count(&p[i], &n[i]), n[i] == each));
        vgt_check(VG_MR_HOST(p[i].s[1].mr, 0), BYTES, i);
        vgt_pair_close(&p[i]);
    }
    end();
}

int main(int argc, char **argv)
{
    vgt_init(&argc, &argv, 240);
    g_test_add_func("/rnic-many/at-once", test_at_once);
    g_test_add_func("/rnic-many/shares", test_shares);
    return vgt_run();
}
