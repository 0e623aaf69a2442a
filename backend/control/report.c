/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the daemon says about itself, as JSON.
 *
 * Main thread.  Objects are made and destroyed by this thread, so their
 * pointers hold still; what workers change is read under the VM's token and the
 * QP's lock, or is an atomic counter.  Answers are bounded: QPs come in pages of
 * CONTROL_QP_PAGE rows.
 *
 * Looking must not hold up traffic or commands.  Under a token rows are only copied,
 * a few at a time; they are put into words afterwards.  In a coroutine the main loop
 * turns between VMs and rows (coro_breathe); nothing but copies is held there.
 */
#include "base/coro.h"
#include "control/control.h"
#include "control/json.h"
#include "control/registry.h"

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
#include "transport/link/peer.h"
#include "transport/link/datagrams.h"
#include "vm/attach.h"

#define NAME_OF(table, i) ((i) < G_N_ELEMENTS(table) && (table)[i] ? (table)[i] : "?")

static const char *const qp_states[] = {
    [PVRDMA_QPS_RESET] = "RESET", [PVRDMA_QPS_INIT] = "INIT", [PVRDMA_QPS_RTR] = "RTR",
    [PVRDMA_QPS_RTS] = "RTS",     [PVRDMA_QPS_SQD] = "SQD",   [PVRDMA_QPS_SQE] = "SQE",
    [PVRDMA_QPS_ERR] = "ERR",
};

static const char *const qp_waits[] = {
    [QP_WAIT_NONE] = "none", [QP_WAIT_RNR] = "rnr",     [QP_WAIT_TIMEOUT] = "timeout",
    [QP_WAIT_HOLD] = "hold", [QP_WAIT_GRACE] = "grace",
};

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
        coro_breathe();
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

static void report_process(GString *s)
{
    g_autofree char *status = NULL;

    g_file_get_contents("/proc/self/status", &status, NULL, NULL);
    json_begin(s, "process", '{');
    /* Not counted: the descriptor of this very look. */
    json_int(s, "fds", count_dir("/proc/self/fd") - 1);
    json_int(s, "threads", count_dir("/proc/self/task"));
    json_int(s, "mappings_kb", proc_kb(status ? status : "", "VmSize:"));
    json_int(s, "rss_kb", proc_kb(status ? status : "", "VmRSS:"));
    json_int(s, "rss_anon_kb", proc_kb(status ? status : "", "RssAnon:"));
    json_end(s, '}');
}

/* Did the workers get a processor when they wanted one? */
static void report_workers(GString *s)
{
    g_autofree char *granted = NULL;
    struct cpu_usage u;
    pid_t tid;

    json_begin(s, "worker_threads", '[');
    for (unsigned i = 0; datapath_worker_usage(i, &tid, &granted, &u); i++) {
        json_begin(s, NULL, '{');
        json_int(s, "thread", tid);
        json_str(s, "priority", granted);
        json_int(s, "ran_us", u.ran_ns / 1000);
        json_int(s, "waited_us", u.waited_ns / 1000);
        json_int(s, "lost_processor", u.lost);
        json_end(s, '}');
        g_clear_pointer(&granted, g_free);
    }
    json_end(s, ']');
}

/* Guests' memory in this process's address space. */
static void report_mapped(GString *s)
{
    struct budget_stats st;

    budget_get_daemon(&st);
    json_begin(s, "guest_memory", '{');
    json_int(s, "bytes", st.bytes);
    json_int(s, "max_bytes", st.max_bytes);
    json_int(s, "mappings", st.mappings);
    json_int(s, "max_mappings", st.max_mappings);
    json_int(s, "unmapping_bytes", st.pending);
    json_end(s, '}');
}

/* VMs' objects in this process's memory. */
static void report_all_objects(GString *s)
{
    struct budget_objects st;

    budget_get_daemon_objects(&st);
    json_begin(s, "objects", '{');
    json_int(s, "bytes", st.bytes);
    json_int(s, "max_bytes", st.max_bytes);
    json_int(s, "refused", st.refused);
    json_end(s, '}');
}

