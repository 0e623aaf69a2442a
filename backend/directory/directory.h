/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The directory: where an address is.  A wire address is (network, GID, QPN); there
 * is no default: what is not here cannot be reached.
 *
 * Other hosts' addresses are found by an engine: `static` (static.h) asks the peers of
 * the key file.  What it finds is remembered and followed until it is withdrawn.
 *
 * This room uses objects/ and what is below.
 */
#ifndef PVRDMAD_DIRECTORY_H
#define PVRDMAD_DIRECTORY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "pvrdma/abi.h"

struct peer;
struct state_in;
struct state_out;
struct vm;

/*
 * Who has an address: an owner, which is random and stays a VM's own wherever it goes,
 * and how often that VM has changed its place.
 */
#define CLAIM_PROOF_LEN 16u
struct claim {
    uint64_t owner[2];
    uint64_t generation;
    /* What its other places know it by (duplicates.c); zero, or host is NULL: nothing. */
    const char *host; /* where it is; stays valid as long as who claims it */
    uint8_t proof[CLAIM_PROOF_LEN];
};

/* What @vm claims its addresses with. */
struct claim directory_claim_of(const struct vm *vm);

/*
 * Where an address of another host is; does not change once it is published, and is
 * freed a grace period after it was taken out.  The peer is transport/'s.
 */
struct remote {
    struct peer *peer;
    struct claim claim;
};

/* What is known of an address that nobody is known to have. */
enum route_asked {
    ROUTE_NOT_ASKED,
    ROUTE_ASKED,  /* the other hosts, and they have not all answered */
    ROUTE_ABSENT, /* they have: nobody has it; for a second that is not asked again */
};

/*
 * Where (network, GID) is.  There is one route per address for as long as somebody
 * holds the address or refers to the route.
 *
 * What was found by a route, a peer's QP say, may be kept with the generation that
 * the route had before the look-up, and used, within one grace period, as long as it
 * still has it.  The generation changes with everything that may end that: a bind, a
 * hold, a move, the end of any QP of its owner.
 */
struct route {
    _Atomic uint64_t gen;
    _Atomic(struct vm *) vm; /* the VM of this host that holds the address, or NULL */
    /*
     * 0: its owner runs.  Else it stands still, and until then (ns, CLOCK_MONOTONIC) it
     * is waited for: later it is as if nobody were there.
     */
    _Atomic uint64_t held_until;
    _Atomic(struct remote *) remote; /* the other host that has it, or NULL; never both */
    _Atomic uint8_t asked;           /* enum route_asked */
};

void directory_init(void);
void directory_fini(void);

/*
 * Claim a GID for a VM of this host; 0, or EADDRINUSE if another one of the network
 * holds it, here or on another host as far as that is known.  What its own owner holds
 * with a lower generation it takes over, if that stands still; what the VM left behind
 * when it was another owner's it waits for no longer.  A VM may claim the same GID
 * several times.  Main thread, like all below.
 */
int directory_bind(struct vm *vm, const struct pvrdma_gid *gid);
/* All of them; with EADDRINUSE nothing has changed, here or elsewhere. */
int directory_bind_all(struct vm *vm, const struct pvrdma_gid *gid, unsigned n);
/* Release one claim; of somebody else's: nothing. */
void directory_unbind(struct vm *vm, const struct pvrdma_gid *gid);

/* ---- VMs that wait for an address (waiting.c) ---- */

struct waiter;

/* As directory_bind(), but behind those that wait for it. */
int directory_bind_in_turn(struct vm *vm, const struct pvrdma_gid *gid);
/*
 * @vm is to have @gid, for the entry @index of its GID table, as soon as nobody has it
 * who came before: it has waited for @waited (ns) by now.  The end of that is
 * directory_wait_over(), or @granted: @vm has a claim more then.  Never called from here.
 */
