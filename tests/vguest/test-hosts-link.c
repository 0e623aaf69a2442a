/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: hosts with a network of their own that loses, swaps and doubles packets,
 * and goes away and comes back.  Of two guests' SENDs, WRITEs, READs and additions to a
 * counter, both ways, each is done once and in order, and the counter is what the
 * successes are (vgt_traffic); or the queue pair fails, if it is not so patient.
 *
 * The hosts are network namespaces (netns.h).  Threads: the test's, and in some one that
 * has the links go down and up meanwhile.
 */
#include "netns.h"
#include "ud.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#define N_QPS 4u
#define DEPTH 4u
/* Not more with more rounds: all of them together are shorter than streams are patient.
 */
#define N_FLAPS     20u
#define MAX_FLAP_NS 10000000000ll
/* Of a link that is silent for some seconds, by one side. */
#define MAX_CALLS 20u

static struct netns *net;
static struct vg_daemon *host[3];
static unsigned n_hosts;
static uint64_t opened; /* TCP connections, before the network gets worse */

/*
 * Silent for 34 s: streams live through all that is short here, and TCP's own timer,
 * which doubles, runs out before.
 */
static const struct vg_conn patient = {.timeout = 23, .retry_cnt = 7, .rnr_retry = 7};
/* For 1.1 s, eight times: streams do not, queue pairs do. */
static const struct vg_conn brief = {.timeout = 18, .retry_cnt = 7, .rnr_retry = 7};
/* For 0.5 s, four times. */
static const struct vg_conn impatient = {.timeout = 17, .retry_cnt = 3, .rnr_retry = 7};

static bool have_networks(void)
{
    g_autofree char *why = netns_why_not();

    if (why) {
        g_test_skip(why);
    }
    return !why;
}

/* False: it is skipped. */
static bool begin(unsigned n, const char *daemon_keys)
{
    const struct host_opts o = {.n_vms = 4, .daemon_keys = daemon_keys, .n_peers = n};

    if (!have_networks()) {
        return false;
    }
    net = netns_new(n);
    n_hosts = n;
    netns_hosts(net, host, &o);
    vgt_daemon = host[0];
    return true;
}

static void end(void)
{
    struct netns_counts c = netns_count(net);

    g_test_message("%" PRIu64 " packets; %" PRIu64 " lost, %" PRIu64 " twice, %" PRIu64
                   " overtaken, %" PRIu64 " cut off; %" PRIu64 " + %" PRIu64
                   " segments sent once more",
                   c.carried, c.lost, c.twice, c.overtaken, c.cut,
                   netns_tcp(net, 0, "RetransSegs"), netns_tcp(net, 1, "RetransSegs"));
    hosts_stop(host, n_hosts);
    netns_free(net);
    vgt_daemon = NULL;
}

/* Side 0 is on host 0, side 1 on host @far. */
static struct vgt_opts to(unsigned far, const struct vg_conn *conn)
{
    return (struct vgt_opts){.guest = {{.db = VG_DB_EXT}, {.db = VG_DB_EXT}},
                             .daemon = {host[0], host[far]},
                             .conn = *conn};
}

static uint64_t connections(void)
{
    return netns_tcp(net, 0, "ActiveOpens") + netns_tcp(net, 1, "ActiveOpens");
}

/* What both have counted of their links. */
static uint64_t of_links(const char *what)
{
    return (uint64_t)(host_peer_int(host[0], 1, what) + host_peer_int(host[1], 0, what));
}

static void open_traffic(struct vgt_traffic *t, const struct vg_conn *conn)
{
    struct vgt_opts o = to(1, conn);

    vgt_traffic_open(t, 0, 1, N_QPS, DEPTH, 20000, &o);
    vgt_traffic_run(t, 10);
    opened = connections();
}

/* ---- packets ---- */

