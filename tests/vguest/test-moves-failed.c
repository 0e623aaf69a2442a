/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: a queue pair fails for a message of its peer's, and before the peer has
 * heard of it one of the two moves.  Wherever they meet again the message fails with what
 * it would have failed with: those before it have been executed, those behind it are
 * flushed.
 *
 * The requester, guest 0, is on host 0, the responder, guest 1, on host 1.  What they say
 * to each other goes through a relay, which keeps the answers.
 */
#include <string.h>

#include "migrate.h"
#include "relay.h"

enum { GOOD = 1, BAD, BEHIND, RECV };

static struct vg_daemon *host[2];
static struct relay *relay;

/* Nobody gives up while the relay stands still. */
static const struct vg_conn patient = {.timeout = 21, .retry_cnt = 7, .rnr_retry = 7};

/* What is wrong with the message, and what it is called on both sides. */
static const struct fault {
    uint32_t opcode;
    enum pvrdma_wc_status status, recv_status;
    enum pvrdma_event_type event;
} faults[] = {
    {PVRDMA_WR_RDMA_WRITE, PVRDMA_WC_REM_ACCESS_ERR, PVRDMA_WC_WR_FLUSH_ERR,
     PVRDMA_EVENT_QP_ACCESS_ERR},
    {PVRDMA_WR_SEND, PVRDMA_WC_REM_INV_REQ_ERR, PVRDMA_WC_LOC_LEN_ERR,
     PVRDMA_EVENT_QP_REQ_ERR},
};

static void begin(struct vgt_pair *p, gconstpointer style)
{
    const struct host_opts o = {.n_vms = 3, .daemon_keys = "peer-timeout=30"};
    struct vgt_opts po = vgt_opts_of(style);

    relay = relay_hosts(host, &(struct relay_opts){0}, &o);
    po.conn = patient;
    po.daemon[0] = host[0];
    po.daemon[1] = host[1];
    vgt_daemon = host[0];
    vgt_pair_open(p, 0, 1, &po);
    vgt_write_once(p, 9);
}

static void end(struct vgt_pair *p)
{
    vgt_pair_close(p);
    relay_hosts_stop(relay, host);
    vgt_daemon = NULL;
}

/* Until the requester has given up the stream in which the answer is. */
static void wait_broken(const struct vgt_pair *p)
{
    const struct vguest *g = p->s[0].g;
    int64_t until = vg_now_ns() + VGT_WAIT_MS * 1000000ll;
    bool up = true;

    while (up) {
        g_autofree char *text = NULL;

        g_assert_cmpint(vg_now_ns(), <, until);
        g_usleep(2000);
        g_assert_cmpint(vg_ctl(g->d, &text, "--json qp list vm%u", g->index), ==, 0);
        up = strstr(text, "\"up\"") != NULL;
    }
}

static void post(struct vgt_side *s, uint64_t wr_id, uint32_t opcode, uint32_t len,
                 const struct vg_mr *to, uint32_t rkey)
{
    struct pvrdma_sge sge = vg_sge(s->mr, 0, len);
    struct vg_wr wr = vg_wr_at(wr_id, opcode, VGT_SIG, &sge, to->buf->va, rkey);

    g_assert_cmpuint(vg_post_send(s->qp, &wr, 1), ==, 1);
}

/* The responder fails, and the requester has not heard of it. */
static void fail(struct vgt_pair *p, const struct fault *f)
{
    struct vgt_side *s = &p->s[0], *peer = &p->s[1];
    uint32_t key = peer->mr->rkey;

    vgt_recv(peer, RECV, 0, 8);
    vgt_fill(VG_MR_HOST(s->mr, 0), 8, 7);
    relay_stall_from(relay, 1, true);
    post(s, GOOD, PVRDMA_WR_RDMA_WRITE, 8, peer->mr, key);
    if (f->opcode == PVRDMA_WR_SEND) { /* longer than its receive */
        post(s, BAD, f->opcode, 9, peer->mr, 0);
    } else {
        post(s, BAD, f->opcode, 8, peer->mr, key + 0x100);
    }
    post(s, BEHIND, PVRDMA_WR_RDMA_WRITE, 100, peer->mr, key);
    vgt_expect_event(peer->g, f->event, peer->qp->handle);
    vgt_expect(peer->rcq, RECV, f->recv_status);
    vgt_expect_none(s->scq, VGT_QUIET_MS(10));
}

