/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: what else goes along when a guest moves between two hosts, away from its
 * peer and back: messages to a shared receive queue, unreliable ones and datagrams,
 * windows and registered keys, requests that wait, a queue that drains, armed queues,
 * events.
 *
 * Each guest is in the VM of its number, on either host.  Each test runs with the one end
 * moving, then the other; but where queues are armed it is always their owner.
 */
#include "hosts.h"
#include "migrate.h"

#include <string.h>

#define QKEY  0x11111111u
#define N_QPS 4u
#define DEPTH 8u  /* messages of a QP under way */
#define RECVS 16u /* receives of each */
#define SLOT  8192u
#define FAR   (512u << 10) /* where side 1 receives */

static struct vg_daemon *host[2];

static struct vgt_opts opts_of(gconstpointer style)
{
    enum vg_db_mode db = GPOINTER_TO_UINT(style) == VGT_STOCK ? VG_DB_SHARED : VG_DB_EXT;

    return (struct vgt_opts){.guest = {{.db = db}, {.db = db}},
                             .daemon = {host[0], host[0]}};
}

/* To the other host. */
static void roam(struct vguest *g)
{
    static unsigned n;

    vg_move(g, host[g->d == host[0]], g->index,
            n++ % 3 == 2 ? VG_MOVE_LEAVE_FIRST : VG_MOVE_PLAIN);
}

static void go_home(struct vguest *g)
{
    if (g->d != host[0]) {
        roam(g);
    }
}

static void close_pair(struct vgt_pair *p)
{
    go_home(p->s[0].g);
    go_home(p->s[1].g);
    vgt_pair_close(p);
}

static void post(struct vg_qp *qp, struct vg_wr wr)
{
    wr.flags |= VGT_SIG;
    g_assert_cmpuint(vg_post_send(qp, &wr, 1), ==, 1);
}

/* ---- numbered messages -------------------------------------------------------- */

/* To the QPs of side 1, from one each of side 0. */
struct numbered {
    struct vgt_pair p;
    enum pvrdma_qp_type type;
    struct vg_srq *srq; /* or NULL */
    struct vg_qp *tx[N_QPS], *rx[N_QPS];
    uint64_t sent[N_QPS], done[N_QPS], next[N_QPS]; /* posted, complete, to arrive */
    uint64_t arrived;
};

static uint32_t len_of(const struct numbered *n, unsigned q, uint64_t k)
{
    return (uint32_t)((k * 31 + q * 7) * 7919 % (n->type == PVRDMA_QPT_UD ? 1000 : 6000));
}

static uint64_t seed_of(unsigned q, uint64_t k)
{
    return k * N_QPS + q + 1;
}

/* Receive @id is of QP @id / RECVS, but for an SRQ. */
static void receive(struct numbered *n, uint64_t id)
{
    struct pvrdma_sge sge = vg_sge(n->p.s[1].mr, FAR + id * SLOT, SLOT);
    struct vg_wr wr = {.wr_id = id, .nsge = 1, .sge = &sge};

    memset(VG_MR_HOST(n->p.s[1].mr, FAR + id * SLOT), 0xee, SLOT);
    if (n->srq) {
        g_assert_cmpuint(vg_post_srq(n->srq, &wr, 1), ==, 1);
    } else {
        g_assert_cmpuint(vg_post_recv(n->rx[id / RECVS], &wr, 1), ==, 1);
    }
}