static void faulty(const struct netns_faults *f)
{
    struct vgt_traffic t;
    struct netns_counts c;
    uint64_t want = vgt_rounds(100);

    if (!begin(2, "peer-timeout=30")) {
        return;
    }
    open_traffic(&t, &patient);
    netns_set_faults(net, f);
    do {
        vgt_traffic_run(&t, 20);
        c = netns_count(net);
    } while ((f->lost && c.lost < want) || (f->twice && c.twice < want) ||
             (f->late && c.overtaken < want));
    if (f->lost) { /* others were ACKs, which nobody misses */
        g_assert_cmpuint(netns_tcp(net, 0, "RetransSegs") +
                             netns_tcp(net, 1, "RetransSegs"),
                         >=, want / 4);
    }
    g_assert_cmpuint(connections(), ==, opened); /* they live through it */
    vgt_traffic_close(&t);
    end();
}

static void test_lost(void)
{
    faulty(&(struct netns_faults){.lost = 20});
}

static void test_swapped(void)
{
    faulty(&(struct netns_faults){.late = 50, .late_us = 3000});
}

static void test_all(void)
{
    faulty(&(struct netns_faults){.lost = 10, .twice = 10, .late = 20, .late_us = 3000});
}

/* ---- links ---- */

/* What happens to the links, meanwhile. */
struct flaps {
    void (*set)(struct netns *w, unsigned i, bool up);
    unsigned n;       /* or more, until as many packets were lost by it; for 10 s */
    unsigned down_ms; /* at most, and a quarter of it at least */
    unsigned up_ms;   /* 0: until something was done */
    gint done;        /* the test counts */
    gint over;
    GThread *thread;
};

static void set_connected(struct netns *w, unsigned i, bool up)
{
    netns_cut(w, i, !up);
}

static void wait_done(struct flaps *f)
{
    gint was = g_atomic_int_get(&f->done);

    while (g_atomic_int_get(&f->done) - was < 2) { /* one of them from its beginning */
        g_usleep(10000);
    }
}

static gpointer flap(gpointer opaque)
{
    struct flaps *f = opaque;
    int64_t until = vg_now_ns() + MAX_FLAP_NS;

    for (unsigned k = 0; vg_now_ns() < until && (k < f->n || netns_count(net).cut < f->n);
         k++) {
        f->set(net, k % 2, false);
        g_usleep((gulong)f->down_ms * 250 * (4 - k / 2 % 4));
        f->set(net, k % 2, true);
        if (f->up_ms) {
            g_usleep((gulong)f->up_ms * 1000);
        } else {
            wait_done(f);
        }
    }
    g_atomic_int_set(&f->over, 1);
    return NULL;
}

static void flaps_begin(struct flaps *f)
{
    f->thread = g_thread_new("flaps", flap, f);
}

/* Called when something was done. */
static bool flaps_go_on(struct flaps *f)
{
    g_atomic_int_inc(&f->done);
    if (!g_atomic_int_get(&f->over)) {
        return true;
    }
    g_thread_join(f->thread);
    return false;
}

static void flapping(struct flaps f, const struct vg_conn *conn,
                     const struct netns_faults *faults, bool streams_live)
{
    struct vgt_traffic t;
    uint64_t anew, silences;

    if (!begin(2, "peer-timeout=30")) {
        return;
    }
    open_traffic(&t, conn);
    netns_set_faults(net, faults);
    flaps_begin(&f);
    do {
        vgt_traffic_run(&t, 10);
    } while (flaps_go_on(&f));
    vgt_traffic_run(&t, 10);
    anew = connections() - opened;
    g_test_message("%" PRIu64 " connections made anew", anew);
    g_assert_cmpuint(netns_count(net).cut, >, 0);
    if (streams_live) { /* but for those that are silent when the hosts' link is heard */
        silences = of_links("silences");
        g_test_message("%" PRIu64 " times a link was silent", silences);
        g_assert_cmpuint(anew, <=, silences * (N_QPS + MAX_CALLS));
    } else {
        g_assert_cmpuint(anew, >, 0);
    }
    vgt_traffic_close(&t);
    end();
}

static void test_flapping(void)
{
    static const struct netns_faults none;

    flapping((struct flaps){netns_link, N_FLAPS, 200, 100}, &patient, &none, true);
}

static void test_unplugged(void)
{
    static const struct netns_faults none;

    flapping((struct flaps){set_connected, N_FLAPS, 200, 100}, &patient, &none, true);
}

