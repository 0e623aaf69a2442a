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

#include "base/deadlines.h"

struct cq;
struct ext_list;
struct note;
struct peer_account;
struct qp;
struct source;
struct vm;
struct worker;

/* Bytes moved between two looks at everything else: at most, and at least. */
#define DATAPATH_SLICE     65536u
#define DATAPATH_SLICE_MIN 1024u

/* Doorbell maps: the daemon's own and the VMM's; send, receive and SRQ each. */
#define DATAPATH_REGION_MAPS 6u

/* Why a datagram did not arrive; the first three are the sender's to count. */
enum datagram_drop {
    DATAGRAM_NO_ADDRESS,  /* nobody holds the address, or no GSI QP is there for a MAD */
    DATAGRAM_HELD,        /* who does stands still; receiver: it did when it came */
    DATAGRAM_LINK_FULL,   /* too much waits for the other host already */
    DATAGRAM_TOO_MANY,    /* too much of other hosts' waits for the VM already */
    DATAGRAM_NO_QP,       /* no QP for datagrams has the number */
    DATAGRAM_NOT_READY,   /* it has, but its state does not receive */
    DATAGRAM_QKEY,        /* not its Q_Key */
    DATAGRAM_NO_RECEIVE,  /* none is posted */
    DATAGRAM_TOO_LONG,    /* for the receive */
    DATAGRAM_BAD_RECEIVE, /* it cannot be used: the QP goes to ERR */
    DATAGRAM_DROPS,
};

/*
 * Why a message of an unreliable connection did not; the first two likewise, but of one
 * that has come from another host the receiver's, too.  Nobody counts what is lost on the
 * way there.
 */
enum uc_drop {
    UC_NO_PEER, /* no QP that is connected to the sender's takes it, or not to its end */
    UC_HELD,    /* who has it stands still */
    UC_NO_RECEIVE, /* none is posted */
    UC_TOO_LONG,   /* for the receive */
    UC_NO_ACCESS,  /* the key or right it needs is not there */
    UC_DROPS,
};

/* Send queues whose producer index the worker polls, see datapath/sq_polling.c. */
#define DATAPATH_WATCHED 16u

/*
 * Something that arrived for a VM, posted by any thread (vm_post) and run by its
 * worker, with the token, in one of the VM's turns: so not while it is paused.  It
 * belongs to the VM until @run is called, which may post it again.  @vm is NULL if it
 * has gone: then all there is to do is to free the note.
 */
struct note {
    struct note *next;
    void (*run)(struct note *n, struct vm *vm);
};

/*
 * What a worker looks at, while it is busy too: a descriptor, watched edge-triggered,
 * or none (-1).  @ready is called when the descriptor is ready, when anybody calls
 * source_poke(), and now and then for nothing.
 */
struct source {
    int fd;
    struct worker *worker;
    unsigned slot;
    void (*ready)(struct source *s);
};

/*
 * What a transport with sockets does in the turns of a VM, on its worker with the token.
 * It is made on the main thread, and goes with the VM.
 */
struct vm_net {
    const struct vm_net_ops *ops;
    _Atomic bool ready;   /* something came: take() has work */
    _Atomic uint64_t due; /* ns, when it has without that; UINT64_MAX: never */
    _Atomic bool polled;  /* something may come that tells nobody: look() finds it */
    /* Statistics, written under the token: times that a socket was given something ... */
    _Atomic uint64_t sends;
    /* ... and bytes of payload that went from a socket straight to their place. */
    _Atomic uint64_t straight_bytes;
    /* Likewise of channels: times, bytes that came, and streams that are on one now. */
    _Atomic uint64_t channel_sends, channel_bytes, channel_streams;
    /* The main thread's: queue pairs that may have a connection, tries of those that may
     * not, as the VM has its share. */
    uint64_t connections, over_share;
};

struct turn;

