/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: a VM that stands still for longer than others wait for it (hold-timeout,
 * here a second).  Whoever sends to it waits so long, on its host or on another,
 * whichever way its messages go; then its time runs, and it fails as if nobody were
 * there.  Of the VM that stands still nothing changes, and when it runs again it can be
 * reached.
 */
#include "hosts.h"
#include "ud.h"

#define HOLD_NS 1000000000ll

static struct vg_daemon *host[2];

static void begin(unsigned n, const char *more)
{
    g_autofree char *keys =
        g_strconcat("peer-timeout=30\nworkers=2\nhold-timeout=1", more, NULL);
    struct host_opts o = {.n_vms = 2, .daemon_keys = keys};

    hosts_start(host, n, &o);
    vgt_daemon = host[0];
}

static void end(void)
{
    hosts_stop(host, G_N_ELEMENTS(host));
    vgt_daemon = NULL;
}

/* By a message of @opcode from side 0 to side 1, which is on @d. */
static void fails_late(struct vgt_pair *p, struct vg_daemon *d, uint32_t opcode,
                       const struct vg_conn *conn)
{
    struct pvrdma_cqe c;
    int64_t begun;

    vgt_write_once(p, 1);
    vgt_fill(VG_MR_HOST(p->s[0].mr, 0), 100000, 1);
    vgt_fill(VG_MR_HOST(p->s[1].mr, 0), 100000, 2);
    vgt_recv(&p->s[1], 2, 0, 100000);
    begun = vg_now_ns();
    vgt_vm(d, "pause", 1);
    vgt_send(&p->s[0], 3, opcode, VGT_SIG, 0, 100000, &p->s[1], 0);
    g_assert_true(vg_cq_wait(p->s[0].scq, &c, VGT_WAIT_MS));
    g_assert_cmpint(vg_now_ns() - begun, >=, HOLD_NS);
    g_assert_cmpuint(c.wr_id, ==, 3);
    g_assert_cmpuint(c.status, ==, PVRDMA_WC_RETRY_EXC_ERR);
    vgt_expect_none(p->s[1].rcq, 0);
    vgt_check(VG_MR_HOST(p->s[1].mr, 0), 100000, 2);
    vgt_vm(d, "resume", 1);
    vgt_pair_reconnect(p, conn);
}

/* A try over TCP takes seconds. */
static void connected(struct vg_daemon *d, unsigned n)
{
    static const uint32_t opcode[] = {PVRDMA_WR_RDMA_WRITE, PVRDMA_WR_SEND,
                                      PVRDMA_WR_RDMA_READ};
    /* Would give up after 3 * 1 ms of silence. */
    struct vgt_opts o = {.conn = {.timeout = 8, .retry_cnt = 2, .rnr_retry = 7},
                         .daemon = {host[0], d}};
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, &o);
    for (unsigned i = 0; i < n; i++) {
        fails_late(&p, d, opcode[i], &o.conn);
    }
    vgt_write_once(&p, 4);
    vgt_pair_close(&p);
}

static void test_local(void)
{
    begin(1, "");
    connected(host[0], 3);
    end();
}

static void test_tcp(void)
{
    begin(1, "\npath=tcp");
    connected(host[0], 1);
    end();
}

static void test_remote(void)
{
    begin(2, "");
    connected(host[1], 1);
    end();
}

/* Nobody waits to send these; that they are lost has the same reason at any time. */
static void test_unreliable(void)
{
    struct vgt_opts o = {.qp = {.type = PVRDMA_QPT_UC}};
    struct vgt_pair ud, uc;
    int64_t before;

    begin(1, "");
    ud_open(&ud, 0, 1, VGT_STOCK);
    vgt_vm(host[0], "pause", 1);
    UD_LOST(&ud.s[0], &ud.s[1], 0, "to_paused");
    g_usleep(HOLD_NS / 1000 + 100000);
    UD_LOST(&ud.s[0], &ud.s[1], 0, "to_paused");
    vgt_vm(host[0], "resume", 1);
    ud_passes(&ud.s[0], &ud.s[1], (struct dg){.len = 8, .wr_id = 5});
    vgt_pair_close(&ud);

    vgt_pair_open(&uc, 0, 1, &o);
    vgt_vm(host[0], "pause", 1);
    g_usleep(HOLD_NS / 1000 + 100000);
    before = vgt_counter("vm0", "uc_dropped", "to_paused");
    vgt_complete(&uc.s[0], 1, PVRDMA_WR_RDMA_WRITE, 0, 8, &uc.s[1], 0);
    g_assert_cmpint(vgt_counter("vm0", "uc_dropped", "to_paused"), ==, before + 1);
    vgt_vm(host[0], "resume", 1);
    vgt_pair_close(&uc);
    end();
}

int main(int argc, char **argv)
{
    vgt_init(&argc, &argv, 120);
    vgt_channels_break(); /* a VM that stands still has none */
    g_test_add_func("/hosts-held/local", test_local);
    g_test_add_func("/hosts-held/tcp", test_tcp);
    g_test_add_func("/hosts-held/remote", test_remote);
    g_test_add_func("/hosts-held/unreliable", test_unreliable);
    return vgt_run();
}
