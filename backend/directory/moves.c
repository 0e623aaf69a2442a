/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Addresses that change their place with the VM that owns them.
 *
 * A VM is the same wherever it goes: its owner's number stays, its generation rises with
 * each move.  So a claim of the same owner with a higher generation takes an address
 * over, but only from where the VM stands still:
 *
 *   a VM of this host    it is paused; it is marked, and never runs again
 *   left behind          its VMM has gone, with its state handed over: the address is
 *                        held without a VM until it is claimed, or time is up, or
 *                        another guest begins in its place here, and wants it
 *   at a peer            who holds it, or has no link; if it has been without one for
 *                        long that is anybody's who claims it
 *
 * While its owner runs, and can be asked, nobody takes it: a host that repeats another's
 * claim with a higher generation gets nothing.  Who can prove that he is the same VM,
 * begun elsewhere, has it if he comes first (duplicates.c).
 *
 * Main thread.
 */
#include "directory/entry.h"

#include <glib.h>
#include <string.h>

#include "base/log.h"
#include "base/state_stream.h"
#include "objects/vm.h"

#define SWEEP_MS 50u

static TAILQ_HEAD(, entry) leaving = TAILQ_HEAD_INITIALIZER(leaving);
static unsigned n_leaving;
static guint sweep_timer;
static void (*on_moved)(struct vm *vm);

bool moves_claim(const struct entry *e, struct claim *claim)
{
    const struct vm *vm = atomic_load(&e->route.vm);
    const struct remote *r = atomic_load(&e->route.remote);

    if (vm) {
        *claim = directory_claim_of(vm);
    } else if (e->left_until) {
        *claim = e->left;
    } else if (r) {
        *claim = r->claim;
    }
    return vm || e->left_until || r;
}

/*
 * Does its owner stand still, or may it?  One of this host's gives way to a peer that
 * shows that it has its state; so one whose state was never saved, to none.
 */
static bool stands_still(const struct entry *e, const struct peer *from,
                         const struct claim *claim)
{
    const struct vm *vm = atomic_load(&e->route.vm);

    if (vm) {
        return atomic_load(&vm->dp.paused) && (!from || rivals_is_of(vm, claim));
    }
    /* Its host has said so, and not that it runs again, however long ago that was. */
    return e->left_until || !remote_is_linked(e) || atomic_load(&e->route.held_until);
}

enum claim_result moves_judge(const struct entry *e, const struct peer *from,
                              const struct claim *claim)
{
    struct claim now;

    if (!moves_claim(e, &now) || remote_is_free(e)) {
        return CLAIM_TAKEN;
    }
    if (!same_owner(&now, claim)) {
        return atomic_load(&e->route.vm) ? CLAIM_LOCAL : CLAIM_OTHER;
    }
    if (claim->generation > now.generation && stands_still(e, from, claim)) {
        return CLAIM_TAKEN;
    }
    if (rivals_judge(e, claim) == RIVAL_FIRST) {
        rivals_say(e, claim);
        return CLAIM_TAKEN;
    }
    return claim->generation > now.generation ? CLAIM_RUNS : CLAIM_OLD;
}

static void end_leaving(struct entry *e)
{
    TAILQ_REMOVE(&leaving, e, leaving);
    n_leaving--;
    e->left_until = 0;
    entry_bump(e);
}

static void has_moved(struct vm *vm)
{
    if (vm->moved) {
        return;
    }
    vm->moved = true;
    vm->moved_at = g_get_monotonic_time();
    log_vm(LOG_LVL_INFO, vm, "its addresses have moved: it does not run here any more");
    if (on_moved) {
        on_moved(vm);
    }
}

void moves_release(struct entry *e)
{
    struct vm *vm = atomic_load(&e->route.vm);

    if (vm) {
        entry_take_from_vm(e, vm);
        has_moved(vm);
    } else if (e->left_until) {
        end_leaving(e);
    } else if (e->from) {
        remote_clear(e);
    }
}

/* ---- those who have left ---- */

/* Nobody has claimed it: it is free. */
static void give_up(struct entry *e)
{
    if (e->left_clock) {
        past_add(e->left.owner, e->left_clock, e->left_by);
    }
    end_leaving(e);
    atomic_store(&e->route.held_until, 0);
    remote_unbound(e);
    remote_not_contested(e);
    entry_tell(e);
    entry_settle(e);
}

static gboolean sweep(gpointer unused)
{
    uint64_t now = now_ns();
    struct entry *e, *next;

    for (e = TAILQ_FIRST(&leaving); e; e = next) {
        next = TAILQ_NEXT(e, leaving);
        if (e->left_until <= now) {
            give_up(e);
        }
    }
    if (!TAILQ_EMPTY(&leaving)) {
        return G_SOURCE_CONTINUE;
    }
    sweep_timer = 0;
    return G_SOURCE_REMOVE;
}

