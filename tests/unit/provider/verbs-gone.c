/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What polls find of a device that is gone, and receives that the device names wrongly;
 * see verbs.h.  One thread.
 */
#include <signal.h>
#include <sys/mman.h>

#include "verbs.h"

static struct ibv_qp *make_srq_qp(const struct rig *r, struct ibv_srq *srq)
{
    struct ibv_qp_init_attr attr = {
        .send_cq = r->cq,
        .recv_cq = r->cq,
        .srq = srq,
        .cap = {.max_send_wr = 4, .max_send_sge = 1},
        .qp_type = IBV_QPT_RC,
    };

    return make_qp_with(r, &attr);
}

static struct ibv_sge sge = {0x1000, 8, 1};

/* Requests of these names; of those sent, every other one is signalled. */
static void sends(struct ibv_qp *qp, uint64_t first, unsigned n)
{
    struct ibv_send_wr wr[8], *bad;

    list_of(wr, &sge, n, first);
    for (unsigned i = 1; i < n; i += 2) {
        wr[i].send_flags = 0;
    }
    g_assert_cmpint(fake.ops->post_send(qp, wr, &bad), ==, 0);
}

static int receive(struct ibv_qp *qp, uint64_t wr_id)
{
    struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1}, *bad;

    return fake.ops->post_recv(qp, &wr, &bad);
}

/* The next completion, by the CQ's way of polling; false: there is none. */
static bool next_of(struct ibv_cq *cq, struct ibv_cq_ex *ex, struct ibv_wc *wc)
{
    struct ibv_poll_cq_attr none = {0};
    int n;

    if (!ex) {
        n = fake.ops->poll_cq(cq, 1, wc);
        g_assert_cmpint(n, >=, 0);
        return n;
    }
    n = ibv_start_poll(ex, &none);
    if (n) {
        g_assert_cmpint(n, ==, ENOENT);
        return false;
    }
    wc->wr_id = ex->wr_id;
    wc->status = ex->status;
    wc->opcode = ibv_wc_read_opcode(ex);
    wc->qp_num = ibv_wc_read_qp_num(ex);
    ibv_end_poll(ex);
    return true;
}

/* These of @qp come as flushed, those of one kind in their order, and then no more. */
static void flushes(struct ibv_cq *cq, struct ibv_cq_ex *ex, const struct ibv_qp *qp,
                    uint64_t sent, unsigned n_sent, uint64_t received,
                    unsigned n_received)
{
    struct ibv_wc wc;

    while (n_sent + n_received > 0) {
        g_assert_true(next_of(cq, ex, &wc));
        g_assert_cmpint(wc.status, ==, IBV_WC_WR_FLUSH_ERR);
        g_assert_cmpuint(wc.qp_num, ==, qp->qp_num);
        if (wc.opcode == IBV_WC_SEND) {
            g_assert_cmpuint(n_sent--, >, 0);
            g_assert_cmpuint(wc.wr_id, ==, sent++);
        } else {
            g_assert_cmpint(wc.opcode, ==, IBV_WC_RECV);
            g_assert_cmpuint(n_received--, >, 0);
            g_assert_cmpuint(wc.wr_id, ==, received++);
        }
    }
    for (unsigned i = 0; i < 4; i++) {
        g_assert_false(next_of(cq, ex, &wc));
    }
}

static void is_real(struct ibv_cq *cq, struct ibv_cq_ex *ex, uint64_t wr_id)
{
    struct ibv_wc wc;

    g_assert_true(next_of(cq, ex, &wc));
    g_assert_cmpuint(wc.wr_id, ==, wr_id);
    g_assert_cmpint(wc.status, ==, IBV_WC_SUCCESS);
}

/*
 * First what the device had completed, then all else that is outstanding as flushed, once
 * each, and what is posted from then on; of a QP with an SRQ what it sent only.
 */
