/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: connections between hosts whose network and peers fail.  SENDs
 * that are stamped with their number and additions to a counter arrive exactly once and
 * in order, or the queue pair fails with the right status, and what is known of the last
 * ones is true; those of UC once at most.
 */
#include "relay.h"

#include <signal.h>
#include <string.h>

#define DEPTH 8u

static struct vg_daemon *host[2];
static struct relay *relay;

static void begin_with(const struct relay_opts *r, const char *daemon_keys)
{
    const struct host_opts o = {.n_vms = 2, .daemon_keys = daemon_keys};

    relay = relay_hosts(host, r, &o);
    vgt_daemon = host[0];
}

static void begin(const struct relay_opts *r)
{
    begin_with(r, "peer-timeout=30");
}

static void end(void)
{
    relay_hosts_stop(relay, host);
    vgt_daemon = NULL;
}

/* Side 0 is VM 0 of host 0, side 1 VM 1 of host 1. */
static struct vgt_opts between(void)
{
    return (struct vgt_opts){.guest = {{.db = VG_DB_EXT}, {.db = VG_DB_EXT}},
                             .daemon = {host[0], host[1]},
                             .conn = {.timeout = 17, .retry_cnt = 7}};
}

/* What is in between, that what is behind it has to wait. */
#define BULK    UINT64_MAX
#define BULK_AT (65536 + DEPTH * 8192)

/* With VGUEST_PATH rnic, by a channel: messages go until it does. */
static void await_channel(struct vgt_pair *p)
{
    int64_t until = vg_now_ns() + VGT_WAIT_MS * 1000000ll;

    while (!g_strcmp0(g_getenv("VGUEST_PATH"), "rnic") &&
           !host_qp_by(p->s[0].qp, "rnic")) {
        g_assert_cmpint(vg_now_ns(), <, until);
        vgt_complete(&p->s[0], BULK, PVRDMA_WR_RDMA_WRITE, BULK_AT, 8, &p->s[1], BULK_AT);
    }
}

static void open_pair(struct vgt_pair *p, const struct vg_conn *c)
{
    struct vgt_opts o = between();

    o.conn = c ? *c : o.conn;
    vgt_pair_open(p, 0, 1, &o);
    await_channel(p);
}

static void post_recv(struct vgt_pair *p, uint64_t k)
{
    vgt_recv(&p->s[1], k, 65536 + k % DEPTH * 8192, 8192);
}

/* Message @k: a SEND with its stamp, and an addition. */
static void post_send(struct vgt_pair *p, uint64_t k)
{
    uint64_t at = 65536 + k % DEPTH * 8192;
    uint32_t len = (uint32_t)(k * 7919 % 5000);

    vgt_fill(VG_MR_HOST(p->s[0].mr, at), len, k);
    vgt_send(&p->s[0], k, PVRDMA_WR_SEND, VGT_SIG, at, len, NULL, 0);
    vgt_count(&p->s[0], k, k % DEPTH * 8, &p->s[1]);
}

static void post(struct vgt_pair *p, uint64_t k)
{
    post_recv(p, k);
    post_send(p, k);
}

static void check(struct vgt_pair *p, uint64_t k)
{
    uint64_t at = 65536 + k % DEPTH * 8192, value;
    uint32_t len = (uint32_t)(k * 7919 % 5000);
    struct pvrdma_cqe c = vgt_expect(p->s[1].rcq, k, PVRDMA_WC_SUCCESS);

    g_assert_cmpuint(c.byte_len, ==, len);
    vgt_check(VG_MR_HOST(p->s[1].mr, at), len, k);
    vgt_expect(p->s[0].scq, k, PVRDMA_WC_SUCCESS);
    vgt_expect(p->s[0].scq, k, PVRDMA_WC_SUCCESS);
    memcpy(&value, VG_MR_HOST(p->s[0].mr, k % DEPTH * 8), 8);
    g_assert_cmpuint(value, ==, k);
}

