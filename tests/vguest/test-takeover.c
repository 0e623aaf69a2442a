/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: an address that changes its holder, who binds it before the former lets
 * go, as with VRRP.  The bind succeeds at once and waits: nothing comes to that guest or
 * from it by that address until it is its own, on one host and between two, and when
 * daemons are replaced or the guest that waits moves meanwhile.
 *
 * VM 1 has the address first, VM 2 is to have it; VM 0 and VM 3 are connected to them.
 */
#include "hosts.h"
#include "migrate.h"
#include "ud.h"

#include <errno.h>
#include <string.h>

#define N_VMS 5u
#define OWN   1u /* index of the address in the GID tables */

static struct vg_daemon *host[2]; /* the same twice: one host */
static struct pvrdma_gid vip;
static struct vgt_side s[4];

static bool one_host(void)
{
    return host[0] == host[1];
}

static struct vg_daemon *home(unsigned vm)
{
    return host[vm >= 2];
}

static void begin(gconstpointer two)
{
    static const struct host_opts keys = {.n_vms = N_VMS,
                                          .daemon_keys = "peer-timeout=30"};
    static const struct vg_daemon_opts one = {
        .n_vms = N_VMS, .poll_us = -1, .workers = 2, .vm_keys = "addresses=any"};

    if (two) {
        hosts_start(host, 2, &keys);
    } else {
        host[0] = host[1] = vg_daemon_start(&one);
    }
    vgt_daemon = host[0];
    vip = vg_gid(9);
}

static void end(void)
{
    for (unsigned i = 0; i < 4; i++) {
        if (s[i].g) {
            vgt_side_close(&s[i]);
        }
    }
    vg_daemon_stop(host[0]);
    if (!one_host()) {
        vg_daemon_stop(host[1]);
    }
    vgt_daemon = NULL;
}

static void open_sides(void)
{
    for (unsigned i = 0; i < 4; i++) {
        struct vgt_opts o = {.unconnected = true, .daemon = {home(i), home(i)}};

        vgt_side_open(&s[i], i, &o, 0);
    }
}

static void connect_to(struct vgt_side *from, const struct pvrdma_gid *to, uint32_t qpn,
                       struct vg_conn c)
{
    vg_qp_to_reset(from->qp);
    vg_qp_reset_to_rts(from->qp, to, qpn, 1, 1, &c);
}

/* To the address at @server, which has it, or is to have it. */
static void join_client(struct vgt_side *client, const struct vgt_side *server,
                        uint8_t timeout)
{
    connect_to(client, &vip, server->qp->qpn, (struct vg_conn){.timeout = timeout});
}

static void join(struct vgt_side *client, struct vgt_side *server, uint8_t timeout)
{
    connect_to(server, &client->g->gid, client->qp->qpn,
               (struct vg_conn){.timeout = timeout, .sgid_index = OWN});
    join_client(client, server, timeout);
}

static void post_write(struct vgt_side *from, struct vgt_side *to, uint64_t wr_id)
{
    vgt_fill(VG_MR_HOST(from->mr, 0), 64, wr_id);
    memset(VG_MR_HOST(to->mr, 64), 0, 64);
    vgt_send(from, wr_id, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 64, to, 64);
}

static void written(struct vgt_side *from, struct vgt_side *to, uint64_t wr_id)
{
    vgt_expect(from->scq, wr_id, PVRDMA_WC_SUCCESS);
    vgt_check(VG_MR_HOST(to->mr, 64), 64, wr_id);
}

static void write_once(struct vgt_side *from, struct vgt_side *to, uint64_t wr_id)
{
    post_write(from, to, wr_id);
    written(from, to, wr_id);
}

/* What an administrator reads of who waits at the daemon of VM @vm. */
static bool waits(const struct vg_daemon *d, unsigned vm, const char *holder)
{
    g_autofree char *text = NULL;
    g_autofree char *line =
        g_strdup_printf("vm%u waits for 10.0.0.10: %s", vm, holder ? holder : "");

    g_assert_cmpint(vg_ctl(d, &text, "vm list"), ==, 0);
    return strstr(text, line) != NULL;
}