/* What is known of other hosts' addresses, and what came from there. */
static void report_directory(GString *s)
{
    struct directory_stats d;
    struct ud_stats u;

    directory_get_stats(&d);
    ud_get_stats(&u);
    json_begin(s, "directory", '{');
    json_str(s, "engine", d.engine ? d.engine : "none");
    json_int(s, "remote_gids", d.remote);
    json_int(s, "left_gids", d.left);
    json_int(s, "waiting_gids", d.waiting);
    json_int(s, "asked_gids", d.asked);
    json_int(s, "questions", d.asks);
    json_int(s, "claims_refused", d.refused);
    json_int(s, "too_many", d.too_many);
    json_end(s, '}');
    json_begin(s, "remote_datagrams", '{');
    json_int(s, "received", u.received);
    json_int(s, "bad_source", u.bad_source);
    json_int(s, "to_nobody", u.nobody);
    json_end(s, '}');
}

void report_status(GString *s, const struct daemon_config *cfg)
{
    json_str(s, "version", PVRDMA_PROJECT_VERSION);
    json_int(s, "pid", getpid());
    json_str(s, "socket_dir", cfg->socket_dir);
    json_int(s, "workers", cfg->workers);
    json_int(s, "poll_us", cfg->poll_us);
    json_int(s, "directory_gids", directory_count());
    report_directory(s);
    report_process(s);
    report_workers(s);
    report_mapped(s);
    report_all_objects(s);
}

/* ---- a VM ---- */

static void report_objects(GString *s, struct vm *vm)
{
    struct objects_stats st = {0};
    struct budget_objects b;

    budget_get_objects(vm->guest.mem.budget, &b);
    if (vm->attached) {
        objects_get_stats(&vm->objects, &st);
    }
    json_begin(s, "objects", '{');
    json_int(s, "contexts", st.uctx);
    json_int(s, "pds", st.pd);
    json_int(s, "mrs", st.mr);
    json_int(s, "cqs", st.cq);
    json_int(s, "qps", st.qp);
    json_int(s, "srqs", st.srq);
    json_int(s, "gids", st.gid);
    json_int(s, "pages", st.pages);
    json_int(s, "bytes", b.bytes);
    json_int(s, "no_memory", b.refused);
    json_end(s, '}');
}

static void report_memory(GString *s, struct vm *vm)
{
    struct guest_mem_stats st;

    guest_mem_get_stats(&vm->guest.mem, &st);
    json_begin(s, "memory", '{');
    json_int(s, "regions", st.regions);
    json_int(s, "files", st.files);
    json_int(s, "ram_bytes", st.ram);
    json_int(s, "bytes", st.bytes);
    json_int(s, "unmapping_bytes", st.pending);
    json_int(s, "refused", st.refused);
    json_end(s, '}');
}

void report_failed(GString *s)
{
    json_begin(s, "failed", '[');
    for (GList *l = registry_failed(); l; l = l->next) {
        const struct registry_failed *f = l->data;

        json_begin(s, NULL, '{');
        json_str(s, "name", f->name);
        json_str(s, "reason", f->why);
        json_end(s, '}');
    }
    json_end(s, ']');
}

void report_all(GString *s, void (*report)(GString *s, struct vm *vm))
{
    g_autoptr(GPtrArray) names = registry_names();

    json_begin(s, "vms", '[');
    for (guint i = 0; i < names->len; i++) {
        struct vm *vm = registry_find(names->pdata[i]);

        if (vm) {
            report(s, vm);
        }
        coro_breathe();
    }
    json_end(s, ']');
}

static void report_addresses(GString *s, const struct vm_config *cfg)
{
    char text[CONFIG_GID_STRLEN];

    json_begin(s, "addresses", '[');
    if (cfg->any_address) {
        json_str(s, NULL, "any");
    }
    for (unsigned i = 0; i < cfg->n_addresses; i++) {
        config_format_gid(&cfg->addresses[i], text);
        json_str(s, NULL, text);
    }
    json_end(s, ']');
}

