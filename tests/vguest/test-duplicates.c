/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: one state is loaded at two hosts, and both are told to run it at once.
 * One of them goes on, with the connections or with new ones, and the other learns of it;
 * whether the two have a link, only a third host in common, or a link that comes later.
 *
 * Guest 0 is loaded at hosts 0 and 1; guest 1, its peer, counts there by fetch-and-add:
 * what the counter says is what has succeeded, each returned another number, or the
 * connection has failed.  Both places have the one RAM, so that the counter begins with
 * what the one that gives way has counted and not answered.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "migrate.h"
#include "relay.h"

/* In front of both, while they are told to run, and when one goes on. */
#define COUNTS 4u

/* A VM that has had faults is served later each time: each round has others. */
#define N_VMS 12u

static struct vg_daemon *host[3];
static struct relay *relay;

static const struct vg_conn conn = {.timeout = 14, .retry_cnt = 1, .rnr_retry = 7};

/* ---- two places ---- */

struct rivals {
    struct vgt_pair p;
    struct vg_place from, at[2]; /* where it was; hosts 0 and 1 */
    int err[2];                  /* what they said when they were told to run */
    unsigned posted, good;       /* of the counts */
};

static void load(struct vguest *g, struct vg_place *place, const GByteArray *stream)
{
    vg_place_swap(g, place);
    vg_mig_load(g, stream);
    vg_place_swap(g, place);
}

/* Guest 0 stands still at VM @vm of both hosts; the peer's counts wait for it. */
static void begin(struct rivals *r, struct vg_daemon *source, struct vg_daemon *peer,
                  unsigned vm)
{
    struct vgt_opts o = {.daemon = {source, peer}, .conn = conn};
    g_autoptr(GByteArray) stream = NULL;
    struct vguest *g;

    memset(r, 0, sizeof(*r));
    vgt_daemon = source;
    vgt_pair_open(&r->p, 0, 1, &o);
    vgt_write_once(&r->p, 1);
    memset(VG_MR_HOST(r->p.s[0].mr, 0), 0, 8);
    g = r->p.s[0].g;
    for (unsigned i = 0; i < 2; i++) {
        r->at[i] = vg_place_open(g, host[i], vm);
    }
    stream = vg_mig_save(g);
    for (unsigned i = 0; i < 2; i++) {
        load(g, &r->at[i], stream);
    }
}

static void count(struct rivals *r)
{
    struct vgt_side *s = &r->p.s[1], *to = &r->p.s[0];

    for (unsigned i = 0; i < COUNTS; i++) {
        vgt_count(s, r->posted, 8 * r->posted, to);
        r->posted++;
    }
}

static void hear_answer(struct rivals *r, unsigned i)
{
    r->err[i] = vg_place_hear(&r->at[i], VGT_WAIT_MS);
    g_assert_true(r->err[i] <= 0 || r->err[i] == EADDRINUSE);
}

/* Both at once, @first a little earlier. */
static void run_both(struct rivals *r, unsigned first)
{
    vg_place_tell_to_run(&r->at[first]);
    vg_place_tell_to_run(&r->at[!first]);
    hear_answer(r, 0);
    hear_answer(r, 1);
}

static bool is_alive(const struct rivals *r, unsigned i)
{
    struct pollfd pfd = {.fd = r->at[i].sock, .events = POLLIN};
    char byte;

    return r->err[i] == 0 &&
           !(poll(&pfd, 1, 0) > 0 && recv(pfd.fd, &byte, 1, MSG_PEEK) <= 0);
}

/* Wait until there is one, who is to stay it. */
static unsigned one_goes_on(const struct rivals *r)
{
    int64_t until = vg_now_ns() + VGT_WAIT_MS * 1000000ll;
    bool alive[2];

    do {
        g_assert_cmpint(vg_now_ns(), <, until);
        g_usleep(1000);
        alive[0] = is_alive(r, 0);
        alive[1] = is_alive(r, 1);
        g_assert_true(alive[0] || alive[1]);
    } while (alive[0] == alive[1]);
    return alive[1];
}

/* Nothing is done twice, and what is not done has failed with the right status. */
static void check_counts(struct rivals *r)
{
    const uint64_t *counter = (const void *)VG_MR_HOST(r->p.s[0].mr, 0);
    const uint64_t *was = (const void *)VG_MR_HOST(r->p.s[1].mr, 0);
    struct pvrdma_cqe c;

    for (unsigned i = r->good; i < r->posted; i++) {
        g_assert_true(vg_cq_wait(r->p.s[1].scq, &c, 2 * VGT_WAIT_MS));
        g_assert_cmpuint(c.wr_id, ==, i);
        if (c.status == PVRDMA_WC_SUCCESS) {
            g_assert_cmpuint(r->good, ==, i); /* behind a failure nothing succeeds */
            g_assert_cmpuint(was[i], ==, was[0] + i); /* all at one place */
            r->good++;
        } else {
            g_assert_true(c.status == PVRDMA_WC_WR_FLUSH_ERR ||
                          (c.status == PVRDMA_WC_RETRY_EXC_ERR && r->good == i));
        }
    }
    if (r->good == r->posted) {
        g_assert_cmpuint(*counter, ==, was[0] + r->good);
    } else {
        g_assert_cmpuint(*counter, >=, r->good);
        g_assert_cmpuint(vg_qp_state(r->p.s[1].qp), ==, PVRDMA_QPS_ERR);
    }
}

