/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: VMs of different hosts.  Datagrams and management datagrams between two
 * and three daemons, who has an address, and what becomes of it when VMs and hosts come
 * and go.
 *
 * VM n has the address 10.0.0.(n + 1) on whichever host it is: each host declares all.
 */
#include "hosts.h"
#include "ud.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

static struct vg_daemon *host[3];
static unsigned n_hosts;

static void start(unsigned i)
{
    struct host_opts o = {
        .n_vms = 4, .n_peers = n_hosts, .daemon_keys = "peer-timeout=30"};

    host[i] = host_start(i, &o);
}

static void begin(unsigned n)
{
    n_hosts = n;
    for (unsigned i = 0; i < n; i++) {
        start(i);
    }
    hosts_wait_up(host, n);
}

static void end(void)
{
    hosts_stop(host, n_hosts);
    vgt_daemon = NULL;
}

/* What looks at "the" daemon, and VMs that are opened, mean host @i from here on. */
static void on(unsigned i)
{
    vgt_daemon = host[i];
}

static int64_t counted(unsigned i, unsigned vm, const char *why)
{
    on(i);
    return ud_dropped(vm, why);
}

/* A number of `pvrdmactl status`, of @group. */
static int64_t status(unsigned i, const char *group, const char *name)
{
    return vg_status_int(host[i], NULL, group, name);
}

static void wait_status(unsigned i, const char *group, const char *name, int64_t want)
{
    vgt_await(status(i, group, name) == want);
}

/* A UD QP in RTS of VM @vm on host @i. */
static void ud_side(struct vgt_side *s, unsigned i, unsigned vm, enum vgt_style style)
{
    struct vgt_opts o;

    on(i);
    ud_options(&o, style);
    vgt_side_open(s, vm, &o, 0);
    vg_ud_to_rts(s->qp, QKEY);
}

static void gsi_side(struct vgt_side *s, unsigned i, unsigned vm)
{
    on(i);
    ud_gsi_open(s, vm);
}

static void passes(struct vgt_side *from, struct vgt_side *to)
{
    ud_passes(from, to, (struct dg){.len = 100, .wr_id = 1});
}

/* ---- what arrives ---- */

static void test_exchange(gconstpointer style)
{
    struct vgt_side s[2];

    begin(2);
    for (unsigned i = 0; i < 2; i++) {
        ud_side(&s[i], i, i, (enum vgt_style)GPOINTER_TO_UINT(style));
        g_assert_cmpint(vg_bind_gid(s[i].g, 1, &ud_link_local[i]), ==, 0);
    }
    ud_exchange(&s[0], &s[1], &ud_link_local[0], &ud_link_local[1]);
    ud_exchange(&s[1], &s[0], &ud_link_local[1], &ud_link_local[0]);
    for (unsigned i = 0; i < 2; i++) {
        g_assert_cmpint(counted(i, i, "sent"), ==, 20);
        g_assert_cmpint(counted(i, i, "received"), ==, 20);
        g_assert_cmpint(status(i, "remote_datagrams", "received"), ==, 20);
        g_assert_cmpint(status(i, "remote_datagrams", "bad_source"), ==, 0);
        g_assert_cmpint(status(i, "directory", "remote_gids"), ==, 2);
    }
    vgt_side_close(&s[0]);
    vgt_side_close(&s[1]);
    wait_status(0, "directory", "remote_gids", 0);
    wait_status(1, "directory", "remote_gids", 0);
    end();
}

/* A solicited one wakes who waits for that alone. */
static void test_solicited(void)
{
    struct vgt_side s[2];

    begin(2);
    for (unsigned i = 0; i < 2; i++) {
        ud_side(&s[i], i, i, VGT_STOCK);
    }
    passes(&s[0], &s[1]);
    vg_cq_arm(s[1].rcq, true);
    passes(&s[0], &s[1]);
    g_assert_false(vg_cqn_wait(s[1].g, s[1].rcq->handle, 50));
    ud_passes(&s[0], &s[1], (struct dg){.wr_id = 1, .flags = PVRDMA_SEND_SOLICITED});
    g_assert_true(vg_cqn_wait(s[1].g, s[1].rcq->handle, VGT_WAIT_MS));
    vgt_side_close(&s[0]);
    vgt_side_close(&s[1]);
    end();
}