/* Messages from @*k to @to. */
static void run(struct vgt_pair *p, uint64_t *k, uint64_t to)
{
    uint64_t posted = *k;

    for (; *k < to; ++*k) {
        while (posted < to && posted < *k + DEPTH) {
            post(p, posted++);
        }
        check(p, *k);
    }
    g_assert_cmpmem(VG_MR_HOST(p->s[1].mr, 0), 8, k, 8);
}

/* A completion in the order of those that were posted; true: it was done. */
static bool came_of_it(const struct pvrdma_cqe *c, bool *failed)
{
    if (*failed) {
        g_assert_cmpuint(c->status, ==, PVRDMA_WC_WR_FLUSH_ERR);
    } else if (c->status != PVRDMA_WC_SUCCESS) {
        g_assert_cmpuint(c->status, ==, PVRDMA_WC_RETRY_EXC_ERR);
        *failed = true;
    }
    return !*failed;
}

/*
 * The queue pair fails for one of the messages from @base to @to, with RETRY_EXC_ERR.
 * What was done for side 0 was done at side 1, nothing was done there twice or out of
 * order, and how far it came both receives and counter say.  @alive: side 1 can still be
 * asked for all its completions; else those of its last moments may be missing.
 */
static void reckon(struct vgt_pair *p, uint64_t base, uint64_t to, bool alive)
{
    uint64_t n = 2 * (to - base), done = 0, came = base, counter, value;
    struct pvrdma_cqe c;
    bool failed = false, flushed = false;

    for (uint64_t i = 0; i < n;) {
        g_assert_true(vg_cq_wait(p->s[0].scq, &c, VGT_WAIT_MS));
        if (c.wr_id == BULK) {
            came_of_it(&c, &failed);
            continue;
        }
        g_assert_cmpuint(c.wr_id, ==, base + i / 2);
        done += came_of_it(&c, &failed);
        if (i++ % 2 && !failed) {
            memcpy(&value, VG_MR_HOST(p->s[0].mr, c.wr_id % DEPTH * 8), 8);
            g_assert_cmpuint(value, ==, c.wr_id);
        }
    }
    g_assert_true(failed);
    if (alive) { /* from then on nothing is done there, and each receive has come back */
        vg_qp_to_state(p->s[1].qp, PVRDMA_QPS_ERR);
    }
    for (uint64_t i = base; i < to; i++) {
        if (alive) {
            g_assert_true(vg_cq_wait(p->s[1].rcq, &c, VGT_WAIT_MS));
        } else if (vg_cq_poll(p->s[1].rcq, &c, 1) != 1) {
            break;
        }
        g_assert_cmpuint(c.wr_id, ==, i);
        flushed |= c.status == PVRDMA_WC_WR_FLUSH_ERR;
        if (!flushed) {
            uint64_t at = 65536 + i % DEPTH * 8192;

            g_assert_cmpuint(c.status, ==, PVRDMA_WC_SUCCESS);
            g_assert_cmpuint(c.byte_len, ==, (uint32_t)(i * 7919 % 5000));
            vgt_check(VG_MR_HOST(p->s[1].mr, at), c.byte_len, i);
            came++;
        } else {
            g_assert_cmpuint(c.status, ==, PVRDMA_WC_WR_FLUSH_ERR);
        }
    }
    memcpy(&counter, VG_MR_HOST(p->s[1].mr, 0), 8);
    g_test_message("%" PRIu64 " of %" PRIu64 " were done; %" PRIu64
                   " messages came, and %" PRIu64 " additions",
                   done, n, came - base, counter - base);
    g_assert_cmpuint(came, >=, base + (done + 1) / 2);
    g_assert_cmpuint(counter, >=, base + done / 2);
    g_assert_cmpuint(counter, <=, to);
    g_assert_cmpuint(counter + 1, >=, came); /* they take turns */
    g_assert_true(!alive || counter <= came);
}

