/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: hosts and their link fail while a guest moves.  It goes on in exactly one
 * place with its connections, or they fail with the right status on both sides.
 *
 * Guest 0 moves between host 0 and host 1; guest 1, its peer, stays on host 0.  The link
 * goes through a relay that can be cut.
 */
#include "migrate.h"
#include "relay.h"

#include <errno.h>
#include <string.h>

#define RUNNING   VFIO_USER_MIG_RUNNING
#define STOP_COPY VFIO_USER_MIG_STOP_COPY
#define RESUMING  VFIO_USER_MIG_RESUMING

#define N_QPS 4

static struct vg_daemon *host[2];
static struct relay *relay;

/* Lives through a link that is away for seconds. */
static const struct vg_conn patient = {.timeout = 21, .retry_cnt = 7, .rnr_retry = 7};
/* Would give up after 500 ms of silence, or two. */
static const struct vg_conn impatient = {.timeout = 14, .retry_cnt = 1, .rnr_retry = 7};

static void begin(const char *daemon_keys)
{
    const struct host_opts o = {.n_vms = 3, .daemon_keys = daemon_keys};

    relay = relay_hosts(host, &(struct relay_opts){0}, &o);
    vgt_daemon = host[0];
}

static void end(void)
{
    relay_hosts_stop(relay, host);
    vgt_daemon = NULL;
}

static void cut(bool on)
{
    relay_cut(relay, on);
    host_wait_up(host[0], 1, !on);
    host_wait_up(host[1], 0, !on);
}

static struct vgt_opts opts_of(gconstpointer style, unsigned at, const struct vg_conn *c)
{
    struct vgt_opts o = vgt_opts_of(style);

    o.daemon[0] = host[at];
    o.daemon[1] = host[0];
    o.conn = *c;
    return o;
}

/* The link is away from the stop until the guest runs elsewhere, and a little longer. */
static void switched(gconstpointer style, unsigned from)
{
    struct vgt_opts o;
    struct vgt_traffic t;

    begin("peer-timeout=30");
    o = opts_of(style, from, &patient);
    vgt_traffic_open(&t, 0, 1, N_QPS, 4, 50000, &o);
    for (unsigned i = 0; i < 2; i++) {
        struct vg_place place;

        vgt_traffic_push(&t, 5);
        place = vg_move_begin(t.s[0].g, host[1 - from], 0);
        cut(true);
        vg_move_end(t.s[0].g, &place, i ? VG_MOVE_LEAVE_FIRST : VG_MOVE_PLAIN);
        vgt_traffic_push(&t, from ? 5 : 0);
        g_usleep(300000);
        cut(false);
        vgt_traffic_run(&t, 5);
        vg_move(t.s[0].g, host[from], 0, VG_MOVE_PLAIN);
    }
    vgt_traffic_run(&t, 5);
    vgt_traffic_close(&t);
    end();
}

static void test_cut_leaving(gconstpointer style)
{
    switched(style, 0);
}

static void test_cut_coming(gconstpointer style)
{
    switched(style, 1);
}

/* The link goes, the target cannot run for another reason: the source goes on. */
static void test_cut_called_off(gconstpointer style)
{
    struct vgt_traffic t;
    struct vgt_opts o;

    begin("peer-timeout=30");
    o = opts_of(style, 1, &patient);
    vgt_traffic_open(&t, 0, 1, N_QPS, 4, 50000, &o);
    for (unsigned i = 0; i < 2; i++) {
        struct vg_place place;

        vgt_traffic_push(&t, 5);
        place = vg_move_begin(t.s[0].g, host[0], 0);
        cut(true);
        vg_place_swap(t.s[0].g, &place);
        vg_place_close(&place);
        vg_mig_enter(t.s[0].g, RUNNING);
        cut(false);
        vgt_traffic_run(&t, 5);
    }
    vgt_traffic_close(&t);
    end();
}

/*
 * The link stays away for longer than anybody waits.  Who moved hears nothing of its
 * peer, and gives up when its tries are over; the peer, when the address is held no
 * longer.  They find each other when the link is back.
 */