/* Longer than a stream's patience. */
static void test_broken(void)
{
    static const struct netns_faults none;

    flapping((struct flaps){netns_link, 2, 2000, 0}, &brief, &none, false);
    flapping((struct flaps){set_connected, 2, 2000, 0}, &brief, &none, false);
}

static void test_flapping_and_faulty(void)
{
    static const struct netns_faults f = {
        .lost = 10, .twice = 10, .late = 20, .late_us = 3000};

    flapping((struct flaps){netns_link, N_FLAPS, 200, 100}, &patient, &f, true);
}

/*
 * The network is away for longer than the hosts' link lives.  It begins anew, and the
 * queue pairs go on; one that is not so patient fails while it is away, and only that.
 */
static void long_gone(void (*set)(struct netns *w, unsigned i, bool up))
{
    struct vgt_traffic t;
    struct vgt_opts o;
    struct vgt_pair p;

    if (!begin(2, "peer-timeout=2")) {
        return;
    }
    open_traffic(&t, &patient);
    o = to(1, &impatient);
    vgt_pair_open(&p, 2, 3, &o);
    vgt_write_once(&p, 1);
    vgt_traffic_push(&t, DEPTH);
    set(net, 1, false);
    for (uint64_t i = 2; i < 5; i++) {
        vgt_send(&p.s[0], i, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p.s[1], 0);
    }
    vgt_expect(p.s[0].scq, 2, PVRDMA_WC_RETRY_EXC_ERR);
    vgt_expect(p.s[0].scq, 3, PVRDMA_WC_WR_FLUSH_ERR);
    vgt_expect(p.s[0].scq, 4, PVRDMA_WC_WR_FLUSH_ERR);
    host_wait_up(host[0], 1, false);
    host_wait_up(host[1], 0, false);
    g_usleep(3000000); /* neither knows any more who has the other's addresses */
    set(net, 1, true);
    host_wait_up(host[0], 1, true);
    host_wait_up(host[1], 0, true);
    vgt_traffic_run(&t, 20);
    vgt_pair_reconnect(&p, &patient);
    vgt_write_once(&p, 5);
    vgt_pair_close(&p);
    vgt_traffic_close(&t);
    end();
}

static void test_long_down(void)
{
    long_gone(netns_link);
}

static void test_long_unplugged(void)
{
    long_gone(set_connected);
}

/* ---- cuts that queue pairs of usual patience live through ---- */

#ifdef VGT_SANITIZED
static const bool brief_form = true; /* the rest of it is the plain build's */
#else
static const bool brief_form = false;
#endif

/* Silent for 5.2 s in all: some 2 s more than the network is away. */
static const struct vg_conn usual = {.timeout = 16, .retry_cnt = 7, .rnr_retry = 7};

static void cut_for(struct vgt_traffic *t, unsigned ms,
                    void (*set)(struct netns *w, unsigned i, bool up))
{
    int64_t back;

    vgt_traffic_push(t, DEPTH);
    set(net, 1, false);
    g_usleep((gulong)ms * 1000);
    set(net, 1, true);
    back = vg_now_ns();
    vgt_traffic_run(t, 10);
    g_test_message("%u ms without network: goes on after %.0f ms", ms,
                   (double)(vg_now_ns() - back) / 1e6);
}

/* Each has heard the other: the next cut is another one for the links, too. */
static void hear_each_other(void)
{
    int64_t heard[2];

    for (unsigned i = 0; i < 2; i++) {
        heard[i] = host_peer_int(host[i], !i, "received_messages");
    }
    for (unsigned i = 0; i < 2; i++) {
        host_wait_int(host[i], !i, "received_messages", heard[i] + 1);
    }
}

/* TCP's own timers would run out too late: some six seconds after the longest began. */
static void test_cuts(void)
{
    static const unsigned ms[] = {3300, 3000, 2500, 2000};
    struct vgt_traffic t;

    if (!begin(2, NULL)) {
        return;
    }
    open_traffic(&t, &usual);
    for (unsigned i = 0; i < (brief_form ? 2 : 2 * G_N_ELEMENTS(ms)); i++) {
        hear_each_other();
        cut_for(&t, ms[i / 2], i % 2 ? netns_link : set_connected);
    }
    vgt_traffic_close(&t);
    end();
}

/*
 * The link has ended, but the host is called as often, and its addresses are known yet.
 */
