/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the daemon says about itself, as JSON.
 *
 * Main thread.  Objects are made and destroyed by this thread, so their
 * pointers hold still; what workers change is read under the VM's token and the
 * QP's lock, or is an atomic counter.  Answers are bounded: QPs come in pages of
 * CONTROL_QP_PAGE rows, which are copied under the token and become text afterwards,
 * so that listing them keeps neither the VM's traffic nor anybody's commands waiting.
 */
#include <json-glib/json-glib.h>

#include "control/control.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "directory/directory.h"
#include "frontend/frontend.h"
#include "guest/budget.h"
#include "pvrdma/ext.h"
#include "datapath/transport.h"
#include "datapath/datapath.h"
#include "device/device.h"
#include "vm.h"

#define NAME_OF(table, i) ((i) < G_N_ELEMENTS(table) && (table)[i] ? (table)[i] : "?")

static const char *const qp_types[] = {
    [PVRDMA_QPT_GSI] = "GSI",
    [PVRDMA_QPT_RC] = "RC",
    [PVRDMA_QPT_UC] = "UC",
    [PVRDMA_QPT_UD] = "UD",
};

static const char *const qp_states[] = {
    [PVRDMA_QPS_RESET] = "RESET", [PVRDMA_QPS_INIT] = "INIT", [PVRDMA_QPS_RTR] = "RTR",
    [PVRDMA_QPS_RTS] = "RTS",     [PVRDMA_QPS_SQD] = "SQD",   [PVRDMA_QPS_SQE] = "SQE",
    [PVRDMA_QPS_ERR] = "ERR",
};

static const char *const qp_waits[] = {
    [QP_WAIT_NONE] = "none",
    [QP_WAIT_RNR] = "rnr",
    [QP_WAIT_TIMEOUT] = "timeout",
    [QP_WAIT_HOLD] = "hold",
};

static void add_int(JsonBuilder *b, const char *name, uint64_t value)
{
    json_builder_set_member_name(b, name);
    json_builder_add_int_value(b, value);
}

static void add_str(JsonBuilder *b, const char *name, const char *value)
{
    json_builder_set_member_name(b, name);
    json_builder_add_string_value(b, value);
}

static void add_bool(JsonBuilder *b, const char *name, bool value)
{
    json_builder_set_member_name(b, name);
    json_builder_add_boolean_value(b, value);
}

static void begin(JsonBuilder *b, const char *name)
{
    json_builder_set_member_name(b, name);
    json_builder_begin_object(b);
}

/* ---- the process ---- */

static unsigned count_dir(const char *path)
{
    DIR *dir = opendir(path);
    unsigned n = 0;

    if (!dir) {
        return 0;
    }
    for (struct dirent *e = readdir(dir); e; e = readdir(dir)) {
        n += e->d_name[0] != '.';
    }
    closedir(dir);
    return n;
}

/* A "Name:  123 kB" line of /proc/self/status. */
static uint64_t proc_kb(const char *status, const char *name)
{
    const char *line = strstr(status, name);
    unsigned long long kb = 0;

    if (!line || sscanf(line + strlen(name), " %llu", &kb) != 1) {
        return 0;
    }
    return kb;
}

static void report_process(JsonBuilder *b)
{
    g_autofree char *status = NULL;

    g_file_get_contents("/proc/self/status", &status, NULL, NULL);
    begin(b, "process");
    /* Not counted: the descriptor of this very look. */
    add_int(b, "fds", count_dir("/proc/self/fd") - 1);
    add_int(b, "threads", count_dir("/proc/self/task"));
    add_int(b, "mappings_kb", proc_kb(status ? status : "", "VmSize:"));
    add_int(b, "rss_kb", proc_kb(status ? status : "", "VmRSS:"));
    add_int(b, "rss_anon_kb", proc_kb(status ? status : "", "RssAnon:"));
    json_builder_end_object(b);
}

/* Did the workers get a processor when they wanted one? */
static void report_workers(JsonBuilder *b)
{
    g_autofree char *granted = NULL;
    struct cpu_usage u;

    json_builder_set_member_name(b, "worker_threads");
    json_builder_begin_array(b);
    for (unsigned i = 0; datapath_worker_usage(i, &granted, &u); i++) {
        json_builder_begin_object(b);
        add_str(b, "priority", granted);
        add_int(b, "ran_us", u.ran_ns / 1000);
        add_int(b, "waited_us", u.waited_ns / 1000);
        add_int(b, "lost_processor", u.lost);
        json_builder_end_object(b);
        g_clear_pointer(&granted, g_free);
    }
    json_builder_end_array(b);
}

