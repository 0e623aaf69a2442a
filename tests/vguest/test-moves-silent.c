/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: the host that a guest moves to falls silent, at each stage of the move,
 * and nobody hears that it has gone: its daemon stands still (SIGSTOP), its sockets stay
 * open.  The guest goes on in exactly one place with its connections, or they fail with
 * the right status; and so it is when that host comes back.
 *
 * Guest 0 moves from host 0 to host 1; guest 1, its peer, is on host 0 or 2.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "hosts.h"
#include "migrate.h"

#define N_HOSTS 3u
#define N_QPS   4u
#define TARGET  2u /* the VM there */

/* Links end after 2 s of silence, or not in a test. */
#define KEYS      "peer-timeout=2"
#define LONG_KEYS "peer-timeout=30"

static struct vg_daemon *host[N_HOSTS];

/* 8.6 s, eight times. */
static const struct vg_conn patient = {.timeout = 21, .retry_cnt = 7, .rnr_retry = 7};
/* 0.5 s, twice. */
static const struct vg_conn impatient = {.timeout = 17, .retry_cnt = 1, .rnr_retry = 7};

static void begin(const char *keys)
{
    const struct host_opts o = {.n_vms = 4, .daemon_keys = keys};

    hosts_start(host, N_HOSTS, &o);
    vgt_daemon = host[0];
}

static void end(void)
{
    hosts_stop(host, N_HOSTS);
    vgt_daemon = NULL;
}

static struct vgt_opts opts_of(unsigned peer, const struct vg_conn *c)
{
    return (struct vgt_opts){.guest = {{.db = VG_DB_EXT}, {.db = VG_DB_EXT}},
                             .daemon = {host[0], host[peer]},
                             .conn = *c};
}

/* Daemon @i stands still, all its threads, until it goes on. */
static void freeze(unsigned i, bool on)
{
    g_autofree char *path = g_strdup_printf("/proc/%d/stat", (int)host[i]->pid);
    int64_t until = vg_now_ns() + VGT_WAIT_MS * 1000000ll;
    bool stands = !on;

    g_assert_cmpint(kill(host[i]->pid, on ? SIGSTOP : SIGCONT), ==, 0);
    while (stands != on) {
        g_autofree char *text = NULL;
        const char *state;

        g_assert_cmpint(vg_now_ns(), <, until);
        g_usleep(1000);
        g_assert_true(g_file_get_contents(path, &text, NULL, NULL));
        state = strrchr(text, ')');
        g_assert_nonnull(state);
        stands = state[2] == 'T';
    }
}

/* All others have noticed that host 1 says nothing any more; and that it is back. */
static void wait_target(bool up)
{
    for (unsigned i = 0; i < N_HOSTS; i++) {
        if (i != 1) {
            host_wait_up(host[i], 1, up);
            if (up) {
                host_wait_up(host[1], i, true);
            }
        }
    }
}

/* Guest 0, connected with its peer, which is on host @peer. */
static void begin_pair(struct vgt_pair *p, const char *keys, unsigned peer,
                       const struct vg_conn *c)
{
    struct vgt_opts o;

    begin(keys);
    o = opts_of(peer, c);
    vgt_pair_open(p, 0, 1, &o);
    vgt_write_once(p, 1);
}

static void end_pair(struct vgt_pair *p)
{
    vgt_pair_close(p);
    end();
}

static void write_back(struct vgt_pair *p, uint64_t wr_id)
{
    vgt_send(&p->s[1], wr_id, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p->s[0], 0);
}

/* Whoever is connected anew reaches the guest where it is now, and is reached by it. */
static void check_anew(struct vgt_pair *p)
{
    vgt_pair_reconnect(p, &patient);
    vgt_write_once(p, 11);
    write_back(p, 12);
    vgt_expect(p->s[1].scq, 12, PVRDMA_WC_SUCCESS);
}

/* ---- before it runs there ---- */

enum stage { HALF, LOADED, TOLD };

/* All of the state, or half of it, is at the target. */
static struct vg_place load(struct vguest *g, enum stage stage)
{
    g_autoptr(GByteArray) stream = NULL;
    struct vg_place place = vg_place_open(g, host[1], TARGET);

    stream = vg_mig_save(g);
    vg_place_swap(g, &place);
    vg_mig_enter(g, VFIO_USER_MIG_RESUMING);
    g_assert_cmpint(vg_mig_write(g, stream->data,
                                 stage == HALF ? stream->len / 2 : stream->len, 65536),
                    ==, 0);
    if (stage != HALF) {
        vg_mig_enter(g, VFIO_USER_MIG_STOP);
    }
    vg_place_swap(g, &place);
    return place;
}