static void test_cut_for_good(gconstpointer style)
{
    struct vgt_opts o;
    struct vgt_pair p;
    struct pvrdma_cqe c;
    struct vg_place place;
    int64_t begun;

    begin("peer-timeout=2");
    o = opts_of(style, 0, &impatient);
    vgt_pair_open(&p, 0, 1, &o);
    vgt_write_once(&p, 1);
    place = vg_move_begin(p.s[0].g, host[1], 0);
    cut(true);
    begun = vg_now_ns();
    vgt_send(&p.s[1], 2, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p.s[0], 0);
    vg_move_end(p.s[0].g, &place, VG_MOVE_PLAIN);
    vgt_send(&p.s[0], 3, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p.s[1], 0);
    vgt_expect(p.s[0].scq, 3, PVRDMA_WC_RETRY_EXC_ERR);
    g_assert_cmpuint(vg_qp_state(p.s[1].qp), ==, PVRDMA_QPS_RTS);
    vgt_expect_none(p.s[1].scq, 1000);
    g_assert_true(vg_cq_wait(p.s[1].scq, &c, 40000 + VGT_WAIT_MS)); /* held for 30 s */
    g_assert_cmpuint(c.status, ==, PVRDMA_WC_RETRY_EXC_ERR);
    g_assert_cmpint(vg_now_ns() - begun, >, 20 * 1000000000ll);
    cut(false);
    vgt_pair_reconnect(&p, &patient);
    vgt_write_once(&p, 4);
    vgt_complete(&p.s[1], 5, PVRDMA_WR_RDMA_WRITE, 0, 8, &p.s[0], 0);
    vgt_pair_close(&p);
    end();
}

/*
 * The source's host dies when the state was read; who goes on with it comes too late,
 * when the peer has waited for as long as it may.
 */
static void test_source_dies(gconstpointer style)
{
    struct vg_place place;
    struct vgt_opts o;
    struct vgt_pair p;

    begin("peer-timeout=2\nhold-timeout=6");
    o = opts_of(style, 1, &impatient);
    vgt_pair_open(&p, 0, 1, &o);
    vgt_write_once(&p, 1);
    place = vg_move_begin(p.s[0].g, host[0], 2);
    vgt_send(&p.s[1], 2, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p.s[0], 0);
    vgt_expect_none(p.s[1].scq, 1500); /* it is held */
    vg_daemon_kill(host[1]);
    host[1] = NULL;
    vgt_expect(p.s[1].scq, 2, PVRDMA_WC_RETRY_EXC_ERR);
    vg_move_end(p.s[0].g, &place, VG_MOVE_LEAVE_FIRST);
    vgt_send(&p.s[0], 3, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p.s[1], 0);
    vgt_expect(p.s[0].scq, 3, PVRDMA_WC_RETRY_EXC_ERR);
    vgt_pair_reconnect(&p, &impatient);
    vgt_write_once(&p, 4);
    vgt_pair_close(&p);
    end();
}

/*
 * The target's daemon dies, when half of the state has come, or all of it: the source
 * goes on, and its peer, which has waited, too.
 */
static void target_dies(gconstpointer style, bool loaded)
{
    g_autoptr(GByteArray) stream = NULL;
    struct vgt_traffic t;
    struct vg_place place;
    struct vgt_opts o;
    struct vguest *g;

    begin("peer-timeout=2");
    o = opts_of(style, 0, &patient);
    vgt_traffic_open(&t, 0, 1, N_QPS, 4, 50000, &o);
    vgt_traffic_push(&t, 5);
    g = t.s[0].g;
    place = vg_place_open(g, host[1], 0);
    stream = vg_mig_save(g);
    vg_place_swap(g, &place);
    vg_mig_enter(g, RESUMING);
    g_assert_cmpint(
        vg_mig_write(g, stream->data, loaded ? stream->len : stream->len / 2, 65536), ==,
        0);
    if (loaded) {
        vg_mig_enter(g, VFIO_USER_MIG_STOP);
    }
    vg_daemon_kill(host[1]);
    host[1] = NULL;
    vg_place_swap(g, &place);
    vg_place_close(&place);
    vg_mig_enter(g, RUNNING);
    vgt_traffic_run(&t, 5);
    vgt_traffic_close(&t);
    end();
}

static void test_target_dies(gconstpointer style)
{
    target_dies(style, false);
    target_dies(style, true);
}

/*
 * It dies when the guest runs there: that is lost.  The source does not go on with what
 * the guest has left behind, and the peer learns that it is gone.
 */