static void wait_granted(const struct vg_daemon *d, unsigned vm)
{
    vgt_await(!waits(d, vm, NULL));
}

static int64_t remote_gids(const struct vg_daemon *d)
{
    return vg_status_int(d, NULL, "directory", "remote_gids");
}

/* VM 1 has the address, and all hosts know; VM 2 waits for it. */
static void contend(void)
{
    g_assert_cmpint(vg_bind_gid(s[1].g, OWN, &vip), ==, 0);
    join(&s[0], &s[1], 18);
    write_once(&s[0], &s[1], 1);
    if (!one_host()) {
        join(&s[3], &s[1], 18);
        write_once(&s[3], &s[1], 1);
        vgt_await(remote_gids(host[1]) >= 3);
        join(&s[0], &s[1], 18);
        write_once(&s[0], &s[1], 2);
    }
    g_assert_cmpint(vg_bind_gid(s[2].g, OWN, &vip), ==, 0);
    g_assert_true(
        waits(home(2), 2, one_host() ? "VM vm1 has it" : "a VM of host host0 has it"));
    host_wait_logged(home(2), "10.0.0.10 is in use: ");
}

static void begin_contended(gconstpointer two)
{
    begin(two);
    open_sides();
    contend();
}

/* It works for VM 2 in both directions, and not for VM 1. */
static void has_moved(unsigned vm)
{
    wait_granted(home(2), vm);
    host_wait_logged(home(2), "10.0.0.10 is free: ");
    join(&s[3], &s[2], 18);
    write_once(&s[3], &s[2], 70);
    write_once(&s[2], &s[3], 71);
    join_client(&s[0], &s[1], 8);
    post_write(&s[0], &s[1], 72);
    vgt_expect(s[0].scq, 72, PVRDMA_WC_RETRY_EXC_ERR);
}

/* Nothing passes while it waits, and what tries fails; when it has it, it works. */
static void test_waits(gconstpointer two)
{
    begin_contended(two);
    join(&s[3], &s[2], 8);
    post_write(&s[2], &s[3], 10);
    post_write(&s[3], &s[2], 11);
    vgt_expect(s[2].scq, 10, PVRDMA_WC_RETRY_EXC_ERR);
    vgt_expect(s[3].scq, 11, PVRDMA_WC_RETRY_EXC_ERR);
    g_assert_cmpuint(*VG_MR_HOST(s[3].mr, 64), ==, 0);
    write_once(&s[0], &s[1], 12);
    write_once(&s[1], &s[0], 13);
    g_assert_cmpint(vg_unbind_gid(s[1].g, OWN, &vip), ==, 0);
    has_moved(2);
    end();
}

/* Queue pairs that were connected before go on by themselves, if their tries last. */
static void test_connected(gconstpointer two)
{
    begin_contended(two);
    join(&s[3], &s[2], 20);
    post_write(&s[2], &s[3], 10);
    post_write(&s[3], &s[2], 11);
    vgt_expect_none(s[2].scq, VGT_QUIET_MS(100));
    vgt_expect_none(s[3].scq, 0);
    g_assert_cmpint(vg_unbind_gid(s[1].g, OWN, &vip), ==, 0);
    written(&s[2], &s[3], 10);
    written(&s[3], &s[2], 11);
    has_moved(2);
    end();
}

/* It ends without a word. */
static void test_ends(gconstpointer two)
{
    begin_contended(two);
    vgt_side_close(&s[1]);
    s[1].g = NULL;
    wait_granted(home(2), 2);
    join(&s[3], &s[2], 18);
    write_once(&s[3], &s[2], 70);
    write_once(&s[2], &s[3], 71);
    end();
}