struct waiter *directory_wait(struct vm *vm, unsigned index, const struct pvrdma_gid *gid,
                              uint64_t waited,
                              void (*granted)(struct vm *vm, unsigned index));
void directory_wait_over(struct waiter *w);
uint64_t directory_waited(const struct waiter *w); /* ns */
/* Before another host hears that nobody has it: who waits for it here may have it. */
void directory_settle(const char *network, const struct pvrdma_gid *gid);
/* Another host, which comes before this one, asks who has it, as it may have such VMs. */
void directory_leave(const char *network, const struct pvrdma_gid *gid);
/* Who has it, in words for an administrator. */
#define DIRECTORY_HOLDER_LEN 128u
void directory_holder_text(const char *network, const struct pvrdma_gid *gid,
                           char text[DIRECTORY_HOLDER_LEN]);

/*
 * The route to an address that somebody holds or that was asked for, or NULL.  Any
 * worker, until its quiescent point; it waits for nobody.  @network is the interned name
 * (g_intern_string), so that to compare it is to compare pointers.
 */
const struct route *route_find(const char *network, const struct pvrdma_gid *gid);

/* The route to an address, whether anybody holds it or not; counted. */
struct route *route_get(const char *network, const struct pvrdma_gid *gid);
void route_put(struct route *route);

/* Of an address; nobody outside can make two alike.  @network is interned. */
uint64_t directory_hash(const char *network, const struct pvrdma_gid *gid);

/* Something of @vm ended or changed: what was found by its routes is void. */
void directory_bump(struct vm *vm);

/*
 * It stands still, and its routes are held for so long, or max_hold if that is less; or
 * it runs again (0).
 */
void directory_hold(struct vm *vm, uint64_t ns);

/* ---- moves (moves.c) ---- */

/*
 * @vm goes, and its state, with that clock of the guest's, was handed over: what it holds
 * is held without it for @ns at most, until its owner claims it with a higher generation,
 * here or elsewhere.
 */
void directory_left(struct vm *vm, uint64_t clock, uint64_t ns);

/*
 * @vm goes on here although somebody may have its state: whoever claims its addresses
 * with the generation that is in there is too late, and who has run with it gives way.
 */
void directory_went_on(struct vm *vm);

/*
 * @vm has run on from a state of it with that clock of the guest's (ns), be it the VM
 * that was saved or one that was begun from it; and is @vm begun from one that is of the
 * past, as far as is known here (restored.c)?
 */
void directory_ran_on(const struct vm *vm, uint64_t clock);
bool directory_is_past(const struct vm *vm, uint64_t clock);

/*
 * What @vm has left goes to another daemon that takes this one's place, and waits there
 * for as long as it would have here.
 */
void directory_left_hand_over(const struct vm *vm, struct state_out *s);
void directory_left_take_over(const struct vm *vm, struct state_in *s);

/* False: an address of @vm has been taken over; it runs elsewhere, and here no more. */
bool directory_may_run(const struct vm *vm);
/*
 * Called when that becomes so.  The VM stands still, or it has to be stopped now: it was
 * begun while its former self went on.
 */
void directory_set_moved(void (*moved)(struct vm *vm));

/* ---- two places of one state (duplicates.c) ---- */

/* What other hosts call this one; NULL: nothing, and claims have no proof. */
void directory_set_host(const char *name);
/* Does the name of that host come first, byte by byte? */
bool directory_host_is_before(const char *name);
/* Before the state of @vm is given to anybody: its places know each other by its key. */
void directory_need_key(struct vm *vm);
/* It has one: made here, or come with its state. */
bool directory_has_key(const struct vm *vm);

/* A claim of who owns an address that a VM of this host has. */
enum rival {
    RIVAL_NONE,   /* it is not, or nothing proves it */
    RIVAL_FIRST,  /* it is, and goes on: the VM of this host has given way */
    RIVAL_SECOND, /* it is to give way */
};
enum rival directory_rival(const char *network, const struct pvrdma_gid *gid,
                           const struct claim *claim);