static void test_lost_link(void)
{
    struct vgt_traffic t;

    if (!begin(2, "peer-timeout=2")) {
        return;
    }
    open_traffic(&t, &usual);
    cut_for(&t, 3900, set_connected);
    vgt_traffic_close(&t);
    end();
}

/* Nothing is lost, but late by seconds: the links stay what they are. */
static void test_held_back(void)
{
    struct vgt_traffic t;
    uint64_t links;

    if (!begin(2, "peer-timeout=30")) {
        return;
    }
    open_traffic(&t, &patient);
    links = of_links("links");
    for (int64_t n = 1; n <= (brief_form ? 1 : 3); n++) {
        hear_each_other();
        vgt_traffic_push(&t, DEPTH);
        netns_hold(net, true);
        host_wait_int(host[0], 1, "silences", n);
        host_wait_int(host[1], 0, "silences", n);
        g_usleep(700000); /* both call */
        netns_hold(net, false);
        vgt_traffic_run(&t, 10);
    }
    g_test_message("%" PRIu64 " connections", connections() - opened);
    g_assert_cmpuint(of_links("links"), ==, links);
    vgt_traffic_close(&t);
    end();
}

/* @n queue pairs of one VM, beside @p's. */
static struct vg_qp **open_many(struct vgt_pair *p, unsigned n,
                                const struct vg_conn *conn)
{
    static const struct vg_qp_opts small = {.send_wr = 2, .recv_wr = 1, .send_sge = 1};
    struct vg_qp **qp = g_new0(struct vg_qp *, 2 * n);
    struct vgt_opts o = to(1, conn);

    o.cqe = n + 10;
    vgt_pair_open(p, 0, 1, &o);
    vgt_write_once(p, 1);
    for (unsigned i = 0; i < 2 * n; i++) {
        const struct vgt_side *s = &p->s[i % 2];

        qp[i] = vg_qp_new(s->pd, s->scq, s->rcq, &small);
        if (i % 2) {
            vg_qp_connect(qp[i - 1], qp[i], conn);
        }
    }
    return qp;
}

static void post_many(struct vgt_pair *p, struct vg_qp **qp, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        g_assert_true(vgt_post_write(p, qp[2 * i], 10));
    }
}

static void expect_many(struct vgt_pair *p, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        vgt_expect(p->s[0].scq, 10, PVRDMA_WC_SUCCESS);
    }
}

static void close_many(struct vgt_pair *p, struct vg_qp **qp, unsigned n)
{
    for (unsigned i = 0; i < 2 * n; i++) {
        vg_qp_free(qp[i]);
    }
    g_free(qp);
    vgt_pair_close(p);
}

/*
 * Streams that would live through it go on with the hosts' link, as new ones, not when
 * TCP's timers run out the next time.
 */
static void test_patient_cut(void)
{
    const unsigned n = 20;
    struct vg_qp **qp;
    struct vgt_pair p;
    g_autofree char *state = NULL;

    if (!begin(2, "peer-timeout=30")) {
        return;
    }
    qp = open_many(&p, n, &patient);
    post_many(&p, qp, n);
    expect_many(&p, n);
    opened = connections();
    netns_cut(net, 1, true);
    post_many(&p, qp, n);
    g_usleep(4000000);                               /* TCP would go on after 6 s */
    g_assert_cmpuint(connections() - opened, >=, 4); /* calls of the hosts */
    state = host_peer_text(host[0], 1, "state");
    g_assert_cmpstr(state, ==, "up"); /* it is not that the link was lost */
    opened = connections();
    netns_cut(net, 1, false);
    expect_many(&p, n);
    g_assert_cmpuint(connections() - opened, >=, n / 2);
    close_many(&p, qp, n);
    end();
}

/*
 * All have something under way when the network goes.  Each makes one connection anew,
 * when the network is back; until then there is a call of the hosts now and then.
 */