static void numbered_open(struct numbered *n, const struct vgt_opts *opts, bool shared)
{
    struct vgt_opts o = *opts;
    struct vgt_side *s = n->p.s;

    o.unconnected = true;
    vgt_pair_open(&n->p, 0, 1, &o);
    n->srq = shared ? vg_srq_new(s[1].pd, N_QPS * RECVS, 1, false) : NULL;
    for (unsigned q = 0; q < N_QPS; q++) {
        struct vg_qp_opts qo = {.type = (uint8_t)n->type};

        n->tx[q] = vg_qp_new(s[0].pd, s[0].scq, s[0].rcq, &qo);
        qo.srq = n->srq;
        n->rx[q] = vg_qp_new(s[1].pd, s[1].scq, s[1].rcq, &qo);
        if (n->type == PVRDMA_QPT_UD) {
            g_assert_cmpint(vg_ud_to_rts(n->tx[q], QKEY), ==, 0);
            g_assert_cmpint(vg_ud_to_rts(n->rx[q], QKEY), ==, 0);
        } else {
            vg_qp_connect(n->tx[q], n->rx[q], &o.conn);
        }
    }
    for (uint64_t id = 0; id < N_QPS * RECVS; id++) {
        receive(n, id);
    }
}

static void send_one(struct numbered *n, unsigned q)
{
    struct vgt_side *from = &n->p.s[0];
    uint64_t k = n->sent[q]++, at = (q * DEPTH + k % DEPTH) * SLOT;
    struct pvrdma_sge sge = vg_sge(from->mr, at, len_of(n, q, k));
    struct pvrdma_av av = vg_av(from->pd, 0, &n->p.s[1].g->gid);
    struct vg_wr wr = {.wr_id = (uint64_t)q << 32 | k,
                       .opcode = PVRDMA_WR_SEND_WITH_IMM,
                       .imm = (uint32_t)k,
                       .nsge = 1,
                       .sge = &sge};

    if (n->type == PVRDMA_QPT_UD) {
        wr.av = &av;
        wr.remote_qpn = n->rx[q]->qpn;
        wr.remote_qkey = QKEY;
    }
    vgt_fill(VG_MR_HOST(from->mr, at), sge.length, seed_of(q, k));
    post(n->tx[q], wr);
}

/* Whole, and behind those before it; of a reliable connection, the very next. */
static void arrives(struct numbered *n, const struct pvrdma_cqe *c)
{
    uint32_t grh = n->type == PVRDMA_QPT_UD ? PVRDMA_GRH_SIZE : 0;
    unsigned q = 0;

    g_assert_cmpuint(c->status, ==, PVRDMA_WC_SUCCESS);
    while (n->rx[q]->handle != c->qp) {
        g_assert_cmpuint(++q, <, N_QPS);
    }
    if (n->type == PVRDMA_QPT_RC) {
        g_assert_cmpuint(c->imm_data, ==, n->next[q]);
    }
    g_assert_cmpuint(c->imm_data, >=, n->next[q]);
    g_assert_cmpuint(c->imm_data, <, n->sent[q]);
    n->next[q] = c->imm_data + 1;
    g_assert_cmpuint(c->byte_len, ==, len_of(n, q, c->imm_data) + grh);
    vgt_check(VG_MR_HOST(n->p.s[1].mr, FAR + c->wr_id * SLOT + grh), c->byte_len - grh,
              seed_of(q, c->imm_data));
    n->arrived++;
    receive(n, c->wr_id);
}

/* Until @arrived have arrived in all, the last ones of them maybe not complete. */
static void numbered_run(struct numbered *n, uint64_t arrived)
{
    int64_t end = vg_now_ns() + VGT_WAIT_MS * 1000000ll;
    struct pvrdma_cqe c;

    while (n->arrived < arrived) {
        g_assert_cmpint(vg_now_ns(), <, end);
        for (unsigned q = 0; q < N_QPS; q++) {
            while (n->sent[q] - n->done[q] < DEPTH) {
                send_one(n, q);
            }
        }
        while (vg_cq_poll(n->p.s[0].scq, &c, 1) == 1) {
            g_assert_cmpuint(c.status, ==, PVRDMA_WC_SUCCESS);
            g_assert_cmpuint(c.wr_id & UINT32_MAX, ==, n->done[c.wr_id >> 32]++);
        }
        while (vg_cq_poll(n->p.s[1].rcq, &c, 1) == 1) {
            arrives(n, &c);
        }
        g_usleep(50);
    }
}