/* Of the one that goes on all works; the other's administrator can see what has been. */
static void end(struct rivals *r, unsigned on)
{
    struct vguest *g = r->p.s[0].g;
    g_autofree char *text = NULL;

    g_autofree char *words =
        g_strdup_printf("vm%u: 10.0.0.1: host host%u runs another", r->at[1 - on].vm, on);

    if (r->err[1 - on] <= 0) {
        host_wait_logged(host[1 - on], words);
    }
    g_assert_cmpint(
        vg_ctl(host[1 - on], &text, "--json vm migrate-status vm%u", r->at[1 - on].vm),
        ==, 0);
    g_assert_nonnull(
        strstr(text, r->err[1 - on] <= 0 ? "takes precedence" : "in use elsewhere"));
    vg_place_swap(g, &r->at[on]);
    vg_raise_all(g);
    vg_place_close(&r->at[on]);
    vg_place_close(&r->at[1 - on]);
    count(r);
    check_counts(r);
    if (r->good < r->posted) {
        vgt_pair_reconnect(&r->p, &conn);
    }
    vgt_write_once(&r->p, 2);
    vgt_complete(&r->p.s[1], 3, PVRDMA_WR_RDMA_WRITE, 0, 8, &r->p.s[0], 0);
    vgt_pair_close(&r->p);
}

/* ---- how the hosts hear of each other ---- */

static void three_rounds(unsigned rounds, unsigned *both_ran)
{
    unsigned went_on = 0;

    *both_ran = 0;
    for (unsigned i = 0; i < rounds; i++) {
        struct rivals r;

        begin(&r, host[2], host[2], i % N_VMS);
        count(&r);
        run_both(&r, i & 1);
        *both_ran += r.err[0] <= 0 && r.err[1] <= 0;
        count(&r);
        end(&r, one_goes_on(&r));
        went_on += r.good == r.posted;
    }
    g_test_message("%u of %u began in both places, in %u the connection went on",
                   *both_ran, rounds, went_on);
    hosts_stop(host, 3);
    vgt_daemon = NULL;
}

static void test_linked(void)
{
    const struct host_opts o = {.n_vms = N_VMS, .daemon_keys = "peer-timeout=30"};
    unsigned both_ran;

    hosts_start(host, 3, &o);
    three_rounds(10, &both_ran);
}

/* The two have never heard of each other; the third has links with both. */
static void begin_apart(void)
{
    g_autofree char *secret = host_secret_file(hosts_secret);
    g_autofree char *group = host_peer_group(2, secret, NULL);

    for (unsigned i = 0; i < 3; i++) {
        const struct host_opts o = {.n_vms = N_VMS,
                                    .n_peers = i == 2 ? 2 : 0,
                                    .groups = i == 2 ? NULL : group,
                                    .daemon_keys = "peer-timeout=30"};

        host[i] = host_start(i, &o);
    }
    for (unsigned i = 0; i < 2; i++) {
        host_wait_up(host[2], i, true);
        host_wait_up(host[i], 2, true);
    }
}

static void test_apart(void)
{
    unsigned both_ran;

    begin_apart();
    three_rounds(20, &both_ran);
    g_assert_cmpuint(both_ran, >, 0);
}

/*
 * The one that gives way has answered before: the other does not know of that, and the
 * connection fails.
 */
static void test_answered(void)
{
    begin_apart();
    for (unsigned i = 0; i < 4; i++) {
        struct rivals r;

        begin(&r, host[2], host[2], i);
        count(&r);
        vg_place_tell_to_run(&r.at[1]);
        hear_answer(&r, 1);
        g_assert_cmpint(r.err[1], ==, 0);
        for (; r.good < r.posted; r.good++) {
            vgt_expect(r.p.s[1].scq, r.good, PVRDMA_WC_SUCCESS);
        }
        vg_place_tell_to_run(&r.at[0]);
        hear_answer(&r, 0);
        g_assert_cmpint(r.err[0], ==, 0);
        g_assert_cmpuint(one_goes_on(&r), ==, 0);
        end(&r, 0);
        g_assert_cmpuint(r.good, ==, COUNTS);
    }
    hosts_stop(host, 3);
    vgt_daemon = NULL;
}

static void cut(bool on)
{
    relay_cut(relay, on);
    host_wait_up(host[0], 1, !on);
    host_wait_up(host[1], 0, !on);
}

/* Their link is away while they begin; guest 0 comes from one of them. */
static void test_later(void)
{
    const struct host_opts o = {.n_vms = N_VMS, .daemon_keys = "peer-timeout=30"};

    relay = relay_hosts(host, &(struct relay_opts){0}, &o);
    for (unsigned i = 0; i < 6; i++) {
        struct rivals r;
        unsigned on;

        cut(false);
        begin(&r, host[i & 1], host[0], 2 + i);
        count(&r);
        cut(true);
        run_both(&r, i >> 1 & 1);
        g_assert_cmpint(r.err[0], ==, 0);
        g_assert_cmpint(r.err[1], ==, 0);
        g_usleep(20000);
        g_assert_true(is_alive(&r, 0) && is_alive(&r, 1));
        count(&r);
        cut(false);
        on = one_goes_on(&r);
        g_assert_cmpuint(on, ==, 0); /* by its name */
        end(&r, on);
    }
    relay_hosts_stop(relay, host);
    vgt_daemon = NULL;
}

int main(int argc, char **argv)
{
    vgt_init(&argc, &argv, 240);
    g_test_add_func("/duplicates/linked", test_linked);
    g_test_add_func("/duplicates/apart", test_apart);
    g_test_add_func("/duplicates/answered", test_answered);
    g_test_add_func("/duplicates/later", test_later);
    return vgt_run();
}