/* UC: what arrives is whole and in order, and comes once; the rest is nobody's. */
static void test_lossy(void)
{
    unsigned want = vgt_rounds(25);
    struct vgt_opts o;
    struct vgt_pair p;
    struct pvrdma_cqe c;
    uint64_t sent = 0, got = 0, next = 0;

    begin(&(struct relay_opts){.reset_after = 100000});
    o = between();
    o.qp.type = PVRDMA_QPT_UC;
    vgt_pair_open(&p, 0, 1, &o);
    for (unsigned i = 0; i < DEPTH; i++) {
        vgt_recv(&p.s[1], i, 65536 + i * 8192, 8192);
    }
    while (relay_resets(relay) < want || got < want) {
        uint32_t len = (uint32_t)(sent * 7919 % 5000);

        vgt_fill(VG_MR_HOST(p.s[0].mr, 0), len, sent);
        vgt_send(&p.s[0], sent, PVRDMA_WR_SEND_WITH_IMM, VGT_SIG, 0, len, NULL, 0);
        vgt_expect(p.s[0].scq, sent++, PVRDMA_WC_SUCCESS);
        while (vg_cq_poll(p.s[1].rcq, &c, 1)) {
            uint64_t at = 65536 + c.wr_id * 8192,
                     k = c.imm_data - 0x01020304u; /* vgt_send() */

            g_assert_cmpuint(c.status, ==, PVRDMA_WC_SUCCESS);
            g_assert_cmpuint(k, >=, next);
            g_assert_cmpuint(k, <, sent);
            g_assert_cmpuint(c.byte_len, ==, k * 7919 % 5000);
            vgt_check(VG_MR_HOST(p.s[1].mr, at), c.byte_len, k);
            vgt_recv(&p.s[1], c.wr_id, at, 8192);
            next = k + 1;
            got++;
        }
    }
    g_assert_cmpuint(vg_qp_state(p.s[0].qp), ==, PVRDMA_QPS_RTS);
    g_assert_cmpuint(vg_qp_state(p.s[1].qp), ==, PVRDMA_QPS_RTS);
    g_test_message("%" PRIu64 " of %" PRIu64 " messages, %u resets", got, sent,
                   relay_resets(relay));
    vgt_pair_close(&p);
    end();
}

static void resets(const struct relay_opts *r, const struct vg_conn *conn, unsigned want)
{
    struct vgt_pair p;
    uint64_t k = 0;

    begin(r);
    open_pair(&p, conn);
    while (relay_resets(relay) < want) {
        run(&p, &k, k + 100);
    }
    g_test_message("%" PRIu64 " messages, %u resets, %u closed", k, relay_resets(relay),
                   relay_closes(relay));
    vgt_expect_none(p.s[1].rcq, 50);
    vgt_pair_close(&p);
    end();
}

static void test_resets(void)
{
    resets(&(struct relay_opts){.reset_after = 100000}, NULL, vgt_rounds(200));
}

/*
 * Every second one in the startup frames, which are some 100 bytes each way, or with the
 * first message.  A try that nothing came of costs a timeout; so the others live for
 * longer than what is posted at a time takes.
 */
static void test_early_resets(void)
{
    const struct vg_conn c = {.timeout = 14, .retry_cnt = 7};

    resets(&(struct relay_opts){.reset_after = 100000, .reset_early = 400}, &c,
           vgt_rounds(25));
}

/* Reads and writes of a few bytes: frames are cut anywhere. */
static void test_pieces(void)
{
    struct vgt_traffic t;
    struct vgt_opts o;

    begin(&(struct relay_opts){.chunk = 700});
    o = between();
    o.conn.timeout = 21; /* 8.6 s */
    vgt_traffic_open(&t, 0, 1, 2, 4, 3000, &o);
    vgt_traffic_run(&t, vgt_rounds(200));
    vgt_traffic_close(&t);
    end();
}