/* What is under way yet. */
static void numbered_end(struct numbered *n)
{
    for (unsigned q = 0; q < N_QPS; q++) {
        while (n->done[q] < n->sent[q]) {
            struct pvrdma_cqe c;

            g_assert_true(vg_cq_wait(n->p.s[0].scq, &c, VGT_WAIT_MS));
            g_assert_cmpuint(c.status, ==, PVRDMA_WC_SUCCESS);
            g_assert_cmpuint(c.wr_id & UINT32_MAX, ==, n->done[c.wr_id >> 32]++);
            while (vg_cq_poll(n->p.s[1].rcq, &c, 1) == 1) {
                arrives(n, &c);
            }
        }
    }
    for (unsigned q = 0; n->type == PVRDMA_QPT_RC && q < N_QPS; q++) {
        while (n->next[q] < n->sent[q]) {
            struct pvrdma_cqe c;

            g_assert_true(vg_cq_wait(n->p.s[1].rcq, &c, VGT_WAIT_MS));
            arrives(n, &c);
        }
    }
}

/* @shared: all receive from one queue. */
static void numbered(gconstpointer style, enum pvrdma_qp_type type, bool shared)
{
    struct vgt_opts o = opts_of(style);

    for (unsigned mover = 0; mover < 2; mover++) {
        unsigned moves = MAX(vgt_rounds(10), 4);
        struct numbered n = {.type = type};

        numbered_open(&n, &o, shared);
        for (unsigned i = 0; i < moves; i++) {
            numbered_run(&n, n.arrived + 100);
            roam(n.p.s[mover].g);
        }
        numbered_run(&n, n.arrived + 100);
        numbered_end(&n);
        for (unsigned q = 0; q < N_QPS; q++) {
            vg_qp_free(n.tx[q]);
            vg_qp_free(n.rx[q]);
        }
        if (n.srq) {
            vg_srq_free(n.srq);
        }
        close_pair(&n.p);
    }
}

static void test_srq(gconstpointer style)
{
    numbered(style, PVRDMA_QPT_RC, true);
}

static void test_uc(gconstpointer style)
{
    numbered(style, PVRDMA_QPT_UC, false);
}

static void test_ud(gconstpointer style)
{
    numbered(style, PVRDMA_QPT_UD, false);
}

/* ---- keys that come and go ------------------------------------------------------ */

#define KEY_LEN 40000u

enum { BIND = 100, WRITE, SEND_INV, LOCAL_INV, TAKEN };

/* What gives the peer a key for side 1's region: a window, or a fast registration. */
struct key {
    struct vg_mr *mr;
    uint32_t handle, rkey; /* of the window */
    bool fast;
};

static void key_open(struct key *k, struct vgt_side *s)
{
    struct vg_buf *buf = vg_buf_new(s->g, 0x7f6600000000ull, KEY_LEN, VG_SCATTERED);
    struct pvrdma_ext_cmd_create_mw req = {
        .cmd = PVRDMA_CMD_CREATE_MW, .pd_handle = s->pd->handle, .type = 2};
    struct pvrdma_resp_create_mr resp;

    if (k->fast) {
        k->mr = vg_mr_new_fast(s->pd, buf, 64);
        return;
    }
    k->mr = vg_mr_new(s->pd, buf, VG_ACCESS_ALL | PVRDMA_ACCESS_MW_BIND);
    g_assert_cmpint(vg_command(s->g, &req, sizeof(req), &resp, sizeof(resp)), ==, 0);
    k->handle = resp.mr_handle;
    k->rkey = resp.rkey;
}

static void key_close(struct key *k, struct vgt_side *s)
{
    if (!k->fast) {
        g_assert_cmpint(
            vg_destroy(s->g, (enum pvrdma_cmd)PVRDMA_CMD_DESTROY_MW, k->handle), ==, 0);
    }
    vg_mr_free(k->mr);
}

