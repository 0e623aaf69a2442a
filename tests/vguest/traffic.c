/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Checksummed traffic between two virtual guests, both in this thread.
 *
 * A lane is one direction of one QP.  Operation k of a lane uses slot k % depth
 * of the lane's source and destination areas, its kind, size and data follow
 * from k and the lane alone.  A lane posts operation k only after operation
 * k - depth was checked at the receiver, so a slot is never overwritten before
 * it was compared.
 *
 * Layout of a side's MR: [area of lane 0 as sender][... as receiver][lane 1]...; counter;
 * each area is depth slots, and one slot's first 8 bytes serve an atomic.
 */
#include "vgtest.h"

#include <sched.h>
#include <unistd.h>

enum kind {
    K_SEND,
    K_SEND_IMM,
    K_WRITE,
    K_WRITE_IMM,
    K_READ,
    K_FAA,
    K_CAS,
    K_TALLY,
    K_COUNT
};

static const uint32_t kind_opcode[K_COUNT] = {
    PVRDMA_WR_SEND,
    PVRDMA_WR_SEND_WITH_IMM,
    PVRDMA_WR_RDMA_WRITE,
    PVRDMA_WR_RDMA_WRITE_WITH_IMM,
    PVRDMA_WR_RDMA_READ,
    PVRDMA_WR_ATOMIC_FETCH_AND_ADD,
    PVRDMA_WR_ATOMIC_CMP_AND_SWP,
    PVRDMA_WR_ATOMIC_FETCH_AND_ADD,
};

/* Those that work on 8 bytes at an address that is a multiple of that. */
static bool is_atomic(enum kind k)
{
    return k == K_FAA || k == K_CAS || k == K_TALLY;
}

static uint64_t op_hash(unsigned dir, unsigned q, uint64_t k)
{
    uint64_t x = (k * 64 + q) * 2 + dir + 1;

    x *= 0xd6e8feb86659fd93ull;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93ull;
    return x ^ x >> 32;
}

static enum kind op_kind(unsigned dir, unsigned q, uint64_t k)
{
    return op_hash(dir, q, k) % K_COUNT;
}

static uint32_t op_len(const struct vgt_traffic *t, unsigned dir, unsigned q, uint64_t k)
{
    uint64_t h = op_hash(dir, q, k) >> 8;
    uint32_t max = t->slot - 8; /* the rest is for odd addresses */

    if (is_atomic(op_kind(dir, q, k))) {
        return 8;
    }
    /* Half of them small, the others anything. */
    return h & 1 ? h / 2 % MIN(max + 1, 257) : h / 2 % (max + 1);
}

static uint64_t area(const struct vgt_traffic *t, unsigned dir, unsigned q, bool dst)
{
    uint64_t size = (uint64_t)t->depth * t->slot;

    return ((q * 2 + dir) * 2 + dst) * size;
}

/* Address of op k's source or destination; unaligned but for atomics. */
static uint64_t slot_off(const struct vgt_traffic *t, unsigned dir, unsigned q,
                         uint64_t k, bool dst)
{
    uint64_t off = area(t, dir, q, dst) + k % t->depth * t->slot;

    if (!is_atomic(op_kind(dir, q, k))) {
        off += op_hash(dir, q, k) >> (dst ? 3 : 40) & 7;
    }
    return off;
}

static uint64_t counter_off(const struct vgt_traffic *t)
{
    return area(t, 0, t->nqp, false);
}