static void test_new_place_dies(gconstpointer style)
{
    struct vg_place place;
    struct vgt_opts o;
    struct vgt_pair p;

    begin("peer-timeout=2");
    o = opts_of(style, 0, &impatient);
    vgt_pair_open(&p, 0, 1, &o);
    vgt_write_once(&p, 1);
    place = vg_move_begin(p.s[0].g, host[1], 0);
    vg_mig_enter(p.s[0].g, RUNNING);
    vgt_write_once(&p, 2); /* so its peer has heard of it */
    vg_daemon_kill(host[1]);
    host[1] = NULL;
    vg_place_swap(p.s[0].g, &place);
    g_assert_cmpint(vg_mig_set(p.s[0].g, RUNNING), ==, EADDRINUSE);
    vgt_send(&p.s[1], 3, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p.s[0], 0);
    vgt_expect(p.s[1].scq, 3, PVRDMA_WC_RETRY_EXC_ERR);
    g_assert_cmpint(vg_mig_set(p.s[0].g, RUNNING), ==, EADDRINUSE);
    vg_place_close(&place);
    vg_disconnect(p.s[0].g);
    vgt_pair_close(&p);
    end();
}

/* @d has heard where the guests are. */
static void wait_known(const struct vg_daemon *d)
{
    vgt_await(vg_status_int(d, NULL, "directory", "remote_gids") >= 2);
}

/*
 * Two places have got the state, on two hosts that do not hear of each other, and both go
 * on; one of them is the host that it comes from, which has the last word in the end.
 */
static void test_two_claim(gconstpointer style)
{
    g_autoptr(GByteArray) stream = NULL;
    int64_t until;
    struct vg_place place[2]; /* where it was, and one that is not to be */
    struct vgt_opts o;
    struct vgt_pair p;
    struct vguest *g;
    bool ran[2];

    begin("peer-timeout=30");
    o = opts_of(style, 0, &patient);
    vgt_pair_open(&p, 0, 1, &o);
    vgt_write_once(&p, 1);
    g = p.s[0].g;
    place[0] = vg_place_open(g, host[1], 0);
    place[1] = vg_place_open(g, host[0], 2);
    stream = vg_mig_save(g);
    for (unsigned i = 0; i < 2; i++) {
        vg_place_swap(g, &place[i]);
        vg_mig_load(g, stream);
        vg_place_swap(g, &place[i]);
    }
    wait_known(host[1]);
    cut(true);
    for (unsigned i = 0; i < 2; i++) {
        int err;

        vg_place_swap(g, &place[i]);
        err = vg_mig_set(g, RUNNING);
        g_assert_true(err == 0 || (i && err == EADDRINUSE));
        ran[i] = err == 0;
        vg_place_swap(g, &place[i]);
    }
    cut(false);
    until = vg_now_ns() + VGT_WAIT_MS * 1000000ll;
    for (unsigned n = 2; n != 1;) { /* they have to find out who has it */
        unsigned who = 0;

        g_assert_cmpint(vg_now_ns(), <, until);
        g_usleep(20000);
        n = 0;
        for (unsigned i = 0; i < 2; i++) {
            vg_place_swap(g, &place[i]);
            if (ran[i] && !vg_wait_closed(g, 1)) {
                who = i;
                n++;
            }
            vg_place_swap(g, &place[i]);
        }
        g_assert_cmpuint(n, >, 0);
        if (n == 1) {
            vg_place_swap(g, &place[who]);
        }
    }
    vg_raise_all(g);
    vg_place_close(&place[0]);
    vg_place_close(&place[1]);
    vgt_write_once(&p, 2);
    vgt_complete(&p.s[1], 3, PVRDMA_WR_RDMA_WRITE, 0, 8, &p.s[0], 0);
    vgt_pair_close(&p);
    end();
}

int main(int argc, char **argv)
{
    static const struct vgt_both tests[] = {
        {"cut-leaving", test_cut_leaving},       {"cut-coming", test_cut_coming},
        {"cut-called-off", test_cut_called_off}, {"source-dies", test_source_dies},
        {"two-claim", test_two_claim},           {"target-dies", test_target_dies},
        {"new-place-dies", test_new_place_dies},
    };

    vgt_init(&argc, &argv, 240);
    vgt_add_both("moves-faults", tests, G_N_ELEMENTS(tests));
    g_test_add_data_func("/moves-faults/cut-for-good", GUINT_TO_POINTER(VGT_EXTENDED),
                         test_cut_for_good);
    return vgt_run();
}