/* The request that makes the next key. */
static struct vg_wr key_wr(struct key *k)
{
    struct vg_wr wr;

    if (k->fast) {
        wr = vg_wr_fast_reg(k->mr, BIND, VG_ACCESS_ALL);
        k->rkey = k->mr->rkey;
        return wr;
    }
    k->rkey = (k->rkey & ~0xffu) | ((k->rkey + 1) & 0xff);
    return (struct vg_wr){.wr_id = BIND,
                          .opcode = PVRDMA_WR_BIND_MW,
                          .bind = {.addr = k->mr->buf->va,
                                   .length = KEY_LEN,
                                   .lkey = k->mr->lkey,
                                   .access_flags = PVRDMA_ACCESS_REMOTE_WRITE,
                                   .rkey = k->rkey}};
}

static struct vg_wr write_wr(struct vgt_side *s, const struct key *k,
                             struct pvrdma_sge *sge)
{
    *sge = vg_sge(s->mr, 0, KEY_LEN);
    return (struct vg_wr){.wr_id = WRITE,
                          .opcode = PVRDMA_WR_RDMA_WRITE,
                          .remote_addr = k->mr->buf->va,
                          .rkey = k->rkey,
                          .nsge = 1,
                          .sge = sge};
}

/*
 * The key is made, used and taken away, by the peer or by its owner; @when: after which
 * of these requests was posted the guest moves.
 */
static void key_round(struct vgt_pair *p, struct key *k, struct vguest *mover,
                      unsigned when, bool by_peer)
{
    struct vgt_side *peer = &p->s[0], *own = &p->s[1];
    struct pvrdma_sge sge;
    struct pvrdma_cqe c;

    post(own->qp, key_wr(k));
    if (when == 0) {
        roam(mover);
    }
    vgt_expect(own->scq, BIND, PVRDMA_WC_SUCCESS);
    vgt_fill(VG_MR_HOST(peer->mr, 0), KEY_LEN, k->rkey);
    post(peer->qp, write_wr(peer, k, &sge));
    if (when == 1) {
        roam(mover);
    }
    if (by_peer) {
        vgt_recv(own, TAKEN, FAR, 8);
        post(peer->qp, (struct vg_wr){.wr_id = SEND_INV,
                                      .opcode = PVRDMA_WR_SEND_WITH_INV,
                                      .imm = k->rkey});
        if (when == 2) {
            roam(mover);
        }
        vgt_expect(peer->scq, WRITE, PVRDMA_WC_SUCCESS);
        vgt_expect(peer->scq, SEND_INV, PVRDMA_WC_SUCCESS);
        c = vgt_expect(own->rcq, TAKEN, PVRDMA_WC_SUCCESS);
        g_assert_cmpuint(c.wc_flags & PVRDMA_WC_FLAG_INV, !=, 0);
        g_assert_cmpuint(c.imm_data, ==, k->rkey);
    } else {
        vgt_expect(peer->scq, WRITE, PVRDMA_WC_SUCCESS);
        post(own->qp, (struct vg_wr){.wr_id = LOCAL_INV,
                                     .opcode = PVRDMA_WR_LOCAL_INV,
                                     .imm = k->rkey});
        if (when == 2) {
            roam(mover);
        }
        vgt_expect(own->scq, LOCAL_INV, PVRDMA_WC_SUCCESS);
    }
    vgt_check(k->mr->buf->host, KEY_LEN, k->rkey);
}

