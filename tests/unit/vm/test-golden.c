/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * State streams that are kept: what earlier releases have written is loaded by this one,
 * and no field changes its place.
 *
 * test-golden --full|--reset FILE writes a stream instead.  golden/ has those of the
 * first release's form, state-1 and reset-1: until there is one, they are written anew
 * when the form changes, or what fulldev.c makes; then a new one is put beside them.
 */
#include <string.h>

#include "datapath/engine.h"
#include "fullqueues.h"
#include "pair.h"

/* What fullqueues.c has given to queue pairs in each of these forms: no field may change
 * its place. */
static void assert_attributes(const struct qp *q)
{
    const struct pvrdma_qp_attr *a = &q->attr;

    g_assert_cmpuint(a->rq_psn, ==, 0x123456);
    g_assert_cmpuint(a->sq_psn, ==, 0xfffffe);
    g_assert_cmpuint(a->dest_qp_num, ==, 0x070009);
    g_assert_cmpuint(a->path_mtu, ==, PVRDMA_MTU_1024);
    g_assert_cmpuint(a->max_rd_atomic, ==, 4);
    g_assert_cmpuint(a->min_rnr_timer, ==, 12);
    g_assert_cmpuint(a->timeout, ==, 14);
    g_assert_cmpuint(a->retry_cnt, ==, 6);
    g_assert_cmpuint(a->rnr_retry, ==, 5);
    g_assert_cmpuint(a->ah_attr.flow_label, ==, 0x12345);
    g_assert_cmpuint(a->ah_attr.hop_limit, ==, 64);
    g_assert_cmpuint(a->ah_attr.traffic_class, ==, 3);
    g_assert_cmpuint(a->ah_attr.sl, ==, 2);
}

static void assert_window(const struct qp *q)
{
    const struct qp_requester *req = &q->req;

    assert_attributes(q);
    g_assert_cmpuint(q->sq.cons, ==, 127);
    g_assert_cmpuint(req->seq, ==, 1000);
    g_assert_cmpuint(req->psn, ==, 0xfffffe);
    g_assert_cmpuint(req->replay, ==, 3);
    for (uint64_t i = 0; i < 3; i++) {
        g_assert_cmpuint(window_at(q, 1000 + i)->wr_id, ==, 11 + i);
    }
    g_assert_cmpuint(window_at(q, 1000)->npsn, ==, 4);
    g_assert_cmpuint(window_at(q, 1000)->length, ==, 4096);
    g_assert_cmpuint(window_at(q, 1000)->opcode, ==, PVRDMA_WC_RDMA_READ);
    g_assert_true(window_at(q, 1000)->signaled && window_at(q, 1000)->returns);
    g_assert_cmpuint(window_at(q, 1001)->state, ==, SENT_DONE);
    g_assert_cmpuint(req->retry_seq, ==, 1000);
    g_assert_cmpuint(req->retries_left, ==, 3);
    g_assert_cmpuint(req->rnr_left, ==, 2);
    g_assert_cmpint(req->wait, ==, QP_WAIT_RNR);
    g_assert_cmpuint(req->rnr_until, ==, to->vm.dp.stopped_at + 400000000);
}

static void assert_responder(const struct qp *q)
{
    const struct qp_responder *resp = &q->resp;

    g_assert_cmpuint(atomic_load(&q->state), ==, PVRDMA_QPS_ERR);
    assert_attributes(q);
    g_assert_cmpuint(resp->psn, ==, 0x654321);
    g_assert_cmpuint(resp->seq, ==, 42);
    g_assert_cmpuint(resp->incarnation, ==, 0x1122334455667788);
    g_assert_true(resp->comm_est && resp->inv_period);
    g_assert_cmpuint(resp->inv_key, ==, 0x305);
    g_assert_cmpuint(resp->recv.wr_id, ==, 5);
    g_assert_cmpuint(resp->recv.nsge, ==, 2);
    for (uint32_t i = 0; i < 2; i++) {
        g_assert_cmpuint(resp->recv.sge[i].addr, ==, 0x1000 * (i + 1));
        g_assert_cmpuint(resp->recv.sge[i].length, ==, 100 * (i + 1));
        g_assert_cmpuint(resp->recv.sge[i].lkey, ==, 0x201 + i);
    }
    g_assert_cmpuint(resp->n_atomic, ==, 18);
    for (uint64_t i = 0; i < G_N_ELEMENTS(resp->atomic); i++) {
        g_assert_cmpuint(resp->atomic[i].seq, ==, 20 + i);
        g_assert_cmpuint(resp->atomic[i].old, ==, 1000 * i);
    }
    g_assert_cmpuint(atomic_load(&resp->rx_msgs), ==, 8);
    g_assert_cmpuint(atomic_load(&resp->rx_bytes), ==, 9);
    g_assert_cmpuint(atomic_load(&q->req.tx_msgs), ==, 10);
    g_assert_cmpuint(atomic_load(&q->req.tx_bytes), ==, 11);
    g_assert_cmpuint(atomic_load(&q->seldom.errors), ==, 1);
    g_assert_cmpuint(atomic_load(&q->seldom.rnr_waits), ==, 2);
    g_assert_cmpuint(atomic_load(&q->seldom.retries), ==, 3);
    g_assert_cmpuint(atomic_load(&q->seldom.rnr_naks), ==, 4);
    g_assert_cmpuint(atomic_load(&q->seldom.duplicates), ==, 5);
    g_assert_cmpuint(atomic_load(&q->seldom.dropped), ==, 6);
    g_assert_cmpuint(atomic_load(&resp->failed_status), ==, PVRDMA_WC_REM_ACCESS_ERR);
    g_assert_cmpuint(resp->failed_seq, ==, 42);
}