/* Are both of one owner, and proved?  Then does @a go on, not @b? */
bool claim_is_rival(const struct claim *a, const struct claim *b);
bool claim_comes_first(const struct claim *a, const struct claim *b);
bool claim_is_proved(const struct claim *claim);

/* ---- other hosts (remote.c) ---- */

/* Limits of what others can make this host remember. */
#define DIRECTORY_MAX_CLAIMS 65536u /* of one peer: what 1,024 VMs can hold */
#define DIRECTORY_MAX_ASKED  4096u  /* addresses that nobody is known to have */
#define DIRECTORY_VM_ASKED   128u   /* those that one VM asked for, if others leave it */
/*
 * So long the owner of an address that stands still is waited for, at most: then its
 * peers' time runs.  The most that can be said, and what holds from then on for those
 * of this host and for what other hosts say of theirs.
 */
#define DIRECTORY_MAX_HOLD_NS (600ull * 1000000000u)
void directory_set_max_hold(uint64_t ns);

/*
 * What finds addresses of other hosts.  All on the main thread.  Its answers are
 * directory_claim(), or directory_absent() when there are no more to come.
 */
struct directory_engine {
    const char *name;
    /* Who has it?  False: there is nobody to ask. */
    bool (*ask)(const char *network, const struct pvrdma_gid *gid);
    /* Whoever has it is to claim it; nobody waits for an answer. */
    void (*call)(const char *network, const struct pvrdma_gid *gid);
    /* Nobody waits for the answer any more. */
    void (*give_up)(const char *network, const struct pvrdma_gid *gid);
    /* A VM of this host has claimed an address / has it no longer / stands still or not.
     */
    void (*bound)(const struct vm *vm, const char *network, const struct pvrdma_gid *gid);
    void (*unbound)(const char *network, const struct pvrdma_gid *gid);
    void (*held)(const char *network, const struct pvrdma_gid *gid, uint64_t until);
    /* What @peer is called; NULL: not known.  May be missing. */
    const char *(*peer_name)(struct peer *peer);
};

/* NULL: nobody outside is asked, as from the start.  Returns 0 or an errno. */
int directory_set_engine(const struct directory_engine *engine);
/* Is there anybody who can be asked now?  If not, unknown addresses are absent at once.
 */
void directory_set_reachable(bool reachable);
/*
 * Links were lost, and may be back in a moment: until then, and for @ns at most, an
 * address that nobody is known to have is one that was asked for.  0: they are there, or
 * will not.
 */
void directory_expect(uint64_t ns);
/* Any thread. */
bool directory_expects(void);

/*
 * Called when what is said of a route may have changed: it has another place, stands
 * still or not any more, or is not to be found.  It may put routes and ask; claims and
 * binds it leaves alone.
 */
void directory_set_watcher(void (*changed)(struct route *route));
/*
 * Called when any address that does not stand still, or not any more, may have changed:
 * who waits for one may look again.  It only takes note of it.
 */
void directory_set_listener(void (*fn)(void));

/*
 * Who has it?  Asks, unless that is known or nobody was found a moment ago.  @vm: on
 * whose account; NULL: nobody's.
 */
void route_ask(struct route *route, const struct vm *vm);

/*
 * @gid, of a network that a VM of this host is in, will be claimed here: if another host
 * has it that is to be known then.
 */
void directory_look(const char *network, const struct pvrdma_gid *gid);

/*
 * A worker has something for an address of which @route (NULL: none) says that nobody
 * has it.  True: it is being asked for, look again in a while; false: nobody has it.
 * @network is interned.
 */
bool directory_want(const struct vm *vm, const struct route *route, const char *network,
                    const struct pvrdma_gid *gid);

/*
 * The interned form of @network, or NULL: then no VM here has ever been in it.  It may be
 * another name of this process: then there is nothing under it.
 */
const char *directory_network(const char *network);