static void keys(const struct vgt_opts *o, bool fast)
{
    for (unsigned mover = 0; mover < 2; mover++) {
        struct key k = {.fast = fast};
        struct pvrdma_sge sge;
        struct vgt_pair p;

        vgt_pair_open(&p, 0, 1, o);
        key_open(&k, &p.s[1]);
        for (unsigned i = 0; i < MAX(vgt_rounds(24), 6); i++) {
            key_round(&p, &k, p.s[mover].g, i % 3, i / 3 % 2);
        }
        /* It is dead, there as well. */
        memset(k.mr->buf->host, 0x5c, KEY_LEN);
        post(p.s[0].qp, write_wr(&p.s[0], &k, &sge));
        vgt_expect(p.s[0].scq, WRITE, PVRDMA_WC_REM_ACCESS_ERR);
        for (unsigned i = 0; i < KEY_LEN; i++) {
            g_assert_cmpuint(k.mr->buf->host[i], ==, 0x5c);
        }
        go_home(p.s[mover].g);
        key_close(&k, &p.s[1]);
        close_pair(&p);
    }
}

static void test_windows(void)
{
    struct vgt_opts o = opts_of(GUINT_TO_POINTER(VGT_EXTENDED));

    keys(&o, false);
}

static void test_fast_reg(gconstpointer style)
{
    struct vgt_opts o = opts_of(style);

    o.kernel = true;
    keys(&o, true);
}

/* ---- requests that wait ----------------------------------------------------------- */

/*
 * A READ, a SEND of what that brings behind a fence, for which there is no receive, and
 * another: they wait through some moves.
 */
static void test_waiting(gconstpointer style)
{
    const uint32_t len = 300000;

    for (unsigned mover = 0; mover < 2; mover++) {
        struct vgt_opts o = opts_of(style);
        struct vgt_pair p;

        vgt_pair_open(&p, 0, 1, &o);
        for (unsigned i = 1; i <= MAX(vgt_rounds(10), 2); i++) {
            vgt_fill(VG_MR_HOST(p.s[1].mr, 0), len, i);
            memset(VG_MR_HOST(p.s[0].mr, 0), 0xee, len);
            vgt_send(&p.s[0], 1, PVRDMA_WR_RDMA_READ, VGT_SIG, 0, len, &p.s[1], 0);
            vgt_send(&p.s[0], 2, PVRDMA_WR_SEND, VGT_SIG | PVRDMA_SEND_FENCE, 0, len,
                     NULL, 0);
            vgt_send(&p.s[0], 3, PVRDMA_WR_SEND, VGT_SIG, 8, 8, NULL, 0);
            roam(p.s[mover].g);
            vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS);
            vgt_expect_none(p.s[0].scq, 20); /* it is told that there is no receive */
            roam(p.s[mover].g);
            vgt_expect_none(p.s[0].scq, 20);
            memset(VG_MR_HOST(p.s[1].mr, FAR), 0xee, len);
            vgt_recv(&p.s[1], 4, FAR, len);
            roam(p.s[mover].g);
            vgt_recv(&p.s[1], 5, FAR + len, 8);
            vgt_expect(p.s[0].scq, 2, PVRDMA_WC_SUCCESS);
            vgt_expect(p.s[0].scq, 3, PVRDMA_WC_SUCCESS);
            g_assert_cmpuint(vgt_expect(p.s[1].rcq, 4, PVRDMA_WC_SUCCESS).byte_len, ==,
                             len);
            vgt_expect(p.s[1].rcq, 5, PVRDMA_WC_SUCCESS);
            vgt_check(VG_MR_HOST(p.s[1].mr, FAR), len, i);
        }
        close_pair(&p);
    }
}

static bool drained(struct vgt_side *s, int ms)
{
    return vg_event_wait(s->g, PVRDMA_EVENT_SQ_DRAINED, s->qp->handle, ms);
}

/*
 * A message of which the peer has a part is in progress, wherever that goes in the middle
 * of it: the queue drains behind it.
 */