static void check(struct vgt_pair *p, const struct fault *f)
{
    vgt_expect(p->s[0].scq, GOOD, PVRDMA_WC_SUCCESS);
    vgt_expect(p->s[0].scq, BAD, f->status);
    vgt_expect(p->s[0].scq, BEHIND, PVRDMA_WC_WR_FLUSH_ERR);
    vgt_check(VG_MR_HOST(p->s[1].mr, 0), 8, 7);
    for (unsigned i = 0; i < 2; i++) {
        g_assert_cmpuint(vg_qp_state(p->s[i].qp), ==, PVRDMA_QPS_ERR);
    }
    /* It is of the past then. */
    relay_stall(relay, false);
    vgt_pair_reconnect(p, &patient);
    vgt_write_once(p, 10);
}

static void run(gconstpointer style, void (*move)(struct vgt_pair *p))
{
    for (unsigned i = 0; i < G_N_ELEMENTS(faults); i++) {
        struct vgt_pair p;

        begin(&p, style);
        fail(&p, &faults[i]);
        move(&p);
        check(&p, &faults[i]);
        end(&p);
    }
}

/* ---- to the peer's host: tcp -> copy ---- */

static void requester_joins(struct vgt_pair *p)
{
    vg_move(p->s[0].g, host[1], 0, VG_MOVE_PLAIN);
}

static void responder_joins(struct vgt_pair *p)
{
    vg_move(p->s[1].g, host[0], 1, VG_MOVE_PLAIN);
}

/* ---- to another place where it is not: tcp -> tcp ---- */

static void requester_roams(struct vgt_pair *p)
{
    vg_move(p->s[0].g, host[0], 2, VG_MOVE_PLAIN);
    relay_stall(relay, false);
}

static void responder_roams(struct vgt_pair *p)
{
    vg_move(p->s[1].g, host[1], 2, VG_MOVE_LEAVE_FIRST);
    wait_broken(p);
    relay_stall(relay, false);
}

/* ---- to the peer's host, where the requester stands still, and back: copy -> tcp ----
 */

static void responder_returns(struct vgt_pair *p)
{
    vgt_vm(host[0], "pause", 0);
    vg_move(p->s[1].g, host[0], 1, VG_MOVE_PLAIN);
    vg_move(p->s[1].g, host[1], 1, VG_MOVE_LEAVE_FIRST);
    vgt_vm(host[0], "resume", 0);
    wait_broken(p);
    relay_stall(relay, false);
}

/* ---- both at once: each is where the other was ---- */

static void both_go(struct vgt_pair *p)
{
    struct vg_place from[2];

    from[0] = vg_move_begin(p->s[0].g, host[1], 0);
    from[1] = vg_move_begin(p->s[1].g, host[0], 1);
    vg_move_end(p->s[0].g, &from[0], VG_MOVE_PLAIN);
    vg_move_end(p->s[1].g, &from[1], VG_MOVE_PLAIN);
    relay_stall(relay, false);
}

#define TEST(name)                               \
    static void test_##name(gconstpointer style) \
    {                                            \
        run(style, name);                        \
    }

TEST(requester_joins)
TEST(responder_joins)
TEST(requester_roams)
TEST(responder_roams)
TEST(responder_returns)
TEST(both_go)

int main(int argc, char **argv)
{
    static const struct vgt_both tests[] = {
        {"requester-joins", test_requester_joins},
        {"responder-joins", test_responder_joins},
        {"requester-roams", test_requester_roams},
        {"responder-roams", test_responder_roams},
        {"responder-returns", test_responder_returns},
        {"both-go", test_both_go},
    };

    vgt_init(&argc, &argv, 240);
    vgt_add_both("moves-failed", tests, G_N_ELEMENTS(tests));
    return vgt_run();
}
