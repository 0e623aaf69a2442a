/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: what an administrator sees and does while VMs are at work.
 * Queue pair lists longer than one answer, counters that agree with the traffic
 * to the byte, VMs added and removed under load.
 */
#include "vgtest.h"

#include <string.h>

#define MANY_QPS 1300 /* answers carry 512 rows */

static JsonArray *member_array(JsonNode *node, const char *name)
{
    return json_object_get_array_member(json_node_get_object(node), name);
}

static int64_t num(JsonObject *o, const char *group, const char *name)
{
    return json_object_get_int_member(group ? json_object_get_object_member(o, group) : o,
                                      name);
}

static void test_qp_pages(void)
{
    static struct vg_qp *qp[MANY_QPS];
    struct vg_qp_opts qo = {
        .send_wr = 4, .recv_wr = 4, .send_sge = 1, .recv_sge = 1, .contig = true};
    GHashTable *seen = g_hash_table_new(NULL, NULL);
    struct vgt_pair p;
    JsonArray *rows;
    JsonNode *node;

    vgt_pair_open(&p, 0, 1, NULL);
    for (unsigned i = 0; i < MANY_QPS; i++) {
        qp[i] = vg_qp_new(p.s[0].pd, p.s[0].scq, p.s[0].rcq, &qo);
    }
    node = vg_ctl_json(vgt_daemon, "qp list vm0");
    rows = member_array(node, "qps");
    g_assert_cmpuint(json_array_get_length(rows), ==, MANY_QPS + 1);
    for (guint i = 0; i < json_array_get_length(rows); i++) {
        JsonObject *row = json_array_get_object_element(rows, i);

        g_assert_cmpstr(json_object_get_string_member(row, "vm"), ==, "vm0");
        g_assert_true(g_hash_table_add(seen, GSIZE_TO_POINTER(num(row, NULL, "handle"))));
    }
    for (unsigned i = 0; i < MANY_QPS; i++) {
        g_assert_true(g_hash_table_contains(seen, GSIZE_TO_POINTER(qp[i]->handle)));
    }
    g_assert_cmpstr(
        json_object_get_string_member(vg_qp_row(node, qp[7]->handle), "state"), ==,
        "RESET");
    json_node_unref(node);
    for (unsigned i = 0; i < MANY_QPS; i++) {
        vg_qp_free(qp[i]);
    }
    g_hash_table_destroy(seen);
    vgt_pair_close(&p);
}

static void test_qp_row(void)
{
    struct vg_conn c = {.min_rnr_timer = 14}; /* 1 ms */
    struct vgt_opts o = {.conn = c};
    struct vgt_pair p;
    JsonObject *row;
    JsonNode *node;

    vgt_pair_open(&p, 0, 1, &o);
    for (unsigned i = 0; i < 5; i++) {
        vgt_recv(&p.s[1], i, 0, 64);
        vgt_complete(&p.s[0], i, PVRDMA_WR_SEND, 0, 64, NULL, 0);
        vgt_expect(p.s[1].rcq, i, PVRDMA_WC_SUCCESS);
    }
    vgt_recv(&p.s[0], 9, 0, 64);                                   /* stays */
    vgt_send(&p.s[0], 7, PVRDMA_WR_SEND, VGT_SIG, 0, 64, NULL, 0); /* RNR */
    vgt_await_counter("vm0", "datapath", "rnr_waits", 1);

    node = vg_ctl_json(vgt_daemon, "qp list vm0");
    row = vg_qp_row(node, p.s[0].qp->handle);
    g_assert_cmpint(num(row, NULL, "qpn"), ==, p.s[0].qp->qpn);
    g_assert_cmpint(num(row, NULL, "dest_qpn"), ==, p.s[1].qp->qpn);
    g_assert_cmpstr(json_object_get_string_member(row, "dest_gid"), ==, "10.0.0.2");
    g_assert_cmpstr(json_object_get_string_member(row, "type"), ==, "RC");
    g_assert_cmpstr(json_object_get_string_member(row, "state"), ==, "RTS");
    g_assert_cmpstr(json_object_get_string_member(row, "transport"), ==, "copy");
    g_assert_cmpstr(json_object_get_string_member(row, "wait"), ==, "rnr");
    g_assert_cmpint(num(row, NULL, "sent"), ==, 5);
    g_assert_cmpint(num(row, "sq", "producer"), ==, 6);
    g_assert_cmpint(num(row, "sq", "consumer"), ==, 5); /* not acknowledged */
    g_assert_cmpint(num(row, "rq", "producer"), ==, 1);
    g_assert_cmpint(num(row, "rq", "consumer"), ==, 0);
    json_node_unref(node);

    node = vg_ctl_json(vgt_daemon, "qp list vm1");
    row = vg_qp_row(node, p.s[1].qp->handle);
    g_assert_cmpint(num(row, NULL, "received"), ==, 5);
    g_assert_cmpint(num(row, "rq", "consumer"), ==, 5);
    json_node_unref(node);

    vgt_recv(&p.s[1], 8, 0, 64);
    vgt_expect(p.s[0].scq, 7, PVRDMA_WC_SUCCESS);
    vgt_pair_close(&p);
}

