/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Unit test of datapath/responder.c: which messages are taken.  The expected one is
 * executed, an earlier one acknowledged again, a later one and one of another
 * connection ignored; the first binds the requester, if address, QP numbers and
 * packet sequence number are right.  And the routes that lead requesters here.
 */
#include "qpfix.h"

#define PEER_QPN 0x030007u
#define PSN      0xfffffeu /* wraps soon */

static struct qpfix f;
static struct qp *qp;
static struct conn_path path; /* as the requester has it */

static void setup(void)
{
    qpfix_open(&f, "responder");
    qp = qpfix_qp(&f);
    qpfix_to_rtr(&f, qp, &qpfix_peer_gid, PEER_QPN, PSN);
    path = (struct conn_path){qpfix_peer_gid, qpfix_gid, PEER_QPN, qp->qpn};
}

/* A WRITE of no bytes: one packet, no key, no receive WQE. */
static struct msg message(uint64_t incarnation, uint64_t seq, uint32_t psn)
{
    return (struct msg){.seq = seq,
                        .incarnation = incarnation,
                        .path = &path,
                        .psn = psn & PSN_MASK,
                        .npsn = 1,
                        .opcode = PVRDMA_WR_RDMA_WRITE,
                        .ticket = {0, 1, incarnation}};
}

static enum outcome_what admit(struct msg m)
{
    struct admission a;
    struct outcome o;

    pthread_mutex_lock(&qp->lock);
    o = responder_admit_locked(qp, &m, &a);
    if (o.what == OUT_DONE) {
        responder_finish_locked(qp, &m);
    }
    pthread_mutex_unlock(&qp->lock);
    return o.what;
}

static void test_sequence(void)
{
    setup();
    for (uint64_t seq = 0; seq < 6; seq++) {
        g_assert_cmpint(admit(message(77, seq, PSN + (uint32_t)seq)), ==, OUT_DONE);
        for (uint64_t old = 0; old <= seq; old++) {
            g_assert_cmpint(admit(message(77, old, PSN + (uint32_t)old)), ==,
                            OUT_DUPLICATE);
        }
        g_assert_cmpint(admit(message(77, seq + 2, PSN)), ==, OUT_EARLY);
        g_assert_cmpint(admit(message(77, UINT64_MAX, PSN)), ==, OUT_EARLY);
        /* Whatever else is right, a number of another connection says nothing. */
        g_assert_cmpint(admit(message(78, seq, PSN + (uint32_t)seq)), ==, OUT_SILENT);
        g_assert_cmpint(admit(message(78, seq + 1, PSN + (uint32_t)seq + 1)), ==,
                        OUT_SILENT);
        g_assert_cmpuint(qp->resp.seq, ==, seq + 1);
        g_assert_cmpuint(qp->resp.psn, ==, (PSN + seq + 1) & PSN_MASK);
    }
    testdev_free(f.td);
}

/* Admitted, but broken off before the end: it is expected still. */
static void test_again(void)
{
    struct admission a[2];
    struct msg m;

    setup();
    m = message(5, 0, PSN);
    pthread_mutex_lock(&qp->lock);
    for (unsigned i = 0; i < 2; i++) {
        g_assert_cmpint(responder_admit_locked(qp, &m, &a[i]).what, ==, OUT_DONE);
    }
    pthread_mutex_unlock(&qp->lock);
    g_assert_cmpuint(a[0].epoch, ==, a[1].epoch);
    qpfix_modify(&f, qp, 0, (struct pvrdma_qp_attr){.qp_state = PVRDMA_QPS_ERR});
    g_assert_false(responder_finish(qp, &m, a[1]));
    g_assert_cmpuint(qp->resp.seq, ==, 0);
    g_assert_cmpint(admit(m), ==, OUT_SILENT);
    testdev_free(f.td);
}

/*
 * A message comes by one way while it arrives by another, which knows nothing of that:
 * not before the slice that is being stored is over, and then the former way is.
 */
