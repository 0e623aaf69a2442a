/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Numbered messages; see numbered.h. */
#include "numbered.h"

#include <string.h>

#define QKEY     0x11111111u
#define GSI_QKEY 0x80010000u /* the bit says: the queue pair's own, which is the same */
#define MAD      256u
#define DEPTH    8u  /* messages of a QP under way */
#define RECVS    16u /* receives of each */
#define SLOT     8192u
#define FAR      (512u << 10) /* where side 1 receives */

static uint32_t len_of(const struct numbered *n, unsigned q, uint64_t k)
{
    uint64_t any = (k * 31 + q * 7) * 7919;

    switch (n->type) {
    case PVRDMA_QPT_GSI:
        return MAD;
    case PVRDMA_QPT_UD:
        return (uint32_t)(any % 1000);
    default:
        return (uint32_t)(any % 6000);
    }
}

static uint64_t seed_of(unsigned q, uint64_t k)
{
    return k * NUMBERED_QPS + q + 1;
}

static bool is_datagram(const struct numbered *n)
{
    return n->type == PVRDMA_QPT_UD || n->type == PVRDMA_QPT_GSI;
}

static uint32_t qkey_of(const struct numbered *n)
{
    return n->type == PVRDMA_QPT_GSI ? GSI_QKEY : QKEY;
}

/* Receive @id is of QP @id / RECVS, but for an SRQ. */
static void post_receive(struct numbered *n, uint64_t id)
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

static void open_qp(struct numbered *n, unsigned q, const struct vg_conn *conn)
{
    struct vg_qp_opts qo = {.type = (uint8_t)n->type};
    struct vgt_side *s = n->p.s;

    n->came[q] = g_byte_array_new();
    n->tx[q] = vg_qp_new(s[0].pd, s[0].scq, s[0].rcq, &qo);
    qo.srq = n->srq;
    n->rx[q] = vg_qp_new(s[1].pd, s[1].scq, s[1].rcq, &qo);
    if (is_datagram(n)) {
        vg_ud_to_rts(n->tx[q], qkey_of(n));
        vg_ud_to_rts(n->rx[q], qkey_of(n));
    } else {
        vg_qp_connect(n->tx[q], n->rx[q], conn);
    }
}

void numbered_open(struct numbered *n, unsigned a, unsigned b, enum pvrdma_qp_type type,
                   bool shared, const struct vgt_opts *opts)
{
    struct vgt_opts o = *opts;

    *n = (struct numbered){.type = type, .n_qps = NUMBERED_QPS};
    if (type == PVRDMA_QPT_GSI) { /* the one of each guest, its kernel's */
        n->n_qps = 1;
        o.kernel = true;
    }
    o.unconnected = true;
    vgt_pair_open(&n->p, a, b, &o);
    n->srq = shared ? vg_srq_new(n->p.s[1].pd, n->n_qps * RECVS, 1, false) : NULL;
    for (unsigned q = 0; q < n->n_qps; q++) {
        open_qp(n, q, &o.conn);
    }
    for (uint64_t id = 0; id < n->n_qps * RECVS; id++) {
        post_receive(n, id);
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
                       .flags = VGT_SIG,
                       .imm = (uint32_t)k,
                       .nsge = 1,
                       .sge = &sge};

    if (is_datagram(n)) {
        wr.av = &av;
        wr.remote_qpn = n->type == PVRDMA_QPT_GSI ? 1 : n->rx[q]->qpn;
        wr.remote_qkey = qkey_of(n);
    }
    vgt_fill(VG_MR_HOST(from->mr, at), sge.length, seed_of(q, k));
    g_assert_cmpuint(vg_post_send(n->tx[q], &wr, 1), ==, 1);
}

/*
 * Its number is new.  Datagrams may overtake each other: later ones have a shorter way
 * when their sender has moved to the host of their receiver.
 */
static void count(struct numbered *n, unsigned q, uint64_t k)
{
    if (is_datagram(n)) {
        GByteArray *came = n->came[q];

        if (k / 8 >= came->len) {
            guint was = came->len;

            g_byte_array_set_size(came, (guint)(k / 8 + 1));
            memset(came->data + was, 0, came->len - was);
        }
        g_assert_cmpuint(came->data[k / 8] >> k % 8 & 1, ==, 0);
        came->data[k / 8] |= (guint8)(1u << k % 8);
    } else {
        g_assert_cmpuint(k, >=, n->next[q]);
    }
    n->next[q] = MAX(n->next[q], k + 1);
}

/* Whole; of a reliable connection, the very next. */
static void arrives(struct numbered *n, const struct pvrdma_cqe *c)
{
    uint32_t grh = is_datagram(n) ? PVRDMA_GRH_SIZE : 0;
    unsigned q = 0;

    g_assert_cmpuint(c->status, ==, PVRDMA_WC_SUCCESS);
    while (n->rx[q]->handle != c->qp) {
        g_assert_cmpuint(++q, <, n->n_qps);
    }
    if (n->type == PVRDMA_QPT_RC) {
        g_assert_cmpuint(c->imm_data, ==, n->next[q]);
    }
    g_assert_cmpuint(c->imm_data, <, n->sent[q]);
    count(n, q, c->imm_data);
    g_assert_cmpuint(c->byte_len, ==, len_of(n, q, c->imm_data) + grh);
    vgt_check(VG_MR_HOST(n->p.s[1].mr, FAR + c->wr_id * SLOT + grh), c->byte_len - grh,
              seed_of(q, c->imm_data));
    n->arrived++;
    post_receive(n, c->wr_id);
}

void numbered_run(struct numbered *n, uint64_t arrived)
{
    int64_t end = vg_now_ns() + VGT_WAIT_MS * 1000000ll;
    struct pvrdma_cqe c;

    while (n->arrived < arrived) {
        g_assert_cmpint(vg_now_ns(), <, end);
        for (unsigned q = 0; q < n->n_qps; q++) {
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

void numbered_end(struct numbered *n)
{
    for (unsigned q = 0; q < n->n_qps; q++) {
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
    for (unsigned q = 0; n->type == PVRDMA_QPT_RC && q < n->n_qps; q++) {
        while (n->next[q] < n->sent[q]) {
            struct pvrdma_cqe c;

            g_assert_true(vg_cq_wait(n->p.s[1].rcq, &c, VGT_WAIT_MS));
            arrives(n, &c);
        }
    }
}

uint64_t numbered_lost(const struct numbered *n)
{
    uint64_t sent = 0;

    for (unsigned q = 0; q < n->n_qps; q++) {
        sent += n->next[q];
    }
    return sent - n->arrived;
}

void numbered_close(struct numbered *n)
{
    for (unsigned q = 0; q < n->n_qps; q++) {
        vg_qp_free(n->tx[q]);
        vg_qp_free(n->rx[q]);
        g_byte_array_unref(n->came[q]);
    }
    if (n->srq) {
        vg_srq_free(n->srq);
    }
    vgt_pair_close(&n->p);
}