/* One that reads slowly: all buffers are full, and the daemon's bounded. */
static void test_slow(void)
{
    struct vg_usage before, after;
    struct vgt_traffic t;
    struct vgt_opts o;

    begin(&(struct relay_opts){.chunk = 16384, .buffer = 8192, .pause_us = 200});
    o = between();
    o.conn.timeout = 21; /* 8.6 s */
    vgt_traffic_open(&t, 0, 1, 2, 8, 60000, &o);
    vgt_traffic_run(&t, 4);
    vg_daemon_usage(host[0], &before);
    vgt_traffic_run(&t, vgt_rounds(30));
    vg_daemon_usage(host[0], &after);
    g_test_message("%ld KiB before, %ld KiB after", before.rss_anon_kib,
                   after.rss_anon_kib);
    if (VGT_PLAIN_BUILD) {
        g_assert_cmpint(after.rss_anon_kib - before.rss_anon_kib, <, 4096);
    }
    vgt_traffic_close(&t);
    end();
}

static void wait_failed(const struct vgt_pair *p)
{
    vgt_await(vg_qp_state(p->s[0].qp) == PVRDMA_QPS_ERR);
}

/* Nothing comes for a second: it goes on, if the queue pair has that much patience. */
static void stands_still(const struct vg_conn *c, void (*still)(bool on), bool fails)
{
    struct vgt_pair p;
    uint64_t k = 0;

    begin(&(struct relay_opts){0});
    open_pair(&p, c);
    run(&p, &k, 50);
    await_channel(&p);
    for (uint64_t i = k; i < k + DEPTH; i++) {
        if (i == k + DEPTH / 2) {
            still(true);
        }
        post(&p, i);
    }
    if (fails) {
        wait_failed(&p);
        still(false);
        reckon(&p, k, k + DEPTH, true);
    } else {
        g_usleep(1200000);
        still(false);
        for (; k < 50 + DEPTH; k++) {
            check(&p, k);
        }
        run(&p, &k, 150);
    }
    vgt_pair_close(&p);
    end();
}

static void stall(bool on)
{
    relay_stall(relay, on);
}

static void cut(bool on)
{
    relay_cut(relay, on);
}

static void stop_peer(bool on)
{
    g_assert_cmpint(kill(host[1]->pid, on ? SIGSTOP : SIGCONT), ==, 0);
    g_usleep(100000); /* until each of its threads stands */
}

static const struct vg_conn patient = {.timeout = 19, .retry_cnt = 7};
static const struct vg_conn impatient = {.timeout = 14, .retry_cnt = 1};

static void test_stalled(void)
{
    stands_still(&patient, stall, false);
    stands_still(&impatient, stall, true);
}

static void test_cut(void)
{
    stands_still(&patient, cut, false);
    stands_still(&impatient, cut, true);
}

static void test_stopped(void)
{
    stands_still(&patient, stop_peer, false);
    stands_still(&impatient, stop_peer, true);
}

/* It stands still for longer than its link lives.  Both come back, and all goes on. */
static void test_stopped_long(void)
{
    const struct vg_conn c = {.timeout = 20, .retry_cnt = 7}; /* 34 s */
    struct vgt_pair p;
    uint64_t k = 0;
    int64_t until;

    begin_with(&(struct relay_opts){0}, "peer-timeout=2");
    open_pair(&p, &c);
    run(&p, &k, 50);
    for (uint64_t i = k; i < k + DEPTH; i++) {
        if (i == k + DEPTH / 2) {
            stop_peer(true);
        }
        post(&p, i);
    }
    until = vg_now_ns() + 4000000000ll;
    host_wait_up(host[0], 1, false);
    g_usleep((gulong)(MAX(until - vg_now_ns(), 0) / 1000));
    stop_peer(false);
    host_wait_up(host[0], 1, true);
    host_wait_up(host[1], 0, true);
    for (; k < 50 + DEPTH; k++) {
        check(&p, k);
    }
    run(&p, &k, 150);
    vgt_expect_none(p.s[1].rcq, 50);
    vgt_pair_close(&p);
    end();
}

/* ---- what `pvrdmactl qp list` says ---- */