static void test_two_ways(gconstpointer opcode)
{
    const struct sg_cursor middle = {0, 100}, behind = {0, 50};
    struct recv_op recv, *claimed;
    struct admission old, new;
    struct msg m;
    bool send;

    setup();
    m = message(5, 0, PSN);
    m.opcode = GPOINTER_TO_UINT(opcode);
    send = msg_is_send(&m);
    claimed = &qp->resp.recv;
    claimed->active = send;
    pthread_mutex_lock(&qp->lock);
    g_assert_cmpint(responder_admit_locked(qp, &m, &old).what, ==, OUT_DONE);
    responder_begin_slice_locked(qp, &m, &recv);
    g_assert_cmpint(responder_admit_locked(qp, &m, &new).what, ==, OUT_HELD);
    pthread_mutex_unlock(&qp->lock);
    responder_end_slice(qp, &m, old, &middle);
    g_assert_cmpuint(claimed->cur.offset, ==, send ? middle.offset : 0);
    g_assert_true(responder_begin_slice(qp, &m, old, &recv)); /* nobody else has it */
    responder_end_slice(qp, &m, old, &middle);

    pthread_mutex_lock(&qp->lock);
    g_assert_cmpint(responder_admit_locked(qp, &m, &new).what, ==, OUT_DONE);
    pthread_mutex_unlock(&qp->lock);
    g_assert_cmpuint(claimed->cur.offset, ==, 0);
    g_assert_false(responder_begin_slice(qp, &m, old, &recv));
    responder_end_slice(qp, &m, old, &behind);
    g_assert_cmpuint(claimed->cur.offset, ==, 0);
    g_assert_false(responder_finish(qp, &m, old));
    g_assert_cmpuint(qp->resp.seq, ==, 0);

    g_assert_true(responder_begin_slice(qp, &m, new, &recv));
    responder_end_slice(qp, &m, new, &behind);
    g_assert_cmpuint(claimed->cur.offset, ==, send ? behind.offset : 0);
    claimed->active = false;
    if (!send) { /* whose completion is a worker's */
        g_assert_true(responder_finish(qp, &m, new));
        g_assert_cmpuint(qp->resp.seq, ==, 1);
    }
    testdev_free(f.td);
}

static void test_binding(void)
{
    struct conn_path right;

    setup();
    right = path;
    for (unsigned wrong = 0; wrong < 5; wrong++) {
        uint32_t psn = PSN;

        path = right;
        switch (wrong) {
        case 0:
            path.sgid.raw[15] ^= 1;
            break;
        case 1:
            path.dgid.raw[15] ^= 1;
            break;
        case 2: /* another generation of that handle */
            path.sqpn += 0x010000;
            break;
        case 3:
            path.dqpn += 0x010000;
            break;
        case 4:
            psn++;
            break;
        }
        g_assert_cmpint(admit(message(1 + wrong, 0, psn)), ==, OUT_SILENT);
        g_assert_cmpuint(qp->resp.incarnation, ==, 0);
    }
    /* Nobody is bound while the address that this QP sends from is lost. */
    path = right;
    datapath_gid_unbound(&f.td->vm, 0);
    g_assert_cmpint(admit(message(9, 0, PSN)), ==, OUT_SILENT);
    g_assert_cmpuint(qp->resp.incarnation, ==, 0);
    atomic_store(&qp->req.bound, true);

    /* The requester may be in the middle of its own count. */
    g_assert_cmpint(admit(message(9, 1000, PSN)), ==, OUT_DONE);
    g_assert_cmpuint(qp->resp.incarnation, ==, 9);
    g_assert_cmpint(admit(message(9, 999, PSN - 1)), ==, OUT_DUPLICATE);
    g_assert_cmpint(admit(message(9, 1001, PSN + 1)), ==, OUT_DONE);
    testdev_free(f.td);
}

/* RTR anew: what the old connection still sends does not come in between. */
static void test_new_connection(void)
{
    setup();
    for (uint32_t i = 0; i < 3; i++) {
        g_assert_cmpint(admit(message(1, i, PSN + i)), ==, OUT_DONE);
    }
    qpfix_modify(&f, qp, 0, (struct pvrdma_qp_attr){.qp_state = PVRDMA_QPS_RESET});
    g_assert_cmpint(admit(message(1, 3, PSN + 3)), ==, OUT_SILENT);
    qpfix_to_rtr(&f, qp, &qpfix_peer_gid, PEER_QPN, 500);
    g_assert_cmpint(admit(message(1, 3, PSN + 3)), ==, OUT_SILENT);
    g_assert_cmpint(admit(message(1, 0, PSN)), ==, OUT_SILENT);
    g_assert_cmpint(admit(message(2, 0, 500)), ==, OUT_DONE);
    /* Not even with the packet and sequence numbers that are expected now. */
    g_assert_cmpint(admit(message(1, 1, 501)), ==, OUT_SILENT);
    g_assert_cmpint(admit(message(1, 0, 500)), ==, OUT_SILENT);
    g_assert_cmpint(admit(message(2, 1, 501)), ==, OUT_DONE);
    testdev_free(f.td);
}