static void test_mads(void)
{
    struct vgt_side s[2];
    struct dg d = UD_MAD;
    struct pvrdma_cqe c;

    begin(2);
    gsi_side(&s[0], 0, 0);
    gsi_side(&s[1], 1, 1);
    for (unsigned i = 0; i < 4; i++) {
        d.wr_id = i;
        c = ud_passes(&s[i & 1], &s[1 - (i & 1)], d);
        g_assert_cmpuint(c.src_qp, ==, 1);
        g_assert_true(c.wc_flags & PVRDMA_WC_FLAG_GRH);
        g_assert_cmpuint(c.network_hdr_type, ==, PVRDMA_NETWORK_IPV4);
    }
    vgt_side_close(&s[0]);
    vgt_side_close(&s[1]);
    end();
}

/* One QP, its own host's VMs and another's, in turns; an SRQ at the far end. */
static void test_both_ways(gconstpointer style)
{
    struct vgt_side s[3];

    begin(2);
    ud_side(&s[0], 0, 0, (enum vgt_style)GPOINTER_TO_UINT(style));
    ud_side(&s[1], 0, 1, (enum vgt_style)GPOINTER_TO_UINT(style));
    ud_side(&s[2], 1, 2, (enum vgt_style)GPOINTER_TO_UINT(style));
    for (unsigned i = 0; i < 20; i++) {
        passes(&s[0], &s[1 + i % 2]);
        passes(&s[1 + i % 2], &s[0]);
    }
    g_assert_cmpint(counted(1, 2, "received"), ==, 10);
    g_assert_cmpint(status(0, "remote_datagrams", "received"), ==, 10);
    for (unsigned i = 0; i < 3; i++) {
        vgt_side_close(&s[i]);
    }
    end();
}

/* ---- nobody ---- */

static void test_nobody(void)
{
    struct vgt_side s[2];
    struct pvrdma_gid nobody = vg_gid(77);
    struct dg d = UD_MAD;
    int64_t asked;

    begin(3);
    ud_side(&s[0], 0, 0, VGT_STOCK);
    gsi_side(&s[1], 1, 1);
    d.to = &nobody;
    for (unsigned i = 0; i < 2; i++) {
        d.wr_id = 10 + i;
        ud_send(&s[1], &s[0], d);
        vgt_expect(s[1].scq, 10 + i, PVRDMA_WC_RETRY_EXC_ERR);
        ud_recover(s[1].qp);
    }
    /* The second found the answer to the first one's question. */
    asked = status(1, "directory", "questions");
    g_assert_cmpint(asked, ==, 1);
    g_assert_cmpint(counted(1, 1, "to_nobody"), ==, 2);
    on(0);
    UD_LOST(&s[0], &s[1], 0, "to_nobody", .to = &nobody);
    vgt_side_close(&s[0]);
    vgt_side_close(&s[1]);
    end();
}

/* A host that does not answer is waited for, but not for long. */
static void test_silent_host(void)
{
    struct vgt_side s;
    struct pvrdma_gid nobody = vg_gid(77);
    struct dg d = UD_MAD;
    int64_t began;

    begin(2);
    gsi_side(&s, 0, 0);
    kill(host[1]->pid, SIGSTOP);
    d.to = &nobody;
    d.wr_id = 10;
    began = vg_now_ns();
    ud_send(&s, &s, d);
    vgt_expect(s.scq, 10, PVRDMA_WC_RETRY_EXC_ERR);
    g_assert_cmpint(vg_now_ns() - began, >, 1000000000);
    g_assert_cmpint(vg_now_ns() - began, <, vg_patience(6000) * 1000000ll);
    kill(host[1]->pid, SIGCONT);
    vgt_side_close(&s);
    end();
}

/* ---- who has an address ---- */