static void report_gids(GString *s, struct vm *vm)
{
    char text[CONFIG_GID_STRLEN];

    json_begin(s, "bound_gids", '[');
    for (unsigned i = 0; vm->attached && i < VERBS_GID_TBL_LEN; i++) {
        if (gid_is_held(&vm->objects.gid[i])) {
            config_format_gid(&vm->objects.gid[i].gid, text);
            json_str(s, NULL, text);
        }
    }
    json_end(s, ']');
    json_begin(s, "waiting_gids", '[');
    for (unsigned i = 0; vm->attached && i < VERBS_GID_TBL_LEN; i++) {
        const struct gid_entry *entry = &vm->objects.gid[i];

        if (entry->waiting) {
            char holder[DIRECTORY_HOLDER_LEN];

            config_format_gid(&entry->gid, text);
            directory_holder_text(vm->cfg->network, &entry->gid, holder);
            json_begin(s, NULL, '{');
            json_str(s, "gid", text);
            json_str(s, "holder", holder);
            json_end(s, '}');
        }
    }
    json_end(s, ']');
}

/* Those that may serve it; empty: any. */
static void report_named_workers(GString *s, const struct vm_config *cfg)
{
    json_begin(s, "named_workers", '[');
    for (uint64_t left = cfg->workers; left; left &= left - 1) {
        json_int(s, NULL, __builtin_ctzll(left));
    }
    json_end(s, ']');
}

void report_vm(GString *s, struct vm *vm)
{
    const struct vm_config *cfg = vm->cfg;

    json_begin(s, NULL, '{');
    json_str(s, "name", cfg->name);
    json_str(s, "socket", cfg->socket);
    json_str(s, "network", cfg->network);
    report_addresses(s, cfg);
    if (cfg->has_mac) {
        char mac[18];

        g_snprintf(mac, sizeof(mac), "%02x:%02x:%02x:%02x:%02x:%02x", cfg->mac[0],
                   cfg->mac[1], cfg->mac[2], cfg->mac[3], cfg->mac[4], cfg->mac[5]);
        json_str(s, "mac", mac);
    }
    json_bool(s, "connected", vm->conn != NULL);
    json_bool(s, "attached", vm->attached);
    json_bool(s, "active", vm->attached && vm->dev->active);
    json_bool(s, "paused", vm->attached && atomic_load(&vm->dp.paused));
    json_bool(s, "admin_paused", vm->admin_paused);
    if (vm->attached) {
        json_int(s, "worker", datapath_vm_worker(vm));
    }
    report_named_workers(s, cfg);
    if (vm->retiring || vm->next_cfg) {
        g_autofree char *what =
            vm->next_cfg ? config_vm_diff(vm->cfg, vm->next_cfg) : NULL;

        json_str(s, "pending", vm->retiring ? "removal" : what ? what : "-");
    }
    json_int(s, "attaches", vm->attaches);
    json_int(s, "faults", vm->faults);
    report_gids(s, vm);
    report_objects(s, vm);
    report_memory(s, vm);
    json_begin(s, "limits", '{');
    json_int(s, "max_qp", cfg->max_qp);
    json_int(s, "max_cq", cfg->max_cq);
    json_int(s, "max_srq", cfg->max_srq);
    json_int(s, "max_mr", cfg->max_mr);
    json_int(s, "max_pd", cfg->max_pd);
    json_int(s, "max_mr_pages", cfg->max_mr_pages);
    json_int(s, "shares", cfg->shares);
    json_int(s, "max_memory", cfg->max_memory);
    json_int(s, "max_files", cfg->max_files);
    json_end(s, '}');
    json_end(s, '}');
}

/* ---- counters ---- */

static void add_ring(struct event_ring *ring, uint64_t *pushed, uint64_t *dropped)
{
    pthread_mutex_lock(&ring->lock);
    *pushed += ring->pushed;
    *dropped += ring->dropped;
    pthread_mutex_unlock(&ring->lock);
}

static void report_ring(GString *s, const char *name, uint64_t pushed, uint64_t dropped)
{
    json_begin(s, name, '{');
    json_int(s, "pushed", pushed);
    json_int(s, "dropped", dropped);
    json_end(s, '}');
}

static void report_rings(GString *s, struct guest_events *ev)
{
    uint64_t pushed = 0, dropped = 0;

    add_ring(&ev->async, &pushed, &dropped);
    report_ring(s, "async_events", pushed, dropped);
    pushed = dropped = 0;
    for (unsigned i = 0; i < PVRDMA_EXT_MAX_VECTORS; i++) {
        add_ring(&ev->cqn[i].ring, &pushed, &dropped);
    }
    report_ring(s, "cq_notifications", pushed, dropped);
}