/* A holder that stands still has not let go. */
static void test_paused(gconstpointer two)
{
    begin_contended(two);
    vgt_vm(home(1), "pause", 1);
    post_write(&s[0], &s[1], 10);
    vgt_expect_none(s[0].scq, VGT_QUIET_MS(50));
    g_assert_true(waits(home(2), 2, NULL));
    vgt_vm(home(1), "resume", 1);
    written(&s[0], &s[1], 10);
    g_assert_true(waits(home(2), 2, NULL));
    g_assert_cmpint(vg_unbind_gid(s[1].g, OWN, &vip), ==, 0);
    has_moved(2);
    end();
}

/* Daemons are replaced while it waits. */
static void test_restart(gconstpointer two)
{
    begin_contended(two);
    for (unsigned i = 0; i < 2; i++) {
        vgt_restart(host[i]);
        if (!one_host()) {
            hosts_wait_up(host, 2);
        }
        g_assert_true(waits(home(2), 2, NULL));
        write_once(&s[0], &s[1], 10 + i);
    }
    g_assert_cmpint(vg_unbind_gid(s[1].g, OWN, &vip), ==, 0);
    wait_granted(home(2), 2);
    join(&s[3], &s[2], 18);
    write_once(&s[3], &s[2], 70);
    end();
}

/*
 * The guest that waits moves, and waits where it is: behind who waits there, as its VMM
 * could say that it has waited for any time.
 */
static void test_move(gconstpointer two)
{
    begin_contended(two);
    g_assert_cmpint(vg_bind_gid(s[3].g, OWN, &vip), ==, 0);
    vg_move(s[2].g, home(2), 4, VG_MOVE_PLAIN);
    g_assert_false(waits(home(2), 2, NULL));
    g_assert_true(waits(home(2), 4, NULL));
    write_once(&s[0], &s[1], 10);
    g_assert_cmpint(vg_unbind_gid(s[1].g, OWN, &vip), ==, 0);
    wait_granted(home(2), 3);
    g_assert_true(waits(home(2), 4, "VM vm3 has it"));
    g_assert_cmpint(vg_unbind_gid(s[3].g, OWN, &vip), ==, 0);
    wait_granted(home(2), 4);
    join(&s[3], &s[2], 18);
    write_once(&s[3], &s[2], 70);
    write_once(&s[2], &s[3], 71);
    end();
}

/* On each of two hosts one waits: one of them has it then, and the other goes on waiting.
 */
static void test_both_wait(void)
{
    begin_contended(GUINT_TO_POINTER(1));
    g_assert_cmpint(vg_bind_gid(s[0].g, OWN, &vip), ==, 0);
    g_assert_cmpint(vg_bind_gid(s[3].g, OWN, &vip), ==, 0);
    g_assert_true(waits(host[0], 0, "VM vm1 has it"));
    g_assert_cmpint(vg_unbind_gid(s[1].g, OWN, &vip), ==, 0);
    wait_granted(host[0], 0); /* it is of the host that had it */
    g_assert_true(waits(host[1], 2, NULL));
    g_assert_cmpint(vg_unbind_gid(s[0].g, OWN, &vip), ==, 0);
    wait_granted(host[1], 2);
    g_assert_true(waits(host[1], 3, "VM vm2 has it"));
    /* Whoever has waited is before who has not. */
    g_assert_cmpint(vg_bind_gid(s[0].g, OWN, &vip), ==, 0);
    g_assert_true(waits(host[0], 0, "a VM of host host1 has it"));
    g_assert_cmpint(vg_unbind_gid(s[2].g, OWN, &vip), ==, 0);
    wait_granted(host[1], 3);
    g_assert_true(waits(host[0], 0, NULL));
    g_assert_cmpint(vg_unbind_gid(s[3].g, OWN, &vip), ==, 0);
    wait_granted(host[0], 0);
    vgt_await(remote_gids(host[1]) >= 3);
    end();
}