void vgt_traffic_open(struct vgt_traffic *t, unsigned a, unsigned b, unsigned nqp,
                      unsigned depth, uint32_t slot, const struct vgt_opts *opts)
{
    static const struct vgt_opts none;
    const struct vgt_opts *o = opts ? opts : &none;
    unsigned vm[2] = {a, b};

    g_assert_cmpuint(nqp, <=, VGT_MAX_QPS);
    memset(t, 0, sizeof(*t));
    t->nqp = nqp;
    t->depth = depth;
    t->slot = slot;
    t->latency = g_array_new(FALSE, FALSE, sizeof(double));
    t->posted_at = g_new0(int64_t, 2 * nqp);
    for (unsigned i = 0; i < 2; i++) {
        struct vgt_side *s = &t->s[i];

        s->g = i && a == b && o->daemon[0] == o->daemon[1]
                   ? t->s[0].g
                   : vguest_new(o->daemon[i] ? o->daemon[i] : vgt_daemon, vm[i],
                                &o->guest[i]);
        s->pd = vg_pd_new(s->g);
        s->scq = vg_cq_new(s->pd, nqp * depth);
        s->rcq = vg_cq_new(s->pd, nqp * depth);
        s->mr = vg_mr_alloc(s->pd, 0x550000000000ull + i * 0x100000000ull,
                            counter_off(t) + 8, VG_ACCESS_ALL);
        for (unsigned q = 0; q < nqp; q++) {
            struct vg_qp_opts qo = o->qp;

            qo.send_wr = qo.recv_wr = depth;
            t->qp[i][q] = vg_qp_new(s->pd, s->scq, s->rcq, &qo);
        }
    }
    for (unsigned q = 0; q < nqp; q++) {
        vg_qp_connect(t->qp[0][q], t->qp[1][q], &o->conn);
    }
    for (unsigned dir = 0; dir < 2; dir++) {
        for (unsigned q = 0; q < nqp; q++) {
            t->lane[dir][q].tx = t->qp[dir][q];
            t->lane[dir][q].rx = t->qp[1 - dir][q];
        }
    }
}

static bool uses_recv(enum kind k)
{
    return k == K_SEND || k == K_SEND_IMM || k == K_WRITE_IMM;
}

/* What op k will find: source data, and for READ and atomics the remote side. */
static void post(struct vgt_traffic *t, unsigned dir, unsigned q, uint64_t k)
{
    struct vgt_side *tx = &t->s[dir], *rx = &t->s[1 - dir];
    enum kind kind = op_kind(dir, q, k);
    uint32_t len = op_len(t, dir, q, k);
    uint64_t src = slot_off(t, dir, q, k, false);
    uint64_t dst = slot_off(t, dir, q, k, true);
    uint64_t id = (uint64_t)q << 48 | k;
    uint64_t seed = op_hash(dir, q, k);
    struct pvrdma_sge sge = vg_sge(tx->mr, src, len);
    struct vg_wr wr = {.wr_id = id,
                       .opcode = kind_opcode[kind],
                       .flags = PVRDMA_SEND_SIGNALED,
                       .imm = (uint32_t)k,
                       .nsge = 1,
                       .sge = &sge,
                       .remote_addr = rx->mr->buf->va + dst,
                       .rkey = rx->mr->rkey};

    if (kind == K_READ) {
        vgt_fill(VG_MR_HOST(rx->mr, dst), len, seed);
        memset(VG_MR_HOST(tx->mr, src), 0xee, len);
    } else if (kind == K_FAA) {
        memcpy(VG_MR_HOST(rx->mr, dst), &seed, 8);
        wr.compare_add = k + 1;
    } else if (kind == K_CAS) {
        memcpy(VG_MR_HOST(rx->mr, dst), &seed, 8);
        wr.compare_add = seed;
        wr.swap = seed + k + 1;
    } else if (kind == K_TALLY) {
        wr.remote_addr = rx->mr->buf->va + counter_off(t);
        wr.compare_add = 1;
    } else {
        vgt_fill(VG_MR_HOST(tx->mr, src), len, seed);
        memset(VG_MR_HOST(rx->mr, dst), 0xee, len);
    }
    if (uses_recv(kind)) {
        struct pvrdma_sge rsge = vg_sge(rx->mr, dst, t->slot - 8);
        struct vg_wr rwr = {.wr_id = id, .nsge = 1, .sge = &rsge};

        g_assert_cmpuint(vg_post_recv(t->lane[dir][q].rx, &rwr, 1), ==, 1);
    }
    t->posted_at[dir * t->nqp + q] = vg_now_ns();
    g_assert_cmpuint(vg_post_send(t->lane[dir][q].tx, &wr, 1), ==, 1);
}

