/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: connections between hosts whose network and peers fail.  SENDs
 * that are stamped with their number and additions to a counter arrive exactly once and
 * in order, or the queue pair fails with the right status; those of UC once at most.
 */
#include "relay.h"

#include <signal.h>
#include <string.h>

#define DEPTH 8u

static struct vg_daemon *host[2];
static struct relay *relay;

static void begin(const struct relay_opts *r)
{
    const struct host_opts o = {
        .n_vms = 2, .daemon_keys = "peer-timeout=30", .vm_keys = "addresses=any"};

    relay = relay_start(r);
    for (unsigned i = 0; i < 2; i++) {
        host[i] = relay_host(i, o);
    }
    host_wait_up(host[0], 1, true);
    host_wait_up(host[1], 0, true);
    vgt_daemon = host[0];
}

static void end(void)
{
    for (unsigned i = 0; i < 2; i++) {
        vg_daemon_stop(host[i]);
    }
    relay_stop(relay);
    vgt_daemon = NULL;
}

/* Side 0 is VM 0 of host 0, side 1 VM 1 of host 1. */
static struct vgt_opts between(void)
{
    return (struct vgt_opts){.guest = {{.db = VG_DB_EXT}, {.db = VG_DB_EXT}},
                             .daemon = {host[0], host[1]},
                             .conn = {.timeout = 17, .retry_cnt = 7}};
}

static void open_pair(struct vgt_pair *p, const struct vg_conn *c)
{
    struct vgt_opts o = between();

    o.conn = c ? *c : o.conn;
    vgt_pair_open(p, 0, 1, &o);
}

/* Message @k: a SEND with its stamp, and an addition. */
static void post(struct vgt_pair *p, uint64_t k)
{
    uint64_t at = 65536 + k % DEPTH * 8192;
    uint32_t len = (uint32_t)(k * 7919 % 5000);
    struct pvrdma_sge sge = vg_sge(p->s[0].mr, k % DEPTH * 8, 8);
    struct vg_wr wr = {.wr_id = k,
                       .opcode = PVRDMA_WR_ATOMIC_FETCH_AND_ADD,
                       .flags = VGT_SIG,
                       .remote_addr = p->s[1].mr->buf->va,
                       .rkey = p->s[1].mr->rkey,
                       .compare_add = 1,
                       .nsge = 1,
                       .sge = &sge};

    vgt_fill(VG_MR_HOST(p->s[0].mr, at), len, k);
    vgt_recv(&p->s[1], k, at, 8192);
    vgt_send(&p->s[0], k, PVRDMA_WR_SEND, VGT_SIG, at, len, NULL, 0);
    g_assert_cmpuint(vg_post_send(p->s[0].qp, &wr, 1), ==, 1);
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

/* UC: what arrives is whole and in order, and comes once; the rest is nobody's. */
static void test_lossy(void)
{
    unsigned want = vgt_rounds(50);
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

static void test_resets(void)
{
    unsigned want = vgt_rounds(200);
    struct vgt_pair p;
    uint64_t k = 0;

    begin(&(struct relay_opts){.reset_after = 100000});
    open_pair(&p, NULL);
    while (relay_resets(relay) < want) {
        run(&p, &k, k + 100);
    }
    g_test_message("%" PRIu64 " messages, %u resets", k, relay_resets(relay));
    vgt_expect_none(p.s[1].rcq, 50);
    vgt_pair_close(&p);
    end();
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

/* Nothing comes for a second: it goes on, if the queue pair has that much patience. */
static void stands_still(const struct vg_conn *c, void (*still)(bool on), bool fails)
{
    struct vgt_pair p;
    uint64_t k = 0;

    begin(&(struct relay_opts){0});
    open_pair(&p, c);
    run(&p, &k, 50);
    still(true);
    if (fails) {
        post(&p, k);
        vgt_expect(p.s[0].scq, k, PVRDMA_WC_RETRY_EXC_ERR);
        vgt_expect(p.s[0].scq, k, PVRDMA_WC_WR_FLUSH_ERR);
        still(false);
    } else {
        for (uint64_t i = k; i < k + DEPTH; i++) {
            post(&p, i);
        }
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

/* The other VM goes, or its queue pair, while messages are under way. */
static void test_gone(void)
{
    begin(&(struct relay_opts){0});
    for (unsigned how = 0; how < 3; how++) {
        struct vgt_pair p;
        uint64_t k = 0;

        open_pair(&p, &impatient);
        run(&p, &k, 50);
        for (unsigned i = 0; i < DEPTH; i++) {
            vgt_send(&p.s[0], i, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 1 << 20, &p.s[1], 0);
        }
        switch (how) {
        case 0:
            g_assert_cmpint(vg_qp_to_state(p.s[1].qp, PVRDMA_QPS_ERR), ==, 0);
            break;
        case 1:
            g_assert_cmpint(vg_qp_to_reset(p.s[1].qp), ==, 0);
            break;
        default:
            vg_disconnect(p.s[1].g);
            break;
        }
        for (unsigned i = 0, failed = 0; i < DEPTH; i++) {
            struct pvrdma_cqe c;

            g_assert_true(vg_cq_wait(p.s[0].scq, &c, VGT_WAIT_MS));
            g_assert_cmpuint(c.wr_id, ==, i);
            g_assert_true(failed ? c.status == PVRDMA_WC_WR_FLUSH_ERR
                                 : c.status == PVRDMA_WC_SUCCESS ||
                                       c.status == PVRDMA_WC_RETRY_EXC_ERR);
            failed |= c.status != PVRDMA_WC_SUCCESS;
        }
        vgt_pair_close(&p);
    }
    end();
}

/* The other daemon is killed, and another one takes its place. */
static void test_killed(void)
{
    const struct host_opts o = {
        .n_vms = 2, .daemon_keys = "peer-timeout=2", .vm_keys = "addresses=any"};
    struct vgt_pair p;
    uint64_t k = 0;

    begin(&(struct relay_opts){0});
    open_pair(&p, &impatient);
    run(&p, &k, 50);
    post(&p, k);
    check(&p, k++);
    vg_daemon_kill(host[1]);
    vgt_send(&p.s[0], 1, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p.s[1], 0);
    vgt_expect(p.s[0].scq, 1, PVRDMA_WC_RETRY_EXC_ERR);
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
    g_test_add_func("/hosts-faults/lossy", test_lossy);
    g_test_add_func("/hosts-faults/pieces", test_pieces);
    g_test_add_func("/hosts-faults/slow", test_slow);
    g_test_add_func("/hosts-faults/stalled", test_stalled);
    g_test_add_func("/hosts-faults/cut", test_cut);
    g_test_add_func("/hosts-faults/stopped", test_stopped);
    g_test_add_func("/hosts-faults/gone", test_gone);
    g_test_add_func("/hosts-faults/killed", test_killed);
    return vgt_run();
}