struct vm_net_ops {
    /* Take in what came, until the turn is over. */
    void (*take)(struct vm_net *net, struct turn *t);
    /* The turn ends: what was begun in it goes out. */
    void (*flush)(struct vm_net *net);
    /* If @polled.  Did something come?  Without the token; before each turn. */
    bool (*look)(struct vm_net *net);
    /* ... The VM is about to be parked, @ready is to tell of what comes from now on.
     * False: something came before that. */
    bool (*arm)(struct vm_net *net, uint64_t now);
    /* The VM goes; it has no queue pair any more.  Main thread. */
    void (*fini)(struct vm_net *net);
};

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
    /* ns of CLOCK_MONOTONIC when the guest's clock was 0, see datapath_clock(). */
    uint64_t clock_base;
    /* ns, when it was paused last, or made from a state stream; the main thread's. */
    uint64_t stopped_at;

    /* The token: the right to run the VM's send queues; see vm.h. */
    pthread_mutex_t token;
    _Atomic unsigned token_waiters; /* who wants it or has it, but the worker */
    _Atomic bool unseen;            /* it was parked without a look, as somebody waited */
    _Atomic bool paused;

    /* Active or parked, see worker.c.  The worker's, but for the atomics. */
    TAILQ_ENTRY(vm) link;     /* in the worker's list of active VMs */
    struct source bell;       /* the VMM's eventfd; poked by the daemon's threads */
    _Atomic bool parked;      /* not looked at: whoever has work for it pokes bell */
    _Atomic bool leaving;     /* the main thread wants it off its worker */
    _Atomic bool on_worker;   /* its worker may touch it */
    struct deadline deadline; /* of a parked VM */
    uint64_t idle_since;      /* ns; 0: it had work */
    bool kicking;             /* its kick words are set */
    unsigned looks;           /* since the last complete one */
    uint64_t retry_at;        /* ns, when deferred notifications are tried again */
    /* Worker time it had, ns times 100 per share; the smallest is served next. */
    uint64_t vtime;

    _Atomic(struct note *) inbox; /* newest first; pushed by any thread */
    _Atomic(struct vm_net *) net; /* NULL: it has no sockets */

    /* Under the token. */
    struct note *arrived;           /* taken from it, oldest first */
    TAILQ_HEAD(, qp) run;           /* QPs with work */
    bool has_work;                  /* what the worker last saw of run */
    struct deadlines timers;        /* of its QPs */
    _Atomic(struct ext_list *) ext; /* contexts' own doorbell maps */
    unsigned scan_map;              /* where the next doorbell scan begins */
    unsigned look_context;          /* where the next look at contexts begins */
    unsigned scan_pos[DATAPATH_REGION_MAPS];
    uint64_t scanned; /* ns, when the last one was */
    bool first_look;  /* a note is on its way that looks at what was loaded */
    uint32_t first_look_pos;
    struct vm_watch watch;
    _Atomic bool cq_error;          /* a CQ failed: its QPs must go to ERR */
    uint32_t cq_error_pos;          /* how far that has come; 0: nothing to do */
    _Atomic bool addresses_changed; /* its QPs are to look at theirs */
    uint32_t addresses_pos;         /* how far that has come; 0: nothing to do */
    _Atomic uint64_t next_timer;    /* ns; UINT64_MAX: none */

    /* QPs whose peers stand still, under the token, see sched.c. */
    TAILQ_HEAD(, qp) held;
    _Atomic uint32_t n_held; /* how many there are; anybody looks at it */
    uint32_t held_round;     /* those of another one are to look again */
    bool held_due;           /* there are some */
    uint64_t held_seen;      /* what the directory had changed when this one began */
    uint64_t held_at;        /* ns, when the next one may */

    /* Events that are held back, see datapath/cq_moderation.c. */
    _Atomic uint64_t next_hold; /* ns; UINT64_MAX: none */
    pthread_mutex_t hold_lock;  /* protects holds; taken under a cq->lock, or alone */
    struct deadlines holds;     /* of its CQs */

    /* Statistics; written by one worker at a time. */
    _Atomic uint64_t worker_ns; /* time of its worker that it had */
    _Atomic uint64_t tx_msgs, tx_bytes, rx_msgs, rx_bytes, errors, rnr_waits, retries,
        replays, interrupts;
    _Atomic uint64_t hold_looks; /* at peers that stood still */
    _Atomic uint64_t datagrams_sent;
    /*
     * Of any worker: datagrams that were taken, and what was not.  Apart from what the
     * VM's own worker uses: anybody may send something that is to be dropped.
     */
    char apart[2][64];
    _Atomic uint64_t datagrams_received, datagrams_dropped[DATAGRAM_DROPS];
    _Atomic uint64_t uc_dropped[UC_DROPS];
    char apart_from_others[64];

    /* Datagrams of other hosts, transport/link/datagrams.c's. */
    struct peer_account *outbound; /* the worker's; NULL: it has sent none there */
    _Atomic uint64_t inbound, inbound_mads; /* bytes that wait to be delivered */
};

#endif /* PVRDMAD_VM_DATAPATH_H */