static void test_many(void)
{
    /* 7.5 s in all. */
    static const struct vg_conn conn = {.timeout = 17, .retry_cnt = 7, .rnr_retry = 7};
    const unsigned n = 1000;
    struct vg_qp **qp;
    struct vgt_pair p;
    uint64_t calls;
    int64_t back;

    if (!begin(2, NULL)) {
        return;
    }
    qp = open_many(&p, n, &conn);
    post_many(&p, qp, n);
    expect_many(&p, n);
    netns_cut(net, 1, true);
    opened = connections();
    post_many(&p, qp, n);
    g_usleep(2500000);
    calls = connections() - opened;
    netns_cut(net, 1, false);
    back = vg_now_ns();
    expect_many(&p, n);
    g_test_message("%" PRIu64 " calls, then %" PRIu64 " connections, %.0f ms", calls,
                   connections() - opened - calls, (double)(vg_now_ns() - back) / 1e6);
    g_assert_cmpuint(calls, <, 40);
    g_assert_cmpuint(connections() - opened, <, 2 * n);
    close_many(&p, qp, n);
    end();
}

/*
 * The hosts' link lives, but no other connection comes through any more: the queue pairs
 * fail, the link is not made anew for them, and none of them calls again and again.
 */
static void test_blocked(void)
{
    g_autofree char *rule =
        g_strdup_printf("nft add table inet b && nft add chain inet b in "
                        "'{ type filter hook input priority 0; }' && "
                        "nft add rule inet b in tcp dport %u ct state new drop",
                        hosts_port());
    const unsigned n = 20;
    struct vg_qp **qp;
    struct vgt_pair p;
    int64_t links;

    if (!begin(2, NULL)) {
        return;
    }
    qp = open_many(&p, n, &usual);
    links = host_peer_int(host[0], 1, "links");
    if (!netns_run(net, 0, rule) || !netns_run(net, 1, rule)) {
        g_test_skip("no nft, or no tracking of connections");
    } else {
        opened = connections();
        netns_cut(net, 1, true);
        post_many(&p, qp, n);
        vgt_await_counter("vm0", "datapath", "retries", n); /* they have no stream now */
        netns_cut(net, 1, false);
        for (unsigned i = 0; i < n; i++) {
            vgt_expect(p.s[0].scq, 10, PVRDMA_WC_RETRY_EXC_ERR);
        }
        g_assert_cmpint(host_peer_int(host[0], 1, "links"), ==, links);
        g_test_message("%" PRIu64 " calls", connections() - opened);
        g_assert_cmpuint(connections() - opened, <=, 4 * n);
    }
    close_many(&p, qp, n);
    end();
}

/*
 * A host whose daemon stands still: its kernel hears us, so the link is not called anew;
 * and when the network was away, too, one call waits for it, not many.
 */
static void test_stopped(void)
{
    struct vgt_traffic t;
    int64_t links, then;
    uint64_t stopped, cut;

    if (!begin(2, "peer-timeout=30")) {
        return;
    }
    open_traffic(&t, &patient);
    links = host_peer_int(host[0], 1, "links");
    kill(host[1]->pid, SIGSTOP);
    g_usleep(3000000);
    stopped = connections() - opened;
    netns_cut(net, 1, true);
    g_usleep(3000000);
    netns_cut(net, 1, false);
    g_usleep(3000000);
    cut = connections() - opened;
    then = host_peer_int(host[0], 1, "links");
    kill(host[1]->pid, SIGCONT); /* first, that none is left so */
    g_assert_cmpuint(stopped, ==, 0);
    g_assert_cmpuint(cut, <, 20);
    g_assert_cmpint(then, ==, links);
    vgt_traffic_run(&t, 20);
    vgt_traffic_close(&t);
    end();
}

/* ---- what stands still while the network is away ---- */

/* Host 0 has heard all that host 1 had to say until now. */
static void heard_all(void)
{
    vgt_await(host_peer_int(host[1], 0, "queued_bytes") == 0);
    host_wait_int(host[0], 1, "received_bytes", host_peer_int(host[1], 0, "sent_bytes"));
}

/* More than the 4 s after which all that host 1 said would be forgotten. */
#define HOLD    "hold-timeout=6"
#define HOLD_NS 6000000000ll

/*
 * Host 1's VM is paused, and the network away for longer than the host's link lives and
 * its addresses are its own.  The message waits until that VM's time is over, or for the
 * VM, if that is sooner.
 */