/* The counters of VM @vm, to be freed with *@node. */
static JsonObject *counters(const char *vm, JsonNode **node)
{
    *node = vg_ctl_json(vgt_daemon, "counters %s", vm);
    g_assert_cmpuint(json_array_get_length(member_array(*node, "vms")), ==, 1);
    return json_array_get_object_element(member_array(*node, "vms"), 0);
}

static int64_t counter(const char *vm, const char *group, const char *name)
{
    g_autoptr(JsonNode) node = NULL;

    return num(counters(vm, &node), group, name);
}

static void test_counters(void)
{
    int64_t cmds, bells, bytes = 0;
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, NULL);
    g_assert_cmpint(counter("vm0", "datapath", "tx_messages"), ==, 0);
    cmds = counter("vm0", "device", "commands");
    bells = counter("vm0", "device", "doorbell_writes");
    g_assert_cmpint(counter("vm0", "interrupts", "command"), >, 0);
    for (unsigned i = 0; i < 40; i++) {
        uint32_t len = i * 5000; /* 0 bytes, several slices */

        vgt_complete(&p.s[0], i, PVRDMA_WR_RDMA_WRITE, 0, len, &p.s[1], 0);
        bytes += len;
    }
    g_assert_cmpint(counter("vm0", "datapath", "tx_messages"), ==, 40);
    g_assert_cmpint(counter("vm0", "datapath", "tx_bytes"), ==, bytes);
    g_assert_cmpint(counter("vm1", "datapath", "rx_messages"), ==, 40);
    g_assert_cmpint(counter("vm1", "datapath", "rx_bytes"), ==, bytes);
    g_assert_cmpint(counter("vm0", "datapath", "errors"), ==, 0);
    g_assert_cmpint(counter("vm0", "device", "doorbell_writes"), >=, bells + 40);

    /* A refused command, and an error completion. */
    g_assert_cmpuint(vg_qp_state(p.s[0].qp), ==, PVRDMA_QPS_RTS);
    g_assert_cmpint(vg_destroy(p.s[0].g, PVRDMA_CMD_DESTROY_PD, 4711), >, 0);
    g_assert_cmpint(counter("vm0", "device", "commands"), ==, cmds + 2);
    g_assert_cmpint(counter("vm0", "device", "failed_commands"), ==, 1);
    vgt_send(&p.s[0], 1, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p.s[1], 1ull << 40);
    vgt_expect(p.s[0].scq, 1, PVRDMA_WC_REM_ACCESS_ERR);
    g_assert_cmpint(counter("vm0", "datapath", "errors"), ==, 1);
    vgt_pair_close(&p);
    /* They belong to the attachment. */
    vgt_pair_open(&p, 0, 1, NULL);
    g_assert_cmpint(counter("vm0", "datapath", "tx_messages"), ==, 0);
    vgt_pair_close(&p);
}

/* Doorbells of a VMM that sends them as messages, and those of them that only poll. */
static void test_doorbell_messages(const void *data)
{
    struct vg_opts g = {.db = GPOINTER_TO_UINT(data)};
    struct vgt_opts o = {.guest = {g, g}};
    int64_t bells, polls;
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, &o);
    bells = counter("vm0", "device", "doorbell_writes");
    polls = counter("vm0", "device", "doorbell_polls");
    for (unsigned i = 0; i < 20; i++) {
        vgt_write_once(&p, i);
    }
    for (unsigned i = 0; i < 5; i++) {
        vg_doorbell(p.s[0].g, p.s[0].scq->uar_page, PVRDMA_UAR_CQ,
                    p.s[0].scq->handle | PVRDMA_UAR_CQ_POLL);
    }
    vg_cq_arm(p.s[0].scq, false);
    vg_reg_read(p.s[0].g, PVRDMA_REG_VERSION); /* after all that was posted */
    g_assert_cmpint(counter("vm0", "device", "doorbell_writes"), ==, bells + 26);
    g_assert_cmpint(counter("vm0", "device", "doorbell_polls"), ==, polls + 5);
    vgt_pair_close(&p);
}