static void gone(struct rig *r, struct ibv_cq_ex *ex)
{
    struct ibv_srq_init_attr srq_attr = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
    struct ibv_srq *srq = fake.ops->create_srq(r->pd, &srq_attr);
    struct ibv_recv_wr wr = {.wr_id = 400, .sg_list = &sge, .num_sge = 1}, *bad;
    struct ibv_qp *qp = make_qp(r, 8), *shared = make_srq_qp(r, srq);
    struct ibv_wc wc;

    device_complete(r, qp, 100);
    for (unsigned i = 1; i < 5; i++) {
        g_assert_cmpint(receive(qp, 100 + i), ==, 0);
    }
    sends(qp, 200, 6);
    /* Four taken, and the third complete: the first two are, then. */
    for (unsigned i = 0; i < 4; i++) {
        g_assert_nonnull(device_take(r, 1));
    }
    device_sent(r, 1, 202, PVRDMA_EXT_CQE_SENT | 3);
    g_assert_cmpint(fake.ops->post_srq_recv(srq, &wr, &bad), ==, 0);
    is_real(r->cq, ex, 100);
    fake.ext->head.gone = 1;
    is_real(r->cq, ex, 202);
    if (!r->ext) { /* that word is not there */
        for (unsigned i = 0; i < 4; i++) {
            g_assert_false(next_of(r->cq, ex, &wc));
        }
    } else {
        flushes(r->cq, ex, qp, 203, 3, 101, 4);
        /* What it completed before it went comes late and first, though. */
        sends(shared, 300, 3);
        g_assert_nonnull(device_take(r, 2));
        device_sent(r, 2, 300, PVRDMA_EXT_CQE_SENT | 1);
        is_real(r->cq, ex, 300);
        flushes(r->cq, ex, shared, 301, 2, 0, 0);
        /* More than there are slots, round and round. */
        for (unsigned i = 0; i < 40; i++) {
            sends(qp, 500 + i, 1);
            g_assert_cmpint(receive(qp, 600 + i), ==, 0);
            flushes(r->cq, ex, qp, 500 + i, 1, 600 + i, 1);
        }
        for (unsigned i = 0; i < 8; i++) {
            g_assert_cmpint(receive(qp, 700 + i), ==, 0);
        }
        g_assert_cmpint(receive(qp, 708), ==, ENOMEM);
        flushes(r->cq, ex, qp, 0, 0, 700, 8);
        /* A reset takes back what is outstanding. */
        sends(qp, 800, 3);
        g_assert_cmpint(receive(qp, 900), ==, 0);
        g_assert_cmpint(fake.ops->modify_qp(qp, &reset, IBV_QP_STATE), ==, 0);
        flushes(r->cq, ex, qp, 0, 0, 0, 0);
    }
    fake.ops->destroy_qp(qp);
    fake.ops->destroy_qp(shared);
    fake.ops->destroy_srq(srq);
}

void test_gone(struct rig *r, gconstpointer data)
{
    gone(r, NULL);
}

void test_gone_ex(struct rig *r, gconstpointer data)
{
    struct ibv_cq_init_attr_ex attr = {.cqe = 8, .wc_flags = IBV_WC_STANDARD_FLAGS};
    struct ibv_cq_ex *cq = fake.ops->create_cq_ex(r->ctx, &attr);
    struct rig plain = *r;

    r->cq = ibv_cq_ex_to_cq(cq);
    r->cq_addr = fake.cq.buf_addr;
    gone(r, cq);
    fake.ops->destroy_cq(r->cq);
    *r = plain;
}

/* The library's look at the gone word faults: before it the last completion comes. */
static struct {
    const struct rig *rig;
    unsigned looks;
} late;

static void last_one(int sig)
{
    if (mprotect(to_pv_ctx(late.rig->ctx)->ext, 4096, PROT_READ | PROT_WRITE)) {
        abort();
    }
    late.looks++;
    device_sent(late.rig, 1, 10, PVRDMA_EXT_CQE_SENT | 1);
    fake.ext->head.gone = 1;
}

static void gone_late(struct rig *r, struct ibv_cq_ex *ex)
{
    struct sigaction act = {.sa_handler = last_one}, before;
    struct ibv_qp *qp = make_qp(r, 4);

    sends(qp, 10, 3);
    g_assert_nonnull(device_take(r, 1));
    late.rig = r;
    late.looks = 0;
    g_assert_cmpint(sigaction(SIGSEGV, &act, &before), ==, 0);
    g_assert_cmpint(mprotect(to_pv_ctx(r->ctx)->ext, 4096, PROT_NONE), ==, 0);
    is_real(r->cq, ex, 10);
    g_assert_cmpint(sigaction(SIGSEGV, &before, NULL), ==, 0);
    g_assert_cmpuint(late.looks, ==, 1);
    flushes(r->cq, ex, qp, 11, 2, 0, 0);
    fake.ops->destroy_qp(qp);
    fake.next_handle = 1;
    fake.ext->head.gone = 0;
}