#define HOSTS  3u
#define ROUNDS 8u

/* How many have it of those VMs, one of each host, but @except; the last of them. */
static unsigned holders(struct vg_daemon *const *h, unsigned except, unsigned *last)
{
    unsigned n = 0;

    for (unsigned i = 0; i < HOSTS; i++) {
        if (i != except && !waits(h[i], i, NULL)) {
            *last = i;
            n++;
        }
    }
    return n;
}

/* On each of three hosts somebody wants it, who lets go and waits again: one has it. */
static void test_three_hosts(void)
{
    static const struct host_opts keys = {.n_vms = N_VMS,
                                          .daemon_keys = "peer-timeout=30"};
    struct vg_daemon *h[HOSTS];
    struct vgt_side side[HOSTS];
    unsigned holder = 0, next = 0;

    hosts_start(h, HOSTS, &keys);
    vgt_daemon = h[0];
    vip = vg_gid(9);
    for (unsigned i = 0; i < HOSTS; i++) {
        struct vgt_opts o = {.unconnected = true, .daemon = {h[i], h[i]}};

        vgt_side_open(&side[i], i, &o, 0);
    }
    g_assert_cmpint(vg_bind_gid(side[0].g, OWN, &vip), ==, 0);
    for (unsigned i = 1; i < HOSTS; i++) {
        /* Whose host hears of it by a message: that it is there, too. */
        connect_to(&side[0], &side[i].g->gid, side[i].qp->qpn,
                   (struct vg_conn){.timeout = 18, .sgid_index = OWN});
        join_client(&side[i], &side[0], 18);
        write_once(&side[i], &side[0], 1);
        g_assert_cmpint(vg_bind_gid(side[i].g, OWN, &vip), ==, 0);
        g_assert_true(waits(h[i], i, NULL));
    }
    for (unsigned k = 0; k < ROUNDS; k++) {

        g_assert_cmpint(vg_unbind_gid(side[holder].g, OWN, &vip), ==, 0);
        vgt_await(holders(h, holder, &next) != 0);
        g_usleep(800000); /* longer than it is left to others */
        g_assert_cmpuint(holders(h, holder, &next), ==, 1);
        g_assert_cmpint(vg_bind_gid(side[holder].g, OWN, &vip), ==, 0);
        g_assert_true(waits(h[holder], holder, NULL));
        holder = next;
    }
    for (unsigned i = 0; i < HOSTS; i++) {
        vgt_side_close(&side[i]);
    }
    hosts_stop(h, HOSTS);
    vgt_daemon = NULL;
}

/* What @from posts does not complete any more: it has noticed. */
static void await_silence(struct vgt_side *from, struct vgt_side *to)
{
    int64_t until = vg_now_ns() + VGT_WAIT_MS * 1000000ll;
    struct pvrdma_cqe c;

    do {
        g_assert_cmpint(vg_now_ns(), <, until);
        post_write(from, to, 5);
    } while (vg_cq_wait(from->scq, &c, VGT_QUIET_MS(100)));
}

static void set_link(struct vgt_side *side, bool up)
{
    vg_reg_write(side->g, PVRDMA_REG_CTL,
                 up ? PVRDMA_CTL_UNQUIESCE : PVRDMA_EXT_CTL_LINK_DOWN);
    g_assert_cmphex(vg_reg_read(side->g, PVRDMA_REG_ERR), ==, 0);
}

/*
 * A guest whose interface is down is without a cable: nothing passes in either direction
 * until it is up, tries are used up, and it keeps its address.  It is so after a restart
 * and a move, and a reset ends it.
 */