/* A VM is removed while its peer sends to it, and declared anew. */
static void test_remove(void)
{
    struct vg_conn c = {.timeout = 8, .retry_cnt = 2};
    struct vgt_opts o = {.conn = c};
    struct pvrdma_cqe cqe;
    struct vgt_pair p;

    for (unsigned round = 0; round < 5; round++) {
        bool alive = true;

        vgt_pair_open(&p, 0, 2, &o);
        vgt_complete(&p.s[0], 1, PVRDMA_WR_RDMA_WRITE, 0, 100000, &p.s[1], 0);
        g_assert_cmpint(vg_ctl(vgt_daemon, NULL, "vm remove vm2"), ==, 0);
        g_assert_cmpint(vg_ctl(vgt_daemon, NULL, "counters vm2"), ==, 1);
        g_assert_true(vg_wait_closed(p.s[1].g, VGT_WAIT_MS));
        vg_disconnect(p.s[1].g);
        for (unsigned i = 0; alive; i++) {
            vgt_send(&p.s[0], 2, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 100, &p.s[1], 0);
            g_assert_true(vg_cq_wait(p.s[0].scq, &cqe, VGT_WAIT_MS));
            alive = cqe.status == PVRDMA_WC_SUCCESS;
            g_assert_cmpuint(i, <, 3);
        }
        g_assert_cmpuint(cqe.status, ==, PVRDMA_WC_RETRY_EXC_ERR);
        vgt_pair_close(&p);
        g_assert_cmpint(vg_ctl(vgt_daemon, NULL,
                               "vm add vm2 network=lan "
                               "addresses=10.0.0.3"),
                        ==, 0);
        vgt_assert_no_objects("vm2");
    }
}

static gint stop_listing;

static gpointer list_thread(gpointer data)
{
    static const char *const commands[] = {"status",   "qp list",
                                           "counters", "--json qp list vm1",
                                           "vm list",  "--json status"};
    unsigned n = 0;

    while (!g_atomic_int_get(&stop_listing)) {
        g_assert_cmpint(
            vg_ctl(vgt_daemon, NULL, "%s", commands[n++ % G_N_ELEMENTS(commands)]), ==,
            0);
    }
    return GSIZE_TO_POINTER(n);
}

/* Reports are made while queue pairs come, work and go. */
static void test_look_under_load(void)
{
    struct vg_qp_opts qo = {.send_wr = 4, .recv_wr = 4};
    struct vgt_traffic t;
    GThread *thread;
    int64_t end;

    vgt_traffic_open(&t, 0, 1, 4, 4, 100000, NULL);
    g_atomic_int_set(&stop_listing, 0);
    thread = g_thread_new("list", list_thread, NULL);
    end = vg_now_ns() + 3000000000ll;
    while (vg_now_ns() < end) {
        struct vg_qp *qp = vg_qp_new(t.s[0].pd, t.s[0].scq, t.s[0].rcq, &qo);

        vg_qp_connect(qp, qp, NULL);
        vgt_traffic_run(&t, 10);
        vg_qp_free(qp);
    }
    g_atomic_int_set(&stop_listing, 1);
    g_test_message("%zu reports beside %" PRIu64 " operations",
                   GPOINTER_TO_SIZE(g_thread_join(thread)), t.ops);
    vgt_traffic_close(&t);
}

int main(int argc, char **argv)
{
    vgt_start(&argc, &argv, 120, 3);
    g_test_add_func("/admin/qp-list/pages", test_qp_pages);
    g_test_add_func("/admin/qp-list/row", test_qp_row);
    g_test_add_func("/admin/counters", test_counters);
    g_test_add_data_func("/admin/doorbell-messages/reply", GUINT_TO_POINTER(VG_DB_REPLY),
                         test_doorbell_messages);
    g_test_add_data_func("/admin/doorbell-messages/posted",
                         GUINT_TO_POINTER(VG_DB_POSTED), test_doorbell_messages);
    g_test_add_func("/admin/remove", test_remove);
    g_test_add_func("/admin/look-under-load", test_look_under_load);
    return vgt_run();
}