/* Guests' memory in this process's address space. */
static void report_mapped(JsonBuilder *b)
{
    struct budget_stats st;

    budget_get_daemon(&st);
    begin(b, "guest_memory");
    add_int(b, "bytes", st.bytes);
    add_int(b, "max_bytes", st.max_bytes);
    add_int(b, "mappings", st.mappings);
    add_int(b, "max_mappings", st.max_mappings);
    add_int(b, "unmapping_bytes", st.pending);
    json_builder_end_object(b);
}

void report_status(JsonBuilder *b, const struct daemon_config *cfg)
{
    add_str(b, "version", PVRDMA_PROJECT_VERSION);
    add_int(b, "pid", getpid());
    add_str(b, "socket_dir", cfg->socket_dir);
    add_int(b, "workers", cfg->workers);
    add_int(b, "poll_us", cfg->poll_us);
    add_int(b, "directory_gids", directory_count());
    report_process(b);
    report_workers(b);
    report_mapped(b);
}

/* ---- a VM ---- */

static void report_objects(JsonBuilder *b, struct vm *vm)
{
    struct objects_stats st = {0};

    if (vm->attached) {
        objects_get_stats(&vm->objects, &st);
    }
    begin(b, "objects");
    add_int(b, "contexts", st.uctx);
    add_int(b, "pds", st.pd);
    add_int(b, "mrs", st.mr);
    add_int(b, "cqs", st.cq);
    add_int(b, "qps", st.qp);
    add_int(b, "gids", st.gid);
    add_int(b, "pages", st.pages);
    json_builder_end_object(b);
}

static void report_memory(JsonBuilder *b, struct vm *vm)
{
    struct guest_mem_stats st;

    guest_mem_get_stats(&vm->guest.mem, &st);
    begin(b, "memory");
    add_int(b, "regions", st.regions);
    add_int(b, "files", st.files);
    add_int(b, "bytes", st.bytes);
    add_int(b, "unmapping_bytes", st.pending);
    add_int(b, "refused", st.refused);
    json_builder_end_object(b);
}

static void report_addresses(JsonBuilder *b, const struct vm_config *cfg)
{
    char text[CONFIG_GID_STRLEN];

    json_builder_set_member_name(b, "addresses");
    json_builder_begin_array(b);
    if (cfg->any_address) {
        json_builder_add_string_value(b, "any");
    }
    for (unsigned i = 0; i < cfg->n_addresses; i++) {
        config_format_gid(&cfg->addresses[i], text);
        json_builder_add_string_value(b, text);
    }
    json_builder_end_array(b);
}

static void report_gids(JsonBuilder *b, struct vm *vm)
{
    char text[CONFIG_GID_STRLEN];

    json_builder_set_member_name(b, "bound_gids");
    json_builder_begin_array(b);
    for (unsigned i = 0; vm->attached && i < VERBS_GID_TBL_LEN; i++) {
        if (vm->objects.gid[i].bound) {
            config_format_gid(&vm->objects.gid[i].gid, text);
            json_builder_add_string_value(b, text);
        }
    }
    json_builder_end_array(b);
}

void report_vm(JsonBuilder *b, struct vm *vm)
{
    const struct vm_config *cfg = vm->cfg;

    json_builder_begin_object(b);
    add_str(b, "name", cfg->name);
    add_str(b, "socket", cfg->socket);
    add_str(b, "network", cfg->network);
    report_addresses(b, cfg);
    if (cfg->has_mac) {
        char mac[18];

        g_snprintf(mac, sizeof(mac), "%02x:%02x:%02x:%02x:%02x:%02x", cfg->mac[0],
                   cfg->mac[1], cfg->mac[2], cfg->mac[3], cfg->mac[4], cfg->mac[5]);
        add_str(b, "mac", mac);
    }
    add_bool(b, "connected", vm->conn != NULL);
    add_bool(b, "attached", vm->attached);
    add_bool(b, "active", vm->attached && vm->dev->active);
    add_bool(b, "paused", vm->attached && atomic_load(&vm->dp.paused));
    add_bool(b, "admin_paused", vm->admin_paused);
    add_int(b, "attaches", vm->attaches);
    add_int(b, "faults", vm->faults);
    report_gids(b, vm);
    report_objects(b, vm);
    report_memory(b, vm);
    begin(b, "limits");
    add_int(b, "max_qp", cfg->max_qp);
    add_int(b, "max_cq", cfg->max_cq);
    add_int(b, "max_mr", cfg->max_mr);
    add_int(b, "max_pd", cfg->max_pd);
    add_int(b, "max_mr_pages", cfg->max_mr_pages);
    add_int(b, "shares", cfg->shares);
    add_int(b, "max_memory", cfg->max_memory);
    add_int(b, "max_files", cfg->max_files);
    json_builder_end_object(b);
    json_builder_end_object(b);
}

/* ---- counters ---- */