/*
 * The target was told to run, too, and is back: it does not, or, if it had nobody to ask,
 * not for long.  True: it has not.
 */
static bool stays_away(struct vguest *g, struct vg_place *place)
{
    int err = vg_place_hear(place, VGT_WAIT_MS);

    g_test_message("the target says %d", err);
    if (err == EADDRINUSE) {
        return true;
    }
    g_assert_cmpint(err, <=, 0);
    vg_place_swap(g, place);
    g_assert_true(vg_wait_closed(g, VGT_WAIT_MS));
    vg_place_swap(g, place);
    return false;
}

/*
 * The source is told to go on, and does; the target, which was not told, does not when it
 * is back.  @gone: that is when nobody counts on it any more.
 */
static void goes_on(unsigned peer, enum stage stage, bool gone)
{
    struct vg_place place;
    struct vgt_traffic t;
    struct vgt_opts o;
    struct vguest *g;

    begin(gone ? KEYS : LONG_KEYS);
    o = opts_of(peer, &patient);
    vgt_traffic_open(&t, 0, 1, N_QPS, 4, 20000, &o);
    vgt_traffic_run(&t, 10);
    vgt_traffic_push(&t, 5);
    g = t.s[0].g;
    place = load(g, stage);
    freeze(1, true);
    vg_mig_enter(g, VFIO_USER_MIG_RUNNING);
    vgt_traffic_run(&t, 10);
    if (gone) {
        wait_target(false);
        vgt_traffic_run(&t, 10);
    }
    freeze(1, false);
    wait_target(true);
    vgt_traffic_run(&t, 10);
    vg_place_close(&place);
    vg_move(g, host[1], TARGET + 1, VG_MOVE_PLAIN);
    vgt_traffic_run(&t, 10);
    vgt_traffic_close(&t);
    end();
}

static void test_loading(void)
{
    goes_on(0, HALF, false);
    goes_on(2, HALF, true);
}

static void test_loaded(void)
{
    goes_on(2, LOADED, false);
    goes_on(0, LOADED, true);
}

/* A pair of which guest 0's state is loaded at the target. */
static struct vg_place begin_told(struct vgt_pair *p, bool gone, unsigned peer,
                                  const struct vg_conn *c)
{
    begin_pair(p, gone ? KEYS : LONG_KEYS, peer, c);
    return load(p->s[0].g, TOLD);
}

/* The guest is where it is for good, and the other place goes. */
static void end_told(struct vgt_pair *p, struct vg_place *place)
{
    wait_target(true);
    check_anew(p);
    vg_place_close(place);
    check_anew(p);
    end_pair(p);
}

/*
 * The target has been told, too, and is back soon or when nobody counts on it any more.
 * In the test both places have one memory, so nothing is sent until one of them has it
 * for good.
 */
static void told(unsigned peer, bool gone)
{
    struct vg_place place;
    struct vgt_pair p;
    struct vguest *g;

    place = begin_told(&p, gone, peer, &patient);
    g = p.s[0].g;
    freeze(1, true);
    vg_place_tell_to_run(&place);
    vg_mig_enter(g, VFIO_USER_MIG_RUNNING);
    if (gone) {
        wait_target(false);
    }
    freeze(1, false);
    if (stays_away(g, &place)) {
        vgt_write_once(&p, 2);
        write_back(&p, 3);
        vgt_expect(p.s[1].scq, 3, PVRDMA_WC_SUCCESS);
    }
    end_told(&p, &place);
}

static void test_told(void)
{
    told(0, false);
    told(2, false);
}

static void test_told_and_gone(void)
{
    told(0, true);
    told(2, true);
}

/*
 * The source has heard that the guest runs elsewhere, and the target not yet that it may:
 * it is the target's, whenever that is back.
 */
static void claimed(unsigned peer, bool gone)
{
    struct vg_place place;
    struct vgt_pair p;
    struct vguest *g;
    int err;

    place = begin_told(&p, gone, peer, &impatient);
    g = p.s[0].g;
    freeze(0, true);
    vg_place_tell_to_run(&place);
    g_usleep(300000); /* it asks */
    freeze(1, true);
    freeze(0, false);
    if (gone) {
        wait_target(false);
    } else {
        g_usleep(300000);
    }
    err = vg_mig_set(g, VFIO_USER_MIG_RUNNING);
    g_test_message("the source says %d", err);
    g_assert_true(err == 0 || err == EADDRINUSE);
    freeze(1, false);
    if (err) {
        g_assert_cmpint(vg_place_hear(&place, VGT_WAIT_MS), ==, 0);
        vg_place_swap(g, &place);
        vg_raise_all(g);
    } else {
        stays_away(g, &place);
    }
    end_told(&p, &place);
}