static void check_cqe(const struct pvrdma_cqe *cqe)
{
    if (cqe->status != PVRDMA_WC_SUCCESS) {
        g_error("traffic: wr_id %" PRIx64 " ended with status %u", cqe->wr_id,
                cqe->status);
    }
}

static void on_send_cqe(struct vgt_traffic *t, unsigned dir, const struct pvrdma_cqe *cqe)
{
    unsigned q = cqe->wr_id >> 48;
    uint64_t k = cqe->wr_id & 0xffffffffffffull;
    struct vgt_lane *l = &t->lane[dir][q];
    enum kind kind = op_kind(dir, q, k);
    uint64_t seed = op_hash(dir, q, k), got;

    check_cqe(cqe);
    g_assert_cmpuint(k, ==, l->sent);
    g_assert_cmpuint(cqe->qp, ==, l->tx->handle);
    l->sent++;
    if (kind == K_READ) {
        uint32_t len = op_len(t, dir, q, k);

        g_assert_cmpuint(cqe->byte_len, ==, len);
        vgt_check(VG_MR_HOST(t->s[dir].mr, slot_off(t, dir, q, k, false)), len, seed);
    } else if (kind == K_WRITE) {
        vgt_check(VG_MR_HOST(t->s[1 - dir].mr, slot_off(t, dir, q, k, true)),
                  op_len(t, dir, q, k), seed);
    } else if (kind == K_TALLY) {
        memcpy(&got, VG_MR_HOST(t->s[dir].mr, slot_off(t, dir, q, k, false)), 8);
        g_assert_cmpuint(got + 1, >, l->count);
        l->count = got + 1;
        t->counted[dir].n++;
        t->counted[dir].sum += got;
    } else if (kind == K_FAA || kind == K_CAS) {
        memcpy(&got, VG_MR_HOST(t->s[dir].mr, slot_off(t, dir, q, k, false)), 8);
        g_assert_cmpuint(got, ==, seed);
        memcpy(&got, VG_MR_HOST(t->s[1 - dir].mr, slot_off(t, dir, q, k, true)), 8);
        g_assert_cmpuint(got, ==, seed + k + 1);
    }
    if (t->depth == 1) {
        double us = (vg_now_ns() - t->posted_at[dir * t->nqp + q]) / 1000.0;

        g_array_append_val(t->latency, us);
    }
}

static void on_recv_cqe(struct vgt_traffic *t, unsigned dir, const struct pvrdma_cqe *cqe)
{
    unsigned q = cqe->wr_id >> 48;
    uint64_t k = cqe->wr_id & 0xffffffffffffull;
    struct vgt_lane *l = &t->lane[dir][q];
    enum kind kind = op_kind(dir, q, k);
    uint32_t len = op_len(t, dir, q, k);

    check_cqe(cqe);
    g_assert_true(uses_recv(kind));
    g_assert_cmpuint(k, >=, l->recvd);
    l->recvd = k + 1;
    g_assert_cmpuint(cqe->qp, ==, l->rx->handle);
    g_assert_cmpuint(cqe->byte_len, ==, len);
    g_assert_cmpuint(cqe->opcode, ==,
                     kind == K_WRITE_IMM ? PVRDMA_WC_RECV_RDMA_WITH_IMM : PVRDMA_WC_RECV);
    if (kind != K_SEND) {
        g_assert_cmpuint(cqe->wc_flags & PVRDMA_WC_FLAG_IMM, !=, 0);
        g_assert_cmpuint(cqe->imm_data, ==, (uint32_t)k);
    }
    vgt_check(VG_MR_HOST(t->s[1 - dir].mr, slot_off(t, dir, q, k, true)), len,
              op_hash(dir, q, k));
    t->bytes += len;
}

/* All operations before k - depth + 1 are over at both ends. */
static bool may_post(const struct vgt_traffic *t, unsigned dir, unsigned q)
{
    const struct vgt_lane *l = &t->lane[dir][q];
    uint64_t k = l->next, old;

    if (k < t->depth) {
        return true;
    }
    old = k - t->depth;
    return l->sent > old && (!uses_recv(op_kind(dir, q, old)) || l->recvd > old);
}