/* Side 0's connection, and how many bytes of it are in flight. */
static char *listed(const struct vgt_pair *p, int64_t *bytes)
{
    g_autoptr(JsonNode) list = vg_ctl_json(host[0], "qp list vm0");
    JsonObject *row = vg_qp_row(list, p->s[0].qp->handle);

    g_assert_cmpstr(json_object_get_string_member(row, "transport"), ==, "tcp");
    g_assert_cmpstr(json_object_get_string_member(row, "host"), ==, "host1");
    *bytes = json_object_get_int_member(row, "in_flight_bytes");
    return g_strdup(json_object_get_string_member(row, "connection"));
}

/* ... at last. */
static void wait_listed(const struct vgt_pair *p, const char *state, int64_t bytes)
{
    int64_t until = vg_now_ns() + VGT_WAIT_MS * 1000000ll;

    for (;;) {
        int64_t got = -1;
        g_autofree char *text = listed(p, &got);

        if (strcmp(text, state) == 0 && got == bytes) {
            return;
        }
        if (vg_now_ns() > until) {
            g_error("%s, %" PRId64 " bytes; not %s, %" PRId64, text, got, state, bytes);
        }
        g_usleep(5000);
    }
}

/* What is on its way, to the byte: it stands in the relay, or in the sockets. */
static void test_in_flight(void)
{
    static const uint32_t len[] = {1000, 0, 4097, 1, 100000};
    const struct vg_conn c = {.timeout = 21, .retry_cnt = 7};
    struct vgt_pair p;
    int64_t sum = 0;
    uint64_t k = 0;

    begin(&(struct relay_opts){0});
    open_pair(&p, &c);
    run(&p, &k, 8);
    wait_listed(&p, "up", 0);
    relay_stall(relay, true);
    for (unsigned i = 0; i < G_N_ELEMENTS(len); i++) {
        sum += len[i];
        vgt_send(&p.s[0], i, PVRDMA_WR_RDMA_WRITE, VGT_SIG, BULK_AT, len[i], &p.s[1],
                 BULK_AT);
        wait_listed(&p, "up", sum);
    }
    vgt_send(&p.s[0], 9, PVRDMA_WR_RDMA_READ, VGT_SIG, BULK_AT, 5000, &p.s[1], BULK_AT);
    wait_listed(&p, "up", sum + 5000);
    relay_stall(relay, false);
    for (unsigned i = 0; i < G_N_ELEMENTS(len); i++) {
        vgt_expect(p.s[0].scq, i, PVRDMA_WC_SUCCESS);
    }
    vgt_expect(p.s[0].scq, 9, PVRDMA_WC_SUCCESS);
    wait_listed(&p, "up", 0);
    vgt_pair_close(&p);
    end();
}

/*
 * Without a connection one is wanted for 300 ms, and down for its queue pair's timeout,
 * as often as that tries: both are seen, if not with the first queue pair.
 */
static void test_connection_states(void)
{
    const struct vg_conn c = {.timeout = 17, .retry_cnt = 7};
    bool wanted = false, down = false;
    struct vgt_pair p;
    uint64_t k = 0;

    begin(&(struct relay_opts){0});
    open_pair(&p, &c);
    run(&p, &k, 8);
    wait_listed(&p, "up", 0);
    relay_stall(relay, true); /* of those to come, too: MPA's Reply does not come back */
    relay_cut(relay, true);
    relay_cut(relay, false);
    for (unsigned round = 0; !(wanted && down); round++) {
        g_assert_cmpuint(round, <, 10);
        vgt_pair_reconnect(&p, &c);
        vgt_send(&p.s[0], 1, PVRDMA_WR_RDMA_WRITE, VGT_SIG, BULK_AT, 8, &p.s[1], BULK_AT);
        while (!(wanted && down) && vg_qp_state(p.s[0].qp) == PVRDMA_QPS_RTS) {
            int64_t bytes = -1;
            g_autofree char *text = listed(&p, &bytes);

            g_assert_cmpstr(text, !=, "up");
            g_assert_cmpint(bytes, ==, 0);
            wanted |= strcmp(text, "wanted") == 0;
            down |= strcmp(text, "down") == 0;
        }
    }
    relay_stall(relay, false);
    vgt_pair_reconnect(&p, &c);
    vgt_write_once(&p, 2);
    wait_listed(&p, "up", 0);
    vgt_pair_close(&p);
    end();
}