/* What completes between a look at an empty CQ and that at the device is not flushed. */
void test_gone_late(struct rig *r, gconstpointer data)
{
    struct ibv_cq_init_attr_ex attr = {.cqe = 8, .wc_flags = IBV_WC_STANDARD_FLAGS};
    struct rig plain = *r;
    struct ibv_cq_ex *cq;

    if (!r->ext) {
        return;
    }
    gone_late(r, NULL);
    cq = fake.ops->create_cq_ex(r->ctx, &attr);
    r->cq = ibv_cq_ex_to_cq(cq);
    r->cq_addr = fake.cq.buf_addr;
    gone_late(r, cq);
    fake.ops->destroy_cq(r->cq);
    *r = plain;
}

/* Each queue's on its own CQ, several in one poll, in extended mode. */
void test_gone_two_cqs(struct rig *r, gconstpointer data)
{
    struct ibv_cq *other;
    struct ibv_qp *one, *two;
    struct ibv_wc wc[8];

    if (!r->ext) {
        return;
    }
    other = fake.ops->create_cq(r->ctx, 8, NULL, 0);
    one = make_qp_of(r, 4, other);
    two = make_qp(r, 4);
    sends(one, 10, 3);
    sends(two, 20, 2);
    g_assert_cmpint(receive(one, 30), ==, 0);
    g_assert_cmpint(receive(two, 40), ==, 0);
    fake.ext->head.gone = 1;
    g_assert_cmpint(fake.ops->poll_cq(other, 2, wc), ==, 2);
    g_assert_cmpint(fake.ops->poll_cq(other, 8, wc + 2), ==, 1);
    for (unsigned i = 0; i < 3; i++) {
        g_assert_cmpuint(wc[i].wr_id, ==, 10 + i);
        g_assert_cmpint(wc[i].opcode, ==, IBV_WC_SEND);
        g_assert_cmpuint(wc[i].qp_num, ==, one->qp_num);
    }
    fake.ops->destroy_qp(two); /* and what was outstanding on it */
    g_assert_cmpint(fake.ops->poll_cq(r->cq, 8, wc), ==, 1);
    g_assert_cmpuint(wc[0].wr_id, ==, 30);
    g_assert_cmpint(fake.ops->poll_cq(r->cq, 8, wc), ==, 0);
    g_assert_cmpint(fake.ops->poll_cq(other, 8, wc), ==, 0);
    fake.ops->destroy_qp(one);
    fake.ops->destroy_cq(other);
}

/*
 * A receive's completion that names none that is outstanding is dropped: an index that is
 * none, one that nobody has posted yet, one that has completed.
 */
void test_bad_names(struct rig *r, gconstpointer data)
{
    static const uint64_t none[] = {8, 1ull << 32, UINT64_MAX};
    struct ibv_qp *qp;
    struct ibv_wc wc[8];

    if (!r->ext) {
        return;
    }
    qp = make_qp(r, 4);
    for (unsigned round = 0; round < 20; round += 2) {
        for (unsigned i = 0; i < 2; i++) {
            g_assert_cmpint(receive(qp, 50 + round + i), ==, 0);
        }
        for (unsigned i = 0; i < G_N_ELEMENTS(none); i++) {
            device_received(r, 1, none[i]);
        }
        device_received(r, 1, (round + 2) % 8);
        device_received(r, 1, (round + 7) % 8);
        device_received(r, 1, round % 8);
        device_received(r, 1, round % 8);
        g_assert_cmpint(fake.ops->poll_cq(r->cq, 8, wc), ==, 1);
        g_assert_cmpuint(wc[0].wr_id, ==, 50 + round);
        device_received(r, 1, round % 8);
        device_received(r, 1, round % 8 + 1);
        g_assert_cmpint(fake.ops->poll_cq(r->cq, 8, wc), ==, 1);
        g_assert_cmpuint(wc[0].wr_id, ==, 51 + round);
        *qp_words(r, 1).rx_cons = (round + 2) % 8;
    }
    fake.ops->destroy_qp(qp);
}