static void report_device(GString *s, struct vm *vm)
{
    struct guest_doorbells *db = &vm->guest.db;
    const struct device *dev = vm->dev;
    uint64_t writes = 0, polls = 0, bad;

    bad = atomic_load_explicit(&db->bad, memory_order_relaxed);
    if (db->shared) {
        /* Counted by the VMM, which may write what it likes here. */
        writes = __atomic_load_n(&db->shared->writes, __ATOMIC_RELAXED);
        polls = __atomic_load_n(&db->shared->polls, __ATOMIC_RELAXED);
        /* By us: those that came as messages. */
        writes += db->own->writes;
        polls += db->own->polls;
        bad += __atomic_load_n(&db->shared->bad_doorbells, __ATOMIC_RELAXED);
    }
    json_begin(s, "device", '{');
    json_int(s, "commands", dev->commands);
    json_int(s, "failed_commands", dev->failed_commands);
    json_int(s, "command_ns", vm->command_ns);
    json_int(s, "doorbell_writes", writes);
    json_int(s, "doorbell_polls", polls);
    json_int(s, "bad_doorbells", bad);
    report_rings(s, &vm->guest.events);
    json_end(s, '}');
}

static uint64_t raised(const struct guest_irq *irq, unsigned vec)
{
    return atomic_load_explicit(&irq->vec[vec].raised, memory_order_relaxed);
}

/* cq: completion vector 0; cq1 and so on: further ones that were ever used. */
static void report_irq(GString *s, struct guest_irq *irq)
{
    json_begin(s, "interrupts", '{');
    json_int(s, "command", raised(irq, PVRDMA_VEC_CMD));
    json_int(s, "async", raised(irq, PVRDMA_VEC_ASYNC));
    json_int(s, "cq", raised(irq, PVRDMA_VEC_CQ));
    for (unsigned i = PVRDMA_VEC_CQ + 1; i < IRQ_VECTORS; i++) {
        char name[16];

        if (raised(irq, i)) {
            snprintf(name, sizeof(name), "cq%u", i - PVRDMA_VEC_CQ);
            json_int(s, name, raised(irq, i));
        }
    }
    json_end(s, '}');
}

static void report_datapath(GString *s, struct vm_datapath *dp)
{
    json_begin(s, "datapath", '{');
    json_int(s, "tx_messages", atomic_load(&dp->tx_msgs));
    json_int(s, "tx_bytes", atomic_load(&dp->tx_bytes));
    json_int(s, "rx_messages", atomic_load(&dp->rx_msgs));
    json_int(s, "rx_bytes", atomic_load(&dp->rx_bytes));
    json_int(s, "errors", atomic_load(&dp->errors));
    json_int(s, "rnr_waits", atomic_load(&dp->rnr_waits));
    json_int(s, "retries", atomic_load(&dp->retries));
    json_int(s, "replays", atomic_load(&dp->replays));
    json_int(s, "hold_looks", atomic_load(&dp->hold_looks));
    json_int(s, "cq_interrupts", atomic_load(&dp->interrupts));
    json_int(s, "worker_ns", atomic_load(&dp->worker_ns));
    json_end(s, '}');
}

/* Of its connections to other hosts.  Main thread, as they come and go there. */
static void report_tcp(GString *s, const struct vm_net *net)
{
    json_begin(s, "tcp", '{');
    json_int(s, "sends", net ? atomic_load(&net->sends) : 0);
    json_int(s, "straight_bytes", net ? atomic_load(&net->straight_bytes) : 0);
    json_int(s, "connections", net ? net->connections : 0);
    json_int(s, "over_share", net ? net->over_share : 0);
    json_end(s, '}');
}