static void test_claimed(void)
{
    claimed(0, false);
    claimed(2, true);
}

/* The source has left, and the target does not run: peers wait for no longer than said.
 */
static void left(unsigned peer)
{
    struct vg_place place;
    struct vgt_pair p;
    int64_t begun;

    begin_pair(&p, KEYS "\nhold-timeout=3", peer, &impatient);
    place = vg_move_begin(p.s[0].g, host[1], TARGET);
    freeze(1, true);
    vg_place_close(&place);
    begun = vg_now_ns();
    write_back(&p, 2);
    vgt_expect(p.s[1].scq, 2, PVRDMA_WC_RETRY_EXC_ERR);
    g_assert_cmpint(vg_now_ns() - begun, <, 25000000000); /* it would be 30 s */
    freeze(1, false);
    wait_target(true);
    vg_mig_enter(p.s[0].g, VFIO_USER_MIG_RUNNING);
    vg_raise_all(p.s[0].g);
    check_anew(&p);
    end_pair(&p);
}

static void test_left(void)
{
    left(0);
    left(2);
}

/* ---- it has begun to run there ---- */

/*
 * The guest is lost as long as its host is: its peers fail, and the source, which has
 * heard of it, stays away.
 */
static void lost(unsigned peer, bool spoke)
{
    struct vg_place place;
    struct vgt_pair p;

    begin_pair(&p, KEYS, peer, &impatient);
    place = vg_move_begin(p.s[0].g, host[1], TARGET);
    vg_mig_enter(p.s[0].g, VFIO_USER_MIG_RUNNING);
    vg_raise_all(p.s[0].g);
    host_wait_logged(host[0], "its addresses have moved");
    if (spoke) {
        vgt_write_once(&p, 2);
    }
    freeze(1, true);
    write_back(&p, 3);
    write_back(&p, 4);
    vg_place_swap(p.s[0].g, &place);
    g_assert_cmpint(vg_mig_set(p.s[0].g, VFIO_USER_MIG_RUNNING), ==, EADDRINUSE);
    vgt_expect(p.s[1].scq, 3, PVRDMA_WC_RETRY_EXC_ERR);
    vgt_expect(p.s[1].scq, 4, PVRDMA_WC_WR_FLUSH_ERR);
    wait_target(false);
    g_assert_cmpint(vg_mig_set(p.s[0].g, VFIO_USER_MIG_RUNNING), ==, EADDRINUSE);
    freeze(1, false);
    wait_target(true);
    g_assert_cmpint(vg_mig_set(p.s[0].g, VFIO_USER_MIG_RUNNING), ==, EADDRINUSE);
    vg_place_swap(p.s[0].g, &place);
    vg_place_close(&place);
    check_anew(&p);
    end_pair(&p);
}

static void test_lost(void)
{
    lost(0, true);
    lost(2, false);
}

/* Its connections are more patient than its host is silent: they go on. */
static void waits(unsigned peer, bool spoke)
{
    struct vg_place from;
    struct vgt_traffic t;
    struct vgt_opts o;

    begin(KEYS);
    o = opts_of(peer, &patient);
    vgt_traffic_open(&t, 0, 1, N_QPS, 4, 20000, &o);
    vgt_traffic_push(&t, 10);
    from = vg_move_begin(t.s[0].g, host[1], TARGET);
    vg_move_end(t.s[0].g, &from, VG_MOVE_PLAIN);
    vgt_traffic_push(&t, spoke ? 10 : 0);
    freeze(1, true);
    wait_target(false);
    freeze(1, false);
    vgt_traffic_run(&t, 10);
    wait_target(true);
    vgt_traffic_run(&t, 10);
    vgt_traffic_close(&t);
    end();
}

static void test_waits(void)
{
    waits(0, true);
    waits(2, false);
}

int main(int argc, char **argv)
{
    vgt_init(&argc, &argv, 360);
    g_test_add_func("/moves-silent/loading", test_loading);
    g_test_add_func("/moves-silent/loaded", test_loaded);
    g_test_add_func("/moves-silent/told", test_told);
    g_test_add_func("/moves-silent/told-and-gone", test_told_and_gone);
    g_test_add_func("/moves-silent/claimed", test_claimed);
    g_test_add_func("/moves-silent/left", test_left);
    g_test_add_func("/moves-silent/lost", test_lost);
    g_test_add_func("/moves-silent/waits", test_waits);
    return vgt_run();
}