static void assert_locals(void)
{
    const struct send_op *op = &fullqueues_qp(to, FULL_QP_LOCAL)->req.op;

    g_assert_cmpuint(op->wr_id, ==, 1234567890123);
    g_assert_cmpuint(op->m.opcode, ==, PVRDMA_WR_LOCAL_INV);
    g_assert_cmpuint(op->m.imm, ==, 0x123);
    g_assert_true(op->period);
    op = &fullqueues_qp(to, FULL_QP_REG)->req.op;
    g_assert_cmpuint(op->reg.iova_start, ==, 1);
    g_assert_cmpuint(op->reg.pl_pdir_dma, ==, 2);
    g_assert_cmpuint(op->reg.page_shift, ==, 12);
    g_assert_cmpuint(op->reg.page_list_len, ==, 4);
    g_assert_cmpuint(op->reg.length, ==, 5);
    g_assert_cmpuint(op->reg.access_flags, ==, 6);
    g_assert_cmpuint(op->reg.rkey, ==, 7);
    op = &fullqueues_qp(to, FULL_QP_BIND)->req.op;
    g_assert_cmpuint(op->bind.addr, ==, 1);
    g_assert_cmpuint(op->bind.length, ==, 2);
    g_assert_cmpuint(op->bind.lkey, ==, 3);
    g_assert_cmpuint(op->bind.access_flags, ==, 4);
    g_assert_cmpuint(op->bind.rkey, ==, 5);
}

static void assert_full(void)
{
    const struct cq *cq = id_table_get(&to->vm.objects.cq, FULL_CQ_KERNEL);
    const struct srq *srq = id_table_get(&to->vm.objects.srq, FULL_SRQ_EXT);
    struct objects_stats st = testdev_stats(to);

    g_assert_cmpuint(st.uctx, ==, 3);
    g_assert_cmpuint(st.pd, ==, 2);
    g_assert_cmpuint(st.mr, ==, 9);
    g_assert_cmpuint(st.cq, ==, 3);
    g_assert_cmpuint(st.srq, ==, 2);
    g_assert_cmpuint(st.qp, ==, 8);
    g_assert_cmpuint(st.gid, ==, 2);
    g_assert_cmpuint(atomic_load(&to->vm.dp.tx_msgs), ==, 12345);
    g_assert_cmpuint(atomic_load(&to->vm.dp.uc_dropped[UC_DROPS - 1]), ==, 9);
    g_assert_cmpuint(cq->prod, ==, 70);
    g_assert_cmpuint(cq->cons, ==, 65);
    g_assert_cmpuint(cq->last_sol, ==, 66);
    cq = id_table_get(&to->vm.objects.cq, FULL_CQ_EXT);
    g_assert_cmpuint(cq->hold.count, ==, 100);
    g_assert_cmpuint(cq->hold.ns, ==, 60000000);
    g_assert_cmpuint(cq->hold.n, ==, 4);
    g_assert_true(cq->hold.sol);
    g_assert_cmpuint(srq->rq.wq.cons, ==, 33);
    g_assert_cmpuint(atomic_load(&srq->limit), ==, 7);
    assert_window(fullqueues_qp(to, FULL_QP_WINDOW));
    assert_responder(fullqueues_qp(to, FULL_QP_SRQ));
    assert_locals();
    g_assert_cmpuint(fullqueues_qp(to, FULL_QP_UD)->attr.qkey, ==, 0x11111111);
    g_assert_cmpuint(fullqueues_qp(to, FULL_QP_UD)->attr.sq_psn, ==, 77);
}

