/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the daemon counts for a VM, as JSON.  Main thread; what workers count is atomic,
 * or under the lock of its ring.
 */
#include "control/control.h"
#include "control/json.h"

#include <stdio.h>

#include "datapath/datapath.h"
#include "device/device.h"
#include "frontend/frontend.h"
#include "pvrdma/ext.h"

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

static void report_channels(GString *s, const struct vm_net *net)
{
    json_begin(s, "channels", '{');
    json_int(s, "sends", net ? atomic_load(&net->channel_sends) : 0);
    json_int(s, "received_bytes", net ? atomic_load(&net->channel_bytes) : 0);
    json_int(s, "streams", net ? atomic_load(&net->channel_streams) : 0);
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
        report_channels(s, atomic_load(&vm->dp.net));
        report_datagrams(s, &vm->dp);
        report_uc(s, &vm->dp);
    }
    json_end(s, '}');
}