static void test_claims(void)
{
    struct vgt_side s[2];
    struct pvrdma_gid gid = vg_gid(9);

    begin(2);
    ud_side(&s[0], 0, 0, VGT_STOCK);
    ud_side(&s[1], 1, 1, VGT_STOCK);
    passes(&s[0], &s[1]); /* from here on the hosts know each other's claims */
    g_assert_cmpint(vg_bind_gid(s[1].g, 1, &gid), ==, 0);
    wait_status(0, "directory", "remote_gids", 2);
    /* Known: it waits, as between VMs of one host. */
    g_assert_cmpint(vg_bind_gid(s[0].g, 1, &gid), ==, 0);
    g_assert_cmpint(status(0, "directory", "waiting_gids"), ==, 1);
    g_assert_cmpint(vg_unbind_gid(s[1].g, 1, &gid), ==, 0);
    wait_status(0, "directory", "remote_gids", 1);
    wait_status(0, "directory", "waiting_gids", 0);
    wait_status(1, "directory", "remote_gids", 2);
    vgt_side_close(&s[0]);
    vgt_side_close(&s[1]);
    end();
}

/* Two hosts that have not talked yet: both VMs have the address, and keep it. */
static void test_both_claim(void)
{
    struct vgt_side s[3];
    struct pvrdma_gid gid = vg_gid(9);

    begin(2);
    ud_side(&s[0], 0, 0, VGT_STOCK);
    ud_side(&s[1], 1, 1, VGT_STOCK);
    ud_side(&s[2], 0, 2, VGT_STOCK);
    for (unsigned i = 0; i < 2; i++) {
        g_assert_cmpint(vg_bind_gid(s[i].g, 1, &gid), ==, 0);
    }
    passes(&s[0], &s[1]);
    for (unsigned i = 0; i < 2; i++) {
        host_wait_logged(host[i], "refused, a VM of this host has it");
        g_assert_cmpint(status(i, "directory", "claims_refused"), >, 0);
    }
    /* Each host's own VMs find its own. */
    ud_passes(&s[2], &s[0], (struct dg){.len = 9, .wr_id = 1, .to = &gid});
    vgt_recv(&s[1], 500, FAR, GRH + 64);
    ud_send(&s[1], &s[1], (struct dg){.len = 9, .wr_id = 1, .to = &gid});
    vgt_expect(s[1].scq, 1, PVRDMA_WC_SUCCESS);
    vgt_expect(s[1].rcq, 500, PVRDMA_WC_SUCCESS);
    for (unsigned i = 0; i < 3; i++) {
        vgt_side_close(&s[i]);
    }
    end();
}

/* A VM ends here and begins there; who talked to it finds it. */
static void test_moves(void)
{
    struct vgt_side a, b;

    begin(3);
    ud_side(&a, 0, 0, VGT_STOCK);
    for (unsigned i = 0; i < 6; i++) {
        unsigned at = (i + 1) % 3; /* its own host, too */

        ud_side(&b, at, 1, VGT_STOCK);
        passes(&a, &b);
        passes(&b, &a);
        vgt_side_close(&b);
        /* Its end comes there before its beginning: that host knows no more than a's. */
        at = (at + 1) % 3;
        while (status(at, "directory", "remote_gids") > (at ? 1 : 0)) {
            g_usleep(5000);
        }
    }
    vgt_side_close(&a);
    end();
}

/* An address that is looked for before it is there. */
static void test_comes_late(void)
{
    struct vgt_side a, b;
    struct pvrdma_gid far = vg_gid(1);

    begin(2);
    ud_side(&a, 0, 0, VGT_STOCK);
    on(0);
    UD_LOST(&a, &a, 0, "to_nobody", .to = &far);
    ud_side(&b, 1, 1, VGT_STOCK);
    passes(&b, &a); /* which tells of b's, too */
    passes(&a, &b);
    vgt_side_close(&a);
    vgt_side_close(&b);
    end();
}

/* A VM that stands still: what is sent there is counted by its sender. */
static void test_paused(void)
{
    struct vgt_side a, b;

    begin(2);
    ud_side(&a, 0, 0, VGT_STOCK);
    ud_side(&b, 1, 1, VGT_STOCK);
    passes(&a, &b);
    for (unsigned i = 0; i < 2; i++) {
        vgt_vm(host[1], "pause", 1);
        if (i == 0) {
            g_usleep(200000); /* HOLD is on its way */
            on(0);
            UD_LOST(&a, &b, 0, "to_paused");
        }
        vgt_vm(host[1], "resume", 1);
    }
    g_usleep(200000);
    passes(&a, &b);
    /* Said on the link, and not by a new one. */
    g_assert_cmpint(host_peer_int(host[0], 1, "links"), ==, 1);
    g_assert_cmpint(host_peer_int(host[0], 1, "refused_messages"), ==, 0);
    vgt_side_close(&a);
    vgt_side_close(&b);
    end();
}

