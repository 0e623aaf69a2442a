/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Datagrams, of UD QPs and of the GSI QP, between VMs of different hosts.
 *
 * On its way out a datagram is one message, made by the worker of the sender's VM: its
 * bytes are copied there, so it is complete once it is queued.  What waits for a link is
 * bounded for the VM and for the peer; what does not fit is dropped and counted, as UD
 * allows.  An address that nobody is known to have is asked for, and the QP waits for
 * the answer (OUT_ASKED): programs that expect no loss where there is none to be
 * expected would otherwise lose their first datagram, connection managers their request.
 *
 * On its way in it is a note to the VM that holds its address: that VM's worker
 * delivers it in the VM's turns, so a flood is on the account of whom it is for.  What
 * waits there is bounded too, and that for its GSI QP apart: a flood keeps no connection
 * manager from hearing.  Its source must be an address that the peer which sent it
 * has claimed: a host can speak for its own VMs only, whoever they say they are.
 *
 * Threads: ud_carry() the sender's worker, with its VM's token; what arrives the main
 * thread, and deliver() the receiver's worker.
 */
#include "transport/link/datagrams.h"

#include "transport/link/peer.h"

/* What one that waits takes besides its bytes. */
#define OVERHEAD 256u

struct arrival {
    struct note note; /* first */
    struct datagram dg;
    uint32_t opcode, imm, flags;
    uint32_t len;
    uint8_t data[];
};

static struct ud_stats stats;

/* ---- out ---- */

static struct peer_account *account_of(struct vm *vm)
{
    if (!vm->dp.outbound) {
        vm->dp.outbound = peer_account_new(UD_VM_OUT);
    }
    return vm->dp.outbound;
}

void ud_vm_gone(struct vm *vm)
{
    if (vm->dp.outbound) {
        peer_account_unref(vm->dp.outbound);
        vm->dp.outbound = NULL;
    }
}

static struct peer_out *make(const struct qp *qp, const struct send_op *op)
{
    const struct datagram *d = &op->dg;
    const struct msg *m = &op->m;
    struct peer_msg msg = {.type = PEER_MSG_DATAGRAM,
                           .datagram = {
                               .sgid = d->path.sgid,
                               .dgid = d->path.dgid,
                               .sqpn = d->path.sqpn,
                               .dqpn = d->path.dqpn,
                               .qkey = d->qkey,
                               .flow_label = d->flow_label,
                               .traffic_class = d->traffic_class,
                               .hop_limit = d->hop_limit,
                               .len = (uint32_t)m->length,
                           }};

    g_strlcpy(msg.datagram.network, qp->vm->objects.network,
              sizeof(msg.datagram.network));
    if (m->opcode == PVRDMA_WR_SEND_WITH_IMM) {
        msg.datagram.flags |= PEER_DATAGRAM_IMM;
        msg.datagram.imm = m->imm;
    }
    if (m->flags & PVRDMA_SEND_SOLICITED) {
        msg.datagram.flags |= PEER_DATAGRAM_SOLICITED;
    }
    return peer_out_new(&msg);
}

struct outcome ud_carry(struct qp *qp, struct send_op *op, const struct route *route)
{
    bool still = route && route_still_until(route); /* first, as in copy.c */
    const struct remote *remote =
        route ? atomic_load_explicit(&route->remote, memory_order_acquire) : NULL;
    struct sg_list src = sg_of_op(qp, op, false);
    struct vm *vm = qp->vm;
    struct peer_out *out;

    if (!remote && still) {
        return OUTCOME(OUT_HELD); /* its VM has left, and is on its way */
    }
    if (!remote) {
        return OUTCOME(directory_want(vm, route, vm->objects.network, &op->dg.path.dgid)
                           ? OUT_ASKED
                           : OUT_SILENT);
    }
    if (still) {
        if (!peer_is_up(remote->peer)) { /* who has it now? */
            directory_want(vm, route, vm->objects.network, &op->dg.path.dgid);
        }
        return OUTCOME(OUT_HELD);
    }
    if (!peer_is_up(remote->peer)) {
        /* It may have been held and lost its link since the first look. */
        return OUTCOME(route_still_until(route) ? OUT_HELD : OUT_SILENT);
    }
    out = make(qp, op);
    if (sg_fetch(&src, out->bytes + out->len - op->m.length, op->m.length) != SG_OK) {
        peer_out_free(out);
        return (struct outcome){.what = OUT_FAIL, .status = PVRDMA_WC_LOC_PROT_ERR};
    }
    if (!peer_send_datagram(remote->peer, account_of(vm), out)) {
        count_one(&vm->dp.datagrams_dropped[DATAGRAM_LINK_FULL]);
    }
    return OUTCOME(OUT_DONE);
}