static void test_half(gconstpointer style)
{
    const struct pvrdma_qp_attr sqd = {.qp_state = PVRDMA_QPS_SQD,
                                       .en_sqd_async_notify = 1};
    const uint32_t len = 24u << 20, piece = 4096;

    for (unsigned i = 1; i <= MAX(vgt_rounds(6), 2); i++) {
        struct vgt_opts o = opts_of(style);
        struct pvrdma_cqe c;
        struct vg_place from;
        struct vgt_pair p;
        uint8_t *to;
        bool begun;

        o.mr_len = len;
        vgt_pair_open(&p, 0, 1, &o);
        to = VG_MR_HOST(p.s[1].mr, 0);
        vgt_fill(VG_MR_HOST(p.s[0].mr, 0), len, i);
        vgt_send(&p.s[0], 1, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, len, &p.s[1], 0);
        for (unsigned t = 0; t < 1000 && !vgt_matches(to, piece, i); t++) {
        }
        g_assert_cmpint(vg_modify_qp(p.s[0].g, p.s[0].qp->handle,
                                     PVRDMA_QP_STATE | PVRDMA_QP_EN_SQD_ASYNC, &sqd),
                        ==, 0);
        from = vg_move_begin(p.s[1].g, host[1], 1);
        begun = vgt_matches(to, piece, i);
        vg_move_end(p.s[1].g, &from, VG_MOVE_PLAIN);
        g_assert_true(drained(&p.s[0], VGT_WAIT_MS));
        if (begun) {
            g_assert_cmpint(vg_cq_poll(p.s[0].scq, &c, 1), ==, 1);
            g_assert_cmpuint(c.status, ==, PVRDMA_WC_SUCCESS);
        } else {
            g_assert_cmpint(vg_qp_to_state(p.s[0].qp, PVRDMA_QPS_RTS), ==, 0);
            vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS);
        }
        vgt_check(to, len, i);
        close_pair(&p);
    }
}

/* A queue that drains does so at the next place; what was posted meanwhile waits. */
static void test_draining(gconstpointer style)
{
    for (unsigned mover = 0; mover < 2; mover++) {
        struct pvrdma_qp_attr sqd = {.qp_state = PVRDMA_QPS_SQD,
                                     .en_sqd_async_notify = 1};
        struct vgt_opts o = opts_of(style);
        struct vgt_side *s;
        struct vgt_pair p;

        vgt_pair_open(&p, 0, 1, &o);
        s = &p.s[0];
        for (unsigned i = 0; i < MAX(vgt_rounds(10), 2); i++) {
            int64_t before = vgt_counter("vm0", "datapath", "rnr_waits");
            int64_t end = vg_now_ns() + VGT_WAIT_MS * 1000000ll;
            struct vguest *g = p.s[mover].g;

            vgt_send(s, 1, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, FAR, &p.s[1], FAR);
            vgt_send(s, 2, PVRDMA_WR_SEND, VGT_SIG, 0, 8, NULL, 0); /* no receive yet */
            vgt_expect(s->scq, 1, PVRDMA_WC_SUCCESS);
            while (vgt_counter("vm0", "datapath", "rnr_waits") == before) {
                g_assert_cmpint(vg_now_ns(), <, end);
                g_usleep(1000);
            }
            g_assert_cmpint(vg_modify_qp(s->g, s->qp->handle,
                                         PVRDMA_QP_STATE | PVRDMA_QP_EN_SQD_ASYNC, &sqd),
                            ==, 0);
            vgt_send(s, 3, PVRDMA_WR_SEND, VGT_SIG, 0, 8, NULL, 0);
            roam(g);
            g_assert_cmpuint(vg_qp_state(s->qp), ==, PVRDMA_QPS_SQD);
            g_assert_false(drained(s, 20));
            vgt_recv(&p.s[1], 4, 0, 8);
            vgt_recv(&p.s[1], 5, 0, 8);
            vgt_expect(s->scq, 2, PVRDMA_WC_SUCCESS);
            g_assert_true(drained(s, VGT_WAIT_MS));
            roam(g);
            vgt_expect_none(s->scq, 20);
            g_assert_false(drained(s, 0)); /* once */
            g_assert_cmpint(vg_qp_to_state(s->qp, PVRDMA_QPS_RTS), ==, 0);
            vgt_expect(s->scq, 3, PVRDMA_WC_SUCCESS);
            vgt_expect(p.s[1].rcq, 4, PVRDMA_WC_SUCCESS);
            vgt_expect(p.s[1].rcq, 5, PVRDMA_WC_SUCCESS);
        }
        close_pair(&p);
    }
}

