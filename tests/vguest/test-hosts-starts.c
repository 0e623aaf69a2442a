/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: connections between hosts are reset, or closed, while they start: at the
 * SYN, and before, in and behind each of MPA's startup frames and the first frame behind
 * them.  Queue pairs come up in the end, and each of their messages is done once and in
 * order (vgt_traffic).  What never starts uses up a queue pair's tries no faster than its
 * timeout says.
 */
#include "relay.h"

#include "transport/iwarp/wire/mpa.h"
#include "transport/iwarp/wire/private_data.h"

#define N_QPS 16u
#define DEPTH 4u
/* Request and Reply are of one length. */
#define START (MPA_HEADER + MPA_ENHANCED + HELLO_SIZE)

/* Eight tries of 0.5 s each; four of 0.27 s. */
static const struct vg_conn patient = {.timeout = 17, .retry_cnt = 7, .rnr_retry = 7};
static const struct vg_conn impatient = {.timeout = 16, .retry_cnt = 3, .rnr_retry = 7};

static const struct point {
    const char *name;
    struct relay_start_cut cut;
    unsigned n_qps; /* 0: N_QPS */
} points[] = {
    {"accepted", {false, 0, RELAY_BOTH}},
    {"request", {false, START / 2, RELAY_BOTH}},
    {"request-end", {false, START - 1, RELAY_BOTH}},
    {"no-reply", {true, 0, RELAY_BOTH}},
    {"reply", {true, START / 2, RELAY_BOTH}},
    {"reply-end", {true, START - 1, RELAY_BOTH}},
    {"no-frame", {false, START, RELAY_BOTH}},
    {"frame", {false, START + 10, RELAY_BOTH}},
    /* The responder waits for more, or believes that it is up. */
    {"request-unheard", {false, START / 2, RELAY_CALLER}, 6}, /* it keeps 64 for 5 s */
    {"no-reply-unheard", {true, 0, RELAY_CALLER}},
    {"reply-unheard", {true, START / 2, RELAY_CALLER}},
    {"no-frame-unheard", {false, START, RELAY_CALLER}},
};

static struct vg_daemon *host[2];
static struct relay *relay;

static void begin(void)
{
    const struct host_opts o = {.n_vms = 2, .daemon_keys = "peer-timeout=30"};

    relay = relay_hosts(host, &(struct relay_opts){0}, &o);
    vgt_daemon = host[0];
}

static void end(void)
{
    relay_hosts_stop(relay, host);
    vgt_daemon = NULL;
}

static struct vgt_opts between(const struct vg_conn *c)
{
    return (struct vgt_opts){.guest = {{.db = VG_DB_EXT}, {.db = VG_DB_EXT}},
                             .daemon = {host[0], host[1]},
                             .conn = *c};
}

/* Until so many more starts were cut. */
static void wait_cut(unsigned n)
{
    unsigned was = relay_starts_cut(relay);

    vgt_await(relay_starts_cut(relay) - was >= n);
}

/* New queue pairs, and then those that have lost their connections. */
static void test_point(gconstpointer opaque)
{
    const struct point *at = opaque;
    unsigned n_qps = at->n_qps ? at->n_qps : N_QPS;
    struct vgt_traffic t;
    struct vgt_opts o;

    begin();
    o = between(&patient);
    relay_cut_starts(relay, &at->cut);
    vgt_traffic_open(&t, 0, 1, n_qps, DEPTH, 3000, &o);
    vgt_traffic_push(&t, DEPTH);
    for (unsigned round = 0; round <= vgt_rounds(2); round++) {
        wait_cut(3 * n_qps / 2);
        relay_cut_starts(relay, NULL);
        vgt_traffic_run(&t, 2 * DEPTH);
        vgt_traffic_push(&t, DEPTH / 2); /* some of these are under way then */
        relay_cut_starts(relay, &at->cut);
        relay_reset(relay);
        vgt_traffic_push(&t, DEPTH / 2);
    }
    relay_cut_starts(relay, NULL);
    vgt_traffic_run(&t, 10);
    g_test_message("%u starts cut", relay_starts_cut(relay));
    vgt_traffic_close(&t);
    end();
}

/* Nobody listens for a second. */
static void test_refused(void)
{
    struct vgt_traffic t;
    struct vgt_opts o;

    begin();
    o = between(&patient);
    relay_refuse(relay, true);
    vgt_traffic_open(&t, 0, 1, N_QPS, DEPTH, 3000, &o);
    vgt_traffic_push(&t, 1);
    for (unsigned round = 0; round <= vgt_rounds(2); round++) {
        g_usleep(1000000);
        relay_refuse(relay, false);
        vgt_traffic_run(&t, 2 * DEPTH);
        vgt_traffic_push(&t, DEPTH / 2);
        relay_refuse(relay, true);
        relay_reset(relay);
        vgt_traffic_push(&t, DEPTH / 2);
    }
    relay_refuse(relay, false);
    vgt_traffic_run(&t, 10);
    vgt_traffic_close(&t);
    end();
}

/* Side @i, which sends, fails, and not before all its tries are over. */
static void gives_up(struct vgt_pair *p, unsigned i, const char *where)
{
    const double least = impatient.retry_cnt * 4096e-9 * (1 << impatient.timeout);
    int64_t begun;
    double took;

    vgt_pair_reconnect(p, &impatient);
    begun = vg_now_ns();
    vgt_send(&p->s[i], 1, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p->s[1 - i], 0);
    vgt_send(&p->s[i], 2, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p->s[1 - i], 0);
    vgt_expect(p->s[i].scq, 1, PVRDMA_WC_RETRY_EXC_ERR);
    vgt_expect(p->s[i].scq, 2, PVRDMA_WC_WR_FLUSH_ERR);
    took = (double)(vg_now_ns() - begun) / 1e9;
    g_test_message("%s, %s: %.2f s", where, i ? "responder" : "initiator", took);
    g_assert_cmpfloat(took, >, least);
}

static void test_never(void)
{
    struct vgt_opts o;
    struct vgt_pair p;

    begin();
    o = between(&impatient);
    vgt_pair_open(&p, 0, 1, &o);
    relay_refuse(relay, true);
    relay_reset(relay);
    for (unsigned i = 0; i < 2; i++) {
        gives_up(&p, i, "refused");
    }
    relay_refuse(relay, false);
    for (unsigned k = 0; k < G_N_ELEMENTS(points); k++) {
        relay_cut_starts(relay, &points[k].cut);
        relay_reset(relay);
        gives_up(&p, k % 2, points[k].name);
    }
    relay_cut_starts(relay, NULL);
    vgt_pair_reconnect(&p, &patient);
    vgt_write_once(&p, 3);
    vgt_pair_close(&p);
    end();
}

int main(int argc, char **argv)
{
    vgt_init(&argc, &argv, 360);
    for (unsigned i = 0; i < G_N_ELEMENTS(points); i++) {
        g_autofree char *path = g_strdup_printf("/hosts-starts/%s", points[i].name);

        g_test_add_data_func(path, &points[i], test_point);
    }
    g_test_add_func("/hosts-starts/refused", test_refused);
    g_test_add_func("/hosts-starts/never", test_never);
    return vgt_run();
}