static void report_datagrams(GString *s, struct vm_datapath *dp)
{
    static const char *const names[DATAGRAM_DROPS] = {
        [DATAGRAM_NO_ADDRESS] = "to_nobody", [DATAGRAM_HELD] = "to_paused",
        [DATAGRAM_LINK_FULL] = "link_full",  [DATAGRAM_TOO_MANY] = "too_many",
        [DATAGRAM_NO_QP] = "no_qp",          [DATAGRAM_NOT_READY] = "qp_not_ready",
        [DATAGRAM_QKEY] = "qkey_violations", [DATAGRAM_NO_RECEIVE] = "no_receive",
        [DATAGRAM_TOO_LONG] = "too_long",    [DATAGRAM_BAD_RECEIVE] = "bad_receive",
    };

    json_begin(s, "datagrams", '{');
    json_int(s, "sent", atomic_load(&dp->datagrams_sent));
    json_int(s, "received", atomic_load(&dp->datagrams_received));
    for (unsigned i = 0; i < DATAGRAM_DROPS; i++) {
        json_int(s, names[i], atomic_load(&dp->datagrams_dropped[i]));
    }
    json_end(s, '}');
}

static void report_uc(GString *s, struct vm_datapath *dp)
{
    static const char *const names[UC_DROPS] = {
        [UC_NO_PEER] = "to_nobody",       [UC_HELD] = "to_paused",
        [UC_NO_RECEIVE] = "no_receive",   [UC_TOO_LONG] = "too_long",
        [UC_NO_ACCESS] = "access_denied",
    };

    json_begin(s, "uc_dropped", '{');
    for (unsigned i = 0; i < UC_DROPS; i++) {
        json_int(s, names[i], atomic_load(&dp->uc_dropped[i]));
    }
    json_end(s, '}');
}

void report_counters(GString *s, struct vm *vm)
{
    json_begin(s, NULL, '{');
    json_str(s, "name", vm->cfg->name);
    json_bool(s, "attached", vm->attached);
    json_int(s, "attaches", vm->attaches);
    json_int(s, "faults", vm->faults);
    json_int(s, "closing_descriptors",
             discard_waiting(vm->discard) + refusals_closing(vm));
    report_objects(s, vm);
    report_memory(s, vm);
    if (vm->attached) {
        report_device(s, vm);
        report_irq(s, &vm->guest.irq);
        report_datapath(s, &vm->dp);
        report_tcp(s, atomic_load(&vm->dp.net));
        report_datagrams(s, &vm->dp);
        report_uc(s, &vm->dp);
    }
    json_end(s, '}');
}

/* ---- QPs ---- */

/* Rows copied at a time: some ten microseconds. */
#define QP_CHUNK 32u

struct qp_row {
    struct pvrdma_qp_attr attr;
    struct transport_path path;
    const char *host; /* of the peer; NULL: this one, or not known */
    uint64_t in_flight, in_flight_bytes;
    uint32_t handle, qpn, state;
    const char *type;
    uint32_t sq_size, rq_size, sq_cons, rq_cons, sq_prod, rq_prod;
    bool producers_known, ext;
    uint32_t sq_psn, rq_psn;
    uint64_t sent, received;
    uint32_t wait, retries_left, rnr_left;
};

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

/* Where it is connected to, and how.  The VM's token is held. */
static void copy_path(struct qp_row *row, const struct qp *qp)
{
    const struct qp_requester *req = &qp->req;
    struct remote *remote = req->route ? atomic_load(&req->route->remote) : NULL;

    row->path = (struct transport_path){req->transport ? req->transport->name : "none"};
    if (req->transport && req->transport->describe) {
        req->transport->describe(qp, &row->path);
    }
    row->host = remote ? peer_name(remote->peer) : NULL;
    row->in_flight = req->in_flight;
    row->in_flight_bytes = 0;
    for (uint64_t seq = req->seq - req->in_flight; seq < req->seq; seq++) {
        row->in_flight_bytes += req->sent[seq % QP_WINDOW].length;
    }
}

/* The VM's token is held. */
static void copy_qp(struct qp_row *row, struct qp *qp)
{
    vm_qp_lock(qp);
    row->attr = qp->attr;
    copy_path(row, qp);
    row->handle = qp->handle;
    row->qpn = qp->qpn;
    row->type = qp->service->name;
    row->state = atomic_load(&qp->state);
    row->ext = qp->mem.ext;
    row->sq_size = qp->sq.nwqe;
    row->rq_size = qp->own_rq.wq.nwqe; /* 0 with an SRQ */
    row->sq_cons = qp->sq.cons;
    row->rq_cons = qp->own_rq.wq.cons;
    row->producers_known = producers(qp, &row->sq_prod, &row->rq_prod);
    row->sq_psn = qp->req.psn;
    row->rq_psn = qp->resp.psn;
    row->sent = qp->req.seq;
    row->received = qp->resp.seq;
    row->wait = qp->req.wait;
    requester_tries_left(qp, &row->retries_left, &row->rnr_left);
    pthread_mutex_unlock(&qp->lock);
}