static void held(const char *keys, bool ends)
{
    /* Gives up after 500 ms of silence. */
    static const struct vg_conn conn = {.timeout = 8, .rnr_retry = 7};
    struct vgt_opts o;
    struct vgt_pair p;
    int64_t paused;

    if (!begin(2, keys)) {
        return;
    }
    o = to(1, &conn);
    vgt_pair_open(&p, 0, 1, &o);
    vgt_write_once(&p, 1);
    paused = vg_now_ns();
    vgt_vm(host[1], "pause", 1);
    heard_all();
    vgt_send(&p.s[0], 2, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p.s[1], 0);
    netns_cut(net, 1, true);
    host_wait_up(host[0], 1, false);
    if (ends) {
        vgt_expect(p.s[0].scq, 2, PVRDMA_WC_RETRY_EXC_ERR);
        g_assert_cmpint(vg_now_ns() - paused, >=, HOLD_NS);
    } else {
        vgt_expect_none(p.s[0].scq, 2500);
        netns_cut(net, 1, false);
        host_wait_up(host[0], 1, true);
        host_wait_up(host[1], 0, true);
        vgt_expect_none(p.s[0].scq, 100);
        vgt_vm(host[1], "resume", 1);
        vgt_expect(p.s[0].scq, 2, PVRDMA_WC_SUCCESS);
        vgt_write_once(&p, 3);
    }
    vgt_pair_close(&p);
    end();
}

static void test_held(void)
{
    held("peer-timeout=2\nhold-timeout=60", false);
}

static void test_held_too_long(void)
{
    held("peer-timeout=2\n" HOLD, true);
}

/* One of three is cut off: the two others do not notice, and it catches up. */
static void test_third(void)
{
    struct vgt_traffic t[2];
    struct vgt_opts o;

    if (!begin(3, "peer-timeout=30")) {
        return;
    }
    open_traffic(&t[0], &patient);
    o = to(2, &patient);
    vgt_traffic_open(&t[1], 2, 3, N_QPS, DEPTH, 20000, &o);
    vgt_traffic_run(&t[1], 10);
    for (unsigned i = 0; i < 4; i++) {
        vgt_traffic_push(&t[1], DEPTH);
        netns_link(net, 2, false);
        vgt_traffic_run(&t[0], 50);
        netns_link(net, 2, true);
        vgt_traffic_run(&t[1], 20);
    }
    vgt_traffic_close(&t[1]);
    vgt_traffic_close(&t[0]);
    end();
}

/* ---- firewalls ---- */

/* Frees @text. */
static char *replaced(char *text, const char *old, const char *new)
{
    g_auto(GStrv) parts = g_strsplit(text, old, -1);

    g_free(text);
    return g_strjoinv(new, parts);
}

/* The documentation's rule that has @words, with these hosts' addresses and port. */
static char *rule_of(const char *words)
{
    g_autofree char *port = g_strdup_printf("%u", hosts_port());
    g_autofree char *first = host_address(0), *second = host_address(1);
    char *rule = hosts_documented(words);

    g_assert_true(g_str_has_prefix(rule, "nft add rule inet filter input "));
    rule = replaced(rule, "10.0.0.1", first);
    rule = replaced(rule, "10.0.0.2", second);
    return replaced(rule, "14820", port);
}

/*
 * Have queue pairs' connections at host @i, whoever has made them, a timer for when
 * nothing passes?  A firewall forgets those that are silent for long.
 */
static bool are_kept(unsigned i)
{
    g_autofree char *command =
        g_strdup_printf("awk '$4 == \"01\" && /:%04X / && $6 ~ /^02:/ { n++ } "
                        "END { exit n < %u }' /proc/self/net/tcp",
                        hosts_port(), N_QPS);

    return netns_run(net, i, command);
}

/*
 * Hosts that drop what no rule lets in have the documentation's rules: links, connections
 * and datagrams pass, and neither another port nor another host.
 */