static void report_ring(JsonBuilder *b, const char *name, struct event_ring *ring)
{
    uint64_t pushed, dropped;

    pthread_mutex_lock(&ring->lock);
    pushed = ring->pushed;
    dropped = ring->dropped;
    pthread_mutex_unlock(&ring->lock);
    begin(b, name);
    add_int(b, "pushed", pushed);
    add_int(b, "dropped", dropped);
    json_builder_end_object(b);
}

static void report_device(JsonBuilder *b, struct vm *vm)
{
    struct guest_doorbells *db = &vm->guest.db;
    const struct device *dev = vm->dev;
    uint64_t writes = 0, polls = 0, bad;

    bad = atomic_load_explicit(&db->bad, memory_order_relaxed);
    if (db->shared) {
        /* Counted by the VMM, which may write what it likes here. */
        writes = __atomic_load_n(&db->shared->writes, __ATOMIC_RELAXED);
        polls = __atomic_load_n(&db->shared->polls, __ATOMIC_RELAXED);
        bad += __atomic_load_n(&db->shared->bad_doorbells, __ATOMIC_RELAXED);
    }
    begin(b, "device");
    add_int(b, "commands", dev->commands);
    add_int(b, "failed_commands", dev->failed_commands);
    add_int(b, "command_ns", vm->command_ns);
    add_int(b, "doorbell_writes", writes);
    add_int(b, "doorbell_polls", polls);
    add_int(b, "bad_doorbells", bad);
    report_ring(b, "async_events", &vm->guest.events.async);
    report_ring(b, "cq_notifications", &vm->guest.events.cqn);
    json_builder_end_object(b);
}

static void report_irq(JsonBuilder *b, struct guest_irq *irq)
{
    static const char *const names[PVRDMA_NUM_VEC] = {
        [PVRDMA_VEC_CMD] = "command",
        [PVRDMA_VEC_ASYNC] = "async",
        [PVRDMA_VEC_CQ] = "cq",
    };

    begin(b, "interrupts");
    for (unsigned i = 0; i < PVRDMA_NUM_VEC; i++) {
        add_int(b, names[i],
                atomic_load_explicit(&irq->vec[i].raised, memory_order_relaxed));
    }
    json_builder_end_object(b);
}

static void report_datapath(JsonBuilder *b, struct vm_datapath *dp)
{
    begin(b, "datapath");
    add_int(b, "tx_messages", atomic_load(&dp->tx_msgs));
    add_int(b, "tx_bytes", atomic_load(&dp->tx_bytes));
    add_int(b, "rx_messages", atomic_load(&dp->rx_msgs));
    add_int(b, "rx_bytes", atomic_load(&dp->rx_bytes));
    add_int(b, "errors", atomic_load(&dp->errors));
    add_int(b, "rnr_waits", atomic_load(&dp->rnr_waits));
    add_int(b, "retries", atomic_load(&dp->retries));
    add_int(b, "cq_interrupts", atomic_load(&dp->interrupts));
    add_int(b, "worker_ns", atomic_load(&dp->worker_ns));
    json_builder_end_object(b);
}

void report_counters(JsonBuilder *b, struct vm *vm)
{
    json_builder_begin_object(b);
    add_str(b, "name", vm->cfg->name);
    add_bool(b, "attached", vm->attached);
    add_int(b, "attaches", vm->attaches);
    add_int(b, "faults", vm->faults);
    add_int(b, "closing_descriptors", discard_waiting(vm->discard));
    report_objects(b, vm);
    report_memory(b, vm);
    if (vm->attached) {
        report_device(b, vm);
        report_irq(b, &vm->guest.irq);
        report_datapath(b, &vm->dp);
    }
    json_builder_end_object(b);
}

/* ---- QPs ---- */

static void report_wq(JsonBuilder *b, const char *name, uint32_t nwqe, uint32_t cons,
                      const uint32_t *prod)
{
    begin(b, name);
    add_int(b, "entries", nwqe);
    add_int(b, "consumer", cons);
    if (prod) {
        add_int(b, "producer", *prod);
    }
    json_builder_end_object(b);
}

/* What the guest has posted, as it says; false if that is not mapped. */
static bool producers(struct qp *qp, uint32_t *sq, uint32_t *rq)
{
    const union {
        struct pvrdma_ring_state stock;
        struct pvrdma_ext_ring ext;
    } * head;

    if (!qp->mem.npages) {
        return false;
    }
    head = guest_ptr(&qp->vm->guest.mem, qp->mem.page[0], sizeof(*head), false);
    if (!head) {
        return false;
    }
    if (qp->mem.ext) {
        *sq = __atomic_load_n(&head->ext.tx_prod_tail.value, __ATOMIC_RELAXED);
        *rq = __atomic_load_n(&head->ext.rx_prod_tail.value, __ATOMIC_RELAXED);
    } else {
        *sq = __atomic_load_n(&head->stock.tx.prod_tail, __ATOMIC_RELAXED);
        *rq = __atomic_load_n(&head->stock.rx.prod_tail, __ATOMIC_RELAXED);
    }
    return true;
}