/* An armed queue tells of what comes at the next place, once; what it told is not lost.
 */
static void test_armed(gconstpointer style)
{
    struct vgt_opts o = opts_of(style);
    struct vgt_side *s;
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, &o);
    s = &p.s[0];
    for (unsigned i = 0; i < MAX(vgt_rounds(20), 4); i++) {
        uint32_t handle;

        vgt_recv(s, 1, 0, 8);
        vg_cq_arm(s->rcq, i % 2);
        if (i % 4 < 2) {
            roam(s->g);
        }
        vgt_send(&p.s[1], 2, PVRDMA_WR_SEND, VGT_SIG | PVRDMA_SEND_SOLICITED, 0, 8, NULL,
                 0);
        vgt_expect(p.s[1].scq, 2, PVRDMA_WC_SUCCESS);
        if (i % 4 >= 2) { /* the notification is under way, or there */
            roam(s->g);
        }
        vgt_expect(s->rcq, 1, PVRDMA_WC_SUCCESS);
        g_assert_true(vg_cqn_wait(s->g, s->rcq->handle, VGT_WAIT_MS));
        g_assert_false(vg_cqn_poll(s->g, &handle));
    }
    close_pair(&p);
}

/* An event that nobody has read yet, and a queue pair that has failed, go along. */
static void test_events(gconstpointer style)
{
    for (unsigned mover = 0; mover < 2; mover++) {
        struct vgt_opts o = opts_of(style);
        struct vgt_side *bad;
        struct vgt_pair p;

        vgt_pair_open(&p, 0, 1, &o);
        bad = &p.s[1];
        vgt_recv(bad, 1, 0, 8);
        vgt_send(&p.s[0], 2, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, bad, 8 << 20);
        vgt_expect(p.s[0].scq, 2, PVRDMA_WC_REM_ACCESS_ERR);
        roam(p.s[mover].g);
        vgt_expect(bad->rcq, 1, PVRDMA_WC_WR_FLUSH_ERR);
        g_assert_true(vg_event_wait(bad->g, PVRDMA_EVENT_QP_ACCESS_ERR, bad->qp->handle,
                                    VGT_WAIT_MS));
        g_assert_false(
            vg_event_wait(bad->g, PVRDMA_EVENT_QP_ACCESS_ERR, bad->qp->handle, 20));
        for (unsigned i = 0; i < 2; i++) {
            g_assert_cmpuint(vg_qp_state(p.s[i].qp), ==, PVRDMA_QPS_ERR);
        }
        vgt_pair_reconnect(&p, NULL);
        vgt_write_once(&p, 3);
        close_pair(&p);
    }
}

int main(int argc, char **argv)
{
    struct host_opts o = {.n_vms = 2,
                          .n_peers = G_N_ELEMENTS(host),
                          .daemon_keys = "peer-timeout=30\nworkers=2",
                          .vm_keys = "addresses=any"};
    static const struct vgt_both tests[] = {
        {"srq", test_srq},         {"uc", test_uc},
        {"ud", test_ud},           {"fast-reg", test_fast_reg},
        {"waiting", test_waiting}, {"draining", test_draining},
        {"half", test_half},       {"armed", test_armed},
        {"events", test_events},
    };
    int ret;

    vgt_init(&argc, &argv, 240);
    hosts_start(host, G_N_ELEMENTS(host), &o);
    vgt_daemon = host[0];
    vgt_add_both("moves-more", tests, G_N_ELEMENTS(tests));
    g_test_add_func("/moves-more/windows", test_windows);
    ret = vgt_run();
    host[0] = NULL;
    hosts_stop(host, G_N_ELEMENTS(host));
    return ret;
}