/* ---- in ---- */

static uint64_t weight(const struct arrival *a)
{
    return OVERHEAD + a->len;
}

static _Atomic uint64_t *inbound_of(struct vm *vm, const struct arrival *a)
{
    return a->dg.path.dqpn == 1 ? &vm->dp.inbound_mads : &vm->dp.inbound;
}

/* False: the VM has too much that waits. */
static bool counts(struct vm *vm, const struct arrival *a)
{
    uint64_t max = a->dg.path.dqpn == 1 ? UD_VM_IN_MADS : UD_VM_IN;
    _Atomic uint64_t *inbound = inbound_of(vm, a);

    if (atomic_fetch_add(inbound, weight(a)) + weight(a) > max) {
        atomic_fetch_sub(inbound, weight(a));
        return false;
    }
    return true;
}

static void deliver(struct note *n, struct vm *vm)
{
    struct arrival *a = (struct arrival *)(void *)n;
    const struct route *route;
    struct sg_list src = {.vm = vm, .raw = a->data};
    struct msg m = {
        .opcode = a->opcode, .flags = a->flags, .imm = a->imm, .length = a->len};

    if (vm) {
        atomic_fetch_sub_explicit(inbound_of(vm, a), weight(a), memory_order_relaxed);
        route = route_find(vm->objects.network, &a->dg.path.dgid);
        if (route && atomic_load_explicit(&route->vm, memory_order_acquire) == vm) {
            comp_make_room(worker_self());
            if (datagram_deliver(vm, &m, &a->dg, &src).what != OUT_DONE) {
                count_one(&vm->dp.datagrams_dropped[DATAGRAM_NO_QP]); /* a MAD */
            }
        }
    }
    g_free(a);
}

static void pass(struct vm *vm, const struct peer_datagram *d)
{
    struct arrival *a = g_malloc(sizeof(*a) + d->len);

    *a = (struct arrival){
        .note.run = deliver,
        .dg = {.path = {d->sgid, d->dgid, d->sqpn, d->dqpn},
               .qkey = d->qkey,
               .flow_label = d->flow_label,
               .traffic_class = d->traffic_class,
               .hop_limit = d->hop_limit,
               .usable = true},
        .opcode = d->flags & PEER_DATAGRAM_IMM ? PVRDMA_WR_SEND_WITH_IMM : PVRDMA_WR_SEND,
        .imm = d->imm,
        .flags = d->flags & PEER_DATAGRAM_SOLICITED ? PVRDMA_SEND_SOLICITED : 0,
        .len = d->len,
    };
    memcpy(a->data, d->data, d->len);
    if (!counts(vm, a)) {
        count_one(&vm->dp.datagrams_dropped[DATAGRAM_TOO_MANY]);
        g_free(a);
        return;
    }
    stats.received++;
    vm_post(vm, &a->note);
}

static void on_datagram(struct peer *from, const struct peer_datagram *d)
{
    const char *network = directory_network(d->network);
    const struct route *source = network ? route_find(network, &d->sgid) : NULL;
    const struct remote *remote = source ? atomic_load(&source->remote) : NULL;
    const struct route *route = network ? route_find(network, &d->dgid) : NULL;
    struct vm *vm = route ? atomic_load(&route->vm) : NULL;

    if (!remote || remote->peer != from) {
        stats.bad_source++;
    } else if (!vm || guest_faulted(&vm->guest)) {
        stats.nobody++;
    } else if (route_still_until(route)) {
        count_one(&vm->dp.datagrams_dropped[DATAGRAM_HELD]);
    } else {
        pass(vm, d);
    }
}

void ud_start(void)
{
    stats = (struct ud_stats){0};
    peer_set_datagram(on_datagram);
}

void ud_stop(void)
{
    peer_set_datagram(NULL);
}

void ud_get_stats(struct ud_stats *st)
{
    *st = stats;
}