/* What is shown of a QP. */
struct qp_row {
    uint32_t handle, qpn, type, state, dest_qpn;
    struct pvrdma_gid dest_gid;
    const char *transport;
    bool extended, known; /* known: the producer indices */
    uint32_t sq_nwqe, sq_cons, sq_prod;
    uint32_t rq_nwqe, rq_cons, rq_prod;
    uint32_t sq_psn, rq_psn;
    uint64_t sent, received;
    uint32_t wait, retries_left, rnr_left;
};

/* The VM's token and qp->lock are held. */
static void copy_row(struct qp_row *row, struct qp *qp)
{
    *row = (struct qp_row){
        .handle = qp->handle,
        .qpn = qp->qpn,
        .type = qp->type,
        .state = atomic_load(&qp->state),
        .dest_qpn = qp->attr.dest_qp_num,
        .dest_gid = qp->attr.ah_attr.dgid,
        .transport = qp->req.transport ? qp->req.transport->name : "none",
        .extended = qp->mem.ext,
        .sq_nwqe = qp->sq.nwqe,
        .sq_cons = qp->sq.cons,
        .rq_nwqe = qp->rq->wq.nwqe,
        .rq_cons = qp->rq->wq.cons,
        .sq_psn = qp->req.psn,
        .rq_psn = qp->resp.psn,
        .sent = qp->req.seq,
        .received = qp->resp.seq,
        .wait = qp->req.wait,
        .retries_left = qp->req.retries_left,
        .rnr_left = qp->req.rnr_left,
    };
    row->known = producers(qp, &row->sq_prod, &row->rq_prod);
}

static void report_qp(JsonBuilder *b, const struct qp_row *row)
{
    char gid[CONFIG_GID_STRLEN];

    config_format_gid(&row->dest_gid, gid);
    json_builder_begin_object(b);
    add_int(b, "handle", row->handle);
    add_int(b, "qpn", row->qpn);
    add_str(b, "type", NAME_OF(qp_types, row->type));
    add_str(b, "state", NAME_OF(qp_states, row->state));
    add_int(b, "dest_qpn", row->dest_qpn);
    add_str(b, "dest_gid", gid);
    add_str(b, "transport", row->transport);
    add_bool(b, "extended", row->extended);
    report_wq(b, "sq", row->sq_nwqe, row->sq_cons, row->known ? &row->sq_prod : NULL);
    report_wq(b, "rq", row->rq_nwqe, row->rq_cons, row->known ? &row->rq_prod : NULL);
    add_int(b, "sq_psn", row->sq_psn);
    add_int(b, "rq_psn", row->rq_psn);
    add_int(b, "sent", row->sent);
    add_int(b, "received", row->received);
    add_str(b, "wait", NAME_OF(qp_waits, row->wait));
    add_int(b, "retries_left", row->retries_left);
    add_int(b, "rnr_left", row->rnr_left);
    json_builder_end_object(b);
}

/* Up to CONTROL_QP_PAGE rows; *next as in the answer.  vm->ops is held. */
static unsigned copy_rows(struct vm *vm, uint32_t after, struct qp_row *row,
                          uint32_t *next)
{
    const struct id_table *t = &vm->objects.qp;
    unsigned n = 0;

    *next = 0;
    if (!vm->attached || after >= t->size) {
        return 0;
    }
    vm_token_take(vm);
    for (uint32_t i = after + 1; i < t->size; i++) {
        struct qp *qp = id_table_get(t, i);

        if (!qp) {
            continue;
        }
        if (n == CONTROL_QP_PAGE) {
            *next = row[n - 1].handle;
            break;
        }
        vm_qp_lock(qp);
        copy_row(&row[n++], qp);
        pthread_mutex_unlock(&qp->lock);
    }
    vm_token_release(vm);
    return n;
}

void report_qps(JsonBuilder *b, struct vm *vm, uint32_t after)
{
    g_autofree struct qp_row *row = g_new(struct qp_row, CONTROL_QP_PAGE);
    uint32_t next;
    unsigned n;

    coro_lock(&vm->ops);
    n = copy_rows(vm, after, row, &next);
    coro_unlock(&vm->ops);
    /* From here on the VM may go. */
    json_builder_set_member_name(b, "qps");
    json_builder_begin_array(b);
    for (unsigned i = 0; i < n; i++) {
        report_qp(b, &row[i]);
        coro_breathe();
    }
    json_builder_end_array(b);
    if (next) {
        add_int(b, "next", next);
    }
}