enum claim_result {
    CLAIM_TAKEN,   /* the address is at @peer now, or was already */
    CLAIM_OLD,     /* its owner has moved on since */
    CLAIM_OTHER,   /* it has another owner */
    CLAIM_LOCAL,   /* a VM of this host holds it */
    CLAIM_RUNS,    /* its owner has moved there, it says, but runs where it was */
    CLAIM_TOO_MANY /* of this peer */
};

/*
 * @peer says that @claim->owner has the address there, and for how long that stands
 * still (0: it does not).  @network is interned.
 */
enum claim_result directory_claim(struct peer *peer, const char *network,
                                  const struct pvrdma_gid *gid, const struct claim *claim,
                                  uint64_t hold_ns);
/* The peer that has the address, and with which claim, as far as is known; or NULL. */
struct peer *directory_holder(const char *network, const struct pvrdma_gid *gid,
                              struct claim *claim);
/* Has @peer claimed any address of @network (interned) for this owner? */
bool directory_has_owner(struct peer *peer, const char *network, const uint64_t owner[2]);
/* Is there a link to @peer?  Without one, what it has may be claimed by its owner. */
void directory_linked(struct peer *peer, bool linked);
/* @peer does not have it, or no longer.  True: it had. */
bool directory_unclaim(struct peer *peer, const char *network,
                       const struct pvrdma_gid *gid);
/* Its owner there stands still for so long, or not any more (0). */
void directory_hold_remote(struct peer *peer, const char *network,
                           const struct pvrdma_gid *gid, uint64_t hold_ns);
/* All who were asked have answered, and nobody has it. */
void directory_absent(const char *network, const struct pvrdma_gid *gid);

/*
 * Forget what @peer has claimed; @unused_only: but for what somebody here refers to.
 * Those of its claims are told to @left (may be NULL).
 */
void directory_forget(struct peer *peer, bool unused_only,
                      void (*left)(const char *network, const struct pvrdma_gid *gid,
                                   void *opaque),
                      void *opaque);
/*
 * @peer has been without a link for too long.  What it has claimed is forgotten, but for
 * what stands still there: that is waited for until its hold ends, unless it is claimed,
 * by whomever; others are asked for it each time if somebody refers to it.  Returns when
 * the first of them ends, in ns from now, to be called again; 0: nothing is left.
 */
uint64_t directory_abandon(struct peer *peer);
/* What was not to be found may be now: ask again for what somebody refers to. */
void directory_ask_again(void);

/* What this host says of an address that one of its VMs holds; false: none does. */
bool directory_local(const char *network, const struct pvrdma_gid *gid,
                     struct claim *claim, uint64_t *held_until);
/* All that its VMs hold in @network. */
void directory_each_local(const char *network,
                          void (*fn)(const struct pvrdma_gid *gid,
                                     const struct claim *claim, uint64_t held_until,
                                     void *opaque),
                          void *opaque);

/* The network, once or more, of whatever VMs here hold that has had another place. */
void directory_each_moved(void (*fn)(const char *network, void *opaque), void *opaque);

struct directory_stats {
    const char *engine; /* NULL: none */
    unsigned local;     /* GIDs that VMs of this host hold */
    unsigned waiting;   /* entries of theirs that wait for a GID */
    unsigned left;      /* GIDs that are held for owners who have left */
    unsigned remote;    /* GIDs of other hosts that are known */
    unsigned asked;     /* asked for and not found, or not yet */
    uint64_t asks;      /* since the start, like all below */
    uint64_t refused;   /* claims: another owner, or a VM of this host has it */
    uint64_t too_many;  /* claims and questions beyond what is remembered */
};
void directory_get_stats(struct directory_stats *st);

/* GIDs held by anybody here; for status and leak checks. */
unsigned directory_count(void);

/* Routes there are; for leak checks. */
unsigned directory_routes(void);

#endif /* PVRDMAD_DIRECTORY_H */
