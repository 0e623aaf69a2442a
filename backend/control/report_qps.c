/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the daemon says about a VM's queue pairs, as JSON.  Main thread.
 *
 * Answers are bounded: QPs come in pages of CONTROL_QP_PAGE rows.  Looking must not hold
 * up traffic or commands: under the VM's token, and the QP's lock, rows are only copied,
 * a few at a time; they are put into words afterwards.  In a coroutine the main loop
 * turns between rows (coro_breathe); nothing but copies is held there.
 */
#include "base/coro.h"
#include "control/control.h"
#include "control/json.h"
#include "datapath/datapath.h"
#include "datapath/transport.h"
#include "directory/directory.h"
#include "pvrdma/ext.h"
#include "transport/link/peer.h"

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
    json_str(s, "nic", *row->path.nic ? row->path.nic : "-");
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