static void test_firewall(void)
{
    static const char base[] =
        "nft add table inet filter && nft add chain inet filter "
        "input '{ type filter hook input priority 0; policy drop; }'";
    const struct host_opts o = {
        .n_vms = 4, .daemon_keys = "peer-timeout=30", .n_peers = 2};
    g_autofree char *rules = NULL, *own = NULL, *answers = NULL, *set = NULL,
                    *counted = NULL;
    unsigned port = hosts_port(), other = port + 1;
    struct vgt_traffic t;
    struct vgt_opts opts;
    struct vgt_pair ud;
    int listener;

    if (!have_networks()) {
        return;
    }
    net = netns_new(3);
    n_hosts = 2;
    if (!netns_run(net, 2,
                   "nft add table inet a && nft add chain inet a b && "
                   "nft add rule inet a b ct state established accept")) {
        g_test_skip("no nft, or no tracking of connections");
        netns_free(net);
        return;
    }
    own = rule_of("tcp dport 14820 accept");
    answers = rule_of("ct state");
    set = hosts_documented("nft add set ");
    counted = rule_of("update @calls");
    rules =
        g_strdup_printf("%s && %s && %s && %s && %s", base, set, counted, own, answers);
    for (unsigned i = 0; i < 2; i++) {
        g_assert_true(netns_run(net, i, rules));
        host[i] = netns_host(net, i, &o);
    }
    hosts_wait_up(host, 2);
    vgt_daemon = host[0];
    open_traffic(&t, &patient);
    ud_options(&opts, VGT_STOCK);
    opts.daemon[0] = host[0];
    opts.daemon[1] = host[1];
    vgt_pair_open(&ud, 2, 3, &opts);
    for (unsigned i = 0; i < 2; i++) {
        vg_ud_to_rts(ud.s[i].qp, QKEY);
    }
    ud_passes(&ud.s[0], &ud.s[1], (struct dg){.len = 100, .wr_id = 1});
    ud_passes(&ud.s[1], &ud.s[0], (struct dg){.len = 100, .wr_id = 2});
    vgt_traffic_run(&t, 20);
    for (unsigned i = 0; i < 2; i++) {
        int64_t begun = vg_now_ns();

        while (!are_kept(i)) {
            g_assert_cmpint(vg_now_ns() - begun, <, 30000000000);
            g_usleep(20000);
        }
    }

    listener = netns_listen(net, 1, other);
    g_assert_true(netns_calls(net, 0, 1, port, VGT_WAIT_MS));
    g_assert_false(netns_calls(net, 0, 1, other, 200));
    g_assert_false(netns_calls(net, 2, 1, port, 200));
    g_assert_true(
        netns_run(net, 1, "nft flush ruleset")); /* nothing else was in their way */
    g_assert_true(netns_calls(net, 0, 1, other, VGT_WAIT_MS));
    g_assert_true(netns_calls(net, 2, 1, port, VGT_WAIT_MS));
    close(listener);
    vgt_pair_close(&ud);
    vgt_traffic_close(&t);
    end();
}

int main(int argc, char **argv)
{
    vgt_init(&argc, &argv, 360);
    g_test_add_func("/hosts-link/lost", test_lost);
    g_test_add_func("/hosts-link/swapped", test_swapped);
    g_test_add_func("/hosts-link/all", test_all);
    g_test_add_func("/hosts-link/flapping", test_flapping);
    g_test_add_func("/hosts-link/unplugged", test_unplugged);
    g_test_add_func("/hosts-link/flapping-and-faulty", test_flapping_and_faulty);
    g_test_add_func("/hosts-link/broken", test_broken);
    g_test_add_func("/hosts-link/long-down", test_long_down);
    g_test_add_func("/hosts-link/long-unplugged", test_long_unplugged);
    g_test_add_func("/hosts-link/cuts", test_cuts);
    g_test_add_func("/hosts-link/held-back", test_held_back);
    if (!brief_form) {
        g_test_add_func("/hosts-link/lost-link", test_lost_link);
        g_test_add_func("/hosts-link/patient-cut", test_patient_cut);
        g_test_add_func("/hosts-link/many", test_many);
        g_test_add_func("/hosts-link/blocked", test_blocked);
        g_test_add_func("/hosts-link/stopped", test_stopped);
    }
    g_test_add_func("/hosts-link/held", test_held);
    g_test_add_func("/hosts-link/held-too-long", test_held_too_long);
    g_test_add_func("/hosts-link/third", test_third);
    g_test_add_func("/hosts-link/firewall", test_firewall);
    return vgt_run();
}