/* Rows of handles from *@from on, at most @max of them.  vm->ops is held. */
static unsigned copy_chunk(struct vm *vm, struct qp_row *rows, unsigned max,
                           uint32_t *from)
{
    const struct id_table *t = &vm->objects.qp;
    unsigned n = 0;
    uint32_t i;

    vm_token_take(vm);
    for (i = *from; i < t->size && n < max; i++) {
        struct qp *qp = id_table_get(t, i);

        if (qp) {
            copy_qp(&rows[n++], qp);
        }
    }
    vm_token_release(vm);
    *from = i;
    return n;
}

static void report_wq(GString *s, const char *name, uint32_t size, uint32_t cons,
                      const uint32_t *prod)
{
    json_begin(s, name, '{');
    json_int(s, "entries", size);
    json_int(s, "consumer", cons);
    if (prod) {
        json_int(s, "producer", *prod);
    }
    json_end(s, '}');
}

static void report_qp(GString *s, const struct qp_row *row)
{
    const uint32_t *sq_prod = row->producers_known ? &row->sq_prod : NULL;
    const uint32_t *rq_prod = row->producers_known ? &row->rq_prod : NULL;
    char gid[CONFIG_GID_STRLEN];

    config_format_gid(&row->attr.ah_attr.dgid, gid);
    json_begin(s, NULL, '{');
    json_int(s, "handle", row->handle);
    json_int(s, "qpn", row->qpn);
    json_str(s, "type", row->type);
    json_str(s, "state", NAME_OF(qp_states, row->state));
    json_int(s, "dest_qpn", row->attr.dest_qp_num);
    json_str(s, "dest_gid", gid);
    json_str(s, "transport", row->path.name);
    json_str(s, "host", row->host ? row->host : "-");
    json_str(s, "connection", row->path.connection ? row->path.connection : "-");
    json_int(s, "in_flight", row->in_flight);
    json_int(s, "in_flight_bytes", row->in_flight_bytes);
    json_bool(s, "extended", row->ext);
    report_wq(s, "sq", row->sq_size, row->sq_cons, sq_prod);
    report_wq(s, "rq", row->rq_size, row->rq_cons, rq_prod);
    json_int(s, "sq_psn", row->sq_psn);
    json_int(s, "rq_psn", row->rq_psn);
    json_int(s, "sent", row->sent);
    json_int(s, "received", row->received);
    json_str(s, "wait", NAME_OF(qp_waits, row->wait));
    json_int(s, "retries_left", row->retries_left);
    json_int(s, "rnr_left", row->rnr_left);
    json_end(s, '}');
}

void report_qps(GString *s, struct vm *vm, uint32_t after)
{
    g_autofree struct qp_row *rows = NULL;
    uint32_t size;
    unsigned n = 0;

    coro_lock(&vm->ops);
    size = vm->attached ? vm->objects.qp.size : 0;
    if (after < size) {
        uint32_t from = after + 1;

        rows = g_new(struct qp_row, CONTROL_QP_PAGE + 1);
        /* One more than is shown tells whether there are more. */
        while (from < size && n <= CONTROL_QP_PAGE) {
            n += copy_chunk(vm, rows + n, MIN(QP_CHUNK, CONTROL_QP_PAGE + 1 - n), &from);
            coro_breathe();
        }
    }
    coro_unlock(&vm->ops);
    /* From here on the VM may go. */
    json_begin(s, "qps", '[');
    for (unsigned i = 0; i < MIN(n, CONTROL_QP_PAGE); i++) {
        report_qp(s, &rows[i]);
        coro_breathe();
    }
    json_end(s, ']');
    if (n > CONTROL_QP_PAGE) {
        json_int(s, "next", rows[CONTROL_QP_PAGE - 1].handle);
    }
}
