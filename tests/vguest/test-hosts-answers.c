/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: what messages between hosts wait for, and what waits for nothing.  A
 * completion waits for the other daemon, not for its kernel, which takes bytes as well
 * while the daemon stands still.  A SEND waits for a receive, and what was posted behind
 * it waits as well; but both daemons read on, so what is before it, what goes the other
 * way and what other queue pairs send does not.
 */
#include "relay.h"

#include <signal.h>
#include <string.h>

#define N_SENDS 16u
#define SLOT    70000u
#define TO      (2u << 20) /* where receives are */
#define ONE     (4u << 20) /* what READs and WRITEs use */
#define LARGE   (1u << 20)

static struct vg_daemon *host[2];
static struct relay *relay;
static struct vgt_pair pair;

static void begin(enum vgt_style style)
{
    /* Neither silence nor what is tried ends anything in here. */
    const struct vg_conn c = {.timeout = 22, .retry_cnt = 7, .min_rnr_timer = 31};
    const struct host_opts o = {.n_vms = 2, .daemon_keys = "peer-timeout=60"};
    struct vgt_opts opts = vgt_opts_of(GUINT_TO_POINTER(style));

    relay = relay_hosts(host, &(struct relay_opts){0}, &o);
    vgt_daemon = host[0];
    opts.daemon[0] = host[0];
    opts.daemon[1] = host[1];
    opts.conn = c;
    opts.mr_len = 8u << 20;
    /* Side 0: VM 0 of host 0; side 1: VM 1 of host 1. */
    vgt_pair_open(&pair, 0, 1, &opts);
}

static void end(void)
{
    vgt_pair_close(&pair);
    relay_hosts_stop(relay, host);
    vgt_daemon = NULL;
}

/* Of side @i's VM, by its own daemon. */
static int64_t counter(unsigned i, const char *name)
{
    int64_t n;

    vgt_daemon = host[i];
    n = vgt_counter(i ? "vm1" : "vm0", "datapath", name);
    vgt_daemon = host[0];
    return n;
}

static void wait_rnr(unsigned i)
{
    vgt_await(counter(i, "rnr_waits") != 0);
}

/* Nobody was silent and nothing failed. */
static void all_well(void)
{
    for (unsigned i = 0; i < 2; i++) {
        g_assert_cmpint(counter(i, "retries"), ==, 0);
        g_assert_cmpuint(vg_qp_state(pair.s[i].qp), ==, PVRDMA_QPS_RTS);
        vgt_expect_none(pair.s[i].scq, 0);
        vgt_expect_none(pair.s[i].rcq, 0);
    }
}

/* ---- a daemon that stands still ---- */

static void stop_peer(bool on)
{
    g_assert_cmpint(kill(host[1]->pid, on ? SIGSTOP : SIGCONT), ==, 0);
    g_usleep(100000); /* until each of its threads stands */
}

/* The kernel there takes all bytes, and acknowledges them to TCP. */
static void test_acknowledged(gconstpointer style)
{
    static const uint32_t opcode[] = {PVRDMA_WR_RDMA_WRITE, PVRDMA_WR_SEND};
    struct vgt_side *a = &pair.s[0], *b = &pair.s[1];

    begin((enum vgt_style)GPOINTER_TO_UINT(style));
    vgt_write_once(&pair, 1);
    for (unsigned i = 0; i < G_N_ELEMENTS(opcode); i++) {
        uint64_t carried;

        vgt_recv(b, i, TO, SLOT);
        vgt_fill(VG_MR_HOST(a->mr, 0), SLOT, i);
        stop_peer(true);
        carried = relay_carried(relay);
        vgt_send(a, i, opcode[i], VGT_SIG, 0, SLOT, b, ONE);
        vgt_await(relay_carried(relay) >= carried + SLOT);
        vgt_expect_none(a->scq, 200);
        stop_peer(false);
        vgt_expect(a->scq, i, PVRDMA_WC_SUCCESS);
        vgt_check(VG_MR_HOST(b->mr, i ? TO : ONE), SLOT, i);
        if (i == 0) { /* the WRITE has left its receive */
            vgt_complete(a, 9, PVRDMA_WR_SEND, 0, 0, NULL, 0);
        }
        vgt_expect(b->rcq, i, PVRDMA_WC_SUCCESS);
    }
    all_well();
    end();
}

/* ---- receives that are missing ---- */

static uint32_t len_of(unsigned k)
{
    return k % 2 ? SLOT - k : 8 + k;
}

static uint64_t seed_of(unsigned from, unsigned k)
{
    return 1000 * from + k;
}

static void post_sends(unsigned from)
{
    struct vgt_side *s = &pair.s[from];

    for (unsigned k = 0; k < N_SENDS; k++) {
        vgt_fill(VG_MR_HOST(s->mr, k * SLOT), len_of(k), seed_of(from, k));
        vgt_send(s, k, PVRDMA_WR_SEND, VGT_SIG, k * SLOT, len_of(k), NULL, 0);
    }
}