/* What an atomic of an earlier connection returned is no answer to anybody. */
static void test_saved_atomics(void)
{
    struct pvrdma_ah_attr ah = {.hop_limit = 64, .ah_flags = 1, .port_num = 1};
    uint64_t old;

    setup();
    g_assert_cmpint(admit(message(1, 0, PSN)), ==, OUT_DONE);
    pthread_mutex_lock(&qp->lock);
    qp->resp.atomic[qp->resp.n_atomic++] = (struct atomic_result){0, 42};
    g_assert_true(responder_saved_atomic_locked(qp, 0, &old));
    pthread_mutex_unlock(&qp->lock);
    qpfix_to_rts(&f, qp, 7);
    qpfix_modify(&f, qp, 0, (struct pvrdma_qp_attr){.qp_state = PVRDMA_QPS_SQD});
    ah.dgid = path.sgid = (struct pvrdma_gid){.raw = {[10] = 0xff, 0xff, 10, 0, 0, 3}};
    qpfix_modify(&f, qp, PVRDMA_QP_AV,
                 (struct pvrdma_qp_attr){.qp_state = PVRDMA_QPS_SQD, .ah_attr = ah});
    g_assert_cmpint(admit(message(2, 0, PSN + 1)), ==, OUT_DONE);
    pthread_mutex_lock(&qp->lock);
    g_assert_false(responder_saved_atomic_locked(qp, 0, &old));
    pthread_mutex_unlock(&qp->lock);
    testdev_free(f.td);
}

/* ---- what leads here ---- */

/*
 * Whatever may end what a peer found by a route changes the route's generation before;
 * nobody holds a pointer that he may not compare first.
 */
static void test_route(void)
{
    struct route *r;
    struct qp *other;
    uint64_t gen;

    setup();
    r = route_get(f.td->vm.cfg->network, &qpfix_gid);
    g_assert_true(atomic_load(&r->vm) == &f.td->vm);
    gen = atomic_load(&r->gen);

    other = qpfix_qp(&f);
    g_assert_cmpuint(atomic_load(&r->gen), ==, gen); /* what is new ends nothing */
    g_assert_cmpuint(testdev_handle(f.td, PVRDMA_CMD_DESTROY_QP, other->handle), ==, 0);
    g_assert_cmpuint(atomic_load(&r->gen), >, gen);

    gen = atomic_load(&r->gen);
    datapath_pause(&f.td->vm);
    g_assert_cmpuint(atomic_load(&r->held_until), >, now_ns());
    g_assert_cmpuint(atomic_load(&r->gen), >, gen);
    gen = atomic_load(&r->gen);
    datapath_resume(&f.td->vm);
    g_assert_cmpuint(atomic_load(&r->held_until), ==, 0);
    g_assert_cmpuint(atomic_load(&r->gen), >, gen);

    gen = atomic_load(&r->gen);
    directory_unbind(&f.td->vm, &qpfix_gid);
    g_assert_null(atomic_load(&r->vm));
    g_assert_cmpuint(atomic_load(&r->gen), >, gen);
    gen = atomic_load(&r->gen);
    g_assert_cmpint(directory_bind(&f.td->vm, &qpfix_gid), ==, 0);
    g_assert_cmpuint(atomic_load(&r->gen), >, gen);

    /* The VM goes, the route stays for who refers to it. */
    gen = atomic_load(&r->gen);
    testdev_free(f.td);
    g_assert_null(atomic_load(&r->vm));
    g_assert_cmpuint(atomic_load(&r->gen), >, gen);
    g_assert_cmpuint(directory_routes(), ==, 1);
    route_put(r);
    g_assert_cmpuint(directory_routes(), ==, 0);
}

int main(int argc, char **argv)
{
    testdev_init(&argc, &argv);
    g_test_add_func("/responder/sequence", test_sequence);
    g_test_add_func("/responder/again", test_again);
    g_test_add_data_func("/responder/two-ways/send", GUINT_TO_POINTER(PVRDMA_WR_SEND),
                         test_two_ways);
    g_test_add_data_func("/responder/two-ways/write",
                         GUINT_TO_POINTER(PVRDMA_WR_RDMA_WRITE), test_two_ways);
    g_test_add_func("/responder/binding", test_binding);
    g_test_add_func("/responder/new-connection", test_new_connection);
    g_test_add_func("/responder/saved-atomics", test_saved_atomics);
    g_test_add_func("/responder/route", test_route);
    return testdev_run();
}