/* It is of the same owner, one move later, with its key. */
static void assert_owner(GByteArray *a)
{
    const uint8_t none[sizeof(to->vm.identity.key)] = {0};
    uint64_t len, owner[3];
    uint8_t *key;

    memcpy(owner, pair_section(a, "OWNR", &len), sizeof(owner));
    g_assert_cmpuint(to->vm.identity.owner[0], ==, GUINT64_FROM_LE(owner[0]));
    g_assert_cmpuint(to->vm.identity.owner[1], ==, GUINT64_FROM_LE(owner[1]));
    g_assert_cmpuint(to->vm.identity.generation, ==, GUINT64_FROM_LE(owner[2]) + 1);
    key = pair_section(a, "KEY ", &len);
    g_assert_cmpmem(to->vm.identity.key, sizeof(none), key, len);
    g_assert_cmpint(memcmp(key, none, sizeof(none)), !=, 0);
}

static GByteArray *golden(const char *name)
{
    g_autofree char *path = g_build_filename(GOLDEN_DIR, name, NULL);
    GError *err = NULL;
    gchar *data;
    gsize len;

    g_file_get_contents(path, &data, &len, &err);
    g_assert_no_error(err);
    return g_byte_array_new_take((guint8 *)data, len);
}

/* What earlier releases have written is loaded by this one, is all there, and is written
 * by it as it was. */
static void load_golden(const char *name)
{
    GByteArray *a = golden(name), *b;
    GError *err = NULL;

    to = fulldev_new("state");
    datapath_pause(&to->vm);
    vm_load(&to->vm, a->data, a->len, &err);
    g_assert_no_error(err);
    if (g_str_has_prefix(name, "reset")) {
        pair_assert_reset();
    } else {
        assert_full();
    }
    assert_owner(a);
    b = fulldev_save(to);
    pair_assert_equal(a, b);
    g_byte_array_unref(a);
    g_byte_array_unref(b);
    testdev_free(to);
}

/* The last of a kind, "state" or "reset", is today's form: what differs between two
 * devices left out, today's has the same bytes.  If not, a new one has to be added. */
static void assert_today(const char *kind, unsigned last)
{
    g_autofree char *name = g_strdup_printf("%s-%u", kind, last);
    GByteArray *a = golden(name), *b;
    uint64_t len;

    to = fulldev_new("state");
    if (strcmp(kind, "state") == 0) {
        fulldev_fill(to);
    }
    b = fulldev_save(to);
    pair_make_comparable(a);
    pair_make_comparable(b);
    memset(pair_section(a, "OWNR", &len), 0, 24);
    memset(pair_section(b, "OWNR", &len), 0, 24);
    memcpy(pair_section(b, "KEY ", &len), pair_section(a, "KEY ", &len),
           sizeof(to->vm.identity.key));
    g_assert_cmpmem(a->data, a->len, b->data, b->len);
    g_byte_array_unref(a);
    g_byte_array_unref(b);
    testdev_free(to);
}

static void test_golden(void)
{
    GDir *dir = g_dir_open(GOLDEN_DIR, 0, NULL);
    unsigned n = 0, n_reset = 0;
    const char *name;

    g_assert_nonnull(dir);
    while ((name = g_dir_read_name(dir))) {
        g_test_message("%s", name);
        load_golden(name);
        *(g_str_has_prefix(name, "reset") ? &n_reset : &n) += 1;
    }
    g_dir_close(dir);
    assert_today("state", n);
    assert_today("reset", n_reset);
}

/* A stream of today, to be kept: of a full device, or of one in reset. */
static int write_stream(const char *file, bool full)
{
    struct testdev *td = fulldev_new("state");
    GByteArray *a;
    bool ok;

    if (full) {
        fulldev_fill(td);
    }
    a = fulldev_save(td);
    ok = g_file_set_contents(file, (const char *)a->data, a->len, NULL);
    g_byte_array_unref(a);
    testdev_free(td);
    return !ok;
}

int main(int argc, char **argv)
{
    int ret;

    if (argc == 3 &&
        (strcmp(argv[1], "--full") == 0 || strcmp(argv[1], "--reset") == 0)) {
        testdev_start();
        ret = write_stream(argv[2], strcmp(argv[1], "--full") == 0);
        testdev_stop();
        return ret;
    }
    testdev_init(&argc, &argv);
    log_set_level(LOG_LVL_ERROR);
    g_test_add_func("/vm-golden/streams", test_golden);
    return testdev_run();
}