/* When all is done: no addition was lost, and none counted twice. */
static void check_counters(const struct vgt_traffic *t)
{
    for (unsigned dir = 0; dir < 2; dir++) {
        uint64_t n = t->counted[dir].n, got;

        memcpy(&got, VG_MR_HOST(t->s[1 - dir].mr, counter_off(t)), 8);
        g_assert_cmpuint(got, ==, n);
        g_assert_cmpuint(t->counted[dir].sum, ==, n ? n * (n - 1) / 2 : 0);
    }
}

static bool lane_done(const struct vgt_traffic *t, unsigned dir, unsigned q, uint64_t end)
{
    const struct vgt_lane *l = &t->lane[dir][q];

    if (l->next < end || l->sent < end) {
        return false;
    }
    for (uint64_t k = end; k > 0 && end - k < t->depth; k--) {
        if (uses_recv(op_kind(dir, q, k - 1))) {
            return l->recvd >= k;
        }
    }
    return true;
}

/* Until each lane has begun its operations before @end and, @all, they are done. */
static void run_until(struct vgt_traffic *t, uint64_t end, bool all)
{
    int64_t last = vg_now_ns();
    unsigned idle = 0;

    for (bool done = false; !done;) {
        struct pvrdma_cqe cqe;
        bool moved = false;

        done = true;
        for (unsigned dir = 0; dir < 2; dir++) {
            while (vg_cq_poll(t->s[dir].rcq, &cqe, 1) == 1) {
                on_recv_cqe(t, 1 - dir, &cqe);
                moved = true;
            }
            while (vg_cq_poll(t->s[dir].scq, &cqe, 1) == 1) {
                on_send_cqe(t, dir, &cqe);
                t->ops++;
                moved = true;
            }
            for (unsigned q = 0; q < t->nqp; q++) {
                while (t->lane[dir][q].next < end && may_post(t, dir, q)) {
                    post(t, dir, q, t->lane[dir][q].next++);
                    moved = true;
                }
                done = done && t->lane[dir][q].next >= end &&
                       (!all || lane_done(t, dir, q, end));
            }
        }
        if (moved) {
            int64_t now = vg_now_ns();

            idle = 0;
            t->still_ns = MAX(t->still_ns, now - last);
            last = now;
        } else if (++idle > 200) {
            if (vg_now_ns() - last > VGT_WAIT_MS * 1000000ll) {
                vg_daemon_check(t->s[0].g->d);
                g_error("traffic stands still after %" PRIu64 " operations", t->ops);
            }
            usleep(20);
        } else {
            sched_yield();
        }
    }
}

void vgt_traffic_run(struct vgt_traffic *t, uint64_t ops)
{
    run_until(t, t->lane[0][0].next + ops, true);
    check_counters(t);
}

void vgt_traffic_push(struct vgt_traffic *t, uint64_t ops)
{
    run_until(t, t->lane[0][0].next + ops, false);
}

uint64_t vgt_traffic_under_way(const struct vgt_traffic *t)
{
    uint64_t n = 0;

    for (unsigned dir = 0; dir < 2; dir++) {
        for (unsigned q = 0; q < t->nqp; q++) {
            n += t->lane[dir][q].next - t->lane[dir][q].sent;
        }
    }
    return n;
}

void vgt_traffic_close(struct vgt_traffic *t)
{
    for (unsigned i = 0; i < 2; i++) {
        for (unsigned q = 0; q < t->nqp; q++) {
            vg_qp_free(t->qp[i][q]);
        }
        vg_mr_free(t->s[i].mr);
        vg_cq_free(t->s[i].scq);
        vg_cq_free(t->s[i].rcq);
        vg_pd_free(t->s[i].pd);
    }
    if (t->s[1].g != t->s[0].g) {
        vguest_free(t->s[1].g);
    }
    vguest_free(t->s[0].g);
    g_array_unref(t->latency);
    g_free(t->posted_at);
}

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

double vgt_percentile(GArray *values, double percent)
{
    if (!values->len) {
        return 0;
    }
    g_array_sort(values, compare_double);
    return g_array_index(values, double, (guint)((values->len - 1) * percent / 100));
}
