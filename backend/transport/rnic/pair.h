/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Pairs of VMs, and the channel that joins each: made, watched, broken and made again.
 * pair.c, cm.c, vm.c
 *
 * Threads: the main thread, but for what says otherwise.  "Under the token" is: by who
 * holds the VM's.
 */
#ifndef PVRDMAD_RNIC_PAIR_H
#define PVRDMAD_RNIC_PAIR_H

#include <stdbool.h>
#include <stdint.h>

#include "transport/rnic/channel.h"

struct daemon_config;
struct peer;
struct rnic_nic;
struct rnic_pair;
struct rnic_vm;
struct vm;

/* ---- what a VM has of channels ---- */

/* NULL with errno. */
struct rnic_vm *rnic_vm_new(struct vm *vm);
/*
 * The VM goes: it is off its worker, and all flows are closed.  Nobody is told of
 * anything any more; what verbs have to do goes on by itself.
 */
void rnic_vm_free(struct rnic_vm *rv);
struct vm *rnic_vm_of(const struct rnic_vm *rv);
/* An epoll fd with all its completion channels.  Readable: rnic_vm_woken(). */
int rnic_vm_fd(const struct rnic_vm *rv);
/* It has a completion queue at all, else all that follows does nothing.  Any thread. */
bool rnic_vm_is_used(const struct rnic_vm *rv);

/* Under the token, in the VM's turns. */

/* Did something come?  Cheap; before each turn. */
bool rnic_vm_peek(struct rnic_vm *rv);
/* Take what came.  @now: CLOCK_MONOTONIC, ns.  True: there may be more. */
bool rnic_vm_look(struct rnic_vm *rv, uint64_t now);
/* The turn ends: what was staged goes out. */
void rnic_vm_flush(struct rnic_vm *rv);
/* ns, when a look is due though nothing comes; UINT64_MAX: never. */
uint64_t rnic_vm_due(const struct rnic_vm *rv);
/* The VM goes, and is off its worker: what flows send until it is freed waits for no
 * other VM, nor for a limit of its own; only channels may be full. */
void rnic_vm_last(struct rnic_vm *rv);
/* Before the VM is parked.  False: something came, look again. */
bool rnic_vm_arm(struct rnic_vm *rv, uint64_t now);
void rnic_vm_woken(struct rnic_vm *rv);

/* ---- pairs ---- */

/*
 *   NONE    there is no channel, nor is one being made
 *   MAKING  for rnic_make_ms at most: whoever wants one may wait
 *   UP      there is one
 */
enum rnic_pair_state { RNIC_PAIR_NONE, RNIC_PAIR_MAKING, RNIC_PAIR_UP };

/*
 * What joins @rv's VM with the VM of @owner (claim.owner) at @peer (NULL: this daemon).
 * A channel is made if there is none, none of both rests, and NICs fit.  NULL: there are
 * too many.
 *
 * A VM that is connected with itself has two ends: this is the one that connects, and
 * the other is a pair of its own that open() is told of.
 */
struct rnic_pair *rnic_pair_want(struct rnic_vm *rv, struct peer *peer,
                                 const uint64_t owner[2], const char *network);
enum rnic_pair_state rnic_pair_state(const struct rnic_pair *p);
/*
 * A pair is there as long as somebody holds it, it has a channel, or changed() is being
 * called for it.  Who keeps one beyond that holds it, and lets go of it before
 * rnic_vm_free().  Any thread.
 */
void rnic_pair_hold(struct rnic_pair *p);
void rnic_pair_let_go(struct rnic_pair *p);
/* End its channel; a new one may be wanted at once. */
void rnic_pair_break(struct rnic_pair *p, const char *why);

/* Constant, any thread. */
struct rnic_vm *rnic_pair_vm(const struct rnic_pair *p);
struct peer *rnic_pair_peer(const struct rnic_pair *p);
const uint64_t *rnic_pair_owner(const struct rnic_pair *p);

/* Under the token. */

/* NULL, unless it is in phase RNIC_UP. */
struct rnic_channel *rnic_pair_channel(const struct rnic_pair *p);
struct rnic_pair *rnic_pair_of(const struct rnic_channel *ch);
/* The name of the channel's NIC; NULL: there is none. */
const char *rnic_pair_nic(const struct rnic_pair *p);

/* Those who use channels. */
struct rnic_pair_ops {
    /* Under the token, as in struct rnic_channel_ops. */
    bool (*take)(struct rnic_flow *f, const uint8_t *bytes, size_t len);
    void (*writable)(struct rnic_flow *f);
    void (*overrun)(struct rnic_flow *f);
    bool (*open)(struct rnic_pair *p, uint32_t peer_index, const uint8_t *bytes,
                 size_t len);
    bool (*opened)(struct rnic_flow *f, bool accepted, const uint8_t *bytes, size_t len);
    void (*closed)(struct rnic_flow *f);
    /* All its flows are to be closed before this returns: then the channel goes. */
    void (*broken)(struct rnic_pair *p, struct rnic_channel *ch, bool all);
    /* Main thread: its state is another, or it may be wanted again.  Whoever waits asks
     * again.  Not called by rnic_pair_want() and _break(). */
    void (*changed)(struct rnic_pair *p);
};

/* ---- the daemon ---- */

/* Once, before rnic_pairs_start(). */
void rnic_pair_set_ops(const struct rnic_pair_ops *ops);
/* @local: there are channels within this daemon, too (path=rnic). */
void rnic_pairs_start(const struct daemon_config *cfg, bool local);
/* All VMs have gone; the NICs are closed later, and what channels there were with them.
 */
void rnic_pairs_stop(void);

/* Those that there are, or are being made or taken apart: ends of this daemon. */
unsigned rnic_nic_channels(const struct rnic_nic *nic);
/* What its channels have on their way, and may; VMs that wait for their turn.  Zeros: it
 * is not up. */
struct rnic_nic_usage {
    uint64_t bytes, max_bytes;
    uint32_t requests, max_requests, waiting;
};
void rnic_nic_usage(const struct rnic_nic *nic, struct rnic_nic_usage *u);

/* Others wait so long for a channel; a pair rests; a token holds, and so the other side
 * is waited for; a channel that was idle for as long may go to make room. */
#define RNIC_MAKE_MS      300u
#define RNIC_PAIR_REST_MS 60000u
#define RNIC_TOKEN_MS     5000u
#define RNIC_IDLE_MS      10000u
/* What a VM that has gone has sent may take so long to arrive. */
#define RNIC_LINGER_MS 200u
/* DISCONNECTED may be so much later than what it has flushed. */
#define RNIC_HONEST_MS 100u
/* Channels that a VM may have on a NIC. */
#define RNIC_VM_CHANNELS 256u
/* For tests: others than these. */
extern unsigned rnic_make_ms, rnic_pair_rest_ms, rnic_token_ms, rnic_idle_ms,
    rnic_linger_ms, rnic_honest_ms, rnic_vm_channels;

#endif /* PVRDMAD_RNIC_PAIR_H */