/* ---- hosts that come and go ---- */

static void test_killed(void)
{
    struct vgt_side a, b, g;
    struct dg d = UD_MAD;
    struct pvrdma_gid far = vg_gid(1);

    begin(2);
    ud_side(&a, 0, 0, VGT_STOCK);
    gsi_side(&g, 0, 2);
    for (unsigned i = 0; i < 3; i++) {
        ud_side(&b, 1, 1, VGT_STOCK);
        passes(&a, &b);
        passes(&b, &a);
        vg_daemon_kill(host[1]);
        host_wait_up(host[0], 1, false);
        /* Nobody can be reached there: a MAD fails, a datagram is lost. */
        d.to = &far;
        d.wr_id = 10;
        ud_send(&g, &a, d);
        vgt_expect(g.scq, 10, PVRDMA_WC_RETRY_EXC_ERR);
        ud_recover(g.qp);
        on(0);
        UD_LOST(&a, &a, 0, "to_nobody", .to = &far);
        vg_disconnect(b.g);
        vgt_side_close(&b);
        start(1);
        hosts_wait_up(host, n_hosts);
    }
    vgt_side_close(&a);
    vgt_side_close(&g);
    end();
}

/* ---- too much ---- */

/*
 * One VM sends to a host that takes nothing for a while.  Its own bound is reached, what
 * is beyond is counted; another VM's datagrams all arrive, once that goes on.
 */
static void test_flood(void)
{
    struct vgt_side a, b, c, d;
    int64_t full, got, until;
    unsigned sent = 0, mine = 0;

    begin(2);
    ud_side(&a, 0, 0, VGT_STOCK);
    ud_side(&b, 0, 2, VGT_STOCK);
    ud_side(&c, 1, 1, VGT_STOCK);
    ud_side(&d, 1, 3, VGT_STOCK);
    passes(&a, &c);
    passes(&b, &d);
    for (unsigned i = 0; i < 16; i++) {
        vgt_recv(&d, i, FAR, GRH + 64);
    }
    kill(host[1]->pid, SIGSTOP);
    on(0);
    /* Sockets take megabytes; then the VM's own bound is reached. */
    until = vg_now_ns() + VGT_WAIT_MS * 1000000ll;
    while (ud_dropped(0, "link_full") == 0) {
        for (unsigned i = 0; i < 64; i++) {
            ud_send(&a, &c, (struct dg){.len = 4096, .wr_id = 1});
            vgt_expect(a.scq, 1, PVRDMA_WC_SUCCESS);
            sent++;
        }
        g_assert_cmpint(vg_now_ns(), <, until);
    }
    full = ud_dropped(0, "link_full");
    for (; mine < 16; mine++) {
        ud_send(&b, &d, (struct dg){.len = 64, .wr_id = 1});
        vgt_expect(b.scq, 1, PVRDMA_WC_SUCCESS);
    }
    g_assert_cmpint(ud_dropped(2, "link_full"), ==, 0);
    kill(host[1]->pid, SIGCONT);
    for (unsigned i = 0; i < 16; i++) {
        vgt_expect(d.rcq, i, PVRDMA_WC_SUCCESS);
    }
    /* Nothing is lost without being counted: c posts no receives. */
    until = vg_now_ns() + VGT_WAIT_MS * 1000000ll;
    do {
        on(1);
        got = ud_dropped(1, "no_receive") + ud_dropped(1, "too_many");
        g_assert_cmpint(vg_now_ns(), <, until);
    } while (got + full < sent);
    g_assert_cmpint(got + full, ==, sent);
    g_test_message("%u datagrams, %d found the link full", sent, (int)full);
    passes(&a, &c);
    vgt_side_close(&a);
    vgt_side_close(&b);
    vgt_side_close(&c);
    vgt_side_close(&d);
    end();
}

