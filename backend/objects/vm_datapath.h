/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the data path keeps for each VM; datapath/ alone touches it, but for the
 * statistics.
 */
#ifndef PVRDMAD_VM_DATAPATH_H
#define PVRDMAD_VM_DATAPATH_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

struct qp;
struct worker;
struct ext_list;

/* Bytes moved between two looks at everything else: at most, and at least. */
#define DATAPATH_SLICE     65536u
#define DATAPATH_SLICE_MIN 1024u

/* Doorbell maps: the daemon's own and the VMM's, send and receive each. */
#define DATAPATH_REGION_MAPS 4u

/* Send queues whose producer index the worker polls, see watch.c. */
#define DATAPATH_WATCHED 16u

struct watched {
    _Atomic(struct qp *) qp; /* NULL: free */
    /* All else is the worker's. */
    const _Atomic uint32_t *prod; /* NULL: not mapped */
    uint32_t seen;                /* the last value of *prod */
    bool told;                    /* the guest: it need not notify */
    uint64_t used;                /* ns, when *prod last changed */
};

struct vm_watch {
    struct watched place[DATAPATH_WATCHED];
    unsigned n;    /* places that were ever used */
    unsigned next; /* where the next QP is put */
    uint64_t generation;
};

struct vm_datapath {
    struct worker *worker;

    /* The token: the right to run the VM's send queues; see vm.h. */
    pthread_mutex_t token;
    _Atomic unsigned token_waiters;
    _Atomic bool paused;

    /* Under the token. */
    TAILQ_HEAD(, qp) run;  /* QPs with work */
    _Atomic bool has_work; /* what the worker last saw of run */
    struct qp **timer;     /* heap by req.wait_until, [1..ntimer] */
    uint32_t ntimer;
    int64_t deficit;                /* bytes, deficit round robin */
    uint32_t slice;                 /* bytes of this VM's, see sched.c */
    _Atomic(struct ext_list *) ext; /* contexts' own doorbell maps */
    unsigned scan_map;              /* where the next doorbell scan begins */
    unsigned scan_pos[DATAPATH_REGION_MAPS];
    uint64_t scanned; /* ns, when the last one was */
    struct vm_watch watch;
    _Atomic bool cq_error;       /* a CQ failed: its QPs must go to ERR */
    _Atomic uint64_t next_timer; /* ns; UINT64_MAX: none */

    /* Statistics; written by one worker at a time. */
    _Atomic uint64_t tx_msgs, tx_bytes, rx_msgs, rx_bytes, errors, rnr_waits, retries,
        interrupts;
};

#endif /* PVRDMAD_VM_DATAPATH_H */