static bool was_left_by(const struct entry *e, const struct vm *vm)
{
    return e->left_by == vm->serial;
}

/* So what is waited for is no more than VMs can hold. */
void moves_forget(const struct vm *vm)
{
    struct entry *e, *next;

    for (e = TAILQ_FIRST(&leaving); e; e = next) {
        next = TAILQ_NEXT(e, leaving);
        if (was_left_by(e, vm)) {
            give_up(e);
        }
    }
}

/* It was left by the same VM of the configuration, which a new guest has begun in. */
bool moves_is_former(const struct entry *e, const struct vm *vm)
{
    struct claim own = directory_claim_of(vm);

    return e->left_until && was_left_by(e, vm) && !same_owner(&e->left, &own);
}

static void leave(struct entry *e, const struct claim *claim, uint64_t clock, uint64_t by,
                  uint64_t ns)
{
    e->left = *claim;
    e->left_clock = clock;
    e->left_by = by;
    e->left_until = entry_hold_until(ns);
    TAILQ_INSERT_TAIL(&leaving, e, leaving);
    n_leaving++;
    atomic_store(&e->route.held_until, e->left_until);
    entry_index(e);
    remote_held(e);
    entry_tell(e);
    if (!sweep_timer) {
        sweep_timer = g_timeout_add(SWEEP_MS, sweep, NULL);
    }
}

void moves_leave(struct entry *e, const struct vm *vm, uint64_t clock, uint64_t ns)
{
    struct claim claim = directory_claim_of(vm);

    leave(e, &claim, clock, vm->serial, ns);
}

void moves_each_left(void (*fn)(struct entry *e, void *opaque), void *opaque)
{
    struct entry *e;

    TAILQ_FOREACH(e, &leaving, leaving)
    {
        fn(e, opaque);
    }
}

unsigned moves_left(void)
{
    return n_leaving;
}

/* ---- from one daemon to the next ---- */

/* Of the state of one: the least bytes it can have. */
#define LEFT_SIZE (4u + sizeof(struct pvrdma_gid) + 32u)

RECORD(claim_record, struct claim, FIELD(owner[0]), FIELD(owner[1]), FIELD(generation))

void directory_left_hand_over(const struct vm *vm, struct state_out *s)
{
    uint64_t now = now_ns();
    const struct entry *e;
    uint32_t n = 0;

    TAILQ_FOREACH(e, &leaving, leaving)
    {
        n += was_left_by(e, vm);
    }
    state_put_u32(s, n);
    TAILQ_FOREACH(e, &leaving, leaving)
    {
        if (was_left_by(e, vm)) {
            state_put_text(s, e->network);
            state_put_bytes(s, &e->gid, sizeof(e->gid));
            state_put_record(s, claim_record, &e->left);
            state_put_u64(s, e->left_until > now ? e->left_until - now : 1);
        }
    }
}

static void take_one(const struct vm *vm, struct state_in *s)
{
    g_autofree char *network = state_get_text(s);
    struct pvrdma_gid gid;
    struct claim claim = {.host = NULL};
    struct entry *e;
    uint64_t ns;

    state_get_bytes(s, &gid, sizeof(gid));
    state_get_record(s, claim_record, &claim);
    ns = state_get_u64(s);
    if (!network[0] || strlen(network) >= 64 || !claim.generation || ns == 0 ||
        ns > DIRECTORY_MAX_HOLD_NS) {
        state_fail(s, "invalid address in hold");
    }
    if (state_failed(s)) {
        return;
    }
    e = entry_find_or_make(network, &gid);
    if (e->claims || e->left_until) {
        state_fail(s, "address in hold more than once");
    } else {
        leave(e, &claim, 0, vm->serial, ns);
    }
}

void directory_left_take_over(const struct vm *vm, struct state_in *s)
{
    uint32_t n = state_get_count(s, VERBS_GID_TBL_LEN, LEFT_SIZE);

    for (uint32_t i = 0; i < n && !state_failed(s); i++) {
        take_one(vm, s);
    }
}

/* ---- who is told ---- */

bool directory_may_run(const struct vm *vm)
{
    return !vm->moved;
}

void directory_set_moved(void (*moved)(struct vm *vm))
{
    on_moved = moved;
}

void moves_fini(void)
{
    while (!TAILQ_EMPTY(&leaving)) {
        give_up(TAILQ_FIRST(&leaving));
    }
    if (sweep_timer) {
        g_source_remove(sweep_timer);
        sweep_timer = 0;
    }
    on_moved = NULL;
}