/* A guest that tries addresses: others' questions are answered as before. */
static void test_sweep(void)
{
    struct vgt_side a, b, c;
    struct vg_qp *qp[32];

    begin(2);
    ud_side(&a, 0, 0, VGT_STOCK);
    ud_side(&b, 0, 2, VGT_STOCK);
    ud_side(&c, 1, 1, VGT_STOCK);
    for (unsigned i = 0; i < G_N_ELEMENTS(qp); i++) {
        const struct vg_qp_opts o = {.type = PVRDMA_QPT_UD};

        qp[i] = vg_qp_new(a.pd, a.scq, a.rcq, &o);
        vg_ud_to_rts(qp[i], QKEY);
    }
    for (unsigned n = 0; n < 512; n++) {
        struct pvrdma_gid gid = vg_gid(1000 + n);
        struct pvrdma_av av = vg_av(a.pd, 0, &gid);
        struct vg_wr wr = {.wr_id = 1,
                           .opcode = PVRDMA_WR_SEND,
                           .av = &av,
                           .remote_qpn = 7,
                           .remote_qkey = QKEY};

        while (vg_post_send(qp[n % G_N_ELEMENTS(qp)], &wr, 1) == 0) {
            g_usleep(1000);
        }
        if (n == 300) {
            passes(&b, &c);
            passes(&c, &b);
        }
    }
    g_assert_cmpint(status(0, "directory", "asked_gids"), <=, 130);
    for (unsigned i = 0; i < G_N_ELEMENTS(qp); i++) {
        vg_qp_free(qp[i]);
    }
    vgt_side_close(&a);
    vgt_side_close(&b);
    vgt_side_close(&c);
    end();
}

/* The line of a peer in `peer list`, in words. */
static GStrv words_of(char *line)
{
    g_autoptr(GRegex) blanks = g_regex_new(" +", 0, 0, NULL);

    return g_regex_split(blanks, g_strstrip(line), 0);
}

/* What docs/hosts.md shows of a link is what there is. */
static void test_documented(void)
{
    g_autofree char *head = hosts_documented("PEER    ADDRESS"), *list = NULL;
    g_autofree char *line = hosts_documented("beta    10.0.0.2:14820");
    g_auto(GStrv) said = words_of(head), shown = words_of(line);
    g_auto(GStrv) is = NULL, now = NULL;

    begin(2);
    g_assert_cmpint(vg_ctl(host[0], &list, "peer list"), ==, 0);
    g_assert_nonnull(strstr(list, "\nPEER "));
    g_assert_nonnull(strstr(list, "\nhost1 "));
    now = words_of(strstr(list, "\nhost1 ") + 1);
    is = words_of(strtok(strstr(list, "\nPEER ") + 1, "\n"));
    g_assert_cmpuint(g_strv_length(shown), >, 4);
    g_assert_cmpstr(said[g_strv_length(shown)], ==, "..."); /* and so on */
    for (unsigned i = 0; i < g_strv_length(shown); i++) {
        g_assert_cmpstr(said[i], ==, is[i]);
    }
    g_assert_cmpstr(shown[2], ==, now[2]); /* up */
    end();
}

int main(int argc, char **argv)
{
    static const struct vgt_both both[] = {
        {"exchange", test_exchange},
        {"both-ways", test_both_ways},
    };

    vgt_init(&argc, &argv, 120);
    vgt_add_both("hosts", both, G_N_ELEMENTS(both));
    g_test_add_func("/hosts/solicited", test_solicited);
    g_test_add_func("/hosts/mads", test_mads);
    g_test_add_func("/hosts/nobody", test_nobody);
    g_test_add_func("/hosts/silent-host", test_silent_host);
    g_test_add_func("/hosts/claims", test_claims);
    g_test_add_func("/hosts/both-claim", test_both_claim);
    g_test_add_func("/hosts/moves", test_moves);
    g_test_add_func("/hosts/comes-late", test_comes_late);
    g_test_add_func("/hosts/paused", test_paused);
    g_test_add_func("/hosts/killed", test_killed);
    g_test_add_func("/hosts/flood", test_flood);
    g_test_add_func("/hosts/sweep", test_sweep);
    g_test_add_func("/hosts/documented", test_documented);
    return vgt_run();
}