/* From one to the other by queue pairs of which neither waits. */
static void goes_on(struct vgt_side *a, struct vgt_side *b, uint64_t seed)
{
    vgt_fill(VG_MR_HOST(a->mr, ONE), LARGE, seed);
    vgt_complete(a, 1, PVRDMA_WR_RDMA_WRITE, ONE, LARGE, b, ONE + LARGE);
    vgt_check(VG_MR_HOST(b->mr, ONE + LARGE), LARGE, seed);
    memset(VG_MR_HOST(a->mr, ONE), 0, LARGE);
    vgt_complete(a, 2, PVRDMA_WR_RDMA_READ, ONE, LARGE, b, ONE + LARGE);
    vgt_check(VG_MR_HOST(a->mr, ONE), LARGE, seed);
}

/* Both ways by other queue pairs of the two VMs. */
static void others_go_on(struct vgt_side other[2])
{
    goes_on(&other[0], &other[1], 5);
    goes_on(&other[1], &other[0], 6);
}

static void test_no_receives(gconstpointer style)
{
    struct vgt_side *a = &pair.s[0], *b = &pair.s[1], other[2];

    begin((enum vgt_style)GPOINTER_TO_UINT(style));
    for (unsigned i = 0; i < 2; i++) {
        other[i] = pair.s[i];
        other[i].scq = vg_cq_new(other[i].pd, 16);
        other[i].qp = vg_qp_new(other[i].pd, other[i].scq, other[i].rcq,
                                &(struct vg_qp_opts){.send_wr = 16});
    }
    vg_qp_connect(other[0].qp, other[1].qp, &(struct vg_conn){.timeout = 22});

    /* One waits: the other way all goes on, by the same connection. */
    post_sends(0);
    wait_rnr(0);
    goes_on(b, a, 1);
    others_go_on(other);
    /* The other waits as well, with a READ before its SENDs; others still go on. */
    vgt_fill(VG_MR_HOST(a->mr, ONE), LARGE, 2);
    vgt_send(b, 99, PVRDMA_WR_RDMA_READ, VGT_SIG, ONE, LARGE, a, ONE);
    post_sends(1);
    vgt_expect(b->scq, 99, PVRDMA_WC_SUCCESS);
    vgt_check(VG_MR_HOST(b->mr, ONE), LARGE, 2);
    wait_rnr(1);
    others_go_on(other);
    /* What is behind waits, too, that all comes in order. */
    for (unsigned i = 0; i < 2; i++) {
        struct vgt_side *s = &pair.s[i];

        vgt_fill(VG_MR_HOST(s->mr, ONE), LARGE, 3 + i);
        vgt_send(s, 100, PVRDMA_WR_RDMA_WRITE, VGT_SIG, ONE, LARGE, &pair.s[1 - i],
                 ONE + LARGE);
        vgt_send(s, 101, PVRDMA_WR_RDMA_READ, VGT_SIG, ONE + 2 * LARGE, LARGE,
                 &pair.s[1 - i], ONE + LARGE);
    }
    for (unsigned i = 0; i < 2; i++) {
        vgt_expect_none(pair.s[i].scq, 50);
        vgt_expect_none(pair.s[i].rcq, 0);
    }

    for (unsigned i = 0; i < 2; i++) {
        for (unsigned k = 0; k < N_SENDS; k++) {
            vgt_recv(&pair.s[i], k, TO + k * SLOT, SLOT);
        }
    }
    for (unsigned i = 0; i < 2; i++) {
        struct vgt_side *s = &pair.s[i], *r = &pair.s[1 - i];

        for (unsigned k = 0; k < N_SENDS; k++) {
            g_assert_cmpuint(vgt_expect(r->rcq, k, PVRDMA_WC_SUCCESS).byte_len, ==,
                             len_of(k));
            vgt_check(VG_MR_HOST(r->mr, TO + k * SLOT), len_of(k), seed_of(i, k));
            vgt_expect(s->scq, k, PVRDMA_WC_SUCCESS);
        }
        vgt_expect(s->scq, 100, PVRDMA_WC_SUCCESS);
        vgt_expect(s->scq, 101, PVRDMA_WC_SUCCESS);
        vgt_check(VG_MR_HOST(s->mr, ONE + 2 * LARGE), LARGE, 3 + i);
    }
    others_go_on(other);
    all_well();
    for (unsigned i = 0; i < 2; i++) {
        g_assert_cmpuint(vg_qp_state(other[i].qp), ==, PVRDMA_QPS_RTS);
        vg_qp_free(other[i].qp);
        vg_cq_free(other[i].scq);
    }
    end();
}

int main(int argc, char **argv)
{
    static const struct vgt_both both[] = {
        {"acknowledged", test_acknowledged},
        {"no-receives", test_no_receives},
    };

    vgt_init(&argc, &argv, 120);
    vgt_add_both("/hosts-answers", both, G_N_ELEMENTS(both));
    return vgt_run();
}