/* ---- for good ---- */

/* Its VMM has gone, and the daemon knows. */
static void wait_left(const struct vg_daemon *d, const char *vm)
{
    int64_t until = vg_now_ns() + VGT_WAIT_MS * 1000000ll;
    bool attached = true;

    while (attached) {
        JsonNode *status = vg_daemon_status(d);

        attached = json_object_get_boolean_member(vg_status_vm(status, vm), "attached");
        json_node_unref(status);
        g_assert_cmpint(vg_now_ns(), <, until);
    }
}

/* The other VM goes, or its queue pair, while messages are under way. */
static void test_gone(void)
{
    begin(&(struct relay_opts){0});
    for (unsigned how = 0; how < 3; how++) {
        struct vgt_pair p;
        uint64_t k = 0;

        open_pair(&p, &impatient);
        run(&p, &k, 50);
        await_channel(&p);
        for (uint64_t i = k; i < k + DEPTH; i++) {
            post_recv(&p, i);
        }
        for (uint64_t i = k; i < k + DEPTH - 1; i++) {
            if (i == k + DEPTH / 2) {
                vgt_send(&p.s[0], BULK, PVRDMA_WR_RDMA_WRITE, 0, BULK_AT,
                         (1u << 20) - BULK_AT, &p.s[1], BULK_AT);
            }
            post_send(&p, i);
        }
        switch (how) {
        case 0:
            vg_qp_to_state(p.s[1].qp, PVRDMA_QPS_ERR);
            break;
        case 1:
            vg_qp_to_reset(p.s[1].qp);
            break;
        default:
            vg_disconnect(p.s[1].g);
            wait_left(host[1], "vm1");
            break;
        }
        post_send(&p, k + DEPTH - 1); /* one for which it is too late */
        reckon(&p, k, k + DEPTH, how == 0);
        vgt_pair_close(&p);
    }
    end();
}

/* The other daemon is killed, and another one takes its place. */
static void test_killed(void)
{
    const struct host_opts o = {.n_vms = 2, .daemon_keys = "peer-timeout=2"};
    struct vgt_pair p;
    uint64_t k = 0;

    begin(&(struct relay_opts){0});
    open_pair(&p, &impatient);
    run(&p, &k, 50);
    await_channel(&p);
    for (uint64_t i = k; i < k + DEPTH; i++) {
        post_recv(&p, i);
    }
    for (uint64_t i = k; i < k + DEPTH; i++) {
        if (i == k + DEPTH / 2) {
            vg_daemon_kill(host[1]);
        }
        post_send(&p, i);
    }
    reckon(&p, k, k + DEPTH, false);
    vg_disconnect(p.s[1].g);
    vgt_pair_close(&p);
    host[1] = relay_host(1, o);
    host_wait_up(host[0], 1, true);
    open_pair(&p, NULL);
    k = 0;
    run(&p, &k, 50);
    vgt_pair_close(&p);
    end();
}

int main(int argc, char **argv)
{
    vgt_init(&argc, &argv, 240);
    g_test_add_func("/hosts-faults/resets", test_resets);
    g_test_add_func("/hosts-faults/early-resets", test_early_resets);
    g_test_add_func("/hosts-faults/lossy", test_lossy);
    g_test_add_func("/hosts-faults/pieces", test_pieces);
    g_test_add_func("/hosts-faults/slow", test_slow);
    g_test_add_func("/hosts-faults/stalled", test_stalled);
    g_test_add_func("/hosts-faults/cut", test_cut);
    g_test_add_func("/hosts-faults/stopped", test_stopped);
    g_test_add_func("/hosts-faults/stopped-long", test_stopped_long);
    g_test_add_func("/hosts-faults/in-flight", test_in_flight);
    g_test_add_func("/hosts-faults/connection-states", test_connection_states);
    g_test_add_func("/hosts-faults/gone", test_gone);
    g_test_add_func("/hosts-faults/killed", test_killed);
    return vgt_run();
}