static void test_link(gconstpointer two)
{
    begin(two);
    open_sides();
    g_assert_cmpint(vg_bind_gid(s[2].g, OWN, &vip), ==, 0);
    join(&s[0], &s[2], 20);
    write_once(&s[0], &s[2], 1);
    set_link(&s[2], false);
    join(&s[0], &s[2], 8); /* which looks anew */
    post_write(&s[0], &s[2], 2);
    vgt_expect(s[0].scq, 2, PVRDMA_WC_RETRY_EXC_ERR);
    post_write(&s[2], &s[0], 3);
    vgt_expect(s[2].scq, 3, PVRDMA_WC_RETRY_EXC_ERR);
    g_assert_cmpuint(*VG_MR_HOST(s[0].mr, 64), ==, 0);
    g_assert_cmpint(vg_bind_gid(s[1].g, OWN, &vip), ==, 0);
    g_assert_true(waits(home(1), 1, NULL));
    set_link(&s[2], true);
    join(&s[0], &s[2], 20);
    write_once(&s[0], &s[2], 4);
    /* One that is connected goes on when it is up again. */
    set_link(&s[2], false);
    await_silence(&s[2], &s[0]);
    post_write(&s[0], &s[2], 6);
    vgt_expect_none(s[0].scq, VGT_QUIET_MS(100));
    vgt_restart(home(2));
    vg_move(s[2].g, home(2), 4, VG_MOVE_PLAIN);
    vgt_expect_none(s[0].scq, VGT_QUIET_MS(50));
    set_link(&s[2], true);
    vgt_expect(s[2].scq, 5, PVRDMA_WC_SUCCESS);
    written(&s[0], &s[2], 6);
    end();
}

/* Datagrams from it are lost and counted until then. */
static void test_datagrams(void)
{
    struct vgt_opts o;
    struct vgt_side ud[2];
    struct pvrdma_av av;

    begin(NULL);
    ud_options(&o, VGT_STOCK);
    for (unsigned i = 0; i < 2; i++) {
        vgt_side_open(&ud[i], i, &o, 0);
        vg_ud_to_rts(ud[i].qp, QKEY);
    }
    g_assert_cmpint(vg_bind_gid(ud[1].g, OWN, &vip), ==, 0);
    g_assert_cmpint(vg_bind_gid(ud[0].g, OWN, &vip), ==, 0);
    av = vg_av(ud[0].pd, OWN, &ud[1].g->gid);
    UD_LOST(&ud[0], &ud[1], 0, "to_nobody", .av = &av, .len = 8);
    ud_passes(&ud[0], &ud[1], (struct dg){.len = 8, .to = &vip, .wr_id = 1});
    g_assert_cmpint(vg_unbind_gid(ud[1].g, OWN, &vip), ==, 0);
    wait_granted(host[0], 0);
    ud_passes(&ud[0], &ud[1], (struct dg){.len = 8, .av = &av, .wr_id = 2});
    ud_passes(&ud[1], &ud[0], (struct dg){.len = 8, .to = &vip, .wr_id = 3});
    for (unsigned i = 0; i < 2; i++) {
        vgt_side_close(&ud[i]);
    }
    vg_daemon_stop(host[0]);
    vgt_daemon = NULL;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        GTestDataFunc run;
    } tests[] = {
        {"waits", test_waits},   {"connected", test_connected}, {"ends", test_ends},
        {"paused", test_paused}, {"restart", test_restart},     {"move", test_move},
        {"link", test_link},
    };

    vgt_init(&argc, &argv, 180);
    for (unsigned i = 0; i < G_N_ELEMENTS(tests); i++) {
        g_autofree char *one = g_strdup_printf("/takeover/one-host/%s", tests[i].name);
        g_autofree char *two = g_strdup_printf("/takeover/two-hosts/%s", tests[i].name);

        g_test_add_data_func(one, NULL, tests[i].run);
        g_test_add_data_func(two, GUINT_TO_POINTER(1), tests[i].run);
    }
    g_test_add_func("/takeover/both-wait", test_both_wait);
    g_test_add_func("/takeover/three-hosts", test_three_hosts);
    g_test_add_func("/takeover/datagrams", test_datagrams);
    return vgt_run();
}
